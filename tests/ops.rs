//! Every tensor method on every device, against values worked out by hand; and mistakes.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, DType, ErrorKind, HostTensor, Pass, Result, Scalar, Shape, Tensor};

use crate::Subject;
use crate::devices::oracle;

crate::suite![
    plain: mistakes_are_errors_with_the_callers_line, operators_panic_with_the_rule;
    device: arithmetic_broadcasts_and_promotes, dtypes_of_results, integers_and_truth_values, reductions,
        products_of_matrices, movement, indices, creation, composites_by_hand,
];

/// Shape, dtype and elements of what `f` records.
pub(crate) fn run(ctx: &Context, f: impl Fn(&Pass) -> Tensor) -> (Shape, DType, Vec<f64>) {
    let read = |p: &Pass| {
        let y = f(p);
        Ok((y.shape(), y.dtype(), y.to_vec::<f64>()?))
    };
    ctx.pass(read).unwrap()
}

pub(crate) fn floats(p: &Pass, shape: impl Into<Shape>, elems: &[f32]) -> Tensor {
    p.input(HostTensor::new(shape, elems).unwrap()).unwrap()
}

pub(crate) fn ints(p: &Pass, shape: impl Into<Shape>, elems: &[i32]) -> Tensor {
    p.input(HostTensor::new(shape, elems).unwrap()).unwrap()
}

fn words(p: &Pass, elems: &[u32]) -> Tensor {
    p.input(HostTensor::new([elems.len()], elems).unwrap()).unwrap()
}

fn bools(p: &Pass, elems: &[bool]) -> Tensor {
    p.input(HostTensor::new([elems.len()], elems).unwrap()).unwrap()
}

/// 0, 1, 2 .. as f32.
fn ramp(p: &Pass, shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    floats(p, shape, &(0..shape.elems()).map(|i| i as f32).collect::<Vec<_>>())
}

pub(crate) fn near(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: {got:?} is not {want:?}");
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        let same = a.is_nan() && b.is_nan()
            || a == b
            || b.is_finite() && (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(same, "{what}: element {i} is {a}, not {b}; all: {got:?}, wanted {want:?}");
    }
}

/// Method, shape of the result, elements of the result.
type Case = (&'static str, Make, &'static [usize], &'static [f64]);

/// Records something.
pub(crate) type Make = fn(&Pass) -> Tensor;

fn check(subject: &Subject, cases: &[Case]) {
    let ctx = subject.context();
    for (name, f, shape, want) in cases {
        let (got_shape, _, got) = run(&ctx, f);
        assert_eq!(got_shape.dims(), *shape, "{name}");
        near(name, &got, want, 1e-6);
    }
}

const NAN: f64 = f64::NAN;

fn arithmetic_broadcasts_and_promotes(subject: &Subject) {
    check(
        subject,
        &[
            ("add row", |p| ramp(p, [2, 3]) + ramp(p, [3]), &[2, 3], &[0., 2., 4., 3., 5., 7.]),
            ("add column", |p| ramp(p, [2, 1]) + ramp(p, [3]), &[2, 3], &[0., 1., 2., 1., 2., 3.]),
            ("small first", |p| ramp(p, [1]) - ramp(p, [1, 3]), &[1, 3], &[0., -1., -2.]),
            (
                "two axes",
                |p| ramp(p, [2, 1, 2]) * ramp(p, [3, 1]),
                &[2, 3, 2],
                &[0., 0., 0., 1., 0., 2., 0., 0., 2., 3., 4., 6.],
            ),
            ("f64 right", |p| ramp(p, [3]) * 2.0, &[3], &[0., 2., 4.]),
            ("f32 right", |p| ramp(p, [3]) / 2f32, &[3], &[0., 0.5, 1.]),
            ("i32 right", |p| ramp(p, [3]) - 1, &[3], &[-1., 0., 1.]),
            ("f64 left", |p| 1.0 - ramp(p, [3]), &[3], &[1., 0., -1.]),
            ("f32 left", |p| 2f32 / (ramp(p, [2]) + 1.0), &[2], &[2., 1.]),
            ("i32 left", |p| 3 * ramp(p, [2]), &[2], &[0., 3.]),
            ("scalar", |p| ramp(p, [2]) + &Scalar::new(0.5), &[2], &[0.5, 1.5]),
            ("scalar left", |p| &Scalar::new(0.5) - ramp(p, [2]), &[2], &[0.5, -0.5]),
            ("neg", |p| -ramp(p, [2]), &[2], &[0., -1.]),
            (
                "rem",
                |p| floats(p, [4], &[5., -5., 5., -5.]) % floats(p, [4], &[3., 3., -3., -3.]),
                &[4],
                &[2., 1., -1., -2.],
            ),
            (
                "int rem",
                |p| ints(p, [4], &[5, -5, 5, -5]) % ints(p, [4], &[3, 3, -3, -3]),
                &[4],
                &[2., 1., -1., -2.],
            ),
            ("int div", |p| ints(p, [3], &[7, -7, 7]) / ints(p, [3], &[2, 2, 0]), &[3], &[3., -3., 0.]),
            ("pow", |p| ramp(p, [4]).pow(2.0), &[4], &[0., 1., 4., 9.]),
            ("int pow", |p| ints(p, [3], &[1, 2, 3]).pow(2), &[3], &[1., 4., 9.]),
            ("square", |p| ints(p, [2], &[-3, 4]).square(), &[2], &[9., 16.]),
            ("maximum", |p| floats(p, [3], &[1., 5., f32::NAN]).maximum(2.0), &[3], &[2., 5., NAN]),
            ("minimum", |p| floats(p, [3], &[1., 5., f32::NAN]).minimum(2.0), &[3], &[1., 2., NAN]),
            ("clamp", |p| floats(p, [4], &[-2., 0.5, 3., f32::NAN]).clamp(-1, 1), &[4], &[-1., 0.5, 1., NAN]),
            (
                "maximum nan",
                |p| floats(p, [3], &[f32::NAN, 1., 2.]).maximum(floats(p, [3], &[1., f32::NAN, 0.])),
                &[3],
                &[NAN, NAN, 2.],
            ),
            (
                "minimum nan",
                |p| floats(p, [3], &[f32::NAN, 1., 2.]).minimum(floats(p, [3], &[1., f32::NAN, 0.])),
                &[3],
                &[NAN, NAN, 0.],
            ),
            ("relu nan", |p| floats(p, [3], &[f32::NAN, -1., 2.]).relu(), &[3], &[NAN, 0., 2.]),
            ("max nan", |p| floats(p, [2, 3], &[1., f32::NAN, 2., 3., 4., -5.]).max(1), &[2], &[NAN, 4.]),
            ("min nan", |p| floats(p, [2, 3], &[1., f32::NAN, 2., 3., 4., -5.]).min(1), &[2], &[NAN, -5.]),
            (
                "choice nan",
                |p| {
                    let x = floats(p, [2], &[f32::NAN, 3.]);
                    x.gt(1.0).select(1.0, x)
                },
                &[2],
                &[NAN, 1.],
            ),
            ("clamp by scalar", |p| ramp(p, [3]).clamp(0.5, &Scalar::new(1.5)), &[3], &[0.5, 1., 1.5]),
            ("relu", |p| floats(p, [3], &[-1., 2., f32::NAN]).relu(), &[3], &[0., 2., NAN]),
            ("round", |p| floats(p, [4], &[0.5, 1.5, -2.5, 2.4]).round(), &[4], &[0., 2., -2., 2.]),
            ("is_nan", |p| floats(p, [2], &[f32::NAN, 1.]).is_nan(), &[2], &[1., 0.]),
            ("empty", |p| ramp(p, [0, 3]) + 1.0, &[0, 3], &[]),
            ("number", |p| p.full([], 2.0) * 3.0, &[], &[6.]),
        ],
    );
}

fn dtypes_of_results(subject: &Subject) {
    let cases: [(&str, Make, DType); 14] = [
        ("int and float number", |p| ints(p, [1], &[1]) * 0.5, DType::F32),
        ("int and int number", |p| ints(p, [1], &[1]) * 2, DType::I32),
        ("word and int number", |p| words(p, &[1]) + 2, DType::U32),
        ("int and float", |p| ints(p, [1], &[1]) + ramp(p, [1]), DType::F32),
        ("bool and int number", |p| bools(p, &[true]) + 1, DType::I32),
        ("bool and float number", |p| bools(p, &[true]) + 1.0, DType::F32),
        ("compare", |p| ramp(p, [1]).lt(1.0), DType::Bool),
        ("exp of int", |p| ints(p, [1], &[1]).exp(), DType::F32),
        ("mean of int", |p| ints(p, [1], &[1]).mean_all(), DType::F32),
        ("sum of bool", |p| bools(p, &[true]).sum_all(), DType::I32),
        ("argmax", |p| ramp(p, [1]).argmax(0), DType::I32),
        ("select number", |p| bools(p, &[true]).select(0, words(p, &[3])), DType::U32),
        ("zeros", |p| p.zeros([1]), DType::F32),
        ("arange", |p| p.arange(0..2), DType::I32),
    ];
    let ctx = subject.context();
    for (name, f, dtype) in cases {
        assert_eq!(run(&ctx, f).1, dtype, "{name}");
    }
}

fn integers_and_truth_values(subject: &Subject) {
    check(
        subject,
        &[
            ("eq", |p| ramp(p, [3]).eq(1.0), &[3], &[0., 1., 0.]),
            ("ne nan", |p| floats(p, [2], &[f32::NAN, 1.]).ne(1.0), &[2], &[1., 0.]),
            ("lt nan", |p| floats(p, [2], &[f32::NAN, 0.]).lt(1.0), &[2], &[0., 1.]),
            ("le", |p| ramp(p, [3]).le(1), &[3], &[1., 1., 0.]),
            ("gt ints", |p| ints(p, [3], &[-1, 0, 1]).gt(-1), &[3], &[0., 1., 1.]),
            ("ge words", |p| words(p, &[0, u32::MAX]).ge(1), &[2], &[0., 1.]),
            (
                "and",
                |p| bools(p, &[true, true, false]) & bools(p, &[true, false, false]),
                &[3],
                &[1., 0., 0.],
            ),
            ("or", |p| bools(p, &[true, true, false]) | bools(p, &[true, false, false]), &[3], &[1., 1., 0.]),
            (
                "xor",
                |p| bools(p, &[true, true, false]) ^ bools(p, &[true, false, false]),
                &[3],
                &[0., 1., 0.],
            ),
            ("not", |p| !bools(p, &[true, false]), &[2], &[0., 1.]),
            ("bit not", |p| !ints(p, [1], &[5]), &[1], &[-6.]),
            ("bits", |p| words(p, &[0b1100]) ^ words(p, &[0b1010]), &[1], &[6.]),
            ("shl", |p| words(p, &[3]) << 31, &[1], &[2147483648.]),
            ("shr words", |p| words(p, &[u32::MAX]) >> 28, &[1], &[15.]),
            ("shr ints", |p| ints(p, [1], &[-8]) >> 1, &[1], &[-4.]),
            ("mul_high", |p| words(p, &[u32::MAX]).mul_high(words(p, &[u32::MAX])), &[1], &[4294967294.]),
            ("leading_zeros", |p| words(p, &[1, 0, u32::MAX]).leading_zeros(), &[3], &[31., 32., 0.]),
            ("wrap", |p| words(p, &[u32::MAX]) + 2, &[1], &[1.]),
            ("select", |p| ramp(p, [3]).gt(0.5).select(ramp(p, [3]), -1.0), &[3], &[-1., 1., 2.]),
            (
                "select broadcasts",
                |p| bools(p, &[true, false]).select(ramp(p, [3, 1]), 9.0),
                &[3, 2],
                &[0., 9., 1., 9., 2., 9.],
            ),
            (
                "masked_fill",
                |p| ramp(p, [3]).masked_fill(bools(p, &[false, true, false]), -5.0),
                &[3],
                &[0., -5., 2.],
            ),
            (
                "saturate",
                |p| floats(p, [4], &[-1.9, 3e9, f32::NAN, 2.9]).cast(DType::I32),
                &[4],
                &[-1., 2147483647., 0., 2.],
            ),
            ("to bool", |p| floats(p, [3], &[0., -0.5, 2.]).cast(DType::Bool), &[3], &[0., 1., 1.]),
            ("to byte", |p| ints(p, [2], &[257, -1]).cast(DType::U8), &[2], &[1., 255.]),
        ],
    );
}

fn reductions(subject: &Subject) {
    check(
        subject,
        &[
            ("sum all", |p| ramp(p, [2, 3]).sum_all(), &[], &[15.]),
            ("sum rows", |p| ramp(p, [2, 3]).sum(1), &[2], &[3., 12.]),
            ("sum columns", |p| ramp(p, [2, 3]).sum(-2), &[3], &[3., 5., 7.]),
            ("sum keepdim", |p| ramp(p, [2, 3]).sum_keepdim(1), &[2, 1], &[3., 12.]),
            ("sum outer", |p| ramp(p, [2, 3, 2]).sum([0, -1]), &[3], &[14., 22., 30.]),
            ("sum nothing", |p| ramp(p, [2]).sum([]), &[2], &[0., 1.]),
            ("sum empty", |p| ramp(p, [0, 2]).sum(0), &[2], &[0., 0.]),
            ("sum bytes", |p| ints(p, [2], &[200, 100]).cast(DType::U8).sum(0), &[], &[300.]),
            ("sum of transposed", |p| ramp(p, [2, 3]).t().sum(1), &[3], &[3., 5., 7.]),
            ("mean", |p| ramp(p, [2, 3]).mean(0), &[3], &[1.5, 2.5, 3.5]),
            ("var", |p| ramp(p, [2, 3]).var(1, 0), &[2], &[2. / 3., 2. / 3.]),
            ("var keepdim", |p| ramp(p, [2, 3]).var_keepdim(.., 0), &[1, 1], &[35. / 12.]),
            ("max", |p| floats(p, [2, 2], &[1., -2., f32::NAN, 0.]).max(1), &[2], &[1., NAN]),
            ("max empty", |p| ramp(p, [0]).max(0), &[], &[f64::NEG_INFINITY]),
            ("min", |p| ints(p, [2, 2], &[1, -2, 5, 0]).min(0), &[2], &[1., -2.]),
            ("prod", |p| (ramp(p, [2, 2]) + 1.0).prod(..), &[], &[24.]),
            ("argmax", |p| floats(p, [2, 3], &[1., 3., 3., 0., f32::NAN, 5.]).argmax(1), &[2], &[1., 1.]),
            ("argmin", |p| floats(p, [2, 3], &[1., 3., 1., 0., -1., 5.]).argmin(-1), &[2], &[0., 1.]),
            ("argmax keepdim", |p| ramp(p, [3, 2]).argmax_keepdim(0), &[1, 2], &[2., 2.]),
            ("sum_to", |p| ramp(p, [2, 3, 2]).sum_to([3, 1]), &[3, 1], &[14., 22., 30.]),
        ],
    );
}

fn products_of_matrices(subject: &Subject) {
    check(
        subject,
        &[
            ("2 x 2", |p| ramp(p, [2, 3]).matmul(ramp(p, [3, 2])), &[2, 2], &[10., 13., 28., 40.]),
            ("dot", |p| ramp(p, [3]).matmul(ramp(p, [3])), &[], &[5.]),
            ("row", |p| ramp(p, [2]).matmul(ramp(p, [2, 3])), &[3], &[3., 4., 5.]),
            ("column", |p| ramp(p, [2, 3]).matmul(ramp(p, [3])), &[2], &[5., 14.]),
            (
                "batch by matrix",
                |p| ramp(p, [2, 2, 2]).matmul(ramp(p, [2, 1])),
                &[2, 2, 1],
                &[1., 3., 5., 7.],
            ),
            ("matrix by batch", |p| ramp(p, [1, 2]).matmul(ramp(p, [2, 2, 1])), &[2, 1, 1], &[1., 3.]),
            (
                "batch by batch",
                |p| ramp(p, [2, 1, 1, 2]).matmul(ramp(p, [3, 2, 1])),
                &[2, 3, 1, 1],
                &[1., 3., 5., 3., 13., 23.],
            ),
            ("batch by vector", |p| ramp(p, [2, 2, 2]).matmul(ramp(p, [2])), &[2, 2], &[1., 3., 5., 7.]),
            (
                "transposed",
                |p| ramp(p, [3, 2]).t().matmul(ramp(p, [2, 3]).t()),
                &[2, 2],
                &[10., 28., 13., 40.],
            ),
            ("nothing inside", |p| ramp(p, [2, 0]).matmul(ramp(p, [0, 2])), &[2, 2], &[0.; 4]),
        ],
    );
}

fn movement(subject: &Subject) {
    check(
        subject,
        &[
            ("reshape", |p| ramp(p, [2, 3]).reshape([-1, 2]), &[3, 2], &[0., 1., 2., 3., 4., 5.]),
            ("reshape transposed", |p| ramp(p, [2, 3]).t().reshape([6]), &[6], &[0., 3., 1., 4., 2., 5.]),
            ("flatten", |p| ramp(p, [2, 1, 3]).flatten(1), &[2, 3], &[0., 1., 2., 3., 4., 5.]),
            ("squeeze", |p| ramp(p, [2, 1]).squeeze(-1), &[2], &[0., 1.]),
            ("unsqueeze", |p| ramp(p, [2]).unsqueeze(-1), &[2, 1], &[0., 1.]),
            ("expand", |p| ramp(p, [2, 1]).expand([2, 2, 2]), &[2, 2, 2], &[0., 0., 1., 1., 0., 0., 1., 1.]),
            ("permute", |p| ramp(p, [1, 2, 3]).permute([2, 0, 1]), &[3, 1, 2], &[0., 3., 1., 4., 2., 5.]),
            ("transpose", |p| ramp(p, [2, 3]).transpose(0, -1), &[3, 2], &[0., 3., 1., 4., 2., 5.]),
            ("slice", |p| ramp(p, [2, 4]).slice(1, 1..3), &[2, 2], &[1., 2., 5., 6.]),
            ("slice from end", |p| ramp(p, [5]).slice(0, -3..-1), &[2], &[2., 3.]),
            ("slice nothing", |p| ramp(p, [5]).slice(0, 2..2), &[0], &[]),
            ("slice backwards", |p| ramp(p, [5]).slice(0, 4..2), &[0], &[]),
            ("slice step", |p| ramp(p, [7]).slice_step(0, 1.., 3), &[2], &[1., 4.]),
            ("slice back", |p| ramp(p, [7]).slice_step(0, 1..6, -2), &[3], &[5., 3., 1.]),
            ("slice of slice", |p| ramp(p, [9]).slice_step(0, .., -2).slice(0, 1..4), &[3], &[6., 4., 2.]),
            (
                "slice of reshape",
                |p| ramp(p, [3, 4]).t().reshape([2, 6]).slice(1, 2..4),
                &[2, 2],
                &[8., 1., 10., 3.],
            ),
            ("flip", |p| ramp(p, [2, 2]).flip([0, 1]), &[2, 2], &[3., 2., 1., 0.]),
            ("narrow", |p| ramp(p, [4]).narrow(0, 1, 2), &[2], &[1., 2.]),
            ("select_index", |p| ramp(p, [2, 3]).select_index(1, -1), &[2], &[2., 5.]),
            ("slice_at", |p| ramp(p, [5]).slice_at(0, &Scalar::new(3.0), 2), &[2], &[3., 4.]),
            ("slice_at number", |p| ramp(p, [5, 2]).slice_at(0, 1, 1), &[1, 2], &[2., 3.]),
            (
                "slice_assign",
                |p| ramp(p, [4]).slice_assign(0, 1, floats(p, [2], &[8., 9.])),
                &[4],
                &[0., 8., 9., 3.],
            ),
            (
                "slice_assign_at",
                |p| ramp(p, [2, 3]).slice_assign_at(1, &Scalar::new(2.0), floats(p, [2, 1], &[8., 9.])),
                &[2, 3],
                &[0., 1., 8., 3., 4., 9.],
            ),
            ("pad", |p| (ramp(p, [2]) + 1.0).pad(&[(1, 2)], 0.0), &[5], &[0., 1., 2., 0., 0.]),
            ("pad with", |p| ramp(p, [1, 2]).pad(&[(1, 0), (0, 1)], 7.0), &[2, 3], &[7., 7., 7., 0., 1., 7.]),
            (
                "pad with -inf",
                |p| ramp(p, [1]).pad(&[(0, 1)], f64::NEG_INFINITY),
                &[2],
                &[0., f64::NEG_INFINITY],
            ),
            (
                "cat",
                |p| Tensor::cat(&[ramp(p, [2, 1]), ramp(p, [2, 2])], 1),
                &[2, 3],
                &[0., 0., 1., 1., 2., 3.],
            ),
            ("cat promotes", |p| Tensor::cat(&[ints(p, [1], &[7]), ramp(p, [1])], 0) / 2.0, &[2], &[3.5, 0.]),
            ("stack", |p| Tensor::stack(&[ramp(p, [2]), ramp(p, [2]) + 5.0], -1), &[2, 2], &[0., 5., 1., 6.]),
            ("split", |p| ramp(p, [5]).split(0, 2)[2] * 10.0, &[1], &[40.]),
            ("chunk", |p| ramp(p, [2, 4]).chunk(1, 2)[1], &[2, 2], &[2., 3., 6., 7.]),
            ("repeat", |p| ramp(p, [2, 2]).repeat(1, 2), &[2, 4], &[0., 1., 0., 1., 2., 3., 2., 3.]),
            ("repeat rows", |p| ramp(p, [2, 1]).repeat(0, 3), &[6, 1], &[0., 1., 0., 1., 0., 1.]),
            (
                "eight axes",
                |p| ramp(p, [1, 2, 1, 1, 1, 2, 1, 1]).permute([5, 0, 2, 3, 4, 1, 6, 7]),
                &[2, 1, 1, 1, 1, 2, 1, 1],
                &[0., 2., 1., 3.],
            ),
        ],
    );
}

fn indices(subject: &Subject) {
    check(
        subject,
        &[
            (
                "gather",
                |p| ramp(p, [2, 3]).gather(1, ints(p, [2, 2], &[2, 0, 1, 1])),
                &[2, 2],
                &[2., 0., 4., 4.],
            ),
            ("gather rows", |p| ramp(p, [3, 2]).gather(0, ints(p, [1, 2], &[2, 1])), &[1, 2], &[4., 3.]),
            (
                "index_select",
                |p| ramp(p, [2, 3]).index_select(1, ints(p, [2], &[2, 0])),
                &[2, 2],
                &[2., 0., 5., 3.],
            ),
            (
                "embedding",
                |p| ramp(p, [3, 2]).embedding(ints(p, [2, 2], &[2, 0, 1, 2])),
                &[2, 2, 2],
                &[4., 5., 0., 1., 2., 3., 4., 5.],
            ),
            (
                "embedding bytes",
                |p| ramp(p, [3]).embedding(ints(p, [2], &[2, 0]).cast(DType::U8)),
                &[2],
                &[2., 0.],
            ),
            (
                "scatter_add",
                |p| {
                    ramp(p, [3]).scatter_add(
                        0,
                        ints(p, [4], &[2, 0, 2, 2]),
                        floats(p, [4], &[1., 2., 3., 4.]),
                    )
                },
                &[3],
                &[2., 1., 10.],
            ),
            (
                "scatter_add rows",
                |p| p.zeros([2, 2]).scatter_add(1, ints(p, [2, 1], &[1, 0]), floats(p, [2, 1], &[3., 4.])),
                &[2, 2],
                &[0., 3., 4., 0.],
            ),
            ("one_hot", |p| ints(p, [2], &[2, 0]).one_hot(3), &[2, 3], &[0., 0., 1., 1., 0., 0.]),
            ("one_hot outside", |p| ints(p, [2], &[3, -1]).one_hot(2), &[2, 2], &[0.; 4]),
        ],
    );
}

fn creation(subject: &Subject) {
    check(
        subject,
        &[
            ("zeros", |p| p.zeros([2]), &[2], &[0., 0.]),
            ("ones", |p| p.ones([2]), &[2], &[1., 1.]),
            ("full", |p| p.full([2], 2.5), &[2], &[2.5, 2.5]),
            ("full_of", |p| p.full_of([1], 7.0, DType::U32), &[1], &[7.]),
            ("arange", |p| p.arange(-1..3), &[4], &[-1., 0., 1., 2.]),
            ("linspace", |p| p.linspace(1.0, 2.0, 5), &[5], &[1., 1.25, 1.5, 1.75, 2.]),
            ("eye", |p| p.eye(2), &[2, 2], &[1., 0., 0., 1.]),
            ("full_like", |p| ints(p, [2], &[4, 5]).full_like(3), &[2], &[3., 3.]),
            ("zeros_like", |p| ramp(p, [2]).zeros_like(), &[2], &[0., 0.]),
            ("ones_like", |p| ramp(p, [2]).ones_like(), &[2], &[1., 1.]),
        ],
    );
}

fn composites_by_hand(subject: &Subject) {
    check(
        subject,
        &[
            ("softmax", |p| floats(p, [2, 2], &[0., 0., 1000., 0.]).softmax(1), &[2, 2], &[0.5, 0.5, 1., 0.]),
            ("softmax columns", |p| p.zeros([4, 1]).softmax(0), &[4, 1], &[0.25; 4]),
            ("masked softmax", |p| floats(p, [2], &[0., f32::NEG_INFINITY]).softmax(0), &[2], &[1., 0.]),
            ("log_softmax", |p| p.zeros([2]).log_softmax(-1), &[2], &[-std::f64::consts::LN_2; 2]),
            (
                "logsumexp",
                |p| floats(p, [2], &[1000., 1000.]).logsumexp(0),
                &[],
                &[1000. + std::f64::consts::LN_2],
            ),
            (
                "cross_entropy",
                |p| p.zeros([3, 4]).cross_entropy(ints(p, [3], &[0, 3, 1])),
                &[],
                &[2. * std::f64::consts::LN_2],
            ),
            (
                "cross_entropy sure",
                |p| floats(p, [1, 2], &[1000., 0.]).cross_entropy(ints(p, [1], &[1])),
                &[],
                &[1000.],
            ),
            (
                "cross_entropy of each",
                |p| {
                    let each =
                        wgrad::CrossEntropy { reduction: wgrad::Reduction::None, ..Default::default() };
                    p.zeros([1, 2, 2]).cross_entropy_with(ints(p, [1, 2], &[0, 1]), each)
                },
                &[1, 2],
                &[std::f64::consts::LN_2; 2],
            ),
            ("nll", |p| floats(p, [2, 2], &[-1., -2., -3., -4.]).nll(ints(p, [2], &[1, 0])), &[], &[2.5]),
            ("mse", |p| ramp(p, [4]).mse(p.ones([4])), &[], &[1.5]),
            (
                "layer_norm",
                |p| floats(p, [1, 2], &[1., 3.]).layer_norm(p.full([2], 2.0), p.full([2], 0.5), 0.0),
                &[1, 2],
                &[-1.5, 2.5],
            ),
            (
                "constant layer_norm",
                |p| p.full([1, 3], 5.0).layer_norm(p.ones([3]), ramp(p, [3]), 1e-5),
                &[1, 3],
                &[0., 1., 2.],
            ),
            (
                "rms_norm",
                |p| floats(p, [1, 2], &[3., 4.]).rms_norm(p.full([2], 12.5f64.sqrt()), 0.0),
                &[1, 2],
                &[3., 4.],
            ),
            ("silu", |p| floats(p, [2], &[0., 1.]).silu(), &[2], &[0., 0.731_058_578_630_004_9]),
            ("gelu", |p| floats(p, [2], &[0., 1.]).gelu(), &[2], &[0., 0.841_344_746_068_542_9]),
            ("gelu_tanh", |p| floats(p, [2], &[0., 1.]).gelu_tanh(), &[2], &[0., 0.841_191_990_608_276_2]),
            ("softplus", |p| floats(p, [2], &[0., 100.]).softplus(), &[2], &[std::f64::consts::LN_2, 100.]),
        ],
    );
}

fn mistakes_are_errors_with_the_callers_line() {
    let found = |p: &Pass| -> Result<Vec<(ErrorKind, String)>> {
        let (x, w) = (ramp(p, [2, 3]), ramp(p, [4]));
        let wrong = [
            x.try_add(w),
            x.try_matmul(w),
            x.try_sum(2),
            x.try_sum([0, 0]),
            x.try_reshape([-1, 4]),
            x.try_slice(1, 2..5),
            x.try_slice(1, 7..2),
            x.try_slice(1, 0..usize::MAX),
            x.try_expand([3, 2]),
            x.try_gather(1, x),
            x.try_cross_entropy(p.arange(0..3)),
            x.try_squeeze(0),
            x.try_permute([1]),
            words(p, &[1]).try_add(-1),
            bools(p, &[true]).try_add(bools(p, &[true])),
            x.try_layer_norm(w, w, 1e-5),
            Tensor::try_cat(&[x, w], 0),
            p.try_bernoulli("b", [1], 1.5),
            x.try_slice_at(0, -1, 1),
        ];
        Ok(wrong.into_iter().map(|e| e.expect_err("a mistake")).map(|e| (e.kind(), e.to_string())).collect())
    };
    for (i, (kind, text)) in oracle().pass(found).unwrap().into_iter().enumerate() {
        assert!(matches!(kind, ErrorKind::Shape | ErrorKind::DType | ErrorKind::Argument), "{i}: {kind:?}");
        assert!(text.contains(file!()), "{i}: no line of this file in {text}");
    }
}

fn operators_panic_with_the_rule() {
    let wrong = || oracle().pass(|p| Ok((ramp(p, [2, 3]) + ramp(p, [4])).rank()));
    let panic = std::panic::catch_unwind(wrong).expect_err("a panic");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("add: shapes [2, 3] and [4] do not broadcast"), "{text}");
}
