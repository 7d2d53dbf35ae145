//! Values that outlive passes: parameters, other kept state, host numbers and counters. They end on
//! drop and lend handles.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wgrad_graph::{DType, ErrorKind, HostTensor, Out, Result, Shape, bail};

use crate::context::Context;
use crate::pass;
use crate::placed::{Placed, Reserved};
use crate::record;
use crate::state::{At, CountFn, Lease, Number, Owned, OwnedKey, Source, Update, Value};
use crate::table::{self, ContextId};
use crate::tensor::Tensor;

/// The persistent slot of an owned value; the slot ends with this.
struct Slot {
    context: Context,
    key: OwnedKey,
    name: String,
    out: Out,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let ended = table::lock(self.context.id()).ok().and_then(|mut state| state.owned.remove(self.key));
        drop(ended);
    }
}

impl Slot {
    fn new(context: &Context, name: &str, data: &HostTensor, trainable: bool, at: At) -> Result<Slot> {
        let out = Out { shape: data.shape(), dtype: data.dtype() };
        let mut state = table::lock(context.id())?;
        if out.dtype == DType::F64 && !state.backend.caps().f64 {
            bail!(DType, name, "this device does not store f64");
        }
        pass::fits(state.backend.caps(), name, out)?;
        let lease = Some(state.upload(data)?);
        let owned = Owned { name: name.to_owned(), out, trainable, version: 1, lease, at };
        let key = state.owned.insert(owned);
        Ok(Slot { context: context.clone(), key, name: name.to_owned(), out })
    }

    /// The newest version that this thread sees: one queued in an open pass, else the committed one.
    fn tensor(&self, at: At) -> Tensor {
        let id = self.context.id();
        let Ok(mut state) = table::lock(id) else { return Tensor::of_owned(id, self.key, 0, at) };
        for open in pass::open_passes(id).into_iter().rev() {
            if let Some(pool) = state.pool(open.pool, open.generation)
                && let Some(newest) = pool.newest.get(&self.key)
            {
                return Tensor::of_pass(open, pool.updates[*newest].value, at);
            }
        }
        let version = state.owned.get(self.key).map_or(0, |o| o.version);
        Tensor::of_owned(id, self.key, version, at)
    }

    fn set(&self, value: Tensor, at: At) -> Result<()> {
        let out = value.try_out()?;
        if out != self.out {
            let rule = format!("{}: a value {out:?} cannot replace {:?}", self.name, self.out);
            let kind = if out.dtype == self.out.dtype { ErrorKind::Shape } else { ErrorKind::DType };
            return Err(wgrad_graph::Error::new(kind, "set", rule)
                .at(at)
                .operand(format!("{out:?}"), Some(value.at)));
        }
        if value.context != self.context.id() {
            let rule =
                format!("{}: the value belongs to another context; `copy_to` moves kept values", self.name);
            return Err(wgrad_graph::Error::new(ErrorKind::Device, "set", rule)
                .at(at)
                .operand(table::name(self.context.id()), None)
                .operand(table::name(value.context), Some(value.at)));
        }
        let pass = record::pass_of(&[value], at)?;
        let mut state = table::lock(pass.context)?;
        let key = record::enter(&mut state, pass, &[value])?[0];
        let (committed, trainable) = (state.owned[self.key].version, state.owned[self.key].trainable);
        // Where a pass around has queued a version, this one follows it.
        let mut newest = committed;
        for open in pass::open_passes(pass.context) {
            if let Some(pool) = state.pool(open.pool, open.generation)
                && let Some(update) = pool.newest.get(&self.key)
            {
                newest = newest.max(pool.updates[*update].version);
            }
        }
        let pool = record::current(&mut state, pass)?;
        let version = newest + 1;
        let value = Value { stop: true, version: Some((self.key, version)), at, ..pool.values[key] };
        pool.tape.alias(key);
        pool.tape.mark(1 + u32::from(trainable));
        let value = pool.values.insert(value);
        pool.newest.insert(self.key, pool.updates.len());
        pool.updates.push(Update { owned: self.key, value, base: committed, version, at });
        Ok(())
    }

    /// Memory for the next version: the value's own where nothing else uses it, else new.
    fn reserve(&self) -> Result<Reserved> {
        let id = self.context.id();
        let state = table::lock(id)?;
        state.alive()?;
        let own = state.owned.get(self.key).and_then(|owned| owned.lease.as_ref());
        if let Some(lease) = own.filter(|lease| Arc::strong_count(lease) == 1) {
            return Ok(Reserved::new(id, Some(Arc::clone(lease)), self.out));
        }
        let bytes = state.backend.caps().value_bytes(self.out.shape.elems(), self.out.dtype);
        state.room(false).take(bytes)?;
        let backend = Arc::clone(&state.backend);
        drop(state);
        Ok(Reserved::new(id, Some(Lease::new(&backend, bytes)?), self.out))
    }

    /// Makes what was placed the next version.
    fn take(&self, placed: &Placed) -> Result<()> {
        let (context, source, out) = placed.parts();
        if (context, out) != (self.context.id(), self.out) {
            bail!(Argument, "take", "{}: {placed:?} is no value {:?} of its context", self.name, self.out);
        }
        let mut state = table::lock(context)?;
        let lease = match source {
            Source::Placed(lease) => Arc::clone(lease),
            Source::Host(data) => state.upload(data)?,
            _ => bail!(Argument, "take", "{}: {placed:?} has no data", self.name),
        };
        let Some(owned) = state.owned.get_mut(self.key) else { return Ok(()) };
        owned.version += 1;
        let old = owned.lease.replace(lease);
        drop(state);
        drop(old);
        Ok(())
    }

    fn read(&self) -> Result<HostTensor> {
        let at = Location::caller();
        loop {
            let newest = self.tensor(at);
            match newest.read() {
                // Another thread has committed a version in between; the newest is what was asked for.
                Err(error)
                    if error.kind() == ErrorKind::Stale
                        && self.tensor(at).generation != newest.generation => {}
                read => return read,
            }
        }
    }
}

/// Identity of a parameter.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId {
    cell: u32,
    generation: u32,
    key: OwnedKey,
}

impl ParamId {
    pub(crate) fn new(context: ContextId, key: OwnedKey) -> ParamId {
        ParamId { cell: context.cell, generation: context.generation, key }
    }
}

impl fmt::Debug for ParamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParamId({:?})", self.key)
    }
}

macro_rules! owned_methods {
    () => {
        /// A handle to the newest version: one that an open pass of this thread has queued, else the
        /// committed one. Gradients end at it.
        #[track_caller]
        pub fn t(&self) -> Tensor {
            self.0.tensor(Location::caller())
        }

        /// Makes `value` the next version, committed when the pass that computes it is.
        ///
        /// # Panics
        /// When shape, dtype or context differ, or no pass is open.
        #[track_caller]
        pub fn set(&self, value: Tensor) {
            if let Err(error) = self.0.set(value, Location::caller()) {
                panic!("{error}");
            }
        }

        /// As `set`.
        ///
        /// # Errors
        /// `Shape`, `DType`, `Device`, `Stale`.
        #[track_caller]
        pub fn try_set(&self, value: Tensor) -> Result<()> {
            self.0.set(value, Location::caller())
        }

        /// The newest version's elements.
        ///
        /// # Errors
        /// What the device meets.
        pub fn read(&self) -> Result<HostTensor> {
            self.0.read()
        }

        /// The name given when it was made.
        pub fn name(&self) -> &str {
            &self.0.name
        }

        /// Sizes of the axes.
        pub fn shape(&self) -> Shape {
            self.0.out.shape
        }

        /// Type of the elements.
        pub fn dtype(&self) -> DType {
            self.0.out.dtype
        }

        /// The context on which the value lives.
        pub fn context(&self) -> &Context {
            &self.0.context
        }

        /// The number of the committed version; it counts updates.
        pub fn version(&self) -> u64 {
            let state = table::lock(self.0.context.id());
            state.ok().and_then(|s| s.owned.get(self.0.key).map(|o| o.version)).unwrap_or(0)
        }
    };
}

/// A trainable value. Clones are the same parameter; it ends with the last of them.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let w = Param::new(&ctx, "w", HostTensor::new([], &[3.0f32])?)?;
/// ctx.pass(|_| {
///     let grads = w.t().square().backward()?;
///     let dw = grads.get(&w).expect("the loss depends on w");
///     w.set(w.t() - dw * 0.5);
///     Ok(())
/// })?;
/// assert_eq!(w.read()?.to_vec::<f32>(), [0.0]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Param(Arc<Slot>);

impl Param {
    /// A parameter with these first values.
    ///
    /// # Errors
    /// `DType` when it is not of floats; `OutOfMemory`, `Lost`.
    #[track_caller]
    pub fn new(context: &Context, name: &str, data: impl Into<HostTensor>) -> Result<Param> {
        let data = data.into();
        if !data.dtype().is_float() {
            bail!(DType, name, "a parameter is of floats, not {}", data.dtype());
        }
        Ok(Param(Arc::new(Slot::new(context, name, &data, true, Location::caller())?)))
    }

    owned_methods!();

    /// What tells this parameter from every other.
    pub fn id(&self) -> ParamId {
        ParamId::new(self.0.context.id(), self.0.key)
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param({} {:?}, version {})", self.name(), self.0.out, self.version())
    }
}

/// Any other value that is carried over passes: statistics, recurrent state, caches, counts.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let sum = Kept::zeros(&ctx, [2])?;
/// for _ in 0..3 {
///     ctx.pass(|p| {
///         sum.set(sum.t() + p.input(HostTensor::new([2], &[1.0f32, 2.0])?)?);
///         Ok(())
///     })?;
/// }
/// assert_eq!(sum.read()?.to_vec::<f32>(), [3.0, 6.0]);
/// # Ok(()) }
/// ```
pub struct Kept(Slot);

impl Kept {
    /// A kept value with these first values.
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`; `DType` when the device does not store the dtype.
    #[track_caller]
    pub fn new(context: &Context, data: impl Into<HostTensor>) -> Result<Kept> {
        Kept::named(context, "kept", data)
    }

    /// A kept value with a name for messages.
    ///
    /// # Errors
    /// As [`Kept::new`].
    #[track_caller]
    pub fn named(context: &Context, name: &str, data: impl Into<HostTensor>) -> Result<Kept> {
        Ok(Kept(Slot::new(context, name, &data.into(), false, Location::caller())?))
    }

    /// Zeros (f32).
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`.
    #[track_caller]
    pub fn zeros(context: &Context, shape: impl Into<Shape>) -> Result<Kept> {
        let shape = shape.into();
        Kept::new(context, HostTensor::new(shape, &vec![0f32; shape.elems()])?)
    }

    owned_methods!();

    /// Memory for the next version, to be filled from the host and [taken](Kept::take): the value's own where no open
    /// pass and nothing else uses it, which is undefined from the filling on, else new memory beside it.
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`.
    pub fn reserve(&self) -> Result<Reserved> {
        self.0.reserve()
    }

    /// Makes what was placed on its context the next version, at once and without a copy.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let sum = Kept::zeros(&ctx, [2])?;
    /// let placed = sum.reserve()?.fill(&HostTensor::new([2], &[1.0f32, 2.0])?)?;
    /// sum.take(&placed)?;
    /// assert_eq!((sum.read()?.to_vec::<f32>(), sum.version()), (vec![1.0, 2.0], 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Argument` where it is of another context, shape or dtype; `OutOfMemory`, `Lost`.
    pub fn take(&self, placed: &Placed) -> Result<()> {
        self.0.take(placed)
    }

    /// The same values on another context.
    ///
    /// # Errors
    /// What either device meets.
    #[track_caller]
    pub fn copy_to(&self, context: &Context) -> Result<Kept> {
        Kept::named(context, self.name(), self.read()?)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} {:?}, version {})", self.name(), self.0.out, self.version())
    }
}

impl Tensor {
    /// Keeps the value beyond its pass, from the pass's end on.
    ///
    /// # Errors
    /// `Stale` when the value has ended.
    #[track_caller]
    pub fn keep(self) -> Result<Kept> {
        let at = Location::caller();
        let out = self.try_out()?;
        let context = Context::find(self.context)?;
        let key = {
            let mut state = table::lock(context.id())?;
            let owned = Owned { name: "kept".to_owned(), out, trainable: false, version: 0, lease: None, at };
            state.owned.insert(owned)
        };
        let slot = Slot { context, key, name: "kept".to_owned(), out };
        slot.set(self, at)?;
        Ok(Kept(slot))
    }
}

/// A number on the host that a step reads when it is submitted: a learning rate, a position, a bound.
/// Clones share it.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let rate = Scalar::new(0.5);
/// let scaled = || -> wgrad::Result<f32> {
///     ctx.pass(|p| (p.input(HostTensor::new([], &[8.0f32])?)? * &rate).item())
/// };
/// assert_eq!(scaled()?, 4.0);
/// rate.set(0.25);                       // the same plan runs with the new number
/// assert_eq!(scaled()?, 2.0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Scalar(ScalarFrom);

#[derive(Clone)]
enum ScalarFrom {
    Cell(Arc<AtomicU64>),
    Count(Arc<AtomicU64>, CountFn),
}

impl Scalar {
    /// A scalar with this first value.
    pub fn new(value: f64) -> Scalar {
        Scalar(ScalarFrom::Cell(Arc::new(AtomicU64::new(value.to_bits()))))
    }

    /// Changes the number for submissions from now on. A scalar that follows a counter is not changed.
    pub fn set(&self, value: f64) {
        if let ScalarFrom::Cell(cell) = &self.0 {
            cell.store(value.to_bits(), Ordering::Release);
        }
    }

    /// The number now.
    pub fn value(&self) -> f64 {
        match &self.0 {
            ScalarFrom::Cell(cell) => f64::from_bits(cell.load(Ordering::Acquire)),
            ScalarFrom::Count(counter, f) => f(counter.load(Ordering::Acquire)),
        }
    }

    /// The number as a value of the pass that an operation on `like` belongs to.
    #[track_caller]
    pub(crate) fn tensor_as(&self, like: Tensor, dtype: DType) -> Result<Tensor> {
        let at = Location::caller();
        let pass = record::pass_of(&[like], at)?;
        let number = match &self.0 {
            ScalarFrom::Cell(cell) => Number::Cell(Arc::clone(cell)),
            ScalarFrom::Count(counter, f) => {
                let mut state = table::lock(pass.context)?;
                let added = record::current(&mut state, pass)?.counted(counter);
                Number::Count(Arc::clone(counter), Arc::clone(f), added)
            }
        };
        record::number(pass, number, dtype, at)
    }

    /// The number as a value of the pass that an operation on `like` belongs to: of its dtype where that is
    /// of floats, else f32.
    #[track_caller]
    pub(crate) fn tensor(&self, like: Tensor) -> Result<Tensor> {
        let dtype = like.try_out()?.dtype;
        self.tensor_as(like, if dtype.is_float() { dtype } else { DType::F32 })
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scalar({})", self.value())
    }
}

/// A count on the host that moves only with passes that are committed. Clones share it.
#[derive(Clone)]
pub struct Counter {
    context: ContextId,
    count: Arc<AtomicU64>,
}

impl Counter {
    /// A counter at 0.
    pub fn new(context: &Context) -> Counter {
        Counter { context: context.id(), count: Arc::new(AtomicU64::new(0)) }
    }

    /// The committed count.
    pub fn value(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Sets the committed count, as when a saved state is loaded.
    pub fn restore(&self, count: u64) {
        self.count.store(count, Ordering::Release);
    }

    /// Makes the count this one when the innermost open pass is committed, with what that pass sets besides.
    ///
    /// # Errors
    /// `Stale` when no pass is open on this thread; `Argument` in a captured step.
    pub fn set(&self, count: u64) -> Result<()> {
        let Some(open) = pass::open_passes(self.context).pop() else {
            bail!(Stale, "set", "no pass is open on this thread");
        };
        let mut state = table::lock(self.context)?;
        let pool = record::current(&mut state, open)?;
        if pool.captured {
            bail!(Argument, "set", "a captured step counts on; it cannot set a count");
        }
        let now = self.value().wrapping_add(pool.counted(&self.count));
        pool.counts.push((Arc::clone(&self.count), count.wrapping_sub(now)));
        Ok(())
    }

    /// Counts one more in the innermost open pass, for good when that is committed; the count including
    /// what the pass has added.
    ///
    /// # Errors
    /// `Stale` when no pass is open on this thread.
    pub fn bump(&self) -> Result<u64> {
        let Some(open) = pass::open_passes(self.context).pop() else {
            bail!(Stale, "bump", "no pass is open on this thread");
        };
        let mut state = table::lock(self.context)?;
        let pool = record::current(&mut state, open)?;
        pool.counts.push((Arc::clone(&self.count), 1));
        Ok(self.value().wrapping_add(pool.counted(&self.count)))
    }

    /// A scalar that is `f` of the count, including what its pass has added where it is used.
    pub fn scalar(&self, f: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Scalar {
        Scalar(ScalarFrom::Count(Arc::clone(&self.count), Arc::new(f)))
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({})", self.value())
    }
}

impl Context {
    /// A host number that steps read when they are submitted.
    pub fn scalar(&self, value: f64) -> Scalar {
        Scalar::new(value)
    }
}
