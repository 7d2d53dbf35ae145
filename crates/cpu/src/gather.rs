//! Factors of a product that lie in memory by digits of their coordinates, such as the windows of a
//! convolution: parts of them are gathered before they are multiplied.

use std::ops::Range;

use wgrad_graph::{Line, terms};

use crate::pool;
use crate::share::share;

/// Elements from which several threads gather.
const PARALLEL: usize = 1 << 16;

/// Neighbours along k up to which they are gathered one by one, as they are needed beside.
const SHORT: usize = 7;

/// How a matrix (beside, k) is gathered.
#[derive(Debug)]
pub(crate) struct Gather {
    /// What each coordinate beside k, and each k, adds to the element.
    beside: Vec<i64>,
    k: Vec<i64>,
    /// Whether k runs along rows of the gathered matrix.
    pub(crate) along_k: bool,
    /// Those rows in pieces.
    pieces: Vec<Piece>,
}

/// How many neighbours in memory follow each other at least, as a rule.
fn run(line: &Line) -> usize {
    line.last().filter(|digit| digit.1 == 1).map_or(0, |digit| digit.0)
}

impl Gather {
    pub(crate) fn new((beside, rows): (&Line, usize), (k, depth): (&Line, usize)) -> Gather {
        let along_k = run(k) > run(beside).max(SHORT);
        let (beside, k) = (terms(beside, rows), terms(k, depth));
        let pieces = pieces(if along_k { &k } else { &beside });
        Gather { beside, k, along_k, pieces }
    }

    /// The pieces of a part of a row.
    fn within(&self, part: &Range<usize>) -> Vec<Piece> {
        let first = self.pieces.partition_point(|piece| piece.to.end <= part.start);
        let cut = |piece: &Piece| {
            let (from, to) = (piece.to.start.max(part.start), piece.to.end.min(part.end));
            let first = piece.first + (from - piece.to.start) as i64 * piece.step;
            Piece { to: from - part.start..to - part.start, first, step: piece.step }
        };
        self.pieces[first..].iter().take_while(|piece| piece.to.start < part.end).map(cut).collect()
    }

    /// Fills the beginning of `to` with the part and gives its strides beside and along k.
    pub(crate) fn fill<T: Copy + Send + Sync>(
        &self,
        data: &[T],
        start: i64,
        beside: Range<usize>,
        k: Range<usize>,
        to: &mut [T],
        parallel: bool,
    ) -> (i64, i64) {
        let pieces = self.within(if self.along_k { &k } else { &beside });
        let (beside, k) = (&self.beside[beside], &self.k[k]);
        let (outer, inner) = if self.along_k { (beside, k) } else { (k, beside) };
        let to = &mut to[..outer.len() * inner.len()];
        let single = pieces.len() * 4 > inner.len();
        let rows = |outer: &[i64], to: &mut [T]| {
            for (at, to) in outer.iter().zip(to.chunks_exact_mut(inner.len())) {
                let at = start + at;
                if single {
                    to.iter_mut().zip(inner).for_each(|(to, i)| *to = data[(at + i) as usize]);
                    continue;
                }
                for piece in &pieces {
                    piece.copy(&data[(at + piece.first) as usize..], &mut to[piece.to.clone()]);
                }
            }
        };
        if parallel && to.len() >= PARALLEL {
            // A few rows at a time: each is little work.
            let some = outer.len().div_ceil(pool::here() * 4);
            let parts = outer.chunks(some).zip(to.chunks_mut(some * inner.len()));
            share(parts, |(outer, to)| rows(outer, to));
        } else {
            rows(outer, to);
        }
        let width = inner.len() as i64;
        if self.along_k { (width, 1) } else { (1, width) }
    }
}

/// Neighbours whose terms are equally far from each other.
#[derive(Debug)]
struct Piece {
    to: Range<usize>,
    first: i64,
    step: i64,
}

impl Piece {
    #[inline(always)]
    fn copy<T: Copy>(&self, from: &[T], to: &mut [T]) {
        if self.step != 1 {
            let from = from.iter().step_by(self.step as usize);
            return to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        // Rows of images: a move or two, where a copy of any length is a call.
        match to.len() {
            4 => few::<T, 4>(from, to),
            7 => few::<T, 7>(from, to),
            8 => few::<T, 8>(from, to),
            14 => few::<T, 14>(from, to),
            16 => few::<T, 16>(from, to),
            28 => few::<T, 28>(from, to),
            32 => few::<T, 32>(from, to),
            _ => to.copy_from_slice(&from[..to.len()]),
        }
    }
}

/// Copies `N` elements, as many as `to` has.
#[inline(always)]
fn few<T: Copy, const N: usize>(from: &[T], to: &mut [T]) {
    if let (Some(from), Some(to)) = (from[..to.len()].first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    }
}

/// The terms in pieces, of which none runs backwards.
fn pieces(terms: &[i64]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        match pieces.last_mut() {
            Some(piece) if piece.to.len() == 1 && *term > piece.first => {
                (piece.step, piece.to.end) = (term - piece.first, i + 1);
            }
            Some(piece) if piece.to.len() > 1 && terms[i - 1] + piece.step == *term => piece.to.end = i + 1,
            _ => pieces.push(Piece { to: i..i + 1, first: *term, step: 1 }),
        }
    }
    pieces
}
