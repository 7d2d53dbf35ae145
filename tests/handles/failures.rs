//! Failures belong to the values that met them: they are told, told again, and heal nothing.

use std::time::Duration;

use wgrad::{Context, ContextOptions, ErrorKind, Kept, Param, Result, Scalar, Tensor};

use super::tap::{Call, Tap, host, refused};
use crate::Subject;
use crate::devices::cpu;

crate::suite![
    plain: ;
    device: hole_1_a_second_read_gives_the_same_error, hole_2_a_success_heals_no_other_value,
        hole_11_a_failed_read_is_told, poison_spreads_to_dependents_only, deferred_of_a_failed_step,
        deferred_numbers_keep_apart, a_failure_on_the_device_is_told_once, a_lost_device_stays_lost,
        a_failed_flush_on_budget_poisons_its_own, a_late_read_failure_is_no_loss,
        an_index_out_of_range_is_blamed_on_its_step, a_start_out_of_range_is_never_submitted,
];

fn tapped(on: &Subject) -> (std::sync::Arc<Tap>, Context) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context();
    (tap, ctx)
}

fn hole_1_a_second_read_gives_the_same_error(on: &Subject) {
    for (call, kind) in [
        (Call::Alloc, ErrorKind::OutOfMemory),
        (Call::Prepare, ErrorKind::Kernel),
        (Call::Submit, ErrorKind::OutOfMemory),
        (Call::Wait, ErrorKind::Timeout),
    ] {
        let (tap, ctx) = tapped(on);
        let done = ctx.pass(|p| {
            let x = p.input(host(&[2], &[1.0, 2.0]))?;
            let y = x * 3.0;
            tap.fail(call, kind);
            let first = refused(y.read(), kind);
            assert_eq!(refused(y.read(), kind), first);
            assert_eq!(refused(y.to_vec::<f32>(), kind), first);
            assert!(format!("{y:?}").contains("poisoned"), "{y:?}");
            // Others of the pass are well.
            assert_eq!((x + 1.0).to_vec::<f32>()?, [2.0, 3.0]);
            assert_eq!(refused(y.read(), kind), first);
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{call:?}: {error}"));
    }
}

fn hole_2_a_success_heals_no_other_value(on: &Subject) {
    let (tap, ctx) = tapped(on);
    ctx.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))?;
        let y = x * 3.0;
        tap.fail(Call::Submit, ErrorKind::OutOfMemory);
        let text = refused(y.read(), ErrorKind::OutOfMemory);
        for _ in 0..3 {
            assert_eq!((x * 5.0).to_vec::<f32>()?, [5.0, 10.0]);
            ctx.pass(|q| (q.input(host(&[1], &[1.0]))? + 1.0).item::<f32>())?;
            assert_eq!(refused(y.read(), ErrorKind::OutOfMemory), text);
            assert_eq!(refused((y + x).read(), ErrorKind::OutOfMemory), text);
        }
        Ok(())
    })
    .unwrap();
}

fn hole_11_a_failed_read_is_told(on: &Subject) {
    let (tap, ctx) = tapped(on);
    let kept = Kept::new(&ctx, host(&[2], &[1.0, 2.0])).unwrap();
    for call in [Call::Read, Call::Fetch] {
        tap.fail(call, ErrorKind::OutOfMemory);
        refused(kept.copy_to(&cpu()), ErrorKind::OutOfMemory);
        tap.fail(call, ErrorKind::OutOfMemory);
        refused(kept.read(), ErrorKind::OutOfMemory);
        tap.fail(call, ErrorKind::OutOfMemory);
        refused(ctx.pass(|_| (kept.t() * 2.0).read()), ErrorKind::OutOfMemory);
    }
    // A value that could not be fetched is not lost.
    assert_eq!(kept.read().unwrap().to_vec::<f32>(), [1.0, 2.0]);
    tap.fail(Call::Submit, ErrorKind::OutOfMemory);
    refused(ctx.pass(|_| (kept.t() * 2.0).keep()), ErrorKind::OutOfMemory);
}

fn poison_spreads_to_dependents_only(on: &Subject) {
    let (tap, ctx) = tapped(on);
    let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
    let failed: Result<()> = ctx.pass(|_| {
        let (a, b) = (w.t() * 2.0, w.t() * 3.0);
        tap.fail(Call::Alloc, ErrorKind::OutOfMemory);
        refused(a.read(), ErrorKind::OutOfMemory);
        let c = a + b;
        assert_eq!(b.to_vec::<f32>()?, [3.0, 6.0]);
        refused(c.read(), ErrorKind::OutOfMemory);
        // An update that depends on it fails the whole pass.
        w.set(c);
        Ok(())
    });
    refused(failed, ErrorKind::OutOfMemory);
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [1.0, 2.0]);
    assert_eq!(w.version(), 1);
    // One that does not goes through.
    ctx.pass(|_| {
        let a = w.t() * 2.0;
        tap.fail(Call::Alloc, ErrorKind::OutOfMemory);
        refused(a.read(), ErrorKind::OutOfMemory);
        w.set(w.t() * 10.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [10.0, 20.0]);
}

fn deferred_of_a_failed_step(on: &Subject) {
    let (tap, ctx) = tapped(on);
    let step = |x: f32| ctx.pass(|p| Ok((p.input(host(&[1], &[x]))? * 2.0).deferred::<f32>()));
    step(1.0).unwrap().get().unwrap();
    let mut leaked = None;
    tap.fail(Call::Submit, ErrorKind::OutOfMemory);
    let failed = ctx.pass(|p| {
        let y = (p.input(host(&[1], &[2.0]))? * 2.0).deferred::<f32>();
        refused(y.get(), ErrorKind::Stale);
        assert_eq!(y.try_get()?, None);
        leaked = Some(y);
        Ok(())
    });
    refused(failed, ErrorKind::OutOfMemory);
    let leaked = leaked.unwrap();
    let text = refused(leaked.get(), ErrorKind::OutOfMemory);
    assert_eq!(refused(leaked.try_get(), ErrorKind::OutOfMemory), text);
    // A pass that the caller gave up says so.
    let mut leaked = None;
    let failed: Result<()> = ctx.pass(|p| {
        leaked = Some((p.input(host(&[1], &[2.0]))? * 2.0).deferred::<f32>());
        wgrad::bail!(User, "test", "no")
    });
    failed.unwrap_err();
    refused(leaked.unwrap().get(), ErrorKind::Stale);
}

fn deferred_numbers_keep_apart(on: &Subject) {
    let (tap, ctx) = tapped(on);
    let step = |x: f32| ctx.pass(|p| Ok((p.input(host(&[1], &[x]))? * 2.0).deferred::<f32>())).unwrap();
    let (a, b, c) = (step(1.0), step(2.0), step(3.0));
    // The second submission fails on the device; the others are well.
    tap.fail_after(Call::Wait, 1, ErrorKind::Timeout);
    assert_eq!(a.get().unwrap(), 2.0);
    let text = refused(b.get(), ErrorKind::Timeout);
    assert_eq!(c.get().unwrap(), 6.0);
    assert_eq!(refused(b.get(), ErrorKind::Timeout), text);
    let (d, e) = (step(4.0), step(5.0));
    // A failed crossing leaves numbers where they are.
    tap.fail(Call::Read, ErrorKind::OutOfMemory);
    refused(d.get(), ErrorKind::OutOfMemory);
    assert_eq!((d.get().unwrap(), e.get().unwrap()), (8.0, 10.0));
    assert_eq!(refused(b.get(), ErrorKind::Timeout), text);
}

fn a_failure_on_the_device_is_told_once(on: &Subject) {
    let (tap, ctx) = tapped(on);
    let w = Param::new(&ctx, "w", host(&[1], &[1.0])).unwrap();
    let step = || ctx.pass(|_| w.try_set(w.t() + 1.0));
    tap.fail(Call::Wait, ErrorKind::Timeout);
    // Nobody waits for the first steps; back-pressure meets the failure, a later pass returns it.
    let told = (0..8).filter(|_| step().is_err()).count();
    assert_eq!(told, 1);
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [8.0]);
    ctx.sync().unwrap();
    // Who was told by `sync` is not told again.
    step().unwrap();
    tap.fail(Call::Wait, ErrorKind::Timeout);
    refused(ctx.sync(), ErrorKind::Timeout);
    step().unwrap();
    // Nor is who was told by a read.
    tap.fail(Call::Wait, ErrorKind::Timeout);
    let read = ctx.pass(|_| {
        ctx.sync().ok();
        tap.fail(Call::Wait, ErrorKind::Timeout);
        (w.t() * 2.0).read()
    });
    refused(read, ErrorKind::Timeout);
    step().unwrap();
}

fn a_lost_device_stays_lost(on: &Subject) {
    for call in [Call::Alloc, Call::Prepare, Call::Submit, Call::Wait, Call::Read, Call::Fetch] {
        let (tap, ctx) = tapped(on);
        let other = on.context();
        let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
        let before = ctx.pass(|_| Ok((w.t() * 2.0).deferred::<f32>())).unwrap();
        let pass = ctx.begin().unwrap();
        let x = pass.input(host(&[2], &[1.0, 2.0])).unwrap() * 2.0;
        tap.fail(call, ErrorKind::Lost);
        let mut y = x;
        // The plan of the first read may be cached; a new one meets every call.
        let lost = (0..3).find_map(|_| {
            y = y + 1.0;
            y.read().err()
        });
        assert!(lost.is_some_and(|error| error.is_lost()), "{call:?}");
        refused(y.read(), ErrorKind::Lost);
        refused(x.read(), ErrorKind::Lost);
        w.set(w.t() * 2.0);
        refused(pass.end(), ErrorKind::Lost);
        refused(ctx.begin(), ErrorKind::Lost);
        refused(ctx.pass(|_| Ok(())), ErrorKind::Lost);
        refused(w.read(), ErrorKind::Lost);
        refused(before.read(), ErrorKind::Lost);
        refused(Kept::new(&ctx, host(&[1], &[1.0])), ErrorKind::Lost);
        refused(ctx.sync(), ErrorKind::Lost);
        // Others go on.
        assert_eq!(other.pass(|p| (p.input(host(&[1], &[1.0]))? + 1.0).item::<f32>()).unwrap(), 2.0);
    }
}

fn a_failed_flush_on_budget_poisons_its_own(on: &Subject) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context_with(ContextOptions::default().node_budget(4));
    ctx.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))?;
        let bad = x * 3.0;
        tap.fail(Call::Submit, ErrorKind::OutOfMemory);
        let text = refused(bad.read(), ErrorKind::OutOfMemory);
        // Budgets flush from here on; values that do not depend on the poisoned one are computed.
        let mut good = x;
        for _ in 0..20 {
            good = good + 1.0;
            let _dependent = bad + good;
        }
        assert_eq!(good.to_vec::<f32>()?, [21.0, 22.0]);
        assert_eq!(refused(bad.read(), ErrorKind::OutOfMemory), text);
        Ok(())
    })
    .unwrap();
}

fn a_late_read_failure_is_no_loss(on: &Subject) {
    let (tap, ctx) = tapped(on);
    ctx.pass(|p| {
        let y = p.input(host(&[2], &[1.0, 2.0]))? * 2.0;
        tap.fail(Call::Fetch, ErrorKind::Timeout);
        refused(y.read(), ErrorKind::Timeout);
        // The value was computed; only its way to the host failed.
        assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
        Ok(())
    })
    .unwrap();
}

fn an_index_out_of_range_is_blamed_on_its_step(on: &Subject) {
    let ctx = Context::with(on.fresh(), ContextOptions::default().deadline(Duration::from_secs(30))).unwrap();
    let step = |index: i32| {
        ctx.pass(|p| {
            let table = p.input(host(&[3], &[10.0, 20.0, 30.0]))?;
            let at = p.input(wgrad::HostTensor::new([1], &[index])?)?;
            Ok(table.gather(0, at).deferred::<f32>())
        })
    };
    let (good, bad, fine) = (step(1).unwrap(), step(7).unwrap(), step(2).unwrap());
    assert_eq!(good.get().unwrap(), 20.0);
    let first = bad.get().unwrap_err();
    assert!(first.to_string().contains('7') && first.to_string().contains('3'), "{first}");
    assert_eq!(bad.get().unwrap_err().to_string(), first.to_string());
    assert_eq!(fine.get().unwrap(), 30.0);
}

/// Kernels rely on it: they index with the start unguarded.
fn a_start_out_of_range_is_never_submitted(on: &Subject) {
    let ctx = tapped(on).1;
    let start = Scalar::new(0.0);
    let row = Kept::new(&ctx, host(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
    let step = ctx.capture(|_, x: Tensor| {
        row.set(row.t().slice_assign_at(0, &start, x));
        Ok(row.t().slice_at(0, &start, 2))
    });
    let run = |at: f64| {
        start.set(at);
        step.run(host(&[2], &[7.0, 8.0])).and_then(|y| y.read())
    };
    let all = [f64::NAN, 4.0, -1.0, f64::INFINITY];
    for round in 0..3 {
        for at in all {
            refused(run(at), ErrorKind::Argument);
        }
        assert_eq!(run(f64::from(round)).unwrap().to_vec::<f32>(), [7.0, 8.0]);
    }
    assert_eq!(row.read().unwrap().to_vec::<f32>(), [7.0, 7.0, 7.0, 8.0, 5.0]);
}
