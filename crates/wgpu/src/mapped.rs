//! Read-back memory that is lent as it is: the staging buffer goes back to its pool when the last of its bytes are
//! dropped.

use std::ops::Range;
use std::sync::Arc;

use wgrad_graph::{Bytes, Error, ErrorKind, Result};

use crate::staging::Pool;

/// Values of fewer bytes are copied out, so that who keeps a small one for long holds no staging buffer.
const LEAST_BYTES: usize = 64 << 10;
/// Values are lent where the buffer is at most this many times as large as all that crossed in it: what somebody keeps
/// holds little more than was asked for together.
const MOST_TIMES: u64 = 4;

/// A mapped staging buffer that somebody reads.
struct Mapped {
    view: Option<wgpu::BufferView>,
    buffer: wgpu::Buffer,
    pool: Arc<Pool>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.view = None;
        self.buffer.unmap();
        self.pool.give(self.buffer.clone());
    }
}

/// A value in a mapped buffer.
struct Part {
    mapped: Arc<Mapped>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.mapped.view.as_ref().map_or(&[], |view| &view[self.range.clone()])
    }
}

/// The values at `ranges` (offset and bytes) of a buffer whose first `bytes` bytes are mapped.
pub(crate) fn lend(
    buffer: wgpu::Buffer,
    bytes: u64,
    ranges: &[(u64, usize)],
    pool: &Arc<Pool>,
) -> Result<Vec<Bytes>> {
    let view = buffer
        .get_mapped_range(..bytes)
        .map_err(|e| Error::new(ErrorKind::Lost, "read", "the values could not be mapped").because(e))?;
    let mapped = Arc::new(Mapped { view: Some(view), buffer, pool: Arc::clone(pool) });
    let all: usize = ranges.iter().map(|(_, bytes)| bytes).sum();
    let value = |(offset, bytes): &(u64, usize)| {
        let part = Part { range: *offset as usize..*offset as usize + bytes, mapped: Arc::clone(&mapped) };
        let small = *bytes < LEAST_BYTES || all as u64 * MOST_TIMES < mapped.buffer.size();
        if small { Bytes::from(part.as_ref()) } else { Bytes::held(part) }
    };
    Ok(ranges.iter().map(value).collect())
}
