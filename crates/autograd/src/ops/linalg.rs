//! Products of vectors, matrices and tensors, made of other methods.

use smallvec::SmallVec;
use wgrad_graph::Shape;

use super::args::axis as axis_of;
use super::contract::{Label, Named, contract};
use super::{cast, expand, meet, reshape, shape};
use crate::{Result, Tensor};

/// Which axes a tensor product sums over: how many last axes of the left with as many first axes of the
/// right (`2`), or pairs by number (`([0, 1], [2, -1])`).
#[derive(Clone, Debug)]
pub struct DotAxes(Chosen);

#[derive(Clone, Debug)]
enum Chosen {
    Count(i32),
    Pairs(SmallVec<[i32; 8]>, SmallVec<[i32; 8]>),
}

impl From<i32> for DotAxes {
    fn from(count: i32) -> DotAxes {
        DotAxes(Chosen::Count(count))
    }
}

impl<const N: usize> From<([i32; N], [i32; N])> for DotAxes {
    fn from((left, right): ([i32; N], [i32; N])) -> DotAxes {
        DotAxes::from((&left[..], &right[..]))
    }
}

impl From<(&[i32], &[i32])> for DotAxes {
    fn from((left, right): (&[i32], &[i32])) -> DotAxes {
        DotAxes(Chosen::Pairs(left.into(), right.into()))
    }
}

/// Both in their common dtype.
#[track_caller]
fn alike(a: Tensor, b: Tensor) -> Result<[Tensor; 2]> {
    let dtype = a.try_out()?.dtype.promote(b.try_out()?.dtype);
    Ok([cast(a, dtype)?, cast(b, dtype)?])
}

/// Refuses operands of other ranks than these.
#[track_caller]
fn ranks(op: &str, a: Tensor, b: Tensor, want: [usize; 2]) -> Result<()> {
    let (x, w) = (a.try_out()?.shape, b.try_out()?.shape);
    if [x.rank(), w.rank()] != want {
        refuse!([a, b] Shape, op, "needs ranks {} and {}, got {x} and {w}", want[0], want[1]);
    }
    Ok(())
}

#[track_caller]
fn tensordot(a: Tensor, b: Tensor, DotAxes(chosen): DotAxes) -> Result<Tensor> {
    let [a, b] = alike(a, b)?;
    let (x, w) = (a.try_out()?.shape, b.try_out()?.shape);
    let (left, right): (Vec<i32>, Vec<i32>) = match chosen {
        Chosen::Count(n) if n < 0 || n as usize > x.rank().min(w.rank()) => {
            refuse!([a, b] Argument, "tensordot", "{n} common axes of {x} and {w}")
        }
        Chosen::Count(n) => ((x.rank() as i32 - n..x.rank() as i32).collect(), (0..n).collect()),
        Chosen::Pairs(left, right) if left.len() != right.len() => {
            refuse!([a, b] Argument, "tensordot", "axes {left:?} and {right:?} do not pair")
        }
        Chosen::Pairs(left, right) => (left.to_vec(), right.to_vec()),
    };
    let first = Named { x: a, axes: (0..x.rank() as Label).collect() };
    let second_label = |axis: usize| (x.rank() + axis) as Label;
    let mut second = Named { x: b, axes: (0..w.rank()).map(second_label).collect() };
    let mut met: Vec<Label> = Vec::new();
    for (i, j) in left.into_iter().zip(right) {
        let (i, j) = (axis_of("tensordot", i, x.rank())?, axis_of("tensordot", j, w.rank())?);
        let label = i as Label;
        if met.contains(&label) || second.axes[j] < x.rank() as Label {
            refuse!([a, b] Argument, "tensordot", "axis {i} of {x} or {j} of {w} is paired twice");
        }
        if x[i] != w[j] && x[i] != 1 && w[j] != 1 {
            refuse!([a, b] Shape, "tensordot", "axis {i} of {x} and axis {j} of {w} differ");
        }
        second.axes[j] = label;
        met.push(label);
    }
    let out: Vec<Label> =
        first.axes.iter().chain(&second.axes).copied().filter(|l| !met.contains(l)).collect();
    contract("tensordot", vec![first, second], &out)
}

#[track_caller]
fn kron(a: Tensor, b: Tensor) -> Result<Tensor> {
    let [a, b] = alike(a, b)?;
    let (x, w) = (a.try_out()?.shape, b.try_out()?.shape);
    let rank = x.rank().max(w.rank());
    let size = |s: Shape, axis: usize| (axis + s.rank()).checked_sub(rank).map_or(1, |i| s[i]);
    let (mut left, mut right, mut to) = (Vec::new(), Vec::new(), Vec::new());
    for axis in 0..rank {
        let (m, n) = (size(x, axis), size(w, axis));
        to.push(m * n);
        // An axis that one of both lacks is the other's: no pair of axes is needed.
        if m == 1 || n == 1 {
            left.push(m);
            right.push(n);
        } else {
            left.extend([m, 1]);
            right.extend([1, n]);
        }
    }
    let a = reshape(a, shape("kron", &left)?)?;
    let b = reshape(b, shape("kron", &right)?)?;
    reshape(a.try_mul(b)?, shape("kron", &to)?)
}

/// `x` of which three elements along `axis` are moved on by one, and by two.
#[track_caller]
fn cycled(x: Tensor, axis: usize) -> Result<[Tensor; 2]> {
    let along = axis as i32;
    let [first, tail] = [x.try_narrow(along, 0, 1)?, x.try_narrow(along, 1, 2)?];
    let [head, last] = [x.try_narrow(along, 0, 2)?, x.try_narrow(along, 2, 1)?];
    Ok([Tensor::try_cat(&[tail, first], along)?, Tensor::try_cat(&[last, head], along)?])
}

#[track_caller]
fn cross(a: Tensor, b: Tensor, along: i32) -> Result<Tensor> {
    let [a, b] = meet("cross", a, b)?;
    let whole = a.try_out()?.shape;
    let along = axis_of("cross", along, whole.rank())?;
    if whole[along] != 3 {
        refuse!([a, b] Shape, "cross", "axis {along} of {whole} has size {}, not 3", whole[along]);
    }
    let [a, b] = [cycled(a, along)?, cycled(b, along)?];
    a[0].try_mul(b[1])?.try_sub(a[1].try_mul(b[0])?)
}

/// The unit matrix for each matrix of `x`.
#[track_caller]
pub(crate) fn unit(x: Tensor) -> Result<Tensor> {
    let out = x.try_out()?;
    let last = out.shape.rank() - 1;
    let row = super::iota(x, out.shape, last - 1, wgrad_graph::DType::I32)?;
    let column = super::iota(x, out.shape, last, wgrad_graph::DType::I32)?;
    cast(row.try_eq(column)?, out.dtype)
}

/// The size of square matrices over the last two axes, or an error of `op`.
#[track_caller]
pub(crate) fn square(op: &str, x: Tensor) -> Result<usize> {
    let s = x.try_out()?.shape;
    if s.rank() < 2 || s[s.rank() - 1] != s[s.rank() - 2] {
        refuse!([x] Shape, op, "needs square matrices over the last two axes, got {s}");
    }
    Ok(s[s.rank() - 1])
}

#[track_caller]
fn matrix_power(x: Tensor, n: i32) -> Result<Tensor> {
    square("matrix_power", x)?;
    let (x, n) = (if n < 0 { x.try_inverse()? } else { x }, n.unsigned_abs());
    if n == 0 {
        return unit(x);
    }
    let (mut power, mut result) = (x, None);
    for bit in 0..=n.ilog2() {
        if bit > 0 {
            power = power.try_matmul(power)?;
        }
        if n >> bit & 1 == 1 {
            result = Some(match result {
                Some(r) => power.try_matmul(r)?,
                None => power,
            });
        }
    }
    Ok(result.expect("a number over 0 has a bit"))
}

methods! { impl Tensor, Self;
    /// The sum of products of two vectors.
    ///
    /// Shape: `[K], [K] -> []`. Gradient: `g w` and `g x`.
    dot try_dot(self, w: Tensor) -> Tensor {
        ranks("dot", self, w, [1, 1])?;
        self.try_inner(w)
    }

    /// As [`Tensor::dot`]: numbers are real, so nothing is conjugated.
    vdot try_vdot(self, w: Tensor) -> Tensor {
        ranks("vdot", self, w, [1, 1])?;
        self.try_inner(w)
    }

    /// The sum of products along the last axis of both.
    ///
    /// Shape: `[A.., K], [B.., K] -> [A.., B..]`; a number on either side multiplies.
    inner try_inner(self, w: Tensor) -> Tensor {
        if self.try_out()?.shape.rank() == 0 || w.try_out()?.shape.rank() == 0 {
            return self.try_mul(w);
        }
        let [x, w] = alike(self, w)?;
        tensordot(x, w, DotAxes::from(([-1], [-1])))
    }

    /// A matrix times a vector.
    ///
    /// Shape: `[M, K], [K] -> [M]`; [`Tensor::matmul`] takes leading axes too.
    mv try_mv(self, w: Tensor) -> Tensor {
        ranks("mv", self, w, [2, 1])?;
        self.try_matmul(w)
    }

    /// The product of every element of one vector with every element of another.
    ///
    /// Shape: `[M], [N] -> [M, N]`.
    outer try_outer(self, w: Tensor) -> Tensor {
        ranks("outer", self, w, [1, 1])?;
        self.try_unsqueeze(-1)?.try_mul(w)
    }

    /// The matrix product of two matrices, without broadcasting.
    ///
    /// Shape: `[M, K], [K, N] -> [M, N]`.
    mm try_mm(self, w: Tensor) -> Tensor {
        ranks("mm", self, w, [2, 2])?;
        self.try_matmul(w)
    }

    /// The matrix products of two batches of one size, without broadcasting.
    ///
    /// Shape: `[B, M, K], [B, K, N] -> [B, M, N]`.
    bmm try_bmm(self, w: Tensor) -> Tensor {
        ranks("bmm", self, w, [3, 3])?;
        let (x, y) = (self.try_out()?.shape, w.try_out()?.shape);
        if x[0] != y[0] {
            refuse!([self, w] Shape, "bmm", "batches of {x} and {y} differ");
        }
        self.try_matmul(w)
    }

    /// `x + a b`: a matrix product with something added, one kernel. With factors it is
    /// `x * beta + a.matmul(b) * alpha`, which fuses too.
    ///
    /// Shape: `x` broadcasts to that of the product.
    addmm try_addmm(self, a: Tensor, b: Tensor) -> Tensor {
        in_halves!([a, b], |a, b| self.try_addmm(a, b));
        let y = a.try_matmul(b)?;
        let (from, to) = (self.try_out()?.shape, y.try_out()?.shape);
        if from.broadcast(&to) != Some(to) {
            refuse!([self, a, b] Shape, "addmm", "{from} does not broadcast to the product's {to}");
        }
        expand(self, to)?.try_add(y)
    }

    /// The sum of products over pairs of axes: a count (the last of this tensor with the first of `w`), or
    /// `([axes], [axes of w])`.
    ///
    /// Shape: the axes of this tensor that are left, then those of `w`. A paired axis of size 1 broadcasts.
    tensordot try_tensordot(self, w: Tensor, axes: impl Into<DotAxes>) -> Tensor {
        tensordot(self, w, axes.into())
    }

    /// The Kronecker product: `w` times each element, block by block.
    ///
    /// Shape: sizes multiply axis by axis, missing leading axes count as 1. At most eight axes, where one
    /// that both have with a size over 1 counts twice.
    kron try_kron(self, w: Tensor) -> Tensor { kron(self, w) }

    /// The vector product along `axis`, which has size 3; other axes broadcast.
    cross try_cross(self, w: Tensor, axis: i32) -> Tensor { cross(self, w, axis) }

    /// Square matrices over the last two axes multiplied with themselves `n` times, by repeated squaring;
    /// the unit matrix for 0. A negative `n` takes the inverse first.
    matrix_power try_matrix_power(self, n: i32) -> Tensor { matrix_power(self, n) }
}
