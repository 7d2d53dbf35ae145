//! The same numbers under different layouts of memory.

use wgrad::{DType, Pass, Result, Tensor};

use super::case::{Case, host};

/// How an operand lies in memory.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Layout {
    Contiguous,
    /// Axes in reverse order.
    Transposed,
    /// Every second element of each axis, from the second on.
    Sliced,
    /// The last axis backwards.
    Reversed,
    /// The first axis of more than one element repeated: the operand's own numbers become those of its
    /// first slice.
    Expanded,
    /// As `Expanded`, stored in full.
    Repeated,
}

/// An operand as a pass holds it.
pub(crate) struct Leaf {
    /// What the case sees.
    pub(crate) seen: Tensor,
    /// Whether it has a gradient.
    pub(crate) float: bool,
}

/// Visits the coordinates of `dims` in row-major order.
fn coords(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let dims = dims.to_vec();
    (0..dims.iter().product()).map(move |mut i| {
        let mut at = vec![0; dims.len()];
        for axis in (0..dims.len()).rev() {
            at[axis] = i % dims[axis];
            i /= dims[axis];
        }
        at
    })
}

fn ravel(at: &[usize], dims: &[usize]) -> usize {
    at.iter().zip(dims).fold(0, |n, (c, d)| n * d + c)
}

impl Layout {
    /// The layouts with which a case is compared.
    pub(crate) const ALL: [Layout; 5] =
        [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Reversed, Layout::Expanded];

    /// The plain layout of the same numbers.
    pub(crate) fn plain(self) -> Layout {
        if self == Layout::Expanded { Layout::Repeated } else { Layout::Contiguous }
    }

    /// The case's operands. `inner`: each behind an exact elementwise operation.
    pub(crate) fn operands(self, p: &Pass, case: &Case, float: DType, inner: bool) -> Result<Vec<Leaf>> {
        let mut leaves = Vec::new();
        for (i, operand) in case.operands.iter().enumerate() {
            let (dims, mut elems, dtype) = (&operand.dims, operand.elems(i), operand.dtype(float));
            let moved = inner && dtype != DType::Bool;
            if moved {
                let off = |x: &mut f64| *x = if dtype.is_float() { *x * 2.0 } else { *x + 1.0 };
                elems.iter_mut().for_each(off);
            }
            let x = self.operand(p, dims, &elems, dtype)?;
            let seen = match moved {
                true if dtype.is_float() => x * 0.5,
                true => x - 1,
                false => x,
            };
            leaves.push(Leaf { seen, float: operand.is_float() });
        }
        Ok(leaves)
    }

    fn operand(self, p: &Pass, dims: &[usize], elems: &[f64], dtype: DType) -> Result<Tensor> {
        let rank = dims.len();
        let plain = |elems: &[f64]| p.input(host(dims, elems, dtype));
        match self {
            Layout::Contiguous => plain(elems),
            Layout::Transposed => {
                let turned: Vec<usize> = dims.iter().rev().copied().collect();
                let back: Vec<i32> = (0..rank as i32).rev().collect();
                let stored: Vec<f64> = coords(&turned)
                    .map(|at| elems[ravel(&at.iter().rev().copied().collect::<Vec<_>>(), dims)])
                    .collect();
                Ok(p.input(host(&turned, &stored, dtype))?.permute(&back[..]))
            }
            Layout::Sliced => {
                let wide: Vec<usize> = dims.iter().map(|d| 2 * d + 1).collect();
                let mut stored = vec![77.0; wide.iter().product()];
                for (at, x) in coords(dims).zip(elems) {
                    stored[ravel(&at.iter().map(|c| 2 * c + 1).collect::<Vec<_>>(), &wide)] = *x;
                }
                let mut x = p.input(host(&wide, &stored, dtype))?;
                for axis in 0..rank {
                    x = x.slice_step(axis as i32, 1.., 2);
                }
                Ok(x)
            }
            Layout::Reversed if rank > 0 => {
                let last = rank - 1;
                let stored: Vec<f64> = coords(dims)
                    .map(|mut at| {
                        at[last] = dims[last] - 1 - at[last];
                        elems[ravel(&at, dims)]
                    })
                    .collect();
                Ok(plain(&stored)?.slice_step(last as i32, .., -1))
            }
            Layout::Reversed => plain(elems),
            Layout::Expanded | Layout::Repeated => {
                let Some(axis) = dims.iter().position(|d| *d > 1) else { return plain(elems) };
                let first: Vec<f64> =
                    coords(dims).zip(elems).filter(|(at, _)| at[axis] == 0).map(|(_, x)| *x).collect();
                let mut thin = dims.to_vec();
                thin[axis] = 1;
                if self == Layout::Expanded {
                    return Ok(p.input(host(&thin, &first, dtype))?.expand(dims));
                }
                let all: Vec<f64> = coords(dims)
                    .map(|mut at| {
                        at[axis] = 0;
                        first[ravel(&at, &thin)]
                    })
                    .collect();
                plain(&all)
            }
        }
    }
}
