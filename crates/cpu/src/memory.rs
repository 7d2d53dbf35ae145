//! Device memory of both executors: buffers by number, a free list by size class, honest counters,
//! and the error flags that kernels raised.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wgrad_graph::{BufferId, Bytes, Error, ErrorKind, Memory, Pending, Result, Ticket, bail};

/// Bytes of a cache line: vector loads never straddle lines in memory aligned to it.
pub(crate) const ALIGN: usize = 64;
/// Freed bytes that are always kept for reuse.
const KEEP_FREE_BYTES: usize = 64 << 20;
/// Errors that nobody asked for are kept up to this number.
const MAX_ERRORS: usize = 64;

/// Memory of one value, aligned to [`ALIGN`] whatever the allocator gives.
#[derive(Debug, Default)]
pub(crate) struct Block {
    words: Vec<u64>,
    start: usize,
    bytes: usize,
}

impl Block {
    pub(crate) fn new(bytes: usize) -> Block {
        let words = vec![0u64; bytes.div_ceil(8) + ALIGN / 8];
        let start = words.as_ptr().align_offset(ALIGN).min(ALIGN / 8);
        Block { words, start, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words[self.start..])[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words[self.start..])[..self.bytes]
    }

    fn capacity(&self) -> usize {
        (self.words.len() - self.start) * 8
    }
}

thread_local! {
    /// Blocks that this thread has used and will use again.
    static USED: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Blocks that a thread keeps, and the bytes of one of them at most.
const USED_BLOCKS: usize = 16;
const USED_BYTES: usize = 1 << 20;

/// Memory for a moment, on this thread: what is in it has no meaning.
pub(crate) fn scratch(bytes: usize) -> Block {
    let used = USED.with_borrow_mut(|used| {
        let fit = used.iter().enumerate().filter(|(_, block)| block.capacity() >= bytes);
        let least = fit.min_by_key(|(_, block)| block.capacity()).map(|(i, _)| i);
        least.map(|i| used.swap_remove(i))
    });
    match used {
        Some(block) => Block { bytes, ..block },
        None => Block::new(bytes),
    }
}

/// Gives memory from [`scratch`] back.
pub(crate) fn used(block: Block) {
    USED.with_borrow_mut(|used| {
        if used.len() < USED_BLOCKS && block.capacity() <= USED_BYTES {
            used.push(block);
        }
    });
}

/// Words of factors of products that a thread keeps.
const KEEP_WORDS: usize = 4 << 20;

thread_local! {
    /// Memory of turned and gathered factors, kept between products.
    static KEPT: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Memory for so many elements at least.
pub(crate) fn take_words<T>(elems: usize) -> Vec<u64> {
    let needed = (elems * size_of::<T>()).div_ceil(8);
    if needed == 0 {
        return Vec::new();
    }
    let kept = KEPT.with_borrow_mut(|kept| {
        let fit = kept.iter().enumerate().filter(|(_, words)| words.len() >= needed);
        let least = fit.min_by_key(|(_, words)| words.len()).map(|(i, _)| i);
        least.map(|i| kept.swap_remove(i))
    });
    kept.unwrap_or_else(|| vec![0; needed])
}

/// Gives memory from [`take_words`] back; smaller one is let go for it.
pub(crate) fn give_words(words: Vec<u64>) {
    if words.is_empty() || words.len() > KEEP_WORDS {
        return;
    }
    KEPT.with_borrow_mut(|kept| {
        while kept.iter().map(Vec::len).sum::<usize>() + words.len() > KEEP_WORDS
            && let Some(least) = kept.iter().enumerate().min_by_key(|(_, words)| words.len()).map(|(i, _)| i)
        {
            kept.swap_remove(least);
        }
        kept.push(words);
    });
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Block {
        let mut block = Block::new(class(bytes.len()));
        block.bytes = bytes.len();
        block.bytes_mut().copy_from_slice(bytes);
        block
    }
}

/// What a device holds.
#[derive(Debug, Default)]
pub(crate) struct State {
    next: u64,
    buffers: HashMap<u64, Block>,
    free: BTreeMap<usize, Vec<Block>>,
    free_bytes: usize,
    values_bytes: usize,
    workspaces: BTreeMap<usize, usize>,
    budget: Option<usize>,
    ticket: u64,
    /// What the device has done.
    pub(crate) counters: Memory,
}

/// Device memory behind its lock, and the errors behind another: who asks how a submission ended does not wait for
/// the one that runs.
#[derive(Debug, Default)]
pub(crate) struct Device {
    state: Mutex<State>,
    errors: Mutex<Errors>,
}

/// Errors by submission: those that nobody has heard of, and those that somebody has.
#[derive(Debug, Default)]
struct Errors {
    new: VecDeque<(u64, Error)>,
    told: VecDeque<(u64, Error)>,
}

impl Device {
    pub(crate) fn new(budget: Option<usize>) -> Arc<Device> {
        let state = Mutex::new(State { budget, ..State::default() });
        Arc::new(Device { state, errors: Mutex::default() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a submission, with the error that one of its kernels raised.
    pub(crate) fn submitted(&self, state: &mut State, error: Option<Error>) -> Ticket {
        state.ticket += 1;
        state.counters.submissions += 1;
        if let Some(error) = error {
            let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
            errors.new.push_back((state.ticket, error));
            if errors.new.len() > MAX_ERRORS {
                errors.new.pop_front();
            }
        }
        Ticket(state.ticket)
    }

    /// The oldest error flag of submissions up to `ticket`, once; else what was told of `ticket` itself before: two
    /// threads that wait for one submission both hear of it.
    pub(crate) fn ended(&self, ticket: u64) -> Result<()> {
        self.raised(ticket)?;
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.told.iter().find(|(at, _)| *at == ticket).map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// The oldest error flag of submissions up to `ticket`, once.
    pub(crate) fn raised(&self, ticket: u64) -> Result<()> {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.new.front().is_some_and(|(at, _)| *at <= ticket)
            && let Some((at, error)) = errors.new.pop_front()
        {
            errors.told.push_back((at, error.clone()));
            if errors.told.len() > MAX_ERRORS {
                errors.told.pop_front();
            }
            return Err(error);
        }
        Ok(())
    }
}

/// Sizes that share a place in the free list: four classes in each power of two.
fn class(bytes: usize) -> usize {
    let bytes = bytes.max(ALIGN);
    let step = (bytes.next_power_of_two() / 8).max(ALIGN);
    bytes.next_multiple_of(step)
}

pub(crate) fn stale(buffer: BufferId) -> Error {
    Error::new(ErrorKind::Stale, "buffer", format!("buffer {} is not of this device or was freed", buffer.0))
}

impl State {
    fn live_bytes(&self) -> usize {
        self.values_bytes + self.workspaces.keys().next_back().copied().unwrap_or(0)
    }

    fn count_live(&mut self) {
        self.counters.live_bytes = self.live_bytes();
        self.counters.peak_bytes = self.counters.peak_bytes.max(self.counters.live_bytes);
    }

    fn fits(&self, live_bytes: usize) -> Result<()> {
        match self.budget {
            Some(budget) if live_bytes > budget => {
                bail!(OutOfMemory, "alloc", "needs {live_bytes} bytes in all, the budget is {budget} bytes")
            }
            _ => Ok(()),
        }
    }

    /// Reserves room for a plan's workspace: plans share one, as large as the largest needs.
    pub(crate) fn reserve_workspace(&mut self, bytes: usize) -> Result<()> {
        let largest = self.workspaces.keys().next_back().copied().unwrap_or(0);
        self.fits(self.values_bytes + largest.max(bytes))?;
        *self.workspaces.entry(bytes).or_default() += 1;
        self.count_live();
        Ok(())
    }

    pub(crate) fn release_workspace(&mut self, bytes: usize) {
        if let Some(count) = self.workspaces.get_mut(&bytes) {
            *count -= 1;
            if *count == 0 {
                self.workspaces.remove(&bytes);
            }
        }
        self.count_live();
    }

    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<BufferId> {
        self.fits(self.live_bytes() + bytes)?;
        let block = self.take(bytes);
        self.next += 1;
        self.values_bytes += bytes;
        self.buffers.insert(self.next, block);
        self.count_live();
        Ok(BufferId(self.next))
    }

    pub(crate) fn free(&mut self, buffer: BufferId) {
        if let Some(block) = self.buffers.remove(&buffer.0) {
            self.values_bytes -= block.bytes;
            self.give(block);
            self.count_live();
        }
    }

    /// Memory of at least `bytes` bytes, from the free list where it has some.
    pub(crate) fn take(&mut self, bytes: usize) -> Block {
        let class = class(bytes);
        if let Some(mut block) = self.free.get_mut(&class).and_then(Vec::pop) {
            self.free_bytes -= class;
            block.bytes = bytes;
            return block;
        }
        let mut block = Block::new(class);
        block.bytes = bytes;
        self.counters.pages += 1;
        self.counters.reserved_bytes += class;
        block
    }

    /// Memory that is needed no more.
    pub(crate) fn give(&mut self, block: Block) {
        let class = class(block.bytes);
        debug_assert!(block.capacity() >= class, "blocks are made by class");
        self.free_bytes += class;
        self.free.entry(class).or_default().push(block);
        while self.free_bytes > KEEP_FREE_BYTES.max(self.counters.peak_bytes) {
            let Some(mut largest) = self.free.last_entry() else { break };
            let class = *largest.key();
            largest.get_mut().pop();
            if largest.get().is_empty() {
                largest.remove();
            }
            self.free_bytes -= class;
            self.counters.pages -= 1;
            self.counters.reserved_bytes -= class;
        }
    }

    pub(crate) fn bytes(&self, buffer: BufferId) -> Result<&[u8]> {
        self.buffers.get(&buffer.0).map(Block::bytes).ok_or_else(|| stale(buffer))
    }

    /// The buffer's memory itself, to be put back after the submission.
    pub(crate) fn checkout(&mut self, buffer: BufferId) -> Result<Block> {
        self.buffers.remove(&buffer.0).ok_or_else(|| stale(buffer))
    }

    pub(crate) fn checkin(&mut self, buffer: BufferId, block: Block) {
        self.buffers.insert(buffer.0, block);
    }

    pub(crate) fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let block = self.buffers.get_mut(&buffer.0).ok_or_else(|| stale(buffer))?;
        let Some(to) = block.bytes_mut().get_mut(..bytes.len()) else {
            bail!(Argument, "write", "{} bytes into a buffer of {}", bytes.len(), block.bytes);
        };
        to.copy_from_slice(bytes);
        self.counters.uploads += 1;
        self.counters.upload_bytes += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn read(&mut self, ranges: &[(BufferId, usize)]) -> Result<Vec<Bytes>> {
        let mut out = Vec::with_capacity(ranges.len());
        for (buffer, bytes) in ranges {
            let from = self.bytes(*buffer)?;
            let Some(from) = from.get(..*bytes) else {
                bail!(Argument, "read", "{bytes} bytes of a buffer of {}", from.len());
            };
            out.push(Bytes::from(from));
        }
        self.counters.downloads += 1;
        self.counters.download_bytes += ranges.iter().map(|r| r.1 as u64).sum::<u64>();
        Ok(out)
    }

    pub(crate) fn last_ticket(&self) -> u64 {
        self.ticket
    }
}

/// A read whose bytes are already here.
pub(crate) struct Ready {
    pub(crate) device: Arc<Device>,
    pub(crate) ticket: u64,
    pub(crate) bytes: Vec<Bytes>,
}

impl Pending for Ready {
    fn ready(&mut self) -> bool {
        true
    }

    fn wait(&mut self, _timeout: Duration) -> Result<Vec<Bytes>> {
        self.device.raised(self.ticket)?;
        Ok(std::mem::take(&mut self.bytes))
    }
}
