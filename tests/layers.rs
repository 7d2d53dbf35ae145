//! Normalisation, embedding, attention and recurrent layers against plain reimplementations.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::nn::Optimizer;
use wgrad::nn::{
    AvgPool, BatchNorm, ChannelDropout, Conv1d, Conv2d, Conv3d, ConvTranspose1d, Embedding, Flatten,
    GroupNorm, Gru, GruCell, Init, InstanceNorm, InstanceNormConfig, LayerNorm, Lstm, LstmCell, MaxPool,
    Mode, Module, MultiHeadAttention, ParamSet, Recurrent, RmsNorm, Rng, Rope, Sequential, Sgd, SgdConfig,
};
use wgrad::{Context, Conv, ConvTranspose, ErrorKind, HostTensor, Pairing, Param, Pass, Scalar, Tensor};

use crate::Subject;
use crate::devices::cpu;
use crate::nn::TestFile;
use crate::ops::near;

crate::suite![
    plain: names_are_those_of_the_field, layers_refuse_what_does_not_fit;
    device: channels_drop_whole, convolutions_match_the_operation, layers_start_as_the_bare_operation,
        instances_have_statistics_of_their_own, a_failed_pass_moves_no_statistics, padding_stays_zero, heads_match_a_plain_loop,
        cross_attention_takes_other_lengths, rope_depends_on_distance_alone, b172_a_gru_by_hand,
        recurrent_layers_match_their_cells, b173_equal_rows_give_equal_rows, both_directions
];

fn noise(dims: &[usize], turn: f64) -> HostTensor {
    let count: usize = dims.iter().product();
    let x: Vec<f32> =
        (0..count).map(|i| (((i as f64 + turn) * 0.618_033_988_75).fract() * 3.0 - 1.5) as f32).collect();
    HostTensor::new(dims, &x).unwrap()
}

fn input(p: &Pass, dims: &[usize], turn: f64) -> Tensor {
    p.input(noise(dims, turn)).unwrap()
}

fn set(param: &Param, elems: &[f32]) {
    let host = HostTensor::new(param.shape(), elems).unwrap();
    param.context().pass(|p| param.try_set(p.input(&host)?)).unwrap();
}

fn layers_start_as_the_bare_operation(on: &Subject) {
    let ctx = on.context();
    let layer = LayerNorm::new(&ctx, "ln", [3, 4]).unwrap();
    let rms = RmsNorm::new(&ctx, "rms", [4]).unwrap();
    let group = GroupNorm::new(&ctx, "gn", 2, 4).unwrap();
    ctx.pass(|p| {
        let x = input(p, &[2, 3, 4], 0.2);
        near("layer", &layer.forward(x).to_vec()?, &x.standardize([1, 2], 1e-5).to_vec()?, 1e-6);
        near("rms", &rms.forward(x).to_vec()?, &x.rms_norm(None, 1e-6).to_vec()?, 1e-6);
        let x = x.reshape([2, 4, 3]);
        near("group", &group.forward(x).to_vec()?, &x.group_norm(2, None, None, 1e-5).to_vec()?, 1e-6);
        let loss = group.forward(x).square().sum(..) + layer.forward(x.reshape([2, 3, 4])).sum(..);
        let grads = loss.backward()?;
        assert!(grads.get(&layer.weight).is_some() && grads.get(group.bias.as_ref().unwrap()).is_some());
        Ok(())
    })
    .unwrap();
}

fn channels_drop_whole(on: &Subject) {
    let ctx = on.context();
    let mut model = Sequential::new().then(ChannelDropout::new("drop", 0.5)).then(Flatten);
    let run = |model: &Sequential| {
        ctx.pass(|p| {
            let y = model.forward(p.ones([8, 16, 2, 3]));
            assert_eq!(y.shape().dims(), [8, 96]);
            y.to_vec::<f32>()
        })
        .unwrap()
    };
    let y = run(&model);
    let dropped = y.chunks(6).filter(|c| **c == [0.0; 6]).count();
    let kept = y.chunks(6).filter(|c| **c == [2.0; 6]).count();
    assert!(dropped + kept == 128 && dropped.abs_diff(64) < 30, "{dropped} {kept}");
    model.set_mode(Mode::Eval);
    assert_eq!(run(&model), [1.0; 768]);
}

fn instances_have_statistics_of_their_own(on: &Subject) {
    let ctx = on.context();
    let plain = InstanceNorm::new(&ctx, "in", 2, InstanceNormConfig::default()).unwrap();
    assert!(plain.params().is_empty() && plain.state().is_empty());
    let config = InstanceNormConfig { affine: true, track_running_stats: true, ..Default::default() };
    let mut norm = InstanceNorm::new(&ctx, "in", 2, config).unwrap();
    let names: Vec<_> = norm.params().iter().map(|p| p.name().to_owned()).collect();
    assert_eq!(names, ["in.weight", "in.bias"]);
    set(norm.weight.as_ref().unwrap(), &[2.0, -1.0]);
    set(norm.bias.as_ref().unwrap(), &[0.5, 0.0]);
    // Three items, two channels, four places.
    let x = noise(&[3, 2, 2, 2], 0.6);
    let lines: Vec<Vec<f64>> = x.to_vec::<f64>().chunks(4).map(<[f64]>::to_vec).collect();
    let mean = |line: &[f64]| line.iter().sum::<f64>() / 4.0;
    let squares = |line: &[f64]| line.iter().map(|x| (x - mean(line)).powi(2)).sum::<f64>();
    let unit = |line: &[f64]| -> Vec<f64> {
        line.iter().map(|x| (x - mean(line)) / (squares(line) / 4.0 + 1e-5).sqrt()).collect()
    };
    let want: Vec<f64> = lines.iter().flat_map(|line| unit(line)).collect();
    let run = |norm: &InstanceNorm| ctx.pass(|p| norm.forward(p.input(&x)?).to_vec::<f64>()).unwrap();
    near("plain", &run(&plain), &want, 1e-5);
    let moved = |y: f64, c: usize| [2.0, -1.0][c] * y + [0.5, 0.0][c];
    let affine: Vec<f64> = want.iter().enumerate().map(|(i, y)| moved(*y, i / 4 % 2)).collect();
    near("affine", &run(&norm), &affine, 1e-5);
    near("affine again", &run(&norm), &affine, 1e-5);
    // Two steps of the running statistics: means over items of mean and unbiased variance.
    let over = |c: usize, f: &dyn Fn(&[f64]) -> f64| {
        lines.iter().skip(c).step_by(2).map(|line| f(line)).sum::<f64>() / 3.0
    };
    let twice = |start: f64, new: f64| 0.81 * start + 0.19 * new;
    let means = [0, 1].map(|c| twice(0.0, over(c, &mean)));
    let vars = [0, 1].map(|c| twice(1.0, over(c, &|line| squares(line) / 3.0)));
    let state = norm.state();
    near("running mean", &state[0].read().unwrap().to_vec(), &means, 1e-5);
    near("running var", &state[1].read().unwrap().to_vec(), &vars, 1e-5);
    let file = TestFile::new();
    norm.save(&file.0).unwrap();
    let mut other = InstanceNorm::new(&ctx, "in", 2, config).unwrap();
    other.load(&file.0).unwrap();
    norm.set_mode(Mode::Eval);
    other.set_mode(Mode::Eval);
    let running: Vec<f64> = lines
        .iter()
        .enumerate()
        .flat_map(|(i, line)| {
            let c = i % 2;
            line.iter().map(move |x| moved((x - means[c]) / (vars[c] + 1e-5).sqrt(), c)).collect::<Vec<_>>()
        })
        .collect();
    near("in use", &run(&norm), &running, 1e-4);
    near("loaded", &run(&other), &running, 1e-4);
    assert_eq!(state[0].version(), 3);
    // In training the statistics are not what gradients go through.
    norm.set_mode(Mode::Train);
    let grads = ctx.pass(|p| {
        let grads = norm.forward(p.input(&x)?).square().sum(..).backward()?;
        grads.get(norm.weight.as_ref().unwrap()).unwrap().to_vec::<f64>()
    });
    let slope = |c: usize| {
        let of = |line: &[f64]| unit(line).iter().map(|y| 2.0 * moved(*y, c) * y).sum::<f64>();
        lines.iter().skip(c).step_by(2).map(|line| of(line)).sum::<f64>()
    };
    near("gradient", &grads.unwrap(), &[slope(0), slope(1)], 1e-4);
}

fn a_failed_pass_moves_no_statistics(on: &Subject) {
    let ctx = on.context();
    let norm = BatchNorm::new(&ctx, "bn", 3).unwrap();
    let mut opt = Sgd::new(norm.params(), SgdConfig { lr: 0.1, ..Default::default() }).unwrap();
    let failed: wgrad::Result<()> = ctx.pass(|p| {
        let loss = norm.forward(input(p, &[4, 3], 0.1)).square().mean(..);
        opt.step(&loss.backward()?)?;
        Err(wgrad::Error::new(ErrorKind::User, "test", "no"))
    });
    assert!(failed.is_err());
    assert_eq!(
        (norm.running_mean.version(), norm.running_mean.read().unwrap().to_vec::<f32>()),
        (1, vec![0.0; 3])
    );
}

fn padding_stays_zero(on: &Subject) {
    let ctx = on.context();
    let table = Embedding::with(&ctx, "e", 4, 3, Rng::seed(1), Init::Normal(1.0), Some(2)).unwrap();
    let mut opt = Sgd::new(table.params(), SgdConfig { lr: 0.5, ..Default::default() }).unwrap();
    let before = table.weight.read().unwrap().to_vec::<f32>();
    ctx.pass(|p| {
        let idx = p.input(HostTensor::new([2, 2], &[2i32, 0, 2, 3])?)?;
        let y = table.forward(idx);
        assert_eq!(y.shape().dims(), [2, 2, 3]);
        opt.step(&(y + 1.0).square().sum(..).backward()?)?;
        Ok(())
    })
    .unwrap();
    let after = table.weight.read().unwrap().to_vec::<f32>();
    assert_eq!(after[6..9], [0.0; 3]);
    assert_eq!(after[3..6], before[3..6]);
    assert!(after[..3] != before[..3] && after[9..] != before[9..]);
}

/// Attention head by head in plain loops: `[t, width]` tokens under `causal`.
fn plain_heads(layer: &MultiHeadAttention, x: &[f64], t: usize, width: usize) -> Vec<f64> {
    let read = |p: &Param| p.read().unwrap().to_vec::<f64>();
    let (heads, groups) = (layer.heads, layer.groups);
    let (d, wide) = (width / heads, layer.in_proj_weight.shape()[1]);
    let affine = |x: &[f64], w: &[f64], b: &[f64]| -> Vec<f64> {
        let (n, inputs) = (b.len(), w.len() / b.len());
        (0..x.len() / inputs * n)
            .map(|i| b[i % n] + (0..inputs).map(|k| x[i / n * inputs + k] * w[k * n + i % n]).sum::<f64>())
            .collect()
    };
    let all = affine(x, &read(&layer.in_proj_weight), &read(layer.in_proj_bias.as_ref().unwrap()));
    let mut y = vec![0.0; t * width];
    for h in 0..heads {
        let g = h / (heads / groups);
        for i in 0..t {
            let q = |c: usize| all[i * wide + h * d + c];
            let k = |j: usize, c: usize| all[j * wide + width + g * d + c];
            let v = |j: usize, c: usize| all[j * wide + width + groups * d + g * d + c];
            let seen = if layer.causal { i + 1 } else { t };
            let e: Vec<f64> = (0..seen)
                .map(|j| ((0..d).map(|c| q(c) * k(j, c)).sum::<f64>() / (d as f64).sqrt()).exp())
                .collect();
            for c in 0..d {
                let sum: f64 = e.iter().enumerate().map(|(j, e)| e * v(j, c)).sum();
                y[i * width + h * d + c] = sum / e.iter().sum::<f64>();
            }
        }
    }
    affine(&y, &read(&layer.out_proj.weight), &read(layer.out_proj.bias.as_ref().unwrap()))
}

fn heads_match_a_plain_loop(on: &Subject) {
    let ctx = on.context();
    for (heads, groups, causal) in [(2, 2, false), (4, 2, true), (4, 1, true)] {
        let mut layer =
            MultiHeadAttention::with(&ctx, "attn", 8, [heads, groups], Rng::seed(3), true).unwrap();
        layer.causal = causal;
        let bias = layer.in_proj_bias.as_ref().unwrap();
        set(bias, &noise(&[bias.shape()[0]], 0.3).to_vec::<f32>());
        let x = noise(&[2, 5, 8], 0.7);
        let got = ctx.pass(|p| layer.forward(p.input(&x)?).to_vec::<f64>()).unwrap();
        let x = x.to_vec::<f64>();
        let want: Vec<f64> = x.chunks(40).flat_map(|x| plain_heads(&layer, x, 5, 8)).collect();
        near("attention", &got, &want, 1e-5);
    }
}

fn cross_attention_takes_other_lengths(on: &Subject) {
    let ctx = on.context();
    let layer = MultiHeadAttention::new(&ctx, "attn", 6, 3, Rng::seed(3)).unwrap();
    ctx.pass(|p| {
        let (x, memory) = (input(p, &[2, 3, 6], 0.1), input(p, &[2, 7, 6], 0.6));
        let own = layer.cross(x, x, x, None);
        near("self", &own.to_vec()?, &layer.forward(x).to_vec()?, 1e-5);
        let seen = p.arange(0..7).lt(4);
        let y = layer.cross(x, memory, memory, Some(seen));
        let cut = layer.cross(x, memory.narrow(1, 0, 4), memory.narrow(1, 0, 4), None);
        near("masked", &y.to_vec()?, &cut.to_vec()?, 1e-5);
        let grads = y.square().sum(..).backward()?;
        assert!(layer.params().iter().all(|w| grads.get(w).is_some()));
        Ok(())
    })
    .unwrap();
}

fn rope_depends_on_distance_alone(on: &Subject) {
    let ctx = on.context();
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        let rope = Rope::new(&ctx, 60_000, 8, 10_000.0, pairing).unwrap();
        let start = Scalar::new(5.0);
        ctx.pass(|p| {
            let (q, k) = (input(p, &[1, 1, 8], 0.1), input(p, &[1, 1, 8], 0.8));
            let product = |a: Tensor, b: Tensor| (a * b).sum(..);
            let near_by = product(rope.turn(q, 5), rope.turn(k, 2));
            let far = product(rope.turn(q, 59_003), rope.turn(k, 59_000));
            let by_scalar = product(rope.turn(q, &start), rope.turn(k, 2));
            near("far", &far.to_vec()?, &near_by.to_vec()?, 1e-5);
            near("by scalar", &by_scalar.to_vec()?, &near_by.to_vec()?, 0.0);
            let rows = input(p, &[2, 3, 8], 0.3);
            let turned = rope.turn(rows, 0);
            near("position 0", &turned.narrow(1, 0, 1).to_vec()?, &rows.narrow(1, 0, 1).to_vec()?, 0.0);
            let norms = |x: Tensor| x.square().sum(-1).to_vec::<f64>();
            near("lengths stay", &norms(turned)?, &norms(rows)?, 1e-5);
            Ok(())
        })
        .unwrap();
    }
}

fn b172_a_gru_by_hand(on: &Subject) {
    let ctx = on.context();
    let cell = GruCell::new(&ctx, "gru", 1, 1, Rng::seed(1)).unwrap();
    for param in &cell.params() {
        let bias = param.name() == "gru.bias_hh";
        let rest = if param.name().contains("bias") { 0.0 } else { 1.0 };
        // The state's bias of the new gate alone is 1.
        set(param, &[rest, rest, if bias { 1.0 } else { rest }]);
    }
    ctx.pass(|p| {
        let x = |x: f32| p.input(HostTensor::new([1, 1], &[x]).unwrap()).unwrap();
        let first = cell.step(x(1.0), x(0.5));
        let second = cell.step(x(0.5), first);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let step = |x: f64, h: f64| {
            let (r, z) = (sigmoid(x + h), sigmoid(x + h));
            let n = (x + r * (h + 1.0)).tanh();
            (1.0 - z) * n + z * h
        };
        let want = [step(1.0, 0.5), step(0.5, step(1.0, 0.5))];
        near("gru", &[first.item()?, second.item()?], &want, 1e-6);
        near("known", &want, &[0.587_012, 0.674_450], 2e-6);
        Ok(())
    })
    .unwrap();
}

fn recurrent_layers_match_their_cells(on: &Subject) {
    let ctx = on.context();
    let (inputs, hidden, steps) = (3, 4, 5);
    let options = Recurrent { layers: 2, ..Default::default() };
    let lstm = Lstm::with(&ctx, "rnn", inputs, hidden, options, Rng::seed(1)).unwrap();
    let gru = Gru::new(&ctx, "rnn", inputs, hidden, Rng::seed(2)).unwrap();
    let cells: Vec<LstmCell> = (0..2)
        .map(|i| {
            let wide = if i == 0 { inputs } else { hidden };
            let cell = LstmCell::new(&ctx, "cell", wide, hidden, Rng::seed(5)).unwrap();
            for (to, from) in cell.params().iter().zip(lstm.params().iter().skip(4 * i)) {
                set(to, &from.read().unwrap().to_vec::<f32>());
            }
            cell
        })
        .collect();
    let gru_cell = GruCell::new(&ctx, "cell", inputs, hidden, Rng::seed(5)).unwrap();
    for (to, from) in gru_cell.params().iter().zip(&gru.params()) {
        set(to, &from.read().unwrap().to_vec::<f32>());
    }
    ctx.pass(|p| {
        let x = input(p, &[2, steps, inputs], 0.3);
        let start = [input(p, &[2, 2, hidden], 0.1), input(p, &[2, 2, hidden], 0.6)];
        let (y, end) = lstm.run(x, Some(start));
        let mut state = [0, 1].map(|l| start.map(|s| s.select_index(0, l)));
        let mut outputs = Vec::new();
        for t in 0..steps {
            let mut x = x.select_index(1, t as i32);
            for (cell, state) in cells.iter().zip(&mut state) {
                *state = cell.step(x, *state);
                x = state[0];
            }
            outputs.push(x);
        }
        near("outputs", &y.to_vec()?, &Tensor::stack(&outputs, 1).to_vec()?, 1e-6);
        for part in 0..2 {
            let want = Tensor::stack(&[state[0][part], state[1][part]], 0);
            near("state", &end[part].to_vec()?, &want.to_vec()?, 1e-6);
        }
        let (y, [h]) = gru.run(x, None);
        let mut want = p.zeros([2, hidden]);
        for t in 0..steps {
            want = gru_cell.step(x.select_index(1, t as i32), want);
        }
        near("gru", &y.select_index(1, -1).to_vec()?, &want.to_vec()?, 1e-6);
        near("gru state", &h.to_vec()?, &want.to_vec()?, 1e-6);
        let grads = (y.square().sum(..) + end[1].sum(..)).backward()?;
        assert!(lstm.params().iter().chain(&gru.params()).all(|w| grads.get(w).is_some()));
        Ok(())
    })
    .unwrap();
}

fn b173_equal_rows_give_equal_rows(on: &Subject) {
    let ctx = on.context();
    let lstm = Lstm::new(&ctx, "rnn", 3, 4, Rng::seed(1)).unwrap();
    ctx.pass(|p| {
        let x = input(p, &[1, 6, 3], 0.3);
        let (y, [h, c]) = lstm.run(x.repeat(0, 2), None);
        assert_eq!((y.shape().dims(), h.shape().dims()), (&[2, 6, 4][..], &[1, 2, 4][..]));
        let rows = y.to_vec::<f32>()?;
        assert_eq!(rows[..24], rows[24..]);
        let c = c.to_vec::<f32>()?;
        assert_eq!(c[..4], c[4..]);
        Ok(())
    })
    .unwrap();
}

fn both_directions(on: &Subject) {
    let ctx = on.context();
    let options = Recurrent { bidirectional: true, layers: 2, dropout: 0.5 };
    let mut gru = Gru::with(&ctx, "rnn", 3, 4, options, Rng::seed(1)).unwrap();
    let one = Gru::new(&ctx, "one", 3, 4, Rng::seed(1)).unwrap();
    for (to, from) in one.params().iter().zip(gru.params().iter().skip(4)) {
        set(to, &from.read().unwrap().to_vec::<f32>());
    }
    let x = noise(&[2, 5, 3], 0.3);
    let run = |gru: &Gru| ctx.pass(|p| gru.run(p.input(&x)?, None).0.to_vec::<f32>()).unwrap();
    assert_ne!(run(&gru), run(&gru), "dropout between the layers");
    gru.set_mode(Mode::Eval);
    assert_eq!(run(&gru), run(&gru));
    let single = Recurrent { layers: 1, ..options };
    let first = Gru::with(&ctx, "rnn", 3, 4, single, Rng::seed(1)).unwrap();
    ctx.pass(|p| {
        let x = p.input(&x)?;
        let back = first.forward(x).narrow(-1, 4, 4);
        near("backwards", &back.to_vec()?, &one.forward(x.flip(1)).flip(1).to_vec()?, 1e-6);
        Ok(())
    })
    .unwrap();
}

fn convolutions_match_the_operation(on: &Subject) {
    let ctx = on.context();
    let options = Conv { stride: [2, 1], padding: [1, 0].into(), groups: 2, ..Default::default() };
    let conv = Conv2d::new(&ctx, "c", [4, 6], [3, 2], options, Rng::seed(1)).unwrap();
    assert_eq!(conv.weight.shape().dims(), [6, 2, 3, 2]);
    let turned = ConvTranspose { stride: [2], groups: 2, ..Default::default() };
    let back = ConvTranspose1d::new(&ctx, "t", [4, 6], [3], turned, Rng::seed(1)).unwrap();
    assert_eq!(back.weight.shape().dims(), [4, 3, 3]);
    let line = Conv1d::new(&ctx, "l", [2, 3], [3], Conv::default(), Rng::seed(1)).unwrap();
    let block = Conv3d::new(&ctx, "b", [1, 2], [2, 2, 2], Conv::default(), Rng::seed(1)).unwrap();
    let model = Sequential::new().then(MaxPool::new([2, 2])).then(AvgPool::new([2, 1])).then(Flatten);
    ctx.pass(|p| {
        let x = input(p, &[2, 4, 7, 5], 0.3);
        let y = conv.forward(x);
        let bias = conv.bias.as_ref().map(Param::t);
        near("conv", &y.to_vec()?, &x.conv2d(conv.weight.t(), bias, options).to_vec()?, 0.0);
        let grads = y.square().sum(..).backward()?;
        assert!(conv.params().iter().all(|w| grads.get(w).is_some()));
        assert_eq!(back.forward(input(p, &[2, 4, 5], 0.1)).shape().dims(), [2, 6, 11]);
        assert_eq!(line.forward(input(p, &[2, 2, 5], 0.1)).shape().dims(), [2, 3, 3]);
        assert_eq!(block.forward(input(p, &[2, 1, 3, 4, 5], 0.1)).shape().dims(), [2, 2, 2, 3, 4]);
        let x = input(p, &[2, 3, 4, 6], 0.4);
        let pooled = x.max_pool([2, 2]).avg_pool([2, 1]).flatten(1);
        near("pools", &model.forward(x).to_vec()?, &pooled.to_vec()?, 0.0);
        Ok(())
    })
    .unwrap();
    // Connections count the kernel and the groups: 2 inputs of 3 x 2 places.
    let bound = (6.0f64 / 12.0).sqrt();
    let weight = conv.weight.read().unwrap().to_vec::<f64>();
    let largest = weight.iter().fold(0.0f64, |max, w| max.max(w.abs()));
    assert!(largest <= bound && largest > 0.9 * bound, "{largest} of {bound}");
    assert!(conv.bias.unwrap().read().unwrap().to_vec::<f64>().iter().all(|b| *b == 0.0));
    let three = Conv { groups: 3, ..Default::default() };
    assert_eq!(
        Conv1d::new(&ctx, "l", [2, 3], [3], three, Rng::seed(1)).unwrap_err().kind(),
        ErrorKind::Argument
    );
}

fn names_are_those_of_the_field() {
    let ctx = cpu();
    let names = |params: ParamSet| -> Vec<String> { params.iter().map(|p| p.name().to_owned()).collect() };
    let norm = BatchNorm::new(&ctx, "bn1", 3).unwrap();
    assert_eq!(names(norm.params()), ["bn1.weight", "bn1.bias"]);
    let kept: Vec<String> = norm.state().iter().map(|k| k.name().to_owned()).collect();
    assert_eq!(kept, ["bn1.running_mean", "bn1.running_var"]);
    let attention = MultiHeadAttention::new(&ctx, "attn", 4, 2, Rng::seed(1)).unwrap();
    let want = ["attn.in_proj_weight", "attn.in_proj_bias", "attn.out_proj.weight", "attn.out_proj.bias"];
    assert_eq!(names(attention.params()), want);
    let options = Recurrent { bidirectional: true, ..Default::default() };
    let lstm = Lstm::with(&ctx, "rnn", 2, 3, options, Rng::seed(1)).unwrap();
    let want = [
        "rnn.weight_ih_l0",
        "rnn.weight_hh_l0",
        "rnn.bias_ih_l0",
        "rnn.bias_hh_l0",
        "rnn.weight_ih_l0_reverse",
        "rnn.weight_hh_l0_reverse",
        "rnn.bias_ih_l0_reverse",
        "rnn.bias_hh_l0_reverse",
    ];
    assert_eq!(names(lstm.params()), want);
    let weight = lstm.params().get("rnn.weight_ih_l0").unwrap().read().unwrap().to_vec::<f64>();
    assert!(weight.iter().all(|w| w.abs() < 3.0f64.sqrt().recip()));
}

fn layers_refuse_what_does_not_fit() {
    let ctx: Context = cpu();
    let kind = |result: wgrad::Result<()>| result.unwrap_err().kind();
    let heads = |heads| MultiHeadAttention::with(&ctx, "a", 6, heads, Rng::seed(1), true).map(drop);
    assert_eq!(kind(heads([4, 4])), ErrorKind::Argument);
    assert_eq!(kind(heads([3, 2])), ErrorKind::Argument);
    let padded = Embedding::with(&ctx, "e", 4, 3, Rng::seed(1), Init::Normal(1.0), Some(4)).map(drop);
    assert_eq!(kind(padded), ErrorKind::Argument);
    assert_eq!(kind(Rope::new(&ctx, 4, 3, 1e4, Pairing::Half).map(drop)), ErrorKind::Argument);
    let none = Recurrent { layers: 0, ..Default::default() };
    assert_eq!(kind(Gru::with(&ctx, "g", 2, 2, none, Rng::seed(1)).map(drop)), ErrorKind::Argument);
}
