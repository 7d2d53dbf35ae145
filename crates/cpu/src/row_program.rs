//! Row programs: for each row the accumulators of one level after the other, then what is stored. Rows are
//! taken a few at a time, so that what one level reads is still in the cache for the next.

use std::ops::Range;

use smallvec::SmallVec;
use wgrad_graph::{Body, DType, Expr, ExprId, Group, Index, RowStage, Store};

use crate::machine::{self, Chunk, Env, Machine, Operand};
use crate::memory::{self, Block};
use crate::program::{BLOCK, Program, Space};
use crate::reduce::Reduction;
use crate::share::share;
use crate::tail;

/// Bytes of the rows that are worked on at once: half of a common second cache.
const TILE_BYTES: usize = 512 << 10;

/// A compiled row program. The operands of its programs are the group's, then its accumulators, then numbers
/// that are computed once a row, then whole rows that a level keeps for later ones.
#[derive(Debug)]
pub(crate) struct RowProgram {
    rows: usize,
    length: usize,
    accs: usize,
    levels: Vec<Level>,
    /// What is computed once a row before the last run along it.
    once: Once,
    along: Program,
    /// Stores once a row.
    end: Program,
    /// The numbers of the stores of `along` and of `end`.
    stores: [Vec<usize>; 2],
    /// The dtypes of numbers once a row, and of kept rows.
    numbers: Vec<DType>,
    kept: Vec<DType>,
}

/// Numbers computed once a row, by their number.
#[derive(Debug)]
struct Once {
    program: Program,
    numbers: Vec<usize>,
}

/// Accumulators that are computed in one run along the row.
#[derive(Debug)]
struct Level {
    once: Once,
    reduction: Reduction,
    accs: Vec<usize>,
    /// The rows that it keeps.
    kept: Vec<usize>,
}

/// What is made of a group's expressions.
struct Cutter<'g> {
    group: &'g Group,
    stages: Vec<RowStage>,
    /// Expressions of a program along the row: what is computed once, or kept, is loaded there.
    body: Body,
    numbers: Vec<ExprId>,
    kept: Vec<ExprId>,
}

impl Cutter<'_> {
    /// What the run along the row at `level` computes.
    fn roots(&self, level: usize) -> Vec<ExprId> {
        let last = level == self.group.row_levels();
        let accs = self.group.accs.iter().map(|a| a.x);
        let accs = accs.filter(|x| !last && self.stages[*x as usize].level == level);
        let stores = self.group.stores.iter().filter(|s| last && self.group.stores_rows(s)).map(|s| s.x);
        accs.chain(stores).collect()
    }

    /// Expressions along the row that `roots` need, as far as they are not kept.
    fn needed(&self, roots: &[ExprId]) -> Vec<bool> {
        let exprs = &self.body.exprs;
        let mut needed = vec![false; exprs.len()];
        roots.iter().for_each(|x| needed[*x as usize] = true);
        for id in (0..exprs.len()).rev() {
            if needed[id] && self.stages[id].whole {
                operands(&exprs[id].0).for_each(|x| needed[x as usize] = true);
            }
        }
        needed
    }

    /// Makes what `roots` need once a row loads of numbers; the new ones.
    fn cut(&mut self, roots: &[ExprId]) -> Vec<usize> {
        let needed = self.needed(roots);
        let mut new = Vec::new();
        for id in (0..needed.len()).filter(|id| needed[*id] && !self.stages[*id].whole) {
            let known = self.numbers.contains(&(id as ExprId));
            if !known && !matches!(self.body.exprs[id].0, Expr::Scalar { .. }) {
                new.push(self.numbers.len());
                self.body.exprs[id].0 = Expr::Acc { acc: self.numbers.len() as u16 };
                self.numbers.push(id as ExprId);
            }
        }
        new
    }

    /// Rows of `level` that are dear and that later levels need too.
    fn keep(&self, level: usize) -> Vec<ExprId> {
        let dear = |id: usize| match self.body.exprs[id].0 {
            Expr::Unary { op, .. } => op.row().hard,
            Expr::Binary { op, .. } => op.row().hard,
            _ => false,
        };
        let needed = |level: usize| self.needed(&self.roots(level));
        let here = needed(level);
        let later: Vec<Vec<bool>> = (level + 1..=self.group.row_levels()).map(needed).collect();
        let dears = (0..here.len()).filter(|id| self.stages[*id].whole && here[*id] && dear(*id));
        dears.filter(|id| later.iter().any(|n| n[*id])).map(|id| id as ExprId).collect()
    }

    fn once(&self, numbers: Vec<usize>) -> Once {
        let roots: Vec<ExprId> = numbers.iter().map(|n| self.numbers[*n]).collect();
        let outer = self.group.outer();
        let order: Vec<usize> = (0..outer.len()).collect();
        let space = Space { dims: outer, order: &order, accs: self.group.operands.len(), spread: 0 };
        Once { program: Program::new(&self.group.body, &roots, &[], &space), numbers }
    }

    fn along(&self, roots: &[ExprId], stores: &[Store]) -> Program {
        let dims = &self.group.dims;
        let order: Vec<usize> = (0..dims.len()).collect();
        let accs = self.group.operands.len() + self.group.accs.len();
        let space = Space { dims, order: &order, accs, spread: self.group.reduced };
        Program::new(&self.body, roots, stores, &space)
    }
}

fn operands(expr: &Expr) -> impl Iterator<Item = ExprId> {
    let all: SmallVec<[ExprId; 3]> = match *expr {
        Expr::Gather { at: x, .. } | Expr::Unary { x, .. } | Expr::Cast { x } => SmallVec::from_slice(&[x]),
        Expr::Binary { x, w, .. } => SmallVec::from_slice(&[x, w]),
        Expr::Select { c, x, w } => SmallVec::from_slice(&[c, x, w]),
        _ => SmallVec::new(),
    };
    all.into_iter()
}

impl RowProgram {
    pub(crate) fn new(group: &Group) -> RowProgram {
        let (rows, length) =
            (group.outer().iter().product(), group.dims[group.outer().len()..].iter().product());
        let stages = group.row_stages();
        let mut c = Cutter { group, stages, body: group.body.clone(), numbers: Vec::new(), kept: Vec::new() };
        let linear = c.body.indices.len() as u16;
        c.body.indices.push(Index::linear(&group.dims));
        let mut levels = Vec::new();
        // Numbers once a row come before rows that are kept; how many there are is known at the end.
        let mut heads = Vec::new();
        for level in 0..group.row_levels() {
            let accs: Vec<usize> = (0..group.accs.len())
                .filter(|a| c.stages[group.accs[*a].x as usize].level == level)
                .collect();
            let roots: Vec<ExprId> = accs.iter().map(|a| group.accs[*a].x).collect();
            let new = c.cut(&roots);
            let keep = c.keep(level);
            heads.push((accs, roots, c.once(new), keep, c.body.clone()));
            let keep = heads[level].3.clone();
            for x in keep {
                let operand = u16::MAX - c.kept.len() as u16;
                c.body.exprs[x as usize].0 = Expr::Load { operand, index: linear };
                c.kept.push(x);
            }
        }
        let (whole, end): (Vec<usize>, Vec<usize>) =
            (0..group.stores.len()).partition(|s| group.stores_rows(&group.stores[*s]));
        let of = |numbers: &[usize]| numbers.iter().map(|s| group.stores[*s].clone()).collect::<Vec<_>>();
        let new = c.cut(&c.roots(group.row_levels()));
        let once = c.once(new);
        let first = group.operands.len() + group.accs.len() + c.numbers.len();
        let place = |body: &mut Body, kept: usize| {
            for (expr, _) in &mut body.exprs {
                if let Expr::Load { operand, .. } = expr
                    && usize::from(u16::MAX - *operand) < kept
                {
                    *operand = (first + usize::from(u16::MAX - *operand)) as u16;
                }
            }
        };
        let mut number = 0;
        for (accs, roots, once, keep, mut body) in heads {
            place(&mut body, c.kept.len());
            let stores: Vec<Store> = keep
                .iter()
                .map(|x| Store { x: *x, index: linear, base: None, val: group.stores[0].val })
                .collect();
            let at = Cutter { group, stages: c.stages.clone(), body, numbers: Vec::new(), kept: Vec::new() };
            let head = at.along(&roots, &stores);
            let kinds =
                accs.iter().map(|a| &group.accs[*a]).map(|a| (a.kind, group.body.exprs[a.x as usize].1));
            let reduction = Reduction::of_rows(head, kinds.collect(), rows, length);
            levels.push(Level { once, reduction, accs, kept: (number..number + keep.len()).collect() });
            number += keep.len();
        }
        place(&mut c.body, c.kept.len());
        let outer = group.outer();
        let order: Vec<usize> = (0..outer.len()).collect();
        let space = Space { dims: outer, order: &order, accs: group.operands.len(), spread: 0 };
        let dtype = |x: &ExprId| group.body.exprs[*x as usize].1;
        RowProgram {
            rows,
            length,
            accs: group.accs.len(),
            levels,
            once,
            along: c.along(&[], &of(&whole)),
            end: Program::new(&group.body, &[], &of(&end), &space),
            stores: [whole, end],
            numbers: c.numbers.iter().map(dtype).collect(),
            kept: c.kept.iter().map(dtype).collect(),
        }
    }

    /// Every program, for checks.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Program> {
        let levels = self.levels.iter().flat_map(|l| [&l.once.program, l.reduction.head()]);
        levels.chain([&self.once.program, &self.along, &self.end])
    }

    /// Whether every element that scalars lead to exists; `operands` and `stores` are elements.
    pub(crate) fn fits(&self, scalars: &[f64], operands: &[usize], stores: &[usize]) -> bool {
        let of = |k: usize| self.stores[k].iter().map(|s| stores[*s]).collect::<Vec<_>>();
        let level = |l: &Level| {
            l.once.program.fits(scalars, operands, &[]) && l.reduction.head().fits(scalars, operands, &[])
        };
        self.levels.iter().all(level)
            && self.once.program.fits(scalars, operands, &[])
            && self.along.fits(scalars, operands, &of(0))
            && self.end.fits(scalars, operands, &of(1))
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn elems(&self) -> usize {
        self.rows * self.length
    }

    pub(crate) fn work(&self) -> usize {
        self.programs().map(Program::work).sum()
    }

    /// Runs the program; `row_bytes` are those of operands and results for a row.
    pub(crate) fn run(&self, env: Env<'_>, outs: Vec<&mut [u8]>, row_bytes: usize) {
        let kept: usize = self.kept.iter().map(|d| d.bytes() * self.length).sum();
        let tile = (TILE_BYTES / (row_bytes + kept).max(1)).clamp(1, self.rows.max(1));
        let splits = self.along.splits && self.end.splits;
        let cuts = tail::cuts(self.rows, 1, if splits { tail::parts(self.work()) } else { 1 });
        let mut split: [Vec<&mut [u8]>; 2] = [Vec::new(), Vec::new()];
        for (s, out) in outs.into_iter().enumerate() {
            split[usize::from(self.stores[1].contains(&s))].push(out);
        }
        let [along, end] = split;
        let wide = cuts.iter().map(|r| r.start * self.length..r.end * self.length).collect();
        let along = parts(&self.along, env.scalars, along, wide);
        let end = parts(&self.end, env.scalars, end, cuts.clone());
        let tasks: Vec<_> = cuts.into_iter().zip(along.into_iter().zip(end)).collect();
        let work = |(range, (mut along, mut end)): (Range<usize>, (Chunks<'_>, Chunks<'_>))| {
            for from in range.clone().step_by(tile) {
                self.tile(env, from..(from + tile).min(range.end), &mut along, &mut end);
            }
        };
        match tasks.len() {
            0 | 1 => tasks.into_iter().for_each(work),
            _ => share(tasks.into_iter(), work),
        }
    }

    /// Some rows, on this thread.
    fn tile(&self, env: Env<'_>, rows: Range<usize>, along: &mut [Chunk<'_>], end: &mut [Chunk<'_>]) {
        let base = (rows.start * self.length) as i64;
        let mut accs: Vec<Block> = (0..self.accs).map(|_| Block::default()).collect();
        let mut numbers: Vec<Block> =
            self.numbers.iter().map(|d| memory::scratch(rows.len() * d.bytes())).collect();
        let mut kept: Vec<Block> =
            self.kept.iter().map(|d| memory::scratch(rows.len() * self.length * d.bytes())).collect();
        let wide = rows.start * self.length..rows.end * self.length;
        for level in &self.levels {
            self.once(env, &level.once, &rows, &accs, &mut numbers, along);
            let mut own: Vec<Block> = level.kept.iter().map(|k| std::mem::take(&mut kept[*k])).collect();
            let found = {
                let operands = self.operands(env, &rows, &accs, &numbers, &kept, Some(&*along));
                let env = Env { operands: &operands, ..env };
                let mut chunks: Vec<Chunk<'_>> =
                    own.iter_mut().map(|b| Chunk { bytes: b.bytes_mut(), base }).collect();
                level.reduction.run_rows(env, rows.clone(), &mut chunks)
            };
            level.accs.iter().zip(found).for_each(|(a, block)| accs[*a] = block);
            level.kept.iter().zip(own).for_each(|(k, block)| kept[*k] = block);
        }
        self.once(env, &self.once, &rows, &accs, &mut numbers, along);
        {
            let operands = self.operands(env, &rows, &accs, &numbers, &kept, None);
            machine::run(&self.along, Env { operands: &operands, ..env }, wide, along);
        }
        {
            let operands = self.operands(env, &rows, &accs, &numbers, &kept, Some(&*along));
            machine::run(&self.end, Env { operands: &operands, ..env }, rows, end);
        }
        kept.into_iter().chain(numbers).chain(accs).for_each(memory::used);
    }

    /// Numbers once a row.
    fn once(
        &self,
        env: Env<'_>,
        once: &Once,
        rows: &Range<usize>,
        accs: &[Block],
        numbers: &mut [Block],
        along: &[Chunk<'_>],
    ) {
        if once.numbers.is_empty() {
            return;
        }
        let operands = self.operands(env, rows, accs, &[], &[], Some(along));
        let mut machine = Machine::new(&once.program, Env { operands: &operands, ..env }, &mut []);
        machine.fill_uniforms(rows.len().min(BLOCK));
        for n in rows.clone().step_by(BLOCK) {
            let len = BLOCK.min(rows.end - n);
            machine.block(n, len);
            for (i, number) in once.numbers.iter().enumerate() {
                let from = machine.root(i, len);
                let at = (n - rows.start) * self.numbers[*number].bytes();
                numbers[*number].bytes_mut()[at..at + from.len()].copy_from_slice(from);
            }
        }
    }

    /// The operands of a program on some rows. With `along`, operands that lie in outputs are read there,
    /// where nothing is written.
    fn operands<'a>(
        &self,
        env: Env<'a>,
        rows: &Range<usize>,
        accs: &'a [Block],
        numbers: &'a [Block],
        kept: &'a [Block],
        along: Option<&'a [Chunk<'_>]>,
    ) -> SmallVec<[Operand<'a>; 8]> {
        let read = |operand: &Operand<'a>| match (*operand, along) {
            (Operand::Output(k), Some(along)) => {
                let chunk = &along[self.along_number(k)];
                Operand::Bytes { bytes: &*chunk.bytes, base: chunk.base }
            }
            (Operand::Output(k), None) => Operand::Output(self.along_number(k)),
            (other, _) => other,
        };
        let own = |base: usize| move |b: &'a Block| Operand::Bytes { bytes: b.bytes(), base: base as i64 };
        let mut all: SmallVec<[Operand<'a>; 8]> = env.operands.iter().map(read).collect();
        all.extend(accs.iter().map(own(rows.start)));
        all.extend(numbers.iter().map(own(rows.start)));
        all.extend(kept.iter().map(own(rows.start * self.length)));
        all
    }

    /// Which of the last program's targets store `k` is.
    fn along_number(&self, k: usize) -> usize {
        self.stores[0].iter().position(|s| *s == k).unwrap_or(0)
    }

    /// Whether operand `o` of `group` is read only where store `k` writes, so that both may be one memory.
    pub(crate) fn in_place(group: &Group, o: usize, k: usize) -> bool {
        let store = &group.stores[k];
        group.stores_rows(store)
            && group.body.exprs.iter().all(|(expr, _)| match expr {
                Expr::Load { operand, index } if usize::from(*operand) == o => *index == store.index,
                Expr::Gather { operand, .. } => usize::from(*operand) != o,
                _ => true,
            })
    }
}

type Chunks<'a> = SmallVec<[Chunk<'a>; 2]>;

/// The outputs cut at the ranges.
fn parts<'a>(
    program: &Program,
    scalars: &[f64],
    outs: Vec<&'a mut [u8]>,
    ranges: Vec<Range<usize>>,
) -> Vec<Chunks<'a>> {
    if ranges.len() == 1 {
        return vec![outs.into_iter().map(|bytes| Chunk { bytes, base: 0 }).collect()];
    }
    tail::split(program, scalars, outs, ranges).into_iter().map(|(_, chunks)| chunks).collect()
}
