//! Reductions over any axes, and those made of them.

use wgrad::{DType, Tensor};

use super::{Case, bools, case, float, floats_of, ints};

const CUBE: [usize; 3] = [3, 5, 7];

fn one(name: &str, f: fn(Tensor) -> Tensor) -> Case {
    case(name, [float(CUBE, -2.0, 2.0)], move |_, x| f(x[0]))
}

fn whole(name: &str, f: fn(Tensor) -> Tensor) -> Case {
    case(name, [ints(CUBE, -9, 10)], move |_, x| f(x[0])).no_grad()
}

fn truth(name: &str, f: fn(Tensor) -> Tensor) -> Case {
    case(name, [bools(CUBE)], move |_, x| f(x[0])).no_grad()
}

const NAN: f64 = f64::NAN;

fn plain() -> Vec<Case> {
    vec![
        one("sum", |x| x.sum(1)),
        one("sum two axes", |x| x.sum([0, -1])),
        one("sum every axis", |x| x.sum(..)),
        one("sum none", |x| x.sum([])),
        one("sum_all", |x| x.sum_all()),
        one("sum_to", |x| x.sum_to([5, 1])),
        one("sum_keepdim", |x| x.sum_keepdim([1, 2])),
        one("mean", |x| x.mean([0, 2])),
        one("mean_all", |x| x.mean_all()),
        one("mean_keepdim", |x| x.mean_keepdim(-2)),
        one("prod", |x| x.prod([0, 2])).tolerance(1e-4),
        one("prod_keepdim", |x| x.prod_keepdim([1])).tolerance(1e-4),
        one("prod first", |x| x.prod_keepdim(0)),
        one("max", |x| x.max(1)),
        one("max_keepdim", |x| x.max_keepdim(2)),
        one("min_keepdim", |x| x.min_keepdim(0)),
        one("max all", |x| x.max(..)),
        one("min", |x| x.min_keepdim([0, 2])),
        one("amax", |x| x.amax([1, 2])),
        one("amin", |x| x.amin([0, 1])),
        one("aminmax", |x| {
            let (low, high) = x.aminmax(1);
            low * 2.0 + high
        }),
        one("argmax", |x| x.argmax(1)).no_grad(),
        one("argmax_keepdim", |x| x.argmax_keepdim(0)).no_grad(),
        one("argmin_keepdim", |x| x.argmin_keepdim(1)).no_grad(),
        one("argmin", |x| x.argmin_keepdim(-1)).no_grad(),
        case("sum empty", [float([3, 0, 2], -1.0, 1.0)], |_, x| x[0].sum(1)),
        case("sum scalar", [float([], -1.0, 1.0)], |_, x| x[0].sum(..)),
        case("mean empty", [float([3, 0], -1.0, 1.0)], |_, x| x[0].mean(1)).no_grad(),
        case("max empty", [float([3, 0], -1.0, 1.0)], |_, x| x[0].max(1)).no_grad(),
        case("max ties", [floats_of([2, 3], &[2.0, 2.0, 1.0, 1.0, 1.0, 1.0])], |_, x| x[0].max(1)).no_grad(),
        case("max nan", [floats_of([2, 3], &[2.0, NAN, 1.0, 1.0, -1.0, 0.0])], |_, x| x[0].max(1)).no_grad(),
        case("argmax nan", [floats_of([2, 3], &[NAN, NAN, 3.0, 1.0, NAN, 3.0])], |_, x| x[0].argmax(1))
            .no_grad(),
        case("argmin nan", [floats_of([2, 3], &[NAN, NAN, 3.0, 1.0, NAN, -3.0])], |_, x| x[0].argmin(1))
            .no_grad(),
        case("sum long", [float([3, 4099], -1.0, 1.0)], |_, x| x[0].sum(1)).no_grad().tolerance(1e-4),
        case("sum columns", [float([4099, 3], -1.0, 1.0)], |_, x| x[0].sum(0)).no_grad().tolerance(1e-4),
        case("max many lines", [float([65_600, 2], -1.0, 1.0)], |_, x| x[0].max(1)).no_grad().large(),
    ]
}

fn integers() -> Vec<Case> {
    vec![
        whole("sum int", |x| x.sum([0, 2])),
        whole("prod int", |x| x.prod(1)),
        whole("max int", |x| x.max(1)),
        whole("min int", |x| x.min(..)),
        whole("mean int", |x| x.mean(1)),
        whole("argmax int", |x| x.argmax(2)),
        whole("max u32", |x| x.cast(DType::U32).max(1)),
        whole("max u8", |x| x.cast(DType::U8).max(1)),
        whole("min u8", |x| x.cast(DType::U8).min_keepdim([0, 1])),
        whole("sum u8", |x| x.cast(DType::U8).sum(..)),
        whole("argmin u8", |x| x.cast(DType::U8).argmin(1)),
        whole("any int", |x| x.any(1)),
        whole("all int", |x| x.all([0, 2])),
        whole("count_nonzero", |x| x.count_nonzero(2)),
        whole("var int", |x| x.var(1, 1)),
        whole("norm int", |x| x.norm(2.0, 1)),
        truth("sum bool", |x| x.sum(1)),
        truth("mean bool", |x| x.mean(1)),
        truth("any", |x| x.any([1, 2])),
        truth("any_keepdim", |x| x.any_keepdim(0)),
        truth("all", |x| x.all(0)),
        truth("all_keepdim", |x| x.all_keepdim([0, 1])),
        truth("max bool", |x| x.max(1)),
        truth("argmax bool", |x| x.argmax(1)),
        case("any empty", [bools([3, 0])], |_, x| x[0].any(1)).no_grad(),
        case("all empty", [bools([3, 0])], |_, x| x[0].all(1)).no_grad(),
        case("any floats", [floats_of([3, 2], &[0.0, NAN, 0.0, -0.0, 2.0, 0.0])], |_, x| x[0].any(1))
            .no_grad(),
        case("all floats", [floats_of([2, 2], &[1.0, NAN, 0.0, 1.0])], |_, x| x[0].all(1)).no_grad(),
    ]
}

fn statistics() -> Vec<Case> {
    vec![
        one("var", |x| x.var([0, 2], 0)),
        one("var unbiased", |x| x.var(1, 1)),
        one("var_keepdim", |x| x.var_keepdim(.., 2)),
        one("var_mean", |x| {
            let (var, mean) = x.var_mean(1, 1);
            var + mean * 3.0
        }),
        one("std", |x| x.std(1, 1)),
        one("std_keepdim", |x| x.std_keepdim([0, 1], 0)),
        case("var of one", [float([3, 1], -1.0, 1.0)], |_, x| x[0].var(1, 1)).no_grad(),
        case("var large mean", [float([3, 129], 4000.0, 4001.0)], |_, x| x[0].var(1, 1))
            .no_grad()
            .tolerance(1e-4),
        one("norm", |x| x.norm(2.0, [0, 2])),
        one("norm_keepdim", |x| x.norm_keepdim(2.0, 1)),
        one("norm 0", |x| x.norm(0.0, 1)).no_grad(),
        one("norm 1", |x| x.norm(1.0, [1, 2])),
        one("norm 3", |x| x.norm(3.0, 1)).tolerance(3e-5),
        one("norm half", |x| x.norm(0.5, 2)).tolerance(1e-3),
        one("norm inf", |x| x.norm(f64::INFINITY, 1)),
        one("norm minus inf", |x| x.norm(f64::NEG_INFINITY, 1)),
        one("norm minus 1", |x| x.norm(-1.0, 1)).tolerance(1e-4),
        one("logsumexp", |x| x.logsumexp([0, 2])),
        one("logsumexp_keepdim", |x| x.logsumexp_keepdim(-1)),
        case(
            "logsumexp odd",
            [floats_of([3, 2], &[f64::NEG_INFINITY, f64::NEG_INFINITY, f64::INFINITY, 1.0, 1e4, 1e4])],
            |_, x| x[0].logsumexp(1),
        )
        .no_grad(),
        case("nansum", [floats_of([2, 3], &[1.0, NAN, 2.0, NAN, NAN, NAN])], |_, x| x[0].nansum(1)).no_grad(),
        case("nanmean", [floats_of([2, 3], &[1.0, NAN, 2.0, NAN, NAN, NAN])], |_, x| x[0].nanmean(1))
            .no_grad(),
        one("nansum numbers", |x| x.nansum([0, 1])),
        one("nanmean numbers", |x| x.nanmean(2)),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = plain();
    all.extend(integers());
    all.extend(statistics());
    all
}
