//! Training: the walk of a schedule, and the optimizer's step on every stage or on none.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wgrad_graph::{HostTensor, Result, bail};
use wgrad_nn::{Optimizer, ParamSet, Scaling};

use super::batch::Part;
use super::control::Control;
use super::error::placed;
use super::lane::Lane;
use super::stash::Sums;
use super::threads;
use super::tie::Exchange;
use super::transport::Transport;
use super::worker::{Job, Log, Squares};
use super::{Batch, Loss, LossScale, Report, Stages};
use crate::schedule::{Channels, Schedule, Wiring};

/// Makes the way for messages from one stage to another with so many slots.
pub type MakeTransport = dyn Fn(usize, usize, usize) -> Arc<dyn Transport> + Send + Sync;

/// Choices of a [`Trainer`].
#[derive(Clone)]
pub struct TrainOptions {
    /// The most that the norm of all stages' gradients together may be; larger ones are scaled down. No limit
    /// by default.
    pub clip: Option<f64>,
    /// Leave all weights as they are where the norm of the gradients is not finite on some stage; on by
    /// default.
    pub skip_non_finite: bool,
    /// Multiply the loss by a scale that moves, for gradients of half-precision stages; skips what is not finite, as
    /// `skip_non_finite` does. No scale by default.
    pub scale: Option<LossScale>,
    /// Compute the new weights of all stages beside the old ones, and let them take their places together, so
    /// that a device that fails in its update leaves every stage as it was; on by default. Off, each update
    /// needs no memory beside the old weights, and only failures before it leave all stages as they were.
    pub together: bool,
    /// How long a wait for another stage may last while no stage finishes an action; a minute by default.
    pub deadline: Duration,
    /// Wait for the device after each action, so that the times of the report are the device's; off by default.
    pub timed: bool,
    /// The slots of each way between stages: so many messages may wait at the giving end, in the transport, and on
    /// the taking device. By default as many as the schedule needs, two at least.
    pub slots: Option<usize>,
    /// Makes the ways between stages; rings by default.
    pub transport: Option<Arc<MakeTransport>>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            clip: None,
            skip_non_finite: true,
            scale: None,
            together: true,
            deadline: Duration::from_secs(60),
            timed: false,
            slots: None,
            transport: None,
        }
    }
}

impl TrainOptions {
    /// Whether the norm of the gradients is asked for.
    pub(super) fn measures(&self) -> bool {
        self.clip.is_some() || self.skips()
    }

    /// Whether a step whose gradients are not finite is left out.
    pub(super) fn skips(&self) -> bool {
        self.skip_non_finite || self.scale.is_some()
    }
}

impl fmt::Debug for TrainOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clip, skip_non_finite, scale, together, deadline, timed, slots, .. } = self;
        write!(
            f,
            "TrainOptions(clip {clip:?}, skip_non_finite {skip_non_finite}, scale {scale:?}, together {together}, deadline {deadline:?}, \
             timed {timed}, slots {slots:?})"
        )
    }
}

pub(super) type AnyOptimizer = Box<dyn Optimizer + Send>;

/// What a step needs to learn.
pub(crate) struct Teaching {
    pub(crate) loss: Loss,
    pub(super) options: TrainOptions,
    /// One a stage; none where there is no parameter.
    pub(super) optimizers: Vec<Mutex<Option<AnyOptimizer>>>,
    pub(super) sums: Vec<Mutex<Sums>>,
}

/// What a step gave.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The loss of the batch.
    pub loss: f64,
    /// The norm of all gradients before they were clipped, if it was asked for.
    pub norm: Option<f64>,
    /// Whether the weights were updated: not so where the norm is not finite.
    pub applied: bool,
    /// The scale that the loss had, if it has one.
    pub scale: Option<f64>,
    /// What was done when, and what crossed.
    pub report: Report,
}

/// Teaches stages: one optimizer a stage, one call a step.
///
/// ```
/// use wgrad::pipeline::{Batch, Contract, Loss, Model, Stages, TrainOptions, Trainer, partition, schedule};
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let rng = Rng::seed(1);
/// let model = Model::new()
///     .layer("fc1", move |ctx| Linear::new(ctx, "fc1", 3, 5, rng))
///     .layer("tanh", |_| Ok(Activation::Tanh))
///     .layer("fc2", move |ctx| Linear::new(ctx, "fc2", 5, 2, rng));
/// let contexts = [Context::new(&Device::cpu())?, Context::new(&Device::cpu())?];
/// let cut = partition::at_names(&model.names(), &["fc2"])?;
/// let stages = Stages::cut(&model, &cut, &contexts, Contract::new([3], DType::F32))?;
/// let loss = Loss::mean(|y, t| y.try_cross_entropy(t));
/// let sgd = |params| Sgd::new(params, SgdConfig { lr: 0.5, ..Default::default() });
/// let mut trainer = Trainer::new(stages, loss, sgd, TrainOptions::default())?;
/// let x = HostTensor::new([4, 3], &[0.1f32, 0.9, 0.3, 0.5, 0.2, 0.8, 0.7, 0.4, 0.6, 0.0, 1.0, 0.5])?;
/// let t = HostTensor::new([4], &[0i32, 1, 0, 1])?;
/// let batch = Batch::new(&x).targets(&t);
/// let schedule = schedule::one_f_one_b(2, 2)?;
/// let first = trainer.step(&schedule, &batch)?;
/// assert_eq!(first.report.handovers.len(), 4);      // two activations and two gradients
/// assert!(trainer.step(&schedule, &batch)?.loss < first.loss);
/// # Ok(()) }
/// ```
pub struct Trainer {
    pub(crate) stages: Stages,
    pub(crate) teaching: Teaching,
    steps: u64,
    attempts: u64,
    scale: Option<Scaling>,
    /// The last schedule, lowered and proved, with its rings.
    proved: Option<(Schedule, Schedule, Wiring)>,
}

impl Trainer {
    /// A trainer of `stages`; `optimizer` makes the optimizer of a stage from its parameters.
    ///
    /// # Errors
    /// What making optimizers and sums of gradients meets, with the stage; `Argument` for a limit of the norm that is
    /// not positive, or a loss scale that cannot be.
    pub fn new<O: Optimizer + Send + 'static>(
        stages: Stages,
        loss: Loss,
        mut optimizer: impl FnMut(ParamSet) -> Result<O>,
        options: TrainOptions,
    ) -> Result<Self> {
        if let Some(limit) = options.clip.filter(|limit| limit.is_nan() || *limit <= 0.0) {
            bail!(Argument, "Trainer::new", "clip: the limit {limit} is not positive");
        }
        if let Some(scale) = &options.scale {
            scale.check("Trainer::new")?;
        }
        let (mut optimizers, mut sums) = (Vec::new(), Vec::new());
        for (s, stage) in stages.stages.iter().enumerate() {
            let in_stage = |e| placed(&stage.label(s), e);
            let made = match stage.params.is_empty() {
                true => None,
                false => Some(Box::new(optimizer(stage.params.clone()).map_err(in_stage)?) as AnyOptimizer),
            };
            optimizers.push(Mutex::new(made));
            sums.push(Mutex::new(Sums::new(&stage.params).map_err(in_stage)?));
        }
        let scale = options.scale.as_ref().map(Scaling::new);
        let teaching = Teaching { loss, options, optimizers, sums };
        Ok(Self { stages, teaching, steps: 0, attempts: 0, scale, proved: None })
    }

    /// The stages.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// The stages, to change their mode.
    pub fn stages_mut(&mut self) -> &mut Stages {
        &mut self.stages
    }

    /// The stages without the trainer.
    pub fn into_stages(self) -> Stages {
        self.stages
    }

    /// Sets the learning rate of every stage.
    pub fn set_lr(&self, lr: f64) {
        for optimizer in &self.teaching.optimizers {
            if let Some(optimizer) = optimizer.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                optimizer.lr().set(lr);
            }
        }
    }

    /// The number of steps that ran to their end, also of those that were not applied: random numbers follow from it.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The scale of the loss in the next step, if it has one.
    pub fn scale(&self) -> Option<f64> {
        self.scale.map(|s| s.value)
    }

    pub(super) fn teaching(&self) -> &Teaching {
        &self.teaching
    }

    pub(super) fn into_teaching(self) -> (Loss, TrainOptions) {
        (self.teaching.loss, self.teaching.options)
    }

    pub(super) fn scale_state(&self) -> Option<Scaling> {
        self.scale
    }

    /// Goes to where a checkpoint was taken; without a scale in it the scale stays as it is.
    pub(super) fn stand_at(&mut self, steps: u64, scale: Option<Scaling>) {
        self.steps = steps;
        if self.scale.is_some() {
            self.scale = scale.or(self.scale);
        }
    }

    /// The gradients of the last step by parameter, before clipping, stage by stage; zeros where a parameter has
    /// none.
    ///
    /// # Errors
    /// What the devices meet.
    pub fn gradients(&self) -> Result<Vec<(String, HostTensor)>> {
        let mut all = Vec::new();
        for sums in &self.teaching.sums {
            let sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            for ((param, kept), found) in sums.params.iter().zip(&sums.kept).zip(&sums.found) {
                let zeros = || {
                    Ok(HostTensor::new(param.shape(), &vec![0f32; param.shape().elems()])?
                        .cast(param.dtype()))
                };
                all.push((param.name().to_owned(), if *found { kept.read()? } else { zeros()? }));
            }
        }
        Ok(all)
    }

    /// One step: `schedule` walked by a thread a device; then new weights on every stage, or on none.
    ///
    /// Where a step fails weights and running statistics are those of before, whatever failed, and the next step works
    /// if the devices do, with the same random numbers.
    ///
    /// # Errors
    /// The first error with stage, micro-batch and action; `Timeout` where a stage waits longer than the deadline;
    /// `Argument` for a schedule that does not fit the stages, or that [`Schedule::check`] refuses; `Shape` for a
    /// batch that does not fit.
    pub fn step(&mut self, schedule: &Schedule, batch: &Batch) -> Result<StepReport> {
        self.prepare(schedule, batch)?;
        let parts = batch.parts(&batch.ranges(schedule.micro_batches())?)?;
        let counts = self.counts(&parts);
        let all = counts.iter().sum();
        let lanes = self.lanes()?;
        let (lowered, _) = self.lowered()?;
        let control = Control::new(lowered.lists().len(), self.teaching.options.deadline, lanes.clone());
        let squares = Arc::new(Mutex::new(vec![Vec::new(); self.stages.len()]));
        let job = self.job(parts, (counts, all), (Arc::new(control), squares), lanes)?;
        let scale = job.scale;
        let logs = threads::run(std::slice::from_ref(&job));
        self.attempted();
        let mut logs = logs?.remove(0);
        let applied = logs.iter().all(|l| l.applied);
        self.ended(applied);
        let mut loss = 0.0;
        losses(&mut logs).into_iter().for_each(|share| loss += share);
        let norm = logs.iter().find_map(|l| l.norm);
        let (lowered, _) = self.lowered()?;
        Ok(StepReport { loss, norm, applied, scale, report: Report::new(&self.stages, lowered, &logs) })
    }

    /// A step was begun, by whose number messages of others are told apart.
    pub(crate) fn attempted(&mut self) {
        self.attempts += 1;
    }

    /// A step ran to its end.
    pub(crate) fn ended(&mut self, applied: bool) {
        self.steps += 1;
        if let (Some(now), Some(how)) = (self.scale, &self.teaching.options.scale) {
            self.scale = Some(now.after(how, applied));
        }
    }

    /// Proves that a step can walk `schedule` with `batch`.
    pub(crate) fn prepare(&mut self, schedule: &Schedule, batch: &Batch) -> Result<()> {
        let op = "Trainer::step";
        self.prove(schedule)?;
        let (lowered, _) = self.lowered()?;
        if !lowered.is_training() {
            bail!(Argument, op, "`{}` has no backward pass", lowered.name());
        }
        if !batch.has_targets() {
            bail!(Argument, op, "the batch has no targets");
        }
        self.stages.check_batch(batch)?;
        Ok(())
    }

    /// The last schedule, lowered, with its rings.
    pub(crate) fn lowered(&self) -> Result<(&Schedule, &Wiring)> {
        match &self.proved {
            Some((_, lowered, wiring)) => Ok((lowered, wiring)),
            None => bail!(Argument, "Trainer::step", "no schedule"),
        }
    }

    /// How many elements of the loss each micro-batch has.
    pub(crate) fn counts(&self, parts: &[Part]) -> Vec<f64> {
        let targets = parts.iter().filter_map(|p| p.targets.as_ref());
        targets.map(|t| self.teaching.loss.count(t)).collect()
    }

    /// The lanes between the stages for one step.
    pub(crate) fn lanes(&self) -> Result<Vec<Arc<Lane>>> {
        let (lowered, wiring) = self.lowered()?;
        Ok(Lane::all(lowered, wiring, self.teaching.options.transport.as_deref()))
    }

    /// What a step's threads see: parts of the batch with the elements that count in each and in all, and what
    /// they share with those of other lines.
    pub(crate) fn job(
        &self,
        parts: Vec<Part>,
        (counts, all): (Vec<f64>, f64),
        (control, squares): (Arc<Control>, Squares),
        lanes: Vec<Arc<Lane>>,
    ) -> Result<Job<'_>> {
        let (schedule, _) = self.lowered()?;
        if !(all > 0.0 && all.is_finite()) {
            bail!(Argument, "Trainer::step", "{all} elements of the targets count for the loss");
        }
        Ok(Job {
            stages: &self.stages,
            schedule,
            step: self.attempts,
            number: self.steps,
            scale: self.scale(),
            parts,
            counts: (counts, all),
            teaching: Some(&self.teaching),
            control,
            lanes,
            exchange: Exchange::default(),
            squares,
            peers: None,
            timed: self.teaching.options.timed,
        })
    }

    /// Lowers and checks a schedule, unless it is the last one.
    fn prove(&mut self, schedule: &Schedule) -> Result<()> {
        if self.proved.as_ref().is_some_and(|(last, ..)| last == schedule) {
            return Ok(());
        }
        let (lowered, wiring) = self.stages.lower(schedule, self.teaching.options.slots)?;
        self.proved = Some((schedule.clone(), lowered, wiring));
        Ok(())
    }
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Teaching { loss, options, .. } = &self.teaching;
        write!(f, "Trainer({:?}, {loss:?}, {options:?}, {} steps)", self.stages, self.steps)
    }
}

impl Stages {
    /// The schedule with these stages' edges and all messages, proved, and its rings.
    pub(super) fn lower(&self, schedule: &Schedule, slots: Option<usize>) -> Result<(Schedule, Wiring)> {
        let op = "pipeline";
        if schedule.stages() != self.len() {
            let (a, b) = (schedule.stages(), self.len());
            bail!(Argument, op, "`{}` is for {a} stages; there are {b}", schedule.name());
        }
        let fitting = if schedule.is_lowered() {
            if schedule.edges() != self.edges() {
                bail!(Argument, op, "`{}` has other edges than the stages", schedule.name());
            }
            schedule.clone()
        } else {
            schedule.clone().with_edges(self.edges().to_vec())?
        };
        let slots = match slots {
            Some(slots) => slots,
            None => fitting.fewest_slots(Channels::Edges).unwrap_or(0).max(2),
        };
        let wiring = Wiring::edges(slots);
        fitting.check(&wiring)?;
        Ok((fitting.lowered(), wiring))
    }

    /// Whether the batch has the inputs that the stages take.
    pub(crate) fn check_batch(&self, batch: &Batch) -> Result<()> {
        let takes = self.stages.iter().flat_map(|s| &s.takes);
        let most = takes.filter_map(|(source, _)| match source {
            super::Source::Batch(i) => Some(i + 1),
            super::Source::Stage(_) | super::Source::Output(..) => None,
        });
        let most = most.max().unwrap_or(0);
        if batch.inputs() < most {
            bail!(
                Argument,
                "pipeline",
                "the stages take {most} inputs of the batch, which has {}",
                batch.inputs()
            );
        }
        batch.rows().map(|_| ())
    }
}

/// The shares of the loss, by micro-batch.
pub(crate) fn losses(logs: &mut [Log]) -> Vec<f64> {
    let mut losses: Vec<_> = logs.iter_mut().flat_map(|l| std::mem::take(&mut l.losses)).collect();
    losses.sort_by_key(|(m, _)| *m);
    losses.into_iter().map(|(_, share)| share).collect()
}
