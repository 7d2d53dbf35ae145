//! Peak memory, known from plans alone: a checkpointed chain within the square-root law, accumulated
//! micro-batches at about the price of one.

use wgrad_autograd::{Context, ContextOptions, ErrorKind, HostTensor, Param, Result, Tensor, checkpoint};

use wgrad_graph::Fast;

use crate::{Subject, devices};

const ROWS: usize = 2048;
const WIDTH: usize = 32;
const BLOCKS: usize = 12;
const LAYERS: usize = 12;

crate::suite![plain: checkpointed_chain, accumulated_micro_batches, recomputed_within_a_budget,
    fewer_segments_for_more_memory, refused_where_nothing_fits, random_numbers_are_drawn_again, a_gelu_holds_its_operand_alone;
    device: recomputed_on_every_device];

/// Bytes of one activation.
const ACTIVATION: usize = ROWS * WIDTH * 4;

fn weight(ctx: &Context, name: &str) -> Param {
    let data: Vec<f32> = (0..WIDTH * WIDTH).map(|i| ((i * 37 % 101) as f32 - 50.0) / 300.0).collect();
    Param::new(ctx, name, HostTensor::new([WIDTH, WIDTH], &data).expect("it fits")).expect("a parameter")
}

fn rows(seed: usize) -> HostTensor {
    let data: Vec<f32> = (0..ROWS * WIDTH).map(|i| ((i * 13 + seed) % 17) as f32 / 17.0).collect();
    HostTensor::new([ROWS, WIDTH], &data).expect("it fits")
}

fn block(x: Tensor, w: Tensor) -> Tensor {
    (0..LAYERS).fold(x, |h, _| h.matmul(w).tanh())
}

/// Peak of a step over the chain, and the updated weights.
fn chain(checkpointed: bool) -> (usize, Vec<Vec<f32>>) {
    let ctx = devices::cpu();
    let weights: Vec<Param> = (0..BLOCKS).map(|i| weight(&ctx, &format!("w{i}"))).collect();
    ctx.pass(|p| {
        let mut h = p.input(rows(1))?;
        for w in &weights {
            let w = w.t();
            h = if checkpointed { checkpoint(h, |h| Ok(block(h, w)))? } else { block(h, w) };
        }
        descend(&weights, h.square().mean_all())
    })
    .expect("the step runs");
    let plan = ctx.last_plan().expect("a step was planned");
    plan.check(ctx.caps()).expect("the plan is sound");
    let read = |w: &Param| w.read().expect("a value").to_vec::<f32>();
    (plan.workspace_bytes, weights.iter().map(read).collect())
}

fn descend(weights: &[Param], loss: Tensor) -> Result<()> {
    let grads = loss.backward()?;
    for w in weights {
        w.set(w.t() - grads.get(w).expect("it is used") * 0.1);
    }
    Ok(())
}

fn checkpointed_chain() {
    let (plain, want) = chain(false);
    let (peak, got) = chain(true);
    assert_eq!(want, got, "recomputation changes nothing");
    let most = (BLOCKS + LAYERS + 6) * ACTIVATION;
    assert!(plain > BLOCKS * (LAYERS - 1) * ACTIVATION, "the plain chain holds its activations: {plain}");
    assert!(peak <= most, "peak {peak}, at most {most} by the square-root law; plain {plain}");
}

/// Peak of a step over `n` micro-batches whose losses are summed.
fn accumulated(n: usize) -> usize {
    let ctx = devices::cpu();
    let weights: Vec<Param> = (0..4).map(|i| weight(&ctx, &format!("w{i}"))).collect();
    // Data that are there already, so that only what the step computes counts.
    let batches: Vec<_> = (0..n).map(|i| wgrad_autograd::Kept::new(&ctx, rows(i)).expect("kept")).collect();
    ctx.pass(|_| {
        let mut total: Option<Tensor> = None;
        for batch in &batches {
            let h = weights.iter().fold(batch.t(), |h, w| block(h, w.t()));
            let loss = h.square().mean_all();
            total = Some(total.map_or(loss, |t| t + loss));
        }
        descend(&weights, total.expect("at least one"))
    })
    .expect("the step runs");
    ctx.last_plan().expect("a step was planned").workspace_bytes
}

fn accumulated_micro_batches() {
    let (one, four) = (accumulated(1), accumulated(4));
    assert!(four as f64 <= 1.1 * one as f64, "four micro-batches need {four} bytes, one needs {one}");
}

/// A step of a chain with dropout within `bytes`, if any: the most that was held, the steps of its plan, the updated
/// weights.
fn within(bytes: Option<usize>, dropout: bool) -> Result<(usize, usize, Vec<Vec<f32>>)> {
    let options = bytes.map_or(ContextOptions::default(), |b| ContextOptions::default().recompute_within(b));
    let ctx = Context::with(
        std::sync::Arc::new(wgrad_cpu::Cpu::new()) as std::sync::Arc<dyn wgrad_graph::Backend>,
        options,
    )?;
    let weights: Vec<Param> = (0..BLOCKS).map(|i| weight(&ctx, &format!("w{i}"))).collect();
    let mut predicted = None;
    ctx.pass(|p| {
        let mut h = p.input(rows(1))?;
        for w in &weights {
            h = h + block(h, w.t()) * 0.125;
            if dropout {
                h = h * p.rand("drop", [ROWS, WIDTH]);
            }
        }
        descend(&weights, h.square().mean_all())?;
        predicted = Some(p.predict()?);
        Ok(())
    })?;
    let plan = ctx.last_plan().expect("a step was planned");
    plan.check(ctx.caps()).expect("the plan is sound");
    let memory = plan.memory(ctx.caps());
    assert!(memory.least_workspace_bytes <= memory.workspace_bytes, "{memory:?}");
    let peak = ctx.stats().peak_bytes;
    // What was told before it ran is what was held.
    assert_eq!((predicted, peak), (Some(memory), memory.peak_bytes()));
    let read = |w: &Param| w.read().expect("a value").to_vec::<f32>();
    Ok((peak, plan.steps.len(), weights.iter().map(read).collect()))
}

fn recomputed_within_a_budget() {
    let (plain, _, want) = within(None, false).expect("nothing is refused");
    for share in [2, 4] {
        let most = plain / share;
        let (peak, _, got) = within(Some(most), false).expect("a choice fits");
        assert!(peak <= most, "1/{share}: {peak} bytes were held, {most} allowed, {plain} without");
        assert_eq!(want, got, "recomputation changes nothing");
    }
}

fn fewer_segments_for_more_memory() {
    let (plain, whole, _) = within(None, false).expect("nothing is refused");
    let steps = |most| within(Some(most), false).expect("a choice fits").1;
    let (little, half, all) = (steps(plain * 9 / 10), steps(plain / 2), steps(plain));
    assert_eq!(all, whole, "what fits is not computed again");
    assert!(whole < little && little < half, "{whole}, {little} and {half} steps");
    assert!(half * 3 <= whole * 4, "at most the forward part is computed again: {half} steps of {whole}");
}

fn refused_where_nothing_fits() {
    let error = within(Some(3 * ACTIVATION), false).expect_err("three activations cannot do");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text = error.to_string();
    assert!(text.contains(&format!("{} bytes are allowed", 3 * ACTIVATION)), "{text}");
}

fn random_numbers_are_drawn_again() {
    let (plain, _, want) = within(None, true).expect("nothing is refused");
    let (peak, _, got) = within(Some(plain / 3), true).expect("a choice fits");
    assert!(peak <= plain / 3);
    assert_eq!(want, got, "both computations draw the same");
}

/// Its gradient reads the operand in any case; the error function is computed again rather than held beside it.
fn a_gelu_holds_its_operand_alone() {
    let ctx = devices::cpu();
    if !ctx.caps().allows(Fast::Repeats) || !ctx.caps().allows(Fast::Fusion) {
        return;
    }
    let weights: Vec<Param> = (0..BLOCKS).map(|i| weight(&ctx, &format!("w{i}"))).collect();
    ctx.pass(|p| {
        let x = p.input(rows(1))?;
        descend(&weights, weights.iter().fold(x, |h, w| h.matmul(w.t()).gelu()).square().mean_all())
    })
    .expect("the step runs");
    let plan = ctx.last_plan().expect("a step was planned");
    let (bytes, most) = (plan.memory(ctx.caps()).least_workspace_bytes, (2 * BLOCKS + 6) * ACTIVATION);
    assert!(
        bytes <= most,
        "operand and result of each layer and a few more: {most} bytes, not {bytes}; {plan}"
    );
}

/// Three steps of a network with dropout, layer norms and attention; `bytes` as above.
fn losses(subject: &Subject, bytes: Option<usize>) -> Result<(Vec<f64>, Vec<f32>, usize, bool)> {
    let options = bytes.map_or(ContextOptions::default(), |b| ContextOptions::default().recompute_within(b));
    let ctx = Context::with(subject.fresh(), options)?;
    let weights: Vec<Param> = (0..6).map(|i| weight(&ctx, &format!("w{i}"))).collect();
    let mut losses = Vec::new();
    for step in 0..3 {
        let loss: wgrad_autograd::Deferred<f64> = ctx.pass(|p| {
            let mut h = p.input(rows(step))?.reshape([32, 64, WIDTH]);
            for w in &weights {
                let x = h.standardize(-1, 1e-5) * p.rand("drop", [32, 64, WIDTH]);
                let mixed = x.matmul(x.transpose(1, 2)).softmax(-1).matmul(x.matmul(w.t()));
                h = h + mixed.gelu();
            }
            let loss = h.square().mean_all();
            descend(&weights, loss)?;
            Ok(loss.deferred())
        })?;
        losses.push(loss.get()?);
    }
    let plan = ctx.last_plan().expect("a step was planned");
    plan.check(ctx.caps()).expect("the plan is sound");
    let again = plan.notes.iter().any(|n| n.contains("computed again to save memory"));
    Ok((losses, weights[0].read()?.to_vec(), ctx.stats().peak_bytes, again))
}

fn recomputed_on_every_device(subject: &Subject) {
    // The oracle interprets graphs and has no workspace to fit.
    if subject.is_oracle() {
        return;
    }
    let (want, want_weights, peak, again) = losses(subject, None).expect("nothing is refused");
    assert!(!again);
    let (got, weights, less, again) = losses(subject, Some(peak / 10 * 6)).expect("a choice fits");
    assert!(again && less < peak, "{less} bytes held, {peak} without");
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs().max(1e-3);
    assert!(got.iter().zip(&want).all(|(a, b)| close(*a, *b)), "{got:?} {want:?}");
    let same = weights.iter().zip(&want_weights).all(|(a, b)| close(f64::from(*a), f64::from(*b)));
    assert!(same, "{weights:?} {want_weights:?}");
}
