//! Texts of planned graphs.

use super::*;
use crate::choose;
use wgrad_graph::{Axes, Binary, MAX_RANK, Reduce, Steps, Unary};

const STORED: [DType; 5] = [DType::Bool, DType::U8, DType::U32, DType::I32, DType::F32];

#[test]
fn every_unary_row_on_every_dtype() {
    for dims in [vec![5, 3], vec![128, 256]] {
        for dtype in STORED {
            let mut s = Sketch::default();
            let x = s.input(&dims, dtype);
            for op in Unary::ALL {
                if op.row().takes(dtype) {
                    let y = s.op(Op::Unary(op), &[x]);
                    s.roots = vec![y];
                    texts(&s);
                }
            }
        }
    }
}

#[test]
fn every_binary_row_on_every_dtype() {
    for dims in [vec![7], vec![65536]] {
        for dtype in STORED {
            let mut s = Sketch::default();
            let (x, w) = (s.input(&dims, dtype), s.input(&dims, dtype));
            for op in Binary::ALL {
                if op.row().takes(dtype) {
                    let y = s.op(Op::Binary(op), &[x, w]);
                    s.roots = vec![y];
                    texts(&s);
                }
            }
        }
    }
}

#[test]
fn casts_between_all_dtypes() {
    for from in STORED {
        for to in STORED {
            for n in [6, 32768] {
                let mut s = Sketch::default();
                let x = s.input(&[n], from);
                let y = s.cast(x, to);
                let c = s.cast(x, DType::Bool);
                let z = s.op(Op::Select, &[c, y, y]);
                s.roots = vec![y, z];
                texts(&s);
            }
        }
    }
}

#[test]
fn movement_in_every_form() {
    let mut s = Sketch::default();
    let x = s.x(&[4, 6, 8]);
    let b = s.input(&[4, 6, 8], DType::Bool);
    for x in [x, b] {
        let mut perm = [0; MAX_RANK];
        perm[..3].copy_from_slice(&[2, 0, 1]);
        let p = s.op(Op::Permute(perm), &[x]);
        let r = s.to(Op::Reshape, &[p], &[16, 12]);
        let mut steps = Steps::ALL;
        steps.start[..2].copy_from_slice(&[15, 1]);
        steps.step[..2].copy_from_slice(&[-2, 3]);
        let part = s.to(Op::Slice(steps), &[r], &[8, 4]);
        let mut lo = [0; MAX_RANK];
        lo[..2].copy_from_slice(&[1, 2]);
        let pad = s.to(Op::Pad { lo }, &[part], &[10, 8]);
        let cat = s.op(Op::Concat { axis: 0 }, &[pad, pad]);
        let start = s.scalar(DType::U32);
        let at = s.to(Op::SliceAt { axis: 0 }, &[cat, start], &[5, 8]);
        let again = s.to(Op::Reshape, &[at], &[4, 10]);
        let mut perm = [0; MAX_RANK];
        perm[..2].copy_from_slice(&[1, 0]);
        let turned = s.op(Op::Permute(perm), &[again]);
        let into = s.op(Op::SliceAssignAt { axis: 0 }, &[cat, at, start]);
        let whole = s.op(Op::SliceAssign(Steps::ALL), &[cat, at]);
        s.roots = vec![pad, cat, at, turned, into, whole];
        texts(&s);
    }
}

#[test]
fn creation_and_random() {
    for dims in [vec![3, 5], vec![64, 512]] {
        let mut s = Sketch::default();
        for dtype in [DType::F32, DType::I32, DType::U32] {
            for axis in 0..2 {
                let i = s.graph.add(Op::Iota { axis }, &[], Some(Shape::new(&dims)), Some(dtype)).unwrap();
                s.roots.push(i);
            }
            let f = s.full(&dims, dtype);
            s.roots.push(f);
        }
        for dtype in [DType::Bool, DType::U8] {
            let f = s.full(&dims, dtype);
            s.roots.push(f);
        }
        let words = [0; 4].map(|_| s.scalar(DType::U32));
        let r = s.to(Op::Random, &words, &dims);
        let f = s.cast(r, DType::F32);
        s.roots.extend([r, f]);
        texts(&s);
    }
}

#[test]
fn reductions_in_every_layout() {
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[4, 6], &[1]),
        (&[4, 6], &[0]),
        (&[2_000_000], &[0]),
        (&[16384, 4096], &[1]),
        (&[16384, 4096], &[0]),
        (&[64, 100_000], &[1]),
        (&[100_000, 64], &[0]),
        (&[8, 32, 16, 16], &[0, 2, 3]),
        (&[300_000, 7], &[1]),
    ];
    for (dims, axes) in shapes {
        for dtype in [DType::F32, DType::I32, DType::U32] {
            let mut s = Sketch::default();
            let x = s.input(dims, dtype);
            let axes: Axes = axes.iter().copied().collect();
            let two = s.op(Op::Binary(Binary::Mul), &[x, x]);
            for kind in [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min] {
                let r = s.op(Op::Reduce { kind, axes }, &[two]);
                let r2 = s.op(Op::Unary(Unary::Neg), &[r]);
                let b = s.op(Op::Binary(Binary::Gt), &[r, r2]);
                s.roots.extend([r2, b]);
            }
            if axes.iter().count() == 1 {
                let axis = axes.iter().next().unwrap() as u8;
                for max in [true, false] {
                    let r = s.op(Op::ArgReduce { max, axis }, &[x]);
                    s.roots.push(r);
                }
            }
            texts(&s);
        }
    }
}

#[test]
fn a_reduction_over_nothing_writes_and_an_empty_space_does_not() {
    let mut s = Sketch::default();
    let x = s.x(&[3, 0]);
    let r = s.op(Op::Reduce { kind: Reduce::Max, axes: Axes::NONE.with(1) }, &[x]);
    s.roots = vec![r];
    assert!(texts(&s).len() >= 4);
    let n = s.op(Op::Unary(Unary::Neg), &[x]);
    s.roots = vec![n];
    assert!(texts(&s).is_empty());
    let y = s.x(&[0, 4]);
    let m = s.op(Op::MatMul, &[x, y]);
    s.roots = vec![m];
    assert!(!texts(&s).is_empty());
}

#[test]
fn products_in_every_layout() {
    let sizes = [
        (1, 1, 1),
        (3, 5, 7),
        (4, 4, 4),
        (1, 4096, 4096),
        (512, 10, 512),
        (128, 512, 784),
        (2048, 2048, 2048),
        (2050, 2047, 33),
        (66, 130, 5000),
    ];
    for (m, n, k) in sizes {
        for layout in 0..4 {
            for batch in [&[][..], &[3], &[2, 3]] {
                let mut s = Sketch::default();
                let dims = |r: usize, c: usize| [batch, &[r, c]].concat();
                let side = |s: &mut Sketch, r: usize, c: usize, turned: bool| {
                    if !turned {
                        return s.x(&dims(r, c));
                    }
                    let x = s.x(&dims(c, r));
                    let rank = batch.len() + 2;
                    let mut perm: [u8; MAX_RANK] = std::array::from_fn(|i| i as u8);
                    perm.swap(rank - 1, rank - 2);
                    s.op(Op::Permute(perm), &[x])
                };
                let a = side(&mut s, m, k, layout & 1 == 1);
                let b = side(&mut s, k, n, layout & 2 == 2);
                let y = s.op(Op::MatMul, &[a, b]);
                let bias = s.x(&vec![1; batch.len() + 1].iter().copied().chain([n]).collect::<Vec<_>>());
                let bias = s.to(Op::Expand, &[bias], &dims(m, n));
                let z = s.op(Op::Binary(Binary::Add), &[y, bias]);
                let z = s.op(Op::Unary(Unary::Relu), &[z]);
                let positive = s.op(Op::Binary(Binary::Gt), &[z, bias]);
                s.roots = vec![z, positive];
                texts(&s);
            }
        }
    }
}

/// No dispatch is estimated longer than a watchdog waits, and together they cover the product.
#[test]
fn long_products_are_cut() {
    let integrated = Caps { kind: DeviceKind::IntegratedGpu, ..gpu() };
    let none: &[usize] = &[];
    for (caps, batch, [m, n, k]) in [
        (&integrated, none, [8192, 8192, 8192]),
        (&integrated, &[37], [1100, 1024, 2048]),
        (&integrated, none, [512, 512, 1 << 18]),
        (&software(), none, [1030, 1024, 4096]),
        (&software(), &[5, 7], [512, 512, 512]),
    ] {
        let mut s = Sketch::default();
        let a = s.x(&[batch, &[m, k]].concat());
        let b = s.x(&[batch, &[k, n]].concat());
        s.roots = vec![s.op(Op::MatMul, &[a, b])];
        let plan = s.plan(caps, true);
        let launches = lower(&plan.steps[0], &plan.graph, &plan.scalars, caps).unwrap().launches;
        let flops = (2 * m * n * k * batch.iter().product::<usize>()) as u64;
        let most = choose::MOST_NS as f64 * choose::speed(caps.kind).1;
        let parts: Vec<&Launch> = launches.iter().filter(|l| l.cost_flops as f64 > 0.1 * most).collect();
        assert!(
            parts.len() as f64 >= flops as f64 / most,
            "{} dispatches of {batch:?} {m} {n} {k}",
            parts.len()
        );
        assert!(parts.iter().all(|l| l.cost_flops as f64 <= most), "{batch:?} {m} {n} {k}");
        let sum: u64 = launches.iter().map(|l| l.cost_flops).sum();
        assert!(sum.abs_diff(flops) < flops / 10, "{sum} of {flops}");
        let same = parts.iter().all(|l| l.source == parts[0].source);
        assert!(same, "the cuts share a kernel");
        parts.iter().for_each(|l| check_launch(l, caps));
    }
}

#[test]
fn gather_and_scatter_are_guarded() {
    for dtype in [DType::I32, DType::U32, DType::U8] {
        let mut s = Sketch::default();
        let table = s.x(&[100, 64]);
        let ids = s.input(&[32, 64], dtype);
        let g = s.op(Op::Gather { axis: 0 }, &[table, ids]);
        let sum = s.op(Op::Reduce { kind: Reduce::Sum, axes: Axes::NONE.with(1) }, &[g]);
        let back = s.to(Op::Scatter { axis: 0, kind: Reduce::Sum }, &[ids, g], &[100, 64]);
        let counts = s.cast(g, DType::I32);
        let ints = s.to(Op::Scatter { axis: 0, kind: Reduce::Sum }, &[ids, counts], &[100, 64]);
        s.roots = vec![g, sum, back, ints];
        assert!(texts(&s).iter().any(|t| t.contains("atomicMax")));
    }
}

#[test]
fn updates_in_place() {
    let mut s = Sketch::default();
    let (w, g) = (s.x(&[512, 784]), s.x(&[512, 784]));
    let m = s.x(&[512, 784]);
    let lr = s.full(&[512, 784], DType::F32);
    let m2 = s.op(Op::Binary(Binary::Add), &[m, g]);
    let step = s.op(Op::Binary(Binary::Mul), &[m2, lr]);
    let w2 = s.op(Op::Binary(Binary::Sub), &[w, step]);
    s.roots = vec![w2, m2];
    for caps in [gpu(), software()] {
        let graph = Arc::new(s.graph.clone());
        let leaves: Vec<_> = [w, g, m].iter().map(|v| (v.node, LeafKind::Donated)).collect();
        let roots = [Root { val: w2, into: Some(0) }, Root { val: m2, into: Some(2) }];
        let plan = plan(&graph, &roots, &leaves, &Options { fuse: true, keep: false }, &caps).unwrap();
        let all = launches(&plan, &caps);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].bindings.len(), 3);
        assert_eq!(all[0].bindings.iter().filter(|b| b.written).count(), 2);
    }
}

#[test]
fn text_holds_no_sizes() {
    let build = |m: usize, n: usize, k: usize| {
        let mut s = Sketch::default();
        let (a, b) = (s.x(&[m, k]), s.x(&[k, n]));
        let y = s.op(Op::MatMul, &[a, b]);
        let bias = s.x(&[1, n]);
        let bias = s.to(Op::Expand, &[bias], &[m, n]);
        let z = s.op(Op::Binary(Binary::Add), &[y, bias]);
        let t = s.op(Op::Unary(Unary::Tanh), &[z]);
        let r = s.op(Op::Reduce { kind: Reduce::Sum, axes: Axes::NONE.with(1) }, &[t]);
        let e = s.to(Op::Expand, &[r], &[m, n]);
        let q = s.op(Op::Binary(Binary::Div), &[t, e]);
        s.roots = vec![q];
        s
    };
    let same = |a: Sketch, b: Sketch| {
        for (x, y) in texts(&a).iter().zip(texts(&b)) {
            let apart: Vec<_> = x.lines().zip(y.lines()).filter(|(p, q)| p != q).take(3).collect();
            assert!(*x == y, "{apart:?}");
        }
    };
    same(build(248, 504, 992), build(252, 508, 1008));
    // Rows of one class of lengths: what a lane holds is in the text.
    same(build(2048, 4088, 96), build(2044, 4080, 112));
}

/// A random graph: a chain of operations over a few inputs.
fn random(seed: u64) -> Sketch {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    };
    let mut s = Sketch::default();
    let dims = [[4, 6, 2], [3, 5, 7], [16, 64, 64], [8, 12, 1]][below(4)];
    let mut vals: Vec<Val> = (0..3).map(|i| s.input(&dims, [DType::F32, DType::I32, DType::U8][i])).collect();
    for _ in 0..12 {
        let x = vals[below(vals.len())];
        let (dtype, shape) = (s.graph.out(x).dtype, s.graph.out(x).shape);
        let y = match below(9) {
            0 => {
                let f = s.cast(x, DType::F32);
                s.op(Op::Unary([Unary::Neg, Unary::Abs][below(2)]), &[f])
            }
            1 => s.cast(x, STORED[below(5)]),
            2 => {
                let w = s.input(shape.dims(), dtype);
                let op = if dtype == DType::Bool { Binary::Xor } else { Binary::Maximum };
                s.op(Op::Binary(op), &[x, w])
            }
            3 => s.op(Op::Permute([1, 0, 2, 0, 0, 0, 0, 0]), &[x]),
            4 => {
                let mut lo = [0; MAX_RANK];
                lo[1] = 3;
                let to = shape.with(1, shape[1] + 5);
                s.to(Op::Pad { lo }, &[x], to.dims())
            }
            5 if shape[0] > 1 => {
                let mut steps = Steps::ALL;
                steps.start[0] = shape[0] as i64 - 1;
                steps.step[0] = -1;
                let to = shape.with(0, shape[0] - 1);
                s.to(Op::Slice(steps), &[x], to.dims())
            }
            6 => {
                let f = s.cast(x, DType::F32);
                let kind = [Reduce::Sum, Reduce::Max][below(2)];
                let r = s.op(Op::Reduce { kind, axes: Axes::NONE.with(below(3)) }, &[f]);
                s.to(Op::Expand, &[r], shape.dims())
            }
            7 => {
                let to = [shape[0] * shape[1], shape[2], 1];
                s.to(Op::Reshape, &[x], &to)
            }
            _ => {
                let c = s.cast(x, DType::Bool);
                s.op(Op::Select, &[c, x, x])
            }
        };
        vals.push(y);
    }
    let last = vals.len() - 1;
    s.roots = vec![vals[last], vals[last - 1], vals[last - 3]];
    s
}

#[test]
fn random_plans() {
    for seed in 0..60 {
        texts(&random(seed));
    }
}

#[test]
fn scans_of_every_kind() {
    use wgrad_graph::Scan::{ArgMax, ArgMin, LogAddExp, Prod, Recur, Sum};
    for dtype in [DType::F32, DType::I32, DType::U32] {
        // By lines and by tiles, on both kinds of device.
        for dims in [&[3, 20, 2][..], &[40_000, 70, 1], &[2, 5000, 3]] {
            let mut s = Sketch::default();
            let x = s.input(dims, dtype);
            for kind in [Sum, Prod, LogAddExp, ArgMax, ArgMin, Recur] {
                if kind == LogAddExp && dtype != DType::F32 {
                    continue;
                }
                for reverse in [false, true] {
                    let ins = if kind == Recur { vec![x, x] } else { vec![x] };
                    let y = s.op(Op::Scan { kind, axis: 1, reverse }, &ins);
                    s.roots.push(y);
                }
            }
            assert!(texts(&s).iter().all(|t| t.contains("fn join")));
        }
    }
}

#[test]
fn sorting_by_counting_and_merging() {
    for dtype in [DType::F32, DType::I32, DType::U32, DType::U8, DType::Bool] {
        // One launch; merges that end in the result after an odd and an even number of turns.
        for dims in [&[3, 20, 2][..], &[2, 300, 3], &[2, 5000, 1], &[70_000, 4, 1]] {
            let mut s = Sketch::default();
            let x = s.input(dims, dtype);
            for descending in [false, true] {
                let y = s.op(Op::ArgSort { axis: 1, descending }, &[x]);
                s.roots.push(y);
            }
            // Later passes by digits read keys from scratch memory.
            assert!(texts(&s).iter().all(|t| t.contains("fn number") || t.contains("counts")));
        }
    }
}

/// `x` `[n, c, h, w]` as windows of 3 by 3: `[n, c * 9, count]`, or `[n * count, c * 9]`.
fn columns(s: &mut Sketch, dims: [usize; 4], step: u32, beside: bool) -> Val {
    let x = s.x(&dims);
    let wide = Op::Windows { axis: 2, size: 3, step, dilation: 1 };
    let both = s.op(wide, &[x]);
    let both = s.op(Op::Windows { axis: 3, size: 3, step, dilation: 1 }, &[both]);
    let [n, c, h, w] = dims;
    let count = ((h - 3) / step as usize + 1) * ((w - 3) / step as usize + 1);
    if beside {
        let y = s.op(Op::Permute([0, 2, 3, 1, 4, 5, 0, 0]), &[both]);
        return s.to(Op::Reshape, &[y], &[n * count, c * 9]);
    }
    let y = s.op(Op::Permute([0, 1, 4, 5, 2, 3, 0, 0]), &[both]);
    s.to(Op::Reshape, &[y], &[n, c * 9, count])
}

#[test]
fn products_with_windows() {
    for (dims, m, step) in [([2, 16, 20, 22], 64, 1), ([3, 5, 9, 17], 7, 2), ([40, 32, 12, 12], 130, 1)] {
        let mut s = Sketch::default();
        let seen = columns(&mut s, dims, step, false);
        let to = s.graph.out(seen).shape;
        let w = s.x(&[dims[0], m, to[1]]);
        let y = s.op(Op::MatMul, &[w, seen]);
        let y = s.op(Op::Unary(Unary::Relu), &[y]);
        let rows = columns(&mut s, dims, step, true);
        let to = s.graph.out(rows).shape;
        let w = s.x(&[m, to[0]]);
        let dw = s.op(Op::MatMul, &[w, rows]);
        let other = s.x(&[to[1], m]);
        let back = s.op(Op::MatMul, &[rows, other]);
        s.roots = vec![y, dw, back];
        let all = texts(&s);
        // Where sizes are large, tables of what K adds stand in workgroup memory.
        let tables = all.iter().any(|text| text.contains("tbk: array<u32"));
        assert!(tables, "no kernel has a table");
    }
}

#[test]
fn small_matrices_of_every_kind() {
    use wgrad_graph::Matrix::{Cholesky, Det, Slogdet, Solve, Triangular};
    // In workgroup memory, in scratch memory, and without rows.
    for (count, n, k) in [(3, 5, 2), (70_000, 2, 1), (2, 33, 70), (2, 120, 3), (1, 9000, 2), (4, 0, 0)] {
        let mut s = Sketch::default();
        let (a, b) = (s.x(&[count, n, n]), s.x(&[count, n, k]));
        let mut kinds = vec![Solve];
        for upper in [false, true] {
            kinds.extend([false, true].map(|unit| Triangular { upper, unit }));
        }
        for kind in kinds {
            let y = s.op(Op::Matrix(kind), &[a, b]);
            s.roots.push(y);
        }
        for kind in [Cholesky, Slogdet, Det] {
            let y = s.op(Op::Matrix(kind), &[a]);
            s.roots.push(y);
        }
        // A software driver refuses so many turns of a loop.
        let all = match n {
            9000 => launches(&s.plan(&gpu(), true), &gpu()).into_iter().map(|l| l.source).collect(),
            _ => texts(&s),
        };
        let scratch = all.iter().any(|t| t.contains("atomicLoad"));
        assert_eq!(scratch, n >= 120, "{n}");
    }
}
