//! One recorded graph as several plans that run one after the other: what crosses from one to a later
//! one is an explicit stash value.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::{Caps, Graph, LeafKind, Node, NodeId, Op, Options, Plan, Result, Root, Val, bail, plan};

/// Where a segment's input comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Leaf `i` of the whole graph.
    Leaf(u32),
    /// An output of an earlier segment.
    Stash {
        /// The segment.
        segment: u32,
        /// Which of its plan's outputs.
        output: u32,
    },
}

/// A part of a program: a plan over a graph of its own.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What runs. Its outputs are the segment's roots, then its stash values, then what
    /// [`Options::keep`] adds.
    pub plan: Plan,
    /// Where each of the plan's leaves comes from. A stash leaf is donated to the last segment that
    /// reads it, unless it is a root too.
    pub inputs: Vec<Source>,
    /// For each of the plan's scalars: its number among the scalars of the whole graph.
    pub scalars: Vec<u32>,
    /// How many of the plan's outputs are roots.
    pub roots: usize,
    /// The values of the whole graph that the outputs after the roots hold for later segments.
    pub stash: Vec<Val>,
    /// For each node of the plan's graph: the node of the whole graph that it is, or stands for.
    pub nodes: Vec<NodeId>,
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, source) in self.inputs.iter().enumerate() {
            match source {
                Source::Leaf(leaf) => writeln!(f, "input {i}: leaf {leaf} of the program")?,
                Source::Stash { segment, output } => {
                    writeln!(f, "input {i}: output {output} of segment {segment}")?;
                }
            }
        }
        for (i, val) in self.stash.iter().enumerate() {
            writeln!(f, "output {}: stash {val:?}", self.roots + i)?;
        }
        write!(f, "{}", self.plan)
    }
}

/// What one segment computes, before it is planned.
#[derive(Default)]
struct Part {
    /// Nodes computed here.
    nodes: BTreeSet<NodeId>,
    /// Values that come from earlier segments.
    takes: BTreeSet<Val>,
    /// Values that later segments take.
    gives: BTreeSet<Val>,
}

/// Plans of the segments that compute `roots[0]`, `roots[1]`, and so on, each what its roots need and no
/// earlier segment computed. Work that is only movement is repeated where it is needed.
///
/// # Errors
/// `Argument`, when the leaves are not the graph's; and those of [`plan`].
pub fn segments(
    graph: &Arc<Graph>,
    roots: &[Vec<Val>],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
) -> Result<Vec<Segment>> {
    let inputs = graph.nodes().iter().enumerate().filter(|(_, n)| n.op == Op::Input);
    if !inputs.map(|(id, _)| id as NodeId).eq(leaves.iter().map(|l| l.0)) {
        bail!(Argument, "segments", "the leaves given are not the input nodes of the graph in order");
    }
    let parts = divide(graph, roots);
    let mut last: HashMap<Val, usize> = HashMap::new();
    for (k, part) in parts.iter().enumerate() {
        part.takes.iter().for_each(|v| _ = last.insert(*v, k));
        let read = part.nodes.iter().filter(|id| graph.node(**id).op == Op::Input);
        read.for_each(|id| _ = last.insert(Val::of(*id), k));
    }
    let leaf_of: HashMap<NodeId, u32> = leaves.iter().enumerate().map(|(i, l)| (l.0, i as u32)).collect();
    let scalar_nodes = graph.nodes().iter().enumerate().filter(|(_, n)| n.op == Op::Scalar);
    let scalar_of: HashMap<NodeId, u32> =
        scalar_nodes.enumerate().map(|(i, (id, _))| (id as NodeId, i as u32)).collect();
    let mut home: HashMap<Val, Source> = HashMap::new();
    let mut done: Vec<Segment> = Vec::new();
    for (k, part) in parts.iter().enumerate() {
        let mut sub = Graph::default();
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut here: HashMap<Val, Val> = HashMap::new();
        let mut kinds: Vec<(NodeId, LeafKind)> = Vec::new();
        let mut sources = Vec::new();
        let mut ids: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        let all: BTreeSet<NodeId> =
            part.nodes.iter().copied().chain(part.takes.iter().map(|v| v.node)).collect();
        for id in all {
            let node = graph.node(id);
            let outs = node.outs.len() as u32;
            if !part.nodes.contains(&id) {
                for val in (0..outs).map(|out| Val { node: id, out }).filter(|v| part.takes.contains(v)) {
                    let Some(source) = home.get(&val).copied() else { continue };
                    let new = sub.push(Node {
                        op: Op::Input,
                        inputs: Default::default(),
                        outs: smallvec::smallvec![graph.out(val)],
                        after: Default::default(),
                        segment: node.segment,
                        at: node.at,
                    });
                    let root = matches!(source, Source::Stash { segment, output }
                        if (output as usize) < done[segment as usize].roots);
                    let donated = last.get(&val) == Some(&k) && !root && !options.keep;
                    kinds.push((new, if donated { LeafKind::Donated } else { LeafKind::Buffer }));
                    sources.push(source);
                    nodes.push(id);
                    here.insert(val, Val::of(new));
                }
                continue;
            }
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|v| *v = here[&*v]);
            node.after = node.after.iter().filter_map(|a| ids.get(a).copied()).collect();
            if let Op::Custom(custom) = node.op
                && let Some(spec) = graph.custom(custom)
            {
                sub.register(custom, spec);
            }
            let input = node.op == Op::Input;
            let new = sub.push(node);
            if input {
                let leaf = leaf_of[&id];
                let kind = match leaves[leaf as usize].1 {
                    LeafKind::Donated if last.get(&Val::of(id)) != Some(&k) => LeafKind::Buffer,
                    kind => kind,
                };
                kinds.push((new, kind));
                sources.push(Source::Leaf(leaf));
            }
            nodes.push(id);
            ids.insert(id, new);
            (0..outs).for_each(|out| _ = here.insert(Val { node: id, out }, Val { node: new, out }));
        }
        // A root that a later segment takes is not stored twice.
        let stash: Vec<Val> = part.gives.iter().copied().filter(|v| !roots[k].contains(v)).collect();
        let asked: Vec<Root> =
            roots[k].iter().chain(&stash).map(|v| Root { val: here[v], into: None }).collect();
        for (output, val) in roots[k].iter().chain(&stash).enumerate() {
            if part.gives.contains(val) {
                home.entry(*val).or_insert(Source::Stash { segment: k as u32, output: output as u32 });
            }
        }
        let plan = plan(&Arc::new(sub), &asked, &kinds, options, caps)?;
        let scalars = plan.scalars.iter().map(|s| scalar_of[&nodes[*s as usize]]).collect();
        done.push(Segment { plan, inputs: sources, scalars, roots: roots[k].len(), stash, nodes });
    }
    Ok(done)
}

/// Which segment computes what.
fn divide(graph: &Graph, roots: &[Vec<Val>]) -> Vec<Part> {
    let mut owner: Vec<Option<usize>> = vec![None; graph.nodes().len()];
    let mut parts: Vec<Part> = Vec::new();
    for (k, roots) in roots.iter().enumerate() {
        let mut part = Part::default();
        let mut todo: Vec<Val> = roots.clone();
        while let Some(val) = todo.pop() {
            let node = graph.node(val.node);
            let free = node.op.is_movement() || matches!(node.op, Op::Input | Op::Scalar | Op::Iota { .. });
            match owner[val.node as usize] {
                Some(earlier) if earlier < k && !free => {
                    part.takes.insert(val);
                    parts[earlier].gives.insert(val);
                }
                _ => {
                    if part.nodes.insert(val.node) {
                        owner[val.node as usize].get_or_insert(k);
                        todo.extend(&node.inputs);
                    }
                }
            }
        }
        parts.push(part);
    }
    parts
}
