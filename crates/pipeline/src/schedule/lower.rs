//! From computing actions to complete lists, and from one stage a device to several.

use wgrad_graph::{Result, bail};

use super::{Action, Costs, Edge, Kind, Message, Payload, Schedule};

impl Schedule {
    /// The same order with everything written out: each message is taken right before the action that needs
    /// it and sent right after the action that makes it, gradients are reduced after a stage's last
    /// backward pass, and every stage is updated at the end. A list that already holds some of it keeps
    /// that.
    ///
    /// # Example
    /// ```
    /// let schedule = wgrad_pipeline::schedule::one_f_one_b(2, 1)?;
    /// let text = schedule.lowered().to_string();
    /// assert!(text.contains("D1: F0<0 F0 B0 B0>0 R U"));
    /// # Ok::<(), wgrad_graph::Error>(())
    /// ```
    #[must_use]
    pub fn lowered(&self) -> Schedule {
        let mut all = self.clone();
        if !self.is_lowered() {
            for list in &mut all.lists {
                *list = self.with_messages(list);
            }
        }
        if self.is_training() {
            for (device, list) in all.lists.iter_mut().enumerate() {
                self.add_updates(device, list);
            }
        }
        all
    }

    fn with_messages(&self, list: &[Action]) -> Vec<Action> {
        let training = self.is_training();
        let mut all = Vec::new();
        for &action in list {
            let Action { kind, stage, micro_batch } = action;
            let message = |payload, from, to| Message { payload, from, to, micro_batch };
            let edges = || self.edges.iter().filter(|e| self.crosses(e));
            match kind {
                Kind::Forward => {
                    let from = edges().filter(|e| e.to == stage);
                    all.extend(from.map(|e| message(Payload::Activation, e.from, stage).recv()));
                    all.push(action);
                    let to = edges().filter(|e| e.from == stage);
                    all.extend(to.map(|e| message(Payload::Activation, stage, e.to).send()));
                }
                Kind::Backward | Kind::BackwardInput if training => {
                    let from = edges().filter(|e| e.from == stage && e.gradient);
                    all.extend(from.map(|e| message(Payload::Gradient, e.to, stage).recv()));
                    all.push(action);
                    let to = edges().filter(|e| e.to == stage && e.gradient);
                    all.extend(to.map(|e| message(Payload::Gradient, stage, e.from).send()));
                }
                _ => all.push(action),
            }
        }
        all
    }

    /// Adds the `Reduce` and `Update` that are missing.
    fn add_updates(&self, device: usize, list: &mut Vec<Action>) {
        for stage in self.stages_of(device) {
            let has = |list: &[Action], kind| list.iter().any(|a| a.stage == stage && a.kind == kind);
            if !has(list, Kind::Reduce) && !has(list, Kind::Update) {
                let ends =
                    |a: &Action| a.stage == stage && matches!(a.kind, Kind::Backward | Kind::BackwardWeight);
                let mut at = list.iter().rposition(ends).map_or(list.len(), |i| i + 1);
                // A reduction takes long; what others wait for goes first.
                while list.get(at).is_some_and(|a| a.sends().is_some()) {
                    at += 1;
                }
                list.insert(at, Action::new(Kind::Reduce, stage, 0));
            }
            if !has(list, Kind::Update) {
                list.push(Action::new(Kind::Update, stage, 0));
            }
        }
    }

    /// The same work on other devices: `devices[s]` is the device of stage `s`, and one device may have
    /// several stages. The lists of stages that meet on one device are merged in the order in which
    /// they would start if each stage had its own, backward passes first.
    ///
    /// # Errors
    /// `Argument` for a wrong number of stages, a gap in the numbers of devices, or lists with messages; what
    /// [`Schedule::check`] says of this schedule.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Wiring, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let two = schedule::one_f_one_b(4, 8)?.placed(&[0, 0, 1, 1])?;
    /// assert_eq!(two.lists().len(), 2);
    /// two.check(&Wiring::edges(1))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn placed(&self, devices: &[usize]) -> Result<Schedule> {
        let op = "Schedule::placed";
        if devices.len() != self.stages() {
            bail!(Argument, op, "{} devices are named for {} stages", devices.len(), self.stages());
        }
        if self.is_lowered() {
            bail!(Argument, op, "the lists hold sends and receives; place the stages before lowering");
        }
        let run = self.simulate(&Costs::ticks(self.stages()))?;
        let mut timed: Vec<(u64, bool, usize, Action)> = Vec::new();
        for span in run.spans.iter().filter(|s| s.action.is_compute()) {
            // Times are whole ticks here, so ordering by them is exact.
            let start = span.start as u64;
            timed.push((start, span.action.kind == Kind::Forward, span.action.stage, span.action));
        }
        timed.sort();
        let count = devices.iter().max().map_or(0, |d| d + 1);
        let mut lists = vec![Vec::new(); count];
        for (.., action) in timed {
            lists[devices[action.stage]].push(action);
        }
        let placed = Schedule::new(self.name(), self.micro_batches, devices.to_vec(), lists)?;
        placed.with_edges(self.edges.clone())
    }

    /// The stages that `stage` waits for in the forward pass or in the backward pass, with the edges.
    pub(super) fn needs(&self, stage: usize, forward: bool) -> impl Iterator<Item = (usize, &Edge)> {
        self.edges.iter().filter_map(move |e| match forward {
            true if e.to == stage => Some((e.from, e)),
            false if e.from == stage && e.gradient => Some((e.to, e)),
            _ => None,
        })
    }
}
