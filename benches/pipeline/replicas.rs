//! The whole model on every device, each with a share of the rows; gradients are summed over all.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use wgrad::pipeline::{
    Collective, Family, Mesh, MeshOptions, MeshReport, MeshTrainer, Partition, Schedule, Stages, Team,
    Timeline,
};
use wgrad::prelude::*;
use wgrad::{Backend, Caps, ContextOptions, ErrorKind, Result, Shape, bail};

use super::dry::Dry;
use super::median;
use super::model::{Gpt, loss, optimizer};
use super::staged::{Counts, DeviceMemory};
use super::table::{Row, Table};
use super::{Args, Late};

/// Steps by plans: the first two make them.
const DRY_STEPS: usize = 3;

/// Sums of gradients in a step: medians over the steps that were timed.
#[derive(Clone, Default, serde::Serialize)]
pub(crate) struct Sums {
    /// How many, and the bytes of one replica's gradients in all of them.
    pub(crate) count: usize,
    pub(crate) bytes: u64,
    /// The share of the step in which a sum was under way: from when all replicas had come until all had it.
    pub(crate) under_way: f64,
    /// The share in which it was so while a replica's actions computed, on average over replicas. Until the last of its
    /// gradients is read, a replica's last backward pass goes on.
    pub(crate) beside: f64,
    /// How long a replica waited for sums after computing, and took them.
    pub(crate) waited_ms: f64,
    /// Bytes a second while they were under way.
    pub(crate) rate: f64,
}

/// What a run gave.
pub(crate) struct Replicated {
    pub(crate) schedule: Schedule,
    pub(crate) losses: Vec<f64>,
    pub(crate) seconds: f64,
    pub(crate) memory: Vec<DeviceMemory>,
    pub(crate) counts: Vec<Counts>,
    pub(crate) sums: Sums,
    /// The first parameter whose bits are not those of the first replica.
    pub(crate) apart: Option<String>,
    pub(crate) timelines: Vec<Timeline>,
    pub(crate) profiles: Vec<String>,
}

/// One sum on one rank.
struct Sum {
    begun: Instant,
    ended: Instant,
    bytes: u64,
}

type Log = Arc<Mutex<Vec<Sum>>>;

/// A team that notes when its sums begin and end.
struct Noted {
    team: Team,
    /// When the sum began that ran out of time and goes on with the next call.
    begun: Mutex<Option<Instant>>,
    log: Log,
}

impl Noted {
    /// Runs a sum, and notes when it began and ended.
    fn noted<T>(&self, bytes: u64, sum: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut earlier = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = *earlier.get_or_insert_with(Instant::now);
        let made = match sum() {
            Err(error) if error.kind() == ErrorKind::Timeout => return Err(error),
            result => result?,
        };
        *earlier = None;
        let sum = Sum { begun, ended: Instant::now(), bytes };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(sum);
        Ok(made)
    }
}

impl Collective for Noted {
    fn rank(&self) -> usize {
        self.team.rank()
    }

    fn size(&self) -> usize {
        self.team.size()
    }

    fn all_reduce(&self, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        let bytes = size_of_val(values) as u64;
        self.noted(bytes, || self.team.all_reduce(values, shape, deadline))
    }

    fn sum(&self, own: &[HostTensor], deadline: Instant) -> Result<Vec<HostTensor>> {
        let bytes = own.iter().map(|x| x.bytes().len() as u64).sum();
        self.noted(bytes, || self.team.sum(own, deadline))
    }

    fn all_gather(&self, own: &[f32], shape: Shape, deadline: Instant) -> Result<Vec<(Shape, Vec<f32>)>> {
        self.team.all_gather(own, shape, deadline)
    }

    fn broadcast(&self, root: usize, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        self.team.broadcast(root, values, shape, deadline)
    }

    fn barrier(&self, deadline: Instant) -> Result<()> {
        self.team.barrier(deadline)
    }

    fn close(&self) {
        self.team.close();
    }
}

/// The trainer, and the notes of each rank.
fn trainer(
    backends: &[Arc<dyn Backend>],
    options: &ContextOptions,
    gpt: Gpt,
    args: &Args,
) -> Result<(MeshTrainer, Vec<Log>)> {
    let context = |b: &Arc<dyn Backend>| Context::with(Arc::clone(b), options.clone());
    let contexts = backends.iter().map(context).collect::<Result<Vec<_>>>()?;
    let mesh = Mesh::new([("replica", contexts.len())], &contexts)?;
    let model = gpt.model();
    let whole = Partition::new(gpt.layers + 2, &[])?;
    let build = |line: &wgrad::pipeline::Line| Stages::cut(&model, &whole, line.contexts(), gpt.input());
    let logs: Vec<Log> = contexts.iter().map(|_| Log::default()).collect();
    let kept = logs.clone();
    let teams = move |_: &str, size: usize| -> Vec<Arc<dyn Collective>> {
        let noted = |(team, log): (Team, &Log)| -> Arc<dyn Collective> {
            Arc::new(Noted { team, begun: Mutex::default(), log: Arc::clone(log) })
        };
        Team::of(size).into_iter().zip(&kept).map(noted).collect()
    };
    let MeshOptions { bucket, .. } = MeshOptions::default();
    let bucket = args.bucket_bytes.unwrap_or(bucket);
    let options = MeshOptions { train: args.trainer(), bucket, collective: Some(Arc::new(teams)) };
    Ok((MeshTrainer::new(&mesh, build, loss(), optimizer, options)?, logs))
}

/// The peak of each device by plans alone, and the host's time for a step, sums of gradients included.
pub(crate) fn planned(caps: &[Caps], args: &Args, schedule: &Schedule) -> Result<(Vec<usize>, f64)> {
    let dry: Vec<Arc<dyn Backend>> = caps.iter().map(|caps| Dry::open(caps.clone())).collect();
    let (mut trainer, _) = trainer(&dry, &ContextOptions::default(), args.gpt().blank(), args)?;
    let mut seconds = 0.0;
    for step in 0..DRY_STEPS {
        let batch = args.gpt().batch(step, args.batch)?;
        let begun = Instant::now();
        trainer.step(schedule, &batch)?;
        seconds = begun.elapsed().as_secs_f64();
    }
    Ok((dry.iter().map(|d| d.memory().peak_bytes).collect(), seconds))
}

/// The sums of a step that began at `begun` and took `seconds`.
fn sums(logs: &[Log], report: &MeshReport, begun: Instant, seconds: f64) -> Sums {
    let taken = |log: &Log| std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner));
    let ranks: Vec<Vec<Sum>> = logs.iter().map(taken).collect();
    let count = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let at = |time: Instant| time.saturating_duration_since(begun).as_secs_f64();
    // The last to come and the last to go: so they follow each other.
    let last = |of: fn(&Sum) -> Instant, i: usize| ranks.iter().map(|r| at(of(&r[i]))).fold(0.0, f64::max);
    let times: Vec<[f64; 2]> = (0..count).map(|i| [last(|s| s.begun, i), last(|s| s.ended, i)]).collect();
    let bytes = ranks.first().map_or(0, |r| r.iter().map(|s| s.bytes).sum());
    let under_way: f64 = times.iter().map(|[from, to]| to - from).sum();
    let spans = || report.lines.iter().flat_map(|l| &l.spans);
    let computing = spans().filter(|s| s.action.is_compute());
    let common =
        computing.flat_map(|s| times.iter().map(|[a, b]| (s.end.min(*b) - s.start.max(*a)).max(0.0)));
    let (common, lines): (f64, _) = (common.sum(), report.lines.len() as f64);
    let reduces = spans().filter(|s| s.action.kind == wgrad::pipeline::Kind::Reduce);
    Sums {
        count,
        bytes,
        under_way: under_way / seconds,
        beside: common / lines / seconds,
        waited_ms: 1e3 * reduces.map(|s| s.end - s.start).sum::<f64>() / lines,
        rate: bytes as f64 / under_way.max(1e-9),
    }
}

/// The first parameter whose bits differ between the first replica and another.
fn apart(trainer: &MeshTrainer) -> Result<Option<String>> {
    let weights = |replica| match trainer.stages(replica, 0) {
        Some(stages) => stages.weights(),
        None => bail!(Argument, "replicas", "no replica {replica}"),
    };
    let first = weights(0)?;
    for replica in 1..trainer.mesh().size("replica") {
        let other = weights(replica)?;
        if other.len() != first.len() {
            return Ok(Some(format!("{} parameters of {} in replica {replica}", other.len(), first.len())));
        }
        for ((name, a), (other, b)) in first.iter().zip(&other) {
            if (name, a.shape(), a.bytes()) != (other, b.shape(), b.bytes()) {
                return Ok(Some(format!("`{name}` of replica {replica}")));
            }
        }
    }
    Ok(None)
}

/// `steps` steps with `m` micro-batches in each replica; medians without the first two, which plan and compile.
fn run(devices: &[Device], args: &Args, m: usize) -> Result<Replicated> {
    let (gpt, rows, steps) = (args.gpt(), args.batch, args.steps);
    let schedule = Family::OneFOneB.make(1, m)?;
    let backends = devices.iter().map(Device::open).collect::<Result<Vec<_>>>()?;
    let caps: Vec<Caps> = backends.iter().map(|b| b.caps().clone()).collect();
    let (planned, _) = planned(&caps, args, &schedule)?;
    let (mut trainer, logs) = trainer(&backends, &args.context(), gpt, args)?;
    let contexts = trainer.mesh().contexts().to_vec();
    let stats = || contexts.iter().map(Context::stats).collect::<Vec<_>>();
    let (mut losses, mut times, mut all, mut before) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut reports = Vec::new();
    for step in 0..steps {
        if step == 2 {
            before = stats();
            for context in &contexts {
                context.profile(args.profile);
            }
        }
        let batch = gpt.batch(step, rows)?;
        let begun = Instant::now();
        let done = trainer.step(&schedule, &batch)?;
        let seconds = begun.elapsed().as_secs_f64();
        times.push(seconds);
        all.push(sums(&logs, &done, begun, seconds));
        losses.push(done.loss);
        reports = done.lines;
    }
    let profiled = contexts.iter().filter(|_| args.profile);
    let profiles = profiled.map(|c| c.profile_report().to_string()).collect();
    for context in &contexts {
        context.profile(false);
    }
    let counts = Counts::between(&before, &stats(), (steps - 2) as u64);
    let memory = backends.iter().zip(&planned).zip(&reports).map(|((backend, planned), report)| {
        let ((resident_bytes, most), in_flight) = (report.held[0], report.stash[0]);
        DeviceMemory {
            measured_bytes: backend.memory().peak_bytes,
            planned_bytes: *planned,
            resident_bytes,
            stash_bytes: most * in_flight as u64,
            in_flight,
        }
    });
    let memory = memory.collect();
    let all = all.split_off(2);
    let middle = |of: fn(&Sums) -> f64| median(all.iter().map(of).collect());
    let sums = Sums {
        under_way: middle(|s| s.under_way),
        beside: middle(|s| s.beside),
        waited_ms: middle(|s| s.waited_ms),
        rate: middle(|s| s.rate),
        ..all.last().cloned().unwrap_or_default()
    };
    let timelines = reports.iter().enumerate().map(|(r, report)| {
        let mut timeline = report.timeline();
        timeline.title = format!("replica {r}: {}", timeline.title);
        timeline
    });
    let timelines = timelines.collect();
    Ok(Replicated {
        schedule,
        losses,
        seconds: median(times.split_off(2)),
        memory,
        counts,
        sums,
        apart: apart(&trainer)?,
        timelines,
        profiles,
    })
}

/// A row for each number of micro-batches that a replica's rows can have.
pub(crate) fn rows(args: &Args, devices: &[Device], table: &mut Table, late: Late<'_>) -> Result<()> {
    let most = args.batch / devices.len();
    println!("\n{} replicas", devices.len());
    for &m in &args.micro_batches {
        if m > most {
            println!("  M {m}: left out, the smallest replica has {most} rows");
            continue;
        }
        if late() {
            println!("  M {m}: left out, no time");
            continue;
        }
        let begun = Instant::now();
        let row = match run(devices, args, m) {
            Ok(run) => Row::replicated(run, table),
            Err(error) => Row::failed(&format!("{} replicas", devices.len()), m, error.to_string()),
        };
        table.row(args, row, begun.elapsed())?;
    }
    Ok(())
}
