//! Passes of one structure: the gradient graph and the flush of an earlier one serve again, with the numbers, data and
//! rules of the pass at hand; and the host's work grows with the number of nodes, not faster.

use std::sync::Arc;
use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{Backend, ContextOptions, Result};
use wgrad_cpu::Cpu;
use wgrad_graph::Fast;

use crate::{Subject, devices};

crate::suite![plain: equal_passes_are_worked_out_once, numbers_are_those_of_the_pass, rules_of_the_user_are_asked_again,
    a_shared_version_is_not_written_over, a_read_in_between_is_told_apart, work_grows_with_the_nodes;
    device: large_uploads_arrive_whole];

/// How often earlier passes served again, if they may at all.
fn served(ctx: &Context, gradients: u64, flushes: u64) {
    let times = u64::from(ctx.caps().allows(Fast::EqualPasses));
    let stats = ctx.stats();
    assert_eq!((stats.gradients_reused, stats.flushes_reused), (times * gradients, times * flushes));
}

fn data(salt: usize) -> HostTensor {
    let data: Vec<f32> = (0..6 * 5).map(|i| ((i * 37 + salt * 11) % 23) as f32 / 23.0 - 0.4).collect();
    HostTensor::new([6, 5], &data).expect("it fits")
}

/// Losses and last weights of five steps. What is `spoiled` records something else in every pass before.
fn train(spoiled: bool) -> Result<(Vec<f32>, Vec<f32>, Context)> {
    let ctx = devices::cpu();
    let model = Mlp::new(&ctx, &[5, 7, 3], Rng::seed(3))?;
    let mut opt = AdamW::new(model.params(), AdamWConfig::default())?;
    let mut losses = Vec::new();
    for step in 0..5 {
        let loss: Deferred<f32> = ctx.pass(|p| {
            let x = p.input(data(step))?;
            let dear = wgrad::checkpoint(x, |x| Ok((x * p.rand("noise", [6, 5])).tanh()))?;
            for _ in 0..if spoiled { step } else { 0 } {
                let _ = x.exp();
            }
            let loss = model.forward(dear).square().mean(..);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred())
        })?;
        losses.push(loss.get()?);
    }
    let weights = model.params().iter().next().expect("a weight").read()?.to_vec();
    Ok((losses, weights, ctx))
}

fn equal_passes_are_worked_out_once() {
    let (losses, weights, ctx) = train(false).expect("it trains");
    served(&ctx, 4, 4);
    assert_eq!(ctx.stats().plans_made, 1);
    let (want, want_weights, ctx) = train(true).expect("it trains");
    served(&ctx, 0, 0);
    assert_eq!((losses, weights), (want, want_weights), "what served again is what is recorded anew");
}

fn numbers_are_those_of_the_pass() {
    let ctx = devices::cpu();
    let w = Param::new(&ctx, "w", HostTensor::new([2], &[3.0f32, 5.0]).expect("fits")).expect("a parameter");
    for c in [2.0f32, -7.0, 0.5] {
        let gradient = ctx.pass(|p| {
            let x = p.input(HostTensor::new([2], &[c, 1.0])?)?;
            let y = (w.t() * x * f64::from(c)).square().sum(..);
            Ok(y.backward()?.get(&w).expect("it is used").deferred::<f32>())
        });
        let got = gradient.expect("it runs").read().expect("computed").to_vec::<f32>();
        // y = (w x c)^2, dy/dw = 2 w (x c)^2
        let want = [2.0 * 3.0 * c.powi(4), 2.0 * 5.0 * c.powi(2)];
        got.iter()
            .zip(want)
            .for_each(|(g, w)| assert!((g - w).abs() <= 1e-4 * w.abs(), "{c}: {got:?} {want:?}"));
    }
    served(&ctx, 2, 2);
}

fn rules_of_the_user_are_asked_again() {
    let ctx = devices::cpu();
    for c in [1.0, 2.0, 3.0] {
        let dx = ctx.pass(|p| {
            let x = p.input(HostTensor::new([], &[4.0f32])?)?;
            let rule = move |site: &wgrad::CustomGradient<'_>| Ok(vec![Some(site.dout(0) * c)]);
            let y = wgrad::custom_gradient(&[x], |x| Ok(x[0].square()), rule)?;
            wgrad::grad(y, &[x])?[0].item::<f32>()
        });
        assert_eq!(dx.expect("it runs"), c as f32);
    }
    served(&ctx, 0, 0);
}

fn a_shared_version_is_not_written_over() {
    let ctx = devices::cpu();
    let sum = Kept::new(&ctx, data(0)).expect("kept");
    let step = || {
        ctx.pass(|p| {
            sum.set(sum.t() + p.input(data(1))?);
            Ok(())
        })
    };
    (0..3).for_each(|_| step().expect("it runs"));
    served(&ctx, 0, 2);
    let other = Kept::new(&ctx, data(2)).expect("kept");
    ctx.pass(|_| {
        other.set(sum.t());
        Ok(())
    })
    .expect("it runs");
    let before = other.read().expect("a value");
    step().expect("it runs");
    assert_eq!(other.read().expect("a value"), before, "another holds the version that was added to");
    assert_ne!(sum.read().expect("a value"), before);
}

fn a_read_in_between_is_told_apart() {
    let ctx = devices::cpu();
    let sum = Kept::zeros(&ctx, [6, 5]).expect("kept");
    for (i, read) in [false, true, false, true, true].into_iter().enumerate() {
        let want: Vec<f32> = sum
            .read()
            .expect("a value")
            .to_vec::<f32>()
            .iter()
            .zip(data(i).to_vec::<f32>())
            .map(|(s, x)| s + x * x)
            .collect();
        let step = ctx.pass(|p| {
            let square = p.input(data(i))?.square();
            if read {
                square.to_vec::<f32>()?;
            }
            sum.set(sum.t() + square);
            Ok(())
        });
        step.expect("it runs");
        assert_eq!(sum.read().expect("a value").to_vec::<f32>(), want, "pass {i}");
    }
    served(&ctx, 0, 1);
}

/// Seconds a node of recording, planning and flushing about `n` nodes of parameters, layers and parts of one value.
fn seconds_a_node(n: usize) -> Result<f64> {
    let options = ContextOptions::default().node_budget(usize::MAX);
    let ctx = Context::with(Arc::new(Cpu::new()) as Arc<dyn Backend>, options)?;
    let one = || HostTensor::new([1, 1], &[0.5f32]);
    let weight = |i: usize| Param::new(&ctx, &format!("w{i}"), one()?);
    let weights = (0..n / 24).map(weight).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    let pass = ctx.begin()?;
    let loss = pass.within(|| -> Result<Tensor> {
        let x = pass.input(one()?)?;
        let mut h = x;
        for w in &weights {
            h = h.matmul(w.t()).tanh() + (x * w.t()).sum(..);
        }
        Ok(h.sum(..))
    })?;
    let grads = loss.backward()?;
    for w in &weights {
        w.set(w.t() - grads.get(w).expect("it is used") * 0.1);
    }
    let nodes = pass.nodes()?;
    pass.end()?;
    Ok(begin.elapsed().as_secs_f64() / nodes as f64)
}

fn work_grows_with_the_nodes() {
    let sizes = if std::env::var("WGRAD_TEST").is_ok_and(|v| v == "full") {
        [10_000, 100_000]
    } else {
        [3_000, 30_000]
    };
    // The least of several: others use the machine too.
    let least = |n: usize| (0..3).map(|_| seconds_a_node(n).expect("it runs")).fold(f64::INFINITY, f64::min);
    let [small, large] = sizes.map(least);
    assert!(large <= 3.0 * small, "{small:.2e} s a node of {}, {large:.2e} s of {}", sizes[0], sizes[1]);
}

/// Large enough that several threads copy it, in parts of unequal size.
fn large_uploads_arrive_whole(subject: &Subject) {
    let n = (9 << 20) / 4 + 3;
    let data =
        HostTensor::new([n], &(0..n).map(|i| (i % 65_521) as f32).collect::<Vec<_>>()).expect("it fits");
    let ctx = subject.context();
    let doubled = ctx.pass(|p| (p.input(&data)? * 2.0).to_vec::<f32>()).expect("it runs");
    let wrong = doubled.iter().enumerate().position(|(i, x)| *x != (i % 65_521 * 2) as f32);
    assert_eq!((doubled.len(), wrong), (n, None));
    let kept = Kept::new(&ctx, data.clone()).expect("kept");
    assert_eq!(kept.read().expect("a value").to_vec::<f32>(), data.to_vec::<f32>());
}
