//! Operations with a kernel of their own: whole row-major operands to whole row-major results.

use wgrad_graph::{Op, Out, Shape};

use crate::machine::Flag;
use crate::scan;

/// An operand: what it is, and its elements.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Whole<'a> {
    pub(crate) out: Out,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Whole<'a> {
    pub(crate) fn elems<T: bytemuck::Pod>(&self) -> &'a [T] {
        bytemuck::cast_slice(self.bytes)
    }
}

/// An axis of a row-major value: what lies around it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Blocks, each of which holds every element of its lines.
    pub(crate) outer: usize,
    /// Elements of a line.
    pub(crate) n: usize,
    /// Lines of a block; neighbours in memory.
    pub(crate) inner: usize,
}

impl Lines {
    pub(crate) fn new(shape: Shape, axis: u8) -> Lines {
        let (axis, dims) = (usize::from(axis), shape.dims());
        let size = |dims: &[usize]| dims.iter().product();
        Lines { outer: size(&dims[..axis]), n: dims[axis], inner: size(&dims[axis + 1..]) }
    }

    pub(crate) fn elems(&self) -> usize {
        self.outer * self.n * self.inner
    }
}

/// Runs `op`, whose results `outs` lie in `to`. An index out of range raises `_flag`.
pub(crate) fn run(op: Op, ins: &[Whole<'_>], _outs: &[Out], mut to: Vec<&mut [u8]>, _flag: &Flag) {
    match op {
        Op::Scan { kind, axis, reverse } => {
            let lines = Lines::new(ins[0].out.shape, axis);
            scan::run(kind, lines, reverse, ins, to.remove(0));
        }
        other => unreachable!("{} has no kernel of its own", other.name()),
    }
}
