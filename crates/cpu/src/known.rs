//! Programs of a known shape, which run in loops of their own: the same operations on each element, in the same
//! order, without blocks between them.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use wgrad_graph::{Binary, DType, Unary};

use crate::access::{Access, Class};
use crate::kernels;
use crate::lookup::Rows;
use crate::machine::{Chunk, Env, Operand};
use crate::program::{Code, Instr, InstrId, Target};

/// A program that is known.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// A step of AdamW.
    AdamW(Box<AdamW>),
    /// Rows of a table.
    Rows(Box<Rows>),
}

impl Known {
    /// What these instructions are, if they are known.
    pub(crate) fn find(instrs: &[Instr], targets: &[Target]) -> Option<Known> {
        AdamW::find(instrs, targets)
            .map(|adamw| Known::AdamW(Box::new(adamw)))
            .or_else(|| Rows::find(instrs, targets).map(|rows| Known::Rows(Box::new(rows))))
    }

    /// Runs a range of it. Whether it did: operands may lie where the loop cannot read them.
    pub(crate) fn run(&self, env: Env<'_>, range: Range<usize>, chunks: &mut [Chunk<'_>]) -> bool {
        match self {
            Known::AdamW(adamw) => adamw.run(env, range, chunks),
            Known::Rows(rows) => rows.run(env, range, chunks),
        }
    }
}

/// A value of which element `n + offset` belongs to position `n`.
#[derive(Clone, Debug)]
struct Stream {
    operand: usize,
    access: Access,
}

/// `m' = m + (g - m) rate1`, `v' = v + (g g - v) rate2`,
/// `w' = w - (m' scale1 / (sqrt(v' scale2) + eps) + w decay) lr`.
#[derive(Clone, Debug)]
pub(crate) struct AdamW {
    /// Gradient.
    g: Stream,
    /// Weight, mean and mean of squares, the stores of their new values, and where those lie.
    states: [(Stream, usize, Access); 3],
    /// rate1, rate2, scale1, scale2, eps, decay, lr.
    numbers: [Code; 7],
}

/// Elements that are worked on at once.
const AT_ONCE: usize = 256;

struct Find<'i>(&'i [Instr]);

impl Find<'_> {
    /// The operands of a binary, in both orders where that makes no difference.
    fn binary(&self, id: InstrId, wanted: Binary) -> impl Iterator<Item = (InstrId, InstrId)> + use<> {
        let found = match self.0[id].code {
            Code::Binary { op, x, w } if op == wanted && self.0[id].dtype == DType::F32 => Some((x, w)),
            _ => None,
        };
        let turned = found.filter(|_| matches!(wanted, Binary::Add | Binary::Mul)).map(|(x, w)| (w, x));
        found.into_iter().chain(turned)
    }

    fn is_number(&self, id: InstrId) -> bool {
        match &self.0[id].code {
            Code::Scalar { .. } => true,
            Code::Load { access, .. } => access.class == Class::Uniform,
            _ => false,
        }
    }

    /// `x number`: both.
    fn scaled(&self, id: InstrId) -> impl Iterator<Item = (InstrId, InstrId)> {
        self.binary(id, Binary::Mul).filter(|(_, number)| self.is_number(*number))
    }

    /// `x + (y - x) rate`: all three.
    fn mean(&self, id: InstrId) -> Option<(InstrId, InstrId, InstrId)> {
        self.binary(id, Binary::Add).find_map(|(x, step)| {
            self.scaled(step).find_map(|(difference, rate)| {
                self.binary(difference, Binary::Sub).find_map(|(y, old)| (old == x).then_some((x, y, rate)))
            })
        })
    }

    fn stream(&self, id: InstrId) -> Option<Stream> {
        match &self.0[id].code {
            Code::Load { operand, access } if access.class == Class::Flat => {
                Some(Stream { operand: *operand, access: access.clone() })
            }
            _ => None,
        }
    }
}

impl AdamW {
    fn find(instrs: &[Instr], targets: &[Target]) -> Option<AdamW> {
        if targets.len() != 3 || !targets.iter().all(|t| t.flat && instrs[t.from].dtype == DType::F32) {
            return None;
        }
        let all = Find(instrs);
        let store = |id: InstrId| targets.iter().position(|t| t.from == id);
        let weight = (0..3).find(|k| all.mean(targets[*k].from).is_none())?;
        let new = targets[weight].from;
        for (w, step) in all.binary(new, Binary::Sub) {
            for (sum, lr) in all.scaled(step) {
                for (direction, shrunk) in all.binary(sum, Binary::Add) {
                    let Some((_, decay)) = all.scaled(shrunk).find(|(x, _)| *x == w) else { continue };
                    for (top, bottom) in all.binary(direction, Binary::Div) {
                        let Some((m_new, scale1)) = all.scaled(top).next() else { continue };
                        let Some((root, eps)) =
                            all.binary(bottom, Binary::Add).find(|(_, eps)| all.is_number(*eps))
                        else {
                            continue;
                        };
                        let Code::Unary { op: Unary::Sqrt, x: square } = instrs[root].code else { continue };
                        let (v_new, scale2) = all.scaled(square).next()?;
                        let ((m, g, rate1), (v, gg, rate2)) = (all.mean(m_new)?, all.mean(v_new)?);
                        all.binary(gg, Binary::Mul).find(|(x, y)| *x == g && *y == g)?;
                        let state = |old, new| {
                            let store = store(new)?;
                            Some((all.stream(old)?, store, targets[store].access.clone()))
                        };
                        let numbers = [rate1, rate2, scale1, scale2, eps, decay, lr];
                        return Some(AdamW {
                            g: all.stream(g)?,
                            states: [state(w, new)?, state(m, m_new)?, state(v, v_new)?],
                            numbers: numbers.map(|id| instrs[id].code.clone()),
                        });
                    }
                }
            }
        }
        None
    }

    fn run(&self, env: Env<'_>, range: Range<usize>, chunks: &mut [Chunk<'_>]) -> bool {
        let from = |stream: &Stream, n: usize| n as i64 + stream.access.start(env.scalars);
        let Operand::Bytes { bytes: g, base: g_base } = env.operands[self.g.operand] else { return false };
        let in_place = |(stream, k, to): &(Stream, usize, Access)| match env.operands[stream.operand] {
            Operand::Output(j) => j == *k && stream.access == *to,
            Operand::Bytes { .. } => true,
        };
        if !self.states.iter().all(in_place) {
            return false;
        }
        let mut numbers = [0f32; 7];
        for (to, code) in numbers.iter_mut().zip(&self.numbers) {
            *to = match code {
                Code::Scalar { scalar } => env.scalars[*scalar] as f32,
                Code::Load { operand, access } => match env.operands[*operand] {
                    Operand::Bytes { bytes, base } => {
                        cast_slice::<_, f32>(bytes)[(access.start(env.scalars) - base) as usize]
                    }
                    Operand::Output(_) => return false,
                },
                _ => unreachable!("numbers are scalars or loads of one element"),
            };
        }
        let (g, mut n): (&[f32], usize) = (cast_slice(g), range.start);
        let mut outs: Vec<Option<&mut Chunk<'_>>> = chunks.iter_mut().map(Some).collect();
        let mut states = self
            .states
            .each_ref()
            .map(|(_, k, to)| (outs[*k].take().expect("a store each"), to.start(env.scalars)));
        while n < range.end {
            let len = AT_ONCE.min(range.end - n);
            let [w, m, v] = &mut states;
            let mut parts = [w, m, v].map(|(chunk, start)| {
                let at = (n as i64 + *start - chunk.base) as usize;
                &mut cast_slice_mut::<_, f32>(&mut *chunk.bytes)[at..at + len]
            });
            for ((stream, ..), part) in self.states.iter().zip(&mut parts) {
                if let Operand::Bytes { bytes, base } = env.operands[stream.operand] {
                    let at = (from(stream, n) - base) as usize;
                    part.copy_from_slice(&cast_slice(bytes)[at..at + len]);
                }
            }
            let at = (from(&self.g, n) - g_base) as usize;
            let [w, m, v] = parts;
            kernels::adamw(numbers, &g[at..at + len], w, m, v);
            n += len;
        }
        true
    }
}
