//! Attention and its gradients by tiles: 64 queries with 64 keys in a workgroup, the weights never in memory.
//!
//! A kernel owns rows on one side and walks over the rows of the other. Results and the gradients of queries own
//! queries, those of keys and values own keys. What they share is printed by [`tile`].

mod tile;

use wgrad_graph::{Attend, DType, Heads, IndexId, Op, Out, Result, bail};

use super::kernel::{Cx, Kernel, Touch};
use super::{fold, points};
use crate::choose;
use crate::launch::{Launch, Lowered};
use tile::Text;

/// Rows of a tile, on both sides.
pub(super) const ROWS: usize = 64;

/// What a kernel of a tile computes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The result and the logarithms of the totals.
    Result,
    /// The gradient of the queries.
    Queries,
    /// The gradients of keys, of values, or of both.
    Keys {
        /// Whether that of the keys.
        keys: bool,
        /// Whether that of the values.
        values: bool,
    },
}

impl Goal {
    /// Whether the workgroup's own rows are queries.
    fn owns_queries(self) -> bool {
        !matches!(self, Goal::Keys { .. })
    }

    /// Whether the products of the result's gradient with the values are needed.
    fn slopes(self) -> bool {
        matches!(self, Goal::Queries | Goal::Keys { keys: true, .. })
    }
}

/// An attention that is to be printed.
#[derive(Copy, Clone)]
pub(super) struct Site<'a> {
    pub(super) cx: Cx<'a>,
    pub(super) attend: Attend,
    pub(super) heads: Heads,
    /// Number and index of the operands, in the node's order.
    pub(super) ins: &'a [(u16, IndexId)],
    /// Whether features move by fours.
    pub(super) quads: bool,
}

pub(super) fn lower(cx: Cx<'_>, op: Op, ins: &[(u16, IndexId)]) -> Result<Lowered> {
    let Some(attend) = op.attend() else { bail!(Argument, op.name(), "is no attention") };
    let node = cx.graph.node(cx.step.group.stores[0].val.node);
    let shape = |i: usize| cx.graph.out(node.inputs[i]).shape;
    let heads = Heads::of(shape(0), shape(1), shape(2));
    let plain = Site { cx, attend, heads, ins, quads: false };
    let site = Site { quads: plain.moves_by_fours(&node.inputs), ..plain };
    let goals: &[Goal] = match op {
        Op::Attention(_) => &[Goal::Result],
        // Accumulators of both in registers: up to 64 features they fit beside the tile's.
        _ if heads.d.max(heads.e) <= choose::ATTENTION_BOTH => {
            &[Goal::Keys { keys: true, values: true }, Goal::Queries]
        }
        _ => &[
            Goal::Keys { keys: false, values: true },
            Goal::Keys { keys: true, values: false },
            Goal::Queries,
        ],
    };
    let mut launches = Vec::new();
    for goal in goals {
        launches.extend(site.launches(*goal)?);
    }
    Ok(Lowered { launches, scratch_bytes: 0 })
}

impl<'a> Site<'a> {
    pub(super) fn out(&self, operand: usize) -> Out {
        self.cx.graph.out(self.cx.step.group.operands[usize::from(self.ins[operand].0)])
    }

    pub(super) fn strides(&self, operand: usize) -> (i64, [i64; 4]) {
        let view = &self.cx.step.group.body.indices[usize::from(self.ins[operand].1)].views[0];
        let mut strides = [0; 4];
        strides[..view.strides.len()].copy_from_slice(&view.strides);
        (view.offset, strides)
    }

    /// The operands with features, of which four neighbours may be one vector.
    fn featured(&self) -> Vec<usize> {
        let rest = self.attend.rest();
        let mut all = vec![0, 1, 2];
        all.extend((self.ins.len() > rest).then_some(rest));
        all
    }

    fn moves_by_fours(&self, vals: &[wgrad_graph::Val]) -> bool {
        let others = (0..self.ins.len()).filter(|i| !self.featured().contains(i));
        let shared: Vec<u16> = others.map(|i| self.ins[i].0).collect();
        let loc = |operand: u16| self.cx.step.reads[usize::from(operand)];
        self.featured().into_iter().all(|i| {
            let (offset, [b, h, row, one]) = self.strides(i);
            let width = self.cx.graph.out(vals[i]).shape[3];
            self.out(i).dtype == DType::F32
                && (one == 1 || width == 1)
                && [offset, b, h, row, width as i64].iter().all(|n| n % 4 == 0)
                && shared.iter().all(|o| loc(*o) != loc(self.ins[i].0))
        })
    }

    /// Whether the own rows' features stay in workgroup memory.
    pub(super) fn resident(&self, goal: Goal) -> bool {
        goal == Goal::Result
            && self.heads.d <= ROWS
            && choose::attention_class(1, true, self.cx.caps).is_some()
    }

    /// Features that a kernel accumulates.
    fn width(&self, goal: Goal) -> usize {
        match goal {
            Goal::Result | Goal::Keys { keys: false, .. } => self.heads.e,
            Goal::Queries | Goal::Keys { values: false, .. } => self.heads.d,
            Goal::Keys { .. } => self.heads.d.max(self.heads.e),
        }
    }

    fn launches(&self, goal: Goal) -> Result<Vec<Launch>> {
        let Heads { b, h, g, l, s, d, e } = self.heads;
        let name = self.cx.graph.node(self.cx.step.group.stores[0].val.node).op.name();
        let (count, own, other) = if goal.owns_queries() { (b * h, l, s) } else { (b * g, s, l) };
        let width = self.width(goal);
        let empty = match goal {
            Goal::Result => count * own == 0,
            _ => count * own * width == 0,
        };
        if empty {
            return Ok(Vec::new());
        }
        let caps = self.cx.caps;
        let resident = self.resident(goal);
        let Some(class) = choose::attention_class(width, resident, caps) else {
            bail!(Limit, name, "heads of {d} and {e} features have no kernel on {}", caps.name);
        };
        let turns =
            choose::attention_turns(other * if goal.owns_queries() { 1 } else { self.heads.shared() }, d + e);
        if !choose::runs_to_end(turns, caps) {
            bail!(Limit, name, "{other} rows take more turns of a loop than {} makes", caps.name);
        }
        let blocks = own.div_ceil(ROWS);
        let groups = points(name, &[count, blocks])?;
        let products = match goal {
            Goal::Result | Goal::Keys { keys: false, .. } => d + e,
            Goal::Queries | Goal::Keys { values: false, .. } => 2 * d + e,
            Goal::Keys { .. } => 2 * (d + e),
        };
        let flops = self.heads.pairs(self.attend.causal) * 2 * products as u64;
        let each = groups.div_ceil(choose::cuts(flops, caps));
        let mut launches = Vec::new();
        for first in (0..groups).step_by(each) {
            let some = each.min(groups - first);
            let part = flops * some as u64 / groups as u64;
            launches.push(self.launch(goal, class, [first, groups, blocks, some], part)?);
        }
        Ok(launches)
    }

    fn launch(
        &self,
        goal: Goal,
        class: usize,
        [first, groups, blocks, some]: [usize; 4],
        flops: u64,
    ) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        let text = Text::new(self, goal, class, &mut k);
        let regions = text.regions(&mut k, [first, groups, blocks]);
        let regions: Vec<(&str, &str)> = regions.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let extra = text.declared(&mut k);
        k.finish(wgrad_wgsl::ATTENTION_TILE, &extra, &regions, fold(some as u64, self.cx.caps)?, flops)
    }

    /// Notes what a kernel reads and writes.
    fn note(&self, goal: Goal, k: &mut Kernel<'_>) {
        let touch = if self.quads { Touch::Quad } else { Touch::Each };
        let rest = self.attend.rest();
        for i in 0..self.ins.len() {
            let wanted = match i {
                0 | 1 => true,
                2 => goal != (Goal::Keys { keys: false, values: true }),
                3 if self.attend.masked => true,
                i if i == rest + 2 => goal.slopes(),
                _ => true,
            };
            if wanted {
                k.reads(self.ins[i].0, if self.featured().contains(&i) { touch } else { Touch::Each });
            }
        }
        for store in self.stores(goal) {
            k.writes(store, self.stored(store));
        }
    }

    /// The results that a kernel writes, by number.
    fn stores(&self, goal: Goal) -> Vec<usize> {
        match goal {
            Goal::Result => vec![0, 1],
            Goal::Queries => vec![0],
            Goal::Keys { keys, values } => {
                [keys.then_some(1), values.then_some(2)].into_iter().flatten().collect()
            }
        }
    }

    /// Results with features of whole fours are written by fours.
    pub(super) fn stored(&self, store: usize) -> Touch {
        let out = self.cx.graph.out(self.cx.step.group.stores[store].val);
        let fours = out.shape.rank() == 4 && out.shape[3].is_multiple_of(4);
        if fours { Touch::Quad } else { Touch::Each }
    }
}
