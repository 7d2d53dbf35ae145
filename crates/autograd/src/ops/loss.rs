//! Losses.

use super::softmax::shifted;
use crate::{Result, Tensor};

/// `log(sum(exp(x))) - x[target]` along the last axis.
#[track_caller]
fn surprise(x: Tensor, targets: Tensor) -> Result<Tensor> {
    let [down, _] = shifted(x, -1)?;
    let total = down.try_exp()?.try_sum(-1)?.try_log()?;
    total.try_sub(pick("cross_entropy", down, targets)?)
}

/// `x[.., targets[..]]`.
#[track_caller]
fn pick(op: &str, x: Tensor, targets: Tensor) -> Result<Tensor> {
    let (from, t) = (x.try_out()?.shape, targets.try_out()?);
    if from.rank() == 0 || from.dims()[..from.rank() - 1] != *t.shape.dims() || !t.dtype.is_int() {
        refuse!([x, targets] Shape, op, "targets {t:?} are no integers as {from} without its last axis");
    }
    x.try_gather(-1, targets.try_unsqueeze(-1)?)?.try_squeeze(-1)
}

methods! { impl Tensor, Self;
    /// The mean of `-log(softmax(x)[target])`.
    ///
    /// Shape: logits `[.., C]`, integer targets `[..]`, result `[]`. Gradient: `(softmax - one_hot) / n`.
    /// A target outside `0..C` raises the step's error flag.
    cross_entropy try_cross_entropy(self, targets: Tensor) -> Tensor { surprise(self, targets)?.try_mean(..) }

    /// `-log(softmax(x)[target])` for each target: [`Tensor::cross_entropy`] without the mean.
    cross_entropy_each try_cross_entropy_each(self, targets: Tensor) -> Tensor { surprise(self, targets) }

    /// The mean of `-x[target]`, where `x` holds logarithms of probabilities.
    ///
    /// Shape: `[.., C]`, integer targets `[..]`, result `[]`.
    nll try_nll(self, targets: Tensor) -> Tensor { pick("nll", self, targets)?.try_mean(..)?.try_neg() }

    /// The mean of `(x - target)^2`.
    mse try_mse(self, target: Tensor) -> Tensor { self.try_sub(target)?.try_square()?.try_mean(..) }
}
