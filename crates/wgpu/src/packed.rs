//! Whether a driver's own conversions of halves, and its own arithmetic of them, are what the standard says.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use wgrad_graph::{Fast, Result};

use crate::emit;
use crate::faults::{Faults, lock};

/// How long the test may take.
const LONG: Duration = Duration::from_secs(30);

/// Whether every half widens, and every f32 rounds, by the driver's instructions as by bits; for
/// [`Fast::HalfArithmetic`] whether sums, differences and products of halves are those of f32, rounded. Tried once a
/// process for each adapter.
pub(crate) fn works(
    path: Fast,
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    faults: &Faults,
    info: &wgpu::AdapterInfo,
) -> bool {
    static TRIED: Mutex<Option<HashMap<String, bool>>> = Mutex::new(None);
    let key =
        format!("{path}\n{}\n{}\n{}\n{}", info.name, info.driver, info.driver_info, info.device_pci_bus_id);
    let mut tried = lock(&TRIED);
    *tried.get_or_insert_default().entry(key).or_insert_with(|| {
        let text = match path {
            Fast::HalfArithmetic => emit::arithmetic_test(),
            _ => emit::packed_test(),
        };
        let wrong = faults
            .scoped(device, "open", || run(device, queue, &text))
            .and_then(|read| flag(device, &read));
        match &wrong {
            Ok(0) => {}
            Ok(how) => {
                tracing::debug!(adapter = info.name, %path, how, "rounds halves its own way; they go by bits");
            }
            Err(error) => tracing::warn!(adapter = info.name, %path, %error, "the driver's halves fail"),
        }
        wrong.is_ok_and(|flag| flag == 0)
    })
}

/// Launches the test; the flag on its way to the host.
fn run(device: &wgpu::Device, queue: &wgpu::Queue, text: &str) -> wgpu::Buffer {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let buffer = |usage| {
        let mapped_at_creation = false;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 8, usage, mapped_at_creation })
    };
    let made = buffer(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let read = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: made.as_entire_binding() }],
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(65536 / 64, 1, 1);
    }
    encoder.copy_buffer_to_buffer(&made, 0, &read, 0, 8);
    queue.submit([encoder.finish()]);
    read.map_async(wgpu::MapMode::Read, .., |_| ());
    read
}

/// The flag, once it arrives.
fn flag(device: &wgpu::Device, read: &wgpu::Buffer) -> Result<u32> {
    let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(LONG) };
    if let Err(error) = device.poll(wait) {
        wgrad_graph::bail!(Device, "open", "{error}");
    }
    match read.get_mapped_range(..) {
        Ok(bytes) => Ok(bytemuck::pod_read_unaligned(&bytes[..4])),
        Err(error) => wgrad_graph::bail!(Device, "open", "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use wgrad_graph::Backend;

    use super::*;
    use crate::choose;
    use crate::tests::on_every_adapter;

    /// A driver that rounds otherwise, loses subnormal numbers, or takes two steps together is found.
    #[test]
    fn arithmetic_that_differs_is_found() {
        on_every_adapter(|adapter, gpu| {
            if !choose::half_arithmetic(gpu.caps()) {
                return;
            }
            let core = gpu.core();
            let told = |text: &str| {
                let read = core.faults.scoped(&core.device, "test", || run(&core.device, &core.queue, text));
                flag(&core.device, &read.unwrap()).unwrap()
            };
            let text = emit::arithmetic_test();
            assert_eq!(told(&text), 0, "{adapter}");
            let flushed = "return bitcast<f16>(select(u16(h), u16(0), (h & 0x7c00u) == 0u));";
            for (right, wrong, how) in [
                ("half(h) + half(g)", "half(h) + half(g ^ 1u)", 9),
                ("half(h) - half(g)", "half(g) - half(h)", 2),
                ("half(h) * half(g)", "half(h) * half(g + 1u)", 12),
                ("half(sum | zero) - half(g)", "half(h)", 8),
                ("half(product | zero) + half(g)", "f16(fma(x, y, y))", 8),
                ("return bitcast<f16>(u16(h));", flushed, 15),
                ("(a + ((a >> 13u) & 1) - 0x37fff001)", "(a - 0x38000000)", 15),
            ] {
                assert!(text.contains(right), "{right}");
                assert_eq!(told(&text.replacen(right, wrong, 1)), how, "{adapter}: {wrong}");
            }
        });
    }

    /// Drivers that narrow towards zero, lose subnormal numbers, or take narrowing and widening together for
    /// nothing are found.
    #[test]
    fn conversions_that_differ_are_found() {
        on_every_adapter(|adapter, gpu| {
            let core = gpu.core();
            let told = |text: &str| {
                let read = core.faults.scoped(&core.device, "test", || run(&core.device, &core.queue, text));
                flag(&core.device, &read.unwrap()).unwrap()
            };
            let text = emit::packed_test();
            let by_bits = text
                .replace("unpack2x16float(h).x", "wg_from_f16(h)")
                .replace("pack2x16float(vec2<f32>(x, 0.0)) & 0xffffu", "wg_to_f16(x)");
            assert_eq!(told(&by_bits), 0, "{adapter}");
            // What is rounded otherwise is so before it is widened, too.
            for (right, wrong, how) in [
                ("return wg_to_f16(x);", "return wg_to_f16(bitcast<f32>(bitcast<u32>(x) & 0xffffe000u));", 5),
                ("return wg_from_f16(h);", "return select(wg_from_f16(h), 0.0, (h & 0x7c00u) == 0u);", 6),
                ("wg_from_f16_packed(wg_to_f16_packed(x) | zero)", "x", 4),
            ] {
                assert!(by_bits.contains(right));
                assert_eq!(told(&by_bits.replace(right, wrong)), how, "{adapter}: {wrong}");
            }
            if gpu.caps().allows(Fast::PackedHalves) {
                assert_eq!(told(&text), 0, "{adapter}");
            }
        });
    }
}
