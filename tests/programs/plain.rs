//! The programs' arithmetic once more, in f64: loops over slices and gradients derived by hand. It
//! shares nothing with the engine.

/// Well mixed numbers in (-1, 1) that f32 holds exactly.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<f32> {
    let word = |i: u64| {
        let z = (seed << 32 | i).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..count as u64).map(|i| (word(i) >> 48) as f32 / 32768.0 - 1.0).collect()
}

pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// `[m, k] x [k, n]`.
pub(crate) fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + l] * b[l * n + j];
            }
        }
    }
    c
}

/// The transpose of `[m, n]`.
pub(crate) fn transposed(a: &[f64], [m, n]: [usize; 2]) -> Vec<f64> {
    let mut t = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            t[j * m + i] = a[i * n + j];
        }
    }
    t
}

/// Elementwise `f(a, b)`.
pub(crate) fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

/// `a += b`.
pub(crate) fn add_to(a: &mut [f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
}

/// The sum of the rows of `[.., n]`.
pub(crate) fn column_sums(a: &[f64], n: usize) -> Vec<f64> {
    let mut sums = vec![0.0; n];
    a.chunks(n).for_each(|row| add_to(&mut sums, row));
    sums
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x w + b` for `[rows, inputs]`.
pub(crate) fn linear(x: &[f64], w: &[f64], b: &[f64], [rows, inputs]: [usize; 2]) -> Vec<f64> {
    let mut y = product(x, w, [rows, inputs, b.len()]);
    y.chunks_mut(b.len()).for_each(|row| add_to(row, b));
    y
}

/// The gradients of [`linear`] by `x`, `w` and `b`.
pub(crate) fn linear_back(
    x: &[f64],
    w: &[f64],
    dy: &[f64],
    [rows, inputs, outputs]: [usize; 3],
) -> [Vec<f64>; 3] {
    [
        product(dy, &transposed(w, [inputs, outputs]), [rows, outputs, inputs]),
        product(&transposed(x, [rows, inputs]), dy, [inputs, rows, outputs]),
        column_sums(dy, outputs),
    ]
}

/// The probabilities of a row of logits.
pub(crate) fn softmax(row: &[f64]) -> Vec<f64> {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = row.iter().map(|x| (x - top).exp()).collect();
    let total: f64 = e.iter().sum();
    e.iter().map(|e| e / total).collect()
}

/// The mean cross-entropy and its gradient by the logits.
pub(crate) fn cross_entropy(logits: &[f64], targets: &[usize], classes: usize) -> (f64, Vec<f64>) {
    let (mut loss, mut grad) = (0.0, Vec::new());
    let n = targets.len() as f64;
    for (row, target) in logits.chunks(classes).zip(targets) {
        let p = softmax(row);
        loss -= p[*target].ln() / n;
        grad.extend(p.iter().enumerate().map(|(j, p)| (p - f64::from(u8::from(j == *target))) / n));
    }
    (loss, grad)
}

/// The largest index of a row, the first of several.
pub(crate) fn argmax(row: &[f64]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// A model: its parameters' values in order of creation.
pub(crate) type Weights = Vec<Vec<f64>>;

/// The layers of a multi-layer perceptron: for each the weight and the bias.
pub(crate) struct Mlp<'a> {
    pub(crate) dims: &'a [usize],
    /// The nonlinearity and its derivative as a function of its result.
    pub(crate) activation: [fn(f64) -> f64; 2],
}

pub(crate) const RELU: [fn(f64) -> f64; 2] = [|x| x.max(0.0), |y| if y > 0.0 { 1.0 } else { 0.0 }];
pub(crate) const TANH: [fn(f64) -> f64; 2] = [f64::tanh, |y| 1.0 - y * y];

impl Mlp<'_> {
    /// The input of each layer, and the output.
    pub(crate) fn forward(&self, w: &Weights, x: &[f64]) -> Vec<Vec<f64>> {
        let rows = x.len() / self.dims[0];
        let mut values = vec![x.to_vec()];
        for layer in 0..self.dims.len() - 1 {
            let y = linear(&values[layer], &w[2 * layer], &w[2 * layer + 1], [rows, self.dims[layer]]);
            let last = layer == self.dims.len() - 2;
            values.push(if last { y } else { y.into_iter().map(self.activation[0]).collect() });
        }
        values
    }

    /// The gradients by the parameters and by the input, from what `forward` gave.
    pub(crate) fn backward(&self, w: &Weights, values: &[Vec<f64>], dy: Vec<f64>) -> (Weights, Vec<f64>) {
        let rows = values[0].len() / self.dims[0];
        let (mut grads, mut dy) = (vec![Vec::new(); w.len()], dy);
        for layer in (0..self.dims.len() - 1).rev() {
            if layer < self.dims.len() - 2 {
                dy = zip(&dy, &values[layer + 1], |d, y| d * self.activation[1](y));
            }
            let sizes = [rows, self.dims[layer], self.dims[layer + 1]];
            let [dx, dw, db] = linear_back(&values[layer], &w[2 * layer], &dy, sizes);
            (grads[2 * layer], grads[2 * layer + 1], dy) = (dw, db, dx);
        }
        (grads, dy)
    }
}

/// AdamW with the usual rates of its means.
pub(crate) struct AdamW {
    eps: f64,
    steps: i32,
    means: Weights,
    squares: Weights,
}

impl AdamW {
    pub(crate) fn new(eps: f64) -> AdamW {
        AdamW { eps, steps: 0, means: Vec::new(), squares: Vec::new() }
    }

    pub(crate) fn step(&mut self, w: &mut Weights, grads: &Weights, lr: f64, decay: f64) {
        if self.steps == 0 {
            self.means = w.iter().map(|w| vec![0.0; w.len()]).collect();
            self.squares = self.means.clone();
        }
        self.steps += 1;
        let (b1, b2) = (0.9f64, 0.999f64);
        for p in 0..w.len() {
            for i in 0..w[p].len() {
                let (g, m, v) = (grads[p][i], &mut self.means[p][i], &mut self.squares[p][i]);
                *m = b1 * *m + (1.0 - b1) * g;
                *v = b2 * *v + (1.0 - b2) * g * g;
                let (mean, square) = (*m / (1.0 - b1.powi(self.steps)), *v / (1.0 - b2.powi(self.steps)));
                w[p][i] -= lr * (mean / (square.sqrt() + self.eps) + decay * w[p][i]);
            }
        }
    }
}

/// SGD with momentum.
#[derive(Default)]
pub(crate) struct Sgd {
    velocity: Weights,
}

impl Sgd {
    pub(crate) fn step(&mut self, w: &mut Weights, grads: &Weights, lr: f64, momentum: f64) {
        if self.velocity.is_empty() {
            self.velocity = w.iter().map(|w| vec![0.0; w.len()]).collect();
        }
        for p in 0..w.len() {
            self.velocity[p] = zip(&self.velocity[p], &grads[p], |v, g| momentum * v + g);
            w[p] = zip(&w[p], &self.velocity[p], |w, v| w - lr * v);
        }
    }
}
