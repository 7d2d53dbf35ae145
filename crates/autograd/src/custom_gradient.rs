//! A gradient of the user's own for what operations compute.

use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use wgrad_graph::{Op, Result, bail};

use crate::custom::{CustomGradient, GradientFn};
use crate::line;
use crate::pass;
use crate::record;
use crate::state::{Source, ValueKey};
use crate::table;
use crate::tensor::Tensor;

/// A user's rule: the values that get a gradient, and how.
pub(crate) struct Rule {
    pub(crate) through: SmallVec<[ValueKey; 4]>,
    /// Whether what it records depends on nothing but what is on the tape.
    pub(crate) structural: bool,
    gradient: Box<GradientFn>,
}

impl Rule {
    pub(crate) fn gradient(&self, site: &CustomGradient<'_>) -> Result<Vec<Option<Tensor>>> {
        let grads = (self.gradient)(site)?;
        if grads.len() != site.inputs.len() {
            let (have, need) = (grads.len(), site.inputs.len());
            bail!(Gradient, "custom_gradient", "the rule gives {have} values for {need} operands");
        }
        Ok(grads)
    }
}

/// `forward(x)` with `gradient` in place of the gradients of what `forward` records.
///
/// # Gradient
/// `gradient` sees the operands `x`, the output and the gradient that arrives, and gives one gradient an
/// operand. It records tensors, so it can be differentiated again. Other values that `forward` uses get
/// no gradient.
///
/// # Errors
/// What `forward` returns; `Argument` without operands; `Stale`, `Device`.
#[track_caller]
pub fn custom_gradient(
    x: &[Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    gradient: impl Fn(&CustomGradient<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    ruled(x, forward, false, Box::new(gradient))
}

/// As [`custom_gradient`] with a rule that may be `structural`.
#[track_caller]
pub(crate) fn ruled(
    x: &[Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    structural: bool,
    gradient: Box<GradientFn>,
) -> Result<Tensor> {
    let at = line::or(Location::caller());
    let y = forward(x)?;
    let mut all = x.to_vec();
    all.push(y);
    if x.is_empty() {
        bail!(Argument, "custom_gradient", "needs at least one operand");
    }
    let open = record::pass_of(&all, at)?;
    let mut state = table::lock(open.context)?;
    let mut through = record::enter(&mut state, open, &all)?;
    let y = through.pop().expect("the output was pushed last");
    let pool = record::current(&mut state, open)?;
    let out = pool.out(y).out;
    // The same value under a node of its own, which carries the rule; moving nothing, it costs nothing.
    let mut node = record::node(Op::Reshape, smallvec![y], Source::Operation, !pass::is_no_grad(open), at);
    node.rule = Some(Arc::new(Rule { through, structural, gradient }));
    let key = pool.push(node, &[out]);
    Ok(Tensor::of_pass(open, key, at))
}
