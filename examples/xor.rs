//! Learns exclusive or: four points, two layers, 300 steps.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use wgrad::prelude::*;

fn main() -> wgrad::Result<()> {
    let ctx = Context::new(&Device::auto()?)?;
    let points = HostTensor::new([4, 2], &[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])?;
    let answers = HostTensor::new([4, 1], &[0.0f32, 1.0, 1.0, 0.0])?;

    let model = Mlp::with(&ctx, &[2, 8, 1], Rng::seed(1), Activation::Tanh)?;
    let mut opt = Adam::new(model.params(), AdamConfig { lr: 0.05, ..Default::default() })?;

    for step in 0..=300 {
        let loss: Deferred<f32> = ctx.pass(|p| {
            let y = model.forward(p.input(&points)?).sigmoid();
            let loss = y.mse(p.input(&answers)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred())
        })?;
        if step % 100 == 0 {
            println!("step {step:3}  loss {:.6}", loss.get()?);
        }
    }

    ctx.pass(|p| {
        let y = model.forward(p.input(&points)?).sigmoid();
        println!("{:.3?}, expected {:?}", y.to_vec::<f32>()?, answers.to_vec::<f32>());
        Ok(())
    })
}
