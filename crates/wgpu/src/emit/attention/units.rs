//! The text of an attention's kernel on units that multiply matrices of 16 by 16 halves.
//!
//! A subgroup owns 16 or 32 rows alone: scores pass through a strip of workgroup memory that is its own, from matrices
//! to lanes, two lanes a row, and weights as halves back to matrices, so that only the tiles of the other side's rows
//! are shared by the workgroup. Own rows' features stay in matrices. Accumulators of the result fade only where a row's
//! scores have grown by 2^8, through the strip. Gradients of scores are halves of a size that the largest of a
//! subgroup's rows so far gives; accumulators are multiplied where it grows.

mod split;
mod staging;
mod weights;

use std::fmt::Write as _;

use wgrad_graph::{Fast, Result};

use super::super::kernel::Kernel;
use super::{Goal, Marks, ROWS, Site, Touch};
use crate::choose::{self, Strips};
use crate::launch::{Launch, On, Trusted};

/// Rows of a matrix.
const EDGE: usize = 16;

/// One kernel.
pub(super) struct Units<'s, 'a> {
    site: &'s Site<'a>,
    goal: Goal,
    form: Strips,
}

/// A result's sums, in matrices `name`, of rows of one stream.
struct Sums {
    name: &'static str,
    store: usize,
    /// Operand whose rows are summed.
    of: usize,
}

impl<'s, 'a> Units<'s, 'a> {
    pub(super) fn new(site: &'s Site<'a>, goal: Goal) -> Units<'s, 'a> {
        let kind = match goal {
            Goal::Result => choose::Owned::Result,
            Goal::Queries => choose::Owned::Queries,
            Goal::Keys { .. } => choose::Owned::Keys,
        };
        Units { site, goal, form: choose::attention_strips(kind, site.heads.d.max(site.heads.e), site.split) }
    }

    /// Whether its workgroup fits the device.
    pub(super) fn fits(&self) -> bool {
        let Strips { warps, wide, .. } = self.form;
        let parts = self.parts().len();
        let strips = warps * EDGE * (self.line() * 16 + self.weights() * 8 * parts);
        let stats = if self.goal.owns_queries() { 0 } else { wide * 8 };
        let sizes = if self.site.split { (self.staged() + 8) * 4 } else { 0 };
        let bytes = strips + stats + sizes + self.room().next_multiple_of(2) * 8 * parts;
        let caps = self.site.cx.caps;
        bytes <= caps.shared_bytes && (wide..=caps.max_invocations as usize).contains(&self.wg())
    }

    /// Rows that a workgroup owns.
    pub(super) fn own(&self) -> usize {
        self.form.rows * self.form.warps
    }

    /// Whether tiles are loaded when they are wanted: those of f32 take 32 registers more if they are on their way before.
    fn late(&self) -> bool {
        self.site.split
    }

    /// Whose parts of numbers lie in workgroup memory: halves are whole, f32 a high and a low part.
    fn parts(&self) -> &'static [&'static str] {
        if self.site.split { &["t", "l"] } else { &["t"] }
    }

    /// Own rows that are staged at once: a block of each subgroup.
    fn staged(&self) -> usize {
        self.form.warps * EDGE
    }

    fn wg(&self) -> usize {
        self.form.warps * 32
    }

    /// Blocks of 16 rows of a subgroup.
    fn blocks(&self) -> std::ops::Range<usize> {
        0..self.form.rows / EDGE
    }

    /// Vectors of a line of numbers in the strip.
    fn line(&self) -> usize {
        self.form.wide / 4 + 1
    }

    /// Vectors of a line of weights.
    fn weights(&self) -> usize {
        self.form.wide / 4 + 2
    }

    /// Vectors that a lane has of a block's line.
    fn each(&self) -> usize {
        self.form.wide / 8
    }

    fn grad(&self) -> usize {
        self.site.attend.rest()
    }

    fn width(&self, i: usize) -> &'static str {
        if i == 0 || i == 1 { "d" } else { "e" }
    }

    /// Features of an operand, in whole matrices.
    fn features(&self, i: usize) -> usize {
        let heads = self.site.heads;
        (if i == 0 || i == 1 { heads.d } else { heads.e }).next_multiple_of(EDGE)
    }

    /// Vectors between an operand's rows in workgroup memory.
    fn stride(&self, i: usize) -> usize {
        self.features(i) / 4 + 2
    }

    /// The operands whose rows stay.
    fn kept(&self) -> Vec<usize> {
        match self.goal {
            Goal::Result => vec![0],
            Goal::Queries => vec![0, self.grad()],
            Goal::Keys { keys: true, .. } => vec![1, 2],
            Goal::Keys { .. } => vec![1],
        }
    }

    /// The operands that go by: of the scores, and the other.
    fn streams(&self) -> [usize; 2] {
        if self.goal.owns_queries() { [1, 2] } else { [0, self.grad()] }
    }

    /// Where a stream's tile begins.
    fn from(&self, i: usize) -> usize {
        let [first, _] = self.streams();
        if i == first { 0 } else { self.form.wide * self.stride(first) }
    }

    /// Vectors of the tiles.
    fn room(&self) -> usize {
        let [a, b] = self.streams().map(|i| self.stride(i));
        let kept = self.kept().into_iter().map(|i| self.stride(i) * self.staged()).max().unwrap_or(0);
        (self.form.wide * (a + b)).max(kept)
    }

    fn sums(&self) -> Vec<Sums> {
        let sums = |name, store, of| Sums { name, store, of };
        match self.goal {
            Goal::Result => vec![sums("o", 0, 2)],
            Goal::Queries => vec![sums("o", 0, 1)],
            Goal::Keys { keys, values } => {
                let mut all = Vec::new();
                all.extend(values.then(|| sums("v", 2, self.grad())));
                all.extend(keys.then(|| sums("o", 1, 0)));
                all
            }
        }
    }

    fn own_rows(&self) -> &'static str {
        if self.goal.owns_queries() { "l" } else { "s" }
    }

    fn other_rows(&self) -> &'static str {
        if self.goal.owns_queries() { "s" } else { "l" }
    }

    /// What all lanes of a subgroup wait at, before they read what others of them wrote.
    fn meet(&self) -> &'static str {
        "subgroupBarrier();\n"
    }

    pub(super) fn launch(&self, at: [usize; 3], grid: [u32; 3], flops: u64, marks: Marks) -> Result<Launch> {
        let mut k = Kernel::new(self.site.cx);
        let path = if self.site.split { Fast::SplitAttention } else { Fast::CooperativeAttention };
        k.on = On::Units(Trusted { path, windows: false });
        k.ordered = true;
        self.site.note(self.goal, &mut k);
        if self.site.split {
            marks.note(&mut k);
        }
        let place = self.site.place(self.goal, &mut k, at, self.own());
        let start = self.start(&mut k);
        let mut head =
            if self.goal.owns_queries() { "" } else { "head = group_of * ratio + turn_of;\n" }.to_owned();
        if !self.late() {
            head.push_str(&self.loads(&mut k, "begin"));
        }
        let tile = self.tile(&mut k);
        let mut finish = self.finish(&mut k);
        if self.site.split {
            let rows = self.own_rows();
            for at in (0..self.own()).step_by(ROWS) {
                let mark = marks.mark(&mut k, at);
                let _ = writeln!(
                    finish,
                    "if (lane == 0u && live && own0 + {at}u < {rows}) {{ {mark} = select(1u, 0u, sure); }}"
                );
            }
        }
        let extra = self.declared(&mut k);
        let regions = [
            ("place", place.as_str()),
            ("start", &start),
            ("head", &head),
            ("tile", &tile),
            ("finish", &finish),
        ];
        let file = wgrad_wgsl::ATTENTION_TILE.replace("t0 += 64u", &format!("t0 += {}u", self.form.wide));
        k.finish(&file, &extra, &regions, grid, flops)
    }

    fn declared(&self, k: &mut Kernel<'a>) -> String {
        let Strips { warps, wide, .. } = self.form;
        // Arrays of whole 16 bytes, so that every one begins at such a place.
        let mut text = format!(
            "const WG = {}u;\nvar<workgroup> te: array<vec4<f32>, {}>;\n\
             ",
            self.wg(),
            warps * EDGE * self.line()
        );
        for part in self.parts() {
            let (weights, room) = (warps * EDGE * self.weights(), self.room().next_multiple_of(2));
            let _ = writeln!(
                text,
                "var<workgroup> p{part}: array<vec4<f16>, {weights}>;\n\
                 var<workgroup> t{part}: array<vec4<f16>, {room}>;"
            );
        }
        if self.site.split {
            text.push_str(&self.sizes());
        }
        if !self.goal.owns_queries() {
            let _ = writeln!(text, "var<workgroup> ts: array<vec4<f32>, {}>;", wide / 2);
        }
        // WGSL's checks take its result for uniform, as it is within a subgroup, and would not take the vote itself.
        text.push_str("fn agreed(vote: bool) -> bool {\nif (vote) { return true; }\nreturn false;\n}\n");
        text.push_str(&self.limit(k));
        text
    }

    fn start(&self, k: &mut Kernel<'a>) -> String {
        let Strips { rows, wide, .. } = self.form;
        let (line, weights, each, own) = (self.line(), self.weights(), self.each(), self.own_rows());
        let mut text = format!(
            "let warp = lane / 32u;\nlet sub = lane % 32u;\nlet wr = warp * {rows}u;\nlet mine = lane & 15u;\n\
             let side = ((lane >> 4u) & 1u) * {each}u;\nlet eb = warp * {}u;\nlet er = eb + mine * {line}u + side;\n\
             let pb = warp * {}u;\nlet pr = pb + mine * {weights}u + side;\n",
            EDGE * line,
            EDGE * weights
        );
        for h in self.blocks() {
            let _ = writeln!(text, "let row{h} = own0 + wr + {}u + mine;", EDGE * h);
        }
        if self.site.split {
            // No driver knows that this keeps every bit.
            text.push_str("let all = select(0u, 0xffffffffu, total > 0u);\nvar sure = true;\n");
        }
        for i in self.kept() {
            let (count, stride) = (self.staged(), self.stride(i));
            text.push_str(&self.kept_matrices(i));
            for h in self.blocks() {
                let from = match self.form.rows {
                    EDGE => "own0".to_owned(),
                    rows => format!("own0 + {}u + $r / {EDGE}u * {}u", EDGE * h, rows - EDGE),
                };
                text.push_str("{\n");
                text.push_str(&self.registers(i, count));
                text.push_str(&self.load(k, i, [&from, own], count));
                if self.site.split {
                    text.push_str(&self.kept_sizes(i, h));
                }
                text.push_str(&self.put(i, [&from, own], count, 0));
                text.push_str("workgroupBarrier();\n");
                for kk in 0..self.features(i) / EDGE {
                    let _ = writeln!(text, "let i{h}_{kk} = warp * {EDGE}u * {stride}u + {}u;", kk * 4);
                    for part in self.parts() {
                        let name = self.kept_matrix(part, i, h, kk);
                        let _ = writeln!(
                            text,
                            "{name} = coopLoadT<coop_mat16x16<f16, A>>(&t{part}[i{h}_{kk}], {stride}u);"
                        );
                    }
                }
                text.push_str("workgroupBarrier();\n}\n");
            }
        }
        for sums in self.sums() {
            for h in self.blocks() {
                for j in 0..self.features(sums.of) / EDGE {
                    let _ = writeln!(text, "var {}{h}_{j} = coop_mat16x16<f32, C>();", sums.name);
                }
            }
        }
        for h in self.blocks() {
            match self.goal {
                Goal::Result => {
                    let _ = writeln!(text, "var top{h} = UNSEEN * 0.5;\nvar sum{h} = 0.0;");
                }
                Goal::Queries => {
                    for (name, i) in self.stats() {
                        let [.., r, _] = self.site.view(k, i);
                        let at = format!("{} + min(row{h}, l - 1u) * {r}", self.site.base(k, i));
                        let load = k.load(self.site.ins[i].0, &at);
                        // Gradients of a query's scores are in units of its row of the result's gradient.
                        let by = match (self.site.split, name) {
                            (true, "delta") => format!(" * up{}_{h}", self.grad()),
                            _ => Self::base_two(name).to_owned(),
                        };
                        let _ = writeln!(text, "let {name}{h} = {load}{by};");
                    }
                }
                Goal::Keys { .. } => {}
            }
            if !self.site.split && self.goal != Goal::Result && self.goal.slopes() {
                // 2^-100: less than any gradient that counts.
                let _ = writeln!(text, "var peak{h} = bitcast<f32>(0x0d800000u);");
            }
        }
        for i in self.streams() {
            text.push_str(&self.registers(i, wide));
        }
        if !self.goal.owns_queries() {
            for (name, _) in self.stats() {
                let _ = writeln!(text, "var w{name} = 0.0;");
            }
        }
        text
    }

    fn kept_matrices(&self, i: usize) -> String {
        let mut text = String::new();
        for h in self.blocks() {
            for kk in 0..self.features(i) / EDGE {
                for part in self.parts() {
                    let name = self.kept_matrix(part, i, h, kk);
                    let _ = writeln!(text, "var {name}: coop_mat16x16<f16, A>;");
                }
            }
            if self.site.split {
                let _ = writeln!(text, "var up{i}_{h} = 0.0;");
            }
        }
        if self.site.split {
            let _ = writeln!(text, "var largest{i} = 0.0;");
        }
        text
    }

    fn kept_matrix(&self, part: &str, i: usize, h: usize, kk: usize) -> String {
        format!("{}{i}_{h}_{kk}", if part == "l" { "n" } else { "k" })
    }

    /// Products of kept rows with a stream's rows into matrices `name`.
    fn products(&self, name: &str, kept: usize, stream: usize) -> String {
        if self.site.split {
            return self.split_products(name, kept, stream);
        }
        let (stride, from, across) = (self.stride(stream), self.from(stream), self.form.wide / EDGE);
        let mut text = String::new();
        for h in self.blocks() {
            for j in 0..across {
                let _ = writeln!(text, "var {name}{h}_{j} = coop_mat16x16<f32, C>();");
            }
        }
        for kk in 0..self.features(stream) / EDGE {
            text.push_str("{\n");
            for j in 0..across {
                let _ = writeln!(
                    text,
                    "let i{j} = {}u;\nlet m{j} = coopLoad<coop_mat16x16<f16, B>>(&tt[i{j}], {stride}u);",
                    from + EDGE * j * stride + kk * 4
                );
            }
            for j in 0..across {
                for h in self.blocks() {
                    let _ = writeln!(
                        text,
                        "{name}{h}_{j} = coopMultiplyAdd(k{kept}_{h}_{kk}, m{j}, {name}{h}_{j});"
                    );
                }
            }
            text.push_str("}\n");
        }
        text
    }

    /// Adds weights, matrices `weights`, times a stream's rows to sums.
    fn add(&self, sums: &Sums, weights: &str) -> String {
        if self.site.split {
            return self.split_add(sums, weights);
        }
        let (stride, from) = (self.stride(sums.of), self.from(sums.of));
        let (name, across) = (sums.name, self.features(sums.of) / EDGE);
        let mut text = String::new();
        for kk in 0..self.form.wide / EDGE {
            text.push_str("{\n");
            for j in 0..across {
                let _ = writeln!(
                    text,
                    "let i{j} = {}u;\nlet m{j} = coopLoadT<coop_mat16x16<f16, B>>(&tt[i{j}], {stride}u);",
                    from + EDGE * kk * stride + j * 4
                );
            }
            for j in 0..across {
                for h in self.blocks() {
                    let _ = writeln!(
                        text,
                        "{name}{h}_{j} = coopMultiplyAdd({weights}{h}_{kk}, m{j}, {name}{h}_{j});"
                    );
                }
            }
            text.push_str("}\n");
        }
        text
    }

    fn tile(&self, k: &mut Kernel<'a>) -> String {
        let (other, wide) = (self.other_rows(), self.form.wide);
        let mut text = String::new();
        if self.late() {
            text.push_str(&self.loads(k, "t0"));
        }
        if self.site.split {
            text.push_str(&self.stream_sizes());
        }
        text.push_str("workgroupBarrier();\n");
        if self.site.split {
            text.push_str(&self.stream_scales());
        }
        for i in self.streams() {
            text.push_str(&self.put(i, ["t0", other], wide, self.from(i)));
        }
        if !self.goal.owns_queries() {
            let _ = writeln!(text, "if (lane < {wide}u) {{");
            for (n, (name, _)) in self.stats().into_iter().enumerate() {
                let from = n * wide / 4;
                let two = Self::base_two(name);
                let _ = writeln!(text, "ts[{from}u + (lane >> 2u)][lane & 3u] = w{name}{two};");
            }
            text.push_str("}\n");
        }
        text.push_str("workgroupBarrier();\n");
        if !self.late() {
            text.push_str(&self.loads(k, &format!("(t0 + {wide}u)")));
        }
        let (kept, [first, second]) = (self.kept(), self.streams());
        text.push_str(&self.products("s", kept[0], first));
        for h in self.blocks() {
            text.push_str(&self.spread("s", "x", h));
            text.push_str(&self.limited(h));
            text.push_str(&match self.goal {
                Goal::Result => self.risen(h),
                _ => self.weighed(h),
            });
            // The strip is read before it is written again.
            if self.goal == Goal::Result || self.of_values().is_some() {
                let by = match (self.site.split, self.goal) {
                    (false, _) => "",
                    (true, Goal::Result) => " * 128.0",
                    (true, _) => " * 16384.0",
                };
                text.push_str(&self.gather("x", by, "p", h));
            } else {
                text.push_str(self.meet());
            }
            if self.goal == Goal::Result {
                text.push_str(&self.faded(h));
            }
        }
        if let Some(sums) = self.of_values() {
            text.push_str(&self.add(&sums, "p"));
        }
        if self.goal == Goal::Result || !self.goal.slopes() {
            return text;
        }
        text.push_str(&self.products("g", kept[1], second));
        for h in self.blocks() {
            text.push_str(&self.spread("g", "y", h));
            text.push_str(&self.sloped(h));
            text.push_str(&self.gather("y", &format!(" * unit{h}"), "q", h));
        }
        for sums in self.sums().iter().filter(|sums| sums.name == "o") {
            text.push_str(&self.add(sums, "q"));
        }
        text
    }

    /// What the weights themselves are multiplied with.
    fn of_values(&self) -> Option<Sums> {
        let values = |sums: &Sums| self.goal == Goal::Result || sums.name == "v";
        self.sums().into_iter().find(values)
    }

    fn finish(&self, k: &mut Kernel<'a>) -> String {
        let mut text = String::from("workgroupBarrier();\n");
        if self.goal == Goal::Result {
            for h in self.blocks() {
                let none =
                    if self.site.attend.masked { format!("sum{h} == 0.0") } else { "s == 0u".to_owned() };
                let store = k.store(1, &format!("pair * l + row{h}"), &format!("log{h}"));
                let _ = write!(
                    text,
                    "sum{h} = sum{h} + subgroupShuffleXor(sum{h}, 16u);\n\
                     let share{h} = select(1.0 / sum{h}, 0.0, {none});\n\
                     let log{h} = select((top{h} + log2(sum{h})) * 0.6931471805599453, 3.4028234663852886e+38f, \
                     sum{h} == 0.0);\nif (live && side == 0u && row{h} < l) {{ {} }}\n",
                    store.trim_end()
                );
            }
        }
        for sums in self.sums() {
            text.push_str(&self.written(k, &sums));
        }
        text
    }

    /// Writes sums to own rows of a result.
    fn written(&self, k: &mut Kernel<'a>, sums: &Sums) -> String {
        let Sums { name, store, of } = *sums;
        let (rows, width, across) = (self.own_rows(), self.width(of), self.features(of) / EDGE);
        let (wide, at_once) = (self.form.wide, self.form.wide / EDGE);
        let fours = self.site.stored(store) == Touch::Quad && k.writes_quads(store);
        let mut text = String::new();
        for h in self.blocks() {
            for from in (0..across).step_by(at_once) {
                text.push_str(
                    &self.strip((from..across.min(from + at_once)).map(|j| format!("{name}{h}_{j}"))),
                );
                text.push_str(self.meet());
                let by = match (self.goal, name) {
                    (Goal::Result, _) => {
                        let row = format!("(unit / {}u)", wide / 4);
                        format!("subgroupShuffle(share{h}, {row})")
                    }
                    (Goal::Queries, _) if self.site.split => {
                        let row = format!("(unit / {}u)", wide / 4);
                        format!("(scale * down_of(subgroupShuffle(up{}_{h}, {row})))", self.grad())
                    }
                    (_, "o") if self.site.split => "scale".to_owned(),
                    (_, "o") => format!("(peak{h} * 0.00048828125 * scale)"),
                    _ => "1.0".to_owned(),
                };
                let _ = write!(
                    text,
                    "for (var t = 0u; t < {}u; t += 1u) {{\nlet unit = sub + t * 32u;\n\
                     let i = own0 + wr + {}u + unit / {}u;\nlet c = {}u + unit % {}u * 4u;\n\
                     let y = te[eb + unit / {}u * {}u + unit % {}u] * {by};\n\
                     if (live && i < {rows} && c < {width}) {{\nlet at = (pair * {rows} + i) * {width} + c;\n",
                    wide / 8,
                    EDGE * h,
                    wide / 4,
                    from * EDGE,
                    wide / 4,
                    wide / 4,
                    self.line(),
                    wide / 4
                );
                if fours {
                    text.push_str(&k.store_quad(store, "at", ["y.x", "y.y", "y.z", "y.w"], None));
                } else {
                    for (n, part) in ["y.x", "y.y", "y.z", "y.w"].iter().enumerate() {
                        text.push_str(&k.store(store, &format!("at + {n}u"), part));
                    }
                }
                text.push_str("}\n}\n");
                text.push_str(self.meet());
            }
        }
        text
    }
}
