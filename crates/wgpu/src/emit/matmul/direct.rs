//! Products straight from storage, without workgroup memory.

use std::fmt::Write as _;

use wgrad_graph::{Result, bail};

use super::super::fold;
use super::super::kernel::Kernel;
use super::super::pointwise::XYZW;
use super::staging::Fragments;
use super::{Piece, Tiles};
use crate::choose;
use crate::launch::Launch;

impl Tiles<'_> {
    pub(super) fn direct(&self, [rows, vectors, splits]: [u32; 3], piece: &Piece) -> Result<Launch> {
        let wg = choose::pointwise_workgroup(self.cx.caps);
        let mut k = Kernel::new(self.cx);
        let wide = self.note(&mut k, splits, false);
        let steps = if self.sizes.k.is_multiple_of(4) { 4 } else { 1 };
        let width = vectors * 4;
        let across = self.sizes.n.div_ceil(width as usize);
        let down = piece.rows.len();
        let mut place = self.sizes_text(&mut k);
        let across_word = k.word("across", across as i64);
        let count = k.word("count", (across * down) as i64);
        let (row, plane) = (piece.from(&mut k, "rows", "down"), piece.from(&mut k, "planes", "group.z"));
        let _ = writeln!(
            place,
            "let plane = {plane};\nlet count = {count};\nlet down = at / {across_word};\n\
             let row0 = {row} * {rows}u;\nlet col0 = (at - down * {across_word}) * {width}u;"
        );
        place.push_str(&self.part(&mut k, 4, splits, "end"));
        let (text, coords) = self.batch_coords(&mut k, "z");
        place.push_str(&text);
        let mut multiply = String::new();
        for (side, extent) in self.sides.iter().zip([rows, width]) {
            place.push_str(&self.origin(&mut k, side, &coords));
            let vector = self.vector(&k, side);
            let (at, limit) = if side.name == "a" { ("row0", "rows") } else { ("col0", "columns") };
            let name = side.name;
            // One address a line along K; vectors beside K share one.
            let group = if vector && !side.along_k { 4 } else { 1 };
            for i in (0..extent).step_by(group as usize) {
                let clamped = format!("min({at} + {i}u, {limit} - {group}u)");
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
                let _ = writeln!(store, "finish(plane, row0 + {i}u, col0 + {}u, c{i}_{j});", j * 4);
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
                let a = self.fragment(&k, 0, i, q, steps);
                for j in 0..vectors {
                    let _ = writeln!(multiply, "c{i}_{j} = fma(vec4<f32>({a}), v{j}_{q}, c{i}_{j});");
                }
            }
        }
        let finish = self.finish_text(&mut k, wide)?;
        let extra = format!("const WG = {wg}u;\nconst STEP = {steps}u;\n{finish}");
        let groups = fold((across * down).div_ceil(wg as usize) as u64, self.cx.caps)?;
        let grid = [groups[0], groups[1], piece.planes.len() as u32];
        if grid[2] > self.cx.caps.max_workgroups {
            bail!(Limit, "matmul", "a batch of {} is more than the device takes", self.sizes.batch);
        }
        let regions =
            [("place", place.as_str()), ("start", &start), ("multiply", &multiply), ("store", &store)];
        let file = wgrad_wgsl::MATMUL_DIRECT.replace("k0 = 0u", "k0 = begin");
        k.finish(&file, &extra, &regions, grid, self.share(piece, rows, splits))
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
