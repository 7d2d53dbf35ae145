//! Small matrices; values written to places; orders of elements; parts replaced one after the other.

use wgrad::{DType, Result, ScatterReduce, Shape, Triangular};

use super::{INEXACT, Program, V};

impl Program<'_> {
    /// Factors, solutions and determinants of matrices far from singular.
    pub(super) fn solved(&mut self) -> Result<()> {
        let x = self.float()?;
        if x.t.rank() == 0 || x.t.shape().elems() == 0 || x.t.shape().elems() > 3000 {
            return Ok(());
        }
        let t = if x.t.rank() == 1 { x.t.try_unsqueeze(0)? } else { x.t };
        let rank = t.rank();
        let m = t.shape()[rank - 2].min(6);
        let t = t.try_narrow(-2, 0, m)?.try_tanh()?;
        let k = t.shape()[rank - 1];
        let kind = self.dice.below(7);
        let eye = self.pass.try_eye(m)?;
        let a = if matches!(kind, 0 | 5 | 6) {
            // Eigenvalues from 1 to m + 1.
            t.try_matmul(t.try_t()?)?.try_mul(1.0 / k as f64)?.try_add(eye)?
        } else {
            // Each row's off-diagonal elements together are less than the one on the diagonal.
            let w = self.input(DType::F32, [k, m].into(), false)?;
            self.leaves.push(w.t);
            t.try_matmul(w.t)?.try_tanh()?.try_mul(0.4 / m as f64)?.try_add(eye)?
        };
        let most = 1.4f64.powi(m as i32);
        let (name, y, size) = match kind {
            0 => ("cholesky", a.try_cholesky()?, 1.5),
            1 => ("solve", a.try_solve(t)?, 2.5),
            2 => ("inverse", a.try_inverse()?, 2.5),
            3 => ("det", a.try_det()?, most),
            4 => ("slogdet", a.try_slogdet()?.1, m as f64),
            5 => ("triangular", a.try_cholesky()?.try_solve_triangular(t, Triangular::default())?, 2.5),
            _ => ("cholesky solve", t.try_cholesky_solve(a.try_cholesky()?)?, 2.5),
        };
        self.log.push(format!("{name} {}", a.shape()));
        self.push(y, size, INEXACT)
    }

    /// Values written to places, of which several may be one.
    pub(super) fn scattered(&mut self) -> Result<()> {
        let x = self.any();
        let (t, from, dtype) = (x.t, x.t.shape(), x.t.dtype());
        if from.rank() == 0 || from.elems() == 0 || matches!(dtype, DType::Bool | DType::U8) {
            return Ok(());
        }
        let a = self.dice.below(from.rank());
        let axis = a as i32;
        let count = 1 + self.dice.below(6);
        let part = from.with(a, count);
        let kind = self.dice.below(11);
        // What is compared has to be exact, unless differences tell whether a kink is near.
        let base = x.exact() || self.shift.is_some();
        let exact = x.exact() || matches!(kind, 4..=6) && self.shift.is_none();
        let lines = matches!(kind, 7..=9);
        let idx = self.indices(if lines { [count].into() } else { part }, from[a])?;
        let mut src = self.input(dtype, part, exact)?;
        if base && self.dice.one_in(2) {
            // Elements of the value itself, some of them twice.
            let of = self.indices(part, from[a])?;
            src = V { t: t.try_gather(axis, of)?, ..x };
        } else if dtype.is_float() && kind != 9 {
            self.leaves.push(src.t);
        }
        let own = self.dice.one_in(2);
        let reduce = |kind, own| t.try_scatter_reduce(axis, idx, src.t, kind, own);
        let float = dtype.is_float();
        let (same, digits) = (x.size.max(src.size), x.digits.max(src.digits));
        let (name, y, size, digits) = match kind {
            0 | 1 => ("scatter", t.try_scatter(axis, idx, src.t)?, same, digits),
            2 => {
                let (most, fraction) = (src.size.max(1.0).powi(count as i32), src.digits * count as i32);
                ("scatter prod", reduce(ScatterReduce::Prod, own)?, same * most, x.digits + fraction)
            }
            3 if float => ("scatter mean", reduce(ScatterReduce::Mean, own)?, same, INEXACT),
            4 => ("scatter max", reduce(ScatterReduce::Max, own && base)?, same, digits),
            5 | 6 => ("scatter min", reduce(ScatterReduce::Min, own && base)?, same, digits),
            7 => ("index_add", t.try_index_add(axis, idx, src.t)?, same + src.size * count as f64, digits),
            8 => ("index_copy", t.try_index_copy(axis, idx, src.t)?, same, digits),
            9 => ("index_fill", t.try_index_fill(axis, idx, 1.0)?, same.max(1.0), digits),
            10 if float => {
                let at = self.indices([count].into(), from.elems())?;
                let w = self.input(dtype, [count].into(), x.exact())?;
                self.leaves.push(w.t);
                ("put", t.try_put(at, w.t, own)?, same + 2.0 * count as f64, digits)
            }
            _ => return Ok(()),
        };
        self.log.push(format!("{name} {dtype} {from} axis {a}, {count}"));
        self.push(y, size, if x.exact() { digits } else { INEXACT })
    }

    /// What depends on the order of elements: exact, or kept apart.
    pub(super) fn ordered(&mut self) -> Result<()> {
        let x = self.any();
        let from = x.t.shape();
        if from.rank() == 0 || from.elems() == 0 || from.elems() > 3000 {
            return Ok(());
        }
        let a = self.dice.below(from.rank());
        let (axis, n) = (a as i32, from[a]);
        let x = self.apart(x, &[a])?;
        let (t, down, k) = (x.t, self.dice.one_in(2), 1 + self.dice.below(n));
        let place = (n as f64, 0);
        let value = (x.size, x.digits);
        let (name, y, (size, digits)) = match self.dice.below(12) {
            0 => ("sort", t.try_sort(axis, down)?.0, value),
            1 => ("argsort", t.try_argsort(axis, down)?, place),
            2 => ("topk", t.try_topk(k, axis, down)?.0, value),
            3 => ("topk places", t.try_topk(k, axis, down)?.1, place),
            4 => ("kthvalue", t.try_kthvalue(k, axis)?.0, value),
            5 => ("cummax", t.try_cummax(axis)?.0, value),
            6 => ("cummin", t.try_cummin(axis)?.0, value),
            7 => ("cummax places", t.try_cummax(axis)?.1, place),
            8 => ("max", t.try_max(axis)?, value),
            9 => ("min", t.try_min_keepdim(axis)?, value),
            10 => ("argmax", t.try_argmax(axis)?, place),
            _ => ("argmin", t.try_argmin_keepdim(axis)?, place),
        };
        self.log.push(format!("{name} {} {from} axis {a}", t.dtype()));
        self.push(y, size, digits)
    }

    /// Parts of one value replaced one after the other; what stood there between is sometimes read too.
    pub(super) fn chained(&mut self) -> Result<()> {
        let mut x = self.any();
        let from = x.t.shape();
        if from.rank() == 0 || from.elems() == 0 {
            return Ok(());
        }
        let dtype = x.t.dtype();
        if dtype.is_float() && self.dice.one_in(2) {
            x.t = x.t.try_neg()?;
        }
        let (kept, first) = (self.dice.one_in(2), x);
        for _ in 0..2 + self.dice.below(3) {
            let a = self.dice.below(from.rank());
            let axis = a as i32;
            let len = 1 + self.dice.below(from[a]);
            let [to, of] = [0; 2].map(|_| self.dice.below(from[a] - len + 1));
            let part = match self.dice.below(4) {
                0 => self.input(dtype, from.with(a, len), x.exact())?.t,
                1 => x.t.try_narrow(axis, of, len)?.try_flip(axis)?,
                // Computed of the whole.
                2 if dtype.is_float() && x.exact() => x.t.try_mul(0.5)?.try_narrow(axis, of, len)?,
                2 if dtype.is_float() => {
                    x.t.try_tanh()?.try_mul(x.t.try_sum_keepdim(axis)?)?.try_narrow(axis, of, len)?
                }
                _ => self.like(x, from.with(a, len))?,
            };
            x.t = match self.dice.below(3) {
                0 => x.t.try_slice_assign_at(axis, to, part)?,
                _ => x.t.try_slice_assign(axis, to, part)?,
            };
            x = V { digits: if x.exact() { x.digits.max(2) + 1 } else { INEXACT }, ..x };
            x.size = x.size.max(2.0) * from[a] as f64;
            if kept && self.dice.one_in(2) {
                self.push(x.t, x.size, x.digits)?;
            }
        }
        self.log.push(format!("chain {dtype} {from}"));
        if dtype.is_float() && self.dice.one_in(2) {
            // What stood there first, beside what stands there last.
            self.push(x.t.try_mul(0.5)?.try_sub(first.t)?, x.size + first.size, x.digits + 1)?;
        }
        self.push(x.t, x.size, x.digits)
    }

    /// A known value as shape `to`, where one of its shape is found, else a new one.
    fn like(&mut self, x: V, to: Shape) -> Result<wgrad::Tensor> {
        for _ in 0..4 {
            let w = self.partner(x)?;
            let fits = w.t.shape().broadcast(&to) == Some(to);
            if fits && w.size <= 4.0 && (w.exact() && w.digits <= x.digits.max(2) || !x.exact()) {
                return w.t.try_expand(to);
            }
        }
        Ok(self.input(x.t.dtype(), to, x.exact())?.t)
    }
}
