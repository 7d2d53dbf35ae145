//! Values on the host: bytes with a shape and a dtype.

use std::fmt;

use half::{bf16, f16};

use crate::{Bytes, DType, Error, ErrorKind, Result, Shape};

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of some dtype.
pub trait Element: Copy + Send + Sync + Default + PartialEq + fmt::Debug + sealed::Sealed + 'static {
    /// The dtype whose elements are of this type.
    const DTYPE: DType;
    /// Appends the element's little-endian bytes.
    fn push(self, bytes: &mut Vec<u8>);
    /// Appends the little-endian bytes of all elements.
    fn push_all(elems: &[Self], bytes: &mut Vec<u8>);
    /// The element at the start of `bytes`, which hold at least one.
    fn pull(bytes: &[u8]) -> Self;
    /// The nearest element to `x`: floats round, integers truncate and wrap, bool is `x != 0`.
    fn from_f64(x: f64) -> Self;
    /// The element as a float; exact for every dtype but i64, which is so below 2^53.
    fn to_f64(self) -> f64;
    /// The nearest element to `x`: floats round, integers wrap, bool is `x != 0`.
    fn from_i64(x: i64) -> Self;
    /// The element as an integer, exact for integers and truth values; floats truncate and saturate.
    fn to_i64(self) -> i64;
}

macro_rules! element {
    ($($t:ty, $dtype:ident, |$x:ident| $from:expr, $to:expr, $from_int:expr, $to_int:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            fn push(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn push_all(elems: &[Self], bytes: &mut Vec<u8>) {
                // In place, which compiles to a copy; appending one after the other does not.
                let start = bytes.len();
                bytes.resize(start + size_of_val(elems), 0);
                let places = bytes[start..].chunks_exact_mut(size_of::<$t>());
                places.zip(elems).for_each(|(to, e)| to.copy_from_slice(&e.to_le_bytes()));
            }
            fn pull(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(&bytes[..size_of::<$t>()]);
                <$t>::from_le_bytes(raw)
            }
            fn from_f64($x: f64) -> Self {
                $from
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
            fn from_i64(x: i64) -> Self {
                $from_int(x)
            }
            fn to_i64(self) -> i64 {
                $to_int(self)
            }
        }
    )*};
}
element! {
    f64, F64, |x| x, |x| x, |x| x as f64, |x| x as i64;
    f32, F32, |x| x as f32, f64::from, |x| x as f32, |x| x as i64;
    bf16, BF16, |x| bf16::from_f64(DType::BF16.round(x)), f64::from, |x| Self::from_f64(x as f64), |x| f64::from(x) as i64;
    f16, F16, |x| f16::from_f64(DType::F16.round(x)), f64::from, |x| Self::from_f64(x as f64), |x| f64::from(x) as i64;
    i64, I64, |x| x as i64, |x| x as f64, |x| x, |x| x;
    i32, I32, |x| x as i64 as i32, f64::from, |x| x as i32, i64::from;
    u32, U32, |x| x as i64 as u32, f64::from, |x| x as u32, i64::from;
    u8, U8, |x| x as i64 as u8, f64::from, |x| x as u8, i64::from;
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn push(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }
    fn push_all(elems: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(elems.iter().map(|e| u8::from(*e)));
    }
    fn pull(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn from_f64(x: f64) -> Self {
        x != 0.0
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn from_i64(x: i64) -> Self {
        x != 0
    }
    fn to_i64(self) -> i64 {
        i64::from(self)
    }
}

/// Calls `$f::<T>(..)` for the element type of a dtype.
macro_rules! typed {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::Bool => $f::<bool>($($arg),*),
            DType::U8 => $f::<u8>($($arg),*),
            DType::U32 => $f::<u32>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::F16 => $f::<f16>($($arg),*),
            DType::BF16 => $f::<bf16>($($arg),*),
            DType::F32 => $f::<f32>($($arg),*),
            DType::F64 => $f::<f64>($($arg),*),
        }
    };
}

/// A tensor on the host: little-endian bytes, row-major, shared by its clones.
///
/// ```
/// # fn main() -> wgrad_graph::Result<()> {
/// use wgrad_graph::HostTensor;
/// let x = HostTensor::new([2], &[1.0f32, 2.5])?;
/// assert_eq!(x.to_vec::<f32>(), [1.0, 2.5]);
/// assert_eq!(format!("{x:?}"), "HostTensor(f32[2] [1.0, 2.5])");
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    shape: Shape,
    dtype: DType,
    bytes: Bytes,
}

impl HostTensor {
    /// The tensor of `shape` with these elements, row-major.
    ///
    /// # Errors
    /// `Shape` when the number of elements differs from the shape's.
    pub fn new<T: Element>(shape: impl Into<Shape>, elems: &[T]) -> Result<HostTensor> {
        let shape = shape.into();
        if shape.elems() != elems.len() {
            crate::bail!(
                Shape,
                "host_tensor",
                "shape {shape} has {} elements, {} were given",
                shape.elems(),
                elems.len()
            );
        }
        let mut bytes = Vec::with_capacity(size_of_val(elems));
        T::push_all(elems, &mut bytes);
        Ok(HostTensor { shape, dtype: T::DTYPE, bytes: bytes.into() })
    }

    /// The tensor over raw little-endian bytes.
    ///
    /// # Errors
    /// `Data` when the number of bytes is not that of the shape's elements.
    pub fn from_bytes(shape: impl Into<Shape>, dtype: DType, bytes: impl Into<Bytes>) -> Result<HostTensor> {
        let (shape, bytes) = (shape.into(), bytes.into());
        if shape.elems() * dtype.bytes() != bytes.len() {
            return Err(Error::new(
                ErrorKind::Data,
                "host_tensor",
                format!(
                    "{dtype} {shape} needs {} bytes, {} were given",
                    shape.elems() * dtype.bytes(),
                    bytes.len()
                ),
            ));
        }
        Ok(HostTensor { shape, dtype, bytes })
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements' bytes, little-endian, row-major.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The elements as `T`, converted as [`Element::from_i64`] does from integers to integers, else as
    /// [`Element::from_f64`].
    pub fn to_vec<T: Element>(&self) -> Vec<T> {
        fn all<S: Element, T: Element>(bytes: &[u8]) -> Vec<T> {
            let elems = bytes.chunks_exact(S::DTYPE.bytes()).map(S::pull);
            if S::DTYPE == DType::I64 || (T::DTYPE == DType::I64 && !S::DTYPE.is_float()) {
                return elems.map(|e| T::from_i64(e.to_i64())).collect();
            }
            elems.map(|e| T::from_f64(e.to_f64())).collect()
        }
        if T::DTYPE == self.dtype {
            return self.bytes.chunks_exact(T::DTYPE.bytes()).map(T::pull).collect();
        }
        match self.dtype {
            DType::Bool => all::<bool, T>(&self.bytes),
            DType::U8 => all::<u8, T>(&self.bytes),
            DType::U32 => all::<u32, T>(&self.bytes),
            DType::I32 => all::<i32, T>(&self.bytes),
            DType::I64 => all::<i64, T>(&self.bytes),
            DType::F16 => all::<f16, T>(&self.bytes),
            DType::BF16 => all::<bf16, T>(&self.bytes),
            DType::F32 => all::<f32, T>(&self.bytes),
            DType::F64 => all::<f64, T>(&self.bytes),
        }
    }

    /// The same values with elements of `dtype`, converted as [`HostTensor::to_vec`] does.
    #[must_use]
    pub fn cast(&self, dtype: DType) -> HostTensor {
        fn pack<T: Element>(from: &HostTensor) -> Bytes {
            let mut bytes = Vec::with_capacity(from.shape.elems() * T::DTYPE.bytes());
            T::push_all(&from.to_vec::<T>(), &mut bytes);
            bytes.into()
        }
        let bytes = if dtype == self.dtype { self.bytes.clone() } else { typed!(dtype, pack(self)) };
        HostTensor { shape: self.shape, dtype, bytes }
    }
}

impl fmt::Debug for HostTensor {
    /// Dtype, shape and the first elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        fn list<T: Element>(x: &HostTensor, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let elems = x.bytes.chunks_exact(T::DTYPE.bytes()).map(T::pull);
            let mut list = f.debug_list();
            list.entries(elems.take(SHOWN));
            if x.shape.elems() > SHOWN { list.finish_non_exhaustive() } else { list.finish() }
        }
        write!(f, "HostTensor({}{} ", self.dtype, self.shape)?;
        typed!(self.dtype, list(self, f))?;
        f.write_str(")")
    }
}

impl From<&HostTensor> for HostTensor {
    /// A clone: it shares the bytes.
    fn from(x: &HostTensor) -> HostTensor {
        x.clone()
    }
}
