//! Scans of neighbours by quads; lanes of a subgroup tell each other what they have.

use std::fmt::Write as _;

use wgrad_graph::{DType, Lines, Result, Scan};

use super::super::fold;
use super::super::kernel::{Cx, Kernel, Touch, recast, wgsl_type};
use super::{Cut, one};
use crate::choose;
use crate::launch::{Launch, Lowered};

/// A scan whose states are words that lie side by side.
pub(super) struct Quads<'a> {
    cx: Cx<'a>,
    reverse: bool,
    lines: Lines,
    dtype: DType,
    /// The state of nothing, and how two neighbours become one.
    state: (String, &'static str),
    lanes: u32,
}

impl<'a> Quads<'a> {
    /// The scan, where it can go by quads.
    pub(super) fn new(
        cx: Cx<'a>,
        kind: Scan,
        reverse: bool,
        lines: Lines,
        dtype: DType,
    ) -> Option<Quads<'a>> {
        let state = one(kind, wgsl_type(dtype))?;
        let lanes = choose::scan_quads(lines.count(), lines.inner, lines.n, cx.caps)?;
        Some(Quads { cx, reverse, lines, dtype, state, lanes })
    }

    pub(super) fn lower(&self) -> Result<Lowered> {
        let (count, n) = (self.lines.count(), self.lines.n);
        let tile = (self.lanes * 16) as usize;
        let span = tile * choose::scan_tiles(count, n, tile, self.cx.caps);
        let cut = Cut { chunks: n.div_ceil(span), span };
        if cut.chunks == 1 {
            return Ok(Lowered { launches: vec![self.launch(cut, true)?], scratch_bytes: 0 });
        }
        let launches = vec![self.launch(cut, false)?, self.carry(cut)?, self.launch(cut, true)?];
        Ok(Lowered { launches, scratch_bytes: self.words(cut) * 4 })
    }

    /// Words between the totals of a line and those of the next.
    fn stride(cut: Cut) -> usize {
        cut.chunks.next_multiple_of(4)
    }

    fn words(&self, cut: Cut) -> usize {
        self.lines.count() * Quads::stride(cut)
    }

    fn declare(&self, lanes: u32, write: bool) -> String {
        let (ty, sg) = (wgsl_type(self.dtype), self.cx.caps.subgroup);
        let (none, join) = &self.state;
        let mut text = format!(
            "const WG = {lanes}u;\nconst SG = {sg}u;\nconst WRITE = {write};\nalias T = {ty};\n\
             fn none() -> T {{ return {none}; }}\nfn join(x: T, w: T) -> T {{ return {join}; }}\n\
             fn scanned(own: T, sub: u32) -> T {{\nvar sum = own;\nvar left = own;\n"
        );
        let mut step = 1;
        while step < sg {
            let _ = writeln!(
                text,
                "left = subgroupShuffleUp(sum, {step}u);\nif (sub >= {step}u) {{ sum = join(left, sum); }}"
            );
            step *= 2;
        }
        text.push_str("return sum;\n}\n");
        text
    }

    /// The launch over `cut` that writes, or leaves the chunks' totals.
    fn launch(&self, cut: Cut, write: bool) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        k.reads(0, Touch::Quad);
        if write {
            k.writes(0, Touch::Quad);
        }
        let count = self.lines.count();
        let carried = cut.chunks > 1;
        if carried {
            k.scratch(self.words(cut), !write, Touch::Each);
        }
        let words = [("lines", count), ("n", self.lines.n), ("chunks", cut.chunks), ("span", cut.span)];
        let sizes = k.declare_words(&words);
        let ty = wgsl_type(self.dtype);
        // All loads stand before the first choice: a branch between them would have each wait for the one before.
        let (mut loads, mut picks, mut stores) = (String::new(), String::new(), String::new());
        for row in 0..4 {
            let t = format!("t + {}u * SG", 4 * row);
            let near = |t: &str| match self.reverse {
                true => format!("first + n - 4u - {t}"),
                false => format!("first + {t}"),
            };
            let turned = if self.reverse { ".wzyx" } else { "" };
            let x = k.load_quad(0, &near(&format!("min({t}, until - 4u)")));
            let _ = writeln!(loads, "let a{row} = {x}{turned};");
            let _ = writeln!(picks, "x{row} = select(x{row}, a{row}, {t} < until);");
            let at = near(&format!("({t})"));
            if write {
                let parts: [String; 4] = std::array::from_fn(|c| {
                    let c = if self.reverse { 3 - c } else { c };
                    format!("y{row}.{}", ["x", "y", "z", "w"][c])
                });
                let store = k.store_quad(0, &at, [&parts[0], &parts[1], &parts[2], &parts[3]], None);
                let _ = writeln!(stores, "if (live && {t} < until) {{ {} }}", store.trim_end());
            }
        }
        loads.push_str(&picks);
        let (mut total, mut before) = (String::new(), String::new());
        if carried {
            let stride = k.word("stride", Quads::stride(cut) as i64);
            if write {
                let there = recast(&k.scratch_word(&format!("line * {stride} + chunk - 1u")), "u32", ty);
                before = format!("if (chunk > 0u) {{ before = {there}; }}\n");
            } else {
                let word = k.scratch_word(&format!("line * {stride} + chunk"));
                let sum = recast("before", ty, "u32");
                total = format!("if (live && part == 0u && sub == 0u) {{ {word} = {sum}; }}\n");
            }
        }
        let regions = [
            ("sizes", sizes.as_str()),
            ("before", &before),
            ("loads", &loads),
            ("stores", &stores),
            ("total", &total),
        ];
        let work = (count * cut.chunks) as u64;
        let flops = (count * self.lines.n) as u64 * 2;
        let grid = fold(work, self.cx.caps)?;
        k.finish(wgrad_wgsl::SCAN_QUADS, &self.declare(self.lanes, write), &regions, grid, flops)
    }

    /// The launch that scans the chunks' totals where they lie.
    fn carry(&self, cut: Cut) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        k.scratch(self.words(cut), true, Touch::Quad);
        let (count, n) = (self.lines.count(), Quads::stride(cut));
        let sizes = k.declare_words(&[("lines", count), ("n", n), ("chunks", 1), ("span", n)]);
        let ty = wgsl_type(self.dtype);
        let (mut loads, mut picks, mut stores) = (String::new(), String::new(), String::new());
        for row in 0..4 {
            let t = format!("t + {}u * SG", 4 * row);
            let near = k.scratch_quad(&format!("first + min({t}, until - 4u)"));
            let quad = k.scratch_quad(&format!("first + {t}"));
            let (x, y) = match ty {
                "u32" => (near, format!("y{row}")),
                _ => (format!("bitcast<vec4<T>>({near})"), format!("bitcast<vec4<u32>>(y{row})")),
            };
            let _ = writeln!(loads, "let a{row} = {x};");
            let _ = writeln!(picks, "x{row} = select(x{row}, a{row}, {t} < until);");
            let _ = writeln!(stores, "if (live && {t} < until) {{ {quad} = {y}; }}");
        }
        loads.push_str(&picks);
        let regions = [
            ("sizes", sizes.as_str()),
            ("before", ""),
            ("loads", &loads),
            ("stores", &stores),
            ("total", ""),
        ];
        let lanes = choose::scan_quads(count, 1, n.max(1024), self.cx.caps).unwrap_or(self.lanes);
        let grid = fold(count as u64, self.cx.caps)?;
        k.finish(wgrad_wgsl::SCAN_QUADS, &self.declare(lanes, true), &regions, grid, 2 * (count * n) as u64)
    }
}
