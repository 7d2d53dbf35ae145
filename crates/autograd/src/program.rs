//! Programs: one recorded graph that runs as several segments, with explicit values between them.

use std::sync::Arc;

use smallvec::SmallVec;
use wgrad_graph::{
    Bytes, Graph, HostTensor, LeafKind, NodeId, Options, Out, Result, Segment, Source as SegmentSource, Val,
};

use crate::context::Context;
use crate::cut::cut;
use crate::flush::{Bind, bind};
use crate::pass::Pass;
use crate::plans::Ready;
use crate::record;
use crate::state::{Lease, ValueKey};
use crate::table;
use crate::tensor::Tensor;

/// A recorded graph with the data of its leaves, whose roots are told apart by segment.
///
/// A program belongs to no pass: it holds the versions of owned values that it was recorded with.
pub struct Program {
    context: Context,
    graph: Arc<Graph>,
    roots: Vec<Vec<Val>>,
    leaves: Vec<(NodeId, LeafKind)>,
    binds: Vec<Bind>,
    numbers: Vec<f64>,
}

impl Program {
    /// Records `f`, which returns what each segment has to compute. Nothing is computed or updated.
    ///
    /// # Errors
    /// What `f` returns; `Stale`, `Device`.
    #[track_caller]
    pub fn record(context: &Context, f: impl FnOnce(&Pass) -> Result<Vec<Vec<Tensor>>>) -> Result<Program> {
        let pass = context.begin()?;
        let roots = f(&pass)?;
        let mut state = table::lock(context.id())?;
        let keys: Vec<SmallVec<[ValueKey; 4]>> =
            roots.iter().map(|r| record::enter(&mut state, pass.id(), r)).collect::<Result<_>>()?;
        let pool = record::current(&mut state, pass.id())?;
        let goals: Vec<ValueKey> = keys.iter().flatten().copied().collect();
        let cut = cut(pool, &goals)?;
        let val = |key: &ValueKey| {
            let v = pool.values[*key];
            cut.vals[&(v.node, v.out)]
        };
        let roots = keys.iter().map(|keys| keys.iter().map(val).collect()).collect();
        let binds: Vec<Bind> = cut.leaves.iter().map(|(_, node, out)| bind(pool, *node, *out)).collect();
        let kind = |b: &Bind| if matches!(b, Bind::Host(_)) { LeafKind::Upload } else { LeafKind::Buffer };
        let leaves = cut.leaves.iter().zip(&binds).map(|((id, _, _), b)| (*id, kind(b))).collect();
        let numbers = cut.numbers.iter().map(|n| pool.take_number(*n)).collect();
        Ok(Program { context: context.clone(), graph: Arc::new(cut.graph), roots, leaves, binds, numbers })
    }

    /// The plans of the segments, each computing what its roots need and no earlier segment computed.
    ///
    /// # Errors
    /// `Limit` when the device's limits do not allow a segment.
    pub fn segments(&self) -> Result<Vec<Segment>> {
        let options = Options { fuse: table::lock(self.context.id())?.config.fuse, keep: false };
        wgrad_graph::segments(&self.graph, &self.roots, &self.leaves, &options, self.context.caps())
    }

    /// Runs the segments one after the other; the values of each segment's roots.
    ///
    /// # Errors
    /// What the device meets.
    pub fn run(&self) -> Result<Vec<Vec<HostTensor>>> {
        let mut made: Vec<Vec<Arc<Lease>>> = Vec::new();
        let mut results = Vec::new();
        for segment in self.segments()? {
            let outs: Vec<Out> = (0..segment.roots).map(|i| segment.plan.output(i)).collect();
            let binds: Vec<Bind> = segment.inputs.iter().map(|source| self.bind(*source, &made)).collect();
            let numbers: Vec<f64> = segment.scalars.iter().map(|i| self.numbers[*i as usize]).collect();
            let leases = {
                let mut state = table::lock(self.context.id())?;
                let ready = Ready::new(&state.backend, Arc::new(segment.plan), &[])?;
                state.run(&ready, &binds, &numbers)?
            };
            results.push(self.fetch(&leases[..segment.roots], &outs)?);
            made.push(leases);
        }
        Ok(results)
    }

    fn bind(&self, source: SegmentSource, made: &[Vec<Arc<Lease>>]) -> Bind {
        match source {
            SegmentSource::Leaf(leaf) => self.binds[leaf as usize].clone(),
            SegmentSource::Stash { segment, output } => {
                Bind::Lease(Arc::clone(&made[segment as usize][output as usize]))
            }
        }
    }

    fn fetch(&self, leases: &[Arc<Lease>], outs: &[Out]) -> Result<Vec<HostTensor>> {
        let caps = self.context.caps();
        let bytes = |out: &Out| out.shape.elems() * caps.storage(out.dtype).bytes();
        let ranges: Vec<_> = leases.iter().zip(outs).map(|(l, out)| (l.id, bytes(out))).collect();
        let (reading, newest) = {
            let mut state = table::lock(self.context.id())?;
            (state.read(&ranges)?, state.newest)
        };
        let bytes = reading.finish(self.context.id())?;
        table::lock(self.context.id())?.tell(newest)?;
        let host = |(bytes, out): (Bytes, &Out)| {
            Ok(HostTensor::from_bytes(out.shape, caps.storage(out.dtype), bytes)?.cast(out.dtype))
        };
        bytes.into_iter().zip(outs).map(host).collect()
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} nodes, {} segments)", self.graph.nodes().len(), self.roots.len())
    }
}
