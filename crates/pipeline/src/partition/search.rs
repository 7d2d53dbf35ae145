//! The optimal partition: a dynamic programme over (devices used, layers done).
//!
//! It runs twice. First it finds the least possible cost of the worst stage. Then, among the partitions
//! that reach it, it finds the one with the fewest recomputing stages, then the fewest bytes that cross,
//! then the least sum of squared costs, then the first devices and earliest cuts. The worst cost combines
//! by maximum and the others by sums, so one programme could not keep both; two can.

use std::collections::HashMap;

use wgrad_graph::{Error, ErrorKind, Result};

use super::{Order, Partition, Problem, Recompute, Transfer, table};
use crate::schedule::Family;

/// Where a stage stands: its position among `count`, its device and its neighbours'.
#[derive(Copy, Clone)]
pub(super) struct Place {
    pub(super) position: usize,
    pub(super) count: usize,
    pub(super) device: usize,
    pub(super) before: Option<usize>,
    pub(super) after: Option<usize>,
}

/// A stage judged.
#[derive(Copy, Clone)]
pub(super) struct Stage {
    pub(super) time: f64,
    pub(super) cost: f64,
    pub(super) memory: u64,
    pub(super) recompute: bool,
}

/// Sums over the first layers on one device.
struct Sums {
    forward: Vec<f64>,
    all: Vec<f64>,
    params: Vec<u64>,
    stash: Vec<u64>,
}

fn sums<T: Copy + std::ops::Add<Output = T>>(zero: T, values: impl Iterator<Item = T>) -> Vec<T> {
    let mut total = zero;
    let mut all = vec![zero];
    for value in values {
        total = total + value;
        all.push(total);
    }
    all
}

/// What a run of the programme minimises.
#[derive(Copy, Clone)]
enum Goal {
    /// The worst stage's cost.
    Worst,
    /// The ties among partitions with this worst cost.
    Ties(f64),
    /// The worst excess of memory: where a partition that does not fit is tightest.
    Excess,
}

#[derive(Copy, Clone, Default)]
struct Value {
    worst: f64,
    recomputed: usize,
    bytes: u64,
    squares: f64,
}

#[derive(Copy, Clone)]
struct Best {
    value: Value,
    until: usize,
    after: Option<usize>,
    recompute: bool,
}

type State = (u64, Option<usize>, usize, usize);

pub(super) struct Search<'a> {
    problem: &'a Problem,
    count: usize,
    sums: Vec<Sums>,
    free_order: bool,
    /// Whether the device before a stage matters.
    directed: bool,
}

impl<'a> Search<'a> {
    /// A search for partitions into `count` stages.
    pub(super) fn new(problem: &'a Problem, count: usize) -> Self {
        let layers = || 0..problem.layers.len();
        let of_device = |device: usize| Sums {
            forward: sums(0.0, layers().map(|l| problem.times(device, l)[0])),
            all: sums(0.0, layers().map(|l| problem.times(device, l).iter().sum())),
            params: sums(0, problem.layers.iter().map(|l| l.params)),
            stash: sums(0, problem.layers.iter().map(|l| l.stash)),
        };
        Self {
            problem,
            count,
            sums: (0..problem.devices.len()).map(of_device).collect(),
            free_order: problem.order == Order::Free && problem.devices.len() <= 8,
            directed: problem.transfer != Transfer::Free && !problem.links.is_uniform(),
        }
    }

    /// Cost and memory of layers `start..end` as a stage, computing the forward pass again or not.
    pub(super) fn stage(&self, place: Place, start: usize, end: usize, recompute: bool) -> Stage {
        let Place { position, count, device, before, after } = place;
        let problem = self.problem;
        let sums = &self.sums[device];
        let mut time = sums.all[end] - sums.all[start];
        if problem.family == Family::Forward {
            time = sums.forward[end] - sums.forward[start];
        } else if recompute && after.is_some() {
            // Nobody waits for the output of the last stage, which so computes it once, in its backward pass.
            time += sums.forward[end] - sums.forward[start];
        }
        let crossing = |at, from: Option<usize>, to: Option<usize>| match (from, to) {
            (Some(from), Some(to)) => problem.crossing(at, from, to),
            _ => 0.0,
        };
        let receive = crossing(start, before, Some(device));
        let send = crossing(end, Some(device), after);
        let cost = problem.with_transfers(time, receive, send);
        let stash = sums.stash[end] - sums.stash[start];
        let m = problem.micro_batches;
        let held = problem.family.stash(count, m, position) as u64;
        let held = match (recompute, problem.family) {
            (false, _) => held * stash,
            // What W needs is there in full once I has run, for up to `position` micro-batches and one more.
            (true, Family::ZbH1) => {
                let waiting = m.min(count - position) as u64;
                waiting * problem.boundary(start) + (m.min(position + 1) as u64 + 1) * stash
            }
            (true, _) => held * problem.boundary(start) + stash,
        };
        let slots = problem.slots.min(m) as u64;
        let mut rings = 0;
        if before.is_some() {
            rings += slots * problem.boundary(start);
        }
        if after.is_some() && problem.family != Family::Forward {
            rings += slots * problem.boundary(end);
        }
        let params = (sums.params[end] - sums.params[start]) * problem.copies;
        let memory = params + held + rings + problem.devices[device].workspace;
        Stage { time, cost, memory, recompute }
    }

    /// The stage as the problem wants it, if it fits.
    fn fitting(&self, place: Place, start: usize, end: usize) -> Option<Stage> {
        if end - start > self.problem.most_layers {
            return None;
        }
        let fits = |stage: &Stage| stage.memory <= self.problem.devices[place.device].memory;
        let stage = |recompute| Some(self.stage(place, start, end, recompute)).filter(fits);
        match self.problem.recompute {
            Recompute::Never => stage(false),
            Recompute::Always => stage(true),
            Recompute::Choose => stage(false).or_else(|| stage(true)),
        }
    }

    /// The stage for a goal.
    fn judged(&self, goal: Goal, place: Place, start: usize, end: usize) -> Option<(Stage, Value)> {
        let stage = match goal {
            Goal::Excess if end - start > self.problem.most_layers => return None,
            Goal::Excess => self.stage(place, start, end, self.problem.recompute != Recompute::Never),
            _ => self.fitting(place, start, end)?,
        };
        let worst = match goal {
            Goal::Excess => stage.memory as f64 - self.problem.devices[place.device].memory as f64,
            _ => stage.cost,
        };
        if let Goal::Ties(bound) = goal
            && stage.cost > bound * (1.0 + 1e-9)
        {
            return None;
        }
        let bytes = if place.after.is_some() { self.problem.boundary(end) } else { 0 };
        let value = Value {
            worst,
            recomputed: usize::from(stage.recompute),
            bytes,
            squares: stage.cost * stage.cost,
        };
        Some((stage, value))
    }

    fn better(goal: Goal, a: &Value, b: &Value) -> bool {
        match goal {
            Goal::Ties(_) => {
                let (first, second) = ((a.recomputed, a.bytes), (b.recomputed, b.bytes));
                first < second || first == second && a.squares < b.squares * (1.0 - 1e-9)
            }
            _ => a.worst < b.worst,
        }
    }

    /// The devices that may follow.
    fn following(&self, used: u64, last: Option<usize>) -> Vec<usize> {
        let devices = 0..self.problem.devices.len();
        if self.free_order {
            return devices.filter(|d| used & (1 << d) == 0).collect();
        }
        let first = last.map_or(0, |d| d + 1);
        let end = if self.problem.spare { devices.end } else { (first + 1).min(devices.end) };
        (first..end).collect()
    }

    /// The best way to put the layers from `state.3` on, the first of them on device `state.2`.
    fn rest(&self, goal: Goal, state: State, memo: &mut HashMap<State, Option<Best>>) -> Option<Best> {
        if let Some(known) = memo.get(&state) {
            return *known;
        }
        let (used, before, device, start) = state;
        let layers = self.problem.layers.len();
        let position = used.count_ones() as usize - 1;
        let mut best: Option<Best> = None;
        let mut offer = |candidate: Best| {
            if best.is_none_or(|b| Self::better(goal, &candidate.value, &b.value)) {
                best = Some(candidate);
            }
        };
        let place = |after| Place { position, count: self.count, device, before, after };
        if position + 1 == self.count {
            if let Some((stage, value)) = self.judged(goal, place(None), start, layers) {
                offer(Best { value, until: layers, after: None, recompute: stage.recompute });
            }
        } else {
            for next in self.following(used, Some(device)) {
                // Every later stage needs a layer.
                for until in start + 1..=(layers + position + 1).saturating_sub(self.count) {
                    let Some((stage, mine)) = self.judged(goal, place(Some(next)), start, until) else {
                        continue;
                    };
                    let from = if self.directed { device } else { next };
                    let Some(rest) = self.rest(goal, (used | 1 << next, Some(from), next, until), memo)
                    else {
                        continue;
                    };
                    let value = Value {
                        worst: mine.worst.max(rest.value.worst),
                        recomputed: mine.recomputed + rest.value.recomputed,
                        bytes: mine.bytes + rest.value.bytes,
                        squares: mine.squares + rest.value.squares,
                    };
                    offer(Best { value, until, after: Some(next), recompute: stage.recompute });
                }
            }
        }
        memo.insert(state, best);
        best
    }

    /// The best partition for a goal, with its value.
    fn run(&self, goal: Goal) -> Option<(Value, Partition)> {
        let mut memo = HashMap::new();
        let mut first: Option<(Best, usize)> = None;
        for device in self.following(0, None) {
            if let Some(best) = self.rest(goal, (1 << device, None, device, 0), &mut memo)
                && first.is_none_or(|(b, _)| Self::better(goal, &best.value, &b.value))
            {
                first = Some((best, device));
            }
        }
        let (best, device) = first?;
        let (mut at, mut state) = (best, (1_u64 << device, None, device, 0));
        let (mut cuts, mut devices, mut recompute) = (Vec::new(), vec![device], vec![at.recompute]);
        while let Some(next) = at.after {
            cuts.push(at.until);
            let from = if self.directed { state.2 } else { next };
            state = (state.0 | 1 << next, Some(from), next, at.until);
            at = memo.get(&state).copied().flatten()?;
            devices.push(next);
            recompute.push(at.recompute);
        }
        Some((best.value, Partition { layers: self.problem.layers.len(), cuts, devices, recompute }))
    }

    /// The partition with the least worst cost and the best ties, with that cost.
    fn optimum(&self) -> Option<(f64, Partition)> {
        let (value, _) = self.run(Goal::Worst)?;
        let (_, partition) = self.run(Goal::Ties(value.worst))?;
        Some((value.worst, partition))
    }
}

impl Problem {
    /// The partition whose slowest stage is as fast as possible, within every device's memory.
    ///
    /// Of several, it is the one with the fewest recomputing stages, then with the fewest bytes that cross,
    /// then with the least sum of squared costs, then the one with the first devices and earliest cuts. For
    /// interleaved schedules the sum of a device's stages counts; there it is the best that a search finds,
    /// exact where there are few partitions.
    ///
    /// # Errors
    /// `OutOfMemory` when no partition fits: with the tightest stage, the bytes it needs and has, and what
    /// would help. `Argument` for fewer layers than stages (unless `spare`), and for numbers out of their
    /// range.
    pub fn solve(&self) -> Result<Partition> {
        self.check()?;
        match self.best() {
            Some(partition) => Ok(partition),
            None => Err(self.no_partition()),
        }
    }

    fn best(&self) -> Option<Partition> {
        if self.family.chunks() > 1 {
            return self.best_chunks();
        }
        let all = self.devices.len();
        let least = if self.spare { 1 } else { all };
        let found = (least..=all.min(self.layers.len())).rev().filter_map(|n| Search::new(self, n).optimum());
        // More devices win a tie: they come first.
        found.reduce(|a, b| if b.0 < a.0 * (1.0 - 1e-9) { b } else { a }).map(|(_, partition)| partition)
    }

    /// The error that says where it is tightest.
    fn no_partition(&self) -> Error {
        let count = self.devices.len().min(self.layers.len());
        let mut detail = String::from("no partition fits");
        if self.family.chunks() == 1
            && let Some((_, partition)) = Search::new(self, count).run(Goal::Excess)
            && let Ok(rows) = self.rows(&partition)
        {
            let over = |row: &table::Row| row.memory as i128 - i128::from(row.available);
            if let Some(row) = rows.iter().max_by_key(|r| over(r)).filter(|r| over(r) > 0) {
                let (needs, has) = (table::bytes(row.memory), table::bytes(row.available));
                detail += &format!(
                    ": at best stage {} (layers {}..{} on {}) needs {needs} and has {has}",
                    row.stage, row.layers.start, row.layers.end, row.device
                );
                let all: u64 = rows.iter().map(|r| r.memory).sum();
                let there = self.devices.iter().fold(0_u64, |sum, d| sum.saturating_add(d.memory));
                detail += &format!("; all stages need {} of {}", table::bytes(all), table::bytes(there));
            }
        }
        let mut helps = Vec::new();
        let tries = [
            ("recomputation", Problem { recompute: Recompute::Choose, ..self.clone() }),
            ("the schedule 1f1b", Problem { family: Family::OneFOneB, ..self.clone() }),
            (
                "the schedule 1f1b and recomputation",
                Problem { family: Family::OneFOneB, recompute: Recompute::Choose, ..self.clone() },
            ),
        ];
        for (what, other) in tries {
            if helps.is_empty() && other != *self && other.best().is_some() {
                helps.push(what);
            }
        }
        let help = helps.first().copied().unwrap_or("smaller micro-batches, more devices or more memory");
        Error::new(ErrorKind::OutOfMemory, "Problem::solve", format!("{detail}. What would help: {help}"))
    }
}
