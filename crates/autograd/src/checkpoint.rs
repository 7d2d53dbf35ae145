//! Recomputation: a segment's values are not held for the backward pass but recorded a second time
//! where the first gradient needs them.

use std::collections::{HashMap, HashSet};
use std::panic::Location;

use smallvec::SmallVec;
use wgrad_graph::{Op, Result};

use crate::record;
use crate::state::{PassNode, Pool, ValueKey};
use crate::table;
use crate::tensor::Tensor;

/// `f(x)`, whose inner values are computed again for the gradient instead of held. Random numbers are
/// drawn again with the same keys, so both computations are the same. A checkpoint inside a checkpoint
/// belongs to the outer one.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// ctx.pass(|p| {
///     let x = p.input(HostTensor::new([2], &[0.0f32, 1.0])?)?;
///     let y = wgrad::checkpoint(x, |x| Ok(x.exp().square()))?;
///     let dx = wgrad::grad(y.sum(..), &[x])?[0];
///     assert_eq!(dx.to_vec::<f32>()?[0], 2.0);
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// What `f` returns; `Stale` when `x` has ended.
#[track_caller]
pub fn checkpoint(x: Tensor, f: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let at = Location::caller();
    let pass = record::pass_of(&[x], at)?;
    let start = {
        let mut state = table::lock(pass.context)?;
        record::current(&mut state, pass)?.nodes.len()
    };
    let y = f(x)?;
    let mut state = table::lock(pass.context)?;
    let pool = record::current(&mut state, pass)?;
    pool.checkpoints.push(start..pool.nodes.len());
    pool.tape.mark(start as u32);
    let id = pool.checkpoints.len() as u32;
    for node in &mut pool.nodes[start..] {
        if !node.shared && !matches!(node.op, Op::Input | Op::Scalar) {
            node.checkpoint = id;
        }
    }
    Ok(y)
}

/// The second recordings that one backward walk has made.
#[derive(Default)]
pub(crate) struct Replay {
    entered: HashSet<u32>,
    /// For values of entered segments, the twin.
    twins: HashMap<ValueKey, ValueKey>,
}

impl Replay {
    /// Records segment `id` again, each node after the one whose gradient arrived first.
    pub(crate) fn enter(&mut self, pool: &mut Pool, id: u32, arrived: ValueKey) {
        if !self.entered.insert(id) {
            return;
        }
        let after = pool.values[arrived].node;
        for index in pool.checkpoints[id as usize - 1].clone() {
            let node = &pool.nodes[index];
            if node.checkpoint != id {
                continue;
            }
            let inputs: SmallVec<[ValueKey; 4]> = node.inputs.iter().map(|k| self.of(pool, id, *k)).collect();
            let outs: SmallVec<[_; 1]> = node.outs.iter().map(|o| o.out).collect();
            let keys: SmallVec<[_; 1]> = node.outs.iter().map(|o| o.key).collect();
            let twin = PassNode {
                op: node.op,
                inputs,
                outs: SmallVec::new(),
                after: SmallVec::from_buf([after]),
                source: node.source.clone(),
                taken: node.taken,
                ran: false,
                custom: node.custom.clone(),
                rule: node.rule.clone(),
                grad: node.grad,
                checkpoint: 0,
                shared: false,
                phase: wgrad_profile::phase(),
                blamed: 0,
                at: node.at,
            };
            pool.push(twin, &outs);
            let twins = &pool.nodes.last().expect("just pushed").outs;
            self.twins.extend(keys.into_iter().zip(twins.iter().map(|o| o.key)));
        }
    }

    /// The twin of `key` where its node is of segment `id`, else itself.
    pub(crate) fn of(&self, pool: &Pool, id: u32, key: ValueKey) -> ValueKey {
        if pool.node(key).checkpoint != id {
            return key;
        }
        let canonical = pool.out(key).key;
        self.twins.get(&canonical).copied().unwrap_or(key)
    }
}
