//! Products of f32 on units that multiply halves: each number is scaled by a power of two and split into a
//! high and a low half, and three products are summed (decision 009).
//!
//! The scale of an operand is made of its largest number, so that this lies in `2^14 .. 2^15`. A number
//! there that is at least `2^-14` keeps 22 bits, as does every product of two such. A smaller one, *tiny*
//! here, keeps what is above `2^-24`, and so spoils no result that is large enough. A tile that holds a
//! result below that, in a row or column with tiny numbers, is left to the plain kernel, which follows and
//! computes the tiles that are marked; so is everything where a number is infinite or NaN.

use std::fmt::Write as _;

use wgrad_graph::{Result, bail};

use super::super::kernel::{Kernel, Touch};
use super::super::pointwise::{self, Planes};
use super::Tiles;
use super::units::{Results, Rows, components, strips};
use crate::choose::{Tile, Units};
use crate::launch::{Launch, Lowered};

/// Workgroups that look for the largest and the smallest number of one operand. Two for each multiprocessor of an
/// H200: each invocation takes many loads, and every tile of the product combines few numbers.
const PARTS: u32 = 256;

/// The smallest result of `k` products that tiny numbers do not spoil, of scaled numbers.
///
/// The high half of a tiny number is subnormal, and off by `2^-24` at most, times the other number, which is below
/// `2^15`. Both sides and all steps give `k 2^-8`. That may be a quarter of the error of the plain kernel, about
/// `sqrt(k) 2^-24` times the result. (Halves that keep `2^-36` of tiny numbers took a fifth of the time.)
pub(crate) fn doubtful(k: usize) -> f32 {
    262_144.0 * (k as f32).sqrt()
}

/// Where the largest numbers and the marks lie in scratch memory, after the sums of parts of K.
#[derive(Copy, Clone)]
pub(super) struct Marks {
    bm: u32,
    bn: u32,
    /// Bytes before them.
    offset: usize,
    /// The largest numbers of parts of both operands, the smallest, and a mark for each tile.
    words: usize,
}

impl Marks {
    pub(super) fn new(tiles: &Tiles<'_>, [bm, bn]: [u32; 2], splits: u32) -> Marks {
        let [down, across] = [(tiles.sizes.m, bm), (tiles.sizes.n, bn)].map(|(n, b)| n.div_ceil(b as usize));
        let planes = if splits > 1 { tiles.count() * splits as usize * 4 } else { 0 };
        Marks {
            bm,
            bn,
            offset: planes.next_multiple_of(tiles.cx.caps.align_bytes),
            words: 4 * PARTS as usize + tiles.sizes.batch * splits as usize * down * across,
        }
    }

    /// Notes the scratch memory.
    pub(super) fn note(&self, k: &mut Kernel<'_>) {
        k.scratch_at(self.offset, self.words, true, Touch::Each);
    }

    fn word(&self, k: &Kernel<'_>, at: &str) -> String {
        k.scratch_word_at(self.offset, at)
    }

    /// The mark of a workgroup's tile.
    fn mark(&self, k: &mut Kernel<'_>, tiles: &Tiles<'_>) -> String {
        let (bm, bn) = (self.bm, self.bn);
        let down = k.word("tiles_down", tiles.sizes.m.div_ceil(bm as usize) as i64);
        let across = k.word("tiles_across", tiles.sizes.n.div_ceil(bn as usize) as i64);
        let at = format!("{}u + (plane * {down} + row0 / {bm}u) * {across} + group.x", 4 * PARTS);
        self.word(k, &at)
    }

    /// Whether a tile was left to the plain kernel.
    pub(super) fn is_marked(&self, k: &mut Kernel<'_>, tiles: &Tiles<'_>) -> String {
        format!("({} != 0u)", self.mark(k, tiles))
    }
}

/// All launches of a split product.
pub(super) fn launches(tiles: &Tiles<'_>, units: Units, plain: Tile) -> Result<Lowered> {
    let size = [units.bm, units.bn];
    let plain = Tile { splits: units.splits, ..plain };
    if size != [plain.bm, plain.bn] || !units.bk.is_multiple_of(plain.bk) {
        bail!(Argument, "matmul", "a split product and its plain one are of equal tiles");
    }
    let marks = Marks::new(tiles, size, units.splits);
    let pieces = tiles.pieces(units.bm, units.splits);
    let mut all = vec![range(tiles, marks)?];
    for piece in &pieces {
        all.push(tiles.on_units(units, piece)?);
    }
    for piece in &pieces {
        let launch = tiles.tiled(plain, piece, Some((marks, units.bk)))?;
        // Few tiles are left to it.
        all.push(Launch { cost_flops: launch.cost_flops / 16, ..launch });
    }
    if units.splits > 1 {
        all.extend(pointwise::lower(tiles.cx, Some(Planes { splits: units.splits }))?.launches);
    }
    Ok(Lowered { launches: all, scratch_bytes: marks.offset + marks.words * 4 })
}

/// The launch that finds the largest and the smallest numbers of both operands.
fn range(tiles: &Tiles<'_>, marks: Marks) -> Result<Launch> {
    let mut k = Kernel::new(tiles.cx);
    let operands = [0, 1].map(|i| tiles.sides[i].operand);
    let elems = operands.map(|operand| k.operand(operand).shape.elems());
    for (operand, elems) in operands.into_iter().zip(elems) {
        k.reads(operand, if elems % 4 == 0 { Touch::Quad } else { Touch::Each });
    }
    marks.note(&mut k);
    let mut text = String::new();
    for ((operand, elems), condition) in operands.into_iter().zip(elems).zip(["!second", "second"]) {
        let quads = k.reads_quads(operand) && elems % 4 == 0;
        let count = k.word(&format!("count{operand}"), (if quads { elems / 4 } else { elems }) as i64);
        let each = |at: &str| {
            let (load, ty, part) = match quads {
                true => (k.load_quad(operand, &format!("({at}) * 4u")), "vec4<u32>", ""),
                false => (k.load(operand, at), "u32", ".x"),
            };
            format!(
                "{{\nlet size = bitcast<{ty}>({load}) & {ty}(0x7fffffffu);\nmost{part} = max(most{part}, size);\n\
                 least{part} = min(least{part}, size - {ty}(1u));\n}}\n"
            )
        };
        // Four loads on their way at a time.
        let four: String = (0..4).map(|q| each(&format!("i + {q}u * STEP"))).collect();
        let one = each("i");
        let _ = writeln!(
            text,
            "if ({condition}) {{\nvar i = first;\nfor (; i + 3u * STEP < {count}; i += 4u * STEP) {{\n{four}}}\n\
             for (; i < {count}; i += STEP) {{\n{one}}}\n}}"
        );
    }
    let store = format!(
        "{} = atomicLoad(&largest);\n{} = atomicLoad(&smallest);",
        marks.word(&k, "group.x"),
        marks.word(&k, "2u * PARTS + group.x")
    );
    let regions = [("range", text.as_str()), ("store", store.as_str())];
    let extra = format!("const PARTS = {PARTS}u;\n");
    k.finish(wgrad_wgsl::MATMUL_RANGE, &extra, &regions, [2 * PARTS, 1, 1], 0)
}

/// Workgroup memory and functions. `said` holds the largest and smallest numbers of both operands and what the tile
/// is, and words beyond, so that no array behind it starts between multiples of 16 bytes: NVIDIA's driver stores a matrix
/// to the multiple before.
pub(super) fn declared(units: &Units) -> String {
    format!(
        "var<workgroup> said: array<atomic<u32>, 8>;\n\
         var<workgroup> fa: array<atomic<u32>, {}>;\nvar<workgroup> fb: array<atomic<u32>, {}>;\n\
         const MOST_A = 0u;\nconst MOST_B = 1u;\nconst STATE = 2u;\nconst LEAST_A = 4u;\nconst LEAST_B = 5u;\n\
         fn power(e: i32) -> f32 {{ return bitcast<f32>(u32(e + 127) << 23u); }}\n\
         fn high(y: vec4<f32>) -> vec4<f32> {{\n\
         return bitcast<vec4<f32>>((bitcast<vec4<u32>>(y) + vec4<u32>(0x1000u)) & vec4<u32>(0xffffe000u));\n}}\n",
        units.bm, units.bn
    )
}

/// The scales, and what is tiny: `limit_a` and `limit_b` are the bits below which a number is, less 1. Only where
/// there is such a number is anything noted of others.
pub(super) fn scales(k: &mut Kernel<'_>, units: &Units, marks: Marks) -> String {
    let mut out = format!(
        "if (lane < 8u) {{ atomicStore(&said[lane], select(0u, 0xffffffffu, lane >= LEAST_A)); }}\n\
         for (var r = lane; r < {}u; r += WG) {{ atomicStore(&fa[r], 0u); }}\n\
         for (var r = lane; r < {}u; r += WG) {{ atomicStore(&fb[r], 0u); }}\n\
         workgroupBarrier();\nfor (var r = lane; r < {PARTS}u; r += WG) {{\n\
         atomicMax(&said[MOST_A], {});\natomicMax(&said[MOST_B], {});\n\
         atomicMin(&said[LEAST_A], {});\natomicMin(&said[LEAST_B], {});\n}}\nworkgroupBarrier();\n",
        units.bm,
        units.bn,
        marks.word(k, "r"),
        marks.word(k, &format!("{PARTS}u + r")),
        marks.word(k, &format!("{}u + r", 2 * PARTS)),
        marks.word(k, &format!("{}u + r", 3 * PARTS)),
    );
    for (name, word) in [("a", "MOST_A"), ("b", "MOST_B")] {
        let _ = writeln!(
            out,
            "let most_{name} = atomicLoad(&said[{word}]);\nlet e_{name} = i32(most_{name} >> 23u);\n\
             let up_{name} = clamp(141 - e_{name}, -126, 126);\nlet scale_{name} = power(up_{name});\n\
             let limit_{name} = (u32(max(e_{name} - 28, 1)) << 23u) - 1u;"
        );
    }
    out.push_str(
        "let careful = atomicLoad(&said[LEAST_A]) < limit_a || atomicLoad(&said[LEAST_B]) < limit_b;\n\
         let finite = max(most_a, most_b) < 0x7f800000u;\nlet end = select(begin, depth, finite);\n",
    );
    out
}

/// The sums of the cross terms, and what each invocation has seen in its rows or columns: tiny numbers in
/// bits 0 to 7, any that is not 0 in bits 8 to 15.
pub(super) fn registers(down: u32, across: u32) -> String {
    let mut out = "var seen_a = 0u;\nvar seen_b = 0u;\n".to_owned();
    for i in 0..down {
        for j in 0..across {
            let _ = writeln!(out, "var d{i}_{j}: coop_mat16x16<f32, C>;");
        }
    }
    out
}

/// Loads a tile, splits it, and puts it into workgroup memory. All loads come first, so that they are on their way
/// together: nothing moves them past a branch.
pub(super) fn stage(tiles: &Tiles<'_>, k: &mut Kernel<'_>, rows: &[Rows<'_>]) -> String {
    let mut out = "{\nlet kn = k0;\n".to_owned();
    let (mut noted, mut parts) = (String::new(), String::new());
    for row in rows {
        let name = row.side.name;
        out.push_str(&row.depths(tiles, k));
        for i in 0..row.units() {
            let _ = writeln!(out, "let x{name}{i} = {};", row.load(k, i));
            let seen = if row.side.along_k {
                format!(
                    "seen_{name} |= select(0u, {}u, any(tiny)) | select(0u, {}u, any(some));",
                    1 << i,
                    256 << i
                )
            } else {
                format!(
                    "let bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), tiny)\n\
                     | select(vec4<u32>(), vec4<u32>(256u, 512u, 1024u, 2048u), some);\n\
                     seen_{name} |= bits.x | bits.y | bits.z | bits.w;"
                )
            };
            let _ = writeln!(
                noted,
                "{{\nlet size = bitcast<vec4<u32>>(x{name}{i}) & vec4<u32>(0x7fffffffu);\n\
                 let tiny = (size - vec4<u32>(1u)) < vec4<u32>(limit_{name});\nlet some = size != vec4<u32>(0u);\n\
                 {seen}\n}}",
            );
            let _ = writeln!(
                parts,
                "{{\nlet y = x{name}{i} * scale_{name};\nlet hi = high(y);\nlet at = {};\n\
                 t{name}h[at] = vec4<f16>(hi);\nt{name}l[at] = vec4<f16>((y - hi) * 2048.0);\n}}",
                row.slot(i)
            );
        }
    }
    let _ = writeln!(out, "if (careful) {{\n{noted}}}\n{parts}}}");
    out
}

/// Looks for doubtful results where there were tiny numbers; stores the tile, or marks it.
pub(super) fn store(
    tiles: &Tiles<'_>,
    k: &mut Kernel<'_>,
    units: &Units,
    rows: &[Rows<'_>],
    marks: Marks,
) -> String {
    let mut out = "if (careful) {\n".to_owned();
    for row in rows {
        let name = row.side.name;
        let count = if row.side.along_k { row.units() } else { 4 };
        for i in 0..count {
            let at = if row.side.along_k {
                format!("{name}slow + {}u", i * row.apart())
            } else {
                format!("{name}f + {i}u")
            };
            let _ = writeln!(
                out,
                "atomicOr(&f{name}[{at}], ((seen_{name} >> {i}u) & 1u) | ((seen_{name} >> {}u) & 2u));",
                i + 7
            );
        }
    }
    out.push_str(
        "if (((seen_a | seen_b) & 255u) != 0u) { atomicOr(&said[STATE], 2u); }\n}\nworkgroupBarrier();\n",
    );
    for i in 0..units.wm / 16 {
        for j in 0..units.wn / 16 {
            let _ = writeln!(out, "let r{i}_{j} = c{i}_{j} + d{i}_{j} * 0.00048828125;");
        }
    }
    let steps = tiles.sizes.k.div_ceil(units.splits as usize);
    let doubt = k.word("doubt", i64::from(doubtful(steps).to_bits()));
    let value = |i: u32, j: u32| format!("r{i}_{j}");
    let look = |at: &Results| {
        let mut text = format!("let ga = atomicLoad(&fa[{}]);\n", at.m);
        for (q, value) in components(at.value).iter().enumerate() {
            let _ = writeln!(
                text,
                "let g{q} = atomicLoad(&fb[{} + {q}u]);\n\
                 if ((((ga | g{q}) & 1u) & ((ga & g{q}) >> 1u)) != 0u && abs({value}) < doubt) {{\n\
                 atomicOr(&said[STATE], 1u);\n}}",
                at.n
            );
        }
        text
    };
    let _ = writeln!(
        out,
        "let doubt = bitcast<f32>({doubt});\nif (finite && (atomicLoad(&said[STATE]) & 2u) != 0u) {{\n{}}}",
        strips(units, 1, &value, look)
    );
    let mark = marks.mark(k, tiles);
    let _ = writeln!(
        out,
        "let sure = finite && (atomicLoad(&said[STATE]) & 1u) == 0u;\n\
         if (lane == 0u) {{ {mark} = select(1u, 0u, sure); }}\nlet undo = -(up_a + up_b);\n\
         let undo_first = power(undo >> 1u);\nlet undo_second = power(undo - (undo >> 1u));"
    );
    let finish = |at: &Results| {
        // In two steps, so that neither overflows before the result does.
        format!("finish(plane, row0 + {}, col0 + {}, {} * undo_first * undo_second);\n", at.m, at.n, at.value)
    };
    let _ = writeln!(out, "if (sure) {{\n{}}}", strips(units, 1, &value, finish));
    out
}
