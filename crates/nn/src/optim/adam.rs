//! Adam, with weight decay in the gradient (`Adam`) or beside it (`AdamW`).

use wgrad_autograd::{Counter, Grads, Kept, Operand, Scalar, Tensor, updating};
use wgrad_graph::{DType, Result};

use super::{Core, Optimizer, StepInfo, check, zeros_like};
use crate::{Owned, ParamSet};

/// Choices of [`AdamW`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Decay of the mean of gradients; 0.9.
    pub beta1: f64,
    /// Decay of the mean of squared gradients; 0.999.
    pub beta2: f64,
    /// Added to the root of the mean of squares; 1e-8.
    pub eps: f64,
    /// The share of a weight that a step with learning rate 1 takes away; 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        AdamWConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Choices of [`Adam`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AdamConfig {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Decay of the mean of gradients; 0.9.
    pub beta1: f64,
    /// Decay of the mean of squared gradients; 0.999.
    pub beta2: f64,
    /// Added to the root of the mean of squares; 1e-8.
    pub eps: f64,
    /// What is added to the gradient for each unit of weight; 0.
    pub weight_decay: f64,
}

impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// The numbers of one Adam step, each a tensor of shape `[]`.
///
/// The means' rates are given as `1 - beta`, because subtracting in f32 would cost four digits of
/// `1 - 0.999`.
#[derive(Copy, Clone, Debug)]
pub struct AdamTerms {
    /// Learning rate.
    pub lr: Tensor,
    /// `1 - beta1`.
    pub rate1: Tensor,
    /// `1 - beta2`.
    pub rate2: Tensor,
    /// `1 / (1 - beta1^t)` in step `t`, the first being 1: undoes the mean's start at zero.
    pub scale1: Tensor,
    /// `1 / (1 - beta2^t)`.
    pub scale2: Tensor,
    /// Added to the root of the mean of squares.
    pub eps: Tensor,
    /// The share of a weight that a step with learning rate 1 takes away.
    pub weight_decay: Tensor,
}

/// One step of AdamW (Loshchilov and Hutter 2019): `m' = m + (1 - beta1)(g - m)`,
/// `v' = v + (1 - beta2)(g^2 - v)`, `w' = w - lr (scale1 m' / (sqrt(scale2 v') + eps) + decay w)`.
/// The new weight, mean and mean of squares.
///
/// Shape: all alike. Gradient: through every operand.
#[track_caller]
pub fn adamw_update(w: Tensor, g: Tensor, m: Tensor, v: Tensor, terms: &AdamTerms) -> [Tensor; 3] {
    let m = m + (g - m) * terms.rate1;
    let v = v + (g * g - v) * terms.rate2;
    let direction = m * terms.scale1 / ((v * terms.scale2).sqrt() + terms.eps);
    [w - (direction + w * terms.weight_decay) * terms.lr, m, v]
}

/// Adam with decoupled weight decay; see [`adamw_update`].
#[derive(Debug)]
pub struct AdamW(Moments);

impl AdamW {
    /// An optimizer of these parameters.
    ///
    /// # Errors
    /// `Argument` for no parameters or a number out of its range; `Device` for parameters of several
    /// contexts; `OutOfMemory`.
    pub fn new(params: ParamSet, config: AdamWConfig) -> Result<AdamW> {
        Ok(AdamW(Moments::new(params, config, true)?))
    }
}

/// Adam (Kingma and Ba 2015): [`adamw_update`] without decay on `g + decay w`.
#[derive(Debug)]
pub struct Adam(Moments);

impl Adam {
    /// An optimizer of these parameters.
    ///
    /// # Errors
    /// `Argument` for no parameters or a number out of its range; `Device` for parameters of several
    /// contexts; `OutOfMemory`.
    pub fn new(params: ParamSet, config: AdamConfig) -> Result<Adam> {
        let AdamConfig { lr, beta1, beta2, eps, weight_decay } = config;
        let config = AdamWConfig { lr, beta1, beta2, eps, weight_decay };
        Ok(Adam(Moments::new(params, config, false)?))
    }
}

#[derive(Debug)]
struct Moments {
    core: Core,
    decoupled: bool,
    beta1: f64,
    beta2: f64,
    rate1: Scalar,
    rate2: Scalar,
    eps: Scalar,
    weight_decay: Scalar,
    none: Scalar,
    state: Vec<Moment>,
}

#[derive(Debug)]
struct Moment {
    m: Kept,
    v: Kept,
    /// Steps that had no gradient for the parameter: its own count, which corrects the means, is that of
    /// the optimizer less these.
    skips: Counter,
}

impl Moments {
    fn new(params: ParamSet, config: AdamWConfig, decoupled: bool) -> Result<Moments> {
        let AdamWConfig { lr, beta1, beta2, eps, weight_decay } = config;
        check("beta1", beta1, (0.0..1.0).contains(&beta1), "in [0, 1)")?;
        check("beta2", beta2, (0.0..1.0).contains(&beta2), "in [0, 1)")?;
        check("eps", eps, eps > 0.0, "above 0")?;
        check("weight_decay", weight_decay, weight_decay >= 0.0, "0 or more")?;
        let (core, ctx) = Core::new(params, lr)?;
        let m = zeros_like(&ctx, &core.params, "mean")?;
        let v = zeros_like(&ctx, &core.params, "square")?;
        let moment = |(m, v)| Moment { m, v, skips: Counter::new(&ctx) };
        let state = m.into_iter().zip(v).map(moment).collect();
        let (rate1, rate2) = (ctx.scalar(1.0 - beta1), ctx.scalar(1.0 - beta2));
        let (eps, weight_decay, none) = (ctx.scalar(eps), ctx.scalar(weight_decay), ctx.scalar(0.0));
        Ok(Moments { core, decoupled, beta1, beta2, rate1, rate2, eps, weight_decay, none, state })
    }

    /// The numbers of a step for parameters that have been skipped as often as the owner of `skips`, where `left_out`
    /// steps were left out by the device.
    fn terms(&self, g: Tensor, skips: &Counter, left_out: Option<Tensor>) -> Result<AdamTerms> {
        let own = skips.clone();
        let count = move |steps: u64| steps.saturating_sub(own.value()).max(1) as f64;
        let applied = match left_out {
            None => None,
            Some(left_out) => {
                let all = (&self.core.steps.scalar(count.clone())).tensor(left_out)?;
                // A step without a gradient may have been left out too, and would count twice.
                Some(all.try_sub(left_out.try_cast(DType::F32)?)?.try_clamp_min(1.0)?)
            }
        };
        let dtype = g.try_out()?.dtype;
        let scale = |beta: f64| match applied {
            None => {
                let count = count.clone();
                (&self.core.steps.scalar(move |steps| 1.0 / (1.0 - beta.powf(count(steps))))).tensor(g)
            }
            // 1 - beta^t without cancellation; e^-100 is as good as the 0 of a beta of 0.
            Some(t) => {
                let rest = t.try_mul(beta.ln().max(-100.0))?.try_expm1()?.try_neg()?;
                rest.try_recip()?.try_cast(dtype)
            }
        };
        let (scale1, scale2) = (scale(self.beta1)?, scale(self.beta2)?);
        Ok(AdamTerms {
            lr: (&self.core.lr).tensor(g)?,
            rate1: (&self.rate1).tensor(g)?,
            rate2: (&self.rate2).tensor(g)?,
            scale1,
            scale2,
            eps: (&self.eps).tensor(g)?,
            weight_decay: if self.decoupled { &self.weight_decay } else { &self.none }.tensor(g)?,
        })
    }
}

impl Moments {
    #[track_caller]
    fn advance(&mut self, grads: &Grads, fine: Option<Tensor>) -> Result<StepInfo> {
        let _updating = updating();
        let mut info = StepInfo { updated: 0, skipped: 0 };
        // Parameters of one dtype with as many steps behind them share their numbers, which keeps a
        // step's inputs few: in the common case there is one entry.
        let mut shared: Vec<((u64, DType), AdamTerms, Option<Tensor>)> = Vec::new();
        let (choice, left_out) = self.core.begin(fine)?;
        for (i, param, g) in self.core.pair(grads) {
            let Moment { m, v, skips } = &self.state[i];
            let Some(g) = g else {
                skips.bump()?;
                info.skipped += 1;
                continue;
            };
            let like = (skips.value(), param.dtype());
            let at = match shared.iter().position(|(key, ..)| *key == like) {
                Some(at) => at,
                None => {
                    let decay = if self.decoupled { None } else { Some((&self.weight_decay).tensor(g)?) };
                    shared.push((like, self.terms(g, skips, left_out)?, decay));
                    shared.len() - 1
                }
            };
            let (_, terms, decay) = &shared[at];
            let w = param.t();
            let g = decay.map_or(g, |decay| g + w * decay);
            let [new_w, new_m, new_v] = adamw_update(w, g, m.t(), v.t(), terms);
            param.try_set(choice.of(new_w, w)?)?;
            m.try_set(choice.of(new_m, m.t())?)?;
            v.try_set(choice.of(new_v, v.t())?)?;
            info.updated += 1;
        }
        Ok(info)
    }
}

impl Optimizer for Moments {
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
        let mut all = vec![self.core.state()];
        for (param, Moment { m, v, skips }) in self.core.params.iter().zip(&self.state) {
            let skips = Owned::Count(format!("{}.skips", param.name()), skips, param.context());
            all.extend([Owned::Kept(m), Owned::Kept(v), skips]);
        }
        all
    }
}

macro_rules! forward {
    ($($t:ty)*) => {$(
        impl Optimizer for $t {
            #[track_caller]
            fn step(&mut self, grads: &Grads) -> Result<StepInfo> {
                self.0.step(grads)
            }

            #[track_caller]
            fn step_if(&mut self, grads: &Grads, fine: Tensor) -> Result<StepInfo> {
                self.0.step_if(grads, fine)
            }

            fn skipped(&self) -> &Kept {
                self.0.skipped()
            }

            fn lr(&self) -> &Scalar {
                self.0.lr()
            }

            fn steps(&self) -> u64 {
                self.0.steps()
            }

            fn params(&self) -> &ParamSet {
                self.0.params()
            }

            fn state(&self) -> Vec<Owned<'_>> {
                self.0.state()
            }
        }
    )*};
}
forward!(AdamW Adam);
