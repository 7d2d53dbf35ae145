//! Products straight from storage, without workgroup memory. Where a subgroup's size is known, its lanes may
//! share the loads of the left factor: each loads a part of it and tells the others.

use std::fmt::Write as _;

use wgrad_graph::{Result, bail};

use super::super::fold;
use super::super::kernel::Kernel;
use super::super::pointwise::XYZW;
use super::staging::Fragments;
use super::{Piece, Tiles};
use crate::choose::{self, Direct};
use crate::launch::Launch;

impl Tiles<'_> {
    pub(super) fn direct(&self, direct: Direct, piece: &Piece) -> Result<Launch> {
        let Direct { rows, vectors, splits, lanes } = direct;
        let wg = choose::pointwise_workgroup(self.cx.caps);
        let mut k = Kernel::new(self.cx);
        let wide = self.note(&mut k, splits, false);
        let steps = if self.sizes.k.is_multiple_of(4) { 4 } else { 1 };
        let width = vectors * 4;
        let across = self.sizes.n.div_ceil((width * lanes) as usize);
        let down = piece.rows.len();
        let count = across * down * lanes as usize;
        let mut place = self.sizes_text(&mut k);
        let across_word = k.word("across", across as i64);
        let count_word = k.word("count", count as i64);
        let (row, plane) = (piece.from(&mut k, "rows", "down"), piece.from(&mut k, "planes", "group.z"));
        // Lanes that share rows have vectors side by side.
        let _ = writeln!(
            place,
            "let plane = {plane};\nlet count = {count_word};\nlet sl = at % {lanes}u;\nlet cell = at / {lanes}u;\n\
             let down = cell / {across_word};\nlet row0 = {row} * {rows}u;\n\
             let col0 = (cell - down * {across_word}) * {}u + sl * 4u;",
            width * lanes
        );
        place.push_str(&self.part(&mut k, 4, splits, "end"));
        let (text, coords) = self.batch_coords(&mut k, "z");
        place.push_str(&text);
        let mut multiply = String::new();
        let column = |i: u32| i / 4 * 4 * lanes + i % 4;
        for (side, extent) in self.sides.iter().zip([rows, width]) {
            place.push_str(&self.origin(&mut k, side, &coords));
            if side.name == "a" && lanes > 1 {
                multiply.push_str(&self.shared(&mut k, &mut place, direct, steps));
                continue;
            }
            let vector = self.vector(&k, side);
            let name = side.name;
            // One address a line along K; vectors beside K share one.
            let group = if vector && !side.along_k { 4 } else { 1 };
            for i in (0..extent).step_by(group as usize) {
                let clamped = if name == "a" {
                    format!("min(row0 + {i}u, rows - {group}u)")
                } else {
                    format!("min(col0 + {}u, columns - {group}u)", column(i))
                };
                let offset = self.term(&mut k, side, false, &format!("{name}p{i}"), &clamped, &mut place);
                let _ = writeln!(place, "let {name}p{i} = {name}z + {offset};");
            }
            let fragments = Fragments { side, vector, extent, steps };
            multiply.push_str(&fragments.load(self, &mut k));
        }
        let mut start = String::new();
        let mut store = String::new();
        for i in 0..rows {
            for j in 0..vectors {
                let _ = writeln!(start, "var c{i}_{j} = vec4<f32>();");
                let _ = writeln!(store, "finish(plane, row0 + {i}u, col0 + {}u, c{i}_{j});", column(j * 4));
            }
        }
        for q in 0..steps {
            for j in 0..vectors {
                let lanes: Vec<_> = (0..4).map(|c| self.fragment(&k, 1, j * 4 + c, q, steps)).collect();
                let whole = self.vector(&k, &self.sides[1]) && !self.sides[1].along_k;
                let text = if whole {
                    format!("b{}_{q}", j * 4)
                } else {
                    format!("vec4<f32>({})", lanes.join(", "))
                };
                let _ = writeln!(multiply, "let v{j}_{q} = {text};");
            }
            for i in 0..rows {
                let a = if lanes > 1 {
                    self.told(&k, direct, steps, i, q)
                } else {
                    self.fragment(&k, 0, i, q, steps)
                };
                let _ = writeln!(multiply, "let s{i}_{q} = {a};");
                for j in 0..vectors {
                    let _ = writeln!(multiply, "c{i}_{j} = fma(vec4<f32>(s{i}_{q}), v{j}_{q}, c{i}_{j});");
                }
            }
        }
        let finish = self.finish_text(&mut k, wide)?;
        let extra = format!("const WG = {wg}u;\nconst STEP = {steps}u;\n{finish}");
        let groups = fold(count.div_ceil(wg as usize) as u64, self.cx.caps)?;
        let grid = [groups[0], groups[1], piece.planes.len() as u32];
        if grid[2] > self.cx.caps.max_workgroups {
            bail!(Limit, "matmul", "a batch of {} is more than the device takes", self.sizes.batch);
        }
        let regions =
            [("place", place.as_str()), ("start", &start), ("multiply", &multiply), ("store", &store)];
        let file = wgrad_wgsl::MATMUL_DIRECT.replace("k0 = 0u", "k0 = begin");
        k.finish(&file, &extra, &regions, grid, self.share(piece, rows, splits))
    }

    /// Whether lanes that share rows load four of them at once, as they lie beside K.
    fn beside(&self, k: &Kernel<'_>, steps: u32) -> bool {
        self.vector(k, &self.sides[0]) && !self.sides[0].along_k && steps == 4
    }

    /// Whether they load four steps at once.
    fn along(&self, k: &Kernel<'_>) -> bool {
        self.vector(k, &self.sides[0]) && self.sides[0].along_k
    }

    /// Each lane's loads of its part of the left factor; their addresses go to `place`.
    fn shared(&self, k: &mut Kernel<'_>, place: &mut String, direct: Direct, steps: u32) -> String {
        let Direct { rows, lanes, .. } = direct;
        let side = &self.sides[0];
        let mut out = String::new();
        if self.beside(k, steps) {
            // Vector `e` is of step `e / quads`.
            let quads = rows / 4;
            for q in 0..rows / lanes {
                let e = format!("(sl + {}u)", q * lanes);
                let clamped = format!("min(row0 + {e} % {quads}u * 4u, rows - 4u)");
                let offset = self.term(k, side, false, &format!("ap{q}"), &clamped, place);
                let _ = writeln!(place, "let ap{q} = az + {offset};\nlet ae{q} = {e} / {quads}u;");
                let depth = self.term(k, side, true, &format!("ak{q}"), &format!("(k0 + ae{q})"), &mut out);
                let load = side.load_quad(k, &format!("ap{q} + {depth}"));
                let _ = writeln!(out, "let a{q} = {load};");
            }
            return out;
        }
        let whole = self.along(k);
        for q in 0..rows / lanes {
            let clamped = format!("min(row0 + sl + {}u, rows - 1u)", q * lanes);
            let offset = self.term(k, side, false, &format!("ap{q}"), &clamped, place);
            let _ = writeln!(place, "let ap{q} = az + {offset};");
        }
        for t in 0..if whole { 1 } else { steps } {
            let depth = self.term(k, side, true, &format!("ak{t}"), &format!("(k0 + {t}u)"), &mut out);
            let _ = writeln!(out, "let ak{t} = {depth};");
            for q in 0..rows / lanes {
                let at = format!("ap{q} + ak{t}");
                let load = if whole { side.load_quad(k, &at) } else { side.load(k, &at) };
                let _ = writeln!(out, "let a{q}_{t} = {load};");
            }
        }
        out
    }

    /// Element `i` beside K and `t` along K of the left factor, as the lane that loaded it tells it.
    fn told(&self, k: &Kernel<'_>, direct: Direct, steps: u32, i: u32, t: u32) -> String {
        let Direct { rows, lanes, .. } = direct;
        if self.beside(k, steps) {
            let e = t * (rows / 4) + i / 4;
            let (q, lane, c) = (e / lanes, e % lanes, XYZW[(i % 4) as usize]);
            return format!("subgroupBroadcast(a{q}.{c}, {lane}u)");
        }
        let (q, lane) = (i / lanes, i % lanes);
        match self.along(k) {
            true => format!("subgroupBroadcast(a{q}_0.{}, {lane}u)", XYZW[t as usize]),
            false => format!("subgroupBroadcast(a{q}_{t}, {lane}u)"),
        }
    }

    /// The name of element `i` beside K and `q` along K of a side's fragments.
    fn fragment(&self, k: &Kernel<'_>, side: usize, i: u32, q: u32, steps: u32) -> String {
        let side = &self.sides[side];
        let name = side.name;
        match (self.vector(k, side), side.along_k) {
            (true, true) if steps == 4 => format!("{name}{i}_0.{}", XYZW[q as usize]),
            (true, false) => format!("{name}{}_{q}.{}", i / 4 * 4, XYZW[(i % 4) as usize]),
            _ => format!("{name}{i}_{q}"),
        }
    }
}
