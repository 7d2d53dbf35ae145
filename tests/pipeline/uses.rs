//! What people do with stages beside the plain case: sequences of several lengths, masks, frozen and shared
//! parameters, layers without any, f64, a loss of any device at any action.

use std::collections::BTreeSet;

use wgrad::nn::{Activation, Linear, Module, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Batch, Contract, Function, Loss, Model, Source, StageSpec, Stages, TrainOptions, Trainer, partition,
    schedule,
};
use wgrad::{Context, DType, ErrorKind, HostTensor, Param, Result, Tensor};

use super::{cut, data, fresh, loss, model, schedules};
use crate::Subject;
use crate::devices::{cpu, oracle};
use crate::handles::tap::{Call, Tap, bits, fill};
use crate::table::full;

crate::suite![
    plain: gradients_of_three_stages_by_differences, micro_batches_given_one_by_one_are_checked,
        parameters_that_do_not_learn_stay;
    device: sequences_of_several_lengths, masks_weigh_elements, tables_tied_over_three_stages,
        a_device_lost_at_any_action, nothing_grows_in_many_steps
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.2, momentum: 0.5, ..Default::default() })
}

fn ints(dims: [usize; 2], turn: usize, bound: usize) -> HostTensor {
    let values: Vec<i32> = (0..dims[0] * dims[1]).map(|i| ((i * 5 + turn) % bound) as i32).collect();
    HostTensor::new(dims, &values).unwrap()
}

const WORDS: usize = 11;
const WIDTH: usize = 5;

/// Words to vectors; then a layer over every place of the sequence and the logits of the next word.
fn reader(contexts: &[Context]) -> Result<Stages> {
    let words = |ctx: &Context| -> Result<_> {
        let table = Param::new(ctx, "table", fill(&[WORDS, WIDTH], 0.0))?;
        let params = [table.clone()].into_iter().collect();
        Ok(Function::new(params, move |x| {
            let dims = x[0].shape();
            let flat = x[0].try_reshape([dims[0] * dims[1]])?;
            table.t().try_index_select(0, flat)?.try_reshape([dims[0], dims[1], WIDTH])
        }))
    };
    let head = |ctx: &Context| -> Result<_> {
        let (a, b) = (
            Linear::new(ctx, "a", WIDTH, WIDTH, Rng::seed(1))?,
            Linear::new(ctx, "b", WIDTH, WORDS, Rng::seed(1))?,
        );
        let params = a.params().into_iter().chain(b.params()).collect();
        Ok(Function::new(params, move |x| {
            // Every place sees what came before it.
            b.forward(a.forward(x[0]).tanh().cumsum(1)).try_transpose(1, 2)
        }))
    };
    Stages::build(vec![
        StageSpec::new("words", &contexts[0], words).takes(Source::Batch(0), Contract::data([3], DType::I32)),
        StageSpec::new("head", &contexts[1], head),
    ])
}

/// The mean over the places whose target is a word, whatever their number in each micro-batch.
fn next_word() -> Loss {
    let masked = |y: Tensor, t: Tensor| {
        let kept = t.try_ge(0.0)?;
        let picked = y
            .try_log_softmax(1)?
            .try_gather(1, t.try_maximum(0.0)?.try_cast(DType::I32)?.try_unsqueeze(1)?)?;
        let zero = picked.zeros_like();
        kept.try_unsqueeze(1)?.try_select(picked.try_neg()?, zero)?.try_sum(..)
    };
    Loss::sum(masked).counted(|t| t.to_vec::<i32>().iter().filter(|t| **t >= 0).count() as f64)
}

/// Gradients of a step by name.
fn gradients(trainer: &Trainer) -> Vec<(String, Vec<f64>)> {
    super::plain(trainer.gradients().unwrap())
}

fn assert_close(got: &[(String, Vec<f64>)], want: &[(String, Vec<f64>)], what: &str) {
    for ((name, got), (_, want)) in got.iter().zip(want) {
        let scale = want.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-5 * scale;
        assert!(got.len() == want.len() && got.iter().zip(want).all(close), "{what}: {name}");
    }
}

/// Micro-batches of other lengths than the one that the stages were tried with, in one step: as their mean by
/// hand on one context.
fn sequences_of_several_lengths(subject: &Subject) {
    let shapes = [[2, 3], [3, 5], [1, 4], [2, 5]];
    let part = |i: usize| (ints(shapes[i], i, WORDS), ints(shapes[i], i + 3, WORDS));
    let batch = Batch::of((0..4).map(|i| Batch::new(&part(i).0).targets(&part(i).1)));
    let count: f64 = shapes.iter().map(|[a, b]| (a * b) as f64).sum();
    // One after the other through stages of the same weights, each a whole batch.
    let mut one =
        Trainer::new(reader(&fresh(2, oracle)).unwrap(), next_word(), sgd, TrainOptions::default()).unwrap();
    let (mut want_loss, mut want) = (0.0, Vec::<(String, Vec<f64>)>::new());
    let weights = one.stages().weights().unwrap();
    for (i, [rows, length]) in shapes.into_iter().enumerate() {
        let share = (rows * length) as f64 / count;
        let (x, t) = part(i);
        let schedule = schedule::gpipe(2, 1).unwrap();
        want_loss += share * one.step(&schedule, &Batch::new(&x).targets(&t)).unwrap().loss;
        for (at, (name, g)) in gradients(&one).into_iter().enumerate() {
            let g = g.into_iter().map(|g| share * g);
            match want.get_mut(at) {
                Some((_, sum)) => sum.iter_mut().zip(g).for_each(|(sum, g)| *sum += g),
                None => want.push((name, g.collect())),
            }
        }
        one.stages().set_weights(&weights).unwrap();
    }
    for schedule in schedules(2, 4) {
        let stages = reader(&[subject.context(), cpu()]).unwrap();
        let mut trainer = Trainer::new(stages, next_word(), sgd, TrainOptions::default()).unwrap();
        let done = trainer.step(&schedule, &batch).unwrap();
        let what = schedule.name().to_owned();
        assert!((done.loss - want_loss).abs() < 1e-5 * want_loss, "{what}: {} and {want_loss}", done.loss);
        assert_close(&gradients(&trainer), &want, &what);
    }
}

/// Padding: micro-batches with different counts of words weigh as they do in the undivided batch.
fn masks_weigh_elements(subject: &Subject) {
    let x = ints([6, 4], 0, WORDS);
    let mut targets = ints([6, 4], 3, WORDS).to_vec::<i32>();
    // The last two rows are nearly all padding.
    targets[17..].fill(-1);
    let targets = HostTensor::new([6, 4], &targets).unwrap();
    let batch = Batch::new(&x).targets(&targets);
    let run = |contexts: [Context; 2], schedule: &wgrad::pipeline::Schedule| {
        let mut trainer =
            Trainer::new(reader(&contexts).unwrap(), next_word(), sgd, TrainOptions::default()).unwrap();
        let loss = trainer.step(schedule, &batch).unwrap().loss;
        (loss, gradients(&trainer))
    };
    let (want, whole) = run([oracle(), oracle()], &schedule::gpipe(2, 1).unwrap());
    for schedule in schedules(2, 3) {
        let (got, parts) = run([subject.context(), subject.context()], &schedule);
        assert!((got - want).abs() < 1e-5 * want, "{}: {got} and {want}", schedule.name());
        assert_close(&parts, &whole, schedule.name());
    }
}

fn micro_batches_given_one_by_one_are_checked() {
    let part = |rows| Batch::new(&ints([rows, 3], 0, WORDS)).targets(&ints([rows, 3], 1, WORDS));
    let stages = reader(&fresh(2, cpu)).unwrap();
    let mut trainer = Trainer::new(stages, next_word(), sgd, TrainOptions::default()).unwrap();
    let mut refused = |batch: Batch, word: &str| {
        let error = trainer.step(&schedule::gpipe(2, 2).unwrap(), &batch).expect_err(word);
        assert!(error.to_string().contains(word), "`{word}` is missing: {error}");
    };
    refused(Batch::of([part(2), part(1), part(1)]), "2 of one row or more");
    refused(Batch::of([]), "no targets");
    refused(Batch::of([part(2), part(0)]), "2 of one row or more");
    refused(Batch::of([part(2), Batch::new(&ints([1, 3], 0, WORDS))]), "no targets");
    refused(Batch::of([part(2), part(2)]).targets(&ints([4, 3], 0, WORDS)), "one by one");
    // One of several parts is as the parts themselves.
    let nested = Batch::of([Batch::of([part(2)]), part(1)]);
    assert_eq!(nested.rows().unwrap(), 3);
    trainer.step(&schedule::gpipe(2, 2).unwrap(), &nested).unwrap();
}

/// One table three times: twice in the first stage, then in a second and a third.
fn tables_tied_over_three_stages(subject: &Subject) {
    let table = |ctx: &Context, name: &str| Param::new(ctx, name, fill(&[WIDTH, WIDTH], 0.0));
    let block = |name: &'static str, twice: bool| {
        move |ctx: &Context| -> Result<_> {
            let table = table(ctx, name)?;
            let params = [table.clone()].into_iter().collect();
            Ok(Function::new(params, move |x| {
                let h = x[0].try_matmul(table.t())?.try_tanh()?;
                if twice { h.try_matmul(table.t())?.try_tanh() } else { Ok(h) }
            }))
        }
    };
    let contexts = [subject.context(), cpu(), subject.context()];
    let stages = Stages::build(vec![
        StageSpec::new("a", &contexts[0], block("a", true))
            .takes(Source::Batch(0), Contract::new([WIDTH], DType::F32)),
        StageSpec::new("b", &contexts[1], block("b", false)),
        StageSpec::new("c", &contexts[2], block("c", false)),
    ]);
    let stages = stages.unwrap().tie(&["a", "b", "c"]).unwrap();
    let squares = Loss::sum(|y, t| y.try_sub(t)?.try_square()?.try_sum(..));
    let mut trainer = Trainer::new(stages, squares, sgd, TrainOptions::default()).unwrap();
    let (x, t) = (fill(&[4, WIDTH], 1.0), fill(&[4, WIDTH], 2.0));
    let ctx = oracle();
    let one = table(&ctx, "one").unwrap();
    let mut opt = sgd([one.clone()].into_iter().collect()).unwrap();
    for step in 0..10 {
        let done = trainer.step(&schedule::one_f_one_b(3, 2).unwrap(), &Batch::new(&x).targets(&t)).unwrap();
        let want = ctx
            .pass(|p| {
                let mut y = p.input(&x)?;
                for _ in 0..4 {
                    y = y.matmul(one.t()).tanh();
                }
                let loss = (y - p.input(&t)?).square().sum(..) / 4.0;
                wgrad::nn::Optimizer::step(&mut opt, &loss.backward()?)?;
                loss.item::<f64>()
            })
            .unwrap();
        assert!((done.loss - want).abs() < 2e-5 * want, "step {step}: {} and {want}", done.loss);
        if subject.is_cpu() {
            let copies =
                [0, 1, 2].map(|s| bits(&trainer.stages().params(s).iter().next().unwrap().read().unwrap()));
            assert!(copies[0] == copies[1] && copies[1] == copies[2], "the copies are equal to the bit");
        }
    }
    assert_eq!(trainer.stages().weights().unwrap().len(), 1, "a file holds it once");
}

/// A parameter that its layer does not differentiate, one that nothing uses, and a stage without any.
fn parameters_that_do_not_learn_stay() {
    let contexts = fresh(3, cpu);
    let stages = Stages::build(vec![
        StageSpec::new("frozen", &contexts[0], |ctx: &Context| {
            let fc = Linear::new(ctx, "frozen", 3, 5, Rng::seed(1))?;
            Ok(Function::new(fc.params(), move |x| Ok(fc.forward(x[0]).detach())))
        })
        .takes(Source::Batch(0), Contract::new([3], DType::F32)),
        StageSpec::new("tanh", &contexts[1], |_| Ok(Activation::Tanh)),
        StageSpec::new("head", &contexts[2], |ctx| {
            let fc = Linear::new(ctx, "head", 5, 4, Rng::seed(1))?;
            let unused = Param::new(ctx, "unused", fill(&[2], 0.0))?;
            let params = fc.params().into_iter().chain([unused]).collect();
            Ok(Function::new(params, move |x| Ok(fc.forward(x[0]))))
        }),
    ])
    .unwrap();
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let before = trainer.stages().weights().unwrap();
    let batch =
        Batch::new(&fill(&[6, 3], 0.0)).targets(&HostTensor::new([6], &[0i32, 1, 2, 3, 0, 1]).unwrap());
    for schedule in [schedule::one_f_one_b(3, 3), schedule::zb_h1(3, 2), schedule::gpipe(3, 1)] {
        trainer.step(&schedule.unwrap(), &batch).unwrap();
        for ((name, was), (_, is)) in before.iter().zip(trainer.stages().weights().unwrap()) {
            assert_eq!(*was != is, name.starts_with("head"), "{name}");
        }
        for (name, g) in gradients(&trainer) {
            assert_eq!(g.iter().any(|g| *g != 0.0), name.starts_with("head"), "{name}");
        }
    }
}

/// In f64, which crosses as such: the gradients of every parameter against differences of the loss.
fn gradients_of_three_stages_by_differences() {
    let wide = |dims: &[usize], turn: f32| fill(dims, turn).cast(DType::F64);
    let layer = |name: &'static str, from: usize, to: usize| {
        move |ctx: &Context| -> Result<_> {
            let w = Param::new(ctx, name, fill(&[from, to], from as f32).cast(DType::F64))?;
            let params = [w.clone()].into_iter().collect();
            Ok(Function::new(params, move |x| x[0].try_matmul(w.t())?.try_sin()))
        }
    };
    let contexts = fresh(3, oracle);
    let stages = Stages::build(vec![
        StageSpec::new("a", &contexts[0], layer("a", 3, 5))
            .takes(Source::Batch(0), Contract::new([3], DType::F64)),
        StageSpec::new("b", &contexts[1], layer("b", 5, 4)),
        StageSpec::new("c", &contexts[2], layer("c", 4, 2)),
    ])
    .unwrap();
    let squares = Loss::sum(|y, t| y.try_sub(t)?.try_square()?.try_sum(..));
    let still = |params| Sgd::new(params, SgdConfig { lr: 0.0, ..Default::default() });
    let mut trainer = Trainer::new(stages, squares, still, TrainOptions::default()).unwrap();
    let batch = Batch::new(&wide(&[5, 3], 0.5)).targets(&wide(&[5, 2], 0.25));
    let schedule = schedule::zb_h1(3, 2).unwrap();
    trainer.step(&schedule, &batch).unwrap();
    let found = gradients(&trainer);
    assert_eq!(found.len(), 3);
    let weights = trainer.stages().weights().unwrap();
    for (at, (name, value)) in weights.iter().enumerate() {
        let plain = value.to_vec::<f64>();
        for i in 0..plain.len() {
            let mut at_step = |h: f64| {
                let mut moved = plain.clone();
                moved[i] += h;
                let moved = HostTensor::new(value.shape(), &moved).unwrap();
                trainer.stages().set_weights(&[(name.clone(), moved)]).unwrap();
                trainer.step(&schedule, &batch).unwrap().loss
            };
            let slope = (at_step(1e-5) - at_step(-1e-5)) / 2e-5;
            let got = found[at].1[i];
            assert!((slope - got).abs() < 1e-8 + 1e-7 * got.abs(), "{name}[{i}]: {got} and {slope}");
        }
        trainer.stages().set_weights(std::slice::from_ref(&weights[at])).unwrap();
    }
}

/// The middle of three devices is lost at its n-th submission, for all n: one error that says where, the others
/// keep the weights of the last step, and no kind of action is left out.
fn a_device_lost_at_any_action(subject: &Subject) {
    let model = model(false);
    let mut met = BTreeSet::new();
    for schedule in [schedule::one_f_one_b(3, 2).unwrap(), schedule::zb_h1(3, 2).unwrap()] {
        for call in [Call::Submit, Call::Read, Call::Fetch] {
            let stride = if subject.is_slow() { 3 } else { 1 };
            for after in (0..).step_by(stride) {
                let tap = Tap::new(subject.backend());
                let contexts = [cpu(), tap.context(), cpu()];
                let stages = cut(&model, &contexts).unwrap();
                let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
                let saved = trainer.stages().weights().unwrap();
                tap.fail_after(call, after, ErrorKind::Lost);
                let Err(error) = trainer.step(&schedule, &data(6, 0.0)) else { break };
                let text = error.to_string();
                assert!(error.is_lost() && text.contains("stage 1 (`fc2..tanh3` on"), "{text}");
                let action = text.split("action ").nth(1).and_then(|t| t.chars().next());
                met.insert(action.unwrap_or_else(|| panic!("no action: {text}")));
                for p in [0, 2].iter().flat_map(|s| trainer.stages().params(*s).iter()) {
                    let (_, want) = saved.iter().find(|(name, _)| name == p.name()).unwrap();
                    assert_eq!(&p.read().unwrap(), want, "{text}");
                }
            }
        }
    }
    for action in ['F', 'B', 'I', 'W', 'U'] {
        assert!(subject.is_slow() || met.contains(&action), "never lost in {action}: {met:?}");
    }
}

/// After 3 steps and after many more: the same bytes and plans on every device; the stash is the schedule's.
fn nothing_grows_in_many_steps(subject: &Subject) {
    let steps = match (full(), subject.is_slow()) {
        (true, _) => 1000,
        (false, false) => 15,
        (false, true) => 3,
    };
    let model = Model::new()
        .layer("fc1", |ctx| Linear::new(ctx, "fc1", 6, 9, Rng::seed(1)))
        .layer("tanh", |_| Ok(Activation::Tanh))
        .layer("fc2", |ctx| Linear::new(ctx, "fc2", 9, 7, Rng::seed(1)))
        .layer("fc3", |ctx| Linear::new(ctx, "fc3", 7, 4, Rng::seed(1)));
    for schedule in [schedule::gpipe(3, 4), schedule::one_f_one_b(3, 4), schedule::zb_h1(3, 4)] {
        let schedule = schedule.unwrap();
        let contexts =
            [Context::new(subject.fresh()).unwrap(), cpu(), Context::new(subject.fresh()).unwrap()];
        let cut = partition::at_names(&model.names(), &["fc2", "fc3"]).unwrap();
        let stages = Stages::cut(&model, &cut, &contexts, Contract::new([6], DType::F32)).unwrap();
        let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
        let stash = schedule.check(&wgrad::pipeline::Wiring::edges(2)).unwrap().stash;
        let mut held = Vec::new();
        for steps in [3, steps] {
            for step in 0..steps {
                let done = trainer.step(&schedule, &data(8, step as f32)).unwrap();
                assert_eq!(done.report.stash, stash, "{}", schedule.name());
            }
            let stats = contexts.iter().map(|c| c.stats());
            held.push(stats.map(|s| (s.live_bytes, s.plans_made)).collect::<Vec<_>>());
        }
        assert_eq!(held[0], held[1], "{}: bytes and plans", schedule.name());
    }
}
