//! The executor of plans on the CPU.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use wgrad_graph::{
    Args, Backend, BufferId, Caps, DeviceKind, Error, Fast, LeafArg, Memory, Off, Out, Pending, Plan,
    Prepared, Ran, Result, Stage, Ticket, Val, bail,
};

use crate::memory::{ALIGN, Device, Ready, State};
use crate::oracle::{check_arity, count_uploads};
use crate::pool;
use crate::rows::{self, Run};
use crate::step::{Arena, Compiled, Mem};
use crate::tail;

/// The CPU as a device: elements in their own dtype, vector code chosen at run time, all cores.
///
/// Results do not depend on the number of threads, on fusion, or on the layout of operands: sums are
/// trees fixed by sizes, and elementwise functions are built of uncontracted operations.
#[derive(Debug)]
pub struct Cpu {
    caps: Caps,
    device: Arc<Device>,
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new()
    }
}

impl Cpu {
    /// The CPU with as much memory as the system gives.
    pub fn new() -> Cpu {
        Cpu::build(None)
    }

    /// The CPU with at most `bytes` bytes of values and workspace.
    ///
    /// # Errors
    /// `prepare` and `alloc` give `OutOfMemory` where more would be needed.
    pub fn with_budget(bytes: usize) -> Cpu {
        Cpu::build(Some(bytes))
    }

    /// The same without the fast paths of `off`.
    #[must_use]
    pub fn without(mut self, off: Off) -> Cpu {
        self.caps.off = self.caps.off.and(off);
        self
    }

    fn build(budget: Option<usize>) -> Cpu {
        let caps = Caps {
            name: format!("CPU, {} threads", pool::threads()),
            driver: String::new(),
            kind: DeviceKind::Cpu,
            max_buffers: 64,
            max_value_bytes: isize::MAX as usize,
            align_bytes: ALIGN,
            immediate_bytes: 1 << 16,
            max_invocations: 1024,
            max_workgroups: 65_535,
            shared_bytes: 1 << 15,
            subgroup: 1,
            f64: true,
            wide: false,
            native_half: false,
            long_words: false,
            long_products: false,
            off: Off::of_env(false),
            half_factors: false,
            cooperative: false,
        };
        Cpu { caps, device: Device::new(budget) }
    }
}

/// A plan whose steps are compiled and whose workspace is reserved.
#[derive(Debug)]
struct Program {
    plan: Arc<Plan>,
    steps: Vec<Compiled>,
    /// Steps that run row by row together.
    runs: Vec<Run>,
    /// Whether threads share the work of a step.
    shared: bool,
    /// Slots that begin with each step, and that end with it.
    born: Vec<Vec<u32>>,
    dies: Vec<Vec<u32>>,
    device: Arc<Device>,
}

impl Prepared for Program {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.device.lock().release_workspace(self.plan.workspace_bytes);
    }
}

impl Program {
    fn slot(&self, slot: u32) -> usize {
        self.plan.leaves.len() + self.plan.outputs.len() + slot as usize
    }

    /// Every buffer and host slice holds its value; nothing has moved yet.
    fn check(&self, state: &State, args: &Args<'_>) -> Result<()> {
        let plan = &self.plan;
        check_arity(plan, args)?;
        let holds = |what: &str, i: usize, out: Out, bytes: usize| -> Result<()> {
            let needed = out.shape.elems() * out.dtype.bytes();
            if bytes < needed {
                bail!(Argument, "submit", "{what} {i} of {out:?} takes {needed} bytes, {bytes} were given");
            }
            Ok(())
        };
        for (i, (leaf, arg)) in plan.leaves.iter().zip(args.leaves).enumerate() {
            let bytes = match arg {
                LeafArg::Buffer(buffer) => state.bytes(*buffer)?.len(),
                LeafArg::Host(bytes) => bytes.len(),
            };
            holds("leaf", i, plan.graph.out(Val::of(leaf.node)), bytes)?;
        }
        for (i, buffer) in args.outputs.iter().enumerate() {
            holds("output", i, plan.output(i), state.bytes(*buffer)?.len())?;
        }
        self.steps.iter().try_for_each(|step| step.check(args.scalars))
    }

    /// Runs the steps in order; the first error flag that one raised.
    fn run(
        &self,
        arena: &mut Arena<'_>,
        args: &Args<'_>,
        state: &mut State,
        ran: &mut Vec<Ran>,
    ) -> Option<Error> {
        let (steps, plan) = (&self.steps, &self.plan);
        let mut error: Option<Error> = None;
        let mut i = 0;
        while i < steps.len() {
            let start_ns = args.watch.map(|watch| watch.now_ns());
            let run = self.runs.iter().find(|run| run.steps.start == i);
            let run = run.filter(|run| run.is_apart(steps, arena));
            let range = run.map_or(i..i + 1, |run| run.steps.clone());
            for slot in self.born[range.clone()].iter().flatten() {
                arena.mems[self.slot(*slot)] = Mem::Block(state.take(plan.slots[*slot as usize].bytes));
            }
            match run {
                Some(run) => {
                    for (step, flag) in steps[range.clone()].iter().zip(run.run(steps, arena, args.scalars)) {
                        if let Some(met) = flag.raised() {
                            error.get_or_insert_with(|| step.out_of_range(met));
                        }
                    }
                }
                None => steps[i].run(arena, args.scalars, state, &mut error),
            }
            for slot in self.dies[range.clone()].iter().flatten() {
                if let Mem::Block(block) = std::mem::take(&mut arena.mems[self.slot(*slot)]) {
                    state.give(block);
                }
            }
            if let (Some(start_ns), Some(watch)) = (start_ns, args.watch) {
                let steps = (range.start as u32..range.end as u32).collect();
                ran.push(Ran { steps, start_ns, end_ns: watch.now_ns() });
            }
            i = range.end;
        }
        error
    }
}

impl Backend for Cpu {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        let steps: Vec<Compiled> =
            plan.steps.iter().map(|step| Compiled::new(plan, step, &self.caps)).collect();
        let mut runs: Vec<Run> = Vec::new();
        for i in 0..steps.len() {
            if self.caps.allows(Fast::RowRuns) && runs.last().is_none_or(|run| run.steps.end <= i) {
                runs.extend(rows::find(&steps, i));
            }
        }
        let (mut born, mut dies) = (vec![Vec::new(); steps.len()], vec![Vec::new(); steps.len()]);
        for (i, slot) in plan.slots.iter().enumerate() {
            if let Some(born) = born.get_mut(slot.born as usize) {
                born.push(i as u32);
            }
            if let Some(dies) = dies.get_mut(slot.dies as usize) {
                dies.push(i as u32);
            }
        }
        let mut state = self.device.lock();
        state.reserve_workspace(plan.workspace_bytes)?;
        state.counters.kernels += steps.len() as u64;
        drop(state);
        let device = Arc::clone(&self.device);
        let shared = pool::threads() > 1
            && (steps.iter().any(Compiled::is_shared)
                || runs.iter().any(|run| run.amount(&steps) >= tail::PARALLEL_WORK));
        Ok(Arc::new(Program { plan: Arc::clone(plan), steps, runs, shared, born, dies, device }))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        self.device.lock().alloc(bytes)
    }

    fn free(&self, buffer: BufferId) {
        self.device.lock().free(buffer);
    }

    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket> {
        let Some(program) = prepared.as_any().downcast_ref::<Program>() else {
            bail!(Argument, "submit", "the plan was prepared by another device");
        };
        if !Arc::ptr_eq(&program.device, &self.device) {
            bail!(Argument, "submit", "the plan was prepared by another device");
        }
        let mut state = self.device.lock();
        program.check(&state, &args)?;

        let plan = &program.plan;
        let places = plan.leaves.len() + plan.outputs.len() + plan.slots.len();
        let mut arena =
            Arena { mems: (0..places).map(|_| Mem::Empty).collect(), alias: (0..places).collect() };
        let mut home: HashMap<BufferId, usize> = HashMap::new();
        let buffers = args.leaves.iter().map(|leaf| match leaf {
            LeafArg::Buffer(buffer) => Some(*buffer),
            LeafArg::Host(_) => None,
        });
        for (i, buffer) in buffers.chain(args.outputs.iter().map(|b| Some(*b))).enumerate() {
            let Some(buffer) = buffer else { continue };
            match home.get(&buffer) {
                Some(first) => arena.alias[i] = *first,
                None => {
                    home.insert(buffer, i);
                    arena.mems[i] = Mem::Block(state.checkout(buffer)?);
                }
            }
        }
        for (i, leaf) in args.leaves.iter().enumerate() {
            if let LeafArg::Host(bytes) = leaf {
                // Steps run before this returns, so aligned bytes are read where they lie.
                arena.mems[i] = match bytes.as_ptr().align_offset(8) {
                    0 => Mem::Host(bytes),
                    _ => Mem::Block(crate::memory::Block::from(*bytes)),
                };
            }
        }

        let _compute = args.stage(Stage::Compute);
        let mut ran: Vec<Ran> = Vec::new();
        let all = &mut *state;
        let error = match program.shared {
            true => pool::among(|| program.run(&mut arena, &args, all, &mut ran)),
            false => program.run(&mut arena, &args, all, &mut ran),
        };
        for (buffer, place) in home {
            if let Mem::Block(block) = std::mem::take(&mut arena.mems[place]) {
                state.checkin(buffer, block);
            }
        }
        if let Some(watch) = args.watch {
            watch.ran(plan, &ran);
        }
        count_uploads(&mut state.counters, &args);
        state.counters.dispatches += program.steps.len() as u64;
        Ok(self.device.submitted(&mut state, error))
    }

    fn wait(&self, ticket: Ticket, _timeout: Duration) -> Result<()> {
        self.device.ended(ticket.0)
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.device.lock().write(buffer, bytes)
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        let mut state = self.device.lock();
        let bytes = state.read(ranges)?;
        Ok(Box::new(Ready { device: Arc::clone(&self.device), ticket: state.last_ticket(), bytes }))
    }

    fn memory(&self) -> Memory {
        self.device.lock().counters
    }

    fn has_clock(&self) -> bool {
        true
    }
}
