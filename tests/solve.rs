//! Factorisations and solutions of small matrices: numbers worked out by hand, matrices without a
//! solution, more matrices than workgroups of one axis; mistakes.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{DType, ErrorKind, HostTensor, Pass, Result, Tensor, Triangular, grad};

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{floats, near, run};

crate::suite![
    plain: mistakes_name_the_rule, gradient_of_a_factor_is_symmetric, determinants_bend_as_they_should;
    device: solutions_by_hand, matrices_without_a_solution, many_matrices, determinants_of_singular_matrices_have_slopes,
        large_matrices_or_a_clear_limit,
];

const NAN: f64 = f64::NAN;

fn solutions_by_hand(on: &Subject) {
    let a = |p: &Pass| floats(p, [3, 3], &[4., 12., -16., 12., 37., -43., -16., -43., 98.]);
    // The first pivot is 0: rows must change places.
    let turned = |p: &Pass| floats(p, [3, 3], &[0., 2., 1., 1., 0., 0., 3., 0., 1.]);
    let upper = Triangular { upper: true, ..Triangular::default() };
    let half = |p: &Pass| floats(p, [2, 2], &[2., 7., 3., 4.]);
    let all: &[(&str, &dyn Fn(&Pass) -> Tensor, &[usize], &[f64])] = &[
        ("cholesky", &|p| a(p).cholesky(), &[3, 3], &[2., 0., 0., 6., 1., 0., -8., 5., 3.]),
        (
            "cholesky reads the lower half",
            &|p| floats(p, [2, 2], &[4., 99., 2., 2.]).cholesky(),
            &[2, 2],
            &[2., 0., 1., 1.],
        ),
        ("det", &|p| a(p).det(), &[], &[36.]),
        ("det exchanged", &|p| turned(p).det(), &[], &[-2.]),
        ("det of no rows", &|p| p.zeros([2, 0, 0]).det(), &[2], &[1., 1.]),
        ("det batch", &|p| floats(p, [2, 1, 1], &[3., -4.]).det(), &[2], &[3., -4.]),
        ("slogdet sign", &|p| turned(p).slogdet().0, &[], &[-1.]),
        ("slogdet log", &|p| turned(p).slogdet().1, &[], &[std::f64::consts::LN_2]),
        ("slogdet of no rows", &|p| p.zeros([0, 0]).slogdet().1, &[], &[0.]),
        // The determinant itself is beyond f32.
        ("slogdet large", &|p| (p.eye(40) * 1e-4).slogdet().1, &[], &[40. * 1e-4f64.ln()]),
        ("logdet", &|p| a(p).logdet(), &[], &[36f64.ln()]),
        ("logdet negative", &|p| turned(p).logdet(), &[], &[NAN]),
        ("solve", &|p| turned(p).solve(floats(p, [3], &[4., 1., 5.])), &[3], &[1., 1., 2.]),
        ("inverse", &|p| floats(p, [2, 2], &[0., 2., 4., 0.]).inverse(), &[2, 2], &[0., 0.25, 0.5, 0.]),
        (
            "inverse of integers",
            &|p| (p.arange(0..4).reshape([2, 2])).inverse(),
            &[2, 2],
            &[-1.5, 0.5, 1., 0.],
        ),
        (
            "solve_triangular lower",
            &|p| half(p).solve_triangular(floats(p, [2, 1], &[2., 11.]), Triangular::default()),
            &[2, 1],
            &[1., 2.],
        ),
        (
            "solve_triangular upper",
            &|p| half(p).solve_triangular(floats(p, [2, 1], &[16., 8.]), upper),
            &[2, 1],
            &[1., 2.],
        ),
        (
            "solve_triangular unit",
            &|p| {
                half(p).solve_triangular(
                    floats(p, [2, 1], &[1., 5.]),
                    Triangular { unit: true, ..Triangular::default() },
                )
            },
            &[2, 1],
            &[1., 2.],
        ),
        (
            "solve_triangular right",
            &|p| {
                half(p).solve_triangular(
                    floats(p, [1, 2], &[8., 8.]),
                    Triangular { right: true, ..Triangular::default() },
                )
            },
            &[1, 2],
            &[1., 2.],
        ),
        (
            "cholesky_solve",
            &|p| floats(p, [3, 1], &[0., 6., 39.]).cholesky_solve(a(p).cholesky()),
            &[3, 1],
            &[1., 1., 1.],
        ),
        (
            "matrix_power",
            &|p| floats(p, [2, 2], &[2., 0., 0., 4.]).matrix_power(-2),
            &[2, 2],
            &[0.25, 0., 0., 0.0625],
        ),
    ];
    let ctx = on.context();
    for (name, f, shape, want) in all {
        let (got_shape, _, got) = run(&ctx, f);
        assert_eq!(got_shape.dims(), *shape, "{name}");
        near(name, &got, want, 1e-5);
    }
}

fn matrices_without_a_solution(on: &Subject) {
    let n = f32::NAN;
    let all: &[(&str, &dyn Fn(&Pass) -> Tensor, &[f64])] = &[
        // Beside one that has a solution.
        (
            "indefinite",
            &|p| floats(p, [2, 2, 2], &[1., 2., 2., 1., 9., 0., 3., 2.]).cholesky(),
            &[NAN, 0., NAN, NAN, 3., 0., 1., 1.],
        ),
        ("only half definite", &|p| p.ones([2, 2]).cholesky(), &[NAN, 0., NAN, NAN]),
        ("cholesky of NaN", &|p| floats(p, [2, 2], &[1., 0., n, 1.]).cholesky(), &[NAN, 0., NAN, NAN]),
        (
            "singular",
            &|p| floats(p, [2, 2, 2], &[1., 2., 2., 4., 2., 0., 0., 4.]).solve(p.ones([2, 2])),
            &[NAN, NAN, 0.5, 0.25],
        ),
        ("solve of NaN", &|p| floats(p, [2, 2], &[1., n, 2., 4.]).solve(p.ones([2])), &[NAN, NAN]),
        ("inverse of zeros", &|p| p.zeros([2, 2]).inverse(), &[NAN; 4]),
        ("det singular", &|p| floats(p, [2, 2], &[1., 2., 2., 4.]).det(), &[0.]),
        ("det of NaN", &|p| floats(p, [2, 2], &[n, 2., 2., 4.]).det(), &[NAN]),
        ("sign singular", &|p| p.zeros([3, 3]).slogdet().0, &[0.]),
        ("log singular", &|p| p.zeros([3, 3]).slogdet().1, &[f64::NEG_INFINITY]),
        ("sign of NaN", &|p| p.full([2, 2], NAN).slogdet().0, &[NAN]),
    ];
    let ctx = on.context();
    for (name, f, want) in all {
        near(name, &run(&ctx, f).2, want, 1e-6);
    }
}

/// The determinant of the rows and columns that are left, along the first row.
fn minor(a: &[f64], n: usize, rows: &[usize], columns: &[usize]) -> f64 {
    let Some((first, rows)) = rows.split_first() else { return 1.0 };
    let others = |j: usize| columns.iter().copied().filter(|c| *c != j).collect::<Vec<_>>();
    let term = |(i, j): (usize, &usize)| {
        let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
        sign * a[first * n + j] * minor(a, n, rows, &others(*j))
    };
    columns.iter().enumerate().map(term).sum()
}

fn cofactors(a: &[f64], n: usize) -> Vec<f64> {
    let without = |i: usize| (0..n).filter(|r| *r != i).collect::<Vec<_>>();
    let one = |e: usize| {
        let sign = if (e / n + e % n).is_multiple_of(2) { 1.0 } else { -1.0 };
        sign * minor(a, n, &without(e / n), &without(e % n))
    };
    (0..n * n).map(one).collect()
}

/// Matrices that lack no rank, one, two, and all.
fn poor_matrices() -> Vec<(&'static str, usize, Vec<f64>)> {
    let wave = |n: usize, turn: f64| -> Vec<f64> {
        (0..n * n).map(|i| f64::from((i as f64 * 1.7 + turn).sin() as f32)).collect()
    };
    let twice = |n: usize| {
        let mut a = wave(n, 0.3);
        a.copy_within(0..n, 2 * n);
        a
    };
    let mut empty_column = wave(5, 0.8);
    empty_column.iter_mut().skip(2).step_by(5).for_each(|x| *x = 0.0);
    let mut outer = [0.0; 36];
    outer.iter_mut().enumerate().for_each(|(i, x)| *x = ((i / 6 + 1) * (i % 6 + 2)) as f64 / 8.0);
    let ramp = |n: usize| (1..=n * n).map(|i| i as f64).collect::<Vec<_>>();
    vec![
        ("one", 1, vec![0.0]),
        ("two of rank 1", 2, vec![1., 2., 2., 4.]),
        ("two of rank 0", 2, vec![0.0; 4]),
        ("three of rank 2", 3, ramp(3)),
        ("three of rank 1", 3, vec![1., 2., 3., 2., 4., 6., -1., -2., -3.]),
        ("three of rank 3", 3, wave(3, 0.2)),
        ("four with equal rows", 4, twice(4)),
        ("four of rank 2", 4, ramp(4)),
        ("four of rank 0", 4, vec![0.0; 16]),
        ("five with a column of zeros", 5, empty_column),
        ("six with equal rows", 6, twice(6)),
        ("six of rank 1", 6, outer.to_vec()),
        ("seven of rank 7", 7, wave(7, 0.9)),
    ]
}

/// What a determinant grows by are the cofactors, also where there is no inverse.
fn determinants_of_singular_matrices_have_slopes(on: &Subject) {
    let ctx = on.context();
    for (name, n, a) in poor_matrices() {
        let size = a.iter().fold(0f64, |m, x| m.max(x.abs())).powi(n as i32 - 1).max(1.0);
        let want: Vec<f64> = cofactors(&a, n).iter().map(|c| 3.0 * c / size).collect();
        let narrow: Vec<f32> = a.iter().map(|x| *x as f32).collect();
        let got = run(&ctx, |p| {
            let a = floats(p, [n, n], &narrow);
            grad(a.det() * 3.0, &[a]).unwrap()[0] / size
        });
        near(name, &got.2, &want, if on.is_oracle() { 1e-10 } else { 2e-4 });
    }
    // Regular and singular ones in a batch, each with a gradient of its own.
    let a = [2., 0., 0., 3., 1., 2., 2., 4.];
    let got = run(&ctx, |p| {
        let a = floats(p, [2, 2, 2], &a);
        grad((a.det() * floats(p, [2], &[1.0, 10.0])).sum_all(), &[a]).unwrap()[0]
    });
    near("batch", &got.2, &[3., 0., 0., 2., 40., -20., -20., 10.], 1e-5);
    let identity = |n: usize| (0..n * n).map(move |i| if i % (n + 1) == 0 { 1f32 } else { 0.0 });
    let both: Vec<f32> = identity(4)
        .chain(identity(4).map(|x| 2.0 * x))
        .enumerate()
        .map(|(i, x)| if i == 0 { 0.0 } else { x })
        .collect();
    let got = run(&ctx, |p| {
        let a = floats(p, [2, 4, 4], &both);
        grad(a.det().sum_all(), &[a]).unwrap()[0]
    });
    let want: Vec<f64> = (0..32)
        .map(|i| {
            if i == 0 {
                1.0
            } else if i >= 16 && (i - 16) % 5 == 0 {
                8.0
            } else {
                0.0
            }
        })
        .collect();
    near("batch of four", &got.2, &want, 1e-5);
}

/// First and second derivatives against differences on the oracle, at singular matrices.
fn determinants_bend_as_they_should() {
    for (name, n, a) in poor_matrices() {
        // Of more than three rows, where two ranks are lacking, the second derivative is given up.
        if n > 3 && name.contains("of rank") && !name.contains("seven") {
            continue;
        }
        let a = HostTensor::new([n, n], &a).unwrap();
        wgrad::check_gradients(&[a], |_, x| x[0].det() * 0.5).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

fn many_matrices(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let count = 70_001usize;
    on.context()
        .pass(|p| {
            let i = p.arange(0..count as i32).cast(DType::F32) * 1e-4 + 1.0;
            let last = (count - 1) as f64 * 1e-4 + 1.0;
            let zero = i.zeros_like();
            let a = Tensor::stack(&[zero, i, i * 2.0, zero], 1).reshape([count, 2, 2]);
            let square = a.matmul(a.t());
            let lower = Tensor::stack(&[i, zero, i, i], 1).reshape([count, 2, 2]);
            let b = p.ones([count, 2, 1]);
            let end = |x: Tensor| x.slice(0, -1..).to_vec::<f64>();
            near("det", &end(a.det())?, &[-2.0 * last * last], 1e-5);
            near("slogdet", &end(a.slogdet().0)?, &[-1.0], 0.0);
            near("solve", &end(a.solve(b))?, &[0.5 / last, 1.0 / last], 1e-5);
            near("cholesky", &end(square.cholesky())?, &[last, 0.0, 0.0, 2.0 * last], 1e-5);
            let x = lower.solve_triangular(b, Triangular::default());
            near("solve_triangular", &end(x)?, &[1.0 / last, 0.0], 1e-5);
            Ok(())
        })
        .unwrap();
}

/// In memory that workgroups share with nobody, 300 rows have no room.
fn large_matrices_or_a_clear_limit(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let n = 300usize;
    let residual = |f: fn(Tensor, Tensor) -> Tensor| {
        on.context().pass(|p| {
            let x = p.arange(0..(n * n) as i32).cast(DType::F32).reshape([n, n]);
            let a = (x * 0.37).sin() * 0.05 + p.eye(n) * 2.0;
            f(a, p.eye(n)).abs().max(..).item::<f64>()
        })
    };
    for (name, f) in [
        ("solve", (|a, one| a.matmul(a.inverse()) - one) as fn(Tensor, Tensor) -> Tensor),
        ("cholesky", |a, one| {
            let spd = a.matmul(a.t()) + one;
            let l = spd.cholesky();
            l.matmul(l.t()) - spd
        }),
        ("solve_triangular", |a, one| {
            let half = a.tril(0);
            half.matmul(half.solve_triangular(one, Triangular::default())) - one
        }),
    ] {
        match residual(f) {
            Ok(r) => assert!(r < 1e-4, "{name}: {r}"),
            Err(e) => assert!(on.is_vulkan() && e.kind() == ErrorKind::Limit, "{name}: {e}"),
        }
    }
}

fn gradient_of_a_factor_is_symmetric() {
    oracle()
        .pass(|p| {
            let a = floats(p, [2, 2], &[4., 2., 2., 5.]);
            // The factor is [[2, 0], [1, 2]]; the gradient of its last element.
            let y = a.cholesky().select_index(0, 1).select_index(0, 1);
            let g = grad(y, &[a])?[0].to_vec::<f64>()?;
            near("gradient", &g, &[0.0625, -0.125, -0.125, 0.25], 1e-12);
            Ok(())
        })
        .unwrap();
}

fn mistakes_name_the_rule() {
    let found = |p: &Pass| -> Result<Vec<(ErrorKind, String, &'static str)>> {
        let (a, x, v) = (p.eye(3), p.ones([3, 2]), p.ones([2]));
        let how = Triangular::default();
        let wrong = [
            (x.try_cholesky(), "cholesky: needs square matrices over the last two axes, got [3, 2]"),
            (v.try_det(), "det: needs square matrices"),
            (x.try_inverse(), "inverse: needs square matrices"),
            (x.try_solve(v), "solve: needs square matrices"),
            (a.try_solve(v), "[3, 3] and [2, 1] do not fit [.., N, N] and [.., N, K]"),
            (p.ones([2, 3, 3]).try_solve(p.ones([4, 3, 1])), "leading axes of [2, 3, 3] and [4, 3, 1]"),
            (a.try_solve_triangular(v, how), "do not fit"),
            (a.try_solve_triangular(v, Triangular { right: true, ..how }), "the right side is no matrix"),
            (a.try_solve_triangular(x, Triangular { right: true, ..how }), "do not fit"),
            (v.try_matrix_power(-1), "matrix_power: needs square matrices"),
        ];
        let mut all = Vec::new();
        for (result, want) in wrong {
            let e = result.expect_err(want);
            all.push((e.kind(), e.to_string(), want));
        }
        Ok(all)
    };
    for (kind, text, want) in oracle().pass(found).unwrap() {
        assert!(matches!(kind, ErrorKind::Shape | ErrorKind::Argument), "{kind:?}: {text}");
        assert!(text.contains(want), "`{want}` is not in {text}");
        assert!(text.contains(file!()), "no line of this file in {text}");
    }
}
