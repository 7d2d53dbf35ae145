//! Products whose right factor is gathered, such as the windows of a convolution: tiles of its columns, each of which
//! is put together in the second cache and multiplied there. The factor as a whole is nowhere.
//!
//! Neighbours in memory are neighbours along a tile's columns or along its terms, whichever is longer; terms that are
//! neighbours are left where they are, and the product is made the other way around: `y' = b' a'`. Each element adds up
//! its terms in the order in which a product of strided factors does.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use crate::access::Turned;
use crate::gather::Gather;
use crate::gemm::{Mat, add_product, product};
use crate::matmul::{Float, Side, terms_at_once};
use crate::memory::{self, give_words, take_words};
use crate::share::share;
use crate::turn;

/// Columns of a tile whose neighbours are columns, and of one whose neighbours are terms.
const COLUMNS: usize = 128;
const ROWS: usize = 96;
/// Terms of the left factor that are turned at once.
const TURNED: usize = 256;

/// Whether tiles cost less than the gathered factor as a whole: what they add up is copied, or turned, and then the left
/// factor is too.
pub(crate) fn pay(m: usize, n: usize, k: usize, along_k: bool) -> bool {
    let most = if along_k { 2 * m * (n + k) } else { m * n };
    k > 2 && most <= n * k
}

/// A product of `m x k` by a gathered `k x n`.
pub(crate) struct Tiles<'t, T> {
    pub(crate) left: &'t Side,
    pub(crate) right: &'t Gather,
    /// Both factors' memory, and the element at the origin.
    pub(crate) a: (&'t [T], i64),
    pub(crate) b: (&'t [T], i64),
    pub(crate) size: (usize, usize),
    /// The terms of the sums.
    pub(crate) terms: Range<usize>,
}

/// Columns of the product, and for each row the memory of those.
type Tile<'y, T> = (Range<usize>, Vec<&'y mut [T]>);

impl<T: Float> Tiles<'_, T> {
    /// The columns of each tile, for so many threads: never one alone, which `gemm` would add up in another order.
    pub(crate) fn cuts(&self, threads: usize) -> Vec<Range<usize>> {
        let n = self.size.1;
        let (most, unit) = if self.right.along_k { (ROWS, 6) } else { (COLUMNS, 64) };
        let step = n.div_ceil(n.div_ceil(most).max(threads)).next_multiple_of(unit);
        let mut cuts: Vec<_> = (0..n).step_by(step).map(|from| from..n.min(from + step)).collect();
        if let [.., before, last] = &mut cuts[..]
            && last.len() == 1
        {
            before.end = last.end;
            cuts.pop();
        }
        cuts
    }

    /// All tiles into `y`, by several threads where there are several.
    pub(crate) fn run(&self, cuts: &[Range<usize>], left: Option<Mat<'_, T>>, y: &mut [T], parallel: bool) {
        let (m, n) = self.size;
        let mut tiles: Vec<Tile<'_, T>> = cuts.iter().map(|c| (c.clone(), Vec::with_capacity(m))).collect();
        for mut row in y.chunks_exact_mut(n) {
            for (columns, rows) in &mut tiles {
                let (own, after) = row.split_at_mut(columns.len());
                (row, _) = (after, rows.push(own));
            }
        }
        let mut words = Vec::new();
        let left = match left {
            Some(left) if !self.right.along_k => left,
            _ => self.left(&mut words, parallel),
        };
        let tile = |tile: Tile<'_, T>| self.tile(left, tile);
        match parallel {
            true => share(tiles.into_iter(), tile),
            false => tiles.into_iter().for_each(tile),
        }
        give_words(words);
    }

    /// The left factor: as it is, or, for neighbours along the terms, term by term.
    fn left<'a>(&'a self, words: &'a mut Vec<u64>, parallel: bool) -> Mat<'a, T> {
        let (m, k) = (self.size.0, self.terms.len());
        if !self.right.along_k {
            *words = take_words::<T>(self.left.gathered(m * k));
            let own = cast_slice_mut(words);
            return self.left.matrix(self.a.0, self.a.1, 0..m, self.terms.clone(), own, parallel);
        }
        *words = take_words::<T>(m * k);
        let to: &mut [T] = &mut cast_slice_mut(words)[..m * k];
        let some = |(i, to): (usize, &mut [T])| {
            let from = self.terms.start + i * TURNED;
            let count = to.len() / m;
            let mut own = memory::scratch(self.left.gathered(to.len()) * size_of::<T>());
            let buf = cast_slice_mut(own.bytes_mut());
            let a = self.left.matrix(self.a.0, self.a.1, 0..m, from..from + count, buf, false);
            if a.cols == 1 {
                let axes = [(count, 1), (m, a.rows)].into_iter().collect();
                turn::typed(&Turned { axes, offset: a.start as i64, across: 0 }, a.data, to);
            } else {
                for (j, to) in to.chunks_exact_mut(m).enumerate() {
                    let first = a.start as i64 + j as i64 * a.cols;
                    to.iter_mut().zip(0..).for_each(|(y, i)| *y = a.data[(first + i * a.rows) as usize]);
                }
            }
            memory::used(own);
        };
        let parts = to.chunks_mut(TURNED * m).enumerate();
        match parallel {
            true => share(parts, some),
            false => parts.for_each(some),
        }
        Mat { data: &*to, start: 0, rows: 1, cols: m as i64 }
    }

    /// One tile, by this thread.
    fn tile(&self, left: Mat<'_, T>, (columns, mut rows): Tile<'_, T>) {
        let ((m, _), k, width) = (self.size, self.terms.len(), columns.len());
        let some = terms_at_once(k);
        let mut gathered = memory::scratch(some * width * size_of::<T>());
        let mut sums = memory::scratch(m * width * size_of::<T>());
        let sum: &mut [T] = &mut cast_slice_mut(sums.bytes_mut())[..m * width];
        for from in (0..k).step_by(some) {
            let terms = from..k.min(from + some);
            let count = terms.len();
            let own: &mut [T] = &mut cast_slice_mut(gathered.bytes_mut())[..count * width];
            let seen = self.terms.start + terms.start..self.terms.start + terms.end;
            let (cols, rows) = self.right.fill(self.b.0, self.b.1, columns.clone(), seen, own, false);
            let (a, b) = (left.from(0, from), Mat { data: &*own, start: 0, rows, cols });
            // The other way around, both factors and the result are turned.
            let (size, x, w, wide) = match self.right.along_k {
                true => ((width, m, count), b.turned(), a.turned(), m),
                false => ((m, width, count), a, b, width),
            };
            match from {
                0 => product(size, x, w, (sum, wide), T::ONE, false),
                _ => add_product(size, x, w, (sum, wide), T::ONE),
            }
        }
        if self.right.along_k {
            for (i, row) in rows.iter_mut().enumerate() {
                row.iter_mut().zip(sum.chunks_exact(m)).for_each(|(y, sum)| *y = sum[i]);
            }
        } else {
            rows.iter_mut().zip(sum.chunks_exact(width)).for_each(|(row, x)| row.copy_from_slice(x));
        }
        memory::used(gathered);
        memory::used(sums);
    }
}

/// A left factor that is gathered once for a whole batch.
pub(crate) struct Left {
    words: Vec<u64>,
    rows: i64,
    cols: i64,
}

impl Left {
    /// For a batch whose products have one left factor, which has to be gathered.
    pub(crate) fn of<T: Float>(side: &Side, a: &[T], (m, k): (usize, usize)) -> Option<Left> {
        if side.gathered(m * k) == 0 || !side.stands_still() {
            return None;
        }
        let mut words = take_words::<T>(m * k);
        let own = cast_slice_mut(&mut words);
        let Mat { rows, cols, .. } = side.matrix(a, side.start(&[], 0), 0..m, 0..k, own, true);
        Some(Left { words, rows, cols })
    }

    /// The factor from term `from` on.
    pub(crate) fn matrix<T: Float>(&self, from: usize) -> Mat<'_, T> {
        let data = cast_slice(&self.words);
        Mat { data, start: 0, rows: self.rows, cols: self.cols }.from(0, from)
    }

    pub(crate) fn done(self) {
        give_words(self.words);
    }
}
