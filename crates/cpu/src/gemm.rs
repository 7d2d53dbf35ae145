//! The one door to the `gemm` crate, and the only unsafe code of this crate.
#![expect(unsafe_code, reason = "gemm takes raw pointers; every element it touches is checked here first")]

use gemm::Parallelism;

use crate::pool;

/// A matrix in memory: element `(i, j)` is `data[start + i * rows + j * cols]`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mat<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) start: usize,
    pub(crate) rows: i64,
    pub(crate) cols: i64,
}

impl<T> Mat<'_, T> {
    /// Rows as columns.
    pub(crate) fn turned(self) -> Self {
        Mat { rows: self.cols, cols: self.rows, ..self }
    }

    /// The matrix from element `(i, j)` on.
    pub(crate) fn from(self, i: usize, j: usize) -> Self {
        let start = self.start as i64 + i as i64 * self.rows + j as i64 * self.cols;
        Mat { start: start as usize, ..self }
    }

    /// Whether every element of `m x n` lies in the data.
    fn holds(&self, m: usize, n: usize) -> bool {
        let span = |count: usize, stride: i64| {
            let end = (count as i64 - 1) * stride;
            (end.min(0), end.max(0))
        };
        let ((r0, r1), (c0, c1)) = (span(m, self.rows), span(n, self.cols));
        let start = self.start as i64;
        start + r0 + c0 >= 0 && start + r1 + c1 < self.data.len() as i64
    }
}

/// `y = a b` for `a` of `m x k` and `b` of `k x n`, rows of `y` `wide` apart; `m`, `n` and `k` at least 1.
///
/// # Panics
/// When an operand does not lie in its memory.
pub(crate) fn product<T: Copy + Default + PartialEq + 'static>(
    sizes: (usize, usize, usize),
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    y: (&mut [T], usize),
    one: T,
    parallel: bool,
) {
    gemm(sizes, a, b, y, [T::default(), one], parallel);
}

/// `y += a b`, as [`product`], by one thread.
///
/// # Panics
/// When an operand does not lie in its memory.
pub(crate) fn add_product<T: Copy + Default + PartialEq + 'static>(
    sizes: (usize, usize, usize),
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    y: (&mut [T], usize),
    one: T,
) {
    gemm(sizes, a, b, y, [one, one], false);
}

/// `y = keep y + one a b`.
fn gemm<T: Copy + Default + PartialEq + 'static>(
    (m, n, k): (usize, usize, usize),
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    (y, wide): (&mut [T], usize),
    [keep, one]: [T; 2],
    parallel: bool,
) {
    let fits = wide >= n && y.len() >= (m - 1) * wide + n;
    assert!(a.holds(m, k) && b.holds(k, n) && fits, "operands lie in their memory");
    let parallelism = if parallel && pool::here() > 1 { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: T is f32 or f64 (gemm panics on others); all elements of a, b and y that strides and
    // sizes lead to lie in their slices, checked above; y is borrowed alone.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            wide as isize,
            keep != T::default(),
            a.data.as_ptr().add(a.start),
            a.cols as isize,
            a.rows as isize,
            b.data.as_ptr().add(b.start),
            b.cols as isize,
            b.rows as isize,
            keep,
            one,
            false,
            false,
            false,
            parallelism,
        );
    }
}
