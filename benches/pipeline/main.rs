//! A GPT trained over several contexts, beside the same model on one: losses compared step by step, times, bubbles,
//! handovers and memory, each predicted and measured.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its table")]

mod budget;
mod costs;
mod dry;
mod model;
mod replicas;
mod staged;
mod table;
mod whole;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use wgrad::pipeline::{self, Family, Problem, TrainOptions};
use wgrad::prelude::*;
use wgrad::{ContextOptions, Result, Shape, bail};

use model::Gpt;
use staged::Plan;
use table::{Row, Table};

/// Trains a GPT over several contexts with each schedule, and compares with one context.
///
/// The default sizes are those of a model with 135 million parameters, for a large GPU. Elsewhere:
/// --devices cpu,cpu --layers 4 --width 32 --heads 2 --tokens 16 --vocabulary 64 --batch 4 --micro-batches 2,4 --steps 5
#[derive(Parser)]
struct Args {
    /// The devices, in order: cpu, or an adapter's index or part of its name; the same one twice is two contexts.
    #[arg(long, value_delimiter = ',', default_value = "auto,auto")]
    devices: Vec<String>,
    /// Rows of a step.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Numbers of micro-batches, a row of the table each.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    micro_batches: Vec<usize>,
    /// gpipe, 1f1b, eager-1f1b, interleaved:CHUNKS, zb-h1, or auto, which cuts and chooses by measured costs.
    #[arg(long, value_delimiter = ',', default_value = "gpipe,1f1b,eager-1f1b,interleaved:2,zb-h1,auto")]
    schedules: Vec<String>,
    /// Where stages begin: `auto` by measured costs, `uniform`, or layer numbers as 0+7 or 7.
    #[arg(long, default_value = "auto")]
    cut: String,
    /// Steps of each run; losses of all are compared.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Bytes that each context may use.
    #[arg(long)]
    budget_bytes: Option<usize>,
    /// Train a model larger than one device's budget: half of what one context needs.
    #[arg(long)]
    budget: bool,
    /// Give every device the whole model and a share of the rows, with so many micro-batches each, and sum gradients.
    #[arg(long, conflicts_with = "budget")]
    data_parallel: bool,
    /// With --data-parallel: bytes of gradients that are summed together, at least.
    #[arg(long)]
    bucket_bytes: Option<usize>,
    /// Start no more runs after so many seconds; those left out are named.
    #[arg(long, value_name = "SECONDS")]
    within: Option<f64>,
    /// Take new weights without keeping the old beside them: less memory.
    #[arg(long)]
    in_place: bool,
    /// Only tell what each run would need, by plans for devices with these limits.
    #[arg(long)]
    dry: bool,
    /// With --dry: plan for the limits of a large GPU, whatever the devices are.
    #[arg(long)]
    large_gpu: bool,
    /// Print where the host's time goes.
    #[arg(long)]
    profile: bool,
    /// Print timelines, predicted and measured.
    #[arg(long)]
    timelines: bool,
    /// Write the measured timeline of the last row as a picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write all rows.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Blocks of the model.
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Features.
    #[arg(long, default_value_t = 768)]
    width: usize,
    /// Heads of attention.
    #[arg(long, default_value_t = 12)]
    heads: usize,
    /// Tokens of a row.
    #[arg(long, default_value_t = 1024)]
    tokens: usize,
    /// Different tokens.
    #[arg(long, default_value_t = 32_000)]
    vocabulary: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn gpt(&self) -> Gpt {
        let Args { layers, width, heads, tokens, vocabulary, .. } = *self;
        Gpt { layers, width, heads, tokens, vocabulary, blank: false }
    }

    fn context(&self) -> ContextOptions {
        match self.budget_bytes {
            Some(bytes) => ContextOptions::default().budget_bytes(bytes),
            None => ContextOptions::default(),
        }
    }

    fn trainer(&self) -> TrainOptions {
        TrainOptions { together: !self.in_place, ..Default::default() }
    }

    fn check(&self) -> Result<Vec<Device>> {
        let op = "pipeline";
        self.gpt().check()?;
        if self.steps < 3 {
            bail!(Argument, op, "--steps {}: the first two compile, so three are needed", self.steps);
        }
        if let Some(m) = self.micro_batches.iter().find(|m| **m == 0 || **m > self.batch) {
            bail!(Argument, op, "--micro-batches {m}: a batch has {} rows", self.batch);
        }
        let replicas = self.devices.len();
        if self.data_parallel && replicas < 2 {
            bail!(Argument, op, "--data-parallel: two devices or more, the same one twice if need be");
        }
        if self.data_parallel && self.micro_batches.iter().all(|m| *m > self.batch / replicas) {
            let rows = self.batch / replicas;
            bail!(Argument, op, "--micro-batches: {rows} rows of the smallest replica allow none of them");
        }
        self.devices.iter().map(|name| Device::named(name)).collect()
    }

    /// The schedules by name with their partitions, and what `auto` says.
    fn plan(&self, name: &str, micro_batches: usize, problem: Option<&Problem>) -> Result<(Plan, String)> {
        let (devices, layers) = (self.devices.len(), self.layers + 2);
        let plan =
            |schedule, partition| Plan { schedule, partition, rows: self.batch, options: self.trainer() };
        if name == "auto" {
            let Some(problem) = problem else { bail!(Argument, "pipeline", "auto needs measured costs") };
            let ranking = pipeline::auto(problem, &staged::families(devices, layers))?;
            let best = ranking.best()?;
            let Some(partition) = best.partition.clone() else {
                bail!(Argument, "pipeline", "the ranking has no partition");
            };
            return Ok((plan(best.schedule.clone(), partition), ranking.to_string()));
        }
        let family: Family = name.parse()?;
        let schedule = family.make(devices, micro_batches)?;
        let partition = match (self.cut.as_str(), problem) {
            ("auto", Some(problem)) => Problem { family, ..problem.clone() }.solve()?,
            ("auto" | "uniform", _) => staged::fixed(&schedule, layers, &[])?,
            (cuts, _) => {
                let cut = |text: &str| text.parse().map_err(|_| bad_cut(cuts));
                let cuts = cuts.split('+').map(cut).collect::<Result<Vec<usize>>>()?;
                staged::fixed(&schedule, layers, &cuts)?
            }
        };
        Ok((plan(schedule, partition), String::new()))
    }

    /// Whether layers are measured.
    fn measures(&self) -> bool {
        !self.dry && (self.cut == "auto" || self.schedules.iter().any(|s| s == "auto"))
    }
}

/// Whether there is no time for another run.
type Late<'a> = &'a dyn Fn() -> bool;

fn bad_cut(cuts: &str) -> wgrad::Error {
    let text = format!("--cut {cuts}: `auto`, `uniform`, or layer numbers joined by `+`");
    wgrad::Error::new(wgrad::ErrorKind::Argument, "pipeline", text)
}

/// The middle of some numbers; 0 without any.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// The rows of each of `parts` micro-batches, as a trainer cuts them.
fn rows(rows: usize, parts: usize) -> Vec<Range<usize>> {
    let mut start = 0;
    let sizes = (0..parts).map(|i| rows / parts + usize::from(i < rows % parts));
    sizes
        .map(|size| {
            start += size;
            start - size..start
        })
        .collect()
}

/// Some rows of a batch.
fn take(x: &HostTensor, range: &Range<usize>) -> Result<HostTensor> {
    let (dims, bytes) = (x.shape(), x.bytes());
    let row = bytes.len() / dims[0];
    let shape = [&[range.len()], &dims.dims()[1..]].concat();
    HostTensor::from_bytes(
        Shape::from(shape.as_slice()),
        x.dtype(),
        &bytes[range.start * row..range.end * row],
    )
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all rows are right.
fn run(args: &Args) -> Result<bool> {
    let devices = args.check()?;
    let gpt = args.gpt();
    for (i, device) in devices.iter().enumerate() {
        println!("D{i}: {device}");
    }
    println!("{}, batch {}, AdamW, f32", gpt.sizes(), args.batch);
    if args.dry {
        return dry(args, &devices).map(|()| true);
    }
    let started = Instant::now();
    let late = || args.within.is_some_and(|limit| started.elapsed().as_secs_f64() > limit);
    let mut table = Table::new(args);
    println!("\none context on D0");
    // What rows are compared with comes first, and what else one context could do last, as far as there is time.
    let mut parts: Vec<usize> = [1].into_iter().chain(args.micro_batches.iter().copied()).collect();
    parts.dedup();
    let mut parts = parts.into_iter();
    parts.by_ref().find(|m| alone(args, &devices[0], *m, &mut table, &late));
    if args.budget {
        budget::run(args, &devices, &mut table)?;
        table.write(args)?;
        return Ok(table.right());
    }
    if args.data_parallel {
        replicas::rows(args, &devices, &mut table, &late)?;
    } else {
        staged_rows(args, &devices, &mut table, &late)?;
    }
    println!("\none context on D0");
    for m in parts {
        alone(args, &devices[0], m, &mut table, &late);
    }
    table.write(args)?;
    Ok(table.right())
}

/// A run on one context; whether it ran.
fn alone(args: &Args, device: &Device, m: usize, table: &mut Table, late: Late<'_>) -> bool {
    if late() {
        println!("  M {m}: left out, no time");
        return false;
    }
    let begun = Instant::now();
    match whole::run(device, args.context(), args.gpt(), args.batch, m, args.steps) {
        Ok(whole) => table.whole(whole, begun.elapsed()),
        Err(error) => {
            println!("  M {m:<3} failed: {error}");
            return false;
        }
    }
    true
}

/// A row for each number of micro-batches and schedule.
fn staged_rows(args: &Args, devices: &[Device], table: &mut Table, late: Late<'_>) -> Result<()> {
    let gpt = args.gpt();
    println!("\n{} contexts", devices.len());
    for &m in &args.micro_batches {
        if late() {
            println!("  M {m}: left out, no time");
            continue;
        }
        let problem = match args.measures() {
            true => Some(costs::problem(devices, gpt, args.batch.div_ceil(m), m)?),
            false => None,
        };
        if let Some(problem) = &problem {
            table::print_costs(problem, gpt);
        }
        let mut ran: Vec<Plan> = Vec::new();
        for name in &args.schedules {
            if late() {
                println!("  {name} M {m}: left out, no time");
                continue;
            }
            let begun = Instant::now();
            let planned = args.plan(name, m, problem.as_ref());
            if let Ok((plan, ranking)) = &planned
                && ran.iter().any(|r| r.schedule == plan.schedule && r.partition == plan.partition)
            {
                println!("{ranking}  {name} M {m}: {}, which ran above", plan.schedule.name());
                continue;
            }
            let outcome = planned.and_then(|(plan, ranking)| {
                print!("{ranking}");
                let staged = staged::run(devices, &args.context(), gpt, &plan, args.steps, args.profile)?;
                Ok((plan, staged))
            });
            let row = match outcome {
                Ok((plan, staged)) => {
                    let row = Row::new(name, &plan, &staged, table);
                    ran.push(plan);
                    row
                }
                Err(error) => Row::failed(name, m, error.to_string()),
            };
            table.row(args, row, begun.elapsed())?;
        }
    }
    Ok(())
}

/// The peaks by plans alone, and the host's time.
fn dry(args: &Args, devices: &[Device]) -> Result<()> {
    let (gpt, mib) = (args.gpt(), |bytes: usize| bytes as f64 / f64::from(1 << 20));
    let caps = |device: &Device| match args.large_gpu {
        true => Ok(dry::large_gpu()),
        false => Ok(device.open()?.caps().clone()),
    };
    let caps = devices.iter().map(caps).collect::<Result<Vec<_>>>()?;
    println!("by plans for: {}", caps.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "));
    for m in [1].into_iter().chain(args.micro_batches.iter().copied()) {
        let (bytes, seconds) = whole::planned(&caps[0], gpt, args.batch, m)?;
        println!("one context    M {m:<3} {:>10.1} MiB, host {:.2} ms a step", mib(bytes), 1e3 * seconds);
    }
    for &m in args.micro_batches.iter().filter(|_| args.data_parallel) {
        let (bytes, seconds) = replicas::planned(&caps, args, &Family::OneFOneB.make(1, m)?)?;
        let bytes: Vec<String> = bytes.iter().map(|b| format!("{:>10.1}", mib(*b))).collect();
        println!(
            "{} replicas     M {m:<3} {} MiB, host {:.2} ms a step",
            bytes.len(),
            bytes.join(" "),
            1e3 * seconds
        );
    }
    for &m in args.micro_batches.iter().filter(|_| !args.data_parallel) {
        for name in args.schedules.iter().filter(|s| *s != "auto") {
            let (plan, _) = args.plan(name, m, None)?;
            let planned = staged::planned(&caps, gpt, &plan, args.profile)?;
            let bytes: Vec<String> = planned.bytes.iter().map(|b| format!("{:>10.1}", mib(*b))).collect();
            let (cuts, ms) = (plan.partition.cuts(), 1e3 * planned.seconds);
            println!("{name:<14} M {m:<3} {} MiB, host {ms:.2} ms a step, cut {cuts:?}", bytes.join(" "));
            for (s, profile) in planned.profiles.iter().enumerate() {
                println!("    stage {s}\n{profile}");
            }
        }
    }
    Ok(())
}
