//! Every elementwise row on every kind of shape.

use wgrad_graph::{Binary, DType, Unary};

use super::case::Elems;
use super::{Case, Operand, case, float, ints, spread};

/// Scalar, empty, sizes of one, odd, prime, one more than a workgroup, rank 8.
const SHAPES: [(&str, &[usize]); 7] = [
    ("", &[5, 7]),
    ("scalar", &[]),
    ("empty", &[3, 0, 2]),
    ("ones", &[1, 1, 1]),
    ("prime", &[13, 1, 11]),
    ("workgroup", &[257]),
    ("rank 8", &[1, 2, 1, 3, 2, 1, 2, 2]),
];

/// The case of a row: gradients on the first shape alone.
fn row(
    name: &str,
    shape: (&str, &[usize]),
    operands: Vec<Operand>,
    tolerance: f64,
    smooth: bool,
    f: Row,
) -> Case {
    let name = format!("{name} {}", shape.0).trim_end().to_owned();
    let made = match f {
        Row::Unary(op) => case(name, operands, move |_, x| x[0].unary(op)),
        Row::Binary(op) => case(name, operands, move |_, x| x[0].binary(op, x[1])),
    };
    let made = made.tolerance(tolerance.max(1e-6));
    if smooth && shape.0.is_empty() { made } else { made.no_grad() }
}

#[derive(Copy, Clone)]
enum Row {
    Unary(Unary),
    Binary(Binary),
}

/// Each row in every dtype of integers and truth that it takes: unsigned and narrow ones beside i32.
fn of_dtypes() -> Vec<Case> {
    let dims = [5, 7];
    let mut all = Vec::new();
    for dtype in [DType::Bool, DType::U8, DType::U32, DType::I32, DType::I64] {
        let (lo, hi) = match dtype {
            DType::Bool => (0.0, 2.0),
            DType::U8 | DType::U32 => (0.0, 7.0),
            _ => (-3.0, 4.0),
        };
        let operand = |turn: f64| {
            let elems = spread(dims.iter().product(), lo, hi, turn).iter().map(|x| x.floor()).collect();
            Operand { dims: dims.to_vec(), elems: Elems::Given(elems, dtype) }
        };
        // What is about 32 bits takes no others.
        let word = matches!(dtype, DType::I32 | DType::U32);
        for op in Unary::ALL {
            if op.row().takes(dtype) && (word || op != Unary::LeadingZeros) {
                let name = format!("{} of {dtype}", op.row().name);
                all.push(case(name, [operand(0.45)], move |_, x| x[0].unary(op)).tolerance(0.0).no_grad());
            }
        }
        for op in Binary::ALL {
            if op.row().takes(dtype) && (word || op != Binary::MulHigh) {
                let name = format!("{} of {dtype}", op.row().name);
                let pair = [operand(0.45), operand(2.15)];
                all.push(case(name, pair, move |_, x| x[0].binary(op, x[1])).tolerance(0.0).no_grad());
            }
        }
    }
    all
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for shape in SHAPES {
        let dims = shape.1;
        for op in Unary::ALL {
            let r = op.row();
            let f = Row::Unary(op);
            let (lo, hi) = (r.domain.lo, r.domain.hi);
            if r.float.is_some() {
                let smooth = op.dtype(DType::F64).is_float();
                all.push(row(r.name, shape, vec![float(dims, lo, hi)], r.tolerance, smooth, f));
            } else {
                all.push(row(r.name, shape, vec![ints(dims, lo as i64, hi as i64)], 0.0, false, f));
            }
        }
        for op in Binary::ALL {
            let r = op.row();
            let f = Row::Binary(op);
            let (lo, hi) = (r.domain.lo, r.domain.hi);
            if r.float.is_some() {
                let pair = vec![float(dims, lo, hi), float(dims, lo, hi)];
                all.push(row(r.name, shape, pair, r.tolerance, !op.compares(), f));
            } else {
                let pair = vec![ints(dims, lo as i64, hi as i64), ints(dims, lo as i64, hi as i64)];
                all.push(row(r.name, shape, pair, 0.0, false, f));
            }
        }
    }
    all.extend(of_dtypes());
    all
}
