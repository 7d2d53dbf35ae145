//! Handovers in 16 bits.

use wgrad::nn::{ParamSet, Sgd, SgdConfig};
use wgrad::pipeline::{StepReport, TrainOptions, Trainer, schedule};
use wgrad::{DType, ErrorKind, Result};

use super::{DIMS, cut, data, fresh, loss, model};
use crate::Subject;
use crate::devices::cpu;
use crate::handles::tap::fill;

crate::suite![
    plain: other_dtypes_are_refused, f32_is_as_it_was, within_a_device_nothing_is_rounded, the_range_is_watched;
    device: bytes_halve_and_training_converges, a_forward_pass_is_close
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

/// Half the largest distance of neighbours, relative to the element.
fn rounding(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) }
}

fn bytes_halve_and_training_converges(on: &Subject) {
    let steps = if on.is_slow() { 10 } else { 40 };
    let train = |dtype: DType| -> Vec<StepReport> {
        let contexts = [on.context(), cpu(), on.context()];
        let mut stages = cut(&model(false), &contexts).unwrap();
        stages.set_handover(dtype).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let schedules = [schedule::one_f_one_b(3, 2).unwrap(), schedule::zb_h1(3, 2).unwrap()];
        (0..steps).map(|s| trainer.step(&schedules[s % 2], &data(8, 0.0)).unwrap()).collect()
    };
    let whole = train(DType::F32);
    assert!(whole.iter().all(|step| step.report.handover_error().is_none()));
    for dtype in [DType::F16, DType::BF16] {
        let half = train(dtype);
        for (a, b) in half.iter().zip(&whole) {
            assert_eq!(2 * a.report.bytes(), b.report.bytes(), "{dtype}");
            assert_eq!(a.report.handovers.len(), b.report.handovers.len());
            let error = a.report.handover_error().expect("it was rounded");
            assert!(error <= 1.0001 * rounding(dtype), "{dtype}: {error:e}");
            // The CPU gives in f32 whatever the others are.
            assert!(error > rounding(dtype) / 100.0, "{dtype}: {error:e}");
            assert!(
                (a.loss - b.loss).abs() < 0.05 * b.loss.abs().max(0.1),
                "{dtype}: {} and {}",
                a.loss,
                b.loss
            );
        }
        let (first, last) = (half[0].loss, half[steps - 1].loss);
        assert!(last < if on.is_slow() { 0.95 } else { 0.6 } * first, "{dtype}: {first} to {last}");
        assert!(half[0].report.to_string().contains("in 16 bits"), "{}", half[0].report);
    }
}

fn a_forward_pass_is_close(on: &Subject) {
    let x = fill(&[6, DIMS[0]], 0.0);
    let mut stages = cut(&model(false), &[cpu(), on.context(), cpu(), on.context()]).unwrap();
    let (want, whole) = stages.forward(&x, 3).unwrap();
    stages.set_handover(DType::BF16).unwrap();
    let (got, half) = stages.forward(&x, 3).unwrap();
    assert_eq!((got.shape(), got.dtype()), (want.shape(), DType::F32));
    assert_eq!(2 * half.bytes(), whole.bytes());
    let pairs = got.to_vec::<f64>().into_iter().zip(want.to_vec::<f64>());
    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 0.02), "{got:?} and {want:?}");
}

fn f32_is_as_it_was() {
    let run = |narrowed: bool| {
        let mut stages = cut(&model(true), &fresh(3, cpu)).unwrap();
        if narrowed {
            stages.set_handover(DType::F16).unwrap();
            stages.set_handover(DType::F32).unwrap();
        }
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::one_f_one_b(3, 4).unwrap();
        let losses: Vec<u64> =
            (0..3).map(|s| trainer.step(&schedule, &data(8, s as f32)).unwrap().loss.to_bits()).collect();
        (losses, trainer.stages().weights().unwrap())
    };
    assert_eq!(run(true), run(false));
}

/// Of four stages on two devices one edge crosses; the others hand over as they are.
fn within_a_device_nothing_is_rounded() {
    let train = |dtype| {
        let mut stages = cut(&model(false), &fresh(4, cpu)).unwrap();
        stages.set_handover(dtype).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::one_f_one_b(4, 2).unwrap().placed(&[0, 0, 1, 1]).unwrap();
        trainer.step(&schedule, &data(8, 0.0)).unwrap()
    };
    let (half, whole) = (train(DType::F16), train(DType::F32));
    assert_eq!(2 * half.report.bytes(), whole.report.bytes());
    assert!(half.report.local > 0 && half.report.local == whole.report.local);
    // On one device all is as it was.
    let one = |dtype| {
        let mut stages = cut(&model(false), &fresh(4, cpu)).unwrap();
        stages.set_handover(dtype).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::one_f_one_b(4, 2).unwrap().placed(&[0, 0, 0, 0]).unwrap();
        let done = trainer.step(&schedule, &data(8, 0.0)).unwrap();
        assert!(done.report.handover_error().is_none());
        (done.loss.to_bits(), trainer.stages().weights().unwrap())
    };
    assert_eq!(one(DType::F16), one(DType::F32));
}

/// What leaves the range of f16 shows in the report.
fn the_range_is_watched() {
    let mut stages = cut(&super::model_of(false, wgrad::nn::Activation::Relu), &fresh(2, cpu)).unwrap();
    stages.set_handover(DType::F16).unwrap();
    let large: Vec<f32> = fill(&[4, DIMS[0]], 0.0).to_vec::<f32>().iter().map(|x| x * 1e7).collect();
    let x = wgrad::HostTensor::new([4, DIMS[0]], &large).unwrap();
    let error = stages.forward(&x, 2).unwrap().1.handover_error().unwrap();
    assert!(!error.is_finite(), "{error}");
}

fn other_dtypes_are_refused() {
    let mut stages = cut(&model(false), &fresh(2, cpu)).unwrap();
    for dtype in [DType::F64, DType::I32, DType::Bool] {
        let error = stages.set_handover(dtype).unwrap_err();
        assert!(error.kind() == ErrorKind::DType && error.to_string().contains("f16 or bf16"), "{error}");
    }
}
