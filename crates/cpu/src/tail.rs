//! The part of a group that writes: a program over the outer space, run in parallel over parts of it
//! that own parts of the outputs.

use std::ops::Range;

use smallvec::SmallVec;
use wgrad_graph::Group;

use crate::machine::{self, Chunk, Env, Operand};
use crate::memory::{self, Block};
use crate::pool;
use crate::program::{BLOCK, Program, Space};
use crate::share::share;
use crate::turn;

/// Work (instructions times elements) below which one thread is faster than several.
pub(crate) const PARALLEL_WORK: usize = 1 << 18;

/// A range of the space and the parts of the outputs that it writes.
pub(crate) type Part<'a> = (Range<usize>, SmallVec<[Chunk<'a>; 2]>);

/// How many parts work is cut into: a few for each thread, so that uneven ones balance.
pub(crate) fn parts(work: usize) -> usize {
    match pool::here() {
        1 => 1,
        _ if work < PARALLEL_WORK => 1,
        threads => (work / (PARALLEL_WORK / 2)).min(threads * 4),
    }
}

/// `0..n` cut into at most `parts` ranges of whole multiples of `unit`.
pub(crate) fn cuts(n: usize, unit: usize, parts: usize) -> Vec<Range<usize>> {
    let step = n.div_ceil(parts.max(1)).next_multiple_of(unit.max(1)).max(1);
    (0..n).step_by(step).map(|from| from..(from + step).min(n)).collect()
}

/// The program over the outer space. Its axes are taken in the order in which the first store lies,
/// where the stores do not rise with the group's own order; whether they do comes with it.
pub(crate) fn program(group: &Group) -> (Program, bool) {
    let dims = group.outer();
    let identity: Vec<usize> = (0..dims.len()).collect();
    let make = |order: &[usize]| {
        let space = Space { dims, order, accs: group.operands.len(), spread: 0 };
        Program::new(&group.body, &[], &group.stores, &space)
    };
    let plain = make(&identity);
    if plain.splits || dims.len() < 2 || group.stores.is_empty() {
        return (plain, true);
    }
    let first = &group.body.indices[usize::from(group.stores[0].index)].views[0];
    let mut order = identity;
    order.sort_by_key(|axis| std::cmp::Reverse(first.strides[*axis].unsigned_abs()));
    let sorted = make(&order);
    if sorted.splits { (sorted, false) } else { (plain, true) }
}

/// Cuts the outputs at the ranges. The program's stores must rise with the position.
pub(crate) fn split<'a>(
    program: &Program,
    scalars: &[f64],
    outs: Vec<&'a mut [u8]>,
    ranges: Vec<Range<usize>>,
) -> Vec<Part<'a>> {
    let mut rest: Vec<(&'a mut [u8], i64)> = outs.into_iter().map(|out| (out, 0)).collect();
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut chunks = SmallVec::new();
        for (target, (bytes, base)) in program.targets.iter().zip(&mut rest) {
            let size = program.instrs[target.from].dtype.bytes();
            let end = |n| target.access.element(n, scalars).unwrap_or(*base);
            let (lo, hi) = (end(range.start), end(range.end - 1) + 1);
            let (_, from) = std::mem::take(bytes).split_at_mut((lo - *base) as usize * size);
            let (own, after) = from.split_at_mut((hi - lo) as usize * size);
            (*bytes, *base) = (after, hi);
            chunks.push(Chunk { bytes: own, base: lo });
        }
        parts.push((range, chunks));
    }
    parts
}

/// Runs the whole program in bands of `band` positions, each with its part of what is turned: that is read while
/// it is in the cache, and never as a whole in memory.
pub(crate) fn run_bands(
    program: &Program,
    env: Env<'_>,
    outs: Vec<&mut [u8]>,
    turns: &turn::Turns,
    band: usize,
) {
    let parts = split(program, env.scalars, outs, cuts(program.elems, band, parts(program.work())));
    let run = |(range, mut chunks): Part<'_>| {
        let mut own: Vec<Block> = turns.iter().map(|t| memory::scratch(band * t.1.bytes())).collect();
        for from in range.clone().step_by(band) {
            let here = from..(from + band).min(range.end);
            for ((operand, dtype, turned), block) in turns.iter().zip(&mut own) {
                let Operand::Bytes { bytes, .. } = env.operands[*operand] else {
                    unreachable!("what is turned is not written")
                };
                let to = &mut block.bytes_mut()[..here.len() * dtype.bytes()];
                turn::copy_band(turned, dtype.bytes(), bytes, from, to);
            }
            let mut operands = env.operands.to_vec();
            operands.extend(own.iter().map(|b| Operand::Bytes { bytes: b.bytes(), base: from as i64 }));
            machine::run(program, Env { operands: &operands, ..env }, here, &mut chunks);
        }
        own.into_iter().for_each(memory::used);
    };
    match parts.len() {
        1 => parts.into_iter().for_each(run),
        _ => share(parts.into_iter(), run),
    }
}

/// Runs the whole program; `outs` are the stores' values.
pub(crate) fn run(program: &Program, env: Env<'_>, outs: Vec<&mut [u8]>) {
    let parts = if program.splits { parts(program.work()) } else { 1 };
    if parts == 1 || program.elems <= BLOCK {
        let mut chunks: SmallVec<[Chunk<'_>; 2]> =
            outs.into_iter().map(|bytes| Chunk { bytes, base: 0 }).collect();
        machine::run_streams(program, env, 0..program.elems, &mut chunks);
        return;
    }
    let parts = split(program, env.scalars, outs, cuts(program.elems, BLOCK, parts));
    share(parts.into_iter(), |(range, mut chunks)| {
        machine::run_streams(program, env, range, &mut chunks);
    });
}
