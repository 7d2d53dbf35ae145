//! A custom operation: own WGSL, its CPU twin, its gradient, and the gradient of that.

use wgrad::prelude::*;
use wgrad::{Custom, CustomOp, Result, grad};

use super::{close, plain, values, weights_close};
use crate::Subject;

crate::suite![plain: ; device: swish];

fn swish_op() -> Result<Custom> {
    let map = |f: fn(f64) -> f64| {
        move |x: &[&[f64]], y: &mut [Vec<f64>]| y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = f(*x))
    };
    let swish_grad = CustomOp::new("swish_grad", include_str!("swish_grad.wgsl"))
        .cpu(map(|x| {
            let s = 1.0 / (1.0 + (-x).exp());
            s + x * s * (1.0 - s)
        }))
        .gradient(|g| {
            let (x, s) = (g.input(0), g.input(0).sigmoid());
            Ok(vec![Some(g.dout(0) * s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s)))])
        })
        .build()?;
    CustomOp::new("swish", include_str!("swish.wgsl"))
        .cpu(map(|x| x / (1.0 + (-x).exp())))
        .gradient(move |g| Ok(vec![Some(g.dout(0) * swish_grad.call(&[g.input(0)])[0])]))
        .build()
}

const DIMS: [usize; 3] = [3, 7, 1];
const ROWS: usize = 10;

fn swish(subject: &Subject) {
    run(subject).expect("the program runs");
}

fn run(subject: &Subject) -> Result<()> {
    let ctx = subject.context();
    let swish = swish_op()?;

    // The function, its first and its second derivative at a few points; more than one workgroup.
    let x: Vec<f32> = plain::noise(1, 150).iter().map(|x| 6.0 * x).collect();
    let host = HostTensor::new([150], &x)?;
    ctx.pass(|p| {
        let x = p.input(&host)?;
        let y = swish.call(&[x])[0];
        let dy = grad(y.sum(..), &[x])?[0];
        let ddy = grad(dy.sum(..), &[x])?[0];
        let of = |f: fn(f64, f64) -> f64| -> Vec<f64> {
            plain::wide(&host.to_vec::<f32>()).into_iter().map(|x| f(x, plain::sigmoid(x))).collect()
        };
        close(subject, "swish", &y.to_vec::<f64>()?, &of(|x, s| x * s), 1e-6);
        close(subject, "swish'", &dy.to_vec::<f64>()?, &of(|x, s| s + x * s * (1.0 - s)), 1e-6);
        let second = of(|x, s| s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s)));
        close(subject, "swish''", &ddy.to_vec::<f64>()?, &second, 3e-6);
        Ok(())
    })?;

    // A network that trains through it.
    let (fc1, fc2) =
        (Linear::new(&ctx, "fc1", 3, 7, Rng::seed(1))?, Linear::new(&ctx, "fc2", 7, 1, Rng::seed(1))?);
    let params: ParamSet = fc1.params().into_iter().chain(fc2.params()).collect();
    let mut opt = Sgd::new(params.clone(), SgdConfig { lr: 0.1, ..Default::default() })?;
    let mut w = values(&params)?;
    for step in 0..4 {
        let (x, y) = (plain::noise(step, ROWS * 3), plain::noise(50 + step, ROWS));
        let (inputs, targets) = (HostTensor::new([ROWS, 3], &x)?, HostTensor::new([ROWS, 1], &y)?);
        let loss = ctx.pass(|p| {
            let hidden = swish.call(&[fc1.forward(p.input(&inputs)?)])[0];
            let loss = fc2.forward(hidden).mse(p.input(&targets)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?;

        let (x, y) = (plain::wide(&x), plain::wide(&y));
        let before = plain::linear(&x, &w[0], &w[1], [ROWS, DIMS[0]]);
        let hidden: Vec<f64> = before.iter().map(|x| x * plain::sigmoid(*x)).collect();
        let away = plain::zip(&plain::linear(&hidden, &w[2], &w[3], [ROWS, DIMS[1]]), &y, |a, b| a - b);
        let want = away.iter().map(|a| a * a).sum::<f64>() / ROWS as f64;
        let dy: Vec<f64> = away.iter().map(|a| 2.0 * a / ROWS as f64).collect();
        let [dhidden, dw2, db2] = plain::linear_back(&hidden, &w[2], &dy, [ROWS, DIMS[1], DIMS[2]]);
        let dbefore = plain::zip(&dhidden, &before, |d, x| {
            let s = plain::sigmoid(x);
            d * (s + x * s * (1.0 - s))
        });
        let [_, dw1, db1] = plain::linear_back(&x, &w[0], &dbefore, [ROWS, DIMS[0], DIMS[1]]);
        for (w, g) in w.iter_mut().zip([dw1, db1, dw2, db2]) {
            *w = plain::zip(w, &g, |w, g| w - 0.1 * g);
        }
        close(subject, "loss", &[loss.get()?], &[want], 1e-5);
    }
    weights_close(subject, &params, &w, 1e-4);
    Ok(())
}
