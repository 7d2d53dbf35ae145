//! Tensors made from nothing but numbers.

use std::ops::Range;

use wgrad_graph::{DType, Op, Shape};

use super::{Operand, cast, expand};
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

    /// The whole numbers of `range` as i32: `p.arange(0..n)`.
    arange try_arange(self, range: Range<i32>) -> Tensor {
        if range.end < range.start {
            refuse!(Argument, "arange", "{range:?} runs backwards");
        }
        let count = (i64::from(range.end) - i64::from(range.start)) as usize;
        let index = count_up(self, count, DType::I32)?;
        if range.start == 0 { Ok(index) } else { index.try_add(range.start) }
    }

    /// `count` numbers of f32 at equal distances from `lo` to `hi`, both included.
    linspace try_linspace(self, lo: f64, hi: f64, count: usize) -> Tensor {
        let index = count_up(self, count, DType::F32)?;
        index.try_mul((hi - lo) / (count.max(2) - 1) as f64)?.try_add(lo)
    }

    /// The unit matrix of f32.
    eye try_eye(self, size: usize) -> Tensor {
        let shape = Shape::from([size, size]);
        let row = self.id().record(Op::Iota { axis: 0 }, &[], Some(shape), Some(DType::U32))?;
        let column = self.id().record(Op::Iota { axis: 1 }, &[], Some(shape), Some(DType::U32))?;
        cast(row.try_eq(column)?, DType::F32)
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
