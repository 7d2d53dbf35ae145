//! Every node of a graph in recorded order, on f64.

use crate::{Binary, DType, Graph, Op, Reduce, Shape, Unary};

use super::rng;

pub(crate) fn wrap(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::Bool => f64::from(u8::from(x != 0.0)),
        DType::U8 => f64::from(x as i64 as u8),
        DType::U32 => f64::from(x as i64 as u32),
        DType::I32 => f64::from(x as i64 as i32),
        DType::I64 => (x as i64) as f64,
        DType::F16 | DType::BF16 => dtype.round(x),
        DType::F32 | DType::F64 => x,
    }
}

fn wrap_int(x: i64, dtype: DType) -> f64 {
    match dtype {
        DType::Bool => (x & 1) as f64,
        DType::U8 => f64::from(x as u8),
        DType::U32 => f64::from(x as u32),
        DType::I64 => x as f64,
        _ => f64::from(x as i32),
    }
}

pub(crate) fn unary(op: Unary, x: f64, from: DType, to: DType) -> f64 {
    let row = op.row();
    if from.is_float() { row.float.unwrap()(x) } else { wrap_int(row.int.unwrap()(x as i64), to) }
}

pub(crate) fn binary(op: Binary, x: f64, w: f64, from: DType, to: DType) -> f64 {
    let row = op.row();
    if from.is_float() {
        row.float.unwrap()(x, w)
    } else {
        wrap_int(row.int.unwrap()(x as i64, w as i64), to)
    }
}

pub(crate) fn cast(x: f64, from: DType, to: DType) -> f64 {
    match (from.is_float(), to) {
        (true, DType::U8) => f64::from(x as u8),
        (true, DType::U32) => f64::from(x as u32),
        (true, DType::I32) => f64::from(x as i32),
        _ => wrap(x, to),
    }
}

pub(crate) fn neutral(kind: Reduce, dtype: DType) -> f64 {
    match (kind, dtype) {
        (Reduce::Sum, _) => 0.0,
        (Reduce::Prod, _) => 1.0,
        (Reduce::Max, DType::I32) => f64::from(i32::MIN),
        (Reduce::Min, DType::I32) => f64::from(i32::MAX),
        (Reduce::Max, DType::I64) => i64::MIN as f64,
        (Reduce::Min, DType::I64) => i64::MAX as f64,
        (Reduce::Max, DType::U32) => 0.0,
        (Reduce::Min, DType::U32) => f64::from(u32::MAX),
        (Reduce::Max, _) => f64::NEG_INFINITY,
        (Reduce::Min, _) => f64::INFINITY,
    }
}

pub(crate) fn combine(kind: Reduce, a: f64, b: f64, dtype: DType) -> f64 {
    let op = match kind {
        Reduce::Sum => Binary::Add,
        Reduce::Prod => Binary::Mul,
        Reduce::Max => Binary::Maximum,
        Reduce::Min => Binary::Minimum,
    };
    binary(op, a, b, dtype, dtype)
}

pub(crate) fn better(max: bool, x: f64, best: f64) -> bool {
    !best.is_nan() && (x.is_nan() || if max { x > best } else { x < best })
}

/// A stand-in for the generator: depends on every input, small numbers.
pub(crate) fn random(counter: f64, keys: [f64; 3]) -> f64 {
    let bits = (counter as u64).wrapping_mul(2_654_435_761).wrapping_add(keys[0] as u64 * 97);
    (bits.wrapping_add(keys[1] as u64 * 31 + keys[2] as u64 * 7) % 1000) as f64
}

/// The outputs of an operation with a kernel of its own: only what plans depend on, each element a sum
/// of all that may reach it.
pub(crate) fn whole(op: Op, ins: &[(&[f64], crate::Out)], outs: &[crate::Out]) -> Vec<Vec<f64>> {
    let line = |axis: u8, n: usize| {
        let mut c = coords(ins[0].1.shape.dims(), n);
        c[usize::from(axis)] = 0;
        c
    };
    let one = |out: &crate::Out| {
        let mut y = vec![0.0; out.shape.elems()];
        match op {
            Op::Scan { axis, .. } | Op::ArgSort { axis, .. } => {
                for n in 0..y.len() {
                    let all: f64 = ins.iter().map(|(x, _)| x[n]).sum();
                    let same = |m: &usize| line(axis, *m) == line(axis, n);
                    let before = (0..n).rev().find(same).map_or(0.0, |m| y[m]);
                    y[n] = wrap(before + all, out.dtype);
                }
            }
            Op::Matrix(_) => y.fill(ins.iter().flat_map(|(x, _)| x.iter()).sum()),
            // Every element has a weight of its own, so that none can stand in for another.
            Op::Attention(_) | Op::AttentionGrad(_) => {
                let all = ins.iter().flat_map(|(x, _)| x.iter().enumerate());
                y.fill(all.map(|(n, x)| x * (n % 11 + 1) as f64).sum());
            }
            other => unreachable!("{other:?} is no whole operation"),
        }
        y
    };
    outs.iter().map(one).collect()
}

/// Coordinates of element `n`.
pub(crate) fn coords(shape: &[usize], mut n: usize) -> Vec<usize> {
    let mut c = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        c[axis] = n % shape[axis];
        n /= shape[axis];
    }
    c
}

fn flat(shape: Shape, c: &[usize]) -> usize {
    c.iter().zip(shape.strides()).map(|(c, s)| c * s as usize).sum()
}

/// Elements of leaves and scalars.
pub(crate) fn data(graph: &Graph, seed: u64) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut below = rng(seed ^ 0xabc);
    let (mut leaves, mut scalars) = (Vec::new(), Vec::new());
    // Starts stay inside every part that they place.
    let start = |id: u32| {
        let limit = graph.nodes().iter().filter_map(|n| {
            let (whole, part, axis) = match n.op {
                Op::SliceAt { axis } => (graph.out(n.inputs[0]), n.outs[0], axis),
                Op::SliceAssignAt { axis } => (n.outs[0], graph.out(n.inputs[1]), axis),
                _ => return None,
            };
            let axis = usize::from(axis);
            (n.inputs.last()?.node == id).then(|| whole.shape[axis] - part.shape[axis])
        });
        limit.min()
    };
    for (id, node) in graph.nodes().iter().enumerate() {
        let mut number = |dtype: DType| match dtype {
            DType::Bool => below(2) as f64,
            DType::U8 | DType::U32 => below(4) as f64,
            DType::I32 => below(9) as f64 - 4.0,
            _ => below(33) as f64 / 8.0 - 2.0,
        };
        match node.op {
            Op::Input => {
                leaves.push((0..node.outs[0].shape.elems()).map(|_| number(node.outs[0].dtype)).collect());
            }
            Op::Scalar => scalars.push(match start(id as u32) {
                Some(limit) => below(limit + 1) as f64,
                None => number(node.outs[0].dtype),
            }),
            _ => {}
        }
    }
    (leaves, scalars)
}

/// Every output of every node.
pub(crate) fn eval(graph: &Graph, leaves: &[Vec<f64>], scalars: &[f64]) -> Vec<Vec<Vec<f64>>> {
    let (mut leaves, mut scalars) = (leaves.iter(), scalars.iter());
    let mut all: Vec<Vec<Vec<f64>>> = Vec::new();
    for node in graph.nodes() {
        let x = |i: usize| &all[node.inputs[i].node as usize][node.inputs[i].out as usize];
        let shape = |i: usize| graph.out(node.inputs[i]).shape;
        let dtype = |i: usize| graph.out(node.inputs[i]).dtype;
        let out = node.outs[0];
        let dims = out.shape.dims();
        let each = |f: &dyn Fn(usize, &[usize]) -> f64| -> Vec<f64> {
            (0..out.shape.elems()).map(|n| f(n, &coords(dims, n))).collect()
        };
        let value = match node.op {
            Op::Input => leaves.next().unwrap().clone(),
            Op::Scalar => vec![*scalars.next().unwrap()],
            Op::Iota { axis } => each(&|_, c| c[usize::from(axis)] as f64),
            Op::Random => {
                let per_row: usize = dims.iter().skip(1).product();
                each(&|n, _| random(x(3)[0] * per_row as f64 + n as f64, [x(0)[0], x(1)[0], x(2)[0]]))
            }
            Op::Unary(op) => each(&|n, _| unary(op, x(0)[n], dtype(0), out.dtype)),
            Op::Binary(op) => each(&|n, _| binary(op, x(0)[n], x(1)[n], dtype(0), out.dtype)),
            Op::Select => each(&|n, _| if x(0)[n] != 0.0 { x(1)[n] } else { x(2)[n] }),
            Op::Cast => each(&|n, _| cast(x(0)[n], dtype(0), out.dtype)),
            Op::Reduce { kind, axes } => {
                let mut y = vec![neutral(kind, out.dtype); out.shape.elems()];
                for n in 0..shape(0).elems() {
                    let mut c = coords(shape(0).dims(), n);
                    axes.iter().for_each(|a| c[a] = 0);
                    let at = flat(out.shape, &c);
                    y[at] = combine(kind, y[at], x(0)[n], out.dtype);
                }
                y
            }
            Op::ArgReduce { max, axis } => each(&|_, c| {
                let mut best = (f64::NAN, 0);
                for i in 0..shape(0)[usize::from(axis)] {
                    let mut c = c.to_vec();
                    c[usize::from(axis)] = i;
                    let v = x(0)[flat(shape(0), &c)];
                    if i == 0 || better(max, v, best.0) {
                        best = (v, i);
                    }
                }
                best.1 as f64
            }),
            Op::MatMul => each(&|_, c| {
                let rank = c.len();
                (0..shape(0)[rank - 1]).fold(0.0, |sum, k| {
                    let (mut a, mut b) = (c.to_vec(), c.to_vec());
                    (a[rank - 1], b[rank - 2]) = (k, k);
                    sum + x(0)[flat(shape(0), &a)] * x(1)[flat(shape(1), &b)]
                })
            }),
            Op::Reshape => x(0).clone(),
            Op::Permute(perm) => each(&|_, c| {
                let mut from = vec![0; c.len()];
                (0..c.len()).for_each(|i| from[usize::from(perm[i])] = c[i]);
                x(0)[flat(shape(0), &from)]
            }),
            Op::Expand => each(&|_, c| {
                let from: Vec<_> =
                    c.iter().zip(shape(0).dims()).map(|(c, d)| if *d == 1 { 0 } else { *c }).collect();
                x(0)[flat(shape(0), &from)]
            }),
            Op::Slice(s) => each(&|_, c| {
                let from: Vec<_> =
                    (0..c.len()).map(|i| (s.start[i] + c[i] as i64 * s.step[i]) as usize).collect();
                x(0)[flat(shape(0), &from)]
            }),
            Op::Windows { axis, step, dilation, .. } => each(&|_, c| {
                let mut from = c[..c.len() - 1].to_vec();
                let at = &mut from[usize::from(axis)];
                *at = *at * step as usize + c[c.len() - 1] * dilation as usize;
                x(0)[flat(shape(0), &from)]
            }),
            Op::Diagonal { a, b } => each(&|_, c| {
                let mut kept = c.iter();
                let from: Vec<usize> = (0..=c.len())
                    .map(|i| if [a, b].contains(&(i as u8)) { c[c.len() - 1] } else { *kept.next().unwrap() })
                    .collect();
                x(0)[flat(shape(0), &from)]
            }),
            Op::Pad { lo } => each(&|_, c| {
                let from: Vec<_> = (0..c.len()).map(|i| c[i].wrapping_sub(lo[i] as usize)).collect();
                let inside = from.iter().zip(shape(0).dims()).all(|(c, d)| c < d);
                if inside { x(0)[flat(shape(0), &from)] } else { 0.0 }
            }),
            Op::Concat { axis } => each(&|_, c| {
                let (mut c, axis) = (c.to_vec(), usize::from(axis));
                let mut i = 0;
                while c[axis] >= shape(i)[axis] {
                    c[axis] -= shape(i)[axis];
                    i += 1;
                }
                x(i)[flat(shape(i), &c)]
            }),
            Op::SliceAt { axis } => each(&|_, c| {
                let mut c = c.to_vec();
                c[usize::from(axis)] += x(1)[0] as usize;
                x(0)[flat(shape(0), &c)]
            }),
            Op::SliceAssign(s) => {
                let mut y = x(0).clone();
                for n in 0..shape(1).elems() {
                    let c = coords(shape(1).dims(), n);
                    let to: Vec<_> =
                        (0..c.len()).map(|i| (s.start[i] + c[i] as i64 * s.step[i]) as usize).collect();
                    y[flat(out.shape, &to)] = x(1)[n];
                }
                y
            }
            Op::SliceAssignAt { axis } => {
                let mut y = x(0).clone();
                for n in 0..shape(1).elems() {
                    let mut c = coords(shape(1).dims(), n);
                    c[usize::from(axis)] += x(2)[0] as usize;
                    y[flat(out.shape, &c)] = x(1)[n];
                }
                y
            }
            Op::Gather { axis } => each(&|n, c| {
                let (mut c, at) = (c.to_vec(), x(1)[n]);
                if at < 0.0 || at >= shape(0)[usize::from(axis)] as f64 {
                    return 0.0;
                }
                c[usize::from(axis)] = at as usize;
                x(0)[flat(shape(0), &c)]
            }),
            Op::Scatter { axis, kind } => {
                let mut y = vec![neutral(kind, out.dtype); out.shape.elems()];
                for n in 0..shape(0).elems() {
                    let (mut c, at) = (coords(shape(0).dims(), n), x(0)[n]);
                    if at >= 0.0 && at < out.shape[usize::from(axis)] as f64 {
                        c[usize::from(axis)] = at as usize;
                        let to = flat(out.shape, &c);
                        y[to] = combine(kind, y[to], x(1)[n], out.dtype);
                    }
                }
                y
            }
            op @ (Op::Scan { .. }
            | Op::ArgSort { .. }
            | Op::Matrix(_)
            | Op::Attention(_)
            | Op::AttentionGrad(_)) => {
                let ins: Vec<(&[f64], crate::Out)> =
                    node.inputs.iter().enumerate().map(|(i, v)| (x(i).as_slice(), graph.out(*v))).collect();
                all.push(whole(op, &ins, &node.outs));
                continue;
            }
            Op::Custom(id) => {
                let ins: Vec<&[f64]> = (0..node.inputs.len()).map(|i| x(i).as_slice()).collect();
                let mut outs: Vec<Vec<f64>> = node.outs.iter().map(|o| vec![0.0; o.shape.elems()]).collect();
                (graph.custom(id).unwrap().cpu)(&ins, &mut outs);
                all.push(outs);
                continue;
            }
        };
        all.push(vec![value]);
    }
    all
}
