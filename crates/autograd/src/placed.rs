//! Host data that are brought to a device ahead of their use, from any thread.

use std::fmt;
use std::sync::Arc;

use wgrad_graph::{Caps, DType, DeviceKind, HostTensor, Out, Result, Shape, Stage, bail};

use crate::context::Context;
use crate::pass;
use crate::state::{Lease, Source};
use crate::table::{self, ContextId};

/// A host tensor in the memory of a context's device, to be an input of passes. Clones are the same memory; it
/// goes back with the last of them, once no pass uses it.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let x = HostTensor::new([2], &[1.0f32, 2.0])?;
/// let placed = std::thread::scope(|s| s.spawn(|| ctx.put(&x)).join().expect("no panic"))?;
/// let y = ctx.pass(|p| (p.input(&placed)? * 2.0).to_vec::<f32>())?;
/// assert_eq!(y, [2.0, 4.0]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Placed {
    context: ContextId,
    source: Source,
    out: Out,
}

impl Placed {
    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.out.shape
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.out.dtype
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({:?}, context {})", self.out, self.context.cell)
    }
}

/// What a pass takes as an input: host data, which travel with the submission that uses them, or what was
/// [placed](Context::put) before.
#[derive(Clone, Debug)]
pub struct Given(Data);

#[derive(Clone, Debug)]
enum Data {
    Host(HostTensor),
    Placed(Placed),
}

impl From<HostTensor> for Given {
    fn from(x: HostTensor) -> Given {
        Given(Data::Host(x))
    }
}

impl From<&HostTensor> for Given {
    fn from(x: &HostTensor) -> Given {
        Given(Data::Host(x.clone()))
    }
}

impl From<Placed> for Given {
    fn from(x: Placed) -> Given {
        Given(Data::Placed(x))
    }
}

impl From<&Placed> for Given {
    fn from(x: &Placed) -> Given {
        Given(Data::Placed(x.clone()))
    }
}

impl Given {
    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        let Out { shape, dtype } = self.out();
        shape.elems() * dtype.bytes()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.out().dtype
    }

    pub(crate) fn out(&self) -> Out {
        match &self.0 {
            Data::Host(x) => Out { shape: x.shape(), dtype: x.dtype() },
            Data::Placed(x) => x.out,
        }
    }

    /// The source of a leaf in a pass of `context`.
    pub(crate) fn source(self, op: &str, context: &Context) -> Result<Source> {
        match self.0 {
            Data::Host(x) => {
                stored(context.caps(), op, x.dtype(), self_out(&x))?;
                Ok(Source::Host(x))
            }
            Data::Placed(x) if x.context == context.id() => Ok(x.source),
            Data::Placed(x) => {
                let (there, here) = (table::name(x.context), table::name(context.id()));
                bail!(Device, op, "it was placed in {there}; the pass is of {here}")
            }
        }
    }
}

fn self_out(x: &HostTensor) -> Out {
    Out { shape: x.shape(), dtype: x.dtype() }
}

/// Refuses what the device does not store, or not as one value.
fn stored(caps: &Caps, op: &str, dtype: DType, out: Out) -> Result<()> {
    if dtype == DType::F64 && !caps.f64 {
        bail!(DType, op, "{} does not store f64", caps.name);
    }
    pass::fits(caps, op, out)
}

/// Whether the device computes with host memory, and has done so when a submission returns.
pub(crate) fn is_host(caps: &Caps) -> bool {
    matches!(caps.kind, DeviceKind::Cpu | DeviceKind::Oracle)
}

impl Context {
    /// Copies `data` to the device now, for passes that use them later. Any thread may call this; others record and
    /// submit meanwhile. The CPU takes the data as they lie.
    ///
    /// # Errors
    /// `DType` when the device does not store the dtype; `Limit`, `OutOfMemory`, `Lost`.
    pub fn put(&self, data: &HostTensor) -> Result<Placed> {
        let (caps, out) = (self.caps(), self_out(data));
        stored(caps, "put", data.dtype(), out)?;
        let context = self.id();
        if is_host(caps) {
            return Ok(Placed { context, source: Source::Host(data.clone()), out });
        }
        let bytes = caps.value_bytes(out.shape.elems(), out.dtype);
        let (backend, _upload) = {
            let state = table::lock(context)?;
            state.alive()?;
            state.room(false).take(bytes)?;
            state.profiling.tell(|p| p.uploaded(1, data.bytes().len() as u64));
            (Arc::clone(&state.backend), state.profiling.stage(Stage::Upload))
        };
        let written = Lease::new(&backend, bytes).and_then(|lease| {
            backend.write_shared(lease.id, data.cast(caps.storage(out.dtype)).bytes()).map(|()| lease)
        });
        let lease = written.inspect_err(|error| {
            if let Ok(mut state) = table::lock(context) {
                state.note(error);
            }
        })?;
        Ok(Placed { context, source: Source::Placed(lease), out })
    }
}
