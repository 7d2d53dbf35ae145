//! Results of operations that move memory, worked out in f64 by plain loops that share no code with any device.

use crate::row::Input;
use crate::threads::{fill, ranges};

/// Writes the elements from a place on.
type Fill<'a> = Box<dyn Fn(usize, &mut [f64]) + Sync + 'a>;

/// What a result has to be.
pub struct Want<'a> {
    /// Number of elements.
    pub elems: usize,
    /// Elements are asked for in multiples of this.
    pub unit: usize,
    /// Writes the elements from a multiple of the unit on.
    pub fill: Fill<'a>,
}

impl<'a> Want<'a> {
    fn of(elems: usize, unit: usize, fill: impl Fn(usize, &mut [f64]) + Sync + 'a) -> Want<'a> {
        Want { elems, unit, fill: Box::new(fill) }
    }

    /// By a function of the place.
    fn each(elems: usize, f: impl Fn(usize) -> f64 + Sync + 'a) -> Want<'a> {
        Want::of(elems, 1, move |from, out| out.iter_mut().zip(from..).for_each(|(y, i)| *y = f(i)))
    }

    /// By a function of the number of the row, one row after the other.
    fn rows(rows: usize, n: usize, f: impl Fn(usize, &mut [f64]) + Sync + 'a) -> Want<'a> {
        Want::of(rows * n, n, move |from, out| {
            out.chunks_exact_mut(n).zip(from / n..).for_each(|(y, row)| f(row, y));
        })
    }

    /// All of them.
    pub fn known(all: Vec<f64>) -> Want<'a> {
        Want::each(all.len(), move |i| all[i])
    }

    /// The largest difference of `got`, relative to the largest number that is wanted. `got(from, out)` writes its
    /// elements.
    pub fn off(&self, got: impl Fn(usize, &mut [f64]) + Sync) -> f64 {
        let units = self.elems / self.unit;
        let step = ((1 << 13) / self.unit).max(1);
        let parts = ranges(units, self.unit, |part| {
            let (mut most, mut largest) = (0f64, f64::MIN_POSITIVE);
            let mut both = [vec![0.0; step * self.unit], vec![0.0; step * self.unit]];
            for from in part.clone().step_by(step) {
                let len = step.min(part.end - from) * self.unit;
                let [want, found] = both.each_mut().map(|x| &mut x[..len]);
                (self.fill)(from * self.unit, want);
                got(from * self.unit, found);
                for (want, found) in want.iter().zip(found.iter()) {
                    let off = (want - found).abs();
                    most = if off.is_nan() { f64::INFINITY } else { most.max(off) };
                    largest = largest.max(want.abs());
                }
            }
            (most, largest)
        });
        let largest = parts.iter().fold(f64::MIN_POSITIVE, |m, part| m.max(part.1));
        parts.iter().fold(0f64, |m, part| m.max(part.0)) / largest
    }
}

/// A number for each row.
fn of_rows(x: &[f32], n: usize, f: impl Fn(usize, &[f32]) -> f64 + Sync) -> Vec<f64> {
    let rows = x.len() / n;
    let all = ranges(rows, n, |part| part.map(|row| f(row, &x[row * n..][..n])).collect::<Vec<_>>());
    all.concat()
}

/// Sums over rows of a term by row and column.
fn over_rows(rows: usize, n: usize, term: impl Fn(usize, usize) -> f64 + Sync) -> Vec<f64> {
    let parts = ranges(rows, n, |part| {
        let mut sums = vec![0.0; n];
        for row in part {
            sums.iter_mut().enumerate().for_each(|(j, sum)| *sum += term(row, j));
        }
        sums
    });
    (0..n).map(|j| parts.iter().map(|part| part[j]).sum()).collect()
}

fn mean(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    x.iter().map(|x| f(f64::from(*x))).sum::<f64>() / x.len() as f64
}

fn largest(x: &[f32]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)))
}

/// The logarithm of the sum of the exponentials of each row.
fn log_sums(x: &[f32], n: usize) -> Vec<f64> {
    of_rows(x, n, |_, x| {
        let top = largest(x);
        top + x.iter().map(|x| (f64::from(*x) - top).exp()).sum::<f64>().ln()
    })
}

/// Rows less their means, over their deviations.
struct Normed<'a> {
    x: &'a [f32],
    n: usize,
    means: Vec<f64>,
    /// One over the deviations.
    rates: Vec<f64>,
}

impl Normed<'_> {
    fn new(x: &[f32], n: usize) -> Normed<'_> {
        let means = of_rows(x, n, |_, x| mean(x, |x| x));
        let rates = of_rows(x, n, |row, x| 1.0 / (mean(x, |x| (x - means[row]).powi(2)) + 1e-5).sqrt());
        Normed { x, n, means, rates }
    }

    fn at(&self, row: usize, j: usize) -> f64 {
        (f64::from(self.x[row * self.n + j]) - self.means[row]) * self.rates[row]
    }
}

/// What the operation of a row gives from the operands' elements; `None` for those that are left to the oracle.
pub fn by_hand<'a>(op: &str, inputs: &[Input], x: &'a [Vec<f32>]) -> Option<Vec<Want<'a>>> {
    let dims = &inputs[0].dims;
    let (n, all) = (dims[dims.len() - 1], inputs[0].elems());
    let rows = all / n;
    let at = move |i: usize, place: usize| f64::from(x[i][place]);
    let row = move |i: usize, row: usize| &x[i][row * n..][..n];
    Some(match op {
        "scale" => vec![Want::each(all, move |i| 2.0 * at(0, i) + 1.0)],
        "transpose" => {
            vec![Want::rows(n, rows, move |j, out| {
                out.iter_mut().enumerate().for_each(|(i, y)| *y = 2.0 * at(0, i * n + j));
            })]
        }
        "sum" => {
            let parts = ranges(all, 1, |part| x[0][part].iter().map(|x| f64::from(*x)).sum::<f64>());
            vec![Want::known(vec![parts.iter().sum()])]
        }
        "sum_rows" => vec![Want::known(over_rows(rows, n, |row, j| at(0, row * n + j)))],
        "sum_columns" => vec![Want::known(of_rows(&x[0], n, |_, x| x.iter().map(|x| f64::from(*x)).sum()))],
        "cumsum" => {
            let mut sum = 0.0;
            vec![Want::known(x[0].iter().map(|x| (sum += f64::from(*x), sum).1).collect())]
        }
        "sort" => {
            let mut sorted = x[0].clone();
            sorted.sort_unstable_by(f32::total_cmp);
            vec![Want::each(all, move |i| f64::from(sorted[i]))]
        }
        "softmax" => {
            let sums = log_sums(&x[0], n);
            vec![Want::rows(rows, n, move |r, y| {
                y.iter_mut().zip(row(0, r)).for_each(|(y, x)| *y = (f64::from(*x) - sums[r]).exp());
            })]
        }
        "softmax_backward" => {
            let sums = log_sums(&x[0], n);
            vec![Want::rows(rows, n, move |r, y| {
                y.iter_mut().zip(row(0, r)).for_each(|(y, x)| *y = (f64::from(*x) - sums[r]).exp());
                let dot: f64 = y.iter().zip(row(1, r)).map(|(y, g)| y * f64::from(*g)).sum();
                y.iter_mut().zip(row(1, r)).for_each(|(y, g)| *y *= f64::from(*g) - dot);
            })]
        }
        "layer_norm" => {
            let normed = Normed::new(&x[0], n);
            vec![Want::rows(rows, n, move |r, y| {
                y.iter_mut().enumerate().for_each(|(j, y)| *y = normed.at(r, j) * at(1, j) + at(2, j));
            })]
        }
        "layer_norm_backward" => {
            let normed = Normed::new(&x[0], n);
            let weights = over_rows(rows, n, |row, j| at(3, row * n + j) * normed.at(row, j));
            let biases = over_rows(rows, n, |row, j| at(3, row * n + j));
            let gradient = move |r: usize, y: &mut [f64]| {
                y.iter_mut().enumerate().for_each(|(j, y)| *y = at(3, r * n + j) * at(1, j));
                let means =
                    [y.iter().sum::<f64>(), y.iter().enumerate().map(|(j, y)| y * normed.at(r, j)).sum()]
                        .map(|sum| sum / n as f64);
                for (j, y) in y.iter_mut().enumerate() {
                    *y = normed.rates[r] * (*y - means[0] - normed.at(r, j) * means[1]);
                }
            };
            vec![Want::rows(rows, n, gradient), Want::known(weights), Want::known(biases)]
        }
        "cross_entropy" => {
            let sums = log_sums(&x[0], n);
            let of = move |r: usize| x[1][r] as usize;
            let loss = sums.iter().enumerate().map(|(r, sum)| sum - at(0, r * n + of(r))).sum::<f64>();
            let gradient = Want::rows(rows, n, move |r, y| {
                y.iter_mut().zip(row(0, r)).for_each(|(y, x)| *y = (f64::from(*x) - sums[r]).exp());
                y[of(r)] -= 1.0;
                y.iter_mut().for_each(|y| *y /= rows as f64);
            });
            vec![Want::known(vec![loss / rows as f64]), gradient]
        }
        "embedding" | "gather" => {
            let width = all / dims[0];
            vec![Want::each(x[1].len() * width, move |i| at(0, x[1][i / width] as usize * width + i % width))]
        }
        "embedding_backward" | "index_add" => {
            let width = all / dims[0];
            let mut sums: Vec<f64> = match op {
                "index_add" => x[0].iter().map(|x| f64::from(*x)).collect(),
                _ => vec![0.0; all],
            };
            for (i, id) in x[1].iter().enumerate() {
                let (to, from) = (&mut sums[*id as usize * width..][..width], &x[2][i * width..][..width]);
                to.iter_mut().zip(from).for_each(|(y, x)| *y += f64::from(*x));
            }
            vec![Want::known(sums)]
        }
        "adamw" => {
            let mean = move |i: usize| 0.9 * at(2, i) + (1.0 - 0.9) * at(1, i);
            let square = move |i: usize| 0.999 * at(3, i) + (1.0 - 0.999) * at(1, i).powi(2);
            let weight = move |i: usize| {
                let step = mean(i) / (1.0 - 0.9) / ((square(i) / (1.0 - 0.999)).sqrt() + 1e-8);
                at(0, i) - 1e-3 * (step + 0.01 * at(0, i))
            };
            vec![Want::each(all, weight), Want::each(all, mean), Want::each(all, square)]
        }
        _ => return None,
    })
}

/// Elements by a function that writes them from a place on, all at once.
pub fn gathered<T: Clone + Default + Send>(n: usize, f: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
    let mut all = vec![T::default(); n];
    fill(&mut all, 1, f);
    all
}
