//! Faults of losses.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Bce, CrossEntropy, DType, Nll, Pass, Reduction, Tensor, grad};

use super::{every_way, floats, gradient, ints, ways};
use crate::Subject;
use crate::ops::near;

crate::suite![
    plain: ;
    device: b049_labels_need_not_sum_to_one, b050_the_factor_of_a_mean, b052_weight_smoothing_and_ignored,
        b053_every_target_ignored, b055_targets_of_probabilities, b056_logarithm_of_zero,
        b058_smoothing_counts_no_ignored_target, b059_mean_of_an_empty_batch,
];

const NAN: f64 = f64::NAN;

fn b049_labels_need_not_sum_to_one(on: &Subject) {
    let operands = [floats([3], &[1., 2., 3.]), floats([3], &[0., -2., 0.])];
    let loss = |_: &Pass, x: &[Tensor]| x[0].cross_entropy(x[1]);
    every_way(on, &operands, loss, &[], &[-2.815_212]);
    gradient(on, &operands, loss, &[-0.180_061, 1.510_543, -1.330_482]);
}

fn b050_the_factor_of_a_mean(on: &Subject) {
    let line = || floats([4], &[1., 2., 3., 4.]);
    gradient(on, &[line()], |_, x| x[0].mean(..) * 3.0, &[0.75; 4]);
    gradient(on, &[line()], |_, x| x[0].sum(..) * 3.0, &[3.0; 4]);
    let mse = |_: &Pass, x: &[Tensor]| x[0].mse(x[0].detach() - 1.0) * 3.0;
    gradient(on, &[line()], mse, &[1.5; 4]);
    // By the quotient rule where the loss is an operand among others.
    let operands = [floats([2], &[0.0, 0.0]), ints([], &[1])];
    let entropy = |_: &Pass, x: &[Tensor]| x[0].cross_entropy(x[1]) * -4.0;
    gradient(on, &operands, entropy, &[-2.0, 2.0]);
    let operands = [floats([2], &[0.5, 0.25]), floats([2], &[1.0, 1.0])];
    gradient(on, &operands, |_, x| x[0].bce(x[1]) * 3.0, &[-3.0, -6.0]);
}

/// Logits of three classes, the last line of what must not be seen; and targets, the last ignored.
const LOGITS: [[f64; 3]; 3] = [[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [NAN, f64::INFINITY, 0.0]];
const TARGETS: [i32; 3] = [2, 0, 9];

/// The loss by its formula, over the targets that count.
fn by_formula(w: [f64; 3], smoothing: f64) -> f64 {
    let (mut sum, mut divisor) = (0.0, 0.0);
    for (z, target) in [(LOGITS[0], 2), (LOGITS[1], 0)] {
        let total = z.iter().map(|z| z.exp()).sum::<f64>().ln();
        sum += (1.0 - smoothing) * w[target] * (total - z[target]);
        sum += smoothing / 3.0 * (0..3).map(|c| w[c] * (total - z[c])).sum::<f64>();
        divisor += w[target];
    }
    sum / divisor
}

fn ignoring(weight: Option<Tensor>, label_smoothing: f64) -> CrossEntropy {
    CrossEntropy { ignore_index: Some(9), label_smoothing, weight, ..Default::default() }
}

fn b052_weight_smoothing_and_ignored(on: &Subject) {
    let w = [0.2, 0.3, 0.7];
    let operands = [floats([3, 3], LOGITS.as_flattened()), ints([3], &TARGETS), floats([3], &w)];
    ways(on, &operands, |_, x, say| {
        let loss = x[0].cross_entropy_with(x[1], ignoring(Some(x[2]), 0.1));
        near(say, &[loss.item::<f64>().unwrap()], &[by_formula(w, 0.1)], 1e-6);
        let dx = grad(loss, &[x[0]]).unwrap()[0].to_vec::<f64>().unwrap();
        assert!(dx[..6].iter().all(|d| d.is_finite() && *d != 0.0), "{say}: {dx:?}");
        assert_eq!(dx[6..], [0.0; 3], "{say}: a line that does not count gets nothing, even of NaN");
    });
}

/// As in PyTorch the mean is NaN; the gradient is 0.
fn b053_every_target_ignored(on: &Subject) {
    let operands = [floats([3, 3], LOGITS.as_flattened()), ints([3], &[9; 3]), floats([3], &[0.2, 0.3, 0.7])];
    ways(on, &operands, |_, x, say| {
        let nothing = |loss: Tensor, want: f64| {
            near(say, &[loss.item::<f64>().unwrap()], &[want], 0.0);
            let dx = grad(loss, &[x[0]]).unwrap()[0].to_vec::<f64>().unwrap();
            assert_eq!(dx, [0.0; 9], "{say}");
        };
        for options in [ignoring(None, 0.0), ignoring(Some(x[2]), 0.1)] {
            nothing(x[0].cross_entropy_with(x[1], options), NAN);
            nothing(
                x[0].cross_entropy_with(x[1], CrossEntropy { reduction: Reduction::Sum, ..options }),
                0.0,
            );
        }
        nothing(x[0].nll_with(x[1], Nll { ignore_index: Some(9), ..Default::default() }), NAN);
    });
}

fn b055_targets_of_probabilities(on: &Subject) {
    let operands = [floats([3], &[1., 2., 3.]), floats([3], &[0.2, 0.3, 0.5])];
    every_way(on, &operands, |_, x| x[0].cross_entropy(x[1]), &[], &[1.107_606]);
    let soft = [0.090_030_57 - 0.2, 0.244_728_47 - 0.3, 0.665_240_96 - 0.5];
    gradient(on, &operands, |_, x| x[0].cross_entropy(x[1]), &soft);
}

fn b056_logarithm_of_zero(on: &Subject) {
    let operands = [floats([5], &[0., 1., 0., 1., 0.5]), floats([5], &[1., 1., 0., 0., 1.])];
    ways(on, &operands, |p, x, say| {
        let loss = x[0].bce_with(x[1], Bce { reduction: Reduction::None, ..Default::default() });
        let want = [100.0, 0.0, 0.0, 100.0, std::f64::consts::LN_2];
        near(say, &loss.to_vec::<f64>().unwrap(), &want, 1e-6);
        let dx = grad(loss.sum(..), &[x[0]]).unwrap()[0].to_vec::<f64>().unwrap();
        assert!(dx.iter().all(|d| d.is_finite()), "{say}: {dx:?}");
        near(say, &dx[4..], &[-2.0], 1e-6);
        let nan = p.full([1], NAN).bce(p.ones([1]));
        assert!(nan.item::<f64>().unwrap().is_nan(), "{say}");
    });
}

fn b058_smoothing_counts_no_ignored_target(on: &Subject) {
    let operands = [floats([3, 3], LOGITS.as_flattened()), ints([3], &TARGETS)];
    let loss = |_: &Pass, x: &[Tensor]| x[0].cross_entropy_with(x[1], ignoring(None, 0.1));
    every_way(on, &operands, loss, &[], &[by_formula([1.0; 3], 0.1)]);
}

/// As in PyTorch: NaN, with an empty gradient; a sum is 0.
fn b059_mean_of_an_empty_batch(on: &Subject) {
    let none = || [floats([0], &[]), floats([0], &[])];
    every_way(on, &none(), |_, x| x[0].mse(x[1]), &[], &[NAN]);
    every_way(on, &none(), |_, x| x[0].mse_with(x[1], Reduction::Sum), &[], &[0.0]);
    gradient(on, &none(), |_, x| x[0].mse(x[1]), &[]);
    let none = [floats([0, 3], &[]), ints([0], &[])];
    every_way(on, &none, |_, x| x[0].cross_entropy(x[1]), &[], &[NAN]);
    gradient(on, &none, |_, x| x[0].cross_entropy(x[1].cast(DType::I32)), &[]);
}
