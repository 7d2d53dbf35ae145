//! What a profile says.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use wgrad_graph::{Group, Kind, Phase, Plan, Stage};

use crate::clock::now_ns;
use crate::names::{PHASES, PhaseMix, STAGES, phase_name, stage_name};
use crate::profile::{Inner, PlanRuns, Profile, phase_of};

/// Copies in one direction.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Crossings {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One stage of the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageLine {
    /// Its name.
    pub stage: &'static str,
    /// The stage of ggmlR's profiles that holds this work.
    pub original: &'static str,
    /// Its own time, without stages inside, ns.
    pub ns: u64,
    /// How often it was entered.
    pub count: u64,
    /// Of the whole time, 0 to 1.
    pub share: f64,
    /// What crossed between host and device in it.
    pub crossings: Crossings,
}

/// One phase of the step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseLine {
    /// Its name.
    pub phase: &'static str,
    /// The host's time, ns: its recording, and of stages that serve the whole step the share of its kernels.
    pub host_ns: u64,
    /// The device's time, ns.
    pub device_ns: u64,
    /// Kernels that ran; one of several phases counts in part.
    pub kernels: f64,
}

/// Kernels of one kind, size, origin and phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernel {
    /// The loop and the operations that it computes.
    pub what: String,
    /// Sizes of its space.
    pub dims: Vec<usize>,
    /// The lines of the program that recorded them.
    pub lines: Vec<String>,
    /// The phases of the step, such as `forward+backward`.
    pub phase: String,
    /// How often it ran.
    pub count: u64,
    /// Its time in all, ns.
    pub ns: u64,
    /// Of the device's time, 0 to 1.
    pub share: f64,
    /// Bytes of its operands and results, of one run.
    pub bytes: u64,
    /// Floating operations of one run, roughly.
    pub flops: u64,
}

impl Kernel {
    /// Whether both are runs of one row.
    fn is_like(&self, other: &Kernel) -> bool {
        (self.bytes, &self.what, &self.dims) == (other.bytes, &other.what, &other.dims)
            && (&self.lines, &self.phase) == (&other.lines, &other.phase)
    }

    /// Bytes in a nanosecond, which are GB/s.
    pub fn gb_s(&self) -> f64 {
        (self.bytes * self.count) as f64 / self.ns.max(1) as f64
    }

    /// Floating operations in a nanosecond, which are GFLOP/s.
    pub fn gflop_s(&self) -> f64 {
        (self.flops * self.count) as f64 / self.ns.max(1) as f64
    }
}

/// Something on a time line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineEvent {
    /// What it was.
    pub name: String,
    /// The phases of the step.
    pub phase: String,
    /// Number of the host's thread; 0 for the device.
    pub thread: u32,
    /// When it began, ns of the process.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// The newest events.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// Names of the host's threads by number.
    pub threads: BTreeMap<u32, String>,
    /// Stages of the host.
    pub host: Vec<TimelineEvent>,
    /// What ran on the device.
    pub device: Vec<TimelineEvent>,
    /// Older events that are not kept.
    pub dropped: u64,
}

/// Where the steps of a context spent their time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// Whether what ran on the device was timed.
    pub timed: bool,
    /// Passes that were committed.
    pub steps: u64,
    /// Submissions of plans.
    pub submissions: u64,
    /// How long the profile was on, ns.
    pub total_ns: u64,
    /// The host's stages, longest first.
    pub stages: Vec<StageLine>,
    /// Time in none of the stages: the program's own, between and inside its steps.
    pub unattributed_ns: u64,
    /// Forward, backward, update.
    pub phases: Vec<PhaseLine>,
    /// What ran on the device, longest first.
    pub kernels: Vec<Kernel>,
    /// Copies from host to device.
    pub up: Crossings,
    /// Copies from device to host.
    pub down: Crossings,
    /// The device's time, ns.
    pub busy_ns: u64,
    /// Time in which the device waited between submissions, ns.
    pub gap_ns: u64,
    /// The newest events.
    #[serde(skip)]
    pub timeline: Timeline,
}

impl Report {
    /// The report of `profile` as it is now; `timed` is whether the device has a clock for kernels.
    pub fn of(profile: &Profile, timed: bool) -> Report {
        let inner = profile.inner();
        let total_ns = inner.before_ns + inner.since_ns.map_or(0, |since| now_ns() - since);
        let share = |ns: u64| ns as f64 / total_ns.max(1) as f64;
        let mut stages = Vec::new();
        for stage in STAGES {
            let Some(columns) = inner.totals.get(&stage) else { continue };
            let (ns, count) = columns.iter().fold((0, 0), |(ns, n), t| (ns + t.ns, n + t.count));
            let (count_of, bytes) = match stage {
                Stage::Upload => inner.up,
                Stage::Download => inner.down,
                _ => (0, 0),
            };
            let (name, original) = stage_name(stage);
            stages.push(StageLine {
                stage: name,
                original,
                ns,
                count,
                share: share(ns),
                crossings: Crossings { count: count_of, bytes },
            });
        }
        stages.sort_by_key(|line| std::cmp::Reverse(line.ns));
        let named: u64 = stages.iter().map(|line| line.ns).sum();
        Report {
            device: profile.device().to_owned(),
            timed,
            steps: inner.steps,
            submissions: inner.submissions,
            total_ns,
            unattributed_ns: total_ns.saturating_sub(named),
            stages,
            phases: phases(&inner),
            kernels: kernels(&inner),
            up: Crossings { count: inner.up.0, bytes: inner.up.1 },
            down: Crossings { count: inner.down.0, bytes: inner.down.1 },
            busy_ns: inner.busy_ns,
            gap_ns: inner.gap_ns,
            timeline: timeline(&inner),
        }
    }

    /// Milliseconds a step.
    pub fn step_ms(&self) -> f64 {
        self.total_ns as f64 / 1e6 / self.steps.max(1) as f64
    }

    fn share_of(&self, names: &[&str]) -> f64 {
        self.stages.iter().filter(|line| names.contains(&line.stage)).map(|line| line.share).sum()
    }

    /// The share of the time in which bytes are brought across, 0 to 1.
    pub fn transfer_share(&self) -> f64 {
        self.share_of(&["upload", "download"])
    }

    /// How many times as fast steps could be at most if nothing crossed: `1 / (1 - transfer share)`.
    pub fn residency_ceiling(&self) -> f64 {
        1.0 / (1.0 - self.transfer_share()).max(1e-9)
    }

    /// The share of the time in which commands are made and handed over, 0 to 1: no more than that in which
    /// the device had nothing to do, since launching costs nothing while it works. (A software driver may run
    /// the kernels inside of `submit`.)
    pub fn launch_share(&self) -> f64 {
        let idle = 1.0 - self.busy_ns as f64 / self.total_ns.max(1) as f64;
        self.share_of(&["allocate", "encode", "submit"]).min(idle.max(0.0))
    }

    /// How many times as fast steps could be at most if launching were free.
    pub fn launch_ceiling(&self) -> f64 {
        1.0 / (1.0 - self.launch_share()).max(1e-9)
    }

    /// Everything but the time line, as JSON.
    pub fn json(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            for (name, number) in [
                ("step_ms", self.step_ms()),
                ("transfer_share", self.transfer_share()),
                ("residency_ceiling", self.residency_ceiling()),
                ("launch_share", self.launch_share()),
                ("launch_ceiling", self.launch_ceiling()),
            ] {
                fields.insert(name.to_owned(), number.into());
            }
        }
        format!("{value:#}")
    }
}

/// The host's and the device's time of each phase. Stages that serve the whole step count by the phases'
/// kernels: waiting and computing by their time, the others by their number.
fn phases(inner: &Inner) -> Vec<PhaseLine> {
    let (mut device, mut number) = (inner.others_by_phase, [0.0; 3]);
    let mut planned = [0.0; 3];
    for runs in inner.plans.values() {
        for PhaseMix(mix) in runs.phases.iter() {
            (0..3).for_each(|phase| planned[phase] += mix[phase]);
        }
        for (steps, total) in &runs.runs {
            let PhaseMix(mix) = phase_of(&runs.phases, steps);
            for phase in 0..3 {
                device[phase] += mix[phase] * total.ns as f64;
                number[phase] += if steps.is_empty() { 0.0 } else { mix[phase] * total.count as f64 };
            }
        }
    }
    let weigh = |weights: [f64; 3]| (weights.iter().sum::<f64>() > 0.0).then(|| PhaseMix::of(weights).0);
    let by_number = weigh(number).or_else(|| weigh(planned)).unwrap_or([1.0, 0.0, 0.0]);
    let by_time = weigh(device).unwrap_or(by_number);
    let mut host = [0.0; 3];
    for (stage, columns) in &inner.totals {
        let weights = if matches!(stage, Stage::Wait | Stage::Compute) { by_time } else { by_number };
        for phase in 0..3 {
            host[phase] += columns[phase].ns as f64 + columns[3].ns as f64 * weights[phase];
        }
    }
    let line = |phase: Phase| PhaseLine {
        phase: phase_name(phase),
        host_ns: host[phase as usize].round() as u64,
        device_ns: device[phase as usize].round() as u64,
        kernels: number[phase as usize],
    };
    PHASES.map(line).into()
}

/// The loop of a group and the operations that it computes, each once.
fn what(plan: &Plan, group: &Group) -> String {
    let mut ops: Vec<&str> = Vec::new();
    for node in &group.nodes {
        let name = plan.graph.node(*node).op.name();
        if !ops.contains(&name) {
            ops.push(name);
        }
    }
    let kind = match &group.kind {
        Kind::Pointwise => "pointwise",
        Kind::Reduce => "reduce",
        Kind::Row => "row",
        Kind::MatMul { .. } => "matmul",
        Kind::Scatter { .. } => "scatter",
        Kind::Whole(_) => "whole",
        Kind::Attention(..) => "attention",
        Kind::Custom(_) => "custom",
    };
    format!("{kind}: {}", ops.join(" "))
}

/// Bytes of a group's operands and results, and its floating operations.
fn cost(plan: &Plan, group: &Group) -> (u64, u64) {
    let bytes = |val| {
        let out = plan.graph.out(val);
        (out.shape.elems() * out.dtype.bytes()) as u64
    };
    let moved: u64 = group.operands.iter().map(|v| bytes(*v)).sum::<u64>()
        + group.stores.iter().map(|s| bytes(s.val)).sum::<u64>();
    let points: u64 = group.dims.iter().map(|d| *d as u64).product();
    let each = match group.kind {
        Kind::MatMul { .. } => 2,
        _ => group.nodes.iter().filter(|n| plan.graph.node(**n).op.computes()).count().max(1) as u64,
    };
    (moved, points * each)
}

/// The lines that recorded a group, without the folders above the sources.
fn lines(plan: &Plan, group: &Group) -> Vec<String> {
    let at = |node: &u32| plan.graph.node(*node).at.map(|at| format!("{}:{}", at.file(), at.line()));
    group.nodes.iter().filter_map(at).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The row that a run belongs to, without its numbers.
fn row(of: &PlanRuns, steps: &[u32]) -> Kernel {
    let mut kernel = Kernel {
        what: "copy: upload".to_owned(),
        dims: Vec::new(),
        lines: Vec::new(),
        phase: phase_of(&of.phases, steps).name(),
        count: 0,
        ns: 0,
        share: 0.0,
        bytes: of.plan.upload_bytes as u64,
        flops: 0,
    };
    let run: Vec<_> = steps.iter().filter_map(|s| of.plan.steps.get(*s as usize)).collect();
    let Some(first) = run.first() else { return kernel };
    kernel.what = what(&of.plan, &first.group);
    kernel.dims = first.group.dims.to_vec();
    (kernel.bytes, kernel.flops) = (0, 0);
    let mut all = BTreeSet::new();
    for step in &run {
        let (bytes, flops) = cost(&of.plan, &step.group);
        kernel.bytes += bytes;
        kernel.flops += flops;
        all.extend(lines(&of.plan, &step.group));
    }
    if run.len() > 1 {
        kernel.what = format!("{} x{}", kernel.what, run.len());
    }
    kernel.lines = all.into_iter().collect();
    kernel
}

fn kernels(inner: &Inner) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    for of in inner.plans.values() {
        for (steps, total) in &of.runs {
            let kernel = row(of, steps);
            let at = all.iter().position(|k| k.is_like(&kernel)).unwrap_or_else(|| {
                all.push(kernel);
                all.len() - 1
            });
            all[at].ns += total.ns;
            all[at].count += total.count;
        }
    }
    if inner.others.count > 0 {
        all.push(Kernel {
            what: "kernels of older plans".to_owned(),
            dims: Vec::new(),
            lines: Vec::new(),
            phase: String::new(),
            count: inner.others.count,
            ns: inner.others.ns,
            share: 0.0,
            bytes: 0,
            flops: 0,
        });
    }
    let busy: u64 = all.iter().map(|k| k.ns).sum();
    all.iter_mut().for_each(|k| k.share = k.ns as f64 / busy.max(1) as f64);
    all.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.what.cmp(&b.what)));
    all
}

fn timeline(inner: &Inner) -> Timeline {
    let host = inner.host.iter().map(|e| TimelineEvent {
        name: stage_name(e.stage).0.to_owned(),
        phase: phase_name(e.phase).to_owned(),
        thread: e.thread,
        start_ns: e.start_ns,
        end_ns: e.end_ns,
    });
    let mut names: BTreeMap<(usize, &[u32]), (String, String)> = BTreeMap::new();
    let device = inner.device.iter().map(|e| {
        let key = (e.plan, &*e.ran.steps);
        let (name, phase) = names.entry(key).or_insert_with(|| match inner.plans.get(&e.plan) {
            Some(of) => {
                let kernel = row(of, &e.ran.steps);
                (format!("{} {:?}", kernel.what, kernel.dims), kernel.phase)
            }
            None => ("kernel".to_owned(), String::new()),
        });
        let (start_ns, end_ns) = (e.ran.start_ns, e.ran.end_ns);
        TimelineEvent { name: name.clone(), phase: phase.clone(), thread: 0, start_ns, end_ns }
    });
    Timeline {
        threads: inner.threads.clone(),
        host: host.collect(),
        device: device.collect(),
        dropped: inner.dropped,
    }
}
