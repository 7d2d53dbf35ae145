//! Faults of fused and deferred execution.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use wgrad::{
    Context, ContextOptions, Conv, ConvTranspose, CustomOp, DType, HostTensor, Kept, Param, Pass, Scalar,
    Tensor,
};

use super::{Given, Lie, every_way, floats, ramp, ways};
use crate::Subject;
use crate::devices::oracle_with;
use crate::ops::near;
use crate::table::full;

crate::suite![
    plain: ;
    device: b187_a_later_reader_of_a_moved_value, b188_a_reshape_read_by_a_sum, b190_scalars_of_two_blocks,
        b191_halves_that_broadcast, b193_a_long_loop_without_a_read, b194_a_cache_of_keys_and_values,
        b196_more_operands_than_buffers, b197_helpers_are_declared_once, b199_truth_of_many_elements,
        b200_or_is_no_and, b202_another_shape_of_the_same_kernel, b203_a_kernel_that_changed,
        b205_a_value_in_four_threads,
];

/// `f` in every way against the oracle without fusion.
fn alike(on: &Subject, operands: &[Given], tolerance: f64, f: impl Fn(&Pass, &[Tensor]) -> Tensor) {
    let reference = oracle_with(ContextOptions::default().fuse(false));
    let plain = |p: &Pass| {
        let x: Vec<Tensor> = operands.iter().map(|o| o.on(p, Lie::Plain)).collect();
        f(p, &x).to_vec::<f64>()
    };
    let want = reference.pass(plain).unwrap();
    ways(on, operands, |p, x, say| near(say, &f(p, x).to_vec::<f64>().unwrap(), &want, tolerance));
}

fn waves(dims: impl AsRef<[usize]>, turn: f64) -> Given {
    let count = dims.as_ref().iter().product();
    floats(dims, &(0..count).map(|i: usize| (i as f64 * 0.7 + turn).sin()).collect::<Vec<_>>())
}

fn halves(given: Given) -> Given {
    Given { dtype: DType::F16, ..given }
}

fn b187_a_later_reader_of_a_moved_value(on: &Subject) {
    let x: Vec<f64> = (1..9).map(f64::from).collect();
    let f = |_: &Pass, x: &[Tensor]| {
        let f = x[0] * 2.0;
        f * f.adaptive_avg_pool([1usize, 1])
    };
    let want = [10., 20., 30., 40., 130., 156., 182., 208.];
    every_way(on, &[floats([1, 2, 2, 2], &x)], f, &[1, 2, 2, 2], &want);
}

fn b188_a_reshape_read_by_a_sum(on: &Subject) {
    let f = |_: &Pass, x: &[Tensor]| (x[0].reshape([1, 4, 4]) + 5.0).sum(2);
    every_way(on, &[ramp([4, 4])], f, &[1, 4], &[26., 42., 58., 74.]);
}

fn b190_scalars_of_two_blocks(on: &Subject) {
    let f = |_: &Pass, x: &[Tensor]| {
        let y = (x[0] + 1.0) * 2.0;
        (y.sum_keepdim(1) + 3.0) * 4.0 - y * 5.0
    };
    // Rows 0 1 2 and 3 4 5: y is 2 4 6 and 8 10 12, their sums 12 and 30.
    every_way(on, &[ramp([2, 3])], f, &[2, 3], &[50., 40., 30., 92., 82., 72.]);
}

fn b191_halves_that_broadcast(on: &Subject) {
    let small = |turn| halves(waves([1, 6, 1, 1], turn));
    let mut operands = vec![halves(waves([2, 3, 7, 5], 0.1))];
    for branch in [0.3, 0.9] {
        operands.push(halves(waves([6, 3, 3, 3], branch)));
        operands.extend([small(branch), small(branch + 1.0), small(branch + 2.0), small(branch + 3.0)]);
    }
    alike(on, &operands, 2e-2, |_, x| {
        let branch = |i: usize| {
            let y = x[0].conv2d(x[i], None, Conv::default());
            (y - x[i + 1]) / (x[i + 2].square() + 1e-2).sqrt() * x[i + 3] + x[i + 4]
        };
        let y = branch(1).relu() + branch(6) * 0.5;
        assert_eq!(y.dtype(), DType::F16);
        y
    });
}

fn b193_a_long_loop_without_a_read(on: &Subject) {
    let turns = match (full(), on.is_slow()) {
        (true, false) => 10_000,
        (false, true) => 300,
        _ => 2000,
    };
    for ctx in [on.context(), on.context_with(ContextOptions::default().node_budget(500))] {
        let got = ctx
            .pass(|p| {
                let mut x = p.input(HostTensor::new([3], &[0f32, 5.0, -3.0])?)?;
                for _ in 0..turns {
                    x = x * 0.999 + 0.001;
                }
                x.to_vec::<f64>()
            })
            .unwrap();
        let left = 0.999f64.powi(turns);
        near("loop", &got, &[1.0 - left, 1.0 + 4.0 * left, 1.0 - 4.0 * left], 1e-4);
    }
}

/// Tokens one by one over a cache of keys and values give what all at once give, the first and every later
/// time, when the plan comes from the cache.
fn b194_a_cache_of_keys_and_values(on: &Subject) {
    const ROOM: usize = 11;
    const WIDE: usize = 6;
    for fuse in [true, false] {
        let ctx = on.context_with(ContextOptions::default().fuse(fuse));
        let [q, k, v] = [0.1, 1.3, 2.7].map(|turn| {
            let data: Vec<f32> =
                (0..ROOM * WIDE).map(|i| ((i as f64 * 1.1 + turn).cos() * 1.5) as f32).collect();
            HostTensor::new([ROOM, WIDE], &data).unwrap()
        });
        let all = |p: &Pass, upto: usize| -> Vec<f64> {
            let [q, k, v] = [&q, &k, &v].map(|x| p.input(x).unwrap().slice(0, ..upto));
            let scores = q.matmul(k.t()) / (WIDE as f64).sqrt();
            let seen = p.arange(0..upto as i32).unsqueeze(1).ge(p.arange(0..upto as i32));
            seen.select(scores, -1e9).softmax(-1).matmul(v).slice(0, -1..).to_vec().unwrap()
        };
        let [keys, values] = [&k, &v].map(|_| Kept::zeros(&ctx, [ROOM, WIDE]).unwrap());
        let first = 4;
        ctx.pass(|p| {
            for (kept, x) in [(&keys, &k), (&values, &v)] {
                kept.set(kept.t().slice_assign(0, 0, p.input(x)?.slice(0, ..first) * 1.0));
            }
            Ok(())
        })
        .unwrap();
        let at = Scalar::new(0.0);
        let row = |x: &HostTensor, i: usize| {
            HostTensor::new([1, WIDE], &x.to_vec::<f32>()[i * WIDE..(i + 1) * WIDE]).unwrap()
        };
        let mut reused = 0;
        for token in first..ROOM {
            at.set(token as f64);
            let got = ctx
                .pass(|p| {
                    keys.set(keys.t().slice_assign_at(0, &at, p.input(row(&k, token))?));
                    values.set(values.t().slice_assign_at(0, &at, p.input(row(&v, token))?));
                    let scores = p.input(row(&q, token))?.matmul(keys.t().t()) / (WIDE as f64).sqrt();
                    let seen = p.arange(0..ROOM as i32).cast(DType::F32).le(&at);
                    Ok(seen.select(scores, -1e9).softmax(-1).matmul(values.t()).deferred::<f64>())
                })
                .unwrap();
            let before = reused;
            reused = ctx.stats().plans_reused;
            assert!(token == first || reused > before, "the plan is used again");
            let want = ctx.pass(|p| Ok(all(p, token + 1))).unwrap();
            near("token", &got.read().unwrap().to_vec::<f64>(), &want, 1e-5);
            reused = ctx.stats().plans_reused;
        }
    }
}

fn b196_more_operands_than_buffers(on: &Subject) {
    // Eight bindings, of which the error flag and scratch memory take two.
    let few = on.lowered(|caps| caps.max_buffers = 6);
    let ctx = Context::new(few).unwrap();
    let before = ctx.stats().dispatches;
    let got = ctx
        .pass(|p| {
            let mut sum = p.input(HostTensor::new([33], &[0.5f32; 33])?)?;
            for i in 1..20u8 {
                sum = sum + p.input(HostTensor::new([33], &[f32::from(i); 33])?)? * f64::from(i % 3);
            }
            sum.to_vec::<f64>()
        })
        .unwrap();
    let want = 0.5 + (1..20).map(|i| f64::from(i * (i % 3))).sum::<f64>();
    near("sum", &got, &[want; 33], 1e-6);
    assert!(!on.is_vulkan() || ctx.stats().dispatches - before >= 4, "no kernel has 21 buffers");
}

fn b197_helpers_are_declared_once(on: &Subject) {
    let x = || floats([5], &[0.5, 1.0, 1.5, 2.0, 2.5]);
    alike(on, &[x(), waves([5], 0.2)], 2e-5, |_, x| {
        let powers = x[0].pow(x[1]) + (x[0] + 1.0).pow(x[1] * 0.5);
        powers * x[1].erf() + x[0].erf() + x[0].log1p() * x[1].expm1().log1p() + (x[0] % x[1]) % 0.3
    });
}

fn b199_truth_of_many_elements(on: &Subject) {
    let (a, b) = (waves([4096], 0.0), waves([4096], 2.0));
    let pairs = || a.elems.iter().zip(&b.elems);
    let want: Vec<f64> = pairs().map(|(a, b)| f64::from(u8::from(*a > 0.0 && *b < 0.5))).collect();
    let operands = [floats([4096], &a.elems), floats([4096], &b.elems)];
    every_way(on, &operands, |_, x| x[0].gt(0.0) & x[1].lt(0.5), &[4096], &want);
    let want: Vec<f64> = pairs().map(|(a, b)| f64::from(u8::from(*a > 0.0 || *b < 0.5))).collect();
    every_way(on, &operands, |_, x| x[0].gt(0.0) | x[1].lt(0.5), &[4096], &want);
}

fn b200_or_is_no_and(on: &Subject) {
    let (a, b) = ([true, true, false, false], [true, false, true, false]);
    let operands = [super::bools([4], &a), super::bools([4], &b)];
    every_way(on, &operands, |_, x| x[0] | x[1], &[4], &[1., 1., 1., 0.]);
    every_way(on, &operands, |_, x| x[0] & x[1], &[4], &[1., 0., 0., 0.]);
    // The guard of an index: both sides are computed, and the index that is not used stays in range.
    let data = [floats([3], &[-1., 2., 3.]), super::ints([5], &[0, 1, 2, 3, 900])];
    let guarded = |_: &Pass, x: &[Tensor]| x[1].lt(3) & x[0].gather(0, x[1].minimum(2)).gt(0.0);
    every_way(on, &data, guarded, &[5], &[0., 1., 1., 0., 0.]);
}

fn b202_another_shape_of_the_same_kernel(on: &Subject) {
    for outputs in [8, 16, 8] {
        let operands = [waves([1, 4, 5, 5], 0.4), waves([4, outputs, 3, 3], 0.8)];
        let how = ConvTranspose { stride: [2, 2], ..ConvTranspose::default() };
        alike(on, &operands, 1e-4, |_, x| x[0].conv_transpose2d(x[1], None, how));
    }
}

/// A kernel whose text changed is compiled anew, whatever earlier runs left on disk.
fn b203_a_kernel_that_changed(on: &Subject) {
    let text = |factor: u32| {
        include_str!("../programs/swish.wgsl")
            .replace("x[i] / (1.0 + exp(-x[i]))", &format!("x[i] * {factor}.0"))
    };
    for factor in [2u32, 3, 2, 3] {
        // A device of its own, which reads the cache when it opens and writes it when it closes.
        let ctx = Context::new(on.fresh()).unwrap();
        let times = CustomOp::new("times", &text(factor))
            .cpu(move |x, y| y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = f64::from(factor) * x))
            .build()
            .unwrap();
        let x = HostTensor::new([3], &[1f32, 2.0, -4.0]).unwrap();
        let got = ctx.pass(|p| times.call(&[p.input(&x)?])[0].to_vec::<f64>()).unwrap();
        assert_eq!(got, [1.0, 2.0, -4.0].map(|x| x * f64::from(factor)));
    }
}

fn b205_a_value_in_four_threads(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let elems = 5000;
    let round = || {
        let make = || Param::new(&ctx, "w", HostTensor::new([elems], &vec![3f32; elems]).unwrap()).unwrap();
        let w = std::thread::scope(|s| s.spawn(make).join().unwrap());
        let shared = Arc::new(w);
        std::thread::scope(|s| {
            for factor in [2.0, 3.0, 4.0] {
                let (ctx, w) = (&ctx, Arc::clone(&shared));
                s.spawn(move || {
                    for _ in 0..10 {
                        let y = ctx.pass(|_| (w.t() * factor).sum_all().item::<f64>()).unwrap();
                        assert_eq!(y, 3.0 * factor * elems as f64);
                    }
                });
            }
        });
        assert_eq!(Arc::strong_count(&shared), 1);
    };
    round();
    ctx.sync().unwrap();
    let before = ctx.stats();
    for _ in 0..3 {
        round();
    }
    ctx.sync().unwrap();
    let after = ctx.stats();
    assert_eq!(after.live_bytes, before.live_bytes);
    // Values that three threads hold at once may need a page that one of them alone did not.
    assert!(after.pages <= before.pages + 3, "{} pages, then {}", before.pages, after.pages);
}
