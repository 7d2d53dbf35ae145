//! Time of whole training steps: forward, mean cross-entropy, backward, AdamW, on data that the step
//! uploads. The losses are checked against the f64 oracle before anything is timed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::time::{Duration, Instant};

use clap::Parser;
use wgrad::prelude::*;
use wgrad::{Result, bail};

/// Times training steps.
#[derive(Parser)]
struct Args {
    /// `auto`, `cpu`, or an adapter's index or part of its name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only workloads whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Seconds to spend on each workload.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A multi-layer perceptron and its batch.
struct Workload {
    name: &'static str,
    sizes: &'static [usize],
    batch: usize,
}

const WORKLOADS: &[Workload] = &[
    Workload { name: "mlp 784-512-512-10 b128", sizes: &[784, 512, 512, 10], batch: 128 },
    Workload { name: "mlp 4x1024 b256", sizes: &[1024, 1024, 1024, 1024, 1024], batch: 256 },
];

/// Steps whose losses are compared with the oracle's.
const CHECKED: usize = 2;

struct Training {
    ctx: Context,
    model: Mlp,
    opt: AdamW,
    images: HostTensor,
    labels: HostTensor,
}

impl Training {
    fn new(device: &Device, work: &Workload) -> Result<Training> {
        let ctx = Context::new(device)?;
        let model = Mlp::new(&ctx, work.sizes, Rng::seed(1))?;
        let opt = AdamW::new(model.params(), AdamWConfig::default())?;
        let (inputs, classes) = (work.sizes[0], work.sizes[work.sizes.len() - 1]);
        let images: Vec<f32> =
            (0..work.batch * inputs).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect();
        let labels: Vec<i32> = (0..work.batch).map(|i| (i * 31 % classes) as i32).collect();
        let images = HostTensor::new([work.batch, inputs], &images)?;
        let labels = HostTensor::new([work.batch], &labels)?;
        Ok(Training { ctx, model, opt, images, labels })
    }

    fn step(&mut self) -> Result<Deferred<f32>> {
        let Training { ctx, model, opt, images, labels } = self;
        ctx.pass(|p| {
            let loss = model.forward(p.input(&*images)?).cross_entropy(p.input(&*labels)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred())
        })
    }
}

/// The first losses, and how long the very first step took: recorded, planned, compiled, run, read.
fn losses(device: &Device, work: &Workload) -> Result<(Vec<f32>, f64)> {
    let mut training = Training::new(device, work)?;
    training.ctx.sync()?;
    let start = Instant::now();
    let mut losses = vec![training.step()?.get()?];
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    for _ in 1..CHECKED {
        losses.push(training.step()?.get()?);
    }
    Ok((losses, first_ms))
}

fn run(device: &Device, work: &Workload, seconds: f64) -> Result<()> {
    let ((got, first), (want, _)) = (losses(device, work)?, losses(&Device::oracle(), work)?);
    for (got, want) in got.iter().zip(&want) {
        if (got - want).abs() > 1e-4 * want.abs() {
            bail!(Data, work.name, "losses {got} and {want} (oracle) differ; nothing is timed");
        }
    }
    let mut training = Training::new(device, work)?;
    for _ in 0..3 {
        training.step()?.get()?;
    }
    let mut times: Vec<f64> = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || begin.elapsed() < Duration::from_secs_f64(seconds) {
        let (start, steps) = (Instant::now(), 10);
        for _ in 0..steps {
            training.step()?;
        }
        training.ctx.sync()?;
        times.push(start.elapsed().as_secs_f64() * 1e3 / f64::from(steps));
    }
    times.sort_by(f64::total_cmp);
    let (median, min, max) = (times[times.len() / 2], times[0], times[times.len() - 1]);
    println!("{:<26} {median:>10.3} {min:>10.3} {max:>10.3} {first:>10.1}", work.name);
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::named(&args.device)?;
    println!("{device}\n{:<26} {:>10} {:>10} {:>10} {:>10}", "ms a step", "median", "min", "max", "first");
    for work in WORKLOADS.iter().filter(|w| w.name.contains(&args.filter)) {
        run(&device, work, args.seconds)?;
    }
    Ok(())
}
