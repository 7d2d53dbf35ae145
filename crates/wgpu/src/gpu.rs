//! A device: its parts, how it opens and closes, and its face as a [`Backend`].

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wgrad_graph::{
    Args, Backend, BufferId, Bytes, Caps, Error, ErrorKind, Fast, Memory, Off, Pending, Plan, Prepared,
    Result, Ticket,
};

use crate::adapter::{AdapterInfo, features};
use crate::binds::Binds;
use crate::checks::Checks;
use crate::copy::{Copiers, Copying};
use crate::encode::Line;
use crate::faults::{Faults, lock};
use crate::heap::Heap;
use crate::kernels::Kernels;
use crate::prepare::Ready;
use crate::staging::Pool;
use crate::timing::Timing;
use crate::wait::Clock;
use crate::workspace::Workspace;
use crate::{choose, encode, matrices, native, packed, pages, prepare, read};

/// Size of the largest page that values share, bytes.
const PAGE_BYTES: u64 = 256 << 20;
/// How long closing a device waits for what it still runs.
const CLOSE: Duration = Duration::from_secs(30);

/// What wgpu says it has allocated on a device, of every kind.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AllocatorReport {
    /// Allocations that exist.
    pub allocations: usize,
    /// Bytes of those.
    pub allocated_bytes: u64,
    /// Bytes held from the driver, room between allocations included.
    pub reserved_bytes: u64,
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) peak_bytes: AtomicU64,
    pub(crate) submissions: AtomicU64,
    pub(crate) dispatches: AtomicU64,
    pub(crate) uploads: AtomicU64,
    pub(crate) upload_bytes: AtomicU64,
    pub(crate) downloads: AtomicU64,
    pub(crate) download_bytes: AtomicU64,
    pub(crate) kernels: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The parts of a device. Locks are taken in the order of the fields; no lock is held that a callback
/// of wgpu takes (those are the pools', the checks', the clock's and the timing's).
pub(crate) struct Core {
    pub(crate) device: ManuallyDrop<wgpu::Device>,
    pub(crate) queue: ManuallyDrop<wgpu::Queue>,
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) caps: Caps,
    pub(crate) max_buffer_bytes: u64,
    pub(crate) max_bindings: usize,
    pub(crate) counters: Counters,
    /// The number that the next driver buffer gets.
    numbers: AtomicU64,
    pub(crate) line: Mutex<Line>,
    pub(crate) work: Mutex<Workspace>,
    pub(crate) pages: Mutex<Heap<wgpu::Buffer>>,
    pub(crate) binds: Mutex<Binds>,
    pub(crate) kernels: Kernels,
    pub(crate) uploads: Arc<Pool>,
    pub(crate) downloads: Arc<Pool>,
    pub(crate) copiers: Copiers,
    pub(crate) checks: Arc<Checks>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) timing: Arc<Timing>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) flag: wgpu::Buffer,
    /// How many allocations of pages fail from now on.
    #[cfg(test)]
    pub(crate) deny: std::sync::atomic::AtomicU32,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("adapter", &self.info.name).finish_non_exhaustive()
    }
}

impl Core {
    /// A number for a new driver buffer, never used before.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn memory(&self) -> Memory {
        let work = lock(&self.work);
        let pages = lock(&self.pages);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Memory {
            pages: pages.pages() + work.buffers(),
            reserved_bytes: (pages.reserved() + work.bytes()) as usize,
            live_bytes: (pages.live() + work.bytes()) as usize,
            peak_bytes: read(&self.counters.peak_bytes) as usize,
            submissions: read(&self.counters.submissions),
            dispatches: read(&self.counters.dispatches),
            uploads: read(&self.counters.uploads),
            upload_bytes: read(&self.counters.upload_bytes),
            downloads: read(&self.counters.downloads),
            download_bytes: read(&self.counters.download_bytes),
            kernels: read(&self.counters.kernels),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let idle = !self.faults.is_lost() && self.idle(CLOSE);
        if idle {
            self.kernels.save(&self.info);
            // SAFETY: neither field is used after this.
            #[expect(unsafe_code, reason = "a dead queue panics when dropped, so dropping is by hand")]
            unsafe {
                ManuallyDrop::drop(&mut self.queue);
                ManuallyDrop::drop(&mut self.device);
            }
        }
    }
}

/// What may be asked for of what wgpu calls experimental: units for matrices.
fn experimental(wanted: bool) -> wgpu::ExperimentalFeatures {
    if !wanted {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // SAFETY: of the experimental features only cooperative matrices are asked for, whose kernels ran on such
    // a device in `matrices::refused` before a plan takes them, and are used where their numbers were right.
    #[expect(unsafe_code, reason = "wgpu wants the risk of an experimental feature to be acknowledged")]
    unsafe {
        wgpu::ExperimentalFeatures::enabled()
    }
}

/// An open device on a Vulkan adapter. Dropping it waits for what it runs; clones of its parts live on
/// in plans that were prepared on it.
#[derive(Debug)]
pub struct Gpu {
    core: Arc<Core>,
    adapter: AdapterInfo,
}

impl Gpu {
    /// Opens a device of its own on `adapter`; several may be open on one adapter.
    ///
    /// # Errors
    /// `Adapter`, when the driver refuses.
    pub fn open(adapter: &AdapterInfo) -> Result<Gpu> {
        Gpu::open_with(adapter, |_| {})
    }

    /// Like [`Gpu::open`], on limits that `lower` may lower: for tests of what small devices do.
    ///
    /// # Errors
    /// `Adapter`, when the driver refuses or a limit was raised.
    pub fn open_with(adapter: &AdapterInfo, lower: impl FnOnce(&mut Caps)) -> Result<Gpu> {
        let most = &adapter.caps;
        let mut caps = most.clone();
        lower(&mut caps);
        let raised = caps.max_buffers > most.max_buffers
            || caps.max_value_bytes > most.max_value_bytes
            || caps.align_bytes < most.align_bytes
            || caps.immediate_bytes > most.immediate_bytes
            || caps.max_invocations > most.max_invocations
            || caps.max_workgroups > most.max_workgroups
            || caps.shared_bytes > most.shared_bytes
            || caps.native_half && !most.native_half
            || caps.long_words && !most.long_words
            || caps.long_products && !most.long_products
            || caps.cooperative && !most.cooperative;
        if raised {
            wgrad_graph::bail!(Adapter, "open", "limits may be lowered, not raised: {caps:?}");
        }
        // Without units for them, halves are widened once rather than by every tile that reads them.
        caps.half_factors &= caps.allows(Fast::CooperativeMatmul);
        caps.cooperative &= matrices::PATHS.into_iter().any(|path| caps.allows(path));
        match Gpu::untested(adapter, caps.clone(), "") {
            Err(error) if caps.cooperative => {
                tracing::warn!(adapter = adapter.name, %error, "does not open with units for matrices; not used");
                let off = caps.off.and(Off::of_env(false));
                Gpu::untested(adapter, Caps { half_factors: false, cooperative: false, off, ..caps }, "")
            }
            opened => opened,
        }
    }

    /// A device with these limits, as they are but for words of 16 bits.
    pub(crate) fn untested(adapter: &AdapterInfo, mut caps: Caps, what: &str) -> Result<Gpu> {
        caps.native_half &= caps.allows(Fast::NativeHalf);
        caps.long_words &= caps.allows(Fast::LongWords) && choose::software(&caps);
        caps.long_products &= caps.allows(Fast::Reciprocals);
        let mut features = features(&adapter.adapter);
        features.set(wgpu::Features::SHADER_I16, caps.native_half);
        features.set(wgpu::Features::SHADER_INT64, caps.long_words || caps.long_products);
        features.set(wgpu::Features::SHADER_F16, caps.cooperative || choose::half_arithmetic(&caps));
        features.set(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, caps.cooperative);
        if !features.contains(wgpu::Features::IMMEDIATES) {
            wgrad_graph::bail!(Adapter, "open", "{adapter} has no immediates");
        }
        let limits = adapter.adapter.limits();
        let request = adapter.adapter.request_device(&wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits.clone(),
            experimental_features: experimental(caps.cooperative),
            // Large pages have driver allocations of their own, so small blocks waste least.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        });
        let (device, queue) = pollster::block_on(request).map_err(|e| {
            Error::new(ErrorKind::Adapter, "open", format!("{adapter} refuses a device: {e}")).because(e)
        })?;
        let faults = Faults::watch(&device);
        let info = adapter.adapter.get_info();
        caps.native_half = caps.native_half && native::works(&device, &queue, &faults, &info);
        let tried = [
            (Fast::PackedHalves, caps.allows(Fast::PackedHalves)),
            (Fast::HalfArithmetic, choose::half_arithmetic(&caps)),
        ];
        for (path, wanted) in tried {
            if wanted && !packed::works(path, &device, &queue, &faults, &info) {
                caps.off = caps.off.with(path);
            }
        }
        let kernels = Kernels::open(&device, &faults, &info, &caps, what)?;
        let flag = faults.scoped(&device, "open", || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("error flag"),
                size: 4,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })?;
        let page_bytes = PAGE_BYTES.min(caps.max_value_bytes as u64);
        let core = Core {
            device: ManuallyDrop::new(device),
            queue: ManuallyDrop::new(queue),
            info,
            max_buffer_bytes: limits.max_buffer_size,
            max_bindings: limits.max_storage_buffers_per_shader_stage as usize,
            counters: Counters::default(),
            numbers: AtomicU64::new(1),
            line: Mutex::default(),
            work: Mutex::default(),
            pages: Mutex::new(Heap::new(
                caps.align_bytes as u64,
                choose::first_page_bytes(&caps),
                page_bytes,
            )),
            binds: Mutex::default(),
            kernels,
            uploads: Pool::new(wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC),
            downloads: Pool::new(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            copiers: Copiers::default(),
            checks: Arc::default(),
            clock: Arc::default(),
            timing: Arc::default(),
            faults,
            flag,
            #[cfg(test)]
            deny: Default::default(),
            caps,
        };
        Ok(Gpu { core: Arc::new(core), adapter: adapter.clone() })
    }

    /// How large uploads are copied from now on.
    pub fn copy_by(&self, copying: Copying) {
        self.core.copiers.choose(copying);
    }

    /// What wgpu says it has allocated, staging and parameters included; `None` if the driver does
    /// not tell. Blocks that ended submissions held are given back first.
    pub fn allocator_report(&self) -> Option<AllocatorReport> {
        self.core.poll_now();
        let report = self.core.device.generate_allocator_report()?;
        Some(AllocatorReport {
            allocations: report.allocations.len(),
            allocated_bytes: report.total_allocated_bytes,
            reserved_bytes: report.total_reserved_bytes,
        })
    }

    /// Destroys the device, as an unplugged or crashed one would be: every later call and every
    /// outstanding read gives `Lost`. For tests.
    pub fn lose(&self) {
        self.core.faults.lose("destroyed by a test");
        self.core.device.destroy();
    }

    fn own<'a>(&self, prepared: &'a Arc<dyn Prepared>) -> Result<&'a Ready> {
        let ready = prepared.as_any().downcast_ref::<Ready>().filter(|ready| ready.is_of(&self.core));
        ready
            .ok_or_else(|| Error::new(ErrorKind::Device, "submit", "the plan was prepared on another device"))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Backend for Gpu {
    fn caps(&self) -> &Caps {
        &self.core.caps
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        let caps = &self.core.caps;
        let lowered = prepare::lower(caps, plan)?;
        let trusted = matrices::trusted(&lowered);
        let prepare = |lowered| prepare::prepare(&self.core, plan, lowered);
        let without = |refused: Vec<Fast>| {
            let off = refused.into_iter().fold(caps.off, Off::with);
            prepare(prepare::lower(&Caps { off, ..caps.clone() }, plan)?)
        };
        let refused = || matrices::refused(&self.adapter, caps, &trusted);
        let ready = match trusted.is_empty() {
            true => prepare(lowered)?,
            false => matrices::proven(|| prepare(lowered), refused, without)?,
        };
        Ok(Arc::new(ready))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        pages::alloc(&self.core, bytes)
    }

    fn free(&self, buffer: BufferId) {
        pages::free(&self.core, buffer);
    }

    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket> {
        encode::submit(&self.core, self.own(prepared)?, args)
    }

    fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.core.wait(ticket, timeout)
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        encode::write(&self.core, buffer, bytes, None)
    }

    fn write_shared(&self, buffer: BufferId, bytes: &Bytes) -> Result<()> {
        encode::write(&self.core, buffer, bytes, Some(bytes))
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        read::read(&self.core, ranges)
    }

    fn memory(&self) -> Memory {
        self.core.memory()
    }

    fn has_clock(&self) -> bool {
        self.core.has_clock()
    }
}
