//! How many dispatches a step takes.

use wgrad::nn::{AdamW, AdamWConfig, LossScale, LossScaler, Mlp, Module, Optimizer, Rng};
use wgrad::{Context, DType, HostTensor};

use crate::Subject;

pub(super) fn a_step_takes_few_dispatches(subject: &Subject) {
    if !subject.is_vulkan() {
        return;
    }
    for mode in ["f32", "clip", "f16", "f16 clip"] {
        let ctx = Context::new(subject.fresh()).unwrap();
        let model = Mlp::new(&ctx, &[784, 512, 512, 10], Rng::seed(1)).unwrap();
        let mut opt = AdamW::new(model.params(), AdamWConfig::default()).unwrap();
        let scaler = LossScaler::new(&ctx, LossScale::default()).unwrap();
        let x: Vec<f32> = (0..128 * 784).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect();
        let t: Vec<i32> = (0..128).map(|i| i * 31 % 10).collect();
        let (x, t) = (HostTensor::new([128, 784], &x).unwrap(), HostTensor::new([128], &t).unwrap());
        let half = mode.starts_with("f16").then_some(DType::F16);
        let mut count = 0;
        for _ in 0..2 {
            let before = ctx.stats().dispatches;
            let loss = ctx.pass(|p| {
                let y = p.autocast(half, || Ok(model.forward(p.input(&x)?)))?;
                let loss = y.cast(DType::F32).cross_entropy(p.input(&t)?);
                match mode {
                    "f32" => opt.step(&loss.backward()?)?,
                    "clip" => opt.step(&loss.backward()?.clip_global_norm(1.0)?.0)?,
                    "f16" => scaler.step(&mut opt, &scaler.backward(loss)?)?,
                    _ => {
                        let (grads, norm) = scaler.backward(loss)?.clip_global_norm(1.0)?;
                        scaler.update(norm.is_finite())?;
                        opt.step_if(&grads, norm.is_finite())?
                    }
                };
                Ok(loss.deferred::<f32>())
            });
            loss.unwrap().get().unwrap();
            count = ctx.stats().dispatches - before;
        }
        let plan = ctx.last_plan().unwrap();
        eprintln!("{mode}: {count} dispatches, {} steps\n{plan}", plan.steps.len());
    }
}
