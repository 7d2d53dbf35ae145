//! Softmax, attention, rotary positions, similarities.

use wgrad::{Attention, DType, Pairing, PairwiseDistance, Pass, Tensor};

use super::{Golden, golden, one, two};

fn softmaxes() -> Vec<Golden> {
    vec![
        one("softmax", |x| x.softmax(-1)),
        one("softmax axis", |x| x.softmax(1)),
        one("softmax large", |x| x.softmax(-1)),
        one("softmax inf", |x| x.softmax(-1)),
        one("softmax all minus inf", |x| x.softmax(-1)),
        one("softmax twice", |x| x.softmax(-1)),
        one("softmin", |x| (-x).softmax(-1)),
        one("log_softmax", |x| x.log_softmax(-1)),
        one("log_softmax axis", |x| x.log_softmax(0)),
        one("log_softmax large", |x| x.log_softmax(-1)),
        one("log_softmax twice", |x| x.log_softmax(-1)),
    ]
}

fn attend(x: &[Tensor], options: Attention<'_>) -> Tensor {
    x[0].scaled_dot_product_attention(x[1], x[2], options)
}

fn attentions() -> Vec<Golden> {
    let plain = Attention::default;
    let causal = || Attention { causal: true, ..Attention::default() };
    vec![
        golden("attention", move |_, x| attend(x, plain())),
        golden("attention scale", move |_, x| attend(x, Attention { scale: Some(0.3), ..plain() })),
        golden("attention causal", move |_, x| attend(x, causal())),
        golden("attention rank 3", move |_, x| attend(x, plain())),
        golden("attention mask", move |_, x| attend(x, Attention { mask: Some(x[3]), ..plain() })),
        golden("attention mask gradient", move |_, x| attend(x, Attention { mask: Some(x[3]), ..plain() })),
        golden("attention bool mask", move |_, x| attend(x, Attention { mask: Some(x[3]), ..plain() })),
        golden("attention masked row", move |_, x| attend(x, Attention { mask: Some(x[3]), ..plain() })),
        golden("attention groups", move |_, x| attend(x, plain())),
        golden("attention twice", move |_, x| attend(x, plain())),
        golden("attention causal twice", move |_, x| attend(x, causal())),
    ]
}

/// Rotary positions from `offset` on, tables from their definition.
fn rope(p: &Pass, x: Tensor, pairing: Pairing, base: f64, offset: i32) -> Tensor {
    let shape = x.shape();
    let (n, d) = (shape[shape.rank() - 2] as i32, shape[shape.rank() - 1] as i32);
    let place = p.arange(offset..offset + n).cast(DType::F64).unsqueeze(-1);
    let frequency = (p.arange(0..d / 2).cast(DType::F64) * (-2.0 * base.ln() / f64::from(d))).exp();
    let angle = place * frequency;
    x.rope(angle.cos(), angle.sin(), pairing)
}

fn positions() -> Vec<Golden> {
    vec![
        golden("rope", |p, x| rope(p, x[0], Pairing::Half, 10000.0, 0)),
        golden("rope interleaved", |p, x| rope(p, x[0], Pairing::Interleaved, 10000.0, 0)),
        golden("rope offset", |p, x| rope(p, x[0], Pairing::Half, 500.0, 3)),
    ]
}

fn distances() -> Vec<Golden> {
    vec![
        two("cosine_similarity", |a, b| a.cosine_similarity(b, 1, 1e-8)),
        two("cosine_similarity broadcast", |a, b| a.cosine_similarity(b, -1, 1e-8)),
        two("cosine_similarity zeros", |a, b| a.cosine_similarity(b, 0, 1e-8)),
        two("pairwise_distance", Tensor::pairwise_distance),
        two("pairwise_distance 1", |a, b| {
            a.pairwise_distance_with(b, PairwiseDistance { p: 1.0, keepdim: true, ..Default::default() })
        }),
        two("pairwise_distance equal", Tensor::pairwise_distance),
        two("cdist", |a, b| a.cdist(b, 2.0)),
        one("normalize", |x| x.normalize(1, 2.0, 1e-12)),
        one("normalize 1", |x| x.normalize(0, 1.0, 1e-12)),
        one("normalize zeros", |x| x.normalize(0, 2.0, 1e-12)),
        golden("linear", |_, x| x[0].matmul(x[1].t()) + x[2]),
        golden("bilinear", |_, x| Tensor::einsum("bi,oij,bj->bo", &[x[0], x[2], x[1]]) + x[3]),
    ]
}

fn channels() -> Vec<Golden> {
    vec![
        one("pixel_shuffle", |x| x.pixel_shuffle(2)),
        one("pixel_unshuffle", |x| x.pixel_unshuffle(2)),
        one("channel_shuffle", |x| x.channel_shuffle(3)),
        golden("embedding padding", |_, x| x[0].embedding_padded(x[1], 2)),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = softmaxes();
    all.extend(attentions());
    all.extend(positions());
    all.extend(distances());
    all.extend(channels());
    all
}
