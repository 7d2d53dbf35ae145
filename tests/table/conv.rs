//! Convolutions of every rank, with every option, forwards and transposed.

use wgrad::{Conv, ConvTranspose, Padding, Tensor};

use super::{Case, case, float};

fn x(dims: &[usize], weight: &[usize]) -> [super::Operand; 2] {
    [float(dims, -2., 2.), float(weight, -1., 1.)]
}

/// A convolution over two axes.
fn two(name: &str, dims: [usize; 4], weight: [usize; 4], how: Conv<2>) -> Case {
    case(format!("conv2d {name}").trim_end(), x(&dims, &weight), move |_, x| x[0].conv2d(x[1], None, how))
}

/// A transposed convolution over two axes.
fn back(name: &str, dims: [usize; 4], weight: [usize; 4], how: ConvTranspose<2>) -> Case {
    case(format!("conv_transpose2d {name}").trim_end(), x(&dims, &weight), move |_, x| {
        x[0].conv_transpose2d(x[1], None, how)
    })
}

fn one_and_three() -> Vec<Case> {
    let bias = |dims: &[usize], weight: &[usize], m: usize| {
        let [x, w] = x(dims, weight);
        [x, w, float([m], -1., 1.)]
    };
    vec![
        case("conv1d", bias(&[2, 3, 7], &[4, 3, 3], 4), |_, x| {
            x[0].conv1d(x[1], Some(x[2]), Conv::default())
        }),
        case("conv1d tail", x(&[1, 1, 11], &[1, 1, 4]), |_, x| {
            x[0].conv1d(x[1], None, Conv { stride: [4], ..Conv::default() })
        }),
        case("conv1d dilation stride", x(&[2, 2, 13], &[3, 2, 3]), |_, x| {
            let how = Conv { stride: [2], dilation: [3], padding: [4].into(), ..Conv::default() };
            x[0].conv1d(x[1], None, how)
        }),
        case("conv1d alone", bias(&[2, 6], &[3, 2, 2], 3), |_, x| {
            x[0].conv1d(x[1], Some(x[2]), Conv::default())
        }),
        case("conv1d long", x(&[2, 2, 50], &[3, 2, 5]), |_, x| {
            x[0].conv1d(x[1], None, Conv { padding: Padding::Same, ..Conv::default() }).tanh()
        }),
        case("conv3d", bias(&[2, 2, 3, 4, 5], &[3, 2, 2, 3, 2], 3), |_, x| {
            x[0].conv3d(x[1], Some(x[2]), Conv::default())
        })
        .once(),
        case("conv3d stride groups", x(&[1, 4, 4, 3, 5], &[2, 2, 2, 2, 3]), |_, x| {
            let how = Conv { stride: [2, 1, 2], padding: [1, 0, 1].into(), groups: 2, ..Conv::default() };
            x[0].conv3d(x[1], None, how)
        })
        .once(),
        case("conv_transpose1d", bias(&[2, 3, 5], &[3, 2, 4], 2), |_, x| {
            x[0].conv_transpose1d(x[1], Some(x[2]), ConvTranspose::default())
        }),
        case("conv_transpose1d added", x(&[2, 2, 4], &[2, 2, 3]), |_, x| {
            x[0].conv_transpose1d(
                x[1],
                None,
                ConvTranspose { output_padding: [1], ..ConvTranspose::default() },
            )
        }),
        case("conv_transpose3d", x(&[1, 2, 2, 3, 2], &[2, 3, 2, 3, 2]), |_, x| {
            let how = ConvTranspose { stride: [2, 1, 3], padding: [1, 1, 0], ..ConvTranspose::default() };
            x[0].conv_transpose3d(x[1], None, how)
        })
        .once(),
    ]
}

fn all_two() -> Vec<Case> {
    let d = Conv::<2>::default;
    vec![
        two("", [2, 3, 5, 6], [4, 3, 3, 2], d()),
        two("padding", [2, 2, 5, 4], [3, 2, 3, 3], Conv { padding: [1, 2].into(), ..d() }),
        two("each", [1, 2, 5, 4], [3, 2, 3, 2], Conv { padding: Padding::Each([(2, 0), (0, 3)]), ..d() }),
        two("same", [2, 2, 5, 6], [2, 2, 4, 3], Conv { padding: Padding::Same, dilation: [1, 2], ..d() }),
        two("stride 2", [2, 3, 7, 6], [4, 3, 3, 2], Conv { stride: [2, 2], padding: [1, 1].into(), ..d() }),
        two("stride", [2, 2, 7, 9], [3, 2, 2, 3], Conv { stride: [3, 2], ..d() }),
        two("stride beyond kernel", [1, 2, 8, 7], [3, 2, 2, 1], Conv { stride: [3, 4], ..d() }),
        two("dilation", [2, 2, 7, 8], [3, 2, 3, 2], Conv { dilation: [2, 3], ..d() }),
        two(
            "dilation stride",
            [1, 2, 9, 8],
            [2, 2, 3, 2],
            Conv { dilation: [2, 3], stride: [3, 2], padding: [2, 1].into(), ..d() },
        ),
        two(
            "beyond the end",
            [1, 1, 3, 3],
            [2, 1, 2, 2],
            Conv { padding: [4, 4].into(), stride: [3, 2], ..d() },
        ),
        two("groups", [2, 4, 5, 4], [6, 2, 3, 2], Conv { groups: 2, ..d() }),
        two("groups stride", [2, 4, 4, 4], [2, 2, 3, 3], Conv { groups: 2, stride: [2, 2], ..d() }),
        two("depthwise", [2, 3, 6, 5], [6, 1, 3, 3], Conv { groups: 3, padding: [1, 1].into(), ..d() }),
        two("one", [2, 3, 4, 5], [4, 3, 1, 1], d()),
        two("one stride", [2, 3, 5, 5], [4, 3, 1, 1], Conv { stride: [2, 2], ..d() }),
        // Phases of the operand's gradient apart: some without an element of the kernel, some axes without stride.
        two("phases", [2, 16, 4, 6], [3, 16, 3, 3], Conv { stride: [2, 2], padding: [1, 1].into(), ..d() }),
        two(
            "phases off",
            [1, 16, 6, 4],
            [2, 16, 3, 5],
            Conv { stride: [2, 2], padding: [0, 2].into(), ..d() },
        ),
        two("phases of one", [2, 16, 4, 4], [3, 16, 1, 1], Conv { stride: [2, 2], ..d() }),
        two(
            "phases in groups",
            [1, 32, 6, 5],
            [4, 16, 2, 2],
            Conv { stride: [3, 1], dilation: [1, 2], padding: [1, 1].into(), groups: 2 },
        ),
        two("whole", [3, 2, 4, 3], [5, 2, 4, 3], d()),
        two("many", [2, 3, 9, 8], [4, 3, 3, 3], Conv { padding: [1, 1].into(), ..d() }),
        two("empty", [0, 2, 4, 5], [3, 2, 3, 2], d()),
        two("no output", [2, 3, 4, 4], [0, 3, 2, 2], d()),
        case("conv2d between", x(&[2, 3, 5, 6], &[4, 3, 3, 3]), |_, x| {
            let y = x[0].tanh().conv2d(x[1] * 0.5, None, Conv { padding: [1; 2].into(), ..Conv::default() });
            (y + 0.25).sigmoid().conv2d(x[1].transpose(0, 1), None, Conv::default())
        })
        .once(),
        case("conv2d turned", x(&[5, 2, 6, 3], &[3, 3, 4, 2]), |_, x| {
            // Operands whose channels lie last or first.
            let (x, w) = (x[0].permute([1, 3, 0, 2]), x[1].permute([2, 0, 1, 3]));
            x.conv2d(w, None, Conv { padding: [1; 2].into(), ..Conv::default() })
        }),
        case("conv2d parts", x(&[2, 4, 5, 5], &[3, 4, 2, 2]), |_, x| {
            let half = |x: Tensor| x.slice(1, 1..3);
            half(x[0]).conv2d(half(x[1]).flip([2]), None, Conv::default())
        }),
        case("conv2d deep", x(&[33, 2, 18, 19], &[3, 2, 3, 3]), |_, x| {
            x[0].conv2d(x[1], None, Conv::default())
        })
        .no_grad()
        .tolerance(3e-5),
    ]
}

fn transposed() -> Vec<Case> {
    let d = ConvTranspose::<2>::default;
    vec![
        back("", [2, 3, 4, 5], [3, 2, 3, 2], d()),
        back("stride", [2, 3, 4, 3], [3, 2, 4, 3], ConvTranspose { stride: [2, 3], ..d() }),
        back(
            "stride padding",
            [2, 2, 4, 3],
            [2, 3, 4, 5],
            ConvTranspose { stride: [2, 2], padding: [1, 2], output_padding: [1, 0], ..d() },
        ),
        back("stride beyond kernel", [1, 2, 3, 3], [2, 2, 2, 1], ConvTranspose { stride: [3, 4], ..d() }),
        back(
            "dilation",
            [2, 2, 4, 3],
            [2, 3, 3, 2],
            ConvTranspose { dilation: [2, 3], padding: [1, 0], ..d() },
        ),
        back(
            "dilation stride",
            [1, 2, 3, 4],
            [2, 2, 3, 2],
            ConvTranspose { dilation: [2, 3], stride: [3, 2], output_padding: [2, 1], ..d() },
        ),
        back("groups", [2, 4, 3, 4], [4, 3, 2, 3], ConvTranspose { groups: 2, stride: [2, 1], ..d() }),
        back("one", [2, 3, 4, 5], [3, 4, 1, 1], d()),
        back("empty", [0, 3, 4, 5], [3, 4, 2, 2], d()),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = one_and_three();
    all.extend(all_two());
    all.extend(transposed());
    all
}
