//! The operations: about thirty leaves in families. Shapes are explicit here: broadcasting, dtype
//! promotion and `keepdim` are undone by the tensor methods before an operation reaches the graph.

use crate::{Attend, Axes, CustomId, DType, MAX_RANK};

/// Where each axis of the result comes from: result axis `i` is operand axis `perm[i]`.
pub type Perm = [u8; MAX_RANK];

/// Start and step of a slice on each axis: element `i` of the result is element
/// `start + i * step` of the operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Steps {
    /// First element taken on each axis.
    pub start: [i64; MAX_RANK],
    /// Distance between elements taken; negative runs backwards; never 0.
    pub step: [i64; MAX_RANK],
}

impl Steps {
    /// The slice that takes everything.
    pub const ALL: Steps = Steps { start: [0; MAX_RANK], step: [1; MAX_RANK] };
}

/// An operation of a graph node. Equality and hash are structural: floating-point operands are
/// inputs ([`Op::Scalar`]), never part of an operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A value from outside: an owned value, a computed value, or bytes from the host. No operands.
    Input,
    /// One number, supplied anew with every submission. Shape `[]`. No operands.
    Scalar,
    /// The index along `axis`, as the node's dtype (u32, i32, i64 or float). No operands.
    Iota {
        /// The axis whose index is the value.
        axis: u8,
    },
    /// 32 random bits an element: word 0 of Philox4x32-10 with key `(k0, k1)` and counter
    /// `(row * elems_per_row + i, 0, step, 0)`, `i` the row-major index and `elems_per_row` the
    /// product of all sizes but the first. Operands: u32 scalars `k0, k1, step, row`.
    Random,
    /// An elementwise function of one operand.
    Unary(Unary),
    /// An elementwise function of two operands of one shape and dtype.
    Binary(Binary),
    /// `c ? a : b` elementwise. Operands: bool `c`, then `a` and `b` of one dtype.
    Select,
    /// Conversion to the node's dtype. Float to integer truncates and saturates, NaN becomes 0;
    /// integers wrap; to bool is `x != 0`.
    Cast,
    /// Sum, product, maximum or minimum over `axes`; reduced axes stay with size 1. Maximum and
    /// minimum keep NaN; over nothing they are -inf and +inf (integers: the extreme value).
    Reduce {
        /// How elements combine.
        kind: Reduce,
        /// The axes that are reduced.
        axes: Axes,
    },
    /// Index (i32) of the first maximum or minimum along `axis`, which stays with size 1; NaN wins.
    ArgReduce {
        /// Whether the maximum (else the minimum) is sought.
        max: bool,
        /// The axis searched.
        axis: u8,
    },
    /// `[.., M, K] x [.., K, N] -> [.., M, N]`, equal leading sizes, one float dtype.
    MatMul,
    /// The same elements in row-major order under another shape.
    Reshape,
    /// Axes reordered.
    Permute(Perm),
    /// Axes of size 1 repeated to the node's sizes; equal ranks.
    Expand,
    /// A strided part.
    Slice(Steps),
    /// Sliding windows along `axis`: `out[.., i, .., k] = x[.., i * step + k * dilation, ..]`, where `k`
    /// is a new last axis. No copy: windows overlap.
    Windows {
        /// The axis along which windows slide; it becomes the count of windows.
        axis: u8,
        /// Elements of a window: the size of the last axis.
        size: u32,
        /// Distance between windows.
        step: u32,
        /// Distance between the elements of a window.
        dilation: u32,
    },
    /// `out[.., i] = x[.., i, .., i, ..]`: axes `a` and `b`, of equal size, become one last axis.
    Diagonal {
        /// One axis.
        a: u8,
        /// The other.
        b: u8,
    },
    /// Zeros around the operand: `lo[i]` before it on axis `i`, the rest of the node's size after.
    Pad {
        /// Zeros before the operand on each axis.
        lo: [u32; MAX_RANK],
    },
    /// Operands one after the other along `axis`.
    Concat {
        /// The axis along which operands follow each other.
        axis: u8,
    },
    /// A part of the node's size on `axis`, from a start known at submission.
    /// Operands: `x`, u32 scalar `start`.
    SliceAt {
        /// The axis that is cut.
        axis: u8,
    },
    /// `base` with a strided part replaced. Operands: `base`, `part`.
    SliceAssign(Steps),
    /// `base` with the part from a start known at submission replaced.
    /// Operands: `base`, `part`, u32 scalar `start`.
    SliceAssignAt {
        /// The axis on which the part is placed.
        axis: u8,
    },
    /// `out[.., i, ..] = x[.., idx[.., i, ..], ..]` along `axis`; out of range reads 0 and raises the
    /// step's error flag. Operands: `x`, integer `idx`, equal sizes on every other axis.
    Gather {
        /// The axis that is indexed.
        axis: u8,
    },
    /// `out[.., idx[.., i, ..], ..] = combine(itself, src[.., i, ..])` over the neutral element, combined in
    /// ascending `i`; out of range writes nothing and raises the step's error flag. Operands: integer `idx`,
    /// `src` of equal shape.
    Scatter {
        /// The axis that is indexed.
        axis: u8,
        /// How values that meet combine.
        kind: Reduce,
    },
    /// Every element combined with those before it along `axis` (after it where `reverse`). Operands: `x`;
    /// for `Recur` the factors `a`, then `b`.
    Scan {
        /// How elements combine.
        kind: Scan,
        /// The axis along which elements follow each other.
        axis: u8,
        /// Whether the last element is the first of the scan.
        reverse: bool,
    },
    /// The indices (i32) along `axis` that put elements in order: by value, equal ones by index. NaN counts
    /// as largest.
    ArgSort {
        /// The axis that is sorted.
        axis: u8,
        /// Whether the largest comes first; equal ones still by ascending index.
        descending: bool,
    },
    /// A factorisation or a solution of small matrices: one an index of the leading axes.
    Matrix(Matrix),
    /// Weighted sums of values, see [`Attend`].
    Attention(Attend),
    /// The gradients of [`Op::Attention`]'s queries, keys and values.
    AttentionGrad(Attend),
    /// A user's kernel.
    Custom(CustomId),
}

/// What is computed of square matrices `a` of `[.., n, n]`; floats.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Matrix {
    /// `[.., n, n]`: the lower `L` with `L L^T = a`, from the lower half of `a`. NaN on and below the
    /// diagonal where `a` is not positive definite.
    Cholesky,
    /// `[.., n, k]`: the `x` with `a x = b`, from one half of `a`. Operands: `a`, `b`.
    Triangular {
        /// Whether the upper half is taken (else the lower).
        upper: bool,
        /// Whether the diagonal counts as ones.
        unit: bool,
    },
    /// `[.., n, k]`: the `x` with `a x = b`, by elimination with row exchanges; NaN where a pivot is 0.
    /// Operands: `a`, `b`.
    Solve,
    /// `[.., 2]`: the determinant's sign, and the logarithm of its absolute value.
    Slogdet,
    /// `[..]`: the determinant.
    Det,
}

impl Matrix {
    /// The stem of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Matrix::Cholesky => "cholesky",
            Matrix::Triangular { .. } => "solve_triangular",
            Matrix::Solve => "solve",
            Matrix::Slogdet => "slogdet",
            Matrix::Det => "det",
        }
    }
}

/// How a scan combines elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Addition.
    Sum,
    /// Multiplication.
    Prod,
    /// `log(e^x + e^w)`; floats.
    LogAddExp,
    /// The index (i32) of the largest so far, of equal ones the latest; NaN counts as largest.
    ArgMax,
    /// The index (i32) of the smallest so far, of equal ones the latest; NaN counts as smallest.
    ArgMin,
    /// `h[t] = a[t] * h[t - 1] + b[t]`, where `h` is 0 before the first.
    Recur,
}

impl Scan {
    /// The stem of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Scan::Sum => "cumsum",
            Scan::Prod => "cumprod",
            Scan::LogAddExp => "logcumsumexp",
            Scan::ArgMax => "cummax",
            Scan::ArgMin => "cummin",
            Scan::Recur => "recur",
        }
    }

    /// The dtype of the result for operands of dtype `x`.
    pub fn dtype(self, x: DType) -> DType {
        if matches!(self, Scan::ArgMax | Scan::ArgMin) { DType::I32 } else { x }
    }
}

/// How a reduction combines elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Addition, from 0.
    Sum,
    /// Multiplication, from 1.
    Prod,
    /// The largest; NaN if any is.
    Max,
    /// The smallest; NaN if any is.
    Min,
}

impl Reduce {
    /// The stem of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Reduce::Sum => "sum",
            Reduce::Prod => "prod",
            Reduce::Max => "max",
            Reduce::Min => "min",
        }
    }

    /// The stem of the scatter that combines so.
    pub fn scatter_name(self) -> &'static str {
        match self {
            Reduce::Sum => "scatter_add",
            Reduce::Prod => "scatter_prod",
            Reduce::Max => "scatter_max",
            Reduce::Min => "scatter_min",
        }
    }
}

macro_rules! rows {
    ($(#[$doc:meta])* $name:ident, $all:literal: $($row:ident)*) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the rows say what each is")]
        pub enum $name { $($row,)* }

        impl $name {
            #[doc = $all]
            pub const ALL: [$name; [$($name::$row),*].len()] = [$($name::$row),*];
        }
    };
}

rows! {
    /// Elementwise functions of one operand; their rows are in `rows.rs`.
    Unary, "Every unary operation.":
    Neg Abs Sign Recip Exp Exp2 Expm1 Log Log2 Log1p Sqrt Rsqrt
    Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh
    Sigmoid Softplus Relu Erf Erfc Floor Ceil Round Trunc Not LeadingZeros IsNan
}

rows! {
    /// Elementwise functions of two operands; their rows are in `rows.rs`.
    Binary, "Every binary operation.":
    Add Sub Mul Div FloorDiv Rem Fmod Pow Maximum Minimum
    Atan2 Hypot Copysign Xlogy MulZero DivZero Eq Ne Lt Le
    Gt Ge And Or Xor Shl Shr MulHigh
}

impl Unary {
    /// The dtype of the result for an operand of dtype `x`.
    pub fn dtype(self, x: DType) -> DType {
        if self == Unary::IsNan { DType::Bool } else { x }
    }
}

impl Binary {
    /// Whether the result is a truth value.
    pub fn compares(self) -> bool {
        use Binary::{Eq, Ge, Gt, Le, Lt, Ne};
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// The dtype of the result for operands of dtype `x`.
    pub fn dtype(self, x: DType) -> DType {
        if self.compares() { DType::Bool } else { x }
    }
}

impl Op {
    /// The operation's stem: its name in methods, rules, kernels, errors and tests.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input => "input",
            Op::Scalar => "scalar",
            Op::Iota { .. } => "iota",
            Op::Random => "random",
            Op::Unary(op) => op.row().name,
            Op::Binary(op) => op.row().name,
            Op::Select => "select",
            Op::Cast => "cast",
            Op::Reduce { kind, .. } => kind.name(),
            Op::ArgReduce { max: true, .. } => "argmax",
            Op::ArgReduce { max: false, .. } => "argmin",
            Op::MatMul => "matmul",
            Op::Reshape => "reshape",
            Op::Permute(_) => "permute",
            Op::Expand => "expand",
            Op::Slice(_) => "slice",
            Op::Windows { .. } => "windows",
            Op::Diagonal { .. } => "diagonal",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::SliceAt { .. } => "slice_at",
            Op::SliceAssign(_) => "slice_assign",
            Op::SliceAssignAt { .. } => "slice_assign_at",
            Op::Gather { .. } => "gather",
            Op::Scatter { kind, .. } => kind.scatter_name(),
            Op::Scan { kind, .. } => kind.name(),
            Op::ArgSort { .. } => "argsort",
            Op::Matrix(kind) => kind.name(),
            Op::Attention(_) => "scaled_dot_product_attention",
            Op::AttentionGrad(_) => "scaled_dot_product_attention_grad",
            Op::Custom(_) => "custom",
        }
    }

    /// Whether the operation has a kernel of its own that reads whole operands and writes whole results,
    /// row-major: nothing fuses into it.
    pub fn is_whole(&self) -> bool {
        matches!(self, Op::Scan { .. } | Op::ArgSort { .. } | Op::Matrix(_))
    }

    /// The attention that the operation computes or differentiates.
    pub fn attend(&self) -> Option<Attend> {
        match self {
            Op::Attention(attend) | Op::AttentionGrad(attend) => Some(*attend),
            _ => None,
        }
    }

    /// Whether the operation computes with elements rather than moving, choosing or converting them. Such an
    /// operation takes halves as f32, between two casts.
    pub fn computes(&self) -> bool {
        matches!(
            self,
            Op::Unary(_)
                | Op::Binary(_)
                | Op::Reduce { .. }
                | Op::ArgReduce { .. }
                | Op::MatMul
                | Op::Scatter { .. }
                | Op::Scan { .. }
                | Op::ArgSort { .. }
        )
    }

    /// Whether the operation only moves elements: an index function, never work of its own.
    pub fn is_movement(&self) -> bool {
        matches!(
            self,
            Op::Reshape
                | Op::Permute(_)
                | Op::Expand
                | Op::Slice(_)
                | Op::Windows { .. }
                | Op::Diagonal { .. }
                | Op::SliceAt { .. }
        )
    }
}
