//! Passes: the life of the values that a step computes, and a transaction on owned values.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use smallvec::SmallVec;
use wgrad_graph::{Caps, Error, ErrorKind, Out, Result, Stage, bail};

use crate::context::Context;
use crate::cut::Cut;
use crate::dear;
use crate::flight;
use crate::flush::Recording;
use crate::placed::Given;
use crate::profiling;
use crate::record;
use crate::state::{At, Pool, PoolCell, Source};
use crate::table::{self, ContextId};
use crate::tensor::Tensor;

/// An open pass as its thread sees it.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub(crate) struct OpenPass {
    pub(crate) context: ContextId,
    pub(crate) pool: u32,
    pub(crate) generation: u32,
}

thread_local! {
    /// The passes open on this thread, outermost first.
    static OPEN: RefCell<Vec<OpenPass>> = const { RefCell::new(Vec::new()) };
    /// For each `no_grad` that is running: the pass it holds in.
    static NO_GRAD: RefCell<Vec<OpenPass>> = const { RefCell::new(Vec::new()) };
}

/// The passes of `context` open on this thread, outermost first.
pub(crate) fn open_passes(context: ContextId) -> SmallVec<[OpenPass; 4]> {
    OPEN.with_borrow(|open| open.iter().filter(|p| p.context == context).copied().collect())
}

/// The context of the innermost pass open on this thread.
pub(crate) fn innermost() -> Option<ContextId> {
    OPEN.with_borrow(|open| open.last().map(|p| p.context))
}

/// Whether gradients are switched off in `pass` on this thread.
pub(crate) fn is_no_grad(pass: OpenPass) -> bool {
    NO_GRAD.with_borrow(|scopes| scopes.contains(&pass))
}

/// Takes the last entry equal to `pass` off a thread's list when dropped, also on unwind.
pub(crate) struct Scope {
    list: &'static std::thread::LocalKey<RefCell<Vec<OpenPass>>>,
    pass: OpenPass,
}

/// Makes `pass` the innermost of this thread until the guard is dropped.
pub(crate) fn inside(pass: OpenPass) -> Scope {
    Scope::enter(&OPEN, pass)
}

impl Scope {
    fn enter(list: &'static std::thread::LocalKey<RefCell<Vec<OpenPass>>>, pass: OpenPass) -> Scope {
        list.with_borrow_mut(|l| l.push(pass));
        Scope { list, pass }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // A thread that ends takes its lists along; then there is nothing to leave.
        let _ = self.list.try_with(|list| {
            let mut list = list.borrow_mut();
            if let Some(at) = list.iter().rposition(|p| *p == self.pass) {
                list.remove(at);
            }
        });
    }
}

/// An open pass. [`Pass::end`] commits it, dropping it discards it; then its handles are stale.
pub struct Pass {
    context: Context,
    open: OpenPass,
    ended: Cell<bool>,
    scope: Scope,
    /// A pass belongs to the thread that opened it.
    local: PhantomData<*const ()>,
}

impl Pass {
    pub(crate) fn open(context: &Context, at: At) -> Result<Pass> {
        let mut state = table::lock(context.id())?;
        state.alive()?;
        if let Some((_, error)) = state.untold.take() {
            return Err(error);
        }
        let step = state.next_step();
        let index = match state.free_pools.pop() {
            Some(index) => index,
            None => {
                state.pools.push(PoolCell::default());
                state.pools.len() as u32 - 1
            }
        };
        let within_bytes = state.config.within_bytes;
        let mut pool = match state.spare_pools.pop() {
            Some(pool) => pool,
            None => Box::new(Pool::new(step, at)),
        };
        pool.restart(step, at);
        pool.within_bytes = within_bytes;
        let cell = &mut state.pools[index as usize];
        cell.pool = Some(pool);
        let open = OpenPass { context: context.id(), pool: index, generation: cell.generation };
        drop(state);
        Ok(Pass {
            context: context.clone(),
            open,
            ended: Cell::new(false),
            scope: Scope::enter(&OPEN, open),
            local: PhantomData,
        })
    }

    /// The context of the pass.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn id(&self) -> OpenPass {
        self.open
    }

    /// Computes what outlives the pass (updates, kept and deferred values), commits it, and ends the
    /// pass.
    ///
    /// # Errors
    /// What the device meets; nothing is committed then.
    pub fn end(self) -> Result<()> {
        self.commit(|_, _| Ok(()), |_, _| ())
    }

    /// Commits the pass unless `check` objects; `then` sees its pool and what the final flush did.
    pub(crate) fn commit<T>(
        &self,
        check: impl FnOnce(&Pool, &Cut) -> Result<()>,
        then: impl FnOnce(&Pool, Recording) -> T,
    ) -> Result<T> {
        let _commit = profiling::stage(self.open.context, Stage::Commit);
        let mut state = table::lock(self.open.context)?;
        let result = state.finish(self.open.pool, check);
        let pool = self.close(&mut state);
        drop(state);
        flight::throttle(self.open.context);
        let pool = pool.expect("a pass is committed once");
        let value = result.map(|recording| then(&pool, recording));
        recycle(self.open.context, pool);
        value
    }

    fn close(&self, state: &mut crate::state::State) -> Option<Box<Pool>> {
        if self.ended.replace(true) {
            return None;
        }
        let (pool, serves) = state.pools[self.open.pool as usize].end();
        if let Some(pool) = &pool {
            for (_, deferred) in &pool.deferred {
                deferred.discard(pool.at);
            }
        }
        if serves {
            state.free_pools.push(self.open.pool);
        }
        if state.pools.iter().all(|cell| cell.pool.is_none()) {
            state.failures.clear();
        }
        pool
    }

    /// Makes this the innermost pass of the thread while `f` runs, whatever passes were opened since.
    pub fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        let _scope = Scope::enter(&OPEN, self.open);
        f()
    }

    /// Runs `f` with gradients off: nothing recorded in this pass meanwhile passes a gradient on.
    pub fn no_grad<T>(&self, f: impl FnOnce() -> T) -> T {
        let _scope = Scope::enter(&NO_GRAD, self.open);
        f()
    }

    /// Makes the random numbers recorded from now on those that rows from `row` on have in the pass with
    /// number `step`, so that a batch worked on in parts, in several passes or contexts with one seed, draws
    /// what the whole batch draws.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let whole = ctx.pass(|p| p.rand("noise", [4, 3]).to_vec::<f32>())?;
    /// let pass = ctx.begin()?;
    /// pass.place(0, 2)?;
    /// assert_eq!(pass.rand("noise", [2, 3]).to_vec::<f32>()?, whole[6..]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Limit` for a row beyond 2^32 - 1.
    pub fn place(&self, step: u64, row: usize) -> Result<()> {
        let Ok(row) = u32::try_from(row) else { bail!(Limit, "place", "row {row} is beyond 2^32 - 1") };
        let mut state = table::lock(self.open.context)?;
        let pool = record::current(&mut state, self.open)?;
        (pool.step, pool.row) = (step, row);
        Ok(())
    }

    /// As [`crate::ContextOptions::recompute_within`], for this pass.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let w = Param::new(&ctx, "w", HostTensor::new([64, 64], &[0.01f32; 4096])?)?;
    /// let refused = ctx.pass(|p| {
    ///     p.recompute_within(1000)?;                       // less than the weights alone
    ///     let x = p.input(HostTensor::new([64, 64], &[1.0f32; 4096])?)?;
    ///     let grads = x.matmul(w.t()).tanh().matmul(w.t()).sum(..).backward()?;
    ///     w.set(w.t() - grads.get(&w).expect("the loss depends on w") * 0.1);
    ///     Ok(())
    /// });
    /// assert!(refused.unwrap_err().to_string().contains("1000 bytes are allowed"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Stale`.
    pub fn recompute_within(&self, bytes: usize) -> Result<()> {
        let mut state = table::lock(self.open.context)?;
        record::current(&mut state, self.open)?.within_bytes = Some(bytes);
        Ok(())
    }

    /// Computes these values now, in one submission; does not wait for it.
    ///
    /// # Errors
    /// What the device meets when it submits; `Stale`; `Argument` in a captured step.
    pub fn compute(&self, values: &[Tensor]) -> Result<()> {
        self.compute_for(values, &[])
    }

    /// As [`Pass::compute`], and keeps what the values `later` will need of the way to these and what is dear to
    /// compute again, and nothing else if there are any: so a forward pass keeps what its gradients need, where they are recorded before it is
    /// computed.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let pass = ctx.begin()?;
    /// let x = pass.input(HostTensor::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?)?;
    /// let y = x.matmul(x).gelu();
    /// let dy = pass.input(HostTensor::new([2, 2], &[0.0f32; 4])?)?;     // not known yet
    /// let dx = wgrad::vjp(&[y], &[dy], &[x])?[0];
    /// pass.compute_for(&[y], &[dx])?;
    /// pass.replace(dy, HostTensor::new([2, 2], &[1.0f32; 4])?)?;
    /// assert!(dx.to_vec::<f32>()?[0] > 3.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Pass::compute`].
    pub fn compute_for(&self, values: &[Tensor], later: &[Tensor]) -> Result<()> {
        let mut state = table::lock(self.open.context)?;
        state.alive()?;
        let mut keys = record::enter(&mut state, self.open, values)?;
        let later = record::enter(&mut state, self.open, later)?;
        let pool = record::current(&mut state, self.open)?;
        if pool.captured {
            bail!(Argument, "compute", "a captured step is computed as a whole");
        }
        let kept = dear::kept_for(pool, &keys, &later)?;
        keys.extend(kept);
        let result = state.flush(self.open.pool, &keys, later.is_empty());
        drop(state);
        flight::throttle(self.open.context);
        result
    }

    /// How many operations and leaves the pass has recorded.
    ///
    /// # Errors
    /// `Stale`.
    pub fn nodes(&self) -> Result<usize> {
        let mut state = table::lock(self.open.context)?;
        Ok(record::current(&mut state, self.open)?.nodes.len())
    }

    /// How many new versions of owned values the end of the pass commits.
    ///
    /// # Errors
    /// `Stale`.
    pub fn updates(&self) -> Result<usize> {
        let mut state = table::lock(self.open.context)?;
        Ok(record::current(&mut state, self.open)?.updates.len())
    }

    /// Gives an input of this pass other data of the same shape and dtype, as long as nothing was computed from it.
    ///
    /// # Errors
    /// `Shape`, `DType`; `Argument` when it is no input of this pass or was used; `Stale`.
    pub fn replace(&self, input: Tensor, data: impl Into<Given>) -> Result<()> {
        let data = data.into();
        let (got, out) = (data.out(), input.try_out()?);
        if got != out {
            let kind = if got.shape == out.shape { ErrorKind::DType } else { ErrorKind::Shape };
            return Err(Error::new(kind, "replace", format!("{got:?} cannot take the place of {out:?}")));
        }
        let data = data.source("replace", &self.context)?;
        let mut state = table::lock(self.open.context)?;
        let pool = record::current(&mut state, self.open)?;
        if input.pass() == Some(self.open) {
            let node = pool.values[input.value_key()].node as usize;
            let node = &mut pool.nodes[node];
            if matches!(node.source, Source::Host(_) | Source::Placed(_)) && !node.ran {
                let old = std::mem::replace(&mut node.source, data);
                // Its kind may be another now.
                pool.tape.whole = false;
                drop(state);
                drop(old);
                return Ok(());
            }
        }
        bail!(Argument, "replace", "it is no input of this pass from which nothing was computed")
    }

    /// Computes all that the end of the pass commits, and waits for it: the end only takes it over, and
    /// fails only when the device is lost or another pass has set one of the values meanwhile. So several
    /// contexts can be updated together or not at all. Takes the memory of the new versions beside the old.
    ///
    /// # Errors
    /// What the device meets; a failure of an earlier submission.
    pub fn prepare(&self) -> Result<()> {
        let newest = {
            let mut state = table::lock(self.open.context)?;
            state.alive()?;
            let pool = record::current(&mut state, self.open)?;
            let goals: Vec<_> =
                pool.updates.iter().map(|u| u.value).chain(pool.deferred.iter().map(|(k, _)| *k)).collect();
            state.flush(self.open.pool, &goals, true)?;
            state.newest
        };
        let settled = flight::settle(self.open.context, newest);
        let mut state = table::lock(self.open.context)?;
        // Whoever calls this hears of the failure; the next pass need not fail for it.
        let untold = state.untold.take().map(|(_, error)| error);
        settled.and(untold.map_or(Ok(()), Err)).and(state.alive())
    }

    /// A host tensor as a value of this pass, its bytes travel with the submission that uses them; or one that is
    /// [placed](Context::put) already.
    ///
    /// # Errors
    /// `DType` when the device does not store the dtype; `Device` for one that is placed in another context.
    #[track_caller]
    pub fn input(&self, data: impl Into<Given>) -> Result<Tensor> {
        let _recording = profiling::recording();
        let data = data.into();
        let out = data.out();
        record::leaf(self.open, data.source("input", &self.context)?, out, Location::caller())
    }
}

/// Refuses data that are larger than a value of the device may be.
pub(crate) fn fits(caps: &Caps, op: &str, out: Out) -> Result<()> {
    let bytes = out.shape.elems() * caps.storage(out.dtype).bytes();
    if bytes > caps.max_value_bytes {
        bail!(Limit, op, "{bytes} bytes; {} holds at most {} in a value", caps.name, caps.max_value_bytes);
    }
    Ok(())
}

/// The hash (64-bit FNV-1a) of a stream's name and of how often a pass has drawn from it before.
pub(crate) fn stream_hash(stream: &str, draw: u32) -> u64 {
    let bytes = stream.bytes().chain(draw.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Pools whose memory is kept at most.
const MOST_SPARE: usize = 4;

/// Gives up what an ended pass held, without holding the context's lock, and keeps the memory for the next one.
fn recycle(context: ContextId, mut pool: Box<Pool>) {
    if pool.clear()
        && let Ok(mut state) = table::lock(context)
        && state.spare_pools.len() < MOST_SPARE
    {
        state.spare_pools.push(pool);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.ended.get()
            && let Ok(mut state) = table::lock(self.open.context)
        {
            let garbage = self.close(&mut state);
            drop(state);
            if let Some(pool) = garbage {
                recycle(self.open.context, pool);
            }
        }
        let _ = &self.scope;
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass(pool {}, generation {})", self.open.pool, self.open.generation)
    }
}
