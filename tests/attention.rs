//! Attention as a leaf: its kernels on every device against the oracle, which runs the definition. On software
//! drivers the limits are those of a GPU's kind, so that the kernels made for GPUs run there too.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Attention, Context, DType, DeviceKind, Fast, HostTensor, Off, Pass, Result, Tensor, vjp};
use wgrad_graph::Kind;

use crate::Subject;
use crate::devices::oracle;

crate::suite![
    plain: memory_is_linear_in_the_length;
    device: results_and_gradients, halves, masks, heads_lie_anywhere, the_path_can_be_switched_off,
        more_workgroups_than_an_axis_takes, large_scores,
];

/// Whether the device is a driver on the CPU, which compiles each kernel for seconds.
fn is_software(subject: &Subject) -> bool {
    subject.is_vulkan() && subject.backend().caps().kind == DeviceKind::SoftwareGpu
}

/// A context whose device takes the kernels of GPUs.
fn context(subject: &Subject) -> Context {
    if !subject.is_vulkan() {
        return subject.context();
    }
    Context::new(subject.lowered(|caps| {
        if caps.kind == DeviceKind::SoftwareGpu {
            caps.kind = DeviceKind::OtherGpu;
        }
    }))
    .unwrap()
}

fn numbers(p: &Pass, dims: &[usize], of: usize, dtype: DType) -> Result<Tensor> {
    let value = |i: usize| ((i * 37 + of * 11 + i / 7) % 101) as f32 / 40.0 - 1.25;
    let elems: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    p.input(HostTensor::new(dims, &elems)?.cast(dtype))
}

/// Batch, heads, heads of keys, queries, keys, features, features of values.
type Size = [usize; 7];

#[derive(Copy, Clone, Debug, PartialEq)]
enum Mask {
    None,
    /// The same for all heads; one query sees nothing.
    Truth,
    /// One for each head, the same for all queries; some keys are hidden.
    Added(DType),
}

#[derive(Copy, Clone, Debug)]
struct Case {
    size: Size,
    causal: bool,
    mask: Mask,
    dtype: DType,
    /// Whether time stands before heads in memory.
    turned: bool,
}

impl Case {
    fn of(size: Size, causal: bool) -> Case {
        Case { size, causal, mask: Mask::None, dtype: DType::F32, turned: false }
    }

    /// The result, and the gradients of queries, keys and values.
    fn run(&self, ctx: &Context) -> Vec<Vec<f64>> {
        let [b, h, g, l, s, d, e] = self.size;
        ctx.pass(|p| {
            let one = |dims: [usize; 4], of: usize| {
                let [x, y, z, w] = dims;
                if !self.turned {
                    return numbers(p, &dims, of, self.dtype);
                }
                numbers(p, &[x, z, y, w], of, self.dtype)?.try_transpose(1, 2)
            };
            let x = [one([b, h, l, d], 1)?, one([b, g, s, d], 2)?, one([b, g, s, e], 3)?];
            let mask = match self.mask {
                Mask::None => None,
                Mask::Truth => {
                    let seen: Vec<bool> = (0..l * s).map(|i| i / s != l / 2 && i * 7 % 5 != 0).collect();
                    Some(p.input(HostTensor::new([l, s], &seen)?)?)
                }
                Mask::Added(dtype) => {
                    let added =
                        |i: usize| if i % 4 == 1 { f32::NEG_INFINITY } else { (i % 16) as f32 / 8.0 - 1.0 };
                    let all: Vec<f32> = (0..h * s).map(added).collect();
                    Some(p.input(HostTensor::new([h, 1, s], &all)?.cast(dtype))?)
                }
            };
            let options = Attention { causal: self.causal, mask, ..Attention::default() };
            let y = x[0].try_scaled_dot_product_attention(x[1], x[2], options)?;
            let dx = vjp(&[y], &[one([b, h, l, e], 4)?], &x)?;
            [y].into_iter().chain(dx).map(|x| x.to_vec::<f64>()).collect()
        })
        .unwrap()
    }

    #[track_caller]
    fn check(&self, ctx: &Context, tolerance: f64) {
        for (i, (got, want)) in self.run(ctx).iter().zip(self.run(&oracle())).enumerate() {
            assert_eq!(got.len(), want.len());
            let largest = want.iter().fold(1.0f64, |m, w| m.max(w.abs()));
            for (n, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= tolerance * largest, "{self:?}: value {i}[{n}] is {g}, not {w}");
            }
        }
    }
}

fn results_and_gradients(subject: &Subject) {
    if subject.is_slow() {
        return;
    }
    let ctx = context(subject);
    let sizes: &[Size] = &[
        [2, 4, 2, 70, 131, 5, 3],
        [1, 2, 2, 67, 65, 64, 64],
        [1, 2, 1, 130, 70, 80, 32],
        [1, 1, 1, 17, 3, 256, 250],
        [1, 1, 1, 65, 66, 1, 1],
        [1, 3, 1, 16, 200, 8, 8],
        [3, 1, 1, 64, 64, 36, 100],
    ];
    let software = is_software(subject);
    for size in &sizes[..if software { 2 } else { sizes.len() }] {
        for causal in [false, true] {
            if software && causal != (size[5] == 64) {
                continue;
            }
            Case::of(*size, causal).check(&ctx, 2e-5);
        }
    }
}

fn halves(subject: &Subject) {
    if subject.is_slow() {
        return;
    }
    let ctx = context(subject);
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
        for (turned, d) in [(false, 12), (true, 7)] {
            if is_software(subject) && (turned || dtype == DType::BF16) {
                continue;
            }
            Case { dtype, turned, ..Case::of([1, 2, 1, 19, 70, d, 5], true) }.check(&ctx, tolerance);
        }
        // Where the adapter has units for matrices, they multiply these.
        for (size, turned, mask) in [
            ([2, 4, 2, 131, 70, 64, 64], false, Mask::None),
            ([1, 2, 2, 67, 150, 32, 40], true, Mask::Truth),
            ([1, 2, 1, 70, 133, 128, 96], true, Mask::Added(DType::F32)),
            ([2, 3, 3, 16, 260, 64, 36], false, Mask::Added(DType::F16)),
        ] {
            for causal in [false, true] {
                if !is_software(subject) {
                    Case { dtype, turned, mask, ..Case::of(size, causal) }.check(&ctx, tolerance);
                }
            }
        }
    }
}

fn masks(subject: &Subject) {
    if subject.is_slow() {
        return;
    }
    let ctx = context(subject);
    for mask in [Mask::Truth, Mask::Added(DType::F32), Mask::Added(DType::F16)] {
        for causal in [false, true] {
            for size in [[2, 4, 2, 19, 70, 6, 6], [1, 2, 2, 66, 9, 64, 64]] {
                if is_software(subject) && (causal || size[0] == 1 || mask != Mask::Added(DType::F32)) {
                    continue;
                }
                Case { mask, ..Case::of(size, causal) }.check(&ctx, 2e-5);
            }
        }
    }
}

fn heads_lie_anywhere(subject: &Subject) {
    if is_software(subject) {
        return;
    }
    let ctx = context(subject);
    // One projection holds queries, keys and values of all heads.
    let run = |ctx: &Context| {
        ctx.pass(|p| {
            let (b, t, h, d) = (2, 67, 3, 8);
            let x = numbers(p, &[b, t, 3 * h * d], 5, DType::F32)?;
            let part = |n: usize| x.narrow(-1, n * h * d, h * d).reshape([b, t, h, d]).transpose(1, 2);
            let y = part(0).scaled_dot_product_attention(
                part(1),
                part(2),
                Attention { causal: true, ..Default::default() },
            );
            let y = y.transpose(1, 2).flatten(-2);
            let dx = vjp(&[y], &[numbers(p, &[b, t, h * d], 6, DType::F32)?], &[x])?[0];
            Ok([y.to_vec::<f64>()?, dx.to_vec::<f64>()?])
        })
        .unwrap()
    };
    for (got, want) in run(&ctx).iter().zip(run(&oracle())) {
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= 3e-5, "{g}, not {w}");
        }
    }
}

/// Whether the newest plan has a kernel of attention.
fn is_leaf(ctx: &Context) -> bool {
    let plan = ctx.last_plan().unwrap();
    plan.steps.iter().any(|step| matches!(step.group.kind, Kind::Attention(..)))
}

fn the_path_can_be_switched_off(subject: &Subject) {
    let case = Case::of([2, 2, 1, 17, 7, 4, 3], true);
    let off = Context::new(subject.without(Off::default().with(Fast::FlashAttention))).unwrap();
    case.check(&off, 2e-5);
    assert!(!is_leaf(&off));
    let on = subject.context();
    case.check(&on, 2e-5);
    assert_eq!(is_leaf(&on), !subject.is_oracle() && !is_software(subject));
}

fn more_workgroups_than_an_axis_takes(subject: &Subject) {
    if !subject.is_vulkan() || subject.is_slow() {
        return;
    }
    let ctx = Context::new(subject.lowered(|caps| {
        (caps.kind, caps.max_workgroups) = (DeviceKind::OtherGpu, 8);
    }))
    .unwrap();
    Case::of([30, 1, 1, 16, 2, 2, 2], false).check(&ctx, 2e-5);
}

fn large_scores(subject: &Subject) {
    if is_software(subject) {
        return;
    }
    let ctx = context(subject);
    let y = ctx
        .pass(|p| {
            let signs: Vec<f32> = (0..32).map(|i| if i % 2 == 0 { 300.0 } else { -300.0 }).collect();
            let q = p.input(HostTensor::new([32, 1], &signs)?)?;
            let k = p.input(HostTensor::new([3, 1], &[1000.0f32, 999.0, -1000.0])?)?;
            let v = p.input(HostTensor::new([3, 1], &[1.0f32, 2.0, 3.0])?)?;
            q.try_scaled_dot_product_attention(k, v, Attention::default())?.to_vec::<f64>()
        })
        .unwrap();
    assert_eq!(y, [1.0, 3.0].repeat(16));
}

fn memory_is_linear_in_the_length() {
    let ctx = crate::devices::cpu();
    let workspace = |t: usize| {
        Case::of([1, 1, 1, t, t, 4, 4], true).run(&ctx);
        ctx.last_plan().unwrap().workspace_bytes
    };
    let (short, long) = (workspace(256), workspace(1024));
    assert!(long <= 4 * short + 4096, "{short} bytes, then {long}");
}
