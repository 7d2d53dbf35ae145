//! Products of vectors, matrices and tensors.

use wgrad::Tensor;

use super::{Case, Operand, case, float, ints};

/// Formula, sizes of the operands.
const FORMULAS: &[(&str, &[&[usize]])] = &[
    ("ij,jk->ik", &[&[3, 5], &[5, 4]]),
    ("ij,kj", &[&[3, 5], &[4, 5]]),
    ("i j , j k -> k i", &[&[3, 5], &[5, 4]]),
    ("ij->", &[&[3, 5]]),
    ("ij->ji", &[&[3, 5]]),
    ("ii->i", &[&[5, 5]]),
    ("ii", &[&[5, 5]]),
    ("iij,jk->ik", &[&[3, 3, 5], &[5, 2]]),
    ("ijij->ij", &[&[3, 4, 3, 4]]),
    ("iii->i", &[&[3, 3, 3]]),
    ("i,i->", &[&[7], &[7]]),
    ("i,j->ij", &[&[3], &[5]]),
    ("i,j->ji", &[&[3], &[5]]),
    ("ij,ij->i", &[&[3, 5], &[3, 5]]),
    ("bij,bjk->bik", &[&[2, 3, 5], &[2, 5, 4]]),
    ("bij,bjk->kib", &[&[2, 3, 5], &[2, 5, 4]]),
    ("bij,bjk->ik", &[&[2, 3, 5], &[2, 5, 4]]),
    ("bhid,bhjd->bhij", &[&[2, 3, 5, 4], &[2, 3, 7, 4]]),
    ("bihd,bjhd->bhij", &[&[2, 5, 3, 4], &[2, 7, 3, 4]]),
    ("bi,ioj,bj->bo", &[&[3, 4], &[4, 5, 2], &[3, 2]]),
    ("ab,bc,cd,de->ae", &[&[2, 7], &[7, 3], &[3, 5], &[5, 4]]),
    ("...ij,...jk->...ik", &[&[2, 1, 3, 5], &[4, 5, 2]]),
    ("...ij->...ji", &[&[2, 3, 5]]),
    ("...ii->...i", &[&[2, 3, 3]]),
    ("i...,i...", &[&[3, 2], &[3, 1, 2]]),
    ("i...->i", &[&[3, 2, 4]]),
    ("ab,cd", &[&[2, 3], &[4, 2]]),
    ("ba", &[&[2, 3]]),
    ("aB,Bc->ca", &[&[2, 3], &[3, 4]]),
    ("ij,jk->ik size 1", &[&[3, 1], &[5, 4]]),
    ("ij,ij->ij size 1", &[&[3, 1], &[1, 4]]),
    ("ij,jk->ik inner empty", &[&[3, 0], &[0, 4]]),
    ("bij,bjk->bik batch empty", &[&[0, 3, 2], &[0, 2, 4]]),
    (",ij->ij", &[&[], &[2, 3]]),
    ("->", &[&[]]),
    ("ijkl,klm->mij", &[&[2, 3, 4, 5], &[4, 5, 3]]),
    ("ikjl,lmk->mij", &[&[2, 4, 3, 5], &[5, 3, 4]]),
];

fn formulas(all: &mut Vec<Case>) {
    for (formula, sizes) in FORMULAS {
        let operands: Vec<Operand> = sizes.iter().map(|s| float(s, -2.0, 2.0)).collect();
        let plain = formula.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let plain =
            ["size", "inner empty", "batch empty"].iter().fold(plain, |f, tail| f.trim_end_matches(tail));
        let plain = plain.trim_end().to_owned();
        all.push(case(format!("einsum {formula}"), operands, move |_, x| Tensor::einsum(&plain, x)));
    }
    let pair = [ints([3, 5], -4, 5), ints([5, 2], -4, 5)];
    let f = |_: &wgrad::Pass, x: &[Tensor]| Tensor::einsum("ij,jk->ki", x);
    all.push(case("einsum integers", pair, f).no_grad());
}

fn products(all: &mut Vec<Case>) {
    let of = |a: &[usize], b: &[usize]| vec![float(a, -2.0, 2.0), float(b, -1.5, 2.0)];
    for (a, b) in [
        (&[3, 5][..], &[5, 4][..]),
        (&[7], &[7]),
        (&[5], &[5, 3]),
        (&[3, 5], &[5]),
        (&[5], &[2, 5, 3]),
        (&[2, 3, 5], &[5]),
        (&[2, 3, 5], &[5, 4]),
        (&[3, 5], &[2, 5, 4]),
        (&[2, 1, 3, 5], &[4, 5, 2]),
        (&[1, 3, 5], &[2, 5, 4]),
        (&[0, 3, 5], &[5, 4]),
        (&[0, 3, 5], &[0, 5, 4]),
        (&[1, 3, 5], &[0, 5, 4]),
        (&[3, 0], &[0, 4]),
        (&[0], &[0]),
        (&[2, 3, 0], &[0]),
        (&[1, 1], &[1, 1]),
        (&[17, 33], &[33, 19]),
        (&[2, 1, 1, 3, 1, 2], &[1, 2, 1, 1, 2, 3]),
    ] {
        all.push(case(format!("matmul {a:?} {b:?}"), of(a, b), |_, x| x[0].matmul(x[1])));
    }
    all.push(case("dot", of(&[7], &[7]), |_, x| x[0].dot(x[1])));
    all.push(case("dot empty", of(&[0], &[0]), |_, x| x[0].dot(x[1])));
    all.push(case("vdot", of(&[5], &[5]), |_, x| x[0].vdot(x[1])));
    all.push(case("inner", of(&[2, 3, 5], &[4, 5]), |_, x| x[0].inner(x[1])));
    all.push(case("inner number", of(&[], &[4, 5]), |_, x| x[0].inner(x[1])));
    all.push(case("mv", of(&[3, 5], &[5]), |_, x| x[0].mv(x[1])));
    all.push(case("outer", of(&[3], &[5]), |_, x| x[0].outer(x[1])));
    all.push(case("outer empty", of(&[0], &[5]), |_, x| x[0].outer(x[1])));
    all.push(case("mm", of(&[3, 5], &[5, 2]), |_, x| x[0].mm(x[1])));
    all.push(case("bmm", of(&[3, 2, 5], &[3, 5, 4]), |_, x| x[0].bmm(x[1])));
    all.push(case("bmm empty", of(&[0, 2, 5], &[0, 5, 4]), |_, x| x[0].bmm(x[1])));
    for shape in [&[3, 4][..], &[4], &[3, 1], &[]] {
        let operands = [of(&[3, 5], &[5, 4]), vec![float(shape, -1.0, 1.0)]].concat();
        all.push(case(format!("addmm {shape:?}"), operands, |_, x| x[2].addmm(x[0], x[1])));
    }
    all.push(case("tensordot 2", of(&[2, 3, 5], &[3, 5, 4]), |_, x| x[0].tensordot(x[1], 2)));
    all.push(case("tensordot 0", of(&[2, 3], &[4]), |_, x| x[0].tensordot(x[1], 0)));
    all.push(case("tensordot all", of(&[2, 3], &[2, 3]), |_, x| x[0].tensordot(x[1], 2)));
    let f = |_: &wgrad::Pass, x: &[Tensor]| x[0].tensordot(x[1], ([0, 2], [-1, 1]));
    all.push(case("tensordot pairs", of(&[2, 3, 5], &[4, 5, 2]), f));
    all.push(case("kron", of(&[2, 3], &[4, 5]), |_, x| x[0].kron(x[1])));
    all.push(case("kron ranks", of(&[3], &[2, 1, 4]), |_, x| x[0].kron(x[1])));
    all.push(case("kron numbers", of(&[], &[2]), |_, x| x[0].kron(x[1])));
    all.push(case("kron wide", of(&[2, 1, 2, 3, 2], &[2, 2, 1, 2, 1]), |_, x| x[0].kron(x[1])));
    all.push(case("cross", of(&[4, 3], &[4, 3]), |_, x| x[0].cross(x[1], -1)));
    all.push(case("cross broadcast", of(&[3, 5], &[2, 3, 1]), |_, x| x[0].cross(x[1], 1)));
    for n in [0, 1, 2, 5] {
        let of = vec![float([2, 3, 3], -1.0, 1.0)];
        let made = case(format!("matrix_power {n}"), of, move |_, x| x[0].matrix_power(n));
        all.push(if n == 0 { made.no_grad() } else { made });
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    products(&mut all);
    formulas(&mut all);
    all
}
