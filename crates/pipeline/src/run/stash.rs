//! What a thread keeps: passes between F and B, and the sums of gradients on the device.

use wgrad_autograd::{Kept, Param, Pass, Tensor};
use wgrad_graph::{HostTensor, Out, Result};
use wgrad_nn::ParamSet;

/// What F keeps of one micro-batch for B.
pub(super) struct Open {
    pub(super) pass: Pass,
    pub(super) loss: Option<Tensor>,
    /// Inputs that stand for the gradients that will come, each with the stage that sends it.
    pub(super) coming: Vec<(usize, Tensor)>,
    /// What goes back, recorded with F: the stage that takes it, shape and dtype, the gradient if there is one.
    pub(super) back: Vec<(usize, Out, Option<Tensor>)>,
    /// The gradients of the parameters, recorded with F.
    pub(super) weights: Vec<Option<Tensor>>,
}

/// The sums of a stage's gradients over micro-batches.
pub(super) struct Sums {
    pub(super) params: Vec<Param>,
    pub(super) kept: Vec<Kept>,
    /// Which have a gradient in this step.
    pub(super) found: Vec<bool>,
}

impl Sums {
    pub(super) fn new(params: &ParamSet) -> Result<Self> {
        let zeros = |p: &Param| {
            let zeros = HostTensor::new(p.shape(), &vec![0f32; p.shape().elems()])?.cast(p.dtype());
            Kept::named(p.context(), &format!("{}.gradient", p.name()), zeros)
        };
        let kept = params.iter().map(zeros).collect::<Result<_>>()?;
        Ok(Self { params: params.iter().cloned().collect(), kept, found: vec![false; params.len()] })
    }

    /// A step begins. What an earlier one left, whole or failed, is replaced by the first gradient.
    pub(super) fn begin(&mut self) {
        self.found.fill(false);
    }

    /// Adds a micro-batch's gradients, for good when its pass ends.
    pub(super) fn add(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        for ((kept, found), gradient) in self.kept.iter().zip(&mut self.found).zip(gradients) {
            let Some(g) = *gradient else { continue };
            kept.try_set(if *found { kept.t().try_add(g)? } else { g })?;
            *found = true;
        }
        Ok(())
    }
}
