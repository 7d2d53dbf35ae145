//! The handle: a small `Copy` key, tagged with context, pool and generation.

use std::fmt;
use std::panic::Location;

use slotmap::{Key, KeyData};
use wgrad_graph::{DType, Element, Error, ErrorKind, HostTensor, Op, Out, Result, Shape};

use crate::pass::OpenPass;
use crate::record::{self, Recorded};
use crate::state::{At, Number, OwnedKey, ValueKey};
use crate::table::{self, ContextId};

/// The pool number of owned values; passes count from 0.
pub(crate) const PERSISTENT: u32 = u32::MAX;

/// A handle to a value: the key of its slot, tagged with the pool, the pool's generation (for an owned
/// value: its version) and the context, and the line that made it. Copying it copies no data; using it
/// after its value has ended is an error that says so, never another value's data.
///
/// Operations record; numbers appear when someone asks for them.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let stale = ctx.pass(|p| {
///     let x = p.input(HostTensor::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?)?;
///     let y = (x.matmul(x) + 1.0).relu();                        // recorded, not computed
///     assert_eq!(y.shape().dims(), [2, 2]);
///     assert_eq!(y.to_vec::<f32>()?, [8.0, 11.0, 16.0, 23.0]);   // computed here
///     Ok(y)
/// })?;
/// assert!(stale.to_vec::<f32>().is_err());                       // its pass has ended
/// # Ok(()) }
/// ```
#[derive(Copy, Clone)]
pub struct Tensor {
    pub(crate) context: ContextId,
    pub(crate) pool: u32,
    pub(crate) generation: u32,
    pub(crate) key: u64,
    pub(crate) at: At,
}

const _: () = assert!(size_of::<Tensor>() <= 32);

impl Tensor {
    pub(crate) fn of_pass(pass: OpenPass, key: ValueKey, at: At) -> Tensor {
        let OpenPass { context, pool, generation } = pass;
        Tensor { context, pool, generation, key: u64::from(key.0), at }
    }

    pub(crate) fn of_owned(context: ContextId, key: OwnedKey, version: u64, at: At) -> Tensor {
        Tensor { context, pool: PERSISTENT, generation: version as u32, key: key.data().as_ffi(), at }
    }

    pub(crate) fn value_key(&self) -> ValueKey {
        ValueKey(self.key as u32)
    }

    pub(crate) fn owned_key(&self) -> OwnedKey {
        KeyData::from_ffi(self.key).into()
    }

    /// The pass that the handle belongs to, unless it is of an owned value.
    pub(crate) fn pass(&self) -> Option<OpenPass> {
        let pass = OpenPass { context: self.context, pool: self.pool, generation: self.generation };
        (self.pool != PERSISTENT).then_some(pass)
    }

    /// Shape and dtype.
    ///
    /// # Errors
    /// `Stale` when the value has ended.
    pub fn try_out(&self) -> Result<Out> {
        let mut state = table::lock(self.context)?;
        record::out(&mut state, self)
    }

    #[track_caller]
    fn out(&self) -> Out {
        match self.try_out() {
            Ok(out) => out,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sizes of the axes.
    ///
    /// # Panics
    /// When the value has ended.
    #[track_caller]
    pub fn shape(&self) -> Shape {
        self.out().shape
    }

    /// Type of the elements.
    ///
    /// # Panics
    /// When the value has ended.
    #[track_caller]
    pub fn dtype(&self) -> DType {
        self.out().dtype
    }

    /// Number of axes.
    ///
    /// # Panics
    /// When the value has ended.
    #[track_caller]
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    #[track_caller]
    pub(crate) fn record(op: Op, x: &[Tensor], to: Option<Shape>, dtype: Option<DType>) -> Result<Tensor> {
        record::operation(None, Recorded { op, x, to, dtype }, Location::caller())
    }

    /// A number in the pass in which an operation on this tensor would be recorded.
    #[track_caller]
    pub(crate) fn number(&self, value: f64, dtype: DType) -> Result<Tensor> {
        let at = Location::caller();
        record::number(record::pass_of(&[*self], at)?, Number::Literal(value), dtype, at)
    }

    /// The same value through which no gradient passes.
    ///
    /// # Panics
    /// When the value has ended, or no pass is open.
    #[track_caller]
    #[must_use]
    pub fn detach(self) -> Tensor {
        match self.try_detach() {
            Ok(tensor) => tensor,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Tensor::detach`].
    ///
    /// # Errors
    /// `Stale`, when the value has ended or no pass is open.
    #[track_caller]
    pub fn try_detach(self) -> Result<Tensor> {
        record::alias(&self, Location::caller())
    }

    /// The value in storage dtype (f64 for every float on the oracle).
    fn stored(&self, at: At) -> Result<HostTensor> {
        let (pending, ticket, out, storage) = {
            let mut state = table::lock(self.context)?;
            let (lease, ticket, out) = state.computed(self, at)?;
            let storage = state.backend.caps().storage(out.dtype);
            let bytes = out.shape.elems() * storage.bytes();
            (state.read(&[(lease.id, bytes)])?, ticket, out, storage)
        };
        let mut bytes = pending.finish(self.context)?;
        table::lock(self.context)?.tell(ticket)?;
        let bytes = bytes.pop().unwrap_or_else(|| Vec::new().into());
        HostTensor::from_bytes(out.shape, storage, bytes)
    }

    /// The value, computed now if it is not yet.
    ///
    /// # Errors
    /// What the device meets; the error of the flush that failed to compute the value; `Stale`.
    #[track_caller]
    pub fn read(&self) -> Result<HostTensor> {
        let at = Location::caller();
        let dtype = self.try_out()?.dtype;
        Ok(self.stored(at)?.cast(dtype))
    }

    /// The elements, row-major, as `T`.
    ///
    /// # Errors
    /// As [`Tensor::read`].
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.stored(Location::caller())?.to_vec())
    }

    /// The one element, as `T`.
    ///
    /// # Errors
    /// As [`Tensor::read`]; `Shape` when there is not exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let shape = self.try_out()?.shape;
        if shape.elems() != 1 {
            return Err(Error::new(ErrorKind::Shape, "item", format!("{shape} is not one element")));
        }
        Ok(self.to_vec()?[0])
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let look = table::lock(self.context).and_then(|mut state| record::look(&mut state, self));
        let pool = match self.pool {
            PERSISTENT => format!("persistent, version {}", self.generation),
            pool => format!("pass {pool}, generation {}", self.generation),
        };
        match look {
            Ok(look) => write!(f, "Tensor({:?}, {pool}, {})", look.out, look.standing.name()),
            Err(_) => write!(f, "Tensor({pool}, stale, made at {})", self.at),
        }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let look = table::lock(self.context).and_then(|mut state| record::look(&mut state, self));
        match look {
            Err(error) => write!(f, "{error}"),
            Ok(look) if look.standing.lease().is_none() => {
                write!(f, "[{}, {:?}]", look.standing.name(), look.out)
            }
            Ok(look) => match self.to_vec::<f64>() {
                Ok(elems) => crate::print::array(f, look.out, &elems),
                Err(error) => write!(f, "{error}"),
            },
        }
    }
}
