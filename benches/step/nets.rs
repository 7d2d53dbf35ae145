//! The models, made of the layers that programs use.

use wgrad::prelude::*;
use wgrad::{Kept, Result};
use wgrad_benches::{ConvSpec, Model, resnet_convs};

use std::sync::Arc;

type Net = Box<dyn Module + Send + Sync>;

fn joined<'a>(parts: impl IntoIterator<Item = &'a dyn Module>) -> ParamSet {
    parts.into_iter().flat_map(|part| part.params()).collect()
}

/// A convolution and its batch norm.
struct Normed {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Normed {
    fn new(ctx: &Context, name: &str, spec: &ConvSpec) -> Result<Normed> {
        let (k, p) = (spec.kernel, spec.padding());
        let options = Conv { stride: [spec.stride; 2], padding: [p, p].into(), ..Default::default() };
        let channels = [spec.inputs, spec.outputs];
        let mut conv = Conv2d::with(
            ctx,
            &format!("{name}.conv"),
            channels,
            [k, k],
            options,
            Rng::seed(1),
            Init::Constant(0.0),
        )?;
        conv.bias = None;
        Ok(Normed { conv, norm: BatchNorm::new(ctx, &format!("{name}.norm"), spec.outputs)? })
    }

    fn forward(&self, x: Tensor) -> Tensor {
        self.norm.forward(self.conv.forward(x))
    }

    fn params(&self) -> ParamSet {
        joined([&self.conv as &dyn Module, &self.norm])
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.norm.state()
    }
}

/// The residual network for small images.
struct ResNet {
    stem: Normed,
    blocks: Vec<[Option<Normed>; 3]>,
    head: Linear,
}

impl ResNet {
    fn new(ctx: &Context) -> Result<ResNet> {
        let convs = resnet_convs();
        let mut left = convs[1..].iter().enumerate();
        let mut next = || -> Result<(Normed, usize)> {
            let (i, spec) = left.next().expect("the list holds 8 blocks");
            Ok((Normed::new(ctx, &format!("conv{}", i + 1), spec)?, spec.stride))
        };
        let mut blocks = Vec::new();
        for _ in 0..8 {
            let ((first, stride), (second, _)) = (next()?, next()?);
            let short = if stride == 2 { Some(next()?.0) } else { None };
            blocks.push([Some(first), Some(second), short]);
        }
        let head = Linear::with(ctx, "head", 512, 10, Rng::seed(1), Init::Constant(0.0), true)?;
        Ok(ResNet { stem: Normed::new(ctx, "stem", &convs[0])?, blocks, head })
    }

    fn parts(&self) -> impl Iterator<Item = &Normed> {
        std::iter::once(&self.stem).chain(self.blocks.iter().flatten().flatten())
    }
}

impl Module for ResNet {
    fn forward(&self, x: Tensor) -> Tensor {
        let mut x = self.stem.forward(x).relu();
        for [first, second, short] in &self.blocks {
            let mut y = x;
            for (part, last) in [(first, false), (second, true)] {
                let Some(part) = part else { continue };
                y = part.forward(y);
                y = if last { y } else { y.relu() };
            }
            x = (y + short.as_ref().map_or(x, |short| short.forward(x))).relu();
        }
        self.head.forward(x.mean([2, 3]))
    }

    fn params(&self) -> ParamSet {
        self.parts().flat_map(Normed::params).chain(self.head.params()).collect()
    }

    fn state(&self) -> Vec<Arc<Kept>> {
        self.parts().flat_map(Normed::state).collect()
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

/// Tokens and positions, blocks, norm, head.
struct Gpt {
    tokens: Embedding,
    positions: Param,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn new(ctx: &Context, [layers, width, heads, tokens, vocabulary]: [usize; 5]) -> Result<Gpt> {
        let (rng, init) = (Rng::seed(1), Init::Constant(0.0));
        let linear = |name: &str, a, b, bias| Linear::with(ctx, name, a, b, rng, init, bias);
        let mut blocks = Vec::new();
        for i in 0..layers {
            let named = |part: &str| format!("block{i}.{part}");
            let mut attention = MultiHeadAttention::new(ctx, &named("attention"), width, heads, rng)?;
            attention.causal = true;
            blocks.push(Block {
                norm1: LayerNorm::new(ctx, &named("norm1"), [width])?,
                attention,
                norm2: LayerNorm::new(ctx, &named("norm2"), [width])?,
                up: linear(&named("up"), width, 4 * width, true)?,
                down: linear(&named("down"), 4 * width, width, true)?,
            });
        }
        Ok(Gpt {
            tokens: Embedding::with(ctx, "tokens", vocabulary, width, rng, init, None)?,
            positions: Param::new(ctx, "positions", init.draw(rng, [tokens, width], tokens, width))?,
            blocks,
            norm: LayerNorm::new(ctx, "norm", [width])?,
            head: linear("head", width, vocabulary, false)?,
        })
    }
}

impl Module for Gpt {
    fn forward(&self, words: Tensor) -> Tensor {
        let mut x = self.tokens.forward(words) + self.positions.t();
        for Block { norm1, attention, norm2, up, down } in &self.blocks {
            x = x + attention.forward(norm1.forward(x));
            x = x + down.forward(up.forward(norm2.forward(x)).gelu());
        }
        self.head.forward(self.norm.forward(x))
    }

    fn params(&self) -> ParamSet {
        let mut all = self.tokens.params();
        all.extend([self.positions.clone()]);
        for Block { norm1, attention, norm2, up, down } in &self.blocks {
            all.extend(joined([norm1 as &dyn Module, attention, norm2, up, down]));
        }
        all.extend(joined([&self.norm as &dyn Module, &self.head]));
        all
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// The model with its first weights, which peers have too.
pub(crate) fn build(ctx: &Context, model: &Model) -> Result<Net> {
    let net: Net = match model {
        Model::Mlp { sizes, .. } => Box::new(Mlp::new(ctx, sizes, Rng::seed(1))?),
        Model::ResNet18 { .. } => Box::new(ResNet::new(ctx)?),
        &Model::Gpt { layers, width, heads, tokens, vocabulary, .. } => {
            Box::new(Gpt::new(ctx, [layers, width, heads, tokens, vocabulary])?)
        }
    };
    let (params, specs) = (net.params(), model.params());
    assert_eq!(params.len(), specs.len(), "the model and its list of parameters");
    ctx.pass(|p| {
        for (i, (param, spec)) in params.iter().zip(&specs).enumerate() {
            param.try_set(p.input(HostTensor::new(&*spec.dims, &spec.values(i))?)?)?;
        }
        Ok(())
    })?;
    Ok(net)
}
