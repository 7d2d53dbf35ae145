//! Training steps.

use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::module::{attention, batch_norm_train, conv2d, embedding, layer_norm, linear};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use wgrad_benches::{Fault, Model, Optim};

use crate::kernels::same;
use crate::params::{Next, Params};
use crate::{Any, Run};

fn mlp(params: &Params, x: Tensor<2>, layers: usize) -> Tensor<2> {
    let (mut next, mut x) = (params.next(), x);
    for left in (0..layers).rev() {
        x = linear(x, next.two(), Some(next.one()));
        x = if left > 0 { activation::relu(x) } else { x };
    }
    x
}

fn conv(next: &mut Next, x: Tensor<4>, stride: usize) -> Tensor<4> {
    let k = next.four();
    let padding = k.dims()[2] / 2;
    let y = conv2d(x, k, None, same(stride, padding));
    batch_norm_train(y, next.one(), next.one(), 1e-5).output
}

fn resnet(params: &Params, x: Tensor<4>) -> Tensor<2> {
    let mut next = params.next();
    let mut x = activation::relu(conv(&mut next, x, 1));
    for block in 0..8 {
        let stride = if block % 2 == 0 && block > 0 { 2 } else { 1 };
        let y = activation::relu(conv(&mut next, x.clone(), stride));
        let y = conv(&mut next, y, 1);
        let short = if stride == 2 { conv(&mut next, x, 2) } else { x };
        x = activation::relu(y + short);
    }
    let x: Tensor<2> = x.mean_dims(&[2, 3]).squeeze_dims(&[2, 3]);
    linear(x, next.two(), Some(next.one()))
}

fn gpt(params: &Params, words: Tensor<2, Int>, [layers, heads]: [usize; 2]) -> Tensor<2> {
    let mut next = params.next();
    let [b, t] = words.dims();
    let x: Tensor<3> = embedding(next.two(), words);
    let width = x.dims()[2];
    let mut x = x + next.two().unsqueeze::<3>();
    for _ in 0..layers {
        let y = layer_norm(x.clone(), next.one(), Some(next.one()), 1e-5);
        let qkv = linear(y, next.two(), Some(next.one()));
        let part = |i: usize| {
            let part = qkv.clone().narrow(2, i * width, width);
            part.reshape([b, t, heads, width / heads]).swap_dims(1, 2)
        };
        let options = AttentionModuleOptions { scale: None, softcap: None, is_causal: true };
        let y = attention(part(0), part(1), part(2), None, None, options);
        let y = y.swap_dims(1, 2).reshape([b, t, width]);
        x = x + linear(y, next.two(), Some(next.one()));
        let y = layer_norm(x.clone(), next.one(), Some(next.one()), 1e-5);
        let y = activation::gelu(linear(y, next.two(), Some(next.one())));
        x = x + linear(y, next.two(), Some(next.one()));
    }
    let x = layer_norm(x, next.one(), Some(next.one()), 1e-5);
    linear(x.reshape([b * t, width]), next.two(), None)
}

/// What goes in.
enum Batch {
    Rows(Tensor<2>),
    Images(Tensor<4>),
    Words(Tensor<2, Int>),
}

impl Batch {
    fn forward(&self, params: &Params, model: &Model) -> Result<Tensor<2>, Fault> {
        Ok(match (self, model) {
            (_, Model::Gpt { mixed: true, .. }) => return Err("there is no autocast".into()),
            (Batch::Rows(x), Model::Mlp { sizes, .. }) => mlp(params, x.clone(), sizes.len() - 1),
            (Batch::Images(x), _) => resnet(params, x.clone()),
            (Batch::Words(x), Model::Gpt { layers, heads, .. }) => gpt(params, x.clone(), [*layers, *heads]),
            _ => return Err("the batch is not the model's".into()),
        })
    }
}

/// The training step of `model`; each run gives its loss.
pub(crate) fn open(model: &Model, device: &Device) -> Result<Run, Fault> {
    let device = device.clone().autodiff();
    let model = model.clone();
    let mut params = Some(Params::new(&model.params(), &device));
    let (mut optimizer, lr) = match model.optim() {
        Optim::AdamW { lr } => (AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01).init(), lr),
        Optim::Sgd { lr } => {
            let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
            (SgdConfig::new().with_momentum(Some(momentum)).init(), lr)
        }
    };
    let dims = model.input().0;
    let batch = match &model {
        Model::Mlp { .. } => Batch::Rows(Tensor::from_data(TensorData::new(model.floats(), dims), &device)),
        Model::ResNet18 { .. } => Batch::Images(Tensor::from_data(TensorData::new(model.floats(), dims), &device)),
        Model::Gpt { .. } => Batch::Words(Tensor::from_data(TensorData::new(model.words(), dims), &device)),
    };
    let targets: Tensor<1, Int> = Tensor::from_data(TensorData::new(model.targets(), [model.labels().0]), &device);
    let criterion: CrossEntropyLoss = CrossEntropyLossConfig::new().init(&device);
    Ok(Box::new(move || {
        let now = params.take().ok_or("an earlier step failed")?;
        let loss = criterion.forward(batch.forward(&now, &model)?, targets.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &now);
        params = Some(optimizer.step(lr, now, grads));
        Ok(vec![Any::One(loss)])
    }))
}
