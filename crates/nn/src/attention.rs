//! Multi-head attention.

use wgrad_autograd::{Attention, Context, Param, Tensor};
use wgrad_graph::Result;

use crate::{Init, Linear, Mode, Module, ParamSet, Rng};

/// Attention of several heads with projections before and after.
///
/// Shape: `[.., T, width] -> [.., T, width]`. The projection before is
/// `[width, width + 2 * groups * width / heads]`: that of queries, of keys, of values.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// Queries, keys and values side by side, called `NAME.in_proj_weight`.
    pub in_proj_weight: Param,
    /// Called `NAME.in_proj_bias`; `None` for none.
    pub in_proj_bias: Option<Param>,
    /// Called `NAME.out_proj.weight` and `NAME.out_proj.bias`.
    pub out_proj: Linear,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub groups: usize,
    /// Whether `forward` hides later positions.
    pub causal: bool,
    /// The probability with which a weight becomes 0 in [`Mode::Train`].
    pub dropout: f64,
    stream: String,
    mode: Mode,
}

impl MultiHeadAttention {
    /// As many heads of keys as of queries, biases of zeros, Glorot-uniform weights; no mask, no dropout.
    ///
    /// # Errors
    /// `Argument` when `heads` does not divide `width`; what the device meets when parameters are written.
    pub fn new(ctx: &Context, name: &str, width: usize, heads: usize, rng: Rng) -> Result<Self> {
        MultiHeadAttention::with(ctx, name, width, [heads, heads], rng, true)
    }

    /// `[heads, groups]`: heads of queries, and of keys and values; with or without biases.
    ///
    /// # Errors
    /// `Argument` when `heads` does not divide `width` or `groups` not `heads`; what the device meets when
    /// the parameters are written.
    pub fn with(
        ctx: &Context,
        name: &str,
        width: usize,
        [heads, groups]: [usize; 2],
        rng: Rng,
        bias: bool,
    ) -> Result<Self> {
        if heads == 0 || groups == 0 || !width.is_multiple_of(heads) || !heads.is_multiple_of(groups) {
            let rule = "heads divide the width, groups the heads";
            wgrad_graph::bail!(Argument, "multi_head_attention", "{rule}: {width}, {heads}, {groups}");
        }
        let outputs = width + 2 * groups * (width / heads);
        let named = |part: &str| format!("{name}.{part}");
        let init = Init::GlorotUniform;
        let weight = init.draw(rng.at(&named("in_proj_weight")), [width, outputs], width, outputs);
        let zeros = || Init::Constant(0.0).draw(rng, [outputs], 1, 1);
        let in_proj_bias = match bias {
            true => Some(Param::new(ctx, &named("in_proj_bias"), zeros())?),
            false => None,
        };
        Ok(MultiHeadAttention {
            in_proj_weight: Param::new(ctx, &named("in_proj_weight"), weight)?,
            in_proj_bias,
            out_proj: Linear::with(ctx, &named("out_proj"), width, width, rng, init, bias)?,
            heads,
            groups,
            causal: false,
            dropout: 0.0,
            stream: name.to_owned(),
            mode: Mode::Train,
        })
    }

    /// `[.., T, heads * D] -> [.., heads, T, D]`.
    #[track_caller]
    fn split(x: Tensor, heads: usize) -> Tensor {
        let shape = x.shape();
        let (lead, last) = shape.dims().split_at(shape.rank() - 1);
        x.reshape([lead, &[heads, last[0] / heads]].concat().as_slice()).transpose(-3, -2)
    }

    /// The columns of the projection before that `range` names, of `x`.
    #[track_caller]
    fn project(&self, x: Tensor, start: usize, len: usize) -> Tensor {
        let w = self.in_proj_weight.t().narrow(1, start, len);
        match &self.in_proj_bias {
            Some(bias) => bias.t().narrow(0, start, len).addmm(x, w),
            None => x.matmul(w),
        }
    }

    /// Queries, keys and values of `x`, with heads apart: `[.., H, T, D]`, `[.., G, T, D]` twice.
    #[track_caller]
    pub fn qkv(&self, x: Tensor) -> [Tensor; 3] {
        let [width, outputs] = [0, 1].map(|a| self.in_proj_weight.shape()[a]);
        let (all, inner) = (self.project(x, 0, outputs), (outputs - width) / 2);
        [
            MultiHeadAttention::split(all.narrow(-1, 0, width), self.heads),
            MultiHeadAttention::split(all.narrow(-1, width, inner), self.groups),
            MultiHeadAttention::split(all.narrow(-1, width + inner, inner), self.groups),
        ]
    }

    /// The result of queries, keys and values with heads apart, under `mask` if there is one: for positions
    /// that are turned, and for caches.
    #[track_caller]
    pub fn attend(&self, [q, k, v]: [Tensor; 3], causal: bool, mask: Option<Tensor>) -> Tensor {
        let dropout = if self.mode == Mode::Train { self.dropout } else { 0.0 };
        let options = Attention { causal, mask, dropout, stream: &self.stream, ..Attention::default() };
        let y = q.scaled_dot_product_attention(k, v, options).transpose(-3, -2);
        self.out_proj.forward(y.flatten(-2))
    }

    /// Queries from `x`, keys from `memory`, values from `values`.
    #[track_caller]
    pub fn cross(&self, x: Tensor, memory: Tensor, values: Tensor, mask: Option<Tensor>) -> Tensor {
        let [width, outputs] = [0, 1].map(|a| self.in_proj_weight.shape()[a]);
        let inner = (outputs - width) / 2;
        let qkv = [
            MultiHeadAttention::split(self.project(x, 0, width), self.heads),
            MultiHeadAttention::split(self.project(memory, width, inner), self.groups),
            MultiHeadAttention::split(self.project(values, width + inner, inner), self.groups),
        ];
        self.attend(qkv, self.causal, mask)
    }
}

impl Module for MultiHeadAttention {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        self.attend(self.qkv(x), self.causal, None)
    }

    fn params(&self) -> ParamSet {
        let own = [Some(self.in_proj_weight.clone()), self.in_proj_bias.clone()];
        own.into_iter().flatten().chain(self.out_proj.params()).collect()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }
}
