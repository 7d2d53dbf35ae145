//! A training step: forward, mean cross-entropy, backward, optimizer, on a batch that stays on the device.

use std::sync::{Arc, Mutex, PoisonError};

use wgrad::prelude::*;
use wgrad::{ContextOptions, Kept, Pass, Result};
use wgrad_benches::{Model, Optim};

use crate::nets;

type Run = Box<dyn Fn() -> Result<Deferred<f32>>>;

/// A model on a device, ready to be trained.
pub(crate) struct Training {
    pub(crate) ctx: Context,
    step: Run,
}

/// How a step is recorded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Anew each time.
    Recorded,
    /// Once, and replayed.
    Captured,
    /// Anew each time, in so many bytes by recomputation.
    Within(usize),
}

impl How {
    /// What is said behind the name of a workload.
    pub(crate) fn label(self) -> String {
        match self {
            How::Recorded => String::new(),
            How::Captured => ", captured".to_owned(),
            How::Within(bytes) => format!(", within {} MiB", bytes >> 20),
        }
    }
}

struct Parts {
    net: Box<dyn Module + Send + Sync>,
    opt: Mutex<Box<dyn Optimizer + Send>>,
    batch: Kept,
    targets: Kept,
    /// In mixed precision, whose products are of f16.
    scaler: Option<LossScaler>,
}

impl Parts {
    fn loss(&self, p: &Pass) -> Result<Tensor> {
        let forward = || self.net.forward(self.batch.t()).try_cross_entropy(self.targets.t());
        let mut opt = self.opt.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(scaler) = &self.scaler else {
            let loss = forward()?;
            opt.step(&loss.backward()?)?;
            return Ok(loss);
        };
        let loss = p.autocast(DType::F16, forward)?;
        scaler.step(&mut **opt, &scaler.backward(loss)?)?;
        Ok(loss)
    }
}

impl Training {
    pub(crate) fn new(device: &Device, model: &Model, how: How) -> Result<Training> {
        let mut options = ContextOptions::default();
        if let How::Within(bytes) = how {
            options = options.recompute_within(bytes);
        }
        let ctx = Context::with(device, options)?;
        let net = nets::build(&ctx, model)?;
        let opt: Box<dyn Optimizer + Send> = match model.optim() {
            Optim::AdamW { lr } => {
                Box::new(AdamW::new(net.params(), AdamWConfig { lr, ..Default::default() })?)
            }
            Optim::Sgd { lr } => {
                Box::new(Sgd::new(net.params(), SgdConfig { lr, momentum: 0.9, ..Default::default() })?)
            }
        };
        let dims = model.input().0;
        let batch = match model {
            Model::Gpt { .. } => HostTensor::new(&*dims, &model.words())?,
            _ => HostTensor::new(&*dims, &model.floats())?,
        };
        let labels = match model {
            Model::Gpt { .. } => dims,
            _ => vec![dims[0]],
        };
        let targets = Kept::new(&ctx, HostTensor::new(&*labels, &model.targets())?)?;
        let mixed = matches!(model, Model::Gpt { mixed: true, .. });
        // Small enough that the first steps, which are compared, are all applied.
        let scale = LossScale { initial: 1024.0, ..Default::default() };
        let scaler = mixed.then(|| LossScaler::new(&ctx, scale)).transpose()?;
        let batch = Kept::new(&ctx, batch)?;
        let parts = Arc::new(Parts { net, opt: Mutex::new(opt), batch, targets, scaler });
        let step: Run = match how {
            How::Recorded | How::Within(_) => {
                let ctx = ctx.clone();
                Box::new(move || ctx.pass(|p| Ok(parts.loss(p)?.deferred())))
            }
            How::Captured => {
                let step = ctx.capture(move |p, (): ()| parts.loss(p));
                Box::new(move || step.run(()))
            }
        };
        Ok(Training { ctx, step })
    }

    /// Submits a step; the loss is there later.
    pub(crate) fn step(&self) -> Result<Deferred<f32>> {
        (self.step)()
    }

    /// The losses of the next steps.
    pub(crate) fn losses(&self, steps: usize) -> Result<Vec<f32>> {
        (0..steps).map(|_| self.step()?.get()).collect()
    }
}
