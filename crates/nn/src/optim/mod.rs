//! Optimizers: functional updates, and objects that own the state which the updates carry along.

mod adam;
mod scale;
mod sgd;

use std::path::Path;

use wgrad_autograd::{Context, Counter, Grads, Kept, Param, Scalar, Tensor};
use wgrad_graph::{DType, HostTensor, Result, Shape};

pub use adam::{Adam, AdamConfig, AdamTerms, AdamW, AdamWConfig, adamw_update};
pub use scale::{LossScale, LossScaler, Scaling};
pub use sgd::{Sgd, SgdConfig, SgdTerms, sgd_update};

use crate::state;
use crate::{Owned, ParamSet};

/// Moves parameters along their gradients.
///
/// A step records updates into the open pass; they are committed with it, together with the state and
/// the count of steps, or not at all.
pub trait Optimizer {
    /// Records one update of every own parameter that has a gradient. Gradients of other parameters are
    /// ignored; an own parameter without a gradient keeps its value and state.
    ///
    /// # Errors
    /// `Stale` when no pass is open, or the gradients' pass is not.
    fn step(&mut self, grads: &Grads) -> Result<StepInfo>;

    /// As [`Optimizer::step`] where the truth value `fine`, of shape `[]`, holds; else parameters and state keep their
    /// values, and the step does not count in corrections that go by the number of steps. The device decides: nobody
    /// waits for it.
    ///
    /// # Errors
    /// As [`Optimizer::step`]; `Shape` or `DType` when `fine` is no truth value.
    fn step_if(&mut self, grads: &Grads, fine: Tensor) -> Result<StepInfo>;

    /// How many committed steps the device has left out, an i32: `skipped().t().deferred::<i32>()` reads it later.
    fn skipped(&self) -> &Kept;

    /// The learning rate; setting it changes the steps submitted from then on.
    fn lr(&self) -> &Scalar;

    /// Number of committed steps, with those that the device left out; after loading, of those that were applied.
    fn steps(&self) -> u64;

    /// The parameters that it moves.
    fn params(&self) -> &ParamSet;

    /// What it carries from step to step, by names made of those of the parameters: `NAME.mean`, and the count of
    /// steps. Rates are not among it.
    fn state(&self) -> Vec<Owned<'_>>;

    /// Writes its state to a safetensors file by name, whole or not at all. The parameters have a file of their own.
    ///
    /// # Errors
    /// As [`ParamSet::save`].
    fn save(&self, path: &Path) -> Result<()> {
        state::save(path, &self.state())
    }

    /// Sets its state from a safetensors file by name, all or none.
    ///
    /// # Errors
    /// As [`ParamSet::load`].
    fn load(&mut self, path: &Path) -> Result<()> {
        state::load(path, &self.state())
    }
}

/// What a step did.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct StepInfo {
    /// Parameters that were updated.
    pub updated: usize,
    /// Parameters that have no gradient and so were left alone.
    pub skipped: usize,
}

/// What every optimizer has.
#[derive(Debug)]
struct Core {
    params: ParamSet,
    lr: Scalar,
    steps: Counter,
    /// Committed steps that were left out, on the device.
    skipped: Kept,
    /// Whether a step may have been left out, so that the device knows how many were applied.
    conditional: bool,
}

/// What a step sets: new values, or where it is left out the old ones.
#[derive(Copy, Clone)]
struct Choice(Option<Tensor>);

impl Choice {
    #[track_caller]
    fn of(self, new: Tensor, old: Tensor) -> Result<Tensor> {
        match self.0 {
            None => Ok(new),
            Some(fine) => fine.try_select(new, old),
        }
    }
}

impl Core {
    /// The core and the context of the parameters.
    fn new(params: ParamSet, lr: f64) -> Result<(Core, Context)> {
        let Some(first) = params.iter().next() else {
            wgrad_graph::bail!(Argument, "optimizer", "there is no parameter to move");
        };
        let ctx = first.context().clone();
        if let Some(other) = params.iter().find(|p| *p.context() != ctx) {
            let (a, b) = (first.name(), other.name());
            wgrad_graph::bail!(Device, "optimizer", "{a:?} and {b:?} belong to different contexts");
        }
        let skipped = Kept::named(&ctx, "skipped", HostTensor::new([], &[0i32])?)?;
        let (lr, steps) = (ctx.scalar(lr), Counter::new(&ctx));
        let core = Core { params, lr, steps, skipped, conditional: false };
        Ok((core, ctx))
    }

    /// The count of steps.
    fn state(&self) -> Owned<'_> {
        Owned::Applied("steps".to_owned(), &self.steps, &self.skipped)
    }

    /// Counts a step, and if it is left out that too; how many were left out before it, if some may have been.
    #[track_caller]
    fn begin(&mut self, fine: Option<Tensor>) -> Result<(Choice, Option<Tensor>)> {
        self.steps.bump()?;
        if fine.is_none() && !self.conditional {
            return Ok((Choice(None), None));
        }
        // The count as it is now: a handle to the owned value ends when the next version is set.
        let before = self.skipped.t().try_detach()?;
        if let Some(fine) = fine {
            let out = fine.try_out()?;
            if out.dtype != DType::Bool || out.shape != Shape::SCALAR {
                wgrad_graph::bail!(Shape, "step_if", "{out:?} is not one truth value of shape []");
            }
            self.conditional = true;
            self.skipped.try_set(before.try_add(fine.try_not()?.try_cast(DType::I32)?)?)?;
        }
        Ok((Choice(fine), Some(before)))
    }

    /// Each own parameter's index, with its gradient if it has one.
    fn pair<'a>(&'a self, grads: &'a Grads) -> impl Iterator<Item = (usize, &'a Param, Option<Tensor>)> {
        self.params.iter().enumerate().map(|(i, p)| (i, p, grads.get(p)))
    }
}

/// State like each parameter, of zeros, called `NAME.part`.
fn zeros_like(ctx: &Context, params: &ParamSet, part: &str) -> Result<Vec<Kept>> {
    let zeros = |p: &Param| {
        let zeros = HostTensor::new(p.shape(), &vec![0f32; p.shape().elems()])?.cast(p.dtype());
        Kept::named(ctx, &format!("{}.{part}", p.name()), zeros)
    };
    params.iter().map(zeros).collect()
}

/// Refuses a number outside the range that its name stands for.
fn check(name: &str, value: f64, fits: bool, range: &str) -> Result<()> {
    if !fits {
        wgrad_graph::bail!(Argument, "optimizer", "{name} is {value}, not {range}");
    }
    Ok(())
}
