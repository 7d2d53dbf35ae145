//! Shows where training steps of a small network spend their time: `cargo run --release --example profile -- --help`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wgrad::prelude::*;
use wgrad::{Error, ErrorKind, Result};

/// Profiles steps of the network that reads handwritten digits (MNIST), prints the report, and writes it as a
/// page and as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.
#[derive(Parser)]
struct Options {
    /// auto, cpu, oracle, or an adapter's index, PCI id, kind or part of its name
    #[arg(long, default_value = "auto")]
    device: String,
    /// Steps that are profiled, after a few that are not
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Images in a step
    #[arg(long, default_value_t = 128, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=5000))]
    batch: u32,
    /// Hidden units
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    hidden: u32,
    /// Folder of the four IDX files, plain or gzipped
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/mnist"))]
    data: PathBuf,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "profile.html")]
    html: PathBuf,
    /// Where the trace goes
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    trace: PathBuf,
    /// Where the report goes as JSON, if anywhere
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Steps before the profile: they plan and compile.
const WARM: u64 = 3;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let device = Device::named(&options.device)?;
    let ctx = Context::new(&device)?;
    let Mnist { train, .. } = Mnist::load(&options.data)?;
    let loader = Loader::new(train, options.batch as usize).shuffle(1).drop_last(true);
    let model = Mlp::new(&ctx, &[28 * 28, options.hidden as usize, 10], Rng::seed(1))?;
    let mut opt = AdamW::new(model.params(), AdamWConfig::default())?;
    println!("{device}");
    // Batches are made ahead: the profile shows steps, not the loader.
    let mut batches = Vec::new();
    for epoch in 0.. {
        let left = (WARM + options.steps) as usize - batches.len();
        batches.extend(loader.epoch(epoch).take(left).collect::<Result<Vec<_>>>()?);
        if batches.len() == (WARM + options.steps) as usize {
            break;
        }
    }
    let mut losses = Vec::new();
    for (step, batch) in (0..).zip(&batches) {
        if step == WARM {
            ctx.sync()?;
            ctx.profile(true);
        }
        losses.push(ctx.pass(|p| {
            let images = p.input(&batch.images)?.reshape([-1, 28 * 28]) / 255.0;
            let loss = model.forward(images).cross_entropy(p.input(&batch.labels)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f32>())
        })?);
    }
    ctx.sync()?;
    ctx.profile(false);
    let report = ctx.profile_report();
    let last = losses.last().map(Deferred::get).transpose()?;
    println!("loss of the last step {:.4}\n", last.unwrap_or(f32::NAN));
    println!("{report}");
    write(&options.html, &report.html())?;
    write(&options.trace, &wgrad::profile_trace(&[&report]))?;
    println!("page in {}, trace in {}", options.html.display(), options.trace.display());
    if let Some(json) = &options.json {
        write(json, &report.json())?;
    }
    Ok(())
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|e| Error::new(ErrorKind::Data, "profile", format!("{}: {e}", path.display())))
}
