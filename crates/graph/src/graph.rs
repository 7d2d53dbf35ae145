//! The graph: nodes in recorded order, each an operation on values of earlier nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Caps, DType, Op, Result, Shape, infer_all};

/// Index of a node in its graph.
pub type NodeId = u32;

/// One output of one node.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Val {
    /// The node.
    pub node: NodeId,
    /// Which of its outputs.
    pub out: u32,
}

impl Val {
    /// The first output of `node`.
    pub fn of(node: NodeId) -> Val {
        Val { node, out: 0 }
    }
}

impl fmt::Debug for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.out {
            0 => write!(f, "%{}", self.node),
            out => write!(f, "%{}.{out}", self.node),
        }
    }
}

/// Shape and dtype of a value.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Out {
    /// Sizes of the axes.
    pub shape: Shape,
    /// Type of the elements.
    pub dtype: DType,
}

impl fmt::Debug for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// An operation on values of earlier nodes.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// The operands.
    pub inputs: SmallVec<[Val; 4]>,
    /// Shapes and dtypes of the outputs; most operations have one.
    pub outs: SmallVec<[Out; 1]>,
    /// Nodes that run before this one although no data flows from them.
    pub after: SmallVec<[NodeId; 1]>,
    /// The segment of its program that the node belongs to.
    pub segment: u16,
    /// The user's line. Not part of the structure.
    pub at: Option<&'static Location<'static>>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        let key = |n: &Node| (n.op, n.segment);
        key(self) == key(other)
            && self.inputs == other.inputs
            && self.outs == other.outs
            && self.after == other.after
    }
}

impl Eq for Node {}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.op, self.segment, &self.inputs, &self.outs, &self.after).hash(state);
    }
}

/// Identity of a custom operation: the hash of its name and source.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CustomId(pub u64);

/// Decides the dispatch of a custom kernel: workgroups on each axis.
pub(crate) type DispatchFn = dyn Fn(&[Out], &Caps) -> [u32; 3] + Send + Sync;
/// Computes a custom operation on f64 slices: operands, then outputs to fill.
pub(crate) type CpuFn = dyn Fn(&[&[f64]], &mut [Vec<f64>]) + Send + Sync;

/// What executors need of a user's kernel. Operands arrive materialised, row-major, in exact ranges.
pub struct CustomSpec {
    /// The stem.
    pub name: String,
    /// WGSL: `@group(0) @binding(i)`, operands first (`read`), then outputs (`read_write`); entry
    /// point `main`.
    pub wgsl: String,
    /// Workgroups for given outputs.
    pub dispatch: Box<DispatchFn>,
    /// The same operation on the CPU.
    pub cpu: Box<CpuFn>,
}

impl fmt::Debug for CustomSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Nodes in recorded order. Equality and hash are structural: lines and closures do not count.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    customs: BTreeMap<CustomId, Arc<CustomSpec>>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.nodes == other.nodes
    }
}

impl Eq for Graph {}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nodes.hash(state);
    }
}

impl Graph {
    /// The nodes in recorded order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node `id`.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// Shape and dtype of a value.
    pub fn out(&self, val: Val) -> Out {
        self.node(val.node).outs[val.out as usize]
    }

    /// Appends a node that is already checked.
    pub fn push(&mut self, node: Node) -> NodeId {
        debug_assert!(node.inputs.iter().all(|v| (v.node as usize) < self.nodes.len()));
        self.nodes.push(node);
        self.nodes.len() as NodeId - 1
    }

    /// Appends `op` on `inputs`, and gives its (first) result; `to` is the result's shape where the operation does not tell it
    /// (reshape, expand, slice, pad, creation).
    ///
    /// # Errors
    /// `Shape`, `DType` or `Argument`, when the operands do not fit the operation.
    pub fn add(&mut self, op: Op, inputs: &[Val], to: Option<Shape>, dtype: Option<DType>) -> Result<Val> {
        let ins: SmallVec<[Out; 4]> = inputs.iter().map(|v| self.out(*v)).collect();
        let outs = infer_all(op, &ins, to, dtype)?;
        Ok(Val::of(self.push(Node {
            op,
            inputs: inputs.into(),
            outs,
            after: SmallVec::new(),
            segment: 0,
            at: None,
        })))
    }

    /// Makes a custom operation known to the graph.
    pub fn register(&mut self, id: CustomId, spec: &Arc<CustomSpec>) {
        self.customs.entry(id).or_insert_with(|| Arc::clone(spec));
    }

    /// The custom operations that the graph knows.
    pub(crate) fn customs(&self) -> impl Iterator<Item = (&CustomId, &Arc<CustomSpec>)> {
        self.customs.iter()
    }

    /// The custom operation `id`, if known.
    pub fn custom(&self, id: CustomId) -> Option<&Arc<CustomSpec>> {
        self.customs.get(&id)
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, node) in self.nodes.iter().enumerate() {
            write!(f, "%{id} = {}", node.op.name())?;
            for v in &node.inputs {
                write!(f, " {v:?}")?;
            }
            for out in &node.outs {
                write!(f, " : {out:?}")?;
            }
            match node.op {
                Op::Reduce { axes, .. } => write!(f, " axes {axes:?}")?,
                Op::ArgReduce { axis, .. }
                | Op::Iota { axis }
                | Op::Concat { axis }
                | Op::Gather { axis }
                | Op::Scatter { axis, .. }
                | Op::Scan { axis, .. }
                | Op::ArgSort { axis, .. } => write!(f, " axis {axis}")?,
                Op::Windows { axis, size, step, dilation } => {
                    write!(f, " axis {axis} size {size} step {step} dilation {dilation}")?;
                }
                Op::Diagonal { a, b } => write!(f, " axes {a} {b}")?,
                Op::Attention(attend) | Op::AttentionGrad(attend) if attend.causal => write!(f, " causal")?,
                Op::Permute(perm) => write!(f, " perm {:?}", &perm[..node.outs[0].shape.rank()])?,
                _ => {}
            }
            if !node.after.is_empty() {
                write!(f, " after {:?}", node.after)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
