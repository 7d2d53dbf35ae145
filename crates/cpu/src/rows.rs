//! Consecutive steps over the same rows, run row by row: what one step leaves of a row is still in
//! the cache when the next one reads it (softmax, layer norm and their backwards). Each step computes
//! exactly what it computes alone.

use std::ops::Range;

use crate::machine::{self, Chunk, Env, Flag, Operand};
use crate::memory::Block;
use crate::share::share;
use crate::step::{Arena, Compiled, Mem, Work, bytes_of};
use crate::tail;

/// Steps that run together, at most.
const MAX_STEPS: usize = 8;
/// Bytes of the rows that are worked on at once: half of a common second cache.
const TILE_BYTES: usize = 512 << 10;
/// Elements from which running row by row pays.
const MIN_ELEMS: usize = 1 << 13;

/// Steps `first..end` over `rows` rows.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) steps: Range<usize>,
    rows: usize,
}

/// The longest run that starts with step `first`, if any.
pub(crate) fn find(steps: &[Compiled], first: usize) -> Option<Run> {
    let reach = &steps[first..steps.len().min(first + MAX_STEPS)];
    let rows = reach.iter().take(2).find_map(|step| match &step.work {
        Work::Reduce(reduction) => reduction.by_rows(),
        _ => None,
    })?;
    if rows < 2 {
        return None;
    }
    let mut end = 0;
    while end < reach.len() && joins(&reach[..end], &reach[end], rows) {
        end += 1;
    }
    let large = reach[..end].iter().any(|step| step.elems() >= MIN_ELEMS);
    let reduces = reach[..end].iter().any(|step| matches!(step.work, Work::Reduce(_)));
    (end > 1 && large && reduces).then_some(Run { steps: first..first + end, rows })
}

/// Whether `step` may follow the steps of a run.
fn joins(run: &[Compiled], step: &Compiled, rows: usize) -> bool {
    let shaped = match &step.work {
        Work::Pointwise => true,
        Work::Reduce(reduction) => reduction.by_rows().is_some(),
        _ => false,
    };
    let whole = step.natural
        && step.turned.is_empty()
        && step.tail.elems > 0
        && step.tail.elems.is_multiple_of(rows)
        && step.tail.targets.iter().all(|t| t.flat && t.access.is_at_origin())
        && step.stores.iter().all(|out| out.shape.elems() == step.tail.elems)
        && step.group.stores.iter().all(|s| s.base.is_none());
    // Parts of rows run in another order than whole steps, so no memory may change its meaning.
    let fresh = step.writes.iter().all(|w| {
        !step.reads.contains(w) && run.iter().all(|s| !s.writes.contains(w) && !s.reads.contains(w))
    });
    if !shaped || !whole || !fresh {
        return false;
    }
    let mut related = run.is_empty();
    for (o, place) in step.reads.iter().enumerate() {
        related |= run.iter().any(|s| s.reads.contains(place));
        if run.iter().any(|s| s.writes.contains(place)) {
            related = true;
            let elems = step.operands[o].shape.elems();
            let local = |program: &crate::program::Program| program.is_local(o, rows, elems / rows);
            let head = match &step.work {
                Work::Reduce(reduction) => local(reduction.head()),
                _ => true,
            };
            if !elems.is_multiple_of(rows) || !head || !local(&step.tail) {
                return false;
            }
        }
    }
    related
}

/// A value that the run writes: its place, the bytes of a row, and the rows of this task.
struct Own<'a> {
    place: usize,
    row_elems: usize,
    bytes: &'a mut [u8],
}

impl Run {
    /// Whether no two of the run's places are one memory in this submission.
    pub(crate) fn is_apart(&self, steps: &[Compiled], arena: &Arena<'_>) -> bool {
        let run = &steps[self.steps.clone()];
        let places = || run.iter().flat_map(|s| s.reads.iter().chain(&s.writes));
        run.iter().flat_map(|s| &s.writes).all(|w| {
            let memory = arena.alias[*w];
            places().all(|p| p == w || arena.alias[*p] != memory)
        })
    }

    /// A measure of the work, of all of the plan's steps.
    pub(crate) fn amount(&self, steps: &[Compiled]) -> usize {
        steps[self.steps.clone()].iter().map(Compiled::amount).sum()
    }

    /// Runs the steps; the flags are theirs, one for each.
    pub(crate) fn run(&self, steps: &[Compiled], arena: &mut Arena<'_>, all: &[f64]) -> Vec<Flag> {
        let work = self.amount(steps);
        let steps = &steps[self.steps.clone()];
        let scalars: Vec<Vec<f64>> = steps.iter().map(|s| s.scalars(all)).collect();
        let flags: Vec<Flag> = steps.iter().map(|_| Flag::default()).collect();
        let mut taken = Vec::new();
        for step in steps {
            for (place, out) in step.writes.iter().zip(&step.stores) {
                let memory = arena.alias[*place];
                let mem = match std::mem::take(&mut arena.mems[memory]) {
                    Mem::Host(bytes) => Mem::Block(Block::from(bytes)),
                    mem => mem,
                };
                taken.push((memory, bytes_of(out), mem));
            }
        }
        let row_bytes: usize = taken.iter().map(|t| t.1 / self.rows).sum::<usize>()
            + steps.iter().map(|s| s.row_bytes(self.rows)).max().unwrap_or(0);
        let at_once = (TILE_BYTES / row_bytes.max(1)).clamp(1, self.rows);
        let cuts = tail::cuts(self.rows, 1, tail::parts(work));
        let mut rest: Vec<&mut [u8]> = Vec::new();
        for (_, bytes, mem) in &mut taken {
            let Mem::Block(block) = mem else { unreachable!("what is written has memory") };
            rest.push(&mut block.bytes_mut()[..*bytes]);
        }
        let shapes: Vec<(usize, usize, usize)> = steps
            .iter()
            .flat_map(|s| s.writes.iter().zip(&s.stores))
            .map(|(place, out)| (*place, out.shape.elems() / self.rows, bytes_of(out) / self.rows))
            .collect();
        let mut tasks = Vec::new();
        for range in cuts {
            let mut own = Vec::with_capacity(rest.len());
            for ((place, row_elems, row_bytes), rest) in shapes.iter().zip(&mut rest) {
                let (bytes, after) = std::mem::take(rest).split_at_mut(row_bytes * range.len());
                *rest = after;
                own.push(Own { place: *place, row_elems: *row_elems, bytes });
            }
            tasks.push((range, own));
        }
        let arena_ref = &*arena;
        let task = |(range, mut own): (Range<usize>, Vec<Own<'_>>)| {
            for from in range.clone().step_by(at_once) {
                let tile = from..(from + at_once).min(range.end);
                let mut written = 0;
                for ((step, scalars), flag) in steps.iter().zip(&scalars).zip(&flags) {
                    self.step(step, scalars, flag, arena_ref, &mut own, written, range.start, tile.clone());
                    written += step.writes.len();
                }
            }
        };
        match tasks.len() {
            1 => tasks.into_iter().for_each(task),
            _ => share(tasks.into_iter(), task),
        }
        for (memory, _, mem) in taken {
            arena.mems[memory] = mem;
        }
        flags
    }

    /// One step on the rows of `tile`; its outputs are `own[written..]`, which begin at row `first`.
    #[expect(clippy::too_many_arguments, reason = "the state of one task, which has no other home")]
    fn step(
        &self,
        step: &Compiled,
        scalars: &[f64],
        flag: &Flag,
        arena: &Arena<'_>,
        own: &mut [Own<'_>],
        written: usize,
        first: usize,
        tile: Range<usize>,
    ) {
        let (before, rest) = own.split_at_mut(written);
        let mut operands: Vec<Operand<'_>> = Vec::with_capacity(step.reads.len() + 2);
        for (place, out) in step.reads.iter().zip(&step.operands) {
            operands.push(match before.iter().find(|o| o.place == *place) {
                Some(o) => Operand::Bytes { bytes: &*o.bytes, base: (first * o.row_elems) as i64 },
                None => {
                    let bytes = &arena.mems[arena.alias[*place]].bytes()[..bytes_of(out)];
                    Operand::Bytes { bytes, base: 0 }
                }
            });
        }
        let width = step.tail.elems / self.rows;
        let range = tile.start * width..tile.end * width;
        let accs = match &step.work {
            Work::Reduce(reduction) => {
                reduction.run_rows(Env { operands: &operands, scalars, flag }, range.clone(), &mut [])
            }
            _ => Vec::new(),
        };
        operands
            .extend(accs.iter().map(|acc| Operand::Bytes { bytes: acc.bytes(), base: range.start as i64 }));
        let mut chunks: Vec<Chunk<'_>> = rest[..step.writes.len()]
            .iter_mut()
            .map(|o| Chunk { base: (first * o.row_elems) as i64, bytes: &mut *o.bytes })
            .collect();
        machine::run(&step.tail, Env { operands: &operands, scalars, flag }, range, &mut chunks);
    }
}
