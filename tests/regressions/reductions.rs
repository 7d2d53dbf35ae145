//! Faults of reductions and of precision.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{DType, Tensor};

use super::{every_way, floats, gradient, ints, of, ramp, ways};
use crate::Subject;
use crate::ops::near;

crate::suite![
    plain: ;
    device: b001_mean_of_halves, b002_sum_of_halves_on_the_way, b004_long_sums_do_not_drift,
        b005_nan_is_not_sought_by_a_sum, b007_extremes_of_integers, b008_sum_of_bytes,
        b010_mean_of_two_axes_permuted, b011_sum_along_a_transposed_axis, b013_product_of_negatives,
        b014_gradient_of_a_product_at_zero, b016_mean_of_huge_numbers, b017_scan_over_an_axis_of_one,
        b019_softmax_of_a_long_row,
];

fn b001_mean_of_halves(on: &Subject) {
    let mean = |_: &wgrad::Pass, x: &[Tensor]| x[0].mean(..);
    every_way(on, &[of(DType::F16, [65520], &[1.0; 65520])], mean, &[], &[1.0]);
    every_way(on, &[of(DType::F16, [3], &[40_000.0; 3])], mean, &[], &[40_000.0]);
    every_way(on, &[of(DType::BF16, [65520], &[1.0; 65520])], mean, &[], &[1.0]);
}

fn b002_sum_of_halves_on_the_way(on: &Subject) {
    let x = [[32_000.0; 4], [-32_000.0; 4]].concat();
    every_way(on, &[of(DType::F16, [8], &x)], |_, x| x[0].sum(0), &[], &[0.0]);
    every_way(on, &[of(DType::F16, [8, 1], &x)], |_, x| x[0].sum(0), &[1], &[0.0]);
}

/// One running total in f32 is 0.5 % off here, and never passes 2^24.
fn b004_long_sums_do_not_drift(on: &Subject) {
    let exact = 1_392_640.0 * f64::from(0.1f32);
    // A kernel's lane adds 128 elements one after the other, and equal ones drift alike.
    let off = if on.is_vulkan() { 1.4 } else { 0.01 };
    let fine = |say: &str, got: f64| assert!((got - exact).abs() <= off, "{say}: {got}, not {exact}");
    let count = 1_392_640;
    ways(on, &[floats([count], &vec![0.1; count])], |p, x, say| {
        fine(say, x[0].sum(0).item().unwrap());
        fine(say, p.full([count], 0.1).sum(..).item().unwrap());
        // The same elements as rows and as columns.
        let table = x[0].reshape([1360, 1024]);
        fine(say, table.sum(1).sum(0).item().unwrap());
        fine(say, table.sum(0).sum(0).item().unwrap());
    });
    let ones = if on.is_slow() { (1 << 24) + 4096 } else { 1 << 25 };
    let mean = on.context().pass(|p| p.ones([ones]).mean(..).item::<f64>()).unwrap();
    assert_eq!(mean, 1.0);
}

fn b005_nan_is_not_sought_by_a_sum(on: &Subject) {
    let x = [[60_000.0; 2048], [-60_000.0; 2048]].concat();
    let halves = || of(DType::F16, [4096], &x);
    every_way(on, &[halves()], |_, x| x[0].is_nan().any(..), &[], &[0.0]);
    every_way(on, &[halves()], |_, x| x[0].is_finite().all(..), &[], &[1.0]);
}

fn b007_extremes_of_integers(on: &Subject) {
    every_way(on, &[ints([2], &[-5, -3])], |_, x| x[0].max(..), &[], &[-3.0]);
    every_way(on, &[ints([2], &[5, 3])], |_, x| x[0].min(..), &[], &[3.0]);
    every_way(on, &[of(DType::U32, [2], &[0.0; 2])], |_, x| x[0].max(..), &[], &[0.0]);
    every_way(on, &[of(DType::I64, [2, 1], &[-5.0, -3.0])], |_, x| x[0].max(0), &[1], &[-3.0]);
}

fn b008_sum_of_bytes(on: &Subject) {
    let ones = || of(DType::U8, [256, 2, 2], &[1.0; 1024]);
    every_way(on, &[ones()], |_, x| x[0].sum(..), &[], &[1024.0]);
    every_way(on, &[ones()], |_, x| x[0].sum(0), &[2, 2], &[256.0; 4]);
}

fn b010_mean_of_two_axes_permuted(on: &Subject) {
    let x = || ramp([2, 2, 256]);
    let one_by_one =
        |_: &wgrad::Pass, x: &[Tensor]| x[0].permute([1, 2, 0]).mean_keepdim(0).mean_keepdim(1).reshape([2]);
    every_way(on, &[x()], one_by_one, &[2], &[255.5, 767.5]);
    every_way(on, &[x()], |_, x| x[0].permute([1, 2, 0]).mean([0, 1]), &[2], &[255.5, 767.5]);
}

fn b011_sum_along_a_transposed_axis(on: &Subject) {
    let x = floats([2, 3], &[1., 2., 3., 4., 5., 6.]);
    every_way(on, &[x], |_, x| x[0].t().sum(1), &[3], &[5., 7., 9.]);
}

fn b013_product_of_negatives(on: &Subject) {
    let x = [-5., 1., 2., 3., 4., 5.];
    every_way(on, &[floats([6], &x)], |_, x| x[0].prod(..), &[], &[-600.0]);
    every_way(on, &[floats([6], &x)], |_, x| x[0].cumprod(0).slice(0, -1..), &[1], &[-600.0]);
}

fn b014_gradient_of_a_product_at_zero(on: &Subject) {
    gradient(on, &[floats([3], &[0., 2., 3.])], |_, x| x[0].prod(..), &[6., 0., 0.]);
    gradient(on, &[floats([3], &[0., 0., 3.])], |_, x| x[0].prod(..), &[0., 0., 0.]);
    gradient(on, &[floats([1, 3], &[0., 2., 3.])], |_, x| x[0].prod(1), &[6., 0., 0.]);
}

/// As documented: infinite where the sum is over the largest, 0 where the square is; never NaN.
fn b016_mean_of_huge_numbers(on: &Subject) {
    ways(on, &[floats([3], &[3e38; 3]), floats([2], &[1e30, -1e30])], |_, x, say| {
        let mean = x[0].mean(..).item::<f64>().unwrap();
        assert!(mean == f64::INFINITY || (mean / 3e38 - 1.0).abs() < 1e-6, "{say}: {mean}");
        let y = x[1].layer_norm(None, None, 1e-5).to_vec::<f64>().unwrap();
        let unit = (y[0] - 1.0).abs() < 1e-6 && (y[1] + 1.0).abs() < 1e-6;
        assert!(unit || y.iter().all(|y| *y == 0.0), "{say}: {y:?}");
    });
}

fn b017_scan_over_an_axis_of_one(on: &Subject) {
    let x = floats([1, 10], &[1., 2., 3., 4., 5., 6., 7., 8., 9., 10.]);
    let want = [4., 5., 6., 7., 8., 9., 10.];
    every_way(on, &[x], |_, x| x[0].slice(1, 3..).cumsum(0), &[1, 7], &want);
}

fn b019_softmax_of_a_long_row(on: &Subject) {
    ways(on, &[floats([1, 200_000], &vec![3.0; 200_000])], |_, x, say| {
        let y = x[0].softmax(-1);
        let elems = y.to_vec::<f64>().unwrap();
        assert!(elems.iter().all(|y| (y - 5e-6).abs() < 1e-10), "{say}: {:?}", &elems[..5]);
        near(say, &y.sum(-1).to_vec::<f64>().unwrap(), &[1.0], 1e-5);
    });
}
