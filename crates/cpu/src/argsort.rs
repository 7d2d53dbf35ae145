//! Sorting: each line's elements become whole numbers in their order, each with its index below it, so
//! that plain sorting of numbers is stable.

use bytemuck::Pod;
use rayon::prelude::*;
use wgrad_graph::{DType, Lines};

use crate::tail;
use crate::whole::Whole;

/// Lines at least this long are sorted by several threads.
const LONG: usize = 1 << 16;

/// An element as a number in the same order; all NaNs are one, and the largest.
pub(crate) trait Key: Pod + Send + Sync {
    type Number: Copy + Ord + Send + Sync;
    fn number(self, descending: bool) -> Self::Number;
}

macro_rules! keys {
    ($($t:ty => $n:ty: |$x:ident| $number:expr;)*) => {$(
        impl Key for $t {
            type Number = $n;
            #[inline(always)]
            fn number(self, descending: bool) -> $n {
                let $x = self;
                let number: $n = $number;
                if descending { !number } else { number }
            }
        }
    )*};
}
keys! {
    f32 => u32: |x| {
        // Both zeros are one number.
        let bits = (x + 0.0).to_bits();
        if x.is_nan() { u32::MAX } else if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
    };
    f64 => u64: |x| {
        let bits = (x + 0.0).to_bits();
        if x.is_nan() { u64::MAX } else if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
    };
    i32 => u32: |x| x as u32 ^ 1 << 31;
    i64 => u64: |x| x as u64 ^ 1 << 63;
    u32 => u32: |x| x;
    u8 => u32: |x| u32::from(x);
}

pub(crate) fn run(lines: Lines, descending: bool, x: &Whole<'_>, to: &mut [u8]) {
    let to: &mut [i32] = bytemuck::cast_slice_mut(to);
    match x.out.dtype {
        DType::F32 => typed::<f32>(lines, descending, x.elems(), to),
        DType::F64 => typed::<f64>(lines, descending, x.elems(), to),
        DType::I32 => typed::<i32>(lines, descending, x.elems(), to),
        DType::U32 => typed::<u32>(lines, descending, x.elems(), to),
        DType::I64 => typed::<i64>(lines, descending, x.elems(), to),
        DType::U8 | DType::Bool => typed::<u8>(lines, descending, x.elems(), to),
        DType::F16 | DType::BF16 => unreachable!("halves are sorted as f32, checked when recorded"),
    }
}

fn typed<T: Key>(lines: Lines, descending: bool, x: &[T], to: &mut [i32]) {
    let Lines { n, inner, .. } = lines;
    if to.is_empty() {
        return;
    }
    let sort = |at: usize, order: &mut Vec<(T::Number, u32)>| {
        order.clear();
        order.extend((0..n).map(|t| (x[at + t * inner].number(descending), t as u32)));
        if n >= LONG { order.par_sort_unstable() } else { order.sort_unstable() }
    };
    let block = |(b, to): (usize, &mut [i32])| {
        let mut order = Vec::with_capacity(n);
        for column in 0..inner {
            sort(b * n * inner + column, &mut order);
            for (y, (_, t)) in to[column..].iter_mut().step_by(inner).zip(&order) {
                *y = *t as i32;
            }
        }
    };
    // Sorting takes about a dozen steps an element.
    let parts = tail::parts(lines.elems() * 12);
    if parts == 1 || lines.outer == 1 {
        to.chunks_mut(n * inner).enumerate().for_each(block);
    } else {
        to.par_chunks_mut(n * inner).enumerate().for_each(block);
    }
}
