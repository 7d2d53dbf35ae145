//! Two operations in one loop: the block between them is neither written nor read again. Both round as they do
//! apart.

use wgrad_graph::{Binary, DType};

use super::{Code, Instr, InstrId, Target, uniform};
use crate::kernels::Pair;

/// Joins each operation on two floats with the one that alone reads its result, where loops for both exist.
pub(super) fn join(instrs: &mut Vec<Instr>, roots: &mut [InstrId], targets: &mut [Target]) {
    let mut uses = vec![0usize; instrs.len()];
    let seen = roots.iter().copied().chain(targets.iter().map(|t| t.from));
    let reads = instrs.iter().flat_map(|i| i.reads().into_iter().flatten());
    reads.chain(seen).for_each(|x| uses[x] += 1);
    let uniform = uniform(instrs);
    let mut gone = vec![false; instrs.len()];
    for j in 0..instrs.len() {
        let Code::Binary { op: second, x, w } = instrs[j].code else { continue };
        if uniform[j] || instrs[j].dtype != DType::F32 {
            continue;
        }
        for (inner, z, flipped) in [(x, w, false), (w, x, true)] {
            let Code::Binary { op: first, x, w } = instrs[inner].code else { continue };
            let squared = z == inner && second == Binary::Mul;
            let alone = uses[inner] == 1 + usize::from(squared)
                && !uniform[inner]
                && instrs[inner].dtype == DType::F32;
            let pair = if squared { Pair::squared(first) } else { Pair::new(first, second, flipped) };
            if let Some(pair) = pair.filter(|_| alone) {
                // What is the same throughout comes second where the order does not matter.
                let (x, w) = if uniform[x] && pair.commutes() { (w, x) } else { (x, w) };
                instrs[j].code = Code::Pair { pair, x, w, z: if squared { w } else { z } };
                gone[inner] = true;
                break;
            }
        }
    }
    let mut number = 0;
    let numbers: Vec<InstrId> = gone
        .iter()
        .map(|gone| {
            number += usize::from(!gone);
            number.saturating_sub(1)
        })
        .collect();
    let mut gone = gone.into_iter();
    instrs.retain(|_| !gone.next().unwrap_or(false));
    instrs.iter_mut().for_each(|instr| instr.renumber(&numbers));
    roots.iter_mut().for_each(|x| *x = numbers[*x]);
    targets.iter_mut().for_each(|t| t.from = numbers[t.from]);
}

impl Instr {
    fn renumber(&mut self, numbers: &[InstrId]) {
        let with = |all: &mut [&mut InstrId]| all.iter_mut().for_each(|x| **x = numbers[**x]);
        match &mut self.code {
            Code::Load { .. }
            | Code::Scalar { .. }
            | Code::Coord { .. }
            | Code::Random { .. }
            | Code::Valid { .. } => {}
            Code::Gather { at, .. } => with(&mut [at]),
            Code::Unary { x, .. } | Code::Cast { x } => with(&mut [x]),
            Code::Binary { x, w, .. } => with(&mut [x, w]),
            Code::Pair { x, w, z, .. } => with(&mut [x, w, z]),
            Code::Select { c, x, w } => with(&mut [c, x, w]),
        }
    }
}
