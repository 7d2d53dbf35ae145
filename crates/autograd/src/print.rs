//! Tensors as text, in NumPy's manner: nested brackets, long axes shortened.

use std::fmt;

use wgrad_graph::{DType, Out};

/// Elements shown at each end of an axis that is longer than twice this.
const EDGE: usize = 3;

/// Prints `elems`, row-major, as an array of `out`'s shape and dtype.
pub(crate) fn array(f: &mut fmt::Formatter<'_>, out: Out, elems: &[f64]) -> fmt::Result {
    axis(f, out.shape.dims(), out.dtype, elems, 1)
}

fn axis(
    f: &mut fmt::Formatter<'_>,
    dims: &[usize],
    dtype: DType,
    elems: &[f64],
    depth: usize,
) -> fmt::Result {
    let Some((n, inner)) = dims.split_first() else {
        return element(f, dtype, elems[0]);
    };
    let stride: usize = inner.iter().product();
    f.write_str("[")?;
    let long = *n > 2 * EDGE + 1;
    let shown = (0..*n).filter(|i| !long || *i < EDGE || *i >= n - EDGE);
    for (count, i) in shown.enumerate() {
        if count > 0 {
            f.write_str(if inner.is_empty() { ", " } else { ",\n" })?;
            if !inner.is_empty() {
                write!(f, "{:depth$}", "")?;
            }
        }
        if long && i == n - EDGE {
            f.write_str("..., ")?;
        }
        axis(f, inner, dtype, &elems[i * stride..(i + 1) * stride], depth + 1)?;
    }
    f.write_str("]")
}

fn element(f: &mut fmt::Formatter<'_>, dtype: DType, x: f64) -> fmt::Result {
    match dtype {
        DType::Bool => write!(f, "{}", x != 0.0),
        _ if dtype.is_int() => write!(f, "{x}"),
        _ if x == 0.0 || (1e-4..1e8).contains(&x.abs()) => write!(f, "{x:.4}"),
        _ => write!(f, "{x:.4e}"),
    }
}
