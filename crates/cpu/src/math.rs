//! Elementary functions on f32, branch-free so that loops over them become vector code. Products that
//! feed sums are fused by `mul_add`, which rounds once on every machine, and nothing else is: so the
//! bits are the same on every instruction set. Relative errors are a few units in the last place.

mod inverse;

pub(crate) use inverse::{
    acos, acosh, asin, asinh, atan, atan2, atanh, cosh, erfc, hypot, sinh, softplus, tan,
};

const LOG2E: f32 = std::f32::consts::LOG2_E;
/// 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts: the first has zeros at its end, so that its small multiples are exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

#[inline(always)]
fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    // Comparisons in this form keep NaN.
    let x = if x > hi { hi } else { x };
    if x < lo { lo } else { x }
}

/// `c[0] + c[1] x + c[2] x^2 + ..`
#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    c.into_iter().rev().reduce(|y, c| y.mul_add(x, c)).unwrap_or(0.0)
}

/// `x = n ln 2 + r`: n in the low bits of the first, and exp(r) - 1 (Cephes' polynomial).
#[inline(always)]
fn reduce(x: f32) -> (u32, f32) {
    let t = x.mul_add(LOG2E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    let p = poly(r, [0.5, 1.666_666_5e-1, 4.166_579_6e-2, 8.333_452e-3, 1.398_199_9e-3, 1.987_569_1e-4]);
    (t.to_bits(), p.mul_add(r * r, r))
}

/// Results below the smallest normal number are 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, e) = reduce(x);
    // The exponent is added to that of a number near 1.
    let y = f32::from_bits((e + 1.0).to_bits().wrapping_add(n << 23));
    let y = if x < -87.336_54 { 0.0 } else { y };
    // Past the largest, infinity; NaN stays.
    if x <= 88.722_83 { y } else { x + f32::INFINITY }
}

/// Results below the smallest normal number are 0.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let z = clamp(x, -150.0, 150.0);
    let t = z + ROUND;
    let (n, e) = reduce((z - (t - ROUND)) * std::f32::consts::LN_2);
    let y = f32::from_bits((e + 1.0).to_bits().wrapping_add(t.to_bits().wrapping_add(n) << 23));
    let y = if x < -126.0 { 0.0 } else { y };
    if x < 128.0 { y } else { x + f32::INFINITY }
}

#[inline(always)]
pub(crate) fn expm1(x: f32) -> f32 {
    let (n, e) = reduce(clamp(x, -60.0, 60.0));
    let scale = f32::from_bits(1f32.to_bits().wrapping_add(n << 23));
    let small = scale.mul_add(e, scale - 1.0);
    let y = if x > 30.0 { exp(x) } else { small };
    if x.is_nan() { x } else { y }
}

#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bias = if tiny { -23.0 } else { 0.0 };
    // The mantissa is brought into [sqrt(1/2), sqrt(2)).
    let bits = scaled.to_bits().wrapping_sub(0x3f35_04f3);
    let k = (bits as i32 >> 23) as f32 + bias;
    let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * poly(z, [0.666_666_6, 0.400_009_72, 0.284_987_87, 0.242_790_79]);
    let half = 0.5 * f * f;
    let y = k.mul_add(6.931_381e-1, k.mul_add(9.058_001e-6, s * (half + r)) - half + f);
    let y = if x == f32::INFINITY || x.is_nan() { x } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

/// Exact at powers of two.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3);
    let k = (bits as i32 >> 23) as f32;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let normal = (f32::MIN_POSITIVE..f32::INFINITY).contains(&x);
    if normal { log(m).mul_add(LOG2E, k) } else { log(x) * LOG2E }
}

#[inline(always)]
pub(crate) fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    let lost = (x - (u - 1.0)) / u;
    let y = log(u);
    if lost.is_finite() { y + lost } else { y }
}

/// A rational function (that of Eigen).
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = clamp(x, -7.998_812, 7.998_812);
    let s = z * z;
    let p = poly(
        s,
        [
            4.893_525e-3,
            6.372_619e-4,
            1.485_722_4e-5,
            5.122_297e-8,
            -8.604_672e-11,
            2.000_188e-13,
            -2.760_768_5e-16,
        ],
    );
    let q = poly(s, [4.893_525e-3, 2.268_434_6e-3, 1.185_347_1e-4, 1.198_258_4e-6]);
    let y = if x.abs() > 8.5 { 1f32.copysign(x) } else { z * p / q };
    if x.abs() < 4e-4 { x } else { y }
}

#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// A rational function (that of Eigen) on [-4, 4]; beyond, the result rounds to one.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let z = clamp(x, -4.0, 4.0);
    let s = z * z;
    let p = poly(
        s,
        [
            -1.609_603_3e-2,
            -2.954_6e-3,
            -7.349_906e-4,
            -5.692_506_4e-5,
            -2.101_024e-6,
            2.770_681_4e-8,
            -2.726_142_3e-10,
        ],
    );
    let q = poly(s, [-1.426_474e-2, -7.373_329e-3, -1.682_827e-3, -2.133_740_6e-4, -1.456_607_2e-5]);
    if x.abs() > 3.9 { 1f32.copysign(x) } else { z * p / q }
}

/// The quadrant and the rest in it, by a reduction in f64, which is exact enough up to |x| = 2^30.
#[inline(always)]
fn quadrant(x: f32) -> (u64, f32) {
    const ROUND64: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let t = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    let r = n.mul_add(-6.077_100_506_506_192e-11, n.mul_add(-1.570_796_326_734_125_6, x));
    (t.to_bits() & 3, r as f32)
}

#[inline(always)]
fn sin_cos(r: f32) -> (f32, f32) {
    let s = r * r;
    let p = poly(s, [-1.666_665_5e-1, 8.332_161e-3, -1.951_529_6e-4]);
    let c = poly(s, [1.0, -0.5, 4.166_664_6e-2, -1.388_731_6e-3, 2.443_315_7e-5]);
    (p.mul_add(s * r, r), c)
}

#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let (n, r) = quadrant(x);
    let (s, c) = sin_cos(r);
    let y = if n & 1 == 0 { s } else { c };
    if n & 2 == 0 { y } else { -y }
}

#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let (n, r) = quadrant(x);
    let (s, c) = sin_cos(r);
    let y = if n & 1 == 0 { c } else { s };
    if (n + 1) & 2 == 0 { y } else { -y }
}

/// x^w for positive finite x and finite w: exp(w log x) in f64, so that the error of the logarithm
/// does not grow with w.
#[inline(always)]
pub(crate) fn pow(x: f32, w: f32) -> f32 {
    const ROUND64: f64 = 6_755_399_441_055_744.0;
    let bits = f64::from(x).to_bits().wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let k = ((bits as i64) >> 52) as i32 as f64;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(0x3fe6_a09e_667f_3bcd));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = (z / 15.0 + 1.0 / 13.0).mul_add(z, 1.0 / 11.0);
    let p = p.mul_add(z, 1.0 / 9.0).mul_add(z, 1.0 / 7.0);
    let p = p.mul_add(z, 1.0 / 5.0).mul_add(z, 1.0 / 3.0);
    let log = k.mul_add(std::f64::consts::LN_2, 2.0 * (s * z).mul_add(p, s));
    let y = f64::from(w) * log;
    let y = if y > 90.0 { 90.0 } else { y };
    let y = if y < -105.0 { -105.0 } else { y };
    let t = y * std::f64::consts::LOG2_E + ROUND64;
    let n = t.to_bits().wrapping_sub(ROUND64.to_bits());
    let r = y - (t - ROUND64) * std::f64::consts::LN_2;
    let e = (r / 3_628_800.0 + 1.0 / 362_880.0).mul_add(r, 1.0 / 40_320.0);
    let e = e.mul_add(r, 1.0 / 5_040.0).mul_add(r, 1.0 / 720.0);
    let e = e.mul_add(r, 1.0 / 120.0).mul_add(r, 1.0 / 24.0);
    let e = e.mul_add(r, 1.0 / 6.0).mul_add(r, 0.5);
    let e = e.mul_add(r, 1.0).mul_add(r, 1.0);
    (e * f64::from_bits(n.wrapping_add(1023) << 52)) as f32
}

/// The bits of the f16 nearest to `x`, ties to even; beyond the largest infinity.
#[inline(always)]
pub(crate) fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, a) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Below 2^-14 the last place is 2^-24, which is that of 0.5: adding it rounds, and leaves the integer.
    let small = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = a.wrapping_add(0xfff + ((a >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    let finite = if a < 0x3880_0000 { small } else { normal };
    let beyond = if a > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    (sign | if a >= 0x477f_f000 { beyond } else { finite }) as u16
}

/// The bits of the bf16 nearest to `x`, ties to even.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// The f16 with these bits.
#[inline(always)]
pub(crate) fn from_f16(bits: u16) -> f32 {
    let (sign, a) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let small = (a as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let scaled = (a << 13) + (112 << 23);
    let beyond = (a << 13) | 0x7f80_0000;
    let normal = if a < 0x7c00 { scaled } else { beyond };
    f32::from_bits(sign | if a < 0x400 { small } else { normal })
}

#[cfg(test)]
mod tests {
    use std::f32::consts::PI;

    use wgrad_graph::Unary;

    use super::*;

    fn check(op: Unary, f: fn(f32) -> f32, lo: f64, hi: f64, relative: f64) {
        let exact = op.row().float.expect("a float function");
        for i in 0..=20_000 {
            let x = (lo + (hi - lo) * f64::from(i) / 20_000.0) as f32;
            let (y, e) = (f64::from(f(x)), exact(f64::from(x)));
            let scale = e.abs().max(1e-3);
            assert!((y - e).abs() <= relative * scale, "{}({x}) = {y}, not {e}", op.row().name);
        }
    }

    #[test]
    fn functions_are_close_to_the_rows() {
        check(Unary::Exp, exp, -87.0, 88.0, 3e-7);
        check(Unary::Exp2, exp2, -125.0, 127.0, 3e-7);
        check(Unary::Log2, log2, 1e-6, 50.0, 4e-7);
        check(Unary::Expm1, expm1, -20.0, 80.0, 4e-7);
        check(Unary::Expm1, expm1, -0.5, 0.5, 4e-7);
        check(Unary::Log, log, 1e-6, 50.0, 3e-7);
        check(Unary::Log1p, log1p, -0.9, 50.0, 4e-7);
        check(Unary::Tanh, tanh, -12.0, 12.0, 5e-7);
        check(Unary::Sigmoid, sigmoid, -30.0, 30.0, 4e-7);
        check(Unary::Erf, erf, -6.0, 6.0, 8e-7);
        check(Unary::Sin, sin, -1000.0, 1000.0, 4e-7);
        check(Unary::Cos, cos, -1000.0, 1000.0, 4e-7);
    }

    #[test]
    fn inverse_functions_are_close_to_the_rows() {
        check(Unary::Tan, tan, -1.5, 1.5, 6e-7);
        check(Unary::Asin, asin, -1.0, 1.0, 4e-7);
        check(Unary::Acos, acos, -1.0, 1.0, 4e-7);
        check(Unary::Atan, atan, -30.0, 30.0, 3e-7);
        check(Unary::Sinh, sinh, -87.0, 87.0, 8e-7);
        check(Unary::Sinh, sinh, -1.5, 1.5, 8e-7);
        check(Unary::Cosh, cosh, -87.0, 87.0, 8e-7);
        check(Unary::Asinh, asinh, -3e9, 3e9, 4e-7);
        check(Unary::Asinh, asinh, -2.0, 2.0, 5e-7);
        check(Unary::Acosh, acosh, 1.0, 30.0, 5e-7);
        check(Unary::Atanh, atanh, -0.999, 0.999, 5e-7);
        check(Unary::Erfc, erfc, -6.0, 3.0, 2e-6);
        check(Unary::Softplus, softplus, -90.0, 90.0, 4e-7);
        for (i, x) in (-40..40).map(|i| (i, i as f32 * 0.31)) {
            let w = (i * 7 % 13) as f32 * 0.7 - 2.0;
            let (a, e) = (f64::from(atan2(x, w)), f64::from(x).atan2(f64::from(w)));
            assert!((a - e).abs() < 4e-7 * e.abs().max(1e-3), "atan2({x}, {w}) = {a}, not {e}");
        }
        let inf = f32::INFINITY;
        assert_eq!([atan2(0.0, -0.0), atan2(-0.0, 1.0), atan2(inf, -inf)], [PI, -0.0, 0.75 * PI]);
        assert_eq!([hypot(3e38, 4e37).is_finite(), hypot(inf, f32::NAN) == inf], [true, true]);
    }

    #[test]
    fn halves_are_those_of_the_standard() {
        use wgrad_graph::{DType, bf16, f16};
        for bits in 0..=u16::MAX {
            let (x, wide) = (f16::from_bits(bits), from_f16(bits));
            assert!(wide == x.to_f32() || wide.is_nan() && x.is_nan(), "{bits:04x}");
            // The value itself, its neighbours in f32, and halfway to the next.
            let half = f32::from_bits(u32::from(bits) << 16);
            for x in [wide, wide.next_up(), wide.next_down(), (wide + from_f16(bits.wrapping_add(1))) / 2.0] {
                let (y, exact) = (f16::from_bits(to_f16(x)), DType::F16.round(f64::from(x)));
                assert!(f64::from(y) == exact || x.is_nan() && y.is_nan(), "{x:e} became {y}");
                assert_eq!(y.is_sign_negative(), x.is_sign_negative(), "{x:e}");
            }
            for x in [half, half.next_up(), f32::from_bits(half.to_bits() | 0x8000), half.next_down()] {
                let (y, exact) = (bf16::from_bits(to_bf16(x)), DType::BF16.round(f64::from(x)));
                assert!(f64::from(y) == exact || x.is_nan() && y.is_nan(), "{x:e} became {y}");
            }
        }
    }

    #[test]
    fn edges() {
        let inf = f32::INFINITY;
        assert_eq!([exp(-inf), exp(inf), exp(0.0), exp(-104.0)], [0.0, inf, 1.0, 0.0]);
        assert!(exp(88.72).is_finite() && exp(88.8) == inf && exp(-87.3) > 0.0);
        assert!(f32::from_bits(0x7f80_1234).is_nan() && exp(f32::from_bits(0xffc0_1234)).is_nan());
        assert_eq!([log(0.0), log(-0.0), log(inf), log(1.0)], [-inf, -inf, inf, 0.0]);
        assert!(log(-1.0).is_nan() && (log(1e-40) + 92.103_4).abs() < 1e-4);
        assert_eq!([log1p(0.0), log1p(-1.0), log1p(inf), log1p(1e-10)], [0.0, -inf, inf, 1e-10]);
        assert_eq!(
            [exp2(-inf), exp2(inf), exp2(10.0), exp2(-3.0), log2(0.125)],
            [0.0, inf, 1024.0, 0.125, -3.0]
        );
        assert_eq!([log2(0.0), log2(inf), log2(1024.0)], [-inf, inf, 10.0]);
        assert_eq!([expm1(-inf), expm1(inf), expm1(1e-10)], [-1.0, inf, 1e-10]);
        assert_eq!([tanh(-inf), tanh(inf), erf(inf), erf(-inf), sigmoid(-inf)], [-1.0, 1.0, 1.0, -1.0, 0.0]);
        let more = [tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh, erfc, softplus];
        for f in [exp, exp2, expm1, log, log2, log1p, tanh, sigmoid, erf, sin, cos].into_iter().chain(more) {
            assert!(f(f32::NAN).is_nan());
        }
    }

    #[test]
    fn powers_are_nearly_correctly_rounded() {
        for i in 1..2000 {
            let (x, w) = (i as f32 * 0.013, (i % 37) as f32 * 0.5 - 9.0);
            let e = f64::from(x).powf(f64::from(w));
            if e < f64::from(f32::MAX) {
                assert!((f64::from(pow(x, w)) - e).abs() <= 6.1e-8 * e, "{x}^{w} = {}, not {e}", pow(x, w));
            }
        }
        assert_eq!([pow(3.0, 2.0), pow(2.0, 10.0), pow(4.0, -0.5)], [9.0, 1024.0, 0.5]);
    }
}
