//! Indices that are sums over the digits of coordinates: what a kernel reaches with one offset for each
//! coordinate of each axis, however many views the index has.

use smallvec::SmallVec;

use crate::compose::merge;
use crate::{Index, View};

/// Digits of one axis's coordinate, the most significant first: sizes and strides. None: stride 0.
pub type Line = SmallVec<[(usize, i64); 2]>;

/// An index as a sum: `offset` and, for each axis, its coordinate's digits times their strides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digits {
    /// The digits of each axis of the index's space.
    pub axes: SmallVec<[Line; 5]>,
    /// Element at the origin.
    pub offset: i64,
}

/// The stride of an axis that is one digit or none.
pub fn stride(line: &Line) -> Option<i64> {
    match line[..] {
        [] => Some(0),
        [(_, stride)] => Some(stride),
        _ => None,
    }
}

/// The term of each coordinate below `size`.
pub fn terms(line: &Line, size: usize) -> Vec<i64> {
    let mut terms = vec![0];
    for (digits, stride) in line {
        terms = terms.iter().flat_map(|t| (0..*digits as i64).map(move |d| t + d * stride)).collect();
    }
    if line.is_empty() { vec![0; size] } else { terms }
}

impl Index {
    /// The index as a sum over digits; `None` where that cannot be proved, or where the index has no
    /// element somewhere, or moves with a scalar.
    pub fn digits(&self) -> Option<Digits> {
        let first = self.views.first()?;
        if self.views.iter().any(|v| !v.dynamic.is_empty()) {
            return None;
        }
        let mut whole = first.clone();
        let mut owners: Vec<usize> = (0..whole.dims.len()).collect();
        for next in &self.views[1..] {
            split(&mut whole, &mut owners, next);
            whole = merge(&whole, next, &[])?;
        }
        if whole.valid.is_some() {
            return None;
        }
        let mut axes: SmallVec<[Line; 5]> = SmallVec::from_elem(Line::new(), first.dims.len());
        for (i, owner) in owners.iter().enumerate() {
            let (size, stride) = (whole.dims[i], whole.strides[i]);
            let line = &mut axes[*owner];
            match line.last_mut() {
                _ if size == 1 => {}
                // Digits that count on are one.
                Some(last) if last.1 == stride * size as i64 => *last = (last.0 * size, stride),
                _ => line.push((size, stride)),
            }
        }
        for line in &mut axes {
            if line.iter().all(|(_, stride)| *stride == 0) {
                line.clear();
            }
        }
        Some(Digits { axes, offset: whole.offset })
    }
}

/// Cuts the axes of `a` where they cross the digits of the coordinates of `b`.
fn split(a: &mut View, owners: &mut Vec<usize>, b: &View) {
    let mut places: SmallVec<[i64; 8]> = SmallVec::new();
    let mut place = 1;
    for size in b.dims.iter().rev() {
        place *= *size as i64;
        places.push(place);
    }
    let old = std::mem::replace(a, View::linear(&[]));
    let from = std::mem::take(owners);
    a.offset = old.offset;
    if old.valid.is_some() {
        // Ranges are not cut: the merge will tell.
        (*a, *owners) = (old, from);
        return;
    }
    for ((size, stride), owner) in old.dims.iter().zip(&old.strides).zip(from) {
        let (mut left, mut step) = (*size, stride.abs());
        let mut digits: SmallVec<[(usize, i64); 4]> = SmallVec::new();
        for place in &places {
            if step == 0 || *place <= step || place % step != 0 {
                continue;
            }
            let low = (place / step) as usize;
            if low >= left || left % low != 0 {
                continue;
            }
            digits.push((low, step * stride.signum()));
            (left, step) = (left / low, *place);
        }
        digits.push((left, step * stride.signum()));
        for (size, stride) in digits.into_iter().rev() {
            a.dims.push(size);
            a.strides.push(stride);
            owners.push(owner);
        }
    }
}
