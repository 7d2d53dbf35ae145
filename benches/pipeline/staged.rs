//! The model over several contexts: one row of the table.

use std::sync::Arc;
use std::time::Instant;

use wgrad::pipeline::{
    Family, Message, Partition, Payload, Report, Schedule, Simulation, Stages, TrainOptions, Trainer,
};
use wgrad::prelude::*;
use wgrad::{Backend, Caps, ContextOptions, Result};

use super::dry::Dry;
use super::median;
use super::model::{Gpt, loss, optimizer};
use super::whole::DRY_STEPS;

/// What to run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) partition: Partition,
    pub(crate) rows: usize,
    pub(crate) options: TrainOptions,
}

/// Where the memory of a device goes.
#[derive(Clone, Default, serde::Serialize)]
pub(crate) struct DeviceMemory {
    pub(crate) measured_bytes: usize,
    pub(crate) planned_bytes: usize,
    /// Weights, gradients and optimizer state, as they were before a step.
    pub(crate) resident_bytes: u64,
    /// What a micro-batch leaves there, times the most that are in flight.
    pub(crate) stash_bytes: u64,
    pub(crate) in_flight: usize,
}

/// How often plans were found and made in the steps that were timed, and what was submitted; a step and device.
#[derive(Copy, Clone, Default, serde::Serialize)]
pub(crate) struct Counts {
    pub(crate) plans_made: u64,
    pub(crate) plans_reused: u64,
    pub(crate) submissions: u64,
    pub(crate) recomputed: u64,
}

impl Counts {
    /// What came about in so many steps, a context each.
    pub(crate) fn between(before: &[wgrad::Stats], after: &[wgrad::Stats], steps: u64) -> Vec<Counts> {
        let counts = before.iter().zip(after).map(|(a, b)| Counts {
            plans_made: b.plans_made - a.plans_made,
            plans_reused: (b.plans_reused - a.plans_reused) / steps,
            submissions: (b.submissions - a.submissions) / steps,
            recomputed: (b.recomputed - a.recomputed) / steps,
        });
        counts.collect()
    }
}

/// What a run gave.
pub(crate) struct Staged {
    pub(crate) losses: Vec<f64>,
    pub(crate) seconds: f64,
    pub(crate) memory: Vec<DeviceMemory>,
    pub(crate) counts: Vec<Counts>,
    /// A step that waits for the device after each action, and its prediction.
    pub(crate) timed: Report,
    pub(crate) predicted: Simulation,
    /// A step as it is run, for its handovers.
    pub(crate) last: Report,
    pub(crate) profiles: Vec<String>,
}

fn trainer(
    backends: &[Arc<dyn Backend>],
    options: &ContextOptions,
    gpt: Gpt,
    plan: &Plan,
) -> Result<Trainer> {
    let context = |&d: &usize| Context::with(Arc::clone(&backends[d]), options.clone());
    let contexts = plan.partition.devices().iter().map(context).collect::<Result<Vec<_>>>()?;
    let stages = Stages::cut(&gpt.model(), &plan.partition, &contexts, gpt.input())?;
    Trainer::new(stages, loss(), optimizer, plan.options.clone())
}

/// What a run takes by plans alone.
pub(crate) struct Planned {
    /// The peak of each device.
    pub(crate) bytes: Vec<usize>,
    /// The host's time for a step: a device that computes nothing takes none.
    pub(crate) seconds: f64,
    /// Where the host's time goes, one text a stage.
    pub(crate) profiles: Vec<String>,
}

/// The training on devices that only count.
pub(crate) fn planned(devices: &[Caps], gpt: Gpt, plan: &Plan, profile: bool) -> Result<Planned> {
    let dry: Vec<Arc<dyn Backend>> = devices.iter().map(|caps| Dry::open(caps.clone())).collect();
    let mut trainer = trainer(&dry, &ContextOptions::default(), gpt.blank(), plan)?;
    let mut times = Vec::new();
    for step in 0..DRY_STEPS {
        if step == 2 {
            switch(&trainer, profile);
        }
        let batch = gpt.batch(step, plan.rows)?;
        let begun = Instant::now();
        trainer.step(&plan.schedule, &batch)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let bytes = dry.iter().map(|d| d.memory().peak_bytes).collect();
    Ok(Planned { bytes, seconds: median(times.split_off(2)), profiles: profiles(&trainer, profile) })
}

/// Turns the profiles of all stages on or off.
fn switch(trainer: &Trainer, on: bool) {
    for context in contexts(trainer) {
        context.profile(on);
    }
}

/// Their texts, if they were on.
fn profiles(trainer: &Trainer, on: bool) -> Vec<String> {
    let texts = contexts(trainer).filter(|_| on).map(|c| c.profile_report().to_string()).collect();
    switch(trainer, false);
    texts
}

/// `steps` steps; the median time without the first two, which plan and compile. Then some whose actions are timed.
pub(crate) fn run(
    devices: &[Device],
    options: &ContextOptions,
    gpt: Gpt,
    plan: &Plan,
    steps: usize,
    profile: bool,
) -> Result<Staged> {
    let backends = devices.iter().map(Device::open).collect::<Result<Vec<_>>>()?;
    let caps: Vec<Caps> = backends.iter().map(|b| b.caps().clone()).collect();
    let planned = planned(&caps, gpt, plan, false)?;
    let mut trainer = trainer(&backends, options, gpt, plan)?;
    let (mut losses, mut times, mut last) = (Vec::new(), Vec::new(), None);
    let mut before = Vec::new();
    for step in 0..steps {
        if step == 2.min(steps - 1) {
            before = stats(&trainer);
            switch(&trainer, profile);
        }
        let batch = gpt.batch(step, plan.rows)?;
        let begun = Instant::now();
        let done = trainer.step(&plan.schedule, &batch)?;
        times.push(begun.elapsed().as_secs_f64());
        losses.push(done.loss);
        last = Some(done.report);
    }
    let profiles = profiles(&trainer, profile);
    let counted = (steps - 2.min(steps - 1)) as u64;
    let counts = Counts::between(&before, &stats(&trainer), counted);
    let measured: Vec<usize> = backends.iter().map(|b| b.memory().peak_bytes).collect();
    let seconds = median(times.split_off(times.len().min(2)));

    let timed_options = TrainOptions { timed: true, ..plan.options.clone() };
    let mut trainer = Trainer::new(trainer.into_stages(), loss(), optimizer, timed_options)?;
    let mut timed = trainer.step(&plan.schedule, &gpt.batch(steps, plan.rows)?)?.report;
    for step in 1..3 {
        timed = trainer.step(&plan.schedule, &gpt.batch(steps + step, plan.rows)?)?.report;
    }
    let predicted = plan.schedule.simulate(&timed.costs())?;
    let memory = (0..devices.len()).map(|d| {
        let stages = || (0..plan.partition.stages().len()).filter(|s| plan.partition.device(*s) == d);
        let position = stages().next().map_or(d, |s| plan.schedule.devices()[s]);
        let in_flight = timed.stash.get(position).copied().unwrap_or(0);
        let most = stages().map(|s| timed.held[s].1).max().unwrap_or(0);
        DeviceMemory {
            measured_bytes: measured[d],
            planned_bytes: planned.bytes[d],
            // Contexts of one device see the same memory.
            resident_bytes: stages().map(|s| timed.held[s].0).min().unwrap_or(0),
            stash_bytes: most * in_flight as u64,
            in_flight,
        }
    });
    let memory = memory.collect();
    let last = last.unwrap_or_else(|| timed.clone());
    Ok(Staged { losses, seconds, memory, counts, timed, predicted, last, profiles })
}

fn contexts(trainer: &Trainer) -> impl Iterator<Item = &Context> {
    let stages = trainer.stages();
    (0..stages.len()).map(|s| stages.context(s))
}

fn stats(trainer: &Trainer) -> Vec<wgrad::Stats> {
    contexts(trainer).map(Context::stats).collect()
}

/// The rate of handovers of one kind while the devices compute: the median of bytes a second from computed to
/// arrival.
pub(crate) fn rate(report: &Report, payload: Payload) -> f64 {
    let own = |m: &Message| m.payload == payload;
    let all = report.handovers.iter().filter(|h| own(&h.passage.message));
    median(all.map(|h| h.bytes as f64 / h.seconds().max(1e-9)).collect())
}

/// Uniform by layers, or at these layers, for this schedule.
pub(crate) fn fixed(schedule: &Schedule, layers: usize, cuts: &[usize]) -> Result<Partition> {
    let cut = match cuts {
        [] => wgrad::pipeline::partition::uniform(layers, schedule.stages())?,
        cuts => Partition::new(layers, cuts)?,
    };
    cut.on(schedule.devices().to_vec())
}

/// The families that `auto` chooses from.
pub(crate) fn families(devices: usize, layers: usize) -> Vec<Family> {
    let looped = Family::Interleaved { chunks: 2 };
    Family::LINES.into_iter().chain((layers >= 2 * devices).then_some(looped)).collect()
}
