//! Activations made of other methods; fusion makes each a part of one kernel.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::Tensor;

methods! { impl Tensor, Self;
    /// `x * sigmoid(x)`.
    silu try_silu(self) -> Tensor { self.try_mul(self.try_sigmoid()?) }

    /// `x * P(Z <= x)` with the error function.
    gelu try_gelu(self) -> Tensor {
        let gate = self.try_mul(FRAC_1_SQRT_2)?.try_erf()?.try_add(1.0)?;
        self.try_mul(0.5)?.try_mul(gate)
    }

    /// The approximation of [`Tensor::gelu`] by `tanh`, as GPT-2 uses it.
    gelu_tanh try_gelu_tanh(self) -> Tensor {
        let cubic = self.try_square()?.try_mul(self)?.try_mul(0.044715)?.try_add(self)?;
        let gate = cubic.try_mul((2.0 / PI).sqrt())?.try_tanh()?.try_add(1.0)?;
        self.try_mul(0.5)?.try_mul(gate)
    }

    /// `log(1 + e^x)`. Numerics: `max(x, 0) + log1p(e^-|x|)`, without overflow.
    softplus try_softplus(self) -> Tensor {
        self.try_relu()?.try_add(self.try_abs()?.try_neg()?.try_exp()?.try_log1p()?)
    }
}
