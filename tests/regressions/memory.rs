//! Memory that grows, threads that wait for each other, handles that are shared.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wgrad::nn::{Activation, AdamW, AdamWConfig, Mlp, Module, Optimizer, Rng};
use wgrad::{Backend, Context, HostTensor, Kept, Param, Result, Stats, Tensor, custom_gradient, grad};

use crate::Subject;
use crate::ops::near;
use crate::table::full;

crate::suite![
    plain: ;
    device: b256_a_long_training, b257_branches_without_a_gradient, b260_a_rule_that_holds_its_output,
        b262_eight_threads_at_first_use, b263_reads_beside_submissions, b265_handles_in_many_threads,
];

/// What the device holds when everything that was submitted has ended.
fn held(ctx: &Context) -> (usize, usize, usize) {
    ctx.sync().unwrap();
    let Stats { pages, live_bytes, peak_bytes, .. } = ctx.stats();
    (pages, live_bytes, peak_bytes)
}

fn b256_a_long_training(on: &Subject) {
    let steps = match (full(), on.is_slow() || on.is_oracle()) {
        (true, false) => 10_000,
        (_, true) => 200,
        _ => 600,
    };
    let ctx = Context::new(on.fresh()).unwrap();
    let model = Mlp::with(&ctx, &[6, 16, 3], Rng::seed(1), Activation::Tanh).unwrap();
    let mut opt = AdamW::new(model.params(), AdamWConfig::default()).unwrap();
    let mut after_two = None;
    for step in 1..=steps {
        let x: Vec<f32> = (0..30).map(|i| ((i * 7 + step * 5) % 13) as f32 / 13.0 - 0.5).collect();
        let x = HostTensor::new([5, 6], &x).unwrap();
        let loss = ctx
            .pass(|p| {
                let loss = (model.forward(p.input(&x)?) - 0.2).square().mean(..);
                opt.step(&loss.backward()?)?;
                Ok(loss.deferred::<f32>())
            })
            .unwrap();
        if step == 2 || step % 100 == 0 {
            assert!(loss.get().unwrap().is_finite());
        }
        if step == 2 {
            after_two = Some(held(&ctx));
        } else if step % 100 == 0 {
            assert_eq!(Some(held(&ctx)), after_two, "at step {step}");
        }
    }
}

/// The recording of a pass goes with it, whether or not anything was differentiated.
fn b257_branches_without_a_gradient(on: &Subject) {
    let turns = match (full(), on.is_slow()) {
        (true, false) => 10_000,
        (_, true) => 200,
        _ => 1000,
    };
    let ctx = Context::new(on.fresh()).unwrap();
    let w = Param::new(&ctx, "w", HostTensor::new([4, 4], &[0.25f32; 16]).unwrap()).unwrap();
    let alive = Arc::new(());
    let mut early = None;
    for turn in 0..turns {
        ctx.pass(|p| {
            let x = p.input(HostTensor::new([2, 4], &[turn as f32; 8])?)?;
            // A rule of the user's own, which lives as long as the recording does.
            let mark = Arc::clone(&alive);
            let y = custom_gradient(
                &[x.matmul(w.t())],
                |y| Ok(y[0].tanh()),
                move |g| {
                    let _held = &mark;
                    Ok(vec![Some(g.dout(0))])
                },
            )?;
            let _dropped = (y * 2.0).sum_all();
            assert_eq!(Arc::strong_count(&alive), 2);
            if turn % 10 == 0 { y.read().map(|_| ()) } else { Ok(()) }
        })
        .unwrap();
        assert_eq!(Arc::strong_count(&alive), 1, "nothing of the pass is left");
        if turn == 20 {
            early = Some(held(&ctx));
        }
    }
    assert_eq!(early, Some(held(&ctx)));
}

struct Circle {
    output: Mutex<Option<Tensor>>,
    kept: Kept,
}

fn b260_a_rule_that_holds_its_output(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let x = HostTensor::new([3], &[1f32, 2.0, 3.0]).unwrap();
    let round = || {
        let factor = HostTensor::new([3000], &[3f32; 3000]).unwrap();
        let circle = Arc::new(Circle { output: Mutex::default(), kept: Kept::new(&ctx, factor).unwrap() });
        let gone = Arc::downgrade(&circle);
        let d = ctx
            .pass(|p| {
                let x = p.input(&x)?;
                let of_rule = Arc::clone(&circle);
                let y = custom_gradient(
                    &[x],
                    |x| Ok(x[0] * 2.0),
                    move |g| {
                        let y = of_rule.output.lock().unwrap().expect("set below");
                        Ok(vec![Some(g.dout(0) * y * of_rule.kept.t().slice(0, ..3))])
                    },
                )?;
                // The rule of y holds y.
                *circle.output.lock().unwrap() = Some(y);
                drop(circle);
                grad(y.sum_all(), &[x])?[0].to_vec::<f64>()
            })
            .unwrap();
        assert_eq!(d, [6.0, 12.0, 18.0]);
        assert!(gone.upgrade().is_none(), "the circle is broken by the end of the pass");
    };
    round();
    let before = held(&ctx);
    (0..20).for_each(|_| round());
    assert_eq!(held(&ctx), before);
}

/// Runs `f` in eight threads, and fails when one of them is not done in time.
fn in_eight(f: impl Fn(usize) + Send + Sync + 'static) {
    let (f, (done, ends)) = (Arc::new(f), channel());
    let threads: Vec<_> = (0..8)
        .map(|turn| {
            let (f, done) = (Arc::clone(&f), done.clone());
            std::thread::spawn(move || {
                f(turn);
                done.send(turn).unwrap();
            })
        })
        .collect();
    drop(done);
    let mut ended = 0;
    // The channel closes early when a thread panics; `join` below tells of it.
    while ended < 8
        && let Ok(_) = ends.recv_timeout(Duration::from_secs(240)).inspect_err(|e| {
            assert!(!matches!(e, std::sync::mpsc::RecvTimeoutError::Timeout), "{ended} of 8 threads ended");
        })
    {
        ended += 1;
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn b262_eight_threads_at_first_use(on: &Subject) {
    // Nothing is compiled yet on this device.
    let backend = on.fresh();
    let shared = Context::new(Arc::clone(&backend)).unwrap();
    in_eight(move |turn| {
        let ctx = if turn % 2 == 0 { shared.clone() } else { Context::new(Arc::clone(&backend)).unwrap() };
        let x = HostTensor::new([9, 9], &[turn as f32; 81]).unwrap();
        let got = ctx.pass(|p| {
            let x = p.input(&x)?;
            let soft = (x.matmul(x) * 1e-3).softmax(1).sum_all();
            (soft + x.sort(0, true).0.sum_all()).item::<f64>()
        });
        near("sum", &[got.unwrap()], &[9.0 + 81.0 * turn as f64], 1e-5);
    });
}

fn b263_reads_beside_submissions(on: &Subject) {
    let rounds = if on.is_slow() { 20 } else { 100 };
    let backend: Arc<dyn Backend> = on.fresh();
    let shared = Context::new(Arc::clone(&backend)).unwrap();
    in_eight(move |turn| {
        let ctx = if turn % 2 == 0 { shared.clone() } else { Context::new(Arc::clone(&backend)).unwrap() };
        for round in 0..rounds {
            let v = (turn * 1000 + round) as f64;
            let elems = 1 + (turn * 37 + round * 11) % 3000;
            let got = ctx.pass(|p| (p.full([elems], v) * 2.0 + 1.0).to_vec::<f64>()).unwrap();
            assert!(got.len() == elems && got.iter().all(|y| *y == 2.0 * v + 1.0), "{turn} {round}");
        }
    });
}

/// Owned values, numbers and their readers are cloned, moved, read and dropped in threads at random.
fn b265_handles_in_many_threads(on: &Subject) {
    let rounds = if on.is_slow() { 15 } else { 60 };
    let ctx = Context::new(on.fresh()).unwrap();
    let param = |ctx: &Context, x: f32| Param::new(ctx, "w", HostTensor::new([2], &[x; 2]).unwrap()).unwrap();
    let table: Arc<Mutex<Vec<Param>>> = Arc::new(Mutex::new((0..4).map(|i| param(&ctx, i as f32)).collect()));
    let inner = ctx.clone();
    in_eight(move |turn| {
        let mut late = Vec::new();
        for round in 0..rounds {
            let at = (turn * 5 + round * 3) % 4;
            let w = table.lock().unwrap()[at].clone();
            let read = |w: &Param| w.read().unwrap().to_vec::<f64>();
            let seen = read(&w);
            assert!(seen[0] == seen[1] && seen[0].fract() == 0.0, "{seen:?} was torn");
            match (turn + round) % 4 {
                // Another takes its place; whoever holds the old one still reads it.
                0 => drop(std::mem::replace(&mut table.lock().unwrap()[at], param(&inner, seen[0] as f32))),
                1 => late.push((
                    seen[0],
                    inner.pass(|p| Ok((p.full([], seen[0]) * 2.0).deferred::<f64>())).unwrap(),
                )),
                2 => {
                    // What another thread has replaced meanwhile is refused, not mixed.
                    let Ok(kept) = inner.pass(|_| w.t().try_mul(1.0)?.keep()) else { continue };
                    assert_eq!(kept.read().unwrap().to_vec::<f64>()[0].fract(), 0.0);
                }
                _ => {
                    // Two threads may write the same weight; one of them is refused, never mixed.
                    let write: Result<()> = inner.pass(|_| w.try_set(w.t().try_add(1.0)?));
                    if let Err(error) = write {
                        assert!(!error.is_lost(), "{error}");
                    }
                }
            }
        }
        for (x, y) in late {
            assert_eq!(y.get().unwrap(), 2.0 * x);
        }
    });
    assert_eq!(ctx.pass(|p| p.ones([3]).sum_all().item::<f64>()).unwrap(), 3.0);
}
