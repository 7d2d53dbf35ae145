//! Reading and writing at indices: every way to combine, indices smaller than the operands, ties.

use wgrad::{DType, ScatterReduce, Tensor};

use super::case::{Elems, Operand};
use super::{Case, bools, case, float, floats_of, ints, ints_of};

/// Integers of another dtype.
fn given(dims: &[usize], dtype: DType, elems: &[i64]) -> Operand {
    Operand { dims: dims.to_vec(), elems: Elems::Given(elems.iter().map(|e| *e as f64).collect(), dtype) }
}

fn reduced(how: ScatterReduce, include_self: bool) -> impl Fn(Tensor, i32, Tensor, Tensor) -> Tensor + Copy {
    move |x, axis, idx, src| x.scatter_reduce(axis, idx, src, how, include_self)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = gathers();
    let x = || float([4, 5], -2.0, 2.0);
    let idx = || ints_of([4, 3], &[0, 4, 0, 1, 1, 1, 2, 0, 3, 4, 3, 4]);
    let src = || float([4, 3], -2.0, 2.0);
    let down = || [float([5, 3], -2.0, 2.0), ints([4, 3], 0, 5), float([4, 3], -2.0, 2.0)];
    let small = || [float([4, 5], -2.0, 2.0), ints([2, 3], 0, 5), float([3, 6], -2.0, 2.0)];
    all.push(case("scatter", [x(), idx(), src()], |_, x| x[0].scatter(1, x[1], x[2])));
    all.push(case("scatter first axis", down(), |_, x| x[0].scatter(0, x[1], x[2])));
    all.push(case("scatter small", small(), |_, x| x[0].scatter(1, x[1], x[2])));
    all.push(
        case("scatter bool", [bools([4, 5]), idx(), bools([4, 3])], |_, x| x[0].scatter(1, x[1], x[2]))
            .no_grad(),
    );
    all.push(case("scatter empty", [x(), ints([4, 0], 0, 5), float([4, 0], 0.0, 1.0)], |_, x| {
        x[0].scatter(1, x[1], x[2])
    }));
    all.push(case("scatter_add", [x(), idx(), src()], |_, x| x[0].scatter_add(1, x[1], x[2])));
    all.push(case("scatter_add small", small(), |_, x| x[0].scatter_add(1, x[1], x[2])));
    all.push(case("scatter_add empty", [x(), ints([4, 0], 0, 5), float([4, 0], 0.0, 1.0)], |_, x| {
        x[0].scatter_add(1, x[1], x[2])
    }));
    for (dtype, places) in [(DType::U8, [0, 2, 2, 4]), (DType::U32, [4, 0, 4, 1])] {
        let operands = [float([5], -2.0, 2.0), given(&[4], dtype, &places), float([4], -2.0, 2.0)];
        all.push(case(format!("scatter_add {dtype}"), operands.clone(), |_, x| {
            x[0].scatter_add(0, x[1], x[2])
        }));
        all.push(case(format!("scatter {dtype}"), operands, |_, x| x[0].scatter(0, x[1], x[2])));
    }
    use ScatterReduce::{Max, Mean, Min, Prod, Sum};
    for (name, how) in [("sum", Sum), ("prod", Prod), ("mean", Mean), ("max", Max), ("min", Min)] {
        for include_self in [true, false] {
            let with = if include_self { "" } else { " apart" };
            let f = reduced(how, include_self);
            all.push(case(format!("scatter_reduce {name}{with}"), [x(), idx(), src()], move |_, x| {
                f(x[0], 1, x[1], x[2])
            }));
            all.push(case(format!("scatter_reduce {name}{with} first axis"), down(), move |_, x| {
                f(x[0], 0, x[1], x[2])
            }));
            all.push(case(format!("scatter_reduce {name}{with} small"), small(), move |_, x| {
                f(x[0], 1, x[1], x[2])
            }));
            if how != Mean {
                let whole = [ints([4, 5], -5, 5), idx(), ints([4, 3], -5, 5)];
                let made = case(format!("scatter_reduce {name}{with} i32"), whole, move |_, x| {
                    f(x[0], 1, x[1], x[2])
                });
                all.push(made.no_grad());
            }
        }
    }
    // More columns than a dispatch has workgroups on one axis, with room for a few each.
    let many = [float([70_000, 2], -2.0, 2.0), ints([70_000, 2], 0, 2), float([70_000, 2], -2.0, 2.0)];
    all.push(
        case("scatter_reduce max many", many, |_, x| x[0].scatter_reduce(1, x[1], x[2], Max, false))
            .no_grad()
            .large(),
    );
    // Zeros: one in a place, two in a place, the base itself.
    let zeros = [
        floats_of([4], &[2.0, 3.0, 0.0, 5.0]),
        ints_of([6], &[0, 0, 1, 1, 1, 2]),
        floats_of([6], &[0.0, 4.0, 0.0, 0.0, 7.0, 3.0]),
    ];
    all.push(
        case("scatter_reduce prod zeros", zeros, |_, x| x[0].scatter_reduce(0, x[1], x[2], Prod, true))
            .once(),
    );

    let rows = || [float([5, 3], -2.0, 2.0), ints_of([4], &[2, 0, 2, 4]), float([4, 3], -2.0, 2.0)];
    let columns = || [float([3, 5], -2.0, 2.0), ints_of([4], &[2, 0, 2, 4]), float([3, 4], -2.0, 2.0)];
    all.push(case("index_add", rows(), |_, x| x[0].index_add(0, x[1], x[2])));
    all.push(case("index_add columns", columns(), |_, x| x[0].index_add(-1, x[1], x[2])));
    all.push(case("index_copy", rows(), |_, x| x[0].index_copy(0, x[1], x[2])));
    all.push(case("index_copy columns", columns(), |_, x| x[0].index_copy(1, x[1], x[2])));
    let fill = || [float([3, 5], -2.0, 2.0), ints_of([3], &[2, 0, 2])];
    all.push(case("index_fill", fill(), |_, x| x[0].index_fill(1, x[1], 7.5)));
    all.push(case("index_fill none", [float([3, 5], -2.0, 2.0), ints([0], 0, 1)], |_, x| {
        x[0].index_fill(1, x[1], 7.5)
    }));
    let put = || [float([3, 4], -2.0, 2.0), ints_of([2, 2], &[11, 0, 5, 0]), float([4], -2.0, 2.0)];
    all.push(case("put", put(), |_, x| x[0].put(x[1], x[2], false)));
    all.push(case("put accumulate", put(), |_, x| x[0].put(x[1], x[2], true)));
    all
}

fn gathers() -> Vec<Case> {
    let x = || float([4, 5], -2.0, 2.0);
    let mut all = vec![
        case("gather", [x(), ints([4, 3], 0, 5)], |_, x| x[0].gather(1, x[1])),
        case("gather first axis", [x(), ints([7, 5], 0, 4)], |_, x| x[0].gather(0, x[1])),
        case("gather small", [x(), ints([2, 6], 0, 5)], |_, x| x[0].gather(1, x[1])),
        case("gather one", [x(), ints([4, 1], 0, 5)], |_, x| x[0].gather(1, x[1])),
        case("gather none", [x(), ints([4, 0], 0, 5)], |_, x| x[0].gather(1, x[1])),
        case("take_along", [float([2, 4, 5], -2.0, 2.0), ints([1, 3, 5], 0, 4)], |_, x| {
            x[0].take_along(1, x[1])
        }),
        case("take_along broadcast", [float([1, 6], -2.0, 2.0), ints([3, 2], 0, 6)], |_, x| {
            x[0].take_along(1, x[1])
        }),
        case("take", [float([3, 4], -2.0, 2.0), ints([2, 3], 0, 12)], |_, x| x[0].take(x[1])),
        case("index_select", [x(), ints_of([6], &[3, 0, 3, 1, 2, 3])], |_, x| x[0].index_select(0, x[1])),
        case("index_select middle", [float([2, 4, 3], -2.0, 2.0), ints_of([4], &[1, 0, 3, 2])], |_, x| {
            x[0].index_select(1, x[1])
        }),
        case("one_hot", [ints([3, 2], 0, 5)], |_, x| x[0].one_hot(5)).no_grad(),
        case("index_select many", [float([3, 2], -2.0, 2.0), ints([70_000], 0, 3)], |_, x| {
            x[0].index_select(0, x[1])
        })
        .no_grad()
        .large(),
    ];
    for (dtype, places) in [(DType::U8, [0, 2, 2, 4]), (DType::U32, [4, 0, 4, 1])] {
        let operands = [float([5], -2.0, 2.0), given(&[4], dtype, &places)];
        all.push(case(format!("gather {dtype}"), operands, |_, x| x[0].gather(0, x[1])));
        let operands = [ints([5, 2], -9, 9), given(&[4], dtype, &places)];
        all.push(
            case(format!("index_select {dtype}"), operands, |_, x| x[0].index_select(0, x[1])).no_grad(),
        );
    }
    all
}
