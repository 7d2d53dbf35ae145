//! Gradients against central differences, of first and second order: the check that tests of every
//! rule use, for the rules and functions of users too.

use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Result, bail};

use crate::context::Context;
use crate::pass::Pass;
use crate::tensor::Tensor;
use crate::vjp::{grad, vjp};

/// What a function under [`gradcheck`] gives: a tensor, several, or a `Result` of those.
pub trait Outputs {
    /// The tensors.
    ///
    /// # Errors
    /// The function's own.
    fn outputs(self) -> Result<Vec<Tensor>>;
}

impl Outputs for Tensor {
    fn outputs(self) -> Result<Vec<Tensor>> {
        Ok(vec![self])
    }
}

impl Outputs for Vec<Tensor> {
    fn outputs(self) -> Result<Vec<Tensor>> {
        Ok(self)
    }
}

impl<const N: usize> Outputs for [Tensor; N] {
    fn outputs(self) -> Result<Vec<Tensor>> {
        Ok(self.into())
    }
}

impl<T: Outputs> Outputs for Result<T> {
    fn outputs(self) -> Result<Vec<Tensor>> {
        self.and_then(Outputs::outputs)
    }
}

/// How a gradient is compared with central differences: it may be off by `atol + rtol * |difference|`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct GradCheck {
    /// How far an element is moved to each side.
    pub eps: f64,
    /// Error allowed, relative to the difference quotient.
    pub rtol: f64,
    /// Error allowed at a quotient of 0.
    pub atol: f64,
    /// Seed of the weights that outputs are summed with.
    pub seed: u64,
}

impl Default for GradCheck {
    fn default() -> Self {
        GradCheck { eps: 1e-5, rtol: 1e-6, atol: 2e-7, seed: 0 }
    }
}

/// Compares the gradient of `f` at `inputs` with central differences
/// `(f(x + eps) - f(x - eps)) / (2 eps)`, element by element.
///
/// `f` stands in the middle of a graph: it sees the results of other operations, which have exactly the
/// values of `inputs`, and its floating-point outputs are multiplied by weights that are not constant
/// and summed. So a rule that ignores the gradient that arrives, or drops a factor, is found. Float
/// inputs are checked and become f64; inputs of other dtypes go to `f` as they are.
///
/// `ctx` should be on the oracle, which computes floats of every dtype in f64; the CPU executor does for
/// f64 alone. Each evaluation is a pass that is discarded: random streams repeat, so dropout can be
/// checked, and updates of owned values are dropped.
///
/// At a point where `f` has a kink or a jump the quotient says nothing; choose inputs away from those.
///
/// ```
/// use wgrad::prelude::*;
/// use wgrad::{GradCheck, gradcheck, gradgradcheck};
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::oracle())?;
/// let x = HostTensor::new([2, 2], &[0.3, -1.1, 0.7, 2.0])?;
/// let w = HostTensor::new([2], &[1.5, -0.5])?;
/// let options = GradCheck::default();
/// gradcheck(&ctx, &[x.clone(), w.clone()], |_, x| (x[0].tanh() * x[1]).sum(1), &options)?;
/// gradgradcheck(&ctx, &[x.clone(), w], |_, x| (x[0].tanh() * x[1]).sum(1), &options)?;
///
/// // A gradient that stops on the way is an error that names operand, element and both values.
/// let error = gradcheck(&ctx, &[x], |_, x| x[0] * x[0].detach(), &options).unwrap_err();
/// assert!(error.to_string().starts_with("gradcheck: operand 0 f64[2, 2], element [0, 0]: gradient"));
/// # Ok(()) }
/// ```
///
/// # Errors
/// `Gradient` where an element of a gradient disagrees, with operand, element and both values, and where
/// a rule is missing; `DType` when the device has no f64; `Argument` when nothing can be checked;
/// whatever `f` returns.
pub fn gradcheck<O: Outputs>(
    ctx: &Context,
    inputs: &[HostTensor],
    f: impl Fn(&Pass, &[Tensor]) -> O,
    options: &GradCheck,
) -> Result<()> {
    check("gradcheck", ctx, inputs, &|p, x| f(p, x).outputs(), options)
}

/// As [`gradcheck`] of the gradient of `f`: the second derivative, with respect to the inputs and to the
/// gradient that arrives at each output (operands after the inputs in an error).
///
/// # Errors
/// As [`gradcheck`].
pub fn gradgradcheck<O: Outputs>(
    ctx: &Context,
    inputs: &[HostTensor],
    f: impl Fn(&Pass, &[Tensor]) -> O,
    options: &GradCheck,
) -> Result<()> {
    let floats = |p: &Pass, x: &[Tensor]| -> Result<Vec<Tensor>> { only_floats(f(p, x).outputs()?) };
    let mut random = Weights(options.seed ^ 0x5eed);
    let mut all: Vec<HostTensor> = inputs.to_vec();
    let pass = ctx.begin()?;
    for y in floats(&pass, &enter(&pass, inputs)?)? {
        let y = y.try_out()?;
        all.push(random.like(y.shape.dims())?);
    }
    drop(pass);
    let first = |p: &Pass, x: &[Tensor]| -> Result<Vec<Tensor>> {
        let (x, cotangents) = x.split_at(inputs.len());
        let y = floats(p, x)?;
        let mut fitting = Vec::with_capacity(y.len());
        for (dy, y) in cotangents.iter().zip(&y) {
            fitting.push(dy.try_cast(y.try_out()?.dtype)?);
        }
        vjp(&y, &fitting, &only_floats(x.to_vec())?)
    };
    check("gradgradcheck", ctx, &all, &first, options)
}

/// Numbers in `-1.5..-0.5` and `0.5..1.5`, by splitmix64: none so small that it hides an error.
struct Weights(u64);

impl Weights {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let size = 0.5 + (z >> 11) as f64 / (1u64 << 53) as f64;
        if z & 1 == 0 { size } else { -size }
    }

    fn like(&mut self, dims: &[usize]) -> Result<HostTensor> {
        let elems: Vec<f64> = (0..dims.iter().product()).map(|_| self.next()).collect();
        HostTensor::new(dims, &elems)
    }
}

fn only_floats(tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let mut floats = Vec::with_capacity(tensors.len());
    for x in tensors {
        if x.try_out()?.dtype.is_float() {
            floats.push(x);
        }
    }
    Ok(floats)
}

fn enter(p: &Pass, inputs: &[HostTensor]) -> Result<Vec<Tensor>> {
    inputs
        .iter()
        .map(|x| p.input(if x.dtype().is_float() { x.cast(DType::F64) } else { x.clone() }))
        .collect()
}

type Function<'a> = &'a dyn Fn(&Pass, &[Tensor]) -> Result<Vec<Tensor>>;

/// `sum(f(2 * leaf) * weights)`: the doubling is exact, and puts `f` in the middle of a graph.
fn loss(p: &Pass, leaves: &[Tensor], f: Function<'_>, options: &GradCheck, who: &str) -> Result<Tensor> {
    let mut seen = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        seen.push(if leaf.try_out()?.dtype.is_float() { leaf.try_mul(2.0)? } else { *leaf });
    }
    let mut random = Weights(options.seed);
    let mut total: Option<Tensor> = None;
    for y in only_floats(f(p, &seen)?)? {
        let weights = p.input(random.like(y.try_out()?.shape.dims())?)?;
        let part = y.try_cast(DType::F64)?.try_mul(weights)?.try_sum_all()?;
        total = Some(match total {
            Some(before) => before.try_add(part)?,
            None => part,
        });
    }
    total.ok_or_else(|| Error::new(ErrorKind::Argument, who, "the function has no floating-point output"))
}

fn check(
    who: &str,
    ctx: &Context,
    inputs: &[HostTensor],
    f: Function<'_>,
    options: &GradCheck,
) -> Result<()> {
    if !ctx.caps().f64 {
        bail!(DType, who, "{} has no f64, which differences need", ctx.caps().name);
    }
    if !inputs.iter().any(|x| x.dtype().is_float()) {
        bail!(Argument, who, "no input is floating-point");
    }
    let mut halves: Vec<Vec<f64>> = Vec::with_capacity(inputs.len());
    for x in inputs {
        halves.push(x.to_vec::<f64>().iter().map(|x| x / 2.0).collect());
    }
    let leaves = |p: &Pass, halves: &[Vec<f64>]| -> Result<Vec<Tensor>> {
        let leaf = |(x, half): (&HostTensor, &Vec<f64>)| match x.dtype().is_float() {
            true => p.input(HostTensor::new(x.shape(), half)?),
            false => p.input(x),
        };
        inputs.iter().zip(halves).map(leaf).collect()
    };
    let pass = ctx.begin()?;
    let all = leaves(&pass, &halves)?;
    let by = only_floats(all.clone())?;
    let mut analytic = Vec::with_capacity(by.len());
    for g in grad(loss(&pass, &all, f, options, who)?, &by)? {
        analytic.push(g.to_vec::<f64>()?);
    }
    drop(pass);
    let at = |halves: &[Vec<f64>]| -> Result<f64> {
        let pass = ctx.begin()?;
        loss(&pass, &leaves(&pass, halves)?, f, options, who)?.item()
    };
    let mut analytic = analytic.iter();
    for (i, x) in inputs.iter().enumerate().filter(|(_, x)| x.dtype().is_float()) {
        let analytic = analytic.next().expect("a gradient for each float input");
        for (j, got) in analytic.iter().enumerate() {
            // By the leaf, which is half of what `f` sees; both gradients are twice as large.
            let here = halves[i][j];
            halves[i][j] = here + options.eps / 2.0;
            let above = at(&halves)?;
            halves[i][j] = here - options.eps / 2.0;
            let want = (above - at(&halves)?) / (2.0 * options.eps);
            halves[i][j] = here;
            let got = got / 2.0;
            let close = (got - want).abs() <= options.atol + options.rtol * want.abs();
            if !close {
                let element = coordinates(x.shape().dims(), j);
                let shape = x.shape();
                bail!(
                    Gradient,
                    who,
                    "operand {i} f64{shape}, element {element:?}: gradient {got}, by differences {want}"
                );
            }
        }
    }
    Ok(())
}

/// The coordinates of row-major element `at`.
fn coordinates(dims: &[usize], mut at: usize) -> Vec<usize> {
    let mut found = vec![0; dims.len()];
    for (place, size) in found.iter_mut().zip(dims).rev() {
        (*place, at) = (at % size, at / size);
    }
    found
}
