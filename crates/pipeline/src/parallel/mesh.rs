//! Devices on named axes.

use std::fmt;
use std::sync::Arc;

use wgrad_autograd::Context;
use wgrad_graph::{Result, bail};

use super::{Shard, split};

/// The axis of a pipeline's stages.
const STAGE: &str = "stage";
/// The axis of replicas, which share the batch.
const REPLICA: &str = "replica";
/// The axis of shards, which share the layers.
const SHARD: &str = "shard";

/// Contexts on named axes, `stage`, `replica` and `shard` in any order; an axis that is not there has one place.
/// The last axis runs fastest.
///
/// # Example
/// ```
/// use wgrad::pipeline::Mesh;
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let contexts = (0..4).map(|_| Context::new(&Device::cpu())).collect::<wgrad::Result<Vec<_>>>()?;
/// let mesh = Mesh::new([("stage", 2), ("replica", 2)], &contexts)?;
/// assert_eq!(mesh.groups("replica"), [[0, 1], [2, 3]]);     // the replicas of each stage
/// assert_eq!(mesh.groups("stage"), [[0, 2], [1, 3]]);       // the stages of each replica
/// assert_eq!(mesh.coordinates(2), [("stage", 1), ("replica", 0)]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
    contexts: Vec<Context>,
    /// Of replicas and shards.
    weights: [Arc<[f64]>; 2],
}

impl Mesh {
    /// The mesh of these axes, each with its name and size.
    ///
    /// # Errors
    /// `Argument` for an unknown name or one that comes twice, a size of 0, a context that comes twice, or another
    /// number of contexts than the product of the sizes.
    pub fn new<'a>(axes: impl IntoIterator<Item = (&'a str, usize)>, contexts: &[Context]) -> Result<Self> {
        let op = "Mesh::new";
        let axes: Vec<(String, usize)> = axes.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        for (i, (name, size)) in axes.iter().enumerate() {
            if ![STAGE, REPLICA, SHARD].contains(&name.as_str()) {
                bail!(Argument, op, "axis `{name}`: axes are `{STAGE}`, `{REPLICA}` and `{SHARD}`");
            }
            if *size == 0 || axes[..i].iter().any(|(n, _)| n == name) {
                bail!(Argument, op, "axis `{name}` of {size} places; one place or more, once, are wanted");
            }
        }
        let places: usize = axes.iter().map(|(_, n)| n).product();
        if places != contexts.len() {
            bail!(Argument, op, "{axes:?} have {places} places; there are {} contexts", contexts.len());
        }
        if let Some(i) = (0..contexts.len()).find(|i| contexts[..*i].contains(&contexts[*i])) {
            bail!(Argument, op, "context {i} comes twice; a device may, with a context for each place");
        }
        let size = |axis| axes.iter().find(|(n, _)| n == axis).map_or(1, |(_, n)| *n);
        let even = |axis| vec![1.0; size(axis)].into();
        let weights = [even(REPLICA), even(SHARD)];
        Ok(Self { axes, contexts: contexts.to_vec(), weights })
    }

    /// The same, where the places of an axis take shares in proportion to these weights: `replica` of the batch's
    /// rows, `shard` of the layers. Equal shares otherwise.
    ///
    /// # Errors
    /// `Argument` for another axis, another number of weights than places, or a weight that is not positive.
    pub fn weighted(mut self, axis: &str, weights: &[f64]) -> Result<Self> {
        let op = "Mesh::weighted";
        let Some(which) = [REPLICA, SHARD].iter().position(|a| *a == axis) else {
            bail!(Argument, op, "axis `{axis}`: `{REPLICA}` and `{SHARD}` have weights");
        };
        if weights.len() != self.size(axis) || weights.iter().any(|w| !(*w > 0.0 && w.is_finite())) {
            bail!(
                Argument,
                op,
                "weights {weights:?} for {} places; one positive number each",
                self.size(axis)
            );
        }
        self.weights[which] = weights.into();
        Ok(self)
    }

    /// The places of an axis.
    pub fn size(&self, axis: &str) -> usize {
        self.axes.iter().find(|(name, _)| name == axis).map_or(1, |(_, n)| *n)
    }

    /// The contexts, the last axis fastest.
    pub fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// Where a context is on every axis.
    pub fn coordinates(&self, rank: usize) -> Vec<(&str, usize)> {
        let mut after = self.contexts.len();
        let at = |(_, size): &(String, usize)| {
            after /= size;
            (rank / after) % size
        };
        let places: Vec<usize> = self.axes.iter().map(at).collect();
        self.axes.iter().map(|(name, _)| name.as_str()).zip(places).collect()
    }

    fn place(&self, rank: usize, axis: &str) -> usize {
        self.coordinates(rank).iter().find(|(name, _)| *name == axis).map_or(0, |(_, at)| *at)
    }

    /// The groups of contexts that differ in this axis alone, each in the order of the axis: who works together
    /// along it.
    pub fn groups(&self, axis: &str) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for rank in 0..self.contexts.len() {
            let others = |rank| {
                let mut at = self.coordinates(rank);
                at.retain(|(name, _)| *name != axis);
                at
            };
            match groups.iter_mut().find(|g| others(g[0]) == others(rank)) {
                Some(group) => group.push(rank),
                None => groups.push(vec![rank]),
            }
        }
        groups
    }

    /// The context at a stage, replica and shard.
    pub fn context(&self, stage: usize, replica: usize, shard: usize) -> Option<&Context> {
        let at = |rank: &usize| {
            [(STAGE, stage), (REPLICA, replica), (SHARD, shard)]
                .iter()
                .all(|(a, i)| self.place(*rank, a) == *i)
        };
        (0..self.contexts.len()).find(at).map(|rank| &self.contexts[rank])
    }

    /// The rows of each replica.
    pub(super) fn rows(&self, rows: usize) -> Result<Vec<usize>> {
        Ok(split(rows, &self.weights[0], "rows")?.into_iter().map(|r| r.len()).collect())
    }

    /// All lines, replica by replica.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for replica in 0..self.size(REPLICA) {
            for shard in 0..self.size(SHARD) {
                let context = |s| self.context(s, replica, shard).cloned();
                let contexts = (0..self.size(STAGE)).filter_map(context).collect();
                let shard = Shard::new(shard, Arc::clone(&self.weights[1]));
                lines.push(Line { contexts, replica, shard });
            }
        }
        lines
    }

    pub(super) fn replicas(&self) -> usize {
        self.size(REPLICA)
    }

    pub(super) fn shards(&self) -> usize {
        self.size(SHARD)
    }

    pub(super) fn stages(&self) -> usize {
        self.size(STAGE)
    }
}

/// One line per place: its axes, device and group.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, context) in self.contexts.iter().enumerate() {
            let at: Vec<String> = self.coordinates(rank).iter().map(|(n, i)| format!("{n} {i}")).collect();
            writeln!(f, "{rank}: {} on {}", at.join(", "), context.caps().name)?;
        }
        Ok(())
    }
}

/// The stages of one replica and one shard: what a pipeline alone would be.
#[derive(Clone, Debug)]
pub struct Line {
    contexts: Vec<Context>,
    replica: usize,
    shard: Shard,
}

impl Line {
    /// The contexts of its stages.
    pub fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// The number of its replica.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// Its place among the devices that share layers, for layers such as [`ShardedMlp`](super::ShardedMlp).
    pub fn shard(&self) -> &Shard {
        &self.shard
    }
}
