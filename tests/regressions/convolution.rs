//! Faults of other frameworks in convolutions, each named by its number in the list of public faults:
//! tried with and without fusion, on plain, transposed and offset operands.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Conv, ConvTranspose, HostTensor, Padding, Pass, Tensor, grad};

use super::pooling::{each, ramp, read, views};
use crate::Subject;
use crate::ops::{floats, near};

crate::suite![
    plain: ;
    device: b154_a_tail_that_no_window_holds, b155_output_padding_without_stride, b157_groups_and_stride,
        b158_dilation, b160_a_part_of_a_kernel, b161_one_by_one_over_strided_channels,
        b163_infinity_beside_padding, b164_a_large_image,
];

fn b154_a_tail_that_no_window_holds(on: &Subject) {
    each(on, &[1, 1, 11], &ramp(11), &|name, p, x| {
        for (of, w) in views(p, &[1, 1, 4], &ramp(4)) {
            let y = x.conv1d(w, None, Conv { stride: [4], ..Conv::default() });
            let g = grad(y.sum_all(), &[x, w]).unwrap();
            near(name, &read(g[0]), &[0., 1., 2., 3., 0., 1., 2., 3., 0., 0., 0.], 0.0);
            near(of, &read(g[1]), &[4., 6., 8., 10.], 0.0);
        }
    });
}

fn b155_output_padding_without_stride(on: &Subject) {
    each(on, &[2, 2, 4], &ramp(16), &|name, p, x| {
        let w = floats(p, [2, 2, 3], &ramp(12));
        let how = ConvTranspose { output_padding: [1], ..ConvTranspose::default() };
        let y = x.conv_transpose1d(w, None, how);
        assert_eq!(y.shape().dims(), [2, 2, 7], "{name}");
        let g = grad(y.sum_all(), &[x]).unwrap()[0];
        assert_eq!(g.shape(), x.shape(), "{name}");
        let want: Vec<f64> = (0..16).map(|i| [15.0, 51.0][i / 4 % 2]).collect();
        near(name, &read(g), &want, 1e-6);
    });
}

fn b157_groups_and_stride(on: &Subject) {
    each(on, &[1, 4, 4, 4], &ramp(64), &|name, p, x| {
        let (w, b) = (floats(p, [2, 2, 3, 3], &ramp(36)), floats(p, [2], &[0.5, 1.5]));
        let y = x.conv2d(w, Some(b), Conv { stride: [2, 2], groups: 2, ..Conv::default() });
        let g = grad(y.sum_all(), &[x, w, b]).unwrap();
        let mut want = Vec::new();
        for channel in 0..4 {
            for row in 0..4 {
                let inside =
                    |c: usize| if row < 3 && c < 3 { (channel * 9 + row * 3 + c) as f64 } else { 0.0 };
                want.extend((0..4).map(inside));
            }
        }
        near(name, &read(g[0]), &want, 0.0);
        let first = [0., 1., 2., 4., 5., 6., 8., 9., 10.];
        let want: Vec<f64> = (0..4).flat_map(|c| first.map(|f| f + 16.0 * f64::from(c))).collect();
        near(name, &read(g[1]), &want, 0.0);
        near(name, &read(g[2]), &[1., 1.], 0.0);
    });
}

fn b158_dilation(on: &Subject) {
    each(on, &[1, 1, 6], &[1., 2., 3., 4., 5., 6.], &|name, p, x| {
        let w = floats(p, [1, 1, 2], &[1., 10.]);
        let y = x.conv1d(w, None, Conv { dilation: [2], ..Conv::default() });
        near(name, &read(y), &[31., 42., 53., 64.], 1e-6);
    });
}

fn b160_a_part_of_a_kernel(on: &Subject) {
    let all: Vec<f32> = (1..13).map(|i| i as f32 / 10.0).collect();
    let part: Vec<f32> = [1, 2, 5, 6, 9, 10].iter().map(|i| all[*i]).collect();
    each(on, &[3, 4, 1, 1], &all, &|name, p, whole| {
        let x = floats(p, [1, 2, 2, 3], &ramp(12));
        let run = |w: Tensor| {
            let y = x.conv2d(w, None, Conv::default());
            let g = grad(y.square().sum_all(), &[x, w]).unwrap();
            (read(y), read(g[0]), read(g[1]))
        };
        let (got, want) = (run(whole.narrow(1, 1, 2)), run(floats(p, [3, 2, 1, 1], &part)));
        near(name, &got.0, &want.0, 1e-6);
        near(name, &got.1, &want.1, 1e-6);
        near(name, &got.2, &want.2, 1e-6);
    });
}

fn b161_one_by_one_over_strided_channels(on: &Subject) {
    let (c, o) = (672usize, 168usize);
    let data: Vec<f32> = (0..c).map(|i| (i % 19) as f32 - 9.0).collect();
    each(on, &[1, 1, 1, c], &data, &|name, p, x| {
        let x = x.permute([0, 3, 1, 2]);
        let w = floats(p, [o, c, 1, 1], &vec![0.25; o * c]);
        let upstream: Vec<f32> = (0..o).map(|i| (i % 7) as f32 - 3.0).collect();
        let y = x.conv2d(w, None, Conv::default()) * floats(p, [1, o, 1, 1], &upstream);
        let want: Vec<f64> =
            upstream.iter().flat_map(|g| data.iter().map(move |x| f64::from(*g) * f64::from(*x))).collect();
        near(name, &read(grad(y.sum_all(), &[w]).unwrap()[0]), &want, 1e-5);
    });
}

fn b163_infinity_beside_padding(on: &Subject) {
    each(on, &[1, 1, 6], &[1., 2., 3., 4., 5., f32::INFINITY], &|name, p, x| {
        let w = floats(p, [1, 1, 3], &[0., 1., 0.]);
        let how = Conv { padding: Padding::Both([1]), ..Conv::default() };
        let y = read(x.conv1d(w, None, how));
        // A weight of 0 times infinity is NaN inside a window, and nowhere else.
        near(name, &y[..4], &[1., 2., 3., 4.], 0.0);
        assert!(y[4].is_nan() && y[5] == f64::INFINITY, "{name}: {y:?}");
    });
}

fn b164_a_large_image(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let side = 1024usize;
    let data: Vec<f32> = (0..3 * side * side).map(|i| (i % 251) as f32 / 64.0 - 2.0).collect();
    let weight: Vec<f32> = (0..54).map(|i| (i % 11) as f32 / 4.0 - 1.0).collect();
    let last = |p: &Pass| -> wgrad::Result<Vec<f64>> {
        let x = p.input(HostTensor::new([1, 3, side, side], &data)?)?;
        let y = x.conv2d(floats(p, [2, 3, 3, 3], &weight), None, Conv::default());
        assert_eq!(y.shape().dims(), [1, 2, side - 2, side - 2]);
        y.slice(2, -1..).slice(3, -1..).to_vec()
    };
    let got = on.context().pass(last).unwrap();
    let at = |c: usize, i: usize| f64::from(data[(c * side + side - 3 + i / 3) * side + side - 3 + i % 3]);
    let one = |o: usize| -> f64 { (0..27).map(|i| f64::from(weight[o * 27 + i]) * at(i / 9, i % 9)).sum() };
    near("the last pixel", &got, &[one(0), one(1)], 1e-4);
}
