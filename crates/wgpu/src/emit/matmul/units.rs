//! Products on units that multiply matrices of 16 by 16 halves: staged through workgroup memory as halves,
//! multiplied by subgroups of 32, and ended through workgroup memory by the text that ends every product.

use std::fmt::Write as _;

use wgrad_graph::{Fast, Result, bail};

use super::super::kernel::Kernel;
use super::super::pointwise::XYZW;
use super::scales::Scales;
use super::{Piece, Side, Tiles, ending, split};
use crate::choose::Units;
use crate::launch::{Launch, On, Trusted};

/// Invocations of a subgroup.
pub(super) const LANES: u32 = 32;
/// Rows and columns of a matrix that a unit multiplies.
pub(super) const EDGE: u32 = 16;
/// Matrices side by side in the workgroup memory through which results pass.
const STRIP: u32 = 1;

/// How a workgroup moves one side's tile from storage to registers to workgroup memory: as it lies in
/// storage, four neighbours a unit, invocation `lane` units `lane + i * wg`. Rows are padded by 8 halves, so
/// that they begin in different banks.
pub(super) struct Rows<'s> {
    pub(super) side: &'s Side,
    /// Whether four neighbours are one load.
    pub(super) vector: bool,
    /// Rows of A or columns of B in the tile.
    pub(super) extent: u32,
    pub(super) bk: u32,
    pub(super) wg: u32,
    /// Whether K ends with a tile.
    pub(super) whole: bool,
    /// Whether they are loaded as f16, else as f32.
    pub(super) halves: bool,
}

impl Rows<'_> {
    /// Units along a row.
    fn across(&self) -> u32 {
        (if self.side.along_k { self.bk } else { self.extent }) / 4
    }

    /// Vectors between rows in workgroup memory.
    fn stride(&self) -> u32 {
        self.across() + 2
    }

    /// Vectors of the tile in workgroup memory.
    fn room(&self) -> u32 {
        self.stride() * if self.side.along_k { self.extent } else { self.bk }
    }

    /// Units that one invocation moves.
    pub(super) fn units(&self) -> u32 {
        self.extent * self.bk / 4 / self.wg
    }

    /// Rows between an invocation's units.
    pub(super) fn apart(&self) -> u32 {
        self.wg / self.across()
    }

    /// Addresses beside K.
    pub(super) fn place(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>) -> String {
        let (name, across) = (self.side.name, self.across());
        let (at, limit) = if name == "a" { ("row0", "rows") } else { ("col0", "columns") };
        let mut out = format!("let {name}f = (lane % {across}u) * 4u;\n");
        if self.halves && self.side.along_k && across == 8 && self.apart().is_multiple_of(8) {
            // Rows of 80 bytes: two that are four apart lie in different banks, and half a subgroup writes two.
            let _ = writeln!(
                out,
                "let {name}line = lane / 8u;\n\
                 let {name}slow = ({name}line & 0xfffffff8u) + ({name}line & 1u) * 4u + ({name}line >> 1u) % 4u;"
            );
        } else {
            let _ = writeln!(out, "let {name}slow = lane / {across}u;");
        }
        let (count, last) = match (self.side.along_k, self.vector) {
            (true, _) => (self.units(), 1),
            (false, true) => (1, 4),
            (false, false) => (4, 1),
        };
        for i in 0..count {
            let beside = if self.side.along_k {
                format!("{name}slow + {}u", i * self.apart())
            } else {
                format!("{name}f + {i}u")
            };
            let clamped = format!("min({at} + {beside}, {limit} - {last}u)");
            let offset = tiles.term(k, self.side, false, &format!("{name}p{i}"), &clamped, &mut out);
            let _ = writeln!(out, "let {name}p{i} = {name}z + {offset};");
        }
        out
    }

    /// Steps of K of which an invocation loads something at a time.
    fn steps(&self) -> u32 {
        match (self.side.along_k, self.vector) {
            (true, true) => 1,
            (true, false) => 4,
            (false, _) => self.units(),
        }
    }

    /// Whether what steps of K add to addresses stands in workgroup memory, computed a step of the loop ahead by one
    /// invocation each: where they are digits, whose divisions cost as much as the products do.
    fn tabled(&self) -> bool {
        !self.side.along_k && self.side.k.len() > 1
    }

    /// The part of the table at `slot` filled for the steps from `from` on.
    fn table(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>, from: &str, slot: &str) -> String {
        let name = self.side.name;
        let mut out = format!("if (lane < {}u) {{\nlet kt = min({from} + lane, end - 1u);\n", self.bk);
        let offset = tiles.term(k, self.side, true, &format!("{name}t"), "kt", &mut out);
        let _ = writeln!(out, "t{name}k[{slot} + lane] = {offset};\n}}");
        out
    }

    /// [`Rows::depths`] from the table at `slot`.
    fn depths_at(&self, slot: &str) -> String {
        let name = self.side.name;
        let mut out = String::new();
        for i in 0..self.steps() {
            let beside = format!("{name}slow + {}u", i * self.apart());
            if !self.whole {
                let _ = writeln!(out, "let {name}in{i} = (kn + {beside}) < end;");
            }
            let _ = writeln!(out, "let {name}k{i} = t{name}k[{slot} + {beside}];");
        }
        out
    }

    /// What steps of K add to addresses, and whether they are before the end: `{name}k{i}`, `{name}in{i}`.
    pub(super) fn depths(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>) -> String {
        let name = self.side.name;
        let mut out = String::new();
        for i in 0..self.steps() {
            let beside = if self.side.along_k {
                format!("{name}f + {i}u")
            } else {
                format!("{name}slow + {}u", i * self.apart())
            };
            let mut coord = format!("(kn + {beside})");
            if !self.whole {
                let _ = writeln!(out, "let {name}in{i} = {coord} < end;");
                coord = format!("select(0u, {coord}, {name}in{i})");
            }
            let offset = tiles.term(k, self.side, true, &format!("{name}k{i}"), &coord, &mut out);
            let _ = writeln!(out, "let {name}k{i} = {offset};");
        }
        out
    }

    /// The four elements of unit `i`; what lies past the end of K is 0.
    pub(super) fn load(&self, k: &Kernel<'_>, i: u32) -> String {
        let (name, ty) = (self.side.name, if self.halves { "f16" } else { "f32" });
        let one = |at: &str, quad: bool| match (self.halves, quad) {
            (true, _) => k.load_half(self.side.operand, at, quad),
            (false, true) => self.side.load_quad(k, at),
            (false, false) => self.side.load(k, at),
        };
        // Which address beside K, and which along K, component `q` has.
        let place = |q: u32| if self.side.along_k { (i, q) } else { (q, i) };
        let guarded = |text: String, ty: &str, along: u32| match self.whole {
            true => text,
            false => format!("select({ty}(), {text}, {name}in{along})"),
        };
        if self.vector {
            let (p, d) = place(0);
            return guarded(one(&format!("{name}p{p} + {name}k{d}"), true), &format!("vec4<{ty}>"), d);
        }
        let each = (0..4).map(|q| {
            let (p, d) = place(q);
            guarded(one(&format!("{name}p{p} + {name}k{d}"), false), ty, d)
        });
        format!("vec4<{ty}>({})", each.collect::<Vec<_>>().join(", "))
    }

    /// Where unit `i` goes.
    pub(super) fn slot(&self, i: u32) -> String {
        let name = self.side.name;
        format!("({name}slow + {}u) * {}u + {name}f / 4u", i * self.apart(), self.stride())
    }

    /// Declares the matrix `{var}{suffix}` for rows or columns from `beside` on and steps from `kk` on.
    fn fragment(&self, var: &str, suffix: &str, parts: &[&str], beside: &str, kk: u32) -> String {
        let (name, stride) = (self.side.name, self.stride());
        let role = if name == "a" { "A" } else { "B" };
        let at = if self.side.along_k {
            format!("({beside}) * {stride}u + {}u", kk / 4)
        } else {
            format!("{}u + ({beside}) / 4u", kk * stride)
        };
        // Row-major matrices of A have steps of K as neighbours, those of B columns.
        let load = if self.side.along_k == (name == "a") { "coopLoadT" } else { "coopLoad" };
        // naga panics where an index or a stride has no name.
        let mut out = format!("let i{var}{suffix} = {at};\n");
        for part in parts {
            let _ = writeln!(
                out,
                "let {var}{part}{suffix} = {load}<coop_mat16x16<f16, {role}>>(&t{name}{part}[i{var}{suffix}], {stride}u);"
            );
        }
        out
    }
}

/// The parts of numbers in workgroup memory: halves are whole, f32 a high and a low part.
fn parts(units: &Units) -> &'static [&'static str] {
    if units.split { &["h", "l"] } else { &[""] }
}

impl Tiles<'_> {
    /// The launch on units of one piece.
    pub(super) fn on_units(&self, units: Units, piece: &Piece) -> Result<Launch> {
        let Units { bm, bn, bk, wm, wn, splits, split } = units;
        let wide_warps = bn / wn;
        let wg = warps(&units) * LANES;
        let mut k = Kernel::new(self.cx);
        k.on = On::Units(Trusted {
            path: if split { Fast::SplitMatmul } else { Fast::CooperativeMatmul },
            windows: self.sides.iter().any(|side| side.k.len() > 1 && side.mn.len() > 1),
        });
        k.ordered = !split;
        let wide = self.note(&mut k, splits, !split);
        let scales = Scales::new(self, [bm, bn], splits);
        if split {
            scales.note(&mut k);
        }
        let whole = self.sizes.k.is_multiple_of(bk as usize);
        let end = if split { "depth" } else { "end" };
        let mut place = self.placed(&mut k, [bm, bn, bk], splits, piece, end);
        let _ = writeln!(
            place,
            "let warp = lane / {LANES}u;\nlet wr = (warp / {wide_warps}u) * {wm}u;\n\
             let wc = (warp % {wide_warps}u) * {wn}u;"
        );
        let rows: Vec<Rows<'_>> = self
            .sides
            .iter()
            .zip([bm, bn])
            .map(|(side, extent)| {
                let vector = self.vector(&k, side);
                Rows { side, vector, extent, bk, wg, whole, halves: !split }
            })
            .collect();
        let mut shared = String::new();
        for row in &rows {
            place.push_str(&row.place(self, &mut k));
            for part in parts(&units) {
                let _ = writeln!(
                    shared,
                    "var<workgroup> t{}{part}: array<vec4<f16>, {}>;",
                    row.side.name,
                    row.room()
                );
            }
        }
        let (down, across) = (wm / EDGE, wn / EDGE);
        let mut start = String::new();
        for i in 0..down {
            for j in 0..across {
                let _ = writeln!(start, "var c{i}_{j}: coop_mat16x16<f32, C>;");
            }
        }
        let (mut first, mut stage, mut next) = (String::new(), String::new(), String::new());
        let multiply;
        if split {
            place.push_str(&scales.read(self, &mut k, &units));
            place.push_str(&split::kept(&rows));
            start.push_str(&split::registers(down, across));
            stage = split::stage(self, &mut k, &rows);
            multiply = split_multiply(&units, &rows);
        } else {
            let kn = if whole { format!("min(k0 + {bk}u, end - {bk}u)") } else { format!("k0 + {bk}u") };
            let _ = writeln!(first, "{{\nlet kn = begin;");
            let _ = writeln!(next, "{{\nlet kn = {kn};");
            let mut tables = String::new();
            for row in &rows {
                let (name, depths) = (row.side.name, row.depths(self, &mut k));
                first.push_str(&depths);
                if row.tabled() {
                    let _ = writeln!(shared, "var<workgroup> t{name}k: array<u32, {}>;", 2 * bk);
                    start.push_str(&row.table(self, &mut k, &format!("begin + {bk}u"), "0u"));
                    let _ = writeln!(next, "let {name}at = (k0 - begin) % {}u;", 2 * bk);
                    next.push_str(&row.depths_at(&format!("{name}at")));
                    let other = format!("{bk}u - {name}at");
                    tables.push_str(&row.table(self, &mut k, &format!("kn + {bk}u"), &other));
                } else {
                    next.push_str(&depths);
                }
                for i in 0..row.units() {
                    let _ = writeln!(start, "var w{name}{i} = vec4<f16>();");
                    let load = format!("w{name}{i} = {};\n", row.load(&k, i));
                    first.push_str(&load);
                    next.push_str(&load);
                    let _ = writeln!(stage, "t{name}[{}] = w{name}{i};", row.slot(i));
                }
            }
            // After the loads: drivers wait for those before a branch.
            next.push_str(&tables);
            first.push_str("}\n");
            next.push_str("}\n");
            multiply = half_multiply(&units, &rows);
        }
        let (store, finish, results) = if split {
            let finish = self.finish_text(&mut k, wide)?;
            let room = wg / LANES / rounds(&units) * EDGE * line(&units, STRIP);
            (split::store(self, &mut k, &units, scales), finish, room)
        } else {
            let (finish, ahead) = self.finish_ahead(&mut k, wide)?;
            (ending::text(&mut k, &units, ahead), finish, ending::room(&units))
        };
        let extra = format!(
            "const WG = {wg}u;\n{shared}var<workgroup> te: array<vec4<f32>, {}>;\n{}{finish}",
            results,
            if split { split::declared(&units) } else { String::new() }
        );
        let grid = self.grid([bm, bn], piece)?;
        let regions = [
            ("place", place.as_str()),
            ("start", &start),
            ("load_first", &first),
            ("stage", &stage),
            ("load_next", &next),
            ("multiply", &multiply),
            ("store", &store),
        ];
        let file = wgrad_wgsl::MATMUL_TILE.replace("k0 += 16u", &format!("k0 += {bk}u"));
        k.finish(&file, &extra, &regions, grid, self.share(piece, bm, splits))
    }

    /// Workgroups of a piece in tiles of these sizes.
    pub(super) fn grid(&self, [_, bn]: [u32; 2], piece: &Piece) -> Result<[u32; 3]> {
        let across = self.sizes.n.div_ceil(bn as usize) as u32;
        let grid = [across, piece.rows.len() as u32, piece.planes.len() as u32];
        if let Some(over) = grid.iter().find(|g| **g > self.cx.caps.max_workgroups) {
            bail!(Limit, "matmul", "{over} workgroups on one axis are more than the device takes");
        }
        Ok(grid)
    }
}

/// Subgroups of a workgroup.
pub(super) fn warps(units: &Units) -> u32 {
    units.bm / units.wm * (units.bn / units.wn)
}

/// How many subgroups take turns at passing results through workgroup memory.
fn rounds(units: &Units) -> u32 {
    // Split numbers, two halves each, leave room for four of them in 48 KiB.
    if units.split { warps(units).div_ceil(4) } else { 1 }
}

/// Vectors of a line of the strip in workgroup memory through which results pass.
fn line(units: &Units, strip: u32) -> u32 {
    // Padded against bank conflicts; split numbers leave no room.
    strip * EDGE / 4 + if units.split { 0 } else { 1 }
}

/// Four results in workgroup memory.
pub(super) struct Results {
    /// Their row in the tile.
    pub(super) m: String,
    /// The first column in the tile.
    pub(super) n: String,
    pub(super) value: &'static str,
}

/// All results of a subgroup through workgroup memory, strips of `strip` matrices side by side at a time:
/// `value` names the matrix at a place, `each` is the text for four neighbours.
pub(super) fn strips(
    units: &Units,
    strip: u32,
    value: &dyn Fn(u32, u32) -> String,
    each: impl Fn(&Results) -> String,
) -> String {
    let (line, rounds) = (line(units, strip), rounds(units));
    let quads = strip * EDGE / 4;
    let each_round = warps(units) / rounds;
    let mut out =
        format!("let ebase = (warp % {each_round}u) * {}u;\nlet elane = lane % {LANES}u;\n", EDGE * line);
    for i in 0..units.wm / EDGE {
        for first in (0..units.wn / EDGE).step_by(strip as usize) {
            for round in 0..rounds {
                // Whole subgroups take one way.
                let mine = if rounds > 1 {
                    format!("if (warp / {each_round}u == {round}u) ")
                } else {
                    String::new()
                };
                let _ = writeln!(out, "{mine}{{");
                for j in 0..strip {
                    let name = value(i, first + j);
                    let _ = writeln!(
                        out,
                        "let e{j} = ebase + {}u;\ncoopStoreT({name}, &te[e{j}], {line}u);",
                        j * EDGE / 4
                    );
                }
                let results = Results {
                    m: format!("wr + {}u + eq / {quads}u", i * EDGE),
                    n: format!("wc + {}u + (eq % {quads}u) * 4u", first * EDGE),
                    value: "four",
                };
                let _ = writeln!(
                    out,
                    "}}\nworkgroupBarrier();\n{mine}{{\nfor (var r = 0u; r < {}u; r += 1u) {{\n\
                     let eq = elane + r * {LANES}u;\n\
                     let four = te[ebase + (eq / {quads}u) * {line}u + eq % {quads}u];\n\
                     {}}}\n}}\nworkgroupBarrier();",
                    EDGE * quads / LANES,
                    each(&results)
                );
            }
        }
    }
    out
}

/// The products of a tile of halves.
fn half_multiply(units: &Units, rows: &[Rows<'_>]) -> String {
    let (down, across) = (units.wm / EDGE, units.wn / EDGE);
    let mut out = String::new();
    for kk in (0..units.bk).step_by(EDGE as usize) {
        out.push_str("{\n");
        for j in 0..across {
            out.push_str(&rows[1].fragment("b", &j.to_string(), &[""], &format!("wc + {}u", j * EDGE), kk));
        }
        for i in 0..down {
            out.push_str(&rows[0].fragment("a", &i.to_string(), &[""], &format!("wr + {}u", i * EDGE), kk));
            for j in 0..across {
                let _ = writeln!(out, "c{i}_{j} = coopMultiplyAdd(a{i}, b{j}, c{i}_{j});");
            }
        }
        out.push_str("}\n");
    }
    out
}

/// The products of a tile of numbers in two parts: the high parts from zero for each tile and added by an
/// ordinary addition, since units round toward zero; the cross terms in sums of their own.
fn split_multiply(units: &Units, rows: &[Rows<'_>]) -> String {
    let (down, across) = (units.wm / EDGE, units.wn / EDGE);
    let steps = || (0..units.bk).step_by(EDGE as usize);
    let mut out = String::new();
    for j in 0..across {
        for kk in steps() {
            let suffix = format!("{j}_{kk}");
            out.push_str(&rows[1].fragment("b", &suffix, parts(units), &format!("wc + {}u", j * EDGE), kk));
        }
    }
    for i in 0..down {
        for kk in steps() {
            let suffix = format!("{i}_{kk}");
            out.push_str(&rows[0].fragment("a", &suffix, parts(units), &format!("wr + {}u", i * EDGE), kk));
        }
        for j in 0..across {
            let mut part = "coop_mat16x16<f32, C>()".to_owned();
            for kk in steps() {
                let _ = writeln!(
                    out,
                    "d{i}_{j} = coopMultiplyAdd(al{i}_{kk}, bh{j}_{kk}, d{i}_{j});\n\
                     d{i}_{j} = coopMultiplyAdd(ah{i}_{kk}, bl{j}_{kk}, d{i}_{j});\n\
                     let t{i}_{j}_{kk} = coopMultiplyAdd(ah{i}_{kk}, bh{j}_{kk}, {part});"
                );
                part = format!("t{i}_{j}_{kk}");
            }
            let _ = writeln!(out, "c{i}_{j} = c{i}_{j} + {part};");
        }
    }
    out
}

/// The component names of four neighbours, for texts of single ones.
pub(super) fn components(value: &str) -> [String; 4] {
    XYZW.map(|c| format!("{value}.{c}"))
}
