//! Scans: every element combined with those before it along an axis.

use wgrad_graph::{DType, Op, Scan};

use super::args::axis as axis_of;
use super::{cast, meet};
use crate::{Result, Tensor};

/// The scan of `x` along `axis`, in ascending order.
#[track_caller]
fn scan(kind: Scan, x: Tensor, axis: i32) -> Result<Tensor> {
    let from = x.try_out()?;
    let small = matches!(from.dtype, DType::Bool | DType::U8);
    let x = match kind {
        Scan::LogAddExp if !from.dtype.is_float() => cast(x, DType::F32)?,
        _ if small => cast(x, DType::I32)?,
        _ => x,
    };
    // A number is a line of one element.
    if from.shape.rank() == 0 {
        let y = scan(kind, x.try_reshape([1])?, axis)?;
        return y.try_reshape(from.shape);
    }
    let axis = axis_of(kind.name(), axis, from.shape.rank())? as u8;
    Tensor::record(Op::Scan { kind, axis, reverse: false }, &[x], None, None)
}

/// The extremes so far, and where they are.
#[track_caller]
fn extremes(kind: Scan, x: Tensor, axis: i32) -> Result<(Tensor, Tensor)> {
    let from = x.try_out()?.shape;
    let places = scan(kind, x, axis)?;
    if from.rank() == 0 {
        let line = x.try_reshape([1])?.try_gather(0, places.try_reshape([1])?)?;
        return Ok((line.try_reshape(from)?, places));
    }
    Ok((x.try_gather(axis, places)?, places))
}

methods! { impl Tensor, Self;
    /// `y[t] = x[0] + .. + x[t]` along `axis`; bool and u8 sum as i32.
    ///
    /// Gradient: the sum of `g` from the end. Numerics: summed by blocks, so long lines do not drift.
    cumsum try_cumsum(self, axis: i32) -> Tensor { scan(Scan::Sum, self, axis) }

    /// `y[t] = x[0] * .. * x[t]` along `axis`; bool and u8 multiply as i32.
    ///
    /// Gradient: without division, so right also at zeros.
    cumprod try_cumprod(self, axis: i32) -> Tensor { scan(Scan::Prod, self, axis) }

    /// `y[t] = log(e^x[0] + .. + e^x[t])` along `axis`; integers as f32.
    ///
    /// Numerics: safe for all finite `x`.
    logcumsumexp try_logcumsumexp(self, axis: i32) -> Tensor { scan(Scan::LogAddExp, self, axis) }

    /// The largest of `x[0] .. x[t]` along `axis`, and its index (i32): of equal ones the latest. NaN counts
    /// as largest.
    ///
    /// Gradient: `g` added where the largest was read.
    cummax try_cummax(self, axis: i32) -> (Tensor, Tensor) { extremes(Scan::ArgMax, self, axis) }

    /// The smallest of `x[0] .. x[t]` along `axis`, and its index (i32): of equal ones the latest. NaN counts
    /// as smallest.
    ///
    /// Gradient: `g` added where the smallest was read.
    cummin try_cummin(self, axis: i32) -> (Tensor, Tensor) { extremes(Scan::ArgMin, self, axis) }

    /// The linear recurrence `h[t] = a[t] * h[t - 1] + b[t]` along `axis`, where `h` is 0 before the first
    /// element; this tensor is `a`. To start from `h0`, add `a[0] * h0` to `b[0]`.
    ///
    /// Shape: `a` and `b` broadcast. Gradient: a recurrence from the end; `da[t] = h[t - 1] * db[t]`.
    /// Numerics: on a GPU long lines are cut into tiles by products of `a`, which may overflow where the
    /// recurrence itself does not; `a * 0` is 0 there, also for an infinite `a`.
    recur try_recur(self, axis: i32, b: Tensor) -> Tensor {
        let [a, b] = meet("recur", self, b)?;
        let from = a.try_out()?;
        if matches!(from.dtype, DType::Bool | DType::U8) {
            refuse!([a, b] DType, "recur", "is not defined on {}; cast first", from.dtype);
        }
        let axis = axis_of("recur", axis, from.shape.rank())? as u8;
        Tensor::record(Op::Scan { kind: Scan::Recur, axis, reverse: false }, &[a, b], None, None)
    }
}
