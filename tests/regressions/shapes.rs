//! Faults of shapes, views, broadcasting and empty tensors.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Conv, CrossEntropy, DType, ErrorKind, HostTensor, Kept, Reduction, Tensor, grad};

use super::{bools, every_way, floats, ints, ramp, ways};
use crate::Subject;
use crate::ops::near;

crate::suite![
    plain: b148_a_wrong_count_of_elements;
    device: b131_one_beside_none, b133_layers_on_no_examples, b134_scans_of_nothing, b136_empty_slices,
        b137_no_repeats, b139_update_after_expand, b140_number_beside_a_view, b142_choice_broadcasts,
        b143_one_side_broadcasts, b145_sort_of_an_offset_view, b146_sort_of_a_reversed_view,
        b149_sizes_beyond_32_bits, b151_one_hot_of_integers, b152_slices_by_steps,
];

fn b131_one_beside_none(on: &Subject) {
    every_way(on, &[ramp([2, 0]), ramp([2, 1])], |_, x| x[0] + x[1], &[2, 0], &[]);
    every_way(on, &[ramp([0, 3]), ramp([1, 3])], |_, x| x[0] * x[1], &[0, 3], &[]);
    let slope = |_: &wgrad::Pass, x: &[Tensor]| grad((x[0] + x[1]).sum_all(), &[x[1]]).unwrap()[0];
    every_way(on, &[ramp([2, 0]), ramp([2, 1])], slope, &[2, 1], &[0., 0.]);
    every_way(on, &[ramp([0, 3]), ramp([1, 3])], slope, &[1, 3], &[0., 0., 0.]);
}

fn b133_layers_on_no_examples(on: &Subject) {
    type Layer =
        (&'static str, &'static [usize], &'static [usize], fn(&[Tensor]) -> Tensor, &'static [usize]);
    let all: [Layer; 5] = [
        ("linear", &[0, 3], &[3, 2], |x| x[0].matmul(x[1]), &[0, 2]),
        ("conv2d", &[0, 2, 5, 5], &[3, 2, 3, 3], |x| x[0].conv2d(x[1], None, Conv::default()), &[0, 3, 3, 3]),
        ("layer_norm", &[0, 3], &[3], |x| x[0].layer_norm(x[1], x[1] * 0.5, 1e-5), &[0, 3]),
        ("softmax", &[0, 3], &[3], |x| (x[0] * x[1]).softmax(1), &[0, 3]),
        ("max", &[0, 4], &[4], |x| (x[0] * x[1]).max(1), &[0]),
    ];
    for (name, input, weight, f, out) in all {
        ways(on, &[ramp(input), ramp(weight)], |_, x, say| {
            let y = f(x);
            assert_eq!(y.shape().dims(), out, "{name}, {say}");
            let g = grad(y.sum_all(), x).unwrap();
            assert_eq!(g[0].shape().dims(), input, "{name}, {say}");
            let dw = g[1].to_vec::<f64>().unwrap();
            near(&format!("{name}, {say}"), &dw, &vec![0.0; dw.len()], 0.0);
        });
    }
    let sum = CrossEntropy { reduction: Reduction::Sum, ..CrossEntropy::default() };
    ways(on, &[ramp([0, 3]), ints([0], &[])], |_, x, say| {
        let loss = x[0].cross_entropy_with(x[1], sum);
        assert_eq!(loss.item::<f64>().unwrap(), 0.0, "{say}");
        assert_eq!(grad(loss, &[x[0]]).unwrap()[0].shape().dims(), [0, 3], "{say}");
    });
}

fn b134_scans_of_nothing(on: &Subject) {
    for axis in [0, 1] {
        let sum = move |_: &wgrad::Pass, x: &[Tensor]| grad(x[0].cumsum(axis).sum_all(), x).unwrap()[0];
        every_way(on, &[ramp([2, 0])], sum, &[2, 0], &[]);
        let product = move |_: &wgrad::Pass, x: &[Tensor]| grad(x[0].cumprod(axis).sum_all(), x).unwrap()[0];
        every_way(on, &[ramp([2, 0])], product, &[2, 0], &[]);
    }
}

fn b136_empty_slices(on: &Subject) {
    every_way(on, &[ramp([4, 3])], |_, x| x[0].slice(0, 2..2), &[0, 3], &[]);
    let start = 3;
    every_way(on, &[ramp([4, 3])], |_, x| x[0].slice(0, start..1), &[0, 3], &[]);
}

fn b137_no_repeats(on: &Subject) {
    every_way(on, &[ramp([2, 3, 4])], |_, x| x[0].tile(&[1, 0, 2]), &[2, 0, 8], &[]);
    every_way(on, &[floats([2, 2], &[1., 2., 3., 4.])], |_, x| x[0].tile(&[0, 2]), &[0, 4], &[]);
}

fn b139_update_after_expand(on: &Subject) {
    let want = [2., 3., 4., 2., 3., 4.];
    every_way(on, &[floats([3], &[1., 2., 3.])], |_, x| x[0].expand([2, 3]) + 1.0, &[2, 3], &want);
    let ctx = on.context();
    let kept = Kept::new(&ctx, HostTensor::new([3], &[1f32, 2., 3.]).unwrap()).unwrap();
    let got = ctx.pass(|_| {
        let wide = kept.t().expand([2, 3]);
        let part = wide.slice_assign(0, 0, wide.slice(0, 1..) + 1.0);
        part.to_vec::<f64>()
    });
    near("part", &got.unwrap(), &[2., 3., 4., 1., 2., 3.], 0.0);
    near("source", &kept.read().unwrap().to_vec::<f64>(), &[1., 2., 3.], 0.0);
}

fn b140_number_beside_a_view(on: &Subject) {
    let x = ramp([1, 4, 4, 2]);
    let at = |i: usize| (i / 4 % 4 * 4 + i % 4) * 2 + i / 16;
    let want: Vec<f64> = (0..32).map(|i| at(i) as f64).collect();
    let f = |_: &wgrad::Pass, x: &[Tensor]| x[0].permute([0, 3, 1, 2]).slice(1, ..).slice(3, 0..4) + 0.0;
    every_way(on, &[x], f, &[1, 2, 4, 4], &want);
}

fn b142_choice_broadcasts(on: &Subject) {
    let operands = [floats([2], &[2., 3.]), bools([2], &[true, false]), floats([1], &[1.])];
    every_way(on, &operands, |_, x| x[1].select(x[2], x[0]), &[2], &[1., 3.]);
    let operands = [floats([1], &[5.]), bools([2], &[true, false]), floats([2], &[1., 2.])];
    every_way(on, &operands, |_, x| x[1].select(x[2], x[0]), &[2], &[1., 5.]);
}

fn b143_one_side_broadcasts(on: &Subject) {
    let want: Vec<f64> = (0..1024).map(|i| f64::from(i) + 3.0).collect();
    every_way(on, &[ramp([1024]), floats([1], &[3.])], |_, x| x[0] + x[1], &[1024], &want);
    let (x, b) = (ramp([8, 4]), floats([1, 4], &[3., 9., 20., 40.]));
    let want: Vec<f64> = (0..32).map(|i| f64::from(u8::from(i as f64 > [3., 9., 20., 40.][i % 4]))).collect();
    every_way(on, &[x, b], |_, x| x[0].gt(x[1]), &[8, 4], &want);
    let want: Vec<f64> = (0..1024).map(|i| f64::from(i % 4) * f64::from(i)).collect();
    every_way(on, &[ramp([4]), ramp([256, 4])], |_, x| x[0] * x[1], &[256, 4], &want);
    every_way(on, &[ramp([1])], |_, x| x[0].expand([1025]) + 2.0, &[1025], &[2.0; 1025]);
}

fn b145_sort_of_an_offset_view(on: &Subject) {
    let x = || floats([2, 3], &[1., 2., 3., 30., 10., 20.]);
    every_way(on, &[x()], |_, x| x[0].narrow(0, 1, 1).sort(1, false).0, &[1, 3], &[10., 20., 30.]);
    every_way(on, &[x()], |_, x| x[0].narrow(0, 1, 1).sort(1, false).1, &[1, 3], &[1., 2., 0.]);
}

fn b146_sort_of_a_reversed_view(on: &Subject) {
    let elems = [5., 1., 4., 2., 9., 7., 8., 6., 3., 0., 11., 10.];
    let want = [0., 3., 10., 11., 6., 7., 8., 9., 1., 2., 4., 5.];
    every_way(on, &[floats([3, 4], &elems)], |_, x| x[0].flip([0]).sort(1, false).0, &[3, 4], &want);
    let f = |_: &wgrad::Pass, x: &[Tensor]| x[0].slice_step(0, .., -1).slice_step(1, .., -1).sort(1, false).0;
    every_way(on, &[floats([3, 4], &elems)], f, &[3, 4], &want);
}

fn b148_a_wrong_count_of_elements() {
    for dims in [&[2, 2, 2][..], &[2, 1], &[], &[0]] {
        let error = HostTensor::new(dims, &[1f32, 2., 3., 4.]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert!(error.to_string().contains('4'), "{error}");
    }
}

/// Sizes are told before anything is allocated: everything here is recorded and never computed.
fn b149_sizes_beyond_32_bits(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = p.full_of([1 << 30], 1.0, DType::U8);
            assert_eq!(Tensor::cat(&[x, x, x], 0).shape().dims(), [3 << 30]);
            let far = i32::MAX as isize;
            let wrong = [
                Tensor::try_cat(&[x, x, x, x], 0),
                x.try_repeat(0, 5),
                x.try_repeat(0, usize::MAX),
                x.try_tile(&[1 << 20, 1 << 20]),
                x.try_pad(&[(far, far)], 0.0),
                p.try_zeros([1 << 16, 1 << 16]),
            ];
            for (i, result) in wrong.into_iter().enumerate() {
                let error = result.expect_err("more than 2^32 - 1 elements");
                assert!(matches!(error.kind(), ErrorKind::Limit | ErrorKind::Shape), "{i}: {error}");
            }
            Ok(())
        })
        .unwrap();
}

fn b151_one_hot_of_integers(on: &Subject) {
    every_way(on, &[ints([2], &[2, 0])], |_, x| x[0].one_hot(3), &[2, 3], &[0., 0., 1., 1., 0., 0.]);
}

fn b152_slices_by_steps(on: &Subject) {
    let slope = |_: &wgrad::Pass, x: &[Tensor]| grad(x[0].slice_step(0, 1..6, 2).sum_all(), x).unwrap()[0];
    every_way(on, &[ramp([7])], slope, &[7], &[0., 1., 0., 1., 0., 1., 0.]);
    let slope = |p: &wgrad::Pass, x: &[Tensor]| {
        let weights = p.arange(0..7).cast(DType::F32);
        grad((x[0].slice_step(0, .., -1) * weights).sum_all(), x).unwrap()[0]
    };
    every_way(on, &[ramp([7])], slope, &[7], &[6., 5., 4., 3., 2., 1., 0.]);
}
