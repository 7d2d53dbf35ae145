//! The dynamic loss scale over all stages.

use wgrad::nn::{Activation, Linear, Module, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Contract, Function, Loss, LossScale, Source, StageSpec, Stages, TrainOptions, Trainer, schedule,
};
use wgrad::{Context, DType, ErrorKind, Result};

use super::{DIMS, cut, data, fresh, in_stages, loss, model, model_of, schedules};
use crate::Subject;
use crate::devices::cpu;

crate::suite![
    plain: powers_of_two_leave_the_bits, scales_that_cannot_be_are_refused;
    device: the_scale_finds_where_halves_are_finite, small_gradients_of_halves_need_it
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

fn scaled(initial: f64) -> TrainOptions {
    TrainOptions { scale: Some(LossScale { initial, ..Default::default() }), ..Default::default() }
}

fn powers_of_two_leave_the_bits() {
    let (model, batch) = (model(true), |s| data(8, s as f32));
    for stages in [1, 3, 4] {
        for schedule in schedules(stages, 3) {
            for clip in [None, Some(0.05)] {
                let run = |options: TrainOptions| {
                    let options = TrainOptions { clip, ..options };
                    in_stages(&model, &fresh(stages, cpu), &schedule, batch, sgd, options).unwrap()
                };
                let want = run(TrainOptions::default());
                for scale in [1.0, 1024.0, 65536.0] {
                    assert_eq!(run(scaled(scale)), want, "{}, scale {scale}, {clip:?}", schedule.name());
                }
            }
        }
    }
}

/// A layer that computes in f16, with its weights in f32.
fn half(name: &'static str, i: usize, tanh: bool) -> impl Fn(&Context) -> Result<Function<Halves>> {
    move |ctx| {
        let fc = Linear::new(ctx, name, DIMS[i], DIMS[i + 1], Rng::seed(3))?;
        let params = fc.params();
        let [w, b] = ["weight", "bias"].map(|p| params.get(&format!("{name}.{p}")).expect("a part").clone());
        let forward = move |x: &[wgrad::Tensor]| {
            let x = x[0].try_cast(DType::F16)?.try_matmul(w.t().try_cast(DType::F16)?)?;
            let y = x.try_add(b.t().try_cast(DType::F16)?)?;
            if tanh { y.try_tanh() } else { Ok(y) }
        };
        Ok(Function::new(params, Box::new(forward) as Halves))
    }
}

type Halves = Box<dyn Fn(&[wgrad::Tensor]) -> Result<wgrad::Tensor> + Send + Sync>;

/// Activations and their gradients cross in f16.
fn halves(contexts: &[Context]) -> Stages {
    let names = ["fc1", "fc2", "fc3", "fc4"];
    let spec = |(i, ctx)| {
        let spec = StageSpec::new(names[i], ctx, half(names[i], i, i < 3));
        if i == 0 { spec.takes(Source::Batch(0), Contract::new([DIMS[0]], DType::F32)) } else { spec }
    };
    Stages::build(contexts.iter().enumerate().map(spec).collect()).unwrap()
}

/// The mean cross entropy in f32, times a factor.
fn times(factor: f64) -> Loss {
    Loss::mean(move |y, t| y.try_cast(DType::F32)?.try_cross_entropy(t)?.try_mul(factor))
}

fn the_scale_finds_where_halves_are_finite(subject: &Subject) {
    let stages = halves(&fresh(4, || subject.context()));
    let scale = LossScale { initial: 2f64.powi(24), growth: 2.0, interval: 3, backoff: 0.25 };
    let options = TrainOptions { scale: Some(scale), skip_non_finite: false, ..Default::default() };
    let mut trainer = Trainer::new(stages, times(1.0), sgd, options).unwrap();
    let schedule = schedule::one_f_one_b(4, 2).unwrap();
    let (mut losses, mut left_out, mut applied) = (Vec::new(), 0, 0);
    for step in 0..30 {
        let (before, now) = (trainer.stages().weights().unwrap(), trainer.scale().unwrap());
        let done = trainer.step(&schedule, &data(8, 0.0)).unwrap();
        assert_eq!(done.scale, Some(now), "the report has the scale of the step");
        let after = trainer.stages().weights().unwrap();
        assert_eq!(done.applied, done.norm.unwrap().is_finite());
        if done.applied {
            applied += 1;
            assert!(before.iter().zip(&after).all(|(a, b)| a != b), "step {step}: every stage moved");
            let grown = if applied % 3 == 0 { 2.0 } else { 1.0 };
            assert_eq!(trainer.scale(), Some(now * grown), "step {step}");
        } else {
            (left_out, applied) = (left_out + 1, 0);
            assert_eq!(before, after, "step {step}: no stage moved");
            assert_eq!(trainer.scale(), Some(now * 0.25), "step {step}");
        }
        losses.push(done.loss);
    }
    // On the oracle halves are wide.
    assert!(subject.context().caps().wide || left_out > 0, "{losses:?}");
    assert!(left_out < 20, "{left_out}");
    assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
    let gradients = trainer.gradients().unwrap();
    assert!(gradients.iter().all(|(_, g)| g.dtype() == DType::F32));
}

/// Gradients below the smallest half are zero without a scale, and right with one.
fn small_gradients_of_halves_need_it(subject: &Subject) {
    let tiny = 2f64.powi(-30);
    let schedule = schedule::zb_h1(4, 2).unwrap();
    let gradients = |stages: Stages, factor: f64, options: TrainOptions| {
        let mut trainer = Trainer::new(stages, times(factor), sgd, options).unwrap();
        trainer.step(&schedule, &data(8, 0.0)).unwrap();
        trainer.gradients().unwrap()
    };
    let sum = |all: &[(String, wgrad::HostTensor)]| -> f64 {
        all.iter().flat_map(|(_, g)| g.to_vec::<f64>()).map(f64::abs).sum()
    };
    let open = || fresh(4, || subject.context());
    if !subject.context().caps().wide {
        let lost = gradients(halves(&open()), tiny, TrainOptions::default());
        assert_eq!(sum(&lost), 0.0, "all is rounded away");
    }
    let kept = gradients(halves(&open()), tiny, scaled(2f64.powi(40)));
    let whole = cut(&model_of(false, Activation::Tanh), &open()).unwrap();
    let want = gradients(whole, tiny, TrainOptions::default());
    let apart: f64 = kept
        .iter()
        .zip(&want)
        .map(|((name, a), (other, b))| {
            assert_eq!(name, other);
            let pairs = a.to_vec::<f64>().into_iter().zip(b.to_vec::<f64>());
            pairs.map(|(a, b)| (a - b).abs()).sum::<f64>()
        })
        .sum();
    assert!(sum(&want) > 0.0 && apart < 0.02 * sum(&want), "{apart:e} of {:e}", sum(&want));
}

fn scales_that_cannot_be_are_refused() {
    let good = LossScale::default();
    assert_eq!((good.initial, good.growth, good.interval, good.backoff), (65536.0, 2.0, 2000, 0.5));
    let bad = [
        LossScale { initial: 0.0, ..good },
        LossScale { initial: f64::INFINITY, ..good },
        LossScale { growth: 0.5, ..good },
        LossScale { interval: 0, ..good },
        LossScale { backoff: 1.0, ..good },
        LossScale { backoff: f64::NAN, ..good },
    ];
    for scale in bad {
        let options = TrainOptions { scale: Some(scale), ..Default::default() };
        let stages = cut(&model(false), &fresh(2, cpu)).unwrap();
        let error = Trainer::new(stages, loss(), sgd, options).expect_err("it cannot be");
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    }
}
