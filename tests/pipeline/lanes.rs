//! Handovers beside the computing: what they report, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wgrad::nn::{Linear, Mode, Module, ParamSet, Rng, Sgd, SgdConfig};
use wgrad::pipeline::{
    Contract, Function, Message, Model, Parcel, Payload, Ring, Schedule, Stages, TrainOptions, Trainer,
    Transport, partition, schedule,
};
use wgrad::{Backend, Context, DType, Result, Tensor};

use super::{DIMS, cut, data, fresh, loss, model, void};
use crate::Subject;
use crate::devices::cpu;

crate::suite![
    plain: a_closed_edge_ends_quickly, failing_steps_leave_no_thread;
    device: edges_are_reported, memory_is_flat, peaks_do_not_depend_on_time, a_device_lost_while_an_edge_waits
];

fn sgd(params: ParamSet) -> Result<Sgd> {
    Sgd::new(params, SgdConfig { lr: 0.2, ..Default::default() })
}

fn edges_are_reported(on: &Subject) {
    let contexts = [cpu(), on.context(), cpu()];
    let options = TrainOptions { timed: true, ..Default::default() };
    let mut trainer = Trainer::new(cut(&model(false), &contexts).unwrap(), loss(), sgd, options).unwrap();
    let schedule = schedule::one_f_one_b(3, 4).unwrap();
    trainer.step(&schedule, &data(8, 0.0)).unwrap();
    let report = trainer.step(&schedule, &data(8, 0.0)).unwrap().report;
    let edges = report.edges();
    let ends: Vec<_> = edges.iter().map(|e| (e.payload, e.from, e.to, e.count, e.bytes)).collect();
    let bytes = |width: usize| 4 * 8 * width as u64;
    assert_eq!(
        ends,
        [
            (Payload::Activation, 0, 1, 4, bytes(DIMS[1])),
            (Payload::Activation, 1, 2, 4, bytes(DIMS[3])),
            (Payload::Gradient, 1, 0, 4, bytes(DIMS[1])),
            (Payload::Gradient, 2, 1, 4, bytes(DIMS[3])),
        ]
    );
    for edge in &edges {
        assert!(edge.seconds > 0.0 && edge.gb_per_s() > 0.0, "{edge:?}");
        assert!((0.0..=1.0 + 1e-9).contains(&edge.covered_share()), "{edge:?}");
    }
    for h in &report.handovers {
        let p = h.passage;
        assert!(
            p.sent <= h.begun && h.begun <= h.read && h.read <= p.arrived && p.arrived <= p.taken,
            "{h:?}"
        );
    }
    assert!(report.to_string().contains("GB/s"), "{report}");
}

fn memory_is_flat(on: &Subject) {
    let (gpu, backend): (_, Arc<dyn Backend>) = match on.fresh_gpu() {
        Some(gpu) => (Some(Arc::clone(&gpu)), gpu),
        None => (None, on.fresh()),
    };
    // Wide enough that what crosses is lent, not copied out.
    let (width, rng) = (1 << 12, Rng::seed(1));
    let layer = |name: &'static str, a, b| move |ctx: &Context| Linear::new(ctx, name, a, b, rng);
    let model = Model::new().layer("a", layer("a", DIMS[0], width)).layer("b", layer("b", width, DIMS[4]));
    let contexts = [Context::new(Arc::clone(&backend)).unwrap(), Context::new(backend).unwrap()];
    let two = partition::uniform(2, 2).unwrap();
    let stages = Stages::cut(&model, &two, &contexts, Contract::new([DIMS[0]], DType::F32)).unwrap();
    let mut trainer = Trainer::new(stages, loss(), sgd, TrainOptions::default()).unwrap();
    let schedule = schedule::one_f_one_b(2, 2).unwrap();
    let look = |trainer: &mut Trainer, steps| {
        for _ in 0..steps {
            trainer.step(&schedule, &data(16, 0.0)).unwrap();
        }
        contexts.iter().for_each(|ctx| ctx.sync().unwrap());
        let live: Vec<usize> = contexts.iter().map(|ctx| ctx.stats().live_bytes).collect();
        (live, gpu.as_ref().and_then(|gpu| gpu.allocator_report()).map(|r| r.allocated_bytes))
    };
    let (few, many) = if on.is_slow() { (4, 8) } else { (10, 40) };
    let (live, allocated) = look(&mut trainer, few);
    let (again, later) = look(&mut trainer, many);
    assert_eq!(again, live);
    if let (Some(before), Some(after)) = (allocated, later) {
        assert!(after <= before + (4 << 20), "{after} bytes, {before} before");
    }
}

/// A way on which every parcel takes a while.
struct Slow(Ring, Duration);

impl Transport for Slow {
    fn send(&self, parcel: Parcel, deadline: Instant) -> Result<()> {
        std::thread::sleep(self.1);
        self.0.send(parcel, deadline)
    }

    fn recv(&self, message: Message, deadline: Instant) -> Result<Parcel> {
        self.0.recv(message, deadline)
    }

    fn close(&self) {
        self.0.close();
    }
}

/// A layer that takes a while.
struct Works(Duration);

impl Module for Works {
    fn forward(&self, x: Tensor) -> Tensor {
        std::thread::sleep(self.0);
        x
    }

    fn params(&self) -> ParamSet {
        ParamSet::default()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// The peak of a device that has one of two stages, whose own work takes `own` and each of its messages `way`.
fn peak(on: &Subject, stage: usize, schedule: &Schedule, own: Duration, way: Duration) -> Option<usize> {
    let gpu = on.fresh_gpu()?;
    let context = Context::new(Arc::clone(&gpu) as Arc<dyn Backend>).unwrap();
    let contexts = if stage == 0 { [context, cpu()] } else { [cpu(), context] };
    // What crosses is most of what the device holds.
    let (width, rng) = (1 << 13, Rng::seed(1));
    let layer = |name: &'static str, a, b| move |ctx: &Context| Linear::new(ctx, name, a, b, rng);
    let works = |s: usize| move |_: &Context| Ok(Works(if s == stage { own } else { Duration::ZERO }));
    let model = Model::new()
        .layer("a", layer("a", DIMS[0], width))
        .layer("works0", works(0))
        .layer("works1", works(1))
        .layer("b", layer("b", width, DIMS[4]));
    let two = partition::uniform(4, 2).unwrap();
    let stages = Stages::cut(&model, &two, &contexts, Contract::new([DIMS[0]], DType::F32)).unwrap();
    let make = move |_: usize, to: usize, slots: usize| -> Arc<dyn Transport> {
        Arc::new(Slow(Ring::new(slots), if to == stage { way } else { Duration::ZERO }))
    };
    let options = TrainOptions { transport: Some(Arc::new(make)), ..Default::default() };
    let mut trainer = Trainer::new(stages, loss(), sgd, options).unwrap();
    for _ in 0..2 {
        trainer.step(schedule, &data(40, 0.0)).unwrap();
    }
    Some(gpu.memory().peak_bytes)
}

/// Messages come as far ahead as the schedule allows, or just when they are waited for: the device holds as much.
fn peaks_do_not_depend_on_time(on: &Subject) {
    let (none, while_) = (Duration::ZERO, Duration::from_millis(40));
    for schedule in [schedule::one_f_one_b(2, 5).unwrap(), schedule::gpipe(2, 5).unwrap()] {
        for stage in [0, 1] {
            let ahead = peak(on, stage, &schedule, while_, none);
            let late = peak(on, stage, &schedule, none, while_);
            assert_eq!(ahead, late, "stage {stage} of {}", schedule.name());
        }
    }
}

fn a_device_lost_while_an_edge_waits(on: &Subject) {
    let Some(gpu) = on.fresh_gpu() else { return };
    let lost = Context::new(Arc::clone(&gpu) as Arc<dyn Backend>).unwrap();
    let contexts = [cpu(), lost, cpu()];
    let mut trainer =
        Trainer::new(cut(&model(false), &contexts).unwrap(), loss(), sgd, TrainOptions::default()).unwrap();
    let schedule = schedule::one_f_one_b(3, 4).unwrap();
    trainer.step(&schedule, &data(8, 0.0)).unwrap();
    let begun = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(40));
            gpu.lose();
        });
        loop {
            match trainer.step(&schedule, &data(8, 0.0)) {
                Ok(_) => assert!(begun.elapsed() < Duration::from_secs(30), "it is lost by now"),
                Err(error) => break error,
            }
        }
    });
    assert!(error.is_lost() && error.to_string().contains("stage 1"), "{error}");
    for stage in [0, 2] {
        trainer.stages().params(stage).iter().for_each(|p| drop(p.read().unwrap()));
    }
}

/// Deadlines are far; a failure ends the waits of all lanes.
fn a_closed_edge_ends_quickly() {
    let make = |from: usize, to: usize, slots: usize| -> Arc<dyn Transport> {
        if (from, to) == (2, 1) { void() } else { Arc::new(Ring::new(slots)) }
    };
    let options = TrainOptions { transport: Some(Arc::new(make)), ..Default::default() };
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let bad = Model::new()
        .layer("a", |ctx| Linear::new(ctx, "a", DIMS[0], 5, Rng::seed(1)))
        .layer("b", |ctx| Linear::new(ctx, "b", 5, 5, Rng::seed(1)))
        .layer("c", |ctx| Linear::new(ctx, "c", 5, DIMS[4], Rng::seed(1)));
    let contexts = fresh(3, cpu);
    let specs = [(0, 1), (1, 2), (2, 3)].map(|(start, end)| {
        let (bad, count) = (&bad, Arc::clone(&count));
        wgrad::pipeline::StageSpec::new(format!("s{start}"), &contexts[start], move |ctx: &Context| {
            let layers = bad.build(ctx, start..end)?;
            let params = Module::params(&layers);
            Ok(Function::new(params, move |x| {
                if start == 2 {
                    assert!(count.fetch_add(1, Ordering::SeqCst) < 3, "the last one is bad");
                }
                Ok(Module::forward(&layers, x[0]))
            }))
        })
    });
    let [first, second, third] = specs;
    let first = first.takes(wgrad::pipeline::Source::Batch(0), Contract::new([DIMS[0]], DType::F32));
    let stages = Stages::build(vec![first, second, third]).unwrap();
    let mut trainer = Trainer::new(stages, loss(), sgd, options).unwrap();
    let begun = Instant::now();
    let error = trainer.step(&schedule::gpipe(3, 4).unwrap(), &data(8, 0.0)).unwrap_err();
    assert!(error.to_string().contains("the last one is bad"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// The names of this process's threads, as far as the system tells.
fn threads(word: &str) -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.contains(word)).count()
}

/// Twelve stages, so that no other test has threads of such names.
fn failing_steps_leave_no_thread() {
    let mut model = Model::new();
    for i in 0..12 {
        let name = format!("l{i}");
        let at = name.clone();
        let width = if i == 11 { DIMS[4] } else { DIMS[0] };
        model = model.layer(name, move |ctx| Linear::new(ctx, &at, DIMS[0], width, Rng::seed(1)));
    }
    let make = |from: usize, to: usize, slots: usize| -> Arc<dyn Transport> {
        if (from, to) == (5, 6) { void() } else { Arc::new(Ring::new(slots)) }
    };
    let options = |lossy: bool| TrainOptions {
        transport: lossy.then(|| Arc::new(make) as Arc<wgrad::pipeline::MakeTransport>),
        deadline: if lossy { Duration::from_millis(20) } else { Duration::from_secs(60) },
        ..Default::default()
    };
    let twelve = partition::uniform(12, 12).unwrap();
    let stages = || {
        let contexts = fresh(12, cpu);
        Stages::cut(&model, &twelve, &contexts, Contract::new([DIMS[0]], DType::F32)).unwrap()
    };
    let schedule = schedule::one_f_one_b(12, 2).unwrap();
    let mut lossy = Trainer::new(stages(), loss(), sgd, options(true)).unwrap();
    for _ in 0..100 {
        lossy.step(&schedule, &data(4, 0.0)).unwrap_err();
        assert_eq!((threads("10>11"), threads("11>10")), (0, 0), "lanes end with their step");
    }
    let mut whole = Trainer::new(stages(), loss(), sgd, options(false)).unwrap();
    whole.step(&schedule, &data(4, 0.0)).unwrap();
    assert_eq!((threads("10>11"), threads("11>10")), (0, 0));
}
