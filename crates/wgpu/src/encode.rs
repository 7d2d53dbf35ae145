//! Submissions: host bytes staged, dispatches recorded, everything handed to the queue in order.

use std::sync::Arc;

use smallvec::SmallVec;
use wgrad_graph::{
    Args, BufferId, Bytes, Element, Error, ErrorKind, Fast, InStage, LeafArg, LeafKind, Result, Stage,
    Ticket, Watch, bf16, f16,
};

use crate::binds::{BindKey, Binds};
use crate::choose::MOST_NS;
use crate::copy::fill;
use crate::faults::lock;
use crate::gpu::{Core, count};
use crate::launch::ScalarType;
use crate::lists::{Bound, Place, Which};
use crate::pages::{self, Range};
use crate::prepare::{Ready, Run, Source};
use crate::timing::Timed;
use crate::together::bind_batch;
use crate::workspace::Workspace;

/// A queue submission is closed when it has this many dispatches, so that the device starts while the rest
/// is recorded; and when its estimated work passes [`MOST_NS`].
pub(crate) const MOST_DISPATCHES: usize = 1024;
/// Writes are handed to the queue when this many bytes wait.
const MOST_WRITES: u64 = 64 << 20;
/// From this many bytes on host data have staging memory of their own, which is filled without holding the line.
const LARGE_BYTES: u64 = 256 << 10;
/// Large writes are handed to the queue in chunks of so many bytes.
const CHUNK_BYTES: usize = 16 << 20;

/// Host bytes in a staging buffer, on their way to a range.
#[derive(Debug)]
struct Copy {
    from: wgpu::Buffer,
    from_offset: u64,
    to: wgpu::Buffer,
    to_offset: u64,
    bytes: u64,
}

/// The order of everything that reaches the queue. Who holds it may submit.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// The last ticket given.
    ticket: u64,
    /// The staging buffer that is being filled, and bytes used.
    open: Option<(wgpu::Buffer, u64)>,
    /// Filled staging buffers that the next submission uses.
    full: Vec<wgpu::Buffer>,
    /// Writes that the next submission makes first.
    writes: Vec<Copy>,
    waiting_bytes: u64,
}

impl Line {
    /// Room for `bytes` bytes in mapped staging memory: the buffer and an offset.
    fn room(&mut self, core: &Core, bytes: u64) -> Result<(wgpu::Buffer, u64)> {
        if let Some((buffer, used)) = &mut self.open
            && *used + bytes <= buffer.size()
        {
            let offset = *used;
            *used = (*used + bytes).next_multiple_of(8);
            return Ok((buffer.clone(), offset));
        }
        let buffer = core.uploads.take(core, bytes)?;
        if let Some((old, _)) = self.open.replace((buffer.clone(), bytes.next_multiple_of(8))) {
            self.full.push(old);
        }
        Ok((buffer, 0))
    }

    /// Hands `encoder` to the queue with the staging buffers used so far, and gives it a ticket.
    pub(crate) fn launch(
        &mut self,
        core: &Core,
        encoder: wgpu::CommandEncoder,
        watch: Option<&Arc<dyn Watch>>,
    ) -> u64 {
        self.full.extend(self.open.take().map(|(buffer, _)| buffer));
        for buffer in self.full.drain(..) {
            buffer.unmap();
            let (pool, back) = (Arc::clone(&core.uploads), buffer.clone());
            encoder.map_buffer_on_submit(&buffer, wgpu::MapMode::Write, .., move |mapped| {
                if mapped.is_ok() {
                    pool.give(back);
                }
            });
        }
        let ticket = self.ticket + 1;
        let clock = Arc::clone(&core.clock);
        encoder.on_submitted_work_done(move || clock.end(ticket));
        let commands = encoder.finish();
        let submit = InStage::enter(watch.map(|watch| &**watch), Stage::Submit);
        let index = core.queue.submit([commands]);
        drop(submit);
        self.ticket = ticket;
        core.clock.start(ticket, index);
        count(&core.counters.submissions, 1);
        ticket
    }

    /// Hands waiting writes to the queue. They have a submission of their own, so that a step that
    /// fails cannot take them with it.
    pub(crate) fn flush(&mut self, core: &Core) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let writes = std::mem::take(&mut self.writes);
        self.waiting_bytes = 0;
        core.faults.scoped(&core.device, "write", || {
            let mut encoder = core.encoder();
            for c in &writes {
                encoder.copy_buffer_to_buffer(&c.from, c.from_offset, &c.to, c.to_offset, c.bytes);
            }
            self.launch(core, encoder, None);
        })
    }
}

impl Core {
    /// An empty encoder.
    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None })
    }
}

/// Writes `bytes` to the start of `buffer`, in the queue's order. `shared` are the same bytes where several threads
/// may copy them. What is large is copied without holding the line, so that others submit meanwhile.
pub(crate) fn write(core: &Core, buffer: BufferId, bytes: &[u8], shared: Option<&Bytes>) -> Result<()> {
    core.faults.check("write")?;
    let to = pages::find(core, "write", buffer)?;
    if bytes.is_empty() {
        return Ok(());
    }
    if bytes.len() as u64 > to.bytes {
        wgrad_graph::bail!(Argument, "write", "{} bytes do not fit a buffer of {}", bytes.len(), to.bytes);
    }
    let words = (bytes.len() as u64).next_multiple_of(4);
    if words < LARGE_BYTES {
        let mut line = lock(&core.line);
        let (from, from_offset) = line.room(core, words)?;
        fill(&from, from_offset, bytes)?;
        line.writes.push(Copy { from, from_offset, to: to.buffer, to_offset: to.offset, bytes: words });
        line.waiting_bytes += words;
        if line.waiting_bytes >= MOST_WRITES {
            line.flush(core)?;
        }
    } else {
        // The device takes a chunk while the next one is copied.
        for start in (0..bytes.len()).step_by(CHUNK_BYTES) {
            let range = start..bytes.len().min(start + CHUNK_BYTES);
            let words = (range.len() as u64).next_multiple_of(4);
            let from = core.uploads.take(core, words)?;
            match shared {
                Some(shared) => core.copiers.copy(shared, range, &from)?,
                None => core.copiers.fill(&from, 0, &bytes[range])?,
            }
            let mut line = lock(&core.line);
            let to_offset = to.offset + start as u64;
            line.full.push(from.clone());
            line.writes.push(Copy { from, from_offset: 0, to: to.buffer.clone(), to_offset, bytes: words });
            line.flush(core)?;
        }
    }
    count(&core.counters.uploads, 1);
    count(&core.counters.upload_bytes, bytes.len() as u64);
    Ok(())
}

/// Where leaves and outputs of one submission lie.
pub(crate) struct Given {
    leaves: SmallVec<[Option<Range>; 16]>,
    outs: SmallVec<[Range; 16]>,
}

fn given(core: &Core, ready: &Ready, args: Args<'_>) -> Result<Given> {
    let plan = &ready.plan;
    let counts = [
        ("leaves", args.leaves.len(), plan.leaves.len()),
        ("scalars", args.scalars.len(), plan.scalars.len()),
        ("outputs", args.outputs.len(), plan.outputs.len()),
    ];
    for (what, have, need) in counts {
        if have != need {
            wgrad_graph::bail!(Argument, "submit", "{have} {what} were given, the plan takes {need}");
        }
    }
    let pages = lock(&core.pages);
    let mut leaves = SmallVec::new();
    for (i, (leaf, arg)) in plan.leaves.iter().zip(args.leaves).enumerate() {
        leaves.push(match (leaf.kind, arg) {
            (LeafKind::Upload, LeafArg::Host(bytes)) => {
                if leaf.offset_bytes + bytes.len() > plan.upload_bytes {
                    wgrad_graph::bail!(Argument, "submit", "{} bytes do not fit leaf {i}", bytes.len());
                }
                None
            }
            (LeafKind::Buffer | LeafKind::Donated, LeafArg::Buffer(id)) => {
                Some(pages::range(&pages, "submit", *id)?)
            }
            (kind, _) => {
                wgrad_graph::bail!(Argument, "submit", "what is given for leaf {i} is not of kind {kind:?}")
            }
        });
    }
    let outs = args.outputs.iter().map(|id| pages::range(&pages, "submit", *id)).collect::<Result<_>>()?;
    Ok(Given { leaves, outs })
}

impl Given {
    /// Everything that bindings depend on.
    fn places(&self, work: &[Option<(u64, wgpu::Buffer)>]) -> Vec<Place> {
        let none = (u64::MAX, 0, 0);
        let range = |r: &Range| (r.number, r.offset, r.bytes);
        let work =
            work.iter().map(|w| w.as_ref().map_or(none, |(number, buffer)| (*number, 0, buffer.size())));
        let leaves = self.leaves.iter().map(|leaf| leaf.as_ref().map_or(none, range));
        work.chain(leaves).chain(self.outs.iter().map(range)).collect()
    }

    /// Number, buffer and offset of what a binding refers to.
    pub(crate) fn find<'a>(
        &'a self,
        work: &'a [Option<(u64, wgpu::Buffer)>],
        flag: &'a wgpu::Buffer,
        source: Source,
        bytes: u64,
    ) -> Result<(u64, &'a wgpu::Buffer, u64)> {
        let range = match source {
            Source::Flag => return Ok((0, flag, 0)),
            Source::Work(n, offset) => {
                return match work.get(n) {
                    Some(Some((number, buffer))) => Ok((*number, buffer, offset)),
                    _ => Err(Error::new(ErrorKind::OutOfMemory, "submit", "the workspace is gone")),
                };
            }
            Source::Leaf(i) => self.leaves[i as usize].as_ref(),
            Source::Out(i) => self.outs.get(i as usize),
        };
        match range {
            Some(range) if bytes <= range.bytes => Ok((range.number, &range.buffer, range.offset)),
            Some(range) => Err(Error::new(
                ErrorKind::Argument,
                "submit",
                format!("a buffer of {} bytes was given for a value of {bytes} ({source:?})", range.bytes),
            )),
            None => {
                Err(Error::new(ErrorKind::Argument, "submit", format!("nothing was given for {source:?}")))
            }
        }
    }
}

pub(crate) fn bind(
    core: &Core,
    binds: &mut Binds,
    given: &Given,
    work: &[Option<(u64, wgpu::Buffer)>],
    ready: &Ready,
    at: usize,
) -> Result<Bound> {
    let run = &ready.runs[at];
    let mut ranges = SmallVec::new();
    let mut buffers: SmallVec<[&wgpu::Buffer; 6]> = SmallVec::new();
    for (source, bytes) in &run.binds {
        let (number, buffer, offset) = given.find(work, &core.flag, *source, *bytes)?;
        ranges.push((number, offset, *bytes));
        buffers.push(buffer);
    }
    let group = group(core, binds, run, ranges, &buffers);
    Ok(Bound { run: Which::Run(at as u32), group, uniform: run.uniform.clone(), total: None })
}

pub(crate) fn group(
    core: &Core,
    binds: &mut Binds,
    run: &Run,
    ranges: SmallVec<[(u64, u64, u64); 6]>,
    buffers: &[&wgpu::Buffer],
) -> wgpu::BindGroup {
    let key = BindKey { layout: run.kernel.layout.number, ranges };
    let places: SmallVec<[(u64, u64); 6]> = key.ranges.iter().map(|r| (r.1, r.2)).collect();
    binds.group(key, || {
        let entries: SmallVec<[wgpu::BindGroupEntry<'_>; 8]> = (0..)
            .zip(buffers.iter().zip(&places))
            .map(|(binding, (buffer, (offset, bytes)))| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: *offset,
                    size: wgpu::BufferSize::new(*bytes),
                }),
            })
            .collect();
        core.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &run.kernel.layout.storage,
            entries: &entries,
        })
    })
}

/// Everything that a plan runs, bound; as before where it is bound to the same places.
fn bind_all(
    core: &Core,
    given: &Given,
    work: &[Option<(u64, wgpu::Buffer)>],
    ready: &Ready,
) -> Result<Arc<[Bound]>> {
    let mut binds = lock(&core.binds);
    let places = given.places(work);
    let known = core.caps.allows(Fast::BoundPlans);
    if known && let Some(bound) = binds.lists.find(ready.serial, &places) {
        return Ok(bound);
    }
    let mut bound = Vec::with_capacity(ready.runs.len());
    let mut batches = ready.batches.iter().enumerate().peekable();
    let mut at = 0;
    while at < ready.runs.len() {
        if let Some((number, batch)) = batches.next_if(|(_, b)| b.runs.start == at) {
            bind_batch(core, &mut binds, given, work, ready, number, &mut bound)?;
            at = batch.runs.end;
            continue;
        }
        bound.push(bind(core, &mut binds, given, work, ready, at)?);
        at += 1;
    }
    let bound = bound.into();
    if known {
        binds.lists.keep(ready.serial, places, &bound);
    }
    Ok(bound)
}

/// A scalar as the word that kernels read.
fn word(value: f64, ty: ScalarType) -> u32 {
    match ty {
        ScalarType::F32 => (value as f32).to_bits(),
        ScalarType::I32 | ScalarType::U32 => value as i64 as u32,
        ScalarType::High => ((value as i64) >> 32) as u32,
        ScalarType::F16 => u32::from(<f16 as Element>::from_f64(value).to_bits()),
        ScalarType::BF16 => u32::from(<bf16 as Element>::from_f64(value).to_bits()),
        ScalarType::Bool => u32::from(value != 0.0),
    }
}

/// Whether the f32 nearest to a scalar is a half.
fn is_half(value: f64) -> bool {
    f64::from(f16::from_f32(value as f32)) == f64::from(value as f32)
}

fn record(pass: &mut wgpu::ComputePass<'_>, run: &Run, bound: &Bound, scalars: &[f64]) {
    let halves = |(_, scalar, ty): &(usize, u32, ScalarType)| {
        *ty != ScalarType::F32 || is_half(scalars[*scalar as usize])
    };
    let of_halves = run.of_halves.as_ref().filter(|_| run.scalars.iter().all(halves));
    pass.set_pipeline(&of_halves.unwrap_or(&run.kernel).pipeline);
    pass.set_bind_group(0, &bound.group, &[]);
    if let Some(uniform) = &bound.uniform {
        pass.set_bind_group(1, uniform, &[]);
    }
    if !run.immediates.is_empty() {
        let mut words = run.immediates.clone();
        for (at, scalar, ty) in &run.scalars {
            words[*at] = word(scalars[*scalar as usize], *ty);
        }
        if let Some((total, _)) = bound.total {
            words[0] = total;
        }
        pass.set_immediates(0, bytemuck::cast_slice(&words));
    }
    let [x, y, z] = bound.total.map_or(run.grid, |(_, grid)| grid);
    pass.dispatch_workgroups(x, y, z);
}

/// Runs `runs[from..]` in one pass until the submission is large enough; where it stopped.
fn pass(
    encoder: &mut wgpu::CommandEncoder,
    ready: &Ready,
    runs: &[Bound],
    from: usize,
    scalars: &[f64],
    mut timed: Option<&mut Timed<'_>>,
) -> usize {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    let (mut at, mut ns) = (from, 0);
    if let Some(timed) = &timed {
        timed.start(&mut pass);
    }
    while at < runs.len() && at - from < MOST_DISPATCHES {
        let run = ready.run(runs[at].run);
        if at > from && ns + run.cost_ns > MOST_NS {
            break;
        }
        ns += run.cost_ns;
        record(&mut pass, run, &runs[at], scalars);
        if let Some(timed) = &mut timed {
            timed.after(&mut pass, &run.steps);
        }
        at += 1;
    }
    at
}

/// Submits a prepared plan. When it fails nothing has run, except
/// for a plan that takes several submissions, of which earlier ones may have.
pub(crate) fn submit(core: &Arc<Core>, ready: &Ready, args: Args<'_>) -> Result<Ticket> {
    core.faults.check("submit")?;
    let mut timed = Timed::new(core, args.watch, &ready.plan)?;
    let given = given(core, ready, args)?;
    let upload_bytes = ready.plan.upload_bytes.next_multiple_of(4) as u64;
    let stage = |from: wgpu::Buffer, offset: u64| -> Result<(wgpu::Buffer, u64)> {
        for (leaf, arg) in ready.plan.leaves.iter().zip(args.leaves) {
            if let LeafArg::Host(bytes) = arg
                && !bytes.is_empty()
            {
                core.copiers.fill(&from, offset + leaf.offset_bytes as u64, bytes)?;
            }
        }
        Ok((from, offset))
    };
    let upload = args.stage(Stage::Upload);
    let large = match upload_bytes >= LARGE_BYTES {
        true => Some(stage(core.uploads.take(core, upload_bytes)?, 0)?),
        false => None,
    };
    drop(upload);
    let mut line = lock(&core.line);
    line.flush(core)?;
    let upload = args.stage(Stage::Upload);
    let staged = match large {
        Some((from, offset)) => {
            line.full.push(from.clone());
            Some((from, offset))
        }
        None if upload_bytes > 0 => {
            let (from, offset) = line.room(core, upload_bytes)?;
            Some(stage(from, offset)?)
        }
        None => None,
    };
    drop(upload);
    let flag = if ready.raises { Some(core.downloads.take(core, 4)?) } else { None };
    // Held until submitted: the workspace may not be exchanged in between.
    let work = lock(&core.work);
    let work = Workspace::all(&work);
    let mut raised = None;
    let mut dispatches = 0;
    let ticket = core.faults.scoped(&core.device, "submit", || -> Result<u64> {
        let runs = bind_all(core, &given, &work, ready)?;
        dispatches = runs.len();
        let mut encoder = core.encoder();
        if let Some(timed) = &mut timed {
            timed.begin(core, &mut encoder)?;
        }
        if let Some((from, offset)) = &staged {
            let (_, to, _) = given.find(&work, &core.flag, Source::Work(0, 0), 0)?;
            encoder.copy_buffer_to_buffer(from, *offset, to, 0, upload_bytes);
        }
        let mut at = pass(&mut encoder, ready, &runs, 0, args.scalars, timed.as_mut());
        let mut copied = staged.is_some();
        while at < runs.len() {
            if let Some(timed) = &mut timed {
                timed.end(core, &mut encoder, std::mem::take(&mut copied));
            }
            line.launch(core, std::mem::replace(&mut encoder, core.encoder()), args.watch);
            if let Some(timed) = &mut timed {
                timed.begin(core, &mut encoder)?;
            }
            at = pass(&mut encoder, ready, &runs, at, args.scalars, timed.as_mut());
        }
        if let Some(timed) = &mut timed {
            timed.end(core, &mut encoder, copied);
        }
        if let Some(buffer) = &flag {
            raised = Some(line.ticket + 1);
            raise(core, &mut encoder, buffer, line.ticket + 1);
        }
        Ok(line.launch(core, encoder, args.watch))
    });
    let ticket = ticket.flatten().inspect_err(|_| {
        // The flag of a submission that failed may never come; no later wait may stand for it.
        if let Some(ticket) = raised {
            core.checks.land(ticket, 0);
        }
    })?;
    count(&core.counters.dispatches, dispatches as u64);
    if staged.is_some() {
        count(&core.counters.uploads, 1);
        count(&core.counters.upload_bytes, ready.plan.upload_bytes as u64);
    }
    tracing::trace!(ticket, dispatches, "submitted");
    Ok(Ticket(ticket))
}

/// Copies the error flag of `ticket` to the host and clears it.
fn raise(core: &Core, encoder: &mut wgpu::CommandEncoder, buffer: &wgpu::Buffer, ticket: u64) {
    encoder.copy_buffer_to_buffer(&core.flag, 0, buffer, 0, 4);
    encoder.clear_buffer(&core.flag, 0, Some(4));
    core.checks.expect(ticket);
    let (checks, pool, back) = (Arc::clone(&core.checks), Arc::clone(&core.downloads), buffer.clone());
    encoder.map_buffer_on_submit(buffer, wgpu::MapMode::Read, 0..4, move |mapped| {
        if mapped.is_err() {
            return checks.land(ticket, 0);
        }
        let number = back.get_mapped_range(0..4).map_or(0, |view| bytemuck::pod_read_unaligned(&view[..4]));
        checks.land(ticket, number);
        back.unmap();
        pool.give(back);
    });
}
