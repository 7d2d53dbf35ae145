//! Element types, their sizes, and the promotion table.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// Truth values; one byte each, 0 or 1.
    Bool,
    /// Unsigned bytes, wrapping.
    U8,
    /// Unsigned 32-bit integers, wrapping.
    U32,
    /// Signed 32-bit integers, wrapping.
    I32,
    /// 32-bit floats: the default.
    F32,
    /// 64-bit floats; CPU executor only.
    F64,
}

impl DType {
    /// Every dtype, in promotion order.
    pub const ALL: [DType; 6] = [DType::Bool, DType::U8, DType::U32, DType::I32, DType::F32, DType::F64];

    /// Bytes of one element, on the host and in device storage.
    pub const fn bytes(self) -> usize {
        match self {
            DType::Bool | DType::U8 => 1,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::F64 => 8,
        }
    }

    /// Whether elements are floating-point numbers, and so may have a gradient.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64)
    }

    /// Whether elements are integers (truth values are not).
    pub const fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::U32 | DType::I32)
    }

    /// The dtype of an operation on both: the larger in the order bool < u8 < {u32, i32} < f32 < f64;
    /// `None` for u32 with i32, where no common integer of 32 bits exists.
    pub fn promote(self, other: DType) -> Option<DType> {
        match (self, other) {
            (DType::U32, DType::I32) | (DType::I32, DType::U32) => None,
            (a, b) => Some(a.max(b)),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::F32 => "f32",
            DType::F64 => "f64",
        })
    }
}
