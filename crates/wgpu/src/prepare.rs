//! A plan made ready: every dispatch with its kernel, the place of each binding, and its parameters.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use wgrad_graph::{Caps, DeviceKind, Error, ErrorKind, LeafKind, Loc, Plan, Prepared, Result, Step};

use crate::beside::beside;
use crate::choose;
use crate::emit;
use crate::faults::lock;
use crate::gpu::Core;
use crate::kernels::{Kernel, Wanted};
use crate::launch::{Binding, Bound, Launch, Lowered, Params, ScalarType, Word};
use crate::lists::Which;
use crate::workspace::{self, Places};

/// What a binding refers to, workspace places resolved.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// The buffer given for leaf `i`.
    Leaf(u32),
    /// The buffer given for output `i`.
    Out(u32),
    /// Buffer and offset in the workspace.
    Work(usize, u64),
    /// The error flag.
    Flag,
}

impl Source {
    /// A class such that bindings of different classes never share a driver buffer. Access is chosen
    /// by it and not by the buffers of one submission, so that a kernel's text, and with it its
    /// rounding, does not depend on where values happen to lie.
    fn class(self) -> usize {
        match self {
            Source::Leaf(_) | Source::Out(_) => 0,
            Source::Flag => 1,
            Source::Work(n, _) => 2 + n,
        }
    }
}

/// What each binding of a dispatch refers to, and its bytes.
pub(crate) type Binds = SmallVec<[(Source, u64); 6]>;

/// One dispatch, ready.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kernel: Arc<Kernel>,
    /// The kernel for where every f32 scalar is a half, if there is another.
    pub(crate) of_halves: Option<Arc<Kernel>>,
    /// What each binding refers to, and its bytes.
    pub(crate) binds: Binds,
    /// The uniform parameters, if any.
    pub(crate) uniform: Option<wgpu::BindGroup>,
    /// The immediates; words of scalars are 0.
    pub(crate) immediates: SmallVec<[u32; 32]>,
    /// Places in `immediates` that scalars fill.
    pub(crate) scalars: SmallVec<[(usize, u32, ScalarType); 4]>,
    pub(crate) grid: [u32; 3],
    /// Estimated time.
    pub(crate) cost_ns: u64,
    /// The plan's steps that it runs.
    pub(crate) steps: Arc<[u32]>,
}

/// Several runs that may be one dispatch, where the values of each binding lie in one driver buffer.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Which of the plan's runs.
    pub(crate) runs: Range<usize>,
    /// All of them as one.
    pub(crate) whole: Run,
    /// For each run what its bindings refer to, and its invocations.
    pub(crate) parts: Vec<(Binds, u32)>,
    /// Bytes of an element of each binding's array.
    pub(crate) unit_bytes: [u8; 16],
    pub(crate) workgroup: u32,
    /// The tables of parts that were made last: their words, and their bind groups.
    pub(crate) tables: Mutex<Vec<(Vec<u32>, wgpu::BindGroup)>>,
}

/// A prepared plan.
pub(crate) struct Ready {
    pub(crate) core: Arc<Core>,
    pub(crate) serial: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) runs: Vec<Run>,
    /// Ascending.
    pub(crate) batches: Vec<Batch>,
    /// Whether a kernel may raise the error flag.
    pub(crate) raises: bool,
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("dispatches", &self.runs.len()).finish_non_exhaustive()
    }
}

impl Prepared for Ready {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Ready {
    /// A run, or a batch as one.
    pub(crate) fn run(&self, which: Which) -> &Run {
        match which {
            Which::Run(at) => &self.runs[at as usize],
            Which::Batch(at) => &self.batches[at as usize].whole,
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        lock(&self.core.binds).lists.forget(self.serial);
        workspace::release(&self.core, self.serial);
    }
}

impl Ready {
    /// Whether the plan was prepared on this device.
    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }
}

/// The dispatches of each of the plan's steps.
pub(crate) fn lower(caps: &Caps, plan: &Plan) -> Result<Vec<Lowered>> {
    let one = |step| emit::lower(step, &plan.graph, &plan.scalars, caps);
    let mut all = beside(&plan.steps, one).into_iter().collect::<Result<Vec<Lowered>>>()?;
    for (at, pair) in plan.steps.windows(2).enumerate() {
        // Scratch memory holds what the one hands to the other: nothing may run between them.
        let alone = |at: usize| {
            let batch = |at: usize| plan.steps.get(at).map(|step| step.batch);
            (at == 0 || batch(at - 1) != batch(at)) && batch(at + 1) != batch(at)
        };
        if alone(at)
            && alone(at + 1)
            && let Some([first, second]) = emit::pair([&pair[0], &pair[1]], &plan.graph, &plan.scalars, caps)?
        {
            (all[at], all[at + 1]) = (first, second);
        }
    }
    Ok(all)
}

/// Scratch memory that the steps share, bytes.
fn scratch_bytes(lowered: &[Lowered], align: u64) -> u64 {
    lowered.iter().map(|l| l.scratch_bytes as u64).max().unwrap_or(0).next_multiple_of(align)
}

/// Bytes that a plan's workspace takes on a device with such limits: what the plan says, and the scratch memory of
/// its kernels. No device is asked.
///
/// # Errors
/// `Limit` and `DType`, as [`wgrad_graph::Backend::prepare`].
pub fn workspace_bytes(plan: &Plan, caps: &Caps) -> Result<usize> {
    let align = caps.align_bytes as u64;
    let scratch = scratch_bytes(&lower(caps, plan)?, align);
    Ok(plan.workspace_bytes.next_multiple_of(caps.align_bytes) + scratch as usize)
}

/// Estimated time of a dispatch, from what devices of its kind reach.
fn cost_ns(kind: DeviceKind, launch: &Launch) -> u64 {
    let (bytes, flops) = choose::speed(kind);
    (launch.cost_bytes as f64 / bytes).max(launch.cost_flops as f64 / flops) as u64
}

/// Makes lowered steps ready: compiles, places, reserves.
pub(crate) fn prepare(core: &Arc<Core>, plan: &Arc<Plan>, lowered: Vec<Lowered>) -> Result<Ready> {
    core.faults.check("prepare")?;
    let align = core.caps.align_bytes as u64;
    let scratch = scratch_bytes(&lowered, align);
    let places = workspace::place(plan, scratch, align, core.max_buffer_bytes / align * align)?;

    let mut launches: Vec<(usize, Launch)> = lowered
        .into_iter()
        .enumerate()
        .flat_map(|(step, l)| l.launches.into_iter().map(move |launch| (step, launch)))
        .filter(|(_, launch)| !launch.grid.contains(&0))
        .collect();
    let batches = batches(core, plan, &mut launches)?;
    let op = |step: usize| {
        let last = plan.steps[step].group.nodes.last();
        last.map_or("group", |n| plan.graph.node(*n).op.name())
    };
    let mut wanted = Vec::with_capacity(launches.len());
    let mut others = Vec::new();
    let mut binds = Vec::with_capacity(launches.len());
    let mut raises = false;
    for (step, launch) in launches.iter().chain(batches.iter().map(|(_, whole)| whole)) {
        check(core, op(*step), launch)?;
        let sources = sources(plan, &places, &launch.bindings);
        raises |= sources.iter().any(|(s, _)| *s == Source::Flag);
        // A driver buffer may not be bound `read` and `read_write` in one dispatch.
        let writes =
            |class| sources.iter().zip(&launch.bindings).any(|((s, _), b)| b.written && s.class() == class);
        let written: SmallVec<[bool; 8]> = sources.iter().map(|(s, _)| writes(s.class())).collect();
        if let Some(source) = &launch.of_halves {
            others.push((wanted.len(), Wanted::new(source, written.clone(), launch.params)));
        }
        wanted.push(Wanted::new(&launch.source, written, launch.params));
        binds.push(sources);
    }
    let count = wanted.len();
    let (which, others): (Vec<usize>, Vec<Wanted>) = others.into_iter().unzip();
    wanted.extend(others);
    let mut kernels = core.kernels.all(core, &wanted)?;
    let mut others: HashMap<usize, Arc<Kernel>> = which.into_iter().zip(kernels.split_off(count)).collect();
    let singles = launches.len();
    let wholes: Vec<Range<usize>> = batches.iter().map(|(runs, _)| runs.clone()).collect();
    launches.extend(batches.into_iter().map(|(_, whole)| whole));
    let words: Vec<Vec<u32>> = launches.iter().map(|(_, l)| words(core, l)).collect();
    let mut uniforms = uniforms(core, &launches, &words)?;

    let mut runs = Vec::with_capacity(launches.len());
    for (n, (((step, launch), kernel), binds)) in launches.iter().zip(kernels).zip(binds).enumerate() {
        let first = match launch.params {
            Params::Spilled { fixed } => fixed as usize,
            Params::None | Params::Immediate | Params::Parts { .. } => 0,
        };
        let scalars = launch.words[first..].iter().enumerate();
        runs.push(Run {
            kernel,
            of_halves: others.remove(&n),
            binds,
            uniform: uniforms[n].take(),
            immediates: words[n][first..].into(),
            scalars: scalars
                .filter_map(|(at, word)| match word {
                    Word::Scalar(scalar, ty) => Some((at, *scalar, *ty)),
                    Word::Fixed(_) | Word::Check { .. } => None,
                })
                .collect(),
            grid: launch.grid,
            cost_ns: cost_ns(core.caps.kind, launch),
            steps: Arc::from([*step as u32]),
        });
    }
    let made: Vec<Run> = runs.drain(singles..).collect();
    let mut batches = Vec::with_capacity(made.len());
    for ((mut whole, range), (_, launch)) in made.into_iter().zip(wholes).zip(&launches[singles..]) {
        let Params::Parts { unit_bytes, workgroup } = launch.params else { continue };
        let mut parts = Vec::with_capacity(launch.parts.len());
        for part in &launch.parts {
            parts.push((sources(plan, &places, &part.bindings), part.work));
        }
        // Access was chosen by the first part's classes.
        let class = |part: &Binds| part.iter().map(|(s, _)| s.class()).collect::<Vec<_>>();
        if parts.iter().all(|(part, _)| class(part) == class(&whole.binds)) {
            whole.steps = runs[range.clone()].iter().flat_map(|run| run.steps.iter().copied()).collect();
            batches.push(Batch {
                runs: range,
                whole,
                parts,
                unit_bytes,
                workgroup,
                tables: Mutex::default(),
            });
        }
    }
    let serial = core.number();
    workspace::reserve(core, serial, &places.needs)?;
    // A short-lived process may never drop its device.
    core.kernels.save(&core.info);
    Ok(Ready { core: Arc::clone(core), serial, plan: Arc::clone(plan), runs, batches, raises })
}

/// What the bindings of a launch refer to, and their bytes.
fn sources(plan: &Plan, places: &Places, bindings: &[Binding]) -> Binds {
    let one = |b: &Binding| (source(plan, places, b.what), b.bytes.next_multiple_of(4).max(4) as u64);
    bindings.iter().map(one).collect()
}

/// Which launches one stands for, and that one with its first step.
type Whole = (Range<usize>, (usize, Launch));

/// Launches that run several of `launches` as one, each with the range that it stands for. Launches of
/// one batch, which are independent of each other, are put next to those of the same text.
fn batches(core: &Core, plan: &Plan, launches: &mut [(usize, Launch)]) -> Result<Vec<Whole>> {
    let mut made = Vec::new();
    let mut from = 0;
    while from < launches.len() {
        let batch = |i: usize| plan.steps[launches[i].0].batch;
        let upto = (from + 1..launches.len()).find(|i| batch(*i) != batch(from)).unwrap_or(launches.len());
        let own = launches[from..upto].windows(2).all(|w| w[0].0 != w[1].0);
        if own && upto - from > 1 {
            launches[from..upto].sort_by(|a, b| a.1.source.cmp(&b.1.source));
            let mut first = from;
            while first < upto {
                let same = |i: &usize| launches[*i].1.source != launches[first].1.source;
                let end = (first..upto).find(same).unwrap_or(upto);
                let steps: Vec<&Step> = launches[first..end].iter().map(|l| &plan.steps[l.0]).collect();
                let singles: Vec<&Launch> = launches[first..end].iter().map(|l| &l.1).collect();
                let whole = emit::batch(&steps, &singles, &plan.graph, &plan.scalars, &core.caps)?;
                made.extend(whole.map(|whole| (first..end, (launches[first].0, whole))));
                first = end;
            }
        }
        from = upto;
    }
    Ok(made)
}

/// Fails where a launch needs more than the device has.
fn check(core: &Core, op: &str, launch: &Launch) -> Result<()> {
    let caps = &core.caps;
    let limit = |what: &str, have: usize, most: usize| {
        if have <= most {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Limit, op, format!("{have} {what} are over the device's limit of {most}")))
    };
    limit("buffers in one kernel", launch.bindings.len(), core.max_bindings)?;
    for binding in &launch.bindings {
        limit("bytes of one value", binding.bytes, caps.max_value_bytes)?;
    }
    for axis in launch.grid {
        limit("workgroups on one axis", axis as usize, caps.max_workgroups as usize)?;
    }
    let immediates = match launch.params {
        Params::None => 0,
        Params::Immediate | Params::Parts { .. } => launch.words.len(),
        Params::Spilled { fixed } => launch.words.len() - fixed as usize,
    };
    limit("bytes of immediates", immediates * 4, caps.immediate_bytes)
}

fn source(plan: &Plan, places: &Places, what: Bound) -> Source {
    match what {
        Bound::Flag => Source::Flag,
        Bound::Scratch(offset) => Source::Work(places.scratch.0, places.scratch.1 + offset as u64),
        Bound::Loc(Loc::Slot(slot)) => {
            let (buffer, offset) = places.slots[slot as usize];
            Source::Work(buffer, offset)
        }
        Bound::Loc(Loc::Leaf(leaf)) => match plan.leaves[leaf as usize].kind {
            LeafKind::Upload => Source::Work(0, plan.leaves[leaf as usize].offset_bytes as u64),
            LeafKind::Buffer | LeafKind::Donated => Source::Leaf(leaf),
        },
        Bound::Loc(Loc::Out(out)) => Source::Out(out),
    }
}

/// The words that are known now; 0 for scalars.
fn words(core: &Core, launch: &Launch) -> Vec<u32> {
    let word = |word: &Word| match *word {
        Word::Fixed(word) => word,
        Word::Scalar(..) => 0,
        Word::Check { op, limit, at } => core.checks.number(op, limit, at),
    };
    launch.words.iter().map(word).collect()
}

/// Bind groups of the spilled parameters, which lie in one uniform buffer.
fn uniforms(
    core: &Core,
    launches: &[(usize, Launch)],
    words: &[Vec<u32>],
) -> Result<Vec<Option<wgpu::BindGroup>>> {
    // The largest alignment of uniform offsets that Vulkan allows a driver to ask for.
    const ALIGN: usize = 256;
    let mut data: Vec<u8> = Vec::new();
    let mut ranges = Vec::with_capacity(launches.len());
    for ((_, launch), words) in launches.iter().zip(words) {
        ranges.push(match launch.params {
            Params::Spilled { fixed } if fixed > 0 => {
                let offset = data.len();
                data.extend_from_slice(bytemuck::cast_slice(&words[..fixed as usize]));
                let bytes = data.len() - offset;
                data.resize(data.len().next_multiple_of(ALIGN), 0);
                Some((offset as u64, bytes as u64))
            }
            _ => None,
        });
    }
    if data.is_empty() {
        return Ok(vec![None; launches.len()]);
    }
    core.faults.scoped(&core.device, "prepare", || {
        let buffer = core.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: data.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM,
            mapped_at_creation: true,
        });
        if let Ok(mut view) = buffer.get_mapped_range_mut(..) {
            view.copy_from_slice(&data);
        }
        buffer.unmap();
        let group = |range: &Option<(u64, u64)>| {
            let (offset, bytes) = (*range)?;
            Some(core.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &core.kernels.uniform,
                entries: &[wgpu::BindGroupEntry {
                    binding: 0,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: &buffer,
                        offset,
                        size: wgpu::BufferSize::new(bytes),
                    }),
                }],
            }))
        };
        ranges.iter().map(group).collect()
    })
}
