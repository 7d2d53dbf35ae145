//! Values in pages: one driver buffer holds many values, so that the driver tracks few buffers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use wgrad_graph::{BufferId, Error, ErrorKind, Result};

use crate::faults::lock;
use crate::gpu::Core;
use crate::heap::Heap;

/// How long an allocation that found no room waits for memory that ended submissions give back.
const RECLAIM: Duration = Duration::from_secs(10);

/// A range of a driver buffer.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    /// The driver buffer's number.
    pub(crate) number: u64,
    /// The driver buffer.
    pub(crate) buffer: wgpu::Buffer,
    /// Bytes from its start.
    pub(crate) offset: u64,
    /// Bytes held.
    pub(crate) bytes: u64,
}

/// A driver buffer for values. Without room, what nobody uses is given back first, once.
pub(crate) fn create(core: &Core, op: &str, bytes: u64) -> Result<wgpu::Buffer> {
    let make = || {
        #[cfg(test)]
        if core.deny.load(Ordering::Relaxed) > 0 {
            core.deny.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::OutOfMemory, op, "denied by a test"));
        }
        core.faults.scoped(&core.device, op, || {
            core.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
    };
    let made = make();
    if !made.as_ref().is_err_and(Error::is_out_of_memory) {
        return made;
    }
    let dropped = lock(&core.pages).trim();
    lock(&core.binds).evict(&dropped);
    core.uploads.clear();
    core.downloads.clear();
    core.idle(RECLAIM);
    make().map_err(|e| {
        if e.is_out_of_memory() {
            Error::new(ErrorKind::OutOfMemory, op, format!("the device has no room for {bytes} bytes more"))
        } else {
            e
        }
    })
}

/// Leases a range of at least `bytes` bytes.
pub(crate) fn alloc(core: &Core, bytes: usize) -> Result<BufferId> {
    core.faults.check("alloc")?;
    if bytes > core.caps.max_value_bytes {
        wgrad_graph::bail!(
            Limit,
            "alloc",
            "a value of {bytes} bytes is over the device's limit of {}",
            core.caps.max_value_bytes
        );
    }
    let (rounded, page_bytes) = {
        let mut pages = lock(&core.pages);
        let rounded = pages.rounded(bytes);
        if let Some(id) = pages.take(rounded) {
            drop(pages);
            note_peak(core);
            return Ok(id);
        }
        (rounded, pages.page_for(rounded))
    };
    // A page that is larger than need be may fail where an exact one fits.
    let page = match create(core, "alloc", page_bytes) {
        Err(e) if e.is_out_of_memory() && page_bytes > rounded => (create(core, "alloc", rounded)?, rounded),
        page => (page?, page_bytes),
    };
    let mut pages = lock(&core.pages);
    pages.add(core.number(), page.1, page.0);
    let id = pages.take(rounded).expect("a new page has room for what it was made for");
    drop(pages);
    note_peak(core);
    Ok(id)
}

/// Gives a lease back; work that was submitted still sees it, since the queue runs in order.
pub(crate) fn free(core: &Core, id: BufferId) {
    let freed = lock(&core.pages).free(id);
    match freed {
        Some(dropped) => lock(&core.binds).evict(&dropped),
        None => tracing::error!(id = id.0, "free of a buffer that does not exist"),
    }
}

/// The range that `id` names.
pub(crate) fn find(core: &Core, op: &str, id: BufferId) -> Result<Range> {
    range(&lock(&core.pages), op, id)
}

/// The range that `id` names in `pages`.
pub(crate) fn range(pages: &Heap<wgpu::Buffer>, op: &str, id: BufferId) -> Result<Range> {
    let (lease, buffer) = pages.find(id).ok_or_else(|| {
        Error::new(
            ErrorKind::Stale,
            op,
            format!("buffer {:#x} does not exist on this device, or was freed", id.0),
        )
    })?;
    Ok(Range { number: lease.page, buffer: buffer.clone(), offset: lease.offset, bytes: lease.bytes })
}

/// Brings the peak up to what is held now.
pub(crate) fn note_peak(core: &Core) {
    let work = lock(&core.work).bytes();
    let live = lock(&core.pages).live() + work;
    core.counters.peak_bytes.fetch_max(live, Ordering::Relaxed);
}
