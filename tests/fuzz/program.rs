//! What a random program is made of: it depends on its genes and on shapes, never on numbers, so every
//! device records the same one. Each gene is one operation, and any genes are a program: so a failing
//! program can be cut down gene by gene.
//!
//! Numbers stay away from discontinuities: each value carries a bound of its size and the binary digits
//! of its fraction, and only a value that f32 holds exactly meets comparisons, roundings and casts to
//! integers.

mod halves;
mod layers;
mod lines;
mod operations;
mod systems;

use std::sync::Arc;

use wgrad::{Context, DType, HostTensor, Kept, Param, Pass, Result, Shape, Tensor, grad};
use wgrad_graph::Plan;

/// Binary digits of a fraction that f32 does not hold.
const INEXACT: i32 = 99;

/// A small generator (splitmix64), so that a seed means the same program for ever.
struct Dice(u64);

impl Dice {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A recorded value, the most that its elements measure, and how many binary digits their fractions have.
#[derive(Copy, Clone)]
struct V {
    t: Tensor,
    size: f64,
    digits: i32,
}

impl V {
    fn exact(&self) -> bool {
        self.digits < INEXACT
    }
}

/// What a program showed: a label, and the elements.
pub(super) type Shown = Vec<(String, Vec<f64>)>;

/// A random program.
#[derive(Clone, Debug)]
pub(super) struct Genes {
    /// Sizes of owned values, and what is asked for at the end.
    pub(super) frame: u64,
    /// One operation each.
    pub(super) body: Vec<u64>,
}

/// What running a program tells.
#[derive(Default)]
pub(super) struct Told {
    pub(super) shown: Shown,
    /// The operations, in words.
    pub(super) log: Vec<String>,
    /// The plans that were run.
    pub(super) plans: Vec<Arc<Plan>>,
}

struct Program<'a> {
    dice: Dice,
    pass: &'a Pass,
    /// The most elements of a value.
    most: usize,
    values: Vec<V>,
    /// What gradients are taken by.
    leaves: Vec<Tensor>,
    shown: Shown,
    log: &'a mut Vec<String>,
    /// The plans of reads in the middle.
    plans: Vec<Arc<Plan>>,
    /// How far all inexact inputs are moved, each by its own pattern; `Some` takes whatever gradients
    /// do not see (detaching, updates) out of the program.
    shift: Option<Tensor>,
}

impl Program<'_> {
    fn shape(&mut self) -> Shape {
        let rank = if self.dice.one_in(20) { 8 } else { self.dice.below(5) };
        let large = self.most > 1000 && self.dice.one_in(8);
        let mut dims = Vec::new();
        for _ in 0..rank {
            let small: &[usize] = if rank == 8 { &[1, 1, 2, 2, 3] } else { &[1, 1, 2, 3, 4, 5, 7, 8] };
            let size = if self.dice.one_in(60) { 0 } else { self.dice.pick(small) };
            dims.push(if large && rank < 4 && self.dice.one_in(2) {
                self.dice.pick(&[31, 33, 65, 129, 257, 300])
            } else {
                size
            });
        }
        while dims.iter().product::<usize>() > self.most {
            dims.pop();
        }
        Shape::new(&dims)
    }

    /// New data; floats are multiples of a quarter up to 2, or anything in between.
    fn input(&mut self, dtype: DType, shape: Shape, exact: bool) -> Result<V> {
        let n = shape.elems();
        let (host, size, digits) = match dtype {
            DType::F32 => {
                let mut x = Vec::with_capacity(n);
                for _ in 0..n {
                    x.push(if exact {
                        self.dice.below(17) as f32 / 4.0 - 2.0
                    } else {
                        self.dice.below(1 << 20) as f32 / (1 << 18) as f32 - 2.0
                    });
                }
                (HostTensor::new(shape, &x), 2.0, if exact { 2 } else { INEXACT })
            }
            DType::I32 => {
                let x: Vec<i32> = (0..n).map(|_| self.dice.below(19) as i32 - 9).collect();
                (HostTensor::new(shape, &x), 9.0, 0)
            }
            DType::U32 => {
                let x: Vec<u32> = (0..n).map(|_| self.dice.bits() as u32).collect();
                (HostTensor::new(shape, &x), 5e9, 0)
            }
            DType::I64 => {
                let x: Vec<i64> = (0..n).map(|_| self.dice.bits() as i64 >> self.dice.below(64)).collect();
                (HostTensor::new(shape, &x), 1e19, 0)
            }
            DType::U8 => {
                let x: Vec<u8> = (0..n).map(|_| self.dice.bits() as u8).collect();
                (HostTensor::new(shape, &x), 255.0, 0)
            }
            DType::Bool => {
                let x: Vec<bool> = (0..n).map(|_| self.dice.one_in(2)).collect();
                (HostTensor::new(shape, &x), 1.0, 0)
            }
            other => unreachable!("programs have no {other}"),
        };
        let mut t = self.pass.input(host?)?;
        if let Some(shift) = self.shift
            && digits == INEXACT
        {
            let pattern: Vec<f64> = (0..n).map(|i| (i as f64 * 2.39 + size).sin()).collect();
            t = t.try_add(self.pass.input(HostTensor::new(shape, &pattern)?.cast(dtype))?.try_mul(shift)?)?;
        }
        Ok(V { t, size, digits })
    }

    /// Indices below `size`.
    fn indices(&mut self, shape: Shape, size: usize) -> Result<Tensor> {
        let x: Vec<i32> = (0..shape.elems()).map(|_| self.dice.below(size) as i32).collect();
        let dtype = self.dice.pick(&[DType::I32, DType::I32, DType::U32, DType::I64, DType::U8]);
        let dtype = if size > 255 { DType::I32 } else { dtype };
        let idx = self.pass.input(HostTensor::new(shape, &x)?.cast(dtype))?;
        // Sometimes computed, so that indices are fused too.
        if self.dice.one_in(3) && dtype != DType::U8 { idx.try_add(0) } else { Ok(idx) }
    }

    fn any(&mut self) -> V {
        let n = self.values.len();
        let at = if self.dice.one_in(2) { n - 1 - self.dice.below(n.min(3)) } else { self.dice.below(n) };
        self.values[at]
    }

    fn float(&mut self) -> Result<V> {
        for _ in 0..6 {
            let v = self.any();
            if v.t.dtype().is_float() {
                return Ok(v);
            }
        }
        let shape = self.shape();
        let exact = self.dice.one_in(2);
        let v = self.input(DType::F32, shape, exact)?;
        self.leaves.push(v.t);
        Ok(v)
    }

    fn exact(&mut self) -> Result<V> {
        for _ in 0..6 {
            let v = self.float()?;
            if v.exact() {
                return Ok(v);
            }
        }
        let shape = self.shape();
        let v = self.input(DType::F32, shape, true)?;
        self.leaves.push(v.t);
        Ok(v)
    }

    /// Adds a value, made small enough to compute on.
    fn push(&mut self, t: Tensor, size: f64, digits: i32) -> Result<()> {
        if t.shape().elems() > self.most {
            return Ok(());
        }
        let mut v = V { t, size, digits };
        if !t.dtype().is_float() {
            v.digits = 0;
        } else {
            if size > 4.0 {
                let by = (size / 4.0).log2().ceil() as i32;
                v = V { t: t.try_mul(0.5f64.powi(by))?, size: 4.0, digits: digits + by };
            }
            if v.digits > 16 {
                v.digits = INEXACT;
            }
        }
        self.values.push(v);
        Ok(())
    }

    fn partner(&mut self, x: V) -> Result<V> {
        let dtype = x.t.dtype();
        let shape = x.t.shape();
        if shape.rank() > 0 && self.dice.one_in(8) {
            // The value itself, read at two places.
            let a = self.dice.below(shape.rank());
            let square = shape.rank() > 1 && shape[shape.rank() - 1] == shape[shape.rank() - 2];
            let t = if square { x.t.try_t()? } else { x.t.try_flip(a as i32)? };
            return Ok(V { t, ..x });
        }
        for _ in 0..4 {
            let w = self.any();
            if w.t.dtype() == dtype && shape.broadcast(&w.t.shape()).is_some() {
                return Ok(w);
            }
        }
        // A part of the shape, with axes of size 1.
        let drop = self.dice.below(shape.rank() + 1);
        let mut dims = shape.dims()[drop..].to_vec();
        for d in &mut dims {
            if self.dice.one_in(3) {
                *d = 1;
            }
        }
        let exact = x.exact();
        let v = self.input(dtype, Shape::new(&dims), exact)?;
        if dtype.is_float() {
            self.leaves.push(v.t);
        }
        Ok(v)
    }
}

/// Runs the program on `ctx` twice, so that the second run finds its plans.
pub(super) fn run(ctx: &Context, genes: &Genes, most: usize, told: &mut Told) -> Result<()> {
    let mut dice = Dice(genes.frame ^ 0x5eed);
    let side = 1 + dice.below(6);
    let data: Vec<f32> = (0..side * side).map(|i| (i as f32 * 0.37 + 0.5).sin()).collect();
    let data = HostTensor::new([side, side], &data)?;
    let params = [Param::new(ctx, "a", &data)?, Param::new(ctx, "b", &data)?];
    let state = Kept::new(ctx, &data)?;
    for _ in 0..2 {
        told.log.clear();
        let pass = ctx.begin()?;
        let mut p = Program {
            dice: Dice(genes.frame),
            pass: &pass,
            most,
            values: Vec::new(),
            leaves: Vec::new(),
            shown: Vec::new(),
            log: &mut told.log,
            plans: Vec::new(),
            shift: None,
        };
        let result = p.body(&genes.body, &params, &state).and_then(|()| p.end(genes.frame, &params, &state));
        told.plans.append(&mut p.plans);
        let later = result?;
        told.shown.append(&mut p.shown);
        pass.end()?;
        if let Some(plan) = ctx.last_plan() {
            plan.check(ctx.caps()).unwrap_or_else(|why| panic!("{why}\n{plan}"));
            told.plans.push(plan);
        }
        for (i, d) in later.into_iter().enumerate() {
            told.shown.push((format!("deferred {i}"), d.read()?.to_vec()));
        }
        for x in [params[0].read()?, params[1].read()?, state.read()?] {
            told.shown.push(("owned".into(), x.to_vec()));
        }
    }
    Ok(())
}

/// The loss of the program with its inputs moved by `shift`, and the loss's derivative by `shift`.
pub(super) fn loss_at(ctx: &Context, genes: &Genes, most: usize, shift: f64) -> Result<[f64; 2]> {
    let data = HostTensor::new([3, 3], &[0.4f32, -0.2, 0.9, 0.1, -0.7, 0.3, 0.8, -0.5, 0.6])?;
    let params = [Param::new(ctx, "a", &data)?, Param::new(ctx, "b", &data)?];
    let state = Kept::new(ctx, &data)?;
    ctx.pass(|pass| {
        let shift = pass.input(HostTensor::new([], &[shift])?.cast(DType::F32))?;
        let mut p = Program {
            dice: Dice(genes.frame),
            pass,
            most,
            values: Vec::new(),
            leaves: Vec::new(),
            shown: Vec::new(),
            log: &mut Vec::new(),
            plans: Vec::new(),
            shift: Some(shift),
        };
        p.body(&genes.body, &params, &state)?;
        p.dice = Dice(genes.frame);
        let loss = p.loss()?;
        let slope = grad(loss, &[shift])?[0];
        Ok([loss.item()?, slope.item()?])
    })
}

impl Program<'_> {
    fn body(&mut self, genes: &[u64], params: &[Param; 2], state: &Kept) -> Result<()> {
        for t in [params[0].t(), params[1].t(), state.t()] {
            self.values.push(V { t, size: 1.0, digits: INEXACT });
            self.leaves.push(t);
        }
        for gene in genes {
            self.dice = Dice(*gene);
            self.step(params, state)?;
        }
        Ok(())
    }

    fn step(&mut self, params: &[Param; 2], state: &Kept) -> Result<()> {
        match self.dice.below(40) {
            0..4 => self.smooth(),
            4..8 => self.arithmetic(),
            8..10 => self.stepped(),
            10..13 => self.integers(),
            13..16 => self.movement(),
            16..18 => self.reduction(),
            18 => self.composite(),
            19 => self.product(),
            20 => self.indexed(),
            21 => self.scanned(),
            22 => self.windowed(),
            23..27 => self.linked(),
            27..29 => self.row(),
            29 => self.convolved(),
            30 => self.pooled(),
            31 => {
                if self.dice.one_in(2) {
                    self.contracted()
                } else {
                    self.attended()
                }
            }
            32 => self.solved(),
            33 => self.scattered(),
            34 => self.ordered(),
            35 | 36 => self.chained(),
            37 => {
                let v = self.any();
                self.log.push("read".into());
                self.show("middle", v.t)
            }
            _ if self.shift.is_some() => Ok(()),
            38 => {
                let v = self.float()?;
                self.log.push("detach".into());
                self.push(v.t.try_detach()?, v.size, v.digits)
            }
            _ => self.replace(params, state).map(drop),
        }
    }

    /// Gives an owned value a new version. What reads the old version and the new one, if anything does.
    fn replace(&mut self, params: &[Param; 2], state: &Kept) -> Result<Option<Tensor>> {
        let which = self.dice.below(4);
        self.log.push(format!("update {which}"));
        let owned = |t: Tensor| V { t, size: 1.0, digits: INEXACT };
        let known = self.values.len();
        match which {
            0 | 1 => params[which].try_set(self.update(owned(params[which].t()))?)?,
            2 => state.try_set(self.update(owned(state.t()))?)?,
            _ => {
                let [a, b] = [params[0].t().try_detach()?, params[1].t().try_detach()?];
                params[0].try_set(b)?;
                params[1].try_set(a)?;
                state.try_set(a)?;
            }
        }
        let both = self.values.get(known).map(|v| v.t);
        // Handles of what was replaced have ended.
        self.values.retain(|v| v.t.try_out().is_ok());
        self.leaves.retain(|t| t.try_out().is_ok());
        self.values.extend([params[0].t(), params[1].t(), state.t()].map(owned));
        self.leaves.extend([params[0].t(), params[1].t()]);
        Ok(both)
    }

    fn loss(&mut self) -> Result<Tensor> {
        let mut loss = self.pass.full([], 0.0);
        let mut of = Vec::new();
        for _ in 0..4 + self.dice.below(6) {
            of.push(self.float()?);
        }
        if self.shift.is_some() {
            // Where differences tell whether a rule is right, nearly every operation counts.
            let all = self.values.iter().filter(|v| v.t.dtype().is_float() && !v.exact());
            of.extend(all);
        }
        for v in of {
            let w = self.input(DType::F32, v.t.shape(), false)?;
            loss = loss + (v.t * w.t).sum_all() / v.t.shape().elems().max(1) as f64;
        }
        Ok(loss)
    }

    /// What is asked for at the end; some of it later.
    fn end(&mut self, frame: u64, params: &[Param; 2], state: &Kept) -> Result<Vec<wgrad::Deferred<f64>>> {
        self.dice = Dice(frame);
        let mut later = Vec::new();
        for _ in 0..1 + self.dice.below(3) {
            later.push(self.any().t.deferred());
        }
        let loss = self.loss()?;
        let by: Vec<Tensor> = (0..6).map(|_| self.leaves[self.dice.below(self.leaves.len())]).collect();
        let by = [&by[..], &[self.values[self.values.len() - 1].t]].concat();
        let by: Vec<Tensor> = by.into_iter().filter(|t| t.dtype().is_float()).collect();
        let grads = grad(loss, &by)?;
        self.log.push("gradients".into());
        if self.dice.one_in(2) {
            later.push(grads[0].deferred());
        }
        for (i, g) in grads.iter().enumerate() {
            self.show(&format!("gradient {i}"), *g)?;
        }
        for i in 0..2 {
            let v = self.any();
            self.show(&format!("end {i}"), v.t)?;
        }
        self.show("loss", loss)?;
        // Only the last submission of a pass donates: it gets work of its own.
        for _ in 0..2 {
            later.extend(self.replace(params, state)?.map(|t| t.deferred()));
        }
        let known = self.values.len();
        self.chained()?;
        later.extend(self.values[known..].iter().map(|v| v.t.deferred()));
        Ok(later)
    }
}
