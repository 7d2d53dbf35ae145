//! Composition of index functions: a movement under another index becomes one affine view where that
//! can be proved, else one view more.

use std::ops::Range;

use smallvec::SmallVec;

use crate::{Index, Op, Shape, View};

/// The largest value of each scalar of a group that serves as an offset.
pub(crate) type Limits<'a> = &'a [i64];

/// An axis (or a dynamic offset) of the first view while two views are merged.
struct Term {
    stride: i64,
    /// Where the term is smallest.
    corner: i64,
    /// Steps from the corner to the other end.
    steps: i64,
}

/// A coordinate of the second view: its size, its stride, and where it is valid if not everywhere.
type Digit = (i64, i64, Option<Range<usize>>);

impl View {
    /// The coordinates on `axis` that have an element.
    fn range(&self, axis: usize) -> Range<usize> {
        match &self.valid {
            Some(valid) => valid[axis].start..valid[axis].end.min(self.dims[axis]),
            None => 0..self.dims[axis],
        }
    }

    /// Whether no coordinates have an element.
    fn is_never(&self) -> bool {
        (0..self.dims.len()).any(|axis| self.range(axis).is_empty())
    }

    /// Smallest and largest number that the view gives, or `None` where it gives none.
    fn bounds(&self, limits: Limits<'_>) -> Option<(i64, i64)> {
        if self.is_never() {
            return None;
        }
        let (mut lo, mut hi) = (self.offset, self.offset);
        let mut add = |a: i64, b: i64| {
            lo += a.min(b);
            hi += a.max(b);
        };
        for (axis, stride) in self.strides.iter().enumerate() {
            let range = self.range(axis);
            add(range.start as i64 * stride, (range.end as i64 - 1) * stride);
        }
        for d in &self.dynamic {
            add(0, limits[usize::from(d.scalar)] * d.stride);
        }
        Some((lo, hi))
    }

    /// Strides 0 on axes of one coordinate, no ranges that restrict nothing.
    fn normal(mut self) -> View {
        for axis in 0..self.dims.len() {
            if self.dims[axis] == 1 {
                self.strides[axis] = 0;
            }
        }
        if let Some(valid) = &self.valid
            && valid.iter().zip(&self.dims).all(|(r, d)| r.start == 0 && r.end >= *d)
        {
            self.valid = None;
        }
        self
    }

    /// The view that undoes this one, over the row-major number of the value that this one reads;
    /// `None` unless this one is a bijection.
    fn inverse(&self) -> Option<View> {
        if self.valid.is_some() || !self.dynamic.is_empty() || self.dims.contains(&0) {
            return None;
        }
        let places = View::linear(&self.dims).strides;
        let mut axes: SmallVec<[usize; 8]> = (0..self.dims.len()).filter(|a| self.dims[*a] > 1).collect();
        axes.sort_by_key(|a| std::cmp::Reverse(self.strides[*a].abs()));
        let (mut place, mut origin) = (1, 0);
        for axis in axes.iter().rev() {
            let stride = self.strides[*axis];
            if stride.abs() != place {
                return None;
            }
            if stride < 0 {
                origin += (self.dims[*axis] as i64 - 1) * -stride;
            }
            place *= self.dims[*axis] as i64;
        }
        if self.offset != origin {
            return None;
        }
        let mut inverse = View {
            dims: axes.iter().map(|a| self.dims[*a]).collect(),
            strides: SmallVec::new(),
            offset: 0,
            valid: None,
            dynamic: SmallVec::new(),
        };
        for axis in axes {
            let backwards = self.strides[axis] < 0;
            if backwards {
                inverse.offset += (self.dims[axis] as i64 - 1) * places[axis];
            }
            inverse.strides.push(if backwards { -places[axis] } else { places[axis] });
        }
        Some(inverse)
    }

    /// What the movement `op` (pad included) reads: coordinates of the result `to` to elements of the
    /// operand `from`. `start` is the group's scalar for `slice_at`.
    pub(crate) fn of_movement(op: &Op, from: Shape, to: Shape, start: u16) -> View {
        let places = from.strides();
        let mut view = View {
            dims: to.dims().into(),
            strides: places[..from.rank()].into(),
            offset: 0,
            valid: None,
            dynamic: SmallVec::new(),
        };
        match op {
            Op::Permute(perm) => {
                view.strides = perm[..to.rank()].iter().map(|p| places[usize::from(*p)]).collect();
            }
            Op::Expand => {
                for axis in 0..to.rank() {
                    if from[axis] == 1 {
                        view.strides[axis] = 0;
                    }
                }
            }
            Op::Slice(steps) => {
                for (axis, stride) in view.strides.iter_mut().enumerate() {
                    view.offset += steps.start[axis] * *stride;
                    *stride *= steps.step[axis];
                }
                if to.elems() == 0 {
                    view.offset = 0;
                }
            }
            Op::Windows { axis, step, dilation, .. } => {
                let place = places[usize::from(*axis)];
                view.strides[usize::from(*axis)] = place * i64::from(*step);
                view.strides.push(place * i64::from(*dilation));
            }
            Op::Diagonal { a, b } => {
                let (a, b) = (usize::from(*a), usize::from(*b));
                let kept = (0..from.rank()).filter(|axis| ![a, b].contains(axis)).map(|axis| places[axis]);
                view.strides = kept.chain([places[a] + places[b]]).collect();
            }
            Op::SliceAt { axis } => {
                view.dynamic.push(crate::Dynamic { scalar: start, stride: places[usize::from(*axis)] });
            }
            Op::Pad { lo } => {
                view.offset = -(0..to.rank()).map(|a| i64::from(lo[a]) * places[a]).sum::<i64>();
                view.valid = Some((0..to.rank()).map(|a| lo[a] as usize..lo[a] as usize + from[a]).collect());
            }
            _ => view = View::linear(to.dims()),
        }
        view.normal()
    }
}

impl Index {
    /// An index of one view.
    pub(crate) fn of(view: View) -> Index {
        Index { views: SmallVec::from_buf([view.normal()]) }
    }

    /// The identity of a space, in the form in which composition leaves indices.
    pub(crate) fn identity(dims: &[usize]) -> Index {
        Index::of(View::linear(dims))
    }

    /// The index that gives `number` everywhere.
    pub(crate) fn constant(dims: &[usize], number: i64) -> Index {
        Index::of(View {
            dims: dims.into(),
            strides: SmallVec::from_elem(0, dims.len()),
            offset: number,
            valid: None,
            dynamic: SmallVec::new(),
        })
    }

    /// This index followed by `view`, which takes the coordinates of the value whose row-major number
    /// this index gives.
    pub(crate) fn then(&self, view: &View, limits: Limits<'_>) -> Index {
        let mut index = self.clone();
        if view.is_linear() {
            return index;
        }
        index.views.push(view.clone().normal());
        while let [.., a, b] = index.views.as_slice() {
            let Some(merged) = merge(a, b, limits) else { break };
            index.views.pop();
            index.views.pop();
            index.views.push(merged.normal());
        }
        index
    }

    /// This index followed by `next`, whose first view is over the value whose number this one gives.
    pub(crate) fn then_index(&self, next: &Index, limits: Limits<'_>) -> Index {
        next.views.iter().fold(self.clone(), |index, view| index.then(view, limits))
    }

    /// The index over `dims`, the space of the value that this index reads as a whole, that gives the
    /// row-major number of this index's own coordinates; `None` unless this index is a bijection.
    pub(crate) fn inverse(&self, dims: &[usize]) -> Option<Index> {
        let mut index = Index::identity(dims);
        for view in self.views.iter().rev() {
            index = index.then(&view.inverse()?, &[]);
        }
        (self.views[0].dims.iter().product::<usize>() == dims.iter().product::<usize>()).then_some(index)
    }

    /// Whether a kernel may read by strides alone: one view, always valid, nothing dynamic.
    pub(crate) fn is_strided(&self) -> bool {
        self.views.len() == 1 && self.views[0].valid.is_none() && self.views[0].dynamic.is_empty()
    }

    /// Whether every element that the index gives is below `elems`, and every number between views is
    /// one of the next view.
    pub(crate) fn is_inside(&self, elems: usize, limits: Limits<'_>) -> bool {
        if self.views[0].dims.contains(&0) {
            return true;
        }
        for (i, view) in self.views.iter().enumerate() {
            let below = match self.views.get(i + 1) {
                Some(next) => next.dims.iter().product::<usize>(),
                None => elems,
            };
            match view.bounds(limits) {
                Some((lo, hi)) if lo < 0 || hi >= below as i64 => return false,
                Some(_) => {}
                None => return true,
            }
        }
        true
    }
}

/// `b` after `a` as one view, where no carry between the digits of `b`'s coordinates can occur.
pub(crate) fn merge(a: &View, b: &View, limits: Limits<'_>) -> Option<View> {
    let nothing = |a: &View| View {
        strides: SmallVec::from_elem(0, a.dims.len()),
        offset: 0,
        dynamic: SmallVec::new(),
        ..a.clone()
    };
    if a.is_never() || b.dims.contains(&0) {
        return Some(nothing(a));
    }
    // Digits of the number between the views, the coarsest that suffice.
    let mut digits: SmallVec<[Digit; 8]> = SmallVec::new();
    for axis in 0..b.dims.len() {
        let (size, stride, range) = (b.dims[axis] as i64, b.strides[axis], b.range(axis));
        if range.is_empty() {
            return None;
        }
        if size == 1 {
            continue;
        }
        let range = (range != (0..b.dims[axis])).then_some(range);
        match digits.last_mut() {
            Some(last) if last.2.is_none() && range.is_none() && last.1 == stride * size => {
                *last = (last.0 * size, stride, None);
            }
            _ => digits.push((size, stride, range)),
        }
    }
    // The axes that move, and the number at the corner where all of them are smallest.
    let mut lowest = a.offset;
    let mut term = |stride: i64, lo: i64, hi: i64| {
        let corner = if stride < 0 { hi } else { lo };
        lowest += stride * corner;
        Term { stride, corner, steps: hi - lo }
    };
    let axes: SmallVec<[Term; 8]> = (0..a.dims.len())
        .map(|axis| {
            let range = a.range(axis);
            term(a.strides[axis], range.start as i64, range.end as i64 - 1)
        })
        .collect();
    let offsets: SmallVec<[Term; 1]> =
        a.dynamic.iter().map(|d| term(d.stride, 0, limits[usize::from(d.scalar)])).collect();
    if lowest < 0 {
        return None;
    }
    let mut merged = View {
        dims: a.dims.clone(),
        strides: SmallVec::from_elem(0, a.dims.len()),
        offset: b.offset,
        valid: a.valid.clone(),
        dynamic: b.dynamic.clone(),
    };
    let mut moved: SmallVec<[i64; 2]> = SmallVec::from_elem(0, offsets.len());
    let mut place: i64 = digits.iter().map(|d| d.0).product();
    let total = place;
    let single = digits.len() == 1 && digits[0].2.is_none();
    for (size, stride, range) in &digits {
        place /= size;
        let digit = |number: i64| number % (place * size) / place;
        let first = if place * size == total { lowest / place } else { digit(lowest) };
        let share = |t: &Term| {
            if t.steps == 0 {
                0
            } else if place * size == total {
                t.stride.abs() / place
            } else {
                digit(t.stride.abs())
            }
        };
        let last = first + axes.iter().chain(&offsets).map(|t| share(t) * t.steps).sum::<i64>();
        if last >= *size && !single {
            return None;
        }
        merged.offset += first * stride;
        for (i, t) in axes.iter().enumerate() {
            merged.strides[i] += t.stride.signum() * share(t) * stride;
        }
        for (i, t) in offsets.iter().enumerate() {
            moved[i] += t.stride.signum() * share(t) * stride;
        }
        let Some(range) = range else { continue };
        let (start, end) = (range.start as i64, range.end as i64);
        if start <= first && last < end {
            continue;
        }
        let mut sources = (0..axes.len()).filter(|i| share(&axes[*i]) > 0 && axes[*i].steps > 0);
        let (source, others) = (sources.next()?, sources.next());
        if others.is_some() || offsets.iter().any(|t| share(t) > 0 && t.steps > 0) {
            return None;
        }
        let t = &axes[source];
        let by = share(t);
        let lo = (start - first + by - 1).div_euclid(by).max(0);
        let hi = (end - 1 - first).div_euclid(by).min(t.steps);
        if lo > hi {
            return None;
        }
        let (lo, hi) =
            if t.stride < 0 { (t.corner - hi, t.corner - lo) } else { (t.corner + lo, t.corner + hi) };
        let valid = merged.valid.get_or_insert_with(|| a.dims.iter().map(|d| 0..*d).collect());
        let axis = &mut valid[source];
        *axis = axis.start.max(lo as usize)..axis.end.min(hi as usize + 1);
        if axis.start >= axis.end {
            return None;
        }
    }
    for (i, t) in axes.iter().enumerate() {
        merged.offset -= merged.strides[i] * t.corner;
    }
    for (i, t) in offsets.iter().enumerate() {
        merged.offset -= moved[i] * t.corner;
        if moved[i] != 0 {
            merged.dynamic.push(crate::Dynamic { scalar: a.dynamic[i].scalar, stride: moved[i] });
        }
    }
    Some(merged)
}
