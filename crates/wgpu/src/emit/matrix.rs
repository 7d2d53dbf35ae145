//! Factorisations and solutions of small matrices: one workgroup a matrix.

use wgrad_graph::{Caps, DType, Matrix, Out, Result, bail};

use super::kernel::{Cx, Kernel, Touch};
use super::{fold, points};
use crate::choose;
use crate::launch::Lowered;

/// Where a workgroup keeps the elements that its invocations exchange.
struct Home {
    /// Words of all workgroups together, where they lie in scratch memory.
    scratch: usize,
    /// The functions `take`, `put` and `sync`.
    text: String,
}

impl Home {
    /// Room for `words` floats in each of `groups` workgroups. Storage that is not atomic is not seen by other
    /// invocations for certain, not even behind a barrier.
    fn new(k: &mut Kernel<'_>, name: &str, words: usize, groups: usize, spare: usize) -> Result<Home> {
        if let Some(room) = choose::matrix_room(words, spare, k.cx.caps) {
            let text = format!(
                "var<workgroup> memory: array<f32, {room}>;\n\
                 fn take(i: u32) -> f32 {{ return memory[i]; }}\n\
                 fn put(i: u32, x: f32) {{ memory[i] = x; }}\n\
                 fn sync() {{ workgroupBarrier(); }}\n"
            );
            return Ok(Home { scratch: 0, text });
        }
        let scratch = points(name, &[words, groups])?;
        k.scratch(scratch, true, Touch::Shared);
        let word = k.scratch_word("home + i");
        let text = format!(
            "fn take(i: u32) -> f32 {{ return bitcast<f32>(atomicLoad(&{word})); }}\n\
             fn put(i: u32, x: f32) {{ if (live) {{ atomicStore(&{word}, bitcast<u32>(x)); }} }}\n\
             fn sync() {{ storageBarrier(); workgroupBarrier(); }}\n"
        );
        Ok(Home { scratch, text })
    }
}

/// Refuses what a software driver would leave before its end: `turns` of its loops for each step of `0..n`, in
/// elements that `lanes` share.
fn fits(name: &str, n: usize, lanes: u32, caps: &Caps, turns: impl Fn(usize) -> usize) -> Result<()> {
    // Some further loops of a step have one turn or two.
    let all = (0..n).map(|k| turns(k).div_ceil(lanes as usize) + 8).sum();
    if !choose::runs_to_end(all, caps) {
        bail!(Limit, name, "{n} rows take more turns of a loop than {} makes", caps.name);
    }
    Ok(())
}

pub(super) fn lower(cx: Cx<'_>, kind: Matrix) -> Result<Lowered> {
    let name = kind.name();
    let node = cx.graph.node(cx.step.group.stores[0].val.node);
    let (a, out) = (cx.graph.out(node.inputs[0]), node.outs[0]);
    for dims in [a.shape.dims(), out.shape.dims()] {
        points(name, dims)?;
    }
    if a.dtype != DType::F32 {
        bail!(DType, name, "has no kernel for {}", a.dtype);
    }
    if out.shape.elems() == 0 {
        return Ok(Lowered::default());
    }
    let rank = a.shape.rank();
    let count: usize = a.shape.dims()[..rank - 2].iter().product();
    let on = Small { count, n: a.shape[rank - 1], out };
    match kind {
        Matrix::Cholesky => on.cholesky(cx),
        Matrix::Triangular { upper, unit } => on.triangular(cx, upper, unit),
        Matrix::Solve => on.lu(cx, name, None),
        Matrix::Slogdet => on.lu(cx, name, Some((0, 2))),
        Matrix::Det => on.lu(cx, name, Some((2, 1))),
    }
}

/// `count` matrices of `n` rows.
struct Small {
    count: usize,
    n: usize,
    out: Out,
}

impl Small {
    /// Columns of the result.
    fn columns(&self) -> usize {
        self.out.shape[self.out.shape.rank() - 1]
    }

    fn cholesky(&self, cx: Cx<'_>) -> Result<Lowered> {
        let (n, count) = (self.n, self.count);
        let mut k = Kernel::new(cx);
        k.reads(0, Touch::Each);
        k.writes(0, Touch::Each);
        let lanes = choose::matrix_lanes(n * n, cx.caps);
        fits("cholesky", n, lanes, cx.caps, |k| (n - k) * (n - k) + 4 * n)?;
        let home = Home::new(&mut k, "cholesky", n * n, count, 0)?;
        let sizes = k.declare_words(&[("count", count), ("n", n)]);
        let load = format!("let x = {};", k.load(0, "at"));
        let store = k.store(0, "at", "y");
        let regions = [("sizes", sizes.as_str()), ("load", &load), ("store", &store)];
        let extra = format!("const WG = {lanes}u;\n{}", home.text);
        let grid = fold(count as u64, cx.caps)?;
        let flops = (count * n * n) as u64 * n as u64 / 3;
        let launch = k.finish(wgrad_wgsl::MATRIX_CHOLESKY, &extra, &regions, grid, flops)?;
        Ok(Lowered { launches: vec![launch], scratch_bytes: home.scratch * 4 })
    }

    fn triangular(&self, cx: Cx<'_>, upper: bool, unit: bool) -> Result<Lowered> {
        let (n, count, columns) = (self.n, self.count, self.columns());
        let wide = choose::matrix_columns(n, columns);
        let groups = count * columns.div_ceil(wide);
        let mut k = Kernel::new(cx);
        k.reads(0, Touch::Each);
        k.reads(1, Touch::Each);
        k.writes(0, Touch::Each);
        let lanes = choose::matrix_lanes(n * wide, cx.caps);
        fits("solve_triangular", n, lanes, cx.caps, |k| (n - k + 4) * wide)?;
        let home = Home::new(&mut k, "solve_triangular", n * wide, groups, 0)?;
        let sizes = k.declare_words(&[("count", count), ("n", n), ("k", columns), ("wide", wide)]);
        let a = k.load(0, "at");
        let (pivot, left) = (format!("let pivot = {a};"), format!("let x = {a};"));
        let right = format!("let x = {};", k.load(1, "at"));
        let store = k.store(0, "at", "y");
        let regions = [
            ("sizes", sizes.as_str()),
            ("right", &right),
            ("pivot", &pivot),
            ("left", &left),
            ("store", &store),
        ];
        let extra =
            format!("const WG = {lanes}u;\nconst UPPER = {upper};\nconst UNIT = {unit};\n{}", home.text);
        let grid = fold(groups as u64, cx.caps)?;
        let flops = (count * n * columns) as u64 * n as u64;
        let launch = k.finish(wgrad_wgsl::MATRIX_TRIANGULAR, &extra, &regions, grid, flops)?;
        Ok(Lowered { launches: vec![launch], scratch_bytes: home.scratch * 4 })
    }

    /// A system of equations, or of what is known of the determinant the `part`: first and count.
    fn lu(&self, cx: Cx<'_>, name: &str, part: Option<(u32, u32)>) -> Result<Lowered> {
        let solve = part.is_none();
        let (first, many) = part.unwrap_or((0, 0));
        let (n, count) = (self.n, self.count);
        let width = if solve { n + self.columns() } else { n };
        let mut k = Kernel::new(cx);
        k.reads(0, Touch::Each);
        if solve {
            k.reads(1, Touch::Each);
        }
        k.writes(0, Touch::Each);
        let lanes = choose::matrix_lanes(n * width, cx.caps);
        // Every lane looks through what each found as its largest.
        let found = |k: usize| (n - k).min(lanes as usize) * lanes as usize;
        fits(name, n, lanes, cx.caps, |k| {
            (n - k) * (width - k) + (k + 4) * (width - n) + 6 * width + found(k)
        })?;
        let home = Home::new(&mut k, name, n * width, count, lanes as usize * 4)?;
        let sizes = k.declare_words(&[("count", count), ("n", n), ("w", width)]);
        let left = format!("x = {};", k.load(0, "at"));
        let right = if solve { format!("x = {};", k.load(1, "at")) } else { String::new() };
        let store = k.store(0, "at", "y");
        let none = String::new();
        let regions = [
            ("sizes", sizes.as_str()),
            ("left", &left),
            ("right", &right),
            ("solution", if solve { &store } else { &none }),
            ("determinant", if solve { &none } else { &store }),
        ];
        let extra = format!(
            "const WG = {lanes}u;\nconst SOLVE = {solve};\nconst FIRST = {first}u;\nconst COUNT = {many}u;\n{}",
            home.text
        );
        let grid = fold(count as u64, cx.caps)?;
        let flops = (count * n * width) as u64 * n as u64;
        let launch = k.finish(wgrad_wgsl::MATRIX_LU, &extra, &regions, grid, flops)?;
        Ok(Lowered { launches: vec![launch], scratch_bytes: home.scratch * 4 })
    }
}
