//! What a random program is made of: it depends on its seed and on shapes, never on numbers, so every
//! device records the same one.
//!
//! Numbers stay away from discontinuities: each value carries a bound of its size and the binary digits
//! of its fraction, and only a value that f32 holds exactly meets comparisons, roundings and casts to
//! integers.

mod operations;

use wgrad::{Context, DType, HostTensor, Kept, Param, Pass, Result, Shape, Tensor, grad};

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

struct Program<'a> {
    dice: Dice,
    pass: &'a Pass,
    /// The most elements of a value.
    most: usize,
    values: Vec<V>,
    /// What gradients are taken by.
    leaves: Vec<Tensor>,
    shown: Shown,
    log: Vec<String>,
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
            DType::U8 => {
                let x: Vec<u8> = (0..n).map(|_| self.dice.bits() as u8).collect();
                (HostTensor::new(shape, &x), 255.0, 0)
            }
            _ => {
                let x: Vec<bool> = (0..n).map(|_| self.dice.one_in(2)).collect();
                (HostTensor::new(shape, &x), 1.0, 0)
            }
        };
        Ok(V { t: self.pass.input(host?)?, size, digits })
    }

    /// Indices below `size`.
    fn indices(&mut self, shape: Shape, size: usize) -> Result<Tensor> {
        let x: Vec<i32> = (0..shape.elems()).map(|_| self.dice.below(size) as i32).collect();
        let dtype = self.dice.pick(&[DType::I32, DType::I32, DType::U32, DType::U8]);
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

/// Runs the program of `seed` on `ctx` twice, so that the second run finds its plans.
pub(super) fn run(ctx: &Context, seed: u64, most: usize, log: &mut Vec<String>) -> Result<Shown> {
    let mut dice = Dice(seed ^ 0x5eed);
    let side = 1 + dice.below(6);
    let data: Vec<f32> = (0..side * side).map(|i| (i as f32 * 0.37 + 0.5).sin()).collect();
    let data = HostTensor::new([side, side], &data)?;
    let params = [Param::new(ctx, "a", &data)?, Param::new(ctx, "b", &data)?];
    let state = Kept::new(ctx, &data)?;
    let mut shown = Vec::new();
    for _ in 0..2 {
        let pass = ctx.begin()?;
        let mut p = Program {
            dice: Dice(seed),
            pass: &pass,
            most,
            values: Vec::new(),
            leaves: Vec::new(),
            shown: Vec::new(),
            log: Vec::new(),
        };
        let result = body(&mut p, &params, &state);
        *log = std::mem::take(&mut p.log);
        let later = result?;
        shown.append(&mut p.shown);
        pass.end()?;
        if let Some(plan) = ctx.last_plan() {
            plan.check(ctx.caps()).unwrap_or_else(|why| panic!("{why}\n{plan}"));
        }
        for (i, d) in later.into_iter().enumerate() {
            shown.push((format!("deferred {i}"), d.read()?.to_vec()));
        }
        for x in [params[0].read()?, params[1].read()?, state.read()?] {
            shown.push(("owned".into(), x.to_vec()));
        }
    }
    Ok(shown)
}

fn body(p: &mut Program<'_>, params: &[Param; 2], state: &Kept) -> Result<Vec<wgrad::Deferred<f64>>> {
    for t in [params[0].t(), params[1].t(), state.t()] {
        p.values.push(V { t, size: 1.0, digits: INEXACT });
        p.leaves.push(t);
    }
    let count = 5 + p.dice.below(26) + if p.dice.one_in(10) { 70 } else { 0 };
    for _ in 0..count {
        match p.dice.below(24) {
            0..4 => p.smooth()?,
            4..8 => p.arithmetic()?,
            8..10 => p.stepped()?,
            10..13 => p.integers()?,
            13..16 => p.movement()?,
            16..18 => p.reduction()?,
            18 => p.composite()?,
            19 => p.product()?,
            20 => p.indexed()?,
            21 => {
                let v = p.any();
                p.log.push("read".into());
                p.show("middle", v.t)?;
            }
            22 => {
                let v = p.float()?;
                p.log.push("detach".into());
                p.push(v.t.try_detach()?, v.size, v.digits)?;
            }
            _ => {
                let which = p.dice.below(4);
                p.log.push(format!("update {which}"));
                let owned = |t: Tensor| V { t, size: 1.0, digits: INEXACT };
                match which {
                    0 | 1 => params[which].try_set(p.update(owned(params[which].t()))?)?,
                    2 => state.try_set(p.update(owned(state.t()))?)?,
                    _ => {
                        let [a, b] = [params[0].t().try_detach()?, params[1].t().try_detach()?];
                        params[0].try_set(b)?;
                        params[1].try_set(a)?;
                        state.try_set(a)?;
                    }
                }
                // Handles of what was replaced have ended.
                p.values.retain(|v| v.t.try_out().is_ok());
                p.leaves.retain(|t| t.try_out().is_ok());
                p.values.extend([params[0].t(), params[1].t(), state.t()].map(owned));
                p.leaves.extend([params[0].t(), params[1].t()]);
            }
        }
    }
    let mut later = Vec::new();
    for _ in 0..1 + p.dice.below(3) {
        later.push(p.any().t.deferred());
    }
    let mut loss = p.pass.full([], 0.0);
    for _ in 0..2 + p.dice.below(6) {
        let v = p.float()?;
        let w = p.input(DType::F32, v.t.shape(), false)?;
        loss = loss + (v.t * w.t).sum_all() / v.t.shape().elems().max(1) as f64;
    }
    let by: Vec<Tensor> = (0..6).map(|_| p.leaves[p.dice.below(p.leaves.len())]).collect();
    let by = [&by[..], &[p.values[p.values.len() - 1].t]].concat();
    let by: Vec<Tensor> = by.into_iter().filter(|t| t.dtype().is_float()).collect();
    let grads = grad(loss, &by)?;
    p.log.push("gradients".into());
    if p.dice.one_in(2) {
        later.push(grads[0].deferred());
    }
    for (i, g) in grads.iter().enumerate() {
        p.show(&format!("gradient {i}"), *g)?;
    }
    for i in 0..2 {
        let v = p.any();
        p.show(&format!("end {i}"), v.t)?;
    }
    p.show("loss", loss)?;
    Ok(later)
}
