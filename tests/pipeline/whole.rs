//! All at once: dropout, tied weights, skips, uneven micro-batches, stages that compute their forward pass again.

use std::sync::Arc;
use std::time::Duration;

use wgrad::nn::{Adam, AdamConfig, Linear, Module, Optimizer, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Batch, Contract, Function, Schedule, Source, StageSpec, Stages, TrainOptions, Trainer, partition,
    schedule,
};
use wgrad::{Context, DType, GradSum, HostTensor, Param, Result, Tensor};

use super::{Numbers, STEPS, fresh, loss, plain, rows_of, schedules};
use crate::Subject;
use crate::devices::{self, cpu};
use crate::handles::tap::{Tap, fill};

crate::suite![
    plain: whatever_is_mixed_gives_the_bits_of_one_device, a_partition_says_which_stages_compute_again,
        computing_again_takes_the_predicted_time;
    device: devices_of_several_kinds_compute_again, computing_again_holds_inputs_and_one_working_set
];

const IN: usize = 6;
const WIDTH: usize = 5;
const ROWS: usize = 8;

type Forward = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;

/// Parameters and what is computed with them.
struct Part(ParamSet, Forward);

impl Part {
    fn block(self) -> Function<Forward> {
        Function::new(self.0, self.1)
    }
}

fn table(ctx: &Context, name: &str) -> Result<Param> {
    Param::new(ctx, name, fill(&[IN, WIDTH], 0.3))
}

/// The inputs times a table.
fn a(table: Param) -> Part {
    let params = [table.clone()].into_iter().collect();
    Part(params, Box::new(move |x| x[0].try_matmul(table.t())?.try_tanh()?.try_dropout("drop.a", 0.3)))
}

fn b(ctx: &Context) -> Result<Part> {
    let fc = Linear::new(ctx, "fc1", WIDTH, WIDTH, Rng::seed(5))?;
    Ok(Part(fc.params(), Box::new(move |x| fc.forward(x[0]).try_tanh())))
}

/// Takes what `b` and what `a` gives.
fn c(ctx: &Context) -> Result<Part> {
    let fc = Linear::new(ctx, "fc2", WIDTH, WIDTH, Rng::seed(5))?;
    Ok(Part(fc.params(), Box::new(move |x| fc.forward(x[0]).try_dropout("drop.c", 0.3)?.try_add(x[1]))))
}

/// The table again, the other way round.
fn d(table: Param) -> Result<Part> {
    let bias = Param::new(table.context(), "bias", fill(&[IN], 0.7))?;
    let params = [table.clone(), bias.clone()].into_iter().collect();
    let forward = move |x: &[Tensor]| x[0].try_matmul(table.t().try_transpose(0, 1)?)?.try_add(bias.t());
    Ok(Part(params, Box::new(forward)))
}

/// `c` after `b`, of what `a` gives.
fn bc(ctx: &Context) -> Result<Part> {
    let (Part(mut params, b), Part(more, c)) = (b(ctx)?, c(ctx)?);
    params.extend(more);
    Ok(Part(params, Box::new(move |x| c(&[b(x)?, x[0]]))))
}

fn then(first: Part, second: Part) -> Part {
    let (Part(mut params, first), Part(more, second)) = (first, second);
    params.extend(more);
    Part(params, Box::new(move |x| second(&[first(x)?])))
}

/// 1 to 4 stages: with three or four of them a skip crosses a stage; with two and more the table has a copy.
fn stages(contexts: &[Context], again: &[bool]) -> Result<Stages> {
    let (input, hidden) = (Contract::new([IN], DType::F32), Contract::new([WIDTH], DType::F32));
    let spec = |i: usize, name: &str, build: fn(&Context) -> Result<Part>| {
        let spec = StageSpec::new(name, &contexts[i], move |ctx: &Context| Ok(build(ctx)?.block()));
        if i == 0 { spec.takes(Source::Batch(0), input) } else { spec }
    };
    let front: fn(&Context) -> Result<Part> = |ctx| Ok(a(table(ctx, "table")?));
    let head: fn(&Context) -> Result<Part> = |ctx| d(table(ctx, "head")?);
    let skips =
        |spec: StageSpec<'static>| spec.takes(Source::Stage(1), hidden).takes(Source::Stage(0), hidden);
    let specs = match contexts.len() {
        1 => vec![spec(0, "abcd", |ctx| {
            let table = table(ctx, "table")?;
            Ok(then(then(a(table.clone()), bc(ctx)?), d(table)?))
        })],
        2 => vec![spec(0, "a", front), spec(1, "bcd", |ctx| Ok(then(bc(ctx)?, d(table(ctx, "head")?)?)))],
        3 => vec![
            spec(0, "a", front),
            spec(1, "b", b),
            skips(spec(2, "cd", |ctx| Ok(then(c(ctx)?, d(table(ctx, "head")?)?)))),
        ],
        _ => vec![spec(0, "a", front), spec(1, "b", b), skips(spec(2, "c", c)), spec(3, "d", head)],
    };
    let stages = Stages::build(specs)?.recomputing(again)?;
    if contexts.len() == 1 { Ok(stages) } else { stages.tie(&["table", "head"]) }
}

/// A trainer of all this, with SGD.
pub(super) fn trainer(count: usize, again: &[bool]) -> Trainer {
    let stages = stages(&fresh(count, cpu), again).unwrap();
    Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap()
}

/// The batch of a step.
pub(super) fn batch(step: usize) -> Batch {
    let (x, t) = pair(ROWS, step);
    Batch::new(&x).targets(&t)
}

fn pair(rows: usize, step: usize) -> (HostTensor, HostTensor) {
    let labels: Vec<i32> = (0..rows as i32).map(|i| (i * 5 + step as i32) % IN as i32).collect();
    (fill(&[rows, IN], step as f32), HostTensor::new([rows], &labels).unwrap())
}

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

fn adam(params: ParamSet) -> Result<Adam> {
    Adam::new(params, AdamConfig { lr: 0.02, ..Default::default() })
}

fn in_stages<O: Optimizer + Send + 'static>(
    contexts: &[Context],
    again: &[bool],
    schedule: &Schedule,
    optimizer: fn(ParamSet) -> Result<O>,
) -> Numbers {
    let stages = stages(contexts, again).unwrap();
    let mut trainer = Trainer::new(stages, loss(), optimizer, TrainOptions::default()).unwrap();
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let done = trainer.step(schedule, &batch(step)).unwrap();
        assert!(done.applied && done.loss.is_finite());
        let computed: Vec<bool> = done.report.again.iter().map(Option::is_some).collect();
        assert_eq!(computed, again);
        numbers.losses.push(done.loss);
        numbers.gradients.push(by_name(plain(trainer.gradients().unwrap())));
    }
    numbers.weights = by_name(plain(trainer.stages().weights().unwrap()));
    numbers
}

fn by_name(mut all: Vec<(String, Vec<f64>)>) -> Vec<(String, Vec<f64>)> {
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// One context. With `copies` the head has a table of its own, whose gradients are summed apart, as stages do; else both
/// uses are of one parameter.
fn in_one<O: Optimizer>(
    ctx: &Context,
    sizes: &[usize],
    copies: bool,
    optimizer: fn(ParamSet) -> Result<O>,
) -> Result<Numbers> {
    let first = table(ctx, "table")?;
    let second = if copies { table(ctx, "head")? } else { first.clone() };
    let Part(params, forward) = then(then(a(first.clone()), bc(ctx)?), d(second.clone())?);
    let (mut opt, sum) = (optimizer(params.clone())?, GradSum::new(ctx, params.iter())?);
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let (x, t) = pair(ROWS, step);
        let (mut start, mut total) = (0, 0.0);
        for size in sizes {
            let pass = ctx.begin()?;
            pass.place(step as u64, start)?;
            let part = |x: &HostTensor| rows_of(x, start, *size);
            let value = forward(&[pass.input(part(&x))?])?.cross_entropy(pass.input(part(&t))?);
            let share = if *size == ROWS { value } else { value * (*size as f64 / ROWS as f64) };
            sum.add(&share.backward()?)?;
            let share = share.deferred::<f64>();
            pass.end()?;
            total += share.get()?;
            start += size;
        }
        let mut gradients = Vec::new();
        ctx.pass(|_| {
            let grads = sum.take()?;
            let own = |p: &Param| grads.get(p).expect("every parameter has a gradient");
            for p in params.iter() {
                gradients.push((p.name().to_owned(), own(p).to_vec::<f64>()?));
            }
            let both = own(&first).try_add(own(&second))?;
            let tied = |p: &Param| copies && (p.id() == first.id() || p.id() == second.id());
            let grads = params.iter().map(|p| (p.id(), if tied(p) { both } else { own(p) })).collect();
            opt.step(&grads).map(|_| ())
        })?;
        numbers.losses.push(total);
        numbers.gradients.push(by_name(gradients));
    }
    let weights = params.iter().filter(|p| p.name() != "head");
    let weight = |p: &Param| Ok((p.name().to_owned(), p.read()?.to_vec::<f64>()));
    numbers.weights = by_name(weights.map(weight).collect::<Result<_>>()?);
    Ok(numbers)
}

/// None, some in two ways, all.
fn choices(stages: usize) -> Vec<Vec<bool>> {
    let odd = |turn: usize| (0..stages).map(|s| (s + turn).is_multiple_of(2)).collect();
    vec![vec![false; stages], odd(0), odd(1), vec![true; stages]]
}

/// On the CPU executor: 1 to 4 stages, 1 to 8 micro-batches, every schedule, two optimizers.
fn whatever_is_mixed_gives_the_bits_of_one_device() {
    for micro_batches in 1..=8 {
        let sizes = schedule::split_batch(ROWS, micro_batches).unwrap();
        // A parameter with two uses in one pass sums them in each micro-batch; copies sum theirs apart.
        let shared = in_one(&cpu(), &sizes, false, sgd).unwrap();
        let one = in_one(&cpu(), &sizes, true, sgd).unwrap();
        let off = one.losses.iter().zip(&shared.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-5, "{off}");
        let shared_adam = in_one(&cpu(), &sizes, false, adam).unwrap();
        let one_adam = in_one(&cpu(), &sizes, true, adam).unwrap();
        for stages in 1..=4 {
            let (want, want_adam) = if stages == 1 { (&shared, &shared_adam) } else { (&one, &one_adam) };
            for (turn, schedule) in schedules(stages, micro_batches).into_iter().enumerate() {
                for (i, again) in choices(stages).into_iter().enumerate() {
                    let what =
                        format!("{}, {stages} stages, {micro_batches} parts, {again:?}", schedule.name());
                    let contexts = fresh(stages, cpu);
                    assert_eq!(&in_stages(&contexts, &again, &schedule, sgd), want, "{what}, SGD");
                    // Every other choice for Adam, the others with the next schedule.
                    if (i + turn).is_multiple_of(2) {
                        let contexts = fresh(stages, cpu);
                        assert_eq!(&in_stages(&contexts, &again, &schedule, adam), want_adam, "{what}, Adam");
                    }
                }
            }
        }
    }
}

/// The subject, the CPU executor and the oracle in one pipeline.
fn devices_of_several_kinds_compute_again(subject: &Subject) {
    let sizes = schedule::split_batch(ROWS, 3).unwrap();
    let one = in_one(&devices::oracle(), &sizes, true, adam).unwrap();
    for schedule in schedules(4, 3) {
        for again in choices(4) {
            let contexts = [subject.context(), cpu(), devices::oracle(), subject.context()];
            let off = in_stages(&contexts, &again, &schedule, adam).difference(&one);
            assert!(off <= 4e-5, "{}, {again:?}: {off:e}", schedule.name());
        }
    }
}

/// Linear layers wide enough that what they keep outweighs their weights.
fn wide(contexts: &[Context], again: &[bool]) -> Stages {
    let spec = |(i, ctx): (usize, &Context)| {
        let spec = StageSpec::new(format!("fc{i}"), ctx, move |ctx: &Context| {
            let fcs = ["a", "b", "c"].map(|n| Linear::new(ctx, &format!("fc{i}{n}"), IN, IN, Rng::seed(5)));
            let [a, b, c] = fcs;
            let (a, b, c) = (a?, b?, c?);
            let params = [a.params(), b.params(), c.params()].into_iter().flatten().collect();
            let forward = move |x: &[Tensor]| c.forward(b.forward(a.forward(x[0]).tanh()).tanh()).try_tanh();
            Ok(Function::new(params, forward))
        });
        if i == 0 { spec.takes(Source::Batch(0), Contract::new([IN], DType::F32)) } else { spec }
    };
    let stages = Stages::build(contexts.iter().enumerate().map(spec).collect());
    stages.unwrap().recomputing(again).unwrap()
}

/// The device holds one working set, however many micro-batches are under way; a stage that keeps what it
/// computed holds one for each. The report says so, and the simulation of its costs.
fn computing_again_holds_inputs_and_one_working_set(subject: &Subject) {
    let rows = 512;
    let options = || TrainOptions { together: false, skip_non_finite: false, ..Default::default() };
    // The most that each context held beside what stays, and the last report.
    let run = |again: bool, schedule: &Schedule| {
        let contexts = fresh(2, || Context::new(subject.fresh()).unwrap());
        let mut trainer = Trainer::new(wide(&contexts, &[again; 2]), loss(), sgd, options()).unwrap();
        let (x, t) = pair(rows * schedule.micro_batches(), 0);
        let batch = Batch::new(&x).targets(&t);
        trainer.step(schedule, &batch).unwrap();
        let report = trainer.step(schedule, &batch).unwrap().report;
        let most = |(c, held): (&Context, &(u64, u64))| c.stats().peak_bytes as u64 - held.0;
        (contexts.iter().zip(&report.held).map(most).collect::<Vec<u64>>(), report)
    };
    let inputs = (rows * IN * 4) as u64;
    // With one micro-batch nothing comes ahead while a stage is measured.
    let one = schedule::gpipe(2, 1).unwrap();
    let sets: Vec<u64> = run(false, &one).1.held.iter().map(|held| held.1).collect();
    assert!(sets[0] > 2 * inputs, "{sets:?}: the working set is more than the inputs");
    for schedule in [schedule::gpipe(2, 4), schedule::one_f_one_b(2, 4)] {
        let schedule = schedule.unwrap();
        let (kept, of_kept) = run(false, &schedule);
        let (again, of_again) = run(true, &schedule);
        let least = run(true, &one).0;
        let flight = schedule.check(&wgrad::pipeline::Wiring::unlimited()).unwrap().stash;
        assert_eq!((&of_kept.stash, &of_again.stash), (&flight, &flight), "{}", schedule.name());
        for s in 0..2 {
            let what = format!("{}, stage {s}: {kept:?} {again:?} {least:?}", schedule.name());
            // On a device with memory of its own lie also the inputs that are kept, and what came ahead of its use.
            let ahead = if subject.is_vulkan() { (flight[s] as u64 + 1) * (inputs + 512) } else { 0 };
            assert!(
                (least[s]..=least[s] + ahead).contains(&again[s]),
                "as much as for one micro-batch: {what}, {ahead}"
            );
            assert_eq!(of_again.held[s].1, inputs, "{what}");
            let set = of_again.again[s].expect("it computes again");
            assert!(set.abs_diff(sets[s]) <= ahead, "the set that F would keep: {what}, {set} {sets:?}");
            assert!(of_kept.held[s].1.abs_diff(sets[s]) <= ahead, "{what}, {sets:?}");
            let more = (flight[s] as u64 - 1) * sets[s];
            assert!(kept[s] + ahead >= again[s] + more, "{what}, {more}");
        }
        // The simulation: inputs of all that are in flight and one working set.
        let (costs, mut plain) = (of_again.costs(), of_kept.costs());
        plain.stages.iter_mut().for_each(|c| *c = c.recomputed(inputs));
        let [measured, predicted] = [&costs, &plain].map(|c| schedule.simulate(c).unwrap().memory);
        let rings =
            |s: usize| measured[s] - of_again.held[s].0 - flight[s] as u64 * inputs - of_kept.held[s].1;
        if !subject.is_vulkan() {
            assert_eq!(measured, predicted, "{}", schedule.name());
            assert!((0..2).all(|s| rings(s) <= 4 * inputs), "{measured:?}");
        }
    }
}

fn a_partition_says_which_stages_compute_again() {
    let model = super::model(false);
    let cut = partition::at_names(&model.names(), &["fc3"]).unwrap().recomputing(vec![true, false]).unwrap();
    let stages =
        Stages::cut(&model, &cut, &fresh(2, cpu), Contract::new([super::DIMS[0]], DType::F32)).unwrap();
    assert_eq!([0, 1].map(|s| stages.recomputes(s)), [true, false]);
    assert!(stages.to_string().contains("computes its forward pass again\nstage 1"), "{stages}");
    let error = stages.recomputing(&[true]).expect_err("one flag");
    assert!(error.to_string().contains("1 flags for 2 stages"), "{error}");
}

/// On devices whose submissions take a known time: F once more in B, and none at all in the last stage.
fn computing_again_takes_the_predicted_time() {
    let delay = Duration::from_millis(20);
    let slowed = || Tap::slowed(Arc::new(wgrad_cpu::Cpu::new()), delay).context();
    let run = |again: &[bool], schedule: &Schedule| {
        let mut trainer =
            Trainer::new(wide(&fresh(3, slowed), again), loss(), sgd, TrainOptions::default()).unwrap();
        let (x, t) = pair(8, 0);
        let batch = Batch::new(&x).targets(&t);
        trainer.step(schedule, &batch).unwrap();
        trainer.step(schedule, &batch).unwrap().report
    };
    let end = |spans: &[wgrad::pipeline::Span]| {
        spans.iter().filter(|s| s.action.is_compute()).map(|s| s.end).fold(0.0, f64::max)
    };
    for schedule in [schedule::one_f_one_b(3, 4), schedule::zb_h1(3, 4)] {
        let schedule = schedule.unwrap();
        let mut off = Vec::new();
        for _ in 0..6 {
            let mut costs = run(&[false; 3], &schedule).costs();
            for stage in &mut costs.stages {
                *stage = stage.recomputed(1);
            }
            costs.stages[2].forward = 0.0;
            let predicted = end(&schedule.simulate(&costs).unwrap().spans);
            off.push((predicted / end(&run(&[true; 3], &schedule).spans) - 1.0).abs());
            if off.last().is_some_and(|off| *off < 0.05) {
                break;
            }
        }
        assert!(off.iter().any(|off| *off < 0.05), "{}: {off:?}", schedule.name());
    }
}
