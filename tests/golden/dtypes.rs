//! Results in narrow floats, conversions between dtypes, promotion.

use wgrad::DType;

use super::{Golden, golden};

/// Half a unit in the last place of f32, which the oracle does not round to.
const F32: f64 = 6e-8;

pub(super) fn cases() -> Vec<Golden> {
    vec![
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
