//! Pooling, resizing and sampling by hand: numbers known from thought, special values, mistakes, sizes.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{
    Context, ErrorKind, GridSample, HostTensor, Interpolate, Pass, Patches, Pool, Resize, Result, Sample,
    Tensor, grad,
};

use crate::Subject;
use crate::devices::{cpu, oracle};
use crate::ops::{floats, near, run};

crate::suite![
    plain: mistakes_name_the_rule, pooling_takes_few_kernels, sampling_takes_little_memory;
    device: first_of_equal_elements, not_a_number_and_infinity, padding_never_wins, nothing_above_padding,
        overlapping_windows_add, batches_of_none, weights_of_zero_read_nothing, many_windows,
        long_planes, places_beyond_the_plane, places_shared, norms_of_zeros,
];

/// The gradient of `sum(f(x) * weights)` by `x`; weights 1, 2, 3 ..
fn slope(ctx: &Context, dims: &[usize], x: &[f32], f: impl Fn(Tensor) -> Tensor) -> Vec<f64> {
    let slope = |p: &Pass| {
        let x = floats(p, dims, x);
        let y = f(x);
        let weights: Vec<f32> = (1..=y.shape().elems()).map(|i| i as f32).collect();
        grad((y * floats(p, y.shape(), &weights)).sum_all(), &[x])?[0].to_vec::<f64>()
    };
    ctx.pass(slope).unwrap()
}

fn values(ctx: &Context, dims: &[usize], x: &[f32], f: impl Fn(Tensor) -> Tensor) -> Vec<f64> {
    run(ctx, |p| f(floats(p, dims, x))).2
}

fn first_of_equal_elements(on: &Subject) {
    let ctx = on.context();
    let x = [1., 1., 2., 0., 1., 1., 2., 2.];
    let dx = slope(&ctx, &[2, 4], &x, |x| x.max_pool([2, 2]));
    near("2 by 2", &dx, &[1., 0., 2., 0., 0., 0., 0., 0.], 0.0);
    // Windows too large to be taken element by element.
    let dx = slope(&ctx, &[20], &[3.0; 20], |x| x.max_pool([10]));
    let want: Vec<f64> = (0..20).map(|i| f64::from([1, 0, 2][i / 10 * 2]) * f64::from(i % 10 == 0)).collect();
    near("10", &dx, &want, 0.0);
    let dx = slope(&ctx, &[5], &[3.0; 5], |x| x.adaptive_max_pool([3]));
    near("adaptive", &dx, &[1., 2., 0., 3., 0.], 0.0);
    let idx = values(&ctx, &[5], &[3.0; 5], |x| x.adaptive_max_pool_with_indices([3]).1);
    near("adaptive places", &idx, &[0., 1., 3.], 0.0);
}

fn not_a_number_and_infinity(on: &Subject) {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let ctx = on.context();
    let x = [1., nan, 5., 2., 3., nan, -inf, 7.];
    near("max", &values(&ctx, &[8], &x, |x| x.max_pool([2])), &[f64::NAN, 5., f64::NAN, 7.], 0.0);
    let idx = values(&ctx, &[8], &x, |x| x.max_pool_with_indices([4]).1);
    near("places", &idx, &[1., 5.], 0.0);
    let long: Vec<f32> = (0..24).map(|i| if i == 13 || i == 15 { nan } else { i as f32 }).collect();
    near("long", &values(&ctx, &[24], &long, |x| x.max_pool([12])), &[11., f64::NAN], 0.0);
    near("long places", &values(&ctx, &[24], &long, |x| x.max_pool_with_indices([12]).1), &[11., 13.], 0.0);
    near("mean", &values(&ctx, &[8], &x, |x| x.avg_pool([2]))[1..2], &[3.5], 0.0);
    // The gradient of a window with NaN goes to its first NaN.
    near("slope", &slope(&ctx, &[4], &[1., nan, nan, 9.], |x| x.max_pool([4])), &[0., 1., 0., 0.], 0.0);
}

fn padding_never_wins(on: &Subject) {
    let ctx = on.context();
    let how = || Pool { padding: 1.into(), ..Pool::new([2, 2]) };
    let y = values(&ctx, &[2, 2], &[-1.0; 4], |x| x.max_pool(how()));
    near("all negative", &y, &[-1.0; 4], 0.0);
    let ints = |p: &Pass| {
        let x = p.input(HostTensor::new([2, 2], &[-7, -5, -9, -8]).unwrap()).unwrap();
        x.max_pool(how())
    };
    near("ints", &run(&ctx, ints).2, &[-7., -5., -9., -8.], 0.0);
}

fn nothing_above_padding(on: &Subject) {
    let ctx = on.context();
    let x = [f32::NEG_INFINITY; 9];
    // Taken element by element, and as windows.
    for (kernel, want) in [([2, 2], vec![0., 1., 3., 4.]), ([3, 3], vec![0., 1., 3., 4.])] {
        let how = move || Pool { padding: 1.into(), stride: 2.into(), ..Pool::new(kernel) };
        let idx = values(&ctx, &[3, 3], &x, |x| x.max_pool_with_indices(how()).1);
        near("places", &idx, &want, 0.0);
        let dx = slope(&ctx, &[3, 3], &x, |x| x.max_pool(how()));
        near("slope", &dx, &[1., 2., 0., 3., 4., 0., 0., 0., 0.], 0.0);
    }
    let how = || Pool { padding: 1.into(), dilation: 2.into(), stride: 1.into(), ..Pool::new([2]) };
    let idx = values(&ctx, &[4], &x[..4], |x| x.max_pool_with_indices(how()).1);
    near("dilated", &idx, &[1., 0., 1., 2.], 0.0);
}

fn overlapping_windows_add(on: &Subject) {
    let ctx = on.context();
    let how = || Pool { stride: 1.into(), ..Pool::new([3]) };
    let dx = slope(&ctx, &[6], &[0., 1., 9., 2., 3., 4.], |x| x.max_pool(how()));
    near("max", &dx, &[0., 0., 6., 0., 0., 4.], 0.0);
    let dx = slope(&ctx, &[6], &[0.0; 6], |x| x.avg_pool(how()) * 3.0);
    near("mean", &dx, &[1., 3., 6., 9., 7., 4.], 1e-6);
}

fn batches_of_none(on: &Subject) {
    let ctx = on.context();
    let check = |name: &str, f: &dyn Fn(&Pass, Tensor) -> Tensor, want: &[usize]| {
        ctx.pass(|p| {
            let x = floats(p, [0, 3, 6, 5], &[]);
            let y = f(p, x);
            assert_eq!(y.shape().dims(), want, "{name}");
            assert!(y.to_vec::<f64>()?.is_empty(), "{name}");
            let g = grad(y.square().sum_all(), &[x])?[0];
            assert_eq!(g.shape(), x.shape(), "{name}");
            assert!(g.to_vec::<f64>()?.is_empty(), "{name}");
            Ok(())
        })
        .unwrap();
    };
    check("max", &|_, x| x.max_pool(Pool { padding: 1.into(), ..Pool::new([3, 2]) }), &[0, 3, 2, 3]);
    check("max large", &|_, x| x.max_pool([6, 5]), &[0, 3, 1, 1]);
    check("max overlap", &|_, x| x.max_pool(Pool { stride: 1.into(), ..Pool::new([3, 3]) }), &[0, 3, 4, 3]);
    check("avg", &|_, x| x.avg_pool(Pool { stride: 1.into(), ..Pool::new([5, 5]) }), &[0, 3, 2, 1]);
    check("adaptive", &|_, x| x.adaptive_avg_pool([4, 4]), &[0, 3, 4, 4]);
    check("adaptive max", &|_, x| x.adaptive_max_pool([4, 4]), &[0, 3, 4, 4]);
    let resize = |mode| Interpolate { mode, ..Interpolate::to([9, 4]) };
    check("nearest", &|_, x| x.interpolate(resize(Resize::Nearest)), &[0, 3, 9, 4]);
    check("cubic", &|_, x| x.interpolate(resize(Resize::Cubic)), &[0, 3, 9, 4]);
    check("grid", &|p, x| x.grid_sample(p.zeros([0, 2, 2, 2]), GridSample::default()), &[0, 3, 2, 2]);
    check("columns", &|_, x| x.im2col(Patches::new([2, 2])), &[0, 12, 20]);
}

fn weights_of_zero_read_nothing(on: &Subject) {
    let ctx = on.context();
    let x = [1., 2., f32::INFINITY, f32::NAN, 5., 6.];
    let linear =
        |to: usize| Interpolate { mode: Resize::Linear, align_corners: true, ..Interpolate::to([to]) };
    let y = values(&ctx, &[1, 1, 6], &x, |x| x.interpolate(linear(2)));
    near("corners", &y, &[1., 6.], 0.0);
    let y = values(&ctx, &[1, 1, 6], &x, |x| x.interpolate(linear(3)));
    assert_eq!((y[0], y[2]), (1., 6.));
    let y = values(&ctx, &[6], &x, |x| x.adaptive_avg_pool([4]));
    near("means", &[y[0], y[3]], &[1.5, 5.5], 0.0);
}

fn many_windows(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let ctx = on.context();
    // More than 65535 workgroups of 64 at most, and lines of a reduction.
    let n = 70_000 * 64;
    let y = |p: &Pass| {
        let x = p.arange(0..2 * n).cast(wgrad::DType::F32).reshape([1, 2 * n as usize]);
        x.max_pool([2]).slice(1, n - 1..)
    };
    near("last", &run(&ctx, y).2, &[f64::from(2 * n - 1)], 0.0);
    let rows = 70_000usize;
    let y = |p: &Pass| {
        let x = p.arange(0..rows as i32).reshape([rows, 1]).expand([rows, 17]).cast(wgrad::DType::F32);
        x.max_pool([17]).slice(0, rows as i32 - 1..)
    };
    near("last row", &run(&ctx, y).2, &[rows as f64 - 1.], 0.0);
}

fn long_planes(on: &Subject) {
    let ctx = on.context();
    let n = 20_000usize;
    let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 20_011) as f32).collect();
    let wide = |want: &dyn Fn(usize, usize) -> f64, to: usize| -> Vec<f64> {
        (0..to).map(|o| want(o * n / to, ((o + 1) * n).div_ceil(to))).collect()
    };
    let got = values(&ctx, &[n], &x, |x| x.adaptive_max_pool([7]));
    let most = |lo: usize, hi: usize| x[lo..hi].iter().fold(0.0, |m: f64, x| m.max(f64::from(*x)));
    near("max", &got, &wide(&most, 7), 0.0);
    let got = values(&ctx, &[n], &x, |x| x.adaptive_avg_pool([7]));
    let mean = |lo: usize, hi: usize| x[lo..hi].iter().map(|x| f64::from(*x)).sum::<f64>() / (hi - lo) as f64;
    near("mean", &got, &wide(&mean, 7), 1e-5);
}

fn places_beyond_the_plane(on: &Subject) {
    // An error flag is its device's: other tests must not hear of this one.
    let ctx = Context::new(on.fresh()).unwrap();
    let read = |p: &Pass| -> Result<Vec<f64>> {
        let idx = p.input(HostTensor::new([1, 2], &[1, 9])?)?;
        floats(p, [1, 2], &[1., 2.]).max_unpool(idx, [8]).to_vec()
    };
    let error = ctx.pass(read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
}

fn places_shared(on: &Subject) {
    let at = |p: &Pass| {
        let idx = p.input(HostTensor::new([1, 4], &[2, 0, 2, 5]).unwrap()).unwrap();
        floats(p, [1, 4], &[1., 2., 3., 4.]).max_unpool(idx, [6])
    };
    near("mean", &run(&on.context(), at).2, &[2., 0., 2., 0., 0., 4.], 0.0);
}

fn norms_of_zeros(on: &Subject) {
    let ctx = on.context();
    let x = [0., 0., 3., 4.];
    near("values", &values(&ctx, &[4], &x, |x| x.lp_pool(2.0, [2])), &[0., 5.], 1e-6);
    near("slopes", &slope(&ctx, &[4], &x, |x| x.lp_pool(2.0, [2])), &[0., 0., 1.2, 1.6], 1e-6);
}

fn mistakes_name_the_rule() {
    use ErrorKind::{Argument, DType, Shape};
    let ctx = oracle();
    ctx.pass(|p| {
        let x = floats(p, [2, 3, 5, 4], &[0.5; 120]);
        let ints = p.arange(0..6).reshape([1, 1, 6]);
        let (grid, theta) = (p.zeros([2, 3, 3, 2]), p.zeros([2, 2, 3]));
        let to = |size: usize| Interpolate::to([size, size]);
        let all: Vec<(Result<Tensor>, ErrorKind, &str)> = vec![
            (x.try_max_pool([6, 2]), Shape, "a window spans 6 elements"),
            (x.try_max_pool([0, 2]), Argument, "none may be 0"),
            (x.try_max_pool(Pool { stride: 0.into(), ..Pool::new([2, 2]) }), Argument, "none may be 0"),
            (
                x.try_max_pool(Pool { dilation: [1, 0].into(), ..Pool::new([2, 2]) }),
                Argument,
                "none may be 0",
            ),
            (x.try_max_pool(Pool { padding: 2.into(), ..Pool::new([3, 3]) }), Argument, "half of a window"),
            (x.try_max_pool(Pool { stride: [1, 2, 3].into(), ..Pool::new([2, 2]) }), Argument, "for 2 axes"),
            (x.try_max_pool([1, 1, 1, 1]), Argument, "1 to 3"),
            (x.try_max_pool(Pool::default()), Argument, "1 to 3"),
            (p.zeros([]).try_max_pool([2]), Argument, "a kernel of 1 axes"),
            (x.gt(0.0).try_max_pool([2, 2]), DType, "bool"),
            (
                p.zeros([2]).try_max_pool(Pool { padding: 1.into(), dilation: 3.into(), ..Pool::new([2]) }),
                Shape,
                "padding alone",
            ),
            (x.try_avg_pool(Pool { divisor: Some(0), ..Pool::new([2, 2]) }), Argument, "divisor 0"),
            (ints.try_avg_pool([2]), DType, "needs floats"),
            (x.try_lp_pool(0.0, [2, 2]), Argument, "above 0"),
            (x.try_lp_pool(2.0, Pool { padding: 1.into(), ..Pool::new([2, 2]) }), Argument, "no padding"),
            (x.try_adaptive_avg_pool([0, 2]), Shape, "empty"),
            (x.try_adaptive_max_pool([1, 1, 1, 1]), Argument, "1 to 3"),
            (x.try_max_unpool(x, [9, 9]), DType, "integer places"),
            (x.try_max_unpool(ints, [9, 9]), Shape, "differ"),
            (x.try_interpolate(Interpolate::default()), Argument, "either sizes or factors"),
            (x.try_interpolate(Interpolate { size: 3.into(), ..Interpolate::by(2.0) }), Argument, "either"),
            (x.try_interpolate(Interpolate::by([2.0, 2.0, 2.0])), Argument, "factors"),
            (x.try_interpolate(Interpolate::by(-2.0)), Argument, "above 0"),
            (x.try_interpolate(Interpolate::by(0.1)), Shape, "empty"),
            (x.try_interpolate(Interpolate { align_corners: true, ..to(3) }), Argument, "align_corners"),
            (p.zeros([2, 3]).try_interpolate(to(3)), Shape, "spatial axes"),
            (
                ints.try_interpolate(Interpolate { mode: Resize::Linear, ..Interpolate::to([3]) }),
                DType,
                "floats",
            ),
            (x.try_grid_sample(p.zeros([1, 3, 3, 2]), GridSample::default()), Shape, "does not sample"),
            (x.try_grid_sample(p.zeros([2, 3, 3, 3]), GridSample::default()), Shape, "does not sample"),
            (ints.try_grid_sample(p.zeros([1, 3, 1]), GridSample::default()), DType, "floats"),
            (
                p.zeros([1, 2, 5]).try_grid_sample(
                    p.zeros([1, 4, 1]),
                    GridSample { mode: Sample::Cubic, ..GridSample::default() },
                ),
                Argument,
                "two spatial axes",
            ),
            (theta.try_affine_grid(&[3, 3, 3], false), Shape, "[N, axes, axes + 1]"),
            (grid.try_affine_grid(&[3, 3], false), Shape, "[N, axes, axes + 1]"),
            (x.try_im2col(Patches::new([7, 2])), Shape, "a window spans 7"),
            (x.try_im2col(Patches { stride: 0.into(), ..Patches::new([2, 2]) }), Argument, "none may be 0"),
            (x.try_im2col(Patches::new([2])), Shape, "the kernel's 1 axes"),
            (p.zeros([5, 4]).try_col2im([3, 3], Patches::new([2, 2])), Shape, "does not hold"),
            (p.zeros([4, 5]).try_col2im([3, 3], Patches::new([2, 2])), Shape, "does not hold"),
        ];
        for (i, (result, kind, rule)) in all.into_iter().enumerate() {
            let error = result.expect_err(rule);
            assert!(error.kind() == kind && error.to_string().contains(rule), "{i}: {rule}: {error}");
        }
        Ok(())
    })
    .unwrap();
}

fn steps(f: impl Fn(Tensor) -> Tensor, dims: &[usize]) -> usize {
    let ctx = cpu();
    let data: Vec<f32> = (0..dims.iter().product()).map(|i| (i % 13) as f32).collect();
    ctx.pass(|p| {
        let x = floats(p, dims, &data);
        let y = f(x);
        let g = grad((y * y).sum_all(), &[x])?[0];
        g.to_vec::<f32>().map(|_| ())
    })
    .unwrap();
    ctx.last_plan().unwrap().steps.len()
}

/// Forward and gradient of a pool are a handful of kernels, and windows are never stored.
fn pooling_takes_few_kernels() {
    assert!(steps(|x| x.max_pool([2, 2]), &[2, 3, 8, 8]) <= 3);
    assert!(steps(|x| x.avg_pool([2, 2]), &[2, 3, 8, 8]) <= 2);
    let overlapping = || Pool { stride: 2.into(), padding: 1.into(), ..Pool::new([3, 3]) };
    assert!(steps(|x| x.max_pool(overlapping()), &[2, 3, 8, 8]) <= 6);
}

/// Memory of sampling grows with what is read and written, not with the number of neighbours.
fn sampling_takes_little_memory() {
    let ctx = cpu();
    let (channels, side) = (16, 64);
    let value = channels * side * side * 4;
    let x = HostTensor::new([1, channels, side, side], &vec![0.5f32; channels * side * side]).unwrap();
    let grid = HostTensor::new([1, side, side, 2], &vec![0.1f32; side * side * 2]).unwrap();
    let kept = ctx
        .pass(|p| p.input(&x)?.grid_sample(p.input(&grid)?, GridSample::default()).square().keep())
        .unwrap();
    drop(kept);
    let peak = ctx.last_plan().unwrap().workspace_bytes;
    assert!(peak <= 3 * value, "{peak} bytes for a result of {value}");
}
