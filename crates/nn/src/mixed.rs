//! A module in mixed precision.

use std::sync::Arc;

use wgrad_autograd::{Kept, Tensor, autocast};
use wgrad_graph::DType;

use crate::{Mode, Module, ParamSet};

/// A module whose forward pass runs in a scope of [`autocast`]: its products are of 16 bits, its parameters stay f32.
/// For models made of layers, and for stages of pipelines.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let rng = Rng::seed(1);
/// let model = Sequential::new()
///     .then(Autocast::new(Linear::new(&ctx, "fc1", 3, 5, rng)?, DType::BF16))
///     .then(Linear::new(&ctx, "fc2", 5, 2, rng)?);
/// let dtype = ctx.pass(|p| Ok(model.forward(p.zeros([1, 3])).dtype()))?;
/// assert_eq!(dtype, DType::F32);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Autocast<M> {
    /// The module.
    pub inner: M,
    dtype: Option<DType>,
}

impl<M: Module> Autocast<M> {
    /// `inner` with products in `dtype`: f16, bf16, or none for f32.
    pub fn new(inner: M, dtype: impl Into<Option<DType>>) -> Autocast<M> {
        Autocast { inner, dtype: dtype.into() }
    }
}

impl<M: Module> Module for Autocast<M> {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        match autocast(x, self.dtype, |x| Ok(self.inner.forward(x))) {
            Ok(y) => y,
            Err(error) => panic!("{error}"),
        }
    }

    fn params(&self) -> ParamSet {
        self.inner.params()
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.inner.state()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.inner.set_mode(mode);
    }
}
