//! Values on their way to the host while others are recorded and computed.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use wgrad_graph::{Bytes, DType, Error, ErrorKind, HostTensor, Out, Pending, Result, Stage, Ticket, bail};

use crate::flight::{self, Failure};
use crate::placed::is_host;
use crate::profiling;
use crate::state::{Lease, State};
use crate::table::{self, ContextId};
use crate::tensor::Tensor;

/// How the submission that makes a value ended, for somebody who may ask after its pass.
pub(crate) struct Fate {
    tickets: Box<[Ticket]>,
    /// The failure, and up to which submission it goes.
    met: Mutex<Option<(Ticket, Error)>>,
}

impl Fate {
    fn met(&self) -> MutexGuard<'_, Option<(Ticket, Error)>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn meet(&self, failure: &Failure) {
        if self.tickets.iter().any(|ticket| failure.covers(*ticket)) {
            self.met().get_or_insert_with(|| (failure.upto, failure.error.clone()));
        }
    }
}

enum Way {
    Coming { pending: Box<dyn Pending>, after: Ticket },
    Here(Vec<HostTensor>),
    Failed(Error),
}

struct Inner {
    context: ContextId,
    /// Of each value, with the dtype in which it is stored.
    outs: Box<[(Out, DType)]>,
    fate: Arc<Fate>,
    way: Mutex<Way>,
    begun: OnceLock<Instant>,
}

/// A value that is on its way to the host, begun by [`Tensor::read_later`]. Any thread may wait for it; clones share
/// what arrives.
#[derive(Clone)]
pub struct Reading(Arc<Inner>);

/// Values that are on their way to the host in one crossing, begun by [`Tensor::read_all_later`]. Who keeps one of them
/// keeps the memory of all.
#[derive(Clone)]
pub struct Readings(Arc<Inner>);

/// A value that was computed: its buffer, what filled that, shape and dtype.
type Computed = (Arc<Lease>, Ticket, Out);

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
        let computed = state.computed(self, at)?;
        Ok(Reading(begin(state, self.context, &[computed])?))
    }

    /// As [`Tensor::read_later`], for several values of one context. What is not computed yet is computed one by one.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let readings = ctx.pass(|p| {
    ///     let x = p.input(HostTensor::new([2], &[1.0f32, 2.0])?)?;
    ///     Tensor::read_all_later(&[x + 1.0, x * 3.0])
    /// })?;
    /// let both = readings.wait(std::time::Duration::from_secs(60))?;
    /// assert_eq!(both[1].to_vec::<f32>(), [3.0, 6.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::read_later`]; `Device` for values of several contexts; `Argument` without any.
    #[track_caller]
    pub fn read_all_later(values: &[Tensor]) -> Result<Readings> {
        let at = Location::caller();
        let Some(context) = values.first().map(|x| x.context) else {
            bail!(Argument, "read_all_later", "no value is asked for");
        };
        if values.iter().any(|x| x.context != context) {
            bail!(Device, "read_all_later", "the values belong to several contexts");
        }
        let mut state = table::lock(context)?;
        let mut computed = Vec::with_capacity(values.len());
        for value in values {
            computed.push(state.computed(value, at)?);
        }
        Ok(Readings(begin(state, context, &computed)?))
    }
}

/// Begins to read buffers.
fn begin(mut state: table::Locked, context: ContextId, values: &[Computed]) -> Result<Arc<Inner>> {
    let caps = state.backend.caps();
    let is_host = is_host(caps);
    let outs: Box<[_]> = values.iter().map(|(.., out)| (*out, caps.storage(out.dtype))).collect();
    let range = |((lease, ..), (out, storage)): (&Computed, &(Out, DType))| {
        (lease.id, out.shape.elems() * storage.bytes())
    };
    let ranges: Vec<_> = values.iter().zip(&outs).map(range).collect();
    let fetch = state.read(&ranges)?;
    let tickets: Box<[Ticket]> = values.iter().map(|(_, ticket, _)| *ticket).collect();
    let fate = Arc::new(Fate { tickets, met: Mutex::default() });
    let way = Mutex::new(Way::Coming { pending: fetch.pending, after: fetch.after });
    let inner = Arc::new(Inner { context, outs, fate, way, begun: OnceLock::new() });
    if is_host {
        // It is here already; later submissions, which hold the context, are not waited for.
        state.settle(fetch.after);
        inner.fate.tickets.iter().try_for_each(|ticket| state.tell(*ticket))?;
        let arrived = inner.fetch(&mut inner.way(), Duration::ZERO)?;
        *inner.way() = Way::Here(arrived);
        return Ok(inner);
    }
    state.fates.retain(|fate| fate.strong_count() > 0);
    state.fates.push(Arc::downgrade(&inner.fate));
    drop(state);
    flight::throttle(context);
    Ok(inner)
}

impl Reading {
    /// A value that has arrived.
    pub(crate) fn here(context: ContextId, data: HostTensor) -> Reading {
        let out = Out { shape: data.shape(), dtype: data.dtype() };
        let fate = Arc::new(Fate { tickets: Box::default(), met: Mutex::default() });
        let outs = Box::new([(out, out.dtype)]);
        let way = Mutex::new(Way::Here(vec![data]));
        Reading(Arc::new(Inner { context, outs, fate, way, begun: OnceLock::new() }))
    }

    /// Begins to read a buffer that `ticket` filled.
    pub(crate) fn begin(
        state: table::Locked,
        context: ContextId,
        lease: &Arc<Lease>,
        ticket: Ticket,
        out: Out,
    ) -> Result<Reading> {
        Ok(Reading(begin(state, context, &[(Arc::clone(lease), ticket, out)])?))
    }
}

impl Inner {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of what is coming, as tensors.
    fn fetch(&self, way: &mut Way, timeout: Duration) -> Result<Vec<HostTensor>> {
        let all = match way {
            Way::Coming { pending, .. } => pending.wait(timeout)?,
            Way::Here(data) => return Ok(data.clone()),
            Way::Failed(error) => return Err(error.clone()),
        };
        let tensor = |((out, storage), bytes): (&(Out, DType), Bytes)| {
            Ok(HostTensor::from_bytes(out.shape, *storage, bytes)?.cast(out.dtype))
        };
        self.outs.iter().zip(all).map(tensor).collect()
    }

    /// As [`Inner::fetch`], once the submissions before are known to have ended, each on its own.
    fn arrive(&self, way: &mut Way, timeout: Duration) -> Result<Vec<HostTensor>> {
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

    /// Whether a wait would return at once.
    fn ready(&self) -> bool {
        // Somebody who waits for it holds it; then it is not here.
        let Ok(mut way) = self.way.try_lock() else { return false };
        match &mut *way {
            Way::Coming { pending, .. } => pending.ready(),
            Way::Here(_) | Way::Failed(_) => true,
        }
    }

    fn wait(&self, timeout: Duration) -> Result<Vec<HostTensor>> {
        let mut way = self.way();
        if let Way::Here(data) = &*way {
            return Ok(data.clone());
        }
        let arrived = self.arrive(&mut way, timeout);
        match &arrived {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Ok(data) => *way = Way::Here(data.clone()),
            Err(error) => *way = Way::Failed(error.clone()),
        }
        arrived
    }

    fn word(&self) -> &'static str {
        self.way.try_lock().map_or("waited for", |way| match &*way {
            Way::Coming { .. } => "coming",
            Way::Here(_) => "here",
            Way::Failed(_) => "failed",
        })
    }
}

impl Reading {
    /// Whether [`Reading::wait`] would return at once.
    pub fn ready(&self) -> bool {
        self.0.ready()
    }

    /// The value, waited for without keeping others from recording and submitting.
    ///
    /// # Errors
    /// `Timeout`, after which it may be waited for again; what the device meets; the failure of the submission that
    /// made it; `Stale` when the context has ended.
    pub fn wait(&self, timeout: Duration) -> Result<HostTensor> {
        let mut arrived = self.0.wait(timeout)?;
        Ok(arrived.pop().expect("one value was asked for"))
    }

    /// When the submissions before it were seen to have ended, so that its copy could begin; `None` where it was here at
    /// once or nobody has waited for so long.
    pub fn begun(&self) -> Option<Instant> {
        self.0.begun.get().copied()
    }

    /// Bytes of the value on the host.
    pub fn bytes(&self) -> usize {
        self.0.outs.iter().map(|(out, _)| out.shape.elems() * out.dtype.bytes()).sum()
    }
}

impl Readings {
    /// Whether [`Readings::wait`] would return at once.
    pub fn ready(&self) -> bool {
        self.0.ready()
    }

    /// The values, as [`Reading::wait`].
    ///
    /// # Errors
    /// As [`Reading::wait`].
    pub fn wait(&self, timeout: Duration) -> Result<Vec<HostTensor>> {
        self.0.wait(timeout)
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reading({:?}, {})", self.0.outs[0].0, self.0.word())
    }
}

impl fmt::Debug for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Readings({} values, {})", self.0.outs.len(), self.0.word())
    }
}

impl State {
    /// Tells the values that are on their way of a failure.
    pub(crate) fn meet(&self, failure: &Failure) {
        self.fates.iter().filter_map(Weak::upgrade).for_each(|fate| fate.meet(failure));
    }
}
