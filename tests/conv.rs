//! Convolutions whose results are known from thought, and what they refuse.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{
    Context, ContextOptions, Conv, ConvTranspose, DType, HostTensor, Off, Padding, Pass, Tensor, grad, vjp,
};
use wgrad_graph::Kind;

use crate::Subject;
use crate::devices::oracle;
use crate::table::full;

crate::suite![
    plain: refused, forms_agree_on_bits;
    device: tail, output_padding, groups_and_stride, dilation, offset_kernel, outer_product, infinite,
        last_pixel, empty_batch, windows_are_not_stored, channels_last, random_convolutions
];

fn floats(p: &Pass, dims: &[usize], elems: &[f32]) -> Tensor {
    p.input(HostTensor::new(dims, elems).unwrap()).unwrap()
}

fn ramp(p: &Pass, dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    floats(p, dims, &(0..n).map(|i| i as f32).collect::<Vec<_>>())
}

fn ones(y: Tensor) -> Tensor {
    y.ones_like()
}

fn tail(on: &Subject) {
    on.context()
        .pass(|p| {
            let (x, w) = (ramp(p, &[1, 1, 11]), ramp(p, &[1, 1, 4]));
            let y = x.conv1d(w, None, Conv { stride: [4], ..Conv::default() });
            assert_eq!(y.to_vec::<f64>()?, [14., 38.]);
            let d = vjp(&[y], &[ones(y)], &[x, w])?;
            assert_eq!(d[0].to_vec::<f64>()?, [0., 1., 2., 3., 0., 1., 2., 3., 0., 0., 0.]);
            assert_eq!(d[1].to_vec::<f64>()?, [4., 6., 8., 10.]);
            Ok(())
        })
        .unwrap();
}

fn output_padding(on: &Subject) {
    on.context()
        .pass(|p| {
            let (x, w) = (ramp(p, &[2, 2, 4]), ramp(p, &[2, 2, 3]));
            let how = ConvTranspose { output_padding: [1], ..ConvTranspose::default() };
            let y = x.conv_transpose1d(w, None, how);
            assert_eq!(y.shape().dims(), [2, 2, 7]);
            assert_eq!(y.slice(2, 6..).to_vec::<f64>()?, [0.; 4]);
            let d = vjp(&[y], &[ones(y)], &[x, w])?;
            assert_eq!(d[0].shape(), x.shape());
            assert_eq!(d[0].to_vec::<f64>()?[..5], [15., 15., 15., 15., 51.]);
            Ok(())
        })
        .unwrap();
}

fn groups_and_stride(on: &Subject) {
    on.context()
        .pass(|p| {
            let (x, w, b) = (ramp(p, &[1, 4, 4, 4]), ramp(p, &[2, 2, 3, 3]), floats(p, &[2], &[0., 0.]));
            let how = Conv { stride: [2, 2], groups: 2, ..Conv::default() };
            let y = x.conv2d(w, Some(b), how);
            let d = vjp(&[y], &[ones(y)], &[x, w, b])?;
            for c in 0..4 {
                let first = f64::from(9 * c);
                let row = |r: i32| {
                    let at = first + f64::from(3 * r);
                    [at, at + 1., at + 2., 0.]
                };
                let want = [row(0), row(1), row(2), [0.; 4]].concat();
                assert_eq!(d[0].select_index(1, c).to_vec::<f64>()?, want, "channel {c}");
            }
            let dw = d[1].to_vec::<f64>()?;
            assert_eq!(dw[..9], [0., 1., 2., 4., 5., 6., 8., 9., 10.]);
            let add = |by: f64| dw[..9].iter().map(|x| x + by).collect::<Vec<_>>();
            for (i, part) in dw.chunks(9).enumerate() {
                assert_eq!(part, add(16. * i as f64), "part {i}");
            }
            assert_eq!(d[2].to_vec::<f64>()?, [1., 1.]);
            Ok(())
        })
        .unwrap();
}

fn dilation(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = floats(p, &[1, 1, 6], &[1., 2., 3., 4., 5., 6.]);
            let w = floats(p, &[1, 1, 2], &[1., 10.]);
            let y = x.conv1d(w, None, Conv { dilation: [2], ..Conv::default() });
            assert_eq!(y.to_vec::<f64>()?, [31., 42., 53., 64.]);
            let alone = x.squeeze(0).conv1d(w, None, Conv { padding: Padding::Same, ..Conv::default() });
            assert_eq!(alone.shape().dims(), [1, 6]);
            // The odd zero stands behind.
            assert_eq!(alone.to_vec::<f64>()?, [21., 32., 43., 54., 65., 6.]);
            Ok(())
        })
        .unwrap();
}

fn offset_kernel(on: &Subject) {
    let data: Vec<f32> = (1..13).map(|i| i as f32 / 10.0).collect();
    on.context()
        .pass(|p| {
            let x = ramp(p, &[1, 2, 2, 3]);
            let whole = floats(p, &[3, 4, 1, 1], &data);
            let part: Vec<f32> = data.chunks(4).flat_map(|row| row[1..3].to_vec()).collect();
            let plain = floats(p, &[3, 2, 1, 1], &part);
            let (a, b) = (
                x.conv2d(whole.slice(1, 1..3), None, Conv::default()),
                x.conv2d(plain, None, Conv::default()),
            );
            assert_eq!(a.to_vec::<f64>()?, b.to_vec::<f64>()?);
            let (da, db) = (grad(a.square().sum(..), &[x, whole])?, grad(b.square().sum(..), &[x, plain])?);
            assert_eq!(da[0].to_vec::<f64>()?, db[0].to_vec::<f64>()?);
            assert_eq!(da[1].slice(1, 1..3).to_vec::<f64>()?, db[1].to_vec::<f64>()?);
            assert_eq!(da[1].slice(1, 3..).to_vec::<f64>()?, [0.; 3]);
            Ok(())
        })
        .unwrap();
}

fn outer_product(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = ramp(p, &[1, 1, 1, 672]).permute([0, 3, 1, 2]);
            let w = p.zeros([168, 672, 1, 1]);
            let y = x.conv2d(w, None, Conv::default());
            let g = ramp(p, &[1, 168, 1, 1]);
            let dw = vjp(&[y], &[g], &[w])?[0];
            let got = dw.to_vec::<f64>()?;
            for (i, row) in got.chunks(672).enumerate() {
                for (j, d) in row.iter().enumerate() {
                    assert_eq!(*d, (i * j) as f64, "{i} {j}");
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Infinities spread no further than the windows that hold them, whatever the weights are.
fn infinite(on: &Subject) {
    on.context()
        .pass(|p| {
            let x = floats(p, &[1, 1, 6], &[f32::INFINITY, 1., 1., 1., 1., 1.]);
            let w = floats(p, &[1, 1, 3], &[1., 1., 0.]);
            let y = x.conv1d(w, None, Conv { padding: [1].into(), ..Conv::default() }).to_vec::<f64>()?;
            assert_eq!(y[0], f64::INFINITY);
            assert_eq!(y[1], f64::INFINITY);
            assert_eq!(y[2..], [2.; 4]);
            Ok(())
        })
        .unwrap();
}

fn last_pixel(on: &Subject) {
    if on.is_slow() || on.tag() == "oracle" {
        return;
    }
    on.context()
        .pass(|p| {
            let x = p.zeros([1, 3, 1024, 1024]).slice_assign_step(3, 1020.., 1, 1.0);
            let w = ramp(p, &[2, 3, 3, 3]);
            let y = x.conv2d(w, None, Conv { padding: [1; 2].into(), ..Conv::default() });
            let last = y.slice(2, -1..).slice(3, -1..).to_vec::<f64>()?;
            // Rows 0 and 1, columns 0 and 1 of each kernel lie inside.
            let sum = |m: f64| (0..3).map(|c| 4. * (27. * m + 9. * f64::from(c)) + 8.).sum::<f64>();
            assert_eq!(last, [sum(0.), sum(1.)]);
            let dx = vjp(&[y], &[ones(y)], &[x])?[0];
            let corner = dx.slice(2, -1..).slice(3, -1..).to_vec::<f64>()?;
            // Elements 1 and 2 of each axis of the kernel reach the last pixel.
            let reach = |c: f64| [0., 27.].iter().map(|m| 4. * (m + 9. * c) + 24.).sum::<f64>();
            assert_eq!(corner, [reach(0.), reach(1.), reach(2.)]);
            Ok(())
        })
        .unwrap();
}

fn empty_batch(on: &Subject) {
    on.context()
        .pass(|p| {
            let (x, w, b) = (p.zeros([0, 2, 5, 5]), ramp(p, &[3, 2, 3, 3]), p.zeros([3]));
            let y = x.conv2d(w, Some(b), Conv::default());
            assert_eq!(y.shape().dims(), [0, 3, 3, 3]);
            let d = grad(y.sum(..), &[x, w, b])?;
            assert!(d[0].to_vec::<f64>()?.is_empty());
            assert_eq!(d[1].to_vec::<f64>()?, [0.; 54]);
            assert_eq!(d[2].to_vec::<f64>()?, [0.; 3]);
            Ok(())
        })
        .unwrap();
}

/// No value of a convolution and its gradients is as large as all windows.
fn windows_are_not_stored(on: &Subject) {
    let ctx = on.context();
    let (x, w) = ([4, 8, 20, 20], [16, 8, 5, 5]);
    ctx.pass(|p| {
        let (x, w) = (ramp(p, &x) * 1e-4, ramp(p, &w) * 1e-4);
        let y = x.conv2d(w, None, Conv { padding: [2; 2].into(), ..Conv::default() });
        let d = grad(y.square().sum(..), &[x, w])?;
        let sums = Tensor::stack(&[d[0].sum(..), d[1].sum(..)], 0);
        sums.to_vec::<f64>()
    })
    .unwrap();
    let plan = ctx.last_plan().unwrap();
    let largest =
        plan.steps.iter().flat_map(|s| &s.group.stores).map(|s| plan.graph.out(s.val).shape.elems());
    // The largest is what the gradient reads with zeros around: [4, 16, 24, 24]; windows are 25 of x.
    assert!(largest.max().unwrap() <= 4 * 16 * 24 * 24, "{plan}");
}

/// On the CPU executor a convolution gives equal bits fused or not, also where sums or outputs are long.
fn forms_agree_on_bits() {
    let bits = |fuse: bool, dims: &[usize], weight: &[usize], stride: usize| {
        let options = ContextOptions::default().fuse(fuse);
        let ctx = Context::with(&wgrad::Device::cpu(), options).unwrap();
        ctx.pass(|p| {
            let (x, w) = ((ramp(p, dims) * 0.37).sin(), (ramp(p, weight) * 0.61).cos());
            let how = Conv { stride: [stride; 2], padding: [1; 2].into(), ..Conv::default() };
            let y = x.conv2d(w, None, how);
            let d = vjp(&[y], &[(y * 0.5).sin()], &[x, w])?;
            Ok([y.to_vec::<f32>()?, d[0].to_vec::<f32>()?, d[1].to_vec::<f32>()?])
        })
        .unwrap()
    };
    let shapes: [(&[usize], &[usize], usize); 4] = [
        (&[3, 2, 60, 71], &[5, 2, 3, 3], 1),
        (&[70, 3, 13, 13], &[8, 3, 3, 3], 1),
        (&[9, 4, 8, 7], &[6, 4, 3, 2], 2),
        (&[2, 3, 4, 4], &[4, 3, 3, 3], 1),
    ];
    for (dims, weight, stride) in shapes {
        assert!(bits(true, dims, weight, stride) == bits(false, dims, weight, stride), "{dims:?} {weight:?}");
    }
}

fn refused() {
    let ctx = oracle();
    ctx.pass(|p| {
        let (x, w) = (ramp(p, &[1, 2, 5, 5]), ramp(p, &[4, 2, 3, 3]));
        let d = Conv::<2>::default;
        let t = ConvTranspose::<2>::default;
        let all: Vec<(&str, wgrad::Result<Tensor>, &str)> = vec![
            ("rank", x.try_conv1d(w, None, Conv::default()), "needs ranks 3 and 3"),
            ("channels", x.slice(1, ..1).try_conv2d(w, None, d()), "in 1 groups"),
            ("groups", x.try_conv2d(w, None, Conv { groups: 2, ..d() }), "in 2 groups"),
            ("no groups", x.try_conv2d(w, None, Conv { groups: 0, ..d() }), "above 0"),
            ("stride", x.try_conv2d(w, None, Conv { stride: [1, 0], ..d() }), "above 0"),
            ("dilation", x.try_conv2d(w, None, Conv { dilation: [0, 1], ..d() }), "above 0"),
            ("no kernel", x.try_conv2d(w.slice(3, ..0), None, d()), "above 0"),
            ("kernel", x.try_conv2d(w, None, Conv { dilation: [3, 1], ..d() }), "7 elements on axis 2 of 5"),
            (
                "same",
                x.try_conv2d(w, None, Conv { padding: Padding::Same, stride: [2, 2], ..d() }),
                "needs stride 1",
            ),
            ("bias", x.try_conv2d(w, Some(p.zeros([3])), d()), "a bias of [3] for 4 channels"),
            ("ints", x.cast(DType::I32).try_conv2d(w.cast(DType::I32), None, d()), "not defined"),
            ("transposed", x.try_conv_transpose2d(w, None, t()), "in 1 groups"),
            (
                "cut",
                x.try_conv_transpose2d(w.transpose(0, 1), None, ConvTranspose { padding: [4, 0], ..t() }),
                "cuts 8 elements of 7",
            ),
        ];
        for (name, result, text) in all {
            match result {
                Ok(y) => panic!("{name}: gives {}", y.shape()),
                Err(e) => assert!(e.to_string().contains(text), "{name}: {e}"),
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Convolutions whose operands are stored with their channels last: results and gradients are the oracle's.
fn channels_last(on: &Subject) {
    if on.is_oracle() {
        return;
    }
    let ctx = Context::new(on.lowered(|caps| caps.off = Off::default())).unwrap();
    let s1 = Conv { padding: [1; 2].into(), ..Conv::default() };
    let cases: [([usize; 4], [usize; 4], Conv<2>); 14] = [
        ([3, 5, 9, 11], [7, 5, 3, 3], s1),
        ([1, 16, 8, 8], [8, 16, 3, 3], s1),
        ([2, 8, 7, 5], [6, 8, 2, 3], Conv::default()),
        ([2, 6, 13, 10], [5, 6, 3, 2], Conv { stride: [2; 2], ..s1 }),
        // Phases that would be products of their own.
        ([2, 16, 8, 6], [16, 16, 3, 3], Conv { stride: [2; 2], ..s1 }),
        ([2, 3, 8, 6], [9, 3, 1, 1], Conv { stride: [2; 2], ..Conv::default() }),
        // Neither windows nor zeros around: products as they lie.
        ([2, 5, 4, 4], [3, 5, 1, 1], Conv::default()),
        ([1, 4, 12, 9], [6, 4, 3, 3], Conv { dilation: [2, 1], padding: [2; 2].into(), ..s1 }),
        ([2, 4, 11, 9], [6, 4, 2, 2], Conv { dilation: [2; 2], stride: [3, 2], ..s1 }),
        ([2, 8, 6, 6], [8, 4, 3, 3], Conv { groups: 2, ..s1 }),
        // Zeros beyond what a kernel reaches, and elements that no kernel sees.
        ([1, 4, 5, 5], [4, 4, 2, 2], Conv { padding: [3; 2].into(), ..s1 }),
        ([3, 4, 10, 11], [4, 4, 2, 2], Conv { stride: [4; 2], ..Conv::default() }),
        // Rows enough for f32, forward and backward.
        ([2, 5, 6, 9], [130, 5, 3, 3], s1),
        ([2, 131, 8, 6], [3, 131, 3, 3], Conv { stride: [2; 2], ..s1 }),
    ];
    let all = [(DType::F16, 4e-3), (DType::F32, 1e-5), (DType::BF16, 3e-2)];
    for (x, w, how) in cases {
        for (dtype, tolerance) in &all[..if on.is_slow() { 1 } else { 3 }] {
            agree(&ctx, &Case { x, w, how, dtype: *dtype, layout: 0 }, *tolerance);
        }
    }
    if on.is_vulkan() {
        halves_stay_halves(on);
    }
}

/// A convolution to compare with the oracle's.
#[derive(Debug)]
struct Case {
    x: [usize; 4],
    w: [usize; 4],
    how: Conv<2>,
    dtype: DType,
    /// How the operand lies: as it is, with its axes turned, or every other element of a larger one.
    layout: usize,
}

impl Case {
    /// The result, the three gradients, and the gradients of their size.
    fn run(&self, ctx: &Context) -> Vec<Vec<f64>> {
        ctx.pass(|p| {
            let given = |dims: &[usize], by: f32| {
                let n: usize = dims.iter().product();
                floats(p, dims, &(0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<_>>()).cast(self.dtype)
            };
            let [n, c, h, w] = self.x;
            let x = match self.layout {
                0 => given(&self.x, 0.37),
                1 => given(&[h, w, n, c], 0.37).permute([2, 3, 0, 1]),
                _ => given(&[n, c + 1, 2 * h, w], 0.37).narrow(1, 1, c).slice_step(2, 1.., 2),
            };
            let (w, b) = (given(&self.w, 0.61), given(&self.w[..1], 0.83));
            let y = x.conv2d(w, Some(b), self.how);
            let d = vjp(&[y], &[given(y.shape().dims(), 0.29)], &[x, w, b])?;
            // The gradient of the gradients' size meets each rule once more.
            let twice = grad((d[0].square().sum(..) + d[1].square().sum(..)) * 0.01, &[x, w])?;
            let all = [&[y][..], &d, &twice].concat();
            p.compute(&all)?;
            all.iter().map(|y| y.to_vec::<f64>()).collect::<wgrad::Result<Vec<_>>>()
        })
        .unwrap()
    }
}

fn agree(ctx: &Context, case: &Case, tolerance: f64) {
    for (which, (got, want)) in case.run(ctx).iter().zip(&case.run(&oracle())).enumerate() {
        assert_eq!(got.len(), want.len());
        let scale = want.iter().fold(1e-30_f64, |m, w| m.max(w.abs()));
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() <= tolerance * scale, "{case:?}, {which}: {g}, not {w}");
        }
    }
}

/// Convolutions of random sizes, with every path and as the device takes them by itself.
fn random_convolutions(on: &Subject) {
    if on.is_oracle() {
        return;
    }
    let all = Context::new(on.lowered(|caps| caps.off = Off::default())).unwrap();
    let own = on.context();
    let mut seed = 41_u64;
    let mut draw = |from: usize, to: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (seed >> 33) as usize % (to + 1 - from)
    };
    let count = if on.is_slow() { 3 } else { [24, 200][usize::from(full())] };
    let mut tried = 0;
    while tried < count {
        let groups = [1, 1, 1, 2, 3][draw(0, 4)];
        // As few as are no vector, and rows enough for f32.
        let [c, m] = [0; 2].map(|_| if draw(0, 5) == 0 { 126 / groups + draw(0, 9) } else { draw(1, 9) });
        let (padding, dilation) = ([draw(0, 3), draw(0, 3)], [draw(1, 2), draw(1, 2)]);
        let how = Conv { stride: [draw(1, 3), draw(1, 3)], padding: padding.into(), dilation, groups };
        let x = [draw(1, 4), c * groups, draw(1, 12), draw(1, 12)];
        let w = [m * groups, c, draw(1, 4), draw(1, 4)];
        let half = draw(0, 1) == 0;
        let (dtype, tolerance) = if half { (DType::F16, 4e-3) } else { (DType::F32, 1e-5) };
        let fits = |axis: usize| x[2 + axis] + 2 * padding[axis] > (w[2 + axis] - 1) * dilation[axis];
        if !fits(0) || !fits(1) {
            continue;
        }
        let case = Case { x, w, how, dtype, layout: draw(0, 2) };
        for ctx in [&all, &own] {
            agree(ctx, &case, tolerance);
        }
        tried += 1;
    }
}

/// Where products take halves as they lie, those of a convolution and its gradients do.
fn halves_stay_halves(on: &Subject) {
    let ctx =
        Context::new(on.lowered(|caps| (caps.off, caps.half_factors) = (Off::default(), true))).unwrap();
    ctx.pass(|p| {
        let given = |dims: &[usize]| (ramp(p, dims) * 1e-3).cast(DType::F16);
        let (x, w, g) = (given(&[2, 8, 12, 12]), given(&[4, 8, 3, 3]), given(&[2, 4, 12, 12]));
        let y = x.conv2d(w, None, Conv { padding: [1; 2].into(), ..Conv::default() });
        let d = vjp(&[y], &[g], &[x, w])?;
        p.compute(&[y, d[0], d[1]])
    })
    .unwrap();
    let plan = ctx.last_plan().unwrap();
    let factors: Vec<DType> = (plan.steps.iter())
        .filter_map(|step| match &step.group.kind {
            Kind::MatMul { a, b } => Some([a.0, b.0].map(|at| step.group.operands[usize::from(at)])),
            _ => None,
        })
        .flatten()
        .map(|val| plan.graph.out(val).dtype)
        .collect();
    assert_eq!(factors, [DType::F16; 6], "{plan}");
}
