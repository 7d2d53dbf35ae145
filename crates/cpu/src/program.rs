//! A group's expressions compiled for one order of iteration: a list of instructions, each of which
//! fills a block of elements. Registers are blocks of memory that fit the first cache together.

use std::collections::HashMap;

use wgrad_graph::{Binary, Body, DType, Expr, ExprId, Store, Unary};

use crate::access::{Access, Class, Turned};
use crate::digits::Digits;
use crate::kernels::{self, Pair};
use crate::known::Known;

mod pairs;

/// Elements of a block.
pub(crate) const BLOCK: usize = 1024;

/// Elements from which reading columns element by element is slower than turning a copy.
const TURN_ELEMS: usize = 1 << 14;

/// Index of an instruction.
pub(crate) type InstrId = usize;

/// What an instruction computes; operands are earlier instructions.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    Load {
        operand: usize,
        access: Access,
    },
    Gather {
        operand: usize,
        access: Access,
        at: InstrId,
        stride: i64,
        size: usize,
    },
    Scalar {
        scalar: usize,
    },
    Coord {
        access: Access,
    },
    Random {
        access: Access,
        per_row: u32,
        scalars: [u16; 4],
    },
    Valid {
        access: Access,
    },
    Unary {
        op: Unary,
        x: InstrId,
    },
    Binary {
        op: Binary,
        x: InstrId,
        w: InstrId,
    },
    /// `second(first(x, w), z)`, or `second(z, first(x, w))`.
    Pair {
        pair: Pair,
        x: InstrId,
        w: InstrId,
        z: InstrId,
    },
    Select {
        c: InstrId,
        x: InstrId,
        w: InstrId,
    },
    Cast {
        x: InstrId,
    },
}

/// Where an instruction's block lies.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// In a register.
    Slot(usize),
    /// In a register that is filled once for a whole run.
    Uniform(usize),
    /// In the output of a store, at the elements that the block stores; in the register where the
    /// output is still to be read.
    Output(usize, usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) code: Code,
    pub(crate) dtype: DType,
    pub(crate) place: Place,
    /// Whether all that read the block need one element of it where it is one number throughout.
    pub(crate) thin: bool,
    /// The elements of its index, where the program has them by digits.
    pub(crate) table: Option<usize>,
    /// The last instruction that reads the block; `usize::MAX` where a store or the caller reads it.
    pub(crate) last_use: usize,
}

impl Instr {
    fn reads(&self) -> [Option<InstrId>; 3] {
        match self.code {
            Code::Load { .. }
            | Code::Scalar { .. }
            | Code::Coord { .. }
            | Code::Random { .. }
            | Code::Valid { .. } => [None; 3],
            Code::Gather { at, .. } => [Some(at), None, None],
            Code::Unary { x, .. } | Code::Cast { x } => [Some(x), None, None],
            Code::Binary { x, w, .. } => [Some(x), Some(w), None],
            Code::Pair { x, w, z, .. } => [Some(x), Some(w), Some(z)],
            Code::Select { c, x, w } => [Some(c), Some(x), Some(w)],
        }
    }
}

/// Where a store's elements go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) from: InstrId,
    pub(crate) access: Access,
    pub(crate) flat: bool,
}

/// Instructions over a space of `elems` elements.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) elems: usize,
    pub(crate) instrs: Vec<Instr>,
    pub(crate) slots: usize,
    /// Bytes of a register: a block of the widest dtype used.
    pub(crate) slot_bytes: usize,
    pub(crate) targets: Vec<Target>,
    /// The instructions whose blocks the caller of a run wants to see.
    pub(crate) roots: Vec<InstrId>,
    /// Whether every store rises with the position, so that parts of the space own parts of memory.
    pub(crate) splits: bool,
    /// Indices whose elements are computed for a block at once.
    pub(crate) tables: Vec<Digits>,
    /// What the program is, where a loop of its own runs it.
    pub(crate) known: Option<Known>,
}

/// The space that a program iterates over.
#[derive(Clone, Debug)]
pub(crate) struct Space<'a> {
    /// Sizes as the group has them.
    pub(crate) dims: &'a [usize],
    /// The order in which its axes are iterated, outermost first.
    pub(crate) order: &'a [usize],
    /// The operand number of accumulator 0, whose elements lie in the row-major order of `dims` without
    /// the last `spread` axes.
    pub(crate) accs: usize,
    /// Trailing axes along which an accumulator is one number.
    pub(crate) spread: usize,
}

impl Program {
    /// The instructions that `roots` and `stores` need.
    pub(crate) fn new(body: &Body, roots: &[ExprId], stores: &[Store], space: &Space<'_>) -> Program {
        let elems = space.dims.iter().product();
        let targets: Vec<(ExprId, Access)> = stores
            .iter()
            .map(|s| (s.x, Access::new(&body.indices[usize::from(s.index)], Some(space.order))))
            .collect();
        let mut needed = vec![false; body.exprs.len()];
        roots.iter().chain(targets.iter().map(|t| &t.0)).for_each(|x| needed[*x as usize] = true);
        for id in (0..body.exprs.len()).rev() {
            if needed[id] {
                operands_of(&body.exprs[id].0).into_iter().flatten().for_each(|x| needed[x as usize] = true);
            }
        }
        let mut ids: HashMap<ExprId, InstrId> = HashMap::new();
        let mut instrs: Vec<Instr> = Vec::new();
        for (id, (expr, dtype)) in body.exprs.iter().enumerate().filter(|(id, _)| needed[*id]) {
            let code = code(expr, body, space, &ids);
            ids.insert(id as ExprId, instrs.len());
            instrs.push(Instr {
                code,
                dtype: *dtype,
                place: Place::Slot(0),
                thin: true,
                table: None,
                last_use: 0,
            });
        }
        let targets: Vec<Target> = targets
            .into_iter()
            .map(|(x, access)| Target {
                from: ids[&x],
                flat: access.class == Class::Flat || elems == 1,
                access,
            })
            .collect();
        let mut targets = targets;
        let mut roots: Vec<InstrId> = roots.iter().map(|x| ids[x]).collect();
        let known = Known::find(&instrs, &targets).filter(|_| roots.is_empty());
        pairs::join(&mut instrs, &mut roots, &mut targets);
        let splits = targets.iter().all(|t| t.flat || t.access.is_monotonic());
        let (slots, slot_bytes) = place(&mut instrs, &roots, &targets);
        let mut tables: Vec<Digits> = Vec::new();
        for instr in &mut instrs {
            let (Code::Load { access, .. } | Code::Coord { access } | Code::Valid { access }) = &instr.code
            else {
                continue;
            };
            let Some(digits) = access.digits().filter(|_| elems <= i32::MAX as usize) else { continue };
            instr.table = Some(tables.iter().position(|t| *t == digits).unwrap_or_else(|| {
                tables.push(digits);
                tables.len() - 1
            }));
        }
        Program { elems, instrs, slots, slot_bytes, targets, roots, splits, tables, known }
    }

    /// Makes loads that read columns of large values read copies instead, which follow the operands
    /// and accumulators in order; what is to be copied.
    pub(crate) fn turn(&mut self, first: usize, accs: usize) -> Vec<(usize, DType, Turned)> {
        let mut turned: Vec<(usize, DType, Turned)> = Vec::new();
        if self.elems < TURN_ELEMS {
            return turned;
        }
        for instr in &mut self.instrs {
            let Code::Load { operand, access } = &mut instr.code else { continue };
            let Some(found) = access.turned().filter(|_| *operand < accs) else { continue };
            self.known = None;
            let wanted = (*operand, instr.dtype, found);
            let at = turned.iter().position(|t| *t == wanted).unwrap_or_else(|| {
                turned.push(wanted);
                turned.len() - 1
            });
            (*operand, *access) = (first + at, Access::flat(&[self.elems], None));
            instr.table = None;
        }
        turned
    }

    /// Whether each of `rows` equal parts of the positions reads its own part of operand `operand`
    /// alone, whose parts have `width` elements.
    pub(crate) fn is_local(&self, operand: usize, rows: usize, width: usize) -> bool {
        self.elems.is_multiple_of(rows)
            && self.instrs.iter().all(|instr| match &instr.code {
                Code::Load { operand: o, access } if *o == operand => access.is_local(rows, width),
                Code::Gather { operand: o, .. } => *o != operand,
                _ => true,
            })
    }

    /// Whether operand `operand` is only read where store `k` writes, so that both may be one memory.
    pub(crate) fn in_place(&self, operand: usize, k: usize) -> bool {
        self.instrs.iter().all(|instr| match &instr.code {
            Code::Load { operand: o, access } if *o == operand => *access == self.targets[k].access,
            Code::Gather { operand: o, .. } => *o != operand,
            _ => true,
        })
    }

    /// Whether every element that scalars lead to exists; `elems` are those of operands and stores.
    pub(crate) fn fits(&self, scalars: &[f64], operands: &[usize], stores: &[usize]) -> bool {
        let loads = self.instrs.iter().all(|instr| match &instr.code {
            Code::Load { operand, access } if access.is_dynamic() => {
                access.fits(scalars, operands.get(*operand).copied().unwrap_or(0))
            }
            _ => true,
        });
        loads && self.targets.iter().zip(stores).all(|(t, elems)| t.access.fits(scalars, *elems))
    }

    /// A measure of the work: instructions times elements.
    pub(crate) fn work(&self) -> usize {
        match self.known {
            // Little but moving memory.
            Some(Known::Rows(_)) => self.elems / 2,
            _ => self.elems * self.instrs.len().max(1),
        }
    }
}

fn operands_of(expr: &Expr) -> [Option<ExprId>; 3] {
    match *expr {
        Expr::Load { .. }
        | Expr::Scalar { .. }
        | Expr::Coord { .. }
        | Expr::Random { .. }
        | Expr::Valid { .. }
        | Expr::Acc { .. } => [None; 3],
        Expr::Gather { at, .. } => [Some(at), None, None],
        Expr::Unary { x, .. } | Expr::Cast { x } => [Some(x), None, None],
        Expr::Binary { x, w, .. } => [Some(x), Some(w), None],
        Expr::Select { c, x, w } => [Some(c), Some(x), Some(w)],
    }
}

fn code(expr: &Expr, body: &Body, space: &Space<'_>, ids: &HashMap<ExprId, InstrId>) -> Code {
    let access = |index: u16| Access::new(&body.indices[usize::from(index)], Some(space.order));
    match *expr {
        Expr::Load { operand, index } => Code::Load { operand: usize::from(operand), access: access(index) },
        Expr::Gather { operand, index, at, stride, size } => {
            Code::Gather { operand: usize::from(operand), access: access(index), at: ids[&at], stride, size }
        }
        Expr::Scalar { scalar } => Code::Scalar { scalar: usize::from(scalar) },
        Expr::Coord { index } => Code::Coord { access: access(index) },
        Expr::Random { index, per_row, scalars } => Code::Random { access: access(index), per_row, scalars },
        Expr::Valid { index } => Code::Valid { access: access(index) },
        Expr::Unary { op, x } => Code::Unary { op, x: ids[&x] },
        Expr::Binary { op, x, w } => Code::Binary { op, x: ids[&x], w: ids[&w] },
        Expr::Select { c, x, w } => Code::Select { c: ids[&c], x: ids[&x], w: ids[&w] },
        Expr::Cast { x } => Code::Cast { x: ids[&x] },
        Expr::Acc { acc } => Code::Load {
            operand: space.accs + usize::from(acc),
            access: match space.spread {
                0 => Access::flat(space.dims, Some(space.order)),
                spread => Access::spread(space.dims, spread, space.order),
            },
        },
    }
}

/// Which instructions give one number throughout a run.
fn uniform(instrs: &[Instr]) -> Vec<bool> {
    let mut uniform: Vec<bool> = Vec::with_capacity(instrs.len());
    for instr in instrs {
        uniform.push(match &instr.code {
            Code::Scalar { .. } => true,
            Code::Load { access, .. } => access.class == Class::Uniform,
            Code::Gather { .. } | Code::Coord { .. } | Code::Random { .. } | Code::Valid { .. } => false,
            _ => instr.reads().into_iter().flatten().all(|x| uniform[x]),
        });
    }
    uniform
}

/// Gives every instruction its place; the number of registers and their bytes.
fn place(instrs: &mut [Instr], roots: &[InstrId], targets: &[Target]) -> (usize, usize) {
    let mut last_use: Vec<usize> = (0..instrs.len()).collect();
    for (i, instr) in instrs.iter().enumerate() {
        instr.reads().into_iter().flatten().for_each(|x| last_use[x] = i);
    }
    roots.iter().chain(targets.iter().map(|t| &t.from)).for_each(|x| last_use[*x] = usize::MAX);
    for i in 0..instrs.len() {
        let fine = match instrs[i].code {
            Code::Binary { op, x, .. } => [kernels::takes_same(op, instrs[x].dtype); 3],
            Code::Pair { .. } => [false, true, true],
            _ => [false; 3],
        };
        for (x, fine) in instrs[i].reads().into_iter().zip(fine) {
            if let Some(x) = x {
                instrs[x].thin &= fine;
            }
        }
    }
    roots.iter().chain(targets.iter().map(|t| &t.from)).for_each(|x| instrs[*x].thin = false);
    let uniform = uniform(instrs);
    let mut slots = 0;
    let mut free: Vec<usize> = Vec::new();
    for i in 0..instrs.len() {
        let output = targets.iter().position(|t| t.from == i && t.flat);
        let is_load = matches!(instrs[i].code, Code::Load { .. });
        // What is filled once may not share its register with what comes and goes.
        let mut take = || {
            free.pop_if(|_| !uniform[i]).unwrap_or_else(|| {
                slots += 1;
                slots - 1
            })
        };
        instrs[i].place = match output {
            _ if uniform[i] => Place::Uniform(take()),
            // A load that a register would only pass on still goes through one: it may be borrowed.
            Some(k) if !is_load => Place::Output(k, take()),
            _ => Place::Slot(take()),
        };
        let reads = instrs[i].reads();
        for (j, x) in reads.into_iter().enumerate() {
            if let Some(x) = x
                && last_use[x] == i
                && !reads[..j].contains(&Some(x))
                && let Place::Slot(slot) = instrs[x].place
            {
                free.push(slot);
            }
        }
    }
    instrs.iter_mut().zip(last_use).for_each(|(instr, last)| instr.last_use = last);
    let widest = instrs.iter().map(|i| i.dtype.bytes()).max().unwrap_or(4);
    (slots, widest * BLOCK)
}
