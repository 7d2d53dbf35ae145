//! Reductions, scans, sorts.

use wgrad::{Interpolation, Tensor};

use super::{Golden, golden, one};

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
        one("var 0", |x| x.var(1, 0)),
        one("var 1", |x| x.var(1, 1)),
        one("var 2", |x| x.var(1, 2)),
        one("var all", |x| x.var(.., 1)),
        one("var one", |x| x.var(1, 1)),
        one("var large mean", |x| x.var(.., 1)).tolerance(1e-7),
        one("var twice", |x| x.var(1, 1)),
        one("std 0", |x| x.std_keepdim([0, 2], 0)),
        one("std 1", |x| x.std_keepdim([0, 2], 1)),
        one("std 2", |x| x.std_keepdim([0, 2], 2)),
        one("std constant", |x| x.std(.., 1)),
        one("std twice", |x| x.std(1, 1)),
        one("norm 0", |x| x.norm(0.0, 1)),
        one("norm 0.5", |x| x.norm(0.5, 1)),
        one("norm 1", |x| x.norm(1.0, 1)),
        one("norm 2", |x| x.norm(2.0, 1)),
        one("norm 3", |x| x.norm(3.0, 1)),
        one("norm inf", |x| x.norm(f64::INFINITY, 1)),
        one("norm -inf", |x| x.norm(f64::NEG_INFINITY, 1)),
        one("norm several", |x| x.norm_keepdim(2.0, [0, 2])),
        one("norm all", |x| x.norm(2.0, ..)),
        one("norm 1 of zeros", |x| x.norm(1.0, 0)),
        one("norm 2 of zeros", |x| x.norm(2.0, 0)),
        one("norm 3 of zeros", |x| x.norm(3.0, 0)),
        one("norm inf of zeros", |x| x.norm(f64::INFINITY, 0)),
        one("norm 1 with a zero", |x| x.norm(1.0, 0)),
        one("norm 2 with a zero", |x| x.norm(2.0, 0)),
        one("norm 3 with a zero", |x| x.norm(3.0, 0)),
        one("norm inf with a zero", |x| x.norm(f64::INFINITY, 0)),
        one("norm inf ties", |x| x.norm(f64::INFINITY, 0)),
        one("norm twice", |x| x.norm(2.0, 1)),
        one("any", |x| x.any(1)),
        one("all", |x| x.all(1)),
        one("any floats", |x| x.any(1)),
        one("all floats", |x| x.all(1)),
        one("any of nothing", |x| x.any(1)),
        one("all of nothing", |x| x.all(1)),
        one("count_nonzero", |x| x.count_nonzero(1)),
        one("logsumexp several", |x| x.logsumexp_keepdim([0, 2])),
        one("logsumexp", |x| x.logsumexp(1)),
        one("logsumexp large", |x| x.logsumexp(1)),
        one("logsumexp inf", |x| x.logsumexp(1)),
        one("logsumexp one inf", |x| x.logsumexp(1)),
        one("logsumexp twice", |x| x.logsumexp(1)),
    ]
}

/// Values and indices.
fn both(pair: (Tensor, Tensor)) -> [Tensor; 2] {
    [pair.0, pair.1]
}

fn scans() -> Vec<Golden> {
    vec![
        one("cumsum", |x| x.cumsum(1)),
        one("cumsum last", |x| x.cumsum(-1)),
        one("cumsum of int", |x| x.cumsum(0)),
        one("cumsum of nothing", |x| x.cumsum(1)),
        one("cumprod", |x| x.cumprod(1)),
        one("cumprod zeros", |x| x.cumprod(1)),
        one("cumprod twice", |x| x.cumprod(0)),
        one("cummax", |x| both(x.cummax(1))),
        one("cummax ties", |x| both(x.cummax(0))),
        one("cummax nan", |x| both(x.cummax(0))),
        one("cummin", |x| both(x.cummin(1))),
        one("cummin ties", |x| both(x.cummin(0))),
        one("cummin nan", |x| both(x.cummin(0))),
        one("logcumsumexp", |x| x.logcumsumexp(1)),
        one("logcumsumexp large", |x| x.logcumsumexp(0)),
        one("logcumsumexp inf", |x| x.logcumsumexp(0)),
    ]
}

fn sorts() -> Vec<Golden> {
    let mut all = vec![
        one("sort", |x| both(x.sort(-1, false))),
        one("sort axis", |x| both(x.sort(0, false))),
        one("sort descending", |x| both(x.sort(-1, true))),
        one("sort ties", |x| both(x.sort(-1, false))),
        one("sort descending ties", |x| both(x.sort(-1, true))),
        one("sort nan", |x| both(x.sort(-1, false))),
        one("sort int", |x| both(x.sort(-1, false))),
        one("sort twice", |x| x.square().sort(-1, false).0),
        one("argsort", |x| x.argsort(-1, false)),
        one("argsort descending", |x| x.argsort(0, true)),
        one("topk", |x| both(x.topk(3, -1, true))),
        one("topk smallest", |x| both(x.topk(2, -1, false))),
        one("topk axis", |x| both(x.topk(2, 0, true))),
        one("median odd", |x| both(x.median(-1))),
        one("median even", |x| both(x.median(-1))),
        one("median nan", |x| x.median(-1).0),
        one("quantile several", |x| {
            let parts = [0.0, 0.25, 1.0].map(|q| x.quantile(q, 1, Interpolation::Linear));
            Tensor::stack(&parts, 0)
        }),
        one("quantile nan", |x| x.quantile(0.5, -1, Interpolation::Linear)),
    ];
    let ways = [
        ("linear", Interpolation::Linear),
        ("lower", Interpolation::Lower),
        ("higher", Interpolation::Higher),
        ("midpoint", Interpolation::Midpoint),
        ("nearest", Interpolation::Nearest),
    ];
    all.extend(
        ways.map(|(name, way)| golden(format!("quantile {name}"), move |_, x| x[0].quantile(0.3, -1, way))),
    );
    all
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = sums();
    all.extend(extremes());
    all.extend(moments());
    all.extend(scans());
    all.extend(sorts());
    all
}
