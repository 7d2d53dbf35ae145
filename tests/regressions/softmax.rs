//! Faults of softmax, log-sum-exp and attention.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Attention, CustomOp, DType, ErrorKind, Pairing, Pass, Tensor, grad};

use super::{bools, each_gradient, every_way, floats, of, ways};
use crate::Subject;
use crate::devices::oracle;
use crate::ops::near;

crate::suite![
    plain: b034_an_operation_without_a_gradient_says_so;
    device: b020_far_logits, b022_logsumexp_of_nothing_but_minus_infinity, b023_log_softmax_has_its_logarithm,
        b025_queries_that_see_nothing, b026_causal_and_mask_are_one_mask, b028_a_bias_of_halves,
        b029_many_keys, b031_masked_softmax_of_many_rows, b032_softmax_of_a_transposed_view,
        b034_fast_operations_keep_the_gradient, b035_scores_of_halves,
];

fn noise(dims: &[usize], turn: f64) -> Vec<f64> {
    let count: usize = dims.iter().product();
    (0..count).map(|i| ((i as f64 + turn) * 0.618_033_988_75).fract() * 4.0 - 2.0).collect()
}

fn b020_far_logits(on: &Subject) {
    let want = [0.090_030_57, 0.244_728_47, 0.665_240_96];
    every_way(on, &[floats([3], &[1000., 1001., 1002.])], |_, x| x[0].softmax(0), &[3], &want);
}

fn b022_logsumexp_of_nothing_but_minus_infinity(on: &Subject) {
    let low = f64::NEG_INFINITY;
    every_way(on, &[floats([5000], &[low; 5000])], |_, x| x[0].logsumexp(0), &[], &[low]);
    every_way(on, &[floats([5000, 2], &[low; 10_000])], |_, x| x[0].logsumexp(0), &[2], &[low; 2]);
}

fn b023_log_softmax_has_its_logarithm(on: &Subject) {
    let want = [-2.407_606, -1.407_606, -0.407_606];
    every_way(on, &[floats([3], &[1., 2., 3.])], |_, x| x[0].log_softmax(0), &[3], &want);
}

fn b025_queries_that_see_nothing(on: &Subject) {
    let dims = [1, 1, 4, 8];
    let given = |turn| floats(dims, &noise(&dims, turn));
    // All keys hidden; the first hidden and the rest causal, so that query 0 sees nothing.
    for (hidden, causal, zeros) in [([true; 4], false, 32), ([true, false, false, false], true, 8)] {
        let operands = [given(0.1), given(0.5), given(0.9), bools([4], &hidden)];
        ways(on, &operands, |p, x, say| {
            for mask in [!x[3], x[3].select(f64::NEG_INFINITY, p.zeros([4]))] {
                let options = Attention { causal, mask: Some(mask), ..Default::default() };
                let y = x[0].scaled_dot_product_attention(x[1], x[2], options);
                let values = y.to_vec::<f64>().unwrap();
                assert!(values[..zeros].iter().all(|y| *y == 0.0), "{say}: {values:?}");
                assert!(values[zeros..].iter().all(|y| y.is_finite() && *y != 0.0), "{say}: {values:?}");
                for g in grad(y.square().sum(..) + y.sum(..), &x[..3]).unwrap() {
                    let g = g.to_vec::<f64>().unwrap();
                    assert!(g.iter().all(|g| g.is_finite()), "{say}: {g:?}");
                }
            }
        });
    }
}

fn b026_causal_and_mask_are_one_mask(on: &Subject) {
    for len in [1, 2, 3, 31, 32, 33, 64, 130] {
        let dims = [2, len, 3];
        let operands = [0.1, 0.4, 0.8].map(|turn| floats(dims, &noise(&dims, turn)));
        ways(on, &operands, |p, x, say| {
            let t = p.arange(0..len as i32);
            let mask = Some(t.unsqueeze(1).ge(t));
            let attend = |causal, mask| {
                let options = Attention { causal, mask, ..Default::default() };
                x[0].scaled_dot_product_attention(x[1], x[2], options).to_vec::<f64>().unwrap()
            };
            let both = attend(true, mask);
            near(&format!("causal, {say}"), &both, &attend(true, None), 1e-6);
            near(&format!("mask, {say}"), &both, &attend(false, mask), 1e-6);
        });
    }
}

fn b028_a_bias_of_halves(on: &Subject) {
    let bias = of(DType::F16, [4], &[60_000.0; 4]);
    let weights = |_: &Pass, x: &[Tensor]| (x[0].zeros_like() + x[0]).softmax(0);
    every_way(on, &[bias], weights, &[4], &[0.25; 4]);
    let zeros = || of(DType::F16, [4, 2], &[0.0; 8]);
    let operands =
        [zeros(), zeros(), of(DType::F16, [4, 1], &[1., 2., 3., 6.]), of(DType::F16, [4], &[6e4; 4])];
    let attend = |_: &Pass, x: &[Tensor]| {
        let options = Attention { mask: Some(x[3]), ..Default::default() };
        x[0].scaled_dot_product_attention(x[1], x[2], options)
    };
    every_way(on, &operands, attend, &[4, 1], &[3.0; 4]);
}

fn b029_many_keys(on: &Subject) {
    let len = 40_000;
    ways(on, &[], |p, _, say| {
        let seen = p.arange(0..len).lt(len - 10);
        let v = seen.select(p.ones([len as usize]), 1e6).unsqueeze(1);
        let (q, k) = (p.zeros([1, 2]), p.zeros([len as usize, 2]));
        let options = Attention { mask: Some(seen), ..Default::default() };
        let y = q.scaled_dot_product_attention(k, v, options);
        near(say, &y.to_vec::<f64>().unwrap(), &[1.0], 1e-4);
    });
}

fn b031_masked_softmax_of_many_rows(on: &Subject) {
    let [heads, side] = if on.is_slow() { [2, 96] } else { [6, 96] };
    let x: Vec<f64> = (0..6 * side * side).map(|i| (i as f64 / 55_296.0 - 0.5) * 20.0).collect();
    let x = &x[..heads * side * side];
    ways(on, &[floats([heads, side, side], x)], |p, x, say| {
        let t = p.arange(0..side as i32);
        let y = x[0].masked_fill(t.gt(t.unsqueeze(1)), -1e4).softmax(-1);
        let rows = y.to_vec::<f64>().unwrap();
        let zeros = vec![0.0; side - 2];
        near(say, &rows[..side], &[&[1.0, 0.0], &zeros[..]].concat(), 1e-5);
        near(say, &rows[side..2 * side], &[&[0.499_91, 0.500_09], &zeros[..]].concat(), 1e-5);
        near(say, &y.sum(-1).to_vec::<f64>().unwrap(), &vec![1.0; heads * side], 1e-5);
    });
}

fn b032_softmax_of_a_transposed_view(on: &Subject) {
    let x = floats([3, 4], &(1..=12).map(f64::from).collect::<Vec<_>>());
    let want = [0.000_329_32, 0.017_980_29, 0.981_690_39].repeat(4);
    every_way(on, &[x], |_, x| x[0].t().softmax(1), &[4, 3], &want);
}

/// The gradient of the fast form is there and is that of the form by hand.
fn b034_fast_operations_keep_the_gradient(on: &Subject) {
    type Form = fn(&[Tensor]) -> Tensor;
    let forms: [(&str, Form, Form); 3] = [
        (
            "softmax",
            |x| x[0].softmax(-1),
            |x| {
                let e = (x[0] - x[0].max_keepdim(-1).detach()).exp();
                e / e.sum_keepdim(-1)
            },
        ),
        (
            "layer_norm",
            |x| x[0].layer_norm(None, None, 1e-5),
            |x| {
                let away = x[0] - x[0].mean_keepdim(-1);
                away / (away.square().mean_keepdim(-1) + 1e-5).sqrt()
            },
        ),
        (
            "rope",
            |x| x[0].rope(x[1].cos(), x[1].sin(), Pairing::Half),
            |x| {
                let (a, b) = (x[0].narrow(1, 0, 3), x[0].narrow(1, 3, 3));
                let (cos, sin) = (x[1].cos(), x[1].sin());
                Tensor::cat(&[a * cos - b * sin, a * sin + b * cos], 1)
            },
        ),
    ];
    for (name, fast, by_hand) in forms {
        let operands = [floats([5, 6], &noise(&[5, 6], 0.3)), floats([5, 3], &noise(&[5, 3], 0.6))];
        ways(on, &operands, |_, x, say| {
            let weight = x[1].mean(..) + x[0].sin();
            let slope = |f: Form| {
                let loss = (f(&[x[0] * 1.5, x[1]]) * weight.detach()).square().sum(..);
                grad(loss, &[x[0]]).unwrap()[0].to_vec::<f64>().unwrap()
            };
            let want = slope(by_hand);
            assert!(want.iter().any(|g| g.abs() > 1e-3), "{name}: {want:?}");
            near(&format!("{name}, {say}"), &slope(fast), &want, 2e-5);
        });
    }
}

fn b034_an_operation_without_a_gradient_says_so() {
    let thrice = CustomOp::new("thrice", include_str!("../programs/swish.wgsl"))
        .cpu(|x, y| y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = 3.0 * x))
        .build()
        .unwrap();
    let error = oracle().pass(|p| {
        let x = floats([2], &[1.0, 2.0]).on(p, super::Lie::Plain);
        grad((thrice.call(&[x])[0] + x).sum_all(), &[x]).map(|_| ())
    });
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gradient);
    assert!(error.to_string().contains("thrice"), "{error}");
}

/// The product of two rows of 256 times 16 is no f16, nor is any of its parts past the half.
fn b035_scores_of_halves(on: &Subject) {
    let same = || of(DType::F16, [1, 256], &[16.0; 256]);
    let far = [vec![16.0; 256], vec![-16.0; 256], vec![16.0; 256]].concat();
    let operands = [same(), of(DType::F16, [3, 256], &far), of(DType::F16, [3, 1], &[1., 50., 3.])];
    let attend = |_: &Pass, x: &[Tensor]| x[0].scaled_dot_product_attention(x[1], x[2], Attention::default());
    every_way(on, &operands, attend, &[1, 1], &[2.0]);
    every_way(on, &[same(), same()], |_, x| x[0].matmul(x[1].t()), &[1, 1], &[f64::INFINITY]);
    let wide = |_: &Pass, x: &[Tensor]| (x[0].cast(DType::F32) / 256.0).matmul(x[1].cast(DType::F32).t());
    every_way(on, &[same(), same()], wide, &[1, 1], &[256.0]);
    // Gradients of it are those of f32, rounded.
    let (q, k) = (of(DType::F16, [1, 256], &[16.0; 256]), of(DType::F16, [1, 256], &[16.0; 256]));
    let loss = |_: &Pass, x: &[Tensor]| x[0].cast(DType::F32).matmul(x[1].cast(DType::F32).t());
    each_gradient(on, &[q, k], loss, &[&[16.0; 256], &[16.0; 256]]);
}
