//! Time and memory of a schedule, predicted from costs.

use std::collections::HashMap;

use wgrad_graph::{Result, bail};

use super::exec::{Run, Times};
use super::walk::walk;
use super::{Action, Costs, Kind, Message, Passage, Schedule, Span, Wiring};

/// What a device does with its time.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct DeviceTime {
    /// The start of its first computing action.
    pub start: f64,
    /// The end of its last computing action.
    pub end: f64,
    /// The sum of its actions' times.
    pub busy: f64,
    /// The share of the makespan in which it does nothing.
    pub bubble: f64,
}

/// The predicted run of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// The schedule's name.
    pub name: String,
    /// From the first start to the last end.
    pub makespan: f64,
    /// The times of each device.
    pub devices: Vec<DeviceTime>,
    /// The most bytes that each device holds: resident, stash, slots, workspace.
    pub memory: Vec<u64>,
    /// Every action but sends and receives, in order for each device.
    pub spans: Vec<Span>,
    /// Every handover.
    pub passages: Vec<Passage>,
    /// The name of each span's action, as in the schedule's text.
    pub(super) labels: Vec<String>,
}

impl Simulation {
    /// The share of all devices' time in which they do nothing.
    pub fn bubble(&self) -> f64 {
        self.devices.iter().map(|d| d.bubble).sum::<f64>() / self.devices.len() as f64
    }
}

impl Schedule {
    /// Predicts time and memory: every device runs its list in order, each action as early as its inputs
    /// and the slots allow. A device is not kept busy by a handover, only by waiting for one or for a free
    /// slot.
    ///
    /// # Errors
    /// `Argument` for costs of another number of stages or micro-batches, for a negative or infinite time,
    /// and for what [`Schedule::check`] refuses with these slots.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Costs, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let run = schedule::zb_h1(4, 8)?.simulate(&Costs::ticks(4))?;
    /// assert_eq!(run.makespan, 27.0);
    /// assert_eq!(run.memory, [4, 4, 4, 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn simulate(&self, costs: &Costs) -> Result<Simulation> {
        walk(self)?;
        self.check_costs(costs)?;
        let full = self.lowered();
        let action = |a: Action| full.action_time(costs, a);
        let message = |m: Message| {
            let link = costs.links.get(full.devices()[m.from], full.devices()[m.to]);
            let bytes = costs.bytes.get(&m.edge()).copied().unwrap_or(0) as f64;
            (bytes * costs.size(m.micro_batch) / link.bandwidth, link.latency)
        };
        let mut run = Run::new(&full, &costs.wiring, Times { action: &action, message: &message });
        if let Some(why) = full.waiting(&run) {
            bail!(Argument, "Schedule::simulate", "deadlock: {why}");
        }
        let passages = std::mem::take(&mut run.passages);
        let talks = |a: Action| a.sends().is_some() || a.receives().is_some();
        let spans: Vec<Span> = run.spans.iter().copied().filter(|s| !talks(s.action)).collect();
        let makespan = spans.iter().map(|s| s.end).fold(0.0, f64::max);
        let devices = (0..self.lists().len()).map(|d| times_of(&spans, d, makespan)).collect();
        let labels = spans.iter().map(|s| self.label(s.action)).collect();
        let memory = self.memory(costs);
        Ok(Simulation { name: self.name().into(), makespan, devices, memory, spans, passages, labels })
    }

    /// The rings that this schedule needs under these costs so that no sender waits for a slot: for each edge
    /// and direction the most messages that are on their way or lie waiting, and one more to fill meanwhile.
    ///
    /// # Errors
    /// As [`Schedule::simulate`].
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Costs, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let wiring = schedule::one_f_one_b(4, 8)?.wiring(&Costs::ticks(4))?;
    /// assert_eq!(wiring.slots(0, 1), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wiring(&self, costs: &Costs) -> Result<Wiring> {
        let channels = costs.wiring.channels;
        let mut free = costs.clone();
        free.wiring = Wiring::new(channels, usize::MAX);
        let run = self.simulate(&free)?;
        let mut rings: HashMap<_, Vec<(f64, f64)>> = HashMap::new();
        for p in &run.passages {
            let key = free.wiring.channel(self, p.message);
            rings.entry((key.1, key.2)).or_default().push((p.sent, p.taken));
        }
        let mut wiring = Wiring::new(channels, 1);
        for ((from, to), stays) in rings {
            // A slot is taken from the send on; the most are taken just after some send. A message that is
            // taken as it is sent lies nowhere.
            let lying = |t: f64| stays.iter().filter(|(a, b)| *a <= t && t < *b).count();
            let most = stays.iter().map(|s| lying(s.0)).max().unwrap_or(0);
            wiring = wiring.with(from, to, most + 1);
        }
        Ok(wiring)
    }

    fn check_costs(&self, costs: &Costs) -> Result<()> {
        let op = "Schedule::simulate";
        if costs.stages.len() != self.stages() {
            bail!(Argument, op, "costs of {} stages for {} stages", costs.stages.len(), self.stages());
        }
        if !costs.sizes.is_empty() && costs.sizes.len() != self.micro_batches() {
            bail!(Argument, op, "{} sizes for {} micro-batches", costs.sizes.len(), self.micro_batches());
        }
        let bad = |t: f64| !t.is_finite() || t < 0.0;
        for (stage, c) in costs.stages.iter().enumerate() {
            let times = [c.forward, c.backward, c.input, c.weight, c.reduce, c.update];
            if let Some(t) = times.into_iter().find(|&t| bad(t)) {
                bail!(Argument, op, "a time of {t} for stage {stage}; it must be finite and 0 or more");
            }
        }
        if let Some(size) = costs.sizes.iter().find(|&&s| bad(s)) {
            bail!(Argument, op, "a micro-batch of relative size {size}");
        }
        Ok(())
    }

    fn action_time(&self, costs: &Costs, action: Action) -> f64 {
        let cost = &costs.stages[action.stage];
        let size = costs.size(action.micro_batch);
        match action.kind {
            Kind::Forward => cost.forward * size,
            Kind::Backward => cost.backward * size,
            Kind::BackwardInput => cost.input * size,
            Kind::BackwardWeight => cost.weight * size,
            Kind::Reduce => cost.reduce,
            Kind::Update => cost.update,
            _ => 0.0,
        }
    }

    /// The most bytes that each device holds. They follow from the lists alone, not from times.
    pub(crate) fn memory(&self, costs: &Costs) -> Vec<u64> {
        (0..self.lists().len()).map(|d| self.memory_of(costs, d)).collect()
    }

    fn memory_of(&self, costs: &Costs, device: usize) -> u64 {
        let stages = self.stages_of(device);
        let scale = |bytes: u64| (bytes as f64 * costs.largest()).ceil() as u64;
        let resident: u64 = stages.iter().map(|&s| costs.stages[s].resident).sum();
        let workspace = stages.iter().map(|&s| scale(costs.stages[s].workspace)).max().unwrap_or(0);
        let (mut held, mut most) = (0_u64, 0_u64);
        for action in &self.lists()[device] {
            let cost = &costs.stages[action.stage];
            let (stash, kept) = (scale(cost.stash), scale(cost.kept));
            match action.kind {
                // Without a backward pass nothing outlives the forward pass.
                Kind::Forward if !self.is_training() => held = stash,
                Kind::Forward => held += stash,
                Kind::Backward => {
                    most = most.max(held + scale(cost.again));
                    held -= stash;
                }
                Kind::BackwardInput => {
                    most = most.max(held + scale(cost.again));
                    held = held - stash + kept;
                }
                Kind::BackwardWeight => held -= kept,
                _ => {}
            }
            most = most.max(held);
        }
        let mut slots = 0;
        for edge in self.edges().iter().filter(|e| self.crosses(e)) {
            let bytes = scale(costs.bytes.get(&(edge.from, edge.to)).copied().unwrap_or(0));
            let ring = |from, to| costs.wiring.slots(from, to).min(self.micro_batches()) as u64;
            if stages.contains(&edge.to) {
                slots += bytes * ring(edge.from, edge.to);
            }
            if stages.contains(&edge.from) && edge.gradient && self.is_training() {
                slots += bytes * ring(edge.to, edge.from);
            }
        }
        resident + most + slots + workspace
    }
}

fn times_of(spans: &[Span], device: usize, makespan: f64) -> DeviceTime {
    let mine = || spans.iter().filter(|s| s.device == device && s.action.is_compute());
    let busy: f64 = spans.iter().filter(|s| s.device == device).map(|s| s.end - s.start).sum();
    let bubble = if makespan > 0.0 { 1.0 - busy / makespan } else { 0.0 };
    DeviceTime {
        start: mine().map(|s| s.start).fold(f64::INFINITY, f64::min),
        end: mine().map(|s| s.end).fold(0.0, f64::max),
        busy,
        bubble,
    }
}
