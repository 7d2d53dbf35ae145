//! What lanes compute of scores: weights, and gradients of scores.

use std::fmt::Write as _;

use super::{EDGE, Units};
use crate::emit::attention::Goal;

impl Units<'_, '_> {
    /// Scores scaled and hidden, in units of the logarithm to base 2.
    pub(super) fn limited(&self, h: usize) -> String {
        let wide = self.form.wide;
        let (mut all, mut plain) = (String::new(), String::new());
        for c in 0..self.each() {
            let by = if self.site.split { format!("factor{h}") } else { "factor".to_owned() };
            let _ = writeln!(all, "x{h}_{c} = limit(x{h}_{c} * {by}, row{h}, t0 + (side + {c}u) * 4u);");
            let _ = writeln!(plain, "x{h}_{c} = x{h}_{c} * {by};");
        }
        if self.site.attend.masked {
            return all;
        }
        let first = format!("own0 + wr + {}u", EDGE * h);
        // Inside, everything is seen.
        let causal = match (self.site.attend.causal, self.goal.owns_queries()) {
            (false, _) => String::new(),
            (true, true) => format!(" || t0 + {}u > {first}", wide - 1),
            (true, false) => format!(" || {first} + {}u > t0", EDGE - 1),
        };
        format!(
            "if (t0 + {wide}u > {} || {first} + {EDGE}u > {}{causal}) {{\n{all}}} else {{\n{plain}}}\n",
            self.other_rows(),
            self.own_rows()
        )
    }

    /// The largest of a block's vectors, by `each`.
    pub(super) fn largest(&self, from: &str, h: usize, each: &str) -> String {
        let mut text = format!("var m{from}{h} = {each}({from}{h}_0);\n");
        for c in 1..self.each() {
            let _ = writeln!(text, "m{from}{h} = max(m{from}{h}, {each}({from}{h}_{c}));");
        }
        let _ = writeln!(
            text,
            "var n{from}{h} = max(max(m{from}{h}.x, m{from}{h}.y), max(m{from}{h}.z, m{from}{h}.w));"
        );
        text
    }

    /// Weights relative to the row's top, and that top where it has risen much.
    pub(super) fn risen(&self, h: usize) -> String {
        let mut text = self.largest("x", h, "");
        let _ = write!(
            text,
            "nx{h} = max(nx{h}, subgroupShuffleXor(nx{h}, 16u));\nlet none{h} = top{h} <= UNSEEN * 0.5;\n\
             let next{h} = select(top{h}, max(nx{h}, top{h}), none{h} || nx{h} > top{h} + 8.0);\n\
             let fade{h} = exp2(top{h} - next{h});\nlet grown{h} = !none{h} && next{h} > top{h};\n\
             top{h} = next{h};\nvar total{h} = vec4<f32>();\n"
        );
        for c in 0..self.each() {
            let _ = writeln!(
                text,
                "x{h}_{c} = exp2(x{h}_{c} - vec4<f32>(top{h}));\ntotal{h} = total{h} + x{h}_{c};"
            );
        }
        let _ = writeln!(
            text,
            "sum{h} = sum{h} * fade{h} + ((total{h}.x + total{h}.y) + (total{h}.z + total{h}.w));"
        );
        let _ = writeln!(text, "let any{h} = agreed(subgroupAny(grown{h}));");
        text
    }

    /// Sums of a block whose tops have risen, through the strip.
    pub(super) fn faded(&self, h: usize) -> String {
        let across = self.features(2) / EDGE;
        let at_once = self.form.wide / EDGE;
        let mut text = String::new();
        let _ = writeln!(text, "if (any{h}) {{");
        for from in (0..across).step_by(at_once) {
            let some = from..across.min(from + at_once);
            text.push_str(&self.strip(some.clone().map(|j| format!("o{h}_{j}"))));
            text.push_str(self.meet());
            for c in 0..self.each() {
                let _ = writeln!(text, "te[er + {c}u] = te[er + {c}u] * fade{h};");
            }
            text.push_str(self.meet());
            text.push_str("{\n");
            for (n, j) in some.enumerate() {
                let _ = writeln!(
                    text,
                    "let e{n} = eb + {}u;\no{h}_{j} = coopLoadT<coop_mat16x16<f32, C>>(&te[e{n}], {}u);",
                    n * 4,
                    self.line()
                );
            }
            text.push_str("}\n");
            text.push_str(self.meet());
        }
        text.push_str("}\n");
        text
    }

    /// Weights from scores and the rows' logarithms.
    pub(super) fn weighed(&self, h: usize) -> String {
        let mut text = String::new();
        for c in 0..self.each() {
            let lse = match self.goal {
                Goal::Queries => format!("vec4<f32>(lse{h})"),
                _ => format!("ts[side + {c}u]"),
            };
            let _ = writeln!(text, "x{h}_{c} = exp2(x{h}_{c} - {lse});");
        }
        text
    }

    /// Gradients of scores, and what they are multiplied with to be halves.
    pub(super) fn sloped(&self, h: usize) -> String {
        let mut text = String::new();
        for c in 0..self.each() {
            let delta = match self.goal {
                Goal::Queries => format!("vec4<f32>(delta{h})"),
                _ => format!("ts[{}u + side + {c}u]", self.form.wide / 4),
            };
            let by = if self.site.split { format!(" * slope{h}") } else { String::new() };
            let _ = writeln!(
                text,
                "y{h}_{c} = select(x{h}_{c} * (y{h}_{c}{by} - {delta}), vec4<f32>(), x{h}_{c} == vec4<f32>());"
            );
        }
        text.push_str(&self.largest("y", h, "abs"));
        if self.site.split {
            // Sums are not of halves, so that each tile has a unit of its own. 2^60 is the most: what is below
            // 2^-90 is lost.
            let _ = writeln!(
                text,
                "let widest{h} = bitcast<f32>(subgroupMax(bitcast<u32>(ny{h})));\n\
                 let unit{h} = min(up_of(widest{h}), bitcast<f32>(0x5d800000u));"
            );
            return text;
        }
        // Room for eight times as much, so that sums are multiplied a few times, not at every tile.
        // 2^120 is the most: its inverse is no subnormal.
        let _ = writeln!(
            text,
            "let most{h} = subgroupMax(ny{h});\nif (most{h} > peak{h}) {{\n\
             let peak = min(bitcast<f32>(bitcast<u32>(most{h}) & 0x7f800000u) * 8.0, bitcast<f32>(0x7b800000u));\n\
             let ratio = peak{h} * bitcast<f32>(0x7f000000u - bitcast<u32>(peak));\npeak{h} = peak;"
        );
        for sums in self.sums().iter().filter(|sums| sums.name == "o") {
            for j in 0..self.features(sums.of) / EDGE {
                let _ = writeln!(text, "o{h}_{j} = o{h}_{j} * ratio;");
            }
        }
        let _ =
            writeln!(text, "}}\nlet unit{h} = bitcast<f32>(0x7f000000u - bitcast<u32>(peak{h})) * 2048.0;");
        text
    }
}
