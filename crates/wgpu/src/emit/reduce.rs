//! Reductions: one launch, or partial states to scratch and a second launch that combines them.

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{
    Acc, AccKind, Caps, DType, ErrorKind, Expr, ExprId, Fast, Index, IndexId, Reduce, Result, View, bail,
};

use super::body::{Printer, Space, reach};
use super::index::{Along, along};
use super::kernel::{Cx, Kernel, Touch, is_word, recast, wgsl_type};
use super::pointwise::XYZW;
use super::{arithmetic, fold, points};
use crate::choose::{self, Lanes};
use crate::launch::{Launch, Lowered};

/// The neutral element of a reduction in the WGSL type `ty`.
pub(super) fn neutral(kind: Reduce, ty: &str) -> &'static str {
    match (kind, ty) {
        (Reduce::Sum, "vec2<u32>") => "vec2<u32>()",
        (Reduce::Prod, "vec2<u32>") => "vec2<u32>(1u, 0u)",
        (Reduce::Max, "vec2<u32>") => "vec2<u32>(0u, 0x80000000u)",
        (Reduce::Min, "vec2<u32>") => "vec2<u32>(0xffffffffu, 0x7fffffffu)",
        (Reduce::Sum, "i32") => "0",
        (Reduce::Sum | Reduce::Max, "u32") => "0u",
        (Reduce::Sum, _) => "0.0",
        (Reduce::Prod, "i32") => "1",
        (Reduce::Prod, "u32") => "1u",
        (Reduce::Prod, _) => "1.0",
        (Reduce::Max, "i32") => "bitcast<i32>(0x80000000u)",
        (Reduce::Max, _) => "bitcast<f32>(0xff800000u)",
        (Reduce::Min, "i32") => "2147483647",
        (Reduce::Min, "u32") => "4294967295u",
        (Reduce::Min, _) => "bitcast<f32>(0x7f800000u)",
    }
}

/// `x` and `w` of the WGSL type `ty` as one.
pub(super) fn combined(kind: Reduce, ty: &str, x: &str, w: &str) -> String {
    let f = match (kind, ty) {
        (Reduce::Sum, "vec2<u32>") => "wg_add_i64",
        (Reduce::Prod, "vec2<u32>") => "wg_mul_i64",
        (Reduce::Max, "vec2<u32>") => "wg_maximum_i64",
        (Reduce::Min, "vec2<u32>") => "wg_minimum_i64",
        (Reduce::Sum, _) => return format!("{x} + {w}"),
        (Reduce::Prod, _) => return format!("{x} * {w}"),
        (Reduce::Max, "f32") => "wg_max",
        (Reduce::Min, "f32") => "wg_min",
        (Reduce::Max, _) => "max",
        (Reduce::Min, _) => "min",
    };
    format!("{f}({x}, {w})")
}

/// One accumulator: its text on states named by a stem.
struct State {
    kind: AccKind,
    dtype: DType,
}

impl State {
    fn new(acc: &Acc, cx: Cx<'_>) -> Result<State> {
        let dtype = cx.step.group.body.exprs[acc.x as usize].1;
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::I64) {
            bail!(DType, "reduce", "has no kernel for {dtype}");
        }
        Ok(State { kind: acc.kind, dtype })
    }

    fn ty(&self) -> &'static str {
        wgsl_type(self.dtype)
    }

    /// The fields of a state: suffix, type, neutral element.
    fn fields(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        match self.kind {
            AccKind::Reduce(kind) => vec![("", self.ty(), neutral(kind, self.ty()))],
            AccKind::Arg { .. } => {
                vec![("", self.ty(), neutral(Reduce::Sum, self.ty())), ("i", "u32", "0xffffffffu")]
            }
        }
    }

    /// State `into` takes the value `v` (for arg: at position `i`).
    fn combine(&self, into: &str, v: &str, i: &str) -> String {
        match self.kind {
            AccKind::Reduce(kind) => format!("{into} = {};\n", combined(kind, self.ty(), into, v)),
            AccKind::Arg { max } => {
                let ty = if self.dtype == DType::I64 { "i64" } else { self.ty() };
                let f = format!("wg_arg_{}_{ty}", if max { "max" } else { "min" });
                format!("if ({f}({v}, {i}, {into}, {into}i)) {{ {into} = {v}; {into}i = {i}; }}\n")
            }
        }
    }
}

/// The text of all accumulators.
struct States(Vec<State>);

impl States {
    /// Every field: accumulator, suffix, type.
    fn fields(&self) -> impl Iterator<Item = (usize, &'static str, &'static str)> + '_ {
        self.0.iter().enumerate().flat_map(|(a, s)| s.fields().into_iter().map(move |(f, t, _)| (a, f, t)))
    }

    /// Whether every field is a word.
    fn words(&self) -> bool {
        self.0.iter().all(|state| is_word(state.dtype))
    }

    /// Bytes of the states of one lane.
    fn bytes(&self) -> usize {
        self.fields().map(|(_, _, ty)| if ty == "vec2<u32>" { 8 } else { 4 }).sum()
    }

    fn start(&self, stem: &str) -> String {
        let mut out = String::new();
        for (a, state) in self.0.iter().enumerate() {
            for (field, _, neutral) in state.fields() {
                let _ = writeln!(out, "var {stem}{a}{field} = {neutral};");
            }
        }
        out
    }

    /// States `into` take the states that `from` names by accumulator and field.
    fn merge(&self, into: &str, from: impl Fn(usize, &str) -> String) -> String {
        let combine = |(a, s): (usize, &State)| s.combine(&format!("{into}{a}"), &from(a, ""), &from(a, "i"));
        self.0.iter().enumerate().map(combine).collect()
    }

    fn shared(&self, wg: u32) -> String {
        self.fields().map(|(a, f, t)| format!("var<workgroup> t{a}{f}: array<{t}, {wg}>;\n")).collect()
    }

    /// Lanes of a workgroup meet; the state of the first lane of each result is whole then.
    fn tree(&self, lanes: &Lanes) -> String {
        if lanes.y == 1 || !lanes.tree {
            return String::new();
        }
        let put: String = self.fields().map(|(a, f, _)| format!("t{a}{f}[lane] = a{a}{f};\n")).collect();
        let apart = if lanes.inner { 1 } else { lanes.x };
        let merge = self.merge("a", |a, f| format!("t{a}{f}[other]"));
        let half = lanes.y / 2;
        format!(
            "{put}workgroupBarrier();\nfor (var half = {half}u; half > 0u; half = half >> 1u) {{\n\
             if (y < half) {{\nlet other = lane + half * {apart}u;\n{merge}{put}}}\nworkgroupBarrier();\n}}\n"
        )
    }

    /// Results of the accumulators, named `r0`, `r1` ...
    fn results(&self) -> (String, Vec<String>) {
        let mut text = String::new();
        for (a, state) in self.0.iter().enumerate() {
            let from = match state.kind {
                AccKind::Arg { .. } => format!("bitcast<i32>(a{a}i)"),
                AccKind::Reduce(_) => format!("a{a}"),
            };
            let _ = writeln!(text, "let r{a} = {from};");
        }
        (text, (0..self.0.len()).map(|a| format!("r{a}")).collect())
    }
}

/// Four steps at once, so that four loads are under way: drivers do not unroll loops of unknown length.
/// A long text is left alone. The counter is the same in every lane, which drivers on CPUs reward.
fn unrolled(point: &str, caps: &Caps) -> String {
    if point.len() > choose::unrolled_bytes(caps) {
        return String::new();
    }
    let step = |n: u32| format!("{{\nlet r = next + {n}u * step + y;\n{point}}}\n");
    let steps: String = (0..4).map(step).collect();
    format!("for (; next + 4u * step <= end; next += 4u * step) {{\n{steps}}}\n")
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
    let kernel = Reduction { cx, states, results, length };
    let quads = cx.caps.allows(Fast::Quads) && kernel.quads();
    let bytes = kernel.states.bytes();
    let lanes = choose::lanes(results, length, kernel.rows(), bytes, quads, cx.caps);
    // Scratch memory holds states that are words.
    let alone = |lanes: Lanes| {
        let y = lanes.y.min(if choose::software(cx.caps) { 1 } else { lanes.y });
        Lanes { splits: 1, tree: true, y, ..lanes }
    };
    let lanes = if kernel.states.words() { lanes } else { alone(lanes) };
    match kernel.launches(lanes, quads) {
        // The scratch binding may be the one too many.
        Err(e) if e.kind() == ErrorKind::Limit && lanes.parts() > 1 => kernel.launches(alone(lanes), quads),
        done => done,
    }
}

struct Reduction<'a> {
    cx: Cx<'a>,
    states: States,
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

    fn launches(&self, lanes: Lanes, quads: bool) -> Result<Lowered> {
        let parts = lanes.parts();
        let first = self.accumulate(lanes, quads)?;
        if parts == 1 {
            return Ok(Lowered { launches: vec![first], scratch_bytes: 0 });
        }
        let last = self.combine(parts)?;
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

    /// Stores at result `o`.
    fn print_epilogue(&self, k: &mut Kernel<'_>) -> Result<String> {
        let group = &self.cx.step.group;
        let (mut text, names) = self.states.results();
        let none = HashMap::new();
        let space = Space { linear: Some("o".to_owned()), coords: None, rank: self.outer() };
        let mut p = Printer::new(k, &group.body, space, &names, &none, "e");
        p.stores(&group.stores)?;
        text.push_str(&p.out);
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
        if split {
            let splits = k.word("splits", i64::from(lanes.splits));
            let _ = writeln!(out, "let tile = slot / {splits};\nlet part = slot - tile * {splits};");
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
                    let quad = quads && along(self.index(*index), true, false) == Along::Quad;
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
            let part = if lanes.tree { "part".to_owned() } else { format!("part * {}u + y", lanes.y) };
            let mut out = format!("let spot = o * {count} + {part};\n");
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
        point: &str,
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
            ("point", point),
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

    /// The launch that combines partial states.
    fn combine(&self, parts: u32) -> Result<Launch> {
        let bytes = self.states.bytes();
        let lanes = choose::final_lanes(parts, bytes, self.cx.caps);
        let mut k = Kernel::new(self.cx);
        let flagged = self.note_epilogue(&mut k);
        k.scratch(self.scratch_words(parts), false, Touch::Each);
        if flagged {
            k.flagged();
        }
        let place = self.place(&mut k, &lanes, parts as usize);
        let plane = k.word("plane", (self.results * parts as usize) as i64);
        let mut point = "let spot = o * length + r;\n".to_owned();
        for (f, (a, field, ty)) in self.states.fields().enumerate() {
            let at = if f == 0 { "spot".to_owned() } else { format!("spot + {f}u * {plane}") };
            let _ = writeln!(point, "let v{a}{field} = {};", recast(&k.scratch_word(&at), "u32", ty));
        }
        point.push_str(&self.states.merge("g", |a, f| format!("v{a}{f}")));
        let store = self.print_epilogue(&mut k)?;
        let flops = self.results as u64 * u64::from(parts);
        self.finish(k, &lanes, &place, "", &point, &store, flops)
    }

    /// What is computed once a result, and what at each step `r`.
    fn print_prologue(&self, k: &mut Kernel<'_>, needed: &[bool], quads: bool) -> Result<(String, String)> {
        let group = &*self.cx.step.group;
        let body = &group.body;
        let (outer, rank) = (self.outer(), group.dims.len());
        let still = self.still(needed);
        let none = HashMap::new();

        // Once a result: coordinates, and every expression that the reduced axes do not change.
        let space = Space { linear: Some("o".to_owned()), coords: None, rank: outer };
        let mut head = Printer::new(k, body, space, &[], &none, "h");
        let mut coords = head.coords();
        coords.resize(rank, "0u".to_owned());
        head.space = Space { linear: None, coords: Some(coords.clone()), rank };
        for (id, _) in self.exprs(needed).filter(|(id, _)| still[*id as usize]) {
            head.expr(id)?;
        }
        let whole = head.k.word("whole", self.length as i64);
        head.line(&format!("let row = o * {whole};"));
        let names = head.take_names();
        let once = head.out;

        // At each step.
        let lanes = if quads { 4 } else { 1 };
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
        if quads {
            for (operand, index) in self.moving_loads() {
                if along(self.index(index), true, false) == Along::Quad && base.k.reads_quads(operand) {
                    let at = base.element(index)?.at;
                    let name = format!("l{operand}_{index}");
                    let text = base.k.load_quad(operand, &at);
                    base.line(&format!("let {name} = {text};"));
                    vectors.insert((operand, index), name);
                }
            }
        }
        let mut out = base.out;
        for (lane, component) in XYZW.iter().enumerate().take(lanes) {
            let ready: HashMap<_, _> =
                vectors.iter().map(|(key, v)| (*key, format!("{v}.{component}"))).collect();
            let mut here = coords.clone();
            let mut turn = String::new();
            if quads {
                let last = here.last_mut().expect("a quad lies along an axis");
                turn = format!("let e{lane} = e + {lane}u;\nlet c{lane} = {last} + {lane}u;\n");
                *last = format!("c{lane}");
            }
            let linear = if quads { format!("e{lane}") } else { "e".to_owned() };
            let space = Space { linear: Some(linear), coords: Some(here), rank };
            let mut p = Printer::new(k, body, space, &[], &ready, "p");
            p.give_names(&names);
            for (a, acc) in group.accs.iter().enumerate() {
                let value = p.expr(acc.x)?;
                let at = if quads { format!("r4 + {lane}u") } else { "r".to_owned() };
                let line = self.states.0[a].combine(&format!("g{a}"), &value, &at);
                p.out.push_str(&line);
            }
            let text = p.out;
            let _ = write!(out, "{{\n{turn}{text}}}\n");
        }
        Ok((once, out))
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
