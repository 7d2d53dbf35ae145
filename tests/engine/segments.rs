//! Programs cut into segments, and gradients of the user's own.

use wgrad_autograd::{HostTensor, Param, Program, Result, Tensor, custom_gradient, grad, vjp};

use crate::{Subject, devices};

crate::suite![
    plain: cut_changes_nothing;
    device: forward_input_weight, own_gradient
];

fn host(shape: [usize; 2], seed: usize) -> HostTensor {
    let n = shape[0] * shape[1];
    let data: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 23.0 - 0.4).collect();
    HostTensor::new(shape, &data).expect("it fits")
}

struct Stage {
    w0: Param,
    w1: Param,
}

impl Stage {
    fn new(subject: &Subject) -> Stage {
        let ctx = subject.context();
        let param = |name, shape, seed| Param::new(&ctx, name, host(shape, seed)).expect("a parameter");
        Stage { w0: param("w0", [5, 7], 1), w1: param("w1", [7, 3], 2) }
    }

    /// Output, input gradient and weight gradients of a stage for a given cotangent.
    fn record(&self, x: Tensor, dy: Tensor) -> Result<[Vec<Tensor>; 3]> {
        let (w0, w1) = (self.w0.t(), self.w1.t());
        let y = x.matmul(w0).tanh().matmul(w1).sigmoid();
        let d = vjp(&[y], &[dy], &[x, w0, w1])?;
        Ok([vec![y], vec![d[0]], vec![d[1], d[2]]])
    }
}

/// A stage cut into forward, input and weight segments gives what one pass gives.
fn forward_input_weight(subject: &Subject) {
    let stage = Stage::new(subject);
    let ctx = stage.w0.context().clone();
    let inputs = (host([4, 5], 3), host([4, 3], 4));
    let whole: Vec<Vec<f32>> = ctx
        .pass(|p| {
            let parts = stage.record(p.input(&inputs.0)?, p.input(&inputs.1)?)?;
            parts.concat().iter().map(Tensor::to_vec).collect()
        })
        .expect("one pass");
    let program =
        Program::record(&ctx, |p| Ok(stage.record(p.input(&inputs.0)?, p.input(&inputs.1)?)?.to_vec()))
            .expect("recorded");
    let segments = program.segments().expect("planned");
    assert_eq!(segments.len(), 3);
    assert!(!segments[0].stash.is_empty(), "the forward segment leaves values for the others");
    for segment in &segments {
        segment.plan.check(ctx.caps()).expect("a sound plan");
        assert!(segment.to_string().contains("input 0"), "a segment prints");
    }
    for _ in 0..2 {
        let parts = program.run().expect("it runs");
        let parts: Vec<Vec<f32>> = parts.concat().iter().map(HostTensor::to_vec).collect();
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        assert!(parts.iter().flatten().zip(whole.iter().flatten()).all(close), "{parts:?} and {whole:?}");
    }
}

/// On the CPU executor the cut does not change a bit.
fn cut_changes_nothing() {
    let subject = devices::all().iter().find(|s| s.is_cpu());
    let Some(subject) = subject else { return };
    let stage = Stage::new(subject);
    let ctx = stage.w0.context().clone();
    let inputs = (host([9, 5], 5), host([9, 3], 6));
    let bits = |cuts: &dyn Fn([Vec<Tensor>; 3]) -> Vec<Vec<Tensor>>| {
        let program =
            Program::record(&ctx, |p| Ok(cuts(stage.record(p.input(&inputs.0)?, p.input(&inputs.1)?)?)));
        let parts = program.expect("recorded").run().expect("it runs");
        parts.concat().iter().flat_map(|t| t.to_vec::<f32>()).map(f32::to_bits).collect::<Vec<_>>()
    };
    let one = bits(&|parts| vec![parts.concat()]);
    assert_eq!(one, bits(&|parts| parts.to_vec()));
    assert_eq!(one, bits(&|[f, i, w]| vec![f, [i, w].concat()]));
}

/// A straight-through rounding: the user's gradient in place of the operation's zero, also twice.
fn own_gradient(subject: &Subject) {
    let ctx = subject.context();
    let x = HostTensor::new([3], &[0.4f32, 1.6, -2.7]).expect("it fits");
    let (y, d, dd) = ctx
        .pass(|p| {
            let x = p.input(&x)?;
            let round = |x: &[Tensor]| Ok(x[0].round());
            let y = custom_gradient(&[x], round, |g| Ok(vec![Some(g.dout(0) * g.input(0))]))?;
            let d = grad((y * y).sum(..), &[x])?[0];
            let dd = grad(d.sum(..), &[x])?[0];
            Ok((y.to_vec::<f32>()?, d.to_vec::<f32>()?, dd.to_vec::<f32>()?))
        })
        .expect("the pass runs");
    assert_eq!(y, [0.0, 2.0, -3.0]);
    // d = 2 y x; its derivative is 2 (dy/dx) x + 2 y with dy/dx = x.
    let want: Vec<f32> = y.iter().zip([0.4f32, 1.6, -2.7]).map(|(y, x)| 2.0 * y * x).collect();
    let second: Vec<f32> = y.iter().zip([0.4f32, 1.6, -2.7]).map(|(y, x)| 2.0 * x * x + 2.0 * y).collect();
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(close(&d, &want), "{d:?}, expected {want:?}");
    assert!(close(&dd, &second), "{dd:?}, expected {second:?}");
    let wrong = ctx.pass(|p| {
        let x = p.input(&x)?;
        let y = custom_gradient(&[x], |x| Ok(x[0].exp()), |_| Ok(Vec::new()))?;
        grad(y.sum(..), &[x]).map(|_| ())
    });
    assert!(wrong.expect_err("too few gradients").to_string().contains("custom_gradient"));
}
