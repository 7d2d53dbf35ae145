//! Attention as one leaf, and the leaf of its gradients: what is computed, without the quadratic values between.

use smallvec::{SmallVec, smallvec};

use crate::{Caps, DType, DeviceKind, Fast, Op, Out, Result, Shape, bail};

/// What one attention computes: `softmax(scale q k^T + mask) v` over the keys that are seen. Of a leaf that is its
/// gradient too, which computes the weights again.
///
/// Operands of [`Op::Attention`]: queries `[B, H, L, D]`, keys `[B, G, S, D]`, values `[B, G, S, E]`, where each
/// head of keys serves `H / G` neighbouring heads of queries; the mask if there is one, `[B, H, L, S]`. Results, in
/// f32: `[B, H, L, E]`, and the logarithm of each query's total, `[B, H, L]`.
///
/// Operands of [`Op::AttentionGrad`]: the same, then the gradient of the result, `[B, H, L, E]`, the logarithms,
/// and for each query the sum over E of result times gradient, `[B, H, L]`. Results, in f32: the gradients of
/// queries, keys and values.
///
/// A query that sees no key gives zeros and gets the gradient 0.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attend {
    /// Whether query `i` sees the keys up to `i` alone.
    pub causal: bool,
    /// Whether there is a mask: truth values, true where a key is seen; or floats added to the scores, where -inf
    /// hides a key.
    pub masked: bool,
    /// Whether the scores are divided by the root of `D`.
    pub scaled: bool,
}

/// Most features of a head that kernels hold in registers.
const MAX_HEAD: usize = 256;
/// Queries below which products, softmax and products are faster, and their weights small.
const FEW: usize = 16;

/// The sizes of an attention.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Batch.
    pub b: usize,
    /// Heads of queries.
    pub h: usize,
    /// Heads of keys and values.
    pub g: usize,
    /// Queries.
    pub l: usize,
    /// Keys.
    pub s: usize,
    /// Features of queries and keys.
    pub d: usize,
    /// Features of values.
    pub e: usize,
}

impl Heads {
    /// The sizes that queries, keys and values tell.
    pub fn of(q: Shape, k: Shape, v: Shape) -> Heads {
        Heads { b: q[0], h: q[1], g: k[1], l: q[2], s: k[2], d: q[3], e: v[3] }
    }

    /// Whether the device does better with the leaf than with products, softmax and products.
    pub fn suit(&self, caps: &Caps) -> bool {
        let some = [self.b, self.h, self.g, self.l, self.s, self.d, self.e].iter().all(|n| *n > 0);
        // Tiles of 64 rows in workgroup memory, of which few queries would leave most idle; nine values where there
        // is a mask.
        let tiles = self.l >= FEW
            && self.d.max(self.e) <= MAX_HEAD
            && caps.max_buffers >= 9
            && caps.max_invocations >= 128
            && caps.shared_bytes >= 32_768;
        let kind = match caps.kind {
            // The reference runs the definition.
            DeviceKind::Oracle => false,
            DeviceKind::Cpu => true,
            // Such drivers compile a tile's text for seconds, and barriers are dear there.
            DeviceKind::SoftwareGpu => false,
            DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::OtherGpu => tiles,
        };
        caps.allows(Fast::FlashAttention) && some && kind
    }

    /// Heads of queries that share a head of keys.
    pub fn shared(&self) -> usize {
        self.h / self.g.max(1)
    }

    /// Pairs of a query and a key of all heads, those of them that a causal attention needs.
    pub fn pairs(&self, causal: bool) -> u64 {
        let (l, s) = (self.l as u64, self.s as u64);
        let low = l.min(s);
        let pairs = if causal { low * (low + 1) / 2 + (l - low) * s } else { l * s };
        (self.b * self.h) as u64 * pairs
    }
}

impl Attend {
    /// The factor of the scores.
    pub fn scale(&self, d: usize) -> f64 {
        if self.scaled { 1.0 / (d.max(1) as f64).sqrt() } else { 1.0 }
    }

    /// The keys that query `i` may see if no mask hides them: the first so many of `s`.
    pub fn seen(&self, i: usize, s: usize) -> usize {
        if self.causal { s.min(i + 1) } else { s }
    }

    /// Where the operands after the mask start.
    pub fn rest(&self) -> usize {
        if self.masked { 4 } else { 3 }
    }
}

/// The results of [`Op::Attention`] or [`Op::AttentionGrad`].
pub(crate) fn infer(op: Op, attend: Attend, ins: &[Out]) -> Result<SmallVec<[Out; 1]>> {
    let (name, rest) = (op.name(), attend.rest());
    let grad = matches!(op, Op::AttentionGrad(_));
    let arity = if grad { rest + 3 } else { rest };
    if ins.len() != arity {
        bail!(Argument, name, "takes {arity} operands, {} were given", ins.len());
    }
    let computed = |x: &Out| matches!(x.dtype, DType::F32 | DType::F16 | DType::BF16);
    let [q, k, v] = [ins[0].shape, ins[1].shape, ins[2].shape];
    let fits = [q, k, v].iter().all(|x| x.rank() == 4)
        && q[0] == k[0]
        && q[3] == k[3]
        && v == k.with(3, v[3])
        && (q[1] == k[1] || k[1] > 0 && q[1].is_multiple_of(k[1]));
    if !fits {
        bail!(Shape, name, "{q}, {k} and {v} do not fit [B, H, L, D], [B, G, S, D] and [B, G, S, E]");
    }
    let (whole, result, rows) = (q.with(3, k[2]), q.with(3, v[3]), Shape::new(&q.dims()[..3]));
    if attend.masked && (ins[3].shape != whole || ins[3].dtype != DType::Bool && !computed(&ins[3])) {
        bail!(Shape, name, "a mask {:?} is not of truth values or floats {whole}", ins[3]);
    }
    if let Some(x) = ins[..3].iter().chain(&ins[rest..]).find(|x| !computed(x)) {
        bail!(DType, name, "is not defined on {}", x.dtype);
    }
    let f32s = |shape| Out { shape, dtype: DType::F32 };
    if !grad {
        return Ok(smallvec![f32s(result), f32s(rows)]);
    }
    let (dout, stats) = (ins[rest], [ins[rest + 1], ins[rest + 2]]);
    if dout.shape != result || stats.iter().any(|x| *x != f32s(rows)) {
        bail!(Shape, name, "gradient {dout:?} and {stats:?} of a result {result}");
    }
    Ok(smallvec![f32s(q), f32s(k), f32s(v)])
}
