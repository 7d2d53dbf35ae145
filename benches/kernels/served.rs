//! The workloads for a driver that compares frameworks.

use wgrad::prelude::*;
use wgrad_benches::{Fault, Peer, Row};

use crate::check;
use crate::work::{Operands, Work};

/// Workloads, one of which is open.
pub(crate) struct Served {
    pub(crate) device: Device,
    pub(crate) all: Vec<Work>,
    pub(crate) open: Option<(Context, usize, Operands)>,
}

impl Peer for Served {
    fn open(&mut self, row: &Row) -> Result<Vec<Vec<f32>>, Fault> {
        self.close();
        let at = self.all.iter().position(|work| work.name == row.name).ok_or("no such workload")?;
        let ctx = Context::new(&self.device)?;
        let operands = Operands::new(&ctx, &self.all[at])?;
        let results = ctx.pass(|p| {
            operands.once(p, &self.all[at])?.iter().map(|y| Ok(y.read()?.to_vec::<f32>())).collect()
        })?;
        check::run(&ctx, &self.all[at], &operands)?;
        self.open = Some((ctx, at, operands));
        Ok(results)
    }

    fn run(&mut self, times: usize) -> Result<usize, Fault> {
        let (ctx, at, operands) = self.open.as_ref().ok_or("no workload is open")?;
        let passes = times.div_ceil(operands.runs());
        for _ in 0..passes {
            operands.run_all(ctx, &self.all[*at])?;
        }
        ctx.sync()?;
        Ok(passes * operands.runs())
    }

    fn close(&mut self) {
        self.open = None;
    }
}
