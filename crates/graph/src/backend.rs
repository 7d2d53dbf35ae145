//! The seam between what is computed and where: a small object-safe trait.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Bytes, DType, Fast, InStage, Off, Plan, Result, Stage, Watch};

/// What kind of device runs the plans.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    DiscreteGpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// A GPU of unknown or virtual kind.
    OtherGpu,
    /// A Vulkan driver that runs on the CPU.
    SoftwareGpu,
    /// The CPU executor.
    Cpu,
    /// The f64 oracle.
    Oracle,
}

/// Limits and features of a device, from which every decision about kernels and memory is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// The adapter's name.
    pub name: String,
    /// The driver and its version; empty for the CPU executor.
    pub driver: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// Most storage buffers in one kernel (operands and outputs together).
    pub max_buffers: usize,
    /// Most bytes of one value.
    pub max_value_bytes: usize,
    /// Alignment of values in memory, bytes.
    pub align_bytes: usize,
    /// Bytes of immediates that a dispatch takes.
    pub immediate_bytes: usize,
    /// Most invocations in a workgroup.
    pub max_invocations: u32,
    /// Most workgroups on one axis of a dispatch.
    pub max_workgroups: u32,
    /// Bytes of workgroup memory.
    pub shared_bytes: usize,
    /// Invocations in a subgroup; 1 when not known.
    pub subgroup: u32,
    /// Whether the device stores f64 (the CPU executor and the oracle).
    pub f64: bool,
    /// Whether floats of every dtype are stored and computed as f64 (the oracle).
    pub wide: bool,
    /// Whether kernels have words of 16 bits, so that any invocation writes a half by itself; else two halves
    /// lie in a word, and what writes them writes both.
    pub native_half: bool,
    /// Whether kernels move neighbouring elements as words of 64 bits: a driver that runs them on the CPU takes a turn
    /// for each word of each invocation, whatever its size.
    pub long_words: bool,
    /// Whether kernels divide by sizes through products of 64 bits.
    pub long_products: bool,
    /// The fast paths that are not to be taken.
    pub off: Off,
    /// Whether products take factors of 16 bits as they lie in memory; else they are widened by a kernel
    /// before.
    pub half_factors: bool,
    /// Whether matrices of 16 by 16 f16 are multiplied into f32 by units of their own, by subgroups of 32.
    pub cooperative: bool,
}

impl Caps {
    /// Whether a fast path may be taken.
    pub fn allows(&self, path: Fast) -> bool {
        !self.off.contains(path)
    }

    /// The dtype in which elements of `dtype` are stored.
    pub fn storage(&self, dtype: DType) -> DType {
        if self.wide && dtype.is_float() { DType::F64 } else { dtype }
    }

    /// Whether several elements of `dtype` share a word of a kernel, so that they are written together.
    pub fn packed(&self, dtype: DType) -> bool {
        dtype.bytes() < if self.native_half && dtype.is_half() { 2 } else { 4 }
    }

    /// Bytes that `elems` elements of `dtype` take in device memory, rounded up to the alignment; at
    /// least one alignment, so that every value has an address.
    pub fn value_bytes(&self, elems: usize, dtype: DType) -> usize {
        (elems * self.storage(dtype).bytes()).max(1).next_multiple_of(self.align_bytes)
    }
}

/// A buffer of a device. What the number means is the device's secret.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u64);

/// A submission; tickets of one device count up in submission order.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A plan that is ready to run: kernels compiled, workspace reserved.
pub trait Prepared: Any + Send + Sync + fmt::Debug {
    /// Itself, for the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// What is bound to a leaf for one submission.
#[derive(Copy, Clone, Debug)]
pub enum LeafArg<'a> {
    /// An existing buffer.
    Buffer(BufferId),
    /// Host bytes in storage dtype, copied before `submit` returns.
    Host(&'a [u8]),
}

/// What one submission is given.
#[derive(Copy, Clone, Default)]
pub struct Args<'a> {
    /// One for each of [`Plan::leaves`].
    pub leaves: &'a [LeafArg<'a>],
    /// One for each of [`Plan::scalars`], as f64 (exact for every dtype).
    pub scalars: &'a [f64],
    /// One for each of [`Plan::outputs`]; for `Home::InPlace` the leaf's own buffer.
    pub outputs: &'a [BufferId],
    /// Who is told of stages and of what ran, if anybody.
    pub watch: Option<&'a Arc<dyn Watch>>,
}

impl<'a> Args<'a> {
    /// Enters `stage` of the submission if somebody watches.
    pub fn stage(&self, stage: Stage) -> InStage<'a> {
        InStage::enter(self.watch.map(|watch| &**watch), stage)
    }
}

/// Bytes on their way to the host.
pub trait Pending: Send {
    /// Whether `wait` would return at once.
    fn ready(&mut self) -> bool;
    /// The bytes of each range asked for, once. Large ones may lie in memory of the device, which takes it
    /// back when they are dropped.
    ///
    /// # Errors
    /// `Timeout`, after which it may be asked again; `Lost`, or the error flag of a kernel that ran before.
    fn wait(&mut self, timeout: Duration) -> Result<Vec<Bytes>>;
}

/// What a device holds and has done since it was opened. Counters only grow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Buffers of the driver that hold values and workspace.
    pub pages: usize,
    /// Bytes of those.
    pub reserved_bytes: usize,
    /// Bytes of values that exist (workspace included).
    pub live_bytes: usize,
    /// The largest `live_bytes` so far.
    pub peak_bytes: usize,
    /// Submissions to the device's queue.
    pub submissions: u64,
    /// Kernel runs.
    pub dispatches: u64,
    /// Copies from host to device, and their bytes.
    pub uploads: u64,
    /// Bytes copied from host to device.
    pub upload_bytes: u64,
    /// Copies from device to host.
    pub downloads: u64,
    /// Bytes copied from device to host.
    pub download_bytes: u64,
    /// Kernels compiled.
    pub kernels: u64,
}

/// A device that runs plans. Submissions run in order; nothing but `wait` and [`Pending::wait`]
/// blocks on the device. Everything that can fail and be recovered from fails in `prepare` or `alloc`,
/// before data are touched.
pub trait Backend: Send + Sync {
    /// Limits and features.
    fn caps(&self) -> &Caps;

    /// Compiles the plan's kernels and reserves its workspace.
    ///
    /// # Errors
    /// `Limit`, `OutOfMemory`, `Kernel`, `Lost`.
    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>>;

    /// A buffer of at least `bytes` bytes with undefined content.
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`.
    fn alloc(&self, bytes: usize) -> Result<BufferId>;

    /// Gives a buffer back. Submissions made before still see it.
    fn free(&self, buffer: BufferId);

    /// Runs a prepared plan.
    ///
    /// # Errors
    /// `Lost`; `OutOfMemory` when an upload finds no staging memory. Nothing has run then.
    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket>;

    /// Waits until a submission has ended.
    ///
    /// # Errors
    /// `Timeout`, `Lost`, or the error flag that one of its kernels raised: whoever waits for that very submission,
    /// and the first who waits for a later one, hears of it.
    fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()>;

    /// Writes bytes to the start of a buffer, ordered after every submission made before and before
    /// every one made later.
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`.
    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()>;

    /// As [`Backend::write`], for bytes that several threads may copy at once.
    ///
    /// # Errors
    /// As [`Backend::write`].
    fn write_shared(&self, buffer: BufferId, bytes: &Bytes) -> Result<()> {
        self.write(buffer, bytes)
    }

    /// Starts to copy the first `bytes` bytes of each buffer to the host, after every submission made
    /// before; one crossing for all of them.
    ///
    /// # Errors
    /// `OutOfMemory`, `Lost`.
    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>>;

    /// What the device holds and has done.
    fn memory(&self) -> Memory;

    /// Whether [`Watch::ran`] is told when kernels ran.
    fn has_clock(&self) -> bool {
        false
    }
}
