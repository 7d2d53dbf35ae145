//! What the end of a pass will take, told before anything runs.

use std::sync::Arc;

use wgrad_graph::{PlanMemory, Result};

use crate::cut::cut;
use crate::flush::{Goals, Rooted};
use crate::pass::Pass;
use crate::plans::planned;
use crate::record;
use crate::state::{Pool, State, ValueKey};
use crate::table;

impl Pass {
    /// The device memory that the end of the pass would take if it came now, by the plan that it would run: nothing
    /// is computed for it, unless the pass uses values of a pass around. Values that earlier flushes of the pass hold
    /// are among its leaves.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let w = Param::new(&ctx, "w", HostTensor::new([64, 64], &[0.01f32; 4096])?)?;
    /// ctx.pass(|p| {
    ///     let x = p.input(HostTensor::new([64, 64], &[1.0f32; 4096])?)?;
    ///     let grads = x.matmul(w.t()).tanh().sum(..).backward()?;
    ///     w.set(w.t() - grads.get(&w).expect("the loss depends on w") * 0.1);
    ///     let memory = p.predict()?;
    ///     assert!(memory.peak_bytes() >= 2 * 64 * 64 * 4 && memory.peak_bytes() < 1 << 20);
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory` when no choice of [`Pass::recompute_within`] fits; `Limit`; `Stale`.
    pub fn predict(&self) -> Result<PlanMemory> {
        let open = self.id();
        let mut state = table::lock(open.context)?;
        record::current(&mut state, open)?;
        let mut pool = state.pools[open.pool as usize].pool.take().expect("it was just found");
        let memory = state.predict(&mut pool);
        state.pools[open.pool as usize].pool = Some(pool);
        memory
    }
}

impl State {
    fn predict(&mut self, pool: &mut Pool) -> Result<PlanMemory> {
        let Goals { goals, .. } = self.goals(pool);
        let keys: Vec<ValueKey> = goals.iter().map(|(key, _)| *key).collect();
        self.sources_first(pool, &keys)?;
        let mut cut = cut(pool, &keys)?;
        let Rooted { roots, places, .. } = self.rooted(pool, &cut, &goals);
        if roots.is_empty() {
            return Ok(PlanMemory::default());
        }
        let (key, _binds) = self.key(pool, &mut cut, roots, Some(&places));
        let room = self.room(key.within_bytes.is_some());
        let caps = self.backend.caps();
        let (plan, _) = planned(caps, &Arc::new(key.graph.clone()), &key, &room, &cut.phases, None)?;
        Ok(plan.memory(caps))
    }
}
