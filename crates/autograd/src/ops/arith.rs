//! Elementwise functions of two operands, operators and casts. Shapes broadcast by NumPy's rule, dtypes
//! promote by `DType::promote`.

use std::ops;

use wgrad_graph::{Binary, DType, Op};

use super::{Operand, cast, meet, or_panic};
use crate::autocast;
use crate::{Result, Scalar, Tensor};

/// `op` elementwise, after broadcasting and promotion.
#[track_caller]
pub(crate) fn binary(op: Binary, x: Tensor, w: impl Operand) -> Result<Tensor> {
    let dtype = x.try_out()?.dtype;
    if dtype.is_half() && w.known().is_none() {
        // The number stays as it is written; the result alone is rounded.
        let y = binary(op, cast(x, DType::F32)?, w)?;
        return if op.compares() || autocast::stays_wide() { Ok(y) } else { cast(y, dtype) };
    }
    let w = w.tensor(x)?;
    let [mut x, mut w] = meet(op.row().name, x, w)?;
    let dtype = x.try_out()?.dtype;
    if !op.row().takes(dtype) && dtype.is_int() && op.row().float.is_some() {
        [x, w] = [cast(x, DType::F32)?, cast(w, DType::F32)?];
    }
    Tensor::record(Op::Binary(op), &[x, w], None, None)
}

/// Both operands as truth values: whether they are not 0.
#[track_caller]
fn truths(x: Tensor, w: impl Operand) -> Result<[Tensor; 2]> {
    let w = w.tensor(x)?;
    Ok([cast(x, DType::Bool)?, cast(w, DType::Bool)?])
}

methods! { impl Tensor, Self;
    /// The elementwise function `op`, by its row; broadcasts and promotes.
    binary try_binary(self, op: Binary, w: impl Operand) -> Tensor {
        autocast::decide(op.row().name);
        binary(op, self, w)
    }

    /// `x + w`.
    add try_add(self, w: impl Operand) -> Tensor { binary(Binary::Add, self, w) }
    /// `x - w`.
    sub try_sub(self, w: impl Operand) -> Tensor { binary(Binary::Sub, self, w) }
    /// `x * w`.
    mul try_mul(self, w: impl Operand) -> Tensor { binary(Binary::Mul, self, w) }
    /// `x / w`. Integers divide towards zero; by 0 they give 0, and the most negative one by -1 wraps to
    /// itself.
    div try_div(self, w: impl Operand) -> Tensor { binary(Binary::Div, self, w) }
    /// The largest whole number at most the exact `x / w`. No gradient.
    ///
    /// Numerics: not `floor(x / w)`, whose quotient may round up to a whole number first: `1 // 0.1` is 9.
    /// By 0, floats give `x / w`, integers 0.
    floor_div try_floor_div(self, w: impl Operand) -> Tensor { binary(Binary::FloorDiv, self, w) }
    /// The remainder with the sign of `w`: `x - w * floor(x / w)`, as in Python.
    ///
    /// Gradient: `g` to `x`, `-floor(x / w) * g` to `w`. Numerics: exact while the quotient is below
    /// `2^24`. By 0, floats give NaN, integers 0.
    rem try_rem(self, w: impl Operand) -> Tensor { binary(Binary::Rem, self, w) }
    /// As [`Tensor::rem`], by its name in PyTorch.
    remainder try_remainder(self, w: impl Operand) -> Tensor { self.try_rem(w) }
    /// The remainder with the sign of `x`: `x - w * trunc(x / w)`, as in C.
    ///
    /// Gradient: `g` to `x`, `-trunc(x / w) * g` to `w`. Numerics: as [`Tensor::rem`].
    fmod try_fmod(self, w: impl Operand) -> Tensor { binary(Binary::Fmod, self, w) }
    /// `x ^ w`; a negative base has real powers with whole exponents alone, else NaN. Integers have integer
    /// powers, which wrap; with a negative exponent they are 0, but for the bases 1 and -1.
    ///
    /// Gradient: `w * x^(w-1)` to `x` (0 for `w = 0`, also at `x = 0`), `y * log(x)` to `w` (0 where
    /// `x <= 0`). The literal exponents 2, 0.5 and -1 are a square, a root and a reciprocal.
    pow try_pow(self, w: impl Operand) -> Tensor {
        let float = self.try_out()?.dtype.is_float();
        match w.literal() {
            Some(2.0) => self.try_square(),
            Some(0.5) if float => self.try_sqrt(),
            Some(-1.0) if float => self.try_recip(),
            _ => binary(Binary::Pow, self, w),
        }
    }
    /// The larger of both; NaN if either is. Gradient: half to each at a tie.
    maximum try_maximum(self, w: impl Operand) -> Tensor { binary(Binary::Maximum, self, w) }
    /// The smaller of both; NaN if either is. Gradient: half to each at a tie.
    minimum try_minimum(self, w: impl Operand) -> Tensor { binary(Binary::Minimum, self, w) }
    /// The larger of both; the other one where one is NaN.
    fmax try_fmax(self, w: impl Operand) -> Tensor {
        let [x, w] = meet("fmax", self, w.tensor(self)?)?;
        x.try_is_nan()?.try_select(w, w.try_is_nan()?.try_select(x, x.try_maximum(w)?)?)
    }
    /// The smaller of both; the other one where one is NaN.
    fmin try_fmin(self, w: impl Operand) -> Tensor {
        let [x, w] = meet("fmin", self, w.tensor(self)?)?;
        x.try_is_nan()?.try_select(w, w.try_is_nan()?.try_select(x, x.try_minimum(w)?)?)
    }
    /// The angle in `-pi ..= pi` of the point `(w, x)` from the axis of `w`. Gradient: 0 at the origin.
    atan2 try_atan2(self, w: impl Operand) -> Tensor { binary(Binary::Atan2, self, w) }
    /// `sqrt(x^2 + w^2)`, without overflow on the way. Gradient: 0 at the origin.
    hypot try_hypot(self, w: impl Operand) -> Tensor { binary(Binary::Hypot, self, w) }
    /// `|x|` with the sign of `w`, by its sign bit: also that of -0 and NaN. Gradient: `g` or `-g` to `x`,
    /// 0 where `x` is 0; none to `w`.
    copysign try_copysign(self, w: impl Operand) -> Tensor { binary(Binary::Copysign, self, w) }
    /// `x * log(w)`, 0 where `x` is 0 (but NaN where `w` is). Gradient: `log(w)` to `x` (0 where `x` is 0
    /// and `w` not positive), `x / w` to `w`.
    xlogy try_xlogy(self, w: impl Operand) -> Tensor { binary(Binary::Xlogy, self, w) }
    /// `x * w`, 0 where `x` is 0 even if `w` is not finite: how gradients multiply. Gradient: that of
    /// [`Tensor::mul`].
    mul_zero try_mul_zero(self, w: impl Operand) -> Tensor { binary(Binary::MulZero, self, w) }
    /// `x / w`, 0 where `x` is 0 even if `w` is 0 or NaN. Gradient: that of [`Tensor::div`].
    div_zero try_div_zero(self, w: impl Operand) -> Tensor { binary(Binary::DivZero, self, w) }
    /// `x + t * (w - x)`, exact at `t = 0` and `t = 1`.
    lerp try_lerp(self, w: impl Operand, t: impl Operand) -> Tensor {
        let [x, w] = meet("lerp", self, w.tensor(self)?)?;
        let t = t.tensor(x)?;
        let way = w.try_sub(x)?;
        let from_end = w.try_sub(way.try_mul(t.try_neg()?.try_add(1.0)?)?)?;
        t.try_lt(0.5)?.try_select(x.try_add(way.try_mul(t)?)?, from_end)
    }
    /// `x + value * a * b`.
    addcmul try_addcmul(self, a: impl Operand, b: impl Operand, value: impl Operand) -> Tensor {
        self.try_add(a.tensor(self)?.try_mul(b)?.try_mul(value)?)
    }
    /// `x + value * a / b`.
    addcdiv try_addcdiv(self, a: impl Operand, b: impl Operand, value: impl Operand) -> Tensor {
        self.try_add(a.tensor(self)?.try_mul(value)?.try_div(b)?)
    }
    /// `log(e^x + e^w)`, without overflow. Gradient: `sigmoid(x - w)` to `x`, the rest to `w`.
    logaddexp try_logaddexp(self, w: impl Operand) -> Tensor {
        let [x, w] = meet("logaddexp", self, w.tensor(self)?)?;
        // Equal operands may be infinities, whose difference is NaN.
        let apart = x.try_eq(w)?.try_select(0.0, x.try_sub(w)?)?;
        x.try_maximum(w)?.try_add(apart.try_abs()?.try_neg()?.try_softplus()?)
    }
    /// Whether `x == w`, elementwise.
    eq try_eq(self, w: impl Operand) -> Tensor { binary(Binary::Eq, self, w) }
    /// Whether `x != w`, elementwise.
    ne try_ne(self, w: impl Operand) -> Tensor { binary(Binary::Ne, self, w) }
    /// Whether `x < w`, elementwise.
    lt try_lt(self, w: impl Operand) -> Tensor { binary(Binary::Lt, self, w) }
    /// Whether `x <= w`, elementwise.
    le try_le(self, w: impl Operand) -> Tensor { binary(Binary::Le, self, w) }
    /// Whether `x > w`, elementwise.
    gt try_gt(self, w: impl Operand) -> Tensor { binary(Binary::Gt, self, w) }
    /// Whether `x >= w`, elementwise.
    ge try_ge(self, w: impl Operand) -> Tensor { binary(Binary::Ge, self, w) }
    /// Both truth values, or the bits set in both integers.
    and try_and(self, w: impl Operand) -> Tensor { binary(Binary::And, self, w) }
    /// Either truth value, or the bits set in either integer.
    or try_or(self, w: impl Operand) -> Tensor { binary(Binary::Or, self, w) }
    /// Whether truth values differ, or the bits that differ.
    xor try_xor(self, w: impl Operand) -> Tensor { binary(Binary::Xor, self, w) }
    /// Integers shifted left by `w mod 32` bits (i64: `w mod 64`).
    shl try_shl(self, w: impl Operand) -> Tensor { binary(Binary::Shl, self, w) }
    /// Integers shifted right by `w mod 32` bits (i64: `w mod 64`); the sign fills.
    shr try_shr(self, w: impl Operand) -> Tensor { binary(Binary::Shr, self, w) }
    /// The upper 32 bits of the 64-bit product of integers.
    mul_high try_mul_high(self, w: impl Operand) -> Tensor { binary(Binary::MulHigh, self, w) }

    /// Whether both are not 0.
    logical_and try_logical_and(self, w: impl Operand) -> Tensor {
        let [x, w] = truths(self, w)?;
        x.try_and(w)
    }
    /// Whether one of both is not 0.
    logical_or try_logical_or(self, w: impl Operand) -> Tensor {
        let [x, w] = truths(self, w)?;
        x.try_or(w)
    }
    /// Whether exactly one of both is not 0.
    logical_xor try_logical_xor(self, w: impl Operand) -> Tensor {
        let [x, w] = truths(self, w)?;
        x.try_xor(w)
    }

    /// Elements converted to `dtype`: float to integer truncates and saturates (NaN becomes 0),
    /// integers wrap, to bool is `x != 0`. Gradient: between floats alone.
    cast try_cast(self, dtype: DType) -> Tensor { cast(self, dtype) }
}

/// `f(number, w)`.
#[track_caller]
fn left(number: impl Operand, w: Tensor, f: fn(Tensor, Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let dtype = w.try_out()?.dtype;
    if !dtype.is_half() {
        return f(number.tensor(w)?, w);
    }
    let w = cast(w, DType::F32)?;
    cast(f(number.tensor(w)?, w)?, dtype)
}

macro_rules! operators {
    ($($tr:ident $f:ident $try_f:ident;)*) => {$(
        impl<R: Operand> ops::$tr<R> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $f(self, rhs: R) -> Tensor {
                or_panic(self.$try_f(rhs))
            }
        }
        operators!(@left $tr $f $try_f f32);
        operators!(@left $tr $f $try_f f64);
        operators!(@left $tr $f $try_f i32);
        operators!(@left $tr $f $try_f &Scalar);
    )*};
    (@left $tr:ident $f:ident $try_f:ident $left:ty) => {
        impl ops::$tr<Tensor> for $left {
            type Output = Tensor;
            #[track_caller]
            fn $f(self, rhs: Tensor) -> Tensor {
                or_panic(left(self, rhs, Tensor::$try_f))
            }
        }
    };
}

operators! {
    Add add try_add;
    Sub sub try_sub;
    Mul mul try_mul;
    Div div try_div;
    Rem rem try_rem;
    BitAnd bitand try_and;
    BitOr bitor try_or;
    BitXor bitxor try_xor;
    Shl shl try_shl;
    Shr shr try_shr;
}

impl ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        or_panic(self.try_neg())
    }
}

impl ops::Not for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn not(self) -> Tensor {
        or_panic(self.try_not())
    }
}
