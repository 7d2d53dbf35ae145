//! Each kind of step, at sizes where blocks, chunks and threads matter.

use super::*;
use crate::pool::testing::with_threads;
use wgrad_graph::{ErrorKind, Fast, MAX_RANK, Off, Steps};

#[test]
fn long_pointwise_chains() {
    let mut s = Sketch::default();
    let (x, b) = (s.x(&[301, 517], 1), s.x(&[517], 2));
    let two = s.scalar(DType::F32, 2.0);
    let (two, b) = (s.like(two, &[301, 517]), s.like(b, &[301, 517]));
    let y = s.bin(Binary::Mul, x, two);
    let y = s.bin(Binary::Add, y, b);
    let t = s.un(Unary::Tanh, y);
    let y = s.bin(Binary::Mul, t, y);
    let z = s.permute(y, &[1, 0]);
    let z = s.un(Unary::Exp, z);
    s.check(&[y, z], 1e-5);
}

#[test]
fn columns_are_turned_in_bands() {
    let pools = [1, 3];
    // Rows that end within a band, one row more than a band, two operands, a third axis, another dtype.
    for (m, n) in [(90, 301), (257, 65), (700, 1000)] {
        let mut s = Sketch::default();
        let (x, w) = (s.x(&[m, n], 1), s.x(&[n, m], 2));
        let (half, cube) = (s.cast(x, DType::F16), s.to(Op::Reshape, &[w], &[n, 1, m]));
        let (t, b) = (s.permute(x, &[1, 0]), s.x(&[m], 3));
        let b = s.like(b, &[n, m]);
        let other = s.bin(Binary::Mul, x, x);
        let other = s.permute(other, &[1, 0]);
        let y = s.bin(Binary::Sub, t, b);
        let z = s.bin(Binary::Add, t, other);
        let half = s.permute(half, &[1, 0]);
        let half = s.cast(half, DType::F32);
        let turned = s.permute(cube, &[2, 1, 0]);
        let turned = s.un(Unary::Neg, turned);
        let roots = [y, z, half, turned];
        let all: Vec<_> = pools.iter().map(|pool| with_threads(*pool, || s.check(&roots, 1e-6))).collect();
        assert_eq!(all[0], all[1], "{m} {n}");
    }
    // What is turned is also what is written.
    let mut s = Sketch::default();
    let x = s.x(&[300, 300], 1);
    let t = s.permute(x, &[1, 0]);
    let y = s.bin(Binary::Sub, t, x);
    s.check_as(&[y], &[Some(0)], &[LeafKind::Donated], 1e-6);
}

#[test]
fn two_operations_in_one_loop_round_as_they_do_apart() {
    let dims = [37, 61];
    let mut s = Sketch::default();
    let (x, w, z) = (s.x(&dims, 1), s.x(&dims, 2), s.x(&dims, 3));
    let (row, column) = (s.x(&[37, 1], 4), s.x(&[61], 5));
    let (one, column) = (s.scalar(DType::F32, 0.3), s.like(column, &dims));
    let (row, one) = (s.to(Op::Expand, &[row], &dims), s.like(one, &dims));
    let zero = s.input(&dims, &[0f32; 37 * 61]);
    let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::MulZero];
    for (a, b, c) in [(x, w, z), (x, one, row), (row, x, one), (one, x, column), (zero, w, z), (x, row, zero)]
    {
        for (first, second) in ops.iter().flat_map(|f| ops.iter().map(move |s| (*f, *s))) {
            let y = s.bin(first, a, b);
            let roots = [s.bin(second, y, c), s.bin(second, c, y)];
            s.check(&roots[..1], 1e-5);
            s.check(&roots[1..], 1e-5);
        }
    }
}

#[test]
fn every_elementwise_row_in_every_dtype() {
    for dtype in [DType::F32, DType::F64, DType::I32, DType::U32, DType::U8, DType::Bool] {
        let data = |lo: f64, hi: f64, seed: u64| {
            let mut below = rng(seed);
            (0..1000)
                .map(|_| lo + (hi - lo) * below(1 << 20) as f64 / f64::from(1 << 20))
                .collect::<Vec<f64>>()
        };
        for op in Unary::ALL.into_iter().filter(|op| op.row().takes(dtype)) {
            let mut s = Sketch::default();
            let row = op.row();
            let x = s.input(
                &[1000],
                &data(row.domain.lo, row.domain.hi, 3).iter().map(|x| *x as f32).collect::<Vec<_>>(),
            );
            let x = s.cast(x, dtype);
            let y = s.un(op, x);
            s.check(&[y], row.tolerance.max(1e-7));
        }
        for op in Binary::ALL.into_iter().filter(|op| op.row().takes(dtype)) {
            let mut s = Sketch::default();
            let row = op.row();
            let mut draw = |seed| {
                let x = data(row.domain.lo, row.domain.hi, seed);
                s.input(&[1000], &x.iter().map(|x| *x as f32).collect::<Vec<_>>())
            };
            let (x, w) = (draw(4), draw(5));
            let (x, w) = (s.cast(x, dtype), s.cast(w, dtype));
            let y = s.bin(op, x, w);
            let tolerance = if op == Binary::Rem { 1.0 } else { row.tolerance.max(1e-7) };
            s.check(&[y], tolerance);
        }
    }
}

#[test]
fn extremes_keep_nan_and_wrap() {
    let mut s = Sketch::default();
    let x = s.input(&[6], &[f32::NAN, 1.0, -1.0, f32::INFINITY, -0.0, 1e-40]);
    let w = s.input(&[6], &[1.0, f32::NAN, f32::INFINITY, -1.0, 0.0, 1.0]);
    let max = s.bin(Binary::Maximum, x, w);
    let min = s.bin(Binary::Minimum, x, w);
    let pow = s.bin(Binary::Pow, x, w);
    let nan = s.un(Unary::IsNan, x);
    let relu = s.un(Unary::Relu, x);
    let to_int = s.cast(x, DType::I32);
    let top = s.reduce(Reduce::Max, x, &[0]);
    let i = s.input(&[3], &[i32::MIN, i32::MAX, -1]);
    let j = s.input(&[3], &[-1, 1, 0]);
    let roots = [
        max,
        min,
        pow,
        nan,
        relu,
        to_int,
        top,
        s.bin(Binary::Div, i, j),
        s.bin(Binary::Add, i, j),
        s.bin(Binary::Rem, i, j),
    ];
    s.check(&roots, 1e-6);
}

#[test]
fn reductions_by_rows_and_columns_are_one_tree() {
    for (m, n) in [(3, 7), (40, 33), (700, 31), (2500, 300), (5, 3000), (1, 5000), (1030, 513)] {
        let mut s = Sketch::default();
        let x = s.x(&[m, n], 9);
        let t = s.permute(x, &[1, 0]);
        // Stored, so that the reduction reads it by rows where `x` is read by columns.
        let copy = s.un(Unary::Neg, t);
        let back = s.un(Unary::Neg, copy);
        let columns = s.reduce(Reduce::Sum, x, &[0]);
        let rows = s.reduce(Reduce::Sum, back, &[1]);
        let all = s.reduce(Reduce::Sum, x, &[0, 1]);
        let e = s.un(Unary::Exp, x);
        let fused = s.reduce(Reduce::Sum, e, &[1]);
        let top = s.reduce(Reduce::Max, t, &[0]);
        let first = s.op(Op::ArgReduce { max: true, axis: 0 }, &[x]);
        let last = s.op(Op::ArgReduce { max: false, axis: 1 }, &[x]);
        let y = s.check(&[columns, rows, all, fused, top, first, last, copy], 2e-5);
        assert_eq!(y[0], y[1], "{m} x {n}");
    }
}

#[test]
fn reductions_over_nothing_and_of_nothing() {
    let mut s = Sketch::default();
    let x = s.x(&[3, 0], 1);
    let i = s.cast(x, DType::I32);
    let mut roots = Vec::new();
    for kind in [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min] {
        roots.push(s.reduce(kind, x, &[1]));
        roots.push(s.reduce(kind, i, &[1]));
        roots.push(s.reduce(kind, x, &[0]));
        roots.push(s.reduce(kind, x, &[0, 1]));
        roots.push(s.reduce(kind, x, &[]));
    }
    let w = s.x(&[0, 4], 2);
    roots.push(s.op(Op::MatMul, &[x, w]));
    roots.push(s.un(Unary::Exp, x));
    s.check(&roots, 0.0);
}

#[test]
fn products_do_not_depend_on_layout() {
    let sizes = [
        (1, 7, 5),
        (5, 1, 70),
        (3, 3, 40),
        (16, 16, 1500),
        (15, 17, 1500),
        (65, 3, 2),
        (33, 70, 1),
        (130, 90, 600),
        (64, 64, 1000),
        (200, 300, 1100),
        (300, 1, 2000),
        (1, 1000, 700),
    ];
    for (m, n, k) in sizes {
        let mut s = Sketch::default();
        let (a, b) = (s.x(&[k, m], 1), s.x(&[n, k], 2));
        let (at, bt) = (s.permute(a, &[1, 0]), s.permute(b, &[1, 0]));
        let views = s.op(Op::MatMul, &[at, bt]);
        let copy = |s: &mut Sketch, v| {
            let v = s.un(Unary::Neg, v);
            s.un(Unary::Neg, v)
        };
        let (ac, bc) = (copy(&mut s, at), copy(&mut s, bt));
        let copies = s.op(Op::MatMul, &[ac, bc]);
        let mixed = s.op(Op::MatMul, &[ac, bt]);
        let other = s.op(Op::MatMul, &[at, bc]);
        let bias = s.x(&[n], 3);
        let bias = s.like(bias, &[m, n]);
        let y = s.bin(Binary::Add, copies, bias);
        let y = s.un(Unary::Tanh, y);
        let turned = s.permute(y, &[1, 0]);
        let turned = s.un(Unary::Neg, turned);
        let y = s.check(&[views, copies, mixed, other, y, turned, ac, bc], 1e-4);
        assert!(y[0] == y[1] && y[0] == y[2] && y[0] == y[3], "{m} {n} {k}");
    }
}

/// Windows of a padded image as factors, and copies of them: neighbours along columns and along terms, tiles of all
/// widths, sums of several parts, a left factor that the batch shares.
#[test]
fn products_of_windows_have_the_bits_of_their_copies() {
    let pools = [1, 3];
    // Batch, channels, side, kernel, stride, rows of the other factor.
    for (n, c, side, kernel, stride, m) in [
        (1, 3, 15, 3, 1, 17),
        (3, 60, 17, 3, 1, 33),
        (2, 40, 26, 3, 2, 70),
        (5, 8, 11, 1, 1, 40),
        (2, 5, 66, 4, 1, 9),
        (4, 300, 6, 2, 1, 20),
    ] {
        let (count, cell) = ((side - kernel) / stride + 1, kernel * kernel);
        let mut s = Sketch::default();
        let x = s.x(&[n, c, side, side], 1);
        let mut seen = x;
        for axis in [2, 3] {
            let op = Op::Windows { axis, size: kernel as u32, step: stride as u32, dilation: 1 };
            seen = s.op(op, &[seen]);
        }
        let copy = |s: &mut Sketch, v| {
            let v = s.un(Unary::Neg, v);
            s.un(Unary::Neg, v)
        };
        let places = count * count;
        // [n, c kernel kernel, places], with a weight whose kernel is turned around.
        let columns = s.permute(seen, &[0, 1, 4, 5, 2, 3]);
        let columns = s.to(Op::Reshape, &[columns], &[n, c * cell, places]);
        let w = s.x(&[c, m, cell], 2);
        let w = s.permute(w, &[1, 0, 2]);
        let w = s.to(Op::Reshape, &[w], &[1, m, c * cell]);
        let w = s.to(Op::Expand, &[w], &[n, m, c * cell]);
        let y = s.op(Op::MatMul, &[w, columns]);
        let copies = [w, columns].map(|v| copy(&mut s, v));
        let z = s.op(Op::MatMul, &copies);
        // [n places, c kernel kernel]: neighbours are terms.
        let terms = s.permute(seen, &[0, 2, 3, 1, 4, 5]);
        let terms = s.to(Op::Reshape, &[terms], &[n * places, c * cell]);
        let g = s.x(&[n, m, places], 3);
        let g = s.permute(g, &[1, 0, 2]);
        let g = s.to(Op::Reshape, &[g], &[m, n * places]);
        let u = s.op(Op::MatMul, &[g, terms]);
        let copies = [g, terms].map(|v| copy(&mut s, v));
        let v = s.op(Op::MatMul, &copies);
        for pool in &pools {
            let all = with_threads(*pool, || s.check(&[y, z, u, v], 2e-4));
            assert!(all[0] == all[1] && all[2] == all[3], "{n} {c} {side} {kernel} {stride} {m} {pool:?}");
        }
    }
}

/// What is padded is computed within, in parts, and the margin is zeros; also where it is on some sides alone.
#[test]
fn margins_of_padded_values() {
    let pools = [1, 3];
    for (dims, lo, to) in [
        (vec![7, 40, 30], [0, 1, 2], vec![7, 42, 37]),
        (vec![3, 5], [2, 0, 0], vec![9, 5]),
        (vec![70, 90], [0, 3, 0], vec![70, 93]),
        (vec![400, 301], [1, 1, 0], vec![402, 302]),
    ] {
        let mut s = Sketch::default();
        let (x, row) = (s.x(&dims, 1), s.x(&dims[dims.len() - 1..], 2));
        let row = s.like(row, &dims);
        let y = s.bin(Binary::Add, x, row);
        let y = s.un(Unary::Exp, y);
        let mut all = [0; MAX_RANK];
        all[..3].copy_from_slice(&lo);
        let padded = s.to(Op::Pad { lo: all }, &[y], &to);
        let plain = s.to(Op::Pad { lo: all }, &[x], &to);
        let half = s.cast(x, DType::F16);
        let half = s.to(Op::Pad { lo: all }, &[half], &to);
        for pool in &pools {
            with_threads(*pool, || s.check(&[padded, plain, half], 1e-5));
        }
    }
}

#[test]
fn bands_of_products_keep_their_bits() {
    let off = Off::default().with(Fast::ProductBands);
    let pools = [1, 2, 5];
    // The second has few columns: there `gemm` cuts sums by the number of rows that it is given.
    for (m, n, k) in [(129, 97, 300), (130, 40, 600), (300, 260, 777), (128, 65, 70)] {
        let mut s = Sketch::default();
        let (a, b, c) = (s.x(&[m, k], 1), s.x(&[n, k], 2), s.x(&[m, n], 3));
        let b = s.permute(b, &[1, 0]);
        let y = s.op(Op::MatMul, &[a, b]);
        let t = s.un(Unary::Tanh, y);
        let sum = s.bin(Binary::Add, t, c);
        let roots = [y, sum].map(|val| Root { val, into: (val == sum).then_some(2) });
        let kinds = [LeafKind::Buffer, LeafKind::Buffer, LeafKind::Donated];
        let run = |cpu: Cpu| s.run(&cpu, &s.plan(&cpu, &roots, &kinds, true)).unwrap();
        let whole = run(Cpu::new().without(off));
        for pool in &pools {
            assert_eq!(with_threads(*pool, || run(Cpu::new())), whole, "{m} {n} {k} {pool:?}");
        }
        s.check_as(&[y, sum], &[None, Some(2)], &kinds, 1e-4);
    }
}

#[test]
fn batched_products() {
    let mut s = Sketch::default();
    let (a, b) = (s.x(&[6, 40, 50], 1), s.x(&[2, 50, 60], 2));
    let b = s.to(Op::Reshape, &[b], &[2, 1, 50, 60]);
    let b = s.to(Op::Expand, &[b], &[2, 3, 50, 60]);
    let b = s.to(Op::Reshape, &[b], &[6, 50, 60]);
    let y = s.op(Op::MatMul, &[a, b]);
    let z = s.un(Unary::Sigmoid, y);
    let heads = s.to(Op::Reshape, &[z], &[2, 3, 40, 60]);
    let heads = s.permute(heads, &[0, 2, 1, 3]);
    let heads = s.to(Op::Reshape, &[heads], &[80, 180]);
    let heads = s.un(Unary::Neg, heads);
    s.check(&[y, heads], 1e-5);
    s.check(&[heads], 1e-5);
    let c = s.cast(a, DType::F64);
    let d = s.permute(c, &[0, 2, 1]);
    let e = s.op(Op::MatMul, &[c, d]);
    s.check(&[e], 1e-12);
}

#[test]
fn softmax_and_layer_norm() {
    let mut s = Sketch::default();
    let dims = [130, 1100];
    let x = s.x(&dims, 5);
    let m = s.reduce(Reduce::Max, x, &[1]);
    let m = s.to(Op::Expand, &[m], &dims);
    let e = s.bin(Binary::Sub, x, m);
    let e = s.un(Unary::Exp, e);
    let z = s.reduce(Reduce::Sum, e, &[1]);
    let z = s.to(Op::Expand, &[z], &dims);
    let y = s.bin(Binary::Div, e, z);
    let n = s.scalar(DType::F32, 1.0 / 1100.0);
    let mean = s.reduce(Reduce::Sum, x, &[1]);
    let n = s.like(n, &[130, 1]);
    let mean = s.bin(Binary::Mul, mean, n);
    let mean = s.to(Op::Expand, &[mean], &dims);
    let d = s.bin(Binary::Sub, x, mean);
    let d2 = s.bin(Binary::Mul, d, d);
    let v = s.reduce(Reduce::Sum, d2, &[1]);
    let v = s.bin(Binary::Mul, v, n);
    let v = s.un(Unary::Rsqrt, v);
    let v = s.to(Op::Expand, &[v], &dims);
    let norm = s.bin(Binary::Mul, d, v);
    s.check(&[y, norm], 1e-5);
}

#[test]
fn updates_in_place() {
    let mut s = Sketch::default();
    let (w, g) = (s.x(&[700, 200], 1), s.x(&[700, 200], 2));
    let lr = s.scalar(DType::F32, 0.1);
    let lr = s.like(lr, &[700, 200]);
    let step = s.bin(Binary::Mul, g, lr);
    let new = s.bin(Binary::Sub, w, step);
    s.check_as(&[new], &[Some(0)], &[LeafKind::Donated, LeafKind::Buffer], 1e-6);
    // The first store's old element is read after its new one was made.
    let mut s = Sketch::default();
    let (a, b) = (s.x(&[70, 200], 1), s.x(&[70, 200], 2));
    let first = s.bin(Binary::Add, a, b);
    let more = s.un(Unary::Tanh, first);
    let second = s.bin(Binary::Mul, a, more);
    s.check_as(&[first, second], &[Some(0), Some(1)], &[LeafKind::Donated; 2], 1e-6);
    let mut s = Sketch::default();
    let (cache, part) = (s.x(&[4, 64, 8], 1), s.x(&[4, 2, 8], 2));
    let at = s.scalar(DType::U32, 17.0);
    let new = s.op(Op::SliceAssignAt { axis: 1 }, &[cache, part, at]);
    s.check_as(&[new], &[Some(0)], &[LeafKind::Donated, LeafKind::Buffer], 0.0);
    s.scalars[0] = 63.0;
    let cpu = Cpu::new();
    let plan = s.plan(&cpu, &[Root { val: new, into: Some(0) }], &[LeafKind::Donated], true);
    assert_eq!(s.run(&cpu, &plan).unwrap_err().kind(), ErrorKind::Argument);
    assert_eq!(s.run(&Oracle::new(), &plan).unwrap_err().kind(), ErrorKind::Argument);
}

#[test]
fn embeddings_and_their_gradients() {
    let mut s = Sketch::default();
    let (table, mut below) = (s.x(&[100, 24], 1), rng(3));
    let ids: Vec<u32> = (0..3000).map(|_| below(100) as u32).collect();
    let ids = s.input(&[3000, 1], &ids);
    let wide = s.to(Op::Expand, &[ids], &[3000, 24]);
    let picked = s.op(Op::Gather { axis: 0 }, &[table, wide]);
    let grad = s.un(Unary::Tanh, picked);
    let back = s.to(Op::Scatter { axis: 0, kind: Reduce::Sum }, &[wide, grad], &[100, 24]);
    let turned = s.permute(grad, &[1, 0]);
    let wide_turned = s.permute(wide, &[1, 0]);
    let back_turned = s.to(Op::Scatter { axis: 1, kind: Reduce::Sum }, &[wide_turned, turned], &[24, 100]);
    s.check(&[picked, back, back_turned], 1e-4);
}

#[test]
fn an_index_out_of_range_reads_zero_and_raises_the_flag() {
    for scatter in [false, true] {
        let mut s = Sketch::default();
        let (x, i) = (s.input(&[3], &[1f32, 2.0, 3.0]), s.input(&[3], &[0, 7, -1]));
        let y = match scatter {
            false => s.op(Op::Gather { axis: 0 }, &[x, i]),
            true => s.to(Op::Scatter { axis: 0, kind: Reduce::Sum }, &[i, x], &[3]),
        };
        let devices: [&dyn Backend; 2] = [&Cpu::new(), &Oracle::new()];
        for device in devices {
            let plan = s.plan(device, &[Root { val: y, into: None }], &[], true);
            let error = s.run(device, &plan).unwrap_err();
            assert_eq!(error.op(), if scatter { "scatter_add" } else { "gather" });
            assert!(error.to_string().contains("index 7 is not in 0..3"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Data);
            // Once is enough: the next read succeeds.
            let again = device.alloc(64).unwrap();
            device.read(&[(again, 4)]).unwrap().wait(WAIT).unwrap();
        }
    }
}

#[test]
fn random_words_are_those_of_philox() {
    let mut s = Sketch::default();
    let keys: Vec<Val> = [0.0, 0.0, 0.0, 0.0].map(|x| s.scalar(DType::U32, x)).to_vec();
    let bits = s.to(Op::Random, &keys, &[40, 50]);
    let part =
        s.to(Op::Slice(Steps { start: [3, 1, 0, 0, 0, 0, 0, 0], step: [2; MAX_RANK] }), &[bits], &[10, 20]);
    let y = s.check(&[bits, part], 0.0);
    assert_eq!(y[0][..4], 0x6627_e8d5u32.to_le_bytes());
    // Rows 3.. of a batch are rows 0.. of one that starts at row 3.
    s.scalars[3] = 3.0;
    let later = s.check(&[bits], 0.0);
    assert_eq!(later[0][..37 * 200], y[0][3 * 200..]);
}
