//! Distances and cosines of vectors. Where a root has no derivative (equal vectors, zero vectors)
//! the gradient is 0.

use super::args::axis as axis_of;
use super::{cast, meet, shape};
use crate::{Result, Tensor};

use wgrad_graph::DType;

/// Options of [`Tensor::pairwise_distance_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PairwiseDistance {
    /// The norm, as in [`Tensor::norm`].
    pub p: f64,
    /// Added to each difference.
    pub eps: f64,
    /// Whether the axis of the vectors stays with size 1.
    pub keepdim: bool,
}

impl Default for PairwiseDistance {
    fn default() -> PairwiseDistance {
        PairwiseDistance { p: 2.0, eps: 1e-6, keepdim: false }
    }
}

/// Both in one float dtype and one shape.
#[track_caller]
fn floats(op: &str, x: Tensor, w: Tensor) -> Result<[Tensor; 2]> {
    let x = if x.try_out()?.dtype.is_float() { x } else { cast(x, DType::F32)? };
    meet(op, x, w)
}

methods! { impl Tensor, Self;
    /// `x / max(|x|, eps)` along `axis`, with the norm `p`.
    ///
    /// Gradient: `g / eps` at a zero vector, which f16 holds where `eps` is above 1.5e-5. Numerics: a zero
    /// vector stays zero.
    normalize try_normalize(self, axis: i32, p: f64, eps: f64) -> Tensor {
        in_f32!(self, try_normalize(axis, p, eps));
        let x = floats("normalize", self, self)?[0];
        let size = x.try_norm_keepdim(p, axis)?;
        let floor = size.number(eps, size.try_out()?.dtype)?;
        x.try_div(size.try_maximum(floor)?)
    }

    /// `x w / (max(|x|, eps) max(|w|, eps))` along `axis`, which is gone.
    ///
    /// Shape: both broadcast.
    cosine_similarity try_cosine_similarity(self, w: Tensor, axis: i32, eps: f64) -> Tensor {
        in_f32!(self, try_cosine_similarity(w, axis, eps));
        let op = "cosine_similarity";
        let [x, w] = floats(op, self, w)?;
        axis_of(op, axis, x.try_out()?.shape.rank())?;
        let floor = x.number(eps, x.try_out()?.dtype)?;
        let of_x = x.try_norm_keepdim(2.0, axis)?.try_maximum(floor)?;
        let of_w = w.try_norm_keepdim(2.0, axis)?.try_maximum(floor)?;
        x.try_mul(w)?.try_sum_keepdim(axis)?.try_div(of_x.try_mul(of_w)?)?.try_squeeze(axis)
    }

    /// `|x - w + 1e-6|` along the last axis, which is gone.
    ///
    /// Shape: both broadcast.
    pairwise_distance try_pairwise_distance(self, w: Tensor) -> Tensor {
        self.try_pairwise_distance_with(w, PairwiseDistance::default())
    }
    /// `|x - w + eps|` in the norm `p` along the last axis.
    pairwise_distance_with try_pairwise_distance_with(self, w: Tensor, options: PairwiseDistance) -> Tensor {
        in_f32!(self, try_pairwise_distance_with(w, options));
        let PairwiseDistance { p, eps, keepdim } = options;
        let op = "pairwise_distance";
        let [x, w] = floats(op, self, w)?;
        if x.try_out()?.shape.rank() == 0 {
            refuse!([x, w] Shape, op, "numbers are no vectors");
        }
        let far = x.try_sub(w)?.try_add(eps)?.try_norm_keepdim(p, -1)?;
        if keepdim { Ok(far) } else { far.try_squeeze(-1) }
    }

    /// The distance of each row of `x` from each row of `w` in the norm `p`.
    ///
    /// Shape: `[.., P, D]` and `[.., R, D]` give `[.., P, R]`; leading axes broadcast.
    /// Numerics: from differences, never from a product, so that near rows keep their distance.
    cdist try_cdist(self, w: Tensor, p: f64) -> Tensor {
        in_f32!(self, try_cdist(w, p));
        let (a, b) = (self.try_out()?.shape, w.try_out()?.shape);
        if a.rank() < 2 || b.rank() < 2 || a[a.rank() - 1] != b[b.rank() - 1] {
            refuse!([self, w] Shape, "cdist", "shapes {a} and {b} do not fit [.., P, D] and [.., R, D]");
        }
        shape("cdist", &[a.dims(), &[1]].concat())?;
        let [x, w] = floats("cdist", self.try_unsqueeze(-2)?, w.try_unsqueeze(-3)?)?;
        x.try_sub(w)?.try_norm(p, -1)
    }
}
