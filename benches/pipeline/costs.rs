//! Times and bytes of the layers on a device, and of a handover between two: what a partition is chosen by.

use std::sync::Arc;
use std::time::Instant;

use wgrad::pipeline::{DeviceSpec, Family, Layer, Link, Links, Problem};
use wgrad::prelude::*;
use wgrad::{Backend, Result};
use wgrad_benches::least;

use super::model::Gpt;

fn seconds(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    f()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// One kind of layer: 0 the embedding, 1 a block, 2 the head with the loss.
fn layer(backend: &Arc<dyn Backend>, gpt: Gpt, kind: usize, rows: usize) -> Result<Layer> {
    let ctx = Context::new(Arc::clone(backend))?;
    let small = Gpt { layers: 1, ..gpt };
    let model = small.model();
    let block = model.build(&ctx, kind..kind + 1)?;
    let params = block.params();
    let [x, t] = small.data(0, rows)?;
    let shape = [rows, gpt.tokens, gpt.width];
    let like = HostTensor::new(shape, &vec![0.5f32; rows * gpt.tokens * gpt.width])?;
    // On the device already, as when layers stand in one stage.
    let (x, dy) = match kind {
        0 => (Kept::new(&ctx, x)?, Some(Kept::new(&ctx, like)?)),
        1 => (Kept::new(&ctx, &like)?, Some(Kept::new(&ctx, like)?)),
        _ => (Kept::new(&ctx, like)?, None),
    };
    let (mut stash, mut output) = (0, 0);
    let times = least(|| {
        let pass = ctx.begin()?;
        let before = ctx.stats().live_bytes;
        let mut y = pass.within(|| block.forward(x.t()));
        let cotangent = match &dy {
            Some(dy) => dy.t(),
            None => {
                y = y.try_cross_entropy(pass.input(&t)?)?;
                pass.try_ones([])?
            }
        };
        output = rows * gpt.row_bytes();
        // One backward pass, as in training: what both need is in I.
        let own = params.iter().map(|p| p.t());
        let wanted: Vec<Tensor> = (kind > 0).then(|| x.t()).into_iter().chain(own).collect();
        let found = pass.within(|| wgrad::vjp_found(&[y], &[cotangent], &wanted))?;
        let (inputs, weights) = found.split_at(usize::from(kind > 0));
        let [inputs, weights] =
            [inputs, weights].map(|all| all.iter().flatten().copied().collect::<Vec<_>>());
        let later: Vec<Tensor> = inputs.iter().chain(&weights).copied().collect();
        ctx.sync()?;
        let forward = seconds(|| pass.compute_for(&[y], &later).and_then(|()| ctx.sync()))?;
        stash =
            ctx.stats().live_bytes.saturating_sub(before).saturating_sub(if kind < 2 { output } else { 0 });
        let input = match inputs.is_empty() {
            true => 0.0,
            false => seconds(|| pass.compute_for(&inputs, &weights).and_then(|()| ctx.sync()))?,
        };
        let weight = seconds(|| pass.compute(&weights).and_then(|()| ctx.sync()))?;
        Ok::<_, wgrad::Error>([forward, input, weight])
    });
    let [forward, input, weight] = times?;
    Ok(Layer {
        name: ["embedding", "block", "head"][kind].to_owned(),
        forward,
        input,
        weight,
        params: 4 * params.elems() as u64,
        stash: stash as u64,
        output: output as u64,
    })
}

/// The time of a handover between two devices: read, then written.
fn link(from: &Arc<dyn Backend>, to: &Arc<dyn Backend>, bytes: usize) -> Result<Link> {
    let (from, to) = (Context::new(Arc::clone(from))?, Context::new(Arc::clone(to))?);
    let value = Kept::zeros(&from, [bytes / 4])?;
    let copied = || {
        value.copy_to(&to)?;
        to.sync()
    };
    let [time] = least(|| seconds(copied).map(|time| [time]))?;
    Ok(Link::new(0.0, bytes as f64 / time))
}

/// The problem of cutting the model for these devices with micro-batches of `rows` rows.
pub(crate) fn problem(devices: &[Device], gpt: Gpt, rows: usize, micro_batches: usize) -> Result<Problem> {
    let mut specs = Vec::new();
    let mut layers = Vec::new();
    let mut opened: Vec<Arc<dyn Backend>> = Vec::new();
    for device in devices {
        let backend = device.open()?;
        // The same device again is as fast.
        let known = specs.iter().find(|s: &&DeviceSpec| s.name == device.name()).cloned();
        opened.push(Arc::clone(&backend));
        if let Some(known) = known {
            specs.push(known);
            continue;
        }
        let mut all = Vec::new();
        for (kind, count) in gpt.kinds().into_iter().enumerate() {
            let one = layer(&backend, gpt, kind, rows)?;
            let named = |i: usize| match kind {
                1 => Layer { name: format!("block{i}"), ..one.clone() },
                _ => one.clone(),
            };
            all.extend((0..count).map(named));
        }
        let times = all.iter().map(|l| [l.forward, l.input, l.weight]).collect();
        specs.push(DeviceSpec { times, ..DeviceSpec::new(device.name(), 1.0) });
        if layers.is_empty() {
            layers = all;
        }
    }
    let mut links = Links::all(Link::FREE);
    for (i, a) in opened.iter().enumerate() {
        for (j, b) in opened.iter().enumerate().filter(|(j, _)| *j != i) {
            links = links.with(i, j, link(a, b, rows * gpt.row_bytes())?);
        }
    }
    Ok(Problem {
        links,
        family: Family::OneFOneB,
        micro_batches,
        // Weight, gradient, two moments.
        copies: 4,
        input_bytes: (rows * gpt.tokens * 4) as u64,
        ..Problem::new(layers, specs)
    })
}
