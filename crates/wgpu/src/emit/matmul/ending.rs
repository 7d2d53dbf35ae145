//! How a product on units of 16 by 16 ends: matrix by matrix through workgroup memory, in a loop whose body
//! stands once in the text, and whose operands are loaded a round ahead.

use std::fmt::Write as _;

use wgrad_graph::Result;

use super::super::kernel::Kernel;
use super::super::pointwise::{Points, Site, XYZW};
use super::Tiles;
use super::units::{EDGE, LANES, warps};
use crate::choose::Units;

/// Matrices side by side that are ended at a time. More of them take more workgroup memory, of which 17 KB beside the
/// tiles halve the workgroups of a multiprocessor.
const STRIP: u32 = 1;

/// Vectors between rows of a strip in workgroup memory: padded against conflicts of banks.
const LINE: u32 = STRIP * EDGE / 4 + 1;

/// Vectors of workgroup memory through which results pass.
pub(super) fn room(units: &Units) -> u32 {
    warps(units) * EDGE * LINE
}

impl Tiles<'_> {
    /// `fn finish` as [`Tiles::finish_text`] has it, but with the operands that `fn ahead` has loaded, where there
    /// are any.
    pub(super) fn finish_ahead(&self, k: &mut Kernel<'_>, wide: Option<bool>) -> Result<(String, bool)> {
        let site = Points::new(self.cx, self.count());
        let (batch, mut coords) = self.batch_coords(k, "z");
        coords.extend(["m".to_owned(), "n".to_owned()]);
        let ahead = match wide {
            Some(true) => site.ahead(k, "first", coords.clone())?,
            _ => None,
        };
        let Some(ahead) = ahead else { return Ok((self.finish_text(k, wide)?, false)) };
        let rank = self.rank();
        let (rows, columns) = (k.dim(rank - 3), k.dim(rank - 2));
        let accs = XYZW.map(|c| vec![format!("value.{c}")]);
        let body = site.quad(k, Site { first: "first", coords: Some(coords), accs, ahead: true })?;
        // Held inside: a load in a branch waits for the one before.
        let text = format!(
            "{}fn ahead(z: u32, past_m: u32, past_n: u32) -> Ahead {{\n\
             let m = min(past_m, {rows} - 1u);\nlet n = min(past_n, {columns} - 4u);\n\
             let first = (z * {rows} + m) * {columns} + n;\n{batch}{}}}\n\
             fn finish(z: u32, m: u32, n: u32, value: vec4<f32>, ahead: Ahead) {{\n\
             if (m < {rows} && n < {columns}) {{\nlet first = (z * {rows} + m) * {columns} + n;\n{batch}{body}}}\n}}\n",
            ahead.declared, ahead.text
        );
        Ok((text, true))
    }
}

/// All results of a subgroup, named `c{i}_{j}`, strip by strip. One text for all strips: unrolled, an ending as
/// long as that of a gelu's gradient is a stream of instructions that no cache holds.
pub(super) fn text(k: &mut Kernel<'_>, units: &Units, ahead: bool) -> String {
    let (down, across) = (units.wm / EDGE, units.wn / EDGE / STRIP);
    let quads = STRIP * EDGE / 4;
    let (each, apart) = (EDGE * quads / LANES, LANES / quads);
    // A number that the driver does not know: it would unroll the loop.
    let strips = k.word("strips", i64::from(down * across));
    let mut out = format!(
        "let ebase = warp * {}u;\nlet elane = lane % {LANES}u;\nlet erow = elane / {quads}u;\n\
         let ecolumn = elane % {quads}u;\nlet em = row0 + wr + erow;\nlet en = col0 + wc + ecolumn * 4u;\n",
        EDGE * LINE
    );
    let fetch = |out: &mut String, declare: &str, strip_at: &str| {
        for r in 0..each {
            let _ = writeln!(
                out,
                "{declare}ahead{r} = ahead(plane, em + {strip_at} / {across}u * {EDGE}u + {}u, en + {strip_at} % {across}u * {}u);",
                r * apart,
                STRIP * EDGE
            );
        }
    };
    if ahead {
        fetch(&mut out, "var ", "0u");
    }
    let _ = writeln!(out, "for (var strip = 0u; strip < {strips}; strip += 1u) {{\nswitch (strip) {{");
    for at in 0..down * across {
        let case = if at + 1 < down * across { format!("case {at}u:") } else { "default:".to_owned() };
        let _ = writeln!(out, "{case} {{");
        for j in 0..STRIP {
            let (i, j, beside) = (at / across, at % across * STRIP + j, j * EDGE / 4);
            let _ = writeln!(out, "let e{j} = ebase + {beside}u;\ncoopStoreT(c{i}_{j}, &te[e{j}], {LINE}u);");
        }
        out.push_str("}\n");
    }
    out.push_str("}\n");
    if ahead {
        (0..each).for_each(|r| {
            let _ = writeln!(out, "let now{r} = ahead{r};");
        });
        let _ = writeln!(out, "let next = min(strip + 1u, {strips} - 1u);");
        fetch(&mut out, "", "next");
    }
    out.push_str("workgroupBarrier();\n");
    for r in 0..each {
        let now = if ahead { format!(", now{r}") } else { String::new() };
        let _ = writeln!(
            out,
            "finish(plane, em + strip / {across}u * {EDGE}u + {}u, en + strip % {across}u * {}u, \
             te[ebase + (erow + {}u) * {LINE}u + ecolumn]{now});",
            r * apart,
            STRIP * EDGE,
            r * apart
        );
    }
    out.push_str("workgroupBarrier();\n}\n");
    out
}
