//! Pooling, interpolation, sampling of grids.

use wgrad::{Beyond, GridSample, Interpolate, Patches, Pool, Resize, Sample};

use super::{Golden, golden, one, two};

fn pools() -> Vec<Golden> {
    let at = |kernel: &[usize], stride: usize, padding: usize| Pool {
        kernel: kernel.into(),
        stride: stride.into(),
        padding: padding.into(),
        ..Pool::default()
    };
    let inside = |pool: Pool| Pool { count_include_pad: false, ..pool };
    let ceil = |pool: Pool| Pool { ceil_mode: true, ..pool };
    let (k2, k3): ([&[usize]; 3], [&[usize]; 3]) = ([&[2], &[2, 2], &[2, 2, 2]], [&[3], &[3, 3], &[3, 3, 3]]);
    let mut all = Vec::new();
    let ways: Vec<(&str, Pool)> = vec![
        ("max_pool 1d", k2[0].into()),
        ("max_pool 2d", k2[1].into()),
        ("max_pool 3d", k2[2].into()),
        ("max_pool 1d overlap", at(k3[0], 1, 1)),
        ("max_pool 2d overlap", at(k3[1], 1, 1)),
        ("max_pool 3d overlap", at(k3[2], 1, 1)),
        ("max_pool 1d ceil", ceil(at(k2[0], 3, 1))),
        ("max_pool 2d ceil", ceil(at(k2[1], 3, 1))),
        ("max_pool 3d ceil", ceil(at(k2[2], 3, 1))),
        (
            "max_pool 2d dilation",
            Pool {
                stride: [1, 2].into(),
                padding: [1, 0].into(),
                dilation: [2, 1].into(),
                ..Pool::new([2, 3])
            },
        ),
        ("max_pool 2d ties", k2[1].into()),
        ("max_pool 2d unbatched", k2[1].into()),
    ];
    for (name, how) in ways {
        all.push(golden(name, move |_, x| x[0].max_pool(how.clone())));
    }
    let ways: Vec<(&str, Pool)> = vec![
        ("avg_pool 1d", k2[0].into()),
        ("avg_pool 2d", k2[1].into()),
        ("avg_pool 3d", k2[2].into()),
        ("avg_pool 1d overlap", at(k3[0], 2, 1)),
        ("avg_pool 2d overlap", at(k3[1], 2, 1)),
        ("avg_pool 3d overlap", at(k3[2], 2, 1)),
        ("avg_pool 1d padding left out", inside(at(k3[0], 2, 1))),
        ("avg_pool 2d padding left out", inside(at(k3[1], 2, 1))),
        ("avg_pool 3d padding left out", inside(at(k3[2], 2, 1))),
        ("avg_pool 1d ceil", ceil(at(k2[0], 3, 1))),
        ("avg_pool 2d ceil", ceil(at(k2[1], 3, 1))),
        ("avg_pool 3d ceil", ceil(at(k2[2], 3, 1))),
        ("avg_pool 2d divisor", Pool { divisor: Some(3), ..Pool::new([2, 2]) }),
        (
            "avg_pool 2d rectangle",
            Pool { stride: [2, 1].into(), padding: [0, 1].into(), ..Pool::new([1, 3]) },
        ),
    ];
    for (name, how) in ways {
        all.push(golden(name, move |_, x| x[0].avg_pool(how.clone())));
    }
    all.extend([
        one("max_pool 2d indices", |x| <[_; 2]>::from(x.max_pool_with_indices([2, 2]))),
        one("max_pool 2d twice", |x| x.square().max_pool([2, 2])),
        one("lp_pool 2d", |x| x.lp_pool(2.0, [2, 2])),
        one("adaptive_avg_pool 1d", |x| x.adaptive_avg_pool([4])),
        one("adaptive_avg_pool 2d", |x| x.adaptive_avg_pool([3, 4])),
        one("adaptive_avg_pool 3d", |x| x.adaptive_avg_pool([3, 4, 2])),
        one("adaptive_avg_pool 2d one", |x| x.adaptive_avg_pool([1, 1])),
        one("adaptive_avg_pool 2d larger", |x| x.adaptive_avg_pool([5, 7])),
        one("adaptive_max_pool 1d", |x| x.adaptive_max_pool([4])),
        one("adaptive_max_pool 2d", |x| x.adaptive_max_pool([3, 4])),
        one("adaptive_max_pool 3d", |x| x.adaptive_max_pool([3, 4, 2])),
    ]);
    all
}

fn resized() -> Vec<Golden> {
    let to =
        |size: &[usize], mode, align_corners| Interpolate { mode, align_corners, ..Interpolate::to(size) };
    let (up, down): ([&[usize]; 3], [&[usize]; 3]) =
        ([&[8], &[7, 8], &[5, 6, 4]], [&[3], &[3, 2], &[2, 3, 2]]);
    let (nearest, linear, cubic) = (Resize::Nearest, Resize::Linear, Resize::Cubic);
    let ways: Vec<(&str, Interpolate)> = vec![
        ("interpolate nearest 1d up", to(up[0], nearest, false)),
        ("interpolate nearest 2d up", to(up[1], nearest, false)),
        ("interpolate nearest 3d up", to(up[2], nearest, false)),
        ("interpolate nearest 1d down", to(down[0], nearest, false)),
        ("interpolate nearest 2d down", to(down[1], nearest, false)),
        ("interpolate nearest 3d down", to(down[2], nearest, false)),
        ("interpolate linear 1d up", to(up[0], linear, false)),
        ("interpolate linear 2d up", to(up[1], linear, false)),
        ("interpolate linear 3d up", to(up[2], linear, false)),
        ("interpolate linear 1d down", to(down[0], linear, false)),
        ("interpolate linear 2d down", to(down[1], linear, false)),
        ("interpolate linear 3d down", to(down[2], linear, false)),
        ("interpolate linear 1d up corners", to(up[0], linear, true)),
        ("interpolate linear 2d up corners", to(up[1], linear, true)),
        ("interpolate linear 3d up corners", to(up[2], linear, true)),
        ("interpolate linear 1d down corners", to(down[0], linear, true)),
        ("interpolate linear 2d down corners", to(down[1], linear, true)),
        ("interpolate linear 3d down corners", to(down[2], linear, true)),
        ("interpolate bicubic up", to(up[1], cubic, false)),
        ("interpolate bicubic down", to(down[1], cubic, false)),
        ("interpolate bicubic up corners", to(up[1], cubic, true)),
        ("interpolate bicubic down corners", to(down[1], cubic, true)),
        ("interpolate nearest exact", to(&[7, 3], Resize::NearestExact, false)),
        ("interpolate area", to(&[3, 2], Resize::Area, false)),
        ("interpolate factor", Interpolate { mode: linear, ..Interpolate::by(2.0) }),
        ("interpolate one corner", to(&[1, 1], linear, true)),
    ];
    let mut all = Vec::new();
    for (name, how) in ways {
        all.push(golden(name, move |_, x| x[0].interpolate(how.clone())));
    }
    all.push(golden("interpolate twice", move |_, x| x[0].square().interpolate(to(&[5, 3], linear, false))));
    all
}

fn sampled() -> Vec<Golden> {
    let (linear, nearest, cubic) = (Sample::Linear, Sample::Nearest, Sample::Cubic);
    let (zeros, border, reflection) = (Beyond::Zeros, Beyond::Border, Beyond::Reflection);
    let ways = [
        ("grid_sample bilinear zeros", linear, zeros, false),
        ("grid_sample bilinear zeros corners", linear, zeros, true),
        ("grid_sample bilinear border", linear, border, false),
        ("grid_sample bilinear border corners", linear, border, true),
        ("grid_sample bilinear reflection", linear, reflection, false),
        ("grid_sample bilinear reflection corners", linear, reflection, true),
        ("grid_sample nearest zeros", nearest, zeros, false),
        ("grid_sample nearest zeros corners", nearest, zeros, true),
        ("grid_sample nearest border", nearest, border, false),
        ("grid_sample nearest border corners", nearest, border, true),
        ("grid_sample nearest reflection", nearest, reflection, false),
        ("grid_sample nearest reflection corners", nearest, reflection, true),
        ("grid_sample bicubic zeros", cubic, zeros, false),
        ("grid_sample bicubic zeros corners", cubic, zeros, true),
        ("grid_sample bicubic border", cubic, border, false),
        ("grid_sample bicubic border corners", cubic, border, true),
        ("grid_sample bicubic reflection", cubic, reflection, false),
        ("grid_sample bicubic reflection corners", cubic, reflection, true),
    ];
    let mut all = Vec::new();
    for (name, mode, beyond, align_corners) in ways {
        let how = GridSample { mode, beyond, align_corners };
        all.push(golden(name, move |_, x| x[0].grid_sample(x[1], how)));
    }
    all.extend([
        two("grid_sample 3d", |x, grid| x.grid_sample(grid, GridSample::default())),
        one("affine_grid", |theta| theta.affine_grid(&[3, 4], false)),
        one("affine_grid corners", |theta| theta.affine_grid(&[3, 4], true)),
        one("im2col", |x| x.im2col(Patches::new([2, 3]))),
        one("im2col options", |x| {
            let (stride, padding, dilation) = ([2, 1].into(), [1, 2].into(), [1, 2].into());
            x.im2col(Patches { stride, padding, dilation, ..Patches::new([3, 2]) })
        }),
        one("col2im", |x| x.col2im([4, 5], Patches::new([2, 3]))),
        one("col2im options", |x| {
            let (stride, padding, dilation) = ([2, 1].into(), [1, 2].into(), [1, 2].into());
            x.col2im([5, 4], Patches { stride, padding, dilation, ..Patches::new([3, 2]) })
        }),
        two("max_unpool 2d", |x, idx| x.max_unpool(idx, [5, 4])),
    ]);
    all
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = pools();
    all.extend(resized());
    all.extend(sampled());
    all
}
