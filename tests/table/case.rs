//! What a case is, and the numbers that it runs on.

use wgrad::{DType, HostTensor, Pass, Tensor};

/// What a case records on its operands.
pub(crate) type Record = Box<dyn Fn(&Pass, &[Tensor]) -> Tensor + Send + Sync>;

/// How far a case's gradients are checked.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Grad {
    /// Nothing flows, or the function jumps.
    None,
    /// First derivatives.
    Once,
    /// First and second derivatives.
    Twice,
}

/// The elements of an operand.
#[derive(Clone, Debug)]
pub(crate) enum Elems {
    /// Distinct floats spread over an interval.
    Float { lo: f64, hi: f64 },
    /// Integers (i32) of `lo..hi`.
    Int { lo: i64, hi: i64 },
    /// Truth values.
    Bool,
    /// These, of the dtype.
    Given(Vec<f64>, DType),
}

/// What a case is given.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) dims: Vec<usize>,
    pub(crate) elems: Elems,
}

/// Distinct floats spread over `lo..hi`; they have a gradient.
pub(crate) fn float(dims: impl AsRef<[usize]>, lo: f64, hi: f64) -> Operand {
    Operand { dims: dims.as_ref().to_vec(), elems: Elems::Float { lo, hi } }
}

/// These floats; they have a gradient.
pub(crate) fn floats_of(dims: impl AsRef<[usize]>, elems: &[f64]) -> Operand {
    Operand { dims: dims.as_ref().to_vec(), elems: Elems::Given(elems.to_vec(), DType::F32) }
}

/// Integers (i32) of `lo..hi`.
pub(crate) fn ints(dims: impl AsRef<[usize]>, lo: i64, hi: i64) -> Operand {
    Operand { dims: dims.as_ref().to_vec(), elems: Elems::Int { lo, hi } }
}

/// These integers (i32).
pub(crate) fn ints_of(dims: impl AsRef<[usize]>, elems: &[i64]) -> Operand {
    let elems = elems.iter().map(|e| *e as f64).collect();
    Operand { dims: dims.as_ref().to_vec(), elems: Elems::Given(elems, DType::I32) }
}

/// Truth values.
pub(crate) fn bools(dims: impl AsRef<[usize]>) -> Operand {
    Operand { dims: dims.as_ref().to_vec(), elems: Elems::Bool }
}

/// `count` distinct numbers spread over `lo..hi`, no two of them symmetric.
pub(crate) fn spread(count: usize, lo: f64, hi: f64, turn: f64) -> Vec<f64> {
    (0..count).map(|i| lo + (hi - lo) * ((i as f64 + turn) * 0.618_033_988_749_894_9).fract()).collect()
}

/// A tensor on the host.
pub(crate) fn host(dims: &[usize], elems: &[f64], dtype: DType) -> HostTensor {
    HostTensor::new(dims, elems).expect("a case's elements fill its shape").cast(dtype)
}

impl Operand {
    /// Whether gradients flow to the operand.
    pub(crate) fn is_float(&self) -> bool {
        match self.elems {
            Elems::Float { .. } => true,
            Elems::Given(_, dtype) => dtype.is_float(),
            Elems::Int { .. } | Elems::Bool => false,
        }
    }

    /// The dtype of the operand where floats are `float`.
    pub(crate) fn dtype(&self, float: DType) -> DType {
        match self.elems {
            Elems::Float { .. } => float,
            Elems::Int { .. } => DType::I32,
            Elems::Bool => DType::Bool,
            Elems::Given(_, dtype) => {
                if dtype.is_float() {
                    float
                } else {
                    dtype
                }
            }
        }
    }

    /// The elements of operand number `at`, row-major.
    pub(crate) fn elems(&self, at: usize) -> Vec<f64> {
        let count: usize = self.dims.iter().product();
        match &self.elems {
            Elems::Float { lo, hi } => spread(count, *lo, *hi, 0.31 + 2.6 * at as f64),
            Elems::Int { lo, hi } => {
                let turned = spread(count, 0.0, (hi - lo) as f64, 0.45 + 1.7 * at as f64);
                turned.iter().map(|x| *lo as f64 + x.floor()).collect()
            }
            Elems::Bool => spread(count, 0.0, 1.0, 0.13 + 1.1 * at as f64)
                .iter()
                .map(|x| f64::from(u8::from(*x < 0.5)))
                .collect(),
            Elems::Given(elems, _) => elems.clone(),
        }
    }
}

/// An operation with its operands: one row of the table.
pub(crate) struct Case {
    /// The method's stem, and after a space what is special about the case.
    pub(crate) name: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) f: Record,
    pub(crate) grad: Grad,
    /// Largest error of an f32 device, relative to `max(1, |value|)`; ten times that for gradients.
    pub(crate) tolerance: f64,
    /// Whether the case is too much work for a slow software driver.
    pub(crate) large: bool,
}

/// A case whose first and second derivatives are checked, with tolerance 1e-5.
pub(crate) fn case(
    name: impl Into<String>,
    operands: impl Into<Vec<Operand>>,
    f: impl Fn(&Pass, &[Tensor]) -> Tensor + Send + Sync + 'static,
) -> Case {
    let (name, operands) = (name.into(), operands.into());
    Case { name, operands, f: Box::new(f), grad: Grad::Twice, tolerance: 1e-5, large: false }
}

impl Case {
    /// Without gradients.
    pub(crate) fn no_grad(self) -> Case {
        Case { grad: Grad::None, ..self }
    }

    /// With first derivatives alone.
    pub(crate) fn once(self) -> Case {
        Case { grad: Grad::Once, ..self }
    }

    /// With another tolerance.
    pub(crate) fn tolerance(self, tolerance: f64) -> Case {
        Case { tolerance, ..self }
    }

    /// Not on slow software drivers.
    pub(crate) fn large(self) -> Case {
        Case { large: true, ..self }
    }
}
