//! What a partition is judged by: times and bytes of layers, devices and links, and the schedule's memory.

use wgrad_graph::{Result, bail};

use super::Partition;
use crate::schedule::{Costs, Family, Link, Links, StageCost};

/// Times and bytes of one layer for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    /// Its name, for tables and errors.
    pub name: String,
    /// The time of its forward pass on a device of speed 1.
    pub forward: f64,
    /// The time of the gradients of its inputs.
    pub input: f64,
    /// The time of the gradients of its parameters.
    pub weight: f64,
    /// Bytes of its parameters.
    pub params: u64,
    /// Bytes that its forward pass keeps for the backward pass.
    pub stash: u64,
    /// Bytes of its output: what crosses if a cut follows.
    pub output: u64,
}

impl Layer {
    /// A layer that takes `cost` in all: a third each for F, I and W.
    pub fn new(name: impl Into<String>, cost: f64) -> Self {
        let third = cost / 3.0;
        Self {
            name: name.into(),
            forward: third,
            input: third,
            weight: cost - 2.0 * third,
            ..Self::default()
        }
    }
}

/// A device that a stage may be put on.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Its name, for tables and errors.
    pub name: String,
    /// Its speed: a layer takes its time divided by this.
    pub speed: f64,
    /// Bytes that it has for stages.
    pub memory: u64,
    /// Bytes that kernels need on it while they run.
    pub workspace: u64,
    /// Measured times (F, I, W) of each layer on this device, which count instead of the layer's own times
    /// and the speed; empty where nothing was measured.
    pub times: Vec<[f64; 3]>,
}

impl DeviceSpec {
    /// A device of this speed without a limit of memory.
    pub fn new(name: impl Into<String>, speed: f64) -> Self {
        Self { name: name.into(), speed, memory: u64::MAX, workspace: 0, times: Vec::new() }
    }
}

/// How handovers enter a stage's cost.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Transfer {
    /// They cost nothing.
    Free,
    /// They run beside the kernels: a link counts where it is slower than both of its stages.
    #[default]
    Overlapped,
    /// They hold their devices up: a stage costs its time, its receive and its send.
    Serial,
}

/// Which stages compute their forward pass again in the backward pass, to stash their inputs only.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Recompute {
    /// None.
    #[default]
    Never,
    /// Those that do not fit otherwise.
    Choose,
    /// All.
    Always,
}

/// Whether the order of devices is given.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Order {
    /// The pipeline goes through the devices as they are listed.
    #[default]
    Given,
    /// The best order is searched for: for at most 8 devices, beyond which the given one is kept. (So it is
    /// for interleaved schedules.)
    Free,
}

/// A model to be cut, and what to cut it for.
///
/// # Example
/// ```
/// use wgrad_pipeline::{DeviceSpec, Layer, Problem};
/// # fn main() -> wgrad_graph::Result<()> {
/// let layers = [1.0, 4.0, 2.0, 2.0].map(|cost| Layer::new("layer", cost)).to_vec();
/// let devices = ["a", "b", "c"].map(|name| DeviceSpec::new(name, 1.0)).to_vec();
/// let best = Problem::new(layers, devices).solve()?;
/// assert_eq!(best.cuts(), [1, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
    /// The links between devices.
    pub links: Links,
    /// The schedule, which says how many micro-batches a stage stashes.
    pub family: Family,
    /// Micro-batches a step.
    pub micro_batches: usize,
    /// How often the parameters lie in memory: once as weights, once as gradients, and the optimizer's
    /// copies.
    pub copies: u64,
    /// Slots of a ring, each as large as a boundary's message.
    pub slots: usize,
    /// Bytes of the model's input: what a recomputing first stage stashes.
    pub input_bytes: u64,
    /// How handovers enter the cost.
    pub transfer: Transfer,
    /// Which stages compute their forward pass again.
    pub recompute: Recompute,
    /// Whether the order of devices is given.
    pub order: Order,
    /// The most layers of one device.
    pub most_layers: usize,
    /// Whether devices may be left out.
    pub spare: bool,
}

impl Problem {
    /// Cutting `layers` for `devices` in this order, with 1F1B of 8 micro-batches, SGD, two slots a ring and
    /// free links; change the fields to say otherwise.
    pub fn new(layers: Vec<Layer>, devices: Vec<DeviceSpec>) -> Self {
        Self {
            layers,
            devices,
            links: Links::all(Link::FREE),
            family: Family::OneFOneB,
            micro_batches: 8,
            copies: 2,
            slots: 2,
            input_bytes: 0,
            transfer: Transfer::default(),
            recompute: Recompute::default(),
            order: Order::default(),
            most_layers: usize::MAX,
            spare: false,
        }
    }

    /// The times (F, I, W) of a layer on a device.
    pub fn times(&self, device: usize, layer: usize) -> [f64; 3] {
        let spec = &self.devices[device];
        let Layer { forward, input, weight, .. } = &self.layers[layer];
        match spec.times.get(layer) {
            Some(&measured) => measured,
            None => [forward, input, weight].map(|t| t / spec.speed),
        }
    }

    /// Bytes that cross before `layer`, or enter the model.
    pub(super) fn boundary(&self, layer: usize) -> u64 {
        if layer == 0 { self.input_bytes } else { self.layers[layer - 1].output }
    }

    /// The time of a handover before `layer` from one device to another: the slower direction in training,
    /// where the gradient comes back the other way.
    pub(super) fn crossing(&self, layer: usize, from: usize, to: usize) -> f64 {
        let bytes = self.boundary(layer);
        let there = self.links.get(from, to).time(bytes);
        if self.family == Family::Forward { there } else { there.max(self.links.get(to, from).time(bytes)) }
    }

    /// A stage's cost with its handovers.
    pub(super) fn with_transfers(&self, time: f64, before: f64, after: f64) -> f64 {
        match self.transfer {
            Transfer::Free => time,
            Transfer::Overlapped => time.max(before).max(after),
            Transfer::Serial => time + before + after,
        }
    }

    /// What a simulation needs to know of this partition. The simulated device of a position in the pipeline
    /// is that position.
    ///
    /// # Errors
    /// `Argument` for a partition of other layers or devices.
    pub fn costs(&self, partition: &Partition) -> Result<Costs> {
        self.check_partition(partition)?;
        let cost = |stage: usize| {
            let layers = partition.stages()[stage].clone();
            let device = partition.device(stage);
            let mut cost = StageCost::new(0.0, 0.0, 0.0);
            cost.stash = 0;
            for layer in layers.clone() {
                let [forward, input, weight] = self.times(device, layer);
                cost.forward += forward;
                cost.input += input;
                cost.weight += weight;
                cost.resident += self.layers[layer].params * self.copies;
                cost.stash += self.layers[layer].stash;
            }
            cost.backward = cost.input + cost.weight;
            cost.kept = cost.stash;
            cost.workspace = self.devices[device].workspace;
            if !partition.recomputes()[stage] {
                return cost;
            }
            let again = cost.recomputed(self.boundary(layers.start));
            // Nobody waits for the output of the last stage, which so computes it once, in its backward pass.
            if stage + 1 == partition.stages().len() { StageCost { forward: 0.0, ..again } } else { again }
        };
        let mut costs = Costs::new((0..partition.stages().len()).map(cost).collect());
        let positions = partition.stages().len() / self.family.chunks();
        costs.links = self.links.renamed(&partition.devices()[..positions]);
        for (stage, &cut) in partition.cuts().iter().enumerate() {
            costs.bytes.insert((stage, stage + 1), self.boundary(cut));
        }
        Ok(costs)
    }

    pub(super) fn check_partition(&self, partition: &Partition) -> Result<()> {
        let stages = partition.stages();
        let most = partition.devices().iter().max().copied().unwrap_or(0);
        if partition.layers != self.layers.len() || most >= self.devices.len() {
            bail!(
                Argument,
                "Problem",
                "a partition of {} layers over devices up to {most} for {} layers and {} devices",
                partition.layers,
                self.layers.len(),
                self.devices.len()
            );
        }
        if !stages.len().is_multiple_of(self.family.chunks()) {
            bail!(
                Argument,
                "Problem",
                "{} stages cannot be {} chunks of every device",
                stages.len(),
                self.family.chunks()
            );
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<()> {
        let op = "Problem::solve";
        let (layers, devices) = (self.layers.len(), self.devices.len());
        if layers == 0 || devices == 0 || self.micro_batches == 0 {
            bail!(
                Argument,
                op,
                "{layers} layers, {devices} devices, {} micro-batches: each must be 1 or more",
                self.micro_batches
            );
        }
        if devices > 64 {
            bail!(Argument, op, "{devices} devices; at most 64 are searched");
        }
        let chunks = self.family.chunks();
        if layers < devices * chunks && !self.spare {
            bail!(
                Argument,
                op,
                "{layers} layers cannot fill {devices} devices with {chunks} stages each; allow `spare`"
            );
        }
        for spec in &self.devices {
            if !(spec.speed > 0.0 && spec.speed.is_finite()) {
                bail!(Argument, op, "device {} has the speed {}", spec.name, spec.speed);
            }
            if !spec.times.is_empty() && spec.times.len() != layers {
                bail!(
                    Argument,
                    op,
                    "device {} has times of {} of {layers} layers",
                    spec.name,
                    spec.times.len()
                );
            }
        }
        for device in 0..devices {
            for layer in 0..layers {
                if self.times(device, layer).iter().any(|t| !(t.is_finite() && *t >= 0.0)) {
                    let (layer, device) = (&self.layers[layer].name, &self.devices[device].name);
                    bail!(Argument, op, "layer {layer} on device {device} has a negative or infinite time");
                }
            }
        }
        Ok(())
    }
}
