//! How the host's time grows with the number of nodes of a pass.

use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{ContextOptions, Result};

use super::Args;
use super::dry::{Dry, large_gpu};

/// A program of about `n` nodes that is differentiated.
type Program = fn(&Context, usize) -> Result<[f64; 3]>;

const PROGRAMS: &[(&str, Program)] =
    &[("pointwise", pointwise), ("layers", layers), ("wide", wide), ("params", params)];

fn times(ctx: &Context, record: impl Fn(&wgrad::Pass) -> Result<Tensor>) -> Result<[f64; 3]> {
    let pass = ctx.begin()?;
    let begin = Instant::now();
    let y = pass.within(|| record(&pass))?;
    let recorded = begin.elapsed().as_secs_f64();
    let nodes = pass.nodes()?;
    let begin = Instant::now();
    let deferred: Deferred<f32> = y.deferred();
    pass.end()?;
    drop(deferred);
    Ok([nodes as f64, recorded, begin.elapsed().as_secs_f64()])
}

/// One chain of unary operations and its gradient.
fn pointwise(ctx: &Context, n: usize) -> Result<[f64; 3]> {
    times(ctx, |p| {
        let x = p.input(HostTensor::new([64, 64], &[0.5f32; 4096])?)?;
        let mut h = x;
        for i in 0..n / 5 {
            h = if i % 2 == 0 { h.sin() } else { h.exp() };
        }
        let y = h.sum(..);
        Ok(wgrad::grad(y, &[x])?[0].sum(..))
    })
}

/// Layers with products, norms and nonlinear parts, and their gradient.
fn layers(ctx: &Context, n: usize) -> Result<[f64; 3]> {
    times(ctx, |p| {
        let x = p.input(HostTensor::new([64, 64], &[0.5f32; 4096])?)?;
        let w = p.input(HostTensor::new([64, 64], &[0.5f32; 4096])?)?;
        let mut h = x;
        for _ in 0..n / 70 {
            h = h + h.matmul(w).gelu().softmax(-1);
        }
        let y = h.sum(..);
        Ok(wgrad::grad(y, &[w])?[0].sum(..))
    })
}

/// Many values of one operand, summed.
fn wide(ctx: &Context, n: usize) -> Result<[f64; 3]> {
    times(ctx, |p| {
        let x = p.input(HostTensor::new([64, 64], &[0.5f32; 4096])?)?;
        let mut sum = x.sum(..);
        for i in 0..n / 10 {
            sum = sum + (x * (i as f32)).sin().sum(..);
        }
        Ok(sum)
    })
}

/// Many parameters, each updated by its gradient.
fn params(ctx: &Context, n: usize) -> Result<[f64; 3]> {
    let make = |i: usize| Param::new(ctx, &format!("w{i}"), HostTensor::new([8, 8], &[0.5f32; 64])?);
    let all = (0..n / 20).map(make).collect::<Result<Vec<_>>>()?;
    times(ctx, |p| {
        let mut h = p.input(HostTensor::new([8, 8], &[0.5f32; 64])?)?;
        for w in &all {
            h = h.matmul(w.t()).relu();
        }
        let loss = h.sum(..);
        let grads = loss.backward()?;
        let _updating = wgrad::updating();
        for w in &all {
            if let Some(g) = grads.get(w) {
                w.set(w.t() - g * 0.1);
            }
        }
        Ok(loss)
    })
}

pub(crate) fn run(args: &Args) -> Result<()> {
    println!(
        "growth: nodes, us a node to record, us a node to plan anew, us a node with the plan in the cache"
    );
    for (name, program) in PROGRAMS {
        let mut last: Option<[f64; 4]> = None;
        let mut n = 1000;
        while n <= args.nodes {
            let ctx =
                Context::with(Dry::open(large_gpu()), ContextOptions::default().node_budget(usize::MAX))?;
            let [nodes, _, plan] = program(&ctx, n)?;
            let [_, record, again] = program(&ctx, n)?;
            let slope =
                |i: usize, now: f64| last.map_or(f64::NAN, |l| (now / l[i]).ln() / (nodes / l[0]).ln());
            let each = |s: f64| s * 1e6 / nodes;
            println!(
                "  {name:<10} {nodes:>8} record {:>7.3} plan {:>8.3} again {:>7.3}   slopes {:>5.2} {:>5.2} {:>5.2}",
                each(record),
                each(plan),
                each(again),
                slope(1, record),
                slope(2, plan),
                slope(3, again)
            );
            last = Some([nodes, record, plan, again]);
            if plan > 60.0 {
                break;
            }
            n *= 10;
        }
    }
    Ok(())
}
