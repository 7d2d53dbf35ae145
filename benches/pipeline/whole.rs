//! The same model on one context: what the pipeline is compared with.

use std::sync::Arc;
use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{Backend, Caps, ContextOptions, GradSum, Pass, Result};

use super::dry::Dry;
use super::model::{Gpt, optimizer};

/// Steps on a device that computes nothing: two that plan, and some to time.
pub(crate) const DRY_STEPS: usize = 5;

/// What a run on one context gave.
#[derive(Clone)]
pub(crate) struct Whole {
    pub(crate) micro_batches: usize,
    pub(crate) losses: Vec<f64>,
    pub(crate) seconds: f64,
    pub(crate) peak_bytes: usize,
    pub(crate) planned_bytes: usize,
}

struct Training {
    ctx: Context,
    model: Sequential,
    opt: AdamW,
    sums: Option<GradSum>,
    parts: usize,
}

impl Training {
    fn new(backend: Arc<dyn Backend>, options: ContextOptions, gpt: Gpt, parts: usize) -> Result<Training> {
        let ctx = Context::with(backend, options)?;
        let model = gpt.model().build(&ctx, None)?;
        let opt = optimizer(model.params())?;
        let params = model.params();
        let sums = if parts > 1 { Some(GradSum::new(&ctx, params.iter())?) } else { None };
        Ok(Training { ctx, model, opt, sums, parts })
    }

    fn step(&mut self, data: &[HostTensor; 2]) -> Result<f64> {
        let Training { ctx, model, opt, sums, parts } = self;
        // The share of the loss of these rows.
        let share = |p: &Pass, [x, t]: &[HostTensor; 2], factor: f64| {
            let loss = model.forward(p.input(x)?).try_cross_entropy(p.input(t)?)?;
            if factor == 1.0 { Ok(loss) } else { loss.try_mul(factor) }
        };
        let Some(sums) = sums else {
            let loss: Deferred<f64> = ctx.pass(|p| {
                let loss = share(p, data, 1.0)?;
                opt.step(&loss.backward()?)?;
                Ok(loss.deferred())
            })?;
            return loss.get();
        };
        let rows = data[0].shape()[0];
        let mut losses: Vec<Deferred<f64>> = Vec::new();
        for range in super::rows(rows, *parts) {
            let part = [super::take(&data[0], &range)?, super::take(&data[1], &range)?];
            losses.push(ctx.pass(|p| {
                let loss = share(p, &part, range.len() as f64 / rows as f64)?;
                sums.add(&loss.backward()?)?;
                Ok(loss.deferred())
            })?);
        }
        ctx.pass(|_| opt.step(&sums.take()?).map(|_| ()))?;
        losses.iter().map(Deferred::get).sum()
    }
}

/// What `parts` micro-batches take on a device with these limits, without running; and the host's time for a step.
pub(crate) fn planned(caps: &Caps, gpt: Gpt, rows: usize, parts: usize) -> Result<(usize, f64)> {
    let backend = Dry::open(caps.clone());
    let mut training = Training::new(Arc::clone(&backend), ContextOptions::default(), gpt.blank(), parts)?;
    let mut times = Vec::new();
    for step in 0..DRY_STEPS {
        let data = gpt.data(step, rows)?;
        let begun = Instant::now();
        training.step(&data)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok((backend.memory().peak_bytes, super::median(times.split_off(2))))
}

/// `steps` steps; the median time without the first two, which plan and compile.
pub(crate) fn run(
    device: &Device,
    options: ContextOptions,
    gpt: Gpt,
    rows: usize,
    parts: usize,
    steps: usize,
) -> Result<Whole> {
    let backend = device.open()?;
    let (planned_bytes, _) = planned(backend.caps(), gpt, rows, parts)?;
    let mut training = Training::new(backend, options, gpt, parts)?;
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let data = gpt.data(step, rows)?;
        let begun = Instant::now();
        losses.push(training.step(&data)?);
        times.push(begun.elapsed().as_secs_f64());
    }
    let seconds = super::median(times.split_off(times.len().min(2)));
    let peak_bytes = training.ctx.stats().peak_bytes;
    Ok(Whole { micro_batches: parts, losses, seconds, peak_bytes, planned_bytes })
}
