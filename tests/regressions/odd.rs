//! Odd shapes, aliases and limits: what random programs rarely meet.

#![expect(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::type_complexity,
    clippy::erasing_op,
    clippy::unit_arg,
    reason = "tables of closures, zeros made of values"
)]

use wgrad::{Context, ContextOptions, DType, ErrorKind, HostTensor, Kept, Param, Pass, Shape, Tensor, grad};

use crate::Subject;
use crate::devices::oracle_with;
use crate::ops::{near, run};

crate::suite![
    plain: ;
    device: empty_tensors_and_numbers_through_every_kind, gradients_of_empty_tensors, odd_products,
        bytes_of_odd_sizes_under_views, eight_axes, long_reductions, many_workgroups,
        updates_that_alias, a_value_over_the_limit_is_an_error, odd_shapes_captured,
        two_contexts_on_one_device_in_two_threads, a_kernel_full_of_buffers_checks_indices,
];

fn host(shape: impl Into<Shape>) -> HostTensor {
    let shape = shape.into();
    let x: Vec<f32> = (0..shape.elems()).map(|i| ((i * 7) % 11) as f32 / 4.0 - 1.0).collect();
    HostTensor::new(shape, &x).unwrap()
}

type Make<'a> = &'a dyn Fn(&Pass) -> Tensor;

/// Compares with the oracle, fused and unfused.
fn compare(on: &Subject, name: &str, f: Make<'_>, tolerance: f64) {
    let plain = ContextOptions::default().fuse(false);
    let want = run(&oracle_with(plain.clone()), f);
    for ctx in [on.context(), on.context_with(plain)] {
        let got = run(&ctx, f);
        assert_eq!((got.0, got.1), (want.0, want.1), "{name}");
        near(name, &got.2, &want.2, tolerance);
    }
}

fn empty_tensors_and_numbers_through_every_kind(on: &Subject) {
    let all: &[(&str, fn(Tensor) -> Tensor)] = &[
        ("unary", |x| x.exp()),
        ("binary", |x| x + x),
        ("number", |x| x * 2.0),
        ("cast", |x| x.cast(DType::U8)),
        ("to bool", |x| x.gt(0.0)),
        ("select", |x| x.gt(0.0).select(x, 1.0)),
        ("sum", |x| x.sum_all()),
        ("sum keepdim", |x| x.sum_keepdim(..)),
        ("prod", |x| x.prod(..)),
        ("max", |x| x.max(..)),
        ("int max", |x| x.cast(DType::I32).max(..)),
        ("word min", |x| x.abs().cast(DType::U32).min(..)),
        ("any bool sum", |x| x.gt(0.0).sum(..)),
        ("reshape", |x| x.reshape(x.shape())),
        ("flatten", |x| if x.rank() > 0 { x.flatten(0) } else { x }),
        ("unsqueeze", |x| x.unsqueeze(0).transpose(0, -1) * 2.0),
        ("expand", |x| x.expand(Shape::new(&[&[3], x.shape().dims()].concat())) * 1.0),
        ("flip", |x| x.flip(..)),
        ("cat", |x| if x.rank() > 0 { Tensor::cat(&[x, x, x + 1.0], 0) } else { x }),
        ("stack", |x| Tensor::stack(&[x, x], 0)),
        ("where nothing is", |x| x.unsqueeze(0).slice(0, 1..1)),
        ("reverse nothing", |x| x.unsqueeze(0).slice_step(0, 0..0, -1).sum(0)),
        ("pad", |x| x.pad(&vec![(1, 2); x.rank()], 0.5)),
        ("repeat", |x| x.unsqueeze(0).repeat(0, 2)),
        ("repeat 0", |x| x.unsqueeze(0).repeat(0, 0)),
        ("sum nothing", |x| x.unsqueeze(0).repeat(0, 0).sum(0)),
        ("softmax", |x| x.unsqueeze(0).softmax(0)),
        ("argmax", |x| x.unsqueeze(0).argmax(0)),
        ("gather", |x| {
            let i = x.unsqueeze(0).cast(DType::I32) * 0;
            x.unsqueeze(0).gather(0, i)
        }),
        ("scatter", |x| {
            let i = x.unsqueeze(0).cast(DType::I32) * 0;
            x.unsqueeze(0).scatter_add(0, i, x.unsqueeze(0))
        }),
        ("assign", |x| x.unsqueeze(0).slice_assign(0, 0, (x + 1.0).unsqueeze(0))),
        ("assign at", |x| x.unsqueeze(0).slice_assign_at(0, 0, (x + 1.0).unsqueeze(0))),
        ("assign nothing", |x| x.unsqueeze(0).slice_assign(0, 1, x.unsqueeze(0).slice(0, 1..1))),
        ("slice at", |x| x.unsqueeze(0).slice_at(0, 0, 1)),
        ("slice at nothing", |x| x.unsqueeze(0).slice_at(0, 1, 0)),
        ("one hot", |x| (x.cast(DType::I32) * 0).one_hot(3)),
        ("one hot of none", |x| (x.cast(DType::I32) * 0).one_hot(0)),
        ("embedding", |x| x.unsqueeze(0).embedding((x * 0.0).cast(DType::I32))),
        ("outer", |x| x.reshape([-1, 1]).matmul(x.reshape([1, -1]))),
        ("inner", |x| x.reshape([1, -1]).matmul(x.reshape([-1, 1]))),
        ("var", |x| x.unsqueeze(0).var(0, 0)),
    ];
    let shapes: &[&[usize]] = &[&[], &[0], &[1], &[0, 3], &[3, 0], &[2, 0, 3], &[1, 1, 1], &[2, 1, 3]];
    for shape in shapes {
        for (name, f) in all {
            let bad = shape.iter().product::<usize>() == 0 && matches!(*name, "outer" | "inner");
            if shape.len() > 2 && *name == "embedding" || bad {
                continue;
            }
            compare(on, &format!("{name} of {shape:?}"), &|p| f(p.input(host(*shape)).unwrap()), 1e-5);
        }
    }
}

fn gradients_of_empty_tensors(on: &Subject) {
    let all: &[(&str, fn(Tensor) -> Tensor)] = &[
        ("sum", |x| x.sum_all()),
        ("prod", |x| x.prod(..)),
        ("max", |x| x.max(..)),
        ("pad", |x| x.pad(&vec![(1, 0); x.rank()], 0.0)),
        ("flip", |x| x.flip(..)),
        ("slice", |x| x.unsqueeze(0).slice(0, 1..1).sum(0) + x),
        ("reverse", |x| x.unsqueeze(0).slice_step(0, 0..0, -1).sum(0) + x),
        ("cat", |x| Tensor::cat(&[x.unsqueeze(0), x.unsqueeze(0).slice(0, 0..0), x.unsqueeze(0)], 0)),
        ("assign", |x| x.unsqueeze(0).slice_assign(0, 1, x.unsqueeze(0).slice(0, 1..1))),
        ("outer", |x| x.unsqueeze(-1).matmul(x.unsqueeze(0))),
        ("inner", |x| x.unsqueeze(0).matmul(x.unsqueeze(-1))),
        ("softmax", |x| x.unsqueeze(0).softmax(0) * x),
        ("expand", |x| x.expand(Shape::new(&[&[0], x.shape().dims()].concat()))),
    ];
    let shapes: &[&[usize]] = &[&[], &[0], &[1], &[0, 3], &[3, 0], &[2, 0, 3], &[2, 1, 3]];
    for shape in shapes {
        for (name, f) in all {
            if matches!(*name, "outer" | "inner") && shape.len() != 1 {
                continue;
            }
            let g = |p: &Pass| {
                let x = p.input(host(*shape)).unwrap();
                grad(f(x * 1.5).square().sum_all(), &[x]).unwrap()[0]
            };
            compare(on, &format!("gradient of {name} of {shape:?}"), &g, 1e-5);
        }
    }
}

fn odd_products(on: &Subject) {
    for (m, k, n) in [
        (3, 0, 2),
        (0, 3, 2),
        (2, 3, 0),
        (1, 1, 1),
        (1, 65, 1),
        (1, 7, 33),
        (33, 7, 1),
        (17, 31, 13),
        (65, 1, 67),
        (1, 300, 129),
        (64, 64, 64),
        (67, 130, 3),
    ] {
        for batch in [&[][..], &[3], &[0], &[2, 1]] {
            let shape = |a: usize, b: usize| Shape::new(&[batch, &[a, b]].concat());
            let x = |p: &Pass, a, b| p.input(host(shape(a, b))).unwrap();
            let say = format!("{batch:?} {m} x {k} x {n}");
            compare(on, &say, &|p| x(p, m, k).matmul(x(p, k, n)), 1e-4);
            compare(on, &say, &|p| x(p, k, m).t().matmul(x(p, n, k).t()) + 1.0, 1e-4);
            compare(
                on,
                &say,
                &|p| (x(p, m, k) * 0.5).tanh().matmul(x(p, k, n).flip([-1])).relu().sum(-1),
                1e-4,
            );
            let g = |p: &Pass| {
                let (a, b) = (x(p, m, k), x(p, k, n));
                let g = grad(a.matmul(b).square().sum_all(), &[a, b]).unwrap();
                Tensor::cat(&[g[0].reshape([a.shape().elems()]), g[1].reshape([b.shape().elems()])], 0)
            };
            compare(on, &say, &g, 1e-3);
        }
    }
}

fn bytes_of_odd_sizes_under_views(on: &Subject) {
    for n in [1, 2, 3, 5, 7, 9, 13, 255, 257] {
        let bytes = |p: &Pass| (p.arange(0..n * 3).cast(DType::U8) * 7).reshape([n, 3]);
        let say = format!("{n}");
        compare(on, &say, &|p| bytes(p).t(), 0.0);
        compare(on, &say, &|p| bytes(p).flip([0]).t() + 3, 0.0);
        compare(on, &say, &|p| bytes(p).slice_step(0, .., -2).slice(1, 1..), 0.0);
        compare(on, &say, &|p| bytes(p).pad(&[(1, 0), (0, 2)], 0.0), 0.0);
        compare(on, &say, &|p| Tensor::cat(&[bytes(p), bytes(p) + 1, bytes(p)], 1).t(), 0.0);
        compare(on, &say, &|p| bytes(p).slice_assign(0, n as usize - 1, bytes(p).slice(0, ..1)), 0.0);
        compare(on, &say, &|p| bytes(p).gather(0, bytes(p) % n.min(200)), 0.0);
        compare(on, &say, &|p| !bytes(p).gt(90).t(), 0.0);
        compare(on, &say, &|p| bytes(p).gt(90).slice_step(0, .., -1).sum(0), 0.0);
        compare(on, &say, &|p| bytes(p).cast(DType::I32).max(0), 0.0);
        compare(on, &say, &|p| (bytes(p).t().gt(40) ^ bytes(p).t().lt(99)).select(bytes(p).t(), 1), 0.0);
    }
}

fn eight_axes(on: &Subject) {
    let x = |p: &Pass| p.input(host([2, 1, 3, 1, 2, 2, 1, 3])).unwrap();
    let order = [7, 2, 0, 5, 6, 4, 1, 3];
    compare(on, "permute", &|p| x(p).permute(order) * 2.0, 1e-6);
    compare(on, "sum", &|p| x(p).permute(order).sum([0, 2, 5]), 1e-5);
    compare(on, "max", &|p| x(p).flip([0, 2, 7]).max([-1, 1, 4]), 1e-6);
    compare(on, "argmax", &|p| x(p).permute(order).argmax(1), 0.0);
    compare(on, "softmax", &|p| x(p).permute(order).softmax(3), 1e-5);
    compare(on, "matmul", &|p| x(p).matmul(x(p).t()), 1e-5);
    compare(on, "pad", &|p| x(p).pad(&[(1, 0); 8], 1.0).sum([0, 1, 3, 5]), 1e-5);
    compare(on, "cat", &|p| Tensor::cat(&[x(p), x(p).permute([4, 1, 2, 3, 0, 5, 6, 7])], 6), 1e-6);
    compare(on, "gather", &|p| x(p).gather(7, p.full_of([2, 1, 3, 1, 2, 2, 1, 2], 2.0, DType::I32)), 1e-6);
    compare(on, "broadcast", &|p| x(p) + x(p).sum_keepdim([0, 4]) * x(p).mean_keepdim([2, 5, 7]), 1e-5);
}

fn long_reductions(on: &Subject) {
    let n = if on.is_slow() { 70_001 } else { 1_000_003 };
    compare(on, "sum", &|p| p.input(host([n])).unwrap().sum_all(), 1e-5);
    compare(on, "column sums", &|p| p.input(host([n / 7, 7])).unwrap().sum(0), 1e-5);
    compare(on, "max", &|p| (p.arange(0..n as i32) % 99991).max(0), 0.0);
    compare(on, "argmax", &|p| (p.arange(0..n as i32) % 9991).cast(DType::F32).argmax(0), 0.0);
    compare(on, "argmin", &|p| p.arange(0..n as i32).flip([0]).cast(DType::F32).argmin(0), 0.0);
    compare(on, "words", &|p| (p.arange(0..n as i32).cast(DType::U32) * 77777).sum(0), 0.0);
    compare(on, "softmax", &|p| p.input(host([n])).unwrap().softmax(0).max(0) * n as f64, 1e-4);
    compare(
        on,
        "inner",
        &|p| p.input(host([n])).unwrap().matmul(p.input(host([n])).unwrap()) / n as f64,
        1e-4,
    );
}

fn many_workgroups(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let ctx = on.context();
    ctx.pass(|p| {
        // More elements than workgroups of one axis, and more rows than that.
        let count = if on.is_vulkan() { 20_000_003 } else { 2_000_003 };
        let x = p.arange(0..count);
        let y = (x & 1023) * 3 + 1;
        let last = y.slice(0, -5..).to_vec::<i32>()?;
        let want: Vec<i32> = (count - 5..count).map(|i| (i & 1023) * 3 + 1).collect();
        assert_eq!(last, want);
        let total: i32 = (0..count).fold(0i32, |s, i| s.wrapping_add((i & 1023) * 3 + 1));
        assert_eq!(y.sum_all().item::<i32>()?, total);
        for width in [1, 3, 33, 64] {
            let rows = 70_001;
            let x = (p.arange(0..rows * width) & 255).reshape([rows, width]);
            let want: Vec<i32> = (0..rows).map(|r| (0..width).map(|c| (r * width + c) & 255).sum()).collect();
            assert_eq!(x.sum(1).to_vec::<i32>()?, want, "rows of {width}");
            assert_eq!(x.cast(DType::F32).sum(1).to_vec::<i32>()?, want, "rows of {width}");
            let sums = x.cast(DType::F32).t().sum(0) * 2.0;
            assert_eq!(sums.to_vec::<i32>()?, want.iter().map(|w| 2 * w).collect::<Vec<_>>(), "columns");
            let soft = x.cast(DType::F32).softmax(1).sum(1).to_vec::<f32>()?;
            assert!(soft.iter().all(|s| (s - 1.0).abs() < 1e-4), "softmax of {width}");
            let wide = x.cast(DType::F32).matmul(p.ones([width as usize, 2])).to_vec::<i32>()?;
            assert!(want.iter().zip(wide.chunks(2)).all(|(w, y)| y == [*w, *w]), "product of {width}");
        }
        // As many batches.
        let a = (p.arange(0..70_001 * 4) & 7).cast(DType::F32).reshape([70_001, 2, 2]);
        let got = a.matmul(a).sum([1, 2]).slice(0, -1..).item::<f32>()?;
        let [w, x, y, z] = [0, 1, 2, 3].map(|i| ((280_000 + i) & 7) as f32);
        assert_eq!(got, w * w + x * y + w * x + x * z + y * w + z * y + y * x + z * z);
        Ok(())
    })
    .unwrap();
}

fn updates_that_alias(on: &Subject) {
    let show = |ctx: &Context| -> Vec<f64> {
        let a = Param::new(ctx, "a", host([3, 3])).unwrap();
        let b =
            Param::new(ctx, "b", HostTensor::new([3, 3], &[1f32, 2., 3., 4., 5., 6., 7., 8., 9.]).unwrap());
        let b = b.unwrap();
        let [c, d] = [Kept::zeros(ctx, [3, 3]).unwrap(), Kept::zeros(ctx, [3, 3]).unwrap()];
        let mut seen = Vec::new();
        let mut look = || {
            for x in [a.read(), b.read(), c.read(), d.read()] {
                seen.extend(x.unwrap().to_vec::<f64>());
            }
        };
        for _ in 0..2 {
            ctx.pass(|_| Ok(a.set(a.t().t()))).unwrap();
            look();
            ctx.pass(|_| Ok(a.set(a.t().t() + a.t() * 0.5))).unwrap();
            look();
            ctx.pass(|_| {
                let [x, y] = [a.t() * 1.0, b.t() * 1.0];
                a.set(y);
                b.set(x);
                Ok(())
            })
            .unwrap();
            look();
            ctx.pass(|_| {
                let [x, y] = [a.t().detach(), b.t().detach()];
                a.set(y);
                b.set(x);
                c.set(x);
                d.set(x);
                Ok(())
            })
            .unwrap();
            look();
            ctx.pass(|_| Ok(c.set(c.t().flip([0, 1]) + 1.0))).unwrap();
            look();
            ctx.pass(|_| Ok(b.set(Tensor::cat(&[b.t(), b.t()], 0).slice(0, 2..5)))).unwrap();
            look();
            ctx.pass(|_| {
                let y = a.t().flip([0]) + b.t();
                c.set(y);
                d.set(y);
                a.set(y.t());
                b.set(y.matmul(c.t()).tanh());
                Ok(())
            })
            .unwrap();
            look();
            ctx.pass(|_| {
                a.set(a.t().slice_assign(0, 0, a.t().slice(0, 1..)));
                b.set(b.t().slice_assign(1, 1, b.t().slice(1, ..2)));
                d.set(d.t().slice_assign_at(0, 1, d.t().slice(0, ..2)));
                Ok(())
            })
            .unwrap();
            look();
            ctx.pass(|p| {
                let i = p.input(HostTensor::new([3, 3], &[2, 0, 1, 0, 0, 1, 2, 2, 1])?)?;
                a.set(a.t().gather(0, i) * 0.5);
                b.set(b.t() - b.t().sum_keepdim(0) * 0.1 + b.t().softmax(1));
                c.set(c.t().scatter_add(1, i, c.t()) * 0.25);
                d.set(d.t() + d.t().t().matmul(d.t()) * 0.01);
                Ok(())
            })
            .unwrap();
            look();
        }
        seen
    };
    let plain = ContextOptions::default().fuse(false);
    let want = show(&oracle_with(plain.clone()));
    near("fused", &show(&on.context()), &want, 1e-4);
    near("unfused", &show(&on.context_with(plain)), &want, 1e-4);
}

fn a_value_over_the_limit_is_an_error(on: &Subject) {
    let ctx = Context::new(on.lowered(|caps| caps.max_value_bytes = 1 << 16)).unwrap();
    ctx.pass(|p| {
        // On the oracle a float takes eight bytes.
        let x = p.full([8000], 2.0);
        assert_eq!((x * 1.5).sum_all().item::<f32>()?, 24_000.0);
        // Fused, the large value is never stored.
        let large = p.full([40_000], 2.0) * p.linspace(0.0, 1.0, 40_000);
        let total = large.sum_all().item::<f64>()?;
        assert!((total - 40_000.0).abs() < 1.0, "{total}");
        let error = large.read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        assert_eq!((x + 1.0).slice(0, ..1).item::<f32>()?, 3.0);
        Ok(())
    })
    .unwrap();
}

fn odd_shapes_captured(on: &Subject) {
    for dims in [&[][..], &[0], &[1], &[7], &[0, 3], &[3, 0], &[1, 1, 5], &[17, 3, 1]] {
        let ctx = on.context();
        let w = Param::new(&ctx, "w", host(dims)).unwrap();
        let wide = Shape::new(&[&[2], dims].concat());
        let step = ctx.capture(|_: &Pass, (x, i): (Tensor, Tensor)| {
            let loss = (x * w.t()).square().sum_all() + i.cast(DType::F32).sum_all();
            let g = loss.backward()?.get(&w).unwrap();
            w.set(w.t() - g * 0.01);
            Ok((loss, x.sum(0)))
        });
        let mut mirror: Vec<f64> = host(dims).to_vec();
        for round in 0..4u8 {
            let x = host(wide);
            let i = HostTensor::new([3], &[round, 1, 255]).unwrap();
            let (loss, sum) = step.run((x.clone(), i)).unwrap();
            let x: Vec<f64> = x.to_vec();
            let n = mirror.len();
            let want: f64 = x.iter().enumerate().map(|(i, x)| (x * mirror[i % n]).powi(2)).sum();
            let want = want + f64::from(round) + 256.0;
            let got = f64::from(loss.get().unwrap());
            assert!((got - want).abs() < 1e-3 * want.abs(), "{dims:?}, round {round}: {got}, not {want}");
            let sums: Vec<f64> = (0..n).map(|i| x[i] + x[n + i]).collect();
            near("sums", &sum.read().unwrap().to_vec::<f64>(), &sums, 1e-5);
            for (i, w) in mirror.iter_mut().enumerate() {
                *w -= 0.02 * *w * (x[i].powi(2) + x[n + i].powi(2));
            }
            near("w", &w.read().unwrap().to_vec::<f64>(), &mirror, 1e-4);
        }
    }
}

fn two_contexts_on_one_device_in_two_threads(on: &Subject) {
    let backend = on.backend();
    std::thread::scope(|scope| {
        for turn in 0..3 {
            let backend = std::sync::Arc::clone(&backend);
            scope.spawn(move || {
                let ctx = Context::new(backend).unwrap();
                let w = Param::new(&ctx, "w", HostTensor::new([33], &[turn as f32; 33]).unwrap()).unwrap();
                let mut later = Vec::new();
                for round in 0..20 {
                    ctx.pass(|p| {
                        let x = p.full([33], f64::from(round)) + w.t();
                        let y = x.reshape([3, 11]).softmax(1).sum_all() * 11.0;
                        w.set(w.t() + 1.0);
                        later.push((round, (x.sum_all() + y).deferred::<f32>()));
                        if round % 5 == 0 {
                            assert_eq!(w.t().to_vec::<f32>()?, [(turn + round + 1) as f32; 33]);
                        }
                        Ok(())
                    })
                    .unwrap();
                }
                for (round, y) in later {
                    let want = 33 * (2 * round + turn) + 33;
                    assert!((y.get().unwrap() - want as f32).abs() < 0.1, "turn {turn}, round {round}");
                }
            });
        }
    });
}

/// The error flag of a checked index takes no buffer from the values of a kernel.
fn a_kernel_full_of_buffers_checks_indices(on: &Subject) {
    let few = on.lowered(|caps| caps.max_buffers = 4);
    let ctx = Context::new(few).unwrap();
    let (_, _, got) = run(&ctx, |p: &Pass| {
        let idx = p.input(HostTensor::new([2, 1], &[2, 0]).unwrap()).unwrap();
        p.input(host([2, 3])).unwrap().gather(1, idx) * p.input(host([2, 1])).unwrap()
    });
    near("gather times column", &got, &[0.25, 1.125], 1e-6);
}
