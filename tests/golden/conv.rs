//! Convolutions.

use wgrad::{Conv, ConvTranspose, Padding, Tensor};

use super::{Golden, golden, two};

fn conv1(name: &str, how: Conv<1>) -> Golden {
    golden(name, move |_, x| x[0].conv1d(x[1], Some(x[2]), how))
}

fn conv2(name: &str, how: Conv<2>) -> Golden {
    golden(name, move |_, x| x[0].conv2d(x[1], Some(x[2]), how))
}

fn conv3(name: &str, how: Conv<3>) -> Golden {
    golden(name, move |_, x| x[0].conv3d(x[1], Some(x[2]), how))
}

fn plain() -> Vec<Golden> {
    vec![
        conv1("conv 1d", Conv::default()),
        conv1("conv 1d stride", Conv { stride: [2], padding: [1].into(), ..Conv::default() }),
        conv1("conv 1d dilation", Conv { dilation: [3], ..Conv::default() }),
        conv1("conv 1d groups", Conv { groups: 2, ..Conv::default() }),
        conv1("conv 1d same", Conv { padding: Padding::Same, dilation: [2], ..Conv::default() }),
        conv2("conv 2d", Conv::default()),
        conv2("conv 2d stride", Conv { stride: [2, 1], ..Conv::default() }),
        conv2("conv 2d padding", Conv { padding: [2, 1].into(), ..Conv::default() }),
        conv2("conv 2d all", Conv { stride: [2, 3], padding: [1, 2].into(), dilation: [2, 1], groups: 2 }),
        conv2("conv 2d depthwise", Conv { groups: 3, padding: [1, 1].into(), ..Conv::default() }),
        conv2("conv 2d pointwise", Conv::default()),
        conv2("conv 2d same", Conv { padding: Padding::Same, ..Conv::default() }),
        conv2("conv 2d valid", Conv { stride: [2, 2], ..Conv::default() }),
        conv3("conv 3d", Conv::default()),
        conv3(
            "conv 3d all",
            Conv { stride: [2, 1, 2], padding: [1, 0, 1].into(), dilation: [1, 2, 1], groups: 2 },
        ),
        two("conv 2d without bias", |x, w| x.conv2d(w, None, Conv::default())),
        two("conv 2d empty batch", |x, w| x.conv2d(w, None, Conv::default())),
        two("conv 2d twice", |x, w| x.conv2d(w, None, Conv::default())),
        two("conv 1d twice", |x, w| {
            x.conv1d(w, None, Conv { stride: [2], padding: [1].into(), ..Conv::default() })
        }),
    ]
}

/// Of operand, weight and bias.
fn transposed1(x: &[Tensor], how: ConvTranspose<1>) -> Tensor {
    x[0].conv_transpose1d(x[1], Some(x[2]), how)
}

fn transposed() -> Vec<Golden> {
    vec![
        golden("conv_transpose 1d", |_, x| transposed1(x, ConvTranspose::default())),
        golden("conv_transpose 1d stride", |_, x| {
            let how = ConvTranspose { stride: [2], padding: [1], output_padding: [1], ..Default::default() };
            transposed1(x, how)
        }),
        golden("conv_transpose 1d groups", |_, x| {
            transposed1(x, ConvTranspose { groups: 2, dilation: [2], ..Default::default() })
        }),
        golden("conv_transpose 2d", |_, x| x[0].conv_transpose2d(x[1], Some(x[2]), ConvTranspose::default())),
        golden("conv_transpose 2d all", |_, x| {
            let how = ConvTranspose {
                stride: [2, 3],
                padding: [1, 0],
                output_padding: [1, 2],
                dilation: [2, 1],
                groups: 2,
            };
            x[0].conv_transpose2d(x[1], Some(x[2]), how)
        }),
        golden("conv_transpose 3d", |_, x| {
            let how = ConvTranspose { stride: [1, 2, 2], padding: [0, 1, 0], ..Default::default() };
            x[0].conv_transpose3d(x[1], Some(x[2]), how)
        }),
        two("conv_transpose 2d twice", |x, w| {
            x.conv_transpose2d(w, None, ConvTranspose { stride: [2, 2], ..Default::default() })
        }),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = plain();
    all.extend(transposed());
    all
}
