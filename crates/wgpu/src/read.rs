//! Values on their way to the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use wgrad_graph::{BufferId, Bytes, Error, ErrorKind, Pending, Result};

use crate::faults::lock;
use crate::gpu::{Core, count};
use crate::{mapped, pages};

/// Most bytes in one staging buffer, unless a single value is larger.
const MOST: u64 = 256 << 20;

const UNDER_WAY: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;

/// A staging buffer with some of the ranges: offset and bytes of each.
#[derive(Debug)]
struct Crossing {
    buffer: wgpu::Buffer,
    /// Bytes mapped.
    bytes: u64,
    ranges: Vec<(u64, usize)>,
    state: Arc<AtomicU8>,
}

/// A read that was submitted as `ticket`.
#[derive(Debug)]
struct Download {
    core: Arc<Core>,
    ticket: u64,
    crossings: SmallVec<[Crossing; 1]>,
}

/// Ranges that share a staging buffer, and its bytes.
#[derive(Debug, Default)]
struct Pack {
    bytes: u64,
    ranges: Vec<(u64, usize)>,
}

/// Copies the first bytes of each buffer to the host, in one submission.
pub(crate) fn read(core: &Arc<Core>, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
    core.faults.check("read")?;
    let mut line = lock(&core.line);
    line.flush(core)?;
    let mut packs = vec![Pack::default()];
    let mut sources = Vec::with_capacity(ranges.len());
    for (id, bytes) in ranges {
        let range = pages::find(core, "read", *id)?;
        let words = (*bytes as u64).next_multiple_of(4);
        if words > range.bytes {
            wgrad_graph::bail!(Argument, "read", "{bytes} bytes were asked of a buffer of {}", range.bytes);
        }
        if packs.last().is_some_and(|pack| pack.bytes > 0 && pack.bytes + words > MOST) {
            packs.push(Pack::default());
        }
        let last = packs.len() - 1;
        let pack = &mut packs[last];
        sources.push((range, last, pack.bytes, words));
        pack.ranges.push((pack.bytes, *bytes));
        pack.bytes = (pack.bytes + words).next_multiple_of(8);
    }
    let mut crossings: SmallVec<[Crossing; 1]> = SmallVec::new();
    for Pack { bytes, ranges } in packs {
        let buffer = core.downloads.take(core, bytes)?;
        crossings.push(Crossing { buffer, bytes: bytes.max(8), ranges, state: Arc::default() });
    }
    let ticket = core.faults.scoped(&core.device, "read", || {
        let mut encoder = core.encoder();
        for (range, crossing, offset, words) in &sources {
            if *words > 0 {
                let to = &crossings[*crossing].buffer;
                encoder.copy_buffer_to_buffer(&range.buffer, range.offset, to, *offset, *words);
            }
        }
        for crossing in &crossings {
            let state = Arc::clone(&crossing.state);
            let range = 0..crossing.bytes;
            encoder.map_buffer_on_submit(&crossing.buffer, wgpu::MapMode::Read, range, move |mapped| {
                state.store(if mapped.is_ok() { MAPPED } else { FAILED }, Ordering::Release);
            });
        }
        line.launch(core, encoder, None)
    })?;
    count(&core.counters.downloads, crossings.len() as u64);
    count(&core.counters.download_bytes, ranges.iter().map(|(_, bytes)| *bytes as u64).sum());
    Ok(Box::new(Download { core: Arc::clone(core), ticket, crossings }))
}

impl Download {
    fn arrived(&self) -> bool {
        let here = |c: &Crossing| c.state.load(Ordering::Acquire) != UNDER_WAY;
        self.crossings.iter().all(here) && self.core.checks.settled(self.ticket)
    }
}

impl Pending for Download {
    fn ready(&mut self) -> bool {
        self.core.faults.is_lost() || self.arrived() || {
            self.core.poll_now();
            self.arrived()
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Vec<Bytes>> {
        self.core.wait_until("read", self.ticket, timeout, || self.arrived())?;
        self.core.faults.check("read")?;
        let mut values = Vec::new();
        for Crossing { buffer, bytes, ranges, state } in std::mem::take(&mut self.crossings) {
            if state.load(Ordering::Acquire) != MAPPED {
                return Err(Error::new(ErrorKind::Lost, "read", "the values could not be mapped"));
            }
            values.extend(mapped::lend(buffer, bytes, &ranges, &self.core.downloads)?);
        }
        self.core.checks.take(self.ticket).map_or(Ok(values), Err)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // What nobody waited for goes back once it is mapped; unmapping one that is under way fails.
        for Crossing { buffer, state, .. } in self.crossings.drain(..) {
            if state.load(Ordering::Acquire) == MAPPED {
                buffer.unmap();
                self.core.downloads.give(buffer);
            }
        }
    }
}
