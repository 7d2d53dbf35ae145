//! Shapes of rank up to eight, sets of axes, broadcasting.

use std::fmt;
use std::ops::Index;

/// The largest rank of a tensor.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's axes, outermost first, stored inline.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// The shape of one number.
    pub const SCALAR: Shape = Shape { rank: 0, dims: [1; MAX_RANK] };

    /// The shape with these sizes, or `None` when the rank is over [`MAX_RANK`] or the number of
    /// elements does not fit in `usize`.
    pub fn try_new(dims: &[usize]) -> Option<Shape> {
        if dims.len() > MAX_RANK {
            return None;
        }
        dims.iter().filter(|d| **d > 0).try_fold(1usize, |n, d| n.checked_mul(*d))?;
        let mut shape = Shape { rank: dims.len() as u8, dims: [1; MAX_RANK] };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Some(shape)
    }

    /// The shape with these sizes.
    ///
    /// # Panics
    /// When the rank is over [`MAX_RANK`] or the number of elements does not fit in `usize`.
    #[track_caller]
    pub fn new(dims: &[usize]) -> Shape {
        match Shape::try_new(dims) {
            Some(shape) => shape,
            None => panic!("shape {dims:?}: rank over {MAX_RANK}, or too many elements"),
        }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Sizes of the axes, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    /// Number of elements; 1 for a scalar, 0 when any axis is empty.
    pub fn elems(&self) -> usize {
        self.dims().iter().product()
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> [i64; MAX_RANK] {
        let mut strides = [0; MAX_RANK];
        let mut step = 1i64;
        for axis in (0..self.rank()).rev() {
            strides[axis] = step;
            step *= self.dims[axis].max(1) as i64;
        }
        strides
    }

    /// The same shape with axis `axis` of size `size`.
    #[must_use]
    pub fn with(mut self, axis: usize, size: usize) -> Shape {
        assert!(axis < self.rank(), "axis {axis} of rank {}", self.rank);
        self.dims[axis] = size;
        self
    }

    /// The shape that both broadcast to by NumPy's rule (align right, a 1 stretches), if any.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let mut dims = [1; MAX_RANK];
        for (i, dim) in dims[..rank].iter_mut().enumerate() {
            let size = |s: &Shape| (i + s.rank()).checked_sub(rank).map_or(1, |axis| s.dims[axis]);
            *dim = match (size(self), size(other)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            };
        }
        Shape::try_new(&dims[..rank])
    }
}

impl Index<usize> for Shape {
    type Output = usize;
    fn index(&self, axis: usize) -> &usize {
        &self.dims()[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! shape_from {
    ($($n:literal)*) => {$(
        impl From<[usize; $n]> for Shape {
            #[track_caller]
            fn from(dims: [usize; $n]) -> Shape {
                Shape::new(&dims)
            }
        }
    )*};
}
shape_from!(0 1 2 3 4 5 6 7 8);

impl From<&[usize]> for Shape {
    #[track_caller]
    fn from(dims: &[usize]) -> Shape {
        Shape::new(dims)
    }
}

impl From<&Vec<usize>> for Shape {
    #[track_caller]
    fn from(dims: &Vec<usize>) -> Shape {
        Shape::new(dims)
    }
}

/// A set of axes, as a bit mask.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Axes(u8);

impl Axes {
    /// The empty set.
    pub const NONE: Axes = Axes(0);

    /// All axes of a tensor of rank `rank`.
    pub fn all(rank: usize) -> Axes {
        (0..rank).fold(Axes::NONE, Axes::with)
    }

    /// The same set and `axis`.
    #[must_use]
    pub fn with(self, axis: usize) -> Axes {
        assert!(axis < MAX_RANK, "axis {axis} is not below {MAX_RANK}");
        Axes(self.0 | 1 << axis)
    }

    /// Whether `axis` is in the set.
    pub fn has(self, axis: usize) -> bool {
        axis < MAX_RANK && self.0 >> axis & 1 == 1
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The axes, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANK).filter(move |a| self.has(*a))
    }
}

impl FromIterator<usize> for Axes {
    fn from_iter<I: IntoIterator<Item = usize>>(axes: I) -> Axes {
        axes.into_iter().fold(Axes::NONE, Axes::with)
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// An axis of a row-major value, and what lies around it: the value is `[outer, n, inner]`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Blocks, each of which holds every element of its lines.
    pub outer: usize,
    /// Elements of a line.
    pub n: usize,
    /// Lines of a block; neighbours in memory.
    pub inner: usize,
}

impl Lines {
    /// The lines along `axis` of `shape`.
    pub fn new(shape: Shape, axis: u8) -> Lines {
        let (axis, dims) = (usize::from(axis), shape.dims());
        let size = |dims: &[usize]| dims.iter().product();
        Lines { outer: size(&dims[..axis]), n: dims[axis], inner: size(&dims[axis + 1..]) }
    }

    /// How many lines there are.
    pub fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// Elements of all lines.
    pub fn elems(&self) -> usize {
        self.outer * self.n * self.inner
    }
}
