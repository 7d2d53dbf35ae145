//! Which forward nodes may be computed again together.

use std::collections::HashMap;
use std::ops::Range;

use crate::{Caps, Graph, Loc, NodeId, Op, Phase, Plan, Val};

/// A run of forward nodes of which the backward part reads inner values.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// The nodes that are computed again, ascending.
    pub(super) nodes: Vec<NodeId>,
    /// The first node of the backward part that reads one of them.
    pub(super) first: NodeId,
    /// The node of the backward part for which computing them again waits.
    pub(super) after: NodeId,
    /// Bytes that need not be held.
    pub(super) saved: u64,
    /// Work of computing them again, in multiply-adds.
    pub(super) cost: f64,
}

/// How many multiply-adds a device does in the time in which it moves a byte.
const WORK_A_BYTE: f64 = 6.0;

/// The forward part of a graph.
pub(super) struct Forward<'a> {
    graph: &'a Graph,
    late: Vec<bool>,
    /// The nodes that compute, in order.
    nodes: Vec<NodeId>,
    /// Runs of `nodes` without a late node in between.
    runs: Vec<Range<usize>>,
    /// For each node, bytes that the plan holds of it for the backward part.
    held: Vec<u64>,
    /// For each of `nodes`, bytes of values from up to there that forward nodes behind it read.
    crossing: Vec<u64>,
    /// For each node, the last forward node that reads it, perhaps through movements.
    last: Vec<NodeId>,
    /// For each node, the first late node that reads it.
    read: Vec<Option<NodeId>>,
}

fn computes(op: Op) -> bool {
    !matches!(op, Op::Input | Op::Scalar)
}

impl<'a> Forward<'a> {
    pub(super) fn of(graph: &'a Graph, phases: &[Phase], plan: &Plan, caps: &Caps) -> Forward<'a> {
        let n = graph.nodes().len();
        let phase = |id: usize| phases.get(id).copied().unwrap_or_default();
        let late: Vec<bool> =
            (0..n).map(|i| phase(i) == Phase::Backward && computes(graph.nodes()[i].op)).collect();
        let early = |id: usize| phase(id) == Phase::Forward && computes(graph.nodes()[id].op);
        let (mut nodes, mut runs): (Vec<NodeId>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        let mut broken = true;
        for (id, late) in late.iter().enumerate() {
            if early(id) {
                if std::mem::replace(&mut broken, false) {
                    runs.push(nodes.len()..nodes.len());
                }
                nodes.push(id as NodeId);
                if let Some(run) = runs.last_mut() {
                    run.end = nodes.len();
                }
            }
            broken |= *late;
        }
        let mut base: Vec<NodeId> = (0..n as NodeId).collect();
        let mut last: Vec<NodeId> = (0..n as NodeId).collect();
        let mut read: Vec<Option<NodeId>> = vec![None; n];
        for (id, node) in graph.nodes().iter().enumerate() {
            if node.op.is_movement()
                && let Some(v) = node.inputs.first()
            {
                base[id] = base[v.node as usize];
            }
            for v in &node.inputs {
                let of = base[v.node as usize] as usize;
                if early(id) {
                    last[of] = last[of].max(id as NodeId);
                    last[v.node as usize] = last[v.node as usize].max(id as NodeId);
                } else if late[id] {
                    read[v.node as usize].get_or_insert(id as NodeId);
                }
            }
        }
        let bytes = |id: NodeId| {
            let outs = graph.node(id).outs.iter();
            outs.map(|o| caps.value_bytes(o.shape.elems(), o.dtype) as u64).sum::<u64>()
        };
        let place = |id: NodeId| nodes.partition_point(|n| *n < id);
        let mut changes = vec![0i64; nodes.len() + 1];
        for (i, id) in nodes.iter().enumerate() {
            let end = place(last[*id as usize]);
            if base[*id as usize] == *id && end > i {
                changes[i] += bytes(*id) as i64;
                changes[end] -= bytes(*id) as i64;
            }
        }
        let mut now = 0;
        let crossing = changes.iter().take(nodes.len()).map(|change| {
            now += change;
            now as u64
        });
        let crossing = crossing.collect();
        Forward { graph, held: held(graph, &late, plan, caps), late, nodes, runs, crossing, last, read }
    }

    /// Segments that hold at least `1 / grain` of all held bytes, except those that would free nothing.
    pub(super) fn segments(&self, grain: u64) -> Vec<Segment> {
        let total: u64 = self.nodes.iter().map(|id| self.held[*id as usize]).sum();
        let least = (total / grain).max(1);
        let mut all = Vec::new();
        for run in &self.runs {
            let mut start = run.start;
            while start < run.end {
                let end = self.end(start, run.end, least);
                all.extend(self.segment(start..end));
                start = end;
            }
        }
        all
    }

    /// Where a segment from `start` on ends best: where it holds enough and least crosses.
    fn end(&self, start: usize, stop: usize, least: u64) -> usize {
        let mut sum = 0;
        let mut best: Option<(u64, usize)> = None;
        for at in start..stop {
            sum += self.held[self.nodes[at] as usize];
            let crossing = self.crossing[at];
            // The latest of those that are about as good.
            if sum >= least && best.is_none_or(|(known, _)| crossing <= known + known / 16) {
                best = Some((best.map_or(crossing, |(known, _)| known.min(crossing)), at + 1));
            }
            if sum >= least.saturating_mul(2) {
                break;
            }
        }
        match best {
            Some((_, end)) => end,
            None => stop,
        }
    }

    fn segment(&self, range: Range<usize>) -> Option<Segment> {
        let ids = &self.nodes[range.clone()];
        let end = *ids.last()?;
        let inner = |id: NodeId| self.last[id as usize] <= end;
        let mut again = vec![false; range.len()];
        let (mut first, mut saved) = (None::<NodeId>, 0);
        for (i, id) in ids.iter().enumerate().rev() {
            if let Some(reader) = self.read[*id as usize].filter(|_| inner(*id)) {
                again[i] = true;
                first = Some(first.map_or(reader, |f| f.min(reader)));
            }
            if !again[i] {
                continue;
            }
            saved += self.held[*id as usize];
            for v in &self.graph.node(*id).inputs {
                if let Ok(at) = ids.binary_search(&v.node)
                    && inner(v.node)
                {
                    again[at] = true;
                }
            }
        }
        let first = first?;
        let waits = |id: &NodeId| self.late[*id as usize] && !self.graph.node(*id).op.is_movement();
        let after = (end + 1..first).rev().find(waits)?;
        let nodes: Vec<NodeId> =
            ids.iter().zip(&again).filter(|(_, again)| **again).map(|(id, _)| *id).collect();
        let cost = nodes.iter().map(|id| self.work(*id)).sum::<f64>().max(1.0);
        (saved > 0).then_some(Segment { nodes, first, after, saved, cost })
    }

    fn work(&self, id: NodeId) -> f64 {
        let node = self.graph.node(id);
        let out = node.outs.iter().map(|o| o.shape.elems() as f64).sum::<f64>();
        let read = || node.inputs.iter().map(|v| self.graph.out(*v).shape.elems() as f64).sum::<f64>();
        match (node.op, node.inputs.first()) {
            (op, _) if op.is_movement() => 0.0,
            (Op::MatMul, Some(a)) => {
                let shape = self.graph.out(*a).shape;
                out * shape[shape.rank() - 1] as f64
            }
            // Pointwise work is done where its operands pass by.
            (Op::Reduce { .. } | Op::ArgReduce { .. }, _) => read() * WORK_A_BYTE,
            (op, _) if op.is_whole() => (read() + out) * 4.0 * WORK_A_BYTE,
            _ => out * WORK_A_BYTE,
        }
    }
}

/// For each forward node, bytes of its values that lie in the workspace until a step of the backward part.
fn held(graph: &Graph, late: &[bool], plan: &Plan, caps: &Caps) -> Vec<u64> {
    let mut held = vec![0; graph.nodes().len()];
    let mut stored: HashMap<Val, bool> = HashMap::new();
    for step in &plan.steps {
        for (store, loc) in step.group.stores.iter().zip(&step.writes) {
            if matches!(loc, Loc::Slot(_)) {
                stored.insert(store.val, false);
            }
        }
        if step.group.nodes.iter().any(|id| late[*id as usize]) {
            for val in &step.group.operands {
                if let Some(read) = stored.get_mut(val).filter(|_| !late[val.node as usize]) {
                    *read = true;
                }
            }
        }
    }
    for (val, _) in stored.iter().filter(|(_, read)| **read) {
        let out = graph.out(*val);
        held[val.node as usize] += caps.value_bytes(out.shape.elems(), out.dtype) as u64;
    }
    held
}
