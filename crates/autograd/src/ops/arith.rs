//! Elementwise functions of two operands, operators, casts and selection. Shapes broadcast by NumPy's
//! rule, dtypes promote by `DType::promote`.

use std::ops;

use wgrad_graph::{Binary, DType, Op};

use super::{Operand, cast, expand, meet, or_panic};
use crate::{Result, Scalar, Tensor};

/// `op` elementwise, after broadcasting and promotion.
#[track_caller]
pub(crate) fn binary(op: Binary, x: Tensor, w: impl Operand) -> Result<Tensor> {
    let w = w.tensor(x)?;
    let [mut x, mut w] = meet(op.row().name, x, w)?;
    let dtype = x.try_out()?.dtype;
    if !op.row().takes(dtype) && dtype.is_int() && op.row().float.is_some() {
        [x, w] = [cast(x, DType::F32)?, cast(w, DType::F32)?];
    }
    Tensor::record(Op::Binary(op), &[x, w], None, None)
}

methods! { impl Tensor, Self;
    /// `x + w`.
    add try_add(self, w: impl Operand) -> Tensor { binary(Binary::Add, self, w) }
    /// `x - w`.
    sub try_sub(self, w: impl Operand) -> Tensor { binary(Binary::Sub, self, w) }
    /// `x * w`.
    mul try_mul(self, w: impl Operand) -> Tensor { binary(Binary::Mul, self, w) }
    /// `x / w`. Integers divide towards zero; by 0 they give 0.
    div try_div(self, w: impl Operand) -> Tensor { binary(Binary::Div, self, w) }
    /// `x - w * floor(x / w)`: the remainder with the sign of `w`.
    rem try_rem(self, w: impl Operand) -> Tensor { binary(Binary::Rem, self, w) }
    /// `x ^ w`. Gradient by `w`: 0 where `x <= 0`.
    pow try_pow(self, w: impl Operand) -> Tensor { binary(Binary::Pow, self, w) }
    /// The larger of both; NaN if either is. Gradient: half to each at a tie.
    maximum try_maximum(self, w: impl Operand) -> Tensor { binary(Binary::Maximum, self, w) }
    /// The smaller of both; NaN if either is. Gradient: half to each at a tie.
    minimum try_minimum(self, w: impl Operand) -> Tensor { binary(Binary::Minimum, self, w) }
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
    /// Integers shifted left by `w mod 32` bits.
    shl try_shl(self, w: impl Operand) -> Tensor { binary(Binary::Shl, self, w) }
    /// Integers shifted right by `w mod 32` bits; the sign of i32 fills.
    shr try_shr(self, w: impl Operand) -> Tensor { binary(Binary::Shr, self, w) }
    /// The upper 32 bits of the 64-bit product of integers.
    mul_high try_mul_high(self, w: impl Operand) -> Tensor { binary(Binary::MulHigh, self, w) }

    /// `min(max(x, lo), hi)`, so `hi` everywhere if `lo` is larger; keeps NaN. Gradient: 0 on and beyond
    /// the limits, where it goes to the limit itself; to a NaN it passes.
    clamp try_clamp(self, lo: impl Operand, hi: impl Operand) -> Tensor {
        let (lo, hi) = (lo.tensor(self)?, hi.tensor(self)?);
        let above = self.try_le(lo)?.try_select(lo, self)?;
        above.try_ge(hi)?.try_select(hi, above)
    }

    /// Elements converted to `dtype`: float to integer truncates and saturates (NaN becomes 0),
    /// integers wrap, to bool is `x != 0`. Gradient: between floats alone.
    cast try_cast(self, dtype: DType) -> Tensor { cast(self, dtype) }

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
                let x = or_panic(Operand::tensor(self, rhs));
                or_panic(x.$try_f(rhs))
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
