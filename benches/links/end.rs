//! One end of a link: a context with a tensor on its device, and products to compute beside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wgrad::prelude::*;
use wgrad::{Backend, Placed, Result};
use wgrad_wgpu::{Copying, Gpu};

pub(crate) struct End {
    pub(crate) name: String,
    pub(crate) ctx: Context,
    gpu: Option<Arc<Gpu>>,
    /// On the host and on the device.
    pub(crate) host: HostTensor,
    pub(crate) kept: Kept,
    square: Kept,
    weight: Kept,
}

/// Numbers that differ from place to place.
fn fill(count: usize, turn: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + turn * 104_729) % 65_521) as f32 / 65_521.0 - 0.5).collect()
}

impl End {
    pub(crate) fn open(name: &str, bytes: usize, size: usize) -> Result<End> {
        let device = Device::named(name)?;
        let adapters = wgrad_wgpu::adapters();
        let adapter = adapters.iter().find(|a| a.name == device.name());
        let gpu = adapter.map(Gpu::open).transpose()?.map(Arc::new);
        let backend: Arc<dyn Backend> = match &gpu {
            Some(gpu) => Arc::clone(gpu) as Arc<dyn Backend>,
            None => device.open()?,
        };
        let ctx = Context::new(backend)?;
        let host = HostTensor::new([bytes / 4], &fill(bytes / 4, name.len()))?;
        let kept = Kept::new(&ctx, &host)?;
        let square = Kept::new(&ctx, HostTensor::new([size, size], &fill(size * size, 1))?)?;
        let scaled: Vec<f32> = fill(size * size, 2).iter().map(|x| x * 2.0 / (size as f32).sqrt()).collect();
        let weight = Kept::new(&ctx, HostTensor::new([size, size], &scaled)?)?;
        Ok(End { name: device.to_string(), ctx, gpu, host, kept, square, weight })
    }

    pub(crate) fn copy_by(&self, copying: Copying) {
        if let Some(gpu) = &self.gpu {
            gpu.copy_by(copying);
        }
    }

    /// One product; a few of them are in flight at once.
    fn product(&self) -> Result<()> {
        self.ctx.pass(|_| self.square.try_set(self.square.t().try_matmul(self.weight.t())?.try_tanh()?))
    }

    /// Products a second until `done`.
    pub(crate) fn compute_until(&self, done: &AtomicBool) -> Result<f64> {
        let (begun, mut count) = (Instant::now(), 0u32);
        while !done.load(Ordering::Acquire) {
            self.product()?;
            count += 1;
        }
        self.ctx.sync()?;
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }

    /// Products a second, alone.
    pub(crate) fn computes(&self, time: Duration) -> Result<f64> {
        self.product()?;
        self.ctx.sync()?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(time);
                done.store(true, Ordering::Release);
            });
            self.compute_until(&done)
        })
    }

    /// Waits until what was placed is on the device.
    pub(crate) fn settle(&self, placed: &Placed) -> Result<()> {
        self.ctx.pass(|p| p.input(placed)?.slice(0, 0..1).to_vec::<f32>()).map(|_| ())
    }
}
