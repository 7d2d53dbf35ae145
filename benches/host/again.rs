//! A small GPT trained with all values held and within half the memory: the same losses, the peaks, the times.

use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{ContextOptions, Result, bail};

use super::median;
use super::model::{Gpt, optimizer};

const GPT: Gpt = Gpt { layers: 4, width: 128, heads: 4, tokens: 64, vocabulary: 256, blank: false };
const BATCH: usize = 16;
const STEPS: usize = 3;
const ROUNDS: usize = 9;

struct Training {
    ctx: Context,
    model: Sequential,
    opt: AdamW,
}

impl Training {
    fn new(device: &Device, options: ContextOptions) -> Result<Training> {
        let ctx = Context::with(device, options)?;
        let model = GPT.model().build(&ctx, None)?;
        let opt = optimizer(model.params())?;
        Ok(Training { ctx, model, opt })
    }

    fn step(&mut self, data: &[HostTensor; 2]) -> Result<f64> {
        let Training { ctx, model, opt } = self;
        let loss: Deferred<f64> = ctx.pass(|p| {
            let loss = model.forward(p.input(&data[0])?).try_cross_entropy(p.input(&data[1])?)?;
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred())
        })?;
        loss.get()
    }
}

pub(crate) fn run(device: &Device) -> Result<()> {
    println!("{}, batch {BATCH}, {device}", GPT.sizes());
    let data = GPT.data(0, BATCH)?;
    let mut held = Training::new(device, ContextOptions::default())?;
    let want = (0..STEPS).map(|_| held.step(&data)).collect::<Result<Vec<f64>>>()?;
    let peak = held.ctx.stats().peak_bytes;
    let mut again = Training::new(device, ContextOptions::default().recompute_within(peak / 2))?;
    let got = (0..STEPS).map(|_| again.step(&data)).collect::<Result<Vec<f64>>>()?;
    for (got, want) in got.iter().zip(&want) {
        if (got - want).abs() > 1e-5 * want.abs() {
            bail!(Data, "again", "losses {got} and {want} differ; nothing is timed");
        }
    }
    let mut times: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (training, times) in [&mut held, &mut again].into_iter().zip(&mut times) {
            let begin = Instant::now();
            for _ in 0..STEPS {
                training.step(&data)?;
            }
            times.push(begin.elapsed().as_secs_f64() * 1e3 / STEPS as f64);
        }
    }
    let [held_ms, again_ms] = times.each_mut().map(|t| median(t));
    let less = again.ctx.stats().peak_bytes;
    println!("  held  {held_ms:>8.2} ms, peak {peak}");
    println!(
        "  again {again_ms:>8.2} ms, peak {less}: {:.3} of it, {:.3} times",
        less as f64 / peak as f64,
        again_ms / held_ms
    );
    for ctx in [&held.ctx, &again.ctx] {
        if let Some(plan) = ctx.last_plan() {
            super::step::memory(&plan, ctx.caps());
            plan.notes.iter().filter(|n| n.contains("again to save")).for_each(|n| println!("  {n}"));
        }
    }
    Ok(())
}
