//! Random graphs.

use super::*;
use wgrad_graph::{Axes, MAX_RANK, Scan, Steps};

type Below<'a> = &'a mut dyn FnMut(usize) -> usize;

/// `v` in the shape `dims`, by cutting, padding or repeating.
fn fit(s: &mut Sketch, v: Val, dims: &[usize], below: Below<'_>) -> Val {
    let n: usize = dims.iter().product();
    let have = s.graph.out(v).shape.elems();
    if have == n {
        return s.to(Op::Reshape, &[v], dims);
    }
    let flat = s.to(Op::Reshape, &[v], &[have]);
    let flat = if have > n {
        let mut steps = Steps::ALL;
        steps.start[0] = below(have - n + 1) as i64;
        s.to(Op::Slice(steps), &[flat], &[n])
    } else if have == 1 && below(2) == 0 {
        s.to(Op::Expand, &[flat], &[n])
    } else {
        let mut lo = [0; MAX_RANK];
        lo[0] = below(n - have + 1) as u32;
        s.to(Op::Pad { lo }, &[flat], &[n])
    };
    s.to(Op::Reshape, &[flat], dims)
}

/// One more value. `exact` graphs hold small integers, so that no step of them rounds; the others
/// round, and have no steps that jump.
fn grow(s: &mut Sketch, vals: &[Val], x: Val, exact: bool, below: Below<'_>) -> Option<Val> {
    let dims = s.dims(x);
    let (rank, dtype) = (dims.len(), s.graph.out(x).dtype);
    let elems: usize = dims.iter().product();
    let other = |s: &mut Sketch, dims: &[usize], dtype: DType, below: Below<'_>| {
        let v = vals[below(vals.len())];
        let v = fit(s, v, dims, below);
        s.cast(v, dtype)
    };
    Some(match below(28) {
        0 | 1 => {
            let smooth = [Unary::Tanh, Unary::Sigmoid, Unary::Sin, Unary::Erf, Unary::Neg, Unary::Cos];
            let steps = [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Relu, Unary::Not, Unary::Floor];
            let op = if exact { steps[below(6)] } else { smooth[below(6)] };
            // What wraps to large numbers would round as a float.
            if !op.row().takes(dtype) || dtype == DType::U32 || op == Unary::Not && dtype == DType::I32 {
                return None;
            }
            s.un(op, x)
        }
        2..=4 => {
            let steps = [Binary::Add, Binary::Sub, Binary::Maximum, Binary::Lt, Binary::And, Binary::Eq];
            let smooth =
                [Binary::Add, Binary::Sub, Binary::Mul, Binary::Maximum, Binary::Minimum, Binary::Add];
            let op = if exact { steps[below(6)] } else { smooth[below(6)] };
            if !op.row().takes(dtype) || op == Binary::Sub && dtype == DType::U32 {
                return None;
            }
            let w = other(s, &dims, dtype, below);
            s.bin(op, x, w)
        }
        5 if exact => {
            let c = other(s, &dims, DType::Bool, below);
            let w = other(s, &dims, dtype, below);
            s.op(Op::Select, &[c, x, w])
        }
        6 if exact => s.cast(x, [DType::F32, DType::I32, DType::Bool, DType::U8, DType::F64][below(5)]),
        6 => s.cast(x, [DType::F32, DType::F64][below(2)]),
        7 => {
            let mut shapes = vec![vec![elems], vec![1, elems], vec![elems, 1]];
            for k in [2, 3, 4] {
                if elems.is_multiple_of(k) && elems > 0 {
                    shapes.push(vec![k, elems / k]);
                    shapes.push(vec![elems / k, 1, k]);
                }
            }
            let at = below(shapes.len());
            s.to(Op::Reshape, &[x], &shapes[at])
        }
        8 | 9 if rank >= 2 => {
            let mut order: Vec<u8> = (0..rank as u8).collect();
            (1..rank).for_each(|i| order.swap(i, below(i + 1)));
            s.permute(x, &order)
        }
        10 if rank < 5 => {
            let mut from = dims.clone();
            let at = below(rank + 1);
            from.insert(at, 1);
            let v = s.to(Op::Reshape, &[x], &from);
            from[at] = 1 + below(3);
            s.to(Op::Expand, &[v], &from)
        }
        11 | 12 => {
            let mut steps = Steps::ALL;
            let mut to = dims.clone();
            for i in 0..rank {
                if dims[i] == 0 {
                    continue;
                }
                let step: i64 = [1, 1, 2, -1, -2][below(5)];
                let start = below(dims[i]);
                let room = if step > 0 { dims[i] - 1 - start } else { start };
                to[i] = 1 + below(room / step.unsigned_abs() as usize + 1);
                (steps.start[i], steps.step[i]) = (start as i64, step);
            }
            if below(12) == 0 && rank > 0 {
                to[0] = 0;
            }
            if below(3) > 0 {
                return Some(s.to(Op::Slice(steps), &[x], &to));
            }
            let part = other(s, &to, dtype, below);
            s.op(Op::SliceAssign(steps), &[x, part])
        }
        13 => {
            let mut lo = [0; MAX_RANK];
            let mut to = dims.clone();
            for i in 0..rank {
                lo[i] = below(3) as u32;
                to[i] += lo[i] as usize + below(2);
            }
            s.to(Op::Pad { lo }, &[x], &to)
        }
        25 if rank > 0 => {
            let axis = below(rank);
            if dims[axis] == 0 {
                return None;
            }
            let size = 1 + below(dims[axis].min(4));
            let dilation = 1 + if size > 1 { below((dims[axis] - 1) / (size - 1)) } else { 0 };
            let op = Op::Windows {
                axis: axis as u8,
                size: size as u32,
                step: 1 + below(3) as u32,
                dilation: dilation as u32,
            };
            s.op(op, &[x])
        }
        26 if rank > 1 => {
            let mut at = [below(rank), below(rank - 1)];
            at[1] += usize::from(at[1] >= at[0]);
            let mut to = dims.clone();
            to[at[1]] = to[at[0]];
            let x = if to == dims { x } else { other(s, &to, dtype, below) };
            s.op(Op::Diagonal { a: at[0] as u8, b: at[1] as u8 }, &[x])
        }
        14 if rank > 0 => {
            let axis = below(rank);
            let mut parts = vec![x];
            for _ in 0..below(4) {
                let mut to = dims.clone();
                to[axis] = 1 + below(3);
                parts.push(other(s, &to, dtype, below));
            }
            s.op(Op::Concat { axis: axis as u8 }, &parts)
        }
        15 | 16 if rank > 0 => {
            let axis = below(rank);
            if dims[axis] == 0 {
                return None;
            }
            let mut to = dims.clone();
            to[axis] = 1 + below(dims[axis]);
            let start = s.scalar(DType::U32, below(dims[axis] - to[axis] + 1) as f64);
            if below(2) == 0 {
                return Some(s.to(Op::SliceAt { axis: axis as u8 }, &[x, start], &to));
            }
            let part = other(s, &to, dtype, below);
            s.op(Op::SliceAssignAt { axis: axis as u8 }, &[x, part, start])
        }
        17 | 18 if dtype.bytes() >= 4 => {
            let axes: Axes = (0..rank).filter(|_| below(2) == 0).collect();
            let kind = [Reduce::Sum, Reduce::Max, Reduce::Min, Reduce::Sum][below(4)];
            s.op(Op::Reduce { kind, axes }, &[x])
        }
        19 if exact && dtype.bytes() >= 4 && rank > 0 => {
            let axis = below(rank);
            if dims[axis] == 0 {
                return None;
            }
            s.op(Op::ArgReduce { max: below(2) == 0, axis: axis as u8 }, &[x])
        }
        20 if rank >= 2 && dtype.is_float() => {
            let mut to = dims.clone();
            (to[rank - 2], to[rank - 1]) = (dims[rank - 1], 1 + below(3));
            let b = other(s, &to, dtype, below);
            let b = if exact { s.un(Unary::Sign, b) } else { s.un(Unary::Tanh, b) };
            s.op(Op::MatMul, &[x, b])
        }
        21 if exact && rank > 0 && dims.iter().all(|d| *d > 0) => {
            let axis = below(rank);
            let mut to = dims.clone();
            to[axis] = 1 + below(3);
            let idx: Vec<i32> = (0..to.iter().product()).map(|_| below(dims[axis]) as i32).collect();
            let idx = s.input(&to, &idx);
            s.op(Op::Gather { axis: axis as u8 }, &[x, idx])
        }
        22 if rank > 0 && dtype.bytes() >= 4 => {
            let axis = below(rank);
            let mut to = dims.clone();
            to[axis] = 1 + below(4);
            let idx: Vec<u32> = (0..elems).map(|_| below(to[axis]) as u32).collect();
            let idx = s.input(&dims, &idx);
            let kind = [Reduce::Sum, Reduce::Max, Reduce::Min][below(3)];
            s.to(Op::Scatter { axis: axis as u8, kind }, &[idx, x], &to)
        }
        23 if exact && elems > 0 => {
            let keys: Vec<Val> = (0..4).map(|_| s.scalar(DType::U32, below(1 << 31) as f64)).collect();
            let bits = s.to(Op::Random, &keys, &dims);
            let shift = s.scalar(DType::U32, 28.0);
            let shift = s.like(shift, &dims);
            s.bin(Binary::Shr, bits, shift)
        }
        24 if rank > 0 => {
            let dtype = if exact { DType::I32 } else { DType::F32 };
            let axis = below(rank) as u8;
            s.graph.add(Op::Iota { axis }, &[], Some(Shape::new(&dims)), Some(dtype)).unwrap()
        }
        27 if rank > 0 && dtype.bytes() >= 4 => {
            let axis = below(rank) as u8;
            if exact && below(3) == 0 {
                return Some(s.op(Op::ArgSort { axis, descending: below(2) == 0 }, &[x]));
            }
            let kind = match exact {
                true => [Scan::Sum, Scan::ArgMax, Scan::ArgMin][below(3)],
                false => [Scan::Sum, Scan::Sum, Scan::Recur][below(3)],
            };
            let ins = if kind == Scan::Recur { vec![s.un(Unary::Tanh, x), x] } else { vec![x] };
            s.op(Op::Scan { kind, axis, reverse: below(2) == 0 }, &ins)
        }
        _ => return None,
    })
}

fn one(seed: u64) {
    let mut below = rng(seed);
    let exact = seed.is_multiple_of(2);
    let mut s = Sketch::default();
    let mut vals: Vec<Val> = Vec::new();
    for _ in 0..2 + below(3) {
        let rank = below(4);
        let dims: Vec<usize> = (0..rank).map(|_| [1, 2, 3, 4, 3, 2, 70][below(7)]).collect();
        let n: usize = dims.iter().product();
        vals.push(match below(5) {
            0 if exact => s.input(&dims, &(0..n).map(|_| below(9) as i32 - 4).collect::<Vec<_>>()),
            1 if exact => s.input(&dims, &(0..n).map(|_| below(2) == 0).collect::<Vec<_>>()),
            2 if exact => s.input(&dims, &(0..n).map(|_| below(9) as u8).collect::<Vec<_>>()),
            _ if exact => s.input(&dims, &(0..n).map(|_| below(9) as f32 - 4.0).collect::<Vec<_>>()),
            _ => s.x(&dims, seed * 31 + vals.len() as u64),
        });
    }
    for _ in 0..3 + below(14) {
        let at = if below(2) == 0 { vals.len() - 1 - below(3.min(vals.len())) } else { below(vals.len()) };
        if let Some(v) = grow(&mut s, &vals.clone(), vals[at], exact, &mut below)
            && s.graph.out(v).shape.elems() <= 3000
        {
            vals.push(v);
        }
    }
    let mut roots = vec![vals[vals.len() - 1]];
    for _ in 0..below(3) {
        roots.push(vals[below(vals.len())]);
    }
    let kinds = [LeafKind::Buffer, LeafKind::Donated, LeafKind::Upload, LeafKind::Donated];
    let kinds: Vec<LeafKind> = s.data.iter().map(|_| kinds[below(4)]).collect();
    let into: Vec<Option<u32>> =
        roots.iter().map(|_| (below(2) == 0).then(|| below(kinds.len()) as u32)).collect();
    s.check_as(&roots, &into, &kinds, if exact { 1e-6 } else { 2e-5 });
}

#[test]
fn random_graphs_agree_with_the_oracle_and_with_themselves_unfused() {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|s| s.parse().ok()) {
        return one(seed);
    }
    for seed in 0..3000 {
        let result = std::panic::catch_unwind(|| one(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
