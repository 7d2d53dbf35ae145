//! Time of single operations, forward and backward, checked against the f64 oracle before they are timed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod check;
mod record;
mod work;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use wgrad::prelude::*;
use wgrad::{DeviceKind, Result};

use record::{Record, Row};
use work::{Cost, Operands, Work};

/// Times kernels: by the host's clock around many runs, and by the device's own where it has one.
#[derive(Parser)]
struct Args {
    /// `auto`, `cpu`, or an adapter's index or part of its name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only workloads whose name contains one of these, separated by commas.
    #[arg(long, default_value = "", value_delimiter = ',')]
    filter: Vec<String>,
    /// Seconds to spend on each workload.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// `large` for GPUs, `small` for processors; by the device where it is not given.
    #[arg(long)]
    set: Option<Set>,
    /// Writes the figures there as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draws the shares of the device's peaks there as SVG.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Copy, Clone, clap::ValueEnum)]
enum Set {
    Large,
    Small,
}

/// Milliseconds of one run: the median, the least and the most by the host's clock; by the device's clock.
struct Times {
    host_ms: [f64; 3],
    device_ms: Option<f64>,
}

/// Least time between two looks at the clock.
const TURN: Duration = Duration::from_millis(40);

fn times(ctx: &Context, work: &Work, operands: &Operands, seconds: f64) -> Result<Times> {
    let turn = |passes: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..passes {
            ctx.pass(|p| operands.run(p, work).map(|_| ()))?;
        }
        ctx.sync()?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / (passes * operands.runs()) as f64)
    };
    turn(2)?;
    let once = turn(1)? * operands.runs() as f64 / 1e3;
    let passes = (TURN.as_secs_f64() / once).ceil().clamp(1.0, 2000.0) as usize;
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
    let runs = (passes.min(100) * operands.runs()) as f64;
    let device_ms = (profile.timed && profile.busy_ns > 0).then(|| profile.busy_ns as f64 / 1e6 / runs);
    Ok(Times { host_ms: [found[found.len() / 2], found[0], found[found.len() - 1]], device_ms })
}

fn run(device: &Device, work: &Work, seconds: f64) -> Result<Row> {
    let ctx = Context::new(device)?;
    let operands = Operands::new(&ctx, work)?;
    let error = check::run(&ctx, work, &operands)?;
    let Times { host_ms: [median, least, most], device_ms } = times(&ctx, work, &operands, seconds)?;
    let ms = device_ms.map_or(median, |device| device.min(median));
    let (amount, unit) = match work.cost {
        Cost::Bytes(bytes) => (bytes / ms / 1e6, "GB/s"),
        Cost::Flops(flops) => (flops / ms / 1e9, "TFLOP/s"),
    };
    let half = work.inputs[0].dtype == DType::F16;
    let kind = match (work.cost, half) {
        (Cost::Bytes(_), _) => "copy",
        (Cost::Flops(_), false) => "matmul f32",
        (Cost::Flops(_), true) => "matmul f16",
    };
    Ok(Row {
        name: work.name.clone(),
        median_ms: median,
        least_ms: least,
        most_ms: most,
        device_ms,
        amount,
        unit,
        kind,
        error,
    })
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::named(&args.device)?;
    let software = |kind| matches!(kind, DeviceKind::SoftwareGpu | DeviceKind::Cpu | DeviceKind::Oracle);
    let caps = Context::new(&device)?.caps().clone();
    let set = args.set.unwrap_or(if software(caps.kind) { Set::Small } else { Set::Large });
    let all = match set {
        Set::Large => work::large(),
        Set::Small => work::small(),
    };
    println!("{device}\n{}", Row::HEAD);
    let mut record = Record::new(&caps);
    // The first copy and the largest products are the peaks that others are shares of.
    for work in all.iter().filter(|w| args.filter.iter().any(|f| w.name.contains(f.as_str()))) {
        match run(&device, work, args.seconds) {
            Ok(row) => {
                println!("{row}");
                record.rows.push(row);
            }
            Err(error) => {
                println!("{:<52} FAILED: {error}", work.name);
                record.failed.push((work.name.clone(), error.to_string()));
            }
        }
    }
    print!("{}", record.peaks());
    record.write(args.json.as_deref(), args.svg.as_deref())?;
    match &record.failed[..] {
        [] => Ok(()),
        failed => wgrad::bail!(Data, "kernels", "{} workloads failed", failed.len()),
    }
}
