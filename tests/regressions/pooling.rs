//! Faults of other frameworks in pooling, resizing and sampling, each named by its number in the list of
//! public faults: tried with and without fusion, on plain, transposed and offset operands.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{
    ContextOptions, DType, GridSample, HostTensor, Interpolate, Kept, Pass, Pool, Resize, Tensor, grad,
};

use crate::Subject;
use crate::ops::{floats, near};

crate::suite![
    plain: ;
    device: b097_a_tensor_resized_and_used_again, b133_layers_on_a_batch_of_none, b166_dilation_of_each_axis,
        b167_padding_is_no_zero, b169_nearest_places_in_integers, b170_channels_last,
        b259_memory_of_sampling,
];

/// The same numbers plainly, behind a transposition, and from the middle of something larger.
pub(super) fn views(p: &Pass, dims: &[usize], x: &[f32]) -> Vec<(&'static str, Tensor)> {
    let rank = dims.len();
    let plain = floats(p, dims, x);
    let reversed: Vec<i32> = (0..rank as i32).rev().collect();
    let turned: Vec<usize> = dims.iter().rev().copied().collect();
    let data = p.input(HostTensor::new(&turned[..], &transposed(dims, x)).unwrap()).unwrap();
    let wide: Vec<usize> = dims.iter().map(|d| d + 3).collect();
    let mut around = vec![1e9; wide.iter().product()];
    for (i, x) in x.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for axis in (0..rank).rev() {
            at += (rest % dims[axis] + 2) * step;
            rest /= dims[axis];
            step *= wide[axis];
        }
        around[at] = *x;
    }
    let mut part = floats(p, &wide[..], &around);
    for (axis, d) in dims.iter().enumerate() {
        part = part.narrow(axis as i32, 2, *d);
    }
    vec![("plain", plain), ("transposed", data.permute(&reversed[..])), ("offset", part)]
}

/// The elements in column-major order.
fn transposed(dims: &[usize], x: &[f32]) -> Vec<f32> {
    let total = x.len();
    let mut y = vec![0.0; total];
    for (i, x) in x.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, total);
        for axis in (0..dims.len()).rev() {
            step /= dims[axis];
            at += rest % dims[axis] * step;
            rest /= dims[axis];
        }
        y[at] = *x;
    }
    y
}

/// Runs `f` on each view of the numbers, fused and unfused.
pub(super) fn each(on: &Subject, dims: &[usize], x: &[f32], f: &dyn Fn(&str, &Pass, Tensor)) {
    for fuse in [true, false] {
        let ctx = on.context_with(ContextOptions::default().fuse(fuse));
        ctx.pass(|p| {
            for (name, x) in views(p, dims, x) {
                f(&format!("{name}, fuse {fuse}"), p, x);
            }
            Ok(())
        })
        .unwrap();
    }
}

pub(super) fn read(x: Tensor) -> Vec<f64> {
    x.to_vec::<f64>().unwrap()
}

pub(super) fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32).collect()
}

fn b097_a_tensor_resized_and_used_again(on: &Subject) {
    each(on, &[1, 1, 2, 2], &ramp(4), &|name, _, x| {
        for mode in [Resize::Nearest, Resize::Linear, Resize::Cubic] {
            let y =
                x.interpolate(Interpolate { mode, ..Interpolate::by(2.0) }).sum_all() + (x * 3.0).sum_all();
            near(name, &read(grad(y, &[x]).unwrap()[0]), &[7.0; 4], 1e-5);
        }
    });
}

fn b133_layers_on_a_batch_of_none(on: &Subject) {
    each(on, &[0, 2, 4, 6], &[], &|name, _, x| {
        let y = [
            x.max_pool([2, 2]),
            x.avg_pool([2, 2]),
            x.adaptive_avg_pool([2, 3]),
            x.adaptive_max_pool([3, 4]),
        ];
        for y in y {
            assert_eq!((y.shape()[0], y.shape()[1]), (0, 2), "{name}");
            assert!(read(grad(y.sum_all(), &[x]).unwrap()[0]).is_empty(), "{name}");
        }
    });
}

fn b166_dilation_of_each_axis(on: &Subject) {
    each(on, &[1, 1, 4, 4], &ramp(16), &|name, _, x| {
        let how = Pool { stride: 1.into(), dilation: [1, 2].into(), ..Pool::new([2, 2]) };
        let y = x.max_pool(how);
        near(name, &read(y), &[6., 7., 10., 11., 14., 15.], 0.0);
        let want = [0., 0., 0., 0., 0., 0., 1., 1., 0., 0., 1., 1., 0., 0., 1., 1.];
        near(name, &read(grad(y.sum_all(), &[x]).unwrap()[0]), &want, 0.0);
    });
}

fn b167_padding_is_no_zero(on: &Subject) {
    each(on, &[1, 1, 3, 3], &[-1.0; 9], &|name, _, x| {
        for kernel in [2, 3, 5] {
            let padding = kernel / 2;
            let y = x.max_pool(Pool { padding: padding.into(), ..Pool::new([kernel, kernel]) });
            assert!(read(y).iter().all(|y| *y == -1.0), "{name} kernel {kernel}");
        }
    });
}

fn b169_nearest_places_in_integers(on: &Subject) {
    for (from, to) in [(6, 74), (214, 428), (255, 510), (510, 255), (7, 3)] {
        each(on, &[1, 1, from], &ramp(from), &|name, _, x| {
            let want: Vec<f64> = (0..to).map(|o| (o * from / to) as f64).collect();
            near(name, &read(x.interpolate(Interpolate::to([to]))), &want, 0.0);
        });
    }
    each(on, &[1, 1, 6], &ramp(6), &|name, _, x| {
        let y = read(x.interpolate(Interpolate::to([74])));
        assert_eq!(y[37], 3.0, "{name}");
        let y = read(x.interpolate(Interpolate::by(74.0 / 6.0)));
        assert_eq!(y[37], 3.0, "{name} by a factor");
    });
}

fn b170_channels_last(on: &Subject) {
    each(on, &[1, 2, 2, 2], &ramp(8), &|name, _, x| {
        let how = |mode| Interpolate { mode, ..Interpolate::by(2.0) };
        // Stored as [N, H, W, C], seen as [N, C, H, W].
        let seen = x.permute([0, 3, 1, 2]);
        let y = seen.interpolate(how(Resize::Nearest));
        let row = |a: f64, b: f64| [a, a, b, b, a, a, b, b];
        let want = [row(0., 2.), row(4., 6.), row(1., 3.), row(5., 7.)].concat();
        near(name, &read(y), &want, 0.0);
        for mode in [Resize::Linear, Resize::Cubic] {
            let stored = read(seen);
            let plain: Vec<f32> = stored.iter().map(|x| *x as f32).collect();
            let ctx = on.context();
            let want = ctx.pass(|p| floats(p, [1, 2, 2, 2], &plain).interpolate(how(mode)).to_vec::<f64>());
            near(name, &read(seen.interpolate(how(mode))), &want.unwrap(), 1e-6);
        }
    });
}

fn b259_memory_of_sampling(on: &Subject) {
    let (channels, side) = if on.is_slow() { (4, 32) } else { (16, 128) };
    let ctx = on.context();
    let value = channels * side * side;
    let data: Vec<f32> = (0..value).map(|i| (i % 17) as f32).collect();
    let places: Vec<f32> = (0..2 * side * side).map(|i| (i % 37) as f32 / 20.0 - 0.9).collect();
    let x = HostTensor::new([1, channels, side, side], &data).unwrap();
    let grid = HostTensor::new([1, side, side, 2], &places).unwrap();
    let kept: Kept =
        ctx.pass(|p| p.input(&x)?.grid_sample(p.input(&grid)?, GridSample::default()).keep()).unwrap();
    assert_eq!(kept.dtype(), DType::F32);
    let plan = ctx.last_plan().unwrap();
    // Input and result, and indices and weights of four neighbours for each place.
    let most = if on.is_oracle() { 8 } else { 4 } * (2 * value + 16 * side * side);
    assert!(plan.workspace_bytes <= most, "{} bytes, at most {most}", plan.workspace_bytes);
}
