//! Convolutions over values that lie with their channels last (decision 018): what a window sees at a place is neighbours
//! in memory, and both factors of every product are read by vectors. A kernel each stores operand and weight so, with
//! the zeros around them; the products are those of `conv`, over other views.

use wgrad_graph::{DType, Fast, MAX_RANK, Op};

use super::conv::OP;
use super::windows::windows_over;
use super::{cast, permute, reshape, shape};
use crate::{Result, Tensor, record, table};

/// Elements of a vector.
const VECTOR: usize = 4;

/// Rows of a product with windows from which f32 goes this way: an H200 took 0.22 to 0.24 ms in place of 0.28 to 0.34
/// for products of ResNet-18 with 128 to 512 rows, but 0.42 in place of 0.31 with 64, of which the largest numbers of columns
/// take a fifth.
const ROWS: usize = 128;

/// Whether a product of factors `[x, w]` of `rows` rows goes this way; of none, where what windows hold lies beside
/// it. What sees single elements is a product of vectors as it lies.
#[track_caller]
pub(super) fn suits(
    factors: [Tensor; 2],
    rows: Option<usize>,
    groups: usize,
    kernel: &[usize],
    step: &[usize],
    widths: &[(isize, isize)],
) -> Result<bool> {
    let windows = kernel.iter().chain(step).any(|n| *n > 1) || widths.iter().any(|w| *w != (0, 0));
    if groups != 1 || !windows {
        return Ok(false);
    }
    let halves = factors[0].try_out()?.dtype.is_half() && factors[1].try_out()?.dtype.is_half();
    let pays = halves || rows.is_some_and(|rows| rows >= ROWS);
    Ok(pays && table::lock(factors[0].context)?.backend.caps().allows(Fast::ChannelsLast))
}

/// `x`, or the halves of which it is the same numbers as f32: so they are stored.
#[track_caller]
pub(super) fn narrow(x: Tensor) -> Result<Tensor> {
    let to = x.try_out()?.shape;
    let Some(pass) = x.pass() else { return Ok(x) };
    let mut state = table::lock(pass.context)?;
    if !state.backend.caps().allows(Fast::ChannelsLast) {
        return Ok(x);
    }
    let pool = record::current(&mut state, pass)?;
    let mut key = x.value_key();
    while pool.node(key).op == Op::Reshape {
        key = pool.node(key).inputs[0];
    }
    let (node, dtype) = (pool.node(key), pool.out(key).out.dtype);
    if node.op != Op::Cast || dtype != DType::F32 || !pool.out(node.inputs[0]).out.dtype.is_half() {
        return Ok(x);
    }
    let half = Tensor::of_pass(pass, node.inputs[0], x.at);
    drop(state);
    reshape(half, to)
}

/// Halves as f32.
#[track_caller]
pub(super) fn wide(x: Tensor) -> Result<Tensor> {
    if x.try_out()?.dtype.is_half() { cast(x, DType::F32) } else { Ok(x) }
}

/// `[n, c, len..]` with zeros around as a stored `[n, len.., c]`, in f32, with channels of 0 up to whole vectors.
#[track_caller]
fn laid(x: Tensor, widths: &[(isize, isize)]) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let order: Vec<usize> = [0].into_iter().chain(2..from.rank()).chain([1]).collect();
    let mut around: Vec<_> = order.iter().map(|axis| widths[*axis]).collect();
    around[from.rank() - 1].1 += (from[1].next_multiple_of(VECTOR) - from[1]) as isize;
    let x = permute(x, &order)?.try_pad(&around, 0.0)?;
    // No pad is a view: even one of nothing is stored in the order of its own axes.
    let to = x.try_out()?.shape;
    wide(Tensor::record(Op::Pad { lo: [0; MAX_RANK] }, &[x], Some(to), None)?)
}

/// No zeros around `x`.
fn none(rank: usize) -> Vec<(isize, isize)> {
    vec![(0, 0); rank]
}

/// The product of windows over `x` `[n, c, ..]`, with zeros around, with `w` `[1, m, c, kernel..]`: `[n, m, count..]`.
#[track_caller]
pub(super) fn product(
    x: Tensor,
    widths: &[(isize, isize)],
    w: Tensor,
    step: &[usize],
    dilation: &[usize],
) -> Result<Tensor> {
    let weight = w.try_out()?.shape;
    let (axes, m, kernel) = (weight.rank() - 3, weight[1], &weight.dims()[3..]);
    let w = laid(reshape(w, shape(OP, &weight.dims()[1..])?)?, &none(axes + 2))?;
    let seen = windows_over(laid(x, widths)?, 1, kernel, step, dilation)?;
    let from = seen.try_out()?.shape;
    let (n, counts) = (from[0], &from.dims()[1..1 + axes]);
    let count: usize = counts.iter().product();
    let depth = from[1 + axes] * kernel.iter().product::<usize>();
    let order: Vec<usize> = (2 + axes..2 + 2 * axes).chain([1 + axes]).chain(0..=axes).collect();
    let seen = reshape(permute(seen, &order)?, shape(OP, &[depth, n * count])?)?;
    let y = reshape(w, shape(OP, &[m, depth])?)?.try_matmul(seen)?;
    let y = permute(reshape(y, shape(OP, &[m, n, count])?)?, &[1, 0, 2])?;
    reshape(y, shape(OP, &[&[n, m], counts].concat())?)
}

/// The product of `g` `[n, m, count..]` with windows of `kernel` over `x` `[n, c, ..]`, with zeros around:
/// `[m, c, kernel..]`.
#[track_caller]
pub(super) fn weight(
    x: Tensor,
    widths: &[(isize, isize)],
    g: Tensor,
    kernel: &[usize],
    step: &[usize],
    dilation: &[usize],
) -> Result<Tensor> {
    let (c, out, axes) = (x.try_out()?.shape[1], g.try_out()?.shape, kernel.len());
    let (n, m, count) = (out[0], out[1], out.dims()[2..].iter().product::<usize>());
    let seen = windows_over(laid(x, widths)?, 1, kernel, step, dilation)?;
    let whole = seen.try_out()?.shape[1 + axes];
    let order: Vec<usize> = (0..=axes).chain(2 + axes..2 + 2 * axes).chain([1 + axes]).collect();
    let width = whole * kernel.iter().product::<usize>();
    let seen = reshape(permute(seen, &order)?, shape(OP, &[n * count, width])?)?;
    let g = if count.is_multiple_of(VECTOR) {
        permute(reshape(wide(g)?, shape(OP, &[n, m, count])?)?, &[1, 0, 2])?
    } else {
        // Places that are no vectors; then channels are.
        let g = laid(g, &none(axes + 2))?.try_narrow(-1, 0, m)?;
        permute(reshape(g, shape(OP, &[n * count, m])?)?, &[1, 0])?
    };
    let y = reshape(g, shape(OP, &[m, n * count])?)?.try_matmul(seen)?;
    let y = reshape(y, shape(OP, &[&[m], kernel, &[whole]].concat())?)?.try_narrow(-1, 0, c)?;
    permute(y, &[0, 1 + axes].into_iter().chain(1..=axes).collect::<Vec<_>>())
}
