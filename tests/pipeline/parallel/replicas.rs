//! Replicas: gradients summed over them are those of the whole batch on one device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wgrad::nn::{BatchNorm, Mode};
use wgrad::pipeline::{
    Collective, Contract, Kind, Line, Mesh, MeshOptions, MeshTrainer, Source, StageSpec, Stages, Team,
    TrainOptions, schedule,
};
use wgrad::{Context, DType, Result, Shape};

use super::{adam, counted, in_mesh, mesh, sgd, trainer};
use crate::handles::tap::Tap;
use crate::pipeline::{data, in_one, model, pair, schedules};
use crate::{Subject, devices};

crate::suite![
    plain: replicas_give_the_bits_of_one_device, stages_have_replicas, rows_go_by_weight,
        gradients_are_summed_in_buckets, sums_run_beside_the_backward_pass, running_statistics_are_refused,
        meshes_that_do_not_fit_are_refused;
    device: replicas_of_several_kinds_stay_equal, a_clipped_step_is_that_of_one_device
];

/// One micro-batch a replica: the sum over replicas is the sum over micro-batches of one device.
fn replicas_give_the_bits_of_one_device() {
    for noise in [false, true] {
        let model = model(noise);
        for sizes in [&[8][..], &[4, 4], &[5, 3], &[3, 3, 1], &[2, 2, 2, 2]] {
            let one = in_one(&model, &devices::cpu(), sizes, |s| pair(sizes.iter().sum(), s), sgd).unwrap();
            let adams =
                in_one(&model, &devices::cpu(), sizes, |s| pair(sizes.iter().sum(), s), adam).unwrap();
            for bucket in [1, 100, 1 << 20] {
                let options = || MeshOptions { bucket, ..Default::default() };
                let mesh = || mesh(&[("replica", sizes.len())], devices::cpu);
                let schedule = schedule::gpipe(1, 1).unwrap();
                let made = trainer(&model, &mesh(), sgd, options()).unwrap();
                assert_eq!(in_mesh(made, &schedule, sizes).unwrap(), one, "{sizes:?}, {bucket}, SGD");
                let made = trainer(&model, &mesh(), adam, options()).unwrap();
                assert_eq!(in_mesh(made, &schedule, sizes).unwrap(), adams, "{sizes:?}, {bucket}, Adam");
            }
        }
        // Several micro-batches a replica are added up before replicas are: the same but for rounding.
        let sizes = [2, 1, 2, 2, 1, 1];
        let one = in_one(&model, &devices::cpu(), &sizes, |s| pair(9, s), sgd).unwrap();
        for replicas in [1, 2, 3] {
            let made =
                trainer(&model, &mesh(&[("replica", replicas)], devices::cpu), sgd, Default::default());
            let schedule = schedule::gpipe(1, 6 / replicas).unwrap();
            let off = in_mesh(made.unwrap(), &schedule, &sizes).unwrap().difference(&one);
            assert!(off <= if replicas == 1 { 0.0 } else { 5e-6 }, "{replicas} replicas: {off:e}");
        }
    }
}

/// Two stages of two and of three replicas, all schedules.
fn stages_have_replicas() {
    let model = model(true);
    for (stages, replicas) in [(2, 2), (2, 3), (4, 2)] {
        for micro_batches in [1, 2, 3] {
            let sizes: Vec<usize> = (0..replicas * micro_batches).map(|i| 1 + i % 2).collect();
            let rows = sizes.iter().sum();
            let one = in_one(&model, &devices::cpu(), &sizes, |s| pair(rows, s), sgd).unwrap();
            for schedule in schedules(stages, micro_batches) {
                for axes in
                    [[("stage", stages), ("replica", replicas)], [("replica", replicas), ("stage", stages)]]
                {
                    let made = trainer(&model, &mesh(&axes, devices::cpu), sgd, Default::default()).unwrap();
                    let many = in_mesh(made, &schedule, &sizes).unwrap();
                    let off = many.difference(&one);
                    let bound = if micro_batches == 1 { 0.0 } else { 5e-6 };
                    let what = format!("{}, {stages} stages, {replicas} replicas", schedule.name());
                    assert!(off <= bound, "{what}, {micro_batches} micro-batches: {off:e}");
                }
            }
        }
    }
}

fn rows_go_by_weight() {
    let model = model(true);
    let mesh = mesh(&[("replica", 3)], devices::cpu).weighted("replica", &[2.0, 1.0, 0.6]).unwrap();
    let mut made = trainer(&model, &mesh, sgd, Default::default()).unwrap();
    // 10 rows: 6, 2, 2 (boundaries at 5.6 and 8.3).
    let done = made.step(&schedule::gpipe(1, 2).unwrap(), &data(10, 0.0)).unwrap();
    let one = in_one(&model, &devices::cpu(), &[3, 3, 1, 1, 1, 1], |s| pair(10, s), sgd).unwrap();
    assert_eq!(done.loss, one.losses[0]);
    assert_eq!(done.lines.len(), 3);
    // The same rows forward, in their order.
    made.set_mode(Mode::Eval);
    let (y, reports) = made.forward(&data(10, 0.0), 2).unwrap();
    let weights = made.weights().unwrap();
    let mut whole = crate::pipeline::cut(&model, &[devices::cpu()]).unwrap();
    whole.set_weights(&weights).unwrap();
    whole.set_mode(Mode::Eval);
    assert_eq!(y, whole.forward_batch(&data(10, 0.0).sizes([3, 3, 1, 1, 1, 1]), 6).unwrap().0);
    assert_eq!(reports.len(), 3);
    let refused = made.step(&schedule::gpipe(1, 3).unwrap(), &data(10, 0.0)).unwrap_err().to_string();
    assert!(refused.contains("replica 1") && refused.contains("2 rows"), "{refused}");
}

fn gradients_are_summed_in_buckets() {
    let model = model(false);
    // The model has 8 parameters of 4 to 63 numbers: each one in a bucket of its own, or all in one.
    for (bucket, count) in [(1, 8), (1 << 20, 1), (150, 3)] {
        let (counts, options) = counted("replica");
        let options = MeshOptions { bucket, ..options };
        let mut made = trainer(&model, &mesh(&[("replica", 2)], devices::cpu), sgd, options).unwrap();
        for micro_batches in [1, 3] {
            made.step(&schedule::gpipe(1, micro_batches).unwrap(), &data(8, 0.0)).unwrap();
            assert_eq!(counts.take(), [2 * count, 0, 0], "{bucket}: one sum a bucket and step, on two ranks");
        }
    }
}

/// A collective each of whose sums takes a while.
struct Slow(Team, Duration);

impl Collective for Slow {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_reduce(&self, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        std::thread::sleep(self.1);
        self.0.all_reduce(values, shape, deadline)
    }

    fn all_gather(&self, own: &[f32], shape: Shape, deadline: Instant) -> Result<Vec<(Shape, Vec<f32>)>> {
        self.0.all_gather(own, shape, deadline)
    }

    fn broadcast(&self, root: usize, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        self.0.broadcast(root, values, shape, deadline)
    }

    fn barrier(&self, deadline: Instant) -> Result<()> {
        self.0.barrier(deadline)
    }

    fn close(&self) {
        self.0.close();
    }
}

/// 8 buckets, of which each takes as long to compute as to sum: the step is shorter than both one after the other.
fn sums_run_beside_the_backward_pass() {
    let model = model(false);
    let time = Duration::from_millis(20);
    let slowed = || Tap::slowed(Arc::new(wgrad_cpu::Cpu::new()), time).context();
    let make = move |_: &str, size: usize| -> Vec<Arc<dyn Collective>> {
        Team::of(size).into_iter().map(|team| Arc::new(Slow(team, time)) as Arc<dyn Collective>).collect()
    };
    let options = MeshOptions { bucket: 1, collective: Some(Arc::new(make)), ..Default::default() };
    let mut made = trainer(&model, &mesh(&[("replica", 2)], slowed), sgd, options).unwrap();
    let schedule = schedule::gpipe(1, 1).unwrap();
    // From the begin of B to the end of R; a machine that is busy otherwise is no fault of it.
    let mut times = Vec::new();
    for _ in 0..10 {
        let done = made.step(&schedule, &data(8, 0.0)).unwrap();
        let spans = &done.lines[0].spans;
        let of = |kind| spans.iter().find(|s| s.action.kind == kind).unwrap();
        times.push((of(Kind::Reduce).end - of(Kind::Backward).start) / time.as_secs_f64());
        if times.last().is_some_and(|t| *t < 13.0) {
            break;
        }
    }
    assert!(times.iter().any(|t| *t < 13.0), "{times:?} of 16 times");
}

fn running_statistics_are_refused() {
    let build = |line: &Line| {
        let spec =
            StageSpec::new("norm", &line.contexts()[0], |ctx: &Context| BatchNorm::new(ctx, "norm", 6));
        Stages::build(vec![spec.takes(Source::Batch(0), Contract::new([6], DType::F32))])
    };
    let mesh = mesh(&[("replica", 2)], devices::cpu);
    let mut made = MeshTrainer::new(&mesh, build, crate::pipeline::loss(), sgd, Default::default()).unwrap();
    let schedule = schedule::gpipe(1, 1).unwrap();
    let error = made.step(&schedule, &data(8, 0.0)).unwrap_err().to_string();
    assert!(error.contains("running statistics") && error.contains("`norm`"), "{error}");
    made.set_mode(Mode::Eval);
    made.step(&schedule, &data(8, 0.0)).unwrap();
}

fn meshes_that_do_not_fit_are_refused() {
    let contexts = crate::pipeline::fresh(2, devices::cpu);
    let text = |axes: &[(&str, usize)], contexts: &[Context]| {
        Mesh::new(axes.iter().copied(), contexts).unwrap_err().to_string()
    };
    assert!(text(&[("replica", 3)], &contexts).contains("3 places"));
    assert!(text(&[("rows", 2)], &contexts).contains("`rows`"));
    assert!(text(&[("replica", 2), ("replica", 1)], &contexts).contains("once"));
    assert!(text(&[("replica", 0)], &contexts).contains("of 0"));
    let twice = [contexts[0].clone(), contexts[0].clone()];
    assert!(text(&[("replica", 2)], &twice).contains("twice"));
    let mesh = Mesh::new([("replica", 2)], &contexts).unwrap();
    assert!(mesh.clone().weighted("replica", &[1.0]).is_err());
    assert!(mesh.clone().weighted("replica", &[1.0, 0.0]).is_err());
    assert!(mesh.clone().weighted("stage", &[1.0]).is_err());
    let model = model(false);
    let error = trainer(&model, &Mesh::new([("stage", 2)], &contexts).unwrap(), sgd, Default::default());
    error.unwrap();
    let swapped = |_: &Line| crate::pipeline::cut(&model, &contexts[..1]);
    let loss = crate::pipeline::loss;
    let made = MeshTrainer::new(&mesh, swapped, loss(), sgd, Default::default());
    assert!(made.unwrap_err().to_string().contains("replica 1"), "its stage is on another context");
}

/// The subject, the CPU executor and the oracle: their updates round differently, their weights are the same.
fn replicas_of_several_kinds_stay_equal(subject: &Subject) {
    let model = model(true);
    let sizes = [3, 2, 2];
    let one = in_one(&model, &devices::oracle(), &sizes, |s| pair(7, s), adam).unwrap();
    for order in [[0, 1, 2], [2, 0, 1]] {
        let contexts = order.map(|i| [subject.context(), devices::cpu(), devices::oracle()][i].clone());
        let mesh = Mesh::new([("replica", 3)], &contexts).unwrap();
        let (counts, options) = counted("replica");
        let made = trainer(&model, &mesh, adam, options).unwrap();
        let off = in_mesh(made, &schedule::gpipe(1, 1).unwrap(), &sizes).unwrap().difference(&one);
        assert!(off <= 4e-5, "{order:?}: {off:e}");
        assert_eq!(counts.take()[2], 9, "new weights are those of the first, once a step on each of three");
    }
    // Of one kind they need no such thing.
    let (counts, options) = counted("replica");
    let made = trainer(&model, &mesh(&[("stage", 2), ("replica", 2)], || subject.context()), adam, options);
    let off = in_mesh(made.unwrap(), &schedule::one_f_one_b(2, 2).unwrap(), &[2, 2, 2, 1]).unwrap();
    let one = in_one(&model, &devices::oracle(), &[2, 2, 2, 1], |s| pair(7, s), adam).unwrap();
    assert!(off.difference(&one) <= 4e-5, "{:e}", off.difference(&one));
    assert_eq!(counts.take()[2], 0);
}

fn a_clipped_step_is_that_of_one_device(subject: &Subject) {
    let model = model(false);
    let options = || TrainOptions { clip: Some(0.05), ..Default::default() };
    let pipeline = crate::pipeline::cut(&model, &[subject.context()]).unwrap();
    let mut one = wgrad::pipeline::Trainer::new(pipeline, crate::pipeline::loss(), sgd, options()).unwrap();
    let want = one.step(&schedule::gpipe(1, 2).unwrap(), &data(8, 0.0)).unwrap();
    let two = mesh(&[("replica", 2), ("stage", 2)], || subject.context());
    let mesh_options = MeshOptions { train: options(), ..Default::default() };
    let mut made = trainer(&model, &two, sgd, mesh_options).unwrap();
    let got = made.step(&schedule::gpipe(2, 1).unwrap(), &data(8, 0.0)).unwrap();
    let (a, b) = (got.norm.unwrap(), want.norm.unwrap());
    assert!(a > 0.05 && (a - b).abs() < 1e-5 * b, "{a} and {b}");
    for ((name, got), (_, want)) in made.weights().unwrap().iter().zip(one.stages().weights().unwrap()) {
        for (a, b) in got.to_vec::<f64>().iter().zip(want.to_vec::<f64>()) {
            assert!((a - b).abs() < 1e-6, "{name}: {a} and {b}");
        }
    }
}
