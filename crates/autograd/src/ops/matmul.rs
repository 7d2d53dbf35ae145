//! Matrix products.

use wgrad_graph::{Axes, Op, Shape};

use super::reduce::without;
use super::{cast, expand, reshape, shape};
use crate::{Result, Tensor};

/// `[.., M, K] x [.., K, N]` with ranks of at least two and one dtype.
#[track_caller]
fn batched(a: Tensor, b: Tensor) -> Result<Tensor> {
    let (x, w) = (a.try_out()?.shape, b.try_out()?.shape);
    let (rank, k) = (x.rank(), x[x.rank() - 1]);
    if k != w[w.rank() - 2] {
        refuse!([a, b] Shape, "matmul", "shapes {x} and {w} do not fit [.., M, K] x [.., K, N]");
    }
    // One tall product instead of a batch of products with the same right side.
    if rank > 2 && w.rank() == 2 {
        let rows: usize = x.dims()[..rank - 1].iter().product();
        let y = Tensor::record(Op::MatMul, &[reshape(a, Shape::from([rows, k]))?, b], None, None)?;
        return reshape(y, x.with(rank - 1, w[1]));
    }
    let lead = |s: Shape| shape("matmul", &s.dims()[..s.rank() - 2]);
    let Some(batch) = lead(x)?.broadcast(&lead(w)?) else {
        refuse!([a, b] Shape, "matmul", "leading axes of {x} and {w} do not broadcast");
    };
    let with_batch = |s: Shape| shape("matmul", &[batch.dims(), &s.dims()[s.rank() - 2..]].concat());
    let (a, b) = (expand(a, with_batch(x)?)?, expand(b, with_batch(w)?)?);
    Tensor::record(Op::MatMul, &[a, b], None, None)
}

methods! { impl Tensor, Self;
    /// The matrix product.
    ///
    /// Shape: `[.., M, K] x [.., K, N] -> [.., M, N]`, leading axes broadcast; a vector `[K]` is a row on
    /// the left, a column on the right, and its axis is gone from the result.
    /// Gradient: `dA = g B^T`, `dB = A^T g`.
    matmul try_matmul(self, w: Tensor) -> Tensor {
        in_halves!([self, w], |x, w| x.try_matmul(w));
        let (x, y) = (self.try_out()?, w.try_out()?);
        if x.shape.rank() == 0 || y.shape.rank() == 0 {
            refuse!([self, w] Shape, "matmul", "{x:?} and {y:?}: a number has no matrix product");
        }
        let dtype = x.dtype.promote(y.dtype);
        let (mut a, mut b, mut gone) = (cast(self, dtype)?, cast(w, dtype)?, [false; 2]);
        if x.shape.rank() == 1 {
            (a, gone[0]) = (reshape(a, Shape::from([1, x.shape[0]]))?, true);
        }
        if y.shape.rank() == 1 {
            (b, gone[1]) = (reshape(b, Shape::from([y.shape[0], 1]))?, true);
        }
        let out = batched(a, b)?;
        let rank = out.try_out()?.shape.rank();
        let axes: Axes = [rank - 2, rank - 1].into_iter().zip(gone).filter(|g| g.1).map(|g| g.0).collect();
        if axes.is_empty() { Ok(out) } else { without(out, axes) }
    }
}
