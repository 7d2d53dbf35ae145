//! What fails in a step: one error that says where, no stage half updated, the next step works.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wgrad::nn::{ParamSet, Sgd, SgdConfig};
use wgrad::pipeline::{Contract, Function, Ring, Source, StageSpec, Stages, TrainOptions, Trainer, schedule};
use wgrad::{Context, DType, ErrorKind, HostTensor, Result};

use super::{DIMS, cut, data, fresh, loss, model, void};
use crate::Subject;
use crate::devices::cpu;
use crate::handles::tap::{Call, Tap};

crate::suite![
    plain: a_stage_that_panics_ends_the_step, a_message_that_never_comes_ends_the_step, a_slow_stage_is_waited_for, a_stage_that_stands_still_is_not_waited_for,
        a_run_takes_the_predicted_time;
    device: a_failing_device_leaves_all_weights, a_lost_device_leaves_the_others_readable
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.2, momentum: 0.5, ..Default::default() })
}

/// Fails the n-th call of each kind on the middle one of three stages, for all n until the step passes.
fn a_failing_device_leaves_all_weights(subject: &Subject) {
    let model = model(false);
    let schedules = [schedule::one_f_one_b(3, 3).unwrap(), schedule::zb_h1(3, 3).unwrap()];
    for schedule in &schedules {
        // How many more such calls may be made when one fails. The device's thread alone submits and begins reads. Two
        // lanes bring values to the device beside it, and where one of them fails the thread ends its action, which
        // makes several values; two lanes wait for what leaves.
        let calls = [
            (Call::Submit, ErrorKind::OutOfMemory, 0),
            (Call::Read, ErrorKind::OutOfMemory, 0),
            (Call::Alloc, ErrorKind::OutOfMemory, 4),
            (Call::Fetch, ErrorKind::Limit, 2),
        ];
        for (call, kind, beside) in calls {
            let tap = Tap::new(subject.backend());
            let contexts = [cpu(), tap.context(), cpu()];
            let mut trainer =
                Trainer::new(cut(&model, &contexts).unwrap(), loss(), sgd, TrainOptions::default()).unwrap();
            let batch = data(6, 0.0);
            trainer.step(schedule, &batch).unwrap();
            let before = trainer.stages().weights().unwrap();
            let stride = if subject.is_slow() { 5 } else { 1 };
            let (mut failed, mut after) = (0, 0);
            loop {
                let made = tap.count(call);
                tap.fail_after(call, after, kind);
                match trainer.step(schedule, &batch) {
                    Ok(_) => break,
                    Err(error) => {
                        let text = error.to_string();
                        assert_eq!(error.kind(), kind, "{text}");
                        assert!(
                            text.contains("stage 1 (`fc2..tanh3` on") && text.contains("micro-batch"),
                            "{text}"
                        );
                        let more = tap.count(call) - made - after - 1;
                        assert!(more <= beside, "{call:?} {after}: {more} more were tried: {text}");
                    }
                }
                assert_eq!(trainer.stages().weights().unwrap(), before, "{call:?} {after}: no stage moved");
                failed += 1;
                after += stride;
            }
            assert!(failed >= 3 / stride, "{call:?} failed only {failed} times");
            // The fault that was not met is met by reading; then all is well.
            let _met = trainer.stages().weights();
            let _met = trainer.step(schedule, &batch);
            trainer.step(schedule, &batch).unwrap();
        }
    }
}

fn a_lost_device_leaves_the_others_readable(subject: &Subject) {
    let model = model(false);
    for after in [0, 3, 6] {
        let tap = Tap::new(subject.backend());
        let contexts = [cpu(), tap.context(), cpu()];
        let mut trainer =
            Trainer::new(cut(&model, &contexts).unwrap(), loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::one_f_one_b(3, 3).unwrap();
        let saved = trainer.stages().weights().unwrap();
        tap.fail_after(Call::Submit, after, ErrorKind::Lost);
        let error = trainer.step(&schedule, &data(6, 0.0)).unwrap_err();
        assert!(error.is_lost() && error.to_string().contains("stage 1"), "{error}");
        assert!(trainer.step(&schedule, &data(6, 0.0)).unwrap_err().is_lost(), "it stays lost");
        for stage in [0, 2] {
            for p in trainer.stages().params(stage).iter() {
                let (_, want) = saved.iter().find(|(name, _)| name == p.name()).unwrap();
                assert_eq!(&p.read().unwrap(), want, "the weights of the last step");
            }
        }
        // The job goes on over the devices that are left.
        let stages = cut(&model, &fresh(2, cpu)).unwrap();
        stages.set_weights(&saved).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        trainer.step(&schedule::one_f_one_b(2, 3).unwrap(), &data(6, 0.0)).unwrap();
    }
}

/// Two stages, of which the second runs `f` before it computes.
fn with(f: impl Fn() + Send + Sync + 'static) -> Stages {
    let width = DIMS[0];
    let first = StageSpec::new("front", &cpu(), |ctx: &Context| {
        wgrad::nn::Linear::new(ctx, "fc1", width, width, wgrad::nn::Rng::seed(1))
    });
    let back = StageSpec::new("back", &cpu(), |ctx: &Context| {
        let fc = wgrad::nn::Linear::new(ctx, "fc2", width, DIMS[4], wgrad::nn::Rng::seed(1))?;
        let params = wgrad::nn::Module::params(&fc);
        Ok(Function::new(params, move |x| {
            f();
            Ok(wgrad::nn::Module::forward(&fc, x[0]))
        }))
    });
    Stages::build(vec![first.takes(Source::Batch(0), Contract::new([width], DType::F32)), back]).unwrap()
}

fn a_stage_that_panics_ends_the_step() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    // The first call is the trial when it is built.
    let stages =
        with(move || assert_ne!(count.fetch_add(1, Ordering::SeqCst), 3, "the third micro-batch is bad"));
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let before = trainer.stages().weights().unwrap();
    let schedule = schedule::one_f_one_b(2, 4).unwrap();
    let error = trainer.step(&schedule, &data(8, 0.0)).unwrap_err().to_string();
    assert!(
        error.contains("stage 1 (`back` on CPU") && error.contains("micro-batch 2, action F2"),
        "{error}"
    );
    assert!(error.contains("the third micro-batch is bad"), "{error}");
    assert_eq!(trainer.stages().weights().unwrap(), before);
    trainer.step(&schedule, &data(8, 0.0)).unwrap();
    let error = {
        calls.store(3, Ordering::SeqCst);
        trainer.stages().forward(&HostTensor::new([2, DIMS[0]], &[0f32; 12]).unwrap(), 2).unwrap_err()
    };
    assert!(error.to_string().contains("action F"), "{error}");
}

fn a_message_that_never_comes_ends_the_step() {
    let begun = Instant::now();
    // One way is lost: activations from stage 0 to 1.
    let make = |from: usize, to: usize, slots: usize| -> Arc<dyn wgrad::pipeline::Transport> {
        if (from, to) == (0, 1) { void() } else { Arc::new(Ring::new(slots)) }
    };
    let options = TrainOptions {
        deadline: Duration::from_millis(200),
        transport: Some(Arc::new(make)),
        ..Default::default()
    };
    let stages = cut(&model(false), &fresh(3, cpu)).unwrap();
    let mut trainer = Trainer::new(stages, loss(), sgd, options).unwrap();
    let before = trainer.stages().weights().unwrap();
    let error = trainer.step(&schedule::one_f_one_b(3, 2).unwrap(), &data(8, 0.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("micro-batch"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "nobody hangs");
    assert_eq!(trainer.stages().weights().unwrap(), before);
}

fn a_slow_stage_is_waited_for() {
    let stages = with(|| std::thread::sleep(Duration::from_millis(30)));
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let done = trainer.step(&schedule::one_f_one_b(2, 4).unwrap(), &data(8, 0.0)).unwrap();
    let report = done.report;
    // Four forward passes of 30 ms on the second device, which the first waits for.
    assert!(report.seconds() >= 0.12, "{}", report.seconds());
    let text = report.timeline().to_text();
    assert_eq!(text.lines().count(), 2);
    // What was measured predicts the run, where the machine is not busy otherwise.
    let schedule = schedule::one_f_one_b(2, 4).unwrap();
    let mut off = Vec::new();
    for _ in 0..4 {
        let report = trainer.step(&schedule, &data(8, 0.0)).unwrap().report;
        let costs = report.costs();
        assert!(costs.stages[1].forward >= 0.03, "{costs:?}");
        let apart = (schedule.simulate(&costs).unwrap().makespan / report.seconds() - 1.0).abs();
        off.push(if costs.stages[0].forward < 0.02 { apart } else { f64::INFINITY });
    }
    assert!(off.iter().any(|off| *off < 0.1), "{off:?}");
    let table = report.to_string();
    assert!(table.contains("0>1") && table.contains("1>0") && table.contains("8 handovers"), "{table}");
}

/// On devices whose submissions take a known time the run is what the simulation of its costs says.
fn a_run_takes_the_predicted_time() {
    let delay = Duration::from_millis(20);
    let slowed = || Tap::slowed(Arc::new(wgrad_cpu::Cpu::new()), delay).context();
    for schedule in super::schedules(4, 4) {
        let stages = cut(&model(false), &fresh(4, slowed)).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        trainer.step(&schedule, &data(8, 0.0)).unwrap();
        // A machine that is busy otherwise is no fault of the schedule.
        let mut off = Vec::new();
        for _ in 0..12 {
            let report = trainer.step(&schedule, &data(8, 0.0)).unwrap().report;
            let costs = report.costs();
            // One submission for F; one for each of I and W where the stage gives gradients back.
            assert!(costs.stages.iter().all(|c| c.forward >= delay.as_secs_f64()), "{costs:?}");
            let compute = |s: &&wgrad::pipeline::Span| s.action.is_compute();
            let end = |spans: &[wgrad::pipeline::Span]| {
                spans.iter().filter(compute).map(|s| s.end).fold(0.0, f64::max)
            };
            let predicted = end(&schedule.simulate(&costs).unwrap().spans);
            off.push((predicted / end(&report.spans) - 1.0).abs());
            if off.last().is_some_and(|off| *off < 0.02) {
                break;
            }
        }
        assert!(off.iter().any(|off| *off < 0.02), "{}: {off:?}", schedule.name());
    }
}

/// Who waits long for many actions of others waits on; who waits for one that does not end gives up.
fn a_stage_that_stands_still_is_not_waited_for() {
    let options = |ms| TrainOptions { deadline: Duration::from_millis(ms), ..Default::default() };
    let schedule = schedule::gpipe(2, 8).unwrap();
    let stages = with(|| std::thread::sleep(Duration::from_millis(50)));
    let mut trainer = Trainer::new(stages, loss(), sgd, options(250)).unwrap();
    let done = trainer.step(&schedule, &data(8, 0.0)).unwrap();
    assert!(done.report.seconds() > 0.4, "the first stage waited longer than its deadline");
    let stages = with(|| std::thread::sleep(Duration::from_millis(400)));
    let mut trainer = Trainer::new(stages, loss(), sgd, options(100)).unwrap();
    let before = trainer.stages().weights().unwrap();
    let error = trainer.step(&schedule, &data(8, 0.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("stage 0 (`front`"), "{error}");
    assert_eq!(trainer.stages().weights().unwrap(), before);
}
