//! Attention and its gradients, as their definitions read: every weight is computed alone.

use std::sync::Arc;

use wgrad_graph::{Attend, Heads, Out, Shape};

use super::eval::{ravel, unravel};
use super::value::{Data, Value};

fn at(x: &Value, i: [usize; 4]) -> f64 {
    let shape = x.out.shape;
    let place = (0..shape.rank()).fold(0, |place, axis| place * shape[axis] + i[axis]);
    match &x.data {
        Data::Float(x) => x[place],
        Data::Int(x) => x[place] as f64,
    }
}

/// The weights `[B, H, L, S]`.
fn weights(attend: Attend, heads: Heads, ins: &[Arc<Value>]) -> Vec<f64> {
    let Heads { b, h, l, s, d, .. } = heads;
    let scale = attend.scale(d);
    let mut all = Vec::with_capacity(b * h * l * s);
    for row in 0..b * h * l {
        let (z, head, i) = (row / (h * l), row / l % h, row % l);
        let group = head / heads.shared();
        let score = |j: usize| {
            let dot: f64 = (0..d).map(|t| at(&ins[0], [z, head, i, t]) * at(&ins[1], [z, group, j, t])).sum();
            let mask = if attend.masked { at(&ins[3], [z, head, i, j]) } else { 0.0 };
            let truth = attend.masked && !ins[3].out.dtype.is_float();
            let seen = j < attend.seen(i, s) && if truth { mask != 0.0 } else { mask != f64::NEG_INFINITY };
            seen.then_some(dot * scale + if truth { 0.0 } else { mask })
        };
        let scores: Vec<Option<f64>> = (0..s).map(score).collect();
        let top = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = scores.iter().map(|x| x.map_or(0.0, |x| (x - top).exp())).collect();
        let total: f64 = e.iter().sum();
        all.extend(e.iter().map(|e| if *e == 0.0 { 0.0 } else { e / total }));
    }
    all
}

/// Sums over one index, for each element of `shape` that the rest tells.
fn sums(shape: Shape, count: usize, term: impl Fn([usize; 4], usize) -> f64) -> Vec<f64> {
    let one = |n: usize| {
        let c = unravel(n, shape);
        (0..count).map(|t| term([c[0], c[1], c[2], c[3]], t)).sum()
    };
    (0..shape.elems()).map(one).collect()
}

pub(super) fn attention(attend: Attend, ins: &[Arc<Value>], outs: &[Out]) -> Vec<Value> {
    let heads = Heads::of(ins[0].out.shape, ins[1].out.shape, ins[2].out.shape);
    let w = weights(attend, heads, ins);
    let whole = ins[0].out.shape.with(3, heads.s);
    let weight = |c: [usize; 4], j: usize| w[place(whole, [c[0], c[1], c[2], j])];
    let y = sums(outs[0].shape, heads.s, |c, j| {
        weight(c, j) * at(&ins[2], [c[0], c[1] / heads.shared(), j, c[3]])
    });
    // The logarithm of the total: a score less the logarithm of its weight.
    let lse = |n: usize| {
        let c = unravel(n, outs[1].shape);
        let row = |j: usize| w[place(whole, [c[0], c[1], c[2], j])];
        let Some(best) = (0..heads.s).max_by(|a, b| row(*a).total_cmp(&row(*b))).filter(|j| row(*j) > 0.0)
        else {
            return f64::from(f32::MAX);
        };
        let group = c[1] / heads.shared();
        let dot = |t: usize| at(&ins[0], [c[0], c[1], c[2], t]) * at(&ins[1], [c[0], group, best, t]);
        let float = attend.masked && ins[3].out.dtype.is_float();
        let mask = if float { at(&ins[3], [c[0], c[1], c[2], best]) } else { 0.0 };
        (0..heads.d).map(dot).sum::<f64>() * attend.scale(heads.d) + mask - row(best).ln()
    };
    let lse = (0..outs[1].shape.elems()).map(lse).collect();
    vec![Value::floats(outs[0], y), Value::floats(outs[1], lse)]
}

/// From the weights themselves; the logarithms are not used.
pub(super) fn grad(attend: Attend, ins: &[Arc<Value>], outs: &[Out]) -> Vec<Value> {
    let heads = Heads::of(ins[0].out.shape, ins[1].out.shape, ins[2].out.shape);
    let Heads { l, s, d, e, .. } = heads;
    let shared = heads.shared();
    let w = weights(attend, heads, ins);
    let whole = ins[0].out.shape.with(3, s);
    let rest = attend.rest();
    let (g, delta) = (&ins[rest], &ins[rest + 2]);
    let weight = |c: [usize; 4]| w[place(whole, c)];
    // The gradient of a score, times its factor.
    let score = sums(whole, 1, |c, _| {
        let dot: f64 =
            (0..e).map(|t| at(g, [c[0], c[1], c[2], t]) * at(&ins[2], [c[0], c[1] / shared, c[3], t])).sum();
        weight(c) * (dot - at(delta, [c[0], c[1], c[2], 0])) * attend.scale(d)
    });
    let ds = |c: [usize; 4]| score[place(whole, c)];
    let dq = sums(outs[0].shape, s, |c, j| {
        ds([c[0], c[1], c[2], j]) * at(&ins[1], [c[0], c[1] / shared, j, c[3]])
    });
    let dk = sums(outs[1].shape, shared * l, |c, t| {
        let (h, i) = (c[1] * shared + t / l, t % l);
        ds([c[0], h, i, c[2]]) * at(&ins[0], [c[0], h, i, c[3]])
    });
    let dv = sums(outs[2].shape, shared * l, |c, t| {
        let (h, i) = (c[1] * shared + t / l, t % l);
        weight([c[0], h, i, c[2]]) * at(g, [c[0], h, i, c[3]])
    });
    [dq, dk, dv].into_iter().zip(outs).map(|(x, out)| Value::floats(*out, x)).collect()
}

fn place(shape: Shape, c: [usize; 4]) -> usize {
    let mut all = [0; wgrad_graph::MAX_RANK];
    all[..4].copy_from_slice(&c);
    ravel(&all, shape)
}
