//! Where every value lies, for one order of the groups: slots by liveness, results in place of operands
//! that die, outputs in donated leaves.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::space::{Span, assign};
use crate::fuse::copy_group;
use crate::{
    Caps, Expr, Graph, Group, Home, Kind, Leaf, LeafKind, Loc, Op, Options, Output, Slot, Step, Store, Val,
};

/// A group to run. `target` is set where it only copies a value to root `target`.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) group: Arc<Group>,
    pub(crate) target: Option<u32>,
}

/// What a layout needs to know.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) caps: &'a Caps,
    pub(crate) options: &'a Options,
    pub(crate) leaves: &'a [Leaf],
    pub(crate) roots: &'a [Val],
    pub(crate) into: &'a [Option<u32>],
    pub(crate) upload_bytes: usize,
    pub(crate) items: &'a [Item],
    /// Values that take the place of a donated leaf, if they can.
    pub(crate) updates: &'a HashSet<Val>,
}

/// The plan's steps and places.
#[derive(Debug, Default)]
pub(crate) struct Laid {
    pub(crate) steps: Vec<Step>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) workspace_bytes: usize,
    pub(crate) notes: Vec<String>,
}

/// Adds the copies for roots that are leaves or repeat an earlier root: leaves first, so that they can
/// be overwritten afterwards.
pub(crate) fn copy_roots(graph: &Graph, roots: &[Val], items: &mut Vec<Item>) {
    let mut first = Vec::new();
    let mut owned = HashMap::new();
    for (i, val) in roots.iter().enumerate() {
        let leaf = graph.node(val.node).op == Op::Input;
        if !leaf && owned.insert(*val, i).is_none() {
            continue;
        }
        let item = Item { group: Arc::new(copy_group(graph, *val, *val)), target: Some(i as u32) };
        if leaf { first.push(item) } else { items.push(item) }
    }
    items.splice(0..0, first);
}

/// When a value is used: the unit of the last use, and the items that use it there.
#[derive(Clone, Debug, Default)]
struct Use {
    last: u32,
    /// Items of unit `last` that use the value.
    items: u32,
    /// The last such item.
    item: u32,
}

struct Layout<'a, 'c> {
    c: &'c Context<'a>,
    laid: Laid,
    spans: Vec<Span>,
    /// The unit and the item that are placed.
    unit: u32,
    now: u32,
    uses: HashMap<Val, Use>,
    locs: HashMap<Val, Loc>,
    /// What lies in each slot and in each leaf now.
    slot_holds: Vec<Val>,
    leaf_holds: Vec<Val>,
    /// The root that owns a value.
    owner: HashMap<Val, u32>,
    homes: Vec<Option<Home>>,
    /// Leaves in whose buffer a root ends.
    taken: Vec<bool>,
    /// Values that are to lie in the buffer of a root already, because an assignment makes it of them.
    early: HashMap<Val, u32>,
    /// What assignments, one after the other, make of a value in the end.
    ends: HashMap<Val, Val>,
    /// The root that asks for each leaf.
    wanted: HashMap<u32, u32>,
    /// Values whose last use is in each unit.
    dying: Vec<Vec<Val>>,
    batch: u32,
}

/// Steps and places for the items in `order`; neighbours of one number in `units` may run at once.
pub(crate) fn lay_out(c: &Context<'_>, order: &[u32], units: &[u32]) -> Laid {
    let mut l = Layout {
        c,
        laid: Laid::default(),
        spans: Vec::new(),
        unit: 0,
        now: 0,
        uses: HashMap::new(),
        locs: HashMap::new(),
        slot_holds: Vec::new(),
        leaf_holds: c.leaves.iter().map(|l| Val::of(l.node)).collect(),
        owner: HashMap::new(),
        homes: vec![None; c.roots.len()],
        taken: vec![false; c.leaves.len()],
        early: HashMap::new(),
        ends: HashMap::new(),
        wanted: HashMap::new(),
        dying: Vec::new(),
        batch: 0,
    };
    l.survey(order, units);
    let mut at = 0;
    while at < order.len() {
        let unit = units[at];
        l.unit = unit;
        let end = (at..order.len()).find(|i| units[*i] != unit).unwrap_or(order.len());
        for item in &order[at..end] {
            l.item(*item);
        }
        l.batch += 1;
        for val in std::mem::take(&mut l.dying[unit as usize]) {
            l.release(val);
        }
        at = end;
    }
    let mut laid = l.laid;
    let homes = l.homes.into_iter().zip(c.roots);
    let roots = homes
        .map(|(home, val)| Output { val: *val, home: home.unwrap_or(Home::New { bytes: c.bytes(*val) }) });
    let kept = std::mem::take(&mut laid.outputs);
    laid.outputs = roots.chain(kept).collect();
    let (offsets, end) = assign(&l.spans, c.upload_bytes);
    laid.slots.iter_mut().zip(offsets).for_each(|(slot, offset)| slot.offset_bytes = offset);
    laid.workspace_bytes = end;
    laid
}

impl Context<'_> {
    pub(crate) fn bytes(&self, val: Val) -> usize {
        let out = self.graph.out(val);
        self.caps.value_bytes(out.shape.elems(), out.dtype)
    }
}

impl Layout<'_, '_> {
    fn survey(&mut self, order: &[u32], units: &[u32]) {
        let c = self.c;
        for (leaf, l) in c.leaves.iter().enumerate() {
            self.locs.insert(Val::of(l.node), Loc::Leaf(leaf as u32));
        }
        for (i, val) in c.roots.iter().enumerate() {
            if c.graph.node(val.node).op != Op::Input {
                self.owner.entry(*val).or_insert(i as u32);
            }
            if let Some(leaf) = c.into[i] {
                self.wanted.entry(leaf).or_insert(i as u32);
            }
        }
        let used = |uses: &mut HashMap<Val, Use>, val: Val, unit: u32, item: u32| {
            let entry = uses.entry(val).or_default();
            if entry.items == 0 || entry.last != unit {
                *entry = Use { last: unit, items: 1, item };
            } else if entry.item != item {
                entry.items += 1;
                entry.item = item;
            }
        };
        for (item, unit) in order.iter().zip(units) {
            let Item { group, target } = &c.items[*item as usize];
            for val in group.operands.iter().chain(group.stores.iter().filter_map(|s| s.base.as_ref())) {
                used(&mut self.uses, *val, *unit, *item);
            }
            for s in group.stores.iter().filter(|_| target.is_none()) {
                used(&mut self.uses, s.val, *unit, *item);
            }
        }
        for item in order.iter().rev() {
            let Item { group, target } = &c.items[*item as usize];
            for s in group.stores.iter().filter(|_| target.is_none()) {
                if let Some(base) = s.base.filter(|b| *b != s.val) {
                    let end = self.ends.get(&s.val).copied().unwrap_or(s.val);
                    // The last of several that assign into one value, as the order has them.
                    self.ends.entry(base).or_insert(end);
                }
            }
        }
        let units = units.iter().max().map_or(0, |u| *u as usize + 1);
        self.dying = vec![Vec::new(); units];
        let mut dying: Vec<(Val, u32)> = self.uses.iter().map(|(v, u)| (*v, u.last)).collect();
        dying.sort_unstable();
        for (val, unit) in dying {
            self.dying[unit as usize].push(val);
        }
        if c.options.keep {
            return;
        }
        // Bases of assignments that end in a root lie in the root's buffer from the start.
        for item in order.iter().rev() {
            let group = &c.items[*item as usize].group;
            for s in &group.stores {
                let Some(base) = s.base.filter(|b| *b != s.val && !self.owner.contains_key(b)) else {
                    continue;
                };
                let root = self.early.get(&s.val).or_else(|| self.owner.get(&s.val)).copied();
                let Some(root) = root.filter(|r| c.into[*r as usize].is_none()) else { continue };
                let sole = self.uses.get(&base).is_some_and(|u| u.items == 1 && u.item == *item);
                let leaf = c.graph.node(base.node).op == Op::Input;
                if sole
                    && !leaf
                    && !group.operands.contains(&base)
                    && self.c.bytes(base) == self.c.bytes(s.val)
                {
                    self.early.insert(base, root);
                }
            }
        }
    }

    fn release(&mut self, val: Val) {
        if let Some(Loc::Slot(slot)) = self.locs.get(&val)
            && self.slot_holds[*slot as usize] == val
        {
            self.spans[*slot as usize].dies = self.unit;
        }
    }

    fn item(&mut self, item: u32) {
        let c = self.c;
        self.now = item;
        let Item { group, target } = &c.items[item as usize];
        let reads: Vec<Loc> = group.operands.iter().map(|v| self.locs[v]).collect();
        let mut writes: Vec<Loc> = Vec::with_capacity(group.stores.len());
        for s in &group.stores {
            let loc = match target {
                Some(root) => self.root_place(*root, s, group).unwrap_or(Loc::Out(*root)),
                None => self.place(s, group, &reads, &writes),
            };
            if target.is_none() {
                if let Some(base) = s.base.filter(|b| *b != s.val)
                    && self.locs[&base] != loc
                {
                    self.copy(base, s.val, loc);
                }
                self.locs.insert(s.val, loc);
                match loc {
                    Loc::Slot(slot) => self.slot_holds[slot as usize] = s.val,
                    Loc::Leaf(leaf) => self.leaf_holds[leaf as usize] = s.val,
                    Loc::Out(_) => {}
                }
            }
            writes.push(loc);
        }
        self.step(Arc::clone(group), reads, writes);
    }

    fn step(&mut self, group: Arc<Group>, reads: Vec<Loc>, writes: Vec<Loc>) {
        let at = self.laid.steps.len() as u32;
        for loc in reads.iter().chain(&writes) {
            if let Loc::Slot(slot) = loc {
                self.laid.slots[*slot as usize].dies = at;
            }
        }
        self.laid.steps.push(Step { group, reads, writes, batch: self.batch });
    }

    fn copy(&mut self, base: Val, val: Val, to: Loc) {
        let name = self.c.graph.node(val.node).op.name();
        self.laid
            .notes
            .push(format!("{val:?} {name}: {base:?} is copied first, it is still needed or lies elsewhere"));
        let group = Arc::new(copy_group(self.c.graph, base, val));
        let from = self.locs[&base];
        self.step(group, vec![from], vec![to]);
        self.batch += 1;
    }

    fn slot(&mut self, val: Val) -> Loc {
        let bytes = self.c.bytes(val);
        let at = self.laid.steps.len() as u32;
        self.laid.slots.push(Slot { offset_bytes: 0, bytes, born: at, dies: at });
        self.spans.push(Span { bytes, born: self.unit, dies: u32::MAX });
        self.slot_holds.push(val);
        Loc::Slot(self.laid.slots.len() as u32 - 1)
    }

    /// Whether the item that is placed is the only use of `val` from its unit on.
    fn dies_here(&self, val: Val) -> bool {
        let (unit, item) = (self.unit, self.now);
        self.uses.get(&val).is_none_or(|u| u.last < unit || u.last == unit && u.items == 1 && u.item == item)
    }

    fn place(&mut self, s: &Store, group: &Group, reads: &[Loc], writes: &[Loc]) -> Loc {
        if let Some(loc) = self.locs.get(&s.val) {
            return *loc;
        }
        if self.c.options.keep && !self.owner.contains_key(&s.val) {
            let at = self.homes.len() + self.laid.outputs.len();
            self.laid.outputs.push(Output { val: s.val, home: Home::New { bytes: self.c.bytes(s.val) } });
            return Loc::Out(at as u32);
        }
        if let Some(root) = self.owner.get(&s.val).copied() {
            return self.root_place(root, s, group).unwrap_or(Loc::Out(root));
        }
        if let Some(root) = self.early.get(&s.val) {
            return Loc::Out(*root);
        }
        if let Some(base) = s.base
            && let Some(loc) = self.base_place(base, s, group)
        {
            return loc;
        }
        for (val, loc) in group.operands.iter().zip(reads).filter(|_| s.base.is_none()) {
            let Loc::Slot(slot) = loc else { continue };
            let free = self.slot_holds[*slot as usize] == *val && !writes.contains(loc);
            if free && self.dies_here(*val) && self.swaps(group, s, *val) {
                return *loc;
            }
        }
        self.slot(s.val)
    }

    /// Whether the store may take the operand's place: same size and type, both only at the element
    /// of the invocation.
    fn swaps(&self, group: &Group, s: &Store, val: Val) -> bool {
        self.c.bytes(val) == self.c.bytes(s.val)
            && self.c.graph.out(val).dtype == self.c.graph.out(s.val).dtype
            && reads_in_place(group, s, val)
    }

    /// The base's place, where the base ends here.
    fn base_place(&self, base: Val, s: &Store, group: &Group) -> Option<Loc> {
        let loc = *self.locs.get(&base)?;
        let free = self.dies_here(base)
            && !group.operands.contains(&base)
            && !self.owner.contains_key(&base)
            && self.c.bytes(base) == self.c.bytes(s.val);
        match loc {
            _ if !free || self.c.options.keep => None,
            Loc::Slot(_) => Some(loc),
            Loc::Leaf(leaf) => {
                let donated = self.c.leaves[leaf as usize].kind == LeafKind::Donated;
                let end = self.ends.get(&s.val).copied().unwrap_or(s.val);
                let wanted = self.wanted.get(&leaf);
                (donated && wanted.is_none_or(|w| self.c.roots[*w as usize] == end)).then_some(loc)
            }
            Loc::Out(_) => None,
        }
    }

    /// The leaf in whose place root `root` ends, if it can.
    fn root_place(&mut self, root: u32, s: &Store, group: &Group) -> Option<Loc> {
        if self.c.options.keep {
            return None;
        }
        let copied = self.c.items[self.now as usize].target.is_some();
        let base = s.base.filter(|b| *b != s.val && !copied);
        let leaf = match self.c.into[root as usize] {
            Some(leaf) => leaf,
            None => match self.base_place(base?, s, group)? {
                Loc::Leaf(leaf) => leaf,
                _ => return None,
            },
        };
        let Leaf { node, kind, .. } = &self.c.leaves[leaf as usize];
        let loc = Loc::Leaf(leaf);
        let holds = self.leaf_holds[leaf as usize];
        let taken = self.taken[leaf as usize];
        let exact = |val: Val| {
            let out = self.c.graph.out(val);
            out.shape.elems() * self.c.caps.storage(out.dtype).bytes()
        };
        let same = exact(Val::of(*node)) == exact(s.val);
        let free = self.dies_here(holds) && !self.owner.contains_key(&holds);
        let fits = if base.is_some_and(|b| self.locs.get(&b) == Some(&loc)) {
            !group.operands.contains(&holds)
        } else {
            !group.operands.contains(&holds) || base.is_none() && self.swaps(group, s, holds)
        };
        let fine = *kind == LeafKind::Donated && !taken && same && free && fits;
        let home = Home::InPlace(leaf);
        if fine {
            self.homes[root as usize] = Some(home);
            self.taken[leaf as usize] = true;
            return Some(loc);
        }
        if self.c.into[root as usize].is_some() {
            let name = self.c.graph.node(s.val.node).op.name();
            self.laid
                .notes
                .push(format!("{:?} {name}: not in place of leaf {leaf}, which is still needed", s.val));
        }
        None
    }
}

/// Whether the group reads `val` only at the element of the invocation's own outer coordinates.
pub(crate) fn reads_in_place(group: &Group, store: &Store, val: Val) -> bool {
    let index = |i: u16| &group.body.indices[usize::from(i)];
    if group.kind != Kind::Row && !index(store.index).is_linear() {
        return false;
    }
    let Some(operand) = group.operands.iter().position(|v| *v == val) else { return true };
    let operand = operand as u16;
    if group.kind == Kind::Row {
        return group.row_in_place(store, operand);
    }
    match group.kind {
        Kind::MatMul { a, b } if a.0 == operand || b.0 == operand => return false,
        Kind::Scatter { .. } | Kind::Whole(_) | Kind::Attention(..) | Kind::Custom(_) => return false,
        _ => {}
    }
    let outer = group.outer().len();
    group.body.exprs.iter().all(|(expr, _)| match expr {
        Expr::Load { operand: o, index: i } if *o == operand => {
            index(*i).views[0].dims.len() == outer && index(*i).is_linear()
        }
        Expr::Gather { operand: o, .. } => *o != operand,
        _ => true,
    })
}
