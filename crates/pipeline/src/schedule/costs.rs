//! What a simulation needs to know: times and bytes of stages and links.

use std::collections::BTreeMap;

use super::Wiring;

/// Times (seconds, or any other unit) and memory of one stage for one micro-batch.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct StageCost {
    /// The forward pass (F).
    pub forward: f64,
    /// The whole backward pass (B).
    pub backward: f64,
    /// The gradients of the inputs (I).
    pub input: f64,
    /// The gradients of the parameters (W).
    pub weight: f64,
    /// The reduction of gradients, once a step.
    pub reduce: f64,
    /// The optimizer's step, once a step.
    pub update: f64,
    /// Bytes that stay: weights, gradients, optimizer state.
    pub resident: u64,
    /// Bytes that F keeps for B or I.
    pub stash: u64,
    /// Bytes of it that W still needs after I.
    pub kept: u64,
    /// Bytes that B or I computes again before it works, and that go with it: none where F keeps them.
    pub again: u64,
    /// Bytes that one action needs while it runs.
    pub workspace: u64,
}

impl StageCost {
    /// A stage with these times, where B takes as long as I and W, and a stash of one byte a micro-batch.
    pub fn new(forward: f64, input: f64, weight: f64) -> Self {
        Self {
            forward,
            backward: input + weight,
            input,
            weight,
            reduce: 0.0,
            update: 0.0,
            resident: 0,
            stash: 1,
            kept: 1,
            again: 0,
            workspace: 0,
        }
    }

    /// The same stage when it runs its forward pass again before the backward pass: it stashes its inputs
    /// (`inputs` bytes) only, and needs its whole stash once while it works.
    #[must_use]
    pub fn recomputed(mut self, inputs: u64) -> Self {
        self.backward += self.forward;
        self.input += self.forward;
        self.again = self.stash;
        self.stash = inputs;
        self
    }
}

/// The way between two devices.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Link {
    /// Time from the end of sending to the arrival.
    pub latency: f64,
    /// Bytes a unit of time.
    pub bandwidth: f64,
}

impl Link {
    /// A handover that takes no time.
    pub const FREE: Link = Link { latency: 0.0, bandwidth: f64::INFINITY };

    /// A link with this latency and bandwidth.
    pub const fn new(latency: f64, bandwidth: f64) -> Self {
        Self { latency, bandwidth }
    }

    /// The time that `bytes` need.
    pub fn time(self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bandwidth
    }
}

/// The links of all pairs of devices.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Link, Links};
/// let links = Links::all(Link::new(0.0, 1e9)).with(1, 2, Link::new(1e-3, 2e9));
/// assert_eq!(links.get(1, 2).time(2_000_000), 2e-3);
/// assert_eq!(links.get(2, 1).bandwidth, 1e9);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    every: Link,
    special: BTreeMap<(usize, usize), Link>,
}

impl Links {
    /// Every pair has this link.
    pub fn all(link: Link) -> Self {
        Self { every: link, special: BTreeMap::new() }
    }

    /// Another link in the direction from device `from` to device `to`.
    #[must_use]
    pub fn with(mut self, from: usize, to: usize, link: Link) -> Self {
        self.special.insert((from, to), link);
        self
    }

    /// The link from device `from` to device `to`.
    pub fn get(&self, from: usize, to: usize) -> Link {
        self.special.get(&(from, to)).copied().unwrap_or(self.every)
    }

    /// The link of every pair that has none of its own.
    pub fn every(&self) -> Link {
        self.every
    }

    /// The pairs that have a link of their own.
    pub fn special(&self) -> impl Iterator<Item = ((usize, usize), Link)> {
        self.special.iter().map(|(&pair, &link)| (pair, link))
    }

    /// Whether all pairs have the same link.
    pub fn is_uniform(&self) -> bool {
        self.special.values().all(|&l| l == self.every)
    }

    /// The links when device `devices[i]` is called `i`.
    #[must_use]
    pub fn renamed(&self, devices: &[usize]) -> Links {
        let mut links = Links::all(self.every);
        for (i, &from) in devices.iter().enumerate() {
            for (j, &to) in devices.iter().enumerate() {
                if let Some(&link) = self.special.get(&(from, to)) {
                    links = links.with(i, j, link);
                }
            }
        }
        links
    }
}

/// Everything that [`Schedule::simulate`](super::Schedule::simulate) needs to know.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Costs, Link, Links, schedule};
/// # fn main() -> wgrad_graph::Result<()> {
/// let mut costs = Costs::ticks(4);
/// costs.links = Links::all(Link::new(1.0, f64::INFINITY));
/// assert_eq!(schedule::one_f_one_b(4, 8)?.simulate(&costs)?.makespan, 49.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// One entry for each stage.
    pub stages: Vec<StageCost>,
    /// The links between devices.
    pub links: Links,
    /// Bytes of one message over an edge (stages `from`, `to`), forward and back alike; 0 where it is not
    /// named.
    pub bytes: BTreeMap<(usize, usize), u64>,
    /// The size of each micro-batch relative to the one that was measured; empty when they are equal. Times
    /// and messages grow with it; memory is laid out for the largest.
    pub sizes: Vec<f64>,
    /// The rings of slots.
    pub wiring: Wiring,
}

impl Costs {
    /// The costs of `stages` equal stages in ticks: F, I and W take one, B two; handovers are free.
    pub fn ticks(stages: usize) -> Self {
        Self::equal(stages, StageCost::new(1.0, 1.0, 1.0))
    }

    /// The costs of `stages` equal stages; handovers are free.
    pub fn equal(stages: usize, cost: StageCost) -> Self {
        Self::new(vec![cost; stages])
    }

    /// The costs of these stages; handovers are free.
    pub fn new(stages: Vec<StageCost>) -> Self {
        Self {
            stages,
            links: Links::all(Link::FREE),
            bytes: BTreeMap::new(),
            sizes: Vec::new(),
            wiring: Wiring::unlimited(),
        }
    }

    /// The relative size of a micro-batch.
    pub(super) fn size(&self, micro_batch: usize) -> f64 {
        self.sizes.get(micro_batch).copied().unwrap_or(1.0)
    }

    /// The largest relative size, by which memory is laid out.
    pub(super) fn largest(&self) -> f64 {
        if self.sizes.is_empty() { 1.0 } else { self.sizes.iter().copied().fold(0.0, f64::max) }
    }
}
