//! Contexts: a device, the values that live on it, and the passes that compute them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::time::Duration;

use slotmap::SlotMap;
use wgrad_graph::{Backend, Caps, Error, ErrorKind, Plan, Result, Ticket};

use crate::flight;
use crate::pass::Pass;
use crate::plans::Plans;
use crate::profiling::Profiling;
use crate::state::{Config, State};
use crate::table::{self, ContextId};

/// A device and everything that lives on it. Clones are the same context; it ends with the last clone
/// and the last owned value.
#[derive(Clone)]
pub struct Context(Arc<Owner>);

pub(crate) struct Owner {
    id: ContextId,
    caps: Caps,
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(table::close(self.id));
    }
}

/// Something that a context can be opened on.
pub trait IntoBackend {
    /// The device, opened.
    ///
    /// # Errors
    /// `Adapter` when it cannot be opened.
    fn into_backend(self) -> Result<Arc<dyn Backend>>;
}

impl IntoBackend for Arc<dyn Backend> {
    fn into_backend(self) -> Result<Arc<dyn Backend>> {
        Ok(self)
    }
}

/// Choices made when a context is opened.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    config: Config,
    seed: u64,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self {
            config: Config {
                fuse: true,
                budget_bytes: None,
                within_bytes: None,
                node_budget: 50_000,
                in_flight: 3,
                deadline: Duration::from_secs(60),
            },
            seed: 0,
        }
    }
}

impl ContextOptions {
    /// Whether operations are fused into kernels; on by default, off to check.
    #[must_use]
    pub fn fuse(mut self, on: bool) -> Self {
        self.config.fuse = on;
        self
    }

    /// The most bytes of device memory that values and workspace may take together; no limit by default.
    #[must_use]
    pub fn budget_bytes(mut self, bytes: usize) -> Self {
        self.config.budget_bytes = Some(bytes);
        self
    }

    /// Where a pass would take more than so many bytes of device memory, everything that exists in the context
    /// counted, values of its forward part are computed again for the backward part instead of held: as few as make
    /// its plan fit, chosen when the plan is made. A pass that no choice makes fit is refused before anything runs.
    /// [`Pass::recompute_within`] says it for one pass; [`crate::checkpoint`] chooses by hand.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let options = wgrad::ContextOptions::default().recompute_within(1 << 30);
    /// let ctx = Context::with(&Device::cpu(), options)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn recompute_within(mut self, bytes: usize) -> Self {
        self.config.within_bytes = Some(bytes);
        self
    }

    /// How many operations a pass records before it computes what it has so far; 50,000 by default.
    #[must_use]
    pub fn node_budget(mut self, nodes: usize) -> Self {
        self.config.node_budget = nodes.max(1);
        self
    }

    /// How long a wait for the device lasts before it is an error; a minute by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// The seed of the context's random numbers; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// What a context has done and holds. Counters only grow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Passes that were committed.
    pub steps: u64,
    /// Plans made.
    pub plans_made: u64,
    /// Submissions that found their plan in the cache.
    pub plans_reused: u64,
    /// Gradient graphs that were not recorded by rules but taken from an equal pass before.
    pub gradients_reused: u64,
    /// Passes whose end found the flush of an equal pass before, with its plan.
    pub flushes_reused: u64,
    /// Operations computed again because an earlier flush of the pass had fused them away.
    pub recomputed: u64,
    /// Submissions to the device's queue.
    pub submissions: u64,
    /// Kernel runs.
    pub dispatches: u64,
    /// Kernels compiled.
    pub kernels: u64,
    /// Copies from host to device.
    pub uploads: u64,
    /// Bytes copied from host to device.
    pub upload_bytes: u64,
    /// Copies from device to host.
    pub downloads: u64,
    /// Bytes copied from device to host.
    pub download_bytes: u64,
    /// Driver buffers that hold values and workspace.
    pub pages: usize,
    /// Bytes of values that exist, workspace included.
    pub live_bytes: usize,
    /// The largest `live_bytes` so far.
    pub peak_bytes: usize,
}

impl Context {
    /// A context on `device` with default options.
    ///
    /// # Errors
    /// `Adapter` when the device cannot be opened.
    pub fn new(device: impl IntoBackend) -> Result<Context> {
        Context::with(device, ContextOptions::default())
    }

    /// A context on `device`.
    ///
    /// # Errors
    /// `Adapter` when the device cannot be opened.
    pub fn with(device: impl IntoBackend, options: ContextOptions) -> Result<Context> {
        let backend = device.into_backend()?;
        let caps = backend.caps().clone();
        let id = table::open(Box::new(State {
            owner: Weak::new(),
            backend,
            config: options.config,
            seed: options.seed,
            owned: SlotMap::with_key(),
            pools: Vec::new(),
            free_pools: Vec::new(),
            spare_pools: Vec::new(),
            gradients_repeated: 0,
            plans: Plans::default(),
            tables: HashMap::new(),
            flight: VecDeque::new(),
            verified: Ticket(0),
            failures: Vec::new(),
            untold: None,
            lost: None,
            newest: Ticket(0),
            deferred: Vec::new(),
            fates: Vec::new(),
            committed: 0,
            step: 0,
            recomputed: 0,
            workspace_bytes: 0,
            profiling: Profiling::default(),
        }))?;
        let owner = Arc::new(Owner { id, caps });
        table::lock(id)?.owner = Arc::downgrade(&owner);
        Ok(Context(owner))
    }

    /// The open context `id`.
    pub(crate) fn find(id: ContextId) -> Result<Context> {
        let owner = table::lock(id)?.owner.upgrade();
        owner.map(Context).ok_or_else(|| Error::new(ErrorKind::Stale, "context", "the context has ended"))
    }

    pub(crate) fn id(&self) -> ContextId {
        self.0.id
    }

    /// Limits and features of the device.
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// Runs `f` as one pass: its values live until it returns, its updates of owned values are committed
    /// together or not at all.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let total: f32 = ctx.pass(|p| {
    ///     let x = p.input(HostTensor::new([3], &[1.0f32, 2.0, 3.0])?)?;
    ///     (x * x).sum(..).item()
    /// })?;
    /// assert_eq!(total, 14.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `f` returns; what the device meets; a failure of an earlier submission.
    #[track_caller]
    pub fn pass<T>(&self, f: impl FnOnce(&Pass) -> Result<T>) -> Result<T> {
        let pass = self.begin()?;
        let value = f(&pass)?;
        pass.end()?;
        Ok(value)
    }

    /// Opens a pass that the caller ends with [`Pass::end`]; dropping it discards it.
    ///
    /// # Errors
    /// A failure of an earlier submission; `Lost`.
    #[track_caller]
    pub fn begin(&self) -> Result<Pass> {
        Pass::open(self, Location::caller())
    }

    /// Sets the seed of the context's random numbers, which begin anew: where no pass is open, the passes
    /// that follow draw what they draw in a new context with this seed.
    pub fn set_seed(&self, seed: u64) {
        if let Ok(mut state) = table::lock(self.id()) {
            (state.seed, state.step) = (seed, 0);
        }
    }

    /// The seed of the context's random numbers.
    pub fn seed(&self) -> u64 {
        table::lock(self.id()).map_or(0, |state| state.seed)
    }

    /// The plan of the newest submission: its groups, where every value lies, and why what was not fused
    /// was left apart.
    pub fn last_plan(&self) -> Option<Arc<Plan>> {
        table::lock(self.id()).ok().and_then(|state| state.plans.last.clone())
    }

    /// Waits until everything submitted has ended.
    ///
    /// # Errors
    /// `Timeout`, `Lost`, or a failure of a submission.
    pub fn sync(&self) -> Result<()> {
        let newest = table::lock(self.id())?.newest;
        let result = flight::settle(self.id(), newest);
        let mut state = table::lock(self.id())?;
        state.alive()?;
        // Whoever calls this hears of the failure; the next pass need not fail for it.
        let untold = state.untold.take().map(|(_, error)| error);
        result.and(untold.map_or(Ok(()), Err))
    }

    /// What the context has done and holds.
    pub fn stats(&self) -> Stats {
        let Ok(state) = table::lock(self.id()) else { return Stats::default() };
        let memory = state.backend.memory();
        Stats {
            steps: state.committed,
            plans_made: state.plans.made,
            plans_reused: state.plans.reused,
            flushes_reused: state.plans.repeated,
            gradients_reused: state.gradients_repeated,
            recomputed: state.recomputed,
            submissions: memory.submissions,
            dispatches: memory.dispatches,
            kernels: memory.kernels,
            uploads: memory.uploads,
            upload_bytes: memory.upload_bytes,
            downloads: memory.downloads,
            download_bytes: memory.download_bytes,
            pages: memory.pages,
            live_bytes: memory.live_bytes,
            peak_bytes: memory.peak_bytes,
        }
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.id() == other.id()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} on {})", self.id().cell, self.0.caps.name)
    }
}
