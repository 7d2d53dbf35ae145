//! Pools and their handles: which are live, which are stale, and what an error says.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use wgrad::{Backend, Context, ErrorKind, HostTensor, Kept, Param, Tensor, grad, vjp};

use super::tap::{Call, Net, Tap, bits, fill, host, refused};
use crate::Subject;
use crate::devices::cpu;

crate::suite![
    plain: bug_b9_a_handle_outlives_its_context_safely, bug_b27_a_device_is_never_a_mode,
        passes_end_in_any_order, within_does_not_turn_nesting_round, handles_are_small_and_copy,
        mistakes_panic_at_the_callers_line, no_pass_open_is_an_error, generations_of_pools_count_up,
        a_dropped_guard_discards, an_early_return_discards;
    device: stale_handle_of_a_pass, stale_handle_of_an_owned_value, stale_handle_of_a_version,
        handle_of_another_context, hole_3_pool_reset_with_queued_work, hole_10_backward_of_an_ended_pass,
        pass_inside_a_pass, two_threads_on_one_context, bug_b10_owned_values_have_a_generation_of_their_own,
        bug_b32_values_before_a_pass_stay, bug_b33_dropped_values_are_freed, bug_b34_a_pass_begins_empty,
        debug_print_shows_the_state,
];

fn ended(ctx: &Context) -> Tensor {
    ctx.pass(|p| Ok(p.input(host(&[2], &[1.0, 2.0]))? * 2.0)).unwrap()
}

fn stale_handle_of_a_pass(on: &Subject) {
    let ctx = on.context();
    let param = Param::new(&ctx, "w", host(&[2], &[1.0, 1.0])).unwrap();
    let old = ended(&ctx);
    ctx.pass(|p| {
        // The pool is in use again, with a value under the same key.
        let x = p.input(host(&[2], &[7.0, 8.0]))? * 3.0;
        let text = refused(x.try_add(old), ErrorKind::Stale);
        assert!(
            text.contains("pass pool 0, generation") && text.contains("the pool is at generation"),
            "{text}"
        );
        assert!(text.contains("passes.rs"), "the line that made the handle: {text}");
        refused(old.try_relu(), ErrorKind::Stale);
        refused(old.to_vec::<f32>(), ErrorKind::Stale);
        refused(old.read(), ErrorKind::Stale);
        refused(old.try_out(), ErrorKind::Stale);
        refused(old.try_detach(), ErrorKind::Stale);
        refused(old.keep(), ErrorKind::Stale);
        refused(param.try_set(old), ErrorKind::Stale);
        refused(vjp(&[x], &[old], &[x]), ErrorKind::Stale);
        refused(grad(x.sum_all(), &[old]), ErrorKind::Stale);
        refused(Tensor::try_cat(&[x, old], 0), ErrorKind::Stale);
        assert!(format!("{old:?}").contains("stale"));
        assert_eq!(x.to_vec::<f32>()?, [21.0, 24.0]);
        Ok(())
    })
    .unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| old.shape())).unwrap_err();
    assert!(caught.downcast_ref::<String>().unwrap().contains("generation"));
}

fn stale_handle_of_an_owned_value(on: &Subject) {
    let ctx = on.context();
    let kept = Kept::new(&ctx, host(&[2], &[1.0, 2.0])).unwrap();
    let handle = kept.t();
    drop(kept);
    // The slot serves another.
    let other = Kept::new(&ctx, host(&[2], &[5.0, 6.0])).unwrap();
    let text = refused(handle.read(), ErrorKind::Stale);
    assert!(text.contains("dropped") && text.contains("persistent"), "{text}");
    ctx.pass(|_| {
        refused(handle.try_relu(), ErrorKind::Stale);
        Ok(())
    })
    .unwrap();
    assert_eq!(other.read().unwrap().to_vec::<f32>(), [5.0, 6.0]);
}

fn stale_handle_of_a_version(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "fc1.w", host(&[2], &[1.0, 2.0])).unwrap();
    let old = w.t();
    ctx.pass(|_| {
        w.set(w.t() * 2.0);
        let text = refused(old.try_relu(), ErrorKind::Stale);
        assert!(text.contains("fc1.w: version 1, now 2") && text.contains("replaced"), "{text}");
        Ok(())
    })
    .unwrap();
    let text = refused(old.read(), ErrorKind::Stale);
    assert!(text.contains("fc1.w: version 1, now 2"), "{text}");
    assert_eq!(w.t().to_vec::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(w.version(), 2);
}

fn handle_of_another_context(on: &Subject) {
    let (a, b) = (on.context(), on.context());
    let w = Param::new(&b, "w", host(&[2], &[1.0, 2.0])).unwrap();
    a.pass(|p| {
        let x = p.input(host(&[2], &[3.0, 4.0]))?;
        let text = refused(x.try_mul(w.t()), ErrorKind::Device);
        assert_eq!(text.matches("context ").count(), 2, "both are named: {text}");
        refused(w.try_set(x), ErrorKind::Device);
        refused(vjp(&[x], &[x], &[w.t()]), ErrorKind::Device);
        assert_eq!((x * 2.0).to_vec::<f32>()?, [6.0, 8.0]);
        Ok(())
    })
    .unwrap();
}

fn hole_3_pool_reset_with_queued_work(on: &Subject) {
    let ctx = on.context();
    let first = ctx.begin().unwrap();
    let x = first.input(host(&[2], &[1.0, 2.0])).unwrap() + 1.0;
    let second = ctx.begin().unwrap();
    let y = second.input(host(&[2], &[10.0, 20.0])).unwrap() + 1.0;
    // Owned values come and go, another pool ends with its work queued: this pool's work stays queued.
    drop(Kept::new(&ctx, host(&[2], &[0.0, 0.0])).unwrap());
    drop(second);
    refused(y.read(), ErrorKind::Stale);
    assert!(format!("{x:?}").contains("queued"));
    assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 3.0]);
    let z = x * 2.0;
    first.end().unwrap();
    refused(z.read(), ErrorKind::Stale);
}

fn hole_10_backward_of_an_ended_pass(on: &Subject) {
    let ctx = on.context();
    let net = Net::new(&ctx);
    let loss = ctx.pass(|p| net.loss(p, 0.7)).unwrap();
    refused(loss.backward(), ErrorKind::Stale);
    ctx.pass(|_| {
        refused(loss.backward(), ErrorKind::Stale);
        Ok(())
    })
    .unwrap();
    // A loss that no parameter reaches is an error too, not an empty answer.
    ctx.pass(|p| {
        let loss = p.input(host(&[2], &[1.0, 2.0]))?.sum_all();
        refused(loss.backward(), ErrorKind::Gradient);
        refused(net.loss(p, 0.7)?.detach().backward(), ErrorKind::Gradient);
        Ok(())
    })
    .unwrap();
}

fn pass_inside_a_pass(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[3.0, 5.0])).unwrap();
    let outer = ctx.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))? * w.t();
        let inner = ctx.pass(|q| {
            let y = x + q.input(host(&[2], &[10.0, 20.0]))?;
            assert_eq!(y.to_vec::<f32>()?, [13.0, 30.0]);
            assert_eq!((w.t() * 2.0).to_vec::<f32>()?, [6.0, 10.0]);
            Ok(y)
        })?;
        refused(inner.read(), ErrorKind::Stale);
        refused(x.try_add(inner), ErrorKind::Stale);
        // An inner pass that fails takes nothing along.
        let failed = ctx.pass(|_| x.try_reshape([3]));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Shape);
        let z = x * 2.0;
        assert_eq!(z.to_vec::<f32>()?, [6.0, 20.0]);
        let grads = z.sum_all().backward()?;
        assert_eq!(grads.get(&w).unwrap().to_vec::<f32>()?, [2.0, 4.0]);
        w.set(w.t() - grads.get(&w).unwrap());
        // The queued version is what an inner pass sees.
        let seen = ctx.pass(|_| (w.t() * 1.0).to_vec::<f32>())?;
        assert_eq!(seen, [1.0, 1.0]);
        Ok(z.deferred::<f32>())
    });
    assert_eq!(outer.unwrap().read().unwrap().to_vec::<f32>(), [6.0, 20.0]);
    assert_eq!(w.t().to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

fn passes_end_in_any_order() {
    let ctx = cpu();
    let first = ctx.begin().unwrap();
    let second = ctx.begin().unwrap();
    let x = first.input(host(&[2], &[1.0, 2.0])).unwrap() * 2.0;
    let y = x + second.input(host(&[2], &[1.0, 1.0])).unwrap();
    first.end().unwrap();
    // The pool of the ended pass serves a third one, with other values under the same keys.
    let third = ctx.begin().unwrap();
    let other = third.input(host(&[2], &[70.0, 80.0])).unwrap() * 9.0;
    let again = other + second.input(host(&[2], &[1.0, 1.0])).unwrap();
    let text = refused(y.read(), ErrorKind::Stale);
    assert!(text.contains("pass around"), "{text}");
    assert_eq!(again.to_vec::<f32>().unwrap(), [631.0, 721.0]);
    drop(third);
    second.end().unwrap();
}

fn within_does_not_turn_nesting_round() {
    let ctx = cpu();
    let first = ctx.begin().unwrap();
    let second = ctx.begin().unwrap();
    let x = first.input(host(&[2], &[1.0, 2.0])).unwrap() * 2.0;
    let y = second.input(host(&[2], &[3.0, 4.0])).unwrap() * 2.0;
    let w = Kept::new(&ctx, host(&[2], &[1.0, 1.0])).unwrap();
    let (mixed, own) = first.within(|| (x + y, w.t() + 1.0));
    assert!(format!("{mixed:?}").contains("pass 1"), "{mixed:?}");
    assert!(format!("{own:?}").contains("pass 0"), "{own:?}");
    assert_eq!((mixed + x).to_vec::<f32>().unwrap(), [10.0, 16.0]);
    assert_eq!(own.to_vec::<f32>().unwrap(), [2.0, 2.0]);
    first.end().unwrap();
    second.end().unwrap();
}

fn two_threads_on_one_context(on: &Subject) {
    let ctx = on.context();
    let shared = Kept::new(&ctx, host(&[3], &[1.0, 2.0, 3.0])).unwrap();
    let run = |seed: f32| {
        let w = Param::new(&ctx, "w", host(&[3], &[seed; 3])).unwrap();
        for _ in 0..20 {
            let sum = ctx
                .pass(|p| {
                    let x = p.input(host(&[3], &[seed, seed + 1.0, seed + 2.0]))? * shared.t();
                    let loss = (x * w.t()).sum_all();
                    w.set(w.t() - loss.backward()?.get(&w).unwrap() * 0.001);
                    x.sum_all().item::<f32>()
                })
                .unwrap();
            assert_eq!(sum, 6.0 * seed + 8.0);
        }
        w.read().unwrap().to_vec::<f32>()
    };
    let alone = [run(1.0), run(2.0)];
    let together = std::thread::scope(|s| {
        let handles = [s.spawn(|| run(1.0)), s.spawn(|| run(2.0))];
        handles.map(|h| h.join().unwrap())
    });
    assert_eq!(alone, together);
    // A pass of one thread is not the innermost pass of another.
    let pass = ctx.begin().unwrap();
    let x = pass.input(host(&[3], &[1.0, 2.0, 3.0])).unwrap();
    let stray = std::thread::scope(|s| s.spawn(|| shared.t().try_relu()).join().unwrap());
    refused(stray, ErrorKind::Stale);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

fn bug_b9_a_handle_outlives_its_context_safely() {
    let (old, kept, deferred, param) = {
        let ctx = cpu();
        let kept = Kept::new(&ctx, host(&[1], &[4.0])).unwrap();
        let param = Param::new(&ctx, "w", host(&[1], &[5.0])).unwrap();
        let deferred = ctx.pass(|_| Ok((kept.t() * 2.0).deferred::<f32>())).unwrap();
        (ended(&ctx), kept, deferred, param)
    };
    // Owned values keep their context open.
    assert_eq!(kept.read().unwrap().to_vec::<f32>(), [4.0]);
    assert_eq!(kept.context().pass(|_| (kept.t() + param.t()).item::<f32>()).unwrap(), 9.0);
    let handle = kept.t();
    drop((kept, param));
    // Now it has ended, and its cell may serve another.
    let next = cpu();
    let other = Kept::new(&next, host(&[1], &[9.0])).unwrap();
    refused(old.read(), ErrorKind::Stale);
    refused(handle.read(), ErrorKind::Stale);
    refused(deferred.get(), ErrorKind::Stale);
    refused(next.pass(|_| old.try_relu()), ErrorKind::Stale);
    assert!(format!("{handle:?}").contains("stale"));
    assert_eq!(other.read().unwrap().to_vec::<f32>(), [9.0]);
}

fn bug_b10_owned_values_have_a_generation_of_their_own(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
    let handle = w.t();
    let stale = ended(&ctx);
    for _ in 0..50 {
        ended(&ctx);
    }
    // Fifty passes later the version is the same, so the handle is good; the pass's is not.
    assert_eq!(handle.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    ctx.pass(|_| {
        assert_eq!((handle + 1.0).to_vec::<f32>()?, [2.0, 3.0]);
        Ok(())
    })
    .unwrap();
    refused(stale.read(), ErrorKind::Stale);
}

fn bug_b27_a_device_is_never_a_mode() {
    let taps = [0, 1].map(|_| Tap::new(Arc::new(wgrad_cpu::Cpu::new()) as Arc<dyn Backend>));
    let [a, b] = [0, 1].map(|i| taps[i].context());
    a.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))? + 1.0;
        // A pass on another device inside, and even one that fails, changes nothing here.
        b.pass(|q| (q.input(host(&[2], &[1.0, 2.0]))? * 2.0).to_vec::<f32>())?;
        let before = taps[1].count(Call::Submit);
        assert_eq!((x * 3.0).to_vec::<f32>()?, [6.0, 9.0]);
        assert_eq!(taps[1].count(Call::Submit), before);
        Ok(())
    })
    .unwrap();
    assert_eq!([0, 1].map(|i| taps[i].count(Call::Submit)), [1, 1]);
}

fn bug_b32_values_before_a_pass_stay(on: &Subject) {
    let ctx = on.context();
    // Data normalised on the device once, before any training pass.
    let data = ctx.pass(|p| (p.input(fill(&[4, 3], 0.2))? * 2.0 + 1.0).keep()).unwrap();
    let w = Param::new(&ctx, "w", fill(&[3, 1], 0.9)).unwrap();
    let first = bits(&data.read().unwrap());
    for _ in 0..5 {
        ctx.pass(|_| {
            let loss = data.t().matmul(w.t()).square().mean_all();
            w.set(w.t() - loss.backward()?.get(&w).unwrap() * 0.1);
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(bits(&data.read().unwrap()), first);
}

fn bug_b33_dropped_values_are_freed(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let make = || {
        let net = Net::sized(&ctx, [16, 12, 8]);
        ctx.pass(|p| Ok(net.loss(p, 0.1)?.deferred::<f32>())).unwrap().get().unwrap();
    };
    make();
    let live = ctx.stats().live_bytes;
    for _ in 0..50 {
        make();
    }
    ctx.sync().unwrap();
    assert_eq!(ctx.stats().live_bytes, live);
}

fn bug_b34_a_pass_begins_empty(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let net = Net::new(&ctx);
    let step = || {
        let pass = ctx.begin().unwrap();
        let loss = net.loss(&pass, 0.1).unwrap();
        loss.item::<f32>().unwrap();
        drop(pass);
    };
    step();
    let stats = ctx.stats();
    for _ in 0..20 {
        step();
    }
    let now = ctx.stats();
    // Nothing of an abandoned pass is left to be computed, planned or held by the next.
    assert_eq!(now.plans_made, stats.plans_made);
    assert_eq!(now.live_bytes, stats.live_bytes);
    assert_eq!(now.dispatches, stats.dispatches * 21);
}

fn debug_print_shows_the_state(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
    let print = |x: Tensor| format!("{x:?}");
    assert_eq!(print(w.t()), "Tensor(f32[2], persistent, version 1, computed)");
    let x = ctx
        .pass(|p| {
            let x = p.input(HostTensor::new([3, 2], &[1i32, 2, 3, 4, 5, 6]).unwrap())? + 1;
            assert_eq!(print(x), "Tensor(i32[3, 2], pass 0, generation 0, queued)");
            assert!(x.to_string().contains("queued"), "{x}");
            x.read()?;
            assert_eq!(print(x), "Tensor(i32[3, 2], pass 0, generation 0, computed)");
            assert_eq!(x.to_string(), "[[2, 3],\n [4, 5],\n [6, 7]]");
            Ok(x)
        })
        .unwrap();
    let stale = print(x);
    assert!(stale.starts_with("Tensor(pass 0, generation 0, stale, made at "), "{stale}");
    assert!(stale.contains("tests/handles/passes.rs:"), "{stale}");

    ctx.pass(|p| {
        let x = p.input(host(&[1], &[1.0]))?;
        assert_eq!(print(x), "Tensor(f32[1], pass 0, generation 1, queued)");
        Ok(())
    })
    .unwrap();
}

fn handles_are_small_and_copy() {
    fn check<T: Copy + Send + Sync + 'static>() -> usize {
        size_of::<T>()
    }
    assert!(check::<Tensor>() <= 32);
}

fn mistakes_panic_at_the_callers_line() {
    let ctx = cpu();
    let pass = ctx.begin().unwrap();
    let (x, y) = (pass.input(fill(&[2, 3], 0.1)).unwrap(), pass.input(fill(&[4, 5], 0.1)).unwrap());
    let w = Param::new(&ctx, "w", fill(&[7], 0.1)).unwrap();
    #[rustfmt::skip]
    let errors = [
        (line!(), x.try_matmul(y).unwrap_err()),
        (line!(), x.try_add(y).unwrap_err()),
        (line!(), x.try_reshape([7]).unwrap_err()),
        (line!(), w.try_set(x).unwrap_err()),
        (line!(), x.backward().unwrap_err()),
        (line!(), x.try_cross_entropy(y).unwrap_err()),
        (line!(), x.try_sum(5).unwrap_err()),
    ];
    for (line, error) in errors {
        assert!(error.to_string().contains(&format!("tests/handles/passes.rs:{line}:")), "{line}: {error}");
    }
    let (line, text) = (line!(), panic_of(|| _ = x + y));
    assert!(text.contains(&format!("tests/handles/passes.rs:{line}:")), "{text}");
    let twin = x.try_add(y).unwrap_err().to_string();
    let words =
        |text: &str| text.lines().filter(|l| !l.starts_with("  at ")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&text), words(&twin), "the same text");
}

fn panic_of(f: impl FnOnce()) -> String {
    let caught = catch_unwind(AssertUnwindSafe(f)).unwrap_err();
    caught.downcast_ref::<String>().unwrap().clone()
}

fn no_pass_open_is_an_error() {
    let ctx = cpu();
    let w = Kept::new(&ctx, host(&[1], &[1.0])).unwrap();
    let text = refused(w.t().try_relu(), ErrorKind::Stale);
    assert!(text.contains("ctx.pass"), "{text}");
    refused(w.try_set(w.t()), ErrorKind::Stale);
}

fn generations_of_pools_count_up() {
    let ctx = cpu();
    let olds: Vec<Tensor> = (0..1000).map(|_| ended(&ctx)).collect();
    ctx.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))? * 2.0;
        assert!(format!("{x:?}").contains("pass 0, generation 1000"), "{x:?}");
        for old in &olds {
            refused(old.read(), ErrorKind::Stale);
        }
        Ok(())
    })
    .unwrap();
}

fn a_dropped_guard_discards() {
    let ctx = cpu();
    let w = Param::new(&ctx, "w", host(&[1], &[1.0])).unwrap();
    for round in 0..3 {
        let pass = ctx.begin().unwrap();
        w.set(w.t() * 2.0);
        if round == 1 {
            continue;
        }
        pass.end().unwrap();
    }
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [4.0]);
    assert_eq!(ctx.stats().steps, 2);
}

fn an_early_return_discards() {
    #[derive(Debug, PartialEq)]
    struct Mine;
    fn run(ctx: &Context, w: &Param) -> Result<(), Mine> {
        let pass = ctx.begin().map_err(|_| Mine)?;
        w.set(w.t() * 2.0);
        Err::<(), _>(Mine)?;
        pass.end().map_err(|_| Mine)
    }
    let ctx = cpu();
    let w = Param::new(&ctx, "w", host(&[1], &[1.0])).unwrap();
    assert_eq!(run(&ctx, &w), Err(Mine));
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [1.0]);
}
