//! Normalisations; fusion makes each one kernel or two.
//!
//! Variances are means of squared distances from the mean, by two passes, so that a large mean does not
//! cancel; `eps` stands inside the root, so a constant line gives zeros, but for a unit of its last place
//! over the root of `eps` where its sum had to be rounded. Inputs are squared: where that overflows (beyond
//! 1.8e19 in f32) the result is 0.

use wgrad_graph::{DType, Shape};

use super::{AxesArg, cast, reshape, shape};
use crate::{Result, Tensor};

/// Options of [`Tensor::batch_norm_train`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// The part of the new running statistics that comes from this batch.
    pub momentum: f64,
    /// Added to the variance below the root.
    pub eps: f64,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm { momentum: 0.1, eps: 1e-5 }
    }
}

/// Options of [`Tensor::local_response_norm`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct LocalResponseNorm {
    /// Channels in the window.
    pub size: usize,
    /// The factor of the mean of squares.
    pub alpha: f64,
    /// The power of the divisor.
    pub beta: f64,
    /// Added below the power.
    pub k: f64,
}

impl Default for LocalResponseNorm {
    fn default() -> LocalResponseNorm {
        LocalResponseNorm { size: 5, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

/// `x / sqrt(mean(x^2) + eps)` over `axes`.
#[track_caller]
fn unit_rms(x: Tensor, axes: AxesArg, eps: f64) -> Result<Tensor> {
    let scale = x.try_square()?.try_mean_keepdim(axes)?.try_add(eps)?.try_rsqrt()?;
    x.try_mul(scale)
}

#[track_caller]
fn float(x: Tensor) -> Result<Tensor> {
    if x.try_out()?.dtype.is_float() { Ok(x) } else { cast(x, DType::F32) }
}

/// The trailing axes that `weight` or `bias` have; the last where there is neither. Both must broadcast
/// to the sizes of those axes.
#[track_caller]
fn trailing(op: &str, x: Tensor, affine: [Option<Tensor>; 2]) -> Result<AxesArg> {
    let from = x.try_out()?.shape;
    let mut count = 1;
    for w in affine.into_iter().flatten() {
        count = count.max(w.try_out()?.shape.rank());
    }
    if count > from.rank() {
        refuse!([x] Shape, op, "{from} has fewer axes than are normalised: {count}");
    }
    let over = Shape::new(&from.dims()[from.rank() - count..]);
    for w in affine.into_iter().flatten() {
        let shape = w.try_out()?.shape;
        if shape.broadcast(&over) != Some(over) {
            refuse!([x, w] Shape, op, "weight or bias {shape} does not fit the trailing axes {over} of {from}");
        }
    }
    let axes: Vec<i32> = (1..=count as i32).map(|a| -a).collect();
    Ok(AxesArg::from(axes.as_slice()))
}

/// `weight * x + bias` with what there is of both.
#[track_caller]
fn scaled(x: Tensor, [weight, bias]: [Option<Tensor>; 2]) -> Result<Tensor> {
    let x = match weight {
        Some(weight) => x.try_mul(weight)?,
        None => x,
    };
    match bias {
        Some(bias) => x.try_add(bias),
        None => Ok(x),
    }
}

/// Sizes of `[N, C, ..]`; an error of `op` for anything less.
#[track_caller]
fn channels(op: &str, x: Tensor) -> Result<Shape> {
    let from = x.try_out()?.shape;
    if from.rank() < 2 {
        refuse!([x] Shape, op, "{from} is not [N, C, ..]");
    }
    Ok(from)
}

/// A number for each channel, as it broadcasts to `[N, C, ..]`.
#[track_caller]
fn per_channel(op: &str, w: Tensor, x: Shape) -> Result<Tensor> {
    let shape = w.try_out()?.shape;
    if *shape.dims() != [x[1]] {
        refuse!([w] Shape, op, "{shape} is not one number for each of the {} channels of {x}", x[1]);
    }
    let mut dims = [1; wgrad_graph::MAX_RANK];
    dims[0] = x[1];
    reshape(w, Shape::new(&dims[..x.rank() - 1]))
}

#[track_caller]
fn affine(op: &str, [weight, bias]: [Option<Tensor>; 2], x: Shape) -> Result<[Option<Tensor>; 2]> {
    let mut out = [None; 2];
    for (out, w) in out.iter_mut().zip([weight, bias]) {
        if let Some(w) = w {
            *out = Some(per_channel(op, w, x)?);
        }
    }
    Ok(out)
}

/// Every axis but that of the channels.
fn beside_channels(x: Shape) -> AxesArg {
    let axes: Vec<i32> = (0..x.rank() as i32).filter(|a| *a != 1).collect();
    AxesArg::from(axes.as_slice())
}

methods! { impl Tensor, Self;
    /// `(x - mean) / sqrt(var + eps)` over `axes`.
    standardize try_standardize(self, axes: impl Into<AxesArg>, eps: f64) -> Tensor {
        in_f32!(self, try_standardize(axes, eps));
        let (axes, x) = (axes.into(), float(self)?);
        let away = x.try_sub(x.try_mean_keepdim(axes.clone())?)?;
        unit_rms(away, axes, eps)
    }

    /// `weight * (x - mean) / sqrt(var + eps) + bias` over the trailing axes that weight and bias have, or
    /// over the last if there is neither: `x.layer_norm(w, None, 1e-5)`.
    ///
    /// Shape: weight and bias broadcast to the trailing sizes of `x`. Numerics: variance by two passes; a
    /// constant line gives the bias, but for the rounding of its mean.
    layer_norm try_layer_norm(self, weight: impl Into<Option<Tensor>>, bias: impl Into<Option<Tensor>>, eps: f64) -> Tensor {
        in_f32!(self, try_layer_norm(weight, bias, eps));
        let affine = [weight.into(), bias.into()];
        let axes = trailing("layer_norm", self, affine)?;
        scaled(self.try_standardize(axes, eps)?, affine)
    }

    /// `weight * x / sqrt(mean(x^2) + eps)` over the trailing axes that the weight has, or over the last.
    ///
    /// Shape: the weight broadcasts to the trailing sizes of `x`.
    rms_norm try_rms_norm(self, weight: impl Into<Option<Tensor>>, eps: f64) -> Tensor {
        in_f32!(self, try_rms_norm(weight, eps));
        let affine = [weight.into(), None];
        let axes = trailing("rms_norm", self, affine)?;
        scaled(unit_rms(float(self)?, axes, eps)?, affine)
    }

    /// Each of `groups` groups of channels standardised for itself, then `weight * .. + bias` by channel.
    ///
    /// Shape: `[N, C, ..]`, `C` a multiple of `groups`; weight and bias `[C]`.
    group_norm try_group_norm(self, groups: usize, weight: impl Into<Option<Tensor>>, bias: impl Into<Option<Tensor>>, eps: f64) -> Tensor {
        in_f32!(self, try_group_norm(groups, weight, bias, eps));
        let from = channels("group_norm", self)?;
        if groups == 0 || from[1] % groups != 0 {
            refuse!([self] Argument, "group_norm", "{} channels of {from} in {groups} groups", from[1]);
        }
        let affine = affine("group_norm", [weight.into(), bias.into()], from)?;
        let inside = from.elems().checked_div(from[0] * groups).unwrap_or(0);
        let x = reshape(self, shape("group_norm", &[from[0], groups, inside])?)?;
        scaled(reshape(x.try_standardize(2, eps)?, from)?, affine)
    }

    /// Each channel of each item standardised over its places, then `weight * .. + bias` by channel.
    ///
    /// Shape: `[N, C, ..]` with more than one place; weight and bias `[C]`.
    instance_norm try_instance_norm(self, weight: impl Into<Option<Tensor>>, bias: impl Into<Option<Tensor>>, eps: f64) -> Tensor {
        in_f32!(self, try_instance_norm(weight, bias, eps));
        let from = channels("instance_norm", self)?;
        let affine = affine("instance_norm", [weight.into(), bias.into()], from)?;
        if from.dims()[2..].iter().product::<usize>() == 1 {
            refuse!([self] Shape, "instance_norm", "{from} has one place a channel: nothing varies");
        }
        let axes: Vec<i32> = (2..from.rank() as i32).collect();
        scaled(self.try_standardize(axes.as_slice(), eps)?, affine)
    }

    /// `weight * (x - mean) / sqrt(var + eps) + bias` by channel, with statistics that are given: batch
    /// normalisation of a model in use.
    ///
    /// Shape: `[N, C, ..]`; the others `[C]`.
    batch_norm try_batch_norm(self, mean: Tensor, var: Tensor, weight: impl Into<Option<Tensor>>, bias: impl Into<Option<Tensor>>, eps: f64) -> Tensor {
        in_f32!(self, try_batch_norm(mean, var, weight, bias, eps));
        let op = "batch_norm";
        let from = channels(op, self)?;
        let affine = affine(op, [weight.into(), bias.into()], from)?;
        let (mean, var) = (per_channel(op, mean, from)?, per_channel(op, var, from)?);
        scaled(self.try_sub(mean)?.try_mul(var.try_add(eps)?.try_rsqrt()?)?, affine)
    }

    /// The batch standardised by channel, then `weight * .. + bias`; and the new running mean and variance,
    /// `(1 - momentum) * old + momentum * batch`: batch normalisation of a model that learns.
    ///
    /// Shape: `[N, C, ..]` with more than one value a channel; the others `[C]`. Gradient: none to or from
    /// the running statistics. Numerics: the batch is standardised by its variance divided by `n`; the
    /// running variance takes the one divided by `n - 1`, as in PyTorch.
    batch_norm_train try_batch_norm_train(self, mean: Tensor, var: Tensor, weight: impl Into<Option<Tensor>>, bias: impl Into<Option<Tensor>>, options: BatchNorm) -> [Tensor; 3] {
        let dtype = self.try_out()?.dtype;
        if dtype.is_half() {
            let kept = [dtype, mean.try_out()?.dtype, var.try_out()?.dtype];
            let mut all = cast(self, DType::F32)?.try_batch_norm_train(mean, var, weight, bias, options)?;
            let first = usize::from(crate::autocast::stays_wide());
            for (x, dtype) in all.iter_mut().zip(kept).skip(first) {
                *x = cast(*x, dtype)?;
            }
            return Ok(all);
        }
        let op = "batch_norm_train";
        let BatchNorm { momentum, eps } = options;
        let from = channels(op, self)?;
        let affine = affine(op, [weight.into(), bias.into()], from)?;
        for w in [mean, var] {
            per_channel(op, w, from)?;
        }
        let n = from.elems().checked_div(from[1]).unwrap_or(0);
        if n < 2 {
            refuse!([self] Shape, op, "{from} has {n} values a channel: a variance needs two");
        }
        let x = float(self)?;
        let axes = beside_channels(from);
        let middle = x.try_mean_keepdim(axes.clone())?;
        let away = x.try_sub(middle)?;
        let spread = away.try_square()?.try_mean_keepdim(axes)?;
        let y = scaled(away.try_mul(spread.try_add(eps)?.try_rsqrt()?)?, affine)?;
        let flat = Shape::from([from[1]]);
        let (middle, spread) = (reshape(middle, flat)?.try_detach()?, reshape(spread, flat)?.try_detach()?);
        let unbiased = spread.try_mul(n as f64 / (n - 1) as f64)?;
        let mean = mean.try_mul(1.0 - momentum)?.try_add(middle.try_mul(momentum)?)?;
        let var = var.try_mul(1.0 - momentum)?.try_add(unbiased.try_mul(momentum)?)?;
        Ok([y, mean, var])
    }

    /// `x / (k + alpha * mean(x^2))^beta`, the mean over `size` channels around each, which counts channels
    /// outside as zeros (Krizhevsky et al. 2012).
    ///
    /// Shape: `[N, C, ..]`. An even window has one channel more before than after.
    local_response_norm try_local_response_norm(self, options: LocalResponseNorm) -> Tensor {
        in_f32!(self, try_local_response_norm(options));
        let LocalResponseNorm { size, alpha, beta, k } = options;
        let op = "local_response_norm";
        let from = channels(op, self)?;
        if size == 0 {
            refuse!([self] Argument, op, "a window of 0 channels");
        }
        let x = float(self)?;
        let mut widths = vec![(0, 0); from.rank()];
        widths[1] = ((size / 2) as isize, ((size - 1) / 2) as isize);
        let squares = x.try_square()?.try_pad(&widths, 0.0)?;
        let mut sum = squares.try_narrow(1, 0, from[1])?;
        for start in 1..size {
            sum = sum.try_add(squares.try_narrow(1, start, from[1])?)?;
        }
        x.try_div(sum.try_mul(alpha / size as f64)?.try_add(k)?.try_pow(beta)?)
    }
}
