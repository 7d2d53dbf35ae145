//! Losses. Each is one method with PyTorch's defaults and one that takes options; fusion makes each one
//! kernel or two.
//!
//! Input and target of an elementwise loss have one shape: broadcasting them by accident (`[N, 1]` with
//! `[N]`) is the mistake that nobody means.

mod classes;
mod ctc;
mod elementwise;
mod margin;

pub use classes::{Bce, BceWithLogits, CrossEntropy, Nll};
pub use ctc::Ctc;
pub use elementwise::{GaussianNll, Huber, KlDiv, PoissonNll, SmoothL1};
pub use margin::{CosineEmbedding, Hinge, HingeEmbedding, MarginRanking, MultiMargin, TripletMargin};

use wgrad_graph::DType;

use super::{cast, meet};
use crate::{Result, Tensor};

/// How the losses of many elements become one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Reduction {
    /// Their mean. Of no elements it is NaN, with a gradient of no elements.
    #[default]
    Mean,
    /// Their sum; of no elements 0.
    Sum,
    /// Their sum divided by the size of the first axis.
    BatchMean,
    /// Each for itself.
    None,
}

/// What `reduction` makes of the losses `each`.
#[track_caller]
fn reduce(op: &str, each: Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::Mean => each.try_mean(..),
        Reduction::Sum => each.try_sum(..),
        Reduction::BatchMean => {
            let shape = each.try_out()?.shape;
            if shape.rank() == 0 {
                refuse!([each] Shape, op, "a mean over the batch needs losses with a first axis");
            }
            each.try_sum(..)?.try_div(shape[0] as f64)
        }
        Reduction::None => Ok(each),
    }
}

/// `x` in floats.
#[track_caller]
fn float(x: Tensor) -> Result<Tensor> {
    if x.try_out()?.dtype.is_float() { Ok(x) } else { cast(x, DType::F32) }
}

/// Input and target in one float dtype.
#[track_caller]
fn pair(op: &str, x: Tensor, target: Tensor) -> Result<[Tensor; 2]> {
    let (a, b) = (x.try_out()?.shape, target.try_out()?.shape);
    if a != b {
        refuse!([x, target] Shape, op, "input {a} and target {b} differ; expand one if it shall broadcast");
    }
    meet(op, float(x)?, target)
}

/// An error of `op` unless `ok`.
#[track_caller]
fn demand(op: &str, ok: bool, rule: &str, value: f64) -> Result<()> {
    if !ok {
        refuse!(Argument, op, "{rule}, not {value}");
    }
    Ok(())
}
