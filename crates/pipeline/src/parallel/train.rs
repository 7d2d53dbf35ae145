//! Training over a mesh: one trainer a line, all at the same step.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use wgrad_autograd::Param;
use wgrad_graph::{HostTensor, Result, bail};
use wgrad_nn::{Mode, Optimizer, ParamSet, load_tensors, save_tensors};

use super::peers::Ends;
use super::{Collective, Line, Mesh, Peers, Shard, Team};
use crate::run::{self, Control, ForwardLine, Stage, forward_lines, joined, losses, placed};
use crate::schedule::split_batch;
use crate::{Batch, Loss, Report, Schedule, Stages, TrainOptions, Trainer};

/// Makes the ends of a collective for the ranks of a group along an axis (its name, its size).
pub type MakeCollective = dyn Fn(&str, usize) -> Vec<Arc<dyn Collective>> + Send + Sync;

/// Choices of a [`MeshTrainer`].
#[derive(Clone)]
pub struct MeshOptions {
    /// Those of each line.
    pub train: TrainOptions,
    /// Bytes of gradients that are summed over replicas together, at least; 25 MiB by default.
    pub bucket: usize,
    /// Makes the collectives; [`Team`]s by default.
    pub collective: Option<Arc<MakeCollective>>,
}

impl Default for MeshOptions {
    fn default() -> Self {
        Self { train: TrainOptions::default(), bucket: 25 << 20, collective: None }
    }
}

impl fmt::Debug for MeshOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshOptions({:?}, buckets of {} bytes)", self.train, self.bucket)
    }
}

/// What a step gave.
#[derive(Clone, Debug)]
pub struct MeshReport {
    /// The loss of the batch.
    pub loss: f64,
    /// The norm of all gradients before they were clipped, if it was asked for.
    pub norm: Option<f64>,
    /// Whether the weights were updated: not so where the norm is not finite.
    pub applied: bool,
    /// What each line did, replica by replica, the shards of each one after the other.
    pub lines: Vec<Report>,
}

struct LineTrainer {
    trainer: Trainer,
    shard: Shard,
    replica: usize,
}

/// Teaches one model on all devices of a [`Mesh`].
///
/// Each replica takes its share of the rows, cut into the schedule's micro-batches; gradients are summed over
/// replicas in buckets while the last backward pass goes on, and then every device updates its own weights, or none
/// does.
///
/// ```
/// use wgrad::pipeline::{
///     Batch, Contract, Loss, Mesh, MeshOptions, MeshTrainer, Model, Stages, partition, schedule,
/// };
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let rng = Rng::seed(1);
/// let model = Model::new()
///     .layer("fc1", move |ctx| Linear::new(ctx, "fc1", 3, 5, rng))
///     .layer("tanh", |_| Ok(Activation::Tanh))
///     .layer("fc2", move |ctx| Linear::new(ctx, "fc2", 5, 2, rng));
/// let contexts = [Context::new(&Device::cpu())?, Context::new(&Device::cpu())?];
/// let mesh = Mesh::new([("replica", 2)], &contexts)?.weighted("replica", &[3.0, 1.0])?;
/// let cut = partition::at_names(&model.names(), &[])?;
/// let build = |line: &wgrad::pipeline::Line| {
///     Stages::cut(&model, &cut, line.contexts(), Contract::new([3], DType::F32))
/// };
/// let sgd = |params| Sgd::new(params, SgdConfig { lr: 0.5, ..Default::default() });
/// let loss = Loss::mean(|y, t| y.try_cross_entropy(t));
/// let mut trainer = MeshTrainer::new(&mesh, build, loss, sgd, MeshOptions::default())?;
/// let x = HostTensor::new([4, 3], &[0.1f32, 0.9, 0.3, 0.5, 0.2, 0.8, 0.7, 0.4, 0.6, 0.0, 1.0, 0.5])?;
/// let batch = Batch::new(&x).targets(&HostTensor::new([4], &[0i32, 1, 0, 1])?);
/// let schedule = schedule::gpipe(1, 1)?;
/// let first = trainer.step(&schedule, &batch)?;       // three rows on the first device, one on the second
/// assert!(trainer.step(&schedule, &batch)?.loss < first.loss);
/// # Ok(()) }
/// ```
pub struct MeshTrainer {
    mesh: Mesh,
    lines: Vec<LineTrainer>,
    options: MeshOptions,
    /// For each line the ends of its collectives; made again after a failed step, which closes them.
    ends: Option<Vec<Vec<Ends>>>,
}

impl MeshTrainer {
    /// A trainer whose lines are made by `build`, and the optimizer of each stage by `optimizer`. All lines begin
    /// with the same weights: those of the first.
    ///
    /// # Errors
    /// What building meets, with the line; `Argument` where lines differ in their stages or parameters.
    #[expect(clippy::needless_pass_by_value, reason = "a loss is given to a trainer, as to `Trainer::new`")]
    pub fn new<O: Optimizer + Send + 'static>(
        mesh: &Mesh,
        mut build: impl FnMut(&Line) -> Result<Stages>,
        loss: Loss,
        mut optimizer: impl FnMut(ParamSet) -> Result<O>,
        options: MeshOptions,
    ) -> Result<Self> {
        let op = "MeshTrainer::new";
        let mut lines: Vec<LineTrainer> = Vec::new();
        for line in mesh.lines() {
            let place = format!("replica {}, shard {}", line.replica(), line.shard().rank());
            let stages = build(&line).map_err(|e| placed(&place, e))?;
            if stages.len() != mesh.stages() {
                bail!(Argument, op, "{place}: {} stages on an axis of {}", stages.len(), mesh.stages());
            }
            for (s, context) in line.contexts().iter().enumerate() {
                if stages.context(s) != context {
                    bail!(Argument, op, "{place}: stage {s} is not on its context of the mesh");
                }
            }
            let trainer = Trainer::new(stages, loss.clone(), &mut optimizer, options.train.clone());
            let trainer = trainer.map_err(|e| placed(&place, e))?;
            lines.push(LineTrainer { trainer, shard: line.shard().clone(), replica: line.replica() });
        }
        let made = Self { mesh: mesh.clone(), lines, options, ends: None };
        for line in &made.lines[1..] {
            let shapes = |l: &LineTrainer| -> Vec<_> {
                let full = |p: &Param| l.shard.split_of(p).map_or(p.shape(), |s| s.full());
                let stages = l.trainer.stages.stages.iter().enumerate();
                stages
                    .flat_map(|(s, stage)| stage.params.iter().map(move |p| (s, p)))
                    .map(|(s, p)| (s, p.name().to_owned(), full(p), p.dtype()))
                    .collect()
            };
            if shapes(line) != shapes(&made.lines[0]) {
                let (r, t) = (line.replica, line.shard.rank());
                bail!(Argument, op, "replica {r}, shard {t} has other parameters than the first line");
            }
        }
        made.set_weights(&made.weights()?)?;
        Ok(made)
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The stages of a replica and a shard.
    pub fn stages(&self, replica: usize, shard: usize) -> Option<&Stages> {
        let line = self.lines.iter().find(|l| (l.replica, l.shard.rank()) == (replica, shard))?;
        Some(&line.trainer.stages)
    }

    /// Sets the learning rate everywhere.
    pub fn set_lr(&self, lr: f64) {
        self.lines.iter().for_each(|line| line.trainer.set_lr(lr));
    }

    /// Sets the mode everywhere.
    pub fn set_mode(&mut self, mode: Mode) {
        self.lines.iter_mut().for_each(|line| line.trainer.stages_mut().set_mode(mode));
    }

    /// Sets the seed of random numbers everywhere.
    pub fn set_seed(&self, seed: u64) {
        self.lines.iter().for_each(|line| line.trainer.stages.set_seed(seed));
    }

    /// The number of steps, also of those that were not applied.
    pub fn steps(&self) -> u64 {
        self.lines[0].trainer.steps()
    }

    /// One step of all lines.
    ///
    /// The batch's rows go to replicas in proportion to their weights, and each replica's to as many micro-batches as
    /// the schedule has. A batch with micro-batches of its own has those of all replicas, one replica after the
    /// other. Gradients are added up in this order: over the micro-batches of each replica, then over replicas.
    ///
    /// # Errors
    /// The first error of any line, with replica, shard, stage, micro-batch and action; no weights have moved then,
    /// and the next step works if the devices do. As [`Trainer::step`].
    pub fn step(&mut self, schedule: &Schedule, batch: &Batch) -> Result<MeshReport> {
        for line in &mut self.lines {
            line.trainer.prepare(schedule, batch)?;
        }
        let stages = self.lines.iter().flat_map(|l| l.trainer.stages.stages.iter().enumerate());
        let carries = |(_, stage): &(usize, &Stage)| !stage.block.state().is_empty();
        let learns = self.lines[0].trainer.stages.mode == Mode::Train;
        if let Some((s, stage)) = stages.clone().find(carries).filter(|_| learns && self.mesh.replicas() > 1)
        {
            bail!(
                Argument,
                "MeshTrainer::step",
                "{} carries state over steps (running statistics), which replicas do not share",
                stage.label(s)
            );
        }
        let each = schedule.micro_batches();
        let parts = batch.parts(&self.ranges(batch, each)?)?;
        let first = &self.lines[0].trainer;
        let counts = first.counts(&parts);
        let all: f64 = counts.iter().sum();
        let ends = match self.ends.take() {
            Some(ends) => ends,
            None => self.make_ends(),
        };
        let (mut lanes, mut threads) = (Vec::new(), 0);
        for line in &self.lines {
            lanes.push(line.trainer.lanes()?);
            threads += line.trainer.lowered()?.0.lists().len();
        }
        let peers: Vec<Peers> = (0..self.lines.len()).map(|i| self.peers(i, &ends)).collect();
        let closing = peers.iter().flat_map(Peers::collectives).collect();
        let control = Control::new(threads, self.options.train.deadline, lanes.concat()).closing(closing);
        let squares = vec![Vec::new(); self.lines.len() * self.mesh.stages()];
        let shared = (Arc::new(control), Arc::new(Mutex::new(squares)));
        let mut jobs = Vec::new();
        for ((line, peers), lanes) in self.lines.iter().zip(peers).zip(lanes) {
            let own = line.replica * each..(line.replica + 1) * each;
            let counts = (counts[own.clone()].to_vec(), all);
            let mut job = line.trainer.job(parts[own].to_vec(), counts, shared.clone(), lanes)?;
            job.peers = Some(peers);
            jobs.push(job);
        }
        let logs = run::run(&jobs);
        drop(jobs);
        self.lines.iter_mut().for_each(|line| line.trainer.attempted());
        let mut logs = logs?;
        let applied = logs.iter().flatten().all(|l| l.applied);
        self.lines.iter_mut().for_each(|line| line.trainer.ended(applied));
        self.ends = Some(ends);
        let mut loss = 0.0;
        for (_, logs) in self.lines.iter().zip(&mut logs).filter(|(l, _)| l.shard.rank() == 0) {
            losses(logs).into_iter().for_each(|share| loss += share);
        }
        let norm = logs.iter().flatten().find_map(|l| l.norm);
        let reports = self
            .lines
            .iter()
            .zip(&logs)
            .map(|(line, logs)| Ok(Report::new(&line.trainer.stages, line.trainer.lowered()?.0, logs)));
        Ok(MeshReport { loss, norm, applied, lines: reports.collect::<Result<_>>()? })
    }

    /// The output of the last stage for a batch, with micro-batches as in [`MeshTrainer::step`], and what each line did.
    ///
    /// # Errors
    /// As [`Stages::forward`], with replica and shard.
    pub fn forward(&self, batch: &Batch, micro_batches: usize) -> Result<(HostTensor, Vec<Report>)> {
        self.lines[0].trainer.stages.check_batch(batch)?;
        let parts = batch.parts(&self.ranges(batch, micro_batches)?)?;
        let ends = self.make_ends();
        let mut lines = Vec::new();
        for (i, line) in self.lines.iter().enumerate() {
            let own = line.replica * micro_batches..(line.replica + 1) * micro_batches;
            let peers = Some(self.peers(i, &ends));
            lines.push(ForwardLine { stages: line.trainer.stages(), parts: parts[own].to_vec(), peers });
        }
        let (mut outputs, mut reports) = (Vec::new(), Vec::new());
        for (line, (own, report)) in self.lines.iter().zip(forward_lines(lines, micro_batches)?) {
            if line.shard.rank() == 0 {
                outputs.extend(own);
            }
            reports.push(report);
        }
        Ok((joined(&outputs)?, reports))
    }

    /// What a line has with the others.
    fn peers(&self, line: usize, ends: &[Vec<Ends>]) -> Peers {
        Peers {
            line,
            replica: self.lines[line].replica,
            shard: self.lines[line].shard.clone(),
            replicas: self.mesh.replicas(),
            ends: ends[line].clone(),
            bucket: self.options.bucket,
        }
    }

    /// The rows of all micro-batches, replica by replica.
    fn ranges(&self, batch: &Batch, each: usize) -> Result<Vec<Range<usize>>> {
        if batch.is_divided() {
            return batch.ranges(each * self.mesh.replicas());
        }
        let mut start = 0;
        let mut ranges = Vec::new();
        for (replica, rows) in self.mesh.rows(batch.rows()?)?.into_iter().enumerate() {
            for size in split_batch(rows, each).map_err(|e| placed(&format!("replica {replica}"), e))? {
                ranges.push(start..start + size);
                start += size;
            }
        }
        Ok(ranges)
    }

    /// Collectives for all groups of replicas and of shards, a group for each stage.
    fn make_ends(&self) -> Vec<Vec<Ends>> {
        let (replicas, shards, stages) = (self.mesh.replicas(), self.mesh.shards(), self.mesh.stages());
        let mut ends = vec![vec![Ends::default(); stages]; self.lines.len()];
        let make = |axis: &str, size: usize| -> Vec<Arc<dyn Collective>> {
            match &self.options.collective {
                Some(make) => make(axis, size),
                None => Team::of(size).into_iter().map(|t| Arc::new(t) as Arc<dyn Collective>).collect(),
            }
        };
        let name = |line: usize, s: usize| &self.lines[line].trainer.stages.context(s).caps().name;
        let mixed = |lines: &[usize], s: usize| lines.iter().any(|l| name(*l, s) != name(lines[0], s));
        let group = |replica: usize| (0..shards).map(|t| replica * shards + t).collect::<Vec<_>>();
        // What one shard rounds differently goes on to the other stages and replicas.
        let mixed_shards = (0..replicas).any(|r| (0..stages).any(|s| mixed(&group(r), s)));
        let column = |shard: usize| (0..replicas).map(|r| r * shards + shard).collect::<Vec<_>>();
        for s in 0..stages {
            // What shards have whole comes from all of these groups.
            let mixed_replicas = (0..shards).any(|t| mixed(&column(t), s));
            for replica in (0..replicas).filter(|_| shards > 1) {
                for (line, end) in group(replica).into_iter().zip(make("shard", shards)) {
                    let ends = &mut ends[line][s];
                    (ends.shards, ends.mixed_shards) = (Some(end), mixed_shards);
                }
            }
            for shard in (0..shards).filter(|_| replicas > 1) {
                for (line, end) in column(shard).into_iter().zip(make("replica", replicas)) {
                    let ends = &mut ends[line][s];
                    (ends.replicas, ends.mixed_replicas) = (Some(end), mixed_replicas);
                }
            }
        }
        ends
    }

    /// The values of all parameters by name, undivided: a state that depends on no axis of the mesh.
    ///
    /// # Errors
    /// What the devices meet.
    pub fn weights(&self) -> Result<Vec<(String, HostTensor)>> {
        let parts =
            self.first_replica().map(|line| line.trainer.stages.weights()).collect::<Result<Vec<_>>>()?;
        self.undivided(&parts)
    }

    /// The gradients of the last step by parameter, before clipping, undivided.
    ///
    /// # Errors
    /// What the devices meet.
    pub fn gradients(&self) -> Result<Vec<(String, HostTensor)>> {
        let parts = self.first_replica().map(|line| line.trainer.gradients()).collect::<Result<Vec<_>>>()?;
        self.undivided(&parts)
    }

    fn first_replica(&self) -> impl Iterator<Item = &LineTrainer> {
        self.lines.iter().filter(|line| line.replica == 0)
    }

    /// Parts of the first replica's shards put together.
    fn undivided(&self, parts: &[Vec<(String, HostTensor)>]) -> Result<Vec<(String, HostTensor)>> {
        let mut all = Vec::new();
        for (i, (name, first)) in parts[0].iter().enumerate() {
            let mut whole = None;
            for (line, parts) in self.first_replica().zip(parts) {
                let Some(split) = line.param(name).and_then(|p| line.shard.split_of(p)) else { continue };
                let (_, bytes) = whole.get_or_insert((split.full(), Vec::new()));
                split.put(&parts[i].1, bytes);
            }
            let value = match whole {
                Some((shape, bytes)) => HostTensor::from_bytes(shape, first.dtype(), bytes)?,
                None => first.clone(),
            };
            all.push((name.clone(), value));
        }
        Ok(all)
    }

    /// Sets undivided parameters by name on every device that has a part of them.
    ///
    /// # Errors
    /// As [`Stages::set_weights`].
    pub fn set_weights(&self, weights: &[(String, HostTensor)]) -> Result<()> {
        for line in &self.lines {
            let own = |(name, value): &(String, HostTensor)| {
                let split = line.param(name).and_then(|p| line.shard.split_of(p));
                let part = split.map_or(Ok(value.clone()), |s| s.part(value));
                let part = part.map_err(|e| placed(&format!("`{name}`"), e))?;
                Ok((name.clone(), part))
            };
            let own = weights.iter().map(own).collect::<Result<Vec<_>>>()?;
            line.trainer.stages.set_weights(&own)?;
        }
        Ok(())
    }

    /// Writes all parameters, undivided, to a safetensors file by name, whole or not at all.
    ///
    /// # Errors
    /// As [`save_tensors`]; what the devices meet.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save_tensors(path.as_ref(), &self.weights()?)
    }

    /// Sets parameters from a safetensors file by name, whatever the mesh and the cut were when it was written.
    ///
    /// # Errors
    /// As [`load_tensors`] and [`MeshTrainer::set_weights`].
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        self.set_weights(&load_tensors(path.as_ref())?)
    }
}

impl LineTrainer {
    /// The first parameter with this name.
    fn param(&self, name: &str) -> Option<&Param> {
        let stages = &self.trainer.stages;
        stages.named(name).first().map(|&(s, i)| stages.param(s, i))
    }
}

impl fmt::Debug for MeshTrainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshTrainer({} lines, {:?}, {} steps)", self.lines.len(), self.options, self.steps())
    }
}
