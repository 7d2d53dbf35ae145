//! Products of matrices, then the epilogue. Which loop computes a product, and so the order of its
//! sums, depends on sizes alone, never on where elements lie: a view and its copy give equal bits.

use std::ops::Range;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use rayon::prelude::*;
use wgrad_graph::{DType, Group, Kind, Line, stride};

use crate::access::Turned;
use crate::gather::Gather;
use crate::gemm::{Mat, add_product, product};
use crate::machine::Operand;
use crate::memory::{give_words, take_words};
use crate::pool;
use crate::share::share;
use crate::tiles::{self, Left, Tiles};
use crate::turn;

/// Multiply-adds below which one thread is faster than several.
const PARALLEL_MACS: usize = 1 << 19;
/// Lanes of a dot product.
const LANES: usize = 32;
/// Elements of a product up to which `gemm` would take another order of sums for some layouts.
const SMALL: usize = 256;
/// Terms that are summed at once; longer sums are cut into parts, which are added in order.
const DEEP: usize = 4096;
/// Elements of a product up to which threads share the parts of a long sum rather than each part.
const NARROW: usize = 1 << 16;
/// Elements from which a right factor that lies by columns is turned: `gemm` takes 3 ns to pick up one of
/// 1024 x 1024 elements, turning takes 0.6.
const TURN_ELEMS: usize = 1 << 12;
/// Rows of a band, at least: each band packs the right factor anew, which costs a band of 64 rows 3 %.
const MIN_BAND: usize = 64;
/// Columns up to which `gemm` cuts sums elsewhere than for more.
const LOW: usize = 64;
/// Terms that `gemm` adds up at most before it adds to the result.
const TERMS: usize = 512;
/// Columns of a gathered right factor that are gathered at once.
const WIDE: usize = 2048;

/// Computes some rows of a product into memory of theirs.
pub(crate) type Band<'f> = &'f (dyn Fn(Range<usize>, &mut [u8]) + Sync);

/// A compiled product of matrices.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) dtype: DType,
    pub(crate) a: Side,
    pub(crate) b: Side,
    batch: Vec<usize>,
    sizes: (usize, usize, usize),
}

/// Where one factor lies: its number, and the digits of its coordinates.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) operand: usize,
    batch: Vec<Line>,
    offset: i64,
    /// Strides of its axis beside k and of k, or how its elements are gathered.
    place: Place,
}

#[derive(Debug)]
enum Place {
    Strided { beside: i64, k: i64 },
    Gathered(Gather),
}

/// A number of a matrix.
pub(crate) trait Float:
    Pod + Default + PartialEq + Send + Sync + std::ops::Mul<Output = Self> + std::ops::AddAssign
{
    const ONE: Self;
}
impl Float for f32 {
    const ONE: f32 = 1.0;
}
impl Float for f64 {
    const ONE: f64 = 1.0;
}

impl Side {
    fn new(group: &Group, (operand, index): (u16, u16), beside: usize) -> Option<Side> {
        let digits = group.body.indices[usize::from(index)].digits()?;
        let rank = group.dims.len();
        let (mn, k) = (&digits.axes[beside], &digits.axes[rank - 1]);
        let place = match (stride(mn), stride(k)) {
            (Some(beside), Some(k)) => Place::Strided { beside, k },
            _ => Place::Gathered(Gather::new((mn, group.dims[beside]), (k, group.dims[rank - 1]))),
        };
        Some(Side {
            operand: usize::from(operand),
            batch: digits.axes[..rank - 3].to_vec(),
            offset: digits.offset,
            place,
        })
    }

    /// Memory for so many gathered elements: none where they lie ready.
    pub(crate) fn gathered(&self, elems: usize) -> usize {
        if matches!(self.place, Place::Gathered(_)) { elems } else { 0 }
    }

    /// Whether all products of the batch have the same factor.
    pub(crate) fn stands_still(&self) -> bool {
        self.batch.iter().flatten().all(|(_, stride)| *stride == 0)
    }

    /// The first element of product `number` of the batch.
    pub(crate) fn start(&self, sizes: &[usize], number: usize) -> i64 {
        let (mut rest, mut start) = (number, self.offset);
        for (size, line) in sizes.iter().zip(&self.batch).rev() {
            let mut coord = rest % size;
            rest /= size;
            for (digits, stride) in line.iter().rev() {
                start += (coord % digits) as i64 * stride;
                coord /= digits;
            }
        }
        start
    }

    /// Rows `beside` and terms `k` of the factor as a matrix (beside, k); gathered into `buf` if need be.
    pub(crate) fn matrix<'a, T: Float>(
        &self,
        data: &'a [T],
        start: i64,
        beside: Range<usize>,
        k: Range<usize>,
        buf: &'a mut [T],
        parallel: bool,
    ) -> Mat<'a, T> {
        match &self.place {
            Place::Strided { beside: rows, k: cols } => {
                let start = start + beside.start as i64 * rows + k.start as i64 * cols;
                Mat { data, start: start as usize, rows: *rows, cols: *cols }
            }
            Place::Gathered(gather) => {
                let (rows, cols) = gather.fill(data, start, beside, k, buf, parallel);
                Mat { data: buf, start: 0, rows, cols }
            }
        }
    }
}

impl Product {
    pub(crate) fn new(group: &Group, dtype: DType) -> Option<Product> {
        let Kind::MatMul { a, b } = group.kind else { return None };
        let rank = group.dims.len();
        Some(Product {
            dtype,
            a: Side::new(group, a, rank - 3)?,
            b: Side::new(group, b, rank - 2)?,
            batch: group.dims[..rank - 3].to_vec(),
            sizes: (group.dims[rank - 3], group.dims[rank - 2], group.dims[rank - 1]),
        })
    }

    /// Elements of one product.
    pub(crate) fn elems(&self) -> usize {
        self.sizes.0 * self.sizes.1
    }

    /// Whether threads share the batch rather than each product.
    pub(crate) fn by_batch(&self) -> bool {
        let count: usize = self.batch.iter().product();
        let (m, n, k) = self.sizes;
        count >= pool::here() && count > 1 && count * m * n * k >= PARALLEL_MACS
    }

    /// Multiply-adds of the whole batch.
    pub(crate) fn work(&self) -> usize {
        let (m, n, k) = self.sizes;
        self.batch.iter().product::<usize>() * m * n * k
    }

    /// Rows of the product, where threads may each take a band of them: a product alone, whose sums do not
    /// depend on how many rows are taken at once.
    pub(crate) fn bands(&self) -> Option<usize> {
        let (m, n, k) = self.sizes;
        let alone = self.batch.iter().product::<usize>() == 1;
        let strided = matches!(self.b.place, Place::Strided { .. });
        (alone
            && strided
            && m * n * k >= PARALLEL_MACS
            && m >= 2 * MIN_BAND
            && n > LOW
            && k > 2
            && k <= 2 * DEEP)
            .then_some(m)
    }

    /// Calls `f` with what computes rows of the product, on any thread.
    pub(crate) fn by_bands(&self, a: Operand<'_>, b: Operand<'_>, f: &mut dyn FnMut(Band<'_>)) {
        match self.dtype {
            DType::F64 => self.bands_of::<f64>(a, b, f),
            _ => self.bands_of::<f32>(a, b, f),
        }
    }

    fn bands_of<T: Float>(&self, a: Operand<'_>, b: Operand<'_>, f: &mut dyn FnMut(Band<'_>)) {
        let (_, n, k) = self.sizes;
        let (a, b): (&[T], &[T]) = (cast_slice(bytes(a)), cast_slice(bytes(b)));
        let [a0, b0] = [&self.a, &self.b].map(|side| side.start(&self.batch, 0));
        let b = self.b.matrix(b, b0, 0..n, 0..k, &mut [], false);
        turned((n, k), Mat { rows: b.cols, cols: b.rows, ..b }, &mut |b| {
            f(&|rows, y| {
                let own = &mut vec![T::default(); self.a.gathered(rows.len() * k)];
                let size = (rows.len(), n, k);
                let a = self.a.matrix(a, a0, rows, 0..k, own, false);
                product(size, a, b, (cast_slice_mut(y), n), T::ONE, false);
            });
        });
    }

    /// The whole batch into `y`.
    pub(crate) fn run_all(&self, a: Operand<'_>, b: Operand<'_>, y: &mut [u8]) {
        let left = self.left(a);
        if self.by_batch() {
            let bytes = self.elems() * self.dtype.bytes();
            let at_once = (y.len() / bytes).div_ceil(pool::here() * 4);
            let run = |(i, y): (usize, &mut [u8])| self.run(a, b, left.as_ref(), i * at_once, y, false);
            share(y.chunks_mut(at_once * bytes).enumerate(), run);
        } else {
            self.run(a, b, left.as_ref(), 0, y, true);
        }
        left.into_iter().for_each(Left::done);
    }

    /// The left factor, where it is gathered for the whole batch.
    pub(crate) fn left(&self, a: Operand<'_>) -> Option<Left> {
        let (m, _, k) = self.sizes;
        if self.batch.iter().product::<usize>() < 2 || self.work() == 0 {
            return None;
        }
        match self.dtype {
            DType::F64 => Left::of::<f64>(&self.a, cast_slice(bytes(a)), (m, k)),
            _ => Left::of::<f32>(&self.a, cast_slice(bytes(a)), (m, k)),
        }
    }

    /// Products `first, first + 1, ..` of the batch into `y`.
    pub(crate) fn run(
        &self,
        a: Operand<'_>,
        b: Operand<'_>,
        left: Option<&Left>,
        first: usize,
        y: &mut [u8],
        parallel: bool,
    ) {
        let (a, b) = (bytes(a), bytes(b));
        match self.dtype {
            DType::F64 => {
                let y = cast_slice_mut(y);
                self.batches::<f64>(cast_slice(a), cast_slice(b), left, first, y, parallel);
            }
            _ => {
                let y = cast_slice_mut(y);
                self.batches::<f32>(cast_slice(a), cast_slice(b), left, first, y, parallel);
            }
        }
    }

    fn batches<T: Float>(
        &self,
        a: &[T],
        b: &[T],
        left: Option<&Left>,
        first: usize,
        y: &mut [T],
        parallel: bool,
    ) {
        let (m, n, k) = self.sizes;
        if m * n == 0 {
            return;
        }
        if k == 0 {
            return y.fill(T::default());
        }
        let parallel = parallel && m * n * k >= PARALLEL_MACS && pool::here() > 1;
        let mut own = [Vec::new(), Vec::new()];
        for (i, y) in y.chunks_exact_mut(m * n).enumerate() {
            let [a0, b0] = [&self.a, &self.b].map(|side| side.start(&self.batch, first + i));
            let parts = k.div_ceil(2 * DEEP).max(1);
            if parts == 1 {
                self.part((a, a0), (b, b0), left, 0..k, y, &mut own, parallel);
                continue;
            }
            let parts = k.div_ceil(DEEP);
            let range = |part: usize| part * DEEP..k.min((part + 1) * DEEP);
            let sum = |part: usize, own: &mut [Vec<u64>; 2], parallel: bool| {
                let mut sum = vec![T::default(); m * n];
                self.part((a, a0), (b, b0), left, range(part), &mut sum, own, parallel);
                sum
            };
            let add = |y: &mut [T], sum: Vec<T>| y.iter_mut().zip(sum).for_each(|(y, s)| *y += s);
            self.part((a, a0), (b, b0), left, range(0), y, &mut own, parallel);
            if parallel && m * n <= NARROW {
                let at_once = pool::here() * 2;
                for first in (1..parts).step_by(at_once) {
                    let some = first..parts.min(first + at_once);
                    let one = |part: usize| {
                        let mut own = [Vec::new(), Vec::new()];
                        let sum = sum(part, &mut own, false);
                        own.into_iter().for_each(give_words);
                        sum
                    };
                    let sums: Vec<_> = some.into_par_iter().map(one).collect();
                    sums.into_iter().for_each(|s| add(y, s));
                }
            } else {
                (1..parts).for_each(|p| add(y, sum(p, &mut own, parallel)));
            }
        }
        own.into_iter().for_each(give_words);
    }

    /// The product over some terms alone.
    #[expect(clippy::too_many_arguments, reason = "where factors and result lie, which has no other home")]
    fn part<T: Float>(
        &self,
        (a, a0): (&[T], i64),
        (b, b0): (&[T], i64),
        left: Option<&Left>,
        terms: Range<usize>,
        y: &mut [T],
        [own_a, own_b]: &mut [Vec<u64>; 2],
        parallel: bool,
    ) {
        let (m, n, _) = self.sizes;
        let k = terms.len();
        let left = left.map(|left| left.matrix(terms.start));
        if let Place::Gathered(right) = &self.b.place
            && m.min(n) > 1
            && m * n > SMALL
            && tiles::pay(m, n, k, right.along_k)
        {
            let (left_side, size, terms) = (&self.a, (m, n), terms.clone());
            let tiles = Tiles { left: left_side, right, a: (a, a0), b: (b, b0), size, terms };
            let threads = if parallel { pool::here() } else { 1 };
            let cuts = tiles.cuts(threads);
            if cuts.len() >= threads {
                return tiles.run(&cuts, left, y, parallel);
            }
        }
        let a = match left {
            Some(left) => left,
            None => {
                let own = grown(own_a, self.a.gathered(m * k));
                self.a.matrix(a, a0, 0..m, terms.clone(), own, parallel)
            }
        };
        let mut right = |columns: Range<usize>, f: &mut dyn FnMut(Mat<'_, T>)| {
            let own = grown(own_b, self.b.gathered(columns.len() * k));
            let b = self.b.matrix(b, b0, columns, terms.clone(), own, parallel);
            f(Mat { rows: b.cols, cols: b.rows, ..b });
        };
        match (m, n, k) {
            (_, _, 1 | 2) => right(0..n, &mut |b| outer(k, n, a, b, y)),
            (1, ..) => right(0..n, &mut |b| {
                dots(k, Mat { rows: b.cols, cols: b.rows, ..b }, a.data, (a.start, a.cols), y, parallel);
            }),
            (_, 1, _) => right(0..n, &mut |b| dots(k, a, b.data, (b.start, b.rows), y, parallel)),
            _ if m * n <= SMALL => right(0..n, &mut |b| {
                if a.cols != 1 || b.rows != 1 {
                    return product((m, n, k), a, b, (y, n), T::ONE, false);
                }
                let mut rows = Vec::with_capacity(k * n);
                (0..k).for_each(|i| rows.extend((0..n).map(|j| at(&b, i, j))));
                let b = Mat { data: &rows, start: 0, rows: n as i64, cols: 1 };
                product((m, n, k), a, b, (y, n), T::ONE, false);
            }),
            _ => {
                let some = match self.b.place {
                    Place::Strided { .. } => n,
                    Place::Gathered(_) => n.div_ceil(n.div_ceil(WIDE)).next_multiple_of(64),
                };
                for first in (0..n).step_by(some) {
                    let columns = first..n.min(first + some);
                    let size = (m, columns.len(), k);
                    right(columns, &mut |b| {
                        turned((size.1, k), b, &mut |b| {
                            if m > LOW || size.1 > LOW || k <= TERMS {
                                return product(size, a, b, (&mut y[first..], n), T::ONE, parallel);
                            }
                            // As for more rows or columns.
                            let some = terms_at_once(k);
                            for from in (0..k).step_by(some) {
                                let size = (m, size.1, some.min(k - from));
                                let (a, b, y) = (a.from(0, from), b.from(from, 0), (&mut y[first..], n));
                                match from {
                                    0 => product(size, a, b, y, T::ONE, false),
                                    _ => add_product(size, a, b, y, T::ONE),
                                }
                            }
                        });
                    });
                }
            }
        }
    }
}

/// Into parts of how many terms `gemm` cuts sums of `k`.
pub(crate) fn terms_at_once(k: usize) -> usize {
    k.div_ceil(k.div_ceil(TERMS))
}

/// Memory of a factor.
fn bytes(factor: Operand<'_>) -> &[u8] {
    match factor {
        Operand::Bytes { bytes, .. } => bytes,
        Operand::Output(_) => unreachable!("factors are never written in place"),
    }
}

/// Memory for so many elements, in place of `words` where those are too few.
fn grown<T: Float>(words: &mut Vec<u64>, elems: usize) -> &mut [T] {
    if words.len() * 8 < elems * size_of::<T>() {
        give_words(std::mem::take(words));
        *words = take_words::<T>(elems);
    }
    cast_slice_mut(words)
}

/// Calls `f` with the right factor, as rows that lie one after the other: one that lies by columns is turned
/// first, tile by tile, where `gemm` would pick it up element by element.
fn turned<T: Float>((n, k): (usize, usize), b: Mat<'_, T>, f: &mut dyn FnMut(Mat<'_, T>)) {
    let far = b.rows == 1 && b.cols > 1 && n * k >= TURN_ELEMS;
    if !far {
        return f(b);
    }
    let mut words = take_words::<T>(n * k);
    let y = &mut cast_slice_mut::<_, T>(&mut words)[..n * k];
    let axes = [(k, 1), (n, b.cols)].into_iter().collect();
    turn::typed(&Turned { axes, offset: b.start as i64, across: 0 }, b.data, y);
    f(Mat { data: y, start: 0, rows: n as i64, cols: 1 });
    give_words(words);
}

fn at<T: Copy>(x: &Mat<'_, T>, i: usize, j: usize) -> T {
    x.data[(x.start as i64 + i as i64 * x.rows + j as i64 * x.cols) as usize]
}

/// Products of `k` = 1 or 2 terms.
fn outer<T: Float>(k: usize, n: usize, a: Mat<'_, T>, b: Mat<'_, T>, y: &mut [T]) {
    let row = |l: usize| (0..n).map(|j| at(&b, l, j)).collect::<Vec<T>>();
    let (first, second) = (row(0), row(k - 1));
    for (i, y) in y.chunks_exact_mut(n).enumerate() {
        let (x, w) = (at(&a, i, 0), at(&a, i, k - 1));
        y.iter_mut().zip(&first).for_each(|(y, b)| *y = x * *b);
        if k == 2 {
            y.iter_mut().zip(&second).for_each(|(y, b)| *y += w * *b);
        }
    }
}

/// `y[i] = sum over j of a[i, j] x[j]`: position `j` goes to lane `j % LANES`, lanes fold by halves.
fn dots<T: Float>(
    k: usize,
    a: Mat<'_, T>,
    x: &[T],
    (start, stride): (usize, i64),
    y: &mut [T],
    parallel: bool,
) {
    let packed: Vec<T>;
    let x = if stride == 1 {
        &x[start..start + k]
    } else {
        packed = (0..k).map(|j| x[(start as i64 + j as i64 * stride) as usize]).collect();
        &packed
    };
    let rows = |first: usize, y: &mut [T]| {
        let a = Mat { start: (a.start as i64 + first as i64 * a.rows) as usize, ..a };
        pulp::Arch::new().dispatch(Dots { a, x, y });
    };
    match parallel {
        false => rows(0, y),
        true => {
            let step = y.len().div_ceil(pool::here() * 4).next_multiple_of(64);
            share(y.chunks_mut(step).enumerate(), |(i, y)| rows(i * step, y));
        }
    }
}

struct Dots<'a, T> {
    a: Mat<'a, T>,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Float> pulp::WithSimd for Dots<'_, T> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Dots { a, x, y } = self;
        if a.rows == 1 && y.len() > 1 {
            down(a, x, y);
        } else {
            along(a, x, y);
        }
    }
}

/// Rows contiguous, or gathered first.
#[inline(always)]
fn along<T: Float>(a: Mat<'_, T>, x: &[T], y: &mut [T]) {
    let mut gathered = Vec::new();
    for (i, y) in y.iter_mut().enumerate() {
        let row = if a.cols == 1 {
            &a.data[(a.start as i64 + i as i64 * a.rows) as usize..][..x.len()]
        } else {
            gathered.clear();
            gathered.extend((0..x.len()).map(|j| at(&a, i, j)));
            &gathered
        };
        let mut lanes = [T::default(); LANES];
        let (rows, rest) = row.as_chunks::<LANES>();
        let (xs, x_rest) = x.as_chunks::<LANES>();
        for (a, x) in rows.iter().zip(xs) {
            for l in 0..LANES {
                lanes[l] += a[l] * x[l];
            }
        }
        for ((lane, a), x) in lanes.iter_mut().zip(rest).zip(x_rest) {
            *lane += *a * *x;
        }
        let mut half = LANES;
        while half > 1 {
            half /= 2;
            let (low, high) = lanes.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(l, h)| *l += *h);
        }
        *y = lanes[0];
    }
}

/// Columns contiguous: the same lanes, for a block of rows at once.
#[inline(always)]
fn down<T: Float>(a: Mat<'_, T>, x: &[T], y: &mut [T]) {
    const WIDTH: usize = 64;
    for (block, y) in y.chunks_mut(WIDTH).enumerate() {
        let mut lanes = [[T::default(); WIDTH]; LANES];
        for (j, x) in x.iter().enumerate() {
            let from = (a.start as i64 + j as i64 * a.cols) as usize + block * WIDTH;
            let column = &a.data[from..from + y.len()];
            match <&[T; WIDTH]>::try_from(column) {
                Ok(column) => lanes[j % LANES].iter_mut().zip(column).for_each(|(l, a)| *l += *a * *x),
                Err(_) => lanes[j % LANES].iter_mut().zip(column).for_each(|(l, a)| *l += *a * *x),
            }
        }
        let mut half = LANES;
        while half > 1 {
            half /= 2;
            let (low, high) = lanes.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                low.iter_mut().zip(high).for_each(|(l, h)| *l += *h);
            }
        }
        y.copy_from_slice(&lanes[0][..y.len()]);
    }
}
