//! Values that cross while others are recorded and computed: read later, placed before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use wgrad::{Context, DType, ErrorKind, HostTensor, Placed, Reading, Result, Tensor};

use super::tap::{Call, Tap, bits, fill, host, refused};
use crate::Subject;
use crate::devices::{cpu, oracle};

crate::suite![
    plain: what_is_placed_belongs_to_its_context;
    device: a_reading_outlives_its_pass, a_reading_hears_of_its_submission, running_out_of_time_is_no_failure,
        a_lost_device_ends_a_wait, threads_place_while_another_steps, what_is_placed_takes_an_inputs_place,
        a_captured_step_takes_what_is_placed, several_values_cross_at_once, memory_set_aside_is_filled,
        a_kept_value_takes_what_is_placed
];

const LONG: Duration = Duration::from_secs(60);

fn a_reading_outlives_its_pass(on: &Subject) {
    let ctx = on.context();
    let (x, n) = (fill(&[300, 200], 0.25), 300 * 200);
    let want = ctx.pass(|p| (p.input(&x)? * 3.0).read()).unwrap();
    // Kept values change after the reading begins, and the pass is discarded.
    let sum = wgrad::Kept::new(&ctx, &x).unwrap();
    let (tripled, before): (Reading, Reading) = {
        let pass = ctx.begin().unwrap();
        let y = pass.input(&x).unwrap() * 3.0;
        (y.read_later().unwrap(), sum.t().read_later().unwrap())
    };
    for _ in 0..3 {
        ctx.pass(|_| sum.try_set(sum.t() * 2.0)).unwrap();
    }
    assert_eq!(tripled.bytes(), 4 * n);
    let clone = tripled.clone();
    let other = thread::spawn(move || clone.wait(LONG).unwrap());
    assert_eq!(bits(&tripled.wait(LONG).unwrap()), bits(&want));
    assert_eq!(bits(&other.join().unwrap()), bits(&want));
    assert!(tripled.ready());
    assert_eq!(bits(&before.wait(LONG).unwrap()), bits(&x), "as it was when the reading began");
    // Nobody has to wait for it.
    drop(ctx.pass(|p| (p.input(&x)? + 1.0).read_later()).unwrap());
    ctx.sync().unwrap();
}

/// An index out of range is told to its reading, whoever else waits for the same submission.
fn a_reading_hears_of_its_submission(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let step = |index: i32| -> Result<Reading> {
        let pass = ctx.begin()?;
        let table = pass.input(host(&[3], &[10.0, 20.0, 30.0]))?;
        table.gather(0, pass.input(HostTensor::new([1], &[index])?)?).read_later()
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Two threads settle all that is in flight, over and over.
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let _told = ctx.sync();
                    thread::yield_now();
                }
            });
        }
        let rounds = if on.is_slow() { 20 } else { 100 };
        for round in 0..rounds {
            // A failure that one of the others heard of may be told to the pass that begins next.
            let good = step(1).and_then(|reading| reading.wait(LONG));
            assert!(good.is_err() || good.unwrap().to_vec::<f32>() == [20.0], "round {round}");
            let bad = step(7).and_then(|reading| reading.wait(LONG));
            let text = refused(bad, ErrorKind::Data);
            assert!(text.contains('7') || text.contains('3'), "round {round}: {text}");
        }
        done.store(true, Ordering::SeqCst);
    });
}

fn running_out_of_time_is_no_failure(on: &Subject) {
    let tap = Tap::new(on.backend());
    let ctx = tap.context();
    let x = fill(&[64, 64], 0.5);
    for _ in 0..20 {
        let reading = ctx.pass(|p| p.input(&x)?.matmul(p.input(&x)?).read_later()).unwrap();
        if let Err(error) = reading.wait(Duration::ZERO) {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        reading.wait(LONG).unwrap();
    }
    ctx.sync().unwrap();
}

fn a_lost_device_ends_a_wait(on: &Subject) {
    let tap = Tap::new(on.backend());
    let ctx = tap.context();
    tap.fail(Call::Fetch, ErrorKind::Lost);
    let read = ctx.pass(|p| (p.input(host(&[2], &[1.0, 2.0]))? + 1.0).read_later());
    assert!(read.and_then(|reading| reading.wait(LONG)).unwrap_err().is_lost());
    let Some(gpu) = on.fresh_gpu() else { return };
    let ctx = Context::new(std::sync::Arc::clone(&gpu) as std::sync::Arc<dyn wgrad::Backend>).unwrap();
    let x = fill(&[256, 256], 0.5);
    let begun = Instant::now();
    thread::scope(|scope| {
        let work = scope.spawn(|| -> Result<()> {
            loop {
                let reading = ctx.pass(|p| p.input(&x)?.matmul(p.input(&x)?).read_later())?;
                reading.wait(LONG)?;
                ctx.put(&x)?;
            }
        });
        thread::sleep(Duration::from_millis(30));
        gpu.lose();
        assert!(work.join().unwrap().unwrap_err().is_lost());
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for what is gone");
}

fn threads_place_while_another_steps(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let turns = if on.is_slow() { 4 } else { 12 };
    let (rows, columns) = (300, 257);
    let w = wgrad::Kept::new(&ctx, fill(&[columns, 3], 0.5)).unwrap();
    let want = |turn: f32| {
        let x = fill(&[rows, columns], turn);
        ctx.pass(|p| p.input(&x)?.matmul(w.t()).read()).unwrap()
    };
    let wants: Vec<HostTensor> = (0..2 * turns).map(|turn| want(turn as f32)).collect();
    ctx.sync().unwrap();
    let run = || {
        let (send, receive) = channel::<(usize, Placed)>();
        thread::scope(|scope| {
            for thread in 0..2 {
                let (send, ctx) = (send.clone(), &ctx);
                scope.spawn(move || {
                    for turn in 0..turns {
                        let number = thread * turns + turn;
                        let x = fill(&[rows, columns], number as f32);
                        send.send((number, ctx.put(&x).unwrap())).unwrap();
                    }
                });
            }
            drop(send);
            for (number, placed) in receive {
                assert_eq!((placed.shape().dims(), placed.dtype()), (&[rows, columns][..], DType::F32));
                let got = ctx.pass(|p| p.input(placed)?.matmul(w.t()).read()).unwrap();
                assert_eq!(bits(&got), bits(&wants[number]), "{number}");
            }
        });
        ctx.sync().unwrap();
        ctx.stats().live_bytes
    };
    let live = run();
    for _ in 0..3 {
        assert_eq!(run(), live, "what was placed has gone back");
    }
}

fn what_is_placed_takes_an_inputs_place(on: &Subject) {
    let ctx = on.context();
    let (x, zeros) = (host(&[3], &[1.0, 2.0, 3.0]), host(&[3], &[0.0; 3]));
    let placed = ctx.put(&x).unwrap();
    let pass = ctx.begin().unwrap();
    let (a, b) = (pass.input(&zeros).unwrap(), pass.input(&placed).unwrap());
    let y = a * 10.0 + b;
    pass.replace(a, &placed).unwrap();
    pass.replace(b, &zeros).unwrap();
    pass.replace(b, placed.clone()).unwrap();
    let narrow = host(&[2], &[1.0, 2.0]);
    refused(pass.replace(a, ctx.put(&narrow).unwrap()), ErrorKind::Shape);
    assert_eq!(y.to_vec::<f32>().unwrap(), [11.0, 22.0, 33.0]);
    refused(pass.replace(a, &x), ErrorKind::Argument);
    assert_eq!(b.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    // A gradient goes to it as to any input, and it serves several passes.
    let dx = ctx.pass(|p| {
        let x = p.input(&placed)?;
        wgrad::grad(x.square().sum(..), &[x])?[0].to_vec::<f32>()
    });
    assert_eq!(dx.unwrap(), [2.0, 4.0, 6.0]);
    drop(placed);
    drop(pass);
}

fn a_captured_step_takes_what_is_placed(on: &Subject) {
    let ctx = on.context();
    let weights = ctx.put(&host(&[2], &[2.0, 3.0])).unwrap();
    let step = ctx.capture(|p, x: Tensor| Ok(x * p.input(&weights)?));
    for i in 0..4 {
        let y = step.run(host(&[2], &[i as f32, 1.0])).unwrap().read().unwrap();
        assert_eq!(y.to_vec::<f32>(), [2.0 * i as f32, 3.0]);
    }
}

fn what_is_placed_belongs_to_its_context() {
    let (here, there) = (cpu(), oracle());
    let placed = here.put(&host(&[1], &[1.0])).unwrap();
    let text = there.pass(|p| Ok(refused(p.input(&placed).map(|_| ()), ErrorKind::Device))).unwrap();
    assert!(text.contains("it was placed in context"), "{text}");
}

fn several_values_cross_at_once(on: &Subject) {
    let ctx = on.context();
    // One is lent, one is small, one is empty.
    let sizes = [[300, 200], [3, 1], [0, 5]];
    let (readings, want) = ctx
        .pass(|p| {
            let inputs = sizes.iter().map(|dims| p.input(fill(dims, 0.5))).collect::<Result<Vec<_>>>()?;
            let all: Vec<Tensor> = inputs.into_iter().map(|x| x * 3.0 + 1.0).collect();
            let readings = Tensor::read_all_later(&all)?;
            Ok((readings, all.iter().map(Tensor::read).collect::<Result<Vec<_>>>()?))
        })
        .unwrap();
    let clone = readings.clone();
    let other = thread::spawn(move || clone.wait(LONG).unwrap());
    let all = readings.wait(LONG).unwrap();
    assert!(readings.ready());
    assert_eq!(all.len(), 3);
    assert!(all.iter().zip(&want).all(|(a, b)| a.shape() == b.shape() && bits(a) == bits(b)));
    assert_eq!(all, other.join().unwrap());
    refused(Tensor::read_all_later(&[]), ErrorKind::Argument);
}

fn memory_set_aside_is_filled(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let x = fill(&[7, 33], 0.5);
    let own = ctx.stats().live_bytes;
    let reserved = ctx.reserve([7, 33], DType::F32).unwrap();
    let held = ctx.stats().live_bytes;
    let placed = thread::scope(|s| s.spawn(|| reserved.fill(&x)).join().unwrap()).unwrap();
    assert_eq!(ctx.stats().live_bytes, held, "nothing more is allocated");
    assert_eq!(bits(&ctx.pass(|p| (p.input(&placed)? + 0.0).read()).unwrap()), bits(&x));
    let all = ctx.stats().live_bytes;
    drop(placed);
    assert_eq!(all - ctx.stats().live_bytes, held - own, "it goes back");
    refused(ctx.reserve([33, 7], DType::F32).unwrap().fill(&x), ErrorKind::Shape);
    refused(ctx.reserve([7, 33], DType::I32).unwrap().fill(&x), ErrorKind::DType);
}

fn a_kept_value_takes_what_is_placed(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let (one, two) = (fill(&[300, 200], 0.5), fill(&[300, 200], 0.75));
    let kept = wgrad::Kept::new(&ctx, &one).unwrap();
    let own = ctx.stats().live_bytes;
    let placed = kept.reserve().unwrap().fill(&two).unwrap();
    kept.take(&placed).unwrap();
    assert_eq!((bits(&kept.read().unwrap()), kept.version()), (bits(&two), 2));
    assert_eq!(ctx.stats().live_bytes, own, "in its own memory");
    drop(placed);
    // A pass that has begun with the value goes on with it.
    let pass = ctx.begin().unwrap();
    let y = kept.t() * 1.0;
    let placed = kept.reserve().unwrap().fill(&one).unwrap();
    assert_eq!(bits(&y.read().unwrap()), bits(&two));
    drop(pass);
    kept.take(&placed).unwrap();
    assert_eq!(bits(&kept.read().unwrap()), bits(&one));
    refused(kept.take(&ctx.put(&fill(&[2], 0.0)).unwrap()), ErrorKind::Argument);
    refused(kept.take(&cpu().put(&one).unwrap()), ErrorKind::Argument);
}
