//! Whether the words of 16 bits that an adapter promises are what it says.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use wgpu::util::DeviceExt as _;
use wgrad_graph::Result;

use crate::emit;
use crate::faults::{Faults, lock};

/// How long the test may take.
const LONG: Duration = Duration::from_secs(30);

/// Whether every half, and what lies between two, is on this device the same by words of 16 bits as by words of
/// two halves. Tried once a process for each adapter.
pub(crate) fn works(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    faults: &Faults,
    info: &wgpu::AdapterInfo,
) -> bool {
    static TRIED: Mutex<Option<HashMap<String, bool>>> = Mutex::new(None);
    let key = format!("{}\n{}\n{}\n{}", info.name, info.driver, info.driver_info, info.device_pci_bus_id);
    let mut tried = lock(&TRIED);
    *tried.get_or_insert_default().entry(key).or_insert_with(|| {
        let equal =
            faults.scoped(device, "open", || run(device, queue)).and_then(|read| compare(device, &read));
        match &equal {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(adapter = info.name, "words of 16 bits hold other halves; they are packed");
            }
            Err(error) => {
                tracing::warn!(adapter = info.name, %error, "words of 16 bits fail; halves are packed");
            }
        }
        equal.unwrap_or(false)
    })
}

/// Launches the test; the three results on their way to the host.
fn run(device: &wgpu::Device, queue: &wgpu::Queue) -> [wgpu::Buffer; 3] {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(emit::native_test().into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let given = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
        label: None,
        contents: bytemuck::cast_slice(&halves),
        usage: wgpu::BufferUsages::STORAGE,
    });
    let buffer = |usage| {
        let size = 4 * halves.len() as u64;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let made = [(); 3].map(|()| buffer(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC));
    let read = [(); 3].map(|()| buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST));
    let bound = [&given, &given, &given, &made[0], &made[1], &made[2]];
    let entries: Vec<_> = (0..)
        .zip(bound)
        .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    let layout = pipeline.get_bind_group_layout(0);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &layout,
        entries: &entries,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(halves.len() as u32 / 64, 1, 1);
    }
    for (from, to) in made.iter().zip(&read) {
        encoder.copy_buffer_to_buffer(from, 0, to, 0, from.size());
    }
    queue.submit([encoder.finish()]);
    for buffer in &read {
        buffer.map_async(wgpu::MapMode::Read, .., |_| ());
    }
    read
}

/// Whether the results are the same; not where they do not arrive.
fn compare(device: &wgpu::Device, read: &[wgpu::Buffer; 3]) -> Result<bool> {
    let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(LONG) };
    let arrived = device.poll(wait);
    if let Err(error) = arrived {
        wgrad_graph::bail!(Device, "open", "{error}");
    }
    let bytes = |buffer: &wgpu::Buffer| Some(buffer.get_mapped_range(..).ok()?.to_vec());
    let [alone, pairs, fours] = read.each_ref().map(bytes);
    Ok(alone.is_some() && alone == pairs && alone == fours)
}
