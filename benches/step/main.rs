//! Time of whole training steps, checked before they are timed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod check;
mod nets;
#[path = "../shared/peaks.rs"]
mod peaks;
mod served;
mod sweep;
mod training;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use wgrad::prelude::*;
use wgrad::{Error, ErrorKind, Result};
use wgrad_benches::{Line, Model, Record, Stamp, Sweep, serve};

use check::Truths;
use peaks::Set;
use served::Served;
use training::{How, Training};
use work::Work;

/// Times training steps: forward, mean cross-entropy, backward, optimizer, on a batch that stays on the device.
///
/// Losses of the first steps are compared with the f64 oracle's before anything is timed, where the model is small
/// enough; of larger models a small relative is.
#[derive(Parser)]
struct Args {
    /// `auto`, `cpu`, or an adapter's index or part of its name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only workloads whose name contains one of these, separated by commas.
    #[arg(long, default_value = "", value_delimiter = ',')]
    filter: Vec<String>,
    /// Seconds to spend on each workload.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// `large` for GPUs, `small` for processors; by the device where it is not given.
    #[arg(long)]
    set: Option<Set>,
    /// Also times each step in so much of the memory that it takes, by recomputation: 0.5 for half.
    #[arg(long, value_name = "SHARE")]
    within: Option<f64>,
    /// Also measures how steps grow with batch, width, depth and sequence, and recording and planning with the number of
    /// operations.
    #[arg(long)]
    sweep: bool,
    /// Writes the figures there as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the shares of the device's peaks there.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes both into `benches/record/`, named by date and device.
    #[arg(long)]
    record: bool,
    /// Also prints where the time of each step goes, by kernels.
    #[arg(long)]
    profile: bool,
    /// Also prints how long checks took.
    #[arg(long)]
    verbose: bool,
    /// Prints the workloads as lines of JSON and does nothing else.
    #[arg(long)]
    list: bool,
    /// Answers a driver's questions, see `benches/peers/compare.py`.
    #[arg(long)]
    serve: bool,
    /// Answers them with captured steps.
    #[arg(long)]
    captured: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn run(device: &Device, work: &Work, how: How, args: &Args, truths: &mut Truths) -> Result<Line> {
    let start = Instant::now();
    let error = check::run(device, work, how, truths)?;
    let check_s = start.elapsed().as_secs_f64();
    let training = Training::new(device, &work.model, how)?;
    training.ctx.sync()?;
    let start = Instant::now();
    training.step()?.get()?;
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    let times = peaks::time(&training.ctx, args.seconds, 1, &|| training.step().map(|_| ()))?;
    let mixed = matches!(work.model, Model::Gpt { mixed: true, .. });
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let plan = training.ctx.last_plan().map(|plan| plan.memory(training.ctx.caps()));
    let more = BTreeMap::from([
        ("check_s", check_s),
        ("first_ms", first_ms),
        ("peak_mib", mib(training.ctx.stats().peak_bytes)),
        ("planned_mib", mib(plan.map_or(0, |m| m.peak_bytes()))),
        ("least_mib", mib(plan.map_or(0, |m| m.least_peak_bytes()))),
    ]);
    if args.profile {
        training.ctx.profile(true);
        training.losses(3)?;
        training.ctx.profile(false);
        println!("{}", training.ctx.profile_report());
    }
    Ok(Line {
        name: work.name.clone() + &how.label(),
        host_ms: times.host_ms,
        device_ms: times.device_ms,
        amount: work.model.flops() / times.best() / 1e9,
        unit: "TFLOP/s",
        of: if mixed { "matmul f16" } else { "matmul f32" },
        share: None,
        error,
        more,
    })
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, "step", why.into())
}

fn main() -> Result<()> {
    let args = Args::parse();
    peaks::warn();
    let device = Device::named(&args.device)?;
    let caps = Context::new(&device)?.caps().clone();
    let set = args.set.unwrap_or(Set::of(caps.kind));
    let all = work::all(set);
    let chosen = |work: &&Work| args.filter.iter().any(|f| work.name.contains(f.as_str()));
    if args.list {
        for work in all.iter().filter(chosen) {
            println!("{}", work.listed());
        }
        return Ok(());
    }
    if args.serve {
        let how = if args.captured { How::Captured } else { How::Recorded };
        let mut served = Served { device, how, open: None };
        return serve("wgrad", &caps.name, &mut served).map_err(|e| failed(e.to_string()));
    }
    let mut record = Record::new(
        Stamp::now("step", &caps.name, &caps.driver, caps.off.to_string()),
        peaks::peaks(&device, set)?,
    );
    println!("{}\n\n{}", record.head(), Line::HEAD);
    let mut truths = Truths::default();
    for work in all.iter().filter(chosen) {
        let mut ways = VecDeque::from([How::Recorded, How::Captured]);
        while let Some(how) = ways.pop_front() {
            match run(&device, work, how, &args, &mut truths) {
                Ok(mut line) => {
                    line.share = record.peaks.get(line.of).map(|peak| line.amount / peak);
                    let [first, most, planned, least] =
                        ["first_ms", "peak_mib", "planned_mib", "least_mib"].map(|what| line.more[what]);
                    println!(
                        "{line}\n  first step {first:.0} ms; {most:.1} MiB at most, {planned:.1} planned, {least:.1} the least that there could be"
                    );
                    if args.verbose {
                        println!("  check in {:.2} s", line.more["check_s"]);
                    }
                    if let (How::Recorded, Some(share)) = (how, args.within) {
                        ways.push_back(How::Within((share * most * f64::from(1 << 20)) as usize));
                    }
                    record.lines.push(line);
                }
                Err(error) => {
                    let name = work.name.clone() + &how.label();
                    println!("{name:<54} FAILED: {error}");
                    record.failed.push((name, error.to_string()));
                }
            }
        }
    }
    if args.sweep {
        let say = |sweep: &Sweep| println!("\n{sweep}");
        record.sweeps.extend(sweep::of_nodes(&device, say)?);
        record.sweeps.extend(sweep::of_steps(&device, set, args.seconds.min(0.5), say)?);
    }
    record.write(args.json.as_deref(), args.svg.as_deref(), args.record).map_err(failed)?;
    match &record.failed[..] {
        [] => Ok(()),
        all => Err(failed(format!("{} workloads failed", all.len()))),
    }
}
