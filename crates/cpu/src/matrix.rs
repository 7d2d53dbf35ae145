//! Factorisations and solutions of small matrices: each on its own, in f64, spread over threads.

use rayon::prelude::*;
use wgrad_graph::{DType, Matrix, Out};

use crate::scan::Elem;
use crate::tail;
use crate::whole::Whole;

pub(crate) fn run(kind: Matrix, ins: &[Whole<'_>], out: Out, to: &mut [u8]) {
    match out.dtype {
        DType::F32 => typed::<f32>(kind, ins, out, to),
        _ => typed::<f64>(kind, ins, out, to),
    }
}

fn typed<T: Elem<State = f64>>(kind: Matrix, ins: &[Whole<'_>], out: Out, to: &mut [u8]) {
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    let to = &mut to[..out.shape.elems()];
    if to.is_empty() {
        return;
    }
    let shape = ins[0].out.shape;
    let n = shape[shape.rank() - 1];
    let count: usize = shape.dims()[..shape.rank() - 2].iter().product();
    let size = to.len() / count;
    let a: &[T] = ins[0].elems();
    let b: Option<&[T]> = ins.get(1).map(|b| b.elems());
    let one = |i: usize, to: &mut [T]| {
        let mut a: Vec<f64> = a[i * n * n..(i + 1) * n * n].iter().map(|x| x.state()).collect();
        let mut x: Vec<f64> = match b {
            Some(b) => b[i * size..(i + 1) * size].iter().map(|x| x.state()).collect(),
            None => vec![0.0; size],
        };
        match kind {
            Matrix::Cholesky => cholesky(n, &a, &mut x),
            Matrix::Triangular { upper, unit } => triangular(n, &a, &mut x, upper, unit),
            Matrix::Solve => solve(n, &mut a, &mut x),
            Matrix::Slogdet => x.copy_from_slice(&determinant(n, &mut a)[..2]),
            Matrix::Det => x[0] = determinant(n, &mut a)[2],
        }
        to.iter_mut().zip(x).for_each(|(y, x)| *y = T::elem(x));
    };
    if tail::parts(count * n * (n * n + size)) > 1 && count > 1 {
        to.par_chunks_mut(size).enumerate().for_each(|(i, to)| one(i, to));
    } else {
        to.chunks_mut(size).enumerate().for_each(|(i, to)| one(i, to));
    }
}

/// Two rows of `width` elements, `i` not `j`: the first to change, the second to read.
fn rows(x: &mut [f64], width: usize, i: usize, j: usize) -> (&mut [f64], &[f64]) {
    let (low, high) = x.split_at_mut(i.max(j) * width);
    if i < j {
        (&mut low[i * width..(i + 1) * width], &high[..width])
    } else {
        (&mut high[..width], &low[j * width..(j + 1) * width])
    }
}

/// `y -= f * x`.
fn less(y: &mut [f64], f: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y -= f * x);
}

/// Row by row: each element from those left of it and above.
fn cholesky(n: usize, a: &[f64], l: &mut [f64]) {
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|t| l[i * n + t] * l[j * n + t]).sum();
            let rest = a[i * n + j] - dot;
            if i > j {
                l[i * n + j] = rest / l[j * n + j];
            } else if rest > 0.0 {
                l[i * n + i] = rest.sqrt();
            } else {
                (0..n).for_each(|r| l[r * n..=r * n + r].fill(f64::NAN));
                return;
            }
        }
    }
}

fn triangular(n: usize, a: &[f64], x: &mut [f64], upper: bool, unit: bool) {
    let k = x.len() / n;
    for s in 0..n {
        let r = if upper { n - 1 - s } else { s };
        if !unit {
            x[r * k..(r + 1) * k].iter_mut().for_each(|x| *x /= a[r * n + r]);
        }
        for i in if upper { 0..r } else { r + 1..n } {
            let (to, from) = rows(x, k, i, r);
            less(to, a[i * n + r], from);
        }
    }
}

/// Brings the largest element of column `k` on or below the diagonal onto it; whether rows were exchanged.
fn exchange(n: usize, a: &mut [f64], k: usize, x: &mut [f64]) -> bool {
    let mut top = k;
    for i in k + 1..n {
        if a[i * n + k].abs() > a[top * n + k].abs() {
            top = i;
        }
    }
    let width = x.len() / n;
    if top != k {
        (0..n).for_each(|j| a.swap(k * n + j, top * n + j));
        (0..width).for_each(|j| x.swap(k * width + j, top * width + j));
    }
    top != k
}

fn solve(n: usize, a: &mut [f64], x: &mut [f64]) {
    let width = x.len() / n;
    for k in 0..n {
        exchange(n, a, k, x);
        let pivot = a[k * n + k];
        if pivot == 0.0 || pivot.is_nan() {
            x.fill(f64::NAN);
            return;
        }
        for i in k + 1..n {
            let f = a[i * n + k] / pivot;
            let (to, from) = rows(a, n, i, k);
            less(&mut to[k..], f, &from[k..]);
            let (to, from) = rows(x, width, i, k);
            less(to, f, from);
        }
    }
    triangular(n, a, x, true, false);
}

/// Sign, logarithm of the absolute value, value.
fn determinant(n: usize, a: &mut [f64]) -> [f64; 3] {
    let (mut sign, mut logs, mut det) = (1.0, 0.0, 1.0);
    for k in 0..n {
        if exchange(n, a, k, &mut []) {
            (sign, det) = (-sign, -det);
        }
        let pivot = a[k * n + k];
        if pivot == 0.0 {
            return [0.0, f64::NEG_INFINITY, 0.0];
        }
        if pivot.is_nan() {
            return [f64::NAN; 3];
        }
        sign *= pivot.signum();
        logs += pivot.abs().ln();
        det *= pivot;
        for i in k + 1..n {
            let f = a[i * n + k] / pivot;
            let (to, from) = rows(a, n, i, k);
            less(&mut to[k..], f, &from[k..]);
        }
    }
    [sign, logs, det]
}
