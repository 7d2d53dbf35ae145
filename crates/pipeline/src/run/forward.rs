//! The forward pass alone: all stages at work on different micro-batches.

use std::sync::Arc;
use std::time::Duration;

use wgrad_autograd::Reading;
use wgrad_graph::{HostTensor, Result};

use super::batch::{Part, joined};
use super::control::Control;
use super::error::placed;
use super::lane::Lane;
use super::threads;
use super::tie::Exchange;
use super::worker::Job;
use super::{Batch, Report, Stages};
use crate::parallel::Peers;
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
        let parts = batch.parts(&batch.ranges(micro_batches)?)?;
        let line = ForwardLine { stages: self, parts, peers: None };
        let (outputs, report) = forward_lines(vec![line], micro_batches)?.remove(0);
        Ok((joined(&outputs)?, report))
    }
}

/// What a line does in a forward pass.
pub(crate) struct ForwardLine<'a> {
    pub(crate) stages: &'a Stages,
    pub(crate) parts: Vec<Part>,
    pub(crate) peers: Option<Peers>,
}

/// The last stages' outputs for the parts of each line, all lines at the same time.
pub(crate) fn forward_lines(
    lines: Vec<ForwardLine<'_>>,
    micro_batches: usize,
) -> Result<Vec<(Vec<HostTensor>, Report)>> {
    let lower = |line: &ForwardLine<'_>| {
        let stages = line.stages;
        stages.lower(&forward_only(stages.len(), micro_batches)?, None)
    };
    let lowered = lines.iter().map(lower).collect::<Result<Vec<_>>>()?;
    let lanes: Vec<_> = lowered.iter().map(|(s, wiring)| Lane::all(s, wiring, None)).collect();
    let count = lowered.iter().map(|(s, _)| s.lists().len()).sum();
    let teams = lines.iter().filter_map(|l| l.peers.as_ref()).flat_map(Peers::collectives).collect();
    let control = Arc::new(Control::new(count, PATIENCE, lanes.concat()).closing(teams));
    let mut jobs = Vec::new();
    for ((line, (schedule, _)), lanes) in lines.into_iter().zip(&lowered).zip(lanes) {
        let ForwardLine { stages, parts, peers } = line;
        jobs.push(Job {
            stages,
            schedule,
            step: 0,
            number: 0,
            scale: None,
            parts,
            counts: (Vec::new(), 0.0),
            teaching: None,
            control: Arc::clone(&control),
            peers,
            lanes,
            exchange: Exchange::default(),
            squares: Arc::default(),
            timed: false,
        });
    }
    let mut done = Vec::new();
    for (job, mut logs) in jobs.iter().zip(threads::run(&jobs)?) {
        let mut outputs: Vec<_> = logs.iter_mut().flat_map(|l| std::mem::take(&mut l.outputs)).collect();
        outputs.sort_by_key(|(m, _)| *m);
        let last = job.stages.len() - 1;
        let fetch = |(m, y): (usize, Reading)| {
            let line = job.peers.as_ref().map(Peers::place).unwrap_or_default();
            let place = || format!("{line}{}, micro-batch {m}, output", job.stages.stages[last].label(last));
            y.wait(PATIENCE).map_err(|e| placed(&place(), e))
        };
        let outputs = outputs.into_iter().map(fetch).collect::<Result<Vec<_>>>()?;
        done.push((outputs, Report::new(job.stages, job.schedule, &logs)));
    }
    Ok(done)
}
