//! Schedules: what each device does, in which order, as data that can be made, proved, timed and printed.

mod action;
mod check;
mod costs;
mod exec;
mod family;
mod lower;
mod make;
mod simulate;
mod svg;
mod text;
mod timeline;
mod walk;

pub use action::{Action, Edge, Kind, Message, Payload};
pub use check::Checked;
pub use costs::{Costs, Link, Links, StageCost};
pub use exec::{Channels, Passage, Span, Wiring};
pub use family::Family;
pub use make::{eager_one_f_one_b, forward_only, gpipe, interleaved, one_f_one_b, split_batch, zb_h1};
pub use simulate::{DeviceTime, Simulation};
pub use timeline::Timeline;

use wgrad_graph::{Result, bail};

/// The order of work of every device for one step.
///
/// It holds one list of [`Action`]s for each device, the device of each stage, and the edges between
/// stages. A list may hold computing actions only: then every message is sent right after the action that
/// makes it and taken right before the first one that needs it ([`Schedule::lowered`] writes that down). Or
/// it may hold every send and receive, in an order of its own.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Wiring, schedule};
/// # fn main() -> wgrad_graph::Result<()> {
/// let schedule = schedule::one_f_one_b(4, 8)?;
/// let proof = schedule.check(&Wiring::edges(1))?;
/// assert_eq!(proof.stash, [4, 3, 2, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    name: String,
    micro_batches: usize,
    devices: Vec<usize>,
    edges: Vec<Edge>,
    lists: Vec<Vec<Action>>,
}

impl Schedule {
    /// A schedule made by hand: `devices[s]` is the device of stage `s`, `lists[d]` what device `d` does.
    /// Each stage feeds the next; [`Schedule::with_edges`] says otherwise.
    ///
    /// Only the numbers' ranges are checked here; [`Schedule::check`] proves the rest.
    ///
    /// # Errors
    /// `Argument` for no stage, no micro-batch, a device without stage, a stage or micro-batch out of
    /// range, or an action on a device that does not have its stage.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Action, Kind, Schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let both = |stage| vec![Action::new(Kind::Forward, stage, 0), Action::new(Kind::Backward, stage, 0)];
    /// let schedule = Schedule::new("by hand", 1, vec![0, 1], vec![both(0), both(1)])?;
    /// assert_eq!(schedule.stages(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(
        name: impl Into<String>,
        micro_batches: usize,
        devices: Vec<usize>,
        lists: Vec<Vec<Action>>,
    ) -> Result<Self> {
        let op = "Schedule::new";
        let stages = devices.len();
        if stages == 0 || micro_batches == 0 {
            bail!(Argument, op, "{stages} stages and {micro_batches} micro-batches: each must be 1 or more");
        }
        for (stage, &device) in devices.iter().enumerate() {
            if device >= lists.len() {
                bail!(Argument, op, "stage {stage} is on device {device}; there are {} lists", lists.len());
            }
        }
        if let Some(idle) = (0..lists.len()).find(|d| !devices.contains(d)) {
            bail!(Argument, op, "device {idle} has no stage");
        }
        for (device, list) in lists.iter().enumerate() {
            for (index, &Action { kind, stage, micro_batch }) in list.iter().enumerate() {
                let entry = format!("action {index} of device {device} ({kind:?})");
                if stage >= stages || micro_batch >= micro_batches {
                    bail!(
                        Argument,
                        op,
                        "{entry} names stage {stage} and micro-batch {micro_batch}; there are {stages} stages and \
                         {micro_batches} micro-batches"
                    );
                }
                if devices[stage] != device {
                    bail!(
                        Argument,
                        op,
                        "{entry} is for stage {stage}, which is on device {}",
                        devices[stage]
                    );
                }
            }
        }
        let edges = (1..stages).map(|to| Edge::new(to - 1, to)).collect();
        Ok(Self { name: name.into(), micro_batches, devices, edges, lists })
    }

    /// The same lists with other edges between the stages: skips, several inputs, data without gradient.
    ///
    /// # Errors
    /// `Argument` for an edge that does not lead to a later stage, or that stands there twice; also when the
    /// lists already hold sends or receives.
    pub fn with_edges(self, edges: Vec<Edge>) -> Result<Self> {
        if self.is_lowered() {
            bail!(Argument, "Schedule::with_edges", "the lists already hold sends and receives");
        }
        self.set_edges(edges)
    }

    fn set_edges(mut self, mut edges: Vec<Edge>) -> Result<Self> {
        let op = "Schedule::with_edges";
        edges.sort();
        for pair in edges.windows(2) {
            if (pair[0].from, pair[0].to) == (pair[1].from, pair[1].to) {
                bail!(Argument, op, "the edge {}>{} stands there twice", pair[0].from, pair[0].to);
            }
        }
        for Edge { from, to, .. } in &edges {
            if from >= to || *to >= self.stages() {
                bail!(
                    Argument,
                    op,
                    "the edge {from}>{to} does not lead to a later one of {} stages",
                    self.stages()
                );
            }
        }
        self.edges = edges;
        Ok(self)
    }

    /// The same schedule under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.devices.len()
    }

    /// The number of micro-batches.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The device of each stage.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// The stages of `device`, ascending.
    pub fn stages_of(&self, device: usize) -> Vec<usize> {
        (0..self.stages()).filter(|&s| self.devices[s] == device).collect()
    }

    /// The edges between stages, ascending.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// What each device does, in order.
    pub fn lists(&self) -> &[Vec<Action>] {
        &self.lists
    }

    /// Whether the lists hold sends and receives.
    pub fn is_lowered(&self) -> bool {
        self.lists.iter().flatten().any(|a| a.sends().is_some() || a.receives().is_some())
    }

    /// Whether there is a backward pass.
    pub fn is_training(&self) -> bool {
        self.lists.iter().flatten().any(|a| a.is_compute() && a.kind != Kind::Forward)
    }

    /// The messages that cross between devices in one step, each once: ascending.
    ///
    /// # Example
    /// ```
    /// let schedule = wgrad_pipeline::schedule::gpipe(4, 8)?;
    /// assert_eq!(schedule.messages().len(), 2 * 8 * 3);
    /// # Ok::<(), wgrad_graph::Error>(())
    /// ```
    pub fn messages(&self) -> Vec<Message> {
        let mut all = Vec::new();
        let training = self.is_training();
        for &Edge { from, to, gradient } in self.edges.iter().filter(|e| self.crosses(e)) {
            for micro_batch in 0..self.micro_batches {
                all.push(Message { payload: Payload::Activation, from, to, micro_batch });
                if gradient && training {
                    all.push(Message { payload: Payload::Gradient, from: to, to: from, micro_batch });
                }
            }
        }
        all.sort();
        all
    }

    /// Whether the edge's ends are on different devices.
    fn crosses(&self, edge: &Edge) -> bool {
        self.devices[edge.from] != self.devices[edge.to]
    }
}
