//! Index functions: what movement operations become. An [`Index`] maps coordinates of an iteration
//! space to an element of a stored value, through one or more affine [`View`]s.

use std::ops::Range;

use smallvec::SmallVec;

/// One affine step: `offset + sum(coord[i] * strides[i])`, valid where every coordinate is in range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Sizes of the coordinates that come in.
    pub dims: SmallVec<[usize; 8]>,
    /// Distance in elements for one step on each axis; 0 repeats, negative runs backwards.
    pub strides: SmallVec<[i64; 8]>,
    /// Element at the origin.
    pub offset: i64,
    /// Where set: coordinates outside these ranges (one an axis) have no element, they read 0.
    pub valid: Option<SmallVec<[Range<usize>; 8]>>,
    /// Offsets known at submission.
    pub dynamic: SmallVec<[Dynamic; 1]>,
}

/// An offset that a scalar adds: `scalar * stride` elements. The host checks `scalar <= max` before a
/// submission, so kernels need no guard.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dynamic {
    /// Index into the group's scalars.
    pub scalar: u16,
    /// Elements for one step of the scalar.
    pub stride: i64,
}

/// Views applied first to last. The number that one view gives is unravelled row-major over the next
/// view's `dims`; the number that the last gives is the element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Index {
    /// At least one view.
    pub views: SmallVec<[View; 1]>,
}

impl View {
    /// The row-major view of `dims`.
    pub fn linear(dims: &[usize]) -> View {
        let mut strides: SmallVec<[i64; 8]> = SmallVec::from_elem(0, dims.len());
        let mut step = 1;
        for axis in (0..dims.len()).rev() {
            strides[axis] = step;
            step *= dims[axis].max(1) as i64;
        }
        View { dims: dims.into(), strides, offset: 0, valid: None, dynamic: SmallVec::new() }
    }

    /// Whether element `n` of the row-major order of `dims` is element `n`.
    pub fn is_linear(&self) -> bool {
        if self.dims.contains(&0) {
            return true;
        }
        let linear = View::linear(&self.dims);
        let same = |i: usize| self.dims[i] == 1 || self.strides[i] == linear.strides[i];
        self.offset == 0 && self.valid.is_none() && self.dynamic.is_empty() && (0..self.dims.len()).all(same)
    }
}

impl Index {
    /// The row-major index of `dims`.
    pub fn linear(dims: &[usize]) -> Index {
        Index { views: SmallVec::from_buf([View::linear(dims)]) }
    }

    /// Whether the index is the row-major order of its space.
    pub fn is_linear(&self) -> bool {
        self.views.len() == 1 && self.views[0].is_linear()
    }

    /// The element at `coords`, or `None` where there is none. `scalars` are the group's.
    pub fn element(&self, coords: &[usize], scalars: &[f64]) -> Option<i64> {
        let mut coords: SmallVec<[usize; 8]> = coords.into();
        let mut element = 0;
        for (i, view) in self.views.iter().enumerate() {
            if i > 0 {
                let mut rest = usize::try_from(element).ok()?;
                coords = SmallVec::from_elem(0, view.dims.len());
                for axis in (0..view.dims.len()).rev() {
                    coords[axis] = rest % view.dims[axis].max(1);
                    rest /= view.dims[axis].max(1);
                }
            }
            if let Some(valid) = &view.valid
                && !coords.iter().zip(valid).all(|(c, r)| r.contains(c))
            {
                return None;
            }
            element = view.offset + coords.iter().zip(&view.strides).map(|(c, s)| *c as i64 * s).sum::<i64>();
            element +=
                view.dynamic.iter().map(|d| scalars[usize::from(d.scalar)] as i64 * d.stride).sum::<i64>();
        }
        Some(element)
    }
}
