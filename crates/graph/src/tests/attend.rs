//! Attention as a leaf: which operands it reads where they lie, and what memory it takes.

use super::*;
use crate::{Attend, Binary, Kind, Unary};

const PLAIN: Attend = Attend { causal: true, masked: false, scaled: true };

/// Forward and gradient of `[B, T, H, D]` projections whose heads are moved before time.
fn step(s: &mut Sketch, [b, t, h, d]: [usize; 4]) -> Vec<Val> {
    let qkv = s.x(&[b * t, 3 * h * d]);
    let qkv = s.un(Unary::Exp, qkv);
    let part = |s: &mut Sketch, n: usize| {
        let mut steps = crate::Steps::ALL;
        steps.start[1] = (n * h * d) as i64;
        let x = s.to(Op::Slice(steps), &[qkv], &[b * t, h * d]);
        let x = s.reshape(x, &[b, t, h, d]);
        s.permute(x, &[0, 2, 1, 3])
    };
    let (q, k, v) = (part(s, 0), part(s, 1), part(s, 2));
    let o = s.op(Op::Attention(PLAIN), &[q, k, v]);
    let lse = Val { out: 1, ..o };
    let w = s.x(&[b, t, h, d]);
    let w = s.un(Unary::Exp, w);
    let g = s.permute(w, &[0, 2, 1, 3]);
    let delta = s.bin(Binary::Mul, o, g);
    let delta = s.reduce(crate::Reduce::Sum, delta, &[3]);
    let delta = s.reshape(delta, &[b, h, t]);
    let dq = s.op(Op::AttentionGrad(PLAIN), &[q, k, v, g, lse, delta]);
    let mut out = vec![o];
    out.extend([0, 1, 2].map(|out| Val { out, ..dq }));
    out
}

#[test]
fn transposed_heads_are_read_where_they_lie() {
    let mut s = Sketch::new();
    let outs = step(&mut s, [2, 5, 3, 4]);
    for options in [FUSED, Options { fuse: false, ..FUSED }] {
        let plan = planned(&s, &outs, &options);
        let names: Vec<_> = plan.steps.iter().map(|s| s.group.to_string()).collect();
        let kernels = plan.steps.iter().filter(|s| matches!(s.group.kind, Kind::Attention(..))).count();
        assert_eq!(kernels, 2, "{names:?}");
        if options.fuse {
            // What is projected, its twin for the gradient with the sum of products, and the two kernels.
            assert_eq!(plan.steps.len(), 4, "{plan}");
        }
        verify(&s, &plan, 3);
    }
}

#[test]
fn an_operand_that_is_no_strided_view_is_materialised() {
    let mut s = Sketch::new();
    let q = s.x(&[1, 6, 4]);
    let q = s.permute(q, &[0, 2, 1]);
    let q = s.reshape(q, &[1, 2, 3, 4]);
    let k = s.x(&[1, 1, 5, 4]);
    let mask = s.input(&[3, 1], DType::Bool);
    let mask = s.like(mask, &[1, 2, 3, 5]);
    let o = s.op(Op::Attention(Attend { masked: true, ..PLAIN }), &[q, k, k, mask]);
    let plan = planned(&s, &[o], &FUSED);
    assert_eq!(plan.steps.len(), 2, "{plan}");
    verify(&s, &plan, 5);
}

#[test]
fn memory_is_linear_in_the_length() {
    let peak = |t: usize| {
        let mut s = Sketch::new();
        let outs = step(&mut s, [1, t, 2, 8]);
        planned(&s, &outs[1..], &FUSED).workspace_bytes
    };
    let (short, long) = (peak(1 << 10), peak(1 << 14));
    assert!(long <= 16 * short + 4096, "{short} bytes, then {long}");
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let mut s = Sketch::new();
    let q = s.x(&[2, 4, 3, 8]);
    let k = s.x(&[2, 2, 5, 8]);
    let lse = s.x(&[2, 4, 3]);
    let wrong = [
        (vec![q, k], "takes 3 operands"),
        (vec![q, k, q], "do not fit"),
        (vec![k, q, q], "do not fit"),
        (vec![q, lse, k], "do not fit"),
    ];
    for (ins, why) in wrong {
        let error = s.graph.add(Op::Attention(PLAIN), &ins, None, None).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let error = s.graph.add(Op::AttentionGrad(PLAIN), &[q, k, k, k, lse, lse], None, None).unwrap_err();
    assert!(error.to_string().contains("of a result"), "{error}");
    let ids = s.input(&[2, 4, 3, 5], DType::I32);
    let masked = Attend { masked: true, ..PLAIN };
    let error = s.graph.add(Op::Attention(masked), &[q, k, k, ids], None, None).unwrap_err();
    assert!(error.to_string().contains("mask"), "{error}");
}
