//! What a stage computes, and models as lists of named layers that are built where they are placed.

use std::fmt;
use std::sync::Arc;

use wgrad_autograd::{Context, Kept, Tensor, autocast};
use wgrad_graph::{DType, Error, Result};
use wgrad_nn::{Mode, Module, ParamSet, Sequential};

/// A module that may go to another thread.
type Layer = Box<dyn Module + Send + Sync>;
/// Makes a layer on a context.
type BuildLayer = Box<dyn Fn(&Context) -> Result<Layer>>;

/// What a stage computes: a function of its inputs that owns parameters. Every [`Module`] is one, of one
/// input; [`Function`] makes one of a closure.
pub trait Block: Send + Sync {
    /// The output for these inputs, recorded in the open pass.
    ///
    /// # Errors
    /// What recording meets.
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor>;

    /// All outputs for these inputs, always as many; one unless the block says otherwise. Later stages take them by
    /// [`Source::Output`](crate::Source::Output). Stages are run by this function.
    ///
    /// # Errors
    /// What recording meets.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.forward(inputs)?])
    }

    /// Its parameters.
    fn params(&self) -> ParamSet;

    /// Whether it learns or is used.
    fn set_mode(&mut self, mode: Mode);

    /// What it carries over steps beside its parameters, such as running statistics, for checkpoints.
    fn state(&self) -> Vec<Arc<Kept>> {
        Vec::new()
    }
}

impl<M: Module + Send + Sync> Block for M {
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        match inputs {
            [x] => Ok(Module::forward(self, *x)),
            _ => wgrad_graph::bail!(Argument, "forward", "a module takes one input, not {}", inputs.len()),
        }
    }

    fn params(&self) -> ParamSet {
        Module::params(self)
    }

    fn set_mode(&mut self, mode: Mode) {
        Module::set_mode(self, mode);
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        Module::state(self)
    }
}

/// A block of a closure and the parameters that it uses: for several inputs or outputs, or what is no module.
///
/// # Example
/// ```
/// use wgrad_nn::ParamSet;
/// use wgrad_pipeline::Function;
/// let sum = Function::new(ParamSet::default(), |x| x[0].try_add(x[1]));
/// // The value itself goes on beside what is made of it.
/// let both = Function::several(ParamSet::default(), |x| Ok(vec![x[0].try_tanh()?, x[0]]));
/// ```
pub struct Function<F> {
    params: ParamSet,
    state: Vec<Arc<Kept>>,
    forward: F,
}

impl<F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync> Function<F> {
    /// The block that computes `forward` with these parameters.
    pub fn new(params: ParamSet, forward: F) -> Self {
        Self { params, state: Vec::new(), forward }
    }
}

impl<F> Function<F> {
    /// The same, which carries these values over steps beside its parameters.
    #[must_use]
    pub fn keeping(mut self, state: impl IntoIterator<Item = Arc<Kept>>) -> Self {
        self.state.extend(state);
        self
    }
}

impl<F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync> Block for Function<F> {
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        (self.forward)(inputs)
    }

    fn params(&self) -> ParamSet {
        self.params.clone()
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.state.clone()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// A closure that gives several outputs; see [`Function::several`].
pub struct Several<F>(F);

impl<F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync> Function<Several<F>> {
    /// The block that computes the outputs `forward` with these parameters.
    pub fn several(params: ParamSet, forward: F) -> Self {
        Self { params, state: Vec::new(), forward: Several(forward) }
    }
}

impl<F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync> Block for Function<Several<F>> {
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        match self.forward_all(inputs)?.first() {
            Some(first) => Ok(*first),
            None => wgrad_graph::bail!(Argument, "forward", "there is no output"),
        }
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        (self.forward.0)(inputs)
    }

    fn params(&self) -> ParamSet {
        self.params.clone()
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.state.clone()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// A block whose forward pass runs in a scope of [`autocast`].
pub(super) struct Cast {
    pub(super) inner: Box<dyn Block>,
    pub(super) dtype: Option<DType>,
}

impl Block for Cast {
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        match inputs.first() {
            Some(first) => autocast(*first, self.dtype, |_| self.inner.forward(inputs)),
            None => self.inner.forward(inputs),
        }
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs.first() {
            Some(first) => autocast(*first, self.dtype, |_| self.inner.forward_all(inputs)),
            None => self.inner.forward_all(inputs),
        }
    }

    fn params(&self) -> ParamSet {
        self.inner.params()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.inner.set_mode(mode);
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.inner.state()
    }
}

/// A sequential model that is not built yet: named layers, each a function of the context on which it is
/// made. So a part of it can be built on one device and the rest on another, with the same first weights.
///
/// # Example
/// ```
/// use wgrad_nn::{Activation, Linear, Rng};
/// use wgrad_pipeline::Model;
/// let rng = Rng::seed(1);
/// let model = Model::new()
///     .layer("fc1", move |ctx| Linear::new(ctx, "fc1", 784, 512, rng))
///     .layer("relu", |_| Ok(Activation::Relu))
///     .layer("fc2", move |ctx| Linear::new(ctx, "fc2", 512, 10, rng));
/// assert_eq!(model.names(), ["fc1", "relu", "fc2"]);
/// ```
#[derive(Default)]
pub struct Model {
    layers: Vec<(String, BuildLayer)>,
}

impl Model {
    /// The identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// This and then the layer that `build` makes.
    #[must_use]
    pub fn layer<M: Module + Send + Sync + 'static>(
        mut self,
        name: impl Into<String>,
        build: impl Fn(&Context) -> Result<M> + 'static,
    ) -> Self {
        self.layers.push((name.into(), Box::new(move |ctx| Ok(Box::new(build(ctx)?)))));
        self
    }

    /// The names of the layers, for cuts by name.
    pub fn names(&self) -> Vec<&str> {
        self.layers.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The layers of `range`, built on one context.
    ///
    /// # Errors
    /// What the layers meet, with the layer's name.
    pub fn build(
        &self,
        ctx: &Context,
        range: impl Into<Option<std::ops::Range<usize>>>,
    ) -> Result<Sequential> {
        let range = range.into().unwrap_or(0..self.layers.len());
        let mut built = Sequential::new();
        for (name, build) in &self.layers[range] {
            let layer = super::error::guarded(|| build(ctx));
            built =
                built.then(layer.map_err(|e: Error| super::error::placed(&format!("layer `{name}`"), e))?);
        }
        Ok(built)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.names()).finish()
    }
}
