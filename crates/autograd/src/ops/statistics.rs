//! Spread and size: variance, standard deviation, norms, and reductions that pass over NaN.

use wgrad_graph::{DType, Reduce};

use super::reduce::{mean, reduce};
use super::{AxesArg, cast, widen};
use crate::{Result, Tensor};

/// The mean (axes kept) and the variance over `axes`.
#[track_caller]
fn var_mean(x: Tensor, axes: &AxesArg, correction: usize, keep: bool) -> Result<[Tensor; 2]> {
    let from = x.try_out()?;
    let x = if from.dtype.is_float() { x } else { cast(x, DType::F32)? };
    let n: usize = axes.of("var", from.shape.rank())?.iter().map(|a| from.shape[*a]).product();
    let middle = mean(x, axes, true)?;
    let squares = reduce(Reduce::Sum, x.try_sub(middle)?.try_square()?, axes, keep)?;
    Ok([squares.try_div(n.saturating_sub(correction) as f64)?, middle])
}

#[track_caller]
fn std(x: Tensor, axes: &AxesArg, correction: usize, keep: bool) -> Result<Tensor> {
    let [var, _] = var_mean(x, axes, correction, keep)?;
    root(var)
}

/// The root, whose gradient at 0 is 0.
#[track_caller]
fn root(x: Tensor) -> Result<Tensor> {
    x.try_eq(0.0)?.try_select(0.0, x.try_sqrt()?)
}

#[track_caller]
fn norm(x: Tensor, p: f64, axes: &AxesArg, keep: bool) -> Result<Tensor> {
    if p.is_nan() {
        refuse!([x] Argument, "norm", "the norm of order NaN");
    }
    let x = if x.try_out()?.dtype.is_float() { x } else { cast(x, DType::F32)? };
    if p == 0.0 {
        let dtype = x.try_out()?.dtype;
        return reduce(Reduce::Sum, cast(x.try_ne(0.0)?, dtype)?, axes, keep);
    }
    if p == 2.0 {
        return root(reduce(Reduce::Sum, x.try_square()?, axes, keep)?);
    }
    let size = x.try_abs()?;
    if p.is_infinite() {
        return reduce(if p > 0.0 { Reduce::Max } else { Reduce::Min }, size, axes, keep);
    }
    if p == 1.0 {
        return reduce(Reduce::Sum, size, axes, keep);
    }
    // A zero has the gradient 0, where the power alone has an infinite slope for p below 1.
    let zero = size.try_eq(0.0)?;
    let power = size.try_pow(p)?;
    let power = if p > 0.0 { zero.try_select(0.0, power)? } else { power };
    let total = reduce(Reduce::Sum, power, axes, keep)?;
    let y = total.try_pow(1.0 / p)?;
    if p > 0.0 { total.try_eq(0.0)?.try_select(0.0, y) } else { Ok(y) }
}

/// `x` with 0 for NaN.
#[track_caller]
fn without_nan(x: Tensor) -> Result<Tensor> {
    if x.try_out()?.dtype.is_float() { x.try_is_nan()?.try_select(0.0, x) } else { Ok(x) }
}

methods! { impl Tensor, Self;
    /// The sum of squared distances from the mean over `axes`, by `n - correction`: 0 for the variance of
    /// what is given, 1 (PyTorch's default) for an unbiased estimate. NaN where `n <= correction` leaves
    /// nothing to divide by.
    ///
    /// Numerics: two passes, so a large mean does not cancel, and nothing is negative.
    var try_var(self, axes: impl Into<AxesArg>, correction: usize) -> Tensor {
        in_f32!(self, try_var(axes, correction));
        let [var, _] = var_mean(self, &axes.into(), correction, false)?;
        Ok(var)
    }
    /// As [`Tensor::var`]; the axes stay with size 1.
    var_keepdim try_var_keepdim(self, axes: impl Into<AxesArg>, correction: usize) -> Tensor {
        in_f32!(self, try_var_keepdim(axes, correction));
        let [var, _] = var_mean(self, &axes.into(), correction, true)?;
        Ok(var)
    }
    /// [`Tensor::var`] and the mean, both with `axes` of size 1.
    var_mean try_var_mean(self, axes: impl Into<AxesArg>, correction: usize) -> (Tensor, Tensor) {
        let (x, dtype) = widen(self)?;
        let [var, mean] = var_mean(x, &axes.into(), correction, true)?;
        Ok((cast(var, dtype)?, cast(mean, dtype)?))
    }
    /// The root of [`Tensor::var`]. Gradient: 0 where all elements are equal (PyTorch: NaN).
    std try_std(self, axes: impl Into<AxesArg>, correction: usize) -> Tensor {
        in_f32!(self, try_std(axes, correction));
        std(self, &axes.into(), correction, false)
    }
    /// As [`Tensor::std`]; the axes stay with size 1.
    std_keepdim try_std_keepdim(self, axes: impl Into<AxesArg>, correction: usize) -> Tensor {
        in_f32!(self, try_std_keepdim(axes, correction));
        std(self, &axes.into(), correction, true)
    }

    /// `sum(|x|^p)^(1/p)` over `axes`; for `p = 0` the count of what is not 0, for an infinite `p` the
    /// largest (smallest) `|x|`. Gradient: 0 at 0; equal parts to equal extremes.
    ///
    /// Numerics: nothing is scaled, so squares over the largest f32 give an infinity.
    norm try_norm(self, p: f64, axes: impl Into<AxesArg>) -> Tensor {
        in_f32!(self, try_norm(p, axes));
        norm(self, p, &axes.into(), false)
    }
    /// As [`Tensor::norm`]; the axes stay with size 1.
    norm_keepdim try_norm_keepdim(self, p: f64, axes: impl Into<AxesArg>) -> Tensor {
        in_f32!(self, try_norm_keepdim(p, axes));
        norm(self, p, &axes.into(), true)
    }

    /// The sum over `axes` of what is not NaN. Gradient: 0 to NaN.
    nansum try_nansum(self, axes: impl Into<AxesArg>) -> Tensor { without_nan(self)?.try_sum(axes) }
    /// The mean over `axes` of what is not NaN; NaN where nothing is left. Gradient: 0 to NaN.
    nanmean try_nanmean(self, axes: impl Into<AxesArg>) -> Tensor {
        in_f32!(self, try_nanmean(axes));
        if !self.try_out()?.dtype.is_float() {
            return self.try_mean(axes);
        }
        let axes = axes.into();
        let count = self.try_is_nan()?.try_not()?.try_sum(axes.clone())?;
        self.try_nansum(axes)?.try_div(cast(count, self.try_out()?.dtype)?)
    }
}
