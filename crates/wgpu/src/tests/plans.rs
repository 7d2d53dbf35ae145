//! Whole plans against results computed by hand in f64: a training step of a two-layer network.

use std::sync::Arc;
use std::time::Instant;

use wgrad_graph::{
    Args, Axes, Backend, Binary, BufferId, DType, ErrorKind, Graph, Home, LeafArg, LeafKind, Node, NodeId,
    Op, Options, Out, Perm, Plan, Reduce, Root, Shape, Unary, Val, plan,
};

use super::{LONG, bytes, floats, on_every_adapter};
use crate::Gpu;

/// Records operations on f32 values.
struct Tape {
    graph: Graph,
    leaves: Vec<(NodeId, LeafKind)>,
}

impl Tape {
    fn add(&mut self, op: Op, inputs: &[Val], to: Option<&[usize]>) -> Val {
        self.graph.add(op, inputs, to.map(Shape::from), Some(DType::F32)).unwrap()
    }

    fn input(&mut self, kind: LeafKind, shape: &[usize], dtype: DType) -> Val {
        let val = Val::of(self.graph.push(Node {
            op: Op::Input,
            inputs: Vec::new().into(),
            outs: [Out { shape: Shape::from(shape), dtype }].into(),
            after: Vec::new().into(),
            segment: 0,
            at: None,
        }));
        self.leaves.push((val.node, kind));
        val
    }

    fn spread(&mut self, x: Val, to: &[usize]) -> Val {
        let ones: Vec<usize> = vec![1; to.len() - self.graph.out(x).shape.rank()];
        let shape: Vec<usize> =
            ones.into_iter().chain(self.graph.out(x).shape.dims().iter().copied()).collect();
        let x = self.add(Op::Reshape, &[x], Some(&shape));
        self.add(Op::Expand, &[x], Some(to))
    }

    fn binary(&mut self, op: Binary, x: Val, w: Val) -> Val {
        self.add(Op::Binary(op), &[x, w], None)
    }

    fn transposed(&mut self, x: Val) -> Val {
        let mut perm = Perm::default();
        perm[..2].copy_from_slice(&[1, 0]);
        self.add(Op::Permute(perm), &[x], None)
    }

    fn sum(&mut self, x: Val, axes: &[usize]) -> Val {
        self.add(Op::Reduce { kind: Reduce::Sum, axes: axes.iter().copied().collect::<Axes>() }, &[x], None)
    }
}

const B: usize = 24;
const I: usize = 50;
const H: usize = 32;
const O: usize = 10;

/// One step of gradient descent on the mean squared error of `relu(x w1 + b1) w2`: loss, w1, b1, w2.
fn step(fuse: bool, gpu: &Gpu) -> Plan {
    let mut t = Tape { graph: Graph::default(), leaves: Vec::new() };
    let x = t.input(LeafKind::Upload, &[B, I], DType::F32);
    let y = t.input(LeafKind::Upload, &[B, O], DType::F32);
    let w1 = t.input(LeafKind::Donated, &[I, H], DType::F32);
    let b1 = t.input(LeafKind::Donated, &[H], DType::F32);
    let w2 = t.input(LeafKind::Donated, &[H, O], DType::F32);
    let rate = t.add(Op::Scalar, &[], Some(&[]));
    let over = t.add(Op::Scalar, &[], Some(&[]));
    let z = t.add(Op::MatMul, &[x, w1], None);
    let bias = t.spread(b1, &[B, H]);
    let z = t.binary(Binary::Add, z, bias);
    let h = t.add(Op::Unary(Unary::Relu), &[z], None);
    let out = t.add(Op::MatMul, &[h, w2], None);
    let d = t.binary(Binary::Sub, out, y);
    let squared = t.binary(Binary::Mul, d, d);
    let sum = t.sum(squared, &[0, 1]);
    let scale = t.spread(over, &[1, 1]);
    let loss = t.binary(Binary::Mul, sum, scale);
    // Backward.
    let two = t.binary(Binary::Add, over, over);
    let two = t.spread(two, &[B, O]);
    let dout = t.binary(Binary::Mul, d, two);
    let ht = t.transposed(h);
    let dw2 = t.add(Op::MatMul, &[ht, dout], None);
    let w2t = t.transposed(w2);
    let dh = t.add(Op::MatMul, &[dout, w2t], None);
    let zero = t.binary(Binary::Sub, rate, rate);
    let zero = t.spread(zero, &[B, H]);
    let live = t.graph.add(Op::Binary(Binary::Gt), &[z, zero], None, None).unwrap();
    let dz = t.add(Op::Select, &[live, dh, zero], None);
    let xt = t.transposed(x);
    let dw1 = t.add(Op::MatMul, &[xt, dz], None);
    let db1 = t.sum(dz, &[0]);
    let db1 = t.add(Op::Reshape, &[db1], Some(&[H]));
    let mut roots = vec![Root { val: loss, into: None }];
    for (leaf, w, g) in [(2, w1, dw1), (3, b1, db1), (4, w2, dw2)] {
        let shape: Vec<usize> = t.graph.out(w).shape.dims().to_vec();
        let rate = t.spread(rate, &shape);
        let change = t.binary(Binary::Mul, g, rate);
        let new = t.binary(Binary::Sub, w, change);
        roots.push(Root { val: new, into: Some(leaf) });
    }
    plan(&Arc::new(t.graph), &roots, &t.leaves, &Options { fuse, keep: false }, gpu.caps()).unwrap()
}

/// The same in f64.
fn by_hand(x: &[f64], y: &[f64], [w1, b1, w2]: [&mut [f64]; 3], rate: f64) -> f64 {
    let over = 1.0 / (B * O) as f64;
    let z = |b: usize, h: usize, w1: &[f64], b1: &[f64]| {
        (0..I).map(|i| x[b * I + i] * w1[i * H + h]).sum::<f64>() + b1[h]
    };
    let zs: Vec<f64> = (0..B * H).map(|n| z(n / H, n % H, w1, b1)).collect();
    let out = |b: usize, o: usize| (0..H).map(|h| zs[b * H + h].max(0.0) * w2[h * O + o]).sum::<f64>();
    let d: Vec<f64> = (0..B * O).map(|n| out(n / O, n % O) - y[n]).collect();
    let loss = d.iter().map(|d| d * d).sum::<f64>() * over;
    let dout: Vec<f64> = d.iter().map(|d| d * 2.0 * over).collect();
    let dz: Vec<f64> = (0..B * H)
        .map(|n| {
            let (b, h) = (n / H, n % H);
            let dh: f64 = (0..O).map(|o| dout[b * O + o] * w2[h * O + o]).sum();
            if zs[n] > 0.0 { dh } else { 0.0 }
        })
        .collect();
    for h in 0..H {
        for o in 0..O {
            w2[h * O + o] -= rate * (0..B).map(|b| zs[b * H + h].max(0.0) * dout[b * O + o]).sum::<f64>();
        }
        for i in 0..I {
            w1[i * H + h] -= rate * (0..B).map(|b| x[b * I + i] * dz[b * H + h]).sum::<f64>();
        }
        b1[h] -= rate * (0..B).map(|b| dz[b * H + h]).sum::<f64>();
    }
    loss
}

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn close(got: &[f32], want: &[f64]) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() < 1e-4 * w.abs().max(1.0), "element {i}: {g} is not {w}");
    }
}

#[test]
fn a_network_trains_as_by_hand() {
    on_every_adapter(|adapter, gpu| {
        for fuse in [false, true] {
            let plan = Arc::new(step(fuse, &gpu));
            let start = Instant::now();
            let ready = gpu.prepare(&plan).unwrap();
            let compiled = start.elapsed();
            let wide = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
            let owned = [noise(I * H, 1), noise(H, 2), noise(H * O, 3)];
            let mut want = owned.each_ref().map(|w| wide(w));
            let ids: Vec<BufferId> = owned.iter().map(|w| gpu.alloc(4 * w.len()).unwrap()).collect();
            for (id, w) in ids.iter().zip(&owned) {
                gpu.write(*id, bytes(w)).unwrap();
            }
            let loss = gpu.alloc(4).unwrap();
            let mut outputs = vec![loss];
            for (output, id) in plan.outputs[1..].iter().zip(&ids) {
                match output.home {
                    Home::InPlace(leaf) => assert_eq!(ids[leaf as usize - 2], *id),
                    Home::New { .. } => panic!("the update of a donated leaf is in place"),
                }
                outputs.push(*id);
            }
            for round in 0..3 {
                let (x, y) = (noise(B * I, 10 + round), noise(B * O, 20 + round));
                let leaves: Vec<LeafArg<'_>> = [LeafArg::Host(bytes(&x)), LeafArg::Host(bytes(&y))]
                    .into_iter()
                    .chain(ids.iter().map(|id| LeafArg::Buffer(*id)))
                    .collect();
                let scalars = [0.1, 1.0 / (B * O) as f64];
                let before = gpu.memory();
                let args = Args { leaves: &leaves, scalars: &scalars, outputs: &outputs, watch: None };
                let ticket = gpu.submit(&ready, args).unwrap();
                gpu.wait(ticket, LONG).unwrap();
                if round == 0 {
                    let first = start.elapsed();
                    assert!(
                        first.as_secs_f64() < 5.0,
                        "{adapter}: compiled {compiled:?}, first step {first:?}"
                    );
                } else {
                    assert_eq!(gpu.memory().submissions - before.submissions, 1);
                    assert_eq!(gpu.memory().uploads - before.uploads, 1);
                    assert_eq!(gpu.memory().kernels, before.kernels);
                }
                let [w1, b1, w2] = want.each_mut().map(|w| w.as_mut_slice());
                let by_hand = by_hand(&wide(&x), &wide(&y), [w1, b1, w2], 0.1);
                close(&floats(&gpu, loss, 1), &[by_hand]);
            }
            for ((id, w), want) in ids.iter().zip(&owned).zip(&want) {
                close(&floats(&gpu, *id, w.len()), want);
            }
            ids.into_iter().chain([loss]).for_each(|id| gpu.free(id));
        }
    });
}

#[test]
fn an_index_out_of_range_is_told_by_the_read_after() {
    on_every_adapter(|_, gpu| {
        let mut t = Tape { graph: Graph::default(), leaves: Vec::new() };
        let table = t.input(LeafKind::Buffer, &[5, 3], DType::F32);
        let index = t.input(LeafKind::Upload, &[2, 3], DType::I32);
        let rows = t.add(Op::Gather { axis: 0 }, &[table, index], None);
        let roots = [Root { val: rows, into: None }];
        let options = Options { fuse: true, keep: false };
        let plan = plan(&Arc::new(t.graph), &roots, &t.leaves, &options, gpu.caps()).unwrap();
        let ready = gpu.prepare(&Arc::new(plan)).unwrap();
        let buffer = gpu.alloc(60).unwrap();
        let values: Vec<f32> = (0..15).map(|i| i as f32).collect();
        gpu.write(buffer, bytes(&values)).unwrap();
        let out = gpu.alloc(24).unwrap();
        let run = |index: [i32; 6]| {
            let leaves = [LeafArg::Buffer(buffer), LeafArg::Host(bytemuck::cast_slice(&index))];
            gpu.submit(&ready, Args { leaves: &leaves, scalars: &[], outputs: &[out], watch: None }).unwrap();
        };
        run([4, 4, 4, 1, 2, 3]);
        assert_eq!(floats(&gpu, out, 6), [12.0, 13.0, 14.0, 3.0, 7.0, 11.0]);
        run([4, 5, 4, 1, -1, 3]);
        let error = gpu.read(&[(out, 24)]).unwrap().wait(LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("gather") && error.to_string().contains('5'), "{error}");
        assert_eq!(floats(&gpu, out, 6), [12.0, 0.0, 14.0, 3.0, 0.0, 11.0]);
    });
}

#[test]
fn a_workspace_is_known_before_it_is_made() {
    on_every_adapter(|_, gpu| {
        // Few long sums: their parts lie in scratch memory, of which the plan knows nothing.
        let mut t = Tape { graph: Graph::default(), leaves: Vec::new() };
        let x = t.input(LeafKind::Upload, &[3, 1 << 17], DType::F32);
        let sum = t.sum(x, &[1]);
        let roots = [Root { val: sum, into: None }];
        let options = Options { fuse: true, keep: false };
        let plan = plan(&Arc::new(t.graph), &roots, &t.leaves, &options, gpu.caps()).unwrap();
        let told = crate::workspace_bytes(&plan, gpu.caps()).unwrap();
        assert!(told > plan.workspace_bytes, "{told} bytes, of the plan {}", plan.workspace_bytes);
        let before = gpu.memory().live_bytes;
        let ready = gpu.prepare(&Arc::new(plan)).unwrap();
        assert_eq!(gpu.memory().live_bytes - before, told);
        drop(ready);
        assert_eq!(gpu.memory().live_bytes, before);
    });
}
