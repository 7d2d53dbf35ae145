//! Elementwise operations, one row each: name, WGSL, f64 and integer reference, derivative, test
//! domain, tolerance. Everything true of the function stands in its row.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::{Binary, DType, Unary};

/// A derivative as an expression of operands and result. `X` and `W` are the first and second
/// operand, `Y` the result. `Num(0.0)` means that no gradient flows.
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
}

impl<F, I> Row<F, I> {
    /// Whether the operation takes operands of `dtype`.
    pub fn takes(&self, dtype: DType) -> bool {
        match dtype {
            DType::Bool => self.takes_bool,
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
    }
}

impl Unary {
    /// Everything true of the operation.
    #[rustfmt::skip]
    pub fn row(self) -> UnaryRow {
        use Slope::{Num, X, Y};
        use Unary::{Abs, Ceil, Cos, Erf, Exp, Expm1, Floor, IsNan, LeadingZeros, Log, Log1p, Neg, Not, Recip, Relu, Round, Rsqrt, Sigmoid, Sign, Sin, Sqrt, Tanh, Trunc};
        match self {
            Neg     => both1("neg", ["-x", "(0 - x)"], |x| -x, |x| -x, || vec![Num(-1.0)]),
            Abs     => both1("abs", ["abs(x)", "abs(x)"], f64::abs, i64::abs, || vec![un(Sign, X)]),
            Sign    => both1("sign", ["wg_sign(x)", "wg_isign(x)"], sign, i64::signum, || vec![Num(0.0)]),
            Recip   => float1("recip", "(1.0 / x)", f64::recip, || vec![-(Y * Y)], POSITIVE, 1e-6),
            Exp     => float1("exp", "exp(x)", f64::exp, || vec![Y], ANY, 2e-6),
            Expm1   => float1("expm1", "wg_expm1(x)", f64::exp_m1, || vec![Y + 1.0], ANY, 2e-6),
            Log     => float1("log", "log(x)", f64::ln, || vec![1.0 / X], POSITIVE, 2e-6),
            Log1p   => float1("log1p", "wg_log1p(x)", f64::ln_1p, || vec![1.0 / (X + 1.0)], POSITIVE, 2e-6),
            Sqrt    => float1("sqrt", "sqrt(x)", f64::sqrt, || vec![0.5 / Y], POSITIVE, 1e-6),
            Rsqrt   => float1("rsqrt", "inverseSqrt(x)", |x| x.sqrt().recip(), || vec![-0.5 * (Y * Y * Y)], POSITIVE, 2e-6),
            Sin     => float1("sin", "wg_sin(x)", f64::sin, || vec![un(Cos, X)], ANY, 2e-6),
            Cos     => float1("cos", "wg_cos(x)", f64::cos, || vec![-un(Sin, X)], ANY, 2e-6),
            Tanh    => float1("tanh", "wg_tanh(x)", f64::tanh, || vec![1.0 - Y * Y], ANY, 2e-6),
            Sigmoid => float1("sigmoid", "wg_sigmoid(x)", |x| 1.0 / (1.0 + (-x).exp()), || vec![Y * (1.0 - Y)], ANY, 2e-6),
            Relu    => both1("relu", ["wg_relu(x)", "wg_irelu(x)"], |x| if x <= 0.0 { 0.0 } else { x }, |x| x.max(0), || vec![cond(bin(Binary::Le, Y, 0.0), 0.0, 1.0)]),
            Erf     => float1("erf", "wg_erf(x)", erf, || vec![std::f64::consts::FRAC_2_SQRT_PI * un(Exp, -(X * X))], ANY, 2e-6),
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

fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

/// The error function: its Maclaurin series where that converges fast, else one minus the continued
/// fraction of the complement; relative error below 1e-15.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while f64::abs(term) > 1e-18 * f64::abs(sum) {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    if a > 6.5 {
        return x.signum();
    }
    let fraction = (1..=60).rev().fold(a, |f, k| a + f64::from(k) / 2.0 / f);
    let complement = (-a * a).exp() / fraction / std::f64::consts::PI.sqrt();
    (1.0 - complement).copysign(x)
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
    Row { name, wgsl: wgsl[0], wgsl_int: wgsl[1], float, int, takes_bool, slopes, domain, tolerance }
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
    /// each operand. Integer division and remainder by 0 give 0.
    #[rustfmt::skip]
    pub fn row(self) -> BinaryRow {
        use Binary::{Add, And, Div, Eq, Ge, Gt, Le, Lt, Maximum, Minimum, Mul, MulHigh, Ne, Or, Pow, Rem, Shl, Shr, Sub, Xor};
        use Slope::{Num, W, X, Y};
        fn t(b: bool) -> f64 { f64::from(u8::from(b)) }
        fn half(ahead: Binary) -> Vec<Slope> {
            let part = |a: Slope, b: Slope| cond(bin(ahead, a.clone(), b.clone()), 1.0, cond(bin(Eq, a, b), 0.5, 0.0));
            vec![part(X, W), part(W, X)]
        }
        match self {
            Add => binary("add", ["(x + w)", "(x + w)"], Some(|a, b| a + b), Some(i64::wrapping_add), false, || vec![Num(1.0), Num(1.0)], ANY, 1e-6),
            Sub => binary("sub", ["(x - w)", "(x - w)"], Some(|a, b| a - b), Some(i64::wrapping_sub), false, || vec![Num(1.0), Num(-1.0)], ANY, 1e-6),
            Mul => binary("mul", ["(x * w)", "(x * w)"], Some(|a, b| a * b), Some(i64::wrapping_mul), false, || vec![W, X], ANY, 1e-6),
            Div => binary("div", ["(x / w)", "wg_idiv(x, w)"], Some(|a, b| a / b), Some(|a, b| if b == 0 { 0 } else { a / b }), false, || vec![1.0 / W, -(Y / W)], POSITIVE, 1e-6),
            // The remainder has the sign of the divisor, as in Python and PyTorch.
            Rem => binary("rem", ["wg_rem(x, w)", "wg_irem(x, w)"], Some(|a, b| a - b * (a / b).floor()), Some(|a, b| if b == 0 { 0 } else { (a % b + b) % b }), false, || vec![Num(1.0), -un(Unary::Floor, X / W)], POSITIVE, 4e-6),
            Pow => binary("pow", ["wg_pow(x, w)", ""], Some(f64::powf), None, false, || vec![
                cond(bin(Eq, W, 0.0), 0.0, W * bin(Pow, X, W - 1.0)),
                cond(bin(Gt, X, 0.0), Y * un(Unary::Log, cond(bin(Gt, X, 0.0), X, 1.0)), 0.0),
            ], POSITIVE, 2e-5),
            Maximum => binary("maximum", ["wg_max(x, w)", "max(x, w)"], Some(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }), Some(i64::max), false, || half(Gt), ANY, 0.0),
            Minimum => binary("minimum", ["wg_min(x, w)", "min(x, w)"], Some(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }), Some(i64::min), false, || half(Lt), ANY, 0.0),
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
    fn erf_has_the_known_values() {
        let known = [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.4, 0.999_311_486_103_355),
            (2.6, 0.999_763_965_583_470_7),
            (4.0, 0.999_999_984_582_742_1),
        ];
        for (x, y) in known {
            assert!((erf(x) - y).abs() < 2e-15, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!(erf(f64::NAN).is_nan());
    }

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
