//! What one line of a mesh has with the others during a step.

use std::sync::Arc;

use wgrad_autograd::{Param, Pass, Tensor};
use wgrad_graph::{HostTensor, Result, Shape};
use wgrad_nn::ParamSet;

use super::{Collective, Reducer, Shard};
use crate::run::Control;

/// A collective, with the waits of a step.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(super) collective: Arc<dyn Collective>,
    pub(super) control: Arc<Control>,
}

impl Calls {
    pub(super) fn all_reduce(&self, values: &mut [f32], shape: Shape) -> Result<()> {
        self.control.patiently(|deadline| self.collective.all_reduce(values, shape, deadline))
    }

    pub(super) fn sum(&self, own: &[HostTensor]) -> Result<Vec<HostTensor>> {
        self.control.patiently(|deadline| self.collective.sum(own, deadline))
    }

    pub(super) fn all_gather(&self, own: &[f32], shape: Shape) -> Result<Vec<(Shape, Vec<f32>)>> {
        self.control.patiently(|deadline| self.collective.all_gather(own, shape, deadline))
    }

    fn broadcast(&self, values: &mut [f32], shape: Shape) -> Result<()> {
        self.control.patiently(|deadline| self.collective.broadcast(0, values, shape, deadline))
    }

    /// Sums gradients over the ranks, one after the other, and puts the sums in their places. `later` is computed
    /// from them afterwards.
    pub(crate) fn sum_copied(
        &self,
        pass: &Pass,
        copied: &[(Tensor, Tensor)],
        later: &[Tensor],
    ) -> Result<()> {
        for (i, (gradient, place)) in copied.iter().enumerate() {
            let rest = copied[i + 1..].iter().map(|(d, _)| *d).chain(later.iter().copied());
            pass.compute_for(&[*gradient], &rest.collect::<Vec<_>>())?;
            let out = gradient.try_out()?;
            let mut values = gradient.read()?.to_vec::<f32>();
            self.all_reduce(&mut values, out.shape)?;
            pass.replace(*place, HostTensor::new(out.shape, &values)?.cast(out.dtype))?;
        }
        Ok(())
    }
}

/// The ends of the collectives of one stage of a line.
#[derive(Clone, Default)]
pub(super) struct Ends {
    pub(super) replicas: Option<Arc<dyn Collective>>,
    pub(super) shards: Option<Arc<dyn Collective>>,
    /// Whether the replicas of the stage, and whether the shards of any stage, are of several kinds, whose numbers may
    /// round differently.
    pub(super) mixed_replicas: bool,
    pub(super) mixed_shards: bool,
}

/// A line's place in its mesh.
#[derive(Clone)]
pub(crate) struct Peers {
    pub(crate) line: usize,
    pub(super) replica: usize,
    pub(super) shard: Shard,
    /// How many replicas there are.
    pub(super) replicas: usize,
    /// One a stage.
    pub(super) ends: Vec<Ends>,
    /// Bytes of gradients that are summed together.
    pub(super) bucket: usize,
}

impl Peers {
    /// The line in messages.
    pub(crate) fn place(&self) -> String {
        let replica = if self.replicas > 1 { format!("replica {}, ", self.replica) } else { String::new() };
        let shard =
            if self.shard.size() > 1 { format!("shard {}, ", self.shard.rank()) } else { String::new() };
        replica + &shard
    }

    /// All its collectives.
    pub(crate) fn collectives(&self) -> Vec<Arc<dyn Collective>> {
        self.ends.iter().flat_map(|e| [e.replicas.clone(), e.shards.clone()]).flatten().collect()
    }

    /// The collective of the devices that share the stage's layers.
    pub(crate) fn calls(&self, stage: usize, control: &Arc<Control>) -> Option<Calls> {
        let collective = self.ends[stage].shards.clone()?;
        Some(Calls { collective, control: Arc::clone(control) })
    }

    /// Who sums the stage's gradients over replicas.
    pub(crate) fn reducer(
        &self,
        stage: usize,
        params: &[Param],
        control: &Arc<Control>,
    ) -> Option<Result<Reducer>> {
        let collective = self.ends[stage].replicas.clone()?;
        Some(Reducer::new(Calls { collective, control: Arc::clone(control) }, params, self.bucket))
    }

    /// Whether this line's share of a parameter counts for the norm of all gradients.
    pub(crate) fn counts(&self, param: &Param) -> bool {
        self.replica == 0 && (self.shard.rank() == 0 || self.shard.split_of(param).is_some())
    }

    /// Makes new weights that were computed on devices of several kinds the same: those of the first.
    pub(crate) fn align(
        &self,
        stage: usize,
        params: &ParamSet,
        pass: &Pass,
        control: &Arc<Control>,
    ) -> Result<()> {
        let ends = &self.ends[stage];
        let control = || Arc::clone(control);
        if let Some(collective) = ends.shards.clone().filter(|_| ends.mixed_shards) {
            let whole: Vec<&Param> = params.iter().filter(|p| self.shard.split_of(p).is_none()).collect();
            take_first(&Calls { collective, control: control() }, &whole, pass)?;
        }
        if let Some(collective) = ends.replicas.clone().filter(|_| ends.mixed_replicas) {
            take_first(&Calls { collective, control: control() }, &params.iter().collect::<Vec<_>>(), pass)?;
        }
        Ok(())
    }
}

/// The first rank's new weights on all ranks.
fn take_first(calls: &Calls, params: &[&Param], pass: &Pass) -> Result<()> {
    let mut values = Vec::new();
    for param in params {
        match calls.collective.rank() {
            0 => values.extend(param.t().read()?.to_vec::<f32>()),
            _ => values.resize(values.len() + param.shape().elems(), 0.0),
        }
    }
    let len = values.len();
    calls.broadcast(&mut values, Shape::from([len]))?;
    if calls.collective.rank() == 0 {
        return Ok(());
    }
    let mut rest = &values[..];
    for param in params {
        let (own, after) = rest.split_at(param.shape().elems());
        param.try_set(pass.input(HostTensor::new(param.shape(), own)?.cast(param.dtype()))?)?;
        rest = after;
    }
    Ok(())
}
