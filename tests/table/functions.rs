//! Activations, composites of two operands, choice and creation.

use wgrad::{Close, DType, Indexing, NanToNum, Tensor};

use super::{Case, bools, case, float, floats_of, ints, ints_of};

const SHAPE: [usize; 2] = [5, 7];

/// A function of one tensor on `-3..3`.
fn one(name: &str, f: fn(Tensor) -> Tensor) -> Case {
    case(name, [float(SHAPE, -3.0, 3.0)], move |_, x| f(x[0]))
}

/// A function of two tensors that broadcast.
fn two(name: &str, lo: f64, hi: f64, f: fn(Tensor, Tensor) -> Tensor) -> Case {
    case(name, [float([3, 5], lo, hi), float([2, 1, 5], lo, hi)], move |_, x| f(x[0], x[1]))
}

/// A function of integers.
fn whole(name: &str, f: fn(Tensor, Tensor) -> Tensor) -> Case {
    case(name, [ints([4, 9], -9, 10), ints([4, 9], -4, 5)], move |_, x| f(x[0], x[1])).no_grad()
}

fn activations() -> Vec<Case> {
    vec![
        one("silu", Tensor::silu),
        one("gelu", Tensor::gelu),
        one("gelu_tanh", Tensor::gelu_tanh),
        one("softplus_by", |x| x.softplus_by(1.7, 3.0)),
        one("logsigmoid", Tensor::logsigmoid),
        one("mish", Tensor::mish),
        one("leaky_relu", |x| x.leaky_relu(0.1)),
        one("elu", |x| x.elu(0.7)),
        one("celu", |x| x.celu(0.7)),
        one("selu", Tensor::selu),
        one("hardtanh", |x| x.hardtanh(-1.51, 0.53)),
        one("relu6", |x| (x * 3.1).relu6()),
        one("hardsigmoid", |x| (x * 1.7).hardsigmoid()),
        one("hardswish", |x| (x * 1.7).hardswish()),
        one("softsign", Tensor::softsign),
        one("tanhshrink", Tensor::tanhshrink),
        one("softshrink", |x| x.softshrink(0.51)),
        one("hardshrink", |x| x.hardshrink(0.51)),
        one("threshold", |x| x.threshold(0.52, -2.0)),
        case("glu", [float([3, 8], -2.0, 2.0)], |_, x| x[0].glu(-1)),
        case("glu first axis", [float([4, 3], -2.0, 2.0)], |_, x| x[0].glu(0)),
        case("prelu", [float([2, 3, 5], -2.0, 2.0), float([3], 0.1, 0.9)], |_, x| x[0].prelu(x[1])),
        case("prelu one", [float([5], -2.0, 2.0), float([1], 0.1, 0.9)], |_, x| x[0].prelu(x[1])),
    ]
}

fn arithmetic() -> Vec<Case> {
    vec![
        one("square", Tensor::square),
        one("frac", Tensor::frac),
        case("log10", [float(SHAPE, 0.1, 4.0)], |_, x| x[0].log10()),
        case("sin large", [float(SHAPE, -9e4, 9e4)], |_, x| x[0].sin()).no_grad().tolerance(2e-6),
        case("cos large", [float(SHAPE, -9e4, 9e4)], |_, x| x[0].cos()).no_grad().tolerance(2e-6),
        case("tan wide", [float([37], -900.0, 900.0)], |_, x| x[0].tan()).no_grad().tolerance(1e-3),
        case("pow square", [float(SHAPE, -2.0, 2.0)], |_, x| x[0].pow(2)),
        case("pow root", [float(SHAPE, 0.2, 2.0)], |_, x| x[0].pow(0.5)),
        case("pow reciprocal", [float(SHAPE, 0.3, 2.0)], |_, x| x[0].pow(-1)),
        case("pow negative base", [float(SHAPE, -2.0, -0.2)], |_, x| x[0].pow(3.0)),
        case("pow negative exponent", [float(SHAPE, -2.0, -0.4)], |_, x| x[0].pow(-3.0)).tolerance(2e-5),
        case("pow number first", [float(SHAPE, -2.0, 2.0)], |p, x| {
            p.full([], 2.5).cast(x[0].dtype()).pow(x[0])
        }),
        case("sub number first", [float(SHAPE, -2.0, 2.0)], |_, x| 2.0 - x[0]),
        case("div number first", [float(SHAPE, 0.4, 2.0)], |_, x| 1.0 / x[0]),
        two("fmax", -2.0, 2.0, |x, w| x.fmax(w)),
        two("fmin", -2.0, 2.0, |x, w| x.fmin(w)),
        two("logaddexp", -3.0, 3.0, |x, w| x.logaddexp(w)),
        two("atan2 broadcast", -3.0, 3.0, |x, w| x.atan2(w)),
        two("hypot broadcast", -3.0, 3.0, |x, w| x.hypot(w)),
        two("copysign broadcast", -3.0, 3.0, |x, w| x.copysign(w)),
        two("remainder", 0.3, 4.0, |x, w| x.remainder(w + 5.0)),
        two("rem signs", -4.0, 4.0, |x, w| x.rem(w)).no_grad(),
        two("fmod signs", -4.0, 4.0, |x, w| x.fmod(w)).no_grad(),
        two("floor_div signs", -4.0, 4.0, |x, w| x.floor_div(w)).no_grad(),
        case("rem large", [float([61], -900.0, 900.0), float([61], -0.9, 0.9)], |_, x| x[0].rem(x[1]))
            .no_grad(),
        case("fmod large", [float([61], -9e5, 9e5), float([61], 0.3, 7.0)], |_, x| x[0].fmod(x[1])).no_grad(),
        case("lerp", [float([3, 5], -2.0, 2.0), float([5], -2.0, 2.0), float([3, 1], 0.1, 0.9)], |_, x| {
            x[0].lerp(x[1], x[2])
        }),
        case("lerp number", [float([3, 5], -2.0, 2.0), float([5], -2.0, 2.0)], |_, x| x[0].lerp(x[1], 0.3)),
        case(
            "addcmul",
            [float([3, 5], -2.0, 2.0), float([5], -2.0, 2.0), float([3, 1], -1.0, 2.0)],
            |_, x| x[0].addcmul(x[1], x[2], 0.7),
        ),
        case(
            "addcdiv",
            [float([3, 5], -2.0, 2.0), float([5], -2.0, 2.0), float([3, 1], 0.6, 2.0)],
            |_, x| x[0].addcdiv(x[1], x[2], 0.7),
        ),
        whole("div int", |x, w| x / w),
        whole("rem int", |x, w| x.rem(w)),
        whole("fmod int", |x, w| x.fmod(w)),
        whole("floor_div int", |x, w| x.floor_div(w)),
        whole("pow int", |x, w| x.pow(w)),
        whole("floor_div u32", |x, w| x.abs().cast(DType::U32).floor_div(w.abs().cast(DType::U32))),
        whole("fmod u8", |x, w| x.abs().cast(DType::U8).fmod(w.abs().cast(DType::U8))),
        whole("pow u8", |x, w| x.abs().cast(DType::U8).pow(w.abs().cast(DType::U8))),
        whole("neg u8", |x, _| -x.abs().cast(DType::U8)),
        whole("maximum u8", |x, w| x.cast(DType::U8).maximum(w.cast(DType::U8))),
        whole("atan2 int", |x, w| x.atan2(w)),
        whole("logical_and", |x, w| x.logical_and(w)),
        whole("logical_or", |x, w| x.logical_or(w)),
        whole("logical_xor", |x, w| x.logical_xor(w)),
        whole("logical_not", |x, _| x.logical_not()),
        case(
            "logical_and floats",
            [floats_of([4], &[0.0, 0.5, -1.0, 0.0]), floats_of([4], &[0.0, 0.0, 2.0, 3.0])],
            |_, x| x[0].logical_and(x[1]),
        )
        .no_grad(),
    ]
}

fn choice() -> Vec<Case> {
    let odd =
        || floats_of([2, 4], &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5, -0.0, 3e38, -2.5, 0.25]);
    vec![
        case("cast", [float([3, 5], -2.0, 2.0)], |_, x| (x[0].cast(DType::F32) * 0.5).cast(x[0].dtype())),
        case("cast int", [ints([3, 5], -9, 9)], |_, x| x[0].cast(DType::F32) * 0.5).no_grad(),
        case("select", [bools([3, 5]), float([3, 5], -2.0, 2.0), float([3, 5], -2.0, 2.0)], |_, x| {
            x[0].select(x[1], x[2])
        }),
        case(
            "select broadcast",
            [bools([3, 1]), float([5], -2.0, 2.0), float([2, 3, 5], -2.0, 2.0)],
            |_, x| x[0].select(x[1], x[2]),
        ),
        case("select u8", [bools([7]), ints([7], 0, 99), ints([7], 0, 99)], |_, x| {
            x[0].select(x[1].cast(DType::U8), x[2].cast(DType::U8))
        })
        .no_grad(),
        case("masked_fill", [float([3, 5], -2.0, 2.0), bools([5])], |_, x| x[0].masked_fill(x[1], 1.25)),
        case("clamp", [float([5, 7], -2.0, 2.0)], |_, x| x[0].clamp(-1.01, 0.97)),
        case(
            "clamp tensors",
            [float([3, 5], -2.0, 2.0), float([5], -1.9, -0.9), float([3, 1], 0.9, 1.9)],
            |_, x| x[0].clamp(x[1], x[2]),
        ),
        case("clamp_min", [float([5, 7], -2.0, 2.0)], |_, x| x[0].clamp_min(0.31)),
        case("clamp_max", [float([5, 7], -2.0, 2.0)], |_, x| x[0].clamp_max(0.31)),
        case("clamp int", [ints([19], -9, 9)], |_, x| x[0].clamp(-3, 4)).no_grad(),
        // A quarter, so that what is done with the result does not overflow.
        case("nan_to_num", [odd()], |_, x| x[0].nan_to_num(NanToNum::default()) * 0.25).no_grad(),
        case("nan_to_num given", [odd()], |_, x| {
            x[0].nan_to_num(NanToNum { nan: 0.5, posinf: Some(9.0), neginf: Some(-9.0) })
        })
        .no_grad(),
        case("is_nan odd", [odd()], |_, x| x[0].is_nan()).no_grad(),
        case("is_inf", [odd()], |_, x| x[0].is_inf()).no_grad(),
        case("is_finite", [odd()], |_, x| x[0].is_finite()).no_grad(),
        case("is_inf int", [ints([5], -2, 2)], |_, x| x[0].is_inf()).no_grad(),
        case("is_finite int", [ints([5], -2, 2)], |_, x| x[0].is_finite()).no_grad(),
        case("is_close", [odd()], |_, x| {
            let near = x[0] * 1.000_001;
            x[0].is_close(near, Close { equal_nan: true, ..Close::default() })
        })
        .no_grad(),
        case("is_close int", [ints_of([3], &[100, 5, -7]), ints_of([3], &[101, 5, 7])], |_, x| {
            x[0].is_close(x[1], Close { rtol: 0.01, ..Close::default() })
        })
        .no_grad(),
        case("all_close", [float([3, 5], -2.0, 2.0)], |_, x| x[0].all_close(x[0] + 1e-9, Close::default()))
            .no_grad(),
        case("equal", [ints([3, 5], -2, 2), ints([5, 3], -2, 2)], |_, x| {
            Tensor::stack(&[x[0].equal(x[0]), x[0].equal(x[1]), x[0].equal(x[1].t())], 0)
        })
        .no_grad(),
    ]
}

fn creation() -> Vec<Case> {
    let made = |name: &str, f: fn(&wgrad::Pass) -> Tensor| case(name, [], move |p, _| f(p)).no_grad();
    vec![
        made("zeros", |p| p.zeros([3, 0, 2])),
        made("ones", |p| p.ones([2, 3])),
        made("ones_of", |p| p.ones_of([3, 5], DType::U8)),
        made("zeros_of", |p| p.zeros_of([5], DType::Bool)),
        made("full", |p| p.full([3, 5], 0.1)),
        made("arange", |p| p.arange(-3..8)),
        made("arange_step", |p| p.arange_step(1.0, -2.1, -0.3)),
        made("arange_step none", |p| p.arange_step(1.0, 1.0, 0.3)),
        made("linspace", |p| p.linspace(-1.3, 2.9, 13)),
        made("linspace one", |p| p.linspace(2.5, 9.0, 1)),
        made("logspace", |p| p.logspace(-2.0, 2.0, 7, 10.0)).tolerance(2e-5),
        made("eye", |p| p.eye(5)),
        made("eye_of", |p| p.eye_of(3, 5)),
        made("tril_mask", |p| p.tril_mask(3, 5, 1)),
        made("triu_mask", |p| p.triu_mask(5, 3, -1)),
        case("zeros_like", [ints([3], 0, 9)], |_, x| x[0].zeros_like()).no_grad(),
        made("full_of", |p| p.full_of([2, 3], 7.0, DType::U8)),
        case("ones_like", [float([2, 3], -1.0, 1.0)], |_, x| x[0].ones_like()).no_grad(),
        case("full_like", [bools([3])], |_, x| x[0].full_like(1)).no_grad(),
        case("meshgrid", [float([3], -2.0, 2.0), float([5], -2.0, 2.0)], |_, x| {
            let grid = Tensor::meshgrid(&[x[0], x[1]], Indexing::Ij);
            grid[0] * 2.0 + grid[1]
        }),
        case("meshgrid xy", [float([3], -2.0, 2.0), float([5], -2.0, 2.0), float([2], -1.0, 1.0)], |_, x| {
            let grid = Tensor::meshgrid(x, Indexing::Xy);
            grid[0] * grid[1] + grid[2]
        }),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = activations();
    all.extend(arithmetic());
    all.extend(choice());
    all.extend(creation());
    all
}
