//! Faults of elementwise values at awkward points.

use wgrad::{ContextOptions, DType, NanToNum, Pass, Tensor};

use super::{bools, every_way, floats, gradient, ints, of};
use crate::Subject;
use crate::devices::oracle_with;
use crate::ops::{near, run};

crate::suite![
    plain: ;
    device: b071_tanh_of_large_values, b076_small_operands_survive, b077_softplus_far_out,
        b082_signs_of_remainders, b083_abs_of_the_most_negative, b085_integers_by_zero,
        b086_negated_bytes, b088_nan_that_a_kernel_made, b089_infinity_as_a_constant,
        b091_masks_are_no_arithmetic, b092_nan_to_num_of_halves, b094_argmax_of_nan,
        b095_dropout_of_infinity,
];

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// What `f` gives of a line of f32.
fn line(on: &Subject, x: &[f64], f: fn(Tensor) -> Tensor, want: &[f64]) {
    every_way(on, &[floats([x.len()], x)], |_, x| f(x[0]), &[want.len()], want);
}

fn b071_tanh_of_large_values(on: &Subject) {
    let x = [100.0, -100.0, 1e30, -INF];
    line(on, &x, Tensor::tanh, &[1.0, -1.0, 1.0, -1.0]);
    gradient(on, &[floats([4], &x)], |_, x| x[0].tanh(), &[0.0; 4]);
    line(on, &x, Tensor::sigmoid, &[1.0, 0.0, 1.0, 0.0]);
}

/// Scaled up, because a result of 0 would be near enough otherwise.
fn b076_small_operands_survive(on: &Subject) {
    let all: [fn(Tensor) -> Tensor; 6] = [
        |x| x.log1p() * 1e8,
        |x| x.expm1() * 1e8,
        |x| x.tanh() * 1e8,
        |x| x.sinh() * 1e8,
        |x| x.asinh() * 1e8,
        |x| x.atanh() * 1e8,
    ];
    for f in all {
        line(on, &[1e-8, -1e-8], f, &[1.0, -1.0]);
        gradient(on, &[floats([1], &[1e-8])], |_, x| f(x[0]) * 1e-8, &[1.0]);
    }
}

fn b077_softplus_far_out(on: &Subject) {
    line(on, &[1000.0, -1000.0, 0.0], Tensor::softplus, &[1000.0, 0.0, std::f64::consts::LN_2]);
    gradient(on, &[floats([3], &[1000.0, -1000.0, 0.0])], |_, x| x[0].softplus(), &[1.0, 0.0, 0.5]);
}

fn b082_signs_of_remainders(on: &Subject) {
    let (x, w) = ([-3., -2., -1., 1., 2., 3.], [2., 3., 1., 2., 1., 3.]);
    for dtype in [DType::F32, DType::I32, DType::I64, DType::F16] {
        let operands = || [of(dtype, [6], &x), of(dtype, [6], &w)];
        every_way(on, &operands(), |_, x| x[0] % x[1], &[6], &[1., 1., 0., 1., 0., 0.]);
        every_way(on, &operands(), |_, x| x[0].fmod(x[1]), &[6], &[-1., -2., 0., 1., 0., 0.]);
        every_way(on, &operands(), |_, x| x[0] % -x[1], &[6], &[-1., -2., 0., -1., 0., 0.]);
    }
}

fn b083_abs_of_the_most_negative(on: &Subject) {
    let least = f64::from(i32::MIN);
    every_way(on, &[ints([3], &[i32::MIN, -7, 7])], |_, x| x[0].abs(), &[3], &[least, 7., 7.]);
    every_way(on, &[ints([1], &[i32::MIN])], |_, x| -x[0], &[1], &[least]);
}

fn b085_integers_by_zero(on: &Subject) {
    let least = f64::from(i32::MIN);
    let operands = || [ints([4], &[5, i32::MIN, -5, 0]), ints([4], &[0, -1, 0, 0])];
    every_way(on, &operands(), |_, x| x[0] / x[1], &[4], &[0., least, 0., 0.]);
    every_way(on, &operands(), |_, x| x[0] % x[1], &[4], &[0.; 4]);
    every_way(on, &operands(), |_, x| x[0].floor_div(x[1]), &[4], &[0., least, 0., 0.]);
    every_way(on, &operands(), |_, x| x[0].fmod(x[1]), &[4], &[0.; 4]);
    // The number known when the kernel is made.
    every_way(on, &[ints([2], &[5, -5])], |_, x| x[0] / 0 + x[0] % 0, &[2], &[0., 0.]);
}

fn b086_negated_bytes(on: &Subject) {
    every_way(on, &[of(DType::U8, [3], &[1., 0., 255.])], |_, x| -x[0], &[3], &[255., 0., 1.]);
    let u32_max = f64::from(u32::MAX);
    every_way(on, &[of(DType::U32, [2], &[1., 0.])], |_, x| -x[0], &[2], &[u32_max, 0.]);
}

fn b088_nan_that_a_kernel_made(on: &Subject) {
    let operands = || [floats([3], &[0., 1., 1.]), floats([3], &[0., 1., 0.])];
    every_way(on, &operands(), |_, x| (x[0] / x[1]).is_nan(), &[3], &[1., 0., 0.]);
    every_way(on, &operands(), |_, x| (x[0] / x[1]).is_inf(), &[3], &[0., 0., 1.]);
    every_way(on, &operands(), |_, x| (x[0] / x[1]).is_finite(), &[3], &[0., 1., 0.]);
    let unlike = |_: &Pass, x: &[Tensor]| (x[0] / x[1]).ne(x[0] / x[1]);
    every_way(on, &operands(), unlike, &[3], &[1., 0., 0.]);
    // One number beside itself, computed once.
    for (same, want) in [
        ((|y| y.ne(y)) as fn(Tensor) -> Tensor, [1., 0., 0.]),
        (|y| y.eq(y), [0., 1., 1.]),
        (|y| y.le(y), [0., 1., 1.]),
        (|y| y.ge(y), [0., 1., 1.]),
    ] {
        every_way(on, &operands(), |_, x| same(x[0] / x[1]), &[3], &want);
    }
}

fn b089_infinity_as_a_constant(on: &Subject) {
    line(on, &[5.0, -5.0, 0.0], |x| x * INF, &[INF, -INF, NAN]);
    line(on, &[1000.0], Tensor::exp, &[INF]);
    line(on, &[1.0, 2.0], |x| x + f64::NEG_INFINITY, &[-INF, -INF]);
    line(on, &[1.0], |x| x.full_like(-INF) + 1.0, &[-INF]);
    line(on, &[1.0, INF], |x| x - INF, &[-INF, NAN]);
}

fn b091_masks_are_no_arithmetic(on: &Subject) {
    let operands = [floats([2], &[-INF, -INF]), bools([2], &[true, false])];
    every_way(on, &operands, |_, x| x[0].masked_fill(x[1], 10.0), &[2], &[10., -INF]);
    let operands = || [floats([2], &[NAN, 1.0]), bools([2], &[true, false])];
    every_way(on, &operands(), |_, x| x[1].select(7.0, x[0]), &[2], &[7., 1.]);
    every_way(on, &operands(), |_, x| x[1].select(x[0], 7.0), &[2], &[NAN, 7.]);
    every_way(on, &operands(), |_, x| x[0].masked_fill(x[1], -INF).max(0), &[], &[1.]);
    line(on, &[INF, -INF, NAN], |x| x.eq(x), &[1., 1., 0.]);
    line(on, &[INF, -INF, NAN], |x| x.eq(INF), &[1., 0., 0.]);
    line(on, &[INF, -INF, NAN], |x| x.gt(0.0).select(x, 0.0), &[INF, 0., 0.]);
}

fn b092_nan_to_num_of_halves(on: &Subject) {
    let x = [INF, NAN, -INF, 1.5];
    let f = |_: &Pass, x: &[Tensor]| x[0].nan_to_num(NanToNum::default());
    every_way(on, &[of(DType::F16, [4], &x)], f, &[4], &[65504., 0., -65504., 1.5]);
    let largest = f64::from(f32::from_bits(0x7f7f_0000));
    every_way(on, &[of(DType::BF16, [4], &x)], f, &[4], &[largest, 0., -largest, 1.5]);
}

fn b094_argmax_of_nan(on: &Subject) {
    every_way(on, &[floats([3], &[NAN, NAN, 3.])], |_, x| x[0].argmax(0), &[], &[0.]);
    every_way(on, &[floats([3], &[1., NAN, 3.])], |_, x| x[0].argmax(0), &[], &[1.]);
    every_way(on, &[floats([3], &[1., NAN, 0.])], |_, x| x[0].argmin(0), &[], &[1.]);
    let two = floats([3, 2], &[1., NAN, NAN, 5., 3., NAN]);
    every_way(on, &[two], |_, x| x[0].argmax(0), &[2], &[1., 0.]);
}

/// What is dropped is 0, whatever it was, and every device drops the same.
fn b095_dropout_of_infinity(on: &Subject) {
    let f = |p: &Pass| p.full([64], INF).dropout("d", 0.5);
    let want = run(&oracle_with(ContextOptions::default()), f).2;
    assert!(want.contains(&0.0) && want.contains(&INF) && !want.iter().any(|x| x.is_nan()), "{want:?}");
    for fuse in [true, false] {
        near("dropped", &run(&on.context_with(ContextOptions::default().fuse(fuse)), f).2, &want, 0.0);
    }
}
