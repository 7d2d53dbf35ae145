//! Gradient rules of scans, each a scan in the other direction, and of scatters.

use smallvec::{SmallVec, smallvec};
use wgrad_graph::{DType, Op, Reduce, Scan};

use crate::ops::cast;
use crate::rules::Site;
use crate::{Result, Tensor};

/// The direction in which a scan runs.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Along {
    pub(crate) axis: usize,
    pub(crate) reverse: bool,
}

impl Along {
    fn back(self) -> Along {
        Along { reverse: !self.reverse, ..self }
    }

    #[track_caller]
    fn scan(self, kind: Scan, x: &[Tensor]) -> Result<Tensor> {
        let op = Op::Scan { kind, axis: self.axis as u8, reverse: self.reverse };
        Tensor::record(op, x, None, None)
    }

    /// Each element replaced by the one before it in the scan's order, the first by `first`.
    #[track_caller]
    fn before(self, x: Tensor, first: f64) -> Result<Tensor> {
        let shape = x.try_out()?.shape;
        let mut pads = vec![(0, 0); shape.rank()];
        let part = if self.reverse {
            x.try_slice(self.axis as i32, 1..)?
        } else {
            x.try_slice(self.axis as i32, ..-1)?
        };
        pads[self.axis] = if self.reverse { (0, 1) } else { (1, 0) };
        part.try_pad(&pads, first)
    }

    /// `a - b`, 0 where both are equal, also at infinity.
    #[track_caller]
    fn apart(a: Tensor, b: Tensor) -> Result<Tensor> {
        a.try_eq(b)?.try_select(0.0, a.try_sub(b)?)
    }
}

/// The gradients of a scan's operands.
#[track_caller]
pub(crate) fn gradient(
    kind: Scan,
    along: Along,
    site: &Site<'_>,
    g: Tensor,
) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    let (x, y) = (site.x[0], site.out[0]);
    if x.try_out()?.shape.elems() == 0 {
        return Ok(site.x.iter().map(|_| Some(g)).collect());
    }
    let back = along.back();
    Ok(match kind {
        Scan::ArgMax | Scan::ArgMin => smallvec![None],
        Scan::Sum => smallvec![Some(back.scan(Scan::Sum, &[g])?)],
        // dx[k] = y[k - 1] s[k] with s[k] = g[k] + x[k + 1] s[k + 1]: no division, so zeros are right.
        Scan::Prod => {
            let s = back.scan(Scan::Recur, &[back.before(x, 0.0)?, g])?;
            smallvec![Some(along.before(y, 1.0)?.try_mul(s)?)]
        }
        // dx[k] = e^(x[k] - y[k]) s[k] with s[k] = g[k] + e^(y[k] - y[k + 1]) s[k + 1]; y never falls.
        Scan::LogAddExp => {
            let next = back.before(y, 0.0)?;
            let s = back.scan(Scan::Recur, &[Along::apart(y, next)?.try_exp()?, g])?;
            smallvec![Some(Along::apart(x, y)?.try_exp()?.try_mul(s)?)]
        }
        // s[t] = g[t] + a[t + 1] s[t + 1]; db = s, da[t] = y[t - 1] s[t].
        Scan::Recur => {
            let s = back.scan(Scan::Recur, &[back.before(x, 0.0)?, g])?;
            let da = if site.needs[0] { Some(along.before(y, 0.0)?.try_mul(s)?) } else { None };
            smallvec![da, Some(s)]
        }
    })
}

/// A scatter at which a gradient arrives.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Scattered {
    pub(crate) axis: u8,
    pub(crate) idx: Tensor,
    pub(crate) src: Tensor,
    pub(crate) y: Tensor,
}

impl Scattered {
    /// What stands at each value's place.
    #[track_caller]
    fn read(self, x: Tensor) -> Result<Tensor> {
        Tensor::record(Op::Gather { axis: self.axis }, &[x, self.idx], None, None)
    }

    /// For each value what meets at its place.
    #[track_caller]
    fn met(self, kind: Reduce, x: Tensor) -> Result<Tensor> {
        let to = self.y.try_out()?.shape;
        self.read(Tensor::record(Op::Scatter { axis: self.axis, kind }, &[self.idx, x], Some(to), None)?)
    }

    /// The gradient of the values.
    #[track_caller]
    pub(crate) fn gradient(self, kind: Reduce, g: Tensor) -> Result<Tensor> {
        let g = self.read(g)?;
        match kind {
            Reduce::Sum => Ok(g),
            // Equal shares to all that equal the extreme; where that is NaN nothing does.
            Reduce::Max | Reduce::Min => {
                let hit = self.src.try_eq(self.read(self.y)?)?;
                let count = self.met(Reduce::Sum, cast(hit, g.try_out()?.dtype)?)?;
                hit.try_select(g.try_div(count.try_maximum(1.0)?)?, 0.0)
            }
            // The product of the others: of all that are not 0, without the element itself, unless another
            // is 0.
            Reduce::Prod => {
                let zero = self.src.try_eq(0.0)?;
                let filled = zero.try_select(1.0, self.src)?;
                let zeros = cast(zero, DType::I32)?;
                let others = self.met(Reduce::Sum, zeros)?.try_sub(zeros)?;
                let rest = self.met(Reduce::Prod, filled)?.try_div(filled)?;
                others.try_eq(0)?.try_select(g.try_mul(rest)?, 0.0)
            }
        }
    }
}
