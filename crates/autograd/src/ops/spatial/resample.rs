//! Sparse linear maps along an axis, from tables that the host computes exactly. The transpose of such a
//! map is one too, so gradients gather as well: nothing is scattered, and sums have a fixed order.

use std::sync::Arc;

use smallvec::SmallVec;
use wgrad_graph::{Axes, HostTensor, Op, Reduce, Shape, Steps};

use crate::ops::{expand, host, reshape, shape, slice, steps_on};
use crate::{Result, Tensor, custom_gradient};

/// Terms that are added in one pointwise kernel; more are a reduction.
const UNROLLED: usize = 4;

/// What one output is made of: elements and their weights, in ascending order, no weight 0.
type Row = SmallVec<[(usize, f64); 4]>;

/// A linear map from an axis of `from` elements: a row for each output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Taps {
    from: usize,
    rows: Vec<Row>,
}

impl Taps {
    /// The map whose output `o` is the sum of `weight * element` over `terms(o)`.
    pub(crate) fn new<I>(from: usize, to: usize, terms: impl Fn(usize) -> I) -> Taps
    where
        I: IntoIterator<Item = (usize, f64)>,
    {
        let row = |o: usize| {
            let mut row = Row::new();
            for (element, weight) in terms(o) {
                match row.iter_mut().find(|term| term.0 == element) {
                    Some(term) => term.1 += weight,
                    None => row.push((element, weight)),
                }
            }
            row.retain(|term| term.1 != 0.0);
            row.sort_unstable_by_key(|term| term.0);
            row
        };
        Taps { from, rows: (0..to).map(row).collect() }
    }

    fn transposed(&self) -> Taps {
        let mut rows = vec![Row::new(); self.from];
        for (o, row) in self.rows.iter().enumerate() {
            for (element, weight) in row {
                rows[*element].push((o, *weight));
            }
        }
        Taps { from: self.rows.len(), rows }
    }

    /// Most terms of an output.
    fn width(&self) -> usize {
        self.rows.iter().map(SmallVec::len).max().unwrap_or(0)
    }

    /// The one element of each output, where all outputs are copies of one.
    fn copies(&self) -> Option<Vec<usize>> {
        self.rows.iter().map(|row| if let [(e, 1.0)] = row[..] { Some(e) } else { None }).collect()
    }

    /// Term `t` of each output: its element, and its weight, 0 where there is none.
    fn terms(&self, t: usize) -> (Vec<i32>, Vec<f64>) {
        let term = |row: &Row| row.get(t).copied().unwrap_or((row.first().map_or(0, |r| r.0), 0.0));
        self.rows.iter().map(term).map(|(element, weight)| (element as i32, weight)).unzip()
    }
}

/// A table of one size on `axis`, to broadcast with tensors of rank `rank`.
#[track_caller]
fn table(beside: Tensor, data: HostTensor, rank: usize, axis: usize) -> Result<Tensor> {
    let mut dims = vec![1; rank];
    dims[axis] = data.shape().elems();
    reshape(host(beside, data)?, Shape::new(&dims))
}

/// `weight * x`, and 0, whatever `x` is, where the weight is 0.
#[track_caller]
fn weighted(x: Tensor, weights: Tensor, all: bool, ones: bool) -> Result<Tensor> {
    let product = if ones { x } else { x.try_mul(weights)? };
    if all { Ok(product) } else { weights.try_ne(0.0)?.try_select(product, 0.0) }
}

#[track_caller]
fn apply(op: &str, x: Tensor, axis: usize, taps: &Taps) -> Result<Tensor> {
    let out = x.try_out()?;
    let (from, rank) = (out.shape, out.shape.rank());
    let (count, width) = (taps.rows.len(), taps.width());
    let to = from.with(axis, count);
    if let Some(copies) = taps.copies()
        && let Some(view) = as_view(op, x, axis, &copies)?
    {
        return Ok(view);
    }
    let weights = |w: &[f64]| Ok(HostTensor::new([w.len()], w)?.cast(out.dtype));
    let gathered = |elements: &[i32]| {
        let idx = table(x, HostTensor::new([elements.len()], elements)?, rank, axis)?;
        x.try_gather(axis as i32, expand(idx, from.with(axis, elements.len()))?)
    };
    if (1..=UNROLLED).contains(&width) {
        let mut total: Option<Tensor> = None;
        for t in 0..width {
            let (elements, w) = taps.terms(t);
            let (all, ones) = (!w.contains(&0.0), w.iter().all(|w| *w == 0.0 || *w == 1.0));
            let mut part = gathered(&elements)?;
            if !(all && ones) {
                part = weighted(part, table(x, weights(&w)?, rank, axis)?, all, ones)?;
            }
            total = Some(match total {
                Some(sum) => sum.try_add(part)?,
                None => part,
            });
        }
        return Ok(total.expect("there is a term"));
    }
    if width == 0 {
        return expand(x.number(0.0, out.dtype)?, to);
    }
    let columns: Vec<_> = (0..width).map(|t| taps.terms(t)).collect();
    let (mut elements, mut w) = (Vec::with_capacity(count * width), Vec::with_capacity(count * width));
    for o in 0..count {
        for column in &columns {
            elements.push(column.0[o]);
            w.push(column.1[o]);
        }
    }
    let (all, ones) = (!w.contains(&0.0), w.iter().all(|w| *w == 0.0 || *w == 1.0));
    let (before, after) = (&from.dims()[..axis], &from.dims()[axis + 1..]);
    let parts = reshape(gathered(&elements)?, shape(op, &[before, &[count, width], after].concat())?)?;
    let mut dims = vec![1; rank + 1];
    (dims[axis], dims[axis + 1]) = (count, width);
    let w = reshape(host(x, weights(&w)?)?, Shape::new(&dims))?;
    let parts = weighted(parts, w, all, ones)?;
    let sum = Op::Reduce { kind: Reduce::Sum, axes: Axes::NONE.with(axis + 1) };
    reshape(Tensor::record(sum, &[parts], None, None)?, to)
}

/// The copies as a view: every so many-th element, or each element so many times.
#[track_caller]
fn as_view(op: &str, x: Tensor, axis: usize, copies: &[usize]) -> Result<Option<Tensor>> {
    let from = x.try_out()?.shape;
    let (len, count) = (from[axis], copies.len());
    let Some(first) = copies.first().copied() else { return Ok(None) };
    let step = if count > 1 { copies[1] as i64 - first as i64 } else { 1 };
    if step > 0 && copies.iter().enumerate().all(|(o, e)| *e as i64 == first as i64 + o as i64 * step) {
        let steps = if from.elems() == 0 { Steps::ALL } else { steps_on(axis, first as i64, step) };
        return slice(x, steps, from.with(axis, count)).map(Some);
    }
    if count.is_multiple_of(len) && copies.iter().enumerate().all(|(o, e)| *e == o / (count / len)) {
        let (before, after) = (&from.dims()[..axis], &from.dims()[axis + 1..]);
        if from.rank() == wgrad_graph::MAX_RANK {
            return Ok(None);
        }
        let split = |times: usize| shape(op, &[before, &[len, times], after].concat());
        let repeated = expand(reshape(x, split(1)?)?, split(count / len)?)?;
        return reshape(repeated, from.with(axis, count)).map(Some);
    }
    Ok(None)
}

/// `y[.., o, ..] = sum of weight * x[.., element, ..]` over the terms of `o`, along `axis`.
#[track_caller]
pub(crate) fn resample(op: &'static str, x: Tensor, axis: usize, taps: &Arc<Taps>) -> Result<Tensor> {
    let identity =
        taps.copies().is_some_and(|c| c.len() == taps.from && c.iter().enumerate().all(|(o, e)| o == *e));
    if identity {
        return Ok(x);
    }
    if !x.try_out()?.dtype.is_float() {
        return apply(op, x, axis, taps);
    }
    let (there, back) = (Arc::clone(taps), Arc::new(taps.transposed()));
    custom_gradient(
        &[x],
        |x| apply(op, x[0], axis, &there),
        move |g| Ok(vec![Some(resample(op, g.dout(0), axis, &back)?)]),
    )
}

/// Elements of an axis of `from` that are averaged for output `o` of `to`: `o * from / to` (rounded down)
/// up to `(o + 1) * from / to` (rounded up).
pub(crate) fn part(o: usize, from: usize, to: usize) -> std::ops::Range<usize> {
    o * from / to..((o + 1) * from).div_ceil(to)
}

/// The map that averages equal parts of an axis, which overlap where `to` does not divide `from`.
pub(crate) fn means(from: usize, to: usize) -> Taps {
    Taps::new(from, to, |o| {
        let part = part(o, from, to);
        let weight = 1.0 / part.len() as f64;
        part.map(move |element| (element, weight))
    })
}
