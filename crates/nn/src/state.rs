//! Owned values by name, to a file and back.

use std::collections::HashMap;
use std::path::Path;

use wgrad_autograd::{Context, Kept, Param, Tensor};
use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Result, Shape};

use crate::{load_tensors, save_tensors};

/// An owned value with its name.
#[derive(Copy, Clone)]
pub(crate) enum Owned<'a> {
    Param(&'a Param),
    Kept(&'a Kept),
}

impl Owned<'_> {
    fn name(&self) -> &str {
        match self {
            Owned::Param(x) => x.name(),
            Owned::Kept(x) => x.name(),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Owned::Param(x) => x.shape(),
            Owned::Kept(x) => x.shape(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Owned::Param(x) => x.dtype(),
            Owned::Kept(x) => x.dtype(),
        }
    }

    fn context(&self) -> &Context {
        match self {
            Owned::Param(x) => x.context(),
            Owned::Kept(x) => x.context(),
        }
    }

    fn read(&self) -> Result<HostTensor> {
        match self {
            Owned::Param(x) => x.read(),
            Owned::Kept(x) => x.read(),
        }
    }

    fn set(&self, value: Tensor) -> Result<()> {
        match self {
            Owned::Param(x) => x.try_set(value),
            Owned::Kept(x) => x.try_set(value),
        }
    }
}

/// Writes all values by name, whole or not at all.
pub(crate) fn save(path: &Path, values: &[Owned<'_>]) -> Result<()> {
    let named = |x: &Owned<'_>| Ok((x.name().to_owned(), x.read()?));
    save_tensors(path, &values.iter().map(named).collect::<Result<Vec<_>>>()?)
}

/// Sets all values by name, all or none.
pub(crate) fn load(path: &Path, values: &[Owned<'_>]) -> Result<()> {
    let mut file: HashMap<String, HostTensor> = load_tensors(path)?.into_iter().collect();
    let (mut faults, mut found) = (Vec::new(), Vec::new());
    for (i, value) in values.iter().enumerate() {
        let name = value.name();
        if values[..i].iter().any(|x| x.name() == name) {
            wgrad_graph::bail!(Argument, "load", "{name:?} names two parameters");
        }
        match file.remove(name) {
            None => faults.push(format!("{name:?} is missing")),
            Some(x) if x.shape() != value.shape() => {
                faults.push(format!("{name:?} is {}, the parameter {}", x.shape(), value.shape()));
            }
            Some(x) if x.dtype() != value.dtype() => {
                faults.push(format!("{name:?} is {}, the parameter {}", x.dtype(), value.dtype()));
            }
            Some(x) => found.push((value, x)),
        }
    }
    let mut extra: Vec<_> = file.into_keys().collect();
    extra.sort_unstable();
    faults.extend(extra.iter().map(|name| format!("{name:?} is no parameter")));
    if !faults.is_empty() {
        let text = format!("{}: {}", path.display(), faults.join("; "));
        return Err(Error::new(ErrorKind::Data, "load", text));
    }
    let Some((first, _)) = found.first() else { return Ok(()) };
    // One pass, so that a device that fails leaves every value as it was.
    first.context().pass(|p| {
        for (value, x) in &found {
            value.set(p.input(x)?)?;
        }
        Ok(())
    })
}
