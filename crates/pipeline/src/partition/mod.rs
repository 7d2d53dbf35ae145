//! Partitions: which layers form which stage, on which device.

mod chunks;
mod names;
mod problem;
mod profile;
mod replicas;
mod search;
mod table;

use std::ops::Range;

use wgrad_graph::{Result, bail};

pub use names::{at_names, by_parameters, by_weight, layout, matching, uniform};
pub use problem::{DeviceSpec, Layer, Order, Problem, Recompute, Transfer};
pub use profile::Profile;
pub use replicas::{Replicated, replicated};
pub use table::Row;

/// Consecutive layers for every stage, so that each layer is in exactly one; the device of each stage, and
/// whether it computes its forward pass again.
///
/// # Example
/// ```
/// use wgrad_pipeline::Partition;
/// # fn main() -> wgrad_graph::Result<()> {
/// let partition = Partition::new(6, &[4])?.on(vec![1, 0])?;
/// assert_eq!(partition.stages(), [0..4, 4..6]);
/// assert_eq!(partition.device(0), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    layers: usize,
    cuts: Vec<usize>,
    devices: Vec<usize>,
    recompute: Vec<bool>,
}

impl Partition {
    /// The stages that begin at layer 0 and at each of `cuts`; stage `s` is on device `s`.
    ///
    /// # Errors
    /// `Argument` for cuts that do not ascend, or that leave a stage without layers.
    pub fn new(layers: usize, cuts: &[usize]) -> Result<Self> {
        let mut before = 0;
        for &cut in cuts {
            if cut <= before || cut >= layers {
                bail!(
                    Argument,
                    "Partition::new",
                    "cuts {cuts:?} of {layers} layers: each must lie behind the one before, and leave no stage empty"
                );
            }
            before = cut;
        }
        if layers == 0 {
            bail!(Argument, "Partition::new", "there are no layers");
        }
        let stages = cuts.len() + 1;
        let devices = (0..stages).collect();
        Ok(Self { layers, cuts: cuts.to_vec(), devices, recompute: vec![false; stages] })
    }

    /// The same stages on these devices.
    ///
    /// # Errors
    /// `Argument` for another number of devices than stages.
    pub fn on(mut self, devices: Vec<usize>) -> Result<Self> {
        if devices.len() != self.cuts.len() + 1 {
            bail!(Argument, "Partition::on", "{} devices for {} stages", devices.len(), self.cuts.len() + 1);
        }
        self.devices = devices;
        Ok(self)
    }

    /// The same stages, of which these compute their forward pass again instead of keeping its results.
    ///
    /// # Errors
    /// `Argument` for another number of flags than stages.
    pub fn recomputing(mut self, recompute: Vec<bool>) -> Result<Self> {
        if recompute.len() != self.cuts.len() + 1 {
            bail!(
                Argument,
                "Partition::recomputing",
                "{} flags for {} stages",
                recompute.len(),
                self.cuts.len() + 1
            );
        }
        self.recompute = recompute;
        Ok(self)
    }

    /// The layers of each stage.
    pub fn stages(&self) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.cuts.iter().copied());
        let ends = self.cuts.iter().copied().chain([self.layers]);
        starts.zip(ends).map(|(start, end)| start..end).collect()
    }

    /// The first layer of each stage but the first.
    pub fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// The device of each stage.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// The device of one stage.
    pub fn device(&self, stage: usize) -> usize {
        self.devices[stage]
    }

    /// Whether each stage computes its forward pass again.
    pub fn recomputes(&self) -> &[bool] {
        &self.recompute
    }

    /// The stage of a layer.
    pub fn stage_of(&self, layer: usize) -> usize {
        self.cuts.partition_point(|&cut| cut <= layer)
    }
}
