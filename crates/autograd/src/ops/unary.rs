//! Elementwise functions of one operand. Integers become f32 where a function knows floats alone.

use wgrad_graph::{DType, Op, Unary};

use super::cast;
use crate::{Result, Tensor};

/// `op` elementwise.
#[track_caller]
pub(crate) fn unary(op: Unary, x: Tensor) -> Result<Tensor> {
    let dtype = x.try_out()?.dtype;
    let widen = !op.row().takes(dtype) && dtype.is_int();
    let x = if widen { cast(x, DType::F32)? } else { x };
    Tensor::record(Op::Unary(op), &[x], None, None)
}

methods! { impl Tensor, Self;
    /// The elementwise function `op`, by its row. Integers become f32 where a function knows floats alone.
    unary try_unary(self, op: Unary) -> Tensor {
        crate::autocast::decide(op.row().name);
        unary(op, self)
    }

    /// `-x`.
    neg try_neg(self) -> Tensor { unary(Unary::Neg, self) }
    /// `|x|`. The most negative integer wraps to itself. Gradient: `sign(x)`, 0 at 0.
    abs try_abs(self) -> Tensor { unary(Unary::Abs, self) }
    /// -1, 0 or 1 by the sign of `x`; keeps NaN. Gradient: 0.
    sign try_sign(self) -> Tensor { unary(Unary::Sign, self) }
    /// `1 / x`.
    recip try_recip(self) -> Tensor { unary(Unary::Recip, self) }
    /// `e^x`.
    exp try_exp(self) -> Tensor { unary(Unary::Exp, self) }
    /// `2^x`.
    exp2 try_exp2(self) -> Tensor { unary(Unary::Exp2, self) }
    /// `e^x - 1`, exact for small `x`.
    expm1 try_expm1(self) -> Tensor { unary(Unary::Expm1, self) }
    /// The natural logarithm. Gradient: `1 / x`, also at and below 0.
    log try_log(self) -> Tensor { unary(Unary::Log, self) }
    /// The logarithm to base 2.
    log2 try_log2(self) -> Tensor { unary(Unary::Log2, self) }
    /// The logarithm to base 10.
    log10 try_log10(self) -> Tensor {
        in_f32!(self, try_log10());
        self.try_log()?.try_mul(std::f64::consts::LOG10_E)
    }
    /// `log(1 + x)`, exact for small `x`.
    log1p try_log1p(self) -> Tensor { unary(Unary::Log1p, self) }
    /// The square root. Gradient: `g / (2 y)`: infinite at 0, unless the gradient that arrives is 0.
    sqrt try_sqrt(self) -> Tensor { unary(Unary::Sqrt, self) }
    /// `1 / sqrt(x)`.
    rsqrt try_rsqrt(self) -> Tensor { unary(Unary::Rsqrt, self) }
    /// The sine of `x` radians.
    ///
    /// Numerics: the argument is reduced exactly enough for `|x|` up to 1e5. Beyond that a Vulkan device's
    /// own sine answers, as precise as its maker wishes; the CPU executor is exact up to 1e9.
    sin try_sin(self) -> Tensor { unary(Unary::Sin, self) }
    /// The cosine of `x` radians. Numerics: as [`Tensor::sin`].
    cos try_cos(self) -> Tensor { unary(Unary::Cos, self) }
    /// The tangent of `x` radians. Numerics: as [`Tensor::sin`].
    tan try_tan(self) -> Tensor { unary(Unary::Tan, self) }
    /// The angle in `-pi/2 ..= pi/2` whose sine is `x`; NaN outside `-1 ..= 1`.
    asin try_asin(self) -> Tensor { unary(Unary::Asin, self) }
    /// The angle in `0 ..= pi` whose cosine is `x`; NaN outside `-1 ..= 1`.
    acos try_acos(self) -> Tensor { unary(Unary::Acos, self) }
    /// The angle in `-pi/2 ..= pi/2` whose tangent is `x`.
    atan try_atan(self) -> Tensor { unary(Unary::Atan, self) }
    /// The hyperbolic sine, exact for small `x`.
    sinh try_sinh(self) -> Tensor { unary(Unary::Sinh, self) }
    /// The hyperbolic cosine.
    cosh try_cosh(self) -> Tensor { unary(Unary::Cosh, self) }
    /// The hyperbolic tangent.
    tanh try_tanh(self) -> Tensor { unary(Unary::Tanh, self) }
    /// The inverse of [`Tensor::sinh`], exact for small `x`.
    asinh try_asinh(self) -> Tensor { unary(Unary::Asinh, self) }
    /// The inverse of [`Tensor::cosh`]; NaN below 1.
    acosh try_acosh(self) -> Tensor { unary(Unary::Acosh, self) }
    /// The inverse of [`Tensor::tanh`], exact for small `x`; NaN outside `-1 ..= 1`.
    atanh try_atanh(self) -> Tensor { unary(Unary::Atanh, self) }
    /// `1 / (1 + e^-x)`.
    sigmoid try_sigmoid(self) -> Tensor { unary(Unary::Sigmoid, self) }
    /// `max(x, 0)`, keeps NaN. Gradient: 0 for `x <= 0`.
    relu try_relu(self) -> Tensor { unary(Unary::Relu, self) }
    /// The error function.
    erf try_erf(self) -> Tensor { unary(Unary::Erf, self) }
    /// `1 - erf(x)`, without cancellation for large `x`.
    erfc try_erfc(self) -> Tensor { unary(Unary::Erfc, self) }
    /// `log(1 + e^x)`, without overflow. Gradient: `sigmoid(x)`.
    softplus try_softplus(self) -> Tensor { unary(Unary::Softplus, self) }
    /// The largest whole number at most `x`. Gradient: 0.
    floor try_floor(self) -> Tensor { unary(Unary::Floor, self) }
    /// The smallest whole number at least `x`. Gradient: 0.
    ceil try_ceil(self) -> Tensor { unary(Unary::Ceil, self) }
    /// The nearest whole number, ties to even. Gradient: 0.
    round try_round(self) -> Tensor { unary(Unary::Round, self) }
    /// The whole part. Gradient: 0.
    trunc try_trunc(self) -> Tensor { unary(Unary::Trunc, self) }
    /// `x - trunc(x)`, with the sign of `x`; NaN at the infinities. Gradient: `g`.
    frac try_frac(self) -> Tensor { self.try_sub(self.try_trunc()?) }
    /// Whether `x` is NaN.
    is_nan try_is_nan(self) -> Tensor { unary(Unary::IsNan, self) }
    /// Whether `x` is one of the infinities; never, for integers.
    is_inf try_is_inf(self) -> Tensor {
        if !self.try_out()?.dtype.is_float() {
            return self.try_ne(self);
        }
        self.try_abs()?.try_eq(f64::INFINITY)
    }
    /// Whether `x` is neither NaN nor an infinity; always, for integers.
    is_finite try_is_finite(self) -> Tensor {
        if !self.try_out()?.dtype.is_float() {
            return self.try_eq(self);
        }
        self.try_abs()?.try_lt(f64::INFINITY)
    }
    /// Whether `x` is 0.
    logical_not try_logical_not(self) -> Tensor { cast(self, DType::Bool)?.try_not() }
    /// Truth values negated, the bits of integers flipped.
    not try_not(self) -> Tensor { unary(Unary::Not, self) }
    /// Zero bits before the first one bit of a 32-bit integer.
    leading_zeros try_leading_zeros(self) -> Tensor { unary(Unary::LeadingZeros, self) }
    /// `x * x`.
    square try_square(self) -> Tensor { self.try_mul(self) }
}
