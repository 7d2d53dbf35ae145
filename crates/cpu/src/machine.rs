//! Runs a program over a range of its space, block by block.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;
use wgrad_graph::DType;

use crate::access::{Access, Class, Stretch};
use crate::kernels::{self, Same};
use crate::lookup::{self, Table};
use crate::memory::{ALIGN, Block};
use crate::program::{BLOCK, Code, InstrId, Place, Program};

/// A value that a program reads.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Operand<'a> {
    /// Memory of which the first element is element `base` of the value.
    Bytes { bytes: &'a [u8], base: i64 },
    /// The memory that this store writes: read and written by the same blocks, element for element.
    Output(usize),
}

/// The first index out of range that a gather or scatter met, by position.
#[derive(Debug, Default)]
pub(crate) struct Flag(Mutex<Option<OutOfRange>>);

#[derive(Copy, Clone, Debug)]
pub(crate) struct OutOfRange {
    at: usize,
    pub(crate) index: i64,
    pub(crate) size: usize,
}

impl Flag {
    pub(crate) fn raise(&self, at: usize, index: i64, size: usize) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none_or(|f| at < f.at) {
            *first = Some(OutOfRange { at, index, size });
        }
    }

    pub(crate) fn raised(&self) -> Option<OutOfRange> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a program runs on.
#[derive(Copy, Clone)]
pub(crate) struct Env<'a> {
    pub(crate) operands: &'a [Operand<'a>],
    pub(crate) scalars: &'a [f64],
    pub(crate) flag: &'a Flag,
}

/// The part of a store's value that a run writes.
pub(crate) struct Chunk<'a> {
    pub(crate) bytes: &'a mut [u8],
    /// The element at the chunk's start.
    pub(crate) base: i64,
}

/// Where an instruction's block is, in the block now evaluated.
#[derive(Copy, Clone)]
enum At {
    Slot(usize),
    Operand(usize, usize),
    Output(usize, usize),
}

/// What a machine works in.
#[derive(Default)]
struct Bench {
    slots: Vec<Block>,
    at: Vec<At>,
    /// Which blocks are one number throughout.
    same: Vec<bool>,
    /// Elements of the program's tables in the block now evaluated.
    tables: Vec<Vec<i32>>,
    /// What each load was last known to read.
    stretches: Vec<Stretch>,
}

thread_local! {
    /// The registers of this thread, kept between runs.
    static REGISTERS: RefCell<Bench> = RefCell::default();
}

/// A program at work on one range.
pub(crate) struct Machine<'m, 'c> {
    program: &'m Program,
    env: Env<'m>,
    chunks: &'m mut [Chunk<'c>],
    own: Bench,
    /// For each store, whether its block may be computed where it goes: nothing reads there later.
    direct: SmallVec<[bool; 4]>,
}

impl Drop for Machine<'_, '_> {
    fn drop(&mut self) {
        REGISTERS.with_borrow_mut(|kept| {
            if kept.slots.len() < self.own.slots.len() {
                *kept = std::mem::take(&mut self.own);
            }
        });
    }
}

/// Positions whose memory is touched at once, and instructions from which that pays: a block at a time while the
/// processor fetches ahead by itself, more where it forgets to over long programs.
const AHEAD: [(usize, usize); 2] = [(BLOCK, 4), (8 * BLOCK, 8)];

/// Runs `program` over `range`, of which much is in the cache.
pub(crate) fn run(program: &Program, env: Env<'_>, range: Range<usize>, chunks: &mut [Chunk<'_>]) {
    blocks(program, env, range, chunks, None);
}

/// Runs `program` over `range` of operands that come from memory.
pub(crate) fn run_streams(program: &Program, env: Env<'_>, range: Range<usize>, chunks: &mut [Chunk<'_>]) {
    let touched =
        AHEAD.iter().rfind(|(_, instrs)| program.instrs.len() >= *instrs).map(|(positions, _)| *positions);
    blocks(program, env, range.clone(), chunks, touched.filter(|positions| range.len() > *positions));
}

fn blocks(
    program: &Program,
    env: Env<'_>,
    range: Range<usize>,
    chunks: &mut [Chunk<'_>],
    touched: Option<usize>,
) {
    if range.is_empty() || program.known.as_ref().is_some_and(|known| known.run(env, range.clone(), chunks)) {
        return;
    }
    let mut machine = Machine::new(program, env, chunks);
    machine.fill_uniforms(range.len().min(BLOCK));
    let mut n = range.start;
    while n < range.end {
        let len = BLOCK.min(range.end - n);
        if let Some(positions) = touched.filter(|positions| (n - range.start).is_multiple_of(*positions)) {
            let chunks = if positions > BLOCK { &*machine.chunks } else { &[] };
            ahead(program, env, n..(n + positions).min(range.end), chunks);
        }
        machine.block(n, len);
        n += len;
    }
}

/// Reads a byte of each cache line that the positions of `range` read in order, and write, where `chunks` are given: the
/// blocks then find in the cache what each of several streams would wait for.
fn ahead(program: &Program, env: Env<'_>, range: Range<usize>, chunks: &[Chunk<'_>]) {
    let (n, len) = (range.start as i64, range.len());
    for instr in &program.instrs {
        if let Code::Load { operand, access } = &instr.code
            && access.class == Class::Flat
            && let Some(Operand::Bytes { bytes, base }) = env.operands.get(*operand)
        {
            touch(bytes, n + access.start(env.scalars) - base, len, instr.dtype.bytes());
        }
    }
    for (target, chunk) in program.targets.iter().zip(chunks).filter(|(target, _)| target.flat) {
        let size = program.instrs[target.from].dtype.bytes();
        touch(chunk.bytes, n + target.access.start(env.scalars) - chunk.base, len, size);
    }
}

fn touch(bytes: &[u8], first: i64, len: usize, size: usize) {
    let from = first as usize * size;
    let lines = bytes.get(from..from + len * size).unwrap_or_default().chunks(ALIGN);
    std::hint::black_box(lines.fold(0, |all, line| all ^ line[0]));
}

/// Whether all that the program reads of store `k`'s memory is read before the store's own block is made.
fn is_direct(program: &Program, env: Env<'_>, k: usize) -> bool {
    let from = program.targets[k].from;
    program.instrs.iter().all(|instr| match &instr.code {
        Code::Load { operand, .. } | Code::Gather { operand, .. } => match env.operands.get(*operand) {
            Some(Operand::Output(j)) if *j == k => instr.last_use < from,
            _ => true,
        },
        _ => true,
    })
}

impl<'m, 'c> Machine<'m, 'c> {
    pub(crate) fn new(program: &'m Program, env: Env<'m>, chunks: &'m mut [Chunk<'c>]) -> Self {
        let mut own = REGISTERS.take();
        for i in 0..program.slots {
            match own.slots.get_mut(i) {
                Some(slot) if slot.bytes().len() >= program.slot_bytes => {}
                Some(slot) => *slot = Block::new(program.slot_bytes),
                None => own.slots.push(Block::new(program.slot_bytes)),
            }
        }
        let in_place = env.operands.iter().any(|o| matches!(o, Operand::Output(_)));
        let direct = (0..program.targets.len()).map(|k| !in_place || is_direct(program, env, k)).collect();
        let count = program.instrs.len();
        own.at.clear();
        own.at.resize(count, At::Slot(0));
        own.same.clear();
        own.same.resize(count, false);
        own.stretches.clear();
        own.stretches.resize(count, Stretch::default());
        own.tables.resize_with(program.tables.len(), Vec::new);
        Machine { program, env, chunks, own, direct }
    }

    /// The block of instruction `id`, `len` elements.
    pub(crate) fn get(&self, id: InstrId, len: usize) -> &[u8] {
        let bytes = len * self.program.instrs[id].dtype.bytes();
        match self.own.at[id] {
            At::Slot(slot) => &self.own.slots[slot].bytes()[..bytes],
            At::Output(k, start) => &self.chunks[k].bytes[start..start + bytes],
            At::Operand(operand, start) => match self.env.operands[operand] {
                Operand::Bytes { bytes: from, .. } => &from[start..start + bytes],
                Operand::Output(_) => unreachable!("loads of outputs are copied"),
            },
        }
    }

    /// The block of root `i`.
    pub(crate) fn root(&self, i: usize, len: usize) -> &[u8] {
        self.get(self.program.roots[i], len)
    }

    /// The elements from those positions on, and their dtype, where the program does nothing but read them as they
    /// lie, and take halves for f32.
    pub(crate) fn plain<const N: usize>(
        &self,
        from: [usize; N],
        len: usize,
    ) -> Option<([&'m [u8]; N], DType)> {
        let instr = match &self.program.instrs[..] {
            [instr] => instr,
            [instr, cast] if matches!(cast.code, Code::Cast { .. }) && cast.dtype == DType::F32 => instr,
            _ => return None,
        };
        if self.program.instrs.len() > 1 && !matches!(instr.dtype, DType::F16 | DType::BF16) {
            return None;
        }
        let Code::Load { operand, access } = &instr.code else { return None };
        let Operand::Bytes { bytes, .. } = self.env.operands[*operand] else { return None };
        let mut found = [bytes; N];
        for (found, n) in found.iter_mut().zip(from) {
            let start = self.borrowed(*operand, access, n, len)? * instr.dtype.bytes();
            *found = &bytes[start..start + len * instr.dtype.bytes()];
        }
        Some((found, instr.dtype))
    }

    pub(crate) fn fill_uniforms(&mut self, len: usize) {
        for id in 0..self.program.instrs.len() {
            if let Place::Uniform(slot) = self.program.instrs[id].place {
                let len = if self.program.instrs[id].thin { 1 } else { len };
                self.compute(id, 0, len, At::Slot(slot));
                self.own.same[id] = true;
            }
        }
    }

    /// Evaluates the positions `n..n + len` and writes what is stored.
    pub(crate) fn block(&mut self, n: usize, len: usize) {
        let program = self.program;
        for (digits, table) in program.tables.iter().zip(&mut self.own.tables) {
            table.resize(len, 0);
            digits.fill(n, table);
        }
        for (id, instr) in program.instrs.iter().enumerate() {
            match instr.place {
                Place::Uniform(_) => {}
                Place::Slot(slot) => self.compute(id, n, len, At::Slot(slot)),
                // Later loads of the block may read what lies in the output.
                Place::Output(k, slot) if !self.direct[k] => self.compute(id, n, len, At::Slot(slot)),
                Place::Output(k, _) => {
                    let element = n as i64 + self.offset(&program.targets[k].access) - self.chunks[k].base;
                    self.compute(id, n, len, At::Output(k, element as usize * instr.dtype.bytes()));
                }
            }
        }
        for (k, target) in program.targets.iter().enumerate() {
            let instr = &program.instrs[target.from];
            if self.direct[k] && matches!(instr.place, Place::Output(j, _) if j == k) {
                continue;
            }
            let size = instr.dtype.bytes();
            let out = std::mem::take(&mut self.chunks[k].bytes);
            let base = self.chunks[k].base;
            let from = self.get(target.from, len);
            if target.flat {
                let first = (n as i64 + self.offset(&target.access) - base) as usize * size;
                out[first..first + len * size].copy_from_slice(from);
            } else {
                target.access.walk(self.env.scalars, n, len, &mut |pos, element, stride, count| {
                    if let Some(element) = element {
                        let from = &from[pos * size..(pos + count) * size];
                        kernels::scatter_strided(size, from, out, element - base, stride);
                    }
                });
            }
            self.chunks[k].bytes = out;
        }
    }

    fn offset(&self, access: &Access) -> i64 {
        access.start(self.env.scalars)
    }

    /// Computes instruction `id` into `to`; a load may instead be borrowed where it lies.
    fn compute(&mut self, id: InstrId, n: usize, len: usize, to: At) {
        let instr = &self.program.instrs[id];
        if let Code::Load { operand, access } = &instr.code
            && let Operand::Output(k) = self.env.operands[*operand]
            && access.class == Class::Flat
            && instr.last_use != usize::MAX
        {
            let element = n as i64 + self.offset(access) - self.chunks[k].base;
            self.own.at[id] = At::Output(k, element as usize * instr.dtype.bytes());
            return;
        }
        if let Code::Load { operand, access } = &instr.code
            && access.class == Class::Walk
        {
            let size = instr.dtype.bytes();
            let found = self.stretch(id, access, n).filter(|stretch| stretch.left(n) >= len);
            self.own.same[id] = false;
            match found {
                Some(stretch) if stretch.stride == 1 => {
                    if let Operand::Bytes { base, .. } = self.env.operands[*operand] {
                        self.own.at[id] = At::Operand(*operand, (stretch.element(n) - base) as usize * size);
                        return;
                    }
                }
                Some(stretch) if stretch.stride == 0 && instr.thin => {
                    if let At::Slot(slot) = to {
                        let mut block = std::mem::take(&mut self.own.slots[slot]);
                        let (from, base) = self.source(*operand);
                        let first = (stretch.element(n) - base) as usize * size;
                        block.bytes_mut()[..size].copy_from_slice(&from[first..first + size]);
                        self.own.slots[slot] = block;
                        (self.own.same[id], self.own.at[id]) = (true, to);
                        return;
                    }
                }
                _ => {}
            }
        } else if let Code::Load { operand, access } = &instr.code
            && let Some(start) = self.borrowed(*operand, access, n, len)
        {
            self.own.at[id] = At::Operand(*operand, start * instr.dtype.bytes());
            return;
        }
        let bytes = len * instr.dtype.bytes();
        match to {
            At::Slot(slot) => {
                let mut block = std::mem::take(&mut self.own.slots[slot]);
                self.eval(id, n, len, &mut block.bytes_mut()[..bytes]);
                self.own.slots[slot] = block;
            }
            At::Output(k, start) => {
                let out = std::mem::take(&mut self.chunks[k].bytes);
                self.eval(id, n, len, &mut out[start..start + bytes]);
                self.chunks[k].bytes = out;
            }
            At::Operand(..) => unreachable!("results have memory of their own"),
        }
        self.own.at[id] = to;
    }

    /// Where a load reads around position `n`, found anew where what was last known does not reach there.
    fn stretch(&mut self, id: InstrId, access: &Access, n: usize) -> Option<Stretch> {
        if !self.own.stretches[id].holds(n) {
            self.own.stretches[id] = access.stretch(n, self.env.scalars)?;
        }
        Some(self.own.stretches[id])
    }

    /// The element from which a load's block can be read in place.
    fn borrowed(&self, operand: usize, access: &Access, n: usize, len: usize) -> Option<usize> {
        let Operand::Bytes { base, .. } = self.env.operands[operand] else { return None };
        match access.class {
            Class::Flat => Some((n as i64 + self.offset(access) - base) as usize),
            Class::Uniform => None,
            Class::Walk => {
                let stretch = access.stretch(n, self.env.scalars)?;
                (stretch.stride == 1 && stretch.left(n) >= len).then(|| (stretch.element(n) - base) as usize)
            }
        }
    }

    fn eval(&self, id: InstrId, n: usize, len: usize, out: &mut [u8]) {
        let program = self.program;
        let instr = &program.instrs[id];
        let dtype = instr.dtype;
        let scalars = self.env.scalars;
        if let Some(table) = instr.table {
            let table = &self.own.tables[table][..len];
            match &instr.code {
                Code::Load { operand, .. } => {
                    let (from, base) = self.source(*operand);
                    return kernels::pick(dtype.bytes(), from, base, table, out);
                }
                Code::Valid { .. } => {
                    return out.iter_mut().zip(table).for_each(|(y, e)| *y = u8::from(*e >= 0));
                }
                Code::Coord { .. } => return kernels::counted(dtype, table, out),
                _ => {}
            }
        }
        match &instr.code {
            Code::Load { operand, access } => self.load(*operand, access, dtype, n, len, out),
            code @ Code::Gather { .. } => self.gather(code, dtype, n, len, out),
            Code::Scalar { scalar } => {
                let (bytes, size) = kernels::element(scalars[*scalar], dtype);
                kernels::fill(&bytes[..size], out);
            }
            Code::Coord { access } => access.walk(scalars, n, len, &mut |pos, element, stride, count| {
                let size = dtype.bytes();
                let out = &mut out[pos * size..(pos + count) * size];
                kernels::count_up(
                    dtype,
                    element.unwrap_or(0),
                    if element.is_some() { stride } else { 0 },
                    out,
                );
            }),
            Code::Random { access, per_row, scalars: keys } => {
                let word = |i: usize| scalars[usize::from(keys[i])] as i64 as u32;
                let (key, step, first) = ([word(0), word(1)], word(2), word(3).wrapping_mul(*per_row));
                let out: &mut [u32] = bytemuck::cast_slice_mut(out);
                access.walk(scalars, n, len, &mut |pos, element, stride, count| {
                    let first = first.wrapping_add(element.unwrap_or(0) as u32);
                    kernels::random(first, stride as u32, step, key, &mut out[pos..pos + count]);
                });
            }
            Code::Valid { access } => access.walk(scalars, n, len, &mut |pos, element, _, count| {
                out[pos..pos + count].fill(u8::from(element.is_some()));
            }),
            Code::Unary { op, x } => {
                kernels::unary(*op, program.instrs[*x].dtype, self.get(*x, len), out);
            }
            Code::Binary { op, x, w } => {
                let dtype = program.instrs[*x].dtype;
                let same = match (self.own.same[*x], self.own.same[*w]) {
                    (false, true) => Same::W,
                    (true, false) => Same::X,
                    (true, true) => Same::Both,
                    (false, false) => Same::Neither,
                };
                kernels::binary(*op, dtype, same, self.get(*x, len), self.get(*w, len), out);
            }
            Code::Pair { pair, x, w, z } => {
                let [x, w, z] = [*x, *w, *z].map(|id| (self.get(id, len), self.own.same[id]));
                kernels::pair(*pair, [x.0, w.0, z.0], [w.1, z.1], out);
            }
            Code::Select { c, x, w } => {
                kernels::select(dtype, self.get(*c, len), self.get(*x, len), self.get(*w, len), out);
            }
            Code::Cast { x } => {
                kernels::cast(program.instrs[*x].dtype, dtype, self.get(*x, len), out);
            }
        }
    }

    /// Memory of an operand and the element at its start.
    fn source(&self, operand: usize) -> (&[u8], i64) {
        match self.env.operands[operand] {
            Operand::Bytes { bytes, base } => (bytes, base),
            Operand::Output(k) => (&*self.chunks[k].bytes, self.chunks[k].base),
        }
    }

    fn load(&self, operand: usize, access: &Access, dtype: DType, n: usize, len: usize, out: &mut [u8]) {
        let size = dtype.bytes();
        let (from, base) = self.source(operand);
        match access.class {
            Class::Flat => {
                let first = (n as i64 + self.offset(access) - base) as usize * size;
                out.copy_from_slice(&from[first..first + out.len()]);
            }
            Class::Uniform => {
                let first = (self.offset(access) - base) as usize * size;
                kernels::fill(&from[first..first + size], out);
            }
            Class::Walk => access.walk(self.env.scalars, n, len, &mut |pos, element, stride, count| {
                let out = &mut out[pos * size..(pos + count) * size];
                match element {
                    Some(element) => kernels::copy_strided(size, from, element - base, stride, out),
                    None => out.fill(0),
                }
            }),
        }
    }

    /// Elements of a table at the indices in the block of `at`.
    fn gather(&self, code: &Code, dtype: DType, n: usize, len: usize, out: &mut [u8]) {
        let Code::Gather { operand, access, at, stride: along, size: limit } = code else { return };
        let (operand, at, along, limit) = (*operand, *at, *along, *limit);
        let size = dtype.bytes();
        let (from, base) = self.source(operand);
        let index = self.get(at, len);
        let index_dtype = self.program.instrs[at].dtype;
        access.walk(self.env.scalars, n, len, &mut |pos, element, stride, count| {
            let out = &mut out[pos * size..(pos + count) * size];
            let Some(element) = element else { return out.fill(0) };
            let from = Table { size, bytes: from, first: element - base, stride, along, limit };
            let same = match &self.program.instrs[at].code {
                Code::Load { access, .. } => access
                    .stretch(n + pos, self.env.scalars)
                    .is_some_and(|stretch| stretch.stride == 0 && stretch.left(n + pos) >= count),
                _ => false,
            };
            if let Some((j, at)) = lookup::look_up(from, index_dtype, index, pos, same, out) {
                self.env.flag.raise(n + pos + j, at, limit);
            }
        });
    }
}

/// Element `i` of a slice of integers.
#[inline(always)]
pub(crate) fn integer(bytes: &[u8], dtype: DType, i: usize) -> i64 {
    match dtype {
        DType::U8 | DType::Bool => i64::from(bytes[i]),
        DType::U32 => i64::from(bytemuck::cast_slice::<_, u32>(bytes)[i]),
        DType::I64 => bytemuck::cast_slice::<_, i64>(bytes)[i],
        _ => i64::from(bytemuck::cast_slice::<_, i32>(bytes)[i]),
    }
}
