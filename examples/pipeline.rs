//! Trains one model over several devices: `cargo run --release --example pipeline -- --help`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use wgrad::pipeline::{
    self, Batch, Contract, Family, Loss, Report, Stages, TrainOptions, Trainer, partition,
};
use wgrad::prelude::*;
use wgrad::{Result, bail};

/// Images in a micro-batch of the evaluation.
const TEST_ROWS: usize = 500;

/// Learns to read handwritten digits (MNIST) with a perceptron that is cut over several devices.
///
/// Each stage has one linear layer of --hidden units, the last has 10 (three layers at least). Prints the stages, the
/// predicted and the measured timeline of a step, what crossed, and how far gradients are from those of one device.
#[derive(Parser)]
struct Options {
    /// The devices, one after the other: cpu, oracle, or an adapter's index, PCI id, kind or part of its name
    #[arg(long, value_delimiter = ',', default_value = "cpu,cpu,cpu")]
    stages: Vec<String>,
    /// gpipe, 1f1b, eager-1f1b, zb-h1, interleaved:CHUNKS, or auto, which measures and takes the fastest
    #[arg(long, default_value = "1f1b")]
    schedule: String,
    /// Parts of a batch
    #[arg(long, default_value_t = 8, value_parser = positive)]
    micro_batches: usize,
    /// Images in a step
    #[arg(long, default_value_t = 128, value_parser = positive)]
    batch: usize,
    /// Units of each hidden layer
    #[arg(long, default_value_t = 256, value_parser = positive)]
    hidden: usize,
    /// How often all training images are seen
    #[arg(long, default_value_t = 1)]
    epochs: u32,
    /// Train on the first N images only
    #[arg(long, value_name = "N", value_parser = positive)]
    limit: Option<usize>,
    /// Highest learning rate
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Decides the initial weights and the order of the images
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the measured timeline as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Folder of the four IDX files, plain or gzipped
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/mnist"))]
    data: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn positive(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "not a positive number".to_owned())
}

/// Pixels of 0 to 255 as rows of numbers of 0 to 1.
struct Pixels;

impl Module for Pixels {
    fn forward(&self, x: Tensor) -> Tensor {
        (x / 255.0).reshape([-1, 28 * 28])
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Linear layers with rectifiers between them.
fn model(layers: usize, hidden: usize, rng: Rng) -> pipeline::Model {
    let mut model = pipeline::Model::new().layer("pixels", |_| Ok(Pixels));
    for i in 1..=layers {
        let inputs = if i == 1 { 28 * 28 } else { hidden };
        let outputs = if i == layers { 10 } else { hidden };
        let name = format!("fc{i}");
        model = model.layer(name.clone(), move |ctx| Linear::new(ctx, &name, inputs, outputs, rng));
        if i < layers {
            model = model.layer(format!("relu{i}"), |_| Ok(Activation::Relu));
        }
    }
    model
}

fn run(options: &Options) -> Result<()> {
    let devices = options.stages.iter().map(|name| Device::named(name)).collect::<Result<Vec<_>>>()?;
    let family: Option<Family> =
        if options.schedule == "auto" { None } else { Some(options.schedule.parse()?) };
    let chunks = family.map_or(1, Family::chunks);
    let stages = devices.len() * chunks;

    // One linear layer a stage, and more in the last where there are few stages.
    let model = model(stages.max(3), options.hidden, Rng::seed(options.seed));
    let starts: Vec<String> = (2..=stages).map(|s| format!("fc{s}")).collect();
    let starts: Vec<&str> = starts.iter().map(String::as_str).collect();
    let cut = partition::at_names(&model.names(), &starts)?;
    let contexts =
        (0..stages).map(|s| Context::new(&devices[s % devices.len()])).collect::<Result<Vec<_>>>()?;
    let stages = Stages::cut(&model, &cut, &contexts, Contract::data([28, 28], DType::U8))?;
    print!("{stages}");

    let Mnist { train, test } = Mnist::load(&options.data)?;
    let train = train.first(options.limit.unwrap_or(usize::MAX));
    let loader = Loader::new(train, options.batch).shuffle(options.seed).drop_last(true);
    if loader.batches() == 0 {
        bail!(Argument, "pipeline", "--batch {}: there are fewer images", options.batch);
    }
    let steps = u64::from(options.epochs) * loader.batches() as u64;
    let rates = Cosine::new(options.lr, steps).warmup((steps / 10).min(100));
    let loss = Loss::mean(|y, t| y.try_cross_entropy(t));
    let adamw = |params| AdamW::new(params, AdamWConfig { lr: 0.0, ..Default::default() });
    let train_options = TrainOptions { timed: true, ..Default::default() };
    let mut trainer = Trainer::new(stages, loss, adamw, train_options)?;

    let mut schedule = match family {
        Some(family) => family.make(devices.len(), options.micro_batches)?,
        None => Family::ZbH1.make(devices.len(), options.micro_batches)?,
    };
    // The first step compiles, the third is measured; all three learn.
    let (mut count, mut measured) = (0, None);
    for epoch in 0..options.epochs {
        let (begun, mut sum) = (Instant::now(), 0.0);
        for digits in loader.epoch(epoch) {
            let digits = digits?;
            let batch = Batch::new(&digits.images).targets(&digits.labels);
            trainer.set_lr(rates.at(count));
            let done = trainer.step(&schedule, &batch)?;
            sum += done.loss;
            if count == 0 {
                compare(&model, &trainer, &digits)?;
            }
            if count == 2 {
                schedule = show(&schedule, &done.report, family.is_none())?;
                measured = Some(done.report);
            }
            count += 1;
        }
        let (seconds, batches) = (begun.elapsed().as_secs_f64(), loader.batches());
        println!("epoch {}/{}  loss {:.4}  {seconds:.1} s", epoch + 1, options.epochs, sum / batches as f64);
    }
    if let (Some(path), Some(report)) = (&options.svg, &measured)
        && let Err(error) = std::fs::write(path, report.timeline().svg())
    {
        bail!(Data, "pipeline", "--svg {}: {error}", path.display());
    }

    let rows = test.labels.shape()[0];
    let (logits, _) = trainer.stages().forward(&test.images, rows.div_ceil(TEST_ROWS))?;
    let (logits, labels) = (logits.to_vec::<f32>(), test.labels.to_vec::<i32>());
    let best = |row: &[f32]| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as i32;
    let hits = logits.chunks(10).zip(&labels).filter(|(row, label)| best(row) == **label).count();
    println!("test accuracy {:.4} ({hits}/{rows})", hits as f64 / rows as f64);
    Ok(())
}

/// How far the gradients of the first step are from those of the model that is not cut, on the CPU.
fn compare(model: &pipeline::Model, trainer: &Trainer, digits: &wgrad::nn::Batch) -> Result<()> {
    let ctx = Context::new(&Device::cpu())?;
    let whole = model.build(&ctx, None)?;
    let params = whole.params();
    let gradients = trainer.gradients()?;
    let most = ctx.pass(|p| {
        let loss = whole.forward(p.input(&digits.images)?).cross_entropy(p.input(&digits.labels)?);
        let grads = loss.backward()?;
        let mut most = 0f32;
        for (param, (_, got)) in params.iter().zip(&gradients) {
            let Some(want) = grads.get(param) else { continue };
            let pairs = want.to_vec::<f32>()?.into_iter().zip(got.to_vec::<f32>());
            most = pairs.fold(most, |most, (a, b)| most.max((a - b).abs()));
        }
        Ok(most)
    })?;
    println!("largest difference of a gradient from one device: {most:.1e}");
    Ok(())
}

/// Prints the predicted and the measured run; the schedule to go on with.
fn show(schedule: &pipeline::Schedule, report: &Report, choose: bool) -> Result<pipeline::Schedule> {
    let costs = report.costs();
    let predicted = schedule.simulate(&costs)?;
    println!("\npredicted from this step's times: {}", predicted.timeline().title);
    print!("{}", predicted.timeline().to_text());
    println!("\n{}", report.timeline().title);
    print!("{}", report.timeline().to_text());
    println!("\n{report}");
    let crossing = (report.schedule.edges().len() * schedule.micro_batches()) - report.local / 2;
    println!("handovers: {} forward, {} back, of {crossing} each", report.activations(), report.gradients());
    if !choose {
        return Ok(schedule.clone());
    }
    let candidates = Family::LINES
        .iter()
        .map(|f| Ok((f.make(schedule.lists().len(), schedule.micro_batches())?, costs.clone())));
    let ranking = pipeline::rank(candidates.collect::<Result<Vec<_>>>()?, &[]);
    println!("\n{ranking}");
    Ok(ranking.best()?.schedule.clone())
}
