//! Autograd for Rust on any Vulkan adapter, and on the CPU.
//!
//! Operations on [`Tensor`]s record; gradients are more of the same graph; the graph is fused, planned
//! and run as one submission a step (a very long step takes several). Start with
//! `use wgrad::prelude::*` and `examples/xor.rs`.

use std::fmt;
use std::sync::Arc;

pub use wgrad_autograd::*;
pub use wgrad_graph::{
    Backend, Caps, DType, DeviceKind, Element, Error, ErrorKind, Fast, HostTensor, Off, Result, Shape, bail,
    bf16, f16,
};
use wgrad_wgpu::AdapterInfo;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Layers, optimizers, schedules and data.
pub use wgrad_nn as nn;

/// Schedules of pipelines, their proofs, and partitions of models.
pub use wgrad_pipeline as pipeline;

/// What most programs use.
pub mod prelude {
    pub use crate::{
        Context, Conv, CrossEntropy, DType, Deferred, Device, Grads, HostTensor, Kept, Param, Reduction,
        Scalar, Tensor,
    };
    pub use wgrad_nn::{
        Activation, Adam, AdamConfig, AdamW, AdamWConfig, Autocast, AvgPool, BatchNorm, Constant, Conv1d,
        Conv2d, Conv3d, Cosine, Dropout, Embedding, Flatten, GroupNorm, Gru, Init, InstanceNorm,
        InstanceNormConfig, LayerNorm, Linear, Loader, LossScale, LossScaler, Lstm, MaxPool, Mlp, Mnist,
        Mode, Module, MultiHeadAttention, Optimizer, ParamSet, RmsNorm, Rng, Rope, Schedule, Sequential, Sgd,
        SgdConfig,
    };
}

/// [`gradcheck`], then [`gradgradcheck`], of `f` at `inputs` on the f64 oracle, with the default options.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let x = HostTensor::new([3], &[0.5, -1.0, 2.0])?;
/// wgrad::check_gradients(&[x], |_, x| x[0].sigmoid() * x[0])
/// # }
/// ```
///
/// # Errors
/// As [`gradcheck`].
pub fn check_gradients<O: Outputs>(inputs: &[HostTensor], f: impl Fn(&Pass, &[Tensor]) -> O) -> Result<()> {
    let ctx = Context::new(&Device::oracle())?;
    gradcheck(&ctx, inputs, &f, &GradCheck::default())?;
    gradgradcheck(&ctx, inputs, &f, &GradCheck::default())
}

/// A device that a [`Context`] can be opened on: a Vulkan adapter or the CPU.
///
/// ```
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::named("cpu")?)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    which: Which,
    off: Off,
}

#[derive(Clone, Debug)]
enum Which {
    Cpu,
    Oracle,
    Vulkan(Box<AdapterInfo>),
}

impl Device {
    /// Every device of this machine: the Vulkan adapters, then `cpu`, then `oracle`.
    pub fn list() -> Vec<Device> {
        let adapters = wgrad_wgpu::adapters().into_iter();
        let vulkan = adapters.map(|a| Device::of(Which::Vulkan(Box::new(a))));
        vulkan.chain([Device::cpu(), Device::oracle()]).collect()
    }

    /// What `WGRAD_DEVICE` names; without it the first discrete GPU, else the first integrated GPU, else
    /// the CPU executor. A software Vulkan driver is used only when it is named.
    ///
    /// # Errors
    /// `Adapter` when `WGRAD_DEVICE` names no device.
    pub fn auto() -> Result<Device> {
        match std::env::var("WGRAD_DEVICE") {
            Ok(name) if !matches!(name.trim().to_lowercase().as_str(), "" | "auto") => {
                Device::find(&name, "WGRAD_DEVICE")
            }
            _ => Ok(Device::best()),
        }
    }

    fn best() -> Device {
        let adapters = wgrad_wgpu::adapters();
        let gpu = wgrad_wgpu::choose(&adapters, None).cloned();
        gpu.map_or(Device::cpu(), |a| Device::of(Which::Vulkan(Box::new(a))))
    }

    /// The device called `name`: `auto`, `cpu`, `oracle` (or `cpu64`), or a Vulkan adapter's index, PCI
    /// id, kind (`discrete`, `integrated`, `other`, `software`) or a part of its name or driver.
    ///
    /// # Errors
    /// `Adapter`, naming what there is.
    pub fn named(name: &str) -> Result<Device> {
        match name.trim().to_lowercase().as_str() {
            "auto" => Device::auto(),
            _ => Device::find(name, "device"),
        }
    }

    /// The device called `name`, which `asked` gave.
    fn find(name: &str, asked: &str) -> Result<Device> {
        match name.trim().to_lowercase().as_str() {
            "cpu" => Ok(Device::cpu()),
            "oracle" | "cpu64" => Ok(Device::oracle()),
            other => match wgrad_wgpu::choose(&wgrad_wgpu::adapters(), Some(other)) {
                Ok(adapter) => Ok(Device::of(Which::Vulkan(Box::new(adapter.clone())))),
                Err(_) => {
                    let have: Vec<String> = Device::list().iter().map(|d| format!("\n  {d}")).collect();
                    bail!(Adapter, asked, "no device is called `{name}`; there are:{}", have.concat())
                }
            },
        }
    }

    /// The CPU executor.
    pub fn cpu() -> Device {
        Device::of(Which::Cpu)
    }

    /// The f64 executor of the CPU: plain, slow, the reference of all tests.
    pub fn oracle() -> Device {
        Device::of(Which::Oracle)
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        match &self.which {
            Which::Cpu => "cpu",
            Which::Oracle => "oracle",
            Which::Vulkan(adapter) => &adapter.name,
        }
    }

    /// What kind of device it is.
    pub fn kind(&self) -> DeviceKind {
        match &self.which {
            Which::Cpu => DeviceKind::Cpu,
            Which::Oracle => DeviceKind::Oracle,
            Which::Vulkan(adapter) => adapter.kind,
        }
    }

    fn of(which: Which) -> Device {
        Device { which, off: Off::default() }
    }

    /// The same device, on which the fast path is not taken; what `WGRAD_OFF` names is off on every device.
    /// For finding where a number comes from.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu().without(wgrad::Fast::Fusion))?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn without(mut self, path: Fast) -> Device {
        self.off = self.off.with(path);
        self
    }

    /// The device, opened.
    ///
    /// # Errors
    /// `Adapter` when the driver refuses.
    pub fn open(&self) -> Result<Arc<dyn Backend>> {
        Ok(match &self.which {
            Which::Cpu => Arc::new(wgrad_cpu::Cpu::new().without(self.off)),
            Which::Oracle => Arc::new(wgrad_cpu::Oracle::new()),
            Which::Vulkan(adapter) => {
                let lower = |caps: &mut Caps| caps.off = caps.off.and(self.off);
                Arc::new(wgrad_wgpu::Gpu::open_with(adapter, lower)?)
            }
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Which::Cpu => f.write_str("cpu: f32 on all cores"),
            Which::Oracle => f.write_str("oracle: f64 on the CPU, for checking"),
            Which::Vulkan(adapter) => write!(f, "{adapter}"),
        }
    }
}

impl IntoBackend for &Device {
    fn into_backend(self) -> Result<Arc<dyn Backend>> {
        self.open()
    }
}
