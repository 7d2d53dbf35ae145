//! Gradient rules of attention: a leaf, and for its own gradient the definition. With weights `P`, the gradient
//! `G` of the result and the factor `f` of the scores:
//!
//! `R = G v^T`, `dS = P (R - rowsum(P R))`, `dq = f dS k`, `dk = f dS^T q`, `dv = P^T G`.

use std::panic::Location;

use smallvec::{SmallVec, smallvec};
use wgrad_graph::{Attend, DType, Heads, Op, Shape};

use crate::ops::{cast, expand, parts, past, reshape, weights};
use crate::record::{self, Recorded};
use crate::rules::Site;
use crate::{Result, Tensor};

/// The operands of an attention in f32, with a head of keys for each head of queries.
struct Wide {
    heads: Heads,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// The factor of the scores.
    f: f64,
    /// The weights.
    p: Tensor,
}

impl Wide {
    #[track_caller]
    fn new(attend: Attend, x: &[Tensor]) -> Result<Wide> {
        let heads = Heads::of(x[0].try_out()?.shape, x[1].try_out()?.shape, x[2].try_out()?.shape);
        let q = cast(x[0], DType::F32)?;
        let [k, v] = [each(x[1], heads)?, each(x[2], heads)?];
        let f = attend.scale(heads.d);
        let mut scores = q.try_matmul(k.try_t()?)?.try_mul(f)?;
        let [mut seen, added] = parts(attend.masked.then(|| x[3]))?;
        if let Some(added) = added {
            scores = scores.try_add(cast(added, DType::F32)?)?;
        }
        if attend.causal {
            seen = Some(past(q, seen, [heads.l, heads.s])?);
        }
        Ok(Wide { heads, q, k, v, f, p: weights(scores, seen)? })
    }

    /// What a gradient `r` by the weights is by the scores.
    #[track_caller]
    fn through(&self, r: Tensor) -> Result<Tensor> {
        let mean = self.p.try_mul(r)?.try_sum_keepdim(-1)?;
        self.p.try_mul(r.try_sub(mean)?)
    }
}

/// A value `[B, G, ..]` in f32 for each head of queries.
#[track_caller]
fn each(x: Tensor, heads: Heads) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let x = cast(x, DType::F32)?;
    if heads.g == heads.h {
        return Ok(x);
    }
    let [b, g, n, width] = [from[0], from[1], from[2], from[3]];
    let apart = reshape(x, Shape::from([b, g, 1, n, width]))?;
    let all = expand(apart, Shape::from([b, g, heads.shared(), n, width]))?;
    reshape(all, Shape::from([b, heads.h, n, width]))
}

/// The sum over the heads of queries that share a head of keys, in the dtype of `like`.
#[track_caller]
fn shared(x: Tensor, heads: Heads, like: Tensor) -> Result<Tensor> {
    let out = like.try_out()?;
    if heads.g == heads.h {
        return cast(x, out.dtype);
    }
    let [b, g, n, width] = [out.shape[0], out.shape[1], out.shape[2], out.shape[3]];
    let apart = reshape(x, Shape::from([b, g, heads.shared(), n, width]))?;
    cast(apart.try_sum(2)?, out.dtype)
}

/// The gradients of an attention's operands.
#[track_caller]
pub(crate) fn gradient(attend: Attend, site: &Site<'_>) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    let Site { x, out, dout, needs, .. } = *site;
    let mut dx: SmallVec<[Option<Tensor>; 4]> = smallvec![None; x.len()];
    // The second result is for the gradient alone.
    let Some(g) = dout[0] else { return Ok(dx) };
    if needs[..3].contains(&true) {
        let delta = out[0].try_mul(g)?.try_sum(-1)?;
        let mut ins: SmallVec<[Tensor; 8]> = x.into();
        ins.extend([g, out[1], delta]);
        let op = Op::AttentionGrad(attend);
        let all = record::results(Recorded { op, x: &ins, to: None, dtype: None }, Location::caller())?;
        for i in 0..3 {
            if needs[i] {
                dx[i] = Some(cast(all[i], x[i].try_out()?.dtype)?);
            }
        }
    }
    // A mask that learns needs the gradients of the scores themselves, of quadratic size.
    if attend.masked && needs[3] && x[3].try_out()?.dtype.is_float() {
        let wide = Wide::new(attend, x)?;
        let ds = wide.through(g.try_matmul(wide.v.try_t()?)?)?;
        dx[3] = Some(cast(ds, x[3].try_out()?.dtype)?);
    }
    Ok(dx)
}

/// The gradients of the gradient's operands. What the leaf takes of the forward pass (the logarithms, and the sums
/// of result times gradient) are functions of the other operands: their part is counted there.
#[track_caller]
pub(crate) fn second(attend: Attend, site: &Site<'_>) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    let Site { x, dout, needs, .. } = *site;
    let mut dx: SmallVec<[Option<Tensor>; 4]> = smallvec![None; x.len()];
    let w = Wide::new(attend, x)?;
    let (heads, rest) = (w.heads, attend.rest());
    let g = cast(x[rest], DType::F32)?;
    // The gradients by dq, dk and dv.
    let a = dout[0];
    let mut both = [None, None];
    for (into, from) in both.iter_mut().zip(&dout[1..3]) {
        if let Some(d) = from {
            *into = Some(each(*d, heads)?);
        }
    }
    let [b, c] = both;
    let r = g.try_matmul(w.v.try_t()?)?;
    let mean = w.p.try_mul(r)?.try_sum_keepdim(-1)?;
    let ds = w.p.try_mul(r.try_sub(mean)?)?;
    let (mut dq, mut dk, mut dv, mut dg) = (None, None, None, None);
    let add = |sum: &mut Option<Tensor>, term: Tensor| -> Result<()> {
        *sum = Some(match *sum {
            Some(sum) => sum.try_add(term)?,
            None => term,
        });
        Ok(())
    };
    // By dS, then by the weights.
    let (mut by_ds, mut by_p) = (None, None);
    if let Some(a) = a {
        add(&mut by_ds, a.try_matmul(w.k.try_t()?)?.try_mul(w.f)?)?;
        add(&mut dk, ds.try_t()?.try_matmul(a)?.try_mul(w.f)?)?;
    }
    if let Some(b) = b {
        add(&mut by_ds, w.q.try_matmul(b.try_t()?)?.try_mul(w.f)?)?;
        add(&mut dq, ds.try_matmul(b)?.try_mul(w.f)?)?;
    }
    if let Some(c) = c {
        add(&mut by_p, g.try_matmul(c.try_t()?)?)?;
        add(&mut dg, w.p.try_matmul(c)?)?;
    }
    if let Some(e) = by_ds {
        let total = w.p.try_mul(e)?.try_sum_keepdim(-1)?;
        add(&mut by_p, e.try_mul(r.try_sub(mean)?)?.try_sub(total.try_mul(r)?)?)?;
        let by_r = w.p.try_mul(e.try_sub(total)?)?;
        add(&mut dv, by_r.try_t()?.try_matmul(g)?)?;
        add(&mut dg, by_r.try_matmul(w.v)?)?;
    }
    let Some(by_p) = by_p else { return Ok(dx) };
    let by_s = w.through(by_p)?;
    add(&mut dq, by_s.try_matmul(w.k)?.try_mul(w.f)?)?;
    add(&mut dk, by_s.try_t()?.try_matmul(w.q)?.try_mul(w.f)?)?;
    let finished = [(0, dq), (1, dk), (2, dv), (rest, dg)];
    for (i, d) in finished {
        if let (Some(d), true) = (d, needs[i]) {
            let keyed = i == 1 || i == 2;
            dx[i] = Some(if keyed { shared(d, heads, x[i])? } else { cast(d, x[i].try_out()?.dtype)? });
        }
    }
    if attend.masked && needs[3] && x[3].try_out()?.dtype.is_float() {
        dx[3] = Some(cast(by_s, x[3].try_out()?.dtype)?);
    }
    Ok(dx)
}
