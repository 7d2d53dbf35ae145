//! The gradients of queries, keys and values: the weights are computed again, block by block.

use std::ops::Range;

use wgrad_graph::Heads;

use super::Problem;
use super::block::{Block, QUERIES, keys_of_block, slopes, transposed};
use crate::gemm::{Mat, add_product};
use crate::pool;
use crate::share::share;

/// A part of the gradients of queries, keys and values.
type Piece<'a> = ((&'a mut [f32], &'a mut [f32]), &'a mut [f32]);

/// Where the gradients of a block go: some are not wanted.
struct Into<'a> {
    q: Option<&'a mut [f32]>,
    kv: Option<[&'a mut [f32]; 2]>,
}

/// Gradients `[B, H, L, D]`, `[B, G, S, D]` and `[B, G, S, E]`.
pub(super) fn run(problem: &Problem<'_>, [dq, dk, dv]: [&mut [f32]; 3], parallel: bool) {
    let Heads { b, h, g, l, s, d, e } = problem.heads;
    dq.fill(0.0);
    dk.fill(0.0);
    dv.fill(0.0);
    if b * h * g * l * s == 0 {
        return;
    }
    let (shared, step) = (problem.heads.shared(), keys_of_block(problem.attend.causal));
    if !parallel || b * g >= pool::here() {
        // A head of keys with its heads of queries is one task: each weight is computed once.
        let tasks: Vec<_> = pieces(dq, shared * l * d, b * g)
            .into_iter()
            .zip(pieces(dk, s * d, b * g))
            .zip(pieces(dv, s * e, b * g))
            .enumerate()
            .collect();
        let one = |(n, ((dq, dk), dv)): (usize, Piece<'_>)| {
            let mut work = Work::default();
            for (t, dq) in super::rows_of(dq, l * d, shared).enumerate() {
                let at = (n / g, n % g * shared + t);
                for first in (0..l).step_by(QUERIES) {
                    let rows = first..l.min(first + QUERIES);
                    for start in (0..problem.attend.seen(rows.end - 1, s)).step_by(step) {
                        let keys = start..s.min(start + step);
                        let q = &mut dq[rows.start * d..rows.end * d];
                        let k = &mut dk[keys.start * d..keys.end * d];
                        let v = &mut dv[keys.start * e..keys.end * e];
                        work.block(problem, at, rows.clone(), keys, Into { q: Some(q), kv: Some([k, v]) });
                    }
                }
            }
        };
        if parallel {
            share(tasks.into_iter(), one);
        } else {
            tasks.into_iter().for_each(one);
        }
        return;
    }
    // Few heads: threads share their blocks, those of keys first. The order of sums is the same.
    let mut tasks = Vec::new();
    for (n, (dk, dv)) in pieces(dk, s * d, b * g).into_iter().zip(pieces(dv, s * e, b * g)).enumerate() {
        let counts = (0..s).step_by(step).map(|start| start..s.min(start + step));
        let (mut dk, mut dv) = (dk, dv);
        for keys in counts {
            let (k, rest) = dk.split_at_mut(keys.len() * d);
            let (v, more) = dv.split_at_mut(keys.len() * e);
            (dk, dv) = (rest, more);
            tasks.push((n, keys, [k, v]));
        }
    }
    share(tasks.into_iter(), |(n, keys, [k, v])| {
        let mut work = Work::default();
        for t in 0..shared {
            for first in (0..l).step_by(QUERIES) {
                let rows = first..l.min(first + QUERIES);
                if problem.attend.seen(rows.end - 1, s) > keys.start {
                    let at = (n / g, n % g * shared + t);
                    work.block(
                        problem,
                        at,
                        rows,
                        keys.clone(),
                        Into { q: None, kv: Some([&mut *k, &mut *v]) },
                    );
                }
            }
        }
    });
    let mut tasks = Vec::new();
    for (n, dq) in pieces(dq, l * d, b * h).into_iter().enumerate() {
        let mut dq = dq;
        for first in (0..l).step_by(QUERIES) {
            let rows = first..l.min(first + QUERIES);
            let (own, rest) = dq.split_at_mut(rows.len() * d);
            dq = rest;
            tasks.push((n, rows, own));
        }
    }
    share(tasks.into_iter().rev(), |(n, rows, dq)| {
        let mut work = Work::default();
        for start in (0..problem.attend.seen(rows.end - 1, s)).step_by(step) {
            let keys = start..s.min(start + step);
            work.block(problem, (n / h, n % h), rows.clone(), keys, Into { q: Some(&mut *dq), kv: None });
        }
    });
}

fn pieces(x: &mut [f32], size: usize, count: usize) -> Vec<&mut [f32]> {
    super::rows_of(x, size, count).collect()
}

/// Memory of one thread.
#[derive(Default)]
struct Work {
    block: Block,
    products: Vec<f32>,
    own: [Vec<f32>; 4],
}

impl Work {
    /// Adds what queries `rows` of head `at` and `keys` give to each other.
    fn block(
        &mut self,
        problem: &Problem<'_>,
        at: (usize, usize),
        rows: Range<usize>,
        keys: Range<usize>,
        into: Into<'_>,
    ) {
        let Heads { d, e, .. } = problem.heads;
        let group = (at.0, at.1 / problem.heads.shared());
        let (count, width) = (rows.len(), keys.len());
        self.block.scores(problem, at, rows.clone(), keys.clone());
        self.products.resize(count * width, 0.0);
        let [own_g, own_v, own_q, own_k] = &mut self.own;
        let g = problem.rest(0).rows(at, rows.clone(), e, own_g);
        let v = problem.v().rows(group, keys.clone(), e, own_v);
        transposed((count, width, e), g, v, &mut self.products);
        let scale = problem.attend.scale(d) as f32;
        let scores = self.block.scores.chunks_exact_mut(width);
        for ((p, g), i) in scores.zip(self.products.chunks_exact_mut(width)).zip(rows.clone()) {
            slopes(p, g, [problem.rest(1).stat(at, i), problem.rest(2).stat(at, i), scale]);
        }
        let (wide, one) = (width as i64, 1);
        let p = |data, rows, cols| Mat { data, start: 0, rows, cols };
        if let (Some(dq), true) = (into.q, d > 0) {
            let k = problem.k().rows(group, keys, d, own_k);
            add_product((count, d, width), p(&self.products, wide, one), k, (dq, d), 1.0);
        }
        let Some([dk, dv]) = into.kv else { return };
        if e > 0 {
            add_product((width, e, count), p(&self.block.scores, one, wide), g, (dv, e), 1.0);
        }
        if d > 0 {
            let q = problem.q().rows(at, rows, d, own_q);
            add_product((width, d, count), p(&self.products, one, wide), q, (dk, d), 1.0);
        }
    }
}
