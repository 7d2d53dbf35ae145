//! Faults of normalisations.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::nn::{Activation, BatchNorm, Linear, Mode, Module, Rng, Sequential};
use wgrad::{DType, HostTensor, Pass, Tensor, grad};

use super::{every_way, floats, gradient, of, ways};
use crate::Subject;
use crate::nn::TestFile;
use crate::ops::near;

crate::suite![
    plain: ;
    device: b037_constant_lines, b038_a_small_eps_of_halves, b040_running_statistics_are_unbiased,
        b041_running_statistics_reach_the_file, b043_gradients_are_bit_equal_again,
        b044_eps_and_weight_of_rms_norm, b046_eps_stands_inside_the_root,
];

fn noise(dims: &[usize], turn: f64) -> Vec<f64> {
    let count: usize = dims.iter().product();
    (0..count).map(|i| ((i as f64 + turn) * 0.618_033_988_75).fract() * 3.0 - 1.5).collect()
}

fn b037_constant_lines(on: &Subject) {
    let layer = |_: &Pass, x: &[Tensor]| x[0].layer_norm(None, None, 1e-5);
    every_way(on, &[floats([256], &[1234.0; 256])], layer, &[256], &[0.0; 256]);
    let channel = |p: &Pass, x: &[Tensor]| {
        x[0].batch_norm_train(p.zeros([2]), p.ones([2]), None, None, wgrad::BatchNorm::default())[0]
    };
    every_way(on, &[floats([8, 2], &[1e10; 16])], channel, &[8, 2], &[0.0; 16]);
    // Six times -7.7 is rounded, and the mean a unit of its last place off: 4.8e-7 / sqrt(1e-5) = 1.5e-4,
    // the same on every run. Hence the factor.
    let groups = |_: &Pass, x: &[Tensor]| x[0].group_norm(2, None, None, 1e-5) * 1e-2;
    every_way(on, &[floats([2, 4, 3], &[-7.7; 24])], groups, &[2, 4, 3], &[0.0; 24]);
    let first = |_: &Pass, x: &[Tensor]| x[0].layer_norm(None, None, 1e-5) * x[1];
    let operands = [floats([4], &[3.0; 4]), floats([4], &[1.0, 0.0, 0.0, 0.0])];
    gradient(on, &operands, first, &[237.171, -79.057, -79.057, -79.057]);
}

fn b038_a_small_eps_of_halves(on: &Subject) {
    let layer = |_: &Pass, x: &[Tensor]| x[0].layer_norm(None, None, 1e-12);
    every_way(on, &[of(DType::F16, [10], &[0.0; 10])], layer, &[10], &[0.0; 10]);
    every_way(on, &[of(DType::F16, [10], &[7.0; 10])], layer, &[10], &[0.0; 10]);
}

fn b040_running_statistics_are_unbiased(on: &Subject) {
    ways(on, &[floats([4, 1], &[0.0, 1.0, 2.0, 3.0])], |p, x, say| {
        let start = [p.zeros([1]), p.ones([1])];
        let [y, mean, var] =
            x[0].batch_norm_train(start[0], start[1], None, None, wgrad::BatchNorm::default());
        near(say, &mean.to_vec::<f64>().unwrap(), &[0.15], 1e-6);
        near(say, &var.to_vec::<f64>().unwrap(), &[1.066_667], 1e-6);
        let unit = 1.0 / (1.25f64 + 1e-5).sqrt();
        let want = [-1.5 * unit, -0.5 * unit, 0.5 * unit, 1.5 * unit];
        near(say, &y.to_vec::<f64>().unwrap(), &want, 1e-6);
        let dx = grad(y.sum(..) + mean.sum(..) + var.sum(..), &[x[0]]).unwrap()[0];
        near(say, &dx.to_vec::<f64>().unwrap(), &[0.0; 4], 1e-6);
    });
}

fn b041_running_statistics_reach_the_file(on: &Subject) {
    let ctx = on.context();
    let make = || {
        let linear = Linear::new(&ctx, "fc", 3, 2, Rng::seed(1)).unwrap();
        Sequential::new().then(linear).then(BatchNorm::new(&ctx, "bn", 2).unwrap()).then(Activation::Relu)
    };
    let mut model = make();
    let x = HostTensor::new([5, 3], &noise(&[5, 3], 0.4)).unwrap().cast(DType::F32);
    let (mut mean, mut var) = ([0.0; 2], [1.0; 2]);
    for _ in 0..3 {
        let h = ctx
            .pass(|p| {
                let w = model.params();
                let h = p.input(&x)?.matmul(w.get("fc.weight").unwrap().t());
                model.forward(p.input(&x)?);
                h.to_vec::<f64>()
            })
            .unwrap();
        for c in 0..2 {
            let column: Vec<f64> = h.iter().skip(c).step_by(2).copied().collect();
            let m = column.iter().sum::<f64>() / 5.0;
            let v = column.iter().map(|h| (h - m).powi(2)).sum::<f64>() / 4.0;
            (mean[c], var[c]) = (0.9 * mean[c] + 0.1 * m, 0.9 * var[c] + 0.1 * v);
        }
    }
    let state = model.state();
    near("mean", &state[0].read().unwrap().to_vec(), &mean, 1e-5);
    near("var", &state[1].read().unwrap().to_vec(), &var, 1e-5);
    let file = TestFile::new();
    model.save(&file.0).unwrap();
    let mut other = make();
    other.load(&file.0).unwrap();
    for (a, b) in state.iter().zip(&other.state()) {
        assert_eq!(a.read().unwrap(), b.read().unwrap());
    }
    // In use the statistics are read, not moved.
    model.set_mode(Mode::Eval);
    other.set_mode(Mode::Eval);
    let run = |model: &Sequential| ctx.pass(|p| model.forward(p.input(&x)?).to_vec::<f64>()).unwrap();
    near("loaded", &run(&model), &run(&other), 1e-6);
    assert_eq!(state[0].version(), 4);
    // The parameters alone do not fill such a file.
    assert_eq!(model.params().load(&file.0).unwrap_err().kind(), wgrad::ErrorKind::Data);
}

fn b043_gradients_are_bit_equal_again(on: &Subject) {
    let (dims, ctx) = ([64, 512], on.context());
    let host = |turn| HostTensor::new(dims, &noise(&dims, turn)).unwrap().cast(DType::F32);
    let (x, up) = (host(0.3), host(0.7));
    let sums: Vec<f64> = (0..512).map(|c| up.to_vec::<f64>().iter().skip(c).step_by(512).sum()).collect();
    let mut first: Option<[Vec<f32>; 2]> = None;
    let rounds = if on.is_slow() || on.is_oracle() { 20 } else { 500 };
    for round in 0..rounds {
        let got = ctx
            .pass(|p| {
                let (w, b) = (p.ones([512]), p.zeros([512]));
                let y = p.input(&x)?.layer_norm(w, b, 1e-5);
                let g = grad((y * p.input(&up)?).sum(..), &[w, b])?;
                Ok([g[0].to_vec::<f32>()?, g[1].to_vec::<f32>()?])
            })
            .unwrap();
        if first.is_none() {
            near("column sums", &got[1].iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &sums, 1e-5);
        }
        assert!(*first.get_or_insert_with(|| got.clone()) == got, "round {round} differs");
    }
}

fn b044_eps_and_weight_of_rms_norm(on: &Subject) {
    let x = [1.0, -2.0, 0.5, 3.0, 0.0, 1.5];
    for w in [&[3.0][..], &[1.0, -2.0, 0.5]] {
        let want: Vec<f64> = (0..6)
            .map(|i| {
                let row = &x[i / 3 * 3..i / 3 * 3 + 3];
                let square = row.iter().map(|x| x * x).sum::<f64>() / 3.0;
                x[i] / (square + 0.5).sqrt() * w[i % w.len()]
            })
            .collect();
        let operands = [floats([2, 3], &x), floats([w.len()], w)];
        every_way(on, &operands, |_, x| x[0].rms_norm(x[1], 0.5), &[2, 3], &want);
        // Between other operations, and times the weight afterwards.
        let apart = |_: &Pass, x: &[Tensor]| ((x[0] * 2.0) * 0.5).rms_norm(None, 0.5) * x[1];
        every_way(on, &operands, apart, &[2, 3], &want);
    }
}

fn b046_eps_stands_inside_the_root(on: &Subject) {
    let layer = |_: &Pass, x: &[Tensor]| x[0].layer_norm(None, None, 0.75);
    every_way(on, &[floats([2], &[1.0, 2.0])], layer, &[2], &[-0.5, 0.5]);
    let rms = |_: &Pass, x: &[Tensor]| x[0].rms_norm(None, 5.0) * 3.0;
    every_way(on, &[floats([2], &[1.0, 7f64.sqrt()])], rms, &[2], &[1.0, 7f64.sqrt()]);
}
