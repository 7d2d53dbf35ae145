//! Reductions over axes.

use wgrad_graph::{Axes, DType, Op, Reduce};

use super::args::axis;
use super::{AxesArg, cast, reshape, shape, widen};
use crate::autocast;
use crate::{Result, Tensor};

/// The reduction over `axes`; reduced axes stay with size 1 where `keep`.
#[track_caller]
pub(crate) fn reduce(kind: Reduce, x: Tensor, axes: &AxesArg, keep: bool) -> Result<Tensor> {
    let from = x.try_out()?;
    let axes: Axes = axes.of(kind.name(), from.shape.rank())?.into_iter().collect();
    let sums = matches!(kind, Reduce::Sum | Reduce::Prod);
    let narrow = matches!(from.dtype, DType::Bool | DType::U8);
    let x = match narrow {
        true if sums => cast(x, DType::I32)?,
        true => cast(x, DType::U32)?,
        false if from.dtype.is_half() && sums && autocast::stays_wide() => cast(x, DType::F32)?,
        false => x,
    };
    let y = match axes.is_empty() {
        true => x,
        false => Tensor::record(Op::Reduce { kind, axes }, &[x], None, None)?,
    };
    let y = if narrow && !sums { cast(y, from.dtype)? } else { y };
    if keep { Ok(y) } else { without(y, axes) }
}

/// `x` without `axes`, which have size 1.
#[track_caller]
pub(crate) fn without(x: Tensor, axes: Axes) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let dims: Vec<usize> = (0..from.rank()).filter(|a| !axes.has(*a)).map(|a| from[a]).collect();
    reshape(x, shape("squeeze", &dims)?)
}

#[track_caller]
pub(crate) fn mean(x: Tensor, axes: &AxesArg, keep: bool) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let n: usize = axes.of("mean", from.rank())?.iter().map(|a| from[*a]).product();
    let (x, dtype) = widen(x)?;
    cast(reduce(Reduce::Sum, x, axes, keep)?.try_div(n as f64)?, dtype)
}

#[track_caller]
fn arg(max: bool, x: Tensor, along: i32, keep: bool) -> Result<Tensor> {
    let along = axis(if max { "argmax" } else { "argmin" }, along, x.try_out()?.shape.rank())?;
    let narrow = matches!(x.try_out()?.dtype, DType::Bool | DType::U8);
    let x = if narrow { cast(x, DType::I32)? } else { x };
    let y = Tensor::record(Op::ArgReduce { max, axis: along as u8 }, &[x], None, None)?;
    if keep { Ok(y) } else { without(y, Axes::NONE.with(along)) }
}

methods! { impl Tensor, Self;
    /// The sum over `axes` (`1`, `[0, -1]`, `..`). Gradient: `g` repeated.
    ///
    /// Numerics: floats as a tree of fixed shape. Integers wrap; bool and u8 sum as i32 (PyTorch: i64).
    sum try_sum(self, axes: impl Into<AxesArg>) -> Tensor { reduce(Reduce::Sum, self, &axes.into(), false) }
    /// As [`Tensor::sum`]; the axes stay with size 1.
    sum_keepdim try_sum_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Sum, self, &axes.into(), true)
    }
    /// The sum of all elements.
    sum_all try_sum_all(self) -> Tensor { self.try_sum(..) }

    /// The mean over `axes`; integers average as f32; over nothing, NaN. Gradient: `g / n` repeated.
    ///
    /// Numerics: the sum by the count, so a sum over the largest f32 gives an infinity.
    mean try_mean(self, axes: impl Into<AxesArg>) -> Tensor { mean(self, &axes.into(), false) }
    /// As [`Tensor::mean`]; the axes stay with size 1.
    mean_keepdim try_mean_keepdim(self, axes: impl Into<AxesArg>) -> Tensor { mean(self, &axes.into(), true) }
    /// The mean of all elements.
    mean_all try_mean_all(self) -> Tensor { self.try_mean(..) }

    /// The largest over `axes`; NaN if any is. Gradient: shared equally among equal largest elements.
    max try_max(self, axes: impl Into<AxesArg>) -> Tensor { reduce(Reduce::Max, self, &axes.into(), false) }
    /// As [`Tensor::max`]; the axes stay with size 1.
    max_keepdim try_max_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Max, self, &axes.into(), true)
    }
    /// The smallest over `axes`; NaN if any is. Gradient: shared equally among equal smallest elements.
    min try_min(self, axes: impl Into<AxesArg>) -> Tensor { reduce(Reduce::Min, self, &axes.into(), false) }
    /// As [`Tensor::min`]; the axes stay with size 1.
    min_keepdim try_min_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Min, self, &axes.into(), true)
    }
    /// The product over `axes`. Gradient: the product of the others, exact also at zeros.
    prod try_prod(self, axes: impl Into<AxesArg>) -> Tensor { reduce(Reduce::Prod, self, &axes.into(), false) }
    /// As [`Tensor::prod`]; the axes stay with size 1.
    prod_keepdim try_prod_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Prod, self, &axes.into(), true)
    }

    /// The index (i32) of the first largest element along `axis`; NaN counts as largest. No gradient.
    argmax try_argmax(self, axis: i32) -> Tensor { arg(true, self, axis, false) }
    /// As [`Tensor::argmax`]; the axis stays with size 1.
    argmax_keepdim try_argmax_keepdim(self, axis: i32) -> Tensor { arg(true, self, axis, true) }
    /// The index (i32) of the first smallest element along `axis`; NaN counts as smallest. No gradient.
    argmin try_argmin(self, axis: i32) -> Tensor { arg(false, self, axis, false) }
    /// As [`Tensor::argmin`]; the axis stays with size 1.
    argmin_keepdim try_argmin_keepdim(self, axis: i32) -> Tensor { arg(false, self, axis, true) }

    /// As [`Tensor::max`], by its name in PyTorch, whose `max` over one axis gives indices too.
    amax try_amax(self, axes: impl Into<AxesArg>) -> Tensor { self.try_max(axes) }
    /// As [`Tensor::min`], by its name in PyTorch.
    amin try_amin(self, axes: impl Into<AxesArg>) -> Tensor { self.try_min(axes) }
    /// The smallest and the largest over `axes`, in one pass over the elements.
    aminmax try_aminmax(self, axes: impl Into<AxesArg>) -> (Tensor, Tensor) {
        let axes = axes.into();
        Ok((reduce(Reduce::Min, self, &axes, false)?, reduce(Reduce::Max, self, &axes, false)?))
    }

    /// Whether any element over `axes` is not 0; false over nothing.
    any try_any(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Max, cast(self, DType::Bool)?, &axes.into(), false)
    }
    /// As [`Tensor::any`]; the axes stay with size 1.
    any_keepdim try_any_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Max, cast(self, DType::Bool)?, &axes.into(), true)
    }
    /// Whether no element over `axes` is 0; true over nothing.
    all try_all(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Min, cast(self, DType::Bool)?, &axes.into(), false)
    }
    /// As [`Tensor::all`]; the axes stay with size 1.
    all_keepdim try_all_keepdim(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Min, cast(self, DType::Bool)?, &axes.into(), true)
    }
    /// How many elements over `axes` are not 0, as i32.
    count_nonzero try_count_nonzero(self, axes: impl Into<AxesArg>) -> Tensor {
        reduce(Reduce::Sum, cast(self, DType::Bool)?, &axes.into(), false)
    }

    /// The sum over the axes along which `shape` was broadcast to this tensor's: the adjoint of
    /// [`Tensor::expand`].
    sum_to try_sum_to(self, shape: impl Into<wgrad_graph::Shape>) -> Tensor {
        let (from, to) = (self.try_out()?.shape, shape.into());
        if to.broadcast(&from) != Some(from) {
            refuse!([self] Shape, "sum_to", "{to} does not broadcast to {from}");
        }
        let added = from.rank() - to.rank();
        let summed = |a: &usize| *a < added || to[*a - added] == 1 && from[*a] != 1;
        let axes: Axes = (0..from.rank()).filter(summed).collect();
        let x = match axes.is_empty() {
            true => self,
            false => Tensor::record(Op::Reduce { kind: Reduce::Sum, axes }, &[self], None, None)?,
        };
        reshape(x, to)
    }
}
