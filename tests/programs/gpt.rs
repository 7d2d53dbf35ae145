//! A GPT with one layer: trained for a few steps, then sampled from with a cache of keys and values, in a
//! captured step whose token never leaves the device.

use std::sync::Arc;

use wgrad::prelude::*;
use wgrad::{Backend, ContextOptions, Result};

use super::gpt_plain::{self as plain_gpt, CONTEXT, HEADS, INNER, VOCABULARY, WIDTH};
use super::{close, plain, values, weights_close};
use crate::Subject;
use crate::engine::Recorder;

crate::suite![plain: ; device: gpt];

const BATCH: usize = 3;

struct Gpt {
    tokens: Param,
    positions: Param,
    norms: [[Param; 2]; 3],
    qkv: Linear,
    proj: Linear,
    up: Linear,
    down: Linear,
}

impl Gpt {
    fn new(ctx: &Context, rng: Rng) -> Result<Gpt> {
        let param = |name: &str, shape: [usize; 2], std| {
            Param::new(ctx, name, Init::Normal(std).draw(rng.at(name), shape, shape[0], shape[1]))
        };
        let ones = HostTensor::new([WIDTH], &[1.0f32; WIDTH])?;
        let zeros = HostTensor::new([WIDTH], &[0.0f32; WIDTH])?;
        let norm = |name: &str| -> Result<[Param; 2]> {
            let named = |part| format!("{name}.{part}");
            Ok([Param::new(ctx, &named("weight"), &ones)?, Param::new(ctx, &named("bias"), &zeros)?])
        };
        let linear = |name, inputs, outputs| Linear::new(ctx, name, inputs, outputs, rng);
        Ok(Gpt {
            tokens: param("tokens", [VOCABULARY, WIDTH], 0.4)?,
            positions: param("positions", [CONTEXT, WIDTH], 0.2)?,
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            qkv: linear("qkv", WIDTH, 3 * WIDTH)?,
            proj: linear("proj", WIDTH, WIDTH)?,
            up: linear("up", WIDTH, INNER)?,
            down: linear("down", INNER, WIDTH)?,
        })
    }

    fn params(&self) -> ParamSet {
        let linears = [&self.qkv, &self.proj, &self.up, &self.down].into_iter().flat_map(Module::params);
        let tables = [self.tokens.clone(), self.positions.clone()].into_iter();
        tables.chain(self.norms.clone().into_iter().flatten()).chain(linears).collect()
    }

    fn norm(&self, i: usize, x: Tensor) -> Tensor {
        x.layer_norm(self.norms[i][0].t(), self.norms[i][1].t(), 1e-5)
    }

    /// Logits for embedded tokens `[b, t, width]`; `attend` makes of q, k, v the heads' results.
    fn forward(&self, x: Tensor, attend: impl FnOnce([Tensor; 3]) -> Tensor) -> Tensor {
        let qkv = self.qkv.forward(self.norm(0, x)).chunk(-1, 3);
        let [b, t] = [x.shape()[0], x.shape()[1]];
        let heads = |x: Tensor| x.reshape([b, t, HEADS, WIDTH / HEADS]).transpose(1, 2);
        let y = attend([heads(qkv[0]), heads(qkv[1]), heads(qkv[2])]);
        let x = x + self.proj.forward(y.transpose(1, 2).reshape([b, t, WIDTH]));
        let x = x + self.down.forward(self.up.forward(self.norm(1, x)).gelu_tanh());
        self.norm(2, x).matmul(self.tokens.t().t())
    }
}

/// Softmax of `q k^T / sqrt(d)` over the positions that are `seen`, times `v`.
fn attention([q, k, v]: [Tensor; 3], seen: Tensor) -> Tensor {
    let scores = q.matmul(k.t()) / (q.shape()[3] as f64).sqrt();
    seen.select(scores, -1e9).softmax(-1).matmul(v)
}

fn gpt(subject: &Subject) {
    run(subject).expect("the program runs");
}

fn run(subject: &Subject) -> Result<()> {
    // A device of its own, so that what crosses to and from the host can be counted.
    let recorder = Recorder::new(subject.fresh());
    let ctx = Context::with(Arc::clone(&recorder) as Arc<dyn Backend>, ContextOptions::default().seed(7))?;
    let model = Gpt::new(&ctx, Rng::seed(1))?;
    let mut w = values(&model.params())?;
    train(subject, &ctx, &model, &mut w)?;
    generate(subject, &recorder, &ctx, &model, &w)
}

fn train(subject: &Subject, ctx: &Context, model: &Gpt, w: &mut plain::Weights) -> Result<()> {
    // The gradient of the keys' bias is zero but for rounding, which a small eps would blow up.
    let mut opt = AdamW::new(model.params(), AdamWConfig { lr: 1e-2, eps: 1e-3, ..Default::default() })?;
    let mut adam = plain::AdamW::new(1e-3);
    let (mut losses, mut want) = (Vec::new(), Vec::new());
    for step in 0..5 {
        let token = |i: usize| (i * i + 3 * i + step) % VOCABULARY;
        let text: Vec<usize> = (0..BATCH * (CONTEXT + 1)).map(token).collect();
        let cut =
            |from: usize| text.chunks(CONTEXT + 1).flat_map(move |row| &row[from..from + CONTEXT]).copied();
        let host = |from| HostTensor::new([BATCH, CONTEXT], &cut(from).map(|t| t as i32).collect::<Vec<_>>());

        let (inputs, targets) = (host(0)?, host(1)?);
        let loss = ctx.pass(|p| {
            let t = p.arange(0..CONTEXT as i32);
            let x = model.tokens.t().embedding(p.input(&inputs)?) + model.positions.t();
            let logits = model.forward(x, |qkv| attention(qkv, t.unsqueeze(1).ge(t)));
            let loss = logits.cross_entropy(p.input(&targets)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?;
        losses.push(loss);

        let (x, y): (Vec<usize>, Vec<usize>) = (cut(0).collect(), cut(1).collect());
        let trace = plain_gpt::forward(w, &x, CONTEXT);
        let (loss, dlogits) = plain::cross_entropy(&trace.logits, &y, VOCABULARY);
        let grads = plain_gpt::backward(w, &trace, &dlogits);
        adam.step(w, &grads, 1e-2, 0.01);
        want.push(loss);
    }
    let losses = losses.iter().map(Deferred::get).collect::<Result<Vec<f64>>>()?;
    close(subject, "losses", &losses, &want, 2e-5);
    weights_close(subject, &model.params(), w, 1e-3);
    Ok(())
}

fn generate(
    subject: &Subject,
    recorder: &Recorder,
    ctx: &Context,
    model: &Gpt,
    w: &plain::Weights,
) -> Result<()> {
    let cache = || Kept::zeros(ctx, [1, HEADS, CONTEXT, WIDTH / HEADS]);
    let (keys, vals) = (cache()?, cache()?);
    let token = Kept::new(ctx, HostTensor::new([1], &[3i32])?)?;
    let (pos, temperature) = (ctx.scalar(0.0), ctx.scalar(0.7));

    let step = ctx.capture(|p, ()| {
        let x = model.tokens.t().embedding(token.t()) + model.positions.t().slice_at(0, &pos, 1);
        let logits = model.forward(x.unsqueeze(0), |[q, k, v]| {
            keys.set(keys.t().slice_assign_at(2, &pos, k));
            vals.set(vals.t().slice_assign_at(2, &pos, v));
            attention([q, keys.t(), vals.t()], p.arange(0..CONTEXT as i32).le(&pos))
        });
        let next = logits.reshape([1, -1]).categorical("sample", &temperature);
        token.set(next);
        Ok((logits, next))
    });

    let (mut outputs, mut passes) = (Vec::new(), Vec::new());
    let mut settled = recorder.counts();
    for i in 0..CONTEXT {
        pos.set(i as f64);
        passes.push(ctx.stats().steps);
        outputs.push(step.run(())?);
        if i == 1 {
            settled = recorder.counts();
        }
    }
    let counts = recorder.counts();
    assert_eq!(counts.submissions - settled.submissions, CONTEXT as u64 - 2);
    assert_eq!(counts.plans, settled.plans, "positions are no structure");
    assert_eq!(counts.uploads, settled.uploads, "the token stays on the device");
    assert_eq!(counts.downloads, settled.downloads, "nothing is read on the way");

    let mut text = vec![3];
    for ((logits, next), pass) in outputs.iter().zip(passes) {
        let trace = plain_gpt::forward(w, &text, text.len());
        let want = &trace.logits[(text.len() - 1) * VOCABULARY..];
        close(subject, "logits", &logits.read()?.to_vec::<f64>(), want, 1e-3);
        let noise = (0..VOCABULARY).map(|i| gumbel(7, "sample", pass as u32, i as u32));
        let noisy: Vec<f64> = want.iter().zip(noise).map(|(l, g)| l + 0.7 * g).collect();
        text.push(plain::argmax(&noisy));
        assert_eq!(next.get()? as usize, text[text.len() - 1], "token {} after {text:?}", text.len());
    }
    Ok(())
}

/// Element `i` of the Gumbel noise of a stream's first draw in pass `step`: the inverse distribution
/// function at the 32 bits of Philox4x32-10.
fn gumbel(seed: u64, stream: &str, step: u32, i: u32) -> f64 {
    let bytes = stream.bytes().chain([0; 4]);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let (mut k, mut c) = ([(seed ^ hash) as u32, ((seed ^ hash) >> 32) as u32], [i, 0, step, 0]);
    for _ in 0..10 {
        let (a, b) = (u64::from(c[0]) * 0xD251_1F53, u64::from(c[2]) * 0xCD9E_8D57);
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    let q = f64::from(c[0] | 1) / 2f64.powi(33);
    if c[0] & 1 == 1 { -(-(-q).ln_1p()).ln() } else { -(-q.ln()).ln() }
}
