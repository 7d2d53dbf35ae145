//! Recomputation by a budget: values of the forward part are computed a second time where the backward part first
//! needs them instead of being held, in as few segments as make the plan fit.
//!
//! A segment is a run of forward nodes between two places where little crosses. What crosses is held; what the
//! backward part reads of the rest gets twins, placed before their first reader and made to wait for the gradient
//! that arrives there. Twins draw the same random numbers, for these are functions of their operands.

mod rebuild;
mod segments;

use std::sync::Arc;

use crate::{
    Caps, Error, ErrorKind, Graph, LeafKind, NodeId, Options, Phase, Plan, Result, Root, Watch, plan_watched,
};
use segments::{Forward, Segment};

/// What a plan may take, and what is known of the graph's nodes.
pub struct Within<'a> {
    /// The most bytes that a plan may take by `bytes`.
    pub most_bytes: usize,
    /// What counts of a plan.
    pub bytes: &'a dyn Fn(&Plan) -> usize,
    /// The phase of each node.
    pub phases: &'a [Phase],
}

/// A plan that fits, and of which node of the graph given each node of the plan's graph is a copy.
#[derive(Debug)]
pub struct Fitted {
    /// The plan.
    pub plan: Plan,
    /// For each node of the plan's graph, the node it was made from.
    pub origins: Vec<NodeId>,
    /// For each node of the plan's graph, its phase.
    pub phases: Vec<Phase>,
    /// Segments computed again, and how many there are to choose from.
    pub segments: (usize, usize),
}

/// Shares of all held bytes that a segment holds at least, finest first.
const GRAINS: [u64; 6] = [64, 32, 16, 8, 4, 2];
/// Grains that fit after which no further one is tried.
const ENOUGH: usize = 2;

/// As [`crate::plan`], but where the plan takes more than `within` allows, forward values are computed again for
/// the backward part instead of held: the cheapest choice of segments found that fits.
///
/// # Errors
/// As [`crate::plan`]; `OutOfMemory` when no choice fits.
pub fn plan_within(
    graph: &Arc<Graph>,
    roots: &[Root],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
    within: &Within<'_>,
    watch: Option<&dyn Watch>,
) -> Result<Fitted> {
    let whole = plan_watched(graph, roots, leaves, options, caps, watch)?;
    let whole_bytes = (within.bytes)(&whole);
    if whole_bytes <= within.most_bytes {
        let origins = (0..graph.nodes().len() as NodeId).collect();
        return Ok(Fitted { plan: whole, origins, phases: within.phases.to_vec(), segments: (0, 0) });
    }
    let search = Search { graph, roots, leaves, options, caps, within, watch };
    let forward = Forward::of(graph, within.phases, &whole, caps);
    drop(whole);
    let mut least = whole_bytes;
    let mut best: Option<(f64, Fitted)> = None;
    let mut fitting = 0;
    let mut seen: Vec<Vec<NodeId>> = Vec::new();
    for grain in GRAINS {
        let mut all = forward.segments(grain);
        let ends: Vec<NodeId> = all.iter().map(|s| s.nodes[0]).collect();
        if all.is_empty() || seen.contains(&ends) {
            continue;
        }
        seen.push(ends);
        // What frees most for the work comes first.
        all.sort_by(|a, b| (b.saved as f64 / b.cost).total_cmp(&(a.saved as f64 / a.cost)));
        if let Some(fitted) = search.fewest(&all, &mut least)? {
            let cost: f64 = all[..fitted.segments.0].iter().map(|s| s.cost).sum();
            fitting += 1;
            if best.as_ref().is_none_or(|(known, _)| cost < *known) {
                best = Some((cost, fitted));
            }
            if fitting == ENOUGH {
                break;
            }
        }
    }
    let refused = || {
        let rule = format!(
            "the plan takes {whole_bytes} bytes with every value held and {least} with the choice of values to compute again \
             that takes least; {} bytes are allowed",
            within.most_bytes
        );
        Error::new(ErrorKind::OutOfMemory, "recompute", rule)
    };
    best.map(|(_, fitted)| fitted).ok_or_else(refused)
}

struct Search<'a> {
    graph: &'a Arc<Graph>,
    roots: &'a [Root],
    leaves: &'a [(NodeId, LeafKind)],
    options: &'a Options,
    caps: &'a Caps,
    within: &'a Within<'a>,
    watch: Option<&'a dyn Watch>,
}

impl Search<'_> {
    /// The plan that computes the fewest of `segments` again, the first ones, and fits; `least` becomes the fewest
    /// bytes seen.
    fn fewest(&self, segments: &[Segment], least: &mut usize) -> Result<Option<Fitted>> {
        let mut fitted = None;
        let (mut low, mut high) = (1, segments.len());
        // With all of them first: where that does not fit, the most that fits is not sought by halving.
        let mut count = high;
        while low <= high {
            let now = self.planned(segments, count)?;
            let bytes = (self.within.bytes)(&now.plan);
            *least = (*least).min(bytes);
            if bytes <= self.within.most_bytes {
                fitted = Some(now);
                high = count - 1;
            } else if count == segments.len() {
                return Ok(None);
            } else {
                low = count + 1;
            }
            count = low.midpoint(high);
        }
        Ok(fitted)
    }

    fn planned(&self, segments: &[Segment], count: usize) -> Result<Fitted> {
        let again = rebuild::rebuild(self.graph, &segments[..count], self.within.phases);
        let moved = |node: NodeId| again.moved[node as usize];
        let leaves: Vec<_> = self.leaves.iter().map(|(node, kind)| (moved(*node), *kind)).collect();
        let roots: Vec<_> = self
            .roots
            .iter()
            .map(|root| Root { val: crate::Val { node: moved(root.val.node), ..root.val }, ..*root })
            .collect();
        let graph = Arc::new(again.graph);
        let mut plan = plan_watched(&graph, &roots, &leaves, self.options, self.caps, self.watch)?;
        plan.notes.push(format!("{count} of {} segments are computed again to save memory", segments.len()));
        Ok(Fitted { plan, origins: again.origins, phases: again.phases, segments: (count, segments.len()) })
    }
}
