//! Elements repeated, moved around the end of an axis, and kept on one side of a diagonal.

use wgrad_graph::{DType, Shape};

use super::args::axis as axis_of;
use super::{expand, iota, reshape, shape, slice, steps_on};
use crate::{Result, Tensor};

/// Each element (`inside`), or the whole, of `axis` `times` times.
#[track_caller]
fn repeated(op: &str, x: Tensor, axis: usize, times: usize, inside: bool) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let split = axis + usize::from(inside);
    let outer: usize = from.dims()[..split].iter().product();
    let inner: usize = from.dims()[split..].iter().product();
    let mut dims = from.dims().to_vec();
    dims[axis] = dims[axis].saturating_mul(times);
    let to = shape(op, &dims)?;
    let x = reshape(x, Shape::from([outer, 1, inner]))?;
    reshape(expand(x, shape(op, &[outer, times, inner])?)?, to)
}

/// `x` where the column is at most (else at least) `row + diagonal`, and zeros.
#[track_caller]
fn triangle(op: &str, x: Tensor, diagonal: i32, lower: bool) -> Result<Tensor> {
    let from = x.try_out()?;
    let rank = from.shape.rank();
    if rank < 2 {
        refuse!([x] Shape, op, "{} is no matrix", from.shape);
    }
    let matrix = Shape::from([from.shape[rank - 2], from.shape[rank - 1]]);
    let mut row = iota(x, matrix, 0, DType::I32)?;
    let column = iota(x, matrix, 1, DType::I32)?;
    if diagonal != 0 {
        row = row.try_add(diagonal)?;
    }
    let kept = if lower { column.try_le(row)? } else { column.try_ge(row)? };
    let zero = expand(x.number(0.0, from.dtype)?, from.shape)?;
    expand(kept, from.shape)?.try_select(x, zero)
}

methods! { impl Tensor, Self;
    /// `x` repeated `times` times along `axis`: `[1, 2]` twice is `[1, 2, 1, 2]`. Gradient: the sum over
    /// the repeats.
    repeat try_repeat(self, axis: i32, times: usize) -> Tensor {
        let a = axis_of("repeat", axis, self.try_out()?.shape.rank())?;
        repeated("repeat", self, a, times, false)
    }

    /// Each element `times` times in a row along `axis`: `[1, 2]` twice is `[1, 1, 2, 2]`.
    repeat_interleave try_repeat_interleave(self, axis: i32, times: usize) -> Tensor {
        let a = axis_of("repeat_interleave", axis, self.try_out()?.shape.rank())?;
        repeated("repeat_interleave", self, a, times, true)
    }

    /// [`Tensor::repeat`] on several axes: `times` for each axis, aligned at the last; axes are added in
    /// front where `times` has more.
    tile try_tile(self, times: &[usize]) -> Tensor {
        let from = self.try_out()?.shape;
        let added = times.len().saturating_sub(from.rank());
        let mut x = reshape(self, shape("tile", &[&vec![1; added], from.dims()].concat())?)?;
        let first = added + from.rank() - times.len();
        for (i, times) in times.iter().enumerate() {
            if *times != 1 {
                x = repeated("tile", x, first + i, *times, false)?;
            }
        }
        Ok(x)
    }

    /// Elements of `axis` moved by `shift` towards the end, those that fall off first:
    /// `[1, 2, 3]` by 1 is `[3, 1, 2]`.
    roll try_roll(self, axis: i32, shift: i32) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("roll", axis, from.rank())?;
        let n = from[a] as i64;
        let by = if n == 0 { 0 } else { i64::from(shift).rem_euclid(n) };
        if by == 0 {
            return Ok(self);
        }
        let last = slice(self, steps_on(a, n - by, 1), from.with(a, by as usize))?;
        let first = slice(self, steps_on(a, 0, 1), from.with(a, (n - by) as usize))?;
        Tensor::try_cat(&[last, first], a as i32)
    }

    /// The elements `x[.., i, j]` with `j <= i + diagonal`, zeros elsewhere. NaN there does not count.
    tril try_tril(self, diagonal: i32) -> Tensor { triangle("tril", self, diagonal, true) }

    /// The elements `x[.., i, j]` with `j >= i + diagonal`, zeros elsewhere. NaN there does not count.
    triu try_triu(self, diagonal: i32) -> Tensor { triangle("triu", self, diagonal, false) }
}
