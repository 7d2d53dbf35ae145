//! One large batch as four micro-batches, in one pass and over passes.

use wgrad::prelude::*;
use wgrad::{CrossEntropy, GradSum, Pass, Reduction, Result, Tensor};

use super::{close, plain, values, weights_close};
use crate::Subject;

crate::suite![plain: ; device: accumulation];

const DIMS: [usize; 3] = [5, 8, 3];
const MICRO: usize = 6;
const COUNT: usize = 4;
const STEPS: u64 = 3;

struct Batch {
    x: HostTensor,
    y: HostTensor,
}

/// The sum, not the mean, of the losses: micro-batches of any sizes add up.
fn loss_sum(model: &Mlp, p: &Pass, batch: &Batch) -> Result<Tensor> {
    let sum = CrossEntropy { reduction: Reduction::Sum, ..Default::default() };
    Ok(model.forward(p.input(&batch.x)?).cross_entropy_with(p.input(&batch.y)?, sum))
}

fn batch(x: &[f32], y: &[i32]) -> Result<Batch> {
    Ok(Batch { x: HostTensor::new([y.len(), DIMS[0]], x)?, y: HostTensor::new([y.len()], y)? })
}

fn accumulation(subject: &Subject) {
    run(subject).expect("the programs run");
}

fn run(subject: &Subject) -> Result<()> {
    let ctx = subject.context();
    let config = SgdConfig { lr: 0.5, momentum: 0.9, ..Default::default() };
    let models = (0..3).map(|_| Mlp::new(&ctx, &DIMS, Rng::seed(1))).collect::<Result<Vec<_>>>()?;
    let mut opts = models.iter().map(|m| Sgd::new(m.params(), config)).collect::<Result<Vec<_>>>()?;
    let acc = GradSum::new(&ctx, &models[2].params())?;
    let n_global = ctx.scalar((MICRO * COUNT) as f64);
    let mut w = values(&models[0].params())?;
    let mut sgd = plain::Sgd::default();

    for step in 0..STEPS {
        let x = plain::noise(step, MICRO * COUNT * DIMS[0]);
        let y: Vec<i32> = (0..MICRO * COUNT).map(|i| ((i * i + step as usize) % 3) as i32).collect();
        let whole = batch(&x, &y)?;
        let parts = x.chunks(MICRO * DIMS[0]).zip(y.chunks(MICRO));
        let micro_batches = parts.map(|(x, y)| batch(x, y)).collect::<Result<Vec<_>>>()?;

        let full = ctx.pass(|p| {
            let loss = loss_sum(&models[0], p, &whole)? / &n_global;
            opts[0].step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?;

        let in_one = ctx.pass(|p| {
            let mut loss = p.zeros([]);
            for mb in &micro_batches {
                loss = loss + loss_sum(&models[1], p, mb)? / &n_global;
            }
            opts[1].step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?;

        for mb in &micro_batches {
            ctx.pass(|p| acc.add(&(loss_sum(&models[2], p, mb)? / &n_global).backward()?))?;
        }
        ctx.pass(|_| opts[2].step(&acc.take()?))?;

        let net = plain::Mlp { dims: &DIMS, activation: plain::RELU };
        let forward = net.forward(&w, &plain::wide(&x));
        let targets: Vec<usize> = y.iter().map(|y| *y as usize).collect();
        let (loss, dlogits) = plain::cross_entropy(&forward[2], &targets, 3);
        let (grads, _) = net.backward(&w, &forward, dlogits);
        sgd.step(&mut w, &grads, 0.5, 0.9);
        close(subject, "losses", &[full.get()?, in_one.get()?], &[loss, loss], 1e-5);
    }
    for model in &models {
        weights_close(subject, &model.params(), &w, 1e-4);
    }
    Ok(())
}
