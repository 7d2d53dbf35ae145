//! In which order items run: as recorded, or depth first when that needs less memory; updates of one
//! text next to each other.

use std::collections::HashMap;

use super::layout::{Context, Item};
use crate::fuse::Order;
use crate::{DType, Expr, Fast, Index, Kind, LeafKind, Op, Val};

/// Items in order, and for each the unit (neighbours that may run at once) that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sequence {
    pub(crate) items: Vec<u32>,
    pub(crate) units: Vec<u32>,
}

/// How far apart updates may be recorded that are run at once.
const REACH: usize = 256;
/// Most items of one unit.
const MOST: usize = 256;

/// The dependencies of the items: what `before` says of the groups, the copies for roots, and the
/// readers of values that something replaces.
pub(crate) fn dependencies(c: &Context<'_>, before: &[Vec<u32>]) -> Order {
    let mut order = Order::new(c.items.len());
    let lead = c.items.iter().take_while(|i| i.target.is_some()).count();
    let mut writers: HashMap<Val, Vec<u32>> = HashMap::new();
    let mut readers: HashMap<Val, Vec<u32>> = HashMap::new();
    for (i, Item { group, target }) in c.items.iter().enumerate() {
        if target.is_none() {
            before[i - lead].iter().for_each(|b| order.edge(*b + lead as u32, i as u32));
            group.stores.iter().for_each(|s| writers.entry(s.val).or_default().push(i as u32));
        } else {
            for w in group.operands.iter().filter_map(|v| writers.get(v)).flatten() {
                order.edge(*w, i as u32);
            }
        }
        group.operands.iter().for_each(|v| readers.entry(*v).or_default().push(i as u32));
    }
    let mut replaced: Vec<(Val, u32)> = Vec::new();
    for (i, Item { group, target }) in c.items.iter().enumerate() {
        for s in group.stores.iter().filter(|_| target.is_none()) {
            replaced.extend(s.base.filter(|b| *b != s.val).map(|b| (b, i as u32)));
        }
    }
    let mut copies: HashMap<u32, u32> = HashMap::new();
    for (i, item) in c.items.iter().enumerate() {
        if let Some(root) = item.target {
            copies.entry(root).or_insert(i as u32);
        }
    }
    for (i, into) in c.into.iter().enumerate() {
        let Some(leaf) = into.filter(|_| !c.options.keep) else { continue };
        let Some(leaf) = c.leaves.get(leaf as usize).filter(|l| l.kind == LeafKind::Donated) else {
            continue;
        };
        let copy = copies.get(&(i as u32)).copied();
        let writer = copy.or_else(|| writers.get(&c.roots[i]).and_then(|w| w.last().copied()));
        replaced.extend(writer.map(|w| (Val::of(leaf.node), w)));
    }
    for (val, writer) in replaced {
        for reader in readers.get(&val).into_iter().flatten() {
            // Where this makes a cycle the value is copied instead.
            order.require(*reader, writer);
        }
    }
    order
}

/// The recorded order, as far as the dependencies leave it.
pub(crate) fn recorded(c: &Context<'_>, order: &Order) -> Vec<u32> {
    let mut items: Vec<u32> = (0..c.items.len() as u32).collect();
    items.sort_unstable_by_key(|i| order.position(*i));
    items
}

/// Depth first from the deepest results, deepest operands first; an item that frees at least as much as
/// it takes runs as soon as it can.
pub(crate) fn depth_first(c: &Context<'_>, order: &Order, recorded: &[u32]) -> Vec<u32> {
    let n = c.items.len();
    let mut depth = vec![0u32; n];
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); n];
    let mut waits: Vec<u32> = vec![0; n];
    for i in recorded {
        for b in order.before(*i) {
            depth[*i as usize] = depth[*i as usize].max(depth[*b as usize] + 1);
            after[*b as usize].push(*i);
            waits[*i as usize] += 1;
        }
    }
    let mut left: HashMap<Val, u32> = HashMap::new();
    let mut readers: HashMap<Val, Vec<u32>> = HashMap::new();
    for (i, item) in c.items.iter().enumerate() {
        for v in &item.group.operands {
            *left.entry(*v).or_default() += 1;
            readers.entry(*v).or_default().push(i as u32);
        }
    }
    c.roots.iter().for_each(|v| *left.entry(*v).or_default() += 1);
    let mut sinks: Vec<u32> = recorded.iter().copied().filter(|i| after[*i as usize].is_empty()).collect();
    sinks.sort_by_key(|i| std::cmp::Reverse(depth[*i as usize]));
    let mut done = vec![false; n];
    let mut opened = vec![false; n];
    let mut result = Vec::with_capacity(n);
    let mut stack: Vec<u32> = Vec::new();
    let mut ready: Vec<u32> = Vec::new();
    for sink in sinks {
        stack.push(sink);
        while let Some(i) = stack.last().copied() {
            if done[i as usize] {
                stack.pop();
                continue;
            }
            if !opened[i as usize] {
                opened[i as usize] = true;
                let mut first: Vec<u32> =
                    order.before(i).iter().copied().filter(|b| !done[*b as usize]).collect();
                first.sort_by_key(|b| (depth[*b as usize], std::cmp::Reverse(order.position(*b))));
                stack.extend(first);
                continue;
            }
            stack.pop();
            ready.push(i);
            while let Some(i) = ready.pop() {
                if std::mem::replace(&mut done[i as usize], true) {
                    continue;
                }
                result.push(i);
                after[i as usize].iter().for_each(|next| waits[*next as usize] -= 1);
                let mut perhaps = after[i as usize].clone();
                for v in &c.items[i as usize].group.operands {
                    let Some(l) = left.get_mut(v) else { continue };
                    *l -= 1;
                    if *l == 1 {
                        // Whoever reads it last frees it.
                        perhaps.extend(readers.get(v).into_iter().flatten());
                    }
                }
                perhaps.retain(|p| !done[*p as usize] && waits[*p as usize] == 0 && shrinks(c, *p, &left));
                perhaps.sort_by_key(|p| std::cmp::Reverse(order.position(*p)));
                ready.extend(perhaps);
            }
        }
    }
    result
}

/// Whether the item frees at least as many bytes as it takes.
fn shrinks(c: &Context<'_>, item: u32, left: &HashMap<Val, u32>) -> bool {
    let Item { group, .. } = &c.items[item as usize];
    let freed =
        group.operands.iter().filter(|v| left.get(v) == Some(&1) && c.graph.node(v.node).op != Op::Input);
    let freed: usize = freed.map(|v| c.bytes(*v)).sum();
    let taken = group.stores.iter().filter(|s| s.base.is_none() && !c.updates.contains(&s.val));
    taken.map(|s| c.bytes(s.val)).sum::<usize>() <= freed
}

/// What two pointwise groups of one kernel text have in common.
#[derive(PartialEq, Eq, Hash)]
struct Text {
    rank: usize,
    exprs: Vec<(Expr, DType)>,
    operands: Vec<DType>,
    stores: Vec<(u32, u16, DType)>,
    indices: Vec<Vec<Class>>,
}

/// What kernel text depends on of a view.
#[derive(PartialEq, Eq, Hash)]
struct Class {
    linear: bool,
    strides: Vec<i8>,
    valid: bool,
    dynamic: usize,
}

fn classes(index: &Index) -> Vec<Class> {
    let stride = |s: &i64| if s.abs() <= 1 { *s as i8 } else { 2 };
    let views = index.views.iter();
    views
        .map(|v| Class {
            linear: v.is_linear(),
            strides: v.strides.iter().map(stride).collect(),
            valid: v.valid.is_some(),
            dynamic: v.dynamic.len(),
        })
        .collect()
}

fn text(c: &Context<'_>, item: &Item) -> Option<Text> {
    let group = &item.group;
    if group.kind != Kind::Pointwise || item.target.is_some() || group.stores.iter().any(|s| s.base.is_some())
    {
        return None;
    }
    let dtype = |v: &Val| c.graph.out(*v).dtype;
    let sizeless = |(expr, dtype): &(Expr, DType)| {
        let expr = match *expr {
            Expr::Gather { operand, index, at, .. } => {
                Expr::Gather { operand, index, at, stride: 0, size: 0 }
            }
            Expr::Random { index, scalars, .. } => Expr::Random { index, per_row: 0, scalars },
            ref other => other.clone(),
        };
        (expr, *dtype)
    };
    Some(Text {
        rank: group.dims.len(),
        exprs: group.body.exprs.iter().map(sizeless).collect(),
        operands: group.operands.iter().map(dtype).collect(),
        stores: group.stores.iter().map(|s| (s.x, s.index, dtype(&s.val))).collect(),
        indices: group.body.indices.iter().map(classes).collect(),
    })
}

/// Independent items of one text become units: neighbours always, updates of leaves also where they
/// were recorded a little apart.
pub(crate) fn batched(c: &Context<'_>, order: &Order, items: &[u32]) -> Sequence {
    let mut units: Vec<Vec<u32>> = Vec::new();
    let mut unit_of = vec![0usize; items.len()];
    let mut last: HashMap<Text, usize> = HashMap::new();
    let batches = c.caps.allows(Fast::Batches);
    for item in items {
        let mut joins = None;
        if let Some(text) = text(c, &c.items[*item as usize]).filter(|_| batches) {
            let update = c.items[*item as usize].group.stores.iter().all(|s| c.updates.contains(&s.val));
            let known = last.get(&text).copied();
            joins = known.filter(|unit| {
                let near = unit + 1 == units.len() || update && units.len() - unit <= REACH;
                let free = order.before(*item).iter().all(|b| unit_of[*b as usize] < *unit);
                near && free && units[*unit].len() < MOST
            });
            last.insert(text, joins.unwrap_or(units.len()));
        }
        let unit = joins.unwrap_or(units.len());
        if unit == units.len() {
            units.push(Vec::new());
        }
        units[unit].push(*item);
        unit_of[*item as usize] = unit;
    }
    let mut sequence =
        Sequence { items: Vec::with_capacity(items.len()), units: Vec::with_capacity(items.len()) };
    for (unit, members) in units.into_iter().enumerate() {
        for item in members {
            sequence.items.push(item);
            sequence.units.push(unit as u32);
        }
    }
    sequence
}
