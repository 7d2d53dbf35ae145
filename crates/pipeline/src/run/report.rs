//! What a run did: the time of every action, and every handover with its bytes.

use std::collections::BTreeMap;
use std::fmt;

use super::Stages;
use super::worker::Log;
use crate::schedule::{Costs, Kind, Link, Message, Passage, Payload, Schedule, Span, StageCost, Timeline};

/// One message that crossed from device to device: all that one stage took of another, or the gradients of it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Handover {
    /// What crossed, and when; seconds since the step began. It is sent when the stage's thread lets go of it, and has
    /// arrived when it lies on the other device.
    pub passage: Passage,
    /// Its bytes.
    pub bytes: u64,
    /// When its way began: the first value was computed, and its copy to the host could begin.
    pub begun: f64,
    /// When it was on the host.
    pub read: f64,
    /// Where it was rounded to 16 bits ([`Stages::set_handover`]): the largest error of an element, relative to the
    /// largest element.
    pub error: Option<f64>,
}

impl Handover {
    /// Seconds from when it was computed until it lay on the other device.
    pub fn seconds(&self) -> f64 {
        (self.passage.arrived - self.begun).max(0.0)
    }
}

/// What crossed an edge in one direction.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct EdgeReport {
    /// What it is.
    pub payload: Payload,
    /// The stage that gives.
    pub from: usize,
    /// The stage that takes.
    pub to: usize,
    /// How many messages.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds under way, all messages together.
    pub seconds: f64,
    /// How many of these seconds the taking device computed. Devices that work on behind the actions of their
    /// threads (see [`TrainOptions::timed`](crate::TrainOptions::timed)) compute for longer than this knows.
    pub covered: f64,
    /// The largest [`Handover::error`].
    pub error: Option<f64>,
}

impl EdgeReport {
    /// 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / 1e9 / self.seconds } else { 0.0 }
    }

    /// The share of the time under way that lay under computing.
    pub fn covered_share(&self) -> f64 {
        if self.seconds > 0.0 { self.covered / self.seconds } else { 0.0 }
    }
}

/// The measured run of a schedule.
#[derive(Clone, Debug)]
pub struct Report {
    /// The schedule, with all sends and receives.
    pub schedule: Schedule,
    /// Every action with its times, in seconds since the step began.
    pub spans: Vec<Span>,
    /// Every handover between devices, each message once.
    pub handovers: Vec<Handover>,
    /// Handovers between stages of one device.
    pub local: usize,
    /// The most micro-batches whose activations each device held at once.
    pub stash: Vec<usize>,
    /// For each stage the bytes that its context held at the beginning (weights, gradients, optimizer state), and the
    /// most that the forward pass of one micro-batch left there, or in a stage that computes it again the bytes of its
    /// inputs. Other contexts on one opened device count along.
    pub held: Vec<(u64, u64)>,
    /// For each stage whether it ran its forward pass again, and the most bytes that this left in its context for
    /// one backward pass. What such a stage holds between F and B is its inputs, on the host.
    pub again: Vec<Option<u64>>,
    /// The names of the devices, for pictures.
    pub devices: Vec<String>,
}

impl Report {
    pub(crate) fn new(stages: &Stages, schedule: &Schedule, logs: &[Log]) -> Self {
        let handovers = logs.iter().flat_map(|l| &l.handovers);
        let mut handovers: Vec<Handover> = handovers.copied().collect();
        handovers.sort_by_key(|h| h.passage.message);
        let name = |device: usize| {
            let first = schedule.stages_of(device)[0];
            stages.context(first).caps().name.clone()
        };
        Self {
            schedule: schedule.clone(),
            spans: logs.iter().flat_map(|l| &l.spans).copied().collect(),
            handovers,
            local: logs.iter().map(|l| l.local).sum(),
            stash: logs.iter().map(|l| l.stash).collect(),
            held: (0..stages.len())
                .map(|s| logs.iter().find_map(|l| l.bytes.get(&s)).copied().unwrap_or_default())
                .collect(),
            again: (0..stages.len()).map(|s| logs.iter().find_map(|l| l.again.get(&s)).copied()).collect(),
            devices: (0..schedule.lists().len()).map(name).collect(),
        }
    }

    /// Seconds from the beginning to the end of the last action.
    pub fn seconds(&self) -> f64 {
        self.spans.iter().map(|s| s.end).fold(0.0, f64::max)
    }

    /// How many activations crossed.
    pub fn activations(&self) -> usize {
        self.handovers.iter().filter(|h| h.passage.message.payload == Payload::Activation).count()
    }

    /// How many gradients crossed.
    pub fn gradients(&self) -> usize {
        self.handovers.len() - self.activations()
    }

    /// The largest error of what was rounded to 16 bits for its way, relative to the largest element of its tensor; not
    /// finite where an element left the range. `None` where nothing was rounded.
    pub fn handover_error(&self) -> Option<f64> {
        self.handovers.iter().map(|h| h.error).fold(None, worst)
    }

    /// The bytes of all handovers.
    pub fn bytes(&self) -> u64 {
        self.handovers.iter().map(|h| h.bytes).sum()
    }

    /// What crossed each edge in each direction.
    pub fn edges(&self) -> Vec<EdgeReport> {
        let mut edges: BTreeMap<(Payload, usize, usize), EdgeReport> = BTreeMap::new();
        for handover in &self.handovers {
            let Message { payload, from, to, .. } = handover.passage.message;
            let fresh =
                EdgeReport { payload, from, to, count: 0, bytes: 0, seconds: 0.0, covered: 0.0, error: None };
            let edge = edges.entry((payload, from, to)).or_insert(fresh);
            edge.count += 1;
            edge.bytes += handover.bytes;
            edge.seconds += handover.seconds();
            edge.error = worst(edge.error, handover.error);
            let device = self.schedule.devices()[to];
            let computing = self.spans.iter().filter(|s| s.device == device && s.action.is_compute());
            let under = |s: &Span| s.end.min(handover.passage.arrived) - s.start.max(handover.begun);
            edge.covered += computing.map(under).map(|t| t.max(0.0)).sum::<f64>();
        }
        edges.into_values().collect()
    }

    /// The share of all devices' time in which they compute nothing.
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.spans.iter().filter(|s| s.action.is_compute()).map(|s| s.end - s.start).sum();
        1.0 - busy / (self.seconds() * self.devices.len() as f64)
    }

    /// The costs of the stages and ways as this run had them, with which
    /// [`Schedule::simulate`] predicts others and [`rank`](crate::rank) chooses: medians over micro-batches.
    /// Where the run had whole backward passes, half of each counts as I and half as W. The first step of a
    /// stage also compiles its kernels, so measure a later one; and set
    /// [`TrainOptions::timed`](crate::TrainOptions::timed), or devices work on behind the times of their actions.
    pub fn costs(&self) -> Costs {
        let cost = |stage: usize| {
            let of = |kind: Kind| {
                let spans = self.spans.iter().filter(|s| (s.action.stage, s.action.kind) == (stage, kind));
                median(spans.map(|s| s.end - s.start).collect())
            };
            let (forward, whole) = (of(Kind::Forward), of(Kind::Backward));
            let (input, weight) = match whole > 0.0 {
                true => (whole / 2.0, whole / 2.0),
                false => (of(Kind::BackwardInput), of(Kind::BackwardWeight)),
            };
            StageCost {
                reduce: of(Kind::Reduce),
                update: of(Kind::Update),
                resident: self.held[stage].0,
                stash: self.held[stage].1,
                kept: self.again[stage].unwrap_or(self.held[stage].1),
                again: self.again[stage].unwrap_or(0),
                ..StageCost::new(forward, input, weight)
            }
        };
        let mut costs = Costs::new((0..self.schedule.stages()).map(cost).collect());
        let mut hops: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        for handover in &self.handovers {
            let Handover { passage, bytes, .. } = handover;
            let Message { from, to, .. } = passage.message;
            let most = costs.bytes.entry(passage.message.edge()).or_default();
            *most = (*most).max(*bytes);
            let ends = (self.schedule.devices()[from], self.schedule.devices()[to]);
            hops.entry(ends).or_default().push(handover.seconds());
        }
        for ((from, to), times) in hops {
            // Of one size of messages nobody can tell what grows with the bytes and what does not.
            costs.links = costs.links.with(from, to, Link::new(median(times), f64::INFINITY));
        }
        costs
    }

    /// The run over time, to draw beside the predicted one.
    pub fn timeline(&self) -> Timeline {
        let passages: Vec<Passage> = self.handovers.iter().map(|h| h.passage).collect();
        let mut timeline = Timeline::measured(&self.schedule, &self.spans, &passages);
        timeline.title = format!(
            "{}, measured: {:.3} ms, bubble {:.1} %",
            self.schedule.name(),
            1e3 * self.seconds(),
            100.0 * self.bubble()
        );
        timeline.devices = self.devices.iter().enumerate().map(|(d, name)| format!("D{d} {name}")).collect();
        timeline
    }
}

/// The handovers: one line for each way.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stages  what        count       bytes  under way, ms      GB/s  under computing")?;
        for edge in self.edges() {
            let EdgeReport { payload, from, to, count, bytes, seconds, .. } = edge;
            let (ends, what) = (format!("{from}>{to}"), payload.name());
            let (ms, rate, share) = (1e3 * seconds, edge.gb_per_s(), 100.0 * edge.covered_share());
            writeln!(
                f,
                "{ends:<7} {what:<10} {count:>6} {bytes:>11}  {ms:>13.3}  {rate:>8.3}  {share:>13.1} %"
            )?;
        }
        let (count, bytes) = (self.handovers.len(), self.bytes());
        writeln!(f, "{count} handovers, {bytes} bytes; {} within a device", self.local)?;
        match self.handover_error() {
            Some(error) => writeln!(f, "in 16 bits; the largest error is {error:.2e} of the largest element"),
            None => Ok(()),
        }
    }
}

/// The larger error; one that is no number is the largest.
pub(super) fn worst(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.is_nan() || a > b { a } else { b }),
        _ => a.or(b),
    }
}

/// The middle of some times; 0 without any.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
