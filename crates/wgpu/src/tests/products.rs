//! Products by every kernel for them that an adapter can run, whatever the table of choices says.

use wgrad_graph::{Backend, Caps, DType, Fast};

use super::on_every_adapter;
use crate::Gpu;
use crate::choose::{Product, Tile};
use crate::matrices::{Trial, agrees};

fn kernels(caps: &Caps) -> Vec<Product> {
    let tile = |bm, bn, bk, tm, tn| [1, 3].map(|splits| Product::Tile(Tile { bm, bn, bk, tm, tn, splits }));
    let mut all = vec![Product::Dot];
    all.extend([1, 3].map(|splits| Product::Direct { rows: 4, vectors: 1, splits }));
    all.push(Product::Direct { rows: 8, vectors: 2, splits: 1 });
    if caps.max_invocations >= 256 {
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
        for product in kernels(gpu.caps()) {
            for (i, turned) in
                [[false, false], [false, true], [true, false], [true, true]].into_iter().enumerate()
            {
                for sizes in [[2, 37, 21, 133], [1, 16, 64, 96]] {
                    // What SwiftShader compiles takes its time: a part of them.
                    if adapter.name.contains("SwiftShader") && (i + sizes[0]) % 3 != 0 {
                        continue;
                    }
                    for dtype in [DType::F32, DType::F16, DType::BF16] {
                        let trial = Trial { sizes, turned, dtype };
                        assert!(
                            trial.exact(&gpu, product).unwrap(),
                            "{adapter}: {product:?} {dtype} {turned:?}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn units_multiply_where_an_adapter_has_them() {
    on_every_adapter(|adapter, gpu| {
        for path in [Fast::CooperativeMatmul, Fast::SplitMatmul] {
            if gpu.caps().cooperative && gpu.caps().allows(path) {
                assert!(agrees(&gpu, path).unwrap(), "{adapter}: {path}");
            }
        }
        let without = Gpu::open_with(adapter, |caps| {
            caps.off = caps.off.with(Fast::CooperativeMatmul).with(Fast::SplitMatmul);
        });
        assert!(!without.unwrap().caps().cooperative);
        assert_eq!(Gpu::open_with(adapter, |caps| caps.cooperative = true).is_ok(), adapter.caps.cooperative);
    });
}
