//! Seven programs that fix the surface, on every device, each against a plain f64 reimplementation.

mod accumulation;
mod gan;
mod gpt;
mod gpt_plain;
mod lstm;
mod mnist;
pub(crate) mod plain;
mod stages;
mod swish;

use wgrad::Result;
use wgrad::prelude::*;

use crate::{Subject, Test};

pub(crate) fn tests() -> Vec<Test> {
    let modules = [
        mnist::tests(),
        gan::tests(),
        lstm::tests(),
        gpt::tests(),
        accumulation::tests(),
        swish::tests(),
        stages::tests(),
    ];
    modules.into_iter().flatten().collect()
}

/// The parameters' values, in order of creation; on the oracle with all digits, which `read` rounds to
/// those of the dtype.
pub(crate) fn values(params: &ParamSet) -> Result<plain::Weights> {
    params.iter().map(|p| p.t().to_vec::<f64>()).collect()
}

/// Asserts that numbers agree within `tolerance`, relative to the largest of those wanted; on the oracle
/// within 1e-9.
#[track_caller]
pub(crate) fn close(subject: &Subject, what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: as many numbers");
    let tolerance = if subject.is_oracle() { 1e-9 } else { tolerance };
    let scale = want.iter().fold(0.0f64, |s, w| s.max(w.abs())).max(1e-30);
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let distance = (got - want).abs() / scale;
        assert!(
            distance <= tolerance,
            "{what}[{i}]: {got}, expected {want} (distance {distance:.2e}, allowed {tolerance:.0e})"
        );
    }
}

/// [`close`] for each parameter.
#[track_caller]
pub(crate) fn weights_close(subject: &Subject, params: &ParamSet, want: &plain::Weights, tolerance: f64) {
    let got = values(params).expect("weights are readable");
    for ((param, got), want) in params.iter().zip(&got).zip(want) {
        close(subject, param.name(), got, want, tolerance);
    }
}
