//! Draws from weighted categories, and the cuts of their tails that language models sample behind.

use wgrad_graph::{DType, Result, Shape};

use crate::tensor::Tensor;

/// The size of the last axis.
#[track_caller]
fn categories(op: &'static str, x: Tensor) -> Result<usize> {
    let shape = x.try_out()?.shape;
    if shape.rank() == 0 {
        refuse!([x] Shape, op, "needs an axis of categories");
    }
    Ok(shape[shape.rank() - 1])
}

/// `x` where it is at least `least`, which has one element a line, and minus infinity elsewhere.
#[track_caller]
fn from(x: Tensor, least: Tensor) -> Result<Tensor> {
    x.try_ge(least)?.try_select(x, f64::NEG_INFINITY)
}

methods! { impl Tensor, Self;
    /// The logits of the `k` likeliest categories along the last axis, minus infinity elsewhere. All that equal
    /// the `k`-th largest stay.
    ///
    /// Gradient: `g` where the logit stays. Errors: `k` is 0 or more than there are categories.
    ///
    /// ```
    /// # use wgrad_autograd::{Context, Pass};
    /// # fn main() -> wgrad_graph::Result<()> { let ctx = wgrad::Context::new(&wgrad::Device::cpu())?;
    /// # ctx.pass(|p| {
    /// # let logits = p.input(wgrad::HostTensor::new([1, 4], &[0.5f32, 2.0, -1.0, 1.0])?)?;
    /// let next = logits.keep_top_k(3).keep_top_p(0.9).categorical("sample", 0.8);
    /// # assert!(next.to_vec::<i32>()?[0] != 2); Ok(()) }) }
    /// ```
    keep_top_k try_keep_top_k(self, k: usize) -> Tensor {
        let n = categories("keep_top_k", self)?;
        if !(1..=n).contains(&k) {
            refuse!([self] Argument, "keep_top_k", "{k} of {n} categories");
        }
        let least = self.try_detach()?.try_topk(k, -1, true)?.0.try_narrow(-1, k - 1, 1)?;
        from(self, least)
    }

    /// The logits of the likeliest categories along the last axis that together have at least the probability `p`
    /// (the nucleus), minus infinity elsewhere. The likeliest always stays, and all that equal the last that stays.
    ///
    /// Gradient: `g` where the logit stays. Errors: `p` is not in (0, 1].
    /// Source: Holtzman et al. 2019.
    keep_top_p try_keep_top_p(self, p: f64) -> Tensor {
        categories("keep_top_p", self)?;
        if !(p > 0.0 && p <= 1.0) {
            refuse!([self] Argument, "keep_top_p", "the probability {p} is not in (0, 1]");
        }
        if p >= 1.0 {
            return Ok(self);
        }
        let sorted = self.try_detach()?.try_sort(-1, true)?.0;
        let share = sorted.try_softmax(-1)?;
        // What the likelier ones have together; of the first it is exactly 0.
        let before = share.try_cumsum(-1)?.try_sub(share)?;
        let least = before.try_lt(p)?.try_select(sorted, f64::INFINITY)?.try_min_keepdim(-1)?;
        from(self, least)
    }

    /// `count` indices (i32) along the last axis, drawn with probabilities in proportion to the weights `x`, which
    /// are not negative; with replacement independent of each other, without it all different. No gradient.
    ///
    /// Shape: `[.., C] -> [.., count]`.
    /// Numerics: the largest of `log(x) + gumbel`; the noise is bit-equal on every adapter. A weight of 0 is drawn
    /// only where, without replacement, fewer than `count` are positive.
    /// Errors: without replacement, more draws than categories.
    multinomial try_multinomial(self, stream: &str, count: usize, replacement: bool) -> Tensor {
        let n = categories("multinomial", self)?;
        if count > n && !replacement {
            refuse!([self] Argument, "multinomial", "{count} different ones of {n} categories");
        }
        let logits = self.try_detach()?.try_cast(DType::F32)?.try_log()?;
        if replacement {
            let shape = logits.try_out()?.shape;
            let (outer, last) = shape.dims().split_at(shape.rank() - 1);
            let shape = Shape::from(&[outer, &[count], last].concat());
            return logits.try_unsqueeze(-2)?.try_expand(shape)?.try_categorical(stream, 1.0);
        }
        Ok(logits.try_add(logits.try_gumbel_like(stream)?)?.try_topk(count, -1, true)?.1)
    }
}
