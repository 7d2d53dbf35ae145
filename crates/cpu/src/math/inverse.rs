//! Trigonometric and hyperbolic functions beside sin, cos and tanh, and the complement of erf. The
//! polynomials are minimax fits of our own, the same as in `wgsl/inverse.wgsl`.

use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, PI};

use super::{cos, exp, log, log1p, poly, sin};

#[inline(always)]
pub(crate) fn tan(x: f32) -> f32 {
    sin(x) / cos(x)
}

/// atan(x) for x in 0 ..= 1.
#[inline(always)]
fn atan_unit(x: f32) -> f32 {
    let high = x > 0.414_213_56;
    let t = if high { (x - 1.0) / (x + 1.0) } else { x };
    let z = t * t;
    let p = poly(z, [-3.333_295_6e-1, 1.997_792_6e-1, -1.387_985e-1, 8.060_308e-2]);
    (p * z).mul_add(t, t) + if high { FRAC_PI_4 } else { 0.0 }
}

#[inline(always)]
pub(crate) fn atan(x: f32) -> f32 {
    let a = x.abs();
    let y = atan_unit(if a > 1.0 { 1.0 / a } else { a });
    (if a > 1.0 { FRAC_PI_2 - y } else { y }).copysign(x)
}

#[inline(always)]
pub(crate) fn atan2(x: f32, w: f32) -> f32 {
    let (a, b) = (x.abs(), w.abs());
    let (top, low) = if a > b { (a, b) } else { (b, a) };
    let t = if top == 0.0 {
        0.0
    } else if low == top {
        1.0
    } else {
        low / top
    };
    let y = atan_unit(t);
    let half = if a > b { FRAC_PI_2 - y } else { y };
    let full = if w.is_sign_negative() { PI - half } else { half };
    if x.is_nan() || w.is_nan() { f32::NAN } else { full.copysign(x) }
}

/// asin(x) for x in 0 ..= 0.5.
#[inline(always)]
fn asin_half(x: f32) -> f32 {
    let z = x * x;
    let p = poly(z, [1.666_675_4e-1, 7.495_241_6e-2, 4.547_71e-2, 2.414_76e-2, 4.221_857e-2]);
    (p * z).mul_add(x, x)
}

#[inline(always)]
pub(crate) fn asin(x: f32) -> f32 {
    let a = x.abs();
    let y = asin_half(if a > 0.5 { (0.5 * (1.0 - a)).sqrt() } else { a });
    (if a > 0.5 { FRAC_PI_2 - 2.0 * y } else { y }).copysign(x)
}

#[inline(always)]
pub(crate) fn acos(x: f32) -> f32 {
    let a = x.abs();
    let y = asin_half(if a > 0.5 { (0.5 * (1.0 - a)).sqrt() } else { a });
    let near = FRAC_PI_2 - y.copysign(x);
    let far = if x < 0.0 { PI - 2.0 * y } else { 2.0 * y };
    if a > 0.5 { far } else { near }
}

#[inline(always)]
pub(crate) fn sinh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = poly(z, [1.666_666_7e-1, 8.333_351e-3, 1.983_606_6e-4, 2.817_439_5e-6]);
    // exp(a) would overflow before sinh does.
    let h = exp(0.5 * a);
    let far = ((0.5 * h) * h - 0.5 / (h * h)).copysign(x);
    if a < 1.0 { (p * z).mul_add(x, x) } else { far }
}

#[inline(always)]
pub(crate) fn cosh(x: f32) -> f32 {
    let h = exp(0.5 * x.abs());
    (0.5 * h) * h + 0.5 / (h * h)
}

#[inline(always)]
pub(crate) fn asinh(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let near = log1p(a + z / (1.0 + (1.0 + z).sqrt()));
    (if a > 1e9 { log(a) + LN_2 } else { near }).copysign(x)
}

#[inline(always)]
pub(crate) fn acosh(x: f32) -> f32 {
    let t = x - 1.0;
    let near = log1p(t + t.mul_add(t, 2.0 * t).sqrt());
    let y = if x > 1e9 { log(x) + LN_2 } else { near };
    if x < 1.0 { f32::NAN } else { y }
}

#[inline(always)]
pub(crate) fn atanh(x: f32) -> f32 {
    let a = x.abs();
    (0.5 * log1p(2.0 * a / (1.0 - a))).copysign(x)
}

/// With t = (x - 3.75) / (x + 3.75) of Shepherd and Laframboise.
#[inline(always)]
pub(crate) fn erfc(x: f32) -> f32 {
    let a = if x.abs() > 10.5 { 10.5 } else { x.abs() };
    let t = (a - 3.75) / (a + 3.75);
    let p = poly(
        t,
        [
            1.237_512_6,
            -1.402_405_2e-1,
            3.584_798_2e-3,
            8.227_303e-2,
            -1.087_932e-1,
            9.235_912_6e-2,
            -5.872_972e-2,
            2.804_748e-2,
            -9.918_832e-3,
            2.314_54e-3,
            1.097_964_8e-3,
        ],
    );
    let y = exp(-a * a) * p / a.mul_add(2.0, 1.0);
    if x < 0.0 { 2.0 - y } else { y }
}

#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    // In this order NaN stays.
    let up = if x <= 0.0 { 0.0 } else { x };
    up + log1p(exp(-x.abs()))
}

/// In f64, where squares of f32 neither overflow nor vanish.
#[inline(always)]
pub(crate) fn hypot(x: f32, w: f32) -> f32 {
    let (a, b) = (f64::from(x), f64::from(w));
    let y = a.mul_add(a, b * b).sqrt() as f32;
    if x.is_infinite() || w.is_infinite() { f32::INFINITY } else { y }
}
