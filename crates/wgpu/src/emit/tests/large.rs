//! Kernels that large sizes ask for: which are taken where, and that every one is valid.

use super::options::{Family, STORED, axes_swapped};
use super::*;
use wgrad_graph::{Fast, Kind, Off, Reduce, Scan};

use crate::choose;

/// What the launches of `sketch` are on a GPU, and on one without a path.
fn with_and_without(sketch: &Sketch, path: Fast) -> [Vec<Launch>; 2] {
    [Off::default(), Off::default().with(path)].map(|off| {
        let caps = Caps { off, ..gpu() };
        launches(&sketch.plan(&caps, true), &caps)
    })
}

fn has(launches: &[Launch], word: &str) -> bool {
    launches.iter().any(|l| l.source.contains(word))
}

#[test]
fn operands_that_run_across_are_turned() {
    let mut family = Family::default();
    for dims in [[260, 1024], [257, 1021], [20, 8191], [16, 65536]] {
        for dtype in STORED {
            let mut s = Sketch::default();
            let x = s.input(&dims, dtype);
            s.roots = vec![s.op(axes_swapped(0, 1), &[x])];
            family.add(&s);
            let [with, without] = with_and_without(&s, Fast::TiledTranspose);
            // Bytes that share words with those of other rows are written by atomic operations.
            assert_eq!(
                has(&with, "var<workgroup> t0"),
                dtype.bytes() >= 4 || dims[0] % 4 == 0,
                "{dtype} {dims:?}"
            );
            assert!(!has(&without, "var<workgroup>"));
            if dtype == DType::F32 {
                let y = s.x(&[dims[1], dims[0]]);
                let turned = s.roots[0];
                let sum = s.op(Op::Binary(wgrad_graph::Binary::Add), &[turned, y]);
                let more = s.op(Op::Binary(wgrad_graph::Binary::Gt), &[sum, y]);
                s.roots = vec![sum];
                family.add(&s);
                s.roots = vec![sum, more];
                family.add(&s);
            }
        }
    }
    family.has(
        20,
        &["const EDGE = 64u", "const EDGE = 32u", "const QUAD = 4u", "const QUAD = 1u", "const READ = 4u"],
    );
    // With zeros around, and operands that do not run across.
    let mut s = Sketch::default();
    let (x, scale, more) = (s.x(&[9, 64, 30, 31]), s.x(&[1, 1, 1, 64]), s.x(&[9, 30, 31, 64]));
    let mut perm: wgrad_graph::Perm = std::array::from_fn(|i| i as u8);
    perm[..4].copy_from_slice(&[0, 2, 3, 1]);
    let x = s.op(Op::Permute(perm), &[x]);
    let scale = s.to(Op::Expand, &[scale], &[9, 30, 31, 64]);
    let x = s.op(Op::Binary(wgrad_graph::Binary::Mul), &[x, scale]);
    let x = s.op(Op::Binary(wgrad_graph::Binary::Add), &[x, more]);
    let mut lo = [0; wgrad_graph::MAX_RANK];
    lo[1..3].copy_from_slice(&[1, 2]);
    s.roots = vec![s.to(Op::Pad { lo }, &[x], &[9, 32, 34, 64])];
    assert!(has(&with_and_without(&s, Fast::TiledTranspose)[0], "var<workgroup> t0"));
    // Small, narrow, or of neighbours that share lines: read where they lie.
    for dims in [[100, 100], [8, 65536], [65536, 5]] {
        let mut s = Sketch::default();
        let x = s.x(&dims);
        s.roots = vec![s.op(axes_swapped(0, 1), &[x])];
        assert!(!has(&with_and_without(&s, Fast::TiledTranspose)[0], "var<workgroup>"), "{dims:?}");
    }
}

#[test]
fn many_keys_are_sorted_by_digits() {
    let mut family = Family::default();
    for dims in [[1, 300_000], [70, 5000], [5000, 70]] {
        let axis = u8::from(dims[1] > dims[0]);
        for dtype in [DType::Bool, DType::U8, DType::U32, DType::I32, DType::I64, DType::F32] {
            for descending in [false, true] {
                let mut s = Sketch::default();
                let x = s.input(&dims, dtype);
                s.roots = vec![s.op(Op::ArgSort { axis, descending }, &[x])];
                family.add_where(&s, |kind| matches!(kind, Kind::Whole(_)));
                let [with, without] = with_and_without(&s, Fast::RadixSort);
                let passes = dtype.bytes();
                assert_eq!(with.len() == 3 * passes, dtype != DType::I64, "{dtype}");
                let [_, alone] = with_and_without(&s, Fast::Subgroups);
                assert!(has(&with, "subgroupBallot") != (dtype == DType::I64) && !has(&without, "Ballot"));
                assert!(has(&alone, "values[keep(i)]") != (dtype == DType::I64) && !has(&alone, "subgroup"));
            }
        }
    }
    family.has(30, &["const EACH = 16u", "const EACH = 8u"]);
}

#[test]
fn few_long_scans_are_cut() {
    let mut family = Family::default();
    for dims in [[1, 300_000], [3, 70_001], [70_001, 3]] {
        let axis = u8::from(dims[1] > dims[0]);
        for kind in [Scan::Sum, Scan::Prod, Scan::LogAddExp, Scan::ArgMax, Scan::ArgMin, Scan::Recur] {
            for (dtype, reverse) in
                [(DType::F32, false), (DType::F32, true), (DType::I32, true), (DType::I64, false)]
            {
                if kind == Scan::LogAddExp && dtype != DType::F32 {
                    continue;
                }
                let mut s = Sketch::default();
                let x = s.input(&dims, dtype);
                let ins = if kind == Scan::Recur { vec![x, x] } else { vec![x] };
                s.roots = vec![s.op(Op::Scan { kind, axis, reverse }, &ins)];
                family.add_where(&s, |kind| matches!(kind, Kind::Whole(_)));
                let [with, without] = with_and_without(&s, Fast::SplitScans);
                let word = matches!(kind, Scan::Sum | Scan::Prod | Scan::LogAddExp) && dtype != DType::I64;
                let quads = word && dims[1] % 4 == 0;
                let launches = if dtype == DType::I64 { 1 } else { 2 + usize::from(quads) };
                assert_eq!((with.len(), without.len()), (launches, 1));
                assert_eq!(has(&with, "subgroupShuffleUp"), quads);
            }
        }
    }
    family.has(20, &["const WRITE = false"]);
}

#[test]
fn scatters_of_one_list_of_positions_are_sorted() {
    let mut family = Family::default();
    for (n, size, columns) in [(8192, 32000, 768), (300, 7, 1), (70, 70_000, 12), (20_000, 300, 8)] {
        for dtype in [DType::F32, DType::I32, DType::U32] {
            for kind in [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min] {
                for at in [DType::U8, DType::U32, DType::I32, DType::I64] {
                    let mut s = Sketch::default();
                    let (i, x) = (s.input(&[n, 1], at), s.input(&[n, columns], dtype));
                    let i = s.to(Op::Expand, &[i], &[n, columns]);
                    s.roots = vec![s.to(Op::Scatter { axis: 0, kind }, &[i, x], &[size, columns])];
                    family.add_where(&s, |kind| matches!(kind, Kind::Scatter { .. }));
                    let [with, without] = with_and_without(&s, Fast::SortedScatter);
                    // Few positions are counted in one launch, more sorted by digits.
                    let order = with.len() - 3;
                    assert!(
                        has(&with, "ahead") && if n > 1 << 14 { order >= 3 } else { order == 1 },
                        "{order}"
                    );
                    assert_eq!(without.len(), 1);
                }
            }
        }
    }
    family.has(80, &["wg_index_i64", "wg_max("]);
    // Positions of each column's own.
    let mut s = Sketch::default();
    let (i, x) = (s.input(&[8192, 6], DType::I32), s.x(&[8192, 6]));
    s.roots = vec![s.to(Op::Scatter { axis: 0, kind: Reduce::Sum }, &[i, x], &[50, 6])];
    assert_eq!(with_and_without(&s, Fast::SortedScatter)[0].len(), 1);
}

/// Loops within functions count as rounds of the loop that calls them, on drivers that leave both after so many.
#[test]
fn loops_in_loops_take_more_lanes() {
    let caps = software();
    let splits = |length, inner| choose::lanes(1, length, true, 4, false, inner, &caps).splits;
    // Once it is cut, by stretches of 64.
    assert_eq!((splits(1000, 0), splits(1000, 65)), (1, 15));
    for (length, inner) in [(1000_usize, 65), (3000, 520), (700, 20_000), (1 << 20, 65)] {
        assert!(length.div_ceil(splits(length, inner) as usize) * (2 + inner) <= choose::rounds(&caps));
    }
    let work = |units, inner| choose::RowWork {
        rows: 3,
        units,
        levels: 3,
        together: true,
        state_bytes: 4,
        words: 1,
        point_bytes: 40,
        inner,
    };
    let lanes = |units, inner| choose::row_lanes(&work(units, inner), &caps).map(|lanes| lanes.y);
    assert_eq!((lanes(9000, 0), lanes(9000, 65)), (Some(1), Some(64)));
    assert_eq!((lanes(40_000, 65), lanes(1 << 30, 0)), (Some(256), None));
    assert_eq!(
        (choose::sharing(30_000, 0, 8, &caps), choose::sharing(30_001, 0, 8, &caps)),
        (Some(1), Some(2))
    );
}
