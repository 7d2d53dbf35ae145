//! Programs that run in loops of their own: that they are found, and give the bits of any others.

use super::*;
use crate::known::Known;
use crate::step::Compiled;
use wgrad_graph::{Fast, Off, f16};

/// What the steps of the fused plan are known as.
fn known(s: &Sketch, roots: &[Val], off: Off) -> Vec<Option<Known>> {
    let cpu = Cpu::new().without(off);
    let roots: Vec<Root> = roots.iter().map(|val| Root { val: *val, into: None }).collect();
    let plan = s.plan(&cpu, &roots, &[], true);
    plan.steps.iter().map(|step| Compiled::new(&plan, step, cpu.caps()).tail.known).collect()
}

/// New weight, mean and mean of squares, as the optimizer has them.
fn adamw(s: &mut Sketch, [w, g, m, v]: [Val; 4], numbers: [Val; 7], turned: bool) -> [Val; 3] {
    let dims = s.dims(w);
    let [rate1, rate2, scale1, scale2, eps, decay, lr] = numbers.map(|number| s.like(number, &dims));
    let both = |s: &mut Sketch, op: Binary, a: Val, b: Val| {
        let (a, b) = if turned && matches!(op, Binary::Add | Binary::Mul) { (b, a) } else { (a, b) };
        s.bin(op, a, b)
    };
    let away = both(s, Binary::Sub, g, m);
    let step = both(s, Binary::Mul, away, rate1);
    let m = both(s, Binary::Add, m, step);
    let square = both(s, Binary::Mul, g, g);
    let away = both(s, Binary::Sub, square, v);
    let step = both(s, Binary::Mul, away, rate2);
    let v = both(s, Binary::Add, v, step);
    let top = both(s, Binary::Mul, m, scale1);
    let scaled = both(s, Binary::Mul, v, scale2);
    let root = s.un(Unary::Sqrt, scaled);
    let bottom = both(s, Binary::Add, root, eps);
    let direction = both(s, Binary::Div, top, bottom);
    let shrunk = both(s, Binary::Mul, w, decay);
    let sum = both(s, Binary::Add, direction, shrunk);
    let step = both(s, Binary::Mul, sum, lr);
    [both(s, Binary::Sub, w, step), m, v]
}

#[test]
fn steps_of_adamw() {
    for (n, turned, of_scalars) in [(300_007usize, false, true), (1031, true, false), (1, false, false)] {
        let mut s = Sketch::default();
        let states = [1, 2, 3].map(|seed| s.x(&[n], seed));
        let squares: Vec<f32> = (0..n).map(|i| (i % 91) as f32 / 64.0).collect();
        let v = s.input(&[n], &squares);
        let numbers = [0.1, 0.001, 1.0 / 0.19, 1.0 / 0.002, 1e-8, 0.01, 1e-3];
        let numbers = numbers.map(|x| match of_scalars {
            true => s.scalar(DType::F32, x),
            false => s.input(&[], &[x as f32]),
        });
        let roots = adamw(&mut s, [states[0], states[1], states[2], v], numbers, turned);
        let found = known(&s, &roots, Off::default());
        assert!(n == 1 || matches!(found[..], [Some(Known::AdamW(_))]), "{n}: {found:?}");
        assert!(known(&s, &roots, Off::default().with(Fast::Fusion)).iter().all(Option::is_none));
        s.check(&roots, 1e-5);
        // Where they lie.
        let kinds = [LeafKind::Donated, LeafKind::Buffer, LeafKind::Donated, LeafKind::Donated];
        s.check_as(&roots, &[Some(0), Some(2), Some(3)], &kinds, 1e-5);
        s.check_as(&roots, &[Some(0), None, Some(3)], &kinds, 1e-5);
    }
}

#[test]
fn what_is_not_quite_adamw() {
    // A mean of cubes, and a weight that decays by the gradient.
    let mut s = Sketch::default();
    let n = 5003;
    let [w, g, m] = [1, 2, 3].map(|seed| s.x(&[n], seed));
    let v = s.input(&[n], &vec![0.5f32; n]);
    let numbers = [0.1, 0.001, 5.0, 500.0, 1e-8, 0.01, 1e-3].map(|x| s.scalar(DType::F32, x));
    let [new, m_new, _] = adamw(&mut s, [w, g, m, v], numbers, false);
    let cube = s.bin(Binary::Mul, g, m);
    let away = s.bin(Binary::Sub, cube, v);
    let rate = s.like(numbers[1], &[n]);
    let step = s.bin(Binary::Mul, away, rate);
    let other = s.bin(Binary::Add, v, step);
    let roots = [new, m_new, other];
    assert!(known(&s, &roots, Off::default()).iter().all(Option::is_none));
    s.check(&roots, 1e-5);
}

#[test]
fn rows_of_a_table() {
    let (words, ids) = (301usize, 2003usize);
    let mut below = rng(5);
    let at: Vec<i32> = (0..ids).map(|_| below(words) as i32).collect();
    for width in [16usize, 77, 300] {
        let mut s = Sketch::default();
        let table = s.x(&[words, width], 1);
        let longs: Vec<i64> = at.iter().map(|i| i64::from(*i)).collect();
        let rows = [s.input(&[ids, 1], &at), s.input(&[ids, 1], &longs)];
        let rows = rows.map(|rows| {
            let rows = s.to(Op::Expand, &[rows], &[ids, width]);
            s.op(Op::Gather { axis: 0 }, &[table, rows])
        });
        for rows in rows {
            let found = known(&s, &[rows], Off::default());
            assert!(matches!(found[..], [Some(Known::Rows(_))]), "{width}: {found:?}");
            assert!(known(&s, &[rows], Off::default().with(Fast::Fusion)).iter().all(Option::is_none));
        }
        s.check(&rows, 0.0);
    }
    // An index out of range, told by the first position that has it.
    for (wrong, index) in [(700usize, 301i32), (3, -1)] {
        let mut at = at.clone();
        (at[wrong], at[ids - 1]) = (index, 999);
        let mut s = Sketch::default();
        let (table, rows) = (s.x(&[words, 40], 1), s.input(&[ids, 1], &at));
        let rows = s.to(Op::Expand, &[rows], &[ids, 40]);
        let y = s.op(Op::Gather { axis: 0 }, &[table, rows]);
        let cpu = Cpu::new();
        let error = s.run(&cpu, &s.plan(&cpu, &[Root { val: y, into: None }], &[], true)).unwrap_err();
        assert!(error.to_string().contains(&format!("index {index} is not in 0..{words}")), "{error}");
    }
}

#[test]
fn sums_of_halves_meet_in_one_tree() {
    // Whole chunks, stacks of rows, and what is left of them.
    for [rows, width] in [[300, 517], [1030, 2048], [2048, 260]] {
        let mut below = rng(rows as u64);
        let half = |x: usize| f16::from_f32(x as f32 / 1024.0 - 1.0);
        let data: Vec<f16> = (0..rows * width).map(|_| half(below(2048))).collect();
        let turned: Vec<f16> = (0..rows * width).map(|i| data[i % rows * width + i / rows]).collect();
        for kind in [Reduce::Sum, Reduce::Max] {
            let mut s = Sketch::default();
            let (x, t) = (s.input(&[rows, width], &data), s.input(&[width, rows], &turned));
            let (x, t) = (s.cast(x, DType::F32), s.cast(t, DType::F32));
            let [down, along, there] = [(x, 0), (t, 1), (x, 1)].map(|(v, axis)| s.reduce(kind, v, &[axis]));
            let found = s.check(&[down, along, there], 1e-6);
            assert!(found[0] == found[1], "{kind:?} of {rows} rows of {width}");
        }
    }
}
