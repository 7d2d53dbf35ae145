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
        Matrix::Slogdet | Matrix::Det => {
            let scale = match kind {
                Matrix::Det => g.try_mul(y)?,
                _ => g.try_select_index(-1, 1)?,
            };
            let turned = matrix(Matrix::Solve, &[a.try_t()?, unit(a)?])?;
            smallvec![Some(turned.try_mul(scale.try_unsqueeze(-1)?.try_unsqueeze(-1)?)?)]
        }
    })
}
