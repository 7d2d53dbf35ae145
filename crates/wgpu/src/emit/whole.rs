//! Operations with a kernel of their own: whole row-major operands to whole row-major results.

use wgrad_graph::{Op, Result, Shape, bail};

use super::kernel::Cx;
use super::scan;
use crate::launch::Lowered;

pub(super) fn lower(cx: Cx<'_>, op: Op) -> Result<Lowered> {
    match op {
        Op::Scan { kind, axis, reverse } => scan::lower(cx, kind, axis, reverse),
        other => bail!(Argument, other.name(), "has no kernel of its own"),
    }
}

/// An axis of a row-major value: what lies around it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    /// Blocks, each of which holds every element of its lines.
    pub(super) outer: usize,
    /// Elements of a line.
    pub(super) n: usize,
    /// Lines of a block; neighbours in memory.
    pub(super) inner: usize,
}

impl Lines {
    pub(super) fn new(shape: Shape, axis: u8) -> Lines {
        let (axis, dims) = (usize::from(axis), shape.dims());
        let size = |dims: &[usize]| dims.iter().product();
        Lines { outer: size(&dims[..axis]), n: dims[axis], inner: size(&dims[axis + 1..]) }
    }

    pub(super) fn count(&self) -> usize {
        self.outer * self.inner
    }
}
