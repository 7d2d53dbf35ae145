//! Sorting and what is read off sorted lines: lines within a run, merged once and often, ties, NaN.

use wgrad::{DType, Interpolation, Tensor};

use super::case::{Elems, Operand};
use super::{Case, bools, case, float, floats_of, ints};

const NAN: f64 = f64::NAN;

/// How to sort: the method, and whether descending.
type Method = (&'static str, fn(Tensor, i32) -> Tensor);

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let shapes: [(&str, &[usize], i32); 7] = [
        ("", &[4, 5], 1),
        ("first axis", &[5, 3], 0),
        ("middle axis", &[2, 5, 3], -2),
        ("one", &[3, 1], 1),
        ("scalar", &[], 0),
        ("empty", &[2, 0], 1),
        ("no lines", &[0, 3], 1),
    ];
    let sorts: [Method; 2] =
        [("sort", |x, a| x.sort(a, false).0), ("sort descending", |x, a| x.sort(a, true).0)];
    for (method, f) in sorts {
        for (name, dims, axis) in shapes {
            let name = format!("{method} {name}").trim_end().to_owned();
            all.push(case(name, [float(dims, -2.0, 2.0)], move |_, x| f(x[0], axis)));
        }
    }
    // One launch; merged once, twice, often; many lines.
    let lengths: [(&str, &[usize], i32); 7] = [
        ("run", &[3, 32], 1),
        ("merge", &[3, 131], 1),
        ("merges", &[2, 300, 3], 1),
        ("long", &[5001], 0),
        ("long inner", &[1500, 3], 0),
        ("many lines", &[70_000, 4], 1),
        ("even merges", &[520, 2], 0),
    ];
    let orders: [Method; 2] =
        [("argsort", |x, a| x.argsort(a, false)), ("argsort descending", |x, a| x.argsort(a, true))];
    for (method, f) in orders {
        for (name, dims, axis) in lengths {
            let many = dims[0] >= 5000;
            let made = case(format!("{method} {name}"), [float(dims, -2.0, 2.0)], move |_, x| f(x[0], axis));
            all.push(if many { made.no_grad().large() } else { made.no_grad() });
            // Few different numbers, so that most are equal.
            let made = case(format!("{method} ties {name}"), [ints(dims, -3, 4)], move |_, x| f(x[0], axis));
            all.push(if many { made.no_grad().large() } else { made.no_grad() });
        }
        let edges = [1.0, NAN, -0.0, f64::INFINITY, 0.0, -1.0, NAN, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -NAN];
        all.push(
            case(format!("{method} edges"), [floats_of([12], &edges)], move |_, x| f(x[0], 0)).no_grad(),
        );
        all.push(case(format!("{method} bool"), [bools([3, 40])], move |_, x| f(x[0], 1)).no_grad());
        for dtype in [DType::U8, DType::U32] {
            let elems = (0..140).map(|i| f64::from(i * 37 % 11)).collect();
            let given = Operand { dims: vec![140], elems: Elems::Given(elems, dtype) };
            all.push(case(format!("{method} {dtype}"), [given], move |_, x| f(x[0], 0)).no_grad());
        }
        let far = [i32::MIN, -1, i32::MAX, 0, i32::MIN, 7].map(f64::from).to_vec();
        let given = Operand { dims: vec![6], elems: Elems::Given(far, DType::I32) };
        all.push(case(format!("{method} i32 far"), [given], move |_, x| f(x[0], 0)).no_grad());
    }
    let x = || [float([4, 7], -2.0, 2.0)];
    all.push(case("topk", x(), |_, x| x[0].topk(3, 1, true).0));
    all.push(case("keep_top_k exp", x(), |_, x| x[0].keep_top_k(3).exp()));
    all.push(case("keep_top_k one", x(), |_, x| x[0].keep_top_k(1).softmax(-1)));
    all.push(case("keep_top_p exp", x(), |_, x| x[0].keep_top_p(0.7).exp()));
    all.push(case("keep_top_p little", x(), |_, x| x[0].keep_top_p(1e-3).softmax(-1)));
    all.push(case("keep_top_p whole", x(), |_, x| x[0].keep_top_p(1.0)));
    all.push(case("topk smallest", x(), |_, x| x[0].topk(2, 0, false).0));
    all.push(case("topk none", x(), |_, x| x[0].topk(0, 1, true).0));
    all.push(case("topk scalar", [float([], -2.0, 2.0)], |_, x| x[0].topk(1, 0, true).0));
    all.push(case("topk index", [ints([3, 50], 0, 9)], |_, x| x[0].topk(5, 1, true).1).no_grad());
    all.push(case("kthvalue", x(), |_, x| x[0].kthvalue(3, 1).0));
    all.push(case("kthvalue index", x(), |_, x| x[0].kthvalue(4, 0).1).no_grad());
    all.push(case("median", x(), |_, x| x[0].median(1).0));
    all.push(case("median even", x(), |_, x| x[0].median(0).0));
    all.push(case("median scalar", [float([], -2.0, 2.0)], |_, x| x[0].median(0).0));
    all.push(case("median index", [ints([5, 6], 0, 4)], |_, x| x[0].median(1).1).no_grad());
    let holes = [1.0, NAN, 3.0, 2.0, 5.0, 4.0, -1.0, 0.5, 2.5, 9.0];
    all.push(case("median nan", [floats_of([2, 5], &holes)], |_, x| x[0].median(1).0).no_grad());
    all.push(
        case("quantile nan", [floats_of([2, 5], &holes)], |_, x| {
            x[0].quantile(0.4, 1, Interpolation::Linear)
        })
        .no_grad(),
    );
    for (name, between) in [
        ("", Interpolation::Linear),
        ("lower", Interpolation::Lower),
        ("higher", Interpolation::Higher),
        ("nearest", Interpolation::Nearest),
        ("midpoint", Interpolation::Midpoint),
    ] {
        let name = format!("quantile {name}").trim_end().to_owned();
        all.push(case(name, x(), move |_, x| x[0].quantile(0.3, 1, between)));
    }
    for (name, q) in [("first", 0.0), ("last", 1.0), ("whole place", 0.5)] {
        all.push(case(format!("quantile {name}"), x(), move |_, x| {
            x[0].quantile(q, 1, Interpolation::Linear)
        }));
    }
    all.push(
        case("quantile i32", [ints([3, 4], -9, 9)], |_, x| x[0].quantile(0.3, 1, Interpolation::Linear))
            .no_grad(),
    );
    let line = || floats_of([6], &[-2.0, -1.0, 0.0, 0.0, 1.5, 3.0]);
    all.push(
        case("searchsorted", [line(), float([3, 4], -3.0, 4.0)], |_, x| {
            x[0].sort(0, false).0.searchsorted(x[1], false)
        })
        .no_grad(),
    );
    all.push(
        case("searchsorted right", [ints([3, 9], 0, 5), ints([3, 4], -1, 6)], |_, x| {
            x[0].sort(1, false).0.searchsorted(x[1], true)
        })
        .no_grad(),
    );
    all
}
