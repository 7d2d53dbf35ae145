//! Scans, sorting and scatters: values known from thought, ties, NaN, long lines, and mistakes.

use wgrad::{ErrorKind, Interpolation, Pass, Result, ScatterReduce, Tensor, grad};

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{floats, ints, near};

crate::suite![
    plain: mistakes_are_errors;
    device: extremes_so_far, long_sums_do_not_drift, loops_of_any_length, scans_of_views, sorting_is_stable, sorting_views, many_lines,
        the_best_few, of_equal_indices_the_last_wins, products_of_zeros_have_a_slope, permutations,
        a_recurrence_from_a_start, products_beyond_the_range,
];

const NAN: f32 = f32::NAN;

/// The elements of each tensor that `f` records.
fn all(subject: &Subject, f: impl Fn(&Pass) -> Result<Vec<Tensor>>) -> Vec<Vec<f64>> {
    let read = |p: &Pass| {
        let mut lists = Vec::new();
        for y in f(p)? {
            lists.push(y.to_vec::<f64>()?);
        }
        Ok(lists)
    };
    subject.context().pass(read).unwrap()
}

fn extremes_so_far(subject: &Subject) {
    // Of equal ones the latest; once NaN, always NaN, and the latest of them.
    let got = all(subject, |p| {
        let x = floats(p, [5], &[3.0, 3.0, 1.0, 5.0, 5.0]);
        let holes = floats(p, [6], &[1.0, NAN, 3.0, -1.0, NAN, 9.0]);
        let ((y, i), (low, j), (z, k)) = (x.cummax(0), x.cummin(0), holes.cummax(0));
        Ok(vec![y, i, low, j, z, k])
    });
    assert_eq!(got[0], [3.0, 3.0, 3.0, 5.0, 5.0]);
    assert_eq!(got[1], [0.0, 1.0, 1.0, 3.0, 4.0]);
    assert_eq!(got[2], [3.0, 3.0, 1.0, 1.0, 1.0]);
    assert_eq!(got[3], [0.0, 1.0, 2.0, 2.0, 2.0]);
    near("cummax of NaN", &got[4], &[1.0, f64::NAN, f64::NAN, f64::NAN, f64::NAN, f64::NAN], 0.0);
    assert_eq!(got[5], [0.0, 1.0, 1.0, 1.0, 4.0, 4.0]);
}

fn long_sums_do_not_drift(subject: &Subject) {
    if subject.is_slow() {
        return;
    }
    // f32 holds 2^24: one after the other, a running sum of 0.1 is wrong in the third digit here.
    let n = 1 << 20;
    let got = all(subject, |p| {
        let x = p.full([2, n], 0.1);
        Ok(vec![x.cumsum(1).slice(1, -1..), p.full([n, 9], 0.1).cumsum(0).slice(0, -1..)])
    });
    for y in got.iter().flatten() {
        assert!((y / (0.1f32 as f64 * n as f64) - 1.0).abs() < 5e-5, "{y}");
    }
}

fn loops_of_any_length(subject: &Subject) {
    if subject.is_slow() {
        return;
    }
    // llvmpipe leaves the loops of an invocation after 65535 rounds: none of ours may need more.
    let n = 150_000;
    let got = all(subject, |p| {
        let same = p.arange(0..n).mul(0);
        let rising = p.arange(0..n).reshape([n as usize, 1]).expand([n as usize, 9]);
        let ones = p.ones([n as usize]);
        let rows = p.ones([n as usize, 300]);
        let (largest, place) = rising.cummax(0);
        Ok(vec![
            p.zeros([2]).scatter_add(0, same, ones).slice(0, ..1),
            rows.sum(0).slice(0, ..1),
            ones.unsqueeze(0).matmul(rows).slice(1, ..1).reshape([1]),
            p.full([n as usize, 9], 0.5).recur(0, p.ones([n as usize, 9])).slice(0, -1..).slice(1, ..1),
            largest.slice(0, -1..).slice(1, 8..).add(1),
            place.slice(0, -1..).slice(1, 8..).add(1),
            // A table that is filled in pieces.
            p.zeros([n as usize])
                .scatter_add(0, p.arange(n - 1..n), p.full([1], f64::from(n)))
                .slice(0, -1..),
        ])
    });
    let want = [f64::from(n), f64::from(n), f64::from(n), 2.0, f64::from(n), f64::from(n), f64::from(n)];
    for (i, (y, want)) in got.iter().zip(want).enumerate() {
        assert!((y[0] / want - 1.0).abs() < 1e-5, "{i}: {y:?}, not {want}");
    }
}

fn scans_of_views(subject: &Subject) {
    let got = all(subject, |p| {
        let x = floats(p, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        Ok(vec![x.flip(1).cumsum(1), x.t().cumsum(1), x.slice(0, 1..).cumprod(1)])
    });
    assert_eq!(got[0], [3.0, 5.0, 6.0, 6.0, 11.0, 15.0]);
    assert_eq!(got[1], [1.0, 5.0, 2.0, 7.0, 3.0, 9.0]);
    assert_eq!(got[2], [4.0, 20.0, 120.0]);
}

fn a_recurrence_from_a_start(subject: &Subject) {
    let got = all(subject, |p| {
        let (a, b) = (floats(p, [4], &[9.0, 0.5, 2.0, 0.0]), floats(p, [4], &[4.0, 1.0, -1.0, 7.0]));
        let h = a.recur(0, b);
        Ok([vec![h], grad(h.sum_all(), &[a, b])?].concat())
    });
    assert_eq!(got[0], [4.0, 3.0, 5.0, 7.0]);
    // s = g + a[t + 1] s[t + 1]; da = h[t - 1] s.
    assert_eq!(got[2], [2.5, 3.0, 1.0, 1.0]);
    assert_eq!(got[1], [0.0, 12.0, 3.0, 5.0]);
}

fn products_beyond_the_range(subject: &Subject) {
    // The product leaves the range of f32 only where the definition's own order does.
    let got = all(subject, |p| {
        let x = floats(p, [6], &[1e-30, 1e30, 1e30, 1e-30, 1e30, 1e-30]);
        let none = floats(p, [3], &[f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0]);
        Ok(vec![x.cumprod(0), none.logcumsumexp(0), floats(p, [3], &[1e4, 1e4, -1e4]).logcumsumexp(0)])
    });
    near("cumprod", &got[0], &[1e-30, 1.0, 1e30, 1.0, 1e30, 1.0], 1e-5);
    near("logcumsumexp", &got[1], &[f64::NEG_INFINITY, f64::NEG_INFINITY, 1.0], 1e-6);
    near("logcumsumexp", &got[2], &[1e4, 1e4 + 2f64.ln(), 1e4 + 2f64.ln()], 1e-6);
}

fn sorting_is_stable(subject: &Subject) {
    let got = all(subject, |p| {
        let x = ints(p, [6], &[2, 1, 2, 1, 2, 0]);
        let holes = floats(p, [5], &[NAN, 1.0, -0.0, NAN, 0.0]);
        let (low, i) = holes.sort(0, false);
        Ok(vec![x.argsort(0, false), x.argsort(0, true), low, i, holes.argsort(0, true)])
    });
    assert_eq!(got[0], [5.0, 1.0, 3.0, 0.0, 2.0, 4.0]);
    assert_eq!(got[1], [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    near("NaN is last", &got[2], &[0.0, 0.0, 1.0, f64::NAN, f64::NAN], 0.0);
    assert_eq!(got[3], [2.0, 4.0, 1.0, 0.0, 3.0]);
    assert_eq!(got[4], [0.0, 3.0, 1.0, 2.0, 4.0]);
}

fn sorting_views(subject: &Subject) {
    let got = all(subject, |p| {
        let x = floats(p, [2, 3], &[1.0, 2.0, 3.0, 30.0, 10.0, 20.0]);
        let (row, i) = x.slice(0, 1..).sort(1, false);
        let back = floats(p, [3, 4], &[4.0, 1.0, 3.0, 2.0, 8.0, 5.0, 7.0, 6.0, 12.0, 9.0, 11.0, 10.0]);
        Ok(vec![row, i, back.flip(0).sort(1, false).0, back.flip(1).sort(0, true).0])
    });
    assert_eq!(got[0], [10.0, 20.0, 30.0]);
    assert_eq!(got[1], [1.0, 2.0, 0.0]);
    assert_eq!(got[2], [9.0, 10.0, 11.0, 12.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(got[3], [10.0, 11.0, 9.0, 12.0, 6.0, 7.0, 5.0, 8.0, 2.0, 3.0, 1.0, 4.0]);
}

fn many_lines(subject: &Subject) {
    let got = all(subject, |p| {
        let x = p.arange(0..280_000).reshape([70_000, 4]).rem(7);
        let sorted = x.sort(1, false).0.slice(0, -2..);
        let sums = x.cumsum(1).slice(0, -1..);
        Ok(vec![sorted, sums])
    });
    let row = |r: usize| (0..4).map(|c| ((4 * r + c) % 7) as f64).collect::<Vec<_>>();
    let mut last = [row(69_998), row(69_999)];
    let sum: Vec<f64> = last[1]
        .iter()
        .scan(0.0, |s, x| {
            *s += x;
            Some(*s)
        })
        .collect();
    last.iter_mut().for_each(|r| r.sort_by(f64::total_cmp));
    assert_eq!(got[0], last.concat());
    assert_eq!(got[1], sum);
}

fn the_best_few(subject: &Subject) {
    let got = all(subject, |p| {
        let x = floats(p, [5], &[5.0, 3.0, 3.0, 3.0, 1.0]);
        let (middle, k) = floats(p, [4], &[3.0, 1.0, 2.0, 4.0]).median(0);
        let holes = floats(p, [2, 3], &[1.0, NAN, 2.0, 3.0, 9.0, 4.0]);
        let q = floats(p, [5], &[10.0, 0.0, 30.0, 20.0, 40.0]);
        Ok(vec![
            middle,
            k,
            holes.median(1).0,
            x.kthvalue(2, 0).0,
            q.quantile(0.6, 0, Interpolation::Linear),
            q.quantile(0.6, 0, Interpolation::Lower),
            q.quantile(0.6, 0, Interpolation::Higher),
            q.quantile(0.625, 0, Interpolation::Nearest),
            q.quantile(0.6, 0, Interpolation::Midpoint),
            holes.quantile(0.0, 1, Interpolation::Lower),
        ])
    });
    assert_eq!(got[..2], [vec![2.0], vec![2.0]]);
    near("median of NaN", &got[2], &[f64::NAN, 4.0], 0.0);
    assert_eq!(got[3], [3.0]);
    let between: Vec<f64> = got[4..9].concat();
    near("quantile", &between, &[24.0, 20.0, 30.0, 20.0, 25.0], 1e-6);
    near("quantile of NaN", &got[9], &[f64::NAN, 3.0], 0.0);
}

fn products_of_zeros_have_a_slope(subject: &Subject) {
    let got = all(subject, |p| {
        let zeros = floats(p, [4], &[2.0, 0.0, 3.0, 0.0]);
        Ok(vec![grad(zeros.cumprod(0).sum_all(), &[zeros])?[0]])
    });
    assert_eq!(got[0], [1.0, 8.0, 0.0, 0.0]);
}

fn of_equal_indices_the_last_wins(subject: &Subject) {
    let got = all(subject, |p| {
        let (line, here) = (floats(p, [3], &[7.0, 8.0, 9.0]), ints(p, [4], &[0, 0, 0, 0]));
        let values = floats(p, [4], &[1.0, 5.0, 5.0, 2.0]);
        let holes = floats(p, [4], &[1.0, NAN, 2.0, 3.0]);
        let nan = line.scatter_reduce(0, here, holes, ScatterReduce::Min, true);
        let mean = line.scatter_reduce(0, here, values, ScatterReduce::Mean, true);
        Ok(vec![line.scatter(0, here, values), nan, mean])
    });
    assert_eq!(got[0], [2.0, 8.0, 9.0]);
    near("scatter_min of NaN", &got[1], &[f64::NAN, 8.0, 9.0], 0.0);
    near("scatter_mean", &got[2], &[4.0, 8.0, 9.0], 1e-6);
}

fn permutations(subject: &Subject) {
    let got = all(subject, |p| {
        Ok(vec![p.randperm("a", 1000), p.randperm("b", 1000), p.randperm("a", 0), p.randperm("c", 1)])
    });
    for order in &got[..2] {
        let mut sorted = order.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.iter().enumerate().all(|(i, x)| *x == i as f64));
        assert_ne!(&sorted, order);
    }
    assert_ne!(got[0], got[1]);
    assert_eq!(got[2..], [vec![], vec![0.0]]);
}

fn mistakes_are_errors() {
    let found = |p: &Pass| -> Result<Vec<(ErrorKind, String)>> {
        let (x, i) = (p.zeros([2, 3]), p.arange(0..3));
        let (two, flags) = (i.reshape([1, 3]), x.gt(0.0));
        let wrong = [
            x.try_cumsum(2),
            x.try_cumprod(-3),
            x.try_logcumsumexp(5),
            x.try_cummax(2).map(|y| y.0),
            x.try_recur(0, p.zeros([4])),
            flags.try_recur(0, flags),
            x.try_argsort(2, false),
            x.try_sort(-3, true).map(|y| y.0),
            x.try_topk(4, 1, true).map(|y| y.0),
            x.try_kthvalue(0, 1).map(|y| y.0),
            x.try_kthvalue(4, 1).map(|y| y.0),
            p.zeros([2, 0]).try_median(1).map(|y| y.0),
            x.try_quantile(1.5, 1, Interpolation::Linear),
            x.try_searchsorted(p.zeros([3, 3]), false),
            x.try_gather(1, i),
            x.try_gather(0, p.arange(0..4).reshape([1, 4])),
            x.try_scatter(0, two, p.zeros([1, 2])),
            x.try_scatter_add(1, p.arange(0..6).reshape([3, 2]), p.zeros([3, 2])),
            x.try_scatter(1, x, x),
            two.try_scatter_reduce(1, two, two, ScatterReduce::Mean, true),
            x.try_index_add(1, i, p.zeros([2, 2])),
            x.try_index_copy(0, two.expand([2, 3]), x),
            x.try_index_fill(0, p.zeros([1]), 1.0),
            x.try_put(i, p.zeros([2]), true),
            x.try_take_along(1, p.arange(0..6).reshape([3, 2])),
        ];
        Ok(wrong.into_iter().map(|e| e.expect_err("a mistake")).map(|e| (e.kind(), e.to_string())).collect())
    };
    for (i, (kind, text)) in oracle().pass(found).unwrap().into_iter().enumerate() {
        assert!(matches!(kind, ErrorKind::Shape | ErrorKind::DType | ErrorKind::Argument), "{i}: {kind:?}");
        assert!(text.contains(file!()), "{i}: no line of this file in {text}");
    }
}
