//! Data-dependent indices. An index outside its axis reads 0, adds nothing, and raises the step's error
//! flag.

use wgrad_graph::{DType, Op, Shape};

use super::args::axis as axis_of;
use super::{cast, expand, pass_of, reshape, shape};
use crate::{Result, Tensor};

methods! { impl Tensor, Self;
    /// `y[.., i, ..] = x[.., idx[.., i, ..], ..]` along `axis`.
    ///
    /// Shape: `idx`, which is as large as `x` on every other axis.
    /// Gradient: `g` added where it was read.
    gather try_gather(self, axis: i32, idx: Tensor) -> Tensor {
        let a = axis_of("gather", axis, self.try_out()?.shape.rank())?;
        Tensor::record(Op::Gather { axis: a as u8 }, &[self, idx], None, None)
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

    /// `x`, to which `x[.., idx[.., i, ..], ..] += src[.., i, ..]` is applied along `axis` in ascending `i`.
    ///
    /// Shape: `idx` and `src` equal, and as large as `x` on every other axis.
    /// Gradient: `g` to `x`, `g` gathered to `src`.
    scatter_add try_scatter_add(self, axis: i32, idx: Tensor, src: Tensor) -> Tensor {
        let base = self.try_out()?;
        let a = axis_of("scatter_add", axis, base.shape.rank())?;
        let src = cast(src, base.dtype)?;
        let added = Tensor::record(Op::ScatterAdd { axis: a as u8 }, &[idx, src], Some(base.shape), None)?;
        self.try_add(added)
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
