//! Awkward numbers through every elementwise row, on every device, against the row's reference: NaN,
//! infinities, both zeros, the largest and the smallest; and what is made of the rows where overflow,
//! cancellation or a 0 / 0 waits.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, DType, HostTensor, Pass, Tensor, grad};
use wgrad_graph::{Binary, Unary};

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{Make, floats, near, run};

crate::suite![
    plain: ;
    device: unary_rows, binary_rows, integer_rows, saturated_functions, softmax_of_far_logits,
        spread_of_a_large_mean, signs_of_zero, choices_let_nothing_through, sums_of_nothing, loops_in_loops,
];

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// Numbers at which functions break. The numbers below the smallest normal are apart, in [`SUBNORMAL`].
const AWKWARD: [f32; 34] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    -1.5,
    2.5,
    -2.5,
    2.0,
    -2.0,
    3.0,
    1e-10,
    -1e-10,
    1e-4,
    0.999_999,
    -0.999_999,
    50.0,
    -50.0,
    88.5,
    -88.5,
    104.0,
    -104.0,
    1000.0,
    -1000.0,
    1e10,
    -1e10,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    INF,
    -INF,
    NAN,
];

/// A device may take these for 0, and a result below the smallest normal too.
const SUBNORMAL: [f32; 3] = [1e-40, -1e-40, 1.4e-45];

/// Whether `got` is `want` within the tolerance of a row. Results over the largest f32 are infinities.
fn same(got: f64, want: f64, tolerance: f64) -> bool {
    let want = f64::from(want as f32);
    let close =
        |want: f64| want.is_finite() && (got - want).abs() <= tolerance.max(1e-7) * want.abs().max(1.0);
    got.is_nan() && want.is_nan() || got == want || close(want) || over(got, want)
}

/// Beside the largest number, rounding may fall on either side of infinity.
fn over(got: f64, want: f64) -> bool {
    let beyond = |x: f64| x.abs() > 3.4e38 && !x.is_nan();
    beyond(got) && beyond(want) && got.signum() == want.signum()
}

/// What a row's function may do otherwise, with the reason.
fn excused(name: &str, x: f32, w: f32) -> bool {
    match name {
        // Beyond their reduction a driver's own functions answer, as precise as their maker wishes.
        "sin" | "cos" | "tan" => x.abs() > 1e5,
        // Vulkan grants the logarithm near 1 an error of 2^-21, which these multiply.
        "pow" => w.abs() >= 50.0 && (x.abs() - 1.0).abs() < 0.5,
        "xlogy" => x.abs() >= 50.0 && (w - 1.0).abs() < 0.5,
        // Vulkan says nothing of quotients by a divisor over 2^126.
        "div" | "div_zero" => w.abs() > 8.5e37,
        // A quotient over 2^24 has no exact rest in f32.
        "rem" | "fmod" => (x / w).abs() >= 16_777_216.0 && w != 0.0,
        // Nor, as of any quotient, of one by such a divisor.
        "floor_div" => (x / w).abs() >= 16_777_216.0 && w != 0.0 || w.abs() > 8.5e37,
        _ => false,
    }
}

fn unary_rows(on: &Subject) {
    let ctx = on.context();
    for op in Unary::ALL {
        let row = op.row();
        let Some(f) = row.float else { continue };
        let got = run(&ctx, |p| floats(p, [AWKWARD.len()], &AWKWARD).unary(op)).2;
        for (x, got) in AWKWARD.iter().zip(&got) {
            let want = f(f64::from(*x));
            let fine = same(*got, want, row.tolerance) || excused(row.name, *x, 1.0);
            assert!(fine, "{}({x}) is {got}, not {want}", row.name);
        }
        let got = run(&ctx, |p| floats(p, [SUBNORMAL.len()], &SUBNORMAL).unary(op)).2;
        for (x, got) in SUBNORMAL.iter().zip(&got) {
            let zero = 0f64.copysign(f64::from(*x));
            let either = [f(f64::from(*x)), f(zero)];
            // Some drivers' logarithms take a subnormal for the smallest normal, halved.
            let near = f(f64::from(f32::MIN_POSITIVE));
            let close = matches!(op, Unary::Log | Unary::Log2) && *x > 0.0 && (got - near).abs() <= 1.01;
            let fine = close || either.iter().any(|want| same(*got, *want, row.tolerance));
            assert!(fine, "{}({x:e}) is {got}, not {either:?}", row.name);
        }
    }
}

fn binary_rows(on: &Subject) {
    let ctx = on.context();
    let n = AWKWARD.len();
    // The CPU divides as IEEE 754 says.
    let free = |name: &str, x, w| excused(name, x, w) && (on.is_vulkan() || !name.starts_with("div"));
    for op in Binary::ALL {
        let row = op.row();
        let Some(f) = row.float else { continue };
        let got = run(&ctx, |p| floats(p, [n, 1], &AWKWARD).binary(op, floats(p, [n], &AWKWARD)));
        for (i, got) in got.2.iter().enumerate() {
            let (x, w) = (AWKWARD[i / n], AWKWARD[i % n]);
            let want = f(f64::from(x), f64::from(w));
            // f64 has room where f32 has not; the operands' own f32 arithmetic decides there.
            let narrow = match op {
                Binary::Add => f64::from(x + w),
                Binary::Sub => f64::from(x - w),
                Binary::Mul => f64::from(x * w),
                Binary::Div => f64::from(x / w),
                _ => want,
            };
            let fine = same(*got, want, row.tolerance) || same(*got, narrow, 0.0) || free(row.name, x, w);
            assert!(fine, "{}({x}, {w}) is {got}, not {want}", row.name);
        }
    }
}

fn integer_rows(on: &Subject) {
    let ctx = on.context();
    let words: [i32; 11] = [0, 1, -1, 2, -2, 7, -7, 31, 32, i32::MAX, i32::MIN];
    let n = words.len();
    let wrap = |x: i64, dtype: DType| match dtype {
        DType::I32 => f64::from(x as i32),
        DType::U32 => f64::from(x as u32),
        DType::U8 => f64::from(x as u8),
        _ => x as f64,
    };
    for dtype in [DType::I32, DType::U32, DType::U8] {
        let line = |p: &Pass| p.input(HostTensor::new([n], &words).unwrap()).unwrap().cast(dtype);
        let held: Vec<i64> = words.iter().map(|x| wrap(i64::from(*x), dtype) as i64).collect();
        for op in Unary::ALL {
            let row = op.row();
            let (Some(f), true) = (row.int, row.takes(dtype)) else { continue };
            if op == Unary::LeadingZeros && dtype == DType::U8 {
                continue;
            }
            let got = run(&ctx, |p| line(p).unary(op));
            for (x, got) in held.iter().zip(&got.2) {
                assert_eq!(*got, wrap(f(*x), op.dtype(dtype)), "{} of {x} as {dtype}", row.name);
            }
        }
        for op in Binary::ALL {
            let row = op.row();
            let (Some(f), true) = (row.int, row.takes(dtype)) else { continue };
            if op == Binary::MulHigh && dtype == DType::U8 {
                continue;
            }
            let got = run(&ctx, |p| line(p).unsqueeze(1).binary(op, line(p)));
            for (i, got) in got.2.iter().enumerate() {
                let (x, w) = (held[i / n], held[i % n]);
                let want = wrap(f(x, w), op.dtype(dtype));
                assert_eq!(*got, want, "{}({x}, {w}) as {dtype}", row.name);
            }
        }
    }
}

/// Input, function, values, gradients.
type Known = (&'static str, &'static [f32], fn(Tensor) -> Tensor, &'static [f64], &'static [f64]);

fn saturated_functions(on: &Subject) {
    let cases: [Known; 6] = [
        ("sigmoid", &[100.0, -200.0], Tensor::sigmoid, &[1.0, 0.0], &[0.0, 0.0]),
        ("logsigmoid", &[1000.0, -1000.0], Tensor::logsigmoid, &[0.0, -1000.0], &[0.0, 1.0]),
        ("selu", &[1000.0], Tensor::selu, &[1_050.700_987], &[1.050_700_987]),
        ("celu", &[1000.0], |x| x.celu(0.5), &[1000.0], &[1.0]),
        ("mish", &[0.0, 90.0], Tensor::mish, &[0.0, 90.0], &[0.6, 1.0]),
        ("atan2 at the origin", &[0.0], |x| x.atan2(x), &[0.0], &[0.0]),
    ];
    let ctx = on.context();
    for (name, x, f, want, slopes) in cases {
        let (y, g) = ctx
            .pass(|p| {
                let x = floats(p, [x.len()], x);
                let y = f(x);
                Ok((y.to_vec::<f64>()?, grad(y.sum(..), &[x])?[0].to_vec::<f64>()?))
            })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        near(name, &y, want, 2e-6);
        near(&format!("gradient of {name}"), &g, slopes, 2e-6);
    }
    // Over the largest is an infinity, not the largest.
    let far = run(&ctx, |p| floats(p, [3], &[1000.0, -1000.0, 89.0]).exp().clamp_max(1e38)).2;
    near("exp", &far, &[1e38, 0.0, 1e38], 1e-6);
    let far = run(&ctx, |p| floats(p, [1], &[1000.0]).exp()).2[0];
    assert_eq!(far, f64::INFINITY);
}

fn softmax_of_far_logits(on: &Subject) {
    let cases: [(&str, Make, &[f64]); 4] = [
        ("softmax", |p| floats(p, [2, 2], &[1e4, 0.0, 1e4, 1e4]).softmax(-1), &[1.0, 0.0, 0.5, 0.5]),
        ("log_softmax far", |p| floats(p, [2], &[1e30, -1e30]).log_softmax(0), &[0.0, -2e30]),
        (
            "logaddexp",
            |p| floats(p, [4], &[-INF, INF, 1e4, -INF]).logaddexp(floats(p, [4], &[-INF, 0.0, 1e4, 2.0])),
            &[f64::NEG_INFINITY, f64::INFINITY, 1e4, 2.0],
        ),
        ("softmax of -inf", |p| p.full([2], f64::NEG_INFINITY).softmax(0), &[f64::NAN, f64::NAN]),
    ];
    let ctx = on.context();
    for (name, f, want) in cases {
        near(name, &run(&ctx, f).2, want, 1e-4);
    }
}

fn spread_of_a_large_mean(on: &Subject) {
    let ctx = on.context();
    let x: Vec<f32> = (0..1000).map(|i| 1e4 + (i % 5) as f32).collect();
    near("var", &run(&ctx, |p| floats(p, [1000], &x).var(0, 0)).2, &[2.0], 1e-4);
    let equal = run(&ctx, |p| p.full([257], 1234.5).var(0, 1)).2[0];
    assert!((0.0..1e-6).contains(&equal), "{equal}");
}

fn signs_of_zero(on: &Subject) {
    let ctx = on.context();
    let cases: [(&str, Make, &[f64]); 5] = [
        (
            "copysign",
            |p| {
                floats(p, [4], &[3.0, -3.0, 0.0, INF])
                    .copysign(floats(p, [4], &[-0.0, 0.0, -1.0, -NAN]))
                    .recip()
            },
            &[-1.0 / 3.0, 1.0 / 3.0, f64::NEG_INFINITY, 0.0],
        ),
        ("neg", |p| (-floats(p, [2], &[0.0, -0.0])).recip(), &[f64::NEG_INFINITY, f64::INFINITY]),
        ("abs", |p| floats(p, [2], &[0.0, -0.0]).abs().recip(), &[f64::INFINITY, f64::INFINITY]),
        ("recip", |p| floats(p, [2], &[0.0, -0.0]).recip(), &[f64::INFINITY, f64::NEG_INFINITY]),
        (
            "atan2",
            |p| floats(p, [4], &[0.0, -0.0, 0.0, -0.0]).atan2(floats(p, [4], &[-1.0, -1.0, -0.0, 1.0])),
            &[std::f64::consts::PI, -std::f64::consts::PI, std::f64::consts::PI, 0.0],
        ),
    ];
    for (name, f, want) in cases {
        near(name, &run(&ctx, f).2, want, 1e-6);
    }
}

/// A choice's branch that is not taken gives no NaN, however infinite its slope.
fn choices_let_nothing_through(on: &Subject) {
    let cases: [Known; 5] = [
        ("quotient", &[0.0, 2.0], |x| x.eq(0.0).select(0.0, 1.0 / x), &[0.0, 0.5], &[0.0, -0.25]),
        ("product", &[1000.0], |x| x.gt(0.0).select(x, x * x.exp()), &[1000.0], &[1.0]),
        ("power", &[0.0], |x| x.gt(0.0).select(x.pow(0.3), 0.0), &[0.0], &[0.0]),
        ("asin", &[2.0], |x| x.abs().le(1.0).select(x.asin(), x), &[2.0], &[1.0]),
        (
            "nan",
            &[NAN, 2.0],
            |x| x.is_nan().select(0.0, x.log()),
            &[0.0, std::f64::consts::LN_2],
            &[0.0, 0.5],
        ),
    ];
    let ctx = on.context();
    for (name, x, f, want, slopes) in cases {
        let (y, g) = ctx
            .pass(|p| {
                let x = floats(p, [x.len()], x);
                let y = f(x);
                Ok((y.to_vec::<f64>()?, grad(y.sum(..), &[x])?[0].to_vec::<f64>()?))
            })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        near(name, &y, want, 2e-6);
        near(&format!("gradient of {name}"), &g, slopes, 2e-6);
    }
}

/// Reductions over no elements of every kind of view, with functions before them.
fn sums_of_nothing(on: &Subject) {
    on.context()
        .pass(|pass| {
            let whole = pass.input(HostTensor::new([2, 3], &[0.5f32; 6])?)?;
            let none = pass.input(HostTensor::new([2, 0], &[0f32; 0])?)?;
            let more = none.expand([3, 2, 0]).reshape([6, 0]);
            for x in [none, whole.slice(1, 1..1), none.slice_at(0, 0usize, 2), more] {
                let turned = x.t();
                for view in [x, turned, x.flip(..), turned.expand([4, 0, x.shape()[0]]), x.unsqueeze(0)] {
                    assert_eq!(view.exp().sum_all().item::<f32>()?, 0.0);
                    assert_eq!((view * view.flip(..)).mul(2.0).sum_all().item::<f32>()?, 0.0);
                    assert_eq!(view.cos().prod(..).item::<f32>()?, 1.0);
                }
            }
            let words = [
                pass.input(HostTensor::new([3, 0], &[0i64; 0])?)?,
                pass.input(HostTensor::new([3, 0], &[0u8; 0])?)?,
                pass.input(HostTensor::new([3, 0], &[0i32; 0])?)?,
                pass.input(HostTensor::new([3, 0], &[0f32; 0])?.cast(DType::F16))?,
            ];
            for x in words {
                assert_eq!(x.cast(DType::F32).exp().sum_all().item::<f32>()?, 0.0, "{}", x.dtype());
                assert_eq!(x.cast(DType::F32).sum(1).to_vec::<f32>()?, [0.0; 3], "{}", x.dtype());
                assert_eq!(x.prod(..).to_vec::<f64>()?, [1.0], "{}", x.dtype());
            }
            Ok(())
        })
        .unwrap();
}

/// llvmpipe leaves all loops of an invocation after 65,535 rounds, those of functions that a step calls among them:
/// 64 for each quotient of i64. What runs along many elements takes fewer with each lane.
fn loops_in_loops(on: &Subject) {
    if on.is_oracle() || on.is_slow() {
        return;
    }
    type Made = fn(Tensor) -> Tensor;
    // Quotients in rows, in columns and in one sum, whose state is a word or not; and a state of two words alone.
    let cases: [(&str, &[usize], Made); 10] = [
        ("few words", &[1020], |x| (x.remainder(7).cast(DType::F32) * 0.25).sum(..)),
        ("words", &[2048], |x| (x.remainder(7).cast(DType::F32) * x.cast(DType::F32).sin()).sum(..)),
        ("quotients", &[3000], |x| (x.floor_div(5) - x / 3).cast(DType::F32).sum(..)),
        ("pairs", &[100_000], |x| x.remainder(7).sum(..)),
        ("columns", &[1500, 300], |x| x.remainder(7).cast(DType::F32).sum(0)),
        ("four columns", &[700, 512], |x| x.remainder(7).cast(DType::F32).max(0)),
        ("rows", &[300, 1500], |x| x.remainder(7).cast(DType::F32).sum(1)),
        ("row programs", &[3, 9000], |x| x.remainder(7).cast(DType::F32).softmax(1)),
        ("a state of two words", &[600_000], |x| x.sum(..)),
        ("a running sum", &[1, 300_000], |x| x.cumsum(1).narrow(1, 299_990, 10)),
    ];
    let run = |ctx: &Context, dims: &[usize], made: Made| {
        ctx.pass(|p| {
            let n: usize = dims.iter().product();
            let elems: Vec<i64> = (0..n as i64).map(|i| i * 7919 % 100_003).collect();
            made(p.input(HostTensor::new(dims, &elems)?)?).to_vec::<f64>()
        })
        .unwrap()
    };
    let few = Context::new(on.lowered(|caps| caps.max_buffers = 4)).unwrap();
    let mut wrong = Vec::new();
    for (name, dims, made) in cases {
        let want = run(&oracle(), dims, made);
        let scale = want.iter().fold(1e-9_f64, |m, x| m.max(x.abs()));
        for ctx in [&on.context(), &few] {
            let got = run(ctx, dims, made);
            let off = got.iter().zip(&want).find(|(g, w)| (*g - *w).abs() > 1e-5 * scale);
            wrong.extend(off.map(|off| (name, off.0.to_owned(), off.1.to_owned())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
