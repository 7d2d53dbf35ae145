//! Losses, normalisations and attention against values known from thought: edges, masks, empty sets.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{
    Attention, BatchNorm, Context, CrossEntropy, Ctc, ErrorKind, HostTensor, Pairing, PairwiseDistance, Pass,
    Reduction, Result, Tensor, grad,
};

use crate::Subject;
use crate::devices::cpu;
use crate::ops::{floats, near};

crate::suite![
    plain: mistakes;
    device: logits_at_zero_have_a_slope, ctc_counts_every_path,
        ctc_without_a_path_is_infinite, zero_vectors_have_no_slope, rope_turns, padding_learns_nothing,
        a_row_that_is_not_there, whole_channels_drop, alpha_dropout_keeps_moments, hard_samples_are_one_hot,
];

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
