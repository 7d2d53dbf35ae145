//! Kernels: WGSL text compiled once for each text and layout, beside each other, at first use.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use smallvec::SmallVec;
use wgrad_graph::{Caps, Error, ErrorKind, Result};

use crate::beside::beside;
use crate::cache;
use crate::faults::{Faults, lock};
use crate::gpu::{Core, count};
use crate::launch::Params;

/// Kernels kept although no plan uses them.
const IDLE: usize = 1024;

/// What a pipeline layout depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LayoutKey {
    /// For each storage binding whether it is `read_write`.
    pub(crate) written: SmallVec<[bool; 8]>,
    /// Whether there is a uniform buffer of parameters.
    pub(crate) uniform: bool,
    /// Whether there are immediates.
    pub(crate) immediates: bool,
}

impl LayoutKey {
    /// The layout of a kernel with these accesses and parameters.
    fn new(written: SmallVec<[bool; 8]>, params: Params) -> LayoutKey {
        LayoutKey {
            written,
            uniform: matches!(params, Params::Spilled { .. } | Params::Parts { .. }),
            immediates: !matches!(params, Params::None),
        }
    }
}

/// A layout that kernels share.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) number: u32,
    pub(crate) storage: wgpu::BindGroupLayout,
    whole: wgpu::PipelineLayout,
}

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: Arc<Layout>,
}

/// A kernel that a plan asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    /// WGSL with every access filled in.
    pub(crate) source: Arc<str>,
    pub(crate) layout: LayoutKey,
    /// Whether it is a user's text, which runs with every check.
    pub(crate) foreign: bool,
}

impl Wanted {
    /// The kernel of `source` with these accesses and parameters.
    pub(crate) fn new(source: &str, written: SmallVec<[bool; 8]>, params: Params) -> Wanted {
        let foreign = !source.contains(crate::launch::OURS);
        let text = if foreign { widen_access(source, &written) } else { fill_access(source, &written) };
        Wanted { source: text.into(), layout: LayoutKey::new(written, params), foreign }
    }
}

/// WGSL with `ACCESS{i}` replaced by the access of binding `i`.
fn fill_access(source: &str, written: &[bool]) -> String {
    let mut parts = source.split("ACCESS");
    let mut out = String::with_capacity(source.len());
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        match part[..digits].parse::<usize>().ok().and_then(|i| written.get(i)) {
            Some(true) => out.push_str("read_write"),
            Some(false) => out.push_str("read"),
            // Not ours: left for the compiler to complain about.
            None => out.push_str(&part[..digits]),
        }
        out.push_str(&part[digits..]);
    }
    out
}

/// A user's WGSL with `read_write` in place of `read` where the layout demands it: a driver buffer that
/// holds an operand and an output may not be bound both ways.
fn widen_access(source: &str, written: &[bool]) -> String {
    const VAR: &str = "var<storage";
    let mut out = String::with_capacity(source.len() + 16);
    let mut rest = source;
    while let Some(at) = rest.find(VAR) {
        let (before, after) = rest.split_at(at + VAR.len());
        out.push_str(before);
        rest = after;
        let Some(end) = after.find('>') else { break };
        let access = after[..end].trim_start_matches(',').trim();
        // The attributes stand between the last declaration and this one.
        let attributes = &before[before.rfind([';', '}']).map_or(0, |i| i + 1)..];
        let binding = attributes
            .split_once("@binding(")
            .and_then(|(_, n)| n.split(')').next())
            .and_then(|n| n.trim().trim_end_matches('u').parse::<usize>().ok());
        let wide = binding.and_then(|n| written.get(n)).copied().unwrap_or(false);
        if wide && matches!(access, "" | "read") {
            out.push_str(", read_write");
            rest = &after[end..];
        }
    }
    out.push_str(rest);
    out
}

/// The place of a kernel, locked while it is compiled: others that want it wait, those that want another do not.
type Place = Arc<Mutex<Option<Arc<Kernel>>>>;

/// Layouts and compiled kernels of a device.
#[derive(Debug)]
pub(crate) struct Kernels {
    layouts: Mutex<HashMap<LayoutKey, Arc<Layout>>>,
    places: Mutex<HashMap<Wanted, Place>>,
    pub(crate) uniform: wgpu::BindGroupLayout,
    immediate_bytes: u32,
    checked: bool,
    disk: Option<(wgpu::PipelineCache, PathBuf)>,
    unsaved: AtomicBool,
}

impl Kernels {
    /// A bind group of a new uniform buffer with this content.
    pub(crate) fn uniform_group(&self, device: &wgpu::Device, content: &[u8]) -> wgpu::BindGroup {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: content.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM,
            mapped_at_creation: true,
        });
        if let Ok(mut view) = buffer.get_mapped_range_mut(..) {
            view.copy_from_slice(content);
        }
        buffer.unmap();
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.uniform,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
        })
    }

    /// No kernels yet; those that the driver compiled in earlier runs are read from disk, for `what` the device is
    /// opened.
    pub(crate) fn open(
        device: &wgpu::Device,
        faults: &Faults,
        info: &wgpu::AdapterInfo,
        caps: &Caps,
        what: &str,
    ) -> Result<Kernels> {
        let uniform = faults.scoped(device, "open", || {
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &[entry(0, wgpu::BufferBindingType::Uniform)],
            })
        })?;
        let file = cache::folder()
            .filter(|_| device.features().contains(wgpu::Features::PIPELINE_CACHE))
            .and_then(|folder| cache::file(&folder, info, what));
        let disk = file.and_then(|file| {
            let data = cache::load(&file);
            let open = || {
                // SAFETY: the data carry a checksum made over what `get_data` returned, and the driver
                // compares their header with itself.
                #[expect(unsafe_code, reason = "wgpu cannot prove where the data come from")]
                unsafe {
                    device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                        label: None,
                        data: data.as_deref(),
                        fallback: true,
                    })
                }
            };
            Some((faults.scoped(device, "pipeline cache", open).ok()?, file))
        });
        Ok(Kernels {
            layouts: Mutex::default(),
            places: Mutex::default(),
            uniform,
            immediate_bytes: caps.immediate_bytes as u32,
            checked: std::env::var_os("WGRAD_CHECKED").is_some_and(|v| v == "1"),
            disk,
            unsaved: AtomicBool::new(false),
        })
    }

    /// The kernels of `wanted`, those missing compiled beside each other.
    pub(crate) fn all(&self, core: &Core, wanted: &[Wanted]) -> Result<Vec<Arc<Kernel>>> {
        // Holding places keeps what is in them from being thrown out below.
        let places: Vec<Place> = {
            let mut places = lock(&self.places);
            wanted.iter().map(|w| Arc::clone(places.entry(w.clone()).or_default())).collect()
        };
        let mut seen = HashSet::new();
        // One that another thread compiles is waited for after ours are begun.
        let mut missing: Vec<(&Wanted, &Place)> = wanted
            .iter()
            .zip(&places)
            .filter(|(w, place)| place.try_lock().map_or(true, |kernel| kernel.is_none()) && seen.insert(*w))
            .collect();
        // The longest first: one that takes a driver seconds and is begun last keeps all others waiting.
        missing.sort_by_key(|(wanted, _)| Reverse(wanted.source.len()));
        if !missing.is_empty() {
            let start = Instant::now();
            let made = beside(&missing, |(wanted, place)| -> Result<u64> {
                let mut kernel = lock(place);
                if kernel.is_some() {
                    return Ok(0);
                }
                *kernel = Some(Arc::new(self.compile(core, wanted)?));
                Ok(1)
            });
            let made = made.into_iter().sum::<Result<u64>>()?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            tracing::info!(kernels = made, ms, "compiled kernels");
            count(&core.counters.kernels, made);
            self.unsaved.store(true, Ordering::Release);
            let mut all = lock(&self.places);
            if all.len() > IDLE {
                let used =
                    |kernel: &Option<Arc<Kernel>>| kernel.as_ref().is_some_and(|k| Arc::strong_count(k) > 1);
                all.retain(|_, place| Arc::strong_count(place) > 1 || used(&lock(place)));
            }
        }
        let kernel = |place: &Place| lock(place).clone().expect("compiled above, and held since");
        Ok(places.iter().map(kernel).collect())
    }

    fn layout(&self, core: &Core, key: &LayoutKey) -> Result<Arc<Layout>> {
        let mut layouts = lock(&self.layouts);
        if let Some(layout) = layouts.get(key) {
            return Ok(Arc::clone(layout));
        }
        let device = &core.device;
        let layout = core.faults.scoped(device, "layout", || {
            let entries: Vec<_> = (0..)
                .zip(&key.written)
                .map(|(i, written)| entry(i, wgpu::BufferBindingType::Storage { read_only: !written }))
                .collect();
            let storage = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
            let groups = [Some(&storage), Some(&self.uniform)];
            let whole = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &groups[..1 + usize::from(key.uniform)],
                immediate_size: if key.immediates { self.immediate_bytes } else { 0 },
            });
            (storage, whole)
        })?;
        let number = layouts.len() as u32;
        let layout = Arc::new(Layout { number, storage: layout.0, whole: layout.1 });
        layouts.insert(key.clone(), Arc::clone(&layout));
        Ok(layout)
    }

    fn compile(&self, core: &Core, wanted: &Wanted) -> Result<Kernel> {
        let layout = self.layout(core, &wanted.layout)?;
        let device = &core.device;
        let start = Instant::now();
        let made = core.faults.scoped(device, "compile", || {
            let desc = wgpu::ShaderModuleDescriptor {
                label: None,
                source: wgpu::ShaderSource::Wgsl((&*wanted.source).into()),
            };
            let module = if self.checked || wanted.foreign {
                device.create_shader_module(desc)
            } else {
                // SAFETY: the plan proves the bounds of every index that it computes, the text guards
                // those that data give, and bindings hold every value whole. A user's text never
                // comes here (`OURS`).
                #[expect(unsafe_code, reason = "run-time checks cost up to half of a kernel's time")]
                unsafe {
                    device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked())
                }
            };
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&layout.whole),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.disk.as_ref().map(|(cache, _)| cache),
            })
        });
        let ms = start.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(ms, bytes = wanted.source.len(), "compiled a kernel");
        match made {
            Ok(pipeline) => Ok(Kernel { pipeline, layout }),
            Err(error) if error.kind() == ErrorKind::Kernel => {
                let detail = format!("{error}\nsource:\n{}", wanted.source);
                Err(Error::new(ErrorKind::Kernel, "kernel", detail))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes what the driver compiled to disk, if there is anything new.
    pub(crate) fn save(&self, info: &wgpu::AdapterInfo) {
        let Some((cache, file)) = &self.disk else { return };
        if !self.unsaved.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(data) = cache.get_data()
            && let Err(error) = cache::store(file, &data)
        {
            tracing::warn!(%error, adapter = info.name, "the pipeline cache was not written");
        }
    }
}

fn entry(binding: u32, ty: wgpu::BufferBindingType) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_filled_in_by_number() {
        let written: Vec<bool> = (0..12).map(|i| i % 2 == 1).collect();
        assert_eq!(
            fill_access("a ACCESS1> ACCESS10; ACCESS11 ACCESS0", &written),
            "a read_write> read; read_write read"
        );
        assert_eq!(fill_access("none", &[]), "none");
    }

    #[test]
    fn accesses_of_users_are_widened_where_needed() {
        let text = "@group(0) @binding(0) var<storage, read> a: array<f32>;
            @group(0) @binding(1) var<storage> b: array<f32>;
            @binding(2u) @group(0) var<storage,read_write> c: array<f32>;
            var<workgroup> t: array<f32, 4>;";
        assert_eq!(widen_access(text, &[false, false, true]), text);
        let wide = widen_access(text, &[true, true, true]);
        assert!(wide.contains("@binding(0) var<storage, read_write> a"));
        assert!(wide.contains("@binding(1) var<storage, read_write> b"));
        assert!(wide.contains("var<storage,read_write> c") && wide.ends_with("array<f32, 4>;"));
        assert_eq!(
            widen_access(text, &[false, true, true]),
            text.replace("var<storage>", "var<storage, read_write>")
        );
    }
}
