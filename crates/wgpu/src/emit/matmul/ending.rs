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

/// How results pass through workgroup memory.
pub(super) struct Passage<'s> {
    /// How many parts of a workgroup's subgroups take turns.
    pub(super) rounds: u32,
    /// Vectors between rows of a strip.
    pub(super) line: u32,
    /// A function of the text that takes four results, their row and their first column in the tile.
    pub(super) through: Option<&'s str>,
}

impl Passage<'_> {
    /// All subgroups at a time, results as they are.
    pub(super) const PLAIN: Passage<'static> = Passage { rounds: 1, line: LINE, through: None };
}

/// All results of a subgroup, named `c{i}_{j}`, strip by strip. One text for all strips: unrolled, an ending as
/// long as that of a gelu's gradient is a stream of instructions that no cache holds.
pub(super) fn text(k: &mut Kernel<'_>, units: &Units, ahead: bool, passage: &Passage<'_>) -> String {
    let Passage { rounds, line, through } = *passage;
    let (down, across) = (units.wm / EDGE, units.wn / EDGE / STRIP);
    let quads = STRIP * EDGE / 4;
    let (each, apart) = (EDGE * quads / LANES, LANES / quads);
    let each_round = warps(units) / rounds;
    // A number that the driver does not know: it would unroll the loop.
    let steps = k.word("strips", i64::from(down * across * rounds));
    let mut out = format!(
        "let ebase = (warp % {each_round}u) * {}u;\nlet elane = lane % {LANES}u;\nlet erow = elane / {quads}u;\n\
         let ecolumn = elane % {quads}u;\nlet em = wr + erow;\nlet en = wc + ecolumn * 4u;\n",
        EDGE * line
    );
    let place = |strip: &str, r: u32| {
        let (m, n) = (r * apart, STRIP * EDGE);
        (format!("em + {strip} / {across}u * {EDGE}u + {m}u"), format!("en + {strip} % {across}u * {n}u"))
    };
    let fetch = |out: &mut String, declare: &str, strip: &str| {
        for r in 0..each {
            let (m, n) = place(strip, r);
            let _ = writeln!(out, "{declare}ahead{r} = ahead(plane, row0 + {m}, col0 + {n});");
        }
    };
    if ahead {
        fetch(&mut out, "var ", "0u");
    }
    // Whole subgroups take one way.
    let (step, strip, mine) = match rounds {
        1 => ("strip", String::new(), String::new()),
        _ => (
            "step",
            format!("let strip = step / {rounds}u;\n"),
            format!("if (warp / {each_round}u == step % {rounds}u) "),
        ),
    };
    let _ = writeln!(
        out,
        "for (var {step} = 0u; {step} < {steps}; {step} += 1u) {{\n{strip}{mine}{{\nswitch (strip) {{"
    );
    for at in 0..down * across {
        let case = if at + 1 < down * across { format!("case {at}u:") } else { "default:".to_owned() };
        let _ = writeln!(out, "{case} {{");
        for j in 0..STRIP {
            let (i, j, beside) = (at / across, at % across * STRIP + j, j * EDGE / 4);
            let _ = writeln!(out, "let e{j} = ebase + {beside}u;\ncoopStoreT(c{i}_{j}, &te[e{j}], {line}u);");
        }
        out.push_str("}\n");
    }
    out.push_str("}\n}\n");
    if ahead {
        (0..each).for_each(|r| {
            let _ = writeln!(out, "let now{r} = ahead{r};");
        });
        let _ = writeln!(out, "{mine}{{\nlet next = min(strip + 1u, {}u);", down * across - 1);
        fetch(&mut out, "", "next");
        out.push_str("}\n");
    }
    let _ = writeln!(out, "workgroupBarrier();\n{mine}{{");
    for r in 0..each {
        let now = if ahead { format!(", now{r}") } else { String::new() };
        let (m, n) = place("strip", r);
        let four = format!("te[ebase + (erow + {}u) * {line}u + ecolumn]", r * apart);
        let four = through.map_or_else(|| four.clone(), |name| format!("{name}({four}, {m}, {n})"));
        let _ = writeln!(out, "finish(plane, row0 + {m}, col0 + {n}, {four}{now});");
    }
    out.push_str("}\nworkgroupBarrier();\n}\n");
    out
}
