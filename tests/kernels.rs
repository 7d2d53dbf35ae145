//! The kernels that large sizes and a GPU ask for, run on every adapter: what a GPU would run is run on software
//! drivers too, and compared with the oracle.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, DType, ErrorKind, HostTensor, Pass, ScatterReduce, Tensor};
use wgrad_graph::{Caps, DeviceKind, Off};

use crate::Subject;
use crate::devices::oracle;

crate::suite![
    plain: ;
    device: turned_tiles, turned_operands_in_larger_kernels, sorting_by_digits, positions_in_order, scans_in_chunks,
        eight_neighbours_at_a_time, few_long_reductions, columns_in_bands, rows_that_sum_columns,
];

/// Something recorded, and what it is called.
type Made = Vec<(String, Tensor)>;

/// The device with its own kernels, with those of a GPU, and with those without fast paths.
fn contexts(subject: &Subject) -> Vec<Context> {
    let mut all = vec![subject.context()];
    if subject.is_vulkan() {
        let names: &[&str] = if subject.is_slow() { &[""] } else { &["", "all"] };
        for off in names.iter().map(|names| Off::parse(names).unwrap()) {
            let gpu = |caps: &mut Caps| (caps.kind, caps.off) = (DeviceKind::DiscreteGpu, off);
            all.push(Context::new(subject.lowered(gpu)).unwrap());
        }
    }
    all
}

/// Compares what `f` records with the oracle.
pub(crate) fn agree(subject: &Subject, tolerance: f64, f: impl Fn(&Pass) -> Made) {
    let read = |ctx: &Context| -> Vec<(String, Vec<f64>)> {
        ctx.pass(|p| {
            let made = f(p);
            let all: Vec<Tensor> = made.iter().map(|(_, y)| *y).collect();
            p.compute(&all)?;
            made.into_iter().map(|(name, y)| Ok((name, y.to_vec::<f64>()?))).collect()
        })
        .unwrap()
    };
    if subject.is_oracle() {
        return;
    }
    let want = read(&oracle());
    for (n, ctx) in contexts(subject).iter().enumerate() {
        for ((name, got), (_, want)) in read(ctx).iter().zip(&want) {
            assert_eq!(got.len(), want.len(), "{name}");
            let scale = want.iter().filter(|w| w.is_finite()).fold(1e-30_f64, |m, w| m.max(w.abs()));
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                let same = g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= tolerance * scale;
                assert!(same, "{name}, kernels {n}: element {i} is {g}, not {w}");
            }
        }
    }
}

/// Numbers that lie in memory: of whole ones from 0 to 112.
fn stored(p: &Pass, dims: &[usize], dtype: DType, of: usize, number: impl Fn(f32) -> f32) -> Tensor {
    let value = |i: usize| number(((i * 7919 + of * 31) % 113) as f32);
    let elems: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    p.input(HostTensor::new(dims, &elems).unwrap().cast(dtype)).unwrap()
}

/// Small whole numbers, which every dtype holds.
pub(crate) fn small(p: &Pass, dims: &[usize], dtype: DType, of: usize) -> Tensor {
    stored(p, dims, dtype, of, |x| x)
}

/// Numbers from -0.5 to 0.62.
fn fractions(p: &Pass, dims: &[usize], dtype: DType, of: usize) -> Tensor {
    stored(p, dims, dtype, of, |x| x * 0.01 - 0.5)
}

/// A norm's gradients: along rows, and over all rows for each column.
fn rows_that_sum_columns(subject: &Subject) {
    let shapes: &[[usize; 2]] = match subject.is_slow() {
        true => &[[1057, 2048]],
        // One row of a workgroup, eight of them, and fewer rows than would pay.
        false => &[[1061, 2048], [8453, 260], [1055, 2048]],
    };
    agree(subject, 2e-5, |p| {
        let mut made = Vec::new();
        for dims in shapes {
            for dtype in [DType::F32, DType::F16] {
                let n = dims[1];
                let [x, g] = [1, 2].map(|of| fractions(p, dims, dtype, of).cast(DType::F32));
                let [w, b] = [3, 4].map(|of| fractions(p, &[n], DType::F32, of));
                let y = x.layer_norm(w, b, 1e-5);
                let grads = wgrad::vjp(&[y], &[g], &[x, w, b]).unwrap();
                let named = ["x", "weight", "bias"].into_iter().zip(grads);
                made.extend(named.map(|(of, d)| (format!("layer_norm of {dtype} {dims:?}, {of}"), d)));
            }
            let [x, g] = [5, 6].map(|of| fractions(p, dims, DType::F32, of));
            let y = x.softmax(1);
            let d = wgrad::vjp(&[y], &[g], &[x]).unwrap()[0];
            made.push((format!("softmax {dims:?}"), d));
            made.push((format!("sums of what was read {dims:?}"), (x * g).sum(0)));
        }
        made
    });
}

fn turned_tiles(subject: &Subject) {
    const STORED: [DType; 8] =
        [DType::F32, DType::F16, DType::BF16, DType::U8, DType::Bool, DType::I32, DType::U32, DType::I64];
    agree(subject, 0.0, |p| {
        let mut made = Vec::new();
        let dims: &[[usize; 2]] = match subject.is_slow() {
            true => &[[259, 260]],
            false => &[[257, 261], [260, 256], [17, 4100], [4097, 16], [300, 252], [64, 1024]],
        };
        for dims in dims {
            for dtype in STORED {
                let x = small(p, dims, dtype, 1);
                made.push((format!("transpose of {dims:?} {dtype}"), x.t()));
            }
        }
        let x = small(p, &[3, 131, 200], DType::F32, 2);
        made.push(("a batch of transposes".to_owned(), x.permute([0, 2, 1])));
        made.push(("axes in reverse order".to_owned(), x.permute([2, 1, 0])));
        made.push(("a middle axis first".to_owned(), x.permute([1, 2, 0])));
        let wide = small(p, &[260, 300], DType::F32, 3);
        made.push(("a transposed slice".to_owned(), wide.slice(0, 3..).slice(1, 5..290).t()));
        made.push(("transposed and backwards".to_owned(), wide.flip([0, 1]).t()));
        made.push(("transposed with a margin".to_owned(), wide.pad(&[(1, 2), (3, 4)], 0.0).t()));
        for dtype in STORED {
            let x = small(p, &[260, 300], dtype, 4);
            made.push((format!("a margin around {dtype}, transposed"), x.t().pad(&[(1, 2), (3, 4)], 0.0)));
        }
        made
    });
}

fn turned_operands_in_larger_kernels(subject: &Subject) {
    agree(subject, 1e-6, |p| {
        let (x, y) = (small(p, &[270, 260], DType::F32, 1), small(p, &[260, 270], DType::F32, 2));
        let z = small(p, &[270, 260], DType::F16, 3);
        let row = small(p, &[270], DType::F32, 4);
        vec![
            ("beside a plain operand".to_owned(), x.t() + y * 2.0),
            ("two transposed operands".to_owned(), (x.t() - y) * z.cast(DType::F32).t()),
            ("a vector beside".to_owned(), x.t() * row + 1.0),
            ("x and its transpose".to_owned(), {
                let square = small(p, &[264, 264], DType::F32, 5);
                square + square.t()
            }),
            ("a choice".to_owned(), x.t().gt(y).select(x.t(), y)),
            ("to bytes".to_owned(), x.t().gt(y)),
            ("to halves".to_owned(), (x.t() * 0.5).cast(DType::F16)),
        ]
    });
}

/// Floats that look random, with ties, both zeros, infinities and NaN.
fn wild(p: &Pass, dims: &[usize], of: usize) -> Tensor {
    let value = |i: usize| {
        let word = (i + of).wrapping_mul(2_654_435_761) >> 7;
        match word % 97 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            3 => -0.0,
            4 => 0.0,
            5 => f32::from_bits(word as u32 % 8),
            _ => (word % 4001) as f32 - 2000.0,
        }
    };
    let elems: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    p.input(HostTensor::new(dims, &elems).unwrap()).unwrap()
}

fn sorting_by_digits(subject: &Subject) {
    let shapes: &[(&[usize], i32)] = match subject.is_slow() {
        true => &[(&[1, 262_200], 1)],
        false => &[(&[270_001], 0), (&[61, 4301], 1), (&[4301, 3, 21], 0), (&[2, 140_001], 1)],
    };
    agree(subject, 0.0, |p| {
        let mut made = Vec::new();
        for (dims, axis) in shapes {
            for descending in [false, true] {
                let x = wild(p, dims, 3);
                made.push((format!("argsort {dims:?} {descending}"), x.argsort(*axis, descending)));
                for dtype in [DType::I32, DType::U8, DType::Bool, DType::U32, DType::I64] {
                    let x = small(p, dims, dtype, 5);
                    let x = if dtype == DType::I32 { x - 50 } else { x };
                    made.push((
                        format!("argsort {dtype} {dims:?} {descending}"),
                        x.argsort(*axis, descending),
                    ));
                }
            }
        }
        let turned = wild(p, &[300, 4100], 7);
        made.push(("a transposed operand".to_owned(), turned.t().argsort(0, false)));
        made
    });
}

fn positions_in_order(subject: &Subject) {
    agree(subject, 1e-6, |p| {
        let mut made = Vec::new();
        let ids = |n: usize, size: usize, of: usize| -> Tensor {
            let elems: Vec<i32> = (0..n).map(|i| (((i + of) * 7919 + i / 3) % size) as i32).collect();
            p.input(HostTensor::new([n], &elems).unwrap()).unwrap()
        };
        for (n, size, columns) in
            [(4801, 777, 37), (1000, 3, 20), (5, 20_011, 12), (300, 50_000, 1), (9000, 1, 3)]
        {
            let (i, x) = (ids(n, size, 1), small(p, &[n, columns], DType::F32, 2) - 56.0);
            let base = small(p, &[size, columns], DType::F32, 3);
            made.push((format!("index_add {n} {size} {columns}"), base.index_add(0, i, x)));
            let turned = small(p, &[columns, n], DType::F32, 2);
            made.push((format!("transposed values {n} {size} {columns}"), base.index_add(0, i, turned.t())));
            made.push((format!("the last axis {n} {size} {columns}"), base.t().index_add(1, i, turned)));
        }
        // One position takes nearly everything.
        let same = ids(5000, 2, 0) * 0 + 4;
        made.push((
            "one position".to_owned(),
            p.zeros([9, 10]).index_add(0, same, small(p, &[5000, 10], DType::F32, 6)),
        ));
        let one = small(p, &[20_000], DType::F32, 7);
        made.push((
            "counts".to_owned(),
            p.zeros([113]).scatter_add(0, one.cast(DType::I32), p.ones([20_000])),
        ));
        for kind in [ScatterReduce::Prod, ScatterReduce::Max, ScatterReduce::Min, ScatterReduce::Mean] {
            let x = small(p, &[3001], DType::F32, 9) * 0.01 - 0.5;
            let y = p.full([50], 0.25).scatter_reduce(0, ids(3001, 41, 5), x, kind, true);
            made.push((format!("scatter {kind:?}"), y));
        }
        let whole = small(p, &[4000, 6], DType::I32, 8);
        made.push((
            "whole numbers".to_owned(),
            p.zeros([90, 6]).cast(DType::I32).index_add(0, ids(4000, 90, 2), whole),
        ));
        made
    });
    // Out of range is an error, whoever finds it.
    for ctx in contexts(subject) {
        for bad in [777, -1] {
            let failed = ctx.pass(|p| {
                let mut elems = vec![5; 3000];
                elems[2000] = bad;
                let i = p.input(HostTensor::new([3000], &elems)?)?;
                p.zeros([777, 3]).try_index_add(0, i, p.ones([3000, 3]))?.to_vec::<f64>()
            });
            let error = failed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        }
    }
}

fn scans_in_chunks(subject: &Subject) {
    let shapes: &[(&[usize], i32)] = match subject.is_slow() {
        true => &[(&[40_001], 0)],
        false => &[
            (&[140_003], 0),
            (&[3, 50_001], 1),
            (&[40_000, 3], 0),
            (&[32_768], 0),
            (&[140_012], 0),
            (&[3, 50_004], 1),
            (&[301, 1028], 1),
        ],
    };
    // Each of so many factors rounds, to one side where they are alike.
    agree(subject, 5e-3, |p| {
        let factors = |dims: &[usize]| small(p, dims, DType::F32, 1) * 1e-6 + (1.0 - 0.5e-4);
        shapes
            .iter()
            .map(|(dims, axis)| (format!("cumprod {dims:?}"), factors(dims).cumprod(*axis)))
            .collect()
    });
    agree(subject, 2e-5, |p| {
        let mut made = Vec::new();
        for (dims, axis) in shapes {
            let x = small(p, dims, DType::F32, 1) * 0.01 - 0.5;
            made.push((format!("cumsum {dims:?}"), x.cumsum(*axis)));
            made.push((format!("cumsum {dims:?} backwards"), x.flip([*axis]).cumsum(*axis).flip([*axis])));
            made.push((
                format!("cumsum of whole numbers {dims:?}"),
                small(p, dims, DType::I32, 2).cumsum(*axis),
            ));
            made.push((
                format!("cumsum of wide numbers {dims:?}"),
                small(p, dims, DType::I64, 2).cumsum(*axis),
            ));
            made.push((format!("logcumsumexp {dims:?}"), x.logcumsumexp(*axis)));
            let (y, i) = small(p, dims, DType::F32, 3).cummax(*axis);
            made.extend([(format!("cummax {dims:?}"), y), (format!("its places {dims:?}"), i)]);
            made.push((format!("recur {dims:?}"), (x * 0.9).recur(*axis, x + 0.1)));
        }
        made
    });
}

/// From 16384 points on, drivers on a CPU move eight neighbours as words of 64 bits, whatever their dtype.
fn eight_neighbours_at_a_time(subject: &Subject) {
    agree(subject, 1e-3, |p| {
        let of = |dtype: DType, of: usize, dims: [usize; 2]| small(p, &dims, dtype, of);
        let mut made: Made = Vec::new();
        let dims = [80, 328];
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::I64] {
            let (x, y) = (of(dtype, 7, dims), of(dtype, 5, dims));
            made.push((format!("{dtype:?}"), x * 2.0 + y));
            made.push((format!("{dtype:?} compared"), x.le(y)));
            made.push((format!("{dtype:?} chosen"), x.le(y).select(x, y)));
        }
        let (x, h) = (of(DType::F32, 7, dims), of(DType::F16, 11, dims));
        let (row, column) = (of(DType::F32, 3, [1, 328]), of(DType::F32, 3, [80, 1]));
        let turned = of(DType::F32, 13, [328, 80]).t();
        let tall = of(DType::F32, 9, [90, 344]);
        made.push(("mixed".into(), x + h.cast(DType::F32)));
        made.push(("a row".into(), x * row));
        made.push(("a column".into(), x * column + row));
        made.push(("turned".into(), x + turned));
        for (rows, columns) in [(10, 16), (3, 8), (3, 4), (1, 5)] {
            let part = tall.slice(0, rows..rows + 80).slice(1, columns..columns + 328);
            made.push((format!("from {rows}, {columns}"), x - part));
        }
        for (before, after) in [(8, 16), (4, 12), (3, 5)] {
            let padded = x.pad(&[(0, 0), (before, after)], 0.5);
            made.push((format!("padded by {before} and {after}"), padded * 2.0));
        }
        made.push(("no whole eights".into(), of(DType::F32, 7, [79, 212]) * 3.0));
        made.push(("no whole quads".into(), of(DType::F16, 7, [129, 131]) * 3.0));
        made
    });
}

/// Few results of many elements are cut into stretches, one a lane.
fn few_long_reductions(subject: &Subject) {
    agree(subject, 1e-4, |p| {
        let of = |dims: &[usize]| small(p, dims, DType::F32, 7) - 40.0;
        let mut made: Made = Vec::new();
        for dims in [[1, 70_001], [3, 8192], [200, 1100], [5003, 3], [1 << 16, 2], [4096, 8]] {
            for axis in [0, 1] {
                let x = of(&dims);
                made.push((format!("sum of {dims:?} along {axis}"), x.sum(axis)));
                made.push((format!("largest of {dims:?} along {axis}"), x.max(axis)));
                made.push((format!("where, of {dims:?} along {axis}"), x.argmax(axis)));
            }
            made.push((format!("mean of {dims:?}"), of(&dims).cast(DType::F16).mean(..)));
        }
        made
    });
}

/// Columns over rows that lie far apart are added up by bands of rows, which meet in a second launch.
fn columns_in_bands(subject: &Subject) {
    agree(subject, 1e-4, |p| {
        let x = small(p, &[259, 4096], DType::F32, 7) - 40.0;
        let mut made: Made = vec![("sum".into(), x.sum(0))];
        if !subject.is_slow() {
            made.push(("where the largest is".into(), x.argmax(0)));
            let batches = small(p, &[2, 300, 4100], DType::F32, 3);
            made.push(("largest of a batch".into(), batches.max(1)));
            made.push(("mean of halves".into(), small(p, &[256, 8192], DType::F16, 5).mean(0)));
        }
        made
    });
}
