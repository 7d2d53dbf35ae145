//! Stochastic gradient descent.

use wgrad_autograd::{Grads, Kept, Operand, Scalar, Tensor, updating};
use wgrad_graph::{DType, Result};

use super::{Core, Optimizer, StepInfo, check, zeros_like};
use crate::{Owned, ParamSet};

/// Choices of [`Sgd`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SgdConfig {
    /// Learning rate; 0.01.
    pub lr: f64,
    /// How much of the velocity is kept from step to step; 0, which needs no state.
    pub momentum: f64,
    /// Whether the gradient is taken as if the velocity had moved the weights already (Nesterov); off.
    pub nesterov: bool,
    /// What is added to the gradient for each unit of weight; 0.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    fn default() -> Self {
        SgdConfig { lr: 0.01, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

/// The numbers of one SGD step, each a tensor of shape `[]`.
#[derive(Copy, Clone, Debug)]
pub struct SgdTerms {
    /// Learning rate.
    pub lr: Tensor,
    /// How much of the velocity is kept.
    pub momentum: Tensor,
    /// What is added to the gradient for each unit of weight.
    pub weight_decay: Tensor,
}

/// One step of SGD: `d = g + decay w`; with a velocity `v' = momentum v + d` and `d` becomes `v'`, or
/// `d + momentum v'` for Nesterov; `w' = w - lr d`. The new weight and velocity.
///
/// Shape: all alike. Gradient: through every operand.
#[track_caller]
pub fn sgd_update(
    w: Tensor,
    g: Tensor,
    velocity: Option<Tensor>,
    nesterov: bool,
    terms: &SgdTerms,
) -> (Tensor, Option<Tensor>) {
    let d = g + w * terms.weight_decay;
    let Some(velocity) = velocity else { return (w - d * terms.lr, None) };
    let velocity = velocity * terms.momentum + d;
    let d = if nesterov { d + velocity * terms.momentum } else { velocity };
    (w - d * terms.lr, Some(velocity))
}

/// Stochastic gradient descent with momentum, Nesterov's form and weight decay; see [`sgd_update`].
#[derive(Debug)]
pub struct Sgd {
    core: Core,
    nesterov: bool,
    momentum: Scalar,
    weight_decay: Scalar,
    /// Empty without momentum.
    velocity: Vec<Kept>,
}

impl Sgd {
    /// An optimizer of these parameters.
    ///
    /// # Errors
    /// `Argument` for no parameters, a momentum outside `[0, 1)` or a negative decay; `Device` for
    /// parameters of several contexts; `OutOfMemory`.
    pub fn new(params: ParamSet, config: SgdConfig) -> Result<Sgd> {
        let SgdConfig { lr, momentum, nesterov, weight_decay } = config;
        check("momentum", momentum, (0.0..1.0).contains(&momentum), "in [0, 1)")?;
        check("weight_decay", weight_decay, weight_decay >= 0.0, "0 or more")?;
        let (core, ctx) = Core::new(params, lr)?;
        let velocity = if momentum == 0.0 { Vec::new() } else { zeros_like(&ctx, &core.params, "velocity")? };
        let (momentum, weight_decay) = (ctx.scalar(momentum), ctx.scalar(weight_decay));
        Ok(Sgd { core, nesterov, momentum, weight_decay, velocity })
    }
}

impl Sgd {
    #[track_caller]
    fn advance(&mut self, grads: &Grads, fine: Option<Tensor>) -> Result<StepInfo> {
        let _updating = updating();
        let mut info = StepInfo { updated: 0, skipped: 0 };
        let mut shared: Vec<(DType, SgdTerms)> = Vec::new();
        let (choice, _) = self.core.begin(fine)?;
        for (i, param, g) in self.core.pair(grads) {
            let Some(g) = g else {
                info.skipped += 1;
                continue;
            };
            let at = match shared.iter().position(|(dtype, _)| *dtype == param.dtype()) {
                Some(at) => at,
                None => {
                    let lr = (&self.core.lr).tensor(g)?;
                    let momentum = (&self.momentum).tensor(g)?;
                    let weight_decay = (&self.weight_decay).tensor(g)?;
                    shared.push((param.dtype(), SgdTerms { lr, momentum, weight_decay }));
                    shared.len() - 1
                }
            };
            let terms = &shared[at].1;
            let old = self.velocity.get(i).map(Kept::t);
            let (w, velocity) = sgd_update(param.t(), g, old, self.nesterov, terms);
            param.try_set(choice.of(w, param.t())?)?;
            if let (Some(kept), Some(velocity)) = (self.velocity.get(i), velocity) {
                kept.try_set(choice.of(velocity, kept.t())?)?;
            }
            info.updated += 1;
        }
        Ok(info)
    }
}

impl Optimizer for Sgd {
    #[track_caller]
    fn step(&mut self, grads: &Grads) -> Result<StepInfo> {
        self.advance(grads, None)
    }

    #[track_caller]
    fn step_if(&mut self, grads: &Grads, fine: Tensor) -> Result<StepInfo> {
        self.advance(grads, Some(fine))
    }

    fn skipped(&self) -> &Kept {
        &self.core.skipped
    }

    fn lr(&self) -> &Scalar {
        &self.core.lr
    }

    fn steps(&self) -> u64 {
        self.core.steps.value()
    }

    fn params(&self) -> &ParamSet {
        &self.core.params
    }

    fn state(&self) -> Vec<Owned<'_>> {
        std::iter::once(self.core.state()).chain(self.velocity.iter().map(Owned::Kept)).collect()
    }
}
