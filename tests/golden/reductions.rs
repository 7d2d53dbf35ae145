//! Reductions, scans, sorts.

use wgrad::Tensor;

use super::{Golden, golden};

fn one(name: &str, f: fn(Tensor) -> Tensor) -> Golden {
    golden(name, move |_, x| f(x[0]))
}

fn sums() -> Vec<Golden> {
    vec![
        one("sum", |x| x.sum(1)),
        one("sum all", |x| x.sum_all()),
        one("sum keepdim", |x| x.sum_keepdim([0, -1])),
        one("sum of int", |x| x.sum(1)),
        one("sum of bool", |x| x.sum(1)),
        one("sum of nothing", |x| x.sum(1)),
        one("sum nan", |x| x.sum(1)),
        one("mean", |x| x.mean([0, 2])),
        one("mean all", |x| x.mean_all()),
        one("mean of nothing", |x| x.mean(1)),
        one("prod", |x| x.prod(1)),
        one("prod zeros", |x| x.prod(1)),
        one("prod of nothing", |x| x.prod(1)),
        one("prod all", |x| x.prod(..)),
        one("prod twice", |x| x.prod(1)),
    ]
}

fn extremes() -> Vec<Golden> {
    vec![
        one("max", |x| x.max(1)),
        one("max several", |x| x.max_keepdim([0, 2])),
        one("max all", |x| x.max(..)),
        one("max ties", |x| x.max(1)),
        one("max nan", |x| x.max(1)),
        one("max int", |x| x.max(1)),
        one("min", |x| x.min(1)),
        one("min several", |x| x.min_keepdim([0, 2])),
        one("min all", |x| x.min(..)),
        one("min ties", |x| x.min(1)),
        one("min nan", |x| x.min(1)),
        one("min int", |x| x.min(1)),
        one("argmax", |x| x.argmax(1)),
        one("argmax keepdim", |x| x.argmax_keepdim(-1)),
        one("argmax all", |x| x.reshape([-1]).argmax(0)),
        one("argmax nan", |x| x.argmax(1)),
        one("argmax ties", |x| x.argmax(1)),
        one("argmin", |x| x.argmin(1)),
        one("argmin keepdim", |x| x.argmin_keepdim(-1)),
        one("argmin all", |x| x.reshape([-1]).argmin(0)),
        one("argmin nan", |x| x.argmin(1)),
        one("argmin ties", |x| x.argmin(1)),
    ]
}

fn moments() -> Vec<Golden> {
    vec![
        one("var 0", |x| x.var(1)),
        one("logsumexp", |x| x.logsumexp(1)),
        one("logsumexp large", |x| x.logsumexp(1)),
        one("logsumexp inf", |x| x.logsumexp(1)),
        one("logsumexp one inf", |x| x.logsumexp(1)),
        one("logsumexp twice", |x| x.logsumexp(1)),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = sums();
    all.extend(extremes());
    all.extend(moments());
    all
}
