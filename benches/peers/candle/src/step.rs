//! Training steps.

use candle_core::backprop::GradStore;
use candle_core::{D, Device, Result, Tensor, Var};
use candle_nn::{AdamW, BatchNorm, ModuleT, Optimizer, ParamsAdamW, loss, ops};
use wgrad_benches::{Model, Optim, resnet_convs};

use crate::{Run, kernels};

/// Takes parameters one by one.
struct Next<'a>(std::slice::Iter<'a, Var>);

impl Next<'_> {
    fn one(&mut self) -> &Tensor {
        self.0.next().expect("the list of parameters is that of the model").as_tensor()
    }

    fn linear(&mut self, x: &Tensor) -> Result<Tensor> {
        let w = self.one().clone();
        let (rows, width) = (x.elem_count() / w.dim(0)?, w.dim(1)?);
        let mut dims = x.dims().to_vec();
        *dims.last_mut().expect("a matrix") = width;
        let y = x.reshape((rows, w.dim(0)?))?.matmul(&w)?.reshape(dims)?;
        y.broadcast_add(self.one())
    }

    fn norm(&mut self, x: &Tensor) -> Result<Tensor> {
        let (w, b) = (self.one().clone(), self.one().clone());
        ops::layer_norm_slow(x, &w, &b, 1e-5)
    }

    fn conv(&mut self, x: &Tensor, stride: usize) -> Result<Tensor> {
        let (k, w, b) = (self.one().clone(), self.one().clone(), self.one().clone());
        let y = x.conv2d(&k, k.dim(2)? / 2, stride, 1, 1)?;
        let (zeros, ones) = (w.zeros_like()?.detach(), w.ones_like()?.detach());
        BatchNorm::new(w.dim(0)?, zeros, ones, w, b, 1e-5)?.forward_t(&y, true)
    }
}

fn mlp(params: &[Var], x: &Tensor) -> Result<Tensor> {
    let (mut next, mut x) = (Next(params.iter()), x.clone());
    for left in (0..params.len() / 2).rev() {
        x = next.linear(&x)?;
        x = if left > 0 { x.relu()? } else { x };
    }
    Ok(x)
}

fn resnet(params: &[Var], x: &Tensor) -> Result<Tensor> {
    let mut next = Next(params.iter());
    let strides: Vec<usize> = resnet_convs().iter().map(|c| c.stride).collect();
    let mut x = next.conv(x, strides[0])?.relu()?;
    for block in 0..8 {
        let stride = if block % 2 == 0 && block > 0 { 2 } else { 1 };
        let y = next.conv(&x, stride)?.relu()?;
        let y = next.conv(&y, 1)?;
        let short = if stride == 2 { next.conv(&x, 2)? } else { x };
        x = (y + short)?.relu()?;
    }
    next.linear(&x.mean((2, 3))?)
}

fn gpt(params: &[Var], words: &Tensor, [layers, heads]: [usize; 2], mask: &Tensor) -> Result<Tensor> {
    let mut next = Next(params.iter());
    let (b, t) = words.dims2()?;
    let x = next.one().index_select(&words.flatten_all()?, 0)?;
    let width = x.dim(1)?;
    let mut x = x.reshape((b, t, width))?.broadcast_add(next.one())?;
    for _ in 0..layers {
        let y = next.norm(&x)?;
        let qkv = next.linear(&y)?;
        let part = |i: usize| {
            let part = qkv.narrow(D::Minus1, i * width, width)?;
            part.reshape((b, t, heads, width / heads))?.transpose(1, 2)
        };
        let y = kernels::attention(&part(0)?, &part(1)?, &part(2)?, mask)?;
        x = (x + next.linear(&y.transpose(1, 2)?.reshape((b, t, width))?)?)?;
        let y = next.norm(&x)?;
        let y = next.linear(&y)?.gelu_erf()?;
        x = (x + next.linear(&y)?)?;
    }
    next.norm(&x)?.reshape((b * t, width))?.matmul(next.one())
}

/// What moves the parameters; candle's SGD has no momentum, so that is written out.
enum Mover {
    AdamW(AdamW),
    Sgd(Vec<(Var, Var)>, f64),
}

impl Mover {
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        match self {
            Mover::AdamW(adamw) => adamw.step(grads),
            Mover::Sgd(all, lr) => {
                for (w, velocity) in all {
                    let Some(g) = grads.get(w) else { continue };
                    velocity.set(&((velocity.as_tensor() * 0.9)? + g)?)?;
                    w.set(&(w.as_tensor() - (velocity.as_tensor() * *lr)?)?)?;
                }
                Ok(())
            }
        }
    }
}

/// The training step of `model`; each run gives its loss.
pub(crate) fn open(model: &Model, device: &Device) -> Result<Run> {
    let model = model.clone();
    let specs = model.params();
    let param = |(i, spec): (usize, &wgrad_benches::ParamSpec)| {
        Var::from_tensor(&Tensor::from_vec(spec.values(i), &*spec.dims, device)?)
    };
    let params = specs.iter().enumerate().map(param).collect::<Result<Vec<_>>>()?;
    let mut mover = match model.optim() {
        Optim::AdamW { lr } => {
            let config = ParamsAdamW { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
            Mover::AdamW(AdamW::new(params.clone(), config)?)
        }
        Optim::Sgd { lr } => {
            let pair = |w: &Var| Ok((w.clone(), Var::from_tensor(&w.as_tensor().zeros_like()?)?));
            Mover::Sgd(params.iter().map(pair).collect::<Result<_>>()?, lr)
        }
    };
    let unsigned = |x: Vec<i32>| x.into_iter().map(|i| i as u32).collect::<Vec<_>>();
    let dims = model.input().0;
    let batch = match &model {
        Model::Gpt { .. } => Tensor::from_vec(unsigned(model.words()), &*dims, device)?,
        _ => Tensor::from_vec(model.floats(), &*dims, device)?,
    };
    let targets = Tensor::from_vec(unsigned(model.targets()), model.labels().0, device)?;
    let mask = kernels::causal(if let Model::Gpt { tokens, .. } = model { tokens } else { 1 }, candle_core::DType::F32, device)?;
    Ok(Box::new(move || {
        let logits = match &model {
            Model::Mlp { .. } => mlp(&params, &batch)?,
            Model::ResNet18 { .. } => resnet(&params, &batch)?,
            Model::Gpt { mixed: true, .. } => candle_core::bail!("there is no autocast"),
            Model::Gpt { layers, heads, .. } => gpt(&params, &batch, [*layers, *heads], &mask)?,
        };
        let loss = loss::cross_entropy(&logits, &targets)?;
        mover.step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    }))
}
