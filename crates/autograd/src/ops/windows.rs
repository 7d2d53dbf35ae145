//! Sliding windows and diagonals: views that read an element several times or leave some out, and what
//! undoes them. All of it is index functions; nothing is copied.

use wgrad_graph::{DType, MAX_RANK, Op, Shape, Steps};

use super::args::axis as axis_of;
use super::movement::movedim;
use super::{expand, iota, reshape, shape, slice, steps_on};
use crate::{Result, Tensor, custom_gradient};

/// How windows slide along an axis.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Elements of a window.
    pub size: usize,
    /// Distance between windows.
    pub step: usize,
    /// Distance between the elements of a window.
    pub dilation: usize,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { size: 1, step: 1, dilation: 1 }
    }
}

impl Windows {
    /// Elements from a window's first to its last.
    pub(crate) fn span(&self) -> usize {
        self.size.saturating_sub(1).saturating_mul(self.dilation).saturating_add(1)
    }

    /// How many windows fit on `len` elements.
    #[track_caller]
    pub(crate) fn count(&self, op: &str, len: usize) -> Result<usize> {
        let Windows { size, step, dilation } = *self;
        if [size, step, dilation].iter().any(|n| *n == 0 || *n > u32::MAX as usize) {
            refuse!(Argument, op, "size {size}, step {step} and dilation {dilation} have to be above 0");
        }
        if self.span() > len {
            refuse!(Shape, op, "a window spans {} elements, the axis has {len}", self.span());
        }
        Ok((len - self.span()) / step + 1)
    }
}

/// Where the elements of an axis go: element `i` to `lo + i * step` of `len`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Place {
    pub(crate) lo: usize,
    pub(crate) step: usize,
    pub(crate) len: usize,
}

/// Zeros with the elements of `x` at `places` on the axes from `first` on: around and between. One pad
/// of axes split into `[n, step]`, so that kernels see one index function with ranges.
#[track_caller]
pub(crate) fn scattered(op: &str, x: Tensor, first: usize, places: &[Place]) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let (lead, rest) = from.dims().split_at(first);
    let (axes, trail) = rest.split_at(places.len());
    let lead_size: usize = lead.iter().product();
    let trail_size: usize = trail.iter().product();
    let (mut split, mut padded, mut joined) = (vec![lead_size], vec![lead_size], vec![lead_size]);
    let (mut lo, mut steps) = ([0; MAX_RANK], Steps::ALL);
    let mut to = lead.to_vec();
    for (i, (n, p)) in axes.iter().zip(places).enumerate() {
        let before = p.lo.div_ceil(p.step);
        let skipped = before * p.step - p.lo;
        let units = (skipped + p.len).div_ceil(p.step);
        if split.len() < MAX_RANK {
            lo[split.len()] = before as u32;
        }
        split.push(*n);
        padded.push(units);
        if p.step > 1 {
            split.push(1);
            padded.push(p.step);
        }
        joined.push(units * p.step);
        steps.start[i + 1] = skipped as i64;
        to.push(p.len);
    }
    [&mut split, &mut padded, &mut joined].into_iter().for_each(|dims| dims.push(trail_size));
    to.extend(trail);
    let (padded, to) = (shape(op, &padded)?, shape(op, &to)?);
    let x = reshape(x, shape(op, &split)?)?;
    let x = if x.try_out()?.shape == padded {
        x
    } else {
        Tensor::record(Op::Pad { lo }, &[x], Some(padded), None)?
    };
    let mut part = vec![lead_size];
    part.extend(places.iter().map(|p| p.len));
    part.push(trail_size);
    let x = slice(reshape(x, shape(op, &joined)?)?, steps, shape(op, &part)?)?;
    reshape(x, to)
}

#[track_caller]
fn windows(x: Tensor, axis: i32, w: Windows) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let a = axis_of("windows", axis, from.rank())?;
    w.count("windows", from[a])?;
    let op =
        Op::Windows { axis: a as u8, size: w.size as u32, step: w.step as u32, dilation: w.dilation as u32 };
    Tensor::record(op, &[x], None, None)
}

/// Windows of `kernel` over the axes from `first` on, whose elements are axes at the end.
#[track_caller]
pub(crate) fn windows_over(
    x: Tensor,
    first: i32,
    kernel: &[usize],
    step: &[usize],
    dilation: &[usize],
) -> Result<Tensor> {
    let mut x = x;
    for i in 0..kernel.len() {
        x = windows(x, first + i as i32, Windows { size: kernel[i], step: step[i], dilation: dilation[i] })?;
    }
    Ok(x)
}

/// The sum, for each of `len` elements, over the windows that hold it: one reduction over the elements
/// of a window, whose part of each element is read where it lies.
#[track_caller]
pub(crate) fn overlap_add(x: Tensor, axis: usize, w: Windows, len: usize) -> Result<Tensor> {
    const OP: &str = "overlap_add";
    let from = x.try_out()?.shape;
    let last = from.rank() - 1;
    if w.count(OP, len)? != from[axis] || w.size != from[last] {
        let count = w.count(OP, len)?;
        let detail = format!("{from} is not {count} windows of {} along axis {axis}", w.size);
        refuse!([x] Shape, OP, "{detail}");
    }
    let to = Shape::new(&from.with(axis, len).dims()[..last]);
    let sum = |x: &[Tensor]| {
        let outer = from.dims()[..axis].iter().product();
        let inner = from.dims()[axis + 1..last].iter().product();
        let g = reshape(x[0], shape(OP, &[outer, from[axis], inner, w.size])?)?;
        // Element s is element k of window (s - k * dilation) / step, where that is a whole number.
        let before = (w.size - 1) * w.dilation;
        let place = Place { lo: before, step: w.step, len: len + before };
        let spread = scattered(OP, g.try_flip(3)?, 1, &[place])?;
        let all = windows(spread, 1, Windows { step: 1, ..w })?;
        let own = Tensor::record(Op::Diagonal { a: 3, b: 4 }, &[all], None, None)?;
        reshape(own.try_sum(3)?, to)
    };
    custom_gradient(&[x], sum, move |g| Ok(vec![Some(windows(g.dout(0), axis as i32, w)?)]))
}

/// Zeros with the last axis of `x` on the diagonal of two axes, `a` and `b` of the result.
#[track_caller]
pub(crate) fn diag_embed(x: Tensor, offset: i32, a: usize, b: usize) -> Result<Tensor> {
    const OP: &str = "diag_embed";
    let from = x.try_out()?;
    let last = from.shape.rank() - 1;
    let shift = offset.unsigned_abs() as usize;
    let size = from.shape[last].saturating_add(shift);
    let square = shape(OP, &[&from.shape.dims()[..last], &[size, size]].concat())?;
    // Above the diagonal the row says which element, below it the column does.
    let place = Place { lo: 0, step: 1, len: size };
    let x = scattered(OP, x, last, &[place])?.try_unsqueeze(if offset < 0 { -2 } else { -1 })?;
    let indices = Shape::from([size, size]);
    let mut at = [iota(x, indices, 0, DType::I32)?, iota(x, indices, 1, DType::I32)?];
    if shift > 0 {
        let lower = &mut at[usize::from(offset < 0)];
        *lower = lower.try_add(shift as i32)?;
    }
    let zero = expand(x.number(0.0, from.dtype)?, square)?;
    let on = expand(at[0].try_eq(at[1])?, square)?;
    let y = on.try_select(expand(x, square)?, zero)?;
    // The two axes to their places, the first of them first.
    movedim(y, &[last, last + 1], &[a, b])
}

#[track_caller]
fn diagonal(x: Tensor, offset: i32, a: i32, b: i32) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let (i, j) = (axis_of("diagonal", a, from.rank())?, axis_of("diagonal", b, from.rank())?);
    if i == j {
        refuse!([x] Argument, "diagonal", "axes {a} and {b} of {from} are one");
    }
    let shift = offset.unsigned_abs() as usize;
    let (rows, columns) = if offset < 0 { (shift, 0) } else { (0, shift) };
    let len = from[i].saturating_sub(rows).min(from[j].saturating_sub(columns));
    let mut x = x;
    for (axis, start) in [(i, rows), (j, columns)] {
        let part = x.try_out()?.shape.with(axis, len);
        x = slice(x, steps_on(axis, if len == 0 { 0 } else { start as i64 }, 1), part)?;
    }
    Tensor::record(Op::Diagonal { a: i as u8, b: j as u8 }, &[x], None, None)
}

methods! { impl Tensor, Self;
    /// Sliding windows along `axis`: `y[.., i, .., k] = x[.., i * step + k * dilation, ..]`. A view.
    ///
    /// Shape: `axis` becomes the count of windows, `(n - (size - 1) * dilation - 1) / step + 1`; a new
    /// last axis has the window's elements. Gradient: for each element the sum over the windows that
    /// hold it, in the order of their elements, one reduction.
    /// Errors: a window longer than the axis.
    windows try_windows(self, axis: i32, how: Windows) -> Tensor { windows(self, axis, how) }

    /// Windows of `size` elements, `step` apart, along `axis`: [`Tensor::windows`] without dilation.
    unfold try_unfold(self, axis: i32, size: usize, step: usize) -> Tensor {
        windows(self, axis, Windows { size, step, dilation: 1 })
    }

    /// What undoes [`Tensor::windows`], elements that lie in several windows added:
    /// `y[.., i * step + k * dilation, ..] += x[.., i, .., k]` over zeros, `axis` of size `len`.
    ///
    /// Gradient: the windows of `g`. Numerics: sums by a reduction over `k`, no atomics.
    overlap_add try_overlap_add(self, axis: i32, how: Windows, len: usize) -> Tensor {
        let from = self.try_out()?.shape;
        if from.rank() < 2 {
            refuse!([self] Shape, "overlap_add", "{from} has no axis of windows and one of their elements");
        }
        overlap_add(self, axis_of("overlap_add", axis, from.rank() - 1)?, how, len)
    }

    /// The diagonal `x[.., i, .., i + offset, ..]` of axes `a` and `b` as a new last axis; the two are
    /// gone. A view. An offset beyond the axes gives an empty diagonal.
    diagonal try_diagonal(self, offset: i32, a: i32, b: i32) -> Tensor { diagonal(self, offset, a, b) }

    /// Zeros with the last axis of `x` on a diagonal: `y[.., i, .., i + offset, ..] = x[.., i]` with `i`
    /// on axis `a` of the result and `i + offset` on axis `b`.
    diag_embed try_diag_embed(self, offset: i32, a: i32, b: i32) -> Tensor {
        let rank = self.try_out()?.shape.rank();
        if rank == 0 {
            refuse!([self] Shape, "diag_embed", "a number has no axis");
        }
        let (i, j) = (axis_of("diag_embed", a, rank + 1)?, axis_of("diag_embed", b, rank + 1)?);
        if i == j {
            refuse!([self] Argument, "diag_embed", "axes {a} and {b} are one");
        }
        diag_embed(self, offset, i, j)
    }

    /// A vector as the diagonal of a matrix of zeros, or the diagonal of a matrix.
    diag try_diag(self, offset: i32) -> Tensor {
        let from = self.try_out()?.shape;
        match from.rank() {
            1 => diag_embed(self, offset, 0, 1),
            2 => diagonal(self, offset, 0, 1),
            _ => refuse!([self] Shape, "diag", "{from} is neither vector nor matrix"),
        }
    }

    /// The sum of the diagonal of the last two axes.
    trace try_trace(self) -> Tensor {
        let from = self.try_out()?.shape;
        if from.rank() < 2 {
            refuse!([self] Shape, "trace", "{from} is no matrix");
        }
        diagonal(self, 0, -2, -1)?.try_sum(-1)
    }
}
