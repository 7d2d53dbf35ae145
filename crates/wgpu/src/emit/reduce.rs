//! Reductions: one launch, or partial states to scratch and a second launch that combines them.

mod columns;

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{Caps, ErrorKind, Expr, ExprId, Fast, Index, IndexId, Result, View, bail};

use super::body::{Printer, Space, loop_rounds, reach};
use super::index::{Along, along, along_axis};
use super::kernel::{Cx, Kernel, Touch, recast};
use super::pointwise::XYZW;
use super::states::{State, States};
use super::{arithmetic, fold, points};
use crate::choose::{self, Lanes};
use crate::launch::{Launch, Lowered};
pub(super) use columns::Columns;

/// What is done at a step `r`.
struct Point {
    /// Declarations, a line each, those of what is loaded among them.
    loads: String,
    /// What is made of them.
    rest: String,
}

/// `text` with `_{n}` behind each of `names`.
fn numbered(text: &str, names: &[&str], n: u32) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        let end =
            rest[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(rest.len(), |e| at + e);
        out.push_str(&rest[..end]);
        // A field may have the name of a variable.
        if names.contains(&&rest[at..end]) && !rest[..at].ends_with('.') {
            let _ = write!(out, "_{n}");
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Four steps at once, so that four loads are under way: drivers do not unroll loops of unknown length, and
/// NVIDIA's does not move a load past the sum of the one before.
/// A long text is left alone. The counter is the same in every lane, which drivers on CPUs reward.
fn unrolled(point: &Point, caps: &Caps) -> String {
    if point.loads.len() + point.rest.len() > choose::unrolled_bytes(caps) {
        return String::new();
    }
    let declared = point.loads.lines().map(|line| line.strip_prefix("let ")?.split_once(" = "));
    let names = declared.map(|d| d.map(|(name, _)| name)).chain([Some("r")]).collect::<Option<Vec<&str>>>();
    let names = names.expect("addresses and loads are declarations");
    let (mut loads, mut steps) = (String::new(), String::new());
    for n in 0..4 {
        let _ = write!(loads, "let r_{n} = next + {n}u * step + y;\n{}", numbered(&point.loads, &names, n));
        let own: String = names.iter().map(|name| format!("let {name} = {name}_{n};\n")).collect();
        let _ = write!(steps, "{{\n{own}{}}}\n", point.rest);
    }
    format!("for (; next + 4u * step <= end; next += 4u * step) {{\n{loads}{steps}}}\n")
}

pub(super) fn lower(cx: Cx<'_>) -> Result<Lowered> {
    let group = &*cx.step.group;
    let results = points("reduce", group.outer())?;
    if results == 0 {
        return Ok(Lowered::default());
    }
    let length = points("reduce", &group.dims[group.outer().len()..])?;
    if length > 0 {
        points("reduce", &group.dims)?;
    }
    let states = States(group.accs.iter().map(|a| State::new(a, cx)).collect::<Result<_>>()?);
    let mut kernel = Reduction { cx, states, each: 1, results, length };
    if cx.caps.allows(Fast::Quads) && kernel.takes_columns() {
        let four = |state: &State| std::iter::repeat_n(state.clone(), 4);
        kernel.states = States(kernel.states.0.iter().flat_map(four).collect());
        (kernel.each, kernel.results) = (4, results / 4);
    }
    let results = kernel.results;
    let quads = kernel.each == 1 && cx.caps.allows(Fast::Quads) && kernel.quads();
    let bytes = kernel.states.bytes();
    // Points of a step; each calls what the body calls.
    let at_once = if quads { 4 } else { kernel.each };
    let inner = at_once * loop_rounds(&group.body);
    let lanes = choose::lanes(results, length, kernel.rows(), bytes, quads, inner, cx.caps);
    let lanes = choose::bands(lanes, kernel.line_bytes(), length, cx.caps);
    let steps = if quads { length / 4 } else { length };
    // Scratch memory holds states that are words.
    let alone = |lanes: Lanes| {
        let lanes = Lanes { splits: 1, tree: true, ..lanes };
        if !choose::software(cx.caps) {
            return Ok(lanes);
        }
        match choose::sharing(steps, inner, bytes, cx.caps) {
            Some(1) => Ok(Lanes { y: 1, ..lanes }),
            Some(y) => Ok(Lanes { x: 1, y, inner: true, ..lanes }),
            None => {
                bail!(Limit, "reduce", "{length} elements are more than a loop of {} counts", cx.caps.name)
            }
        }
    };
    let lanes = if kernel.states.words() { lanes } else { alone(lanes)? };
    match kernel.launches(lanes, quads) {
        // The scratch binding may be the one too many.
        Err(e) if e.kind() == ErrorKind::Limit && lanes.parts() > 1 => kernel.launches(alone(lanes)?, quads),
        done => done,
    }
}

struct Reduction<'a> {
    cx: Cx<'a>,
    /// Of each result that a lane accumulates, those of its first accumulator first.
    states: States,
    /// Neighbouring results of a lane: 1, or 4.
    each: usize,
    /// Lanes' worth of results.
    results: usize,
    length: usize,
}

/// Whether the index is the same for every point of the reduced axes.
fn invariant(index: &Index, outer: usize) -> bool {
    let view = &index.views[0];
    let free = |v: &View| {
        v.valid.as_ref().is_none_or(|ranges| {
            (outer..v.dims.len()).all(|a| ranges[a].start == 0 && ranges[a].end >= v.dims[a])
        })
    };
    view.strides[outer.min(view.strides.len())..].iter().all(|s| *s == 0) && free(view)
}

impl<'a> Reduction<'a> {
    fn outer(&self) -> usize {
        self.cx.step.group.outer().len()
    }

    fn index(&self, id: IndexId) -> &'a Index {
        &self.cx.step.group.body.indices[usize::from(id)]
    }

    fn exprs(&self, needed: &[bool]) -> impl Iterator<Item = (ExprId, &'a Expr)> {
        let exprs = self.cx.step.group.body.exprs.iter().enumerate();
        exprs.zip(needed.to_vec()).filter_map(|((id, (e, _)), n)| n.then_some((id as ExprId, e)))
    }

    /// What the accumulators need.
    fn prologue(&self) -> Vec<bool> {
        let group = &self.cx.step.group;
        reach(&group.body, group.accs.iter().map(|a| a.x))
    }

    /// What the stores need.
    fn epilogue(&self) -> Vec<bool> {
        let group = &self.cx.step.group;
        reach(&group.body, group.stores.iter().map(|s| s.x))
    }

    /// The loads of the prologue that change along the reduced axes.
    fn moving_loads(&self) -> Vec<(u16, IndexId)> {
        let mut loads = Vec::new();
        for (_, expr) in self.exprs(&self.prologue()) {
            if let Expr::Load { operand, index } = expr
                && !invariant(self.index(*index), self.outer())
                && !loads.contains(&(*operand, *index))
            {
                loads.push((*operand, *index));
            }
        }
        loads
    }

    /// Whether neighbours in memory belong to one reduction: as the load that reaches most elements
    /// has it.
    fn rows(&self) -> bool {
        let dims = &self.cx.step.group.dims;
        let reached = |id: IndexId| -> usize {
            let view = &self.index(id).views[0];
            dims.iter().zip(&view.strides).filter(|(_, s)| **s != 0).map(|(d, _)| *d).product()
        };
        let Some((_, largest)) = self.moving_loads().into_iter().max_by_key(|(_, i)| reached(*i)) else {
            return true;
        };
        let strides = &self.index(largest).views[0].strides;
        let unit = |axes: std::ops::Range<usize>| axes.into_iter().any(|a| strides[a] == 1 && dims[a] > 1);
        unit(self.outer()..dims.len()) || !unit(0..self.outer())
    }

    fn quad_rows(&self) -> bool {
        let group = &self.cx.step.group;
        group.reduced > 0 && group.dims.last().is_some_and(|d| *d > 0 && d % 4 == 0)
    }

    /// Whether a lane takes four neighbours along the last reduced axis at a time.
    fn quads(&self) -> bool {
        let plain = |e: &Expr| matches!(e, Expr::Load { .. } | Expr::Gather { .. });
        let fits = self.exprs(&self.prologue()).filter(|(_, e)| !plain(e)).count() <= 48;
        let loads = self.moving_loads();
        let quad = |(o, i): &(u16, IndexId)| {
            self.cx.in_words(*o) && along(self.index(*i), true, false) == Along::Quad
        };
        self.quad_rows() && fits && self.length >= 64 && loads.iter().any(quad)
    }

    /// Whether a lane takes four neighbouring results at a time: columns that are read by vectors.
    fn takes_columns(&self) -> bool {
        let group = &*self.cx.step.group;
        let outer = self.outer();
        let plain = |e: &Expr| matches!(e, Expr::Load { .. } | Expr::Gather { .. });
        let prologue = self.prologue();
        let still = self.still(&prologue);
        let mut exprs = self.exprs(&prologue);
        let loads = self.moving_loads();
        let quad = |(o, i): &(u16, IndexId)| {
            self.cx.in_words(*o) && along_axis(self.index(*i), outer - 1) == Along::Quad
        };
        // What does not change along the columns would be computed anew at each step.
        let once = exprs.any(|(id, e)| still[id as usize] && !matches!(e, Expr::Scalar { .. }));
        let fits = self.exprs(&prologue).filter(|(_, e)| !plain(e)).count() <= 48;
        outer > 0
            && group.dims[outer - 1].is_multiple_of(4)
            && choose::column_quads(self.results, self.length, self.cx.caps)
            && !once
            && fits
            && !self.rows()
            && loads.iter().any(quad)
    }

    /// Bytes from one row to the next where lanes take neighbouring columns, else 0.
    fn line_bytes(&self) -> usize {
        let bytes =
            |operand: u16| self.cx.graph.out(self.cx.step.group.operands[usize::from(operand)]).dtype.bytes();
        let most = self.moving_loads().into_iter().map(|(operand, _)| bytes(operand)).max();
        if self.each > 1 { self.cx.step.group.dims[self.outer() - 1] * most.unwrap_or(0) } else { 0 }
    }

    /// How the neighbours that a lane takes see an index.
    fn along(&self, index: &Index) -> Along {
        if self.each > 1 { along_axis(index, self.outer() - 1) } else { along(index, true, false) }
    }

    fn launches(&self, lanes: Lanes, quads: bool) -> Result<Lowered> {
        let parts = lanes.parts();
        let first = self.accumulate(lanes, quads)?;
        if parts == 1 {
            return Ok(Lowered { launches: vec![first], scratch_bytes: 0 });
        }
        let last = self.combine(parts, false)?;
        Ok(Lowered { launches: vec![first, last], scratch_bytes: self.scratch_words(parts) * 4 })
    }

    fn scratch_words(&self, parts: u32) -> usize {
        self.states.fields().count() * self.results * parts as usize
    }

    /// Notes what the epilogue touches.
    fn note_epilogue(&self, k: &mut Kernel<'_>) -> bool {
        let mut flagged = false;
        for (_, expr) in self.exprs(&self.epilogue()) {
            match expr {
                Expr::Load { operand, .. } => k.reads(*operand, Touch::Each),
                Expr::Gather { operand, .. } => {
                    k.reads(*operand, Touch::Each);
                    flagged = true;
                }
                _ => {}
            }
        }
        for s in 0..self.cx.step.group.stores.len() {
            k.writes(s, if self.cx.shares_words(s) { Touch::Shared } else { Touch::Each });
        }
        flagged
    }

    /// Stores at the results of lane's worth `o`.
    fn print_epilogue(&self, k: &mut Kernel<'_>) -> Result<String> {
        let group = &*self.cx.step.group;
        let (mut text, names) = self.states.results();
        let none = HashMap::new();
        for lane in 0..self.each {
            let names: Vec<String> = names.iter().skip(lane).step_by(self.each).cloned().collect();
            let at = if self.each > 1 { format!("o{lane}") } else { "o".to_owned() };
            let space = Space { linear: Some(at.clone()), coords: None, rank: self.outer() };
            let mut p = Printer::new(k, &group.body, space, &names, &none, "e");
            p.stores(&group.stores)?;
            if self.each > 1 {
                let _ = write!(text, "{{\nlet {at} = o * 4u + {lane}u;\n{}}}\n", p.out);
            } else {
                text.push_str(&p.out);
            }
        }
        Ok(text)
    }

    /// Where a lane stands.
    fn place(&self, k: &mut Kernel<'_>, lanes: &Lanes, steps: usize) -> String {
        let mut out = String::new();
        let (x, y) = (lanes.x, lanes.y);
        let results = k.word("results", self.results as i64);
        let length = k.word("length", steps as i64);
        let _ = writeln!(out, "let results = {results};\nlet length = {length};");
        let split = lanes.splits > 1;
        if !lanes.tree {
            // Every lane has a part.
            let splits = k.word("splits", i64::from(lanes.splits));
            let span = k.word("span", steps.div_ceil(lanes.splits as usize) as i64);
            let _ = writeln!(
                out,
                "let item = slot * {x}u + lane;\nlet o = item / {splits};\nlet part = item - o * {splits};\n\
                 let y = 0u;\nlet lead = true;\nlet first = part * {span};\n\
                 let stop = min(length, first + {span});\nlet step = 1u;"
            );
            return out;
        }
        if split {
            // On CPUs what lies side by side is read one after the other.
            let (outer, inner, all) = match choose::software(self.cx.caps) {
                true => ("part", "tile", k.word("tiles", self.results.div_ceil(x as usize) as i64)),
                false => ("tile", "part", k.word("splits", i64::from(lanes.splits))),
            };
            let _ = writeln!(out, "let {outer} = slot / {all};\nlet {inner} = slot - {outer} * {all};");
        } else {
            out.push_str("let tile = slot;\nlet part = 0u;\n");
        }
        let (px, py) = match (x, y) {
            (_, 1) => ("lane".to_owned(), "0u".to_owned()),
            (1, _) => ("0u".to_owned(), "lane".to_owned()),
            _ if lanes.inner => (format!("lane / {y}u"), format!("lane % {y}u")),
            _ => (format!("lane % {x}u"), format!("lane / {x}u")),
        };
        let lead = if lanes.tree && y > 1 { "y == 0u" } else { "true" };
        // A workgroup reads one stretch from end to end, its lanes in turns.
        let (first, stop) = if split {
            let span = k.word("span", steps.div_ceil(lanes.splits as usize) as i64);
            (format!("part * {span}"), format!("min(length, part * {span} + {span})"))
        } else {
            ("0u".to_owned(), "length".to_owned())
        };
        let _ = writeln!(
            out,
            "let y = {py};\nlet o = tile * {x}u + {px};\nlet lead = {lead};\n\
             let first = {first};\nlet stop = {stop};\nlet step = {y}u;"
        );
        out
    }

    fn grid(&self, lanes: &Lanes) -> Result<[u32; 3]> {
        if !lanes.tree {
            let items = self.results as u64 * u64::from(lanes.splits);
            return fold(items.div_ceil(u64::from(lanes.x)), self.cx.caps);
        }
        let groups = self.results.div_ceil(lanes.x as usize) as u64;
        fold(groups * u64::from(lanes.splits), self.cx.caps)
    }

    /// The launch that reads the operands.
    fn accumulate(&self, lanes: Lanes, quads: bool) -> Result<Launch> {
        let cx = self.cx;
        let group = &*cx.step.group;
        let parts = lanes.parts();
        let needed = self.prologue();
        let mut k = Kernel::new(cx);
        let mut flagged = false;
        for (_, expr) in self.exprs(&needed) {
            match expr {
                Expr::Load { operand, index } => {
                    let quad = (quads || self.each > 1) && self.along(self.index(*index)) == Along::Quad;
                    k.reads(*operand, if quad { Touch::Quad } else { Touch::Each });
                }
                Expr::Gather { operand, .. } => {
                    k.reads(*operand, Touch::Each);
                    flagged = true;
                }
                _ => {}
            }
        }
        if parts == 1 {
            flagged |= self.note_epilogue(&mut k);
        } else {
            k.scratch(self.scratch_words(parts), true, Touch::Each);
        }
        if flagged {
            k.flagged();
        }
        let place = self.place(&mut k, &lanes, if quads { self.length / 4 } else { self.length });
        let (outer, point) = self.print_prologue(&mut k, &needed, quads)?;
        let store = if parts == 1 {
            self.print_epilogue(&mut k)?
        } else {
            let plane = k.word("plane", (self.results * parts as usize) as i64);
            let count = k.word("parts", i64::from(parts));
            let mut out = format!("let spot = o * {count} + part;\n");
            for (f, (a, field, ty)) in self.states.fields().enumerate() {
                let at = if f == 0 { "spot".to_owned() } else { format!("spot + {f}u * {plane}") };
                let _ = writeln!(
                    out,
                    "{} = {};",
                    k.scratch_word(&at),
                    recast(&format!("a{a}{field}"), ty, "u32")
                );
            }
            out
        };
        let flops = (self.results * self.length) as u64 * (arithmetic(&group.body, &needed) + 1);
        self.finish(k, &lanes, &place, &outer, &point, &store, flops)
    }

    #[expect(clippy::too_many_arguments, reason = "the regions of one file")]
    fn finish(
        &self,
        k: Kernel<'_>,
        lanes: &Lanes,
        place: &str,
        outer: &str,
        point: &Point,
        store: &str,
        flops: u64,
    ) -> Result<Launch> {
        let wg = lanes.x * lanes.y;
        let shared = if lanes.tree && lanes.y > 1 { self.states.shared(wg) } else { String::new() };
        let (start, block) = (self.states.start("a"), self.states.start("g"));
        let regions = [
            ("place", place),
            ("start", &start),
            ("outer", outer),
            ("block", &block),
            ("unrolled", &unrolled(point, k.cx.caps)),
            ("point", &format!("{}{}", point.loads, point.rest)),
            ("fold", &self.states.merge("a", |a, f| format!("g{a}{f}"))),
            ("tree", &self.states.tree(lanes)),
            ("store", store),
        ];
        k.finish(
            wgrad_wgsl::REDUCE,
            &format!("const WG = {wg}u;\n{shared}"),
            &regions,
            self.grid(lanes)?,
            flops,
        )
    }

    /// The launch that combines partial states; `apart`: those of one part lie together, rather than those of one
    /// result.
    fn combine(&self, parts: u32, apart: bool) -> Result<Launch> {
        let bytes = self.states.bytes();
        let lanes = match apart {
            true => choose::column_lanes(bytes, self.cx.caps),
            false => choose::final_lanes(parts, bytes, self.cx.caps),
        };
        let mut k = Kernel::new(self.cx);
        let flagged = self.note_epilogue(&mut k);
        k.scratch(self.scratch_words(parts), false, Touch::Each);
        if flagged {
            k.flagged();
        }
        let place = self.place(&mut k, &lanes, parts as usize);
        let plane = k.word("plane", (self.results * parts as usize) as i64);
        let mut loads = match apart {
            true => "let spot = r * results + o;\n".to_owned(),
            false => "let spot = o * length + r;\n".to_owned(),
        };
        for (f, (a, field, ty)) in self.states.fields().enumerate() {
            let at = if f == 0 { "spot".to_owned() } else { format!("spot + {f}u * {plane}") };
            let _ = writeln!(loads, "let v{a}{field} = {};", recast(&k.scratch_word(&at), "u32", ty));
        }
        let point = Point { loads, rest: self.states.merge("g", |a, f| format!("v{a}{f}")) };
        let store = self.print_epilogue(&mut k)?;
        let flops = self.results as u64 * u64::from(parts);
        self.finish(k, &lanes, &place, "", &point, &store, flops)
    }

    /// What is computed once a result, and what at each step `r`.
    fn print_prologue(&self, k: &mut Kernel<'_>, needed: &[bool], quads: bool) -> Result<(String, Point)> {
        let group = &*self.cx.step.group;
        let body = &group.body;
        let (outer, rank) = (self.outer(), group.dims.len());
        let still = self.still(needed);
        let none = HashMap::new();

        // Once a result: coordinates, and every expression that the reduced axes do not change.
        let columns = self.each > 1;
        let first = if columns { "first_of" } else { "o" };
        let space = Space { linear: Some(first.to_owned()), coords: None, rank: outer };
        let mut head = Printer::new(k, body, space, &[], &none, "h");
        if columns {
            head.line("let first_of = o * 4u;");
        }
        let mut coords = head.coords();
        coords.resize(rank, "0u".to_owned());
        head.space = Space { linear: None, coords: Some(coords.clone()), rank };
        for (id, _) in self.exprs(needed).filter(|(id, _)| still[*id as usize]) {
            head.expr(id)?;
        }
        let whole = head.k.word("whole", self.length as i64);
        head.line(&format!("let row = {first} * {whole};"));
        let names = if columns { HashMap::new() } else { head.take_names() };
        let once = head.out;

        // At each step.
        let lanes = if quads || columns { 4 } else { 1 };
        let position = if quads { "r4" } else { "r" };
        let space = Space { linear: Some("e".to_owned()), coords: None, rank };
        let mut base = Printer::new(k, body, space, &[], &none, "q");
        if quads {
            base.line("let r4 = r * 4u;");
        }
        base.line(&format!("let e = row + {position};"));
        let sizes: Vec<String> = (outer..rank).map(|axis| base.k.dim(axis)).collect();
        let inner = base.unravel(position, &sizes);
        coords.truncate(outer);
        coords.extend(inner);
        base.space.coords = Some(coords.clone());
        let mut vectors = HashMap::new();
        let mut numbers = HashMap::new();
        if quads || columns {
            for (operand, index) in self.moving_loads() {
                let kind = self.along(self.index(index));
                if columns && kind == Along::Same {
                    let at = base.element(index)?.at;
                    let name = format!("n{operand}_{index}");
                    let text = base.k.load(operand, &at);
                    base.line(&format!("let {name} = {text};"));
                    numbers.insert((operand, index), name);
                }
                if kind == Along::Quad && base.k.reads_quads(operand) {
                    let at = base.element(index)?.at;
                    let name = format!("l{operand}_{index}");
                    let text = base.k.load_quad(operand, &at);
                    base.line(&format!("let {name} = {text};"));
                    vectors.insert((operand, index), name);
                }
            }
        }
        let loads = base.out;
        let mut rest = String::new();
        for (lane, component) in XYZW.iter().enumerate().take(lanes) {
            let mut ready: HashMap<_, _> =
                vectors.iter().map(|(key, v)| (*key, format!("{v}.{component}"))).collect();
            ready.extend(numbers.clone());
            let mut here = coords.clone();
            let mut turn = String::new();
            if columns {
                turn = format!(
                    "let e{lane} = e + {lane}u * {whole};\nlet c{lane} = {} + {lane}u;\n",
                    here[outer - 1]
                );
                here[outer - 1] = format!("c{lane}");
            } else if quads {
                let last = here.last_mut().expect("a quad lies along an axis");
                turn = format!("let e{lane} = e + {lane}u;\nlet c{lane} = {last} + {lane}u;\n");
                *last = format!("c{lane}");
            }
            let linear = if lanes > 1 { format!("e{lane}") } else { "e".to_owned() };
            let space = Space { linear: Some(linear), coords: Some(here), rank };
            let mut p = Printer::new(k, body, space, &[], &ready, "p");
            p.give_names(&names);
            for (a, acc) in group.accs.iter().enumerate() {
                let value = p.expr(acc.x)?;
                let at = if quads { format!("r4 + {lane}u") } else { "r".to_owned() };
                let a = a * self.each + if columns { lane } else { 0 };
                let line = self.states.0[a].combine(&format!("g{a}"), &value, &at);
                p.out.push_str(&line);
            }
            let text = p.out;
            let _ = write!(rest, "{{\n{turn}{text}}}\n");
        }
        Ok((once, Point { loads, rest }))
    }

    /// Which of the needed expressions do not change along the reduced axes.
    fn still(&self, needed: &[bool]) -> Vec<bool> {
        let body = &self.cx.step.group.body;
        let outer = self.outer();
        let mut still = vec![false; body.exprs.len()];
        for (id, expr) in self.exprs(needed) {
            still[id as usize] = match expr {
                Expr::Load { index, .. }
                | Expr::Coord { index }
                | Expr::Random { index, .. }
                | Expr::Valid { index } => invariant(self.index(*index), outer),
                // The flag is raised where the element is wanted: never moved.
                Expr::Gather { .. } | Expr::Acc { .. } => false,
                Expr::Scalar { .. } => true,
                Expr::Unary { x, .. } | Expr::Cast { x } => still[*x as usize],
                Expr::Binary { x, w, .. } => still[*x as usize] && still[*w as usize],
                Expr::Select { c, x, w } => still[*c as usize] && still[*x as usize] && still[*w as usize],
            };
        }
        still
    }
}
