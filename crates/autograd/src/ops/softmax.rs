//! Softmax and its logarithm; fusion makes each one kernel.

use wgrad_graph::DType;

use super::cast;
use crate::{Result, Tensor};

/// `x - max(x)` along `axis`. The shift does not change what is computed from it, so no gradient runs
/// through it.
#[track_caller]
pub(crate) fn shifted(x: Tensor, axis: i32) -> Result<[Tensor; 2]> {
    let x = if x.try_out()?.dtype.is_float() { x } else { cast(x, DType::F32)? };
    let top = x.try_max_keepdim(axis)?.try_detach()?;
    Ok([x.try_sub(top)?, top])
}

methods! { impl Tensor, Self;
    /// `e^x / sum(e^x)` along `axis`. Numerics: shifted by the maximum; a line of -inf alone gives NaN.
    softmax try_softmax(self, axis: i32) -> Tensor {
        let [down, _] = shifted(self, axis)?;
        let e = down.try_exp()?;
        e.try_div(e.try_sum_keepdim(axis)?)
    }

    /// `log(softmax(x))` along `axis`. Numerics: shifted by the maximum.
    log_softmax try_log_softmax(self, axis: i32) -> Tensor {
        let [down, _] = shifted(self, axis)?;
        down.try_sub(down.try_exp()?.try_sum_keepdim(axis)?.try_log()?)
    }

    /// `log(sum(e^x))` along `axis`, which is gone; -inf where all are. Numerics: shifted by the maximum.
    /// Gradient: `softmax(x)`; 0 where all are -inf.
    logsumexp try_logsumexp(self, axis: i32) -> Tensor {
        let x = if self.try_out()?.dtype.is_float() { self } else { cast(self, DType::F32)? };
        let top = x.try_max_keepdim(axis)?.try_detach()?;
        let finite = top.try_abs()?.try_lt(f64::INFINITY)?;
        let sum = x.try_sub(finite.try_select(top, 0.0)?)?.try_exp()?.try_sum_keepdim(axis)?;
        // Of -inf alone the sum is 0: `log(1) + top` is -inf too, and has no infinite slope.
        let sum = sum.try_eq(0.0)?.try_select(1.0, sum)?;
        sum.try_log()?.try_add(top)?.try_squeeze(axis)
    }
}
