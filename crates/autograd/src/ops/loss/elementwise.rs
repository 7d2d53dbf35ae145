//! Losses of pairs of elements: regression and densities.

use std::f64::consts::PI;

use super::{Reduction, demand, float, pair, reduce};
use crate::{Result, Tensor};

/// Options of [`Tensor::smooth_l1_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SmoothL1 {
    /// Where the square ends and the straight line begins; 0 gives [`Tensor::l1`].
    pub beta: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for SmoothL1 {
    fn default() -> SmoothL1 {
        SmoothL1 { beta: 1.0, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::huber_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Huber {
    /// Where the square ends and the straight line begins; above 0.
    pub delta: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for Huber {
    fn default() -> Huber {
        Huber { delta: 1.0, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::kl_div_with`].
#[derive(Copy, Clone, Debug, PartialEq, Default)]
pub struct KlDiv {
    /// Whether the target holds logarithms of probabilities, as the input does.
    pub log_target: bool,
    /// What becomes of the elements' losses; [`Reduction::BatchMean`] is the divergence of a batch.
    pub reduction: Reduction,
}

/// Options of [`Tensor::poisson_nll_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PoissonNll {
    /// Whether the input is the logarithm of the rate.
    pub log_input: bool,
    /// Whether Stirling's approximation of `log(target!)` is added, where the target is above 1.
    pub full: bool,
    /// Added to the rate below the logarithm.
    pub eps: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for PoissonNll {
    fn default() -> PoissonNll {
        PoissonNll { log_input: true, full: false, eps: 1e-8, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::gaussian_nll_with`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct GaussianNll {
    /// Whether the constant `log(2 pi) / 2` is added.
    pub full: bool,
    /// Smallest variance; a smaller one counts as this, and its gradient passes as if it had been.
    pub eps: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for GaussianNll {
    fn default() -> GaussianNll {
        GaussianNll { full: false, eps: 1e-6, reduction: Reduction::Mean }
    }
}

/// `|d|^2 / 2` below `delta`, `delta * (|d| - delta / 2)` above: with `z = min(|d|, delta)` both are
/// `z * (|d| - z / 2)`, which has no branch that could leak.
#[track_caller]
fn huber(d: Tensor, delta: f64) -> Result<Tensor> {
    let size = d.try_abs()?;
    let z = size.try_minimum(size.number(delta, size.try_out()?.dtype)?)?;
    z.try_mul(size.try_sub(z.try_mul(0.5)?)?)
}

/// `x * log(x)`, 0 where `x <= 0`.
#[track_caller]
fn x_log_x(x: Tensor) -> Result<Tensor> {
    let positive = x.try_gt(0.0)?;
    positive.try_select(x.try_mul(positive.try_select(x, 1.0)?.try_log()?)?, 0.0)
}

methods! { impl Tensor, Self;
    /// The mean of `(x - target)^2`.
    ///
    /// Shape: both equal; result `[]`. The mean of no elements is NaN, its gradient empty.
    mse try_mse(self, target: Tensor) -> Tensor { self.try_mse_with(target, Reduction::Mean) }
    /// `(x - target)^2`, reduced.
    mse_with try_mse_with(self, target: Tensor, reduction: Reduction) -> Tensor {
        in_f32!(self, try_mse_with(target, reduction));
        let [x, t] = pair("mse", self, target)?;
        reduce("mse", x.try_sub(t)?.try_square()?, reduction)
    }

    /// The mean of `|x - target|`. Gradient: 0 where both are equal.
    ///
    /// Shape: both equal; result `[]`.
    l1 try_l1(self, target: Tensor) -> Tensor { self.try_l1_with(target, Reduction::Mean) }
    /// `|x - target|`, reduced.
    l1_with try_l1_with(self, target: Tensor, reduction: Reduction) -> Tensor {
        in_f32!(self, try_l1_with(target, reduction));
        let [x, t] = pair("l1", self, target)?;
        reduce("l1", x.try_sub(t)?.try_abs()?, reduction)
    }

    /// The mean of `d^2 / 2` where `d = |x - target| < 1`, else of `d - 1/2`.
    ///
    /// Shape: both equal; result `[]`.
    smooth_l1 try_smooth_l1(self, target: Tensor) -> Tensor {
        self.try_smooth_l1_with(target, SmoothL1::default())
    }
    /// `d^2 / (2 beta)` where `d = |x - target| < beta`, else `d - beta / 2`, reduced.
    smooth_l1_with try_smooth_l1_with(self, target: Tensor, options: SmoothL1) -> Tensor {
        in_f32!(self, try_smooth_l1_with(target, options));
        let SmoothL1 { beta, reduction } = options;
        demand("smooth_l1", beta >= 0.0, "beta is at least 0", beta)?;
        if beta == 0.0 {
            return self.try_l1_with(target, reduction);
        }
        let [x, t] = pair("smooth_l1", self, target)?;
        reduce("smooth_l1", huber(x.try_sub(t)?, beta)?.try_div(beta)?, reduction)
    }

    /// The mean of `d^2 / 2` where `d = |x - target| < 1`, else of `d - 1/2`.
    ///
    /// Shape: both equal; result `[]`.
    huber try_huber(self, target: Tensor) -> Tensor { self.try_huber_with(target, Huber::default()) }
    /// `d^2 / 2` where `d = |x - target| < delta`, else `delta * (d - delta / 2)`, reduced.
    huber_with try_huber_with(self, target: Tensor, options: Huber) -> Tensor {
        in_f32!(self, try_huber_with(target, options));
        let Huber { delta, reduction } = options;
        demand("huber", delta > 0.0, "delta is above 0", delta)?;
        let [x, t] = pair("huber", self, target)?;
        reduce("huber", huber(x.try_sub(t)?, delta)?, reduction)
    }

    /// The mean of `target * (log(target) - x)`, where `x` holds logarithms of probabilities.
    ///
    /// Shape: both equal; result `[]`. Numerics: 0 where the target is 0.
    kl_div try_kl_div(self, target: Tensor) -> Tensor { self.try_kl_div_with(target, KlDiv::default()) }
    /// `target * (log(target) - x)`, or `exp(target) * (target - x)`, reduced.
    kl_div_with try_kl_div_with(self, target: Tensor, options: KlDiv) -> Tensor {
        in_f32!(self, try_kl_div_with(target, options));
        let [x, t] = pair("kl_div", self, target)?;
        let each = match options.log_target {
            true => t.try_exp()?.try_mul(t.try_sub(x)?)?,
            false => x_log_x(t)?.try_sub(t.try_mul(x)?)?,
        };
        reduce("kl_div", each, options.reduction)
    }

    /// The mean of `exp(x) - target * x`: counts that follow a Poisson distribution of rate `exp(x)`.
    ///
    /// Shape: both equal; result `[]`.
    poisson_nll try_poisson_nll(self, target: Tensor) -> Tensor {
        self.try_poisson_nll_with(target, PoissonNll::default())
    }
    /// `exp(x) - target * x`, or `x - target * log(x + eps)`, reduced.
    poisson_nll_with try_poisson_nll_with(self, target: Tensor, options: PoissonNll) -> Tensor {
        in_f32!(self, try_poisson_nll_with(target, options));
        let PoissonNll { log_input, full, eps, reduction } = options;
        let [x, t] = pair("poisson_nll", self, target)?;
        let mut each = match log_input {
            true => x.try_exp()?.try_sub(t.try_mul(x)?)?,
            false => x.try_sub(t.try_mul(x.try_add(eps)?.try_log()?)?)?,
        };
        if full {
            let above = t.try_gt(1.0)?;
            let n = above.try_select(t, 1.0)?;
            let root = n.try_mul(2.0 * PI)?.try_log()?.try_mul(0.5)?;
            let stirling = n.try_mul(n.try_log()?)?.try_sub(n)?.try_add(root)?;
            each = each.try_add(above.try_select(stirling, 0.0)?)?;
        }
        reduce("poisson_nll", each, reduction)
    }

    /// The mean of `(log(var) + (x - target)^2 / var) / 2`: targets that are normal around `x`.
    ///
    /// Shape: input and target equal; `var` broadcasts to them.
    gaussian_nll try_gaussian_nll(self, target: Tensor, var: Tensor) -> Tensor {
        self.try_gaussian_nll_with(target, var, GaussianNll::default())
    }
    /// `(log(var) + (x - target)^2 / var) / 2`, reduced.
    gaussian_nll_with try_gaussian_nll_with(self, target: Tensor, var: Tensor, options: GaussianNll) -> Tensor {
        in_f32!(self, try_gaussian_nll_with(target, var, options));
        let GaussianNll { full, eps, reduction } = options;
        demand("gaussian_nll", eps > 0.0, "eps is above 0", eps)?;
        let [x, t] = pair("gaussian_nll", self, target)?;
        let (var, whole) = (float(var)?, x.try_out()?.shape);
        let shape = var.try_out()?.shape;
        if shape.broadcast(&whole) != Some(whole) {
            refuse!([x, t, var] Shape, "gaussian_nll", "variance {shape} does not broadcast to {whole}");
        }
        let floor = var.number(eps, var.try_out()?.dtype)?;
        let missing = floor.try_sub(var)?.try_maximum(0.0)?.try_detach()?;
        let var = var.try_add(missing)?;
        let mut each = var.try_log()?.try_add(x.try_sub(t)?.try_square()?.try_div(var)?)?.try_mul(0.5)?;
        if full {
            each = each.try_add(0.5 * (2.0 * PI).ln())?;
        }
        reduce("gaussian_nll", each, reduction)
    }
}
