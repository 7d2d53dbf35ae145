//! The arithmetic of attention of f32 on units, step by step as the kernels and the units do it, against f64 and attention
//! in plain f32.

use super::split::{even, half, multiply_add_in, noise, normal};

/// Keys that a tile has.
const WIDE: usize = 32;

/// What a unit makes of 16 products and a sum. Those of an H200 keep two bits more than a sum has.
fn multiply_add(a: &[f32], b: &[f32], c: f32) -> f32 {
    multiply_add_in(26, a, b, c)
}

/// A power of two that brings `size` to `2^14 .. 2^15`.
fn up(size: f32) -> f32 {
    2f32.powi((141 - (size.to_bits() >> 23) as i32).clamp(-126, 126))
}

fn largest<'n>(x: impl IntoIterator<Item = &'n f32>) -> f32 {
    x.into_iter().fold(0f32, |m, x| m.max(x.abs()))
}

/// Numbers times `by` as high and low parts.
fn parts(x: impl IntoIterator<Item = f32>, by: f32) -> [Vec<f32>; 2] {
    let split = |x: f32| {
        let y = x * by;
        let hi = half(y);
        (hi, half((y - hi) * 2048.0))
    };
    let (high, low) = x.into_iter().map(split).unzip();
    [high, low]
}

/// A product of split numbers, as one tile makes it: `fresh` if high parts of every 16 have a sum of their own.
fn product(a: &[Vec<f32>; 2], b: &[Vec<f32>; 2], fresh: bool) -> f32 {
    let (mut c, mut d) = (0f32, 0f32);
    for k in (0..a[0].len()).step_by(16) {
        let of = |x: &[Vec<f32>; 2], part: usize| x[part][k..(k + 16).min(x[part].len())].to_vec();
        d = multiply_add(&of(a, 1), &of(b, 0), d);
        c = match fresh {
            true => c + multiply_add(&of(a, 0), &of(b, 0), 0.0),
            false => multiply_add(&of(a, 0), &of(b, 0), c),
        };
        d = multiply_add(&of(a, 0), &of(b, 1), d);
    }
    c + d * 0.000_488_281_25
}

/// Queries, keys, values, and the result's gradient, by rows of `d`.
struct Head {
    d: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dy: Vec<f32>,
}

/// The result, and the gradients of queries, keys and values.
type Made<T> = [Vec<T>; 4];

impl Head {
    fn new(rows: usize, d: usize, number: impl Fn(usize, usize, u32) -> f32) -> Head {
        let [q, k, v, dy] = [0, 1, 2, 3].map(|part| {
            noise(rows * d, 7 + 100 * part as u32)
                .into_iter()
                .enumerate()
                .map(|(i, x)| number(part, i, x))
                .collect()
        });
        Head { d, q, k, v, dy }
    }

    fn rows(&self) -> usize {
        self.q.len() / self.d
    }

    fn scale(&self) -> f64 {
        1.0 / (self.d as f64).sqrt()
    }

    fn in_f64(&self) -> Made<f64> {
        let (d, n) = (self.d, self.rows());
        let mut made: Made<f64> = std::array::from_fn(|_| vec![0.0; n * d]);
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        for i in 0..n {
            let [q, dy] = [&self.q, &self.dy].map(|x| &x[i * d..][..d]);
            let scores: Vec<f64> = self.k.chunks(d).map(|k| dot(q, k) * self.scale()).collect();
            let top = scores.iter().fold(f64::MIN, |m, x| m.max(*x));
            let total: f64 = scores.iter().map(|x| (x - top).exp()).sum();
            let p: Vec<f64> = scores.iter().map(|x| (x - top).exp() / total).collect();
            for (p, v) in p.iter().zip(self.v.chunks(d)) {
                (0..d).for_each(|c| made[0][i * d + c] += p * f64::from(v[c]));
            }
            let delta: f64 = (0..d).map(|c| made[0][i * d + c] * f64::from(dy[c])).sum();
            for (j, p) in p.iter().enumerate() {
                let slope = p * (dot(dy, &self.v[j * d..][..d]) - delta) * self.scale();
                for c in 0..d {
                    made[1][i * d + c] += slope * f64::from(self.k[j * d + c]);
                    made[2][j * d + c] += slope * f64::from(q[c]);
                    made[3][j * d + c] += p * f64::from(dy[c]);
                }
            }
        }
        made
    }

    /// The same in f32: `products` gives all of rows with rows, `sums` adds weights times rows.
    fn in_f32(&self, split: bool) -> Made<f32> {
        let (d, n) = (self.d, self.rows());
        let factor = self.scale() as f32 * std::f32::consts::LOG2_E;
        let mut made: Made<f32> = std::array::from_fn(|_| vec![0.0; n * d]);
        let scores = self.products(&self.q, &self.k, split, true);
        let mut p = vec![0f32; n * n];
        for i in 0..n {
            let x: Vec<f32> = scores[i * n..][..n].iter().map(|x| x * factor).collect();
            let top = x.iter().fold(f32::MIN, |m, x| m.max(*x));
            // The kernel's top lags behind; what weights are relative to is exact.
            let weights: Vec<f32> = x.iter().map(|x| (x - top).exp2()).collect();
            let sum: f32 = weights.iter().sum();
            let y = self.sums(&weights, &self.v, 128.0, split);
            (0..d).for_each(|c| made[0][i * d + c] = y[c] * (1.0 / sum));
            let lse = top + sum.log2();
            (0..n).for_each(|j| p[i * n + j] = (x[j] - lse).exp2());
        }
        let slopes = self.products(&self.dy, &self.v, split, true);
        let delta: Vec<f32> = made[0]
            .chunks(d)
            .zip(self.dy.chunks(d))
            .map(|(y, dy)| y.iter().zip(dy).map(|(y, g)| y * g).sum())
            .collect();
        let ds: Vec<f32> = (0..n * n).map(|at| p[at] * (slopes[at] - delta[at / n])).collect();
        let turned = |x: &[f32], j: usize| (0..n).map(|i| x[i * n + j]).collect::<Vec<f32>>();
        for i in 0..n {
            let scale = self.scale() as f32;
            let all = [
                (1, self.sums(&ds[i * n..][..n], &self.k, 0.0, split), scale),
                (2, self.sums(&turned(&ds, i), &self.q, 0.0, split), scale),
                (3, self.sums(&turned(&p, i), &self.dy, 16384.0, split), 1.0),
            ];
            for (of, sums, scale) in all {
                (0..d).for_each(|c| made[of][i * d + c] = sums[c] * scale);
            }
        }
        made
    }

    fn products(&self, a: &[f32], b: &[f32], split: bool, fresh: bool) -> Vec<f32> {
        let mut all = Vec::new();
        for x in a.chunks(self.d) {
            let ux = up(largest(x));
            let own = parts(x.iter().copied(), ux);
            for tile in b.chunks(WIDE * self.d) {
                let ut = up(largest(tile));
                for y in tile.chunks(self.d) {
                    all.push(match split {
                        true => product(&own, &parts(y.iter().copied(), ut), fresh) * (1.0 / ux * (1.0 / ut)),
                        false => x.iter().zip(y).fold(0f32, |sum, (x, y)| x.mul_add(*y, sum)),
                    });
                }
            }
        }
        all
    }

    /// Weights, which are multiplied with `by`, or what their largest wants where that is 0, times rows.
    fn sums(&self, weights: &[f32], rows: &[f32], by: f32, split: bool) -> Vec<f32> {
        let d = self.d;
        let mut sums = vec![0f32; d];
        if !split {
            for (p, row) in weights.iter().zip(rows.chunks(d)) {
                (0..d).for_each(|c| sums[c] = p.mul_add(row[c], sums[c]));
            }
            return sums;
        }
        for (p, tile) in weights.chunks(WIDE).zip(rows.chunks(WIDE * d)) {
            let by = if by == 0.0 { up(largest(p)).min(2f32.powi(60)) } else { by };
            let ut = up(largest(tile));
            let p = parts(p.iter().copied(), by);
            for (c, sum) in sums.iter_mut().enumerate() {
                let column = parts(tile.iter().skip(c).step_by(d).copied(), ut);
                *sum += product(&p, &column, false) * (1.0 / by * (1.0 / ut));
            }
        }
        sums
    }
}

/// Roots of the mean squares of errors relative to the largest numbers, of each result: the largest errors are those of a
/// few numbers that cancel, in either.
fn errors(made: &Made<f32>, want: &Made<f64>) -> [f64; 4] {
    std::array::from_fn(|i| {
        let most = want[i].iter().fold(0f64, |m, x| m.max(x.abs()));
        let off = made[i].iter().zip(&want[i]).map(|(x, y)| (f64::from(*x) - y).powi(2));
        (off.sum::<f64>() / want[i].len() as f64).sqrt() / most
    })
}

#[track_caller]
fn holds(name: &str, rows: usize, d: usize, number: impl Fn(usize, usize, u32) -> f32) {
    let head = Head::new(rows, d, number);
    let want = head.in_f64();
    let [split, plain] = [true, false].map(|split| errors(&head.in_f32(split), &want));
    for (ours, plain) in split.into_iter().zip(plain) {
        assert!(ours <= 2.0 * plain.max(2f64.powi(-24)), "{name} {rows} x {d}: {split:?}, plain {plain:?}");
    }
}

#[test]
fn errors_are_at_most_twice_those_of_attention_in_f32() {
    for (rows, d) in [(96, 64), (133, 32)] {
        holds("even", rows, d, |_, _, x| even(x));
        holds("of one sign", rows, d, |_, _, x| even(x).abs());
        holds("steep", rows, d, |part, _, x| if part < 2 { 3.0 * normal(x) } else { normal(x) });
        holds("tiny gradients", rows, d, |part, _, x| {
            normal(x) * if part == 3 { 2f32.powi(-34) } else { 1.0 }
        });
        // Rows of sizes of their own, and of sizes that differ.
        holds("by rows", rows, d, |_, i, x| normal(x) * 2f32.powi((i / d % 7) as i32 * 2 - 8));
        holds("uneven", rows, d, |_, _, x| even(x) * 2f32.powi(-((x & 15) as i32)));
        holds("outliers", rows, d, |_, i, x| normal(x) * if i % d == 5 { 50.0 } else { 0.5 });
    }
}
