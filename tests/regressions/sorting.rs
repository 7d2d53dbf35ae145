//! Faults of sorting, of the best few, and of random numbers.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::nn::{Conv1d, Conv2d, Init, Linear, Module, Rng};
use wgrad::{Context, Conv, HostTensor, Kept, Pass, Tensor};

use super::{Lie, every_way, floats, ints, ways};
use crate::Subject;
use crate::devices::{cpu, oracle};
use crate::ops::{Make, near, run};
use crate::table::full;

crate::suite![
    plain: ;
    device: b206_ties_at_the_last_place, b206_nothing_beyond_the_last_place, b208_long_and_many_lines,
        b209_the_first_of_equals, b211_a_seed_set_again, b212_the_same_bits_on_every_device,
        b214_ends_of_ranges, b215_normals_are_finite, b217_a_clone_has_the_same_weights,
        b218_weights_of_convolutions,
];

fn b206_ties_at_the_last_place(on: &Subject) {
    let x = || [floats([5], &[5., 3., 3., 3., 1.])];
    every_way(on, &x(), |_, x| x[0].topk(2, 0, true).0, &[2], &[5., 3.]);
    every_way(on, &x(), |_, x| x[0].topk(2, 0, true).1, &[2], &[0., 1.]);
    every_way(on, &x(), |_, x| x[0].topk(2, 0, false).0, &[2], &[1., 3.]);
    every_way(on, &x(), |_, x| x[0].topk(2, 0, false).1, &[2], &[4., 1.]);
}

/// What lies beside the best few keeps its bytes.
fn b206_nothing_beyond_the_last_place(on: &Subject) {
    let ctx = on.context();
    let whole = Kept::new(&ctx, HostTensor::new([3, 2], &[7f32; 6]).unwrap()).unwrap();
    ctx.pass(|p| {
        let best = floats([5], &[5., 3., 3., 3., 1.]).on(p, Lie::Plain).topk(2, 0, true).0;
        whole.set(whole.t().slice_assign(0, 1, best.unsqueeze(0)));
        Ok(())
    })
    .unwrap();
    assert_eq!(whole.read().unwrap().to_vec::<f32>(), [7., 7., 5., 3., 7., 7.]);
}

fn b208_long_and_many_lines(on: &Subject) {
    // 5000 columns, each number up to three times, and more lines than a grid has workgroups on an axis.
    let long: Vec<i32> = (0..5000).map(|i| i * 37 % 2003).collect();
    let mut order: Vec<usize> = (0..5000).collect();
    order.sort_by_key(|i| long[*i]);
    let want: Vec<f64> = order.iter().map(|i| *i as f64).collect();
    every_way(on, &[ints([5000], &long)], |_, x| x[0].argsort(0, false), &[5000], &want);
    order.sort_by(|a, b| long[*b].cmp(&long[*a]).then(a.cmp(b)));
    let want: Vec<f64> = order.iter().map(|i| *i as f64).collect();
    every_way(on, &[ints([5000], &long)], |_, x| x[0].argsort(0, true), &[5000], &want);
    if on.is_slow() {
        return;
    }
    let many: Vec<i32> = (0..280_000).map(|i| i % 7).collect();
    let mut want = Vec::new();
    for row in many.chunks(4) {
        let mut order = [0usize, 1, 2, 3];
        order.sort_by_key(|i| row[*i]);
        want.extend(order.map(|i| i as f64));
    }
    let operand = ints([70_000, 4], &many);
    ways(on, std::slice::from_ref(&operand), |_, x, say| {
        assert!(x[0].argsort(1, false).to_vec::<f64>().unwrap() == want, "{say}");
    });
}

fn b209_the_first_of_equals(on: &Subject) {
    every_way(on, &[floats([16], &[7.; 16])], |_, x| x[0].argmax(0), &[], &[0.]);
    every_way(on, &[floats([16], &[7.; 16])], |_, x| x[0].argmin(0), &[], &[0.]);
    let column: Vec<f64> = (0..40_000).map(|i| f64::from(i % 11)).collect();
    let operand = floats([40_000, 1], &column);
    ways(on, std::slice::from_ref(&operand), |_, x, say| {
        let got = x[0].argmin(1).to_vec::<i32>().unwrap();
        assert!(got.len() == 40_000 && got.iter().all(|i| *i == 0), "{say}");
    });
}

fn b211_a_seed_set_again(on: &Subject) {
    let ctx = on.context();
    let draw = || -> Vec<f64> {
        ctx.set_seed(42);
        let both = |p: &Pass| Ok([p.rand("a", [5]), p.rand("a", [5])].map(|x| x.to_vec::<f64>().unwrap()));
        let [first, second] = ctx.pass(both).unwrap();
        let third = run(&ctx, |p| p.randn("a", [5])).2;
        [first, second, third].concat()
    };
    let first = draw();
    // Kernels are made and chosen between, and other numbers drawn.
    ctx.pass(|p| p.rand("b", [64, 64]).matmul(p.randn("c", [64, 64])).sum_all().item::<f32>()).unwrap();
    assert_eq!(first, draw());
    assert_eq!(first, draw());
    // As in a new context.
    let (before, ctx) = (first[..5].to_vec(), on.context());
    ctx.set_seed(42);
    assert_eq!(run(&ctx, |p| p.rand("a", [5])).2, before);
    ctx.set_seed(43);
    assert_ne!(run(&ctx, |p| p.rand("a", [5])).2, before);
}

fn b212_the_same_bits_on_every_device(subject: &Subject) {
    let draws: [(&str, Make); 9] = [
        ("bits", |p| p.rand_bits("bits", [17, 31])),
        ("rand", |p| p.rand("u", [17, 31])),
        ("rand of 1000", |p| p.rand("u", [1000])),
        ("randn", |p| p.randn("n", [17, 31])),
        ("gumbel", |p| p.gumbel("g", [17, 31])),
        ("bernoulli", |p| p.bernoulli("b", [17, 31], 0.3)),
        ("randint", |p| p.randint("i", [17, 31], -5..6)),
        ("exponential", |p| p.exponential("e", [17, 31], 1.0)),
        ("bernoulli of tensor", |p| p.rand("r", [17, 31]).bernoulli("t")),
    ];
    let reference = oracle();
    reference.set_seed(1);
    let want = draws.map(|(_, f)| run(&reference, f).2);
    let ctx = subject.context();
    ctx.set_seed(1);
    for ((name, f), want) in draws.iter().zip(&want) {
        assert_eq!(run(&ctx, f).2, *want, "{name}");
    }
    if subject.is_oracle() {
        return;
    }
    // Scaled and moved numbers round in f32, on every device alike.
    let moved: [(&str, Make); 2] = [
        ("uniform", |p| p.uniform("v", [17, 31], -0.7..2.3)),
        ("normal", |p| p.normal("m", [17, 31], 3.1, 0.7)),
    ];
    let (plain, ctx) = (cpu(), subject.context());
    plain.set_seed(1);
    ctx.set_seed(1);
    for (name, f) in moved {
        assert_eq!(run(&ctx, f).2, run(&plain, f).2, "{name}");
    }
}

/// How many numbers are drawn of each kind.
fn draws(on: &Subject, most: usize) -> usize {
    match (full(), on.is_slow() || on.is_oracle()) {
        (true, false) => most,
        (_, true) => 100_000,
        _ => 1_000_000,
    }
}

fn b214_ends_of_ranges(on: &Subject) {
    let n = draws(on, 10_000_000);
    let one = |f: &dyn Fn(&Pass) -> Tensor| on.context().pass(|p| f(p).item::<f64>()).unwrap();
    assert!(one(&|p| p.rand("u", [n]).max(0)) < 1.0);
    assert!(one(&|p| p.rand("u", [n]).min(0)) >= 0.0);
    assert!(one(&|p| p.uniform("u", [n], -3.0..5.0).max(0)) < 5.0);
    assert!(one(&|p| p.uniform("u", [n], -3.0..5.0).min(0)) >= -3.0);
    let third = n as f64 / 3.0;
    let spread = 5.0 * (n as f64 * 2.0 / 9.0).sqrt();
    let mut all = 0.0;
    for k in 0..3 {
        let count = one(&|p| p.randint("i", [n], 0..3).eq(k).sum(0));
        assert!((count - third).abs() < spread, "{k} was drawn {count} times of {n}");
        all += count;
    }
    assert_eq!(all, n as f64, "nothing but 0, 1 and 2");
}

fn b215_normals_are_finite(on: &Subject) {
    let n = draws(on, 1_000_000);
    let rounds = if full() && !on.is_slow() && !on.is_oracle() { 100 } else { 1 };
    let ctx = on.context();
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..rounds {
        let [finite, s, q] = ctx
            .pass(|p| {
                let x = p.randn("n", [n]);
                Ok([x.is_finite().sum(0), x.sum(0), x.square().sum(0)].map(|y| y.item::<f64>().unwrap()))
            })
            .unwrap();
        assert_eq!(finite, n as f64);
        (sum, squares) = (sum + s, squares + q);
    }
    let all = (n * rounds) as f64;
    let (mean, var) = (sum / all, squares / all);
    assert!(mean.abs() < 5.0 / all.sqrt(), "the mean is {mean}");
    assert!((var - 1.0).abs() < 5.0 * (2.0 / all).sqrt() + 1e-4, "the variance is {var}");
}

fn b217_a_clone_has_the_same_weights(on: &Subject) {
    let ctx = on.context();
    let layer = Linear::new(&ctx, "fc", 5, 3, Rng::seed(4)).unwrap();
    let clone = layer.clone();
    let again = Linear::new(&ctx, "fc", 5, 3, Rng::seed(4)).unwrap();
    let read =
        |layer: &Linear| -> Vec<HostTensor> { layer.params().iter().map(|p| p.read().unwrap()).collect() };
    // The clone is read first.
    assert_eq!(read(&clone), read(&layer));
    assert_eq!(read(&again), read(&layer));
    assert_eq!(clone.weight.id(), layer.weight.id());
}

fn b218_weights_of_convolutions(on: &Subject) {
    let ctx: Context = on.context();
    let largest = |weight: &wgrad::Param| -> f64 {
        weight.read().unwrap().to_vec::<f64>().into_iter().fold(0.0, |m, x| x.abs().max(m))
    };
    // 64 channels in 4 groups and windows of 9: each output is joined with 16 * 9 inputs.
    let groups = Conv { groups: 4, ..Conv::default() };
    let layer = Conv2d::new(&ctx, "c", [64, 32], [3, 3], groups, Rng::seed(1)).unwrap();
    assert_eq!(layer.weight.shape().dims(), [32, 16, 3, 3]);
    let bound = 2f64.sqrt() * (3.0 / 144f64).sqrt();
    near("Kaiming", &[largest(&layer.weight) / bound], &[0.995], 0.0051);
    // Xavier: connections that end in an output, 20 * 5, and that start at an input, 40 * 5.
    let layer =
        Conv1d::with(&ctx, "x", [20, 40], [5], Conv::default(), Rng::seed(2), Init::GlorotUniform).unwrap();
    near("Xavier", &[largest(&layer.weight) / (6.0 / 300f64).sqrt()], &[0.995], 0.0051);
}
