//! The proof of a schedule: everything once, in an order that the dependencies allow, without deadlock.

use wgrad_graph::{Result, bail};

use super::exec::{Run, Times};
use super::walk::walk;
use super::{Action, Channels, Kind, Schedule, Wiring};

/// What [`Schedule::check`] has proved, and the numbers that follow from the lists alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The most micro-batches whose activations a device holds at once, from the start of F to the end of B
    /// or W, summed over its stages: for each device.
    pub stash: Vec<usize>,
    /// The same for each stage.
    pub stage_stash: Vec<usize>,
    /// The most of them that still wait for B or I: for each device.
    pub input_stash: Vec<usize>,
    /// Messages forward: activations that cross between devices.
    pub activations: usize,
    /// Messages back: gradients that cross between devices.
    pub gradients: usize,
    /// Whether every stage sums its gradients in ascending order of micro-batches. Then its sums are
    /// bit-equal to those of any other such schedule, and of one device.
    pub ascending: bool,
}

impl Schedule {
    /// Proves that the schedule runs to its end: every action once, none before what it needs, every message
    /// sent and taken once, and no deadlock with the slots of `wiring`.
    ///
    /// # Errors
    /// `Argument` with device, place in the list and action: for an action that is missing, stands there
    /// twice, or stands before what it needs; for a message that must not cross. `Argument` with the cycle
    /// of waiting devices for a deadlock, and whether more slots would help.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Wiring, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let schedule = schedule::one_f_one_b(2, 2)?;
    /// assert!(schedule.check(&Wiring::edges(0)).is_err(), "each waits for the other to take its message");
    /// assert_eq!(schedule.check(&Wiring::edges(1))?.stash, [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self, wiring: &Wiring) -> Result<Checked> {
        walk(self)?;
        let full = self.lowered();
        if let Some(why) = full.standstill(wiring) {
            let more = Wiring::new(wiring.channels, usize::MAX);
            let help = match full.standstill(&more) {
                Some(_) => "no number of slots would help".into(),
                None => match self.fewest_slots(wiring.channels) {
                    Some(slots) => format!("with {slots} slots for each it would run"),
                    None => "more slots would help".into(),
                },
            };
            bail!(Argument, "Schedule::check", "deadlock: {why}; {help}");
        }
        let messages = self.messages();
        let activations = messages.iter().filter(|m| m.from < m.to).count();
        let stash = |device: usize, stages: &[usize], last: fn(Kind) -> bool| self.peak(device, stages, last);
        let devices = 0..self.lists().len();
        let by_device = |last: fn(Kind) -> bool| {
            devices.clone().map(|d| stash(d, &self.stages_of(d), last)).collect::<Vec<_>>()
        };
        let done = |k| matches!(k, Kind::Backward | Kind::BackwardWeight);
        Ok(Checked {
            stash: by_device(done),
            stage_stash: (0..self.stages()).map(|s| stash(self.devices()[s], &[s], done)).collect(),
            input_stash: by_device(|k| matches!(k, Kind::Backward | Kind::BackwardInput)),
            activations,
            gradients: messages.len() - activations,
            ascending: self.is_ascending(),
        })
    }

    /// The fewest slots for every ring with which there is no deadlock; `None` where no number is enough.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Channels, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// assert_eq!(schedule::gpipe(4, 8)?.fewest_slots(Channels::Edges), Some(0));
    /// assert_eq!(schedule::one_f_one_b(4, 8)?.fewest_slots(Channels::Edges), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn fewest_slots(&self, channels: Channels) -> Option<usize> {
        let full = self.lowered();
        let runs = |slots| full.standstill(&Wiring::new(channels, slots)).is_none();
        if !runs(usize::MAX) {
            return None;
        }
        // More slots never hurt, so the border can be searched by halving.
        let (mut low, mut high) = (0, self.messages().len());
        while low < high {
            let middle = (low + high) / 2;
            if runs(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(low)
    }

    /// Where the devices stand still, if they do; of a lowered schedule.
    pub(super) fn standstill(&self, wiring: &Wiring) -> Option<String> {
        let times = Times { action: &|_| 0.0, message: &|_| (0.0, 0.0) };
        self.waiting(&Run::new(self, wiring, times))
    }

    /// The cycle of waiting devices at the end of a run, if it did not come to its end.
    pub(super) fn waiting(&self, run: &Run<'_>) -> Option<String> {
        let stuck = (0..self.lists().len()).find(|&d| run.at(d).is_some())?;
        // Each device that stands still waits for one other, so following them ends in a cycle or at a
        // device that has nothing more to do.
        let mut path = vec![stuck];
        let cycle = loop {
            let last = path[path.len() - 1];
            let next = run.at(last).and_then(|a| self.waits_for(run, a));
            match next {
                Some(d) => match path.iter().position(|&p| p == d) {
                    Some(start) => break &path[start..],
                    None => path.push(d),
                },
                None => break &path[..],
            }
        };
        let say = |&device: &usize| {
            let Some(action) = run.at(device) else { return format!("device {device} has ended its list") };
            let place = format!("device {device} at action {} ({})", run.index(device), self.label(action));
            let first = action.receives().and_then(|m| run.in_the_way(m));
            match (first, self.waits_for(run, action)) {
                (Some(first), _) => format!("{place} finds {} in the ring first", self.label(first.recv())),
                (None, Some(other)) => format!("{place} waits for device {other}"),
                (None, None) => format!("{place} waits"),
            }
        };
        Some(cycle.iter().map(say).collect::<Vec<_>>().join(", "))
    }

    fn waits_for(&self, run: &Run<'_>, action: Action) -> Option<usize> {
        if let Some(message) = action.sends() {
            return Some(self.devices()[message.to]);
        }
        if let Some(message) = action.receives() {
            return Some(self.devices()[message.from]);
        }
        (0..self.lists().len()).find(|&d| run.at(d).is_some_and(|a| a.kind != Kind::Update))
    }

    /// The most micro-batches of `stages` between F and an action that `ends` says.
    fn peak(&self, device: usize, stages: &[usize], ends: fn(Kind) -> bool) -> usize {
        if !self.is_training() {
            return 1;
        }
        let (mut held, mut most) = (0_usize, 0);
        for action in self.lists()[device].iter().filter(|a| stages.contains(&a.stage)) {
            if action.kind == Kind::Forward {
                held += 1;
                most = most.max(held);
            } else if ends(action.kind) {
                held -= 1;
            }
        }
        most
    }

    fn is_ascending(&self) -> bool {
        (0..self.stages()).all(|stage| {
            let weights =
                |a: &&Action| a.stage == stage && matches!(a.kind, Kind::Backward | Kind::BackwardWeight);
            self.lists()[self.devices()[stage]].iter().filter(weights).map(|a| a.micro_batch).is_sorted()
        })
    }
}
