//! How operands of a product move: from storage to registers to workgroup memory, and the unrolled
//! products.

use std::fmt::Write as _;

use super::super::kernel::Kernel;
use super::super::pointwise::XYZW;
use super::{Side, Tiles};
use crate::choose::Tile;

/// A side's loads of one step, in the direct kernel.
pub(super) struct Fragments<'s> {
    pub(super) side: &'s Side,
    pub(super) vector: bool,
    pub(super) extent: u32,
    pub(super) steps: u32,
}

impl Fragments<'_> {
    pub(super) fn load(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>) -> String {
        let side = self.side;
        let name = side.name;
        let mut out = String::new();
        let (group, steps) = match (self.vector, side.along_k) {
            (true, true) => (1, 1),
            (true, false) => (4, self.steps),
            _ => (1, self.steps),
        };
        for q in 0..steps {
            let offset = tiles.term(k, side, true, &format!("{name}k{q}"), &format!("(k0 + {q}u)"), &mut out);
            let _ = writeln!(out, "let {name}k{q} = {offset};");
            for i in (0..self.extent).step_by(group as usize) {
                let at = format!("{name}p{i} + {name}k{q}");
                let text = if self.vector { side.load_quad(k, &at) } else { side.load(k, &at) };
                let _ = writeln!(out, "let {name}{i}_{q} = {text};");
            }
        }
        out
    }
}

/// How a workgroup moves one side's tile from storage to registers to workgroup memory. Invocation
/// `lane` takes units `lane + i * wg`; fast units are neighbours in memory.
pub(super) struct Staging<'s> {
    pub(super) side: &'s Side,
    pub(super) vector: bool,
    pub(super) extent: u32,
    pub(super) bk: u32,
    pub(super) wg: u32,
    pub(super) whole: bool,
}

impl Staging<'_> {
    fn unit(&self) -> u32 {
        if self.vector { 4 } else { 1 }
    }

    /// Units along the fast axis.
    fn fast(&self) -> u32 {
        (if self.side.along_k { self.bk } else { self.extent }) / self.unit()
    }

    /// Units that one invocation moves.
    fn units(&self) -> u32 {
        self.extent * self.bk / self.unit() / self.wg
    }

    /// Distance on the slow axis between an invocation's units.
    fn apart(&self) -> u32 {
        self.wg / self.fast()
    }

    pub(super) fn place(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>) -> String {
        let name = self.side.name;
        let (at, limit) = if name == "a" { ("row0", "rows") } else { ("col0", "columns") };
        let mut out = format!(
            "let {name}f = (lane % {}u) * {}u;\nlet {name}slow = lane / {}u;\n",
            self.fast(),
            self.unit(),
            self.fast()
        );
        for i in 0..self.units() {
            let slow = format!("({name}slow + {}u)", i * self.apart());
            let (beside, along, last) = if self.side.along_k {
                (slow, format!("{name}f"), 1)
            } else {
                (format!("{name}f"), slow, self.unit())
            };
            let clamped = format!("min({at} + {beside}, {limit} - {last}u)");
            let offset = tiles.term(k, self.side, false, &format!("{name}p{i}"), &clamped, &mut out);
            let _ = if self.tabled() {
                writeln!(out, "let {name}p{i} = {name}z + {offset};")
            } else {
                let depth = tiles.term(k, self.side, true, "", &along, &mut out);
                writeln!(out, "let {name}p{i} = {name}z + {offset} + {depth};")
            };
        }
        out
    }

    /// Whether K has several digits: what each step adds stands in workgroup memory then, computed a step
    /// ahead by one invocation a `k`.
    pub(super) fn tabled(&self) -> bool {
        self.side.k.len() > 1
    }

    /// The part of the table at `slot` filled for the steps from `from` on.
    pub(super) fn table(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>, from: &str, slot: &str) -> String {
        let name = self.side.name;
        let mut out = format!("if (lane < {}u) {{\nlet kt = min({from} + lane, end - 1u);\n", self.bk);
        let offset = tiles.term(k, self.side, true, &format!("{name}t"), "kt", &mut out);
        let _ = writeln!(out, "t{name}k[{slot} + lane] = {offset};\n}}");
        out
    }

    /// The coordinate along K of unit `i` within a step.
    fn depth(&self, i: u32) -> String {
        let name = self.side.name;
        if self.side.along_k { format!("{name}f") } else { format!("({name}slow + {}u)", i * self.apart()) }
    }

    pub(super) fn registers(&self) -> String {
        let ty = if self.vector { "vec4<f32>" } else { "f32" };
        (0..self.units()).map(|i| format!("var w{}{i} = {ty}();\n", self.side.name)).collect()
    }

    /// Loads the units at `kn`; past the end of K they are 0. `first`: the table is not there yet.
    pub(super) fn load(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>, first: bool) -> String {
        let name = self.side.name;
        let mut out = String::new();
        if !self.tabled() {
            let offset = tiles.term(k, self.side, true, "", "kn", &mut out);
            let _ = writeln!(out, "let {name}k = {offset};");
        }
        let ty = if self.vector { "vec4<f32>" } else { "f32" };
        for i in 0..self.units() {
            let depth = self.depth(i);
            let at = match (self.tabled(), first) {
                (false, _) => format!("{name}p{i} + {name}k"),
                (true, false) => format!("{name}p{i} + t{name}k[slot + {depth}]"),
                (true, true) => {
                    let coord = format!("min(kn + {depth}, end - 1u)");
                    let term = tiles.term(k, self.side, true, &format!("{name}l{i}"), &coord, &mut out);
                    format!("{name}p{i} + {term}")
                }
            };
            let load = |k: &Kernel<'_>, at: &str| {
                if self.vector { self.side.load_quad(k, at) } else { self.side.load(k, at) }
            };
            if self.whole {
                let _ = writeln!(out, "w{name}{i} = {};", load(k, &at));
                continue;
            }
            let guarded = load(k, &format!("select(0u, {at}, {name}in{i})"));
            let _ = writeln!(
                out,
                "let {name}in{i} = kn + {depth} < end;\nw{name}{i} = select({ty}(), {guarded}, {name}in{i});"
            );
        }
        out
    }

    /// Puts the registers into workgroup memory: A as `ta[k][m]`, B as `tb[k][n / 4]`.
    pub(super) fn stage(&self, strides: [u32; 2]) -> String {
        let name = self.side.name;
        let mut out = String::new();
        for i in 0..self.units() {
            let slow = format!("({name}slow + {}u)", i * self.apart());
            let fast = format!("{name}f");
            for q in 0..self.unit() {
                let ahead = format!("({fast} + {q}u)");
                let (depth, beside) = if self.side.along_k { (&ahead, &slow) } else { (&slow, &ahead) };
                let value = if self.vector {
                    format!("w{name}{i}.{}", XYZW[q as usize])
                } else {
                    format!("w{name}{i}")
                };
                let _ = if name == "a" {
                    writeln!(out, "ta[{depth} * {}u + {beside}] = {value};", strides[0])
                } else if self.vector && !self.side.along_k {
                    // The whole vector at once.
                    if q == 0 {
                        writeln!(out, "tb[{depth} * {}u + {fast} / 4u] = w{name}{i};", strides[1])
                    } else {
                        Ok(())
                    }
                } else {
                    writeln!(out, "tb[{depth} * {}u + {beside} / 4u][{beside} % 4u] = {value};", strides[1])
                };
            }
        }
        out
    }
}

/// The products of one tile, unrolled: naga writes no unroll hints.
pub(super) fn multiply(tile: Tile, strides: [u32; 2]) -> String {
    let Tile { bm, bn, bk, tm, tn, .. } = tile;
    let (tx, ty) = (bn / tn, bm / tm);
    let mut out = String::new();
    for kk in 0..bk {
        out.push_str("{\n");
        for j in 0..tn / 4 {
            let _ = writeln!(out, "let b{j} = tb[{}u + tx];", kk * strides[1] + j * tx);
        }
        for i in 0..tm {
            let row = (i / 4) * ty * 4 + i % 4;
            let _ = writeln!(out, "let a{i} = ta[{}u + ty * 4u];", kk * strides[0] + row);
            for j in 0..tn / 4 {
                let _ = writeln!(out, "c{i}_{j} = fma(vec4<f32>(a{i}), b{j}, c{i}_{j});");
            }
        }
        out.push_str("}\n");
    }
    out
}
