//! The dynamic loss scale over stages, which moves by the rule of [`wgrad_nn::Scaling`]: all devices' gradients decide, so
//! the host does.

use wgrad_autograd::{Pass, Tensor};
use wgrad_graph::{DType, HostTensor, Out, Result, bail};

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
