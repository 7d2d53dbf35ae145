//! Several outputs where something else is going on: contracts, bytes, handovers in 16 bits, meshes.

use wgrad::nn::{Linear, Module, ParamSet, Rng};
use wgrad::pipeline::parallel::{ColumnLinear, RowLinear};
use wgrad::pipeline::{
    Batch, Contract, Function, Line, Mesh, MeshOptions, MeshTrainer, Payload, Report, Shard, Source,
    StageSpec, Stages, StepReport, TrainOptions, Trainer, schedule,
};
use wgrad::{Context, DType, ErrorKind, Result};

use super::several::{IN, Piece, ROWS, WIDTH, by_name, masked, pair, sgd, stages, stream};
use super::{Numbers, STEPS, fresh, loss, plain};
use crate::Subject;
use crate::devices::{self, cpu};
use crate::handles::tap::fill;

crate::suite![
    plain: outputs_that_do_not_fit_are_refused, what_crosses_is_what_is_taken;
    device: several_outputs_in_16_bits, several_outputs_over_a_mesh
];

fn outputs_that_do_not_fit_are_refused() {
    let (a, b) = (cpu(), cpu());
    let front = || {
        StageSpec::new("front", &a, |ctx: &Context| {
            let fc = Linear::new(ctx, "fc1", 3, 5, Rng::seed(5))?;
            let params = fc.params();
            Ok(Function::several(params, move |x| {
                let h = fc.forward(x[0]);
                Ok(vec![h, h.try_narrow(1, 0, 2)?])
            }))
        })
        .takes(Source::Batch(0), Contract::new([3], DType::F32))
    };
    let of = |size: usize| Contract::new([size], DType::F32);
    let back =
        || StageSpec::new("back", &b, |_: &Context| Ok(Function::new(ParamSet::default(), |x| Ok(x[0]))));
    let refused = |specs: Vec<StageSpec<'_>>, kind: ErrorKind, words: &[&str]| {
        let error = Stages::build(specs).expect_err("they do not fit");
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is missing: {text}");
        }
    };
    let both = ["stage 1 (`back`", "stage 0 (`front`"];
    let second = "as output 1";
    let spec = back().takes(Source::Stage(0), of(5)).takes(Source::Output(0, 1), of(3));
    refused(vec![front(), spec], ErrorKind::Shape, &[both[0], both[1], second]);
    let spec =
        back().takes(Source::Stage(0), of(5)).takes(Source::Output(0, 1), Contract::new([2], DType::F16));
    refused(vec![front(), spec], ErrorKind::DType, &[both[0], both[1], second]);
    let no_gradient = front().gives(of(5)).gives(Contract::data([2], DType::F32));
    let spec = back().takes(Source::Stage(0), of(5)).takes(Source::Output(0, 1), of(2));
    refused(vec![no_gradient, spec], ErrorKind::Gradient, &[both[0], both[1], second]);
    let spec = back().takes(Source::Output(0, 2), of(2));
    refused(vec![front(), spec], ErrorKind::Argument, &[both[0], both[1], "takes output 2", "gives 2"]);
    let spec = back().takes(Source::Stage(0), of(5)).takes(Source::Output(0, 0), of(5));
    refused(vec![front(), spec], ErrorKind::Argument, &[both[0], both[1], "as output 0 twice"]);
    let spec = back().takes(Source::Output(1, 0), of(5));
    refused(vec![front(), spec], ErrorKind::Argument, &["stage 1", "no earlier one"]);
    refused(
        vec![front(), back().takes(Source::Stage(0), of(5))],
        ErrorKind::Argument,
        &["nobody takes", both[1], second],
    );
    let spec = back().takes(Source::Output(0, 1), of(2));
    refused(vec![front(), spec], ErrorKind::Argument, &["nobody takes", both[1], "as output 0"]);
    // The last stage gives the model's output, and nothing beside it.
    refused(vec![front()], ErrorKind::Argument, &["nobody takes", second, "the first output alone"]);
    refused(vec![front().gives(of(5))], ErrorKind::Argument, &[both[1], "1 outputs", "gives 2"]);
    refused(
        vec![front().gives(of(5)).gives(of(3))],
        ErrorKind::Shape,
        &[both[1], "should give", "f32 [3]", second],
    );
    refused(
        vec![front(), StageSpec::new("back", &b, |ctx| Linear::new(ctx, "fc2", 5, 2, Rng::seed(5)))],
        ErrorKind::Argument,
        &[both[0], both[1], "output 1 of", "one input, not 2"],
    );
    let none = StageSpec::new("none", &a, |_: &Context| {
        Ok(Function::several(ParamSet::default(), |_| Ok(Vec::new())))
    });
    refused(vec![none.takes(Source::Batch(0), of(3))], ErrorKind::Argument, &["stage 0 (`none`", "nothing"]);
    let whole = StageSpec::new("whole", &a, |_: &Context| {
        Ok(Function::several(ParamSet::default(), |x| Ok(vec![x[0], x[0].try_sum(..)?])))
    });
    refused(vec![whole.takes(Source::Batch(0), of(3))], ErrorKind::Shape, &["`whole`", second, "first axis"]);
    // A block that changes its mind.
    let fickle = StageSpec::new("fickle", &a, |_: &Context| {
        Ok(Function::several(ParamSet::default(), |x| {
            let rows = x[0].shape()[0];
            Ok(if rows == 2 { vec![x[0], x[0]] } else { vec![x[0]] })
        }))
    });
    let spec = back().takes(Source::Stage(0), of(3)).takes(Source::Output(0, 1), of(3));
    let built = Stages::build(vec![fickle.takes(Source::Batch(0), of(3)), spec]).unwrap();
    built.forward(&fill(&[4, 3], 0.0), 2).unwrap();
    let error = built.forward(&fill(&[3, 3], 0.0), 1).unwrap_err();
    assert!(
        error.to_string().contains("stage 0 (`fickle`") && error.to_string().contains("1 outputs"),
        "{error}"
    );
}

/// Bytes by way: what is taken and nothing else, and gradients of what learns alone.
fn what_crosses_is_what_is_taken() {
    let bytes = |pieces: &[Piece]| {
        let stages = stages(pieces, &fresh(3, cpu), &[false; 3]).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let (x, t) = pair(ROWS, 0);
        let report: Report =
            trainer.step(&schedule::one_f_one_b(3, 4).unwrap(), &Batch::new(&x).targets(&t)).unwrap().report;
        let edges = report.edges().into_iter();
        edges.map(|e| (e.payload, e.from, e.to, e.count, e.bytes)).collect::<Vec<_>>()
    };
    let one = (4 * ROWS * WIDTH) as u64;
    let (there, back) = (Payload::Activation, Payload::Gradient);
    let streamed = [
        (there, 0, 1, 4, 2 * one),
        (there, 1, 2, 4, 2 * one),
        (back, 1, 0, 4, 2 * one),
        (back, 2, 1, 4, 2 * one),
    ];
    assert_eq!(bytes(&stream()), streamed);
    let truth = (ROWS * WIDTH * DType::Bool.bytes()) as u64;
    let masks = [
        (there, 0, 1, 4, 2 * one),
        (there, 0, 2, 4, truth + one),
        (there, 1, 2, 4, one),
        (back, 1, 0, 4, one),
        (back, 2, 1, 4, one),
    ];
    assert_eq!(bytes(&masked()), masks);
}

/// Both values of the stream are rounded, within a device neither is; the mask of truth stays as it is.
fn several_outputs_in_16_bits(on: &Subject) {
    let run = |pieces: &[Piece], dtype: DType, places: &[usize]| {
        let mut stages = stages(pieces, &[on.context(), cpu(), on.context()], &[false, true, false]).unwrap();
        stages.set_handover(dtype).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let schedule = schedule::one_f_one_b(3, 2).unwrap().placed(places).unwrap();
        let (x, t) = pair(ROWS, 0);
        trainer.step(&schedule, &Batch::new(&x).targets(&t)).unwrap()
    };
    for places in [[0, 1, 2], [0, 0, 1], [0, 1, 1]] {
        let (half, whole) = (run(&stream(), DType::BF16, &places), run(&stream(), DType::F32, &places));
        assert_eq!(2 * half.report.bytes(), whole.report.bytes(), "{places:?}");
        assert_eq!(
            (half.report.local, whole.report.local),
            (if places[2] == 2 { 0 } else { 4 }, half.report.local)
        );
        let error = half.report.handover_error().expect("it was rounded");
        assert!(error > 1e-5 && error <= 1.0001 * 2f64.powi(-8), "{places:?}: {error:e}");
        assert!((half.loss - whole.loss).abs() < 0.05 * whole.loss, "{} and {}", half.loss, whole.loss);
    }
    let (half, whole) = (run(&masked(), DType::BF16, &[0, 1, 2]), run(&masked(), DType::F32, &[0, 1, 2]));
    // Of the first and the last way all, of the one between nothing.
    let edges = |done: &StepReport| done.report.edges().iter().map(|e| e.bytes).collect::<Vec<_>>();
    let (half, whole) = (edges(&half), edges(&whole));
    assert_eq!(half, [whole[0] / 2, whole[1], whole[2] / 2, whole[3] / 2, whole[4] / 2]);
}

/// Two replicas of two shards of two stages: a split block, beside which its input goes on.
fn several_outputs_over_a_mesh(on: &Subject) {
    const HIDDEN: usize = 7;
    let build = |contexts: &[Context], shard: &Shard| {
        let (s, width) = (shard.clone(), Contract::new([WIDTH], DType::F32));
        let split = move |ctx: &Context| -> Result<(ColumnLinear, RowLinear)> {
            let up = ColumnLinear::new(ctx, "up", WIDTH, HIDDEN, Rng::seed(5), &s)?;
            Ok((up, RowLinear::new(ctx, "down", HIDDEN, WIDTH, Rng::seed(5), &s)?))
        };
        let front = StageSpec::new("front", &contexts[0], move |ctx: &Context| {
            let fc = Linear::new(ctx, "fc", IN, WIDTH, Rng::seed(5))?;
            let (up, down) = split(ctx)?;
            let params = [fc.params(), up.params(), down.params()].into_iter().flatten().collect();
            Ok(Function::several(params, move |x| {
                let a = fc.forward(x[0]).try_tanh()?;
                Ok(vec![down.forward(up.forward(a).try_tanh()?), a])
            }))
        });
        let s = shard.clone();
        let back = StageSpec::new("back", &contexts[1], move |ctx: &Context| {
            let head = ColumnLinear::new(ctx, "head", WIDTH, WIDTH, Rng::seed(5), &s)?.gathered();
            let params = head.params();
            Ok(Function::several(params, move |x| Ok(vec![head.forward(x[0].try_add(x[1])?)])))
        });
        let back = back.takes(Source::Stage(0), width).takes(Source::Output(0, 1), width);
        Stages::build(vec![front.takes(Source::Batch(0), Contract::new([IN], DType::F32)), back])
    };
    let train = |replicas: usize, shards: usize, again: bool, open: &dyn Fn() -> Context| {
        let axes = [("stage", 2), ("replica", replicas), ("shard", shards)];
        let mesh = Mesh::new(axes, &fresh(2 * replicas * shards, open)).unwrap();
        let line = |line: &Line| build(line.contexts(), line.shard())?.recomputing(&[again, false]);
        let mut trainer = MeshTrainer::new(&mesh, line, loss(), sgd, MeshOptions::default()).unwrap();
        let mut numbers = Numbers::default();
        let schedule = schedule::one_f_one_b(2, 4 / replicas).unwrap();
        for step in 0..STEPS {
            let (x, t) = pair(ROWS, step);
            let done = trainer.step(&schedule, &Batch::new(&x).targets(&t)).unwrap();
            for report in &done.lines {
                let each = schedule.micro_batches();
                assert_eq!((report.activations(), report.gradients()), (each, each));
            }
            numbers.losses.push(done.loss);
            numbers.gradients.push(by_name(plain(trainer.gradients().unwrap())));
        }
        numbers.weights = by_name(plain(trainer.weights().unwrap()));
        numbers
    };
    let one = train(1, 1, false, &devices::oracle);
    for (replicas, shards) in [(2, 1), (1, 2), (2, 2)] {
        for again in [false, true] {
            let off = train(replicas, shards, again, &|| on.context()).difference(&one);
            assert!(off < 4e-5, "{replicas} replicas, {shards} shards: {off:e}");
        }
    }
}
