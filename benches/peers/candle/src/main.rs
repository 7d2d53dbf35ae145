//! The benchmarks' workloads on candle's CPU backend; answers `compare.py`.

mod kernels;
mod step;

use candle_core::{DType, Device, Tensor};
use wgrad_benches::{Fault, Peer, Row, serve};

/// A workload that is open: runs once and gives its results.
type Run = Box<dyn FnMut() -> candle_core::Result<Vec<Tensor>>>;

struct Candle(Option<Run>);

fn floats(x: &Tensor) -> candle_core::Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

impl Peer for Candle {
    fn open(&mut self, row: &Row) -> Result<Vec<Vec<f32>>, Fault> {
        self.close();
        let mut run = match &row.model {
            Some(model) => step::open(model, &Device::Cpu)?,
            None => kernels::open(row, &Device::Cpu)?,
        };
        let mut results = run()?.iter().map(floats).collect::<candle_core::Result<Vec<_>>>()?;
        if row.model.is_some() {
            for _ in 1..3 {
                let loss = run()?.iter().map(floats).collect::<candle_core::Result<Vec<_>>>()?;
                results[0].extend(loss.into_iter().flatten());
            }
        }
        self.0 = Some(run);
        Ok(results)
    }

    fn run(&mut self, times: usize) -> Result<usize, Fault> {
        let run = self.0.as_mut().ok_or("no workload is open")?;
        for _ in 0..times {
            run()?;
        }
        Ok(times)
    }

    fn close(&mut self) {
        self.0 = None;
    }
}

fn main() -> Result<(), Fault> {
    let threads = std::thread::available_parallelism()?;
    Ok(serve("candle 0.11.1", &format!("CPU, {threads} threads"), &mut Candle(None))?)
}
