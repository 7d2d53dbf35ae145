//! Tied weights: one parameter with a copy on several stages.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use wgrad_graph::{HostTensor, Result, bail};

use super::Stages;
use super::control::Control;

/// Parameters that are one: stage and index of each, ascending by stage.
#[derive(Clone, Debug)]
pub(super) struct Tie {
    pub(super) members: Vec<(usize, usize)>,
}

impl Stages {
    /// Makes the parameters with these names one: the later ones take the first one's values, and each step
    /// sums their gradients, in the order of stages, and updates every copy with the sum. Copies on devices of
    /// one kind stay bit-equal.
    ///
    /// # Errors
    /// `Argument` when they are fewer than two, on one stage, or tied already; `Shape` when their shapes differ;
    /// what the devices meet.
    pub fn tie(mut self, names: &[&str]) -> Result<Self> {
        let op = "Stages::tie";
        let mut members: Vec<(usize, usize)> = names.iter().flat_map(|name| self.named(name)).collect();
        members.sort_unstable();
        members.dedup();
        let twice = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
        if members.len() < 2 || twice {
            bail!(
                Argument,
                op,
                "{names:?} are parameters of stages {:?}; two or more are wanted, each on a stage of its own (one \
                 stage shares the `Param` itself)",
                members.iter().map(|m| m.0).collect::<Vec<_>>()
            );
        }
        if let Some(m) = members.iter().find(|m| self.ties.iter().any(|t| t.members.contains(m))) {
            bail!(Argument, op, "`{}` is tied already", self.param(m.0, m.1).name());
        }
        let first = self.param(members[0].0, members[0].1);
        let value = first.read()?;
        for &(s, i) in &members[1..] {
            let copy = self.param(s, i);
            if copy.shape() != first.shape() || copy.dtype() != first.dtype() {
                let (a, b) = (first.shape(), copy.shape());
                bail!(Shape, op, "`{}` is {a} and `{}` is {b}", first.name(), copy.name());
            }
            copy.context().pass(|p| copy.try_set(p.input(value.clone())?))?;
        }
        self.ties.push(Tie { members });
        Ok(self)
    }

    /// The tie of a parameter, and whether the parameter is its first member.
    pub(super) fn tie_of(&self, stage: usize, index: usize) -> Option<(usize, bool)> {
        let tie = self.ties.iter().position(|t| t.members.contains(&(stage, index)))?;
        Some((tie, self.ties[tie].members[0] == (stage, index)))
    }
}

/// The gradients of tied parameters on their way to each other.
#[derive(Default)]
pub(crate) struct Exchange(Mutex<HashMap<(usize, usize), Option<HostTensor>>>);

impl Exchange {
    /// Shows the gradient of a member; `None` where it has none.
    pub(super) fn post(&self, member: (usize, usize), gradient: Option<HostTensor>, control: &Control) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(member, gradient);
        control.nudge();
    }

    /// The gradients of all members, in order, once they are there.
    pub(super) fn gather(&self, tie: &Tie, control: &Control) -> Result<Vec<HostTensor>> {
        let all = || {
            let posted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            tie.members.iter().map(|m| posted.get(m).cloned()).collect::<Option<Vec<_>>>()
        };
        let all = control.until("the gradients of tied parameters", all)?;
        Ok(all.into_iter().flatten().collect())
    }
}
