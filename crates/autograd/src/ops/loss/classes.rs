//! Losses of classifications.

use wgrad_graph::DType;

use super::{Reduction, demand, float, pair, reduce};
use crate::ops::args::axis as axis_of;
use crate::ops::softmax::shifted;
use crate::ops::{cast, reshape, shape};
use crate::{Result, Tensor};

/// Options of [`Tensor::cross_entropy_with`].
#[derive(Copy, Clone, Debug)]
pub struct CrossEntropy {
    /// The axis of the classes: the last by default. (In PyTorch it is axis 1.)
    pub axis: i32,
    /// The class index that does not count: neither in the sum nor in the mean's divisor. None by
    /// default, so that a stray index is an error. (In PyTorch it is -100.)
    pub ignore_index: Option<i32>,
    /// The part of each target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// A weight for each class, `[C]`. The mean of indices is weighted by them.
    pub weight: Option<Tensor>,
    /// What becomes of the targets' losses.
    pub reduction: Reduction,
}

impl Default for CrossEntropy {
    fn default() -> CrossEntropy {
        CrossEntropy {
            axis: -1,
            ignore_index: None,
            label_smoothing: 0.0,
            weight: None,
            reduction: Reduction::Mean,
        }
    }
}

/// Options of [`Tensor::nll_with`].
#[derive(Copy, Clone, Debug)]
pub struct Nll {
    /// The axis of the classes: the last by default. (In PyTorch it is axis 1.)
    pub axis: i32,
    /// The class index that does not count; none by default.
    pub ignore_index: Option<i32>,
    /// A weight for each class, `[C]`. The mean is weighted by them.
    pub weight: Option<Tensor>,
    /// What becomes of the targets' losses.
    pub reduction: Reduction,
}

impl Default for Nll {
    fn default() -> Nll {
        Nll { axis: -1, ignore_index: None, weight: None, reduction: Reduction::Mean }
    }
}

/// Options of [`Tensor::bce_with`].
#[derive(Copy, Clone, Debug, Default)]
pub struct Bce {
    /// A weight of each element; broadcasts.
    pub weight: Option<Tensor>,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

/// Options of [`Tensor::bce_with_logits_with`].
#[derive(Copy, Clone, Debug, Default)]
pub struct BceWithLogits {
    /// A weight of each element; broadcasts.
    pub weight: Option<Tensor>,
    /// A weight of the positive targets' part; broadcasts.
    pub pos_weight: Option<Tensor>,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

/// Class indices as a loss uses them.
struct Classes {
    axis: usize,
    /// Indices, 0 where they do not count.
    index: Tensor,
    /// Which targets count; `None` when all do.
    keep: Option<Tensor>,
    /// The weight of each target's class.
    weight: Option<Tensor>,
}

impl Classes {
    #[track_caller]
    fn new(
        op: &str,
        [x, targets]: [Tensor; 2],
        axis: i32,
        ignore: Option<i32>,
        weight: Option<Tensor>,
    ) -> Result<Classes> {
        let (from, t) = (x.try_out()?.shape, targets.try_out()?);
        let axis = axis_of(op, axis, from.rank())?;
        let mut rest = from.dims().to_vec();
        rest.remove(axis);
        if rest != t.shape.dims() || !t.dtype.is_int() {
            refuse!([x, targets] Shape, op, "targets {t:?} are no integers as {from} without axis {axis}");
        }
        check_weight(op, weight, from[axis])?;
        // A negative index is no value of an unsigned dtype: nothing is ignored then.
        let ignore = ignore.filter(|i| *i >= 0 || t.dtype == DType::I32);
        let (mut index, mut keep) = (targets, None);
        if let Some(ignore) = ignore {
            let counts = targets.try_ne(ignore)?;
            (index, keep) = (counts.try_select(targets, 0)?, Some(counts));
        }
        let weight = match weight {
            Some(weight) => Some(float(weight)?.try_embedding(index)?),
            None => None,
        };
        Ok(Classes { axis, index, keep, weight })
    }

    /// `x`, 0 in lines whose target does not count, so that nothing in them matters.
    #[track_caller]
    fn seen(&self, x: Tensor) -> Result<Tensor> {
        match self.keep {
            Some(keep) => keep.try_unsqueeze(self.axis as i32)?.try_select(x, 0.0),
            None => Ok(x),
        }
    }

    /// `x[.., target, ..]`.
    #[track_caller]
    fn pick(&self, x: Tensor) -> Result<Tensor> {
        let axis = self.axis as i32;
        x.try_gather(axis, self.index.try_unsqueeze(axis)?)?.try_squeeze(axis)
    }

    #[track_caller]
    fn weigh(&self, each: Tensor) -> Result<Tensor> {
        match self.weight {
            Some(weight) => each.try_mul(weight),
            None => Ok(each),
        }
    }

    /// `each`, 0 for targets that do not count.
    #[track_caller]
    fn counted(&self, each: Tensor) -> Result<Tensor> {
        match self.keep {
            Some(keep) => keep.try_select(each, 0.0),
            None => Ok(each),
        }
    }

    /// The reduction, in which only targets that count take part.
    #[track_caller]
    fn reduce(&self, op: &str, each: Tensor, reduction: Reduction) -> Result<Tensor> {
        let each = self.counted(each)?;
        let divisor = match (self.weight, self.keep) {
            (Some(weight), _) => self.counted(weight)?.try_sum(..)?,
            (None, Some(keep)) => cast(keep, each.try_out()?.dtype)?.try_sum(..)?,
            (None, None) => return reduce(op, each, reduction),
        };
        if reduction == Reduction::Mean {
            return each.try_sum(..)?.try_div(divisor);
        }
        reduce(op, each, reduction)
    }
}

#[track_caller]
pub(super) fn check_weight(op: &str, weight: Option<Tensor>, classes: usize) -> Result<()> {
    if let Some(weight) = weight {
        let shape = weight.try_out()?.shape;
        if *shape.dims() != [classes] {
            refuse!([weight] Shape, op, "class weights {shape} for {classes} classes");
        }
    }
    Ok(())
}

/// `weight` along `axis` of a tensor of rank `rank`.
#[track_caller]
fn along(op: &str, weight: Tensor, axis: usize, rank: usize) -> Result<Tensor> {
    let mut dims = vec![1; rank];
    dims[axis] = weight.try_out()?.shape[0];
    reshape(float(weight)?, shape(op, &dims)?)
}

/// Cross entropy with class indices.
#[track_caller]
fn by_index(x: Tensor, targets: Tensor, options: CrossEntropy) -> Result<Tensor> {
    let CrossEntropy { axis, ignore_index, label_smoothing, weight, reduction } = options;
    let op = "cross_entropy";
    let from = x.try_out()?.shape;
    let classes = Classes::new(op, [x, targets], axis, ignore_index, weight)?;
    let [down, top] = shifted(classes.seen(x)?, axis)?;
    let total = down.try_exp()?.try_sum(axis)?.try_log()?;
    // Out of `x` itself, so that nothing as large has to be stored for it; lines that do not count drop out below.
    let picked = classes.pick(x)?.try_sub(top.try_squeeze(axis)?)?;
    let mut each = classes.weigh(total.try_sub(picked)?)?;
    if label_smoothing > 0.0 {
        let mut all = total.try_unsqueeze(classes.axis as i32)?.try_sub(down)?;
        if let Some(weight) = weight {
            all = all.try_mul(along(op, weight, classes.axis, from.rank())?)?;
        }
        let even = all.try_sum(axis)?.try_mul(label_smoothing / from[classes.axis] as f64)?;
        each = each.try_mul(1.0 - label_smoothing)?.try_add(even)?;
    }
    classes.reduce(op, each, reduction)
}

/// Cross entropy with a probability for each class.
#[track_caller]
fn by_probability(x: Tensor, targets: Tensor, options: CrossEntropy) -> Result<Tensor> {
    let CrossEntropy { axis, ignore_index, label_smoothing, weight, reduction } = options;
    let op = "cross_entropy";
    let [x, mut t] = pair(op, x, targets)?;
    if ignore_index.is_some() {
        refuse!([x, t] Argument, op, "an index is ignored, but the targets are probabilities");
    }
    let from = x.try_out()?.shape;
    let a = axis_of(op, axis, from.rank())?;
    check_weight(op, weight, from[a])?;
    if label_smoothing > 0.0 {
        t = t.try_mul(1.0 - label_smoothing)?.try_add(label_smoothing / from[a] as f64)?;
    }
    if let Some(weight) = weight {
        t = t.try_mul(along(op, weight, a, from.rank())?)?;
    }
    let [down, _] = shifted(x, axis)?;
    let total = down.try_exp()?.try_sum_keepdim(axis)?.try_log()?;
    reduce(op, t.try_mul(total.try_sub(down)?)?.try_sum(axis)?, reduction)
}

/// The smallest normal f32: what is below counts as 0 in [`Tensor::bce`].
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// `log(x)` and `log(1 - x)`, at least -100; no gradient flows where they are cut.
#[track_caller]
fn cut_logs(x: Tensor) -> Result<[Tensor; 2]> {
    let floor = x.number(-100.0, x.try_out()?.dtype)?;
    let (no, yes) = (x.try_lt(TINY)?, x.try_ge(1.0)?);
    let of_yes = no.try_select(floor, no.try_select(1.0, x)?.try_log()?)?;
    let of_no = yes.try_select(floor, yes.try_select(0.0, x)?.try_neg()?.try_log1p()?)?;
    Ok([of_yes, of_no])
}

methods! { impl Tensor, Self;
    /// The mean of `-log(softmax(x)[target])`.
    ///
    /// Shape: logits `[.., C]`, integer targets `[..]`, result `[]`; or targets of floats, a probability for
    /// each class, of the logits' shape. Gradient: `(softmax - one_hot) / n`.
    /// A target outside `0..C` raises the step's error flag.
    cross_entropy try_cross_entropy(self, targets: Tensor) -> Tensor {
        in_f32!(self, try_cross_entropy(targets));
        self.try_cross_entropy_with(targets, CrossEntropy::default())
    }

    /// `-log(softmax(x)[target])`, or `-sum(target * log(softmax(x)))` for targets of floats, with options.
    ///
    /// Shape: classes lie on `options.axis`; integer targets are without that axis, probabilities with it;
    /// unreduced losses are without it.
    /// Numerics: the mean of indices divides by the number (with weights: the weight) of the targets that
    /// count, that of probabilities by the number of lines. When none counts it is NaN, and the gradient is
    /// 0. A line that does not count has no influence, whatever it holds.
    cross_entropy_with try_cross_entropy_with(self, targets: Tensor, options: CrossEntropy) -> Tensor {
        in_f32!(self, try_cross_entropy_with(targets, options));
        let smoothing = options.label_smoothing;
        demand("cross_entropy", (0.0..=1.0).contains(&smoothing), "smoothing is in 0 ..= 1", smoothing)?;
        let x = float(self)?;
        match targets.try_out()?.dtype.is_float() {
            true => by_probability(x, targets, options),
            false => by_index(x, targets, options),
        }
    }

    /// The mean of `-x[target]`, where `x` holds logarithms of probabilities.
    ///
    /// Shape: `[.., C]`, integer targets `[..]`, result `[]`.
    nll try_nll(self, targets: Tensor) -> Tensor { self.try_nll_with(targets, Nll::default()) }
    /// `-x[target]` with options; means as in [`Tensor::cross_entropy_with`].
    nll_with try_nll_with(self, targets: Tensor, options: Nll) -> Tensor {
        in_f32!(self, try_nll_with(targets, options));
        let Nll { axis, ignore_index, weight, reduction } = options;
        let x = float(self)?;
        let classes = Classes::new("nll", [x, targets], axis, ignore_index, weight)?;
        let picked = classes.pick(x)?.try_neg()?;
        classes.reduce("nll", classes.weigh(picked)?, reduction)
    }

    /// The mean of `-target * log(x) - (1 - target) * log(1 - x)`, where `x` holds probabilities.
    ///
    /// Shape: both equal; result `[]`. Numerics: logarithms are at least -100, so that the loss is finite;
    /// an `x` below the smallest normal f32 counts as 0. Gradient: none through a logarithm that is cut.
    /// [`Tensor::bce_with_logits`] has neither fault.
    bce try_bce(self, target: Tensor) -> Tensor { self.try_bce_with(target, Bce::default()) }
    /// As [`Tensor::bce`], with options.
    bce_with try_bce_with(self, target: Tensor, options: Bce) -> Tensor {
        in_f32!(self, try_bce_with(target, options));
        let [x, t] = pair("bce", self, target)?;
        let [yes, no] = cut_logs(x)?;
        // (t - 1) * no - t * yes
        let mut each = t.try_sub(1.0)?.try_mul(no)?.try_sub(t.try_mul(yes)?)?;
        if let Some(weight) = options.weight {
            each = each.try_mul(weight)?;
        }
        reduce("bce", each, options.reduction)
    }

    /// The mean of `-target * log(s) - (1 - target) * log(1 - s)` with `s = sigmoid(x)`.
    ///
    /// Shape: both equal; result `[]`. Numerics: `softplus(-x) + (1 - target) * x`, finite for all finite
    /// `x`. Gradient: `(s - target) / n`.
    bce_with_logits try_bce_with_logits(self, target: Tensor) -> Tensor {
        self.try_bce_with_logits_with(target, BceWithLogits::default())
    }
    /// As [`Tensor::bce_with_logits`], with options.
    bce_with_logits_with try_bce_with_logits_with(self, target: Tensor, options: BceWithLogits) -> Tensor {
        in_f32!(self, try_bce_with_logits_with(target, options));
        let [x, t] = pair("bce_with_logits", self, target)?;
        let mut low = x.try_neg()?.try_softplus()?;
        if let Some(positive) = options.pos_weight {
            low = low.try_mul(positive.try_sub(1.0)?.try_mul(t)?.try_add(1.0)?)?;
        }
        let rest = t.try_neg()?.try_add(1.0)?.try_mul(x)?;
        let mut each = low.try_add(rest)?;
        if let Some(weight) = options.weight {
            each = each.try_mul(weight)?;
        }
        reduce("bce_with_logits", each, options.reduction)
    }
}
