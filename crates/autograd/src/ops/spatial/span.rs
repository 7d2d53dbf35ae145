//! Windows over the last axes: how many there are, what they hold, and which of them hold an element.

use smallvec::SmallVec;
use wgrad_graph::{DType, MAX_RANK, Op, Shape, Steps};

use crate::ops::{Windows, expand, iota, reshape, shape, slice};
use crate::{Result, Tensor};

/// A number for each spatial axis, or one for all of them: `2`, `[3, 2]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(SmallVec<[usize; 3]>);

impl From<usize> for Sizes {
    fn from(size: usize) -> Sizes {
        Sizes(SmallVec::from_slice(&[size]))
    }
}

impl<const N: usize> From<[usize; N]> for Sizes {
    fn from(sizes: [usize; N]) -> Sizes {
        Sizes(SmallVec::from_slice(&sizes))
    }
}

impl From<&[usize]> for Sizes {
    fn from(sizes: &[usize]) -> Sizes {
        Sizes(SmallVec::from_slice(sizes))
    }
}

impl Sizes {
    /// How many numbers are given.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number for each of `axes` axes; none given is `default`.
    #[track_caller]
    pub(crate) fn of(&self, op: &str, what: &str, axes: usize, default: &[usize]) -> Result<Sides> {
        match self.0[..] {
            [] => Ok(Sides::from_slice(default)),
            [one] => Ok(SmallVec::from_elem(one, axes)),
            _ if self.0.len() == axes => Ok(self.0.clone()),
            _ => {
                refuse!(Argument, op, "{what} {:?} for {axes} axes; one number, or one an axis", &self.0[..])
            }
        }
    }
}

/// A number for each spatial axis.
pub(crate) type Sides = SmallVec<[usize; 3]>;

/// The windows along one axis: window `o` holds elements `o * stride - padding + k * dilation`, `k` below
/// `kernel`, of an axis of `len`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) len: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) dilation: usize,
    /// How many windows there are.
    pub(crate) count: usize,
}

/// The windows along each spatial axis.
pub(crate) type Spans = SmallVec<[Span; 3]>;

impl Span {
    /// Elements from a window's first to its last.
    pub(crate) fn reach(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Elements beyond the axis that the last window needs.
    fn after(&self) -> usize {
        ((self.count - 1) * self.stride + self.reach()).saturating_sub(self.padding + self.len)
    }

    fn is_padded(&self) -> bool {
        self.padding > 0 || self.after() > 0
    }

    /// Most windows that hold one element.
    pub(crate) fn cover(&self) -> usize {
        self.reach().div_ceil(self.stride)
    }

    /// Windows of which one begins at each element before which `stride` divides, up to the last element.
    fn rows(&self) -> usize {
        (self.padding + self.len).div_ceil(self.stride)
    }

    /// Whether an element lies in each window that [`all_covering`] lists for it.
    fn covers_all(&self) -> bool {
        self.dilation == 1 && self.kernel.is_multiple_of(self.stride)
    }

    /// How many of a window's elements `o * stride - padding + k * dilation` are in `lo..hi`.
    pub(crate) fn inside(&self, o: usize, lo: i64, hi: i64) -> usize {
        let first = (o * self.stride) as i64 - self.padding as i64;
        let at = |k: usize| first + (k * self.dilation) as i64;
        (0..self.kernel).filter(|k| (lo..hi).contains(&at(*k))).count()
    }
}

/// Elements of a window.
pub(crate) fn window(spans: &[Span]) -> usize {
    spans.iter().map(|s| s.kernel).product()
}

/// Elements of the spatial axes.
pub(crate) fn plane(spans: &[Span]) -> usize {
    spans.iter().map(|s| s.len).product()
}

/// Whether windows reach beyond the axes.
pub(crate) fn is_padded(spans: &[Span]) -> bool {
    spans.iter().any(Span::is_padded)
}

/// The coordinates of `dims` in row-major order.
pub(crate) fn coords(dims: &[usize]) -> impl Iterator<Item = Sides> {
    let dims = Sides::from_slice(dims);
    (0..dims.iter().product()).map(move |mut i| {
        let mut at = Sides::from_elem(0, dims.len());
        for axis in (0..dims.len()).rev() {
            at[axis] = i % dims[axis];
            i /= dims[axis];
        }
        at
    })
}

/// `x` with at most `most` axes before its last `axes`.
#[track_caller]
pub(crate) fn lead(op: &str, x: Tensor, axes: usize, most: usize) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let first = from.rank() - axes;
    if first <= most {
        return Ok(x);
    }
    let all: usize = from.dims()[..first].iter().product();
    reshape(x, shape(op, &[&[all], &from.dims()[first..]].concat())?)
}

/// `x` with other spatial axes.
#[track_caller]
pub(crate) fn with_spatial(op: &str, x: Shape, axes: usize, to: &[usize]) -> Result<Shape> {
    shape(op, &[&x.dims()[..x.rank() - axes], to].concat())
}

/// `x` with `value` where windows reach beyond it; with 0 where that is `None`.
#[track_caller]
pub(crate) fn padded(op: &str, x: Tensor, spans: &[Span], value: Option<f64>) -> Result<Tensor> {
    if !is_padded(spans) {
        return Ok(x);
    }
    let out = x.try_out()?;
    let first = out.shape.rank() - spans.len();
    let (mut lo, mut dims) = ([0; MAX_RANK], out.shape.dims().to_vec());
    for (i, s) in spans.iter().enumerate() {
        lo[first + i] = s.padding as u32;
        dims[first + i] += s.padding + s.after();
    }
    let to = shape(op, &dims)?;
    if to == out.shape {
        return Ok(x);
    }
    let wide = Tensor::record(Op::Pad { lo }, &[x], Some(to), None)?;
    let Some(value) = value else { return Ok(wide) };
    // A choice rather than an assignment: it fuses into what reads it.
    let here = expand(x.number(1.0, DType::Bool)?, out.shape)?;
    let here = Tensor::record(Op::Pad { lo }, &[here], Some(to), None)?;
    here.try_select(wide, expand(x.number(value, out.dtype)?, to)?)
}

/// Element `at` of each window of the padded `x`.
#[track_caller]
pub(crate) fn element(x: Tensor, spans: &[Span], at: &[usize]) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let first = from.rank() - spans.len();
    let (mut steps, mut to) = (Steps::ALL, from);
    for (i, (s, k)) in spans.iter().zip(at).enumerate() {
        steps.start[first + i] = (k * s.dilation) as i64;
        steps.step[first + i] = s.stride as i64;
        to = to.with(first + i, s.count);
    }
    if to.elems() == 0 {
        steps.start = [0; MAX_RANK];
    }
    slice(x, steps, to)
}

/// The windows of the padded `x`, their elements on new last axes.
#[track_caller]
pub(crate) fn all_windows(x: Tensor, spans: &[Span]) -> Result<Tensor> {
    let first = x.try_out()?.shape.rank() - spans.len();
    let mut x = x;
    for (i, s) in spans.iter().enumerate() {
        x = x.try_windows(
            (first + i) as i32,
            Windows { size: s.kernel, step: s.stride, dilation: s.dilation },
        )?;
    }
    Ok(x)
}

/// The last `axes` axes of `shape`, each with its index as i32, for `beside` to broadcast with.
#[track_caller]
pub(crate) fn indices(beside: Tensor, dims: &[usize]) -> Result<SmallVec<[Tensor; 3]>> {
    let mut all = SmallVec::new();
    for axis in 0..dims.len() {
        let mut own: Sides = SmallVec::from_elem(1, dims.len());
        own[axis] = dims[axis];
        all.push(iota(beside, Shape::new(&own), axis, DType::I32)?);
    }
    Ok(all)
}

/// The row-major number (i32) of each element of the spatial axes.
#[track_caller]
pub(crate) fn numbers(beside: Tensor, dims: &[usize]) -> Result<Tensor> {
    let all = iota(beside, Shape::from([dims.iter().product()]), 0, DType::I32)?;
    reshape(all, Shape::new(dims))
}

/// For each element the value of one of the windows that may hold it, zero where there is none: the
/// window `o = (h + padding) / stride - j` for element `h`, which is the window's element
/// `(h + padding) % stride + j * stride` if that is one. `g` has a value for each window.
#[track_caller]
pub(crate) fn covering(op: &str, g: Tensor, spans: &[Span], j: &[usize]) -> Result<Tensor> {
    let x = lead(op, g, spans.len(), 1)?;
    let from = x.try_out()?.shape;
    let first = from.rank() - spans.len();
    let (mut lo, mut wide, mut used) = ([0; MAX_RANK], from, from);
    for (i, (s, j)) in spans.iter().zip(j).enumerate() {
        lo[first + i] = *j as u32;
        wide = wide.with(first + i, s.rows().max(s.count + j));
        used = used.with(first + i, s.rows());
    }
    let x = if wide == from { x } else { Tensor::record(Op::Pad { lo }, &[x], Some(wide), None)? };
    repeated(op, slice(x, Steps::ALL, used)?, spans, &[])
}

/// As [`covering`], for all `j` at once, on new last axes, the farthest window first.
#[track_caller]
pub(crate) fn all_covering(op: &str, g: Tensor, spans: &[Span]) -> Result<Tensor> {
    let x = lead(op, g, spans.len(), 1)?;
    let from = x.try_out()?.shape;
    let first = from.rank() - spans.len();
    let (mut lo, mut wide, mut used) = ([0; MAX_RANK], from, from);
    for (i, s) in spans.iter().enumerate() {
        let before = s.cover() - 1;
        lo[first + i] = before as u32;
        wide = wide.with(first + i, s.rows().max(s.count) + before);
        used = used.with(first + i, s.rows() + before);
    }
    let x = if wide == from { x } else { Tensor::record(Op::Pad { lo }, &[x], Some(wide), None)? };
    let mut x = slice(x, Steps::ALL, used)?;
    for (i, s) in spans.iter().enumerate() {
        x = x.try_windows((first + i) as i32, Windows { size: s.cover(), ..Windows::default() })?;
    }
    let covers: Sides = spans.iter().map(Span::cover).collect();
    repeated(op, x, spans, &covers)
}

/// Rows of windows (before the last axes `rest`) repeated for the elements of a stride, cut to the axes.
#[track_caller]
fn repeated(op: &str, x: Tensor, spans: &[Span], rest: &[usize]) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let axes = spans.len();
    let first = from.rank() - axes - rest.len();
    let lead = &from.dims()[..first];
    let (mut split, mut wide, mut joined) = (lead.to_vec(), lead.to_vec(), lead.to_vec());
    let (mut steps, mut used) = (Steps::ALL, lead.to_vec());
    for (i, s) in spans.iter().enumerate() {
        let rows = from[first + i];
        split.push(rows);
        wide.push(rows);
        if s.stride > 1 {
            split.push(1);
            wide.push(s.stride);
        }
        joined.push(rows * s.stride);
        steps.start[first + i] = s.padding as i64;
        used.push(s.len);
    }
    for dims in [&mut split, &mut wide, &mut joined, &mut used] {
        dims.extend(rest);
    }
    let (joined, used) = (shape(op, &joined)?, shape(op, &used)?);
    if used.elems() == 0 {
        steps = Steps::ALL;
    }
    if wide.len() > MAX_RANK {
        // Axis by axis: each more one view of the index.
        let mut x = x;
        for (i, s) in spans.iter().enumerate() {
            let from = x.try_out()?.shape;
            let (before, after) = (&from.dims()[..first + i], &from.dims()[first + i + 1..]);
            let split = |n: &[usize]| shape(op, &[before, n, after].concat());
            let rows = from[first + i];
            x = expand(reshape(x, split(&[rows, 1])?)?, split(&[rows, s.stride])?)?;
            x = reshape(x, split(&[rows * s.stride])?)?;
        }
        return slice(x, steps, used);
    }
    let x = expand(reshape(x, shape(op, &split)?)?, shape(op, &wide)?)?;
    slice(reshape(x, joined)?, steps, used)
}

/// Which of the windows of [`all_covering`] hold the element: `None` where all do. Bool over the elements
/// and the windows.
#[track_caller]
pub(crate) fn covered(op: &str, beside: Tensor, spans: &[Span]) -> Result<Option<Tensor>> {
    let axes = spans.len();
    let mut all: Option<Tensor> = None;
    for (i, s) in spans.iter().enumerate() {
        if s.covers_all() {
            continue;
        }
        let h = iota(beside, Shape::from([s.len, 1]), 0, DType::I32)?.try_add(s.padding as i32)?;
        // The last of the axis of windows is the nearest one.
        let back = iota(beside, Shape::from([1, s.cover()]), 1, DType::I32)?;
        let j = back.try_mul(-(s.stride as i32))?.try_add(((s.cover() - 1) * s.stride) as i32)?;
        let k = if s.stride == 1 { j } else { h.try_rem(s.stride as i32)?.try_add(j)? };
        let mut on = k.try_lt(s.reach() as i32)?;
        if s.dilation > 1 {
            on = on.try_and(k.try_rem(s.dilation as i32)?.try_eq(0)?)?;
        }
        let at = on.try_out()?.shape;
        let mut dims = vec![1; 2 * axes];
        (dims[i], dims[axes + i]) = (at[0], at[1]);
        let on = reshape(on, shape(op, &dims)?)?;
        all = Some(match all {
            Some(others) => others.try_and(on)?,
            None => on,
        });
    }
    Ok(all)
}
