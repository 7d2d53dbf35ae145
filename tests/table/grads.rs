//! Gradients of a case on the f64 oracle by central differences. The case stands in the middle of a
//! graph, `sum(f(1.3 x + 0.1) * weights)`, so that a rule that ignores the gradient it is given, or
//! drops a factor, fails.

use wgrad::{Context, DType, Pass, Result, Tensor, grad};

use super::case::{Case, Grad, host, spread};
use crate::devices::oracle;

const EPS: f64 = 1e-5;
/// Elements of an operand that are moved; of larger operands every so many-th is.
const MOST: usize = 24;

/// What differences are taken of.
#[derive(Copy, Clone, Debug)]
enum What {
    /// The loss.
    Loss,
    /// The loss's gradient along a direction.
    Slope,
}

fn leaves(p: &Pass, case: &Case, data: &[Vec<f64>]) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let (mut floats, mut seen) = (Vec::new(), Vec::new());
    for (operand, x) in case.operands.iter().zip(data) {
        let x = p.input(host(&operand.dims, x, operand.dtype(DType::F64)))?;
        if operand.is_float() {
            floats.push(x);
            seen.push(x * 1.3 + 0.1);
        } else {
            seen.push(x);
        }
    }
    Ok((floats, seen))
}

fn scalar(p: &Pass, case: &Case, floats: &[Tensor], seen: &[Tensor], what: What) -> Result<Tensor> {
    let y = (case.f)(p, seen);
    let loss = (y * super::weights(p, y)?).sum_all();
    Ok(match what {
        What::Loss => loss,
        What::Slope => {
            let mut along = p.full([], 0.0).cast(DType::F64);
            for (i, (g, x)) in grad(loss, floats)?.into_iter().zip(floats).enumerate() {
                let shape = x.shape();
                let v = host(shape.dims(), &spread(shape.elems(), -1.0, 1.2, 0.19 + i as f64), DType::F64);
                along = along + (g * p.input(v)?).sum_all();
            }
            along
        }
    })
}

fn compare(ctx: &Context, case: &Case, what: What, tolerance: f64) {
    let name = &case.name;
    let told = |e| panic!("{name} {what:?}: {e}");
    let data: Vec<Vec<f64>> = (case.operands.iter().enumerate())
        .map(|(i, o)| {
            let seen = o.elems(i);
            if o.is_float() { seen.iter().map(|z| (z - 0.1) / 1.3).collect() } else { seen }
        })
        .collect();
    let found = |p: &Pass| {
        let (floats, seen) = leaves(p, case, &data)?;
        let mut all = Vec::new();
        for (g, x) in grad(scalar(p, case, &floats, &seen, what)?, &floats)?.iter().zip(&floats) {
            assert_eq!(g.shape(), x.shape(), "{name}: shape of a gradient");
            all.push(g.to_vec::<f64>()?);
        }
        Ok(all)
    };
    let analytic: Vec<Vec<f64>> = ctx.pass(found).unwrap_or_else(told);
    let at = |data: &[Vec<f64>]| -> f64 {
        let value = |p: &Pass| {
            let (floats, seen) = leaves(p, case, data)?;
            scalar(p, case, &floats, &seen, what)?.item::<f64>()
        };
        ctx.pass(value).unwrap_or_else(|e| panic!("{name} {what:?}: {e}"))
    };
    let floats: Vec<usize> = (0..data.len()).filter(|i| case.operands[*i].is_float()).collect();
    for (analytic, i) in analytic.iter().zip(floats) {
        for j in (0..analytic.len()).step_by(analytic.len().div_ceil(MOST).max(1)) {
            let mut moved = data.clone();
            moved[i][j] += EPS;
            let above = at(&moved);
            moved[i][j] -= 2.0 * EPS;
            let want = (above - at(&moved)) / (2.0 * EPS);
            let got = analytic[j];
            let close = (got - want).abs() <= tolerance * want.abs().max(1.0);
            assert!(close, "{name} {what:?}: operand {i}, element {j}: {got}, by differences {want}");
        }
    }
}

pub(crate) fn check(case: &Case) {
    let ctx = oracle();
    compare(&ctx, case, What::Loss, 1e-6);
    if case.grad == Grad::Twice {
        compare(&ctx, case, What::Slope, 1e-5);
    }
}
