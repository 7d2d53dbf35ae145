//! Models of training steps, and their parameters in one order for all.

use serde::{Deserialize, Serialize};

use crate::values;

/// A parameter: the `i`th of a model has salt `1000 + i`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParamSpec {
    /// Its shape; products take `x W`, so weights of layers are `[inputs, outputs]`.
    pub dims: Vec<usize>,
    /// Uniform in plus and minus this, or, where it is 0, `fill` throughout.
    pub bound: f64,
    /// The value of parameters that are all alike.
    pub fill: f32,
}

impl ParamSpec {
    /// Its elements as those of the parameter of this place.
    pub fn values(&self, place: usize) -> Vec<f32> {
        let n = self.dims.iter().product();
        match self.bound == 0.0 {
            true => vec![self.fill; n],
            false => values::floats(n, 1000 + place as u64, self.bound),
        }
    }
}

/// How parameters are moved.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "optim")]
pub enum Optim {
    /// AdamW: rates 0.9 and 0.999, eps 1e-8, decay 0.01.
    AdamW {
        /// Learning rate.
        lr: f64,
    },
    /// SGD with momentum 0.9.
    Sgd {
        /// Learning rate.
        lr: f64,
    },
}

/// A model and its batch. The loss is the mean cross-entropy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "model")]
pub enum Model {
    /// Layers with biases and a rectifier between them.
    Mlp {
        /// Widths, inputs first.
        sizes: Vec<usize>,
        /// Rows of a batch.
        batch: usize,
    },
    /// ResNet-18 for 3x32x32: 3x3 stem, no max-pool; batch norm that learns.
    ResNet18 {
        /// Rows of a batch.
        batch: usize,
    },
    /// Pre-norm blocks with causal attention and GELU, learned positions, untied head, no dropout.
    Gpt {
        /// Blocks.
        layers: usize,
        /// Width.
        width: usize,
        /// Heads.
        heads: usize,
        /// Tokens of a row.
        tokens: usize,
        /// Words.
        vocabulary: usize,
        /// Rows of a batch.
        batch: usize,
        /// 16-bit products and attention, f32 weights and reductions.
        mixed: bool,
    },
}

/// Classes of images.
const CLASSES: usize = 10;

impl Model {
    /// How its parameters are moved.
    pub fn optim(&self) -> Optim {
        match self {
            Model::Mlp { .. } => Optim::AdamW { lr: 1e-3 },
            Model::ResNet18 { .. } => Optim::Sgd { lr: 0.01 },
            Model::Gpt { .. } => Optim::AdamW { lr: 3e-4 },
        }
    }

    /// Shape of the batch; whole numbers below the bound if it is not 0.
    pub fn input(&self) -> (Vec<usize>, usize) {
        match self {
            Model::Mlp { sizes, batch } => (vec![*batch, sizes[0]], 0),
            Model::ResNet18 { batch } => (vec![*batch, 3, 32, 32], 0),
            Model::Gpt { tokens, batch, vocabulary, .. } => (vec![*batch, *tokens], *vocabulary),
        }
    }

    /// Number of labels, and what they are below.
    pub fn labels(&self) -> (usize, usize) {
        match self {
            Model::Mlp { sizes, batch } => (*batch, sizes[sizes.len() - 1]),
            Model::ResNet18 { batch } => (*batch, CLASSES),
            Model::Gpt { tokens, batch, vocabulary, .. } => (batch * tokens, *vocabulary),
        }
    }

    /// The batch's floats, for models that take floats.
    pub fn floats(&self) -> Vec<f32> {
        values::floats(self.input().0.iter().product(), 1, 0.5)
    }

    /// The batch's words, for models that take words.
    pub fn words(&self) -> Vec<i32> {
        let (dims, bound) = self.input();
        values::ids(dims.iter().product(), 1, bound)
    }

    /// The batch's labels.
    pub fn targets(&self) -> Vec<i32> {
        let (n, bound) = self.labels();
        values::ids(n, 2, bound)
    }

    /// Floating operations of the products of a step, forward and backward.
    pub fn flops(&self) -> f64 {
        match self {
            Model::Mlp { sizes, batch } => {
                let weights: usize = sizes.windows(2).map(|w| w[0] * w[1]).sum();
                // No gradient of the batch itself.
                let first = sizes[0] * sizes[1];
                2.0 * *batch as f64 * (3 * weights - first) as f64
            }
            Model::ResNet18 { batch } => {
                let each: usize = resnet_convs()
                    .iter()
                    .map(|c| c.inputs * c.outputs * c.kernel * c.kernel * c.size * c.size)
                    .sum();
                6.0 * *batch as f64 * (each + 512 * CLASSES) as f64
            }
            Model::Gpt { layers, width, tokens, vocabulary, batch, .. } => {
                let rows = (batch * tokens) as f64;
                let weights = (layers * 12 * width * width + width * vocabulary) as f64;
                // Causal: half of all pairs.
                let pairs = (layers * tokens * width) as f64;
                6.0 * rows * (weights + pairs)
            }
        }
    }

    /// The parameters, in order.
    pub fn params(&self) -> Vec<ParamSpec> {
        let mut all = Vec::new();
        match self {
            Model::Mlp { sizes, .. } => {
                for w in sizes.windows(2) {
                    all.extend([uniform(w, (6.0 / w[0] as f64).sqrt()), same(w[1], 0.0)]);
                }
            }
            Model::ResNet18 { .. } => {
                for c in resnet_convs() {
                    let dims = [c.outputs, c.inputs, c.kernel, c.kernel];
                    all.push(uniform(&dims, (6.0 / (c.inputs * c.kernel * c.kernel) as f64).sqrt()));
                    all.extend([same(c.outputs, 1.0), same(c.outputs, 0.0)]);
                }
                all.extend([uniform(&[512, CLASSES], 0.04), same(CLASSES, 0.0)]);
            }
            &Model::Gpt { layers, width, tokens, vocabulary, .. } => {
                // A deviation of 0.02.
                let drawn = |dims: &[usize]| uniform(dims, 0.02 * 3f64.sqrt());
                let norm = || [same(width, 1.0), same(width, 0.0)];
                let linear = |a: usize, b: usize| [drawn(&[a, b]), same(b, 0.0)];
                all.extend([drawn(&[vocabulary, width]), drawn(&[tokens, width])]);
                for _ in 0..layers {
                    all.extend(norm());
                    all.extend(linear(width, 3 * width));
                    all.extend(linear(width, width));
                    all.extend(norm());
                    all.extend(linear(width, 4 * width));
                    all.extend(linear(4 * width, width));
                }
                all.extend(norm());
                all.push(drawn(&[width, vocabulary]));
            }
        }
        all
    }
}

fn uniform(dims: &[usize], bound: f64) -> ParamSpec {
    ParamSpec { dims: dims.to_vec(), bound, fill: 0.0 }
}

fn same(n: usize, fill: f32) -> ParamSpec {
    ParamSpec { dims: vec![n], bound: 0.0, fill }
}

/// A convolution without bias; batch norm with weight and bias follows it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ConvSpec {
    /// Channels that go in.
    pub inputs: usize,
    /// Channels that come out.
    pub outputs: usize,
    /// Height and width of the filters.
    pub kernel: usize,
    /// Step from output to output.
    pub stride: usize,
    /// Height and width of the output.
    pub size: usize,
}

impl ConvSpec {
    /// What keeps the size at stride 1.
    pub fn padding(&self) -> usize {
        self.kernel / 2
    }
}

/// The stem; then of each of 8 blocks two convolutions and, where the stride is 2, that of the short cut.
pub fn resnet_convs() -> Vec<ConvSpec> {
    let mut all = vec![ConvSpec { inputs: 3, outputs: 64, kernel: 3, stride: 1, size: 32 }];
    for block in 0..8 {
        let (outputs, size) = (64 << (block / 2), 32 >> (block / 2));
        let first = block % 2 == 0 && block > 0;
        let (inputs, stride) = if first { (outputs / 2, 2) } else { (outputs, 1) };
        all.push(ConvSpec { inputs, outputs, kernel: 3, stride, size });
        all.push(ConvSpec { inputs: outputs, outputs, kernel: 3, stride: 1, size });
        if first {
            all.push(ConvSpec { inputs, outputs, kernel: 1, stride, size });
        }
    }
    all
}
