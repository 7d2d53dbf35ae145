//! Gradient rules of factorisations and solutions: each is made of the same operations.

use smallvec::{SmallVec, smallvec};
use wgrad_graph::{DType, Matrix};

use crate::ops::{iota, matrix, unit};
use crate::rules::Site;
use crate::{Result, Tensor};

/// The elements of the upper (else lower) half of square matrices, without their diagonal where `strict`;
/// 0 elsewhere.
#[track_caller]
fn half(x: Tensor, upper: bool, strict: bool) -> Result<Tensor> {
    let shape = x.try_out()?.shape;
    let last = shape.rank() - 1;
    let [row, column] = [iota(x, shape, last - 1, DType::I32)?, iota(x, shape, last, DType::I32)?];
    let [first, second] = if upper { [row, column] } else { [column, row] };
    let kept = if strict { first.try_lt(second)? } else { first.try_le(second)? };
    kept.try_select(x, 0.0)
}

/// `x^-T y` for the lower triangular `x`.
#[track_caller]
fn back(x: Tensor, y: Tensor) -> Result<Tensor> {
    matrix(Matrix::Triangular { upper: true, unit: false }, &[x.try_t()?, y])
}

/// One number for each matrix, to be used with matrices.
#[track_caller]
fn each(x: Tensor) -> Result<Tensor> {
    x.try_unsqueeze(-1)?.try_unsqueeze(-1)
}

/// The cofactors of square matrices whose determinants are `det`: what determinants grow by for each element.
/// They exist at singular matrices too.
#[track_caller]
fn cofactors(a: Tensor, det: Tensor) -> Result<Tensor> {
    let shape = a.try_out()?.shape;
    let moved = |rows: i32, columns: i32| a.try_roll(-2, -rows)?.try_roll(-1, -columns);
    match shape[shape.rank() - 1] {
        0 | 1 => unit(a),
        2 => moved(1, 1)?.try_mul(unit(a)?.try_mul(2.0)?.try_sub(1.0)?),
        // Around the element, cyclic, so that signs come by themselves.
        3 => moved(1, 1)?.try_mul(moved(2, 2)?)?.try_sub(moved(1, 2)?.try_mul(moved(2, 1)?)?),
        _ => bordered(a, det),
    }
}

/// [`cofactors`] by a solution. A singular matrix is moved by `x y^T`, which makes it regular unless it lacks
/// two ranks; with `B = A + x y^T` and `T = B^-T` the cofactors of `A` are
/// `det(B) ((1 - y^T B^-1 x) T + T y (T^T x)^T)`, polynomials in `A` written without its inverse. Where two
/// ranks are lacking all are 0.
#[track_caller]
fn bordered(a: Tensor, det: Tensor) -> Result<Tensor> {
    let out = a.try_out()?;
    let (shape, last) = (out.shape, out.shape.rank() - 1);
    // Directions in which no matrix of a plain pattern lacks a rank, as long as its elements are.
    let along = |axis: usize, step: f64, first: f64| {
        iota(a, shape.with(2 * last - 1 - axis, 1), axis, out.dtype)?.try_mul(step)?.try_add(first)?.try_sin()
    };
    let size = a.try_abs()?.try_mean_keepdim([-2, -1])?.try_detach()?;
    let singular = each(det)?.try_eq(0.0)?;
    let x = singular.try_select(along(last - 1, 2.4, 1.0)?.try_mul(size)?, 0.0)?;
    let y = along(last, 1.7, 0.5)?;
    let moved = a.try_add(x.try_mul(y)?)?;
    let det = each(matrix(Matrix::Det, &[moved])?)?;
    let lost = det.try_eq(0.0)?;
    let safe = lost.try_select(unit(a)?, moved)?;
    // Not of the transposed matrix: it may have a pivot of 0 where this one has none.
    let solved = matrix(Matrix::Solve, &[safe, Tensor::try_cat(&[unit(a)?, x], -1)?])?;
    let (t, of_x) = (solved.try_narrow(-1, 0, shape[last])?.try_t()?, solved.try_narrow(-1, shape[last], 1)?);
    // By the solution for x: the inverse of a nearly singular matrix has lost the digits of y^T B^-1 x.
    let left = y.try_matmul(of_x)?.try_neg()?.try_add(1.0)?;
    let of_y = t.try_mul(y)?.try_sum_keepdim(-1)?;
    det.try_mul(left.try_mul(t)?.try_add(of_y.try_mul(of_x.try_t()?)?)?)
}

/// The gradients of the operands of a matrix operation.
#[track_caller]
pub(crate) fn gradient(kind: Matrix, site: &Site<'_>, g: Tensor) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    let (a, y) = (site.x[0], site.out[0]);
    Ok(match kind {
        // With P the lower half of L^T g, its diagonal halved: L^-T P L^-1, made symmetric.
        Matrix::Cholesky => {
            let inner = y.try_t()?.try_matmul(half(g, false, false)?)?;
            let p = half(inner, false, false)?.try_add(half(inner, false, true)?)?.try_mul(0.5)?;
            let turned = back(y, back(y, p)?.try_t()?)?;
            smallvec![Some(turned.try_add(turned.try_t()?)?.try_mul(0.5)?)]
        }
        Matrix::Triangular { upper, unit } => {
            let db = matrix(Matrix::Triangular { upper: !upper, unit }, &[a.try_t()?, g])?;
            let da = match site.needs[0] {
                true => Some(half(db.try_matmul(y.try_t()?)?, upper, unit)?.try_neg()?),
                false => None,
            };
            smallvec![da, Some(db)]
        }
        Matrix::Solve => {
            let db = matrix(Matrix::Solve, &[a.try_t()?, g])?;
            let da = if site.needs[0] { Some(db.try_matmul(y.try_t()?)?.try_neg()?) } else { None };
            smallvec![da, Some(db)]
        }
        Matrix::Slogdet => {
            let turned = matrix(Matrix::Solve, &[a.try_t()?, unit(a)?])?;
            smallvec![Some(turned.try_mul(each(g.try_select_index(-1, 1)?)?)?)]
        }
        Matrix::Det => smallvec![Some(cofactors(a, y)?.try_mul(each(g)?)?)],
    })
}
