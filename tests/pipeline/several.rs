//! Stages that give several outputs: what goes on beside the main value, skips over every balance, masks.

use wgrad::nn::{Linear, Module, Optimizer, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Batch, Contract, Function, Schedule, Source, StageSpec, Stages, TrainOptions, Trainer, schedule,
};
use wgrad::{Context, DType, GradSum, HostTensor, Param, Result, Tensor, pipeline};

use super::{Numbers, STEPS, fresh, loss, plain, rows_of, schedules};
use crate::Subject;
use crate::devices::{self, cpu};
use crate::handles::tap::fill;

crate::suite![
    plain: an_output_without_use_has_no_gradient,
        the_first_output_is_the_models;
    device: a_residual_stream_crosses_two_cuts, a_skip_over_every_balance, two_skips_from_one_value,
        a_mask_is_taken_without_gradient
];

pub(super) const IN: usize = 6;
pub(super) const WIDTH: usize = 5;
pub(super) const ROWS: usize = 8;

type Forward = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A stage: its parameters, what it computes of what it takes.
pub(super) struct Piece {
    fcs: &'static [(&'static str, usize)],
    takes: Vec<(Source, Contract)>,
    f: fn(&[Linear], &[Tensor]) -> Result<Vec<Tensor>>,
}

/// A piece with layers from these widths to [`WIDTH`].
fn piece(
    fcs: &'static [(&'static str, usize)],
    takes: &[Source],
    f: fn(&[Linear], &[Tensor]) -> Result<Vec<Tensor>>,
) -> Piece {
    let contract = |source: &Source| match source {
        Source::Batch(_) => Contract::new([IN], DType::F32),
        _ => hidden(),
    };
    Piece { fcs, takes: takes.iter().map(|s| (*s, contract(s))).collect(), f }
}

fn hidden() -> Contract {
    Contract::new([WIDTH], DType::F32)
}

impl Piece {
    fn build(&self, ctx: &Context) -> Result<(ParamSet, Forward)> {
        let fcs = self.fcs.iter().map(|(name, from)| Linear::new(ctx, name, *from, WIDTH, Rng::seed(5)));
        let fcs: Vec<Linear> = fcs.collect::<Result<_>>()?;
        let (params, f) = (fcs.iter().flat_map(Module::params).collect(), self.f);
        Ok((params, Box::new(move |x| f(&fcs, x))))
    }
}

pub(super) fn stages(pieces: &[Piece], contexts: &[Context], again: &[bool]) -> Result<Stages> {
    let specs = pieces.iter().zip(contexts).enumerate().map(|(i, (piece, ctx))| {
        let spec = StageSpec::new(format!("s{i}"), ctx, move |ctx: &Context| {
            let (params, forward) = piece.build(ctx)?;
            Ok(Function::several(params, forward))
        });
        piece.takes.iter().fold(spec, |spec, (source, contract)| spec.takes(*source, *contract))
    });
    Stages::build(specs.collect())?.recomputing(again)
}

pub(super) fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

pub(super) fn pair(rows: usize, step: usize) -> (HostTensor, HostTensor) {
    let labels: Vec<i32> = (0..rows as i32).map(|i| (i * 7 + step as i32) % WIDTH as i32).collect();
    (fill(&[rows, IN], step as f32), HostTensor::new([rows], &labels).unwrap())
}

pub(super) fn by_name(mut all: Vec<(String, Vec<f64>)>) -> Vec<(String, Vec<f64>)> {
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// All pieces one after the other in one pass of one context.
fn in_one(pieces: &[Piece], ctx: &Context, sizes: &[usize]) -> Numbers {
    let built: Vec<(ParamSet, Forward)> = pieces.iter().map(|p| p.build(ctx).unwrap()).collect();
    let params: ParamSet = built.iter().flat_map(|(p, _)| p.iter().cloned()).collect();
    let (mut opt, sum) = (sgd(params.clone()).unwrap(), GradSum::new(ctx, params.iter()).unwrap());
    let forward = |x: Tensor| -> Result<Tensor> {
        let mut given: Vec<Vec<Tensor>> = Vec::new();
        for (piece, (_, f)) in pieces.iter().zip(&built) {
            let mut inputs = Vec::new();
            for (source, contract) in &piece.takes {
                let value = match *source {
                    Source::Batch(_) => x,
                    Source::Stage(s) => given[s][0],
                    Source::Output(s, o) => given[s][o],
                };
                inputs.push(if contract.gradient { value } else { value.try_detach()? });
            }
            given.push(f(&inputs)?);
        }
        Ok(given[pieces.len() - 1][0])
    };
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let (x, t) = pair(ROWS, step);
        let (mut start, mut total) = (0, 0.0);
        for size in sizes {
            let pass = ctx.begin().unwrap();
            pass.place(step as u64, start).unwrap();
            let part = |x: &HostTensor| pass.input(rows_of(x, start, *size)).unwrap();
            let value = forward(part(&x)).unwrap().cross_entropy(part(&t));
            let share = if *size == ROWS { value } else { value * (*size as f64 / ROWS as f64) };
            sum.add(&share.backward().unwrap()).unwrap();
            let share = share.deferred::<f64>();
            pass.end().unwrap();
            total += share.get().unwrap();
            start += size;
        }
        let mut gradients = Vec::new();
        ctx.pass(|_| {
            let grads = sum.take()?;
            for p in params.iter() {
                let g = grads.get(p).expect("every parameter has a gradient");
                gradients.push((p.name().to_owned(), g.to_vec::<f64>()?));
            }
            opt.step(&grads).map(|_| ())
        })
        .unwrap();
        numbers.losses.push(total);
        numbers.gradients.push(by_name(gradients));
    }
    let weight = |p: &Param| (p.name().to_owned(), p.read().unwrap().to_vec::<f64>());
    numbers.weights = by_name(params.iter().map(weight).collect());
    numbers
}

/// Over several contexts; every edge is crossed once a micro-batch, forward and, where it learns, backward.
fn in_stages(pieces: &[Piece], contexts: &[Context], again: &[bool], schedule: &Schedule) -> Numbers {
    let stages = stages(pieces, contexts, again).unwrap();
    let due = stages.edges().iter().map(|e| 1 + usize::from(e.gradient)).sum::<usize>();
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let (x, t) = pair(ROWS, step);
        let done = trainer.step(schedule, &Batch::new(&x).targets(&t)).unwrap();
        let report = &done.report;
        assert!(done.applied && done.loss.is_finite());
        assert_eq!(report.handovers.len() + report.local, due * schedule.micro_batches());
        assert_eq!(report.handovers.len(), report.schedule.messages().len());
        numbers.losses.push(done.loss);
        numbers.gradients.push(by_name(plain(trainer.gradients().unwrap())));
    }
    numbers.weights = by_name(plain(trainer.stages().weights().unwrap()));
    numbers
}

/// The bits of one device on the CPU executor, with every schedule, also where the middle stage computes its forward pass
/// again; close to the oracle over devices of several kinds. `undivided` is the same model.
fn agree(on: &Subject, which: &str, pieces: &[Piece], undivided: &[Piece]) {
    let stages = pieces.len();
    let middle: Vec<bool> = (0..stages).map(|s| s == stages / 2).collect();
    let choices = [vec![false; stages], middle, vec![true; stages]];
    for micro_batches in [1, 3, 4] {
        let sizes = schedule::split_batch(ROWS, micro_batches).unwrap();
        let one = in_one(undivided, &cpu(), &sizes);
        let exact = in_one(undivided, &devices::oracle(), &sizes);
        for (i, schedule) in schedules(stages, micro_batches).into_iter().enumerate() {
            for again in &choices {
                let what = format!("{which}, {}, {micro_batches} parts, {again:?}", schedule.name());
                if !on.is_vulkan() {
                    assert_eq!(in_stages(pieces, &fresh(stages, cpu), again, &schedule), one, "{what}");
                }
            }
            let contexts: Vec<Context> =
                (0..stages).map(|s| if (s + i).is_multiple_of(2) { on.context() } else { cpu() }).collect();
            let off = in_stages(pieces, &contexts, &choices[i % 3], &schedule).difference(&exact);
            assert!(off <= 4e-5, "{which}, {}, {micro_batches} parts: {off:e}", schedule.name());
        }
    }
}

/// `a` goes on beside what is made of it, over both cuts.
pub(super) fn stream() -> [Piece; 3] {
    [
        piece(&[("a", IN), ("b", WIDTH)], &[Source::Batch(0)], |l, x| {
            let a = l[0].forward(x[0]);
            Ok(vec![l[1].forward(a).try_tanh()?, a])
        }),
        piece(&[("c", WIDTH)], &[Source::Stage(0), Source::Output(0, 1)], |l, x| {
            Ok(vec![l[0].forward(x[0]).try_tanh()?, x[1]])
        }),
        piece(&[("d", WIDTH)], &[Source::Stage(1), Source::Output(1, 1)], |l, x| {
            Ok(vec![l[0].forward(x[0].try_add(x[1])?)])
        }),
    ]
}

fn a_residual_stream_crosses_two_cuts(on: &Subject) {
    let pieces = stream();
    agree(on, "as it is", &pieces, &pieces);
    // Without a word of what it takes a stage takes all of the one before, in order.
    let [mut a, mut b, mut c] = stream();
    (b.takes, c.takes) = (Vec::new(), Vec::new());
    let built = stages(&[a, b, c], &fresh(3, cpu), &[false; 3]).unwrap();
    assert_eq!(built.edges(), stages(&pieces, &fresh(3, cpu), &[false; 3]).unwrap().edges());
    assert!(built.to_string().contains("(Output(1, 1))"), "{built}");
    // It may take them in another order than they are given.
    [a, b, c] = stream();
    b.takes.reverse();
    b.f = |l, x| Ok(vec![x[0], l[0].forward(x[1]).try_tanh()?]);
    c.takes.reverse();
    agree(on, "in another order", &[a, b, c], &pieces);
}

/// Three layers, the third of the first two: `fc3(tanh(fc2(y)) + y)` with `y = tanh(fc1(x))`.
fn skips() -> Vec<(&'static str, Vec<Piece>)> {
    let front = |f| piece(&[("1", IN)], &[Source::Batch(0)], f);
    let first = || front(|l, x| Ok(vec![l[0].forward(x[0]).try_tanh()?]));
    let last =
        |from: &[Source]| piece(&[("3", WIDTH)], from, |l, x| Ok(vec![l[0].forward(x[0].try_add(x[1])?)]));
    vec![
        (
            "3",
            vec![piece(&[("1", IN), ("2", WIDTH), ("3", WIDTH)], &[Source::Batch(0)], |l, x| {
                let y = l[0].forward(x[0]).try_tanh()?;
                Ok(vec![l[2].forward(l[1].forward(y).try_tanh()?.try_add(y)?)])
            })],
        ),
        (
            "1:2",
            vec![
                first(),
                piece(&[("2", WIDTH), ("3", WIDTH)], &[Source::Stage(0)], |l, x| {
                    Ok(vec![l[1].forward(l[0].forward(x[0]).try_tanh()?.try_add(x[0])?)])
                }),
            ],
        ),
        (
            "2:1",
            vec![
                piece(&[("1", IN), ("2", WIDTH)], &[Source::Batch(0)], |l, x| {
                    let y = l[0].forward(x[0]).try_tanh()?;
                    Ok(vec![l[1].forward(y).try_tanh()?, y])
                }),
                last(&[Source::Stage(0), Source::Output(0, 1)]),
            ],
        ),
        (
            "1:1:1, passed on",
            vec![
                first(),
                piece(&[("2", WIDTH)], &[Source::Stage(0)], |l, x| {
                    Ok(vec![l[0].forward(x[0]).try_tanh()?, x[0]])
                }),
                last(&[Source::Stage(1), Source::Output(1, 1)]),
            ],
        ),
        (
            "1:1:1, over the stage between",
            vec![
                // Of one value two outputs.
                front(|l, x| {
                    let y = l[0].forward(x[0]).try_tanh()?;
                    Ok(vec![y, y])
                }),
                piece(&[("2", WIDTH)], &[Source::Stage(0)], |l, x| Ok(vec![l[0].forward(x[0]).try_tanh()?])),
                last(&[Source::Stage(1), Source::Output(0, 1)]),
            ],
        ),
    ]
}

fn a_skip_over_every_balance(on: &Subject) {
    let all = skips();
    for (balance, pieces) in &all {
        agree(on, balance, pieces, &all[0].1);
    }
}

/// `v` goes to three stages, to the next beside another value.
fn two_skips_from_one_value(on: &Subject) {
    let skip = |takes: &[Source], name| {
        piece(name, takes, |l, x| Ok(vec![l[0].forward(x[0]).try_tanh()?.try_add(x[1])?]))
    };
    let pieces = |second: usize, front: fn(&[Linear], &[Tensor]) -> Result<Vec<Tensor>>| {
        [
            piece(&[("a", IN), ("b", WIDTH)], &[Source::Batch(0)], front),
            skip(&[Source::Stage(0), Source::Output(0, 1)], &[("c", WIDTH)]),
            skip(&[Source::Stage(1), Source::Output(0, 1)], &[("d", WIDTH)]),
            skip(&[Source::Stage(2), Source::Output(0, second)], &[("e", WIDTH)]),
        ]
    };
    let shared = pieces(1, |l, x| {
        let v = l[0].forward(x[0]).try_tanh()?;
        Ok(vec![l[1].forward(v), v])
    });
    let built = stages(&shared, &fresh(4, cpu), &[false; 4]).unwrap();
    assert_eq!(built.edges().len(), 5, "what goes together is one edge");
    agree(on, "one output", &shared, &shared);
    let twice = pieces(2, |l, x| {
        let v = l[0].forward(x[0]).try_tanh()?;
        Ok(vec![l[1].forward(v), v, v])
    });
    agree(on, "two outputs", &twice, &shared);
}

/// Where the inputs are positive, in bits of three kinds: of floats, of integers, of truth.
pub(super) fn masked() -> [Piece; 3] {
    let mut pieces = [
        piece(&[("a", IN), ("b", IN)], &[Source::Batch(0)], |l, x| {
            let keep = l[1].forward(x[0]).try_detach()?.try_abs()?.try_gt(-1.0)?;
            let some = x[0].try_narrow(1, 0, WIDTH)?.try_gt(0.0)?;
            let h = l[0].forward(x[0]).try_add(l[1].forward(x[0]))?;
            Ok(vec![h, some.try_cast(DType::F32)?, some, keep.try_cast(DType::I32)?])
        }),
        piece(&[("c", WIDTH)], &[Source::Stage(0), Source::Output(0, 1)], |l, x| {
            Ok(vec![l[0].forward(x[0].try_mul(x[1])?).try_tanh()?])
        }),
        piece(&[("d", WIDTH)], &[Source::Output(0, 2), Source::Stage(1), Source::Output(0, 3)], |l, x| {
            let y = x[0].try_select(x[1], 0.5)?.try_mul(x[2].try_cast(DType::F32)?)?;
            Ok(vec![l[0].forward(y)])
        }),
    ];
    pieces[1].takes[1].1 = Contract::data([WIDTH], DType::F32);
    pieces[2].takes[0].1 = Contract::data([WIDTH], DType::Bool);
    pieces[2].takes[2].1 = Contract::data([WIDTH], DType::I32);
    pieces
}

fn a_mask_is_taken_without_gradient(on: &Subject) {
    let pieces = masked();
    let gradients: Vec<bool> =
        stages(&pieces, &fresh(3, cpu), &[false; 3]).unwrap().edges().iter().map(|e| e.gradient).collect();
    assert_eq!(gradients, [true, false, true]);
    agree(on, "as it is", &pieces, &pieces);
}

/// What is taken with gradient and not used gets zeros.
fn an_output_without_use_has_no_gradient() {
    let [a, mut b, mut c] = stream();
    b.f = |l, x| Ok(vec![l[0].forward(x[0]).try_tanh()?, x[1].try_mul(2.0)?]);
    c.f = |l, x| Ok(vec![l[0].forward(x[0])]);
    let pieces = [a, b, c];
    let sizes = schedule::split_batch(ROWS, 3).unwrap();
    let one = in_one(&pieces, &cpu(), &sizes);
    for schedule in schedules(3, 3) {
        for again in [[false; 3], [true; 3]] {
            assert_eq!(in_stages(&pieces, &fresh(3, cpu), &again, &schedule), one, "{}", schedule.name());
        }
    }
}

fn the_first_output_is_the_models() {
    let pieces = stream();
    let built = stages(&pieces, &fresh(3, cpu), &[false; 3]).unwrap();
    let (x, _) = pair(ROWS, 0);
    let (y, report) = built.forward(&x, 4).unwrap();
    assert_eq!((y.shape().dims(), report.activations(), report.gradients()), (&[ROWS, WIDTH][..], 8, 0));
    let ctx = cpu();
    let parts = pieces.each_ref().map(|p| p.build(&ctx).unwrap().1);
    let want = ctx.pass(|p| {
        let given = parts[1](&parts[0](&[p.input(&x)?])?)?;
        parts[2](&given)?[0].to_vec::<f32>()
    });
    assert_eq!(y.to_vec::<f32>(), want.unwrap());
    // A block alone gives its first output, or all.
    let both = Function::several(ParamSet::default(), |x| Ok(vec![x[0].try_neg()?, x[0]]));
    ctx.pass(|p| {
        let x = p.input(&x)?;
        assert_eq!(pipeline::Block::forward_all(&both, &[x])?.len(), 2);
        assert_eq!(pipeline::Block::forward(&both, &[x])?.to_vec::<f32>()?, (-x).to_vec::<f32>()?);
        Ok(())
    })
    .unwrap();
}
