//! From the graph to groups: which values are stored, what each kernel computes, which kernels are one.

mod again;
mod bounds;
mod build;
mod coalesce;
mod cut;
mod draft;
mod merge;
mod order;
mod rows;

use crate::{Caps, Graph, Group, NodeId, Options, Result, Val};
use cut::Cut;
pub(crate) use order::Order;

/// Most nodes whose work is repeated inside one kernel.
const MAX_NODES: usize = 40;
/// Most expressions of one kernel.
const MAX_EXPRS: usize = 64;
/// Most expressions of a row program: it stands for several kernels.
const MAX_ROW_EXPRS: usize = 112;
/// Most operands of a concatenation that selects; more are written part by part.
const MAX_PARTS: usize = 4;
/// Kernels that only share an operand are merged when they are at most so far apart.
const WINDOW: u32 = 64;
/// A kernel that reads so many times the bytes of what follows does not wait for other operands of that.
const LITTLE: usize = 16;

/// Groups in an order in which they can run.
#[derive(Debug, Default)]
pub(crate) struct Fused {
    /// The groups.
    pub(crate) groups: Vec<Group>,
    /// For each group: groups that have to run before it.
    pub(crate) before: Vec<Vec<u32>>,
    /// For each root: the value that holds it, perhaps under another shape.
    pub(crate) roots: Vec<Val>,
    /// Why edges were not fused, a line each.
    pub(crate) notes: Vec<String>,
}

/// The groups that compute `roots`; `updates` are those roots that replace a donated leaf.
pub(crate) fn fuse(
    graph: &Graph,
    roots: &[Val],
    updates: &[Val],
    options: &Options,
    caps: &Caps,
) -> Result<Fused> {
    let mut cut = Cut::new(graph, roots, options, caps)?;
    let drafts = loop {
        match drafts(&cut) {
            Ok(drafts) => break drafts,
            // What is stored for one kernel is a load of others, so all are bounded and drafted again.
            Err(large) => {
                for (id, victim) in large {
                    cut.stored[victim as usize] = true;
                    let name = graph.node(victim).op.name();
                    let why =
                        format!("%{victim} {name}: stored, the kernel of %{id} has too many expressions");
                    cut.notes.push(why);
                }
                cut.bound();
            }
        }
    };
    let mut fused = Fused { roots: roots.iter().map(|r| cut.canon(*r)).collect(), ..Fused::default() };
    let updates: Vec<Val> = updates.iter().map(|v| cut.canon(*v)).collect();
    let mut merger = merge::Merger::new(&cut, drafts, &fused.roots, &updates);
    if options.fuse {
        merger.run();
    }
    let notes = merger.notes();
    let merge::Merger { drafts, order, .. } = merger;
    let mut ids: Vec<u32> = (0..drafts.len() as u32).filter(|k| drafts[*k as usize].is_some()).collect();
    ids.sort_unstable_by_key(|k| order.position(*k));
    let mut number = vec![0; drafts.len()];
    ids.iter().enumerate().for_each(|(i, k)| number[*k as usize] = i as u32);
    fused.before =
        ids.iter().map(|k| order.before(*k).iter().map(|b| number[*b as usize]).collect()).collect();
    let mut drafts = drafts;
    for k in ids {
        if let Some(mut draft) = drafts[k as usize].take() {
            build::addressable(&cut, &draft)?;
            coalesce::coalesce(&mut draft.group);
            draft.compact();
            fused.groups.push(draft.group);
        }
    }
    fused.notes = cut.notes;
    fused.notes.extend(notes);
    Ok(fused)
}

/// The kernels of every stored value; or those with too many expressions, each with what to store for it.
fn drafts(cut: &Cut<'_>) -> Result<Vec<draft::Draft>, Vec<(NodeId, NodeId)>> {
    let (mut drafts, mut large) = (Vec::new(), Vec::new());
    for id in 0..cut.live.len() as NodeId {
        if cut.live[id as usize] && cut.stored[id as usize] {
            match build::kernels(cut, id) {
                Ok(kernels) => drafts.extend(kernels),
                Err(build::Stop::Large(victim)) => large.push((id, victim)),
            }
        }
    }
    if large.is_empty() { Ok(drafts) } else { Err(large) }
}

/// The group that copies all of `from` to the place of `to`, a value of equal size.
pub(crate) fn copy_group(graph: &Graph, from: Val, to: Val) -> Group {
    let out = graph.out(from);
    let dims = [out.shape.elems()];
    let mut draft = draft::Draft::new(crate::Kind::Pointwise, &dims, 0);
    let all = crate::Index::identity(&dims);
    let (operand, index) = (draft.operand(from), draft.index(&all));
    let x = draft.expr(crate::Expr::Load { operand, index }, out.dtype);
    draft.store(to, x, &all, None);
    draft.group.nodes.push(to.node);
    draft.group
}
