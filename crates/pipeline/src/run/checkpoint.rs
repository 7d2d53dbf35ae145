//! Checkpoints: all that training needs to go on, by name, so that another cut can take it up.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use wgrad_autograd::{Kept, Pass};
use wgrad_graph::{Error, ErrorKind, HostTensor, Result, bail};
use wgrad_nn::{Optimizer, Owned, ParamSet, Scaling, load_tensors, save_tensors};

use super::error::placed;
use super::train::AnyOptimizer;
use super::{Stages, Trainer};

const OPTIMIZER: &str = "optimizer/";
const STEPS: &str = "trainer/steps";
const SEED: &str = "trainer/seed";
const SCALE: &str = "trainer/scale";
const APPLIED: &str = "trainer/scale_applied";

/// What a [`Trainer`] has learnt and where it stands: weights and running statistics under their names, the optimizers'
/// state as `optimizer/NAME`, the number of steps, the seed and the loss scale as `trainer/..`. Nothing in it depends on
/// the cut, the devices or the schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    tensors: Vec<(String, HostTensor)>,
}

impl Checkpoint {
    /// All tensors by name.
    pub fn tensors(&self) -> &[(String, HostTensor)] {
        &self.tensors
    }

    /// The number of steps behind it.
    pub fn steps(&self) -> u64 {
        self.number::<i64>(STEPS).unwrap_or(0) as u64
    }

    /// The weights and running statistics, for [`Stages::set_weights`].
    pub fn weights(&self) -> Vec<(String, HostTensor)> {
        let own = |name: &str| !name.starts_with(OPTIMIZER) && !name.starts_with("trainer/");
        self.tensors.iter().filter(|(name, _)| own(name)).cloned().collect()
    }

    /// Writes it to a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// As [`save_tensors`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save_tensors(path, &self.tensors)
    }

    /// Reads one from a file.
    ///
    /// # Errors
    /// As [`load_tensors`]; `Data` where the file is of something else.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let all = Self { tensors: load_tensors(path)? };
        match all.number::<i64>(STEPS) {
            Some(_) => Ok(all),
            None => bail!(Data, "Checkpoint::load", "{}: `{STEPS}` is missing", path.display()),
        }
    }

    fn number<T: wgrad_graph::Element>(&self, name: &str) -> Option<T> {
        let (_, x) = self.tensors.iter().find(|(n, _)| n == name)?;
        x.to_vec::<T>().first().copied()
    }
}

/// A value of a stage with its name in files.
pub(super) struct Entry<'a> {
    stage: usize,
    name: String,
    value: Owned<'a>,
    /// Whether other stages have the same value: of several the first is in a file, and all take it from there.
    shared: bool,
}

impl Stages {
    /// Parameters and running statistics with the names under which files have them. `states` are those of
    /// [`Stages::states`].
    pub(super) fn entries<'a>(&'a self, states: &'a [Vec<Arc<Kept>>]) -> Vec<Entry<'a>> {
        let mut all = Vec::new();
        for (s, stage) in self.stages.iter().enumerate() {
            for (i, param) in stage.params.iter().enumerate() {
                let (name, shared) = self.name_of(s, i);
                all.push(Entry { stage: s, name: name.to_owned(), value: Owned::Param(param), shared });
            }
            for kept in &states[s] {
                let name = kept.name().to_owned();
                all.push(Entry { stage: s, name, value: Owned::Kept(kept), shared: false });
            }
        }
        all
    }

    /// What each stage carries beside its parameters.
    pub(super) fn states(&self) -> Vec<Vec<Arc<Kept>>> {
        let of = |stage: &super::stages::Stage| {
            let mut once: Vec<Arc<Kept>> = Vec::new();
            for kept in stage.block.state() {
                if once.iter().all(|k| !Arc::ptr_eq(k, &kept)) {
                    once.push(kept);
                }
            }
            once
        };
        self.stages.iter().map(of).collect()
    }

    /// The name of a parameter in files, that of the first where several are tied; whether they are.
    fn name_of(&self, stage: usize, index: usize) -> (&str, bool) {
        match self.tie_of(stage, index) {
            Some((tie, _)) => {
                let (s, i) = self.ties[tie].members[0];
                (self.param(s, i).name(), true)
            }
            None => (self.param(stage, index).name(), false),
        }
    }

    /// The name of a part of an optimizer's state in files; whether several stages have it.
    fn name_of_state(&self, stage: usize, name: &str) -> (String, bool) {
        let params = self.stages[stage].params.iter().enumerate();
        let part = |(i, p): (usize, &wgrad_autograd::Param)| {
            let rest = name.strip_prefix(p.name())?;
            rest.starts_with('.').then(|| (i, rest.to_owned()))
        };
        // Names may begin alike; the longest is meant.
        match params.filter_map(part).min_by_key(|(_, rest)| rest.len()) {
            Some((i, rest)) => {
                let (of, shared) = self.name_of(stage, i);
                (format!("{OPTIMIZER}{of}{rest}"), shared)
            }
            None => (format!("{OPTIMIZER}{name}"), true),
        }
    }

    /// Reads the values by name, each once; what cannot be read is told to `lost`, which may give up.
    pub(super) fn read_all(
        &self,
        entries: &[Entry<'_>],
        mut lost: impl FnMut(usize, Error) -> Result<()>,
    ) -> Result<Vec<(String, HostTensor)>> {
        let (mut names, mut tensors) = (HashSet::new(), Vec::new());
        for Entry { stage, name, value, shared } in entries {
            if names.contains(name) {
                if *shared {
                    continue;
                }
                bail!(
                    Data,
                    "checkpoint",
                    "{name:?} names two values, one on {}",
                    self.stages[*stage].label(*stage)
                );
            }
            match value.read() {
                Ok(x) => {
                    names.insert(name.clone());
                    tensors.push((name.clone(), x));
                }
                Err(error) => lost(*stage, error)?,
            }
        }
        Ok(tensors)
    }

    /// Sets values by name, on all stages or on none. All entries must be there unless `some`.
    pub(super) fn set_all(
        &self,
        op: &'static str,
        entries: &[Entry<'_>],
        tensors: &[(String, HostTensor)],
        some: bool,
    ) -> Result<()> {
        let mut given: HashMap<&str, (&HostTensor, bool)> = HashMap::new();
        for (name, x) in tensors {
            if given.insert(name, (x, false)).is_some() {
                bail!(Data, op, "{name:?} is given twice");
            }
        }
        let (mut faults, mut found) = (Vec::new(), Vec::new());
        let mut seen: HashSet<&str> = HashSet::new();
        let mut kind = ErrorKind::Data;
        for Entry { stage, name, value, shared } in entries {
            let Some((x, used)) = given.get_mut(name.as_str()) else {
                if !some {
                    faults.push(format!("{name:?} is missing"));
                }
                continue;
            };
            *used = true;
            if !seen.insert(name) && !shared {
                faults.push(format!("several values are called {name:?}"));
            }
            let out = |shape, dtype| format!("{dtype} {shape}");
            if (x.shape(), x.dtype()) != (value.shape(), value.dtype()) {
                let (gets, has) = (out(x.shape(), x.dtype()), out(value.shape(), value.dtype()));
                faults.push(format!(
                    "{name:?} of {} is {has}; the value is {gets}",
                    self.stages[*stage].label(*stage)
                ));
                kind = if x.shape() == value.shape() { ErrorKind::DType } else { ErrorKind::Shape };
            }
            found.push((*stage, value, *x));
        }
        let mut extra: Vec<&str> =
            given.iter().filter(|(_, (_, used))| !used).map(|(name, _)| *name).collect();
        extra.sort_unstable();
        faults.extend(extra.iter().map(|name| format!("nothing is called {name:?}")));
        if !faults.is_empty() {
            let kind = if faults.len() == 1 { kind } else { ErrorKind::Data };
            return Err(Error::new(kind, op, faults.join("; ")));
        }
        let mut passes: Vec<(usize, Pass)> = Vec::new();
        for (s, stage) in self.stages.iter().enumerate().filter(|(s, _)| found.iter().any(|f| f.0 == *s)) {
            let set = || -> Result<Pass> {
                let pass = stage.context.begin()?;
                for (_, value, x) in found.iter().filter(|f| f.0 == s) {
                    value.set(&pass, x)?;
                }
                pass.prepare()?;
                Ok(pass)
            };
            passes.push((s, set().map_err(|e| placed(&stage.label(s), e))?));
        }
        for (s, pass) in passes {
            pass.end().map_err(|e| {
                placed(&format!("{} (other stages may have their values)", self.stages[s].label(s)), e)
            })?;
        }
        Ok(())
    }
}

impl Trainer {
    /// All that is needed to go on from the last step, in memory.
    ///
    /// # Errors
    /// What the devices meet, with the stage; `Data` for two values of one name.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let lost = |s: usize, error| Err(placed(&self.stages().stages[s].label(s), error));
        self.collect(lost)
    }

    /// What can still be read of the last step after devices were lost, and the errors of the stages that were: for
    /// each the first one. What is there is of one step, but it is not whole: to go on takes the last whole
    /// [`Trainer::checkpoint`] and [`Trainer::rebuilt`].
    ///
    /// # Errors
    /// `Data` for two values of one name.
    pub fn readable(&self) -> Result<(Checkpoint, Vec<(usize, Error)>)> {
        let mut lost: Vec<(usize, Error)> = Vec::new();
        let checkpoint = self.collect(|s, error| {
            if lost.iter().all(|(other, _)| *other != s) {
                lost.push((s, error));
            }
            Ok(())
        })?;
        Ok((checkpoint, lost))
    }

    fn collect(&self, lost: impl FnMut(usize, Error) -> Result<()>) -> Result<Checkpoint> {
        let (states, optimizers) = (self.stages().states(), self.optimizers());
        let entries = self.entries(&states, &optimizers);
        let mut tensors = self.stages().read_all(&entries, lost)?;
        let mut number = |name: &str, x: HostTensor| tensors.push((name.to_owned(), x));
        number(STEPS, HostTensor::new([], &[self.steps() as i64])?);
        let seeds: Vec<u64> = self.stages().stages.iter().map(|s| s.context.seed()).collect();
        if seeds.iter().all(|seed| *seed == seeds[0]) {
            number(SEED, HostTensor::new([], &[seeds[0] as i64])?);
        }
        if let Some(scale) = self.scale_state() {
            number(SCALE, HostTensor::new([], &[scale.value])?);
            number(APPLIED, HostTensor::new([], &[scale.applied as i64])?);
        }
        Ok(Checkpoint { tensors })
    }

    fn optimizers(&self) -> Vec<MutexGuard<'_, Option<AnyOptimizer>>> {
        let all = self.teaching().optimizers.iter();
        all.map(|o| o.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    fn entries<'a>(
        &'a self,
        states: &'a [Vec<Arc<Kept>>],
        optimizers: &'a [MutexGuard<'_, Option<AnyOptimizer>>],
    ) -> Vec<Entry<'a>> {
        let mut entries = self.stages().entries(states);
        for (stage, optimizer) in optimizers.iter().enumerate() {
            for value in optimizer.iter().flat_map(|o| o.state()) {
                let (name, shared) = self.stages().name_of_state(stage, value.name());
                entries.push(Entry { stage, name, value, shared });
            }
        }
        entries
    }

    /// Makes this trainer stand where the checkpoint was taken, whatever the cut, the devices and the schedule were: the
    /// next step is the one that would have followed. Learning rates are not in it; [`Trainer::set_lr`] sets them.
    ///
    /// # Errors
    /// `Data`, naming every fault: what is missing, what nothing here is called, another shape or dtype; then, and where
    /// a device fails, nothing has changed.
    pub fn restore(&mut self, from: &Checkpoint) -> Result<()> {
        let tensors: Vec<(String, HostTensor)> =
            from.tensors.iter().filter(|(name, _)| !name.starts_with("trainer/")).cloned().collect();
        {
            let (states, optimizers) = (self.stages().states(), self.optimizers());
            let entries = self.entries(&states, &optimizers);
            self.stages().set_all("Trainer::restore", &entries, &tensors, false)?;
        }
        if let Some(seed) = from.number::<i64>(SEED) {
            self.stages().set_seed(seed as u64);
        }
        let scale = from.number::<f64>(SCALE).zip(from.number::<i64>(APPLIED));
        self.stand_at(from.steps(), scale.map(|(value, applied)| Scaling { value, applied: applied as u64 }));
        Ok(())
    }

    /// Writes a [`Trainer::checkpoint`] to a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// As [`Trainer::checkpoint`] and [`save_tensors`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.checkpoint()?.save(path)
    }

    /// Goes to where a file was written; see [`Trainer::restore`].
    ///
    /// # Errors
    /// As [`Checkpoint::load`] and [`Trainer::restore`].
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.restore(&Checkpoint::load(path)?)
    }

    /// The trainer of `stages`, with this one's loss and options, where the checkpoint was taken: how training goes on
    /// over the devices that are left when one was lost.
    ///
    /// # Errors
    /// As [`Trainer::new`] and [`Trainer::restore`].
    pub fn rebuilt<O: Optimizer + Send + 'static>(
        self,
        stages: Stages,
        optimizer: impl FnMut(ParamSet) -> Result<O>,
        from: &Checkpoint,
    ) -> Result<Trainer> {
        let (loss, options) = self.into_teaching();
        let mut trainer = Trainer::new(stages, loss, optimizer, options)?;
        trainer.restore(from)?;
        Ok(trainer)
    }
}
