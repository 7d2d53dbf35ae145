//! Profiles: stages that cover the step, phases, kernels with their lines, and nothing that changes or grows.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use wgrad::prelude::*;
use wgrad::{Backend, ProfileReport, Result};

use crate::Subject;
use crate::programs::plain;
use crate::table::full;

crate::suite![
    plain: a_trace_holds_all_reports;
    device: stages_cover_the_step, a_profile_of_nothing_says_what_to_do, results_do_not_change, nothing_grows,
        two_contexts_at_once, kernels_name_their_lines, the_dense_step_crosses_once, the_page_stands_alone,
        captured_steps_are_profiled, a_switch_returns_what_was
];

/// A small model and its step.
struct Training {
    ctx: Context,
    model: Sequential,
    opt: AdamW,
    x: HostTensor,
    y: HostTensor,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Model {
    Mlp,
    Cnn,
    Norms,
}

const MODELS: [Model; 3] = [Model::Mlp, Model::Cnn, Model::Norms];

impl Training {
    fn new(ctx: Context, model: Model) -> Result<Training> {
        let rng = Rng::seed(3);
        let (shape, layers): (&[usize], Sequential) = match model {
            Model::Mlp => (
                &[64, 128],
                Sequential::new()
                    .then(Linear::new(&ctx, "fc1", 128, 256, rng)?)
                    .then(Activation::Relu)
                    .then(Linear::new(&ctx, "fc2", 256, 4, rng)?),
            ),
            Model::Cnn => (
                &[16, 1, 14, 14],
                Sequential::new()
                    .then(Conv2d::new(&ctx, "conv", [1, 8], [3, 3], Conv::default(), rng)?)
                    .then(MaxPool::new([2, 2]))
                    .then(Activation::Relu)
                    .then(Flatten)
                    .then(Linear::new(&ctx, "fc", 8 * 36, 4, rng)?),
            ),
            Model::Norms => (
                &[32, 96],
                Sequential::new()
                    .then(LayerNorm::new(&ctx, "norm", [96])?)
                    .then(Linear::new(&ctx, "fc1", 96, 192, rng)?)
                    .then(Activation::Gelu)
                    .then(Dropout::new("drop", 0.1))
                    .then(Linear::new(&ctx, "fc2", 192, 4, rng)?),
            ),
        };
        let rows = shape[0];
        let x: Vec<f32> = plain::noise(5, shape.iter().product());
        let y: Vec<i32> = (0..rows as i32).map(|i| i % 4).collect();
        let opt = AdamW::new(layers.params(), AdamWConfig::default())?;
        let (x, y) = (HostTensor::new(shape, &x)?, HostTensor::new([rows], &y)?);
        Ok(Training { ctx, model: layers, opt, x, y })
    }

    fn step(&mut self) -> Result<Deferred<f32>> {
        let Training { ctx, model, opt, x, y } = self;
        ctx.pass(|p| {
            let loss = model.forward(p.input(&*x)?).cross_entropy(p.input(&*y)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred())
        })
    }

    fn run(&mut self, steps: usize) -> Result<f32> {
        let mut last = None;
        for _ in 0..steps {
            last = Some(self.step()?);
        }
        last.expect("there are steps").get()
    }
}

fn fresh(on: &Subject) -> Context {
    Context::new(on.fresh()).expect("a context opens")
}

/// Steps profiled after two that plan, and the time that they took by another clock, ns.
fn profiled(training: &mut Training, steps: usize) -> Result<(ProfileReport, u64)> {
    training.run(2)?;
    training.ctx.profile(true);
    let start = Instant::now();
    training.run(steps)?;
    training.ctx.sync()?;
    let took = start.elapsed().as_nanos() as u64;
    training.ctx.profile(false);
    Ok((training.ctx.profile_report(), took))
}

fn stages_cover_the_step(on: &Subject) {
    for model in MODELS {
        let mut training = Training::new(fresh(on), model).unwrap();
        let steps = if on.is_slow() { 3 } else { 20 };
        // Another process may take the machine between two stages; three such coincidences are a fault.
        let mut tries = Vec::new();
        for _ in 0..3 {
            training.ctx.profile_reset();
            let (report, took) = profiled(&mut training, steps).unwrap();
            let named: u64 = report.stages.iter().map(|line| line.ns).sum();
            tries.push((named as f64 / took as f64, report));
            if (0.95..=1.001).contains(&tries[tries.len() - 1].0) {
                break;
            }
        }
        let (cover, report) = tries.pop().expect("it was tried");
        let before: Vec<f64> = tries.iter().map(|(cover, _)| *cover).collect();
        assert!((0.95..=1.001).contains(&cover), "{model:?}: {cover}, before {before:?}\n{report}");
        assert_eq!(report.steps, steps as u64, "{model:?}");
        let named: u64 = report.stages.iter().map(|line| line.ns).sum();
        assert!(named + report.unattributed_ns >= report.total_ns, "{report}");
        // Forward, backward and update are all of it.
        let phases: Vec<&str> = report.phases.iter().map(|line| line.phase).collect();
        assert_eq!(phases, ["forward", "backward", "update"]);
        let host: u64 = report.phases.iter().map(|line| line.host_ns).sum();
        assert!(host.abs_diff(named) <= 10, "{model:?}: {host} of {named}");
        assert!(report.phases.iter().all(|line| line.host_ns > 0), "{report}");
        let has = |name| report.stages.iter().any(|line| line.stage == name && line.ns > 0);
        for name in ["record", "differentiate", "plan", "allocate", "upload", "encode", "commit", "download"]
        {
            assert!(has(name), "{model:?}: no {name} in\n{report}");
        }
        assert!(has(if on.is_vulkan() { "submit" } else { "compute" }), "{report}");
        // Nothing was planned or compiled in these steps.
        assert!(!has("compile") && !has("fuse"), "{report}");
        if report.timed {
            assert!(report.phases.iter().all(|line| line.device_ns > 0), "{report}");
            let device: u64 = report.phases.iter().map(|line| line.device_ns).sum();
            assert!(device.abs_diff(report.busy_ns) <= 3, "{device} of {}", report.busy_ns);
            let share: f64 = report.kernels.iter().map(|k| k.share).sum();
            assert!((share - 1.0).abs() < 1e-9, "{share}");
        }
        assert_eq!(report.timed, !on.is_oracle(), "{}", on.tag());
        // Launching costs no more than the device waits.
        let busy = report.busy_ns as f64 / report.total_ns as f64;
        assert!(report.launch_share() <= (1.0 - busy).max(0.0) + 1e-9, "{report}");
        let text = report.to_string();
        assert!(text.contains("no clock for kernels") != report.timed, "{text}");
    }
}

fn a_profile_of_nothing_says_what_to_do(on: &Subject) {
    let ctx = fresh(on);
    assert!(ctx.profile_report().to_string().contains("context.profile(true)"));
    assert!(ctx.profile_report().html().contains("context.profile(true)"));
    let mut training = Training::new(ctx, Model::Mlp).unwrap();
    training.run(2).unwrap();
    let report = training.ctx.profile_report();
    assert_eq!((report.steps, report.stages.len(), report.total_ns), (0, 0, 0), "it was off");
}

fn a_switch_returns_what_was(on: &Subject) {
    let ctx = fresh(on);
    assert!(!ctx.profile(true) && ctx.profile(true) && ctx.profile(false) && !ctx.profile(false));
    // Switching on again keeps what was there; a reset does not.
    let mut training = Training::new(ctx.clone(), Model::Mlp).unwrap();
    for steps in [3, 6] {
        ctx.profile(true);
        training.run(3).unwrap();
        ctx.profile(false);
        assert_eq!(ctx.profile_report().steps, steps);
    }
    ctx.profile_reset();
    assert_eq!(ctx.profile_report().steps, 0);
}

fn results_do_not_change(on: &Subject) {
    for model in MODELS {
        let run = |on_from: Option<usize>| -> Result<(Vec<f32>, Vec<HostTensor>)> {
            let mut training = Training::new(fresh(on), model)?;
            let mut losses = Vec::new();
            for step in 0..6 {
                if Some(step) == on_from {
                    training.ctx.profile(true);
                }
                losses.push(training.step()?.get()?);
            }
            let weights = training.model.params().iter().map(|p| p.read()).collect::<Result<Vec<_>>>()?;
            Ok((losses, weights))
        };
        let plain = run(None).unwrap();
        assert_eq!(plain, run(Some(0)).unwrap(), "{model:?}");
        assert_eq!(plain, run(Some(3)).unwrap(), "{model:?}");
    }
}

/// Query sets, staging memory and buffers are those of the first steps, however many there are.
fn nothing_grows(on: &Subject) {
    let gpu = on.fresh_gpu();
    let backend = match &gpu {
        Some(gpu) => Arc::clone(gpu) as Arc<dyn Backend>,
        None => on.fresh(),
    };
    let ctx = Context::new(backend).unwrap();
    let w = Param::new(&ctx, "w", HostTensor::new([8], &[0.5f32; 8]).unwrap()).unwrap();
    ctx.profile(true);
    let steps = match (full(), on.is_slow()) {
        (true, false) => 10_000,
        (false, false) => 1_500,
        (_, true) => 200,
    };
    let held = || {
        ctx.sync().unwrap();
        let stats = ctx.stats();
        let report = gpu.as_ref().and_then(|gpu| gpu.allocator_report());
        (stats.pages, stats.live_bytes, stats.plans_made, report)
    };
    let mut early = None;
    for step in 1..=steps {
        ctx.pass(|p| {
            let x = p.input(HostTensor::new([8], &[step as f32 / steps as f32; 8])?)?;
            let grads = ((w.t() - x).square().sum(..)).backward()?;
            w.set(w.t() - grads.get(&w).expect("it reaches the loss") * 0.1);
            Ok(())
        })
        .unwrap();
        if step == 100 {
            early = Some(held());
        }
    }
    assert_eq!(early.expect("there are 100 steps"), held());
    let report = ctx.profile_report();
    assert_eq!(report.steps, steps);
    if report.timed {
        let ran: u64 = report.kernels.iter().filter(|k| !k.lines.is_empty()).map(|k| k.count).sum();
        assert!(ran >= steps, "{ran} kernels in {steps} steps were timed");
    }
}

fn two_contexts_at_once(on: &Subject) {
    let run = |model: Model, steps: usize| {
        let mut training = Training::new(fresh(on), model).unwrap();
        profiled(&mut training, steps).unwrap().0
    };
    let steps = if on.is_slow() { 3 } else { 12 };
    let reports = std::thread::scope(|scope| {
        let threads = [(Model::Mlp, steps), (Model::Norms, steps + 1)]
            .map(|(model, steps)| scope.spawn(move || run(model, steps)));
        threads.map(|thread| thread.join().unwrap())
    });
    for (i, report) in reports.iter().enumerate() {
        assert_eq!(report.steps, (steps + i) as u64);
        if report.timed {
            // Each has its own kernels: the normalisation is one model's alone.
            let rsqrt = report.kernels.iter().any(|k| k.what.contains("sqrt") && k.phase.contains("forward"));
            assert_eq!(rsqrt, i == 1, "{report}");
        }
    }
    // Nested passes of two contexts on one thread: each its own time.
    let mut outer = Training::new(fresh(on), Model::Mlp).unwrap();
    let mut inner = Training::new(fresh(on), Model::Mlp).unwrap();
    let (a, b) = (outer.ctx.clone(), inner.ctx.clone());
    outer.run(2).unwrap();
    inner.run(2).unwrap();
    a.profile(true);
    b.profile(true);
    a.pass(|_| inner.run(2)).unwrap();
    outer.run(1).unwrap();
    a.profile(false);
    b.profile(false);
    assert_eq!((a.profile_report().steps, b.profile_report().steps), (2, 2));
}

fn kernels_name_their_lines(on: &Subject) {
    let ctx = fresh(on);
    let w = Param::new(&ctx, "w", HostTensor::new([48, 32], &vec![0.01f32; 48 * 32]).unwrap()).unwrap();
    let x = HostTensor::new([64, 48], &vec![0.5f32; 64 * 48]).unwrap();
    let mut lines = (0, 0);
    ctx.profile(true);
    for _ in 0..4 {
        ctx.pass(|p| {
            let x = p.input(&x)?;
            lines.0 = line!() + 1;
            let y = x.matmul(w.t());
            let grads = y.square().mean(..).backward()?;
            let _updating = wgrad::updating();
            lines.1 = line!() + 1;
            w.set(w.t() - grads.get(&w).expect("it reaches the loss") * 0.1);
            Ok(())
        })
        .unwrap();
    }
    ctx.sync().unwrap();
    let report = ctx.profile_report();
    if !report.timed {
        return;
    }
    let here = |line: u32| format!("{}:{line}", file!());
    let find = |line: u32, phase: &str| {
        let of = |k: &&wgrad::ProfileKernel| k.lines.contains(&here(line)) && k.phase.contains(phase);
        report
            .kernels
            .iter()
            .find(of)
            .unwrap_or_else(|| panic!("no {phase} kernel of line {line}:\n{report}"))
    };
    let forward = find(lines.0, "forward");
    assert!(forward.what.contains("matmul"), "{report}");
    assert_eq!(forward.count, 4);
    // 2 M N K operations, the bytes of both factors and the product or what was made of it.
    assert_eq!(forward.flops, 2 * 64 * 32 * 48);
    assert!(forward.bytes >= 4 * (64 * 48 + 48 * 32) as u64);
    assert!(forward.gflop_s() > 0.0 && forward.gb_s() > 0.0);
    find(lines.1, "update");
    let own = |line: &String| line.starts_with(file!());
    assert!(report.kernels.iter().flat_map(|k| &k.lines).all(own), "a line of the library:\n{report}");
    assert!(report.kernels.iter().any(|k| k.phase.contains("backward")), "{report}");
}

/// A dense 128 to 64 Adam step crosses once up and, read, once down.
fn the_dense_step_crosses_once(on: &Subject) {
    let ctx = fresh(on);
    let layer = Linear::new(&ctx, "fc", 128, 64, Rng::seed(1)).unwrap();
    let mut opt = Adam::new(layer.params(), AdamConfig::default()).unwrap();
    let noise = plain::noise;
    let x = HostTensor::new([64, 128], &noise(1, 64 * 128)).unwrap();
    let y = HostTensor::new([64, 64], &noise(2, 64 * 64)).unwrap();
    let mut step = || {
        ctx.pass(|p| {
            let loss = (layer.forward(p.input(&x)?) - p.input(&y)?).square().mean(..);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f32>())
        })
    };
    step().unwrap().get().unwrap();
    step().unwrap().get().unwrap();
    let before = ctx.stats();
    ctx.profile(true);
    for _ in 0..5 {
        step().unwrap().get().unwrap();
    }
    ctx.profile(false);
    let (report, after) = (ctx.profile_report(), ctx.stats());
    assert_eq!((report.up.count, report.down.count), (5, 5), "{report}");
    let batch_bytes = (x.bytes().len() + y.bytes().len()) as u64;
    let each = if on.is_oracle() { 2 } else { 1 };
    assert_eq!(report.up.bytes, 5 * batch_bytes * each);
    assert_eq!(report.down.bytes, 5 * 4 * each);
    // What the device counted is the same.
    assert_eq!((after.uploads - before.uploads, after.downloads - before.downloads), (5, 5));
    for _ in 0..5 {
        step().unwrap();
    }
    assert_eq!(ctx.stats().downloads, after.downloads, "nothing comes down unless it is read");
}

fn captured_steps_are_profiled(on: &Subject) {
    let ctx = fresh(on);
    let w = Param::new(&ctx, "w", HostTensor::new([16], &[1.0f32; 16]).unwrap()).unwrap();
    let step = ctx.capture(|_, x: Tensor| {
        let loss = (w.t() * x).square().mean(..);
        let grads = loss.backward()?;
        let _updating = wgrad::updating();
        w.set(w.t() - grads.get(&w).expect("it reaches the loss") * 0.1);
        Ok(loss)
    });
    let x = HostTensor::new([16], &[0.5f32; 16]).unwrap();
    for _ in 0..3 {
        step.run(x.clone()).unwrap().get().unwrap();
    }
    ctx.profile(true);
    for _ in 0..10 {
        step.run(x.clone()).unwrap();
    }
    ctx.sync().unwrap();
    ctx.profile(false);
    let report = ctx.profile_report();
    assert_eq!((report.steps, report.up.count, report.down.count), (10, 10, 0));
    let has = |name| report.stages.iter().any(|line| line.stage == name);
    assert!(!has("record") && !has("differentiate") && has("encode"), "a replay records nothing:\n{report}");
    if report.timed {
        let phases: Vec<_> = report.phases.iter().map(|line| line.device_ns > 0).collect();
        assert_eq!(phases, [true, true, true], "{report}");
    }
}

/// Every address in the page is inside of it, every tag is closed.
fn the_page_stands_alone(on: &Subject) {
    let mut training = Training::new(fresh(on), Model::Norms).unwrap();
    let (report, _) = profiled(&mut training, 3).unwrap();
    let page = report.html();
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for tag in ["svg", "table", "h2", "dl", "style", "html", "small", "title"] {
        let (opened, closed) =
            (page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count());
        assert!(opened == closed && (opened > 0 || tag == "small"), "{tag}: {opened} and {closed}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"), "a number is none");
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["steps"], 3);
    assert!(json["transfer_share"].as_f64().unwrap() < 1.0);
    assert_eq!(json["stages"].as_array().unwrap().len(), report.stages.len());

    // Kernels lie where the host was in the step, on one clock, and do not overlap.
    let trace: Value = serde_json::from_str(&wgrad::profile_trace(&[&report])).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = |pid: u64| -> Vec<(f64, f64)> {
        let of = events.iter().filter(|e| e["ph"] == "X" && e["pid"] == pid);
        of.map(|e| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap())).collect()
    };
    let (host, device) = (spans(1), spans(2));
    let first = host.iter().map(|(ts, _)| *ts).fold(f64::INFINITY, f64::min);
    let last = host.iter().map(|(ts, dur)| ts + dur).fold(0.0, f64::max);
    assert!(
        host.iter().chain(&device).all(|(ts, dur)| *ts >= first && *dur >= 0.0 && ts + dur <= last + 1.0)
    );
    assert_eq!(device.is_empty(), !report.timed);
    assert!(device.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0 + 0.01), "kernels overlap");
}

fn a_trace_holds_all_reports() {
    let report = |model| {
        let mut training = Training::new(crate::devices::cpu(), model).unwrap();
        profiled(&mut training, 2).unwrap().0
    };
    let (a, b) = (report(Model::Mlp), report(Model::Norms));
    let trace: Value = serde_json::from_str(&wgrad::profile_trace(&[&a, &b])).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let tracks = events.iter().filter(|e| e["name"] == "thread_name" && e["pid"] == 2);
    assert_eq!(tracks.map(|e| e["tid"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    for device in [1, 2] {
        assert!(events.iter().any(|e| e["ph"] == "X" && e["pid"] == 2 && e["tid"] == device));
    }
}
