//! Which kernel multiplies matrices: the one that a model of an H200 (132 multiprocessors) expects to end
//! first. Rates are fitted to figures of our kernels there.

use wgrad_graph::{Caps, Fast};

use super::{rounds, software};

/// A tiling of a matrix product in workgroup memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Rows of a workgroup.
    pub(crate) bm: u32,
    /// Columns of a workgroup.
    pub(crate) bn: u32,
    /// Steps of K in workgroup memory.
    pub(crate) bk: u32,
    /// Rows of an invocation, a multiple of 4.
    pub(crate) tm: u32,
    /// Columns of an invocation, a multiple of 4.
    pub(crate) tn: u32,
    /// Workgroups that share a tile of the result, each with a part of K.
    pub(crate) splits: u32,
}

/// A tiling for units that multiply matrices of 16 by 16 halves.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    /// Rows of a workgroup.
    pub(crate) bm: u32,
    /// Columns of a workgroup.
    pub(crate) bn: u32,
    /// Steps of K in workgroup memory, a multiple of 16.
    pub(crate) bk: u32,
    /// Rows of a subgroup, a multiple of 16.
    pub(crate) wm: u32,
    /// Columns of a subgroup, a multiple of 16.
    pub(crate) wn: u32,
    /// Workgroups that share a tile of the result, each with a part of K.
    pub(crate) splits: u32,
    /// Whether the factors are f32, each split into two halves.
    pub(crate) split: bool,
}

/// How a matrix product runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// As a reduction over K: vectors, and K of 0.
    Dot,
    /// Staged through workgroup memory.
    Tile(Tile),
    /// Halves on units for matrices.
    Units(Units),
    /// f32 on units for halves, and how the tiles are computed that are left over.
    Split(Units, Tile),
    /// Straight from storage.
    Direct(Direct),
    /// Straight from storage too, the right factor of few rows once.
    Stream(Stream),
}

/// How a product of few rows is cut up.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Rows of a workgroup.
    pub(crate) rows: u32,
    /// Vectors of four columns of a workgroup.
    pub(crate) quads: u32,
    /// Invocations that share a vector, each with steps of K of its own; a power of two.
    pub(crate) slices: u32,
    /// Workgroups that share results, each with a part of K.
    pub(crate) splits: u32,
}

/// A tiling of a product straight from storage.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Direct {
    /// Rows of an invocation, a multiple of 4 or less than 4; a multiple of `lanes` where these are several.
    pub(crate) rows: u32,
    /// Vectors of four columns of an invocation.
    pub(crate) vectors: u32,
    /// Invocations that share their results, each with a part of K.
    pub(crate) splits: u32,
    /// Lanes that share their rows, and tell each other what they load: a subgroup, or 1.
    pub(crate) lanes: u32,
}

/// What decides how a product runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Whether both factors are f16, and nothing else reads them.
    pub(crate) halves: bool,
    /// Whether both factors are f32.
    pub(crate) floats: bool,
    /// Whether the right factor is halves.
    pub(crate) narrow: bool,
    /// Whether four neighbours of a factor are an aligned vector.
    pub(crate) vectors: [bool; 2],
    /// Whether the columns of the right factor are neighbours.
    pub(crate) columns: bool,
    /// Bytes of the values that the factors are views of.
    pub(crate) factor_bytes: usize,
}

/// Multiprocessors of an H200.
const MULTIPROCESSORS: usize = 132;

/// Nanoseconds of a launch that waits for the one before it: 4.8 us between dependent dispatches there.
const LAUNCH_NS: f64 = 5000.0;

/// Bytes a nanosecond, of what kernels that stream reach: 4.3 TB/s by a copy.
const STREAM: f64 = 3500.0;

/// A tiling and its speed on an H200.
#[derive(Copy, Clone)]
struct Rated<T> {
    tiling: T,
    /// Operations a nanosecond of one multiprocessor.
    rate: f64,
    /// Workgroups that a multiprocessor needs to be busy.
    alone: f64,
}

const fn tile(bm: u32, bn: u32, bk: u32, tm: u32, tn: u32, rate: f64, alone: f64) -> Rated<Tile> {
    Rated { tiling: Tile { bm, bn, bk, tm, tn, splits: 1 }, rate, alone }
}

const fn units(bm: u32, bn: u32, wm: u32, wn: u32, split: bool, rate: f64, alone: f64) -> Rated<Units> {
    Rated { tiling: Units { bm, bn, bk: 32, wm, wn, splits: 1, split }, rate, alone }
}

/// 45 TFLOP/s over 132 is 341. Smaller tiles read more of workgroup memory a product. The narrow ones are
/// for few rows or columns: one vector and one row of four feed 16 products, half of what 8 by 4 do.
const TILES: [Rated<Tile>; 5] = [
    tile(128, 128, 16, 8, 8, 341.0, 1.7),
    tile(64, 64, 16, 8, 4, 270.0, 3.0),
    tile(32, 32, 32, 4, 4, 150.0, 8.0),
    tile(16, 128, 32, 4, 4, 150.0, 4.0),
    tile(128, 16, 32, 4, 4, 150.0, 4.0),
];

/// 266 TFLOP/s over 132 is 2017 (128 x 128 at 4096 cubed; 274 at 8192), 193 is 1462 (64 x 128, before its loads were
/// kept in order). The smallest is not measured: it loads twice the fragments a product.
const HALVES: [Rated<Units>; 3] = [
    units(128, 128, 64, 64, false, 2017.0, 1.6),
    units(64, 128, 32, 64, false, 1462.0, 2.0),
    units(64, 64, 32, 32, false, 985.0, 3.0),
];

/// 69 and 57 TFLOP/s at 8192; at 1024, where few workgroups run, 26 and 38.
const SPLIT: [Rated<Units>; 2] =
    [units(128, 128, 32, 64, true, 523.0, 1.27), units(64, 64, 32, 32, true, 433.0, 3.0)];

/// Smallest K of split products: each rounds more than a plain one, and the sum less (decision 009).
const SPLIT_K: usize = 256;

/// The variant for a product.
pub(crate) fn product(work: &Work, caps: &Caps) -> Product {
    let Work { batch, m, n, k, .. } = *work;
    if k == 0 || batch > caps.max_workgroups as usize {
        return Product::Dot;
    }
    let tiles = !software(caps) && caps.max_invocations >= 256 && caps.shared_bytes >= 20_000;
    if !tiles || !caps.allows(Fast::TiledMatmul) {
        return if n < 4 || k > rounds(caps) / 2 {
            Product::Dot
        } else {
            Product::Direct(on_processors(batch, m, n, caps))
        };
    }
    // Memory bound: every element of the matrix is used a few times.
    if m <= 4 && work.columns && work.vectors[1] {
        if caps.allows(Fast::StreamedMatmul) && n.div_ceil(16) <= caps.max_workgroups as usize {
            return Product::Stream(slices(work, caps));
        }
        let splits = streams(work, caps);
        return Product::Direct(Direct { rows: m as u32, vectors: 1, splits, lanes: 1 });
    }
    // Or more tiles than a grid takes.
    if m.min(n) <= 2 || m.max(n).div_ceil(16) > caps.max_workgroups as usize {
        return Product::Dot;
    }
    let parts = |bk: u32| -> Vec<u32> {
        // Parts beyond 32 only while their planes are small beside what an H200's cache holds.
        let most = match caps.allows(Fast::SplitK) {
            true => ((4 << 20) / (batch * m * n).max(1)).clamp(32, 128),
            false => 1,
        };
        let room = (caps.max_workgroups as usize / batch).min(k.div_ceil(64)).clamp(1, most);
        let even = |s: usize| k.div_ceil(k.div_ceil(s).next_multiple_of(bk as usize)) as u32;
        let mut parts: Vec<u32> = (1..=room).map(even).collect();
        parts.dedup();
        parts
    };
    let mut best = (f64::INFINITY, Product::Dot);
    let mut offer = |ns: f64, product: Product| {
        if ns < best.0 {
            best = (ns, product);
        }
    };
    for rated in &TILES {
        let tile = rated.tiling;
        for splits in parts(tile.bk) {
            offer(
                tile_ns(work, [tile.bm, tile.bn, tile.bk], splits, rated.rate, rated.alone),
                Product::Tile(Tile { splits, ..tile }),
            );
        }
    }
    if caps.cooperative && work.halves && caps.allows(Fast::CooperativeMatmul) {
        for rated in &HALVES {
            let units = rated.tiling;
            for splits in parts(units.bk) {
                let rate = rated.rate * gathered(work);
                let ns = tile_ns(work, [units.bm, units.bn, units.bk], splits, rate, rated.alone);
                offer(ns, Product::Units(Units { splits, ..units }));
            }
        }
    }
    if caps.cooperative && work.floats && k >= SPLIT_K && caps.allows(Fast::SplitMatmul) {
        for rated in SPLIT.iter().filter(|r| split_bytes(&r.tiling) <= caps.shared_bytes) {
            let units = rated.tiling;
            let rate = rated.rate * gathered(work);
            let size = [units.bm, units.bn, units.bk];
            // A launch that reads the factors before, and one after it that looks at every tile's mark.
            let more = 2.0 * LAUNCH_NS + work.factor_bytes as f64 / STREAM;
            let Some(plain) = plain(&units) else { continue };
            // Each part is a sum of its own, and needs its steps.
            for splits in parts(units.bk).into_iter().filter(|s| k / *s as usize >= SPLIT_K) {
                let ns = more + tile_ns(work, size, splits, rate, rated.alone);
                offer(ns, Product::Split(Units { splits, ..units }, plain));
            }
        }
    }
    best.1
}

/// The tiling for a driver that runs kernels on the CPU.
fn on_processors(batch: usize, m: usize, n: usize, caps: &Caps) -> Direct {
    // A load costs lavapipe as much as ten products: large tiles reuse them (512 cubed: 60 ms of CPU time by
    // 4 x 4, 41 by 4 x 8, 29 by 8 x 8, 28 by 8 x 16), as long as every core has work.
    let large = m >= 8 && n >= 8 && batch * m * n >= 512 * 64;
    // It loads lane by lane, what all of them read too; lanes that tell each other load it once (512 cubed: 32 ms
    // of CPU time by 8 x 8 alone, 20 with 8 lanes, 15 by 16 x 8).
    let lanes = caps.subgroup;
    let shares = matches!(lanes, 4 | 8) && caps.allows(Fast::SharedRows);
    if large && shares && n >= 4 * lanes as usize {
        let vectors = if n >= 8 * lanes as usize { 2 } else { 1 };
        // SwiftShader, with 4 lanes, compiles large texts slowly.
        let rows = if m >= 16 && lanes == 8 { 16 } else { 8 };
        return Direct { rows, vectors, splits: 1, lanes };
    }
    let (rows, vectors) = if large { (8, 2) } else { (m.min(4) as u32, 1) };
    Direct { rows, vectors, splits: 1, lanes: 1 }
}

/// Every kernel for halves on units.
pub(crate) fn half_products() -> Vec<Product> {
    HALVES.iter().map(|rated| Product::Units(rated.tiling)).collect()
}

/// Every kernel for f32 on units that the device has room for.
pub(crate) fn split_products(caps: &Caps) -> Vec<Product> {
    let fitting =
        SPLIT.iter().map(|rated| rated.tiling).filter(|units| split_bytes(units) <= caps.shared_bytes);
    fitting.filter_map(|units| Some(Product::Split(units, plain(&units)?))).collect()
}

/// The same kernel with K in `splits` parts.
pub(crate) fn in_parts(product: Product, splits: u32) -> Product {
    match product {
        Product::Tile(tile) => Product::Tile(Tile { splits, ..tile }),
        Product::Units(units) => Product::Units(Units { splits, ..units }),
        Product::Split(units, tile) => Product::Split(Units { splits, ..units }, tile),
        Product::Direct(direct) => Product::Direct(Direct { splits, ..direct }),
        Product::Stream(stream) => Product::Stream(Stream { splits, ..stream }),
        Product::Dot => Product::Dot,
    }
}

/// The plain tiling of the same size.
fn plain(units: &Units) -> Option<Tile> {
    TILES.iter().map(|rated| rated.tiling).find(|tile| [tile.bm, tile.bn] == [units.bm, units.bn])
}

/// What of its rate a kernel keeps that loads each element of a factor by itself.
fn gathered(work: &Work) -> f64 {
    // Not measured: four addresses and four loads in place of one.
    work.vectors.iter().map(|vector| if *vector { 1.0 } else { 0.6 }).product()
}

/// Workgroup memory of a split product: four tiles of halves padded by 8, four matrices of f32, marks.
fn split_bytes(units: &Units) -> usize {
    let Units { bm, bn, bk, .. } = *units;
    let sides = (bm * (bk + 8)).max(bk * (bm + 8)) + (bn * (bk + 8)).max(bk * (bn + 8));
    (sides * 4 + 4 * 1024 + (bm + bn) * 4 + 16) as usize
}

/// How a product of few rows is cut up among and within workgroups.
fn slices(work: &Work, caps: &Caps) -> Stream {
    let Work { batch, m, n, k, .. } = *work;
    let groups = |quads: usize| batch * n.div_ceil(4 * quads);
    // A line of 128 bytes of every step, and 512 invocations with eight loads on their way: 64 KB, where a
    // multiprocessor's share of the memory needs 30 (1 x 4096 x 4096 f32 on an H200: 19 us, by 256 invocations
    // 25, by 256 bytes 24, by 64 bytes 21, and 97 in place of 63 for 16384 columns). Less where columns are few.
    let line = if work.narrow { 16 } else { 8 };
    let busy = |quads: &usize| groups(*quads) >= MULTIPROCESSORS * 3 / 4;
    let quads = [line, line / 2].into_iter().find(busy).unwrap_or(4);
    let fits = |wg: u32| caps.max_invocations >= wg && caps.shared_bytes >= m * wg as usize * 16;
    // A row for which a multiprocessor has no more than one workgroup: 24 us by 1024 invocations, 27 by 512, both timed
    // among others of their kind.
    let alone = m == 1 && !work.narrow && busy(&quads) && groups(quads) <= MULTIPROCESSORS;
    let slices =
        [1024, 512].into_iter().find(|wg| fits(*wg) && (alone || *wg < 1024)).unwrap_or(256) as usize / quads;
    // Then parts of K, each of several rounds: a second launch is short beside a long K.
    let room = if caps.allows(Fast::SplitK) { (k / (slices * 16)).clamp(1, 16) } else { 1 };
    let wanted = (MULTIPROCESSORS / groups(quads).max(1)).clamp(1, room);
    let splits = wanted.min(caps.max_workgroups as usize / batch).max(1);
    let splits = k.div_ceil(k.div_ceil(splits).next_multiple_of(8)) as u32;
    Stream { rows: m as u32, quads: quads as u32, slices: slices as u32, splits }
}

/// Parts of K for a kernel that streams the right factor once.
fn streams(work: &Work, caps: &Caps) -> u32 {
    if !caps.allows(Fast::SplitK) {
        return 1;
    }
    // Four loads of 16 bytes on their way by 131072 invocations are 8 MB, twice what 4.3 TB/s needs at a
    // latency of a microsecond. A part keeps 32 steps, so that planes are small beside the factor.
    let invocations = work.batch * work.n.div_ceil(4);
    let room = (caps.max_workgroups as usize / work.batch).min(work.k.div_ceil(32)).clamp(1, 64);
    let parts = (131_072 / invocations.max(1)).clamp(1, room);
    work.k.div_ceil(work.k.div_ceil(parts).next_multiple_of(4)) as u32
}

/// Nanoseconds that a tiling takes on a GPU like the H200: a model that ranks tilings.
fn tile_ns(work: &Work, [bm, bn, bk]: [u32; 3], splits: u32, rate: f64, alone: f64) -> f64 {
    let Work { batch, m, n, k, .. } = *work;
    let groups = batch * m.div_ceil(bm as usize) * n.div_ceil(bn as usize) * splits as usize;
    let waves = (groups.div_ceil(MULTIPROCESSORS) as f64).max(alone);
    let steps = k.div_ceil(splits as usize).next_multiple_of(bk as usize);
    let multiply = waves * 2.0 * f64::from(bm * bn) * steps as f64 / rate;
    // No tiling is faster than its factors are read, which may be small views of large values.
    let read = work.factor_bytes.min(4 * batch * k * (m + n)) as f64 / STREAM;
    // The second launch, and the planes written and read.
    let planes =
        if splits == 1 { 0.0 } else { LAUNCH_NS + (batch * m * n) as f64 * 8.0 * f64::from(splits) / 3000.0 };
    multiply.max(read) + planes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(batch: usize, [m, k, n]: [usize; 3], halves: bool) -> Work {
        let factor_bytes = batch * k * (m + n) * if halves { 2 } else { 4 };
        Work {
            batch,
            m,
            n,
            k,
            halves,
            floats: !halves,
            narrow: halves,
            vectors: [true; 2],
            columns: true,
            factor_bytes,
        }
    }

    fn plain() -> Caps {
        Caps { cooperative: false, ..crate::emit::with_units() }
    }

    #[test]
    fn large_products_run_on_units() {
        let caps = crate::emit::with_units();
        for size in [2048, 4096, 8192] {
            let f32_product = product(&work(1, [size; 3], false), &caps);
            assert!(
                matches!(f32_product, Product::Split(Units { bm: 128, .. }, _)),
                "{size}: {f32_product:?}"
            );
            let half_product = product(&work(1, [size; 3], true), &caps);
            assert!(
                matches!(half_product, Product::Units(Units { bm: 128, splits: 1, .. })),
                "{half_product:?}"
            );
        }
        // A product of the GPT, and one whose K is too small for split numbers.
        let wide = product(&work(1, [8192, 768, 3072], false), &caps);
        assert!(matches!(wide, Product::Split(..)), "{wide:?}");
        let shallow = product(&work(96, [1024, 64, 1024], false), &caps);
        assert!(matches!(shallow, Product::Tile(Tile { splits: 1, .. })), "{shallow:?}");
        // Without a name, or without units, none does.
        let off = Caps { off: caps.off.with(Fast::SplitMatmul), ..caps.clone() };
        assert!(matches!(product(&work(1, [4096; 3], false), &off), Product::Tile(_)));
        let off = Caps { off: caps.off.with(Fast::CooperativeMatmul), ..caps };
        assert!(matches!(product(&work(1, [4096; 3], true), &off), Product::Tile(_)));
        assert!(matches!(product(&work(1, [4096; 3], true), &plain()), Product::Tile(_)));
    }

    #[test]
    fn small_and_narrow_products_fill_the_device() {
        let caps = plain();
        // A matrix that is read once: by workgroups enough for a GPU, in parts of K where columns are few.
        for (sizes, quads, wg) in
            [([1, 4096, 4096], 8, 1024), ([4, 4096, 16384], 8, 512), ([2, 4096, 512], 4, 512)]
        {
            let Product::Stream(stream) = product(&work(1, sizes, false), &caps) else { panic!("{sizes:?}") };
            let Stream { rows, quads: made, slices, splits } = stream;
            assert_eq!((rows as usize, made, made * slices), (sizes[0], quads, wg), "{sizes:?}");
            assert!(sizes[2] / (4 * quads as usize) * splits as usize >= 64, "{stream:?}");
        }
        let caps = Caps { off: caps.off.with(Fast::StreamedMatmul), ..caps };
        // Else by vectors, cut along K until 130 000 invocations read.
        for (sizes, least) in [([1, 4096, 4096], 64), ([1, 4096, 16384], 32), ([3, 4096, 4096], 64)] {
            let Product::Direct(Direct { rows, splits, .. }) = product(&work(1, sizes, false), &caps) else {
                panic!("{sizes:?}");
            };
            assert!(rows as usize == sizes[0] && splits >= least, "{sizes:?}: {splits}");
        }
        for (sizes, tall) in [([16, 4096, 4096], 16), ([256, 1024, 1024], 64), ([128, 784, 512], 64)] {
            let Product::Tile(tile) = product(&work(1, sizes, false), &caps) else { panic!("{sizes:?}") };
            let groups = sizes[0].div_ceil(tile.bm as usize) * sizes[2].div_ceil(tile.bn as usize);
            assert!(tile.bm <= tall && groups * tile.splits as usize >= 128, "{sizes:?}: {tile:?}");
        }
        let off = Caps { off: caps.off.with(Fast::SplitK), ..caps };
        for sizes in [[1, 4096, 4096], [16, 4096, 4096]] {
            let whole = match product(&work(1, sizes, false), &off) {
                Product::Tile(tile) => tile.splits,
                Product::Direct(direct) => direct.splits,
                other => panic!("{other:?}"),
            };
            assert_eq!(whole, 1);
        }
    }

    /// Every tiling moves whole units, as its text takes for granted.
    #[test]
    fn tilings_are_whole() {
        for Tile { bm, bn, bk, tm, tn, .. } in TILES.iter().map(|rated| rated.tiling) {
            let wg = bm / tm * (bn / tn);
            for unit in [1, 4] {
                for (extent, other) in [(bm, bk), (bn, bk), (bk, bm), (bk, bn)] {
                    assert_eq!(wg % (other / unit).max(1) * (extent * other / unit % wg), 0);
                    assert!(extent * other / unit >= wg, "{bm} x {bn}: {unit}");
                }
            }
        }
        let all = HALVES.iter().chain(&SPLIT).map(|rated| rated.tiling);
        for Units { bm, bn, bk, wm, wn, .. } in all {
            let wg = bm / wm * (bn / wn) * 32;
            for extent in [bm, bn] {
                for across in [extent / 4, bk / 4] {
                    assert_eq!((wg % across, extent * bk / 4 % wg), (0, 0));
                }
            }
        }
    }
}
