//! Vulkan adapters: what there is, which one is meant, what it can do.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use wgrad_graph::{Caps, DeviceKind, Error, ErrorKind, Fast, Off, Result};

/// Values are aligned to this many bytes on every adapter: the strictest binding alignment known.
pub(crate) const ALIGN_BYTES: usize = 256;
/// Bytes of immediates used: what every Vulkan driver has.
const IMMEDIATE_BYTES: u32 = 128;
/// Most storage buffers in one kernel that plans may count on, however many the driver allows.
const MAX_BUFFERS: u32 = 32;

/// A Vulkan adapter of this machine.
#[derive(Clone, Debug)]
pub struct AdapterInfo {
    /// Place in the list of [`adapters`].
    pub index: usize,
    /// The adapter's name.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// PCI bus id, such as `0000:01:00.0`; empty when the driver does not tell.
    pub pci: String,
    /// Limits and features that a device on it has.
    pub caps: Caps,
    pub(crate) adapter: wgpu::Adapter,
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({:?}, {}", self.index, self.name, self.kind, self.driver)?;
        if !self.pci.is_empty() {
            write!(f, ", {}", self.pci)?;
        }
        f.write_str(")")
    }
}

impl AdapterInfo {
    fn new(index: usize, adapter: wgpu::Adapter) -> AdapterInfo {
        let info = adapter.get_info();
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => DeviceKind::DiscreteGpu,
            wgpu::DeviceType::IntegratedGpu => DeviceKind::IntegratedGpu,
            wgpu::DeviceType::Cpu => DeviceKind::SoftwareGpu,
            wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => DeviceKind::OtherGpu,
        };
        let driver = format!("{} {}", info.driver, info.driver_info).trim().to_owned();
        let caps = caps(&adapter, &info, kind, &driver);
        AdapterInfo { index, name: info.name, driver, kind, pci: info.device_pci_bus_id, caps, adapter }
    }

    /// Whether `name` means this adapter: its index, PCI id, kind (`discrete`, `integrated`, `other`,
    /// `software`), or a part of its name or driver, whatever the case.
    fn is(&self, name: &str) -> bool {
        let kind = match self.kind {
            DeviceKind::DiscreteGpu => "discrete",
            DeviceKind::IntegratedGpu => "integrated",
            DeviceKind::SoftwareGpu => "software",
            _ => "other",
        };
        let name = name.trim().to_lowercase();
        match name.parse::<usize>() {
            Ok(index) => index == self.index,
            Err(_) => {
                !name.is_empty()
                    && (name == kind
                        || name == self.pci.to_lowercase()
                        || self.name.to_lowercase().contains(&name)
                        || self.driver.to_lowercase().contains(&name))
            }
        }
    }
}

/// Features that are used when the adapter has them; nothing else is ever asked for.
pub(crate) fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    adapter.features()
        & (wgpu::Features::IMMEDIATES
            | wgpu::Features::SUBGROUP
            | wgpu::Features::SUBGROUP_BARRIER
            | wgpu::Features::PIPELINE_CACHE
            | wgpu::Features::SHADER_I16
            | wgpu::Features::SHADER_F16
            | wgpu::Features::SHADER_INT64
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES)
}

fn caps(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo, kind: DeviceKind, driver: &str) -> Caps {
    let limits = adapter.limits();
    let features = features(adapter);
    let units =
        crate::matrices::promised(adapter) && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32);
    let mut off = Off::of_env(units);
    if !features.contains(wgpu::Features::SHADER_F16) {
        off = off.with(Fast::HalfArithmetic);
    }
    let on_units = [Fast::CooperativeMatmul, Fast::SplitMatmul];
    let cooperative = units && on_units.into_iter().any(|path| !off.contains(path));
    let value_bytes = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let fixed =
        info.subgroup_min_size == info.subgroup_max_size && features.contains(wgpu::Features::SUBGROUP);
    // For tests of a GPU's kernels where there is none.
    let as_gpu = std::env::var_os("WGRAD_KERNELS").is_some_and(|v| v == "gpu");
    Caps {
        name: info.name.clone(),
        driver: driver.to_owned(),
        kind: if as_gpu { DeviceKind::DiscreteGpu } else { kind },
        // One buffer is kept for the error flag, one for scratch memory.
        max_buffers: limits.max_storage_buffers_per_shader_stage.min(MAX_BUFFERS).saturating_sub(2) as usize,
        max_value_bytes: usize::try_from(value_bytes).unwrap_or(usize::MAX) / ALIGN_BYTES * ALIGN_BYTES,
        align_bytes: ALIGN_BYTES.max(limits.min_storage_buffer_offset_alignment as usize),
        immediate_bytes: limits.max_immediate_size.min(IMMEDIATE_BYTES) as usize,
        max_invocations: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        max_workgroups: limits.max_compute_workgroups_per_dimension,
        shared_bytes: limits.max_compute_workgroup_storage_size as usize,
        subgroup: if fixed { info.subgroup_min_size } else { 1 },
        f64: false,
        wide: false,
        long_words: features.contains(wgpu::Features::SHADER_INT64)
            && !as_gpu
            && kind == DeviceKind::SoftwareGpu
            && !off.contains(Fast::LongWords),
        long_products: features.contains(wgpu::Features::SHADER_INT64) && !off.contains(Fast::Reciprocals),
        native_half: features.contains(wgpu::Features::SHADER_I16) && !off.contains(Fast::NativeHalf),
        half_factors: cooperative,
        cooperative,
        off,
    }
}

fn instance() -> Option<&'static wgpu::Instance> {
    static INSTANCE: OnceLock<Option<wgpu::Instance>> = OnceLock::new();
    let open = || {
        let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
        desc.backends = wgpu::Backends::VULKAN;
        // The default flags add a validation dispatch to indirect calls and clamp buffers to 4 GiB.
        desc.flags = wgpu::InstanceFlags::DISCARD_HAL_LABELS;
        // Past this share of the memory budget an allocation fails, which is an error value; at the
        // budget itself anything may fail, which is a lost device.
        desc.memory_budget_thresholds.for_resource_creation = Some(95);
        wgpu::Instance::new(desc)
    };
    INSTANCE.get_or_init(|| catch_unwind(AssertUnwindSafe(open)).ok()).as_ref()
}

/// The Vulkan adapters of this machine; empty where there is no driver or no loader.
pub fn adapters() -> Vec<AdapterInfo> {
    let Some(instance) = instance() else { return Vec::new() };
    let list = || pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let found = catch_unwind(AssertUnwindSafe(list)).unwrap_or_default();
    found.into_iter().enumerate().map(|(index, adapter)| AdapterInfo::new(index, adapter)).collect()
}

/// The adapter that `name` means (index, PCI id, kind, or part of name or driver), or without a name
/// the first discrete GPU, else the first integrated one; never a software or unknown one unasked.
///
/// # Errors
/// `Adapter`, naming what there is.
pub fn choose<'a>(adapters: &'a [AdapterInfo], name: Option<&str>) -> Result<&'a AdapterInfo> {
    let of_kind = |kind| adapters.iter().find(|a| a.kind == kind);
    let found = match name {
        Some(name) => adapters.iter().find(|a| a.is(name)),
        None => of_kind(DeviceKind::DiscreteGpu).or_else(|| of_kind(DeviceKind::IntegratedGpu)),
    };
    found.ok_or_else(|| {
        let asked =
            name.map_or("no GPU was found".to_owned(), |n| format!("no Vulkan adapter is called `{n}`"));
        let have: Vec<String> = adapters.iter().map(ToString::to_string).collect();
        let have = if have.is_empty() { "none".to_owned() } else { have.join("; ") };
        Error::new(ErrorKind::Adapter, "adapter", format!("{asked}; there are: {have}"))
    })
}
