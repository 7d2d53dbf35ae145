//! Accumulation by a tree that the reduced size alone fixes: elements of a chunk go to lanes by their
//! position, lanes are folded by halves, chunks in pairs. Rows and columns meet in the same tree, so
//! results do not depend on layout, fusion or threads.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use wgrad_graph::{DType, Reduce};

/// Elements of a chunk.
pub(crate) const CHUNK: usize = 1024;
/// Lanes of a chunk; reductions of at most so many elements run in plain order.
pub(crate) const LANES: usize = 32;

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

/// What a loop over accumulators does.
enum Job<'a, T> {
    /// `acc[i] = op(acc[i], x[i])`, `x` wrapping around `acc` from position `phase` on.
    Wrap { acc: &'a mut [T], x: &'a [T], phase: usize },
    /// Each of `y` is the fold of a row of `r` elements of `x`.
    Rows { x: &'a [T], r: usize, y: &'a mut [T] },
    /// Folds rows of `width` elements by halves into the first.
    Halve { acc: &'a mut [T], width: usize },
}

struct Loop<'a, T> {
    kind: Reduce,
    job: Job<'a, T>,
}

impl<T: Num> pulp::WithSimd for Loop<'_, T> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match self.kind {
            Reduce::Sum => go(self.job, T::identity(self.kind), T::add),
            Reduce::Prod => go(self.job, T::identity(self.kind), T::mul),
            Reduce::Max => go(self.job, T::identity(self.kind), T::greater),
            Reduce::Min => go(self.job, T::identity(self.kind), T::smaller),
        }
    }
}

#[inline(always)]
fn go<T: Num>(job: Job<'_, T>, identity: T, f: impl Fn(T, T) -> T + Copy) {
    match job {
        Job::Wrap { acc, x, phase } => {
            if phase == 0
                && let Ok(lanes) = <&mut [T; LANES]>::try_from(&mut *acc)
            {
                lanewise(lanes, x, f);
                return;
            }
            let (first, rest) = x.split_at(x.len().min(acc.len() - phase));
            each(&mut acc[phase..], first, f);
            rest.chunks(acc.len()).for_each(|x| each(acc, x, f));
        }
        Job::Rows { x, r, y } => {
            for (y, x) in y.iter_mut().zip(x.chunks_exact(r)) {
                *y = if r <= LANES {
                    x.iter().fold(identity, |y, x| f(y, *x))
                } else {
                    let mut lanes = [identity; LANES];
                    lanewise(&mut lanes, x, f);
                    halve(&mut lanes, 1, f);
                    lanes[0]
                };
            }
        }
        Job::Halve { acc, width } => halve(acc, width, f),
    }
}

#[inline(always)]
fn each<T: Num>(acc: &mut [T], x: &[T], f: impl Fn(T, T) -> T) {
    acc.iter_mut().zip(x).for_each(|(a, x)| *a = f(*a, *x));
}

#[inline(always)]
fn lanewise<T: Num>(acc: &mut [T; LANES], x: &[T], f: impl Fn(T, T) -> T) {
    let mut lanes = *acc;
    let (rows, rest) = x.as_chunks::<LANES>();
    for row in rows {
        for l in 0..LANES {
            lanes[l] = f(lanes[l], row[l]);
        }
    }
    for (a, x) in lanes.iter_mut().zip(rest) {
        *a = f(*a, *x);
    }
    *acc = lanes;
}

#[inline(always)]
fn halve<T: Num>(acc: &mut [T], width: usize, f: impl Fn(T, T) -> T) {
    let mut rows = acc.len() / width;
    while rows > 1 {
        rows /= 2;
        let (low, high) = acc.split_at_mut(rows * width);
        low.iter_mut().zip(high).for_each(|(a, x)| *a = f(*a, *x));
    }
}

fn dispatch<T: Num>(kind: Reduce, job: Job<'_, T>) {
    pulp::Arch::new().dispatch(Loop { kind, job });
}

/// Calls `$f::<T>(..)` for the type of a dtype that reductions take.
macro_rules! typed {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F32 => $f::<f32>($($arg),*),
            DType::F64 => $f::<f64>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::U32 => $f::<u32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::Bool | DType::U8 | DType::F16 | DType::BF16 => {
                unreachable!("not reduced, checked when recorded")
            }
        }
    };
}

/// Fills accumulators with the value that changes nothing.
pub(crate) fn clear(kind: Reduce, dtype: DType, acc: &mut [u8]) {
    fn run<T: Num>(kind: Reduce, acc: &mut [u8]) {
        cast_slice_mut::<_, T>(acc).fill(T::identity(kind));
    }
    typed!(dtype, run(kind, acc));
}

/// `acc[i] = op(acc[i], x[i])`, `x` wrapping around `acc` from position `phase` on.
pub(crate) fn wrap(kind: Reduce, dtype: DType, acc: &mut [u8], x: &[u8], phase: usize) {
    fn run<T: Num>(kind: Reduce, acc: &mut [u8], x: &[u8], phase: usize) {
        dispatch::<T>(kind, Job::Wrap { acc: cast_slice_mut(acc), x: cast_slice(x), phase });
    }
    typed!(dtype, run(kind, acc, x, phase));
}

/// Each of `y` is the whole reduction of a row of `r` (1 to [`CHUNK`]) elements.
pub(crate) fn rows(kind: Reduce, dtype: DType, x: &[u8], r: usize, y: &mut [u8]) {
    fn run<T: Num>(kind: Reduce, x: &[u8], r: usize, y: &mut [u8]) {
        dispatch::<T>(kind, Job::Rows { x: cast_slice(x), r, y: cast_slice_mut(y) });
    }
    typed!(dtype, run(kind, x, r, y));
}

/// Folds lanes of `width` elements, a power of two of them, by halves into the first.
pub(crate) fn halves(kind: Reduce, dtype: DType, acc: &mut [u8], width: usize) {
    fn run<T: Num>(kind: Reduce, acc: &mut [u8], width: usize) {
        dispatch::<T>(kind, Job::Halve { acc: cast_slice_mut(acc), width });
    }
    typed!(dtype, run(kind, acc, width));
}

/// Folds `chunks` rows of `width` elements in pairs into the first.
pub(crate) fn pairs(kind: Reduce, dtype: DType, part: &mut [u8], chunks: usize, width: usize) {
    let bytes = width * dtype.bytes();
    let mut step = 1;
    while step < chunks {
        for i in (0..chunks - step).step_by(2 * step) {
            let (low, high) = part.split_at_mut((i + step) * bytes);
            wrap(kind, dtype, &mut low[i * bytes..(i + 1) * bytes], &high[..bytes], 0);
        }
        step *= 2;
    }
}
