//! The loss scale: gradients of half-precision products are lifted out of what rounds to zero, by a factor that moves
//! with what they bear. [`Scaling`] is the rule on the host, [`LossScaler`] the same on the device.

use std::path::Path;

use wgrad_autograd::{Context, Grads, Kept, Tensor};
use wgrad_graph::{HostTensor, Result, bail};

use super::{Optimizer, StepInfo};
use crate::{Owned, state};

/// How the scale of the loss moves. All gradients are those of the loss times the scale, and are divided by it before
/// they are summed, clipped and used. Where one is not finite nothing is updated and the scale is made smaller; after
/// many steps without that it is made larger. The defaults are those of PyTorch's `GradScaler`. While factor and scale
/// are powers of two, gradients in f32 are the same bits as without.
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
    /// Refuses what cannot be, in the name of `op`.
    ///
    /// # Errors
    /// `Argument`.
    pub fn check(&self, op: &str) -> Result<()> {
        let Self { initial, growth, interval, backoff } = *self;
        let fits = initial > 0.0 && initial.is_finite() && growth >= 1.0 && growth.is_finite();
        if !fits || interval == 0 || !(backoff > 0.0 && backoff < 1.0) {
            bail!(
                Argument,
                op,
                "{self:?}: wanted are a scale above 0, a growth of 1 or more, an interval of 1 or more, a backoff between \
                 0 and 1"
            );
        }
        Ok(())
    }
}

/// A scale and how many steps were applied since it moved, on the host.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Scaling {
    /// The scale.
    pub value: f64,
    /// Steps applied since it moved.
    pub applied: u64,
}

impl Scaling {
    /// The first scale.
    pub fn new(how: &LossScale) -> Scaling {
        Scaling { value: how.initial, applied: 0 }
    }

    /// The scale after a step.
    #[must_use]
    pub fn after(self, how: &LossScale, applied: bool) -> Scaling {
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

/// A loss scale that lives on the device: scale and count are kept values, and what is not finite is left out by the
/// device, so that no step waits for a number of the step before. For f16; bf16 has the range of f32 and needs none.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let model = Mlp::new(&ctx, &[3, 5, 2], Rng::seed(1))?;
/// let mut opt = AdamW::new(model.params(), AdamWConfig::default())?;
/// let scaler = LossScaler::new(&ctx, LossScale { initial: 1024.0, ..Default::default() })?;
/// let x = HostTensor::new([1, 3], &[0.1f32, 0.2, 0.3])?;
/// let (loss, scale) = ctx.pass(|p| {
///     let (x, t) = (p.input(&x)?, p.input(HostTensor::new([1], &[1i32])?)?);
///     let loss = p.autocast(DType::F16, || model.forward(x).cross_entropy(t));
///     let grads = scaler.backward(loss)?;             // of the scaled loss, divided by the scale
///     scaler.step(&mut opt, &grads)?;
///     Ok((loss.deferred::<f32>(), scaler.scale().t().deferred::<f32>()))
/// })?;
/// assert_eq!(scale.get()?, 1024.0);                   // read when wanted
/// # let _ = loss; Ok(()) }
/// ```
#[derive(Debug)]
pub struct LossScaler {
    how: LossScale,
    scale: Kept,
    applied: Kept,
}

impl LossScaler {
    /// A scale that starts at `how.initial`.
    ///
    /// # Errors
    /// `Argument` for a scale that cannot be, or an interval beyond i32; `OutOfMemory`, `Lost`.
    pub fn new(ctx: &Context, how: LossScale) -> Result<LossScaler> {
        how.check("LossScaler::new")?;
        if i32::try_from(how.interval).is_err() {
            bail!(Argument, "LossScaler::new", "an interval of {} steps is beyond i32", how.interval);
        }
        let scale = Kept::named(ctx, "loss_scale", HostTensor::new([], &[how.initial as f32])?)?;
        let applied = Kept::named(ctx, "loss_scale.applied", HostTensor::new([], &[0i32])?)?;
        Ok(LossScaler { how, scale, applied })
    }

    /// The scale, an f32: `scale().t().deferred::<f32>()` reads it later.
    pub fn scale(&self) -> &Kept {
        &self.scale
    }

    /// How many steps were applied since the scale moved, an i32.
    pub fn applied(&self) -> &Kept {
        &self.applied
    }

    /// The gradients of `loss`, computed of `loss * scale` and divided by the scale. `loss` is f32: in f16 the
    /// scale itself would be infinite.
    ///
    /// # Errors
    /// As [`Tensor::backward`]; `DType` for a loss of halves.
    #[track_caller]
    pub fn backward(&self, loss: Tensor) -> Result<Grads> {
        let dtype = loss.try_out()?.dtype;
        if dtype.is_half() {
            bail!(
                DType,
                "backward",
                "a loss of {dtype} cannot be scaled; losses are f32 in a scope of `autocast`"
            );
        }
        let scale = self.scale.t();
        loss.try_mul(scale)?.backward()?.scale(scale.try_recip()?)
    }

    /// A step of `optimizer` where the norm of all gradients is finite, and the next scale.
    ///
    /// # Errors
    /// As [`Optimizer::step`]; `Argument` when there is no gradient.
    #[track_caller]
    pub fn step(&self, optimizer: &mut dyn Optimizer, grads: &Grads) -> Result<StepInfo> {
        let fine = grads.global_norm()?.try_is_finite()?;
        self.update(fine)?;
        optimizer.step_if(grads, fine)
    }

    /// The next scale after a step that was applied where `fine` holds: for several optimizers, or gradients that
    /// were clipped, whose norm is known: `opt.step_if(&clipped, norm.is_finite())`.
    ///
    /// # Errors
    /// `Stale` when no pass is open.
    #[track_caller]
    pub fn update(&self, fine: Tensor) -> Result<()> {
        let (scale, count) = (self.scale.t(), self.applied.t().try_add(1)?);
        let grown = scale.try_mul(self.how.growth)?;
        // Beyond f32 every gradient would be infinite.
        let grows = count.try_ge(self.how.interval as i32)?.try_and(grown.try_is_finite()?)?;
        let next = grows.try_select(grown, scale)?;
        let zero = count.try_mul(0)?;
        self.scale.try_set(fine.try_select(next, scale.try_mul(self.how.backoff)?)?)?;
        self.applied.try_set(fine.try_and(grows.try_not()?)?.try_select(count, zero)?)
    }

    /// The scale and its count, for files.
    pub fn state(&self) -> Vec<Owned<'_>> {
        vec![Owned::Kept(&self.scale), Owned::Kept(&self.applied)]
    }

    /// Writes scale and count to a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// As [`ParamSet::save`](crate::ParamSet::save).
    pub fn save(&self, path: &Path) -> Result<()> {
        state::save(path, &self.state())
    }

    /// Sets scale and count from a safetensors file, both or none.
    ///
    /// # Errors
    /// As [`ParamSet::load`](crate::ParamSet::load).
    pub fn load(&self, path: &Path) -> Result<()> {
        state::load(path, &self.state())
    }
}
