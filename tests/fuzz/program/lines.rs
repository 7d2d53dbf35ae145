//! Choices, scans and windows: operations along lines.

use wgrad::{DType, PadMode, Result, Windows};

use wgrad_graph::{Binary, Slope, Unary};

use super::{INEXACT, Program, V};

impl Program<'_> {
    /// A choice by an exact value between inexact ones; and kinks, where differences tell whether one is
    /// near.
    pub(super) fn chosen(&mut self, by: V) -> Result<()> {
        let shape = by.t.shape();
        let other = |p: &mut Self| p.input(DType::F32, shape, false);
        let (x, w) = (other(self)?, other(self)?);
        self.leaves.extend([x.t, w.t]);
        let kinks = self.shift.is_some();
        let (name, y) = match self.dice.below(6) {
            0 if kinks => ("maximum", x.t.try_maximum(w.t)?),
            1 if kinks => ("minimum", x.t.try_minimum(w.t)?),
            2 if kinks => ("relu", x.t.try_sub(w.t)?.try_relu()?),
            3 if kinks => ("abs", x.t.try_sub(w.t)?.try_abs()?),
            4 => (
                "select of what is computed",
                by.t.try_gt(0.1)?.try_select(x.t.try_sin()?, w.t.try_mul(x.t)?)?,
            ),
            _ => ("choice", by.t.try_le(0.1)?.try_select(x.t, w.t)?),
        };
        self.log.push(name.into());
        self.push(y, 4.0, INEXACT)
    }

    /// Sums, products, extremes and recurrences along an axis.
    pub(super) fn scanned(&mut self) -> Result<()> {
        let x = self.any();
        let (t, from) = (x.t, x.t.shape());
        if from.rank() == 0 {
            return Ok(());
        }
        let a = self.dice.below(from.rank());
        let (axis, n) = (a as i32, from[a] as f64);
        let float = t.dtype().is_float();
        let short = |size: f64| size.powi(from[a] as i32);
        let kind = self.dice.below(6);
        let (y, size, digits) = match kind {
            0 | 1 => (t.try_cumsum(axis)?, n.max(1.0) * x.size, x.digits),
            2 if float && from[a] > 4 && from[a] < 17 => {
                // Factors near 1.
                let near = t.try_tanh()?.try_mul(0.2)?.try_add(1)?;
                (near.try_cumprod(axis)?, 1.2f64.powi(from[a] as i32), INEXACT)
            }
            2 if from[a] < 5 => (t.try_cumprod(axis)?, short(x.size.max(1.0)), x.digits * from[a] as i32),
            3 if x.exact() || self.shift.is_some() => (t.try_cummax(axis)?.0, x.size, x.digits),
            4 if float => (t.try_logcumsumexp(axis)?, x.size + n.max(1.0).ln(), INEXACT),
            5 if float => {
                let w = self.input(DType::F32, from, false)?;
                self.leaves.push(w.t);
                let slow = t.try_tanh()?.try_mul(0.9)?;
                (slow.try_recur(axis, w.t)?, 10.0 * w.size, INEXACT)
            }
            _ => return Ok(()),
        };
        self.log.push(format!("scan {kind} {} {from}", t.dtype()));
        self.push(y, size, if x.exact() && kind < 4 { digits } else { INEXACT })
    }

    /// Sliding windows, diagonals, and what repeats or turns elements.
    pub(super) fn windowed(&mut self) -> Result<()> {
        let x = self.any();
        let (t, from) = (x.t, x.t.shape());
        let rank = from.rank();
        if rank == 0 || rank > 6 {
            return Ok(());
        }
        let a = self.dice.below(rank);
        let axis = a as i32;
        let kind = self.dice.below(9);
        let y = match kind {
            0 | 1 if from[a] > 0 => {
                let size = 1 + self.dice.below(from[a].min(4));
                let dilation = if (size - 1) * 2 < from[a] { 1 + self.dice.below(2) } else { 1 };
                t.try_windows(axis, Windows { size, step: 1 + self.dice.below(3), dilation })?
            }
            2 if rank > 1 => t.try_diagonal(self.dice.below(3) as i32 - 1, axis, (axis + 1) % rank as i32)?,
            3 if rank > 1 => t.try_tril(self.dice.below(3) as i32 - 1)?,
            4 => t.try_roll(axis, self.dice.below(5) as i32 - 2)?,
            5 => t.try_repeat_interleave(axis, 1 + self.dice.below(3))?,
            6 | 7 if from[a] > 1 && from.elems() > 0 => {
                let mode = self.dice.pick(&[PadMode::Reflect, PadMode::Replicate, PadMode::Circular]);
                let mut widths = vec![(0, 0); rank];
                let most = from[a].min(3);
                widths[a] = (self.dice.below(most) as isize, self.dice.below(most) as isize);
                t.try_pad(&widths, mode)?
            }
            8 => t.try_diag_embed(self.dice.below(3) as i32 - 1, 0, 1)?,
            _ => return Ok(()),
        };
        self.log.push(format!("windows {kind} {} {from} -> {}", t.dtype(), y.shape()));
        self.push(y, x.size, x.digits)
    }

    /// Any elementwise row, on its domain.
    pub(super) fn row(&mut self) -> Result<()> {
        if self.dice.one_in(2) {
            let op = self.dice.pick(&Unary::ALL);
            let row = op.row();
            let Some(reference) = row.float else { return Ok(()) };
            let step = jumps(&(row.slopes)());
            let x = if step { self.exact()? } else { self.within(row.domain.lo, row.domain.hi)? };
            let most = |lo: f64, hi: f64| {
                (0..=64).map(|i| reference(lo + (hi - lo) * f64::from(i) / 64.0).abs()).fold(0.0, f64::max)
            };
            let size = if step { x.size + 1.0 } else { most(row.domain.lo, row.domain.hi) };
            self.log.push(format!("row {}", row.name));
            let digits = if step { x.digits } else { INEXACT };
            return self.push(x.t.try_unary(op)?, size, digits);
        }
        let op = self.dice.pick(&Binary::ALL);
        let row = op.row();
        let Some(reference) = row.float else { return Ok(()) };
        let (lo, hi) = (row.domain.lo, row.domain.hi);
        if jumps(&(row.slopes)()) {
            let x = self.exact()?;
            let w = self.partner(x)?;
            if !w.exact() {
                return Ok(());
            }
            self.log.push(format!("row {}", row.name));
            if op.compares() {
                return self.push(x.t.try_binary(op, w.t)?, 1.0, 0);
            }
            // Quotients and what remains: by what is not 0.
            let by = w.t.try_abs()?.try_add(0.5)?;
            let most = (2.0 * x.size + 1.0).max(w.size + 0.5);
            return self.push(x.t.try_binary(op, by)?, most, x.digits.max(w.digits).max(1));
        }
        let x = self.within(lo, hi)?;
        let mut w = self.within(lo, hi)?;
        if x.t.shape().broadcast(&w.t.shape()).is_none() {
            let near = self.input(DType::F32, x.t.shape(), false)?;
            self.leaves.push(near.t);
            w = moved(near, lo, hi)?;
        }
        let at = |i: u32| lo + (hi - lo) * f64::from(i) / 12.0;
        let pairs = (0..=12).flat_map(|i| (0..=12).map(move |j| (i, j)));
        let size = pairs.map(|(i, j)| reference(at(i), at(j)).abs()).fold(0.0, f64::max);
        self.log.push(format!("row {}", row.name));
        self.push(x.t.try_binary(op, w.t)?, size, INEXACT)
    }

    /// A value moved into an interval.
    fn within(&mut self, lo: f64, hi: f64) -> Result<V> {
        moved(self.float()?, lo, hi)
    }

    /// Two operations of chosen families, one after the other, so that every pair is met.
    pub(super) fn linked(&mut self) -> Result<()> {
        let mut x = if self.dice.one_in(2) { self.exact()? } else { self.float()? };
        for _ in 0..2 {
            if let Some(y) = self.of_family(x)? {
                x = y;
            }
        }
        self.log.push(format!("linked {}", x.t.shape()));
        self.push(x.t, x.size, x.digits)
    }

    fn of_family(&mut self, x: V) -> Result<Option<V>> {
        let (t, from) = (x.t, x.t.shape());
        let rank = from.rank();
        let kind = self.dice.pick(&[0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 7, 7, 8, 8, 9]);
        if from.elems() == 0 || rank == 0 && kind > 3 || rank > 6 || matches!(kind, 2 | 3) && !x.exact() {
            return Ok(None);
        }
        let last = rank as i32 - 1;
        let mut digits = x.digits.max(2);
        let y = match kind {
            0 => t.try_neg()?,
            1 => {
                let w = self.partner(x)?;
                digits = digits.max(w.digits);
                t.try_add(w.t)?
            }
            2 => t.try_gt(0.5)?.try_select(t, self.input(DType::F32, from, true)?.t)?,
            3 => t.try_cast(DType::I32)?.try_cast(DType::F32)?,
            4 => t.try_permute(&(0..rank as i32).rev().collect::<Vec<_>>()[..])?,
            5 => t.try_expand(wgrad::Shape::new(&[&[2], from.dims()].concat()))?,
            6 => t.try_slice_step(last, .., if self.dice.one_in(2) { -1 } else { 2 })?,
            7 => t.try_pad(&vec![(1, 0); rank], 0.0)?,
            8 => {
                let idx = self.indices(from, from[rank - 1])?;
                t.try_gather(last, idx)?
            }
            _ => t.try_sum_keepdim(last)?,
        };
        let grown = if kind == 9 { from[rank - 1].max(1) as f64 } else { 2.0 };
        // Sums grow; what f32 holds exactly stays so, since fractions do.
        Ok(Some(V { t: y, size: x.size.max(2.0) * grown, digits }))
    }
}

fn moved(x: V, lo: f64, hi: f64) -> Result<V> {
    let t = x.t.try_tanh()?.try_mul((hi - lo) / 2.1)?.try_add((lo + hi) / 2.0)?;
    Ok(V { t, size: lo.abs().max(hi.abs()), digits: INEXACT })
}

/// Whether a function with these slopes has steps: then a rounding error may change it much.
fn jumps(slopes: &[Slope]) -> bool {
    fn rounds(slope: &Slope) -> bool {
        match slope {
            Slope::Un(Unary::Floor | Unary::Trunc | Unary::Ceil | Unary::Round, _) => true,
            Slope::Un(_, a) => rounds(a),
            Slope::Bin(_, a, b) => rounds(a) || rounds(b),
            Slope::If(a, b, c) => rounds(a) || rounds(b) || rounds(c),
            Slope::X | Slope::W | Slope::Y | Slope::Num(_) => false,
        }
    }
    slopes.iter().all(|s| *s == Slope::Num(0.0)) || slopes.iter().any(rounds)
}
