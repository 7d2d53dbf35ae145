//! The text of a tile's kernel.
//!
//! 128 invocations are 16 rows of 8: invocation `(ty, tx)` holds, of the workgroup's 64 own rows, the four from
//! `4 ty`, and of the other side's 64 rows those from `4 tx` and from `32 + 4 tx`. A vector is four own rows at one
//! row of the other side (`s0` .. `s7`), or at one feature (`o0` ..). Tiles in workgroup memory are arrays of such
//! vectors, whose places are exchanged within a row so that neither writing nor reading them meets in one bank.
//! Neighbouring invocations share `tx`, those two apart share `ty`: then NVIDIA reads a vector a lane in one turn.

use std::fmt::Write as _;

use wgrad_graph::DType;

use super::super::kernel::Kernel;
use super::{Goal, ROWS, Site, Touch};

/// Features, or rows of the other side, that are staged at once where tiles are multiplied.
const DEEP: usize = 32;

/// Which rows and columns of a tile an invocation has.
const PLACE: &str = "let tx = (lane >> 1u) & 7u;\n\
    let ty = (lane >> 5u) * 4u + (lane & 1u) + ((lane >> 4u) & 1u) * 2u;\n";

/// One kernel's text.
pub(super) struct Text<'s, 'a> {
    site: &'s Site<'a>,
    goal: Goal,
    /// Features that are accumulated, rounded up.
    class: usize,
    /// Whether the own rows' features stay in workgroup memory.
    resident: bool,
    fours: [bool; 3],
}

impl<'s, 'a> Text<'s, 'a> {
    pub(super) fn new(site: &'s Site<'a>, goal: Goal, class: usize, k: &mut Kernel<'a>) -> Text<'s, 'a> {
        site.note(goal, k);
        let mut fours = [false; 3];
        for store in site.stores(goal) {
            fours[store] = site.stored(store) == Touch::Quad && k.writes_quads(store);
        }
        Text { site, goal, class, resident: site.resident(goal), fours }
    }

    /// What the operands are: queries, keys, values, mask, and of a gradient the result's, logarithms, sums.
    fn rest(&self, i: usize) -> usize {
        self.site.attend.rest() + i
    }

    pub(super) fn declared(&self, k: &mut Kernel<'a>) -> String {
        let own = if self.resident { ROWS } else { DEEP } * ROWS / 4;
        let mut text = format!(
            "const WG = 128u;\nvar<workgroup> ta: array<vec4<f32>, {own}>;\n\
             var<workgroup> tb: array<vec4<f32>, {}>;\nvar<workgroup> pt: array<vec4<f32>, {}>;\n",
            DEEP * ROWS / 4,
            ROWS * ROWS / 4
        );
        if self.resident {
            text.push_str("var<workgroup> red: array<vec4<f32>, 128>;\n");
        }
        text.push_str(&self.limit(k));
        text
    }

    /// The function that scales scores and hides keys that are not seen: `own` and three rows after it, with row
    /// `other` of the other side.
    fn limit(&self, k: &mut Kernel<'a>) -> String {
        let attend = self.site.attend;
        let [l, s] = [k.word("l", self.site.heads.l as i64), k.word("s", self.site.heads.s as i64)];
        let (rows, columns, own_query) = match self.goal.owns_queries() {
            true => (l.clone(), s.clone(), true),
            false => (s.clone(), l.clone(), false),
        };
        let mut text = String::from(
            "const UNSEEN = -3.4028234663852886e+38f;\nvar<private> z: u32;\nvar<private> head: u32;\n\
             fn limit(x: vec4<f32>, own: u32, other: u32) -> vec4<f32> {\nvar y = x;\n\
             let rows = vec4<u32>(own, own + 1u, own + 2u, own + 3u);\n",
        );
        if attend.masked {
            let [at, b, h, r, c] = self.site.view(k, 3);
            let bits = k.load(self.site.ins[3].0, "at");
            let dtype = self.site.out(3).dtype;
            let (query, key) = if own_query { ("a", "b") } else { ("b", "a") };
            let change = match dtype {
                DType::Bool => format!("if (!{bits}) {{ y[t] = UNSEEN; }}"),
                dtype => {
                    let value = as_f32(dtype, &bits);
                    format!(
                        "let m = {value};\n\
                         y[t] = select(y[t] + m * 1.4426950408889634, UNSEEN, bitcast<u32>(m) == 0xff800000u);"
                    )
                }
            };
            let _ = write!(
                text,
                "for (var t = 0u; t < 4u; t += 1u) {{\nlet a = min(rows[t], {rows} - 1u);\n\
                 let b = min(other, {columns} - 1u);\n\
                 let at = {at} + z * {b} + head * {h} + {query} * {r} + {key} * {c};\n{change}\n}}\n"
            );
        }
        let mut seen = format!("(rows < vec4<u32>({rows})) & vec4<bool>(other < {columns})");
        if attend.causal {
            let order = if own_query { ">=" } else { "<=" };
            let _ = write!(seen, " & (rows {order} vec4<u32>(other))");
        }
        let _ = write!(text, "return select(vec4<f32>(UNSEEN), y, {seen});\n}}\n");
        text
    }

    pub(super) fn regions(&self, k: &mut Kernel<'a>, at: [usize; 3]) -> Vec<(&'static str, String)> {
        vec![
            ("place", self.site.place(self.goal, k, at, ROWS) + PLACE),
            ("start", self.start(k)),
            (
                "head",
                if self.goal.owns_queries() { "" } else { "head = group_of * ratio + turn_of;" }.to_owned(),
            ),
            ("tile", self.tile(k)),
            ("finish", self.finish(k)),
        ]
    }

    fn start(&self, k: &mut Kernel<'a>) -> String {
        let mut text = String::new();
        let sets: &[&str] = match self.goal {
            Goal::Keys { keys: true, values: true } => &["o", "p"],
            _ => &["o"],
        };
        for set in sets {
            for c in 0..self.class / 8 {
                let _ = writeln!(text, "var {set}{c} = vec4<f32>(0.0);");
            }
        }
        match self.goal {
            Goal::Result => {
                text.push_str("var top = vec4<f32>(UNSEEN * 0.5);\nvar sum = vec4<f32>(0.0);\n");
                if self.resident {
                    for c in 0..2 {
                        // Both halves: the second is zeros where there are no more features.
                        let (c0, to) = (format!("{}u", c * DEEP), ("ta", c * DEEP));
                        let texts = self.stage(k, (0, "a"), ["own0", "l"], &c0, to);
                        let _ = write!(text, "{{\n{}}}\n", texts.concat());
                    }
                    text.push_str("workgroupBarrier();\n");
                }
            }
            Goal::Queries => {
                for (name, i) in [("lse", 1), ("delta", 2)] {
                    let base = self.site.base(k, self.rest(i));
                    let [.., r, _] = self.site.view(k, self.rest(i));
                    let load = k.load(
                        self.site.ins[self.rest(i)].0,
                        &format!("{base} + min(own0 + ty * 4u + t, l - 1u) * {r}"),
                    );
                    let _ = write!(
                        text,
                        "var {name} = vec4<f32>(0.0);\n\
                         for (var t = 0u; t < 4u; t += 1u) {{ {name}[t] = {load}; }}\n"
                    );
                }
                text.push_str("lse = lse * 1.4426950408889634;\n");
            }
            Goal::Keys { .. } => {}
        }
        text
    }

    /// Four units of four features by each invocation into `w{tag}0` to `w{tag}3`: features `c{tag}{t}` on of row
    /// `r{tag}{t}` of operand `i`; what is outside is loaded from inside. The second text makes it zeros: all that a
    /// kernel stages at once is loaded before any is looked at, or each load would wait for the last.
    fn fours(&self, k: &mut Kernel<'a>, i: usize, tag: &str, rows: &str) -> [String; 2] {
        let [.., r, c] = self.site.view(k, i);
        let (operand, dtype) = (self.site.ins[i].0, self.site.out(i).dtype);
        let width = if i == 0 || i == 1 { "d" } else { "e" };
        let (mut loads, mut zeros) = (format!("let base{tag} = {};\n", self.site.base(k, i)), String::new());
        for t in 0..4 {
            let (row, column) = (format!("r{tag}{t}"), format!("c{tag}{t}"));
            let line = format!("base{tag} + min({row}, {rows} - 1u) * {r}");
            let load = match self.site.quads {
                true => k.load_quad(operand, &format!("{line} + min({column}, {width} - 4u)")),
                false => {
                    let one = |n: usize| format!("{line} + min({column} + {n}u, {width} - 1u) * {c}");
                    let each = (0..4).map(|n| as_f32(dtype, &k.load(operand, &one(n))));
                    format!("vec4<f32>({})", each.collect::<Vec<_>>().join(", "))
                }
            };
            let _ = writeln!(loads, "let l{tag}{t} = {load};");
            let inside = match self.site.quads {
                true => format!("{row} < {rows} && {column} < {width}"),
                false => format!(
                    "vec4<bool>({row} < {rows}) & \
                     (vec4<u32>({column}) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>({width}))"
                ),
            };
            let _ = writeln!(zeros, "let w{tag}{t} = select(vec4<f32>(), l{tag}{t}, {inside});");
        }
        [loads, zeros]
    }

    /// Features `c0` to `c0 + 32` of 64 rows into a tile of vectors of rows: what loads them, and what puts them there.
    fn stage(
        &self,
        k: &mut Kernel<'a>,
        (i, tag): (usize, &str),
        [row0, rows]: [&str; 2],
        c0: &str,
        (tile, first): (&str, usize),
    ) -> [String; 2] {
        let mut text = format!("let four{tag} = (lane >> 3u) & 7u;\n");
        for t in 0..4 {
            let _ = writeln!(
                text,
                "let row{tag}{t} = (lane & 7u) + 8u * ((lane >> 6u) + {}u);\n\
                 let r{tag}{t} = {row0} + row{tag}{t};\nlet c{tag}{t} = {c0} + four{tag} * 4u;",
                2 * t
            );
        }
        let [loads, mut puts] = self.fours(k, i, tag, rows);
        text.push_str(&loads);
        for t in 0..4 {
            let _ = writeln!(
                puts,
                "let to{tag}{t} = (four{tag} * 4u + {first}u) * 16u + \
                 ((row{tag}{t} >> 2u) ^ ((four{tag} & 3u) * 2u));"
            );
            for n in 0..4 {
                let _ =
                    writeln!(puts, "{tile}[to{tag}{t} + {}u][row{tag}{t} & 3u] = w{tag}{t}[{n}];", n * 16);
            }
        }
        [text, puts]
    }

    /// Products of own rows of operand `a` with the other rows of operand `b` into `name`0 to 7.
    fn products(&self, k: &mut Kernel<'a>, name: &str, a: usize, b: usize) -> String {
        let width = if a == 0 || a == 1 { "d" } else { "e" };
        let (own_rows, other_rows) = if self.goal.owns_queries() { ("l", "s") } else { ("s", "l") };
        let mut text = String::new();
        for c in 0..8 {
            let _ = writeln!(text, "var {name}{c} = vec4<f32>(0.0);");
        }
        let _ = writeln!(text, "for (var c0 = 0u; c0 < {width}; c0 += {DEEP}u) {{");
        text.push_str("{\n");
        let own = (!self.resident).then(|| self.stage(k, (a, "a"), ["own0", own_rows], "c0", ("ta", 0)));
        let other = self.stage(k, (b, "b"), ["t0", other_rows], "c0", ("tb", 0));
        for part in 0..2 {
            text.extend(own.iter().chain([&other]).map(|texts| texts[part].as_str()));
        }
        text.push_str("}\n");
        let own = if self.resident { "c0 + " } else { "" };
        let _ = write!(
            text,
            "workgroupBarrier();\nfor (var four = 0u; four < {}u; four += 1u) {{\n\
             let turned = (four & 3u) * 2u;\nlet ia = ({own}four * 4u) * 16u + (ty ^ turned);\n\
             let ib = four * 64u + (tx ^ turned);\n",
            DEEP / 4
        );
        for t in 0..4 {
            let at = t * 16;
            let _ = write!(
                text,
                "{{\nlet a = ta[ia + {at}u];\nlet u = tb[ib + {at}u];\nlet w = tb[ib + {}u];\n",
                at + 8
            );
            for c in 0..8 {
                let from = ["u.x", "u.y", "u.z", "u.w", "w.x", "w.y", "w.z", "w.w"][c];
                let _ = writeln!(text, "{name}{c} = fma(a, vec4<f32>({from}), {name}{c});");
            }
            text.push_str("}\n");
        }
        text.push_str("}\nworkgroupBarrier();\n}\n");
        text
    }

    /// The place of column `c` of this invocation among the other side's 64 rows.
    fn column(c: usize) -> String {
        format!("tx * 4u + {}u", c % 4 + c / 4 * 32)
    }

    /// Scores scaled and hidden, in units of the logarithm to base 2.
    fn limited(&self) -> String {
        let mut text = String::new();
        for c in 0..8 {
            let _ = writeln!(text, "s{c} = limit(s{c} * factor, own0 + ty * 4u, t0 + {});", Self::column(c));
        }
        if self.site.attend.masked {
            return text;
        }
        let mut plain = String::new();
        for c in 0..8 {
            let _ = writeln!(plain, "s{c} = s{c} * factor;");
        }
        // Inside, everything is seen.
        let causal = match (self.site.attend.causal, self.goal.owns_queries()) {
            (false, _) => "",
            (true, true) => " || t0 + 63u > own0",
            (true, false) => " || own0 + 63u > t0",
        };
        let (own, other) = if self.goal.owns_queries() { ("l", "s") } else { ("s", "l") };
        format!("if (t0 + 64u > {other} || own0 + 64u > {own}{causal}) {{\n{text}}} else {{\n{plain}}}\n")
    }

    /// Vectors `name`0 to 7 into the tile of weights.
    fn put(name: &str) -> String {
        let mut text = String::new();
        for c in 0..8 {
            let _ = writeln!(text, "pt[({}) * 16u + (ty ^ (tx * 2u))] = {name}{c};", Self::column(c));
        }
        text
    }

    /// Adds the tile of weights times the other side's rows of operand `i` to `set`.
    fn sums(&self, k: &mut Kernel<'a>, set: &str, i: usize) -> String {
        let vectors = self.class / 4;
        let rows = (DEEP * ROWS / self.class).min(ROWS);
        let other = if self.goal.owns_queries() { "s" } else { "l" };
        let mut text = format!("for (var c0 = 0u; c0 < 64u; c0 += {rows}u) {{\n{{\n");
        for t in 0..4 {
            let _ = writeln!(
                text,
                "let to{t} = lane + {}u;\nlet rv{t} = t0 + c0 + to{t} / {vectors}u;\n\
                 let cv{t} = (to{t} % {vectors}u) * 4u;",
                t * 128
            );
        }
        text.push_str(&self.fours(k, i, "v", other).concat());
        for t in 0..4 {
            let _ = writeln!(text, "tb[to{t}] = wv{t};");
        }
        let _ = write!(
            text,
            "}}\nworkgroupBarrier();\nfor (var row = 0u; row < {rows}u; row += 4u) {{\nlet j = c0 + row;\n\
             let ia = j * 16u + (ty ^ (((j >> 2u) & 7u) * 2u));\nlet ib = row * {vectors}u + tx;\n"
        );
        for n in 0..4 {
            let _ = writeln!(text, "{{\nlet a = pt[ia + {}u];", n * 16);
            for v in 0..self.class / 32 {
                let _ = writeln!(text, "let w{v} = tb[ib + {}u];", n * vectors + v * 8);
                for (t, part) in ["x", "y", "z", "w"].iter().enumerate() {
                    let o = v * 4 + t;
                    let _ = writeln!(text, "{set}{o} = fma(a, vec4<f32>(w{v}.{part}), {set}{o});");
                }
            }
            text.push_str("}\n");
        }
        text.push_str("}\nworkgroupBarrier();\n}\n");
        text
    }

    fn tile(&self, k: &mut Kernel<'a>) -> String {
        match self.goal {
            Goal::Result => self.tile_of_result(k),
            Goal::Queries => self.tile_of_queries(k),
            Goal::Keys { keys, values } => self.tile_of_keys(k, keys, values),
        }
    }

    fn tile_of_result(&self, k: &mut Kernel<'a>) -> String {
        let mut text = self.products(k, "s", 0, 1);
        text.push_str(&self.limited());
        let red = if self.resident { "red" } else { "ta" };
        text.push_str("var most = max(max(max(s0, s1), max(s2, s3)), max(max(s4, s5), max(s6, s7)));\n");
        let _ = write!(
            text,
            "{red}[tx * 16u + ty] = most;\nworkgroupBarrier();\nmost = top;\n\
             for (var t = 0u; t < 8u; t += 1u) {{ most = max(most, {red}[t * 16u + ty]); }}\n\
             let fade = exp2(top - most);\ntop = most;\n"
        );
        for c in 0..8 {
            let _ = writeln!(text, "s{c} = exp2(s{c} - top);");
        }
        text.push_str("sum = sum * fade + (((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)));\n");
        for o in 0..self.class / 8 {
            let _ = writeln!(text, "o{o} = o{o} * fade;");
        }
        text.push_str(&Self::put("s"));
        text.push_str(&self.sums(k, "o", 2));
        text
    }

    fn tile_of_queries(&self, k: &mut Kernel<'a>) -> String {
        let mut text = self.products(k, "s", 0, 1);
        text.push_str(&self.limited());
        text.push_str(&self.products(k, "g", self.rest(0), 2));
        for c in 0..8 {
            let _ = writeln!(
                text,
                "s{c} = exp2(s{c} - lse);\n\
                 g{c} = select(s{c} * (g{c} - delta) * scale, vec4<f32>(0.0), s{c} == vec4<f32>(0.0));"
            );
        }
        text.push_str(&Self::put("g"));
        text.push_str(&self.sums(k, "o", 1));
        text
    }

    fn tile_of_keys(&self, k: &mut Kernel<'a>, keys: bool, values: bool) -> String {
        let mut text = self.products(k, "s", 1, 0);
        text.push_str(&self.limited());
        if keys {
            text.push_str(&self.products(k, "g", 2, self.rest(0)));
        }
        let stat = |k: &mut Kernel<'a>, i: usize| {
            let base = self.site.base(k, self.rest(i));
            let [.., r, _] = self.site.view(k, self.rest(i));
            k.load(self.site.ins[self.rest(i)].0, &format!("{base} + i * {r}"))
        };
        let lse = stat(k, 1);
        let delta = if keys { stat(k, 2) } else { String::new() };
        for c in 0..8 {
            let _ = write!(
                text,
                "{{\nlet i = min(t0 + {}, l - 1u);\ns{c} = exp2(s{c} - {lse} * 1.4426950408889634);\n",
                Self::column(c)
            );
            if keys {
                let _ = writeln!(
                    text,
                    "g{c} = select(s{c} * (g{c} - {delta}) * scale, vec4<f32>(0.0), s{c} == vec4<f32>(0.0));"
                );
            }
            text.push_str("}\n");
        }
        if values {
            text.push_str(&Self::put("s"));
            text.push_str(&self.sums(k, if keys { "p" } else { "o" }, self.rest(0)));
        }
        if keys {
            text.push_str(&Self::put("g"));
            text.push_str(&self.sums(k, "o", 0));
        }
        text
    }

    fn finish(&self, k: &mut Kernel<'a>) -> String {
        let mut text = String::new();
        match self.goal {
            Goal::Result => {
                let red = if self.resident { "red" } else { "ta" };
                let none =
                    if self.site.attend.masked { "sum == vec4<f32>(0.0)" } else { "vec4<bool>(s == 0u)" };
                let _ = write!(
                    text,
                    "{red}[tx * 16u + ty] = sum;\nworkgroupBarrier();\nsum = vec4<f32>(0.0);\n\
                     for (var t = 0u; t < 8u; t += 1u) {{ sum = sum + {red}[t * 16u + ty]; }}\n\
                     let share = select(1.0 / sum, vec4<f32>(0.0), {none});\n"
                );
                for o in 0..self.class / 8 {
                    let _ = writeln!(text, "o{o} = o{o} * share;");
                }
                let store = k.store(1, "pair * l + i", "log[t]");
                let _ = write!(
                    text,
                    "let log = select((top + log2(sum)) * 0.6931471805599453, vec4<f32>(3.4028234663852886e+38f), \
                     sum == vec4<f32>(0.0));\nif (live && tx == 0u) {{\nfor (var t = 0u; t < 4u; t += 1u) {{\n\
                     let i = own0 + ty * 4u + t;\nif (i < l) {{ {store} }}\n}}\n}}\n"
                );
                text.push_str(&self.written(k, 0, "o", "l", "e"));
            }
            Goal::Queries => text.push_str(&self.written(k, 0, "o", "l", "d")),
            Goal::Keys { keys, values } => {
                if values {
                    text.push_str(&self.written(k, 2, if keys { "p" } else { "o" }, "s", "e"));
                }
                if keys {
                    text.push_str(&self.written(k, 1, "o", "s", "d"));
                }
            }
        }
        text
    }

    /// Writes the accumulators of `set` to own rows of a result.
    fn written(&self, k: &mut Kernel<'a>, store: usize, set: &str, rows: &str, width: &str) -> String {
        let mut text = String::from("if (live) {\n");
        for t in 0..4 {
            let _ = write!(
                text,
                "{{\nlet i = own0 + ty * 4u + {t}u;\nif (i < {rows}) {{\nlet at = (pair * {rows} + i) * {width};\n"
            );
            for v in 0..self.class / 32 {
                let values: [String; 4] = std::array::from_fn(|n| format!("{set}{}[{t}]", v * 4 + n));
                let c = format!("(tx * 4u + {}u)", v * 32);
                if self.fours[store] {
                    let [x, y, z, w] = values.each_ref().map(String::as_str);
                    let put = k.store_quad(store, &format!("at + {c}"), [x, y, z, w], None);
                    let _ = writeln!(text, "if ({c} < {width}) {{ {} }}", put.trim_end());
                    continue;
                }
                for (n, value) in values.iter().enumerate() {
                    let put = k.store(store, &format!("at + {c} + {n}u"), value);
                    let _ = writeln!(text, "if ({c} + {n}u < {width}) {{ {} }}", put.trim_end());
                }
            }
            text.push_str("}\n}\n");
        }
        text.push_str("}\n");
        text
    }
}

/// A float as it is computed with, from what a load gives.
pub(super) fn as_f32(dtype: DType, text: &str) -> String {
    match dtype {
        DType::F16 => format!("wg_from_f16({text})"),
        DType::BF16 => format!("wg_from_bf16({text})"),
        _ => text.to_owned(),
    }
}
