//! Results in narrow floats, conversions between dtypes, promotion.

use wgrad::DType;

use super::{Golden, golden};

/// Half a unit in the last place of f32, which the oracle does not round to.
const F32: f64 = 6e-8;

/// The same in f16 and bf16, which may differ by one unit in the last place.
fn halves() -> Vec<Golden> {
    let mut all = Vec::new();
    for (name, dtype) in [("f16", DType::F16), ("bf16", DType::BF16)] {
        let exact = |f: &str| format!("{f} {name}");
        let plain = [
            golden(exact("cast"), move |_, x| x[0].cast(dtype)),
            golden(exact("add"), |_, x| x[0] + x[1]),
            golden(exact("mul"), |_, x| x[0] * x[1]),
            golden(exact("max"), |_, x| x[0].max(1)),
            golden(exact("mean"), |_, x| x[0].mean_all()),
        ];
        let near = [
            // PyTorch rounds the number first.
            golden(format!("add {name} scalar"), |_, x| x[0] + 0.1),
            golden(exact("exp"), |_, x| x[0].exp()),
            golden(exact("sum"), |_, x| x[0].sum(1)),
            golden(exact("matmul"), |_, x| x[0].matmul(x[1])),
            golden(exact("softmax"), |_, x| x[0].softmax(-1)),
            golden(exact("layer_norm"), |_, x| x[0].layer_norm(None, None, 1e-5)),
        ];
        all.extend(plain);
        all.extend(near.map(|case| case.tolerance(dtype.epsilon())));
    }
    all
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = halves();
    all.extend(promotions());
    all
}

fn promotions() -> Vec<Golden> {
    vec![
        golden("add f16 f32", |_, x| x[0] + x[1]).tolerance(F32),
        golden("add f16 bf16", |_, x| x[0] + x[1]).tolerance(F32),
        golden("div ints", |_, x| x[0] / x[1]),
        golden("add int f16", |_, x| x[0] + x[1]),
        golden("cast f32", |_, x| x[0].cast(DType::F32)).tolerance(F32),
        golden("cast i32", |_, x| x[0].cast(DType::I32)),
        golden("cast bool", |_, x| x[0].cast(DType::Bool)),
        golden("cast bool to int", |_, x| x[0].cast(DType::I32)),
        golden("cast i32 to u8", |_, x| x[0].cast(DType::U8)),
        golden("add int scalar float", |_, x| x[0] + 0.5),
        golden("add bool int", |_, x| x[0] + x[1]),
        golden("mean of int cast", |_, x| x[0].mean_all()).tolerance(F32),
    ]
}
