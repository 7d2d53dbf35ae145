//! What is worth keeping of a pass that is computed in parts: results that later parts need and that are
//! dear to compute again.

use wgrad_graph::{Op, Result};

use crate::cut::needed;
use crate::state::{FastSet, Pool, ValueKey};

/// Whether an operation costs no more than reading its operands: fusion repeats it in every consumer.
fn is_cheap(op: &Op) -> bool {
    op.is_movement()
        || matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast | Op::Random | Op::Iota { .. })
        || matches!(op, Op::Pad { .. } | Op::Concat { .. })
}

/// The values that `now` is computed from and `later` needs, if computing them again from what is kept would be
/// dear. Elementwise work is not, unless something dear reads its result, so that it is stored anyway.
pub(crate) fn kept_for(pool: &Pool, now: &[ValueKey], later: &[ValueKey]) -> Result<Vec<ValueKey>> {
    let at = |key: &ValueKey| {
        let value = pool.values[*key];
        (value.node, value.out)
    };
    let mut in_now = vec![false; pool.nodes.len()];
    let nodes = needed(pool, now)?;
    nodes.iter().for_each(|n| in_now[*n as usize] = true);
    // Nodes whose results something dear reads, through movements.
    let mut stored = vec![false; pool.nodes.len()];
    for index in nodes.iter().rev() {
        let node = &pool.nodes[*index as usize];
        let passes = node.op.is_movement() && stored[*index as usize];
        if passes || !is_cheap(&node.op) {
            node.inputs.iter().for_each(|k| stored[at(k).0 as usize] = true);
        }
    }
    let mut todo: Vec<(u32, u32)> = later.iter().map(at).collect();
    for index in needed(pool, later)?.into_iter().filter(|n| !in_now[*n as usize]) {
        todo.extend(pool.nodes[index as usize].inputs.iter().map(at));
    }
    let roots: FastSet<(u32, u32)> = now.iter().map(at).collect();
    let mut seen = FastSet::default();
    let mut kept = Vec::new();
    while let Some((index, out)) = todo.pop() {
        let node = &pool.nodes[index as usize];
        let outside = !in_now[index as usize] || matches!(node.op, Op::Input | Op::Scalar);
        if outside || roots.contains(&(index, out)) || !seen.insert((index, out)) {
            continue;
        }
        if node.op.is_movement() || is_cheap(&node.op) && !stored[index as usize] {
            todo.extend(node.inputs.iter().map(at));
        } else {
            kept.push((index, out));
        }
    }
    // In recorded order, so that equal passes have equal plans.
    kept.sort_unstable();
    Ok(kept.into_iter().map(|(node, out)| pool.nodes[node as usize].outs[out as usize].key).collect())
}
