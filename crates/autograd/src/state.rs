//! What a context holds: owned values, the pools of its open passes, plans, and what is in flight.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustc_hash::FxHasher;
use slotmap::SlotMap;
use smallvec::SmallVec;
use wgrad_graph::{Backend, BufferId, DType, Error, HostTensor, Op, Out, Phase, Result, Ticket};

use crate::custom::Entry;
use crate::custom_gradient::Rule;
use crate::deferred::Cell as DeferredCell;
use crate::flight::Failure;
use crate::memo::Memos;
use crate::pass::OpenPass;
use crate::plans::Plans;
use crate::profiling::Profiling;
use crate::reading::Fate;
use crate::tape::Tape;

/// A value in the pool of a pass: its number there.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ValueKey(pub(crate) u32);

slotmap::new_key_type! {
    /// An owned value in the persistent pool.
    pub(crate) struct OwnedKey;
}

/// A map whose keys this crate made itself, so that nobody can choose them to collide.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FxHasher>>;
/// A set of such keys.
pub(crate) type FastSet<K> = HashSet<K, BuildHasherDefault<FxHasher>>;

/// A line of the user's program.
pub(crate) type At = &'static Location<'static>;

/// A buffer of the device, given back on drop.
pub(crate) struct Lease {
    backend: Arc<dyn Backend>,
    pub(crate) id: BufferId,
}

impl Lease {
    pub(crate) fn new(backend: &Arc<dyn Backend>, bytes: usize) -> Result<Arc<Lease>> {
        let id = backend.alloc(bytes)?;
        Ok(Arc::new(Lease { backend: Arc::clone(backend), id }))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.backend.free(self.id);
    }
}

/// The state of a value. It belongs to the value: nothing that happens to others changes it.
#[derive(Clone)]
pub(crate) enum Standing {
    /// Recorded, not computed.
    Queued,
    /// In this buffer, since this submission.
    Computed(Arc<Lease>, Ticket),
    /// The flush that should have computed it failed.
    Poisoned(Error),
}

/// Where a leaf's data or a scalar's number come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// The node computes.
    Operation,
    /// Bytes from the host.
    Host(HostTensor),
    /// An owned value's version, or a constant table.
    Lease(Arc<Lease>),
    /// Data that were brought to the device before.
    Placed(Arc<Lease>),
    /// A constant table, not uploaded yet.
    Table(&'static str, HostTensor),
    /// A value of a pass around this one.
    Outer { pass: OpenPass, key: ValueKey },
    /// A number.
    Number(Number),
}

/// Computes a number from a count.
pub(crate) type CountFn = Arc<dyn Fn(u64) -> f64 + Send + Sync>;

/// A host number that a plan takes as an input.
#[derive(Clone)]
pub(crate) enum Number {
    /// Written in the program.
    Literal(f64),
    /// A `Scalar`, as it is when the step is submitted.
    Cell(Arc<AtomicU64>),
    /// A function of a counter, of which the pass had added so much when this was recorded.
    Count(Arc<AtomicU64>, CountFn, u64),
    /// The number of the pass in its context, modulo 2^32.
    Step,
}

impl Number {
    /// The number now, in the pass with number `step`.
    pub(crate) fn now(&self, step: u64) -> f64 {
        match self {
            Number::Literal(x) => *x,
            Number::Cell(cell) => f64::from_bits(cell.load(Ordering::Acquire)),
            Number::Count(counter, f, added) => f(counter.load(Ordering::Acquire).wrapping_add(*added)),
            Number::Step => (step & 0xffff_ffff) as f64,
        }
    }
}

/// An output of a node.
pub(crate) struct NodeOut {
    pub(crate) out: Out,
    pub(crate) key: ValueKey,
    pub(crate) standing: Standing,
}

/// A recorded operation.
pub(crate) struct PassNode {
    pub(crate) op: Op,
    pub(crate) inputs: SmallVec<[ValueKey; 4]>,
    pub(crate) outs: SmallVec<[NodeOut; 1]>,
    pub(crate) after: SmallVec<[u32; 1]>,
    pub(crate) source: Source,
    /// A number as the first submission that used it took it.
    pub(crate) taken: Option<f64>,
    /// Whether a submission has computed the node, be it only on the way to another.
    pub(crate) ran: bool,
    pub(crate) custom: Option<Arc<Entry>>,
    /// A gradient rule of the user's, in place of that of the operation.
    pub(crate) rule: Option<Arc<Rule>>,
    /// Whether gradients flow through the node.
    pub(crate) grad: bool,
    /// The checkpoint segment that the node was recorded in; 0 is none.
    pub(crate) checkpoint: u32,
    /// Whether it serves the whole pass and so belongs to no checkpoint.
    pub(crate) shared: bool,
    /// The phase of the step in which it was recorded.
    pub(crate) phase: Phase,
    /// The node of whose gradient it is; itself where it is of none.
    pub(crate) blamed: u32,
    pub(crate) at: At,
}

impl PassNode {
    /// The values to which the node passes gradients on.
    pub(crate) fn edges(&self) -> &SmallVec<[ValueKey; 4]> {
        self.rule.as_ref().map_or(&self.inputs, |rule| &rule.through)
    }
}

/// A value of a pass: an output of a node, seen through one handle.
#[derive(Copy, Clone)]
pub(crate) struct Value {
    pub(crate) node: u32,
    pub(crate) out: u32,
    /// Whether gradients end here: a detached value, or a version of an owned one.
    pub(crate) stop: bool,
    /// The owned value of which this is a version.
    pub(crate) version: Option<(OwnedKey, u64)>,
    pub(crate) at: At,
}

/// A queued new version of an owned value.
pub(crate) struct Update {
    pub(crate) owned: OwnedKey,
    pub(crate) value: ValueKey,
    /// The committed version that the pass started from.
    pub(crate) base: u64,
    /// The version that this will be.
    pub(crate) version: u64,
    pub(crate) at: At,
}

/// The values of a pool.
#[derive(Default)]
pub(crate) struct Values(Vec<Value>);

impl Values {
    pub(crate) fn insert(&mut self, value: Value) -> ValueKey {
        self.0.push(value);
        ValueKey(self.0.len() as u32 - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl std::ops::Index<ValueKey> for Values {
    type Output = Value;

    fn index(&self, key: ValueKey) -> &Value {
        &self.0[key.0 as usize]
    }
}

impl std::ops::IndexMut<ValueKey> for Values {
    fn index_mut(&mut self, key: ValueKey) -> &mut Value {
        &mut self.0[key.0 as usize]
    }
}

/// Nodes up to which the memory of a pool that has ended is kept for the next.
const KEPT_NODES: usize = 1 << 17;

/// The pool of one open pass.
pub(crate) struct Pool {
    pub(crate) values: Values,
    pub(crate) nodes: Vec<PassNode>,
    /// Its structure in words.
    pub(crate) tape: Tape,
    /// What earlier passes that used this memory led to.
    pub(crate) memos: Memos,
    pub(crate) leaves: FastMap<(OwnedKey, u64), ValueKey>,
    pub(crate) tables: FastMap<&'static str, ValueKey>,
    pub(crate) outer: FastMap<(OpenPass, ValueKey), ValueKey>,
    pub(crate) updates: Vec<Update>,
    /// For each owned value with updates, the number of the newest.
    pub(crate) newest: FastMap<OwnedKey, usize>,
    pub(crate) deferred: Vec<(ValueKey, Arc<DeferredCell>)>,
    pub(crate) counts: Vec<(Arc<AtomicU64>, u64)>,
    pub(crate) streams: HashMap<String, u32>,
    /// Parameters rounded for products: by version, dtype, and whether without gradient.
    pub(crate) rounded: FastMap<(ValueKey, DType, bool), ValueKey>,
    /// The nodes among which those of each checkpoint segment are; segments count from 1.
    pub(crate) checkpoints: Vec<Range<usize>>,
    /// Above so many bytes of device memory, forward values are computed again instead of held.
    pub(crate) within_bytes: Option<usize>,
    /// Whether a capture records: then nothing is computed before the end.
    pub(crate) captured: bool,
    /// Nodes recorded when the budget was last checked.
    pub(crate) flushed: usize,
    /// The number of the pass in its context, from which its random numbers follow.
    pub(crate) step: u64,
    /// The first row of the batch that the pass works on, from which they follow too.
    pub(crate) row: u32,
    pub(crate) at: At,
}

impl Pool {
    pub(crate) fn new(step: u64, at: At) -> Pool {
        Pool {
            values: Values::default(),
            nodes: Vec::new(),
            tape: Tape::default(),
            memos: Memos::default(),
            leaves: FastMap::default(),
            tables: FastMap::default(),
            outer: FastMap::default(),
            updates: Vec::new(),
            newest: FastMap::default(),
            deferred: Vec::new(),
            counts: Vec::new(),
            streams: HashMap::new(),
            rounded: FastMap::default(),
            checkpoints: Vec::new(),
            within_bytes: None,
            captured: false,
            flushed: 0,
            step,
            row: 0,
            at,
        }
    }

    /// Gives up all that an ended pass held; its memory and what it remembers may serve another.
    pub(crate) fn clear(&mut self) -> bool {
        let serves = self.nodes.capacity() <= KEPT_NODES;
        self.values.0.clear();
        self.nodes.clear();
        self.leaves.clear();
        self.tables.clear();
        self.outer.clear();
        self.updates.clear();
        self.newest.clear();
        self.deferred.clear();
        self.counts.clear();
        self.streams.clear();
        self.rounded.clear();
        self.checkpoints.clear();
        serves
    }

    /// Begins another pass in the memory of one that was cleared.
    pub(crate) fn restart(&mut self, step: u64, at: At) {
        if self.tape.restart() {
            self.memos.clear();
        }
        (self.captured, self.flushed, self.step, self.row, self.at) = (false, 0, step, 0, at);
        self.within_bytes = None;
    }

    pub(crate) fn node(&self, value: ValueKey) -> &PassNode {
        &self.nodes[self.values[value].node as usize]
    }

    pub(crate) fn out(&self, value: ValueKey) -> &NodeOut {
        let v = self.values[value];
        &self.nodes[v.node as usize].outs[v.out as usize]
    }

    pub(crate) fn out_mut(&mut self, value: ValueKey) -> &mut NodeOut {
        let v = self.values[value];
        &mut self.nodes[v.node as usize].outs[v.out as usize]
    }

    /// Appends a node with its outputs; the key of the first.
    pub(crate) fn push(&mut self, mut node: PassNode, outs: &[Out]) -> ValueKey {
        node.blamed = self.nodes.len() as u32;
        self.tape.node(&node, outs);
        self.push_silently(node, outs)
    }

    /// As [`Pool::push`], for a node that is on the tape already.
    pub(crate) fn push_silently(&mut self, mut node: PassNode, outs: &[Out]) -> ValueKey {
        let index = self.nodes.len() as u32;
        for (i, out) in outs.iter().enumerate() {
            let value = Value { node: index, out: i as u32, stop: false, version: None, at: node.at };
            let key = self.values.insert(value);
            node.outs.push(NodeOut { out: *out, key, standing: Standing::Queued });
        }
        let first = node.outs[0].key;
        self.nodes.push(node);
        first
    }

    /// What the pass has added to a counter so far.
    pub(crate) fn counted(&self, counter: &Arc<AtomicU64>) -> u64 {
        let own = self.counts.iter().filter(|(c, _)| Arc::ptr_eq(c, counter));
        // A count that is set is a difference, which may be below zero.
        own.fold(0, |sum: u64, (_, n)| sum.wrapping_add(*n))
    }

    /// A number as a submission now takes it.
    pub(crate) fn take_number(&mut self, node: u32) -> f64 {
        let PassNode { source: Source::Number(number), taken, .. } = &self.nodes[node as usize] else {
            unreachable!("a scalar node has a number")
        };
        if let Some(x) = taken {
            return *x;
        }
        let x = number.now(self.step);
        self.nodes[node as usize].taken = Some(x);
        x
    }
}

/// An owned value: a parameter or other state that outlives passes.
pub(crate) struct Owned {
    pub(crate) name: String,
    pub(crate) out: Out,
    pub(crate) trainable: bool,
    /// The committed version; counts up.
    pub(crate) version: u64,
    /// The committed value; `None` until the pass that makes it has ended.
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) at: At,
}

/// A cell for the pool of a pass.
#[derive(Default)]
pub(crate) struct PoolCell {
    pub(crate) generation: u32,
    pub(crate) pool: Option<Box<Pool>>,
}

impl PoolCell {
    /// Ends the pass: its pool, and whether the cell may serve another. One whose generations are used
    /// up never does, so that no handle comes to life again.
    pub(crate) fn end(&mut self) -> (Option<Box<Pool>>, bool) {
        self.generation += 1;
        (self.pool.take(), self.generation < u32::MAX)
    }
}

/// Choices of a context.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) fuse: bool,
    pub(crate) budget_bytes: Option<usize>,
    pub(crate) within_bytes: Option<usize>,
    pub(crate) node_budget: usize,
    pub(crate) in_flight: usize,
    pub(crate) deadline: std::time::Duration,
}

/// Everything that a context holds.
pub(crate) struct State {
    /// What keeps the context open.
    pub(crate) owner: Weak<crate::context::Owner>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: Config,
    pub(crate) seed: u64,
    pub(crate) owned: SlotMap<OwnedKey, Owned>,
    pub(crate) pools: Vec<PoolCell>,
    pub(crate) free_pools: Vec<u32>,
    /// Pools of passes that have ended, for their memory and for what they remember; the last ended last.
    #[expect(clippy::vec_box, reason = "a pool goes in and out of its place by its pointer")]
    pub(crate) spare_pools: Vec<Box<Pool>>,
    /// Gradient graphs that were taken from an equal pass before.
    pub(crate) gradients_repeated: u64,
    pub(crate) plans: Plans,
    pub(crate) tables: HashMap<&'static str, (Arc<Lease>, Out)>,
    pub(crate) flight: VecDeque<Ticket>,
    /// The newest submission that is known to have ended well.
    pub(crate) verified: Ticket,
    /// Failures that values of open passes may have met.
    pub(crate) failures: Vec<Failure>,
    /// A failure that nobody has heard of, up to this submission; the next pass returns it.
    pub(crate) untold: Option<(Ticket, Error)>,
    /// Why the device is gone.
    pub(crate) lost: Option<Error>,
    pub(crate) newest: Ticket,
    pub(crate) deferred: Vec<Weak<DeferredCell>>,
    /// How values that are being read ended.
    pub(crate) fates: Vec<Weak<Fate>>,
    /// Passes that were committed.
    pub(crate) committed: u64,
    /// The number of the next pass.
    pub(crate) step: u64,
    pub(crate) recomputed: u64,
    pub(crate) workspace_bytes: usize,
    pub(crate) profiling: Profiling,
}

impl State {
    /// The pool at `index`, if its pass is open with this generation.
    pub(crate) fn pool(&mut self, index: u32, generation: u32) -> Option<&mut Pool> {
        let cell = self.pools.get_mut(index as usize)?;
        (cell.generation == generation).then_some(())?;
        cell.pool.as_deref_mut()
    }

    /// The number of a pass that begins now: after every committed and every open one.
    pub(crate) fn next_step(&self) -> u64 {
        self.pools.iter().filter_map(|c| c.pool.as_ref()).map(|p| p.step + 1).fold(self.step, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_whose_generations_are_used_up_is_retired() {
        let mut cell =
            PoolCell { generation: u32::MAX - 2, pool: Some(Box::new(Pool::new(0, Location::caller()))) };
        let (pool, serves) = cell.end();
        assert!(pool.is_some() && serves);
        let (pool, serves) = cell.end();
        assert!(pool.is_none() && !serves);
    }
}
