//! Cutting: from a pool to the graph of what is asked for. Computed values are leaves.

use smallvec::SmallVec;
use wgrad_graph::{Graph, Node, NodeId, Op, Phase, Result, Val};

use crate::state::{FastMap, Pool, Standing, ValueKey};

/// A graph cut out of a pool, and where its leaves come from.
#[derive(Default)]
pub(crate) struct Cut {
    pub(crate) graph: Graph,
    /// For each leaf of the graph, in order: its node in the graph, and the pool's node and output.
    pub(crate) leaves: Vec<(NodeId, u32, u32)>,
    /// For each scalar of the graph, in order: the pool's node.
    pub(crate) numbers: Vec<u32>,
    /// For each node of the graph: the phase in which it was recorded.
    pub(crate) phases: Vec<Phase>,
    /// The graph's value for each of the pool's (node, output).
    pub(crate) vals: FastMap<(u32, u32), Val>,
}

/// The pool's nodes that `goals` need and that are not computed, ascending.
pub(crate) fn needed(pool: &Pool, goals: &[ValueKey]) -> Result<Vec<u32>> {
    let mut seen = vec![false; pool.nodes.len()];
    let mut todo: Vec<(u32, u32)> =
        goals.iter().map(|k| (pool.values[*k].node, pool.values[*k].out)).collect();
    while let Some((index, out)) = todo.pop() {
        let node = &pool.nodes[index as usize];
        match &node.outs[out as usize].standing {
            Standing::Poisoned(error) => return Err(error.clone()),
            Standing::Computed(..) => continue,
            Standing::Queued if std::mem::replace(&mut seen[index as usize], true) => continue,
            Standing::Queued => {}
        }
        todo.extend(node.inputs.iter().map(|k| (pool.values[*k].node, pool.values[*k].out)));
    }
    Ok((0..pool.nodes.len() as u32).filter(|i| seen[*i as usize]).collect())
}

/// Cuts the graph that computes `goals` out of a pool. Computed values are leaves.
pub(crate) fn cut(pool: &Pool, goals: &[ValueKey]) -> Result<Cut> {
    let mut cut = Cut::default();
    let mut ids: FastMap<u32, NodeId> = FastMap::default();
    for index in needed(pool, goals)? {
        let node = &pool.nodes[index as usize];
        if node.op == Op::Input {
            add_leaf(&mut cut, pool, index, 0);
            continue;
        }
        let mut inputs: SmallVec<[Val; 4]> = SmallVec::new();
        for key in &node.inputs {
            let v = pool.values[*key];
            inputs.push(match cut.vals.get(&(v.node, v.out)) {
                Some(val) => *val,
                None => add_leaf(&mut cut, pool, v.node, v.out),
            });
        }
        if let Some(custom) = &node.custom
            && let Op::Custom(id) = node.op
        {
            cut.graph.register(id, custom.spec());
        }
        let id = cut.graph.push(Node {
            op: node.op,
            inputs,
            outs: node.outs.iter().map(|o| o.out).collect(),
            after: node.after.iter().filter_map(|a| ids.get(a).copied()).collect(),
            segment: 0,
            at: Some(node.at),
        });
        cut.phases.push(node.phase);
        ids.insert(index, id);
        if node.op == Op::Scalar {
            cut.numbers.push(index);
        }
        for out in 0..node.outs.len() as u32 {
            // An output that is already computed stays what it is: its readers found the leaf.
            if !matches!(node.outs[out as usize].standing, Standing::Computed(..)) {
                cut.vals.insert((index, out), Val { node: id, out });
            }
        }
    }
    Ok(cut)
}

fn add_leaf(cut: &mut Cut, pool: &Pool, node: u32, out: u32) -> Val {
    let n = &pool.nodes[node as usize];
    let id = cut.graph.push(Node {
        op: Op::Input,
        inputs: SmallVec::new(),
        outs: SmallVec::from_buf([n.outs[out as usize].out]),
        after: SmallVec::new(),
        segment: 0,
        at: Some(n.at),
    });
    let val = Val::of(id);
    cut.phases.push(n.phase);
    cut.leaves.push((id, node, out));
    cut.vals.insert((node, out), val);
    val
}
