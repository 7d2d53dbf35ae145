//! Gradient rules: for each operation, the gradients of its operands from the gradient of its result.
//! Rules are tensor methods, so gradients are graph and can be differentiated again.

use smallvec::{SmallVec, smallvec};
use wgrad_graph::{Axes, Binary, DType, MAX_RANK, Op, Perm, Reduce, Shape, Slope, Steps, Unary, bail};

use crate::line_rules::{Along, Scattered};
use crate::ops::{Windows, cast, diag_embed, expand, iota, overlap_add, permute, reshape, slice, steps_on};
use crate::{Result, Tensor};

/// A node at which gradients arrive.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Site<'a> {
    /// What the node computed.
    pub op: Op,
    /// Its operands.
    pub x: &'a [Tensor],
    /// Its results.
    pub out: &'a [Tensor],
    /// The gradient of each result, where one has arrived.
    pub dout: &'a [Option<Tensor>],
    /// Which operands need a gradient.
    pub needs: &'a [bool],
}

/// The gradient of each operand: `None` where none is needed or none flows.
///
/// # Errors
/// `Gradient`, when the operation has no rule.
#[track_caller]
pub(crate) fn gradient(site: &Site<'_>) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    let Site { op, x, out, needs, .. } = *site;
    let mut dx: SmallVec<[Option<Tensor>; 4]> = smallvec![None; x.len()];
    match op {
        Op::Attention(attend) => return crate::attention_rules::gradient(attend, site),
        Op::AttentionGrad(attend) => return crate::attention_rules::second(attend, site),
        _ => {}
    }
    let [Some(g)] = *site.dout else {
        if site.dout.len() > 1 {
            bail!(Gradient, op.name(), "has several results and no gradient rule");
        }
        return Ok(dx);
    };
    let y = out[0];
    for i in 0..x.len() {
        let from = x[i].try_out()?;
        if !needs[i] || !from.dtype.is_float() {
            continue;
        }
        let to = from.shape;
        dx[i] = match op {
            Op::Input | Op::Scalar | Op::Iota { .. } | Op::Random => None,
            Op::Unary(u) => along(&slope((u.row().slopes)(), i), g, Values { x: x[0], w: x[0], y })?,
            Op::Binary(b) => along(&slope((b.row().slopes)(), i), g, Values { x: x[0], w: x[1], y })?,
            Op::Select if i == 1 => Some(x[0].try_select(g, 0.0)?),
            Op::Select => Some(x[0].try_select(0.0, g)?),
            Op::Cast => {
                if y.try_out()?.dtype.is_float() {
                    Some(cast(g, from.dtype)?)
                } else {
                    None
                }
            }
            Op::Reduce { kind: Reduce::Sum, .. } => Some(expand(g, to)?),
            Op::Reduce { kind: Reduce::Max | Reduce::Min, axes } => Some(extreme(x[0], y, g, axes)?),
            Op::Reduce { kind: Reduce::Prod, axes } => Some(product(x[0], g, axes)?),
            Op::ArgReduce { .. } => None,
            Op::MatMul if i == 0 => Some(g.try_matmul(x[1].try_t()?)?),
            Op::MatMul => Some(x[0].try_t()?.try_matmul(g)?),
            Op::Reshape => Some(reshape(g, to)?),
            Op::Permute(perm) => Some(permute(g, &inverse(&perm, to.rank()))?),
            Op::Expand => Some(g.try_sum_to(to)?),
            Op::Slice(steps) => Some(around(g, steps, to)?),
            Op::Windows { axis, size, step, dilation } => {
                let [size, step, dilation] = [size, step, dilation].map(|n| n as usize);
                let axis = usize::from(axis);
                Some(overlap_add(g, axis, Windows { size, step, dilation }, to[axis])?)
            }
            Op::Diagonal { a, b } => Some(diag_embed(g, 0, usize::from(a), usize::from(b))?),
            Op::Pad { lo } => Some(slice(g, Steps { start: lo.map(i64::from), ..Steps::ALL }, to)?),
            Op::Concat { axis } => {
                let mut start = 0;
                for before in &x[..i] {
                    start += before.try_out()?.shape[usize::from(axis)];
                }
                Some(slice(g, steps_on(usize::from(axis), start as i64, 1), to)?)
            }
            Op::SliceAt { axis } => {
                let zeros = zeros(g, to)?;
                Some(Tensor::record(Op::SliceAssignAt { axis }, &[zeros, g, x[1]], None, None)?)
            }
            Op::SliceAssign(steps) if i == 0 => {
                let zeros = zeros(g, x[1].try_out()?.shape)?;
                Some(Tensor::record(Op::SliceAssign(steps), &[g, zeros], None, None)?)
            }
            Op::SliceAssign(steps) => Some(slice(g, steps, to)?),
            Op::SliceAssignAt { axis } if i == 0 => {
                let zeros = zeros(g, x[1].try_out()?.shape)?;
                Some(Tensor::record(Op::SliceAssignAt { axis }, &[g, zeros, x[2]], None, None)?)
            }
            Op::SliceAssignAt { axis } => {
                Some(Tensor::record(Op::SliceAt { axis }, &[g, x[2]], Some(to), None)?)
            }
            Op::Gather { axis } => Some(scatter(g, x[1], usize::from(axis), to)?),
            Op::Scatter { axis, kind } => {
                Some(Scattered { axis, idx: x[0], src: x[1], y }.gradient(kind, g)?)
            }
            Op::ArgSort { .. } => None,
            Op::Scan { kind, axis, reverse } => {
                let along = Along { axis: usize::from(axis), reverse };
                return crate::line_rules::gradient(kind, along, site, g);
            }
            Op::Matrix(kind) => return crate::matrix_rules::gradient(kind, site, g),
            Op::Attention(_) | Op::AttentionGrad(_) => unreachable!("has a rule of its own, above"),
            Op::Custom(_) => bail!(Gradient, "custom", "custom has no gradient"),
        };
    }
    Ok(dx)
}

/// The slope by operand `i`; operations without slopes let no gradient through.
fn slope(slopes: Vec<Slope>, i: usize) -> Slope {
    slopes.into_iter().nth(i).unwrap_or(Slope::Num(0.0))
}

/// What a slope's letters stand for.
#[derive(Copy, Clone)]
struct Values {
    x: Tensor,
    w: Tensor,
    y: Tensor,
}

/// `g * slope`, 0 where `g` is 0 even if the slope is not finite: a branch that `select` did not take gets
/// the gradient 0, and must not give NaN. `None` where the slope is 0.
#[track_caller]
fn along(slope: &Slope, g: Tensor, at: Values) -> Result<Option<Tensor>> {
    Ok(match slope {
        Slope::Num(0.0) => None,
        Slope::Num(1.0) => Some(g),
        Slope::Un(Unary::Neg, s) => match along(s, g, at)? {
            Some(d) => Some(d.try_neg()?),
            None => None,
        },
        Slope::Num(-1.0) => Some(g.try_neg()?),
        // `g / w` rather than `g * (1 / w)`: one rounding less.
        Slope::Bin(Binary::Div, a, b) => match along(a, g, at)? {
            Some(d) => Some(d.try_div_zero(eval(b, g, at)?)?),
            None => None,
        },
        // A choice outside the product: where no gradient flows it is 0 even if `g` is not finite.
        Slope::If(c, a, b) => {
            let c = eval(c, g, at)?;
            match (along(a, g, at)?, along(b, g, at)?) {
                (None, None) => None,
                (Some(a), None) => Some(c.try_select(a, 0.0)?),
                (None, Some(b)) => Some(c.try_select(0.0, b)?),
                (Some(a), Some(b)) => Some(c.try_select(a, b)?),
            }
        }
        Slope::Num(n) => Some(g.try_mul(*n)?),
        slope => Some(g.try_mul_zero(eval(slope, g, at)?)?),
    })
}

/// The slope's value; numbers have the dtype of `g`.
#[track_caller]
fn eval(slope: &Slope, g: Tensor, at: Values) -> Result<Tensor> {
    match slope {
        Slope::X => Ok(at.x),
        Slope::W => Ok(at.w),
        Slope::Y => Ok(at.y),
        Slope::Num(n) => g.number(*n, g.try_out()?.dtype),
        Slope::Un(op, a) => crate::ops::unary(*op, eval(a, g, at)?),
        Slope::Bin(op, a, b) => crate::ops::binary(*op, eval(a, g, at)?, eval(b, g, at)?),
        Slope::If(c, a, b) => eval(c, g, at)?.try_select(eval(a, g, at)?, eval(b, g, at)?),
    }
}

#[track_caller]
fn zeros(beside: Tensor, shape: Shape) -> Result<Tensor> {
    expand(beside.number(0.0, beside.try_out()?.dtype)?, shape)
}

/// The gradient of a maximum or minimum: equal parts to all elements that equal it.
#[track_caller]
fn extreme(x: Tensor, y: Tensor, g: Tensor, axes: Axes) -> Result<Tensor> {
    let hit = x.try_eq(y)?;
    let hits = cast(hit, g.try_out()?.dtype)?;
    let count = Tensor::record(Op::Reduce { kind: Reduce::Sum, axes }, &[hits], None, None)?;
    hit.try_select(g.try_div(count)?, 0.0)
}

/// The gradient of a product: for each element the product of the others, by a tree of pairs. Dividing
/// the product by the element would fail at zeros.
#[track_caller]
fn product(x: Tensor, g: Tensor, axes: Axes) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let kept = (0..from.rank()).filter(|a| !axes.has(*a));
    let order: SmallVec<[usize; 8]> = kept.chain(axes.iter()).collect();
    let size: usize = axes.iter().map(|a| from[a]).product();
    if from.elems() == 0 {
        return zeros(g, from);
    }
    let lines = from.elems() / size;
    let moved = permute(x, &order)?;
    let mut levels = vec![reshape(moved, Shape::from([lines, size]))?];
    let mut pairs = Vec::new();
    let mut width = size;
    while width > 1 {
        let mut line = levels[levels.len() - 1];
        if width % 2 == 1 {
            line = line.try_pad(&[(0, 0), (0, 1)], 1.0)?;
        }
        width = width.div_ceil(2);
        let halves = [line.try_slice_step(1, .., 2)?, line.try_slice_step(1, 1.., 2)?];
        levels.push(halves[0].try_mul(halves[1])?);
        pairs.push(halves);
    }
    let mut d = reshape(g, Shape::from([lines, 1]))?;
    for (level, [even, odd]) in levels.iter().zip(pairs).rev() {
        let both = Tensor::try_stack(&[d.try_mul(odd)?, d.try_mul(even)?], 2)?;
        let shape = level.try_out()?.shape;
        d = both.try_flatten(1)?.try_slice(1, ..shape[1])?;
    }
    let dims: SmallVec<[usize; 8]> = order.iter().map(|a| from[*a]).collect();
    let mut perm: Perm = [0; MAX_RANK];
    for (p, a) in perm.iter_mut().zip(&order) {
        *p = *a as u8;
    }
    permute(reshape(d, Shape::new(&dims))?, &inverse(&perm, from.rank()))
}

fn inverse(perm: &Perm, rank: usize) -> SmallVec<[usize; 8]> {
    let mut back: SmallVec<[usize; 8]> = smallvec![0; rank];
    for (i, p) in perm[..rank].iter().enumerate() {
        back[usize::from(*p)] = i;
    }
    back
}

/// Zeros of shape `to` with `g` in the part that `steps` takes.
#[track_caller]
fn around(g: Tensor, steps: Steps, to: Shape) -> Result<Tensor> {
    let part = g.try_out()?.shape;
    let forward = steps.step[..to.rank()].iter().all(|s| *s == 1);
    if forward && part == to {
        return Ok(g);
    }
    if forward && part.elems() > 0 {
        let lo = steps.start.map(|s| s as u32);
        return Tensor::record(Op::Pad { lo }, &[g], Some(to), None);
    }
    Tensor::record(Op::SliceAssign(steps), &[zeros(g, to)?, g], None, None)
}

/// Zeros of shape `to` with `g` added at `idx` along `axis`. One index a line is a comparison, which
/// fuses with its surroundings; a scatter does not.
#[track_caller]
fn scatter(g: Tensor, idx: Tensor, axis: usize, to: Shape) -> Result<Tensor> {
    let index = idx.try_out()?;
    if index.shape[axis] != 1 {
        return Tensor::record(
            Op::Scatter { axis: axis as u8, kind: Reduce::Sum },
            &[idx, g],
            Some(to),
            None,
        );
    }
    let idx = if index.dtype == DType::U8 { cast(idx, DType::I32)? } else { idx };
    let place = iota(idx, to, axis, idx.try_out()?.dtype)?;
    place.try_eq(idx)?.try_select(g, 0.0)
}
