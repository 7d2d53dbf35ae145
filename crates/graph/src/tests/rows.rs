//! Row programs: what becomes one, and what is left apart and why.

use super::*;
use crate::{Binary, Expr, Fast, Group, Kind, Off, Reduce, Unary};

fn spread(s: &mut Sketch, kind: Reduce, x: Val, axis: usize) -> Val {
    let dims = s.dims(x);
    let y = s.reduce(kind, x, &[axis]);
    s.to(Op::Expand, &[y], &dims)
}

fn softmax(s: &mut Sketch, x: Val, axis: usize) -> Val {
    let m = spread(s, Reduce::Max, x, axis);
    let d = s.bin(Binary::Sub, x, m);
    let e = s.un(Unary::Exp, d);
    let z = spread(s, Reduce::Sum, e, axis);
    s.bin(Binary::Div, e, z)
}

/// `dx` of a softmax `y`.
fn softmax_backward(s: &mut Sketch, y: Val, dy: Val) -> Val {
    let p = s.bin(Binary::Mul, y, dy);
    let z = spread(s, Reduce::Sum, p, 1);
    let d = s.bin(Binary::Sub, dy, z);
    s.bin(Binary::Mul, y, d)
}

fn groups(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|s| s.group.to_string()).collect()
}

/// Plans, compares with the graph's own meaning, also with donated leaves; the groups' text.
#[track_caller]
fn told(s: &Sketch, roots: &[Val]) -> Vec<String> {
    let plan = planned(s, roots, &FUSED);
    verify(s, &plan, 5);
    let asked: Vec<Root> = roots.iter().map(|v| Root { val: *v, into: None }).collect();
    let donated = checked(s, &asked, &s.leaves(LeafKind::Donated), &FUSED, &caps());
    verify(s, &donated, 6);
    groups(&plan)
}

#[test]
fn softmax_and_its_logarithm_are_one_group() {
    let mut s = Sketch::new();
    let x = s.x(&[5, 7]);
    let y = softmax(&mut s, x, 1);
    assert_eq!(told(&s, &[y]), ["row program of 2 levels [5] over [7] reads [%0] writes [%7]"]);
    let mut s = Sketch::new();
    let x = s.x(&[5, 7]);
    let m = spread(&mut s, Reduce::Max, x, 1);
    let d = s.bin(Binary::Sub, x, m);
    let e = s.un(Unary::Exp, d);
    let z = s.reduce(Reduce::Sum, e, &[1]);
    let z = s.un(Unary::Log, z);
    let z = s.to(Op::Expand, &[z], &[5, 7]);
    let y = s.bin(Binary::Sub, d, z);
    assert_eq!(told(&s, &[y]), ["row program of 2 levels [5] over [7] reads [%0] writes [%8]"]);
}

#[test]
fn rows_may_lie_on_any_axis() {
    for (axis, text) in [(0, "[35] over [3]"), (1, "[3, 7] over [5]"), (2, "[15] over [7]")] {
        let mut s = Sketch::new();
        let x = s.x(&[3, 5, 7]);
        let y = softmax(&mut s, x, axis);
        let want = format!("row program of 2 levels {text} reads [%0] writes [%7]");
        assert_eq!(told(&s, &[y]), [want]);
    }
    // Of a transposed operand.
    let mut s = Sketch::new();
    let x = s.x(&[7, 5]);
    let x = s.permute(x, &[1, 0]);
    let y = softmax(&mut s, x, 1);
    assert_eq!(told(&s, &[y]), ["row program of 2 levels [5] over [7] reads [%0] writes [%8]"]);
}

#[test]
fn softmax_backward_is_one_group() {
    let mut s = Sketch::new();
    let (y, dy) = (s.x(&[5, 7]), s.x(&[5, 7]));
    let dx = softmax_backward(&mut s, y, dy);
    assert_eq!(told(&s, &[dx]), ["row program of 1 level [5] over [7] reads [%0, %1] writes [%6]"]);
    // With the forward pass, whose result is asked for too.
    let mut s = Sketch::new();
    let (x, dy) = (s.x(&[5, 7]), s.x(&[5, 7]));
    let y = softmax(&mut s, x, 1);
    let dx = softmax_backward(&mut s, y, dy);
    let want = ["row program of 3 levels [5] over [7] reads [%0, %1] writes [%8, %13]"];
    assert_eq!(told(&s, &[y, dx]), want);
}

/// `x` normalised over `axes`, the mean and the reciprocal of the deviation.
fn norm(s: &mut Sketch, x: Val, axes: &[usize]) -> [Val; 3] {
    let dims = s.dims(x);
    let n: usize = axes.iter().map(|a| dims[*a]).product();
    let small: Vec<usize> =
        dims.iter().enumerate().map(|(a, d)| if axes.contains(&a) { 1 } else { *d }).collect();
    let scale = s.scalar(DType::F32);
    let _ = n;
    let scale = s.like(scale, &small);
    let mean = s.reduce(Reduce::Sum, x, axes);
    let mean = s.bin(Binary::Mul, mean, scale);
    let wide = s.to(Op::Expand, &[mean], &dims);
    let d = s.bin(Binary::Sub, x, wide);
    let d2 = s.bin(Binary::Mul, d, d);
    let var = s.reduce(Reduce::Sum, d2, axes);
    let var = s.bin(Binary::Mul, var, scale);
    let r = s.un(Unary::Rsqrt, var);
    let wide = s.to(Op::Expand, &[r], &dims);
    [s.bin(Binary::Mul, d, wide), mean, r]
}

#[test]
fn norms_are_one_group() {
    let mut s = Sketch::new();
    let x = s.x(&[4, 3, 5]);
    let [y, mean, r] = norm(&mut s, x, &[1, 2]);
    let text = told(&s, &[y, mean, r]);
    assert_eq!(text, ["row program of 2 levels [4] over [15] reads [%0] writes [%5, %11, %13]"]);
    // Batch norm: channels in the middle.
    let mut s = Sketch::new();
    let (x, w) = (s.x(&[4, 3, 5]), s.x(&[3]));
    let [y, ..] = norm(&mut s, x, &[0, 2]);
    let w = s.reshape(w, &[1, 3, 1]);
    let w = s.to(Op::Expand, &[w], &[4, 3, 5]);
    let y = s.bin(Binary::Mul, y, w);
    assert_eq!(told(&s, &[y]).len(), 1);
    // Group norm: groups of two channels, a weight for each channel.
    let mut s = Sketch::new();
    let (x, w) = (s.x(&[3, 4, 5]), s.x(&[4]));
    let grouped = s.reshape(x, &[3, 2, 10]);
    let [y, ..] = norm(&mut s, grouped, &[2]);
    let y = s.reshape(y, &[3, 4, 5]);
    let w = s.reshape(w, &[1, 4, 1]);
    let w = s.to(Op::Expand, &[w], &[3, 4, 5]);
    let y = s.bin(Binary::Mul, y, w);
    let text = told(&s, &[y]);
    assert_eq!(text.len(), 1, "{text:?}");
}

#[test]
fn what_is_picked_by_index_is_in_the_row() {
    let mut s = Sketch::new();
    let (x, at) = (s.x(&[5, 7]), s.input(&[5, 1], DType::I32));
    let m = s.reduce(Reduce::Max, x, &[1]);
    let wide = s.to(Op::Expand, &[m], &[5, 7]);
    let d = s.bin(Binary::Sub, x, wide);
    let e = s.un(Unary::Exp, d);
    let z = s.reduce(Reduce::Sum, e, &[1]);
    let picked = s.op(Op::Gather { axis: 1 }, &[x, at]);
    let picked = s.bin(Binary::Sub, picked, m);
    let l = s.un(Unary::Log, z);
    let each = s.bin(Binary::Sub, l, picked);
    let z = s.to(Op::Expand, &[z], &[5, 7]);
    let p = s.bin(Binary::Div, e, z);
    let text = told(&s, &[each, p]);
    assert_eq!(text.len(), 1, "{text:?}");
}

/// The residual that a norm follows is stored by the norm's own kernel.
#[test]
fn what_rows_are_made_of_may_be_stored_too() {
    let mut s = Sketch::new();
    let (a, b) = (s.x(&[6, 8]), s.x(&[6, 8]));
    let x = s.bin(Binary::Add, a, b);
    let [y, ..] = norm(&mut s, x, &[1]);
    let text = told(&s, &[x, y]);
    assert_eq!(text.len(), 1, "{text:?}");
}

#[test]
fn reasons_are_printed() {
    // Few long rows.
    let mut s = Sketch::new();
    let x = s.x(&[3, 40_000]);
    let y = softmax(&mut s, x, 1);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(plan.steps.len(), 3, "{plan}");
    assert!(plan.notes.iter().any(|n| n.contains("a few long rows")), "{plan}");
    // Rows that run across memory, too few to fill a device.
    for (rows, apart) in [(96, true), (8192, false)] {
        let mut s = Sketch::new();
        let (a, b) = (s.x(&[300, rows]), s.x(&[300, rows]));
        let x = s.bin(Binary::Add, a, b);
        let y = s.reduce(Reduce::Sum, x, &[0]);
        let plan = planned(&s, &[x, y], &FUSED);
        assert_eq!(plan.steps.len(), if apart { 2 } else { 1 }, "{plan}");
        assert_eq!(plan.notes.iter().any(|n| n.contains("lie apart")), apart, "{plan}");
    }
    // Packed results.
    let mut s = Sketch::new();
    let x = s.x(&[5, 7]);
    let y = softmax(&mut s, x, 1);
    let y = s.cast(y, DType::F16);
    let plan = planned(&s, &[y], &FUSED);
    assert!(plan.notes.iter().any(|n| n.contains("words of packed results")), "{plan}");
    verify(&s, &plan, 3);
    // What is fused has no reason not to be.
    let mut s = Sketch::new();
    let x = s.x(&[5, 7]);
    let y = softmax(&mut s, x, 1);
    assert!(planned(&s, &[y], &FUSED).notes.is_empty());
    // Switched off.
    let off = Caps { off: Off::default().with(Fast::RowPrograms), ..caps() };
    let roots = [Root { val: y, into: None }];
    let plan = checked(&s, &roots, &s.leaves(LeafKind::Buffer), &FUSED, &off);
    assert_eq!(plan.steps.len(), 3, "{plan}");
}

/// Random numbers along a row are made once: rows of them are stored before they are reduced.
#[test]
fn random_numbers_are_not_made_again() {
    let mut s = Sketch::new();
    let keys: Vec<Val> = (0..4).map(|_| s.scalar(DType::U32)).collect();
    let words = s.graph.add(Op::Random, &keys, Some(Shape::new(&[5, 8])), None).unwrap();
    let x = s.cast(words, DType::F32);
    let y = softmax(&mut s, x, 1);
    let plan = planned(&s, &[y, x], &FUSED);
    let random = |g: &Group| g.body.exprs.iter().any(|(e, _)| matches!(e, Expr::Random { .. }));
    assert!(plan.steps.iter().all(|s| s.group.kind != Kind::Row || !random(&s.group)), "{plan}");
    verify(&s, &plan, 4);
}

/// Elements of several parts by turns are found by divisions: they are stored before rows of them are reduced, except
/// where a pass over memory costs more.
#[test]
fn what_takes_divisions_is_not_made_again() {
    let mut s = Sketch::new();
    let parts: Vec<Val> = (0..4).map(|_| s.x(&[1, 5, 8])).collect();
    let all = s.op(Op::Concat { axis: 0 }, &parts);
    let turns = s.permute(all, &[1, 2, 0]);
    let x = s.reshape(turns, &[5, 32]);
    let x = s.un(Unary::Relu, x);
    let [y, ..] = norm(&mut s, x, &[1]);
    let text = told(&s, &[x, y]);
    assert!(
        matches!(&text[..], [x, y] if x.starts_with("pointwise") && y.starts_with("row program")),
        "{text:?}"
    );
    let roots = [x, y].map(|val| Root { val, into: None });
    let cpu = Caps { kind: DeviceKind::Cpu, ..caps() };
    assert_eq!(checked(&s, &roots, &s.leaves(LeafKind::Buffer), &FUSED, &cpu).steps.len(), 1);
}

/// A table read at places that change along the row, by an index that does not.
#[test]
fn tables_may_be_read_along_a_row() {
    for dims in [vec![5, 7], vec![7]] {
        let mut s = Sketch::new();
        let (x, at, table) = (s.x(&dims), s.input(&dims, DType::I32), s.x(&[3]));
        let flat = s.reshape(at, &[dims.iter().product()]);
        let w = s.op(Op::Gather { axis: 0 }, &[table, flat]);
        let w = s.reshape(w, &dims);
        let m = spread(&mut s, Reduce::Max, x, dims.len() - 1);
        let d = s.bin(Binary::Sub, x, m);
        let y = s.bin(Binary::Mul, d, w);
        assert_eq!(told(&s, &[y]).len(), 1);
    }
}

/// Two sums of which one is divided by the other are a reduction of two accumulators.
#[test]
fn sums_of_one_row_are_a_reduction() {
    let mut s = Sketch::new();
    let (x, w) = (s.x(&[5, 7]), s.x(&[5, 7]));
    let p = s.bin(Binary::Mul, x, w);
    let (a, b) = (s.reduce(Reduce::Sum, p, &[1]), s.reduce(Reduce::Sum, w, &[1]));
    let y = s.bin(Binary::Div, a, b);
    let text = told(&s, &[y]);
    assert_eq!(text, ["reduce [5] over [7] reads [%0, %1] writes [%5]"]);
}
