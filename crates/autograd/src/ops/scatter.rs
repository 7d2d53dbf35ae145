//! Writing at places known on the device. Every place is written in a fixed order, so results are the same
//! on every run. An index outside its axis (negative ones too, as in PyTorch's gather and scatter) writes
//! nothing and raises the step's error flag.

use wgrad_graph::{DType, Op, Reduce, Shape, Steps};

use super::args::axis as axis_of;
use super::{Operand, cast, expand, iota, reshape, shape, slice};
use crate::{Result, Tensor};

/// How values that meet at one place combine.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean; floats.
    Mean,
    /// The largest; NaN if any is.
    Max,
    /// The smallest; NaN if any is.
    Min,
}

/// A scatter whose operands fit: the part of the base beside which the indices are, and the values.
struct Fitted {
    axis: usize,
    part: Tensor,
    idx: Tensor,
    src: Tensor,
}

/// Checks a scatter: `idx` may be smaller than `src` on every axis, and than `base` beside `axis`.
#[track_caller]
fn fitted(op: &str, base: Tensor, axis: i32, idx: Tensor, src: Tensor) -> Result<Fitted> {
    let (to, i, from) = (base.try_out()?, idx.try_out()?, src.try_out()?);
    let a = axis_of(op, axis, to.shape.rank())?;
    if !i.dtype.is_int() {
        refuse!([base, idx, src] DType, op, "needs integer indices, got {}", i.dtype);
    }
    let rank = to.shape.rank();
    let fits = i.shape.rank() == rank
        && from.shape.rank() == rank
        && (0..rank).all(|x| i.shape[x] <= from.shape[x] && (x == a || i.shape[x] <= to.shape[x]));
    if !fits {
        refuse!(
            [base, idx, src] Shape,
            op,
            "indices {} are larger than values {}, or than {} beside axis {axis}",
            i.shape,
            from.shape,
            to.shape
        );
    }
    let src = slice(cast(src, to.dtype)?, Steps::ALL, i.shape)?;
    let part = slice(base, Steps::ALL, i.shape.with(a, to.shape[a]))?;
    Ok(Fitted { axis: a, part, idx, src })
}

/// `base` with its first part replaced.
#[track_caller]
fn put_back(base: Tensor, part: Tensor) -> Result<Tensor> {
    if base.try_out()?.shape == part.try_out()?.shape {
        return Ok(part);
    }
    Tensor::record(Op::SliceAssign(Steps::ALL), &[base, part], None, None)
}

/// What meets at each place of shape `to`, over the neutral element.
#[track_caller]
fn combined(kind: Reduce, axis: usize, idx: Tensor, src: Tensor, to: Shape) -> Result<Tensor> {
    Tensor::record(Op::Scatter { axis: axis as u8, kind }, &[idx, src], Some(to), None)
}

/// The place in `idx` from which each place of `to` is written last, and whether it is written.
#[track_caller]
fn last_writer(axis: usize, idx: Tensor, to: Shape) -> Result<(Tensor, Tensor)> {
    let places = iota(idx, idx.try_out()?.shape, axis, DType::I32)?;
    let last = combined(Reduce::Max, axis, idx, places, to)?;
    Ok((last.try_maximum(0)?, last.try_ge(0)?))
}

impl Fitted {
    fn to(&self) -> Result<Shape> {
        Ok(self.part.try_out()?.shape)
    }

    #[track_caller]
    fn combined(&self, kind: Reduce) -> Result<Tensor> {
        combined(kind, self.axis, self.idx, self.src, self.to()?)
    }

    /// Indices and values with the base before them, so that all of them share a gradient evenly.
    #[track_caller]
    fn with_base(self) -> Result<Fitted> {
        let to = self.to()?;
        let own = iota(self.idx, to, self.axis, DType::I32)?;
        let axis = self.axis as i32;
        let idx = Tensor::try_cat(&[own, cast(self.idx, DType::I32)?], axis)?;
        let src = Tensor::try_cat(&[self.part, self.src], axis)?;
        Ok(Fitted { idx, src, ..self })
    }

    /// How many values meet at each place.
    #[track_caller]
    fn counts(&self, dtype: DType) -> Result<Tensor> {
        let ones = expand(self.src.number(1.0, dtype)?, self.idx.try_out()?.shape)?;
        combined(Reduce::Sum, self.axis, self.idx, ones, self.to()?)
    }
}

/// Values that cannot be combined as they are become i32.
#[track_caller]
fn wide(x: Tensor) -> Result<Tensor> {
    if matches!(x.try_out()?.dtype, DType::Bool | DType::U8) { cast(x, DType::I32) } else { Ok(x) }
}

/// [`Tensor::scatter_reduce`] under the name of the method that was called.
#[track_caller]
fn reduced(
    op: &str,
    x: Tensor,
    (axis, idx, src): (i32, Tensor, Tensor),
    reduce: ScatterReduce,
    include_self: bool,
) -> Result<Tensor> {
    let dtype = x.try_out()?.dtype;
    if reduce == ScatterReduce::Mean && !dtype.is_float() {
        refuse!([x, idx, src] DType, op, "has no mean of {dtype}; cast first");
    }
    let base = wide(x)?;
    let fit = fitted(op, base, axis, idx, src)?;
    let part = fit.part;
    let kind = match reduce {
        ScatterReduce::Sum | ScatterReduce::Mean => Reduce::Sum,
        ScatterReduce::Prod => Reduce::Prod,
        ScatterReduce::Max => Reduce::Max,
        ScatterReduce::Min => Reduce::Min,
    };
    let counts = match (reduce, include_self) {
        (ScatterReduce::Mean, _) => Some(fit.counts(dtype)?),
        (_, false) => Some(fit.counts(DType::I32)?),
        (_, true) => None,
    };
    let new = match (reduce, include_self) {
        (ScatterReduce::Max | ScatterReduce::Min, true) => fit.with_base()?.combined(kind)?,
        (ScatterReduce::Prod, true) => part.try_mul(fit.combined(kind)?)?,
        (_, true) => part.try_add(fit.combined(kind)?)?,
        (_, false) => fit.combined(kind)?,
    };
    let new = match (counts, include_self) {
        (None, _) => new,
        (Some(counts), true) => new.try_div(counts.try_add(1.0)?)?,
        (Some(counts), false) => {
            let none = counts.try_eq(0)?;
            // Nothing is divided by 0, where the gradient would be NaN.
            let mean = reduce == ScatterReduce::Mean;
            let new = if mean { new.try_div(counts.try_maximum(1.0)?)? } else { new };
            none.try_select(part, new)?
        }
    };
    cast(put_back(base, new)?, dtype)
}

/// A vector of indices along `axis` of a tensor of shape `to`: every other axis has size 1.
#[track_caller]
fn upright(op: &str, x: Tensor, idx: Tensor, axis: usize) -> Result<Tensor> {
    let i = idx.try_out()?;
    if i.shape.rank() > 1 {
        refuse!([x, idx] Shape, op, "indices {} are no vector", i.shape);
    }
    if !i.dtype.is_int() {
        refuse!([x, idx] DType, op, "needs integer indices, got {}", i.dtype);
    }
    let mut dims = vec![1; x.try_out()?.shape.rank()];
    dims[axis] = i.shape.elems();
    reshape(idx, shape(op, &dims)?)
}

/// Checks that `src` has `x`'s sizes but on `axis`, where it has as many as `idx`.
#[track_caller]
fn beside(op: &str, x: Tensor, axis: usize, idx: Tensor, src: Tensor) -> Result<()> {
    let (to, i, from) = (x.try_out()?.shape, idx.try_out()?.shape, src.try_out()?.shape);
    if from.rank() != to.rank() || from != to.with(axis, i.elems()) {
        refuse!([x, idx, src] Shape, op, "values {from} are not {} slices of {to}", i.elems());
    }
    Ok(())
}

methods! { impl Tensor, Self;
    /// `x` with `x[.., idx[.., i, ..], ..] = src[.., i, ..]` along `axis`; of values that meet, the last wins.
    ///
    /// Shape: `idx` is at most as large as `src`, and as `x` beside `axis`.
    /// Gradient: to `x` where nothing was written, to `src` what won.
    scatter try_scatter(self, axis: i32, idx: Tensor, src: Tensor) -> Tensor {
        let fit = fitted("scatter", self, axis, idx, src)?;
        if idx.try_out()?.shape.elems() == 0 {
            return Ok(self);
        }
        let (last, hit) = last_writer(fit.axis, idx, fit.to()?)?;
        let won = Tensor::record(Op::Gather { axis: fit.axis as u8 }, &[fit.src, last], None, None)?;
        put_back(self, hit.try_select(won, fit.part)?)
    }

    /// `x`, to which `x[.., idx[.., i, ..], ..] += src[.., i, ..]` is applied along `axis` in ascending `i`.
    ///
    /// Shape: `idx` is at most as large as `src`, and as `x` beside `axis`.
    /// Gradient: `g` to `x`, `g` gathered to `src`.
    scatter_add try_scatter_add(self, axis: i32, idx: Tensor, src: Tensor) -> Tensor {
        reduced("scatter_add", self, (axis, idx, src), ScatterReduce::Sum, true)
    }

    /// `x` combined with `src[.., i, ..]` at `x[.., idx[.., i, ..], ..]` along `axis`. Unless `include_self`,
    /// places that are written forget what was there.
    ///
    /// Shape: `idx` is at most as large as `src`, and as `x` beside `axis`.
    /// Gradient: sum and mean `g`, by shares; the product without dividing by zeros (a second derivative
    /// is 0 where zeros met); the extremes equal shares to all that equal them, `x` among them.
    scatter_reduce try_scatter_reduce(
        self, axis: i32, idx: Tensor, src: Tensor, reduce: ScatterReduce, include_self: bool
    ) -> Tensor {
        reduced("scatter_reduce", self, (axis, idx, src), reduce, include_self)
    }

    /// `x` with the slices `src` added at `idx` of `axis`.
    ///
    /// Shape: `idx` is `[n]`; `src` as `x`, with size `n` on `axis`. Gradient: `g`; its slices at `idx`.
    index_add try_index_add(self, axis: i32, idx: Tensor, src: Tensor) -> Tensor {
        let a = axis_of("index_add", axis, self.try_out()?.shape.rank())?;
        beside("index_add", self, a, idx, src)?;
        let idx = expand(upright("index_add", self, idx, a)?, src.try_out()?.shape)?;
        reduced("index_add", self, (axis, idx, src), ScatterReduce::Sum, true)
    }

    /// `x` with the slices at `idx` of `axis` replaced by those of `src`; of equal indices the last wins.
    ///
    /// Shape: `idx` is `[n]`; `src` as `x`, with size `n` on `axis`. Gradient: to `x` beside them, to `src`
    /// what won.
    index_copy try_index_copy(self, axis: i32, idx: Tensor, src: Tensor) -> Tensor {
        let to = self.try_out()?;
        let a = axis_of("index_copy", axis, to.shape.rank())?;
        beside("index_copy", self, a, idx, src)?;
        let idx = upright("index_copy", self, idx, a)?;
        if src.try_out()?.shape.elems() == 0 {
            return Ok(self);
        }
        let line = idx.try_out()?.shape.with(a, to.shape[a]);
        let (last, hit) = last_writer(a, idx, line)?;
        let won = cast(src, to.dtype)?.try_gather(axis, expand(last, to.shape)?)?;
        expand(hit, to.shape)?.try_select(won, self)
    }

    /// `x` with `value` in the slices at `idx` of `axis`.
    ///
    /// Shape: `idx` is `[n]`. Gradient: `g` beside them.
    index_fill try_index_fill(self, axis: i32, idx: Tensor, value: impl Operand) -> Tensor {
        let to = self.try_out()?;
        let a = axis_of("index_fill", axis, to.shape.rank())?;
        let idx = upright("index_fill", self, idx, a)?;
        let (_, hit) = last_writer(a, idx, idx.try_out()?.shape.with(a, to.shape[a]))?;
        let value = expand(cast(value.tensor(self)?, to.dtype)?, to.shape)?;
        expand(hit, to.shape)?.try_select(value, self)
    }

    /// `x` with the elements at `idx` of its row-major order replaced by `src`, or with `src` added to them.
    ///
    /// Shape: `idx` and `src` have equally many elements. Of equal indices the last wins.
    put try_put(self, idx: Tensor, src: Tensor, accumulate: bool) -> Tensor {
        let (to, i, from) = (self.try_out()?.shape, idx.try_out()?.shape, src.try_out()?.shape);
        if i.elems() != from.elems() {
            refuse!([self, idx, src] Shape, "put", "{i} indices for {from} values");
        }
        let line = |x: Shape| Shape::from([x.elems()]);
        let (flat, idx, src) = (reshape(self, line(to))?, reshape(idx, line(i))?, reshape(src, line(from))?);
        let y = if accumulate { flat.try_scatter_add(0, idx, src)? } else { flat.try_scatter(0, idx, src)? };
        reshape(y, to)
    }
}
