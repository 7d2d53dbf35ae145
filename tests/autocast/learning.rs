//! Models that learn in mixed precision learn what they do in f32.

use wgrad::nn::{
    AdamW, AdamWConfig, Embedding, LayerNorm, Linear, LossScale, LossScaler, Mlp, Module, MultiHeadAttention,
    Optimizer, ParamSet, Rng,
};
use wgrad::pipeline::{Batch, Contract, Loss, Source, StageSpec, Stages, TrainOptions, Trainer, schedule};
use wgrad::{Context, DType, HostTensor, Result, Tensor};

use crate::Subject;
use crate::table::spread;

/// A transformer of one block over characters.
struct Gpt {
    token: Embedding,
    place: Embedding,
    norms: [LayerNorm; 3],
    attention: MultiHeadAttention,
    wide: Linear,
    narrow: Linear,
    head: Linear,
}

const WORDS: usize = 13;
const WIDTH: usize = 16;
const TIME: usize = 10;

impl Gpt {
    fn new(ctx: &Context) -> Result<Gpt> {
        let rng = Rng::seed(5);
        let norm = |name: &str| LayerNorm::new(ctx, name, [WIDTH]);
        Ok(Gpt {
            token: Embedding::new(ctx, "token", WORDS, WIDTH, rng)?,
            place: Embedding::new(ctx, "place", TIME, WIDTH, rng)?,
            norms: [norm("n1")?, norm("n2")?, norm("n3")?],
            attention: MultiHeadAttention::new(ctx, "attention", WIDTH, 2, rng)?,
            wide: Linear::new(ctx, "wide", WIDTH, 4 * WIDTH, rng)?,
            narrow: Linear::new(ctx, "narrow", 4 * WIDTH, WIDTH, rng)?,
            head: Linear::new(ctx, "head", WIDTH, WORDS, rng)?,
        })
    }

    fn params(&self) -> ParamSet {
        let mut all = ParamSet::default();
        all.extend(self.token.params().iter().cloned());
        all.extend(self.place.params().iter().cloned());
        self.norms.iter().for_each(|n| all.extend(n.params().iter().cloned()));
        all.extend(self.attention.params().iter().cloned());
        [&self.wide, &self.narrow, &self.head].iter().for_each(|l| all.extend(l.params().iter().cloned()));
        all
    }

    fn forward(&self, ids: Tensor, places: Tensor) -> Tensor {
        let x = self.token.forward(ids) + self.place.forward(places);
        let x = x + {
            let parts = self.attention.qkv(self.norms[0].forward(x));
            self.attention.attend(parts, true, None)
        };
        let x = x + self.narrow.forward(self.wide.forward(self.norms[1].forward(x)).gelu());
        self.head.forward(self.norms[2].forward(x))
    }
}

/// The mean losses of the first and of the last steps.
fn ends(losses: &[wgrad::Deferred<f32>]) -> (f64, f64) {
    let all: Vec<f64> = losses.iter().map(|l| f64::from(l.get().unwrap())).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    (mean(&all[..4]), mean(&all[all.len() - 4..]))
}

/// Trains with products in `half` (f32 where none), f16 with a loss scale.
fn train(
    ctx: &Context,
    params: ParamSet,
    half: Option<DType>,
    steps: usize,
    loss: impl Fn(&wgrad::Pass) -> Result<Tensor>,
) -> (f64, f64) {
    let mut opt = AdamW::new(params, AdamWConfig { lr: 0.01, ..Default::default() }).unwrap();
    let scaler = LossScaler::new(ctx, LossScale { interval: 10, ..Default::default() }).unwrap();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let step = ctx.pass(|p| {
            let loss = p.autocast(half, || loss(p))?;
            assert_eq!(loss.dtype(), DType::F32);
            if half == Some(DType::F16) {
                scaler.step(&mut opt, &scaler.backward(loss)?)?;
            } else {
                opt.step(&loss.backward()?)?;
            }
            Ok(loss.deferred())
        });
        losses.push(step.unwrap());
    }
    ends(&losses)
}

/// Losses in mixed precision end within so much of the loss in f32, relative to how far that came.
fn like_f32(name: &str, bound: f64, run: impl Fn(Option<DType>) -> (f64, f64)) {
    let (first, last) = run(None);
    assert!(last < 0.5 * first, "{name}: from {first} to {last} in f32");
    for half in [DType::F16, DType::BF16] {
        let (_, mixed) = run(Some(half));
        assert!((mixed - last).abs() < bound * (first - last), "{name}: {last} in f32, {mixed} in {half}");
    }
}

fn inputs(dims: [usize; 2]) -> HostTensor {
    HostTensor::new(dims, &spread(dims[0] * dims[1], -1.0, 1.0, 0.3)).unwrap().cast(DType::F32)
}

fn classes(count: usize, of: usize) -> HostTensor {
    let ids: Vec<i32> = (0..count).map(|i| ((i * i + 3 * i) % of) as i32).collect();
    HostTensor::new([count], &ids).unwrap()
}

pub(super) fn an_mlp_learns_as_in_f32(subject: &Subject) {
    let (x, t) = (inputs([24, 12]), classes(24, 5));
    like_f32("mlp", 0.03, |half| {
        let ctx = subject.context();
        let model = Mlp::new(&ctx, &[12, 32, 16, 5], Rng::seed(2)).unwrap();
        train(&ctx, model.params(), half, 50, |p| model.forward(p.input(&x)?).try_cross_entropy(p.input(&t)?))
    });
}

pub(super) fn a_gpt_learns_as_in_f32(subject: &Subject) {
    let rows = 3;
    let ids: Vec<i32> = (0..rows * (TIME + 1)).map(|i| ((i * i / 3 + i) % WORDS) as i32).collect();
    let part = |from: usize| {
        let of = |r: usize| ids[r * (TIME + 1) + from..][..TIME].to_vec();
        (0..rows).flat_map(of).collect::<Vec<i32>>()
    };
    let x = HostTensor::new([rows, TIME], &part(0)).unwrap();
    let t = HostTensor::new([rows * TIME], &part(1)).unwrap();
    let places = HostTensor::new([TIME], &(0..TIME as i32).collect::<Vec<_>>()).unwrap();
    like_f32("gpt", 0.05, |half| {
        let ctx = subject.context();
        let model = Gpt::new(&ctx).unwrap();
        train(&ctx, model.params(), half, 40, |p| {
            let y = model.forward(p.input(&x)?, p.input(&places)?);
            y.try_reshape([rows * TIME, WORDS])?.try_cross_entropy(p.input(&t)?)
        })
    });
}

/// Stages in mixed precision learn what one context does, with a scale over all stages.
pub(super) fn stages_in_scopes_learn_as_one_context(subject: &Subject) {
    let (x, t) = (inputs([8, 6]), classes(8, 3));
    let layer = |ctx: &Context, i: usize| {
        let (name, dims) = (["fc1", "fc2"][i], [[6, 8], [8, 3]][i]);
        Linear::new(ctx, name, dims[0], dims[1], Rng::seed(4))
    };
    let config = AdamWConfig { lr: 0.02, ..Default::default() };
    let one = || {
        let ctx = subject.context();
        let [a, b] = [0, 1].map(|i| layer(&ctx, i).unwrap());
        let params: ParamSet = a.params().iter().chain(b.params().iter()).cloned().collect();
        let mut opt = AdamW::new(params, config).unwrap();
        let scaler = LossScaler::new(&ctx, LossScale::default()).unwrap();
        let mut losses = Vec::new();
        for _ in 0..6 {
            let loss = ctx.pass(|p| {
                let hidden = p.autocast(DType::F16, || Ok(a.forward(p.input(&x)?)))?;
                let y = p.autocast(DType::F16, || b.forward(hidden));
                let loss = y.try_cast(DType::F32)?.try_cross_entropy(p.input(&t)?)?;
                scaler.step(&mut opt, &scaler.backward(loss)?)?;
                Ok(loss.deferred::<f32>())
            });
            losses.push(f64::from(loss.unwrap().get().unwrap()));
        }
        losses
    };
    let many = |again: bool| {
        let contexts = [subject.context(), subject.context()];
        let spec = |i: usize| {
            let spec = StageSpec::new(["a", "b"][i], &contexts[i], move |ctx| layer(ctx, i));
            let spec = spec.recompute(again).autocast(DType::F16);
            if i == 0 { spec.takes(Source::Batch(0), Contract::new([6], DType::F32)) } else { spec }
        };
        let stages = Stages::build(vec![spec(0), spec(1)]).unwrap();
        let loss = Loss::mean(|y, t| y.try_cast(DType::F32)?.try_cross_entropy(t));
        let options = TrainOptions { scale: Some(LossScale::default()), ..Default::default() };
        let mut trainer = Trainer::new(stages, loss, |p| AdamW::new(p, config), options).unwrap();
        let schedule = schedule::one_f_one_b(2, 2).unwrap();
        let batch = Batch::new(&x).targets(&t);
        let mut losses = Vec::new();
        for _ in 0..6 {
            let done = trainer.step(&schedule, &batch).unwrap();
            assert!(done.applied);
            losses.push(done.loss);
        }
        let grads = trainer.gradients().unwrap();
        assert!(grads.iter().all(|(_, g)| g.dtype() == DType::F32));
        losses
    };
    let want = one();
    assert!(want[5] < 0.95 * want[0], "{want:?}");
    for again in [false, true] {
        for (a, b) in many(again).iter().zip(&want) {
            assert!((a - b).abs() < 2e-3, "{a}, on one context {b}; recomputed: {again}");
        }
    }
}
