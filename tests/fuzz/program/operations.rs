//! One method a kind of operation: picks operands, records, notes the bound of the result.

use wgrad::{DType, Result, Shape, Tensor};

use super::{INEXACT, Program, V};

impl Program<'_> {
    pub(super) fn smooth(&mut self) -> Result<()> {
        let x = self.float()?;
        let t = x.t;
        let (name, y, size) = match self.dice.below(17) {
            0 => ("exp", t.try_mul(0.5)?.try_exp()?, 8.0),
            1 => ("expm1", t.try_expm1()?, 60.0),
            2 => ("log", t.try_square()?.try_add(0.5)?.try_log()?, 4.0),
            3 => ("log1p", t.try_square()?.try_log1p()?, 4.0),
            4 => ("sqrt", t.try_square()?.try_add(0.25)?.try_sqrt()?, 5.0),
            5 => ("rsqrt", t.try_square()?.try_add(0.5)?.try_rsqrt()?, 2.0),
            6 => ("sin", t.try_sin()?, 1.0),
            7 => ("cos", t.try_cos()?, 1.0),
            8 => ("tanh", t.try_tanh()?, 1.0),
            9 => ("sigmoid", t.try_sigmoid()?, 1.0),
            10 => ("erf", t.try_erf()?, 1.0),
            11 => ("gelu", t.try_gelu()?, 4.0),
            12 => ("silu", t.try_silu()?, 4.0),
            13 => ("softplus", t.try_softplus()?, 5.0),
            14 => ("recip", t.try_square()?.try_add(1)?.try_recip()?, 1.0),
            15 => ("gelu_tanh", t.try_gelu_tanh()?, 4.0),
            _ => ("pow", t.try_square()?.try_add(0.5)?.try_pow(1.5)?, 70.0),
        };
        self.log.push(name.into());
        self.push(y, size, INEXACT)
    }

    pub(super) fn arithmetic(&mut self) -> Result<()> {
        let x = self.float()?;
        let w = self.partner(x)?;
        let (sum, most) = (x.size + w.size, x.digits.max(w.digits));
        let (name, y, size, digits) = match self.dice.below(9) {
            0 | 1 => ("add", x.t.try_add(w.t)?, sum, most),
            2 => ("sub", x.t.try_sub(w.t)?, sum, most),
            3 | 4 => ("mul", x.t.try_mul(w.t)?, x.size * w.size, x.digits + w.digits),
            5 => ("div", x.t.try_div(w.t.try_square()?.try_add(1)?)?, x.size, INEXACT),
            6 => ("neg", -x.t, x.size, x.digits),
            7 => ("number", x.t.try_mul(0.75)?.try_sub(1)?, x.size + 1.0, x.digits + 2),
            _ => ("hypot", (x.t.try_square()? + w.t.try_square()? + 0.5).try_sqrt()?, 6.0, INEXACT),
        };
        self.log.push(name.into());
        self.push(y, size, digits)
    }

    /// Functions with steps and kinks, of what f32 holds exactly.
    pub(super) fn stepped(&mut self) -> Result<()> {
        let x = self.exact()?;
        if self.dice.one_in(3) {
            return self.chosen(x);
        }
        if self.dice.one_in(4) {
            return self.halves(x);
        }
        let w = self.partner(x)?;
        let t = x.t;
        let both = x.exact() && w.exact();
        let digits = x.digits.max(w.digits);
        let (name, y, size, digits) = match self.dice.below(12) {
            0 => ("relu", t.try_relu()?, x.size, x.digits),
            1 => ("abs", t.try_abs()?, x.size, x.digits),
            2 => ("sign", t.try_sign()?, 1.0, 0),
            3 => ("floor", t.try_floor()?, x.size + 1.0, 0),
            4 => ("round", t.try_round()?, x.size + 1.0, 0),
            5 => ("ceil", t.try_ceil()?, x.size + 1.0, 0),
            6 if both => ("maximum", t.try_maximum(w.t)?, x.size.max(w.size), digits),
            7 if both => ("minimum", t.try_minimum(w.t)?, x.size.max(w.size), digits),
            8 if both => ("lt", t.try_lt(w.t)?, 1.0, 0),
            9 if both => ("select", t.try_ge(w.t)?.try_select(t, w.t)?, x.size.max(w.size), digits),
            10 => ("clamp", t.try_clamp(-1, 0.5)?, 1.0, x.digits.max(1)),
            _ => ("to int", t.try_mul(4)?.try_cast(DType::I32)?, 99.0, 0),
        };
        self.log.push(name.into());
        self.push(y, size, digits)
    }

    pub(super) fn integers(&mut self) -> Result<()> {
        let mut x = self.any();
        if x.t.dtype().is_float() {
            let dtype = self.dice.pick(&[DType::I32, DType::U32, DType::I64, DType::U8, DType::Bool]);
            let shape = self.shape();
            x = self.input(dtype, shape, true)?;
        }
        let w = self.partner(x)?;
        let (t, dtype) = (x.t, x.t.dtype());
        let truth = dtype == DType::Bool;
        let word = matches!(dtype, DType::U32 | DType::I32);
        let shifts = word || dtype == DType::I64;
        let (name, y) = match self.dice.below(20) {
            0 if !truth => ("int add", t.try_add(w.t)?),
            1 if !truth => ("int sub", t.try_sub(w.t)?),
            2 if !truth => ("int mul", t.try_mul(w.t)?),
            3 if !truth => ("int div", t.try_div(w.t)?),
            4 if !truth => ("int rem", t.try_rem(w.t)?),
            5 => ("and", t.try_and(w.t)?),
            6 => ("or", t.try_or(w.t)?),
            7 => ("xor", t.try_xor(w.t)?),
            8 if shifts => ("shl", t.try_shl(w.t)?),
            9 if shifts => ("shr", t.try_shr(w.t)?),
            10 => ("not", t.try_not()?),
            11 => ("eq", t.try_eq(w.t)?),
            12 if !truth => ("int max", t.try_maximum(w.t)?),
            13 if !truth => ("int le", t.try_le(w.t)?),
            14 if word => ("lzcnt", t.try_leading_zeros()?),
            15 => {
                let to = self.dice.pick(&[DType::I32, DType::U32, DType::I64, DType::U8, DType::Bool]);
                ("int cast", t.try_cast(to)?)
            }
            16 => ("int select", t.try_ne(w.t)?.try_select(t, w.t)?),
            17..19 if dtype == DType::U32 => ("mul_high", t.try_mul_high(w.t)?),
            _ if truth => {
                self.log.push("bool to float".into());
                return self.push(t.try_cast(DType::F32)?, 1.0, 0);
            }
            _ => {
                self.log.push("to float".into());
                let small = t.try_rem(if matches!(dtype, DType::I32 | DType::I64) { 5 } else { 4 })?;
                return self.push(small.try_cast(DType::F32)?, 5.0, 0);
            }
        };
        self.log.push(format!("{name} {dtype}"));
        self.push(y, 5e9, 0)
    }

    pub(super) fn movement(&mut self) -> Result<()> {
        let x = self.any();
        let (t, from) = (x.t, x.t.shape());
        let rank = from.rank();
        let a = self.dice.below(rank);
        let axis = a as i32;
        let kind = self.dice.below(14);
        if rank == 0 && !(1..3).contains(&kind) {
            return Ok(());
        }
        let y = match kind {
            0 => t.try_reshape([-1, from[a] as i64]).or_else(|_| t.try_flatten(0))?,
            1 => t.try_unsqueeze(if rank < 8 { 0 } else { return Ok(()) })?,
            2 if rank < 8 => {
                let lead = 1 + self.dice.below(3);
                t.try_expand(Shape::new(&[&[lead], from.dims()].concat()))?
            }
            3 | 4 => {
                let mut order: Vec<i32> = (0..rank as i32).collect();
                for i in (1..rank).rev() {
                    order.swap(i, self.dice.below(i + 1));
                }
                t.try_permute(&order[..])?
            }
            5 | 6 => {
                let lo = self.dice.below(from[a] + 1);
                let hi = lo + self.dice.below(from[a] - lo + 1);
                let step = self.dice.pick(&[1, 1, 2, 3, -1, -2]);
                t.try_slice_step(axis, lo..hi, step)?
            }
            7 => t.try_flip([axis])?,
            8 => {
                let widths: Vec<_> =
                    (0..rank).map(|_| (self.dice.below(3) as isize, self.dice.below(2) as isize)).collect();
                let value = if t.dtype().is_float() && self.dice.one_in(2) { 0.5 } else { 0.0 };
                t.try_pad(&widths, value)?
            }
            9 => {
                let w = self.input(t.dtype(), from, x.exact())?;
                let count = if self.dice.one_in(4) { 4 + self.dice.below(7) } else { 2 + self.dice.below(2) };
                let turned = w.t.try_flip(axis)?;
                let parts: Vec<Tensor> = [t, w.t, t, turned].into_iter().cycle().take(count).collect();
                Tensor::try_cat(&parts, axis)?
            }
            10 => t.try_repeat(axis, 1 + self.dice.below(3))?,
            11 => {
                let size = self.dice.below(from[a] + 1);
                let start = self.dice.below(from[a] - size + 1);
                let part = self.input(t.dtype(), from.with(a, size), x.exact())?;
                if self.dice.one_in(3) {
                    t.try_slice_assign_at(axis, start, part.t)?
                } else {
                    t.try_slice_assign(axis, start, part.t)?
                }
            }
            12 if from[a] > 0 => t.try_select_index(axis, -1)?,
            13 => {
                let size = self.dice.below(from[a] + 1);
                t.try_slice_at(axis, self.dice.below(from[a] - size + 1), size)?
            }
            _ => return Ok(()),
        };
        self.log.push(format!("movement {kind} {} {from} -> {}", t.dtype(), y.shape()));
        // New parts are inputs: as large as an input of the dtype is.
        self.push(y, x.size.max(2.0), x.digits.max(2))
    }

    pub(super) fn reduction(&mut self) -> Result<()> {
        let x = self.any();
        let (t, from) = (x.t, x.t.shape());
        let mut axes: Vec<i32> = Vec::new();
        for a in 0..from.rank() {
            if self.dice.one_in(2) {
                axes.push(a as i32);
            }
        }
        let axes = &axes[..];
        let n: usize = axes.iter().map(|a| from[*a as usize]).product();
        let (float, keep) = (t.dtype().is_float(), self.dice.one_in(2));
        let kind = self.dice.below(8);
        if n == 0 && kind != 0 || matches!(t.dtype(), DType::Bool | DType::U8) && kind > 3 {
            return Ok(());
        }
        let (y, size, digits) = match kind {
            0 | 1 if keep => (t.try_sum_keepdim(axes)?, n as f64 * x.size, x.digits),
            0 | 1 => (t.try_sum(axes)?, n as f64 * x.size, x.digits),
            2 if float => (t.try_mean(axes)?, x.size, INEXACT),
            3 if float => (t.try_var_keepdim(axes, 0)?, x.size * x.size, INEXACT),
            4 | 5 if float && !x.exact() && self.shift.is_none() => {
                (t.try_max(axes)?.detach(), x.size, INEXACT)
            }
            4 => (t.try_max(axes)?, x.size, x.digits),
            5 => (t.try_min_keepdim(axes)?, x.size, x.digits),
            6 if n < 6 => (t.try_prod(axes)?, x.size.powi(n as i32), x.digits * n as i32),
            7 if x.exact() && !axes.is_empty() && from[axes[0] as usize] > 0 => {
                (if keep { t.try_argmax(axes[0])? } else { t.try_argmin_keepdim(axes[0])? }, 300.0, 0)
            }
            _ => return Ok(()),
        };
        self.log.push(format!("reduction {kind} {} {from} {axes:?}", t.dtype()));
        self.push(y, size, if x.exact() { digits } else { INEXACT })
    }

    pub(super) fn composite(&mut self) -> Result<()> {
        let x = self.float()?;
        let (t, from) = (x.t, x.t.shape());
        let rank = from.rank();
        if rank == 0 || from.elems() == 0 {
            return Ok(());
        }
        let axis = self.dice.below(rank) as i32;
        let width = Shape::from([from[rank - 1]]);
        let kind = self.dice.below(7);
        let y = match kind {
            0 => t.try_softmax(axis)?,
            1 => t.try_log_softmax(axis)?,
            2 => t.try_logsumexp(axis)?,
            3 => {
                let (w, b) = (self.input(DType::F32, width, false)?, self.input(DType::F32, width, false)?);
                self.leaves.extend([w.t, b.t]);
                t.try_layer_norm(w.t, b.t, 0.1)?
            }
            4 => {
                let w = self.input(DType::F32, width, false)?;
                self.leaves.push(w.t);
                t.try_rms_norm(w.t, 0.1)?
            }
            5 => {
                let to = self.indices(Shape::new(&from.dims()[..rank - 1]), from[rank - 1])?;
                t.try_cross_entropy(to)?
            }
            _ => {
                let to = self.indices(Shape::new(&from.dims()[..rank - 1]), from[rank - 1])?;
                t.try_cross_entropy_with(
                    to,
                    wgrad::CrossEntropy { reduction: wgrad::Reduction::None, ..Default::default() },
                )?
            }
        };
        self.log.push(format!("composite {kind} {from}"));
        self.push(y, 24.0, INEXACT)
    }

    pub(super) fn product(&mut self) -> Result<()> {
        let x = self.float()?;
        let (t, from) = (x.t, x.t.shape());
        let rank = from.rank();
        if rank == 0 {
            return Ok(());
        }
        let a = if rank > 1 && self.dice.one_in(2) { t.try_t()? } else { t };
        let from = a.shape();
        let (k, n) = (from[rank - 1], self.dice.pick(&[1, 2, 3, 5, 8, 17, 33]));
        let turned = self.dice.one_in(2);
        let mut dims = if turned { vec![n, k] } else { vec![k, n] };
        if rank > 2 && self.dice.one_in(2) {
            dims = [&from.dims()[..rank - 2], &dims].concat();
            if self.dice.one_in(2) {
                dims[0] = 1;
            }
        }
        let w = self.input(DType::F32, Shape::new(&dims), x.exact())?;
        self.leaves.push(w.t);
        let b = if turned { w.t.try_t()? } else { w.t };
        let y = if self.dice.one_in(8) && rank > 1 { a.try_t()?.try_matmul(a)? } else { a.try_matmul(b)? };
        self.log.push(format!("matmul {from} {}", b.shape()));
        let size = from.dims()[rank.saturating_sub(2)..].iter().max().map_or(1, |m| *m) as f64;
        self.push(y, size * x.size * x.size.max(2.0), if x.exact() { x.digits.max(2) * 2 } else { INEXACT })
    }

    pub(super) fn indexed(&mut self) -> Result<()> {
        let x = self.any();
        let (t, from) = (x.t, x.t.shape());
        if from.rank() == 0 {
            return Ok(());
        }
        let a = self.dice.below(from.rank());
        let axis = a as i32;
        let (size, count) = (from[a], 1 + self.dice.below(6));
        let scatters = matches!(t.dtype(), DType::F32 | DType::I32 | DType::U32 | DType::I64);
        let kind = self.dice.below(4);
        if size == 0 || from[0] == 0 {
            return Ok(());
        }
        let y = match kind {
            0 => {
                let idx = self.indices(from.with(a, count), size)?;
                t.try_gather(axis, idx)?
            }
            1 => {
                let idx = self.indices(Shape::from([count]), size)?;
                t.try_index_select(axis, idx)?
            }
            2 if from.rank() < 8 => {
                let idx = self.indices(Shape::from([2, count]), from[0])?;
                t.try_embedding(idx)?
            }
            _ if scatters => {
                let part = from.with(a, count);
                let (idx, src) = (self.indices(part, size)?, self.input(t.dtype(), part, x.exact())?);
                if t.dtype().is_float() {
                    self.leaves.push(src.t);
                }
                t.try_scatter_add(axis, idx, src.t)?
            }
            _ => return Ok(()),
        };
        self.log.push(format!("indexed {kind} {} {from}", t.dtype()));
        self.push(y, x.size + 12.0, x.digits.max(2))
    }

    pub(super) fn show(&mut self, label: &str, t: Tensor) -> Result<()> {
        let label = format!("{label} {:?}", t.try_out()?);
        self.shown.push((label, t.to_vec::<f64>()?));
        self.plans.extend(self.pass.context().last_plan());
        Ok(())
    }

    /// What replaces the owned value `now`.
    pub(super) fn update(&mut self, now: V) -> Result<Tensor> {
        let w = self.partner(V { digits: INEXACT, ..now })?;
        let next = match self.dice.below(6) {
            0 if now.t.rank() == 2 && now.t.shape()[0] == now.t.shape()[1] => now.t.t() * 0.5,
            1 => now.t.flip(..) + 0.25,
            // A part is replaced in place, by what is computed of the whole.
            2 | 3 => {
                let (n, axis) = (now.t.shape()[0], self.dice.below(2) as i32);
                let part = (now.t * now.t.sum_keepdim(axis)).narrow(axis, 0, n.div_ceil(2)).tanh();
                let at = self.dice.below(n / 2 + 1);
                let next = if self.dice.one_in(2) {
                    now.t.try_slice_assign(axis, at, part)?
                } else {
                    now.t.try_slice_assign_at(axis, at, part)?
                };
                return self.beside(now, next);
            }
            4 if w.t.shape().broadcast(&now.t.shape()) == Some(now.t.shape()) => now.t * 0.9 + w.t * 0.1,
            _ => now.t * 0.75,
        };
        let next = next.try_tanh()?;
        self.beside(now, next)
    }

    /// `next`, which replaces `now`; sometimes something reads both.
    fn beside(&mut self, now: V, next: Tensor) -> Result<Tensor> {
        if self.dice.one_in(2) {
            let both = if self.dice.one_in(2) { next.try_t()? } else { next };
            self.push(now.t.try_sub(both)?, 2.0, INEXACT)?;
        }
        Ok(next)
    }
}
