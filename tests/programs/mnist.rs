//! Digits: a multi-layer perceptron, cross-entropy, AdamW, a cosine schedule, losses that are read later,
//! and an evaluation with one read.

use wgrad::nn::{Digits, Source};
use wgrad::prelude::*;
use wgrad::{DType, Result};

use super::{close, plain, values, weights_close};
use crate::Subject;

crate::suite![plain: ; device: mnist];

const DIMS: [usize; 3] = [64, 24, 10];
const EPOCHS: u32 = 6;

/// Noisy pictures of ten patterns.
fn digits(seed: u64, count: usize) -> Result<Digits> {
    let patterns = plain::noise(1, 10 * DIMS[0]);
    let noise = plain::noise(seed, count * DIMS[0]);
    let labels: Vec<u8> = (0..count).map(|i| (i * 7 % 10) as u8).collect();
    let pixel = |(i, noise): (usize, &f32)| {
        let pattern = patterns[usize::from(labels[i / DIMS[0]]) * DIMS[0] + i % DIMS[0]];
        (127.5 + 80.0 * pattern + 40.0 * noise) as u8
    };
    let images: Vec<u8> = noise.iter().enumerate().map(pixel).collect();
    Ok(Digits {
        images: HostTensor::new([count, 8, 8], &images)?,
        labels: HostTensor::new([count], &labels)?,
    })
}

/// The program: losses, and how many test images are classified right.
fn program(
    ctx: &Context,
    model: &Mlp,
    train: &Loader<Digits>,
    test: &Loader<Digits>,
) -> Result<(Vec<f64>, f64)> {
    let mut opt = AdamW::new(model.params(), AdamWConfig::default())?;
    let schedule = Cosine::new(2e-2, u64::from(EPOCHS) * train.batches() as u64);
    let mut losses = Vec::new();
    for epoch in 0..EPOCHS {
        for batch in train.epoch(epoch) {
            let batch = batch?;
            opt.lr().set(schedule.at(opt.steps()));
            let loss = ctx.pass(|p| {
                let x = (p.input(&batch.images)? / 255.0).reshape([-1, 64]);
                let loss = model.forward(x).cross_entropy(p.input(&batch.labels)?);
                opt.step(&loss.backward()?)?;
                Ok(loss.deferred())
            })?;
            losses.push(loss);
        }
    }

    let hits = Kept::zeros(ctx, [])?;
    for batch in test.epoch(0) {
        let batch = batch?;
        ctx.pass(|p| {
            let x = (p.input(&batch.images)? / 255.0).reshape([-1, 64]);
            let correct = model.forward(x).argmax(-1).eq(p.input(&batch.labels)?).sum(..);
            hits.set(hits.t() + correct);
            Ok(())
        })?;
    }
    let losses = losses.iter().map(|loss: &Deferred<f64>| loss.get()).collect::<Result<_>>()?;
    Ok((losses, hits.read()?.to_vec::<f64>()[0]))
}

/// Inputs and targets of a batch.
fn rows(batch: &wgrad::nn::Batch) -> (Vec<f64>, Vec<usize>) {
    let x = batch.images.to_vec::<u8>().iter().map(|x| f64::from(*x) / 255.0).collect();
    (x, batch.labels.to_vec::<u8>().iter().map(|y| usize::from(*y)).collect())
}

fn mnist(subject: &Subject) {
    run(subject).expect("the program runs");
}

fn run(subject: &Subject) -> Result<()> {
    let ctx = subject.context();
    let model = Mlp::new(&ctx, &DIMS, Rng::seed(1))?;
    let train = Loader::new(digits(2, 96)?, 32).shuffle(3);
    let test = Loader::new(digits(4, 50)?, 20);
    let mut w = values(&model.params())?;
    let (losses, hits) = program(&ctx, &model, &train, &test)?;

    let net = plain::Mlp { dims: &DIMS, activation: plain::RELU };
    let (mut adam, mut want) = (plain::AdamW::new(1e-8), Vec::new());
    let steps = f64::from(EPOCHS) * train.batches() as f64;
    for epoch in 0..EPOCHS {
        for batch in train.epoch(epoch) {
            let (x, y) = rows(&batch?);
            let lr = 2e-2 * 0.5 * (1.0 + (std::f64::consts::PI * want.len() as f64 / steps).cos());
            let forward = net.forward(&w, &x);
            let (loss, dlogits) = plain::cross_entropy(&forward[2], &y, 10);
            let (grads, _) = net.backward(&w, &forward, dlogits);
            adam.step(&mut w, &grads, lr, 0.01);
            want.push(loss);
        }
    }
    close(subject, "losses", &losses, &want, 1e-5);
    weights_close(subject, &model.params(), &w, 2e-4);
    assert!(losses[losses.len() - 1] < 0.7 * losses[0], "it learns: {losses:?}");

    let mut right = 0.0;
    for batch in test.epoch(0) {
        let (x, y) = rows(&batch?);
        let logits = &net.forward(&w, &x)[2];
        right += logits.chunks(10).zip(&y).filter(|(row, y)| plain::argmax(row) == **y).count() as f64;
    }
    assert_eq!(hits, right);
    assert!(right > 10.0, "better than chance: {right} of 50");
    assert_eq!(test.batches(), 3);
    assert_eq!(digits(4, 50)?.len(), 50);
    assert_eq!(model.params().get("fc1.weight").map(Param::dtype), Some(DType::F32));
    Ok(())
}
