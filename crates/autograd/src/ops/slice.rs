//! Parts of tensors: taken, replaced, at places known when recording or at submission.

use wgrad_graph::{Axes, Op, Shape, Steps};

use super::args::axis as axis_of;
use super::reduce::without;
use super::{AxesArg, Cut, Start, cast};
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
        let range = range.into().of("slice", from[a])?;
        if step == 0 {
            refuse!([self] Argument, "slice", "step 0");
        }
        let start = if range.is_empty() { 0 } else if step > 0 { range.start } else { range.end - 1 };
        let to = from.with(a, range.len().div_ceil(step.unsigned_abs() as usize));
        slice(self, steps_on(a, start as i64, i64::from(step)), to)
    }

    /// `len` elements of `axis` from `start`.
    narrow try_narrow(self, axis: i32, start: usize, len: usize) -> Tensor {
        self.try_slice(axis, start..start.saturating_add(len))
    }

    /// Element `index` of `axis`, which is gone from the result; a negative index counts from the end.
    select_index try_select_index(self, axis: i32, index: i32) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("select_index", axis, from.rank())?;
        let at = if index < 0 { i64::from(index) + from[a] as i64 } else { i64::from(index) };
        if !(0..from[a] as i64).contains(&at) {
            refuse!([self] Argument, "select_index", "index {index} on axis {axis} of {from}");
        }
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

    /// Parts of `size` elements along `axis`; the last may be smaller.
    split try_split(self, axis: i32, size: usize) -> Vec<Tensor> {
        let from = self.try_out()?.shape;
        let a = axis_of("split", axis, from.rank())?;
        if size == 0 {
            refuse!([self] Argument, "split", "parts of size 0");
        }
        let mut parts = Vec::with_capacity(from[a].div_ceil(size));
        for start in (0..from[a]).step_by(size) {
            parts.push(self.try_narrow(axis, start, size.min(from[a] - start))?);
        }
        Ok(parts)
    }

    /// `axis` in `count` equal parts.
    chunk try_chunk(self, axis: i32, count: usize) -> Vec<Tensor> {
        let from = self.try_out()?.shape;
        let size = from[axis_of("chunk", axis, from.rank())?];
        if count == 0 || size % count != 0 {
            refuse!([self] Argument, "chunk", "axis {axis} of {from} in {count} equal parts");
        }
        self.try_split(axis, (size / count).max(1))
    }
}
