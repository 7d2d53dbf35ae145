//! The benchmarks' workloads on Burn; answers `compare.py`.
//!
//! Built with the feature `vulkan` for GPUs, with `wgpu` for lavapipe. Argument: `cpu` takes a CPU's Vulkan driver, a
//! number that discrete GPU; without one, Burn's own choice.

mod kernels;
mod params;
mod step;

use burn::tensor::{Bool, Device, DeviceKind, Int, Tensor};
use wgrad_benches::{Fault, Peer, Row, serve};

/// A tensor of any rank.
#[derive(Clone)]
pub(crate) enum Any {
    One(Tensor<1>),
    Two(Tensor<2>),
    Three(Tensor<3>),
    Four(Tensor<4>),
    Ids(Tensor<1, Int>),
    #[allow(dead_code, reason = "masks are made, not read")]
    Mask(Tensor<4, Bool>),
}

impl Any {
    fn read(&self) -> Result<Vec<f32>, Fault> {
        let data = match self {
            Any::One(x) => x.to_data(),
            Any::Two(x) => x.to_data(),
            Any::Three(x) => x.to_data(),
            Any::Four(x) => x.to_data(),
            Any::Ids(_) | Any::Mask(_) => return Err("only floats are results".into()),
        };
        data.convert::<f32>().try_to_vec::<f32>().map_err(|e| format!("{e:?}").into())
    }
}

/// A workload that is open: runs once and gives its results.
pub(crate) type Run = Box<dyn FnMut() -> Result<Vec<Any>, Fault>>;

struct Burn {
    device: Device,
    open: Option<Run>,
}

impl Burn {
    fn sync(&self) -> Result<(), Fault> {
        self.device.sync().map_err(|e| format!("{e:?}").into())
    }

    /// Hands over what is recorded, without waiting. By itself Burn makes one kernel of several runs, which reads operands
    /// once for all of them, and computes nothing for results that are dropped.
    fn flush(&self) -> Result<(), Fault> {
        self.device.flush().map_err(|e| format!("{e:?}").into())
    }
}

impl Peer for Burn {
    fn open(&mut self, row: &Row) -> Result<Vec<Vec<f32>>, Fault> {
        self.close();
        let mut run = match &row.model {
            Some(model) => step::open(model, &self.device)?,
            None => kernels::open(row, &self.device)?,
        };
        let mut results = run()?.iter().map(Any::read).collect::<Result<Vec<_>, _>>()?;
        if row.model.is_some() {
            for _ in 1..3 {
                let loss = run()?[0].read()?;
                results[0].extend(loss);
            }
        }
        self.open = Some(run);
        Ok(results)
    }

    fn run(&mut self, times: usize) -> Result<usize, Fault> {
        for _ in 0..times {
            let results = self.open.as_mut().ok_or("no workload is open")?()?;
            self.flush()?;
            drop(results);
        }
        self.sync()?;
        Ok(times)
    }

    fn close(&mut self) {
        self.open = None;
        self.device.memory_cleanup();
    }
}

fn main() -> Result<(), Fault> {
    let kind = match std::env::args().nth(1).as_deref() {
        Some("cpu") => DeviceKind::Cpu,
        Some(number) => DeviceKind::DiscreteGpu(number.parse()?),
        None => DeviceKind::DefaultDevice,
    };
    let compiler = if cfg!(feature = "vulkan") { "Vulkan" } else { "WGSL" };
    #[cfg(feature = "vulkan")]
    let device = Device::vulkan(kind.clone());
    #[cfg(not(feature = "vulkan"))]
    let device = Device::wgpu(kind.clone());
    let name = format!("{kind:?}");
    Ok(serve(&format!("Burn 0.22.1 {compiler}"), &name, &mut Burn { device, open: None })?)
}
