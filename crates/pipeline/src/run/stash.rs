//! What a thread keeps: passes between F and B, and the sums of gradients on the device.

use std::sync::Arc;

use wgrad_autograd::{Context, Kept, Param, Pass, Tensor};
use wgrad_graph::{HostTensor, Out, Result};
use wgrad_nn::{Follow, ParamSet, Statistics, Summary};

use super::narrow::Sending;

/// Shape and dtype of a gradient that goes back, and the gradient if there is one.
pub(super) type Back = (Out, Option<Sending>);

/// What F keeps of one micro-batch for B.
pub(super) struct Open {
    pub(super) pass: Pass,
    pub(super) loss: Option<Tensor>,
    /// Inputs that stand for the gradients that will come, with the stage that sends them.
    pub(super) coming: Vec<(usize, Vec<Tensor>)>,
    /// What goes back, recorded with F, by the stage that takes it.
    pub(super) back: Vec<(usize, Vec<Back>)>,
    /// Where the gradients of several shards are summed before the backward pass goes on: each with the input that
    /// stands for the sum.
    pub(super) copied: Vec<(Tensor, Tensor)>,
    /// The gradients of the parameters, recorded with F.
    pub(super) weights: Vec<Option<Tensor>>,
    /// What layers with running statistics know of the micro-batch.
    pub(super) statistics: Vec<Statistics>,
}

impl Open {
    /// What has to be computed of what goes back.
    pub(super) fn going_back(&self) -> impl Iterator<Item = Tensor> {
        self.back.iter().flat_map(|(_, all)| all).flat_map(|(_, dx)| dx).flat_map(Sending::tensors)
    }
}

/// The statistics of the micro-batches so far, for one use of one layer.
pub(super) struct Gathered {
    running: Arc<dyn Follow>,
    /// Which use of the layer within a forward pass it is.
    turn: usize,
    count: f64,
    kept: Vec<Kept>,
    found: bool,
}

impl Gathered {
    fn summary(&self) -> Summary {
        Summary { count: self.count, values: self.kept.iter().map(Kept::t).collect() }
    }
}

/// The sums of a stage's gradients over micro-batches, and the statistics that layers follow after the step.
pub(super) struct Sums {
    pub(super) params: Vec<Param>,
    pub(super) kept: Vec<Kept>,
    /// Which have a gradient in this step.
    pub(super) found: Vec<bool>,
    statistics: Vec<Gathered>,
}

impl Sums {
    pub(super) fn new(params: &ParamSet) -> Result<Self> {
        let zeros = |p: &Param| {
            let zeros = HostTensor::new(p.shape(), &vec![0f32; p.shape().elems()])?.cast(p.dtype());
            Kept::named(p.context(), &format!("{}.gradient", p.name()), zeros)
        };
        let kept = params.iter().map(zeros).collect::<Result<_>>()?;
        Ok(Self {
            params: params.iter().cloned().collect(),
            kept,
            found: vec![false; params.len()],
            statistics: Vec::new(),
        })
    }

    /// A step begins. What an earlier one left, whole or failed, is replaced by the first gradient.
    pub(super) fn begin(&mut self) {
        self.found.fill(false);
        self.statistics.iter_mut().for_each(|g| g.found = false);
    }

    /// The sums with the last micro-batch's gradients, which are not kept here.
    pub(super) fn whole(&mut self, gradients: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let mut whole = Vec::new();
        for ((kept, found), gradient) in self.kept.iter().zip(&mut self.found).zip(gradients) {
            whole.push(match (*found, *gradient) {
                (true, Some(g)) => Some(kept.t().try_add(g)?),
                (true, None) => Some(kept.t()),
                (false, g) => g,
            });
            *found |= gradient.is_some();
        }
        Ok(whole)
    }

    /// Adds a micro-batch's gradients, for good when its pass ends.
    pub(super) fn add(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        for ((kept, found), gradient) in self.kept.iter().zip(&mut self.found).zip(gradients) {
            let Some(g) = *gradient else { continue };
            kept.try_set(if *found { kept.t().try_add(g)? } else { g })?;
            *found = true;
        }
        Ok(())
    }

    /// Merges a micro-batch's statistics into those of the ones before, for good when its pass ends.
    pub(super) fn merge(&mut self, context: &Context, statistics: &[Statistics]) -> Result<()> {
        let mut seen: Vec<Arc<Kept>> = Vec::new();
        for own in statistics {
            let Some(first) = own.running.state().into_iter().next() else { continue };
            let turn = seen.iter().filter(|k| Arc::ptr_eq(k, &first)).count();
            let same = |g: &Gathered| {
                g.turn == turn && g.running.state().first().is_some_and(|k| Arc::ptr_eq(k, &first))
            };
            let at = match self.statistics.iter().position(same) {
                Some(at) => at,
                None => {
                    let zeros = |x: &Tensor| {
                        let Out { shape, dtype } = x.try_out()?;
                        let zeros = HostTensor::new(shape, &vec![0f32; shape.elems()])?.cast(dtype);
                        Kept::named(context, &format!("{}.batch", first.name()), zeros)
                    };
                    let kept = own.summary.values.iter().map(zeros).collect::<Result<_>>()?;
                    let running = Arc::clone(&own.running);
                    self.statistics.push(Gathered { running, turn, count: 0.0, kept, found: false });
                    self.statistics.len() - 1
                }
            };
            seen.push(first);
            let gathered = &mut self.statistics[at];
            let all = match gathered.found {
                true => gathered.running.merge(&gathered.summary(), &own.summary)?,
                false => own.summary.clone(),
            };
            for (kept, value) in gathered.kept.iter().zip(&all.values) {
                kept.try_set(*value)?;
            }
            (gathered.count, gathered.found) = (all.count, true);
        }
        Ok(())
    }

    /// Records that running statistics follow those of all micro-batches.
    pub(super) fn follow(&self) -> Result<()> {
        let found = self.statistics.iter().filter(|g| g.found);
        found.into_iter().try_for_each(|g| g.running.follow(&g.summary()))
    }
}
