//! Products by every kernel that there is for them, those for units of matrices included, which no adapter of
//! a test machine may have.

use wgrad_graph::{Binary, Perm, Unary};

use super::options::axes_swapped;
use super::*;
use crate::choose::{self, Direct, Product, Stream, Tile};
use crate::emit::multiply;

fn turned(s: &mut Sketch, x: Val, rank: usize) -> Val {
    let mut perm: Perm = std::array::from_fn(|i| i as u8);
    perm.swap(rank - 1, rank - 2);
    s.op(Op::Permute(perm), &[x])
}

/// A product of factors of `dtype`; with `more`, with a bias, a kink and a second result, as halves too.
fn sketch(batch: &[usize], [m, n, k]: [usize; 3], layout: u8, dtype: DType, more: bool) -> Sketch {
    let mut s = Sketch::default();
    let rank = batch.len() + 2;
    let mut side = |r: usize, c: usize, flip: bool| {
        let dims = [batch, &if flip { [c, r] } else { [r, c] }].concat();
        let x = s.input(&dims, dtype);
        let x = if flip { turned(&mut s, x, rank) } else { x };
        if dtype == DType::F32 { x } else { s.cast(x, DType::F32) }
    };
    let (a, b) = (side(m, k, layout & 1 == 1), side(k, n, layout & 2 == 2));
    let y = s.op(Op::MatMul, &[a, b]);
    s.roots = vec![y];
    if more {
        let dims = [batch, &[m, n]].concat();
        let bias = s.x(&[vec![1; batch.len() + 1], vec![n]].concat());
        let bias = s.to(Op::Expand, &[bias], &dims);
        let z = s.op(Op::Binary(Binary::Add), &[y, bias]);
        let z = s.op(Op::Unary(Unary::Relu), &[z]);
        let half = s.cast(z, DType::F16);
        s.roots = vec![z, half];
    }
    s
}

/// The launches of the one product of `s`, checked.
fn product(s: &Sketch, caps: &Caps, by: Product) -> Vec<Launch> {
    let plan = s.plan(caps, true);
    let [step] = &plan.steps[..] else { panic!("{plan}") };
    let lowered = multiply(step, &plan.graph, caps, by).unwrap();
    lowered.launches.iter().for_each(|l| check_launch(l, caps));
    let scratch = |l: &Launch| l.bindings.iter().any(|b| matches!(b.what, Bound::Scratch(_)));
    assert_eq!(lowered.scratch_bytes > 0, lowered.launches.iter().any(scratch));
    lowered.launches
}

/// Bytes of every array in workgroup memory that a text declares.
pub(super) fn workgroup_arrays(text: &str) -> Vec<usize> {
    let bytes = |declared: &str| {
        let count = declared.rsplit(", ").next().and_then(|n| n.trim_end_matches([';', '>']).parse().ok());
        let unit = match declared {
            d if d.contains("vec4<f16>") => 8,
            d if d.contains("vec4<f32>") => 16,
            _ => 4,
        };
        unit * count.unwrap_or(1)
    };
    text.lines().filter(|l| l.starts_with("var<workgroup>")).map(bytes).collect()
}

#[test]
fn on_units_in_every_layout() {
    let caps = with_units();
    let mut sums = BTreeSet::new();
    for (dtype, products) in
        [(DType::F16, choose::half_products()), (DType::F32, choose::split_products(&caps))]
    {
        assert!(products.len() > 1);
        for (i, by) in products.into_iter().enumerate() {
            for layout in 0..4 {
                for (batch, sizes) in [
                    (&[][..], [256, 128, 512]),
                    (&[3], [130, 260, 300]),
                    (&[2, 3], [7, 33, 301]),
                    (&[], [128, 3, 64]),
                ] {
                    let s = sketch(batch, sizes, layout, dtype, i == 0);
                    let launches = product(&s, &caps, by);
                    let own = launches.iter().find(|l| l.source.contains("coopMultiplyAdd")).unwrap();
                    sums.insert((own.source.contains("coopLoad<"), own.source.contains("coopLoadT<")));
                    let arrays = workgroup_arrays(&own.source);
                    assert!(arrays.iter().sum::<usize>() <= caps.shared_bytes, "{by:?}");
                    // A matrix is stored where a multiple of 16 bytes is, in whatever order the arrays lie.
                    assert!(arrays.iter().all(|bytes| bytes % 16 == 0), "{arrays:?}");
                    let more = if matches!(by, Product::Split(..)) { 2 } else { 0 };
                    let cut = choose::in_parts(by, 4);
                    // The range before a split product, what it leaves over, the sum of the parts.
                    assert_eq!(launches.len(), 1 + more);
                    assert_eq!(product(&s, &caps, cut).len(), 2 + more);
                }
            }
        }
    }
    assert_eq!(sums.len(), 3, "factors are read by rows, by columns, and both");
}

#[test]
fn halves_are_read_where_they_lie() {
    let caps = with_units();
    for dtype in [DType::F16, DType::BF16] {
        let s = sketch(&[], [300, 200, 512], 2, dtype, true);
        let plan = s.plan(&caps, true);
        assert_eq!(plan.steps.len(), 1, "{plan}");
        // Without units they are widened once, before.
        let plan = s.plan(&Caps { half_factors: false, ..caps.clone() }, true);
        assert_eq!(plan.steps.len(), 3, "{plan}");
        // So they are where every node is a kernel.
        let plan = s.plan(&caps, false);
        assert!(plan.steps.len() >= 5, "{plan}");
    }
    // A factor that the end of the product reads too is no f16 to it.
    let mut s = Sketch::default();
    let x = s.input(&[256, 256], DType::F16);
    let wide = s.cast(x, DType::F32);
    let y = s.op(Op::MatMul, &[wide, wide]);
    s.roots = vec![s.op(Op::Binary(Binary::Add), &[y, wide])];
    launches(&s.plan(&caps, true), &caps);
}

#[test]
fn every_plain_kernel_in_every_layout() {
    let tile = |bm, bn, bk, tm, tn| Tile { bm, bn, bk, tm, tn, splits: 1 };
    let tiles = [(128, 128, 16, 8, 8), (64, 64, 16, 8, 4), (32, 32, 32, 4, 4), (16, 128, 32, 4, 4)];
    for caps in [gpu(), with_units()] {
        for layout in 0..4 {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                if dtype != DType::F32 && !caps.half_factors {
                    continue;
                }
                for (batch, sizes) in [(&[][..], [16, 256, 512]), (&[2, 3], [3, 37, 301])] {
                    let s = sketch(batch, sizes, layout, dtype, false);
                    for (bm, bn, bk, tm, tn) in tiles.into_iter().chain([(128, 16, 32, 4, 4)]) {
                        for splits in [1, 5] {
                            product(&s, &caps, Product::Tile(Tile { splits, ..tile(bm, bn, bk, tm, tn) }));
                        }
                    }
                    for splits in [1, 5] {
                        for (rows, vectors, lanes) in [(4, 1, 1), (8, 2, 4), (16, 1, 8), (16, 2, 8)] {
                            let direct = Direct { rows, vectors, splits, lanes };
                            product(&s, &caps, Product::Direct(direct));
                        }
                        for (rows, quads) in [(1, 8), (4, 4)] {
                            let stream = Stream { rows, quads, slices: 256 / quads, splits };
                            product(&s, &caps, Product::Stream(stream));
                        }
                    }
                    product(&s, &caps, Product::Dot);
                }
            }
        }
    }
}

/// One text for all matrices of a tile, and operands of the ending that are loaded a round ahead, by fours.
#[test]
fn products_of_halves_end_in_a_loop() {
    let caps = with_units();
    let ending = |n: usize| {
        let s = sketch(&[], [300, n, 256], 0, DType::F16, true);
        let by = choose::half_products()[0];
        let [launch] = &product(&s, &caps, by)[..] else { panic!("one launch") };
        let text = launch.source.clone();
        let (_, end) = text.split_once("for (var strip").expect("it ends in a loop");
        // Four by four matrices, of which each subgroup ends one a round by two calls.
        assert_eq!((end.matches("coopStoreT").count(), end.matches("finish(").count()), (16, 2), "{text}");
        text
    };
    let wide = ending(384);
    assert!(wide.contains("struct Ahead {") && wide.contains("ahead1 = ahead(plane"), "{wide}");
    // Results whose rows end within a vector are stored one by one, each with what it loads itself.
    assert!(!ending(383).contains("Ahead"));
}

/// Results that a product stores by heads go by fours, as long as heads are whole fours.
#[test]
fn results_are_stored_through_views_by_fours() {
    let caps = with_units();
    for (width, fours) in [(64, true), (6, false)] {
        let (rows, heads) = (128, 4);
        let mut s = sketch(&[], [rows, heads * width, 256], 0, DType::F16, false);
        let half = s.cast(s.roots[0], DType::F16);
        let parts = s.to(Op::Reshape, &[half], &[rows, heads, width]);
        s.roots = vec![s.op(axes_swapped(0, 1), &[parts])];
        let [launch] = &product(&s, &caps, choose::half_products()[0])[..] else { panic!("one launch") };
        let text = &launch.source;
        assert_eq!(text.contains("b2: array<vec4<u16>>"), fours, "{text}");
    }
}
