//! Recording: the one way in which an operation enters a pass.

use smallvec::SmallVec;
use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Op, Out, Result, Shape, Ticket, bail, infer_all};

use crate::autocast;
use crate::flight;
use crate::line;
use crate::pass::{self, OpenPass};
use crate::profiling;
use crate::state::{At, Lease, Number, OwnedKey, PassNode, Pool, Source, Standing, State, Value, ValueKey};
use crate::table;
use crate::tensor::{PERSISTENT, Tensor};

/// What an operation is made of.
#[derive(Copy, Clone)]
pub(crate) struct Recorded<'a> {
    pub(crate) op: Op,
    pub(crate) x: &'a [Tensor],
    pub(crate) to: Option<Shape>,
    pub(crate) dtype: Option<DType>,
}

/// What a handle refers to.
pub(crate) struct Look {
    pub(crate) out: Out,
    pub(crate) standing: Standing,
}

impl Standing {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Standing::Queued => "queued",
            Standing::Computed(..) => "computed",
            Standing::Poisoned(_) => "poisoned",
        }
    }

    pub(crate) fn lease(&self) -> Option<&std::sync::Arc<Lease>> {
        match self {
            Standing::Computed(lease, _) => Some(lease),
            _ => None,
        }
    }
}

/// Follows a handle to its value.
pub(crate) fn look(state: &mut State, tensor: &Tensor) -> Result<Look> {
    if tensor.pool == PERSISTENT {
        let owned = owned(state, tensor)?;
        let owned = &state.owned[owned];
        let standing =
            owned.lease.clone().map_or(Standing::Queued, |lease| Standing::Computed(lease, Ticket(0)));
        return Ok(Look { out: owned.out, standing });
    }
    let pool = pool(state, tensor)?;
    let out = pool.out(tensor.value_key());
    let standing = match &pool.node(tensor.value_key()).source {
        Source::Lease(lease) | Source::Placed(lease) => {
            Standing::Computed(std::sync::Arc::clone(lease), Ticket(0))
        }
        _ => out.standing.clone(),
    };
    let out = out.out;
    let standing = match standing {
        Standing::Computed(lease, ticket) => match state.failed(ticket) {
            Some(error) => Standing::Poisoned(error.clone()),
            None => Standing::Computed(lease, ticket),
        },
        standing => standing,
    };
    Ok(Look { out, standing })
}

/// Shape and dtype of a handle's value.
pub(crate) fn out(state: &mut State, tensor: &Tensor) -> Result<Out> {
    if tensor.pool == PERSISTENT {
        let key = owned(state, tensor)?;
        return Ok(state.owned[key].out);
    }
    Ok(pool(state, tensor)?.out(tensor.value_key()).out)
}

/// The open pool of a handle of a pass.
pub(crate) fn pool<'s>(state: &'s mut State, tensor: &Tensor) -> Result<&'s mut Pool> {
    let now = state.pools.get(tensor.pool as usize).map_or(0, |cell| cell.generation);
    state.pool(tensor.pool, tensor.generation).ok_or_else(|| {
        let detail = format!(
            "handle of pass pool {}, generation {}, used after that pass ended (the pool is at generation {now}); \
             values that outlive a pass are kept, read or deferred",
            tensor.pool, tensor.generation
        );
        Error::new(ErrorKind::Stale, "tensor", detail).operand("made", Some(tensor.at))
    })
}

/// The owned value of a persistent handle, if the handle's version is the newest that this thread sees.
fn owned(state: &mut State, tensor: &Tensor) -> Result<OwnedKey> {
    let key = tensor.owned_key();
    let Some(owned) = state.owned.get(key) else {
        let detail = "handle of an owned value that was dropped (persistent pool)";
        return Err(Error::new(ErrorKind::Stale, "tensor", detail).operand("made", Some(tensor.at)));
    };
    let (mut now, mut at) = (owned.version, None);
    for open in pass::open_passes(tensor.context) {
        if let Some(pool) = state.pool(open.pool, open.generation)
            && let Some(newest) = pool.newest.get(&key)
        {
            let update = &pool.updates[*newest];
            (now, at) = (update.version, Some(update.at));
        }
    }
    if now as u32 != tensor.generation {
        let (name, made) = (&state.owned[key].name, state.owned[key].at);
        let detail = format!("{name}: version {}, now {now} (persistent pool)", tensor.generation);
        let error = Error::new(ErrorKind::Stale, "tensor", detail)
            .operand("made", Some(tensor.at))
            .operand(format!("{name} made"), Some(made));
        return Err(if at.is_some() { error.operand("replaced", at) } else { error });
    }
    Ok(key)
}

/// The pass in which an operation on `x` is recorded: that of its pass operands, the innermost where
/// they are of several passes of this thread; else the innermost pass that is open.
pub(crate) fn pass_of(x: &[Tensor], at: At) -> Result<OpenPass> {
    let Some(first) = x.first() else { bail!(Argument, "record", "no operand tells the pass") };
    if let Some(pass) = first.pass()
        && x.iter().all(|t| t.context == first.context && t.pass().is_none_or(|p| p == pass))
    {
        return Ok(pass);
    }
    let at = line::or(at);
    if let Some(other) = x.iter().find(|t| t.context != first.context) {
        return Err(Error::new(
            ErrorKind::Device,
            "record",
            "operands belong to different contexts; `copy_to` moves a kept value",
        )
        .at(at)
        .operand(table::name(first.context), Some(first.at))
        .operand(table::name(other.context), Some(other.at)));
    }
    let mut passes: SmallVec<[(OpenPass, At); 4]> = SmallVec::new();
    for t in x {
        if let Some(p) = t.pass()
            && !passes.iter().any(|(q, _)| *q == p)
        {
            passes.push((p, t.at));
        }
    }
    let open = pass::open_passes(first.context);
    match passes.as_slice() {
        [] => open.last().copied().ok_or_else(|| {
            Error::new(
                ErrorKind::Stale,
                "record",
                "no pass is open on this thread; operations belong inside `ctx.pass(|p| ..)`",
            )
            .at(at)
        }),
        [(pass, _)] => Ok(*pass),
        several => {
            // By when they were opened: `Pass::within` does not turn the inner of two into the outer.
            let depth = |p: &OpenPass| open.iter().position(|q| q == p);
            if let Some((stray, made)) = several.iter().find(|(p, _)| depth(p).is_none()) {
                let (other, other_at) = several.iter().find(|(p, _)| p != stray).expect("several differ");
                let name = |p: &OpenPass| format!("pass pool {}, generation {}", p.pool, p.generation);
                return Err(Error::new(
                    ErrorKind::Stale,
                    "record",
                    "operands belong to passes of which one is not around the other on this thread",
                )
                .at(at)
                .operand(name(stray), Some(made))
                .operand(name(other), Some(other_at)));
            }
            let (inner, _) = several.iter().max_by_key(|(p, _)| depth(p)).expect("several is not empty");
            Ok(*inner)
        }
    }
}

/// Records an operation: checks it, appends its node, gives the handle of its (first) output. What computes
/// with halves is recorded as f32 between two casts, so that it is rounded once.
pub(crate) fn operation(pass: Option<OpenPass>, what: Recorded<'_>, at: At) -> Result<Tensor> {
    let at = line::or(at);
    let _recording = profiling::recording();
    let half = match append(pass, what, at, true)? {
        Appended::Value(y) => return Ok(y),
        Appended::Half(half) => half,
    };
    let pass = match pass {
        Some(pass) => pass,
        None => pass_of(what.x, at)?,
    };
    let as_it_is = |what: Recorded<'_>| match append(Some(pass), what, at, false)? {
        Appended::Value(y) => Ok(y),
        Appended::Half(_) => unreachable!("halves were not asked about"),
    };
    let mut wide: SmallVec<[Tensor; 4]> = SmallVec::new();
    for x in what.x {
        let is_half = x.try_out()?.dtype == half;
        let cast = Recorded { op: Op::Cast, x: &[*x], to: None, dtype: Some(DType::F32) };
        wide.push(if is_half { as_it_is(cast)? } else { *x });
    }
    let y = as_it_is(Recorded { x: &wide, ..what })?;
    if y.try_out()?.dtype != DType::F32 || autocast::stays_wide() {
        return Ok(y);
    }
    as_it_is(Recorded { op: Op::Cast, x: &[y], to: None, dtype: Some(half) })
}

/// The half dtype that all float operands of a computing operation have.
fn half_of(op: Op, x: &[Out]) -> Option<DType> {
    if !op.computes() {
        return None;
    }
    let mut half = None;
    for Out { dtype, .. } in x {
        match half {
            _ if !dtype.is_float() => {}
            None => half = Some(*dtype),
            // Dtypes that differ are a mistake, which the rule for shapes tells.
            Some(first) if first != *dtype => return None,
            Some(_) => {}
        }
    }
    half.filter(|dtype| dtype.is_half())
}

/// What came of an operation.
enum Appended {
    Value(Tensor),
    /// Nothing: it computes with halves of this dtype.
    Half(DType),
}

/// Records an operation with several results, which takes halves as they are; gives all of them.
pub(crate) fn results(what: Recorded<'_>, at: At) -> Result<SmallVec<[Tensor; 3]>> {
    let _recording = profiling::recording();
    let (at, mut all) = (line::or(at), SmallVec::new());
    append_all(None, what, at, false, Some(&mut all))?;
    Ok(all)
}

/// Records an operation as it is, unless it is asked about halves and computes with them.
fn append(pass: Option<OpenPass>, what: Recorded<'_>, at: At, halves: bool) -> Result<Appended> {
    append_all(pass, what, at, halves, None)
}

/// As [`append`]; `all` gets every result.
fn append_all(
    pass: Option<OpenPass>,
    what: Recorded<'_>,
    at: At,
    halves: bool,
    all: Option<&mut SmallVec<[Tensor; 3]>>,
) -> Result<Appended> {
    let Recorded { op, x, to, dtype } = what;
    let pass = match pass {
        Some(pass) if x.iter().all(|t| t.pass().is_none_or(|p| p == pass)) => pass,
        Some(_) | None => pass_of(x, at)?,
    };
    let mut state = table::lock(pass.context)?;
    let ins = enter(&mut state, pass, x)?;
    let wide = state.backend.caps().f64;
    let pool = current(&mut state, pass)?;
    let outs: SmallVec<[Out; 4]> = ins.iter().map(|k| pool.out(*k).out).collect();
    if halves && let Some(half) = half_of(op, &outs) {
        return Ok(Appended::Half(half));
    }
    let describe = |mut error: Error| {
        for (t, out) in x.iter().zip(&outs) {
            error = error.operand(format!("{out:?}"), Some(t.at));
        }
        error.at(at)
    };
    let made = infer_all(op, &outs, to, dtype).map_err(describe)?;
    let out = made[0];
    if out.dtype == DType::F64 && !wide {
        return Err(describe(Error::new(ErrorKind::DType, op.name(), "this device does not store f64")));
    }
    if out.shape.elems() as u64 > u64::from(u32::MAX) {
        return Err(describe(Error::new(
            ErrorKind::Limit,
            op.name(),
            format!("{} has more than 2^32 - 1 elements", out.shape),
        )));
    }
    // A value that is never stored may be larger than a buffer; the planner refuses it where it is not.
    let grad = !pass::is_no_grad(pass);
    let node = node(op, ins, Source::Operation, grad, at);
    let key = pool.push(node, &made);
    if let Some(all) = all {
        let outs = pool.nodes.last().into_iter().flat_map(|node| &node.outs);
        all.extend(outs.map(|out| Tensor::of_pass(pass, out.key, at)));
    }
    if state.spend(pass)? {
        drop(state);
        flight::throttle(pass.context);
    }
    Ok(Appended::Value(Tensor::of_pass(pass, key, at)))
}

/// A fresh node.
pub(crate) fn node(op: Op, inputs: SmallVec<[ValueKey; 4]>, source: Source, grad: bool, at: At) -> PassNode {
    PassNode {
        op,
        inputs,
        outs: SmallVec::new(),
        after: SmallVec::new(),
        source,
        taken: None,
        ran: false,
        custom: None,
        rule: None,
        grad,
        checkpoint: 0,
        shared: false,
        phase: wgrad_profile::phase(),
        blamed: 0,
        at,
    }
}

/// The pool of an open pass.
pub(crate) fn current(state: &mut State, pass: OpenPass) -> Result<&mut Pool> {
    state
        .pool(pass.pool, pass.generation)
        .ok_or_else(|| Error::new(ErrorKind::Stale, "record", "the pass of these operands has ended"))
}

/// The keys in `pass` of operands that may come from the persistent pool or from passes around.
pub(crate) fn enter(state: &mut State, pass: OpenPass, x: &[Tensor]) -> Result<SmallVec<[ValueKey; 4]>> {
    x.iter().map(|t| enter_one(state, pass, t)).collect()
}

fn enter_one(state: &mut State, pass: OpenPass, t: &Tensor) -> Result<ValueKey> {
    if t.pass() == Some(pass) {
        pool(state, t)?;
        return Ok(t.value_key());
    }
    if t.pool == PERSISTENT {
        let key = owned(state, t)?;
        // An uncommitted version lives in the pass that made it.
        return owned_leaf(state, pass, key, t);
    }
    let out = out(state, t)?;
    let outer = t.pass().expect("owned values were handled above");
    let memo = (outer, t.value_key());
    let pool = current(state, pass)?;
    if let Some(key) = pool.outer.get(&memo) {
        return Ok(*key);
    }
    let source = Source::Outer { pass: outer, key: t.value_key() };
    let key = pool.push(node(Op::Input, SmallVec::new(), source, false, t.at), &[out]);
    pool.outer.insert(memo, key);
    Ok(key)
}

/// The leaf of an owned value's committed version in a pass.
fn owned_leaf(state: &mut State, pass: OpenPass, key: OwnedKey, t: &Tensor) -> Result<ValueKey> {
    let owned = &state.owned[key];
    let (out, version, trainable) = (owned.out, owned.version, owned.trainable);
    let Some(lease) = owned.lease.clone() else {
        let detail = format!("{} is made by a pass that has not ended", owned.name);
        return Err(Error::new(ErrorKind::Stale, "tensor", detail).operand("made", Some(t.at)));
    };
    let pool = current(state, pass)?;
    if let Some(leaf) = pool.leaves.get(&(key, version)) {
        return Ok(*leaf);
    }
    let leaf = pool.push(node(Op::Input, SmallVec::new(), Source::Lease(lease), true, t.at), &[out]);
    pool.values[leaf].version = Some((key, version));
    pool.tape.mark(1 + u32::from(trainable));
    pool.leaves.insert((key, version), leaf);
    Ok(leaf)
}

/// Records a leaf.
pub(crate) fn leaf(pass: OpenPass, source: Source, out: Out, at: At) -> Result<Tensor> {
    let at = line::or(at);
    let mut state = table::lock(pass.context)?;
    let pool = current(&mut state, pass)?;
    let key = pool.push(node(Op::Input, SmallVec::new(), source, true, at), &[out]);
    Ok(Tensor::of_pass(pass, key, at))
}

/// Records a host number as an input of the plan.
pub(crate) fn number(pass: OpenPass, number: Number, dtype: DType, at: At) -> Result<Tensor> {
    let at = line::or(at);
    let mut state = table::lock(pass.context)?;
    let pool = current(&mut state, pass)?;
    let out = Out { shape: Shape::SCALAR, dtype };
    let key = pool.push(node(Op::Scalar, SmallVec::new(), Source::Number(number), true, at), &[out]);
    Ok(Tensor::of_pass(pass, key, at))
}

/// Records the leaf of a constant table, uploaded at its first use in the context.
pub(crate) fn constant(
    pass: OpenPass,
    name: &'static str,
    make: fn() -> HostTensor,
    at: At,
) -> Result<Tensor> {
    let at = line::or(at);
    let mut state = table::lock(pass.context)?;
    if let Some(key) = current(&mut state, pass)?.tables.get(name) {
        return Ok(Tensor::of_pass(pass, *key, at));
    }
    let (source, out) = match state.tables.get(name) {
        Some((lease, out)) => (Source::Lease(std::sync::Arc::clone(lease)), *out),
        // Recording does not meet the device; the first submission that needs the table uploads it.
        None => {
            let data = make();
            let out = Out { shape: data.shape(), dtype: data.dtype() };
            (Source::Table(name, data), out)
        }
    };
    let pool = current(&mut state, pass)?;
    let key = pool.push(node(Op::Input, SmallVec::new(), source, false, at), &[out]);
    pool.tables.insert(name, key);
    Ok(Tensor::of_pass(pass, key, at))
}

/// A second handle to a value, at which gradients stop.
pub(crate) fn alias(tensor: &Tensor, at: At) -> Result<Tensor> {
    let at = line::or(at);
    let pass = pass_of(&[*tensor], at)?;
    let mut state = table::lock(pass.context)?;
    let key = enter_one(&mut state, pass, tensor)?;
    let pool = current(&mut state, pass)?;
    let value = pool.values[key];
    pool.tape.alias(key);
    let key = pool.values.insert(Value { stop: true, version: None, at, ..value });
    Ok(Tensor::of_pass(pass, key, at))
}
