//! Operations with a kernel of their own: whole row-major operands to whole row-major results.

use wgrad_graph::{Op, Result, bail};

use super::kernel::Cx;
use super::{argsort, matrix, scan};
use crate::launch::Lowered;

pub(super) fn lower(cx: Cx<'_>, op: Op) -> Result<Lowered> {
    match op {
        Op::Scan { kind, axis, reverse } => scan::lower(cx, kind, axis, reverse),
        Op::ArgSort { axis, descending } => argsort::lower(cx, axis, descending),
        Op::Matrix(kind) => matrix::lower(cx, kind),
        other => bail!(Argument, other.name(), "has no kernel of its own"),
    }
}
