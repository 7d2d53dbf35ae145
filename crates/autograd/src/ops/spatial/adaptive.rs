//! Pooling to a given size: windows that differ by one element where the size does not divide the axis.

use std::sync::Arc;

use wgrad_graph::{DType, HostTensor, Shape};

use super::pool::{Pool, sum_last};
use super::resample::{means, part, resample};
use super::span::{Sides, Sizes, coords, numbers, with_spatial};
use crate::ops::{cast, expand, host, reshape, shape};
use crate::{Result, Tensor, custom_gradient};

/// The spatial sizes of `x` and those of the result.
#[track_caller]
fn sides(op: &str, x: Tensor, size: &Sizes) -> Result<(Sides, Sides)> {
    let from = x.try_out()?.shape;
    let axes = size.len();
    if !(1..=3).contains(&axes) || axes > from.rank() {
        refuse!([x] Argument, op, "sizes of {axes} axes for {from}; it has to be 1 to 3");
    }
    let to = size.of(op, "size", axes, &[])?;
    let from = Sides::from_slice(&from.dims()[from.rank() - axes..]);
    if from.contains(&0) || to.contains(&0) {
        refuse!([x] Shape, op, "from {from:?} to {to:?}: no spatial axis may be empty");
    }
    Ok((from, to))
}

/// Windows side by side that give `to`, where there are such.
fn even(from: &[usize], to: &[usize]) -> Option<Pool> {
    let kernel: Sides = from.iter().zip(to).map(|(n, m)| n / m).collect();
    from.iter().zip(to).all(|(n, m)| n.is_multiple_of(*m)).then(|| Pool::new(&kernel[..]))
}

#[track_caller]
fn adaptive_avg_pool(x: Tensor, size: &Sizes) -> Result<Tensor> {
    const OP: &str = "adaptive_avg_pool";
    let out = x.try_out()?;
    let (from, to) = sides(OP, x, size)?;
    if !out.dtype.is_float() {
        refuse!([x] DType, OP, "needs floats, got {}", out.dtype);
    }
    if let Some(pool) = even(&from, &to) {
        return x.try_avg_pool(pool);
    }
    let first = out.shape.rank() - from.len();
    let mut y = x;
    for (i, (n, m)) in from.iter().zip(&to).enumerate() {
        y = resample(OP, y, first + i, &Arc::new(means(*n, *m)))?;
    }
    Ok(y)
}

/// Windows of different sizes: for each window the numbers of its elements in the plane, and for each
/// element the windows that hold it.
#[derive(Debug)]
struct Parts {
    elements: Vec<Vec<i32>>,
    windows: Vec<Vec<i32>>,
}

impl Parts {
    fn new(from: &[usize], to: &[usize]) -> Parts {
        let mut windows = vec![Vec::new(); from.iter().product()];
        let mut elements = Vec::new();
        for at in coords(to) {
            let ranges: Vec<_> = (0..from.len()).map(|i| part(at[i], from[i], to[i])).collect();
            let sizes: Sides = ranges.iter().map(ExactSizeIterator::len).collect();
            let number = |k: &Sides| (0..from.len()).fold(0, |n, i| n * from[i] + ranges[i].start + k[i]);
            let own: Vec<i32> = coords(&sizes).map(|k| number(&k) as i32).collect();
            own.iter().for_each(|e| windows[*e as usize].push(elements.len() as i32));
            elements.push(own);
        }
        Parts { elements, windows }
    }

    /// The lists as a table, each filled up to the longest with `fill` of it; the table's width.
    #[track_caller]
    fn table(beside: Tensor, lists: &[Vec<i32>], fill: fn(&[i32]) -> i32) -> Result<(Tensor, usize)> {
        let width = lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut all = Vec::with_capacity(lists.len() * width);
        for list in lists {
            all.extend(list);
            all.extend(std::iter::repeat_n(fill(list), width - list.len()));
        }
        Ok((host(beside, HostTensor::new([lists.len(), width], &all)?)?, width))
    }

    /// The elements of each window on a new last axis; shorter windows repeat their first, which changes
    /// no maximum. `x` is `[planes, elements]`.
    #[track_caller]
    fn windows_of(&self, op: &str, x: Tensor) -> Result<(Tensor, Tensor)> {
        let planes = x.try_out()?.shape[0];
        let (table, width) = Parts::table(x, &self.elements, |list| list[0])?;
        let count = self.elements.len();
        let idx =
            expand(reshape(table, Shape::from([1, count * width]))?, shape(op, &[planes, count * width])?)?;
        Ok((reshape(x.try_gather(1, idx)?, shape(op, &[planes, count, width])?)?, table))
    }
}

/// Elements of the plane by their numbers.
#[track_caller]
fn taken(op: &'static str, x: Tensor, idx: Tensor, parts: &Arc<Parts>) -> Result<Tensor> {
    let own = Arc::clone(parts);
    let take = |x: &[Tensor]| x[0].try_gather(1, idx);
    custom_gradient(&[x], take, move |g| Ok(vec![Some(placed(op, g.dout(0), idx, &own)?)]))
}

/// What undoes [`taken`]: for each element the sum of `g` over the windows whose `idx` names it.
#[track_caller]
fn placed(op: &'static str, g: Tensor, idx: Tensor, parts: &Arc<Parts>) -> Result<Tensor> {
    let place = |g: &[Tensor]| {
        let planes = g[0].try_out()?.shape[0];
        let count = parts.windows.len();
        let (table, width) = Parts::table(g[0], &parts.windows, |_| -1)?;
        let whole = shape(op, &[planes, count * width])?;
        let at = reshape(table.try_maximum(0)?, Shape::from([1, count * width]))?;
        let at = expand(at, whole)?;
        let listed = shape(op, &[planes, count, width])?;
        let own = reshape(numbers(g[0], &[count])?, Shape::from([count, 1]))?;
        let hit = reshape(idx.try_gather(1, at)?, listed)?.try_eq(own)?;
        let hit = hit.try_and(table.try_ge(0)?)?;
        sum_last(hit.try_select(reshape(g[0].try_gather(1, at)?, listed)?, 0.0)?, 1)
    };
    let own = Arc::clone(parts);
    custom_gradient(&[g], place, move |g| Ok(vec![Some(taken(op, g.dout(0), idx, &own)?)]))
}

/// The largest element of each part, and its place.
#[track_caller]
fn adaptive_max_pool(
    op: &'static str,
    x: Tensor,
    size: &Sizes,
    places: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let out = x.try_out()?;
    let (from, to) = sides(op, x, size)?;
    if let Some(pool) = even(&from, &to) {
        if !places {
            return Ok((x.try_max_pool(pool)?, None));
        }
        let (y, idx) = x.try_max_pool_with_indices(pool)?;
        return Ok((y, Some(idx)));
    }
    let whole = with_spatial(op, out.shape, from.len(), &to)?;
    let planes: usize = out.shape.dims()[..out.shape.rank() - from.len()].iter().product();
    let parts = Arc::new(Parts::new(&from, &to));
    let flat = shape(op, &[planes, from.iter().product()])?;
    let place = move |x: Tensor, parts: &Parts| {
        let (all, table) = parts.windows_of(op, reshape(x, flat)?)?;
        let shape = all.try_out()?.shape;
        let k = all.try_argmax_keepdim(2)?;
        let numbers = expand(reshape(table, Shape::from([1, shape[1], shape[2]]))?, shape)?;
        reshape(numbers.try_gather(2, k)?, Shape::from([shape[0], shape[1]]))
    };
    let largest = |x: &[Tensor]| reshape(parts.windows_of(op, reshape(x[0], flat)?)?.0.try_max(2)?, whole);
    let y = if out.dtype.is_float() {
        let own = Arc::clone(&parts);
        custom_gradient(&[x], largest, move |g| {
            let idx = place(g.input(0), &own)?;
            let windows = idx.try_out()?.shape;
            let dx = placed(op, reshape(g.dout(0), windows)?, idx, &own)?;
            Ok(vec![Some(reshape(dx, out.shape)?)])
        })?
    } else {
        largest(&[x])?
    };
    let idx = if places { Some(cast(reshape(place(x, &parts)?, whole)?, DType::I32)?) } else { None };
    Ok((y, idx))
}

/// `x` at the places `idx` of planes of zeros.
#[track_caller]
fn max_unpool(x: Tensor, idx: Tensor, size: &Sizes) -> Result<Tensor> {
    const OP: &str = "max_unpool";
    let (out, at) = (x.try_out()?, idx.try_out()?);
    let axes = size.len();
    if !(1..=3).contains(&axes) || axes > out.shape.rank() {
        refuse!([x, idx] Argument, OP, "sizes of {axes} axes for {}; it has to be 1 to 3", out.shape);
    }
    if at.shape != out.shape {
        refuse!([x, idx] Shape, OP, "values {} and places {} differ", out.shape, at.shape);
    }
    if !at.dtype.is_int() || !out.dtype.is_float() {
        refuse!([x, idx] DType, OP, "needs float values and integer places, got {} and {}", out.dtype, at.dtype);
    }
    let to = size.of(OP, "size", axes, &[])?;
    let whole = with_spatial(OP, out.shape, axes, &to)?;
    let (lead, own) = out.shape.dims().split_at(out.shape.rank() - axes);
    let planes: usize = lead.iter().product();
    let flat = shape(OP, &[planes, own.iter().product()])?;
    let plane = shape(OP, &[planes, to.iter().product()])?;
    let (x, idx) = (reshape(x, flat)?, reshape(idx, flat)?);
    let zeros = expand(x.number(0.0, out.dtype)?, plane)?;
    let ones = expand(x.number(1.0, out.dtype)?, flat)?;
    let count = zeros.try_scatter_add(1, idx, ones)?.try_maximum(1.0)?;
    reshape(zeros.try_scatter_add(1, idx, x)?.try_div(count)?, whole)
}

methods! { impl Tensor, Self;
    /// The mean of each of `size` parts of the last axes: output `o` of `m` averages elements
    /// `o * n / m` (rounded down) up to `(o + 1) * n / m` (rounded up).
    ///
    /// Shape: `[.., n..] -> [.., size..]`; as many spatial axes as sizes. Gradient: `g / count` to each
    /// element. Errors: an empty axis.
    adaptive_avg_pool try_adaptive_avg_pool(self, size: impl Into<Sizes>) -> Tensor {
        adaptive_avg_pool(self, &size.into())
    }

    /// The largest element of each part of [`Tensor::adaptive_avg_pool`]; NaN if one is.
    /// Gradient: to the first largest element of each part.
    adaptive_max_pool try_adaptive_max_pool(self, size: impl Into<Sizes>) -> Tensor {
        Ok(adaptive_max_pool("adaptive_max_pool", self, &size.into(), false)?.0)
    }

    /// As [`Tensor::adaptive_max_pool`], and for each part the place of its first largest element, as
    /// [`Tensor::max_pool_with_indices`] gives it.
    adaptive_max_pool_with_indices try_adaptive_max_pool_with_indices(self, size: impl Into<Sizes>)
        -> (Tensor, Tensor)
    {
        let (y, idx) = adaptive_max_pool("adaptive_max_pool_with_indices", self, &size.into(), true)?;
        Ok((y, idx.expect("places were asked for")))
    }

    /// Planes of zeros, their last axes of the sizes `size`, with the elements of `x` at the places `idx`
    /// that [`Tensor::max_pool_with_indices`] gave. Without padding, PyTorch's default size is
    /// `(n - 1) * stride + kernel`.
    ///
    /// Where several elements have one place, as overlapping windows give, their mean is there.
    /// Gradient: `g` where it was placed, shared equally by elements of one place. Errors: a place beyond
    /// the plane is an error of the step.
    max_unpool try_max_unpool(self, idx: Tensor, size: impl Into<Sizes>) -> Tensor {
        max_unpool(self, idx, &size.into())
    }
}
