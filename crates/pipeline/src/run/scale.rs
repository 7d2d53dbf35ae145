//! The dynamic loss scale: small gradients of half-precision stages are lifted out of what rounds to zero.

use wgrad_autograd::{Pass, Tensor};
use wgrad_graph::{DType, HostTensor, Out, Result, bail};

/// How the scale of the loss moves. All gradients are those of the loss times the scale, on every stage, and are
/// divided by it before they are summed, clipped and used. Where one is not finite on any stage, no stage is updated
/// and the scale is made smaller; after many steps without that it is made larger. The defaults are those of
/// PyTorch's `GradScaler`. While factor and scale are powers of two, gradients in f32 are the same bits as without.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct LossScale {
    /// The first scale; 65,536.
    pub initial: f64,
    /// What it is multiplied by after `interval` steps that were applied; 2.
    pub growth: f64,
    /// How many steps in a row have to be applied for that; 2,000.
    pub interval: u64,
    /// What it is multiplied by after a step whose gradients are not finite; 0.5.
    pub backoff: f64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, interval: 2000, backoff: 0.5 }
    }
}

impl LossScale {
    pub(super) fn check(&self) -> Result<()> {
        let Self { initial, growth, interval, backoff } = *self;
        let fits = initial > 0.0 && initial.is_finite() && growth >= 1.0 && growth.is_finite();
        if !fits || interval == 0 || !(backoff > 0.0 && backoff < 1.0) {
            bail!(
                Argument,
                "Trainer::new",
                "{self:?}: wanted are a scale above 0, a growth of 1 or more, an interval of 1 or more, a backoff between \
                 0 and 1"
            );
        }
        Ok(())
    }
}

/// The scale now.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) value: f64,
    /// Steps applied since it moved.
    pub(super) applied: u64,
}

impl Scale {
    /// The scale after a step.
    pub(super) fn after(self, how: &LossScale, applied: bool) -> Self {
        if !applied {
            return Self { value: self.value * how.backoff, applied: 0 };
        }
        let (grown, steps) = (self.value * how.growth, self.applied + 1);
        // Beyond f32 every gradient would be infinite.
        match steps >= how.interval && grown <= f64::from(f32::MAX) {
            true => Self { value: grown, applied: 0 },
            false => Self { applied: steps, ..self },
        }
    }
}

/// The cotangent of a loss: 1, or the scale. The number is an input, so that plans outlive its changes.
pub(super) fn seed(pass: &Pass, loss: Tensor, scale: Option<f64>) -> Result<Tensor> {
    let out = loss.try_out()?;
    if out.shape.elems() != 1 || !out.dtype.is_float() {
        bail!(Shape, "loss", "{} {} is not one number", out.dtype, out.shape);
    }
    match scale {
        None => pass.try_ones(out.shape)?.try_cast(out.dtype),
        Some(scale) => pass.input(HostTensor::new(out.shape, &[scale])?.cast(out.dtype)),
    }
}

/// The gradients divided by the scale; of halves too in f32.
pub(super) fn unscaled(
    pass: &Pass,
    gradients: Vec<Option<Tensor>>,
    scale: f64,
) -> Result<Vec<Option<Tensor>>> {
    let part = pass.input(HostTensor::new([], &[(1.0 / scale) as f32])?)?;
    let divided = |g: Tensor| {
        let Out { dtype, .. } = g.try_out()?;
        let wide = if dtype.is_half() { DType::F32 } else { dtype };
        g.try_cast(wide)?.try_mul(part.try_cast(wide)?)?.try_cast(dtype)
    };
    gradients.into_iter().map(|g| g.map(divided).transpose()).collect()
}
