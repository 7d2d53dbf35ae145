//! Operations on whole channels and pixels, and tables of rows.

use wgrad_graph::Shape;

use super::{expand, reshape, shape};
use crate::{Result, Tensor};

/// Sizes of `[.., C, H, W]`: the leading ones, then the three.
#[track_caller]
fn image(op: &str, x: Tensor) -> Result<(Vec<usize>, [usize; 3])> {
    let from = x.try_out()?.shape;
    if from.rank() < 3 {
        refuse!([x] Shape, op, "{from} is not [.., C, H, W]");
    }
    let (lead, last) = from.dims().split_at(from.rank() - 3);
    Ok((lead.to_vec(), [last[0], last[1], last[2]]))
}

/// `x` seen with the axes `inner` behind `lead`, in the order `order` of those, then joined to `to`.
#[track_caller]
fn regroup(
    op: &str,
    x: Tensor,
    lead: &[usize],
    inner: &[usize],
    order: &[usize],
    to: &[usize],
) -> Result<Tensor> {
    let x = reshape(x, shape(op, &[lead, inner].concat())?)?;
    let order: Vec<usize> = (0..lead.len()).chain(order.iter().map(|a| lead.len() + a)).collect();
    reshape(super::permute(x, &order)?, shape(op, &[lead, to].concat())?)
}

methods! { impl Tensor, Self;
    /// Channels as pixels: `y[c, h r + i, w r + j] = x[c r^2 + i r + j, h, w]`.
    ///
    /// Shape: `[.., C r^2, H, W] -> [.., C, H r, W r]`.
    pixel_shuffle try_pixel_shuffle(self, r: usize) -> Tensor {
        let op = "pixel_shuffle";
        let (lead, [c, h, w]) = image(op, self)?;
        if r == 0 || c % (r * r) != 0 {
            refuse!([self] Argument, op, "{c} channels are no multiple of {r}^2");
        }
        let out = c / (r * r);
        regroup(op, self, &lead, &[out, r, r, h, w], &[0, 3, 1, 4, 2], &[out, h * r, w * r])
    }

    /// Pixels as channels: the inverse of [`Tensor::pixel_shuffle`].
    ///
    /// Shape: `[.., C, H r, W r] -> [.., C r^2, H, W]`.
    pixel_unshuffle try_pixel_unshuffle(self, r: usize) -> Tensor {
        let op = "pixel_unshuffle";
        let (lead, [c, h, w]) = image(op, self)?;
        if r == 0 || h % r != 0 || w % r != 0 {
            refuse!([self] Argument, op, "{h} by {w} pixels are no multiples of {r}");
        }
        let (h, w) = (h / r, w / r);
        regroup(op, self, &lead, &[c, h, r, w, r], &[0, 2, 4, 1, 3], &[c * r * r, h, w])
    }

    /// Channels dealt out: channel `i` of `C / groups` in group `g` becomes channel `i * groups + g`.
    ///
    /// Shape: `[N, C, ..]`.
    channel_shuffle try_channel_shuffle(self, groups: usize) -> Tensor {
        let op = "channel_shuffle";
        let from = self.try_out()?.shape;
        if from.rank() < 2 || groups == 0 || from[1] % groups != 0 {
            refuse!([self] Argument, op, "{from} is not [N, C, ..] with {groups} groups of channels");
        }
        let rest = from.dims()[2..].iter().product();
        let (lead, to) = ([from[0]], [from[1], rest]);
        let y = regroup(op, self, &lead, &[groups, from[1] / groups, rest], &[1, 0, 2], &to)?;
        reshape(y, from)
    }

    /// Whole channels set to 0 with probability `p`, the others divided by `1 - p`.
    ///
    /// Shape: `[N, C, ..]`.
    dropout_channels try_dropout_channels(self, stream: &str, p: f64) -> Tensor {
        let from = self.try_out()?.shape;
        if from.rank() < 2 {
            refuse!([self] Shape, "dropout_channels", "{from} is not [N, C, ..]");
        }
        let mut dims = vec![1; from.rank()];
        dims[..2].copy_from_slice(&from.dims()[..2]);
        let kept = expand(self.number(1.0, self.try_out()?.dtype)?, Shape::new(&dims))?;
        self.try_mul(kept.try_dropout(stream, p)?)
    }

    /// Dropout that keeps mean 0 and variance 1: elements become `-alpha` with probability `p`, then all are
    /// scaled and shifted (Klambauer et al. 2017); for networks of [`Tensor::selu`].
    alpha_dropout try_alpha_dropout(self, stream: &str, p: f64) -> Tensor {
        in_f32!(self, try_alpha_dropout(stream, p));
        // lambda * alpha of selu.
        const ALPHA: f64 = 1.758_099_340_847_376_6;
        if !(0.0..1.0).contains(&p) {
            refuse!([self] Argument, "alpha_dropout", "probability {p} is not in [0, 1)");
        }
        let a = ((1.0 - p) * (1.0 + p * ALPHA * ALPHA)).sqrt().recip();
        let kept = self.try_ones_like()?.try_dropout(stream, p)?.try_gt(0.0)?;
        kept.try_select(self, -ALPHA)?.try_mul(a)?.try_add(a * p * ALPHA)
    }

    /// `softmax((x + gumbel) / temperature)` along `axis`: a sample of a category that has a gradient. Where
    /// `hard`, the value is the largest's one-hot and the gradient that of the soft sample.
    ///
    /// Numerics: the noise is bit-equal on every adapter.
    gumbel_softmax try_gumbel_softmax(self, stream: &str, axis: i32, temperature: f64, hard: bool) -> Tensor {
        in_f32!(self, try_gumbel_softmax(stream, axis, temperature, hard));
        let soft = self.try_add(self.try_gumbel_like(stream)?)?.try_div(temperature)?.try_softmax(axis)?;
        if !hard {
            return Ok(soft);
        }
        let largest = soft.try_argmax_keepdim(axis)?;
        let rank = soft.try_out()?.shape.rank();
        let a = super::args::axis("gumbel_softmax", axis, rank)?;
        let place = super::iota(soft, soft.try_out()?.shape, a, wgrad_graph::DType::I32)?;
        let one_hot = super::cast(place.try_eq(largest)?, soft.try_out()?.dtype)?;
        one_hot.try_sub(soft.try_detach()?)?.try_add(soft)
    }

    /// As [`Tensor::embedding`], but no gradient flows to the row `padding`.
    ///
    /// Shape: table `[V, ..]`, `idx` of any shape `I`; result `I ++ [..]`.
    embedding_padded try_embedding_padded(self, idx: Tensor, padding: i32) -> Tensor {
        let rows = self.try_embedding(idx)?;
        let table = self.try_out()?.shape;
        if !(0..table[0] as i64).contains(&i64::from(padding)) {
            refuse!([self, idx] Argument, "embedding_padded", "row {padding} of {table}");
        }
        let i = idx.try_out()?.shape;
        let dims = [i.dims(), &vec![1; table.rank() - 1]].concat();
        let pad = reshape(idx.try_eq(padding)?, shape("embedding_padded", &dims)?)?;
        pad.try_select(rows.try_detach()?, rows)
    }
}
