//! Elements of a table at the places that indices tell.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use wgrad_graph::DType;

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
