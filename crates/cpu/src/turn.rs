//! Copies of values that a program would read by columns: tile by tile through the first cache.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use wgrad_graph::DType;

use crate::access::Turned;
use crate::share::share;
use crate::tail;

/// Sides of a tile: neighbours read together, neighbours written together.
const ROWS: usize = 64;
const COLUMNS: usize = 32;
/// Side of the squares that are turned in registers.
const SQUARE: usize = 8;

/// Writes the elements in the order of iteration, each of `size` bytes.
pub(crate) fn copy(turned: &Turned, size: usize, x: &[u8], y: &mut [u8]) {
    match size {
        1 => typed::<u8>(turned, x, y),
        2 => typed::<u16>(turned, cast_slice(x), cast_slice_mut(y)),
        4 => typed::<u32>(turned, cast_slice(x), cast_slice_mut(y)),
        _ => typed::<u64>(turned, cast_slice(x), cast_slice_mut(y)),
    }
}

/// What is turned for a program: the number of its operand, its dtype, how it lies.
pub(crate) type Turns = [(usize, DType, Turned)];

/// Positions of a band, where all of `turns` over `elems` positions can be made in bands of the same rows.
pub(crate) fn band(turns: &Turns, elems: usize) -> Option<usize> {
    let row = |turned: &Turned| turned.axes[1..].iter().map(|a| a.0).product::<usize>();
    let first = row(&turns.first()?.2);
    let alike = |turned: &Turned| turned.across == 0 && row(turned) == first;
    let band = ROWS * first;
    (turns.iter().all(|(_, _, turned)| alike(turned)) && elems > band).then_some(band)
}

/// The elements of a band from position `from` on.
pub(crate) fn copy_band(turned: &Turned, size: usize, x: &[u8], from: usize, y: &mut [u8]) {
    fn go<T: Pod>(turned: &Turned, x: &[T], from: usize, y: &mut [T]) {
        let row: usize = turned.axes[1..].iter().map(|a| a.0).product();
        rows(&turned.axes[1..], x, turned.offset + (from / row) as i64, row, y);
    }
    match size {
        1 => go::<u8>(turned, x, from, y),
        2 => go::<u16>(turned, cast_slice(x), from, cast_slice_mut(y)),
        4 => go::<u32>(turned, cast_slice(x), from, cast_slice_mut(y)),
        _ => go::<u64>(turned, cast_slice(x), from, cast_slice_mut(y)),
    }
}

pub(crate) fn typed<T: Pod + Send + Sync>(turned: &Turned, x: &[T], y: &mut [T]) {
    let axes = &turned.axes;
    let (outer, rest) = axes.split_at(turned.across);
    let slab: usize = rest.iter().map(|a| a.0).product();
    let row: usize = rest[1..].iter().map(|a| a.0).product();
    let parallel = tail::parts(y.len()) > 1;
    for (i, y) in y.chunks_exact_mut(slab).enumerate() {
        let (mut left, mut start) = (i, turned.offset);
        for (size, stride) in outer.iter().rev() {
            start += (left % size) as i64 * stride;
            left /= size;
        }
        let band = |(i, y): (usize, &mut [T])| rows(&rest[1..], x, start + (i * ROWS) as i64, row, y);
        match parallel {
            true => share(y.chunks_mut(ROWS * row).enumerate(), band),
            false => y.chunks_mut(ROWS * row).enumerate().for_each(band),
        }
    }
}

/// Up to `ROWS` rows, whose first elements are neighbours from `start` on; `axes` are those of a row.
fn rows<T: Pod>(axes: &[(usize, i64)], x: &[T], start: i64, row: usize, y: &mut [T]) {
    pulp::Arch::new().dispatch(Rows { axes, x, start, row, y });
}

struct Rows<'a, T> {
    axes: &'a [(usize, i64)],
    x: &'a [T],
    start: i64,
    row: usize,
    y: &'a mut [T],
}

impl<T: Pod> pulp::WithSimd for Rows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Rows { axes, x, start, row, y } = self;
        let Some(((inner, step), middle)) = axes.split_last() else { return };
        let count = y.len() / row;
        let mut tile = [[T::zeroed(); COLUMNS]; ROWS];
        for i in 0..row / inner {
            let (mut left, mut first) = (i, start);
            for (size, stride) in middle.iter().rev() {
                first += (left % size) as i64 * stride;
                left /= size;
            }
            for from in (0..*inner).step_by(COLUMNS) {
                let columns = COLUMNS.min(inner - from);
                let column = |j: usize| &x[(first + (from + j) as i64 * step) as usize..][..count];
                let (high, wide) = (count - count % SQUARE, columns - columns % SQUARE);
                for j in (0..wide).step_by(SQUARE) {
                    for k in (0..high).step_by(SQUARE) {
                        let mut square = [[T::zeroed(); SQUARE]; SQUARE];
                        for (q, side) in square.iter_mut().enumerate() {
                            side.copy_from_slice(&column(j + q)[k..k + SQUARE]);
                        }
                        for (p, line) in tile[k..k + SQUARE].iter_mut().enumerate() {
                            for (q, y) in line[j..j + SQUARE].iter_mut().enumerate() {
                                *y = square[q][p];
                            }
                        }
                    }
                }
                for j in 0..columns {
                    let done = if j < wide { high } else { 0 };
                    for (line, x) in tile[done..].iter_mut().zip(&column(j)[done..]) {
                        line[j] = *x;
                    }
                }
                for (k, line) in tile.iter().enumerate().take(count) {
                    y[k * row + i * inner + from..][..columns].copy_from_slice(&line[..columns]);
                }
            }
        }
    }
}
