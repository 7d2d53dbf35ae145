//! Scatter: every thread owns a part of the output's memory, scans all values in order, and combines
//! those that fall into its part; so each element receives its terms in ascending order.

use wgrad_graph::{DType, Group, Kind, Reduce};

use crate::access::{Access, Class};
use crate::lookup::Wide;
use crate::machine::{Flag, Operand, integer};
use crate::pool;
use crate::share::share;
use crate::tail;

/// Single values that are looked at before those of a part are combined.
const AT_ONCE: usize = 512;

/// Bytes of results that lie in a cache.
const CACHED: usize = 4 << 20;

/// A compiled scatter. Accesses iterate over `[i, columns..]`.
#[derive(Debug)]
pub(crate) struct Scatter {
    at: (usize, Access),
    at_dtype: DType,
    src: (usize, Access),
    to: Access,
    dtype: DType,
    kind: Reduce,
    stride: i64,
    size: usize,
    /// Sizes of the scattered axis of the values and of the columns.
    count: usize,
    columns: usize,
    /// Positions in `[columns.., i]` order, for messages about the first index out of range.
    elems: usize,
}

/// Values that combine where they arrive.
trait Join: bytemuck::Pod + Send + Sync {
    /// The neutral element.
    fn none(kind: Reduce) -> Self;
    fn plus(self, x: Self) -> Self;
    fn times(self, x: Self) -> Self;
    fn larger(self, x: Self) -> Self;
    fn smaller(self, x: Self) -> Self;
}
macro_rules! joins {
    ($($t:ty: $low:expr, $high:expr, $one:expr, $plus:expr, $times:expr, $larger:expr, $smaller:expr;)*) => {$(
        impl Join for $t {
            fn none(kind: Reduce) -> $t {
                match kind {
                    Reduce::Sum => <$t>::default(),
                    Reduce::Prod => $one,
                    Reduce::Max => $low,
                    Reduce::Min => $high,
                }
            }
            #[inline(always)]
            fn plus(self, x: $t) -> $t {
                $plus(self, x)
            }
            #[inline(always)]
            fn times(self, x: $t) -> $t {
                $times(self, x)
            }
            #[inline(always)]
            fn larger(self, x: $t) -> $t {
                $larger(self, x)
            }
            #[inline(always)]
            fn smaller(self, x: $t) -> $t {
                $smaller(self, x)
            }
        }
    )*};
}
// Extremes of floats keep NaN.
joins! {
    f32: f32::NEG_INFINITY, f32::INFINITY, 1.0, |a, b| a + b, |a, b| a * b,
        |a: f32, b: f32| if a.is_nan() || a > b { a } else { b }, |a: f32, b: f32| if a.is_nan() || a < b { a } else { b };
    f64: f64::NEG_INFINITY, f64::INFINITY, 1.0, |a, b| a + b, |a, b| a * b,
        |a: f64, b: f64| if a.is_nan() || a > b { a } else { b }, |a: f64, b: f64| if a.is_nan() || a < b { a } else { b };
    i32: i32::MIN, i32::MAX, 1, i32::wrapping_add, i32::wrapping_mul, i32::max, i32::min;
    i64: i64::MIN, i64::MAX, 1, i64::wrapping_add, i64::wrapping_mul, i64::max, i64::min;
    u32: 0, u32::MAX, 1, u32::wrapping_add, u32::wrapping_mul, u32::max, u32::min;
}

/// What a part of the output is made of; its first element is element `first` of the value.
struct From<'a, T> {
    at: &'a [u8],
    src: &'a [T],
    scalars: &'a [f64],
    flag: Option<&'a Flag>,
    first: i64,
}

impl Scatter {
    pub(crate) fn new(group: &Group, at_dtype: DType, dtype: DType) -> Option<Scatter> {
        let Kind::Scatter { at, src, stride, size, kind } = group.kind else { return None };
        let rank = group.dims.len();
        let mut order: Vec<usize> = (0..rank - 1).collect();
        order.insert(0, rank - 1);
        let index = |i: u16| &group.body.indices[usize::from(i)];
        let columns: usize = group.outer().iter().product();
        Some(Scatter {
            at: (usize::from(at.0), Access::new(index(at.1), Some(&order))),
            at_dtype,
            src: (usize::from(src.0), Access::new(index(src.1), Some(&order))),
            to: Access::new(index(group.stores[0].index), None),
            dtype,
            kind,
            stride,
            size,
            count: group.dims[rank - 1],
            columns,
            elems: columns * group.dims[rank - 1],
        })
    }

    pub(crate) fn run(&self, operands: &[Operand<'_>], scalars: &[f64], flag: &Flag, out: &mut [u8]) {
        let Operand::Bytes { bytes: at, .. } = operands[self.at.0] else { unreachable!("not in place") };
        let Operand::Bytes { bytes: src, .. } = operands[self.src.0] else { unreachable!("not in place") };
        match self.dtype {
            DType::F32 => self.typed::<f32>(at, src, scalars, flag, out),
            DType::F64 => self.typed::<f64>(at, src, scalars, flag, out),
            DType::I32 => self.typed::<i32>(at, src, scalars, flag, out),
            DType::U32 => self.typed::<u32>(at, src, scalars, flag, out),
            DType::I64 => self.typed::<i64>(at, src, scalars, flag, out),
            DType::Bool | DType::U8 | DType::F16 | DType::BF16 => {
                unreachable!("not combined, checked when recorded")
            }
        }
    }

    fn typed<T: Join>(&self, at: &[u8], src: &[u8], scalars: &[f64], flag: &Flag, out: &mut [u8]) {
        match self.kind {
            Reduce::Sum => self.joined(at, src, scalars, flag, out, T::plus),
            Reduce::Prod => self.joined(at, src, scalars, flag, out, T::times),
            Reduce::Max => self.joined(at, src, scalars, flag, out, T::larger),
            Reduce::Min => self.joined(at, src, scalars, flag, out, T::smaller),
        }
    }

    fn joined<T: Join>(
        &self,
        at: &[u8],
        src: &[u8],
        scalars: &[f64],
        flag: &Flag,
        out: &mut [u8],
        join: impl Fn(T, T) -> T + Copy + Sync,
    ) {
        let src: &[T] = bytemuck::cast_slice(src);
        let out: &mut [T] = bytemuck::cast_slice_mut(out);
        // Every part looks at all values: that takes longer than to add them where those find their places in the cache.
        let single = self.columns == 1 && size_of_val(out) <= CACHED;
        let parts = if single { 1 } else { tail::parts(self.elems).min(pool::here()) };
        let step = out.len().div_ceil(parts).max(1);
        let part = |(i, out): (usize, &mut [T])| {
            out.fill(T::none(self.kind));
            let first = (i * step) as i64;
            let from = From { at, src, scalars, flag: (i == 0).then_some(flag), first };
            self.part(&from, out, join);
        };
        if step >= out.len() {
            part((0, out));
        } else {
            share(out.chunks_mut(step).enumerate(), part);
        }
    }

    /// Combines what falls into `out`.
    fn part<T: Join>(&self, from: &From<'_, T>, out: &mut [T], join: impl Fn(T, T) -> T + Copy) {
        let From { at, src, scalars, flag, first } = *from;
        if self.columns == 1
            && let (Class::Flat, Class::Flat) = (self.at.1.class, self.src.1.class)
        {
            let positions = (self.at.1.start(scalars) as usize, self.src.1.start(scalars) as usize);
            return match self.at_dtype {
                DType::I32 => self.single::<T, i32>(from, positions, out, join),
                DType::U32 => self.single::<T, u32>(from, positions, out, join),
                DType::I64 => self.single::<T, i64>(from, positions, out, join),
                _ => self.single::<T, u8>(from, positions, out, join),
            };
        }
        let end = first + out.len() as i64;
        for i in 0..self.count {
            let n = i * self.columns;
            // The columns in pieces along which positions, values and targets advance evenly.
            self.to.walk(scalars, 0, self.columns, &mut |pos, to, to_step, len| {
                let Some(to) = to else { return };
                self.at.1.walk(scalars, n + pos, len, &mut |sub, index, index_step, len| {
                    let Some(index) = index else { return };
                    self.src.1.walk(scalars, n + pos + sub, len, &mut |deep, value, step, len| {
                        let Some(value) = value else { return };
                        let to = to + (sub + deep) as i64 * to_step;
                        let index = index + deep as i64 * index_step;
                        let read =
                            |j: usize| integer(at, self.at_dtype, (index + j as i64 * index_step) as usize);
                        let inside = |v: i64, j: usize| {
                            let inside = (0..self.size as i64).contains(&v);
                            if let (false, Some(flag)) = (inside, flag) {
                                flag.raise(n + pos + sub + deep + j, v, self.size);
                            }
                            inside
                        };
                        if index_step == 0 && step == 1 && to_step == 1 {
                            let v = read(0);
                            if inside(v, 0) {
                                let to = to + v * self.stride;
                                let (lo, hi) = (to.max(first), (to + len as i64).min(end));
                                if lo < hi {
                                    let value = (value + lo - to) as usize;
                                    let out = &mut out[(lo - first) as usize..(hi - first) as usize];
                                    let src = &src[value..value + out.len()];
                                    out.iter_mut().zip(src).for_each(|(y, x)| *y = join(*y, *x));
                                }
                            }
                            return;
                        }
                        for j in 0..len {
                            let v = read(j);
                            let to = to + j as i64 * to_step + v * self.stride;
                            if inside(v, j) && (first..end).contains(&to) {
                                let y = &mut out[(to - first) as usize];
                                *y = join(*y, src[(value + j as i64 * step) as usize]);
                            }
                        }
                    });
                });
            });
        }
    }

    /// Single values one after the other, from those places of `at` and of the values on.
    fn single<T: Join, I: bytemuck::Pod + Into<Wide>>(
        &self,
        from: &From<'_, T>,
        (at, value): (usize, usize),
        out: &mut [T],
        join: impl Fn(T, T) -> T + Copy,
    ) {
        let at = &bytemuck::cast_slice::<_, I>(from.at)[at..at + self.count];
        let src = &from.src[value..value + self.count];
        let Some(first) = self.to.element(0, from.scalars).map(|to| to - from.first) else { return };
        let last = first + (self.size as i64 - 1) * self.stride;
        if first.min(last) >= 0 && first.max(last) < out.len() as i64 {
            for (i, (at, x)) in at.iter().zip(src).enumerate() {
                let Wide(v) = (*at).into();
                if (v as u64) < self.size as u64 {
                    let y = &mut out[(first + v * self.stride) as usize];
                    *y = join(*y, *x);
                } else if let Some(flag) = from.flag {
                    flag.raise(i, v, self.size);
                }
            }
            return;
        }
        let mut own = [(0usize, T::zeroed()); AT_ONCE];
        for (number, (at, src)) in at.chunks(AT_ONCE).zip(src.chunks(AT_ONCE)).enumerate() {
            // Those of this part first, without a jump for each: which they are, nobody can foretell.
            let (mut count, mut outside) = (0, false);
            for (at, x) in at.iter().zip(src) {
                let Wide(v) = (*at).into();
                let to = (first + v.wrapping_mul(self.stride)) as usize;
                // Below 0 is far past the end as well.
                let inside = (v as u64) < self.size as u64;
                own[count % AT_ONCE] = (to, *x);
                count += usize::from(inside & (to < out.len()));
                outside |= !inside;
            }
            for (to, x) in &own[..count] {
                out[*to] = join(out[*to], *x);
            }
            if let (true, Some(flag)) = (outside, from.flag) {
                for (i, at) in at.iter().enumerate() {
                    let Wide(v) = (*at).into();
                    if (v as u64) >= self.size as u64 {
                        flag.raise(number * AT_ONCE + i, v, self.size);
                    }
                }
            }
        }
    }
}
