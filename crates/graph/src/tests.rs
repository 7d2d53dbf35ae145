//! Plans against a direct interpretation of their graphs, without a device.

mod attend;
mod direct;
mod hand;
mod index;
mod program;
mod random;
mod rows;
mod run;

use std::sync::Arc;

use crate::planner::plan_in;
use crate::{Caps, DType, DeviceKind, Graph, LeafKind, NodeId, Off, Op, Options, Plan, Root, Shape, Val};

/// Limits like those of a small GPU.
pub(crate) fn caps() -> Caps {
    Caps {
        name: "test".into(),
        driver: String::new(),
        kind: DeviceKind::OtherGpu,
        max_buffers: 8,
        max_value_bytes: 1 << 40,
        align_bytes: 16,
        immediate_bytes: 128,
        max_invocations: 256,
        max_workgroups: 65535,
        shared_bytes: 16384,
        subgroup: 32,
        f64: false,
        wide: false,
        native_half: false,
        long_words: false,
        long_products: false,
        off: Off::default(),
        half_factors: false,
        cooperative: false,
    }
}

pub(crate) const FUSED: Options = Options { fuse: true, keep: false };

pub(crate) fn rng(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }
}

/// A graph under construction.
pub(crate) struct Sketch {
    pub(crate) graph: Graph,
}

impl Sketch {
    pub(crate) fn new() -> Sketch {
        Sketch { graph: Graph::default() }
    }

    pub(crate) fn input(&mut self, dims: &[usize], dtype: DType) -> Val {
        Val::of(self.graph.push(crate::Node {
            op: Op::Input,
            inputs: Default::default(),
            outs: smallvec::smallvec![crate::Out { shape: Shape::new(dims), dtype }],
            after: Default::default(),
            segment: 0,
            at: None,
        }))
    }

    pub(crate) fn x(&mut self, dims: &[usize]) -> Val {
        self.input(dims, DType::F32)
    }

    pub(crate) fn dims(&self, v: Val) -> Vec<usize> {
        self.graph.out(v).shape.dims().to_vec()
    }

    pub(crate) fn dtype(&self, v: Val) -> DType {
        self.graph.out(v).dtype
    }

    #[track_caller]
    pub(crate) fn op(&mut self, op: Op, ins: &[Val]) -> Val {
        self.graph.add(op, ins, None, None).unwrap()
    }

    #[track_caller]
    pub(crate) fn to(&mut self, op: Op, ins: &[Val], dims: &[usize]) -> Val {
        self.graph.add(op, ins, Some(Shape::new(dims)), None).unwrap()
    }

    pub(crate) fn scalar(&mut self, dtype: DType) -> Val {
        self.graph.add(Op::Scalar, &[], None, Some(dtype)).unwrap()
    }

    pub(crate) fn cast(&mut self, v: Val, dtype: DType) -> Val {
        self.graph.add(Op::Cast, &[v], None, Some(dtype)).unwrap()
    }

    pub(crate) fn un(&mut self, op: crate::Unary, v: Val) -> Val {
        self.op(Op::Unary(op), &[v])
    }

    pub(crate) fn bin(&mut self, op: crate::Binary, a: Val, b: Val) -> Val {
        self.op(Op::Binary(op), &[a, b])
    }

    /// `b` broadcast to `a`, then the operation.
    pub(crate) fn like(&mut self, v: Val, dims: &[usize]) -> Val {
        let mut from = self.dims(v);
        while from.len() < dims.len() {
            from.insert(0, 1);
        }
        let v = self.to(Op::Reshape, &[v], &from);
        self.to(Op::Expand, &[v], dims)
    }

    pub(crate) fn reshape(&mut self, v: Val, dims: &[usize]) -> Val {
        self.to(Op::Reshape, &[v], dims)
    }

    pub(crate) fn permute(&mut self, v: Val, order: &[u8]) -> Val {
        let mut perm = [0; crate::MAX_RANK];
        perm[..order.len()].copy_from_slice(order);
        self.op(Op::Permute(perm), &[v])
    }

    pub(crate) fn reduce(&mut self, kind: crate::Reduce, v: Val, axes: &[usize]) -> Val {
        self.op(Op::Reduce { kind, axes: axes.iter().copied().collect() }, &[v])
    }

    pub(crate) fn matmul(&mut self, a: Val, b: Val) -> Val {
        self.op(Op::MatMul, &[a, b])
    }

    pub(crate) fn leaves(&self, kind: LeafKind) -> Vec<(NodeId, LeafKind)> {
        let nodes = self.graph.nodes().iter().enumerate();
        nodes.filter(|(_, n)| n.op == Op::Input).map(|(i, _)| (i as NodeId, kind)).collect()
    }
}

/// Plans and checks the plan; all leaves are buffers.
#[track_caller]
pub(crate) fn planned(sketch: &Sketch, roots: &[Val], options: &Options) -> Plan {
    let leaves = sketch.leaves(LeafKind::Buffer);
    let roots: Vec<Root> = roots.iter().map(|v| Root { val: *v, into: None }).collect();
    checked(sketch, &roots, &leaves, options, &caps())
}

#[track_caller]
pub(crate) fn checked(
    sketch: &Sketch,
    roots: &[Root],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
) -> Plan {
    ordered(sketch, roots, leaves, options, caps, None)
}

#[track_caller]
pub(crate) fn ordered(
    sketch: &Sketch,
    roots: &[Root],
    leaves: &[(NodeId, LeafKind)],
    options: &Options,
    caps: &Caps,
    deep: Option<bool>,
) -> Plan {
    let plan = plan_in(&Arc::new(sketch.graph.clone()), roots, leaves, options, caps, deep, None).unwrap();
    if let Err(why) = plan.check(caps) {
        panic!("{why}\n{}\n{plan}", sketch.graph);
    }
    plan
}

/// Runs the plan and compares every output with the direct interpretation.
#[track_caller]
pub(crate) fn verify(sketch: &Sketch, plan: &Plan, seed: u64) {
    let (leaves, scalars) = direct::data(&sketch.graph, seed);
    let want = direct::eval(&sketch.graph, &leaves, &scalars);
    let got = run::run(plan, &leaves, &scalars);
    for (output, got) in plan.outputs.iter().zip(&got) {
        let want = &want[output.val.node as usize][output.val.out as usize];
        let close =
            |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-9 * a.abs().max(1.0);
        let same = want.len() == got.len() && want.iter().zip(got).all(|(a, b)| close(*a, *b));
        assert!(same, "{:?}\n{want:?}\n{got:?}\n{}\n{plan}", output.val, sketch.graph);
    }
}

/// Steps whose groups only copy.
pub(crate) fn copies(plan: &Plan) -> usize {
    let copy = |g: &crate::Group| {
        g.kind == crate::Kind::Pointwise
            && g.body.exprs.iter().all(|(e, _)| matches!(e, crate::Expr::Load { .. }))
    };
    plan.steps.iter().filter(|s| copy(&s.group)).count()
}
