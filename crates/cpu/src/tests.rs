//! The executor against the oracle, fused against unfused, through real plans.

mod attention;
mod device;
mod known;
mod random;
mod rows;
mod steps;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use wgrad_graph::{
    Args, Backend, Binary, DType, Element, Graph, HostTensor, LeafArg, LeafKind, Node, NodeId, Op, Options,
    Out, Plan, Reduce, Result, Root, Shape, Unary, Val, plan,
};

use crate::{Cpu, Oracle};

pub(crate) const WAIT: Duration = Duration::from_secs(10);

pub(crate) fn rng(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }
}

/// A graph under construction, with the data of its leaves.
#[derive(Default)]
pub(crate) struct Sketch {
    pub(crate) graph: Graph,
    pub(crate) data: Vec<HostTensor>,
    pub(crate) scalars: Vec<f64>,
}

impl Sketch {
    #[track_caller]
    pub(crate) fn input<T: Element>(&mut self, dims: &[usize], data: &[T]) -> Val {
        self.data.push(HostTensor::new(dims, data).unwrap());
        Val::of(self.graph.push(Node {
            op: Op::Input,
            inputs: SmallVec::new(),
            outs: SmallVec::from_buf([Out { shape: Shape::new(dims), dtype: T::DTYPE }]),
            after: SmallVec::new(),
            segment: 0,
            at: Some(std::panic::Location::caller()),
        }))
    }

    /// Numbers in +-2, of which every bit matters.
    pub(crate) fn x(&mut self, dims: &[usize], seed: u64) -> Val {
        let mut below = rng(seed);
        let data: Vec<f32> =
            (0..dims.iter().product()).map(|_| below(1 << 24) as f32 / (1 << 22) as f32 - 2.0).collect();
        self.input(dims, &data)
    }

    pub(crate) fn scalar(&mut self, dtype: DType, x: f64) -> Val {
        self.scalars.push(x);
        self.graph.add(Op::Scalar, &[], None, Some(dtype)).unwrap()
    }

    #[track_caller]
    pub(crate) fn op(&mut self, op: Op, ins: &[Val]) -> Val {
        self.graph.add(op, ins, None, None).unwrap()
    }

    #[track_caller]
    pub(crate) fn to(&mut self, op: Op, ins: &[Val], dims: &[usize]) -> Val {
        self.graph.add(op, ins, Some(Shape::new(dims)), None).unwrap()
    }

    pub(crate) fn cast(&mut self, v: Val, dtype: DType) -> Val {
        self.graph.add(Op::Cast, &[v], None, Some(dtype)).unwrap()
    }

    pub(crate) fn un(&mut self, op: Unary, v: Val) -> Val {
        self.op(Op::Unary(op), &[v])
    }

    pub(crate) fn bin(&mut self, op: Binary, a: Val, b: Val) -> Val {
        self.op(Op::Binary(op), &[a, b])
    }

    pub(crate) fn dims(&self, v: Val) -> Vec<usize> {
        self.graph.out(v).shape.dims().to_vec()
    }

    pub(crate) fn like(&mut self, v: Val, dims: &[usize]) -> Val {
        let mut from = self.dims(v);
        while from.len() < dims.len() {
            from.insert(0, 1);
        }
        let v = self.to(Op::Reshape, &[v], &from);
        self.to(Op::Expand, &[v], dims)
    }

    pub(crate) fn permute(&mut self, v: Val, order: &[u8]) -> Val {
        let mut perm = [0; wgrad_graph::MAX_RANK];
        perm[..order.len()].copy_from_slice(order);
        self.op(Op::Permute(perm), &[v])
    }

    pub(crate) fn reduce(&mut self, kind: Reduce, v: Val, axes: &[usize]) -> Val {
        self.op(Op::Reduce { kind, axes: axes.iter().copied().collect() }, &[v])
    }

    pub(crate) fn leaves(&self, kind: LeafKind) -> Vec<(NodeId, LeafKind)> {
        let nodes = self.graph.nodes().iter().enumerate();
        nodes.filter(|(_, n)| n.op == Op::Input).map(|(i, _)| (i as NodeId, kind)).collect()
    }

    pub(crate) fn plan(&self, device: &dyn Backend, roots: &[Root], kinds: &[LeafKind], fuse: bool) -> Plan {
        let mut leaves = self.leaves(LeafKind::Buffer);
        leaves.iter_mut().zip(kinds).for_each(|(l, k)| l.1 = *k);
        let options = Options { fuse, keep: false };
        plan(&Arc::new(self.graph.clone()), roots, &leaves, &options, device.caps()).unwrap()
    }

    /// The bytes of leaf `i` as `device` stores them.
    pub(crate) fn stored(&self, device: &dyn Backend, i: usize) -> Vec<u8> {
        self.data[i].cast(device.caps().storage(self.data[i].dtype())).bytes().to_vec()
    }

    /// The outputs' bytes in storage dtype.
    pub(crate) fn run(&self, device: &dyn Backend, plan: &Plan) -> Result<Vec<Vec<u8>>> {
        let prepared = device.prepare(&Arc::new(plan.clone()))?;
        let bytes: Vec<Vec<u8>> = (0..self.data.len()).map(|i| self.stored(device, i)).collect();
        let mut leaves = Vec::new();
        for (leaf, bytes) in plan.leaves.iter().zip(&bytes) {
            leaves.push(match leaf.kind {
                LeafKind::Upload => LeafArg::Host(bytes),
                _ => {
                    let buffer = device.alloc(bytes.len().max(64))?;
                    device.write(buffer, bytes)?;
                    LeafArg::Buffer(buffer)
                }
            });
        }
        let mut outputs = Vec::new();
        let mut ranges = Vec::new();
        for (i, output) in plan.outputs.iter().enumerate() {
            let out = plan.output(i);
            let buffer = match output.home {
                wgrad_graph::Home::New { bytes } => device.alloc(bytes)?,
                wgrad_graph::Home::InPlace(leaf) => match leaves[leaf as usize] {
                    LeafArg::Buffer(buffer) => buffer,
                    LeafArg::Host(_) => panic!("uploads are not written in place"),
                },
            };
            outputs.push(buffer);
            ranges.push((buffer, out.shape.elems() * device.caps().storage(out.dtype).bytes()));
        }
        let args = Args { leaves: &leaves, scalars: &self.scalars, outputs: &outputs, watch: None };
        device.submit(&prepared, args)?;
        let read = device.read(&ranges)?.wait(WAIT).map(|all| all.iter().map(|b| b.to_vec()).collect());
        let buffers = leaves.iter().filter_map(|leaf| match leaf {
            LeafArg::Buffer(buffer) => Some(*buffer),
            LeafArg::Host(_) => None,
        });
        buffers.chain(outputs).for_each(|b| device.free(b));
        read
    }

    /// Runs fused and unfused, which must agree in every bit, and the oracle, which must be within
    /// `tolerance` relative to max(1, |y|). The outputs.
    #[track_caller]
    pub(crate) fn check(&self, roots: &[Val], tolerance: f64) -> Vec<Vec<u8>> {
        self.check_as(roots, &[], &[], tolerance)
    }

    #[track_caller]
    pub(crate) fn check_as(
        &self,
        roots: &[Val],
        into: &[Option<u32>],
        kinds: &[LeafKind],
        tolerance: f64,
    ) -> Vec<Vec<u8>> {
        let (cpu, oracle) = (Cpu::new(), Oracle::new());
        let roots: Vec<Root> = roots
            .iter()
            .enumerate()
            .map(|(i, val)| Root { val: *val, into: into.get(i).copied().flatten() })
            .collect();
        let fused = self.plan(&cpu, &roots, kinds, true);
        let y = self.run(&cpu, &fused).unwrap();
        let plain = self.run(&cpu, &self.plan(&cpu, &roots, kinds, false)).unwrap();
        let exact = self.run(&oracle, &self.plan(&oracle, &roots, kinds, true)).unwrap();
        for (i, root) in roots.iter().enumerate() {
            let out = self.graph.out(root.val);
            assert_eq!(
                y[i], plain[i],
                "fused and unfused differ: output {i} {:?} {out:?}\n{}",
                root.val, self.graph
            );
            let got = HostTensor::from_bytes(out.shape, out.dtype, y[i].clone()).unwrap().to_vec::<f64>();
            let stored = oracle.caps().storage(out.dtype);
            let wanted = HostTensor::from_bytes(out.shape, stored, exact[i].clone()).unwrap().to_vec::<f64>();
            for (n, (g, w)) in got.iter().zip(&wanted).enumerate() {
                let close = g == w
                    || g.is_nan() && w.is_nan()
                    || w.is_finite() && (g - w).abs() <= tolerance * w.abs().max(1.0);
                assert!(close, "output {i} {:?} {out:?} [{n}]: {g}, not {w}\n{}", root.val, self.graph);
            }
        }
        assert_eq!(cpu.memory().live_bytes, 0, "everything was given back");
        y
    }
}
