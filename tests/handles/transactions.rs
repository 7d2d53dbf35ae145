//! A pass is a transaction on owned values: all of its updates, or none.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wgrad::nn::{AdamW, AdamWConfig, Optimizer};
use wgrad::{Context, ContextOptions, Counter, ErrorKind, Kept, Param, Result};

use super::tap::{BATCH, Call, Net, Tap, fill, host, refused};
use crate::Subject;

crate::suite![
    plain: ;
    device: failed_passes_leave_no_trace, every_failing_call_leaves_no_trace, budget_names_its_numbers,
        bug_b13_a_trained_model_is_never_lost, bug_b14_a_copy_computes_first,
        hole_12_a_failed_upload_is_an_error, keep_lives_from_the_end_of_its_pass,
        counters_move_with_commits, random_numbers_follow_commits, copy_to_moves_between_contexts,
];

/// Trains with dropout; `disturb` runs before each pass and may make passes that fail.
struct Run {
    net: Net,
    opt: AdamW,
    ctx: Context,
}

impl Run {
    fn new(ctx: &Context) -> Run {
        let net = Net::new(ctx);
        let opt = AdamW::new(net.params().into_iter().cloned().collect(), AdamWConfig::default()).unwrap();
        Run { net, opt, ctx: ctx.clone() }
    }

    fn record(&mut self, p: &wgrad::Pass, turn: f32) -> Result<()> {
        let x = p.input(fill(&[BATCH, 6], turn))?.dropout("x", 0.4);
        let y = self.net.forward(x)[2] + p.randn("noise", [BATCH, 4]) * 0.1;
        self.opt.step(&y.square().mean_all().backward()?)?;
        Ok(())
    }

    fn step(&mut self, turn: f32) -> Result<()> {
        let ctx = self.ctx.clone();
        ctx.pass(|p| self.record(p, turn))
    }

    fn end(&self) -> (Vec<Vec<u64>>, u64, u64) {
        (self.net.bits(), self.opt.steps(), self.ctx.stats().steps)
    }
}

fn failed_passes_leave_no_trace(on: &Subject) {
    let mut plain = Run::new(&on.context());
    (0..4).for_each(|i| plain.step(i as f32).unwrap());

    let tap = Tap::new(on.fresh());
    let mut run = Run::new(&tap.context());
    run.step(0.0).unwrap();
    run.step(1.0).unwrap();
    let ctx = run.ctx.clone();
    // Pass 3 finds no memory, pass 4 returns an error, pass 5 panics.
    tap.fail(Call::Submit, ErrorKind::OutOfMemory);
    refused(run.step(9.0), ErrorKind::OutOfMemory);
    let failed: Result<()> = ctx.pass(|p| {
        run.record(p, 8.0)?;
        wgrad::bail!(User, "test", "the closure's own error")
    });
    refused(failed, ErrorKind::User);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        ctx.pass::<()>(|p| {
            run.record(p, 7.0)?;
            run.net.w1.t().read()?;
            panic!("in the closure")
        })
    }));
    panicked.unwrap_err();
    run.step(2.0).unwrap();
    run.step(3.0).unwrap();
    assert_eq!(run.end(), plain.end());
}

fn every_failing_call_leaves_no_trace(on: &Subject) {
    let mut plain = Run::new(&on.context());
    (0..3).for_each(|i| plain.step(i as f32).unwrap());
    for (call, kind) in [
        (Call::Alloc, ErrorKind::OutOfMemory),
        (Call::Prepare, ErrorKind::OutOfMemory),
        (Call::Prepare, ErrorKind::Kernel),
        (Call::Prepare, ErrorKind::Limit),
        (Call::Submit, ErrorKind::OutOfMemory),
    ] {
        let tap = Tap::new(on.fresh());
        let mut run = Run::new(&tap.context());
        if call == Call::Alloc {
            // The first pass allocates outputs, later ones update in place.
            tap.fail(call, kind);
        } else {
            run.step(0.0).unwrap();
            tap.fail(call, kind);
        }
        let first = if call == Call::Alloc { 0 } else { 1 };
        let mut failures = 0;
        for i in first..3 {
            while let Err(error) = run.step(i as f32) {
                assert_eq!(error.kind(), kind, "{call:?}: {error}");
                failures += 1;
                assert!(failures < 3);
            }
        }
        // A fault that nothing met would prove nothing; a plan that is cached is not prepared again.
        assert!(failures == 1 || call == Call::Prepare, "{call:?}");
        assert_eq!(run.end(), plain.end(), "{call:?}");
    }
}

fn budget_names_its_numbers(on: &Subject) {
    let backend = on.fresh();
    let ctx = Context::with(backend, ContextOptions::default().budget_bytes(40_000)).unwrap();
    let w = Param::new(&ctx, "w", fill(&[100], 0.1)).unwrap();
    let want = w.read().unwrap();
    let text = refused(Kept::zeros(&ctx, [100_000]), ErrorKind::OutOfMemory);
    assert!(text.contains("40000") && text.contains("bytes are used"), "{text}");
    for round in 0..3 {
        // One needs a large output, the other a large workspace behind a small output.
        let large = ctx.pass(|p| {
            w.set(w.t() * 2.0);
            let x = w.t().reshape([100, 1]).expand([100, 1000]) * p.rand("x", [100, 1000]);
            if round == 0 { (x + 1.0).keep() } else { x.matmul(p.rand("y", [1000, 1])).keep() }
        });
        let text = refused(large, ErrorKind::OutOfMemory);
        assert!(text.contains("40000"), "{text}");
        // Nothing is lost, and what fits still runs.
        assert_eq!(w.read().unwrap(), want);
        assert!(ctx.stats().live_bytes <= 40_000);
    }
    ctx.pass(|_| w.try_set(w.t() + 1.0)).unwrap();
    assert_eq!(w.version(), 2);
}

fn bug_b13_a_trained_model_is_never_lost(on: &Subject) {
    let mut run = Run::new(&on.context());
    (0..3).for_each(|i| run.step(i as f32).unwrap());
    let want = run.net.bits();
    // Every other owner of the context goes, and another device comes.
    let Run { net, opt, ctx } = run;
    drop((opt, ctx));
    let other = crate::devices::cpu();
    other.pass(|p| (p.input(host(&[1], &[1.0]))? + 1.0).item::<f32>()).unwrap();
    assert_eq!(net.bits(), want);
}

fn bug_b14_a_copy_computes_first(on: &Subject) {
    let ctx = on.context();
    let other = crate::devices::oracle();
    let state = Kept::new(&ctx, host(&[2], &[1.0, 2.0])).unwrap();
    let copy = ctx
        .pass(|_| {
            state.set(state.t() * 10.0);
            // The version is queued: copying it computes it.
            assert_eq!(state.read()?.to_vec::<f32>(), [10.0, 20.0]);
            state.set(state.t() + 1.0);
            state.copy_to(&other)
        })
        .unwrap();
    assert_eq!(copy.read().unwrap().to_vec::<f32>(), [11.0, 21.0]);
    assert_eq!(state.read().unwrap().to_vec::<f32>(), [11.0, 21.0]);
}

fn hole_12_a_failed_upload_is_an_error(on: &Subject) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context();
    tap.fail(Call::Write, ErrorKind::OutOfMemory);
    let live = ctx.stats().live_bytes;
    refused(Kept::new(&ctx, host(&[2], &[1.0, 2.0])), ErrorKind::OutOfMemory);
    assert_eq!(ctx.stats().live_bytes, live, "the buffer went back");
    tap.fail(Call::Submit, ErrorKind::OutOfMemory);
    let failed = ctx.pass(|p| (p.input(host(&[2], &[1.0, 2.0]))? * 2.0).to_vec::<f32>());
    refused(failed, ErrorKind::OutOfMemory);
    assert_eq!(ctx.pass(|p| (p.input(host(&[1], &[1.0]))? * 2.0).to_vec::<f32>()).unwrap(), [2.0]);
}

fn keep_lives_from_the_end_of_its_pass(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
    let kept = ctx
        .pass(|_| {
            let kept = (w.t() * 2.0).keep()?;
            assert_eq!((kept.t() + 1.0).to_vec::<f32>()?, [3.0, 5.0]);
            Ok(kept)
        })
        .unwrap();
    assert_eq!(kept.read().unwrap().to_vec::<f32>(), [2.0, 4.0]);
    let pass = ctx.begin().unwrap();
    let lost = (w.t() * 3.0).keep().unwrap();
    drop(pass);
    refused(lost.read(), ErrorKind::Stale);
    ctx.pass(|_| {
        refused(lost.t().try_relu(), ErrorKind::Stale);
        Ok(())
    })
    .unwrap();
    // It can still be given a value.
    ctx.pass(|_| lost.try_set(w.t() * 4.0)).unwrap();
    assert_eq!(lost.read().unwrap().to_vec::<f32>(), [4.0, 8.0]);
}

fn counters_move_with_commits(on: &Subject) {
    let ctx = on.context();
    let counter = Counter::new(&ctx);
    let twice = counter.scalar(|n| 2.0 * n as f64);
    refused(counter.bump(), ErrorKind::Stale);
    let run = |fail: bool| {
        ctx.pass(|p| {
            let x = p.input(host(&[1], &[1.0]))?;
            let before = x * &twice;
            assert_eq!(counter.bump()?, counter.value() + 1);
            let after = x * &twice;
            let numbers = (before.item::<f32>()?, after.item::<f32>()?);
            if fail {
                wgrad::bail!(User, "test", "no");
            }
            Ok(numbers)
        })
    };
    assert_eq!(run(false).unwrap(), (0.0, 2.0));
    run(true).unwrap_err();
    assert_eq!(counter.value(), 1);
    assert_eq!(run(false).unwrap(), (2.0, 4.0));
    assert_eq!(counter.value(), 2);
}

fn random_numbers_follow_commits(on: &Subject) {
    let ctx = on.context();
    let draw = |p: &wgrad::Pass| p.try_rand("x", [4])?.to_vec::<f32>();
    let pass = ctx.begin().unwrap();
    let first = draw(&pass).unwrap();
    assert_ne!(draw(&pass).unwrap(), first, "the second draw of a pass is another");
    drop(pass);
    // A discarded pass has not drawn; a committed one has.
    assert_eq!(ctx.pass(draw).unwrap(), first);
    let second = ctx.pass(draw).unwrap();
    assert_ne!(second, first);
    // Passes that are open together do not share their numbers, and reading early changes none.
    let numbers = |early: bool| {
        let ctx = on.context();
        let (a, b) = (ctx.begin().unwrap(), ctx.begin().unwrap());
        let (x, y) = (a.rand("x", [4]), b.rand("x", [4]));
        if early {
            x.read().unwrap();
        }
        let y = y.keep().unwrap();
        b.end().unwrap();
        let again = a.within(|| x.rand_like("x"));
        (x.to_vec::<f32>().unwrap(), again.to_vec::<f32>().unwrap(), y.read().unwrap().to_vec::<f32>())
    };
    let (x, again, y) = numbers(false);
    assert_eq!((x.clone(), again.clone(), y.clone()), numbers(true));
    assert!(x != y && x != again);
}

fn copy_to_moves_between_contexts(on: &Subject) {
    let (a, b) = (on.context(), crate::devices::cpu());
    let kept = Kept::named(&a, "state", fill(&[3, 2], 0.3)).unwrap();
    let copy = kept.copy_to(&b).unwrap();
    assert_eq!((copy.name(), copy.shape(), copy.dtype()), ("state", kept.shape(), kept.dtype()));
    b.pass(|_| copy.try_set(copy.t() * 2.0)).unwrap();
    assert_eq!(kept.read().unwrap(), fill(&[3, 2], 0.3));
    assert_eq!(*copy.context(), b);
}
