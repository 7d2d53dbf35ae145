//! Numbers that are read later, without stalling the step that makes them. One crossing fetches all
//! that are outstanding.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use wgrad_graph::{BufferId, Element, Error, ErrorKind, HostTensor, Out, Result, Ticket};

use crate::flight::Failure;
use crate::reading::Reading;
use crate::record;
use crate::state::{At, Lease, State};
use crate::table::{self, ContextId};
use crate::tensor::Tensor;

enum Slot {
    Open,
    Computed { lease: Arc<Lease>, out: Out, ticket: Ticket },
    Read(HostTensor),
    Failed(Error),
}

/// Where a deferred value arrives.
pub(crate) struct Cell(Mutex<Slot>);

impl Cell {
    /// A value that is computed already.
    pub(crate) fn ready(lease: Arc<Lease>, out: Out, ticket: Ticket) -> Arc<Cell> {
        Arc::new(Cell(Mutex::new(Slot::Computed { lease, out, ticket })))
    }

    pub(crate) fn computed(&self, lease: Arc<Lease>, out: Out, ticket: Ticket) {
        *self.slot() = Slot::Computed { lease, out, ticket };
    }

    pub(crate) fn discard(&self, at: At) {
        let error = Error::new(ErrorKind::Stale, "deferred", "the pass that makes this value was discarded");
        self.lose(error.operand("pass", Some(at)));
    }

    /// The value does not come, for this reason.
    pub(crate) fn lose(&self, error: Error) {
        *self.slot() = Slot::Failed(error);
    }

    /// Loses the value if it is of a submission that failed.
    pub(crate) fn meet(&self, failure: &Failure) {
        let mut slot = self.slot();
        if matches!(&*slot, Slot::Computed { ticket, .. } if failure.covers(*ticket)) {
            *slot = Slot::Failed(failure.error.clone());
        }
    }

    /// Buffer, shape and dtype of a computed value that was not fetched.
    fn source(&self) -> Option<(BufferId, Out)> {
        match &*self.slot() {
            Slot::Computed { lease, out, .. } => Some((lease.id, *out)),
            _ => None,
        }
    }

    /// What was fetched, unless the submission that made it is known to have failed.
    fn arrive(&self, state: &mut State, fetched: Result<HostTensor>) {
        let mut slot = self.slot();
        if let Slot::Computed { ticket, .. } = &*slot {
            *slot = match state.tell(*ticket).and(fetched) {
                Ok(data) => Slot::Read(data),
                Err(error) => Slot::Failed(error),
            };
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value of a pass that is read after it: one element, or with [`Deferred::read`] all of them.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let loss: Deferred<f32> = ctx.pass(|p| {
///     let x = p.input(HostTensor::new([2], &[1.0f32, 3.0])?)?;
///     Ok(x.mean(..).deferred())
/// })?;
/// assert_eq!(loss.get()?, 2.0);
/// # Ok(()) }
/// ```
pub struct Deferred<T> {
    context: ContextId,
    cell: Arc<Cell>,
    element: PhantomData<fn() -> T>,
}

impl<T> Deferred<T> {
    pub(crate) fn of(context: ContextId, cell: Arc<Cell>) -> Deferred<T> {
        Deferred { context, cell, element: PhantomData }
    }
}

impl<T: Element> Deferred<T> {
    /// The element, waiting for its step if need be.
    ///
    /// # Errors
    /// The failure of the step; `Stale` while its pass is open or after it was discarded; `Shape` when
    /// there is not exactly one element.
    pub fn get(&self) -> Result<T> {
        only(&self.read()?)
    }

    /// The element, if its step has ended; does not wait for the step.
    ///
    /// # Errors
    /// The failure of the step; `Stale` after its pass was discarded.
    pub fn try_get(&self) -> Result<Option<T>> {
        let ticket = match &*self.cell.slot() {
            Slot::Open => return Ok(None),
            Slot::Read(data) => return only(data).map(Some),
            Slot::Failed(error) => return Err(error.clone()),
            Slot::Computed { ticket, .. } => *ticket,
        };
        let mut state = table::lock(self.context)?;
        while let Some(oldest) = state.flight.front().copied().filter(|t| *t <= ticket) {
            match state.backend.wait(oldest, Duration::ZERO) {
                Err(error) if error.kind() == ErrorKind::Timeout => return Ok(None),
                result => state.ended(oldest, &result),
            }
        }
        drop(state);
        self.get().map(Some)
    }

    /// Begins to read the elements right behind what was submitted so far, so that steps submitted later do not
    /// delay them, as [`Deferred::read`] would have to wait for.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let step = |x: f32| ctx.pass(|p| Ok((p.input(HostTensor::new([], &[x])?)? * 2.0).deferred::<f32>()));
    /// let loss = step(1.0)?.read_later()?;
    /// step(5.0)?;                                           // is on its way meanwhile
    /// assert_eq!(loss.wait(std::time::Duration::from_secs(60))?.to_vec::<f32>(), [2.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Deferred::read`].
    pub fn read_later(&self) -> Result<Reading> {
        let (lease, out, ticket) = match &*self.cell.slot() {
            Slot::Computed { lease, out, ticket } => (Arc::clone(lease), *out, *ticket),
            Slot::Read(data) => return Ok(Reading::here(self.context, data.clone())),
            Slot::Failed(error) => return Err(error.clone()),
            Slot::Open => return Err(open()),
        };
        Reading::begin(table::lock(self.context)?, self.context, &lease, ticket, out)
    }

    /// All elements, waiting for their step if need be; fetches every other outstanding value of the
    /// context in the same crossing.
    ///
    /// # Errors
    /// As [`Deferred::get`].
    pub fn read(&self) -> Result<HostTensor> {
        match &*self.cell.slot() {
            Slot::Open => return Err(open()),
            Slot::Read(data) => return Ok(data.clone()),
            Slot::Failed(error) => return Err(error.clone()),
            Slot::Computed { .. } => {}
        }
        let (cells, outs, reading) = {
            let mut state = table::lock(self.context)?;
            // This cell first; another thread may have taken it off the list to fetch it too.
            let others =
                state.deferred.iter().filter_map(Weak::upgrade).filter(|cell| !Arc::ptr_eq(cell, &self.cell));
            let all: Vec<Arc<Cell>> = std::iter::once(Arc::clone(&self.cell)).chain(others).collect();
            let (mut cells, mut ranges, mut outs) = (Vec::new(), Vec::new(), Vec::new());
            for cell in all {
                let Some((id, out)) = cell.source() else { continue };
                let storage = state.backend.caps().storage(out.dtype);
                ranges.push((id, out.shape.elems() * storage.bytes()));
                outs.push((out.shape, storage));
                cells.push(cell);
            }
            let reading = state.read(&ranges)?;
            state.deferred.clear();
            (cells, outs, reading)
        };
        let result = reading.finish(self.context);
        let mut state = table::lock(self.context)?;
        for (i, (cell, (shape, storage))) in cells.iter().zip(outs).enumerate() {
            let fetched = match &result {
                Ok(all) => HostTensor::from_bytes(shape, storage, all[i].clone()),
                Err(error) => Err(error.clone()),
            };
            cell.arrive(&mut state, fetched);
        }
        drop(state);
        match &*self.cell.slot() {
            Slot::Read(data) => Ok(data.clone()),
            Slot::Failed(error) => Err(error.clone()),
            Slot::Open | Slot::Computed { .. } => unreachable!("it was just fetched"),
        }
    }
}

fn open() -> Error {
    Error::new(ErrorKind::Stale, "deferred", "the pass that makes this value is still open")
}

fn only<T: Element>(data: &HostTensor) -> Result<T> {
    match data.to_vec::<T>().as_slice() {
        [x] => Ok(*x),
        _ => Err(Error::new(
            ErrorKind::Shape,
            "deferred",
            format!("{} is not one element; `read` gives all", data.shape()),
        )),
    }
}

impl<T> fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.cell.slot() {
            Slot::Open => "Deferred(open)",
            Slot::Computed { .. } => "Deferred(computed)",
            Slot::Read(_) => "Deferred(read)",
            Slot::Failed(_) => "Deferred(failed)",
        })
    }
}

/// Registers `tensor` as an output of its pass that is read later.
pub(crate) fn defer<T>(tensor: &Tensor, at: At) -> Result<Deferred<T>> {
    let pass = record::pass_of(&[*tensor], at)?;
    let mut state = table::lock(pass.context)?;
    let key = record::enter(&mut state, pass, &[*tensor])?[0];
    let cell = Arc::new(Cell(Mutex::new(Slot::Open)));
    record::current(&mut state, pass)?.deferred.push((key, Arc::clone(&cell)));
    Ok(Deferred::of(pass.context, cell))
}
