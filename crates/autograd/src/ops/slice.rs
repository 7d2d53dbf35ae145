//! Parts of tensors: taken, replaced, at places known when recording or at submission.

use wgrad_graph::{Axes, Op, Shape, Steps};

use super::args::axis as axis_of;
use super::reduce::without;
use super::{AxesArg, Cut, Operand, Start, cast, expand, reshape};
use crate::{Result, Tensor};

/// The steps that start at `start` and advance by `step` on one axis, and take all of the others.
pub(crate) fn steps_on(axis: usize, start: i64, step: i64) -> Steps {
    let mut steps = Steps::ALL;
    (steps.start[axis], steps.step[axis]) = (start, step);
    steps
}

/// The part of shape `to` that `steps` takes.
#[track_caller]
pub(crate) fn slice(x: Tensor, steps: Steps, to: Shape) -> Result<Tensor> {
    if steps == Steps::ALL && x.try_out()?.shape == to {
        return Ok(x);
    }
    Tensor::record(Op::Slice(steps), &[x], Some(to), None)
}

methods! { impl Tensor, Self;
    /// Elements `range` of `axis`: `x.slice(0, 2..5)`, `x.slice(-1, ..-1)`. Negative indices count from
    /// the end. Gradient: zeros around `g`.
    slice try_slice(self, axis: i32, range: impl Into<Cut>) -> Tensor { self.try_slice_step(axis, range, 1) }

    /// Every `step`-th element of `range` on `axis`; a negative step runs from the range's last element
    /// to its first: `x.slice_step(0, 1..6, -2)` takes elements 5, 3, 1.
    slice_step try_slice_step(self, axis: i32, range: impl Into<Cut>, step: i32) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("slice", axis, from.rank())?;
        let (steps, to) = stepped(self, "slice", a, range.into(), step)?;
        slice(self, steps, to)
    }

    /// `len` elements of `axis` from `start`.
    narrow try_narrow(self, axis: i32, start: usize, len: usize) -> Tensor {
        self.try_slice(axis, start..start.saturating_add(len))
    }

    /// Element `index` of `axis`, which is gone from the result; a negative index counts from the end.
    select_index try_select_index(self, axis: i32, index: i32) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("select_index", axis, from.rank())?;
        let at = element(self, "select_index", a, index)?;
        without(slice(self, steps_on(a, at, 1), from.with(a, 1))?, Axes::NONE.with(a))
    }

    /// `axes` in reverse.
    flip try_flip(self, axes: impl Into<AxesArg>) -> Tensor {
        let from = self.try_out()?.shape;
        let mut steps = Steps::ALL;
        for a in axes.into().of("flip", from.rank())? {
            if from[a] > 1 {
                (steps.start[a], steps.step[a]) = (from[a] as i64 - 1, -1);
            }
        }
        slice(self, steps, from)
    }

    /// `len` elements of `axis` from `start`, which is read at submission when it is a `Scalar`.
    /// Errors at submission: a start beyond `size - len`. Gradient: zeros around `g`.
    slice_at try_slice_at(self, axis: i32, start: impl Start, len: usize) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("slice_at", axis, from.rank())?;
        let start = start.start(self)?;
        Tensor::record(Op::SliceAt { axis: a as u8 }, &[self, start], Some(from.with(a, len)), None)
    }

    /// `x` with the elements from `start` on `axis` replaced by `part`, which is as large on the other
    /// axes. Gradient: to `x` zero in the part, to `part` the slice of `g`.
    slice_assign try_slice_assign(self, axis: i32, start: usize, part: Tensor) -> Tensor {
        let base = self.try_out()?;
        let a = axis_of("slice_assign", axis, base.shape.rank())?;
        let part = cast(part, base.dtype)?;
        Tensor::record(Op::SliceAssign(steps_on(a, start as i64, 1)), &[self, part], None, None)
    }

    /// As [`Tensor::slice_assign`] at a start that is read at submission when it is a `Scalar`. Into an
    /// owned value this writes the part alone.
    slice_assign_at try_slice_assign_at(self, axis: i32, start: impl Start, part: Tensor) -> Tensor {
        let base = self.try_out()?;
        let a = axis_of("slice_assign_at", axis, base.shape.rank())?;
        let (part, start) = (cast(part, base.dtype)?, start.start(self)?);
        Tensor::record(Op::SliceAssignAt { axis: a as u8 }, &[self, part, start], None, None)
    }

    /// `x` with every `step`-th element of `range` on `axis` replaced by `part`, which broadcasts; a
    /// negative step runs from the range's last element. Gradient: as of [`Tensor::slice_assign`].
    slice_assign_step try_slice_assign_step(
        self, axis: i32, range: impl Into<Cut>, step: i32, part: impl Operand
    ) -> Tensor {
        let base = self.try_out()?;
        let a = axis_of("slice_assign", axis, base.shape.rank())?;
        let (steps, to) = stepped(self, "slice_assign", a, range.into(), step)?;
        let part = expand(cast(part.tensor(self)?, base.dtype)?, to)?;
        Tensor::record(Op::SliceAssign(steps), &[self, part], None, None)
    }

    /// `x` with element `index` of `axis` replaced by `part`, which broadcasts to the others.
    select_assign try_select_assign(self, axis: i32, index: i32, part: impl Operand) -> Tensor {
        let base = self.try_out()?;
        let a = axis_of("select_assign", axis, base.shape.rank())?;
        let at = element(self, "select_assign", a, index)?;
        let others: Vec<usize> = (0..base.shape.rank()).filter(|i| *i != a).map(|i| base.shape[i]).collect();
        let part = expand(cast(part.tensor(self)?, base.dtype)?, Shape::new(&others))?;
        let part = reshape(part, base.shape.with(a, 1))?;
        Tensor::record(Op::SliceAssign(steps_on(a, at, 1)), &[self, part], None, None)
    }

    /// Parts of `size` elements along `axis`; the last may be smaller. An empty axis is one empty part.
    split try_split(self, axis: i32, size: usize) -> Vec<Tensor> {
        let from = self.try_out()?.shape;
        let a = axis_of("split", axis, from.rank())?;
        if size == 0 {
            refuse!([self] Argument, "split", "parts of size 0");
        }
        let mut parts = Vec::with_capacity(from[a].div_ceil(size));
        for start in (0..from[a].max(1)).step_by(size) {
            parts.push(self.try_narrow(axis, start, size.min(from[a] - start))?);
        }
        Ok(parts)
    }

    /// Parts of these sizes along `axis`, which they fill.
    split_sizes try_split_sizes(self, axis: i32, sizes: &[usize]) -> Vec<Tensor> {
        let from = self.try_out()?.shape;
        let a = axis_of("split_sizes", axis, from.rank())?;
        if sizes.iter().fold(0usize, |n, s| n.saturating_add(*s)) != from[a] {
            refuse!([self] Argument, "split_sizes", "parts {sizes:?} of axis {axis} of {from}");
        }
        let mut parts = Vec::with_capacity(sizes.len());
        let mut start = 0;
        for size in sizes {
            parts.push(self.try_narrow(axis, start, *size)?);
            start += size;
        }
        Ok(parts)
    }

    /// `axis` in `count` parts of one size, the last perhaps smaller: fewer than `count` where so many
    /// do not come out (7 elements in 5 are parts of 2, 2, 2, 1).
    chunk try_chunk(self, axis: i32, count: usize) -> Vec<Tensor> {
        let from = self.try_out()?.shape;
        let size = from[axis_of("chunk", axis, from.rank())?];
        if count == 0 {
            refuse!([self] Argument, "chunk", "axis {axis} of {from} in 0 parts");
        }
        if size == 0 { Ok(vec![self; count]) } else { self.try_split(axis, size.div_ceil(count)) }
    }

    /// The elements of `axis` one by one, without the axis.
    unbind try_unbind(self, axis: i32) -> Vec<Tensor> {
        let from = self.try_out()?.shape;
        let count = from[axis_of("unbind", axis, from.rank())?];
        let mut parts = Vec::with_capacity(count);
        for index in 0..count {
            parts.push(self.try_select_index(axis, index as i32)?);
        }
        Ok(parts)
    }
}

/// The steps that take every `step`-th element of `range` on axis `a`, and the shape of what they take.
#[track_caller]
fn stepped(x: Tensor, op: &str, a: usize, range: Cut, step: i32) -> Result<(Steps, Shape)> {
    let from = x.try_out()?.shape;
    let range = range.of(op, from[a])?;
    if step == 0 {
        refuse!([x] Argument, op, "step 0");
    }
    let start = match range.is_empty() {
        true => 0,
        false if step > 0 => range.start,
        false => range.end - 1,
    };
    let to = from.with(a, range.len().div_ceil(step.unsigned_abs() as usize));
    Ok((steps_on(a, start as i64, i64::from(step)), to))
}

/// The element of axis `a` that `index` names.
#[track_caller]
fn element(x: Tensor, op: &str, a: usize, index: i32) -> Result<i64> {
    let size = x.try_out()?.shape[a] as i64;
    let at = if index < 0 { i64::from(index) + size } else { i64::from(index) };
    if !(0..size).contains(&at) {
        refuse!([x] Argument, op, "index {index} on axis {a} of {}", x.try_out()?.shape);
    }
    Ok(at)
}
