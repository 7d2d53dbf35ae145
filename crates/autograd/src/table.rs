//! The table of contexts: an append-only list of recycled cells. A handle finds its context by an
//! index and one atomic compare; the cell's own lock guards what is inside.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use wgrad_graph::{Error, ErrorKind, Result};

use crate::state::State;

const CHUNK: usize = 64;
const CHUNKS: usize = 256;

/// Where a context lives.
#[derive(Default)]
pub(crate) struct Cell {
    generation: AtomicU32,
    state: Mutex<Option<Box<State>>>,
}

static TABLE: [OnceLock<Box<[Cell; CHUNK]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<Free> = Mutex::new(Free { cells: Vec::new(), next: 0 });

struct Free {
    cells: Vec<u32>,
    next: u32,
}

/// Index of a context's cell and the generation that it had when the context was made.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContextId {
    pub(crate) cell: u32,
    pub(crate) generation: u32,
}

fn cell(index: u32) -> Option<&'static Cell> {
    let index = index as usize;
    TABLE.get(index / CHUNK)?.get().map(|chunk| &chunk[index % CHUNK])
}

/// Puts a new context into a free cell.
pub(crate) fn open(state: Box<State>) -> Result<ContextId> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let index = match free.cells.pop() {
        Some(index) => index,
        None if (free.next as usize) < CHUNK * CHUNKS => {
            free.next += 1;
            free.next - 1
        }
        None => wgrad_graph::bail!(Limit, "context", "{} contexts are open", CHUNK * CHUNKS),
    };
    drop(free);
    let chunk =
        TABLE[index as usize / CHUNK].get_or_init(|| Box::new(std::array::from_fn(|_| Cell::default())));
    let cell = &chunk[index as usize % CHUNK];
    *cell.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    Ok(ContextId { cell: index, generation: cell.generation.load(Ordering::Acquire) })
}

/// Ends a context. Its cell serves another, until its generations are used up.
pub(crate) fn close(id: ContextId) -> Option<Box<State>> {
    let cell = cell(id.cell)?;
    let mut state = cell.state.lock().unwrap_or_else(PoisonError::into_inner);
    if cell.generation.load(Ordering::Acquire) != id.generation {
        return None;
    }
    let generation = cell.generation.fetch_add(1, Ordering::AcqRel) + 1;
    let ended = state.take();
    drop(state);
    if generation < u32::MAX {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).cells.push(id.cell);
    }
    ended
}

/// How messages name a context: by its number and its device. Locks it.
pub(crate) fn name(id: ContextId) -> String {
    match lock(id) {
        Ok(state) => format!("context {} on {}", id.cell, state.backend.caps().name),
        Err(_) => format!("context {}, which has ended", id.cell),
    }
}

/// The locked state of a context.
pub(crate) struct Locked(MutexGuard<'static, Option<Box<State>>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("an open cell holds a state")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("an open cell holds a state")
    }
}

/// Locks the context `id`.
///
/// # Errors
/// `Stale` when the context has ended.
pub(crate) fn lock(id: ContextId) -> Result<Locked> {
    let gone = || Error::new(ErrorKind::Stale, "context", "the context of this handle has ended");
    let cell = cell(id.cell).ok_or_else(gone)?;
    if cell.generation.load(Ordering::Acquire) != id.generation {
        return Err(gone());
    }
    let state = cell.state.lock().unwrap_or_else(PoisonError::into_inner);
    if cell.generation.load(Ordering::Acquire) != id.generation || state.is_none() {
        return Err(gone());
    }
    Ok(Locked(state))
}
