//! Attention and its gradients by blocks of queries and keys: a block of scores stays in the cache, and memory is
//! linear in the lengths. Block boundaries, and so the bits, depend on sizes alone.

mod block;
mod grad;

use wgrad_graph::{Attend, DType, Group, Heads, Index, Kind, Op, Out};

use crate::gemm::{Mat, add_product};
use crate::pool;
use crate::share::share;
use block::{Block, QUERIES, Row, keys_of_block};

/// Multiply-adds below which one thread is faster than several.
const PARALLEL_MACS: u64 = 1 << 18;

/// A compiled attention, or its gradients.
#[derive(Debug)]
pub(crate) struct Attention {
    attend: Attend,
    grad: bool,
    pub(crate) heads: Heads,
    places: Vec<Place>,
}

/// Where an operand of the node lies: the number of the group's operand, and its view.
#[derive(Clone, Debug)]
struct Place {
    operand: usize,
    dtype: DType,
    offset: i64,
    strides: [i64; 4],
}

impl Place {
    fn new(operand: u16, index: &Index, out: Out) -> Place {
        let view = &index.views[0];
        let mut strides = [0; 4];
        strides[..view.strides.len()].copy_from_slice(&view.strides);
        Place { operand: usize::from(operand), dtype: out.dtype, offset: view.offset, strides }
    }
}

/// An operand's bytes and where its elements lie in them.
#[derive(Copy, Clone)]
pub(crate) struct Source<'a> {
    bytes: &'a [u8],
    place: &'a Place,
}

impl Source<'_> {
    /// The first element of matrix `(b, h)`.
    fn start(&self, b: usize, h: usize) -> i64 {
        self.place.offset + b as i64 * self.place.strides[0] + h as i64 * self.place.strides[1]
    }

    /// Rows `rows` of matrix `(b, h)`, `width` wide, read where they lie or gathered into `buf`: always with
    /// neighbours next to each other, so that the order of sums does not depend on where operands lie.
    fn rows<'b>(
        &'b self,
        (b, h): (usize, usize),
        rows: std::ops::Range<usize>,
        width: usize,
        buf: &'b mut Vec<f32>,
    ) -> Mat<'b, f32> {
        let [.., down, along] = self.place.strides;
        let start = self.start(b, h) + rows.start as i64 * down;
        if self.place.dtype == DType::F32 && along == 1 && !rows.is_empty() {
            let data = bytemuck::cast_slice(self.bytes);
            return Mat { data, start: start as usize, rows: down, cols: 1 };
        }
        buf.clear();
        for r in 0..rows.len() as i64 {
            let first = start + r * down;
            let place = |t: usize| (first + t as i64 * along) as usize;
            match self.place.dtype {
                DType::F32 => {
                    let x: &[f32] = bytemuck::cast_slice(self.bytes);
                    buf.extend((0..width).map(|t| x[place(t)]));
                }
                DType::F16 => {
                    let x: &[wgrad_graph::f16] = bytemuck::cast_slice(self.bytes);
                    buf.extend((0..width).map(|t| x[place(t)].to_f32()));
                }
                _ => {
                    let x: &[wgrad_graph::bf16] = bytemuck::cast_slice(self.bytes);
                    buf.extend((0..width).map(|t| x[place(t)].to_f32()));
                }
            }
        }
        Mat { data: buf, start: 0, rows: width as i64, cols: 1 }
    }

    /// One number of a row of sums.
    fn stat(&self, (b, h): (usize, usize), i: usize) -> f32 {
        let x: &[f32] = bytemuck::cast_slice(self.bytes);
        x[(self.start(b, h) + i as i64 * self.place.strides[2]) as usize]
    }

    /// Adds the mask of query `i` to the scores of `keys`: -inf becomes [`block::UNSEEN`].
    fn mask(&self, (b, h): (usize, usize), i: usize, keys: std::ops::Range<usize>, scores: &mut [f32]) {
        let [.., down, along] = self.place.strides;
        let first = self.start(b, h) + i as i64 * down + keys.start as i64 * along;
        let place = |t: usize| (first + t as i64 * along) as usize;
        let add = |score: &mut f32, m: f32| {
            *score = if m == f32::NEG_INFINITY { block::UNSEEN } else { *score + m };
        };
        let scores = scores.iter_mut().enumerate();
        match self.place.dtype {
            DType::Bool => scores.for_each(|(t, score)| {
                if self.bytes[place(t)] == 0 {
                    *score = block::UNSEEN;
                }
            }),
            DType::F32 => {
                let x: &[f32] = bytemuck::cast_slice(self.bytes);
                scores.for_each(|(t, score)| add(score, x[place(t)]));
            }
            DType::F16 => {
                let x: &[wgrad_graph::f16] = bytemuck::cast_slice(self.bytes);
                scores.for_each(|(t, score)| add(score, x[place(t)].to_f32()));
            }
            _ => {
                let x: &[wgrad_graph::bf16] = bytemuck::cast_slice(self.bytes);
                scores.for_each(|(t, score)| add(score, x[place(t)].to_f32()));
            }
        }
    }
}

/// What all blocks share.
pub(crate) struct Problem<'a> {
    attend: Attend,
    heads: Heads,
    sources: Vec<Source<'a>>,
}

impl Problem<'_> {
    fn q(&self) -> &Source<'_> {
        &self.sources[0]
    }
    fn k(&self) -> &Source<'_> {
        &self.sources[1]
    }
    fn v(&self) -> &Source<'_> {
        &self.sources[2]
    }
    fn mask(&self) -> Option<&Source<'_>> {
        self.attend.masked.then(|| &self.sources[3])
    }
    /// Operand `i` of those after the mask.
    fn rest(&self, i: usize) -> &Source<'_> {
        &self.sources[self.attend.rest() + i]
    }
}

impl Attention {
    pub(crate) fn new(group: &Group, operands: &[Out]) -> Option<Attention> {
        let Kind::Attention(op, ins) = &group.kind else { return None };
        let index = |i: u16| &group.body.indices[usize::from(i)];
        let places: Vec<Place> =
            ins.iter().map(|(o, i)| Place::new(*o, index(*i), operands[usize::from(*o)])).collect();
        let dims = |n: usize| wgrad_graph::Shape::new(&index(ins[n].1).views[0].dims);
        Some(Attention {
            attend: op.attend()?,
            grad: matches!(op, Op::AttentionGrad(_)),
            heads: Heads::of(dims(0), dims(1), dims(2)),
            places,
        })
    }

    /// Runs it: `operands` are the group's, `outs` the results of the node in order.
    pub(crate) fn run<'p>(&'p self, operands: &[&'p [u8]], outs: Vec<&mut [u8]>) {
        let source = |place: &'p Place| Source { bytes: operands[place.operand], place };
        let sources = self.places.iter().map(source).collect();
        let problem = Problem { attend: self.attend, heads: self.heads, sources };
        let mut outs: Vec<&mut [f32]> = outs.into_iter().map(bytemuck::cast_slice_mut).collect();
        if self.grad {
            let (v, k, q) = (outs.pop(), outs.pop(), outs.pop());
            if let (Some(q), Some(k), Some(v)) = (q, k, v) {
                grad::run(&problem, [q, k, v], parallel(self.heads, self.attend));
            }
            return;
        }
        if let (Some(lse), Some(y)) = (outs.pop(), outs.pop()) {
            forward(&problem, y, lse, parallel(self.heads, self.attend));
        }
    }
}

fn parallel(heads: Heads, attend: Attend) -> bool {
    heads.pairs(attend.causal) * (heads.d + heads.e) as u64 >= PARALLEL_MACS && pool::here() > 1
}

/// All queries: `y` is `[B, H, L, E]`, `lse` is `[B, H, L]`.
fn forward(problem: &Problem<'_>, y: &mut [f32], lse: &mut [f32], parallel: bool) {
    let Heads { h, l, e, .. } = problem.heads;
    if lse.is_empty() {
        return;
    }
    let mut tasks = Vec::new();
    let mut y = y;
    for (n, lse) in lse.chunks_mut(l).enumerate() {
        for (part, lse) in lse.chunks_mut(QUERIES).enumerate() {
            let (own, rest) = std::mem::take(&mut y).split_at_mut(lse.len() * e);
            y = rest;
            tasks.push(((n / h, n % h), part * QUERIES, own, lse));
        }
    }
    if parallel {
        // The last queries of a causal attention see most keys: they come first.
        share(tasks.into_iter().rev(), |(at, first, y, lse)| {
            queries(problem, at, first, y, lse);
        });
    } else {
        tasks.into_iter().for_each(|(at, first, y, lse)| queries(problem, at, first, y, lse));
    }
}

/// The queries from `first` on of head `at`, as many as `lse` has.
fn queries(problem: &Problem<'_>, at: (usize, usize), first: usize, y: &mut [f32], lse: &mut [f32]) {
    let Heads { s, e, .. } = problem.heads;
    let (count, group) = (lse.len(), (at.0, at.1 / problem.heads.shared()));
    let rows = first..first + count;
    let mut block = Block::default();
    let mut states = vec![Row::default(); count];
    y.fill(0.0);
    let seen = problem.attend.seen(first + count - 1, s);
    let mut buf = Vec::new();
    let step = keys_of_block(problem.attend.causal);
    for start in (0..seen).step_by(step) {
        let keys = start..seen.min(start + step);
        let width = keys.len();
        block.scores(problem, at, rows.clone(), keys.clone());
        for (r, state) in states.iter_mut().enumerate() {
            let scores = &mut block.scores[r * width..(r + 1) * width];
            let faded = state.take(scores);
            if faded != 1.0 {
                y[r * e..(r + 1) * e].iter_mut().for_each(|y| *y *= faded);
            }
        }
        if e > 0 {
            let v = problem.v().rows(group, keys, e, &mut buf);
            let p = Mat { data: &block.scores, start: 0, rows: width as i64, cols: 1 };
            add_product((count, e, width), p, v, (y, e), 1.0);
        }
    }
    for ((state, y), lse) in states.iter().zip(rows_of(y, e, count)).zip(lse) {
        let (total, log) = state.total();
        // A query that sees no key has zeros already.
        if total != 0.0 || !problem.attend.masked && s > 0 {
            let share = 1.0 / total;
            y.iter_mut().for_each(|y| *y *= share);
        }
        *lse = log;
    }
}

/// `count` rows of `width` elements, which may be none.
fn rows_of(y: &mut [f32], width: usize, count: usize) -> impl Iterator<Item = &mut [f32]> {
    let mut rest = y;
    (0..count).map(move |_| {
        let (own, after) = std::mem::take(&mut rest).split_at_mut(width);
        rest = after;
        own
    })
}
