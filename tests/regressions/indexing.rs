//! Faults of indexing, gathering and scattering.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use wgrad::{Context, ErrorKind, Pass, ScatterReduce, Tensor, grad};

use super::{each_gradient, every_way, floats, ints, ramp, ways};
use crate::Subject;
use crate::ops::{self, near};

crate::suite![
    plain: ;
    device: b119_scatter_by_coordinates, b121_gather_by_an_index_that_broadcasts,
        b122_select_along_a_middle_axis, b124_indices_out_of_range, b127_scatter_of_nan,
        b128_gradient_of_a_scattered_maximum, b130_more_rows_than_workgroups,
];

/// Coordinates count up a flat index; all end in component 0.
fn b119_scatter_by_coordinates(on: &Subject) {
    let values: Vec<f64> = (1..=8).map(|i| f64::from(10 * i)).collect();
    let operands = [floats([1, 2, 4, 2], &[0.0; 16]), floats([1, 2, 4], &values)];
    let f = |p: &Pass, x: &[Tensor]| x[0].put((p.arange(0..8) * 2).reshape([1, 2, 4]), x[1], false);
    let want: Vec<f64> = values.iter().flat_map(|v| [*v, 0.0]).collect();
    every_way(on, &operands, f, &[1, 2, 4, 2], &want);
    let zeros = [0.0, 1.0].repeat(8);
    each_gradient(on, &operands, f, &[&zeros, &[1.0; 8]]);
}

fn b121_gather_by_an_index_that_broadcasts(on: &Subject) {
    let operands = || [ramp([3, 4, 2]), ints([4], &[0, 2, 1, 3])];
    let block = [0., 1., 4., 5., 2., 3., 6., 7.];
    let want: Vec<f64> = (0..3).flat_map(|b| block.map(|x| x + f64::from(8 * b))).collect();
    let gather = |_: &Pass, x: &[Tensor]| x[0].gather(1, x[1].reshape([1, 4, 1]).expand([3, 4, 2]));
    every_way(on, &operands(), gather, &[3, 4, 2], &want);
    let along = |_: &Pass, x: &[Tensor]| x[0].take_along(1, x[1].reshape([1, 4, 1]));
    every_way(on, &operands(), along, &[3, 4, 2], &want);
    // Of a permuted tensor.
    let permuted = |_: &Pass, x: &[Tensor]| {
        let y = x[0].permute([1, 0, 2]).gather(0, x[1].reshape([4, 1, 1]).expand([4, 3, 2]));
        y.permute([1, 0, 2])
    };
    every_way(on, &operands(), permuted, &[3, 4, 2], &want);
}

fn b122_select_along_a_middle_axis(on: &Subject) {
    let x = floats([2, 4, 2], &[1., 2., 3., 4., 5., 6., 7., 8.].repeat(2));
    let want = [3., 4., 1., 2., 7., 8., 5., 6.].repeat(2);
    let f = |_: &Pass, x: &[Tensor]| x[0].index_select(1, x[1]);
    every_way(on, &[x, ints([4], &[1, 0, 3, 2])], f, &[2, 4, 2], &want);
}

fn b124_indices_out_of_range(on: &Subject) {
    let methods: [fn(Tensor, Tensor) -> Tensor; 9] = [
        |x, i| x.gather(0, i),
        |x, i| x.index_select(0, i),
        |x, i| x.take(i),
        |x, i| x.unsqueeze(1).embedding(i),
        |x, i| x.scatter(0, i, x),
        |x, i| x.scatter_add(0, i, x),
        |x, i| x.scatter_reduce(0, i, x, ScatterReduce::Max, true),
        |x, i| x.index_copy(0, i, x),
        |x, i| x.index_fill(0, i, 1.0),
    ];
    // An error flag is its device's: other tests must not hear of this one.
    let backend = on.fresh();
    for (m, method) in methods.iter().enumerate() {
        for bad in [-1, 3, i32::MIN, i32::MAX] {
            let ctx = Context::new(Arc::clone(&backend)).unwrap();
            let error = ctx.pass(|p| {
                let (x, i) = (ops::floats(p, [3], &[1.0, 2.0, 3.0]), ops::ints(p, [3], &[0, bad, 1]));
                method(x, i).to_vec::<f64>()
            });
            let error = error.expect_err("an index out of range");
            assert!(matches!(error.kind(), ErrorKind::Data | ErrorKind::Argument), "{m}: {error}");
            let text = error.to_string();
            assert!(text.contains("0..3") || text.contains("limit 3"), "{m}: {text}");
        }
    }
}

fn b127_scatter_of_nan(on: &Subject) {
    let operands = [floats([2], &[1.0, 1.0]), floats([1024], &[f64::NAN; 1024]), ints([1024], &[0; 1024])];
    for how in [ScatterReduce::Prod, ScatterReduce::Sum, ScatterReduce::Max, ScatterReduce::Mean] {
        let f = |_: &Pass, x: &[Tensor]| x[0].scatter_reduce(0, x[2], x[1], how, true);
        every_way(on, &operands, f, &[2], &[f64::NAN, 1.0]);
    }
    every_way(on, &operands, |_, x| x[0].scatter_add(0, x[2], x[1]), &[2], &[f64::NAN, 1.0]);
}

fn b128_gradient_of_a_scattered_maximum(on: &Subject) {
    let operands = [floats([3], &[7., 8., 9.]), floats([4], &[1., 5., 5., 2.]), ints([4], &[0, 0, 0, 0])];
    let f = |_: &Pass, x: &[Tensor]| x[0].scatter_reduce(0, x[2], x[1], ScatterReduce::Max, false);
    every_way(on, &operands, f, &[3], &[5., 8., 9.]);
    each_gradient(on, &operands, f, &[&[0., 1., 1.], &[0., 0.5, 0.5, 0.]]);
    // A place that equals none of what is written gets nothing, and nothing is divided by 0.
    ways(on, &[floats([2], &[f64::NAN, 1.0]), ints([2], &[0, 0])], |p, x, say| {
        let y = p.zeros([1]).scatter_reduce(0, x[1], x[0], ScatterReduce::Max, false);
        let g = grad(y.sum(..), &[x[0]]).unwrap()[0].to_vec::<f64>().unwrap();
        assert!(g.iter().all(|g| g.is_finite()), "{say}: {g:?}");
    });
}

fn b130_more_rows_than_workgroups(on: &Subject) {
    let rows = 70_000;
    let ids: Vec<i32> = (0..rows).map(|i| i * 7 % 5).collect();
    let last = 3 * ids[ids.len() - 1];
    ways(on, &[ramp([5, 3]), ints([ids.len()], &ids)], |p, x, say| {
        let tail = |y: Tensor| y.slice(0, -1..).to_vec::<f64>().unwrap();
        let want = [0, 1, 2].map(|c| f64::from(last + c));
        near(say, &tail(x[0].embedding(x[1])), &want, 0.0);
        // Of as many rows the last.
        let table = p.arange(0..rows * 3).reshape([ids.len(), 3]);
        let back = p.arange(0..rows) * -1 + (rows - 1);
        near(say, &tail(table.embedding(back)), &[0.0, 1.0, 2.0], 0.0);
        // And the gradient of the last row.
        let slope = grad(x[0].embedding(x[1]).sum(..), &[x[0]]).unwrap()[0];
        near(say, &slope.to_vec::<f64>().unwrap(), &[14_000.0; 15], 0.0);
    });
}
