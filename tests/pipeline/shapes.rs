//! Stages that do not fit each other, forward passes, skips, several inputs, batches that do not fit.

use wgrad::nn::{Activation, Linear, Module, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Batch, Contract, Function, Loss, Model, Source, StageSpec, Stages, TrainOptions, Trainer, partition,
    schedule,
};
use wgrad::{Context, DType, ErrorKind, HostTensor, Result};

use super::{DIMS, cut, data, fresh, loss, model};
use crate::Subject;
use crate::devices::{cpu, oracle};
use crate::handles::tap::fill;

crate::suite![
    plain: stages_that_do_not_fit_are_refused, batches_and_schedules_that_do_not_fit_are_refused,
        cuts_by_index_name_and_layout_agree, weights_move_between_cuts_by_file,
        stages_may_share_a_context;
    device: a_forward_pass_crosses_each_boundary_once, described_stages_take_their_weights_when_built,
        skips_and_inputs_at_any_stage
];

fn linear(name: &'static str, from: usize, to: usize) -> impl Fn(&Context) -> Result<Linear> {
    move |ctx| Linear::new(ctx, name, from, to, Rng::seed(5))
}

fn rows(size: usize) -> Contract {
    Contract::new([size], DType::F32)
}

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.2, ..Default::default() })
}

fn stages_that_do_not_fit_are_refused() {
    let (a, b) = (cpu(), oracle());
    let refused = |specs: Vec<StageSpec<'_>>, kind: ErrorKind, words: &[&str]| {
        let error = Stages::build(specs).expect_err("they do not fit");
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is missing: {text}");
        }
    };
    let front = || StageSpec::new("front", &a, linear("fc1", 3, 5)).takes(Source::Batch(0), rows(3));
    let both = ["stage 1 (`back`", "stage 0 (`front`"];
    // Equal bytes, other shape: what a check of bytes lets pass.
    let takes = StageSpec::new("back", &b, linear("fc2", 5, 2))
        .takes(Source::Stage(0), Contract::new([5, 1], DType::F32));
    refused(vec![front(), takes], ErrorKind::Shape, &both);
    let takes = StageSpec::new("back", &b, linear("fc2", 5, 2))
        .takes(Source::Stage(0), Contract::new([5], DType::F16));
    refused(vec![front(), takes], ErrorKind::DType, &both);
    let no_gradient = front().gives(Contract::data([5], DType::F32));
    let takes = StageSpec::new("back", &b, linear("fc2", 5, 2)).takes(Source::Stage(0), rows(5));
    refused(vec![no_gradient, takes], ErrorKind::Gradient, &both);
    // No contract: the layer itself says so, and the error names both stages.
    refused(vec![front(), StageSpec::new("back", &b, linear("fc2", 4, 2))], ErrorKind::User, &both);
    refused(vec![front().gives(rows(6))], ErrorKind::Shape, &["should give", "f32 [6]", "f32 [5]"]);
    refused(vec![StageSpec::new("front", &a, linear("fc1", 3, 5))], ErrorKind::Argument, &["of the batch"]);
    let later = StageSpec::new("front", &a, linear("fc1", 3, 5)).takes(Source::Stage(1), rows(3));
    refused(vec![later], ErrorKind::Argument, &["stage 1", "no earlier one"]);
    let unused = StageSpec::new("back", &b, linear("fc2", 3, 2)).takes(Source::Batch(0), rows(3));
    refused(vec![front(), unused], ErrorKind::Argument, &["nobody takes", "`front`"]);
    let wrong_place = StageSpec::new("back", &b, |_| Linear::new(&a, "fc2", 5, 2, Rng::seed(5)));
    refused(vec![front(), wrong_place], ErrorKind::Device, &["`back`", "fc2.weight", "another context"]);
    let broken = StageSpec::new("back", &b, |_: &Context| -> Result<Linear> {
        wgrad::bail!(Data, "file", "no such file")
    });
    refused(vec![front(), broken], ErrorKind::Data, &["stage 1 (`back`", "no such file"]);
    let panics = StageSpec::new("back", &b, |_: &Context| -> Result<Linear> { panic!("it fell over") });
    refused(vec![front(), panics], ErrorKind::User, &["stage 1 (`back`", "it fell over"]);
    let sums = Function::new(ParamSet::default(), |x| x[0].try_sum(..));
    let summed = StageSpec::new("back", &b, move |_| Ok(sums));
    refused(vec![front(), summed], ErrorKind::Shape, &["`back`", "first axis"]);
    refused(Vec::new(), ErrorKind::Argument, &["no stages"]);
}

fn batches_and_schedules_that_do_not_fit_are_refused() {
    let stages = cut(&model(false), &fresh(2, cpu)).unwrap();
    let error = stages.forward(&fill(&[2, DIMS[0]], 0.0), 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    let error = stages.forward_batch(&Batch::new(&fill(&[5, DIMS[0]], 0.0)).sizes([5, 0]), 2).unwrap_err();
    assert!(error.to_string().contains("one row or more"), "{error}");
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let mut refused = |schedule: Result<wgrad::pipeline::Schedule>, batch: &Batch, word: &str| {
        let error = trainer.step(&schedule.unwrap(), batch).expect_err(word);
        assert!(error.to_string().contains(word), "`{word}` is missing: {error}");
    };
    refused(schedule::gpipe(3, 2), &data(4, 0.0), "3 stages");
    refused(schedule::forward_only(2, 2), &data(4, 0.0), "no backward pass");
    refused(schedule::gpipe(2, 2), &Batch::new(&fill(&[4, DIMS[0]], 0.0)), "no targets");
    let uneven = Batch::new(&fill(&[4, DIMS[0]], 0.0)).targets(&fill(&[3], 0.0));
    refused(schedule::gpipe(2, 2), &uneven, "first axis");
    let wrong = Batch::new(&fill(&[4, DIMS[1]], 0.0)).targets(&HostTensor::new([4], &[0i32; 4]).unwrap());
    refused(schedule::gpipe(2, 2), &wrong, "stage 0 (`fc1..tanh2` on");
    refused("D0: F0 B0\nD1: B0 F0".parse(), &data(4, 0.0), "has not run before it");
    // And after all that it works.
    trainer.step(&schedule::gpipe(2, 2).unwrap(), &data(4, 0.0)).unwrap();
}

fn cuts_by_index_name_and_layout_agree() {
    let model = model(false);
    let cuts = [
        wgrad::pipeline::Partition::new(7, &[2, 6]).unwrap(),
        partition::at_names(&model.names(), &["fc2", "fc4"]).unwrap(),
        partition::layout(7, "ft|(ft)*2|f").unwrap(),
    ];
    let x = fill(&[4, DIMS[0]], 0.0);
    let whole = model.build(&cpu(), None).unwrap();
    let ctx = whole.params().iter().next().unwrap().context().clone();
    let want = ctx.pass(|p| whole.forward(p.input(&x)?).read()).unwrap();
    for cut in cuts {
        let stages = Stages::cut(&model, &cut, &fresh(3, cpu), rows(DIMS[0])).unwrap();
        assert_eq!(stages.forward(&x, 1).unwrap().0, want, "the same weights, the same output");
        assert_eq!((stages.name(0), stages.name(1), stages.name(2)), ("fc1..tanh1", "fc2..tanh3", "fc4"));
    }
    let two = partition::uniform(7, 2).unwrap();
    assert!(Stages::cut(&model, &two, &fresh(3, cpu), rows(DIMS[0])).is_err());
}

fn a_forward_pass_crosses_each_boundary_once(subject: &Subject) {
    let x = fill(&[7, DIMS[0]], 0.0);
    let model = model(false);
    let ctx = subject.context();
    let net = model.build(&ctx, None).unwrap();
    let want = ctx.pass(|p| net.forward(p.input(&x)?).to_vec::<f32>()).unwrap();
    for stages in 1..=4 {
        for micro_batches in [1, 3, 7] {
            let cut = cut(&model, &fresh(stages, || subject.context())).unwrap();
            let (y, report) = cut.forward(&x, micro_batches).unwrap();
            assert_eq!(y.shape().dims(), [7, DIMS[4]]);
            let close = |(a, b): (f32, &f32)| (a - b).abs() <= 1e-5;
            assert!(y.to_vec::<f32>().into_iter().zip(&want).all(close));
            assert_eq!((report.activations(), report.gradients()), (micro_batches * (stages - 1), 0));
            let widths = match stages {
                1 => 0,
                2 => DIMS[2],
                3 => DIMS[1] + DIMS[3],
                _ => DIMS[1] + DIMS[2] + DIMS[3],
            };
            assert_eq!(report.bytes(), 4 * 7 * widths as u64, "the boundaries' tensors and nothing else");
            for handover in &report.handovers {
                let p = handover.passage;
                assert!(p.sent <= p.arrived && p.arrived <= p.taken, "{p:?}");
            }
        }
    }
}

/// Explicit descriptions; weights are set once all is allocated, and moved to another cut by name.
fn described_stages_take_their_weights_when_built(subject: &Subject) {
    let one = |p: &ParamSet| {
        let w = p.get("fc1.weight").expect("a weight");
        w.context().pass(|pass| w.try_set(pass.input(HostTensor::new(w.shape(), &[1f32; 15])?)?))
    };
    let specs = vec![
        StageSpec::new("front", &subject.context(), linear("fc1", 3, 5))
            .takes(Source::Batch(0), rows(3))
            .set_weights(one),
        StageSpec::new("back", &cpu(), linear("fc2", 5, 2)).takes(Source::Stage(0), rows(5)).gives(rows(2)),
    ];
    let stages = Stages::build(specs).unwrap();
    let weights = stages.weights().unwrap();
    assert_eq!(weights[0].1.to_vec::<f32>(), [1.0; 15]);
    assert!(
        stages.to_string().contains("12 weights; takes rows of f32 [5] with gradient (Stage(0))"),
        "{stages}"
    );
    let x = fill(&[2, 3], 0.0);
    let y = stages.forward(&x, 2).unwrap().0;
    let model = Model::new().layer("fc1", linear("fc1", 3, 5)).layer("fc2", linear("fc2", 5, 2));
    let whole = partition::uniform(2, 1).unwrap();
    let whole = Stages::cut(&model, &whole, &[cpu()], rows(3)).unwrap();
    whole.set_weights(&weights).unwrap();
    let close = |(a, b): (f32, f32)| (a - b).abs() < 1e-5;
    let again = whole.forward(&x, 1).unwrap().0.to_vec::<f32>();
    assert!(y.to_vec::<f32>().into_iter().zip(again).all(close));
    let error = whole.set_weights(&[("fc9.weight".to_owned(), x)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
}

/// y = c(b(a(x)) + a(x)) * m: a skip over a stage, and a mask that the last stage alone takes.
fn skips_and_inputs_at_any_stage(subject: &Subject) {
    let (x, mask) = (fill(&[6, 3], 0.0), fill(&[6, 4], 0.5));
    let target = fill(&[6, 4], 0.25);
    let parts = |ctx: &Context| -> Result<[Linear; 3]> {
        Ok([linear("a", 3, 5)(ctx)?, linear("b", 5, 5)(ctx)?, linear("c", 5, 4)(ctx)?])
    };
    let ctx = oracle();
    let [a, b, c] = parts(&ctx).unwrap();
    let (loss, want) = ctx
        .pass(|p| {
            let h = a.forward(p.input(&x)?);
            let y = c.forward(b.forward(h).tanh() + h) * p.input(&mask)?;
            let loss = (y - p.input(&target)?).square().sum(..) / 6.0;
            let grads = loss.backward()?;
            let params = [a.params(), b.params(), c.params()];
            let all = params.iter().flat_map(ParamSet::iter).map(|p| grads.get(p).unwrap().to_vec::<f64>());
            Ok((loss.item::<f64>()?, all.collect::<Result<Vec<_>>>()?))
        })
        .unwrap();
    let contexts = [subject.context(), cpu(), subject.context()];
    let specs = vec![
        StageSpec::new("a", &contexts[0], linear("a", 3, 5)).takes(Source::Batch(0), rows(3)),
        StageSpec::new("b", &contexts[1], |ctx: &Context| {
            Ok(wgrad::nn::Sequential::new().then(linear("b", 5, 5)(ctx)?).then(Activation::Tanh))
        }),
        StageSpec::new("c", &contexts[2], |ctx| {
            let c = linear("c", 5, 4)(ctx)?;
            let params = c.params();
            Ok(Function::new(params, move |x| Ok(c.forward(x[0].try_add(x[1])?) * x[2])))
        })
        .takes(Source::Stage(1), rows(5))
        .takes(Source::Stage(0), rows(5))
        .takes(Source::Batch(1), Contract::data([4], DType::F32)),
    ];
    let stages = Stages::build(specs).unwrap();
    assert_eq!(stages.edges().len(), 3);
    let squares = Loss::sum(|y, t| y.try_sub(t)?.try_square()?.try_sum(..));
    let mut trainer = Trainer::new(stages, squares, sgd, TrainOptions::default()).unwrap();
    let batch = Batch::new(&x).and(&mask).targets(&target);
    for schedule in [schedule::gpipe(3, 3), schedule::one_f_one_b(3, 3), schedule::zb_h1(3, 2)] {
        let schedule = schedule.unwrap();
        let before = trainer.stages().weights().unwrap();
        let done = trainer.step(&schedule, &batch).unwrap();
        let crossing = 3 * schedule.micro_batches();
        assert_eq!((done.report.activations(), done.report.gradients()), (crossing, crossing));
        assert!((done.loss - loss).abs() < 1e-5 * loss, "{} and {loss}", done.loss);
        for ((name, got), want) in trainer.gradients().unwrap().iter().zip(&want) {
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 2e-5;
            assert!(got.to_vec::<f64>().iter().zip(want).all(close), "{}: {name}", schedule.name());
        }
        trainer.stages().set_weights(&before).unwrap();
    }
}

fn weights_move_between_cuts_by_file() {
    let path = std::env::temp_dir().join(format!("wgrad-cut-{}.safetensors", std::process::id()));
    let model = model(false);
    let four = cut(&model, &fresh(4, cpu)).unwrap();
    let mut trainer = Trainer::new(four, loss(), sgd, TrainOptions::default()).unwrap();
    trainer.step(&schedule::gpipe(4, 2).unwrap(), &data(8, 0.0)).unwrap();
    trainer.stages().save(&path).unwrap();
    let x = fill(&[4, DIMS[0]], 1.0);
    let want = trainer.stages().forward(&x, 2).unwrap().0;
    for stages in 1..=3 {
        let fewer = cut(&model, &fresh(stages, cpu)).unwrap();
        assert_ne!(fewer.forward(&x, 2).unwrap().0, want);
        fewer.load(&path).unwrap();
        assert_eq!(fewer.forward(&x, 2).unwrap().0, want);
    }
    std::fs::remove_file(path).unwrap();
}

fn stages_may_share_a_context() {
    let (model, ctx) = (model(false), cpu());
    let mut losses = Vec::new();
    for contexts in [vec![ctx.clone(), ctx.clone(), ctx], fresh(3, cpu)] {
        let mut trainer =
            Trainer::new(cut(&model, &contexts).unwrap(), loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::one_f_one_b(3, 4).unwrap();
        let steps = (0..4).map(|s| trainer.step(&schedule, &data(8, s as f32)).unwrap().loss);
        losses.push(steps.collect::<Vec<f64>>());
    }
    assert_eq!(losses[0], losses[1]);
}
