//! Every gradient rule against central differences in f64 on the oracle, by `gradcheck`, which puts
//! operations in the middle of a graph.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{
    Context, DType, ErrorKind, GradCheck, HostTensor, Pass, Result, Shape, Tensor, custom_gradient, grad,
    gradcheck, gradgradcheck,
};
use wgrad_graph::{Binary, Unary};

use crate::Subject;
use crate::devices::oracle;
use crate::elementwise::noise;
use crate::ops::near;

crate::suite![
    plain: unary_rows, binary_rows, reductions, products_of_matrices, movement, choice_and_indices,
        composites, conventions_where_the_derivative_is_not_unique,
        no_gradient_leaks_through_an_unselected_branch, contributions_add,
        constant_input_gives_layer_norm_no_gradient, second_derivatives, rules_differentiate_again,
        gradient_penalty_of_a_network, hand_values, gradcheck_finds_wrong_rules,
        gradcheck_says_what_it_cannot_check, small_gradients_survive, dropout_passes_what_it_keeps;
    device: gradients_agree_with_the_oracle,
];

const OPTIONS: GradCheck = GradCheck { eps: 1e-5, rtol: 2e-7, atol: 2e-7, seed: 7 };

/// What the operation sees: sizes, and the interval of its elements.
type Operand = (&'static [usize], f64, f64);

const X: Operand = (&[3, 5], -2.0, 2.0);
const POSITIVE: Operand = (&[3, 5], 0.3, 2.5);

/// Distinct numbers spread over `lo..hi`, no two of them symmetric, none near a whole number's half.
fn values(count: usize, lo: f64, hi: f64, turn: f64) -> Vec<f64> {
    (0..count).map(|i| lo + (hi - lo) * ((i as f64 + turn) * 0.618_033_988_749_894_9).fract()).collect()
}

fn host(shape: &[usize], elems: &[f64]) -> HostTensor {
    HostTensor::new(shape, elems).unwrap()
}

/// The elements of each operand.
fn data(operands: &[Operand]) -> Vec<HostTensor> {
    let elems = |(i, (shape, lo, hi)): (usize, &Operand)| {
        host(shape, &values(shape.iter().product(), *lo, *hi, 0.31 + 2.6 * i as f64))
    };
    operands.iter().enumerate().map(elems).collect()
}

/// Compares the gradient by each operand with central differences.
fn check(ctx: &Context, name: &str, operands: &[Operand], f: &dyn Fn(&Pass, &[Tensor]) -> Tensor) {
    gradcheck(ctx, &data(operands), f, &OPTIONS).unwrap_or_else(|e| panic!("{name}: {e}"));
}

/// As [`check`], of the gradient.
fn check_again(ctx: &Context, name: &str, operands: &[Operand], f: &dyn Fn(&Pass, &[Tensor]) -> Tensor) {
    gradgradcheck(ctx, &data(operands), f, &OPTIONS).unwrap_or_else(|e| panic!("{name}: {e}"));
}

/// Name, operands, what is recorded on them.
type Case = (&'static str, &'static [Operand], fn(&Pass, &[Tensor]) -> Tensor);

fn table(cases: &[Case]) {
    let ctx = oracle();
    for (name, operands, f) in cases {
        check(&ctx, name, operands, f);
    }
}

fn unary_rows() {
    let ctx = oracle();
    for op in Unary::ALL {
        let row = op.row();
        if row.float.is_none() || op.dtype(DType::F64) != DType::F64 {
            continue;
        }
        let f = |x: Tensor| x.unary(op);
        let (lo, hi) = (row.domain.lo, row.domain.hi);
        check(&ctx, row.name, &[(&[5, 3], lo, hi)], &|_, x| f(x[0]));
        check(&ctx, &format!("{} transposed", row.name), &[(&[2, 3], lo, hi)], &|_, x| f(x[0].t()));
        let sliced = |_: &Pass, x: &[Tensor]| f(x[0].slice_step(1, 1.., -2));
        check(&ctx, &format!("{} sliced", row.name), &[(&[2, 6], lo, hi)], &sliced);
    }
}

fn binary_rows() {
    let ctx = oracle();
    for op in Binary::ALL {
        let row = op.row();
        if row.float.is_none() || op.compares() {
            continue;
        }
        let f = |x: Tensor, w: Tensor| x.binary(op, w);
        let (lo, hi) = (row.domain.lo, row.domain.hi);
        let pairs: [(&str, &[usize], &[usize]); 7] = [
            ("plain", &[3, 5], &[3, 5]),
            ("row", &[3, 5], &[5]),
            ("column", &[3, 5], &[3, 1]),
            ("number", &[3, 5], &[1, 1]),
            ("small first", &[1, 3], &[4, 3]),
            ("both", &[4, 1], &[3]),
            ("outer", &[2, 1, 3], &[5, 1]),
        ];
        for (name, x, w) in pairs {
            let what = format!("{} {name}", row.name);
            check(&ctx, &what, &[(x, lo, hi), (w, lo, hi)], &|_, x| f(x[0], x[1]));
        }
        let pair = [(&[5, 3][..], lo, hi), (&[3, 9][..], lo, hi)];
        let views = |_: &Pass, x: &[Tensor]| f(x[0].t(), x[1].slice_step(1, .., 2));
        check(&ctx, &format!("{} views", row.name), &pair, &views);
        if !matches!(op, Binary::Maximum | Binary::Minimum | Binary::Rem) {
            check(&ctx, &format!("{} twice", row.name), &[(&[4], lo, hi)], &|_, x| f(x[0], x[0]));
        }
    }
}

fn reductions() {
    table(&[
        ("sum", &[X], |_, x| x[0].sum(0)),
        ("sum all", &[X], |_, x| x[0].sum_all()),
        ("sum keepdim", &[X], |_, x| x[0].sum_keepdim(-1)),
        ("sum outer", &[(&[2, 3, 5], -2.0, 2.0)], |_, x| x[0].sum([0, 2])),
        ("mean", &[X], |_, x| x[0].mean(1)),
        ("mean all", &[X], |_, x| x[0].mean_all()),
        ("var", &[X], |_, x| x[0].var(1, 0)),
        ("max", &[X], |_, x| x[0].max(1)),
        ("max two", &[(&[2, 3, 5], -2.0, 2.0)], |_, x| x[0].max([0, -1])),
        ("min", &[X], |_, x| x[0].min_keepdim(0)),
        ("prod", &[X], |_, x| x[0].prod(1)),
        ("prod all", &[(&[7], -2.0, 2.0)], |_, x| x[0].prod(..)),
        ("prod outer", &[(&[3, 2, 3], -2.0, 2.0)], |_, x| x[0].prod([0, 2])),
        ("prod one", &[(&[3, 1], -2.0, 2.0)], |_, x| x[0].prod_keepdim(1)),
        ("sum_to", &[(&[2, 3, 5], -2.0, 2.0)], |_, x| x[0].sum_to([3, 1])),
        ("reduced transposed", &[X], |_, x| x[0].t().max(0)),
    ]);
}

fn products_of_matrices() {
    table(&[
        ("matmul", &[(&[5, 4], -2.0, 2.0), (&[4, 3], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("transposed", &[(&[4, 5], -2.0, 2.0), (&[3, 4], -2.0, 2.0)], |_, x| x[0].t().matmul(x[1].t())),
        ("row", &[(&[4], -2.0, 2.0), (&[4, 3], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("column", &[(&[5, 4], -2.0, 2.0), (&[4], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("dot", &[(&[4], -2.0, 2.0), (&[4], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("batch by matrix", &[(&[2, 5, 4], -2.0, 2.0), (&[4, 3], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("matrix by batch", &[(&[5, 4], -2.0, 2.0), (&[2, 4, 3], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("batches", &[(&[2, 1, 2, 3], -2.0, 2.0), (&[3, 3, 2], -2.0, 2.0)], |_, x| x[0].matmul(x[1])),
        ("gram", &[(&[3, 4], -2.0, 2.0)], |_, x| x[0].matmul(x[0].t())),
        ("sliced", &[(&[5, 6], -2.0, 2.0), (&[6, 3], -2.0, 2.0)], |_, x| {
            x[0].slice(1, 1..4).matmul(x[1].slice_step(0, .., -2))
        }),
        ("chain", &[(&[5, 4], -1.0, 1.0), (&[4, 3], -1.0, 1.0), (&[3, 2], -1.0, 1.0)], |_, x| {
            x[0].matmul(x[1]).tanh().matmul(x[2])
        }),
    ]);
}

fn ints(p: &Pass, shape: impl Into<Shape>, elems: &[i32]) -> Tensor {
    p.input(HostTensor::new(shape, elems).unwrap()).unwrap()
}

fn movement() {
    const LINE: Operand = (&[7], -2.0, 2.0);
    table(&[
        ("reshape", &[X], |_, x| x[0].t().reshape([-1]).square()),
        ("permute", &[(&[2, 3, 5], -2.0, 2.0)], |_, x| x[0].permute([2, 0, 1])),
        ("permute cycle", &[(&[2, 3, 4, 1], -2.0, 2.0)], |_, x| x[0].permute([1, 3, 0, 2])),
        ("expand", &[(&[3, 1], -2.0, 2.0)], |_, x| x[0].expand([2, 3, 4])),
        ("squeeze", &[(&[3, 1, 2], -2.0, 2.0)], |_, x| x[0].squeeze(1).unsqueeze(0)),
        ("slice", &[X], |_, x| x[0].slice(1, 1..4)),
        ("slice step", &[LINE], |_, x| x[0].slice_step(0, 1.., 3)),
        ("slice back", &[LINE], |_, x| x[0].slice_step(0, 1..6, -2)),
        ("slice nothing", &[LINE], |_, x| Tensor::cat(&[x[0].slice(0, 3..3), x[0]], 0)),
        ("flip", &[X], |_, x| x[0].flip([0, 1])),
        ("select_index", &[X], |_, x| x[0].select_index(1, -2)),
        ("slice_at", &[X], |_, x| x[0].slice_at(1, 2, 2)),
        ("slice_assign", &[X, (&[3, 2], -2.0, 2.0)], |_, x| x[0].slice_assign(1, 2, x[1])),
        ("slice_assign_at", &[X, (&[1, 5], -2.0, 2.0)], |_, x| x[0].slice_assign_at(0, 1, x[1])),
        ("pad", &[X], |_, x| x[0].pad(&[(1, 0), (2, 3)], 0.0)),
        ("pad with", &[X], |_, x| x[0].pad(&[(1, 0), (0, 3)], 2.5)),
        ("cat", &[X, (&[3, 2], -2.0, 2.0)], |_, x| Tensor::cat(&[x[0], x[1], x[0]], 1)),
        ("stack", &[X, X], |_, x| Tensor::stack(&[x[0], x[1]], 1)),
        ("repeat", &[X], |_, x| x[0].repeat(0, 3)),
        ("split and cat", &[(&[3, 6], -2.0, 2.0)], |_, x| {
            let parts = x[0].chunk(1, 3);
            Tensor::cat(&[parts[1], parts[2], parts[0]], 1)
        }),
    ]);
}

fn choice_and_indices() {
    table(&[
        ("select", &[X, X], |_, x| x[0].gt(0.2).select(x[0].square(), x[1])),
        ("select broadcast", &[X, (&[5], -2.0, 2.0)], |_, x| x[0].gt(0.2).select(x[1], x[0])),
        ("masked_fill", &[X], |_, x| x[0].masked_fill(x[0].lt(0.0), 3.0)),
        ("clamp", &[X], |_, x| x[0].clamp(-1.013, 0.971)),
        ("clamp by tensors", &[X, (&[5], -1.9, -1.1), (&[5], 1.1, 1.9)], |_, x| x[0].clamp(x[1], x[2])),
        ("gather", &[X], |p, x| x[0].gather(1, ints(p, [3, 2], &[4, 4, 0, 1, 2, 2]))),
        ("gather one", &[X], |p, x| x[0].gather(1, ints(p, [3, 1], &[4, 0, 2]))),
        ("index_select", &[X], |p, x| x[0].index_select(1, ints(p, [3], &[4, 0, 4]))),
        ("embedding", &[X], |p, x| x[0].embedding(ints(p, [2, 2], &[2, 0, 2, 2]))),
        ("scatter_add", &[X, (&[3, 4], -2.0, 2.0)], |p, x| {
            x[0].scatter_add(1, ints(p, [3, 4], &[0, 0, 4, 1, 2, 2, 2, 3, 4, 3, 1, 0]), x[1])
        }),
    ]);
}

fn composites() {
    table(&[
        ("silu", &[X], |_, x| x[0].silu()),
        ("gelu", &[X], |_, x| x[0].gelu()),
        ("gelu_tanh", &[X], |_, x| x[0].gelu_tanh()),
        ("softplus", &[X], |_, x| x[0].softplus()),
        ("softmax", &[X], |_, x| x[0].softmax(1)),
        ("softmax columns", &[X], |_, x| x[0].softmax(0)),
        ("softmax transposed", &[X], |_, x| x[0].t().softmax(-1)),
        ("log_softmax", &[X], |_, x| x[0].log_softmax(1)),
        ("logsumexp", &[X], |_, x| x[0].logsumexp(1)),
        ("cross_entropy", &[X], |p, x| x[0].cross_entropy(ints(p, [3], &[4, 0, 2]))),
        ("cross_entropy of each", &[(&[2, 2, 3], -2.0, 2.0)], |p, x| {
            let each = wgrad::CrossEntropy { reduction: wgrad::Reduction::None, ..Default::default() };
            x[0].cross_entropy_with(ints(p, [2, 2], &[2, 0, 1, 1]), each)
        }),
        ("cross entropy after sigmoid", &[X], |p, x| x[0].sigmoid().cross_entropy(ints(p, [3], &[4, 0, 2]))),
        ("nll", &[X], |p, x| x[0].log_softmax(1).nll(ints(p, [3], &[4, 0, 2]))),
        ("mse", &[X, X], |_, x| x[0].mse(x[1])),
        ("layer_norm", &[X, (&[5], 0.5, 1.5), (&[5], -1.0, 1.0)], |_, x| x[0].layer_norm(x[1], x[2], 1e-3)),
        ("rms_norm", &[X, (&[5], 0.5, 1.5)], |_, x| x[0].rms_norm(x[1], 1e-3)),
        ("standardize outer", &[(&[4, 3, 2], -2.0, 2.0)], |_, x| x[0].standardize([0, 2], 1e-3)),
        ("log exp", &[X], |_, x| x[0].exp().log()),
        ("pow 2", &[X], |_, x| x[0].pow(2.0)),
        ("pow 0.5", &[POSITIVE], |_, x| x[0].pow(0.5)),
        ("pow both", &[POSITIVE, (&[5], -2.0, 2.0)], |_, x| x[0].pow(x[1])),
        ("cast", &[X], |_, x| (x[0].cast(DType::F64) * 2.0).cast(DType::F64)),
        ("used three times", &[X], |_, x| x[0].exp() + x[0] * x[0]),
        ("heads", &[(&[2, 3, 4], -1.0, 1.0)], |_, x| {
            let heads = x[0].reshape([2, 3, 2, 2]).transpose(1, 2);
            let scores = heads.matmul(heads.t()) * 0.7;
            scores.softmax(-1).matmul(heads).transpose(1, 2).reshape([2, 3, 4])
        }),
        ("below the root", &[X, X], |_, x| x[0].mse(x[1]) * 0.5 - x[0].exp().sum_all() * 0.01),
    ]);
}

/// The gradient of `f` at `x`, by `wgrad`.
fn gradient(x: &[f64], f: impl Fn(Tensor) -> Tensor) -> Vec<f64> {
    oracle()
        .pass(|p| {
            let x = p.input(host(&[x.len()], x))?;
            grad(f(x), &[x])?[0].to_vec::<f64>()
        })
        .unwrap()
}

fn conventions_where_the_derivative_is_not_unique() {
    type Kink = (&'static str, fn(Tensor) -> Tensor, &'static [f64], &'static [f64]);
    let cases: [Kink; 12] = [
        ("relu at 0", |x| x.relu().sum_all(), &[-1.0, 0.0, 2.0], &[0.0, 0.0, 1.0]),
        ("abs at 0", |x| x.abs().sum_all(), &[-1.0, 0.0, 2.0], &[-1.0, 0.0, 1.0]),
        ("clamp on its limits", |x| x.clamp(-1, 1).sum_all(), &[-1.0, 0.5, 1.0], &[0.0, 1.0, 0.0]),
        ("tied max", |x| x.max(0), &[3.0, 1.0, 3.0], &[0.5, 0.0, 0.5]),
        ("tied min", |x| x.min(0), &[1.0, 1.0, 1.0], &[1.0 / 3.0; 3]),
        ("tied maximum", |x| x.maximum(2.0).sum_all(), &[1.0, 2.0, 3.0], &[0.0, 0.5, 1.0]),
        ("log below 0", |x| x.log().sum_all(), &[0.5, -2.0], &[2.0, -0.5]),
        ("prod at one zero", |x| x.prod(0), &[2.0, 0.0, 3.0], &[0.0, 6.0, 0.0]),
        ("prod at two zeros", |x| x.prod(0), &[2.0, 0.0, 0.0], &[0.0, 0.0, 0.0]),
        ("logsumexp of -inf alone", |x| x.logsumexp(0), &[f64::NEG_INFINITY; 2], &[0.0, 0.0]),
        ("crossed clamp", |x| x.clamp(1, -1).sum_all(), &[-2.0, 0.0, 2.0], &[0.0, 0.0, 0.0]),
        ("floor", |x| x.floor().sum_all(), &[0.5, 1.5], &[0.0, 0.0]),
    ];
    for (name, f, x, want) in cases {
        assert_eq!(gradient(x, f), want, "{name}");
    }
}

fn no_gradient_leaks_through_an_unselected_branch() {
    let masked = |x: Tensor| x.gt(0.0).select(x.log(), 0.0).sum_all();
    let got = gradient(&[2.0, -1.0], masked);
    assert_eq!(got, [0.5, -0.0]);
    // PyTorch and JAX give NaN here; sqrt has an infinite slope at 0, and 0 * inf is NaN.
    let rooted = |x: Tensor| x.gt(0.0).select(x.gt(0.0).select(x, 1.0).sqrt(), 0.0).sum_all();
    assert_eq!(gradient(&[4.0, 0.0], rooted), [0.25, 0.0]);
}

fn contributions_add() {
    assert_eq!(gradient(&[1.0, 2.0], |x| (x + x).sum_all()), [2.0, 2.0]);
    assert_eq!(gradient(&[1.0, 2.0], |x| (x * x).sum_all()), [2.0, 4.0]);
    assert_eq!(gradient(&[1.0, 2.0], |x| (x.detach() * x).sum_all()), [1.0, 2.0]);
}

fn constant_input_gives_layer_norm_no_gradient() {
    let normed = |x: Tensor| (x.standardize(0, 1e-5) * (x.detach() + 1.0)).sum_all();
    assert!(gradient(&[3.0; 4], normed).iter().all(|g| g.abs() < 1e-9));
}

fn second_derivatives() {
    let second = |x: &[f64], f: fn(Tensor) -> Tensor| {
        oracle()
            .pass(|p| {
                let x = p.input(host(&[x.len()], x))?;
                let first = grad(f(x).sum_all(), &[x])?[0];
                grad(first.sum_all(), &[x])?[0].to_vec::<f64>()
            })
            .unwrap()
    };
    type Pair = (&'static str, fn(Tensor) -> Tensor, fn(f64) -> f64);
    let cases: [Pair; 8] = [
        ("x^3", |x| x * x * x, |x| 6.0 * x),
        ("pow 3", |x| x.pow(3.0), |x| 6.0 * x),
        ("exp", Tensor::exp, f64::exp),
        ("sin", Tensor::sin, |x| -x.sin()),
        ("recip", Tensor::recip, |x| 2.0 / x.powi(3)),
        ("tanh", Tensor::tanh, |x| -2.0 * x.tanh() * (1.0 - x.tanh().powi(2))),
        ("log", Tensor::log, |x| -1.0 / (x * x)),
        ("sigmoid", Tensor::sigmoid, |x| {
            let s = 1.0 / (1.0 + (-x).exp());
            s * (1.0 - s) * (1.0 - 2.0 * s)
        }),
    ];
    let x = [0.4, 1.1, 2.3];
    for (name, f, want) in cases {
        for (got, x) in second(&x, f).iter().zip(x) {
            assert!((got - want(x)).abs() < 1e-12, "{name} at {x}: {got}, not {}", want(x));
        }
    }
    // A product of n factors at a zero: d2/dx0 dx1 = x2.
    let mixed = oracle()
        .pass(|p| {
            let x = p.input(host(&[3], &[0.0, 0.0, 5.0]))?;
            let first = grad(x.prod(0), &[x])?[0];
            grad(first.select_index(0, 0), &[x])?[0].to_vec::<f64>()
        })
        .unwrap();
    assert_eq!(mixed, [0.0, 5.0, 0.0]);
}

fn rules_differentiate_again() {
    type Twice = (&'static str, fn(&Pass, Tensor) -> Tensor);
    let cases: [Twice; 14] = [
        ("matmul", |_, x| x.matmul(x.t())),
        ("softmax", |_, x| x.softmax(1)),
        ("cross_entropy", |p, x| x.cross_entropy(ints(p, [3], &[4, 0, 2]))),
        ("standardize", |_, x| x.standardize(1, 1e-2)),
        ("prod", |_, x| x.prod(1)),
        ("max", |_, x| x.square().max(1)),
        ("slice", |_, x| x.slice_step(1, .., -2).exp()),
        ("slice_at", |_, x| x.slice_at(1, 1, 3).exp()),
        ("slice_assign", |_, x| x.exp().slice_assign(1, 1, x.slice(1, ..2).square())),
        ("gather", |p, x| x.exp().gather(1, ints(p, [3, 2], &[1, 1, 0, 4, 2, 3]))),
        ("embedding", |p, x| x.sin().embedding(ints(p, [4], &[2, 0, 2, 1]))),
        ("scatter_add", |p, x| x.exp().scatter_add(1, ints(p, [3, 5], &[0; 15]), x.square())),
        ("pad and cat", |_, x| {
            Tensor::cat(&[x.exp().pad(&[(0, 1), (1, 0)], 0.0), x.sin().pad(&[(1, 0), (0, 1)], 1.0)], 0)
        }),
        ("gelu", |_, x| x.gelu()),
    ];
    let ctx = oracle();
    for (name, f) in cases {
        check_again(&ctx, name, &[(&[3, 5], -1.1, 1.3)], &|p, x| f(p, x[0]));
    }
}

/// `x^2` with `rule` for its gradient: of operand, gradient that arrives.
fn squared(x: Tensor, rule: fn(Tensor, Tensor) -> Tensor) -> Result<Tensor> {
    custom_gradient(&[x], |x| Ok(x[0].square()), move |at| Ok(vec![Some(rule(at.input(0), at.dout(0)))]))
}

fn gradcheck_finds_wrong_rules() {
    let (ctx, x) = (oracle(), [host(&[2, 2], &[0.3, -1.1, 0.7, 2.0])]);
    let first = |rule| gradcheck(&ctx, &x, |_, x| squared(x[0], rule), &OPTIONS);
    let second = |rule| gradgradcheck(&ctx, &x, |_, x| squared(x[0], rule), &OPTIONS);
    let right: fn(Tensor, Tensor) -> Tensor = |x, g| x * 2.0 * g;
    first(right).unwrap();
    second(right).unwrap();
    let wrong: [fn(Tensor, Tensor) -> Tensor; 4] =
        [|x, _| x * 2.0, |x, g| x * g, |x, g| x.gt(1.5).select(x, x * 2.0) * g, |_, g| g.detach() * 0.0];
    for rule in wrong {
        assert_eq!(first(rule).unwrap_err().kind(), ErrorKind::Gradient);
    }
    let text = first(wrong[2]).unwrap_err().to_string();
    assert!(text.starts_with("gradcheck: operand 0 f64[2, 2], element [1, 1]: gradient "), "{text}");
    // Right at first order, and cut off from there.
    let detached: fn(Tensor, Tensor) -> Tensor = |x, g| x.detach() * 2.0 * g;
    first(detached).unwrap();
    let text = second(detached).unwrap_err().to_string();
    assert!(text.starts_with("gradgradcheck: operand 0 f64[2, 2], element [0, 0]: gradient "), "{text}");
    let linear: fn(Tensor, Tensor) -> Tensor = |x, g| x * 2.0 * g.detach();
    first(linear).unwrap();
    let text = second(linear).unwrap_err().to_string();
    assert!(text.starts_with("gradgradcheck: operand 1 f64[2, 2], element [0, 0]: gradient "), "{text}");
}

fn gradcheck_says_what_it_cannot_check() {
    let (ctx, x) = (oracle(), host(&[3], &[0.5, 1.5, 2.5]));
    let whole = HostTensor::new([3], &[2, 0, 2]).unwrap();
    let check = |inputs: &[HostTensor], f: fn(&Pass, &[Tensor]) -> Tensor| {
        gradcheck(&ctx, inputs, f, &OPTIONS).map_err(|e| e.kind())
    };
    assert_eq!(check(std::slice::from_ref(&whole), |_, x| x[0] * 2), Err(ErrorKind::Argument));
    assert_eq!(check(std::slice::from_ref(&x), |_, x| x[0].gt(1.0)), Err(ErrorKind::Argument));
    assert_eq!(check(&[whole, x.clone()], |_, x| x[1].gather(0, x[0]).exp()), Ok(()));
    // A discarded pass repeats its random numbers.
    assert_eq!(check(std::slice::from_ref(&x), |_, x| x[0].square().dropout("d", 0.5)), Ok(()));
    wgrad::check_gradients(&[x], |_, x| [x[0].exp(), x[0].square().sum_all()]).unwrap();
}

fn gradient_penalty_of_a_network() {
    let operands: [Operand; 5] = [
        (&[3, 4], -1.0, 1.0),
        (&[4, 5], -1.0, 1.0),
        (&[5], -0.5, 0.5),
        (&[5, 2], -1.0, 1.0),
        (&[2], -0.5, 0.5),
    ];
    let penalty = |_: &Pass, x: &[Tensor]| {
        let y = ((x[0].matmul(x[1]) + x[2]).tanh().matmul(x[3]) + x[4]).square().sum_all();
        let dx = grad(y, &[x[0]]).unwrap()[0];
        (dx.square().sum(1) + 1e-3).sqrt()
    };
    check(&oracle(), "gradient penalty", &operands, &penalty);
}

fn hand_values() {
    let (dw, half) = oracle()
        .pass(|p| {
            let (w, x) =
                (p.input(host(&[2, 2], &[1.0, 0.0, 0.0, 1.0]))?, p.input(host(&[2, 1], &[2.0, 3.0]))?);
            let dw = grad(w.matmul(x).square().sum_all(), &[w])?[0].to_vec::<f64>()?;
            let z = p.input(host(&[1], &[0.0]))?;
            let loss = z.sigmoid().mse(p.full_of([1], 0.0, DType::F64));
            Ok((dw, grad(loss, &[z])?[0].item::<f64>()?))
        })
        .unwrap();
    assert_eq!(dw, [8.0, 12.0, 12.0, 18.0]);
    assert_eq!(half, 0.25);
}

fn small_gradients_survive() {
    let got = gradient(&[1e-11, 2e-11], |x| (x * x).sum_all());
    assert_eq!(got, [2e-11, 4e-11]);
}

fn dropout_passes_what_it_keeps() {
    let (y, g) = oracle()
        .pass(|p| {
            let x = p.input(host(&[9, 11], &[1.5; 99]))?;
            let y = x.dropout("d", 0.4);
            Ok((y.to_vec::<f64>()?, grad(y.sum_all(), &[x])?[0].to_vec::<f64>()?))
        })
        .unwrap();
    assert!(y.contains(&0.0) && y.iter().zip(&g).all(|(y, g)| (y - 1.5 * g).abs() < 1e-12));
}

/// A loss and what it is differentiated by.
type Record = fn(&Pass) -> (Tensor, Vec<Tensor>);

fn gradients_agree_with_the_oracle(subject: &Subject) {
    let cases: [(&str, Record); 8] = [
        ("perceptron", |p| {
            let (x, y) = (noise(p, [33, 29], 0.1), p.arange(0..33) % 7);
            let w = [
                noise(p, [29, 17], 0.2) * 0.3,
                noise(p, [17], 0.3),
                noise(p, [17, 7], 0.4),
                noise(p, [7], 0.5),
            ];
            let logits = (x.matmul(w[0]) + w[1]).gelu().matmul(w[2]) + w[3];
            (logits.cross_entropy(y), w.to_vec())
        }),
        ("norms", |p| {
            let (x, w, b) = (noise(p, [11, 65], 0.1), noise(p, [65], 0.2), noise(p, [65], 0.3));
            let y = x.layer_norm(w, b, 1e-5).rms_norm(b, 1e-5);
            ((y * noise(p, [11, 65], 0.6)).sum_all(), vec![x, w, b])
        }),
        ("attention", |p| {
            let x = noise(p, [2, 9, 12], 0.1);
            let w = noise(p, [12, 36], 0.2) * 0.4;
            let heads: Vec<Tensor> =
                x.matmul(w).chunk(2, 3).iter().map(|t| t.reshape([2, 9, 3, 4]).transpose(1, 2)).collect();
            let masked = p.arange(0..9).reshape([9, 1]).lt(p.arange(0..9));
            let scores = (heads[0].matmul(heads[1].t()) * 0.5).masked_fill(masked, f64::NEG_INFINITY);
            let y = scores.softmax(-1).matmul(heads[2]).transpose(1, 2).reshape([2, 9, 12]);
            ((y * x).sum_all(), vec![x, w])
        }),
        ("views", |p| {
            let x = noise(p, [7, 10], 0.1);
            let part = x.t().slice_step(0, 1..9, -3).exp();
            let y = Tensor::cat(&[part, part.flip(0).pad(&[(1, 0), (0, 0)], 0.0)], 0);
            (y.slice_assign(0, 2, part.square()).mean_all(), vec![x])
        }),
        ("embedding", |p| {
            let table = noise(p, [13, 5], 0.1);
            let y = table.embedding(p.arange(0..40) % 13).reshape([8, 5, 5]);
            ((y * y.max_keepdim(1)).sum_all(), vec![table])
        }),
        ("broadcast", |p| {
            let (x, w) = (noise(p, [19, 1, 6], 0.1), noise(p, [23, 1], 0.2));
            ((x * w).tanh().sum_all(), vec![x, w])
        }),
        ("product", |p| {
            let x = noise(p, [5, 9], 0.1);
            (x.prod(1).sum_all(), vec![x])
        }),
        ("second order", |p| {
            let x = noise(p, [9, 4], 0.1);
            let y = x.matmul(noise(p, [4, 6], 0.2)).sigmoid().sum_all();
            (grad(y, &[x]).unwrap()[0].square().sum_all(), vec![x])
        }),
    ];
    let (reference, ctx) = (oracle(), subject.context());
    for (name, record) in cases {
        let run = |ctx: &Context| {
            ctx.pass(|p| {
                let (loss, leaves) = record(p);
                grad(loss, &leaves)?.iter().map(|g| g.to_vec::<f64>()).collect::<Result<Vec<_>>>()
            })
            .unwrap_or_else(|e| panic!("{name}: {e}"))
        };
        for (got, want) in run(&ctx).iter().zip(run(&reference)) {
            near(name, got, &want, 5e-5);
        }
    }
}
