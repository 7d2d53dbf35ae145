//! A small network's forward pass on one row, with its upload and the read of its result.

use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{Result, Step};

use super::median;

const ROUNDS: usize = 20;
const PASSES: u32 = 500;

pub(crate) fn run(device: &Device) -> Result<()> {
    let ctx = Context::new(device)?;
    let model = Mlp::new(&ctx, &[4, 64, 64, 2], Rng::seed(1))?;
    let x = HostTensor::new([1, 4], &[0.1f32, 0.2, 0.3, 0.4])?;
    let recorded = || ctx.pass(|p| p.no_grad(|| model.forward(p.input(&x)?).to_vec::<f32>()));
    let step: Step<HostTensor, Tensor, _> = {
        let model = Mlp::new(&ctx, &[4, 64, 64, 2], Rng::seed(1))?;
        ctx.capture(move |_, x: Tensor| Ok(model.forward(x)))
    };
    let captured = || -> Result<Vec<f32>> { Ok(step.run(x.clone())?.read()?.to_vec()) };
    let time = |f: &dyn Fn() -> Result<Vec<f32>>| -> Result<f64> {
        f()?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for _ in 0..PASSES {
                f()?;
            }
            times.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(PASSES));
        }
        Ok(median(&mut times))
    };
    println!("mlp 4-64-64-2, one row, forward with upload and read, {device}");
    println!("  recorded {:>8.2} us   captured {:>8.2} us", time(&recorded)?, time(&captured)?);
    Ok(())
}
