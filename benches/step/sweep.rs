//! How time grows with batch, width, depth, sequence, and with the number of recorded operations.

use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{ContextOptions, Result};
use wgrad_benches::{Model, Sweep};

use crate::peaks::{self, Set};
use crate::training::{How, Training};
use crate::work::{gpt, mlp};

/// Milliseconds of a step of each model: the least, which other programs disturb least.
fn steps(device: &Device, seconds: f64, models: impl IntoIterator<Item = Model>) -> Result<Vec<f64>> {
    let mut ms = Vec::new();
    for model in models {
        let training = Training::new(device, &model, How::Recorded)?;
        let times = peaks::time(&training.ctx, seconds, 1, &|| training.step().map(|_| ()))?;
        ms.push(times.host_ms[1]);
    }
    Ok(ms)
}

fn sizes(from: usize, count: u32) -> Vec<usize> {
    (0..count).map(|i| from << i).collect()
}

fn floats(sizes: &[usize]) -> Vec<f64> {
    sizes.iter().map(|n| *n as f64).collect()
}

/// Steps over batch, width, depth and sequence.
///
/// # Errors
/// What the device meets.
pub(crate) fn of_steps(device: &Device, set: Set, seconds: f64, said: impl Fn(&Sweep)) -> Result<Vec<Sweep>> {
    let large = set == Set::Large;
    let (batches, widths) = if large { (sizes(64, 7), sizes(256, 6)) } else { (sizes(16, 6), sizes(64, 5)) };
    let (depths, tokens) = if large { (sizes(2, 6), sizes(128, 5)) } else { (sizes(1, 6), sizes(16, 5)) };
    let width = if large { 1024 } else { 256 };
    let of_gpt = |tokens: &usize| match large {
        true => gpt([4, 512, 8, *tokens, 8192, 4], false).model,
        false => gpt([2, 64, 4, *tokens, 256, 4], false).model,
    };
    let mut all = Vec::new();
    let mut add = |name: &str, sizes: &[usize], models: Vec<Model>| -> Result<()> {
        let sweep = Sweep::of(name, &floats(sizes), &steps(device, seconds, models)?);
        said(&sweep);
        all.push(sweep);
        Ok(())
    };
    let models = batches.iter().map(|b| mlp(&[width; 5], *b).model).collect();
    add(&format!("step of mlp 4x{width} over the batch"), &batches, models)?;
    let models = widths.iter().map(|w| mlp(&[*w; 5], 128).model).collect();
    add("step of mlp with 4 layers, batch 128, over the width", &widths, models)?;
    let models = depths.iter().map(|d| mlp(&vec![width; d + 1], 128).model).collect();
    add(&format!("step of mlp, width {width}, batch 128, over the depth"), &depths, models)?;
    let models = tokens.iter().map(of_gpt).collect();
    add("step of a small gpt over the sequence", &tokens, models)?;
    Ok(all)
}

/// The most nodes.
const NODES: usize = 100_000;

/// Host time of recording and of planning over the number of nodes.
///
/// # Errors
/// What the device meets.
pub(crate) fn of_nodes(device: &Device, said: impl Fn(&Sweep)) -> Result<Vec<Sweep>> {
    // Of one layer, forward and backward.
    const EACH: usize = 10;
    /// The least of so many is taken, or of as many as begin in so many seconds: what is measured is the host's time,
    /// but the device runs it, and a driver on a busy CPU takes up to a millisecond for each kernel.
    const TIMES: usize = 3;
    const SECONDS: f64 = 15.0;
    let mut nodes: Vec<f64> = Vec::new();
    let [mut recording, mut planning, mut again] = [const { Vec::new() }; 3];
    for layers in sizes((NODES / EACH) >> 6, 7) {
        let (mut n, mut least) = (0, [f64::INFINITY; 3]);
        let begin = Instant::now();
        for time in 0..TIMES {
            if time > 0 && begin.elapsed().as_secs_f64() > SECONDS {
                break;
            }
            let ctx = Context::with(device, ContextOptions::default().node_budget(4 * NODES))?;
            let (nodes, first) = pass(&ctx, layers)?;
            let (_, second) = pass(&ctx, layers)?;
            n = nodes;
            let found = [first[0], first[1], second[1]];
            least.iter_mut().zip(found).for_each(|(least, ms)| *least = least.min(ms));
        }
        nodes.push(n as f64);
        recording.push(least[0]);
        planning.push(least[1]);
        again.push(least[2]);
    }
    let all = [
        Sweep::of("recording and differentiating over the nodes", &nodes, &recording),
        Sweep::of("fusing and planning over the nodes", &nodes, &planning),
        Sweep::of("finding the plan again over the nodes", &nodes, &again),
    ];
    all.iter().for_each(said);
    Ok(all.into())
}

/// Nodes of a pass, milliseconds of recording, and of what comes between it and the device.
fn pass(ctx: &Context, layers: usize) -> Result<(usize, [f64; 2])> {
    let host = |n| HostTensor::new([n, 4], &wgrad_benches::floats(4 * n, 1, 0.5));
    let (x, w) = (Kept::new(ctx, host(2)?)?, Param::new(ctx, "w", host(4)?)?);
    ctx.sync()?;
    ctx.profile(true);
    ctx.profile_reset();
    let start = Instant::now();
    let recorded = ctx.pass(|p| {
        let mut y = x.t();
        for _ in 0..layers {
            y = (y.matmul(w.t()) + x.t()).tanh();
        }
        let loss = y.sum(..);
        let grads = loss.backward()?;
        let recorded = start.elapsed().as_secs_f64() * 1e3;
        p.compute(&[loss, grads.get(&w).unwrap_or(loss)])?;
        Ok(recorded)
    })?;
    ctx.profile(false);
    let report = ctx.profile_report();
    let planned = report.stages.iter().filter(|line| ["fuse", "plan"].contains(&line.stage));
    let planned = planned.map(|line| line.ns).sum::<u64>() as f64 / 1e6;
    ctx.sync()?;
    let nodes = ctx.last_plan().map_or(0, |plan| plan.graph.nodes().len());
    Ok((nodes, [recorded, planned]))
}
