//! Attention and its gradients, as their definitions read: every weight is computed alone.

use std::sync::Arc;

use wgrad_graph::{Attend, Heads, Out};

use super::value::{Data, Value, each};

fn at(x: &Value, i: [usize; 4]) -> f64 {
    let shape = x.out.shape;
    let place = (0..shape.rank()).fold(0, |place, axis| place * shape[axis] + i[axis]);
    match &x.data {
        Data::Float(x) => x[place],
        Data::Int(x) => x[place] as f64,
    }
}

/// The elements along the last axis.
fn line(x: &Value, [b, h, i]: [usize; 3]) -> &[f64] {
    let (Data::Float(all), shape) = (&x.data, x.out.shape) else {
        unreachable!("floats, checked when recorded")
    };
    &all[((b * shape[1] + h) * shape[2] + i) * shape[3]..][..shape[3]]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The sum of lines, each times its factor, one after the other.
fn weighed<'a>(n: usize, terms: impl Iterator<Item = (f64, &'a [f64])>) -> Vec<f64> {
    let mut y = vec![0.0; n];
    for (factor, line) in terms {
        y.iter_mut().zip(line).for_each(|(y, x)| *y += factor * x);
    }
    y
}

/// The weights `[B, H, L, S]`.
fn weights(attend: Attend, heads: Heads, ins: &[Arc<Value>]) -> Vec<f64> {
    let Heads { b, h, l, s, d, .. } = heads;
    let scale = attend.scale(d);
    let row = |row: usize| -> Vec<f64> {
        let (z, head, i) = (row / (h * l), row / l % h, row % l);
        let group = head / heads.shared();
        let q = line(&ins[0], [z, head, i]);
        let score = |j: usize| {
            let dot = dot(q, line(&ins[1], [z, group, j]));
            let mask = if attend.masked { at(&ins[3], [z, head, i, j]) } else { 0.0 };
            let truth = attend.masked && !ins[3].out.dtype.is_float();
            let seen = j < attend.seen(i, s) && if truth { mask != 0.0 } else { mask != f64::NEG_INFINITY };
            seen.then_some(dot * scale + if truth { 0.0 } else { mask })
        };
        let scores: Vec<Option<f64>> = (0..s).map(score).collect();
        let top = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = scores.iter().map(|x| x.map_or(0.0, |x| (x - top).exp())).collect();
        let total: f64 = e.iter().sum();
        e.iter().map(|e| if *e == 0.0 { 0.0 } else { e / total }).collect()
    };
    each(b * h * l, s * d, row).concat()
}

pub(super) fn attention(attend: Attend, ins: &[Arc<Value>], outs: &[Out]) -> Vec<Value> {
    let heads = Heads::of(ins[0].out.shape, ins[1].out.shape, ins[2].out.shape);
    let Heads { b, h, l, s, d, e, .. } = heads;
    let w = weights(attend, heads, ins);
    let place = |row: usize| [row / (h * l), row / l % h, row % l];
    let of = |row: usize| &w[row * s..][..s];
    let y = each(b * h * l, s * e, |row| {
        let [z, head, _] = place(row);
        weighed(e, (0..s).map(|j| (of(row)[j], line(&ins[2], [z, head / heads.shared(), j]))))
    });
    // The logarithm of the total: a score less the logarithm of its weight.
    let lse = |n: usize| {
        let (row, [z, head, i]) = (of(n), place(n));
        let Some(best) = (0..s).max_by(|a, b| row[*a].total_cmp(&row[*b])).filter(|j| row[*j] > 0.0) else {
            return f64::from(f32::MAX);
        };
        let score = dot(line(&ins[0], [z, head, i]), line(&ins[1], [z, head / heads.shared(), best]));
        let float = attend.masked && ins[3].out.dtype.is_float();
        let mask = if float { at(&ins[3], [z, head, i, best]) } else { 0.0 };
        score * attend.scale(d) + mask - row[best].ln()
    };
    let lse = each(outs[1].shape.elems(), s, lse);
    vec![Value::floats(outs[0], y.concat()), Value::floats(outs[1], lse)]
}

/// From the weights themselves; the logarithms are not used.
pub(super) fn grad(attend: Attend, ins: &[Arc<Value>], outs: &[Out]) -> Vec<Value> {
    let heads = Heads::of(ins[0].out.shape, ins[1].out.shape, ins[2].out.shape);
    let Heads { b, h, g: groups, l, s, d, e } = heads;
    let shared = heads.shared();
    let w = weights(attend, heads, ins);
    let rest = attend.rest();
    let (g, delta) = (&ins[rest], &ins[rest + 2]);
    let place = |row: usize| [row / (h * l), row / l % h, row % l];
    // The gradients of scores, times their factor.
    let row = |row: usize| -> Vec<f64> {
        let [z, head, i] = place(row);
        let (g, delta) = (line(g, [z, head, i]), at(delta, [z, head, i, 0]));
        let one = |j: usize| {
            w[row * s + j] * (dot(g, line(&ins[2], [z, head / shared, j])) - delta) * attend.scale(d)
        };
        (0..s).map(one).collect()
    };
    let ds = each(b * h * l, s * e, row).concat();
    let dq = each(b * h * l, s * d, |row| {
        let [z, head, _] = place(row);
        weighed(d, (0..s).map(|j| (ds[row * s + j], line(&ins[1], [z, head / shared, j]))))
    });
    // Of a key or value: over the queries of all heads that share it.
    let over = |n: usize, factors: &[f64], x: &Value, row: usize| {
        let (z, group, j) = (row / (groups * s), row / s % groups, row % s);
        weighed(
            n,
            (0..shared * l).map(|t| {
                let (head, i) = (group * shared + t / l, t % l);
                (factors[((z * h + head) * l + i) * s + j], line(x, [z, head, i]))
            }),
        )
    };
    let dk = each(b * groups * s, shared * l * d, |row| over(d, &ds, &ins[0], row));
    let dv = each(b * groups * s, shared * l * e, |row| over(e, &w, g, row));
    [dq, dk, dv].into_iter().zip(outs).map(|(x, out)| Value::floats(*out, x.concat())).collect()
}
