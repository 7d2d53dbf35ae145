//! Tensor methods. Each is one entry of [`methods!`], which makes the pair `x()` (mistakes panic at
//! the caller's line) and `try_x()` (the same text as an [`Error`]). Broadcasting, promotion and
//! `keepdim` end here: the graph sees equal shapes and dtypes.
//!
//! The line of a node is the user's: the outermost method on the way notes its caller ([`crate::line`]).

/// Methods in pairs: `name try_name(self, arg: Type) -> Out { body of try_name }`.
macro_rules! methods {
    (impl $owner:ident, $recv:ty; $(
        $(#[$doc:meta])*
        $name:ident $try_name:ident($self:ident $(, $arg:ident: $ty:ty)*) -> $out:ty $body:block
    )*) => {
        #[allow(clippy::should_implement_trait, reason = "the operators' traits call these methods")]
        impl $owner {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name($self: $recv $(, $arg: $ty)*) -> $out {
                crate::ops::or_panic($self.$try_name($($arg),*))
            }

            #[doc = concat!("As [`", stringify!($owner), "::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// Where the other panics.
            #[track_caller]
            pub fn $try_name($self: $recv $(, $arg: $ty)*) -> crate::Result<$out> {
                let _line = crate::line::Line::enter(std::panic::Location::caller());
                let _recording = crate::profiling::recording();
                let _policy = crate::autocast::method(stringify!($name), &$self);
                $body
            }
        )*}
    };
}

/// Returns early with an error that names the caller's line and the operands:
/// `refuse!([x, w] Shape, "add", "shapes {a} and {b} do not broadcast")`.
macro_rules! refuse {
    ([$($x:expr),*] $kind:ident, $op:expr, $($detail:tt)+) => {
        return Err(crate::ops::mistake(wgrad_graph::ErrorKind::$kind, $op, format!($($detail)+), &[$($x),*]))
    };
    ($kind:ident, $op:expr, $($detail:tt)+) => { refuse!([] $kind, $op, $($detail)+) };
}

/// The first line of a composite that computes with floats: with a half `x` it is computed in f32 as a whole and
/// rounded once, as `in_f32!(self, try_softmax(axis));`.
macro_rules! in_f32 {
    ($x:expr, $again:ident($($arg:expr),*)) => {{
        let dtype = $x.try_out()?.dtype;
        if dtype.is_half() {
            let y = crate::ops::cast($x, wgrad_graph::DType::F32)?.$again($($arg),*)?;
            return if crate::autocast::stays_wide() { Ok(y) } else { crate::ops::cast(y, dtype) };
        }
    }};
}

/// The first line of a method whose factors a scope of `autocast` rounds to halves:
/// `in_halves!([self, w], |a, b| a.try_matmul(b));`. Its sums are f32, and its result is rounded once.
macro_rules! in_halves {
    ([$($x:expr),*], |$($y:ident),*| $again:expr) => {
        if let Some(half) = crate::autocast::half(&[$($x),*])? {
            let pass = crate::ops::pass_of_all(&[$($x),*])?;
            let _products = crate::autocast::pause();
            $(let $y = crate::autocast::rounded($x, half, pass)?;)*
            return crate::ops::cast($again?, half);
        }
    };
}

mod activation;
mod args;
mod arith;
mod attention;
mod channel;
mod channels_last;
mod choice;
mod contract;
mod conv;
mod create;
mod distance;
mod einsum;
mod index;
mod linalg;
mod loss;
mod matmul;
mod movement;
mod norm;
mod operand;
mod pad;
mod random;
mod reduce;
mod sampling;
mod scan;
mod scatter;
mod slice;
mod softmax;
mod solve;
mod sort;
mod spatial;
mod statistics;
mod tile;
mod unary;
mod windows;

pub use args::{AxesArg, Cut, DimsArg};
pub use attention::{Attention, Pairing};
pub use choice::{Close, NanToNum};
pub use conv::{Conv, ConvTranspose, Padding};
pub use create::Indexing;
pub use distance::PairwiseDistance;
pub use linalg::DotAxes;
pub use loss::{
    Bce, BceWithLogits, CosineEmbedding, CrossEntropy, Ctc, GaussianNll, Hinge, HingeEmbedding, Huber, KlDiv,
    MarginRanking, MultiMargin, Nll, PoissonNll, Reduction, SmoothL1, TripletMargin,
};
pub use norm::{BatchNorm, LocalResponseNorm};
pub use operand::{Operand, Start};
pub use pad::PadMode;
pub use scatter::ScatterReduce;
pub use solve::Triangular;
pub use sort::Interpolation;
pub use spatial::*;
pub use windows::Windows;

pub(crate) use arith::binary;
pub(crate) use attention::{parts, past, weights};
pub(crate) use index::iota;
pub(crate) use linalg::unit;
pub(crate) use movement::permute;
pub(crate) use slice::{slice, steps_on};
pub(crate) use solve::matrix;
pub(crate) use unary::unary;
pub(crate) use windows::{diag_embed, overlap_add};

use std::panic::Location;

use wgrad_graph::{DType, Error, ErrorKind, HostTensor, MAX_RANK, Op, Out, Result, Shape};

use crate::line;
use crate::pass::{OpenPass, stream_hash};
use crate::record::{self, Recorded};
use crate::state::{Number, Source};
use crate::table;
use crate::tensor::Tensor;

/// The value, or a panic with the error's text at the caller's line.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// An error at the caller's line that shows the operands.
#[track_caller]
pub(crate) fn mistake(kind: ErrorKind, op: &str, detail: String, x: &[Tensor]) -> Error {
    let error = Error::new(kind, op, detail).at(line::or(Location::caller()));
    x.iter().fold(error, |error, x| match x.try_out() {
        Ok(out) => error.operand(format!("{out:?}"), Some(x.at)),
        Err(_) => error,
    })
}

/// What records without operands.
impl OpenPass {
    #[track_caller]
    fn record(self, op: Op, x: &[Tensor], to: Option<Shape>, dtype: Option<DType>) -> Result<Tensor> {
        record::operation(Some(self), Recorded { op, x, to, dtype }, Location::caller())
    }

    #[track_caller]
    fn number(self, value: f64, dtype: DType) -> Result<Tensor> {
        record::number(self, Number::Literal(value), dtype, Location::caller())
    }

    /// A constant that is uploaded once a context.
    #[track_caller]
    fn table(self, name: &'static str, make: fn() -> HostTensor) -> Result<Tensor> {
        record::constant(self, name, make, Location::caller())
    }

    /// The operands `k0, k1, step, row` of [`Op::Random`] for the next draw from `stream`.
    #[track_caller]
    fn random_key(self, stream: &str) -> Result<[Tensor; 4]> {
        let (seed, draw, row) = {
            let mut state = table::lock(self.context)?;
            let seed = state.seed;
            let pool = record::current(&mut state, self)?;
            let draws = pool.streams.entry(stream.to_owned()).or_insert(0);
            *draws += 1;
            (seed, *draws - 1, pool.row)
        };
        let key = seed ^ stream_hash(stream, draw);
        let [k0, k1] = [key, key >> 32].map(|word| f64::from(word as u32));
        Ok([
            self.number(k0, DType::U32)?,
            self.number(k1, DType::U32)?,
            record::number(self, Number::Step, DType::U32, Location::caller())?,
            self.number(f64::from(row), DType::U32)?,
        ])
    }
}

/// The pass in which an operation on `x` is recorded.
#[track_caller]
fn pass_of(x: Tensor) -> Result<OpenPass> {
    record::pass_of(&[x], Location::caller())
}

/// The pass in which an operation on all of `x` is recorded.
#[track_caller]
pub(crate) fn pass_of_all(x: &[Tensor]) -> Result<OpenPass> {
    record::pass_of(x, Location::caller())
}

/// Data of the host in the pass of `beside`.
#[track_caller]
pub(crate) fn host(beside: Tensor, data: HostTensor) -> Result<Tensor> {
    let out = Out { shape: data.shape(), dtype: data.dtype() };
    record::leaf(pass_of(beside)?, Source::Host(data), out, Location::caller())
}

/// `x` with the elements of `dtype`.
#[track_caller]
pub(crate) fn cast(x: Tensor, dtype: DType) -> Result<Tensor> {
    if x.try_out()?.dtype == dtype { Ok(x) } else { Tensor::record(Op::Cast, &[x], None, Some(dtype)) }
}

/// `x` in the dtype in which floats like its are computed (f32 for halves and integers), and the dtype to
/// which the result of a composite is cast in the end: so that it is rounded once, and sums of halves do not
/// overflow on the way.
#[track_caller]
pub(crate) fn widen(x: Tensor) -> Result<(Tensor, DType)> {
    let dtype = x.try_out()?.dtype;
    let narrow = if dtype.is_float() { dtype } else { DType::F32 };
    let wide = narrow.computed();
    Ok((cast(x, wide)?, if crate::autocast::stays_wide() { wide } else { narrow }))
}

/// `x` under another shape of as many elements.
#[track_caller]
pub(crate) fn reshape(x: Tensor, shape: Shape) -> Result<Tensor> {
    if x.try_out()?.shape == shape { Ok(x) } else { Tensor::record(Op::Reshape, &[x], Some(shape), None) }
}

/// `x` broadcast to `shape` by NumPy's rule.
#[track_caller]
pub(crate) fn expand(x: Tensor, shape: Shape) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    if from == shape {
        return Ok(x);
    }
    if from.broadcast(&shape) != Some(shape) {
        refuse!([x] Shape, "expand", "{from} does not expand to {shape}");
    }
    let mut dims = [1; MAX_RANK];
    dims[shape.rank() - from.rank()..shape.rank()].copy_from_slice(from.dims());
    let x = reshape(x, Shape::new(&dims[..shape.rank()]))?;
    if x.try_out()?.shape == shape { Ok(x) } else { Tensor::record(Op::Expand, &[x], Some(shape), None) }
}

/// Both operands with the shape that they broadcast to and the dtype that they promote to.
#[track_caller]
pub(crate) fn meet(op: &str, a: Tensor, b: Tensor) -> Result<[Tensor; 2]> {
    let (x, w) = (a.try_out()?, b.try_out()?);
    if x == w {
        return Ok([a, b]);
    }
    let dtype = x.dtype.promote(w.dtype);
    let Some(shape) = x.shape.broadcast(&w.shape) else {
        refuse!([a, b] Shape, op, "shapes {} and {} do not broadcast", x.shape, w.shape);
    };
    Ok([expand(cast(a, dtype)?, shape)?, expand(cast(b, dtype)?, shape)?])
}

/// The shape with these sizes, or an error of `op`.
#[track_caller]
pub(crate) fn shape(op: &str, dims: &[usize]) -> Result<Shape> {
    match Shape::try_new(dims) {
        Some(shape) => Ok(shape),
        None => refuse!(Shape, op, "shape {dims:?}: rank over {MAX_RANK}, or too many elements"),
    }
}
