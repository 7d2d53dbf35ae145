//! The end of a step: gradients of all stages together, then new weights on all stages or on none.

use std::sync::PoisonError;
use std::time::Instant;

use wgrad_autograd::{Grads, Pass, Tensor};
use wgrad_graph::{DType, HostTensor, Result, bail};

use super::control::Control;
use super::error::{guarded, placed};
use super::worker::Worker;
use crate::schedule::{Action, Kind};

impl Worker<'_> {
    /// Shows the gradients of tied parameters to the other stages that have them.
    pub(super) fn reduce(&mut self, s: usize) -> Result<()> {
        let job = self.job;
        if let Some(reducer) = self.reducers.remove(&s) {
            // The sums over all replicas take the place of this one's.
            let (summed, sums) = (reducer.finish()?, &self.sums[&s]);
            summed.iter().try_for_each(|(i, sum)| sums.kept[*i].take(sum))?;
        }
        let sums = &self.sums[&s];
        for member in job.stages.ties.iter().flat_map(|t| &t.members).filter(|m| m.0 == s) {
            let found = sums.found[member.1];
            let gradient = if found { Some(sums.kept[member.1].read()?) } else { None };
            job.exchange.post(*member, gradient, &job.control);
        }
        Ok(())
    }

    /// The updates of all stages of the thread: gradients, norms, new weights beside the old; once all
    /// threads have them, the new ones take their places. When all threads were there.
    pub(super) fn update(&mut self, updates: &[Action]) -> Result<Instant> {
        let Some(teaching) = self.job.teaching else { return Ok(Instant::now()) };
        let control = &self.job.control;
        let mut open: Vec<(Action, Pass, Grads)> = Vec::new();
        for &action in updates {
            let begun = guarded(|| self.gradients(action.stage));
            let (pass, grads) = begun.map_err(|e| placed(&self.place(action), e))?;
            open.push((action, pass, grads));
        }
        // Before anybody takes new weights: a loss that cannot be read is a step that failed.
        for (m, share) in std::mem::take(&mut self.log.coming) {
            let stage = self.job.stages.len() - 1;
            let read =
                share.get().map_err(|e| placed(&self.place(Action::new(Kind::Backward, stage, m)), e))?;
            self.log.losses.push((m, read));
        }
        control.meet()?;
        let there = Instant::now();
        let squares = self.job.squares.lock().unwrap_or_else(PoisonError::into_inner);
        let norm = squares.iter().flatten().sum::<f64>().sqrt();
        drop(squares);
        if teaching.options.measures() {
            self.log.norm = Some(norm);
            if !norm.is_finite() && teaching.options.skips() {
                return Ok(there);
            }
        }
        let factor = teaching.options.clip.map(|limit| (limit / norm).min(1.0)).filter(|f| *f != 1.0);
        for (action, pass, grads) in &open {
            let made = guarded(|| {
                let mut optimizer =
                    teaching.optimizers[action.stage].lock().unwrap_or_else(PoisonError::into_inner);
                pass.within(|| {
                    self.sums[&action.stage].follow()?;
                    let Some(optimizer) = optimizer.as_mut() else { return Ok(()) };
                    let grads = match factor {
                        Some(factor) => grads.scale(pass.input(HostTensor::new([], &[factor as f32])?)?)?,
                        None => grads.clone(),
                    };
                    optimizer.step(&grads).map(|_| ())?;
                    match &self.job.peers {
                        Some(peers) => {
                            peers.align(action.stage, &self.stage(action.stage).params, pass, control)
                        }
                        None => Ok(()),
                    }
                })?;
                if teaching.options.together { pass.prepare() } else { Ok(()) }
            });
            made.map_err(|e| placed(&self.place(*action), e))?;
        }
        control.meet()?;
        for (action, pass, _) in open {
            pass.end()
                .map_err(|e| placed(&format!("{} (other stages may be updated)", self.place(action)), e))?;
        }
        self.log.applied = true;
        Ok(there)
    }

    /// The pass of a stage's update with its gradients, tied ones summed; their norm goes to the others.
    fn gradients(&mut self, s: usize) -> Result<(Pass, Grads)> {
        let job = self.job;
        let Some(teaching) = job.teaching else { bail!(Argument, "pipeline", "nothing is taught") };
        let stage = self.stage(s);
        // Failures of what is under way are known before anybody takes new weights.
        stage.context.sync()?;
        let pass = stage.context.begin()?;
        let sums = &self.sums[&s];
        let mut grads: Vec<(usize, Tensor)> = Vec::new();
        for (i, kept) in sums.kept.iter().enumerate() {
            let gradient = match job.stages.tie_of(s, i) {
                None => sums.found[i].then(|| kept.t()),
                Some((tie, _)) => {
                    let mut sum: Option<Tensor> = None;
                    for g in job.exchange.gather(&job.stages.ties[tie], &job.control)? {
                        let g = pass.input(g)?;
                        sum = Some(match sum {
                            Some(sum) => pass.within(|| sum.try_add(g))?,
                            None => g,
                        });
                    }
                    sum
                }
            };
            grads.extend(gradient.map(|g| (i, g)));
        }
        let named = |(i, g): &(usize, Tensor)| (sums.params[*i].id(), *g);
        if teaching.options.measures() {
            // A tied gradient counts once.
            let counts = |(i, _): &&(usize, Tensor)| {
                job.stages.tie_of(s, *i).is_none_or(|(_, first)| first)
                    && job.peers.as_ref().is_none_or(|p| p.counts(&sums.params[*i]))
            };
            let own: Vec<Tensor> = grads.iter().filter(counts).map(|(_, g)| *g).collect();
            let squares = pass.within(|| squares(&pass, &own, &job.control))?;
            job.squares.lock().unwrap_or_else(PoisonError::into_inner)
                [job.peers.as_ref().map_or(0, |p| p.line * job.stages.len()) + s] = squares;
        }
        let grads = grads.iter().map(named).collect();
        Ok((pass, grads))
    }
}

/// The sum of squares of each tensor. One number a parameter, which are added up in their order over all stages, so
/// that the norm does not depend on the cut.
fn squares(pass: &Pass, all: &[Tensor], control: &Control) -> Result<Vec<f64>> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let dtypes = all.iter().map(|g| Ok(g.try_out()?.dtype)).collect::<Result<Vec<DType>>>()?;
    let dtype = if dtypes.contains(&DType::F64) { DType::F64 } else { DType::F32 };
    let square = |g: &Tensor| g.try_cast(dtype)?.try_square()?.try_sum(..);
    let all = all.iter().map(square).collect::<Result<Vec<_>>>()?;
    pass.compute(&all)?;
    let readings = Tensor::read_all_later(&all)?;
    let numbers = control.watchfully(|timeout| readings.wait(timeout))?;
    Ok(numbers.iter().flat_map(|x| x.to_vec::<f64>()).collect())
}
