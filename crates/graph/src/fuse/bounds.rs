//! Bounds of kernels: values are stored until no kernel has too many expressions, buffers or scalars.

use smallvec::SmallVec;

use super::MAX_NODES;
use super::cut::Cut;
use crate::{Graph, NodeId, Op, Val};

impl Cut<'_> {
    /// Stores values until no kernel has too many expressions, buffers or scalars. What is stored for one kernel
    /// is one more load of another that had all of its operands already, so every kernel is looked at again.
    pub(crate) fn bound(&mut self) {
        while self.store_for_bounds() {}
    }

    /// Looks at every kernel once; whether a value was stored.
    fn store_for_bounds(&mut self) -> bool {
        let mut any = false;
        let n = self.live.len();
        let most_loads = self.caps.max_buffers.saturating_sub(1).max(3);
        let most_words = (self.caps.immediate_bytes / 4).max(8);
        let mut closures: Vec<Option<Box<Closure>>> = (0..n).map(|_| None).collect();
        for id in 0..n {
            let op = self.graph.nodes()[id].op;
            if !self.live[id] || self.is_alias(id as NodeId) || matches!(op, Op::Input | Op::Scalar) {
                continue;
            }
            let inlined = self.inlined(id as NodeId);
            if matches!(op, Op::Concat { .. }) && self.is_anchor(id as NodeId) {
                continue; // A kernel for each part.
            }
            let room = most_loads - usize::from(matches!(op, Op::SliceAssign(_) | Op::SliceAssignAt { .. }));
            loop {
                let mut all = Closure::default();
                let mut victims: SmallVec<[([usize; 3], NodeId); 4]> = SmallVec::new();
                for v in &self.graph.nodes()[id].inputs {
                    all.scalar(self.graph, self.canon(*v));
                }
                if let Op::Gather { .. } = op {
                    all.load(self.graph.nodes()[id].inputs[0]);
                }
                for v in &inlined {
                    if self.in_memory(*v) {
                        all.load(*v);
                    } else if let Some(c) = &closures[v.node as usize] {
                        all.join(self.graph, c);
                        if c.loads.len() + c.nodes.len() > 2 {
                            victims.push(([c.scalars.len(), c.loads.len(), c.nodes.len()], v.node));
                        }
                    }
                }
                let over = [all.words > most_words, all.loads.len() > room, all.nodes.len() > MAX_NODES];
                let Some(kind) = over.iter().position(|o| *o).filter(|_| !victims.is_empty()) else {
                    if !op.is_movement() {
                        all.node(id as NodeId);
                    }
                    closures[id] = Some(Box::new(all));
                    break;
                };
                let most = victims.iter().max_by_key(|(sizes, _)| (sizes[kind], sizes[2], sizes[1]));
                let Some((_, most)) = most else { break };
                let mut victim = *most;
                while self.graph.node(victim).op.is_movement() {
                    victim = self.canon(self.graph.node(victim).inputs[0]).node;
                }
                let name = self.graph.node(victim).op.name();
                let what = ["scalars", "buffers", "expressions"][kind];
                self.notes.push(format!("%{victim} {name}: stored, the kernel of %{id} has too many {what}"));
                any |= !std::mem::replace(&mut self.stored[victim as usize], true);
                closures[victim as usize] = None;
                // Movements between here and there lead to a stored value now.
                let mut v = *most;
                while v != victim {
                    let mut one = Closure::default();
                    one.load(Val::of(victim));
                    closures[v as usize] = Some(Box::new(one));
                    v = self.canon(self.graph.node(v).inputs[0]).node;
                }
            }
        }
        any
    }
}

/// Nodes, values read and scalars of an expression.
#[derive(Clone, Default)]
struct Closure {
    nodes: SmallVec<[NodeId; 8]>,
    loads: SmallVec<[Val; 4]>,
    scalars: SmallVec<[NodeId; 4]>,
    /// Words that the scalars take.
    words: usize,
}

impl Closure {
    fn node(&mut self, id: NodeId) {
        if let Err(at) = self.nodes.binary_search(&id) {
            self.nodes.insert(at, id);
        }
    }

    fn load(&mut self, val: Val) {
        if let Err(at) = self.loads.binary_search(&val) {
            self.loads.insert(at, val);
        }
    }

    /// Counts `val` if it is a scalar.
    fn scalar(&mut self, graph: &Graph, val: Val) {
        let node = graph.node(val.node);
        if matches!(node.op, Op::Scalar)
            && let Err(at) = self.scalars.binary_search(&val.node)
        {
            self.scalars.insert(at, val.node);
            self.words += node.outs[0].dtype.bytes().div_ceil(4);
        }
    }

    fn join(&mut self, graph: &Graph, other: &Closure) {
        other.scalars.iter().for_each(|s| self.scalar(graph, Val::of(*s)));
        other.nodes.iter().for_each(|n| self.node(*n));
        other.loads.iter().for_each(|v| self.load(*v));
    }
}
