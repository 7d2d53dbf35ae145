//! Functions made of other methods; fusion makes each one kernel or two.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use wgrad_graph::DType;

use super::{AxesArg, cast};
use crate::{Result, Tensor};

/// `x - max(x)` along `axis`. The shift does not change what is computed from it, so no gradient runs
/// through it.
#[track_caller]
fn shifted(x: Tensor, axis: i32) -> Result<[Tensor; 2]> {
    let x = if x.try_out()?.dtype.is_float() { x } else { cast(x, DType::F32)? };
    let top = x.try_max_keepdim(axis)?.try_detach()?;
    Ok([x.try_sub(top)?, top])
}

/// `x / sqrt(mean(x^2) + eps)` over `axes`.
#[track_caller]
fn unit_rms(x: Tensor, axes: AxesArg, eps: f64) -> Result<Tensor> {
    let scale = x.try_square()?.try_mean_keepdim(axes)?.try_add(eps)?.try_rsqrt()?;
    x.try_mul(scale)
}

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
    /// `x * sigmoid(x)`.
    silu try_silu(self) -> Tensor { self.try_mul(self.try_sigmoid()?) }

    /// `x * P(Z <= x)` with the error function.
    gelu try_gelu(self) -> Tensor {
        let gate = self.try_mul(FRAC_1_SQRT_2)?.try_erf()?.try_add(1.0)?;
        self.try_mul(0.5)?.try_mul(gate)
    }

    /// The approximation of [`Tensor::gelu`] by `tanh`, as GPT-2 uses it.
    gelu_tanh try_gelu_tanh(self) -> Tensor {
        let cubic = self.try_square()?.try_mul(self)?.try_mul(0.044715)?.try_add(self)?;
        let gate = cubic.try_mul((2.0 / PI).sqrt())?.try_tanh()?.try_add(1.0)?;
        self.try_mul(0.5)?.try_mul(gate)
    }

    /// `log(1 + e^x)`. Numerics: `max(x, 0) + log1p(e^-|x|)`, without overflow.
    softplus try_softplus(self) -> Tensor {
        self.try_relu()?.try_add(self.try_abs()?.try_neg()?.try_exp()?.try_log1p()?)
    }

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

    /// `log(sum(e^x))` along `axis`, which is gone. Numerics: shifted by the maximum.
    logsumexp try_logsumexp(self, axis: i32) -> Tensor {
        let [down, top] = shifted(self, axis)?;
        down.try_exp()?.try_sum_keepdim(axis)?.try_log()?.try_add(top)?.try_squeeze(axis)
    }

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

    /// `(x - mean) / sqrt(var + eps)` over `axes`.
    normalize try_normalize(self, axes: impl Into<AxesArg>, eps: f64) -> Tensor {
        let axes = axes.into();
        let away = self.try_sub(self.try_mean_keepdim(axes.clone())?)?;
        unit_rms(away, axes, eps)
    }

    /// `weight * (x - mean) / sqrt(var + eps) + bias` over the last axis.
    ///
    /// Shape: `weight` and `bias` have the size of the last axis. Numerics: variance by two passes.
    layer_norm try_layer_norm(self, weight: Tensor, bias: Tensor, eps: f64) -> Tensor {
        self.try_normalize(-1, eps)?.try_mul(weight)?.try_add(bias)
    }

    /// `weight * x / sqrt(mean(x^2) + eps)` over the last axis.
    rms_norm try_rms_norm(self, weight: Tensor, eps: f64) -> Tensor {
        unit_rms(self, AxesArg::from(-1), eps)?.try_mul(weight)
    }
}
