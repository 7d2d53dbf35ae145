//! Softmax and its logarithm; fusion makes each one kernel.

use wgrad_graph::{Axes, DType, Op, Reduce};

use super::reduce::without;
use super::{AxesArg, cast};
use crate::{Result, Tensor};

/// `x - max(x)` along `axis`. The shift does not change what is computed from it, so no gradient runs
/// through it.
#[track_caller]
pub(crate) fn shifted(x: Tensor, axis: i32) -> Result<[Tensor; 2]> {
    let x = if x.try_out()?.dtype.is_float() { x } else { cast(x, DType::F32)? };
    let top = x.try_max_keepdim(axis)?.try_detach()?;
    Ok([x.try_sub(top)?, top])
}

#[track_caller]
fn logsumexp(x: Tensor, axes: &AxesArg, keep: bool) -> Result<Tensor> {
    let from = x.try_out()?;
    let axes: Axes = axes.of("logsumexp", from.shape.rank())?.into_iter().collect();
    let x = if from.dtype.is_float() { x } else { cast(x, DType::F32)? };
    let reduced = |kind, x| Tensor::record(Op::Reduce { kind, axes }, &[x], None, None);
    // An infinite shift would make NaN of the difference to itself.
    let top = reduced(Reduce::Max, x.try_detach()?)?;
    let top = top.try_is_inf()?.try_select(0.0, top)?;
    let total = reduced(Reduce::Sum, x.try_sub(top)?.try_exp()?)?;
    let log = total.try_eq(0.0)?.try_select(f64::NEG_INFINITY, total.try_log()?)?.try_add(top)?;
    if keep { Ok(log) } else { without(log, axes) }
}

methods! { impl Tensor, Self;
    /// `e^x / sum(e^x)` along `axis`. Numerics: shifted by the maximum; a line of -inf alone gives NaN.
    softmax try_softmax(self, axis: i32) -> Tensor {
        in_f32!(self, try_softmax(axis));
        let [down, _] = shifted(self, axis)?;
        let e = down.try_exp()?;
        // A quotient a line: division by what is one number along it is dear, and its gradient takes three.
        e.try_mul(e.try_sum_keepdim(axis)?.try_recip()?)
    }

    /// `log(softmax(x))` along `axis`. Numerics: shifted by the maximum.
    log_softmax try_log_softmax(self, axis: i32) -> Tensor {
        in_f32!(self, try_log_softmax(axis));
        let [down, _] = shifted(self, axis)?;
        down.try_sub(down.try_exp()?.try_sum_keepdim(axis)?.try_log()?)
    }

    /// `log(sum(e^x))` over `axes`. Numerics: shifted by the maximum; -inf where all are -inf. Gradient:
    /// the softmax, 0 where all are -inf.
    logsumexp try_logsumexp(self, axes: impl Into<AxesArg>) -> Tensor {
        in_f32!(self, try_logsumexp(axes));
        logsumexp(self, &axes.into(), false)
    }
    /// As [`Tensor::logsumexp`]; the axes stay with size 1.
    logsumexp_keepdim try_logsumexp_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        in_f32!(self, try_logsumexp_keepdim(axes));
        logsumexp(self, &axes.into(), true)
    }
}
