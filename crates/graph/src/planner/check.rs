//! What must hold of every plan: the proof of bounds behind which kernels run unchecked, and the rules
//! of places and lifetimes.

use std::collections::{BTreeMap, HashMap};

use super::layout::reads_in_place;
use crate::{Caps, Expr, Group, Home, Index, IndexId, Kind, LeafKind, Loc, NodeId, Op, Plan, Val};

macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}

impl Plan {
    /// For each of [`Plan::scalars`]: the largest value that it may have, where it is the start of a
    /// slice. Whoever submits checks it.
    pub fn scalar_limits(&self) -> Vec<Option<usize>> {
        let starts = self.starts();
        self.scalars.iter().map(|s| starts.get(s).map(|l| *l as usize)).collect()
    }

    fn starts(&self) -> HashMap<u32, i64> {
        let mut starts: HashMap<u32, i64> = HashMap::new();
        for node in self.steps.iter().flat_map(|s| &s.group.nodes).map(|n| self.graph.node(*n)) {
            let (whole, part, axis) = match node.op {
                Op::SliceAt { axis } => (self.graph.out(node.inputs[0]), node.outs[0], axis),
                Op::SliceAssignAt { axis } => (node.outs[0], self.graph.out(node.inputs[1]), axis),
                _ => continue,
            };
            let mut start = node.inputs[node.inputs.len() - 1].node;
            while self.graph.node(start).op != Op::Scalar && !self.graph.node(start).inputs.is_empty() {
                start = self.graph.node(start).inputs[0].node;
            }
            let limit = (whole.shape[usize::from(axis)] - part.shape[usize::from(axis)]) as i64;
            let known = starts.entry(start).or_insert(limit);
            *known = limit.min(*known);
        }
        starts
    }

    /// Proves that every index of every group stays inside its value, given that scalars which are
    /// starts keep their limits.
    ///
    /// # Errors
    /// The group and index for which the proof fails.
    pub fn bounds(&self) -> Result<(), String> {
        let starts = self.starts();
        for step in &self.steps {
            let group = &step.group;
            let limits: Vec<i64> =
                group.scalars.iter().map(|s| starts.get(s).copied().unwrap_or(i64::MAX)).collect();
            let elems = |val: Val| self.graph.out(val).shape.elems();
            let index = |i: IndexId| &group.body.indices[usize::from(i)];
            let inside = |i: IndexId, val: Val, more: i64| {
                let ok = index(i).is_inside((elems(val) as i64 - more.max(0)).max(0) as usize, &limits)
                    && (more >= 0 || shifted(index(i), more).is_inside(elems(val), &limits));
                if ok { Ok(()) } else { Err(format!("{group}: index {i} {:?} into {val:?}", index(i))) }
            };
            for (expr, _) in &group.body.exprs {
                match *expr {
                    Expr::Load { operand, index } => inside(index, group.operands[usize::from(operand)], 0)?,
                    Expr::Gather { operand, index, stride, size, .. } if size > 0 => {
                        inside(index, group.operands[usize::from(operand)], (size as i64 - 1) * stride)?;
                    }
                    _ => {}
                }
            }
            match &group.kind {
                Kind::MatMul { a, b } | Kind::Scatter { at: a, src: b, .. } => {
                    inside(a.1, group.operands[usize::from(a.0)], 0)?;
                    inside(b.1, group.operands[usize::from(b.0)], 0)?;
                }
                Kind::Attention(_, ins) => {
                    for (operand, index) in ins {
                        inside(*index, group.operands[usize::from(*operand)], 0)?;
                    }
                }
                _ => {}
            }
            let more = match group.kind {
                Kind::Scatter { stride, size, .. } => (size as i64 - 1).max(0) * stride,
                _ => 0,
            };
            for s in &group.stores {
                if elems(s.val) > 0 {
                    inside(s.index, s.val, more)?;
                }
            }
        }
        Ok(())
    }

    /// Checks every rule of plans: places, lifetimes, order, in-place updates, bounds, limits.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self, caps: &Caps) -> Result<(), String> {
        self.bounds()?;
        for (i, step) in self.steps.iter().enumerate() {
            self.check_group(&step.group, caps).map_err(|why| format!("step {i}: {why}"))?;
            let sizes = (step.reads.len(), step.writes.len());
            ensure!(sizes == (step.group.operands.len(), step.group.stores.len()), "step {i}: places");
        }
        self.check_slots(caps)?;
        self.check_contents()
    }

    fn check_group(&self, group: &Group, caps: &Caps) -> Result<(), String> {
        let exprs = &group.body.exprs;
        for (i, (expr, _)) in exprs.iter().enumerate() {
            let mut earlier = true;
            expr.operands(|x| earlier &= (x as usize) < i);
            ensure!(earlier, "{group}: expression {i} refers to a later one");
        }
        let alone = matches!(group.kind, Kind::Whole(_) | Kind::Attention(..) | Kind::Custom(_));
        let buffers = group.operands.len() + group.stores.len();
        ensure!(alone || buffers <= caps.max_buffers, "{group}: {buffers} buffers");
        let words = |s: &NodeId| self.graph.node(*s).outs[0].dtype.bytes().div_ceil(4);
        let words: usize = group.scalars.iter().map(words).sum();
        ensure!(alone || words * 4 <= caps.immediate_bytes, "{group}: {words} words of scalars");
        let mut operands = group.operands.clone();
        operands.sort_unstable();
        operands.dedup();
        ensure!(alone || operands.len() == group.operands.len(), "{group}: an operand is named twice");
        if let Kind::MatMul { a, b } = group.kind {
            ensure!(group.dims.len() >= 3 && group.reduced == 1, "{group}: dims of a product");
            for (_, i) in [a, b] {
                let index = &group.body.indices[usize::from(i)];
                ensure!(index.digits().is_some(), "{group}: operand {index:?} is no sum over digits");
            }
        }
        if group.kind == Kind::Row {
            group.check_rows()?;
        }
        for s in &group.stores {
            let out = self.graph.out(s.val);
            let index = &group.body.indices[usize::from(s.index)];
            let space = group.store_space(s);
            ensure!(alone || index.views[0].dims.len() == space.len(), "{group}: rank of a store");
            ensure!(index.views.iter().all(|v| v.valid.is_none()), "{group}: a store is not always valid");
            if caps.packed(out.dtype) && !alone {
                ensure!(
                    group.kind == Kind::Pointwise && (index.is_linear() || out.shape.elems() == 0),
                    "{group}: store of packed {out:?}"
                );
            }
            let bodied =
                matches!(group.kind, Kind::Pointwise | Kind::Reduce | Kind::Row | Kind::MatMul { .. });
            ensure!(!bodied || exprs[s.x as usize].1 == out.dtype, "{group}: dtype of {:?}", s.val);
            let n: usize = space.iter().product();
            if bodied && n <= 4096 {
                ensure!(is_injective(index, space), "{group}: store {index:?} is not injective");
                // Parts of a concatenation follow each other; the contents are compared by tests.
                let whole = n == out.shape.elems() || s.base.is_some();
                ensure!(
                    whole || matches!(self.graph.node(s.val.node).op, Op::Concat { .. }),
                    "{group}: a part"
                );
            }
        }
        Ok(())
    }

    /// First and last step of each step's batch.
    fn batches(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(self.steps.len());
        let mut first = 0;
        for i in 0..self.steps.len() {
            if i + 1 == self.steps.len() || self.steps[i + 1].batch != self.steps[i].batch {
                ranges.resize(i + 1, (first as u32, i as u32));
                first = i + 1;
            }
        }
        ranges
    }

    fn check_slots(&self, caps: &Caps) -> Result<(), String> {
        let mut upload = 0;
        for leaf in self.leaves.iter().filter(|l| l.kind == LeafKind::Upload) {
            let out = self.graph.node(leaf.node).outs[0];
            ensure!(leaf.offset_bytes == upload, "upload %{} lies at {}", leaf.node, leaf.offset_bytes);
            upload += caps.value_bytes(out.shape.elems(), out.dtype);
        }
        ensure!(upload == self.upload_bytes, "upload block has {upload} bytes");
        let batches = self.batches();
        let mut events: Vec<(u32, bool, usize)> = Vec::new();
        for (i, slot) in self.slots.iter().enumerate() {
            let end = slot.offset_bytes + slot.bytes;
            ensure!(slot.offset_bytes.is_multiple_of(caps.align_bytes), "slot {i} is not aligned");
            ensure!(
                slot.offset_bytes >= self.upload_bytes && end <= self.workspace_bytes,
                "slot {i} is outside"
            );
            events.push((batches[slot.born as usize].0 * 2, true, i));
            events.push((batches[slot.dies as usize].1 * 2 + 1, false, i));
        }
        events.sort_unstable();
        let mut live: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, born, i) in events {
            let slot = &self.slots[i];
            if !born {
                live.remove(&slot.offset_bytes);
                continue;
            }
            let end = slot.offset_bytes + slot.bytes;
            let before = live.range(..=slot.offset_bytes).next_back();
            let clash = before
                .filter(|(_, e)| **e > slot.offset_bytes)
                .or_else(|| live.range(slot.offset_bytes..).next().filter(|(o, _)| **o < end));
            ensure!(clash.is_none(), "slot {i} overlaps a live one at {clash:?}");
            live.insert(slot.offset_bytes, end);
        }
        Ok(())
    }

    fn check_contents(&self) -> Result<(), String> {
        let batches = self.batches();
        let mut holds: HashMap<Loc, Val> = HashMap::new();
        for (i, leaf) in self.leaves.iter().enumerate() {
            holds.insert(Loc::Leaf(i as u32), Val::of(leaf.node));
        }
        for (i, step) in self.steps.iter().enumerate() {
            let group = &step.group;
            let spans = |loc: &Loc| match loc {
                Loc::Slot(s) => {
                    let slot = &self.slots[*s as usize];
                    (slot.born..=slot.dies).contains(&(i as u32))
                }
                Loc::Leaf(l) => (*l as usize) < self.leaves.len(),
                Loc::Out(o) => (*o as usize) < self.outputs.len(),
            };
            ensure!(step.reads.iter().chain(&step.writes).all(spans), "step {i}: a slot outside its life");
            for (val, loc) in group.operands.iter().zip(&step.reads) {
                ensure!(
                    holds.get(loc) == Some(val),
                    "step {i} reads {val:?} from {loc}, which holds {:?}",
                    holds.get(loc)
                );
            }
            for (s, loc) in group.stores.iter().zip(&step.writes) {
                if let Loc::Leaf(leaf) = loc {
                    ensure!(
                        self.leaves[*leaf as usize].kind == LeafKind::Donated,
                        "step {i} overwrites leaf {leaf}"
                    );
                }
                if let Some(base) = s.base {
                    let held = holds.get(loc);
                    ensure!(held == Some(&base) || held == Some(&s.val), "step {i}: no {base:?} at {loc}");
                }
                ensure!(step.writes.iter().filter(|w| *w == loc).count() == 1, "step {i} writes {loc} twice");
                for (val, read) in group.operands.iter().zip(&step.reads).filter(|(_, r)| *r == loc) {
                    ensure!(s.base.is_none() && reads_in_place(group, s, *val), "step {i}: {read} in place");
                }
                let (first, last) = batches[i];
                for other in (first..=last).filter(|o| *o as usize != i) {
                    let other = &self.steps[other as usize];
                    ensure!(
                        !other.reads.contains(loc) && !other.writes.contains(loc),
                        "step {i}: {loc} in its batch"
                    );
                }
            }
            for (s, loc) in group.stores.iter().zip(&step.writes) {
                holds.insert(*loc, s.val);
            }
        }
        for (i, output) in self.outputs.iter().enumerate() {
            let loc = match output.home {
                Home::New { .. } => Loc::Out(i as u32),
                Home::InPlace(leaf) => Loc::Leaf(leaf),
            };
            let held = holds.get(&loc).map(|v| self.graph.out(*v));
            let want = self.graph.out(output.val);
            let same = held.is_some_and(|h| h.dtype == want.dtype && h.shape.elems() == want.shape.elems());
            ensure!(same, "output {i} {:?} is not in {loc}", output.val);
        }
        Ok(())
    }
}

fn shifted(index: &Index, by: i64) -> Index {
    let mut index = index.clone();
    if let Some(last) = index.views.last_mut() {
        last.offset += by;
    }
    index
}

fn is_injective(index: &Index, dims: &[usize]) -> bool {
    let n: usize = dims.iter().product();
    let zeros = [0.0; 64];
    let mut seen = std::collections::HashSet::with_capacity(n);
    (0..n).all(|mut i| {
        let mut coords = vec![0; dims.len()];
        for axis in (0..dims.len()).rev() {
            coords[axis] = i % dims[axis];
            i /= dims[axis];
        }
        index.element(&coords, &zeros).is_some_and(|e| seen.insert(e))
    })
}
