//! Matrix products: tiles in workgroup memory, tiles straight from storage, or a plain reduction for
//! vectors. Large K over few results is cut; the sums meet in a second launch.

mod staging;

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use wgrad_graph::{
    Acc, AccKind, Binary, DType, Expr, Group, IndexId, Kind, Line, Reduce, Result, Step, bail, stride,
};

use super::kernel::{Cx, Kernel, Touch};
use super::pointwise::{self, Planes, Points, Site, XYZW};
use super::{points, reduce};
use staging::{Fragments, Staging, multiply};

use crate::choose::{self, Product, Tile};
use crate::launch::{Launch, Lowered};

/// One operand of the product: how its elements are reached. `mn` is its axis beside K.
struct Side {
    name: &'static str,
    operand: u16,
    batch: Vec<Line>,
    mn: Line,
    k: Line,
    offset: i64,
    /// Whether neighbours in memory lie along K.
    along_k: bool,
    /// Whether four neighbours are an aligned vector.
    vector: bool,
}

/// Sizes of the product.
#[derive(Copy, Clone)]
struct Sizes {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
}

pub(super) fn lower(cx: Cx<'_>) -> Result<Lowered> {
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
    match choose::product(sizes.batch, sizes.m, sizes.n, sizes.k, cx.caps) {
        Product::Dot => dot(cx, *a, *b),
        Product::Tile(tile) => {
            let product = Tiles { cx, sizes, sides: sides(cx, *a, *b, sizes)? };
            product.launches(tile)
        }
        Product::Direct { rows, vectors } => {
            let product = Tiles { cx, sizes, sides: sides(cx, *a, *b, sizes)? };
            let pieces = product.pieces(rows, 1).into_iter();
            let launches =
                pieces.map(|piece| product.direct(rows, vectors, &piece)).collect::<Result<_>>()?;
            Ok(Lowered { launches, scratch_bytes: 0 })
        }
    }
}

/// The product as a reduction over K.
fn dot(cx: Cx<'_>, a: (u16, IndexId), b: (u16, IndexId)) -> Result<Lowered> {
    let mut group: Group = (*cx.step.group).clone();
    let exprs = &mut group.body.exprs;
    let first = exprs.len() as u32;
    exprs.push((Expr::Load { operand: a.0, index: a.1 }, DType::F32));
    exprs.push((Expr::Load { operand: b.0, index: b.1 }, DType::F32));
    exprs.push((Expr::Binary { op: Binary::Mul, x: first, w: first + 1 }, DType::F32));
    group.accs = vec![Acc { kind: AccKind::Reduce(Reduce::Sum), x: first + 2 }];
    group.kind = Kind::Reduce;
    let step = Step { group: Arc::new(group), ..cx.step.clone() };
    reduce::lower(Cx { step: &step, ..cx })
}

fn sides(cx: Cx<'_>, a: (u16, IndexId), b: (u16, IndexId), sizes: Sizes) -> Result<[Side; 2]> {
    let group = &cx.step.group;
    let rank = group.dims.len();
    let side = |name, (operand, index): (u16, IndexId), axis: usize, size: usize| {
        let Some(digits) = group.body.indices[usize::from(index)].digits() else {
            bail!(Argument, "matmul", "operand {name} is no sum over digits");
        };
        let (mn, k) = (digits.axes[axis].clone(), digits.axes[rank - 1].clone());
        let batch = digits.axes[..rank - 3].to_vec();
        let multiple = |line: &Line| line.iter().all(|(_, stride)| stride % 4 == 0);
        let fours = digits.offset % 4 == 0 && batch.iter().all(multiple);
        let rows = stride(&k) == Some(1) && sizes.k.is_multiple_of(4) && multiple(&mn);
        let columns = stride(&mn) == Some(1) && size.is_multiple_of(4) && multiple(&k);
        // Neighbours in memory, as many as follow each other.
        let run = |line: &Line| line.last().filter(|digit| digit.1 == 1).map_or(0, |digit| digit.0);
        Ok(Side {
            name,
            operand,
            along_k: if rows || columns { !columns } else { run(&k) > run(&mn) },
            vector: fours && (rows || columns),
            batch,
            mn,
            k,
            offset: digits.offset,
        })
    };
    Ok([side("a", a, rank - 3, sizes.m)?, side("b", b, rank - 2, sizes.n)?])
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

    fn launches(&self, tile: Tile) -> Result<Lowered> {
        let pieces = self.pieces(tile.bm, tile.splits);
        let mut launches = pieces.iter().map(|p| self.tiled(tile, p)).collect::<Result<Vec<_>>>()?;
        if tile.splits == 1 {
            return Ok(Lowered { launches, scratch_bytes: 0 });
        }
        launches.extend(pointwise::lower(self.cx, Some(Planes { splits: tile.splits }))?.launches);
        Ok(Lowered { launches, scratch_bytes: self.count() * tile.splits as usize * 4 })
    }

    /// Notes the operands; a vector that shares its buffer with single elements is none.
    fn note(&self, k: &mut Kernel<'_>, splits: u32) -> Option<bool> {
        for side in &self.sides {
            k.reads(side.operand, if side.vector { Touch::Quad } else { Touch::Each });
        }
        let quads = self.sizes.n.is_multiple_of(4);
        if splits > 1 {
            k.scratch(self.count() * splits as usize, true, if quads { Touch::Quad } else { Touch::Each });
            return None;
        }
        let site = Points::new(self.cx, self.count());
        let wide = quads && site.wide();
        let flagged = site.note(k, wide);
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
            let body = site.quad(k, Site { first: "first", coords: Some(coords), accs })?;
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

    /// The batch coordinates of `z`: text and names.
    fn batch_coords(&self, k: &mut Kernel<'_>, z: &str) -> (String, Vec<String>) {
        let axes = self.rank() - 3;
        let mut text = String::new();
        let mut names = vec![String::new(); axes];
        let mut rest = z.to_owned();
        for axis in (1..axes).rev() {
            let size = k.dim(axis);
            let _ =
                writeln!(text, "let zq{axis} = {rest} / {size};\nlet z{axis} = {rest} - zq{axis} * {size};");
            names[axis] = format!("z{axis}");
            rest = format!("zq{axis}");
        }
        if let Some(first) = names.first_mut() {
            *first = rest;
        }
        (text, names)
    }

    /// `let {name}z = ` the element of `side` at row or column 0 and k 0 of the batch.
    fn origin(&self, k: &mut Kernel<'_>, side: &Side, coords: &[String]) -> String {
        let name = side.name;
        let mut terms = Vec::new();
        if side.offset != 0 {
            terms.push(k.word(&format!("{name}0"), side.offset));
        }
        let mut text = String::new();
        for (axis, line) in side.batch.iter().enumerate() {
            let words = format!("{name}z{axis}");
            terms.extend(self.digits(k, &words, &words, &coords[axis], line, &mut text));
        }
        let sum = if terms.is_empty() { "0u".to_owned() } else { terms.join(" + ") };
        format!("{text}let {name}z = {sum};\n")
    }

    /// The sum of the digits of `coord` times their strides, unless it is 0; what it needs goes to `text`.
    /// Sizes and strides are the words `words`, names begin with `prefix`.
    fn digits(
        &self,
        k: &mut Kernel<'_>,
        words: &str,
        prefix: &str,
        coord: &str,
        line: &Line,
        text: &mut String,
    ) -> Option<String> {
        let times = |k: &mut Kernel<'_>, digit: usize, coord: &str| match line[digit].1 {
            0 => None,
            1 => Some(coord.to_owned()),
            stride if line.len() == 1 => Some(format!("{coord} * {}", k.word(words, stride))),
            stride => Some(format!("{coord} * {}", k.word(&format!("{words}s{digit}"), stride))),
        };
        let mut terms = Vec::new();
        let mut rest = coord.to_owned();
        for digit in (1..line.len()).rev() {
            let size = k.word(&format!("{words}d{digit}"), line[digit].0 as i64);
            let _ = writeln!(
                text,
                "let {prefix}q{digit} = ({rest}) / {size};\n\
                 let {prefix}r{digit} = ({rest}) - {prefix}q{digit} * {size};"
            );
            terms.extend(times(k, digit, &format!("{prefix}r{digit}")));
            rest = format!("{prefix}q{digit}");
        }
        if !line.is_empty() {
            terms.extend(times(k, 0, &rest));
        }
        (!terms.is_empty()).then(|| terms.join(" + "))
    }

    /// What coordinate `text` of `side` beside K (or along K) adds to the element; what it needs goes to
    /// `out`, under names that begin with `prefix`.
    fn term(
        &self,
        k: &mut Kernel<'_>,
        side: &Side,
        of_k: bool,
        prefix: &str,
        coord: &str,
        out: &mut String,
    ) -> String {
        let (axis, line) = if of_k { ("k", &side.k) } else { ("m", &side.mn) };
        let words = format!("{}{axis}", side.name);
        self.digits(k, &words, prefix, coord, line, out).unwrap_or_else(|| "0u".to_owned())
    }

    fn sizes_text(&self, k: &mut Kernel<'_>) -> String {
        let rank = self.rank();
        let (m, n) = (k.dim(rank - 3), k.dim(rank - 2));
        format!("let rows = {m};\nlet columns = {n};\n")
    }

    fn tiled(&self, tile: Tile, piece: &Piece) -> Result<Launch> {
        let Tile { bm, bn, bk, tm, tn, splits } = tile;
        let (tx, ty) = (bn / tn, bm / tm);
        let wg = tx * ty;
        let mut k = Kernel::new(self.cx);
        let wide = self.note(&mut k, splits);
        let whole = self.sizes.k.is_multiple_of(bk as usize);
        let mut place = self.sizes_text(&mut k);
        let depth = k.dim(self.rank() - 1);
        let (row, plane) = (piece.from(&mut k, "rows", "group.y"), piece.from(&mut k, "planes", "group.z"));
        let _ =
            writeln!(place, "let row0 = {row} * {bm}u;\nlet col0 = group.x * {bn}u;\nlet plane = {plane};");
        if splits > 1 {
            let batch = k.word("batch", self.sizes.batch as i64);
            let chunk = k.word("chunk", self.chunk(tile) as i64);
            let _ = writeln!(
                place,
                "let part = plane / {batch};\nlet z = plane - part * {batch};\n\
                 let begin = part * {chunk};\nlet end = min(begin + {chunk}, {depth});"
            );
        } else {
            let _ = writeln!(place, "let z = plane;\nlet begin = 0u;\nlet end = {depth};");
        }
        let _ = writeln!(place, "let tx = lane % {tx}u;\nlet ty = lane / {tx}u;");
        let (text, coords) = self.batch_coords(&mut k, "z");
        place.push_str(&text);
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
            place.push_str(&self.origin(&mut k, side, &coords));
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
        let across = self.sizes.n.div_ceil(bn as usize) as u32;
        let grid = [across, piece.rows.len() as u32, piece.planes.len() as u32];
        if let Some(over) = grid.iter().find(|g| **g > self.cx.caps.max_workgroups) {
            bail!(Limit, "matmul", "{over} workgroups on one axis are more than the device takes");
        }
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

    /// Steps of K in one split, whole tiles.
    fn chunk(&self, tile: Tile) -> usize {
        self.sizes.k.div_ceil(tile.splits as usize).next_multiple_of(tile.bk as usize)
    }

    fn direct(&self, rows: u32, vectors: u32, piece: &Piece) -> Result<Launch> {
        let wg = choose::pointwise_workgroup(self.cx.caps);
        let mut k = Kernel::new(self.cx);
        let wide = self.note(&mut k, 1);
        let steps = if self.sizes.k.is_multiple_of(4) { 4 } else { 1 };
        let width = vectors * 4;
        let across = self.sizes.n.div_ceil(width as usize);
        let down = piece.rows.len();
        let mut place = self.sizes_text(&mut k);
        let end = k.dim(self.rank() - 1);
        let across_word = k.word("across", across as i64);
        let count = k.word("count", (across * down) as i64);
        let (row, plane) = (piece.from(&mut k, "rows", "down"), piece.from(&mut k, "planes", "group.z"));
        let _ = writeln!(
            place,
            "let end = {end};\nlet count = {count};\nlet down = at / {across_word};\n\
             let row0 = {row} * {rows}u;\nlet col0 = (at - down * {across_word}) * {width}u;"
        );
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
                let _ = writeln!(store, "finish(z, row0 + {i}u, col0 + {}u, c{i}_{j});", j * 4);
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
        let groups = super::fold((across * down).div_ceil(wg as usize) as u64, self.cx.caps)?;
        let grid = [groups[0], groups[1], piece.planes.len() as u32];
        if grid[2] > self.cx.caps.max_workgroups {
            bail!(Limit, "matmul", "a batch of {} is more than the device takes", self.sizes.batch);
        }
        let regions =
            [("place", place.as_str()), ("start", &start), ("multiply", &multiply), ("store", &store)];
        let file = wgrad_wgsl::MATMUL_DIRECT.replace("let z = group.z;", &format!("let z = {plane};"));
        k.finish(&file, &extra, &regions, grid, self.share(piece, rows, 1))
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
