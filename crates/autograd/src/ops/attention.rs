//! Attention and rotary positions.

use std::panic::Location;

use wgrad_graph::{Attend, DType, Heads, Op, Shape};

use super::{cast, expand, iota, reshape, shape};
use crate::autocast;
use crate::record::{self, Recorded};
use crate::{Result, Tensor, table};

/// Options of [`Tensor::scaled_dot_product_attention`].
#[derive(Copy, Clone, Debug)]
pub struct Attention<'a> {
    /// Whether query `i` sees the keys up to `i` alone, counted from the first of each (top left, also
    /// where lengths differ). Together with a mask a key is seen where both allow it.
    pub causal: bool,
    /// Truth values, true where a key is seen, or numbers that are added to the scores, where -inf hides a
    /// key. Broadcasts to `[.., H, L, S]`.
    pub mask: Option<Tensor>,
    /// The factor of the scores; `1 / sqrt(D)` where none is given.
    pub scale: Option<f64>,
    /// The probability with which a weight becomes 0.
    pub dropout: f64,
    /// The stream of the dropout's random numbers.
    pub stream: &'a str,
}

impl Default for Attention<'_> {
    fn default() -> Self {
        Attention { causal: false, mask: None, scale: None, dropout: 0.0, stream: "attention" }
    }
}

/// Which two features of a head are turned together.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Pairing {
    /// Feature `i` with `i + D / 2`, as in GPT-NeoX and Llama's published weights for Transformers.
    #[default]
    Half,
    /// Feature `2 i` with `2 i + 1`, as in the paper (Su et al. 2021).
    Interleaved,
}

const OP: &str = "scaled_dot_product_attention";

/// A score that is as good as none, for keys that are not seen: finite, so that no difference is NaN.
const UNSEEN: f64 = -1e30;

/// Truth values of what is seen, and numbers to add, of a mask.
#[track_caller]
pub(crate) fn parts(mask: Option<Tensor>) -> Result<[Option<Tensor>; 2]> {
    let Some(mask) = mask else { return Ok([None, None]) };
    match mask.try_out()?.dtype {
        DType::Bool => Ok([Some(mask), None]),
        dtype if dtype.is_float() => {
            let hidden = mask.try_eq(f64::NEG_INFINITY)?;
            Ok([Some(hidden.try_not()?), Some(hidden.try_select(0.0, mask)?)])
        }
        dtype => refuse!([mask] DType, OP, "a mask is of truth values or floats, not {dtype}"),
    }
}

/// `softmax(scores)` over what is seen; where nothing is, zeros.
#[track_caller]
pub(crate) fn weights(scores: Tensor, seen: Option<Tensor>) -> Result<Tensor> {
    let Some(seen) = seen else { return scores.try_softmax(-1) };
    let scores = seen.try_select(scores, UNSEEN)?;
    let top = scores.try_max_keepdim(-1)?.try_detach()?;
    let e = seen.try_select(scores.try_sub(top)?.try_exp()?, 0.0)?;
    let total = e.try_sum_keepdim(-1)?;
    // The largest seen score gives 1, so a smaller total is that of no score at all.
    e.try_div(total.try_gt(0.5)?.try_select(total, 1.0)?)
}

/// `x` with the heads' groups folded into its rows: `[.., H, L, S] -> [.., H / group, group * L, S]`, or
/// back where `group` divides rows.
#[track_caller]
fn heads(x: Tensor, count: usize, rows: usize) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let rank = from.rank();
    reshape(x, from.with(rank - 3, count).with(rank - 2, rows))
}

/// What is seen of keys that are not after their query.
#[track_caller]
pub(crate) fn past(beside: Tensor, seen: Option<Tensor>, [rows, keys]: [usize; 2]) -> Result<Tensor> {
    let square = Shape::from([rows, keys]);
    let past = iota(beside, square, 0, DType::I32)?.try_ge(iota(beside, square, 1, DType::I32)?)?;
    match seen {
        Some(seen) => seen.try_and(past),
        None => Ok(past),
    }
}

/// The attention as one leaf, where operands and device allow it.
#[track_caller]
fn leaf(q: Tensor, k: Tensor, v: Tensor, options: Attention<'_>) -> Result<Option<Tensor>> {
    let outs = [q.try_out()?, k.try_out()?, v.try_out()?];
    let mask = match options.mask {
        Some(mask) => Some((mask, mask.try_out()?)),
        None => None,
    };
    let computed = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let masks = |dtype| dtype == DType::Bool || computed(dtype);
    let rank = outs[0].shape.rank();
    if rank < 2
        || outs.iter().any(|x| x.shape.rank() != rank || !computed(x.dtype))
        || options.dropout > 0.0
        || mask.is_some_and(|(_, out)| !masks(out.dtype))
    {
        return Ok(None);
    }
    // Leading axes, heads and matrices; matrices alone have one head.
    let [a, b, c] = outs.map(|x| x.shape);
    let cut = rank.saturating_sub(3);
    let count = |x: Shape| if rank > 2 { x[cut] } else { 1 };
    let (h, g) = (count(a).max(count(b)), if count(a) == 1 { count(b) } else { count(b).min(count(a)) });
    let lead = |x: Shape| Shape::new(&x.dims()[..cut]);
    let Some(leads) = lead(a).broadcast(&lead(b)).and_then(|x| x.broadcast(&lead(c))) else {
        return Ok(None);
    };
    let heads =
        Heads { b: leads.elems(), h, g, l: a[rank - 2], s: b[rank - 2], d: a[rank - 1], e: c[rank - 1] };
    let fits = b[rank - 1] == heads.d
        && c[rank - 2] == heads.s
        && count(c) == count(b)
        && g > 0
        && h % g == 0
        && [1, h].contains(&count(a));
    let full = |count: usize, rows: usize, width: usize| {
        let tail: &[usize] = if rank > 2 { &[count, rows, width] } else { &[rows, width] };
        Shape::new(&[leads.dims(), tail].concat())
    };
    let whole = full(h, heads.l, heads.s);
    let fits = fits && mask.is_none_or(|(_, out)| out.shape.broadcast(&whole) == Some(whole));
    let state = table::lock(q.context)?;
    let suits = fits && heads.suit(state.backend.caps());
    drop(state);
    if !suits {
        return Ok(None);
    }
    let as_leaf = |x: Tensor, count: usize, rows: usize, width: usize| {
        reshape(expand(x, full(count, rows, width))?, Shape::from([heads.b, count, rows, width]))
    };
    let q = match options.scale {
        Some(scale) => q.try_mul(scale)?,
        None => q,
    };
    let mut x = vec![
        as_leaf(q, h, heads.l, heads.d)?,
        as_leaf(k, g, heads.s, heads.d)?,
        as_leaf(v, g, heads.s, heads.e)?,
    ];
    if let Some((mask, _)) = mask {
        x.push(as_leaf(mask, h, heads.l, heads.s)?);
    }
    let attend = Attend { causal: options.causal, masked: mask.is_some(), scaled: options.scale.is_none() };
    let what = Recorded { op: Op::Attention(attend), x: &x, to: None, dtype: None };
    let y = record::results(what, Location::caller())?[0];
    let y = reshape(y, full(h, heads.l, heads.e))?;
    // Halves in, halves out, rounded once.
    let dtype = outs[0].dtype;
    Ok(Some(if dtype.is_half() { cast(y, dtype)? } else { y }))
}

#[track_caller]
fn attention(q: Tensor, k: Tensor, v: Tensor, options: Attention<'_>) -> Result<Tensor> {
    let Attention { causal, mask, scale, dropout, stream } = options;
    let (a, b, c) = (q.try_out()?, k.try_out()?, v.try_out()?);
    let ([ra, rb, rc], rule) =
        ([a, b, c].map(|x| x.shape.rank()), "[.., H, L, D], [.., G, S, D], [.., G, S, E]");
    let fit = ra >= 2
        && ra == rb
        && rb == rc
        && a.shape[ra - 1] == b.shape[rb - 1]
        && b.shape[rb - 2] == c.shape[rc - 2]
        && [a, b, c].iter().all(|x| x.dtype.is_float());
    if !fit {
        refuse!([q, k, v] Shape, OP, "{a:?}, {b:?} and {c:?} do not fit floats {rule}");
    }
    let (rows, keys) = (a.shape[ra - 2], b.shape[rb - 2]);
    let (many, few) = if ra > 2 { (a.shape[ra - 3], b.shape[rb - 3]) } else { (1, 1) };
    let grouped = ra > 2 && many != few && few > 1 && many % few == 0;
    let shared = ra > 2 && (many == few || few == 1 || many == 1);
    if ra > 2 && (c.shape[rc - 3] != few || !grouped && !shared) {
        refuse!([q, k, v] Shape, OP, "{many} heads of queries with {few} of keys: no multiple, or other values");
    }
    let scale = scale.unwrap_or(1.0 / (a.shape[ra - 1].max(1) as f64).sqrt());
    let mut q = q.try_mul(scale)?;
    if grouped {
        q = heads(q, few, many / few * rows)?;
    }
    let mut scores = q.try_matmul(k.try_t()?)?;
    if grouped {
        scores = heads(scores, many, rows)?;
    }
    let whole = scores.try_out()?.shape;
    let [mut seen, added] = parts(mask)?;
    for mask in [seen, added].into_iter().flatten() {
        let shape = mask.try_out()?.shape;
        if shape.broadcast(&whole) != Some(whole) {
            refuse!([q, k, mask] Shape, OP, "mask {shape} does not broadcast to the scores {whole}");
        }
    }
    if let Some(added) = added {
        scores = scores.try_add(added)?;
    }
    if causal {
        seen = Some(past(q, seen, [rows, keys])?);
    }
    let mut w = weights(scores, seen)?;
    if dropout > 0.0 {
        w = w.try_dropout(stream, dropout)?;
    }
    if !grouped {
        return w.try_matmul(v);
    }
    heads(heads(w, few, many / few * rows)?.try_matmul(v)?, many, rows)
}

methods! { impl Tensor, Self;
    /// `softmax(scale * q k^T + mask) v` over the keys that are seen.
    ///
    /// Shape: queries `[.., H, L, D]`, keys `[.., G, S, D]`, values `[.., G, S, E]`, result
    /// `[.., H, L, E]`; `G` divides `H` (each head of keys serves `H / G` neighbouring heads of queries), or
    /// there are no heads. Other leading axes broadcast.
    /// Gradient: a query that sees no key gets 0 and gives 0, never NaN.
    /// Numerics: shifted by the largest score; a query that sees no key gives zeros.
    scaled_dot_product_attention try_scaled_dot_product_attention(self, k: Tensor, v: Tensor, options: Attention<'_>) -> Tensor {
        if let Some(half) = autocast::half(&[self, k, v])? {
            let _products = autocast::pause();
            let [q, k, v] = [cast(self, half)?, cast(k, half)?, cast(v, half)?];
            return q.try_scaled_dot_product_attention(k, v, options);
        }
        if let Some(y) = leaf(self, k, v, options)? {
            return Ok(y);
        }
        in_f32!(self, try_scaled_dot_product_attention(k, v, options));
        attention(self, k, v, options)
    }

    /// Rotary positions: each pair of features turned by the angle of its position,
    /// `(a cos - b sin, a sin + b cos)`. Features beyond twice the tables' width pass as they are.
    ///
    /// Shape: `x` is `[.., T, D]`, the tables are `[T, R]` with `2 R <= D`, or broadcast to `[.., T, R]`.
    rope try_rope(self, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor {
        in_f32!(self, try_rope(cos, sin, pairing));
        let (from, table) = (self.try_out()?.shape, cos.try_out()?.shape);
        let (rank, wide) = (from.rank(), table.rank());
        if rank < 2 || wide < 1 || 2 * table[wide - 1] > from[rank - 1] || sin.try_out()?.shape != table {
            refuse!([self, cos, sin] Shape, "rope", "tables {table} do not fit {from}: need [T, R] with 2 R <= D");
        }
        let turned = 2 * table[wide - 1];
        let part = from.with(rank - 1, table[wide - 1]);
        if table.broadcast(&part) != Some(part) {
            refuse!([self, cos, sin] Shape, "rope", "tables {table} do not broadcast to {part}");
        }
        let x = self.try_narrow(-1, 0, turned)?;
        let pairs = match pairing {
            Pairing::Half => shape("rope", &[&from.dims()[..rank - 1], &[2, turned / 2]].concat())?,
            Pairing::Interleaved => shape("rope", &[&from.dims()[..rank - 1], &[turned / 2, 2]].concat())?,
        };
        let along = if pairing == Pairing::Half { -2 } else { -1 };
        let x = reshape(x, pairs)?;
        let (a, b) = (x.try_select_index(along, 0)?, x.try_select_index(along, 1)?);
        let [c, s] = [cast(cos, a.try_out()?.dtype)?, cast(sin, a.try_out()?.dtype)?];
        let first = a.try_mul(c)?.try_sub(b.try_mul(s)?)?;
        let second = a.try_mul(s)?.try_add(b.try_mul(c)?)?;
        let both = reshape(Tensor::try_stack(&[first, second], along)?, from.with(rank - 1, turned))?;
        if turned == from[rank - 1] {
            return Ok(both);
        }
        Tensor::try_cat(&[both, self.try_narrow(-1, turned, from[rank - 1] - turned)?], -1)
    }
}
