//! Operations along lines, as their definitions read.

use std::sync::Arc;

use wgrad_graph::{DType, Out, Scan, Shape};

use super::eval::{ravel, unravel};
use super::value::{Data, Value, wrap};
use crate::scan::{follows, log_add_exp};

/// The elements of each line along `axis`, in order.
fn lines(shape: Shape, axis: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for i in 0..shape.elems() {
        let mut at = unravel(i, shape);
        if at[axis] == 0 {
            let mut line = Vec::with_capacity(shape[axis]);
            for t in 0..shape[axis] {
                at[axis] = t;
                line.push(ravel(&at, shape));
            }
            all.push(line);
        }
    }
    all
}

pub(super) fn scan(kind: Scan, out: Out, ins: &[Arc<Value>], axis: usize, reverse: bool) -> Value {
    let mut lines = lines(out.shape, axis);
    if reverse {
        lines.iter_mut().for_each(|line| line.reverse());
    }
    let last = out.shape.dims().get(axis).map_or(0, |n| n.saturating_sub(1)) as i64;
    let place = |t: usize| if reverse { last - t as i64 } else { t as i64 };
    match &ins[0].data {
        Data::Float(x) if out.dtype.is_float() => {
            let mut y = vec![0.0; x.len()];
            for line in &lines {
                let mut before: Option<f64> = None;
                for &e in line {
                    let now = match (kind, before) {
                        (Scan::Recur, None) => float(&ins[1], e),
                        (Scan::Recur, Some(h)) => x[e] * h + float(&ins[1], e),
                        (_, None) => x[e],
                        (Scan::Prod, Some(h)) => h * x[e],
                        (Scan::LogAddExp, Some(h)) => log_add_exp(h, x[e]),
                        (_, Some(h)) => h + x[e],
                    };
                    y[e] = now;
                    before = Some(now);
                }
            }
            Value::floats(out, y)
        }
        Data::Float(x) => arg(kind, out, &lines, place, |e| x[e], |x| x.is_nan()),
        Data::Int(x) if matches!(kind, Scan::ArgMax | Scan::ArgMin) => {
            arg(kind, out, &lines, place, |e| x[e], |_| false)
        }
        Data::Int(x) => {
            let mut y = vec![0i64; x.len()];
            for line in &lines {
                let mut before: Option<i64> = None;
                for &e in line {
                    let now = match (kind, before) {
                        (Scan::Recur, None) => ins[1].int(e),
                        (Scan::Recur, Some(h)) => x[e].wrapping_mul(h).wrapping_add(ins[1].int(e)),
                        (_, None) => x[e],
                        (Scan::Prod, Some(h)) => h.wrapping_mul(x[e]),
                        (_, Some(h)) => h.wrapping_add(x[e]),
                    };
                    y[e] = wrap(now, out.dtype);
                    before = Some(y[e]);
                }
            }
            Value::ints(out, y)
        }
    }
}

fn float(x: &Value, e: usize) -> f64 {
    match &x.data {
        Data::Float(x) => x[e],
        Data::Int(x) => x[e] as f64,
    }
}

fn arg<T: Copy + PartialOrd>(
    kind: Scan,
    out: Out,
    lines: &[Vec<usize>],
    place: impl Fn(usize) -> i64,
    x: impl Fn(usize) -> T,
    nan: impl Fn(&T) -> bool,
) -> Value {
    debug_assert_eq!(out.dtype, DType::I32);
    let mut y = vec![0i64; out.shape.elems()];
    for line in lines {
        let mut best = 0;
        for (t, &e) in line.iter().enumerate() {
            if t == 0 || follows(kind == Scan::ArgMax, x(e), x(line[best]), &nan) {
                best = t;
            }
            y[e] = place(best);
        }
    }
    Value::ints(out, y)
}

pub(super) fn argsort(out: Out, x: &Value, axis: usize, descending: bool) -> Value {
    let mut y = vec![0i64; out.shape.elems()];
    for line in lines(out.shape, axis) {
        let mut order: Vec<usize> = (0..line.len()).collect();
        // Sorting is stable, in both directions.
        match &x.data {
            Data::Float(x) => order.sort_by(|a, b| {
                let (a, b) = (x[line[*a]], x[line[*b]]);
                let rising = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
                if descending { rising.reverse() } else { rising }
            }),
            Data::Int(x) => order.sort_by(|a, b| {
                let rising = x[line[*a]].cmp(&x[line[*b]]);
                if descending { rising.reverse() } else { rising }
            }),
        }
        for (e, t) in line.iter().zip(order) {
            y[*e] = t as i64;
        }
    }
    Value::ints(out, y)
}
