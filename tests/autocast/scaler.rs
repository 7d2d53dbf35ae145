//! The loss scale on the device, and steps that it leaves out.

use std::path::PathBuf;

use wgrad::nn::{
    Adam, AdamConfig, AdamW, AdamWConfig, LossScale, LossScaler, Optimizer, ParamSet, Scaling, Sgd, SgdConfig,
};
use wgrad::{Context, DType, Deferred, ErrorKind, HostTensor, Param, Result};

use crate::Subject;
use crate::devices::cpu;

const START: [f64; 3] = [1.5, -0.5, 0.25];

fn param(ctx: &Context, name: &str) -> Param {
    Param::new(ctx, name, HostTensor::new([3], &START.map(|x| x as f32)).unwrap()).unwrap()
}

fn set(params: &[&Param]) -> ParamSet {
    params.iter().map(|p| (*p).clone()).collect()
}

const HOW: LossScale = LossScale { initial: 1024.0, growth: 2.0, interval: 3, backoff: 0.5 };

/// The steps of a run that are broken by an infinity or by NaN.
fn broken(step: usize) -> Option<f32> {
    match step {
        0 | 7 | 8 | 21 => Some(f32::INFINITY),
        4 | 15 => Some(f32::NAN),
        _ => None,
    }
}

/// A step on `factor * sum(w^3 / 3 + w)`, whose gradient is `factor * (w^2 + 1)`; the scale before it.
fn step(
    ctx: &Context,
    w: &Param,
    scaler: &LossScaler,
    opt: &mut dyn Optimizer,
    factor: f32,
) -> Result<Deferred<f32>> {
    ctx.pass(|p| {
        let x = w.t();
        let loss = (x * x * x / 3.0 + x).sum(..) * p.input(HostTensor::new([], &[factor])?)?;
        let scale = scaler.scale().t().deferred();
        let info = scaler.step(opt, &scaler.backward(loss)?)?;
        assert_eq!((info.updated, info.skipped), (1, 0));
        Ok(scale)
    })
}

/// Adam in f64 over the steps that are applied.
struct Plain {
    w: [f64; 3],
    m: [f64; 3],
    v: [f64; 3],
    applied: i32,
}

impl Plain {
    fn step(&mut self, lr: f64) {
        self.applied += 1;
        for i in 0..3 {
            let g = self.w[i] * self.w[i] + 1.0;
            self.m[i] = 0.9 * self.m[i] + 0.1 * g;
            self.v[i] = 0.999 * self.v[i] + 0.001 * g * g;
            let (m, v) = (
                self.m[i] / (1.0 - 0.9f64.powi(self.applied)),
                self.v[i] / (1.0 - 0.999f64.powi(self.applied)),
            );
            self.w[i] -= lr * m / (v.sqrt() + 1e-8);
        }
    }
}

pub(super) fn what_is_not_finite_is_left_out_by_the_device(subject: &Subject) {
    let ctx = Context::new(subject.fresh()).unwrap();
    let w = param(&ctx, "w");
    let mut opt = Adam::new(set(&[&w]), AdamConfig { lr: 0.05, ..Default::default() }).unwrap();
    let scaler = LossScaler::new(&ctx, HOW).unwrap();
    let mut plain = Plain { w: START, m: [0.0; 3], v: [0.0; 3], applied: 0 };
    let (mut host, mut scales, mut weights) = (Scaling::new(&HOW), Vec::new(), Vec::new());
    let downloads = ctx.stats().downloads;
    for i in 0..30 {
        let scale = step(&ctx, &w, &scaler, &mut opt, broken(i).unwrap_or(1.0)).unwrap();
        scales.push((scale, host.value));
        let now: Deferred<f32> = ctx.pass(|_| Ok(w.t().deferred())).unwrap();
        if broken(i).is_none() {
            plain.step(0.05);
        }
        host = host.after(&HOW, broken(i).is_none());
        weights.push((now, plain.w));
    }
    assert_eq!(ctx.stats().downloads, downloads, "no step waits for a number");
    for (i, ((scale, want), (now, plain))) in scales.iter().zip(&weights).enumerate() {
        assert_eq!(f64::from(scale.get().unwrap()), *want, "the scale of step {i}");
        let now = now.read().unwrap().to_vec::<f64>();
        let near = now.iter().zip(plain).all(|(a, b)| (a - b).abs() < 2e-5);
        assert!(near, "step {i}: {now:?}, expected {plain:?}");
        if let Some((before, _)) =
            i.checked_sub(1).and_then(|i| weights.get(i)).filter(|_| broken(i).is_some())
        {
            assert_eq!(before.read().unwrap().to_vec::<f64>(), now, "step {i} left the weights as they were");
        }
    }
    assert_eq!(scaler.scale().read().unwrap().to_vec::<f64>(), [host.value]);
    assert_eq!(scaler.applied().read().unwrap().to_vec::<i64>(), [host.applied as i64]);
    assert_eq!((opt.steps(), opt.skipped().read().unwrap().to_vec::<i64>()), (30, vec![6]));
    assert_eq!(plain.applied, 24);
}

pub(super) fn every_optimizer_skips(subject: &Subject) {
    let ctx = subject.context();
    let momentum = SgdConfig { lr: 0.1, momentum: 0.9, nesterov: true, ..Default::default() };
    let makes: [(&str, &dyn Fn(ParamSet) -> Box<dyn Optimizer>); 3] = [
        ("sgd", &|p| Box::new(Sgd::new(p, SgdConfig::default()).unwrap())),
        ("momentum", &|p| Box::new(Sgd::new(p, momentum).unwrap())),
        ("adamw", &|p| Box::new(AdamW::new(p, AdamWConfig { lr: 0.05, ..Default::default() }).unwrap())),
    ];
    for (name, make) in makes {
        // With the broken steps left out, and with those steps never made.
        let run = |skip: bool| {
            let w = param(&ctx, "w");
            let (mut opt, scaler) = (make(set(&[&w])), LossScaler::new(&ctx, HOW).unwrap());
            for i in 0..12 {
                if broken(i).is_none() || skip {
                    step(&ctx, &w, &scaler, opt.as_mut(), broken(i).unwrap_or(1.0)).unwrap();
                }
            }
            w.read().unwrap().to_vec::<f64>()
        };
        let (with, without) = (run(true), run(false));
        let near = with.iter().zip(&without).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near && with[0] != START[0], "{name}: {with:?}, never broken {without:?}");
    }
}

pub(super) fn clipped_gradients_skip_by_their_norm(subject: &Subject) {
    let ctx = subject.context();
    let w = param(&ctx, "w");
    let mut opt = Sgd::new(set(&[&w]), SgdConfig { lr: 1.0, ..Default::default() }).unwrap();
    let scaler = LossScaler::new(&ctx, HOW).unwrap();
    for factor in [1.0, f32::INFINITY, 1000.0] {
        let before = w.read().unwrap().to_vec::<f64>();
        ctx.pass(|p| {
            let loss = (w.t() * p.input(HostTensor::new([], &[factor])?)?).sum(..);
            let (clipped, norm) = scaler.backward(loss)?.clip_global_norm(0.5)?;
            let fine = norm.is_finite();
            scaler.update(fine)?;
            opt.step_if(&clipped, fine).map(|_| ())
        })
        .unwrap();
        let after = w.read().unwrap().to_vec::<f64>();
        let moved = before.iter().zip(&after).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let want = if factor.is_finite() { 0.5 } else { 0.0 };
        assert!((moved - want).abs() < 1e-5, "{factor}: moved by {moved}");
    }
    assert_eq!(scaler.scale().read().unwrap().to_vec::<f64>(), [512.0]);
}

pub(super) fn files_keep_scale_and_counts(subject: &Subject) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = |part: &str| folder.join(format!("scaler-{}-{part}.safetensors", subject.tag()));
    let ctx = subject.context();
    let make = || {
        let w = param(&ctx, "w");
        let opt = AdamW::new(set(&[&w]), AdamWConfig { lr: 0.05, ..Default::default() }).unwrap();
        (w, opt, LossScaler::new(&ctx, HOW).unwrap())
    };
    let (w, mut opt, scaler) = make();
    let run = |w: &Param, opt: &mut AdamW, scaler: &LossScaler, steps: std::ops::Range<usize>| {
        for i in steps {
            step(&ctx, w, scaler, opt, broken(i).unwrap_or(1.0)).unwrap();
        }
    };
    run(&w, &mut opt, &scaler, 0..11);
    set(&[&w]).save(path("w")).unwrap();
    opt.save(&path("adamw")).unwrap();
    scaler.save(&path("scale")).unwrap();
    run(&w, &mut opt, &scaler, 11..20);
    let (again, mut other, loaded) = make();
    set(&[&again]).load(path("w")).unwrap();
    other.load(&path("adamw")).unwrap();
    loaded.load(&path("scale")).unwrap();
    // Four of the eleven steps were left out.
    assert_eq!((other.steps(), other.skipped().read().unwrap().to_vec::<i64>()), (7, vec![0]));
    assert_eq!(loaded.applied().read().unwrap().to_vec::<i64>(), [2]);
    run(&again, &mut other, &loaded, 11..20);
    // In the file the oracle's numbers are f32.
    let tolerance = if subject.is_oracle() { 1e-6 } else { 0.0 };
    for (a, b) in again.read().unwrap().to_vec::<f64>().iter().zip(w.read().unwrap().to_vec::<f64>()) {
        assert!((a - b).abs() <= tolerance, "{a}, without a break {b}");
    }
    assert_eq!(
        loaded.scale().read().unwrap().to_vec::<f64>(),
        scaler.scale().read().unwrap().to_vec::<f64>()
    );
}

pub(super) fn scales_that_cannot_be_are_refused() {
    let ctx = cpu();
    let bad = [
        LossScale { initial: 0.0, ..HOW },
        LossScale { growth: 0.5, ..HOW },
        LossScale { interval: 0, ..HOW },
        LossScale { interval: 1 << 40, ..HOW },
        LossScale { backoff: 1.0, ..HOW },
    ];
    for how in bad {
        assert_eq!(LossScaler::new(&ctx, how).unwrap_err().kind(), ErrorKind::Argument, "{how:?}");
    }
    let w = param(&ctx, "w");
    let mut opt = Sgd::new(set(&[&w]), SgdConfig::default()).unwrap();
    let scaler = LossScaler::new(&ctx, HOW).unwrap();
    ctx.pass(|_| {
        let loss = w.t().sum(..);
        assert_eq!(scaler.backward(loss.cast(DType::F16)).unwrap_err().kind(), ErrorKind::DType);
        let grads = loss.backward()?;
        assert!(opt.step_if(&grads, loss).unwrap_err().to_string().contains("one truth value"));
        Ok(())
    })
    .unwrap();
    // A scale that f32 does not hold stays.
    let high = LossScale { initial: 2f64.powi(127), growth: 4.0, interval: 1, backoff: 0.5 };
    let scaler = LossScaler::new(&ctx, high).unwrap();
    for fine in [true, true, false] {
        ctx.pass(|p| scaler.update(p.input(HostTensor::new([], &[fine])?)?)).unwrap();
    }
    assert_eq!(scaler.scale().read().unwrap().to_vec::<f64>(), [2f64.powi(126)]);
}
