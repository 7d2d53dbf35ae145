//! Activations made of other methods; fusion makes each a part of one kernel.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use wgrad_graph::Shape;

use super::args::axis as axis_of;
use super::{Operand, reshape, shape};
use crate::Tensor;

methods! { impl Tensor, Self;
    /// `x * sigmoid(x)`.
    silu try_silu(self) -> Tensor {
        in_f32!(self, try_silu());
        self.try_mul(self.try_sigmoid()?)
    }

    /// `x * P(Z <= x)` with the error function.
    gelu try_gelu(self) -> Tensor {
        in_f32!(self, try_gelu());
        let gate = self.try_mul(FRAC_1_SQRT_2)?.try_erf()?.try_add(1.0)?;
        self.try_mul(0.5)?.try_mul(gate)
    }

    /// The approximation of [`Tensor::gelu`] by `tanh`, as GPT-2 uses it.
    gelu_tanh try_gelu_tanh(self) -> Tensor {
        in_f32!(self, try_gelu_tanh());
        let cubic = self.try_square()?.try_mul(self)?.try_mul(0.044715)?.try_add(self)?;
        let gate = cubic.try_mul((2.0 / PI).sqrt())?.try_tanh()?.try_add(1.0)?;
        self.try_mul(0.5)?.try_mul(gate)
    }

    /// `log(1 + e^(beta x)) / beta`, and `x` itself where `beta x` is over `threshold`.
    softplus_by try_softplus_by(self, beta: f64, threshold: f64) -> Tensor {
        in_f32!(self, try_softplus_by(beta, threshold));
        let scaled = self.try_mul(beta)?;
        scaled.try_gt(threshold)?.try_select(self, scaled.try_softplus()?.try_div(beta)?)
    }

    /// `log(sigmoid(x))`, without underflow.
    logsigmoid try_logsigmoid(self) -> Tensor {
        in_f32!(self, try_logsigmoid());
        self.try_neg()?.try_softplus()?.try_neg()
    }

    /// `x * tanh(softplus(x))`.
    mish try_mish(self) -> Tensor {
        in_f32!(self, try_mish());
        self.try_mul(self.try_softplus()?.try_tanh()?)
    }

    /// `x` where positive, else `slope * x`. Gradient at 0: `slope`.
    leaky_relu try_leaky_relu(self, slope: impl Operand) -> Tensor {
        self.try_gt(0.0)?.try_select(self, self.try_mul(slope)?)
    }

    /// [`Tensor::leaky_relu`] with learned slopes: one, or one for each index of axis 1.
    ///
    /// Shape: `[N, C, ..]` with slopes `[1]` or `[C]`.
    prelu try_prelu(self, slopes: Tensor) -> Tensor {
        let (from, s) = (self.try_out()?.shape, slopes.try_out()?.shape);
        if s.elems() == 1 {
            return self.try_leaky_relu(reshape(slopes, Shape::SCALAR)?);
        }
        if s.rank() != 1 || from.rank() < 2 || from[1] != s[0] {
            refuse!([self, slopes] Shape, "prelu", "slopes {s} for axis 1 of {from}");
        }
        let mut dims = vec![1; from.rank() - 1];
        dims[0] = s[0];
        self.try_leaky_relu(reshape(slopes, shape("prelu", &dims)?)?)
    }

    /// `x` where positive, else `alpha * (e^x - 1)`. Gradient at 0: `alpha`.
    elu try_elu(self, alpha: impl Operand) -> Tensor {
        in_f32!(self, try_elu(alpha));
        self.try_gt(0.0)?.try_select(self, self.try_expm1()?.try_mul(alpha)?)
    }

    /// `x` where positive, else `alpha * (e^(x / alpha) - 1)`.
    celu try_celu(self, alpha: f64) -> Tensor {
        in_f32!(self, try_celu(alpha));
        self.try_gt(0.0)?.try_select(self, self.try_div(alpha)?.try_expm1()?.try_mul(alpha)?)
    }

    /// [`Tensor::elu`] scaled so that activations normalise themselves (Klambauer et al., 2017).
    selu try_selu(self) -> Tensor {
        in_f32!(self, try_selu());
        self.try_elu(1.673_263_242_354_377_2)?.try_mul(1.050_700_987_355_480_5)
    }

    /// As [`Tensor::clamp`], by its name as an activation.
    hardtanh try_hardtanh(self, lo: impl Operand, hi: impl Operand) -> Tensor { self.try_clamp(lo, hi) }

    /// `min(max(x, 0), 6)`. Gradient: 0 at 0 and 6.
    relu6 try_relu6(self) -> Tensor { self.try_hardtanh(0.0, 6.0) }

    /// `relu6(x + 3) / 6`.
    hardsigmoid try_hardsigmoid(self) -> Tensor {
        in_f32!(self, try_hardsigmoid());
        self.try_add(3.0)?.try_relu6()?.try_div(6.0)
    }

    /// `x * hardsigmoid(x)`.
    hardswish try_hardswish(self) -> Tensor {
        in_f32!(self, try_hardswish());
        self.try_mul(self.try_hardsigmoid()?)
    }

    /// `x / (1 + |x|)`.
    softsign try_softsign(self) -> Tensor {
        in_f32!(self, try_softsign());
        self.try_div(self.try_abs()?.try_add(1.0)?)
    }

    /// `x - tanh(x)`.
    tanhshrink try_tanhshrink(self) -> Tensor {
        in_f32!(self, try_tanhshrink());
        self.try_sub(self.try_tanh()?)
    }

    /// `x` moved by `lambda` towards 0, 0 where `|x| <= lambda`.
    softshrink try_softshrink(self, lambda: impl Operand) -> Tensor {
        in_f32!(self, try_softshrink(lambda));
        let lambda = lambda.tensor(self)?;
        let moved = self.try_sub(self.try_sign()?.try_mul(lambda)?)?;
        self.try_abs()?.try_le(lambda)?.try_select(0.0, moved)
    }

    /// `x`, 0 where `|x| <= lambda`.
    hardshrink try_hardshrink(self, lambda: impl Operand) -> Tensor {
        self.try_abs()?.try_le(lambda)?.try_select(0.0, self)
    }

    /// `x` where it is over `threshold`, else `value`; keeps NaN.
    threshold try_threshold(self, threshold: impl Operand, value: impl Operand) -> Tensor {
        let value = value.tensor(self)?;
        self.try_le(threshold)?.try_select(value, self)
    }

    /// The first half of `axis` times the sigmoid of the second.
    glu try_glu(self, axis: i32) -> Tensor {
        in_f32!(self, try_glu(axis));
        let from = self.try_out()?.shape;
        let size = from[axis_of("glu", axis, from.rank())?];
        if size % 2 != 0 {
            refuse!([self] Shape, "glu", "axis {axis} of {from} has no halves");
        }
        let gate = self.try_slice(axis, size / 2..)?.try_sigmoid()?;
        self.try_slice(axis, ..size / 2)?.try_mul(gate)
    }
}
