//! Whether a step learns what it should.

use wgrad::prelude::*;
use wgrad::{Result, bail};
use wgrad_benches::Model;

use crate::training::{How, Training};
use crate::work::{self, Work};

/// Steps whose losses are compared.
const STEPS: usize = 3;

/// Losses as the oracle computes them, by model: two ways of recording and two precisions share them.
#[derive(Default)]
pub(crate) struct Truths(Vec<(Model, Vec<f32>)>);

impl Truths {
    fn of(&mut self, model: &Model) -> Result<Vec<f32>> {
        if let Some((_, losses)) = self.0.iter().find(|(known, _)| known == model) {
            return Ok(losses.clone());
        }
        let losses = Training::new(&Device::oracle(), model, How::Recorded)?.losses(STEPS)?;
        self.0.push((model.clone(), losses.clone()));
        Ok(losses)
    }
}

/// The largest difference of a loss to the oracle's, relative to it: of the workload, or of its small relative; with
/// recomputation, to those without.
///
/// # Errors
/// `Data` where it is over the tolerance; what the devices meet.
pub(crate) fn run(device: &Device, work: &Work, how: How, truths: &mut Truths) -> Result<f64> {
    let model = match how {
        How::Within(_) => &work.model,
        _ => work.relative.as_ref().unwrap_or(&work.model),
    };
    let got = Training::new(device, model, how)?.losses(STEPS)?;
    let (want, whose) = match (how, model) {
        // The same memory would mean something else to a relative; what is not recomputed has been checked before.
        (How::Within(_), _) => (Training::new(device, model, How::Recorded)?.losses(STEPS)?, "recorded"),
        (_, &Model::Gpt { layers, width, heads, tokens, vocabulary, batch, .. }) => {
            let exact = Model::Gpt { layers, width, heads, tokens, vocabulary, batch, mixed: false };
            (truths.of(&exact)?, "oracle")
        }
        (_, other) => (truths.of(other)?, "oracle"),
    };
    let off = |(got, want): (&f32, &f32)| f64::from((got - want).abs() / want.abs());
    let most =
        got.iter().zip(&want).map(off).fold(0.0, |most, off| if off.is_nan() { off } else { off.max(most) });
    if most.is_nan() || most > work::tolerance(model) {
        bail!(Data, "check", "losses {got:?} and {want:?} ({whose}) differ; nothing is timed");
    }
    Ok(most)
}
