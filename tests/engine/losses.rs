//! Promise 1: the same numbers on every device, fused or not.

use std::sync::OnceLock;

use wgrad::prelude::*;
use wgrad::{ContextOptions, Result};

use crate::Subject;
use crate::devices::oracle;
use crate::programs::plain;

crate::suite![plain: ; device: first_losses, fusion_changes_nothing];

/// Twenty steps with dropout, a schedule and AdamW; the losses and the last weights.
fn train(ctx: &Context) -> Result<(Vec<f64>, Vec<f64>)> {
    ctx.set_seed(5);
    let model = Sequential::new()
        .then(Linear::new(ctx, "fc1", 40, 32, Rng::seed(1))?)
        .then(Activation::Relu)
        .then(Dropout::new("drop", 0.2))
        .then(Linear::new(ctx, "fc2", 32, 10, Rng::seed(1))?);
    let mut opt = AdamW::new(model.params(), AdamWConfig::default())?;
    let schedule = Cosine::new(1e-3, 20).warmup(3);
    let mut losses = Vec::new();
    for step in 0..20u64 {
        let x = HostTensor::new([24, 40], &plain::noise(step, 24 * 40))?;
        let y: Vec<u8> = (0..24).map(|i| ((i * 3 + step) % 10) as u8).collect();
        let y = HostTensor::new([24], &y)?;
        opt.lr().set(schedule.at(opt.steps()));
        losses.push(ctx.pass(|p| {
            let loss = model.forward(p.input(&x)?).cross_entropy(p.input(&y)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?);
    }
    let losses = losses.iter().map(Deferred::get).collect::<Result<_>>()?;
    let weights = model.params().iter().map(|p| Ok(p.read()?.to_vec::<f64>())).collect::<Result<Vec<_>>>()?;
    Ok((losses, weights.concat()))
}

fn of_oracle() -> &'static [f64] {
    static LOSSES: OnceLock<Vec<f64>> = OnceLock::new();
    LOSSES.get_or_init(|| train(&oracle()).expect("the oracle trains").0)
}

#[track_caller]
fn within(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    for (step, (got, want)) in got.iter().zip(want).enumerate() {
        let distance = ((got - want) / want).abs();
        assert!(
            distance <= tolerance,
            "{what}, step {step}: {got}, expected {want} (distance {distance:.2e})"
        );
    }
}

fn first_losses(subject: &Subject) {
    let (losses, _) = train(&subject.context()).expect("the device trains");
    let tolerance = if subject.is_vulkan() { 1e-5 } else { 1e-6 };
    within("loss", &losses, of_oracle(), tolerance);
    assert!(losses[19] != losses[0]);
}

fn fusion_changes_nothing(subject: &Subject) {
    let fused = train(&subject.context()).expect("the device trains");
    let apart =
        train(&subject.context_with(ContextOptions::default().fuse(false))).expect("the device trains");
    if subject.is_vulkan() {
        within("loss", &apart.0, &fused.0, 1e-5);
    } else {
        assert_eq!(apart, fused, "every bit of losses and weights");
    }
}
