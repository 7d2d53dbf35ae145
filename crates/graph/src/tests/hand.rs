//! Hand-made graphs: what must fuse, and what plans must look like.

use super::*;
use crate::{Binary, Kind, Reduce, Unary};

#[test]
fn a_chain_is_one_kernel() {
    let mut s = Sketch::new();
    let x = s.x(&[4, 5]);
    let b = s.x(&[5]);
    let b = s.like(b, &[4, 5]);
    let y = s.bin(Binary::Add, x, b);
    let y = s.un(Unary::Exp, y);
    let plan = planned(&s, &[y], &FUSED);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    verify(&s, &plan, 1);
}
