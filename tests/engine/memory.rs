//! Peak memory, known from plans alone: a checkpointed chain within the square-root law, accumulated
//! micro-batches at about the price of one.

use wgrad_autograd::{Context, HostTensor, Param, Result, Tensor, checkpoint};

use crate::devices;

const ROWS: usize = 2048;
const WIDTH: usize = 32;
const BLOCKS: usize = 12;
const LAYERS: usize = 12;

crate::suite![plain: checkpointed_chain, accumulated_micro_batches; device:];

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
