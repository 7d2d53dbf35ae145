//! Products of matrices, einsum, small linear algebra.

use wgrad::{Tensor, Triangular};

use super::{Golden, golden, one, two};

fn products() -> Vec<Golden> {
    let plain = [
        "matmul",
        "matmul row",
        "matmul column",
        "matmul vectors",
        "matmul batch by matrix",
        "matmul matrix by batch",
        "matmul batches",
        "matmul vector by batch",
        "matmul inner 0",
        "matmul twice",
    ];
    let mut all: Vec<Golden> = plain.iter().map(|name| golden(*name, |_, x| x[0].matmul(x[1]))).collect();
    all.push(golden("matmul transposed", |_, x| x[0].t().matmul(x[1].t())));
    all.extend([
        two("dot", Tensor::dot),
        two("outer", Tensor::outer),
        two("bmm", Tensor::bmm),
        two("tensordot", |a, b| a.tensordot(b, 2)),
        two("tensordot axes", |a, b| a.tensordot(b, ([0, 2], [1, 0]))),
        two("tensordot outer", |a, b| a.tensordot(b, 0)),
        two("kron", Tensor::kron),
        two("kron ranks", Tensor::kron),
        two("cross", |a, b| a.cross(b, -1)),
        two("cross axis", |a, b| a.cross(b, 0)),
        one("trace", |x| x.diagonal(0, 0, 1).sum(0)),
    ]);
    all
}

fn einsums() -> Vec<Golden> {
    let formulas = [
        "ij,jk->ik",
        "ij,jk",
        "bij,bjk->bik",
        "ij->ji",
        "ij->",
        "ij->j",
        "ii->i",
        "ii",
        "iij->j",
        "i,j->ij",
        "i,i",
        "...ij,...jk->...ik",
        "...i->i...",
        "i...,i...",
        "bhqd,bhkd->bhqk",
        "ij,jk,kl->il",
        "ijk,jil->kl",
        "bn,anm,bm->ba",
        "ij,ij->ij",
        "iji,j->ij",
        "ab,cd->acdb",
        "bi,bj->b",
    ];
    formulas.map(|f| golden(format!("einsum {f}"), move |_, x| Tensor::einsum(f, x))).into()
}

fn solvers() -> Vec<Golden> {
    let lower = Triangular::default;
    vec![
        one("cholesky", Tensor::cholesky),
        one("cholesky batch", Tensor::cholesky),
        one("cholesky upper", |a| a.cholesky().t()),
        one("cholesky one", Tensor::cholesky),
        golden("solve_triangular lower", move |_, x| x[0].solve_triangular(x[1], lower())),
        golden("solve_triangular upper", move |_, x| {
            x[0].solve_triangular(x[1], Triangular { upper: true, ..lower() })
        }),
        golden("solve_triangular unit", move |_, x| {
            x[0].solve_triangular(x[1], Triangular { unit: true, ..lower() })
        }),
        golden("solve_triangular right", move |_, x| {
            x[0].solve_triangular(x[1], Triangular { upper: true, right: true, ..lower() })
        }),
        two("solve", Tensor::solve),
        two("solve vector", Tensor::solve),
        two("solve batch", Tensor::solve),
        two("solve pivots", Tensor::solve),
        two("solve twice", Tensor::solve),
        one("inverse", Tensor::inverse),
        one("inverse batch", Tensor::inverse),
        one("inverse twice", Tensor::inverse),
        one("det", Tensor::det),
        one("det batch", Tensor::det),
        one("det one", Tensor::det),
        one("det pivots", Tensor::det),
        one("det singular", Tensor::det),
        one("slogdet", |a| both(a.slogdet())),
        one("slogdet batch", |a| both(a.slogdet())),
        one("slogdet singular", |a| both(a.slogdet())),
    ]
}

/// Sign and logarithm.
fn both(pair: (Tensor, Tensor)) -> [Tensor; 2] {
    [pair.0, pair.1]
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = products();
    all.extend(einsums());
    all.extend(solvers());
    all
}
