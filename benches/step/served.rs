//! The workloads for a driver that compares frameworks.

use wgrad::prelude::*;
use wgrad_benches::{Fault, Peer, Row};

use crate::training::{How, Training};

/// Steps whose losses are compared.
const CHECKED: usize = 3;

/// A training that is open.
pub(crate) struct Served {
    pub(crate) device: Device,
    pub(crate) how: How,
    pub(crate) open: Option<Training>,
}

impl Peer for Served {
    fn open(&mut self, row: &Row) -> Result<Vec<Vec<f32>>, Fault> {
        self.close();
        let model = row.model.clone().ok_or("no training step")?;
        let training = Training::new(&self.device, &model, self.how)?;
        let losses = training.losses(CHECKED)?;
        self.open = Some(training);
        Ok(vec![losses])
    }

    fn run(&mut self, times: usize) -> Result<usize, Fault> {
        let training = self.open.as_ref().ok_or("no training step is open")?;
        for _ in 0..times {
            training.step()?;
        }
        training.ctx.sync()?;
        Ok(times)
    }

    fn close(&mut self) {
        self.open = None;
    }
}
