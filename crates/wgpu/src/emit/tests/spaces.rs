//! Every way to reach elements, in every dtype: views, parts, places from data, creation, and the batch of updates.

use super::options::{Family, STORED, axes_swapped, limits_for};
use super::*;
use wgrad_graph::{Axes, Binary, Kind, MAX_RANK, Reduce, Steps};

/// `x` of `[4, a, b]` (`a` and `b` multiples of four or not) through each operation that moves elements.
fn moved(s: &mut Sketch, x: Val) -> Vec<Val> {
    let dims = s.graph.out(x).shape;
    let (a, b) = (dims[1], dims[2]);
    let (mut part, mut back) = (Steps::ALL, Steps::ALL);
    (part.start[1], part.step[2]) = (1, 2);
    (back.start[2], back.step[2]) = (b as i64 - 1, -1);
    let mut lo = [0; MAX_RANK];
    (lo[0], lo[2]) = (1, 3);
    let start = s.scalar(DType::U32);
    let row = s.to(Op::Slice(Steps::ALL), &[x], &[1, a, b]);
    let turned = s.op(axes_swapped(0, 2), &[x]);
    let again = s.op(axes_swapped(0, 2), &[turned]);
    let window = Op::Windows { axis: 2, size: 3, step: 2, dilation: 2 };
    let seen = s.op(window, &[x]);
    let square = s.to(Op::Slice(Steps::ALL), &[x], &[4, 4, b]);
    vec![
        turned,
        s.to(Op::Reshape, &[turned], &[a, b * 4]),
        s.to(Op::Expand, &[row], &[5, a, b]),
        s.to(Op::Slice(part), &[x], &[4, a - 1, b.div_ceil(2)]),
        s.to(Op::Slice(back), &[x], &[4, a, b]),
        s.to(Op::Pad { lo }, &[x], &[6, a, b + 4]),
        s.op(Op::Concat { axis: 2 }, &[x, x, again]),
        s.to(Op::SliceAt { axis: 1 }, &[x, start], &[4, a - 2, b]),
        s.op(Op::SliceAssign(Steps::ALL), &[x, square]),
        s.op(Op::SliceAssignAt { axis: 1 }, &[x, square, start]),
        seen,
        s.to(Op::Reshape, &[seen], &[4 * a, s.graph.out(seen).shape.elems() / (4 * a)]),
        s.op(Op::Diagonal { a: 0, b: 1 }, &[square]),
    ]
}

#[test]
fn views_of_every_dtype() {
    let mut family = Family::default();
    for dtype in STORED {
        for (a, b) in [(5, 7), (8, 12), (128, 256), (129, 255)] {
            let mut s = Sketch::default();
            let x = s.input(&[4, a, b], dtype);
            for y in moved(&mut s, x) {
                // On its way to a store; to a computation; to several stores of other widths.
                let c = s.cast(y, DType::Bool);
                let f = s.cast(y, DType::F32);
                for roots in [vec![y], vec![c], vec![f, y, c]] {
                    s.roots = roots;
                    family.add(&s);
                }
            }
        }
    }
    family.has(1455, &["vec4<u32>", "params.w"]);
}

#[test]
fn parts_written_in_place() {
    let mut family = Family::default();
    for dtype in STORED {
        for (a, b) in [(5, 7), (8, 12), (128, 256)] {
            let mut s = Sketch::default();
            let (base, part) = (s.input(&[a, b], dtype), s.input(&[a - 1, 4], dtype));
            let start = s.scalar(DType::U32);
            let mut steps = Steps::ALL;
            (steps.start[0], steps.start[1]) = (1, 2);
            let fixed = s.op(Op::SliceAssign(steps), &[base, part]);
            let whole = s.input(&[a - 1, b], dtype);
            let later = s.op(Op::SliceAssignAt { axis: 0 }, &[base, whole, start]);
            for val in [fixed, later] {
                for caps in limits_for(&s.graph) {
                    let graph = Arc::new(s.graph.clone());
                    let leaves: Vec<_> =
                        [base, part, whole].iter().map(|v| (v.node, LeafKind::Donated)).collect();
                    let roots = [Root { val, into: Some(0) }];
                    let plan =
                        plan(&graph, &roots, &leaves, &Options { fuse: true, keep: false }, &caps).unwrap();
                    family.add_plan(&plan, &caps, |_| true);
                }
            }
        }
    }
    family.has(20, &[]);
}

#[test]
fn views_into_reductions_and_products() {
    let mut family = Family::default();
    for (a, b) in [(5, 7), (128, 256)] {
        let mut s = Sketch::default();
        let x = s.x(&[4, a, b]);
        for y in moved(&mut s, x) {
            let dims = s.graph.out(y).shape;
            for axis in 0..dims.rank() {
                let axes = Axes::NONE.with(axis);
                s.roots = vec![s.op(Op::Reduce { kind: Reduce::Max, axes }, &[y])];
                family.add(&s);
            }
            let w = s.x(&[dims[dims.rank() - 1], 20]);
            let flat =
                s.to(Op::Reshape, &[y], &[dims.elems() / dims[dims.rank() - 1], dims[dims.rank() - 1]]);
            s.roots = vec![s.op(Op::MatMul, &[flat, w])];
            family.add(&s);
        }
    }
    family.has(265, &["tak: array<u32"]);
}

#[test]
fn places_from_data() {
    let mut family = Family::default();
    for dtype in STORED {
        for places in [DType::U8, DType::U32, DType::I32, DType::I64] {
            for n in [6, 4096] {
                for axis in 0..2 {
                    let mut s = Sketch::default();
                    let x = s.input(&[20, n], dtype);
                    let idx = s.input(&[20, n], places);
                    let y = s.op(Op::Gather { axis }, &[x, idx]);
                    let f = s.cast(y, DType::F32);
                    let before = s.op(Op::Reduce { kind: Reduce::Sum, axes: Axes::NONE.with(1) }, &[f]);
                    let first = s.input(&[20, 1], places);
                    let after = s.op(Op::Gather { axis: 1 }, &[x, first]);
                    let after = s.cast(after, DType::F32);
                    let after = s.op(Op::Binary(Binary::Add), &[before, after]);
                    for roots in [vec![y], vec![before], vec![after]] {
                        s.roots = roots;
                        family.add(&s);
                    }
                }
            }
        }
    }
    family.has(1144, &["wg_index_i64", "atomicMax"]);
}

#[test]
fn values_from_nothing() {
    let mut family = Family::default();
    for dims in [vec![3, 5], vec![64, 512]] {
        for dtype in STORED {
            let mut s = Sketch::default();
            s.roots = vec![s.full(&dims, dtype)];
            family.add(&s);
            for axis in 0..2 {
                if !matches!(dtype, DType::Bool | DType::U8) && !dtype.is_half() {
                    s.roots = vec![
                        s.graph.add(Op::Iota { axis }, &[], Some(Shape::new(&dims)), Some(dtype)).unwrap(),
                    ];
                    family.add(&s);
                }
            }
            let words = [0; 4].map(|_| s.scalar(DType::U32));
            let bits = s.to(Op::Random, &words, &dims);
            s.roots = vec![s.cast(bits, dtype)];
            family.add(&s);
        }
    }
    family.has(180, &["wg_philox"]);
}

#[test]
fn updates_in_batches() {
    // By the number of values that a step binds, in words of every type.
    let mut texts = BTreeSet::new();
    for dtype in [DType::U32, DType::I32, DType::F32] {
        for operands in 1..=4 {
            for caps in [gpu(), software()] {
                let mut s = Sketch::default();
                let gain = s.scalar(dtype);
                let (flag, flagged) = (s.input(&[], DType::Bool), operands == 3);
                for n in [12, 40_000, 65_536, 7] {
                    let x: Vec<Val> = (0..operands).map(|_| s.input(&[n], dtype)).collect();
                    let gain = s.spread(gain, &[n]);
                    let mut sum = x.iter().fold(gain, |sum, x| s.op(Op::Binary(Binary::Add), &[sum, *x]));
                    if flagged {
                        let flag = s.spread(flag, &[n]);
                        sum = s.op(Op::Select, &[flag, sum, x[0]]);
                    }
                    s.roots.push(sum);
                }
                let plan = s.plan(&caps, true);
                let mut launches = Vec::new();
                for step in &plan.steps {
                    assert_eq!(step.group.kind, Kind::Pointwise);
                    launches.extend(lower(step, &plan.graph, &plan.scalars, &caps).unwrap().launches);
                }
                let mut groups: Vec<Vec<usize>> = Vec::new();
                for i in 0..launches.len() {
                    match groups.iter_mut().find(|g| launches[g[0]].source == launches[i].source) {
                        Some(group) => group.push(i),
                        None => groups.push(vec![i]),
                    }
                }
                for group in groups.iter().filter(|g| g.len() > 1) {
                    let steps: Vec<_> = group.iter().map(|i| &plan.steps[*i]).collect();
                    let singles: Vec<_> = group.iter().map(|i| &launches[*i]).collect();
                    let whole =
                        super::super::batch(&steps, &singles, &plan.graph, &plan.scalars, &caps).unwrap();
                    let whole = whole.expect("equal steps run as one");
                    check_launch(&whole, &caps);
                    texts.insert(whole.source);
                }
            }
        }
    }
    assert!(texts.len() >= 48, "{} texts", texts.len());
}

/// Parts that lie in a whole at multiples of four are read four at a time, with one look at where they end.
#[test]
fn parts_of_whole_fours_move_as_vectors() {
    let mut family = Family::default();
    for (dims, from, size, vectors) in
        [([96, 64], 64, 320, true), ([96, 64], 66, 320, false), ([95, 62], 62, 248, false)]
    {
        let mut s = Sketch::default();
        let [x, y] = [0, 1].map(|_| s.x(&dims));
        let padded = |s: &mut Sketch, x, before: usize| {
            let mut lo = [0; MAX_RANK];
            lo[1] = before as u32;
            s.to(Op::Pad { lo }, &[x], &[dims[0], size])
        };
        let (x, y) = (padded(&mut s, x, 0), padded(&mut s, y, from));
        s.roots = vec![s.op(Op::Binary(Binary::Add), &[x, y])];
        family.add(&s);
        let launches = launches(&s.plan(&gpu(), true), &gpu());
        let all = launches.iter().all(|l| l.source.matches("array<vec4<f32>>").count() == 3);
        assert_eq!(all, vectors, "{dims:?} from {from}");
    }
}
