//! Single operations.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::optim::Optimizer;
use burn::tensor::module::{attention, conv2d, embedding, layer_norm};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use wgrad_benches::{Fault, Input, Kind, Row, copies};

use crate::{Any, Run};

fn operand(input: &Input, salt: usize, device: &Device) -> Result<Any, Fault> {
    let dims = input.dims.clone();
    if input.kind == Kind::I32 {
        return Ok(Any::Ids(Tensor::from_data(TensorData::new(input.ids(salt), dims), device)));
    }
    let data = TensorData::new(input.floats(salt), dims);
    let dtype = if input.kind == Kind::F16 { DType::F16 } else { DType::F32 };
    Ok(match input.dims.len() {
        1 => Any::One(Tensor::from_data(data, (device, dtype))),
        2 => Any::Two(Tensor::from_data(data, (device, dtype))),
        3 => Any::Three(Tensor::from_data(data, (device, dtype))),
        4 => Any::Four(Tensor::from_data(data, (device, dtype))),
        rank => return Err(format!("rank {rank}").into()),
    })
}

/// Operands by rank.
struct X<'a>(&'a [Any]);

macro_rules! by_rank {
    ($($name:ident $variant:ident $kind:ty),*) => {
        $(fn $name(&self, i: usize) -> Result<$kind, Fault> {
            match &self.0[i] {
                Any::$variant(x) => Ok(x.clone()),
                _ => Err(concat!("an operand is not ", stringify!($variant)).into()),
            }
        })*
    };
}

impl X<'_> {
    by_rank!(one One Tensor<1>, two Two Tensor<2>, three Three Tensor<3>, four Four Tensor<4>, ids Ids Tensor<1, Int>);
}

fn causal(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>) -> Tensor<3> {
    let options = AttentionModuleOptions { scale: None, softcap: None, is_causal: true };
    attention(q.unsqueeze(), k.unsqueeze(), v.unsqueeze(), None, None, options).squeeze_dim(0)
}

pub(crate) fn same(stride: usize, padding: usize) -> ConvOptions<2> {
    ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1)
}

fn rows(w: Tensor<2>, ids: Tensor<1, Int>) -> Tensor<2> {
    embedding(w, ids.unsqueeze()).squeeze_dim(0)
}

/// Gradients of a function of tensors of one rank, weighed by the last operand.
macro_rules! gradients {
    ($f:expr, $upstream:expr, $($leaf:expr => $wrap:ident),*) => {{
        let leaves = ($($leaf.require_grad(),)*);
        #[allow(clippy::redundant_closure_call)]
        let grads = ($f(leaves.clone()) * $upstream).sum().backward();
        gradients!(@ leaves, grads, $($wrap),*)
    }};
    (@ $x:ident, $g:ident, $a:ident) => { vec![Any::$a($x.0.grad(&$g).ok_or("no gradient")?)] };
    (@ $x:ident, $g:ident, $a:ident, $b:ident) => {
        vec![Any::$a($x.0.grad(&$g).ok_or("no gradient")?), Any::$b($x.1.grad(&$g).ok_or("no gradient")?)]
    };
    (@ $x:ident, $g:ident, $a:ident, $b:ident, $c:ident) => {
        vec![
            Any::$a($x.0.grad(&$g).ok_or("no gradient")?),
            Any::$b($x.1.grad(&$g).ok_or("no gradient")?),
            Any::$c($x.2.grad(&$g).ok_or("no gradient")?),
        ]
    };
}

fn once(op: &str, x: &[Any], device: &Device) -> Result<Vec<Any>, Fault> {
    let rank = x.iter().find(|x| !matches!(x, Any::Ids(_)));
    let x = X(x);
    Ok(match (op, rank) {
        ("scale", Some(Any::One(a))) => vec![Any::One(a.clone() * 2.0 + 1.0)],
        ("scale", Some(Any::Two(a))) => vec![Any::Two(a.clone() * 2.0 + 1.0)],
        ("gelu_chain", _) => {
            let a = x.one(0)?;
            vec![Any::One(activation::gelu(a.clone() * 2.0 + 1.0) + a)]
        }
        ("sum", _) => vec![Any::One(x.one(0)?.sum())],
        ("cumsum", _) => vec![Any::One(x.one(0)?.cumsum(0))],
        ("sort", _) => vec![Any::One(x.one(0)?.sort(0))],
        ("matmul", Some(Any::Two(_))) => vec![Any::Two(x.two(0)?.matmul(x.two(1)?))],
        ("matmul", _) => vec![Any::Three(x.three(0)?.matmul(x.three(1)?))],
        ("softmax", _) => vec![Any::Two(activation::softmax(x.two(0)?, 1))],
        ("softmax_backward", _) => gradients!(|(a,)| activation::softmax(a, 1), x.two(1)?, x.two(0)? => Two),
        ("layer_norm", _) => vec![Any::Two(layer_norm(x.two(0)?, x.one(1)?, Some(x.one(2)?), 1e-5))],
        ("layer_norm_backward", _) => gradients!(
            |(a, w, b)| layer_norm(a, w, Some(b), 1e-5),
            x.two(3)?, x.two(0)? => Two, x.one(1)? => One, x.one(2)? => One
        ),
        ("sum_rows", _) => vec![Any::Two(x.two(0)?.sum_dim(0))],
        ("sum_columns", _) => vec![Any::Two(x.two(0)?.sum_dim(1))],
        // Read in the order of its axes: by itself, what is turned stays as it lay, and nothing is.
        ("transpose", _) => {
            let turned = x.two(0)?.transpose() * 2.0;
            let elems = turned.shape().num_elements();
            vec![Any::One(turned.reshape([elems]))]
        }
        ("cross_entropy", _) => {
            let logits = x.two(0)?.require_grad();
            let loss = CrossEntropyLossConfig::new().init(device).forward(logits.clone(), x.ids(1)?);
            let grads = loss.backward();
            vec![Any::One(loss), Any::Two(logits.grad(&grads).ok_or("no gradient")?)]
        }
        ("embedding", _) => vec![Any::Two(rows(x.two(0)?, x.ids(1)?))],
        ("embedding_backward", _) => {
            let ids = x.ids(1)?;
            gradients!(|(w,)| rows(w, ids.clone()), x.two(2)?, x.two(0)? => Two)
        }
        ("attention", _) => vec![Any::Three(causal(x.three(0)?, x.three(1)?, x.three(2)?))],
        ("attention_backward", _) => gradients!(
            |(q, k, v)| causal(q, k, v),
            x.three(3)?, x.three(0)? => Three, x.three(1)? => Three, x.three(2)? => Three
        ),
        ("conv2d", _) => vec![Any::Four(conv2d(x.four(0)?, x.four(1)?, None, same(1, 1)))],
        ("conv2d_backward", _) => gradients!(
            |(a, k)| conv2d(a, k, None, same(1, 1)),
            x.four(2)?, x.four(0)? => Four, x.four(1)? => Four
        ),
        (other, _) => return Err(format!("{other} is not there").into()),
    })
}

/// Steps of AdamW; results are those of the first.
fn adamw(w: Tensor<1>, g: Tensor<1>) -> Run {
    let optimizer = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01).build();
    let (mut w, mut state) = (w, None);
    Box::new(move || {
        let (next, moments) = optimizer.step(1e-3, w.clone(), g.clone(), state.take());
        (w, state) = (next.clone(), moments);
        Ok(vec![Any::One(next)])
    })
}

/// The workload of `row` with its operands.
pub(crate) fn open(row: &Row, device: &Device) -> Result<Run, Fault> {
    let learns = row.op.ends_with("_backward") || row.op == "cross_entropy";
    let device = if learns { device.clone().autodiff() } else { device.clone() };
    let place = || {
        row.inputs.iter().enumerate().map(|(i, input)| operand(input, i, &device)).collect::<Result<Vec<_>, _>>()
    };
    if row.op == "adamw" {
        let all = place()?;
        return Ok(adamw(X(&all).one(0)?, X(&all).one(1)?));
    }
    let all = (0..copies(row)).map(|_| place()).collect::<Result<Vec<_>, _>>()?;
    let (op, mut at) = (row.op.clone(), 0);
    Ok(Box::new(move || {
        at += 1;
        once(&op, &all[(at - 1) % all.len()], &device)
    }))
}
