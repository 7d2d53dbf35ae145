//! Row programs: kernels that reduce over the same rows, or work along them, become one.
//!
//! A kernel joins the one whose results it reads where both run over one space of rows: it reads the
//! other's results where they were made, once a row or element for element, and at least one large operand
//! (or result) is read once less for it.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::MAX_ROW_EXPRS;
use super::draft::Draft;
use super::merge::Merger;
use crate::{AccKind, DeviceKind, Expr, ExprId, Group, Index, Kind, RowStage, Val};

/// Most transcendental operations of one point that are computed again for a later level.
const MOST_AGAIN: usize = 4;

/// The space of rows: outer axes, then those of a row.
struct Rows {
    dims: SmallVec<[usize; 8]>,
    reduced: usize,
}

impl Rows {
    fn of(group: &Group) -> Rows {
        Rows { dims: group.dims.clone(), reduced: group.reduced }
    }

    fn outer(&self) -> &[usize] {
        &self.dims[..self.dims.len() - self.reduced]
    }

    fn count(&self) -> usize {
        self.outer().iter().product()
    }

    fn length(&self) -> usize {
        self.dims[self.outer().len()..].iter().product()
    }

    /// The index without the axes of a row, where those do not change it.
    fn settled(&self, index: Index) -> Index {
        let outer = self.outer().len();
        let view = &index.views[0];
        let still = |a: usize| {
            view.strides[a] == 0
                && view.valid.as_ref().is_none_or(|r| r[a].start == 0 && r[a].end >= self.dims[a])
        };
        if view.dims.len() != self.dims.len() || !(outer..self.dims.len()).all(still) {
            return index;
        }
        let mut index = index;
        let view = &mut index.views[0];
        view.dims.truncate(outer);
        view.strides.truncate(outer);
        if let Some(valid) = &mut view.valid {
            valid.truncate(outer);
        }
        let view = view.clone();
        index.views[0] = Index::of(view).views[0].clone();
        index
    }

    /// A space over which both row-major orders, `dims` over the same points, are affine.
    fn refined(&self, dims: &[usize]) -> Option<Rows> {
        let steps = |dims: &[usize]| {
            let mut all = vec![1];
            dims.iter().rev().for_each(|d| all.push(all[all.len() - 1] * d));
            all
        };
        let mut cuts = steps(&self.dims);
        cuts.extend(steps(dims));
        cuts.sort_unstable();
        cuts.dedup();
        let length = self.length();
        let (mut fine, mut reduced) = (SmallVec::new(), 0);
        for pair in cuts.windows(2).rev() {
            if pair[1] % pair[0] != 0 {
                return None;
            }
            fine.push(pair[1] / pair[0]);
            reduced += usize::from(pair[0] < length);
        }
        (reduced > 0 && fine.len() <= 8).then_some(Rows { dims: fine, reduced })
    }
}

/// How the spaces of a kernel are reached from a space of rows.
struct Way {
    whole: Index,
    outer: Index,
}

impl Way {
    /// For kernels that run over the rows in the same order.
    fn same(rows: &Rows) -> Way {
        Way { whole: Index::identity(&rows.dims), outer: Index::identity(rows.outer()) }
    }

    /// Index `index` of `group` over the rows.
    fn moved(&self, group: &Group, index: &Index, rows: &Rows, limits: &[i64]) -> Index {
        let along = group.kind == Kind::Pointwise || index.views[0].dims.len() == group.dims.len();
        let at = if along { &self.whole } else { &self.outer };
        rows.settled(at.then_index(index, limits))
    }
}

fn index(group: &Group, id: u16) -> &Index {
    &group.body.indices[usize::from(id)]
}

/// The indices by which `val` is read, and whether elements of it are gathered.
fn reads(group: &Group, val: Val) -> (Vec<&Index>, bool) {
    let (mut all, mut gathered) = (Vec::new(), false);
    let Some(operand) = group.operands.iter().position(|v| *v == val) else { return (all, gathered) };
    for (expr, _) in &group.body.exprs {
        match expr {
            Expr::Load { operand: o, index: i } if usize::from(*o) == operand => all.push(index(group, *i)),
            Expr::Gather { operand: o, .. } => gathered |= usize::from(*o) == operand,
            _ => {}
        }
    }
    (all, gathered)
}

impl Merger<'_, '_> {
    /// Merges kernels into row programs, the earliest first.
    pub(crate) fn run_rows(&mut self) {
        let mut all: Vec<u32> =
            (0..self.drafts.len() as u32).filter(|k| self.drafts[*k as usize].is_some()).collect();
        all.sort_unstable_by_key(|k| self.order.position(*k));
        for k in all {
            self.row_upwards(k);
        }
    }

    fn row_upwards(&mut self, k: u32) {
        let mut k = k;
        let mut refused: HashSet<u32> = HashSet::new();
        loop {
            let Some(draft) = self.draft(k) else { return };
            if !matches!(draft.group.kind, Kind::Pointwise | Kind::Reduce | Kind::Row)
                || self.fixed[k as usize]
            {
                return;
            }
            let producers = draft.group.operands.iter().filter_map(|v| self.writer.get(v).copied());
            let next =
                producers.filter(|p| *p != k && !refused.contains(p)).max_by_key(|p| self.order.position(*p));
            let Some(p) = next else { return };
            match self.rowed(p, k) {
                Ok(merged) if self.order.merge(p, k) => {
                    self.replace(p, k, merged);
                    k = p;
                    refused.clear();
                }
                Ok(_) => {
                    self.note(p, k, "something between needs the one and is needed by the other");
                    refused.insert(p);
                }
                Err(why) => {
                    if let Some(why) = why {
                        self.note(p, k, why);
                    }
                    refused.insert(p);
                }
            }
        }
    }

    /// Kernels `p` and `k`, which reads results of `p`, as one row program. `Err(None)`: they are nothing of
    /// the kind, and what is to be said was said before.
    fn rowed(&self, p: u32, k: u32) -> Result<Draft, Option<&'static str>> {
        let (Some(to), Some(from)) = (self.draft(p), self.draft(k)) else { return Err(None) };
        let (pg, kg) = (&to.group, &from.group);
        let by_rows = |g: &Group| matches!(g.kind, Kind::Reduce | Kind::Row);
        let pointwise = |g: &Group| g.kind == Kind::Pointwise;
        if self.fixed[p as usize] || !(by_rows(pg) || pointwise(pg)) || !(by_rows(pg) || by_rows(kg)) {
            return Err(None);
        }
        let mut rows = Rows::of(if by_rows(pg) { pg } else { kg });
        let (count, length) = (rows.count(), rows.length());
        let fits = |g: &Group| {
            let whole: usize = g.dims.iter().product();
            whole == count * length && (pointwise(g) || g.outer().iter().product::<usize>() == count)
        };
        if pg.kind == Kind::Row && pointwise(kg) && kg.dims.iter().product::<usize>() == count {
            // What follows once a row.
            return self.joined(p, k).map_err(Some);
        }
        if length < 2 || count == 0 || !fits(pg) || !fits(kg) {
            return Err(None);
        }
        for (one, other) in [(pg, kg), (kg, pg)] {
            if pointwise(one)
                && let Some(fine) = rows.refined(&one.dims)
                && by_rows(other)
            {
                rows = fine;
            }
        }
        let assigns = |g: &Group| g.stores.iter().any(|s| s.base.is_some());
        let arg = |g: &Group| g.accs.iter().any(|a| matches!(a.kind, AccKind::Arg { .. }));
        let packed = |g: &Group| g.stores.iter().any(|s| self.cut.packed(self.cut.graph.out(s.val).dtype));
        if assigns(pg) || assigns(kg) {
            return Err(Some("only a part is written"));
        }
        if arg(pg) || arg(kg) {
            return Err(Some("row programs find no index of an extreme"));
        }
        if packed(pg) || packed(kg) {
            return Err(Some("words of packed results are written by pointwise kernels only"));
        }
        if kg.stores.iter().any(|s| self.updates.contains(&s.val)) && pointwise(kg) {
            return Err(Some("updates of donated values are run together"));
        }
        let segment = |g: &Group| g.nodes.first().map(|n| self.cut.graph.node(*n).segment);
        if segment(pg) != segment(kg) {
            return Err(Some("they belong to different segments"));
        }
        if !worthwhile(self.cut.caps.kind, count, length) {
            return Err(Some("a few long rows are spread over the device by kernels of their own"));
        }
        let (pway, kway) = self.ways(to, from, &rows)?;
        let gone = |v: Val| {
            !self.required.contains(&v) && self.readers.get(&v).is_none_or(|r| r.iter().all(|r| *r == k))
        };
        let mut merged = Draft::new(Kind::Row, &rows.dims, rows.reduced);
        let mut values: HashMap<Val, ExprId> = HashMap::new();
        for (draft, way) in [(to, &pway), (from, &kway)] {
            let worse = append(&mut merged, draft, way, &rows, &values);
            if worse {
                return Err(Some("other operands or results would lie too far out of order"));
            }
            if values.is_empty() {
                values.extend(merged.group.stores.iter().map(|s| (s.val, s.x)));
            }
        }
        merged.group.stores.retain(|s| !(kg.operands.contains(&s.val) && gone(s.val)));
        merged.compact();
        merged.join_accs();
        merged.widen_gathers();
        merged.become_reduction();
        let apart = match self.cut.caps.kind {
            DeviceKind::Cpu => !merged.group.rows_lie_together() || !merged.group.rows_end_in_order(),
            DeviceKind::SoftwareGpu => !merged.group.rows_lie_together(),
            // A workgroup takes 32 such rows, and whole ones: an H200 needs 264 workgroups. Kernels of their own cut
            // long rows into parts (2304 rows of 8192: 1.12 ms together, against 0.1).
            _ => count < 8192 && length > 256 && !merged.group.rows_lie_together(),
        };
        if apart {
            return Err(Some("the elements of a row lie apart in memory"));
        }
        self.again(&merged.group)?;
        self.fits(&merged, MAX_ROW_EXPRS).map_err(Some)?;
        Ok(merged)
    }

    /// How the spaces of `to` and of `from`, which reads results of `to`, are reached from the rows so that
    /// each result is read where it was made.
    fn ways(&self, to: &Draft, from: &Draft, rows: &Rows) -> Result<(Way, Way), Option<&'static str>> {
        let (pg, kg) = (&to.group, &from.group);
        let n: usize = rows.dims.iter().product();
        let one_is = if kg.kind == Kind::Pointwise { Some((to, from)) } else { None };
        let one_is = if pg.kind == Kind::Pointwise { Some((from, to)) } else { one_is };
        // Of the pointwise one's positions, candidates: by what both read, and the same order.
        let mut candidates: Vec<Index> = Vec::new();
        let mut shared = false;
        let large = |v: &Val| self.cut.graph.out(*v).shape.elems() >= n;
        let same = Way::same(rows);
        if let Some((fixed, free)) = one_is {
            let (fg, g) = (&fixed.group, &free.group);
            let back = |i: &Index| if i.is_linear() { Some(Index::identity(&[n])) } else { i.inverse(&[n]) };
            let mut via = |here: &Index, there: &Index| {
                let here = same.moved(fg, here, rows, &fixed.limits);
                if here.views[0].dims.len() == rows.dims.len()
                    && let Some(back) = back(there)
                {
                    candidates.push(here.then_index(&back, &fixed.limits));
                }
            };
            let stores = |g: &'_ Group, v: Val| g.stores.iter().find(|s| s.val == v).map(|s| s.index);
            for val in g.operands.iter().chain(g.stores.iter().map(|s| &s.val)).filter(|v| large(v)) {
                let mut here: Vec<&Index> = reads(fg, *val).0;
                here.extend(stores(fg, *val).map(|i| index(fg, i)));
                let mut there: Vec<&Index> = reads(g, *val).0;
                there.extend(stores(g, *val).map(|i| index(g, i)));
                here.iter().flat_map(|a| there.iter().map(move |b| (*a, *b))).for_each(|(a, b)| via(a, b));
            }
            shared = !candidates.is_empty();
        } else {
            shared |= kg
                .operands
                .iter()
                .any(|v| large(v) && (pg.operands.contains(v) || pg.stores.iter().any(|s| s.val == *v)));
        }
        if !shared {
            return Err(Some("they share nothing but numbers of whole rows"));
        }
        candidates.push(Index::identity(&rows.dims));
        let mut why = "elements are gathered";
        for whole in candidates {
            if whole.views.len() > 1 || !(whole.is_linear() || whole.inverse(&[n]).is_some()) {
                continue; // No order of all positions.
            }
            let free = Way { whole, outer: Index::identity(rows.outer()) };
            let (pway, kway) = match (&pg.kind, &kg.kind) {
                (Kind::Pointwise, _) => (&free, &same),
                (_, Kind::Pointwise) => (&same, &free),
                _ => (&same, &same),
            };
            let met = pg.stores.iter().filter(|s| kg.operands.contains(&s.val)).all(|s| {
                let made = pway.moved(pg, index(pg, s.index), rows, &to.limits);
                let (read, gathered) = reads(kg, s.val);
                !gathered && read.iter().all(|i| kway.moved(kg, i, rows, &from.limits) == made)
            });
            if met {
                let again = |w: &Way| Way { whole: w.whole.clone(), outer: w.outer.clone() };
                return Ok((again(pway), again(kway)));
            }
            why = "the result is read at other elements than the own";
        }
        Err(Some(why))
    }

    /// Refuses what would be computed again at a later level although it is dear.
    fn again(&self, group: &Group) -> Result<(), Option<&'static str>> {
        let stages = group.row_stages();
        let exprs = &group.body.exprs;
        let mut times = vec![0usize; exprs.len()];
        for level in 0..=group.row_levels() {
            let mut needed = vec![false; exprs.len()];
            group.row_roots(&stages, level).for_each(|x| needed[x as usize] = true);
            for id in (0..exprs.len()).rev().filter(|id| stages[*id].whole) {
                if needed[id] {
                    exprs[id].0.operands(|x| needed[x as usize] = true);
                }
            }
            (0..exprs.len()).filter(|id| needed[*id] && stages[*id].whole).for_each(|id| times[id] += 1);
        }
        let gpu = !matches!(self.cut.caps.kind, DeviceKind::Cpu | DeviceKind::Oracle);
        let mut dear = 0;
        for ((expr, _), times) in exprs.iter().zip(times).filter(|(_, times)| *times > 1) {
            dear += (times - 1)
                * match expr {
                    Expr::Random { .. } | Expr::Gather { .. } => {
                        return Err(Some("random numbers or gathered elements would be made again"));
                    }
                    Expr::Unary { op, .. } => usize::from(op.row().hard),
                    Expr::Binary { op, .. } => usize::from(op.row().hard),
                    // Which of several parts has the element, and where, takes divisions.
                    Expr::Load { index: i, .. } | Expr::Valid { index: i } => {
                        usize::from(gpu && !index(group, *i).is_strided())
                    }
                    _ => 0,
                };
        }
        if dear > MOST_AGAIN { Err(Some("dear work would be repeated")) } else { Ok(()) }
    }
}

impl Group {
    /// What the run along the row at `level` is for: accumulators, or at the last level stores.
    pub(crate) fn row_roots(&self, stages: &[RowStage], level: usize) -> impl Iterator<Item = ExprId> {
        let last = level == self.row_levels();
        let accs = self.accs.iter().map(|a| a.x).filter(|x| !last && stages[*x as usize].level == level);
        let stores = self.stores.iter().filter(|s| last && self.stores_rows(s)).map(|s| s.x);
        accs.chain(stores).collect::<Vec<_>>().into_iter()
    }
}

impl Group {
    /// Whether neighbours in memory are neighbours in a row.
    fn rows_lie_together(&self) -> bool {
        let outer = self.outer().len();
        let along = |i: u16| {
            let view = &index(self, i).views[0];
            let unit = |axes: std::ops::Range<usize>| {
                axes.into_iter().any(|a| view.strides[a] == 1 && self.dims[a] > 1)
            };
            view.dims.len() < self.dims.len() || unit(outer..self.dims.len()) || !unit(0..outer)
        };
        let loads = self.body.exprs.iter().all(|(expr, _)| match expr {
            Expr::Load { index: i, .. } => along(*i),
            _ => true,
        });
        loads && self.stores.iter().all(|s| along(s.index))
    }

    /// Whether rows are written one after the other, so that parts of them are parts of memory.
    fn rows_end_in_order(&self) -> bool {
        self.stores.iter().all(|s| index(self, s.index).is_linear())
    }
}

/// Whether rows of one workgroup, thread or lane each are enough to keep the device busy.
fn worthwhile(kind: DeviceKind, count: usize, length: usize) -> bool {
    match kind {
        // A workgroup draws about a hundredth of the bandwidth of a large GPU: 16384 elements take it 2 us, less
        // than the kernel that is saved; from 40 rows on longer ones are ahead too.
        DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::OtherGpu => {
            count >= 40 || length <= 16384
        }
        // Rows are what threads (and vector lanes) share.
        DeviceKind::SoftwareGpu => count >= 16 || length <= 2048,
        DeviceKind::Cpu | DeviceKind::Oracle => count >= 8 || length <= 16384,
    }
}

/// Adds the accumulators and stores of a kernel to a row program; whether its indices become worse.
fn append(merged: &mut Draft, draft: &Draft, way: &Way, rows: &Rows, values: &HashMap<Val, ExprId>) -> bool {
    let first = merged.group.accs.len() as u16;
    let mut from = draft.group.clone();
    for (expr, _) in &mut from.body.exprs {
        if let Expr::Acc { acc } = expr {
            *acc += first;
        }
    }
    let worse = std::cell::Cell::new(false);
    let moved = |index: &Index, d: &mut Draft| {
        let new = way.moved(&from, index, rows, &d.limits);
        worse.set(worse.get() || new.views.len() > index.views.len().max(2));
        new
    };
    let roots: Vec<ExprId> = from.accs.iter().map(|a| a.x).chain(from.stores.iter().map(|s| s.x)).collect();
    let xs = merged.transplant(&from, &roots, &moved, &|v| values.get(&v).copied(), &draft.limits);
    let (accs, stores) = xs.split_at(from.accs.len());
    merged.group.accs.extend(from.accs.iter().zip(accs).map(|(a, x)| crate::Acc { kind: a.kind, x: *x }));
    for (s, x) in from.stores.iter().zip(stores) {
        let old = merged.adopt(&from, s.index, &draft.limits);
        // A store keeps all axes of its space.
        let along = from.kind == Kind::Pointwise || old.views[0].dims.len() == from.dims.len();
        let at = if along { &way.whole } else { &way.outer };
        let index = at.then_index(&old, &merged.limits);
        worse.set(worse.get() || index.views.len() > old.views.len().max(2));
        merged.store(s.val, *x, &index, None);
    }
    merged.group.nodes.extend(&from.nodes);
    merged.group.nodes.sort_unstable();
    merged.group.nodes.dedup();
    worse.get()
}

impl Draft {
    /// Gives gathers whose place changes along the row indices over the whole space.
    fn widen_gathers(&mut self) {
        let stages = self.group.row_stages();
        let rank = self.group.dims.len();
        for id in (0..stages.len()).filter(|id| stages[*id].whole) {
            let Expr::Gather { index: i, .. } = self.group.body.exprs[id].0 else { continue };
            let mut wide = index(&self.group, i).clone();
            let view = &mut wide.views[0];
            for axis in view.dims.len()..rank {
                view.dims.push(self.group.dims[axis]);
                view.strides.push(0);
                if let Some(valid) = &mut view.valid {
                    valid.push(0..self.group.dims[axis]);
                }
            }
            let new = self.index(&wide);
            if let Expr::Gather { index, .. } = &mut self.group.body.exprs[id].0 {
                *index = new;
            }
        }
    }

    /// One level of accumulators of what changes along the row alone, stored once a row, is a reduction.
    fn become_reduction(&mut self) {
        let group = &self.group;
        let stages = group.row_stages();
        let mut needed = vec![false; stages.len()];
        group.accs.iter().for_each(|a| needed[a.x as usize] = true);
        for id in (0..needed.len()).rev() {
            if needed[id] {
                group.body.exprs[id].0.operands(|x| needed[x as usize] = true);
            }
        }
        let scalar = |id: usize| matches!(group.body.exprs[id].0, Expr::Scalar { .. });
        let along = (0..needed.len()).all(|id| !needed[id] || stages[id].whole || scalar(id));
        if group.row_levels() == 1 && along && !group.stores.iter().any(|s| group.stores_rows(s)) {
            self.group.kind = Kind::Reduce;
        }
    }

    /// Makes equal accumulators one.
    fn join_accs(&mut self) {
        loop {
            let accs = &self.group.accs;
            let twin = (1..accs.len()).find_map(|j| (0..j).find(|i| accs[*i] == accs[j]).map(|i| (i, j)));
            let Some((i, j)) = twin else { return };
            self.group.accs.remove(j);
            for (expr, _) in &mut self.group.body.exprs {
                if let Expr::Acc { acc } = expr {
                    *acc = match usize::from(*acc) {
                        a if a == j => i as u16,
                        a if a > j => a as u16 - 1,
                        a => a as u16,
                    };
                }
            }
            self.compact();
        }
    }
}
