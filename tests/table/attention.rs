//! Attention, rotary positions, softmax, distances, channels.

use wgrad::{Attention, Pairing, PairwiseDistance, Tensor};

use super::{Case, Operand, bools, case, float, floats_of, ints, ints_of};

fn heads(h: usize, g: usize) -> [Operand; 3] {
    [float([2, h, 3, 4], -1.5, 1.5), float([2, g, 5, 4], -1.5, 1.5), float([2, g, 5, 6], -1.5, 1.5)]
}

fn attend(x: &[Tensor], options: Attention<'_>) -> Tensor {
    x[0].scaled_dot_product_attention(x[1], x[2], options)
}

fn attention(all: &mut Vec<Case>) {
    let plain = heads(3, 3);
    let with = |extra: Operand| {
        let [q, k, v] = plain.clone();
        [q, k, v, extra]
    };
    // The second query sees nothing, the third all but one.
    let mask = ints_of([3, 5], &[1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1]);
    let hidden = floats_of(
        [3, 5],
        &[
            0.3,
            f64::NEG_INFINITY,
            1.0,
            -0.5,
            0.2,
            f64::NEG_INFINITY,
            0.0,
            0.1,
            0.4,
            -1.0,
            0.7,
            0.6,
            0.5,
            0.4,
            0.1,
        ],
    );
    all.push(case("scaled_dot_product_attention", plain.clone(), |_, x| attend(x, Attention::default())));
    all.push(case("scaled_dot_product_attention causal", plain.clone(), |_, x| {
        attend(x, Attention { causal: true, ..Default::default() })
    }));
    all.push(case(
        "scaled_dot_product_attention causal, more queries than keys",
        [float([2, 6, 4], -1.5, 1.5), float([2, 4, 4], -1.5, 1.5), float([2, 4, 3], -1.5, 1.5)],
        |_, x| attend(x, Attention { causal: true, ..Default::default() }),
    ));
    all.push(case("scaled_dot_product_attention scale", plain.clone(), |_, x| {
        attend(x, Attention { scale: Some(1.3), ..Default::default() })
    }));
    all.push(case("scaled_dot_product_attention boolean mask", with(bools([2, 1, 3, 5])), |_, x| {
        attend(x, Attention { mask: Some(x[3]), ..Default::default() })
    }));
    all.push(case("scaled_dot_product_attention masked rows", with(mask.clone()), |_, x| {
        attend(x, Attention { mask: Some(x[3].gt(0)), ..Default::default() })
    }));
    all.push(case("scaled_dot_product_attention causal and mask", with(mask), |_, x| {
        attend(x, Attention { causal: true, mask: Some(x[3].gt(0)), ..Default::default() })
    }));
    all.push(case(
        "scaled_dot_product_attention additive mask",
        with(float([3, 3, 5], -1.0, 1.0)),
        |_, x| attend(x, Attention { mask: Some(x[3]), ..Default::default() }),
    ));
    // Infinities have no derivative by differences: the mask is no operand with a gradient here.
    all.push(
        case("scaled_dot_product_attention infinite mask", with(hidden), |_, x| {
            attend(x, Attention { mask: Some(x[3].detach()), ..Default::default() })
        })
        .no_grad(),
    );
    for (name, h, g) in [("grouped", 6, 3), ("one head of keys", 4, 1)] {
        all.push(case(format!("scaled_dot_product_attention {name}"), heads(h, g), |_, x| {
            attend(x, Attention { causal: true, ..Default::default() })
        }));
    }
    all.push(case(
        "scaled_dot_product_attention grouped with mask",
        {
            let [q, k, v] = heads(4, 2);
            [q, k, v, float([4, 1, 5], -1.0, 1.0)]
        },
        |_, x| attend(x, Attention { mask: Some(x[3]), ..Default::default() }),
    ));
    all.push(case(
        "scaled_dot_product_attention without heads",
        [float([3, 4], -1.5, 1.5), float([5, 4], -1.5, 1.5), float([5, 2], -1.5, 1.5)],
        |_, x| attend(x, Attention::default()),
    ));
    for d in [1, 3, 64, 80, 256] {
        let [l, s, e] = if d > 64 { [2, 3, d] } else { [3, 4, d.min(5)] };
        let operands =
            [float([1, l, d], -1.5, 1.5), float([1, s, d], -1.5, 1.5), float([1, s, e], -1.5, 1.5)];
        let one = case(format!("scaled_dot_product_attention head of {d}"), operands, |_, x| {
            attend(x, Attention { causal: true, ..Default::default() })
        });
        all.push(if d > 64 { one.once() } else { one });
    }
    // Longer than a block in both directions, by odd numbers.
    for (name, l, s, causal) in [("blocks", 131, 67, false), ("causal blocks", 67, 131, true)] {
        let operands =
            [float([2, l, 5], -1.5, 1.5), float([1, s, 5], -1.5, 1.5), float([1, s, 3], -1.5, 1.5)];
        let options = Attention { causal, ..Default::default() };
        all.push(
            case(format!("scaled_dot_product_attention {name}"), operands, move |_, x| attend(x, options))
                .large(),
        );
    }
    for (name, l, s) in [("one query", 1, 5), ("one key", 4, 1), ("no query", 0, 5), ("no key", 4, 0)] {
        let operands =
            [float([2, l, 3], -1.5, 1.5), float([2, s, 3], -1.5, 1.5), float([2, s, 2], -1.5, 1.5)];
        all.push(case(format!("scaled_dot_product_attention {name}"), operands, |_, x| {
            attend(x, Attention { causal: true, ..Default::default() })
        }));
    }
    all.push(case(
        "scaled_dot_product_attention of heads after time",
        [float([2, 3, 4, 5], -1.5, 1.5), float([2, 6, 2, 5], -1.5, 1.5), float([2, 6, 2, 5], -1.5, 1.5)],
        |_, x| {
            let [q, k, v] = [x[0], x[1], x[2]].map(|x| x.transpose(1, 2));
            attend(&[q, k, v], Attention::default()).transpose(1, 2)
        },
    ));
    all.push(case(
        "scaled_dot_product_attention shared by a batch",
        [float([3, 2, 4, 5], -1.5, 1.5), float([1, 2, 6, 5], -1.5, 1.5), float([1, 2, 6, 5], -1.5, 1.5)],
        |_, x| attend(x, Attention::default()),
    ));
    all.push(case(
        "scaled_dot_product_attention one head of queries, batches of batches",
        [
            float([2, 1, 1, 4, 3], -1.5, 1.5),
            float([2, 3, 2, 5, 3], -1.5, 1.5),
            float([2, 3, 2, 5, 3], -1.5, 1.5),
        ],
        |_, x| attend(x, Attention { causal: true, ..Default::default() }),
    ));
    for (name, pairing) in [("half", Pairing::Half), ("interleaved", Pairing::Interleaved)] {
        let operands = [float([2, 3, 5, 8], -2.0, 2.0), float([5, 4], -1.0, 1.0), float([5, 4], -1.0, 1.0)];
        all.push(case(format!("rope {name}"), operands, move |_, x| x[0].rope(x[1], x[2], pairing)));
        let operands = [float([3, 5, 8], -2.0, 2.0), float([5, 3], -1.0, 1.0), float([5, 3], -1.0, 1.0)];
        all.push(case(format!("rope partial {name}"), operands, move |_, x| x[0].rope(x[1], x[2], pairing)));
    }
}

fn softmax(all: &mut Vec<Case>) {
    let x = || float([3, 5, 4], -3.0, 3.0);
    for axis in [0, 1, -1] {
        all.push(case(format!("softmax axis {axis}"), [x()], move |_, x| x[0].softmax(axis)));
        all.push(case(format!("log_softmax axis {axis}"), [x()], move |_, x| x[0].log_softmax(axis)));
    }
    all.push(case("softmax one", [float([3, 1], -3.0, 3.0)], |_, x| x[0].softmax(1)));
    all.push(case("softmax empty", [float([0, 4], -3.0, 3.0)], |_, x| x[0].softmax(1)));
    all.push(case("log_softmax large", [float([2, 300], -1e4, 1e4)], |_, x| x[0].log_softmax(1)).no_grad());
    all.push(
        case("softmax of a long line", [float([2, 20_011], -3.0, 3.0)], |_, x| x[0].softmax(1))
            .no_grad()
            .large(),
    );
}

fn distances(all: &mut Vec<Case>) {
    let (x, w) = (float([3, 5], -2.0, 2.0), float([3, 5], -1.0, 0.7));
    for axis in [0, 1] {
        all.push(case(format!("cosine_similarity axis {axis}"), [x.clone(), w.clone()], move |_, x| {
            x[0].cosine_similarity(x[1], axis, 1e-8)
        }));
        all.push(case(format!("normalize axis {axis}"), [x.clone()], move |_, x| {
            x[0].normalize(axis, 2.0, 1e-12)
        }));
    }
    all.push(case("cosine_similarity broadcast", [float([3, 1, 5], -2.0, 2.0), w.clone()], |_, x| {
        x[0].cosine_similarity(x[1], -1, 1e-8)
    }));
    for p in [0.0, 1.0, 1.5, 2.0, 3.0, f64::INFINITY] {
        let grad = |c: Case| if p == 0.0 { c.no_grad() } else { c };
        all.push(grad(case(format!("normalize p {p}"), [x.clone()], move |_, x| {
            x[0].normalize(1, p, 1e-12)
        })));
        all.push(grad(case(format!("pairwise_distance p {p}"), [x.clone(), w.clone()], move |_, x| {
            x[0].pairwise_distance_with(x[1], PairwiseDistance { p, keepdim: true, ..Default::default() })
        })));
        let operands = [float([2, 3, 4], -2.0, 2.0), float([5, 4], -1.0, 0.7)];
        all.push(grad(case(format!("cdist p {p}"), operands, move |_, x| x[0].cdist(x[1], p))));
    }
    all.push(case("pairwise_distance", [x, w], |_, x| x[0].pairwise_distance(x[1])));
}

fn channels(all: &mut Vec<Case>) {
    all.push(case("pixel_shuffle", [float([2, 12, 3, 5], -2.0, 2.0)], |_, x| x[0].pixel_shuffle(2)));
    all.push(case("pixel_shuffle 3", [float([9, 2, 1], -2.0, 2.0)], |_, x| x[0].pixel_shuffle(3)));
    all.push(case("pixel_unshuffle", [float([2, 3, 6, 4], -2.0, 2.0)], |_, x| x[0].pixel_unshuffle(2)));
    all.push(case("channel_shuffle", [float([2, 6, 3, 2], -2.0, 2.0)], |_, x| x[0].channel_shuffle(3)));
    all.push(
        case("embedding_padded", [float([5, 3], -2.0, 2.0), ints([4, 2], 0, 5)], |_, x| {
            x[0].embedding_padded(x[1], 2).square()
        })
        .no_grad(),
    );
    all.push(case("embedding", [float([5, 3], -2.0, 2.0), ints([4, 2], 0, 5)], |_, x| x[0].embedding(x[1])));
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    attention(&mut all);
    softmax(&mut all);
    distances(&mut all);
    channels(&mut all);
    all
}
