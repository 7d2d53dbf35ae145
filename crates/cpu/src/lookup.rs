//! Elements of a table at the places that indices tell.

use std::ops::Range;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use wgrad_graph::DType;

use crate::access::{Access, Class};
use crate::machine::{Chunk, Env, Operand, integer};
use crate::program::{Code, Instr, Target};

/// An index of any dtype.
pub(crate) struct Wide(pub(crate) i64);

macro_rules! wide {
    ($($t:ty)*) => {$(
        impl From<$t> for Wide {
            #[inline(always)]
            fn from(x: $t) -> Wide {
                Wide(i64::from(x))
            }
        }
    )*};
}
wide!(u8 i32 u32 i64);

/// A table: position `j` of a run takes element `first + j * stride + at[j] * along`.
#[derive(Copy, Clone)]
pub(crate) struct Table<'a> {
    /// Bytes of an element.
    pub(crate) size: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) first: i64,
    pub(crate) stride: i64,
    pub(crate) along: i64,
    /// Indices are below it.
    pub(crate) limit: usize,
}

/// Fills `out` from the indices from position `pos` on, with 0 where one is out of range; the first of those.
/// `same`: whether those indices are known to be one.
pub(crate) fn look_up(
    table: Table<'_>,
    dtype: DType,
    index: &[u8],
    pos: usize,
    same: bool,
    out: &mut [u8],
) -> Option<(usize, i64)> {
    match dtype {
        DType::U8 | DType::Bool => sized::<u8>(table, index, pos, same, out),
        DType::U32 => sized::<u32>(table, cast_slice(index), pos, same, out),
        DType::I64 => sized::<i64>(table, cast_slice(index), pos, same, out),
        _ => sized::<i32>(table, cast_slice(index), pos, same, out),
    }
}

fn sized<I: Pod + Into<Wide> + PartialEq>(
    table: Table<'_>,
    index: &[I],
    pos: usize,
    same: bool,
    out: &mut [u8],
) -> Option<(usize, i64)> {
    match table.size {
        1 => go::<I, u8>(table, index, pos, same, out),
        2 => go::<I, u16>(table, index, pos, same, out),
        4 => go::<I, u32>(table, index, pos, same, out),
        _ => go::<I, u64>(table, index, pos, same, out),
    }
}

fn go<I: Pod + Into<Wide> + PartialEq, T: Pod>(
    table: Table<'_>,
    index: &[I],
    pos: usize,
    same: bool,
    out: &mut [u8],
) -> Option<(usize, i64)> {
    let (from, out): (&[T], &mut [T]) = (cast_slice(table.bytes), cast_slice_mut(out));
    let index = &index[pos..pos + out.len()];
    let Table { first, stride, along, limit, .. } = table;
    // Rows of a table: one index for a run of elements.
    if let [one, ..] = *index
        && stride == 1
        && (same || index.len() > 1 && index.iter().take(2).all(|at| *at == one) && all(index, one))
    {
        let Wide(at) = one.into();
        if (0..limit as i64).contains(&at) {
            let e = (first + at * along) as usize;
            out.copy_from_slice(&from[e..e + out.len()]);
            return None;
        }
        out.fill(T::zeroed());
        return Some((0, at));
    }
    let mut outside = None;
    if let (0, 1) = (stride, along) {
        let from = &from[first as usize..first as usize + limit];
        for (j, (y, at)) in out.iter_mut().zip(index).enumerate() {
            let Wide(at) = (*at).into();
            // Below 0 is far past the end as well.
            *y = from.get(at as usize).copied().unwrap_or_else(|| {
                outside = outside.or(Some((j, at)));
                T::zeroed()
            });
        }
        return outside;
    }
    let mut at_run = first;
    for (j, (y, at)) in out.iter_mut().zip(index).enumerate() {
        let Wide(at) = (*at).into();
        *y = if (0..limit as i64).contains(&at) {
            from[(at_run + at * along) as usize]
        } else {
            outside = outside.or(Some((j, at)));
            T::zeroed()
        };
        at_run += stride;
    }
    outside
}

fn all<I: Copy + PartialEq>(index: &[I], one: I) -> bool {
    index.iter().fold(true, |same, at| same & (*at == one))
}

/// A program that only looks up whole rows of a table: position `i * width + j` takes the element that is `j` after
/// the first of the row that index `i` tells.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    width: usize,
    /// The indices, and how far one is from the next.
    at: (usize, Access, i64),
    at_dtype: DType,
    /// The table, and how far what is looked up moves from one index to the next.
    table: (usize, Access, i64),
    along: i64,
    limit: usize,
    size: usize,
    to: Access,
}

/// Rows narrower than this are no matter of moving memory.
const MIN_WIDTH: usize = 16;

impl Rows {
    /// These instructions as rows of a table, if they are that.
    pub(crate) fn find(instrs: &[Instr], targets: &[Target]) -> Option<Rows> {
        let ([load, gather], [target]) = (instrs, targets) else { return None };
        let Code::Load { operand: index, access: at } = &load.code else { return None };
        let Code::Gather { operand, access, at: 0, stride, size } = &gather.code else { return None };
        let [(width, step), (other, move_on)] = [at.by_rows(0)?, access.by_rows(1)?];
        let fine =
            width == other && width >= MIN_WIDTH && target.from == 1 && target.access.class == Class::Flat;
        fine.then(|| Rows {
            width,
            at: (*index, at.clone(), step),
            at_dtype: load.dtype,
            table: (*operand, access.clone(), move_on),
            along: *stride,
            limit: *size,
            size: gather.dtype.bytes(),
            to: target.access.clone(),
        })
    }

    /// Looks up a range of positions. Whether it did: operands may lie where something is written.
    pub(crate) fn run(&self, env: Env<'_>, range: Range<usize>, chunks: &mut [Chunk<'_>]) -> bool {
        let (Operand::Bytes { bytes: at, base: at_base }, Operand::Bytes { bytes: table, base }) =
            (env.operands[self.at.0], env.operands[self.table.0])
        else {
            return false;
        };
        let chunk = &mut chunks[0];
        let start = |access: &Access| access.start(env.scalars);
        let (index, first, to) = (start(&self.at.1) - at_base, start(&self.table.1) - base, start(&self.to));
        let (mut n, size) = (range.start, self.size);
        let from = (n as i64 + to - chunk.base) as usize * size;
        let mut out = &mut chunk.bytes[from..from + range.len() * size];
        while n < range.end {
            let (row, column) = (n / self.width, n % self.width);
            let len = (self.width - column).min(range.end - n);
            let (part, rest) = out.split_at_mut(len * size);
            let v = integer(at, self.at_dtype, (index + row as i64 * self.at.2) as usize);
            if (0..self.limit as i64).contains(&v) {
                let element = first + row as i64 * self.table.2 + v * self.along + column as i64;
                part.copy_from_slice(&table[element as usize * size..][..len * size]);
            } else {
                part.fill(0);
                env.flag.raise(n, v, self.limit);
            }
            (out, n) = (rest, n + len);
        }
        true
    }
}
