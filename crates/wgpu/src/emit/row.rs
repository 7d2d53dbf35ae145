//! Row programs: one launch. A row has lanes of its own; they run along it once a level and meet in workgroup
//! memory, and where they can they hold what they have read.

mod print;
mod sums;

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{
    AccKind, Binary, DType, Expr, ExprId, Fast, IndexId, Reduce, Result, RowStage, Store, bail,
};

use super::body::{Printer, Space, loop_rounds};
use super::index::{Along, along};
use super::kernel::{Cx, Kernel, Touch, wgsl_type};
use super::states::neutral;
use super::{arithmetic, fold, points};
use crate::choose::{self, RowLanes, RowWork};
use crate::launch::{Launch, Lowered};
use print::{Function, Unit};

pub(super) use sums::pair;

pub(super) fn lower(cx: Cx<'_>) -> Result<Lowered> {
    let Some(mut program) = Rows::of(cx)? else { return Ok(Lowered::default()) };
    let Some(lanes) = program.lanes() else {
        bail!(Limit, "row", "{} elements are more than a loop of {} counts", program.length, cx.caps.name);
    };
    program.hold(&lanes);
    Ok(Lowered { launches: vec![program.launch(&lanes)?], scratch_bytes: 0 })
}

/// Instructions from which on what is made of loads is held, like what is hard: a quad of it takes four registers.
const LONG: usize = 8;

struct Rows<'a> {
    cx: Cx<'a>,
    stages: Vec<RowStage>,
    /// Kind and type of each accumulator.
    accs: Vec<(Reduce, &'static str)>,
    rows: usize,
    length: usize,
    /// Whether a lane takes four neighbours along the last axis at a time.
    quads: bool,
    /// Which expressions along the row each run along it evaluates.
    passes: Vec<Vec<bool>>,
    /// Expressions that a lane holds from the run that makes them on.
    held: Vec<ExprId>,
    /// Whether all loads of held units come before the first level.
    early: bool,
}
/// The expressions that an expression refers to.
fn operands(expr: &Expr, mut f: impl FnMut(ExprId)) {
    match *expr {
        Expr::Gather { at: x, .. } | Expr::Unary { x, .. } | Expr::Cast { x } => f(x),
        Expr::Binary { x, w, .. } => [x, w].into_iter().for_each(f),
        Expr::Select { c, x, w } => [c, x, w].into_iter().for_each(f),
        _ => {}
    }
}

impl<'a> Rows<'a> {
    /// The program of a step; `None`: there are no rows.
    fn of(cx: Cx<'a>) -> Result<Option<Rows<'a>>> {
        let group = &*cx.step.group;
        let rows = points("row", group.outer())?;
        if rows == 0 {
            return Ok(None);
        }
        let length = points("row", &group.dims[group.outer().len()..])?;
        points("row", &group.dims)?;
        let mut accs = Vec::new();
        for acc in &group.accs {
            let dtype = group.body.exprs[acc.x as usize].1;
            let AccKind::Reduce(kind) = acc.kind else {
                bail!(Kernel, "row", "finds no index of an extreme")
            };
            if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::I64) {
                bail!(DType, "reduce", "has no kernel for {dtype}");
            }
            accs.push((kind, wgsl_type(dtype)));
        }
        let stages = group.row_stages();
        let (passes, held) = (Vec::new(), Vec::new());
        let mut program = Rows { cx, stages, accs, rows, length, quads: false, passes, held, early: false };
        program.quads = cx.caps.allows(Fast::Quads) && program.takes_quads();
        program.survey();
        Ok(Some(program))
    }

    fn exprs(&self) -> &'a [(Expr, DType)] {
        &self.cx.step.group.body.exprs
    }

    fn outer(&self) -> usize {
        self.cx.step.group.outer().len()
    }

    fn levels(&self) -> usize {
        self.passes.len() - 1
    }

    fn units(&self) -> usize {
        if self.quads { self.length / 4 } else { self.length }
    }

    fn along(&self, index: IndexId) -> Along {
        along(&self.cx.step.group.body.indices[usize::from(index)], true, false)
    }

    /// The accumulators of a level.
    fn of_level(&self, level: usize) -> impl Iterator<Item = usize> + '_ {
        let accs = &self.cx.step.group.accs;
        (0..accs.len()).filter(move |a| self.stages[accs[*a].x as usize].level == level)
    }

    /// Numbers and values of the stores along the row, or of those once a row.
    fn stores(&self, whole: bool) -> Vec<(usize, &'a Store)> {
        let group = &*self.cx.step.group;
        group.stores.iter().enumerate().filter(|(_, s)| group.stores_rows(s) == whole).collect()
    }

    fn roots(&self, level: usize, last: bool) -> Vec<ExprId> {
        if last {
            return self.stores(true).into_iter().map(|(_, s)| s.x).collect();
        }
        self.of_level(level).map(|a| self.cx.step.group.accs[a].x).collect()
    }

    /// Expressions that `roots` need along the row, up to those that are `known`.
    fn needed(&self, roots: &[ExprId], known: impl Fn(usize) -> bool) -> Vec<bool> {
        let exprs = self.exprs();
        let mut needed = vec![false; exprs.len()];
        roots.iter().for_each(|x| needed[*x as usize] = true);
        for id in (0..exprs.len()).rev() {
            if needed[id] && self.stages[id].whole && !known(id) {
                operands(&exprs[id].0, |x| needed[x as usize] = true);
            }
        }
        needed
    }

    fn dear(&self, id: usize) -> bool {
        match self.exprs()[id].0 {
            Expr::Unary { op, .. } => op.row().hard,
            Expr::Binary { op, .. } => op.row().hard,
            _ => false,
        }
    }

    /// Whether a held expression is made, rather than loaded.
    fn makes(&self, id: usize) -> bool {
        !matches!(self.exprs()[id].0, Expr::Load { .. })
    }

    /// About how many instructions make an expression of what is loaded and of numbers of whole rows.
    fn weight(&self, id: usize) -> usize {
        let needed = self.needed(&[id as ExprId], |_| false);
        let one = |(expr, _): &(Expr, DType)| match expr {
            Expr::Load { .. } => 0,
            Expr::Binary { op: Binary::MulZero, .. } => 3,
            Expr::Binary { op: Binary::Div | Binary::DivZero, .. } => 8,
            _ => 1,
        };
        let made = needed.iter().zip(&self.stages).zip(self.exprs());
        made.filter(|((needed, stage), _)| **needed && stage.whole).map(|(_, expr)| one(expr)).sum()
    }

    /// Finds what each run needs, and what could be held from one to the next.
    fn survey(&mut self) {
        let levels = self.cx.step.group.row_levels();
        let roots: Vec<Vec<ExprId>> = (0..=levels).map(|l| self.roots(l, l == levels)).collect();
        let all: Vec<Vec<bool>> = roots.iter().map(|r| self.needed(r, |_| false)).collect();
        let first = |id: usize| all.iter().position(|n| n[id]).unwrap_or(usize::MAX);
        let again = |passes: &[Vec<bool>], id: usize| passes.iter().filter(|n| n[id]).count() > 1;
        let whole = |id: &usize| self.stages[*id].whole;
        let ids = 0..self.stages.len();
        let dear: Vec<usize> =
            ids.clone().filter(whole).filter(|i| self.dear(*i) && again(&all, *i)).collect();
        let cut = |dear: &[usize]| -> Vec<Vec<bool>> {
            let cut = |(level, roots): (usize, &Vec<ExprId>)| {
                self.needed(roots, |id| dear.contains(&id) && first(id) < level)
            };
            roots.iter().enumerate().map(cut).collect()
        };
        // What takes long to make again, and is asked for.
        let long = ids.clone().filter(whole).filter(|i| again(&all, *i) && self.weight(*i) >= LONG);
        let wide: Vec<usize> = dear.iter().copied().chain(long.filter(|i| !dear.contains(i))).collect();
        let reached = cut(&wide);
        let later = |i: &usize| (first(*i) + 1..reached.len()).any(|level| reached[level][*i]);
        let dear: Vec<usize> = wide.into_iter().filter(later).collect();
        let passes = cut(&dear);
        let load = |id: &usize| matches!(self.exprs()[*id].0, Expr::Load { .. });
        let loads = ids.filter(whole).filter(load).filter(|id| again(&passes, *id));
        self.held = dear.iter().copied().chain(loads).map(|id| id as ExprId).collect();
        self.passes = passes;
    }

    /// Leaves nothing held where lanes run along the row anew.
    fn hold(&mut self, lanes: &RowLanes) {
        if lanes.held == 0 {
            self.held.clear();
            let levels = self.levels();
            self.passes = (0..=levels).map(|l| self.needed(&self.roots(l, l == levels), |_| false)).collect();
        }
    }

    fn moving_loads(&self, needed: &[bool]) -> Vec<(u16, IndexId)> {
        let mut loads = Vec::new();
        for (id, (expr, _)) in self.exprs().iter().enumerate().filter(|(id, _)| needed[*id]) {
            if let Expr::Load { operand, index } = expr
                && self.stages[id].whole
                && !loads.contains(&(*operand, *index))
            {
                loads.push((*operand, *index));
            }
        }
        loads
    }

    fn all_loads(&self) -> Vec<(u16, IndexId)> {
        let last = self.cx.step.group.row_levels();
        let roots: Vec<ExprId> = (0..=last).flat_map(|l| self.roots(l, l == last)).collect();
        self.moving_loads(&self.needed(&roots, |_| false))
    }

    fn takes_quads(&self) -> bool {
        let group = &*self.cx.step.group;
        let plain = |e: &Expr| matches!(e, Expr::Load { .. } | Expr::Gather { .. });
        let whole = self.stages.iter().zip(self.exprs()).filter(|(s, (e, _))| s.whole && !plain(e)).count();
        let quad = |(o, i): &(u16, IndexId)| self.cx.in_words(*o) && self.along(*i) == Along::Quad;
        group.dims.last().is_some_and(|d| *d > 0 && d % 4 == 0)
            && self.length >= 64
            && whole <= 64
            && self.all_loads().iter().any(quad)
    }

    /// Whether neighbours in memory belong to one row: as the load that reaches most elements has it.
    fn together(&self) -> bool {
        let group = &*self.cx.step.group;
        let view = |i: IndexId| &group.body.indices[usize::from(i)].views[0];
        let reached = |i: IndexId| -> usize {
            group.dims.iter().zip(&view(i).strides).filter(|(_, s)| **s != 0).map(|(d, _)| *d).product()
        };
        let loads = self.all_loads().into_iter().map(|(_, i)| i);
        let Some(largest) =
            loads.chain(self.stores(true).iter().map(|(_, s)| s.index)).max_by_key(|i| reached(*i))
        else {
            return true;
        };
        let strides = &view(largest).strides;
        let unit =
            |axes: std::ops::Range<usize>| axes.into_iter().any(|a| strides[a] == 1 && group.dims[a] > 1);
        unit(self.outer()..group.dims.len()) || !unit(0..self.outer())
    }

    fn lanes(&self) -> Option<RowLanes> {
        let word = |ty: &str| if ty == "vec2<u32>" { 2 } else { 1 };
        let state_bytes = self.accs.iter().map(|(_, ty)| 4 * word(ty)).sum();
        let each = if self.quads { 4 } else { 1 };
        let words = self.held.iter().map(|x| word(wgsl_type(self.exprs()[*x as usize].1)) * each).sum();
        // A line of text has about 40 bytes.
        let most = self.passes.iter().map(|n| n.iter().filter(|n| **n).count()).max().unwrap_or(0);
        let work = RowWork {
            rows: self.rows,
            units: self.units(),
            levels: self.passes.len(),
            together: self.together(),
            state_bytes,
            words,
            point_bytes: most * each * 40,
            inner: each * loop_rounds(&self.cx.step.group.body),
        };
        choose::row_lanes(&work, self.cx.caps)
    }

    /// Notes what is read and written; whether the error flag may be raised.
    fn note(&self, k: &mut Kernel<'_>) -> bool {
        let mut flagged = false;
        for (id, (expr, _)) in self.exprs().iter().enumerate() {
            match expr {
                Expr::Load { operand, index } => {
                    let quad = self.quads && self.stages[id].whole && self.along(*index) == Along::Quad;
                    k.reads(*operand, if quad { Touch::Quad } else { Touch::Each });
                }
                Expr::Gather { operand, .. } => {
                    k.reads(*operand, Touch::Each);
                    flagged = true;
                }
                _ => {}
            }
        }
        for whole in [true, false] {
            for (s, store) in self.stores(whole) {
                let quad = whole && self.quads && self.along(store.index) == Along::Quad;
                let touch = if quad { Touch::Quad } else { Touch::Each };
                k.writes(s, if self.cx.shares_words(s) { Touch::Shared } else { touch });
            }
        }
        flagged
    }

    fn launch(&self, lanes: &RowLanes) -> Result<Launch> {
        let cx = self.cx;
        let group = &*cx.step.group;
        let mut k = Kernel::new(cx);
        if self.note(&mut k) {
            k.flagged();
        }
        let place = self.place(&mut k, lanes);
        let mut f = Function::default();
        let none = HashMap::new();
        let space = Space { linear: Some("o".to_owned()), coords: None, rank: self.outer() };
        let mut head = Printer::new(&mut k, &group.body, space, &[], &none, "h");
        f.coords = head.coords();
        (f.text, f.fresh) = (head.out, head.fresh);
        let mut units: Vec<Unit> = Vec::new();
        for c in 0..lanes.held {
            units.push(self.held_unit(&mut k, &mut f, c, lanes));
        }
        let names: Vec<String> = (0..self.accs.len()).map(|a| format!("r{a}")).collect();
        for level in 0..self.levels() {
            self.once(&mut k, &mut f, &self.passes[level], &names)?;
            let run = self.run(&mut k, &mut f, &mut units, level, lanes, &names)?;
            for a in self.of_level(level) {
                let (kind, ty) = self.accs[a];
                let _ = writeln!(f.text, "var a{a} = {};", neutral(kind, ty));
            }
            f.text.push_str(&run);
            f.text.push_str(&self.tree(level, lanes));
        }
        let levels = self.levels();
        self.once(&mut k, &mut f, &self.passes[levels], &names)?;
        let along = self.run(&mut k, &mut f, &mut units, levels, lanes, &names)?;
        let once = self.print_once(&mut k, &f, &names)?;
        let declare = self.declared(lanes);
        let regions =
            [("place", place.as_str()), ("levels", f.text.as_str()), ("along", &along), ("once", &once)];
        let grid = fold((self.rows as u64).div_ceil(u64::from(lanes.x)), cx.caps)?;
        let work: u64 = self.passes.iter().map(|n| arithmetic(&group.body, n)).sum();
        k.finish(
            &self.file(wgrad_wgsl::ROW, lanes),
            &declare,
            &regions,
            grid,
            (self.rows * self.length) as u64 * work,
        )
    }

    /// Unit `c` of a lane.
    fn held_unit(&self, k: &mut Kernel<'_>, f: &mut Function, c: u32, lanes: &RowLanes) -> Unit {
        let (each, y) = (if self.quads { 4 } else { 1 }, lanes.y);
        let _ = writeln!(
            f.text,
            "let u{c} = min({c}u * {y}u + y, units - 1u);\nlet on{c} = {c}u * {y}u + y < units;\n\
             let m{c} = u{c} * {each}u;\nlet e{c} = row + m{c};"
        );
        self.unit(k, f, &format!("m{c}"))
    }

    /// Whether lanes of a subgroup, which belong to one row, tell each other what they have.
    fn by_subgroups(&self, lanes: &RowLanes) -> bool {
        lanes.inner && choose::row_subgroups(lanes.y, self.cx.caps)
    }

    /// The workgroup's size, and its memory.
    fn declared(&self, lanes: &RowLanes) -> String {
        let wg = lanes.x * lanes.y;
        let mut declare = format!("const WG = {wg}u;\n");
        let apart = if self.by_subgroups(lanes) { self.cx.caps.subgroup } else { 1 };
        if lanes.y > apart {
            for (a, (_, ty)) in self.accs.iter().enumerate() {
                let _ = writeln!(declare, "var<workgroup> t{a}: array<{ty}, {}>;", wg / apart);
            }
        }
        declare
    }

    /// The text of a kernel, which counts its lanes by subgroups where those are one row's.
    fn file(&self, file: &str, lanes: &RowLanes) -> String {
        let lane = "@builtin(local_invocation_index) lane: u32,";
        let parts = "@builtin(subgroup_id) part: u32,\n    @builtin(subgroup_invocation_id) sub: u32,";
        if self.by_subgroups(lanes) { file.replace(lane, parts) } else { file.to_owned() }
    }

    /// Stores once a row.
    fn print_once(&self, k: &mut Kernel<'_>, f: &Function, names: &[String]) -> Result<String> {
        let none = HashMap::new();
        let space =
            Space { linear: Some("o".to_owned()), coords: Some(f.coords.clone()), rank: self.outer() };
        let mut p = Printer::new(k, &self.cx.step.group.body, space, names, &none, "z");
        p.give_names(&f.once);
        // By the first lane alone: a store may lie in the place of what only it reads.
        let mut lines = String::new();
        for (s, store) in self.stores(false) {
            let value = p.expr(store.x)?;
            let element = p.element(store.index)?;
            lines.push_str(&p.k.store(s, &element.at, &value));
        }
        p.out.push_str(&lines);
        Ok(p.out)
    }

    /// Where a lane stands.
    fn place(&self, k: &mut Kernel<'_>, lanes: &RowLanes) -> String {
        let (x, y) = (lanes.x, lanes.y);
        let rows = k.word("rows", self.rows as i64);
        let units = k.word("units", self.units() as i64);
        let length = k.word("length", self.length as i64);
        let (px, py) = match (x, y) {
            (_, 1) => ("lane".to_owned(), "0u".to_owned()),
            (1, _) => ("0u".to_owned(), "lane".to_owned()),
            _ if lanes.inner => (format!("lane / {y}u"), format!("lane % {y}u")),
            _ => (format!("lane % {x}u"), format!("lane / {x}u")),
        };
        let lane = match self.by_subgroups(lanes) {
            true => format!("let lane = part * {}u + sub;\n", self.cx.caps.subgroup),
            false => String::new(),
        };
        format!(
            "{lane}let units = {units};\nlet y = {py};\nlet spot = slot * {x}u + {px};\nlet live = spot < {rows};\n\
             let o = min(spot, {rows} - 1u);\nlet row = o * {length};\n"
        )
    }

    /// The run that makes a held expression.
    fn first(&self, x: ExprId) -> usize {
        self.passes.iter().position(|n| n[x as usize]).unwrap_or(0)
    }
}
