//! The choice of a schedule: simulate all that fit in memory, rank them, say why.

use std::fmt;

use wgrad_graph::{Error, ErrorKind, Result};

use crate::partition::{Partition, Problem};
use crate::schedule::{Channels, Costs, Family, Schedule, Simulation, Wiring};

/// A schedule that fits, with its predicted run.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The schedule.
    pub schedule: Schedule,
    /// The costs that it was simulated with, rings included.
    pub costs: Costs,
    /// Its predicted run.
    pub run: Simulation,
    /// The partition that it was simulated for, if one was searched for.
    pub partition: Option<Partition>,
}

/// Schedules from the fastest to the slowest, and those that cannot run.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Those that fit, fastest first; of equally fast ones the one that needs the least memory.
    pub fitting: Vec<Ranked>,
    /// Those that do not, and why.
    pub rejected: Vec<(String, String)>,
}

impl Ranking {
    /// The fastest schedule that fits.
    ///
    /// # Errors
    /// `OutOfMemory` with the reasons when none does.
    pub fn best(&self) -> Result<&Ranked> {
        self.fitting.first().ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, "pipeline::auto", format!("no schedule fits:\n{self}"))
        })
    }

    fn sort(&mut self) {
        let memory = |r: &Ranked| r.run.memory.iter().max().copied().unwrap_or(0);
        self.fitting.sort_by(|a, b| {
            let (x, y) = (a.run.makespan, b.run.makespan);
            // Sums of the same times in another order are no difference.
            let equal = (x - y).abs() <= 1e-9 * x.max(y);
            let time = if equal { std::cmp::Ordering::Equal } else { x.total_cmp(&y) };
            time.then(memory(a).cmp(&memory(b)))
        });
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.fitting.iter().map(|r| r.run.name.len());
        let width = names.chain(self.rejected.iter().map(|r| r.0.len())).max().unwrap_or(0).max(8);
        writeln!(f, "rank  {:<width$}  {:>12}  bubble  bytes a device", "schedule", "time")?;
        for (rank, Ranked { run, .. }) in self.fitting.iter().enumerate() {
            let memory: Vec<String> = run.memory.iter().map(ToString::to_string).collect();
            let (name, time, bubble) = (&run.name, run.makespan, 100.0 * run.bubble());
            let rank = rank + 1;
            writeln!(f, "{rank:>4}  {name:<width$}  {time:>12.6}  {bubble:>4.1} %  {}", memory.join(" "))?;
        }
        for (name, why) in &self.rejected {
            writeln!(f, "   -  {name:<width$}  {why}")?;
        }
        Ok(())
    }
}

/// Simulates schedules of a pipeline that is already cut, with its measured costs, and ranks those whose
/// devices have the `memory`.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Costs, Family, rank};
/// # fn main() -> wgrad_graph::Result<()> {
/// let costs = Costs::ticks(4);
/// let candidates = Family::LINES.iter().map(|f| Ok((f.make(4, 8)?, costs.clone())));
/// let ranking = rank(candidates.collect::<wgrad_graph::Result<Vec<_>>>()?, &[5; 4]);
/// assert_eq!(ranking.best()?.schedule.name(), "zb-h1");
/// assert_eq!(ranking.rejected[0].0, "gpipe");
/// # Ok(())
/// # }
/// ```
pub fn rank(candidates: Vec<(Schedule, Costs)>, memory: &[u64]) -> Ranking {
    let mut ranking = Ranking { fitting: Vec::new(), rejected: Vec::new() };
    for (schedule, costs) in candidates {
        let name = schedule.name().to_owned();
        match fit(schedule, costs, memory, None) {
            Ok(ranked) => ranking.fitting.push(ranked),
            Err(error) => ranking.rejected.push((name, error.to_string())),
        }
    }
    ranking.sort();
    ranking
}

fn fit(schedule: Schedule, costs: Costs, memory: &[u64], partition: Option<Partition>) -> Result<Ranked> {
    let run = schedule.simulate(&costs)?;
    for (device, &needs) in run.memory.iter().enumerate() {
        let has = memory.get(device).copied().unwrap_or(u64::MAX);
        if needs > has {
            let detail = format!("device {device} needs {needs} bytes and has {has}");
            return Err(Error::new(ErrorKind::OutOfMemory, "pipeline::rank", detail));
        }
    }
    Ok(Ranked { schedule, costs, run, partition })
}

/// Cuts the model for every family of schedules within its memory, simulates, and ranks.
///
/// Each family has its own best partition, since it has its own memory. Rings have the slots that the problem
/// names, or more where a schedule needs more to run at all.
///
/// # Errors
/// `Argument` as [`Problem::solve`]. A family that does not fit is among the rejected ones.
///
/// # Example
/// ```
/// use wgrad_pipeline::{DeviceSpec, Family, Layer, Problem, auto};
/// # fn main() -> wgrad_graph::Result<()> {
/// let layers = (0..8).map(|i| Layer::new(format!("block {i}"), 3.0)).collect();
/// let devices = (0..4).map(|i| DeviceSpec::new(format!("gpu {i}"), 1.0)).collect();
/// let families = [Family::GPipe, Family::OneFOneB, Family::ZbH1, Family::Interleaved { chunks: 2 }];
/// let ranking = auto(&Problem::new(layers, devices), &families)?;
/// assert_eq!(ranking.best()?.schedule.name(), "zb-h1");
/// println!("{ranking}");
/// # Ok(())
/// # }
/// ```
pub fn auto(problem: &Problem, families: &[Family]) -> Result<Ranking> {
    let mut ranking = Ranking { fitting: Vec::new(), rejected: Vec::new() };
    for &family in families {
        match choose(&Problem { family, ..problem.clone() }) {
            Ok(ranked) => ranking.fitting.push(ranked),
            Err(error) => ranking.rejected.push((family.to_string(), error.to_string())),
        }
    }
    ranking.sort();
    Ok(ranking)
}

fn choose(problem: &Problem) -> Result<Ranked> {
    let partition = problem.solve()?;
    let positions = partition.stages().len() / problem.family.chunks();
    let schedule = problem.family.make(positions, problem.micro_batches)?;
    let mut costs = problem.costs(&partition)?;
    let fewest = schedule.fewest_slots(Channels::Edges).unwrap_or(usize::MAX);
    costs.wiring = Wiring::edges(problem.slots.max(fewest));
    let memory: Vec<u64> =
        partition.devices()[..positions].iter().map(|&d| problem.devices[d].memory).collect();
    fit(schedule, costs, &memory, Some(partition))
}
