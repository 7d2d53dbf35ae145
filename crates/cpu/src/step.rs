//! One step of a plan, compiled and run.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use wgrad_graph::{
    Body, Caps, DType, Error, ErrorKind, Fast, Graph, Group, Kind, Loc, Op, Out, Plan, Step, Val,
};

use crate::access::Turned;
use crate::attention::Attention;
use crate::machine::{self, Chunk, Env, Flag, Operand, OutOfRange};
use crate::margin::Margin;
use crate::matmul::Product;
use crate::memory::{Block, State};
use crate::program::{Code, Program, Space};
use crate::reduce::Reduction;
use crate::row_program::RowProgram;
use crate::scatter::Scatter;
use crate::share::share;
use crate::tiles::Left;
use crate::whole::{self, Whole};
use crate::{custom, kernels, pool, tail, turn};

/// Memory of one place during a submission.
#[derive(Debug, Default)]
pub(crate) enum Mem<'h> {
    /// Nothing lies here now.
    #[default]
    Empty,
    /// A buffer or a part of the workspace.
    Block(Block),
    /// The caller's bytes.
    Host(&'h [u8]),
}

impl Mem<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Mem::Empty => &[],
            Mem::Block(block) => block.bytes(),
            Mem::Host(bytes) => bytes,
        }
    }
}

/// All places of a submission: leaves, then outputs, then slots.
#[derive(Debug)]
pub(crate) struct Arena<'h> {
    pub(crate) mems: Vec<Mem<'h>>,
    /// Places that are one memory have one number: that of the first of them.
    pub(crate) alias: Vec<usize>,
}

/// The place of a location of `plan`.
pub(crate) fn place(plan: &Plan, loc: Loc) -> usize {
    match loc {
        Loc::Leaf(i) => i as usize,
        Loc::Out(i) => plan.leaves.len() + i as usize,
        Loc::Slot(i) => plan.leaves.len() + plan.outputs.len() + i as usize,
    }
}

/// The loop of a step.
#[derive(Debug)]
pub(crate) enum Work {
    Pointwise,
    Reduce(Reduction),
    Rows(RowProgram),
    MatMul { product: Product, direct: Option<usize> },
    Scatter(Scatter),
    Whole(Op),
    Attention(Attention),
    Custom,
}

/// Elements of the operands below which one thread is faster than several, whatever is done with them.
const FEW: usize = 1 << 10;

/// What writes the outputs, given the operands.
type Writer<'f> = &'f mut dyn FnMut(&[Operand<'_>], Vec<&mut [u8]>);

/// A step that is ready to run.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) work: Work,
    pub(crate) tail: Program,
    /// Whether the tail takes the outer space in its own order.
    pub(crate) natural: bool,
    /// Copies that the tail reads, after operands and accumulators.
    pub(crate) turned: Vec<(usize, DType, Turned)>,
    pub(crate) group: Arc<Group>,
    graph: Arc<Graph>,
    /// For each scalar of the group, its number in the plan.
    scalars: Vec<usize>,
    pub(crate) reads: Vec<usize>,
    pub(crate) writes: Vec<usize>,
    pub(crate) operands: Vec<Out>,
    pub(crate) stores: Vec<Out>,
    /// Whether threads may take bands of a product's rows.
    bands: bool,
    /// What is filled around the part of the output that the tail computes.
    margin: Option<Margin>,
    /// For each operand and store, whether both may be one memory.
    in_place: Vec<Vec<bool>>,
}

/// Bytes of a value's elements.
pub(crate) fn bytes_of(out: &Out) -> usize {
    out.shape.elems() * out.dtype.bytes()
}

impl Compiled {
    pub(crate) fn new(plan: &Plan, step: &Step, caps: &Caps) -> Compiled {
        let group = &step.group;
        let operands: Vec<Out> = group.operands.iter().map(|v| plan.graph.out(*v)).collect();
        let stores: Vec<Out> = group.stores.iter().map(|s| plan.graph.out(s.val)).collect();
        let work = match group.kind {
            Kind::Pointwise => Work::Pointwise,
            Kind::Reduce => Work::Reduce(Reduction::new(group)),
            Kind::Row => Work::Rows(RowProgram::new(group)),
            Kind::MatMul { a, .. } => match Product::new(group, operands[usize::from(a.0)].dtype) {
                Some(product) => Work::MatMul { product, direct: None },
                None => unreachable!("the kind is a product"),
            },
            Kind::Scatter { at, .. } => {
                match Scatter::new(group, operands[usize::from(at.0)].dtype, stores[0].dtype) {
                    Some(scatter) => Work::Scatter(scatter),
                    None => unreachable!("the kind is a scatter"),
                }
            }
            Kind::Whole(op) => Work::Whole(op),
            Kind::Attention(..) => match Attention::new(group, &operands) {
                Some(attention) => Work::Attention(attention),
                None => unreachable!("the kind is an attention"),
            },
            Kind::Custom(_) => Work::Custom,
        };
        let cut = Margin::cut(group).filter(|_| caps.allows(Fast::Fusion));
        let (mut tail, natural) = match work {
            Work::Scatter(_) | Work::Whole(_) | Work::Attention(_) | Work::Custom | Work::Rows(_) => {
                let space = Space { dims: &[0], order: &[0], accs: 0, spread: 0 };
                (Program::new(&Body::default(), &[], &[], &space), true)
            }
            _ => tail::program(cut.as_ref().map_or(group, |(_, inner)| inner)),
        };
        if !caps.allows(Fast::Fusion) {
            tail.known = None;
        }
        let same_place = |o: usize, k: usize| match work {
            Work::Rows(_) => RowProgram::in_place(group, o, k),
            // The margin is filled before anything is read.
            _ => cut.is_none() && k < tail.targets.len() && tail.in_place(o, k),
        };
        let in_place: Vec<Vec<bool>> =
            (0..operands.len()).map(|o| (0..stores.len()).map(|k| same_place(o, k)).collect()).collect();
        let turned = tail.turn(group.operands.len() + group.accs.len(), group.operands.len());
        let work = match work {
            Work::MatMul { product, .. } => {
                let direct = tail.targets.iter().position(|t| {
                    t.flat && t.access.is_at_origin() && tail.instrs[t.from].dtype == product.dtype
                });
                let direct = direct.filter(|k| {
                    natural && group.stores[*k].base.is_none() && stores[*k].shape.elems() == tail.elems
                });
                Work::MatMul { product, direct }
            }
            work => work,
        };
        let number = |node| plan.scalars.iter().position(|n| n == node).unwrap_or(usize::MAX);
        Compiled {
            work,
            tail,
            natural,
            turned,
            group: Arc::clone(group),
            graph: Arc::clone(&plan.graph),
            scalars: group.scalars.iter().map(number).collect(),
            reads: step.reads.iter().map(|loc| place(plan, *loc)).collect(),
            writes: step.writes.iter().map(|loc| place(plan, *loc)).collect(),
            operands,
            stores,
            bands: caps.allows(Fast::ProductBands),
            margin: cut.map(|(margin, _)| margin),
            in_place,
        }
    }

    /// The largest number of elements that the step iterates over.
    pub(crate) fn elems(&self) -> usize {
        match &self.work {
            Work::Reduce(reduction) => reduction.head().elems.max(self.tail.elems),
            Work::Rows(rows) => rows.elems(),
            _ => self.tail.elems,
        }
    }

    /// A measure of the work.
    pub(crate) fn amount(&self) -> usize {
        match &self.work {
            Work::Reduce(reduction) => reduction.head().work() + self.tail.work(),
            Work::MatMul { product, .. } => product.work() + self.tail.work(),
            Work::Rows(rows) => rows.work(),
            _ => self.tail.work(),
        }
    }

    /// Whether several threads may share the step.
    pub(crate) fn is_shared(&self) -> bool {
        let elems = || self.operands.iter().map(|out| out.shape.elems()).sum::<usize>();
        match self.work {
            // These tell when they run.
            Work::Scatter(_) | Work::Whole(_) | Work::Attention(_) | Work::Custom => elems() >= FEW,
            _ => self.amount() >= tail::PARALLEL_WORK,
        }
    }

    /// Bytes that the step reads for one of `rows` rows, of the operands that have so many.
    pub(crate) fn row_bytes(&self, rows: usize) -> usize {
        self.operands.iter().map(|out| if out.shape.elems() < rows { 0 } else { bytes_of(out) / rows }).sum()
    }

    pub(crate) fn scalars(&self, all: &[f64]) -> Vec<f64> {
        self.scalars.iter().map(|i| all.get(*i).copied().unwrap_or(0.0)).collect()
    }

    /// Checks the offsets that scalars give.
    pub(crate) fn check(&self, all: &[f64]) -> Result<(), Error> {
        if self.group.body.indices.iter().flat_map(|i| &i.views).all(|v| v.dynamic.is_empty()) {
            return Ok(());
        }
        let elems = |outs: &[Out]| outs.iter().map(|o| o.shape.elems()).collect::<Vec<_>>();
        let (scalars, operands, stores) = (self.scalars(all), elems(&self.operands), elems(&self.stores));
        let head = match &self.work {
            Work::Reduce(reduction) => reduction.head().fits(&scalars, &operands, &[]),
            Work::Rows(rows) => rows.fits(&scalars, &operands, &stores),
            _ => true,
        };
        if head && self.tail.fits(&scalars, &operands, &stores) {
            return Ok(());
        }
        let dynamic = |op: &Op| matches!(op, Op::SliceAt { .. } | Op::SliceAssignAt { .. });
        Err(self.error(ErrorKind::Argument, dynamic, "slice_at", "the start is out of range".to_owned()))
    }

    /// An error that names the first node of the group for which `is` holds.
    fn error(&self, kind: ErrorKind, is: impl Fn(&Op) -> bool, or: &str, detail: String) -> Error {
        let node = self.group.nodes.iter().map(|id| self.graph.node(*id)).find(|node| is(&node.op));
        let error = Error::new(kind, node.map_or(or, |n| n.op.name()), detail);
        match node.and_then(|n| n.at) {
            Some(at) => error.at(at),
            None => error,
        }
    }

    pub(crate) fn out_of_range(&self, met: OutOfRange) -> Error {
        let indexed = |op: &Op| matches!(op, Op::Gather { .. } | Op::Scatter { .. });
        let detail = format!("index {} is not in 0..{}", met.index, met.size);
        self.error(ErrorKind::Data, indexed, "gather", detail)
    }

    /// Runs the step. The first error flag stays in `error`.
    pub(crate) fn run(
        &self,
        arena: &mut Arena<'_>,
        all: &[f64],
        state: &mut State,
        error: &mut Option<Error>,
    ) {
        let scalars = self.scalars(all);
        let reads: Vec<usize> = self.reads.iter().map(|i| arena.alias[*i]).collect();
        let writes: Vec<usize> = self.writes.iter().map(|i| arena.alias[*i]).collect();
        let flag = Flag::default();
        match &self.work {
            Work::Custom => self.custom(arena, &reads, &writes, error),
            Work::Whole(op) => {
                let node = self.graph.node(self.group.stores[0].val.node);
                let copies = self.copies(arena, &reads, &writes, state, |_, _| false);
                self.write(arena, &reads, &writes, &copies, &mut |operands, outs| {
                    // Operands may lie under another shape of as many elements.
                    let ins: Vec<Whole<'_>> = node
                        .inputs
                        .iter()
                        .zip(operands)
                        .map(|(val, operand)| match operand {
                            Operand::Bytes { bytes, .. } => Whole { out: self.graph.out(*val), bytes },
                            Operand::Output(_) => unreachable!("copied above"),
                        })
                        .collect();
                    whole::run(*op, &ins, &node.outs, outs, &flag);
                });
                copies.into_iter().flatten().for_each(|block| state.give(block));
            }
            Work::Attention(attention) => {
                let copies = self.copies(arena, &reads, &writes, state, |_, _| false);
                self.write(arena, &reads, &writes, &copies, &mut |operands, outs| {
                    let mut ins = Vec::with_capacity(operands.len());
                    for operand in operands {
                        match operand {
                            Operand::Bytes { bytes, .. } => ins.push(*bytes),
                            Operand::Output(_) => unreachable!("copied above"),
                        }
                    }
                    attention.run(&ins, outs);
                });
                copies.into_iter().flatten().for_each(|block| state.give(block));
            }
            Work::Scatter(scatter) => {
                let copies = self.copies(arena, &reads, &writes, state, |_, _| false);
                self.write(arena, &reads, &writes, &copies, &mut |operands, mut outs| {
                    scatter.run(operands, &scalars, &flag, outs.remove(0));
                });
                copies.into_iter().flatten().for_each(|block| state.give(block));
            }
            Work::Rows(rows) if rows.elems() == 0 => {}
            Work::Rows(rows) => {
                let copies = self.copies(arena, &reads, &writes, state, |o, k| self.in_place[o][k]);
                let row_bytes =
                    self.operands.iter().chain(&self.stores).map(bytes_of).sum::<usize>() / rows.rows();
                self.write(arena, &reads, &writes, &copies, &mut |operands, outs| {
                    rows.run(Env { operands, scalars: &scalars, flag: &flag }, outs, row_bytes);
                });
                copies.into_iter().flatten().for_each(|block| state.give(block));
            }
            _ if self.tail.elems == 0 => {}
            work => {
                // The accumulators of a reduction are complete before anything is written.
                let accs = match work {
                    Work::Reduce(reduction) => {
                        let operands = self.operands(arena, &reads);
                        let env = Env { operands: &operands, scalars: &scalars, flag: &flag };
                        reduction.run(env, &mut |bytes| state.take(bytes))
                    }
                    _ => Vec::new(),
                };
                let factor = |o: usize| match work {
                    Work::MatMul { product, .. } => product.a.operand == o || product.b.operand == o,
                    _ => false,
                };
                let keep = |o: usize, k: usize| self.in_place[o][k] && !factor(o);
                let copies = self.copies(arena, &reads, &writes, state, keep);
                let alone = !reads.iter().any(|r| writes.contains(r));
                let mut spare = None;
                if let Work::MatMul { product, direct } = work
                    && !(alone && direct.is_some() || self.by_batch(product))
                {
                    spare = Some(state.take(self.tail.elems * product.dtype.bytes()));
                }
                let written = |turned: &(usize, DType, Turned)| writes.contains(&reads[turned.0]);
                let whole = matches!(work, Work::MatMul { .. }) || !self.tail.splits;
                let band = turn::band(&self.turned, self.tail.elems)
                    .filter(|_| !whole && !self.turned.iter().any(written));
                let mut turns = Vec::with_capacity(self.turned.len());
                for (operand, dtype, turned) in self.turned.iter().filter(|_| band.is_none()) {
                    let mut block = state.take(self.tail.elems * dtype.bytes());
                    let from = &arena.mems[reads[*operand]].bytes()[..bytes_of(&self.operands[*operand])];
                    turn::copy(turned, dtype.bytes(), from, block.bytes_mut());
                    turns.push(block);
                }
                self.write(arena, &reads, &writes, &copies, &mut |operands, mut outs| {
                    if let Some(margin) = self.margin {
                        margin.fill(&scalars, outs[0]);
                    }
                    let mut operands = operands.to_vec();
                    operands.extend(accs.iter().map(|acc| Operand::Bytes { bytes: acc.bytes(), base: 0 }));
                    let env = Env { operands: &operands, scalars: &scalars, flag: &flag };
                    if let Some(band) = band {
                        return tail::run_bands(&self.tail, env, outs, &self.turned, band);
                    }
                    match work {
                        Work::MatMul { product, direct } => {
                            let direct = direct.filter(|_| alone);
                            self.matmul(product, direct, spare.as_mut(), &turns, env, outs);
                        }
                        _ => with_all(env, &turns, &mut |env| {
                            tail::run(&self.tail, env, std::mem::take(&mut outs));
                        }),
                    }
                });
                accs.into_iter().chain(spare).chain(turns).for_each(|block| state.give(block));
                copies.into_iter().flatten().for_each(|block| state.give(block));
            }
        }
        if let Some(met) = flag.raised() {
            error.get_or_insert_with(|| self.out_of_range(met));
        }
    }

    fn operands<'a>(&self, arena: &'a Arena<'_>, reads: &[usize]) -> Vec<Operand<'a>> {
        let bytes = |(place, out): (&usize, &Out)| Operand::Bytes {
            bytes: &arena.mems[*place].bytes()[..bytes_of(out)],
            base: 0,
        };
        reads.iter().zip(&self.operands).map(bytes).collect()
    }

    /// Copies of the operands whose memory is written, unless `keep` says that they may stay.
    fn copies(
        &self,
        arena: &Arena<'_>,
        reads: &[usize],
        writes: &[usize],
        state: &mut State,
        keep: impl Fn(usize, usize) -> bool,
    ) -> Vec<Option<Block>> {
        let mut copy = |(o, place): (usize, &usize)| {
            let clash = writes.iter().enumerate().any(|(k, w)| w == place && !keep(o, k));
            clash.then(|| {
                let from = &arena.mems[*place].bytes()[..bytes_of(&self.operands[o])];
                let mut block = state.take(from.len());
                block.bytes_mut().copy_from_slice(from);
                block
            })
        };
        reads.iter().enumerate().map(&mut copy).collect()
    }

    /// Gives `f` the operands and the outputs' memory.
    fn write(
        &self,
        arena: &mut Arena<'_>,
        reads: &[usize],
        writes: &[usize],
        copies: &[Option<Block>],
        f: Writer<'_>,
    ) {
        let mut taken: Vec<Block> = Vec::with_capacity(writes.len());
        for place in writes {
            taken.push(match std::mem::take(&mut arena.mems[*place]) {
                Mem::Block(block) => block,
                Mem::Host(bytes) => Block::from(bytes),
                Mem::Empty => Block::default(),
            });
        }
        let operand = |(o, place): (usize, &usize)| match (&copies[o], writes.iter().position(|w| w == place))
        {
            (Some(block), _) => Operand::Bytes { bytes: block.bytes(), base: 0 },
            (None, Some(k)) => Operand::Output(k),
            (None, None) => {
                let bytes = arena.mems[*place].bytes();
                Operand::Bytes { bytes: &bytes[..bytes_of(&self.operands[o])], base: 0 }
            }
        };
        let operands: Vec<Operand<'_>> = reads.iter().enumerate().map(operand).collect();
        let outs = taken.iter_mut().zip(&self.stores).map(|(b, out)| &mut b.bytes_mut()[..bytes_of(out)]);
        f(&operands, outs.collect());
        for (place, block) in writes.iter().zip(taken) {
            arena.mems[*place] = Mem::Block(block);
        }
    }

    /// Whether threads take products of the batch, and finish each at once.
    fn by_batch(&self, product: &Product) -> bool {
        product.by_batch() && self.tail.splits && self.natural
    }

    /// The rows of the product, where each thread takes a band of them through the whole group.
    fn bands(&self, product: &Product) -> Option<usize> {
        product.bands().filter(|_| self.bands && self.tail.splits && self.natural)
    }

    /// The product goes into the output of store `direct` where that is given, then through the rest
    /// of the group there; else into memory of its own.
    fn matmul(
        &self,
        product: &Product,
        direct: Option<usize>,
        spare: Option<&mut Block>,
        turns: &[Block],
        env: Env<'_>,
        mut outs: Vec<&mut [u8]>,
    ) {
        let (a, b) = (env.operands[product.a.operand], env.operands[product.b.operand]);
        let only = |k: usize| {
            let load = &self.tail.instrs[self.tail.targets[k].from].code;
            self.tail.targets.len() == 1
                && matches!(load, Code::Load { operand, .. } if *operand == env.operands.len())
        };
        let done = direct.is_some_and(only);
        let with = |acc: Operand<'_>, f: &mut dyn FnMut(Env<'_>)| {
            let mut operands = env.operands.to_vec();
            operands.push(acc);
            with_all(Env { operands: &operands, ..env }, turns, f);
        };
        if self.by_batch(product) {
            let batches = self.tail.elems / product.elems();
            let parts = batches.min(pool::here() * 4);
            let cuts = tail::cuts(self.tail.elems, product.elems(), parts);
            let parts = tail::split(&self.tail, env.scalars, outs, cuts);
            let left = product.left(a);
            share(parts.into_iter(), |(range, mut chunks)| {
                let first = range.start / product.elems();
                if let Some(k) = direct {
                    product.run(a, b, left.as_ref(), first, chunks[k].bytes, false);
                    if !done {
                        with(Operand::Output(k), &mut |env| {
                            machine::run(&self.tail, env, range.clone(), &mut chunks);
                        });
                    }
                } else {
                    let mut own = Block::new(range.len() * product.dtype.bytes());
                    product.run(a, b, left.as_ref(), first, own.bytes_mut(), false);
                    let acc = Operand::Bytes { bytes: own.bytes(), base: range.start as i64 };
                    with(acc, &mut |env| machine::run(&self.tail, env, range.clone(), &mut chunks));
                }
            });
            left.into_iter().for_each(Left::done);
            return;
        }
        if let Some(rows) = self.bands(product) {
            let width = product.elems() / rows;
            let cuts = tail::cuts(rows, 8, pool::here());
            let ranges: Vec<_> = cuts.into_iter().map(|r| r.start * width..r.end * width).collect();
            let mut own = spare.map(|spare| spare.bytes_mut()).unwrap_or_default();
            let mut parts = Vec::with_capacity(ranges.len());
            for (range, chunks) in tail::split(&self.tail, env.scalars, outs, ranges) {
                let taken = if direct.is_some() { 0 } else { range.len() * product.dtype.bytes() };
                let (part, after) = std::mem::take(&mut own).split_at_mut(taken);
                own = after;
                parts.push((range, chunks, part));
            }
            product.by_bands(a, b, &mut |band| {
                let run = |(range, mut chunks, own): (Range<usize>, SmallVec<[Chunk<'_>; 2]>, &mut [u8])| {
                    let rows = range.start / width..range.end / width;
                    let acc = match direct {
                        Some(k) => {
                            band(rows, chunks[k].bytes);
                            Operand::Output(k)
                        }
                        None => {
                            band(rows, own);
                            Operand::Bytes { bytes: own, base: range.start as i64 }
                        }
                    };
                    if !done {
                        with(acc, &mut |env| machine::run(&self.tail, env, range.clone(), &mut chunks));
                    }
                };
                match parts.len() {
                    1 => parts.drain(..).for_each(run),
                    _ => share(parts.drain(..), run),
                }
            });
            return;
        }
        let acc = match (direct, spare) {
            (Some(k), _) => {
                product.run_all(a, b, outs[k]);
                Operand::Output(k)
            }
            (None, Some(spare)) => {
                product.run_all(a, b, spare.bytes_mut());
                Operand::Bytes { bytes: spare.bytes(), base: 0 }
            }
            (None, None) => unreachable!("a product has memory"),
        };
        if !done {
            with(acc, &mut |env| tail::run(&self.tail, env, std::mem::take(&mut outs)));
        }
    }

    fn custom(&self, arena: &mut Arena<'_>, reads: &[usize], writes: &[usize], error: &mut Option<Error>) {
        let Kind::Custom(id) = self.group.kind else { return };
        let Some(node_id) = self.group.nodes.first().copied() else { return };
        let node = self.graph.node(node_id);
        let mut ins: Vec<Vec<f64>> = Vec::with_capacity(node.inputs.len());
        // The operands of the group are those of the node in order, perhaps under other shapes.
        for (o, out) in self.operands.iter().enumerate() {
            let mut x = vec![0.0; out.shape.elems()];
            let bytes = &arena.mems[reads[o]].bytes()[..bytes_of(out)];
            kernels::cast(out.dtype, DType::F64, bytes, bytemuck::cast_slice_mut(&mut x));
            ins.push(x);
        }
        let ins: Vec<&[f64]> = ins.iter().map(Vec::as_slice).collect();
        let outs = custom::run(self.graph.custom(id), node, &ins, error);
        let copies: Vec<Option<Block>> = reads.iter().map(|_| None).collect();
        self.write(arena, reads, writes, &copies, &mut |_, to| {
            for ((store, out), to) in self.group.stores.iter().zip(&self.stores).zip(to) {
                let Val { out: number, .. } = store.val;
                if let Some(y) = outs.get(number as usize) {
                    for (y, to) in y.iter().zip(to.chunks_exact_mut(out.dtype.bytes())) {
                        to.copy_from_slice(&kernels::element(*y, out.dtype).0[..to.len()]);
                    }
                }
            }
        });
    }
}

/// Calls `f` with copies after the operands.
fn with_all(env: Env<'_>, turns: &[Block], f: &mut dyn FnMut(Env<'_>)) {
    if turns.is_empty() {
        return f(env);
    }
    let mut operands = env.operands.to_vec();
    operands.extend(turns.iter().map(|block| Operand::Bytes { bytes: block.bytes(), base: 0 }));
    f(Env { operands: &operands, ..env });
}
