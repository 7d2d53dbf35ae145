//! Movements whose results are known from thought, and what they refuse.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{HostTensor, PadMode, Pass, Tensor, Windows, grad};

use crate::Subject;

crate::suite![plain: refused; device: known, gradients, far];

fn ramp(p: &Pass, dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    let elems: Vec<f32> = (0..n).map(|i| i as f32).collect();
    p.input(HostTensor::new(dims, &elems).unwrap()).unwrap()
}

type Known = (&'static str, fn(&Pass) -> Tensor, &'static [usize], &'static [f64]);

fn known(on: &Subject) {
    let all: &[Known] = &[
        ("windows", |p| ramp(p, &[5]).unfold(0, 3, 2), &[2, 3], &[0., 1., 2., 2., 3., 4.]),
        (
            "dilation",
            |p| ramp(p, &[6]).windows(0, Windows { size: 2, step: 1, dilation: 4 }),
            &[2, 2],
            &[0., 4., 1., 5.],
        ),
        (
            "overlap_add",
            |p| ramp(p, &[2, 3]).overlap_add(0, Windows { size: 3, step: 2, dilation: 1 }, 6),
            &[6],
            &[0., 1., 5., 4., 5., 0.],
        ),
        ("diagonal", |p| ramp(p, &[3, 4]).diagonal(1, 0, 1), &[3], &[1., 6., 11.]),
        (
            "diag_embed",
            |p| ramp(p, &[2]).diag_embed(-1, 0, 1),
            &[3, 3],
            &[0., 0., 0., 0., 0., 0., 0., 1., 0.],
        ),
        ("trace", |p| ramp(p, &[2, 2, 2]).trace(), &[2], &[3., 11.]),
        ("reflect", |p| ramp(p, &[3]).pad(&[(2, 2)], PadMode::Reflect), &[7], &[2., 1., 0., 1., 2., 1., 0.]),
        ("replicate", |p| ramp(p, &[2]).pad(&[(2, 1)], PadMode::Replicate), &[5], &[0., 0., 0., 1., 1.]),
        (
            "circular",
            |p| ramp(p, &[3]).pad(&[(3, 1)], PadMode::Circular),
            &[7],
            &[0., 1., 2., 0., 1., 2., 0.],
        ),
        ("crop", |p| ramp(p, &[4]).pad(&[(-1, 1)], 9.0), &[4], &[1., 2., 3., 9.]),
        ("infinite", |p| (ramp(p, &[1]) + f64::INFINITY).pad(&[(1, 0)], 0.0), &[2], &[0., f64::INFINITY]),
        ("roll", |p| ramp(p, &[4]).roll(0, 1), &[4], &[3., 0., 1., 2.]),
        ("interleave", |p| ramp(p, &[2]).repeat_interleave(0, 2), &[4], &[0., 0., 1., 1.]),
        ("tile", |p| ramp(p, &[2]).tile(&[2, 2]), &[2, 4], &[0., 1., 0., 1., 0., 1., 0., 1.]),
        ("tile never", |p| ramp(p, &[2, 3, 4]).tile(&[1, 0, 2]), &[2, 0, 8], &[]),
        ("never and twice", |p| (ramp(p, &[2, 2]) + 1.0).tile(&[0, 2]), &[0, 4], &[]),
        ("tril", |p| (ramp(p, &[2, 2]) + f64::NAN).tril(-2), &[2, 2], &[0.; 4]),
        ("nothing", |p| ramp(p, &[4, 3]).slice(0, 2..2), &[0, 3], &[]),
        ("backwards", |p| ramp(p, &[4, 3]).slice(0, 3..1), &[0, 3], &[]),
        ("one and none", |p| ramp(p, &[2, 0]) + ramp(p, &[2, 1]), &[2, 0], &[]),
        ("none and one", |p| ramp(p, &[0, 3]) + ramp(p, &[1, 3]), &[0, 3], &[]),
        ("expanded", |p| (ramp(p, &[3]) + 1.0).expand([2, 3]) + 1.0, &[2, 3], &[2., 3., 4., 2., 3., 4.]),
        (
            "uneven chunks",
            |p| Tensor::stack(&ramp(p, &[7]).chunk(0, 5)[..3], 0),
            &[3, 2],
            &[0., 1., 2., 3., 4., 5.],
        ),
        ("no chunks", |p| ramp(p, &[0]).chunk(0, 3)[2], &[0], &[]),
        (
            "assign",
            |p| ramp(p, &[5]).slice_assign_step(0, .., -2, ramp(p, &[3])),
            &[5],
            &[2., 1., 1., 3., 0.],
        ),
        ("assign one", |p| ramp(p, &[2, 2]).select_assign(0, -1, 7.0), &[2, 2], &[0., 1., 7., 7.]),
        ("interior", |p| ramp(p, &[2, 3]).movedim(0, -1), &[3, 2], &[0., 3., 1., 4., 2., 5.]),
    ];
    let ctx = on.context();
    for (name, f, dims, elems) in all {
        ctx.pass(|p| {
            let y = f(p);
            assert_eq!(y.shape().dims(), *dims, "{name}");
            let got = y.to_vec::<f64>()?;
            assert_eq!(&got, elems, "{name}");
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    ctx.pass(|p| {
        let x = ramp(p, &[1, 4, 4, 2]).permute([0, 3, 1, 2]);
        assert_eq!((x.slice(1, ..) + 0.0).to_vec::<f64>()?, x.to_vec::<f64>()?);
        Ok(())
    })
    .unwrap();
}

fn gradients(on: &Subject) {
    let ctx = on.context();
    ctx.pass(|p| {
        let x = ramp(p, &[7]);
        let dx = grad(x.slice_step(0, 1..6, 2).sum(..), &[x])?[0];
        assert_eq!(dx.to_vec::<f64>()?, [0., 1., 0., 1., 0., 1., 0.]);
        let dx = grad((x.slice_step(0, .., -1) * ramp(p, &[7])).sum(..), &[x])?[0];
        assert_eq!(dx.to_vec::<f64>()?, [6., 5., 4., 3., 2., 1., 0.]);
        let dx = grad(x.unfold(0, 3, 2).sum(..), &[x])?[0];
        assert_eq!(dx.to_vec::<f64>()?, [1., 1., 2., 1., 2., 1., 1.]);
        let dx = grad(x.pad(&[(2, 1)], PadMode::Reflect).sum(..), &[x])?[0];
        assert_eq!(dx.to_vec::<f64>()?, [1., 2., 2., 1., 1., 2., 1.]);
        Ok(())
    })
    .unwrap();
}

/// More elements and windows than one dimension of a dispatch has workgroups.
fn far(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let ctx = on.context();
    ctx.pass(|p| {
        let n = 70_000;
        let x = p.arange(0..n).cast(wgrad::DType::F32);
        let w = Windows { size: 3, step: 1, dilation: 5 };
        let last = x.windows(0, w).sum_keepdim(1).select_index(0, -1);
        assert_eq!(last.to_vec::<f64>()?, [3. * (f64::from(n) - 6.)]);
        let dx = grad(x.windows(0, w).sum(..), &[x])?[0];
        assert_eq!(dx.slice(0, -6..).to_vec::<f64>()?, [2., 1., 1., 1., 1., 1.]);
        Ok(())
    })
    .unwrap();
}

fn refused() {
    let ctx = crate::devices::oracle();
    ctx.pass(|p| {
        let x = ramp(p, &[3, 4]);
        let w = |size, step, dilation| Windows { size, step, dilation };
        let all: Vec<(&str, wgrad::Result<Tensor>, &str)> = vec![
            ("long", x.try_windows(1, w(5, 1, 1)), "spans 5 elements"),
            ("spread", x.try_windows(1, w(3, 1, 2)), "spans 5 elements"),
            ("no size", x.try_windows(1, w(0, 1, 1)), "above 0"),
            ("no step", x.try_windows(1, w(1, 0, 1)), "above 0"),
            ("no dilation", x.try_windows(1, w(2, 1, 0)), "above 0"),
            ("no axis", x.try_unfold(2, 1, 1), "axis 2"),
            ("other windows", x.try_overlap_add(0, w(4, 1, 1), 7), "is not 4 windows"),
            ("same axis", x.try_diagonal(0, 1, -1), "are one"),
            ("diag", x.unsqueeze(0).try_diag(0), "neither vector nor matrix"),
            ("trace", x.flatten(0).try_trace(), "no matrix"),
            ("tril", x.flatten(0).try_tril(0), "no matrix"),
            ("reflect", x.try_pad(&[(3, 0), (0, 0)], PadMode::Reflect), "at most 2"),
            ("circular", x.try_pad(&[(4, 0), (0, 0)], PadMode::Circular), "at most 3"),
            ("replicate", x.slice(0, ..0).try_pad(&[(1, 0), (0, 0)], PadMode::Replicate), "at most 0"),
            ("crop", x.try_pad(&[(-2, -2), (0, 0)], 0.0), "take more"),
            ("widths", x.try_pad(&[(1, 1)], 0.0), "1 widths"),
            ("huge pad", x.try_pad(&[(isize::MAX, 0), (0, 0)], 0.0), "too many elements"),
            ("huge repeat", x.try_repeat(0, usize::MAX / 8), "too many elements"),
            ("movedim", x.try_movedim([0, 1], 0), "2 axes to 1 places"),
            ("unflatten", x.try_unflatten(1, [3, 2]), "axis 1"),
            ("expand", x.try_expand([-1, 5]), "does not expand"),
            ("expand more", x.try_expand([-1, 3, 4]), "size -1"),
            ("assign", x.try_slice_assign_step(0, ..2, 1, x), "does not expand"),
            ("assign index", x.try_select_assign(0, 3, 1.0), "index 3"),
        ];
        for (name, result, text) in all {
            match result {
                Ok(y) => panic!("{name}: gives {}", y.shape()),
                Err(e) => assert!(e.to_string().contains(text), "{name}: {e}"),
            }
        }
        assert!(x.try_split_sizes(1, &[1, 2]).is_err());
        assert!(x.try_chunk(1, 0).is_err());
        Ok(())
    })
    .unwrap();
}
