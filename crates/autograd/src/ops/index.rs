//! Reading at places known on the device. An index outside its axis (negative ones too, as in PyTorch's
//! gather) reads 0 and raises the step's error flag.

use wgrad_graph::{DType, Op, Shape, Steps};

use super::args::axis as axis_of;
use super::{cast, expand, pass_of, reshape, shape, slice};
use crate::{Result, Tensor};

methods! { impl Tensor, Self;
    /// `y[.., i, ..] = x[.., idx[.., i, ..], ..]` along `axis`.
    ///
    /// Shape: `idx`, which is at most as large as `x` on every other axis.
    /// Gradient: `g` added where it was read.
    gather try_gather(self, axis: i32, idx: Tensor) -> Tensor {
        let (from, i) = (self.try_out()?.shape, idx.try_out()?.shape);
        let a = axis_of("gather", axis, from.rank())?;
        let smaller = i.rank() == from.rank() && (0..i.rank()).all(|x| x == a || i[x] <= from[x]);
        let x = if smaller { slice(self, Steps::ALL, i.with(a, from[a]))? } else { self };
        Tensor::record(Op::Gather { axis: a as u8 }, &[x, idx], None, None)
    }

    /// As [`Tensor::gather`], where `x` and `idx` broadcast on every other axis.
    take_along try_take_along(self, axis: i32, idx: Tensor) -> Tensor {
        let (from, i) = (self.try_out()?.shape, idx.try_out()?.shape);
        let a = axis_of("take_along", axis, from.rank())?;
        let met = if i.rank() == from.rank() { from.with(a, 1).broadcast(&i.with(a, 1)) } else { None };
        let Some(met) = met else {
            refuse!([self, idx] Shape, "take_along", "{from} and indices {i} do not broadcast beside axis {axis}");
        };
        expand(self, met.with(a, from[a]))?.try_gather(axis, expand(idx, met.with(a, i[a]))?)
    }

    /// The elements at `idx` of the row-major order. Shape: `idx`. Gradient: `g` added where it was read.
    take try_take(self, idx: Tensor) -> Tensor {
        let (from, i) = (self.try_out()?.shape, idx.try_out()?.shape);
        let line = |x: Shape| Shape::from([x.elems()]);
        reshape(reshape(self, line(from))?.try_gather(0, reshape(idx, line(i))?)?, i)
    }

    /// The slices of `axis` that `idx` names.
    ///
    /// Shape: `idx` is `[n]`; the result has size `n` on `axis`.
    index_select try_index_select(self, axis: i32, idx: Tensor) -> Tensor {
        let (from, i) = (self.try_out()?.shape, idx.try_out()?.shape);
        let a = axis_of("index_select", axis, from.rank())?;
        if i.rank() != 1 {
            refuse!([self, idx] Shape, "index_select", "indices {i} are no vector");
        }
        let mut dims = vec![1; from.rank()];
        dims[a] = i[0];
        let idx = expand(reshape(idx, shape("index_select", &dims)?)?, from.with(a, i[0]))?;
        self.try_gather(axis, idx)
    }

    /// Row `idx` of this table.
    ///
    /// Shape: table `[V, ..]`, `idx` of any shape `I`; result `I ++ [..]`. Gradient: rows of `g` added.
    embedding try_embedding(self, idx: Tensor) -> Tensor {
        let (table, i) = (self.try_out()?.shape, idx.try_out()?.shape);
        if table.rank() == 0 {
            refuse!([self, idx] Shape, "embedding", "a number has no rows");
        }
        let (rows, rest) = (table[0], &table.dims()[1..]);
        let to = shape("embedding", &[i.dims(), rest].concat())?;
        let width = rest.iter().product();
        let idx = expand(reshape(idx, Shape::from([i.elems(), 1]))?, Shape::from([i.elems(), width]))?;
        reshape(reshape(self, Shape::from([rows, width]))?.try_gather(0, idx)?, to)
    }

    /// 1.0 at the index, else 0.0, along a new last axis of `classes`; an index outside gives zeros.
    one_hot try_one_hot(self, classes: usize) -> Tensor {
        let idx = self.try_out()?;
        if !idx.dtype.is_int() {
            refuse!([self] DType, "one_hot", "needs integer indices, got {}", idx.dtype);
        }
        let idx = if idx.dtype == DType::U8 { cast(self, DType::I32)? } else { self };
        let idx = idx.try_unsqueeze(-1)?;
        let count = iota(idx, Shape::from([classes]), 0, idx.try_out()?.dtype)?;
        cast(idx.try_eq(count)?, DType::F32)
    }
}

/// The index along `axis` of `shape`, in the pass of `beside`.
#[track_caller]
pub(crate) fn iota(beside: Tensor, shape: Shape, axis: usize, dtype: DType) -> Result<Tensor> {
    pass_of(beside)?.record(Op::Iota { axis: axis as u8 }, &[], Some(shape), Some(dtype))
}
