//! Attention of f32: each number, scaled by a power of two, as a high half and a low one of what is left, times 2048.
//!
//! An own row has a scale of its own, a tile of the other side's rows one for all; both bring the largest number to
//! `2^14 .. 2^15`, and lanes undo them where they have the scores. Of three products the two with a low part have sums
//! of their own. What a unit sums it rounds toward zero, so its sums begin anew with every tile, and are added to the
//! result's in plain f32. A block whose numbers leave the range in which all this is exact enough is marked, and
//! computed by the tiles that follow.

use std::fmt::Write as _;

use super::{EDGE, Sums, Units};
use crate::emit::attention::Goal;

/// Statements that split the vector `y` into elements `at` of the arrays `to`. Drivers fold the conversion to f16 and
/// back away, so the bits of the high parts pass through a mask.
pub(super) fn parts(y: &str, to: &str, at: &str) -> String {
    format!(
        "let y = {y};\n\
         let bits = vec2<u32>(pack2x16float(y.xy), pack2x16float(y.zw)) & vec2<u32>(all);\n\
         let hi = vec4<f32>(unpack2x16float(bits.x), unpack2x16float(bits.y));\n\
         {to}t[{at}] = vec4<f16>(hi);\n{to}l[{at}] = vec4<f16>((y - hi) * 2048.0);\n"
    )
}

impl Units<'_, '_> {
    /// Workgroup memory and functions for sizes and scales: of own rows, and of each tile by subgroups.
    pub(super) fn sizes(&self) -> String {
        format!(
            "var<workgroup> most: array<atomic<u32>, {}>;\nvar<workgroup> tm: array<vec4<f32>, 2>;\n\
             fn up_of(size: f32) -> f32 {{\n\
             return bitcast<f32>(u32(clamp(141 - i32(bitcast<u32>(size) >> 23u), -126, 126) + 127) << 23u);\n}}\n\
             fn down_of(up: f32) -> f32 {{ return bitcast<f32>(0x7f000000u - bitcast<u32>(up)); }}\n\
             fn fine(size: f32, low: u32, high: u32) -> bool {{\n\
             return size == 0.0 || (size >= bitcast<f32>(low) && size <= bitcast<f32>(high));\n}}\n",
            self.staged()
        )
    }

    /// Whether the largest number `size` of operand `i` is one with which nothing overflows, and nothing that counts
    /// underflows: `2^-40 .. 2^40`, of a result's gradient `2^-50 .. 2^60`.
    fn fine(&self, i: usize, size: &str) -> String {
        let [low, high] = if i == self.grad() { [-50, 60] } else { [-40, 40] }.map(|e: i32| (127 + e) << 23);
        format!("fine({size}, {low:#x}u, {high:#x}u)")
    }

    /// The sizes of own rows of operand `i`, block `h` of each subgroup, from its registers.
    pub(super) fn kept_sizes(&self, i: usize, h: usize) -> String {
        let (own, across) = (self.staged(), self.features(i) / 4);
        let total = own * across;
        let mut text =
            format!("if (lane < {own}u) {{ atomicStore(&most[lane], 0u); }}\nworkgroupBarrier();\n");
        for t in 0..total.div_ceil(self.wg()) {
            let unit = format!("(lane + {}u)", t * self.wg());
            let some =
                if (t + 1) * self.wg() > total { format!("if ({unit} < {total}u) ") } else { String::new() };
            let _ = writeln!(
                text,
                "{some}{{\nlet m = abs(w{i}_{t});\n\
                 atomicMax(&most[{unit} / {across}u], bitcast<u32>(max(max(m.x, m.y), max(m.z, m.w))));\n}}"
            );
        }
        let fine = self.fine(i, &format!("largest{i}"));
        let _ = write!(
            text,
            "workgroupBarrier();\nvar size = 0u;\n\
             for (var r = sub; r < {own}u; r += 32u) {{ size = max(size, atomicLoad(&most[r])); }}\n\
             largest{i} = max(largest{i}, bitcast<f32>(subgroupMax(size)));\nsure = sure && {fine};\n"
        );
        let _ = writeln!(text, "up{i}_{h} = up_of(bitcast<f32>(atomicLoad(&most[warp * {EDGE}u + mine])));");
        text
    }

    /// The sizes of the tiles that are in registers, by subgroups.
    pub(super) fn stream_sizes(&self) -> String {
        let mut text = String::new();
        for (n, i) in self.streams().into_iter().enumerate() {
            let count = (self.form.wide * self.features(i) / 4).div_ceil(self.wg());
            text.push_str("{\nvar m = vec4<f32>();\n");
            for t in 0..count {
                let _ = writeln!(text, "m = max(m, abs(w{i}_{t}));");
            }
            let _ = writeln!(
                text,
                "let size = subgroupMax(bitcast<u32>(max(max(m.x, m.y), max(m.z, m.w))));\n\
                 if (sub == 0u) {{ tm[{n}u][warp] = bitcast<f32>(size); }}\n}}"
            );
        }
        text
    }

    /// The scales of the tiles, what undoes them, and whether all is in range.
    pub(super) fn stream_scales(&self) -> String {
        let (kept, [first, second]) = (self.kept(), self.streams());
        let mut text = String::new();
        for (n, i) in [first, second].into_iter().enumerate() {
            let _ = writeln!(
                text,
                "let sizes{i} = tm[{n}u];\n\
                 let size{i} = max(max(sizes{i}.x, sizes{i}.y), max(sizes{i}.z, sizes{i}.w));\n\
                 let up{i} = up_of(size{i});\nlet down{i} = down_of(up{i});"
            );
        }
        // Scores are off by 2^-43 of this beside what f32 is off by anyway: 2^-25.
        let _ = writeln!(
            text,
            "sure = sure && largest{} * size{first} * factor <= 262144.0 && {} && {};",
            kept[0],
            self.fine(first, &format!("size{first}")),
            self.fine(second, &format!("size{second}"))
        );
        for h in self.blocks() {
            let _ = writeln!(text, "let factor{h} = factor * down_of(up{}_{h}) * down{first};", kept[0]);
            let _ = match self.goal {
                Goal::Result | Goal::Keys { keys: false, .. } => Ok(()),
                // Of a query's own size.
                Goal::Queries => writeln!(text, "let slope{h} = down{second};"),
                Goal::Keys { .. } => {
                    writeln!(text, "let slope{h} = down_of(up{}_{h}) * down{second};", kept[1])
                }
            };
        }
        text
    }

    /// As [`Units::products`] does. High parts of every 16 features are a sum of their own: what units cut off of long
    /// ones shows where scores are large, or where gradients of weights, all of one sign, meet the sum that they cancel.
    pub(super) fn split_products(&self, name: &str, kept: usize, stream: usize) -> String {
        let (stride, from, across) = (self.stride(stream), self.from(stream), self.form.wide / EDGE);
        let mut text = String::new();
        for h in self.blocks() {
            for j in 0..across {
                let _ = writeln!(
                    text,
                    "var {name}{h}_{j} = coop_mat16x16<f32, C>();\nvar r{name}{h}_{j} = coop_mat16x16<f32, C>();"
                );
            }
        }
        for kk in 0..self.features(stream) / EDGE {
            text.push_str("{\n");
            for j in 0..across {
                let _ = writeln!(text, "let i{j} = {}u;", from + EDGE * j * stride + kk * 4);
                for (part, m) in [("t", "m"), ("l", "n")] {
                    let _ = writeln!(
                        text,
                        "let {m}{j} = coopLoad<coop_mat16x16<f16, B>>(&t{part}[i{j}], {stride}u);"
                    );
                }
            }
            for j in 0..across {
                for h in self.blocks() {
                    let [high, low] = ["t", "l"].map(|part| self.kept_matrix(part, kept, h, kk));
                    let c = format!("{name}{h}_{j}");
                    let _ = writeln!(
                        text,
                        "r{c} = coopMultiplyAdd({low}, m{j}, r{c});\nvar f{h}_{j} = coop_mat16x16<f32, C>();\n\
                         f{h}_{j} = coopMultiplyAdd({high}, m{j}, f{h}_{j});\n{c} = {c} + f{h}_{j};\n\
                         r{c} = coopMultiplyAdd({high}, n{j}, r{c});"
                    );
                }
            }
            text.push_str("}\n");
        }
        for h in self.blocks() {
            for j in 0..across {
                let c = format!("{name}{h}_{j}");
                let _ = writeln!(text, "{c} = {c} + r{c} * 0.00048828125;");
            }
        }
        text
    }

    /// As [`Units::add`] does: sums of this tile alone, added to those before.
    pub(super) fn split_add(&self, sums: &Sums, weights: &str) -> String {
        let (stride, from) = (self.stride(sums.of), self.from(sums.of));
        let name = sums.name;
        let mut text = String::from("{\n");
        for h in self.blocks() {
            // What weights were multiplied with, and the tile.
            let undo = match (self.goal, name) {
                (Goal::Result, _) => "0.0078125".to_owned(),
                (_, "v") => "0.00006103515625".to_owned(),
                _ => format!("down_of(unit{h})"),
            };
            let _ = writeln!(text, "let undo{h} = {undo} * down{};", sums.of);
        }
        for j in 0..self.features(sums.of) / EDGE {
            text.push_str("{\n");
            for h in self.blocks() {
                let _ = writeln!(
                    text,
                    "var c{h} = coop_mat16x16<f32, C>();\nvar d{h} = coop_mat16x16<f32, C>();"
                );
            }
            for kk in 0..self.form.wide / EDGE {
                let _ = writeln!(text, "let i{kk} = {}u;", from + EDGE * kk * stride + j * 4);
                for (part, m) in [("t", "m"), ("l", "n")] {
                    let _ = writeln!(
                        text,
                        "let {m}{kk} = coopLoadT<coop_mat16x16<f16, B>>(&t{part}[i{kk}], {stride}u);"
                    );
                }
                for h in self.blocks() {
                    let _ = writeln!(
                        text,
                        "d{h} = coopMultiplyAdd({weights}l{h}_{kk}, m{kk}, d{h});\n\
                         c{h} = coopMultiplyAdd({weights}{h}_{kk}, m{kk}, c{h});\n\
                         d{h} = coopMultiplyAdd({weights}{h}_{kk}, n{kk}, d{h});"
                    );
                }
            }
            for h in self.blocks() {
                let _ = writeln!(
                    text,
                    "c{h} = c{h} + d{h} * 0.00048828125;\n{name}{h}_{j} = {name}{h}_{j} + c{h} * undo{h};"
                );
            }
            text.push_str("}\n");
        }
        text.push_str("}\n");
        text
    }
}
