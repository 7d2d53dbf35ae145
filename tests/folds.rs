//! More workgroups than one axis of a dispatch takes: each family of kernels folds its grid into two axes. On a
//! device whose limit is lowered small sizes do so, everywhere; where a device is fast, true ones too.

use std::sync::Arc;

use wgrad::{
    Context, Conv, DType, HostTensor, Param, Pass, Result, ScatterReduce, Tensor, Triangular, Windows,
};
use wgrad_graph::DeviceKind;

use crate::Subject;
use crate::devices::oracle;
use crate::table::{host, spread};

crate::suite![
    plain: ;
    device: small_grids_fold, updates_of_many_values_fold, true_grids_fold,
];

/// Workgroups on an axis of the lowered device, so that it takes 100 in all.
const MOST: u32 = 10;
/// Points: more than `MOST` workgroups of the largest size (256), no more than its square of the smallest (64).
const POINTS: usize = 2601;

fn x(p: &Pass, dims: &[usize]) -> Tensor {
    let elems = spread(dims.iter().product(), 0.2, 1.9, 0.37);
    p.input(host(dims, &elems, DType::F32)).unwrap()
}

/// Integers below 3.
fn idx(p: &Pass, dims: &[usize]) -> Tensor {
    let elems: Vec<f64> = (0..dims.iter().product::<usize>()).map(|i| (i * 7 % 11 % 3) as f64).collect();
    p.input(host(dims, &elems, DType::I32)).unwrap()
}

/// Matrices far from singular, positive definite, each a workgroup's work.
fn sound(p: &Pass) -> Tensor {
    let a = x(p, &[41, 3, 3]);
    a.matmul(a.transpose(1, 2)) + p.eye(3) * 2.0
}

/// A column an invocation, so that what is around the scatter has as many points.
fn scattered(p: &Pass, kind: ScatterReduce) -> Tensor {
    let at = p.zeros([POINTS, 1]).cast(DType::I32);
    x(p, &[POINTS, 1]).scatter_reduce(1, at, x(p, &[POINTS, 1]) * 3.0, kind, true)
}

type Family = (&'static str, fn(&Pass) -> Tensor);

/// One or more of each family of kernels.
const FAMILIES: [Family; 31] = [
    ("pointwise", |p| x(p, &[POINTS]) * 2.0 + 1.0),
    ("pointwise to bytes", |p| x(p, &[4 * POINTS]).gt(1.0)),
    ("pointwise on views", |p| x(p, &[61, 43]).t() + 1.0),
    ("random", |p| p.rand_bits("s", [POINTS])),
    ("gather", |p| x(p, &[3, 43]).gather(0, idx(p, &[61, 43]))),
    ("concat", |p| Tensor::cat(&[x(p, &[POINTS - 1000]), x(p, &[1000])], 0)),
    ("windows", |p| x(p, &[3, 300]).windows(1, Windows { size: 3, step: 1, dilation: 2 }) * 0.5),
    ("overlap_add", |p| x(p, &[3, 900, 3]).overlap_add(1, Windows { size: 3, step: 1, dilation: 1 }, 902)),
    ("reduce", |p| x(p, &[POINTS, 5]).sum(1)),
    ("reduce columns", |p| x(p, &[5, POINTS]).max(0)),
    ("reduce of long rows", |p| x(p, &[60, 80]).sum(1)),
    ("reduce to one", |p| x(p, &[40_000]).sum_all()),
    ("arg reduce", |p| x(p, &[POINTS, 5]).argmax(1)),
    ("matmul", |p| x(p, &[128, 7]).matmul(x(p, &[7, 200]))),
    ("matmul of many rows", |p| x(p, &[645, 3]).matmul(x(p, &[3, 4]))),
    ("matmul in batches", |p| x(p, &[450, 2, 5]).matmul(x(p, &[450, 5, 3]))),
    ("matmul with a vector", |p| x(p, &[POINTS, 5]).matmul(x(p, &[5]))),
    ("conv", |p| x(p, &[1, 2, 1403]).conv1d(x(p, &[8, 2, 3]), None, Conv::default())),
    ("scan", |p| x(p, &[POINTS, 4]).cumsum(1)),
    ("scan of long lines", |p| x(p, &[41, 100]).cumsum(1)),
    ("argsort", |p| x(p, &[POINTS, 1]).argsort(0, false)),
    ("argsort of lines", |p| x(p, &[523, 5]).argsort(1, true)),
    ("scatter_add", |p| scattered(p, ScatterReduce::Sum)),
    ("scatter_prod", |p| scattered(p, ScatterReduce::Prod)),
    ("scatter_max", |p| scattered(p, ScatterReduce::Max)),
    ("scatter_min", |p| scattered(p, ScatterReduce::Min)),
    ("cholesky", |p| sound(p).cholesky()),
    ("solve_triangular", |p| sound(p).solve_triangular(x(p, &[41, 3, 2]), Triangular::default())),
    ("solve", |p| sound(p).solve(x(p, &[41, 3, 2]))),
    ("det", |p| sound(p).det()),
    ("slogdet", |p| sound(p).slogdet().1),
];

fn value(ctx: &Context, f: fn(&Pass) -> Tensor) -> Result<Vec<f64>> {
    ctx.set_seed(3);
    ctx.pass(|p| f(p).to_vec())
}

fn small_grids_fold(on: &Subject) {
    let backend = on.lowered(|caps| caps.max_workgroups = MOST);
    assert_eq!(backend.caps().max_workgroups, MOST);
    assert!(POINTS > (MOST * 256) as usize && POINTS <= (MOST * MOST * 64) as usize);
    for (name, f) in FAMILIES {
        let told = |e| panic!("{name}: {e}");
        // Each on a context of its own: random numbers depend on how many steps went before.
        let ctx = Context::new(Arc::clone(&backend)).unwrap();
        let (got, want) = (value(&ctx, f).unwrap_or_else(told), value(&oracle(), f).unwrap_or_else(told));
        assert_eq!(got.len(), want.len(), "{name}");
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() <= 3e-5 * w.abs().max(1.0), "{name}: element {i} is {g}, not {w}");
        }
    }
}

fn updates_of_many_values_fold(on: &Subject) {
    let ctx = Context::new(on.lowered(|caps| caps.max_workgroups = MOST)).unwrap();
    let sizes = [900, 1000, 1100];
    let mut params = Vec::new();
    for (i, n) in sizes.into_iter().enumerate() {
        let elems = spread(n, -1.0, 1.0, i as f64);
        params.push(Param::new(&ctx, &format!("w{i}"), host(&[n], &elems, DType::F32)).unwrap());
    }
    ctx.pass(|_| {
        for w in &params {
            w.set(w.t() * 0.5);
        }
        Ok(())
    })
    .unwrap();
    // One batch: the device may run them as one dispatch, of more workgroups than an axis takes.
    let plan = ctx.last_plan().unwrap();
    assert!(plan.steps.len() == 3 && plan.steps.iter().all(|s| s.batch == plan.steps[0].batch));
    for (i, w) in params.iter().enumerate() {
        let want = spread(sizes[i], -1.0, 1.0, i as f64);
        let got = w.read().unwrap().to_vec::<f64>();
        assert!(got.iter().zip(&want).all(|(g, w)| (g - w * 0.5).abs() < 1e-6), "w{i}");
    }
}

/// Whole numbers, exact in f32, no two neighbours equal.
fn number(i: usize) -> f64 {
    (i * 7 % 1013) as f64
}

fn true_grids_fold(on: &Subject) {
    if on.is_slow() || !on.is_vulkan() {
        return;
    }
    let ctx = on.context();
    let workgroup = if ctx.caps().kind == DeviceKind::SoftwareGpu { 64 } else { 256 };
    // An odd number, so that an invocation takes one point.
    let n = 65_536 * workgroup + 1;
    let line: Vec<f32> = (0..n).map(|i| number(i) as f32).collect();
    let data = HostTensor::new([n], &line).unwrap();
    type Check = (&'static str, fn(&Pass, Tensor) -> Tensor, fn(usize) -> f64);
    let all: [Check; 8] = [
        ("pointwise", |_, x| x * 2.0 + 1.0, |i| number(i) * 2.0 + 1.0),
        ("reduce", |_, x| Tensor::stack(&[x, x * 3.0], 1).sum(1), |i| number(i) * 4.0),
        (
            "arg reduce",
            |_, x| Tensor::stack(&[x, x * 0.0 + 500.0], 1).argmax(1),
            |i| f64::from(number(i) < 500.0),
        ),
        ("gather", |p, x| p.arange(0..1013).gather(0, x.cast(DType::I32)), number),
        ("scan", |_, x| x.unsqueeze(1).cumsum(1).squeeze(1), number),
        ("argsort", |_, x| x.unsqueeze(1).argsort(1, false).squeeze(1), |_| 0.0),
        (
            "scatter_add",
            |p, x| {
                let n = x.shape()[0];
                p.zeros([n, 1]).scatter_add(1, p.zeros([n, 1]).cast(DType::I32), x.unsqueeze(1)).squeeze(1)
            },
            number,
        ),
        ("matmul with a vector", |p, x| x.unsqueeze(1).matmul(p.full([1], 3.0)), |i| number(i) * 3.0),
    ];
    for (name, f, want) in all {
        let got: Vec<f64> =
            ctx.pass(|p| f(p, p.input(&data)?).to_vec()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let wrong = got.iter().enumerate().find(|(i, g)| **g != want(*i));
        assert!(got.len() == n && wrong.is_none(), "{name}: {wrong:?} of {}", got.len());
    }
    // A workgroup a matrix.
    let count = 65_537;
    let det: Vec<f64> = ctx
        .pass(|p| (p.arange(0..count).cast(DType::F32).reshape([count as usize, 1, 1]) + 1.0).det().to_vec())
        .unwrap();
    assert!(det.iter().enumerate().all(|(i, d)| *d == i as f64 + 1.0));
}
