//! A row program and the reduction of columns behind it, which reads the same rows: one kernel reads them once, and
//! sums columns while it takes one row after another.

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{Caps, ErrorKind, ExprId, Graph, Index, IndexId, Kind, NodeId, Result, Step, bail};

use super::super::body::{Printer, Space, reach};
use super::super::index::Along;
use super::super::kernel::{Cx, Kernel, Touch};
use super::super::pointwise::XYZW;
use super::super::reduce::Columns;
use super::super::states::neutral;
use super::Rows;
use super::print::{Function, Unit};
use crate::choose::{self, RowLanes};
use crate::launch::{Launch, Lowered};

/// Where an operand of the reduction is found at a point of a row.
#[derive(Copy, Clone)]
enum Found {
    /// The row program loads it, too.
    Loaded(u16, IndexId),
    /// The row program makes it, once a row.
    Once(ExprId),
}

/// Two neighbouring steps as one kernel and what ends its sums; `None`: they are nothing of the kind.
///
/// # Errors
/// As [`super::super::lower`].
pub(in crate::emit) fn pair(
    steps: [&Step; 2],
    graph: &Graph,
    scalars: &[NodeId],
    caps: &Caps,
) -> Result<Option<[Lowered; 2]>> {
    let [first, second] = steps;
    if first.group.kind != Kind::Row || second.group.kind != Kind::Reduce {
        return Ok(None);
    }
    let cx = |step| Cx { step, graph, scalars, caps };
    let Some(mut rows) = Rows::of(cx(first))? else { return Ok(None) };
    let Some(columns) = Columns::of(cx(second), rows.length, rows.rows)? else { return Ok(None) };
    let fits = first.group.dims.len() == 2 && rows.quads && rows.together();
    let Some((teams, lanes)) = choose::row_sums(rows.rows, rows.units(), caps).filter(|_| fits) else {
        return Ok(None);
    };
    rows.hold(&lanes);
    rows.early = true;
    let Some(found) = rows.found(second, &columns) else { return Ok(None) };
    let parts = teams * lanes.x;
    let joint = Joint { rows, step: second, columns, found, lanes, teams, parts };
    let launches = joint.launch().and_then(|launch| Ok((launch, joint.columns.last(joint.parts)?)));
    match launches {
        Ok((launch, last)) => {
            let scratch_bytes = joint.columns.words(joint.parts) * 4;
            Ok(Some([launch, last].map(|l| Lowered { launches: vec![l], scratch_bytes })))
        }
        // Together they may have a buffer too many.
        Err(e) if e.kind() == ErrorKind::Limit => Ok(None),
        Err(e) => Err(e),
    }
}

struct Joint<'a> {
    rows: Rows<'a>,
    /// The reduction's.
    step: &'a Step,
    columns: Columns<'a>,
    found: HashMap<(u16, IndexId), Found>,
    lanes: RowLanes,
    teams: u32,
    /// Rows at a time of all workgroups.
    parts: u32,
}

/// Strides of a plain index of two axes, and where it begins.
fn plain(index: &Index) -> Option<([i64; 2], i64)> {
    let [view] = &index.views[..] else { return None };
    let strides = <[i64; 2]>::try_from(&view.strides[..]).ok()?;
    (view.valid.is_none() && view.dynamic.is_empty()).then_some((strides, view.offset))
}

impl Rows<'_> {
    /// Where the operands of the reduction are found; `None` where one is not.
    fn found(&self, step: &Step, columns: &Columns<'_>) -> Option<HashMap<(u16, IndexId), Found>> {
        let (mine, theirs) = (&*self.cx.step.group, &*step.group);
        let own = self.all_loads();
        let mut found = HashMap::new();
        for (operand, index) in columns.loads()? {
            let val = theirs.operands[usize::from(operand)];
            let ([column, row], offset) = plain(&theirs.body.indices[usize::from(index)])?;
            let same = |(o, i): &&(u16, IndexId)| {
                mine.operands[usize::from(*o)] == val
                    && self.along(*i) != Along::Each
                    && plain(&mine.body.indices[usize::from(*i)]) == Some(([row, column], offset))
            };
            let made = |s: &&(usize, &wgrad_graph::Store)| {
                let view = &mine.body.indices[usize::from(s.1.index)].views;
                s.1.val == val && view.len() == 1 && view[0].strides[..] == [1] && view[0].offset == 0
            };
            let at = match own.iter().find(same) {
                Some((o, i)) => Found::Loaded(*o, *i),
                None if (column, row, offset) == (0, 1, 0) => {
                    Found::Once(self.stores(false).iter().find(made)?.1.x)
                }
                None => return None,
            };
            found.insert((operand, index), at);
        }
        Some(found)
    }
}

impl Joint<'_> {
    /// After which level all that the columns need is known.
    fn level(&self) -> usize {
        let rows = &self.rows;
        let level = |found: &Found| match found {
            Found::Once(x) => rows.stages[*x as usize].level,
            Found::Loaded(o, i) => {
                let loads = |pass: &Vec<bool>| rows.moving_loads(pass).contains(&(*o, *i));
                rows.passes.iter().position(loads).unwrap_or(0)
            }
        };
        self.found.values().map(level).max().unwrap_or(0)
    }

    fn launch(&self) -> Result<Launch> {
        let (rows, lanes) = (&self.rows, &self.lanes);
        let group = &*rows.cx.step.group;
        let mut k = Kernel::new(rows.cx);
        // Two workgroups share a multiprocessor: all that a row loads has to be on its way at once.
        k.ordered = true;
        if rows.note(&mut k) {
            k.flagged();
        }
        k.scratch(self.columns.words(self.parts), true, Touch::Each);
        let place = self.place(&mut k);
        let mut f = Function::default();
        let row = k.word("length", rows.length as i64);
        let all = k.word("rows", rows.rows as i64);
        let x = lanes.x;
        let _ = writeln!(
            f.text,
            "let spot = turn * {x}u + x;\nlet live = spot < {all};\nlet o = min(spot, {all} - 1u);\n\
             let row = o * {row};"
        );
        let none = HashMap::new();
        let space = Space { linear: Some("o".to_owned()), coords: None, rank: rows.outer() };
        let mut head = Printer::new(&mut k, &group.body, space, &[], &none, "h");
        f.coords = head.coords();
        f.text.push_str(&head.out);
        f.fresh = head.fresh;
        let mut units: Vec<Unit> = Vec::new();
        for c in 0..lanes.held {
            units.push(rows.held_unit(&mut k, &mut f, c, lanes));
        }
        let names: Vec<String> = (0..rows.accs.len()).map(|a| format!("r{a}")).collect();
        let (levels, sums_at) = (rows.levels(), self.level());
        let mut along = String::new();
        for level in 0..=levels {
            rows.once(&mut k, &mut f, &rows.passes[level], &names)?;
            let run = rows.run(&mut k, &mut f, &mut units, level, lanes, &names)?;
            if level < levels {
                for a in rows.of_level(level) {
                    let (kind, ty) = rows.accs[a];
                    let _ = writeln!(f.text, "var a{a} = {};", neutral(kind, ty));
                }
                f.text.push_str(&run);
            } else {
                along = run;
            }
            if level == sums_at {
                self.sums(&mut k, &mut f, &units, &names)?;
            }
            if level < levels {
                f.text.push_str(&rows.tree(level, lanes));
                // Where there is one level, its memory is written anew right away.
                if levels == 1 {
                    f.text.push_str("workgroupBarrier();\n");
                }
            }
        }
        let once = rows.print_once(&mut k, &f, &names)?;
        let (start, store) = (self.start(), self.store(&mut k));
        let regions = [
            ("place", place.as_str()),
            ("start", &start),
            ("levels", &f.text),
            ("along", &along),
            ("once", &once),
            ("store", &store),
        ];
        let work: u64 = rows.passes.iter().map(|n| super::arithmetic(&group.body, n)).sum();
        let flops = (rows.rows * rows.length) as u64 * work;
        let grid = [self.teams, 1, 1];
        k.finish(&rows.file(wgrad_wgsl::ROW_SUMS, lanes), &rows.declared(lanes), &regions, grid, flops)
    }

    fn place(&self, k: &mut Kernel<'_>) -> String {
        let RowLanes { x, y, .. } = self.lanes;
        let all = k.word("turns", self.rows.rows.div_ceil(x as usize) as i64);
        let units = k.word("units", self.rows.units() as i64);
        let teams = k.word("teams", i64::from(self.teams));
        let lane = match self.rows.by_subgroups(&self.lanes) {
            true => format!("let lane = part * {}u + sub;\n", self.rows.cx.caps.subgroup),
            false => String::new(),
        };
        format!(
            "{lane}let rows = {all};\nlet units = {units};\nlet teams = {teams};\nlet x = lane / {y}u;\n\
             let y = lane % {y}u;\n"
        )
    }

    /// The sums of each column of a lane, by accumulator.
    fn each(&self) -> impl Iterator<Item = (usize, u32, usize)> + '_ {
        let accs = 0..self.step.group.accs.len();
        accs.flat_map(|a| (0..self.lanes.held).flat_map(move |c| (0..4).map(move |lane| (a, c, lane))))
    }

    fn start(&self) -> String {
        self.each().map(|(a, c, lane)| format!("var g{a}_{c}_{lane} = 0.0;\n")).collect()
    }

    /// Adds what a row gives to the sums of columns.
    fn sums(&self, k: &mut Kernel<'_>, f: &mut Function, units: &[Unit], names: &[String]) -> Result<()> {
        let (rows, theirs) = (&self.rows, &*self.step.group);
        let once: Vec<ExprId> = self
            .found
            .values()
            .filter_map(|f| match f {
                Found::Once(x) => Some(*x),
                Found::Loaded(..) => None,
            })
            .collect();
        let needed = reach(&rows.cx.step.group.body, once.iter().copied());
        rows.once(k, f, &needed, names)?;
        for (c, unit) in units.iter().enumerate() {
            let mut text = String::new();
            for (lane, component) in XYZW.iter().enumerate() {
                let mut ready = HashMap::new();
                for (at, found) in &self.found {
                    let name = match found {
                        Found::Once(x) => f.once[x].clone(),
                        Found::Loaded(o, i) => {
                            let (key, vectors) = ((*o, *i), &unit.vectors);
                            let four = vectors.get(&key).map(|vector| format!("{vector}.{component}"));
                            let Some(name) = four.or_else(|| unit.numbers.get(&key).cloned()) else {
                                bail!(Limit, "row", "reads an operand element by element");
                            };
                            name
                        }
                    };
                    ready.insert(*at, name);
                }
                let mut p = Printer::new(k, &theirs.body, Space::default(), &[], &ready, "s");
                for (a, acc) in theirs.accs.iter().enumerate() {
                    let value = p.expr(acc.x)?;
                    p.line(&format!("g{a}_{c}_{lane} = g{a}_{c}_{lane} + {value};"));
                }
                let _ = write!(text, "{{\n{}}}\n", p.out);
            }
            let _ = write!(f.text, "if (live && on{c}) {{\n{text}}}\n");
        }
        Ok(())
    }

    /// Hands on the sums: those of a part lie together, those of each column of four apart.
    fn store(&self, k: &mut Kernel<'_>) -> String {
        let RowLanes { x, y, .. } = self.lanes;
        let plane = k.word("plane", (self.parts as usize * self.rows.units()) as i64);
        let mut out = format!("let first = (slot * {x}u + x) * units;\n");
        for (a, c, lane) in self.each() {
            let field = a * 4 + lane;
            let at = format!("{field}u * {plane} + first + {c}u * {y}u + y");
            let word = k.scratch_word(&at);
            let _ =
                writeln!(out, "if ({c}u * {y}u + y < units) {{ {word} = bitcast<u32>(g{a}_{c}_{lane}); }}");
        }
        out
    }
}
