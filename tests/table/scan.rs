//! Scans: every kind, axis and length on both sides of a block, a tile and a workgroup.

use wgrad::Tensor;

use super::{Case, case, float, floats_of, ints};

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
    let kinds: [(&str, fn(Tensor, i32) -> Tensor); 5] = [
        ("cumsum", |x, a| x.cumsum(a)),
        ("cumprod", |x, a| x.cumprod(a)),
        ("logcumsumexp", |x, a| x.logcumsumexp(a)),
        ("cummax", |x, a| x.cummax(a).0),
        ("cummin", |x, a| x.cummin(a).0),
    ];
    for (kind, f) in kinds {
        for (name, dims, axis) in shapes {
            let name = format!("{kind} {name}").trim_end().to_owned();
            all.push(case(name, [float(dims, -2.0, 2.0)], move |_, x| f(x[0], axis)));
        }
        // Longer than a block of 64, than a tile, with few and with many lines.
        for (name, dims, axis) in [
            ("long", &[3, 150][..], 1),
            ("tiles", &[2, 5000], 1),
            ("tiles inner", &[4500, 3], 0),
            ("many lines", &[70_000, 3], 1),
        ] {
            let range = if kind == "cumprod" { (0.97, 1.03) } else { (-1.0, 1.0) };
            let made =
                case(format!("{kind} {name}"), [float(dims, range.0, range.1)], move |_, x| f(x[0], axis));
            all.push(made.no_grad().tolerance(5e-5));
        }
    }
    for (kind, f) in kinds {
        if kind != "logcumsumexp" {
            let ints = ints([3, 70], -3, 4);
            all.push(case(format!("{kind} i32"), [ints], move |_, x| f(x[0], 1)).no_grad());
        }
    }
    all.push(case("cummax index", [float([5, 33], -1.0, 1.0)], |_, x| x[0].cummax(1).1).no_grad());
    all.push(case("cummin index", [float([33, 5], -1.0, 1.0)], |_, x| x[0].cummin(0).1).no_grad());
    all.push(case("cummax index i32", [ints([5, 33], -3, 3)], |_, x| x[0].cummax(1).1).no_grad());
    all.push(case(
        "cumprod zeros",
        [floats_of([2, 4], &[2.0, 0.0, 3.0, 4.0, 0.0, 5.0, 0.0, 6.0])],
        |_, x| x[0].cumprod(1),
    ));
    let pair = |dims: &[usize]| [float(dims, -0.9, 0.9), float(dims, -2.0, 2.0)];
    all.push(case("recur", pair(&[3, 6]), |_, x| x[0].recur(1, x[1])));
    all.push(case("recur first axis", pair(&[5, 2]), |_, x| x[0].recur(0, x[1])));
    all.push(case("recur itself", [float([4, 5], -1.0, 1.0)], |_, x| x[0].recur(1, x[0])));
    all.push(case("recur broadcast", [float([6], -1.0, 1.0), float([3, 1], -1.0, 1.0)], |_, x| {
        x[0].recur(1, x[1])
    }));
    all.push(case("recur tiles", pair(&[2, 5000]), |_, x| x[0].recur(1, x[1])).no_grad());
    all.push(case("recur many lines", pair(&[66_000, 2]), |_, x| x[0].recur(1, x[1])).no_grad());
    all.push(
        case("recur i32", [ints([2, 9], -3, 4), ints([2, 9], -3, 4)], |_, x| x[0].recur(1, x[1])).no_grad(),
    );
    all
}
