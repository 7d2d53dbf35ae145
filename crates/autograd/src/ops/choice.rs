//! Choice between values: select, masks, limits, comparisons within a tolerance.

use wgrad_graph::{DType, Op};

use super::{Operand, cast, expand, meet, pass_of};
use crate::Tensor;

/// What [`Tensor::nan_to_num`] puts in place.
#[derive(Copy, Clone, Debug, PartialEq, Default)]
pub struct NanToNum {
    /// For NaN; 0 by default.
    pub nan: f64,
    /// For infinity; by default the largest number of the dtype.
    pub posinf: Option<f64>,
    /// For negative infinity; by default the most negative number of the dtype.
    pub neginf: Option<f64>,
}

/// How near is close: `|x - w| <= atol + rtol * |w|`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Close {
    /// Relative to `|w|`; 1e-5 by default.
    pub rtol: f64,
    /// Absolute; 1e-8 by default.
    pub atol: f64,
    /// Whether NaN is close to NaN; not by default.
    pub equal_nan: bool,
}

impl Default for Close {
    fn default() -> Close {
        Close { rtol: 1e-5, atol: 1e-8, equal_nan: false }
    }
}

methods! { impl Tensor, Self;
    /// `c ? a : b` elementwise, where this tensor is the bool `c`; the three broadcast.
    /// Gradient: to `a` where true, to `b` where false, exactly 0 elsewhere.
    select try_select(self, a: impl Operand, b: impl Operand) -> Tensor {
        let (beside_a, beside_b) = (b.known().unwrap_or(self), a.known().unwrap_or(self));
        let (a, b) = (a.tensor(beside_a)?, b.tensor(beside_b)?);
        let [a, b] = meet("select", a, b)?;
        let (c, whole) = (self.try_out()?.shape, a.try_out()?.shape);
        let Some(shape) = c.broadcast(&whole) else {
            refuse!([self, a, b] Shape, "select", "condition {c} and values {whole} do not broadcast");
        };
        let [c, a, b] = [expand(self, shape)?, expand(a, shape)?, expand(b, shape)?];
        Tensor::record(Op::Select, &[c, a, b], None, None)
    }

    /// `value` where `mask` is true, else `x`.
    masked_fill try_masked_fill(self, mask: Tensor, value: impl Operand) -> Tensor {
        let value = value.tensor(self)?;
        mask.try_select(value, self)
    }

    /// `min(max(x, lo), hi)`, so `hi` everywhere if `lo` is larger; keeps NaN; a limit that is NaN is none.
    /// Gradient: 0 on and beyond the limits, where it goes to the limit itself; to a NaN it passes.
    clamp try_clamp(self, lo: impl Operand, hi: impl Operand) -> Tensor {
        let hi = hi.tensor(self)?;
        self.try_clamp_min(lo)?.try_clamp_max(hi)
    }
    /// `x`, but at least `lo`; keeps NaN. Gradient: as [`Tensor::clamp`].
    clamp_min try_clamp_min(self, lo: impl Operand) -> Tensor {
        let [x, lo] = meet("clamp", self, lo.tensor(self)?)?;
        x.try_le(lo)?.try_select(lo, x)
    }
    /// `x`, but at most `hi`; keeps NaN. Gradient: as [`Tensor::clamp`].
    clamp_max try_clamp_max(self, hi: impl Operand) -> Tensor {
        let [x, hi] = meet("clamp", self, hi.tensor(self)?)?;
        x.try_ge(hi)?.try_select(hi, x)
    }

    /// `x` with numbers for NaN and the infinities. Gradient: 0 where a number was put.
    nan_to_num try_nan_to_num(self, to: NanToNum) -> Tensor {
        let dtype = self.try_out()?.dtype;
        if !dtype.is_float() {
            return Ok(self);
        }
        let (posinf, neginf) = (to.posinf.unwrap_or(dtype.max_value()), to.neginf.unwrap_or(-dtype.max_value()));
        let low = self.try_eq(f64::NEG_INFINITY)?.try_select(neginf, self)?;
        let high = self.try_eq(f64::INFINITY)?.try_select(posinf, low)?;
        self.try_is_nan()?.try_select(to.nan, high)
    }

    /// Whether `x` is close to `w`, elementwise; infinities are close to themselves alone.
    is_close try_is_close(self, w: impl Operand, how: Close) -> Tensor {
        let [x, w] = meet("is_close", self, w.tensor(self)?)?;
        let dtype = x.try_out()?.dtype.computed();
        let [x, w] = [cast(x, dtype)?, cast(w, dtype)?];
        let equal = x.try_eq(w)?;
        if !x.try_out()?.dtype.is_float() {
            let gap = cast(x, DType::F32)?.try_sub(cast(w, DType::F32)?)?.try_abs()?;
            let most = cast(w, DType::F32)?.try_abs()?.try_mul(how.rtol)?.try_add(how.atol)?;
            return gap.try_le(most)?.try_or(equal);
        }
        let gap = x.try_sub(w)?.try_abs()?;
        let near = gap.try_le(w.try_abs()?.try_mul(how.rtol)?.try_add(how.atol)?)?;
        let near = near.try_and(gap.try_is_finite()?)?.try_or(equal)?;
        if how.equal_nan { near.try_or(x.try_is_nan()?.try_and(w.try_is_nan()?)?) } else { Ok(near) }
    }

    /// Whether every element is close to that of `w`: one truth value, on the device.
    all_close try_all_close(self, w: impl Operand, how: Close) -> Tensor {
        self.try_is_close(w, how)?.try_all(..)
    }

    /// Whether `x` and `w` have one shape and equal elements: one truth value, on the device.
    equal try_equal(self, w: Tensor) -> Tensor {
        if self.try_out()?.shape != w.try_out()?.shape {
            return pass_of(self)?.number(0.0, DType::Bool);
        }
        self.try_eq(w)?.try_all(..)
    }
}
