//! Scans: one invocation a line, one workgroup a line, or several workgroups a line, in two launches.

mod quads;

use wgrad_graph::{DType, Lines, Result, Scan, bail};

use super::kernel::{Cx, Kernel, Touch, is_word, recast, wgsl_type};
use super::{fold, points};
use crate::choose;
use crate::launch::{Launch, Lowered};

/// Neighbours that a lane of a tile takes.
const EACH: u32 = 8;

pub(super) fn lower(cx: Cx<'_>, kind: Scan, axis: u8, reverse: bool) -> Result<Lowered> {
    let name = kind.name();
    let shape = cx.graph.out(cx.step.group.stores[0].val).shape;
    let lines = Lines::new(shape, axis);
    if points(name, shape.dims())? == 0 {
        return Ok(Lowered::default());
    }
    let dtype = Kernel::new(cx).operand(0).dtype;
    if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::I64) {
        bail!(DType, name, "has no kernel for {dtype}");
    }
    if let Some(quads) = quads::Quads::new(cx, kind, reverse, lines, dtype) {
        return quads.lower();
    }
    // A lane's elements and a spare one, what it gives, and its share of the blocks.
    let bytes = 2 * dtype.bytes() * (EACH as usize + 3);
    let lanes = choose::scan_lanes(lines.count(), lines.inner, lines.n, bytes, EACH, cx.caps);
    let along = Along { cx, kind, reverse, lines, dtype, lanes };
    let tile = (lanes * EACH) as usize;
    // An invocation multiplies in the definition's own order, and so overflows where that does.
    let chunks = match kind {
        Scan::Prod if lanes == 0 => 1,
        _ if is_word(dtype) => choose::scan_chunks(lines.count(), lines.n, tile, cx.caps),
        _ => 1,
    };
    if chunks > 1 {
        let span = lines.n.div_ceil(chunks).next_multiple_of(tile.max(1));
        let cut = Cut { chunks: lines.n.div_ceil(span), span };
        let launches = vec![along.totals(cut)?, along.launch(0, lines.n, Some(cut))?];
        return Ok(Lowered { launches, scratch_bytes: along.words(cut) * 4 });
    }
    let span = choose::scan_span(lanes, EACH, cx.caps);
    let mut launches = Vec::new();
    for begin in (0..lines.n).step_by(span) {
        launches.push(along.launch(begin, lines.n.min(begin.saturating_add(span)), None)?);
    }
    Ok(Lowered { launches, scratch_bytes: 0 })
}

struct Along<'a> {
    cx: Cx<'a>,
    kind: Scan,
    reverse: bool,
    lines: Lines,
    dtype: DType,
    /// Lanes of a workgroup that runs along a line; 0: one invocation does.
    lanes: u32,
}

/// Lines cut into chunks, each with a workgroup of its own.
#[derive(Copy, Clone)]
struct Cut {
    chunks: usize,
    /// Elements of a chunk.
    span: usize,
}

impl Along<'_> {
    /// Words of the chunks' totals.
    fn words(&self, cut: Cut) -> usize {
        self.fields().len() * self.lines.count() * cut.chunks
    }

    /// The fields of a state and their types.
    fn fields(&self) -> Vec<(&'static str, &'static str)> {
        let ty = wgsl_type(self.dtype);
        match self.kind {
            Scan::Recur => vec![("a", ty), ("h", ty)],
            Scan::ArgMax | Scan::ArgMin => vec![("v", ty), ("i", "u32")],
            _ => vec![("v", ty)],
        }
    }

    /// Notes what is read, and the sizes of a run from `begin` to `stop`.
    fn sizes(&self, k: &mut Kernel<'_>, begin: usize, stop: usize, cut: Option<Cut>) -> String {
        let lines = self.lines;
        let cut = cut.unwrap_or(Cut { chunks: 1, span: stop - begin });
        let words = [
            ("lines", lines.count()),
            ("n", lines.n),
            ("inner", lines.inner),
            ("begin", begin),
            ("stop", stop),
            ("chunks", cut.chunks),
            ("span", cut.span),
        ];
        k.declare_words(&words)
    }

    fn reads(&self, k: &mut Kernel<'_>) {
        k.reads(0, Touch::Each);
        if self.kind == Scan::Recur {
            k.reads(1, Touch::Each);
        }
    }

    /// The state of the element `at`, which is position `p` of its line.
    fn element(&self, k: &Kernel<'_>) -> String {
        let x = k.load(0, "at");
        match self.kind {
            Scan::Recur => format!("State({x}, {})", k.load(1, "at")),
            Scan::ArgMax | Scan::ArgMin => format!("State({x}, p)"),
            _ => format!("State({x})"),
        }
    }

    fn place(&self) -> &'static str {
        if self.reverse { "let p = n - 1u - t;" } else { "let p = t;" }
    }

    /// The finished launch over `cut`, of which a launch that does not `write` leaves the totals.
    fn finish(
        &self,
        k: Kernel<'_>,
        cut: Option<Cut>,
        write: bool,
        regions: &[(&str, &str)],
        load: &str,
        steps: usize,
    ) -> Result<Launch> {
        let state = state(self.kind, wgsl_type(self.dtype));
        let work = (self.lines.count() * cut.map_or(1, |c| c.chunks)) as u64;
        let flops = (self.lines.count() * steps) as u64 * 2;
        if self.lanes > 0 {
            let load = format!("x = {load};");
            let regions = [regions, &[("load", &load)]].concat();
            let extra = format!(
                "const WG = {}u;\nconst EACH = {EACH}u;\nconst WRITE = {write};\n{state}",
                self.lanes
            );
            return k.finish(wgrad_wgsl::SCAN_TILE, &extra, &regions, fold(work, self.cx.caps)?, flops);
        }
        let load = format!("let x = {load};");
        let regions = [regions, &[("load", &load)]].concat();
        let wg = choose::pointwise_workgroup(self.cx.caps);
        let block = if matches!(self.kind, Scan::Sum | Scan::LogAddExp) { 64 } else { 1 };
        let extra = format!("const WG = {wg}u;\nconst BLOCK = {block}u;\n{state}");
        let grid = fold(work.div_ceil(u64::from(wg)), self.cx.caps)?;
        k.finish(wgrad_wgsl::SCAN_LINE, &extra, &regions, grid, flops)
    }

    /// The launch that leaves each chunk's total in scratch memory.
    fn totals(&self, cut: Cut) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        self.reads(&mut k);
        k.scratch(self.words(cut), true, Touch::Each);
        let sizes = self.sizes(&mut k, 0, self.lines.n, Some(cut));
        let load = self.element(&k);
        let plane = k.word("plane", (self.lines.count() * cut.chunks) as i64);
        let mut total = if self.lanes > 0 { "if (live && lane == 0u) {\n" } else { "{\n" }.to_owned();
        for (f, (field, ty)) in self.fields().into_iter().enumerate() {
            let word = k.scratch_word(&format!("spot + {f}u * {plane}"));
            total.push_str(&format!("{word} = {};\n", recast(&format!("before.{field}"), ty, "u32")));
        }
        total.push_str("}\n");
        let regions = [
            ("sizes", sizes.as_str()),
            ("before", ""),
            ("place", self.place()),
            ("store", ""),
            ("total", &total),
        ];
        self.finish(k, Some(cut), false, &regions, &load, self.lines.n)
    }

    /// The totals of the chunks before this one, joined.
    fn carried(&self, k: &mut Kernel<'_>, cut: Cut) -> String {
        let plane = k.word("plane", (self.lines.count() * cut.chunks) as i64);
        let read = |(f, (_, ty)): (usize, (&'static str, &'static str))| {
            recast(&k.scratch_word(&format!("line * chunks + c + {f}u * {plane}")), "u32", ty)
        };
        let fields: Vec<String> = self.fields().into_iter().enumerate().map(read).collect();
        let state = format!("State({})", fields.join(", "));
        if self.lanes == 0 {
            return format!("for (var c = 0u; c < chunk; c += 1u) {{\nbefore = join(before, {state});\n}}\n");
        }
        let each = k.word("each", cut.chunks.div_ceil(self.lanes as usize) as i64);
        format!(
            "{{\nvar own = none();\n\
             for (var c = lane * {each}; c < min(lane * {each} + {each}, chunk); c += 1u) {{\n\
             own = join(own, {state});\n}}\nlet left = scanned(lane, own);\nbefore = whole();\n}}\n"
        )
    }

    /// The launch that runs from `begin` to `stop`, from the state that the result before it tells.
    fn launch(&self, begin: usize, stop: usize, cut: Option<Cut>) -> Result<Launch> {
        let Along { cx, kind, .. } = *self;
        let mut k = Kernel::new(cx);
        self.reads(&mut k);
        k.writes(0, Touch::Each);
        if let Some(cut) = cut {
            k.scratch(self.words(cut), false, Touch::Each);
        }
        let sizes = self.sizes(&mut k, begin, stop, cut);
        let place = self.place();
        let y = k.stored(0, "at");
        let load = self.element(&k);
        let resume = match kind {
            Scan::Recur => format!("before = State(none().a, {y});"),
            Scan::ArgMax | Scan::ArgMin => {
                let there = k.load(0, "first + i * inner");
                format!("let i = bitcast<u32>({y});\nbefore = State({there}, i);")
            }
            _ => format!("before = State({y});"),
        };
        let field = match kind {
            Scan::Recur => "y.h",
            Scan::ArgMax | Scan::ArgMin => "bitcast<i32>(y.i)",
            _ => "y.v",
        };
        let store = k.store(0, "at", field);
        let before = match cut {
            Some(cut) => self.carried(&mut k, cut),
            None => format!(
                "if (begin > 0u) {{\nlet t = begin - 1u;\n{place}\nlet at = first + p * inner;\n{resume}\n}}\n"
            ),
        };
        let regions = [
            ("sizes", sizes.as_str()),
            ("before", before.as_str()),
            ("place", place),
            ("store", &store),
            ("total", ""),
        ];
        self.finish(k, cut, true, &regions, &load, stop - begin)
    }
}

/// The state of nothing of a scan, and how two neighbours `x` and `w` become one, where a state is one word.
fn one(kind: Scan, ty: &str) -> Option<(String, &'static str)> {
    let number = |n: u32| match ty {
        "f32" => Some(format!("{n}.0")),
        "u32" => Some(format!("{n}u")),
        "i32" => Some(format!("{n}")),
        _ => None,
    };
    match kind {
        Scan::Sum => Some((number(0)?, "x + w")),
        Scan::Prod => Some((number(1)?, "x * w")),
        Scan::LogAddExp if ty == "f32" => {
            Some(("bitcast<f32>(0xff800000u)".to_owned(), "wg_keep_nan(wg_log_add_exp(x, w), x, w)"))
        }
        _ => None,
    }
}

/// The state of a scan: its fields, the state of nothing, and how two neighbours become one.
fn state(kind: Scan, ty: &str) -> String {
    let (float, wide) = (ty == "f32", ty == "vec2<u32>");
    let number = |n: u32| match ty {
        "f32" => format!("{n}.0"),
        "u32" => format!("{n}u"),
        "i32" => format!("{n}"),
        _ => format!("vec2<u32>({n}u, 0u)"),
    };
    let one = |none: String, join: &str| {
        format!(
            "struct State {{ v: {ty} }}\nfn none() -> State {{ return State({none}); }}\n\
             fn join(x: State, w: State) -> State {{ return State({join}); }}\n"
        )
    };
    match kind {
        Scan::Sum if wide => one(number(0), "wg_add_i64(x.v, w.v)"),
        Scan::Prod if wide => one(number(1), "wg_mul_i64(x.v, w.v)"),
        Scan::Sum => one(number(0), "x.v + w.v"),
        Scan::Prod => one(number(1), "x.v * w.v"),
        Scan::LogAddExp => {
            one("bitcast<f32>(0xff800000u)".to_owned(), "wg_keep_nan(wg_log_add_exp(x.v, w.v), x.v, w.v)")
        }
        Scan::Recur => {
            let times = |a: &str, b: &str| match (float, wide) {
                (true, _) => format!("wg_times({a}, {b})"),
                (_, true) => format!("wg_mul_i64({a}, {b})"),
                _ => format!("{a} * {b}"),
            };
            let sum = times("w.a", "x.h");
            let sum = if wide { format!("wg_add_i64({sum}, w.h)") } else { format!("{sum} + w.h") };
            format!(
                "struct State {{ a: {ty}, h: {ty} }}\n\
                 fn none() -> State {{ return State({}, {}); }}\n\
                 fn join(x: State, w: State) -> State {{ return State({}, {sum}); }}\n",
                number(1),
                number(0),
                times("w.a", "x.a"),
            )
        }
        Scan::ArgMax | Scan::ArgMin => {
            let cmp = if kind == Scan::ArgMax { ">=" } else { "<=" };
            let follows = if float {
                format!("wg_is_nan(w.v) || (!wg_is_nan(x.v) && w.v {cmp} x.v)")
            } else if wide {
                format!("wg_{}_i64(w.v, x.v)", if kind == Scan::ArgMax { "ge" } else { "le" })
            } else {
                format!("w.v {cmp} x.v")
            };
            // Drivers turn a choice between compared floats into a min or max, which drops NaN.
            let v = if float { "wg_keep_nan(v, x.v, w.v)" } else { "v" };
            format!(
                "struct State {{ v: {ty}, i: u32 }}\n\
                 fn none() -> State {{ return State({}, 0xffffffffu); }}\n\
                 fn join(x: State, w: State) -> State {{\n\
                 if (x.i == 0xffffffffu) {{ return w; }}\nif (w.i == 0xffffffffu) {{ return x; }}\n\
                 let follows = {follows};\nlet v = select(x.v, w.v, follows);\n\
                 return State({v}, select(x.i, w.i, follows));\n}}\n",
                number(0)
            )
        }
    }
}
