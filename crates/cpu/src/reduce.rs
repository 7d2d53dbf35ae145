//! Reductions: a program over the whole space feeds accumulators, by rows (reduced axes innermost) or
//! by columns (the last outer axis innermost), whichever way memory lies.

use std::ops::Range;

use bytemuck::cast_slice;
use wgrad_graph::{AccKind, DType, Expr, Group, Reduce};

use crate::fold::{self, CHUNK};
use crate::halves;
use crate::machine::{Chunk, Env, Machine};
use crate::memory::{self, Block};
use crate::program::{BLOCK, Program, Space};
use crate::share::share;
use crate::tail;

/// Columns from which rows are taken one by one; narrower ones are taken as one flat run.
const WIDE: usize = 256;

/// A compiled reduction, up to its accumulators.
#[derive(Debug)]
pub(crate) struct Reduction {
    head: Program,
    accs: Vec<(AccKind, DType)>,
    /// Outer elements before the innermost outer axis, where columns are taken; else all.
    pre: usize,
    /// Size of the innermost outer axis, where columns are taken; else 1.
    width: usize,
    reduced: usize,
}

/// The values of one accumulator; for the index of an extreme, also the ranks of the extremes.
struct Acc<'a> {
    bytes: &'a mut [u8],
    extremes: &'a mut [i64],
}

impl Reduction {
    pub(crate) fn new(group: &Group) -> Reduction {
        let rank = group.dims.len();
        let outer_rank = group.outer().len();
        let roots: Vec<_> = group.accs.iter().map(|a| a.x).collect();
        let columns = outer_rank > 0 && group.dims[outer_rank - 1] > 1 && prefers_columns(group);
        let mut order: Vec<usize> = (0..rank).collect();
        if columns {
            let inner = order.remove(outer_rank - 1);
            order.push(inner);
        }
        let space = Space { dims: &group.dims, order: &order, accs: usize::MAX, spread: 0 };
        let head = Program::new(&group.body, &roots, &[], &space);
        let outer: usize = group.outer().iter().product();
        let width = if columns { group.dims[outer_rank - 1] } else { 1 };
        Reduction {
            accs: group.accs.iter().map(|a| (a.kind, group.body.exprs[a.x as usize].1)).collect(),
            head,
            pre: outer / width.max(1),
            width,
            reduced: group.dims[outer_rank..].iter().product(),
        }
    }

    /// A reduction by rows, `outer` of them of `reduced` elements, of what the roots of `head` give.
    pub(crate) fn of_rows(
        head: Program,
        accs: Vec<(AccKind, DType)>,
        outer: usize,
        reduced: usize,
    ) -> Reduction {
        Reduction { head, accs, pre: outer, width: 1, reduced }
    }

    pub(crate) fn head(&self) -> &Program {
        &self.head
    }

    /// The number of rows, where reduced axes are innermost.
    pub(crate) fn by_rows(&self) -> Option<usize> {
        (self.width == 1).then_some(self.pre)
    }

    fn size((kind, dtype): &(AccKind, DType)) -> usize {
        match kind {
            AccKind::Reduce(_) => dtype.bytes(),
            AccKind::Arg { .. } => 4,
        }
    }

    /// Bytes of an element of the lanes.
    fn lane((kind, dtype): &(AccKind, DType)) -> usize {
        match *kind {
            AccKind::Reduce(kind) => fold::wide(kind, *dtype).bytes(),
            AccKind::Arg { .. } => 0,
        }
    }

    /// The accumulators of some rows, on this thread; `kept` is what the head stores.
    pub(crate) fn run_rows(&self, env: Env<'_>, outer: Range<usize>, kept: &mut [Chunk<'_>]) -> Vec<Block> {
        let chunks = self.chunks();
        let partial = outer.len() * chunks;
        let mut blocks: Vec<Block> =
            self.accs.iter().map(|acc| memory::scratch(partial * Self::size(acc))).collect();
        let mut extremes: Vec<Vec<i64>> = self.accs.iter().map(|(k, _)| vec![0; args(*k, partial)]).collect();
        let mut accs: Vec<Acc<'_>> = blocks
            .iter_mut()
            .zip(&mut extremes)
            .map(|(b, e)| Acc { bytes: b.bytes_mut(), extremes: e })
            .collect();
        let mut machine = Machine::new(&self.head, env, kept);
        machine.fill_uniforms(BLOCK);
        self.rows(&mut machine, outer.start * chunks..outer.end * chunks, &mut accs);
        drop(machine);
        self.combine(&mut blocks, &mut extremes, outer.len());
        blocks
    }

    fn chunks(&self) -> usize {
        self.reduced.div_ceil(CHUNK).max(1)
    }

    /// The accumulators over the outer space, each in memory that `take` gives.
    pub(crate) fn run(&self, env: Env<'_>, take: &mut dyn FnMut(usize) -> Block) -> Vec<Block> {
        let outer = self.pre * self.width;
        let partial = outer * self.chunks();
        let size = Self::size;
        let mut blocks: Vec<Block> = self.accs.iter().map(|acc| take(partial * size(acc))).collect();
        let mut extremes: Vec<Vec<i64>> = self.accs.iter().map(|(k, _)| vec![0; args(*k, partial)]).collect();

        // A unit is what is accumulated at once; units follow each other as their results do.
        let block = if self.width >= WIDE { BLOCK } else { self.width };
        let in_row = self.width.div_ceil(block.max(1));
        let units = self.pre * self.chunks() * in_row;
        let at = |unit: usize| (unit / in_row) * self.width + (unit % in_row) * block;
        let mut rest: Vec<Acc<'_>> = blocks
            .iter_mut()
            .zip(&mut extremes)
            .map(|(b, e)| Acc { bytes: b.bytes_mut(), extremes: e })
            .collect();
        let mut tasks = Vec::new();
        for range in tail::cuts(units, 1, tail::parts(self.head.work())) {
            let elems = at(range.end) - at(range.start);
            let mut own = Vec::with_capacity(rest.len());
            for (acc, spec) in rest.iter_mut().zip(&self.accs) {
                let (bytes, after) = std::mem::take(&mut acc.bytes).split_at_mut(elems * size(spec));
                let (ext, ext_after) = std::mem::take(&mut acc.extremes).split_at_mut(args(spec.0, elems));
                *acc = Acc { bytes: after, extremes: ext_after };
                own.push(Acc { bytes, extremes: ext });
            }
            tasks.push((range, own));
        }
        let work = |(range, mut accs): (Range<usize>, Vec<Acc<'_>>)| {
            let mut machine = Machine::new(&self.head, env, &mut []);
            machine.fill_uniforms(BLOCK);
            if self.width == 1 {
                self.rows(&mut machine, range, &mut accs);
            } else {
                let first = at(range.start);
                let lanes = fold::lanes(self.reduced) * block;
                let mut state: Vec<Block> =
                    self.accs.iter().map(|acc| Block::new(lanes * Self::lane(acc))).collect();
                for unit in range {
                    let (row, from) = (unit / in_row, unit % in_row * block);
                    let width = block.min(self.width - from);
                    let to = at(unit) - first;
                    self.columns(&mut machine, (row, from, width), to, &mut state, &mut accs);
                }
            }
        };
        match tasks.len() {
            0 | 1 => tasks.into_iter().for_each(work),
            _ => share(tasks.into_iter(), work),
        }
        self.combine(&mut blocks, &mut extremes, self.pre);
        blocks
    }

    /// Units of rows: chunk `unit % chunks` of outer element `unit / chunks`.
    fn rows(&self, machine: &mut Machine<'_, '_>, units: Range<usize>, accs: &mut [Acc<'_>]) {
        let (r, chunks) = (self.reduced, self.chunks());
        if r <= BLOCK && r > 0 {
            let at_once = BLOCK / r;
            for first in units.clone().step_by(at_once) {
                let count = at_once.min(units.end - first);
                let len = count * r;
                machine.block(first * r, len);
                let to = first - units.start;
                for (i, ((kind, dtype), acc)) in self.accs.iter().zip(&mut *accs).enumerate() {
                    let x = machine.root(i, len);
                    match *kind {
                        AccKind::Reduce(kind) => {
                            let size = dtype.bytes();
                            fold::rows(kind, *dtype, x, r, &mut acc.bytes[to * size..(to + count) * size]);
                        }
                        AccKind::Arg { max } => {
                            for (j, x) in x.chunks_exact(r * dtype.bytes()).enumerate() {
                                start(acc, to + j, 1);
                                argument(max, *dtype, x, 0, 1, acc, to + j);
                            }
                        }
                    }
                }
            }
            return;
        }
        // Chunks that lie one after the other as they are need no program.
        if let [(AccKind::Reduce(kind), dtype)] = self.accs[..]
            && r.is_multiple_of(CHUNK)
            && r > 0
            && let Some(([x], from)) = machine.plain([units.start * CHUNK], units.len() * CHUNK)
        {
            let y = &mut accs[0].bytes[..units.len() * dtype.bytes()];
            if from == dtype {
                return fold::rows(kind, dtype, x, CHUNK, y);
            }
            if let (Reduce::Sum, DType::F16) = (kind, from)
                && halves::sums(cast_slice(x), bytemuck::cast_slice_mut(y))
            {
                return;
            }
            let mut wide = [0f32; CHUNK];
            for (x, y) in x.chunks_exact(CHUNK * from.bytes()).zip(y.chunks_exact_mut(dtype.bytes())) {
                halves::widen(from, cast_slice(x), &mut wide);
                fold::rows(kind, dtype, cast_slice(&wide), CHUNK, y);
            }
            return;
        }
        let mut lanes: Vec<Block> =
            self.accs.iter().map(|acc| memory::scratch(fold::LANES * Self::lane(acc))).collect();
        for unit in units.clone() {
            let (o, c, to) = (unit / chunks, unit % chunks, unit - units.start);
            let (from, end) = (c * CHUNK, r.min((c + 1) * CHUNK));
            self.clear(&mut lanes, accs, fold::LANES, to, 1);
            for n in (from..end).step_by(BLOCK) {
                let len = BLOCK.min(end - n);
                machine.block(o * r + n, len);
                for (i, ((kind, dtype), acc)) in self.accs.iter().zip(&mut *accs).enumerate() {
                    let x = machine.root(i, len);
                    match *kind {
                        AccKind::Reduce(kind) => fold::wrap(kind, *dtype, lanes[i].bytes_mut(), x, 0),
                        AccKind::Arg { max } => argument(max, *dtype, x, n, 1, acc, to),
                    }
                }
            }
            self.finish(&mut lanes, accs, fold::LANES, to, 1);
        }
        lanes.into_iter().for_each(memory::used);
    }

    /// Columns `from..from + width` of row `row`, which is a chunk of an outer element.
    fn columns(
        &self,
        machine: &mut Machine<'_, '_>,
        (row, from, width): (usize, usize, usize),
        to: usize,
        state: &mut [Block],
        accs: &mut [Acc<'_>],
    ) {
        let (r, chunks) = (self.reduced, self.chunks());
        let (p, c) = (row / chunks, row % chunks);
        let first = c * CHUNK;
        let count = r.min(first + CHUNK) - first;
        let lanes = fold::lanes(r);
        self.clear(state, accs, lanes, to, width);
        let start = (p * r + first) * self.width;
        let take = |machine: &mut Machine<'_, '_>,
                    state: &mut [Block],
                    accs: &mut [Acc<'_>],
                    n: usize,
                    len: usize,
                    row: usize,
                    phase: usize| {
            machine.block(start + n, len);
            for (i, ((kind, dtype), acc)) in self.accs.iter().zip(accs).enumerate() {
                let x = machine.root(i, len);
                match *kind {
                    AccKind::Reduce(kind) => {
                        let used = lanes * width * fold::wide(kind, *dtype).bytes();
                        let state = &mut state[i].bytes_mut()[..used];
                        fold::wrap(kind, *dtype, state, x, phase);
                    }
                    // Columns of extremes are taken row by row, whatever their width.
                    AccKind::Arg { max } => argument(max, *dtype, x, first + row, width, acc, to),
                }
            }
        };
        let by_rows = self.accs.iter().any(|(kind, _)| matches!(kind, AccKind::Arg { .. }));
        if by_rows {
            for row in 0..count {
                take(machine, state, accs, row * self.width + from, width, row, row % lanes * width);
            }
        } else if self.width >= WIDE {
            // Lane by lane, so that one row of accumulators stays in the first cache.
            for lane in 0..lanes {
                let mut row = lane;
                // Rows that are read as they lie meet several at a time.
                if let [(AccKind::Reduce(kind), dtype)] = self.accs[..] {
                    let size = width * fold::wide(kind, dtype).bytes();
                    let acc = &mut state[0].bytes_mut()[lane * size..(lane + 1) * size];
                    let at = |row: usize, j: usize| start + (row + j * lanes) * self.width + from;
                    while row + (fold::STACK - 1) * lanes < count
                        && let Some((rows, from)) = machine.plain(std::array::from_fn(|j| at(row, j)), width)
                    {
                        match from == dtype {
                            true => fold::stack(kind, dtype, acc, rows),
                            false => stack_halves(kind, from, acc, rows),
                        }
                        row += fold::STACK * lanes;
                    }
                }
                for row in (row..count).step_by(lanes) {
                    take(machine, state, accs, row * self.width + from, width, row, lane * width);
                }
            }
        } else {
            let len = count * width;
            for n in (0..len).step_by(BLOCK) {
                take(machine, state, accs, n, BLOCK.min(len - n), 0, n % (lanes * width));
            }
        }
        self.finish(state, accs, lanes, to, width);
    }

    fn clear(&self, state: &mut [Block], accs: &mut [Acc<'_>], lanes: usize, to: usize, width: usize) {
        for (i, (kind, dtype)) in self.accs.iter().enumerate() {
            match *kind {
                AccKind::Reduce(kind) => {
                    let used = lanes * width * fold::wide(kind, *dtype).bytes();
                    fold::clear(kind, *dtype, &mut state[i].bytes_mut()[..used]);
                }
                AccKind::Arg { .. } => start(&mut accs[i], to, width),
            }
        }
    }

    fn finish(&self, state: &mut [Block], accs: &mut [Acc<'_>], lanes: usize, to: usize, width: usize) {
        for (i, (kind, dtype)) in self.accs.iter().enumerate() {
            if let AccKind::Reduce(kind) = *kind {
                let used = lanes * width * fold::wide(kind, *dtype).bytes();
                let y = &mut accs[i].bytes[to * dtype.bytes()..][..width * dtype.bytes()];
                fold::halves(kind, *dtype, &mut state[i].bytes_mut()[..used], y);
            }
        }
    }

    /// Folds the chunks of each outer element and moves the results together.
    fn combine(&self, blocks: &mut [Block], extremes: &mut [Vec<i64>], pre: usize) {
        let (chunks, width) = (self.chunks(), self.width);
        if chunks == 1 {
            return;
        }
        for (i, (kind, dtype)) in self.accs.iter().enumerate() {
            let bytes = blocks[i].bytes_mut();
            match *kind {
                AccKind::Reduce(kind) => {
                    let row = width * dtype.bytes();
                    for p in 0..pre {
                        let at = p * chunks * row;
                        fold::pairs(kind, *dtype, &mut bytes[at..at + chunks * row], chunks, width);
                        bytes.copy_within(at..at + row, p * row);
                    }
                }
                AccKind::Arg { .. } => {
                    let found: &mut [i32] = bytemuck::cast_slice_mut(bytes);
                    for p in 0..pre {
                        for j in 0..width {
                            let at = |c: usize| (p * chunks + c) * width + j;
                            let best = (1..chunks).fold(0, |best, c| {
                                if extremes[i][at(c)] > extremes[i][at(best)] { c } else { best }
                            });
                            found[p * width + j] = found[at(best)];
                        }
                    }
                }
            }
        }
    }
}

/// As [`fold::stack`] into lanes for f32, of halves.
fn stack_halves(kind: Reduce, from: DType, acc: &mut [u8], rows: [&[u8]; fold::STACK]) {
    const AT_ONCE: usize = 256;
    let mut wide = [[0f32; AT_ONCE]; fold::STACK];
    let (count, lane) = (rows[0].len() / from.bytes(), fold::wide(kind, DType::F32).bytes());
    for first in (0..count).step_by(AT_ONCE) {
        let end = count.min(first + AT_ONCE);
        for (wide, row) in wide.iter_mut().zip(rows) {
            halves::widen(from, &cast_slice(row)[first..end], &mut wide[..end - first]);
        }
        let wide = wide.each_ref().map(|wide| cast_slice(&wide[..end - first]));
        fold::stack(kind, DType::F32, &mut acc[first * lane..end * lane], wide);
    }
}

/// Extremes that `n` accumulators of `kind` keep.
fn args(kind: AccKind, n: usize) -> usize {
    if let AccKind::Arg { .. } = kind { n } else { 0 }
}

/// An element by its rank: the greater comes first, NaN before all.
trait Ranked: Copy {
    /// The rank among candidates for the largest, or else for the smallest.
    fn rank(self, max: bool) -> i64;
}

impl Ranked for f64 {
    #[inline(always)]
    fn rank(self, max: bool) -> i64 {
        if self.is_nan() {
            return i64::MAX;
        }
        // Adding 0 makes both zeros one; the bits of a float below 0 fall as it rises.
        let bits = (if max { self } else { -self } + 0.0).to_bits() as i64;
        if bits < 0 { bits ^ i64::MAX } else { bits }
    }
}

impl Ranked for f32 {
    #[inline(always)]
    fn rank(self, max: bool) -> i64 {
        f64::from(self).rank(max)
    }
}

macro_rules! ranked {
    ($($t:ty)*) => {$(
        impl Ranked for $t {
            #[inline(always)]
            fn rank(self, max: bool) -> i64 {
                if max { i64::from(self) } else { !i64::from(self) }
            }
        }
    )*};
}
ranked!(i32 u32 i64);

/// Nothing seen yet: index -1.
fn start(acc: &mut Acc<'_>, to: usize, width: usize) {
    let found: &mut [i32] = bytemuck::cast_slice_mut(acc.bytes);
    found[to..to + width].fill(-1);
    acc.extremes[to..to + width].fill(i64::MIN);
}

/// Takes elements `index, index + 1, ..` of one row (`width` 1), or element `index` of each column.
fn argument(max: bool, dtype: DType, x: &[u8], index: usize, width: usize, acc: &mut Acc<'_>, to: usize) {
    fn go<T: Ranked>(
        x: &[T],
        (max, index, width): (bool, usize, usize),
        found: &mut [i32],
        extremes: &mut [i64],
    ) {
        for (i, x) in x.iter().enumerate() {
            let (j, at) = if width == 1 { (0, index + i) } else { (i, index) };
            let rank = x.rank(max);
            if found[j] < 0 || rank > extremes[j] {
                (found[j], extremes[j]) = (at as i32, rank);
            }
        }
    }
    let found: &mut [i32] = bytemuck::cast_slice_mut(acc.bytes);
    let (found, extremes) = (&mut found[to..to + width], &mut acc.extremes[to..to + width]);
    // A row's extreme is found by vector code; the first place of it is all that is left.
    let mut best = [0u64];
    let (mut x, mut index) = (x, index);
    let size = dtype.bytes();
    if width == 1 && x.len() > size {
        let best: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut best)[..size];
        fold::rows(if max { Reduce::Max } else { Reduce::Min }, dtype, x, x.len() / size, best);
        let first = match dtype {
            DType::F32 => first_of::<f32>(x, best),
            DType::F64 => first_of::<f64>(x, best),
            _ => x.chunks_exact(size).position(|x| x == best).unwrap_or(0),
        };
        index += first;
        x = &x[first * size..(first + 1) * size];
    }
    let how = (max, index, width);
    match dtype {
        DType::F32 => go::<f32>(cast_slice(x), how, found, extremes),
        DType::F64 => go::<f64>(cast_slice(x), how, found, extremes),
        DType::I32 => go::<i32>(cast_slice(x), how, found, extremes),
        DType::U32 => go::<u32>(cast_slice(x), how, found, extremes),
        DType::I64 => go::<i64>(cast_slice(x), how, found, extremes),
        DType::Bool | DType::U8 | DType::F16 | DType::BF16 => {
            unreachable!("not reduced, checked when recorded")
        }
    }
}

/// The first place of a float, or of NaN.
fn first_of<T: bytemuck::Pod + PartialOrd>(x: &[u8], best: &[u8]) -> usize {
    let (x, best): (&[T], T) = (cast_slice(x), bytemuck::pod_read_unaligned(best));
    let nan = best.partial_cmp(&best).is_none();
    x.iter().position(|x| *x == best || nan && x.partial_cmp(x).is_none()).unwrap_or(0)
}

/// Whether more loads run along the last outer axis than along the last reduced one. Those that stand still
/// along one of the two are small or repeated, and cheap either way: they decide where nothing else does.
fn prefers_columns(group: &Group) -> bool {
    let (outer, rank) = (group.outer().len(), group.dims.len());
    let (mut full, mut thin) = (0i32, 0i32);
    for (expr, _) in &group.body.exprs {
        let (Expr::Load { index, .. } | Expr::Gather { index, .. }) = expr else { continue };
        let view = &group.body.indices[usize::from(*index)].views[0];
        if view.dims.len() != rank || rank == outer {
            continue;
        }
        let moves = |axis: usize| view.strides[axis] != 0 && view.dims[axis] > 1;
        let along = |axis: usize| i32::from(view.strides[axis].unsigned_abs() == 1 && view.dims[axis] > 1);
        let vote = along(outer - 1) - along(rank - 1);
        match moves(outer - 1) && moves(rank - 1) {
            true => full += vote,
            false => thin += vote,
        }
    }
    if full == 0 { thin > 0 } else { full > 0 }
}
