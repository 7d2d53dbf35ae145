//! Random numbers. Bits come from a counter (Philox), so element `i` of a stream does not depend on
//! partition, order or adapter; everything up to the last conversion is integer arithmetic, and that
//! conversion is exact, so the numbers are bit-equal everywhere. `stream` names the source; how often a
//! pass has drawn from it and the number of the step are part of the key.
//!
//! Normal and Gumbel are inverse distribution functions by table. The bit word `b` gives the odd number
//! `v = b | 1` and the probability `q = v / 2^33` below one half, of the lower tail or (bit 0 set) of the
//! upper. The table has 257 nodes on each octave of `v`, so that resolution follows the tail; between
//! nodes the value is interpolated linearly in 32-bit fixed point (error below 4e-6).

use std::f64::consts::PI;
use std::ops::Range;

use wgrad_graph::{DType, HostTensor, Op, Shape};

use super::{Operand, cast, pass_of, reshape};
use crate::pass::{OpenPass, Pass};
use crate::{Result, Tensor};

/// Intervals of an octave.
const CELLS: usize = 256;
/// Nodes of one tail: 32 octaves, each with both ends.
const TAIL: usize = 32 * (CELLS + 1);

/// A distribution by table: entry = `(value + shift) * 2^bits`.
struct Table {
    name: &'static str,
    make: fn() -> HostTensor,
    shift: u32,
    bits: u32,
}

/// Values between -6.3 and 6.3.
const NORMAL: Table = Table { name: "normal", make: normal_table, shift: 7, bits: 28 };
/// Values between -3.2 and 22.9.
const GUMBEL: Table = Table { name: "gumbel", make: gumbel_table, shift: 4, bits: 26 };

/// Values between 2^-27 and 22.9.
const EXPONENTIAL: Table = Table { name: "exponential", make: exponential_table, shift: 0, bits: 27 };

impl Table {
    /// The table of the function that takes the probability `q` of a tail and whether it is the upper.
    fn fill(&self, inverse: impl Fn(f64, bool) -> f64) -> HostTensor {
        let entry = |i: usize| {
            let (upper, octave, cell) = (i / TAIL == 1, i % TAIL / (CELLS + 1), i % (CELLS + 1));
            let q = (1.0 + cell as f64 / CELLS as f64) * f64::powi(2.0, -2 - octave as i32);
            let value = inverse(q, upper) + f64::from(self.shift);
            (value * f64::from(1 << self.bits)).round() as u32
        };
        let entries: Vec<u32> = (0..2 * TAIL).map(entry).collect();
        HostTensor::new([2 * TAIL], &entries).expect("the shape counts the entries")
    }

    /// The distribution's values at random bits, as f32.
    #[track_caller]
    fn values(&self, pass: OpenPass, bits: Tensor) -> Result<Tensor> {
        let to = bits.try_out()?.shape;
        let (table, bits) = (pass.table(self.name, self.make)?, reshape(bits, Shape::from([to.elems()]))?);
        let upper = bits.try_and(1)?;
        let odd = bits.try_or(1)?;
        let octave = odd.try_leading_zeros()?;
        // The fraction of the octave: its upper 8 bits are the cell, the others the place in the cell.
        let fraction = odd.try_shl(octave)?.try_shl(1)?;
        let (cell, place) = (fraction.try_shr(24)?, fraction.try_shl(8)?);
        let node = upper.try_mul(TAIL as i32)?.try_add(octave.try_mul(CELLS as i32 + 1)?)?.try_add(cell)?;
        let (left, right) = (table.try_gather(0, node)?, table.try_gather(0, node.try_add(1)?)?);
        let fixed = left.try_mul_high(place.try_not()?)?.try_add(right.try_mul_high(place)?)?;
        // Sign and magnitude, the magnitude rounded to the 24 bits that an f32 holds.
        let origin = fixed.number(f64::from(self.shift << self.bits), DType::U32)?;
        let negative = fixed.try_lt(origin)?;
        let magnitude = negative.try_select(origin.try_sub(fixed)?, fixed.try_sub(origin)?)?;
        let eight = magnitude.number(8.0, DType::U32)?;
        let excess = eight.try_sub(magnitude.try_leading_zeros()?.try_minimum(eight)?)?;
        let half = magnitude.number(1.0, DType::U32)?.try_shl(excess)?.try_shr(1)?;
        let rounded = magnitude.try_add(half)?.try_shr(excess)?.try_shl(excess)?;
        let float = cast(rounded, DType::F32)?.try_mul(f64::powi(2.0, -(self.bits as i32)))?;
        reshape(negative.try_select(float.try_neg()?, float)?, to)
    }
}

fn normal_table() -> HostTensor {
    NORMAL.fill(|q, upper| if upper { upper_quantile(q) } else { -upper_quantile(q) })
}

fn gumbel_table() -> HostTensor {
    GUMBEL.fill(|q, upper| if upper { -(-(-q).ln_1p()).ln() } else { -(-q.ln()).ln() })
}

fn exponential_table() -> HostTensor {
    // Above 0, also where the probability is less than an entry can tell from it: between entries of two
    // units at least one is left.
    let least = f64::powi(2.0, -26);
    EXPONENTIAL.fill(|q, upper| if upper { -q.ln() } else { (-(-q).ln_1p()).max(least) })
}

/// The `z` of which `P(Z > z) = q` for a standard normal `Z`; `q` at most one half.
fn upper_quantile(q: f64) -> f64 {
    // Abramowitz and Stegun 26.2.23 to 5e-4, then Newton on the logarithm of the tail.
    let t = (-2.0 * q.ln()).sqrt();
    let mut z = t
        - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
    for _ in 0..4 {
        let (tail, density) = (upper_tail(z), (-z * z / 2.0).exp() / (2.0 * PI).sqrt());
        z += (tail / q).ln() * tail / density;
    }
    z.max(0.0)
}

/// `P(Z > z)` for a standard normal `Z` and `z` not far below 0.
fn upper_tail(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / (2.0 * PI).sqrt();
    if z < 2.0 {
        let (mut term, mut sum, mut n) = (z, z, 1.0);
        while term.abs() > 1e-18 {
            n += 2.0;
            term *= z * z / n;
            sum += term;
        }
        return 0.5 - density * sum;
    }
    density / (1..=120).rev().fold(z, |f, k| z + f64::from(k) / f)
}

/// `x * scale + shift`, where `x` is at most `most`. The product passes a limit that it never reaches, so
/// that no driver can fuse it with the sum, which would round once instead of twice.
#[track_caller]
fn affine(x: Tensor, scale: f64, shift: f64, most: f64) -> Result<Tensor> {
    x.try_mul(scale)?.try_minimum(most * scale.abs())?.try_add(shift)
}

/// `x` as a float of the dtype of `like`, f32 beside other dtypes.
#[track_caller]
fn as_float_of(like: Tensor, x: Tensor) -> Result<Tensor> {
    let dtype = like.try_out()?.dtype;
    if dtype.is_float() { cast(x, dtype) } else { Ok(x) }
}

/// The draws behind the methods of [`Pass`] and [`Tensor`].
impl OpenPass {
    #[track_caller]
    fn bits(self, stream: &str, shape: Shape) -> Result<Tensor> {
        self.record(Op::Random, &self.random_key(stream)?, Some(shape), None)
    }

    #[track_caller]
    fn uniform(self, stream: &str, shape: Shape) -> Result<Tensor> {
        let whole = self.bits(stream, shape)?.try_shr(8)?;
        cast(whole, DType::F32)?.try_mul(f64::powi(2.0, -24))
    }

    #[track_caller]
    fn by_table(self, table: &Table, stream: &str, shape: Shape) -> Result<Tensor> {
        table.values(self, self.bits(stream, shape)?)
    }

    #[track_caller]
    fn bernoulli(self, stream: &str, shape: Shape, p: f64) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            refuse!(Argument, "bernoulli", "probability {p}");
        }
        let whole = self.bits(stream, shape)?.try_shr(8)?;
        whole.try_lt(self.number((p * f64::from(1 << 24)).round(), DType::U32)?)
    }
}

methods! { impl Pass, &Self;
    /// 32 random bits an element, as u32.
    rand_bits try_rand_bits(self, stream: &str, shape: impl Into<Shape>) -> Tensor {
        self.id().bits(stream, shape.into())
    }

    /// Uniform in `[0, 1)`: multiples of `2^-24`, all equally likely.
    rand try_rand(self, stream: &str, shape: impl Into<Shape>) -> Tensor {
        self.id().uniform(stream, shape.into())
    }

    /// Uniform in `range`, as f32; `range.end` is never drawn.
    uniform try_uniform(self, stream: &str, shape: impl Into<Shape>, range: Range<f32>) -> Tensor {
        let span = range.end - range.start;
        if !(span > 0.0 && span.is_finite()) {
            refuse!(Argument, "uniform", "{range:?} is empty, or not finite");
        }
        let unit = self.id().uniform(stream, shape.into())?;
        let x = affine(unit, f64::from(span), f64::from(range.start), 1.0)?;
        // The sum may round up to the end.
        x.try_minimum(range.end.next_down())
    }

    /// Normal with this mean and standard deviation, up to 6.2 standard deviations from the mean.
    normal try_normal(self, stream: &str, shape: impl Into<Shape>, mean: f64, std: f64) -> Tensor {
        if !(std >= 0.0 && std.is_finite()) {
            refuse!(Argument, "normal", "standard deviation {std}");
        }
        affine(self.id().by_table(&NORMAL, stream, shape.into())?, std, mean, 8.0)
    }

    /// Exponential with this rate, whose mean is `1 / rate`; above 0, up to `22.9 / rate`.
    exponential try_exponential(self, stream: &str, shape: impl Into<Shape>, rate: f64) -> Tensor {
        if !(rate > 0.0 && rate.is_finite()) {
            refuse!(Argument, "exponential", "rate {rate}");
        }
        self.id().by_table(&EXPONENTIAL, stream, shape.into())?.try_mul(rate.recip())
    }

    /// Normal with mean 0 and standard deviation 1, up to 6.2 standard deviations.
    randn try_randn(self, stream: &str, shape: impl Into<Shape>) -> Tensor {
        self.id().by_table(&NORMAL, stream, shape.into())
    }

    /// The whole numbers below `count` (i32) in random order, all orders equally likely but for ties among
    /// 32-bit draws.
    randperm try_randperm(self, stream: &str, count: usize) -> Tensor {
        self.id().bits(stream, Shape::from([count]))?.try_argsort(0, false)
    }

    /// Standard Gumbel: `-log(-log(u))`.
    gumbel try_gumbel(self, stream: &str, shape: impl Into<Shape>) -> Tensor {
        self.id().by_table(&GUMBEL, stream, shape.into())
    }

    /// True with probability `p` (to `2^-24`).
    bernoulli try_bernoulli(self, stream: &str, shape: impl Into<Shape>, p: f64) -> Tensor {
        self.id().bernoulli(stream, shape.into(), p)
    }

    /// Whole numbers of `range`, as i32, equally likely to `2^-32`.
    randint try_randint(self, stream: &str, shape: impl Into<Shape>, range: Range<i32>) -> Tensor {
        if range.is_empty() {
            refuse!(Argument, "randint", "{range:?} is empty");
        }
        let count = i64::from(range.end) - i64::from(range.start);
        let bits = self.id().bits(stream, shape.into())?;
        let from_zero = bits.try_mul_high(self.id().number(count as f64, DType::U32)?)?;
        cast(from_zero, DType::I32)?.try_add(range.start)
    }
}

methods! { impl Tensor, Self;
    /// Uniform in `[0, 1)` with this shape and float dtype.
    rand_like try_rand_like(self, stream: &str) -> Tensor {
        as_float_of(self, pass_of(self)?.uniform(stream, self.try_out()?.shape)?)
    }

    /// Standard normal with this shape and float dtype.
    randn_like try_randn_like(self, stream: &str) -> Tensor {
        as_float_of(self, pass_of(self)?.by_table(&NORMAL, stream, self.try_out()?.shape)?)
    }

    /// True with probability `x` (to `2^-24`), elementwise. No gradient.
    bernoulli try_bernoulli(self, stream: &str) -> Tensor {
        pass_of(self)?.uniform(stream, self.try_out()?.shape)?.try_lt(self)
    }

    /// Standard Gumbel with this shape.
    gumbel_like try_gumbel_like(self, stream: &str) -> Tensor {
        pass_of(self)?.by_table(&GUMBEL, stream, self.try_out()?.shape)
    }

    /// `x` with each element set to 0 with probability `p`, the others divided by `1 - p`.
    dropout try_dropout(self, stream: &str, p: f64) -> Tensor {
        if !(0.0..=1.0).contains(&p) {
            refuse!([self] Argument, "dropout", "probability {p}");
        }
        let kept = pass_of(self)?.bernoulli(stream, self.try_out()?.shape, 1.0 - p)?;
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        kept.try_select(self.try_mul(scale)?, 0.0)
    }

    /// An index (i32) along the last axis, drawn with probability `softmax(x / temperature)`; the first
    /// largest where the temperature is 0. No gradient.
    ///
    /// Shape: `[.., C] -> [..]`.
    /// Numerics: `argmax(x + temperature * gumbel)`; the noise is bit-equal on every adapter.
    categorical try_categorical(self, stream: &str, temperature: impl Operand) -> Tensor {
        let noise = pass_of(self)?.by_table(&GUMBEL, stream, self.try_out()?.shape)?;
        self.try_add(noise.try_mul(temperature)?)?.try_argmax(-1)
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LN_2;

    use super::*;

    /// The integer arithmetic of [`Table::values`] on the host.
    fn value(table: &Table, entries: &[u32], bits: u32) -> f32 {
        let odd = bits | 1;
        let octave = odd.leading_zeros();
        let fraction = odd << octave << 1;
        let (cell, place) = ((fraction >> 24) as usize, fraction << 8);
        let node = (bits & 1) as usize * TAIL + octave as usize * (CELLS + 1) + cell;
        let high = |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32;
        let fixed = high(entries[node], !place) + high(entries[node + 1], place);
        let origin = table.shift << table.bits;
        let magnitude = fixed.abs_diff(origin);
        let excess = 8 - magnitude.leading_zeros().min(8);
        let rounded = (magnitude + ((1 << excess) >> 1)) >> excess << excess;
        let float = rounded as f32;
        assert_eq!(float as u32, rounded, "the conversion is exact");
        let float = float * f32::powi(2.0, -(table.bits as i32));
        if fixed < origin { -float } else { float }
    }

    /// Well mixed words (Steele's splitmix).
    fn words(count: u64) -> impl Iterator<Item = u32> {
        (1..=count).map(|i| {
            let z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ (z >> 31)) as u32
        })
    }

    /// Largest distance between the samples' distribution and `cdf`.
    fn kolmogorov(samples: &mut [f64], cdf: impl Fn(f64) -> f64) -> f64 {
        samples.sort_by(f64::total_cmp);
        let n = samples.len() as f64;
        let gap =
            |(i, x): (usize, &f64)| (cdf(*x) - i as f64 / n).abs().max((cdf(*x) - (i + 1) as f64 / n).abs());
        samples.iter().enumerate().map(gap).fold(0.0, f64::max)
    }

    fn moments(samples: &[f64]) -> [f64; 4] {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let m = |k: i32| samples.iter().map(|x| (x - mean).powi(k)).sum::<f64>() / n;
        [mean, m(2).sqrt(), m(3) / m(2).powf(1.5), m(4) / m(2).powi(2)]
    }

    #[test]
    fn quantiles_have_the_known_values() {
        let known = [(0.5, 0.0), (0.25, 0.674_489_750_196_081_7), (0.025, 1.959_963_984_540_054)];
        let deep = [(1e-3, 3.090_232_306_167_813_5), (1e-9, 5.997_807_015_007_687)];
        for (q, z) in known.into_iter().chain(deep) {
            assert!((upper_quantile(q) - z).abs() < 1e-10, "{q}: {} is not {z}", upper_quantile(q));
        }
    }

    #[test]
    fn normal_interpolates_its_quantile() {
        let entries = normal_table().to_vec::<u32>();
        let probes = (0..32).flat_map(|s| words(200).map(move |w| w >> s));
        let worst = probes.map(|b| {
            let z = upper_quantile(f64::from(b | 1) * f64::powi(2.0, -33));
            (f64::from(value(&NORMAL, &entries, b)) - if b & 1 == 1 { z } else { -z }).abs()
        });
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 4e-6, "{worst}");
        assert!(value(&NORMAL, &entries, 1) > 6.0 && value(&NORMAL, &entries, 0) < -6.0);
        assert!(value(&NORMAL, &entries, u32::MAX).abs() < 1e-6);
    }

    #[test]
    fn normal_is_normal() {
        let entries = normal_table().to_vec::<u32>();
        let mut samples: Vec<f64> = words(1 << 20).map(|b| f64::from(value(&NORMAL, &entries, b))).collect();
        let [mean, std, skew, kurtosis] = moments(&samples);
        assert!(mean.abs() < 4e-3 && (std - 1.0).abs() < 3e-3, "{mean} {std}");
        assert!(skew.abs() < 0.01 && (kurtosis - 3.0).abs() < 0.02, "{skew} {kurtosis}");
        let cdf = |x: f64| if x < 0.0 { upper_tail(-x) } else { 1.0 - upper_tail(x) };
        // Critical distance at 1e-3: 1.95 / sqrt(n).
        assert!(kolmogorov(&mut samples, cdf) < 1.95 / 1024.0);
    }

    #[test]
    fn exponential_is_exponential() {
        let entries = exponential_table().to_vec::<u32>();
        let mut samples: Vec<f64> =
            words(1 << 20).map(|b| f64::from(value(&EXPONENTIAL, &entries, b))).collect();
        let [mean, std, skew, _] = moments(&samples);
        assert!((mean - 1.0).abs() < 4e-3 && (std - 1.0).abs() < 6e-3 && (skew - 2.0).abs() < 0.05);
        assert!(kolmogorov(&mut samples, |x| 1.0 - (-x).exp()) < 1.95 / 1024.0);
        assert!(value(&EXPONENTIAL, &entries, 0) > 0.0);
        let extreme = f64::from(value(&EXPONENTIAL, &entries, 1));
        assert!((extreme - 33.0 * LN_2).abs() < 1e-5, "{extreme}");
    }

    #[test]
    fn gumbel_is_gumbel() {
        let entries = gumbel_table().to_vec::<u32>();
        let mut samples: Vec<f64> = words(1 << 20).map(|b| f64::from(value(&GUMBEL, &entries, b))).collect();
        let [mean, std, ..] = moments(&samples);
        assert!((mean - 0.577_215_664_9).abs() < 6e-3, "{mean}");
        assert!((std - PI / 6f64.sqrt()).abs() < 6e-3, "{std}");
        assert!(kolmogorov(&mut samples, |x| (-(-x).exp()).exp()) < 1.95 / 1024.0);
        let extreme = f64::from(value(&GUMBEL, &entries, 1));
        assert!((extreme - 33.0 * LN_2).abs() < 1e-5, "{extreme}");
    }
}
