//! Arguments that name axes, sizes and ranges; negative numbers count from the end.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};

use smallvec::SmallVec;
use wgrad_graph::{Result, Shape};

/// Axes: one (`1`), several (`[0, -1]`) or all (`..`).
#[derive(Clone, Debug)]
pub struct AxesArg(Option<SmallVec<[i32; 8]>>);

impl From<i32> for AxesArg {
    fn from(axis: i32) -> AxesArg {
        AxesArg(Some(SmallVec::from_slice(&[axis])))
    }
}

impl<const N: usize> From<[i32; N]> for AxesArg {
    fn from(axes: [i32; N]) -> AxesArg {
        AxesArg(Some(SmallVec::from_slice(&axes)))
    }
}

impl From<&[i32]> for AxesArg {
    fn from(axes: &[i32]) -> AxesArg {
        AxesArg(Some(SmallVec::from_slice(axes)))
    }
}

impl From<RangeFull> for AxesArg {
    fn from(_: RangeFull) -> AxesArg {
        AxesArg(None)
    }
}

impl AxesArg {
    /// The axes of a tensor of rank `rank`, in the order given, each at most once.
    #[track_caller]
    pub(crate) fn of(&self, op: &str, rank: usize) -> Result<SmallVec<[usize; 8]>> {
        let Some(axes) = &self.0 else { return Ok((0..rank).collect()) };
        let mut found: SmallVec<[usize; 8]> = SmallVec::new();
        for &a in axes {
            let a = axis(op, a, rank)?;
            if found.contains(&a) {
                refuse!(Argument, op, "axis {a} is named twice");
            }
            found.push(a);
        }
        Ok(found)
    }
}

/// The axis that `axis` names in a tensor of rank `rank`.
#[track_caller]
pub(crate) fn axis(op: &str, axis: i32, rank: usize) -> Result<usize> {
    let from_start = if axis < 0 { i64::from(axis) + rank as i64 } else { i64::from(axis) };
    if !(0..rank as i64).contains(&from_start) {
        refuse!(Argument, op, "axis {axis} of a tensor of rank {rank}");
    }
    Ok(from_start as usize)
}

/// Sizes of axes, of which one may be -1: what the others leave.
#[derive(Clone, Debug)]
pub struct DimsArg(SmallVec<[i64; 8]>);

macro_rules! dims_from {
    ($($t:ty)*) => {$(
        impl<const N: usize> From<[$t; N]> for DimsArg {
            fn from(dims: [$t; N]) -> DimsArg {
                DimsArg(dims.iter().map(|d| wide(*d)).collect())
            }
        }
        impl From<&[$t]> for DimsArg {
            fn from(dims: &[$t]) -> DimsArg {
                DimsArg(dims.iter().map(|d| wide(*d)).collect())
            }
        }
    )*};
}
dims_from!(i32 i64 isize usize);

impl From<&Vec<usize>> for DimsArg {
    fn from(dims: &Vec<usize>) -> DimsArg {
        DimsArg::from(dims.as_slice())
    }
}

impl From<Shape> for DimsArg {
    fn from(shape: Shape) -> DimsArg {
        DimsArg::from(shape.dims())
    }
}

impl DimsArg {
    /// The sizes meant where -1 stands for that of `from`, aligned at the last axis.
    #[track_caller]
    pub(crate) fn over(&self, op: &str, from: Shape) -> Result<Shape> {
        let added = self.0.len().checked_sub(from.rank());
        let mut dims: SmallVec<[usize; 8]> = SmallVec::new();
        for (i, d) in self.0.iter().enumerate() {
            let kept = added.and_then(|n| i.checked_sub(n)).map(|axis| from[axis]);
            match (usize::try_from(*d), kept) {
                (Ok(d), _) => dims.push(d),
                (Err(_), Some(size)) if *d == -1 => dims.push(size),
                _ => refuse!(Argument, op, "size {d} in {:?} over {from}", self.0),
            }
        }
        super::shape(op, &dims)
    }

    /// The shape of `from.elems()` elements that is meant.
    #[track_caller]
    pub(crate) fn of(&self, op: &str, from: Shape) -> Result<Shape> {
        let sizes = || self.0.iter().filter(|d| **d != -1);
        let Some(known) = sizes().try_fold(1i64, |n, d| n.checked_mul(*d)) else {
            refuse!(Limit, op, "sizes {:?} have more elements than can be counted", self.0);
        };
        let free = self.0.iter().filter(|d| **d == -1).count();
        if free > 1 || self.0.iter().any(|d| *d < -1) {
            refuse!(Argument, op, "sizes {:?}: at most one may be -1, none less", self.0);
        }
        if free == 1 && (known == 0 || from.elems() as i64 % known != 0) {
            refuse!(
                Shape,
                op,
                "{from} has {} elements, no multiple of {known} for {:?}",
                from.elems(),
                self.0
            );
        }
        let size = |d: &i64| if *d == -1 { from.elems() / known as usize } else { *d as usize };
        let dims: SmallVec<[usize; 8]> = self.0.iter().map(size).collect();
        super::shape(op, &dims)
    }
}

/// A range of indices: `2..5`, `-3..`, `..-1`, `..`. (`1..-1` is understood too, but clippy takes such a
/// literal for an empty range.)
///
/// Both ends lie on the axis: an end outside is an error, whichever way the range runs, where NumPy and
/// PyTorch take a shorter slice. A range that runs backwards within the axis is empty, as there: of an axis
/// of 5, `4..2` has no elements and `7..3` is an error.
#[derive(Copy, Clone, Debug)]
pub struct Cut {
    lo: i64,
    hi: Option<i64>,
}

/// An index of any width; one beyond that of i64 lies outside of every axis.
fn wide(i: impl TryInto<i64>) -> i64 {
    i.try_into().unwrap_or(i64::MAX)
}

macro_rules! cut_from {
    ($($t:ty)*) => {$(
        impl From<Range<$t>> for Cut {
            fn from(r: Range<$t>) -> Cut {
                Cut { lo: wide(r.start), hi: Some(wide(r.end)) }
            }
        }
        impl From<RangeInclusive<$t>> for Cut {
            fn from(r: RangeInclusive<$t>) -> Cut {
                // `..=-1` ends at the end.
                let end = wide(*r.end()).saturating_add(1);
                Cut { lo: wide(*r.start()), hi: (end != 0).then_some(end) }
            }
        }
        impl From<RangeFrom<$t>> for Cut {
            fn from(r: RangeFrom<$t>) -> Cut {
                Cut { lo: wide(r.start), hi: None }
            }
        }
        impl From<RangeTo<$t>> for Cut {
            fn from(r: RangeTo<$t>) -> Cut {
                Cut { lo: 0, hi: Some(wide(r.end)) }
            }
        }
    )*};
}
cut_from!(i32 usize);

impl From<RangeFull> for Cut {
    fn from(_: RangeFull) -> Cut {
        Cut { lo: 0, hi: None }
    }
}

impl Cut {
    /// The range meant on an axis of `size`.
    #[track_caller]
    pub(crate) fn of(&self, op: &str, size: usize) -> Result<Range<usize>> {
        let size = size as i64;
        let from_start = |i: i64| if i < 0 { i + size } else { i };
        let (lo, hi) = (from_start(self.lo), from_start(self.hi.unwrap_or(size)));
        if lo < 0 || hi < 0 || lo > size || hi > size {
            let end = self.hi.unwrap_or(size);
            refuse!(
                Argument,
                op,
                "range {}..{end} on an axis of {size}: both ends lie in 0..={size}",
                self.lo
            );
        }
        Ok(lo as usize..hi.max(lo) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(AxesArg::from([0, -1]).of("t", 3).unwrap().as_slice(), [0, 2]);
        assert_eq!(AxesArg::from(..).of("t", 3).unwrap().as_slice(), [0, 1, 2]);
        for bad in [AxesArg::from(3), AxesArg::from(-4), AxesArg::from([1, -2])] {
            assert!(bad.of("t", 3).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_size_is_what_the_others_leave() {
        let from = Shape::from([4, 6]);
        assert_eq!(DimsArg::from([-1, 3]).of("t", from).unwrap(), Shape::from([8, 3]));
        assert_eq!(DimsArg::from([2usize, 12]).of("t", from).unwrap(), Shape::from([2, 12]));
        for bad in [[-1, 5], [-1, -1], [-2, 12], [-1, 0]] {
            assert!(DimsArg::from(bad).of("t", from).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ranges_count_from_both_ends() {
        let (of, last) = (|cut: Cut| cut.of("t", 5), -1);
        assert_eq!(of((1..3).into()).unwrap(), 1..3);
        assert_eq!(of((-3..).into()).unwrap(), 2..5);
        assert_eq!(of((..-1).into()).unwrap(), 0..4);
        assert_eq!(of((1..=last).into()).unwrap(), 1..5);
        assert_eq!(of((..).into()).unwrap(), 0..5);
        assert_eq!(of((last..-2).into()).unwrap(), 4..4);
        // Clippy takes literals that run backwards for mistakes.
        let (far, two) = (7, 2);
        assert_eq!(of((4..two).into()).unwrap(), 4..4);
        assert_eq!(of((5..two).into()).unwrap(), 5..5);
        let outside = [0..6, far..3, 3..far, far..far, 3..-far].map(Cut::from);
        let unending = [Cut::from(0..usize::MAX), Cut::from(usize::MAX..), Cut::from(0..=usize::MAX)];
        for bad in [Cut::from(7..), Cut::from(-6..)].into_iter().chain(outside).chain(unending) {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains("on an axis of 5: both ends lie in 0..=5"), "{bad:?}: {error}");
        }
    }
}
