//! What `docs/numerics.md` promises, on every device: infinities, NaN, zero, overflow, nothing, ties.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use wgrad::{DType, HostTensor, Pass, Tensor};

use crate::Subject;
use crate::ops::{floats, near, run};

crate::suite![
    plain: ;
    device: nan, division, overflow, long_sums, nothing, ties, subnormals,
];

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;
/// What is recorded on a line of floats, and the elements of the result.
type Case = (&'static str, &'static [f32], fn(Tensor) -> Tensor, &'static [f64]);

fn check(subject: &Subject, cases: &[Case]) {
    let ctx = subject.context();
    for (name, x, f, want) in cases {
        let got = run(&ctx, |p| f(floats(p, [x.len()], x))).2;
        near(name, &got, want, 1e-6);
    }
}

const NAN32: f32 = f32::NAN;
const INF32: f32 = f32::INFINITY;

fn nan(subject: &Subject) {
    check(
        subject,
        &[
            ("comparisons are false", &[NAN32, 1.0], |x| x.lt(x) | x.ge(x) & x.gt(2.0), &[0., 0.]),
            ("but not unequal", &[NAN32, 1.0], |x| x.ne(x), &[1., 0.]),
            ("not chosen, not seen", &[NAN32, 1.0], |x| x.is_nan().select(0.0, x), &[0., 1.]),
            ("filled", &[NAN32, -INF32], |x| x.masked_fill(x.lt(0.0), 10.0), &[NAN, 10.]),
            (
                "to integer",
                &[NAN32, 3e9, -3e9, 2.9],
                |x| x.cast(DType::I32),
                &[0., 2147483647., -2147483648., 2.],
            ),
            ("to truth", &[NAN32, 0.0, -0.0], |x| x.cast(DType::Bool), &[1., 0., 0.]),
            ("sign", &[NAN32, -0.0], Tensor::sign, &[NAN, 0.]),
            ("max", &[1.0, NAN32, 2.0], |x| x.max(0), &[NAN]),
            ("sum", &[1.0, NAN32, 2.0], |x| x.sum(0), &[NAN]),
            ("prod", &[0.0, NAN32], |x| x.prod(0), &[NAN]),
            ("argmax", &[1.0, NAN32, 3.0, NAN32], |x| x.argmax(0), &[1.]),
            ("argmin", &[1.0, NAN32, 0.0], |x| x.argmin(0), &[1.]),
            ("softmax", &[1.0, NAN32], |x| x.softmax(0), &[NAN, NAN]),
            ("times zero", &[NAN32, INF32], |x| x * 0.0, &[NAN, NAN]),
        ],
    );
}

fn division(subject: &Subject) {
    check(
        subject,
        &[
            ("by zero", &[1.0, -1.0, 0.0, NAN32], |x| x / 0.0, &[INF, -INF, NAN, NAN]),
            ("recip", &[0.0, -0.0, INF32], Tensor::recip, &[INF, -INF, 0.]),
            ("rem by zero", &[1.0, 0.0], |x| x % 0.0, &[NAN, NAN]),
            ("rem of signs", &[5.0, -5.0], |x| x % 3.0, &[2., 1.]),
            ("rem by a negative", &[5.0, -5.0], |x| x % -3.0, &[-1., -2.]),
        ],
    );
    let ints = |x: &[i32]| HostTensor::new([x.len()], x).unwrap();
    let ctx = subject.context();
    let two = |f: fn(Tensor, Tensor) -> Tensor, a: &[i32], b: &[i32]| {
        run(&ctx, |p: &Pass| f(p.input(ints(a)).unwrap(), p.input(ints(b)).unwrap())).2
    };
    let min = f64::from(i32::MIN);
    assert_eq!(two(|a, b| a % b, &[5, -5, 5, -5, 5], &[3, 3, -3, -3, 0]), [2., 1., -1., -2., 0.]);
    assert_eq!(two(|a, b| a + b, &[i32::MAX, i32::MIN], &[1, -1]), [min, f64::from(i32::MAX)]);
    assert_eq!(two(|a, b| a * b, &[1 << 20, i32::MIN], &[1 << 12, -1]), [0., min]);
    assert_eq!(run(&ctx, |p| p.input(ints(&[i32::MIN, -7])).unwrap().abs()).2, [min, 7.]);
}

fn overflow(subject: &Subject) {
    check(
        subject,
        &[
            ("tanh", &[50.0, -50.0, 1e30, -INF32], Tensor::tanh, &[1., -1., 1., -1.]),
            ("sigmoid", &[1000.0, -1000.0, INF32, -INF32], Tensor::sigmoid, &[1., 0., 1., 0.]),
            ("softplus", &[1000.0, -1000.0, INF32], Tensor::softplus, &[1000., 0., INF]),
            ("silu", &[1000.0, -1000.0], Tensor::silu, &[1000., 0.]),
            ("gelu_tanh", &[1000.0, -1000.0], Tensor::gelu_tanh, &[1000., 0.]),
            ("softmax", &[1e4, -1e4, 1e4], |x| x.softmax(0), &[0.5, 0., 0.5]),
            ("softmax of infinity", &[-INF32, 1.0, 1.0], |x| x.softmax(0), &[0., 0.5, 0.5]),
            ("softmax of nothing", &[-INF32, -INF32], |x| x.softmax(0), &[NAN, NAN]),
            ("log_softmax", &[1e4, 0.0], |x| x.log_softmax(0), &[0., -1e4]),
            ("logsumexp", &[1000.0, 1000.0], |x| x.logsumexp(0), &[1000.693147]),
            ("logsumexp of -inf", &[-INF32, -INF32], |x| x.logsumexp(0), &[-INF]),
            ("logsumexp of inf", &[INF32, 1.0], |x| x.logsumexp(0), &[INF]),
            ("var of a large mean", &[4095.0, 4097.0, 4099.0], |x| x.var(0, 0), &[8.0 / 3.0]),
            ("norm of a constant", &[1e6; 5], |x| x.standardize(0, 1e-5), &[0.; 5]),
        ],
    );
    if !subject.is_oracle() {
        check(subject, &[("exp", &[89.0, -104.0], Tensor::exp, &[INF, 0.])]);
    }
}

fn long_sums(subject: &Subject) {
    // One running total in f32 stays at 2^24. The oracle has f64 and takes long over so many elements.
    if subject.is_oracle() || subject.is_slow() {
        return;
    }
    let count = (1 << 24) + 4096;
    let ctx = subject.context();
    let got = run(&ctx, |p| p.ones([1]).expand([count]).sum_all()).2;
    assert_eq!(got, [count as f64]);
}

fn nothing(subject: &Subject) {
    let max = f64::from(i32::MAX);
    check(
        subject,
        &[
            ("sum", &[], |x| x.sum(0), &[0.]),
            ("prod", &[], |x| x.prod(0), &[1.]),
            ("mean", &[], |x| x.mean(0), &[NAN]),
            ("max", &[], |x| x.max(0), &[-INF]),
            ("min", &[], |x| x.min(0), &[INF]),
            ("softmax", &[], |x| x.softmax(0), &[]),
            ("matmul", &[], |x| x.reshape([1, 0]).matmul(x.reshape([0, 1])), &[0.]),
        ],
    );
    let ctx = subject.context();
    let least = run(&ctx, |p| floats(p, [0], &[]).cast(DType::I32).min(0)).2;
    assert_eq!(least, [max]);
    let error = ctx.pass(|p| floats(p, [0], &[]).try_argmax(0).map(|_| ()));
    assert!(error.is_err(), "the index of the largest of nothing");
}

fn ties(subject: &Subject) {
    check(
        subject,
        &[
            ("argmax takes the first", &[1.0, 3.0, 3.0], |x| x.argmax(0), &[1.]),
            ("argmin takes the first", &[1.0, 3.0, 1.0], |x| x.argmin(0), &[0.]),
            ("halves to even", &[0.5, 1.5, 2.5, -0.5, -1.5], Tensor::round, &[0., 2., 2., 0., -2.]),
        ],
    );
}

fn subnormals(subject: &Subject) {
    let x = [1e-40f32, -1e-45, 2e-38];
    let got = run(&subject.context(), |p| floats(p, [3], &x) * 1.0).2;
    for (got, x) in got.iter().zip(x) {
        let exact = *got == f64::from(x);
        assert!(exact || subject.is_vulkan() && *got == 0.0, "{x:e} became {got:e}");
    }
}

/// Every test that `docs/numerics.md` names is one that runs.
pub(crate) fn names_are_tests(names: &BTreeSet<String>) {
    let text = include_str!("../docs/numerics.md");
    let mut found = 0;
    for word in text.split('`').skip(1).step_by(2) {
        let Some((module, _)) = word.split_once("::") else { continue };
        if !names.iter().any(|n| n.split_once("::").is_some_and(|(m, _)| m == module)) {
            continue;
        }
        let is = |name: &String| {
            name == word || name.strip_prefix(word).is_some_and(|rest| rest.starts_with("::"))
        };
        assert!(names.iter().any(is), "docs/numerics.md names {word}, which is no test");
        found += 1;
    }
    assert!(found > 30, "docs/numerics.md names {found} tests");
}
