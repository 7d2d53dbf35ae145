//! Elementary functions on f32, branch-free so that loops over them become vector code, and built of
//! single additions and products alone (nothing is contracted), so that the bits are the same on
//! every instruction set. Relative errors are a few units in the last place.

const LOG2E: f32 = std::f32::consts::LOG2_E;
/// 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold.
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

/// 2^n for -126 <= n <= 128; 128 gives infinity.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `x = n ln 2 + r`: n as float and integer, r, and exp(r) - 1 (Cephes' polynomial).
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let t = x * LOG2E + ROUND;
    let n = t - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let p = 1.987_569_1e-4 * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5.000_000_1e-1;
    ((t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32), p * (r * r) + r)
}

#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, e) = reduce(clamp(x, -104.0, 89.0));
    // In two steps, so that subnormal results and overflow come out of the products themselves.
    let half = n >> 1;
    (e + 1.0) * pow2(half) * pow2(n.wrapping_sub(half))
}

#[inline(always)]
pub(crate) fn expm1(x: f32) -> f32 {
    let (n, e) = reduce(clamp(x, -60.0, 60.0));
    let scale = pow2(n);
    let small = scale * e + (scale - 1.0);
    if x > 30.0 { exp(x) } else { small }
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
    let w = z * z;
    let r = z * (0.666_666_6 + w * 0.284_987_87) + w * (0.400_009_72 + w * 0.242_790_79);
    let half = 0.5 * f * f;
    let y = (s * (half + r) + k * 9.058_000_6e-6) - half + f + k * 6.931_381e-1;
    let y = if x == f32::INFINITY || x.is_nan() { x } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
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
    let p = -2.760_768_5e-16 * s + 2.000_188e-13;
    let p = p * s + -8.604_672e-11;
    let p = p * s + 5.122_297e-8;
    let p = p * s + 1.485_722_4e-5;
    let p = p * s + 6.372_619e-4;
    let p = p * s + 4.893_525e-3;
    let q = 1.198_258_4e-6 * s + 1.185_347_1e-4;
    let q = q * s + 2.268_434_6e-3;
    let q = q * s + 4.893_525e-3;
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
    let p = -2.726_142_3e-10 * s + 2.770_681_4e-8;
    let p = p * s + -2.101_024e-6;
    let p = p * s + -5.692_506_4e-5;
    let p = p * s + -7.349_906e-4;
    let p = p * s + -2.954_6e-3;
    let p = p * s + -1.609_603_3e-2;
    let q = -1.456_607_2e-5 * s + -2.133_740_6e-4;
    let q = q * s + -1.682_827e-3;
    let q = q * s + -7.373_329e-3;
    let q = q * s + -1.426_474e-2;
    if x.abs() > 3.9 { 1f32.copysign(x) } else { z * p / q }
}

/// The quadrant and the rest in it, by a reduction in f64, which is exact enough up to |x| = 2^30.
#[inline(always)]
fn quadrant(x: f32) -> (u64, f32) {
    const ROUND64: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let t = x * std::f64::consts::FRAC_2_PI + ROUND64;
    let n = t - ROUND64;
    let r = (x - n * 1.570_796_326_734_125_6) - n * 6.077_100_506_506_192e-11;
    (t.to_bits() & 3, r as f32)
}

#[inline(always)]
fn sin_cos(r: f32) -> (f32, f32) {
    let s = r * r;
    let p = -1.951_529_6e-4 * s + 8.332_161e-3;
    let p = p * s + -1.666_665_5e-1;
    let c = 2.443_315_7e-5 * s + -1.388_731_6e-3;
    let c = c * s + 4.166_664_6e-2;
    (p * s * r + r, c * (s * s) - 0.5 * s + 1.0)
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
    let p = z / 15.0 + 1.0 / 13.0;
    let p = p * z + 1.0 / 11.0;
    let p = p * z + 1.0 / 9.0;
    let p = p * z + 1.0 / 7.0;
    let p = p * z + 1.0 / 5.0;
    let p = p * z + 1.0 / 3.0;
    let log = k * std::f64::consts::LN_2 + 2.0 * (s + s * z * p);
    let y = f64::from(w) * log;
    let y = if y > 90.0 { 90.0 } else { y };
    let y = if y < -105.0 { -105.0 } else { y };
    let t = y * std::f64::consts::LOG2_E + ROUND64;
    let n = t.to_bits().wrapping_sub(ROUND64.to_bits());
    let r = y - (t - ROUND64) * std::f64::consts::LN_2;
    let e = r / 3_628_800.0 + 1.0 / 362_880.0;
    let e = e * r + 1.0 / 40_320.0;
    let e = e * r + 1.0 / 5_040.0;
    let e = e * r + 1.0 / 720.0;
    let e = e * r + 1.0 / 120.0;
    let e = e * r + 1.0 / 24.0;
    let e = e * r + 1.0 / 6.0;
    let e = e * r + 0.5;
    let e = e * r + 1.0;
    let e = e * r + 1.0;
    (e * f64::from_bits(n.wrapping_add(1023) << 52)) as f32
}

#[cfg(test)]
mod tests {
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
    fn edges() {
        let inf = f32::INFINITY;
        assert_eq!([exp(-inf), exp(inf), exp(0.0), exp(-104.0)], [0.0, inf, 1.0, 0.0]);
        assert!(exp(88.7).is_finite() && exp(88.8) == inf && exp(-100.0) > 0.0);
        assert_eq!([log(0.0), log(-0.0), log(inf), log(1.0)], [-inf, -inf, inf, 0.0]);
        assert!(log(-1.0).is_nan() && (log(1e-40) + 92.103_4).abs() < 1e-4);
        assert_eq!([log1p(0.0), log1p(-1.0), log1p(inf), log1p(1e-10)], [0.0, -inf, inf, 1e-10]);
        assert_eq!([expm1(-inf), expm1(inf), expm1(1e-10)], [-1.0, inf, 1e-10]);
        assert_eq!([tanh(-inf), tanh(inf), erf(inf), erf(-inf), sigmoid(-inf)], [-1.0, 1.0, 1.0, -1.0, 0.0]);
        for f in [exp, expm1, log, log1p, tanh, sigmoid, erf, sin, cos] {
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
