//! Copies into mapped staging memory, in pieces by several threads: one thread alone is slower than the bus.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use wgrad_graph::{Bytes, Error, ErrorKind, Result};

use crate::faults::lock;

/// How large uploads are copied to the memory that the device reads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Copying {
    /// Threads that copy one upload, the calling one among them; 4 by default. The others are made when
    /// they are first of use, and end with the device.
    pub threads: usize,
    /// Bytes that a thread copies at a time; 1 MiB by default.
    pub piece_bytes: usize,
}

impl Default for Copying {
    fn default() -> Self {
        Copying { threads: 4, piece_bytes: 1 << 20 }
    }
}

/// One copy that several threads work on.
struct Work {
    from: Bytes,
    range: Range<usize>,
    to: wgpu::Buffer,
    piece_bytes: usize,
    /// The next piece that nobody has taken.
    next: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    done: usize,
    error: Option<Error>,
}

impl Work {
    fn pieces(&self) -> usize {
        self.range.len().div_ceil(self.piece_bytes)
    }

    /// Copies pieces until all are taken.
    fn help(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces() {
                return;
            }
            let start = piece * self.piece_bytes;
            let end = (start + self.piece_bytes).min(self.range.len());
            let bytes = &self.from[self.range.start + start..self.range.start + end];
            let result = fill(&self.to, start as u64, bytes);
            let mut state = lock(&self.state);
            state.done += 1;
            if let Err(error) = result {
                state.error.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }

    /// Waits for the pieces of others.
    fn finish(&self) -> Result<()> {
        let mut state = lock(&self.state);
        while state.done < self.pieces() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }
}

/// Where threads find what to copy.
type Line = (Sender<Arc<Work>>, Arc<Mutex<Receiver<Arc<Work>>>>);

#[derive(Default)]
struct Threads {
    line: Option<Line>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Hands `work` to `count` threads, which are made if need be. A thread that cannot be made is done without.
    fn call(&mut self, work: &Arc<Work>, count: usize) {
        let (sender, receiver) = self.line.get_or_insert_with(|| {
            let (sender, receiver) = channel();
            (sender, Arc::new(Mutex::new(receiver)))
        });
        while self.handles.len() < count {
            let receiver = Arc::clone(receiver);
            let walk = move || {
                while let Ok(work) = { lock(&receiver).recv() } {
                    work.help();
                }
            };
            match std::thread::Builder::new().name("wgrad copy".to_owned()).spawn(walk) {
                Ok(handle) => self.handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, "no thread to copy by");
                    break;
                }
            }
        }
        for _ in 0..count.min(self.handles.len()) {
            // It fails only when no thread is left; the caller copies then.
            let _ = sender.send(Arc::clone(work));
        }
    }
}

/// The threads of a device that copy.
#[derive(Default)]
pub(crate) struct Copiers {
    choice: Mutex<Copying>,
    threads: Mutex<Threads>,
}

impl Copiers {
    pub(crate) fn choose(&self, choice: Copying) {
        *lock(&self.choice) = choice;
    }

    /// Copies a range of `from` to the start of the mapped buffer `to`.
    pub(crate) fn copy(&self, from: &Bytes, range: Range<usize>, to: &wgpu::Buffer) -> Result<()> {
        let Copying { threads, piece_bytes } = *lock(&self.choice);
        // Mapped ranges begin at multiples of 8.
        let piece_bytes = piece_bytes.max(4096).next_multiple_of(8);
        let helpers = threads.min(range.len().div_ceil(piece_bytes)).saturating_sub(1);
        if helpers == 0 {
            return fill(to, 0, &from[range]);
        }
        let work = Arc::new(Work {
            from: from.clone(),
            range,
            to: to.clone(),
            piece_bytes,
            next: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        lock(&self.threads).call(&work, helpers);
        work.help();
        work.finish()
    }
}

/// From this many bytes on, borrowed bytes are copied by several threads too, which are made for the one copy.
const SHARED_OUT_BYTES: usize = 8 << 20;

impl Copiers {
    /// [`fill`], by several threads where there is much to copy.
    pub(crate) fn fill(&self, buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let threads = lock(&self.choice).threads;
        if threads < 2 || bytes.len() < SHARED_OUT_BYTES {
            return fill(buffer, offset, bytes);
        }
        // Mapped ranges begin at multiples of 8.
        let share = bytes.len().div_ceil(threads).next_multiple_of(8);
        let mut parts = (offset..).step_by(share).zip(bytes.chunks(share));
        let Some((first_offset, first)) = parts.next() else { return Ok(()) };
        std::thread::scope(|scope| {
            let others: Vec<_> =
                parts.map(|(at, part)| scope.spawn(move || fill(buffer, at, part))).collect();
            let mut result = fill(buffer, first_offset, first);
            for other in others {
                result = result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            result
        })
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        let Threads { line, handles } = std::mem::take(&mut *lock(&self.threads));
        drop(line);
        for handle in handles {
            // A thread that panicked has said so; none does.
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for Copiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copiers({:?}, {} threads made)", lock(&self.choice), lock(&self.threads).handles.len())
    }
}

/// Copies `bytes` to mapped staging memory at `offset`, padded with zeros to whole words.
pub(crate) fn fill(buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
    let words = (bytes.len() as u64).next_multiple_of(4);
    let mut view = buffer.get_mapped_range_mut(offset..offset + words).map_err(|e| {
        Error::new(ErrorKind::Lost, "staging", format!("staging memory is not mapped: {e}")).because(e)
    })?;
    view.slice(..bytes.len()).copy_from_slice(bytes);
    view.slice(bytes.len()..).fill(0);
    Ok(())
}
