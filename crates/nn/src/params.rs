//! The parameters of a model, by identity.

use std::collections::HashMap;
use std::path::Path;

use wgrad_autograd::Param;
use wgrad_graph::{Error, ErrorKind, HostTensor, Result};

use crate::{load_tensors, save_tensors};

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
    /// As [`save_tensors`], and what the device meets when the values are read.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let named = |p: &Param| Ok((p.name().to_owned(), p.read()?));
        save_tensors(path, &self.iter().map(named).collect::<Result<Vec<_>>>()?)
    }

    /// Sets all values from a safetensors file by name, all or none.
    ///
    /// # Errors
    /// As [`load_tensors`]; `Data`, naming every fault: a parameter that the file lacks, a tensor that is
    /// no parameter, another shape, another dtype; `Argument` when two parameters have one name.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut file: HashMap<String, HostTensor> = load_tensors(path)?.into_iter().collect();
        let (mut faults, mut values) = (Vec::new(), Vec::new());
        for (i, param) in self.iter().enumerate() {
            let name = param.name();
            if self.0[..i].iter().any(|p| p.name() == name) {
                wgrad_graph::bail!(Argument, "load", "{name:?} names two parameters");
            }
            match file.remove(name) {
                None => faults.push(format!("{name:?} is missing")),
                Some(x) if x.shape() != param.shape() => {
                    faults.push(format!("{name:?} is {}, the parameter {}", x.shape(), param.shape()));
                }
                Some(x) if x.dtype() != param.dtype() => {
                    faults.push(format!("{name:?} is {}, the parameter {}", x.dtype(), param.dtype()));
                }
                Some(x) => values.push((param, x)),
            }
        }
        let mut extra: Vec<_> = file.into_keys().collect();
        extra.sort_unstable();
        faults.extend(extra.iter().map(|name| format!("{name:?} is no parameter")));
        if !faults.is_empty() {
            let text = format!("{}: {}", path.display(), faults.join("; "));
            return Err(Error::new(ErrorKind::Data, "load", text));
        }
        let Some((first, _)) = values.first() else { return Ok(()) };
        // One pass, so that a device that fails leaves every parameter as it was.
        first.context().pass(|p| {
            for (param, x) in &values {
                param.set(p.input(x)?);
            }
            Ok(())
        })
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
