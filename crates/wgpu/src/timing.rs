//! When each kernel ran, by the device's own clock, in the host's time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use wgrad_graph::{Plan, Ran, Result, Watch};

use crate::encode::MOST_DISPATCHES;
use crate::faults::lock;
use crate::gpu::Core;

/// Readings of one encoder: before its copies, before its first dispatch, after each.
const READINGS: u32 = MOST_DISPATCHES as u32 + 2;
const BYTES: u64 = READINGS as u64 * 8;
/// Sets made at once, so that a loop has its whole ring from its first step on.
const RING: usize = 6;
/// Sets that wait for a use; more are dropped.
const IDLE: usize = 16;
/// How long the first look at both clocks may take.
const LONG: Duration = Duration::from_secs(10);

/// A query set and the buffers by which its readings reach the host.
#[derive(Debug)]
pub(crate) struct Stamps {
    pub(crate) set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    landed: wgpu::Buffer,
}

/// The device's clock as the host's.
#[derive(Copy, Clone, Debug)]
struct Rate {
    ticks: u64,
    ns: u64,
    /// Nanoseconds of a tick.
    period: f64,
}

impl Rate {
    fn host_ns(self, ticks: u64) -> u64 {
        let since = ticks as i64 - self.ticks as i64;
        (self.ns as i64 + (since as f64 * self.period) as i64).max(0) as u64
    }

    /// Moves the clock so that what ran from `first` to `last` ran between `from_ns` and `to_ns`: both
    /// clocks drift, but nothing runs before it is submitted or after it has ended.
    fn fit(&mut self, first: u64, last: u64, from_ns: u64, to_ns: u64) {
        let (start, end) = (self.host_ns(first), self.host_ns(last));
        if end > to_ns {
            self.ns = self.ns.saturating_sub(end - to_ns);
        } else if start < from_ns {
            self.ns += from_ns - start;
        }
    }
}

/// What a device needs to time kernels: query sets that are used again, and its clock.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    idle: Mutex<Vec<Stamps>>,
    rate: Mutex<Option<Rate>>,
}

impl Core {
    /// Whether the device has a clock for kernels.
    pub(crate) fn has_clock(&self) -> bool {
        let needed = wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        self.device.features().contains(needed)
    }
}

fn stamps(core: &Core) -> Result<Stamps> {
    if let Some(stamps) = lock(&core.timing.idle).pop() {
        return Ok(stamps);
    }
    let buffer = |usage| {
        core.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: BYTES,
            usage,
            mapped_at_creation: false,
        })
    };
    let make = || Stamps {
        set: core.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: READINGS,
        }),
        resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
        landed: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
    };
    let mut made: Vec<Stamps> =
        core.faults.scoped(&core.device, "profile", || (0..RING).map(|_| make()).collect())?;
    let stamps = made.pop().expect("at least one was made");
    lock(&core.timing.idle).extend(made);
    Ok(stamps)
}

impl Stamps {
    /// Ends a recording of `count` readings: when `encoder` has run, `then` gets them.
    fn resolve(
        self,
        core: &Core,
        encoder: &mut wgpu::CommandEncoder,
        count: u32,
        then: impl FnOnce(&[u64]) + Send + 'static,
    ) {
        let bytes = u64::from(count) * 8;
        encoder.resolve_query_set(&self.set, 0..count, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.landed, 0, bytes);
        let (timing, buffer) = (Arc::clone(&core.timing), self.landed.clone());
        encoder.map_buffer_on_submit(&buffer, wgpu::MapMode::Read, 0..bytes, move |mapped| {
            if mapped.is_err() {
                return;
            }
            if let Ok(view) = self.landed.get_mapped_range(0..bytes) {
                then(&bytemuck::pod_collect_to_vec::<u8, u64>(&view[..]));
            }
            self.landed.unmap();
            let mut idle = lock(&timing.idle);
            if idle.len() < IDLE {
                idle.push(self);
            }
        });
    }
}

/// Looks at both clocks at once, as near as a round trip allows: the best of a few.
fn calibrate(core: &Core, watch: &Arc<dyn Watch>) -> Result<()> {
    if lock(&core.timing.rate).is_some() {
        return Ok(());
    }
    let period = f64::from(core.queue.get_timestamp_period());
    let mut best: Option<(u64, Rate)> = None;
    for _ in 0..4 {
        let stamps = stamps(core)?;
        let read = Arc::new(Mutex::new(None));
        let to = Arc::clone(&read);
        let before_ns = watch.now_ns();
        let ticket = core.faults.scoped(&core.device, "profile", || {
            let mut encoder = core.encoder();
            encoder.write_timestamp(&stamps.set, 0);
            stamps.resolve(core, &mut encoder, 1, move |ticks| *lock(&to) = ticks.first().copied());
            let mut line = lock(&core.line);
            // The launch gives staging memory back, so what waits in it goes first.
            line.flush(core)?;
            Ok(line.launch(core, encoder, None))
        });
        let ticket = ticket.flatten()?;
        core.wait_until("profile", ticket, LONG, || lock(&read).is_some())?;
        let after_ns = watch.now_ns();
        if let Some(ticks) = *lock(&read) {
            let width = after_ns - before_ns;
            if best.is_none_or(|(w, _)| width < w) {
                best = Some((width, Rate { ticks, ns: before_ns + width / 2, period }));
            }
        }
    }
    *lock(&core.timing.rate) = best.map(|(_, rate)| rate);
    Ok(())
}

/// A submission that is timed.
pub(crate) struct Timed<'a> {
    watch: &'a Arc<dyn Watch>,
    plan: &'a Arc<Plan>,
    /// Of the encoder that is being recorded, and what it runs.
    open: Option<(Stamps, Vec<Arc<[u32]>>)>,
    submitted_ns: u64,
}

impl<'a> Timed<'a> {
    /// Prepares to time a submission; `None` where nobody watches or the device has no clock.
    pub(crate) fn new(
        core: &Core,
        watch: Option<&'a Arc<dyn Watch>>,
        plan: &'a Arc<Plan>,
    ) -> Result<Option<Timed<'a>>> {
        let Some(watch) = watch.filter(|_| core.has_clock()) else { return Ok(None) };
        calibrate(core, watch)?;
        Ok(Some(Timed { watch, plan, open: None, submitted_ns: watch.now_ns() }))
    }

    /// Begins an encoder, before its copies.
    pub(crate) fn begin(&mut self, core: &Core, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let stamps = stamps(core)?;
        encoder.write_timestamp(&stamps.set, 0);
        self.open = Some((stamps, Vec::new()));
        Ok(())
    }

    /// Reads the clock at the start of the pass.
    pub(crate) fn start(&self, pass: &mut wgpu::ComputePass<'_>) {
        if let Some((stamps, _)) = &self.open {
            pass.write_timestamp(&stamps.set, 1);
        }
    }

    /// Reads the clock after a dispatch of `steps`.
    pub(crate) fn after(&mut self, pass: &mut wgpu::ComputePass<'_>, steps: &Arc<[u32]>) {
        if let Some((stamps, ran)) = &mut self.open {
            ran.push(Arc::clone(steps));
            pass.write_timestamp(&stamps.set, ran.len() as u32 + 1);
        }
    }

    /// Ends an encoder, in whose beginning there was a copy of what the host gave if `copied`.
    pub(crate) fn end(&mut self, core: &Core, encoder: &mut wgpu::CommandEncoder, copied: bool) {
        let Some((stamps, ran)) = self.open.take() else { return };
        let (watch, plan) = (Arc::clone(self.watch), Arc::clone(self.plan));
        let (timing, from_ns) = (Arc::clone(&core.timing), self.submitted_ns);
        stamps.resolve(core, encoder, ran.len() as u32 + 2, move |ticks| {
            let rate = {
                let mut rate = lock(&timing.rate);
                let (Some(rate), Some(first), Some(last)) = (rate.as_mut(), ticks.first(), ticks.last())
                else {
                    return;
                };
                rate.fit(*first, *last, from_ns, watch.now_ns());
                *rate
            };
            watch.ran(&plan, &runs(rate, ticks, &ran, copied));
        });
    }
}

/// What ran when. Dispatches of one step that follow each other are one run.
fn runs(rate: Rate, ticks: &[u64], ran: &[Arc<[u32]>], copied: bool) -> Vec<Ran> {
    let mut runs: Vec<Ran> = Vec::with_capacity(ran.len() + 1);
    let copy: Arc<[u32]> = Arc::from([]);
    let all = std::iter::once(&copy).chain(ran).zip(ticks.windows(2)).skip(usize::from(!copied));
    for (steps, between) in all {
        let (start_ns, end_ns) = (rate.host_ns(between[0]), rate.host_ns(between[1]));
        match runs.last_mut() {
            Some(last) if last.steps == *steps => last.end_ns = end_ns,
            _ => runs.push(Ran { steps: Arc::clone(steps), start_ns, end_ns }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_moved_between_submission_and_end() {
        let mut rate = Rate { ticks: 1000, ns: 50_000, period: 2.0 };
        assert_eq!(rate.host_ns(1500), 51_000);
        assert_eq!(rate.host_ns(500), 49_000);
        rate.fit(1000, 1500, 52_000, 60_000);
        assert_eq!((rate.host_ns(1000), rate.host_ns(1500)), (52_000, 53_000));
        rate.fit(1000, 1500, 40_000, 50_000);
        assert_eq!(rate.host_ns(1500), 50_000);
    }

    #[test]
    fn dispatches_of_one_step_are_one_run() {
        let rate = Rate { ticks: 0, ns: 0, period: 1.0 };
        let step = |i: u32| Arc::<[u32]>::from([i]);
        let ran = [step(0), step(1), step(1), step(2)];
        let ticks = [10, 20, 30, 40, 50, 60];
        let times = |copied| {
            let runs = runs(rate, &ticks, &ran, copied);
            runs.iter().map(|r| (r.steps.to_vec(), r.start_ns, r.end_ns)).collect::<Vec<_>>()
        };
        let kernels = [(vec![0], 20, 30), (vec![1], 30, 50), (vec![2], 50, 60)];
        assert_eq!(times(false), kernels);
        assert_eq!(times(true)[0], (vec![], 10, 20));
        assert_eq!(times(true)[1..], kernels);
    }
}
