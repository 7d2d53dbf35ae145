//! What the host does for a step, on a device that computes nothing: recording, differentiating, planning, and a
//! flush whose plan is in the cache; how these grow with the number of nodes; and what plans say of memory.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod again;
#[path = "../pipeline/dry.rs"]
mod dry;
mod grow;

#[path = "../pipeline/model.rs"]
#[allow(dead_code, reason = "the model of another benchmark, whole")]
mod model;
mod small;
mod step;
mod transfer;

use clap::Parser;
use wgrad::Result;
use wgrad::prelude::*;

/// Times the host's part of steps.
#[derive(Parser)]
struct Args {
    /// Only parts whose name contains this: step, grow, small, again, transfer.
    #[arg(long, default_value = "")]
    filter: String,
    /// Device of `small`, `again` and `transfer`: `auto`, `cpu`, or an adapter's index or part of its name.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Blocks of the GPT.
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Width of the GPT.
    #[arg(long, default_value_t = 768)]
    width: usize,
    /// Rows of the GPT's batch.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Tokens of a row.
    #[arg(long, default_value_t = 1024)]
    tokens: usize,
    /// Words of the GPT.
    #[arg(long, default_value_t = 32_000)]
    vocabulary: usize,
    /// Steps to time.
    #[arg(long, default_value_t = 60)]
    steps: usize,
    /// Most nodes of a chain.
    #[arg(long, default_value_t = 100_000)]
    nodes: usize,
    /// Prints the plan of the step.
    #[arg(long)]
    plan: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The median.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<()> {
    let args = Args::parse();
    let wants = |name: &str| name.contains(&args.filter);
    if wants("step") {
        step::run(&args)?;
    }
    if wants("grow") {
        grow::run(&args)?;
    }
    let device = Device::named(&args.device)?;
    if wants("small") {
        small::run(&device)?;
    }
    if wants("again") {
        again::run(&device)?;
    }
    if wants("transfer") {
        transfer::run(&device)?;
    }
    Ok(())
}
