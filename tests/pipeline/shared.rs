//! Tied weights, and steps whose numbers are not finite.

use wgrad::nn::{Activation, Linear, Module, Optimizer, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Batch, Contract, Function, Loss, Source, StageSpec, Stages, TrainOptions, Trainer, schedule,
};
use wgrad::{Context, DType, ErrorKind, HostTensor, Param, Result};

use super::{cut, data, fresh, in_one, in_stages, loss, model, model_of, pair};
use crate::Subject;
use crate::devices::cpu;
use crate::handles::tap::{Tap, bits, fill};

crate::suite![
    plain: ties_that_cannot_be_are_refused;
    device: tied_weights_learn_as_one, a_step_that_is_not_finite_changes_no_stage, memory_stays_flat,
        little_is_computed_twice
];

const VOCABULARY: usize = 7;
const WIDTH: usize = 5;

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.4, momentum: 0.5, ..Default::default() })
}

fn table(ctx: &Context, name: &str, turn: f32) -> Result<Param> {
    Param::new(ctx, name, fill(&[VOCABULARY, WIDTH], turn))
}

/// Words to vectors in stage 0, a layer in stage 1, the same table for the logits in stage 2.
fn tied(contexts: &[Context]) -> Result<Stages> {
    let specs = vec![
        StageSpec::new("embedding", &contexts[0], |ctx: &Context| {
            let table = table(ctx, "embedding", 0.0)?;
            let params = [table.clone()].into_iter().collect();
            Ok(Function::new(params, move |x| table.t().try_index_select(0, x[0])))
        })
        .takes(Source::Batch(0), Contract::data([], DType::I32)),
        StageSpec::new("middle", &contexts[1], |ctx: &Context| {
            Linear::new(ctx, "fc", WIDTH, WIDTH, Rng::seed(1))
        }),
        StageSpec::new("head", &contexts[2], |ctx: &Context| {
            // Other first values, which the tie replaces.
            let table = table(ctx, "head", 9.0)?;
            let params = [table.clone()].into_iter().collect();
            Ok(Function::new(params, move |x| x[0].try_matmul(table.t().try_transpose(0, 1)?)))
        }),
    ];
    Stages::build(specs)?.tie(&["embedding", "head"])
}

fn tied_weights_learn_as_one(subject: &Subject) {
    let words = HostTensor::new([6], &[0i32, 3, 6, 3, 1, 2]).unwrap();
    let next = HostTensor::new([6], &[3i32, 6, 3, 1, 2, 0]).unwrap();
    let batch = Batch::new(&words).targets(&next);
    let schedules = [schedule::one_f_one_b(3, 2), schedule::zb_h1(3, 3), schedule::gpipe(3, 6)];
    for (schedule, micro_batches) in schedules.into_iter().zip([2, 3, 6]) {
        let schedule = schedule.unwrap();
        let stages = tied(&fresh(3, || subject.context())).unwrap();
        let options = TrainOptions { clip: Some(1.0), ..Default::default() };
        let mut trainer = Trainer::new(stages, loss(), sgd, options).unwrap();
        // One context with one table.
        let ctx = subject.context();
        let one = table(&ctx, "embedding", 0.0).unwrap();
        let fc = Linear::new(&ctx, "fc", WIDTH, WIDTH, Rng::seed(1)).unwrap();
        let params: ParamSet = [one.clone()].into_iter().chain(fc.params()).collect();
        let mut opt = sgd(params).unwrap();
        for step in 0..5 {
            let done = trainer.step(&schedule, &batch).unwrap();
            let (want, norm) = ctx
                .pass(|p| {
                    let h = fc.forward(one.t().index_select(0, p.input(&words)?));
                    let loss = h.matmul(one.t().transpose(0, 1)).cross_entropy(p.input(&next)?);
                    let (grads, norm) = loss.backward()?.clip_global_norm(1.0)?;
                    opt.step(&grads)?;
                    Ok((loss.item::<f64>()?, norm.item::<f64>()?))
                })
                .unwrap();
            let what = format!("step {step}, {micro_batches} micro-batches");
            assert!((done.loss - want).abs() < 1e-5 * want, "{what}: {} and {want}", done.loss);
            let got = done.norm.unwrap();
            assert!((got - norm).abs() < 1e-4 * norm, "{what}: norms {got} and {norm}");
            let [first, copy] =
                [0, 2].map(|s| trainer.stages().params(s).iter().next().unwrap().read().unwrap());
            assert_eq!(bits(&first), bits(&copy), "{what}: the copies are equal to the bit");
        }
        let weights = trainer.stages().weights().unwrap();
        let names: Vec<&str> = weights.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["embedding", "fc.weight", "fc.bias"], "the table once");
        trainer.stages().set_weights(&[("embedding".to_owned(), fill(&[VOCABULARY, WIDTH], 4.0))]).unwrap();
        let copy = trainer.stages().params(2).iter().next().unwrap().read().unwrap();
        assert_eq!(bits(&copy), bits(&fill(&[VOCABULARY, WIDTH], 4.0)), "both are set");
    }
}

fn ties_that_cannot_be_are_refused() {
    let refused = |names: &[&str], kind: ErrorKind| {
        let error = cut(&model(false), &fresh(4, cpu)).unwrap().tie(names).expect_err("no tie");
        assert_eq!(error.kind(), kind, "{error}");
    };
    refused(&["fc1.weight"], ErrorKind::Argument);
    refused(&["fc1.weight", "fc9.weight"], ErrorKind::Argument);
    refused(&["fc1.weight", "fc1.bias"], ErrorKind::Argument);
    refused(&["fc1.weight", "fc2.weight"], ErrorKind::Shape);
    let again = tied(&fresh(3, cpu)).unwrap().tie(&["embedding", "head"]).expect_err("tied already");
    assert!(again.to_string().contains("already"), "{again}");
}

/// Infinite numbers on one stage: no stage moves, and the next step does.
fn a_step_that_is_not_finite_changes_no_stage(subject: &Subject) {
    // The loss of a batch with large targets overflows in f32; on the oracle it is infinite by itself.
    let loss = Loss::mean(|y, t| (y.try_mul(t)?.try_exp()?).try_mean(..));
    let stages = cut(&model(false), &fresh(3, || subject.context())).unwrap();
    let mut trainer = Trainer::new(stages, loss, sgd, TrainOptions::default()).unwrap();
    let schedule = schedule::one_f_one_b(3, 4).unwrap();
    let batch = |size: f32| {
        let targets = HostTensor::new([8, 1], &[0.0, 0.0, 0.0, 0.0, size, 0.0, -size, 0.0]).unwrap();
        Batch::new(&fill(&[8, 6], 0.0)).targets(&targets)
    };
    let before = trainer.stages().weights().unwrap();
    let done = trainer.step(&schedule, &batch(1e6)).unwrap();
    assert!(!done.applied && !done.norm.unwrap().is_finite(), "{done:?}");
    assert_eq!(trainer.stages().weights().unwrap(), before, "nothing moved");
    let done = trainer.step(&schedule, &batch(0.5)).unwrap();
    assert!(done.applied && done.norm.unwrap().is_finite());
    assert_ne!(trainer.stages().weights().unwrap(), before);
}

/// Bytes and plans after 3 steps and after many more are the same, and the stash is what the schedule says.
fn memory_stays_flat(subject: &Subject) {
    if subject.is_slow() {
        return;
    }
    let contexts = fresh(2, || Context::new(subject.fresh()).unwrap());
    let stages = cut(&model(true), &contexts).unwrap();
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let schedule = schedule::one_f_one_b(2, 4).unwrap();
    let mut held = Vec::new();
    for steps in [3, if subject.is_cpu() { 1000 } else { 20 }] {
        for step in 0..steps {
            let done = trainer.step(&schedule, &data(8, step as f32)).unwrap();
            assert_eq!(done.report.stash, [2, 1]);
        }
        held.push(contexts.iter().map(|c| (c.stats().live_bytes, c.stats().plans_made)).collect::<Vec<_>>());
    }
    assert_eq!(held[0], held[1], "bytes and plans");
}

/// Device work of a step in stages, beside that of one context: B starts from what F left, also where the
/// gradient needs what F alone would have fused away.
fn little_is_computed_twice(subject: &Subject) {
    let rows = 64;
    for activation in [Activation::Tanh, Activation::Gelu, Activation::Silu] {
        let one = Tap::new(subject.fresh());
        let model = model_of(false, activation);
        in_one(&model, &one.context(), &[rows / 2; 2], |s| pair(rows, s), sgd).unwrap();
        let (want, products) = (one.take_work(), one.take_products());
        for schedule in [schedule::one_f_one_b(3, 2), schedule::zb_h1(3, 2)] {
            let schedule = schedule.unwrap();
            let taps = [(); 3].map(|()| Tap::new(subject.fresh()));
            let contexts = taps.each_ref().map(Tap::context);
            let options = TrainOptions { skip_non_finite: false, ..Default::default() };
            in_stages(&model, &contexts, &schedule, |s| data(rows, s as f32), sgd, options).unwrap();
            let work: f64 = taps.iter().map(|t| t.take_work()).sum();
            let again: u64 = contexts.iter().map(|c| c.stats().recomputed).sum();
            let made: usize = taps.iter().map(|t| t.take_products()).sum();
            let what = format!("{}, {activation:?}", schedule.name());
            assert_eq!(made, products, "{what}: matrix products");
            assert!(work < 1.2 * want, "{what}: {} times the work, {again} operations again", work / want);
        }
    }
}
