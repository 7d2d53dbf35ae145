//! Gradients of gradients against finite differences.

use std::sync::OnceLock;

use wgrad::prelude::*;
use wgrad::{Result, grad};

use crate::Subject;
use crate::devices::oracle;
use crate::programs::{close, plain};

crate::suite![plain: ; device: cube_and_exp, gradient_norm];

fn cube_and_exp(subject: &Subject) {
    let points = [-1.5f32, -0.5, 0.25, 1.0, 2.0];
    let ctx = subject.context();
    let by = |f: fn(Tensor) -> Tensor| -> Result<[Vec<f64>; 3]> {
        ctx.pass(|p| {
            let x = p.input(HostTensor::new([points.len()], &points)?)?;
            let first = grad(f(x).sum(..), &[x])?[0];
            let second = grad(first.sum(..), &[x])?[0];
            let third = grad(second.sum(..), &[x])?[0];
            Ok([first.to_vec()?, second.to_vec()?, third.to_vec()?])
        })
    };
    // Central differences of the function itself, at a step where f64 has digits to spare.
    let differences = |f: fn(f64) -> f64| -> [Vec<f64>; 2] {
        let x = || points.iter().map(|x| f64::from(*x));
        let h = 1e-3;
        [
            x().map(|x| (f(x + h) - f(x - h)) / (2.0 * h)).collect(),
            x().map(|x| (f(x + h) - 2.0 * f(x) + f(x - h)) / (h * h)).collect(),
        ]
    };
    let check = |what: &str, got: &[Vec<f64>; 3], want: [Vec<f64>; 2], third: &[f64]| {
        for (got, want) in got.iter().zip(&want) {
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 2e-5 * (1.0 + want.abs()), "{what}: {got}, expected {want}");
            }
        }
        close(subject, what, &got[2], third, 1e-5);
    };
    let cubes = by(|x| x * x * x).expect("x^3");
    check("x^3", &cubes, differences(|x| x * x * x), &[6.0; 5]);
    let exps = by(Tensor::exp).expect("exp");
    let third: Vec<f64> = points.iter().map(|x| f64::from(*x).exp()).collect();
    check("exp", &exps, differences(f64::exp), &third);
}

const SHAPES: [[usize; 2]; 4] = [[3, 4], [1, 4], [4, 1], [1, 1]];

fn start() -> Vec<Vec<f32>> {
    let of = |(i, s): (usize, &[usize; 2])| plain::noise(20 + i as u64, s[0] * s[1]);
    SHAPES.iter().enumerate().map(of).collect()
}

/// The norm of the gradient of a two-layer perceptron's loss, and the gradient of that norm.
fn norm(ctx: &Context, weights: &[Vec<f32>], second: bool) -> Result<(f64, Vec<f64>)> {
    ctx.pass(|p| {
        let x = p.input(HostTensor::new([5, 3], &plain::noise(8, 15))?)?;
        let y = p.input(HostTensor::new([5, 1], &plain::noise(9, 5))?)?;
        let mut w = Vec::new();
        for (shape, values) in SHAPES.iter().zip(weights) {
            w.push(p.input(HostTensor::new(*shape, values)?)?);
        }
        let loss = ((x.matmul(w[0]) + w[1]).tanh().matmul(w[2]) + w[3]).mse(y);
        let mut squares = p.zeros([]);
        for g in grad(loss, &w)? {
            squares = squares + g.square().sum(..);
        }
        let norm = squares.sqrt();
        let mut all = Vec::new();
        if second {
            for g in grad(norm, &w)? {
                all.extend(g.to_vec::<f64>()?);
            }
        }
        Ok((norm.item()?, all))
    })
}

/// The gradient of the norm by central differences on the oracle.
fn differences() -> &'static [f64] {
    static GRADIENT: OnceLock<Vec<f64>> = OnceLock::new();
    GRADIENT.get_or_init(|| {
        let ctx = oracle();
        // A step of the grid on which the weights lie, so that f32 holds the moved weights exactly.
        let h = 2f32.powi(-14);
        let mut gradient = Vec::new();
        for (i, values) in start().iter().enumerate() {
            for j in 0..values.len() {
                let moved = |by: f32| {
                    let mut weights = start();
                    weights[i][j] += by;
                    norm(&ctx, &weights, false).expect("the oracle computes").0
                };
                gradient.push((moved(h) - moved(-h)) / (2.0 * f64::from(h)));
            }
        }
        gradient
    })
}

fn gradient_norm(subject: &Subject) {
    let (_, got) = norm(&subject.context(), &start(), true).expect("the device computes");
    let want = differences();
    let scale = want.iter().fold(0.0f64, |s, w| s.max(w.abs()));
    assert_eq!(got.len(), want.len());
    let tolerance = if subject.is_oracle() { 1e-7 } else { 1e-5 };
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < tolerance * scale, "{got}, expected {want}");
    }
}
