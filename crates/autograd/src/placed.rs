//! Host data that are brought to a device ahead of their use, from any thread.

use std::fmt;
use std::sync::Arc;

use wgrad_graph::{Caps, DType, DeviceKind, Error, ErrorKind, HostTensor, Out, Result, Shape, Stage, bail};

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

/// Memory of a context's device that is set aside for host data that come later: when it is filled, from any thread,
/// nothing is allocated. It goes back when this is dropped. The CPU, which takes data as they lie, sets none aside.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let x = HostTensor::new([2], &[1.0f32, 2.0])?;
/// let placed = ctx.reserve([2], DType::F32)?.fill(&x)?;
/// assert_eq!(ctx.pass(|p| p.input(placed)?.to_vec::<f32>())?, [1.0, 2.0]);
/// # Ok(()) }
/// ```
pub struct Reserved {
    context: ContextId,
    lease: Option<Arc<Lease>>,
    out: Out,
}

impl Reserved {
    pub(crate) fn new(context: ContextId, lease: Option<Arc<Lease>>, out: Out) -> Reserved {
        Reserved { context, lease, out }
    }

    /// Sizes of the axes of what it is for.
    pub fn shape(&self) -> Shape {
        self.out.shape
    }

    /// Type of the elements of what it is for.
    pub fn dtype(&self) -> DType {
        self.out.dtype
    }

    /// Copies `data` there.
    ///
    /// # Errors
    /// `Shape`, `DType` where it is for others; `OutOfMemory` of the host's side, `Lost`.
    pub fn fill(self, data: &HostTensor) -> Result<Placed> {
        let Reserved { context, lease, out } = self;
        if self_out(data) != out {
            let kind = if data.shape() == out.shape { ErrorKind::DType } else { ErrorKind::Shape };
            let rule = format!("{:?} does not fit memory for {out:?}", self_out(data));
            return Err(Error::new(kind, "fill", rule));
        }
        let Some(lease) = lease else {
            return Ok(Placed { context, source: Source::Host(data.clone()), out });
        };
        let (backend, _upload) = {
            let state = table::lock(context)?;
            state.alive()?;
            state.profiling.tell(|p| p.uploaded(1, data.bytes().len() as u64));
            (Arc::clone(&state.backend), state.profiling.stage(Stage::Upload))
        };
        let stored = data.cast(backend.caps().storage(out.dtype));
        backend.write_shared(lease.id, stored.bytes()).inspect_err(|error| noted(context, error))?;
        Ok(Placed { context, source: Source::Placed(lease), out })
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reserved({:?}, context {})", self.out, self.context.cell)
    }
}

/// Remembers an error that was met without the context's lock.
fn noted(context: ContextId, error: &Error) {
    if let Ok(mut state) = table::lock(context) {
        state.note(error);
    }
}

impl Placed {
    /// What it is of: context, buffer or host data, shape and dtype.
    pub(crate) fn parts(&self) -> (ContextId, &Source, Out) {
        (self.context, &self.source, self.out)
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
        stored(self.caps(), "put", data.dtype(), self_out(data))?;
        self.reserve(data.shape(), data.dtype())?.fill(data)
    }

    /// Sets memory aside for host data of this shape and dtype.
    ///
    /// # Errors
    /// `DType` when the device does not store the dtype; `Limit`, `OutOfMemory`, `Lost`.
    pub fn reserve(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Reserved> {
        let (caps, out, context) = (self.caps(), Out { shape: shape.into(), dtype }, self.id());
        stored(caps, "reserve", dtype, out)?;
        if is_host(caps) {
            return Ok(Reserved::new(context, None, out));
        }
        let bytes = caps.value_bytes(out.shape.elems(), dtype);
        let backend = {
            let state = table::lock(context)?;
            state.alive()?;
            state.room(false).take(bytes)?;
            Arc::clone(&state.backend)
        };
        let lease = Lease::new(&backend, bytes).inspect_err(|error| noted(context, error))?;
        Ok(Reserved::new(context, Some(lease), out))
    }
}
