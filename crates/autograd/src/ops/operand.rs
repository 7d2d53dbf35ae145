//! What may stand on the right of an operator.

use wgrad_graph::DType;

use crate::{Result, Scalar, Tensor};

/// A right operand: a tensor, a number, or a [`Scalar`] whose value is read at submission.
///
/// A number adapts to the tensor beside it: a float takes that tensor's float dtype (f32 beside
/// integers), an integer takes any number dtype (i32 beside bool). Numbers are inputs of a plan, so two
/// recordings that differ in them alone are one plan.
pub trait Operand {
    /// The operand as a tensor that broadcasts beside `like`.
    ///
    /// # Errors
    /// `Argument` when a number is outside the range of `like`'s dtype; `Stale`.
    #[track_caller]
    fn tensor(self, like: Tensor) -> Result<Tensor>;

    /// The operand if it is a tensor already.
    fn known(&self) -> Option<Tensor>;

    /// The operand if it is a number that never changes.
    fn literal(&self) -> Option<f64> {
        None
    }
}

impl Operand for Tensor {
    fn tensor(self, _: Tensor) -> Result<Tensor> {
        Ok(self)
    }

    fn known(&self) -> Option<Tensor> {
        Some(*self)
    }
}

impl Operand for f64 {
    #[track_caller]
    fn tensor(self, like: Tensor) -> Result<Tensor> {
        let dtype = like.try_out()?.dtype;
        like.number(self, if dtype.is_float() { dtype } else { DType::F32 })
    }

    fn known(&self) -> Option<Tensor> {
        None
    }

    fn literal(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Operand for f32 {
    #[track_caller]
    fn tensor(self, like: Tensor) -> Result<Tensor> {
        f64::from(self).tensor(like)
    }

    fn known(&self) -> Option<Tensor> {
        None
    }

    fn literal(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Operand for i32 {
    #[track_caller]
    fn tensor(self, like: Tensor) -> Result<Tensor> {
        i64::from(self).tensor(like)
    }

    fn known(&self) -> Option<Tensor> {
        None
    }

    fn literal(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Operand for i64 {
    #[track_caller]
    fn tensor(self, like: Tensor) -> Result<Tensor> {
        let dtype = match like.try_out()?.dtype {
            DType::Bool => DType::I32,
            dtype => dtype,
        };
        // Numbers of a plan are f64.
        let exact = self.unsigned_abs() <= 1 << 53;
        let fits = match dtype {
            DType::U8 => u8::try_from(self).is_ok(),
            DType::U32 => u32::try_from(self).is_ok(),
            DType::I32 => i32::try_from(self).is_ok(),
            DType::I64 => exact,
            _ => true,
        };
        if !fits {
            let beyond = if dtype == DType::I64 { " is over 2^53: give it as a tensor" } else { "" };
            refuse!([like] Argument, "number", "{self}{beyond} beside a tensor of {dtype}");
        }
        like.number(self as f64, dtype)
    }

    fn known(&self) -> Option<Tensor> {
        None
    }

    fn literal(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Operand for &Scalar {
    #[track_caller]
    fn tensor(self, like: Tensor) -> Result<Tensor> {
        Scalar::tensor(self, like)
    }

    fn known(&self) -> Option<Tensor> {
        None
    }
}

/// Where a part starts: a number, or a [`Scalar`] whose value is read at submission.
pub trait Start {
    /// The start as a u32 plan scalar in the pass of `like`.
    ///
    /// # Errors
    /// `Argument` when it is negative; `Stale`.
    #[track_caller]
    fn start(self, like: Tensor) -> Result<Tensor>;
}

impl Start for usize {
    #[track_caller]
    fn start(self, like: Tensor) -> Result<Tensor> {
        like.number(self as f64, DType::U32)
    }
}

impl Start for i32 {
    #[track_caller]
    fn start(self, like: Tensor) -> Result<Tensor> {
        let Ok(start) = usize::try_from(self) else {
            refuse!(Argument, "start", "{self} is negative");
        };
        start.start(like)
    }
}

impl Start for &Scalar {
    #[track_caller]
    fn start(self, like: Tensor) -> Result<Tensor> {
        self.tensor_as(like, DType::U32)
    }
}
