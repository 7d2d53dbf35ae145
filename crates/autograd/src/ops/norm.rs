//! Normalisations; fusion makes each one kernel or two.

use super::AxesArg;
use crate::{Result, Tensor};

/// `x / sqrt(mean(x^2) + eps)` over `axes`.
#[track_caller]
fn unit_rms(x: Tensor, axes: AxesArg, eps: f64) -> Result<Tensor> {
    let scale = x.try_square()?.try_mean_keepdim(axes)?.try_add(eps)?.try_rsqrt()?;
    x.try_mul(scale)
}

methods! { impl Tensor, Self;
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
