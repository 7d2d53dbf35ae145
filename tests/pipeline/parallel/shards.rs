//! Layers that several devices share.

use wgrad::nn::{
    Activation, LayerNorm, Linear, Mode, Module, MultiHeadAttention, ParamSet, Rng, Sequential, Sgd,
    SgdConfig,
};
use wgrad::pipeline::parallel::{ColumnLinear, RowLinear, ShardedAttention, ShardedMlp, split};
use wgrad::pipeline::{
    Batch, Contract, Line, Loss, Mesh, MeshOptions, MeshTrainer, Model, Shard, Source, StageSpec, Stages,
    TrainOptions, Trainer, partition, schedule,
};
use wgrad::{Context, DType, HostTensor, Result, Tensor};

use super::{counted, mesh, same_everywhere, sgd};
use crate::handles::tap::{Tap, fill};
use crate::pipeline::{Numbers, STEPS, plain};
use crate::{Subject, devices};

crate::suite![
    plain: shares_follow_weights, a_block_needs_one_sum_each_way, a_shard_without_a_row_is_refused,
        outputs_are_gathered, a_split_layer_needs_a_mesh, weights_move_between_meshes_by_file,
        little_is_computed_twice;
    device: split_blocks_agree_with_whole_ones, stages_of_shards_agree_with_one_device,
        shards_of_several_kinds_agree_with_one_device
];

const WIDTH: usize = 12;
const CLASSES: usize = 5;

/// `x + f(norm(x))`, as in a transformer.
struct Residual<M> {
    norm: LayerNorm,
    f: M,
}

impl<M: Module> Module for Residual<M> {
    fn forward(&self, x: Tensor) -> Tensor {
        x + self.f.forward(self.norm.forward(x))
    }

    fn params(&self) -> ParamSet {
        self.norm.params().iter().chain(self.f.params().iter()).cloned().collect()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.f.set_mode(mode);
    }
}

/// The mean over positions.
struct Mean;

impl Module for Mean {
    fn forward(&self, x: Tensor) -> Tensor {
        x.mean([1])
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Attention of 4 heads in 2 groups, a block of 7 hidden units, a head: on one device.
fn whole() -> Model {
    let rng = Rng::seed(5);
    Model::new()
        .layer("attention", move |ctx| {
            let mut f = MultiHeadAttention::with(ctx, "att", WIDTH, [4, 2], rng, true)?;
            f.causal = true;
            Ok(Residual { norm: LayerNorm::new(ctx, "ln1", [WIDTH])?, f })
        })
        .layer("mlp", move |ctx| {
            let f = Sequential::new()
                .then(Linear::new(ctx, "mlp.fc1", WIDTH, 7, rng)?)
                .then(Activation::Gelu)
                .then(Linear::new(ctx, "mlp.fc2", 7, WIDTH, rng)?);
            Ok(Residual { norm: LayerNorm::new(ctx, "ln2", [WIDTH])?, f })
        })
        .layer("mean", |_| Ok(Mean))
        .layer("head", move |ctx| Linear::new(ctx, "head", WIDTH, CLASSES, rng))
}

/// The same, split.
fn split_model(shard: &Shard) -> Model {
    let rng = Rng::seed(5);
    let [a, b, c] = [(); 3].map(|()| shard.clone());
    Model::new()
        .layer("attention", move |ctx| {
            let f = ShardedAttention::new(ctx, "att", WIDTH, [4, 2], rng, true, &a)?.causal();
            Ok(Residual { norm: LayerNorm::new(ctx, "ln1", [WIDTH])?, f })
        })
        .layer("mlp", move |ctx| {
            let f = ShardedMlp::new(ctx, "mlp", [WIDTH, 7, WIDTH], Activation::Gelu, rng, &b)?;
            Ok(Residual { norm: LayerNorm::new(ctx, "ln2", [WIDTH])?, f })
        })
        .layer("mean", |_| Ok(Mean))
        .layer("head", move |ctx| Ok(ColumnLinear::new(ctx, "head", WIDTH, CLASSES, rng, &c)?.gathered()))
}

fn cut(model: &Model, contexts: &[Context]) -> Result<Stages> {
    let starts: &[&str] = if contexts.len() == 1 { &[] } else { &["mlp"] };
    let partition = partition::at_names(&model.names(), starts)?;
    Stages::cut(model, &partition, contexts, Contract::new([3, WIDTH], DType::F32))
}

fn loss() -> Loss {
    Loss::mean(|y, t| y.try_cross_entropy(t))
}

fn batch(rows: usize, step: usize) -> Batch {
    let labels: Vec<i32> = (0..rows as i32).map(|i| (i * 3 + step as i32) % CLASSES as i32).collect();
    Batch::new(&fill(&[rows, 3, WIDTH], step as f32)).targets(&HostTensor::new([rows], &labels).unwrap())
}

/// The numbers of the whole model on one device, with micro-batches of these sizes.
fn in_one(context: &Context, sizes: &[usize]) -> Numbers {
    let stages = cut(&whole(), std::slice::from_ref(context)).unwrap();
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let batch = batch(sizes.iter().sum(), step).sizes(sizes);
        let done = trainer.step(&schedule::gpipe(1, sizes.len()).unwrap(), &batch).unwrap();
        numbers.losses.push(done.loss);
        numbers.gradients.push(plain(trainer.gradients().unwrap()));
    }
    numbers.weights = plain(trainer.stages().weights().unwrap());
    numbers
}

fn trainer(mesh: &Mesh, options: MeshOptions) -> Result<MeshTrainer> {
    let build = |line: &Line| cut(&split_model(line.shard()), line.contexts());
    MeshTrainer::new(mesh, build, loss(), sgd, options)
}

fn in_mesh(mesh: &Mesh, schedule: &schedule::Schedule, sizes: &[usize]) -> Numbers {
    let mut trainer = trainer(mesh, MeshOptions::default()).unwrap();
    let mut numbers = Numbers::default();
    for step in 0..STEPS {
        let done = trainer.step(schedule, &batch(sizes.iter().sum(), step).sizes(sizes)).unwrap();
        assert!(done.applied);
        same_everywhere(&trainer);
        numbers.losses.push(done.loss);
        numbers.gradients.push(plain(trainer.gradients().unwrap()));
    }
    numbers.weights = plain(trainer.weights().unwrap());
    numbers
}

fn shares_follow_weights() {
    assert_eq!(split(7, &[1.0, 1.0], "rows").unwrap(), [0..4, 4..7]);
    assert_eq!(split(100, &[1.0, 2.0, 1.0], "rows").unwrap(), [0..25, 25..75, 75..100]);
    for (count, weights) in
        [(1, &[1.0, 1.0][..]), (10, &[1.0, 100.0]), (10, &[100.0, 1.0, 1.0]), (4, &[1.0, -1.0])]
    {
        assert!(split(count, weights, "rows").is_err(), "{count} over {weights:?}");
    }
    // Every row once, whatever the numbers.
    for count in [5, 64, 511, 513, 100_000] {
        for ranks in 1..=5 {
            let parts = split(count, &vec![1.0; ranks], "rows").unwrap();
            assert_eq!(parts.iter().map(ExactSizeIterator::len).sum::<usize>(), count);
            assert!(parts.windows(2).all(|p| p[0].end == p[1].start));
        }
    }
}

fn split_blocks_agree_with_whole_ones(subject: &Subject) {
    let one = in_one(&devices::oracle(), &[2, 3]);
    // Two groups of heads, so two ranks; 7 units over them, evenly and not.
    for weights in [[1.0, 1.0], [1.0, 1.4]] {
        let mesh = mesh(&[("shard", 2)], || subject.context()).weighted("shard", &weights).unwrap();
        let off = in_mesh(&mesh, &schedule::gpipe(1, 2).unwrap(), &[2, 3]).difference(&one);
        assert!(off <= 1e-5, "{weights:?}: {off:e}");
    }
}

/// 2 x 2 devices: stages of shards, and replicas of shards.
fn stages_of_shards_agree_with_one_device(subject: &Subject) {
    let one = in_one(&devices::oracle(), &[2, 1, 1, 2]);
    for axes in [[("stage", 2), ("shard", 2)], [("shard", 2), ("stage", 2)]] {
        let mesh = mesh(&axes, || subject.context());
        for schedule in [schedule::one_f_one_b(2, 4), schedule::zb_h1(2, 4), schedule::gpipe(2, 4)] {
            let schedule = schedule.unwrap();
            let off = in_mesh(&mesh, &schedule, &[2, 1, 1, 2]).difference(&one);
            assert!(off <= 1e-5, "{axes:?}, {}: {off:e}", schedule.name());
        }
    }
    let mesh = mesh(&[("replica", 2), ("shard", 2)], || subject.context());
    // Used, not taught.
    let made = trainer(&mesh, MeshOptions::default()).unwrap();
    let (y, _) = made.forward(&batch(6, 0), 2).unwrap();
    let whole = cut(&whole(), &[devices::oracle()]).unwrap();
    let (want, _) = whole.forward_batch(&batch(6, 0), 1).unwrap();
    for (a, b) in y.to_vec::<f64>().iter().zip(want.to_vec::<f64>()) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
    let off = in_mesh(&mesh, &schedule::gpipe(1, 2).unwrap(), &[2, 1, 1, 2]).difference(&one);
    assert!(off <= 1e-5, "replicas of shards: {off:e}");
}

fn shards_of_several_kinds_agree_with_one_device(subject: &Subject) {
    let one = in_one(&devices::oracle(), &[2, 3]);
    let contexts = [subject.context(), devices::oracle(), devices::cpu(), subject.context()];
    for axes in [[("stage", 2), ("shard", 2)], [("replica", 2), ("shard", 2)]] {
        let mesh = Mesh::new(axes, &contexts).unwrap();
        let stages = mesh.size("stage");
        let schedule = schedule::one_f_one_b(stages, stages).unwrap();
        let off = in_mesh(&mesh, &schedule, &[2, 3]).difference(&one);
        assert!(off <= 4e-5, "{axes:?}: {off:e}");
    }
}

/// A block alone on two ranks.
fn block<M: Module + Send + Sync + 'static>(
    options: MeshOptions,
    build: impl Fn(&Context, &Shard) -> Result<M>,
) -> Result<MeshTrainer> {
    let build = &build;
    let stages = move |line: &Line| {
        let shard = line.shard().clone();
        let first = StageSpec::new("block", &line.contexts()[0], move |ctx| build(ctx, &shard));
        Stages::build(vec![first.takes(Source::Batch(0), Contract::new([6], DType::F32))])
    };
    let loss = Loss::mean(|y, t| y.try_cross_entropy(t));
    let sgd = |p| Sgd::new(p, SgdConfig { lr: 0.1, ..Default::default() });
    MeshTrainer::new(&mesh(&[("shard", 2)], devices::cpu), stages, loss, sgd, options)
}

fn rows() -> Batch {
    Batch::new(&fill(&[4, 6], 0.0)).targets(&HostTensor::new([4], &[0i32, 1, 2, 3]).unwrap())
}

/// Column, then row: the input's gradient is summed, and the output.
fn a_block_needs_one_sum_each_way() {
    let rng = Rng::seed(2);
    let (counts, options) = counted("shard");
    // A stage that takes of the batch has no gradient to sum: a layer before the block makes one needed.
    let made = block(options, move |ctx, shard| {
        Ok(Sequential::new().then(Linear::new(ctx, "before", 6, 6, rng)?).then(ShardedMlp::new(
            ctx,
            "mlp",
            [6, 7, 4],
            Activation::Tanh,
            rng,
            shard,
        )?))
    });
    let mut made = made.unwrap();
    for micro_batches in [1, 2, 4] {
        made.step(&schedule::gpipe(1, micro_batches).unwrap(), &rows()).unwrap();
        // Two ranks, a forward and a backward sum each.
        assert_eq!(counts.take(), [2 * 2 * micro_batches, 0, 0]);
    }
    let (counts, options) = counted("shard");
    let made = block(options, move |ctx, shard| {
        ShardedMlp::new(ctx, "mlp", [6, 7, 4], Activation::Tanh, rng, shard)
    });
    made.unwrap().step(&schedule::gpipe(1, 1).unwrap(), &rows()).unwrap();
    assert_eq!(counts.take(), [2, 0, 0], "nobody asks for the gradient of the batch");
    let (counts, options) = counted("shard");
    let made = block(options, move |ctx, shard| {
        Ok(Sequential::new()
            .then(ColumnLinear::new(ctx, "a", 6, 7, rng, shard)?.gathered())
            .then(ColumnLinear::new(ctx, "b", 7, 4, rng, shard)?.gathered()))
    });
    made.unwrap().step(&schedule::gpipe(1, 1).unwrap(), &rows()).unwrap();
    assert_eq!(counts.take(), [2, 4, 0], "two gatherings forward, one sum backward");
}

fn a_shard_without_a_row_is_refused() {
    let rng = Rng::seed(2);
    let refused = |r: Result<MeshTrainer>| r.unwrap_err().to_string();
    let text = refused(block(MeshOptions::default(), move |ctx, shard| {
        ShardedMlp::new(ctx, "mlp", [6, 1, 4], Activation::Tanh, rng, shard)
    }));
    assert!(text.contains("1 outputs of `mlp.fc1`") && text.contains("leave none for rank 1"), "{text}");
    let text = refused(block(MeshOptions::default(), move |ctx, shard| {
        ShardedAttention::new(ctx, "att", 6, [3, 1], rng, true, shard)
    }));
    assert!(text.contains("1 heads of `att`"), "{text}");
    let text = refused(block(MeshOptions::default(), move |ctx, shard| {
        ShardedAttention::new(ctx, "att", 6, [4, 2], rng, true, shard)
    }));
    assert!(text.contains("heads divide the width"), "{text}");
    // Parameters that do not fit together.
    let text = refused(block(MeshOptions::default(), move |ctx, shard| {
        Linear::new(ctx, "fc", 6, 4 + shard.rank(), rng)
    }));
    assert!(text.contains("shard 1 has other parameters"), "{text}");
}

/// Gathered columns are the whole layer's.
fn outputs_are_gathered() {
    let rng = Rng::seed(9);
    let mut made = block(MeshOptions::default(), move |ctx, shard| {
        Ok(Sequential::new()
            .then(ColumnLinear::new(ctx, "a", 6, 7, rng, shard)?.gathered())
            .then(Activation::Tanh)
            .then(ColumnLinear::new(ctx, "b", 7, 9, rng, shard)?)
            .then(RowLinear::new(ctx, "c", 9, 4, rng, shard)?))
    })
    .unwrap();
    let done = made.step(&schedule::gpipe(1, 1).unwrap(), &rows()).unwrap();
    let spec = StageSpec::new("whole", &devices::cpu(), move |ctx: &Context| {
        Ok(Sequential::new()
            .then(Linear::new(ctx, "a", 6, 7, rng)?)
            .then(Activation::Tanh)
            .then(Linear::new(ctx, "b", 7, 9, rng)?)
            .then(Linear::new(ctx, "c", 9, 4, rng)?))
    });
    let stages = Stages::build(vec![spec.takes(Source::Batch(0), Contract::new([6], DType::F32))]).unwrap();
    let sgd = |p| Sgd::new(p, SgdConfig { lr: 0.1, ..Default::default() });
    let mut one = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let want = one.step(&schedule::gpipe(1, 1).unwrap(), &rows()).unwrap();
    let numbers = |loss, gradients, weights| Numbers {
        losses: vec![loss],
        gradients: vec![plain(gradients)],
        weights: plain(weights),
    };
    let got = numbers(done.loss, made.gradients().unwrap(), made.weights().unwrap());
    let want = numbers(want.loss, one.gradients().unwrap(), one.stages().weights().unwrap());
    assert!(got.difference(&want) < 1e-6, "{:e}", got.difference(&want));
}

fn a_split_layer_needs_a_mesh() {
    let ctx = devices::cpu();
    let mesh = mesh(&[("shard", 2)], devices::cpu);
    let mut shard = None;
    let rng = Rng::seed(1);
    let refused = MeshTrainer::new(
        &mesh,
        |line: &Line| {
            shard = Some(line.shard().clone());
            wgrad::bail!(User, "build", "enough")
        },
        loss(),
        sgd,
        MeshOptions::default(),
    );
    assert!(refused.unwrap_err().to_string().contains("replica 0, shard 0"));
    let layer = RowLinear::new(&ctx, "fc", 6, 4, rng, &shard.unwrap()).unwrap();
    let spec = StageSpec::new("alone", &ctx, move |_| Ok(layer));
    let stages = Stages::build(vec![spec.takes(Source::Batch(0), Contract::new([3], DType::F32))]).unwrap();
    let error = stages.forward(&fill(&[2, 3], 0.0), 1).unwrap_err().to_string();
    assert!(error.contains("stages of a mesh") && error.contains("action F0"), "{error}");
    // On one device it is the whole layer.
    let layer = RowLinear::new(&ctx, "fc", 6, 4, rng, &Shard::whole()).unwrap();
    let whole = Linear::new(&ctx, "fc", 6, 4, rng).unwrap();
    let of = |m: &dyn Module| ctx.pass(|p| m.forward(p.input(fill(&[2, 6], 0.0))?).to_vec::<f32>()).unwrap();
    assert_eq!(of(&layer), of(&whole));
}

/// Trained on four devices, saved, and gone on with on others.
fn weights_move_between_meshes_by_file() {
    let path = std::env::temp_dir().join(format!("wgrad-mesh-{}.safetensors", std::process::id()));
    let open = devices::cpu;
    let next = |trainer: &mut MeshTrainer, stages: usize| {
        trainer.step(&schedule::gpipe(stages, 1).unwrap(), &batch(4, 1)).unwrap().loss
    };
    let mut four = trainer(&mesh(&[("stage", 2), ("shard", 2)], open), MeshOptions::default()).unwrap();
    next(&mut four, 2);
    four.save(&path).unwrap();
    let want = next(&mut four, 2);
    for axes in [&[("shard", 2)][..], &[("shard", 1)], &[("replica", 2), ("shard", 2)], &[("stage", 2)]] {
        let mesh = mesh(axes, open);
        let mut other = trainer(&mesh, MeshOptions::default()).unwrap();
        other.load(&path).unwrap();
        let saved: Vec<_> = other.weights().unwrap().into_iter().map(|(name, _)| name).collect();
        let names: Vec<_> = four.weights().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(saved, names);
        let got = next(&mut other, mesh.size("stage"));
        assert!((got - want).abs() < 1e-6, "{axes:?}: {got} and {want}");
    }
    std::fs::remove_file(&path).unwrap();
    let wrong = HostTensor::new([3], &[0f32; 3]).unwrap();
    let error = four.set_weights(&[("mlp.fc1.bias".to_owned(), wrong)]).unwrap_err().to_string();
    assert!(error.contains("mlp.fc1.bias") && error.contains("[3]"), "{error}");
}

/// What two ranks compute together is what one device computes, but for what both have whole: no product of a split
/// layer twice.
fn little_is_computed_twice() {
    let rng = Rng::seed(4);
    let products = |mesh: Option<()>| {
        let taps = [(); 2].map(|()| Tap::new(std::sync::Arc::new(wgrad_cpu::Cpu::new())));
        let build = |ctx: &Context, shard: &Shard| {
            ShardedMlp::new(ctx, "mlp", [6, 8, 4], Activation::Gelu, rng, shard)
        };
        let ranks = if mesh.is_some() { 2 } else { 1 };
        let contexts: Vec<Context> = taps[..ranks].iter().map(Tap::context).collect();
        let mesh = Mesh::new([("shard", ranks)], &contexts).unwrap();
        let stages = |line: &Line| {
            let shard = line.shard().clone();
            let spec = StageSpec::new("block", &line.contexts()[0], move |ctx| build(ctx, &shard));
            Stages::build(vec![spec.takes(Source::Batch(0), Contract::new([6], DType::F32))])
        };
        let mut made = MeshTrainer::new(&mesh, stages, loss(), sgd, MeshOptions::default()).unwrap();
        made.step(&schedule::gpipe(1, 1).unwrap(), &rows()).unwrap();
        taps.iter().map(|t| t.take_products()).collect::<Vec<_>>()
    };
    let one = products(None)[0];
    assert_eq!(one, 5, "two forward, three backward");
    assert_eq!(products(Some(())), [one, one]);
}
