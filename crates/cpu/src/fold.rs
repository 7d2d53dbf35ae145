//! Accumulation by a tree that the reduced size alone fixes: elements of a chunk go to lanes by their
//! position, lanes are folded by halves, chunks in pairs. Rows and columns meet in the same tree, so
//! results do not depend on layout, fusion or threads.
//!
//! A sum of f32 is kept in f64 within a chunk and rounded once: a lane adds up to 32 elements one after the
//! other, which in f32 would drift by some units of the last place where they are equal.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use wgrad_graph::{DType, Reduce};

/// Elements of a chunk.
pub(crate) const CHUNK: usize = 1024;
/// Lanes of a chunk; reductions of at most so many elements run in plain order.
pub(crate) const LANES: usize = 32;

/// Rows that [`stack`] takes.
pub(crate) const STACK: usize = 8;

/// Lanes of a reduction of `r` elements.
pub(crate) fn lanes(r: usize) -> usize {
    if r <= LANES { 1 } else { LANES }
}

/// An element that reductions take.
pub(crate) trait Num: Pod + PartialOrd + Send + Sync {
    fn identity(kind: Reduce) -> Self;
    fn add(self, x: Self) -> Self;
    fn mul(self, x: Self) -> Self;
    /// The greater; NaN if any is.
    fn greater(self, x: Self) -> Self;
    /// The smaller; NaN if any is.
    fn smaller(self, x: Self) -> Self;
}

macro_rules! nums {
    ($($t:ty: $zero:expr, $one:expr, $low:expr, $high:expr, $add:expr, $mul:expr;)*) => {$(
        impl Num for $t {
            #[inline(always)]
            fn identity(kind: Reduce) -> $t {
                match kind {
                    Reduce::Sum => $zero,
                    Reduce::Prod => $one,
                    Reduce::Max => $low,
                    Reduce::Min => $high,
                }
            }
            #[inline(always)]
            fn add(self, x: $t) -> $t {
                $add(self, x)
            }
            #[inline(always)]
            fn mul(self, x: $t) -> $t {
                $mul(self, x)
            }
            #[inline(always)]
            fn greater(self, x: $t) -> $t {
                if x > self || x != x { x } else { self }
            }
            #[inline(always)]
            fn smaller(self, x: $t) -> $t {
                if x < self || x != x { x } else { self }
            }
        }
    )*};
}
nums! {
    f32: 0.0, 1.0, f32::NEG_INFINITY, f32::INFINITY, |a, b| a + b, |a, b| a * b;
    f64: 0.0, 1.0, f64::NEG_INFINITY, f64::INFINITY, |a, b| a + b, |a, b| a * b;
    i32: 0, 1, i32::MIN, i32::MAX, i32::wrapping_add, i32::wrapping_mul;
    u32: 0, 1, 0, u32::MAX, u32::wrapping_add, u32::wrapping_mul;
    i64: 0, 1, i64::MIN, i64::MAX, i64::wrapping_add, i64::wrapping_mul;
}

/// What elements `T` are accumulated in.
trait Wide<T>: Num {
    fn widen(x: T) -> Self;
    fn narrow(self) -> T;
}

impl<T: Num> Wide<T> for T {
    #[inline(always)]
    fn widen(x: T) -> T {
        x
    }
    #[inline(always)]
    fn narrow(self) -> T {
        self
    }
}

impl Wide<f32> for f64 {
    #[inline(always)]
    fn widen(x: f32) -> f64 {
        f64::from(x)
    }
    #[inline(always)]
    fn narrow(self) -> f32 {
        self as f32
    }
}

/// The dtype of the lanes of a chunk.
pub(crate) fn wide(kind: Reduce, dtype: DType) -> DType {
    if let (Reduce::Sum, DType::F32) = (kind, dtype) { DType::F64 } else { dtype }
}

/// What a loop over accumulators does.
enum Job<'a, A, T> {
    /// `acc[i] = op(acc[i], x[i])`, `x` wrapping around `acc` from position `phase` on.
    Wrap { acc: &'a mut [A], x: &'a [T], phase: usize },
    /// `acc[i] = op(.. op(acc[i], rows[0][i]) .., rows[7][i])`
    Stack { acc: &'a mut [A], rows: [&'a [T]; STACK] },
    /// Each of `y` is the fold of a row of `r` elements of `x`.
    Rows { x: &'a [T], r: usize, y: &'a mut [T] },
    /// Folds rows of `y.len()` elements by halves into `y`.
    Halve { acc: &'a mut [A], y: &'a mut [T] },
}

struct Loop<'a, A, T> {
    kind: Reduce,
    job: Job<'a, A, T>,
}

impl<A: Wide<T>, T: Num> pulp::WithSimd for Loop<'_, A, T> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match self.kind {
            Reduce::Sum => go(self.job, false, A::identity(self.kind), A::add),
            Reduce::Prod => go(self.job, false, A::identity(self.kind), A::mul),
            Reduce::Max => go(self.job, true, A::identity(self.kind), A::greater),
            Reduce::Min => go(self.job, true, A::identity(self.kind), A::smaller),
        }
    }
}

#[inline(always)]
fn go<A: Wide<T>, T: Num>(job: Job<'_, A, T>, free: bool, identity: A, f: impl Fn(A, A) -> A + Copy) {
    match job {
        Job::Wrap { acc, x, phase } => {
            if phase == 0
                && let Ok(lanes) = <&mut [A; LANES]>::try_from(&mut *acc)
            {
                lanewise(lanes, x, free, f);
                return;
            }
            let (first, rest) = x.split_at(x.len().min(acc.len() - phase));
            each(&mut acc[phase..], first, f);
            rest.chunks(acc.len()).for_each(|x| each(acc, x, f));
        }
        Job::Stack { acc, rows } => {
            let rows = rows.map(|row| &row[..acc.len()]);
            for (i, acc) in acc.iter_mut().enumerate() {
                let mut a = *acc;
                for row in rows {
                    a = f(a, A::widen(row[i]));
                }
                *acc = a;
            }
        }
        Job::Rows { x, r, y } => {
            for (y, x) in y.iter_mut().zip(x.chunks_exact(r)) {
                *y = if r <= LANES {
                    x.iter().fold(identity, |y, x| f(y, A::widen(*x))).narrow()
                } else {
                    let mut lanes = [identity; LANES];
                    lanewise(&mut lanes, x, free, f);
                    halve(&mut lanes, 1, f);
                    lanes[0].narrow()
                };
            }
        }
        Job::Halve { acc, y } => {
            halve(acc, y.len(), f);
            y.iter_mut().zip(acc).for_each(|(y, a)| *y = a.narrow());
        }
    }
}

#[inline(always)]
fn each<A: Wide<T>, T: Num>(acc: &mut [A], x: &[T], f: impl Fn(A, A) -> A) {
    acc.iter_mut().zip(x).for_each(|(a, x)| *a = f(*a, A::widen(*x)));
}

/// Rows of lanes that are folded in one turn of the loop.
const AT_ONCE: usize = 8;

/// `free`: whether `f` may be grouped in any way, to the bit.
#[inline(always)]
fn lanewise<A: Wide<T>, T: Num>(acc: &mut [A; LANES], x: &[T], free: bool, f: impl Fn(A, A) -> A + Copy) {
    // A length that the compiler does not know keeps the loop over lanes a loop, which becomes vector code;
    // unrolled, it would be taken apart into one number after the other.
    let n = std::hint::black_box(LANES).min(LANES);
    let (rows, rest) = x.as_chunks::<LANES>();
    let (eights, single) = rows.as_chunks::<AT_ONCE>();
    for r in eights {
        for l in 0..n {
            let mut a = acc[l];
            if free {
                // No operation waits for the one before; which of equals is kept does not change.
                let pair = |i: usize| f(A::widen(r[i][l]), A::widen(r[i + 1][l]));
                a = f(a, f(f(pair(0), pair(2)), f(pair(4), pair(6))));
            } else {
                for row in r {
                    a = f(a, A::widen(row[l]));
                }
            }
            acc[l] = a;
        }
    }
    for row in single {
        for l in 0..n {
            acc[l] = f(acc[l], A::widen(row[l]));
        }
    }
    for (a, x) in acc.iter_mut().zip(rest) {
        *a = f(*a, A::widen(*x));
    }
}

/// Folds rows of `width` by halves into the first.
#[inline(always)]
pub(crate) fn halve<T: Num>(acc: &mut [T], width: usize, f: impl Fn(T, T) -> T) {
    let mut rows = acc.len() / width;
    while rows > 1 {
        rows /= 2;
        let (low, high) = acc.split_at_mut(rows * width);
        low.iter_mut().zip(high).for_each(|(a, x)| *a = f(*a, *x));
    }
}

fn dispatch<A: Wide<T>, T: Num>(kind: Reduce, job: Job<'_, A, T>) {
    pulp::Arch::new().dispatch(Loop { kind, job });
}

/// Calls `$f::<A, T>(..)` for the types of lanes and elements.
macro_rules! typed {
    ($kind:expr, $dtype:expr, $f:ident($($arg:expr),*)) => {
        match ($dtype, wide($kind, $dtype)) {
            (DType::F32, DType::F64) => $f::<f64, f32>($($arg),*),
            (DType::F32, _) => $f::<f32, f32>($($arg),*),
            (DType::F64, _) => $f::<f64, f64>($($arg),*),
            (DType::I32, _) => $f::<i32, i32>($($arg),*),
            (DType::U32, _) => $f::<u32, u32>($($arg),*),
            (DType::I64, _) => $f::<i64, i64>($($arg),*),
            (DType::Bool | DType::U8 | DType::F16 | DType::BF16, _) => {
                unreachable!("not reduced, checked when recorded")
            }
        }
    };
}

/// Fills lanes with the value that changes nothing.
pub(crate) fn clear(kind: Reduce, dtype: DType, acc: &mut [u8]) {
    fn run<A: Wide<T>, T: Num>(kind: Reduce, acc: &mut [u8]) {
        cast_slice_mut::<_, A>(acc).fill(A::identity(kind));
    }
    typed!(kind, dtype, run(kind, acc));
}

/// `acc[i] = op(acc[i], x[i])` for lanes `acc`, `x` wrapping around them from position `phase` on.
pub(crate) fn wrap(kind: Reduce, dtype: DType, acc: &mut [u8], x: &[u8], phase: usize) {
    fn run<A: Wide<T>, T: Num>(kind: Reduce, acc: &mut [u8], x: &[u8], phase: usize) {
        dispatch::<A, T>(kind, Job::Wrap { acc: cast_slice_mut(acc), x: cast_slice(x), phase });
    }
    typed!(kind, dtype, run(kind, acc, x, phase));
}

/// `acc[i] = op(.. op(acc[i], rows[0][i]) .., rows[7][i])`
pub(crate) fn stack(kind: Reduce, dtype: DType, acc: &mut [u8], rows: [&[u8]; STACK]) {
    fn run<A: Wide<T>, T: Num>(kind: Reduce, acc: &mut [u8], rows: [&[u8]; STACK]) {
        dispatch::<A, T>(kind, Job::Stack { acc: cast_slice_mut(acc), rows: rows.map(cast_slice) });
    }
    typed!(kind, dtype, run(kind, acc, rows));
}

/// Each of `y` is the whole reduction of a row of `r` (1 to [`CHUNK`]) elements.
pub(crate) fn rows(kind: Reduce, dtype: DType, x: &[u8], r: usize, y: &mut [u8]) {
    fn run<A: Wide<T>, T: Num>(kind: Reduce, x: &[u8], r: usize, y: &mut [u8]) {
        dispatch::<A, T>(kind, Job::Rows { x: cast_slice(x), r, y: cast_slice_mut(y) });
    }
    typed!(kind, dtype, run(kind, x, r, y));
}

/// Folds lanes of as many elements as `y` has, a power of two of them, by halves into `y`.
pub(crate) fn halves(kind: Reduce, dtype: DType, acc: &mut [u8], y: &mut [u8]) {
    fn run<A: Wide<T>, T: Num>(kind: Reduce, acc: &mut [u8], y: &mut [u8]) {
        dispatch::<A, T>(kind, Job::Halve { acc: cast_slice_mut(acc), y: cast_slice_mut(y) });
    }
    typed!(kind, dtype, run(kind, acc, y));
}

/// Folds `chunks` rows of `width` elements in pairs into the first.
pub(crate) fn pairs(kind: Reduce, dtype: DType, part: &mut [u8], chunks: usize, width: usize) {
    fn run<A: Wide<T>, T: Num>(kind: Reduce, part: &mut [u8], chunks: usize, width: usize) {
        let part: &mut [T] = cast_slice_mut(part);
        let mut step = 1;
        while step < chunks {
            for i in (0..chunks - step).step_by(2 * step) {
                let (low, high) = part.split_at_mut((i + step) * width);
                let (acc, x) = (&mut low[i * width..(i + 1) * width], &high[..width]);
                dispatch::<T, T>(kind, Job::Wrap { acc, x, phase: 0 });
            }
            step *= 2;
        }
    }
    typed!(kind, dtype, run(kind, part, chunks, width));
}
