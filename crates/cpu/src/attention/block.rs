//! One block of scores, and the running softmax of its rows.

use std::ops::Range;

use super::Problem;
use crate::gemm::{Mat, product};
use crate::math;

/// Queries of a block.
pub(super) const QUERIES: usize = 128;

/// Keys of a block. Products of more keys are faster (1024 by 1024 in both directions: 217 ms by 512, 250 by 128, beside
/// 219 and 202 without blocks on a busy machine); of a causal attention small blocks compute less that nobody sees.
pub(super) fn keys_of_block(causal: bool) -> usize {
    if causal { 128 } else { 512 }
}

/// The score of a key that is not seen: its weight is 0 below any other score.
pub(super) const UNSEEN: f32 = f32::MIN;
/// The largest score before any is seen, far above [`UNSEEN`].
const LOW: f32 = f32::MIN / 2.0;

/// Scores of some queries with some keys, and what was gathered for them.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) scores: Vec<f32>,
    own: [Vec<f32>; 2],
}

impl Block {
    /// The scores of queries `rows` of head `at` with `keys`, scaled and masked.
    pub(super) fn scores(
        &mut self,
        problem: &Problem<'_>,
        at: (usize, usize),
        rows: Range<usize>,
        keys: Range<usize>,
    ) {
        let (d, group) = (problem.heads.d, (at.0, at.1 / problem.heads.shared()));
        let (count, width) = (rows.len(), keys.len());
        self.scores.resize(count * width, 0.0);
        let [own_q, own_k] = &mut self.own;
        let q = problem.q().rows(at, rows.clone(), d, own_q);
        let k = problem.k().rows(group, keys.clone(), d, own_k);
        transposed((count, width, d), q, k, &mut self.scores);
        let scale = problem.attend.scale(d) as f32;
        for (r, i) in rows.enumerate() {
            let scores = &mut self.scores[r * width..(r + 1) * width];
            let seen = problem.attend.seen(i, problem.heads.s).clamp(keys.start, keys.end) - keys.start;
            let (near, far) = scores.split_at_mut(seen);
            near.iter_mut().for_each(|x| *x *= scale);
            far.fill(UNSEEN);
            if let Some(mask) = problem.mask() {
                mask.mask(at, i, keys.start..keys.start + seen, near);
            }
        }
    }
}

/// `y = a b^T`, also over no terms.
pub(super) fn transposed((m, n, k): (usize, usize, usize), a: Mat<'_, f32>, b: Mat<'_, f32>, y: &mut [f32]) {
    if k == 0 {
        return y.fill(0.0);
    }
    product((m, n, k), a, Mat { rows: b.cols, cols: b.rows, ..b }, (y, n), 1.0, false);
}

/// The softmax of a row so far: its largest score, and the sum of what lies above it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Row {
    top: f32,
    total: f32,
}

impl Default for Row {
    fn default() -> Row {
        Row { top: LOW, total: 0.0 }
    }
}

impl Row {
    /// Turns more scores into weights over the largest score, and gives the factor by which what was summed before
    /// fades.
    pub(super) fn take(&mut self, scores: &mut [f32]) -> f32 {
        pulp::Arch::new().dispatch(Take { row: self, scores })
    }

    /// The sum of all weights, and the logarithm of the sum of all scores' exponentials.
    pub(super) fn total(&self) -> (f32, f32) {
        let log = if self.total == 0.0 { f32::MAX } else { self.top + self.total.ln() };
        (self.total, log)
    }
}

struct Take<'a> {
    row: &'a mut Row,
    scores: &'a mut [f32],
}

const LANES: usize = 16;

impl pulp::WithSimd for Take<'_> {
    type Output = f32;
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f32 {
        let Take { row, scores } = self;
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let mut tops = [row.top; LANES];
        let (lanes, rest) = scores.as_chunks::<LANES>();
        for x in lanes {
            for l in 0..LANES {
                tops[l] = larger(tops[l], x[l]);
            }
        }
        let top = tops.into_iter().chain(rest.iter().copied()).fold(row.top, larger);
        let faded = math::exp(row.top - top);
        let mut sums = [0.0; LANES];
        let (lanes, rest) = scores.as_chunks_mut::<LANES>();
        for x in lanes {
            for l in 0..LANES {
                x[l] = math::exp(x[l] - top);
                sums[l] += x[l];
            }
        }
        for (x, sum) in rest.iter_mut().zip(&mut sums) {
            *x = math::exp(*x - top);
            *sum += *x;
        }
        let mut half = LANES;
        while half > 1 {
            half /= 2;
            let (low, high) = sums.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(a, b)| *a += *b);
        }
        row.top = top;
        row.total = row.total * faded + sums[0];
        faded
    }
}

/// `p = e^(p - lse)` and `g = p (g - delta) scale`, for a row of scores `p` and products `g`.
pub(super) fn slopes(p: &mut [f32], g: &mut [f32], [lse, delta, scale]: [f32; 3]) {
    pulp::Arch::new().dispatch(Slopes { p, g, lse, delta, scale });
}

struct Slopes<'a> {
    p: &'a mut [f32],
    g: &'a mut [f32],
    lse: f32,
    delta: f32,
    scale: f32,
}

impl pulp::WithSimd for Slopes<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Slopes { p, g, lse, delta, scale } = self;
        for (p, g) in p.iter_mut().zip(g) {
            *p = math::exp(*p - lse);
            // An infinite product of a key that is not seen has no part.
            *g = if *p == 0.0 { 0.0 } else { *p * (*g - delta) * scale };
        }
    }
}
