//! Programs of several segments, against the direct interpretation of the whole graph.

use super::{FUSED, Sketch, caps, direct, random, run};
use crate::{Binary, LeafKind, Op, Options, Reduce, Source, Unary, Val, segments};
use std::sync::Arc;

fn agree(s: &Sketch, roots: &[Vec<Val>], options: &Options, seed: u64) -> Vec<crate::Segment> {
    let leaves = s.leaves(LeafKind::Donated);
    let program = segments(&Arc::new(s.graph.clone()), roots, &leaves, options, &caps()).unwrap();
    let (data, scalars) = direct::data(&s.graph, seed);
    let want = direct::eval(&s.graph, &data, &scalars);
    let mut outs: Vec<Vec<Vec<f64>>> = Vec::new();
    for (k, segment) in program.iter().enumerate() {
        if let Err(why) = segment.plan.check(&caps()) {
            panic!("{why}\n{segment}");
        }
        let inputs: Vec<Vec<f64>> = segment
            .inputs
            .iter()
            .map(|source| match source {
                Source::Leaf(leaf) => data[*leaf as usize].clone(),
                Source::Stash { segment, output } => outs[*segment as usize][*output as usize].clone(),
            })
            .collect();
        let numbers: Vec<f64> = segment.scalars.iter().map(|i| scalars[*i as usize]).collect();
        let got = run::run(&segment.plan, &inputs, &numbers);
        for (val, got) in roots[k].iter().chain(&segment.stash).zip(&got) {
            let want = &want[val.node as usize][val.out as usize];
            let same = want.iter().zip(got).all(|(a, b)| a == b || a.is_nan() && b.is_nan());
            assert!(same && want.len() == got.len(), "{val:?} of segment {k}\n{segment}");
        }
        outs.push(got);
    }
    program
}

#[test]
fn forward_input_and_weight_parts_share_a_stash() {
    let mut s = Sketch::new();
    let (x, w, dy) = (s.x(&[6, 4]), s.x(&[4, 5]), s.x(&[6, 5]));
    let u = s.matmul(x, w);
    let y = s.un(Unary::Tanh, u);
    let y2 = s.bin(Binary::Mul, y, y);
    let du = s.bin(Binary::Mul, dy, y2);
    let wt = s.permute(w, &[1, 0]);
    let dx = s.matmul(du, wt);
    let xt = s.permute(x, &[1, 0]);
    let dw = s.matmul(xt, du);
    let program = agree(&s, &[vec![y], vec![dx], vec![dw]], &FUSED, 1);
    assert_eq!(program[0].stash, []);
    assert_eq!(program[1].stash, [du]);
    assert!(program[1].inputs.contains(&Source::Stash { segment: 0, output: 0 }));
    assert!(program[2].inputs.contains(&Source::Stash { segment: 1, output: 1 }));
    assert!(program[2].to_string().contains("output 1 of segment 1"));
}

#[test]
fn movement_is_repeated_not_stashed() {
    let mut s = Sketch::new();
    let x = s.x(&[3, 4]);
    let t = s.permute(x, &[1, 0]);
    let a = s.un(Unary::Exp, t);
    let b = s.reduce(Reduce::Sum, t, &[0]);
    let c = s.to(Op::Expand, &[b], &[4, 3]);
    let c = s.bin(Binary::Sub, a, c);
    let program = agree(&s, &[vec![a], vec![b], vec![c, a]], &FUSED, 2);
    assert!(program.iter().all(|p| p.stash.is_empty()));
}

#[test]
fn random_graphs_in_segments_compute_the_same() {
    for seed in 0..600 {
        let (s, _) = random::random_graph(seed);
        let n = s.graph.nodes().len() as u32;
        let mut below = super::rng(seed + 5);
        let roots: Vec<Vec<Val>> =
            (0..3).map(|_| (0..1 + below(2)).map(|_| Val::of(below(n as usize) as u32)).collect()).collect();
        let options = Options { fuse: below(2) == 0, keep: below(4) == 0 };
        agree(&s, &roots, &options, seed);
    }
}
