//! Attention and its gradients by tiles: 64 queries with 64 keys in a workgroup, the weights never in memory.
//!
//! A kernel owns rows on one side and walks over the rows of the other. Results and the gradients of queries own
//! queries, those of keys and values own keys. What they share is printed by [`tile`].

mod tile;
mod units;

use std::fmt::Write as _;

use wgrad_graph::{Attend, DType, Fast, Heads, IndexId, Op, Out, Result, bail};

use super::kernel::{Cx, Kernel, Touch};
use super::{fold, points};
use crate::choose;
use crate::launch::{Launch, Lowered, On};
use tile::Text;
use units::Units;

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
    /// Whether units for matrices may multiply.
    pub(super) units: bool,
    /// Whether those are of f32, each in two parts.
    pub(super) split: bool,
}

/// Where a launch on units tells which blocks of own rows it leaves to the tiles: a word each, in scratch memory.
#[derive(Copy, Clone)]
pub(super) struct Marks {
    offset: usize,
    /// Blocks of 64 own rows of a head.
    across: usize,
    /// Those of all heads.
    blocks: usize,
}

impl Marks {
    fn note(&self, k: &mut Kernel<'_>) {
        k.scratch_at(self.offset, self.blocks, true, Touch::Each);
    }

    /// The mark of the block at row `at` of a workgroup's.
    fn mark(&self, k: &mut Kernel<'_>, at: usize) -> String {
        let across = k.word("marks", self.across as i64);
        k.scratch_word_at(self.offset, &format!("pair * {across} + own0 / {ROWS}u + {}u", at / ROWS))
    }
}

pub(super) fn lower(cx: Cx<'_>, op: Op, ins: &[(u16, IndexId)]) -> Result<Lowered> {
    let Some(attend) = op.attend() else { bail!(Argument, op.name(), "is no attention") };
    let node = cx.graph.node(cx.step.group.stores[0].val.node);
    let shape = |i: usize| cx.graph.out(node.inputs[i]).shape;
    let heads = Heads::of(shape(0), shape(1), shape(2));
    let mut site = Site { cx, attend, heads, ins, quads: false, units: false, split: false };
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
    site.split = site.featured().iter().all(|i| site.out(*i).dtype == DType::F32);
    site.units = site.on_units(goals) && site.moves_by_fours(&node.inputs, &[DType::F16, DType::F32]);
    site.quads = site.units || site.moves_by_fours(&node.inputs, &[DType::F32]);
    let mut all = Lowered::default();
    for goal in goals {
        site.launches(*goal, &mut all)?;
    }
    Ok(all)
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

    /// Words of an operand's view: offset, and the strides of its axes.
    pub(super) fn view(&self, k: &mut Kernel<'a>, i: usize) -> [String; 5] {
        let (offset, strides) = self.strides(i);
        let mut values = [offset; 5];
        values[1..].copy_from_slice(&strides);
        let mut n = 0;
        ["at", "b", "h", "r", "c"].map(|part| {
            n += 1;
            k.word(&format!("x{i}{part}"), values[n - 1])
        })
    }

    /// The base of an operand's matrix: of a head of queries, or of keys.
    pub(super) fn base(&self, k: &mut Kernel<'a>, i: usize) -> String {
        let [at, b, h, ..] = self.view(k, i);
        let head = if i == 1 || i == 2 { "group_of" } else { "head" };
        format!("{at} + z * {b} + {head} * {h}")
    }

    /// Where a workgroup is that owns `rows` rows: its own rows, head and batch, and the other side's rows.
    pub(super) fn place(
        &self,
        goal: Goal,
        k: &mut Kernel<'a>,
        [first, groups, blocks]: [usize; 3],
        rows: usize,
    ) -> String {
        let heads = self.heads;
        let words = [
            ("first", first),
            ("total", groups),
            ("blocks", blocks),
            ("heads", if goal.owns_queries() { heads.h } else { heads.g }),
            ("ratio", heads.shared()),
            ("d", heads.d),
            ("e", heads.e),
            ("l", heads.l),
            ("s", heads.s),
        ];
        let mut text = k.declare_words(&words);
        let scale = self.attend.scale(heads.d) as f32;
        let word = k.word("scale", i64::from(scale.to_bits()));
        let _ = writeln!(text, "let scale = bitcast<f32>({word});\nlet factor = scale * 1.4426950408889634;");
        text.push_str(
            "let slot = first + group.y * groups.x + group.x;\nlet live = slot < total;\n\
             let which = min(slot, total - 1u);\nlet pair = which / blocks;\nz = pair / heads;\n",
        );
        let causal = self.attend.causal;
        if goal.owns_queries() {
            // The last queries of a causal attention see most keys: they come first.
            let _ = write!(
                text,
                "head = pair % heads;\nlet group_of = head / ratio;\nlet turns = 1u;\n\
                 let own0 = (blocks - 1u - which % blocks) * {rows}u;\nlet begin = 0u;\n",
            );
            let end = if causal { format!("min(s, own0 + {rows}u)") } else { "s".to_owned() };
            let _ = writeln!(text, "let end = {end};");
        } else {
            let begin = if causal { "own0" } else { "0u" };
            let _ = writeln!(
                text,
                "let group_of = pair % heads;\nlet turns = ratio;\nlet own0 = (which % blocks) * {rows}u;\n\
                 let begin = {begin};\nlet end = l;"
            );
        }
        text
    }

    /// The operands with features, of which four neighbours may be one vector.
    fn featured(&self) -> Vec<usize> {
        let rest = self.attend.rest();
        let mut all = vec![0, 1, 2];
        all.extend((self.ins.len() > rest).then_some(rest));
        all
    }

    /// Whether units multiply its halves, if features move by fours.
    fn on_units(&self, goals: &[Goal]) -> bool {
        let caps = self.cx.caps;
        let dtype = |i: usize| self.out(i).dtype;
        let rest = self.attend.rest();
        caps.cooperative
            && caps.allows(if self.split { Fast::SplitAttention } else { Fast::CooperativeAttention })
            && caps.subgroup == 32
            && [self.heads.d, self.heads.e].iter().all(|n| (32..=128).contains(n))
            && (self.split || (0..3).all(|i| dtype(i) == DType::F16))
            && (self.ins.len() <= rest || matches!(dtype(rest), DType::F16 | DType::F32))
            && goals.iter().all(|goal| Units::new(self, *goal).fits())
    }

    fn moves_by_fours(&self, vals: &[wgrad_graph::Val], of: &[DType]) -> bool {
        let others = (0..self.ins.len()).filter(|i| !self.featured().contains(i));
        let shared: Vec<u16> = others.map(|i| self.ins[i].0).collect();
        let loc = |operand: u16| self.cx.step.reads[usize::from(operand)];
        self.featured().into_iter().all(|i| {
            let (offset, [b, h, row, one]) = self.strides(i);
            let width = self.cx.graph.out(vals[i]).shape[3];
            of.contains(&self.out(i).dtype)
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

    fn launches(&self, goal: Goal, all: &mut Lowered) -> Result<()> {
        let Heads { b, h, g, l, s, d, e } = self.heads;
        let name = self.cx.graph.node(self.cx.step.group.stores[0].val.node).op.name();
        let (count, own, other) = if goal.owns_queries() { (b * h, l, s) } else { (b * g, s, l) };
        let width = self.width(goal);
        let empty = match goal {
            Goal::Result => count * own == 0,
            _ => count * own * width == 0,
        };
        if empty {
            return Ok(());
        }
        let caps = self.cx.caps;
        let units = self.units.then(|| Units::new(self, goal));
        let resident = self.resident(goal);
        let Some(class) = choose::attention_class(width, resident, caps) else {
            bail!(Limit, name, "heads of {d} and {e} features have no kernel on {}", caps.name);
        };
        let turns =
            choose::attention_turns(other * if goal.owns_queries() { 1 } else { self.heads.shared() }, d + e);
        if !choose::runs_to_end(turns, caps) {
            bail!(Limit, name, "{other} rows take more turns of a loop than {} makes", caps.name);
        }
        let products = match goal {
            Goal::Result | Goal::Keys { keys: false, .. } => d + e,
            Goal::Queries | Goal::Keys { values: false, .. } => 2 * d + e,
            Goal::Keys { .. } => 2 * (d + e),
        };
        let flops = self.heads.pairs(self.attend.causal) * 2 * products as u64;
        let across = own.div_ceil(ROWS);
        let offset = all.scratch_bytes.next_multiple_of(caps.align_bytes);
        let marks = Marks { offset, across, blocks: count * across };
        let split = units.is_some() && self.split;
        if split {
            all.scratch_bytes = offset + marks.blocks * 4;
        }
        for by in [units.as_ref().map(Some), (units.is_none() || split).then_some(None)].into_iter().flatten()
        {
            let blocks = own.div_ceil(by.map_or(ROWS, Units::own));
            let groups = points(name, &[count, blocks])?;
            let each = groups.div_ceil(choose::cuts(flops, caps));
            for first in (0..groups).step_by(each) {
                let some = each.min(groups - first);
                let part = flops * some as u64 / groups as u64;
                let (at, grid) = ([first, groups, blocks], fold(some as u64, caps)?);
                all.launches.push(match by {
                    Some(units) => units.launch(at, grid, part, marks)?,
                    None => {
                        let launch = self.launch(goal, class, at, grid, part, split.then_some(marks))?;
                        // Few blocks are left to it.
                        Launch { cost_flops: if split { part / 16 } else { part }, ..launch }
                    }
                });
            }
        }
        Ok(())
    }

    fn launch(
        &self,
        goal: Goal,
        class: usize,
        at: [usize; 3],
        grid: [u32; 3],
        flops: u64,
        marks: Option<Marks>,
    ) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        let text = Text::new(self, goal, class, &mut k);
        if let Some(marks) = marks {
            k.on = On::Marked;
            marks.note(&mut k);
        }
        let mut regions = text.regions(&mut k, at);
        if let Some(marks) = marks {
            let place = &mut regions[0].1;
            let mark = marks.mark(&mut k, 0);
            *place = place.replace("let live = ", "let inside = ").replace("let end = ", "let last = ");
            let _ = writeln!(
                place,
                "let marked = {mark} != 0u;\nlet live = inside && marked;\nlet end = select(begin, last, marked);"
            );
        }
        let regions: Vec<(&str, &str)> = regions.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let extra = text.declared(&mut k);
        k.finish(wgrad_wgsl::ATTENTION_TILE, &extra, &regions, grid, flops)
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
                let touch = match (self.featured().contains(&i), self.units, self.out(i).dtype) {
                    (true, true, DType::F16) => Touch::HalfQuad,
                    (true, ..) => touch,
                    _ => Touch::Each,
                };
                k.reads(self.ins[i].0, touch);
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
