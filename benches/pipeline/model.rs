//! A GPT as a list of named layers, and its batches.

use wgrad::pipeline::{Batch, Contract, Loss, Model};
use wgrad::prelude::*;
use wgrad::{Result, bail};

/// The sizes of the model.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Gpt {
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) tokens: usize,
    pub(crate) vocabulary: usize,
    /// Weights of zeros, for a run that computes nothing.
    pub(crate) blank: bool,
}

/// Tokens and learned positions.
struct Front {
    tokens: Embedding,
    positions: Param,
}

impl Module for Front {
    fn forward(&self, idx: Tensor) -> Tensor {
        self.tokens.forward(idx) + self.positions.t()
    }

    fn params(&self) -> ParamSet {
        self.tokens.params().iter().cloned().chain([self.positions.clone()]).collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Module for Block {
    fn forward(&self, x: Tensor) -> Tensor {
        let x = x + self.attention.forward(self.norm1.forward(x));
        x + self.down.forward(self.up.forward(self.norm2.forward(x)).gelu())
    }

    fn params(&self) -> ParamSet {
        let Block { norm1, attention, norm2, up, down } = self;
        let all = [norm1.params(), attention.params(), norm2.params(), up.params(), down.params()];
        all.iter().flat_map(ParamSet::iter).cloned().collect()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.attention.set_mode(mode);
    }
}

/// The last norm and the projection to the vocabulary, with weights of its own.
struct Head {
    norm: LayerNorm,
    project: Linear,
}

impl Module for Head {
    fn forward(&self, x: Tensor) -> Tensor {
        self.project.forward(self.norm.forward(x))
    }

    fn params(&self) -> ParamSet {
        [self.norm.params(), self.project.params()].iter().flat_map(ParamSet::iter).cloned().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

impl Gpt {
    /// Whether the sizes fit each other.
    pub(crate) fn check(&self) -> Result<()> {
        let Gpt { layers, width, heads, tokens, vocabulary, .. } = *self;
        if [layers, width, heads, tokens, vocabulary].contains(&0) || !width.is_multiple_of(heads) {
            bail!(
                Argument,
                "pipeline",
                "sizes {self:?}: each must be 1 or more, and the heads must divide the width"
            );
        }
        Ok(())
    }

    /// How often the layer of this number (embedding, a block, head) occurs.
    pub(crate) fn kinds(&self) -> [usize; 3] {
        [1, self.layers, 1]
    }

    /// The sizes as text.
    pub(crate) fn sizes(&self) -> String {
        let Gpt { layers, width, heads, tokens, vocabulary, .. } = *self;
        format!("GPT of {layers} blocks, width {width}, {heads} heads, {tokens} tokens of {vocabulary}")
    }

    /// The same with weights of zeros.
    pub(crate) fn blank(self) -> Gpt {
        Gpt { blank: true, ..self }
    }

    /// Embedding, blocks, head, by name.
    pub(crate) fn model(self) -> Model {
        let Gpt { layers, width, heads, tokens, vocabulary, blank } = self;
        let rng = Rng::seed(1);
        // Uniform with a deviation of 0.02: as good as normal weights here, and sooner drawn.
        let init = if blank { Init::Constant(0.0) } else { Init::Uniform(0.02 * 3f64.sqrt()) };
        let mut model = Model::new().layer("embedding", move |ctx| {
            let positions = init.draw(rng.at("positions"), [tokens, width], tokens, width);
            Ok(Front {
                tokens: Embedding::with(ctx, "tokens", vocabulary, width, rng, init, None)?,
                positions: Param::new(ctx, "positions", positions)?,
            })
        });
        for i in 0..layers {
            let name = format!("block{i}");
            model = model.layer(name.clone(), move |ctx| {
                let named = |part: &str| format!("{name}.{part}");
                let linear = |part, a, b| Linear::with(ctx, &named(part), a, b, rng, init, true);
                let mut attention = MultiHeadAttention::new(ctx, &named("attention"), width, heads, rng)?;
                attention.causal = true;
                Ok(Block {
                    norm1: LayerNorm::new(ctx, &named("norm1"), [width])?,
                    attention,
                    norm2: LayerNorm::new(ctx, &named("norm2"), [width])?,
                    up: linear("up", width, 4 * width)?,
                    down: linear("down", 4 * width, width)?,
                })
            });
        }
        model.layer("head", move |ctx| {
            Ok(Head {
                norm: LayerNorm::new(ctx, "norm", [width])?,
                project: Linear::with(ctx, "head", width, vocabulary, rng, init, false)?,
            })
        })
    }

    /// What the first stage takes.
    pub(crate) fn input(&self) -> Contract {
        Contract::data([self.tokens], DType::I32)
    }

    /// Bytes of one row's activation between layers.
    pub(crate) fn row_bytes(&self) -> usize {
        self.tokens * self.width * 4
    }

    /// The batch of a step: the same everywhere, another for each step.
    pub(crate) fn data(&self, step: usize, rows: usize) -> Result<[HostTensor; 2]> {
        let vocabulary = self.vocabulary as u64;
        // A skewed choice, so that there is something to learn.
        let draw = |i: usize| {
            let mut x = (step * rows * (self.tokens + 1) + i) as u64;
            x = (x + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let (a, b) = ((x >> 40) % vocabulary, (x >> 16) % vocabulary);
            a.min(b) as i32
        };
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let text: Vec<i32> = (0..=self.tokens).map(|i| draw(row * (self.tokens + 1) + i)).collect();
            inputs.extend_from_slice(&text[..self.tokens]);
            targets.extend_from_slice(&text[1..]);
        }
        let shape = [rows, self.tokens];
        Ok([HostTensor::new(shape, &inputs)?, HostTensor::new(shape, &targets)?])
    }

    /// The batch for a trainer.
    pub(crate) fn batch(&self, step: usize, rows: usize) -> Result<Batch> {
        let [inputs, targets] = self.data(step, rows)?;
        Ok(Batch::new(&inputs).targets(&targets))
    }
}

/// Mean cross-entropy over all tokens.
pub(crate) fn loss() -> Loss {
    Loss::mean(|y, t| y.try_cross_entropy(t))
}

/// The optimizer, the same for every run.
pub(crate) fn optimizer(params: ParamSet) -> Result<AdamW> {
    AdamW::new(params, AdamWConfig { lr: 3e-4, ..Default::default() })
}
