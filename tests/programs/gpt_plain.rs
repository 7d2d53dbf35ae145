//! The GPT of one layer in plain f64, forward and backward. Weights in the order of the model's
//! parameters: token and position tables, three norms, qkv, proj, up, down.

use super::plain::{Weights, add_to, linear, linear_back, product, softmax, transposed, zip};

pub(crate) const VOCABULARY: usize = 11;
pub(crate) const CONTEXT: usize = 8;
pub(crate) const WIDTH: usize = 8;
pub(crate) const HEADS: usize = 2;
pub(crate) const INNER: usize = 16;
const HEAD: usize = WIDTH / HEADS;

/// A normalised value: before weight and bias, the reciprocal deviations, and after.
struct Normed {
    unit: Vec<f64>,
    rstd: Vec<f64>,
    y: Vec<f64>,
}

fn layer_norm(x: &[f64], w: &[f64], b: &[f64]) -> Normed {
    let (mut unit, mut rstd, mut y) = (Vec::new(), Vec::new(), Vec::new());
    for row in x.chunks(w.len()) {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let var = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let r = 1.0 / (var + 1e-5).sqrt();
        for (j, x) in row.iter().enumerate() {
            unit.push((x - mean) * r);
            y.push((x - mean) * r * w[j] + b[j]);
        }
        rstd.push(r);
    }
    Normed { unit, rstd, y }
}

/// The gradients by `x`, `w`, `b`.
fn layer_norm_back(normed: &Normed, w: &[f64], dy: &[f64]) -> [Vec<f64>; 3] {
    let n = w.len();
    let (mut dx, mut dw, mut db) = (Vec::new(), vec![0.0; n], vec![0.0; n]);
    for (r, dy) in dy.chunks(n).enumerate() {
        let unit = &normed.unit[r * n..][..n];
        add_to(&mut db, dy);
        add_to(&mut dw, &zip(dy, unit, |d, u| d * u));
        let du = zip(dy, w, |d, w| d * w);
        let mean = du.iter().sum::<f64>() / n as f64;
        let along = zip(&du, unit, |d, u| d * u).iter().sum::<f64>() / n as f64;
        dx.extend(zip(&du, unit, |d, u| normed.rstd[r] * (d - mean - u * along)));
    }
    [dx, dw, db]
}

const GELU: f64 = 0.044715;

fn gelu_bend(x: f64) -> f64 {
    ((2.0 / std::f64::consts::PI).sqrt() * (x + GELU * x * x * x)).tanh()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + gelu_bend(x))
}

fn gelu_slope(x: f64) -> f64 {
    let bend = gelu_bend(x);
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * GELU * x * x);
    0.5 * (1.0 + bend) + 0.5 * x * (1.0 - bend * bend) * inner
}

/// What the backward needs.
pub(crate) struct Trace {
    tokens: Vec<usize>,
    length: usize,
    norm1: Normed,
    qkv: Vec<f64>,
    /// `[b, head, t, t]`.
    attention: Vec<f64>,
    mixed: Vec<f64>,
    norm2: Normed,
    up: Vec<f64>,
    norm3: Normed,
    pub(crate) logits: Vec<f64>,
}

/// The place of component `d` of head `h` of part `part` (q, k, v) of row `row` in `qkv`.
fn at(row: usize, part: usize, h: usize, d: usize) -> usize {
    row * 3 * WIDTH + part * WIDTH + h * HEAD + d
}

/// The forward over sequences of `length` tokens.
pub(crate) fn forward(w: &Weights, tokens: &[usize], length: usize) -> Trace {
    let rows = tokens.len();
    let mut x = Vec::new();
    for (row, token) in tokens.iter().enumerate() {
        let (t, p) = (&w[0][token * WIDTH..][..WIDTH], &w[1][row % length * WIDTH..][..WIDTH]);
        x.extend(zip(t, p, |t, p| t + p));
    }
    let norm1 = layer_norm(&x, &w[2], &w[3]);
    let qkv = linear(&norm1.y, &w[8], &w[9], [rows, WIDTH]);
    let (mut attention, mut mixed) = (Vec::new(), vec![0.0; rows * WIDTH]);
    for (b, h) in (0..rows / length).flat_map(|b| (0..HEADS).map(move |h| (b, h))) {
        for i in 0..length {
            let row = b * length + i;
            let score = |j: usize| -> f64 {
                let dot = (0..HEAD).map(|d| qkv[at(row, 0, h, d)] * qkv[at(b * length + j, 1, h, d)]);
                dot.sum::<f64>() / (HEAD as f64).sqrt()
            };
            let mut p = softmax(&(0..=i).map(score).collect::<Vec<_>>());
            p.resize(length, 0.0);
            for (j, d) in (0..length).flat_map(|j| (0..HEAD).map(move |d| (j, d))) {
                mixed[row * WIDTH + h * HEAD + d] += p[j] * qkv[at(b * length + j, 2, h, d)];
            }
            attention.extend(p);
        }
    }
    add_to(&mut x, &linear(&mixed, &w[10], &w[11], [rows, WIDTH]));
    let norm2 = layer_norm(&x, &w[4], &w[5]);
    let up = linear(&norm2.y, &w[12], &w[13], [rows, WIDTH]);
    let bent: Vec<f64> = up.iter().map(|x| gelu(*x)).collect();
    add_to(&mut x, &linear(&bent, &w[14], &w[15], [rows, INNER]));
    let norm3 = layer_norm(&x, &w[6], &w[7]);
    let logits = product(&norm3.y, &transposed(&w[0], [VOCABULARY, WIDTH]), [rows, WIDTH, VOCABULARY]);
    Trace { tokens: tokens.to_vec(), length, norm1, qkv, attention, mixed, norm2, up, norm3, logits }
}

/// The gradients by every weight.
pub(crate) fn backward(w: &Weights, trace: &Trace, dlogits: &[f64]) -> Weights {
    let (rows, length) = (trace.tokens.len(), trace.length);
    let mut grads: Weights = w.iter().map(|w| vec![0.0; w.len()]).collect();
    // The head shares the token table.
    grads[0] = product(&transposed(dlogits, [rows, VOCABULARY]), &trace.norm3.y, [VOCABULARY, rows, WIDTH]);
    let dy = product(dlogits, &w[0], [rows, VOCABULARY, WIDTH]);
    let [mut dx, dw, db] = layer_norm_back(&trace.norm3, &w[6], &dy);
    (grads[6], grads[7]) = (dw, db);

    let bent: Vec<f64> = trace.up.iter().map(|x| gelu(*x)).collect();
    let [dbent, dw, db] = linear_back(&bent, &w[14], &dx, [rows, INNER, WIDTH]);
    (grads[14], grads[15]) = (dw, db);
    let dup = zip(&dbent, &trace.up, |d, x| d * gelu_slope(x));
    let [dnorm, dw, db] = linear_back(&trace.norm2.y, &w[12], &dup, [rows, WIDTH, INNER]);
    (grads[12], grads[13]) = (dw, db);
    let [more, dw, db] = layer_norm_back(&trace.norm2, &w[4], &dnorm);
    (grads[4], grads[5]) = (dw, db);
    add_to(&mut dx, &more);

    let [dmixed, dw, db] = linear_back(&trace.mixed, &w[10], &dx, [rows, WIDTH, WIDTH]);
    (grads[10], grads[11]) = (dw, db);
    let mut dqkv = vec![0.0; rows * 3 * WIDTH];
    for (b, h) in (0..rows / length).flat_map(|b| (0..HEADS).map(move |h| (b, h))) {
        for i in 0..length {
            let row = b * length + i;
            let p = &trace.attention[((b * HEADS + h) * length + i) * length..][..length];
            let d = &dmixed[row * WIDTH + h * HEAD..][..HEAD];
            let mut dp = vec![0.0; length];
            for j in 0..length {
                for (k, d) in d.iter().enumerate() {
                    let v = at(b * length + j, 2, h, k);
                    dp[j] += d * trace.qkv[v];
                    dqkv[v] += d * p[j];
                }
            }
            let along: f64 = zip(p, &dp, |p, d| p * d).iter().sum();
            for j in 0..length {
                let dscore = p[j] * (dp[j] - along) / (HEAD as f64).sqrt();
                for k in 0..HEAD {
                    let (q, key) = (at(row, 0, h, k), at(b * length + j, 1, h, k));
                    dqkv[q] += dscore * trace.qkv[key];
                    dqkv[key] += dscore * trace.qkv[q];
                }
            }
        }
    }
    let [dnorm, dw, db] = linear_back(&trace.norm1.y, &w[8], &dqkv, [rows, WIDTH, 3 * WIDTH]);
    (grads[8], grads[9]) = (dw, db);
    let [more, dw, db] = layer_norm_back(&trace.norm1, &w[2], &dnorm);
    (grads[2], grads[3]) = (dw, db);
    add_to(&mut dx, &more);
    for (row, token) in trace.tokens.iter().enumerate() {
        let d = &dx[row * WIDTH..][..WIDTH];
        add_to(&mut grads[0][token * WIDTH..][..WIDTH], d);
        add_to(&mut grads[1][row % length * WIDTH..][..WIDTH], d);
    }
    grads
}
