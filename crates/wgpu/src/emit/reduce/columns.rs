//! Reductions of columns whose partial sums a row program makes.

use wgrad_graph::{Acc, AccKind, DType, Expr, IndexId, Reduce, Result};

use super::super::kernel::Cx;
use super::super::states::{State, States};
use super::Reduction;
use crate::launch::Launch;

/// A reduction of columns whose partial sums a row program makes.
pub(in crate::emit) struct Columns<'a>(Reduction<'a>);

impl<'a> Columns<'a> {
    /// The reduction, where it is sums of four neighbouring columns a lane.
    pub(in crate::emit) fn of(cx: Cx<'a>, length: usize, rows: usize) -> Result<Option<Columns<'a>>> {
        let group = &*cx.step.group;
        let sums = |acc: &Acc| {
            acc.kind == AccKind::Reduce(Reduce::Sum) && group.body.exprs[acc.x as usize].1 == DType::F32
        };
        if group.dims[..] != [length, rows] || group.reduced != 1 || !group.accs.iter().all(sums) {
            return Ok(None);
        }
        let states = States(group.accs.iter().map(|a| State::new(a, cx)).collect::<Result<_>>()?);
        let mut kernel = Reduction { cx, states, each: 1, results: length, length: rows };
        if !kernel.takes_columns() {
            return Ok(None);
        }
        let four = |state: &State| std::iter::repeat_n(state.clone(), 4);
        kernel.states = States(kernel.states.0.iter().flat_map(four).collect());
        (kernel.each, kernel.results) = (4, length / 4);
        Ok(Some(Columns(kernel)))
    }

    /// What is loaded for a point of a column, where nothing else is needed.
    pub(in crate::emit) fn loads(&self) -> Option<Vec<(u16, IndexId)>> {
        let needed = self.0.prologue();
        let mut loads = Vec::new();
        for (_, expr) in self.0.exprs(&needed) {
            match expr {
                Expr::Load { operand, index } => loads.push((*operand, *index)),
                Expr::Unary { .. } | Expr::Binary { .. } | Expr::Select { .. } | Expr::Cast { .. } => {}
                _ => return None,
            }
        }
        Some(loads)
    }

    /// Words of scratch memory of so many parts.
    pub(in crate::emit) fn words(&self, parts: u32) -> usize {
        self.0.scratch_words(parts)
    }

    /// The launch that adds the parts, `[accumulator, column of four, part, quad]`.
    pub(in crate::emit) fn last(&self, parts: u32) -> Result<Launch> {
        self.0.combine(parts, true)
    }
}
