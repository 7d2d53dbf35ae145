//! The graph in which chosen segments are computed twice.

use smallvec::SmallVec;

use super::segments::Segment;
use crate::{Graph, Node, NodeId, Phase, Val};

/// A graph with twins.
pub(super) struct Again {
    pub(super) graph: Graph,
    /// For each node of the graph given, where it is now.
    pub(super) moved: Vec<NodeId>,
    /// For each node of the new graph, the node it was made from.
    pub(super) origins: Vec<NodeId>,
    pub(super) phases: Vec<Phase>,
}

/// `graph` with a second computation of each of `segments` before the first node that reads it there.
pub(super) fn rebuild(graph: &Graph, segments: &[Segment], phases: &[Phase]) -> Again {
    let n = graph.nodes().len();
    let mut order: Vec<&Segment> = segments.iter().collect();
    order.sort_by_key(|s| (s.first, s.nodes[0]));
    let mut next = order.into_iter().peekable();
    let mut again = Again {
        graph: Graph::default(),
        moved: Vec::with_capacity(n),
        origins: Vec::with_capacity(n),
        phases: Vec::with_capacity(n),
    };
    graph.customs().for_each(|(id, spec)| again.graph.register(*id, spec));
    let mut twins: Vec<Option<NodeId>> = vec![None; n];
    for id in 0..n as NodeId {
        while let Some(segment) = next.next_if(|s| s.first == id) {
            again.twins(graph, segment, &mut twins);
        }
        let phase = phases.get(id as usize).copied().unwrap_or_default();
        let late = phase == Phase::Backward;
        let node = graph.node(id);
        let input = |v: &Val| match twins[v.node as usize] {
            Some(twin) if late => Val { node: twin, ..*v },
            _ => Val { node: again.moved[v.node as usize], ..*v },
        };
        let inputs = node.inputs.iter().map(input).collect();
        let after = node.after.iter().map(|a| again.moved[*a as usize]).collect();
        let at = again.push(Node { inputs, after, ..node.clone() }, id, phase);
        again.moved.push(at);
    }
    again
}

impl Again {
    fn push(&mut self, node: Node, origin: NodeId, phase: Phase) -> NodeId {
        self.origins.push(origin);
        self.phases.push(phase);
        self.graph.push(node)
    }

    /// The second computation of a segment. The first nodes that compute wait for the gradient; what only gives a
    /// value another shape does not, so that it stays a view.
    fn twins(&mut self, graph: &Graph, segment: &Segment, twins: &mut [Option<NodeId>]) {
        let wait = self.moved[segment.after as usize];
        // Whether what is behind a twin waits already.
        let mut waits: Vec<(NodeId, bool)> = Vec::with_capacity(segment.nodes.len());
        for id in &segment.nodes {
            let node = graph.node(*id);
            let mut waiting = false;
            let mut inputs: SmallVec<[Val; 4]> = SmallVec::new();
            for v in &node.inputs {
                let own = waits.binary_search_by_key(&v.node, |(id, _)| *id).ok();
                waiting |= own.is_some_and(|at| waits[at].1);
                let twin = own.and(twins[v.node as usize]);
                inputs.push(Val { node: twin.unwrap_or(self.moved[v.node as usize]), ..*v });
            }
            let mut after: SmallVec<[NodeId; 1]> =
                node.after.iter().map(|a| self.moved[*a as usize]).collect();
            if !waiting && !node.op.is_movement() {
                after.push(wait);
                waiting = true;
            }
            waits.push((*id, waiting));
            twins[*id as usize] =
                Some(self.push(Node { inputs, after, ..node.clone() }, *id, Phase::Backward));
        }
    }
}
