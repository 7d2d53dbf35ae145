//! Gradients by parameter identity.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use wgrad_graph::{
    Axes, Binary, DType, DeviceKind, Error, ErrorKind, HostTensor, Op, Out, Reduce, Result, Shape, Unary,
    bail,
};

use crate::context::Context;
use crate::owned::{Kept, Param, ParamId};
use crate::profiling;
use crate::record;
use crate::state::ValueKey;
use crate::table;
use crate::tensor::Tensor;
use crate::vjp::{differentiate, one_like};

/// One gradient a parameter, in the order in which the pass first used them.
#[derive(Clone, Default)]
pub struct Grads {
    entries: Vec<(ParamId, Tensor)>,
    by_id: HashMap<ParamId, usize>,
}

impl FromIterator<(ParamId, Tensor)> for Grads {
    fn from_iter<I: IntoIterator<Item = (ParamId, Tensor)>>(entries: I) -> Grads {
        let entries: Vec<_> = entries.into_iter().collect();
        let by_id = entries.iter().enumerate().map(|(i, (id, _))| (*id, i)).collect();
        Grads { entries, by_id }
    }
}

impl Grads {
    /// The gradient of `param`, if the loss depends on it.
    pub fn get(&self, param: &Param) -> Option<Tensor> {
        self.by_id.get(&param.id()).map(|i| self.entries[*i].1)
    }

    /// How many parameters have a gradient.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no parameter has a gradient.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The parameters' identities with their gradients.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, Tensor)> {
        self.entries.iter().copied()
    }

    /// Only the gradients of `params`.
    #[must_use]
    pub fn only<'a>(&self, params: impl IntoIterator<Item = &'a Param>) -> Grads {
        params.into_iter().filter_map(|p| Some((p.id(), self.get(p)?))).collect()
    }

    /// The sum with another set; a parameter that one of them lacks keeps the other's gradient.
    ///
    /// # Errors
    /// `Stale` when a gradient's pass has ended.
    #[track_caller]
    pub fn add(&self, other: &Grads) -> Result<Grads> {
        let mut sum = self.clone();
        for (id, g) in other.iter() {
            match sum.by_id.get(&id) {
                Some(i) => {
                    let entry = &mut sum.entries[*i].1;
                    *entry = Tensor::record(Op::Binary(Binary::Add), &[*entry, g], None, None)?;
                }
                None => {
                    sum.by_id.insert(id, sum.entries.len());
                    sum.entries.push((id, g));
                }
            }
        }
        Ok(sum)
    }

    /// Every gradient multiplied by the number `factor`.
    ///
    /// # Errors
    /// `Shape` when `factor` is not one number; `Stale`.
    #[track_caller]
    pub fn scale(&self, factor: Tensor) -> Result<Grads> {
        let scaled = |(id, g): (ParamId, Tensor)| {
            let out = g.try_out()?;
            let product = in_f32(g)?.try_mul(spread(factor, out.shape)?)?;
            Ok((id, if out.dtype.is_half() { product.try_cast(out.dtype)? } else { product }))
        };
        self.iter().map(scaled).collect()
    }

    /// All gradients in f32; on a GPU small ones as one line of a few, so that one kernel reads them: it takes less time
    /// than the launches that it saves.
    #[track_caller]
    fn together(&self) -> Result<Vec<Tensor>> {
        let mut parts: Vec<Vec<Tensor>> = Vec::new();
        // Which part small gradients of a dtype join.
        let mut open: Vec<(DType, usize)> = Vec::new();
        for (_, g) in self.iter() {
            let g = in_f32(g)?;
            let Out { shape, dtype } = g.try_out()?;
            if shape.elems() > SMALL || !launches_are_dear(&g)? {
                parts.push(vec![g]);
                continue;
            }
            let at = open.iter().position(|(of, _)| *of == dtype);
            match at.map(|at| open[at].1).filter(|part| parts[*part].len() < LINED) {
                Some(part) => parts[part].push(g),
                None => {
                    open.retain(|(of, _)| *of != dtype);
                    open.push((dtype, parts.len()));
                    parts.push(vec![g]);
                }
            }
        }
        let mut all = Vec::with_capacity(parts.len());
        for some in parts {
            if let [one] = some[..] {
                all.push(one);
                continue;
            }
            let mut flat = Vec::with_capacity(some.len());
            for g in some {
                let line = Shape::from([g.try_out()?.shape.elems()]);
                flat.push(Tensor::record(Op::Reshape, &[g], Some(line), None)?);
            }
            all.push(Tensor::try_cat(&flat, 0)?);
        }
        Ok(all)
    }

    /// The norm of all gradients together, `sqrt(sum of squares)`; of halves too in f32.
    ///
    /// # Errors
    /// `Argument` when there is no gradient; `Stale`.
    #[track_caller]
    pub fn global_norm(&self) -> Result<Tensor> {
        let mut total: Option<Tensor> = None;
        for part in self.together()? {
            let out = part.try_out()?;
            let square = Tensor::record(Op::Binary(Binary::Mul), &[part, part], None, None)?;
            let sum = Op::Reduce { kind: Reduce::Sum, axes: Axes::all(out.shape.rank()) };
            let sum = Tensor::record(sum, &[square], None, None)?;
            let sum = Tensor::record(Op::Reshape, &[sum], Some(Shape::SCALAR), None)?;
            total = Some(match total {
                Some(t) => Tensor::record(Op::Binary(Binary::Add), &[t, sum], None, None)?,
                None => sum,
            });
        }
        let Some(total) = total else { bail!(Argument, "global_norm", "there is no gradient") };
        Tensor::record(Op::Unary(Unary::Sqrt), &[total], None, None)
    }

    /// The gradients scaled by `min(1, limit / norm)`, and the norm before: their joint norm is at most
    /// `limit`. A norm that is not finite makes every gradient NaN, never silently zero.
    ///
    /// # Errors
    /// `Argument` when there is no gradient or `limit` is not positive; `Stale`.
    #[track_caller]
    pub fn clip_global_norm(&self, limit: f64) -> Result<(Grads, Tensor)> {
        if limit.is_nan() || limit <= 0.0 {
            return Err(Error::new(
                ErrorKind::Argument,
                "clip_global_norm",
                format!("the limit {limit} is not positive"),
            )
            .at(Location::caller()));
        }
        let norm = self.global_norm()?;
        let dtype = norm.try_out()?.dtype;
        let (limit, one) = (norm.number(limit, dtype)?, norm.number(1.0, dtype)?);
        let ratio = Tensor::record(Op::Binary(Binary::Div), &[limit, norm], None, None)?;
        let factor = Tensor::record(Op::Binary(Binary::Minimum), &[one, ratio], None, None)?;
        // An infinite norm gives the ratio 0, which would make gradients silently 0.
        let factor = norm.try_is_finite()?.try_select(factor, f64::NAN)?;
        Ok((self.scale(factor)?, norm))
    }
}

impl fmt::Debug for Grads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Gradients of one kernel at most: a concatenation of more is no part of the kernel that reads it.
const LINED: usize = 4;
/// Elements of a small one at most: beside a launch of 5 us, in which an H200 reads 20 MB, its loads cost little.
const SMALL: usize = 1 << 18;

/// Whether launches are what a small gradient costs on its device.
fn launches_are_dear(g: &Tensor) -> Result<bool> {
    let state = table::lock(g.context)?;
    Ok(!matches!(state.backend.caps().kind, DeviceKind::Cpu | DeviceKind::Oracle))
}

/// A half as f32: squares and factors may lie beyond its range.
#[track_caller]
fn in_f32(g: Tensor) -> Result<Tensor> {
    if g.try_out()?.dtype.is_half() { g.try_cast(DType::F32) } else { Ok(g) }
}

/// A number repeated to `shape`.
#[track_caller]
fn spread(x: Tensor, shape: Shape) -> Result<Tensor> {
    let ones = [1; wgrad_graph::MAX_RANK];
    let flat = Tensor::record(Op::Reshape, &[x], Some(Shape::new(&ones[..shape.rank()])), None)?;
    Tensor::record(Op::Expand, &[flat], Some(shape), None)
}

impl Tensor {
    /// The gradient of this number by every parameter that it depends on.
    ///
    /// # Errors
    /// `Shape` when this is not one number (the text names `vjp`); `Gradient` when a rule is missing on
    /// the way, when two versions of one parameter reach it, or when no parameter does.
    #[track_caller]
    pub fn backward(self) -> Result<Grads> {
        let at = Location::caller();
        let _differentiating = profiling::differentiating(self.context);
        let one = one_like(self, "backward")?;
        let pass = record::pass_of(&[self], at)?;
        let found = differentiate(pass, &[self], &[one], None, at)?;
        if found.is_empty() {
            return Err(Error::new(ErrorKind::Gradient, "backward", "the value depends on no parameter")
                .at(at)
                .operand("made", Some(self.at)));
        }
        let mut state = table::lock(pass.context)?;
        let pool = record::current(&mut state, pass)?;
        let entry = |(key, gradient): (ValueKey, Option<Tensor>)| {
            let (owned, _) = pool.values[key].version?;
            Some((ParamId::new(pass.context, owned), gradient?))
        };
        Ok(found.into_iter().filter_map(entry).collect())
    }

    /// The value as a number that is read after the pass, without stalling it.
    ///
    /// # Panics
    /// When the value has ended.
    #[track_caller]
    pub fn deferred<T>(self) -> crate::Deferred<T> {
        match crate::deferred::defer(&self, Location::caller()) {
            Ok(deferred) => deferred,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Gradients summed over passes.
#[derive(Debug)]
pub struct GradSum {
    sums: Vec<(Param, Kept)>,
}

impl GradSum {
    /// Zero sums for `params`.
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`.
    #[track_caller]
    pub fn new<'a>(context: &Context, params: impl IntoIterator<Item = &'a Param>) -> Result<GradSum> {
        let sum = |p: &Param| {
            let zeros = HostTensor::new(p.shape(), &vec![0f32; p.shape().elems()])?.cast(p.dtype());
            Ok((p.clone(), Kept::named(context, &format!("{}.sum", p.name()), zeros)?))
        };
        Ok(GradSum { sums: params.into_iter().map(sum).collect::<Result<_>>()? })
    }

    /// Adds a pass's gradients, for good when that pass is committed. Gradients of other parameters are
    /// ignored.
    ///
    /// # Errors
    /// `Stale` when a gradient's pass has ended.
    #[track_caller]
    pub fn add(&self, grads: &Grads) -> Result<()> {
        for (param, sum) in &self.sums {
            if let Some(g) = grads.get(param) {
                sum.try_set(Tensor::record(Op::Binary(Binary::Add), &[sum.t(), g], None, None)?)?;
            }
        }
        Ok(())
    }

    /// The sums as gradients of the open pass, and zero sums from its end on.
    ///
    /// # Errors
    /// `Stale` when no pass is open.
    #[track_caller]
    pub fn take(&self) -> Result<Grads> {
        let at = Location::caller();
        let taken = |(param, sum): &(Param, Kept)| {
            // The sum as it is now: a handle to the owned value ends when the next version is set.
            let g = sum.t().try_detach()?;
            let pass = record::pass_of(&[g], at)?;
            sum.try_set(crate::vjp::zeros(pass, g.try_out()?, at)?)?;
            Ok((param.id(), g))
        };
        self.sums.iter().map(taken).collect()
    }
}
