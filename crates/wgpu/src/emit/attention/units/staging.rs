//! How numbers move: rows of the other side and own rows to workgroup memory, matrices to lanes and back.

use std::fmt::Write as _;

use wgrad_graph::DType;

use super::super::super::kernel::Kernel;
use super::super::tile::as_f32;
use super::{EDGE, Units};

/// The row that unit `unit` of a tile belongs to, of rows from `row0` on, in which `$r` is its place in the tile.
fn row(row0: &str, unit: &str, across: usize) -> String {
    let place = format!("{unit} / {across}u");
    format!("{} + {place}", row0.replace("$r", &place))
}

impl<'a> Units<'_, 'a> {
    /// The function that hides keys that are not seen: own row `own` with four rows of the other side.
    pub(super) fn limit(&self, k: &mut Kernel<'a>) -> String {
        let attend = self.site.attend;
        let sizes = [("l", self.site.heads.l), ("s", self.site.heads.s)];
        let [l, s] = sizes.map(|(name, n)| k.word(name, n as i64));
        let mine = self.goal.owns_queries();
        let (rows, columns) = if mine { (l, s) } else { (s, l) };
        let mut text = String::from(
            "const UNSEEN = -3.4028234663852886e+38f;\nvar<private> z: u32;\nvar<private> head: u32;\n\
             fn limit(x: vec4<f32>, own: u32, other: u32) -> vec4<f32> {\nvar y = x;\n\
             let others = vec4<u32>(other, other + 1u, other + 2u, other + 3u);\n",
        );
        if attend.masked {
            let [at, b, h, r, c] = self.site.view(k, 3);
            let bits = k.load(self.site.ins[3].0, "at");
            let dtype = self.site.out(3).dtype;
            let change = match dtype {
                DType::Bool => format!("if (!{bits}) {{ y[t] = UNSEEN; }}"),
                dtype => format!(
                    "let m = {};\n\
                     y[t] = select(y[t] + m * 1.4426950408889634, UNSEEN, bitcast<u32>(m) == 0xff800000u);",
                    as_f32(dtype, &bits)
                ),
            };
            let (query, key) = if mine { ("a", "b") } else { ("b", "a") };
            let _ = write!(
                text,
                "let a = min(own, {rows} - 1u);\nfor (var t = 0u; t < 4u; t += 1u) {{\n\
                 let b = min(others[t], {columns} - 1u);\n\
                 let at = {at} + z * {b} + head * {h} + {query} * {r} + {key} * {c};\n{change}\n}}\n"
            );
        }
        let mut seen = format!("(others < vec4<u32>({columns})) & vec4<bool>(own < {rows})");
        if attend.causal {
            let order = if mine { "<=" } else { ">=" };
            let _ = write!(seen, " & (others {order} vec4<u32>(own))");
        }
        let _ = write!(text, "return select(vec4<f32>(UNSEEN), y, {seen});\n}}\n");
        text
    }

    /// Loads of `rows` rows from `row0` on of operand `i` into `w{i}_0` ..; what is outside is loaded from inside.
    pub(super) fn load(&self, k: &mut Kernel<'a>, i: usize, [row0, limit]: [&str; 2], rows: usize) -> String {
        let across = self.features(i) / 4;
        let [.., r, _] = self.site.view(k, i);
        let (width, operand) = (self.width(i), self.site.ins[i].0);
        let mut text = format!("{{\nlet base = {};\n", self.site.base(k, i));
        for t in 0..(rows * across).div_ceil(self.wg()) {
            let unit = format!("(lane + {}u)", t * self.wg());
            let row = row(row0, &unit, across);
            let at =
                format!("base + min({row}, {limit} - 1u) * {r} + min({unit} % {across}u * 4u, {width} - 4u)");
            let load = match self.site.out(i).dtype {
                DType::F16 => k.load_half(operand, &at, true),
                _ => k.load_quad(operand, &at),
            };
            let _ = writeln!(text, "w{i}_{t} = {load};");
        }
        text.push_str("}\n");
        text
    }

    /// Declares what such loads fill.
    pub(super) fn registers(&self, i: usize, rows: usize) -> String {
        let ty = if self.site.out(i).dtype == DType::F16 { "f16" } else { "f32" };
        let count = (rows * self.features(i) / 4).div_ceil(self.wg());
        (0..count).map(|t| format!("var w{i}_{t} = vec4<{ty}>();\n")).collect()
    }

    /// Puts them into workgroup memory from `to` on, with zeros for what is outside.
    pub(super) fn put(&self, i: usize, [row0, limit]: [&str; 2], rows: usize, to: usize) -> String {
        let across = self.features(i) / 4;
        let (width, stride, total) = (self.width(i), self.stride(i), rows * across);
        let mut text = String::new();
        for t in 0..total.div_ceil(self.wg()) {
            let unit = format!("(lane + {}u)", t * self.wg());
            let some =
                if (t + 1) * self.wg() > total { format!("if ({unit} < {total}u) ") } else { String::new() };
            if self.site.split {
                let at = format!("{to}u + {unit} / {across}u * {stride}u + {unit} % {across}u");
                let row = row(row0, &unit, across);
                let inside = format!("{row} < {limit} && {unit} % {across}u * 4u < {width}");
                let (what, by) = if self.kept().contains(&i) {
                    let size = format!("bitcast<f32>(atomicLoad(&most[{unit} / {across}u]))");
                    (format!("select(vec4<f32>(), w{i}_{t}, {inside})"), format!("up_of({size})"))
                } else {
                    // Rows past the end repeat the last, whose weight is 0; features past the end meet zeros, or go
                    // to results that are none.
                    (format!("w{i}_{t}"), format!("up{i}"))
                };
                let _ = writeln!(text, "{some}{{\nlet at = {at};");
                text.push_str(&super::split::parts(&format!("{what} * {by}"), "t", "at"));
                text.push_str("}\n");
                continue;
            }
            let _ = writeln!(
                text,
                "{some}{{ tt[{to}u + {unit} / {across}u * {stride}u + {unit} % {across}u] = select(vec4<f16>(), \
                 vec4<f16>(w{i}_{t}), {} < {limit} && {unit} % {across}u * 4u < {width}); }}",
                row(row0, &unit, across)
            );
        }
        text
    }

    /// Loads of the other side's rows from `row0` on.
    pub(super) fn loads(&self, k: &mut Kernel<'a>, row0: &str) -> String {
        let (other, wide) = (self.other_rows(), self.form.wide);
        let mut text: String =
            self.streams().into_iter().map(|i| self.load(k, i, [row0, other], wide)).collect();
        if !self.goal.owns_queries() {
            for (name, i) in self.stats() {
                let [.., r, _] = self.site.view(k, i);
                let at = format!("{} + min({row0} + lane % {wide}u, l - 1u) * {r}", self.site.base(k, i));
                let _ = writeln!(text, "w{name} = {};", k.load(self.site.ins[i].0, &at));
            }
        }
        text
    }

    /// The logarithms and, where needed, the sums that go with queries.
    pub(super) fn stats(&self) -> Vec<(&'static str, usize)> {
        let mut all = vec![("lse", self.grad() + 1)];
        all.extend(self.goal.slopes().then_some(("delta", self.grad() + 2)));
        all
    }

    pub(super) fn base_two(name: &str) -> &'static str {
        if name == "lse" { " * 1.4426950408889634" } else { "" }
    }

    /// Matrices of a block into the subgroup's strip.
    pub(super) fn strip<'n>(&self, names: impl Iterator<Item = String> + 'n) -> String {
        let mut text = String::from("{\n");
        for (j, name) in names.enumerate() {
            let _ = writeln!(
                text,
                "let e{j} = eb + {}u;\ncoopStoreT({name}, &te[e{j}], {}u);",
                j * 4,
                self.line()
            );
        }
        text.push_str("}\n");
        text
    }

    /// A block's matrices `name` as vectors `to`, two lanes a row.
    pub(super) fn spread(&self, name: &str, to: &str, h: usize) -> String {
        let mut text = self.strip((0..self.form.wide / EDGE).map(|j| format!("{name}{h}_{j}")));
        text.push_str(self.meet());
        for c in 0..self.each() {
            let _ = writeln!(text, "var {to}{h}_{c} = te[er + {c}u];");
        }
        text
    }

    /// A block's vectors, times `by`, as matrices of weights `to`.
    pub(super) fn gather(&self, from: &str, by: &str, to: &str, h: usize) -> String {
        let mut text = String::new();
        for c in 0..self.each() {
            if self.site.split {
                let parts = super::split::parts(&format!("{from}{h}_{c}{by}"), "p", &format!("pr + {c}u"));
                let _ = writeln!(text, "{{\n{parts}}}");
                continue;
            }
            let _ = writeln!(text, "pt[pr + {c}u] = vec4<f16>({from}{h}_{c}{by});");
        }
        text.push_str(self.meet());
        for kk in 0..self.form.wide / EDGE {
            let _ = writeln!(text, "let i{to}{h}_{kk} = pb + {}u;", kk * 4);
            for part in self.parts() {
                let name = if *part == "l" { "l" } else { "" };
                let _ = writeln!(
                    text,
                    "let {to}{name}{h}_{kk} = coopLoadT<coop_mat16x16<f16, A>>(&p{part}[i{to}{h}_{kk}], {}u);",
                    self.weights()
                );
            }
        }
        text
    }
}
