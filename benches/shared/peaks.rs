//! What the device gives at best, and how a piece of work is timed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wgrad::prelude::*;
use wgrad::{DeviceKind, Kept, Result};

/// Shows warnings, such as of a path that the adapter is refused, beside the table.
pub(crate) fn warn() {
    let shown = tracing_subscriber::fmt().with_writer(std::io::stderr).without_time();
    shown.with_max_level(tracing_subscriber::filter::LevelFilter::WARN).init();
}

/// Which workloads.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Set {
    Large,
    Small,
}

impl Set {
    /// The set that suits a device.
    pub(crate) fn of(kind: DeviceKind) -> Set {
        match kind {
            DeviceKind::SoftwareGpu | DeviceKind::Cpu | DeviceKind::Oracle => Set::Small,
            _ => Set::Large,
        }
    }
}

/// Milliseconds of one run.
pub(crate) struct Times {
    /// By the host's clock: median, least, most.
    pub(crate) host_ms: [f64; 3],
    /// By the device's own, where it has one.
    pub(crate) device_ms: Option<f64>,
}

impl Times {
    /// The shorter of the median and the device's time.
    pub(crate) fn best(&self) -> f64 {
        self.device_ms.map_or(self.host_ms[0], |device| device.min(self.host_ms[0]))
    }
}

/// Least time between two looks at the clock.
const TURN: Duration = Duration::from_millis(40);

/// Passes between two looks at the clock where they take no longer than [`LONGEST`], so that what the host does for a
/// pass goes on beside the one before, as it does in a loop that trains.
const PASSES: f64 = 8.0;
const LONGEST: Duration = Duration::from_secs(1);

/// Times `pass`, which records and submits `runs` runs of a piece of work.
///
/// # Errors
/// What the device meets.
pub(crate) fn time(ctx: &Context, seconds: f64, runs: usize, pass: &dyn Fn() -> Result<()>) -> Result<Times> {
    let turn = |passes: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..passes {
            pass()?;
        }
        ctx.sync()?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / (passes * runs) as f64)
    };
    turn(3)?;
    let once = turn(1)? * runs as f64 / 1e3;
    let several = (LONGEST.as_secs_f64() / once).floor().min(PASSES);
    let passes = (TURN.as_secs_f64() / once).ceil().max(several).clamp(1.0, 2000.0) as usize;
    let (begin, mut found) = (Instant::now(), Vec::new());
    while found.len() < 5 || begin.elapsed() < Duration::from_secs_f64(seconds) {
        found.push(turn(passes)?);
        if begin.elapsed() > Duration::from_secs_f64(8.0 * seconds) {
            break;
        }
    }
    found.sort_by(f64::total_cmp);
    ctx.profile(true);
    turn(1)?;
    ctx.profile_reset();
    turn(passes.min(100))?;
    ctx.profile(false);
    let profile = ctx.profile_report();
    let all = (passes.min(100) * runs) as f64;
    let device_ms = (profile.timed && profile.busy_ns > 0).then(|| profile.busy_ns as f64 / 1e6 / all);
    Ok(Times { host_ms: [found[found.len() / 2], found[0], found[found.len() - 1]], device_ms })
}

/// `copy` in GB/s; `matmul f32` and `matmul f16` in TFLOP/s.
///
/// # Errors
/// What the device meets.
pub(crate) fn peaks(device: &Device, set: Set) -> Result<BTreeMap<&'static str, f64>> {
    const SECONDS: f64 = 0.3;
    let ctx = Context::new(device)?;
    let (elems, wide, narrow) = match set {
        Set::Large => (268_435_456, 8192, 8192),
        Set::Small => (16 << 20, 1024, 512),
    };
    let mut peaks = BTreeMap::new();
    let x = Kept::zeros(&ctx, [elems])?;
    let copied = time(&ctx, SECONDS, 1, &|| ctx.pass(|p| p.compute(&[x.t() * 2.0 + 1.0])))?;
    peaks.insert("copy", 8.0 * elems as f64 / copied.best() / 1e6);
    drop(x);
    for (what, n, half) in [("matmul f32", wide, false), ("matmul f16", narrow, true)] {
        let values = HostTensor::new([n, n], &wgrad_benches::floats(n * n, 1, 0.5))?;
        let values = if half { values.cast(DType::F16) } else { values };
        let (a, b) = (Kept::new(&ctx, values.clone())?, Kept::new(&ctx, values)?);
        let made = time(&ctx, SECONDS, 1, &|| ctx.pass(|p| p.compute(&[a.t().matmul(b.t())])))?;
        peaks.insert(what, 2.0 * (n as f64).powi(3) / made.best() / 1e9);
    }
    Ok(peaks)
}
