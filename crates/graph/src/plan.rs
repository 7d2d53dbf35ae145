//! The plan: groups in order, and where every value lies. Known before anything runs.

use std::sync::Arc;

use crate::{Caps, Graph, Group, NodeId, Out, Val};

/// Where a leaf's data come from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeafKind {
    /// An existing buffer that the plan may only read.
    Buffer,
    /// An existing buffer whose last use may be this plan: its space may become that of an output or
    /// slot, once everything that reads it has run.
    Donated,
    /// Host bytes, uploaded by the submission itself into the workspace's upload block.
    Upload,
}

/// An input of the plan, in the order in which [`crate::Args::leaves`] gives them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leaf {
    /// The `Input` node.
    pub node: NodeId,
    /// Where the data come from.
    pub kind: LeafKind,
    /// For uploads, bytes from the start of the upload block; else 0.
    pub offset_bytes: usize,
}

/// Where a value lies.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loc {
    /// In leaf `i`. Written only where an output takes the place of a donated leaf.
    Leaf(u32),
    /// In slot `i` of the workspace.
    Slot(u32),
    /// In the buffer that the submission gives for output `i`.
    Out(u32),
}

/// A range of the workspace that holds one value for a part of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Bytes from the start of the workspace; aligned to the device's `align_bytes`.
    pub offset_bytes: usize,
    /// Bytes taken.
    pub bytes: usize,
    /// The step that first writes it.
    pub born: u32,
    /// The last step that reads it.
    pub dies: u32,
}

/// Where an output ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// In a new buffer of this many bytes, which the caller supplies with the submission.
    New {
        /// Bytes to allocate.
        bytes: usize,
    },
    /// In the buffer of this donated leaf: the output's buffer *is* the leaf's.
    InPlace(u32),
}

/// A value that outlives the submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The value.
    pub val: Val,
    /// Where it ends.
    pub home: Home,
}

/// One kernel run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The group that runs.
    pub group: Arc<Group>,
    /// Where each of the group's operands lies.
    pub reads: Vec<Loc>,
    /// Where each of the group's stores goes. A location that is also read is read and written by the
    /// same invocation, element for element.
    pub writes: Vec<Loc>,
    /// Neighbouring steps with one number are independent of each other and of one text: a device may
    /// run them as one dispatch.
    pub batch: u32,
}

/// Choices that are part of a plan's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Whether nodes are fused (else one group a node).
    pub fuse: bool,
    /// Whether every stored value becomes an output, so that later flushes of the pass find it.
    pub keep: bool,
}

/// Groups in order, and where every value lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is computed. Executors that need no groups (the oracle) interpret this.
    pub graph: Arc<Graph>,
    /// The inputs.
    pub leaves: Vec<Leaf>,
    /// The scalar nodes, in the order in which [`crate::Args::scalars`] gives them.
    pub scalars: Vec<NodeId>,
    /// The kernel runs, in order.
    pub steps: Vec<Step>,
    /// Ranges of the workspace.
    pub slots: Vec<Slot>,
    /// What outlives the submission.
    pub outputs: Vec<Output>,
    /// Bytes of the upload block, which lies at the start of the workspace.
    pub upload_bytes: usize,
    /// Bytes of workspace needed: the peak, upload block included.
    pub workspace_bytes: usize,
    /// Why edges were not fused, a line each.
    pub notes: Vec<String>,
}

/// Device memory that a plan takes, known before it runs.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanMemory {
    /// Bytes of the buffers that it reads, those that it may write into too.
    pub leaf_bytes: usize,
    /// Bytes of buffers made for its results.
    pub output_bytes: usize,
    /// Bytes of the workspace.
    pub workspace_bytes: usize,
    /// The least that any workspace could take for these steps in this order: the largest sum of what it holds
    /// at one of them.
    pub least_workspace_bytes: usize,
}

impl PlanMemory {
    /// The most bytes that exist while the plan runs.
    pub fn peak_bytes(&self) -> usize {
        self.leaf_bytes + self.output_bytes + self.workspace_bytes
    }

    /// The least that could exist at once for these steps in this order.
    pub fn least_peak_bytes(&self) -> usize {
        self.leaf_bytes + self.output_bytes + self.least_workspace_bytes
    }
}

impl Plan {
    /// What the plan takes on a device with these limits.
    pub fn memory(&self, caps: &Caps) -> PlanMemory {
        let mut changes = vec![0i64; self.steps.len() + 1];
        for slot in &self.slots {
            changes[slot.born as usize] += slot.bytes as i64;
            changes[slot.dies as usize + 1] -= slot.bytes as i64;
        }
        let mut now = 0;
        let sums = changes.iter().map(|change| {
            now += change;
            now as usize
        });
        let leaf = |leaf: &Leaf| match leaf.kind {
            LeafKind::Upload => 0,
            LeafKind::Buffer | LeafKind::Donated => {
                let out = self.graph.node(leaf.node).outs[0];
                caps.value_bytes(out.shape.elems(), out.dtype)
            }
        };
        PlanMemory {
            least_workspace_bytes: self.upload_bytes + sums.max().unwrap_or(0),
            leaf_bytes: self.leaves.iter().map(leaf).sum(),
            output_bytes: self.fresh_bytes(),
            workspace_bytes: self.workspace_bytes,
        }
    }

    /// Bytes of the buffers that a submission fills anew.
    pub fn fresh_bytes(&self) -> usize {
        self.outputs.iter().map(|o| if let Home::New { bytes } = o.home { bytes } else { 0 }).sum()
    }

    /// Shape and dtype of output `i`.
    pub fn output(&self, i: usize) -> Out {
        self.graph.out(self.outputs[i].val)
    }
}
