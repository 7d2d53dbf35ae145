//! Partitions for interleaved schedules, where a device has several stages and the sum of them counts.

use super::search::{Place, Search};
use super::{Partition, Problem, Recompute};
use crate::Schedule;

/// How many partitions are tried one by one before a search by steps takes over.
const EXHAUSTIVE: u64 = 20_000;

/// The worst device, the worst stage, bytes that cross, the sum of squares: less is better, in this order.
#[derive(Copy, Clone, Debug)]
struct Score([f64; 4]);

impl Score {
    fn better(&self, other: &Score) -> bool {
        for (a, b) in self.0.iter().zip(other.0) {
            if (a - b).abs() > 1e-9 * a.abs().max(b.abs()) {
                return *a < b;
            }
        }
        false
    }
}

struct Chunks<'a> {
    problem: &'a Problem,
    search: Search<'a>,
    schedule: Schedule,
    devices: usize,
}

impl Problem {
    /// The best partition into the chunks of an interleaved schedule that is found.
    pub(super) fn best_chunks(&self) -> Option<Partition> {
        let devices = self.devices.len();
        let schedule = self.family.make(devices, self.micro_batches).ok()?;
        let stages = devices * self.family.chunks();
        if self.layers.len() < stages {
            return None;
        }
        let chunks = Chunks { problem: self, search: Search::new(self, devices), schedule, devices };
        let (_, best) = if choices(self.layers.len() - 1, stages - 1) <= EXHAUSTIVE {
            chunks.all(stages)?
        } else {
            chunks.steps(stages)?
        };
        Some(best)
    }
}

/// `n` over `k`, or more than any limit.
fn choices(n: usize, k: usize) -> u64 {
    let mut all = 1_u64;
    for i in 0..k {
        all = all.saturating_mul((n - i) as u64) / (i as u64 + 1);
        if all > EXHAUSTIVE * 64 {
            return u64::MAX;
        }
    }
    all
}

impl Chunks<'_> {
    /// The partition with these cuts if it fits, with its score.
    fn judge(&self, cuts: &[usize]) -> Option<(Score, Partition)> {
        let problem = self.problem;
        let mut partition = Partition::new(problem.layers.len(), cuts).ok()?;
        let stages = partition.stages();
        partition.devices = (0..stages.len()).map(|s| s % self.devices).collect();
        partition.recompute = vec![problem.recompute == Recompute::Always; stages.len()];
        let mut memory = problem.chunk_memory(&partition, &self.schedule).ok()?;
        let over = |memory: &[u64], d: usize| memory[d] > problem.devices[d].memory;
        if problem.recompute == Recompute::Choose {
            for stage in 0..stages.len() {
                partition.recompute[stage] = over(&memory, stage % self.devices);
            }
            memory = problem.chunk_memory(&partition, &self.schedule).ok()?;
        }
        let layers =
            |d: usize| stages.iter().skip(d).step_by(self.devices).map(ExactSizeIterator::len).sum::<usize>();
        if (0..self.devices).any(|d| over(&memory, d) || layers(d) > problem.most_layers) {
            return None;
        }
        let mut sums = vec![0.0; self.devices];
        let (mut worst, mut squares) = (0.0_f64, 0.0);
        for (stage, layers) in stages.iter().enumerate() {
            let device = stage % self.devices;
            let place = Place {
                position: device,
                count: self.devices,
                device,
                before: stage.checked_sub(1).map(|s| s % self.devices),
                after: (stage + 1 < stages.len()).then_some((stage + 1) % self.devices),
            };
            let cost = self.search.stage(place, layers.start, layers.end, partition.recompute[stage]).cost;
            sums[device] += cost;
            worst = worst.max(cost);
            squares += cost * cost;
        }
        let bytes: u64 = cuts.iter().map(|&c| problem.boundary(c)).sum();
        let worst_device = sums.into_iter().fold(0.0, f64::max);
        Some((Score([worst_device, worst, bytes as f64, squares]), partition))
    }

    /// Every partition, one by one.
    fn all(&self, stages: usize) -> Option<(Score, Partition)> {
        let layers = self.problem.layers.len();
        let mut cuts: Vec<usize> = (1..stages).collect();
        let mut best: Option<(Score, Partition)> = None;
        loop {
            if let Some(found) = self.judge(&cuts)
                && best.as_ref().is_none_or(|b| found.0.better(&b.0))
            {
                best = Some(found);
            }
            // The next cuts in ascending order: the last one that can move does, those behind it follow.
            let room = |i: usize| cuts[i] < layers - (cuts.len() - i);
            let Some(i) = (0..cuts.len()).rev().find(|&i| room(i)) else { return best };
            cuts[i] += 1;
            for k in i + 1..cuts.len() {
                cuts[k] = cuts[k - 1] + 1;
            }
        }
    }

    /// From several starts, single cuts and pairs of neighbours are moved while that helps.
    fn steps(&self, stages: usize) -> Option<(Score, Partition)> {
        let layers = self.problem.layers.len();
        let even: Vec<usize> = (1..stages).map(|s| s * layers / stages).collect();
        let weights: Vec<f64> = (0..layers).map(|l| self.problem.times(0, l).iter().sum()).collect();
        let params: Vec<u64> = self.problem.layers.iter().map(|l| l.params + l.stash).collect();
        let mut starts = vec![even];
        starts.extend(super::by_weight(&weights, stages).ok().map(|p| p.cuts));
        starts.extend(super::by_parameters(&params, stages).ok().map(|p| p.cuts));
        let mut best: Option<(Score, Partition)> = None;
        for start in starts {
            let Some(mut at) = self.judge(&start) else { continue };
            loop {
                let next = self.neighbours(&at.1.cuts).find(|n| n.0.better(&at.0));
                let Some(next) = next else { break };
                at = next;
            }
            if best.as_ref().is_none_or(|b| at.0.better(&b.0)) {
                best = Some(at);
            }
        }
        best
    }

    /// The partitions that differ in one or two cuts, judged as they are asked for.
    fn neighbours<'b>(&'b self, cuts: &'b [usize]) -> impl Iterator<Item = (Score, Partition)> + 'b {
        let steps = [-2_isize, -1, 1, 2];
        let one = (0..cuts.len()).flat_map(move |i| steps.map(|by| [(i, by), (i, 0)]));
        let two = (0..cuts.len()).flat_map(move |i| {
            let others = (i + 1..cuts.len()).flat_map(|k| [(k, -1), (k, 1)]);
            others.flat_map(move |other| steps.map(|by| [(i, by), other]))
        });
        one.chain(two).filter_map(move |changes| {
            let mut moved = cuts.to_vec();
            for (i, by) in changes {
                moved[i] = moved[i].checked_add_signed(by)?;
            }
            self.judge(&moved)
        })
    }
}
