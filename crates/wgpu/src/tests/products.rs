//! Products by every kernel for them that an adapter can run, whatever the table of choices says.

use wgrad_graph::{Backend, Caps, DType, Fast};

use super::on_every_adapter;
use crate::Gpu;
use crate::beside::beside;
use crate::choose::{Direct, Product, Stream, Tile, Units, in_parts};
use crate::emit::emulated;
use crate::launch::Trusted;
use crate::matrices::{Trial, fault, proven};

fn kernels(caps: &Caps) -> Vec<Product> {
    let tile = |bm, bn, bk, tm, tn| [1, 3].map(|splits| Product::Tile(Tile { bm, bn, bk, tm, tn, splits }));
    let mut all = vec![Product::Dot];
    let direct =
        |rows, vectors, lanes| [1, 3].map(|splits| Product::Direct(Direct { rows, vectors, splits, lanes }));
    all.extend(direct(4, 1, 1));
    all.extend(direct(8, 2, 1));
    if matches!(caps.subgroup, 4 | 8) {
        all.extend(direct(8, 1, caps.subgroup));
        all.extend(direct(16, 2, caps.subgroup));
    }
    if caps.max_invocations >= 256 {
        let stream = |rows, quads| {
            [1, 3].map(|splits| Product::Stream(Stream { rows, quads, slices: 256 / quads, splits }))
        };
        all.extend([stream(1, 8), stream(3, 4)].concat());
        all.extend(tile(64, 64, 16, 8, 4));
        all.extend(tile(32, 32, 32, 4, 4));
        all.extend(tile(16, 128, 32, 4, 4));
        all.extend(tile(128, 16, 32, 4, 4));
    }
    all
}

#[test]
fn every_kernel_multiplies() {
    on_every_adapter(|adapter, _| {
        let gpu = Gpu::open_with(adapter, |caps| caps.half_factors = true).unwrap();
        // What compiles on the CPU takes its time: of layouts, dtypes and sizes each kernel meets a mixture.
        for (p, product) in kernels(gpu.caps()).into_iter().enumerate() {
            for (i, turned) in
                [[false, false], [false, true], [true, false], [true, true]].into_iter().enumerate()
            {
                if adapter.name.contains("SwiftShader") && (i + p) % 4 != 0 {
                    continue;
                }
                let dtype = [DType::F32, DType::F16, DType::BF16][(i + p) % 3];
                let sizes = if (i + p / 3) % 2 == 0 { [2, 37, 21, 133] } else { [1, 16, 64, 96] };
                let trial = Trial { sizes, turned, windows: None, dtype };
                let wrong = trial.inexact(|factors| trial.run(&gpu, product, factors)).unwrap();
                assert_eq!(wrong, None, "{adapter}: {product:?} {trial:?}");
            }
        }
    });
}

#[test]
fn units_multiply_where_an_adapter_has_them() {
    on_every_adapter(|adapter, gpu| {
        for path in [Fast::CooperativeMatmul, Fast::SplitMatmul] {
            if gpu.caps().cooperative && gpu.caps().allows(path) {
                for windows in [false, true] {
                    let trusted = Trusted { path, windows };
                    assert_eq!(fault(&gpu, trusted).unwrap(), None, "{adapter}: {trusted:?}");
                }
            }
        }
        let without = Gpu::open_with(adapter, |caps| {
            caps.off = caps.off.with(Fast::CooperativeMatmul).with(Fast::SplitMatmul);
        });
        assert!(!without.unwrap().caps().cooperative);
        assert_eq!(Gpu::open_with(adapter, |caps| caps.cooperative = true).is_ok(), adapter.caps.cooperative);
    });
}

/// The kernels for units on what has none: who has a scale, which tiles are in doubt, and where things lie. What units
/// round, `emit::tests::split` knows.
#[test]
fn split_products_on_emulated_units() {
    let units = Units { bm: 64, bn: 64, bk: 32, wm: 32, wn: 32, splits: 1, split: true };
    let plain = Tile { bm: 64, bn: 64, bk: 16, tm: 8, tn: 4, splits: 1 };
    on_every_adapter(|adapter, gpu| {
        if adapter.name.contains("SwiftShader") {
            return;
        }
        let forms = [
            ([1, 68, 36, 100], [false, false], 1),
            ([2, 35, 61, 101], [true, true], 3),
            ([1, 61, 35, 64], [false, true], 1),
        ];
        beside(&forms, |&(sizes, turned, splits)| {
            let product = in_parts(Product::Split(units, plain), splits);
            let trial = Trial { sizes, turned, windows: None, dtype: DType::F32 };
            let wrong = trial.off(|factors| trial.run_as(&gpu, product, factors, emulated)).unwrap();
            assert_eq!(wrong, None, "{adapter}: {turned:?}");
        });
    });
}

/// What convolutions multiply, where values have their channels last: windows, and places along K.
#[test]
fn windows_on_emulated_units() {
    let plain = Tile { bm: 64, bn: 64, bk: 16, tm: 8, tn: 4, splits: 1 };
    on_every_adapter(|adapter, _| {
        if adapter.name.contains("SwiftShader") {
            return;
        }
        let gpu = Gpu::open_with(adapter, |caps| caps.half_factors = true).unwrap();
        // Places that end with a step of K, and that do not.
        let images = [[2, 9, 10, 12], [2, 10, 10, 12]];
        let forms = [(false, 1, false), (true, 3, false), (false, 2, true), (true, 1, true)];
        let more = [(true, 1, false), (true, 2, false), (false, 1, true)];
        let forms =
            [forms.map(|form| (images[0], form)).to_vec(), more.map(|form| (images[1], form)).to_vec()];
        beside(&forms.concat(), |&(images, (turned, splits, split))| {
            let units = Units { bm: 64, bn: 64, bk: 32, wm: 32, wn: 32, splits, split };
            let (product, dtype) = match split {
                false => (Product::Units(units), DType::F16),
                true => (in_parts(Product::Split(units, plain), splits), DType::F32),
            };
            let trial = Trial::of_windows(images, 35, turned, dtype);
            let run = |factors: [&[u8]; 2]| trial.run_as(&gpu, product, factors, emulated);
            let wrong = if split { trial.off(run) } else { trial.inexact(run) };
            assert_eq!(wrong.unwrap(), None, "{adapter}: {trial:?}");
        });
    });
}

#[test]
fn what_relies_on_refused_paths_is_made_again() {
    let fails = || wgrad_graph::bail!(Kernel, "compile", "the driver has no units");
    let again = |refused: Vec<Fast>| Ok(refused);
    let split = vec![Fast::SplitMatmul];
    assert_eq!(proven(|| Ok(vec![]), Vec::new, again).unwrap(), vec![]);
    assert_eq!(proven(|| Ok(vec![]), || split.clone(), again).unwrap(), split);
    assert_eq!(proven(fails, || split.clone(), again).unwrap(), split);
    // What fails although nothing is refused is the caller's to know.
    assert_eq!(proven(fails, Vec::new, again).unwrap_err().op(), "compile");
}
