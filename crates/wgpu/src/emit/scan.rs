//! Scans: one invocation a line, or one workgroup a line.

use wgrad_graph::{DType, Lines, Result, Scan, bail};

use super::kernel::{Cx, Kernel, Touch, wgsl_type};
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
    let lanes = choose::scan_lanes(lines.count(), lines.inner, lines.n, 2 * dtype.bytes(), EACH, cx.caps);
    let along = Along { cx, kind, reverse, lines, dtype, lanes };
    let span = choose::scan_span(lanes, EACH, cx.caps);
    let mut launches = Vec::new();
    for begin in (0..lines.n).step_by(span) {
        launches.push(along.launch(begin, lines.n.min(begin.saturating_add(span)))?);
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

impl Along<'_> {
    /// The launch that runs from `begin` to `stop`, from the state that the result before it tells.
    fn launch(&self, begin: usize, stop: usize) -> Result<Launch> {
        let Along { cx, kind, reverse, lines, dtype, lanes } = *self;
        let mut k = Kernel::new(cx);
        k.reads(0, Touch::Each);
        if kind == Scan::Recur {
            k.reads(1, Touch::Each);
        }
        k.writes(0, Touch::Each);
        let words = [
            ("lines", lines.count()),
            ("n", lines.n),
            ("inner", lines.inner),
            ("begin", begin),
            ("stop", stop),
        ];
        let sizes = k.declare_words(&words);
        let place = if reverse { "let p = n - 1u - t;" } else { "let p = t;" };
        let (x, y) = (k.load(0, "at"), k.stored(0, "at"));
        let load = match kind {
            Scan::Recur => format!("let x = State({x}, {});", k.load(1, "at")),
            Scan::ArgMax | Scan::ArgMin => format!("let x = State({x}, p);"),
            _ => format!("let x = State({x});"),
        };
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
        let regions = [
            ("sizes", sizes.as_str()),
            ("place", place),
            ("resume", &resume),
            ("load", &load),
            ("store", &store),
        ];
        let flops = (lines.count() * (stop - begin)) as u64 * 2;
        let state = state(kind, wgsl_type(dtype));
        if lanes > 0 {
            let extra = format!("const WG = {lanes}u;\nconst EACH = {EACH}u;\n{state}");
            let grid = fold(lines.count() as u64, cx.caps)?;
            return k.finish(wgrad_wgsl::SCAN_TILE, &extra, &regions, grid, flops);
        }
        let wg = choose::pointwise_workgroup(cx.caps);
        let block = if matches!(kind, Scan::Sum | Scan::LogAddExp) { 64 } else { 1 };
        let extra = format!("const WG = {wg}u;\nconst BLOCK = {block}u;\n{state}");
        let grid = fold((lines.count() as u64).div_ceil(u64::from(wg)), cx.caps)?;
        k.finish(wgrad_wgsl::SCAN_LINE, &extra, &regions, grid, flops)
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
