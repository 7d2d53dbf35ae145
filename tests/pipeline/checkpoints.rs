//! Checkpoints that another cut takes up, and training that goes on after a device was lost.

use std::path::PathBuf;

use wgrad::nn::{Adam, AdamConfig, BatchNorm, Linear, Module, Optimizer, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Checkpoint, Contract, LossScale, Model, Schedule, Stages, TrainOptions, Trainer, partition, schedule,
};
use wgrad::{Context, DType, ErrorKind, HostTensor, Result};

use super::{cut, data, fresh, loss, model, plain, whole};
use crate::Subject;
use crate::devices::cpu;
use crate::handles::tap::{Call, Tap, fill};

crate::suite![
    plain: another_cut_goes_on, ties_skips_and_statistics_go_on, a_step_that_failed_is_done_as_if_it_had_not,
        the_devices_that_are_left_go_on, faults_of_a_checkpoint_are_named;
    device: an_optimizer_goes_on_from_its_file, weights_are_set_on_all_stages_or_none
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

fn adam(params: ParamSet) -> Result<Adam> {
    Adam::new(params, AdamConfig { lr: 0.02, ..Default::default() })
}

/// A file that goes when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        File(std::env::temp_dir().join(format!("wgrad-{name}-{}.safetensors", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

const SCALE: LossScale = LossScale { initial: 4096.0, growth: 2.0, interval: 3, backoff: 0.5 };

fn options() -> TrainOptions {
    TrainOptions { scale: Some(SCALE), clip: Some(1.0), ..Default::default() }
}

/// Losses, gradients of the last step and the whole checkpoint after steps `from..to`.
type After = (Vec<f64>, Vec<(String, Vec<f64>)>, Vec<(String, Vec<f64>)>);

fn sorted(mut all: Vec<(String, Vec<f64>)>) -> Vec<(String, Vec<f64>)> {
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn go_on(trainer: &mut Trainer, schedule: &Schedule, steps: std::ops::Range<u64>) -> After {
    let mut losses = Vec::new();
    for step in steps {
        assert_eq!(trainer.steps(), step);
        losses.push(trainer.step(schedule, &data(8, step as f32)).unwrap().loss);
    }
    let gradients = sorted(plain(trainer.gradients().unwrap()));
    (losses, gradients, sorted(plain(trainer.checkpoint().unwrap().tensors().to_vec())))
}

/// Saved with four stages, loaded with others and under other schedules: the same next steps to the bit, with dropout,
/// momenta, counts of steps and the loss scale.
fn another_cut_goes_on() {
    fn both<O: Optimizer + Send + 'static>(name: &str, optimizer: fn(ParamSet) -> Result<O>) {
        let (model, file) = (model(true), File::new(name));
        let new = |stages| {
            let stages = cut(&model, &fresh(stages, cpu)).unwrap();
            Trainer::new(stages, loss(), optimizer, options()).unwrap()
        };
        let mut four = new(4);
        four.stages().set_seed(7);
        go_on(&mut four, &schedule::zb_h1(4, 4).unwrap(), 0..4);
        four.save(&file.0).unwrap();
        let want = go_on(&mut four, &schedule::zb_h1(4, 4).unwrap(), 4..7);
        let plans = [
            (1, schedule::gpipe(1, 4)),
            (2, schedule::one_f_one_b(2, 4)),
            (3, schedule::eager_one_f_one_b(3, 4)),
            (4, schedule::interleaved(2, 2, 4)),
        ];
        for (stages, schedule) in plans {
            let mut other = new(stages);
            // Another past, which the checkpoint replaces.
            other.step(schedule.as_ref().unwrap(), &data(8, 9.0)).unwrap();
            other.load(&file.0).unwrap();
            assert_eq!(other.scale(), Some(8192.0), "grown once in four steps");
            assert_eq!(go_on(&mut other, &schedule.unwrap(), 4..7), want, "{stages} stages");
        }
        // Without what is in the file beside the weights, the next step is another.
        let mut bare = new(2);
        bare.stages().set_weights(&Checkpoint::load(&file.0).unwrap().weights()).unwrap();
        let lone = bare.step(&schedule::gpipe(2, 4).unwrap(), &data(8, 4.0)).unwrap();
        assert_ne!(lone.loss, want.0[0], "other random numbers");
    }
    both("sgd", sgd);
    both("adam", adam);
}

fn ties_skips_and_statistics_go_on() {
    let mut first = whole::trainer(4, &[true, false, true, false]);
    let batch = |step: u64| whole::batch(step as usize);
    for step in 0..3 {
        first.step(&schedule::zb_h1(4, 1).unwrap(), &batch(step)).unwrap();
    }
    let saved = first.checkpoint().unwrap();
    let names: Vec<&str> = saved.tensors().iter().map(|(n, _)| n.as_str()).collect();
    assert!(
        names.contains(&"optimizer/table.velocity") && !names.iter().any(|n| n.contains("head")),
        "{names:?}"
    );
    let want = first.step(&schedule::gpipe(4, 1).unwrap(), &batch(3)).unwrap().loss;
    let after = sorted(plain(first.checkpoint().unwrap().tensors().to_vec()));
    for stages in 1..=4 {
        let mut other = whole::trainer(stages, &vec![stages % 2 == 0; stages]);
        other.restore(&saved).unwrap();
        let done = other.step(&schedule::one_f_one_b(stages, 1).unwrap(), &batch(3)).unwrap();
        assert_eq!(done.loss, want, "{stages} stages");
        assert_eq!(sorted(plain(other.checkpoint().unwrap().tensors().to_vec())), after, "{stages} stages");
    }
    // Running statistics.
    let model = Model::new()
        .layer("fc1", |ctx| Linear::new(ctx, "fc1", super::DIMS[0], 5, Rng::seed(5)))
        .layer("norm", |ctx| BatchNorm::new(ctx, "norm", 5))
        .layer("fc2", |ctx| Linear::new(ctx, "fc2", 5, super::DIMS[4], Rng::seed(5)));
    let new = |starts: &[&str], stages: usize| {
        let cut = partition::at_names(&model.names(), starts).unwrap();
        let input = Contract::new([super::DIMS[0]], DType::F32);
        Trainer::new(Stages::cut(&model, &cut, &fresh(stages, cpu), input).unwrap(), loss(), sgd, options())
            .unwrap()
    };
    let mut three = new(&["norm", "fc2"], 3);
    go_on(&mut three, &schedule::gpipe(3, 2).unwrap(), 0..2);
    let saved = three.checkpoint().unwrap();
    assert!(saved.weights().iter().any(|(n, _)| n == "norm.running_var"));
    let want = go_on(&mut three, &schedule::zb_h1(3, 2).unwrap(), 2..4);
    let mut two = new(&["fc2"], 2);
    two.restore(&saved).unwrap();
    assert_eq!(go_on(&mut two, &schedule::one_f_one_b(2, 2).unwrap(), 2..4), want);
}

/// Steps that fail, at several places, draw no random numbers away from those that follow.
fn a_step_that_failed_is_done_as_if_it_had_not() {
    let model = model(true);
    let schedule = schedule::one_f_one_b(3, 2).unwrap();
    let tap = Tap::new(cpu_backend());
    let new = |middle: Context| {
        Trainer::new(cut(&model, &[cpu(), middle, cpu()]).unwrap(), loss(), adam, options()).unwrap()
    };
    let want = go_on(&mut new(cpu()), &schedule, 0..3);
    let mut trainer = new(tap.context());
    let first = trainer.step(&schedule, &data(8, 0.0)).unwrap().loss;
    for after in [0, 3, 5] {
        tap.fail_after(Call::Submit, after, ErrorKind::OutOfMemory);
        trainer.step(&schedule, &data(8, 1.0)).unwrap_err();
    }
    let mut got = go_on(&mut trainer, &schedule, 1..3);
    got.0.insert(0, first);
    assert_eq!(got, want);
}

fn cpu_backend() -> std::sync::Arc<dyn wgrad_graph::Backend> {
    std::sync::Arc::new(wgrad_cpu::Cpu::new())
}

/// A device is lost in the middle of a step; two are left, and take up the last whole checkpoint.
fn the_devices_that_are_left_go_on() {
    let model = model(true);
    let want = {
        let mut calm = Trainer::new(cut(&model, &fresh(3, cpu)).unwrap(), loss(), adam, options()).unwrap();
        go_on(&mut calm, &schedule::one_f_one_b(3, 2).unwrap(), 0..7)
    };
    for after in [0, 2, 5] {
        let schedule = schedule::one_f_one_b(3, 2).unwrap();
        let tap = Tap::new(cpu_backend());
        let stages = cut(&model, &[cpu(), tap.context(), cpu()]).unwrap();
        let mut trainer = Trainer::new(stages, loss(), adam, options()).unwrap();
        let mut last = trainer.checkpoint().unwrap();
        let error = loop {
            // Every second step is kept.
            if trainer.steps().is_multiple_of(2) {
                last = trainer.checkpoint().unwrap();
            }
            if trainer.steps() == 3 {
                tap.fail_after(Call::Submit, after, ErrorKind::Lost);
            }
            match trainer.step(&schedule, &data(8, trainer.steps() as f32)) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.is_lost() && error.to_string().contains("stage 1"), "{error}");
        assert_eq!(trainer.steps(), 3);
        assert!(trainer.checkpoint().unwrap_err().is_lost(), "it is not whole");
        let (rest, lost) = trainer.readable().unwrap();
        assert_eq!((rest.steps(), lost.len(), lost[0].0), (3, 1, 1), "{lost:?}");
        assert!(lost[0].1.is_lost());
        let names: Vec<&str> = rest.tensors().iter().map(|(n, _)| n.as_str()).collect();
        for name in ["fc1.weight", "fc4.bias", "optimizer/fc4.weight.square", "trainer/steps"] {
            assert!(names.contains(&name), "{name} of {names:?}");
        }
        assert!(!names.contains(&"fc2.weight"), "{names:?}");
        // What is there cannot be taken for the whole.
        let stages = || cut(&model, &fresh(2, cpu)).unwrap();
        let mut other = Trainer::new(stages(), loss(), adam, options()).unwrap();
        let error = other.restore(&rest).unwrap_err();
        assert!(error.to_string().contains("\"fc2.weight\" is missing"), "{error}");
        // The last whole one, on the two devices that are left.
        assert_eq!(last.steps(), 2);
        let mut rebuilt = trainer.rebuilt(stages(), adam, &last).unwrap();
        let got = go_on(&mut rebuilt, &schedule::zb_h1(2, 2).unwrap(), 2..7);
        assert_eq!(
            (&got.0[..], &got.1, &got.2),
            (&want.0[2..], &want.1, &want.2),
            "lost after {after} submissions"
        );
    }
}

fn faults_of_a_checkpoint_are_named() {
    let file = File::new("faults");
    let new = |optimizer: fn(ParamSet) -> Result<Sgd>| {
        Trainer::new(cut(&model(false), &fresh(2, cpu)).unwrap(), loss(), optimizer, options()).unwrap()
    };
    let mut trainer = new(sgd);
    trainer.step(&schedule::gpipe(2, 2).unwrap(), &data(8, 0.0)).unwrap();
    let good = trainer.checkpoint().unwrap();
    let refused = |change: &dyn Fn(&mut Vec<(String, HostTensor)>), kind: ErrorKind, word: &str| {
        let mut tensors = good.tensors().to_vec();
        change(&mut tensors);
        wgrad::nn::save_tensors(&file.0, &tensors).unwrap();
        let mut other = new(sgd);
        let before = other.checkpoint().unwrap();
        let error = other.load(&file.0).expect_err(word);
        assert!(error.kind() == kind && error.to_string().contains(word), "{word}: {error}");
        assert_eq!(other.checkpoint().unwrap(), before, "nothing has changed");
    };
    let at = |all: &[(String, HostTensor)], name: &str| all.iter().position(|(n, _)| n == name).unwrap();
    refused(&|t| drop(t.remove(at(t, "fc3.bias"))), ErrorKind::Data, "\"fc3.bias\" is missing");
    refused(&|t| drop(t.remove(at(t, "trainer/steps"))), ErrorKind::Data, "`trainer/steps` is missing");
    refused(
        &|t| drop(t.remove(at(t, "optimizer/fc1.weight.velocity"))),
        ErrorKind::Data,
        "\"optimizer/fc1.weight.velocity\" is missing",
    );
    refused(&|t| t.push(("fc9".into(), fill(&[2], 0.0))), ErrorKind::Data, "nothing is called \"fc9\"");
    refused(
        &|t| {
            let i = at(t, "fc2.bias");
            t[i].1 = fill(&[3], 0.0);
        },
        ErrorKind::Shape,
        "\"fc2.bias\" of stage 0",
    );
    // Another optimizer's state is not half taken.
    let mut other =
        Trainer::new(cut(&model(false), &fresh(2, cpu)).unwrap(), loss(), adam, options()).unwrap();
    let error = other.restore(&good).unwrap_err().to_string();
    assert!(error.contains("mean\" is missing") && error.contains("velocity\""), "{error}");
    // Not even a checkpoint.
    std::fs::write(&file.0, b"no such thing").unwrap();
    assert_eq!(other.load(&file.0).unwrap_err().kind(), ErrorKind::Data);
}

/// One device: what an optimizer carries goes to a file and comes back, with the counts of parameters that were left
/// out of some steps.
fn an_optimizer_goes_on_from_its_file(subject: &Subject) {
    fn goes_on<O: Optimizer>(subject: &Subject, name: &str, make: fn(ParamSet) -> Result<O>) {
        let file = File::new(&format!("{name}-{}", subject.context().caps().name.replace(['/', ' '], "")));
        let new = || {
            let ctx = subject.context();
            let fcs = ["a", "b"].map(|n| Linear::new(&ctx, n, 3, 3, Rng::seed(2)).unwrap());
            let params: ParamSet = fcs.iter().flat_map(Module::params).collect();
            let opt = make(params.clone()).unwrap();
            (ctx, fcs, params, opt)
        };
        let step = |ctx: &Context, [a, b]: &[Linear; 2], opt: &mut O, turn: usize| {
            ctx.pass(|p| {
                let x = p.input(fill(&[4, 3], turn as f32))?;
                // The second layer is left out of every other step.
                let y = if turn.is_multiple_of(2) { a.forward(x) } else { b.forward(a.forward(x)) };
                opt.step(&y.square().mean(..).backward()?).map(|_| ())
            })
            .unwrap();
        };
        let values = |params: &ParamSet| params.iter().map(|p| p.read().unwrap()).collect::<Vec<_>>();
        let (ctx, fcs, params, mut opt) = new();
        (0..5).for_each(|turn| step(&ctx, &fcs, &mut opt, turn));
        let names: Vec<String> = opt.state().iter().map(|o| o.name().to_owned()).collect();
        assert_eq!(names[0], "steps", "{names:?}");
        opt.save(&file.0).unwrap();
        let (other, other_fcs, other_params, mut other_opt) = new();
        other
            .pass(|p| {
                let all = params.iter().zip(other_params.iter());
                all.into_iter().try_for_each(|(from, to)| to.try_set(p.input(from.read()?)?))
            })
            .unwrap();
        other_opt.load(&file.0).unwrap();
        assert_eq!(other_opt.steps(), 5);
        for turn in 5..8 {
            step(&ctx, &fcs, &mut opt, turn);
            step(&other, &other_fcs, &mut other_opt, turn);
            let (got, want) = (values(&other_params), values(&params));
            // Files have f32, also of the oracle's f64.
            let near = |(a, b): (&HostTensor, &HostTensor)| {
                let pairs = a.to_vec::<f64>().into_iter().zip(b.to_vec::<f64>());
                pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-6)
            };
            let equal = if ctx.caps().wide { got.iter().zip(&want).all(near) } else { got == want };
            assert!(equal, "{name}, step {turn}: {got:?} and {want:?}");
        }
        // All or none.
        let mut tensors = wgrad::nn::load_tensors(&file.0).unwrap();
        tensors.retain(|(n, _)| n != "steps");
        wgrad::nn::save_tensors(&file.0, &tensors).unwrap();
        assert!(other_opt.load(&file.0).unwrap_err().to_string().contains("\"steps\" is missing"));
        assert_eq!(other_opt.steps(), 8);
    }
    goes_on(subject, "adam", adam);
    goes_on(subject, "sgd", sgd);
    goes_on(subject, "plain", |params| Sgd::new(params, SgdConfig::default()));
}

fn weights_are_set_on_all_stages_or_none(subject: &Subject) {
    let tap = Tap::new(subject.backend());
    let stages = cut(&model(false), &[cpu(), cpu(), tap.context()]).unwrap();
    let before = stages.weights().unwrap();
    let other: Vec<(String, HostTensor)> =
        before.iter().map(|(n, x)| (n.clone(), fill(x.shape().dims(), 0.9))).collect();
    tap.fail_after(Call::Submit, 0, ErrorKind::OutOfMemory);
    let error = stages.set_weights(&other).unwrap_err();
    assert!(error.to_string().contains("stage 2 (`fc4`"), "{error}");
    assert_eq!(stages.weights().unwrap(), before, "the first stages too");
    stages.set_weights(&other).unwrap();
    assert_eq!(stages.weights().unwrap(), other);
}
