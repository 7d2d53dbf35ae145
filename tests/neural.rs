//! Losses, normalisations and attention against values known from thought: edges, masks, empty sets.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{
    Attention, BatchNorm, Context, CrossEntropy, Ctc, ErrorKind, HostTensor, Nll, Pairing, PairwiseDistance,
    Pass, Reduction, Result, Tensor, grad,
};

use crate::Subject;
use crate::devices::cpu;
use crate::ops::{floats, near};

crate::suite![
    plain: mistakes;
    device: constant_lines_normalise_to_zero, eps_stands_inside_the_root, running_statistics_are_unbiased,
        cross_entropy_by_hand, ignored_targets_have_no_influence, means_of_nothing,
        logarithms_of_zero_are_cut, logits_at_zero_have_a_slope, queries_that_see_nothing_give_zeros,
        causal_and_mask_are_one_mask, a_long_row_of_keys, ctc_counts_every_path,
        ctc_without_a_path_is_infinite, zero_vectors_have_no_slope, rope_turns, padding_learns_nothing,
        a_row_that_is_not_there, whole_channels_drop, alpha_dropout_keeps_moments, hard_samples_are_one_hot,
        repeated_gradients_are_bit_equal
];

const NAN: f64 = f64::NAN;

fn ints(p: &Pass, dims: &[usize], elems: &[i32]) -> Tensor {
    p.input(HostTensor::new(dims, elems).unwrap()).unwrap()
}

fn noise(p: &Pass, dims: &[usize], turn: f64) -> Tensor {
    let count: usize = dims.iter().product();
    let x: Vec<f32> =
        (0..count).map(|i| (((i as f64 + turn) * 0.618_033_988_75).fract() * 4.0 - 2.0) as f32).collect();
    floats(p, dims, &x)
}

/// The value of `f` and the gradient of its sum by the leaf.
fn value_and_slope(p: &Pass, x: Tensor, f: impl Fn(Tensor) -> Tensor) -> Result<[Vec<f64>; 2]> {
    let _ = p;
    let y = f(x);
    let dx = grad(y.sum(..), &[x])?[0];
    Ok([y.to_vec()?, dx.to_vec()?])
}

fn constant_lines_normalise_to_zero(on: &Subject) {
    on.context()
        .pass(|p| {
            near("layer", &p.full([256], 1234.0).layer_norm(None, None, 1e-5).to_vec()?, &[0.0; 256], 0.0);
            let (zero, one) = (p.zeros([2]), p.ones([2]));
            let y = p.full([8, 2], 1e10).batch_norm_train(zero, one, None, None, BatchNorm::default())[0];
            near("batch", &y.to_vec()?, &[0.0; 16], 0.0);
            near(
                "group",
                &p.full([2, 4, 3], -7.7).group_norm(2, None, None, 1e-5).to_vec()?,
                &[0.0; 24],
                1e-3,
            );
            let x = p.full([4], 3.0);
            let first = floats(p, [4], &[1.0, 0.0, 0.0, 0.0]);
            let dx = grad((x.layer_norm(None, None, 1e-5) * first).sum(..), &[x])?[0];
            near("slope", &dx.to_vec()?, &[237.171, -79.057, -79.057, -79.057], 1e-5);
            let huge = floats(p, [2], &[1e30, -1e30]).layer_norm(None, None, 1e-5).to_vec::<f64>()?;
            assert!(huge.iter().all(|x| x.is_finite()), "{huge:?}");
            Ok(())
        })
        .unwrap();
}

fn eps_stands_inside_the_root(on: &Subject) {
    on.context()
        .pass(|p| {
            near(
                "layer",
                &floats(p, [2], &[1.0, 2.0]).layer_norm(None, None, 0.75).to_vec()?,
                &[-0.5, 0.5],
                1e-6,
            );
            let x = floats(p, [2], &[1.0, 7f32.sqrt()]).rms_norm(p.full([1], 3.0), 5.0);
            near("rms", &x.to_vec()?, &[1.0, 7f64.sqrt()], 1e-6);
            Ok(())
        })
        .unwrap();
}

fn running_statistics_are_unbiased(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = floats(p, [4, 1], &[0.0, 1.0, 2.0, 3.0]);
            let [y, mean, var] =
                x.batch_norm_train(p.zeros([1]), p.ones([1]), None, None, BatchNorm::default());
            near("mean", &mean.to_vec()?, &[0.15], 1e-6);
            near("var", &var.to_vec()?, &[1.066_667], 1e-6);
            let unit = 1.0 / (1.25f64 + 1e-5).sqrt();
            near("y", &y.to_vec()?, &[-1.5 * unit, -0.5 * unit, 0.5 * unit, 1.5 * unit], 1e-6);
            let dm = grad(y.sum(..) + mean.sum(..) + var.sum(..), &[x])?[0];
            near("no gradient by statistics", &dm.to_vec()?, &[0.0; 4], 1e-6);
            Ok(())
        })
        .unwrap();
}

fn cross_entropy_by_hand(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = floats(p, [3], &[1.0, 2.0, 3.0]);
            let labels = floats(p, [3], &[0.0, -2.0, 0.0]);
            let [loss, dx] = value_and_slope(p, x, |x| x.cross_entropy(labels))?;
            near("loss", &loss, &[-2.815_212], 1e-6);
            near("labels need not sum to one", &dx, &[-0.180_061, 1.510_543, -1.330_482], 1e-6);
            let soft = floats(p, [3], &[0.2, 0.3, 0.5]);
            near("soft", &x.cross_entropy(soft).to_vec()?, &[1.107_606], 1e-6);
            near("log_softmax", &x.log_softmax(0).to_vec()?, &[-2.407_606, -1.407_606, -0.407_606], 1e-6);
            let far = floats(p, [3], &[1000.0, 1001.0, 1002.0]).softmax(0);
            near("softmax", &far.to_vec()?, &[0.090_030_57, 0.244_728_47, 0.665_240_96], 1e-6);
            let none = p.full([5000], f64::NEG_INFINITY).softmax(0).to_vec::<f64>()?;
            assert!(none.iter().all(|x| x.is_nan()), "a line of -inf alone has no softmax");
            let even = p.full([200_000], 3.0).softmax(0).to_vec::<f64>()?;
            assert!(even.iter().all(|x| (x - 5e-6).abs() < 1e-10));
            Ok(())
        })
        .unwrap();
}

fn ignored_targets_have_no_influence(on: &Subject) {
    on.context()
        .pass(|p| {
            // Weights, smoothing and an ignored target: against the formula in plain numbers.
            let logits = [[0.5f32, -1.0, 2.0], [1.5, 0.25, -0.75], [f32::NAN, f32::INFINITY, 0.0]];
            let x = floats(p, [3, 3], logits.as_flattened());
            let (t, w) = (ints(p, &[3], &[2, 0, 9]), [0.2f64, 0.3, 0.7]);
            let weight = floats(p, [3], &w.map(|w| w as f32));
            let options = CrossEntropy {
                ignore_index: Some(9),
                label_smoothing: 0.1,
                weight: Some(weight),
                ..Default::default()
            };
            let [loss, dx] = value_and_slope(p, x, |x| x.cross_entropy_with(t, options))?;
            let (mut want, mut divisor) = (0.0, 0.0);
            for (row, target) in [(0, 2), (1, 0)] {
                let z = logits[row].map(f64::from);
                let total = z.iter().map(|z| z.exp()).sum::<f64>().ln();
                want += 0.9 * w[target] * (total - z[target]);
                want += 0.1 / 3.0 * (0..3).map(|c| w[c] * (total - z[c])).sum::<f64>();
                divisor += w[target];
            }
            near("loss", &loss, &[want / divisor], 1e-6);
            assert!(dx[..6].iter().all(|d| d.is_finite() && *d != 0.0), "{dx:?}");
            assert_eq!(dx[6..], [0.0; 3], "a line that does not count gets nothing, even of NaN");
            // Nothing counts: NaN, but no gradient.
            let all = ints(p, &[3], &[9, 9, 9]);
            let plain = CrossEntropy { ignore_index: Some(9), ..Default::default() };
            for options in [plain, options] {
                let [loss, dx] = value_and_slope(p, x, |x| x.cross_entropy_with(all, options))?;
                near("nothing counts", &loss, &[NAN], 0.0);
                assert_eq!(dx, [0.0; 9]);
            }
            let nll = Nll { ignore_index: Some(9), ..Default::default() };
            let [loss, dx] = value_and_slope(p, x, |x| x.nll_with(all, nll))?;
            near("nothing counts", &loss, &[NAN], 0.0);
            assert_eq!(dx, [0.0; 9]);
            let sum = CrossEntropy { reduction: Reduction::Sum, ..plain };
            near("sum of nothing", &x.cross_entropy_with(all, sum).to_vec()?, &[0.0], 0.0);
            Ok(())
        })
        .unwrap();
}

fn means_of_nothing(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = p.zeros([0]);
            let y = p.ones([0]);
            let [loss, dx] = value_and_slope(p, x, |x| x.mse(y))?;
            near("mse", &loss, &[NAN], 0.0);
            assert!(dx.is_empty());
            near("sum", &x.mse_with(y, Reduction::Sum).to_vec()?, &[0.0], 0.0);
            let x = floats(p, [4], &[1.0, 2.0, 3.0, 4.0]);
            near("factor", &grad(x.mean(..) * 3.0, &[x])?[0].to_vec()?, &[0.75; 4], 0.0);
            Ok(())
        })
        .unwrap();
}

fn logarithms_of_zero_are_cut(on: &Subject) {
    on.context()
        .pass(|p| {
            let (x, t) =
                (floats(p, [5], &[0.0, 1.0, 0.0, 1.0, 0.5]), floats(p, [5], &[1.0, 1.0, 0.0, 0.0, 1.0]));
            let each = wgrad::Bce { reduction: Reduction::None, ..Default::default() };
            let [loss, dx] = value_and_slope(p, x, |x| x.bce_with(t, each))?;
            near("bce", &loss, &[100.0, 0.0, 0.0, 100.0, std::f64::consts::LN_2], 1e-6);
            assert!(dx.iter().all(|d| d.is_finite()), "{dx:?}");
            near("slope", &dx[4..], &[-2.0], 1e-6);
            let nan = floats(p, [1], &[f32::NAN]).bce(p.ones([1]));
            assert!(nan.item::<f64>()?.is_nan());
            Ok(())
        })
        .unwrap();
}

fn logits_at_zero_have_a_slope(on: &Subject) {
    on.context()
        .pass(|p| {
            let (x, t) = (floats(p, [4], &[0.0, 0.0, 90.0, -90.0]), floats(p, [4], &[1.0, 0.0, 0.0, 1.0]));
            let sum = wgrad::BceWithLogits { reduction: Reduction::None, ..Default::default() };
            let [loss, dx] = value_and_slope(p, x, |x| x.bce_with_logits_with(t, sum))?;
            let ln2 = std::f64::consts::LN_2;
            near("loss", &loss, &[ln2, ln2, 90.0, 90.0], 1e-6);
            near("slope", &dx, &[-0.5, 0.5, 1.0, -1.0], 1e-6);
            let [_, dx] = value_and_slope(p, p.zeros([1]), |x| x.soft_margin(ints(p, &[1], &[-1])))?;
            near("soft_margin", &dx, &[0.5], 1e-6);
            Ok(())
        })
        .unwrap();
}

fn queries_that_see_nothing_give_zeros(on: &Subject) {
    on.context()
        .pass(|p| {
            let dims = [1, 1, 4, 8];
            let x = [noise(p, &dims, 0.1), noise(p, &dims, 0.5), noise(p, &dims, 0.9)];
            let all_hidden = p.zeros([4, 4]).gt(1.0);
            // The first key is hidden and the rest is causal: query 0 sees nothing.
            let not_first = ints(p, &[4], &[0, 1, 1, 1]).gt(0);
            let minus = all_hidden.select(0.0, p.full([4, 4], f64::NEG_INFINITY));
            for (name, mask, causal, zeros) in [
                ("all", all_hidden, false, 32),
                ("first and causal", not_first, true, 8),
                ("all by numbers", minus, false, 32),
            ] {
                let options = Attention { causal, mask: Some(mask), ..Default::default() };
                let y = x[0].scaled_dot_product_attention(x[1], x[2], options);
                let values = y.to_vec::<f64>()?;
                assert!(values[..zeros].iter().all(|y| *y == 0.0), "{name}: {values:?}");
                assert!(values[zeros..].iter().all(|y| y.is_finite() && *y != 0.0), "{name}: {values:?}");
                for g in grad(y.square().sum(..) + y.sum(..), &x)? {
                    let g = g.to_vec::<f64>()?;
                    assert!(g.iter().all(|g| g.is_finite()), "{name}: {g:?}");
                }
            }
            Ok(())
        })
        .unwrap();
}

fn causal_and_mask_are_one_mask(on: &Subject) {
    for len in [1, 2, 3, 31, 32, 33, 64, 130] {
        on.context()
            .pass(|p| {
                let x = |turn| noise(p, &[2, len, 3], turn);
                let [q, k, v] = [x(0.1), x(0.4), x(0.8)];
                let t = p.arange(0..len as i32);
                let mask = Some(t.unsqueeze(1).ge(t));
                let attend = |causal, mask| {
                    q.scaled_dot_product_attention(k, v, Attention { causal, mask, ..Default::default() })
                };
                let both = attend(true, mask).to_vec::<f64>()?;
                near("causal", &both, &attend(true, None).to_vec()?, 1e-6);
                near("mask", &both, &attend(false, mask).to_vec()?, 1e-6);
                Ok(())
            })
            .unwrap();
    }
}

fn a_long_row_of_keys(on: &Subject) {
    let len = 40_000;
    on.context()
        .pass(|p| {
            let seen = p.arange(0..len).lt(len - 10);
            let v = seen.select(p.ones([len as usize]), 1e6).unsqueeze(1);
            let (q, k) = (p.zeros([1, 2]), p.zeros([len as usize, 2]));
            let options = Attention { mask: Some(seen), ..Default::default() };
            let y = q.scaled_dot_product_attention(k, v, options);
            near("hidden keys weigh nothing", &y.to_vec()?, &[1.0], 1e-4);
            let high = Attention { mask: Some(p.full([len as usize], 60_000.0)), ..Default::default() };
            let y = q.scaled_dot_product_attention(k, p.ones([len as usize, 1]), high);
            near("a bias on all keys", &y.to_vec()?, &[1.0], 1e-4);
            Ok(())
        })
        .unwrap();
}

/// The probability of `target` by trying every path.
fn all_paths(probs: &[Vec<f64>], target: &[usize], blank: usize) -> f64 {
    let classes = probs.first().map_or(0, Vec::len);
    let count = classes.pow(probs.len() as u32);
    let mut sum = 0.0;
    for mut code in 0..count {
        let (mut chance, mut said, mut last) = (1.0, Vec::new(), blank);
        for p in probs {
            let c = code % classes;
            code /= classes;
            chance *= p[c];
            if c != last && c != blank {
                said.push(c);
            }
            last = c;
        }
        if said == target {
            sum += chance;
        }
    }
    sum
}

fn ctc_counts_every_path(on: &Subject) {
    let (steps, classes) = (5, 3);
    for (target, blank, len) in [
        (&[1usize, 2][..], 0, 5),
        (&[1, 1], 0, 5),
        (&[2], 0, 3),
        (&[], 0, 4),
        (&[0, 0, 1], 2, 5),
        (&[1, 2, 1], 0, 3),
    ] {
        on.context()
            .pass(|p| {
                let x = noise(p, &[steps, 1, classes], 0.3).log_softmax(-1);
                let probs: Vec<Vec<f64>> =
                    (x.exp().to_vec::<f64>()?).chunks(classes).take(len).map(<[f64]>::to_vec).collect();
                let mut labels = vec![-7i32; 4];
                for (l, t) in labels.iter_mut().zip(target) {
                    *l = *t as i32;
                }
                let (lens, lent) = (ints(p, &[1], &[len as i32]), ints(p, &[1], &[target.len() as i32]));
                let options = Ctc { blank: blank as i32, reduction: Reduction::Sum, ..Default::default() };
                let loss = x.ctc_with(ints(p, &[1, 4], &labels), lens, lent, options);
                let want = -all_paths(&probs, target, blank).ln();
                near(&format!("{target:?}"), &loss.to_vec()?, &[want], 1e-5);
                let g = grad(loss, &[x])?[0].to_vec::<f64>()?;
                assert!(g.iter().all(|g| g.is_finite()), "{g:?}");
                // At each step that runs, the chances of all labels add to one.
                for (t, g) in g.chunks(classes).enumerate() {
                    near("step", &[g.iter().sum()], &[if t < len { -1.0 } else { 0.0 }], 1e-4);
                }
                Ok(())
            })
            .unwrap();
    }
}

fn ctc_without_a_path_is_infinite(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = noise(p, &[2, 2, 3], 0.3).log_softmax(-1);
            // A repeated label needs a blank between: three steps, of which there are two.
            let (t, lens) = (ints(p, &[2, 2], &[1, 1, 1, 2]), ints(p, &[2], &[2, 2]));
            let each = Ctc { reduction: Reduction::None, ..Default::default() };
            let loss = x.ctc_with(t, lens, lens, each);
            let got = loss.to_vec::<f64>()?;
            assert!(got[0] == f64::INFINITY && got[1].is_finite(), "{got:?}");
            let g = grad(loss.sum(..), &[x])?[0].to_vec::<f64>()?;
            assert!(g.iter().all(|g| g.is_finite()), "{g:?}");
            let zero = x.ctc_with(t, lens, lens, Ctc { zero_infinity: true, ..each }).to_vec::<f64>()?;
            assert_eq!((zero[0], zero[1]), (0.0, got[1]));
            let never = p.full([2, 1, 3], f64::NEG_INFINITY);
            let one = ints(p, &[1], &[1]);
            let loss = never.ctc(ints(p, &[1, 1], &[1]), one * 2, one);
            assert_eq!(loss.item::<f64>()?, f64::INFINITY);
            Ok(())
        })
        .unwrap();
}

fn zero_vectors_have_no_slope(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = p.zeros([2, 3]);
            let [y, dx] = value_and_slope(p, x, |x| x.normalize(-1, 2.0, 1e-2))?;
            near("normalize", &y, &[0.0; 6], 0.0);
            near("slope of normalize", &dx, &[100.0; 6], 1e-6);
            for power in [1.0, 1.5, 2.0, 3.0, f64::INFINITY] {
                let [y, dx] = value_and_slope(p, x, |x| x.cdist(p.zeros([2, 3]), power))?;
                near("cdist", &y, &[0.0; 4], 0.0);
                near("slope of cdist", &dx, &[0.0; 6], 0.0);
            }
            let [y, dx] = value_and_slope(p, x, |x| x.cosine_similarity(p.ones([3]), -1, 1e-8))?;
            near("cosine", &y, &[0.0; 2], 0.0);
            assert!(dx.iter().all(|d| d.is_finite()), "{dx:?}");
            let same = PairwiseDistance { eps: 0.0, ..Default::default() };
            let [_, dx] = value_and_slope(p, x, |x| x.pairwise_distance_with(p.zeros([3]), same))?;
            near("slope of a distance", &dx, &[0.0; 6], 0.0);
            Ok(())
        })
        .unwrap();
}

fn rope_turns(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = floats(p, [1, 6], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            let (cos, sin) = (floats(p, [1, 2], &[0.0, 1.0]), floats(p, [1, 2], &[1.0, 0.0]));
            let half = x.rope(cos, sin, Pairing::Half);
            near("half", &half.to_vec()?, &[-3.0, 2.0, 1.0, 4.0, 5.0, 6.0], 1e-6);
            let pairs = x.rope(cos, sin, Pairing::Interleaved);
            near("interleaved", &pairs.to_vec()?, &[-2.0, 1.0, 3.0, 4.0, 5.0, 6.0], 1e-6);
            Ok(())
        })
        .unwrap();
}

fn padding_learns_nothing(on: &Subject) {
    on.context()
        .pass(|p| {
            let table = noise(p, &[4, 2], 0.2);
            let idx = ints(p, &[2, 3], &[1, 3, 1, 0, 3, 3]);
            let [y, dt] = value_and_slope(p, table, |t| t.embedding_padded(idx, 3))?;
            near("rows", &y, &table.embedding(idx).to_vec()?, 0.0);
            near("slope", &dt, &[1.0, 1.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0], 0.0);
            Ok(())
        })
        .unwrap();
}

fn a_row_that_is_not_there(on: &Subject) {
    // An error flag is its device's: other tests must not hear of this one.
    let ctx = Context::new(on.fresh()).unwrap();
    let error = ctx.pass(|p| noise(p, &[4, 2], 0.2).embedding(ints(p, &[2], &[1, 4])).to_vec::<f64>());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Data);
    let error = ctx.pass(|p| noise(p, &[2, 4], 0.2).cross_entropy(ints(p, &[2], &[1, -100])).item::<f64>());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Data, "nothing is ignored unless it is said");
}

fn whole_channels_drop(on: &Subject) {
    on.context()
        .pass(|p| {
            let y = p.ones([64, 16, 3, 2]).dropout_channels("d", 0.25).to_vec::<f64>()?;
            let mut dropped = 0;
            for channel in y.chunks(6) {
                assert!(channel.iter().all(|x| *x == channel[0]), "{channel:?}");
                assert!(channel[0] == 0.0 || (channel[0] - 4.0 / 3.0).abs() < 1e-6);
                dropped += usize::from(channel[0] == 0.0);
            }
            assert!(dropped.abs_diff(256) < 60, "{dropped} of 1024");
            Ok(())
        })
        .unwrap();
}

fn alpha_dropout_keeps_moments(on: &Subject) {
    on.context()
        .pass(|p| {
            let y = p.randn("x", [300, 301]).alpha_dropout("d", 0.3).to_vec::<f64>()?;
            let n = y.len() as f64;
            let mean = y.iter().sum::<f64>() / n;
            let var = y.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / n;
            assert!(mean.abs() < 0.02 && (var - 1.0).abs() < 0.02, "{mean} {var}");
            Ok(())
        })
        .unwrap();
}

fn hard_samples_are_one_hot(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = noise(p, &[50, 4], 0.2);
            let [y, dx] = value_and_slope(p, x, |x| {
                let y = x.gumbel_softmax("g", -1, 0.7, true);
                y * p.arange(0..4)
            })?;
            for (i, line) in y.chunks(4).enumerate() {
                let hits: Vec<usize> =
                    (0..4).filter(|c| (line[*c] - *c as f64).abs() < 1e-5 && *c > 0).collect();
                assert!(hits.len() <= 1 && line.iter().sum::<f64>() < 3.001, "line {i}: {line:?}");
            }
            assert!(dx.iter().filter(|d| **d != 0.0).count() > 150, "{dx:?}");
            let soft = x.gumbel_softmax("g", 0, 0.7, false).sum(0).to_vec::<f64>()?;
            near("soft", &soft, &[1.0; 4], 1e-5);
            Ok(())
        })
        .unwrap();
}

fn repeated_gradients_are_bit_equal(on: &Subject) {
    let ctx = on.context();
    let mut first: Option<Vec<f32>> = None;
    for _ in 0..20 {
        let db = ctx
            .pass(|p| {
                let (x, g) = (noise(p, &[64, 512], 0.3), noise(p, &[64, 512], 0.7));
                let b = p.zeros([512]);
                let y = x.layer_norm(p.ones([512]), b, 1e-5);
                grad((y * g).sum(..), &[b])?[0].to_vec::<f32>()
            })
            .unwrap();
        assert_eq!(*first.get_or_insert(db.clone()), db);
    }
}

fn mistakes() {
    let ctx = cpu();
    ctx.pass(|p| {
        let (x, t, i) = (p.ones([2, 3]), p.ones([3]), ints(p, &[2], &[0, 1]));
        let image = p.ones([2, 4, 1, 1]);
        let one = p.ones([4]);
        let smooth = CrossEntropy { label_smoothing: 1.5, ..Default::default() };
        let ignore = CrossEntropy { ignore_index: Some(1), ..Default::default() };
        let heavy = CrossEntropy { weight: Some(p.ones([2])), ..Default::default() };
        let norm = |p| PairwiseDistance { p, ..Default::default() };
        let mask = |mask| Attention { mask: Some(mask), ..Default::default() };
        for (result, part) in [
            (x.try_mse(t), "input [2, 3] and target [3] differ"),
            (x.try_huber_with(x, wgrad::Huber { delta: 0.0, ..Default::default() }), "delta is above 0"),
            (x.try_cross_entropy(ints(p, &[3], &[0, 0, 0])), "without axis 1"),
            (x.try_cross_entropy_with(i, smooth), "smoothing is in 0 ..= 1"),
            (x.try_cross_entropy_with(x, ignore), "the targets are probabilities"),
            (x.try_cross_entropy_with(i, heavy), "class weights [2] for 3 classes"),
            (x.try_gaussian_nll(x, p.ones([2])), "does not broadcast"),
            (x.try_layer_norm(p.ones([2]), None, 1e-5), "does not fit the trailing axes [3]"),
            (x.try_group_norm(2, None, None, 1e-5), "3 channels of [2, 3] in 2 groups"),
            (image.try_instance_norm(None, None, 1e-5), "one place a channel"),
            (image.try_batch_norm(one, p.ones([3]), None, None, 1e-5), "not one number for each"),
            (t.try_group_norm(1, None, None, 1e-5), "[3] is not [N, C, ..]"),
            (x.try_pairwise_distance_with(x, norm(f64::NAN)), "the norm of order NaN"),
            (x.try_cdist(p.ones([2, 4]), 2.0), "do not fit [.., P, D] and [.., R, D]"),
            (x.try_scaled_dot_product_attention(p.ones([2, 4]), x, Attention::default()), "do not fit"),
            (x.try_scaled_dot_product_attention(x, x, mask(p.ones([3]))), "mask [3] does not broadcast"),
            (x.try_scaled_dot_product_attention(x, x, mask(i)), "a mask is of truth values or floats"),
            (x.try_rope(p.ones([2, 2]), p.ones([2, 2]), Pairing::Half), "need [T, R] with 2 R <= D"),
            (image.try_pixel_shuffle(3), "4 channels are no multiple of 3^2"),
            (image.try_channel_shuffle(3), "3 groups"),
            (x.try_ctc(i, i, i), "needs [T, N, C]"),
            (x.try_embedding_padded(i, 2), "row 2 of [2, 3]"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(part), "{error}\nshould say {part:?}");
        }
        let train = p.ones([1, 4]).try_batch_norm_train(one, one, None, None, BatchNorm::default());
        assert!(train.unwrap_err().to_string().contains("1 values a channel"));
        Ok(())
    })
    .unwrap();
}
