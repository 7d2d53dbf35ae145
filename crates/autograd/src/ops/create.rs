//! Tensors made from nothing but numbers.

use std::ops::Range;

use wgrad_graph::{DType, Op, Shape};

use super::{Operand, cast, expand, reshape, shape};
use crate::{Pass, Result, Tensor};

/// 0, 1, 2 .. below `count`.
#[track_caller]
fn count_up(pass: &Pass, count: usize, dtype: DType) -> Result<Tensor> {
    pass.id().record(Op::Iota { axis: 0 }, &[], Some(Shape::from([count])), Some(dtype))
}

methods! { impl Pass, &Self;
    /// Zeros of f32.
    zeros try_zeros(self, shape: impl Into<Shape>) -> Tensor { self.try_full(shape, 0.0) }
    /// Ones of f32.
    ones try_ones(self, shape: impl Into<Shape>) -> Tensor { self.try_full(shape, 1.0) }
    /// `value` everywhere, as f32; the value is an input of the plan.
    full try_full(self, shape: impl Into<Shape>, value: f64) -> Tensor {
        self.try_full_of(shape, value, DType::F32)
    }
    /// `value` everywhere, as `dtype`.
    full_of try_full_of(self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Tensor {
        expand(self.id().number(value, dtype)?, shape.into())
    }

    /// Zeros of `dtype`.
    zeros_of try_zeros_of(self, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        self.try_full_of(shape, 0.0, dtype)
    }
    /// Ones of `dtype`.
    ones_of try_ones_of(self, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        self.try_full_of(shape, 1.0, dtype)
    }

    /// The whole numbers of `range` as i32: `p.arange(0..n)`.
    arange try_arange(self, range: Range<i32>) -> Tensor {
        if range.end < range.start {
            refuse!(Argument, "arange", "{range:?} runs backwards");
        }
        let count = (i64::from(range.end) - i64::from(range.start)) as usize;
        let index = count_up(self, count, DType::I32)?;
        if range.start == 0 { Ok(index) } else { index.try_add(range.start) }
    }

    /// `start, start + step, ..` as f32, as many as lie before `end`; `step` may be negative.
    arange_step try_arange_step(self, start: f64, end: f64, step: f64) -> Tensor {
        let count = ((end - start) / step).ceil();
        if !(count >= 0.0 && count < f64::from(i32::MAX)) {
            refuse!(Argument, "arange", "from {start} to {end} by {step} gives {count} numbers");
        }
        count_up(self, count as usize, DType::F32)?.try_mul(step)?.try_add(start)
    }

    /// `count` numbers of f32 at equal distances from `lo` to `hi`, both included exactly.
    linspace try_linspace(self, lo: f64, hi: f64, count: usize) -> Tensor {
        let step = (hi - lo) / (count.max(2) - 1) as f64;
        let index = count_up(self, count, DType::F32)?;
        if count < 2 {
            return index.try_add(lo);
        }
        // From both ends, so that rounding touches neither.
        let up = index.try_mul(step)?.try_add(lo)?;
        let left = index.try_neg()?.try_add((count - 1) as f64)?;
        let down = left.try_mul(-step)?.try_add(hi)?;
        index.try_lt(count as f64 / 2.0)?.try_select(up, down)
    }

    /// `base` to the power of [`Pass::linspace`].
    logspace try_logspace(self, lo: f64, hi: f64, count: usize, base: f64) -> Tensor {
        self.try_full([], base)?.try_pow(self.try_linspace(lo, hi, count)?)
    }

    /// The unit matrix of f32.
    eye try_eye(self, size: usize) -> Tensor { self.try_eye_of(size, size) }
    /// Ones on the main diagonal of `[rows, columns]`, of f32.
    eye_of try_eye_of(self, rows: usize, columns: usize) -> Tensor {
        let [row, column] = places(self, rows, columns)?;
        cast(row.try_eq(column)?, DType::F32)
    }

    /// Which elements of `[rows, columns]` lie on or below diagonal `diagonal`: `column - row <= diagonal`.
    tril_mask try_tril_mask(self, rows: usize, columns: usize, diagonal: i32) -> Tensor {
        let [row, column] = places(self, rows, columns)?;
        column.try_le(row.try_add(diagonal)?)
    }
    /// Which elements of `[rows, columns]` lie on or above diagonal `diagonal`: `column - row >= diagonal`.
    triu_mask try_triu_mask(self, rows: usize, columns: usize, diagonal: i32) -> Tensor {
        let [row, column] = places(self, rows, columns)?;
        column.try_ge(row.try_add(diagonal)?)
    }
}

/// The row and the column of each element of a matrix, as i32.
#[track_caller]
fn places(pass: &Pass, rows: usize, columns: usize) -> Result<[Tensor; 2]> {
    let to = Some(shape("eye", &[rows, columns])?);
    let place = |axis| pass.id().record(Op::Iota { axis }, &[], to, Some(DType::I32));
    Ok([place(0)?, place(1)?])
}

/// In which order the axes of [`Tensor::meshgrid`] come.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Indexing {
    /// Axis `i` is that of the `i`-th tensor.
    #[default]
    Ij,
    /// The first two axes are exchanged, as for pictures.
    Xy,
}

#[track_caller]
fn meshgrid(tensors: &[Tensor], indexing: Indexing) -> Result<Vec<Tensor>> {
    let mut dims = Vec::with_capacity(tensors.len());
    for x in tensors {
        let from = x.try_out()?.shape;
        if from.rank() > 1 {
            refuse!([*x] Shape, "meshgrid", "{from} is no line");
        }
        dims.push(from.elems());
    }
    let axis = |i: usize| if indexing == Indexing::Xy && i < 2 && dims.len() > 1 { 1 - i } else { i };
    let whole: Vec<usize> = (0..dims.len()).map(|a| dims[axis(a)]).collect();
    let whole = shape("meshgrid", &whole)?;
    let mut grids = Vec::with_capacity(tensors.len());
    for (i, x) in tensors.iter().enumerate() {
        let mut line = vec![1; dims.len()];
        line[axis(i)] = dims[i];
        grids.push(expand(reshape(*x, shape("meshgrid", &line)?)?, whole)?);
    }
    Ok(grids)
}

impl Tensor {
    /// For lines of sizes `n, m, ..` as many tensors of shape `[n, m, ..]`, each of which repeats one line
    /// along the other axes. Gradient: summed over repeats.
    #[track_caller]
    pub fn meshgrid(tensors: &[Tensor], indexing: Indexing) -> Vec<Tensor> {
        super::or_panic(meshgrid(tensors, indexing))
    }

    /// As [`Tensor::meshgrid`].
    ///
    /// # Errors
    /// Where the other panics.
    #[track_caller]
    pub fn try_meshgrid(tensors: &[Tensor], indexing: Indexing) -> Result<Vec<Tensor>> {
        meshgrid(tensors, indexing)
    }
}

methods! { impl Tensor, Self;
    /// Zeros with this shape and dtype.
    zeros_like try_zeros_like(self) -> Tensor { self.try_full_like(0.0) }
    /// Ones with this shape and dtype.
    ones_like try_ones_like(self) -> Tensor { self.try_full_like(1.0) }
    /// `value` everywhere, with this shape and dtype.
    full_like try_full_like(self, value: impl Operand) -> Tensor {
        let out = self.try_out()?;
        expand(cast(value.tensor(self)?, out.dtype)?, out.shape)
    }
}
