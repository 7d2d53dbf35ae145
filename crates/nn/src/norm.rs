//! Normalisation layers.

use std::sync::Arc;

use wgrad_autograd::{BatchNorm as Options, Context, Kept, Param, Tensor};
use wgrad_graph::{DType, HostTensor, Result, Shape};

use crate::statistics::{self, Moving, Statistics, Summary};
use crate::{Init, Mode, Module, ParamSet, Rng};

/// `value` everywhere.
fn filled(shape: Shape, value: f64) -> HostTensor {
    Init::Constant(value).draw(Rng::seed(0), shape, 1, 1)
}

fn param(ctx: &Context, name: &str, part: &str, shape: Shape, value: f64) -> Result<Param> {
    Param::new(ctx, &format!("{name}.{part}"), filled(shape, value))
}

/// Running mean and variance of a layer.
fn running(ctx: &Context, name: &str, shape: Shape) -> Result<[Arc<Kept>; 2]> {
    let kept = |part, value| Kept::named(ctx, &format!("{name}.{part}"), filled(shape, value)).map(Arc::new);
    Ok([kept("running_mean", 0.0)?, kept("running_var", 1.0)?])
}

/// Gives a batch's statistics to who gathers them, or to the running ones.
#[track_caller]
fn hand_over(moving: Moving, count: usize, values: Vec<Tensor>) {
    let summary = Summary { count: count as f64, values };
    if let Err(error) = (Statistics { running: Arc::new(moving), summary }).hand_over() {
        panic!("{error}");
    }
}

fn set(params: [&Option<Param>; 2]) -> ParamSet {
    params.into_iter().flatten().cloned().collect()
}

/// `weight * (x - mean) / sqrt(var + eps) + bias` over trailing axes.
///
/// Shape: that of the input; its trailing axes are those of the parameters.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Ones at first, called `NAME.weight`.
    pub weight: Param,
    /// Zeros at first, called `NAME.bias`; `None` for none.
    pub bias: Option<Param>,
    /// Added to the variance; 1e-5 at first.
    pub eps: f64,
}

impl LayerNorm {
    /// A layer over trailing axes of these sizes, with a bias.
    ///
    /// # Errors
    /// What the device meets when the parameters are written.
    pub fn new(ctx: &Context, name: &str, shape: impl Into<Shape>) -> Result<LayerNorm> {
        let shape = shape.into();
        let weight = param(ctx, name, "weight", shape, 1.0)?;
        Ok(LayerNorm { weight, bias: Some(param(ctx, name, "bias", shape, 0.0)?), eps: 1e-5 })
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        x.layer_norm(self.weight.t(), self.bias.as_ref().map(Param::t), self.eps)
    }

    fn params(&self) -> ParamSet {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// `weight * x / sqrt(mean(x^2) + eps)` over trailing axes.
///
/// Shape: that of the input; its trailing axes are those of the weight.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// Ones at first, called `NAME.weight`.
    pub weight: Param,
    /// Added to the mean of squares; 1e-6 at first.
    pub eps: f64,
}

impl RmsNorm {
    /// A layer over trailing axes of these sizes.
    ///
    /// # Errors
    /// What the device meets when the weight is written.
    pub fn new(ctx: &Context, name: &str, shape: impl Into<Shape>) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: param(ctx, name, "weight", shape.into(), 1.0)?, eps: 1e-6 })
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        x.rms_norm(self.weight.t(), self.eps)
    }

    fn params(&self) -> ParamSet {
        [self.weight.clone()].into_iter().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Each group of channels standardised for itself, then `weight * .. + bias` by channel.
///
/// Shape: `[N, C, ..]`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// `[C]`, ones at first, called `NAME.weight`; `None` for none.
    pub weight: Option<Param>,
    /// `[C]`, zeros at first, called `NAME.bias`; `None` for none.
    pub bias: Option<Param>,
    /// Groups of channels.
    pub groups: usize,
    /// Added to the variance; 1e-5 at first.
    pub eps: f64,
}

impl GroupNorm {
    /// A layer for `channels` channels in `groups` groups, with weight and bias.
    ///
    /// # Errors
    /// What the device meets when the parameters are written.
    pub fn new(ctx: &Context, name: &str, groups: usize, channels: usize) -> Result<GroupNorm> {
        let shape = Shape::from([channels]);
        let weight = Some(param(ctx, name, "weight", shape, 1.0)?);
        Ok(GroupNorm { weight, bias: Some(param(ctx, name, "bias", shape, 0.0)?), groups, eps: 1e-5 })
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let [weight, bias] = [&self.weight, &self.bias].map(|w| w.as_ref().map(Param::t));
        x.group_norm(self.groups, weight, bias, self.eps)
    }

    fn params(&self) -> ParamSet {
        set([&self.weight, &self.bias])
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Choices of [`InstanceNorm`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct InstanceNormConfig {
    /// Whether there are weight and bias; false.
    pub affine: bool,
    /// Whether running statistics are kept, which stand in for those of the items in [`Mode::Eval`]; false.
    pub track_running_stats: bool,
    /// The part of the new running statistics that comes from a batch; 0.1.
    pub momentum: f64,
    /// Added to the variance; 1e-5.
    pub eps: f64,
}

impl Default for InstanceNormConfig {
    fn default() -> Self {
        InstanceNormConfig { affine: false, track_running_stats: false, momentum: 0.1, eps: 1e-5 }
    }
}

/// Each channel of each item standardised over its places, then `weight * .. + bias` by channel.
///
/// Shape: `[N, C, ..]` with more than one place. As in PyTorch there are weight, bias and running statistics
/// only where they are asked for. The running statistics take the mean over the items of mean and unbiased
/// variance, and move when the pass is committed; under [`gather_statistics`](crate::gather_statistics) they wait.
///
/// ```
/// use wgrad::nn::{InstanceNorm, InstanceNormConfig};
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let norm = InstanceNorm::new(&ctx, "norm", 2, InstanceNormConfig { affine: true, ..Default::default() })?;
/// let x = HostTensor::new([1, 2, 2], &[1.0f32, 3.0, -10.0, 10.0])?;
/// let y = ctx.pass(|p| norm.forward(p.input(&x)?).to_vec::<f32>())?;
/// assert!(y.iter().zip([-1.0, 1.0, -1.0, 1.0]).all(|(y, want)| (y - want).abs() < 1e-4));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct InstanceNorm {
    /// `[C]`, ones at first, called `NAME.weight`; `None` without `affine`.
    pub weight: Option<Param>,
    /// `[C]`, zeros at first, called `NAME.bias`; `None` without `affine`.
    pub bias: Option<Param>,
    /// Mean and variance, each `[C]`, zeros and ones at first, called `NAME.running_mean` and
    /// `NAME.running_var`; `None` without `track_running_stats`.
    pub running: Option<[Arc<Kept>; 2]>,
    /// What it was made with.
    pub config: InstanceNormConfig,
    mode: Mode,
}

impl InstanceNorm {
    /// A layer for `channels` channels.
    ///
    /// # Errors
    /// What the device meets when parameters and statistics are written.
    pub fn new(
        ctx: &Context,
        name: &str,
        channels: usize,
        config: InstanceNormConfig,
    ) -> Result<InstanceNorm> {
        let shape = Shape::from([channels]);
        let affine = |part, value| config.affine.then(|| param(ctx, name, part, shape, value)).transpose();
        Ok(InstanceNorm {
            weight: affine("weight", 1.0)?,
            bias: affine("bias", 0.0)?,
            running: config.track_running_stats.then(|| running(ctx, name, shape)).transpose()?,
            config,
            mode: Mode::Train,
        })
    }
}

impl Module for InstanceNorm {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let [weight, bias] = [&self.weight, &self.bias].map(|w| w.as_ref().map(Param::t));
        let Some([mean, var]) = &self.running else { return x.instance_norm(weight, bias, self.config.eps) };
        if self.mode == Mode::Eval {
            return x.batch_norm(mean.t(), var.t(), weight, bias, self.config.eps);
        }
        let y = x.instance_norm(weight, bias, self.config.eps);
        let places: Vec<i32> = (2..x.shape().rank() as i32).collect();
        let (x, part) = (x.detach().cast(DType::F32), self.config.momentum);
        let values = vec![x.mean(places.as_slice()).mean(0), x.var(places.as_slice(), 1).mean(0)];
        let moving = Moving { mean: Arc::clone(mean), var: Arc::clone(var), momentum: part, pooled: false };
        hand_over(moving, x.shape()[0], values);
        y
    }

    fn params(&self) -> ParamSet {
        set([&self.weight, &self.bias])
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.running.iter().flatten().cloned().collect()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }
}

/// `weight * (x - mean) / sqrt(var + eps) + bias` by channel. In [`Mode::Train`] mean and variance are the
/// batch's, and running statistics follow them; in [`Mode::Eval`] they are the running statistics.
///
/// Shape: `[N, C]` or `[N, C, ..]`, any number of axes. The running statistics move when the pass is
/// committed, once for each time that the layer is used in it; under
/// [`gather_statistics`](crate::gather_statistics) they wait until all parts of a batch were seen. Several models
/// of one batch keep statistics of their own parts each: nothing is exchanged between devices.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// `[C]`, ones at first, called `NAME.weight`; `None` for none.
    pub weight: Option<Param>,
    /// `[C]`, zeros at first, called `NAME.bias`; `None` for none.
    pub bias: Option<Param>,
    /// `[C]`, zeros at first, called `NAME.running_mean`.
    pub running_mean: Arc<Kept>,
    /// `[C]`, ones at first, called `NAME.running_var`.
    pub running_var: Arc<Kept>,
    /// How fast the running statistics follow, and what is added to the variance.
    pub options: Options,
    mode: Mode,
}

impl BatchNorm {
    /// A layer for `channels` channels, with weight and bias.
    ///
    /// # Errors
    /// What the device meets when parameters and statistics are written.
    pub fn new(ctx: &Context, name: &str, channels: usize) -> Result<BatchNorm> {
        let shape = Shape::from([channels]);
        let [running_mean, running_var] = running(ctx, name, shape)?;
        Ok(BatchNorm {
            weight: Some(param(ctx, name, "weight", shape, 1.0)?),
            bias: Some(param(ctx, name, "bias", shape, 0.0)?),
            running_mean,
            running_var,
            options: Options::default(),
            mode: Mode::Train,
        })
    }
}

impl Module for BatchNorm {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let [weight, bias] = [&self.weight, &self.bias].map(|w| w.as_ref().map(Param::t));
        let (mean, var) = (self.running_mean.t(), self.running_var.t());
        match self.mode {
            Mode::Eval => x.batch_norm(mean, var, weight, bias, self.options.eps),
            Mode::Train => {
                if !statistics::are_gathered() {
                    let [y, mean, var] = x.batch_norm_train(mean, var, weight, bias, self.options);
                    self.running_mean.set(mean);
                    self.running_var.set(var);
                    return y;
                }
                // The batch's own mean and variance: what zeros become that follow at once.
                let options = Options { momentum: 1.0, ..self.options };
                let [mean, var] = [mean, var].map(|running| running.cast(DType::F32).zeros_like());
                let [y, mean, var] = x.batch_norm_train(mean, var, weight, bias, options);
                let moving = Moving {
                    mean: Arc::clone(&self.running_mean),
                    var: Arc::clone(&self.running_var),
                    momentum: self.options.momentum,
                    pooled: true,
                };
                let shape = x.shape();
                hand_over(moving, shape.elems() / shape[1], vec![mean, var]);
                y
            }
        }
    }

    fn params(&self) -> ParamSet {
        set([&self.weight, &self.bias])
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        vec![Arc::clone(&self.running_mean), Arc::clone(&self.running_var)]
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }
}
