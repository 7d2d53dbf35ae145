//! Scatters whose positions are the same in every column: positions are put in order, then every element of the
//! output has an invocation of its own, which combines the values that are its.

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{DType, Fast, IndexId, Kind, Reduce, Result, bail};

use crate::choose;
use crate::emit::body::{Printer, Space};
use crate::emit::index::{Along, along_axis};
use crate::emit::kernel::{Cx, Kernel, Touch, is_word, recast, wgsl_type};
use crate::emit::radix::{Ends, Radix};
use crate::emit::states::{combined, neutral};
use crate::emit::{fold, points};
use crate::launch::{Launch, Lowered};

/// Positions whose places one workgroup counts, where there are few.
const RANKED: usize = 16;

/// A scatter by order.
struct Sorted<'a> {
    cx: Cx<'a>,
    at: (u16, IndexId),
    src: (u16, IndexId),
    stride: i64,
    size: usize,
    kind: Reduce,
    columns: usize,
    n: usize,
    /// Where the ordered keys and their places begin in scratch memory.
    kept: (usize, usize),
    /// Neighbouring columns of an invocation that combines: 1, or 4.
    each: usize,
    /// Values of a window.
    window: usize,
    /// Words of scratch memory.
    words: usize,
}

/// The launches, where the group is one that gains by them.
pub(super) fn lower(cx: Cx<'_>) -> Result<Option<Lowered>> {
    let group = &*cx.step.group;
    let Kind::Scatter { at, src, stride, size, kind } = &group.kind else { return Ok(None) };
    let name = kind.scatter_name();
    let outer = group.outer().len();
    let (columns, n) = (points(name, group.outer())?, points(name, &group.dims[outer..])?);
    let dtype = cx.graph.out(group.stores[0].val).dtype;
    let [view] = &group.body.indices[usize::from(at.1)].views[..] else { return Ok(None) };
    let still = view.strides.iter().zip(&group.dims).take(outer).all(|(s, d)| *s == 0 || *d == 1);
    let elements = columns.saturating_mul(*size);
    if !still
        || view.valid.is_some()
        || !is_word(dtype)
        || elements > u32::MAX as usize / 4
        || !choose::sorted_scatter(columns, n, *size, cx.caps)
    {
        return Ok(None);
    }
    // One number more than there are positions: those out of range.
    let radix = Radix { cx, lines: 1, n, bits: usize::BITS - size.leading_zeros() };
    let window = choose::scatter_window(n);
    let counted = choose::counted_scatter(n, *size);
    let (order, kept) = if counted { (2 * n, (0, n)) } else { (radix.words(true), radix.kept()) };
    let words = order + size + 1 + n / window * columns;
    if words > cx.caps.max_value_bytes / 4 {
        return Ok(None);
    }
    let mut sorted = Sorted {
        cx,
        at: *at,
        src: *src,
        stride: *stride,
        size: *size,
        kind: *kind,
        columns,
        n,
        kept,
        each: 1,
        window,
        words,
    };
    if cx.caps.allows(Fast::Quads) && sorted.takes_quads() {
        sorted.each = 4;
    }
    let mut launches = if counted { vec![sorted.rank()?] } else { radix.launches(&sorted, true, words)? };
    launches.push(sorted.bounds(order)?);
    if n / window > 0 {
        launches.push(sorted.windows(order)?);
    }
    launches.push(sorted.rows(order)?);
    Ok(Some(Lowered { launches, scratch_bytes: words * 4 }))
}

impl<'a> Sorted<'a> {
    fn ahead(&self, order: usize) -> usize {
        order + self.size + 1
    }

    fn dtype(&self) -> DType {
        self.cx.graph.out(self.cx.step.group.stores[0].val).dtype
    }

    fn bounds(&self, order: usize) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        k.scratch(self.words, true, Touch::Each);
        let sizes = [("count", self.size + 1), ("n", self.n), ("keys", self.kept.0), ("starts", order)];
        let sizes = k.declare_words(&sizes);
        let key = format!("let key = {};", k.scratch_word("keys + middle"));
        let store = format!("{} = low;", k.scratch_word("starts + j"));
        let regions = [("sizes", sizes.as_str()), ("key", &key), ("store", &store)];
        let mut launch =
            self.finish(k, wgrad_wgsl::SCATTER_BOUNDS, &regions, self.size + 1, self.size as u64)?;
        launch.cost_bytes = 4 * (self.size + self.n) as u64;
        Ok(launch)
    }

    fn finish(
        &self,
        k: Kernel<'a>,
        file: &str,
        regions: &[(&str, &str)],
        work: usize,
        flops: u64,
    ) -> Result<Launch> {
        let wg = choose::pointwise_workgroup(self.cx.caps);
        let grid = fold((work as u64).div_ceil(u64::from(wg)), self.cx.caps)?;
        k.finish(file, &format!("const WG = {wg}u;\n"), regions, grid, flops)
    }

    /// Whether an invocation may take four neighbouring columns.
    fn takes_quads(&self) -> bool {
        let group = &*self.cx.step.group;
        let Some(last) = group.outer().len().checked_sub(1) else { return false };
        let quad = |i: IndexId| along_axis(&group.body.indices[usize::from(i)], last) == Along::Quad;
        let dtype = |val| self.cx.graph.out(val).dtype;
        let plain = matches!(self.kind, Reduce::Sum | Reduce::Prod)
            && matches!(self.dtype(), DType::F32 | DType::I32 | DType::U32);
        plain
            && group.dims[last].is_multiple_of(4)
            && self.stride % 4 == 0
            && quad(self.src.1)
            && quad(group.stores[0].index)
            && self.cx.in_words(self.src.0)
            && dtype(group.operands[usize::from(self.src.0)]) == self.dtype()
    }

    /// The order in one launch, where there are few positions.
    fn rank(&self) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        self.reads(&mut k);
        k.scratch(self.words, true, Touch::Each);
        let bits = usize::BITS - (self.n - 1).leading_zeros();
        let sizes = [("n", self.n), ("bits", bits as usize), ("keys", self.kept.0), ("places", self.kept.1)];
        let sizes = k.declare_words(&sizes);
        let own = self.key_text(&mut k, true)?;
        let other = self.key_text(&mut k, false)?;
        let subgroups = self.cx.caps.allows(Fast::Subgroups) && self.cx.caps.subgroup > 1;
        let [mut start, mut loads, mut counts, mut meet] = [const { String::new() }; 4];
        for i in 0..4 {
            let _ = write!(
                loads,
                "var x{i}: u32;\n{{\nlet p = min(next + {i}u * WG, n - 1u);\n{other}x{i} = key << bits | p;\n}}\n"
            );
            let _ = writeln!(counts, "x{i} = select(0xffffffffu, x{i}, next + {i}u * WG < n);");
        }
        for e in 0..RANKED {
            let _ = writeln!(start, "let k{e} = own[{e}];\nvar c{e} = 0u;");
            for i in 0..4 {
                let _ = writeln!(counts, "c{e} += select(0u, 1u, x{i} < k{e});");
            }
            let _ = match subgroups {
                true => writeln!(
                    meet,
                    "let s{e} = subgroupAdd(c{e});\nif (sub == 0u) {{ atomicAdd(&found[{e}], s{e}); }}"
                ),
                false => writeln!(meet, "atomicAdd(&found[{e}], c{e});"),
            };
        }
        let (key, value) = (k.scratch_word("keys + place"), k.scratch_word("places + place"));
        let store = format!("{key} = key;\n{value} = value;\n");
        let counts = format!("{loads}{counts}");
        let regions = [
            ("sizes", sizes.as_str()),
            ("own", &own),
            ("start", &start),
            ("count", &counts),
            ("meet", &meet),
            ("store", &store),
        ];
        let lane = "@builtin(local_invocation_index) lane: u32,";
        let file = match subgroups {
            true => wgrad_wgsl::SCATTER_RANK
                .replace(lane, &format!("{lane}\n    @builtin(subgroup_invocation_id) sub: u32,")),
            false => wgrad_wgsl::SCATTER_RANK.to_owned(),
        };
        let grid = fold(self.n.div_ceil(RANKED) as u64, self.cx.caps)?;
        k.finish(
            &file,
            &format!("const WG = 256u;\nconst EACH = {RANKED}u;\n"),
            &regions,
            grid,
            2 * (self.n * self.n) as u64,
        )
    }

    /// The coordinates of column `o`: text, and names.
    fn column(&self, k: &mut Kernel<'a>, stored: bool) -> Result<(String, Vec<String>)> {
        let group = &*self.cx.step.group;
        let none = HashMap::new();
        let space = Space { linear: Some("o".to_owned()), coords: None, rank: group.outer().len() };
        let mut head = Printer::new(k, &group.body, space, &[], &none, "h");
        if stored {
            let column = head.element(group.stores[0].index)?.at;
            head.line(&format!("let column = {column};"));
        }
        let coords = head.coords();
        Ok((head.out, coords))
    }

    /// Text that makes `value` of the ordered value `r`.
    fn value(&self, k: &mut Kernel<'a>, coords: &[String], each: usize) -> Result<String> {
        let group = &*self.cx.step.group;
        let (outer, rank) = (group.outer().len(), group.dims.len());
        let place = k.scratch_word("places + r");
        let none = HashMap::new();
        let space = Space { linear: None, coords: None, rank };
        let mut p = Printer::new(k, &group.body, space, &[], &none, "p");
        p.line(&format!("let i = {place};"));
        let sizes: Vec<String> = (outer..rank).map(|axis| p.k.dim(axis)).collect();
        let inner = p.unravel("i", &sizes);
        p.space.coords = Some(coords.iter().cloned().chain(inner).collect());
        let element = p.element(self.src.1)?;
        let quad = each == 4 && p.k.reads_quads(self.src.0);
        let ty = self.ty(each);
        let load = match (each, quad) {
            (1, _) => p.k.load(self.src.0, &element.at),
            (_, true) => p.k.load_quad(self.src.0, &element.at),
            _ => {
                let four = [0, 1, 2, 3].map(|i| p.k.load(self.src.0, &format!("{} + {i}u", element.at)));
                format!("{ty}({})", four.join(", "))
            }
        };
        p.line(&match element.ok {
            None => format!("let value = {load};"),
            Some(ok) => format!("var value = {ty}();\nif ({ok}) {{ value = {load}; }}"),
        });
        Ok(p.out)
    }

    fn sums(&self, k: &mut Kernel<'a>, order: usize) -> String {
        let (keys, places) = self.kept;
        let words = [
            ("columns", self.columns),
            ("size", self.size),
            ("window", self.window),
            ("keys", keys),
            ("places", places),
            ("starts", order),
            ("ahead", self.ahead(order)),
        ];
        k.declare_words(&words)
    }

    fn windows(&self, order: usize) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        k.reads(self.src.0, Touch::Each);
        k.scratch(self.words, true, Touch::Each);
        let count = self.n / self.window * self.columns;
        let mut sizes = k.declare_words(&[("count", count)]);
        sizes.push_str(&self.sums(&mut k, order));
        let (outer, coords) = self.column(&mut k, false)?;
        let value = self.value(&mut k, &coords, 1)?;
        let ty = wgsl_type(self.dtype());
        let start = format!("var sum = {};", neutral(self.kind, ty));
        // Four values at once, so that their loads are under way together.
        let text: String =
            (0..4).map(|n| format!("{{\nlet r = next + {n}u;\n{value}v{n} = value;\n}}\n")).collect();
        let mut values: String = (0..4).map(|n| format!("var v{n} = {ty}();\n")).collect();
        values.push_str(&text);
        for n in 0..4 {
            let sum = combined(self.kind, ty, "sum", &format!("v{n}"));
            values.push_str(&format!("sum = {sum};\n"));
        }
        let (first, last) = (k.scratch_word("keys + first"), k.scratch_word("keys + first + window - 1u"));
        let uniform = format!("let uniform = {first} == {last};");
        let store = format!("{} = {};", k.scratch_word("ahead + spot"), recast("sum", ty, "u32"));
        let regions = [
            ("sizes", sizes.as_str()),
            ("uniform", &uniform),
            ("outer", &outer),
            ("start", &start),
            ("values", &values),
            ("store", &store),
        ];
        self.finish(k, wgrad_wgsl::SCATTER_WINDOWS, &regions, count, (self.n * self.columns) as u64)
    }

    /// The type in which `each` neighbouring columns are combined.
    fn ty(&self, each: usize) -> String {
        let ty = wgsl_type(self.dtype());
        if each == 4 { format!("vec4<{ty}>") } else { ty.to_owned() }
    }

    fn rows(&self, order: usize) -> Result<Launch> {
        let (each, one) = (self.each, wgsl_type(self.dtype()));
        let mut k = Kernel::new(self.cx);
        let touch = if each == 4 { Touch::Quad } else { Touch::Each };
        k.reads(self.src.0, touch);
        k.writes(0, touch);
        k.scratch(self.words, true, Touch::Each);
        let count = self.size * self.columns / each;
        let mut sizes = k.declare_words(&[("count", count)]);
        sizes.push_str(&self.sums(&mut k, order));
        let along = match (self.stride, each) {
            (1, _) => "let o = spot / size;\nlet j = spot - o * size;",
            (_, 1) => "let j = spot / columns;\nlet o = spot - j * columns;",
            _ => "let j = spot / (columns / 4u);\nlet o = spot * 4u - j * columns;",
        };
        let (mut outer, coords) = self.column(&mut k, true)?;
        let stride = k.word("stride", self.stride);
        outer.push_str(&format!("let stride = {stride};\n"));
        let mut value = self.value(&mut k, &coords, each)?;
        let ty = self.ty(each);
        value.push_str(&format!("sum = {};\n", combined(self.kind, one, "sum", "value")));
        let (first, end) = (k.scratch_word("starts + j"), k.scratch_word("starts + j + 1u"));
        let none = neutral(self.kind, one);
        let none = if each == 4 { format!("{ty}({none})") } else { none.to_owned() };
        let start = format!("var r = {first};\nlet end = {end};\nvar sum = {none};");
        let part = |i: usize| {
            let plus = if i > 0 { format!(" + {i}u") } else { String::new() };
            recast(&k.scratch_word(&format!("ahead + r / window * columns + o{plus}")), "u32", one)
        };
        let part = match each {
            1 => part(0),
            _ => format!("{ty}({})", [0, 1, 2, 3].map(part).join(", ")),
        };
        let ahead = format!("sum = {};", combined(self.kind, one, "sum", &part));
        let at = "column + j * stride";
        let parts = ["sum.x", "sum.y", "sum.z", "sum.w"];
        let store = match (each, k.writes_quads(0)) {
            (1, _) => k.store(0, at, "sum"),
            (_, true) => k.store_quad(0, at, parts, None),
            _ => (0..4).map(|i| k.store(0, &format!("{at} + {i}u"), parts[i])).collect(),
        };
        let regions = [
            ("sizes", sizes.as_str()),
            ("where", along),
            ("outer", &outer),
            ("start", &start),
            ("ahead", &ahead),
            ("value", &value),
            ("store", &store),
        ];
        self.finish(k, wgrad_wgsl::SCATTER_ROWS, &regions, count, (self.n * self.columns) as u64)
    }

    /// Text that makes `key` of position `p`; with `raises`, one out of range is an error.
    fn key_text(&self, k: &mut Kernel<'a>, raises: bool) -> Result<String> {
        let group = &*self.cx.step.group;
        let (outer, rank) = (group.outer().len(), group.dims.len());
        let raise = k.raise(self.kind.scatter_name(), self.size);
        let size = k.word("size", self.size as i64);
        let none = HashMap::new();
        let mut p = Printer::new(k, &group.body, Space { linear: None, coords: None, rank }, &[], &none, "p");
        let sizes: Vec<String> = (outer..rank).map(|axis| p.k.dim(axis)).collect();
        let inner = p.unravel("p", &sizes);
        p.space.coords = Some(vec!["0u".to_owned(); outer].into_iter().chain(inner).collect());
        let element = p.element(self.at.1)?;
        let load = p.k.load(self.at.0, &element.at);
        p.line(&format!("let position = {load};"));
        let place = match p.k.operand(self.at.0).dtype {
            DType::I32 => "bitcast<u32>(position)",
            DType::I64 => "wg_index_i64(position)",
            DType::U8 | DType::U32 => "position",
            other => bail!(DType, self.kind.scatter_name(), "positions are {other}"),
        };
        // What is out of range comes last, and goes nowhere.
        p.line(&format!("let key = min({place}, {size});"));
        if raises {
            p.line(&format!("if (key == {size}) {{\n{raise}}}"));
        }
        Ok(p.out)
    }
}

impl<'a> Ends<'a> for Sorted<'a> {
    fn reads(&self, k: &mut Kernel<'a>) {
        k.reads(self.at.0, Touch::Each);
        k.flagged();
    }

    fn key(&self, k: &mut Kernel<'a>) -> Result<(String, String)> {
        Ok((String::new(), self.key_text(k, true)?))
    }

    fn writes(&self, _: &mut Kernel<'a>) -> bool {
        false
    }

    fn store(&self, _: &mut Kernel<'a>) -> String {
        String::new()
    }
}
