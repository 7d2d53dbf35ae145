//! The workloads.

use wgrad::prelude::*;
use wgrad::{Result, Step};

/// A training step.
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// What is trained, and how.
pub(crate) enum Kind {
    /// `layers` times `relu(h W)` with square weights, mean square of the result, gradient descent.
    Chain { width: usize, batch: usize, layers: usize },
    /// A linear layer with its bias, mean squared error against targets, Adam.
    Dense { inputs: usize, outputs: usize, batch: usize },
}

pub(crate) const ALL: &[Work] = &[
    Work { name: "N1 chain d256 b32 x4", kind: Kind::Chain { width: 256, batch: 32, layers: 4 } },
    Work { name: "N2 chain d512 b64 x4", kind: Kind::Chain { width: 512, batch: 64, layers: 4 } },
    Work { name: "N3 chain d512 b256 x4", kind: Kind::Chain { width: 512, batch: 256, layers: 4 } },
    Work { name: "N4 chain d1024 b256 x4", kind: Kind::Chain { width: 1024, batch: 256, layers: 4 } },
    Work { name: "N5 chain d512 b64 x12", kind: Kind::Chain { width: 512, batch: 64, layers: 12 } },
    Work { name: "N8 dense 128->64 b64 Adam", kind: Kind::Dense { inputs: 128, outputs: 64, batch: 64 } },
];

type Run = Box<dyn Fn() -> Result<Deferred<f32>>>;

/// A model ready to be stepped.
pub(crate) struct Worker {
    pub(crate) ctx: Context,
    run: Run,
}

/// Values in (-1, 1) that look random and are the same everywhere.
fn values(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

impl Worker {
    pub(crate) fn new(ctx: Context, work: &Work, capture: bool) -> Result<Worker> {
        let run = match work.kind {
            Kind::Chain { width, batch, layers } => {
                let layer = |i: usize| {
                    let scale = (6.0 / width as f32).sqrt();
                    let weights: Vec<f32> = values(width * width, i).iter().map(|x| x * scale).collect();
                    Param::new(&ctx, &format!("w{i}"), HostTensor::new([width, width], &weights)?)
                };
                let weights = (0..layers).map(layer).collect::<Result<Vec<_>>>()?;
                let x = HostTensor::new([batch, width], &values(batch * width, 99))?;
                let step = move |x: Tensor| {
                    let mut h = x;
                    for w in &weights {
                        h = h.matmul(w.t()).relu();
                    }
                    let loss = h.square().mean(..);
                    let grads = loss.backward()?;
                    let _updating = wgrad::updating();
                    for w in &weights {
                        if let Some(g) = grads.get(w) {
                            w.set(w.t() - g * 0.05);
                        }
                    }
                    Ok(loss)
                };
                runner(&ctx, capture, x, step)
            }
            Kind::Dense { inputs, outputs, batch } => {
                let layer = Linear::new(&ctx, "fc", inputs, outputs, Rng::seed(1))?;
                let opt = std::cell::RefCell::new(Adam::new(layer.params(), AdamConfig::default())?);
                let both = inputs + outputs;
                let data = HostTensor::new([batch, both], &values(batch * both, 7))?;
                // Input and target travel as one tensor: one crossing.
                let step = move |data: Tensor| {
                    let x = data.slice(1, ..inputs);
                    let loss = (layer.forward(x) - data.slice(1, inputs..)).square().mean(..);
                    opt.borrow_mut().step(&loss.backward()?)?;
                    Ok(loss)
                };
                runner(&ctx, capture, data, step)
            }
        };
        Ok(Worker { ctx, run })
    }

    /// One step; its loss is still on the device.
    pub(crate) fn step(&self) -> Result<Deferred<f32>> {
        (self.run)()
    }
}

/// Runs `step` on `x` as a pass, or as a captured step.
fn runner(
    ctx: &Context,
    capture: bool,
    x: HostTensor,
    step: impl Fn(Tensor) -> Result<Tensor> + 'static,
) -> Run {
    if capture {
        let captured: Step<HostTensor, Tensor, _> = ctx.capture(move |_, x: Tensor| step(x));
        return Box::new(move || captured.run(x.clone()));
    }
    let ctx = ctx.clone();
    Box::new(move || ctx.pass(|p| Ok(step(p.input(&x)?)?.deferred())))
}
