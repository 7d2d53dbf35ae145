//! Single operations.

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss, ops};
use wgrad_benches::{Input, Kind, Row, copies};

use crate::Run;

fn operand(input: &Input, salt: usize, device: &Device) -> Result<Tensor> {
    let dims = &*input.dims;
    match input.kind {
        Kind::I32 => {
            let ids: Vec<u32> = input.ids(salt).into_iter().map(|i| i as u32).collect();
            Tensor::from_vec(ids, dims, device)
        }
        Kind::F16 => Tensor::from_vec(input.floats(salt), dims, device)?.to_dtype(DType::F16),
        Kind::F32 | Kind::Zeros => Tensor::from_vec(input.floats(salt), dims, device),
    }
}

/// Gradients of `f` at the leaves, weighed by `upstream`.
fn gradients(f: impl Fn(&[Tensor]) -> Result<Tensor>, leaves: &[Tensor], upstream: &Tensor) -> Result<Vec<Tensor>> {
    let vars: Vec<Var> = leaves.iter().map(Var::from_tensor).collect::<Result<_>>()?;
    let x: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let grads = (f(&x)? * upstream)?.sum_all()?.backward()?;
    vars.iter().map(|v| grads.get(v).cloned().ok_or_else(|| candle_core::Error::Msg("no gradient".into()))).collect()
}

/// Causal attention of `[heads, T, D]`.
pub(crate) fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let scale = 1.0 / (q.dim(candle_core::D::Minus1)? as f64).sqrt();
    let scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * scale)?;
    let weights = ops::softmax(&scores.broadcast_add(mask)?, candle_core::D::Minus1)?;
    weights.matmul(&v.contiguous()?)
}

/// 0 where a position may be seen, else minus infinity.
pub(crate) fn causal(t: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let mask: Vec<f32> =
        (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0.0 }).collect();
    Tensor::from_vec(mask, (t, t), device)?.to_dtype(dtype)
}

fn norm(x: &[Tensor]) -> Result<Tensor> {
    ops::layer_norm_slow(&x[0], &x[1], &x[2], 1e-5)
}

fn once(op: &str, x: &[Tensor], mask: &Option<Tensor>) -> Result<Vec<Tensor>> {
    let masked = || mask.as_ref().expect("attention has a mask");
    let one = match op {
        "scale" => x[0].affine(2.0, 1.0)?,
        "gelu_chain" => (x[0].affine(2.0, 1.0)?.gelu_erf()? + &x[0])?,
        "sum" => x[0].sum_all()?,
        "sort" => x[0].sort_last_dim(true)?.0,
        "matmul" => x[0].matmul(&x[1])?,
        "softmax" => ops::softmax_last_dim(&x[0])?,
        "softmax_backward" => return gradients(|x| ops::softmax(&x[0], 1), &x[..1], &x[1]),
        "layer_norm" => ops::layer_norm(&x[0], &x[1], &x[2], 1e-5)?,
        "layer_norm_backward" => return gradients(norm, &x[..3], &x[3]),
        "sum_rows" => x[0].sum(0)?,
        "sum_columns" => x[0].sum(1)?,
        "transpose" => x[0].t()?.affine(2.0, 0.0)?.contiguous()?,
        "cross_entropy" => {
            let var = Var::from_tensor(&x[0])?;
            let loss = loss::cross_entropy(var.as_tensor(), &x[1])?;
            let grads = loss.backward()?;
            let grad = grads.get(&var).cloned();
            return Ok([Some(loss.detach()), grad].into_iter().flatten().collect());
        }
        "embedding" => x[0].index_select(&x[1], 0)?,
        "embedding_backward" => {
            return gradients(|w| w[0].index_select(&x[1], 0), &x[..1], &x[2]);
        }
        "gather" => x[0].index_select(&x[1], 0)?,
        "index_add" => x[0].index_add(&x[1], &x[2], 0)?,
        "attention" => attention(&x[0], &x[1], &x[2], masked())?,
        "attention_backward" => {
            return gradients(|x| attention(&x[0], &x[1], &x[2], masked()), &x[..3], &x[3]);
        }
        "conv2d" => x[0].conv2d(&x[1], 1, 1, 1, 1)?,
        "conv2d_backward" => return gradients(|x| x[0].conv2d(&x[1], 1, 1, 1, 1), &x[..2], &x[2]),
        "cumsum" => bail!("it sums by a product with an n x n matrix"),
        other => bail!("{other} is not there"),
    };
    Ok(vec![one])
}

/// The first step of AdamW, again and again: the moments move on.
fn adamw(x: &[Tensor]) -> Result<Run> {
    let (w, g) = (Var::from_tensor(&x[0])?, x[1].clone());
    let config = ParamsAdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let mut optimizer = AdamW::new(vec![w.clone()], config)?;
    let mut grads = (w.as_tensor() * 0.0)?.sum_all()?.backward()?;
    grads.insert(&w, g);
    Ok(Box::new(move || {
        optimizer.step(&grads)?;
        Ok(vec![w.as_tensor().clone()])
    }))
}

/// The workload of `row` with its operands.
pub(crate) fn open(row: &Row, device: &Device) -> Result<Run> {
    let place = || row.inputs.iter().enumerate().map(|(i, input)| operand(input, i, device)).collect::<Result<Vec<_>>>();
    if row.op == "adamw" {
        return adamw(&place()?);
    }
    let all = (0..copies(row)).map(|_| place()).collect::<Result<Vec<_>>>()?;
    let mask = match row.op.starts_with("attention") {
        true => Some(causal(row.inputs[0].dims[1], all[0][0].dtype(), device)?),
        false => None,
    };
    let (op, mut at) = (row.op.clone(), 0);
    Ok(Box::new(move || {
        at += 1;
        once(&op, &all[(at - 1) % all.len()], &mask)
    }))
}
