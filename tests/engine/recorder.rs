//! A backend that counts what passes through it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wgrad::Result;
use wgrad_graph::{Args, Backend, BufferId, Caps, LeafArg, Memory, Pending, Plan, Prepared, Ticket};

/// What has passed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) plans: u64,
    pub(crate) submissions: u64,
    /// Submissions that brought bytes along, and writes.
    pub(crate) uploads: u64,
    pub(crate) upload_bytes: u64,
    pub(crate) downloads: u64,
    pub(crate) download_bytes: u64,
    pub(crate) allocations: u64,
    /// Buffers that exist, and how many bytes were asked for.
    pub(crate) buffers: usize,
    pub(crate) live_bytes: usize,
}

/// A backend that counts and hands on, under limits of its own.
pub(crate) struct Recorder {
    inner: Arc<dyn Backend>,
    caps: Caps,
    counts: Mutex<(Counts, HashMap<BufferId, usize>)>,
}

impl Recorder {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Recorder> {
        Recorder::lowered(inner, |_| {})
    }

    pub(crate) fn lowered(inner: Arc<dyn Backend>, lower: impl FnOnce(&mut Caps)) -> Arc<Recorder> {
        let mut caps = inner.caps().clone();
        lower(&mut caps);
        Arc::new(Recorder { inner, caps, counts: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, (Counts, HashMap<BufferId, usize>)> {
        self.counts.lock().expect("no count panics")
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state();
        Counts { buffers: state.1.len(), live_bytes: state.1.values().sum(), ..state.0.clone() }
    }
}

impl Backend for Recorder {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        self.state().0.plans += 1;
        self.inner.prepare(plan)
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        let id = self.inner.alloc(bytes)?;
        let mut state = self.state();
        state.0.allocations += 1;
        state.1.insert(id, bytes);
        Ok(id)
    }

    fn free(&self, buffer: BufferId) {
        self.state().1.remove(&buffer).expect("a buffer is freed once");
        self.inner.free(buffer);
    }

    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket> {
        let host = |leaf: &LeafArg<'_>| if let LeafArg::Host(bytes) = leaf { bytes.len() as u64 } else { 0 };
        let bytes: u64 = args.leaves.iter().map(host).sum();
        let mut state = self.state();
        state.0.submissions += 1;
        state.0.uploads += u64::from(bytes > 0);
        state.0.upload_bytes += bytes;
        drop(state);
        self.inner.submit(prepared, args)
    }

    fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.inner.wait(ticket, timeout)
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.0.uploads += 1;
        state.0.upload_bytes += bytes.len() as u64;
        drop(state);
        self.inner.write(buffer, bytes)
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        let mut state = self.state();
        state.0.downloads += 1;
        state.0.download_bytes += ranges.iter().map(|r| r.1 as u64).sum::<u64>();
        drop(state);
        self.inner.read(ranges)
    }

    fn has_clock(&self) -> bool {
        self.inner.has_clock()
    }

    fn memory(&self) -> Memory {
        self.inner.memory()
    }
}
