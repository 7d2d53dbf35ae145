//! Products of convolutions over values with their channels last, as `channels_last` of autograd records them.

use wgrad_graph::{MAX_RANK, Perm};

use super::*;

fn permuted(s: &mut Sketch, x: Val, order: &[usize]) -> Val {
    let mut perm = Perm::default();
    order.iter().enumerate().for_each(|(i, axis)| perm[i] = *axis as u8);
    s.op(Op::Permute(perm), &[x])
}

/// `[n, c, h, w]` with so many zeros around, stored with whole vectors of channels last.
fn laid(s: &mut Sketch, x: Val, around: usize, wide: bool) -> Val {
    let x = permuted(s, x, &[0, 2, 3, 1]);
    let from = s.graph.out(x).shape;
    let to = [from[0], from[1] + 2 * around, from[2] + 2 * around, from[3].next_multiple_of(4)];
    let mut lo = [0; MAX_RANK];
    (lo[1], lo[2]) = (around as u32, around as u32);
    let x = if to[..] == *from.dims() { x } else { s.to(Op::Pad { lo }, &[x], &to) };
    let x = s.to(Op::Pad { lo: [0; MAX_RANK] }, &[x], &to);
    if wide { s.cast(x, DType::F32) } else { x }
}

/// `[n, y, x, c, ky, kx]` of 3 by 3.
fn seen(s: &mut Sketch, x: Val, step: u32) -> Val {
    let windows = |axis| Op::Windows { axis, size: 3, step, dilation: 1 };
    let x = s.op(windows(1), &[x]);
    s.op(windows(2), &[x])
}

/// A convolution by 3 by 3 with a zero around, or the gradient of its weight.
fn sketch([n, c, h, w]: [usize; 4], m: usize, step: u32, dtype: DType, gradient: bool) -> Sketch {
    let mut s = Sketch::default();
    let half = dtype.is_half();
    let x = s.input(&[n, c, h, w], dtype);
    let x = laid(&mut s, x, 1, half);
    let all = seen(&mut s, x, step);
    let dims = s.graph.out(all).shape;
    let (places, held) = (n * dims[1] * dims[2], 9 * dims[3]);
    let y = if gradient {
        let g = s.input(&[n, m, dims[1], dims[2]], dtype);
        let g = if half { s.cast(g, DType::F32) } else { g };
        let g = permuted(&mut s, g, &[1, 0, 2, 3]);
        let g = s.to(Op::Reshape, &[g], &[m, places]);
        let all = permuted(&mut s, all, &[0, 1, 2, 4, 5, 3]);
        let all = s.to(Op::Reshape, &[all], &[places, held]);
        let y = s.op(Op::MatMul, &[g, all]);
        let y = s.to(Op::Reshape, &[y], &[m, 3, 3, dims[3]]);
        permuted(&mut s, y, &[0, 3, 1, 2])
    } else {
        let k = s.input(&[m, c, 3, 3], dtype);
        let k = laid(&mut s, k, 0, half);
        let k = s.to(Op::Reshape, &[k], &[m, held]);
        let all = permuted(&mut s, all, &[4, 5, 3, 0, 1, 2]);
        let all = s.to(Op::Reshape, &[all], &[held, places]);
        let y = s.op(Op::MatMul, &[k, all]);
        let y = s.to(Op::Reshape, &[y], &[m, n, dims[1], dims[2]]);
        permuted(&mut s, y, &[1, 0, 2, 3])
    };
    s.roots = vec![if half { s.cast(y, dtype) } else { y }];
    s
}

/// The texts of a convolution's product on units, checked, and how many kernels come before it.
fn on_units(s: &Sketch) -> (usize, Vec<String>) {
    let caps = with_units();
    let plan = s.plan(&caps, true);
    let all = launches(&plan, &caps);
    let texts = all.iter().map(|l| l.source.clone()).filter(|t| t.contains("coopMultiplyAdd"));
    for text in texts.clone() {
        let arrays = units::workgroup_arrays(&text);
        assert!(arrays.iter().sum::<usize>() <= caps.shared_bytes);
        assert!(arrays.iter().all(|bytes| bytes % 16 == 0), "{arrays:?}");
    }
    (plan.steps.len() - 1, texts.collect())
}

/// Both factors of the products at hand are vectors of halves or of f32, and each is stored by a kernel of its own.
#[test]
fn convolutions_of_vectors_run_on_units() {
    for (dtype, vector) in [(DType::F16, "array<vec4<f16>>;"), (DType::F32, "array<vec4<f32>>;")] {
        for gradient in [false, true] {
            let sizes = [32, 64, 56, 56];
            let (before, texts) = on_units(&sketch(sizes, 64, 1, dtype, gradient));
            assert_eq!(before, if gradient { 1 } else { 2 }, "{dtype} {gradient}");
            let [text] = &texts[..] else { panic!("{} products of {dtype}, {gradient}", texts.len()) };
            assert!((0..2).all(|b| text.contains(&format!("b{b}: {vector}"))), "{text}");
            // Places are digits of K: their divisions are done once a step, not by every invocation for each vector.
            assert_eq!(text.contains("tbk[bat + "), gradient && dtype == DType::F16, "{text}");
        }
    }
}

/// Sizes that are no vectors, strides, few channels: whatever the kernel, its text is valid.
#[test]
fn convolutions_of_every_size_are_valid() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for gradient in [false, true] {
            for (sizes, m, step) in [
                ([3, 5, 9, 11], 7, 1),
                ([2, 64, 7, 7], 130, 1),
                ([4, 32, 20, 24], 64, 2),
                ([16, 3, 64, 64], 64, 1),
            ] {
                on_units(&sketch(sizes, m, step, dtype, gradient));
            }
        }
    }
}
