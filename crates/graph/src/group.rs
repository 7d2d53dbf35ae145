//! Groups: what becomes one kernel. A group iterates over a space, evaluates expressions there, and
//! stores some of them.

use std::fmt;

use smallvec::SmallVec;

use crate::{Binary, CustomId, DType, Index, NodeId, Op, Reduce, Unary, Val};

/// Index into [`Body::exprs`].
pub type ExprId = u32;
/// Index into [`Body::indices`].
pub type IndexId = u16;

/// Nodes fused into one kernel.
///
/// The *outer* space is `dims` without its last `reduced` axes; it is the whole of `dims` unless the
/// group reduces. Expressions that lead to accumulators are evaluated over the whole space, those
/// that lead to stores over the outer one; they meet only in [`Expr::Acc`] and [`Expr::Scalar`]
/// (but see [`Kind::Row`]).
/// Axes are coalesced: neighbours that every index treats as one are one.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What kind of loop the kernel is.
    pub kind: Kind,
    /// Sizes of the iteration space, reduced axes last.
    pub dims: SmallVec<[usize; 8]>,
    /// How many trailing axes of `dims` are reduced.
    pub reduced: usize,
    /// Values read, each once.
    pub operands: Vec<Val>,
    /// Scalar nodes used, each once.
    pub scalars: Vec<NodeId>,
    /// The expressions.
    pub body: Body,
    /// Accumulators, in order; empty unless `kind` is `Reduce` or `Row` (one or more) or `MatMul` (one, whose
    /// `x` is unused).
    pub accs: Vec<Acc>,
    /// What is written.
    pub stores: Vec<Store>,
    /// The nodes that the group computes, for reports and error messages.
    pub nodes: Vec<NodeId>,
}

/// The loop that a group's kernel is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Every point of the space on its own.
    Pointwise,
    /// Accumulators over the reduced axes, then stores over the outer space.
    Reduce,
    /// Accumulators over the reduced axes (a *row*), of which each may use earlier ones, then stores over
    /// the whole or the outer space, told apart by the rank of their indices. `accs` are in an order in
    /// which they can be computed; [`Group::row_stages`] says when and where each expression is evaluated.
    /// Expressions over the outer space may be used over the whole one: they are one number along a row.
    Row,
    /// `acc 0 [.., m, n] = sum over k of a[.., m, k] * b[.., k, n]`; `dims` is `[batch.., m, n, k]`
    /// with `reduced = 1` (batch axes coalesced, `m`, `n`, `k` never), then stores over
    /// `[batch.., m, n]`. Operand indices are over the whole of `dims` (stride 0 on the axis that the
    /// operand lacks), each a sum over digits ([`Index::digits`]): several views perhaps, but no
    /// dynamic offsets, and always valid.
    MatMul {
        /// Operand number and index of `a`.
        a: (u16, IndexId),
        /// Operand number and index of `b`.
        b: (u16, IndexId),
    },
    /// `out[store index at outer coords]` combined with `src` for `i` ascending, over the neutral element. `dims` is
    /// `[columns.., i]` with `reduced = 1`; the store's index gives the element at position 0 of the
    /// scattered axis, whose stride and size follow. The out slot is filled by the kernel first (each
    /// column by its owner).
    Scatter {
        /// Operand number and index (over `dims`) of the positions.
        at: (u16, IndexId),
        /// Operand number and index (over `dims`) of the values.
        src: (u16, IndexId),
        /// Elements between neighbours on the scattered axis of the output.
        stride: i64,
        /// Size of the scattered axis of the output.
        size: usize,
        /// How values that meet combine.
        kind: Reduce,
    },
    /// An operation for which [`Op::is_whole`] holds, on row-major operands and outputs; no body.
    Whole(Op),
    /// [`Op::Attention`] or [`Op::AttentionGrad`]; no body. For each operand of the node its number and an index of
    /// one view over its own shape, without ranges; outputs are row-major.
    Attention(Op, SmallVec<[(u16, IndexId); 8]>),
    /// A user's kernel on row-major operands and outputs; no body.
    Custom(CustomId),
}

/// Expressions in evaluation order and the index functions that they use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// Each refers only to earlier ones.
    pub exprs: Vec<(Expr, DType)>,
    /// Index functions over the whole or the outer space, told apart by their rank of coordinates
    /// (equal when nothing is reduced).
    pub indices: Vec<Index>,
}

/// One scalar computation at one point of the space.
#[expect(missing_docs, reason = "each variant's sentence names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Element of an operand; 0 where the index has none.
    Load { operand: u16, index: IndexId },
    /// Element of an operand at `index` plus `at * stride`; `index` leads to position 0 of the gathered
    /// axis. 0, and the step's error flag raised, unless `0 <= at < size`. 0 where the index has none.
    Gather { operand: u16, index: IndexId, at: ExprId, stride: i64, size: usize },
    /// A scalar of the group.
    Scalar { scalar: u16 },
    /// The number that the index gives, converted to the expression's dtype.
    Coord { index: IndexId },
    /// Philox word, see [`crate::Op::Random`]: counter word 0 is `row * per_row + i` where `i` is what
    /// the index gives. `scalars` are `k0, k1, step, row`.
    Random { index: IndexId, per_row: u32, scalars: [u16; 4] },
    /// Whether the index has an element here.
    Valid { index: IndexId },
    /// A row of `Unary`.
    Unary { op: Unary, x: ExprId },
    /// A row of `Binary`.
    Binary { op: Binary, x: ExprId, w: ExprId },
    /// `c ? x : w`.
    Select { c: ExprId, x: ExprId, w: ExprId },
    /// `x` as the expression's dtype, see [`crate::Op::Cast`].
    Cast { x: ExprId },
    /// The result of an accumulator; outer space only, but in a [`Kind::Row`].
    Acc { acc: u16 },
}

/// How an accumulator combines.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccKind {
    /// A reduction in the dtype of `x`.
    Reduce(Reduce),
    /// The index (i32) of the first extreme along the one reduced axis.
    Arg {
        /// Whether the maximum (else the minimum) is sought.
        max: bool,
    },
}

/// An accumulator over the reduced axes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Acc {
    /// How elements combine.
    pub kind: AccKind,
    /// What is accumulated, over the whole space.
    pub x: ExprId,
}

/// A value that the group writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// The value.
    pub val: Val,
    /// What is written, over the outer space (unused by `Scatter`, `Whole` and `Custom`).
    pub x: ExprId,
    /// Where in the value: an index over the outer space (of a [`Kind::Row`] perhaps over the whole one),
    /// always valid, injective.
    pub index: IndexId,
    /// Where set, only a part is written; the rest of the value is that of this one, in whose place
    /// the plan puts the result, or of which it makes a copy first.
    pub base: Option<Val>,
}

impl Group {
    /// Sizes of the outer space.
    pub fn outer(&self) -> &[usize] {
        &self.dims[..self.dims.len() - self.reduced]
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Pointwise => "pointwise".to_owned(),
            Kind::Reduce => "reduce".to_owned(),
            Kind::Row => format!("row program of {}", counted(self.row_levels(), "level")),
            Kind::MatMul { .. } => "matmul".to_owned(),
            Kind::Scatter { kind, .. } => kind.scatter_name().to_owned(),
            Kind::Whole(op) | Kind::Attention(op, _) => op.name().to_owned(),
            Kind::Custom(id) => format!("custom {:x}", id.0),
        };
        let outs: Vec<_> = self.stores.iter().map(|s| s.val).collect();
        write!(f, "{kind} {:?}", self.outer())?;
        if self.reduced > 0 {
            write!(f, " over {:?}", &self.dims[self.outer().len()..])?;
        }
        write!(f, " reads {:?} writes {outs:?}", self.operands)
    }
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
