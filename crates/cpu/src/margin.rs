//! Pointwise groups whose value is padded: the margin is filled with one number, and the program runs over what lies
//! within. Over the whole space every operand would be walked in pieces of a row, its margins between them.

use std::ops::Range;

use smallvec::SmallVec;
use wgrad_graph::{Body, DType, Expr, Group, Index, Kind};

use crate::kernels;
use crate::share::share;

/// Bytes of an output from which several threads fill it.
const PARALLEL_BYTES: usize = 1 << 18;

/// What lies around the part that is computed.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Margin {
    holds: Number,
    dtype: DType,
}

/// One number throughout.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Number {
    Known(i64),
    /// A scalar of the group.
    Scalar(usize),
}

impl Number {
    fn of(expr: &Expr, body: &Body) -> Option<Number> {
        match *expr {
            Expr::Scalar { scalar } => Some(Number::Scalar(usize::from(scalar))),
            Expr::Coord { index } => match &body.indices[usize::from(index)].views[..] {
                [view] => {
                    let still = view.strides.iter().all(|s| *s == 0);
                    (still && view.valid.is_none() && view.dynamic.is_empty())
                        .then_some(Number::Known(view.offset))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

impl Margin {
    /// The margin of `group`, where it has one, and the group over what lies within.
    pub(crate) fn cut(group: &Group) -> Option<(Margin, Group)> {
        let (Kind::Pointwise, [store]) = (&group.kind, &group.stores[..]) else { return None };
        let (expr, dtype) = &group.body.exprs[usize::try_from(store.x).ok()?];
        let (index, x, holds) = match *expr {
            Expr::Load { index, .. } => (index, store.x, Number::Known(0)),
            Expr::Select { c, x, w } => {
                let Expr::Valid { index } = group.body.exprs[c as usize].0 else { return None };
                (index, x, Number::of(&group.body.exprs[w as usize].0, &group.body)?)
            }
            _ => return None,
        };
        let seen = &group.body.indices[usize::from(index)];
        let within = seen.views[0].valid.clone()?;
        let whole = within.iter().zip(&group.dims).all(|(range, size)| *range == (0..*size));
        let target = &group.body.indices[usize::from(store.index)].views[..];
        let plain = matches!(target, [view] if view.valid.is_none() && view.dynamic.is_empty());
        let over = |index: &Index| index.views[0].dims == group.dims;
        if whole
            || within.iter().any(Range::is_empty)
            || store.base.is_some()
            || !plain
            || !group.body.indices.iter().all(over)
        {
            return None;
        }
        let mut inner = group.clone();
        inner.dims = within.iter().map(Range::len).collect();
        inner.body.indices.iter_mut().for_each(|index| narrow(index, &within));
        if inner.body.indices[usize::from(index)].views.iter().all(|v| v.valid.is_none()) {
            inner.stores[0].x = x;
        }
        Some((Margin { holds, dtype: *dtype }, inner))
    }

    /// Fills an output.
    pub(crate) fn fill(&self, scalars: &[f64], out: &mut [u8]) {
        let number = match self.holds {
            Number::Known(number) => number as f64,
            Number::Scalar(i) => scalars[i],
        };
        let (bytes, size) = kernels::element(number, self.dtype);
        let fill = |out: &mut [u8]| kernels::fill(&bytes[..size], out);
        if out.len() < PARALLEL_BYTES {
            return fill(out);
        }
        share(out.chunks_mut(PARALLEL_BYTES / 2), fill);
    }
}

/// The index over the part `within` of its space.
fn narrow(index: &mut Index, within: &[Range<usize>]) {
    let view = &mut index.views[0];
    view.dims = within.iter().map(Range::len).collect();
    view.offset +=
        within.iter().zip(&view.strides).map(|(range, stride)| range.start as i64 * stride).sum::<i64>();
    let Some(valid) = view.valid.take() else { return };
    let valid: SmallVec<[Range<usize>; 8]> = valid
        .iter()
        .zip(within)
        .map(|(valid, within)| {
            let (from, to) = (valid.start.max(within.start), valid.end.min(within.end));
            if from < to { from - within.start..to - within.start } else { 0..0 }
        })
        .collect();
    let all = valid.iter().zip(&view.dims).all(|(range, size)| *range == (0..*size));
    view.valid = (!all).then_some(valid);
}
