//! What a thread keeps: passes between F and B, and the sums of gradients on the device.

use wgrad_autograd::{Kept, Param, Pass, Tensor};
use wgrad_graph::{HostTensor, Out, Result};
use wgrad_nn::ParamSet;

use super::narrow::Sending;

/// What F keeps of one micro-batch for B.
pub(super) struct Open {
    pub(super) pass: Pass,
    pub(super) loss: Option<Tensor>,
    /// Inputs that stand for the gradients that will come, each with the stage that sends it.
    pub(super) coming: Vec<(usize, Tensor)>,
    /// What goes back, recorded with F: the stage that takes it, shape and dtype, the gradient if there is one.
    pub(super) back: Vec<(usize, Out, Option<Sending>)>,
    /// Where the gradients of several shards are summed before the backward pass goes on: each with the input that
    /// stands for the sum.
    pub(super) copied: Vec<(Tensor, Tensor)>,
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

    /// The sums with the last micro-batch's gradients, which are not kept here.
    pub(super) fn whole(&mut self, gradients: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let mut whole = Vec::new();
        for ((kept, found), gradient) in self.kept.iter().zip(&mut self.found).zip(gradients) {
            whole.push(match (*found, *gradient) {
                (true, Some(g)) => Some(kept.t().try_add(g)?),
                (true, None) => Some(kept.t()),
                (false, g) => g,
            });
            *found |= gradient.is_some();
        }
        Ok(whole)
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
