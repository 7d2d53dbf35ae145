//! From the graph to groups: which values are stored, what each kernel computes, which kernels are one.

mod build;
mod cut;
mod draft;

use crate::{Caps, Graph, Group, NodeId, Options, Result, Val};
use cut::Cut;

/// Most nodes whose work is repeated inside one kernel.
const MAX_NODES: usize = 40;
/// Most expressions of one kernel.
const MAX_EXPRS: usize = 64;
/// Most operands of a concatenation that selects; more are written part by part.
const MAX_PARTS: usize = 4;

/// Groups in an order in which they can run.
#[derive(Debug, Default)]
pub(crate) struct Fused {
    /// The groups.
    pub(crate) groups: Vec<Group>,
    /// For each group: groups that run before it although it reads nothing of theirs.
    pub(crate) after: Vec<Vec<u32>>,
    /// For each root: the value that holds it, perhaps under another shape.
    pub(crate) roots: Vec<Val>,
    /// For each scalar of the graph that serves as an offset: its largest value.
    pub(crate) starts: std::collections::HashMap<NodeId, i64>,
    /// Why edges were not fused, a line each.
    pub(crate) notes: Vec<String>,
}

/// The groups that compute `roots`.
pub(crate) fn fuse(graph: &Graph, roots: &[Val], options: &Options, caps: &Caps) -> Result<Fused> {
    let mut cut = Cut::new(graph, roots, options, caps)?;
    let mut drafts = Vec::new();
    let mut todo: Vec<NodeId> = Vec::new();
    let mut late: Vec<NodeId> = Vec::new();
    for id in 0..graph.nodes().len() as NodeId {
        if !(cut.live[id as usize] && cut.stored[id as usize]) {
            continue;
        }
        todo.push(id);
        while let Some(id) = todo.pop() {
            match build::kernels(&cut, id) {
                Ok(kernels) => drafts.extend(kernels.into_iter().map(|k| (id, k))),
                Err(build::Stop::Large(victim)) => {
                    cut.stored[victim as usize] = true;
                    let name = graph.node(victim).op.name();
                    cut.notes.push(format!("%{victim} {name}: stored, the kernel of %{id} has too many expressions"));
                    late.push(victim);
                    todo.extend([id, victim]);
                }
            }
        }
    }
    drafts.sort_by_key(|(id, _)| *id);
    let mut fused = Fused { roots: roots.iter().map(|r| cut.canon(*r)).collect(), ..Fused::default() };
    for (_, draft) in drafts {
        build::addressable(&cut, &draft)?;
        fused.groups.push(draft.group);
        fused.after.push(Vec::new());
    }
    fused.starts = std::mem::take(&mut cut.starts);
    fused.notes = cut.notes;
    Ok(fused)
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
