//! Factorisations and solutions of small matrices.

use wgrad::{Pass, Tensor, Triangular};

use super::{Case, case, float};

/// Far from singular, whatever the layout repeats.
fn sound(p: &Pass, x: Tensor) -> Tensor {
    let n = x.shape()[x.rank() - 1];
    x * (1.0 / n.max(1) as f64) + p.eye(n).cast(x.dtype()) * 2.0
}

/// Symmetric and positive definite.
fn definite(p: &Pass, x: Tensor) -> Tensor {
    let n = x.shape()[x.rank() - 1];
    x.matmul(x.t()) * (1.0 / n.max(1) as f64) + p.eye(n).cast(x.dtype())
}

fn add(all: &mut Vec<Case>, shapes: &[&[usize]], heavy: bool, made: impl Fn(&[usize]) -> Case) {
    for shape in shapes {
        let case = made(shape).tolerance(2e-5);
        all.push(if heavy { case.no_grad().large() } else { case });
    }
}

/// One, several and no matrices, of one row to more than a lane each.
const SMALL: &[&[usize]] =
    &[&[1, 1], &[2, 2], &[5, 5], &[3, 4, 4], &[2, 1, 3, 3], &[0, 3, 3], &[2, 0, 0], &[9, 9]];
/// Too large for workgroup memory, or for a lane an element.
const LARGE: &[&[usize]] = &[&[2, 33, 33], &[67, 67], &[95, 95]];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (shapes, heavy) in [(SMALL, false), (LARGE, true)] {
        let x = |s: &[usize]| float(s, -1.0, 1.0);
        add(&mut all, shapes, heavy, |s| {
            case(format!("cholesky {s:?}"), [x(s)], |p, x| definite(p, x[0]).cholesky())
        });
        add(&mut all, shapes, heavy, |s| {
            case(format!("inverse {s:?}"), [x(s)], |p, x| sound(p, x[0]).inverse())
        });
        add(&mut all, shapes, heavy, |s| {
            // The determinant grows with the size.
            let scale = if s[s.len() - 1] > 9 { 0.5 } else { 1.0 };
            case(format!("det {s:?}"), [x(s)], move |p, x| (sound(p, x[0]) * scale).det())
        });
        add(&mut all, shapes, heavy, |s| {
            case(format!("slogdet {s:?}"), [x(s)], |p, x| {
                let (sign, logs) = sound(p, x[0]).slogdet();
                sign * logs
            })
        });
        for columns in [1, 3, 40] {
            let pair = move |s: &[usize]| {
                let b = [&s[..s.len() - 1], &[columns]].concat();
                [float(s, -1.0, 1.0), float(b, -1.0, 1.0)]
            };
            let few = if columns == 40 && !heavy { &shapes[2..4] } else { shapes };
            add(&mut all, few, heavy, |s| {
                case(format!("solve {s:?} {columns}"), pair(s), |p, x| sound(p, x[0]).solve(x[1]))
            });
            add(&mut all, few, heavy, |s| {
                case(format!("cholesky_solve {s:?} {columns}"), pair(s), |p, x| {
                    x[1].cholesky_solve(definite(p, x[0]).cholesky())
                })
            });
        }
        for (name, upper, right, unit) in [
            ("lower", false, false, false),
            ("upper", true, false, false),
            ("lower unit", false, false, true),
            ("upper unit", true, false, true),
            ("lower right", false, true, false),
            ("upper right unit", true, true, true),
        ] {
            let how = Triangular { upper, right, unit };
            add(&mut all, shapes, heavy, |s| {
                let (lead, n) = (&s[..s.len() - 2], s[s.len() - 1]);
                let b = [lead, &if right { [3, n] } else { [n, 3] }].concat();
                case(
                    format!("solve_triangular {name} {s:?}"),
                    [float(s, -1.0, 1.0), float(b, -1.0, 1.0)],
                    move |p, x| sound(p, x[0]).solve_triangular(x[1], how),
                )
            });
        }
    }
    let lower = Triangular::default();
    for (a, b) in [
        (&[3, 3][..], &[3][..]),
        (&[2, 3, 3], &[2, 3]),
        (&[3, 3], &[2, 4, 3, 2]),
        (&[2, 3, 3], &[3, 2]),
        (&[2, 1, 3, 3], &[4, 3, 2]),
    ] {
        let pair = [float(a, -1.0, 1.0), float(b, -1.0, 1.0)];
        all.push(case(format!("solve {a:?} {b:?}"), pair.clone(), |p, x| sound(p, x[0]).solve(x[1])));
        if a.len() == b.len() || b.len() > 2 {
            let f = move |p: &Pass, x: &[Tensor]| sound(p, x[0]).solve_triangular(x[1], lower);
            all.push(case(format!("solve_triangular {a:?} {b:?}"), pair, f));
        }
    }
    all.push(case("logdet", [float([2, 3, 3], -1.0, 1.0)], |p, x| definite(p, x[0]).logdet()));
    for n in [-1, -3] {
        let f = move |p: &Pass, x: &[Tensor]| sound(p, x[0]).matrix_power(n);
        all.push(case(format!("matrix_power {n}"), [float([2, 3, 3], -1.0, 1.0)], f));
    }
    all
}
