//! Thousands of small random graphs.

use super::*;
use crate::{Axes, Binary, MAX_RANK, Reduce, Scan, Steps, Unary};

/// A random graph and a few of its values.
pub(crate) fn random_graph(seed: u64) -> (Sketch, Vec<Val>) {
    let mut below = rng(seed);
    let mut s = Sketch::new();
    let mut vals: Vec<Val> = Vec::new();
    let dtypes = [DType::F32, DType::F32, DType::F32, DType::I32, DType::Bool, DType::U8];
    for _ in 0..2 + below(3) {
        let rank = below(4);
        let dims: Vec<usize> = (0..rank).map(|_| [1, 2, 3, 4, 3, 2, 5][below(7)]).collect();
        let dtype = dtypes[below(6)];
        vals.push(s.input(&dims, dtype));
    }
    let nodes = 3 + below(14);
    for _ in 0..nodes {
        let at = if below(2) == 0 { vals.len() - 1 - below(3.min(vals.len())) } else { below(vals.len()) };
        let x = vals[at];
        if let Some(v) = grow(&mut s, &vals, x, &mut below)
            && s.graph.out(v).shape.elems() <= 300
        {
            vals.push(v);
        }
    }
    let mut roots = vec![*vals.last().unwrap()];
    for _ in 0..below(3) {
        roots.push(vals[below(vals.len())]);
    }
    (s, roots)
}

/// `v` in the shape `dims`, by cutting, padding or repeating.
fn fit(s: &mut Sketch, v: Val, dims: &[usize], below: &mut impl FnMut(usize) -> usize) -> Val {
    let n: usize = dims.iter().product();
    let have = s.graph.out(v).shape.elems();
    if have == n {
        return s.reshape(v, dims);
    }
    let flat = s.reshape(v, &[have]);
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
    s.reshape(flat, dims)
}

fn grow(s: &mut Sketch, vals: &[Val], x: Val, below: &mut impl FnMut(usize) -> usize) -> Option<Val> {
    let dims = s.dims(x);
    let (rank, dtype) = (dims.len(), s.dtype(x));
    let elems: usize = dims.iter().product();
    let other = |s: &mut Sketch, dims: &[usize], dtype: DType, below: &mut dyn FnMut(usize) -> usize| {
        let v = vals[below(vals.len())];
        let v = fit(s, v, dims, &mut |n| below(n));
        s.cast(v, dtype)
    };
    Some(match below(27) {
        0 | 1 => {
            let op = [Unary::Neg, Unary::Abs, Unary::Exp, Unary::Relu, Unary::Not, Unary::Tanh][below(6)];
            if !op.row().takes(dtype) {
                return None;
            }
            if op == Unary::Exp {
                let t = s.un(Unary::Tanh, x);
                return Some(s.un(op, t));
            }
            s.un(op, x)
        }
        2..=4 => {
            let op =
                [Binary::Add, Binary::Mul, Binary::Sub, Binary::Maximum, Binary::Lt, Binary::And][below(6)];
            if !op.row().takes(dtype) {
                return None;
            }
            let w = other(s, &dims, dtype, below);
            s.bin(op, x, w)
        }
        5 => {
            let c = other(s, &dims, DType::Bool, below);
            let w = other(s, &dims, dtype, below);
            s.op(Op::Select, &[c, x, w])
        }
        6 => s.cast(x, [DType::F32, DType::I32, DType::Bool, DType::U8, DType::U32][below(5)]),
        7 => {
            let mut shapes = vec![vec![elems], vec![1, elems], vec![elems, 1]];
            for k in [2, 3, 4] {
                if elems.is_multiple_of(k) && elems > 0 {
                    shapes.push(vec![k, elems / k]);
                    shapes.push(vec![elems / k, 1, k]);
                    if (elems / k).is_multiple_of(2) {
                        shapes.push(vec![2, elems / k / 2, k]);
                    }
                }
            }
            let at = below(shapes.len());
            s.reshape(x, &shapes[at])
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
            let v = s.reshape(x, &from);
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
        24 if rank > 0 => {
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
        25 if rank > 1 => {
            let mut at = [below(rank), below(rank - 1)];
            at[1] += usize::from(at[1] >= at[0]);
            let mut to = dims.clone();
            to[at[1]] = to[at[0]];
            let x = if to == dims { x } else { other(s, &to, dtype, below) };
            s.op(Op::Diagonal { a: at[0] as u8, b: at[1] as u8 }, &[x])
        }
        14 | 15 if rank > 0 => {
            let axis = below(rank);
            let mut parts = vec![x];
            let most = if below(4) == 0 { 9 } else { 3 };
            for _ in 0..below(most) {
                let mut to = dims.clone();
                to[axis] = 1 + below(3);
                parts.push(other(s, &to, dtype, below));
            }
            s.op(Op::Concat { axis: axis as u8 }, &parts)
        }
        16 if rank > 0 => {
            let axis = below(rank);
            if dims[axis] == 0 {
                return None;
            }
            let start = s.scalar(DType::U32);
            let mut to = dims.clone();
            to[axis] = 1 + below(dims[axis]);
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
        19 if dtype.bytes() >= 4 && rank > 0 => {
            let axis = below(rank);
            if dims[axis] == 0 {
                return None;
            }
            s.op(Op::ArgReduce { max: below(2) == 0, axis: axis as u8 }, &[x])
        }
        20 if rank >= 2 && dtype == DType::F32 => {
            let mut to = dims.clone();
            (to[rank - 2], to[rank - 1]) = (dims[rank - 1], 1 + below(3));
            let b = other(s, &to, dtype, below);
            let x = if below(2) == 0 { s.un(Unary::Tanh, x) } else { x };
            s.matmul(x, b)
        }
        21 if rank > 0 => {
            let axis = below(rank);
            let mut to = dims.clone();
            to[axis] = 1 + below(3);
            let idx = other(s, &to, DType::I32, below);
            s.op(Op::Gather { axis: axis as u8 }, &[x, idx])
        }
        22 if rank > 0 && dtype.bytes() >= 4 => {
            let axis = below(rank);
            let idx = other(s, &dims, DType::I32, below);
            let mut to = dims.clone();
            to[axis] = 1 + below(4);
            let kind = [Reduce::Sum, Reduce::Max, Reduce::Min][below(3)];
            s.to(Op::Scatter { axis: axis as u8, kind }, &[idx, x], &to)
        }
        23 => {
            if below(3) == 0 && elems > 0 {
                let keys: Vec<Val> = (0..4).map(|_| s.scalar(DType::U32)).collect();
                return Some(s.to(Op::Random, &keys, &dims));
            }
            if rank == 0 || below(2) == 0 {
                let c = s.scalar(if dtype == DType::U8 { DType::I32 } else { dtype });
                return Some(s.like(c, &dims));
            }
            s.graph
                .add(Op::Iota { axis: below(rank) as u8 }, &[], Some(Shape::new(&dims)), Some(DType::I32))
                .unwrap()
        }
        26 if rank > 0 && dtype.bytes() >= 4 => {
            let axis = below(rank) as u8;
            let kind = [Scan::Sum, Scan::Prod, Scan::ArgMax, Scan::Recur][below(4)];
            if below(3) == 0 {
                return Some(s.op(Op::ArgSort { axis, descending: below(2) == 0 }, &[x]));
            }
            let w = if below(2) == 0 { x } else { other(s, &dims, dtype, below) };
            let ins = if kind == Scan::Recur { vec![x, w] } else { vec![x] };
            s.op(Op::Scan { kind, axis, reverse: below(2) == 0 }, &ins)
        }
        _ => return None,
    })
}

fn all_ways(seed: u64) {
    let (s, roots) = random_graph(seed);
    let mut below = rng(seed + 77);
    for (fuse, keep) in [(true, false), (true, true), (false, false), (false, true)] {
        let options = Options { fuse, keep };
        let kinds = [LeafKind::Buffer, LeafKind::Donated, LeafKind::Upload, LeafKind::Donated];
        let leaves: Vec<_> =
            s.leaves(LeafKind::Buffer).into_iter().map(|(n, _)| (n, kinds[below(4)])).collect();
        let roots: Vec<Root> = roots
            .iter()
            .map(|v| Root { val: *v, into: (below(2) == 0).then(|| below(leaves.len()) as u32) })
            .collect();
        let mut caps = caps();
        caps.max_buffers = [4, 5, 8, 8, 12][below(5)];
        let plan = ordered(&s, &roots, &leaves, &options, &caps, [None, Some(false), Some(true)][below(3)]);
        verify(&s, &plan, seed);
    }
}

/// How many graphs are tried.
const SEEDS: u64 = 4000;

#[test]
fn random_graphs_compute_the_same() {
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| all_ways(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
