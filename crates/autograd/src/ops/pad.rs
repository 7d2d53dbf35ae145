//! Elements around a tensor.

use wgrad_graph::{MAX_RANK, Op, Shape, Steps};

use super::{expand, shape, slice, steps_on};
use crate::{Result, Tensor};

/// What [`Tensor::pad`] puts around a tensor.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum PadMode {
    /// This value; on integers without its fraction.
    Constant(f64),
    /// The neighbours of the edge in reverse order, without the edge: `[1, 2, 3]` by 2 before it is
    /// `[3, 2, 1, 2, 3]`. Less than the axis has.
    Reflect,
    /// The edge.
    Replicate,
    /// The other end: `[1, 2, 3]` by 2 before it is `[2, 3, 1, 2, 3]`. At most as much as the axis has.
    Circular,
}

impl From<f64> for PadMode {
    fn from(value: f64) -> PadMode {
        PadMode::Constant(value)
    }
}

/// The sizes after widths are added, or an error of `pad`.
#[track_caller]
fn widened(x: Tensor, from: Shape, widths: &[(isize, isize)]) -> Result<Shape> {
    let mut dims = Vec::with_capacity(from.rank());
    for ((before, after), size) in widths.iter().zip(from.dims()) {
        let cropped = before.min(&0).unsigned_abs().saturating_add(after.min(&0).unsigned_abs());
        if cropped > *size {
            refuse!([x] Shape, "pad", "widths {widths:?} take more than {from} has");
        }
        let added = (before.max(&0).unsigned_abs()).saturating_add(after.max(&0).unsigned_abs());
        dims.push((size - cropped).saturating_add(added));
    }
    shape("pad", &dims)
}

/// `value` around `x`. A choice, so that neither infinities nor NaN of one reach the other.
#[track_caller]
fn constant(x: Tensor, widths: &[(isize, isize)], to: Shape, value: f64) -> Result<Tensor> {
    let dtype = x.try_out()?.dtype;
    let mut steps = Steps::ALL;
    let mut lo = [0; MAX_RANK];
    for (i, (before, _)) in widths.iter().enumerate() {
        let Ok(before) = u32::try_from(*before) else {
            refuse!([x] Limit, "pad", "{before} elements before axis {i}");
        };
        (steps.start[i], lo[i]) = (i64::from(before), before);
    }
    if value == 0.0 && value.is_sign_positive() {
        return Tensor::record(Op::Pad { lo }, &[x], Some(to), None);
    }
    let around = expand(x.number(if dtype.is_float() { value } else { value.trunc() }, dtype)?, to)?;
    Tensor::record(Op::SliceAssign(steps), &[around, x], None, None)
}

/// Parts of `x` around it on one axis.
#[track_caller]
fn mirrored(x: Tensor, axis: usize, [before, after]: [usize; 2], mode: PadMode) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let n = from[axis];
    let most = match mode {
        PadMode::Reflect => n.saturating_sub(1),
        PadMode::Circular => n,
        _ if n > 0 => usize::MAX,
        _ => 0,
    };
    if before.max(after) > most {
        refuse!([x] Shape, "pad", "{mode:?} of {before} and {after} on axis {axis} of {from}: at most {most}");
    }
    let take = |start: usize, step: i64, count: usize| {
        slice(x, steps_on(axis, start as i64, step), from.with(axis, count))
    };
    let mut parts = Vec::new();
    if before > 0 {
        parts.push(match mode {
            PadMode::Reflect => take(before, -1, before)?,
            PadMode::Circular => take(n - before, 1, before)?,
            _ => expand(take(0, 1, 1)?, from.with(axis, before))?,
        });
    }
    parts.push(x);
    if after > 0 {
        parts.push(match mode {
            PadMode::Reflect => take(n - 2, -1, after)?,
            PadMode::Circular => take(0, 1, after)?,
            _ => expand(take(n - 1, 1, 1)?, from.with(axis, after))?,
        });
    }
    Tensor::try_cat(&parts, axis as i32)
}

methods! { impl Tensor, Self;
    /// Elements around `x`: `(before, after)` for each axis, first axis first; a negative width crops.
    /// `mode` is a value or a [`PadMode`].
    ///
    /// Gradient: that of the inner part, and in modes that copy `x` that of the copies too.
    /// Numerics: a constant is chosen, not added, so infinities do not spread.
    /// Errors: widths that crop more than there is, or copy more than a mode can.
    pad try_pad(self, widths: &[(isize, isize)], mode: impl Into<PadMode>) -> Tensor {
        let from = self.try_out()?.shape;
        if widths.len() != from.rank() {
            refuse!([self] Argument, "pad", "{} widths for the axes of {from}", widths.len());
        }
        let to = widened(self, from, widths)?;
        let mut x = self;
        let mut added = widths.to_vec();
        for (axis, (before, after)) in widths.iter().enumerate() {
            let (lo, hi) = (before.min(&0).unsigned_abs(), after.min(&0).unsigned_abs());
            if lo + hi > 0 {
                let part = x.try_out()?.shape;
                let left = part[axis] - lo - hi;
                let start = if left == 0 { 0 } else { lo as i64 };
                x = slice(x, steps_on(axis, start, 1), part.with(axis, left))?;
            }
            added[axis] = (*before.max(&0), *after.max(&0));
        }
        if added.iter().all(|w| *w == (0, 0)) {
            return Ok(x);
        }
        match mode.into() {
            PadMode::Constant(value) => constant(x, &added, to, value),
            mode => {
                for (axis, (before, after)) in added.iter().enumerate() {
                    x = match [*before as usize, *after as usize] {
                        [0, 0] => x,
                        widths => mirrored(x, axis, widths, mode)?,
                    };
                }
                Ok(x)
            }
        }
    }
}
