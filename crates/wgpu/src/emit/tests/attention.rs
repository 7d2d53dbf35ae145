//! Attention in every option: which operands, layouts, head sizes and limits there are tells its texts apart.

use std::collections::BTreeSet;

use super::options::{Family, axes_swapped, limits, limits_for};
use super::units::workgroup_arrays;
use super::*;
use wgrad_graph::{Attend, Fast, Kind, Reduce};

/// Attention and its gradients, with heads before or after time in memory.
fn sketch(
    [b, h, g, l, n, d, e]: [usize; 7],
    attend: Attend,
    mask: DType,
    dtype: DType,
    turned: bool,
) -> Sketch {
    let mut s = Sketch::default();
    let part = |s: &mut Sketch, [x, y, z, w]: [usize; 4]| {
        if !turned {
            return s.input(&[x, y, z, w], dtype);
        }
        let v = s.input(&[x, z, y, w], dtype);
        s.op(axes_swapped(1, 2), &[v])
    };
    let mut ins = vec![part(&mut s, [b, h, l, d]), part(&mut s, [b, g, n, d]), part(&mut s, [b, g, n, e])];
    if attend.masked {
        let m = s.input(&[1, 1, l, n], mask);
        ins.push(s.to(Op::Expand, &[m], &[b, h, l, n]));
    }
    let y = s.op(Op::Attention(attend), &ins);
    let dout = part(&mut s, [b, h, l, e]);
    let wide = s.cast(dout, DType::F32);
    let delta = s.op(Op::Binary(wgrad_graph::Binary::Mul), &[y, wide]);
    let axes = wgrad_graph::Axes::NONE.with(3);
    let delta = s.op(Op::Reduce { kind: Reduce::Sum, axes }, &[delta]);
    let delta = s.to(Op::Reshape, &[delta], &[b, h, l]);
    ins.extend([dout, Val { out: 1, ..y }, delta]);
    let dq = s.op(Op::AttentionGrad(attend), &ins);
    s.roots = vec![y, dq, Val { out: 1, ..dq }, Val { out: 2, ..dq }];
    s
}

const PLAIN: Attend = Attend { causal: false, masked: false, scaled: true };

fn is_attention(kind: &Kind) -> bool {
    matches!(kind, Kind::Attention(..))
}

#[test]
fn every_option() {
    let mut family = Family::default();
    for (d, e) in [(64, 64), (5, 3), (128, 64), (250, 256)] {
        for causal in [false, true] {
            for (masked, mask) in
                [(false, DType::Bool), (true, DType::Bool), (true, DType::F32), (true, DType::F16)]
            {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    // Operands and masks are told apart on their own.
                    let plain = dtype == DType::F32 || !masked && d == 5 && causal;
                    if !plain || masked && (d != 5 || mask == DType::F16 && causal) {
                        continue;
                    }
                    let attend = Attend { causal, masked, ..PLAIN };
                    let size = [2, 6, 3, 70, 131, d, e];
                    let s = sketch(size, attend, mask, dtype, d == 5);
                    for caps in limits_for(&s.graph) {
                        family.add_plan(&s.plan(&caps, true), &caps, is_attention);
                    }
                }
            }
        }
    }
    family.has(40, &["wg_from_f16", "wg_from_bf16", "var<workgroup> red", "vec4<f32>>"]);
}

fn texts(sketch: &Sketch, caps: &Caps) -> Vec<Launch> {
    let plan = sketch.plan(caps, true);
    let steps = plan.steps.iter().filter(|s| is_attention(&s.group.kind));
    steps.flat_map(|s| lower(s, &plan.graph, &plan.scalars, caps).unwrap().launches).collect()
}

#[test]
fn texts_do_not_depend_on_lengths_and_places() {
    let caps = gpu();
    let of = |size, turned| -> BTreeSet<String> {
        texts(&sketch(size, PLAIN, DType::Bool, DType::F32, turned), &caps)
            .into_iter()
            .map(|l| l.source)
            .collect()
    };
    let one = of([2, 6, 3, 70, 131, 64, 64], false);
    assert_eq!(one.len(), 3);
    assert_eq!(one, of([5, 4, 4, 1000, 64, 48, 40], true));
    // Features that are not whole fours move one by one.
    assert_ne!(one, of([2, 6, 3, 70, 131, 63, 64], false));
}

#[test]
fn long_work_is_cut_and_all_of_it_is_done() {
    let caps = gpu();
    let launches =
        texts(&sketch([8, 16, 16, 20_000, 20_000, 64, 64], PLAIN, DType::Bool, DType::F32, false), &caps);
    let result: Vec<_> = launches.iter().filter(|l| l.source == launches[0].source).collect();
    assert!(result.len() > 10, "{} launches", result.len());
    let groups: u64 = result.iter().map(|l| l.grid.iter().map(|n| u64::from(*n)).product::<u64>()).sum();
    assert!(groups >= 8 * 16 * 313, "{groups}");
    assert!(result.iter().all(|l| l.cost_flops < 300_000_000_000), "{}", result[0].cost_flops);
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |size, caps: &Caps| {
        let s = sketch(size, PLAIN, DType::Bool, DType::F32, false);
        let plan = s.plan(caps, true);
        let step = plan.steps.iter().find(|s| is_attention(&s.group.kind)).unwrap();
        lower(step, &plan.graph, &plan.scalars, caps).unwrap_err().to_string()
    };
    assert!(refused([1, 1, 1, 5, 5, 8, 257], &gpu()).contains("features"));
    assert!(refused([1, 1, 1, 5, 5, 8, 8], &limits()[2]).contains("no kernel"));
    assert!(refused([1, 1, 1, 5, 2_000_000, 8, 8], &software()).contains("turns"));
}

#[test]
fn halves_on_units() {
    let caps = Caps { max_buffers: 10, ..with_units() };
    for (d, e) in [(64, 64), (32, 64), (128, 96), (128, 128), (64, 48)] {
        for (causal, masked) in [(false, false), (true, false), (true, true)] {
            let attend = Attend { causal, masked, ..PLAIN };
            let s = sketch([2, 6, 3, 70, 131, d, e], attend, DType::F32, DType::F16, d == 64);
            let launches = texts(&s, &caps);
            launches.iter().for_each(|l| check_launch(l, &caps));
            assert!(launches.iter().all(|l| l.source.contains("coopMultiplyAdd")));
            for launch in launches {
                // A matrix is stored where a multiple of 16 bytes is, in whatever order the arrays lie.
                let arrays = launch.source.lines().filter(|l| l.starts_with("var<workgroup>"));
                assert!(arrays.into_iter().all(|l| l.contains("array<vec4<")), "{}", launch.source);
            }
        }
    }
    // Features that are not whole fours, and other dtypes, take the kernel without units.
    for (d, dtype) in [(63, DType::F16), (63, DType::F32), (64, DType::BF16)] {
        let s = sketch([2, 6, 3, 70, 131, d, d], PLAIN, DType::F32, dtype, false);
        assert!(!texts(&s, &caps).iter().any(|l| l.source.contains("coopMultiplyAdd")));
    }
}

#[test]
fn floats_on_units() {
    let caps = Caps { max_buffers: 10, ..with_units() };
    for (d, e) in [(64, 64), (32, 64), (96, 80), (64, 48)] {
        for (causal, masked) in [(false, false), (true, false), (true, true)] {
            let attend = Attend { causal, masked, ..PLAIN };
            let s = sketch([2, 6, 3, 70, 131, d, e], attend, DType::F32, DType::F32, d == 64);
            let launches = texts(&s, &caps);
            launches.iter().for_each(|l| check_launch(l, &caps));
            let (units, plain): (Vec<_>, Vec<_>) =
                launches.iter().partition(|l| l.source.contains("coopMultiplyAdd"));
            // Each is followed by the tiles that it leaves out, which look at the same marks.
            assert_eq!(units.len(), plain.len());
            assert!(plain.iter().all(|l| l.source.contains("let marked = ")));
            for launch in units {
                let arrays = workgroup_arrays(&launch.source);
                assert!(arrays.iter().sum::<usize>() <= caps.shared_bytes, "{arrays:?}");
                assert!(arrays.iter().all(|bytes| bytes % 16 == 0), "{arrays:?}");
            }
        }
    }
    // More features than there is room for, and the path switched off.
    let s = sketch([2, 6, 3, 70, 131, 128, 128], PLAIN, DType::F32, DType::F32, false);
    assert!(!texts(&s, &caps).iter().any(|l| l.source.contains("coopMultiplyAdd")));
    let off = Caps { off: caps.off.with(Fast::SplitAttention), ..caps };
    let s = sketch([2, 6, 3, 70, 131, 64, 64], PLAIN, DType::F32, DType::F32, false);
    assert!(!texts(&s, &off).iter().any(|l| l.source.contains("coopMultiplyAdd")));
}
