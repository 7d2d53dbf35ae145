//! The scales of a split product, a power of two for each row of A and each column of B: a launch finds the
//! largest and the smallest number of each, and every workgroup of the product makes scales of them.

use std::fmt::Write as _;

use wgrad_graph::Result;

use super::super::kernel::{Kernel, Touch};
use super::Tiles;
use super::units::Rows;
use crate::choose::Units;
use crate::launch::Launch;

/// Rows or columns of a workgroup that looks for the largest numbers.
const TALL: u32 = 128;
/// Steps of K that it loads at a time, four vectors an invocation.
const STEP: u32 = 32;
/// Its invocations.
const WG: u32 = 256;
/// Workgroups that load as fast as an H200 can: eight for each multiprocessor.
const BUSY: usize = 1056;
/// Most parts of K: every workgroup of the product combines them.
const PARTS: usize = 16;

/// Where the largest and smallest numbers and the marks lie in scratch memory, after the sums of parts of K.
#[derive(Copy, Clone)]
pub(super) struct Scales {
    bm: u32,
    bn: u32,
    /// Bytes before them.
    offset: usize,
    /// Parts of K that are looked at apart from each other.
    parts: usize,
    /// Rows of A and columns of B, of all the batch.
    counts: [usize; 2],
    /// The numbers of both factors, and a mark for each tile.
    words: usize,
}

impl Scales {
    pub(super) fn new(tiles: &Tiles<'_>, [bm, bn]: [u32; 2], splits: u32) -> Scales {
        let super::Sizes { batch, m, n, k } = tiles.sizes;
        let planes = if splits > 1 { tiles.count() * splits as usize * 4 } else { 0 };
        let groups = batch * (m.div_ceil(TALL as usize) + n.div_ceil(TALL as usize));
        let wanted = (BUSY / groups.max(1)).min(k / 128).clamp(1, PARTS);
        let parts = k.div_ceil(k.div_ceil(wanted).next_multiple_of(STEP as usize));
        let marks = batch * splits as usize * m.div_ceil(bm as usize) * n.div_ceil(bn as usize);
        Scales {
            bm,
            bn,
            offset: planes.next_multiple_of(tiles.cx.caps.align_bytes),
            parts,
            counts: [batch * m, batch * n],
            words: 2 * parts * batch * (m + n) + marks,
        }
    }

    /// Scratch memory up to the end of the marks.
    pub(super) fn bytes(&self) -> usize {
        self.offset + self.words * 4
    }

    /// Notes the scratch memory.
    pub(super) fn note(&self, k: &mut Kernel<'_>) {
        k.scratch_at(self.offset, self.words, true, Touch::Each);
    }

    fn word(&self, k: &Kernel<'_>, at: &str) -> String {
        k.scratch_word_at(self.offset, at)
    }

    /// Words before the largest numbers of factor `side`, before its smallest ones, and before the marks.
    fn starts(&self, k: &mut Kernel<'_>) -> [String; 4] {
        let [a, b] = self.counts.map(|count| count * self.parts);
        let names = ["least_a", "most_b", "least_b", "marks"];
        let values = [a, 2 * a, 2 * a + b, 2 * (a + b)];
        std::array::from_fn(|i| k.word(names[i], values[i] as i64))
    }

    /// The mark of a workgroup's tile.
    pub(super) fn mark(&self, k: &mut Kernel<'_>, tiles: &Tiles<'_>) -> String {
        let (bm, bn) = (self.bm, self.bn);
        let [.., first] = self.starts(k);
        let down = k.word("tiles_down", tiles.sizes.m.div_ceil(bm as usize) as i64);
        let across = k.word("tiles_across", tiles.sizes.n.div_ceil(bn as usize) as i64);
        let at = format!("{first} + (plane * {down} + row0 / {bm}u) * {across} + col0 / {bn}u");
        self.word(k, &at)
    }

    /// Whether a tile was left to the plain kernel.
    pub(super) fn is_marked(&self, k: &mut Kernel<'_>, tiles: &Tiles<'_>) -> String {
        format!("({} != 0u)", self.mark(k, tiles))
    }

    /// The launch that finds the largest and the smallest numbers.
    pub(super) fn find(&self, tiles: &Tiles<'_>) -> Result<Launch> {
        let mut k = Kernel::new(tiles.cx);
        for side in &tiles.sides {
            k.reads(side.operand, if side.vector { Touch::Quad } else { Touch::Each });
        }
        self.note(&mut k);
        let depth = tiles.sizes.k;
        let chunk = depth.div_ceil(self.parts).next_multiple_of(STEP as usize);
        let whole = depth.is_multiple_of(STEP as usize);
        let mut range = tiles.sizes_text(&mut k);
        let (depth, chunk) = (k.dim(tiles.rank() - 1), k.word("chunk", chunk as i64));
        let (batch_text, coords) = tiles.batch_coords(&mut k, "z");
        let _ = writeln!(
            range,
            "let tiles = (rows + TILE - 1u) / TILE;\nlet second = group.x >= tiles;\n\
             let first = select(group.x, group.x - tiles, second) * TILE;\n\
             let count = select(rows, columns, second);\nlet z = group.z;\n\
             let begin = group.y * {chunk};\nlet end = min(begin + {chunk}, {depth});\n{batch_text}"
        );
        for (side, condition) in tiles.sides.iter().zip(["!second", "second"]) {
            let vector = tiles.vector(&k, side);
            let rows = Rows { side, vector, extent: TALL, bk: STEP, wg: WG, whole, halves: false };
            let at = if side.name == "a" { "row0" } else { "col0" };
            let _ = writeln!(range, "if ({condition}) {{\nlet {at} = first;");
            range.push_str(&tiles.origin(&mut k, side, &coords));
            range.push_str(&rows.place(tiles, &mut k));
            range.push_str(&look(tiles, &mut k, &rows));
            range.push_str("}\n");
        }
        let [least_a, most_b, least_b, _] = self.starts(&mut k);
        let batch = k.word("batch", tiles.sizes.batch as i64);
        let (most, least) = (self.word(&k, "most + at"), self.word(&k, "least + at"));
        let store = format!(
            "if (lane < TILE && first + lane < count) {{\nlet most = select(0u, {most_b}, second);\n\
             let least = select({least_a}, {least_b}, second);\n\
             let at = (group.y * {batch} + z) * count + first + lane;\n\
             {most} = atomicLoad(&largest[lane]);\n{least} = atomicLoad(&smallest[lane]);\n}}\n"
        );
        let super::Sizes { batch, m, n, .. } = tiles.sizes;
        let across = m.div_ceil(TALL as usize) + n.div_ceil(TALL as usize);
        let grid = [across as u32, self.parts as u32, batch as u32];
        k.finish(wgrad_wgsl::MATMUL_RANGE, "", &[("range", &range), ("store", &store)], grid, 0)
    }

    /// What a workgroup of the product knows of its rows and columns: the bits of the scale, a power of two, and
    /// in the lowest ones whether there is any number but 0, and any that is tiny.
    pub(super) fn read(&self, tiles: &Tiles<'_>, k: &mut Kernel<'_>, units: &Units) -> String {
        let [least_a, most_b, least_b, _] = self.starts(k);
        let batch = k.word("batch", tiles.sizes.batch as i64);
        let parts = k.word("parts", self.parts as i64);
        let mut out = "if (lane < 4u) { atomicStore(&said[lane], 0u); }\nworkgroupBarrier();\n".to_owned();
        for (name, extent, at, count, most, least) in [
            ("a", units.bm, "row0", "rows", "0u", &*least_a),
            ("b", units.bn, "col0", "columns", &*most_b, &*least_b),
        ] {
            let largest = self.word(k, &format!("{most} + at"));
            let smallest = self.word(k, &format!("{least} + at"));
            let _ = writeln!(
                out,
                "for (var r = lane; r < {extent}u; r += WG) {{\n\
                 var at = z * {count} + min({at} + r, {count} - 1u);\nvar most = 0u;\nvar least = 0xffffffffu;\n\
                 for (var p = 0u; p < {parts}; p += 1u) {{\nmost = max(most, {largest});\n\
                 least = min(least, {smallest});\nat += {batch} * {count};\n}}\n\
                 let e = i32(most >> 23u);\n\
                 let tiny = least < (u32(max(e - 28, 1)) << 23u) - 1u;\n\
                 f{name}[r] = (u32(clamp(141 - e, -126, 126) + 127) << 23u)\n\
                 | select(0u, TINY, tiny) | select(0u, SOME, most > 0u);\n\
                 if (tiny) {{ atomicStore(&said[CAREFUL], 1u); }}\n\
                 if (most >= 0x7f800000u) {{ atomicStore(&said[INFINITE], 1u); }}\n}}"
            );
        }
        out.push_str(
            "workgroupBarrier();\nlet careful = atomicLoad(&said[CAREFUL]) > 0u;\n\
             let finite = atomicLoad(&said[INFINITE]) == 0u;\nlet end = select(begin, depth, finite);\n",
        );
        out
    }
}

/// Looks at all numbers of a tile of rows or columns from `begin` to `end`.
fn look(tiles: &Tiles<'_>, k: &mut Kernel<'_>, rows: &Rows<'_>) -> String {
    let (name, along_k) = (rows.side.name, rows.side.along_k);
    let depths = rows.depths(tiles, k);
    let (mut declared, mut loads, mut sizes, mut end) =
        (String::new(), String::new(), String::new(), String::new());
    let (count, ty) = if along_k { (rows.units(), "u32") } else { (1, "vec4<u32>") };
    for i in 0..count {
        let _ = writeln!(declared, "var most{i} = {ty}();\nvar least{i} = {ty}(0xffffffffu);");
    }
    for i in 0..rows.units() {
        let _ = writeln!(loads, "let x{i} = {};", rows.load(k, i));
        let _ = writeln!(sizes, "let s{i} = bitcast<vec4<u32>>(x{i}) & vec4<u32>(0x7fffffffu);");
        let _ = if along_k {
            writeln!(
                sizes,
                "let t{i} = s{i} - vec4<u32>(1u);\n\
                 most{i} = max(most{i}, max(max(s{i}.x, s{i}.y), max(s{i}.z, s{i}.w)));\n\
                 least{i} = min(least{i}, min(min(t{i}.x, t{i}.y), min(t{i}.z, t{i}.w)));"
            )
        } else {
            writeln!(sizes, "most0 = max(most0, s{i});\nleast0 = min(least0, s{i} - vec4<u32>(1u));")
        };
        if along_k {
            let at = format!("{name}slow + {}u", i * rows.apart());
            let _ =
                writeln!(end, "atomicMax(&largest[{at}], most{i});\natomicMin(&smallest[{at}], least{i});");
        }
    }
    if !along_k {
        for (q, c) in super::XYZW.iter().enumerate() {
            let at = format!("{name}f + {q}u");
            let _ = writeln!(
                end,
                "atomicMax(&largest[{at}], most0.{c});\natomicMin(&smallest[{at}], least0.{c});"
            );
        }
    }
    format!("{declared}for (var kn = begin; kn < end; kn += {STEP}u) {{\n{depths}{loads}{sizes}}}\n{end}")
}
