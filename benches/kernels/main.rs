//! Time of single operations, forward and backward, checked against the f64 oracle before they are timed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod check;
#[path = "../shared/peaks.rs"]
mod peaks;
mod served;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use wgrad::prelude::*;
use wgrad::{Error, ErrorKind, Result};
use wgrad_benches::{Kind, Line, Record, Stamp, serve};

use peaks::Set;
use served::Served;
use work::{Cost, Operands, Work};

/// Times kernels: by the host's clock around many runs, and by the device's own where it has one.
///
/// Every result is compared before it is timed: where memory is the limit, all of it with plain loops in f64; else
/// with the f64 oracle (large products with the CPU executor), by rows where they are independent. The device's peaks are measured first; each line shows its share of the one that limits it.
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
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the shares of the device's peaks there.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes both into `benches/record/`, named by date and device.
    #[arg(long)]
    record: bool,
    /// Prints the workloads as lines of JSON and does nothing else.
    #[arg(long)]
    list: bool,
    /// Also prints how long operands and checks took.
    #[arg(long)]
    verbose: bool,
    /// Answers a driver's questions, see `benches/peers/compare.py`.
    #[arg(long)]
    serve: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn run(device: &Device, work: &Work, seconds: f64) -> Result<Line> {
    let ctx = Context::new(device)?;
    let start = Instant::now();
    let operands = Operands::new(&ctx, work)?;
    let operands_s = start.elapsed().as_secs_f64();
    let error = check::run(&ctx, work, &operands)?;
    let check_s = start.elapsed().as_secs_f64() - operands_s;
    let pass = || operands.run_all(&ctx, work);
    let times = peaks::time(&ctx, seconds, operands.runs(), &pass)?;
    let ms = times.best();
    let (amount, unit) = match work.cost {
        Cost::Bytes(bytes) => (bytes / ms / 1e6, "GB/s"),
        Cost::Flops(flops) => (flops / ms / 1e9, "TFLOP/s"),
    };
    let half = work.inputs[0].data.kind == Kind::F16;
    let of = match (work.cost, half) {
        (Cost::Bytes(_), _) => "copy",
        (Cost::Flops(_), false) => "matmul f32",
        (Cost::Flops(_), true) => "matmul f16",
    };
    Ok(Line {
        name: work.name.clone(),
        host_ms: times.host_ms,
        device_ms: times.device_ms,
        amount,
        unit,
        of,
        share: None,
        error,
        more: BTreeMap::from([("operands_s", operands_s), ("check_s", check_s)]),
    })
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, "kernels", why.into())
}

fn main() -> Result<()> {
    let args = Args::parse();
    peaks::warn();
    let device = Device::named(&args.device)?;
    let caps = Context::new(&device)?.caps().clone();
    let set = args.set.unwrap_or(Set::of(caps.kind));
    let all = match set {
        Set::Large => work::large(),
        Set::Small => work::small(),
    };
    let chosen = |work: &&Work| args.filter.iter().any(|f| work.name.contains(f.as_str()));
    if args.list {
        for work in all.iter().filter(chosen) {
            println!("{}", serde_json::to_string(&work.row()).expect("numbers and texts are JSON"));
        }
        return Ok(());
    }
    if args.serve {
        let mut served = Served { device, all, open: None };
        return serve("wgrad", &caps.name, &mut served).map_err(|e| failed(e.to_string()));
    }
    let mut record = Record::new(
        Stamp::now("kernels", &caps.name, &caps.driver, caps.off.to_string()),
        peaks::peaks(&device, set)?,
    );
    println!("{}\n\n{}", record.head(), Line::HEAD);
    for work in all.iter().filter(chosen) {
        match run(&device, work, args.seconds) {
            Ok(mut line) => {
                line.share = record.peaks.get(line.of).map(|peak| line.amount / peak);
                println!("{line}");
                if args.verbose {
                    let [operands, check] = ["operands_s", "check_s"].map(|what| line.more[what]);
                    println!("  operands in {operands:.2} s, check in {check:.2} s");
                }
                record.lines.push(line);
            }
            Err(error) => {
                println!("{:<54} FAILED: {error}", work.name);
                record.failed.push((work.name.clone(), error.to_string()));
            }
        }
    }
    record.write(args.json.as_deref(), args.svg.as_deref(), args.record).map_err(failed)?;
    match &record.failed[..] {
        [] => Ok(()),
        all => Err(failed(format!("{} workloads failed", all.len()))),
    }
}
