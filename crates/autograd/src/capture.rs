//! Captured steps: recorded, and from then on submitted without recording.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use wgrad_graph::{Error, ErrorKind, Home, HostTensor, Out, Result, Stage};

use crate::context::Context;
use crate::cut::Cut;
use crate::deferred::{self, Cell, Deferred};
use crate::flight;
use crate::flush::{Bind, GoalHome, Recording};
use crate::pass::{self, Pass};
use crate::plans::Ready;
use crate::profiling;
use crate::record;
use crate::state::{At, Lease, Number, OwnedKey, Pool, Source, State};
use crate::table::{self, ContextId};
use crate::tensor::Tensor;

/// What a captured step takes: host tensors, in a tuple or a vector.
pub trait StepInputs {
    /// The same as values of the pass.
    type Tensors;
    /// The host tensors, in order.
    fn hosts(&self) -> Vec<HostTensor>;
    /// The values for the host tensors, in order.
    fn tensors(values: &[Tensor]) -> Self::Tensors;
}

/// What a captured step returns: tensors, in a tuple or a vector.
pub trait StepOutputs {
    /// The same as values that are read later.
    type Deferred;
    /// The tensors, in order.
    fn tensors(&self) -> Vec<Tensor>;
    /// The values to be read, in order.
    fn deferred(values: Vec<Deferred<f32>>) -> Self::Deferred;
}

impl StepInputs for Vec<HostTensor> {
    type Tensors = Vec<Tensor>;
    fn hosts(&self) -> Vec<HostTensor> {
        self.clone()
    }
    fn tensors(values: &[Tensor]) -> Vec<Tensor> {
        values.to_vec()
    }
}

impl StepOutputs for Vec<Tensor> {
    type Deferred = Vec<Deferred<f32>>;
    fn tensors(&self) -> Vec<Tensor> {
        self.clone()
    }
    fn deferred(values: Vec<Deferred<f32>>) -> Vec<Deferred<f32>> {
        values
    }
}

impl StepInputs for HostTensor {
    type Tensors = Tensor;
    fn hosts(&self) -> Vec<HostTensor> {
        vec![self.clone()]
    }
    fn tensors(values: &[Tensor]) -> Tensor {
        values[0]
    }
}

impl StepOutputs for Tensor {
    type Deferred = Deferred<f32>;
    fn tensors(&self) -> Vec<Tensor> {
        vec![*self]
    }
    fn deferred(values: Vec<Deferred<f32>>) -> Deferred<f32> {
        values.into_iter().next().expect("one tensor was given")
    }
}

/// What a captured step gives for one of its outputs.
type Number32 = Deferred<f32>;

impl StepInputs for () {
    type Tensors = ();
    fn hosts(&self) -> Vec<HostTensor> {
        Vec::new()
    }
    fn tensors(_: &[Tensor]) {}
}

impl StepOutputs for () {
    type Deferred = ();
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }
    fn deferred(_: Vec<Deferred<f32>>) {}
}

macro_rules! step_tuples {
    ($(($($name:ident $i:tt),*))*) => {$(
        impl StepInputs for ($(step_tuples!(@ HostTensor $name),)*) {
            type Tensors = ($(step_tuples!(@ Tensor $name),)*);
            fn hosts(&self) -> Vec<HostTensor> {
                vec![$(self.$i.clone()),*]
            }
            fn tensors(values: &[Tensor]) -> Self::Tensors {
                ($(values[$i],)*)
            }
        }

        impl StepOutputs for ($(step_tuples!(@ Tensor $name),)*) {
            type Deferred = ($(step_tuples!(@ Number32 $name),)*);
            fn tensors(&self) -> Vec<Tensor> {
                vec![$(self.$i),*]
            }
            fn deferred(values: Vec<Deferred<f32>>) -> Self::Deferred {
                let mut values = values.into_iter();
                ($(step_tuples!(@@ $name values),)*)
            }
        }
    )*};
    (@ $t:tt $name:ident) => { $t };
    (@@ $name:ident $values:ident) => { $values.next().expect("as many tensors were given") };
}
step_tuples!((A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3));

/// Where a leaf of a recorded step comes from in the next run.
enum Leaf {
    Input(usize),
    Owned(OwnedKey),
    Constant(Bind),
}

/// A step as it was recorded for one set of input shapes.
struct Recorded {
    ready: Option<Ready>,
    leaves: Vec<Leaf>,
    numbers: Vec<(Number, At)>,
    updates: Vec<(OwnedKey, usize)>,
    outputs: Vec<(Out, usize)>,
    counts: Vec<(Arc<AtomicU64>, u64)>,
    /// Whether a second recording agreed, so that the step may be replayed.
    agreed: bool,
}

type Key = SmallVec<[Out; 4]>;

/// A captured step. The first two runs for each set of input shapes record (the second proves that
/// nothing but inputs, owned values and scalars differs); later runs submit without recording.
pub struct Step<I, O, F> {
    context: Context,
    f: F,
    recorded: Mutex<HashMap<Key, Recorded>>,
    types: PhantomData<fn(I) -> O>,
}

impl Context {
    /// Captures `f` as a step: `f` records with its inputs as values of the pass and returns what is to
    /// be read. Numbers that change from run to run must be inputs, `Scalar`s or counters: a plain float
    /// that differs between two recordings is an error. Reading inside the step is an error.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let sum = Kept::zeros(&ctx, [])?;
    /// let step = ctx.capture(|_, x: Tensor| {
    ///     sum.set(sum.t() + x);
    ///     Ok(x * 2.0)
    /// });
    /// for i in 1..=4 {
    ///     let doubled = step.run(HostTensor::new([], &[i as f32])?)?;
    ///     assert_eq!(doubled.read()?.to_vec::<f32>(), [2.0 * i as f32]);
    /// }
    /// assert_eq!(sum.read()?.to_vec::<f32>(), [10.0]);
    /// # Ok(()) }
    /// ```
    pub fn capture<I: StepInputs, O: StepOutputs, F: Fn(&Pass, I::Tensors) -> Result<O>>(
        &self,
        f: F,
    ) -> Step<I, O, F> {
        Step { context: self.clone(), f, recorded: Mutex::new(HashMap::new()), types: PhantomData }
    }
}

impl<I: StepInputs, O: StepOutputs, F: Fn(&Pass, I::Tensors) -> Result<O>> Step<I, O, F> {
    /// Runs the step as one pass.
    ///
    /// # Errors
    /// What the step returns; what the device meets; `Argument` when a plain float differs between two
    /// recordings or a value is read inside the step.
    #[track_caller]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a step consumes its inputs; callers write them in place"
    )]
    pub fn run(&self, inputs: I) -> Result<O::Deferred> {
        let hosts = inputs.hosts();
        let key: Key = hosts.iter().map(|h| Out { shape: h.shape(), dtype: h.dtype() }).collect();
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = recorded.get(&key)
            && before.agreed
            && let Some(outputs) = replay(self.context.id(), before, &hosts)?
        {
            return Ok(O::deferred(outputs));
        }
        let before = recorded.get(&key);
        let (outputs, mut now) = self.record(&hosts, before)?;
        now.agreed = before.is_some_and(|before| now.repeats(before));
        let old = recorded.insert(key, now);
        drop((recorded, old));
        Ok(O::deferred(outputs))
    }

    #[track_caller]
    fn record(
        &self,
        hosts: &[HostTensor],
        before: Option<&Recorded>,
    ) -> Result<(Vec<Deferred<f32>>, Recorded)> {
        let at = Location::caller();
        let pass = self.context.begin()?;
        {
            let mut state = table::lock(self.context.id())?;
            record::current(&mut state, pass.id())?.captured = true;
        }
        let values = hosts.iter().map(|h| pass.input(h.clone())).collect::<Result<Vec<_>>>()?;
        let outs = (self.f)(&pass, I::tensors(&values))?.tensors();
        let outputs = outs.iter().map(|t| deferred::defer(t, at)).collect::<Result<Vec<_>>>()?;
        let check =
            |pool: &Pool, cut: &Cut| before.map_or(Ok(()), |before| agree(before, pool, cut, &values));
        let recorded = pass.commit(check, |pool, recording| recorded(pool, recording, &values, &outs))?;
        Ok((outputs, recorded))
    }
}

/// What a committed pass has to be repeated from.
fn recorded(pool: &Pool, recording: Recording, inputs: &[Tensor], outs: &[Tensor]) -> Recorded {
    let Recording { ready, leaves, numbers, updates: updated, homes } = recording;
    let number = |node: &u32| match &pool.nodes[*node as usize] {
        n if matches!(n.source, Source::Number(_)) => {
            let Source::Number(number) = &n.source else { unreachable!("just matched") };
            (number.clone(), n.at)
        }
        _ => unreachable!("a scalar node has a number"),
    };
    let root = |home: &GoalHome| match home {
        GoalHome::Root(root) => Some(*root),
        GoalHome::Before => None,
    };
    // What the step itself deferred comes before its outputs, and is not of the same pass in a replay.
    let (set, read) = homes.split_at(homes.len() - outs.len());
    let owned = updated.iter().map(|i| pool.updates[*i].owned);
    let updates: Vec<_> = owned.zip(set).filter_map(|(o, h)| Some((o, root(h)?))).collect();
    let outputs: Vec<_> = read.iter().filter_map(root).zip(&ready).collect::<Vec<_>>();
    let outputs: Vec<_> = outputs.into_iter().map(|(root, ready)| (ready.plan.output(root), root)).collect();
    // A goal that needs no computing (a leaf handed through) has no root to replay, and values of passes
    // around differ from run to run; record such steps anew.
    let whole = updates.len() + outputs.len() == homes.len() && pool.outer.is_empty();
    Recorded {
        ready: if whole { ready } else { None },
        leaves: leaves.iter().map(|node| leaf(pool, *node, inputs)).collect(),
        numbers: numbers.iter().map(number).collect(),
        updates,
        outputs,
        counts: pool.counts.clone(),
        agreed: false,
    }
}

fn leaf(pool: &Pool, node: u32, inputs: &[Tensor]) -> Leaf {
    let n = &pool.nodes[node as usize];
    let key = n.outs[0].key;
    if let Some(i) = inputs.iter().position(|t| t.value_key() == key) {
        return Leaf::Input(i);
    }
    match (&n.source, pool.values[key].version) {
        (Source::Lease(_), Some((owned, _))) => Leaf::Owned(owned),
        (Source::Lease(lease) | Source::Placed(lease), _) => Leaf::Constant(Bind::Lease(Arc::clone(lease))),
        (Source::Host(data), _) => Leaf::Constant(Bind::Host(data.clone())),
        _ => unreachable!("a captured pass computes nothing before its end"),
    }
}

/// Whether a recording of the same structure has the same constants, which a replay would take as given.
fn agree(before: &Recorded, pool: &Pool, cut: &Cut, inputs: &[Tensor]) -> Result<()> {
    if before.ready.as_ref().is_none_or(|ready| *ready.graph != cut.graph) {
        return Ok(());
    }
    let differs = |what: String, at| Err(Error::new(ErrorKind::Argument, "capture", what).at(at));
    for ((a, _), node) in before.numbers.iter().zip(&cut.numbers) {
        let node = &pool.nodes[*node as usize];
        if let (Number::Literal(a), Source::Number(Number::Literal(b))) = (a, &node.source)
            && a.to_bits() != b.to_bits()
        {
            let rule = format!(
                "a plain number was {a} in one recording and {b} in the next; a number that changes is a `Scalar`"
            );
            return differs(rule, node.at);
        }
    }
    for (a, (_, node, _)) in before.leaves.iter().zip(&cut.leaves) {
        if let (Leaf::Constant(Bind::Host(a)), Leaf::Constant(Bind::Host(b))) = (a, leaf(pool, *node, inputs))
            && *a != b
        {
            let rule = "data made inside the step differ between two recordings; data that change are inputs of the step";
            return differs(rule.to_owned(), pool.nodes[*node as usize].at);
        }
    }
    Ok(())
}

impl Recorded {
    /// Whether the step that was recorded is the same as before, so that it may be replayed.
    fn repeats(&self, before: &Recorded) -> bool {
        let number = |(a, b): (&(Number, At), &(Number, At))| match (&a.0, &b.0) {
            (Number::Literal(a), Number::Literal(b)) => a.to_bits() == b.to_bits(),
            (Number::Cell(a), Number::Cell(b)) => Arc::ptr_eq(a, b),
            (Number::Count(a, _, n), Number::Count(b, _, m)) => Arc::ptr_eq(a, b) && n == m,
            (Number::Step, Number::Step) => true,
            _ => false,
        };
        let leaf = |(a, b): (&Leaf, &Leaf)| match (a, b) {
            (Leaf::Input(a), Leaf::Input(b)) => a == b,
            (Leaf::Owned(a), Leaf::Owned(b)) => a == b,
            (Leaf::Constant(Bind::Host(a)), Leaf::Constant(Bind::Host(b))) => a == b,
            (Leaf::Constant(Bind::Lease(a)), Leaf::Constant(Bind::Lease(b))) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let plan = |step: &Recorded| step.ready.as_ref().map(|ready| Arc::as_ptr(&ready.plan));
        self.ready.is_some()
            && plan(self) == plan(before)
            && self.updates == before.updates
            && self.numbers.iter().zip(&before.numbers).all(number)
            && self.leaves.iter().zip(&before.leaves).all(leaf)
    }
}

/// Submits a recorded step again; `None` where it has to be recorded anew.
fn replay(context: ContextId, step: &Recorded, inputs: &[HostTensor]) -> Result<Option<Vec<Deferred<f32>>>> {
    let Some(ready) = &step.ready else { return Ok(None) };
    let _plan = profiling::stage(context, Stage::Plan);
    let mut state = table::lock(context)?;
    state.alive()?;
    if let Some((_, error)) = state.untold.take() {
        return Err(error);
    }
    // A pass around may have queued versions that a recording would see.
    for open in pass::open_passes(context) {
        if state.pool(open.pool, open.generation).is_some_and(|pool| !pool.updates.is_empty()) {
            return Ok(None);
        }
    }
    let Some(binds) = binds(&state, step, ready, inputs) else { return Ok(None) };
    let pass_step = state.next_step();
    let numbers: Vec<f64> = step.numbers.iter().map(|(n, _)| n.now(pass_step)).collect();
    let leases = state.run(ready, &binds, &numbers)?;
    drop(binds);
    for (owned, root) in &step.updates {
        if let Some(owned) = state.owned.get_mut(*owned) {
            owned.lease = Some(Arc::clone(&leases[*root]));
            owned.version += 1;
        }
    }
    let newest = state.newest;
    let outputs = step.outputs.iter().map(|(out, root)| {
        let cell = Cell::ready(Arc::clone(&leases[*root]), *out, newest);
        (Arc::downgrade(&cell), Deferred::of(context, cell))
    });
    let (cells, outputs): (Vec<_>, Vec<_>) = outputs.unzip();
    state.deferred.retain(|cell| cell.strong_count() > 0);
    state.deferred.extend(cells);
    state.commit_counts(&step.counts, pass_step);
    drop(state);
    flight::throttle(context);
    Ok(Some(outputs))
}

/// What each leaf is bound to now; `None` where an owned value has gone or is shared with another, so
/// that it cannot be updated in place as recorded.
fn binds(state: &State, step: &Recorded, ready: &Ready, inputs: &[HostTensor]) -> Option<Vec<Bind>> {
    let mut binds = Vec::with_capacity(step.leaves.len());
    for leaf in &step.leaves {
        binds.push(match leaf {
            Leaf::Input(i) => Bind::Host(inputs[*i].clone()),
            Leaf::Constant(bind) => bind.clone(),
            Leaf::Owned(owned) => Bind::Lease(Arc::clone(state.owned.get(*owned)?.lease.as_ref()?)),
        });
    }
    let alone = |lease: &Arc<Lease>| Arc::strong_count(lease) == 2;
    for output in &ready.plan.outputs {
        if let Home::InPlace(leaf) = output.home
            && let Bind::Lease(lease) = &binds[leaf as usize]
            && !alone(lease)
        {
            return None;
        }
    }
    Some(binds)
}
