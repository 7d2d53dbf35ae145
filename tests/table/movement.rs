//! Operations that only move elements.

use wgrad::Windows;

use super::{Case, bools, case, float, ints};

fn windows() -> Vec<Case> {
    let w = |size, step, dilation| Windows { size, step, dilation };
    let mut all = vec![
        case("windows", [float([3, 7, 2], -2., 2.)], move |_, x| x[0].windows(1, w(3, 1, 1))),
        case("windows step", [float([3, 11], -2., 2.)], move |_, x| x[0].windows(-1, w(3, 4, 1))),
        case("windows dilation", [float([10, 3], -2., 2.)], move |_, x| x[0].windows(0, w(3, 2, 3))),
        case("windows apart", [float([2, 9], -2., 2.)], move |_, x| x[0].windows(1, w(2, 3, 1))),
        case("windows one", [float([5], -2., 2.)], move |_, x| x[0].windows(0, w(1, 1, 1))),
        case("windows whole", [float([4, 5], -2., 2.)], move |_, x| x[0].windows(1, w(5, 2, 1))),
        case("windows of windows", [float([2, 6, 7], -2., 2.)], move |_, x| {
            x[0].windows(1, w(3, 2, 1)).windows(2, w(2, 1, 3)).tanh()
        }),
        case("windows reduced", [float([2, 9, 5], -2., 2.)], move |_, x| {
            (x[0].tanh().windows(1, w(3, 2, 2)).sum(-1) * 0.5).square()
        }),
        case("windows empty", [float([0, 7], -2., 2.)], move |_, x| x[0].windows(1, w(3, 2, 1))),
        case("windows ints", [ints([3, 8], 0, 100)], move |_, x| x[0].windows(1, w(4, 1, 2))).no_grad(),
        case("windows bools", [bools([13, 3])], move |_, x| x[0].windows(0, w(4, 3, 2))).no_grad(),
        case("unfold", [float([3, 8], -2., 2.)], |_, x| x[0].unfold(1, 3, 2)),
    ];
    for (size, step, dilation, rest) in [(3, 1, 1, 0), (3, 2, 1, 1), (2, 5, 3, 0), (4, 2, 3, 1), (1, 3, 1, 2)]
    {
        let len = 4 * step + (size - 1) * dilation + 1 + rest;
        all.push(case(
            format!("overlap_add {size} step {step} dilation {dilation}"),
            [float([2, 5, 3, size], -2., 2.)],
            move |_, x| x[0].overlap_add(1, w(size, step, dilation), len),
        ));
    }
    all
}

fn diagonals() -> Vec<Case> {
    vec![
        case("diagonal", [float([5, 5], -2., 2.)], |_, x| x[0].diagonal(0, 0, 1)),
        case("diagonal above", [float([4, 7], -2., 2.)], |_, x| x[0].diagonal(2, 0, 1)),
        case("diagonal below", [float([2, 6, 3, 4], -2., 2.)], |_, x| x[0].diagonal(-1, 1, -1)),
        case("diagonal turned", [float([3, 2, 5], -2., 2.)], |_, x| x[0].diagonal(1, 2, 0)),
        case("diagonal nothing", [float([3, 4], -2., 2.)], |_, x| x[0].diagonal(4, 0, 1)),
        case("diagonal ints", [ints([5, 3], -9, 9)], |_, x| x[0].diagonal(0, 0, 1)).no_grad(),
        case("diag_embed", [float([3, 4], -2., 2.)], |_, x| x[0].diag_embed(0, -2, -1)),
        case("diag_embed above", [float([2, 3], -2., 2.)], |_, x| x[0].diag_embed(2, 0, 2)),
        case("diag_embed below", [float([2, 3], -2., 2.)], |_, x| x[0].diag_embed(-1, -1, 0)),
        case("diag_embed bools", [bools([5])], |_, x| x[0].diag_embed(1, 0, 1)).no_grad(),
        case("diag of a vector", [float([4], -2., 2.)], |_, x| x[0].diag(-1)),
        case("diag of a matrix", [float([4, 3], -2., 2.)], |_, x| x[0].diag(-1)),
        case("trace", [float([3, 4, 5], -2., 2.)], |_, x| x[0].trace()),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = windows();
    all.extend(diagonals());
    all
}
