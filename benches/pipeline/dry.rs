//! A device that computes nothing: it counts the memory that plans, parameters and gradients take on a device with
//! the same limits. What a run needs is known this way before it runs.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wgrad::{Backend, Caps, DeviceKind, Result};
use wgrad_graph::{Args, BufferId, Bytes, Memory, Pending, Plan, Prepared, Ticket};

#[derive(Default)]
struct State {
    next: u64,
    buffers: HashMap<u64, usize>,
    values: usize,
    /// The workspace of each plan that is alive: they share one.
    works: HashMap<u64, usize>,
    memory: Memory,
}

impl State {
    fn count(&mut self) {
        self.memory.live_bytes = self.values + self.works.values().max().copied().unwrap_or(0);
        self.memory.peak_bytes = self.memory.peak_bytes.max(self.memory.live_bytes);
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Dry {
    caps: Caps,
    state: Shared,
}

impl Dry {
    pub(crate) fn open(caps: Caps) -> Arc<dyn Backend> {
        Arc::new(Dry { caps, state: Shared::default() })
    }
}

/// The limits of a large GPU, for plans on a machine that has none.
pub(crate) fn large_gpu() -> Caps {
    Caps {
        name: "a large GPU".to_owned(),
        driver: String::new(),
        kind: DeviceKind::DiscreteGpu,
        max_buffers: 30,
        max_value_bytes: (1 << 31) - 256,
        align_bytes: 256,
        immediate_bytes: 128,
        max_invocations: 1024,
        max_workgroups: 65_535,
        shared_bytes: 48 << 10,
        subgroup: 32,
        f64: false,
        native_half: true,
        long_words: false,
        long_products: false,
        off: Default::default(),
        half_factors: true,
        cooperative: true,
        wide: false,
    }
}

impl fmt::Debug for Dry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dry({})", self.caps.name)
    }
}

/// A plan's share of the workspace, given back when the plan goes.
struct Ready {
    state: Shared,
    serial: u64,
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ready({})", self.serial)
    }
}

impl Prepared for Ready {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.works.remove(&self.serial);
        state.count();
    }
}

/// Zeros.
struct Zeros(Vec<usize>);

impl Pending for Zeros {
    fn ready(&mut self) -> bool {
        true
    }

    fn wait(&mut self, _: Duration) -> Result<Vec<Bytes>> {
        Ok(self.0.iter().map(|bytes| Bytes::from(vec![0; *bytes])).collect())
    }
}

impl Backend for Dry {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        let bytes = match self.caps.kind {
            DeviceKind::Cpu | DeviceKind::Oracle => plan.workspace_bytes,
            _ => wgrad_wgpu::workspace_bytes(plan, &self.caps)?,
        };
        let mut state = lock(&self.state);
        let serial = state.next();
        state.works.insert(serial, bytes);
        state.count();
        Ok(Arc::new(Ready { state: Arc::clone(&self.state), serial }))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        let mut state = lock(&self.state);
        let id = state.next();
        state.values += bytes;
        state.buffers.insert(id, bytes);
        state.count();
        Ok(BufferId(id))
    }

    fn free(&self, buffer: BufferId) {
        let mut state = lock(&self.state);
        state.values -= state.buffers.remove(&buffer.0).unwrap_or(0);
        state.count();
    }

    fn submit(&self, _: &Arc<dyn Prepared>, _: Args<'_>) -> Result<Ticket> {
        let mut state = lock(&self.state);
        state.memory.submissions += 1;
        Ok(Ticket(state.memory.submissions))
    }

    fn wait(&self, _: Ticket, _: Duration) -> Result<()> {
        Ok(())
    }

    fn write(&self, _: BufferId, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        Ok(Box::new(Zeros(ranges.iter().map(|(_, bytes)| *bytes).collect())))
    }

    fn memory(&self) -> Memory {
        lock(&self.state).memory
    }
}
