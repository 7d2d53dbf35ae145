//! The arithmetic of split products, step by step as the kernel and the units do it, against f64 and a plain
//! f32 product: what bounds their error, and which inputs are left to the plain kernel.

use crate::emit::DOUBTFUL;

/// The f16 nearest to `x`, ties to even, as f32; subnormal ones included.
pub(super) fn half(x: f32) -> f32 {
    let size = x.abs();
    assert!(size < 65520.0, "{x} is beyond f16");
    // The distance of two halves at this size.
    let step = 2f32.powi((size.log2().floor() as i32).max(-14) - 10);
    let rounded = (f64::from(size) / f64::from(step)).round_ties_even() * f64::from(step);
    (rounded as f32).copysign(x)
}

/// `x` rounded toward zero to a multiple of 2^`to`.
fn cut(x: f64, to: i32) -> f64 {
    let step = 2f64.powi(to);
    (x / step).trunc() * step
}

/// What a unit makes of 16 products and a sum: all are cut at 24 bits below the largest, and the sum is
/// rounded toward zero. (Units keep a few bits more.)
fn multiply_add(a: &[f32], b: &[f32], c: f32) -> f32 {
    multiply_add_in(24, a, b, c)
}

/// The same with terms cut at `bits` bits.
pub(super) fn multiply_add_in(bits: i32, a: &[f32], b: &[f32], c: f32) -> f32 {
    let terms: Vec<f64> = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).collect();
    let largest = terms.iter().fold(f64::from(c).abs(), |m, t| m.max(t.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    let at = largest.log2().floor() as i32 + 1 - bits;
    let sum: f64 = terms.iter().map(|t| cut(*t, at)).sum::<f64>() + cut(f64::from(c), at);
    if sum == 0.0 {
        return 0.0;
    }
    cut(sum, sum.abs().log2().floor() as i32 - 23) as f32
}

/// A row or a column: its scale, and for each number the two halves and whether it is tiny.
struct Scaled {
    up: i32,
    parts: Vec<(f32, f32, bool)>,
}

fn scaled(x: &[f32]) -> Scaled {
    let most = x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff));
    let e = (most >> 23) as i32;
    let up = (141 - e).clamp(-126, 126);
    let limit = ((e - 28).max(1) as u32) << 23;
    let part = |x: &f32| {
        let y = x * 2f32.powi(up);
        let hi = half(y);
        let tiny = (x.to_bits() & 0x7fff_ffff).wrapping_sub(1) < limit - 1;
        (hi, half((y - hi) * 2048.0), tiny)
    };
    Scaled { up, parts: x.iter().map(part).collect() }
}

/// A row times a column, and whether it is left to the plain kernel.
fn split(a: &Scaled, b: &Scaled) -> (f32, bool) {
    let (mut c, mut d) = (0f32, 0f32);
    let pick = |parts: &[(f32, f32, bool)], low: bool| -> Vec<f32> {
        parts.iter().map(|p| if low { p.1 } else { p.0 }).collect()
    };
    for (x, y) in a.parts.chunks(32).zip(b.parts.chunks(32)) {
        let mut part = 0f32;
        for (x, y) in x.chunks(16).zip(y.chunks(16)) {
            let ([xh, xl], [yh, yl]) = ([false, true].map(|l| pick(x, l)), [false, true].map(|l| pick(y, l)));
            d = multiply_add(&xl, &yh, d);
            d = multiply_add(&xh, &yl, d);
            part = multiply_add(&xh, &yh, part);
        }
        c += part;
    }
    let r = c + d * 0.000_488_281_25;
    let tiny = a.parts.iter().chain(&b.parts).any(|p| p.2);
    let some = |parts: &[(f32, f32, bool)]| parts.iter().any(|p| p.2 || p.0 != 0.0);
    let doubt = tiny && some(&a.parts) && some(&b.parts) && r.abs() < DOUBTFUL;
    let undo = -(a.up + b.up);
    (r * 2f32.powi(undo >> 1) * 2f32.powi(undo - (undo >> 1)), doubt)
}

pub(super) fn noise(n: usize, seed: u32) -> Vec<u32> {
    let mut x = seed | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.wrapping_mul(0x9e37_79b1)
        })
        .collect()
}

pub(super) fn even(x: u32) -> f32 {
    (x >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Something like a normal number.
pub(super) fn normal(x: u32) -> f32 {
    (0..4).map(|i| even(x.rotate_left(8 * i).wrapping_mul(0x85eb_ca6b))).sum()
}

const EDGE: usize = 12;

/// Largest errors relative to the largest result.
struct Errors {
    /// Of what the split product keeps.
    ours: f64,
    /// Of all that it computes.
    unguarded: f64,
    /// Of a plain product.
    plain: f64,
    /// The share of results that are left to the plain kernel.
    left: f64,
}

/// Errors of the product of rows `a` and columns `b`, where row and column `i` are of size `sizes(i)`.
fn errors(k: usize, a: &[f32], b: &[f32], sizes: impl Fn(usize) -> f64) -> Errors {
    let [sa, sb] = [a, b].map(|x| x.chunks(k).map(scaled).collect::<Vec<_>>());
    let (mut ours, mut unguarded, mut plain, mut left) = (0f64, 0f64, 0f64, 0);
    let mut largest = 0f64;
    for (i, row_of) in sa.iter().enumerate() {
        for (j, column_of) in sb.iter().enumerate() {
            let (row, column) = (i * k..(i + 1) * k, j * k..(j + 1) * k);
            let pairs = a[row.clone()].iter().zip(&b[column.clone()]);
            let want: f64 = pairs.clone().map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let by_fma = pairs.fold(0f32, |sum, (x, y)| x.mul_add(*y, sum));
            let size = sizes(i) * sizes(j);
            let error = |got: f32| (f64::from(got) - want).abs() / size;
            largest = largest.max(want.abs() / size);
            plain = plain.max(error(by_fma));
            let (got, doubt) = split(row_of, column_of);
            unguarded = unguarded.max(error(got));
            if doubt {
                left += 1;
            } else {
                ours = ours.max(error(got));
            }
        }
    }
    let [ours, unguarded, plain] = [ours, unguarded, plain].map(|e| e / largest);
    Errors { ours, unguarded, plain, left: f64::from(left) / (EDGE * EDGE) as f64 }
}

fn numbers(k: usize, seed: u32, number: impl Fn(usize, u32) -> f32) -> Vec<f32> {
    noise(EDGE * k, seed).into_iter().enumerate().map(|(i, x)| number(i, x)).collect()
}

fn measured(k: usize, number: impl Fn(usize, usize, u32) -> f32) -> Errors {
    let (a, b) = (numbers(k, 7, |i, x| number(0, i, x)), numbers(k, 1234, |i, x| number(1, i, x)));
    errors(k, &a, &b, |_| 1.0)
}

/// Checks that the error is at most twice that of a plain product; gives the share left to the plain kernel.
#[track_caller]
fn holds(k: usize, number: impl Fn(usize, usize, u32) -> f32) -> f64 {
    let Errors { ours, plain, left, .. } = measured(k, number);
    accept(k, ours, plain);
    left
}

/// The same for rows and columns of sizes of their own, powers of two from `2^-power` to `2^power`: each error counts
/// beside the sizes of its row and its column.
#[track_caller]
fn holds_by_rows(k: usize, power: i32, number: impl Fn(usize, usize, u32) -> f32) -> f64 {
    let size = |i: usize| 2f32.powi(power * (2 * i as i32 - EDGE as i32) / EDGE as i32);
    let [a, b] =
        [(0, 7), (1, 1234)].map(|(side, seed)| numbers(k, seed, |i, x| number(side, i, x) * size(i / k)));
    let Errors { ours, plain, left, .. } = errors(k, &a, &b, |i| f64::from(size(i)));
    accept(k, ours, plain);
    left
}

#[track_caller]
fn accept(k: usize, ours: f64, plain: f64) {
    assert!(ours <= 2.0 * plain.max(2f64.powi(-24)), "K {k}: {ours:e}, plain {plain:e}");
}

/// Checks that a product is left to the plain kernel, and that it has to be.
#[track_caller]
fn spoilt(k: usize, number: impl Fn(usize, usize, u32) -> f32) {
    let Errors { ours, unguarded, plain, left } = measured(k, number);
    assert!(left > 0.9 && ours <= 2.0 * plain, "{left}");
    assert!(unguarded > 100.0 * plain, "{unguarded:e}, plain {plain:e}");
}

#[test]
fn errors_are_at_most_twice_those_of_a_plain_product() {
    for k in [256, 301, 1024, 4096] {
        // Numbers as they come, none of which is left to the plain kernel: of one size; all of one sign; all
        // huge, or tiny; rows of sizes of their own.
        for size in [1.0, 2f32.powi(90), 2f32.powi(-90)] {
            let other = |side: usize| if side == 0 { size } else { 1.0 / size };
            assert_eq!(holds(k, |side, _, x| even(x) * other(side)), 0.0);
            assert_eq!(holds(k, |side, _, x| normal(x) * other(side)), 0.0);
            assert_eq!(holds(k, |side, _, x| even(x).abs() * other(side)), 0.0);
        }
        for power in [4, 60] {
            let left = holds_by_rows(k, power, |_, _, x| normal(x));
            assert_eq!(left, 0.0, "rows and columns have scales of their own");
        }
        // What softmax and cross entropy give back: most of it small beside one number of each row.
        let left = holds_by_rows(k, 20, |side, i, x| match (side, i % 97) {
            (0, 5) => -1.0,
            (0, _) => (4.0 * normal(x)).exp() * 1e-5,
            _ => normal(x),
        });
        assert_eq!(left, 0.0, "gradients of a cross entropy");
        // Sizes that differ within a row by more than halves hold: probabilities, and noise over 80 powers.
        let left = holds(k, |side, _, x| if side == 0 { (30.0 * (even(x) - 1.0)).exp() } else { normal(x) });
        assert!(left < 0.02, "probabilities: {left}");
        holds(k, |_, _, x| even(x) * 2f32.powi((x & 63) as i32 - 32));
        // Many that are 0.
        let left = holds(k, |_, i, x| if x & 3 == 0 && i / k != 3 { normal(x) } else { 0.0 });
        assert_eq!(left, 0.0, "rows of nothing are no doubt");
    }
}

#[test]
fn what_would_be_spoilt_is_left_to_the_plain_kernel() {
    let k = 512;
    // Huge on one side where the other is tiny.
    let powers = |side: usize, i: usize| {
        let power = (i % k % 91) as i32 - 45;
        2f32.powi(if side == 0 { power } else { -power })
    };
    spoilt(k, |side, i, x| normal(x) * powers(side, i));
    // The largest of each row meets a 0; what is left is tiny.
    spoilt(k, |side, i, x| match (side, i % k) {
        (0, 0) => 1.0,
        (0, _) => normal(x) * 2f32.powi(-60),
        (_, 0) => 0.0,
        _ => normal(x),
    });
    // Subnormal numbers beside a normal one.
    spoilt(k, |side, i, x| match (side, i % k) {
        (0, 0) => 2f32.powi(-90),
        (0, _) => normal(x) * 2f32.powi(-138),
        (_, 0) => 0.0,
        _ => 1e20 * normal(x),
    });
    // Nothing but subnormal numbers.
    holds(k, |side, _, x| if side == 0 { normal(x) * 2f32.powi(-130) } else { 2f32.powi(60) * normal(x) });
}
