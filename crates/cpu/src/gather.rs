//! Factors of a product that lie in memory by digits of their coordinates, such as the windows of a
//! convolution: parts of them are gathered before they are multiplied.

use std::ops::Range;

use wgrad_graph::{Line, terms};

use crate::share::share;

/// Elements from which several threads gather.
const PARALLEL: usize = 1 << 16;

/// How a matrix (beside, k) is gathered.
#[derive(Debug)]
pub(crate) struct Gather {
    /// What each coordinate beside k, and each k, adds to the element.
    beside: Vec<i64>,
    k: Vec<i64>,
    /// Whether k runs along rows of the gathered matrix.
    along_k: bool,
}

/// How many neighbours in memory follow each other at least, as a rule.
fn run(line: &Line) -> usize {
    line.last().filter(|digit| digit.1 == 1).map_or(0, |digit| digit.0)
}

impl Gather {
    pub(crate) fn new((beside, rows): (&Line, usize), (k, depth): (&Line, usize)) -> Gather {
        Gather { beside: terms(beside, rows), k: terms(k, depth), along_k: run(k) > run(beside) }
    }

    /// Fills `to` with the part and gives its strides beside and along k.
    pub(crate) fn fill<T: Copy + Default + Send + Sync>(
        &self,
        data: &[T],
        start: i64,
        beside: Range<usize>,
        k: Range<usize>,
        to: &mut Vec<T>,
        parallel: bool,
    ) -> (i64, i64) {
        let (beside, k) = (&self.beside[beside], &self.k[k]);
        let (outer, inner) = if self.along_k { (beside, k) } else { (k, beside) };
        to.resize(outer.len() * inner.len(), T::default());
        let pieces = pieces(inner);
        let row = |(at, to): (&i64, &mut [T])| {
            let at = start + at;
            if pieces.len() * 4 > inner.len() {
                to.iter_mut().zip(inner).for_each(|(to, i)| *to = data[(at + i) as usize]);
                return;
            }
            for piece in &pieces {
                let from = (at + inner[piece.start]) as usize;
                to[piece.clone()].copy_from_slice(&data[from..from + piece.len()]);
            }
        };
        if parallel && to.len() >= PARALLEL {
            // A few rows at a time: each is little work.
            let some = outer.len().div_ceil(rayon::current_num_threads() * 4);
            let parts = outer.chunks(some).zip(to.chunks_mut(some * inner.len()));
            share(parts, |(outer, to)| {
                outer.iter().zip(to.chunks_exact_mut(inner.len())).for_each(row);
            });
        } else {
            outer.iter().zip(to.chunks_exact_mut(inner.len())).for_each(row);
        }
        let width = inner.len() as i64;
        if self.along_k { (width, 1) } else { (1, width) }
    }
}

/// Positions whose terms count up by one.
fn pieces(terms: &[i64]) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        match pieces.last_mut() {
            Some(piece) if terms[i - 1] + 1 == *term => piece.end = i + 1,
            _ => pieces.push(i..i + 1),
        }
    }
    pieces
}
