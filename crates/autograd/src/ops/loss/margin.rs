//! Losses with a margin, and losses of distances.

use super::classes::check_weight;
use super::{Reduction, demand, float, pair, reduce};
use crate::ops::distance::PairwiseDistance;
use crate::{Result, Tensor};

/// Options of [`Tensor::hinge_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Hinge {
    /// How far on its side an input must be to cost nothing.
    pub margin: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for Hinge {
    fn default() -> Hinge {
        Hinge { margin: 1.0, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::hinge_embedding_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct HingeEmbedding {
    /// The distance from which unlike pairs cost nothing.
    pub margin: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for HingeEmbedding {
    fn default() -> HingeEmbedding {
        HingeEmbedding { margin: 1.0, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::margin_ranking_with`].
#[derive(Copy, Clone, Debug, PartialEq, Default)]
pub struct MarginRanking {
    /// By how much the first must be ahead to cost nothing.
    pub margin: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

/// Options of [`Tensor::cosine_embedding_with`].
#[derive(Copy, Clone, Debug, PartialEq, Default)]
pub struct CosineEmbedding {
    /// The cosine up to which unlike pairs cost nothing.
    pub margin: f64,
    /// What becomes of the pairs' losses.
    pub reduction: Reduction,
}

/// Options of [`Tensor::triplet_margin_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct TripletMargin {
    /// By how much the negative must be farther away than the positive.
    pub margin: f64,
    /// The norm of the distances.
    pub p: f64,
    /// Added to each difference.
    pub eps: f64,
    /// Whether the distance of positive and negative counts where it is smaller than that of anchor and
    /// negative (Balntas et al. 2016).
    pub swap: bool,
    /// What becomes of the triplets' losses.
    pub reduction: Reduction,
}

impl Default for TripletMargin {
    fn default() -> TripletMargin {
        TripletMargin { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::multi_margin_with`].
#[derive(Copy, Clone, Debug)]
pub struct MultiMargin {
    /// The power of the distances: 1 or 2.
    pub p: i32,
    /// By how much the target's class must be ahead of each other.
    pub margin: f64,
    /// A weight for each class, `[C]`.
    pub weight: Option<Tensor>,
    /// What becomes of the targets' losses.
    pub reduction: Reduction,
}

impl Default for MultiMargin {
    fn default() -> MultiMargin {
        MultiMargin { p: 1, margin: 1.0, weight: None, reduction: Reduction::Mean }
    }
}

/// Operands as pairs of vectors, one target a pair.
#[track_caller]
fn vectors(op: &str, x: Tensor, w: Tensor, target: Tensor) -> Result<[Tensor; 3]> {
    let [x, w] = pair(op, x, w)?;
    let (from, t) = (x.try_out()?.shape, target.try_out()?.shape);
    if from.rank() == 0 || from.dims()[..from.rank() - 1] != *t.dims() {
        refuse!([x, w, target] Shape, op, "targets {t} for vectors {from}: need one a vector");
    }
    Ok([x, w, float(target)?])
}

methods! { impl Tensor, Self;
    /// The mean of `max(0, 1 - target * x)`, where targets are 1 and -1.
    ///
    /// Shape: both equal; result `[]`. Gradient: 0 at the edge.
    hinge try_hinge(self, target: Tensor) -> Tensor { self.try_hinge_with(target, Hinge::default()) }
    /// `max(0, margin - target * x)`, reduced.
    hinge_with try_hinge_with(self, target: Tensor, options: Hinge) -> Tensor {
        in_f32!(self, try_hinge_with(target, options));
        let [x, t] = pair("hinge", self, target)?;
        let each = t.try_mul(x)?.try_neg()?.try_add(options.margin)?.try_relu()?;
        reduce("hinge", each, options.reduction)
    }

    /// The mean of `x` where the target is 1, of `max(0, 1 - x)` where it is -1.
    ///
    /// Shape: both equal; result `[]`.
    hinge_embedding try_hinge_embedding(self, target: Tensor) -> Tensor {
        self.try_hinge_embedding_with(target, HingeEmbedding::default())
    }
    /// `x` where the target is 1, `max(0, margin - x)` where it is -1, reduced.
    hinge_embedding_with try_hinge_embedding_with(self, target: Tensor, options: HingeEmbedding) -> Tensor {
        in_f32!(self, try_hinge_embedding_with(target, options));
        let [x, t] = pair("hinge_embedding", self, target)?;
        let like = t.try_ne(-1.0)?.try_select(x, 0.0)?;
        let unlike = x.try_neg()?.try_add(options.margin)?.try_relu()?;
        let each = like.try_add(t.try_ne(1.0)?.try_select(unlike, 0.0)?)?;
        reduce("hinge_embedding", each, options.reduction)
    }

    /// The mean of `log(1 + exp(-target * x))`, where targets are 1 and -1.
    ///
    /// Shape: both equal; result `[]`.
    soft_margin try_soft_margin(self, target: Tensor) -> Tensor {
        self.try_soft_margin_with(target, Reduction::Mean)
    }
    /// `log(1 + exp(-target * x))`, reduced. Numerics: without overflow.
    soft_margin_with try_soft_margin_with(self, target: Tensor, reduction: Reduction) -> Tensor {
        in_f32!(self, try_soft_margin_with(target, reduction));
        let [x, t] = pair("soft_margin", self, target)?;
        reduce("soft_margin", t.try_mul(x)?.try_neg()?.try_softplus()?, reduction)
    }

    /// The mean of `max(0, -target * (x - w))`: the target is 1 where `x` should rank higher, else -1.
    ///
    /// Shape: all equal; result `[]`.
    margin_ranking try_margin_ranking(self, w: Tensor, target: Tensor) -> Tensor {
        self.try_margin_ranking_with(w, target, MarginRanking::default())
    }
    /// `max(0, margin - target * (x - w))`, reduced.
    margin_ranking_with try_margin_ranking_with(self, w: Tensor, target: Tensor, options: MarginRanking) -> Tensor {
        in_f32!(self, try_margin_ranking_with(w, target, options));
        let [x, w] = pair("margin_ranking", self, w)?;
        let [ahead, t] = pair("margin_ranking", x.try_sub(w)?, target)?;
        let each = t.try_mul(ahead)?.try_neg()?.try_add(options.margin)?.try_relu()?;
        reduce("margin_ranking", each, options.reduction)
    }

    /// The mean of `1 - cos(x, w)` where the target is 1, of `max(0, cos(x, w))` where it is -1.
    ///
    /// Shape: vectors `[.., D]`, targets `[..]`, result `[]`.
    cosine_embedding try_cosine_embedding(self, w: Tensor, target: Tensor) -> Tensor {
        self.try_cosine_embedding_with(w, target, CosineEmbedding::default())
    }
    /// `1 - cos(x, w)` where the target is 1, `max(0, cos(x, w) - margin)` where it is -1, reduced.
    /// Numerics: `cos = x w / sqrt((x x + 1e-12) (w w + 1e-12))`.
    cosine_embedding_with try_cosine_embedding_with(self, w: Tensor, target: Tensor, options: CosineEmbedding) -> Tensor {
        in_f32!(self, try_cosine_embedding_with(w, target, options));
        let op = "cosine_embedding";
        let [x, w, t] = vectors(op, self, w, target)?;
        let xx = x.try_square()?.try_sum(-1)?.try_add(1e-12)?;
        let ww = w.try_square()?.try_sum(-1)?.try_add(1e-12)?;
        let cos = x.try_mul(w)?.try_sum(-1)?.try_div(xx.try_mul(ww)?.try_sqrt()?)?;
        let like = t.try_eq(1.0)?.try_select(cos.try_neg()?.try_add(1.0)?, 0.0)?;
        let unlike = cos.try_sub(options.margin)?.try_relu()?;
        reduce(op, like.try_add(t.try_eq(-1.0)?.try_select(unlike, 0.0)?)?, options.reduction)
    }

    /// The mean of `max(0, |x - positive| - |x - negative| + 1)` with the distances of vectors.
    ///
    /// Shape: all `[.., D]`; result `[]`.
    triplet_margin try_triplet_margin(self, positive: Tensor, negative: Tensor) -> Tensor {
        self.try_triplet_margin_with(positive, negative, TripletMargin::default())
    }
    /// `max(0, d(x, positive) - d(x, negative) + margin)` with distances as in
    /// [`Tensor::pairwise_distance_with`], reduced.
    triplet_margin_with try_triplet_margin_with(self, positive: Tensor, negative: Tensor, options: TripletMargin) -> Tensor {
        in_f32!(self, try_triplet_margin_with(positive, negative, options));
        let TripletMargin { margin, p, eps, swap, reduction } = options;
        let op = "triplet_margin";
        let [x, near] = pair(op, self, positive)?;
        let [x, far] = pair(op, x, negative)?;
        let distance = PairwiseDistance { p, eps, keepdim: false };
        let to_near = x.try_pairwise_distance_with(near, distance)?;
        let mut to_far = x.try_pairwise_distance_with(far, distance)?;
        if swap {
            to_far = to_far.try_minimum(near.try_pairwise_distance_with(far, distance)?)?;
        }
        reduce(op, to_near.try_sub(to_far)?.try_add(margin)?.try_relu()?, reduction)
    }

    /// The mean of `sum(max(0, 1 - x[target] + x[i])) / C` over the classes `i` beside the target's.
    ///
    /// Shape: `[.., C]`, integer targets `[..]`, result `[]`.
    multi_margin try_multi_margin(self, targets: Tensor) -> Tensor {
        self.try_multi_margin_with(targets, MultiMargin::default())
    }
    /// `sum(weight[target] * max(0, margin - x[target] + x[i])^p) / C` over the classes `i` beside the
    /// target's, reduced. The mean is not weighted.
    multi_margin_with try_multi_margin_with(self, targets: Tensor, options: MultiMargin) -> Tensor {
        in_f32!(self, try_multi_margin_with(targets, options));
        let MultiMargin { p, margin, weight, reduction } = options;
        let op = "multi_margin";
        demand(op, p == 1 || p == 2, "p is 1 or 2", f64::from(p))?;
        let x = float(self)?;
        let (from, t) = (x.try_out()?.shape, targets.try_out()?);
        if from.rank() == 0 || from.dims()[..from.rank() - 1] != *t.shape.dims() || !t.dtype.is_int() {
            refuse!([x, targets] Shape, op, "targets {t:?} are no integers as {from} without its last axis");
        }
        let idx = targets.try_unsqueeze(-1)?;
        let short = x.try_sub(x.try_gather(-1, idx)?)?.try_add(margin)?.try_relu()?;
        let mut each = if p == 2 { short.try_square()? } else { short };
        if let Some(weight) = weight {
            check_weight(op, Some(weight), from[from.rank() - 1])?;
            each = each.try_mul(float(weight)?.try_embedding(targets)?.try_unsqueeze(-1)?)?;
        }
        let own = targets.try_one_hot(from[from.rank() - 1])?.try_gt(0.0)?;
        reduce(op, own.try_select(0.0, each)?.try_mean(-1)?, reduction)
    }
}
