//! The rule of reading: inside an open pass every handle of it stays readable, whatever fusion, plans,
//! budgets and updates do, and reading changes nothing.

use std::sync::Arc;

use wgrad::nn::{AdamW, AdamWConfig, Optimizer};
use wgrad::{Backend, Context, ContextOptions, ErrorKind, Result, Tensor};
use wgrad_cpu::Cpu;

use super::tap::{BATCH, Call, Net, Tap, bits, fill, host, refused};
use crate::Subject;
use crate::devices::cpu;

crate::suite![
    plain: item_before_backward_costs_little, flat_memory_over_10_000_steps, node_budget_changes_no_bit,
        recomputation_is_counted, bug_b24_the_caller_decides_what_it_reads;
    device: read_anything_after_item_and_step, reading_changes_no_bit, bug_b8_state_belongs_to_the_value,
        bug_b2_a_computed_value_is_a_leaf, an_input_is_readable, reads_are_one_crossing_each,
];

/// What a step of a net with dropout makes: all values in between, in order.
fn step(
    net: &Net,
    opt: &mut AdamW,
    p: &wgrad::Pass,
    turn: f32,
    item: bool,
    read: bool,
) -> Result<Vec<Vec<u64>>> {
    let x = p.input(fill(&[BATCH, 6], turn))?;
    let [z, h, y] = net.forward(x.dropout("x", 0.3));
    let e = (y - p.input(fill(&[BATCH, 4], turn + 0.5))?).square();
    let loss = e.mean_all();
    if item {
        loss.item::<f32>()?;
    }
    let grads = loss.backward()?;
    let gs: Vec<Tensor> = net.params().iter().map(|p| grads.get(p).unwrap()).collect();
    opt.step(&grads)?;
    let new: Vec<Tensor> = net.params().iter().map(|p| p.t()).collect();
    if !read {
        return Ok(Vec::new());
    }
    // Backwards, so that early values are asked for when later ones have been computed from them.
    let all: Vec<Tensor> = [x, z, h, y, e, loss].into_iter().chain(gs).chain(new).collect();
    let mut read: Vec<_> = all.iter().rev().map(|t| Ok(bits(&t.read()?))).collect::<Result<_>>()?;
    read.reverse();
    Ok(read)
}

fn train(ctx: &Context, steps: usize, item: bool, read: bool) -> (Vec<Vec<Vec<u64>>>, Vec<Vec<u64>>) {
    let net = Net::new(ctx);
    let mut opt = AdamW::new(net.params().into_iter().cloned().collect(), AdamWConfig::default()).unwrap();
    let run = |i| ctx.pass(|p| step(&net, &mut opt, p, i as f32 * 0.3, item, read)).unwrap();
    let values = (0..steps).map(run).collect();
    assert_eq!(opt.steps(), steps as u64);
    (values, net.bits())
}

fn contexts(on: &Subject) -> Vec<Context> {
    [true, false].map(|fuse| on.context_with(ContextOptions::default().fuse(fuse))).into()
}

fn read_anything_after_item_and_step(on: &Subject) {
    for ctx in contexts(on) {
        let (plain, end) = train(&ctx, 3, false, true);
        // In a context of its own, since random numbers go on. On a GPU a value fused into two kernels
        // may be rounded in two ways; the executors promise bits, fused or not.
        let (with_item, end_item) = train(&on.context(), 3, true, true);
        if !on.is_vulkan() {
            assert_eq!(plain, with_item);
            assert_eq!(end, end_item);
        }
    }
}

fn reading_changes_no_bit(on: &Subject) {
    // On a GPU a value fused into two kernels may be rounded in two ways; the executors promise bits.
    if on.is_vulkan() {
        return;
    }
    for fuse in [true, false] {
        let end = |item, read| train(&on.context_with(ContextOptions::default().fuse(fuse)), 4, item, read).1;
        let quiet = end(false, false);
        assert_eq!(quiet, end(true, false));
        assert_eq!(quiet, end(false, true));
        assert_eq!(quiet, end(true, true));
    }
}

fn node_budget_changes_no_bit() {
    let end = |budget| train(&context(ContextOptions::default().node_budget(budget)), 4, false, false);
    let large = end(50_000);
    for budget in [1, 3, 10, 40] {
        assert_eq!(large, end(budget), "a budget of {budget} operations");
    }
    let read = |budget| train(&context(ContextOptions::default().node_budget(budget)), 2, true, true);
    assert_eq!(read(50_000), read(10));
}

fn context(options: ContextOptions) -> Context {
    Context::with(Arc::new(Cpu::new()) as Arc<dyn Backend>, options).unwrap()
}

fn item_before_backward_costs_little() {
    let tap = Tap::new(Arc::new(Cpu::new()) as Arc<dyn Backend>);
    let ctx = tap.context();
    let net = Net::sized(&ctx, [96, 64, 24]);
    let work = |item: bool| {
        let run = || {
            ctx.pass(|p| {
                let loss = net.loss(p, 0.3)?;
                if item {
                    loss.item::<f32>()?;
                }
                let grads = loss.backward()?;
                for param in net.params() {
                    param.set(param.t() - grads.get(param).unwrap() * 0.01);
                }
                Ok(())
            })
            .unwrap();
        };
        run();
        tap.take_work();
        run();
        tap.take_work()
    };
    let (plain, with_item) = (work(false), work(true));
    assert!(with_item <= 1.1 * plain, "{with_item} against {plain}: {}", with_item / plain);
}

fn recomputation_is_counted() {
    let ctx = cpu();
    ctx.pass(|p| {
        let x = p.input(fill(&[8, 8], 0.1))?;
        let h = (x * 2.0).tanh();
        let y = (h + 1.0).sum_all();
        y.item::<f32>()?;
        assert_eq!(ctx.stats().recomputed, 0);
        // `h` was fused away; it is computed again, with the same bits.
        let again = h.read()?;
        assert!(ctx.stats().recomputed > 0);
        assert_eq!(bits(&again), bits(&h.read()?));
        Ok(())
    })
    .unwrap();
}

fn bug_b24_the_caller_decides_what_it_reads() {
    let ctx = cpu();
    ctx.pass(|p| {
        let x = p.input(host(&[1], &[2.75]))?;
        assert_eq!((x.item::<f32>()?, x.item::<f64>()?, x.item::<i32>()?), (2.75, 2.75, 2));
        assert_eq!(x.to_vec::<f32>()?, [2.75]);
        let pair = p.input(host(&[2], &[1.0, 2.0]))?;
        refused(pair.item::<f32>(), ErrorKind::Shape);
        Ok((x.deferred::<f32>(), pair.deferred::<f32>()))
    })
    .map(|(one, two)| {
        assert_eq!(one.get().unwrap(), 2.75);
        refused(two.get(), ErrorKind::Shape);
        assert_eq!(two.read().unwrap().to_vec::<f32>(), [1.0, 2.0]);
    })
    .unwrap();
}

fn bug_b8_state_belongs_to_the_value(on: &Subject) {
    let ctx = on.context();
    ctx.pass(|p| {
        let y = p.input(host(&[2], &[1.0, 2.0]))? * 3.0;
        let copies = [y; 3];
        let alias = y.detach();
        copies[0].read()?;
        for copy in copies.into_iter().chain([alias]) {
            assert!(format!("{copy:?}").contains("computed"), "{copy:?}");
            assert_eq!(copy.to_vec::<f32>()?, [3.0, 6.0]);
        }
        assert_eq!(ctx.pass(|_| (alias + 1.0).to_vec::<f32>())?, [4.0, 7.0]);
        Ok(())
    })
    .unwrap();
}

fn bug_b2_a_computed_value_is_a_leaf(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let net = Net::new(&ctx);
    ctx.pass(|p| {
        let loss = net.loss(p, 0.2)?;
        let grads = loss.backward()?;
        let g2 = grads.get(&net.w2).unwrap();
        let before = g2.read()?;
        // The first weight is updated and even read: the second gradient is what it was.
        net.w1.set(net.w1.t() - grads.get(&net.w1).unwrap());
        net.w1.t().read()?;
        assert_eq!(bits(&g2.read()?), bits(&before));
        let stats = ctx.stats();
        let doubled = (g2 * 2.0).read()?;
        // A computed value is not computed again: one kernel makes the product.
        assert_eq!(ctx.stats().recomputed, stats.recomputed);
        assert!(on.is_oracle() || ctx.stats().dispatches == stats.dispatches + 1);
        let twice: Vec<u64> = before.to_vec::<f64>().iter().map(|x| (x * 2.0).to_bits()).collect();
        assert_eq!(bits(&doubled), twice);
        net.w2.set(net.w2.t() - g2);
        Ok(())
    })
    .unwrap();
}

fn an_input_is_readable(on: &Subject) {
    let ctx = on.context();
    ctx.pass(|p| {
        let x = p.input(fill(&[3, 2], 0.4))?;
        let view = x.t().reshape([6]);
        assert_eq!(x.to_vec::<f32>()?, fill(&[3, 2], 0.4).to_vec::<f32>());
        let [a, b, c, d, e, f] = fill(&[3, 2], 0.4).to_vec::<f32>().try_into().unwrap();
        assert_eq!(view.to_vec::<f32>()?, [a, c, e, b, d, f]);
        Ok(())
    })
    .unwrap();
}

fn reads_are_one_crossing_each(on: &Subject) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context();
    let deferred: Vec<_> = (0..5)
        .map(|i| ctx.pass(|p| Ok((p.input(host(&[1], &[i as f32]))? * 2.0).deferred::<f32>())).unwrap())
        .collect();
    assert_eq!(tap.count(Call::Read), 0);
    let numbers: Vec<f32> = deferred.iter().map(|d| d.get().unwrap()).collect();
    assert_eq!(numbers, [0.0, 2.0, 4.0, 6.0, 8.0]);
    assert_eq!(tap.count(Call::Read), 1, "one crossing fetches all that are outstanding");
}

fn flat_memory_over_10_000_steps() {
    let ctx = cpu();
    let w = wgrad::Param::new(&ctx, "w", host(&[3], &[1.0, 2.0, 3.0])).unwrap();
    let lr = ctx.scalar(1e-3);
    let mut last = None;
    let mut at_100 = None;
    for step in 0..10_000 {
        lr.set(1e-3 / (1.0 + f64::from(step)));
        let loss = ctx
            .pass(|p| {
                let x = p.input(host(&[3], &[step as f32 * 1e-4, 1.0, 0.5]))?.dropout("x", 0.5);
                let loss = (x * w.t()).square().sum_all();
                w.set(w.t() - loss.backward()?.get(&w).unwrap() * &lr);
                Ok(loss.deferred::<f32>())
            })
            .unwrap();
        // Some numbers are never fetched.
        if step % 7 == 0 {
            loss.get().unwrap();
        }
        last = Some(loss);
        if step == 100 {
            at_100 = Some(ctx.stats());
        }
    }
    let (then, now) = (at_100.unwrap(), ctx.stats());
    assert_eq!(now.live_bytes, then.live_bytes);
    assert_eq!(now.pages, then.pages);
    assert_eq!(now.peak_bytes, then.peak_bytes);
    assert_eq!(now.plans_made, then.plans_made);
    drop(last);
}
