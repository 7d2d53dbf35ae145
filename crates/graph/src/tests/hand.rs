//! Hand-made graphs: what must fuse, and what plans must look like.

use super::*;
use crate::{Binary, Home, Kind, Reduce, Steps, Unary};

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let name = |k: &Kind| match k {
        Kind::Pointwise => "pointwise",
        Kind::Reduce => "reduce",
        Kind::Row => "row",
        Kind::MatMul { .. } => "matmul",
        Kind::Scatter { kind, .. } => kind.scatter_name(),
        Kind::Whole(op) | Kind::Attention(op, _) => op.name(),
        Kind::Custom(_) => "custom",
    };
    plan.steps.iter().map(|s| name(&s.group.kind)).collect()
}

fn softmax(s: &mut Sketch, x: Val) -> Val {
    let dims = s.dims(x);
    let m = s.reduce(Reduce::Max, x, &[dims.len() - 1]);
    let m = s.to(Op::Expand, &[m], &dims);
    let e = s.bin(Binary::Sub, x, m);
    let e = s.un(Unary::Exp, e);
    let z = s.reduce(Reduce::Sum, e, &[dims.len() - 1]);
    let z = s.to(Op::Expand, &[z], &dims);
    s.bin(Binary::Div, e, z)
}

#[test]
fn a_chain_is_one_kernel() {
    let mut s = Sketch::new();
    let x = s.x(&[4, 5]);
    let b = s.x(&[5]);
    let b = s.like(b, &[4, 5]);
    let y = s.bin(Binary::Add, x, b);
    let y = s.un(Unary::Exp, y);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    verify(&s, &plan, 1);
}

#[test]
fn attention_makes_no_copy() {
    let (b, t, h, d) = (2, 3, 2, 4);
    let c = h * d;
    let mut s = Sketch::new();
    let x = s.x(&[b, t, c]);
    let ws: Vec<Val> = (0..4).map(|_| s.x(&[c, c])).collect();
    let flat = s.reshape(x, &[b * t, c]);
    let heads: Vec<Val> = (0..3)
        .map(|i| {
            let y = s.matmul(flat, ws[i]);
            let y = s.reshape(y, &[b, t, h, d]);
            s.permute(y, &[0, 2, 1, 3])
        })
        .collect();
    let k = s.permute(heads[1], &[0, 1, 3, 2]);
    let scores = s.matmul(heads[0], k);
    let scale = s.scalar(DType::F32);
    let scale = s.like(scale, &[b, h, t, t]);
    let scores = s.bin(Binary::Mul, scores, scale);
    let p = softmax(&mut s, scores);
    let y = s.matmul(p, heads[2]);
    let y = s.permute(y, &[0, 2, 1, 3]);
    let y = s.reshape(y, &[b * t, c]);
    let y = s.matmul(y, ws[3]);
    let y = s.reshape(y, &[b, t, c]);
    let y = s.bin(Binary::Add, y, x);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(copies(&plan), 0, "{plan}");
    let want = ["matmul", "matmul", "matmul", "matmul", "row", "matmul", "matmul"];
    assert_eq!(kinds(&plan), want, "{plan}");
    verify(&s, &plan, 2);
}

#[test]
fn a_product_takes_bias_activation_and_residual() {
    let mut s = Sketch::new();
    let (x, w, b, r) = (s.x(&[6, 4]), s.x(&[4, 8]), s.x(&[8]), s.x(&[6, 8]));
    let u = s.matmul(x, w);
    let b = s.like(b, &[6, 8]);
    let u = s.bin(Binary::Add, u, b);
    let a = s.un(Unary::Tanh, u);
    let y = s.bin(Binary::Add, a, r);
    // The raw sum is needed by others too.
    let plan = planned(&s, &[y, u], &FUSED);
    assert_eq!(kinds(&plan), ["matmul"], "{plan}");
    verify(&s, &plan, 3);
}

#[test]
fn a_batch_with_one_right_factor_is_one_product() {
    let mut s = Sketch::new();
    let (x, w) = (s.x(&[2, 3, 4, 5]), s.x(&[5, 6]));
    let w = s.like(w, &[2, 3, 5, 6]);
    let y = s.matmul(x, w);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(&plan.steps[0].group.dims[..], [24, 6, 5], "{plan}");
    verify(&s, &plan, 4);
}

/// One AdamW update; new weight and moments.
fn adamw(s: &mut Sketch, w: Val, g: Val, m: Val, v: Val, cells: &[Val]) -> [Val; 3] {
    let dims = s.dims(w);
    let c: Vec<Val> = cells.iter().map(|c| s.like(*c, &dims)).collect();
    let m1 = s.bin(Binary::Mul, m, c[0]);
    let g1 = s.bin(Binary::Mul, g, c[1]);
    let m = s.bin(Binary::Add, m1, g1);
    let v1 = s.bin(Binary::Mul, v, c[2]);
    let g2 = s.bin(Binary::Mul, g, g);
    let g2 = s.bin(Binary::Mul, g2, c[3]);
    let v = s.bin(Binary::Add, v1, g2);
    let root = s.un(Unary::Sqrt, v);
    let root = s.bin(Binary::Add, root, c[4]);
    let step = s.bin(Binary::Div, m, root);
    let step = s.bin(Binary::Mul, step, c[5]);
    let w = s.bin(Binary::Sub, w, step);
    [w, m, v]
}

#[test]
fn updates_are_one_kernel_each_in_place_and_one_batch() {
    let mut s = Sketch::new();
    let mut roots = Vec::new();
    let mut leaves = Vec::new();
    let x = s.x(&[3, 4]);
    leaves.push((x.node, LeafKind::Buffer));
    let mut sets = Vec::new();
    for n in [5, 7, 2, 9] {
        let set: Vec<Val> = (0..3).map(|_| s.x(&[4, n])).collect();
        leaves.extend(set.iter().map(|v| (v.node, LeafKind::Donated)));
        sets.push((set, n));
    }
    let cells: Vec<Val> = (0..6).map(|_| s.scalar(DType::F32)).collect();
    let mut grads = Vec::new();
    for (set, n) in &sets {
        let y = s.matmul(x, set[0]);
        let y = s.un(Unary::Abs, y);
        let xt = s.permute(x, &[1, 0]);
        let g = s.matmul(xt, y);
        assert_eq!(s.dims(g), [4, *n]);
        grads.push(g);
    }
    for (i, ((set, _), g)) in sets.iter().zip(grads).enumerate() {
        let new = adamw(&mut s, set[0], g, set[1], set[2], &cells);
        roots.extend(
            new.iter().enumerate().map(|(j, v)| Root { val: *v, into: Some((1 + 3 * i + j) as u32) }),
        );
    }
    let plan = checked(&s, &roots, &leaves, &FUSED, &caps());
    let updates: Vec<_> = plan.steps.iter().filter(|s| s.group.kind == Kind::Pointwise).collect();
    assert_eq!(updates.len(), 4, "{plan}");
    assert!(updates.iter().all(|u| u.batch == updates[0].batch), "{plan}");
    assert!(plan.outputs.iter().all(|o| matches!(o.home, Home::InPlace(_))), "{plan}");
    verify(&s, &plan, 5);
}

#[test]
fn layer_norm_is_one_kernel() {
    let mut s = Sketch::new();
    let (x, w) = (s.x(&[3, 4, 8]), s.x(&[8]));
    let n = s.scalar(DType::F32);
    let eps = s.scalar(DType::F32);
    let small = |s: &mut Sketch, v: Val| s.like(v, &[3, 4, 1]);
    let n = small(&mut s, n);
    let eps = small(&mut s, eps);
    let mean = s.reduce(Reduce::Sum, x, &[2]);
    let mean = s.bin(Binary::Mul, mean, n);
    let mean = s.to(Op::Expand, &[mean], &[3, 4, 8]);
    let d = s.bin(Binary::Sub, x, mean);
    let d2 = s.bin(Binary::Mul, d, d);
    let var = s.reduce(Reduce::Sum, d2, &[2]);
    let var = s.bin(Binary::Mul, var, n);
    let var = s.bin(Binary::Add, var, eps);
    let r = s.un(Unary::Rsqrt, var);
    let r = s.to(Op::Expand, &[r], &[3, 4, 8]);
    let y = s.bin(Binary::Mul, d, r);
    let w = s.like(w, &[3, 4, 8]);
    let y = s.bin(Binary::Mul, y, w);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(kinds(&plan), ["row"], "{plan}");
    verify(&s, &plan, 6);
}

#[test]
fn sums_over_one_space_share_a_kernel() {
    let mut s = Sketch::new();
    let (dy, xhat) = (s.x(&[6, 8]), s.x(&[6, 8]));
    let a = s.reduce(Reduce::Sum, dy, &[0]);
    let p = s.bin(Binary::Mul, dy, xhat);
    let b = s.reduce(Reduce::Sum, p, &[0]);
    let plan = planned(&s, &[a, b], &FUSED);
    assert_eq!(kinds(&plan), ["reduce"], "{plan}");
    assert_eq!(plan.steps[0].group.accs.len(), 2);
    verify(&s, &plan, 7);
}

#[test]
fn a_cache_is_written_in_place() {
    let mut s = Sketch::new();
    let (x, w, cache) = (s.x(&[1, 8]), s.x(&[8, 8]), s.x(&[2, 16, 4]));
    let pos = s.scalar(DType::U32);
    let k = s.matmul(x, w);
    let k = s.reshape(k, &[1, 2, 4]);
    let k = s.permute(k, &[1, 0, 2]);
    let next = s.op(Op::SliceAssignAt { axis: 1 }, &[cache, k, pos]);
    let sum = s.reduce(Reduce::Sum, next, &[1]);
    let leaves = [(x.node, LeafKind::Upload), (w.node, LeafKind::Buffer), (cache.node, LeafKind::Donated)];
    let roots = [Root { val: next, into: Some(2) }, Root { val: sum, into: None }];
    let plan = checked(&s, &roots, &leaves, &FUSED, &caps());
    assert_eq!(kinds(&plan), ["matmul", "reduce"], "{plan}");
    assert_eq!(plan.outputs[0].home, Home::InPlace(2));
    assert_eq!(plan.scalar_limits(), [Some(15)]);
    verify(&s, &plan, 8);
    // Needed afterwards: a copy comes first.
    let old = s.reduce(Reduce::Sum, cache, &[0, 1, 2]);
    let late = s.like(sum, &[2, 16, 4]);
    let late = s.bin(Binary::Mul, late, cache);
    let roots = [roots[0], Root { val: old, into: None }, Root { val: late, into: None }];
    let plan = checked(&s, &roots, &leaves, &FUSED, &caps());
    assert_eq!(copies(&plan), 1, "{plan}");
    verify(&s, &plan, 8);
}

#[test]
fn seven_operands_of_rank_eight_fit_eight_buffers() {
    let mut s = Sketch::new();
    let dims = [2, 1, 2, 2, 1, 2, 2, 2];
    let xs: Vec<Val> = (0..7).map(|_| s.x(&dims)).collect();
    let y = xs[1..].iter().fold(xs[0], |y, x| s.bin(Binary::Add, y, *x));
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(kinds(&plan), ["pointwise"], "{plan}");
    verify(&s, &plan, 9);
    let more = s.x(&dims);
    let y = s.bin(Binary::Mul, y, more);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(plan.steps.len(), 2, "{plan}");
    verify(&s, &plan, 9);
}

#[test]
fn many_parts_are_written_one_by_one() {
    let mut s = Sketch::new();
    let parts: Vec<Val> = (1..12).map(|n| s.x(&[2, n])).collect();
    let parts: Vec<Val> = parts.iter().map(|p| s.un(Unary::Neg, *p)).collect();
    let y = s.op(Op::Concat { axis: 1 }, &parts);
    let z = s.reduce(Reduce::Sum, y, &[1]);
    let plan = planned(&s, &[y, z], &FUSED);
    assert_eq!(plan.steps.len(), 12, "{plan}");
    verify(&s, &plan, 10);
}

/// Parts that share words are written over what the kernel before left there, also where nothing is.
#[test]
fn parts_of_nothing_are_written_in_place() {
    let few = Caps { max_buffers: 3, ..caps() };
    for rows in [0, 2] {
        let mut s = Sketch::new();
        let parts: Vec<Val> = (1..4).map(|n| s.input(&[5, rows, n], DType::Bool)).collect();
        let y = s.op(Op::Concat { axis: 2 }, &parts);
        let roots = [Root { val: y, into: None }];
        let plan = checked(&s, &roots, &s.leaves(LeafKind::Buffer), &FUSED, &few);
        assert_eq!(plan.steps.len(), 3, "{plan}");
    }
}

/// What is read at its own place and at another is stored first.
#[test]
fn a_result_read_at_two_places_is_stored() {
    let mut s = Sketch::new();
    let (a, b) = (s.x(&[5, 3]), s.x(&[3, 5]));
    let product = s.matmul(a, b);
    let sum = s.reduce(Reduce::Sum, a, &[1]);
    for y in [product, sum] {
        let dims = s.dims(y);
        let mut steps = Steps::ALL;
        (steps.start[0], steps.step[0]) = (4, -1);
        let turned = s.to(Op::Slice(steps), &[y], &dims);
        for [left, right] in [[y, turned], [turned, y]] {
            let z = s.bin(Binary::Sub, left, right);
            let plan = planned(&s, &[z], &FUSED);
            assert_eq!(plan.steps.len(), 2, "{plan}");
            verify(&s, &plan, 12);
        }
    }
}

#[test]
fn reduction_over_nothing_stores_the_neutral_element() {
    let mut s = Sketch::new();
    let x = s.x(&[3, 0]);
    let sum = s.reduce(Reduce::Sum, x, &[1]);
    let max = s.reduce(Reduce::Max, x, &[1]);
    let plan = planned(&s, &[sum, max], &FUSED);
    verify(&s, &plan, 11);
}

/// A node that waits for another although it reads nothing of it.
fn wait(s: &mut Sketch, op: Op, ins: &[Val], after: Val) -> Val {
    let out = crate::infer(op, &ins.iter().map(|v| s.graph.out(*v)).collect::<Vec<_>>(), None, None).unwrap();
    Val::of(s.graph.push(crate::Node {
        op,
        inputs: ins.into(),
        outs: smallvec::smallvec![out],
        after: smallvec::smallvec![after.node],
        segment: 1,
        at: None,
    }))
}

#[test]
fn recomputation_waits_for_the_gradient_that_needs_it() {
    // Blocks y = tanh(x w): checkpointed, forward keeps only x of each block of four.
    let (blocks, inside, n) = (12, 4, 16);
    let run = |checkpoint: bool| {
        let mut s = Sketch::new();
        let x = s.x(&[64, n]);
        let w = s.x(&[n, n]);
        let wt = s.permute(w, &[1, 0]);
        let layer = |s: &mut Sketch, h: Val| {
            let u = s.matmul(h, w);
            s.un(Unary::Tanh, u)
        };
        let mut hs = vec![x];
        for _ in 0..blocks * inside {
            let h = layer(&mut s, hs[hs.len() - 1]);
            hs.push(h);
        }
        let one = s.scalar(DType::F32);
        let one = s.like(one, &[64, n]);
        let mut dy = hs[hs.len() - 1];
        for block in (0..blocks).rev() {
            let mut inner = hs[block * inside..=(block + 1) * inside].to_vec();
            if checkpoint && block + 1 < blocks {
                for i in 1..=inside {
                    let u = if i == 1 {
                        wait(&mut s, Op::MatMul, &[inner[0], w], dy)
                    } else {
                        s.matmul(inner[i - 1], w)
                    };
                    inner[i] = s.un(Unary::Tanh, u);
                }
            }
            for i in (1..=inside).rev() {
                let y2 = s.bin(Binary::Mul, inner[i], inner[i]);
                let slope = s.bin(Binary::Sub, one, y2);
                let du = s.bin(Binary::Mul, dy, slope);
                dy = s.matmul(du, wt);
            }
        }
        let plan = planned(&s, &[dy], &FUSED);
        verify(&s, &plan, 12);
        plan.workspace_bytes
    };
    let (plain, checkpointed) = (run(false), run(true));
    assert!(checkpointed * 5 < plain * 2, "{checkpointed} of {plain} bytes");
}

/// Forward of a small network for `k` micro-batches, then backward of the sum of losses.
fn accumulated(k: usize) -> (Sketch, Vec<Val>) {
    let (layers, rows, n) = (6, 1 << 16, 64);
    let mut s = Sketch::new();
    let xs: Vec<Val> = (0..k).map(|_| s.x(&[rows, n])).collect();
    let ws: Vec<Val> = (0..layers).map(|_| s.x(&[n, n])).collect();
    let mut all = Vec::new();
    let mut loss: Option<Val> = None;
    for x in &xs {
        let mut hs = vec![*x];
        for w in &ws {
            let u = s.matmul(hs[hs.len() - 1], *w);
            hs.push(s.un(Unary::Tanh, u));
        }
        let last = hs[hs.len() - 1];
        let sq = s.bin(Binary::Mul, last, last);
        let l = s.reduce(Reduce::Sum, sq, &[0, 1]);
        loss = Some(match loss {
            None => l,
            Some(sum) => s.bin(Binary::Add, sum, l),
        });
        all.push(hs);
    }
    let one = s.scalar(DType::F32);
    let one = s.like(one, &[rows, n]);
    let mut grads: Vec<Option<Val>> = vec![None; layers];
    for hs in all.iter().rev() {
        let mut dy = s.bin(Binary::Add, hs[layers], hs[layers]);
        for i in (0..layers).rev() {
            let y2 = s.bin(Binary::Mul, hs[i + 1], hs[i + 1]);
            let slope = s.bin(Binary::Sub, one, y2);
            let du = s.bin(Binary::Mul, dy, slope);
            let xt = s.permute(hs[i], &[1, 0]);
            let dw = s.matmul(xt, du);
            grads[i] = Some(match grads[i] {
                None => dw,
                Some(sum) => s.bin(Binary::Add, sum, dw),
            });
            let wt = s.permute(ws[i], &[1, 0]);
            dy = s.matmul(du, wt);
        }
    }
    let mut roots = vec![loss.unwrap()];
    roots.extend(grads.into_iter().flatten());
    (s, roots)
}

#[test]
fn accumulated_micro_batches_need_the_memory_of_one() {
    let bytes = |k: usize| {
        let (s, roots) = accumulated(k);
        planned(&s, &roots, &FUSED).workspace_bytes
    };
    let (one, four) = (bytes(1), bytes(4));
    assert!(four * 10 <= one * 11, "{four} bytes for four, {one} for one");
}

#[test]
fn planning_is_linear() {
    let mut s = Sketch::new();
    let w = s.x(&[8, 8]);
    let mut x = s.x(&[4, 8]);
    let first = x;
    for i in 0..100_000 {
        x = match i % 10 {
            0 => s.matmul(x, w),
            1 => s.reduce(Reduce::Sum, x, &[1]),
            2 => s.to(Op::Expand, &[x], &[4, 8]),
            3 => s.bin(Binary::Add, x, first),
            4 => s.bin(Binary::Mul, x, x),
            _ => s.un(Unary::Tanh, x),
        };
    }
    let start = std::time::Instant::now();
    let plan = planned(&s, &[x], &FUSED);
    let seconds = start.elapsed().as_secs_f64();
    assert!(plan.steps.len() < 40_000);
    // Generous: unoptimised, on a busy machine. A quadratic step takes minutes.
    assert!(seconds < 30.0, "{seconds} s");
}

#[test]
fn roots_may_be_leaves_views_and_repeated() {
    let mut s = Sketch::new();
    let x = s.x(&[3, 4]);
    let t = s.permute(x, &[1, 0]);
    let f = s.reshape(x, &[12]);
    let mut steps = Steps::ALL;
    (steps.start[0], steps.step[0]) = (11, -1);
    let r = s.to(Op::Slice(steps), &[f], &[12]);
    let y = s.un(Unary::Neg, x);
    let plan = planned(&s, &[x, t, f, r, y, y, t], &FUSED);
    assert_eq!(plan.outputs.len(), 7);
    verify(&s, &plan, 13);
}

#[test]
fn custom_operations_read_whole_values() {
    let mut s = Sketch::new();
    let x = s.x(&[3, 4]);
    let id = crate::CustomId(7);
    let spec = crate::CustomSpec {
        name: "sum_and_twice".into(),
        wgsl: String::new(),
        dispatch: Box::new(|_, _| [1, 1, 1]),
        cpu: Box::new(|ins, outs| {
            outs[0][0] = ins[0].iter().sum();
            outs[1].iter_mut().zip(ins[1]).for_each(|(y, x)| *y = 2.0 * x);
        }),
    };
    s.graph.register(id, &Arc::new(spec));
    let flat = s.reshape(x, &[12]);
    let turned = s.permute(x, &[1, 0]);
    let out = |dims: &[usize]| crate::Out { shape: Shape::new(dims), dtype: DType::F32 };
    let node = s.graph.push(crate::Node {
        op: Op::Custom(id),
        inputs: smallvec::smallvec![flat, turned],
        outs: smallvec::smallvec![out(&[1]), out(&[4, 3])],
        after: Default::default(),
        segment: 0,
        at: None,
    });
    let y = s.un(Unary::Neg, Val { node, out: 1 });
    for keep in [false, true] {
        let plan = planned(&s, &[y, Val { node, out: 0 }], &Options { fuse: true, keep });
        // The turned operand is copied, the flat one is the leaf itself.
        assert_eq!(kinds(&plan), ["pointwise", "custom", "pointwise"], "{plan}");
        verify(&s, &plan, 14);
    }
}

#[test]
fn mistakes_are_errors() {
    let mut s = Sketch::new();
    let x = s.x(&[8]);
    let n = s.cast(x, DType::U32);
    let n = s.reduce(Reduce::Sum, n, &[0]);
    let n = s.reshape(n, &[]);
    let part = s.to(Op::SliceAt { axis: 0 }, &[x, n], &[2]);
    let graph = Arc::new(s.graph.clone());
    let root = [Root { val: part, into: None }];
    let error = crate::plan(&graph, &root, &s.leaves(LeafKind::Buffer), &FUSED, &caps()).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Argument);
    let error = crate::plan(&graph, &root, &[], &FUSED, &caps()).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Argument);
    let small = Caps { max_value_bytes: 16, ..caps() };
    let big = s.un(Unary::Neg, x);
    let root = [Root { val: big, into: None }];
    let leaves = s.leaves(LeafKind::Buffer);
    let error = crate::plan(&Arc::new(s.graph), &root, &leaves, &FUSED, &small).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Limit);
}

#[test]
fn a_plan_prints() {
    let mut s = Sketch::new();
    let (x, w) = (s.x(&[2, 3]), s.x(&[3, 4]));
    let y = s.matmul(x, w);
    let y = s.un(Unary::Relu, y);
    let z = s.reduce(Reduce::Sum, y, &[0, 1]);
    let leaves = [(x.node, LeafKind::Upload), (w.node, LeafKind::Buffer)];
    let plan = checked(&s, &[Root { val: z, into: None }], &leaves, &FUSED, &caps());
    let want = "\
plan: 2 steps, 1 slots, workspace 64 bytes of which 32 uploaded
leaf0 = %0 f32[2, 3] upload at 0
leaf1 = %1 f32[3, 4]
slot0 = 32 bytes at 32, steps 0..=1
step 0: matmul [2, 4] over [3] reads [%0, %1] writes [%2] from [leaf0 leaf1] to [slot0]
    matmul
step 1: reduce [] over [8] reads [%2] writes [%4] from [slot0] to [out0]
    relu sum
out0 = %4, new, 16 bytes
";
    assert_eq!(plan.to_string(), want);
}

/// What is made of a product for several readers, all by way of halves, is made of those again, not of the product.
#[test]
fn a_product_is_held_as_the_halves_that_it_is_rounded_to() {
    let mut s = Sketch::new();
    let (x, w, b) = (s.x(&[64, 4]), s.x(&[4, 8]), s.x(&[8]));
    let (down, g) = (s.x(&[8, 4]), s.x(&[64, 4]));
    let u = s.matmul(x, w);
    let b = s.like(b, &[64, 8]);
    let u = s.bin(Binary::Add, u, b);
    let half = s.cast(u, DType::F16);
    let wide = s.cast(half, DType::F32);
    let gate = s.un(Unary::Erf, wide);
    let a = s.bin(Binary::Mul, wide, gate);
    let a = s.cast(a, DType::F16);
    let a = s.cast(a, DType::F32);
    let y = s.matmul(a, down);
    let turned = s.permute(down, &[1, 0]);
    let back = s.matmul(g, turned);
    let one = s.bin(Binary::Mul, back, gate);
    let square = s.bin(Binary::Mul, wide, wide);
    let two = s.un(Unary::Exp, square);
    let two = s.bin(Binary::Mul, two, wide);
    let grad = s.bin(Binary::Add, one, two);
    let roots = [y, grad].map(|val| Root { val, into: None });
    let leaves = s.leaves(LeafKind::Buffer);
    let dtypes = |caps: &Caps| {
        let plan = checked(&s, &roots, &leaves, &FUSED, caps);
        verify(&s, &plan, 31);
        let step = plan.steps.iter().find(|step| step.group.dims[..] == [64, 8, 4]).unwrap();
        step.group.stores.iter().map(|store| s.dtype(store.val)).collect::<Vec<_>>()
    };
    let native = Caps { native_half: true, half_factors: true, ..caps() };
    assert_eq!(dtypes(&native), [DType::F16; 2]);
    // Where two of them share a word, the product.
    assert!(dtypes(&Caps { half_factors: true, ..caps() }).contains(&DType::F32));
}
