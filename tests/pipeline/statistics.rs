//! Running statistics: normalised by micro-batch, followed once a step as by the whole batch.

use std::sync::Arc;

use wgrad::nn::{
    BatchNorm, InstanceNorm, InstanceNormConfig, Linear, Mode, Module, ParamSet, Rng, Sgd, SgdConfig,
};
use wgrad::pipeline::{
    Batch, Contract, Function, Loss, Model, Source, StageSpec, Stages, TrainOptions, Trainer, partition,
    schedule,
};
use wgrad::{Context, DType, ErrorKind, HostTensor, Kept, Result};

use super::{fresh, loss, plain};
use crate::Subject;
use crate::devices::cpu;
use crate::handles::tap::{Call, Tap, fill};

crate::suite![
    plain: all_ways_give_the_same_statistics, one_micro_batch_gives_the_bits_of_one_device, what_is_carried_from_one_micro_batch_to_the_next_is_refused;
    device: statistics_are_those_of_the_whole_batch, a_step_that_is_not_taken_leaves_statistics, layers_used_twice_follow_twice
];

const ROWS: usize = 12;

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.2, momentum: 0.5, ..Default::default() })
}

fn model() -> Model {
    let rng = Rng::seed(5);
    Model::new()
        .layer("fc1", move |ctx| Linear::new(ctx, "fc1", 3, 5, rng))
        .layer("norm", |ctx| BatchNorm::new(ctx, "norm", 5))
        .layer("fc2", move |ctx| Linear::new(ctx, "fc2", 5, 4, rng))
}

fn cut(contexts: &[Context], again: &[bool]) -> Stages {
    let model = model();
    let starts: &[&str] = if contexts.len() == 1 { &[] } else { &["norm"] };
    let cut = partition::at_names(&model.names(), starts).unwrap();
    let stages = Stages::cut(&model, &cut, contexts, Contract::new([3], DType::F32)).unwrap();
    stages.recomputing(again).unwrap()
}

/// Far from zero, where differences of squares lose their digits.
fn pair(step: usize) -> (HostTensor, HostTensor) {
    let x: Vec<f32> =
        fill(&[ROWS, 3], step as f32).to_vec::<f32>().into_iter().map(|x| 3.0 * x + 20.0).collect();
    let labels: Vec<i32> = (0..ROWS as i32).map(|i| (i * 3 + step as i32) % 4).collect();
    (HostTensor::new([ROWS, 3], &x).unwrap(), HostTensor::new([ROWS], &labels).unwrap())
}

fn data(step: usize) -> Batch {
    let (x, t) = pair(step);
    Batch::new(&x).targets(&t)
}

/// Losses and all values of the model, running statistics among them.
type Run = (Vec<f64>, Vec<(String, Vec<f64>)>);

fn run(stages: Stages, schedule: &wgrad::pipeline::Schedule, steps: usize) -> Run {
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let losses = (0..steps).map(|s| trainer.step(schedule, &data(s)).unwrap().loss).collect();
    (losses, plain(trainer.stages().weights().unwrap()))
}

/// The same on one context with the whole batch.
fn in_one(ctx: &Context, steps: usize) -> Run {
    let net = model().build(ctx, None).unwrap();
    let mut opt = sgd(net.params()).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let (x, t) = pair(step);
        let loss = ctx.pass(|p| {
            let loss = net.forward(p.input(&x)?).cross_entropy(p.input(&t)?);
            wgrad::nn::Optimizer::step(&mut opt, &loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        });
        losses.push(loss.unwrap().get().unwrap());
    }
    let params = net.params().iter().map(|p| (p.name().to_owned(), p.read().unwrap())).collect::<Vec<_>>();
    let kept = net.state().iter().map(|k| (k.name().to_owned(), k.read().unwrap())).collect::<Vec<_>>();
    (losses, plain(params.into_iter().chain(kept).collect()))
}

fn running(run: &Run) -> Vec<(String, Vec<f64>)> {
    let mut all: Vec<_> = run.1.iter().filter(|(n, _)| n.contains("running")).cloned().collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn close(a: &[(String, Vec<f64>)], b: &[(String, Vec<f64>)], what: &str) {
    assert_eq!(a.len(), b.len());
    for ((name, a), (other, b)) in a.iter().zip(b) {
        assert_eq!(name, other);
        let off = a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f64::max);
        assert!(off < 1e-4, "{what}: {name}: {off:e}, {a:?} and {b:?}");
    }
}

fn statistics_are_those_of_the_whole_batch(subject: &Subject) {
    let want = running(&in_one(&subject.context(), 1));
    assert_eq!(want.len(), 2);
    for micro_batches in [1, 2, 4, 5, 6] {
        let schedules = [schedule::gpipe(2, micro_batches), schedule::one_f_one_b(2, micro_batches)];
        for schedule in schedules.into_iter().chain([schedule::zb_h1(2, micro_batches)]) {
            let schedule = schedule.unwrap();
            for again in [false, true] {
                let stages = cut(&fresh(2, || subject.context()), &[again; 2]);
                let what = format!("{}, {micro_batches} micro-batches, again {again}", schedule.name());
                close(&running(&run(stages, &schedule, 1)), &want, &what);
            }
        }
    }
}

/// Schedules, cuts, recomputation: the same bits, statistics too.
fn all_ways_give_the_same_statistics() {
    let whole = run(cut(&fresh(1, cpu), &[false]), &schedule::gpipe(1, 4).unwrap(), 3);
    let at_once = run(cut(&fresh(1, cpu), &[false]), &schedule::gpipe(1, 1).unwrap(), 3);
    assert_ne!(whole.0, at_once.0, "each micro-batch is normalised by itself");
    for schedule in [schedule::gpipe(2, 4), schedule::one_f_one_b(2, 4), schedule::zb_h1(2, 4)] {
        let schedule = schedule.unwrap();
        for again in [[false, false], [true, true], [false, true]] {
            let many = run(cut(&fresh(2, cpu), &again), &schedule, 3);
            assert_eq!(many, whole, "{}, {again:?}", schedule.name());
        }
    }
}

fn one_micro_batch_gives_the_bits_of_one_device() {
    let mut want = in_one(&cpu(), 3);
    want.1.sort_by(|a, b| a.0.cmp(&b.0));
    for again in [false, true] {
        let mut got = run(cut(&fresh(2, cpu), &[again; 2]), &schedule::one_f_one_b(2, 1).unwrap(), 3);
        got.1.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(got, want);
    }
}

/// Neither a step that fails nor one that is not finite, nor one in use, moves them.
fn a_step_that_is_not_taken_leaves_statistics(subject: &Subject) {
    let tap = Tap::new(subject.backend());
    let stages = cut(&[cpu(), tap.context()], &[false, true]);
    let loss = Loss::mean(|y, t| y.try_cross_entropy(t)?.try_mul(f64::from(f32::MAX))?.try_mul(1e9));
    let schedule = schedule::one_f_one_b(2, 3).unwrap();
    let mut trainer = Trainer::new(stages, loss, sgd, TrainOptions::default()).unwrap();
    let before = trainer.stages().weights().unwrap();
    let done = trainer.step(&schedule, &data(0)).unwrap();
    // The oracle computes in f64, where it is finite.
    assert!(!done.applied || tap.context().caps().wide);
    if !done.applied {
        assert_eq!(trainer.stages().weights().unwrap(), before, "a step that is not finite");
    }
    let stages = cut(&[cpu(), tap.context()], &[false, true]);
    let mut trainer = Trainer::new(stages, super::loss(), sgd, TrainOptions::default()).unwrap();
    trainer.step(&schedule, &data(0)).unwrap();
    let before = trainer.stages().weights().unwrap();
    for after in [0, 4, 7] {
        tap.fail_after(Call::Submit, after, ErrorKind::OutOfMemory);
        trainer.step(&schedule, &data(1)).unwrap_err();
        assert_eq!(trainer.stages().weights().unwrap(), before, "a step that fails");
    }
    trainer.stages_mut().set_mode(Mode::Eval);
    trainer.step(&schedule, &data(1)).unwrap();
    let after = trainer.stages().weights().unwrap();
    let running = |all: &[(String, HostTensor)]| -> Vec<_> {
        all.iter().filter(|(n, _)| n.contains("running")).cloned().collect()
    };
    assert_eq!(running(&after), running(&before), "in use they stand still");
    assert_ne!(after, before, "but weights learn");
    trainer.stages_mut().set_mode(Mode::Train);
    trainer.step(&schedule, &data(1)).unwrap();
    assert_ne!(running(&trainer.stages().weights().unwrap()), running(&before));
}

/// One layer twice in a pass, and one whose statistics are means over items.
fn layers_used_twice_follow_twice(subject: &Subject) {
    let track = InstanceNormConfig { track_running_stats: true, ..Default::default() };
    let stages = |ctx: &Context| {
        let build = move |ctx: &Context| {
            let (norm, items) = (BatchNorm::new(ctx, "norm", 3)?, InstanceNorm::new(ctx, "items", 3, track)?);
            let params: ParamSet = norm.params();
            let state: Vec<Arc<Kept>> = norm.state().into_iter().chain(items.state()).collect();
            let forward = move |x: &[wgrad::Tensor]| {
                let x = x[0];
                let twice = norm.forward(x).try_add(norm.forward(x.try_mul(2.0)?.try_add(1.0)?))?;
                twice.try_add(items.forward(x))?.try_mean([2])
            };
            Ok(Function::new(params, forward).keeping(state))
        };
        let spec =
            StageSpec::new("norms", ctx, build).takes(Source::Batch(0), Contract::new([3, 4], DType::F32));
        Stages::build(vec![spec]).unwrap()
    };
    let (x, t) = (fill(&[ROWS, 3, 4], 0.4), HostTensor::new([ROWS], &[1i32; ROWS]).unwrap());
    let of = |micro_batches: usize| {
        let mut trainer =
            Trainer::new(stages(&subject.context()), loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::gpipe(1, micro_batches).unwrap();
        trainer.step(&schedule, &Batch::new(&x).targets(&t)).unwrap();
        let all = plain(trainer.stages().weights().unwrap());
        all.into_iter().filter(|(n, _)| n.contains("running")).collect::<Vec<_>>()
    };
    let want = of(1);
    assert_eq!(want.len(), 4);
    // Twice at once, where nobody gathers.
    let ctx = subject.context();
    let norm = BatchNorm::new(&ctx, "norm", 3).unwrap();
    ctx.pass(|p| {
        let x = p.input(&x)?;
        norm.forward(x);
        norm.forward(x * 2.0 + 1.0);
        Ok(())
    })
    .unwrap();
    let direct = plain(norm.state().iter().map(|k| (k.name().to_owned(), k.read().unwrap())).collect());
    close(&want[..2], &direct, "one device");
    for micro_batches in [2, 3, 5] {
        close(&of(micro_batches), &want, &format!("{micro_batches} micro-batches"));
    }
}

/// A stage that starts from what the micro-batch before left.
fn what_is_carried_from_one_micro_batch_to_the_next_is_refused() {
    let ctx = cpu();
    let build = |ctx: &Context| {
        let (fc, sum) = (Linear::new(ctx, "fc", 3, 4, Rng::seed(1))?, Arc::new(Kept::zeros(ctx, [4])?));
        let (params, own) = (fc.params(), Arc::clone(&sum));
        let forward = move |x: &[wgrad::Tensor]| {
            let y = fc.forward(x[0]);
            own.try_set(own.t().try_add(y.try_mean([0])?)?)?;
            Ok(y)
        };
        Ok(Function::new(params, forward).keeping([sum]))
    };
    let spec = StageSpec::new("counts", &ctx, build).takes(Source::Batch(0), Contract::new([3], DType::F32));
    let mut trainer =
        Trainer::new(Stages::build(vec![spec]).unwrap(), loss(), sgd, TrainOptions::default()).unwrap();
    let error = trainer.step(&schedule::gpipe(1, 2).unwrap(), &data(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    assert!(
        error.to_string().contains("stage 0 (`counts`") && error.to_string().contains("1 kept"),
        "{error}"
    );
    trainer.step(&schedule::gpipe(1, 1).unwrap(), &data(0)).unwrap();
    let sum = trainer.stages().weights().unwrap().pop().unwrap();
    assert!(sum.1.to_vec::<f32>().iter().any(|x| *x != 0.0), "{sum:?}");
}
