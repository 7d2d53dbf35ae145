//! The forward pass alone: all stages at work on different micro-batches.

use std::sync::Arc;
use std::time::Duration;

use wgrad_autograd::Reading;
use wgrad_graph::{HostTensor, Result};

use super::batch::joined;
use super::control::Control;
use super::error::placed;
use super::lane::Lane;
use super::threads;
use super::tie::Exchange;
use super::worker::Job;
use super::{Batch, Report, Stages};
use crate::schedule::forward_only;

/// How long a wait may last while no stage finishes an action.
const PATIENCE: Duration = Duration::from_secs(60);

impl Stages {
    /// The last stage's output for `x`, in `micro_batches` parts that go through the stages one after the
    /// other, a thread a stage. Every boundary is crossed exactly once a micro-batch; the report tells when and by
    /// how many bytes.
    ///
    /// Layers that behave differently when a model is used want [`Stages::set_mode`] before.
    ///
    /// # Errors
    /// The first error with stage, micro-batch and action; `Argument` for more micro-batches than rows.
    pub fn forward(&self, x: &HostTensor, micro_batches: usize) -> Result<(HostTensor, Report)> {
        self.forward_batch(&Batch::new(x), micro_batches)
    }

    /// As [`Stages::forward`], for a batch with several inputs or with micro-batches of its own sizes.
    ///
    /// # Errors
    /// As [`Stages::forward`].
    pub fn forward_batch(&self, batch: &Batch, micro_batches: usize) -> Result<(HostTensor, Report)> {
        self.check_batch(batch)?;
        let ranges = batch.ranges(micro_batches)?;
        let (schedule, wiring) = self.lower(&forward_only(self.len(), micro_batches)?, None)?;
        let lanes = Lane::all(&schedule, &wiring, None);
        let job = Job {
            stages: self,
            schedule: &schedule,
            step: 0,
            number: 0,
            scale: None,
            parts: batch.parts(&ranges)?,
            counts: (Vec::new(), 0.0),
            teaching: None,
            control: Arc::new(Control::new(self.len(), PATIENCE, lanes.clone())),
            peers: None,
            lanes,
            exchange: Exchange::default(),
            squares: Arc::default(),
            timed: false,
        };
        let mut logs = threads::run(std::slice::from_ref(&job))?.remove(0);
        let mut outputs: Vec<_> = logs.iter_mut().flat_map(|l| std::mem::take(&mut l.outputs)).collect();
        outputs.sort_by_key(|(m, _)| *m);
        let last = self.len() - 1;
        let fetch = |(m, y): (usize, Reading)| {
            let place = || format!("{}, micro-batch {m}, output", self.stages[last].label(last));
            y.wait(PATIENCE).map_err(|e| placed(&place(), e))
        };
        let outputs: Vec<HostTensor> = outputs.into_iter().map(fetch).collect::<Result<_>>()?;
        Ok((joined(&outputs)?, Report::new(self, &schedule, &logs)))
    }
}
