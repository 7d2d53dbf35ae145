//! Elementwise functions.

use wgrad::{DType, NanToNum, Tensor};

use super::{Golden, golden, one, two};

/// A function at generic points and at the awkward ones (infinities, zeros, large, NaN).
fn unary(name: &str, f: fn(Tensor) -> Tensor) -> [Golden; 2] {
    [golden(name, move |_, x| f(x[0])), golden(format!("{name} edges"), move |_, x| f(x[0]))]
}

fn unaries() -> Vec<Golden> {
    let rows: [(&str, fn(Tensor) -> Tensor); 50] = [
        ("neg", Tensor::neg),
        ("abs", Tensor::abs),
        ("sign", Tensor::sign),
        ("recip", Tensor::recip),
        ("exp", Tensor::exp),
        ("exp2", Tensor::exp2),
        ("expm1", Tensor::expm1),
        ("log", Tensor::log),
        ("log2", Tensor::log2),
        ("log10", Tensor::log10),
        ("log1p", Tensor::log1p),
        ("sqrt", Tensor::sqrt),
        ("rsqrt", Tensor::rsqrt),
        ("square", Tensor::square),
        ("floor", Tensor::floor),
        ("ceil", Tensor::ceil),
        ("round", Tensor::round),
        ("trunc", Tensor::trunc),
        ("frac", Tensor::frac),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("tan", Tensor::tan),
        ("asin", Tensor::asin),
        ("acos", Tensor::acos),
        ("atan", Tensor::atan),
        ("sinh", Tensor::sinh),
        ("cosh", Tensor::cosh),
        ("tanh", Tensor::tanh),
        ("asinh", Tensor::asinh),
        ("acosh", Tensor::acosh),
        ("atanh", Tensor::atanh),
        ("erf", Tensor::erf),
        ("erfc", Tensor::erfc),
        ("sigmoid", Tensor::sigmoid),
        ("softplus", Tensor::softplus),
        ("relu", Tensor::relu),
        ("relu6", Tensor::relu6),
        ("selu", Tensor::selu),
        ("gelu", Tensor::gelu),
        ("gelu_tanh", Tensor::gelu_tanh),
        ("silu", Tensor::silu),
        ("mish", Tensor::mish),
        ("hardsigmoid", Tensor::hardsigmoid),
        ("hardswish", Tensor::hardswish),
        ("softsign", Tensor::softsign),
        ("log_sigmoid", Tensor::logsigmoid),
        ("leaky_relu", |x| x.leaky_relu(0.1)),
        ("elu", |x| x.elu(0.7)),
        ("celu", |x| x.celu(0.7)),
        ("hardtanh", |x| x.hardtanh(-1.5, 0.5)),
    ];
    let mut all: Vec<Golden> = rows.iter().flat_map(|(name, f)| unary(name, *f)).collect();
    // PyTorch has their constants in f32.
    for case in &mut all {
        if case.name.starts_with("celu") || case.name.starts_with("hardsigmoid") {
            case.tolerance = 1e-7;
        }
    }
    all.extend([
        one("exp twice", Tensor::exp),
        one("log twice", Tensor::log),
        one("sqrt twice", Tensor::sqrt),
        one("tanh twice", Tensor::tanh),
        one("sigmoid twice", Tensor::sigmoid),
        one("erf twice", Tensor::erf),
        one("gelu twice", Tensor::gelu),
        one("silu twice", Tensor::silu),
        one("softplus twice", Tensor::softplus),
        one("sin twice", Tensor::sin),
        one("atan twice", Tensor::atan),
        one("relu6 limits", Tensor::relu6),
        one("hardtanh limits", |x| x.hardtanh(-1.5, 0.5)),
        one("hardsigmoid limits", Tensor::hardsigmoid).tolerance(1e-7),
        one("hardswish limits", Tensor::hardswish),
        one("asin limits", Tensor::asin),
        one("acosh limits", Tensor::acosh),
        one("atanh limits", Tensor::atanh),
        one("is_inf", Tensor::is_inf),
        one("is_finite", Tensor::is_finite),
        one("round halves", Tensor::round),
        one("log1p limits", Tensor::log1p),
        one("is_nan", Tensor::is_nan),
        one("not bool", Tensor::not),
        one("not int", Tensor::not),
        one("abs int", Tensor::abs),
        one("sign int", Tensor::sign),
        one("neg int", Tensor::neg),
    ]);
    all
}

fn binaries() -> Vec<Golden> {
    let rows: [(&str, fn(Tensor, Tensor) -> Tensor); 14] = [
        ("add", Tensor::add),
        ("sub", Tensor::sub),
        ("mul", Tensor::mul),
        ("div", Tensor::div),
        ("pow", Tensor::pow),
        ("maximum", Tensor::maximum),
        ("minimum", Tensor::minimum),
        ("floor_div", Tensor::floor_div),
        ("remainder", Tensor::remainder),
        ("fmod", Tensor::fmod),
        ("atan2", Tensor::atan2),
        ("hypot", Tensor::hypot),
        ("copysign", Tensor::copysign),
        ("xlogy", Tensor::xlogy),
    ];
    let mut all = Vec::new();
    for (name, f) in rows {
        all.push(two(name, f));
        all.push(two(&format!("{name} broadcast"), f));
    }
    all.extend([
        two("div twice", Tensor::div),
        two("pow twice", Tensor::pow),
        two("mul twice", Tensor::mul),
        two("atan2 twice", Tensor::atan2),
        two("hypot twice", Tensor::hypot),
        two("xlogy twice", Tensor::xlogy),
        golden("pow scalar first", |_, x| {
            let base = x[0].full_like(2.5);
            base.pow(x[0])
        }),
        two("remainder signs", Tensor::remainder),
        two("fmod signs", Tensor::fmod),
        two("floor_div signs", Tensor::floor_div),
        two("remainder by 0", Tensor::remainder),
        two("fmod by 0", Tensor::fmod),
        two("remainder int", Tensor::remainder),
        two("fmod int", Tensor::fmod),
        two("floor_div int", Tensor::floor_div),
        two("atan2 grid", Tensor::atan2),
        two("hypot grid", Tensor::hypot),
        two("xlogy grid", Tensor::xlogy),
        two("xlogy at 0", Tensor::xlogy),
        two("copysign grid", Tensor::copysign),
        golden("add scalar", |_, x| x[0] + 2.5),
        golden("sub scalar first", |_, x| 2.5 - x[0]),
        golden("div scalar first", |_, x| 2.5 / x[0]),
        golden("pow 2", |_, x| x[0].pow(2.0)),
        golden("pow 3", |_, x| x[0].pow(3.0)),
        golden("pow half", |_, x| x[0].pow(0.5)),
        golden("pow minus 2", |_, x| x[0].pow(-2.0)),
        two("div by 0", Tensor::div),
        two("pow grid", Tensor::pow),
        two("pow negative base", Tensor::pow),
        golden("pow base gradient", |_, x| {
            Tensor::stack(&[x[0].pow(0.0), x[0].pow(1.0), x[0].pow(2.0), x[0].pow(3.0)], 0)
        }),
        golden("pow exponent gradient", |p, x| (p.arange(0..2).cast(DType::F64) * 2.0).pow(x[0])),
        two("maximum grid", Tensor::maximum),
        two("minimum grid", Tensor::minimum),
        two("maximum ties", Tensor::maximum),
        two("minimum ties", Tensor::minimum),
    ]);
    let comparisons: [(&str, fn(Tensor, Tensor) -> Tensor); 6] = [
        ("eq", Tensor::eq),
        ("ne", Tensor::ne),
        ("lt", Tensor::lt),
        ("le", Tensor::le),
        ("gt", Tensor::gt),
        ("ge", Tensor::ge),
    ];
    for (name, f) in comparisons {
        all.push(two(&format!("{name} grid"), f));
        all.push(two(&format!("{name} int"), f));
    }
    all.extend([
        two("and bool", Tensor::and),
        two("and int", Tensor::and),
        two("or bool", Tensor::or),
        two("or int", Tensor::or),
        two("xor bool", Tensor::xor),
        two("xor int", Tensor::xor),
        two("logical_and floats", Tensor::logical_and),
        two("logical_or floats", Tensor::logical_or),
        two("logical_xor floats", Tensor::logical_xor),
        one("logical_not floats", Tensor::logical_not),
        two("shl", Tensor::shl),
        two("shr", Tensor::shr),
    ]);
    all
}

fn choices() -> Vec<Golden> {
    vec![
        golden("select", |_, x| x[0].select(x[1], x[2])),
        golden("select broadcast", |_, x| x[0].select(x[1], x[2])),
        golden("select nan", |_, x| x[0].select(x[1], x[2])),
        golden("masked_fill", |_, x| x[0].masked_fill(x[1], 3.5)),
        golden("masked_fill broadcast", |_, x| x[0].masked_fill(x[1], f64::NEG_INFINITY)),
        golden("masked_fill inf", |_, x| x[0].masked_fill(x[1], 10.0)),
        golden("clamp", |_, x| x[0].clamp(-0.75, 1.25)),
        golden("clamp limits", |_, x| x[0].clamp(-2.5, 1.5)),
        golden("clamp nan", |_, x| x[0].clamp(-2.5, 1.5)),
        golden("clamp tensors", |_, x| x[0].clamp(x[1], x[2])),
        golden("clamp crossed", |_, x| x[0].clamp(1.5, -0.5)),
        golden("clamp_min", |_, x| x[0].clamp_min(0.5)),
        golden("clamp_max", |_, x| x[0].clamp_max(0.5)),
        golden("lerp", |_, x| x[0].lerp(x[1], x[2])),
        golden("lerp number", |_, x| x[0].lerp(x[1], 0.3)),
        golden("addcmul", |_, x| x[0] + x[1] * x[2] * 0.5),
        golden("addcdiv", |_, x| x[0] + x[1] / x[2] * 0.5),
        golden("nan_to_num", |_, x| x[0].nan_to_num(NanToNum::default())),
        golden("nan_to_num given", |_, x| {
            x[0].nan_to_num(NanToNum { nan: 0.5, posinf: Some(9.0), neginf: Some(-9.0) })
        }),
        golden("threshold", |_, x| x[0].threshold(0.5, -2.0)),
        golden("hardshrink", |_, x| x[0].hardshrink(0.5)),
        golden("softshrink", |_, x| x[0].softshrink(0.5)),
        golden("glu", |_, x| x[0].glu(-1)),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = unaries();
    all.extend(binaries());
    all.extend(choices());
    all
}
