//! The vector-Jacobian product, recorded into the pass of what it differentiates: a walk over the
//! recorded nodes backwards, one rule a node, contributions added in the order in which they arise.

use std::panic::Location;

use smallvec::SmallVec;
use wgrad_graph::{Binary, Error, ErrorKind, Fast, Op, Out, Result, Shape, bail};

use crate::autocast;
use crate::checkpoint::Replay;
use crate::custom::CustomGradient;
use crate::flight;
use crate::line;
use crate::memo;
use crate::pass::OpenPass;
use crate::profiling;
use crate::record::{self, Recorded};
use crate::rules::{self, Site};
use crate::state::{At, FastMap, FastSet, OwnedKey, Pool, ValueKey};
use crate::table;
use crate::tensor::Tensor;

/// The product of `cotangents` (one an output, of its shape and dtype) with the Jacobian of `outputs`
/// by `inputs`: one tensor an input, zeros where no output depends on it.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// ctx.pass(|p| {
///     let x = p.input(HostTensor::new([2], &[3.0f32, 4.0])?)?;
///     let v = p.input(HostTensor::new([2], &[1.0f32, 10.0])?)?;
///     let dx = wgrad::vjp(&[x.square()], &[v], &[x])?[0];
///     assert_eq!(dx.to_vec::<f32>()?, [6.0, 80.0]);
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// `Gradient` when a rule is missing on the way; `Shape` or `DType` when a cotangent does not fit its
/// output; `Stale`, `Device`.
#[track_caller]
pub fn vjp(outputs: &[Tensor], cotangents: &[Tensor], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let all: Vec<Tensor> = [outputs, cotangents, inputs].concat();
    let pass = record::pass_of(&all, at)?;
    let found = vjp_found(outputs, cotangents, inputs)?;
    let fill = |(found, x): (Option<Tensor>, &Tensor)| match found {
        Some(tensor) => Ok(tensor),
        None => zeros(pass, x.try_out()?, at),
    };
    found.into_iter().zip(inputs).map(fill).collect()
}

/// As [`vjp`], but `None` where no output depends on an input.
///
/// # Errors
/// As [`vjp`].
#[track_caller]
pub fn vjp_found(
    outputs: &[Tensor],
    cotangents: &[Tensor],
    inputs: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let at = Location::caller();
    let all: Vec<Tensor> = [outputs, cotangents, inputs].concat();
    let pass = record::pass_of(&all, at)?;
    let _differentiating = profiling::differentiating(pass.context);
    let wanted = {
        let mut state = table::lock(pass.context)?;
        record::enter(&mut state, pass, inputs)?
    };
    let found = differentiate(pass, outputs, cotangents, Some(&wanted), at)?;
    Ok(found.into_iter().map(|(_, gradient)| gradient).collect())
}

/// What is differentiated by with its gradient: each of `wanted`, or every trainable version that `outputs` depend
/// on. The gradient graph of a pass that was equal up to here is recorded again as it was.
pub(crate) fn differentiate(
    pass: OpenPass,
    outputs: &[Tensor],
    cotangents: &[Tensor],
    wanted: Option<&[ValueKey]>,
    at: At,
) -> Result<Vec<(ValueKey, Option<Tensor>)>> {
    let question = {
        let mut state = table::lock(pass.context)?;
        let ys = record::enter(&mut state, pass, outputs)?;
        let dys = record::enter(&mut state, pass, cotangents)?;
        let known = state.backend.caps().allows(Fast::EqualPasses);
        let pool = record::current(&mut state, pass)?;
        let question = pool.question(&ys, &dys, wanted, memo::flows(pass));
        let at = line::or(at);
        if known && let Some(found) = state.repeat_gradients(pass, &question, at)? {
            if state.spend(pass)? {
                drop(state);
                flight::throttle(pass.context);
            }
            let tensor = |key: ValueKey| Tensor::of_pass(pass, key, at);
            return Ok(found.into_iter().map(|(key, dx)| (key, dx.map(tensor))).collect());
        }
        known.then_some(question)
    };
    let walk = Walk::new(pass, outputs, wanted, at)?;
    let by: Vec<ValueKey> = match wanted {
        Some(wanted) => wanted.to_vec(),
        None => walk.params.iter().map(|(_, key)| *key).collect(),
    };
    let whole = !walk.foreign;
    let grads = walk.run(outputs, cotangents)?;
    let found: Vec<_> = by.iter().map(|key| (*key, grads.get(key).copied())).collect();
    if let Some(question) = question.filter(|_| whole) {
        let mut state = table::lock(pass.context)?;
        let pool = record::current(&mut state, pass)?;
        let keys: Vec<_> = found.iter().map(|(key, dx)| (*key, dx.map(|dx| dx.value_key()))).collect();
        pool.remember_gradients(question, &keys);
    }
    Ok(found)
}

/// The gradient of the number `y` by each of `xs`.
///
/// # Errors
/// As [`vjp`]; `Shape` when `y` is not one number.
#[track_caller]
pub fn grad(y: Tensor, xs: &[Tensor]) -> Result<Vec<Tensor>> {
    let _differentiating = profiling::differentiating(y.context);
    let one = one_like(y, "grad")?;
    vjp(&[y], &[one], xs)
}

/// The cotangent 1 of a number.
#[track_caller]
pub(crate) fn one_like(y: Tensor, who: &str) -> Result<Tensor> {
    let out = y.try_out()?;
    let at = Location::caller();
    if out.shape.elems() != 1 || !out.dtype.is_float() {
        let rule = "needs one floating-point number; `vjp` takes outputs of any shape with their cotangents";
        return Err(Error::new(ErrorKind::Shape, who, rule).at(at).operand(format!("{out:?}"), Some(y.at)));
    }
    let one = y.number(1.0, out.dtype)?;
    if out.shape.rank() == 0 { Ok(one) } else { Tensor::record(Op::Reshape, &[one], Some(out.shape), None) }
}

/// Zeros as a value of `pass`.
pub(crate) fn zeros(pass: OpenPass, out: Out, at: At) -> Result<Tensor> {
    let zero = record::number(pass, crate::state::Number::Literal(0.0), out.dtype, at)?;
    let ones = [1; wgrad_graph::MAX_RANK];
    let flat = Tensor::record(Op::Reshape, &[zero], Some(Shape::new(&ones[..out.shape.rank()])), None)?;
    Tensor::record(Op::Expand, &[flat], Some(out.shape), None)
}

/// The part of a pass that lies between outputs and what is differentiated by.
pub(crate) struct Walk {
    pass: OpenPass,
    /// Nodes on the way, ascending.
    nodes: Vec<u32>,
    /// Values through which or to which a gradient goes.
    needs: FastMap<ValueKey, bool>,
    /// The trainable versions found, in order of first recording.
    pub(crate) params: Vec<(OwnedKey, ValueKey)>,
    replay: Replay,
    /// Whether a rule of the user's is on the way, of which nothing is known.
    foreign: bool,
}

impl Walk {
    /// Walks back from `outputs`; without `wanted`, every trainable version found is wanted.
    pub(crate) fn new(
        pass: OpenPass,
        outputs: &[Tensor],
        wanted: Option<&[ValueKey]>,
        at: At,
    ) -> Result<Walk> {
        let mut state = table::lock(pass.context)?;
        let outs = record::enter(&mut state, pass, outputs)?;
        let trainable: FastSet<OwnedKey> =
            state.owned.iter().filter(|(_, o)| o.trainable).map(|(k, _)| k).collect();
        let pool = record::current(&mut state, pass)?;
        let mut on_way = vec![false; pool.nodes.len()];
        let mut found: Vec<ValueKey> = Vec::new();
        let mut seen: FastSet<ValueKey> = FastSet::default();
        let mut todo: Vec<ValueKey> = outs.to_vec();
        while let Some(key) = todo.pop() {
            if !seen.insert(key) {
                continue;
            }
            let value = pool.values[key];
            if value.version.is_some_and(|(owned, _)| trainable.contains(&owned)) {
                found.push(key);
            }
            let node = &pool.nodes[value.node as usize];
            if value.stop || !node.grad || std::mem::replace(&mut on_way[value.node as usize], true) {
                continue;
            }
            todo.extend(node.edges());
        }
        let params = match one_version_each(pool, found) {
            (_, Some((owned, versions))) if wanted.is_none() => {
                let name = &state.owned[owned].name;
                let rule =
                    format!("two versions of {name} reach the loss; differentiate by one of them with `vjp`");
                let error = Error::new(ErrorKind::Gradient, "backward", rule).at(at);
                return Err(versions.into_iter().fold(error, |error, (version, made)| {
                    error.operand(format!("version {version}"), Some(made))
                }));
            }
            (params, _) => params,
        };
        let nodes: Vec<u32> = (0..on_way.len() as u32).filter(|i| on_way[*i as usize]).collect();
        let mut needs: FastMap<ValueKey, bool> = FastMap::default();
        match wanted {
            Some(wanted) => needs.extend(wanted.iter().map(|k| (*k, true))),
            None => needs.extend(params.iter().map(|(_, k)| (*k, true))),
        }
        for index in &nodes {
            let node = &pool.nodes[*index as usize];
            let through = |k: &ValueKey| {
                let value = pool.values[*k];
                needs.get(k).copied().unwrap_or(false)
                    || !value.stop && needs.get(&pool.out(*k).key).copied().unwrap_or(false)
            };
            if node.edges().iter().any(through) {
                needs.extend(node.outs.iter().filter(|o| o.out.dtype.is_float()).map(|o| (o.key, true)));
            }
        }
        let foreign = |i: &u32| {
            let node = &pool.nodes[*i as usize];
            node.custom.is_some() || node.rule.as_ref().is_some_and(|rule| !rule.structural)
        };
        let foreign = nodes.iter().any(foreign);
        Ok(Walk { pass, nodes, needs, params, replay: Replay::default(), foreign })
    }

    fn needs(&self, key: ValueKey) -> bool {
        self.needs.get(&key).copied().unwrap_or(false)
    }

    /// The cotangents of all values on the way.
    pub(crate) fn run(
        mut self,
        outputs: &[Tensor],
        cotangents: &[Tensor],
    ) -> Result<FastMap<ValueKey, Tensor>> {
        if outputs.len() != cotangents.len() {
            bail!(Argument, "vjp", "{} outputs and {} cotangents", outputs.len(), cotangents.len());
        }
        // Rules compute in the dtypes of what they differentiate.
        let _scopes = autocast::pause();
        let mut grads: FastMap<ValueKey, Tensor> = FastMap::default();
        for (y, dy) in outputs.iter().zip(cotangents) {
            let (out, dout) = (y.try_out()?, dy.try_out()?);
            if out != dout {
                let rule = format!("a cotangent {dout:?} does not fit its output {out:?}");
                return Err(Error::new(ErrorKind::Shape, "vjp", rule)
                    .operand("output", Some(y.at))
                    .operand("cotangent", Some(dy.at)));
            }
            let keys = {
                let mut state = table::lock(self.pass.context)?;
                record::enter(&mut state, self.pass, &[*y, *dy])?
            };
            accumulate(&mut grads, keys[0], Tensor::of_pass(self.pass, keys[1], dy.at), dy.at)?;
        }
        for index in std::mem::take(&mut self.nodes).into_iter().rev() {
            self.step(index, &mut grads)?;
        }
        Ok(grads)
    }

    /// One node's rule.
    fn step(&mut self, index: u32, grads: &mut FastMap<ValueKey, Tensor>) -> Result<()> {
        let pass = self.pass;
        let (op, inputs, outs, at, checkpoint, (custom, rule), len) = {
            let mut state = table::lock(pass.context)?;
            let pool = record::current(&mut state, pass)?;
            let node = &pool.nodes[index as usize];
            let outs: SmallVec<[(ValueKey, Out); 1]> = node.outs.iter().map(|o| (o.key, o.out)).collect();
            (
                node.op,
                node.edges().clone(),
                outs,
                node.at,
                node.checkpoint,
                (node.custom.clone(), node.rule.clone()),
                pool.nodes.len(),
            )
        };
        let needs: SmallVec<[bool; 4]> = inputs.iter().map(|k| self.flows(*k)).collect::<Result<_>>()?;
        let douts: SmallVec<[Option<Tensor>; 1]> = outs.iter().map(|(k, _)| grads.get(k).copied()).collect();
        let Some(arrived) = douts.iter().flatten().next() else { return Ok(()) };
        if !needs.contains(&true) {
            return Ok(());
        }
        let mut site_inputs = inputs.clone();
        let mut site_outs: SmallVec<[ValueKey; 1]> = outs.iter().map(|(k, _)| *k).collect();
        if checkpoint > 0 {
            let mut state = table::lock(pass.context)?;
            let arrived = arrived.value_key();
            let pool = record::current(&mut state, pass)?;
            self.replay.enter(pool, checkpoint, arrived);
            site_inputs.iter_mut().for_each(|k| *k = self.replay.of(pool, checkpoint, *k));
            site_outs.iter_mut().for_each(|k| *k = self.replay.of(pool, checkpoint, *k));
        }
        let handle = |k: &ValueKey| Tensor::of_pass(pass, *k, at);
        let x: SmallVec<[Tensor; 4]> = site_inputs.iter().map(handle).collect();
        let out: SmallVec<[Tensor; 1]> = site_outs.iter().map(handle).collect();
        let dx: SmallVec<[Option<Tensor>; 4]> = match (rule, custom) {
            (None, None) => {
                let site = Site { op, x: &x, out: &out, dout: &douts, needs: &needs };
                rules::gradient(&site).map_err(|e| e.at(at))?
            }
            (rule, custom) => {
                let fill = |(d, (_, out)): (&Option<Tensor>, &(ValueKey, Out))| match d {
                    Some(d) => Ok(*d),
                    None => zeros(pass, *out, at),
                };
                let douts = douts.iter().zip(&outs).map(fill).collect::<Result<Vec<_>>>()?;
                let site = CustomGradient { inputs: &x, outs: &out, douts: &douts };
                let dx = match (rule, custom) {
                    (Some(rule), _) => rule.gradient(&site),
                    (None, Some(custom)) => custom.gradient(&site),
                    (None, None) => unreachable!("matched above"),
                };
                dx.map_err(|e| e.at(at))?.into()
            }
        };
        for ((key, dx), needed) in inputs.iter().zip(dx).zip(&needs) {
            if let Some(dx) = dx
                && *needed
            {
                self.fits(op, *key, &dx)?;
                accumulate(grads, *key, dx, at)?;
            }
        }
        self.blame(len, index, at)
    }

    /// Whether a gradient goes to or through the value `key`.
    fn flows(&self, key: ValueKey) -> Result<bool> {
        if self.needs(key) {
            return Ok(true);
        }
        let mut state = table::lock(self.pass.context)?;
        let pool = record::current(&mut state, self.pass)?;
        Ok(!pool.values[key].stop && self.needs(pool.out(key).key))
    }

    /// A rule that gives a gradient of another shape is a fault of ours or of a custom operation.
    fn fits(&self, op: Op, key: ValueKey, dx: &Tensor) -> Result<()> {
        let dout = dx.try_out()?;
        let mut state = table::lock(self.pass.context)?;
        let out = record::current(&mut state, self.pass)?.out(key).out;
        if out != dout {
            bail!(Gradient, op.name(), "the rule gives {dout:?} for an operand {out:?}");
        }
        Ok(())
    }

    /// Makes the nodes recorded since `from` point to the line of the operation that they differentiate.
    fn blame(&self, from: usize, index: u32, at: At) -> Result<()> {
        let mut state = table::lock(self.pass.context)?;
        let pool = record::current(&mut state, self.pass)?;
        for node in &mut pool.nodes[from..] {
            (node.at, node.blamed) = (at, index);
        }
        Ok(())
    }
}

/// Adds a contribution that `at` gave rise to.
fn accumulate(grads: &mut FastMap<ValueKey, Tensor>, key: ValueKey, dx: Tensor, at: At) -> Result<()> {
    let sum = match grads.get(&key) {
        Some(before) => {
            let sum = Recorded { op: Op::Binary(Binary::Add), x: &[*before, dx], to: None, dtype: None };
            record::operation(None, sum, at)?
        }
        None => dx,
    };
    grads.insert(key, sum);
    Ok(())
}

/// The number of a version and the line that made it.
type Version = (u64, At);
/// A parameter and two of its versions.
type Twice = (OwnedKey, [Version; 2]);

/// Orders the trainable versions found, the first of each parameter, and tells of two of one parameter.
fn one_version_each(pool: &Pool, mut found: Vec<ValueKey>) -> (Vec<(OwnedKey, ValueKey)>, Option<Twice>) {
    found.sort_by_key(|k| (pool.values[*k].node, *k));
    let mut first: FastMap<OwnedKey, Version> = FastMap::default();
    let (mut params, mut twice) = (Vec::new(), None);
    for key in found {
        let value = pool.values[key];
        let (owned, version) = value.version.expect("only versions are collected");
        match first.get(&owned) {
            None => {
                first.insert(owned, (version, value.at));
                params.push((owned, key));
            }
            Some(before) if before.0 != version => {
                twice.get_or_insert((owned, [*before, (version, value.at)]));
            }
            Some(_) => {}
        }
    }
    (params, twice)
}
