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
    /// `-x`.
    neg try_neg(self) -> Tensor { unary(Unary::Neg, self) }
    /// `|x|`. Gradient: `sign(x)`, 0 at 0.
    abs try_abs(self) -> Tensor { unary(Unary::Abs, self) }
    /// -1, 0 or 1 by the sign of `x`; keeps NaN. Gradient: 0.
    sign try_sign(self) -> Tensor { unary(Unary::Sign, self) }
    /// `1 / x`.
    recip try_recip(self) -> Tensor { unary(Unary::Recip, self) }
    /// `e^x`.
    exp try_exp(self) -> Tensor { unary(Unary::Exp, self) }
    /// `e^x - 1`, exact for small `x`.
    expm1 try_expm1(self) -> Tensor { unary(Unary::Expm1, self) }
    /// The natural logarithm. Gradient: `1 / x`, also at and below 0.
    log try_log(self) -> Tensor { unary(Unary::Log, self) }
    /// `log(1 + x)`, exact for small `x`.
    log1p try_log1p(self) -> Tensor { unary(Unary::Log1p, self) }
    /// The square root.
    sqrt try_sqrt(self) -> Tensor { unary(Unary::Sqrt, self) }
    /// `1 / sqrt(x)`.
    rsqrt try_rsqrt(self) -> Tensor { unary(Unary::Rsqrt, self) }
    /// The sine of `x` radians.
    sin try_sin(self) -> Tensor { unary(Unary::Sin, self) }
    /// The cosine of `x` radians.
    cos try_cos(self) -> Tensor { unary(Unary::Cos, self) }
    /// The hyperbolic tangent.
    tanh try_tanh(self) -> Tensor { unary(Unary::Tanh, self) }
    /// `1 / (1 + e^-x)`.
    sigmoid try_sigmoid(self) -> Tensor { unary(Unary::Sigmoid, self) }
    /// `max(x, 0)`, keeps NaN. Gradient: 0 for `x <= 0`.
    relu try_relu(self) -> Tensor { unary(Unary::Relu, self) }
    /// The error function.
    erf try_erf(self) -> Tensor { unary(Unary::Erf, self) }
    /// The largest whole number at most `x`. Gradient: 0.
    floor try_floor(self) -> Tensor { unary(Unary::Floor, self) }
    /// The smallest whole number at least `x`. Gradient: 0.
    ceil try_ceil(self) -> Tensor { unary(Unary::Ceil, self) }
    /// The nearest whole number, ties to even. Gradient: 0.
    round try_round(self) -> Tensor { unary(Unary::Round, self) }
    /// The whole part. Gradient: 0.
    trunc try_trunc(self) -> Tensor { unary(Unary::Trunc, self) }
    /// Whether `x` is NaN.
    is_nan try_is_nan(self) -> Tensor { unary(Unary::IsNan, self) }
    /// Truth values negated, the bits of integers flipped.
    not try_not(self) -> Tensor { unary(Unary::Not, self) }
    /// Zero bits before the first one bit of a 32-bit integer.
    leading_zeros try_leading_zeros(self) -> Tensor { unary(Unary::LeadingZeros, self) }
    /// `x * x`.
    square try_square(self) -> Tensor { self.try_mul(self) }
}
