//! Layers, optimizers and parameter files, against plain f64 reimplementations.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use wgrad::nn::{
    Activation, Adam, AdamConfig, AdamW, AdamWConfig, Cosine, Dropout, Init, Linear, Mlp, Mode, Module,
    Optimizer, ParamSet, Rng, Schedule, Sequential, Sgd, SgdConfig, save_tensors,
};
use wgrad::{Context, Error, ErrorKind, HostTensor, Param, Result};

use crate::Subject;
use crate::devices::cpu;

crate::suite![
    plain: bad_arguments_are_refused, clones_are_counted_once, files_that_do_not_fit_change_nothing;
    device: sgd_matches_its_formula, adam_and_adamw_match_their_formulas, a_late_gradient_starts_its_own_count,
        a_failed_pass_moves_nothing, foreign_gradients_are_ignored, weights_are_equal_everywhere,
        an_mlp_matches_its_formula, dropout_follows_the_mode, saved_weights_come_back, an_optimizer_frees_its_state
];

const START: [f64; 3] = [1.5, -0.5, 0.25];

fn param(ctx: &Context, name: &str) -> Param {
    Param::new(ctx, name, HostTensor::new([3], &START.map(|x| x as f32)).unwrap()).unwrap()
}

fn set(params: &[&Param]) -> ParamSet {
    params.iter().map(|p| (*p).clone()).collect()
}

/// One step on `sum(w^3 / 3 + w)`, whose gradient is `w^2 + 1`.
fn step(ctx: &Context, w: &Param, opt: &mut dyn Optimizer) -> Result<()> {
    ctx.pass(|_| {
        let x = w.t();
        let info = opt.step(&(x * x * x / 3.0 + x).sum(..).backward()?)?;
        assert_eq!((info.updated, info.skipped), (1, 0));
        Ok(())
    })
}

fn close(subject: &Subject, got: &Param, expected: &[f64]) {
    let tolerance = if subject.is_oracle() { 1e-7 } else { 2e-5 };
    let got = got.read().unwrap().to_vec::<f64>();
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= tolerance * expected.abs().max(1.0), "{got}, expected {expected}");
    }
}

fn sgd_matches_its_formula(subject: &Subject) {
    let ctx = subject.context();
    for (momentum, nesterov, weight_decay) in
        [(0.0, false, 0.0), (0.0, false, 0.1), (0.9, false, 0.0), (0.9, false, 0.1), (0.9, true, 0.1)]
    {
        let w = param(&ctx, "w");
        let config = SgdConfig { lr: 0.02, momentum, nesterov, weight_decay };
        let mut opt = Sgd::new(set(&[&w]), config).unwrap();
        let (mut expected, mut velocity) = (START, [0.0; 3]);
        for i in 0..4 {
            let lr = Cosine::new(0.02, 5).at(i);
            opt.lr().set(lr);
            step(&ctx, &w, &mut opt).unwrap();
            for (w, v) in expected.iter_mut().zip(&mut velocity) {
                let d = *w * *w + 1.0 + weight_decay * *w;
                *v = momentum * *v + d;
                *w -= lr * if nesterov { d + momentum * *v } else { *v };
            }
        }
        assert_eq!(opt.steps(), 4);
        close(subject, &w, &expected);
    }
}

/// Adam and AdamW on numbers, with a count of its own for each weight.
struct Reference {
    w: [f64; 3],
    m: [f64; 3],
    v: [f64; 3],
    t: i32,
}

impl Reference {
    fn new() -> Reference {
        Reference { w: START, m: [0.0; 3], v: [0.0; 3], t: 0 }
    }

    fn step(&mut self, c: &AdamWConfig, decoupled: bool) {
        self.t += 1;
        for ((w, m), v) in self.w.iter_mut().zip(&mut self.m).zip(&mut self.v) {
            let g = *w * *w + 1.0 + if decoupled { 0.0 } else { c.weight_decay * *w };
            *m = c.beta1 * *m + (1.0 - c.beta1) * g;
            *v = c.beta2 * *v + (1.0 - c.beta2) * g * g;
            if decoupled {
                *w -= c.lr * c.weight_decay * *w;
            }
            let (m, v) = (*m / (1.0 - c.beta1.powi(self.t)), *v / (1.0 - c.beta2.powi(self.t)));
            *w -= c.lr * m / (v.sqrt() + c.eps);
        }
    }
}

fn adam_and_adamw_match_their_formulas(subject: &Subject) {
    let ctx = subject.context();
    for (decoupled, weight_decay) in [(true, 0.0), (true, 0.1), (false, 0.0), (false, 0.1)] {
        let config = AdamWConfig { lr: 0.05, beta2: 0.99, weight_decay, ..AdamWConfig::default() };
        let w = param(&ctx, "w");
        let mut opt: Box<dyn Optimizer> = if decoupled {
            Box::new(AdamW::new(set(&[&w]), config).unwrap())
        } else {
            let AdamWConfig { lr, beta1, beta2, eps, weight_decay } = config;
            Box::new(Adam::new(set(&[&w]), AdamConfig { lr, beta1, beta2, eps, weight_decay }).unwrap())
        };
        let mut expected = Reference::new();
        for _ in 0..5 {
            step(&ctx, &w, &mut *opt).unwrap();
            expected.step(&config, decoupled);
        }
        assert_eq!(opt.steps(), 5);
        close(subject, &w, &expected.w);
    }
}

fn a_late_gradient_starts_its_own_count(subject: &Subject) {
    let ctx = subject.context();
    let (a, b) = (param(&ctx, "a"), param(&ctx, "b"));
    let config = AdamWConfig { lr: 0.05, ..AdamWConfig::default() };
    let mut opt = AdamW::new(set(&[&a, &b]), config).unwrap();
    let (mut expected_a, mut expected_b) = (Reference::new(), Reference::new());
    for i in 0..5 {
        ctx.pass(|_| {
            let f = |p: &Param| {
                let x = p.t();
                (x * x * x / 3.0 + x).sum(..)
            };
            let loss = if i < 3 { f(&a) } else { f(&a) + f(&b) };
            let info = opt.step(&loss.backward()?)?;
            assert_eq!((info.updated, info.skipped), if i < 3 { (1, 1) } else { (2, 0) });
            Ok(())
        })
        .unwrap();
        expected_a.step(&config, true);
        if i >= 3 {
            expected_b.step(&config, true);
        }
    }
    close(subject, &a, &expected_a.w);
    close(subject, &b, &expected_b.w);
}

fn a_failed_pass_moves_nothing(subject: &Subject) {
    let ctx = subject.context();
    let run = |fail: bool| {
        let w = param(&ctx, "w");
        let mut opt = AdamW::new(set(&[&w]), AdamWConfig { lr: 0.05, ..AdamWConfig::default() }).unwrap();
        step(&ctx, &w, &mut opt).unwrap();
        if fail {
            let failed: Result<()> = ctx.pass(|_| {
                opt.step(&w.t().sum(..).backward()?)?;
                Err(Error::new(ErrorKind::User, "test", "no"))
            });
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::User);
            assert_eq!(opt.steps(), 1);
        }
        step(&ctx, &w, &mut opt).unwrap();
        assert_eq!(opt.steps(), 2);
        w.read().unwrap()
    };
    assert_eq!(run(true), run(false));
}

fn foreign_gradients_are_ignored(subject: &Subject) {
    let ctx = subject.context();
    let (a, b) = (param(&ctx, "a"), param(&ctx, "b"));
    let mut opt = Sgd::new(set(&[&a]), SgdConfig::default()).unwrap();
    ctx.pass(|_| {
        let info = opt.step(&(a.t() * b.t()).sum(..).backward()?)?;
        assert_eq!((info.updated, info.skipped), (1, 0));
        Ok(())
    })
    .unwrap();
    assert_eq!((a.version(), b.version()), (2, 1));
}

fn weights_are_equal_everywhere(subject: &Subject) {
    let model = |ctx: &Context| Mlp::new(ctx, &[5, 4, 3], Rng::seed(9)).unwrap().params();
    let (here, there) = (model(&subject.context()), model(&cpu()));
    let names: Vec<_> = here.iter().map(|p| p.name().to_owned()).collect();
    assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
    for (a, b) in here.iter().zip(&there) {
        assert_eq!(a.read().unwrap(), b.read().unwrap());
    }
    let drawn = Init::HeUniform.draw(Rng::seed(9).at("fc2.weight"), [4, 3], 4, 3);
    assert_eq!(here.get("fc2.weight").unwrap().read().unwrap(), drawn);
    assert_eq!(here.elems(), 5 * 4 + 4 + 4 * 3 + 3);
}

fn an_mlp_matches_its_formula(subject: &Subject) {
    let ctx = subject.context();
    let model = Mlp::with(&ctx, &[3, 4, 2], Rng::seed(2), Activation::Tanh).unwrap();
    let params: Vec<_> = model.params().iter().map(|p| p.read().unwrap().to_vec::<f64>()).collect();
    let linear = |x: &[f64], w: &[f64], b: &[f64]| -> Vec<f64> {
        let column = |j: usize| x.iter().enumerate().map(move |(i, x)| (i, j, *x));
        (0..b.len()).map(|j| b[j] + column(j).map(|(i, j, x)| x * w[i * b.len() + j]).sum::<f64>()).collect()
    };
    let hidden: Vec<f64> = linear(&START, &params[0], &params[1]).iter().map(|x| x.tanh()).collect();
    let expected = linear(&hidden, &params[2], &params[3]);
    let x = HostTensor::new([1, 3], &START.map(|x| x as f32)).unwrap();
    let got = ctx.pass(|p| model.forward(p.input(&x)?).to_vec::<f64>()).unwrap();
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-5, "{got}, expected {expected}");
    }
}

fn dropout_follows_the_mode(subject: &Subject) {
    let ctx = subject.context();
    let mut model = Sequential::new().then(Dropout::new("drop", 0.25)).then(Activation::Relu);
    let ones = HostTensor::new([64, 64], &[1.0f32; 4096]).unwrap();
    let run = |model: &Sequential| ctx.pass(|p| model.forward(p.input(&ones)?).to_vec::<f32>()).unwrap();
    let (first, second) = (run(&model), run(&model));
    let zeros = first.iter().filter(|x| **x == 0.0).count();
    assert!(zeros.abs_diff(1024) < 150, "{zeros} of 4096 were dropped");
    assert!(first.iter().all(|x| *x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6));
    assert_ne!(first, second, "each step draws anew");
    model.set_mode(Mode::Eval);
    assert_eq!(run(&model), [1.0; 4096]);
    assert!(model.params().is_empty());
}

/// A file for one test, gone at its end.
pub(crate) struct TestFile(pub(crate) PathBuf);

impl TestFile {
    pub(crate) fn new() -> TestFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("wgrad-{}-{}.safetensors", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        TestFile(std::env::temp_dir().join(name))
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn saved_weights_come_back(subject: &Subject) {
    let file = TestFile::new();
    let ctx = subject.context();
    let saved = Mlp::new(&ctx, &[3, 4, 2], Rng::seed(1)).unwrap().params();
    saved.save(&file.0).unwrap();
    let other = Mlp::new(&ctx, &[3, 4, 2], Rng::seed(2)).unwrap().params();
    other.load(&file.0).unwrap();
    for (a, b) in saved.iter().zip(&other) {
        assert_eq!(a.read().unwrap(), b.read().unwrap());
    }
}

fn files_that_do_not_fit_change_nothing() {
    let ctx = cpu();
    let params = Mlp::new(&ctx, &[2, 3], Rng::seed(1)).unwrap().params();
    let before: Vec<_> = params.iter().map(|p| p.read().unwrap()).collect();
    let weight = || ("fc1.weight".to_owned(), HostTensor::new([2, 3], &[9f32; 6]).unwrap());
    let bias = || ("fc1.bias".to_owned(), HostTensor::new([3], &[9f32; 3]).unwrap());
    for (tensors, fault) in [
        (vec![weight()], "\"fc1.bias\" is missing"),
        (vec![weight(), bias(), ("extra".to_owned(), bias().1)], "\"extra\" is no parameter"),
        (vec![weight(), ("fc1.bias".to_owned(), HostTensor::new([4], &[9f32; 4]).unwrap())], "is [4]"),
        (vec![weight(), ("fc1.bias".to_owned(), HostTensor::new([3], &[9i32; 3]).unwrap())], "is i32"),
    ] {
        let file = TestFile::new();
        save_tensors(&file.0, &tensors).unwrap();
        let error = params.load(&file.0).unwrap_err();
        assert!(error.kind() == ErrorKind::Data && error.to_string().contains(fault), "{error}");
    }
    for (param, before) in params.iter().zip(&before) {
        assert_eq!(param.read().unwrap(), *before);
        assert_eq!(param.version(), 1);
    }
}

fn clones_are_counted_once() {
    let ctx = cpu();
    let layer = Linear::new(&ctx, "tied", 4, 4, Rng::seed(1)).unwrap();
    let model = Sequential::new().then(layer.clone()).then(Activation::Gelu).then(layer);
    assert_eq!(model.params().len(), 2);
    assert_eq!(model.params().elems(), 20);
}

fn bad_arguments_are_refused() {
    let (ctx, other) = (cpu(), cpu());
    let w = param(&ctx, "w");
    let kind = |result: Result<()>| result.unwrap_err().kind();
    let sgd = |params, config| Sgd::new(params, config).map(drop);
    assert_eq!(kind(sgd(ParamSet::default(), SgdConfig::default())), ErrorKind::Argument);
    assert_eq!(kind(sgd(set(&[&w, &param(&other, "v")]), SgdConfig::default())), ErrorKind::Device);
    assert_eq!(kind(sgd(set(&[&w]), SgdConfig { momentum: 1.0, ..Default::default() })), ErrorKind::Argument);
    let adam = |config| AdamW::new(set(&[&w]), config).map(drop);
    for config in [
        AdamWConfig { beta1: 1.0, ..Default::default() },
        AdamWConfig { beta2: -0.1, ..Default::default() },
        AdamWConfig { eps: 0.0, ..Default::default() },
        AdamWConfig { weight_decay: f64::NAN, ..Default::default() },
    ] {
        assert_eq!(kind(adam(config)), ErrorKind::Argument, "{config:?}");
    }
    let mut opt = Sgd::new(set(&[&w]), SgdConfig::default()).unwrap();
    assert_eq!(opt.step(&wgrad::Grads::default()).unwrap_err().kind(), ErrorKind::Stale);
}

fn an_optimizer_frees_its_state(subject: &Subject) {
    let ctx = Context::new(subject.fresh()).unwrap();
    let w = Param::new(&ctx, "w", HostTensor::new([1 << 16], &vec![1f32; 1 << 16]).unwrap()).unwrap();
    let live = || ctx.stats().live_bytes;
    let before = live();
    let opt = AdamW::new(set(&[&w]), AdamWConfig::default()).unwrap();
    assert!(live() >= before + 2 * 4 * (1 << 16));
    drop(opt);
    assert_eq!(live(), before);
}
