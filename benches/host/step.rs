//! A GPT's training step by parts.

use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{Caps, ContextOptions, Result};
use wgrad_graph::Plan;

use super::dry::{Dry, large_gpu};
use super::model::{Gpt, optimizer};
use super::{Args, median};

pub(crate) fn run(args: &Args) -> Result<()> {
    let Args { layers, width, tokens, vocabulary, batch, .. } = *args;
    let gpt = Gpt { layers, width, heads: (width / 64).max(1), tokens, vocabulary, blank: true };
    let ctx = Context::new(Dry::open(large_gpu()))?;
    let model = gpt.model().build(&ctx, None)?;
    let mut opt = optimizer(model.params())?;
    let data = gpt.data(0, batch)?;
    println!("{}, batch {batch}; us", gpt.sizes());
    let mut parts: [Vec<f64>; 5] = Default::default();
    let mut nodes = [0; 4];
    for step in 0..args.steps.max(4) {
        let begin = Instant::now();
        let pass = ctx.begin()?;
        let mut times = [0.0; 5];
        let mut mark = begin;
        let mut lap = |i: usize| {
            let now = Instant::now();
            times[i] = (now - mark).as_secs_f64() * 1e6;
            nodes[i.min(3)] = pass.nodes().unwrap_or(0);
            mark = now;
        };
        let loss = pass.within(|| -> Result<Tensor> {
            model.forward(pass.input(&data[0])?).try_cross_entropy(pass.input(&data[1])?)
        })?;
        lap(0);
        let grads = loss.backward()?;
        lap(1);
        opt.step(&grads)?;
        lap(2);
        let deferred: Deferred<f32> = loss.deferred();
        pass.end()?;
        times[3] = mark.elapsed().as_secs_f64() * 1e6;
        times[4] = begin.elapsed().as_secs_f64() * 1e6;
        drop(deferred);
        if step == 0 {
            println!("  first step {:.0} us", times[4]);
        }
        if step >= 3 {
            times.iter().zip(&mut parts).for_each(|(t, all)| all.push(*t));
        }
    }
    for (name, (times, nodes)) in ["forward", "backward", "update", "flush", "step"]
        .into_iter()
        .zip(parts.iter_mut().zip([nodes[0], nodes[1] - nodes[0], nodes[2] - nodes[1], nodes[2], nodes[2]]))
    {
        let us = median(times);
        let least = times[0];
        println!(
            "  {name:<10} {us:>10.1} us, least {least:>10.1} {nodes:>7} nodes {:>8.3} us a node at least",
            least / nodes.max(1) as f64
        );
    }
    let (stats, plan) = (ctx.stats(), ctx.last_plan());
    println!("  plans made {}, reused {}", stats.plans_made, stats.plans_reused);
    if let Some(plan) = plan {
        println!("  {} steps; device holds at most {}", plan.steps.len(), stats.peak_bytes);
        memory(&plan, &large_gpu());
        if args.plan {
            println!("{plan}");
        }
    }
    if args.steps > 60 {
        return Ok(());
    }
    for share in [0.75, 0.5, 0.4, 0.35] {
        let most = (stats.peak_bytes as f64 * share) as usize;
        let options = ContextOptions::default().recompute_within(most);
        let ctx = Context::with(Dry::open(large_gpu()), options)?;
        let model = gpt.model().build(&ctx, None)?;
        let mut opt = optimizer(model.params())?;
        let begin = Instant::now();
        let result = ctx.pass(|p| {
            let loss = model.forward(p.input(&data[0])?).try_cross_entropy(p.input(&data[1])?)?;
            opt.step(&loss.backward()?)?;
            Ok(())
        });
        println!("within {most} bytes, {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
        match result {
            Err(error) => println!("  {error}"),
            Ok(()) => {
                println!("  device holds at most {}", ctx.stats().peak_bytes);
                if let Some(plan) = ctx.last_plan() {
                    memory(&plan, &large_gpu());
                    plan.notes.iter().filter(|n| n.contains("again")).for_each(|n| println!("  {n}"));
                }
            }
        }
    }
    Ok(())
}

/// What a plan says of memory.
pub(crate) fn memory(plan: &Plan, caps: &Caps) {
    let memory = plan.memory(caps);
    let (peak, least) = (memory.peak_bytes(), memory.least_peak_bytes());
    println!(
        "  plan: {} steps, buffers {} and {}, workspace {} of at least {}; peak {peak}, {:.3} of the least {least}",
        plan.steps.len(),
        memory.leaf_bytes,
        memory.output_bytes,
        memory.workspace_bytes,
        memory.least_workspace_bytes,
        peak as f64 / least as f64
    );
}
