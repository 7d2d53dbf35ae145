//! Factorisations and solutions of small matrices over the last two axes; leading axes are a batch.

use wgrad_graph::{DType, Matrix, Op, Shape};

use super::linalg::{square, unit};
use super::{cast, expand, permute, reshape, shape};
use crate::{Result, Tensor};

/// How [`Tensor::solve_triangular`] reads its matrix.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Triangular {
    /// Whether the upper half is taken; the lower by default.
    pub upper: bool,
    /// Whether `x a = b` is solved; `a x = b` by default.
    pub right: bool,
    /// Whether the diagonal counts as ones, whatever stands there.
    pub unit: bool,
}

/// `x` as f32 or f64.
#[track_caller]
fn floats(x: Tensor) -> Result<Tensor> {
    if matches!(x.try_out()?.dtype, DType::F32 | DType::F64) { Ok(x) } else { cast(x, DType::F32) }
}

#[track_caller]
pub(crate) fn matrix(kind: Matrix, x: &[Tensor]) -> Result<Tensor> {
    Tensor::record(Op::Matrix(kind), x, None, None)
}

/// `kind` of `a [.., n, n]` and `b [.., n, k]`, leading axes broadcast.
#[track_caller]
fn system(kind: Matrix, a: Tensor, b: Tensor) -> Result<Tensor> {
    let (op, n) = (kind.name(), square(kind.name(), a)?);
    let given = a.try_out()?.dtype.promote(b.try_out()?.dtype);
    if given.is_half() {
        return cast(system(kind, cast(a, DType::F32)?, cast(b, DType::F32)?)?, given);
    }
    let (a, b) = (floats(a)?, floats(b)?);
    let (x, y) = (a.try_out()?, b.try_out()?);
    let dtype = x.dtype.promote(y.dtype);
    let (a, b, x, y) = (cast(a, dtype)?, cast(b, dtype)?, x.shape, y.shape);
    if y.rank() < 2 || y[y.rank() - 2] != n {
        refuse!([a, b] Shape, op, "{x} and {y} do not fit [.., N, N] and [.., N, K]");
    }
    // One matrix for all: the right sides become columns of one, so that it is factored once.
    if x.rank() == 2 && y.rank() > 2 {
        let lead = y.rank() - 2;
        let order: Vec<usize> = [lead].into_iter().chain(0..lead).chain([lead + 1]).collect();
        let moved = permute(b, &order)?;
        let dims = moved.try_out()?.shape;
        let columns = dims.dims()[1..].iter().product();
        let flat = matrix(kind, &[a, reshape(moved, Shape::from([n, columns]))?])?;
        let back: Vec<usize> = (1..=lead).chain([0, lead + 1]).collect();
        return permute(reshape(flat, dims)?, &back);
    }
    let lead = |s: Shape| shape(op, &s.dims()[..s.rank() - 2]);
    let Some(batch) = lead(x)?.broadcast(&lead(y)?) else {
        refuse!([a, b] Shape, op, "leading axes of {x} and {y} do not broadcast");
    };
    let with_batch = |s: Shape| shape(op, &[batch.dims(), &s.dims()[s.rank() - 2..]].concat());
    matrix(kind, &[expand(a, with_batch(x)?)?, expand(b, with_batch(y)?)?])
}

/// As [`system`], where `b` may be a vector `[.., n]`.
#[track_caller]
fn solve(a: Tensor, b: Tensor) -> Result<Tensor> {
    square("solve", a)?;
    let (x, y) = (a.try_out()?.shape, b.try_out()?.shape);
    let vector = y.rank() == 1 || y.rank() + 1 == x.rank() && y.dims() == &x.dims()[..x.rank() - 1];
    if vector {
        return system(Matrix::Solve, a, b.try_unsqueeze(-1)?)?.try_squeeze(-1);
    }
    system(Matrix::Solve, a, b)
}

#[track_caller]
fn single(kind: Matrix, x: Tensor) -> Result<Tensor> {
    square(kind.name(), x)?;
    let given = x.try_out()?.dtype;
    let y = matrix(kind, &[floats(x)?])?;
    if given.is_half() { cast(y, given) } else { Ok(y) }
}

methods! { impl Tensor, Self;
    /// The lower triangular `L` with `L L^T = x`, for symmetric positive definite `x`; its lower half is read.
    ///
    /// Shape: `[.., N, N] -> [.., N, N]`. Gradient: symmetric.
    /// Numerics: f32 (f64 on the CPU); a matrix that is not positive definite gives NaN on and below the
    /// diagonal. Meant for small matrices: one workgroup factors one.
    cholesky try_cholesky(self) -> Tensor { single(Matrix::Cholesky, self) }

    /// The `x` with `a x = b`, where this tensor is the triangular `a`: one half of it is read.
    ///
    /// Shape: `[.., N, N], [.., N, K] -> [.., N, K]` (`[.., K, N]` where `right`), leading axes broadcast.
    /// Gradient: `db` by the transposed system, `da = -db x^T` in the half that is read.
    /// Numerics: a 0 on the diagonal gives results that are not finite.
    solve_triangular try_solve_triangular(self, b: Tensor, how: Triangular) -> Tensor {
        square("solve_triangular", self)?;
        let Triangular { upper, right, unit } = how;
        if !right {
            return system(Matrix::Triangular { upper, unit }, self, b);
        }
        if b.try_out()?.shape.rank() < 2 {
            refuse!([self, b] Shape, "solve_triangular", "the right side is no matrix");
        }
        system(Matrix::Triangular { upper: !upper, unit }, self.try_t()?, b.try_t()?)?.try_t()
    }

    /// The `x` with `a x = b`, where this tensor is the square `a`: by elimination with row exchanges.
    ///
    /// Shape: `[.., N, N], [.., N, K] -> [.., N, K]`, leading axes broadcast; `b` is a vector `[.., N]` where it
    /// has one axis, or the shape of `a` without its last axis.
    /// Gradient: `db = solve(a^T, g)`, `da = -db x^T`.
    /// Numerics: f32 (f64 on the CPU), error in proportion to the matrix's condition; a singular matrix gives
    /// NaN. Meant for small matrices: one workgroup solves one system.
    solve try_solve(self, b: Tensor) -> Tensor { solve(self, b) }

    /// The inverse of square matrices, by [`Tensor::solve`]; NaN where there is none.
    ///
    /// Shape: `[.., N, N] -> [.., N, N]`. To apply an inverse, `solve` is better.
    inverse try_inverse(self) -> Tensor {
        square("inverse", self)?;
        in_f32!(self, try_inverse());
        let x = floats(self)?;
        system(Matrix::Solve, x, unit(x)?)
    }

    /// The determinant of square matrices.
    ///
    /// Shape: `[.., N, N] -> [..]`; 1 for no rows. Gradient: `g` times the cofactors, which is
    /// `g det x^-T` at regular matrices; also at singular ones. Of more than 3 rows, the second derivative at a
    /// matrix that lacks two ranks is 0.
    /// Numerics: may overflow where [`Tensor::slogdet`] does not.
    det try_det(self) -> Tensor { single(Matrix::Det, self) }

    /// The sign of the determinant (-1, 0 or 1) and the logarithm of its absolute value.
    ///
    /// Shape: `[.., N, N] -> [..], [..]`; a singular matrix gives 0 and -inf. Gradient: `g x^-T` through the
    /// logarithm.
    slogdet try_slogdet(self) -> (Tensor, Tensor) {
        let both = single(Matrix::Slogdet, self)?;
        Ok((both.try_select_index(-1, 0)?, both.try_select_index(-1, 1)?))
    }

    /// The logarithm of the determinant; NaN where that is negative, -inf where it is 0.
    logdet try_logdet(self) -> Tensor {
        let (sign, logs) = self.try_slogdet()?;
        sign.try_lt(0.0)?.try_select(f64::NAN, logs)
    }

    /// The `x` with `L L^T x = b`, where this tensor is `b`, from the factor of [`Tensor::cholesky`].
    ///
    /// Shape: `b [.., N, K]`, `L [.., N, N] -> [.., N, K]`, leading axes broadcast.
    cholesky_solve try_cholesky_solve(self, factor: Tensor) -> Tensor {
        let y = factor.try_solve_triangular(self, Triangular::default())?;
        factor.try_t()?.try_solve_triangular(y, Triangular { upper: true, ..Triangular::default() })
    }
}
