//! Matrix products: tiles in workgroup memory, tiles straight from storage, or a plain reduction for
//! vectors. Large K over few results is cut; the sums meet in a second launch.

mod address;
mod direct;
mod ending;
mod scales;
mod split;
mod staging;
mod stream;
mod units;

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use wgrad_graph::{Acc, AccKind, Binary, DType, Expr, Group, IndexId, Kind, Reduce, Result, Step, bail};

use super::kernel::{Cx, Kernel, Touch};
use super::pointwise::{self, Planes, Points, Site, XYZW};
use super::{points, reduce};
use address::{Side, sides};
use scales::Scales;
#[cfg(test)]
pub(crate) use split::DOUBTFUL;
use staging::{Staging, multiply};

use crate::choose::{self, Product, Tile, Work};
use crate::launch::{Launch, Lowered, On};

/// Sizes of the product.
#[derive(Copy, Clone)]
struct Sizes {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
}

pub(super) fn lower(cx: Cx<'_>) -> Result<Lowered> {
    lower_by(cx, None)
}

/// By the kernel `by`, else by the one that is chosen.
pub(super) fn lower_by(cx: Cx<'_>, by: Option<Product>) -> Result<Lowered> {
    let group = &*cx.step.group;
    let Kind::MatMul { a, b } = &group.kind else {
        bail!(Argument, "matmul", "was given another kind of group");
    };
    let rank = group.dims.len();
    if rank < 3 || group.reduced != 1 {
        bail!(Argument, "matmul", "needs axes [batch.., m, n, k], got {:?}", group.dims);
    }
    if points("matmul", group.outer())? == 0 {
        return Ok(Lowered::default());
    }
    let sizes = Sizes {
        batch: points("matmul", &group.dims[..rank - 3])?,
        m: group.dims[rank - 3],
        n: group.dims[rank - 2],
        k: group.dims[rank - 1],
    };
    let product = Tiles { cx, sizes, sides: sides(cx, *a, *b, sizes)? };
    match by.unwrap_or_else(|| choose::product(&product.work(), cx.caps)) {
        Product::Dot => dot(cx, *a, *b),
        Product::Tile(tile) => product.launches(tile.splits, tile.bm, |p| product.tiled(tile, p, None)),
        Product::Units(units) => product.launches(units.splits, units.bm, |p| product.on_units(units, p)),
        Product::Split(units, plain) => split::launches(&product, units, plain),
        Product::Stream(stream) => {
            product.launches(stream.splits, stream.rows, |p| product.streamed(stream, p))
        }
        Product::Direct(direct) => {
            product.launches(direct.splits, direct.rows, |p| product.direct(direct, p))
        }
    }
}

/// The product as a reduction over K.
fn dot(cx: Cx<'_>, a: (u16, IndexId), b: (u16, IndexId)) -> Result<Lowered> {
    let mut group: Group = (*cx.step.group).clone();
    let exprs = &mut group.body.exprs;
    let first = exprs.len() as u32;
    let dtype = |operand: u16| cx.graph.out(cx.step.group.operands[usize::from(operand)]).dtype;
    exprs.push((Expr::Load { operand: a.0, index: a.1 }, dtype(a.0)));
    exprs.push((Expr::Load { operand: b.0, index: b.1 }, dtype(b.0)));
    // Halves are widened; a cast of f32 to itself is none.
    exprs.push((Expr::Cast { x: first }, DType::F32));
    exprs.push((Expr::Cast { x: first + 1 }, DType::F32));
    exprs.push((Expr::Binary { op: Binary::Mul, x: first + 2, w: first + 3 }, DType::F32));
    group.accs = vec![Acc { kind: AccKind::Reduce(Reduce::Sum), x: first + 4 }];
    group.kind = Kind::Reduce;
    let step = Step { group: Arc::new(group), ..cx.step.clone() };
    reduce::lower(Cx { step: &step, ..cx })
}

/// The part of a product that one dispatch computes.
struct Piece {
    /// Rows, in tiles.
    rows: Range<usize>,
    /// Parts of the batch.
    planes: Range<usize>,
    /// Whether there are others.
    cut: bool,
}

impl Piece {
    /// `text` counted from the first tile of rows, or the first plane.
    fn from(&self, k: &mut Kernel<'_>, what: &str, text: &str) -> String {
        let first = if what == "rows" { self.rows.start } else { self.planes.start };
        if self.cut {
            format!("({text} + {})", k.word(&format!("from_{what}"), first as i64))
        } else {
            text.to_owned()
        }
    }
}

struct Tiles<'a> {
    cx: Cx<'a>,
    sizes: Sizes,
    sides: [Side; 2],
}

impl Tiles<'_> {
    fn rank(&self) -> usize {
        self.cx.step.group.dims.len()
    }

    fn count(&self) -> usize {
        self.sizes.batch * self.sizes.m * self.sizes.n
    }

    fn flops(&self) -> u64 {
        2 * self.count() as u64 * self.sizes.k as u64
    }

    /// The product in dispatches of `tall` rows a tile that are none too long for a watchdog: whole planes
    /// where there are enough of them, else rows of each.
    fn pieces(&self, tall: u32, splits: u32) -> Vec<Piece> {
        let (planes, tiles) = (self.sizes.batch * splits as usize, self.sizes.m.div_ceil(tall as usize));
        let wanted = choose::cuts(self.flops(), self.cx.caps);
        let (depth, height) = if wanted <= planes {
            (planes / wanted, tiles)
        } else {
            (1, (tiles / wanted.div_ceil(planes)).max(1))
        };
        let cut = depth < planes || height < tiles;
        let mut pieces = Vec::new();
        for plane in (0..planes).step_by(depth) {
            for tile in (0..tiles).step_by(height) {
                let (rows, planes) = (tile..tiles.min(tile + height), plane..planes.min(plane + depth));
                pieces.push(Piece { rows, planes, cut });
            }
        }
        pieces
    }

    /// The share of the work that a piece with `tall` rows a tile is.
    fn share(&self, piece: &Piece, tall: u32, splits: u32) -> u64 {
        let all = self.sizes.m.div_ceil(tall as usize) * self.sizes.batch * splits as usize;
        let part = piece.rows.len() * piece.planes.len();
        (self.flops() as f64 * part as f64 / all as f64) as u64
    }

    /// What decides how the product runs.
    fn work(&self) -> Work {
        let Sizes { batch, m, n, k } = self.sizes;
        let group = &self.cx.step.group;
        let factor = |operand| self.sides.iter().any(|side| side.operand == operand);
        let shared = group.body.exprs.iter().any(|(e, _)| match e {
            Expr::Load { operand, .. } | Expr::Gather { operand, .. } => factor(*operand),
            _ => false,
        });
        let bytes = |side: &Side| {
            let value = self.cx.graph.out(group.operands[usize::from(side.operand)]);
            value.shape.elems() * value.dtype.bytes()
        };
        Work {
            batch,
            m,
            n,
            k,
            // What ends a product has no use for f16.
            halves: !shared && self.sides.iter().all(|side| side.dtype == DType::F16),
            floats: self.sides.iter().all(|side| side.dtype == DType::F32),
            narrow: self.sides[1].dtype.is_half(),
            vectors: [0, 1].map(|i| self.sides[i].vector),
            columns: !self.sides[1].along_k,
            factor_bytes: self.sides.iter().map(bytes).sum(),
        }
    }

    /// The launches of all pieces by `one`, of `tall` rows a tile, and the one that adds the parts of K.
    fn launches(&self, splits: u32, tall: u32, one: impl Fn(&Piece) -> Result<Launch>) -> Result<Lowered> {
        let pieces = self.pieces(tall, splits);
        let mut launches = pieces.iter().map(one).collect::<Result<Vec<_>>>()?;
        if splits == 1 {
            return Ok(Lowered { launches, scratch_bytes: 0 });
        }
        launches.extend(pointwise::lower(self.cx, Some(Planes { splits }))?.launches);
        Ok(Lowered { launches, scratch_bytes: self.count() * splits as usize * 4 })
    }

    /// Notes the operands, with `halves` as f16; a vector that shares its buffer with single elements is none.
    fn note(&self, k: &mut Kernel<'_>, splits: u32, halves: bool) -> Option<bool> {
        for side in &self.sides {
            k.reads(
                side.operand,
                match (side.vector, halves) {
                    (true, false) => Touch::Quad,
                    (false, false) => Touch::Each,
                    (true, true) => Touch::HalfQuad,
                    (false, true) => Touch::Half,
                },
            );
        }
        let quads = self.sizes.n.is_multiple_of(4);
        if splits > 1 {
            k.scratch(self.count() * splits as usize, true, if quads { Touch::Quad } else { Touch::Each });
            return None;
        }
        let site = Points::new(self.cx, self.count());
        let wide = quads && site.wide();
        let flagged = site.note(k, wide, &[]);
        if flagged {
            k.flagged();
        }
        Some(wide)
    }

    fn vector(&self, k: &Kernel<'_>, side: &Side) -> bool {
        side.vector && k.reads_quads(side.operand)
    }

    /// `fn finish(z, m, n, value)`: stores four neighbours of a row.
    fn finish_text(&self, k: &mut Kernel<'_>, wide: Option<bool>) -> Result<String> {
        let rank = self.rank();
        let (m, n) = (k.dim(rank - 3), k.dim(rank - 2));
        let head = "fn finish(z: u32, m: u32, n: u32, value: vec4<f32>) {\n";
        let Some(wide) = wide else {
            let mut out = format!("{head}if (m < {m} && n < {n}) {{\nlet first = (z * {m} + m) * {n} + n;\n");
            if self.sizes.n.is_multiple_of(4) {
                let _ = writeln!(out, "{} = bitcast<vec4<u32>>(value);", k.scratch_quad("first"));
            } else {
                for (j, c) in XYZW.iter().enumerate() {
                    let word = k.scratch_word(&format!("first + {j}u"));
                    let _ = writeln!(out, "if (n + {j}u < {n}) {{ {word} = bitcast<u32>(value.{c}); }}");
                }
            }
            out.push_str("}\n}\n");
            return Ok(out);
        };
        let site = Points::new(self.cx, self.count());
        let (batch_text, mut coords) = self.batch_coords(k, "z");
        coords.extend(["m".to_owned(), "n".to_owned()]);
        if wide {
            let accs = XYZW.map(|c| vec![format!("value.{c}")]);
            let body = site.quad(k, Site { first: "first", coords: Some(coords), accs, ahead: false })?;
            return Ok(format!(
                "{head}if (m < {m} && n < {n}) {{\nlet first = (z * {m} + m) * {n} + n;\n{batch_text}{body}}}\n}}\n"
            ));
        }
        let body = site.one(k, "at", Some(coords), &["value".to_owned()])?;
        let calls: String = XYZW
            .iter()
            .enumerate()
            .map(|(j, c)| format!("if (n + {j}u < {n}) {{ finish_one(z, m, n + {j}u, value.{c}); }}\n"))
            .collect();
        Ok(format!(
            "fn finish_one(z: u32, m: u32, n: u32, value: f32) {{\nlet at = (z * {m} + m) * {n} + n;\n\
             {batch_text}{body}}}\n{head}if (m < {m}) {{\n{calls}}}\n}}\n"
        ))
    }

    fn sizes_text(&self, k: &mut Kernel<'_>) -> String {
        let rank = self.rank();
        let (m, n) = (k.dim(rank - 3), k.dim(rank - 2));
        format!("let rows = {m};\nlet columns = {n};\n")
    }

    /// The batch `z` and the part of K, `begin` to `{end}`, of plane `plane`; parts are multiples of `bk`.
    fn part(&self, k: &mut Kernel<'_>, bk: u32, splits: u32, end: &str) -> String {
        let depth = k.dim(self.rank() - 1);
        if splits == 1 {
            return format!("let z = plane;\nlet begin = 0u;\nlet {end} = {depth};\n");
        }
        let batch = k.word("batch", self.sizes.batch as i64);
        let chunk = self.sizes.k.div_ceil(splits as usize).next_multiple_of(bk as usize);
        let chunk = k.word("chunk", chunk as i64);
        format!(
            "let part = plane / {batch};\nlet z = plane - part * {batch};\n\
             let begin = part * {chunk};\nlet {end} = min(begin + {chunk}, {depth});\n"
        )
    }

    /// Where a workgroup's tile of `bm`, `bn`, `bk` lies; K ends at `end`.
    fn placed(
        &self,
        k: &mut Kernel<'_>,
        [bm, bn, bk]: [u32; 3],
        splits: u32,
        piece: &Piece,
        end: &str,
    ) -> String {
        let mut place = self.sizes_text(k);
        let (row, plane) = (piece.from(k, "rows", "group.y"), piece.from(k, "planes", "group.z"));
        let _ =
            writeln!(place, "let row0 = {row} * {bm}u;\nlet col0 = group.x * {bn}u;\nlet plane = {plane};");
        place.push_str(&self.part(k, bk, splits, end));
        let (text, coords) = self.batch_coords(k, "z");
        place.push_str(&text);
        for side in &self.sides {
            place.push_str(&self.origin(k, side, &coords));
        }
        place
    }

    /// The launch of a piece in workgroup memory; with `marks`, of those tiles alone that a product split by so
    /// many steps of K left over.
    fn tiled(&self, tile: Tile, piece: &Piece, marks: Option<(Scales, u32)>) -> Result<Launch> {
        let Tile { bm, bn, bk, tm, tn, splits } = tile;
        let (tx, ty) = (bn / tn, bm / tm);
        let wg = tx * ty;
        let mut k = Kernel::new(self.cx);
        let wide = self.note(&mut k, splits, false);
        let whole = self.sizes.k.is_multiple_of(bk as usize);
        let (end, steps) = match marks {
            Some((marks, steps)) => {
                k.on = On::Marked;
                marks.note(&mut k);
                ("depth", steps)
            }
            None => ("end", bk),
        };
        let mut place = self.placed(&mut k, [bm, bn, steps], splits, piece, end);
        let _ = writeln!(place, "let tx = lane % {tx}u;\nlet ty = lane / {tx}u;");
        if let Some((marks, _)) = marks {
            let is_marked = marks.is_marked(&mut k, self);
            let _ = writeln!(place, "let marked = {is_marked};\nlet end = select(begin, depth, marked);");
        }
        let mut start = String::new();
        for i in 0..tm {
            for j in 0..tn / 4 {
                let _ = writeln!(start, "var c{i}_{j} = vec4<f32>();");
            }
        }
        let next = if whole { format!("min(k0 + {bk}u, end - {bk}u)") } else { format!("k0 + {bk}u") };
        let (mut first, mut load, mut stage) =
            ("{\nlet kn = begin;\n".to_owned(), format!("{{\nlet kn = {next};\n"), String::new());
        let mut strides = [bm + 4, bn / 4];
        let mut tables = String::new();
        for (side, extent) in self.sides.iter().zip([bm, bn]) {
            let vector = self.vector(&k, side);
            if side.name == "b" && side.along_k {
                strides[1] += 1;
            }
            let staging = Staging { side, vector, extent, bk, wg, whole };
            place.push_str(&staging.place(self, &mut k));
            start.push_str(&staging.registers());
            first.push_str(&staging.load(self, &mut k, true));
            load.push_str(&staging.load(self, &mut k, false));
            stage.push_str(&staging.stage(strides));
            if staging.tabled() {
                start.push_str(&staging.table(self, &mut k, &format!("begin + {bk}u"), "0u"));
                load.push_str(&staging.table(self, &mut k, &format!("kn + {bk}u"), &format!("{bk}u - slot")));
                tables.push_str(&format!("var<workgroup> t{}k: array<u32, {}>;\n", side.name, 2 * bk));
            }
        }
        first.push_str("}\n");
        load.push_str("}\n");
        let mut store = String::new();
        let row = |i: u32| format!("ty * 4u + {}u", (i / 4) * ty * 4 + i % 4);
        for i in 0..tm {
            for j in 0..tn / 4 {
                let _ = writeln!(
                    store,
                    "finish(plane, row0 + {}, col0 + (tx + {}u) * 4u, c{i}_{j});",
                    row(i),
                    j * tx
                );
            }
        }
        if marks.is_some() {
            store = format!("if (marked) {{\n{store}}}\n");
            first = format!("if (marked) {{\n{first}}}\n");
        }
        let multiply = multiply(tile, strides);
        let finish = self.finish_text(&mut k, wide)?;
        let extra = format!(
            "const WG = {wg}u;\nvar<workgroup> ta: array<f32, {}>;\nvar<workgroup> tb: array<vec4<f32>, {}>;\n{tables}{finish}",
            bk * strides[0],
            bk * strides[1]
        );
        if !tables.is_empty() {
            load.insert_str(2, &format!("let slot = (k0 - begin) % {}u;\n", 2 * bk));
        }
        let grid = self.grid([bm, bn], piece)?;
        let regions = [
            ("place", place.as_str()),
            ("start", &start),
            ("load_first", &first),
            ("stage", &stage),
            ("load_next", &load),
            ("multiply", &multiply),
            ("store", &store),
        ];
        let file = wgrad_wgsl::MATMUL_TILE.replace("k0 += 16u", &format!("k0 += {bk}u"));
        k.finish(&file, &extra, &regions, grid, self.share(piece, bm, splits))
    }
}
