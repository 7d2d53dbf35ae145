//! Elementwise rows on every device against their reference functions, and larger operations against the
//! oracle.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{DType, HostTensor, Pass, Shape, Tensor};
use wgrad_graph::{Binary, Unary};

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{Make, near, run};

crate::suite![
    plain:;
    device: unary_rows_have_their_reference_values, binary_rows_have_their_reference_values,
        the_device_agrees_with_the_oracle,
];

/// `count` distinct numbers spread over `lo..hi`.
fn spread(count: usize, lo: f64, hi: f64, turn: f64) -> Vec<f64> {
    (0..count).map(|i| lo + (hi - lo) * ((i as f64 + turn) * 0.618_033_988_749_894_9).fract()).collect()
}

const COUNT: usize = 35;

fn host(dtype: DType, lo: f64, hi: f64, turn: f64) -> HostTensor {
    let elems = spread(COUNT, lo, hi, turn);
    HostTensor::new([5, COUNT / 5], &elems).unwrap().cast(dtype)
}

fn wrap(x: i64, dtype: DType) -> f64 {
    match dtype {
        DType::U32 => f64::from(x as u32),
        DType::I32 => f64::from(x as i32),
        DType::U8 => f64::from(x as u8),
        _ => x as f64,
    }
}

fn unary_rows_have_their_reference_values(subject: &Subject) {
    let ctx = subject.context();
    for op in Unary::ALL {
        let row = op.row();
        for dtype in [DType::F32, DType::I32, DType::U32] {
            if !row.takes(dtype) || dtype == DType::U32 && row.name == "neg" {
                continue;
            }
            let lo = if dtype == DType::U32 { row.domain.lo.max(0.0) } else { row.domain.lo };
            let x = host(dtype, lo, row.domain.hi, 0.3);
            let reference = |x: &f64| match dtype {
                DType::F32 => row.float.unwrap()(*x),
                _ => wrap(row.int.unwrap()(*x as i64), op.dtype(dtype)),
            };
            let want: Vec<f64> = x.to_vec::<f64>().iter().map(reference).collect();
            let got = run(&ctx, |p| p.input(&x).unwrap().unary(op));
            near(&format!("{} {dtype}", row.name), &got.2, &want, row.tolerance);
        }
    }
}

fn binary_rows_have_their_reference_values(subject: &Subject) {
    let ctx = subject.context();
    for op in Binary::ALL {
        let row = op.row();
        for dtype in [DType::F32, DType::I32, DType::U32] {
            if !row.takes(dtype) {
                continue;
            }
            let lo = if dtype == DType::U32 { row.domain.lo.max(0.0) } else { row.domain.lo };
            let (x, w) = (host(dtype, lo, row.domain.hi, 0.3), host(dtype, lo, row.domain.hi, 7.9));
            let reference = |(x, w): (&f64, &f64)| match dtype {
                DType::F32 => row.float.unwrap()(*x, *w),
                _ => wrap(row.int.unwrap()(*x as i64, *w as i64), op.dtype(dtype)),
            };
            let (xs, ws) = (x.to_vec::<f64>(), w.to_vec::<f64>());
            let want: Vec<f64> = xs.iter().zip(&ws).map(reference).collect();
            let got = run(&ctx, |p| p.input(&x).unwrap().binary(op, p.input(&w).unwrap()));
            near(&format!("{} {dtype}", row.name), &got.2, &want, row.tolerance);
        }
    }
}

/// Floats of odd sizes; the same on every device.
pub(crate) fn noise(p: &Pass, shape: impl Into<Shape>, turn: f64) -> Tensor {
    let shape = shape.into();
    let elems = spread(shape.elems(), -2.0, 2.0, turn);
    p.input(HostTensor::new(shape, &elems).unwrap().cast(DType::F32)).unwrap()
}

fn the_device_agrees_with_the_oracle(subject: &Subject) {
    let cases: [(&str, Make); 16] = [
        ("matmul", |p| noise(p, [33, 65], 0.1).matmul(noise(p, [65, 17], 0.2))),
        ("matmul transposed", |p| noise(p, [65, 33], 0.1).t().matmul(noise(p, [17, 65], 0.2).t())),
        ("matmul batch", |p| noise(p, [3, 7, 5], 0.1).matmul(noise(p, [3, 5, 9], 0.2))),
        ("matmul sliced", |p| {
            noise(p, [9, 12], 0.1).slice(1, 2..9).matmul(noise(p, [14, 5], 0.2).slice_step(0, .., -2))
        }),
        ("matmul bias relu", |p| {
            (noise(p, [9, 7], 0.1).matmul(noise(p, [7, 5], 0.2)) + noise(p, [5], 0.3)).relu()
        }),
        ("softmax", |p| noise(p, [13, 37], 0.1).softmax(-1)),
        ("softmax outer", |p| noise(p, [13, 3, 5], 0.1).softmax(0)),
        ("log_softmax long", |p| noise(p, [2, 5003], 0.1).log_softmax(-1)),
        ("layer_norm", |p| {
            noise(p, [11, 129], 0.1).layer_norm(noise(p, [129], 0.2), noise(p, [129], 0.3), 1e-5)
        }),
        ("rms_norm", |p| noise(p, [11, 129], 0.1).rms_norm(noise(p, [129], 0.2), 1e-6)),
        ("gelu", |p| noise(p, [101], 0.1).gelu()),
        ("gelu_tanh", |p| noise(p, [101], 0.1).gelu_tanh()),
        ("cross_entropy", |p| noise(p, [7, 19], 0.1).cross_entropy(p.arange(3..10))),
        ("sum far apart", |p| noise(p, [5, 7, 11, 3], 0.1).sum([0, 2])),
        ("sum all", |p| noise(p, [257, 65], 0.1).mean_all()),
        ("deep mix", |p| {
            let x = noise(p, [6, 10], 0.1);
            let y = (x.t().reshape([4, 15]).slice_step(1, 1..14, 3).exp() + 0.5).sqrt();
            Tensor::cat(&[y, y.flip(1).pad(&[(0, 0), (1, 2)], 0.0)], 1).mean_keepdim(0)
        }),
    ];
    let (reference, ctx) = (oracle(), subject.context());
    for (name, f) in cases {
        let (want, got) = (run(&reference, f), run(&ctx, f));
        assert_eq!((want.0, want.1), (got.0, got.1), "{name}");
        near(name, &got.2, &want.2, 2e-5);
    }
}
