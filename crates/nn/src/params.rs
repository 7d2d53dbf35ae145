//! The parameters of a model, by identity.

use std::path::Path;

use wgrad_autograd::Param;
use wgrad_graph::Result;

use crate::state::{self, Owned};

/// Parameters in order of creation, each once: clones of one parameter are that parameter. A module's
/// come from `params()`; single ones are collected: `[w.clone(), b.clone()].into_iter().collect()`.
#[derive(Clone, Debug, Default)]
pub struct ParamSet(Vec<Param>);

impl ParamSet {
    /// The parameters, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Param> {
        self.0.iter()
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of elements of all parameters.
    pub fn elems(&self) -> usize {
        self.iter().map(|p| p.shape().elems()).sum()
    }

    /// The parameter called `name`, the first if several are.
    pub fn get(&self, name: &str) -> Option<&Param> {
        self.iter().find(|p| p.name() == name)
    }

    /// Writes all values to a safetensors file by name, whole or not at all.
    ///
    /// # Errors
    /// As [`save_tensors`](crate::save_tensors), and what the device meets when the values are read.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        state::save(path.as_ref(), &self.owned())
    }

    /// Sets all values from a safetensors file by name, all or none.
    ///
    /// # Errors
    /// As [`load_tensors`](crate::load_tensors); `Data`, naming every fault: a parameter that the file lacks, a tensor that is
    /// no parameter, another shape, another dtype; `Argument` when two parameters have one name.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        state::load(path.as_ref(), &self.owned())
    }

    fn owned(&self) -> Vec<Owned<'_>> {
        self.iter().map(Owned::Param).collect()
    }
}

impl FromIterator<Param> for ParamSet {
    fn from_iter<I: IntoIterator<Item = Param>>(params: I) -> ParamSet {
        let mut set = ParamSet::default();
        set.extend(params);
        set
    }
}

impl Extend<Param> for ParamSet {
    fn extend<I: IntoIterator<Item = Param>>(&mut self, params: I) {
        for param in params {
            if self.iter().all(|p| p.id() != param.id()) {
                self.0.push(param);
            }
        }
    }
}

impl IntoIterator for ParamSet {
    type Item = Param;
    type IntoIter = std::vec::IntoIter<Param>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a ParamSet {
    type Item = &'a Param;
    type IntoIter = std::slice::Iter<'a, Param>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
