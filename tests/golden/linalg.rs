//! Products of matrices, einsum, small linear algebra.

use super::{Golden, golden};

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
        "dot",
        "bmm",
    ];
    let mut all: Vec<Golden> = plain.iter().map(|name| golden(*name, |_, x| x[0].matmul(x[1]))).collect();
    all.push(golden("matmul transposed", |_, x| x[0].t().matmul(x[1].t())));
    all
}

pub(super) fn cases() -> Vec<Golden> {
    products()
}
