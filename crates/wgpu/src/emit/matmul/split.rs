//! Products of f32 on units that multiply halves: each number is scaled by a power of two and split into a
//! high and a low half, and three products are summed (decision 009).
//!
//! The scale of a row of A, or a column of B, is made of its largest number, so that this lies in
//! `2^14 .. 2^15`. A number there that is at least `2^-14` keeps 22 bits, as does every product of two such. A
//! smaller one, *tiny* here, keeps what is above `2^-36`, and so spoils no result that is large enough. A tile
//! that holds a result below that, in a row or column with tiny numbers, is left to the plain kernel, which
//! follows and computes the tiles that are marked; so is a tile where a number is infinite or NaN.

use std::fmt::Write as _;

use wgrad_graph::{Result, bail};

use super::super::kernel::Kernel;
use super::super::pointwise::{self, Planes};
use super::Tiles;
use super::scales::Scales;
use super::units::{Results, Rows, components, strips};
use crate::choose::{Tile, Units};
use crate::launch::{Launch, Lowered};

/// The smallest result, of scaled numbers, that tiny numbers do not spoil.
///
/// A tiny number is off by `2^-36` at most, and the product of two low parts that is left out by `2^-36` times the
/// other number: below `2^-35` times the other, which is below `2^15`. Both sides and K steps give `K 2^-19` at most,
/// typically `sqrt(K) 2^-19`. Of a result `r`, that is at most 1 / 8 of what a plain kernel promises, which is
/// `K 2^-24 r`, and typically 1 / 8 of what it typically makes, `sqrt(K) 2^-24 r`.
pub(crate) const DOUBTFUL: f32 = 256.0;

/// All launches of a split product.
pub(super) fn launches(tiles: &Tiles<'_>, units: Units, plain: Tile) -> Result<Lowered> {
    let plain = Tile { splits: units.splits, ..plain };
    if units.bm != plain.bm || !units.bn.is_multiple_of(plain.bn) || !units.bk.is_multiple_of(plain.bk) {
        bail!(Argument, "matmul", "the plain tiles of a split product do not fill its own");
    }
    let scales = Scales::new(tiles, [units.bm, units.bn], units.splits);
    let pieces = tiles.pieces(units.bm, units.splits);
    let mut all = vec![scales.find(tiles)?];
    for piece in &pieces {
        all.push(tiles.on_units(units, piece)?);
    }
    for piece in &pieces {
        let launch = tiles.tiled(plain, piece, Some((scales, units.bk)))?;
        // Few tiles are left to it.
        all.push(Launch { cost_flops: launch.cost_flops / 16, ..launch });
    }
    if units.splits > 1 {
        all.extend(pointwise::lower(tiles.cx, Some(Planes { splits: units.splits }))?.launches);
    }
    Ok(Lowered { launches: all, scratch_bytes: scales.bytes() })
}

/// Workgroup memory and functions. `fa` and `fb` say what is known of rows and columns, `said` what of the tile.
/// All are multiples of 16 bytes, since NVIDIA's driver stores a matrix to the multiple before.
pub(super) fn declared(units: &Units) -> String {
    format!(
        "var<workgroup> said: array<atomic<u32>, 4>;\n\
         var<workgroup> fa: array<u32, {}>;\nvar<workgroup> fb: array<u32, {}>;\n\
         const CAREFUL = 0u;\nconst INFINITE = 1u;\nconst DOUBT = 2u;\nconst SOME = 1u;\nconst TINY = 2u;\n\
         const POWER = 0x7f800000u;\n\
         fn power(e: vec4<i32>) -> vec4<f32> {{\n\
         return bitcast<vec4<f32>>(vec4<u32>(e + vec4<i32>(127)) << vec4<u32>(23u));\n}}\n",
        units.bm, units.bn
    )
}

/// The scales of what is neighbours in memory, which an invocation keeps.
pub(super) fn kept(rows: &[Rows<'_>]) -> String {
    // No driver knows that this keeps every bit.
    let mut out = "let all = select(0u, 0xffffffffu, rows > 0u);\n".to_owned();
    for name in rows.iter().filter(|row| !row.side.along_k).map(|row| row.side.name) {
        let four = [0, 1, 2, 3].map(|q| format!("f{name}[{name}f + {q}u]")).join(", ");
        let _ = writeln!(out, "let s{name} = bitcast<vec4<f32>>(vec4<u32>({four}) & vec4<u32>(POWER));");
    }
    out
}

/// The sums of the cross terms.
pub(super) fn registers(down: u32, across: u32) -> String {
    let mut out = String::new();
    for i in 0..down {
        for j in 0..across {
            let _ = writeln!(out, "var d{i}_{j}: coop_mat16x16<f32, C>;");
        }
    }
    out
}

/// Loads a tile, splits it, and puts it into workgroup memory. All loads come first, so that they are on their way
/// together. Drivers fold the conversion to f16 and back away, so the bits of the high halves pass through a mask.
pub(super) fn stage(tiles: &Tiles<'_>, k: &mut Kernel<'_>, rows: &[Rows<'_>]) -> String {
    let mut out = "{\nlet kn = k0;\n".to_owned();
    let mut parts = String::new();
    for row in rows {
        let name = row.side.name;
        out.push_str(&row.depths(tiles, k));
        for i in 0..row.units() {
            let _ = writeln!(out, "let x{name}{i} = {};", row.load(k, i));
            let scale = if row.side.along_k {
                format!("bitcast<f32>(f{name}[{name}slow + {}u] & POWER)", i * row.apart())
            } else {
                format!("s{name}")
            };
            let _ = writeln!(
                parts,
                "{{\nlet y = x{name}{i} * {scale};\n\
                 let bits = vec2<u32>(pack2x16float(y.xy), pack2x16float(y.zw)) & vec2<u32>(all);\n\
                 let hi = vec4<f32>(unpack2x16float(bits.x), unpack2x16float(bits.y));\nlet at = {};\n\
                 t{name}h[at] = vec4<f16>(hi);\nt{name}l[at] = vec4<f16>((y - hi) * 2048.0);\n}}",
                row.slot(i)
            );
        }
    }
    let _ = writeln!(out, "{parts}}}");
    out
}

/// Looks for doubtful results where there are tiny numbers; stores the tile, or marks it.
pub(super) fn store(tiles: &Tiles<'_>, k: &mut Kernel<'_>, units: &Units, scales: Scales) -> String {
    let mut out = String::new();
    for i in 0..units.wm / 16 {
        for j in 0..units.wn / 16 {
            let _ = writeln!(out, "let r{i}_{j} = c{i}_{j} + d{i}_{j} * 0.00048828125;");
        }
    }
    let value = |i: u32, j: u32| format!("r{i}_{j}");
    let look = |at: &Results| {
        let mut text = format!("let ga = fa[{}];\n", at.m);
        for (q, value) in components(at.value).iter().enumerate() {
            let _ = writeln!(
                text,
                "let g{q} = fb[{} + {q}u];\n\
                 if (((ga | g{q}) & TINY) != 0u && ((ga & g{q}) & SOME) != 0u && abs({value}) < {DOUBTFUL:?}) {{\n\
                 atomicStore(&said[DOUBT], 1u);\n}}",
                at.n
            );
        }
        text
    };
    let _ = writeln!(out, "if (careful && finite) {{\n{}}}", strips(units, 1, &value, look));
    let mark = scales.mark(k, tiles);
    let _ = writeln!(
        out,
        "let sure = finite && atomicLoad(&said[DOUBT]) == 0u;\nif (lane == 0u) {{ {mark} = select(1u, 0u, sure); }}"
    );
    let finish = |at: &Results| {
        // In two steps, so that neither overflows before the result does.
        let four = [0, 1, 2, 3].map(|q| format!("fb[{} + {q}u]", at.n)).join(", ");
        format!(
            "let undo = vec4<i32>(254 - i32((fa[{}] & POWER) >> 23u))\n\
             - vec4<i32>((vec4<u32>({four}) & vec4<u32>(POWER)) >> vec4<u32>(23u));\n\
             let half = undo >> vec4<u32>(1u);\n\
             finish(plane, row0 + {}, col0 + {}, {} * power(half) * power(undo - half));\n",
            at.m, at.m, at.n, at.value
        )
    };
    let _ = writeln!(out, "if (sure) {{\n{}}}", strips(units, 1, &value, finish));
    out
}
