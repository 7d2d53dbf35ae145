//! From groups to the plan: in which order they run, and where every value lies.

mod check;
mod display;
mod layout;
mod schedule;
mod space;

use std::sync::Arc;

use crate::fuse::{Fused, fuse};
use crate::{
    Caps, Fast, Graph, InStage, Leaf, LeafKind, NodeId, Op, Options, Plan, Result, Stage, Val, Watch, bail,
};

/// Depth-first order has to save so much: it runs each update as soon as its gradient is there, where
/// recorded order runs all of them as one batch.
const LEAST_SAVING_BYTES: usize = 16 << 20;

/// A value that is asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// The value.
    pub val: Val,
    /// A donated leaf in whose buffer the result ends if it can.
    pub into: Option<u32>,
}

/// The plan that computes `roots`: `outputs[i]` is root `i`; with [`Options::keep`] every other value
/// that a step stores follows. `leaves` names every [`Op::Input`] node of the graph, in order.
///
/// # Errors
/// `Argument`, when the leaves are not those of the graph or an offset is no scalar; `Limit`, when a
/// value is larger than the device allows.
pub fn plan(
    graph: &Arc<Graph>,
    roots: &[Root],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
) -> Result<Plan> {
    plan_watched(graph, roots, leaves, options, caps, None)
}

/// [`plan`], with its stages told to `watch`.
///
/// # Errors
/// As [`plan`].
pub fn plan_watched(
    graph: &Arc<Graph>,
    roots: &[Root],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
    watch: Option<&dyn Watch>,
) -> Result<Plan> {
    let _plan = InStage::enter(watch, Stage::Plan);
    plan_in(graph, roots, leaves, options, caps, None, watch)
}

/// [`plan`], with the choice between recorded and depth-first order made by the caller, if it is.
pub(crate) fn plan_in(
    graph: &Arc<Graph>,
    roots: &[Root],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
    deep: Option<bool>,
    watch: Option<&dyn Watch>,
) -> Result<Plan> {
    let nodes = |op: Op| (0..graph.nodes().len() as NodeId).filter(move |id| graph.node(*id).op == op);
    if !nodes(Op::Input).eq(leaves.iter().map(|l| l.0)) {
        bail!(Argument, "plan", "the leaves given are not the input nodes of the graph in order");
    }
    let options = &Options { fuse: options.fuse && caps.allows(Fast::Fusion), ..options.clone() };
    let vals: Vec<Val> = roots.iter().map(|r| r.val).collect();
    let updates: Vec<Val> = roots.iter().filter(|r| r.into.is_some()).map(|r| r.val).collect();
    let fused = {
        let _fuse = InStage::enter(watch, Stage::Fuse);
        fuse(graph, &vals, &updates, options, caps)?
    };
    let mut upload_bytes = 0;
    let leaves: Vec<Leaf> = leaves
        .iter()
        .map(|(node, kind)| {
            let out = graph.out(Val::of(*node));
            let bytes =
                if *kind == LeafKind::Upload { caps.value_bytes(out.shape.elems(), out.dtype) } else { 0 };
            let offset_bytes = if bytes > 0 { upload_bytes } else { 0 };
            upload_bytes += bytes;
            Leaf { node: *node, kind: *kind, offset_bytes }
        })
        .collect();
    let Fused { groups, before, roots: vals, notes } = fused;
    let into: Vec<Option<u32>> = roots.iter().map(|r| r.into).collect();
    let mut items: Vec<layout::Item> =
        groups.into_iter().map(|g| layout::Item { group: Arc::new(g), target: None }).collect();
    layout::copy_roots(graph, &vals, &mut items);
    let updates = vals.iter().zip(&into).filter(|(_, into)| into.is_some()).map(|(v, _)| *v).collect();
    let context = layout::Context {
        graph,
        caps,
        options,
        leaves: &leaves,
        roots: &vals,
        into: &into,
        upload_bytes,
        items: &items,
        updates: &updates,
    };
    let edges = schedule::dependencies(&context, &before);
    let recorded = schedule::recorded(&context, &edges);
    let lay_out = |items: &[u32]| {
        let sequence = schedule::batched(&context, &edges, items);
        layout::lay_out(&context, &sequence.items, &sequence.units)
    };
    let mut laid = lay_out(&recorded);
    let other = lay_out(&schedule::depth_first(&context, &edges, &recorded));
    let bytes = |laid: &layout::Laid| laid.workspace_bytes - upload_bytes;
    let saves = bytes(&other) * 21 < bytes(&laid) * 20 && bytes(&other) + LEAST_SAVING_BYTES < bytes(&laid);
    if deep.unwrap_or(saves) {
        let (was, is) = (laid.workspace_bytes, other.workspace_bytes);
        laid = other;
        laid.notes.push(format!("run depth first: workspace {is} bytes, in recorded order {was}"));
    }
    let mut outputs = laid.outputs;
    for (output, root) in outputs.iter_mut().zip(roots) {
        output.val = root.val;
    }
    let plan = Plan {
        graph: Arc::clone(graph),
        leaves,
        scalars: nodes(Op::Scalar).collect(),
        steps: laid.steps,
        slots: laid.slots,
        outputs,
        upload_bytes,
        workspace_bytes: laid.workspace_bytes,
        notes: notes.into_iter().chain(laid.notes).collect(),
    };
    // Kernels run unchecked behind this proof.
    if let Err(why) = plan.bounds() {
        bail!(Kernel, "plan", "an index leaves its value: {why}");
    }
    Ok(plan)
}
