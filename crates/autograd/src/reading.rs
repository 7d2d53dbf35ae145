//! Values on their way to the host while others are recorded and computed.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Out, Pending, Result, Stage, Ticket};

use crate::flight::{self, Failure};
use crate::placed::is_host;
use crate::profiling;
use crate::state::{Lease, State};
use crate::table::{self, ContextId};
use crate::tensor::Tensor;

/// How the submission that makes a value ended, for somebody who may ask after its pass.
pub(crate) struct Fate {
    ticket: Ticket,
    /// The failure, and up to which submission it goes.
    met: Mutex<Option<(Ticket, Error)>>,
}

impl Fate {
    fn met(&self) -> MutexGuard<'_, Option<(Ticket, Error)>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn meet(&self, failure: &Failure) {
        if failure.covers(self.ticket) {
            self.met().get_or_insert_with(|| (failure.upto, failure.error.clone()));
        }
    }
}

enum Way {
    Coming { pending: Box<dyn Pending>, after: Ticket },
    Here(HostTensor),
    Failed(Error),
}

struct Inner {
    context: ContextId,
    out: Out,
    storage: DType,
    fate: Arc<Fate>,
    way: Mutex<Way>,
    begun: OnceLock<Instant>,
}

/// A value that is on its way to the host, begun by [`Tensor::read_later`]. Any thread may wait for it; clones share
/// what arrives.
#[derive(Clone)]
pub struct Reading(Arc<Inner>);

impl Tensor {
    /// Begins to read the value right behind the submission that computes it, which is made now if it was not
    /// before. What is submitted later does not delay it. Nothing is waited for, and the pass may end meanwhile.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let reading = ctx.pass(|p| {
    ///     let x = p.input(HostTensor::new([2], &[1.0f32, 2.0])?)?;
    ///     (x + 1.0).read_later()
    /// })?;
    /// let y = std::thread::spawn(move || reading.wait(std::time::Duration::from_secs(60)));
    /// assert_eq!(y.join().expect("no panic")?.to_vec::<f32>(), [2.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What the device meets when it submits; `Stale`; the failure of the flush that should have computed it.
    #[track_caller]
    pub fn read_later(&self) -> Result<Reading> {
        let at = Location::caller();
        let mut state = table::lock(self.context)?;
        let (lease, ticket, out) = state.computed(self, at)?;
        Reading::begin(state, self.context, &lease, ticket, out)
    }
}

impl Reading {
    /// A value that has arrived.
    pub(crate) fn here(context: ContextId, data: HostTensor) -> Reading {
        let out = Out { shape: data.shape(), dtype: data.dtype() };
        let fate = Arc::new(Fate { ticket: Ticket(0), met: Mutex::default() });
        let way = Mutex::new(Way::Here(data));
        Reading(Arc::new(Inner { context, out, storage: out.dtype, fate, way, begun: OnceLock::new() }))
    }

    /// Begins to read a buffer that `ticket` filled.
    pub(crate) fn begin(
        mut state: table::Locked,
        context: ContextId,
        lease: &Lease,
        ticket: Ticket,
        out: Out,
    ) -> Result<Reading> {
        let caps = state.backend.caps();
        let (storage, is_host) = (caps.storage(out.dtype), is_host(caps));
        let fetch = state.read(&[(lease.id, out.shape.elems() * storage.bytes())])?;
        let fate = Arc::new(Fate { ticket, met: Mutex::default() });
        let way = Mutex::new(Way::Coming { pending: fetch.pending, after: fetch.after });
        let reading = Reading(Arc::new(Inner { context, out, storage, fate, way, begun: OnceLock::new() }));
        if is_host {
            // It is here already; later submissions, which hold the context, are not waited for.
            state.settle(fetch.after);
            state.tell(ticket)?;
            let arrived = reading.0.fetch(&mut reading.0.way(), Duration::ZERO)?;
            *reading.0.way() = Way::Here(arrived);
            return Ok(reading);
        }
        state.fates.retain(|fate| fate.strong_count() > 0);
        state.fates.push(Arc::downgrade(&reading.0.fate));
        drop(state);
        flight::throttle(context);
        Ok(reading)
    }
}

impl Inner {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of what is coming, as a tensor.
    fn fetch(&self, way: &mut Way, timeout: Duration) -> Result<HostTensor> {
        let bytes = match way {
            Way::Coming { pending, .. } => pending.wait(timeout)?.pop(),
            Way::Here(data) => return Ok(data.clone()),
            Way::Failed(error) => return Err(error.clone()),
        };
        let bytes = bytes.unwrap_or_else(|| Vec::new().into());
        Ok(HostTensor::from_bytes(self.out.shape, self.storage, bytes)?.cast(self.out.dtype))
    }

    /// As [`Inner::fetch`], once the submissions before are known to have ended, each on its own.
    fn arrive(&self, way: &mut Way, timeout: Duration) -> Result<HostTensor> {
        let end = Instant::now() + timeout;
        if let Way::Coming { after, .. } = way {
            flight::settle_for(self.context, *after, timeout)?;
            self.begun.get_or_init(Instant::now);
        }
        let _download = profiling::stage(self.context, Stage::Download);
        let fetched = self.fetch(way, end.saturating_duration_since(Instant::now()));
        if fetched.as_ref().is_err_and(|e| e.kind() == ErrorKind::Timeout) {
            return fetched;
        }
        let mut state = table::lock(self.context)?;
        if let Err(error) = &fetched {
            state.note(error);
        }
        match self.fate.met().take() {
            Some((upto, error)) => {
                state.heard(upto);
                Err(error)
            }
            None => fetched,
        }
    }
}

impl Reading {
    /// Whether [`Reading::wait`] would return at once.
    pub fn ready(&self) -> bool {
        // Somebody who waits for it holds it; then it is not here.
        let Ok(mut way) = self.0.way.try_lock() else { return false };
        match &mut *way {
            Way::Coming { pending, .. } => pending.ready(),
            Way::Here(_) | Way::Failed(_) => true,
        }
    }

    /// The value, waited for without keeping others from recording and submitting.
    ///
    /// # Errors
    /// `Timeout`, after which it may be waited for again; what the device meets; the failure of the submission that
    /// made it; `Stale` when the context has ended.
    pub fn wait(&self, timeout: Duration) -> Result<HostTensor> {
        let mut way = self.0.way();
        if let Way::Here(data) = &*way {
            return Ok(data.clone());
        }
        let arrived = self.0.arrive(&mut way, timeout);
        match &arrived {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Ok(data) => *way = Way::Here(data.clone()),
            Err(error) => *way = Way::Failed(error.clone()),
        }
        arrived
    }

    /// When the submissions before it were seen to have ended, so that its copy could begin; `None` where it was here at
    /// once or nobody has waited for so long.
    pub fn begun(&self) -> Option<Instant> {
        self.0.begun.get().copied()
    }

    /// Bytes of the value on the host.
    pub fn bytes(&self) -> usize {
        self.0.out.shape.elems() * self.0.out.dtype.bytes()
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = self.0.way.try_lock().map_or("waited for", |way| match &*way {
            Way::Coming { .. } => "coming",
            Way::Here(_) => "here",
            Way::Failed(_) => "failed",
        });
        write!(f, "Reading({:?}, {way})", self.0.out)
    }
}

impl State {
    /// Tells the values that are on their way of a failure.
    pub(crate) fn meet(&self, failure: &Failure) {
        self.fates.iter().filter_map(Weak::upgrade).for_each(|fate| fate.meet(failure));
    }
}
