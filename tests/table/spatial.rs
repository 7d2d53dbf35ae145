//! Operations on the last axes: pooling, resizing, sampling.

use wgrad::{Beyond, GridSample, HostTensor, Interpolate, Patches, Pool, Resize, Sample, Tensor};

use super::{Case, case, float, ints};

/// The places as they are, the values to the gradient.
fn both((y, idx): (Tensor, Tensor)) -> Tensor {
    y + idx.cast(y.dtype()) * 10.0
}

fn max_pools() -> Vec<Case> {
    let pool = |kernel: &[usize], stride: &[usize], padding: &[usize], dilation: &[usize], ceil_mode| Pool {
        kernel: kernel.into(),
        stride: stride.into(),
        padding: padding.into(),
        dilation: dilation.into(),
        ceil_mode,
        ..Pool::default()
    };
    let (no, d1) = (&[][..], &[1][..]);
    let ways: Vec<(&str, &[usize], Pool)> = vec![
        ("", &[2, 3, 4, 6], pool(&[2, 2], no, no, no, false)),
        ("dropped", &[2, 5, 7], pool(&[2, 2], no, no, no, false)),
        ("overlap", &[2, 3, 7, 6], pool(&[3, 2], d1, no, no, false)),
        ("overlap 3 by 2", &[1, 2, 9, 8], pool(&[3, 3], &[2], d1, no, false)),
        ("apart", &[2, 9, 11], pool(&[2, 2], &[3, 5], no, no, false)),
        ("padding", &[3, 5, 4], pool(&[2, 3], &[2], d1, no, false)),
        ("padding large", &[2, 6, 5], pool(&[5, 4], &[2], &[2], no, false)),
        ("dilation", &[2, 7, 9], pool(&[2, 3], d1, no, &[3, 2], false)),
        ("dilation padding", &[2, 6, 7], pool(&[3, 3], &[2, 3], &[2, 1], &[2], false)),
        ("ceil", &[2, 6, 8], pool(&[3, 3], &[2], no, no, true)),
        ("ceil padding", &[2, 5, 8], pool(&[2, 3], &[2], d1, no, true)),
        ("large", &[2, 11, 9], pool(&[5, 4], &[3, 2], no, no, false)),
        ("1d", &[2, 3, 9], pool(&[3], &[2], no, no, false)),
        ("1d alone", &[8], pool(&[3], d1, d1, no, false)),
        ("3d", &[2, 4, 4, 5], pool(&[2, 2, 2], no, no, no, false)),
        ("3d overlap", &[1, 2, 5, 4, 5], pool(&[3, 2, 3], &[2, 1, 2], &[1, 0, 1], no, false)),
        ("batch of none", &[0, 3, 4, 4], pool(&[2, 2], no, no, no, false)),
        ("leading axes", &[2, 1, 2, 4, 6], pool(&[2, 3], no, no, no, false)),
    ];
    let mut all = Vec::new();
    for (name, dims, how) in ways {
        let operand = || [float(dims, -2., 2.)];
        let with = how.clone();
        all.push(case(format!("max_pool {name}"), operand(), move |_, x| x[0].max_pool(how.clone())));
        all.push(
            case(format!("max_pool_with_indices {name}"), operand(), move |_, x| {
                both(x[0].max_pool_with_indices(with.clone()))
            })
            .once(),
        );
    }
    all.push(
        case("max_pool ints", [ints([2, 5, 6], -99, 9)], |_, x| {
            x[0].max_pool(Pool { padding: 1.into(), ..Pool::new([3, 3]) })
        })
        .no_grad(),
    );
    all
}

fn means() -> Vec<Case> {
    let pool = |kernel: &[usize], stride: &[usize], padding: &[usize], dilation: &[usize]| Pool {
        kernel: kernel.into(),
        stride: stride.into(),
        padding: padding.into(),
        dilation: dilation.into(),
        ..Pool::default()
    };
    let no = &[][..];
    let plain = || pool(&[3, 2], &[2], &[1], no);
    let ways: Vec<(&str, &[usize], Pool)> = vec![
        ("", &[2, 3, 4, 6], Pool::new([2, 2])),
        ("dropped", &[2, 5, 7], Pool::new([2, 3])),
        ("overlap", &[2, 3, 7, 6], pool(&[3, 2], &[1], no, no)),
        ("overlap 3 by 2", &[2, 9, 8], pool(&[3, 3], &[2], no, no)),
        ("overlap 4 by 2", &[2, 8, 9], pool(&[4, 4], &[2], no, no)),
        ("apart", &[2, 9, 11], pool(&[2, 2], &[3, 5], no, no)),
        ("padding", &[3, 5, 4], plain()),
        ("padding uncounted", &[3, 5, 4], Pool { count_include_pad: false, ..plain() }),
        ("ceil", &[2, 6, 9], Pool { ceil_mode: true, ..pool(&[3, 2], &[2], no, no) }),
        ("ceil padding", &[2, 6, 7], Pool { ceil_mode: true, ..pool(&[3, 3], &[2], &[1], no) }),
        (
            "ceil padding uncounted",
            &[2, 6, 7],
            Pool { ceil_mode: true, count_include_pad: false, ..pool(&[3, 3], &[2], &[1], no) },
        ),
        ("divisor", &[2, 5, 4], Pool { divisor: Some(7), ..plain() }),
        ("dilation", &[2, 7, 9], pool(&[2, 3], &[1, 2], no, &[3, 2])),
        ("large", &[2, 11, 9], pool(&[5, 4], &[3, 2], &[2, 1], no)),
        ("1d", &[2, 3, 9], pool(&[3], &[2], &[1], no)),
        ("3d", &[2, 4, 5, 4], pool(&[2, 3, 2], &[2, 1, 2], &[0, 1, 1], no)),
        ("3d large", &[1, 2, 5, 4, 6], pool(&[3, 3, 3], &[2, 1, 2], &[1], no)),
        ("batch of none", &[0, 3, 4, 4], Pool::new([2, 2])),
    ];
    let mut all = Vec::new();
    for (name, dims, how) in ways {
        all.push(case(format!("avg_pool {name}"), [float(dims, -2., 2.)], move |_, x| {
            x[0].avg_pool(how.clone())
        }));
    }
    all.push(case("lp_pool 2", [float([2, 5, 6], -2., 2.)], |_, x| x[0].lp_pool(2.0, [2, 3])));
    all.push(case("lp_pool 3", [float([2, 3, 9], 0.2, 2.)], |_, x| {
        x[0].lp_pool(3.0, Pool { stride: 2.into(), ..Pool::new([4]) })
    }));
    all.push(case("lp_pool 1.5 ceil", [float([2, 5, 6], 0.2, 2.)], |_, x| {
        x[0].lp_pool(1.5, Pool { stride: 2.into(), ceil_mode: true, ..Pool::new([2, 3]) })
    }));
    all
}

fn adaptive() -> Vec<Case> {
    let ways: Vec<(&str, &[usize], &[usize])> = vec![
        ("even", &[2, 3, 6, 4], &[3, 2]),
        ("global", &[2, 3, 5, 4], &[1, 1]),
        ("uneven", &[2, 7, 5], &[3, 2]),
        ("larger", &[2, 3, 4], &[5, 4]),
        ("1d", &[2, 3, 11], &[4]),
        ("3d", &[2, 5, 4, 3], &[2, 3, 2]),
        ("batch of none", &[0, 2, 7, 5], &[3, 2]),
    ];
    let mut all = Vec::new();
    for (name, dims, to) in ways {
        let operand = || [float(dims, -2., 2.)];
        let name = |stem: &str| format!("{stem} {name}");
        all.push(case(name("adaptive_avg_pool"), operand(), move |_, x| x[0].adaptive_avg_pool(to)));
        all.push(case(name("adaptive_max_pool"), operand(), move |_, x| x[0].adaptive_max_pool(to)));
        all.push(
            case(name("adaptive_max_pool_with_indices"), operand(), move |_, x| {
                both(x[0].adaptive_max_pool_with_indices(to))
            })
            .once(),
        );
    }
    all.push(case("max_unpool", [float([2, 2, 3], -2., 2.)], |p, x| {
        let places = HostTensor::new([2, 2, 3], &[0, 3, 11, 17, 6, 1, 9, 2, 5, 14, 0, 19]).expect("12");
        x[0].max_unpool(p.input(places).expect("an input"), [4, 5])
    }));
    all.push(case("max_unpool shared", [float([1, 5], -2., 2.)], |p, x| {
        let places = HostTensor::new([1, 5], &[3, 0, 3, 3, 7]).expect("5");
        x[0].max_unpool(p.input(places).expect("an input"), [8])
    }));
    all.push(
        case("max_unpool of pool", [float([2, 6, 5], -2., 2.)], |_, x| {
            let (y, idx) = x[0].max_pool_with_indices([2, 2]);
            y.max_unpool(idx, [6, 5])
        })
        .once(),
    );
    all
}

fn resized() -> Vec<Case> {
    let near = [Resize::Nearest, Resize::NearestExact];
    let smooth = [Resize::Linear, Resize::Cubic];
    let ways: Vec<(&str, &[usize], Interpolate)> = vec![
        ("twice", &[2, 1, 3, 4], Interpolate::by(2.0)),
        ("half", &[1, 2, 6, 4], Interpolate::by(0.5)),
        ("up", &[2, 3, 5], Interpolate::to([13])),
        ("down", &[1, 2, 11, 7], Interpolate::to([4, 3])),
        ("up and down", &[1, 2, 4, 9], Interpolate::to([7, 5])),
        ("factors", &[1, 2, 5, 4], Interpolate::by([1.7, 2.3])),
        (
            "factors recomputed",
            &[1, 2, 5, 4],
            Interpolate { recompute_scale: true, ..Interpolate::by([1.7, 2.3]) },
        ),
        ("same", &[1, 2, 5], Interpolate::to([5])),
        ("one", &[1, 2, 5, 3], Interpolate::to([1, 1])),
        ("of one", &[1, 2, 1, 3], Interpolate::to([4, 2])),
        ("3d", &[1, 1, 3, 4, 2], Interpolate::to([5, 3, 4])),
        ("batch of none", &[0, 2, 3, 4], Interpolate::to([5, 6])),
    ];
    let mut all = Vec::new();
    for (name, dims, how) in &ways {
        let mut add = |what: &str, mode, align_corners| {
            let how = Interpolate { mode, align_corners, ..how.clone() };
            let name = format!("interpolate {what} {name}");
            all.push(case(name, [float(dims, -2., 2.)], move |_, x| x[0].interpolate(how.clone())));
        };
        for mode in near {
            add(&format!("{mode:?}").to_lowercase(), mode, false);
        }
        for mode in smooth {
            add(&format!("{mode:?}").to_lowercase(), mode, false);
            add(&format!("{mode:?} corners").to_lowercase(), mode, true);
        }
        add("area", Resize::Area, false);
    }
    all.push(
        case("interpolate ints", [ints([1, 2, 4], -9, 9)], |_, x| x[0].interpolate(Interpolate::to([7])))
            .no_grad(),
    );
    all.push(case("interpolate channels last", [float([2, 3, 4, 2], -2., 2.)], |_, x| {
        let how = Interpolate { mode: Resize::Linear, ..Interpolate::by(1.5) };
        x[0].permute([0, 3, 1, 2]).interpolate(how).permute([0, 2, 3, 1])
    }));
    all
}

fn sampled() -> Vec<Case> {
    let mut all = Vec::new();
    let places = |dims: &[usize]| float(dims, -1.3, 1.3);
    for beyond in [Beyond::Zeros, Beyond::Border, Beyond::Reflection] {
        for align_corners in [false, true] {
            for mode in [Sample::Linear, Sample::Nearest, Sample::Cubic] {
                let how = GridSample { mode, beyond, align_corners };
                let edges = if align_corners { "corners" } else { "edges" };
                let name = format!("grid_sample {mode:?} {beyond:?} {edges}").to_lowercase();
                let operands = [float([2, 3, 4, 5], -2., 2.), places(&[2, 3, 2, 2])];
                all.push(case(name, operands, move |_, x| x[0].grid_sample(x[1], how)).tolerance(3e-5));
            }
        }
    }
    let plain = GridSample::default();
    all.push(case("grid_sample 1d", [float([2, 3, 7], -2., 2.), places(&[2, 5, 1])], move |_, x| {
        x[0].grid_sample(x[1], plain)
    }));
    all.push(
        case("grid_sample 3d", [float([1, 2, 3, 4, 3], -2., 2.), places(&[1, 2, 3, 2, 3])], move |_, x| {
            x[0].grid_sample(x[1], plain)
        })
        .tolerance(3e-5),
    );
    all.push(case(
        "grid_sample batch of none",
        [float([0, 2, 3, 4], -2., 2.), places(&[0, 2, 3, 2])],
        move |_, x| x[0].grid_sample(x[1], plain),
    ));
    all.push(
        case(
            "grid_sample of affine_grid",
            [float([2, 1, 4, 3], -2., 2.), float([2, 2, 3], -0.6, 0.9)],
            move |_, x| x[0].grid_sample(x[1].affine_grid(&[3, 5], false), plain),
        )
        .tolerance(3e-5),
    );
    for align_corners in [false, true] {
        let edges = if align_corners { "corners" } else { "edges" };
        let theta = |dims: &[usize]| [float(dims, -1., 1.)];
        all.push(case(format!("affine_grid 1d {edges}"), theta(&[2, 1, 2]), move |_, x| {
            x[0].affine_grid(&[4], align_corners)
        }));
        all.push(case(format!("affine_grid 2d {edges}"), theta(&[3, 2, 3]), move |_, x| {
            x[0].affine_grid(&[4, 1], align_corners)
        }));
        all.push(case(format!("affine_grid 3d {edges}"), theta(&[2, 3, 4]), move |_, x| {
            x[0].affine_grid(&[2, 3, 4], align_corners)
        }));
    }
    all
}

fn patches() -> Vec<Case> {
    let options = || Patches {
        stride: [2, 1].into(),
        padding: [1, 2].into(),
        dilation: [1, 2].into(),
        ..Patches::new([3, 2])
    };
    vec![
        case("im2col", [float([2, 3, 4, 5], -2., 2.)], |_, x| x[0].im2col(Patches::new([2, 3]))),
        case("im2col options", [float([1, 2, 5, 4], -2., 2.)], move |_, x| x[0].im2col(options())),
        case("im2col 1d alone", [float([3, 7], -2., 2.)], |_, x| x[0].im2col(Patches::new([3]))),
        case("im2col 3d", [float([1, 2, 3, 4, 3], -2., 2.)], |_, x| {
            x[0].im2col(Patches { padding: 1.into(), stride: 2.into(), ..Patches::new([2, 3, 2]) })
        }),
        case("im2col batch of none", [float([0, 3, 4, 5], -2., 2.)], |_, x| {
            x[0].im2col(Patches::new([2, 3]))
        }),
        case("col2im", [float([2, 18, 9], -2., 2.)], |_, x| x[0].col2im([4, 5], Patches::new([2, 3]))),
        case("col2im options", [float([1, 12, 18], -2., 2.)], move |_, x| x[0].col2im([5, 4], options())),
        case("col2im 1d alone", [float([6, 5], -2., 2.)], |_, x| x[0].col2im([7], Patches::new([3]))),
        case("col2im 3d", [float([1, 24, 8], -2., 2.)], |_, x| {
            x[0].col2im([3, 4, 3], Patches { padding: 1.into(), stride: 2.into(), ..Patches::new([2, 3, 2]) })
        }),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = max_pools();
    all.extend(means());
    all.extend(adaptive());
    all.extend(resized());
    all.extend(sampled());
    all.extend(patches());
    all
}
