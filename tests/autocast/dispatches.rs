//! How many kernels a step takes: a bound for each way of training, beyond which fusion has lost something.

use wgrad::nn::{AdamW, AdamWConfig, LossScale, LossScaler, Mlp, Module, Optimizer, Rng};
use wgrad::{Context, DType, HostTensor};

use crate::Subject;

pub(super) fn a_step_takes_few_kernels(subject: &Subject) {
    if !subject.is_vulkan() {
        return;
    }
    // Where two halves share a word, what narrows to them is a kernel more.
    let halves = if subject.backend().caps().native_half { 27 } else { 40 };
    for (mode, most) in [("f32", 16), ("clip", 22), ("f16", halves), ("f16 clip", halves)] {
        let ctx = Context::new(subject.fresh()).unwrap();
        let model = Mlp::new(&ctx, &[784, 512, 512, 10], Rng::seed(1)).unwrap();
        let mut opt = AdamW::new(model.params(), AdamWConfig::default()).unwrap();
        let scaler = LossScaler::new(&ctx, LossScale::default()).unwrap();
        let x: Vec<f32> = (0..128 * 784).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect();
        let t: Vec<i32> = (0..128).map(|i| i * 31 % 10).collect();
        let (x, t) = (HostTensor::new([128, 784], &x).unwrap(), HostTensor::new([128], &t).unwrap());
        let half = mode.starts_with("f16").then_some(DType::F16);
        for _ in 0..2 {
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
        }
        let plan = ctx.last_plan().unwrap();
        assert!(plan.steps.len() <= most, "{mode}: {} kernels, not {most} at most\n{plan}", plan.steps.len());
    }
}
