//! What a step of a plan becomes on the device: text, bindings, parameters, grid. Pure data, made by
//! `emit` without a device, run by `encode`.

use wgrad_graph::{Fast, Loc};

/// What tells a kernel of ours, which runs without run-time checks, from a user's text.
pub(crate) const OURS: &str = "var<storage, ACCESS";

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    /// WGSL with entry point `main`. Free of sizes (tile choices excepted), and so the kernel's key:
    /// equal layers share it. Each storage binding is declared as `var<storage, ACCESS{i}>`, where
    /// `ACCESS{i}` is replaced by `read` or `read_write` when the dispatch is bound: an operand whose
    /// driver buffer is also written by this dispatch must be `read_write`. Text without any such word
    /// is a user's: its own access modes are widened where needed, and it runs with every check.
    pub(crate) source: String,
    /// The storage buffers, `@group(0) @binding(i)` in this order.
    pub(crate) bindings: Vec<Binding>,
    /// The parameters, one word each, in the order of the kernel's `params`.
    pub(crate) words: Vec<Word>,
    /// Where the kernel finds its parameters.
    pub(crate) params: Params,
    /// For a launch that runs several steps of one text: what each of them works on.
    pub(crate) parts: Vec<Part>,
    /// Another text of the same kernel, for where every f32 scalar among its words is a half.
    pub(crate) of_halves: Option<String>,
    /// Workgroups on each axis; no axis is over the device's limit. A 0 means nothing to do.
    pub(crate) grid: [u32; 3],
    /// Work estimate of the dispatch, for splitting submissions: bytes moved and floating operations.
    pub(crate) cost_bytes: u64,
    /// Floating operations.
    pub(crate) cost_flops: u64,
    /// What multiplies its matrices.
    pub(crate) on: On,
}

/// What of the units for matrices a launch relies on, and is tried before one does.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trusted {
    /// The path.
    pub(crate) path: Fast,
    /// Whether a factor's elements are digits on both of its axes, as those of windows are.
    pub(crate) windows: bool,
}

/// What multiplies the matrices of a launch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// Its invocations, or it has none.
    Lanes,
    /// Units for matrices.
    Units(Trusted),
    /// Its invocations: those that launches on units before it have marked and left out.
    Marked,
}

/// What one step of several in a launch works on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// Invocations.
    pub(crate) work: u32,
    /// For each of the launch's bindings the place of this step's value.
    pub(crate) bindings: Vec<Binding>,
}

/// A storage binding.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Binding {
    /// What is bound.
    pub(crate) what: Bound,
    /// Whether it is declared `read_write`: the kernel writes it, or its loads are to stay in order.
    pub(crate) written: bool,
    /// Bytes of the binding: the value's elements, rounded up to 4.
    pub(crate) bytes: usize,
}

/// What a binding refers to.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Bound {
    /// A location of the plan.
    Loc(Loc),
    /// Scratch memory of this step, bytes from its start (aligned to `Caps::align_bytes`).
    Scratch(usize),
    /// The device's error flag: one u32, 0 unless raised by `atomicMax(&flag, check)`.
    Flag,
}

/// A parameter word.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// Known when the plan is made.
    Fixed(u32),
    /// Scalar `i` of `Args::scalars`, as the bits of a u32 (i32, u32: the integer; float: f32 bits, of
    /// halves their own in the lower part; i64: two words, the lower first; bool: 0 or 1).
    Scalar(u32, ScalarType),
    /// The number by which the error flag tells this check: assigned by the device when it prepares.
    Check {
        /// Name of the operation.
        op: &'static str,
        /// The limit that an index broke.
        limit: u32,
        /// The user's line.
        at: Option<&'static std::panic::Location<'static>>,
    },
}

/// How a scalar becomes a word.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScalarType {
    /// f32 bits.
    F32,
    /// Two's complement.
    I32,
    /// Unsigned.
    U32,
    /// 0 or 1.
    Bool,
    /// f16 bits.
    F16,
    /// bf16 bits.
    BF16,
    /// The upper word of a 64-bit integer.
    High,
}

/// Where a kernel finds its parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Params {
    /// There are none.
    None,
    /// `var<immediate> params: array<vec4<u32>, N>` or a struct of u32 and f32 words: all of `words`.
    Immediate,
    /// Words as immediates, and at `@group(1) @binding(0)` a uniform table with a row for each of the
    /// launch's parts: the end of its invocations, then for each binding where its value starts, counted
    /// in elements of the binding's array. Rows are padded to whole `vec4<u32>`. The table is made when
    /// the values' places are known.
    Parts {
        /// Bytes of an element of each binding's array.
        unit_bytes: [u8; 16],
        /// Invocations in a workgroup. The first word is the number of invocations of all parts.
        workgroup: u32,
    },
    /// The first `fixed` words, all [`Word::Fixed`] or [`Word::Check`], in a uniform buffer at
    /// `@group(1) @binding(0)` as `array<vec4<u32>, N>`, written once when the plan is prepared; the
    /// words after them, at most `Caps::immediate_bytes`, as immediates.
    Spilled {
        /// Words in the uniform buffer; a multiple of 4.
        fixed: u32,
    },
}

/// A step of a plan as dispatches, in order.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Lowered {
    /// The dispatches.
    pub(crate) launches: Vec<Launch>,
    /// Scratch bytes that the step needs while it runs.
    pub(crate) scratch_bytes: usize,
}
