//! Operations that only move elements.

use wgrad_graph::{Axes, MAX_RANK, Op, Shape};

use super::args::axis as axis_of;
use super::reduce::without;
use super::{AxesArg, DimsArg, cast, expand, reshape, shape};
use crate::{Result, Tensor};

/// Axes reordered: result axis `i` is axis `order[i]`.
#[track_caller]
pub(crate) fn permute(x: Tensor, order: &[usize]) -> Result<Tensor> {
    if order.iter().enumerate().all(|(i, a)| i == *a) {
        return Ok(x);
    }
    let mut perm = [0; MAX_RANK];
    for (i, p) in perm.iter_mut().enumerate() {
        *p = order.get(i).copied().unwrap_or(i) as u8;
    }
    Tensor::record(Op::Permute(perm), &[x], None, None)
}

/// Axes `from` moved to `to`, the others in order on the places that are left.
#[track_caller]
pub(crate) fn movedim(x: Tensor, from: &[usize], to: &[usize]) -> Result<Tensor> {
    let rank = x.try_out()?.shape.rank();
    let mut others = (0..rank).filter(|a| !from.contains(a));
    let mut order = Vec::with_capacity(rank);
    for place in 0..rank {
        let moved = to.iter().position(|t| *t == place).map(|i| from[i]);
        order.extend(moved.or_else(|| others.next()));
    }
    permute(x, &order)
}

methods! { impl Tensor, Self;
    /// The same elements in row-major order under another shape; one size may be -1.
    reshape try_reshape(self, dims: impl Into<DimsArg>) -> Tensor {
        let to = dims.into().of("reshape", self.try_out()?.shape)?;
        reshape(self, to)
    }

    /// Without the axes of size 1.
    squeeze_all try_squeeze_all(self) -> Tensor {
        let from = self.try_out()?.shape;
        without(self, (0..from.rank()).filter(|a| from[*a] == 1).collect())
    }

    /// Axes from `start` to the last as one: `[B, C, H, W].flatten(1) -> [B, C * H * W]`.
    flatten try_flatten(self, start: i32) -> Tensor {
        let from = self.try_out()?.shape;
        let start = axis_of("flatten", start, from.rank())?;
        let (kept, joined) = from.dims().split_at(start);
        reshape(self, shape("flatten", &[kept, &[joined.iter().product()]].concat())?)
    }

    /// Without `axis`, which has size 1.
    squeeze try_squeeze(self, axis: i32) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("squeeze", axis, from.rank())?;
        if from[a] != 1 {
            refuse!([self] Shape, "squeeze", "axis {axis} of {from} has size {}, not 1", from[a]);
        }
        without(self, Axes::NONE.with(a))
    }

    /// With an axis of size 1 that becomes axis `axis` of the result.
    unsqueeze try_unsqueeze(self, axis: i32) -> Tensor {
        let mut dims = self.try_out()?.shape.dims().to_vec();
        dims.insert(axis_of("unsqueeze", axis, dims.len() + 1)?, 1);
        reshape(self, shape("unsqueeze", &dims)?)
    }

    /// Broadcast to `dims` by NumPy's rule; -1 keeps the size of an axis. Gradient: summed over repeats.
    expand try_expand(self, dims: impl Into<DimsArg>) -> Tensor {
        let to = dims.into().over("expand", self.try_out()?.shape)?;
        expand(self, to)
    }

    /// Axes reordered: axis `i` of the result is axis `order[i]`.
    permute try_permute(self, order: impl Into<AxesArg>) -> Tensor {
        let from = self.try_out()?.shape;
        let order = order.into().of("permute", from.rank())?;
        if order.len() != from.rank() {
            refuse!([self] Argument, "permute", "{order:?} does not name every axis of {from}");
        }
        permute(self, &order)
    }

    /// Axes `a` and `b` exchanged.
    transpose try_transpose(self, a: i32, b: i32) -> Tensor {
        let rank = self.try_out()?.shape.rank();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(axis_of("transpose", a, rank)?, axis_of("transpose", b, rank)?);
        permute(self, &order)
    }

    /// The last two axes exchanged.
    t try_t(self) -> Tensor { self.try_transpose(-2, -1) }

    /// The same as [`Tensor::transpose`].
    swap_axes try_swap_axes(self, a: i32, b: i32) -> Tensor { self.try_transpose(a, b) }

    /// Axes `from` moved to the places `to`, the others in their order around them.
    movedim try_movedim(self, from: impl Into<AxesArg>, to: impl Into<AxesArg>) -> Tensor {
        let rank = self.try_out()?.shape.rank();
        let (from, to) = (from.into().of("movedim", rank)?, to.into().of("movedim", rank)?);
        if from.len() != to.len() {
            refuse!([self] Argument, "movedim", "{} axes to {} places", from.len(), to.len());
        }
        movedim(self, &from, &to)
    }

    /// Axis `axis` as several: `[6, 4].unflatten(0, [2, -1]) -> [2, 3, 4]`; one size may be -1.
    unflatten try_unflatten(self, axis: i32, dims: impl Into<DimsArg>) -> Tensor {
        let from = self.try_out()?.shape;
        let a = axis_of("unflatten", axis, from.rank())?;
        let parts = dims.into().of("unflatten", Shape::from([from[a]]))?;
        if parts.elems() != from[a] {
            refuse!([self] Shape, "unflatten", "axis {axis} of {from} is not {parts}");
        }
        let dims = [&from.dims()[..a], parts.dims(), &from.dims()[a + 1..]].concat();
        reshape(self, shape("unflatten", &dims)?)
    }
}

#[track_caller]
fn cat(tensors: &[Tensor], along: i32) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        refuse!(Argument, "concat", "needs at least one tensor");
    };
    let along = axis_of("concat", along, first.try_out()?.shape.rank())?;
    let mut dtype = first.try_out()?.dtype;
    for x in tensors {
        dtype = dtype.promote(x.try_out()?.dtype);
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for x in tensors {
        parts.push(cast(*x, dtype)?);
    }
    if let [only] = parts[..] {
        Ok(only)
    } else {
        Tensor::record(Op::Concat { axis: along as u8 }, &parts, None, None)
    }
}

#[track_caller]
fn stack(tensors: &[Tensor], along: i32) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(tensors.len());
    for x in tensors {
        parts.push(x.try_unsqueeze(along)?);
    }
    cat(&parts, along)
}

impl Tensor {
    /// Tensors one after the other along `axis`; dtypes promote.
    #[track_caller]
    pub fn cat(tensors: &[Tensor], axis: i32) -> Tensor {
        super::or_panic(cat(tensors, axis))
    }

    /// As [`Tensor::cat`].
    ///
    /// # Errors
    /// Where the other panics.
    #[track_caller]
    pub fn try_cat(tensors: &[Tensor], axis: i32) -> Result<Tensor> {
        cat(tensors, axis)
    }

    /// Tensors of one shape along a new axis, which becomes axis `axis` of the result.
    #[track_caller]
    pub fn stack(tensors: &[Tensor], axis: i32) -> Tensor {
        super::or_panic(stack(tensors, axis))
    }

    /// As [`Tensor::stack`].
    ///
    /// # Errors
    /// Where the other panics.
    #[track_caller]
    pub fn try_stack(tensors: &[Tensor], axis: i32) -> Result<Tensor> {
        stack(tensors, axis)
    }
}
