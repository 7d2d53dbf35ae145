//! Faults of optimizers, schedules and training loops.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::nn::{
    Activation, Adam, AdamConfig, AdamW, AdamWConfig, Constant, Cosine, Linear, Loader, Module, Optimizer,
    ParamSet, Rng, Schedule, Sequential, Sgd, SgdConfig, Source,
};
use wgrad::{Context, DType, Error, ErrorKind, Grads, HostTensor, Param, Result};

use crate::Subject;
use crate::nn::TestFile;
use crate::ops::near;

crate::suite![
    plain: b226_a_schedule_of_parts_goes_on, b229_batches_of_every_epoch;
    device: b220_the_first_step, b221_decay_without_a_gradient, b223_a_norm_that_is_not_finite,
        b223_a_norm_of_halves, b224_the_largest_gradient, b227_losses_after_a_file, b230_numbers_that_come_late,
        b232_a_parameter_of_nothing,
];

fn number(ctx: &Context, name: &str, value: f32) -> Param {
    Param::new(ctx, name, HostTensor::new([1], &[value]).unwrap()).unwrap()
}

fn set(params: &[&Param]) -> ParamSet {
    params.iter().map(|p| (*p).clone()).collect()
}

fn b220_the_first_step(on: &Subject) {
    let ctx = on.context();
    let w = number(&ctx, "w", 1.0);
    let mut opt = Adam::new(set(&[&w]), AdamConfig { lr: 0.1, ..AdamConfig::default() }).unwrap();
    ctx.pass(|_| opt.step(&(w.t() * 0.5).sum(..).backward()?)).unwrap();
    // 0.1 * 0.5 / (0.5 + 1e-8).
    near("w", &w.t().to_vec::<f64>().unwrap(), &[0.900_000_002], 2e-7);
}

fn b221_decay_without_a_gradient(on: &Subject) {
    let ctx = on.context();
    let after = |decoupled: bool| {
        let w = number(&ctx, "w", 1.0);
        let mut opt: Box<dyn Optimizer> = if decoupled {
            let config = AdamWConfig { lr: 0.1, weight_decay: 0.1, ..AdamWConfig::default() };
            Box::new(AdamW::new(set(&[&w]), config).unwrap())
        } else {
            let config = AdamConfig { lr: 0.1, weight_decay: 0.1, ..AdamConfig::default() };
            Box::new(Adam::new(set(&[&w]), config).unwrap())
        };
        ctx.pass(|_| opt.step(&(w.t() * 0.0).sum(..).backward()?)).unwrap();
        w.t().to_vec::<f64>().unwrap()
    };
    near("beside the gradient", &after(true), &[0.99], 2e-7);
    // In the gradient the decay is all that there is: a whole step.
    near("in the gradient", &after(false), &[0.9], 1e-6);
}

/// The norm says it, every gradient is NaN and never silently 0, and a caller who leaves the pass keeps the
/// weights.
fn b223_a_norm_that_is_not_finite(on: &Subject) {
    let ctx = on.context();
    let (a, b) = (number(&ctx, "a", 1.0), number(&ctx, "b", 1.0));
    let mut opt = Sgd::new(set(&[&a, &b]), SgdConfig { lr: 0.1, ..SgdConfig::default() }).unwrap();
    for slope in [f64::INFINITY, f64::NAN] {
        let mut seen = f64::NAN;
        let skipped: Result<()> = ctx.pass(|_| {
            let (grads, norm) = (a.t() * slope + b.t()).sum(..).backward()?.clip_global_norm(1.0)?;
            for (_, g) in grads.iter() {
                assert!(g.item::<f64>()?.is_nan());
            }
            opt.step(&grads)?;
            seen = norm.item()?;
            if seen.is_finite() { Ok(()) } else { Err(Error::new(ErrorKind::User, "step", "skipped")) }
        });
        assert_eq!(skipped.unwrap_err().kind(), ErrorKind::User);
        assert_eq!(seen.is_nan(), slope.is_nan());
        assert!(!seen.is_finite());
    }
    assert_eq!((a.read().unwrap().to_vec(), b.read().unwrap().to_vec()), (vec![1f32], vec![1f32]));
    assert_eq!((a.version(), b.version(), opt.steps()), (1, 1, 0));
}

fn b223_a_norm_of_halves(on: &Subject) {
    let ctx = on.context();
    for dtype in [DType::F16, DType::BF16] {
        let w = Param::new(&ctx, "w", HostTensor::new([2], &[1.0, 1.0]).unwrap().cast(dtype)).unwrap();
        ctx.pass(|_| {
            let grads = (w.t() * 5000.0).sum(..).backward()?;
            let norm = grads.global_norm()?.item::<f64>()?;
            assert!((norm - 7071.07).abs() < 0.004 * 7071.07, "{dtype}: {norm}");
            let (clipped, norm) = grads.clip_global_norm(1.0)?;
            assert_eq!(norm.dtype(), DType::F32);
            let g = clipped.get(&w).unwrap();
            assert_eq!(g.dtype(), dtype);
            near("clipped", &g.to_vec::<f64>()?, &[0.5f64.sqrt(); 2], 4e-3);
            Ok(())
        })
        .unwrap();
    }
}

fn b224_the_largest_gradient(on: &Subject) {
    let ctx = on.context();
    let (a, b) = (number(&ctx, "a", 1.0), number(&ctx, "b", 1.0));
    ctx.pass(|p| {
        let grads = (a.t() * 3.0 - b.t() * 5.0).sum(..).backward()?;
        let norms = |grads: &Grads| -> Vec<f64> {
            grads.iter().map(|(_, g)| g.norm(f64::INFINITY, ..).item::<f64>().unwrap()).collect()
        };
        assert_eq!(norms(&grads), [3.0, 5.0]);
        let both = p.input(HostTensor::new([2], &[3f32, -5.0])?)?;
        assert_eq!(both.norm(f64::INFINITY, ..).item::<f64>()?, 5.0);
        Ok(())
    })
    .unwrap();
}

/// A schedule has no state: what it says depends on the step alone, however it is put together.
fn b226_a_schedule_of_parts_goes_on() {
    let make =
        || Cosine::new(1.0, 6).floor(0.1).warmup(3).then(9, Constant::new(0.05).then(2, Cosine::new(0.3, 5)));
    let all = make();
    let whole: Vec<f64> = (0..20).map(|i| all.at(i)).collect();
    let later: Vec<f64> = (7..20).map(|i| make().at(i)).collect();
    assert_eq!(whole[7..], later);
    near("whole", &whole[..4], &[1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0], 1e-12);
    near("whole", &whole[9..12], &[0.05, 0.05, 0.3], 1e-12);
}

fn model(ctx: &Context, seed: u64) -> Sequential {
    let linear = |name, i, o| Linear::new(ctx, name, i, o, Rng::seed(seed)).unwrap();
    Sequential::new().then(linear("fc1", 4, 8)).then(Activation::Tanh).then(linear("fc2", 8, 2))
}

/// `steps` losses of a model that goes on learning.
fn learn(ctx: &Context, model: &Sequential, from: usize, steps: usize) -> Vec<f64> {
    let mut opt = Sgd::new(model.params(), SgdConfig { lr: 0.05, ..SgdConfig::default() }).unwrap();
    let batch = |step: usize| {
        let x: Vec<f32> = (0..12).map(|i| ((i * 7 + step * 5) % 13) as f32 / 13.0 - 0.5).collect();
        HostTensor::new([3, 4], &x).unwrap()
    };
    let one = |step| {
        let run = |p: &wgrad::Pass| {
            let loss = (model.forward(p.input(batch(step))?) - 0.3).square().mean(..);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        };
        ctx.pass(run).unwrap()
    };
    let deferred: Vec<_> = (from..from + steps).map(one).collect();
    deferred.iter().map(|d| d.get().unwrap()).collect()
}

fn b227_losses_after_a_file(on: &Subject) {
    let ctx = on.context();
    let trained = model(&ctx, 1);
    learn(&ctx, &trained, 0, 5);
    let file = TestFile::new();
    trained.save(&file.0).unwrap();
    // On the oracle a file holds fewer digits than the model.
    trained.load(&file.0).unwrap();
    let want = learn(&ctx, &trained, 5, 10);
    // Another model, in another context of the device.
    let ctx = on.context();
    let loaded = model(&ctx, 2);
    loaded.load(&file.0).unwrap();
    assert!(loaded.params().iter().all(|p| *p.context() == ctx), "the weights stay on their device");
    let got = learn(&ctx, &loaded, 5, 10);
    assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{got:?}, not {want:?}");
    let start = learn(&ctx, &model(&ctx, 1), 5, 10);
    assert!(start.iter().zip(&want).all(|(a, b)| a != b), "the file holds what was learned");
}

struct Numbers;

impl Source for Numbers {
    type Batch = Vec<usize>;

    fn len(&self) -> usize {
        10
    }

    fn batch(&self, index: &[usize]) -> Result<Vec<usize>> {
        Ok(index.to_vec())
    }
}

fn b229_batches_of_every_epoch() {
    let loader = Loader::new(Numbers, 4).shuffle(3);
    let epoch = |number| loader.epoch(number).collect::<Result<Vec<_>>>().unwrap();
    let (first, second) = (epoch(0), epoch(1));
    for batches in [&first, &second] {
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        let mut items = batches.concat();
        items.sort_unstable();
        assert!(items.into_iter().eq(0..10));
    }
    assert_ne!(first.concat(), second.concat());
    assert_ne!(first.concat(), (0..10).collect::<Vec<_>>());
    let whole = Loader::new(Numbers, 4).shuffle(3).drop_last(true);
    assert_eq!(whole.epoch(0).map(|b| b.unwrap().len()).collect::<Vec<_>>(), [4, 4]);
}

/// A number that is asked for late is that of its own step, never an older or a newer one.
fn b230_numbers_that_come_late(on: &Subject) {
    let ctx = on.context();
    let w = number(&ctx, "w", 64.0);
    let step = || {
        ctx.pass(|_| {
            let loss = w.t() * 1.0;
            w.set(w.t() * 0.5);
            Ok(loss.deferred::<f64>())
        })
        .unwrap()
    };
    let losses: Vec<_> = (0..12).map(|_| step()).collect();
    let want = |i: usize| 64.0 * 0.5f64.powi(i as i32);
    for (i, loss) in losses.iter().enumerate() {
        // Not there yet is said, never made up.
        assert!(loss.try_get().unwrap().is_none_or(|x| x == want(i)), "step {i}");
    }
    for (i, loss) in losses.iter().enumerate().rev() {
        assert_eq!(loss.get().unwrap(), want(i), "step {i}");
        assert_eq!(loss.try_get().unwrap(), Some(want(i)));
    }
    // A rule that stops at the first loss below 1 stops at the right step.
    assert_eq!(losses.iter().position(|l| l.get().unwrap() < 1.0), Some(7));
}

fn b232_a_parameter_of_nothing(on: &Subject) {
    let ctx = on.context();
    let w = number(&ctx, "w", 1.0);
    let none = Param::new(&ctx, "none", HostTensor::new([0], &[] as &[f32]).unwrap()).unwrap();
    for decoupled in [true, false] {
        let mut opt: Box<dyn Optimizer> = if decoupled {
            Box::new(AdamW::new(set(&[&none, &w]), AdamWConfig::default()).unwrap())
        } else {
            let config = SgdConfig { lr: 0.1, momentum: 0.9, ..SgdConfig::default() };
            Box::new(Sgd::new(set(&[&none, &w]), config).unwrap())
        };
        let before = w.t().item::<f64>().unwrap();
        for _ in 0..2 {
            ctx.pass(|_| {
                let grads = (w.t().sum(..) + none.t().square().sum(..)).backward()?;
                let (grads, norm) = grads.clip_global_norm(1.0)?;
                assert_eq!(norm.item::<f64>()?, 1.0);
                opt.step(&grads)
            })
            .unwrap();
        }
        assert!(w.t().item::<f64>().unwrap() < before);
        assert_eq!(none.read().unwrap().shape().dims(), [0]);
    }
}
