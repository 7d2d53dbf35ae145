//! Optimizers: functional updates, and objects that own the state which the updates carry along.

mod adam;
mod sgd;

use std::path::Path;

use wgrad_autograd::{Context, Counter, Grads, Kept, Param, Scalar, Tensor};
use wgrad_graph::{HostTensor, Result};

pub use adam::{Adam, AdamConfig, AdamTerms, AdamW, AdamWConfig, adamw_update};
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

    /// The learning rate; setting it changes the steps submitted from then on.
    fn lr(&self) -> &Scalar;

    /// Number of committed steps.
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
        let core = Core { params, lr: ctx.scalar(lr), steps: Counter::new(&ctx) };
        Ok((core, ctx))
    }

    /// The context of the parameters.
    fn context(&self) -> &Context {
        self.params.iter().next().expect("an optimizer has parameters").context()
    }

    /// The count of steps.
    fn state(&self) -> Owned<'_> {
        Owned::Count("steps".to_owned(), &self.steps, self.context())
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
