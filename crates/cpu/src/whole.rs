//! Operations with a kernel of their own: whole row-major operands to whole row-major results.

use wgrad_graph::{Lines, Op, Out};

use crate::machine::Flag;
use crate::{argsort, matrix, scan};

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

/// Runs `op`, whose results `outs` lie in `to`. An index out of range raises `_flag`.
pub(crate) fn run(op: Op, ins: &[Whole<'_>], outs: &[Out], mut to: Vec<&mut [u8]>, _flag: &Flag) {
    match op {
        Op::Scan { kind, axis, reverse } => {
            let lines = Lines::new(ins[0].out.shape, axis);
            scan::run(kind, lines, reverse, ins, to.remove(0));
        }
        Op::ArgSort { axis, descending } => {
            let lines = Lines::new(ins[0].out.shape, axis);
            argsort::run(lines, descending, &ins[0], to.remove(0));
        }
        Op::Matrix(kind) => matrix::run(kind, ins, outs[0], to.remove(0)),
        other => unreachable!("{} has no kernel of its own", other.name()),
    }
}
