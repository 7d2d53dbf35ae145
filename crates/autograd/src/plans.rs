//! The cache of plans, keyed by structure: graph, roots, leaf kinds, options. Equality decides, the
//! hash only finds.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;
use wgrad_graph::{
    Backend, Caps, Fitted, Graph, LeafKind, NodeId, Op, Options, Phase, Plan, Prepared, Result, Root, Stage,
    Watch, Within, plan_watched, plan_within,
};

use wgrad_profile::PhaseMix;

use crate::flight::Room;
use crate::profiling::{Profiling, step_phases};
use crate::state::FastMap;

/// Plans kept at most; the one that was not used for longest goes first.
const CAPACITY: usize = 256;

/// Everything on which a plan depends.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub(crate) graph: Graph,
    pub(crate) roots: Vec<Root>,
    pub(crate) leaves: Vec<(NodeId, LeafKind)>,
    pub(crate) options: Options,
    /// Above so many bytes, forward values are computed again instead of held.
    pub(crate) within_bytes: Option<usize>,
}

/// A plan that is ready to run.
#[derive(Clone)]
pub(crate) struct Ready {
    pub(crate) plan: Arc<Plan>,
    /// The graph as it was recorded; the plan's may compute some of it twice.
    pub(crate) graph: Arc<Graph>,
    pub(crate) prepared: Arc<dyn Prepared>,
    /// Scalars that place a part: number among the plan's scalars, largest value, node.
    pub(crate) bounds: Vec<(usize, usize, NodeId)>,
    /// The phases of each of the plan's steps.
    pub(crate) phases: Arc<[PhaseMix]>,
}

/// An entry of the cache.
pub(crate) struct Cached {
    pub(crate) ready: Ready,
    key: PlanKey,
    used: u64,
}

/// The cache.
#[derive(Default)]
pub(crate) struct Plans {
    by_hash: HashMap<u64, Vec<Cached>>,
    len: usize,
    clock: u64,
    /// The plan used last.
    pub(crate) last: Option<Arc<Plan>>,
    pub(crate) made: u64,
    pub(crate) reused: u64,
    /// Of those, found by an equal pass.
    pub(crate) repeated: u64,
}

impl Plans {
    /// The plan of `key`, made if it is not there and there is room for it.
    ///
    /// `phases` are those of the graph's nodes.
    pub(crate) fn ready(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: PlanKey,
        room: &Room,
        phases: &[Phase],
        profiling: &Profiling,
    ) -> Result<&Cached> {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        self.clock += 1;
        let found = self.by_hash.get(&hash).and_then(|bucket| bucket.iter().position(|r| r.key == key));
        let at = match found {
            Some(at) => {
                self.reused += 1;
                at
            }
            None => {
                let ready = make(backend, key, room, phases, profiling)?;
                self.made += 1;
                self.evict();
                self.len += 1;
                let bucket = self.by_hash.entry(hash).or_default();
                bucket.push(ready);
                bucket.len() - 1
            }
        };
        let ready = &mut self.by_hash.get_mut(&hash).expect("found or just made")[at];
        ready.used = self.clock;
        self.last = Some(Arc::clone(&ready.ready.plan));
        Ok(ready)
    }

    /// Notes that a plan runs again that was found without being looked for here.
    pub(crate) fn repeat(&mut self, ready: &Ready) {
        self.reused += 1;
        self.repeated += 1;
        self.last = Some(Arc::clone(&ready.plan));
    }

    fn evict(&mut self) {
        if self.len < CAPACITY {
            return;
        }
        let oldest = self.by_hash.values().flatten().map(|r| r.used).min();
        self.by_hash.retain(|_, bucket| {
            bucket.retain(|r| Some(r.used) != oldest);
            !bucket.is_empty()
        });
        self.len = self.by_hash.values().map(Vec::len).sum();
    }
}

/// The plan of `graph`, which is that of `key`, and the phases of its nodes where it is of another graph.
pub(crate) fn planned(
    caps: &Caps,
    graph: &Arc<Graph>,
    key: &PlanKey,
    room: &Room,
    phases: &[Phase],
    watch: Option<&dyn Watch>,
) -> Result<(Plan, Option<Vec<Phase>>)> {
    let PlanKey { roots, leaves, options, within_bytes, .. } = key;
    let Some(most_bytes) = *within_bytes else {
        return Ok((plan_watched(graph, roots, leaves, options, caps, watch)?, None));
    };
    let bytes = |plan: &Plan| room.peak_with(plan);
    let within = Within { most_bytes, bytes: &bytes, phases };
    let Fitted { plan, phases, .. } = plan_within(graph, roots, leaves, options, caps, &within, watch)?;
    Ok((plan, Some(phases)))
}

fn make(
    backend: &Arc<dyn Backend>,
    key: PlanKey,
    room: &Room,
    phases: &[Phase],
    profiling: &Profiling,
) -> Result<Cached> {
    let graph = Arc::new(key.graph.clone());
    let watch = profiling.watch().map(|watch| &**watch);
    let (plan, again) = planned(backend.caps(), &graph, &key, room, phases, watch)?;
    let (plan, phases) = (Arc::new(plan), again.as_deref().unwrap_or(phases));
    tracing::debug!(target: "wgrad::plan", steps = plan.steps.len(), workspace_bytes = plan.workspace_bytes, "planned");
    tracing::trace!(target: "wgrad::plan", "{plan}");
    // Before the device reserves the workspace: what is refused must hold nothing.
    room.take_plan(&plan)?;
    let _compile = profiling.stage(Stage::Compile);
    let ready = Ready::new(backend, plan, phases)?;
    Ok(Cached { ready: Ready { graph, ..ready }, key, used: 0 })
}

impl Ready {
    /// Makes a plan ready to run; `phases` are those of its graph's nodes.
    pub(crate) fn new(backend: &Arc<dyn Backend>, plan: Arc<Plan>, phases: &[Phase]) -> Result<Ready> {
        let prepared = backend.prepare(&plan)?;
        let bounds = bounds(&plan);
        let phases = step_phases(&plan, phases);
        Ok(Ready { graph: Arc::clone(&plan.graph), plan, prepared, bounds, phases })
    }
}

/// The limits of scalars that place a part, each with the node that a message names.
fn bounds(plan: &Plan) -> Vec<(usize, usize, NodeId)> {
    // For each scalar the first node that it places.
    let mut places: FastMap<NodeId, NodeId> = FastMap::default();
    for (id, node) in plan.graph.nodes().iter().enumerate() {
        if let (Op::SliceAt { .. } | Op::SliceAssignAt { .. }, Some(start)) = (node.op, node.inputs.last()) {
            places.entry(start.node).or_insert(id as NodeId);
        }
    }
    let limit = |(i, limit): (usize, Option<usize>)| {
        let scalar = plan.scalars[i];
        Some((i, limit?, places.get(&scalar).copied().unwrap_or(scalar)))
    };
    plan.scalar_limits().into_iter().enumerate().filter_map(limit).collect()
}
