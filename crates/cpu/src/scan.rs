//! Scans: a state runs along each line. Blocks of lines are spread over threads; inside a block the lines
//! advance together, so that neighbours in memory are read together.

use bytemuck::Pod;
use wgrad_graph::{DType, Lines, Scan};

use crate::share::share;
use crate::tail;
use crate::whole::Whole;

/// Fewest neighbouring lines that are worth a thread of their own.
const WIDE: usize = 64;

/// An element and the state that accumulates it: floats in f64, so that long sums do not drift.
pub(crate) trait Elem: Pod + Send + Sync + PartialOrd {
    type State: Copy + Send + Sync;
    const ZERO: Self::State;
    const ONE: Self::State;
    fn state(self) -> Self::State;
    fn elem(state: Self::State) -> Self;
    fn plus(a: Self::State, b: Self::State) -> Self::State;
    fn times(a: Self::State, b: Self::State) -> Self::State;
    fn nan(self) -> bool;
}

macro_rules! floats {
    ($($t:ty)*) => {$(
        impl Elem for $t {
            type State = f64;
            const ZERO: f64 = 0.0;
            const ONE: f64 = 1.0;
            #[inline(always)]
            fn state(self) -> f64 { self.into() }
            #[inline(always)]
            fn elem(state: f64) -> $t { state as $t }
            #[inline(always)]
            fn plus(a: f64, b: f64) -> f64 { a + b }
            #[inline(always)]
            fn times(a: f64, b: f64) -> f64 { a * b }
            #[inline(always)]
            fn nan(self) -> bool { self.is_nan() }
        }
    )*};
}
floats!(f32 f64);

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Elem for $t {
            type State = $t;
            const ZERO: $t = 0;
            const ONE: $t = 1;
            #[inline(always)]
            fn state(self) -> $t { self }
            #[inline(always)]
            fn elem(state: $t) -> $t { state }
            #[inline(always)]
            fn plus(a: $t, b: $t) -> $t { a.wrapping_add(b) }
            #[inline(always)]
            fn times(a: $t, b: $t) -> $t { a.wrapping_mul(b) }
            #[inline(always)]
            fn nan(self) -> bool { false }
        }
    )*};
}
integers!(i32 u32 i64);

/// `log(e^x + e^w)`.
pub(crate) fn log_add_exp(x: f64, w: f64) -> f64 {
    let top = if x.is_nan() || x > w { x } else { w };
    // Equal infinities have no difference.
    if x == w { top + std::f64::consts::LN_2 } else { top + (-(x - w).abs()).exp().ln_1p() }
}

/// Whether `x` follows `best` as the extreme so far: NaN first, of equal ones the latest.
#[inline(always)]
#[expect(clippy::needless_pass_by_value, reason = "numbers; generic, so the lint cannot see it")]
pub(crate) fn follows<T: PartialOrd>(max: bool, x: T, best: T, nan: impl Fn(&T) -> bool) -> bool {
    nan(&x) || !nan(&best) && if max { x >= best } else { x <= best }
}

pub(crate) fn run(kind: Scan, lines: Lines, reverse: bool, ins: &[Whole<'_>], to: &mut [u8]) {
    let walk = Walk { lines, reverse };
    match ins[0].out.dtype {
        DType::F32 => walk.typed::<f32>(kind, ins, to),
        DType::F64 => walk.typed::<f64>(kind, ins, to),
        DType::I32 => walk.typed::<i32>(kind, ins, to),
        DType::U32 => walk.typed::<u32>(kind, ins, to),
        DType::I64 => walk.typed::<i64>(kind, ins, to),
        DType::Bool | DType::U8 | DType::F16 | DType::BF16 => {
            unreachable!("not scanned, checked when recorded")
        }
    }
}

#[derive(Copy, Clone)]
struct Walk {
    lines: Lines,
    reverse: bool,
}

impl Walk {
    fn typed<T: Elem>(self, kind: Scan, ins: &[Whole<'_>], to: &mut [u8]) {
        let x: &[T] = ins[0].elems();
        match kind {
            Scan::Sum => self.each(to, T::ZERO, |s, e, _| {
                *s = T::plus(*s, x[e].state());
                T::elem(*s)
            }),
            Scan::Prod => self.each(to, T::ONE, |s, e, _| {
                *s = T::times(*s, x[e].state());
                T::elem(*s)
            }),
            Scan::Recur => {
                let b: &[T] = ins[1].elems();
                // The first state is 0 whatever its factor: infinity has no product with 0.
                self.each(to, None, |s: &mut Option<T::State>, e, _| {
                    let now = b[e].state();
                    let now = s.map_or(now, |s| T::plus(T::times(x[e].state(), s), now));
                    *s = Some(now);
                    T::elem(now)
                });
            }
            Scan::ArgMax | Scan::ArgMin => {
                let max = kind == Scan::ArgMax;
                self.each(to, None, |s: &mut Option<(T, i32)>, e, at| {
                    let best = match *s {
                        Some(best) if !follows(max, x[e], best.0, |x| x.nan()) => best,
                        _ => (x[e], at as i32),
                    };
                    *s = Some(best);
                    best.1
                });
            }
            Scan::LogAddExp => match ins[0].out.dtype {
                DType::F32 => self.log_add_exp::<f32>(ins[0].elems(), to),
                _ => self.log_add_exp::<f64>(ins[0].elems(), to),
            },
        }
    }

    fn log_add_exp<T: Elem<State = f64>>(self, x: &[T], to: &mut [u8]) {
        self.each(to, f64::NEG_INFINITY, |s, e, _| {
            *s = log_add_exp(*s, x[e].state());
            T::elem(*s)
        });
    }

    /// Fills `to`: `step` takes a line's state, the element and its place on the line to the result.
    fn each<S: Copy + Send + Sync, Y: Pod + Send>(
        self,
        to: &mut [u8],
        start: S,
        step: impl Fn(&mut S, usize, usize) -> Y + Sync,
    ) {
        let Lines { n, inner, .. } = self.lines;
        let to: &mut [Y] = bytemuck::cast_slice_mut(to);
        if to.is_empty() {
            return;
        }
        let parts = tail::parts(self.lines.elems() * 4);
        let block = n * inner;
        // Rows of a block cut into ranges of neighbouring lines, where there are too few blocks.
        let width = match self.lines.outer < parts {
            true => inner.div_ceil(parts).max(WIDE.min(inner)),
            false => inner,
        };
        let mut tasks: Vec<(usize, Vec<&mut [Y]>)> = Vec::new();
        for (b, block_of) in to.chunks_mut(block).enumerate() {
            if width == inner {
                tasks.push((b * block, vec![block_of]));
                continue;
            }
            let first = tasks.len();
            tasks.extend((0..inner).step_by(width).map(|c| (b * block + c, Vec::with_capacity(n))));
            for row in block_of.chunks_mut(inner) {
                row.chunks_mut(width).enumerate().for_each(|(c, part)| tasks[first + c].1.push(part));
            }
        }
        let place = |t: usize| if self.reverse { n - 1 - t } else { t };
        let task = |(first, mut rows): (usize, Vec<&mut [Y]>)| {
            if let ([all], 1) = (rows.as_mut_slice(), inner) {
                let mut state = start;
                for t in 0..n {
                    let at = place(t);
                    all[at] = step(&mut state, first + at, at);
                }
                return;
            }
            let whole = rows.len() == 1;
            let lines = if whole { inner } else { rows[0].len() };
            let mut states = vec![start; lines];
            for t in 0..n {
                let at = place(t);
                let row = if whole { &mut rows[0][at * inner..][..inner] } else { &mut *rows[at] };
                for (c, (y, state)) in row.iter_mut().zip(&mut states).enumerate() {
                    *y = step(state, first + at * inner + c, at);
                }
            }
        };
        if parts == 1 {
            tasks.into_iter().for_each(task);
        } else {
            share(tasks.into_iter(), task);
        }
    }
}
