//! Owned values by name, to a file and back.

use std::collections::HashMap;
use std::path::Path;

use wgrad_autograd::{Context, Counter, Kept, Param, Pass};
use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Result, Shape};

use crate::{load_tensors, save_tensors};

/// What outlives passes and belongs in a file, by name.
#[derive(Clone, Debug)]
pub enum Owned<'a> {
    /// A parameter.
    Param(&'a Param),
    /// Another value.
    Kept(&'a Kept),
    /// A count, in a file one `i64`.
    Count(String, &'a Counter, &'a Context),
    /// A count of which the device has left some out, in a file one `i64`: what was applied.
    Applied(String, &'a Counter, &'a Kept),
}

impl Owned<'_> {
    /// The name.
    pub fn name(&self) -> &str {
        match self {
            Owned::Param(x) => x.name(),
            Owned::Kept(x) => x.name(),
            Owned::Count(name, ..) | Owned::Applied(name, ..) => name,
        }
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        match self {
            Owned::Param(x) => x.shape(),
            Owned::Kept(x) => x.shape(),
            Owned::Count(..) | Owned::Applied(..) => Shape::SCALAR,
        }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Owned::Param(x) => x.dtype(),
            Owned::Kept(x) => x.dtype(),
            Owned::Count(..) | Owned::Applied(..) => DType::I64,
        }
    }

    /// The context to which it belongs.
    pub fn context(&self) -> &Context {
        match self {
            Owned::Param(x) => x.context(),
            Owned::Kept(x) => x.context(),
            Owned::Count(_, _, context) => context,
            Owned::Applied(_, _, skipped) => skipped.context(),
        }
    }

    /// The committed value.
    ///
    /// # Errors
    /// What the device meets.
    pub fn read(&self) -> Result<HostTensor> {
        match self {
            Owned::Param(x) => x.read(),
            Owned::Kept(x) => x.read(),
            Owned::Count(_, count, _) => HostTensor::new([], &[count.value() as i64]),
            Owned::Applied(_, count, skipped) => {
                // Where none was ever left out the device, which may be lost, is not asked.
                let skipped = match skipped.version() {
                    ..=1 => 0,
                    _ => skipped.read()?.to_vec::<i64>().into_iter().sum(),
                };
                HostTensor::new([], &[count.value() as i64 - skipped])
            }
        }
    }

    /// Makes this the value when `pass` is committed.
    ///
    /// # Errors
    /// `Shape`, `DType`; `Stale`.
    pub fn set(&self, pass: &Pass, value: &HostTensor) -> Result<()> {
        match self {
            Owned::Param(x) => x.try_set(pass.input(value)?),
            Owned::Kept(x) => x.try_set(pass.input(value)?),
            Owned::Applied(_, count, skipped) => {
                if skipped.version() > 1 {
                    skipped.try_set(pass.input(HostTensor::new([], &[0i32])?)?)?;
                }
                let value = value.to_vec::<i64>().first().copied().unwrap_or(0);
                pass.within(|| count.set(value as u64))
            }
            Owned::Count(_, count, _) => {
                let value = value.to_vec::<i64>().first().copied().unwrap_or(0);
                pass.within(|| count.set(value as u64))
            }
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
            value.set(p, x)?;
        }
        Ok(())
    })
}
