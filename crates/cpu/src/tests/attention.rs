//! Attention and its gradients as leaves, in every option, against the oracle's weights.

use wgrad_graph::{Attend, Op, Shape, bf16, f16};

use super::*;

/// Which mask there is.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Mask {
    None,
    /// One for all heads, with a query that sees nothing.
    Truth,
    /// One a head, with hidden keys, for all queries.
    Added,
}

fn half<T: Element + Copy>(s: &mut Sketch, dims: &[usize], seed: u64, round: impl Fn(f32) -> T) -> Val {
    let mut below = rng(seed);
    let mut one = || round(below(1 << 12) as f32 / (1 << 10) as f32 - 2.0);
    let data: Vec<T> = (0..dims.iter().product()).map(|_| one()).collect();
    s.input(dims, &data)
}

/// The results of an attention and of its gradients, with time before heads in memory where `turned`.
fn attention(
    s: &mut Sketch,
    [b, h, g, l, n, d, e]: [usize; 7],
    attend: Attend,
    mask: Mask,
    turned: bool,
    dtype: DType,
) -> Vec<Val> {
    let part = |s: &mut Sketch, dims: [usize; 4], seed: u64| {
        let [x, y, z, w] = dims;
        let dims = if turned { [x, z, y, w] } else { dims };
        let v = match dtype {
            DType::F16 => half(s, &dims, seed, f16::from_f32),
            DType::BF16 => half(s, &dims, seed, bf16::from_f32),
            _ => s.x(&dims, seed),
        };
        if turned { s.permute(v, &[0, 2, 1, 3]) } else { v }
    };
    let mut ins = vec![part(s, [b, h, l, d], 1), part(s, [b, g, n, d], 2), part(s, [b, g, n, e], 3)];
    let attend = Attend { masked: mask != Mask::None, ..attend };
    match mask {
        Mask::None => {}
        Mask::Truth => {
            let seen: Vec<bool> = (0..l * n).map(|i| i / n != l / 2 && i * 7 % 5 != 0).collect();
            let m = s.input(&[l, n], &seen);
            ins.push(s.like(m, &[b, h, l, n]));
        }
        Mask::Added => {
            let added = |i: usize| if i % 4 == 1 { f32::NEG_INFINITY } else { i as f32 * 0.01 - 1.0 };
            let m = s.input(&[h, 1, n], &(0..h * n).map(added).collect::<Vec<_>>());
            ins.push(s.like(m, &[b, h, l, n]));
        }
    }
    let y = s.op(Op::Attention(attend), &ins);
    let lse = Val { out: 1, ..y };
    let dout = part(s, [b, h, l, e], 4);
    let wide = s.cast(dout, DType::F32);
    let delta = s.bin(Binary::Mul, y, wide);
    let delta = s.reduce(Reduce::Sum, delta, &[3]);
    let delta = s.to(Op::Reshape, &[delta], &[b, h, l]);
    ins.extend([dout, lse, delta]);
    let dq = s.op(Op::AttentionGrad(attend), &ins);
    vec![y, lse, dq, Val { out: 1, ..dq }, Val { out: 2, ..dq }]
}

const PLAIN: Attend = Attend { causal: false, masked: false, scaled: true };

#[test]
fn every_option_agrees_with_the_oracle() {
    let sizes = [
        [2, 4, 2, 5, 7, 3, 6],
        [1, 3, 3, 7, 5, 4, 4],
        [2, 2, 1, 1, 9, 8, 1],
        [1, 1, 1, 130, 1, 5, 3],
        [1, 2, 2, 131, 530, 9, 7],
    ];
    for (n, size) in sizes.into_iter().enumerate() {
        for causal in [false, true] {
            for mask in [Mask::None, Mask::Truth, Mask::Added] {
                let turned = (n + usize::from(causal)).is_multiple_of(2);
                let mut s = Sketch::default();
                let attend = Attend { causal, scaled: n != 1, ..PLAIN };
                let outs = attention(&mut s, size, attend, mask, turned, DType::F32);
                s.check(&outs, 2e-5);
            }
        }
    }
}

#[test]
fn head_sizes() {
    for d in [1, 3, 64, 80, 256] {
        let mut s = Sketch::default();
        let attend = Attend { causal: d == 80, ..PLAIN };
        let outs = attention(&mut s, [1, 2, 1, 3, 4, d, d], attend, Mask::None, d == 64, DType::F32);
        s.check(&outs, 2e-5);
    }
}

#[test]
fn halves_are_summed_in_f32() {
    for (dtype, turned) in [(DType::F16, false), (DType::BF16, true)] {
        let mut s = Sketch::default();
        let outs = attention(&mut s, [2, 4, 2, 5, 7, 6, 3], PLAIN, Mask::Truth, turned, dtype);
        s.check(&outs, 2e-5);
    }
}

#[test]
fn nothing_to_attend_to() {
    for size in [
        [0, 2, 2, 3, 3, 4, 4],
        [2, 2, 1, 0, 3, 4, 4],
        [2, 2, 1, 3, 0, 4, 4],
        [1, 2, 2, 3, 3, 0, 2],
        [1, 2, 2, 3, 3, 2, 0],
    ] {
        for causal in [false, true] {
            let mut s = Sketch::default();
            let outs = attention(&mut s, size, Attend { causal, ..PLAIN }, Mask::None, false, DType::F32);
            s.check(&outs, 2e-5);
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let mut s = Sketch::default();
    let q = s.input(&[1, 1, 2, 1], &[300.0f32, -300.0]);
    let k = s.input(&[1, 1, 3, 1], &[1000.0f32, 999.0, -1000.0]);
    let v = s.input(&[1, 1, 3, 1], &[1.0f32, 2.0, 3.0]);
    let y = s.op(Op::Attention(Attend { scaled: false, ..PLAIN }), &[q, k, v]);
    s.check(&[y], 1e-6);
}

#[test]
fn few_heads_and_many_give_the_same_bits() {
    // One pair of heads is shared by threads, of many each takes some.
    let run = |heads: usize| {
        let mut s = Sketch::default();
        let (l, d) = (300, 32);
        let one = |s: &mut Sketch, seed: u64| {
            let x = s.x(&[1, 1, l, d], seed);
            s.to(Op::Expand, &[x], &[1, heads, l, d])
        };
        let [q, k, v, g] = [1, 2, 3, 4].map(|seed| one(&mut s, seed));
        let causal = Attend { causal: true, ..PLAIN };
        let y = s.op(Op::Attention(causal), &[q, k, v]);
        let delta = s.bin(Binary::Mul, y, g);
        let delta = s.reduce(Reduce::Sum, delta, &[3]);
        let delta = s.to(Op::Reshape, &[delta], &[1, heads, l]);
        let dq = s.op(Op::AttentionGrad(causal), &[q, k, v, g, Val { out: 1, ..y }, delta]);
        let cpu = Cpu::new();
        let roots = [y, dq, Val { out: 1, ..dq }, Val { out: 2, ..dq }].map(|val| Root { val, into: None });
        s.run(&cpu, &s.plan(&cpu, &roots, &[], true)).unwrap()
    };
    for (few, many) in run(1).iter().zip(run(16)) {
        many.chunks(few.len()).for_each(|head| assert!(head == &few[..]));
    }
}

#[test]
fn shapes_name_the_sizes() {
    let heads = wgrad_graph::Heads::of([2, 6, 5, 8].into(), [2, 3, 7, 8].into(), Shape::from([2, 3, 7, 4]));
    assert_eq!((heads.shared(), heads.pairs(false), heads.pairs(true)), (2, 12 * 35, 12 * 15));
}
