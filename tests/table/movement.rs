//! Operations that only move elements.

use wgrad::{PadMode, Scalar, Tensor, Windows};

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

fn pads() -> Vec<Case> {
    let x = || [float([4, 5], -2., 2.)];
    let mut all = vec![
        case("pad", x(), |_, x| x[0].pad(&[(1, 2), (0, 3)], 0.0)),
        case("pad value", x(), |_, x| x[0].pad(&[(1, 0), (2, 1)], -2.5)),
        case("pad infinity", x(), |_, x| x[0].pad(&[(1, 0), (2, 1)], f64::NEG_INFINITY).exp()),
        case("pad crop", x(), |_, x| x[0].pad(&[(-1, 2), (1, -3)], 0.5)),
        case("pad crop all", x(), |_, x| x[0].pad(&[(-2, -2), (0, 1)], 1.0)),
        case("pad empty", [float([0, 3], -2., 2.)], |_, x| x[0].pad(&[(1, 1), (0, 1)], 0.5)),
        case("pad ints", [ints([3, 2], -9, 9)], |_, x| x[0].pad(&[(1, 0), (1, 2)], 7.0)).no_grad(),
        case("pad bools", [bools([3, 5])], |_, x| x[0].pad(&[(1, 0), (1, 2)], 1.0)).no_grad(),
    ];
    for (name, mode) in
        [("reflect", PadMode::Reflect), ("replicate", PadMode::Replicate), ("circular", PadMode::Circular)]
    {
        all.push(case(format!("pad {name}"), x(), move |_, x| x[0].pad(&[(2, 3), (0, 4)], mode)));
        all.push(case(format!("pad {name} crop"), x(), move |_, x| x[0].pad(&[(-1, 2), (3, -1)], mode)));
        all.push(
            case(format!("pad {name} ints"), [ints([5], 0, 90)], move |_, x| x[0].pad(&[(2, 1)], mode))
                .no_grad(),
        );
    }
    all
}

fn repeats() -> Vec<Case> {
    let x = || [float([3, 4], -2., 2.)];
    vec![
        case("repeat", x(), |_, x| x[0].repeat(0, 3)),
        case("repeat last", x(), |_, x| x[0].repeat(-1, 2)),
        case("repeat never", x(), |_, x| x[0].repeat(0, 0)),
        case("repeat_interleave", x(), |_, x| x[0].repeat_interleave(0, 3)),
        case("repeat_interleave last", x(), |_, x| x[0].repeat_interleave(1, 2)),
        case("tile", x(), |_, x| x[0].tile(&[2, 3])),
        case("tile more", x(), |_, x| x[0].tile(&[2, 1, 2])),
        case("tile fewer", x(), |_, x| x[0].tile(&[3])),
        case("tile never", [float([2, 3, 4], -2., 2.)], |_, x| x[0].tile(&[1, 0, 2])),
        case("roll", x(), |_, x| x[0].roll(1, 1)),
        case("roll back", x(), |_, x| x[0].roll(0, -5)),
        case("roll round", x(), |_, x| x[0].roll(0, 6)),
        case("tril", [float([2, 4, 5], -2., 2.)], |_, x| x[0].tril(0)),
        case("tril above", [float([4, 5], -2., 2.)], |_, x| x[0].tril(2)),
        case("tril below", [float([5, 4], -2., 2.)], |_, x| x[0].tril(-1)),
        case("triu", [float([2, 4, 5], -2., 2.)], |_, x| x[0].triu(0)),
        case("triu above", [float([4, 5], -2., 2.)], |_, x| x[0].triu(1)),
        case("triu below", [ints([5, 4], 1, 9)], |_, x| x[0].triu(-2)).no_grad(),
        case("expand keep", [float([3, 1], -2., 2.)], |_, x| x[0].expand([2, -1, 4])),
    ]
}

fn axes() -> Vec<Case> {
    let x = || [float([2, 3, 4], -2., 2.)];
    vec![
        case("reshape", x(), |_, x| x[0].reshape([-1, 6])),
        case("flatten", x(), |_, x| x[0].flatten(1)),
        case("unflatten", x(), |_, x| x[0].unflatten(2, [2, -1])),
        case("squeeze", [float([3, 1, 2, 1], -2., 2.)], |_, x| x[0].squeeze(1)),
        case("squeeze_all", [float([3, 1, 2, 1], -2., 2.)], |_, x| x[0].squeeze_all()),
        case("unsqueeze", x(), |_, x| x[0].unsqueeze(-2)),
        case("permute", x(), |_, x| x[0].permute([2, 0, 1])),
        case("transpose", x(), |_, x| x[0].transpose(0, -1)),
        case("swap_axes", x(), |_, x| x[0].swap_axes(1, 2)),
        case("movedim", [float([2, 3, 4, 5], -2., 2.)], |_, x| x[0].movedim([0, -1], [2, 0])),
        case("flip", x(), |_, x| x[0].flip([0, 2])),
        case("slice", x(), |_, x| x[0].slice(-1, 1..-1)),
        case("slice nothing", x(), |_, x| x[0].slice(1, 2..2)),
        case("slice_step", [float([11, 2], -2., 2.)], |_, x| x[0].slice_step(0, 1..9, 3)),
        case("slice_step back", [float([11, 2], -2., 2.)], |_, x| x[0].slice_step(0, 1..9, -3)),
        case("narrow", x(), |_, x| x[0].narrow(2, 1, 2)),
        case("select_index", x(), |_, x| x[0].select_index(1, -1)),
        case("slice_at", [float([7, 2], -2., 2.)], |_, x| x[0].slice_at(0, &Scalar::new(2.0), 3)),
        case("slice_at last axis", [float([3, 5], -2., 2.)], |_, x| x[0].slice_at(-1, &Scalar::new(1.0), 4)),
        case("slice_assign_at", [float([3, 7], -2., 2.), float([3, 2], -2., 2.)], |_, x| {
            x[0].slice_assign_at(1, &Scalar::new(4.0), x[1])
        }),
        case("t", [float([3, 5], -2., 2.)], |_, x| x[0].t()),
        case("slice_assign", [float([5, 3], -2., 2.), float([2, 3], -2., 2.)], |_, x| {
            x[0].slice_assign(0, 2, x[1])
        }),
        case("slice_assign_step", [float([7, 3], -2., 2.), float([3, 1], -2., 2.)], |_, x| {
            x[0].slice_assign_step(0, 1..6, 2, x[1])
        }),
        case("slice_assign_step back", [float([3, 7], -2., 2.), float([3], -2., 2.)], |_, x| {
            x[0].slice_assign_step(1, 1..7, -2, x[1])
        }),
        case("slice_assign_step number", [float([3, 7], -2., 2.)], |_, x| {
            x[0].slice_assign_step(1, 2.., 2, 3.5)
        }),
        case("select_assign", [float([3, 4], -2., 2.), float([3], -2., 2.)], |_, x| {
            x[0].select_assign(1, -2, x[1])
        }),
        case("split", [float([7, 2], -2., 2.)], |_, x| {
            let part = x[0].split(0, 3);
            part[2] * part[0].slice(0, 1..2).tanh()
        }),
        case("split_sizes", [float([2, 7], -2., 2.)], |_, x| {
            let part = x[0].split_sizes(1, &[2, 1, 4]);
            part[0] * part[1] + part[2].slice(1, ..2)
        }),
        case("chunk", [float([7], -2., 2.)], |_, x| Tensor::cat(&x[0].chunk(0, 5)[1..], 0)),
        case("unbind", x(), |_, x| {
            let part = x[0].unbind(1);
            part[0] * part[2] - part[1]
        }),
        case("cat", [float([2, 3], -2., 2.), float([2, 5], -2., 2.)], |_, x| {
            Tensor::cat(&[x[0], x[1], x[0] * x[0]], 1)
        }),
        case("stack", [float([2, 3], -2., 2.), float([2, 3], -2., 2.)], |_, x| Tensor::stack(x, -1)),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = windows();
    all.extend(pads());
    all.extend(repeats());
    all.extend(axes());
    all.extend(diagonals());
    all
}
