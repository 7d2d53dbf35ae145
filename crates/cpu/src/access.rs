//! Index functions compiled for one order of iteration: chains of affine levels over the flat
//! position, walked in pieces along which the element advances by a constant stride.

use std::ops::Range;

use smallvec::SmallVec;
use wgrad_graph::{Dynamic, Index, View};

use crate::digits::Digits;

#[derive(Clone, Debug, PartialEq)]
struct Axis {
    size: usize,
    stride: i64,
    valid: Range<usize>,
}

impl Axis {
    fn all(&self) -> bool {
        self.valid == (0..self.size)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Level {
    axes: SmallVec<[Axis; 4]>,
    offset: i64,
    dynamic: SmallVec<[Dynamic; 1]>,
}

/// How the element follows the flat position.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Class {
    /// Element `n + offset`.
    Flat,
    /// One element.
    Uniform,
    /// Anything else.
    Walk,
}

/// Pieces shorter than this are not worth a call each.
const SHORT: usize = 8;

/// A compiled index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Access {
    levels: SmallVec<[Level; 1]>,
    pub(crate) class: Class,
}

/// A value read by columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turned {
    /// Size and stride of each axis, in the order of iteration.
    pub(crate) axes: SmallVec<[(usize, i64); 4]>,
    pub(crate) offset: i64,
    /// The axis along which elements are neighbours.
    pub(crate) across: usize,
}

/// Positions from which to which elements advance by one stride.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Stretch {
    from: usize,
    to: usize,
    first: i64,
    pub(crate) stride: i64,
}

impl Stretch {
    pub(crate) fn holds(&self, n: usize) -> bool {
        (self.from..self.to).contains(&n)
    }

    /// Positions from `n` on.
    pub(crate) fn left(&self, n: usize) -> usize {
        self.to - n
    }

    pub(crate) fn element(&self, n: usize) -> i64 {
        self.first + (n - self.from) as i64 * self.stride
    }
}

impl Level {
    fn new(view: &View, order: Option<&[usize]>) -> Level {
        let mut axes: SmallVec<[Axis; 4]> = SmallVec::new();
        let identity: SmallVec<[usize; 8]> = (0..view.dims.len()).collect();
        for &i in order.unwrap_or(&identity) {
            let size = view.dims[i];
            let valid = view.valid.as_ref().map_or(0..size, |v| v[i].clone());
            let axis = Axis { size, stride: view.strides[i], valid };
            if size == 1 && axis.all() {
                continue;
            }
            match axes.last_mut() {
                // Neighbours that advance as one are one.
                Some(last) if last.all() && axis.all() && last.stride == axis.stride * size as i64 => {
                    last.size *= size;
                    last.stride = axis.stride;
                    last.valid = 0..last.size;
                }
                _ => axes.push(axis),
            }
        }
        Level { axes, offset: view.offset, dynamic: view.dynamic.clone() }
    }

    fn start(&self, scalars: &[f64]) -> i64 {
        let dynamic = |d: &Dynamic| scalars[usize::from(d.scalar)] as i64 * d.stride;
        self.offset + self.dynamic.iter().map(dynamic).sum::<i64>()
    }

    /// Whether number `n` is number `n`.
    fn is_identity(&self) -> bool {
        let steps = match &self.axes[..] {
            [] => true,
            [axis] => axis.stride == 1 && axis.all(),
            _ => false,
        };
        steps && self.offset == 0 && self.dynamic.is_empty()
    }

    fn elems(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Smallest and largest number given, where there is any.
    fn range(&self, scalars: &[f64]) -> Option<(i64, i64)> {
        let (mut lo, mut hi) = (self.start(scalars), self.start(scalars));
        for axis in &self.axes {
            if axis.valid.is_empty() {
                return None;
            }
            let ends = [axis.valid.start as i64 * axis.stride, (axis.valid.end as i64 - 1) * axis.stride];
            lo += ends[0].min(ends[1]);
            hi += ends[0].max(ends[1]);
        }
        Some((lo, hi))
    }
}

impl Access {
    /// The index with the axes of its space taken in `order` (default: as they are).
    pub(crate) fn new(index: &Index, order: Option<&[usize]>) -> Access {
        let mut levels: SmallVec<[Level; 1]> = SmallVec::new();
        for (i, view) in index.views.iter().enumerate() {
            levels.push(Level::new(view, if i == 0 { order } else { None }));
        }
        while levels.len() > 1 && levels[0].is_identity() {
            levels.remove(0);
        }
        let class = match &levels[..] {
            [level] => match &level.axes[..] {
                [] => Class::Uniform,
                [axis] if axis.all() && axis.stride == 1 => Class::Flat,
                // An empty space has no element, not even one.
                [axis] if axis.all() && axis.stride == 0 && axis.size > 0 => Class::Uniform,
                _ => Class::Walk,
            },
            _ => Class::Walk,
        };
        Access { levels, class }
    }

    /// The row-major index.
    pub(crate) fn flat(dims: &[usize], order: Option<&[usize]>) -> Access {
        let mut access = Access::new(&Index::linear(dims), order);
        if access.class == Class::Uniform {
            access.class = Class::Flat;
        }
        access
    }

    /// The row-major index of `dims` without the last `spread` axes, along which it stands still.
    pub(crate) fn spread(dims: &[usize], spread: usize, order: &[usize]) -> Access {
        let mut view = View::linear(&dims[..dims.len() - spread]);
        view.dims = dims.into();
        view.strides.resize(dims.len(), 0);
        Access::new(&Index { views: SmallVec::from_buf([view]) }, Some(order))
    }

    /// The element at position 0 of a `Flat` or `Uniform` access.
    pub(crate) fn start(&self, scalars: &[f64]) -> i64 {
        self.levels[0].start(scalars)
    }

    /// The element at flat position `n`.
    pub(crate) fn element(&self, n: usize, scalars: &[f64]) -> Option<i64> {
        let mut found = None;
        self.walk(scalars, n, 1, &mut |_, element, _, _| found = element);
        found
    }

    /// The stretch around position `n`, as far as that is known cheaply.
    pub(crate) fn stretch(&self, n: usize, scalars: &[f64]) -> Option<Stretch> {
        let [level] = &self.levels[..] else { return None };
        let (inner, outer) = level.axes.split_last()?;
        if !level.axes.iter().all(Axis::all) {
            return None;
        }
        let (mut row, mut first) = (n / inner.size, level.start(scalars));
        let from = row * inner.size;
        for (i, axis) in outer.iter().enumerate().rev() {
            let (at, next) = if i == 0 { (row, 0) } else { (row % axis.size, row / axis.size) };
            row = next;
            first += at as i64 * axis.stride;
        }
        Some(Stretch { from, to: from + inner.size, first, stride: inner.stride })
    }

    /// Positions of a row, along which elements advance by `inner`, and how far it is from one row to the next: where
    /// the index is that and nothing more.
    pub(crate) fn by_rows(&self, inner: i64) -> Option<(usize, i64)> {
        let [level] = &self.levels[..] else { return None };
        match &level.axes[..] {
            [rows, row] if rows.all() && row.all() && row.stride == inner => Some((row.size, rows.stride)),
            _ => None,
        }
    }

    /// Whether position 0 is element 0, always.
    pub(crate) fn is_at_origin(&self) -> bool {
        !self.is_dynamic() && self.levels.len() == 1 && self.levels[0].offset == 0
    }

    /// Whether each of `rows` equal parts of the positions leads to elements of its own `width` alone.
    pub(crate) fn is_local(&self, rows: usize, width: usize) -> bool {
        let [level] = &self.levels[..] else { return false };
        if level.offset != 0 || !level.dynamic.is_empty() || !level.axes.iter().all(Axis::all) {
            return false;
        }
        let (mut left, mut span) = (rows, 0i64);
        for Axis { size, stride, .. } in &level.axes {
            let (outer, inner) = match left {
                1 => (1, *size),
                _ if left % size == 0 => (*size, 1),
                _ if size % left == 0 => (left, size / left),
                _ => return false,
            };
            let step = stride * inner as i64;
            left /= outer;
            if outer > 1 && step != (left * width) as i64 || inner > 1 && *stride < 0 {
                return false;
            }
            span += (inner as i64 - 1) * stride;
        }
        left == 1 && span < width as i64
    }

    /// Sizes and strides, where the index is one that reads columns: single elements along an outer
    /// axis, far ones along the innermost.
    pub(crate) fn turned(&self) -> Option<Turned> {
        let [level] = &self.levels[..] else { return None };
        let inner = level.axes.last()?;
        let far = inner.stride.unsigned_abs() >= 8 && inner.size >= 16;
        let across = level.axes.iter().position(|axis| axis.stride == 1 && axis.size >= 8)?;
        (far && level.dynamic.is_empty() && level.axes.iter().all(Axis::all)).then(|| Turned {
            axes: level.axes.iter().map(|axis| (axis.size, axis.stride)).collect(),
            offset: level.offset,
            across,
        })
    }

    /// The index by digits, where its pieces are so short that walking them costs more.
    pub(crate) fn digits(&self) -> Option<Digits> {
        let short = |level: &Level| level.axes.last().is_some_and(|axis| axis.size < SHORT);
        if self.class != Class::Walk || self.is_dynamic() || !self.levels.iter().any(short) {
            return None;
        }
        let level = |level: &'_ Level| -> (Vec<(usize, i64, Range<usize>)>, i64) {
            let axes = level.axes.iter().map(|a| (a.size, a.stride, a.valid.clone())).collect();
            (axes, level.offset)
        };
        Digits::new(self.levels.iter().map(level))
    }

    /// Whether scalars move the index.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.levels.iter().any(|level| !level.dynamic.is_empty())
    }

    /// Whether elements rise with the position, each next one beyond all before.
    pub(crate) fn is_monotonic(&self) -> bool {
        let [level] = &self.levels[..] else { return false };
        let mut span = 0;
        level.axes.iter().rev().all(|axis| {
            let nested = axis.stride > span && axis.all();
            span += (axis.size.max(1) as i64 - 1) * axis.stride;
            nested
        })
    }

    /// Whether every element that scalars lead to lies in a value of `elems` elements.
    pub(crate) fn fits(&self, scalars: &[f64], elems: usize) -> bool {
        self.levels.iter().enumerate().all(|(i, level)| {
            let limit = self.levels.get(i + 1).map_or(elems, Level::elems);
            level.dynamic.is_empty()
                || level.range(scalars).is_none_or(|(lo, hi)| lo >= 0 && hi < limit as i64)
        })
    }

    /// Calls `emit(position, element, stride, len)` for the positions `n..n + len`, counted from 0,
    /// in pieces whose elements advance by `stride`; `None` where the index has no element.
    pub(crate) fn walk(
        &self,
        scalars: &[f64],
        n: usize,
        len: usize,
        emit: &mut dyn FnMut(usize, Option<i64>, i64, usize),
    ) {
        walk(&self.levels, scalars, 0, n as i64, 1, len, emit);
    }
}

/// The numbers `e, e + s, ..` (`len` of them, at output position `pos`) through the levels.
fn walk(
    levels: &[Level],
    scalars: &[f64],
    mut pos: usize,
    mut e: i64,
    s: i64,
    mut len: usize,
    emit: &mut dyn FnMut(usize, Option<i64>, i64, usize),
) {
    let Some((level, rest)) = levels.split_first() else {
        emit(pos, Some(e), s, len);
        return;
    };
    let start = level.start(scalars);
    let Some((inner, outer)) = level.axes.split_last() else {
        walk(rest, scalars, pos, start, 0, len, emit);
        return;
    };
    let size = inner.size as i64;
    while len > 0 {
        let c = e % size;
        let (mut row, mut base, mut inside) = (e / size, start, true);
        for (i, axis) in outer.iter().enumerate().rev() {
            let (at, next) = match i {
                0 => (row, 0),
                _ => (row % axis.size as i64, row / axis.size as i64),
            };
            row = next;
            base += at * axis.stride;
            inside &= axis.valid.contains(&(at as usize));
        }
        let piece = match s {
            0 => len,
            1.. => len.min(((size - c - 1) / s + 1) as usize),
            _ => len.min((c / -s + 1) as usize),
        };
        // The part of the piece whose inner coordinates are valid.
        let (from, to) = if !inside {
            (piece, piece)
        } else if inner.all() {
            (0, piece)
        } else {
            valid_part(&inner.valid, c, s, piece)
        };
        if from > 0 {
            emit(pos, None, 0, from);
        }
        if to > from {
            let first = base + (c + from as i64 * s) * inner.stride;
            walk(rest, scalars, pos + from, first, s * inner.stride, to - from, emit);
        }
        if piece > to.max(from) {
            let end = to.max(from);
            emit(pos + end, None, 0, piece - end);
        }
        e += s * piece as i64;
        pos += piece;
        len -= piece;
    }
}

/// The range of `j` in `0..piece` for which `c + j * s` is in `valid`.
fn valid_part(valid: &Range<usize>, c: i64, s: i64, piece: usize) -> (usize, usize) {
    let (lo, hi) = (valid.start as i64, valid.end as i64);
    let (from, to) = match s {
        0 if (lo..hi).contains(&c) => (0, piece as i64),
        0 => (piece as i64, piece as i64),
        1.. => ((lo - c + s - 1).div_euclid(s), (hi - c + s - 1).div_euclid(s)),
        _ => ((c - hi + 1 + (-s - 1)).div_euclid(-s), (c - lo).div_euclid(-s) + 1),
    };
    let from = from.clamp(0, piece as i64);
    (from as usize, to.clamp(from, piece as i64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(index: &Index, order: &[usize]) {
        let dims: Vec<usize> = order.iter().map(|i| index.views[0].dims[*i]).collect();
        let n: usize = dims.iter().product();
        let access = Access::new(index, Some(order));
        let mut wanted = Vec::new();
        for mut i in 0..n {
            let mut coords = vec![0; dims.len()];
            for (axis, size) in order.iter().zip(&dims).rev() {
                coords[*axis] = i % size;
                i /= size;
            }
            wanted.push(index.element(&coords, &[2.0]));
        }
        if let Some(digits) = access.digits() {
            for from in 0..n.min(9) {
                let mut got = vec![0; n - from];
                digits.fill(from, &mut got);
                let got: Vec<_> = got.iter().map(|e| (*e >= 0).then_some(i64::from(*e))).collect();
                assert_eq!(got, wanted[from..], "{index:?} {order:?} by digits");
            }
        }
        for i in 0..n {
            let Some(stretch) = access.stretch(i, &[2.0]) else { continue };
            assert!(stretch.holds(i) && stretch.left(i) > 0);
            let ahead = (i..i + stretch.left(i)).map(|i| Some(stretch.element(i)));
            assert!(ahead.eq(wanted[i..i + stretch.left(i)].iter().copied()), "{index:?} {order:?} at {i}");
        }
        for from in 0..n.min(9) {
            let mut got = Vec::new();
            access.walk(&[2.0], from, n - from, &mut |pos, e, s, len| {
                assert_eq!(pos, got.len());
                (0..len).for_each(|j| got.push(e.map(|e| e + j as i64 * s)));
            });
            assert_eq!(got, wanted[from..], "{index:?} {order:?}");
        }
    }

    #[test]
    fn walks_give_the_elements_of_the_index() {
        let view = |dims: &[usize], strides: &[i64], offset: i64| View {
            strides: strides.into(),
            offset,
            ..View::linear(dims)
        };
        let one = |v: View| Index { views: SmallVec::from_elem(v, 1) };
        check(&one(view(&[3, 4, 5], &[20, 5, 1], 0)), &[0, 1, 2]);
        check(&one(view(&[3, 4, 5], &[20, 5, 1], 7)), &[2, 0, 1]);
        check(&one(view(&[3, 4, 5], &[0, -5, 2], 30)), &[1, 0, 2]);
        let mut masked = view(&[4, 6], &[6, 1], -7);
        masked.valid = Some(SmallVec::from_vec(vec![1..4, 2..5]));
        check(&one(masked.clone()), &[0, 1]);
        check(&one(masked.clone()), &[1, 0]);
        masked.dynamic.push(Dynamic { scalar: 0, stride: 3 });
        let chain = Index { views: SmallVec::from_vec(vec![view(&[6, 4], &[1, 6], 0), masked.clone()]) };
        check(&chain, &[0, 1]);
        check(&chain, &[1, 0]);
        let chain = Index { views: SmallVec::from_vec(vec![view(&[5, 4], &[-4, -1], 23), masked]) };
        check(&chain, &[0, 1]);
    }
}
