//! Faults of files, of dtypes that are lost on the way, and of casts to truth.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::nn::{
    AdamW, AdamWConfig, Linear, Module, Optimizer, ParamSet, Rng, Sequential, load_tensors, save_tensors,
};
use wgrad::{Context, ContextOptions, DType, HostTensor, Param, Pass, Tensor};

use super::{every_way, floats};
use crate::Subject;
use crate::nn::TestFile;

crate::suite![
    plain: b268_files_keep_dtypes;
    device: b268_dtypes_are_kept, b269_moments_after_a_file, b271_a_layer_without_a_bias, b272_truth_of_numbers,
];

fn b268_files_keep_dtypes() {
    let file = TestFile::new();
    let elems = [1.0, 0.0, 3.0, 2.0, 5.0];
    let tensors: Vec<(String, HostTensor)> = DType::ALL
        .into_iter()
        .map(|dtype| (format!("{dtype}"), HostTensor::new([5], &elems).unwrap().cast(dtype)))
        .collect();
    save_tensors(&file.0, &tensors).unwrap();
    let loaded = load_tensors(&file.0).unwrap();
    assert_eq!(loaded.len(), tensors.len());
    for (name, x) in &tensors {
        let (_, y) = loaded.iter().find(|(n, _)| n == name).unwrap();
        assert_eq!((x.dtype(), x), (y.dtype(), y), "{name}");
    }
}

/// Nothing falls back to f32: not what is made like another, not a view, not a parameter from a file.
fn b268_dtypes_are_kept(on: &Subject) {
    let contexts: [Context; 2] = [on.context(), on.context_with(ContextOptions::default().fuse(false))];
    for dtype in [DType::F16, DType::BF16, DType::I64] {
        let x = |p: &Pass| p.input(HostTensor::new([3], &[1., 2., 3.]).unwrap().cast(dtype)).unwrap();
        let cases: [(&dyn Fn(&Pass) -> Tensor, &[f64]); 8] = [
            (&|p| x(p).zeros_like(), &[0.; 3]),
            (&|p| x(p).full_like(5.0), &[5.; 3]),
            (&|p| x(p).pad(&[(1, 1)], 0.0), &[0., 1., 2., 3., 0.]),
            (&|p| x(p).pad(&[(1, 0)], 7.0), &[7., 1., 2., 3.]),
            (&|p| Tensor::cat(&[x(p), x(p)], 0), &[1., 2., 3., 1., 2., 3.]),
            (&|p| x(p).flip(0).slice(0, ..2), &[3., 2.]),
            (&|p| x(p) + x(p), &[2., 4., 6.]),
            (&|p| x(p).reshape([3, 1]).t().expand([2, 3]).reshape([-1]), &[1., 2., 3., 1., 2., 3.]),
        ];
        for ctx in &contexts {
            for (i, (f, want)) in cases.iter().enumerate() {
                let got = ctx.pass(|p| Ok((f(p).dtype(), f(p).to_vec::<f64>()?))).unwrap();
                assert_eq!(got, (dtype, want.to_vec()), "case {i}");
            }
        }
    }
    let file = TestFile::new();
    for dtype in [DType::F16, DType::BF16] {
        let param = |x: [f64; 2]| {
            Param::new(&contexts[0], "w", HostTensor::new([2], &x).unwrap().cast(dtype)).unwrap()
        };
        let (saved, loaded) = (param([1.5, -2.0]), param([0.0, 0.0]));
        [saved].into_iter().collect::<ParamSet>().save(&file.0).unwrap();
        [loaded.clone()].into_iter().collect::<ParamSet>().load(&file.0).unwrap();
        assert_eq!((loaded.dtype(), loaded.t().dtype()), (dtype, dtype));
        assert_eq!(loaded.read().unwrap().to_vec::<f64>(), [1.5, -2.0]);
    }
}

/// A file that is loaded changes the value of a parameter, not who it is: its moments go on.
fn b269_moments_after_a_file(on: &Subject) {
    let ctx = on.context();
    let run = |through_a_file: bool| {
        let w = Param::new(&ctx, "w", HostTensor::new([3], &[1f32, -0.5, 0.25]).unwrap()).unwrap();
        let params: ParamSet = [w.clone()].into_iter().collect();
        let config = AdamWConfig { lr: 0.05, ..AdamWConfig::default() };
        let mut opt = AdamW::new(params.clone(), config).unwrap();
        let mut step = || ctx.pass(|_| opt.step(&(w.t() * w.t() * w.t()).sum(..).backward()?)).unwrap();
        step();
        step();
        if through_a_file {
            let (id, file) = (w.id(), TestFile::new());
            params.save(&file.0).unwrap();
            ctx.pass(|p| w.try_set(p.zeros([3]))).unwrap();
            params.load(&file.0).unwrap();
            assert_eq!(w.id(), id);
        }
        step();
        assert_eq!(opt.steps(), 3);
        w.read().unwrap().to_vec::<f32>()
    };
    let (through, plain) = (run(true), run(false));
    if on.is_oracle() {
        // A file holds fewer digits than the oracle.
        assert!(through.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-6), "{through:?}, {plain:?}");
    } else {
        assert_eq!(through, plain);
    }
}

fn b271_a_layer_without_a_bias(on: &Subject) {
    let ctx = on.context();
    let make = |seed| {
        let mut first = Linear::new(&ctx, "fc1", 3, 4, Rng::seed(seed)).unwrap();
        first.bias = None;
        let second = Linear::new(&ctx, "fc2", 4, 2, Rng::seed(seed)).unwrap();
        Sequential::new().then(first).then(second)
    };
    let (saved, loaded, again) = (make(1), make(2), make(3));
    let files = [TestFile::new(), TestFile::new()];
    saved.save(&files[0].0).unwrap();
    loaded.load(&files[0].0).unwrap();
    // What was loaded is saved once more, and loaded.
    loaded.save(&files[1].0).unwrap();
    again.load(&files[1].0).unwrap();
    let read = |model: &Sequential| -> Vec<(String, HostTensor)> {
        model.params().iter().map(|p| (p.name().to_owned(), p.read().unwrap())).collect()
    };
    assert_eq!(read(&saved).len(), 3);
    assert_eq!(read(&saved), read(&again));
    let [first, second] = files.map(|f| load_tensors(&f.0).unwrap());
    assert_eq!(first, second);
}

fn b272_truth_of_numbers(on: &Subject) {
    let x = || [floats([4], &[-1., 0., 0.5, 2.])];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        every_way(on, &x(), |_, x| x[0].cast(dtype).cast(DType::Bool), &[4], &[1., 0., 1., 1.]);
    }
    for dtype in [DType::I32, DType::I64] {
        every_way(on, &x(), |_, x| (x[0] * 2.0).cast(dtype).cast(DType::Bool), &[4], &[1., 0., 1., 1.]);
    }
}
