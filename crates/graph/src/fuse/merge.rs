//! Kernels become one: a pointwise kernel joins the kernel whose result it reads element for element,
//! and neighbours over one space that read the same value share it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::cut::Cut;
use super::draft::Draft;
use super::order::Order;
use super::{LITTLE, MAX_EXPRS, MAX_ROW_EXPRS, WINDOW};
use crate::{AccKind, Expr, Fast, Index, Kind, Val};

/// All kernels while they are merged.
pub(crate) struct Merger<'a, 'c> {
    pub(super) cut: &'c Cut<'a>,
    pub(crate) drafts: Vec<Option<Draft>>,
    pub(crate) order: Order,
    /// The kernel that writes a value; values with several writers are absent.
    pub(super) writer: HashMap<Val, u32>,
    pub(super) readers: HashMap<Val, BTreeSet<u32>>,
    /// Values that have to be stored.
    pub(super) required: HashSet<Val>,
    /// Of those, the ones that replace a donated leaf.
    pub(super) updates: HashSet<Val>,
    /// Kernels that stay as they are.
    pub(super) fixed: Vec<bool>,
    /// Kernels that took in a neighbour.
    widened: HashSet<u32>,
    /// The kernel that each kernel became a part of: itself, as long as it is one.
    part_of: Vec<u32>,
    /// Why two kernels were left apart.
    apart: Vec<(u32, u32, String)>,
}

impl<'a, 'c> Merger<'a, 'c> {
    pub(crate) fn new(
        cut: &'c Cut<'a>,
        drafts: Vec<Draft>,
        required: &[Val],
        updates: &[Val],
    ) -> Merger<'a, 'c> {
        let n = drafts.len();
        let mut order = Order::new(n);
        let mut writers: BTreeMap<Val, Vec<u32>> = BTreeMap::new();
        let mut readers: HashMap<Val, BTreeSet<u32>> = HashMap::new();
        let mut fixed = vec![false; n];
        for (k, draft) in drafts.iter().enumerate() {
            let group = &draft.group;
            let bases = group.stores.iter().filter_map(|s| s.base.as_ref());
            for val in group.operands.iter().chain(bases) {
                for w in writers.get(val).into_iter().flatten() {
                    order.edge(*w, k as u32);
                }
                readers.entry(*val).or_default().insert(k as u32);
            }
            for s in &group.stores {
                let all = writers.entry(s.val).or_default();
                all.iter().for_each(|w| order.edge(*w, k as u32));
                all.push(k as u32);
            }
            fixed[k] = matches!(
                group.kind,
                Kind::Whole(_) | Kind::Attention(..) | Kind::Custom(_) | Kind::Scatter { .. }
            );
        }
        for all in writers.values().filter(|w| w.len() > 1) {
            all.iter().for_each(|w| fixed[*w as usize] = true);
        }
        for (k, draft) in drafts.iter().enumerate() {
            for node in draft.group.nodes.iter().flat_map(|n| &cut.graph.node(*n).after) {
                for val in cut.sources(Val::of(*node)) {
                    for w in writers.get(&val).into_iter().flatten().filter(|w| **w < k as u32) {
                        order.edge(*w, k as u32);
                    }
                }
            }
        }
        let single = writers.into_iter().filter(|(_, w)| w.len() == 1).map(|(v, w)| (v, w[0]));
        Merger {
            cut,
            order,
            writer: single.collect(),
            readers,
            required: required.iter().copied().collect(),
            updates: updates.iter().copied().collect(),
            fixed,
            drafts: drafts.into_iter().map(Some).collect(),
            widened: HashSet::new(),
            part_of: (0..n as u32).collect(),
            apart: Vec::new(),
        }
    }

    pub(super) fn draft(&self, kernel: u32) -> Option<&Draft> {
        self.drafts[kernel as usize].as_ref()
    }

    /// Why kernels that still are two were left apart, a line each.
    pub(crate) fn notes(&self) -> Vec<String> {
        let home = |mut k: u32| {
            while self.part_of[k as usize] != k {
                k = self.part_of[k as usize];
            }
            k
        };
        let two = self.apart.iter().filter(|(p, k, _)| home(*p) != home(*k));
        let mut notes: Vec<String> = two.map(|(_, _, why)| why.clone()).collect();
        let mut seen = HashSet::new();
        notes.retain(|line| seen.insert(line.clone()));
        notes
    }

    pub(crate) fn run(&mut self) {
        for k in 0..self.drafts.len() as u32 {
            self.upwards(k);
        }
        for k in 0..self.drafts.len() as u32 {
            self.sideways(k);
        }
        // What was refused because of a kernel elsewhere may have it in its own kernel now.
        for k in 0..self.drafts.len() as u32 {
            let changed = |v: &Val| self.writer.get(v).is_some_and(|w| self.widened.contains(w));
            if !self.widened.is_empty() && self.draft(k).is_some_and(|d| d.group.operands.iter().any(changed))
            {
                self.upwards(k);
            }
        }
        if self.cut.caps.allows(Fast::RowPrograms) {
            self.run_rows();
        }
    }

    /// Merges kernel `k` into the kernels whose results it reads, the latest first.
    fn upwards(&mut self, k: u32) {
        let mut k = k;
        let mut refused: HashSet<u32> = HashSet::new();
        loop {
            let Some(draft) = self.draft(k) else { return };
            if draft.group.kind != Kind::Pointwise || self.fixed[k as usize] {
                return;
            }
            let producers = draft.group.operands.iter().filter_map(|v| self.writer.get(v).copied());
            let next =
                producers.filter(|p| *p != k && !refused.contains(p)).max_by_key(|p| self.order.position(*p));
            let Some(p) = next else { return };
            match self.joined(p, k) {
                Ok(merged) if self.order.merge(p, k) => {
                    self.replace(p, k, merged);
                    k = p;
                }
                Ok(_) => {
                    self.note(p, k, "something between needs the one and is needed by the other");
                    refused.insert(p);
                }
                Err(why) => {
                    self.note(p, k, why);
                    refused.insert(p);
                }
            }
        }
    }

    pub(super) fn note(&mut self, p: u32, k: u32, why: &str) {
        let name = |d: &Draft| {
            let last = d.group.stores.last().map(|s| s.val);
            last.map_or(String::new(), |v| format!("{v:?} {}", self.cut.graph.node(v.node).op.name()))
        };
        if let (Some(from), Some(to)) = (self.draft(p), self.draft(k)) {
            let line = format!("{} -> {}: not fused, {why}", name(from), name(to));
            self.apart.push((p, k, line));
        }
    }

    /// Kernel `k`, pointwise, as part of kernel `p`, whose results it reads.
    pub(super) fn joined(&self, p: u32, k: u32) -> Result<Draft, &'static str> {
        let (Some(to), Some(from)) = (self.draft(p), self.draft(k)) else { return Err("one is gone") };
        if self.fixed[p as usize] {
            return Err("the producer's kernel takes no epilogue");
        }
        let (pg, kg) = (&to.group, &from.group);
        let packed =
            |g: &crate::Group| g.stores.iter().any(|s| self.cut.packed(self.cut.graph.out(s.val).dtype));
        if pg.kind != Kind::Pointwise && packed(kg) {
            return Err("words of packed results are written by pointwise kernels only");
        }
        let update = |s: &crate::Store| s.base.is_none() && self.updates.contains(&s.val);
        if matches!(pg.kind, Kind::MatMul { .. }) && kg.stores.iter().any(update) {
            return Err("updates of donated values are run together");
        }
        let n: usize = kg.dims.iter().product();
        if pg.outer().iter().product::<usize>() != n {
            return Err("the spaces differ");
        }
        let mut at: Option<Index> = None;
        let mut values: HashMap<Val, u32> = HashMap::new();
        for s in &pg.stores {
            let Some(operand) = kg.operands.iter().position(|v| *v == s.val) else { continue };
            if s.base.is_some() {
                return Err("only a part is written");
            }
            values.insert(s.val, s.x);
            let stored = &pg.body.indices[usize::from(s.index)];
            for (expr, _) in &kg.body.exprs {
                match *expr {
                    Expr::Gather { operand: o, .. } if usize::from(o) == operand => {
                        return Err("elements are gathered");
                    }
                    Expr::Load { operand: o, index } if usize::from(o) == operand => {
                        let read = &kg.body.indices[usize::from(index)];
                        let back = if read.is_linear() {
                            Index::identity(&[n])
                        } else {
                            read.inverse(&[n]).ok_or("elements are repeated or left out")?
                        };
                        let here = stored.then_index(&back, &[]);
                        if at.as_ref().is_some_and(|a| *a != here) {
                            return Err("the result is read at other elements than the own");
                        }
                        at = Some(here);
                    }
                    _ => {}
                }
            }
        }
        let Some(at) = at else { return Err("nothing is read") };
        if !at.is_linear() && packed(kg) {
            return Err("words of packed results are written in order only");
        }
        let touched = |b: &Val| {
            pg.operands.contains(b) || kg.operands.contains(b) || pg.stores.iter().any(|s| s.val == *b)
        };
        if kg.stores.iter().any(|s| s.base.as_ref().is_some_and(touched)) {
            return Err("the value that is partly replaced is read or written too");
        }
        if self.holds_back(p, k) {
            return Err("the large operands would have to wait for something small");
        }
        let gone = |v: Val| {
            !self.required.contains(&v) && self.readers.get(&v).is_none_or(|r| r.iter().all(|r| *r == k))
        };
        let mut merged = to.clone();
        merged.group.stores.retain(|s| !(values.contains_key(&s.val) && gone(s.val)));
        self.take(&mut merged, from, &at, &values)?;
        Ok(merged)
    }

    /// Whether kernel `p`, which makes much into little, would wait for other kernels because of `k`.
    fn holds_back(&self, p: u32, k: u32) -> bool {
        let (Some(to), Some(from)) = (self.draft(p), self.draft(k)) else { return false };
        let bytes = |v: &Val| {
            let out = self.cut.graph.out(*v);
            out.shape.elems() * out.dtype.bytes()
        };
        let computed = to.group.operands.iter().filter(|v| self.writer.contains_key(v));
        let held = computed.map(bytes).max().unwrap_or(0);
        let made = from.group.stores.iter().map(|s| bytes(&s.val)).sum::<usize>();
        let others = from.group.operands.iter().filter_map(|v| self.writer.get(v)).filter(|w| **w != p);
        made * LITTLE < held && others.into_iter().any(|w| !self.order.follows(p, *w))
    }

    /// Adds the work of `from` to `merged`; `at` leads from the one's outer space to the other's.
    fn take(
        &self,
        merged: &mut Draft,
        from: &Draft,
        at: &Index,
        values: &HashMap<Val, u32>,
    ) -> Result<(), &'static str> {
        let kg = &from.group;
        let worse = std::cell::Cell::new(false);
        let moved = |index: &Index, d: &mut Draft| {
            let new = at.then_index(index, &d.limits);
            worse.set(worse.get() || new.views.len() > index.views.len().max(2));
            new
        };
        let roots: Vec<u32> = kg.stores.iter().map(|s| s.x).collect();
        let xs = merged.transplant(kg, &roots, &moved, &|v| values.get(&v).copied(), &from.limits);
        for (s, x) in kg.stores.iter().zip(xs) {
            let index = merged.adopt(kg, s.index, &from.limits);
            let index = moved(&index, merged);
            merged.store(s.val, x, &index, s.base);
        }
        merged.group.nodes.extend(&kg.nodes);
        merged.group.nodes.sort_unstable();
        merged.group.nodes.dedup();
        merged.compact();
        if worse.get() {
            return Err("other operands or results would lie too far out of order");
        }
        let most = if merged.group.kind == Kind::Row { MAX_ROW_EXPRS } else { MAX_EXPRS };
        self.fits(merged, most)
    }

    pub(super) fn fits(&self, merged: &Draft, most: usize) -> Result<(), &'static str> {
        if merged.group.body.exprs.len() > most {
            return Err("too many expressions");
        }
        if merged.buffers() > self.cut.caps.max_buffers {
            return Err("too many buffers");
        }
        if merged.words(self.cut.graph) * 4 > self.cut.caps.immediate_bytes {
            return Err("too many scalars");
        }
        Ok(())
    }

    /// Puts the merged kernel in the place of `p`; `k` is gone.
    pub(super) fn replace(&mut self, p: u32, k: u32, merged: Draft) {
        self.part_of[k as usize] = p;
        for old in [p, k] {
            let Some(draft) = self.drafts[old as usize].take() else { continue };
            let bases = draft.group.stores.iter().filter_map(|s| s.base.as_ref());
            for val in draft.group.operands.iter().chain(bases) {
                if let Some(readers) = self.readers.get_mut(val) {
                    readers.remove(&old);
                }
            }
            for s in &draft.group.stores {
                self.writer.remove(&s.val);
            }
        }
        let bases = merged.group.stores.iter().filter_map(|s| s.base.as_ref());
        for val in merged.group.operands.iter().chain(bases) {
            self.readers.entry(*val).or_default().insert(p);
        }
        for s in &merged.group.stores {
            self.writer.insert(s.val, p);
        }
        self.drafts[p as usize] = Some(merged);
    }

    /// Merges kernel `k` with later neighbours over the same space that read the same value.
    fn sideways(&mut self, k: u32) {
        let Some(draft) = self.draft(k) else { return };
        let kind = draft.group.kind.clone();
        if self.fixed[k as usize] || !matches!(kind, Kind::Pointwise | Kind::Reduce) {
            return;
        }
        let space: usize = draft.group.dims.iter().product();
        let mut others: Vec<u32> = Vec::new();
        for val in &draft.group.operands {
            if self.cut.graph.out(*val).shape.elems() < space {
                continue;
            }
            let near = |r: &&u32| self.order.position(**r).abs_diff(self.order.position(k)) <= WINDOW;
            let later = self.readers.get(val).into_iter().flat_map(|r| r.range(k + 1..).take(8));
            others.extend(later.filter(near));
        }
        others.sort_unstable_by_key(|o| self.order.position(*o));
        others.dedup();
        for other in others {
            if let Some(merged) = self.beside(k, other)
                && self.order.merge(k, other)
            {
                self.replace(k, other, merged);
                self.widened.insert(k);
            }
        }
    }

    /// Kernels `k` and `o` as one, where both have one kind and space.
    fn beside(&self, k: u32, o: u32) -> Option<Draft> {
        let (to, from) = (self.draft(k)?, self.draft(o)?);
        let (kg, og) = (&to.group, &from.group);
        let assigns = |g: &crate::Group| g.stores.iter().any(|s| s.base.is_some());
        if self.fixed[o as usize] || kg.kind != og.kind || assigns(kg) || assigns(og) {
            return None;
        }
        // A direct edge would have fused before, or may not.
        let feeds = |a: &crate::Group, b: &crate::Group| a.stores.iter().any(|s| b.operands.contains(&s.val));
        if feeds(kg, og) || feeds(og, kg) {
            return None;
        }
        let segment = |g: &crate::Group| g.nodes.first().map(|n| self.cut.graph.node(*n).segment);
        if segment(kg) != segment(og) {
            return None;
        }
        let mut merged = to.clone();
        if kg.kind == Kind::Reduce {
            if kg.dims != og.dims || kg.reduced != og.reduced {
                return None;
            }
            let same = |index: &Index, _: &mut Draft| index.clone();
            let first = merged.group.accs.len() as u16;
            let roots: Vec<u32> = og.accs.iter().map(|a| a.x).collect();
            let xs = merged.transplant(og, &roots, &same, &|_| None, &from.limits);
            for (a, x) in og.accs.iter().zip(xs) {
                merged.group.accs.push(crate::Acc { kind: a.kind, x });
            }
            merged.shift_accs(og, first, &from.limits);
            merged.group.nodes.extend(&og.nodes);
            merged.group.nodes.sort_unstable();
            merged.group.nodes.dedup();
            merged.compact();
            let args = merged.group.accs.iter().filter(|a| matches!(a.kind, AccKind::Arg { .. })).count();
            (args < 2 && self.fits(&merged, MAX_EXPRS).is_ok()).then_some(merged)
        } else {
            if kg.dims.iter().product::<usize>() != og.dims.iter().product::<usize>() {
                return None;
            }
            let at = Index::identity(&kg.dims);
            self.take(&mut merged, from, &at, &HashMap::new()).ok()?;
            Some(merged)
        }
    }
}
