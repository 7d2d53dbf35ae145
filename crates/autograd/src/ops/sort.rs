//! Order: sorting, and what is read off sorted lines. NaN counts as the largest number.

use wgrad_graph::{Axes, DType, Op};

use super::args::axis as axis_of;
use super::reduce::without;
use super::{cast, reshape};
use crate::{Result, Tensor};

/// What stands between two neighbours of a sorted line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Interpolation {
    /// `lower + (higher - lower) * fraction`.
    #[default]
    Linear,
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// The nearer one; halfway, that of even place.
    Nearest,
    /// Halfway between both.
    Midpoint,
}

/// The indices that sort `x` along `axis`; a number is a line of one element.
#[track_caller]
fn order(op: &str, x: Tensor, axis: i32, descending: bool) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    if from.rank() == 0 {
        axis_of(op, axis, 1)?;
        let line = reshape(x, [1].into())?;
        return reshape(order(op, line, 0, descending)?, from);
    }
    let axis = axis_of(op, axis, from.rank())? as u8;
    Tensor::record(Op::ArgSort { axis, descending }, &[x], None, None)
}

/// The elements of `x` at `idx` along `axis`; a number is a line of one element.
#[track_caller]
fn taken(x: Tensor, axis: i32, idx: Tensor) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    if from.rank() > 0 {
        return x.try_gather(axis, idx);
    }
    reshape(reshape(x, [1].into())?.try_gather(0, reshape(idx, [1].into())?)?, from)
}

/// The size of an axis that is not empty.
#[track_caller]
fn size(op: &str, x: Tensor, axis: i32) -> Result<usize> {
    let from = x.try_out()?.shape;
    let size = if from.rank() == 0 { 1 } else { from[axis_of(op, axis, from.rank())?] };
    if size == 0 {
        refuse!([x] Shape, op, "axis {axis} of {from} is empty");
    }
    Ok(size)
}

/// Place `at` of the sorted line: the indices there, with `axis` of size 1.
#[track_caller]
fn place(order: Tensor, axis: i32, at: usize) -> Result<Tensor> {
    if order.try_out()?.shape.rank() == 0 { Ok(order) } else { order.try_narrow(axis, at, 1) }
}

/// `x` without `axis`, whose size is 1.
#[track_caller]
fn dropped(x: Tensor, axis: i32) -> Result<Tensor> {
    let rank = x.try_out()?.shape.rank();
    if rank == 0 { Ok(x) } else { without(x, Axes::NONE.with(axis_of("squeeze", axis, rank)?)) }
}

/// The element at place `at` of each sorted line, or NaN where the line holds one; its index.
#[track_caller]
fn or_nan(x: Tensor, order: Tensor, axis: i32, at: usize, last: usize) -> Result<(Tensor, Tensor)> {
    let mut idx = place(order, axis, at)?;
    if x.try_out()?.dtype.is_float() && last != at {
        let end = place(order, axis, last)?;
        idx = taken(x, axis, end)?.try_is_nan()?.try_select(end, idx)?;
    }
    Ok((taken(x, axis, idx)?, idx))
}

methods! { impl Tensor, Self;
    /// The indices (i32) along `axis` that put elements in ascending, or descending, order. Equal elements
    /// keep their order, in both directions; NaN counts as largest. No gradient.
    argsort try_argsort(self, axis: i32, descending: bool) -> Tensor { order("argsort", self, axis, descending) }

    /// The elements in ascending, or descending, order along `axis`, and their indices (i32), as
    /// [`Tensor::argsort`] gives them.
    ///
    /// Gradient: `g` where each element came from.
    sort try_sort(self, axis: i32, descending: bool) -> (Tensor, Tensor) {
        let idx = order("sort", self, axis, descending)?;
        Ok((taken(self, axis, idx)?, idx))
    }

    /// The `k` largest elements along `axis`, or the `k` smallest, and their indices (i32), in order: the
    /// largest, or smallest, first; equal ones by ascending index. NaN counts as largest.
    ///
    /// Shape: `k` on `axis`. Gradient: `g` where each element came from.
    topk try_topk(self, k: usize, axis: i32, largest: bool) -> (Tensor, Tensor) {
        let from = self.try_out()?.shape;
        let all = if from.rank() == 0 { 1 } else { from[axis_of("topk", axis, from.rank())?] };
        if k > all {
            refuse!([self] Argument, "topk", "{k} elements of axis {axis} of {from}");
        }
        let idx = order("topk", self, axis, largest)?;
        let idx = if from.rank() == 0 { idx } else { idx.try_narrow(axis, 0, k)? };
        Ok((taken(self, axis, idx)?, idx))
    }

    /// The `k`-th smallest element along `axis`, counted from 1, and its index (i32); `axis` is gone. NaN
    /// counts as largest.
    ///
    /// Gradient: `g` where the element came from.
    kthvalue try_kthvalue(self, k: usize, axis: i32) -> (Tensor, Tensor) {
        let n = size("kthvalue", self, axis)?;
        if !(1..=n).contains(&k) {
            refuse!([self] Argument, "kthvalue", "element {k} of a line of {n}, counted from 1");
        }
        let idx = place(order("kthvalue", self, axis, false)?, axis, k - 1)?;
        Ok((dropped(taken(self, axis, idx)?, axis)?, dropped(idx, axis)?))
    }

    /// The element in the middle of each sorted line along `axis`, of two the lower, and its index (i32);
    /// `axis` is gone. NaN where the line holds one.
    ///
    /// Gradient: `g` where the element came from.
    median try_median(self, axis: i32) -> (Tensor, Tensor) {
        let n = size("median", self, axis)?;
        let order = order("median", self, axis, false)?;
        let (value, idx) = or_nan(self, order, axis, (n - 1) / 2, n - 1)?;
        Ok((dropped(value, axis)?, dropped(idx, axis)?))
    }

    /// The number below which a share `q` of each line along `axis` lies: place `q (n - 1)` of the sorted
    /// line, between neighbours as `between` says; `axis` is gone. Integers as f32; NaN where the line holds
    /// one.
    ///
    /// Gradient: to the neighbours, by their shares.
    quantile try_quantile(self, q: f64, axis: i32, between: Interpolation) -> Tensor {
        if !(0.0..=1.0).contains(&q) {
            refuse!([self] Argument, "quantile", "share {q} is not in 0..=1");
        }
        let x = if self.try_out()?.dtype.is_float() { self } else { cast(self, DType::F32)? };
        let n = size("quantile", x, axis)?;
        let order = order("quantile", x, axis, false)?;
        let at = q * (n - 1) as f64;
        let (low, high) = (at.floor(), at.ceil());
        let (low, high, share) = match between {
            Interpolation::Linear => (low, high, at - low),
            Interpolation::Lower => (low, low, 0.0),
            Interpolation::Higher => (high, high, 0.0),
            Interpolation::Nearest => (at.round_ties_even(), at.round_ties_even(), 0.0),
            Interpolation::Midpoint => (low, high, 0.5),
        };
        let mut y = or_nan(x, order, axis, low as usize, n - 1)?.0;
        if high > low {
            let above = or_nan(x, order, axis, high as usize, n - 1)?.0;
            y = y.try_add(above.try_sub(y)?.try_mul(share)?)?;
        }
        dropped(y, axis)
    }

    /// For each of `values` the place in this sorted line at which it would be put: before equal elements,
    /// or after them where `right`; i32. No gradient.
    ///
    /// Shape: this tensor `[.., n]` ascending along the last axis, `values` `[.., m]` equal beside it, or this
    /// `[n]` and `values` of any shape; the result is as `values`. Numerics: NaN counts as largest. Cost: reads
    /// the whole line for each value.
    searchsorted try_searchsorted(self, values: Tensor, right: bool) -> Tensor {
        let (line, to) = (self.try_out()?, values.try_out()?);
        let rank = line.shape.rank();
        let fits = rank == 1
            || rank > 1 && to.shape.rank() == rank && line.shape.dims()[..rank - 1] == to.shape.dims()[..rank - 1];
        if !fits {
            refuse!([self, values] Shape, "searchsorted", "lines {} do not fit values {}", line.shape, to.shape);
        }
        let value = values.try_unsqueeze(-1)?;
        let line = if rank == 1 { self } else { self.try_unsqueeze(-2)? };
        let mut before = if right { line.try_le(value)? } else { line.try_lt(value)? };
        if line.try_out()?.dtype.is_float() && value.try_out()?.dtype.is_float() {
            let nan = value.try_is_nan()?;
            let ahead = if right { nan } else { nan.try_and(line.try_is_nan()?.try_not()?)? };
            before = before.try_or(ahead)?;
        }
        cast(before, DType::I32)?.try_sum(-1)
    }
}
