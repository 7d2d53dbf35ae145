//! Texts of groups made by hand: what few plans hold.

use smallvec::smallvec;
use wgrad_graph::{
    Binary, Body, CustomId, CustomSpec, Dynamic, Expr, Group, Index, Kind, Loc, Step, Store, Unary, View,
};

use super::*;

/// A pointwise step over `dims`: `body`'s last expression is stored row-major.
fn step(graph: &mut Graph, dims: &[usize], operands: Vec<Val>, scalars: Vec<NodeId>, mut body: Body) -> Step {
    let dtype = body.exprs.last().unwrap().1;
    let val = Val::of(graph.push(wgrad_graph::Node {
        op: Op::Input,
        inputs: Default::default(),
        outs: smallvec![Out { shape: Shape::new(dims), dtype }],
        after: Default::default(),
        segment: 0,
        at: None,
    }));
    body.indices.push(Index::linear(dims));
    let store =
        Store { val, x: body.exprs.len() as u32 - 1, index: body.indices.len() as u16 - 1, base: None };
    Step {
        reads: (0..operands.len() as u32).map(Loc::Leaf).collect(),
        writes: vec![Loc::Slot(0)],
        batch: 0,
        group: Arc::new(Group {
            kind: Kind::Pointwise,
            dims: dims.into(),
            reduced: 0,
            operands,
            scalars,
            body,
            accs: Vec::new(),
            stores: vec![store],
            nodes: vec![val.node],
        }),
    }
}

#[test]
fn rank_eight_with_seven_strided_operands_fits() {
    let dims = [2, 3, 4, 5, 2, 3, 2, 3];
    let mut s = Sketch::default();
    let operands: Vec<Val> = (0..7).map(|_| s.x(&dims)).collect();
    let gain = s.scalar(DType::F32);
    let mut body = Body::default();
    for o in 0..7u16 {
        let mut view = View::linear(&dims);
        view.strides.iter_mut().for_each(|s| *s = *s * 2 + 1 + i64::from(o));
        view.offset = -3;
        view.valid = Some(dims.iter().map(|d| 1..*d).collect());
        body.indices.push(Index { views: smallvec![view] });
        body.exprs.push((Expr::Load { operand: o, index: o }, DType::F32));
    }
    body.exprs.push((Expr::Scalar { scalar: 0 }, DType::F32));
    for o in 0..7u32 {
        let before = body.exprs.len() as u32 - 1;
        body.exprs.push((Expr::Binary { op: Binary::Mul, x: before, w: o }, DType::F32));
    }
    let step = step(&mut s.graph, &dims, operands, vec![gain.node], body);
    let caps = gpu();
    let lowered = lower(&step, &s.graph, &[gain.node], &caps).unwrap();
    check_launch(&lowered.launches[0], &caps);
    assert!(matches!(lowered.launches[0].params, Params::Spilled { .. }));
    assert_eq!(lowered.launches[0].bindings.len(), 8);
}

#[test]
fn views_upon_views_with_offsets_known_later() {
    let dims = [4, 6];
    let mut s = Sketch::default();
    let x = s.x(&[40]);
    let start = s.scalar(DType::U32);
    let mut first = View::linear(&dims);
    first.strides = smallvec![1, 4];
    let mut second = View::linear(&[3, 2, 4]);
    second.strides = smallvec![-8, 4, 1];
    second.offset = 16;
    second.valid = Some(smallvec![0..3, 1..2, 0..4]);
    second.dynamic.push(Dynamic { scalar: 0, stride: 2 });
    let body = Body {
        exprs: vec![
            (Expr::Load { operand: 0, index: 0 }, DType::F32),
            (Expr::Coord { index: 0 }, DType::I32),
            (Expr::Valid { index: 0 }, DType::Bool),
            (Expr::Cast { x: 1 }, DType::F32),
            (Expr::Select { c: 2, x: 0, w: 3 }, DType::F32),
        ],
        indices: vec![Index { views: smallvec![first, second] }],
    };
    let step = step(&mut s.graph, &dims, vec![x], vec![start.node], body);
    let caps = gpu();
    let lowered = lower(&step, &s.graph, &[start.node], &caps).unwrap();
    check_launch(&lowered.launches[0], &caps);
    assert!(lowered.launches[0].words.iter().any(|w| matches!(w, Word::Scalar(0, _))));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut s = Sketch::default();
    let operands: Vec<Val> = (0..9).map(|_| s.x(&[4])).collect();
    let mut body = Body { exprs: Vec::new(), indices: vec![Index::linear(&[4])] };
    for o in 0..9u16 {
        body.exprs.push((Expr::Load { operand: o, index: 0 }, DType::F32));
    }
    for o in 0..9u32 {
        let before = body.exprs.len() as u32 - 1;
        body.exprs.push((Expr::Binary { op: Binary::Add, x: before, w: o }, DType::F32));
    }
    let many = step(&mut s.graph, &[4], operands, Vec::new(), body);
    let caps = gpu();
    let error = lower(&many, &s.graph, &[], &caps).unwrap_err();
    assert_eq!(error.kind(), wgrad_graph::ErrorKind::Limit);

    let x = s.input(&[4], DType::F64);
    let body = Body {
        exprs: vec![
            (Expr::Load { operand: 0, index: 0 }, DType::F64),
            (Expr::Unary { op: Unary::Neg, x: 0 }, DType::F64),
        ],
        indices: vec![Index::linear(&[4])],
    };
    let wide = step(&mut s.graph, &[4], vec![x], Vec::new(), body);
    let error = lower(&wide, &s.graph, &[], &caps).unwrap_err();
    assert_eq!(error.kind(), wgrad_graph::ErrorKind::DType);
}

#[test]
fn a_custom_kernel_is_passed_through() {
    let mut s = Sketch::default();
    let x = s.x(&[8]);
    let wgsl = "@group(0) @binding(0) var<storage, read> x: array<f32>;\n\
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;\n\
        @compute @workgroup_size(8) fn main(@builtin(local_invocation_index) i: u32) { y[i] = x[i]; }";
    let spec = CustomSpec {
        name: "twin".into(),
        wgsl: wgsl.into(),
        dispatch: Box::new(|outs, _| [outs[0].shape.elems() as u32 / 8, 1, 1]),
        cpu: Box::new(|ins, outs| outs[0].copy_from_slice(ins[0])),
    };
    let body = Body { exprs: vec![(Expr::Load { operand: 0, index: 0 }, DType::F32)], indices: Vec::new() };
    let mut step = step(&mut s.graph, &[8], vec![x], Vec::new(), body);
    let mut group = (*step.group).clone();
    group.kind = Kind::Custom(CustomId(7));
    step.group = Arc::new(group);
    let caps = gpu();
    assert!(lower(&step, &s.graph, &[], &caps).is_err(), "not registered");
    s.graph.register(CustomId(7), &Arc::new(spec));
    let lowered = lower(&step, &s.graph, &[], &caps).unwrap();
    let launch = &lowered.launches[0];
    assert_eq!(launch.source, wgsl);
    assert_eq!(launch.grid, [1, 1, 1]);
    assert_eq!(launch.bindings.iter().map(|b| b.written).collect::<Vec<_>>(), [false, true]);
    validate(&launch.source);
    // A text that would pass for one of ours, and so run unchecked, is refused; the word alone is not.
    let sly = [wgsl.replace("storage, read>", "storage, ACCESS0>"), format!("// ACCESS\n{wgsl}")];
    for (id, (wgsl, fine)) in (8..).map(CustomId).zip(sly.into_iter().zip([false, true])) {
        let spec = CustomSpec {
            name: "sly".into(),
            wgsl,
            dispatch: Box::new(|_, _| [1, 1, 1]),
            cpu: Box::new(|_, _| ()),
        };
        let mut group = (*step.group).clone();
        group.kind = Kind::Custom(id);
        step.group = Arc::new(group);
        s.graph.register(id, &Arc::new(spec));
        assert_eq!(lower(&step, &s.graph, &[], &caps).is_ok(), fine);
    }
}

#[test]
fn a_half_in_the_place_of_another_dtype_shares_words() {
    let caps = Caps { native_half: true, ..gpu() };
    for n in [6, 7, 65536] {
        let mut s = Sketch::default();
        let x = s.x(&[n]);
        let h = s.input(&[n], DType::F16);
        let body = || Body {
            exprs: vec![
                (Expr::Load { operand: 0, index: 0 }, DType::F32),
                (Expr::Load { operand: 1, index: 0 }, DType::F16),
                (Expr::Cast { x: 1 }, DType::F32),
                (Expr::Binary { op: Binary::Add, x: 0, w: 2 }, DType::F32),
                (Expr::Cast { x: 3 }, DType::F16),
            ],
            indices: vec![Index::linear(&[n])],
        };
        let mut step = step(&mut s.graph, &[n], vec![x, h], Vec::new(), body());
        let text = |step: &Step| {
            let lowered = lower(step, &s.graph, &[], &caps).unwrap();
            lowered.launches.iter().for_each(|l| check_launch(l, &caps));
            lowered.launches[0].source.clone()
        };
        let native = |step: &Step| {
            let text = text(step);
            text.matches(": array<u16>").count() + text.matches(": array<vec4<u16>>").count()
        };
        // Places of their own; the result where the half lay; where the float lay; all in one.
        assert_eq!(native(&step), 2);
        step.writes = vec![step.reads[1]];
        assert_eq!(native(&step), 1);
        step.writes = vec![step.reads[0]];
        assert_eq!(native(&step), 1);
        step.reads[1] = step.reads[0];
        assert!(!text(&step).contains("u16"), "{}", text(&step));
    }
}
