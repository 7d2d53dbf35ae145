//! Modules: functions of a tensor that may own parameters.

use std::path::Path;
use std::sync::Arc;

use wgrad_autograd::{Context, Kept, Param, Tensor};
use wgrad_graph::Result;

use crate::state::{self, Owned};
use crate::{Init, ParamSet, Rng};

/// Whether a model learns or is used. Only layers that behave differently in the two, such as
/// [`Dropout`], look at it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The model learns.
    #[default]
    Train,
    /// The model is tested or used.
    Eval,
}

/// A function of a tensor that may own parameters. It records; mistakes of shape panic at the layer.
pub trait Module {
    /// The result for `x`.
    fn forward(&self, x: Tensor) -> Tensor;

    /// The parameters, in order of creation; empty unless there are some.
    fn params(&self) -> ParamSet;

    /// What the module carries over passes beside its parameters, such as running statistics.
    fn state(&self) -> Vec<Arc<Kept>> {
        Vec::new()
    }

    /// Sets the mode of this module and of every module in it; a new module is in [`Mode::Train`].
    fn set_mode(&mut self, mode: Mode);

    /// Writes parameters and state to a safetensors file by name, whole or not at all.
    ///
    /// # Errors
    /// As [`ParamSet::save`].
    fn save(&self, path: &Path) -> Result<()> {
        let (params, kept) = (self.params(), self.state());
        state::save(path, &owned(&params, &kept))
    }

    /// Sets parameters and state from a safetensors file by name, all or none.
    ///
    /// # Errors
    /// As [`ParamSet::load`].
    fn load(&self, path: &Path) -> Result<()> {
        let (params, kept) = (self.params(), self.state());
        state::load(path, &owned(&params, &kept))
    }
}

/// Parameters and state, each once.
fn owned<'a>(params: &'a ParamSet, kept: &'a [Arc<Kept>]) -> Vec<Owned<'a>> {
    let once = |i: usize| kept[..i].iter().all(|k| !Arc::ptr_eq(k, &kept[i]));
    let kept = kept.iter().enumerate().filter(|(i, _)| once(*i)).map(|(_, k)| Owned::Kept(k));
    params.iter().map(Owned::Param).chain(kept).collect()
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, x: Tensor) -> Tensor {
        (**self).forward(x)
    }

    fn params(&self) -> ParamSet {
        (**self).params()
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        (**self).state()
    }

    fn set_mode(&mut self, mode: Mode) {
        (**self).set_mode(mode);
    }
}

/// `x W + b`.
///
/// Shape: `[.., inputs] -> [.., outputs]`; the weight is `[inputs, outputs]`, the bias `[outputs]`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[inputs, outputs]`, called `NAME.weight`.
    pub weight: Param,
    /// `[outputs]`, called `NAME.bias`; `None` for a linear map.
    pub bias: Option<Param>,
}

impl Linear {
    /// A layer with He-uniform weights (for a rectifier after it) and a bias of zeros.
    ///
    /// # Errors
    /// What the device meets when the weights are written.
    pub fn new(ctx: &Context, name: &str, inputs: usize, outputs: usize, rng: Rng) -> Result<Linear> {
        Linear::with(ctx, name, inputs, outputs, rng, Init::HeUniform, true)
    }

    /// A layer with weights drawn from `init` and, if wanted, a bias of zeros. The weights come from the
    /// stream of `rng` at `NAME.weight`.
    ///
    /// # Errors
    /// What the device meets when the weights are written.
    pub fn with(
        ctx: &Context,
        name: &str,
        inputs: usize,
        outputs: usize,
        rng: Rng,
        init: Init,
        bias: bool,
    ) -> Result<Linear> {
        let named = |part: &str| format!("{name}.{part}");
        let weight = init.draw(rng.at(&named("weight")), [inputs, outputs], inputs, outputs);
        let weight = Param::new(ctx, &named("weight"), weight)?;
        let zeros = || Init::Constant(0.0).draw(rng, [outputs], inputs, outputs);
        let bias = if bias { Some(Param::new(ctx, &named("bias"), zeros())?) } else { None };
        Ok(Linear { weight, bias })
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        match &self.bias {
            Some(bias) => bias.t().addmm(x, self.weight.t()),
            None => x.matmul(self.weight.t()),
        }
    }

    fn params(&self) -> ParamSet {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// An elementwise nonlinearity.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x` times the normal distribution function of `x`.
    Gelu,
    /// `x` times its sigmoid.
    Silu,
    /// The approximation of [`Activation::Gelu`] by `tanh`.
    GeluTanh,
    /// `log(1 + exp(x))`.
    Softplus,
    /// The logarithm of the sigmoid.
    Logsigmoid,
    /// `x` times the `tanh` of its softplus.
    Mish,
    /// `x` where positive, else `0.01 x`.
    LeakyRelu,
    /// `x` where positive, else `exp(x) - 1`.
    Elu,
    /// A scaled [`Activation::Elu`] that normalises itself.
    Selu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `relu6(x + 3) / 6`.
    Hardsigmoid,
    /// `x` times its hard sigmoid.
    Hardswish,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x - tanh(x)`.
    Tanhshrink,
}

impl Module for Activation {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        match self {
            Activation::Relu => x.relu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
            Activation::Gelu => x.gelu(),
            Activation::Silu => x.silu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Softplus => x.softplus(),
            Activation::Logsigmoid => x.logsigmoid(),
            Activation::Mish => x.mish(),
            Activation::LeakyRelu => x.leaky_relu(0.01),
            Activation::Elu => x.elu(1.0),
            Activation::Selu => x.selu(),
            Activation::Relu6 => x.relu6(),
            Activation::Hardsigmoid => x.hardsigmoid(),
            Activation::Hardswish => x.hardswish(),
            Activation::Softsign => x.softsign(),
            Activation::Tanhshrink => x.tanhshrink(),
        }
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Modules one after the other.
#[derive(Default)]
pub struct Sequential(Vec<Box<dyn Module + Send + Sync>>);

impl Sequential {
    /// The identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// This and then `module`.
    #[must_use]
    pub fn then(mut self, module: impl Module + Send + Sync + 'static) -> Sequential {
        self.0.push(Box::new(module));
        self
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        // A loop, not a fold: a closure would hide the caller's line.
        let mut x = x;
        for module in &self.0 {
            x = module.forward(x);
        }
        x
    }

    fn params(&self) -> ParamSet {
        self.0.iter().flat_map(|module| module.params()).collect()
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.0.iter().flat_map(|module| module.state()).collect()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.0.iter_mut().for_each(|module| module.set_mode(mode));
    }
}

/// Each element 0 with probability `p`, the others divided by `1 - p`; in [`Mode::Eval`] the identity.
#[derive(Clone, Debug)]
pub struct Dropout {
    stream: String,
    p: f64,
    mode: Mode,
}

impl Dropout {
    /// Dropout with probability `p`. `name` is the stream of its random numbers, which the context's seed
    /// and the number of the step decide further.
    ///
    /// # Panics
    /// When `p` is not in `[0, 1)`.
    #[track_caller]
    pub fn new(name: &str, p: f64) -> Dropout {
        assert!((0.0..1.0).contains(&p), "dropout: probability {p} is not in [0, 1)");
        Dropout { stream: name.to_owned(), p, mode: Mode::Train }
    }
}

impl Module for Dropout {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        match self.mode {
            Mode::Train => x.dropout(&self.stream, self.p),
            Mode::Eval => x,
        }
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }
}

/// Whole channels 0 with probability `p`, the others divided by `1 - p`; in [`Mode::Eval`] the identity.
///
/// Shape: `[N, C, ..]`: dropout for features of one, two or three dimensions.
#[derive(Clone, Debug)]
pub struct ChannelDropout(Dropout);

impl ChannelDropout {
    /// Dropout of channels with probability `p`; `name` as in [`Dropout::new`].
    ///
    /// # Panics
    /// When `p` is not in `[0, 1)`.
    #[track_caller]
    pub fn new(name: &str, p: f64) -> ChannelDropout {
        ChannelDropout(Dropout::new(name, p))
    }
}

impl Module for ChannelDropout {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        match self.0.mode {
            Mode::Train => x.dropout_channels(&self.0.stream, self.0.p),
            Mode::Eval => x,
        }
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.0.mode = mode;
    }
}

/// Axes from the second on as one: `[N, ..] -> [N, F]`.
#[derive(Copy, Clone, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        x.flatten(1)
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Linear layers with a nonlinearity between them.
///
/// Shape: `[.., dims[0]] -> [.., dims[last]]`.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
}

impl Mlp {
    /// Layers `fc1`, `fc2`, ... of these sizes with rectifiers between them and He-uniform weights.
    ///
    /// # Panics
    /// When fewer than two sizes are given.
    ///
    /// # Errors
    /// What the device meets when the weights are written.
    #[track_caller]
    pub fn new(ctx: &Context, dims: &[usize], rng: Rng) -> Result<Mlp> {
        Mlp::with(ctx, dims, rng, Activation::Relu)
    }

    /// The same with another nonlinearity; the weights are Glorot-uniform for sigmoid and tanh.
    ///
    /// # Panics
    /// When fewer than two sizes are given.
    ///
    /// # Errors
    /// What the device meets when the weights are written.
    #[track_caller]
    pub fn with(ctx: &Context, dims: &[usize], rng: Rng, activation: Activation) -> Result<Mlp> {
        assert!(dims.len() > 1, "mlp: {dims:?} has no layer; give the sizes of input and output at least");
        let init = match activation {
            Activation::Sigmoid | Activation::Tanh => Init::GlorotUniform,
            _ => Init::HeUniform,
        };
        let layer = |(i, pair): (usize, &[usize])| {
            Linear::with(ctx, &format!("fc{}", i + 1), pair[0], pair[1], rng, init, true)
        };
        let layers = dims.windows(2).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Mlp { layers, activation })
    }
}

impl Module for Mlp {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        let (last, hidden) = self.layers.split_last().expect("an mlp has at least one layer");
        let mut x = x;
        for layer in hidden {
            x = self.activation.forward(layer.forward(x));
        }
        last.forward(x)
    }

    fn params(&self) -> ParamSet {
        self.layers.iter().flat_map(Module::params).collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}
