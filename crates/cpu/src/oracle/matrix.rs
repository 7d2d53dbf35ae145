//! Systems of equations and determinants, by other ways than the executors take.

use std::sync::Arc;

use wgrad_graph::{Matrix, Out};

use super::value::{Data, Value};

/// A square matrix, or the columns beside one: rows of f64.
type Rows = Vec<Vec<f64>>;

fn rows(x: &Value, at: usize, n: usize) -> Rows {
    let shape = x.out.shape;
    let width = shape[shape.rank() - 1];
    let Data::Float(x) = &x.data else { unreachable!("floats alone, checked when recorded") };
    (0..n).map(|i| x[(at * n + i) * width..(at * n + i + 1) * width].to_vec()).collect()
}

pub(super) fn matrix(kind: Matrix, out: Out, ins: &[Arc<Value>]) -> Value {
    let shape = ins[0].out.shape;
    let n = shape[shape.rank() - 1];
    let count: usize = shape.dims()[..shape.rank() - 2].iter().product();
    let mut y = Vec::with_capacity(out.shape.elems());
    for at in 0..count {
        let a = rows(&ins[0], at, n);
        match kind {
            Matrix::Cholesky => y.extend(cholesky(&a).concat()),
            Matrix::Triangular { upper, unit } => {
                let half = |i: usize, j: usize| match i == j {
                    true if unit => 1.0,
                    true => a[i][j],
                    false => {
                        if upper == (i < j) {
                            a[i][j]
                        } else {
                            0.0
                        }
                    }
                };
                let half: Rows = (0..n).map(|i| (0..n).map(|j| half(i, j)).collect()).collect();
                let order: Vec<usize> = if upper { (0..n).rev().collect() } else { (0..n).collect() };
                y.extend(substituted(&half, &rows(&ins[1], at, n), &order).concat());
            }
            Matrix::Solve => y.extend(solved(a, rows(&ins[1], at, n)).concat()),
            Matrix::Slogdet => y.extend(&determinant(a)[..2]),
            Matrix::Det => y.push(determinant(a)[2]),
        }
    }
    Value::floats(out, y)
}

/// Column by column, each taken off what is left.
fn cholesky(a: &Rows) -> Rows {
    let n = a.len();
    let (mut left, mut l) = (a.clone(), vec![vec![0.0; n]; n]);
    for k in 0..n {
        let root = left[k][k].sqrt();
        if left[k][k] <= 0.0 || left[k][k].is_nan() {
            return (0..n).map(|i| (0..n).map(|j| if j <= i { f64::NAN } else { 0.0 }).collect()).collect();
        }
        for i in k..n {
            l[i][k] = left[i][k] / root;
        }
        for i in k..n {
            for j in k..=i {
                left[i][j] -= l[i][k] * l[j][k];
            }
        }
    }
    l
}

/// The unknowns in `order`, each from those before it.
fn substituted(a: &Rows, b: &Rows, order: &[usize]) -> Rows {
    let mut x: Rows = b.iter().map(|row| vec![0.0; row.len()]).collect();
    for (s, &i) in order.iter().enumerate() {
        for c in 0..b[i].len() {
            let known: f64 = order[..s].iter().map(|&t| a[i][t] * x[t][c]).sum();
            x[i][c] = (b[i][c] - known) / a[i][i];
        }
    }
    x
}

/// The row at or below `k` with the largest element in column `k`.
fn pivot(a: &Rows, k: usize) -> usize {
    (k..a.len()).fold(k, |top, i| if a[i][k].abs() > a[top][k].abs() { i } else { top })
}

/// Gauss: below its diagonal `a` becomes 0, and `x` changes with it. Whether rows were exchanged an odd number
/// of times; `None` at a pivot of 0. Determinants and solutions see the same pivots.
fn eliminated(a: &mut Rows, x: &mut Rows) -> Option<bool> {
    let mut turned = false;
    for k in 0..a.len() {
        let top = pivot(a, k);
        turned ^= top != k;
        a.swap(k, top);
        x.swap(k, top);
        let p = a[k][k];
        if p == 0.0 {
            return None;
        }
        for i in k + 1..a.len() {
            let f = a[i][k] / p;
            for rows in [&mut *a, &mut *x] {
                let from = rows[k].clone();
                rows[i].iter_mut().zip(from).for_each(|(y, e)| *y -= f * e);
            }
        }
    }
    Some(turned)
}

fn solved(mut a: Rows, mut x: Rows) -> Rows {
    let good = eliminated(&mut a, &mut x).is_some() && (0..a.len()).all(|k| !a[k][k].is_nan());
    if !good {
        return x.iter().map(|row| vec![f64::NAN; row.len()]).collect();
    }
    let order: Vec<usize> = (0..a.len()).rev().collect();
    substituted(&a, &x, &order)
}

/// Sign, logarithm of the absolute value, value.
fn determinant(mut a: Rows) -> [f64; 3] {
    let mut none = vec![Vec::new(); a.len()];
    let Some(turned) = eliminated(&mut a, &mut none) else { return [0.0, f64::NEG_INFINITY, 0.0] };
    let pivots: Vec<f64> = (0..a.len()).map(|k| a[k][k]).collect();
    if pivots.iter().any(|p| p.is_nan()) {
        return [f64::NAN; 3];
    }
    let odd = turned ^ (pivots.iter().filter(|p| **p < 0.0).count() % 2 == 1);
    let sign = if odd { -1.0 } else { 1.0 };
    let size: f64 = pivots.iter().map(|p| p.abs()).product();
    [sign, pivots.iter().map(|p| p.abs().ln()).sum(), sign * size]
}
