//! Connectionist temporal classification (Graves et al. 2006).

use wgrad_graph::{DType, Shape};

use super::{Reduction, reduce};
use crate::ops::{cast, expand, iota, reshape};
use crate::{Result, Tensor};

/// Options of [`Tensor::ctc_with`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Ctc {
    /// The class that stands for no label.
    pub blank: i32,
    /// Whether a target that no path reaches costs 0 instead of infinity.
    pub zero_infinity: bool,
    /// What becomes of the sequences' losses. The mean divides each by the length of its target (at least
    /// 1) first.
    pub reduction: Reduction,
}

/// The logarithm of what is impossible: finite, so that differences of it are 0 and no NaN arises, and so
/// low that a sum of possible steps is never near it.
const IMPOSSIBLE: f64 = -1e30;

/// `log(e^a + e^b + e^c)`.
#[track_caller]
fn log_add(terms: &[Tensor]) -> Result<Tensor> {
    let mut top = terms[0];
    for x in &terms[1..] {
        top = top.try_maximum(*x)?;
    }
    let top = top.try_detach()?;
    let mut sum = terms[0].try_sub(top)?.try_exp()?;
    for x in &terms[1..] {
        sum = sum.try_add(x.try_sub(top)?.try_exp()?)?;
    }
    sum.try_log()?.try_add(top)
}

/// `x` moved `by` places to the right along the last axis of `[n, places]`.
#[track_caller]
fn moved(x: Tensor, by: usize) -> Result<Tensor> {
    let from = x.try_out()?;
    let (n, places) = (from.shape[0], from.shape[1]);
    let by = by.min(places);
    let empty = expand(x.number(IMPOSSIBLE, from.dtype)?, Shape::from([n, by]))?;
    Tensor::try_cat(&[empty, x.try_slice(1, ..places - by)?], 1)
}

/// The labels of each sequence with blanks around them, `[n, 2 S + 1]`, what lies beyond a target being
/// blank; and at which places a path may jump over the blank before.
#[track_caller]
fn places(targets: Tensor, lengths: Tensor, blank: i32) -> Result<[Tensor; 2]> {
    let shape = targets.try_out()?.shape;
    let (n, longest) = (shape[0], shape[1]);
    let within = iota(targets, shape, 1, DType::I32)?.try_lt(lengths.try_unsqueeze(1)?)?;
    let labels = within.try_select(targets, blank)?;
    let none = labels.try_full_like(blank)?;
    let pairs = reshape(Tensor::try_stack(&[none, labels], 2)?, Shape::from([n, 2 * longest]))?;
    let last = expand(labels.number(f64::from(blank), DType::I32)?, Shape::from([n, 1]))?;
    let labels = Tensor::try_cat(&[pairs, last], 1)?;
    let width = 2 * longest + 1;
    // The first two places have none two before them; comparing them with blanks says so.
    let before = expand(labels.number(f64::from(blank), DType::I32)?, Shape::from([n, 2.min(width)]))?;
    let before = Tensor::try_cat(&[before, labels.try_slice(1, ..width.saturating_sub(2))?], 1)?;
    let jump = labels.try_ne(blank)?.try_and(labels.try_ne(before)?)?;
    Ok([labels, jump])
}

/// `-log(P(target))` of each sequence: `x` is `[T, N, C]`, targets are `[N, S]`.
#[track_caller]
fn ctc(x: Tensor, targets: Tensor, lengths: [Tensor; 2], options: Ctc) -> Result<Tensor> {
    let from = x.try_out()?;
    let [steps, n] = [from.shape[0], from.shape[1]];
    let [labels, jump] = places(targets, lengths[1], options.blank)?;
    let width = labels.try_out()?.shape[1];
    let here = Shape::from([n, width]);
    let index = expand(labels, Shape::from([steps, n, width]))?;
    let emitted = x.try_gather(2, index)?;
    let emitted = emitted.try_maximum(x.number(IMPOSSIBLE, from.dtype)?)?;
    // Before the first step every path waits at the first place.
    let first = iota(x, here, 1, DType::I32)?.try_eq(0)?;
    let impossible = x.number(IMPOSSIBLE, from.dtype)?;
    let mut paths = first.try_select(x.number(0.0, from.dtype)?, impossible)?;
    for t in 0..steps {
        let jumped = jump.try_select(moved(paths, 2)?, impossible)?;
        let next = log_add(&[paths, moved(paths, 1)?, jumped])?;
        let next = next.try_add(emitted.try_select_index(0, t as i32)?)?;
        let running = lengths[0].try_gt(t as i32)?.try_unsqueeze(1)?;
        paths = running.try_select(next, paths)?;
    }
    let end = lengths[1].try_mul(2)?.try_unsqueeze(1)?;
    let at_blank = paths.try_gather(1, end)?;
    let at_label = paths.try_gather(1, end.try_sub(1)?.try_maximum(0)?)?;
    let at_label = end.try_gt(0)?.try_select(at_label, impossible)?;
    let loss = log_add(&[at_blank, at_label])?.try_neg()?.try_squeeze(1)?;
    let reached = loss.try_lt(-0.1 * IMPOSSIBLE)?;
    reached.try_select(loss, if options.zero_infinity { 0.0 } else { f64::INFINITY })
}

methods! { impl Tensor, Self;
    /// The mean loss of label sequences of which no one says at which step each label stands: the
    /// negative logarithm of the probability of all ways to spread them over the steps.
    ///
    /// Shape: logarithms of probabilities `[T, N, C]`, integer targets `[N, S]`, numbers of steps `[N]` and
    /// of labels `[N]`; or without `N`. Labels beyond a target's length do not matter.
    ctc try_ctc(self, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor {
        self.try_ctc_with(targets, input_lengths, target_lengths, Ctc::default())
    }

    /// As [`Tensor::ctc`], with options.
    ///
    /// Gradient: that of the loss by the logarithms given; 0 where no path reaches the target, so it is
    /// finite in any case. (PyTorch's subtracts what `log_softmax` before it would; behind `log_softmax`
    /// both are equal.)
    /// Numerics: in the logarithmic domain. A target that is longer than its steps allow costs infinity.
    ctc_with try_ctc_with(self, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, options: Ctc) -> Tensor {
        in_f32!(self, try_ctc_with(targets, input_lengths, target_lengths, options));
        let op = "ctc";
        let x = super::float(self)?;
        let (from, t) = (x.try_out()?.shape, targets.try_out()?);
        let lengths = [input_lengths, target_lengths];
        let fit = match (from.rank(), t.shape.rank()) {
            (3, 2) => t.shape[0] == from[1],
            (2, 1) => true,
            _ => false,
        };
        let mut counts = fit && t.dtype.is_int();
        for l in lengths {
            let l = l.try_out()?;
            counts &= l.dtype.is_int() && l.shape.dims() == &from.dims()[1..from.rank() - 1];
        }
        if !counts {
            refuse!(
                [x, targets, lengths[0], lengths[1]] Shape, op,
                "needs [T, N, C] with integers [N, S], [N], [N], or [T, C] with [S], [], []"
            );
        }
        if !(0..from[from.rank() - 1] as i64).contains(&i64::from(options.blank)) {
            refuse!([x] Argument, op, "blank {} is no class of {from}", options.blank);
        }
        let single = from.rank() == 2;
        let [mut x, mut t] = [x, cast(targets, DType::I32)?];
        let mut lengths = [cast(lengths[0], DType::I32)?, cast(lengths[1], DType::I32)?];
        if single {
            (x, t) = (x.try_unsqueeze(1)?, t.try_unsqueeze(0)?);
            lengths = [lengths[0].try_unsqueeze(0)?, lengths[1].try_unsqueeze(0)?];
        }
        let mut each = ctc(x, t, lengths, options)?;
        if options.reduction == Reduction::Mean {
            let labels = cast(lengths[1].try_maximum(1)?, each.try_out()?.dtype)?;
            each = each.try_div(labels)?;
        }
        if single {
            each = each.try_squeeze(0)?;
        }
        reduce(op, each, options.reduction)
    }
}
