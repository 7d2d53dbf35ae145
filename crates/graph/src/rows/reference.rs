//! Reference functions in f64 that the standard library lacks, or gives less exactly.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, PI};

/// -1, 0 or 1; NaN and the zeros stay.
pub(super) fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

/// The remainder with the sign of `b`; exact.
pub(super) fn rem(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

/// The largest whole number at most the exact `a / b`.
pub(super) fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let r = a % b;
    let q = ((a - r) / b).round();
    if r != 0.0 && (r < 0.0) != (b < 0.0) { q - 1.0 } else { q }
}

pub(super) fn floor_div_int(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    a.wrapping_div(b) - i64::from(a.wrapping_rem(b) != 0 && (a < 0) != (b < 0))
}

/// The remainder with the sign of the divisor; by 0 it is 0.
pub(super) fn rem_int(a: i64, b: i64) -> i64 {
    let r = if b == 0 { 0 } else { a.wrapping_rem(b) };
    if r != 0 && (r ^ b) < 0 { r + b } else { r }
}

/// `a^b`, wrapping; for negative `b` the part of `1 / a^-b` before the point, 0 for `a = 0`.
pub(super) fn pow_int(a: i64, b: i64) -> i64 {
    match (a, b) {
        (_, 0..) => {
            let (mut y, mut power, mut left) = (1i64, a, b);
            while left > 0 {
                y = if left & 1 == 1 { y.wrapping_mul(power) } else { y };
                (power, left) = (power.wrapping_mul(power), left >> 1);
            }
            y
        }
        (1, _) => 1,
        (-1, _) => 1 - 2 * (b & 1),
        _ => 0,
    }
}

pub(super) fn asinh(x: f64) -> f64 {
    let a = x.abs();
    let y = if a > 1e9 { a.ln() + LN_2 } else { (a + a * a / (1.0 + (1.0 + a * a).sqrt())).ln_1p() };
    y.copysign(x)
}

pub(super) fn acosh(x: f64) -> f64 {
    let t = x - 1.0;
    match x {
        _ if x < 1.0 => f64::NAN,
        _ if x > 1e9 => x.ln() + LN_2,
        _ => (t + (t * (t + 2.0)).sqrt()).ln_1p(),
    }
}

pub(super) fn atanh(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}

/// The error function: its Maclaurin series where that converges fast, else one minus the continued
/// fraction of the complement; relative error below 1e-15.
pub(super) fn erf(x: f64) -> f64 {
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
        return sum * FRAC_2_SQRT_PI;
    }
    (1.0 - erfc(a)).copysign(x)
}

/// `1 - erf(x)`: the continued fraction where that converges fast; relative error below 1e-12.
pub(super) fn erfc(x: f64) -> f64 {
    if x.is_nan() || x < 2.5 {
        return if x < -2.5 { 2.0 - erfc(-x) } else { 1.0 - erf(x) };
    }
    if x > 28.0 {
        return 0.0;
    }
    let fraction = (1..=60).rev().fold(x, |f, k| x + f64::from(k) / 2.0 / f);
    (-x * x).exp() / fraction / PI.sqrt()
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
            assert!((erfc(-x) - 1.0 - y).abs() < 2e-15);
        }
        assert!(erf(f64::NAN).is_nan() && erfc(f64::NAN).is_nan());
        assert!((erfc(3.0) / 2.209_049_699_858_544e-5 - 1.0).abs() < 1e-12, "{}", erfc(3.0));
        assert!((erfc(10.0) / 2.088_487_583_762_545e-45 - 1.0).abs() < 1e-12, "{}", erfc(10.0));
        assert_eq!([erfc(f64::INFINITY), erfc(f64::NEG_INFINITY), erfc(0.0)], [0.0, 2.0, 1.0]);
    }

    #[test]
    fn quotients_and_remainders() {
        assert_eq!([rem(-5.0, 3.0), rem(5.0, -3.0), rem(-5.0, f64::INFINITY)], [1.0, -1.0, f64::INFINITY]);
        assert_eq!([floor_div(1.0, 0.1), floor_div(-1.0, 3.0), floor_div(7.5, 2.5)], [9.0, -1.0, 3.0]);
        assert_eq!([floor_div_int(-7, 2), floor_div_int(7, -2), floor_div_int(-6, 2)], [-4, -4, -3]);
        assert_eq!([pow_int(-2, 3), pow_int(0, 0), pow_int(2, -1), pow_int(-1, -3)], [-8, 1, 0, -1]);
    }

    #[test]
    fn inverse_hyperbolic_functions_undo() {
        for x in [1e-12f64, 0.3, 1.7, 5.0] {
            assert!((asinh(x.sinh()) / x - 1.0).abs() < 1e-14);
            assert!((acosh(1.0 + x) - f64::acosh(1.0 + x)).abs() < 1e-14);
            assert!((atanh(x.tanh()) / x - 1.0).abs() < 1e-11, "{x}");
        }
        assert!((asinh(-1e300) + 691.468_675_078_773_7).abs() < 1e-9 && acosh(0.5).is_nan());
        assert_eq!([atanh(1.0), atanh(-1.0)], [f64::INFINITY, f64::NEG_INFINITY]);
        assert!(atanh(1.5).is_nan());
    }
}
