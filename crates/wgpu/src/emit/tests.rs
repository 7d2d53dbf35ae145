//! Every text that can be printed goes through naga: parsed, validated, written as SPIR-V, and linted,
//! without a device.

mod attention;
mod convs;
mod emulate;
mod graphs;
mod hand;
mod large;
mod options;
mod rows;
mod sources;
mod spaces;
mod split;
mod split_attention;
mod units;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use naga::valid::{Capabilities, ValidationFlags, Validator};
use wgrad_graph::{
    Caps, DType, DeviceKind, Graph, LeafKind, NodeId, Op, Options, Out, Plan, Root, Shape, Val, plan,
};

pub(crate) use emulate::emulated;

use super::lower;
use crate::launch::{Bound, Launch, On, Params, Word};

/// Limits like those of a GPU.
pub(super) fn gpu() -> Caps {
    Caps {
        name: "test".into(),
        driver: String::new(),
        kind: DeviceKind::DiscreteGpu,
        max_buffers: 8,
        max_value_bytes: 1 << 31,
        align_bytes: 256,
        immediate_bytes: 128,
        max_invocations: 1024,
        max_workgroups: 65535,
        shared_bytes: 49152,
        subgroup: 32,
        f64: false,
        wide: false,
        native_half: false,
        long_words: false,
        long_products: false,
        off: wgrad_graph::Off::default(),
        half_factors: false,
        cooperative: false,
    }
}

/// What an adapter with units for matrices has.
pub(crate) fn with_units() -> Caps {
    Caps { native_half: true, half_factors: true, cooperative: true, ..gpu() }
}

/// Limits like those of a driver on the CPU.
pub(super) fn software() -> Caps {
    Caps { kind: DeviceKind::SoftwareGpu, max_invocations: 256, shared_bytes: 32768, subgroup: 4, ..gpu() }
}

/// Checks one text as a device would take it, in both access variants; each text once.
pub(super) fn check(source: &str) {
    static CHECKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if !CHECKED.lock().unwrap().insert(source.to_owned()) {
        return;
    }
    check_with(source, |_| false);
    check_with(source, |_| true);
}

fn check_with(source: &str, read_write: impl Fn(usize) -> bool) {
    let mut text = source.to_owned();
    for b in (0..64).rev() {
        let written = text.contains(&format!("ACCESS{b}> b{b}: array<atomic"))
            || text.contains(&format!("&b{b}["))
            || text.lines().any(|l| writes(l, b));
        let mode = if written || read_write(b) { "read_write" } else { "read" };
        text = text.replace(&format!("ACCESS{b}>"), &format!("{mode}>"));
    }
    validate(&text);
}

/// Whether the line assigns to binding `b`.
fn writes(line: &str, b: usize) -> bool {
    let name = format!("b{b}[");
    line.split([';', '{']).any(|part| {
        let part = part.trim();
        part.starts_with(&name) && part.contains(" = ")
    })
}

/// Parses, validates, writes SPIR-V and lints.
pub(super) fn validate(text: &str) {
    let native = text.contains("u16");
    let matrices = text.contains("coop");
    let floats = matrices || text.contains("bitcast<f16>(");
    let mut shared = if text.contains("subgroup") { Capabilities::SUBGROUP } else { Capabilities::empty() };
    shared.set(Capabilities::SUBGROUP_BARRIER, text.contains("subgroupBarrier"));
    let words = if native { Capabilities::SHADER_INT16 } else { Capabilities::empty() };
    let long = text.contains("u64");
    shared.set(Capabilities::SHADER_INT64, long);
    shared.set(Capabilities::SHADER_FLOAT16, floats);
    let caps = Capabilities::IMMEDIATES
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | words
        | shared
        | if matrices { Capabilities::COOPERATIVE_MATRIX } else { Capabilities::empty() };
    let mut options = naga::front::wgsl::Options::new();
    options.capabilities = caps;
    let module = match naga::front::wgsl::Frontend::new_with_options(options).parse(text) {
        Ok(module) => module,
        Err(e) => panic!("{}\n{text}", e.emit_to_string(text)),
    };
    let info = match Validator::new(ValidationFlags::all(), caps).validate(&module) {
        Ok(info) => info,
        Err(e) => panic!("{}\n{text}", e.emit_to_string(text)),
    };
    let entry = naga::back::spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".into(),
    };
    let mut options = naga::back::spv::Options::default();
    options.capabilities = options.capabilities.map(|mut c| {
        use naga::back::spv::Capability::{CooperativeMatrixKHR, Float16, Int16, Int64, VulkanMemoryModel};
        c.extend(native.then_some(Int16));
        c.extend(long.then_some(Int64));
        c.extend(floats.then_some(Float16));
        c.extend(matrices.then_some([CooperativeMatrixKHR, VulkanMemoryModel]).into_iter().flatten());
        c
    });
    if !module.entry_points.is_empty() {
        naga::back::spv::write_vec(&module, &info, &options, Some(&entry)).expect("SPIR-V is written");
    }
    for (handle, function) in module.functions.iter() {
        no_float_ne(&module, function, &info[handle], text);
    }
    for (i, entry) in module.entry_points.iter().enumerate() {
        no_float_ne(&module, &entry.function, info.get_entry_point(i), text);
    }
    // An extension is asked for where it is used, and no other.
    let code: Vec<&str> = text.lines().filter(|l| !l.starts_with("//") && !l.is_empty()).collect();
    let mut rest = &code[..];
    let wanted = [
        (floats, "enable f16;"),
        (matrices, "enable wgpu_cooperative_matrix;"),
        (native, "enable wgpu_int16;"),
    ];
    for (_, name) in wanted.iter().filter(|(wanted, _)| *wanted) {
        assert_eq!(rest.first(), Some(name), "{text}");
        rest = &rest[1..];
    }
    assert!(!rest.iter().any(|l| l.contains("enable ")), "no other extension");
}

/// naga writes `!=` on floats as an ordered comparison, which is false on NaN.
fn no_float_ne(
    module: &naga::Module,
    function: &naga::Function,
    info: &naga::valid::FunctionInfo,
    text: &str,
) {
    for (_, expression) in function.expressions.iter() {
        if let naga::Expression::Binary { op: naga::BinaryOperator::NotEqual, left, .. } = expression {
            let kind = info[*left].ty.inner_with(&module.types).scalar_kind();
            assert!(kind != Some(naga::ScalarKind::Float), "`!=` on floats in\n{text}");
        }
    }
}

/// Checks what must hold of every launch.
pub(super) fn check_launch(launch: &Launch, caps: &Caps) {
    check(&launch.source);
    launch.of_halves.iter().for_each(|source| check(source));
    let values = launch.bindings.iter().filter(|b| matches!(b.what, Bound::Loc(_))).count();
    assert!(values <= caps.max_buffers, "{values} buffers");
    assert!(launch.grid.iter().all(|g| *g <= caps.max_workgroups), "{:?}", launch.grid);
    for (i, b) in launch.bindings.iter().enumerate() {
        assert!(b.bytes > 0 && b.bytes % 4 == 0);
        let declared = format!("@group(0) @binding({i}) var<storage, ACCESS{i}> b{i}:");
        assert!(launch.source.contains(&declared), "{declared}\n{}", launch.source);
        assert!(!launch.bindings[..i].iter().any(|o| o.what == b.what), "{:?} is bound twice", b.what);
    }
    let (words, limit) = (&launch.words, caps.immediate_bytes / 4);
    match launch.params {
        Params::None => assert!(words.is_empty()),
        Params::Immediate => assert!(words.len() <= limit),
        Params::Parts { .. } => assert!(words.len() <= limit && launch.parts.len() > 1),
        Params::Spilled { fixed } => {
            assert!(fixed % 4 == 0 && words.len() - fixed as usize <= limit);
            let known = |w: &Word| !matches!(w, Word::Scalar(..));
            assert!(words[..fixed as usize].iter().all(known));
        }
    }
    let flagged = launch.bindings.iter().any(|b| b.what == Bound::Flag);
    let checks = words.iter().any(|w| matches!(w, Word::Check { .. }));
    assert_eq!(flagged, checks);
    assert!(launch.cost_bytes > 0);
    // By what is said of it, and not by its text, a launch is tried before it is used.
    assert_eq!(launch.source.contains("coopMultiplyAdd"), matches!(launch.on, On::Units(_)));
    assert_eq!(launch.source.contains("let marked = "), launch.on == On::Marked);
}

/// A graph under construction.
#[derive(Default)]
pub(super) struct Sketch {
    pub(super) graph: Graph,
    pub(super) roots: Vec<Val>,
}

impl Sketch {
    pub(super) fn input(&mut self, dims: &[usize], dtype: DType) -> Val {
        Val::of(self.graph.push(wgrad_graph::Node {
            op: Op::Input,
            inputs: Default::default(),
            outs: smallvec::smallvec![Out { shape: Shape::new(dims), dtype }],
            after: Default::default(),
            segment: 0,
            at: None,
        }))
    }

    pub(super) fn x(&mut self, dims: &[usize]) -> Val {
        self.input(dims, DType::F32)
    }

    pub(super) fn op(&mut self, op: Op, ins: &[Val]) -> Val {
        self.graph.add(op, ins, None, None).unwrap()
    }

    pub(super) fn to(&mut self, op: Op, ins: &[Val], dims: &[usize]) -> Val {
        self.graph.add(op, ins, Some(Shape::new(dims)), None).unwrap()
    }

    pub(super) fn cast(&mut self, x: Val, dtype: DType) -> Val {
        self.graph.add(Op::Cast, &[x], None, Some(dtype)).unwrap()
    }

    pub(super) fn scalar(&mut self, dtype: DType) -> Val {
        self.graph.add(Op::Scalar, &[], None, Some(dtype)).unwrap()
    }

    /// A scalar as a tensor.
    pub(super) fn full(&mut self, dims: &[usize], dtype: DType) -> Val {
        let s = self.scalar(dtype);
        self.spread(s, dims)
    }

    /// `x` of one element repeated to `dims`.
    pub(super) fn spread(&mut self, x: Val, dims: &[usize]) -> Val {
        let ones = vec![1; dims.len()];
        let x = self.to(Op::Reshape, &[x], &ones);
        self.to(Op::Expand, &[x], dims)
    }

    pub(super) fn plan(&self, caps: &Caps, fuse: bool) -> Plan {
        self.plan_with(caps, fuse, LeafKind::Buffer)
    }

    pub(super) fn plan_with(&self, caps: &Caps, fuse: bool, kind: LeafKind) -> Plan {
        let graph = Arc::new(self.graph.clone());
        let leaves: Vec<(NodeId, LeafKind)> = (0..graph.nodes().len() as NodeId)
            .filter(|n| graph.node(*n).op == Op::Input)
            .map(|n| (n, kind))
            .collect();
        let roots: Vec<Root> = self.roots.iter().map(|val| Root { val: *val, into: None }).collect();
        plan(&graph, &roots, &leaves, &Options { fuse, keep: false }, caps).unwrap()
    }
}

/// The launches of a plan, each checked.
pub(super) fn launches(plan: &Plan, caps: &Caps) -> Vec<Launch> {
    let mut all = Vec::new();
    for step in &plan.steps {
        let lowered = lower(step, &plan.graph, &plan.scalars, caps)
            .unwrap_or_else(|e| panic!("{e:?}\n{}\n{:#?}", step.group, step.group.body));
        lowered.launches.iter().for_each(|l| check_launch(l, caps));
        let scratch = |l: &Launch| l.bindings.iter().any(|b| matches!(b.what, Bound::Scratch(_)));
        assert_eq!(lowered.scratch_bytes > 0, lowered.launches.iter().any(scratch));
        all.extend(lowered.launches);
    }
    all
}

/// The texts that `sketch` gives, on a GPU and on a software driver, fused and not.
pub(super) fn texts(sketch: &Sketch) -> Vec<String> {
    let mut all = Vec::new();
    for caps in [gpu(), software()] {
        for fuse in [true, false] {
            all.extend(launches(&sketch.plan(&caps, fuse), &caps).into_iter().map(|l| l.source));
        }
    }
    all
}
