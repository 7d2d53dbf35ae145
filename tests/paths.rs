//! Every fast path can be switched off by its name, and changes no number beyond rounding.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use wgrad::nn::{AdamW, AdamWConfig, Mlp, Module, Optimizer, Rng};
use wgrad::{Attention, Context, Conv, DType, Fast, HostTensor, Off, Pass, Result, Tensor, vjp};

use crate::{Subject, Test, halves};

/// A test for each path, so that no test compiles everything more than twice.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::Device("paths_make_fewer_dispatches".to_owned(), Box::new(paths_make_fewer_dispatches)),
        Test::Device("nothing_changes_without_all".to_owned(), Box::new(nothing_changes_without_all)),
    ];
    for path in Fast::ALL {
        let without = move |subject: &Subject| nothing_changes_without(subject, path);
        tests.push(Test::Device(format!("nothing_changes_without_{}", path.name()), Box::new(without)));
    }
    tests
}

type Results = Arc<OnceLock<Vec<Vec<f64>>>>;

/// Where a device's results with all paths are kept, so that they are computed once.
fn with_all(subject: &Subject) -> Results {
    static MADE: Mutex<BTreeMap<String, Results>> = Mutex::new(BTreeMap::new());
    Arc::clone(MADE.lock().unwrap().entry(subject.tag().to_owned()).or_default())
}

/// A context of its own without some paths.
fn without(subject: &Subject, off: Off) -> Context {
    Context::new(subject.without(off)).unwrap()
}

fn numbers(p: &Pass, dims: &[usize], of: usize) -> Result<Tensor> {
    let value = |i: usize| ((i * 37 + of) % 101) as f32 / 50.0 - 1.0;
    let elems: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    p.input(HostTensor::new(dims, &elems)?)
}

/// Three steps of training, and operations large enough that each path is taken.
fn results(ctx: &Context) -> Result<Vec<Vec<f64>>> {
    let mlp = Mlp::new(ctx, &[37, 64, 64, 5], Rng::seed(3))?;
    let mut opt = AdamW::new(mlp.params(), AdamWConfig::default())?;
    let mut made = Vec::new();
    for step in 0..3 {
        let loss = ctx.pass(|p| {
            let (x, t) = (numbers(p, &[130, 37], step)?, numbers(p, &[130, 5], step + 1)?);
            let loss = mlp.forward(x).try_mse(t)?;
            let grads = loss.backward()?;
            opt.step(&grads)?;
            loss.to_vec::<f64>()
        })?;
        made.push(loss);
    }
    for w in mlp.params().iter() {
        made.push(w.read()?.to_vec());
    }
    made.push(ctx.pass(|p| numbers(p, &[70_000], 1)?.try_tanh()?.to_vec())?);
    made.push(ctx.pass(|p| numbers(p, &[3, 20_000], 2)?.try_square()?.try_mean(1)?.to_vec())?);
    made.push(ctx.pass(|p| numbers(p, &[20_000, 3], 2)?.try_sum(0)?.to_vec())?);
    made.push(ctx.pass(|p| numbers(p, &[600, 300], 4)?.try_softmax(1)?.to_vec())?);
    for y in ctx.pass(|p| {
        let (x, w) = (numbers(p, &[300, 520], 4)?, numbers(p, &[520], 5)?);
        let y = x.try_layer_norm(w, None, 1e-5)?;
        let mut all = vjp(&[y], &[numbers(p, &[300, 520], 6)?], &[x, w])?;
        all.push(y);
        all.iter().map(|y| y.to_vec::<f64>()).collect::<Result<Vec<_>>>()
    })? {
        made.push(y);
    }
    made.push(ctx.pass(|p| numbers(p, &[3, 70, 900], 4)?.try_matmul(numbers(p, &[900, 66], 5)?)?.to_vec())?);
    made.extend(ctx.pass(|p| {
        let (x, w) = (numbers(p, &[2, 6, 9, 12], 3)?, numbers(p, &[5, 6, 3, 3], 4)?);
        let y = x.try_conv2d(w, None, Conv { padding: [1; 2].into(), ..Conv::default() })?;
        let d = vjp(&[y], &[numbers(p, &[2, 5, 9, 12], 5)?], &[x, w])?;
        [y].into_iter().chain(d).map(|x| x.to_vec::<f64>()).collect::<Result<Vec<_>>>()
    })?);
    made.extend(ctx.pass(|p| {
        let [q, g] = [numbers(p, &[2, 65, 4, 24], 6)?, numbers(p, &[2, 4, 65, 24], 9)?];
        let [k, v] = [numbers(p, &[2, 2, 70, 24], 7)?, numbers(p, &[2, 2, 70, 24], 8)?];
        let options = Attention { causal: true, ..Attention::default() };
        let x = [q.try_transpose(1, 2)?, k, v];
        let y = x[0].try_scaled_dot_product_attention(x[1], x[2], options)?;
        let dx = vjp(&[y], &[g], &x)?;
        [y].into_iter().chain(dx).map(|x| x.to_vec::<f64>()).collect::<Result<Vec<_>>>()
    })?);
    for (_, y) in ctx.pass(|p| {
        let made = halves::programs(p, DType::F16).into_iter();
        made.map(|(name, y)| Ok((name, y.to_vec::<f64>()?))).collect::<Result<Vec<_>>>()
    })? {
        made.push(y);
    }
    Ok(made)
}

fn nothing_changes_without(subject: &Subject, path: Fast) {
    // What a slow device is spared: the paths one by one.
    if !subject.is_slow() {
        agrees_without(subject, Off::default().with(path));
    }
}

fn nothing_changes_without_all(subject: &Subject) {
    agrees_without(subject, Fast::ALL.into_iter().fold(Off::default(), Off::with));
}

fn agrees_without(subject: &Subject, off: Off) {
    let all = with_all(subject);
    let want = all.get_or_init(|| results(&without(subject, Off::default())).unwrap());
    let got = results(&without(subject, off)).unwrap();
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let largest = want.iter().filter(|w| w.is_finite()).fold(1e-6_f64, |m, w| m.max(w.abs()));
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            let same = g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= 4e-5 * largest;
            assert!(same, "without {off}: result {i}: {g} and {w}");
        }
    }
}

/// What a path is for, counted: it is taken where it may be, and not where it may not.
fn paths_make_fewer_dispatches(subject: &Subject) {
    if subject.is_oracle() {
        return;
    }
    let count = |off: Off| {
        let ctx = without(subject, off);
        let before = ctx.stats().dispatches;
        results(&ctx).unwrap();
        ctx.stats().dispatches - before
    };
    let all = count(Off::default());
    let fusion = count(Off::default().with(Fast::Fusion));
    assert!(fusion > all, "{fusion} without fusion, {all} with all paths");
    let rows = count(Off::default().with(Fast::RowPrograms));
    assert!(rows > all, "{rows} without row programs, {all} with all paths");
    if subject.is_vulkan() {
        let batches = count(Off::default().with(Fast::Batches));
        assert!(batches > all, "{batches} without batches, {all} with all paths");
    }
}
