//! Row programs: bit-equal to kernels of their own, in several threads, in place, with numbers once a row.

use super::*;
use wgrad_graph::{Kind, Unary};

fn spread(s: &mut Sketch, kind: Reduce, x: Val) -> Val {
    let dims = s.graph.out(x).shape.dims().to_vec();
    let y = s.reduce(kind, x, &[dims.len() - 1]);
    s.to(Op::Expand, &[y], &dims)
}

fn softmax(s: &mut Sketch, x: Val) -> Val {
    let m = spread(s, Reduce::Max, x);
    let d = s.bin(Binary::Sub, x, m);
    let e = s.un(Unary::Exp, d);
    let z = spread(s, Reduce::Sum, e);
    s.bin(Binary::Div, e, z)
}

/// How many row programs there are, of how many steps.
fn programs(s: &Sketch, roots: &[Val]) -> (usize, usize) {
    let roots: Vec<Root> = roots.iter().map(|val| Root { val: *val, into: None }).collect();
    let plan = s.plan(&Cpu::new(), &roots, &[], true);
    (plan.steps.iter().filter(|s| s.group.kind == Kind::Row).count(), plan.steps.len())
}

#[test]
fn softmax_of_any_size() {
    // Shorter than a block, of several, of several chunks; few rows and enough for all threads.
    for dims in [vec![7, 3], vec![1001, 37], vec![3, 5, 1024], vec![129, 4096], vec![9, 10_007], vec![2, 2]] {
        let mut s = Sketch::default();
        let x = s.x(&dims, 3);
        let y = softmax(&mut s, x);
        assert_eq!(programs(&s, &[y]), (1, 1), "{dims:?}");
        s.check(&[y], 1e-6);
        // Its gradient, in one program with it.
        let dy = s.x(&dims, 4);
        let p = s.bin(Binary::Mul, y, dy);
        let z = spread(&mut s, Reduce::Sum, p);
        let d = s.bin(Binary::Sub, dy, z);
        let dx = s.bin(Binary::Mul, y, d);
        assert_eq!(programs(&s, &[dx]), (1, 1), "{dims:?}");
        s.check(&[dx], 1e-5);
        s.check(&[y, dx], 1e-5);
    }
}

#[test]
fn norms_and_what_they_store_once_a_row() {
    for dims in [[130, 1100], [1030, 9]] {
        let mut s = Sketch::default();
        let (x, r, w) = (s.x(&dims, 5), s.x(&dims, 6), s.x(&dims[1..], 7));
        let x = s.bin(Binary::Add, x, r);
        let n = s.scalar(DType::F32, 1.0 / dims[1] as f64);
        let n = s.like(n, &[dims[0], 1]);
        let mean = s.reduce(Reduce::Sum, x, &[1]);
        let mean = s.bin(Binary::Mul, mean, n);
        let wide = s.to(Op::Expand, &[mean], &dims);
        let d = s.bin(Binary::Sub, x, wide);
        let d2 = s.bin(Binary::Mul, d, d);
        let v = s.reduce(Reduce::Sum, d2, &[1]);
        let v = s.bin(Binary::Mul, v, n);
        let v = s.un(Unary::Rsqrt, v);
        let wide = s.to(Op::Expand, &[v], &dims);
        let y = s.bin(Binary::Mul, d, wide);
        let w = s.like(w, &dims);
        let y = s.bin(Binary::Mul, y, w);
        assert_eq!(programs(&s, &[x, y, mean, v]), (1, 1));
        s.check(&[x, y, mean, v], 1e-4);
        s.check(&[y], 1e-4);
        // In the place of an operand.
        s.check_as(&[y, v], &[Some(0)], &[LeafKind::Donated; 3], 1e-4);
    }
}

/// An index that is out of range raises the flag of a row program too.
#[test]
fn what_is_picked_by_index() {
    let dims = [40, 300];
    let picked = |last: i32| {
        let mut s = Sketch::default();
        let x = s.x(&dims, 8);
        let at: Vec<i32> = (0..40).map(|i| if i == 39 { last } else { i * 7 }).collect();
        let at = s.input(&[40, 1], &at);
        let m = s.reduce(Reduce::Max, x, &[1]);
        let p = s.op(Op::Gather { axis: 1 }, &[x, at]);
        let p = s.bin(Binary::Sub, p, m);
        let wide = s.to(Op::Expand, &[p], &dims);
        let y = s.bin(Binary::Mul, x, wide);
        (s, [y, p])
    };
    let (s, roots) = picked(299);
    assert_eq!(programs(&s, &roots), (1, 1));
    s.check(&roots, 1e-6);
    let (s, roots) = picked(300);
    let roots: Vec<Root> = roots.iter().map(|val| Root { val: *val, into: None }).collect();
    let cpu = Cpu::new();
    let error = s.run(&cpu, &s.plan(&cpu, &roots, &[], true)).unwrap_err();
    assert!(error.to_string().contains("index 300 is not in 0..300"), "{error}");
}

/// Rows whose elements lie apart, and few long rows, are left to kernels of their own.
#[test]
fn rows_that_are_no_programs_here() {
    let mut s = Sketch::default();
    let x = s.x(&[300, 70], 9);
    let x = s.permute(x, &[1, 0]);
    let y = softmax(&mut s, x);
    assert_eq!(programs(&s, &[y]).0, 0);
    s.check(&[y], 1e-6);
    let mut s = Sketch::default();
    let x = s.x(&[3, 20_000], 9);
    let y = softmax(&mut s, x);
    assert_eq!(programs(&s, &[y]).0, 0);
    s.check(&[y], 1e-6);
}
