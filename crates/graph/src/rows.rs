//! Elementwise operations, one row each: name, WGSL, f64 and integer reference, derivative, test
//! domain, tolerance. Everything true of the function stands in its row.

mod reference;

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::{Binary, DType, Unary};
use reference as f;

/// A derivative as an expression of operands and result. `X` and `W` are the first and second
/// operand, `Y` the result. `Num(0.0)` means that no gradient flows. A gradient that arrives as 0 stays 0
/// even where the slope is not finite, so that a branch not taken lets nothing through.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a small expression tree")]
pub enum Slope {
    X,
    W,
    Y,
    Num(f64),
    Un(Unary, Box<Slope>),
    Bin(Binary, Box<Slope>, Box<Slope>),
    If(Box<Slope>, Box<Slope>, Box<Slope>),
}

macro_rules! slope_ops {
    ($($tr:ident $f:ident)*) => {$(
        impl<R: Into<Slope>> $tr<R> for Slope {
            type Output = Slope;
            fn $f(self, rhs: R) -> Slope {
                Slope::Bin(Binary::$tr, Box::new(self), Box::new(rhs.into()))
            }
        }
        impl $tr<Slope> for f64 {
            type Output = Slope;
            fn $f(self, rhs: Slope) -> Slope {
                Slope::Bin(Binary::$tr, Box::new(Slope::Num(self)), Box::new(rhs))
            }
        }
    )*};
}
slope_ops!(Add add Sub sub Mul mul Div div);

impl Neg for Slope {
    type Output = Slope;
    fn neg(self) -> Slope {
        un(Unary::Neg, self)
    }
}

impl From<f64> for Slope {
    fn from(x: f64) -> Slope {
        Slope::Num(x)
    }
}

fn un(op: Unary, x: Slope) -> Slope {
    Slope::Un(op, Box::new(x))
}

fn bin(op: Binary, a: impl Into<Slope>, b: impl Into<Slope>) -> Slope {
    Slope::Bin(op, Box::new(a.into()), Box::new(b.into()))
}

fn cond(c: Slope, a: impl Into<Slope>, b: impl Into<Slope>) -> Slope {
    Slope::If(Box::new(c), Box::new(a.into()), Box::new(b.into()))
}

/// The interval from which tests draw operands.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Domain {
    /// Smallest operand drawn.
    pub lo: f64,
    /// Largest operand drawn.
    pub hi: f64,
}

const fn on(lo: f64, hi: f64) -> Domain {
    Domain { lo, hi }
}
const ANY: Domain = on(-4.0, 4.0);
const POSITIVE: Domain = on(0.1, 4.0);
const UNIT: Domain = on(-0.9, 0.9);
const BITS: Domain = on(0.0, 100.0);

/// What is true of an elementwise operation. `F` is its function on floats, `I` on integers.
#[derive(Clone, Debug)]
pub struct Row<F, I> {
    /// The stem: name of method, test and messages.
    pub name: &'static str,
    /// WGSL on floats: `x` (and `w`) stand for the operands, which are simple names; `wg_*` are
    /// functions of the kernel prelude. Empty: not defined on floats.
    pub wgsl: &'static str,
    /// WGSL on integers, likewise; empty: not defined on integers.
    pub wgsl_int: &'static str,
    /// Reference on floats.
    pub float: Option<F>,
    /// Reference on integers, on values extended to 64 bits; the caller wraps the result to the
    /// dtype. Truth values are 0 and 1.
    pub int: Option<I>,
    /// Whether truth values are accepted.
    pub takes_bool: bool,
    /// Derivative by each operand.
    pub slopes: fn() -> Vec<Slope>,
    /// Where tests draw operands.
    pub domain: Domain,
    /// Largest error accepted of an f32 kernel, relative to `max(1, |result|)`.
    pub tolerance: f64,
    /// Whether it is long work, which fusion should not repeat often.
    pub hard: bool,
}

impl<F, I> Row<F, I> {
    fn hard(self) -> Self {
        Row { hard: true, ..self }
    }

    /// Whether the operation takes operands of `dtype`. Halves are computed as f32, between two casts.
    pub fn takes(&self, dtype: DType) -> bool {
        match dtype {
            DType::Bool => self.takes_bool,
            DType::F16 | DType::BF16 => false,
            _ if dtype.is_float() => self.float.is_some(),
            _ => self.int.is_some(),
        }
    }
}

/// The row of a unary operation.
pub type UnaryRow = Row<fn(f64) -> f64, fn(i64) -> i64>;
/// The row of a binary operation.
pub type BinaryRow = Row<fn(f64, f64) -> f64, fn(i64, i64) -> i64>;

fn float1(
    name: &'static str,
    wgsl: &'static str,
    f: fn(f64) -> f64,
    slope: fn() -> Vec<Slope>,
    domain: Domain,
    tolerance: f64,
) -> UnaryRow {
    Row {
        name,
        wgsl,
        wgsl_int: "",
        float: Some(f),
        int: None,
        takes_bool: false,
        slopes: slope,
        domain,
        tolerance,
        hard: false,
    }
}

fn both1(
    name: &'static str,
    wgsl: [&'static str; 2],
    f: fn(f64) -> f64,
    i: fn(i64) -> i64,
    slope: fn() -> Vec<Slope>,
) -> UnaryRow {
    Row {
        name,
        wgsl: wgsl[0],
        wgsl_int: wgsl[1],
        float: Some(f),
        int: Some(i),
        takes_bool: false,
        slopes: slope,
        domain: ANY,
        tolerance: 1e-6,
        hard: false,
    }
}

fn int1(name: &'static str, wgsl: &'static str, i: fn(i64) -> i64, takes_bool: bool) -> UnaryRow {
    Row {
        name,
        wgsl: "",
        wgsl_int: wgsl,
        float: None,
        int: Some(i),
        takes_bool,
        slopes: Vec::new,
        domain: BITS,
        tolerance: 0.0,
        hard: false,
    }
}

impl Unary {
    /// Everything true of the operation.
    #[rustfmt::skip]
    pub fn row(self) -> UnaryRow {
        use Binary::Le;
        use Slope::{Num, X, Y};
        use Unary::{Abs, Acos, Acosh, Asin, Asinh, Atan, Atanh, Ceil, Cos, Cosh, Erf, Erfc, Exp, Exp2, Expm1, Floor, IsNan, LeadingZeros, Log, Log1p, Log2, Neg, Not, Recip, Relu, Round, Rsqrt, Sigmoid, Sign, Sin, Sinh, Softplus, Sqrt, Tan, Tanh, Trunc};
        match self {
            Neg     => both1("neg", ["-x", "(0 - x)"], |x| -x, i64::wrapping_neg, || vec![Num(-1.0)]),
            Abs     => both1("abs", ["abs(x)", "abs(x)"], f64::abs, i64::wrapping_abs, || vec![un(Sign, X)]),
            Sign    => both1("sign", ["wg_sign(x)", "wg_isign(x)"], f::sign, i64::signum, || vec![Num(0.0)]),
            Recip   => float1("recip", "(1.0 / x)", f64::recip, || vec![-(Y * Y)], POSITIVE, 1e-6),
            Exp     => float1("exp", "wg_keep_nan(exp(x), x, x)", f64::exp, || vec![Y], ANY, 2e-6).hard(),
            Exp2    => float1("exp2", "wg_keep_nan(exp2(x), x, x)", f64::exp2, || vec![LN_2 * Y], ANY, 2e-6).hard(),
            Expm1   => float1("expm1", "wg_expm1(x)", f64::exp_m1, || vec![Y + 1.0], ANY, 2e-6).hard(),
            Log     => float1("log", "wg_log(x)", f64::ln, || vec![1.0 / X], POSITIVE, 2e-6).hard(),
            Log2    => float1("log2", "wg_log2(x)", f64::log2, || vec![LN_2.recip() / X], POSITIVE, 2e-6).hard(),
            Log1p   => float1("log1p", "wg_log1p(x)", f64::ln_1p, || vec![1.0 / (X + 1.0)], POSITIVE, 2e-6).hard(),
            Sqrt    => float1("sqrt", "sqrt(x)", f64::sqrt, || vec![0.5 / Y], POSITIVE, 1e-6),
            Rsqrt   => float1("rsqrt", "inverseSqrt(x)", |x| x.sqrt().recip(), || vec![-0.5 * (Y * Y * Y)], POSITIVE, 2e-6),
            Sin     => float1("sin", "wg_sin(x)", f64::sin, || vec![un(Cos, X)], ANY, 2e-6).hard(),
            Cos     => float1("cos", "wg_cos(x)", f64::cos, || vec![-un(Sin, X)], ANY, 2e-6).hard(),
            Tan     => float1("tan", "wg_tan(x)", f64::tan, || vec![Y * Y + 1.0], on(-1.4, 1.4), 2e-6).hard(),
            Asin    => float1("asin", "wg_asin(x)", f64::asin, || vec![un(Rsqrt, (1.0 - X) * (X + 1.0))], UNIT, 2e-6).hard(),
            Acos    => float1("acos", "wg_acos(x)", f64::acos, || vec![-un(Rsqrt, (1.0 - X) * (X + 1.0))], UNIT, 2e-6).hard(),
            Atan    => float1("atan", "wg_atan(x)", f64::atan, || vec![1.0 / (X * X + 1.0)], ANY, 2e-6).hard(),
            Sinh    => float1("sinh", "wg_sinh(x)", f64::sinh, || vec![un(Cosh, X)], ANY, 2e-6).hard(),
            Cosh    => float1("cosh", "wg_cosh(x)", f64::cosh, || vec![un(Sinh, X)], ANY, 2e-6).hard(),
            Tanh    => float1("tanh", "wg_tanh(x)", f64::tanh, || vec![1.0 - Y * Y], ANY, 2e-6).hard(),
            Asinh   => float1("asinh", "wg_asinh(x)", f::asinh, || vec![un(Rsqrt, X * X + 1.0)], ANY, 2e-6).hard(),
            Acosh   => float1("acosh", "wg_acosh(x)", f::acosh, || vec![un(Rsqrt, (X - 1.0) * (X + 1.0))], on(1.2, 4.0), 2e-6).hard(),
            Atanh   => float1("atanh", "wg_atanh(x)", f::atanh, || vec![1.0 / ((1.0 - X) * (X + 1.0))], UNIT, 2e-6).hard(),
            Sigmoid => float1("sigmoid", "wg_sigmoid(x)", |x| 1.0 / (1.0 + (-x).exp()), || vec![Y * (1.0 - Y)], ANY, 2e-6).hard(),
            Softplus => float1("softplus", "wg_softplus(x)", |x| if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }, || vec![un(Sigmoid, X)], ANY, 2e-6).hard(),
            Relu    => both1("relu", ["wg_relu(x)", "wg_irelu(x)"], |x| if x <= 0.0 { 0.0 } else { x }, |x| x.max(0), || vec![cond(bin(Le, Y, 0.0), 0.0, 1.0)]),
            Erf     => float1("erf", "wg_erf(x)", f::erf, || vec![FRAC_2_SQRT_PI * un(Exp, -(X * X))], ANY, 2e-6).hard(),
            Erfc    => float1("erfc", "wg_erfc(x)", f::erfc, || vec![-FRAC_2_SQRT_PI * un(Exp, -(X * X))], ANY, 2e-6).hard(),
            Floor   => both1("floor", ["floor(x)", "x"], f64::floor, |x| x, || vec![Num(0.0)]),
            Ceil    => both1("ceil", ["ceil(x)", "x"], f64::ceil, |x| x, || vec![Num(0.0)]),
            Round   => both1("round", ["round(x)", "x"], f64::round_ties_even, |x| x, || vec![Num(0.0)]),
            Trunc   => both1("trunc", ["trunc(x)", "x"], f64::trunc, |x| x, || vec![Num(0.0)]),
            Not     => int1("not", "~x", |x| !x, true),
            LeadingZeros => int1("leading_zeros", "countLeadingZeros(x)", |x| i64::from((x as u32).leading_zeros()), false),
            IsNan   => Row { int: Some(|_| 0), wgsl_int: "false", ..float1("is_nan", "wg_is_nan(x)", |x| f64::from(u8::from(x.is_nan())), Vec::new, ANY, 0.0) },
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the fields of a row, in order")]
const fn binary(
    name: &'static str,
    wgsl: [&'static str; 2],
    float: Option<fn(f64, f64) -> f64>,
    int: Option<fn(i64, i64) -> i64>,
    takes_bool: bool,
    slopes: fn() -> Vec<Slope>,
    domain: Domain,
    tolerance: f64,
) -> BinaryRow {
    Row {
        name,
        wgsl: wgsl[0],
        wgsl_int: wgsl[1],
        float,
        int,
        takes_bool,
        slopes,
        domain,
        tolerance,
        hard: false,
    }
}

fn compare(
    name: &'static str,
    wgsl: [&'static str; 2],
    float: fn(f64, f64) -> f64,
    int: fn(i64, i64) -> i64,
) -> BinaryRow {
    binary(name, wgsl, Some(float), Some(int), true, Vec::new, ANY, 0.0)
}

fn bits(name: &'static str, wgsl: &'static str, int: fn(i64, i64) -> i64, takes_bool: bool) -> BinaryRow {
    binary(name, ["", wgsl], None, Some(int), takes_bool, Vec::new, BITS, 0.0)
}

impl Binary {
    /// Everything true of the operation. At a tie, maximum and minimum give half the gradient to
    /// each operand. Integer quotients and remainders by 0 are 0.
    #[rustfmt::skip]
    pub fn row(self) -> BinaryRow {
        use Binary::{Add, And, Atan2, Copysign, Div, DivZero, Eq, FloorDiv, Fmod, Ge, Gt, Hypot, Le, Lt, Maximum, Minimum, Mul, MulHigh, MulZero, Ne, Or, Pow, Rem, Shl, Shr, Sub, Xlogy, Xor};
        use Slope::{Num, W, X, Y};
        use Unary::{Floor, Log, Sign, Trunc};
        fn t(b: bool) -> f64 { f64::from(u8::from(b)) }
        fn half(ahead: Binary) -> Vec<Slope> {
            let part = |a: Slope, b: Slope| cond(bin(ahead, a.clone(), b.clone()), 1.0, cond(bin(Eq, a, b), 0.5, 0.0));
            vec![part(X, W), part(W, X)]
        }
        // A quotient by the distance from the origin, where no gradient flows.
        fn by_radius(x: Slope) -> Slope {
            cond(bin(Eq, bin(Hypot, X, W), 0.0), 0.0, x / bin(Hypot, X, W))
        }
        match self {
            Add => binary("add", ["(x + w)", "(x + w)"], Some(|a, b| a + b), Some(i64::wrapping_add), false, || vec![Num(1.0), Num(1.0)], ANY, 1e-6),
            Sub => binary("sub", ["(x - w)", "(x - w)"], Some(|a, b| a - b), Some(i64::wrapping_sub), false, || vec![Num(1.0), Num(-1.0)], ANY, 1e-6),
            Mul => binary("mul", ["(x * w)", "(x * w)"], Some(|a, b| a * b), Some(i64::wrapping_mul), false, || vec![W, X], ANY, 1e-6),
            Div => binary("div", ["wg_div(x, w)", "wg_idiv(x, w)"], Some(|a, b| a / b), Some(|a, b| if b == 0 { 0 } else { a.wrapping_div(b) }), false, || vec![1.0 / W, -(Y / W)], POSITIVE, 1e-6),
            FloorDiv => binary("floor_div", ["wg_floor_div(x, w)", "wg_ifloor_div(x, w)"], Some(f::floor_div), Some(f::floor_div_int), false, || vec![Num(0.0), Num(0.0)], POSITIVE, 1e-6).hard(),
            // The remainder has the sign of the divisor, as in Python and PyTorch; that of fmod has the
            // sign of the dividend.
            Rem => binary("rem", ["wg_rem(x, w)", "wg_irem(x, w)"], Some(f::rem), Some(f::rem_int), false, || vec![Num(1.0), -un(Floor, X / W)], POSITIVE, 1e-6).hard(),
            Fmod => binary("fmod", ["wg_fmod(x, w)", "wg_ifmod(x, w)"], Some(|a, b| a % b), Some(|a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }), false, || vec![Num(1.0), -un(Trunc, X / W)], POSITIVE, 1e-6).hard(),
            Pow => binary("pow", ["wg_pow(x, w)", "wg_ipow(x, w)"], Some(f64::powf), Some(f::pow_int), false, || vec![
                cond(bin(Eq, W, 0.0), 0.0, W * bin(Pow, X, W - 1.0)),
                cond(bin(Gt, X, 0.0), Y * un(Log, cond(bin(Gt, X, 0.0), X, 1.0)), 0.0),
            ], POSITIVE, 2e-5).hard(),
            Maximum => binary("maximum", ["wg_max(x, w)", "max(x, w)"], Some(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }), Some(i64::max), false, || half(Gt), ANY, 0.0),
            Minimum => binary("minimum", ["wg_min(x, w)", "min(x, w)"], Some(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }), Some(i64::min), false, || half(Lt), ANY, 0.0),
            Atan2 => binary("atan2", ["wg_atan2(x, w)", ""], Some(f64::atan2), None, false, || vec![by_radius(W / bin(Hypot, X, W)), by_radius(-(X / bin(Hypot, X, W)))], ANY, 2e-6).hard(),
            Hypot => binary("hypot", ["wg_hypot(x, w)", ""], Some(f64::hypot), None, false, || vec![cond(bin(Eq, Y, 0.0), 0.0, X / Y), cond(bin(Eq, Y, 0.0), 0.0, W / Y)], ANY, 1e-6),
            Copysign => binary("copysign", ["wg_copysign(x, w)", ""], Some(f64::copysign), None, false, || vec![un(Sign, X) * un(Sign, Y), Num(0.0)], ANY, 0.0),
            Xlogy => binary("xlogy", ["wg_xlogy(x, w)", ""], Some(|a, b| if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln() }), None, false, || vec![
                cond(bin(Eq, X, 0.0), cond(bin(Gt, W, 0.0), un(Log, W), 0.0), un(Log, W)),
                X / W,
            ], POSITIVE, 2e-6).hard(),
            // Products with gradients: what arrives as 0 stays 0.
            MulZero => binary("mul_zero", ["wg_mul_zero(x, w)", ""], Some(|a, b| if a == 0.0 { 0.0 } else { a * b }), None, false, || vec![W, X], ANY, 1e-6),
            DivZero => binary("div_zero", ["wg_div_zero(x, w)", ""], Some(|a, b| if a == 0.0 { 0.0 } else { a / b }), None, false, || vec![1.0 / W, -bin(DivZero, Y, W)], POSITIVE, 1e-6),
            Eq  => compare("eq", ["(x == w)", "(x == w)"], |a, b| t(a == b), |a, b| i64::from(a == b)),
            Ne  => compare("ne", ["!(x == w)", "(x != w)"], |a, b| t(a != b), |a, b| i64::from(a != b)),
            Lt  => compare("lt", ["(x < w)", "(x < w)"], |a, b| t(a < b), |a, b| i64::from(a < b)),
            Le  => compare("le", ["(x <= w)", "(x <= w)"], |a, b| t(a <= b), |a, b| i64::from(a <= b)),
            Gt  => compare("gt", ["(x > w)", "(x > w)"], |a, b| t(a > b), |a, b| i64::from(a > b)),
            Ge  => compare("ge", ["(x >= w)", "(x >= w)"], |a, b| t(a >= b), |a, b| i64::from(a >= b)),
            And => bits("and", "(x & w)", |a, b| a & b, true),
            Or  => bits("or", "(x | w)", |a, b| a | b, true),
            Xor => bits("xor", "(x ^ w)", |a, b| a ^ b, true),
            Shl => bits("shl", "wg_shl(x, w)", |a, b| a << (b & 31), false),
            Shr => bits("shr", "wg_shr(x, w)", |a, b| a >> (b & 31), false),
            MulHigh => bits("mul_high", "wg_mul_high(x, w)", |a, b| ((i128::from(a) * i128::from(b)) >> 32) as i64, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Unary::ALL.map(|u| u.row().name).to_vec();
        names.extend(Binary::ALL.map(|b| b.row().name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
