//! Pipelines that run: against the model that is not cut, on one device and over several, with faults.

mod checkpoints;
mod equal;
mod faults;
mod lanes;
mod narrow;
mod outputs;
mod parallel;
mod public;
mod scaling;
mod several;
mod shapes;
mod shared;
mod statistics;
mod uses;
mod whole;

use std::sync::Arc;

use wgrad::nn::{Activation, Dropout, Linear, Module, Optimizer, ParamSet, Rng};
use wgrad::pipeline::{
    Batch, Contract, Loss, Model, Schedule, Stages, TrainOptions, Trainer, partition, schedule,
};
use wgrad::{Context, DType, Deferred, GradSum, HostTensor, Result};

use crate::handles::tap::fill;

pub(crate) fn tests() -> Vec<crate::Test> {
    [
        checkpoints::tests(),
        equal::tests(),
        faults::tests(),
        lanes::tests(),
        narrow::tests(),
        outputs::tests(),
        parallel::tests(),
        public::tests(),
        scaling::tests(),
        several::tests(),
        shapes::tests(),
        shared::tests(),
        statistics::tests(),
        uses::tests(),
        whole::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// No two sizes alike.
const DIMS: [usize; 5] = [6, 9, 7, 5, 4];

/// Four linear layers with nonlinearities between them; dropout behind the first and the third if `noise`.
fn model(noise: bool) -> Model {
    model_of(noise, Activation::Tanh)
}

fn model_of(noise: bool, activation: Activation) -> Model {
    let rng = Rng::seed(3);
    let mut model = Model::new();
    for i in 0..4 {
        let name = format!("fc{}", i + 1);
        let at = name.clone();
        model = model.layer(name, move |ctx| Linear::new(ctx, &at, DIMS[i], DIMS[i + 1], rng));
        if i < 3 {
            model = model.layer(format!("tanh{}", i + 1), move |_| Ok(activation));
        }
        if noise && i % 2 == 0 {
            let name = format!("drop{}", i + 1);
            model = model.layer(name.clone(), move |_| Ok(Dropout::new(&name, 0.3)));
        }
    }
    model
}

/// The model cut into as many stages as there are contexts.
fn cut(model: &Model, contexts: &[Context]) -> Result<Stages> {
    let starts: &[&str] = match contexts.len() {
        1 => &[],
        2 => &["fc3"],
        3 => &["fc2", "fc4"],
        _ => &["fc2", "fc3", "fc4"],
    };
    let partition = partition::at_names(&model.names(), starts)?;
    Stages::cut(model, &partition, contexts, Contract::new([DIMS[0]], DType::F32))
}

fn data(rows: usize, turn: f32) -> Batch {
    let labels: Vec<i32> = (0..rows as i32).map(|i| (i * 7 + turn as i32) % DIMS[4] as i32).collect();
    Batch::new(&fill(&[rows, DIMS[0]], turn)).targets(&HostTensor::new([rows], &labels).unwrap())
}

fn loss() -> Loss {
    Loss::mean(|y, t| y.try_cross_entropy(t))
}

/// Numbers of a run: losses, gradients of every step, weights at the end, by name.
#[derive(Debug, Default, PartialEq)]
struct Numbers {
    losses: Vec<f64>,
    gradients: Vec<Vec<(String, Vec<f64>)>>,
    weights: Vec<(String, Vec<f64>)>,
}

fn plain(named: Vec<(String, HostTensor)>) -> Vec<(String, Vec<f64>)> {
    named.into_iter().map(|(name, x)| (name, x.to_vec::<f64>())).collect()
}

impl Numbers {
    /// The largest difference, relative to the largest number of its kind.
    fn difference(&self, other: &Numbers) -> f64 {
        let mut most = 0f64;
        let mut compare = |a: &[f64], b: &[f64]| {
            assert_eq!(a.len(), b.len());
            let scale = b.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
            for (a, b) in a.iter().zip(b) {
                let d = (a - b).abs() / scale;
                most = if d.is_nan() { f64::INFINITY } else { most.max(d) };
            }
        };
        compare(&self.losses, &other.losses);
        let named = self.gradients.iter().flatten().chain(&self.weights);
        let others = other.gradients.iter().flatten().chain(&other.weights);
        for (a, b) in named.zip(others) {
            assert_eq!(a.0, b.0);
            compare(&a.1, &b.1);
        }
        most
    }
}

const STEPS: usize = 3;

/// Trains the cut model for a few steps.
fn in_stages<O: Optimizer + Send + 'static>(
    model: &Model,
    contexts: &[Context],
    schedule: &Schedule,
    batch: impl Fn(usize) -> Batch,
    optimizer: impl Fn(ParamSet) -> Result<O>,
    options: TrainOptions,
) -> Result<Numbers> {
    let stages = cut(model, contexts)?;
    let mut trainer = Trainer::new(stages, loss(), optimizer, options)?;
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let done = trainer.step(schedule, &batch(step))?;
        assert!(done.applied && done.loss.is_finite());
        let crossing = schedule.messages().len();
        assert_eq!(done.report.handovers.len(), crossing);
        for (device, list) in done.report.schedule.lists().iter().enumerate() {
            let did = done.report.spans.iter().filter(|s| s.device == device).map(|s| s.action);
            assert!(did.eq(list.iter().copied()), "{}: device {device} kept its order", schedule.name());
        }
        numbers.losses.push(done.loss);
        numbers.gradients.push(plain(trainer.gradients()?));
    }
    numbers.weights = plain(trainer.stages().weights()?);
    Ok(numbers)
}

/// Trains the model that is not cut, on one context, with micro-batches of these sizes.
fn in_one<O: Optimizer>(
    model: &Model,
    ctx: &Context,
    sizes: &[usize],
    data: impl Fn(usize) -> (HostTensor, HostTensor),
    optimizer: impl Fn(ParamSet) -> Result<O>,
) -> Result<Numbers> {
    let net = model.build(ctx, None)?;
    let params = net.params();
    let (mut opt, sum) = (optimizer(params.clone())?, GradSum::new(ctx, params.iter())?);
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let (x, t) = data(step);
        let (rows, mut start, mut total) = (x.shape()[0], 0, 0.0);
        for size in sizes {
            let pass = ctx.begin()?;
            pass.place(step as u64, start)?;
            let part = |x: &HostTensor| rows_of(x, start, *size);
            let value = net.forward(pass.input(part(&x))?).cross_entropy(pass.input(part(&t))?);
            let share = if *size == rows { value } else { value * (*size as f64 / rows as f64) };
            sum.add(&share.backward()?)?;
            let share: Deferred<f64> = share.deferred();
            pass.end()?;
            total += share.get()?;
            start += size;
        }
        let mut gradients = Vec::new();
        ctx.pass(|_| {
            let grads = sum.take()?;
            for p in params.iter() {
                let g = grads.get(p).expect("every parameter has a gradient");
                gradients.push((p.name().to_owned(), g.to_vec::<f64>()?));
            }
            opt.step(&grads).map(|_| ())
        })?;
        numbers.losses.push(total);
        numbers.gradients.push(gradients);
    }
    let weight = |p: &wgrad::Param| Ok((p.name().to_owned(), p.read()?.to_vec::<f64>()));
    numbers.weights = params.iter().map(weight).collect::<Result<_>>()?;
    Ok(numbers)
}

fn rows_of(x: &HostTensor, start: usize, rows: usize) -> HostTensor {
    let dims = x.shape().dims().to_vec();
    let row = x.bytes().len() / dims[0];
    let shape = [&[rows], &dims[1..]].concat();
    HostTensor::from_bytes(&shape, x.dtype(), &x.bytes()[start * row..(start + rows) * row]).unwrap()
}

/// The batch of a step for both ways of running.
fn pair(rows: usize, step: usize) -> (HostTensor, HostTensor) {
    let turn = step as f32;
    let labels: Vec<i32> = (0..rows as i32).map(|i| (i * 7 + step as i32) % DIMS[4] as i32).collect();
    (fill(&[rows, DIMS[0]], turn), HostTensor::new([rows], &labels).unwrap())
}

/// Every schedule for so many stages and micro-batches.
fn schedules(stages: usize, micro_batches: usize) -> Vec<Schedule> {
    let mut all = vec![
        schedule::gpipe(stages, micro_batches).unwrap(),
        schedule::one_f_one_b(stages, micro_batches).unwrap(),
        schedule::eager_one_f_one_b(stages, micro_batches).unwrap(),
        schedule::zb_h1(stages, micro_batches).unwrap(),
    ];
    if stages == 4 {
        all.push(schedule::interleaved(2, 2, micro_batches).unwrap());
        all.push(schedule::one_f_one_b(4, micro_batches).unwrap().placed(&[0, 0, 1, 1]).unwrap());
    }
    all
}

/// Contexts on devices of their own.
fn fresh(count: usize, open: impl Fn() -> Context) -> Vec<Context> {
    (0..count).map(|_| open()).collect()
}

/// A way that never delivers.
struct Void;

impl wgrad::pipeline::Transport for Void {
    fn send(&self, _: wgrad::pipeline::Parcel, _: std::time::Instant) -> Result<()> {
        Ok(())
    }

    fn recv(
        &self,
        message: wgrad::pipeline::Message,
        deadline: std::time::Instant,
    ) -> Result<wgrad::pipeline::Parcel> {
        std::thread::sleep(deadline.saturating_duration_since(std::time::Instant::now()));
        wgrad::bail!(Timeout, "void", "{message:?} never came")
    }

    fn close(&self) {}
}

fn void() -> Arc<dyn wgrad::pipeline::Transport> {
    Arc::new(Void)
}
