//! Products of a few rows, which take as long as the right factor is read: slices of a workgroup read
//! different steps of K.

use std::fmt::Write as _;

use wgrad_graph::Result;

use super::super::kernel::Kernel;
use super::super::pointwise::XYZW;
use super::{Piece, Tiles};
use crate::choose::Stream;
use crate::launch::Launch;

/// Steps of K of which an invocation has the loads on their way, where K is a multiple of them.
const STEPS: [u32; 3] = [8, 4, 1];

impl Tiles<'_> {
    pub(super) fn streamed(&self, stream: Stream, piece: &Piece) -> Result<Launch> {
        let Stream { rows, quads, slices, splits } = stream;
        let mut k = Kernel::new(self.cx);
        let wide = self.note(&mut k, splits, false);
        let steps = STEPS.into_iter().find(|s| self.sizes.k.is_multiple_of(*s as usize)).unwrap_or(1);
        let mut place = self.placed(&mut k, [rows, quads * 4, steps], splits, piece, "end");
        let _ = writeln!(place, "let col = col0 + (lane % {quads}u) * 4u;");
        let [a, b] = &self.sides;
        let whole = self.vector(&k, b) && !b.along_k;
        let (count, last) = if whole { (1, 4) } else { (4, 1) };
        for j in 0..count {
            let clamped = format!("min(col + {j}u, columns - {last}u)");
            let offset = self.term(&mut k, b, false, &format!("bp{j}"), &clamped, &mut place);
            let _ = writeln!(place, "let bp{j} = bz + {offset};");
        }
        for i in 0..rows {
            let clamped = format!("min(row0 + {i}u, rows - 1u)");
            let offset = self.term(&mut k, a, false, &format!("ap{i}"), &clamped, &mut place);
            let _ = writeln!(place, "let ap{i} = az + {offset};");
        }
        let mut multiply = String::new();
        for u in 0..steps {
            let depth = self.term(&mut k, b, true, &format!("bk{u}"), &format!("(k0 + {u}u)"), &mut multiply);
            let load = match whole {
                true => b.load_quad(&k, &format!("bp0 + {depth}")),
                false => {
                    let four = [0, 1, 2, 3].map(|j| b.load(&k, &format!("bp{j} + {depth}")));
                    format!("vec4<f32>({})", four.join(", "))
                }
            };
            let _ = writeln!(multiply, "let v{u} = {load};");
        }
        let fours = self.vector(&k, a) && a.along_k && steps > 1;
        for u in (0..steps).step_by(if fours { 4 } else { 1 }) {
            let depth = self.term(&mut k, a, true, &format!("ak{u}"), &format!("(k0 + {u}u)"), &mut multiply);
            for i in 0..rows {
                let at = format!("ap{i} + {depth}");
                let load = if fours { a.load_quad(&k, &at) } else { a.load(&k, &at) };
                let _ = writeln!(multiply, "let a{i}_{u} = {load};");
            }
        }
        let (mut start, mut gather, mut store) = (String::new(), String::new(), String::new());
        for i in 0..rows {
            for u in 0..steps {
                let x = match fours {
                    true => format!("a{i}_{}.{}", u / 4 * 4, XYZW[(u % 4) as usize]),
                    false => format!("a{i}_{u}"),
                };
                let _ = writeln!(multiply, "c{i} = fma(vec4<f32>({x}), v{u}, c{i});");
            }
            let _ = writeln!(start, "var c{i} = vec4<f32>();");
            let _ = writeln!(gather, "sums[{i}u * WG + lane] = c{i};");
            let _ = writeln!(store, "finish(plane, row0 + {i}u, col, sums[{i}u * WG + lane]);");
        }
        let finish = self.finish_text(&mut k, wide)?;
        let extra = format!(
            "const QUADS = {quads}u;\nconst SLICES = {slices}u;\nconst STEP = {steps}u;\nconst ROWS = {rows}u;\n{finish}"
        );
        let regions = [
            ("place", place.as_str()),
            ("start", &start),
            ("multiply", &multiply),
            ("gather", &gather),
            ("store", &store),
        ];
        let grid = self.grid([rows, quads * 4], piece)?;
        k.finish(wgrad_wgsl::MATMUL_STREAM, &extra, &regions, grid, self.share(piece, rows, splits))
    }
}
