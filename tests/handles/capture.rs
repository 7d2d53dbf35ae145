//! Captured steps: a replay is what recording would have done, or it is not a replay.

use std::cell::Cell;

use wgrad::nn::{AdamW, AdamWConfig, Optimizer};
use wgrad::{ErrorKind, HostTensor, Kept, Param, Tensor};

use super::tap::{BATCH, Net, fill, host, refused};
use crate::Subject;

crate::suite![
    plain: ;
    device: replay_equals_a_plain_run, a_float_that_differs_is_refused, data_that_differ_are_refused,
        a_read_inside_is_refused, other_shapes_are_recorded_anew, owned_values_that_go_are_recorded_anew,
        a_shared_version_is_not_overwritten, a_queued_version_is_seen, values_of_passes_around_are_seen,
        a_value_dropped_inside_confuses_nothing, more_operations_than_the_budget,
];

fn replay_equals_a_plain_run(on: &Subject) {
    let run = |captured: bool| {
        let ctx = on.context();
        let net = Net::new(&ctx);
        let opt = AdamW::new(net.params().into_iter().cloned().collect(), AdamWConfig::default()).unwrap();
        let (lr, opt) = (opt.lr().clone(), std::sync::Mutex::new(opt));
        let recorded = Cell::new(0);
        let record = |_: &wgrad::Pass, (x, y): (Tensor, Tensor)| {
            recorded.set(recorded.get() + 1);
            let loss = net.forward(x.dropout("x", 0.3))[2].mse(y);
            opt.lock().unwrap().step(&loss.backward()?)?;
            Ok((loss,))
        };
        let step = ctx.capture(record);
        let mut losses = Vec::new();
        for i in 0..6 {
            lr.set(0.1 / (1.0 + f64::from(i)));
            let (x, y) = (fill(&[BATCH, 6], i as f32), fill(&[BATCH, 4], i as f32 + 0.5));
            let (loss,) = if captured {
                step.run((x, y)).unwrap()
            } else {
                ctx.pass(|p| Ok((record(p, (p.input(x)?, p.input(y)?))?.0.deferred(),))).unwrap()
            };
            losses.push(loss.get().unwrap().to_bits());
        }
        assert_eq!(recorded.get(), if captured { 2 } else { 6 });
        let opt = opt.into_inner().unwrap();
        (losses, net.bits(), opt.steps(), ctx.stats().steps)
    };
    assert_eq!(run(true), run(false));
}

fn a_float_that_differs_is_refused(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[1.0])).unwrap();
    let rate = Cell::new(1.0);
    let step = ctx.capture(|_, x: Tensor| {
        w.set(w.t() + x * rate.get());
        Ok(w.t())
    });
    let line = line!() - 3;
    let one = || host(&[1], &[1.0]);
    step.run(one()).unwrap();
    rate.set(0.5);
    let text = refused(step.run(one()), ErrorKind::Argument);
    assert!(text.contains("Scalar") && text.contains(&format!("capture.rs:{line}:")), "{text}");
    // The refused run has changed nothing.
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [2.0]);
    rate.set(1.0);
    step.run(one()).unwrap();
    assert_eq!(step.run(one()).unwrap().get().unwrap(), 4.0);
}

fn data_that_differ_are_refused(on: &Subject) {
    let ctx = on.context();
    let data = Cell::new(1.0f32);
    let step = ctx.capture(|p, x: Tensor| Ok(x + p.input(host(&[1], &[data.get()]))?));
    step.run(host(&[1], &[1.0])).unwrap();
    data.set(2.0);
    let text = refused(step.run(host(&[1], &[1.0])), ErrorKind::Argument);
    assert!(text.contains("inputs of the step"), "{text}");
}

fn a_read_inside_is_refused(on: &Subject) {
    let ctx = on.context();
    let step = ctx.capture(|_, x: Tensor| {
        let y = x * 2.0;
        y.read()?;
        Ok(y)
    });
    let line = line!() - 3;
    let text = refused(step.run(host(&[1], &[1.0])), ErrorKind::Argument);
    assert!(text.contains(&format!("capture.rs:{line}:")), "{text}");
}

fn other_shapes_are_recorded_anew(on: &Subject) {
    let ctx = on.context();
    let recorded = Cell::new(0);
    let step = ctx.capture(|_, x: Tensor| {
        recorded.set(recorded.get() + 1);
        Ok((x * 2.0).sum_all())
    });
    for _ in 0..4 {
        assert_eq!(step.run(host(&[2], &[1.0, 2.0])).unwrap().get().unwrap(), 6.0);
        assert_eq!(step.run(host(&[3], &[1.0, 2.0, 3.0])).unwrap().get().unwrap(), 12.0);
        assert_eq!(step.run(HostTensor::new([2], &[1i32, 2]).unwrap()).unwrap().get().unwrap(), 6.0);
    }
    assert_eq!(recorded.get(), 6);
}

fn owned_values_that_go_are_recorded_anew(on: &Subject) {
    let ctx = on.context();
    let make = |x: f32| Param::new(&ctx, "w", host(&[1], &[x])).unwrap();
    let w = std::cell::RefCell::new(make(3.0));
    let step = ctx.capture(|_, x: Tensor| Ok(x * w.borrow().t()));
    for _ in 0..3 {
        assert_eq!(step.run(host(&[1], &[2.0])).unwrap().get().unwrap(), 6.0);
    }
    w.replace(make(5.0));
    for _ in 0..3 {
        assert_eq!(step.run(host(&[1], &[2.0])).unwrap().get().unwrap(), 10.0);
    }
}

fn a_shared_version_is_not_overwritten(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[1.0])).unwrap();
    let last = Kept::zeros(&ctx, [1]).unwrap();
    let step = ctx.capture(|_, x: Tensor| {
        w.set(w.t() + x);
        Ok(w.t())
    });
    let one = || host(&[1], &[1.0]);
    let outs: Vec<_> = (0..5).map(|_| step.run(one()).unwrap()).collect();
    // Numbers that were not fetched yet are of their own run.
    let numbers: Vec<f32> = outs.iter().map(|d| d.get().unwrap()).collect();
    assert_eq!(numbers, [2.0, 3.0, 4.0, 5.0, 6.0]);
    ctx.pass(|_| last.try_set(w.t())).unwrap();
    step.run(one()).unwrap();
    assert_eq!(last.read().unwrap().to_vec::<f32>(), [6.0]);
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [7.0]);
}

fn a_queued_version_is_seen(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[1.0])).unwrap();
    let step = ctx.capture(|_, x: Tensor| Ok(x * w.t()));
    let run = || step.run(host(&[1], &[2.0])).unwrap().get().unwrap();
    (0..3).for_each(|_| assert_eq!(run(), 2.0));
    ctx.pass(|_| {
        w.set(w.t() * 10.0);
        assert_eq!(run(), 20.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(run(), 20.0);
}

fn values_of_passes_around_are_seen(on: &Subject) {
    let ctx = on.context();
    let around: Cell<Option<Tensor>> = Cell::new(None);
    let step = ctx.capture(|_, x: Tensor| Ok(x + around.get().unwrap()));
    for i in 0..4 {
        ctx.pass(|p| {
            around.set(Some(p.input(host(&[1], &[i as f32]))? * 10.0));
            for _ in 0..3 {
                assert_eq!(step.run(host(&[1], &[1.0]))?.get()?, 1.0 + 10.0 * i as f32);
            }
            Ok(())
        })
        .unwrap();
    }
}

fn a_value_dropped_inside_confuses_nothing(on: &Subject) {
    let ctx = on.context();
    let (a, b) = (Kept::zeros(&ctx, [1]).unwrap(), Kept::zeros(&ctx, [1]).unwrap());
    let step = ctx.capture(|_, x: Tensor| {
        a.set(a.t() + x);
        drop((x * 100.0).keep()?);
        b.set(b.t() - x);
        Ok(a.t() + b.t())
    });
    for _ in 0..4 {
        assert_eq!(step.run(host(&[1], &[1.0])).unwrap().get().unwrap(), 0.0);
    }
    assert_eq!(a.read().unwrap().to_vec::<f32>(), [4.0]);
    assert_eq!(b.read().unwrap().to_vec::<f32>(), [-4.0]);
}

fn more_operations_than_the_budget(on: &Subject) {
    let ctx = on.context_with(wgrad::ContextOptions::default().node_budget(5));
    let step = ctx.capture(|_, x: Tensor| {
        let mut y = x;
        for _ in 0..30 {
            y = y + 1.0;
        }
        Ok(y)
    });
    for _ in 0..4 {
        assert_eq!(step.run(host(&[1], &[1.0])).unwrap().get().unwrap(), 31.0);
    }
}
