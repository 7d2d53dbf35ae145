//! Numbers that are read later, without stalling the step that makes them. One crossing fetches all
//! that are outstanding.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wgrad_graph::{Element, Error, ErrorKind, HostTensor, Out, Result, Ticket};

use crate::record;
use crate::state::{At, Lease};
use crate::table::{self, ContextId};
use crate::tensor::{Tensor, finish_read};

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
        *self.slot() = Slot::Failed(error.operand("pass", Some(at)));
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value of a pass that is read after it: one element, or with [`Deferred::read`] all of them.
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
    /// The failure of the step; `Stale` while its pass is open or after it was discarded.
    pub fn get(&self) -> Result<T> {
        Ok(first(&self.read()?))
    }

    /// The element, if its step has ended; does not wait for the step.
    ///
    /// # Errors
    /// The failure of the step; `Stale` after its pass was discarded.
    pub fn try_get(&self) -> Result<Option<T>> {
        let ticket = match &*self.cell.slot() {
            Slot::Open => return Ok(None),
            Slot::Read(data) => return Ok(Some(first(data))),
            Slot::Failed(error) => return Err(error.clone()),
            Slot::Computed { ticket, .. } => *ticket,
        };
        let ended = {
            let state = table::lock(self.context)?;
            ticket <= state.verified || state.backend.wait(ticket, Duration::ZERO).is_ok()
        };
        if ended { self.get().map(Some) } else { Ok(None) }
    }

    /// All elements, waiting for their step if need be; fetches every other outstanding value of the
    /// context in the same crossing.
    ///
    /// # Errors
    /// As [`Deferred::get`].
    pub fn read(&self) -> Result<HostTensor> {
        match &*self.cell.slot() {
            Slot::Open => {
                return Err(Error::new(ErrorKind::Stale, "deferred", "the pass that makes this value is still open"));
            }
            Slot::Read(data) => return Ok(data.clone()),
            Slot::Failed(error) => return Err(error.clone()),
            Slot::Computed { .. } => {}
        }
        let (cells, ranges, pending, deadline) = {
            let mut state = table::lock(self.context)?;
            let (mut cells, mut ranges) = (Vec::new(), Vec::new());
            let failure = state.failure.clone();
            for cell in std::mem::take(&mut state.deferred).into_iter().filter_map(|w| w.upgrade()) {
                let mut slot = cell.slot();
                let Slot::Computed { lease, out, ticket } = &*slot else { continue };
                if let Some((after, upto, error)) = &failure
                    && after < ticket
                    && ticket <= upto
                {
                    let error = error.clone();
                    *slot = Slot::Failed(error);
                    continue;
                }
                let storage = state.backend.caps().storage(out.dtype);
                ranges.push((lease.id, out.shape.elems() * storage.bytes(), *out, storage));
                drop(slot);
                cells.push(cell);
            }
            let bytes: Vec<_> = ranges.iter().map(|(id, bytes, _, _)| (*id, *bytes)).collect();
            (cells, ranges, state.backend.read(&bytes)?, state.config.deadline)
        };
        let result = finish_read(self.context, pending, deadline);
        match result {
            Ok(all) => {
                for ((cell, bytes), (_, _, out, storage)) in cells.iter().zip(all).zip(ranges) {
                    *cell.slot() = Slot::Read(HostTensor::from_bytes(out.shape, storage, bytes)?);
                }
            }
            Err(error) => cells.iter().for_each(|cell| *cell.slot() = Slot::Failed(error.clone())),
        }
        match &*self.cell.slot() {
            Slot::Read(data) => Ok(data.clone()),
            Slot::Failed(error) => Err(error.clone()),
            _ => Err(Error::new(ErrorKind::Stale, "deferred", "the value was fetched by another thread that failed")),
        }
    }
}

fn first<T: Element>(data: &HostTensor) -> T {
    data.to_vec::<T>()[0]
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
