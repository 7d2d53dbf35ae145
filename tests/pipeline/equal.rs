//! The numbers of every schedule are those of the model that is not cut.

use wgrad::nn::{Adam, AdamConfig, ParamSet, Sgd, SgdConfig};
use wgrad::pipeline::{TrainOptions, schedule};
use wgrad::{ContextOptions, Result};

use super::{cut, data, fresh, in_one, in_stages, loss, model, pair, schedules};
use crate::Subject;
use crate::devices;

crate::suite![
    plain: every_schedule_gives_the_bits_of_one_device, random_numbers_do_not_depend_on_the_cut;
    device: schedules_agree_with_one_context, several_devices_agree_with_one, a_clipped_step_is_that_of_one_context
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

fn adam(params: ParamSet) -> Result<Adam> {
    Adam::new(params, AdamConfig { lr: 0.02, ..Default::default() })
}

const ROWS: usize = 8;

/// On the CPU executor: 1 to 4 stages, 1 to 8 micro-batches, all schedules, two optimizers.
fn every_schedule_gives_the_bits_of_one_device() {
    let model = model(false);
    for micro_batches in [1, 2, 3, 5, 8] {
        let sizes = schedule::split_batch(ROWS, micro_batches).unwrap();
        let one = in_one(&model, &devices::cpu(), &sizes, |s| pair(ROWS, s), sgd).unwrap();
        let one_adam = in_one(&model, &devices::cpu(), &sizes, |s| pair(ROWS, s), adam).unwrap();
        for stages in 1..=4 {
            for schedule in schedules(stages, micro_batches) {
                let what = format!("{}, {stages} stages, {micro_batches} micro-batches", schedule.name());
                let contexts = fresh(stages, devices::cpu);
                let batch = |s| data(ROWS, s as f32);
                let options = TrainOptions { together: micro_batches % 2 == 1, ..Default::default() };
                let many = in_stages(&model, &contexts, &schedule, batch, sgd, options.clone()).unwrap();
                assert_eq!(many, one, "{what}, SGD");
                let many = in_stages(&model, &contexts, &schedule, batch, adam, options).unwrap();
                assert_eq!(many, one_adam, "{what}, Adam");
            }
        }
    }
}

/// Dropout: the same masks whatever the cut, the schedule and the micro-batches.
fn random_numbers_do_not_depend_on_the_cut() {
    let model = model(true);
    let batch = |s| data(ROWS, s as f32);
    let whole = in_one(&model, &devices::cpu(), &[ROWS], |s| pair(ROWS, s), sgd).unwrap();
    let calm = in_one(&super::model(false), &devices::cpu(), &[ROWS], |s| pair(ROWS, s), sgd).unwrap();
    assert!(whole.losses[0] != calm.losses[0], "dropout drops");
    for micro_batches in [1, 4] {
        let sizes = schedule::split_batch(ROWS, micro_batches).unwrap();
        let one = in_one(&model, &devices::cpu(), &sizes, |s| pair(ROWS, s), sgd).unwrap();
        assert!(one.difference(&whole) < 1e-5, "masks of rows, not of micro-batches");
        for stages in [1, 2, 4] {
            for schedule in schedules(stages, micro_batches) {
                let contexts = fresh(stages, devices::cpu);
                let many =
                    in_stages(&model, &contexts, &schedule, batch, sgd, TrainOptions::default()).unwrap();
                assert_eq!(many, one, "{}, {stages} stages, {micro_batches} micro-batches", schedule.name());
            }
        }
    }
}

fn schedules_agree_with_one_context(subject: &Subject) {
    let model = model(true);
    let sizes = [3, 3, 2];
    for fuse in [true, false] {
        let open = || subject.context_with(ContextOptions::default().fuse(fuse));
        let one = in_one(&model, &open(), &sizes, |s| pair(ROWS, s), sgd).unwrap();
        for schedule in schedules(4, 3).into_iter().chain(schedules(2, 3)) {
            let contexts = fresh(schedule.stages(), open);
            let batch = |s| data(ROWS, s as f32);
            let many = in_stages(&model, &contexts, &schedule, batch, sgd, TrainOptions::default()).unwrap();
            let off = many.difference(&one);
            // What crosses is rounded to f32, on the oracle too.
            let bound = if subject.is_cpu() { 0.0 } else { 1e-5 };
            assert!(off <= bound, "{}: {off:e}", schedule.name());
        }
    }
}

/// The subject, the CPU executor and the oracle in one pipeline.
fn several_devices_agree_with_one(subject: &Subject) {
    let model = model(false);
    let one = in_one(&model, &devices::oracle(), &[2; 4], |s| pair(ROWS, s), adam).unwrap();
    for schedule in [schedule::one_f_one_b(3, 4), schedule::zb_h1(3, 4), schedule::gpipe(3, 4)] {
        let schedule = schedule.unwrap();
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let contexts = order.map(|i| [subject.context(), devices::cpu(), devices::oracle()][i].clone());
            let batch = |s| data(ROWS, s as f32);
            let many = in_stages(&model, &contexts, &schedule, batch, adam, TrainOptions::default()).unwrap();
            let off = many.difference(&one);
            assert!(off <= 4e-5, "{}, {order:?}: {off:e}", schedule.name());
        }
    }
}

/// The norm is that of all stages together.
fn a_clipped_step_is_that_of_one_context(subject: &Subject) {
    let model = model(false);
    let stages = cut(&model, &fresh(3, || subject.context())).unwrap();
    let options = TrainOptions { clip: Some(0.05), ..Default::default() };
    let mut trainer = super::Trainer::new(stages, loss(), sgd, options).unwrap();
    let done = trainer.step(&schedule::one_f_one_b(3, 2).unwrap(), &data(ROWS, 0.0)).unwrap();
    let ctx = subject.context();
    let net = model.build(&ctx, None).unwrap();
    let params = wgrad::nn::Module::params(&net);
    let mut opt = sgd(params.clone()).unwrap();
    let (x, t) = pair(ROWS, 0);
    let norm = ctx
        .pass(|p| {
            let loss = wgrad::nn::Module::forward(&net, p.input(&x)?).cross_entropy(p.input(&t)?);
            let (grads, norm) = loss.backward()?.clip_global_norm(0.05)?;
            wgrad::nn::Optimizer::step(&mut opt, &grads)?;
            norm.item::<f64>()
        })
        .unwrap();
    let got = done.norm.expect("it was asked for");
    assert!(norm > 0.05 && (got - norm).abs() < 1e-5 * norm, "{got} and {norm}");
    let weights = trainer.stages().weights().unwrap();
    for ((name, got), want) in weights.iter().zip(params.iter()) {
        assert_eq!(name, want.name());
        let want = want.read().unwrap().to_vec::<f64>();
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
        assert!(got.to_vec::<f64>().iter().zip(&want).all(close), "{name}");
    }
}
