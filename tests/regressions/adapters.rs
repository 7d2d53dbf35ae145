//! Faults at the limits of adapters, and of what shaders make of numbers.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use wgrad::{
    Backend, Context, ContextOptions, CustomOp, DType, DeviceKind, ErrorKind, HostTensor, Kept, Param, Pass,
    Tensor, f16,
};
use wgrad_graph::BufferId;

use super::{every_way, floats};
use crate::Subject;
use crate::devices::oracle;
use crate::ops::{Make, near, run};
use crate::table::full;

crate::suite![
    plain: ;
    device: b233_more_workgroups_than_an_axis_takes, b233_grids_are_folded, b235_a_value_over_the_binding_limit,
        b236_a_result_that_fits_nowhere, b238_neighbours_of_odd_sizes, b239_numbers_keep_their_bits,
        b241_subgroups_of_unknown_size, b242_small_subgroups, b245_long_products_are_cut, b247_nothing_waits_for_a_read,
        b248_kernels_come_and_go, b250_uploads_before_the_first_step, b251_a_clock_for_many_kernels,
        b253_packed_values_in_workgroups, b254_infinities_and_nan,
];

/// What `f` gives on `ctx` is what it gives on the oracle.
fn same(ctx: &Context, name: &str, f: Make, tolerance: f64) {
    near(name, &run(ctx, f).2, &run(&oracle(), f).2, tolerance);
}

fn b233_more_workgroups_than_an_axis_takes(on: &Subject) {
    if on.is_slow() {
        return;
    }
    // 65535 workgroups of 64 and one element; of 256 with 800 over them in full.
    let count = if full() && on.is_vulkan() { 52_428_800 } else { 4_194_241 };
    let ctx = on.context();
    ctx.pass(|p| {
        let y = (p.arange(0..count) & 1023) * 3 + 1;
        let want = |i: i32| (i & 1023) * 3 + 1;
        assert_eq!(y.slice(0, -3..).to_vec::<i32>()?, [count - 3, count - 2, count - 1].map(want));
        assert_eq!(
            y.slice(0, 4_194_238..4_194_241).to_vec::<i32>()?,
            [4_194_238, 4_194_239, 4_194_240].map(want)
        );
        assert_eq!(y.sum_all().item::<i32>()?, (0..count).fold(0i32, |s, i| s.wrapping_add(want(i))));
        Ok(())
    })
    .unwrap();
}

/// Few workgroups an axis: everything that is larger is folded.
fn b233_grids_are_folded(on: &Subject) {
    let ctx = Context::new(on.lowered(|caps| caps.max_workgroups = 20)).unwrap();
    let cases: [(&str, Make); 8] = [
        ("elementwise", |p| (p.arange(0..19_000) & 255) * 3),
        ("quads", |p| (p.arange(0..19_200).cast(DType::F32) * 0.5).reshape([120, 160]).t() + 1.0),
        ("rows", |p| (p.arange(0..9_000) & 31).reshape([3000, 3]).sum(1)),
        ("columns", |p| (p.arange(0..9_000) & 31).reshape([3, 3000]).sum(0)),
        ("gather", |p| p.arange(0..5_000).gather(0, p.arange(0..5_000).flip([0]))),
        ("scan", |p| (p.arange(0..6_000) & 7).reshape([2000, 3]).cumsum(1)),
        ("sort", |p| (p.arange(0..4_000) * 37).rem(101).reshape([1000, 4]).sort(1, false).0),
        ("product", |p| {
            let a = (p.arange(0..9_000) & 7).cast(DType::F32).reshape([300, 30]);
            a.matmul(a.t()).sum(1)
        }),
    ];
    for (name, f) in cases {
        same(&ctx, name, f, 1e-5);
    }
}

fn b235_a_value_over_the_binding_limit(on: &Subject) {
    let limit = 1 << 20;
    let ctx = Context::new(on.lowered(|caps| caps.max_value_bytes = limit)).unwrap();
    let caps = ctx.caps().clone();
    let most = limit / caps.storage(DType::F32).bytes();
    let told = |error: wgrad::Error, elems: usize| {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Limit, "{text}");
        let exact = (elems * caps.storage(DType::F32).bytes()).to_string();
        let padded = caps.value_bytes(elems, DType::F32).to_string();
        assert!(text.contains(&limit.to_string()), "the limit is named: {text}");
        assert!(text.contains(&exact) || text.contains(&padded), "{exact} is named: {text}");
    };
    // One element more than fits: as an owned value, as data of a pass, and as a result.
    let large = HostTensor::new([most + 1], &vec![1f32; most + 1]).unwrap();
    told(Kept::new(&ctx, &large).unwrap_err(), most + 1);
    told(ctx.pass(|p| p.input(&large).map(|_| ())).unwrap_err(), most + 1);
    let half = HostTensor::new([most / 2], &vec![1f32; most / 2]).unwrap();
    let result = ctx.pass(|p| {
        let x = p.input(&half)?;
        Tensor::cat(&[x, x, x], 0).keep()
    });
    told(result.unwrap_err(), most / 2 * 3);
    // What fits goes through, also over what does not fit when it is never stored.
    let sum = ctx.pass(|p| {
        let x = p.input(&half)?;
        Tensor::cat(&[x, x, x], 0).sum_all().item::<f64>()
    });
    assert_eq!(sum.unwrap(), (most / 2 * 3) as f64);
}

fn b236_a_result_that_fits_nowhere(on: &Subject) {
    let ctx =
        Context::new(on.lowered(|caps| caps.max_value_bytes = caps.max_value_bytes.min(1 << 30))).unwrap();
    let one = Kept::new(&ctx, HostTensor::new([1], &[2f32]).unwrap()).unwrap();
    ctx.sync().unwrap();
    let before = ctx.stats();
    // Eight GiB of f32.
    let error = ctx.pass(|_| (one.t().expand([1usize << 31]) * 2.0).keep()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    let after = ctx.stats();
    assert_eq!((after.dispatches, after.live_bytes), (before.dispatches, before.live_bytes));
    assert_eq!(ctx.pass(|_| (one.t() * 2.0).item::<f32>()).unwrap(), 4.0);
}

/// Values whose bytes fill no word lie side by side; writing one leaves the others alone.
fn b238_neighbours_of_odd_sizes(on: &Subject) {
    for ctx in [on.context(), on.context_with(ContextOptions::default().fuse(false))] {
        for dtype in [DType::F16, DType::BF16, DType::U8, DType::Bool, DType::I64] {
            for n in [1usize, 2, 3, 5, 6, 7, 255, 1021] {
                let host = |k: usize| {
                    let elems: Vec<f64> = (0..n).map(|i| ((i * 3 + k) % 2) as f64).collect();
                    HostTensor::new([n], &elems).unwrap().cast(dtype)
                };
                let kept: Vec<_> = (0..4).map(|k| ctx.pass(|p| p.input(host(k))?.keep()).unwrap()).collect();
                ctx.pass(|p| {
                    let x = p.input(host(0))?;
                    // Two of the four change; they are computed in their own memory.
                    for k in [1, 3] {
                        let old = kept[k].t();
                        kept[k].set(old.ne(old).select(old, x));
                    }
                    Ok(())
                })
                .unwrap();
                for (k, kept) in kept.iter().enumerate() {
                    let want = if k % 2 == 0 { host(k) } else { host(0) };
                    assert_eq!(kept.read().unwrap().to_vec::<f64>(), want.to_vec::<f64>(), "{dtype} {n} {k}");
                }
            }
        }
    }
}

fn b239_numbers_keep_their_bits(on: &Subject) {
    let numbers: [f32; 9] = [
        0.1,
        f32::MIN_POSITIVE,
        16_777_217.0,
        f32::MAX,
        1.0 / 3.0,
        1.0 + f32::EPSILON,
        6.103_515_6e-5,
        -9.999_999e-9,
        1e10,
    ];
    for ctx in [on.context(), on.context_with(ContextOptions::default().fuse(false))] {
        for x in numbers {
            let number = f64::from(x);
            let got = ctx
                .pass(|p| {
                    let one = p.input(HostTensor::new([2], &[1f32, -1.0])?)?;
                    let all =
                        [p.full([2], number), one * number, one * x, number / one, one.gt(2).select(one, x)];
                    all.iter().map(Tensor::to_vec::<f32>).collect::<wgrad::Result<Vec<_>>>()
                })
                .unwrap();
            let (plain, signed) = ([x, x].map(f32::to_bits), [x, -x].map(f32::to_bits));
            for (i, (got, want)) in got.iter().zip([plain, signed, signed, signed, plain]).enumerate() {
                let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
                // WGSL lets a division be 2.5 units off in the last place.
                let off = |(a, b): (&u32, &u32)| a.abs_diff(*b) <= u32::from(i == 3) * 3;
                assert!(got.iter().zip(&want).all(off), "{x:e}, way {i}: {got:x?}, not {want:x?}");
            }
        }
    }
}

fn b241_subgroups_of_unknown_size(on: &Subject) {
    with_subgroups(on, &[0, 1]);
}

fn b242_small_subgroups(on: &Subject) {
    with_subgroups(on, &[4, 8]);
}

fn with_subgroups(on: &Subject, sizes: &[u32]) {
    let cases: [(&str, Make); 9] = [
        ("sum", |p| small(p, 1000).sum(1)),
        ("max", |p| small(p, 257).max(1)),
        ("argmin", |p| small(p, 65).argmin(1)),
        ("prod", |p| (small(p, 33) * 0.1 + 1.0).prod(1)),
        ("columns", |p| small(p, 1000).t().sum(0)),
        ("softmax", |p| small(p, 300).softmax(1)),
        ("cumsum", |p| small(p, 500).cumsum(1)),
        ("det", |p| (small(p, 64).slice(0, ..1).reshape([8, 8]) + p.eye(8) * 3.0).det()),
        ("solve", |p| {
            let a = small(p, 64).slice(0, ..1).reshape([8, 8]) + p.eye(8) * 3.0;
            a.solve(small(p, 8).t())
        }),
    ];
    for &subgroup in sizes {
        let ctx = Context::new(on.lowered(|caps| caps.subgroup = subgroup)).unwrap();
        for (name, f) in cases {
            // Sums of 1000 numbers that cancel: a few units in the last place of the parts.
            same(&ctx, &format!("{name}, subgroups of {subgroup}"), f, 1e-4);
        }
    }
}

/// Three rows of small numbers.
fn small(p: &Pass, width: i32) -> Tensor {
    let x = (p.arange(0..3 * width) * 37).rem(101).cast(DType::F32);
    (x / 50.0 - 1.0).reshape([3, width])
}

/// A product whose estimate is longer than a watchdog waits is several dispatches, in submissions of their
/// own, and the parts meet without a seam. A device that is lost all the same says so.
fn b245_long_products_are_cut(on: &Subject) {
    let Some(gpu) = on.fresh_gpu() else { return };
    let ctx = Context::new(Arc::clone(&gpu) as Arc<dyn Backend>).unwrap();
    ctx.pass(|p| p.ones([4]).sum_all().item::<f32>()).unwrap();
    gpu.lose();
    assert!(ctx.pass(|p| p.ones([4]).sum_all().item::<f32>()).unwrap_err().is_lost());
    if on.is_slow() && !full() {
        return;
    }
    // As on the slowest kind of device, so that little work is long; in tiles of workgroup memory too.
    let mut cases =
        vec![(DeviceKind::SoftwareGpu, [1, 1030, 520, 1024]), (DeviceKind::SoftwareGpu, [9, 256, 256, 1024])];
    if full() && !on.is_slow() || gpu.caps().kind == DeviceKind::DiscreteGpu {
        cases.push((DeviceKind::OtherGpu, [1, 4000, 1024, 4100]));
        cases.push((DeviceKind::OtherGpu, [3, 1500, 2500, 1600]));
    }
    for (kind, [batch, m, k, n]) in cases {
        let ctx = Context::new(on.lowered(|caps| caps.kind = kind)).unwrap();
        let wave = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|i| (i * step % 17) as f32 / 8.0 - 1.0).collect()
        };
        let (a, b) = (wave(batch * m * k, 5), wave(batch * k * n, 7));
        let [x, w] = [([batch, m, k], &a), ([batch, k, n], &b)].map(|(s, x)| HostTensor::new(s, x).unwrap());
        let before = ctx.stats();
        let y = ctx.pass(|p| Ok((p.input(&x)?.matmul(p.input(&w)?) + 1.0).deferred::<f32>())).unwrap();
        let y = y.read().unwrap().to_vec::<f64>();
        let after = ctx.stats();
        assert!(after.dispatches - before.dispatches >= 2, "one dispatch");
        assert!(after.submissions - before.submissions >= 2, "one submission");
        for z in 0..batch {
            for i in (0..m).step_by(m / 37).chain([m / 2 - 1, m / 2, m - 1]) {
                let j = (i * 7 + z) % n;
                let dot = |t: usize| f64::from(a[(z * m + i) * k + t]) * f64::from(b[(z * k + t) * n + j]);
                let want = 1.0 + (0..k).map(dot).sum::<f64>();
                near("element", &[y[(z * m + i) * n + j]], &[want], 1e-4);
            }
        }
    }
}

fn b247_nothing_waits_for_a_read(on: &Subject) {
    let turns = match (full(), on.is_slow()) {
        (true, false) => 100_000,
        (_, true) => 300,
        _ => 2000,
    };
    let gpu = on.fresh_gpu();
    let backend = gpu.clone().map_or_else(|| on.fresh(), |gpu| gpu as Arc<dyn Backend>);
    let ctx = Context::new(backend).unwrap();
    let w = Param::new(&ctx, "w", HostTensor::new([3], &[1f32; 3]).unwrap()).unwrap();
    let small = HostTensor::new([3], &[0.5f32; 3]).unwrap();
    // Rings of staging memory may still get a member when the device falls behind, within what is reserved.
    let held = || {
        ctx.sync().unwrap();
        let stats = ctx.stats();
        let report = gpu.as_ref().and_then(|gpu| gpu.allocator_report());
        (stats.pages, stats.live_bytes, report.map(|report| report.reserved_bytes))
    };
    let mut early = None;
    for turn in 0..turns {
        ctx.pass(|p| w.try_set(w.t() * 0.5 + p.input(&small)?)).unwrap();
        drop(Kept::new(&ctx, &small).unwrap());
        if turn == 100 {
            early = Some(held());
        }
    }
    assert_eq!(early.unwrap(), held());
    near("w", &w.read().unwrap().to_vec::<f64>(), &[1.0; 3], 1e-6);
}

fn b248_kernels_come_and_go(on: &Subject) {
    let count = match (full(), on.is_slow() || !on.is_vulkan()) {
        // More than the bounded cache keeps.
        (true, false) => 1_500,
        (false, false) => 120,
        _ => 20,
    };
    let gpu = on.fresh_gpu();
    let backend = gpu.clone().map_or_else(|| on.fresh(), |gpu| gpu as Arc<dyn Backend>);
    let ctx = Context::new(backend).unwrap();
    let text = include_str!("../programs/swish.wgsl");
    let x = HostTensor::new([3], &[1f32, 2.0, 3.0]).unwrap();
    let mut held = Vec::new();
    for i in 0..count {
        let times =
            CustomOp::new("times", &text.replace("x[i] / (1.0 + exp(-x[i]))", &format!("x[i] * {i}.0")))
                .cpu(move |x, y| y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = f64::from(i) * x))
                .build()
                .unwrap();
        let got = ctx.pass(|p| times.call(&[p.input(&x)?])[0].to_vec::<f64>()).unwrap();
        assert_eq!(got, [1.0, 2.0, 3.0].map(|x| x * f64::from(i)));
        if i + 1 == count / 2 || i + 1 == count {
            let stats = ctx.stats();
            held.push((stats.pages, stats.live_bytes, gpu.as_ref().and_then(|gpu| gpu.allocator_report())));
        }
    }
    assert!(!on.is_vulkan() || ctx.stats().kernels >= u64::from(count as u32));
    assert_eq!((held[0].0, held[0].1), (held[1].0, held[1].1));
    if let (Some(half), Some(all)) = (held[0].2, held[1].2) {
        assert_eq!(half.reserved_bytes, all.reserved_bytes);
    }
}

fn b250_uploads_before_the_first_step(on: &Subject) {
    let Some(gpu) = on.fresh_gpu() else { return };
    let (times, bytes) = (if on.is_slow() { 40 } else { 500 }, 4 << 20);
    let id: BufferId = gpu.alloc(bytes).unwrap();
    let mut most = 0;
    for turn in 0..times {
        gpu.write(id, &vec![turn as u8; bytes]).unwrap();
        let Some(report) = gpu.allocator_report() else { return };
        most = most.max(report.reserved_bytes);
    }
    // Writes that wait, idle buffers, and the value; not the 2 GiB that were written.
    assert!(most <= 512 << 20, "{most} bytes of the device were held");
    let read = gpu.read(&[(id, bytes)]).unwrap().wait(Duration::from_secs(60)).unwrap();
    assert!(read[0].iter().all(|b| *b == (times - 1) as u8));
}

/// Ten thousand kernels, and then some: sets of queries are used again, and none runs out.
fn b251_a_clock_for_many_kernels(on: &Subject) {
    let gpu = on.fresh_gpu();
    let backend = gpu.clone().map_or_else(|| on.fresh(), |gpu| gpu as Arc<dyn Backend>);
    let ctx = Context::with(backend, ContextOptions::default().fuse(false)).unwrap();
    let x = HostTensor::new([3], &[0.1f32, 0.2, 0.3]).unwrap();
    let (rounds, kernels) = if on.is_slow() { (2, 300) } else { (4, 2600) };
    let chain = || {
        let chain = |p: &Pass| Ok((0..kernels).fold(p.input(&x)?, |x, _| x.tanh()).deferred::<f32>());
        ctx.pass(chain).unwrap().read().unwrap()
    };
    let plain = chain();
    ctx.profile(true);
    chain();
    ctx.sync().unwrap();
    let held = gpu.as_ref().and_then(|gpu| gpu.allocator_report());
    for _ in 1..rounds {
        assert_eq!(chain(), plain);
    }
    ctx.sync().unwrap();
    assert_eq!(gpu.as_ref().and_then(|gpu| gpu.allocator_report()), held);
    let report = ctx.profile_report();
    let timed: u64 = report.kernels.iter().filter(|k| k.what.contains("tanh")).map(|k| k.count).sum();
    assert_eq!(timed, if report.timed { rounds * kernels } else { 0 }, "{}", on.tag());
}

fn b253_packed_values_in_workgroups(on: &Subject) {
    let halves =
        |p: &Pass| p.input(HostTensor::new([2100], &sevenths().map(f16::from_f32)).unwrap()).unwrap();
    let bytes = |p: &Pass| (p.arange(0..2100) * 7).rem(251).cast(DType::U8);
    let ctx = on.context();
    let both = |name: &str, f: &dyn Fn(&Pass) -> Tensor| {
        near(name, &run(&ctx, f).2, &run(&oracle(), f).2, 1e-3);
    };
    both("sum of halves", &|p| halves(p).reshape([3, 700]).sum(1));
    both("max of halves", &|p| halves(p).max(0));
    both("softmax of halves", &|p| halves(p).softmax(0) * 700.0);
    both("scan of halves", &|p| halves(p).reshape([7, 300]).cumsum(1));
    both("sort of halves", &|p| halves(p).sort(0, true).0);
    both("sum of bytes", &|p| bytes(p).sum(0));
    both("extremes of bytes", &|p| {
        Tensor::cat(&[bytes(p).max(0).unsqueeze(0), bytes(p).min(0).unsqueeze(0)], 0)
    });
    both("sort of bytes", &|p| bytes(p).sort(0, false).0);
    both("scatter of bytes", &|p| {
        let places = p.arange(0..2100).rem(9);
        p.zeros([9]).cast(DType::I32).scatter_add(0, places, bytes(p).cast(DType::I32))
    });
    both("truth", &|p| bytes(p).gt(125).reshape([20, 105]).sum(0));
}

fn sevenths() -> [f32; 2100] {
    std::array::from_fn(|i| ((i * 13 % 101) as f32 - 50.0) / 7.0)
}

fn b254_infinities_and_nan(on: &Subject) {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let x = || [floats([5], &[INF, -INF, NAN, 0.0, -1.0])];
    let all: [(fn(Tensor) -> Tensor, [f64; 5]); 10] = [
        (Tensor::exp, [INF, 0., NAN, 1., 0.367_879_441]),
        (Tensor::log, [INF, NAN, NAN, -INF, NAN]),
        (Tensor::sqrt, [INF, NAN, NAN, 0., NAN]),
        (|x| x.lt(0.0), [0., 1., 0., 0., 1.]),
        (|x| x.ge(0.0), [1., 0., 0., 1., 0.]),
        (|x| x.eq(x), [1., 1., 0., 1., 1.]),
        (|x| x.ne(x), [0., 0., 1., 0., 0.]),
        (|x| x.sub(x), [NAN, NAN, NAN, 0., 0.]),
        (|x| x * 0.0, [NAN, NAN, NAN, 0., 0.]),
        (|x| (x + 1.0).div(x + 1.0), [NAN, NAN, NAN, 1., NAN]),
    ];
    for (f, want) in all {
        every_way(on, &x(), |_, x| f(x[0]), &[5], &want);
    }
}
