//! What keeping data on the device is worth: one training step run four ways, each checked against the f64
//! oracle before it is timed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod round_trip;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use wgrad::prelude::*;
use wgrad::{Backend, ContextOptions, ProfileReport, Result, Stats, bail};

use round_trip::RoundTrip;
use work::{Work, Worker};

/// Times training steps that bring everything across for each operation, that keep it on the device, that defer
/// and fuse, and that replay a captured step.
#[derive(Parser)]
struct Args {
    /// `auto`, `cpu`, or an adapter's index or part of its name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only workloads whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Seconds to spend on each way of each workload.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How a step is run.
#[derive(Copy, Clone, PartialEq)]
enum Way {
    /// Each operation is a submission that uploads its operands and downloads its result.
    RoundTrip,
    /// Each operation is a submission; values stay on the device.
    Resident,
    /// The step is one graph, fused, one submission.
    Deferred,
    /// The same, replayed without recording.
    Captured,
}

impl Way {
    const ALL: [Way; 4] = [Way::RoundTrip, Way::Resident, Way::Deferred, Way::Captured];

    fn name(self) -> &'static str {
        match self {
            Way::RoundTrip => "(a) round trip",
            Way::Resident => "(b) resident",
            Way::Deferred => "(c) deferred",
            Way::Captured => "(d) captured",
        }
    }

    fn worker(self, device: &Device, work: &Work) -> Result<Worker> {
        let backend = device.open()?;
        let alone = ContextOptions::default().fuse(false).node_budget(1);
        let ctx = match self {
            Way::RoundTrip => Context::with(RoundTrip::new(backend) as Arc<dyn Backend>, alone)?,
            Way::Resident => Context::with(backend, alone)?,
            Way::Deferred | Way::Captured => Context::new(backend)?,
        };
        Worker::new(ctx, work, self == Way::Captured)
    }
}

/// What a way of running gave.
struct Measured {
    ms: f64,
    /// Of one step, the profile off.
    moved: Moved,
    profile: ProfileReport,
}

/// Crossings and bytes of a step.
struct Moved {
    up: f64,
    up_bytes: f64,
    down: f64,
    down_bytes: f64,
    submissions: f64,
}

impl Moved {
    fn between(before: &Stats, after: &Stats, steps: f64) -> Moved {
        let each = |a: u64, b: u64| (b - a) as f64 / steps;
        Moved {
            up: each(before.uploads, after.uploads),
            up_bytes: each(before.upload_bytes, after.upload_bytes),
            down: each(before.downloads, after.downloads),
            down_bytes: each(before.download_bytes, after.download_bytes),
            submissions: each(before.submissions, after.submissions),
        }
    }
}

/// Steps between two looks at the clock, at the end of which the loss is read: at least this many, and for about
/// this time.
const LEAST_STEPS: u32 = 4;
const TURN_MS: f64 = 60.0;
/// Steps whose losses are compared with the oracle's.
const CHECKED: usize = 3;

fn measure(device: &Device, work: &Work, way: Way, seconds: f64, want: &[f32]) -> Result<Measured> {
    let worker = way.worker(device, work)?;
    for want in want {
        let got = worker.step()?.get()?;
        if (got - want).abs() > 1e-4 * want.abs() {
            bail!(
                Data,
                work.name,
                "{}: losses {got} and {want} (oracle) differ; nothing is timed",
                way.name()
            );
        }
    }
    let turn = |steps: u32| -> Result<f64> {
        let (start, mut last) = (Instant::now(), None);
        for _ in 0..steps {
            last = Some(worker.step()?);
        }
        last.map_or(Ok(()), |loss| loss.get().map(|_| ()))?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(steps))
    };
    let steps = (TURN_MS / turn(LEAST_STEPS)?).ceil().clamp(LEAST_STEPS.into(), 1000.0) as u32;
    let mut times: Vec<f64> = Vec::new();
    let (before, begin) = (worker.ctx.stats(), Instant::now());
    while times.len() < 3 || begin.elapsed() < Duration::from_secs_f64(seconds) {
        times.push(turn(steps)?);
    }
    let moved = Moved::between(&before, &worker.ctx.stats(), (times.len() as u32 * steps).into());
    times.sort_by(f64::total_cmp);
    worker.ctx.profile(true);
    turn(LEAST_STEPS)?;
    worker.ctx.profile_reset();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs_f64(seconds / 2.0) {
        turn(steps)?;
    }
    worker.ctx.sync()?;
    worker.ctx.profile(false);
    Ok(Measured { ms: times[times.len() / 2], moved, profile: worker.ctx.profile_report() })
}

/// The longest stages of a profile with their shares.
fn stages(profile: &ProfileReport) -> String {
    let top = profile.stages.iter().filter(|line| line.share >= 0.005).take(5);
    top.map(|line| format!("{} {:.0}%", line.stage, 100.0 * line.share)).collect::<Vec<_>>().join(", ")
}

fn run(device: &Device, work: &Work, seconds: f64) -> Result<()> {
    let oracle = Way::Deferred.worker(&Device::oracle(), work)?;
    let want = (0..CHECKED).map(|_| oracle.step()?.get()).collect::<Result<Vec<f32>>>()?;
    println!("{}", work.name);
    let mut first: Option<Measured> = None;
    for way in Way::ALL {
        let now = measure(device, work, way, seconds, &want)?;
        let Measured { ms, moved, profile } = &now;
        let faster = first.as_ref().map_or(1.0, |a| a.ms / ms);
        let ceiling = first.as_ref().unwrap_or(&now).profile.residency_ceiling();
        print!(
            "  {:<14} {ms:>9.3} ms {faster:>7.2}x {:>5.1} up {:>9.0} B {:>5.1} down {:>9.0} B {:>6.1} submits  transfer {:>4.1}%",
            way.name(),
            moved.up,
            moved.up_bytes,
            moved.down,
            moved.down_bytes,
            moved.submissions,
            100.0 * profile.transfer_share()
        );
        match way {
            Way::RoundTrip => print!("  ceiling {ceiling:.2}x"),
            Way::Resident => {}
            Way::Deferred | Way::Captured => print!("  reaches {:.2} of it", faster / ceiling),
        }
        if profile.timed && profile.busy_ns > 0 {
            let kernels_ms = profile.busy_ns as f64 / 1e6 / profile.steps as f64;
            let busy = profile.busy_ns as f64 / profile.total_ns as f64;
            print!("  busy {:.0}%, {:.2} x kernels", 100.0 * busy, ms / kernels_ms);
        }
        println!("\n  {:<14} {}", "", stages(profile));
        first.get_or_insert(now);
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::named(&args.device)?;
    println!("{device}");
    for work in work::ALL.iter().filter(|w| w.name.contains(&args.filter)) {
        run(&device, work, args.seconds)?;
    }
    Ok(())
}
