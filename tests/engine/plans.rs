//! What plans do not do: copy what an index function can reach, or write what does not change.

use std::sync::Arc;

use wgrad::prelude::*;
use wgrad::{Backend, Pass, Result, Tensor};
use wgrad_graph::{Caps, Home, Kind, Op, Plan};

use super::Recorder;
use crate::Subject;
use crate::programs::{close, plain};

crate::suite![plain: ; device: attention_copies_nothing, append_writes_the_slice, many_operands_of_rank_8];

/// The operations that only move elements.
fn moves(op: Op) -> bool {
    matches!(
        op,
        Op::Reshape | Op::Permute(_) | Op::Expand | Op::Slice(_) | Op::Pad { .. } | Op::Concat { .. }
    ) || op.is_movement()
}

/// The steps of a plan that only move elements.
fn copies(plan: &Plan) -> Vec<String> {
    let only_moves = |s: &&wgrad_graph::Step| s.group.nodes.iter().all(|n| moves(plan.graph.node(*n).op));
    plan.steps.iter().filter(only_moves).map(|s| s.group.to_string()).collect()
}

const SHAPE: [usize; 3] = [2, 5, 12];
const HEADS: usize = 3;

/// Multi-head self-attention of `x` `[b, t, width]` with weights for q, k, v and the result.
fn attend(x: Tensor, w: &[Tensor; 4]) -> Tensor {
    let [b, t, width] = SHAPE;
    let heads = |x: Tensor| x.reshape([b, t, HEADS, width / HEADS]).transpose(1, 2);
    let (q, k, v) = (heads(x.matmul(w[0])), heads(x.matmul(w[1])), heads(x.matmul(w[2])));
    let y = (q.matmul(k.t()) * 0.5).softmax(-1).matmul(v);
    y.transpose(1, 2).reshape([b, t, width]).matmul(w[3])
}

fn attention_copies_nothing(subject: &Subject) {
    let ctx = subject.context();
    let [b, t, width] = SHAPE;
    let host = |seed, shape: &[usize]| {
        let x = plain::noise(seed, shape.iter().product());
        HostTensor::new(shape, &x).expect("as many as the shape has")
    };
    let (x, w): (_, Vec<_>) = (host(1, &SHAPE), (2..6).map(|s| host(s, &[width, width])).collect());
    let inputs = |p: &Pass| -> Result<(Tensor, [Tensor; 4])> {
        Ok((p.input(&x)?, [p.input(&w[0])?, p.input(&w[1])?, p.input(&w[2])?, p.input(&w[3])?]))
    };
    let y = ctx.pass(|p| {
        let (x, w) = inputs(p)?;
        Ok(attend(x, &w).deferred::<f64>())
    });
    let plan = ctx.last_plan().expect("something ran");
    let copied = copies(&plan);
    assert!(copied.is_empty(), "copies {copied:?} in\n{plan}");
    let products = plan.steps.iter().filter(|s| matches!(s.group.kind, Kind::MatMul { .. })).count();
    assert_eq!(products, 6, "{plan}");

    // The same by loops.
    let (x, w): (Vec<f64>, Vec<Vec<f64>>) = (x.to_vec(), w.iter().map(HostTensor::to_vec).collect());
    let qkv: Vec<Vec<f64>> = (0..3).map(|i| plain::product(&x, &w[i], [b * t, width, width])).collect();
    let (size, mut mixed) = (width / HEADS, vec![0.0; b * t * width]);
    for (batch, h, i) in (0..b * HEADS * t).map(|n| (n / (HEADS * t), n / t % HEADS, n % t)) {
        let at = |row: usize, d: usize| (batch * t + row) * width + h * size + d;
        let score = |j: usize| 0.5 * (0..size).map(|d| qkv[0][at(i, d)] * qkv[1][at(j, d)]).sum::<f64>();
        let p = plain::softmax(&(0..t).map(score).collect::<Vec<_>>());
        for d in 0..size {
            mixed[at(i, d)] = (0..t).map(|j| p[j] * qkv[2][at(j, d)]).sum();
        }
    }
    let want = plain::product(&mixed, &w[3], [b * t, width, width]);
    let got = y.and_then(|y| y.read()).expect("the device computes").to_vec::<f64>();
    close(subject, "attention", &got, &want, 1e-5);
}

fn append_writes_the_slice(subject: &Subject) {
    appends(subject).expect("the loop runs");
}

fn appends(subject: &Subject) -> Result<()> {
    const CAPACITY: usize = 512;
    let recorder = Recorder::new(subject.fresh());
    let ctx = Context::new(Arc::clone(&recorder) as Arc<dyn Backend>)?;
    let cache = Kept::zeros(&ctx, [1, 2, CAPACITY, 4])?;
    let pos = ctx.scalar(0.0);
    let cache_bytes = CAPACITY * 8 * 4;
    let mut want = vec![0.0; CAPACITY * 8];
    let mut sums = Vec::new();
    for i in 0..6 {
        let row = 3 + 80 * i;
        pos.set(row as f64);
        let part = plain::noise(i as u64, 8);
        let host = HostTensor::new([1, 2, 1, 4], &part)?;
        for h in 0..2 {
            want[(h * CAPACITY + row) * 4..][..4].copy_from_slice(&plain::wide(&part[h * 4..][..4]));
        }
        let before = recorder.counts();
        // Every other step also reads the cache after the append, as attention does.
        sums.push(ctx.pass(|p| {
            cache.set(cache.t().slice_assign_at(2, &pos, p.input(&host)?));
            Ok((i % 2 == 1).then(|| cache.t().sum(..).deferred::<f64>()))
        })?);
        let plan = ctx.last_plan().expect("something ran");
        assert!(matches!(plan.outputs[0].home, Home::InPlace(_)), "{plan}");
        assert_eq!(
            plan.steps[0].group.dims.iter().product::<usize>(),
            8,
            "the append runs over the part\n{plan}"
        );
        assert!(plan.workspace_bytes < cache_bytes, "{plan}");
        assert_eq!(plan.steps.len(), 1 + i % 2, "{plan}");
        assert_eq!(recorder.counts().allocations - before.allocations, i as u64 % 2, "only the sum's");
        if let Some(sum) = &sums[i] {
            let want: f64 = want.iter().sum();
            assert!((sum.get()? - want).abs() < 1e-5, "{} is not {want}", sum.get()?);
        }
    }
    close(subject, "cache", &cache.read()?.to_vec::<f64>(), &want, 0.0);
    Ok(())
}

fn many_operands_of_rank_8(subject: &Subject) {
    let small =
        |caps: &mut Caps| (caps.immediate_bytes, caps.max_buffers) = (128.min(caps.immediate_bytes), 8);
    let ctx = Context::new(subject.lowered(small)).expect("a context opens");
    let dims = [2usize, 3, 2, 3, 2, 3, 2, 3];
    let elems: usize = dims.iter().product();
    // Orders under which no two neighbours stay neighbours in all operands. Axes 0, 2, 4, 6 have one size,
    // 1, 3, 5, 7 the other.
    let orders: [[i32; 8]; 7] = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [6, 5, 0, 7, 2, 1, 4, 3],
        [4, 7, 6, 1, 0, 3, 2, 5],
        [2, 3, 4, 1, 6, 7, 0, 5],
        [0, 7, 4, 5, 6, 3, 2, 1],
        [6, 1, 4, 7, 0, 5, 2, 3],
        [4, 3, 2, 7, 6, 5, 0, 1],
    ];
    let hosts: Vec<HostTensor> = (0..7)
        .map(|i| HostTensor::new(&dims[..], &plain::noise(i, elems)).expect("as many as the shape has"))
        .collect();
    let got = ctx.pass(|p| {
        let mut y = p.input(&hosts[0])?.permute(orders[0]);
        for (host, order) in hosts.iter().zip(orders).skip(1) {
            y = y * 0.5 + p.input(host)?.permute(order);
        }
        Ok(y.deferred::<f64>())
    });
    let got = got.and_then(|y| y.read()).expect("it runs on a small device").to_vec::<f64>();
    let plan = ctx.last_plan().expect("something ran");
    assert_eq!(plan.steps.len(), 1, "seven operands and a result are eight buffers\n{plan}");
    let group = &plan.steps[0].group;
    assert_eq!((group.dims.len(), group.operands.len()), (8, 7), "{plan}");

    let strides: Vec<usize> = (0..8).map(|a| dims[a + 1..].iter().product()).collect();
    let mut want = vec![0.0; elems];
    for (n, (host, order)) in hosts.iter().zip(orders).enumerate() {
        let x = host.to_vec::<f64>();
        for (i, y) in want.iter_mut().enumerate() {
            let from = (0..8).map(|a| i / strides[a] % dims[a] * strides[order[a] as usize]).sum::<usize>();
            *y = if n == 0 { x[from] } else { *y * 0.5 + x[from] };
        }
    }
    close(subject, "sum", &got, &want, 1e-6);
}
