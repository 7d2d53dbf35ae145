//! Host-visible buffers that are used again: mapped ones for uploads, unmapped ones for downloads.

use std::sync::{Arc, Mutex};

use wgrad_graph::Result;

use crate::faults::lock;
use crate::gpu::Core;

/// Bytes of idle buffers that a pool keeps.
const IDLE_BYTES: u64 = 256 << 20;
/// Smallest buffer made.
const LEAST_BYTES: u64 = 64 << 10;

/// Buffers made at once, so that a loop has its whole ring from its first step on: one for each
/// submission that a context lets be in flight, one being filled, one on its way back.
const RING: usize = 6;
/// Largest buffers that are made as a ring.
const RING_BYTES: u64 = 1 << 20;

/// Idle staging buffers of one direction.
#[derive(Debug)]
pub(crate) struct Pool {
    usage: wgpu::BufferUsages,
    idle: Mutex<Vec<wgpu::Buffer>>,
}

impl Pool {
    /// A pool of buffers with `usage`.
    pub(crate) fn new(usage: wgpu::BufferUsages) -> Arc<Pool> {
        Arc::new(Pool { usage, idle: Mutex::default() })
    }

    /// A buffer of at least `bytes` bytes, mapped if the pool is for uploads.
    pub(crate) fn take(&self, core: &Core, bytes: u64) -> Result<wgpu::Buffer> {
        let bytes = bytes.next_multiple_of(8).max(LEAST_BYTES);
        {
            let mut idle = lock(&self.idle);
            // Of small ones a larger one does; a large one may be lent for long.
            let most = if bytes > LEAST_BYTES { bytes * 4 } else { bytes * 8 };
            let fit = (0..idle.len())
                .filter(|i| (bytes..=most).contains(&idle[*i].size()))
                .min_by_key(|i| idle[*i].size());
            if let Some(i) = fit {
                return Ok(idle.swap_remove(i));
            }
        }
        // Rounding lets a step whose size varies a little find its buffers again.
        let size =
            if bytes <= 32 << 20 { bytes.next_power_of_two() } else { bytes.next_multiple_of(4 << 20) };
        let size = size.min(core.max_buffer_bytes / 8 * 8).max(bytes);
        let make = || {
            core.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage: self.usage,
                mapped_at_creation: self.usage.contains(wgpu::BufferUsages::MAP_WRITE),
            })
        };
        let count = if size <= RING_BYTES { RING } else { 1 };
        let mut made: Vec<_> =
            core.faults.scoped(&core.device, "staging", || (0..count).map(|_| make()).collect())?;
        let buffer = made.pop().expect("at least one was made");
        lock(&self.idle).extend(made);
        Ok(buffer)
    }

    /// Takes a buffer back, in the state in which `take` gives it.
    pub(crate) fn give(&self, buffer: wgpu::Buffer) {
        let mut idle = lock(&self.idle);
        idle.push(buffer);
        let mut held: u64 = idle.iter().map(wgpu::Buffer::size).sum();
        let mut dropped = Vec::new();
        while held > IDLE_BYTES && idle.len() > 1 {
            let oldest = idle.remove(0);
            held -= oldest.size();
            dropped.push(oldest);
        }
        drop(idle);
    }

    /// How many buffers are idle.
    #[cfg(test)]
    pub(crate) fn idle_buffers(&self) -> usize {
        lock(&self.idle).len()
    }

    /// Drops the idle buffers.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *lock(&self.idle));
        drop(dropped);
    }
}
