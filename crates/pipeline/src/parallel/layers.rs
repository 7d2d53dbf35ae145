//! Layers that several devices share.

use wgrad_autograd::{Attention, Context, Param, Tensor};
use wgrad_graph::{Error, HostTensor, Result, bail};
use wgrad_nn::{Activation, Init, Mode, Module, ParamSet, Rng};

use super::Shard;
use super::crossing::{Meeting, cross};

/// The result, or the error thrown to the stage that runs the layer, which returns it.
fn thrown<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => throw(error),
    }
}

fn throw(error: Error) -> ! {
    std::panic::resume_unwind(Box::new(error))
}

/// `x` for the split part of a block: the same value, whose gradients are summed over the ranks.
fn enter(shard: &Shard, x: Tensor) -> Tensor {
    if shard.size() == 1 { x } else { thrown(cross(Meeting::Copy, x)) }
}

/// The sum of all ranks' parts.
fn sum(shard: &Shard, x: Tensor) -> Tensor {
    if shard.size() == 1 { x } else { thrown(cross(Meeting::Sum, x)) }
}

fn zeros(outputs: usize) -> Result<HostTensor> {
    HostTensor::new([outputs], &vec![0f32; outputs])
}

/// `x W + b` whose outputs are split over the ranks.
///
/// Shape: `[.., inputs] -> [.., own outputs]`, or `[.., outputs]` where they are gathered. The undivided weight is
/// that of [`Linear`](wgrad_nn::Linear): `[inputs, outputs]`.
///
/// One sum over ranks in the backward pass, and a gathering in the forward pass if wanted.
#[derive(Clone, Debug)]
pub struct ColumnLinear {
    /// `[inputs, own outputs]`, called `NAME.weight`.
    pub weight: Param,
    /// `[own outputs]`, called `NAME.bias`.
    pub bias: Option<Param>,
    shard: Shard,
    own: std::ops::Range<usize>,
    outputs: usize,
    gathers: bool,
}

impl ColumnLinear {
    /// A layer with the first weights of [`Linear::new`](wgrad_nn::Linear::new), whatever the number of ranks.
    ///
    /// # Errors
    /// `Argument` where a rank would have no output; what the device meets when the weights are written.
    pub fn new(
        ctx: &Context,
        name: &str,
        inputs: usize,
        outputs: usize,
        rng: Rng,
        shard: &Shard,
    ) -> Result<Self> {
        Self::with(ctx, name, [inputs, outputs], rng, Init::HeUniform, true, shard)
    }

    /// A layer with the first weights of [`Linear::with`](wgrad_nn::Linear::with) for `[inputs, outputs]`.
    ///
    /// # Errors
    /// As [`ColumnLinear::new`].
    pub fn with(
        ctx: &Context,
        name: &str,
        [inputs, outputs]: [usize; 2],
        rng: Rng,
        init: Init,
        bias: bool,
        shard: &Shard,
    ) -> Result<Self> {
        let own = shard.part(outputs, &format!("outputs of `{name}`"))?;
        let named = |part: &str| format!("{name}.{part}");
        let weight = init.draw(rng.at(&named("weight")), [inputs, outputs], inputs, outputs);
        let parts = [own.clone()];
        let weight = shard.param(ctx, &named("weight"), &weight, 1, &parts)?;
        let bias = match bias {
            true => Some(shard.param(ctx, &named("bias"), &zeros(outputs)?, 0, &parts)?),
            false => None,
        };
        Ok(Self { weight, bias, shard: shard.clone(), own, outputs, gathers: false })
    }

    /// The same, which gives all outputs on every rank.
    #[must_use]
    pub fn gathered(mut self) -> Self {
        self.gathers = true;
        self
    }
}

impl Module for ColumnLinear {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let y = enter(&self.shard, x).matmul(self.weight.t());
        let y = match &self.bias {
            Some(bias) => y + bias.t(),
            None => y,
        };
        if !self.gathers || self.shard.size() == 1 {
            return y;
        }
        let (start, len) = (self.own.start, self.own.len());
        thrown(cross(Meeting::Gather { start, len, all: self.outputs }, y))
    }

    fn params(&self) -> ParamSet {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// `x W + b` whose inputs are split over the ranks, as [`ColumnLinear`] gives them.
///
/// Shape: `[.., own inputs] -> [.., outputs]`; the weight is `[own inputs, outputs]`, the bias `[outputs]` on every
/// rank.
///
/// One sum over ranks in the forward pass.
#[derive(Clone, Debug)]
pub struct RowLinear {
    /// `[own inputs, outputs]`, called `NAME.weight`.
    pub weight: Param,
    /// `[outputs]`, called `NAME.bias`, whole on every rank.
    pub bias: Option<Param>,
    shard: Shard,
}

impl RowLinear {
    /// A layer with the first weights of [`Linear::new`](wgrad_nn::Linear::new), whatever the number of ranks.
    ///
    /// # Errors
    /// `Argument` where a rank would have no input; what the device meets when the weights are written.
    pub fn new(
        ctx: &Context,
        name: &str,
        inputs: usize,
        outputs: usize,
        rng: Rng,
        shard: &Shard,
    ) -> Result<Self> {
        Self::with(ctx, name, [inputs, outputs], rng, Init::HeUniform, true, shard)
    }

    /// A layer with the first weights of [`Linear::with`](wgrad_nn::Linear::with) for `[inputs, outputs]`.
    ///
    /// # Errors
    /// As [`RowLinear::new`].
    pub fn with(
        ctx: &Context,
        name: &str,
        [inputs, outputs]: [usize; 2],
        rng: Rng,
        init: Init,
        bias: bool,
        shard: &Shard,
    ) -> Result<Self> {
        let own = shard.part(inputs, &format!("inputs of `{name}`"))?;
        Self::of(ctx, name, [inputs, outputs], own, (rng, init, bias), shard)
    }

    fn of(
        ctx: &Context,
        name: &str,
        [inputs, outputs]: [usize; 2],
        own: std::ops::Range<usize>,
        (rng, init, bias): (Rng, Init, bool),
        shard: &Shard,
    ) -> Result<Self> {
        let named = |part: &str| format!("{name}.{part}");
        let weight = init.draw(rng.at(&named("weight")), [inputs, outputs], inputs, outputs);
        let weight = shard.param(ctx, &named("weight"), &weight, 0, &[own])?;
        let bias = match bias {
            true => Some(Param::new(ctx, &named("bias"), zeros(outputs)?)?),
            false => None,
        };
        Ok(Self { weight, bias, shard: shard.clone() })
    }
}

impl Module for RowLinear {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let y = sum(&self.shard, x.matmul(self.weight.t()));
        match &self.bias {
            Some(bias) => y + bias.t(),
            None => y,
        }
    }

    fn params(&self) -> ParamSet {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Two linear layers with a nonlinearity between them, split in the middle: one sum over ranks in the forward pass
/// and one in the backward pass.
///
/// Shape: `[.., inputs] -> [.., outputs]`.
///
/// ```
/// use wgrad::pipeline::parallel::ShardedMlp;
/// use wgrad::pipeline::{
///     Batch, Contract, Line, Loss, Mesh, MeshOptions, MeshTrainer, Model, Stages, partition, schedule,
/// };
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let rng = Rng::seed(1);
/// // The part of the model that a line has.
/// let model = |line: &Line| {
///     let [first, second] = [(); 2].map(|()| line.shard().clone());
///     Model::new()
///         .layer("a", move |ctx| ShardedMlp::new(ctx, "a", [3, 7, 6], Activation::Gelu, rng, &first))
///         .layer("b", move |ctx| ShardedMlp::new(ctx, "b", [6, 9, 2], Activation::Gelu, rng, &second))
/// };
/// let contexts = (0..4).map(|_| Context::new(&Device::cpu())).collect::<wgrad::Result<Vec<_>>>()?;
/// // Two stages, each on two devices, of which the second takes half as much as the first.
/// let mesh = Mesh::new([("stage", 2), ("shard", 2)], &contexts)?.weighted("shard", &[2.0, 1.0])?;
/// let build = |line: &Line| {
///     let model = model(line);
///     let cut = partition::at_names(&model.names(), &["b"])?;
///     Stages::cut(&model, &cut, line.contexts(), Contract::new([3], DType::F32))
/// };
/// let sgd = |params| Sgd::new(params, SgdConfig { lr: 0.1, ..Default::default() });
/// let loss = Loss::mean(|y, t| y.try_cross_entropy(t));
/// let mut trainer = MeshTrainer::new(&mesh, build, loss, sgd, MeshOptions::default())?;
/// let x = HostTensor::new([4, 3], &[0.1f32, 0.9, 0.3, 0.5, 0.2, 0.8, 0.7, 0.4, 0.6, 0.0, 1.0, 0.5])?;
/// let batch = Batch::new(&x).targets(&HostTensor::new([4], &[0i32, 1, 0, 1])?);
/// let schedule = schedule::one_f_one_b(2, 2)?;
/// let first = trainer.step(&schedule, &batch)?;
/// assert!(trainer.step(&schedule, &batch)?.loss < first.loss);
/// // By name, and whole: 7 hidden units, of which one device has 5.
/// let (name, weight) = &trainer.weights()?[0];
/// assert_eq!((name.as_str(), weight.shape().dims()), ("a.fc1.weight", &[3, 7][..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ShardedMlp {
    /// Called `NAME.fc1`.
    pub up: ColumnLinear,
    /// Between the layers.
    pub activation: Activation,
    /// Called `NAME.fc2`.
    pub down: RowLinear,
}

impl ShardedMlp {
    /// A block of `[inputs, hidden, outputs]`.
    ///
    /// # Errors
    /// `Argument` where a rank would have no hidden unit; what the device meets when the weights are written.
    pub fn new(
        ctx: &Context,
        name: &str,
        [inputs, hidden, outputs]: [usize; 3],
        activation: Activation,
        rng: Rng,
        shard: &Shard,
    ) -> Result<Self> {
        Ok(Self {
            up: ColumnLinear::new(ctx, &format!("{name}.fc1"), inputs, hidden, rng, shard)?,
            activation,
            down: RowLinear::new(ctx, &format!("{name}.fc2"), hidden, outputs, rng, shard)?,
        })
    }
}

impl Module for ShardedMlp {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        self.down.forward(self.activation.forward(self.up.forward(x)))
    }

    fn params(&self) -> ParamSet {
        self.up.params().iter().chain(self.down.params().iter()).cloned().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Attention of several heads, split by heads: one sum over ranks in the forward pass and one in the backward pass.
/// No dropout.
///
/// Shape: `[.., T, width] -> [.., T, width]`. Undivided parameters, with their names and first weights, are those of
/// [`MultiHeadAttention`](wgrad_nn::MultiHeadAttention).
#[derive(Clone, Debug)]
pub struct ShardedAttention {
    /// Own queries, keys and values side by side, called `NAME.in_proj_weight`.
    pub in_proj_weight: Param,
    /// Called `NAME.in_proj_bias`.
    pub in_proj_bias: Option<Param>,
    /// Called `NAME.out_proj`.
    pub out_proj: RowLinear,
    /// Own heads of queries.
    pub heads: usize,
    /// Own heads of keys and values.
    pub groups: usize,
    /// Whether later positions are hidden.
    pub causal: bool,
    shard: Shard,
}

impl ShardedAttention {
    /// Attention with `[heads, groups]` heads of queries, and of keys and values, of all ranks together; groups are
    /// split with their heads.
    ///
    /// # Errors
    /// `Argument` when `heads` does not divide `width`, `groups` not `heads`, or a rank would have no group; what the
    /// device meets when the parameters are written.
    pub fn new(
        ctx: &Context,
        name: &str,
        width: usize,
        [heads, groups]: [usize; 2],
        rng: Rng,
        bias: bool,
        shard: &Shard,
    ) -> Result<Self> {
        if heads == 0 || groups == 0 || !width.is_multiple_of(heads) || !heads.is_multiple_of(groups) {
            let rule = "heads divide the width, groups the heads";
            bail!(Argument, "sharded_attention", "{rule}: {width}, {heads}, {groups}");
        }
        let own = shard.part(groups, &format!("heads of `{name}`"))?;
        let (size, each) = (width / heads, heads / groups);
        let queries = own.start * each * size..own.end * each * size;
        let keys = |offset: usize| offset + own.start * size..offset + own.end * size;
        let parts = [queries.clone(), keys(width), keys(width + groups * size)];
        let outputs = width + 2 * groups * size;
        let (named, init) = (|part: &str| format!("{name}.{part}"), Init::GlorotUniform);
        let weight = init.draw(rng.at(&named("in_proj_weight")), [width, outputs], width, outputs);
        let in_proj_weight = shard.param(ctx, &named("in_proj_weight"), &weight, 1, &parts)?;
        let in_proj_bias = match bias {
            true => Some(shard.param(ctx, &named("in_proj_bias"), &zeros(outputs)?, 0, &parts)?),
            false => None,
        };
        let out = [width, width];
        let out_proj = RowLinear::of(ctx, &named("out_proj"), out, queries, (rng, init, bias), shard)?;
        let (heads, groups) = (own.len() * each, own.len());
        Ok(Self {
            in_proj_weight,
            in_proj_bias,
            out_proj,
            heads,
            groups,
            causal: false,
            shard: shard.clone(),
        })
    }

    /// The same, which hides later positions.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }
}

impl Module for ShardedAttention {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let y = enter(&self.shard, x).matmul(self.in_proj_weight.t());
        let y = match &self.in_proj_bias {
            Some(bias) => y + bias.t(),
            None => y,
        };
        let size = self.in_proj_weight.shape()[1] / (self.heads + 2 * self.groups);
        let (mut parts, mut start) = ([y; 3], 0);
        for (part, heads) in parts.iter_mut().zip([self.heads, self.groups, self.groups]) {
            let own = y.narrow(-1, start, heads * size);
            let shape = own.shape();
            let lead = &shape.dims()[..shape.rank() - 1];
            *part = own.reshape([lead, &[heads, size]].concat().as_slice()).transpose(-3, -2);
            start += heads * size;
        }
        let [q, k, v] = parts;
        let options = Attention { causal: self.causal, ..Attention::default() };
        let y = q.scaled_dot_product_attention(k, v, options).transpose(-3, -2);
        self.out_proj.forward(y.flatten(-2))
    }

    fn params(&self) -> ParamSet {
        let own = [Some(self.in_proj_weight.clone()), self.in_proj_bias.clone()];
        own.into_iter().flatten().chain(self.out_proj.params().iter().cloned()).collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}
