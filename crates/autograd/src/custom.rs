//! Custom operations: a user's own WGSL, its shapes, its CPU twin and its gradient.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use wgrad_graph::{Caps, CustomId, CustomSpec, Error, ErrorKind, Op, Out, Result, bail};

use crate::pass;
use crate::record;
use crate::state::Source;
use crate::table;
use crate::tensor::Tensor;

type DispatchFn = dyn Fn(&[Out], &Caps) -> [u32; 3] + Send + Sync;
type CpuFn = dyn Fn(&[&[f64]], &mut [Vec<f64>]) + Send + Sync;
type ShapeFn = dyn Fn(&[Out]) -> Result<Vec<Out>> + Send + Sync;
pub(crate) type GradientFn = dyn Fn(&CustomGradient<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync;

/// What a recorded call of a custom operation needs.
pub(crate) struct Entry {
    id: CustomId,
    spec: Arc<CustomSpec>,
    shape: Box<ShapeFn>,
    gradient: Option<Box<GradientFn>>,
}

impl Entry {
    pub(crate) fn spec(&self) -> &Arc<CustomSpec> {
        &self.spec
    }

    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    pub(crate) fn gradient(&self, site: &CustomGradient<'_>) -> Result<Vec<Option<Tensor>>> {
        let Some(gradient) = &self.gradient else {
            bail!(Gradient, self.name(), "the custom operation has no gradient");
        };
        let grads = gradient(site)?;
        if grads.len() != site.inputs.len() {
            bail!(
                Gradient,
                self.name(),
                "the gradient gives {} values for {} operands",
                grads.len(),
                site.inputs.len()
            );
        }
        Ok(grads)
    }
}

/// What a custom operation's gradient is computed from: operands, outputs, and the gradients that
/// arrive. It records tensors, so it can be differentiated again.
#[derive(Debug)]
pub struct CustomGradient<'a> {
    pub(crate) inputs: &'a [Tensor],
    pub(crate) outs: &'a [Tensor],
    pub(crate) douts: &'a [Tensor],
}

impl CustomGradient<'_> {
    /// Operand `i`.
    pub fn input(&self, i: usize) -> Tensor {
        self.inputs[i]
    }

    /// Output `i`.
    pub fn out(&self, i: usize) -> Tensor {
        self.outs[i]
    }

    /// The gradient that arrives at output `i`; zeros where none does.
    pub fn dout(&self, i: usize) -> Tensor {
        self.douts[i]
    }
}

/// A custom operation under construction.
///
/// The WGSL declares its operands and then its outputs as `@group(0) @binding(0..)`, operands `read`,
/// outputs `read_write`, and an entry point `main`. Operands arrive materialised, row-major, in exact
/// ranges.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// use wgrad::{CustomOp, grad};
/// const CUBE: &str = "
///     @group(0) @binding(0) var<storage, read> x: array<f32>;
///     @group(0) @binding(1) var<storage, read_write> y: array<f32>;
///     @compute @workgroup_size(64)
///     fn main(@builtin(global_invocation_id) id: vec3u) {
///         if (id.x < arrayLength(&x)) { y[id.x] = x[id.x] * x[id.x] * x[id.x]; }
///     }";
/// let cube = CustomOp::new("cube", CUBE)
///     .cpu(|x, y| y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = x * x * x))
///     .gradient(|g| Ok(vec![Some(g.dout(0) * g.input(0).square() * 3.0)]))
///     .build()?;
/// let ctx = Context::new(&Device::cpu())?;
/// ctx.pass(|p| {
///     let x = p.input(HostTensor::new([2], &[1.0f32, 2.0])?)?;
///     let y = cube.call(&[x])[0];
///     assert_eq!(y.to_vec::<f32>()?, [1.0, 8.0]);
///     assert_eq!(grad(y.sum(..), &[x])?[0].to_vec::<f32>()?, [3.0, 12.0]);
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
pub struct CustomOp {
    name: String,
    wgsl: String,
    shape: Box<ShapeFn>,
    dispatch: Box<DispatchFn>,
    cpu: Option<Box<CpuFn>>,
    gradient: Option<Box<GradientFn>>,
}

impl CustomOp {
    /// A custom operation named `name` with this WGSL. Unless told otherwise it has one output like its
    /// first operand, and runs one invocation an element in workgroups of 64.
    pub fn new(name: &str, wgsl: &str) -> CustomOp {
        CustomOp {
            name: name.to_owned(),
            wgsl: wgsl.to_owned(),
            shape: Box::new(|x| Ok(x.first().copied().into_iter().collect())),
            dispatch: Box::new(|out, caps| {
                let groups = out[0].shape.elems().div_ceil(64) as u32;
                let x = groups.clamp(1, caps.max_workgroups);
                [x, groups.div_ceil(x), 1]
            }),
            cpu: None,
            gradient: None,
        }
    }

    /// Shapes and dtypes of the outputs for given operands.
    #[must_use]
    pub fn shape(mut self, f: impl Fn(&[Out]) -> Result<Vec<Out>> + Send + Sync + 'static) -> Self {
        self.shape = Box::new(f);
        self
    }

    /// Workgroups on each axis for given outputs.
    #[must_use]
    pub fn dispatch(mut self, f: impl Fn(&[Out], &Caps) -> [u32; 3] + Send + Sync + 'static) -> Self {
        self.dispatch = Box::new(f);
        self
    }

    /// The same operation on the CPU: operands as f64 slices, outputs to fill (of the right length).
    #[must_use]
    pub fn cpu(mut self, f: impl Fn(&[&[f64]], &mut [Vec<f64>]) + Send + Sync + 'static) -> Self {
        self.cpu = Some(Box::new(f));
        self
    }

    /// The gradient of each operand, recorded as tensors.
    #[must_use]
    pub fn gradient(
        mut self,
        f: impl Fn(&CustomGradient<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
    ) -> Self {
        self.gradient = Some(Box::new(f));
        self
    }

    /// The finished operation.
    ///
    /// # Errors
    /// `Argument` when it has no CPU twin: without one nothing could check the kernel.
    pub fn build(self) -> Result<Custom> {
        let Some(cpu) = self.cpu else {
            bail!(Argument, self.name, "a custom operation needs its CPU twin: call `cpu`");
        };
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.wgsl).hash(&mut hasher);
        let spec = CustomSpec { name: self.name, wgsl: self.wgsl, dispatch: self.dispatch, cpu };
        let id = CustomId(hasher.finish());
        Ok(Custom(Arc::new(Entry { id, spec: Arc::new(spec), shape: self.shape, gradient: self.gradient })))
    }
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomOp({})", self.name)
    }
}

/// A custom operation. Clones are the same.
#[derive(Clone)]
pub struct Custom(Arc<Entry>);

impl Custom {
    /// Records a call; one tensor an output.
    ///
    /// # Panics
    /// When the operands do not fit the operation.
    #[track_caller]
    pub fn call(&self, x: &[Tensor]) -> Vec<Tensor> {
        match self.try_call(x) {
            Ok(outs) => outs,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Custom::call`].
    ///
    /// # Errors
    /// What the operation's `shape` returns; `Stale`, `Device`.
    #[track_caller]
    pub fn try_call(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let at = Location::caller();
        let ins = x.iter().map(Tensor::try_out).collect::<Result<Vec<_>>>()?;
        let outs = (self.0.shape)(&ins).map_err(|e| e.at(at))?;
        if outs.is_empty() {
            return Err(Error::new(ErrorKind::Argument, self.0.name(), "has no output").at(at));
        }
        let open = record::pass_of(x, at)?;
        let mut state = table::lock(open.context)?;
        let inputs: SmallVec<[_; 4]> = record::enter(&mut state, open, x)?;
        let pool = record::current(&mut state, open)?;
        let grad = !pass::is_no_grad(open);
        let mut node = record::node(Op::Custom(self.0.id), inputs, Source::Operation, grad, at);
        node.custom = Some(Arc::clone(&self.0));
        pool.push(node, &outs);
        let node = pool.nodes.last().expect("just pushed");
        let keys: Vec<_> = node.outs.iter().map(|o| o.key).collect();
        Ok(keys.into_iter().map(|key| Tensor::of_pass(open, key, at)).collect())
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({})", self.0.name())
    }
}
