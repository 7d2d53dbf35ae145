//! Sums of products over named axes: the core of `einsum` and `tensordot`. Two operands at a time meet
//! in one matrix product, so that the heavy part is what the device does best.

use smallvec::SmallVec;
use wgrad_graph::{Axes, Op, Reduce, Shape};

use super::reduce::without;
use super::{expand, permute, reshape, shape};
use crate::{Result, Tensor};

/// The name of an axis; equal names are one axis of the sum.
pub(crate) type Label = u8;
/// The names of a tensor's axes.
pub(crate) type Labels = SmallVec<[Label; 8]>;

/// A tensor whose axes have names, each at most once.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) x: Tensor,
    pub(crate) axes: Labels,
}

impl Named {
    fn size(&self, label: Label) -> Result<Option<usize>> {
        let dims = self.x.try_out()?.shape;
        Ok(self.axes.iter().position(|l| *l == label).map(|axis| dims[axis]))
    }

    /// The sum over the axes for which `gone` holds.
    #[track_caller]
    fn summed(self, gone: impl Fn(Label) -> bool) -> Result<Named> {
        let axes: Axes = (0..self.axes.len()).filter(|i| gone(self.axes[*i])).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let x = Tensor::record(Op::Reduce { kind: Reduce::Sum, axes }, &[self.x], None, None)?;
        let kept = self.axes.into_iter().filter(|l| !gone(*l)).collect();
        Ok(Named { x: without(x, axes)?, axes: kept })
    }

    /// The axes in the order of `to`, which names all of them.
    #[track_caller]
    fn ordered(self, to: &[Label]) -> Result<Named> {
        let place = |l: &Label| self.axes.iter().position(|a| a == l).expect("every label is an axis");
        let order: SmallVec<[usize; 8]> = to.iter().map(place).collect();
        Ok(Named { x: permute(self.x, &order)?, axes: to.into() })
    }
}

/// The sum of products of `operands` over every axis that `out` does not name, as a tensor with the axes
/// of `out`. Sizes of one label are equal, or 1, which broadcasts. All operands have one dtype.
#[track_caller]
pub(crate) fn contract(op: &str, operands: Vec<Named>, out: &[Label]) -> Result<Tensor> {
    let mut wide = [1; 256];
    for named in &operands {
        for label in &named.axes {
            let size = named.size(*label)?.unwrap_or(1);
            if size != 1 {
                wide[usize::from(*label)] = size;
            }
        }
    }
    let mut work: Vec<Named> = Vec::with_capacity(operands.len());
    for Named { x, axes } in operands {
        // An axis of size 1 beside a wider one takes no part: the other operand has the axis.
        let dims = x.try_out()?.shape;
        let idle: Axes = (0..axes.len()).filter(|i| dims[*i] != wide[usize::from(axes[*i])]).collect();
        let kept = (0..axes.len()).filter(|i| !idle.has(*i)).map(|i| axes[i]).collect();
        work.push(Named { x: without(x, idle)?, axes: kept });
    }
    while work.len() > 1 {
        let (i, j) = cheapest(&work, out)?;
        let b = work.remove(j);
        let a = work.remove(i);
        let needed = |l: Label| out.contains(&l) || work.iter().any(|n| n.axes.contains(&l));
        let both = pair(op, a, b, needed)?;
        work.insert(i, both);
    }
    let Some(all) = work.pop() else { refuse!(Argument, op, "needs at least one operand") };
    Ok(all.summed(|l| !out.contains(&l))?.ordered(out)?.x)
}

/// The pair of which the product frees the most elements; at a tie the one of least work, then the
/// first.
fn cheapest(work: &[Named], out: &[Label]) -> Result<(usize, usize)> {
    let mut best = (f64::INFINITY, f64::INFINITY, 0, 1);
    if work.len() == 2 {
        return Ok((0, 1));
    }
    for i in 0..work.len() {
        for j in i + 1..work.len() {
            let elsewhere = |l: Label| {
                let others = work.iter().enumerate().filter(|(n, _)| *n != i && *n != j);
                out.contains(&l) || others.into_iter().any(|(_, o)| o.axes.contains(&l))
            };
            let (a, b) = (work[i].x.try_out()?.shape, work[j].x.try_out()?.shape);
            let (mut all, mut left) = (1.0, 1.0);
            for (n, label) in work[i].axes.iter().chain(&work[j].axes).enumerate() {
                let second = n >= work[i].axes.len();
                if second && work[i].axes.contains(label) {
                    continue;
                }
                let size = if second { b[n - work[i].axes.len()] } else { a[n] } as f64;
                all *= size;
                left *= if elsewhere(*label) { size } else { 1.0 };
            }
            let grown = left - a.elems() as f64 - b.elems() as f64;
            if (grown, all) < (best.0, best.1) {
                best = (grown, all, i, j);
            }
        }
    }
    Ok((best.2, best.3))
}

/// The product of two tensors, summed over the axes for which `needed` does not hold.
#[track_caller]
fn pair(op: &str, a: Named, b: Named, needed: impl Fn(Label) -> bool) -> Result<Named> {
    let a = {
        let other = &b;
        a.summed(|l| !needed(l) && !other.axes.contains(&l))?
    };
    let b = {
        let other = &a;
        b.summed(|l| !needed(l) && !other.axes.contains(&l))?
    };
    let of = |n: &Named, keep: &dyn Fn(Label) -> bool| -> Labels {
        n.axes.iter().copied().filter(|l| keep(*l)).collect()
    };
    let (in_a, in_b) = (|l: Label| a.axes.contains(&l), |l: Label| b.axes.contains(&l));
    let batch = of(&a, &|l| in_b(l) && needed(l));
    let inner = of(&a, &|l| in_b(l) && !needed(l));
    let (rows, columns) = (of(&a, &|l| !in_b(l)), of(&b, &|l| !in_a(l)));
    let sizes = |labels: &Labels, n: &Named| -> Result<SmallVec<[usize; 8]>> {
        labels.iter().map(|l| Ok(n.size(*l)?.expect("the label is of this operand"))).collect()
    };
    let (batch_dims, inner_dims) = (sizes(&batch, &a)?, sizes(&inner, &a)?);
    let (row_dims, column_dims) = (sizes(&rows, &a)?, sizes(&columns, &b)?);
    let axes: Labels = [&batch[..], &rows, &columns].concat().into();
    let dims = [&batch_dims[..], &row_dims, &column_dims].concat();
    let to = shape(op, &dims)?;
    let [m, n, k] = [&row_dims, &column_dims, &inner_dims].map(|d| d.iter().product::<usize>());
    let float = a.x.try_out()?.dtype.is_float();
    // A product without a sum, or with a sum alone, is no matrix product: it fuses with its surroundings.
    if inner.is_empty() || (rows.is_empty() && columns.is_empty() && !batch.is_empty()) || !float {
        let wide = [&dims[..], &inner_dims].concat();
        let whole = shape(op, &wide)?;
        let ones = |d: &[usize]| vec![1; d.len()];
        let x = a.ordered(&[&batch[..], &rows, &inner].concat())?.x;
        let x =
            reshape(x, Shape::new(&[&batch_dims[..], &row_dims, &ones(&column_dims), &inner_dims].concat()))?;
        let w = b.ordered(&[&batch[..], &columns, &inner].concat())?.x;
        let w =
            reshape(w, Shape::new(&[&batch_dims[..], &ones(&row_dims), &column_dims, &inner_dims].concat()))?;
        let y = expand(x, whole)?.try_mul(expand(w, whole)?)?;
        let last = |l: Label| inner.contains(&l);
        return Named { x: y, axes: [&axes[..], &inner].concat().into() }.summed(last);
    }
    let lead: &[usize] = if batch.is_empty() { &[] } else { &[batch_dims.iter().product()] };
    let x =
        reshape(a.ordered(&[&batch[..], &rows, &inner].concat())?.x, shape(op, &[lead, &[m, k]].concat())?)?;
    let w = reshape(
        b.ordered(&[&batch[..], &inner, &columns].concat())?.x,
        shape(op, &[lead, &[k, n]].concat())?,
    )?;
    let y = Tensor::record(Op::MatMul, &[x, w], None, None)?;
    Ok(Named { x: reshape(y, to)?, axes })
}
