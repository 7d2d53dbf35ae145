//! Values that are stored although each kernel that reads them could as well read what they are computed from, which
//! lies in memory too: they are repeated instead, which costs no traffic and frees their bytes.

use std::collections::BTreeMap;

use super::cut::Cut;
use crate::{NodeId, Op, Val};

/// Most operations that are repeated, and of those most that are transcendental.
const MOST_OPS: u32 = 16;
const MOST_HARD: u32 = 2;
/// An operand that is so many times smaller than the value costs nothing to read.
const SMALL: usize = 16;

/// Takes back the choice to store such values; `forced` are those that no choice stored, `evals` how often each
/// value is evaluated where it is not stored.
pub(super) fn repeat(cut: &mut Cut<'_>, forced: &[bool], evals: &[u64]) {
    // Values computed from the bare result of a product or reduction, which one of them alone would replace.
    let mut bare: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for id in 0..cut.live.len() as NodeId {
        let at = id as usize;
        let chosen = cut.live[at] && cut.stored[at] && !forced[at] && !cut.is_anchor(id);
        let node = cut.graph.node(id);
        // What waits for others may be there to be computed late.
        if !chosen || !node.after.is_empty() || evals[at] > node.outs[0].shape.elems() as u64 {
            continue;
        }
        if let Some(from) = source(cut, id) {
            cut.stored[at] = false;
            if cut.is_anchor(from.node) {
                bare.entry(from.node).or_default().push(id);
            }
        }
    }
    for (anchor, all) in bare {
        if let [alone] = all[..] {
            cut.stored[alone as usize] = true;
        } else if let Some(half) = half(cut, all[0]) {
            // All of them from halves on the way, which are fewer bytes than the bare result.
            let at = half.node as usize;
            let was = std::mem::replace(&mut cut.stored[at], true);
            let narrow = bytes(cut, half) < bytes(cut, Val::of(anchor));
            cut.stored[at] = was || narrow && all.iter().all(|id| source(cut, *id) == Some(half));
        }
    }
}

/// What is nothing but halves as f32: the halves.
fn half(cut: &Cut<'_>, id: NodeId) -> Option<Val> {
    let node = cut.graph.node(id);
    let from = cut.canon(*node.inputs.first()?);
    let widens = node.op == Op::Cast && cut.graph.node(from.node).after.is_empty();
    let dtype = cut.graph.out(from).dtype;
    // Where two of them share a word, storing them takes more of a kernel.
    (widens && dtype.is_half() && !cut.packed(dtype)).then_some(from)
}

fn bytes(cut: &Cut<'_>, val: Val) -> usize {
    cut.graph.out(val).shape.elems() * cut.graph.out(val).dtype.bytes()
}

/// The one value as large as that of `id` from which it is computed element for element in little work, if it lies
/// in memory in any case.
fn source(cut: &Cut<'_>, id: NodeId) -> Option<Val> {
    let elems = |val: Val| cut.graph.out(val).shape.elems();
    let bytes = |val: Val| bytes(cut, val);
    let mine = Val::of(id);
    let (mut ops, mut hard) = (0, 0);
    let mut found: Option<Val> = None;
    let mut seen: Vec<Val> = vec![mine];
    let mut todo: Vec<(Val, bool)> = vec![(mine, false)];
    while let Some((val, moved)) = todo.pop() {
        let node = cut.graph.node(val.node);
        if val != mine && cut.in_memory(val) {
            if bytes(val) * SMALL <= bytes(mine) {
                continue;
            }
            let fits = !moved
                && elems(val) == elems(mine)
                && bytes(val) <= bytes(mine)
                && found.is_none_or(|known| known == val);
            if !fits {
                return None;
            }
            found = Some(val);
            continue;
        }
        match node.op {
            Op::Random | Op::Gather { .. } | Op::Pad { .. } | Op::Concat { .. } => return None,
            Op::Unary(u) => hard += u32::from(u.row().hard),
            Op::Binary(b) => hard += u32::from(b.row().hard),
            _ => {}
        }
        ops += u32::from(!node.op.is_movement() && node.op != Op::Scalar);
        if ops > MOST_OPS || hard > MOST_HARD {
            return None;
        }
        let moved = moved || node.op.is_movement();
        for v in cut.inlined(val.node) {
            if !seen.contains(&v) {
                seen.push(v);
                todo.push((v, moved));
            }
        }
    }
    found
}
