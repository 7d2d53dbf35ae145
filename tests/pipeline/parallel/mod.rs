//! Meshes: replicas and shards, alone and with stages, against the model on one device.

mod faults;
mod replicas;
mod shards;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use wgrad::nn::{Adam, AdamConfig, Optimizer, ParamSet, Sgd, SgdConfig};
use wgrad::pipeline::{Collective, Line, Mesh, MeshOptions, MeshTrainer, Model, Schedule, Stages, Team};
use wgrad::{Context, Result, Shape};

use super::{Numbers, STEPS, cut, data, loss, plain};

pub(super) fn tests() -> Vec<crate::Test> {
    [faults::tests(), replicas::tests(), shards::tests()].into_iter().flatten().collect()
}

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() })
}

fn adam(params: ParamSet) -> Result<Adam> {
    Adam::new(params, AdamConfig { lr: 0.02, ..Default::default() })
}

/// The trainer of a model that has no split layers.
fn trainer<O: Optimizer + Send + 'static>(
    model: &Model,
    mesh: &Mesh,
    optimizer: impl FnMut(ParamSet) -> Result<O>,
    options: MeshOptions,
) -> Result<MeshTrainer> {
    MeshTrainer::new(mesh, |line: &Line| cut(model, line.contexts()), loss(), optimizer, options)
}

/// Trains over a mesh for a few steps, the batch cut into micro-batches of these sizes.
fn in_mesh(mut trainer: MeshTrainer, schedule: &Schedule, sizes: &[usize]) -> Result<Numbers> {
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let batch = data(sizes.iter().sum(), step as f32).sizes(sizes);
        let done = trainer.step(schedule, &batch)?;
        assert!(done.applied && done.loss.is_finite());
        for report in &done.lines {
            assert_eq!(report.handovers.len(), report.schedule.messages().len());
        }
        same_everywhere(&trainer);
        numbers.losses.push(done.loss);
        numbers.gradients.push(plain(trainer.gradients()?));
    }
    numbers.weights = plain(trainer.weights()?);
    Ok(numbers)
}

/// The weights of all replicas have the same bits, and what all shards have whole is the same on all.
fn same_everywhere(trainer: &MeshTrainer) {
    let size = |axis| trainer.mesh().size(axis);
    let of = |r, t| -> &Stages { trainer.stages(r, t).unwrap() };
    for shard in 0..size("shard") {
        let first = of(0, shard).weights().unwrap();
        for replica in 1..size("replica") {
            assert_eq!(of(replica, shard).weights().unwrap(), first, "replica {replica}, shard {shard}");
        }
        for ((name, own), (_, other)) in first.iter().zip(of(0, 0).weights().unwrap()) {
            // A part of a split parameter has its own values.
            let whole = trainer.weights().unwrap().iter().any(|(n, v)| n == name && v.shape() == own.shape());
            assert!(!whole || *own == other, "`{name}` of shard {shard}");
        }
    }
}

fn mesh(axes: &[(&str, usize)], open: impl Fn() -> Context) -> Mesh {
    let places = axes.iter().map(|(_, n)| n).product();
    Mesh::new(axes.iter().copied(), &super::fresh(places, open)).unwrap()
}

/// Calls of all ranks of all groups.
#[derive(Default)]
struct Counts {
    reduced: AtomicUsize,
    gathered: AtomicUsize,
    broadcast: AtomicUsize,
}

impl Counts {
    fn take(&self) -> [usize; 3] {
        [&self.reduced, &self.gathered, &self.broadcast].map(|n| n.swap(0, Ordering::SeqCst))
    }
}

/// A team whose calls along an axis are counted.
struct Counted {
    team: Team,
    counts: Arc<Counts>,
}

impl Collective for Counted {
    fn rank(&self) -> usize {
        self.team.rank()
    }

    fn size(&self) -> usize {
        self.team.size()
    }

    fn all_reduce(&self, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        self.counts.reduced.fetch_add(1, Ordering::SeqCst);
        self.team.all_reduce(values, shape, deadline)
    }

    fn all_gather(&self, own: &[f32], shape: Shape, deadline: Instant) -> Result<Vec<(Shape, Vec<f32>)>> {
        self.counts.gathered.fetch_add(1, Ordering::SeqCst);
        self.team.all_gather(own, shape, deadline)
    }

    fn broadcast(&self, root: usize, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        self.counts.broadcast.fetch_add(1, Ordering::SeqCst);
        self.team.broadcast(root, values, shape, deadline)
    }

    fn barrier(&self, deadline: Instant) -> Result<()> {
        self.team.barrier(deadline)
    }

    fn close(&self) {
        self.team.close();
    }
}

/// Options whose collectives along `axis` are counted.
fn counted(axis: &'static str) -> (Arc<Counts>, MeshOptions) {
    let counts = Arc::new(Counts::default());
    let own = Arc::clone(&counts);
    let make = move |name: &str, size: usize| -> Vec<Arc<dyn Collective>> {
        let counts = if name == axis { Arc::clone(&own) } else { Arc::default() };
        let end = |team| Arc::new(Counted { team, counts: Arc::clone(&counts) }) as Arc<dyn Collective>;
        Team::of(size).into_iter().map(end).collect()
    };
    (counts, MeshOptions { collective: Some(Arc::new(make)), ..Default::default() })
}
