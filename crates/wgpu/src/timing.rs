//! How long each kernel of a plan runs, by the device's own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use wgrad_graph::{Args, Error, ErrorKind, Result};

use crate::encode;
use crate::gpu::Core;
use crate::prepare::Ready;

/// The time that one kernel took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// The group that it ran, as groups print.
    pub what: String,
    /// Nanoseconds from the end of the kernel before it to its own end.
    pub ns: u64,
}

/// The clock's readings around the dispatches of one submission.
pub(crate) struct Stamps {
    pub(crate) set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    landed: wgpu::Buffer,
    count: u32,
}

impl Stamps {
    /// Ends a recording: readings go to the host.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.set, 0..self.count, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.landed, 0, u64::from(self.count) * 8);
    }
}

/// Submits a plan like any other and waits for the time of each of its dispatches.
pub(crate) fn profile(
    core: &Arc<Core>,
    ready: &Ready,
    args: Args<'_>,
    timeout: Duration,
) -> Result<Vec<KernelTime>> {
    if !core.device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES) {
        wgrad_graph::bail!(Limit, "profile", "{} has no clock for kernels", core.caps.name);
    }
    let count = ready.runs.len() as u32 + 1;
    if count > wgpu::QUERY_SET_MAX_QUERIES {
        wgrad_graph::bail!(Limit, "profile", "{count} readings are over {}", wgpu::QUERY_SET_MAX_QUERIES);
    }
    let buffer = |usage| {
        core.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: u64::from(count) * 8,
            usage,
            mapped_at_creation: false,
        })
    };
    let stamps = core.faults.scoped(&core.device, "profile", || Stamps {
        set: core.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count,
        }),
        resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
        landed: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
        count,
    })?;
    let ticket = encode::submit(core, ready, args, Some(&stamps))?;
    let state = Arc::new(AtomicU8::new(0));
    let to = Arc::clone(&state);
    stamps.landed.map_async(wgpu::MapMode::Read, .., move |mapped| {
        to.store(if mapped.is_ok() { 1 } else { 2 }, Ordering::Release);
    });
    core.wait_until("profile", ticket.0, timeout, || state.load(Ordering::Acquire) != 0)?;
    let view = stamps
        .landed
        .get_mapped_range(..)
        .map_err(|e| Error::new(ErrorKind::Lost, "profile", "the readings could not be mapped").because(e))?;
    let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&view[..]);
    let period = f64::from(core.queue.get_timestamp_period());
    let what = |run: &crate::prepare::Run| ready.plan.steps[run.step].group.to_string();
    let times = ready.runs.iter().zip(ticks.windows(2)).map(|(run, t)| KernelTime {
        what: what(run),
        ns: (t[1].saturating_sub(t[0]) as f64 * period) as u64,
    });
    Ok(times.collect())
}
