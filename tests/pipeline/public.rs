//! Faults of other pipelines, by their numbers in the list of public faults.

use wgrad::nn::{ParamSet, Sgd, SgdConfig};
use wgrad::pipeline::{TrainOptions, Trainer, schedule};
use wgrad::{Context, Result};

use super::{Numbers, cut, data, fresh, in_one, in_stages, loss, model, pair, schedules};
use crate::Subject;
use crate::devices;

crate::suite![
    plain: ;
    device: b277_fewer_micro_batches_than_stages, b278_interleaved_stages_on_two_devices,
        b280_micro_batches_weigh_as_in_one_batch
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.2, ..Default::default() })
}

const ROWS: usize = 8;

fn b277_fewer_micro_batches_than_stages(subject: &Subject) {
    let model = model(false);
    let one = in_one(&model, &devices::oracle(), &[ROWS], |s| pair(ROWS, s), sgd).unwrap();
    for micro_batches in 1..=3 {
        for schedule in schedules(4, micro_batches) {
            let contexts = fresh(4, || subject.context());
            let batch = |s| data(ROWS, s as f32);
            let many = in_stages(&model, &contexts, &schedule, batch, sgd, TrainOptions::default()).unwrap();
            let off = many.difference(&one);
            assert!(off < 1e-5, "{}, {micro_batches} micro-batches: {off:e}", schedule.name());
        }
    }
}

fn b278_interleaved_stages_on_two_devices(subject: &Subject) {
    let model = model(false);
    // Stages 0 and 2 on one device, 1 and 3 on the other, here the CPU executor.
    let here: Vec<Context> = fresh(2, || subject.context());
    let there = fresh(2, devices::cpu);
    let contexts = [&here[0], &there[0], &here[1], &there[1]].map(Clone::clone);
    let schedule = schedule::interleaved(2, 2, 8).unwrap();
    assert_eq!(schedule.devices(), [0, 1, 0, 1]);
    let one = in_one(&model, &devices::oracle(), &[1; ROWS], |s| pair(ROWS, s), sgd).unwrap();
    // With fewest slots, and with the smallest that its rings need.
    for slots in [None, Some(1)] {
        let options = TrainOptions { slots, ..Default::default() };
        let batch = |s| data(ROWS, s as f32);
        let many = in_stages(&model, &contexts, &schedule, batch, sgd, options).unwrap();
        let off = many.difference(&one);
        assert!(off < 1e-5, "{slots:?}: {off:e}");
    }
}

/// Losses and gradients of the first step of every schedule; later ones begin at other weights.
fn b280_micro_batches_weigh_as_in_one_batch(subject: &Subject) {
    let model = model(false);
    let splits: [(usize, &[usize]); 4] = [(8, &[8]), (8, &[4, 4]), (8, &[1; 8]), (7, &[3, 3, 1])];
    for (rows, sizes) in splits {
        let one = in_one(&model, &subject.context(), &[rows], |s| pair(rows, s), sgd).unwrap();
        for schedule in schedules(2, sizes.len()) {
            let stages = cut(&model, &fresh(2, || subject.context())).unwrap();
            let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
            let done = trainer.step(&schedule, &data(rows, 0.0).sizes(sizes)).unwrap();
            let first = |n: &Numbers| Numbers {
                losses: n.losses[..1].to_vec(),
                gradients: n.gradients[..1].to_vec(),
                weights: Vec::new(),
            };
            let gradients = vec![super::plain(trainer.gradients().unwrap())];
            let many = Numbers { losses: vec![done.loss], gradients, weights: Vec::new() };
            let off = many.difference(&first(&one));
            assert!(off <= 1e-6, "{}, {sizes:?}: {off:e}", schedule.name());
        }
    }
}
