//! Texts of row programs.

use super::*;
use wgrad_graph::{Axes, Binary, Kind, Reduce, Unary};

fn reduce(s: &mut Sketch, kind: Reduce, x: Val, axis: usize) -> Val {
    let dims = s.graph.out(x).shape;
    let y = s.op(Op::Reduce { kind, axes: [axis].into_iter().collect::<Axes>() }, &[x]);
    s.to(Op::Expand, &[y], dims.dims())
}

fn softmax(dims: &[usize], axis: usize, dtype: DType) -> Sketch {
    let mut s = Sketch::default();
    let x = s.input(dims, dtype);
    let x = s.cast(x, DType::F32);
    let m = reduce(&mut s, Reduce::Max, x, axis);
    let d = s.op(Op::Binary(Binary::Sub), &[x, m]);
    let e = s.op(Op::Unary(Unary::Exp), &[d]);
    let z = reduce(&mut s, Reduce::Sum, e, axis);
    let y = s.op(Op::Binary(Binary::Div), &[e, z]);
    s.roots = vec![s.cast(y, dtype)];
    s
}

/// Weighted rows of unit length, their lengths, and a number of each row picked by an index.
fn units(dims: [usize; 2]) -> Sketch {
    let mut s = Sketch::default();
    let (x, w, at) = (s.x(&dims), s.x(&dims[1..]), s.input(&[dims[0], 1], DType::I32));
    let sq = s.op(Op::Binary(Binary::Mul), &[x, x]);
    let n = s.op(Op::Reduce { kind: Reduce::Sum, axes: [1].into_iter().collect::<Axes>() }, &[sq]);
    let picked = s.op(Op::Gather { axis: 1 }, &[x, at]);
    let n = s.op(Op::Binary(Binary::Add), &[n, picked]);
    let r = s.op(Op::Unary(Unary::Rsqrt), &[n]);
    let r = s.to(Op::Expand, &[r], &dims);
    let y = s.op(Op::Binary(Binary::Mul), &[x, r]);
    let w = s.to(Op::Reshape, &[w], &[1, dims[1]]);
    let w = s.to(Op::Expand, &[w], &dims);
    let y = s.op(Op::Binary(Binary::Mul), &[y, w]);
    s.roots = vec![y, n];
    s
}

/// Every way in which rows are laid over a device: one lane a row, some, a workgroup; held or read again; quads or
/// not; rows side by side.
#[test]
fn row_programs_of_every_layout() {
    let mut seen = BTreeSet::new();
    for dims in [
        [1000, 10],
        [700, 64],
        [300, 1001],
        [16384, 4096],
        [8192, 32000],
        [64, 100_001],
        [64, 400_000],
        [3, 30],
    ] {
        for caps in [gpu(), software(), Caps { native_half: true, ..gpu() }] {
            for sketch in [softmax(&dims, 1, DType::F32), softmax(&dims, 0, DType::F32), units(dims)] {
                let plan = sketch.plan(&caps, true);
                let rows = plan.steps.iter().filter(|s| s.group.kind == Kind::Row).count();
                let all = launches(&plan, &caps);
                if rows == 1 && plan.steps.len() == 1 {
                    assert_eq!(all.len(), 1);
                    seen.insert(all[0].source.clone());
                }
            }
        }
    }
    assert!(seen.len() > 20, "{}", seen.len());
}

/// Halves that are words of their own are written by row programs.
#[test]
fn halves_of_row_programs() {
    let caps = Caps { native_half: true, ..gpu() };
    for dtype in [DType::F16, DType::BF16] {
        for dims in [[100, 512], [100, 33]] {
            let plan = softmax(&dims, 1, dtype).plan(&caps, true);
            assert_eq!(plan.steps.len(), 1, "{plan}");
            launches(&plan, &caps);
        }
    }
}

/// Sums over columns of what rows are divided by, as the gradient of a norm's weight has them: by four columns a
/// lane, one part or several, and where that does not fit one.
#[test]
fn columns_are_taken_by_fours() {
    let mut fours = 0;
    for dims in [[16384, 4096], [1000, 256], [300, 130], [40, 8192], [9, 512], [20_000, 128]] {
        for caps in [gpu(), software()] {
            for dtype in [DType::F32, DType::I32] {
                let mut s = Sketch::default();
                let (x, y, m) = (s.input(&dims, dtype), s.input(&dims, dtype), s.input(&[dims[0], 1], dtype));
                let m = s.to(Op::Expand, &[m], &dims);
                let d = s.op(Op::Binary(Binary::Sub), &[x, m]);
                let p = s.op(Op::Binary(Binary::Mul), &[d, y]);
                let axes = || [0].into_iter().collect::<Axes>();
                let a = s.op(Op::Reduce { kind: Reduce::Sum, axes: axes() }, &[p]);
                let b = s.op(Op::Reduce { kind: Reduce::Max, axes: axes() }, &[y]);
                s.roots = vec![a, b];
                let plan = s.plan(&caps, true);
                assert_eq!(plan.steps.len(), 1, "{plan}");
                let all = launches(&plan, &caps);
                fours += usize::from(all[0].source.contains("first_of"));
            }
        }
    }
    assert_eq!(fours, 12);
}

/// Rows scaled to unit length: the gradient of what was scaled, and that of a weight, which is a sum over rows.
fn unit_gradients(dims: [usize; 2], dtype: DType) -> Sketch {
    let mut s = Sketch::default();
    let [x, g] = [0, 1].map(|_| s.input(&dims, dtype)).map(|x| s.cast(x, DType::F32));
    let times = |s: &mut Sketch, x, w| s.op(Op::Binary(Binary::Mul), &[x, w]);
    let square = times(&mut s, x, x);
    let n = s.op(Op::Reduce { kind: Reduce::Sum, axes: [1].into_iter().collect::<Axes>() }, &[square]);
    let r = s.op(Op::Unary(Unary::Rsqrt), &[n]);
    let r = s.to(Op::Expand, &[r], &dims);
    let y = times(&mut s, x, r);
    let of_weight = times(&mut s, g, y);
    let along = reduce(&mut s, Reduce::Sum, of_weight, 1);
    let away = times(&mut s, y, along);
    let d = s.op(Op::Binary(Binary::Sub), &[g, away]);
    let d = times(&mut s, d, r);
    let w = s.op(Op::Reduce { kind: Reduce::Sum, axes: [0].into_iter().collect::<Axes>() }, &[of_weight]);
    s.roots = vec![d, w];
    s
}

/// A reduction of columns that reads what the row program before it reads is summed by that.
#[test]
fn rows_sum_columns_meanwhile() {
    let mut joint = 0;
    let shapes = [[16384, 4096], [8192, 768], [9000, 260], [1055, 4096], [4000, 102]];
    for caps in [gpu(), software(), Caps { native_half: true, ..gpu() }, Caps { subgroup: 1, ..gpu() }] {
        for (dims, dtype) in shapes.into_iter().flat_map(|d| [(d, DType::F32), (d, DType::F16)]) {
            let plan = unit_gradients(dims, dtype).plan(&caps, true);
            let all = crate::prepare::lower(&caps, &plan).unwrap();
            all.iter().flat_map(|l| &l.launches).for_each(|l| check_launch(l, &caps));
            let two =
                all.windows(2).any(|l| l[0].launches.len() == 1 && l[0].launches[0].source.contains("teams"));
            assert!(!two || dims[0] >= 4 * 264 && dims[1] % 4 == 0, "{dims:?}");
            joint += usize::from(two);
            if two {
                // The second launch of the two reads what the first wrote.
                assert!(all.iter().all(|l| l.scratch_bytes > 0), "{plan}");
            }
        }
    }
    // Three shapes: floats on three devices, halves on the one that has words of 16 bits.
    assert_eq!(joint, 12);
}
