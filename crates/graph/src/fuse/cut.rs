//! Which values are stored. Everything else is repeated inside the kernels that need it.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::MAX_PARTS;
use crate::{Caps, DType, Fast, Graph, Index, NodeId, Op, Options, Result, Val, View, bail};

/// What is computed and what of it is stored.
#[derive(Debug)]
pub(crate) struct Cut<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) caps: &'a Caps,
    fuse: bool,
    /// Nodes that some root needs.
    pub(crate) live: Vec<bool>,
    /// Nodes whose values are stored by a kernel.
    pub(crate) stored: Vec<bool>,
    /// For nodes that are another value under another shape: that value.
    alias: Vec<Option<Val>>,
    /// The largest start of each scalar that serves as an offset.
    pub(crate) starts: HashMap<NodeId, i64>,
    /// Why edges were not fused.
    pub(crate) notes: Vec<String>,
}

/// What inlining a value would cost, upwards to the next values that are stored in any case.
#[derive(Copy, Clone, Default)]
struct Cost {
    /// Elementwise operations.
    ops: u32,
    /// Of those, transcendental ones.
    hard: u32,
    /// Whether random bits or gathers are among them.
    heavy: bool,
    /// Bytes read.
    bytes: u64,
    /// The latest product or reduction of the same size among what is read.
    anchor: Option<NodeId>,
    /// The latest of the other computed values that are read.
    newest: Option<NodeId>,
}

impl Cost {
    /// Whether the value can be computed where its product or reduction is: all else is older.
    fn anchored(&self) -> bool {
        self.anchor.is_some() && self.newest < self.anchor
    }
}

/// Kernels in which a value is inlined, as far as they are counted.
type Users = SmallVec<[NodeId; 4]>;
const MANY: usize = 8;

impl<'a> Cut<'a> {
    pub(crate) fn new(graph: &'a Graph, roots: &[Val], options: &Options, caps: &'a Caps) -> Result<Cut<'a>> {
        let n = graph.nodes().len();
        let mut cut = Cut {
            graph,
            caps,
            fuse: options.fuse,
            live: vec![false; n],
            stored: vec![false; n],
            alias: vec![None; n],
            starts: HashMap::new(),
            notes: Vec::new(),
        };
        roots.iter().for_each(|r| cut.live[r.node as usize] = true);
        for id in (0..n).rev() {
            if cut.live[id] {
                let node = &graph.nodes()[id];
                node.inputs.iter().for_each(|v| cut.live[v.node as usize] = true);
            }
        }
        for id in 0..n {
            if cut.live[id] {
                cut.check(id as NodeId)?;
                cut.alias[id] = cut.alias_of(id as NodeId);
            }
        }
        for root in roots {
            let val = cut.canon(*root);
            cut.force(val);
        }
        for id in 0..n {
            if cut.live[id] {
                cut.demand(id as NodeId);
            }
        }
        if options.fuse {
            let cost = cut.costs();
            let forced = cut.stored.clone();
            let evals = cut.choose(&cost);
            if caps.allows(Fast::Repeats) {
                super::again::repeat(&mut cut, &forced, &evals);
            }
        } else {
            for id in 0..n {
                let op = graph.nodes()[id].op;
                cut.stored[id] |=
                    cut.live[id] && cut.alias[id].is_none() && !matches!(op, Op::Input | Op::Scalar);
            }
        }
        cut.bound();
        Ok(cut)
    }

    fn check(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        let scalars = match node.op {
            Op::Random => &node.inputs[..],
            Op::SliceAt { .. } => &node.inputs[1..],
            Op::SliceAssignAt { .. } => &node.inputs[2..],
            _ => &[],
        };
        for v in scalars {
            if self.graph.node(self.canon(*v).node).op != Op::Scalar {
                bail!(
                    Argument,
                    node.op.name(),
                    "%{id}: operand {v:?} has to be a scalar known at submission"
                );
            }
        }
        if let Some(after) = node.after.iter().find(|a| **a >= id) {
            bail!(Argument, node.op.name(), "%{id} cannot run after %{after}, which is recorded later");
        }
        let limit = match node.op {
            Op::SliceAt { axis } => {
                let axis = usize::from(axis);
                self.graph.out(node.inputs[0]).shape[axis] - node.outs[0].shape[axis]
            }
            Op::SliceAssignAt { axis } => {
                let axis = usize::from(axis);
                node.outs[0].shape[axis] - self.graph.out(node.inputs[1]).shape[axis]
            }
            _ => return Ok(()),
        };
        let start = self.start(node.inputs[node.inputs.len() - 1]);
        let known = self.starts.entry(start).or_insert(i64::MAX);
        *known = (*known).min(limit as i64);
        Ok(())
    }

    /// The scalar node of a start.
    pub(crate) fn start(&self, val: Val) -> NodeId {
        self.canon(val).node
    }

    fn alias_of(&self, id: NodeId) -> Option<Val> {
        let node = self.graph.node(id);
        if !node.after.is_empty() {
            return None;
        }
        let from = self.graph.out(*node.inputs.first()?);
        let to = node.outs[0];
        let same = match node.op {
            Op::Reshape => true,
            Op::Permute(_) | Op::Expand | Op::Slice(_) | Op::Windows { .. } | Op::Diagonal { .. } => {
                from.shape.elems() == to.shape.elems()
                    && (to.shape.elems() == 0
                        || View::of_movement(&node.op, from.shape, to.shape, 0).is_linear())
            }
            Op::Concat { .. } => node.inputs.len() == 1,
            Op::Cast => from.dtype == to.dtype,
            Op::Reduce { .. } => from.shape == to.shape,
            _ => false,
        };
        same.then(|| self.canon(node.inputs[0]))
    }

    /// The value itself, behind nodes that only give it another shape.
    pub(crate) fn canon(&self, val: Val) -> Val {
        self.alias[val.node as usize].unwrap_or(val)
    }

    pub(crate) fn is_alias(&self, id: NodeId) -> bool {
        self.alias[id as usize].is_some()
    }

    /// Whether the value lies in memory.
    pub(crate) fn in_memory(&self, val: Val) -> bool {
        self.stored[val.node as usize] || self.graph.node(val.node).op == Op::Input
    }

    /// Stored values from which `val` is computed; itself where it is stored.
    pub(crate) fn sources(&self, val: Val) -> Vec<Val> {
        let mut sources = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut todo = vec![self.canon(val)];
        while let Some(val) = todo.pop() {
            if !self.live[val.node as usize] || !seen.insert(val) {
                continue;
            }
            if self.stored[val.node as usize] {
                let outs = self.graph.node(val.node).outs.len() as u32;
                sources.extend((0..outs).map(|out| Val { node: val.node, out }));
            } else {
                todo.extend(self.graph.node(val.node).inputs.iter().map(|v| self.canon(*v)));
            }
        }
        sources
    }

    fn force(&mut self, val: Val) {
        if self.graph.node(val.node).op != Op::Input {
            self.stored[val.node as usize] = true;
        }
    }

    /// Whether a word of the dtype holds several elements.
    pub(crate) fn packed(&self, dtype: DType) -> bool {
        self.caps.packed(dtype)
    }

    /// Whether the node is a loop of its own, whose value is stored unless an epilogue takes it.
    pub(crate) fn is_anchor(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        match node.op {
            Op::Reduce { .. } | Op::ArgReduce { .. } | Op::MatMul | Op::Scatter { .. } | Op::Custom(_) => {
                true
            }
            op if op.is_whole() || op.attend().is_some() => true,
            Op::SliceAssign(_) | Op::SliceAssignAt { .. } => !self.packed(node.outs[0].dtype),
            Op::Concat { .. } => node.inputs.len() > MAX_PARTS.min(self.caps.max_buffers - 1),
            _ => false,
        }
    }

    /// The value behind movements, and the index to it; stops where `stop` says so.
    fn behind(&self, val: Val, index: Index, stop: &dyn Fn(Val, &Index) -> bool) -> (Val, Index) {
        let (mut val, mut index) = (self.canon(val), index);
        loop {
            let node = self.graph.node(val.node);
            let moves = node.op.is_movement() && !matches!(node.op, Op::SliceAt { .. });
            // A node that waits for others has to be seen by the kernel that computes it.
            let moves = moves && node.after.is_empty();
            if !moves || stop(val, &index) {
                return (val, index);
            }
            let from = self.graph.out(node.inputs[0]).shape;
            index = index.then(&View::of_movement(&node.op, from, node.outs[0].shape, 0), &[]);
            val = self.canon(node.inputs[0]);
        }
    }

    /// An operand that a kernel reads by strides: what has to be stored, and the index to it.
    pub(crate) fn strided(&self, val: Val, index: &Index) -> (Val, Index) {
        self.behind(val, index.clone(), &|v, i| self.in_memory(v) && i.is_strided())
    }

    /// A factor of a product: what has to be stored, and the index to it, a sum over digits.
    pub(crate) fn factor(&self, val: Val, index: &Index) -> (Val, Index) {
        let fits = |v: Val, i: &Index| self.in_memory(v) && i.digits().is_some();
        let Some((half, at)) = self.widened(val, index) else {
            return self.behind(val, index.clone(), &fits);
        };
        let narrow = self.behind(half, at, &fits);
        if fits(narrow.0, &narrow.1) && self.graph.out(narrow.0).dtype.is_half() {
            return narrow;
        }
        self.behind(val, index.clone(), &fits)
    }

    /// Where `val` is nothing but halves as f32, behind movements, and products take them: the halves, and the
    /// index to them.
    fn widened(&self, val: Val, index: &Index) -> Option<(Val, Index)> {
        if !self.caps.half_factors || !self.fuse {
            return None;
        }
        let (wide, at) = self.behind(val, index.clone(), &|_, _| false);
        let node = self.graph.node(wide.node);
        let from = *node.inputs.first()?;
        let is_cast = node.op == Op::Cast && node.outs[0].dtype == DType::F32 && node.after.is_empty();
        (is_cast && self.graph.out(from).dtype.is_half()).then_some((self.canon(from), at))
    }

    /// An operand that a kernel reads whole and row-major.
    pub(crate) fn whole(&self, val: Val) -> Val {
        let shape = self.graph.out(val).shape;
        let index = Index::identity(shape.dims());
        let whole = |v: Val, i: &Index| i.is_linear() && self.graph.out(v).shape.elems() == shape.elems();
        let (base, at) = self.behind(val, index, &|v, i| self.in_memory(v) && whole(v, i));
        if whole(base, &at) { base } else { self.canon(val) }
    }

    fn demand_strided(&mut self, id: NodeId, val: Val, index: &Index) {
        self.demand_view(id, val, index, Index::is_strided);
    }

    fn demand_view(&mut self, id: NodeId, val: Val, index: &Index, fits: impl Fn(&Index) -> bool) {
        let (base, at) = self.behind(val, index.clone(), &|_, _| false);
        if fits(&at) {
            return self.force(base);
        }
        let name = self.graph.node(id).op.name();
        self.notes.push(format!(
            "%{id} {name}: operand {val:?} is no strided view of {base:?}; it is materialised"
        ));
        let val = self.canon(val);
        self.force(val);
    }

    /// Marks what the node needs in memory.
    fn demand(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        if self.is_alias(id) {
            return;
        }
        if self.is_anchor(id) {
            self.stored[id as usize] = true;
        }
        match node.op {
            Op::MatMul => {
                let (a, b, _) = super::build::matmul_indices(graph, id);
                for (val, index) in [(node.inputs[0], a), (node.inputs[1], b)] {
                    let (half, at) = self.widened(val, &index).unwrap_or((val, index.clone()));
                    let (_, whole) = self.behind(half, at.clone(), &|_, _| false);
                    if half != val && whole.digits().is_some() {
                        self.demand_view(id, half, &at, |i| i.digits().is_some());
                    } else {
                        self.demand_view(id, val, &index, |i| i.digits().is_some());
                    }
                }
            }
            Op::Scatter { axis, .. } => {
                let (_, index) =
                    super::build::scatter_index(graph.out(node.inputs[0]).shape, usize::from(axis));
                self.demand_strided(id, node.inputs[0], &index);
                self.demand_strided(id, node.inputs[1], &index);
            }
            Op::Gather { .. } => {
                let x = graph.out(node.inputs[0]).shape;
                self.demand_strided(id, node.inputs[0], &Index::identity(x.dims()));
            }
            op if op.attend().is_some() => {
                for v in &node.inputs {
                    let index = Index::identity(graph.out(*v).shape.dims());
                    self.demand_strided(id, *v, &index);
                }
            }
            op if matches!(op, Op::Custom(_)) || op.is_whole() => {
                for v in &node.inputs {
                    let val = self.whole(*v);
                    self.force(val);
                }
            }
            Op::Concat { .. } if self.is_anchor(id) && self.packed(node.outs[0].dtype) => {
                for v in &node.inputs {
                    let val = self.canon(*v);
                    self.force(val);
                }
            }
            Op::SliceAssign(_) if self.is_anchor(id) => {
                let base = self.canon(node.inputs[0]);
                self.force(base);
            }
            Op::SliceAssignAt { .. } => {
                let kept = if self.is_anchor(id) { 0 } else { 1 };
                let val = self.canon(node.inputs[kept]);
                self.force(val);
            }
            _ => {}
        }
    }

    fn bytes(&self, val: Val) -> u64 {
        let out = self.graph.out(val);
        (out.shape.elems() * out.dtype.bytes()) as u64
    }

    /// Operands whose computation goes on inside the kernel of node `id` unless they are stored.
    pub(crate) fn inlined(&self, id: NodeId) -> SmallVec<[Val; 4]> {
        let node = self.graph.node(id);
        let inputs = &node.inputs;
        let some: &[Val] = match node.op {
            Op::Input | Op::Scalar | Op::Random | Op::Iota { .. } => &[],
            Op::MatMul | Op::Scatter { .. } | Op::Custom(_) => &[],
            op if op.is_whole() || op.attend().is_some() => &[],
            Op::SliceAt { .. } => &inputs[..1],
            Op::Gather { .. } => &inputs[1..],
            Op::SliceAssign(_) | Op::SliceAssignAt { .. } if self.is_anchor(id) => &inputs[1..2],
            Op::SliceAssign(_) | Op::SliceAssignAt { .. } => &inputs[..2],
            _ => inputs,
        };
        some.iter().map(|v| self.canon(*v)).collect()
    }

    fn costs(&self) -> Vec<Cost> {
        let mut costs = vec![Cost::default(); self.live.len()];
        for id in 0..self.live.len() {
            let node = &self.graph.nodes()[id];
            if !self.live[id] || self.alias[id].is_some() || matches!(node.op, Op::Input | Op::Scalar) {
                continue;
            }
            let mut cost = Cost::default();
            let elems = node.outs[0].shape.elems();
            for v in self.inlined(id as NodeId) {
                if self.in_memory(v) {
                    cost.bytes += self.bytes(v);
                    let same = self.graph.out(v).shape.elems() == elems;
                    match self.graph.node(v.node).op {
                        Op::MatMul | Op::Reduce { .. } if same => cost.anchor = cost.anchor.max(Some(v.node)),
                        Op::Input => {}
                        _ => cost.newest = cost.newest.max(Some(v.node)),
                    }
                } else {
                    let c = costs[v.node as usize];
                    cost.ops = cost.ops.saturating_add(c.ops).min(1 << 16);
                    cost.hard = cost.hard.saturating_add(c.hard).min(1 << 16);
                    cost.heavy |= c.heavy;
                    cost.bytes = cost.bytes.saturating_add(c.bytes);
                    cost.newest = cost.newest.max(c.newest);
                    if self.graph.out(v).shape.elems() == elems {
                        cost.anchor = cost.anchor.max(c.anchor);
                    } else {
                        cost.newest = cost.newest.max(c.anchor);
                    }
                }
            }
            match node.op {
                Op::Random => cost.heavy = true,
                Op::Gather { .. } => {
                    cost.heavy = true;
                    cost.bytes += self.bytes(Val::of(id as NodeId));
                }
                Op::Unary(u) => cost.hard += u32::from(u.row().hard),
                Op::Binary(b) => cost.hard += u32::from(b.row().hard),
                _ => {}
            }
            cost.ops += u32::from(!node.op.is_movement() && !matches!(node.op, Op::Iota { .. }));
            costs[id] = cost;
        }
        costs
    }

    /// Decides, consumers first, which values with several consumers are stored; for each value, how often it is
    /// evaluated where it is not.
    fn choose(&mut self, costs: &[Cost]) -> Vec<u64> {
        let n = self.live.len();
        let mut users: Vec<Users> = vec![Users::new(); n];
        let mut evals = vec![0u64; n];
        for id in (0..n).rev() {
            if !self.live[id] || self.alias[id].is_some() {
                continue;
            }
            let node = &self.graph.nodes()[id];
            if matches!(node.op, Op::Input | Op::Scalar) {
                continue;
            }
            if !self.stored[id] && self.worth_storing(id as NodeId, costs[id], users[id].len(), evals[id]) {
                self.stored[id] = true;
            }
            let stored = self.stored[id];
            let at = match node.op {
                Op::Reduce { .. } | Op::ArgReduce { .. } => self.graph.out(node.inputs[0]).shape.elems(),
                Op::SliceAssign(_) | Op::SliceAssignAt { .. } if self.is_anchor(id as NodeId) => {
                    self.graph.out(node.inputs[1]).shape.elems()
                }
                _ => node.outs[0].shape.elems(),
            };
            let at = if stored { at as u64 } else { evals[id] };
            let mine =
                if stored { SmallVec::from_slice(&[id as NodeId]) } else { std::mem::take(&mut users[id]) };
            for v in self.inlined(id as NodeId) {
                let v = v.node as usize;
                evals[v] = evals[v].max(at);
                for user in &mine {
                    if users[v].len() < MANY && !users[v].contains(user) {
                        users[v].push(*user);
                    }
                }
            }
        }
        evals
    }

    fn worth_storing(&mut self, id: NodeId, cost: Cost, users: usize, evals: u64) -> bool {
        let node = self.graph.node(id);
        // A pad is a guard around a load: what it pads is stored, if anything.
        if node.op.is_movement() || matches!(node.op, Op::Pad { .. }) || cost.ops == 0 {
            return false;
        }
        let elems = node.outs[0].shape.elems() as u64;
        let name = node.op.name();
        let mut why = None;
        if evals > elems.saturating_mul(2) && cost.bytes > 0 {
            if cost.anchored() || cost.heavy || cost.hard > 0 || cost.ops > 3 {
                why = Some("is repeated along an axis");
            }
        } else if users > 1 {
            let size = self.bytes(Val::of(id));
            let k = users as u64;
            if cost.heavy {
                why = Some("has several consumers and is dear to repeat");
            } else if cost.anchored() {
                why = Some("has several consumers and its kernel stores it for free");
            } else if k * cost.bytes > cost.bytes + (k + 1) * size
                || cost.ops > 16
                || cost.hard * users as u32 > 8
            {
                why = Some("has several consumers and reading it is cheaper than repeating it");
            }
        }
        if let Some(why) = why {
            self.notes.push(format!("%{id} {name}: stored, {why}"));
        }
        why.is_some()
    }
}
