//! Every operation, as its definition reads.

use std::sync::Arc;

use wgrad_graph::{Binary, DType, Error, ErrorKind, Graph, MAX_RANK, Node, Op, Out, Reduce, Shape, Unary};

use super::value::{Data, Value, each};
use super::whole;
use crate::philox::philox;

pub(super) type Coords = [usize; MAX_RANK];

pub(super) fn unravel(mut i: usize, shape: Shape) -> Coords {
    let mut coords = [0; MAX_RANK];
    for axis in (0..shape.rank()).rev() {
        coords[axis] = i % shape[axis];
        i /= shape[axis];
    }
    coords
}

pub(super) fn ravel(coords: &Coords, shape: Shape) -> usize {
    (0..shape.rank()).fold(0, |n, axis| n * shape[axis] + coords[axis])
}

/// The outputs of one node. A kernel's error flag is put into `error`, the first one stays.
pub(super) fn node(graph: &Graph, node: &Node, ins: &[Arc<Value>], error: &mut Option<Error>) -> Vec<Value> {
    if let Op::Custom(id) = node.op {
        return custom(graph, node, id, ins, error);
    }
    let out = node.outs[0];
    let raise = |error: &mut Option<Error>, index: i64, size: usize| {
        if error.is_none() {
            *error = Some(out_of_range(node, index, size));
        }
    };
    match node.op {
        Op::Attention(attend) => return super::attention::attention(attend, ins, &node.outs),
        Op::AttentionGrad(attend) => return super::attention::grad(attend, ins, &node.outs),
        _ => {}
    }
    vec![match node.op {
        Op::Input | Op::Scalar | Op::Custom(_) | Op::Attention(_) | Op::AttentionGrad(_) => {
            unreachable!("not evaluated here")
        }
        Op::Iota { axis } => iota(out, usize::from(axis)),
        Op::Random => random(out, ins),
        Op::Unary(op) => unary(op, out, &ins[0]),
        Op::Binary(op) => binary(op, out, &ins[0], &ins[1]),
        Op::Select => select(out, ins),
        Op::Cast => cast(out, &ins[0]),
        Op::Reduce { kind, axes } => reduce(kind, out, &ins[0], |axis| axes.has(axis)),
        Op::ArgReduce { max, axis } => arg_reduce(max, out, &ins[0], usize::from(axis)),
        Op::MatMul => matmul(out, &ins[0], &ins[1]),
        Op::Reshape => Value { out, data: ins[0].data.clone() },
        Op::Permute(perm) => {
            let from = ins[0].out.shape;
            ins[0].pick(out, |i| {
                let at = unravel(i, out.shape);
                let mut coords = [0; MAX_RANK];
                (0..from.rank()).for_each(|axis| coords[usize::from(perm[axis])] = at[axis]);
                Some(ravel(&coords, from))
            })
        }
        Op::Expand => {
            let from = ins[0].out.shape;
            ins[0].pick(out, |i| {
                let mut at = unravel(i, out.shape);
                (0..from.rank()).filter(|axis| from[*axis] == 1).for_each(|axis| at[axis] = 0);
                Some(ravel(&at, from))
            })
        }
        Op::Slice(steps) => {
            let from = ins[0].out.shape;
            ins[0].pick(out, |i| Some(ravel(&strided(unravel(i, out.shape), from.rank(), &steps), from)))
        }
        Op::Windows { axis, step, dilation, .. } => {
            let (axis, from) = (usize::from(axis), ins[0].out.shape);
            ins[0].pick(out, |i| {
                let mut at = unravel(i, out.shape);
                at[axis] = at[axis] * step as usize + at[from.rank()] * dilation as usize;
                Some(ravel(&at, from))
            })
        }
        Op::Diagonal { a, b } => {
            let (a, b, from) = (usize::from(a), usize::from(b), ins[0].out.shape);
            let kept = (0..from.rank()).filter(|axis| ![a, b].contains(axis)).collect::<Vec<_>>();
            ins[0].pick(out, |i| {
                let at = unravel(i, out.shape);
                let mut coords = [at[kept.len()]; MAX_RANK];
                kept.iter().enumerate().for_each(|(i, axis)| coords[*axis] = at[i]);
                Some(ravel(&coords, from))
            })
        }
        Op::Pad { lo } => {
            let from = ins[0].out.shape;
            ins[0].pick(out, |i| {
                let mut at = unravel(i, out.shape);
                for axis in 0..from.rank() {
                    at[axis] = at[axis].checked_sub(lo[axis] as usize).filter(|c| *c < from[axis])?;
                }
                Some(ravel(&at, from))
            })
        }
        Op::Concat { axis } => concat(out, ins, usize::from(axis)),
        Op::SliceAt { axis } => {
            let (axis, from) = (usize::from(axis), ins[0].out.shape);
            let start = start_on(&ins[1], from[axis] - out.shape[axis]);
            ins[0].pick(out, |i| {
                let mut at = unravel(i, out.shape);
                at[axis] += start;
                Some(ravel(&at, from))
            })
        }
        Op::SliceAssign(steps) => {
            let part = ins[1].out.shape;
            ins[0].put(&ins[1], |i| ravel(&strided(unravel(i, part), part.rank(), &steps), out.shape))
        }
        Op::SliceAssignAt { axis } => {
            let (axis, part) = (usize::from(axis), ins[1].out.shape);
            let start = start_on(&ins[2], out.shape[axis] - part[axis]);
            ins[0].put(&ins[1], |i| {
                let mut at = unravel(i, part);
                at[axis] += start;
                ravel(&at, out.shape)
            })
        }
        Op::Gather { axis } => {
            let (axis, from) = (usize::from(axis), ins[0].out.shape);
            let size = from[axis];
            for i in 0..ins[1].len() {
                let index = ins[1].int(i);
                if !(0..size as i64).contains(&index) {
                    raise(error, index, size);
                }
            }
            ins[0].pick(out, |i| {
                let mut at = unravel(i, out.shape);
                at[axis] = usize::try_from(ins[1].int(i)).ok().filter(|index| *index < size)?;
                Some(ravel(&at, from))
            })
        }
        Op::Scatter { axis, kind } => {
            let (axis, idx, size) = (usize::from(axis), &ins[0], out.shape[usize::from(axis)]);
            let mut place = Vec::with_capacity(idx.len());
            for i in 0..idx.len() {
                let index = idx.int(i);
                let inside = (0..size as i64).contains(&index);
                if !inside {
                    raise(error, index, size);
                }
                let mut at = unravel(i, idx.out.shape);
                at[axis] = index as usize;
                place.push(inside.then(|| ravel(&at, out.shape)));
            }
            scatter(kind, out, &ins[1], &place)
        }
        Op::ArgSort { axis, descending } => whole::argsort(out, &ins[0], usize::from(axis), descending),
        Op::Matrix(kind) => super::matrix::matrix(kind, out, ins),
        Op::Scan { kind, axis, reverse } => whole::scan(kind, out, ins, usize::from(axis), reverse),
    }]
}

fn out_of_range(node: &Node, index: i64, size: usize) -> Error {
    let error = Error::new(ErrorKind::Data, node.op.name(), format!("index {index} is not in 0..{size}"));
    match node.at {
        Some(at) => error.at(at),
        None => error,
    }
}

fn start_on(start: &Value, max: usize) -> usize {
    start.int(0).clamp(0, max as i64) as usize
}

fn strided(at: Coords, rank: usize, steps: &wgrad_graph::Steps) -> Coords {
    let mut coords = [0; MAX_RANK];
    for axis in 0..rank {
        coords[axis] = (steps.start[axis] + at[axis] as i64 * steps.step[axis]) as usize;
    }
    coords
}

fn iota(out: Out, axis: usize) -> Value {
    let n = out.shape.elems();
    let index = |i: usize| unravel(i, out.shape)[axis];
    if out.dtype.is_float() {
        Value::rounded(out, (0..n).map(|i| index(i) as f64).collect())
    } else {
        Value::ints(out, (0..n).map(|i| index(i) as i64).collect())
    }
}

fn random(out: Out, ins: &[Arc<Value>]) -> Value {
    let word = |i: usize| ins[i].int(0) as u32;
    let per_row: usize = out.shape.dims().iter().skip(1).product();
    let first = word(3).wrapping_mul(per_row as u32);
    let draw = |i: usize| philox([first.wrapping_add(i as u32), 0, word(2), 0], [word(0), word(1)])[0];
    Value::ints(out, (0..out.shape.elems()).map(|i| i64::from(draw(i))).collect())
}

fn unary(op: Unary, out: Out, x: &Value) -> Value {
    let row = op.row();
    match &x.data {
        Data::Float(x) => {
            let f = row.float.expect("the row takes floats, checked when recorded");
            if out.dtype == DType::Bool {
                return Value::ints(out, x.iter().map(|x| f(*x) as i64).collect());
            }
            Value::floats(out, each(x.len(), 1, |i| f(x[i])))
        }
        Data::Int(x) => {
            let f = row.int.expect("the row takes integers, checked when recorded");
            Value::ints(out, x.iter().map(|x| f(*x)).collect())
        }
    }
}

fn binary(op: Binary, out: Out, x: &Value, w: &Value) -> Value {
    let row = op.row();
    match (&x.data, &w.data) {
        (Data::Float(x), Data::Float(w)) => {
            let f = row.float.expect("the row takes floats, checked when recorded");
            let y = each(x.len(), 1, |i| f(x[i], w[i]));
            if out.dtype == DType::Bool {
                return Value::ints(out, y.into_iter().map(|y| y as i64).collect());
            }
            Value::floats(out, y)
        }
        (Data::Int(x), Data::Int(w)) => {
            let f = match op {
                // The rows shift by counts modulo 32.
                Binary::Shl if out.dtype == DType::I64 => |x: i64, w: i64| x << (w & 63),
                Binary::Shr if out.dtype == DType::I64 => |x: i64, w: i64| x >> (w & 63),
                _ => row.int.expect("the row takes integers, checked when recorded"),
            };
            Value::ints(out, x.iter().zip(w).map(|(x, w)| f(*x, *w)).collect())
        }
        _ => unreachable!("one dtype, checked when recorded"),
    }
}

fn select(out: Out, ins: &[Arc<Value>]) -> Value {
    let c = |i: usize| ins[0].int(i) != 0;
    let data = match (&ins[1].data, &ins[2].data) {
        (Data::Float(x), Data::Float(w)) => Data::Float(each(x.len(), 1, |i| if c(i) { x[i] } else { w[i] })),
        (Data::Int(x), Data::Int(w)) => {
            Data::Int((0..x.len()).map(|i| if c(i) { x[i] } else { w[i] }).collect())
        }
        _ => unreachable!("one dtype, checked when recorded"),
    };
    Value { out, data }
}

fn cast(out: Out, x: &Value) -> Value {
    match (&x.data, out.dtype) {
        (_, to) if to.is_float() => Value::rounded(out, x.to_f64()),
        (Data::Float(x), DType::Bool) => Value::ints(out, x.iter().map(|x| i64::from(*x != 0.0)).collect()),
        (Data::Int(x), DType::Bool) => Value::ints(out, x.iter().map(|x| i64::from(*x != 0)).collect()),
        (Data::Float(x), DType::U8) => Value::ints(out, x.iter().map(|x| i64::from(*x as u8)).collect()),
        (Data::Float(x), DType::U32) => Value::ints(out, x.iter().map(|x| i64::from(*x as u32)).collect()),
        (Data::Float(x), DType::I32) => Value::ints(out, x.iter().map(|x| i64::from(*x as i32)).collect()),
        (Data::Float(x), _) => Value::ints(out, x.iter().map(|x| *x as i64).collect()),
        (Data::Int(x), _) => Value::ints(out, x.clone()),
    }
}

/// The elements of a value that reduce into each element of another, in row-major order.
struct Rows {
    out: Shape,
    x: Shape,
    /// Places of those of the first element.
    first: Vec<usize>,
}

impl Rows {
    fn of(out: Out, x: Shape, reduced: impl Fn(usize) -> bool) -> Rows {
        let mut dims = x.dims().to_vec();
        dims.iter_mut().enumerate().filter(|(axis, _)| !reduced(*axis)).for_each(|(_, n)| *n = 1);
        let over = Shape::from(&*dims);
        let empty = x.elems() == 0;
        let first = (0..if empty { 0 } else { over.elems() }).map(|i| ravel(&unravel(i, over), x)).collect();
        Rows { out: out.shape, x, first }
    }

    /// Places of those that reduce into element `i`.
    fn row(&self, i: usize) -> impl Iterator<Item = usize> {
        let start = if self.first.is_empty() { 0 } else { ravel(&unravel(i, self.out), self.x) };
        self.first.iter().map(move |at| start + at)
    }

    /// `f` of each row.
    fn each<T: Send>(&self, f: impl Fn(Vec<usize>) -> T + Send + Sync) -> Vec<T> {
        each(self.out.elems(), self.first.len(), |i| f(self.row(i).collect()))
    }
}

/// `f` over `items` as a balanced tree, which depends on their number alone.
fn tree<T: Copy>(items: &[T], none: T, f: &impl Fn(T, T) -> T) -> T {
    match items {
        [] => none,
        [x] => *x,
        _ => {
            let (a, b) = items.split_at(items.len().div_ceil(2));
            f(tree(a, none, f), tree(b, none, f))
        }
    }
}

/// The neutral element of a reduction of floats, and how two of them combine.
fn float_join(kind: Reduce) -> (f64, fn(f64, f64) -> f64) {
    let row = |op: Binary| op.row().float.expect("the row takes floats");
    match kind {
        Reduce::Sum => (0.0, |a, b| a + b),
        Reduce::Prod => (1.0, |a, b| a * b),
        Reduce::Max => (f64::NEG_INFINITY, row(Binary::Maximum)),
        Reduce::Min => (f64::INFINITY, row(Binary::Minimum)),
    }
}

/// The neutral element of a reduction of integers, and how two of them combine.
fn int_join(kind: Reduce, dtype: DType) -> (i64, fn(i64, i64) -> i64) {
    let (lowest, highest) = match dtype {
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (0, i64::from(u32::MAX)),
    };
    match kind {
        Reduce::Sum => (0, i64::wrapping_add),
        Reduce::Prod => (1, i64::wrapping_mul),
        Reduce::Max => (lowest, i64::max),
        Reduce::Min => (highest, i64::min),
    }
}

fn reduce(kind: Reduce, out: Out, x: &Value, reduced: impl Fn(usize) -> bool) -> Value {
    let rows = Rows::of(out, x.out.shape, reduced);
    match &x.data {
        Data::Float(x) => {
            let (none, join) = float_join(kind);
            let fold = |row: Vec<usize>| {
                let items: Vec<f64> = row.into_iter().map(|i| x[i]).collect();
                tree(&items, none, &join)
            };
            Value::floats(out, rows.each(fold))
        }
        Data::Int(x) => {
            let (none, join) = int_join(kind, out.dtype);
            let join = |a: i64, i: usize| super::value::wrap(join(a, x[i]), out.dtype);
            Value::ints(out, rows.each(|row| row.into_iter().fold(none, join)))
        }
    }
}

fn arg_reduce(max: bool, out: Out, x: &Value, axis: usize) -> Value {
    fn first<T: Copy + PartialOrd>(max: bool, x: &[T], row: &[usize]) -> i64 {
        // NaN is no number that equals itself, and comes before all.
        let nan = |x: T| x.partial_cmp(&x).is_none();
        let mut best = 0;
        for (i, at) in row.iter().enumerate() {
            let (now, so_far) = (x[*at], x[row[best]]);
            let ahead = if max { now > so_far } else { now < so_far };
            if !nan(so_far) && (nan(now) || ahead) {
                best = i;
            }
        }
        best as i64
    }
    let rows = Rows::of(out, x.out.shape, |a| a == axis);
    let place = |row: Vec<usize>| match &x.data {
        Data::Float(x) => first(max, x, &row),
        Data::Int(x) => first(max, x, &row),
    };
    Value::ints(out, rows.each(place))
}

fn matmul(out: Out, a: &Value, b: &Value) -> Value {
    let rank = out.shape.rank();
    let (m, k, n) = (a.out.shape[rank - 2], a.out.shape[rank - 1], out.shape[rank - 1]);
    let (Data::Float(a), Data::Float(b)) = (&a.data, &b.data) else {
        unreachable!("floats, checked when recorded")
    };
    let rows = out.shape.elems() / n.max(1);
    let row = |row: usize| {
        let (batch, i) = (row / m, row % m);
        let mut y = vec![0.0; n];
        for l in 0..k {
            let x = a[(batch * m + i) * k + l];
            let b = &b[(batch * k + l) * n..][..n];
            y.iter_mut().zip(b).for_each(|(y, w)| *y += x * w);
        }
        y
    };
    Value::floats(out, each(rows, k * n, row).concat())
}

fn concat(out: Out, ins: &[Arc<Value>], axis: usize) -> Value {
    let mut whole = match out.dtype.is_float() {
        true => Value::floats(out, vec![0.0; out.shape.elems()]),
        false => Value::ints(out, vec![0; out.shape.elems()]),
    };
    let mut first = 0;
    for x in ins {
        let shape = x.out.shape;
        whole = whole.put(x, |i| {
            let mut at = unravel(i, shape);
            at[axis] += first;
            ravel(&at, out.shape)
        });
        first += shape[axis];
    }
    whole
}

/// The values at `place` combined one after the other, over the neutral element.
fn scatter(kind: Reduce, out: Out, src: &Value, place: &[Option<usize>]) -> Value {
    let met = place.iter().enumerate().filter_map(|(i, at)| at.map(|at| (i, at)));
    let n = out.shape.elems();
    match &src.data {
        Data::Float(x) => {
            let (none, join) = float_join(kind);
            let mut y = vec![none; n];
            met.for_each(|(i, at)| y[at] = join(y[at], x[i]));
            Value::floats(out, y)
        }
        Data::Int(x) => {
            let (none, join) = int_join(kind, out.dtype);
            let mut y = vec![none; n];
            met.for_each(|(i, at)| y[at] = super::value::wrap(join(y[at], x[i]), out.dtype));
            Value::ints(out, y)
        }
    }
}

fn custom(
    graph: &Graph,
    node: &Node,
    id: wgrad_graph::CustomId,
    ins: &[Arc<Value>],
    error: &mut Option<Error>,
) -> Vec<Value> {
    let ins: Vec<Vec<f64>> = ins.iter().map(|x| x.to_f64()).collect();
    let ins: Vec<&[f64]> = ins.iter().map(Vec::as_slice).collect();
    let mut outs = crate::custom::run(graph.custom(id), node, &ins, error);
    let make = |(out, y): (&Out, Vec<f64>)| match out.dtype {
        _ if out.dtype.is_float() => Value::rounded(*out, y),
        DType::Bool => Value::ints(*out, y.iter().map(|y| i64::from(*y != 0.0)).collect()),
        _ => Value::ints(*out, y.iter().map(|y| *y as i64).collect()),
    };
    node.outs.iter().zip(outs.drain(..)).map(make).collect()
}
