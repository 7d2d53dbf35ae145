//! The workloads: what is computed, on which shapes, what it costs.

use wgrad::prelude::*;
use wgrad::{Attention, Conv, Kept, Pass, Result, vjp};
use wgrad_benches::{Input as Operand, Kind, Row, copies};

/// What a run costs at least, by which its speed is counted.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Cost {
    /// Bytes that have to be read and written.
    Bytes(f64),
    /// Floating operations.
    Flops(f64),
}

/// An operand.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) data: Operand,
    /// Whether rows of the results follow from the same rows of this operand alone.
    pub(crate) by_rows: bool,
}

type Run = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// A workload.
pub(crate) struct Work {
    pub(crate) name: String,
    /// What peers know it by.
    op: &'static str,
    pub(crate) inputs: Vec<Input>,
    pub(crate) cost: Cost,
    /// Largest difference allowed, relative to the largest number of the result.
    pub(crate) tolerance: f64,
    pub(crate) run: Box<Run>,
    /// Results that take the place of operands.
    keeps: &'static [[usize; 2]],
}

fn float(dims: &[usize]) -> Input {
    Input { data: Operand { dims: dims.to_vec(), kind: Kind::F32, bound: 0 }, by_rows: false }
}

fn rows(dims: &[usize]) -> Input {
    Input { by_rows: true, ..float(dims) }
}

fn ints(dims: &[usize], bound: usize) -> Input {
    Input { data: Operand { dims: dims.to_vec(), kind: Kind::I32, bound }, by_rows: false }
}

impl Input {
    fn half(self) -> Input {
        Input { data: Operand { kind: Kind::F16, ..self.data }, ..self }
    }
}

fn work(
    op: &'static str,
    name: impl Into<String>,
    inputs: impl IntoIterator<Item = Input>,
    cost: Cost,
    run: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Work {
    Work {
        name: name.into(),
        op,
        inputs: inputs.into_iter().collect(),
        cost,
        tolerance: 1e-5,
        run: Box::new(run),
        keeps: &[],
    }
}

impl Work {
    /// Each run goes on from the operands `[result, operand]` that the one before has left.
    fn keeping(self, keeps: &'static [[usize; 2]]) -> Work {
        Work { keeps, ..self }
    }

    fn within(self, tolerance: f64) -> Work {
        Work { tolerance, ..self }
    }

    /// It as data, for peers.
    pub(crate) fn row(&self) -> Row {
        Row {
            name: self.name.clone(),
            op: self.op.to_owned(),
            inputs: self.inputs.iter().map(|input| input.data.clone()).collect(),
            tolerance: self.tolerance,
            model: None,
        }
    }

    /// Whether a few rows of it tell whether all are right.
    pub(crate) fn is_by_rows(&self) -> bool {
        self.inputs.iter().any(|input| input.by_rows)
    }
}

fn matmul([m, k, n]: [usize; 3], half: bool) -> Work {
    let flops = Cost::Flops(2.0 * m as f64 * k as f64 * n as f64);
    let (a, b) = (rows(&[m, k]), float(&[k, n]));
    let run = |x: &[Tensor]| Ok(vec![x[0].try_matmul(x[1])?]);
    match half {
        true => {
            work("matmul", format!("matmul f16 {m}x{k}x{n}"), [a.half(), b.half()], flops, run).within(2e-3)
        }
        false => work("matmul", format!("matmul f32 {m}x{k}x{n}"), [a, b], flops, run),
    }
}

/// A product of rows that differ much in size, as those of gradients do.
fn matmul_by_rows([m, k, n]: [usize; 3]) -> Work {
    let sizes = |input: Input| Input { data: Operand { bound: 27, ..input.data }, ..input };
    let plain = matmul([m, k, n], false);
    let inputs = plain.inputs.iter().cloned().map(sizes).collect();
    Work { name: format!("{} by rows", plain.name), op: "matmul_by_rows", inputs, ..plain }
}

fn attention([b, h, t, d]: [usize; 4], half: bool, backward: bool) -> Work {
    let one = rows(&[b * h, t, d]);
    let one = if half { one.half() } else { one };
    let products = if backward { 7.0 } else { 2.0 };
    // Causal: half of all pairs.
    let flops = Cost::Flops(products * (b * h * t * t * d) as f64);
    let dtype = if half { "f16" } else { "f32" };
    let way = if backward { "forward+backward" } else { "forward" };
    let causal = |x: &[Tensor]| {
        x[0].try_scaled_dot_product_attention(x[1], x[2], Attention { causal: true, ..Default::default() })
    };
    let run = move |x: &[Tensor]| match backward {
        false => Ok(vec![causal(x)?]),
        true => vjp(&[causal(x)?], &[x[3]], &x[..3]),
    };
    let name = format!("attention {dtype} causal B{b} H{h} T{t} D{d} {way}");
    work(
        if backward { "attention_backward" } else { "attention" },
        name,
        vec![one; if backward { 4 } else { 3 }],
        flops,
        run,
    )
    .within(if half { 4e-3 } else { 2e-5 })
}

fn conv(dims: [usize; 4], filters: usize, half: bool, gradients: bool) -> Work {
    let [b, c, h, w] = dims;
    let each = 2.0 * (b * c * h * w * filters * 9) as f64;
    let (x, k, g) = (rows(&dims), float(&[filters, c, 3, 3]), rows(&[b, filters, h, w]));
    let kind = |input: Input| if half { input.half() } else { input };
    let same =
        |x: &[Tensor]| x[0].try_conv2d(x[1], None, Conv { padding: [1, 1].into(), ..Default::default() });
    let dtype = if half { "f16" } else { "f32" };
    let tolerance = if half { 4e-3 } else { 2e-5 };
    if gradients {
        let name = format!("conv2d {dtype} {b}x{c}x{h}x{w} {filters} 3x3 both gradients");
        // The filters' gradient is a sum over all rows.
        let inputs = [x, k, g].map(kind).map(|input| Input { by_rows: false, ..input });
        return work("conv2d_backward", name, inputs, Cost::Flops(2.0 * each), move |x| {
            vjp(&[same(x)?], &[x[2]], &x[..2])
        })
        .within(tolerance);
    }
    let name = format!("conv2d {dtype} {b}x{c}x{h}x{w} {filters} 3x3");
    work("conv2d", name, [x, k].map(kind), Cost::Flops(each), move |x| Ok(vec![same(x)?])).within(tolerance)
}

/// Workloads of rows: normalisations, softmax, sums, their gradients.
fn of_rows(m: usize, n: usize) -> Vec<Work> {
    let bytes = |times: f64| Cost::Bytes(times * 4.0 * (m * n) as f64);
    let x = || rows(&[m, n]);
    let norm = |x: &[Tensor]| x[0].try_layer_norm(x[1], x[2], 1e-5);
    vec![
        work("softmax", format!("softmax {m}x{n}"), [x()], bytes(2.0), |x| Ok(vec![x[0].try_softmax(1)?])),
        work("softmax_backward", format!("softmax backward {m}x{n}"), [x(), x()], bytes(3.0), |x| {
            vjp(&[x[0].try_softmax(1)?], &[x[1]], &x[..1])
        }),
        work(
            "layer_norm",
            format!("layer_norm {m}x{n}"),
            [x(), float(&[n]), float(&[n])],
            bytes(2.0),
            move |x| Ok(vec![norm(x)?]),
        ),
        work(
            "layer_norm_backward",
            format!("layer_norm backward {m}x{n}"),
            [float(&[m, n]), float(&[n]), float(&[n]), float(&[m, n])],
            bytes(3.0),
            move |x| vjp(&[norm(x)?], &[x[3]], &x[..3]),
        )
        .within(1e-4),
        work("sum_rows", format!("sum over rows {m}x{n}"), [float(&[m, n])], bytes(1.0), |x| {
            Ok(vec![x[0].try_sum(0)?])
        }),
        work("sum_columns", format!("sum over columns {m}x{n}"), [x()], bytes(1.0), |x| {
            Ok(vec![x[0].try_sum(1)?])
        }),
        work("transpose", format!("transpose {m}x{n}"), [float(&[m, n])], bytes(2.0), |x| {
            Ok(vec![x[0].try_t()?.try_mul(2.0)?])
        }),
    ]
}

/// Workloads of long vectors.
fn of_elements(n: usize) -> Vec<Work> {
    let bytes = |times: f64| Cost::Bytes(times * 4.0 * n as f64);
    vec![
        work("scale", format!("scale {n}"), [float(&[n])], bytes(2.0), |x| {
            Ok(vec![x[0].try_mul(2.0)?.try_add(1.0)?])
        }),
        work("gelu_chain", format!("gelu(2x+1)+x {n}"), [rows(&[n])], bytes(2.0), |x| {
            Ok(vec![x[0].try_mul(2.0)?.try_add(1.0)?.try_gelu()?.try_add(x[0])?])
        }),
        work("sum", format!("sum {n}"), [float(&[n])], bytes(1.0), |x| Ok(vec![x[0].try_sum(..)?]))
            .within(1e-4),
        work("cumsum", format!("cumsum {n}"), [float(&[n])], bytes(2.0), |x| Ok(vec![x[0].try_cumsum(0)?]))
            .within(1e-4),
        work("sort", format!("sort {}", n / 4), [float(&[n / 4])], bytes(0.5), |x| {
            Ok(vec![x[0].try_sort(0, false)?.0])
        }),
    ]
}

/// Halves that are moved, and sums that are halves.
fn of_halves(m: usize, n: usize) -> Vec<Work> {
    let bytes = |times: f64| Cost::Bytes(times * 2.0 * (m * n) as f64);
    let x = || float(&[m, n]).half();
    let scale = |x: &[Tensor]| Ok(vec![x[0].try_mul(2.0)?.try_add(1.0)?]);
    vec![
        work("scale", format!("scale f16 {m}x{n}"), [rows(&[m, n]).half()], bytes(2.0), scale).within(2e-3),
        work("transpose", format!("transpose f16 {m}x{n}"), [x()], bytes(2.0), |x| {
            Ok(vec![x[0].try_t()?.try_mul(2.0)?])
        })
        .within(2e-3),
        work("sum_rows", format!("sum over rows f16 {m}x{n}"), [x()], bytes(1.0), |x| {
            Ok(vec![x[0].try_sum(0)?])
        })
        .within(2e-3),
        work("sum_columns", format!("sum over columns f16 {m}x{n}"), [x()], bytes(1.0), |x| {
            Ok(vec![x[0].try_sum(1)?])
        })
        .within(2e-3),
    ]
}

fn embedding(words: usize, width: usize, ids: usize) -> [Work; 2] {
    let inputs = || [float(&[words, width]), ints(&[ids], words)];
    let bytes = 8.0 * (ids * width) as f64;
    let name = format!("embedding {words}x{width}, {ids} ids");
    [
        work("embedding", name.clone(), inputs(), Cost::Bytes(bytes), |x| {
            Ok(vec![x[0].try_index_select(0, x[1])?])
        }),
        work(
            "embedding_backward",
            format!("{name} backward"),
            inputs().into_iter().chain([float(&[ids, width])]),
            Cost::Bytes(bytes + 4.0 * (words * width) as f64),
            |x| vjp(&[x[0].try_index_select(0, x[1])?], &[x[2]], &x[..1]),
        ),
    ]
}

/// Elements moved by their places: a vector looked up, a vector added to.
fn by_places(n: usize, size: usize) -> [Work; 2] {
    let (table, ids, values) = (|| float(&[size]), || ints(&[n], size), || float(&[n]));
    let (looked, added) = (Cost::Bytes(12.0 * n as f64), Cost::Bytes((8 * n + 8 * size) as f64));
    [
        work("gather", format!("gather {n} of {size}"), [table(), ids()], looked, |x| {
            Ok(vec![x[0].try_index_select(0, x[1])?])
        }),
        work("index_add", format!("index_add {n} to {size}"), [table(), ids(), values()], added, |x| {
            Ok(vec![x[0].try_index_add(0, x[1], x[2])?])
        }),
    ]
}

fn cross_entropy(rows: usize, classes: usize) -> Work {
    let inputs = [float(&[rows, classes]), ints(&[rows], classes)];
    let bytes = Cost::Bytes(3.0 * 4.0 * (rows * classes) as f64);
    work("cross_entropy", format!("cross_entropy {rows}x{classes} forward+backward"), inputs, bytes, |x| {
        let loss = x[0].try_cross_entropy(x[1])?;
        let one = loss.ones_like();
        let mut all = vec![loss];
        all.extend(vjp(&[loss], &[one], &x[..1])?);
        Ok(all)
    })
}

/// Steps of AdamW over `n` numbers, each with the bias correction of the first: weights, means and means of squares are
/// read and written where they lie, gradients read.
fn adamw(n: usize) -> Work {
    let zeros = || Input { data: Operand { dims: vec![n], kind: Kind::Zeros, bound: 0 }, by_rows: false };
    let bytes = Cost::Bytes(7.0 * 4.0 * n as f64);
    work("adamw", format!("adamw {n}"), [float(&[n]), float(&[n]), zeros(), zeros()], bytes, |x| {
        let [w, g, m, v] = [x[0], x[1], x[2], x[3]];
        let m = m.try_add(g.try_sub(m)?.try_mul(1.0 - 0.9)?)?;
        let v = v.try_add(g.try_mul(g)?.try_sub(v)?.try_mul(1.0 - 0.999)?)?;
        let root = v.try_mul(1.0 / (1.0 - 0.999))?.try_sqrt()?.try_add(1e-8)?;
        let direction = m.try_mul(1.0 / (1.0 - 0.9))?.try_div(root)?;
        Ok(vec![w.try_sub(direction.try_add(w.try_mul(0.01)?)?.try_mul(1e-3)?)?, m, v])
    })
    .keeping(&[[0, 0], [1, 2], [2, 3]])
}

/// One small network from the host and back is timed elsewhere; here it is its products.
fn products() -> Vec<Work> {
    let shapes = [
        [8192, 768, 768],
        [8192, 768, 3072],
        [8192, 3072, 768],
        [8192, 768, 32000],
        [768, 8192, 3072],
        [256, 1024, 1024],
        [1024, 256, 1024],
        [1, 4096, 4096],
        [1, 4096, 16384],
        [16, 4096, 4096],
    ];
    shapes.into_iter().flat_map(|s| [matmul(s, false), matmul(s, true)]).collect()
}

/// Products of f16 as a block of a GPT has them: with turned factors, and with what comes before and after them.
fn blocks(m: usize, narrow: usize, wide: usize) -> Vec<Work> {
    let flops = Cost::Flops(2.0 * m as f64 * narrow as f64 * wide as f64);
    let (some, all) = (|d: [usize; 2]| rows(&d).half(), |d: &[usize]| float(d).half());
    let named = |text: String| format!("matmul f16 {text}");
    let mut made = vec![
        work(
            "matmul_gelu",
            named(format!("{m}x{narrow}x{wide} gelu")),
            [some([m, narrow]), all(&[narrow, wide]), all(&[wide])],
            flops,
            |x| Ok(vec![x[0].try_matmul(x[1])?.try_add(x[2])?.try_gelu()?]),
        ),
        work(
            "matmul_gelu_backward",
            named(format!("{m}x{narrow}x{wide} gelu backward")),
            [some([m, wide]), all(&[wide, narrow]), some([m, narrow])],
            flops,
            |x| vjp(&[x[0].try_gelu()?.try_matmul(x[1])?], &[x[2]], &x[..1]),
        ),
        work(
            "matmul_residual",
            named(format!("{m}x{wide}x{narrow} residual")),
            [some([m, wide]), all(&[wide, narrow]), all(&[narrow]), rows(&[m, narrow])],
            flops,
            |x| Ok(vec![x[0].try_matmul(x[1])?.try_add(x[2])?.try_cast(DType::F32)?.try_add(x[3])?]),
        ),
        work(
            "matmul_turned_right",
            named(format!("{m}x{wide}x{narrow} turned right")),
            [some([m, wide]), all(&[narrow, wide])],
            flops,
            |x| Ok(vec![x[0].try_matmul(x[1].try_t()?)?]),
        ),
        work(
            "matmul_turned_left",
            named(format!("{narrow}x{m}x{wide} turned left")),
            [all(&[m, narrow]), all(&[m, wide])],
            flops,
            |x| Ok(vec![x[0].try_t()?.try_matmul(x[1])?]),
        ),
    ];
    made.iter_mut().for_each(|work| work.tolerance = 4e-3);
    made
}

/// Workloads for a GPU.
pub(crate) fn large() -> Vec<Work> {
    let mut all = Vec::new();
    all.push(of_elements(268_435_456).swap_remove(0));
    all.extend([1024, 2048, 4096, 8192].map(|n| matmul([n; 3], false)));
    all.extend([1024, 2048, 4096, 8192].map(|n| matmul([n; 3], true)));
    all.extend(products());
    all.extend(blocks(8192, 768, 3072));
    all.push(matmul_by_rows([8192, 768, 3072]));
    let flops = Cost::Flops(2.0 * 96.0 * 1024.0 * 64.0 * 1024.0);
    all.push(work(
        "matmul",
        "matmul f32 96 x 1024x64x1024",
        [rows(&[96, 1024, 64]), rows(&[96, 64, 1024])],
        flops,
        |x| Ok(vec![x[0].try_matmul(x[1])?]),
    ));
    all.extend(of_rows(16384, 4096));
    all.extend(of_halves(16384, 4096));
    all.extend(of_elements(67_108_864).into_iter().skip(1));
    all.push(cross_entropy(8192, 32000));
    all.extend(embedding(32000, 768, 8192));
    all.extend(by_places(16_777_216, 4_194_304));
    all.push(adamw(134_994_432));
    for half in [false, true] {
        all.extend([false, true].map(|backward| attention([4, 16, 2048, 64], half, backward)));
        all.extend([false, true].map(|gradients| conv([32, 64, 56, 56], 64, half, gradients)));
    }
    all
}

/// Workloads for processors.
pub(crate) fn small() -> Vec<Work> {
    let mut all = vec![of_elements(4 << 20).swap_remove(0), matmul([1024; 3], false), matmul([512; 3], true)];
    all.extend(blocks(512, 96, 384));
    all.extend(of_rows(1024, 4096));
    all.extend(of_halves(1024, 4096));
    all.extend(of_elements(4 << 20).into_iter().skip(1));
    all.push(cross_entropy(512, 4000));
    all.extend(embedding(4000, 256, 1024));
    all.extend(by_places(1 << 20, 1 << 18));
    all.push(adamw(4 << 20));
    for half in [false, true] {
        all.extend([false, true].map(|backward| attention([1, 4, 256, 64], half, backward)));
        all.extend([false, true].map(|gradients| conv([4, 16, 28, 28], 16, half, gradients)));
    }
    all
}

/// Operands on the device, in as many copies as make a run long enough to be timed.
pub(crate) struct Operands {
    pub(crate) host: Vec<HostTensor>,
    copies: Vec<Vec<Kept>>,
    /// Whether every run is a pass of its own: where a submission costs little, results are let go as soon as there are
    /// new ones, as those of peers are.
    apart: bool,
}

fn values(input: &Operand, salt: usize) -> Result<HostTensor> {
    match input.kind {
        Kind::I32 => HostTensor::new(&*input.dims, &input.ids(salt)),
        Kind::F32 | Kind::Zeros => HostTensor::new(&*input.dims, &input.floats(salt)),
        Kind::F16 => Ok(HostTensor::new(&*input.dims, &input.floats(salt))?.cast(DType::F16)),
    }
}

impl Operands {
    pub(crate) fn new(ctx: &Context, work: &Work) -> Result<Operands> {
        let host = work
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| values(&input.data, i))
            .collect::<Result<Vec<_>>>()?;
        let count = copies(&work.row());
        let place = |x: &HostTensor| Kept::new(ctx, x.clone());
        let copies = (0..count).map(|_| host.iter().map(place).collect()).collect::<Result<_>>()?;
        Ok(Operands { host, copies, apart: ctx.caps().kind == wgrad::DeviceKind::Cpu })
    }

    /// How many runs a pass makes.
    pub(crate) fn runs(&self) -> usize {
        self.copies.len()
    }

    /// Records the workload once.
    pub(crate) fn once(&self, _: &Pass, work: &Work) -> Result<Vec<Tensor>> {
        (work.run)(&self.copies[0].iter().map(Kept::t).collect::<Vec<_>>())
    }

    /// Runs the workload once on each copy.
    pub(crate) fn run_all(&self, ctx: &Context, work: &Work) -> Result<()> {
        let at_once = if self.apart { 1 } else { self.copies.len() };
        for copies in self.copies.chunks(at_once) {
            ctx.pass(|p| self.run_on(copies, p, work).map(|_| ()))?;
        }
        Ok(())
    }

    /// Runs the workload once on each copy, in one submission.
    pub(crate) fn run(&self, pass: &Pass, work: &Work) -> Result<Vec<Tensor>> {
        self.run_on(&self.copies, pass, work)
    }

    fn run_on(&self, copies: &[Vec<Kept>], pass: &Pass, work: &Work) -> Result<Vec<Tensor>> {
        let (mut results, mut computed) = (Vec::new(), Vec::new());
        for copy in copies {
            let x: Vec<Tensor> = copy.iter().map(Kept::t).collect();
            let found = (work.run)(&x)?;
            for (i, y) in found.iter().enumerate() {
                match work.keeps.iter().find(|[from, _]| *from == i) {
                    // Computed at the end of the pass, where its operand lies; asked for, it had memory of its own.
                    Some([_, to]) => copy[*to].try_set(*y)?,
                    None => computed.push(*y),
                }
            }
            results.extend(found);
        }
        pass.compute(&computed)?;
        Ok(results)
    }
}
