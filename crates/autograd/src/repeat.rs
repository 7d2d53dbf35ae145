//! The final flush of a pass that is equal to an earlier one: with that one's plan, without a walk over the nodes.

use std::sync::Arc;

use wgrad_graph::{LeafKind, NodeId, Result, Stage, Ticket};

use crate::flush::{Bind, GoalHome, Recording, bind, leaf_lease};
use crate::memo::{Asked, Flushed, RememberedParts};
use crate::plans::Ready;
use crate::state::{FastMap, Lease, OwnedKey, Pool, Source, State};

impl State {
    /// The final flush of a pass that is equal to one before, with that one's plan, if there is one and what it
    /// updated in place can be again.
    pub(crate) fn repeat_flush(
        &mut self,
        pool: &mut Pool,
        asked: Asked<'_>,
        updates: &[usize],
    ) -> Result<Option<Recording>> {
        let looking = self.profiling.stage(Stage::Plan);
        let place = |root: u32, flushed: &Flushed| {
            let goal = flushed.roots[root as usize] as usize;
            self.owned[pool.updates[*updates.get(goal)?].owned].lease.as_ref()
        };
        let source = |node: u32| match &pool.nodes[node as usize].source {
            Source::Lease(lease) | Source::Placed(lease) => Some(lease),
            _ => None,
        };
        // The owner and the leaf: nobody else can reach this version.
        let alone = |root: u32, node: u32, flushed: &Flushed| {
            source(node)
                .zip(place(root, flushed))
                .is_some_and(|(lease, place)| Arc::ptr_eq(lease, place) && Arc::strong_count(lease) == 2)
        };
        let fits = |flushed: &Flushed| {
            flushed.leaves.iter().all(|(node, _, kind, root)| {
                root.is_some_and(|root| alone(root, *node, flushed)) == (*kind == LeafKind::Donated)
            })
        };
        let Some(flushed) = pool.flushed(asked, fits) else { return Ok(None) };
        let ready = flushed.ready.clone();
        let binds: Vec<Bind> = flushed.leaves.iter().map(|(node, out, ..)| bind(pool, *node, *out)).collect();
        let goals = asked.goals.iter().map(|key| (pool.values[*key].node, pool.values[*key].out));
        // Held from here on, so that nothing takes the place of a version that another value becomes.
        let before: Vec<_> = goals.map(|(node, out)| leaf_lease(pool, node, out)).collect();
        let numbers_of = flushed.numbers.to_vec();
        let (homes, leaves) =
            (flushed.homes.to_vec(), flushed.leaves.iter().map(|(node, ..)| *node).collect());
        let numbers: Vec<f64> = numbers_of.iter().map(|n| pool.take_number(*n)).collect();
        self.plans.repeat(&ready);
        drop(looking);
        let made = self.run(&ready, &binds, &numbers)?;
        drop(binds);
        let newest = self.newest;
        let lease = |(home, before): (&GoalHome, Option<(Arc<Lease>, Ticket)>)| match home {
            GoalHome::Root(root) => (Arc::clone(&made[*root]), newest),
            GoalHome::Before => before.expect("a goal without a root was computed before"),
        };
        let leases: Vec<_> = homes.iter().zip(before).map(lease).collect();
        self.commit_goals(pool, updates, &leases);
        let updates = updates.to_vec();
        Ok(Some(Recording { ready: Some(ready), leaves, numbers: numbers_of, updates, homes }))
    }
}

/// What to remember of a final flush; nothing where a leaf is of the kind that its source does not tell.
pub(crate) fn flushed_parts(
    pool: &Pool,
    updates: &[usize],
    leaves: &[(NodeId, u32, u32)],
    kinds: &[LeafKind],
    homes: &[GoalHome],
    ready: &Ready,
    numbers: &[u32],
) -> Option<RememberedParts> {
    let roots_len = homes.iter().filter_map(|h| if let GoalHome::Root(r) = h { Some(*r + 1) } else { None });
    let mut roots = vec![0u32; roots_len.max()?];
    for (goal, home) in homes.iter().enumerate().rev() {
        if let GoalHome::Root(root) = home {
            roots[*root] = goal as u32;
        }
    }
    // For each owned value, the root that is its new version: where it is the first goal of that root.
    let mut takers: FastMap<OwnedKey, u32> = FastMap::default();
    for (root, goal) in roots.iter().enumerate() {
        if let Some(update) = updates.get(*goal as usize) {
            takers.entry(pool.updates[*update].owned).or_insert(root as u32);
        }
    }
    let leaf = |((_, node, out), kind): (&(NodeId, u32, u32), &LeafKind)| {
        let version = pool.values[pool.nodes[*node as usize].outs[*out as usize].key].version;
        let taker = version.and_then(|(owned, _)| takers.get(&owned).copied());
        // A buffer that was taken without being a version of what takes it.
        let told = taker.is_some() || *kind != LeafKind::Donated;
        told.then_some((*node, *out, *kind, taker))
    };
    Some(RememberedParts {
        leaves: leaves.iter().zip(kinds).map(leaf).collect::<Option<_>>()?,
        numbers: numbers.to_vec(),
        roots,
        homes: homes.to_vec(),
        ready: ready.clone(),
    })
}
