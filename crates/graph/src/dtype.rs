//! Element types, their sizes, their rounding, and the promotion table.

use std::fmt;

/// The type of a tensor's elements.
///
/// Sums, products and functions of [`DType::F16`] and [`DType::BF16`] are computed in f32 and rounded once,
/// when an operation ends: halves are how values are stored.
///
/// What two operands of one operation become ([`DType::promote`]; as PyTorch has it):
///
/// |      | bool | u8  | u32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// |------|------|-----|-----|-----|-----|-----|------|-----|-----|
/// | bool | bool | u8  | u32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | u8   | u8   | u8  | u32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | u32  | u32  | u32 | u32 | i64 | i64 | f16 | bf16 | f32 | f64 |
/// | i32  | i32  | i32 | i64 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | i64  | i64  | i64 | i64 | i64 | i64 | f16 | bf16 | f32 | f64 |
/// | f16  | f16  | f16 | f16 | f16 | f16 | f16 | f32  | f32 | f64 |
/// | bf16 | bf16 | bf16| bf16| bf16| bf16| f32 | bf16 | f32 | f64 |
/// | f32  | f32  | f32 | f32 | f32 | f32 | f32 | f32  | f32 | f64 |
/// | f64  | f64  | f64 | f64 | f64 | f64 | f64 | f64  | f64 | f64 |
///
/// A number written in the program widens nothing: a float takes the float dtype of the tensor beside it (f32
/// beside integers and bool), an integer any number dtype (i32 beside bool).
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
    /// Signed 64-bit integers, wrapping.
    I64,
    /// IEEE 754 halves: 11 bits of precision, up to 65504.
    F16,
    /// The upper halves of f32: 8 bits of precision, the range of f32.
    BF16,
    /// 32-bit floats: the default.
    F32,
    /// 64-bit floats; CPU executor only.
    F64,
}

impl DType {
    /// Every dtype, in promotion order.
    pub const ALL: [DType; 9] = [
        DType::Bool,
        DType::U8,
        DType::U32,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element, on the host and in device storage.
    pub const fn bytes(self) -> usize {
        match self {
            DType::Bool | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether elements are floating-point numbers, and so may have a gradient.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether elements are floats of 16 bits, which are stored so and computed in f32.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Whether elements are integers (truth values are not).
    pub const fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::U32 | DType::I32 | DType::I64)
    }

    /// The dtype of an operation on both: the larger in the order bool < u8 < {u32, i32} < i64 < {f16, bf16}
    /// < f32 < f64, where two in braces meet in the next.
    pub fn promote(self, other: DType) -> DType {
        match (self, other) {
            (DType::U32, DType::I32) | (DType::I32, DType::U32) => DType::I64,
            (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
            (a, b) => a.max(b),
        }
    }

    /// The dtype in which floats of this one are computed: f32 for halves, else itself.
    pub fn computed(self) -> DType {
        if self.is_half() { DType::F32 } else { self }
    }

    /// The distance from 1 to the next larger float; 0 for integers and truth values.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            DType::F32 => f64::from(f32::EPSILON),
            DType::F64 => f64::EPSILON,
            _ => 0.0,
        }
    }

    /// The largest finite float, or the largest integer, as f64.
    pub fn max_value(self) -> f64 {
        match self {
            DType::Bool => 1.0,
            DType::U8 => 255.0,
            DType::U32 => f64::from(u32::MAX),
            DType::I32 => f64::from(i32::MAX),
            DType::I64 => i64::MAX as f64,
            DType::F16 => 65504.0,
            DType::BF16 => f64::from_bits(0x47ef_e000_0000_0000),
            DType::F32 => f64::from(f32::MAX),
            DType::F64 => f64::MAX,
        }
    }

    /// The float of this dtype nearest to `x`, ties to even; beyond the largest infinity. Integers and truth
    /// values are left as they are.
    pub fn round(self, x: f64) -> f64 {
        let (bits, lowest) = match self {
            DType::F16 => (10, -14),
            DType::BF16 => (7, -126),
            DType::F32 => return f64::from(x as f32),
            _ => return x,
        };
        if x == 0.0 || !x.is_finite() {
            return x;
        }
        // The last place of `x` in this dtype is a power of two, so both products are exact.
        let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let place = 2f64.powi(exponent.max(lowest) - bits);
        let y = (x / place).round_ties_even() * place;
        if y.abs() > self.max_value() { f64::INFINITY.copysign(x) } else { y }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        })
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// The table in the documentation of [`DType`], row by row.
    #[test]
    fn promotion_is_that_of_the_table() {
        use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8, U32};
        let table = [
            [Bool, U8, U32, I32, I64, F16, BF16, F32, F64],
            [U8, U8, U32, I32, I64, F16, BF16, F32, F64],
            [U32, U32, U32, I64, I64, F16, BF16, F32, F64],
            [I32, I32, I64, I32, I64, F16, BF16, F32, F64],
            [I64, I64, I64, I64, I64, F16, BF16, F32, F64],
            [F16, F16, F16, F16, F16, F16, F32, F32, F64],
            [BF16, BF16, BF16, BF16, BF16, F32, BF16, F32, F64],
            [F32, F32, F32, F32, F32, F32, F32, F32, F64],
            [F64, F64, F64, F64, F64, F64, F64, F64, F64],
        ];
        let text = include_str!("dtype.rs");
        for (a, row) in DType::ALL.into_iter().zip(table) {
            for (b, wanted) in DType::ALL.into_iter().zip(row) {
                assert_eq!(a.promote(b), wanted, "{a} with {b}");
            }
            let line =
                text.lines().find(|l| l.starts_with(&format!("/// | {a} "))).expect("a row of the table");
            let cells: Vec<&str> = line.split('|').skip(2).map(str::trim).filter(|c| !c.is_empty()).collect();
            assert_eq!(cells, row.map(|d| d.to_string()), "the documented row of {a}");
        }
    }

    #[test]
    fn halves_round_to_the_nearest_with_ties_to_even() {
        // Every f16 and bf16 is itself; halfway between neighbours goes to the even one.
        for bits in 0..=u16::MAX {
            for (x, next, dtype) in [
                (
                    f64::from(f16::from_bits(bits)),
                    f64::from(f16::from_bits(bits.wrapping_add(1))),
                    DType::F16,
                ),
                (
                    f64::from(bf16::from_bits(bits)),
                    f64::from(bf16::from_bits(bits.wrapping_add(1))),
                    DType::BF16,
                ),
            ] {
                if x.is_nan() {
                    assert!(dtype.round(x).is_nan());
                    continue;
                }
                assert_eq!(dtype.round(x).to_bits(), x.to_bits(), "{dtype} {bits:04x}");
                if x.is_finite() && next.is_finite() && x.signum() == next.signum() {
                    let middle = x / 2.0 + next / 2.0;
                    let even = if bits & 1 == 0 { x } else { next };
                    assert_eq!(dtype.round(middle), even, "{dtype} {bits:04x}");
                    let nudged = middle + (x - middle) * 1e-9;
                    assert_eq!(dtype.round(nudged), x, "{dtype} {bits:04x}");
                }
            }
        }
        assert_eq!(DType::F16.round(65519.9), 65504.0);
        assert_eq!(DType::F16.round(-65520.0), f64::NEG_INFINITY);
        assert_eq!(DType::F16.round(2f64.powi(-25)), 0.0);
        assert_eq!(DType::F16.round(2f64.powi(-25) * 1.01), 2f64.powi(-24));
        assert_eq!(DType::BF16.round(3.4e38), f64::INFINITY);
    }
}
