//! A model cut in two stages on two contexts, driven by hand with `vjp`; the same numbers as in one.

use wgrad::prelude::*;
use wgrad::{Grads, Result, vjp};

use super::{close, plain, values, weights_close};
use crate::Subject;

crate::suite![plain: ; device: two_stages];

const DIMS: [usize; 4] = [6, 9, 7, 4];
const BATCH: usize = 8;
const STEPS: u64 = 4;

fn two_stages(subject: &Subject) {
    run(subject).expect("the programs run");
}

/// The gradients of `params` among the results of a `vjp`.
fn by_param(params: &ParamSet, grads: &[Tensor]) -> Grads {
    params.iter().map(Param::id).zip(grads.iter().copied()).collect()
}

fn run(subject: &Subject) -> Result<()> {
    let config = SgdConfig { lr: 0.3, momentum: 0.5, ..Default::default() };
    let x = |step: u64| HostTensor::new([BATCH, DIMS[0]], &plain::noise(step, BATCH * DIMS[0]));
    let y: Vec<i32> = (0..BATCH as i32).map(|i| i % 4).collect();
    let labels = HostTensor::new([BATCH], &y)?;

    // Stage 0 ends with a nonlinearity, stage 1 with the loss.
    let (c0, c1) = (subject.context(), subject.context());
    let stage0 = (Mlp::new(&c0, &DIMS[..3], Rng::seed(1))?, Activation::Relu);
    let stage1 = Mlp::new(&c1, &DIMS[2..], Rng::seed(2))?;
    let (params0, params1) = (stage0.0.params(), stage1.params());
    let (mut opt0, mut opt1) = (Sgd::new(params0.clone(), config)?, Sgd::new(params1.clone(), config)?);
    let mut weights: plain::Weights = [values(&params0)?, values(&params1)?].concat();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (p0, p1) = (c0.begin()?, c1.begin()?);
        let y0 = stage0.1.forward(stage0.0.forward(p0.input(x(step)?)?));
        let x1 = p1.input(y0.read()?)?;
        let loss = stage1.forward(x1).cross_entropy(p1.input(&labels)?);
        let wanted: Vec<Tensor> = [x1].into_iter().chain(params1.iter().map(Param::t)).collect();
        let grads1 = vjp(&[loss], &[p1.ones([])], &wanted)?;
        let dy0 = p0.input(grads1[0].read()?)?;
        let wanted: Vec<Tensor> = params0.iter().map(Param::t).collect();
        let grads0 = vjp(&[y0], &[dy0], &wanted)?;
        opt1.step(&by_param(&params1, &grads1[1..]))?;
        opt0.step(&by_param(&params0, &grads0))?;
        losses.push(loss.deferred::<f64>());
        p1.end()?;
        p0.end()?;
    }
    let losses = losses.iter().map(Deferred::get).collect::<Result<Vec<f64>>>()?;

    // In one context.
    let ctx = subject.context();
    let front = (Mlp::new(&ctx, &DIMS[..3], Rng::seed(1))?, Activation::Relu);
    let back = Mlp::new(&ctx, &DIMS[2..], Rng::seed(2))?;
    let params: ParamSet = front.0.params().into_iter().chain(back.params()).collect();
    let mut opt = Sgd::new(params.clone(), config)?;
    let mut single = Vec::new();
    for step in 0..STEPS {
        single.push(ctx.pass(|p| {
            let h = front.1.forward(front.0.forward(p.input(x(step)?)?));
            let loss = back.forward(h).cross_entropy(p.input(&labels)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?);
    }
    let single = single.iter().map(Deferred::get).collect::<Result<Vec<f64>>>()?;
    let both: plain::Weights = [values(&params0)?, values(&params1)?].concat();
    if subject.is_cpu() {
        assert_eq!(losses, single, "cutting changes no bit");
        assert_eq!(both, values(&params)?, "cutting changes no bit");
    }

    // And plainly: one perceptron of three layers.
    let net = plain::Mlp { dims: &DIMS, activation: plain::RELU };
    let targets: Vec<usize> = y.iter().map(|y| *y as usize).collect();
    let (mut sgd, mut want) = (plain::Sgd::default(), Vec::new());
    for step in 0..STEPS {
        let forward = net.forward(&weights, &x(step)?.to_vec::<f64>());
        let (loss, dlogits) = plain::cross_entropy(&forward[3], &targets, 4);
        let (grads, _) = net.backward(&weights, &forward, dlogits);
        sgd.step(&mut weights, &grads, 0.3, 0.5);
        want.push(loss);
    }
    // What crosses from context to context is rounded to f32, on the oracle too.
    let near = |got: &[f64], want: &[f64], tolerance: f64| {
        got.iter().zip(want).all(|(got, want)| (got - want).abs() <= tolerance * want.abs().max(1.0))
    };
    let tolerance = if subject.is_oracle() { 1e-7 } else { 1e-5 };
    assert!(near(&losses, &want, tolerance), "losses in two stages: {losses:?}, expected {want:?}");
    close(subject, "losses in one", &single, &want, 1e-5);
    weights_close(subject, &params, &weights, 1e-4);
    for (got, want) in both.iter().zip(&weights) {
        assert!(near(got, want, 10.0 * tolerance), "weights in two stages: {got:?}, expected {want:?}");
    }
    Ok(())
}
