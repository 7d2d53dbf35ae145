//! Faults of elementwise gradients at awkward points.

use wgrad::{DType, Pass, Tensor};

use super::{every_way, floats, gradient, of};
use crate::Subject;

crate::suite![
    plain: ;
    device: b061_nothing_leaks_through_the_branch_not_taken, b062_square_root_at_zero,
        b064_spread_of_equal_elements, b065_normalised_zero_vectors, b067_abs_at_zero,
        b068_powers_at_zero, b070_slope_of_an_exponent, b073_elu_far_out, b074_silu_by_hand,
        b079_ties_share, b080_limits_of_clamp,
];

const INF: f64 = f64::INFINITY;

/// Values of `f` on a line of f32, and the gradient of their sum.
fn line(on: &Subject, x: &[f64], f: fn(Tensor) -> Tensor, want: &[f64], slopes: &[f64]) {
    every_way(on, &[floats([x.len()], x)], |_, x| f(x[0]), &[want.len()], want);
    gradient(on, &[floats([x.len()], x)], |_, x| f(x[0]), slopes);
}

fn b061_nothing_leaks_through_the_branch_not_taken(on: &Subject) {
    line(on, &[-1., -4., 0.], |x| x.gt(0.0).select(x.sqrt(), x), &[-1., -4., 0.], &[1.; 3]);
    line(on, &[100., 1000.], |x| x.le(0.0).select(x.exp(), x + 1.0), &[101., 1001.], &[1.; 2]);
    let log = |x: Tensor| x.gt(2.0).select(x.log2(), x * 2.0);
    line(on, &[0., 2., 3.], log, &[0., 4., 1.584_962_5], &[2., 2., 0.480_898_35]);
}

/// A slope of 0 that arrives stays 0; alone the slope is infinite.
fn b062_square_root_at_zero(on: &Subject) {
    line(on, &[0., 4.], |x| x.sqrt() * 0.0, &[0.; 2], &[0.; 2]);
    line(on, &[0., 4.], Tensor::sqrt, &[0., 2.], &[INF, 0.25]);
}

fn b064_spread_of_equal_elements(on: &Subject) {
    gradient(on, &[floats([4], &[1.; 4])], |_, x| x[0].std(.., 1), &[0.; 4]);
    every_way(on, &[floats([4], &[1.; 4])], |_, x| x[0].std(.., 1), &[], &[0.]);
    gradient(on, &[floats([4], &[1.; 4])], |_, x| (x[0] - 1.0).norm(2.0, ..), &[0.; 4]);
}

/// The slope is one by eps, which f16 holds where eps is above 1.5e-5.
fn b065_normalised_zero_vectors(on: &Subject) {
    for (dtype, eps) in [(DType::F32, 1e-12), (DType::F16, 1e-4), (DType::BF16, 1e-12)] {
        let zeros = || of(dtype, [3], &[0.; 3]);
        every_way(on, &[zeros()], |_, x| x[0].normalize(0, 2.0, eps), &[3], &[0.; 3]);
        let scaled = move |_: &Pass, x: &[Tensor]| {
            let slope = wgrad::grad(x[0].normalize(0, 2.0, eps).sum(..), &[x[0]]);
            slope.expect("differentiable")[0].cast(DType::F32) * eps
        };
        let off = if dtype == DType::F32 { 1e-6 } else { 4e-3 };
        let one = move |p: &Pass, x: &[Tensor]| (scaled(p, x) - 1.0).abs().lt(off);
        every_way(on, &[zeros()], one, &[3], &[1.; 3]);
    }
    // Also the eps that f16 itself would round to 0.
    every_way(on, &[of(DType::F16, [3], &[0.; 3])], |_, x| x[0].normalize(0, 2.0, 1e-12), &[3], &[0.; 3]);
}

fn b067_abs_at_zero(on: &Subject) {
    line(on, &[0., -1., 2.], Tensor::abs, &[0., 1., 2.], &[0., -1., 1.]);
}

fn b068_powers_at_zero(on: &Subject) {
    line(on, &[0.], |x| x.pow(0.0), &[1.], &[0.]);
    line(on, &[0.], |x| x.pow(1.0), &[0.], &[1.]);
    line(on, &[0.], |x| x.pow(2.0), &[0.], &[0.]);
    // Exponents that are data, in one kernel.
    let operands = [floats([3], &[0.; 3]), floats([3], &[0., 1., 2.])];
    every_way(on, &operands, |_, x| x[0].pow(x[1]), &[3], &[1., 0., 0.]);
    gradient(on, &operands, |_, x| x[0].pow(x[1]), &[0., 1., 0.]);
}

/// As documented: 0 where the base is not above 0.
fn b070_slope_of_an_exponent(on: &Subject) {
    let operands = [floats([4], &[2., 2., 1.5, 3.]), floats([4], &[0., -1., 2., 0.5])];
    let want = [0., 0., 2f64.powf(1.5) * 2f64.ln(), 0.125 * 0.5f64.ln()];
    gradient(on, &operands, |_, x| x[1].pow(x[0]), &want);
}

fn b073_elu_far_out(on: &Subject) {
    line(on, &[100., 1000., -1000.], |x| x.elu(1.0), &[100., 1000., -1.], &[1., 1., 0.]);
}

fn b074_silu_by_hand(on: &Subject) {
    line(on, &[0., 1.], Tensor::silu, &[0., 0.731_058_58], &[0.5, 0.927_670_51]);
}

fn b079_ties_share(on: &Subject) {
    gradient(on, &[floats([3], &[2., 2., 1.])], |_, x| x[0].max(0), &[0.5, 0.5, 0.]);
    gradient(on, &[floats([3], &[1., 2., 1.])], |_, x| x[0].min(0), &[0.5, 0., 0.5]);
    let columns = floats([3, 2], &[2., 1., 2., 1., 1., 1.]);
    let third = 1.0 / 3.0;
    gradient(on, &[columns], |_, x| x[0].max(0), &[0.5, third, 0.5, third, 0., third]);
}

/// As documented: 0 on the limits, for clamp and all that is made of it.
fn b080_limits_of_clamp(on: &Subject) {
    let x = [-3., -2.5, 0., 1.5, 2.];
    line(on, &x, |x| x.clamp(-2.5, 1.5), &[-2.5, -2.5, 0., 1.5, 1.5], &[0., 0., 1., 0., 0.]);
    line(on, &x, |x| x.hardtanh(-2.5, 1.5), &[-2.5, -2.5, 0., 1.5, 1.5], &[0., 0., 1., 0., 0.]);
    line(on, &[0., 6., 3.], Tensor::relu6, &[0., 6., 3.], &[0., 0., 1.]);
    line(on, &[0., -1., 2.], Tensor::relu, &[0., 0., 2.], &[0., 0., 1.]);
    line(on, &[1., 2., 3.], |x| x.maximum(2.0), &[2., 2., 3.], &[0., 0.5, 1.]);
}
