//! Paths for operands that are read as they lie: rows in stacks, whole chunks, places without walking.

use super::*;
use wgrad_graph::ErrorKind;

#[test]
fn stacks_of_rows_and_chunks_meet_in_one_tree() {
    // One chunk and several, whole stacks and what is left of them; the last is by chunks as they lie.
    for [rows, width] in [[300, 517], [1300, 300], [255, 1030], [2048, 260]] {
        let mut below = rng(rows as u64);
        let odd = [f32::NAN, -0.0, 0.0, f32::NEG_INFINITY];
        let mut data: Vec<f32> =
            (0..rows * width).map(|_| below(1 << 24) as f32 / (1 << 22) as f32 - 2.0).collect();
        // A column of zeros of both signs, and one with NaN.
        (0..rows).for_each(|r| data[r * width + 3] = odd[1 + r % 2]);
        data[(rows / 2) * width + 5] = odd[0];
        data[(rows / 3) * width + 7] = odd[3];
        let turned: Vec<f32> = (0..rows * width).map(|i| data[i % rows * width + i / rows]).collect();
        for kind in [Reduce::Sum, Reduce::Max, Reduce::Min] {
            let mut s = Sketch::default();
            let (x, t) = (s.input(&[rows, width], &data), s.input(&[width, rows], &turned));
            let (down, along) = (s.reduce(kind, x, &[0]), s.reduce(kind, t, &[1]));
            let found = s.check(&[down, along], 1e-5);
            let bits = |i: usize| bytemuck::cast_slice::<u8, u32>(&found[i]).to_vec();
            let same = bits(0).into_iter().zip(bits(1)).position(|(a, b)| a != b);
            assert_eq!(same, None, "{kind:?} of {rows} rows of {width}");
        }
    }
}

#[test]
fn single_places_of_every_dtype() {
    let (n, size) = (20_011usize, 203usize);
    let mut below = rng(9);
    let at: Vec<i32> = (0..n).map(|_| below(size) as i32).collect();
    let mut s = Sketch::default();
    let (values, table) = (s.x(&[n], 2), s.x(&[size], 3));
    let bytes: Vec<u8> = at.iter().map(|i| *i as u8).collect();
    let words: Vec<u32> = at.iter().map(|i| *i as u32).collect();
    let longs: Vec<i64> = at.iter().map(|i| i64::from(*i)).collect();
    let all = [s.input(&[n], &at), s.input(&[n], &bytes), s.input(&[n], &words), s.input(&[n], &longs)];
    let mut roots = Vec::new();
    for at in all {
        roots.push(s.op(Op::Gather { axis: 0 }, &[table, at]));
        for kind in [Reduce::Sum, Reduce::Max] {
            roots.push(s.to(Op::Scatter { axis: 0, kind }, &[at, values], &[size]));
        }
    }
    let found = s.check(&roots, 1e-4);
    for one in found.chunks(3).skip(1) {
        assert_eq!(one, &found[..3], "places of another dtype");
    }
    // Rows by one place each, columns by places of their own, values one after the other in a part of a vector.
    let mut s = Sketch::default();
    let (table, rows) = (s.x(&[size, 37], 4), s.input(&[n, 1], &at));
    let wide = s.to(Op::Expand, &[rows], &[n, 37]);
    let rows = s.op(Op::Gather { axis: 0 }, &[table, wide]);
    let each: Vec<i32> = (0..n / 37 * 37).map(|_| below(size) as i32).collect();
    let each = s.input(&[n / 37, 37], &each);
    let each = s.op(Op::Gather { axis: 0 }, &[table, each]);
    s.check(&[rows, each], 0.0);
}

#[test]
fn places_out_of_range_are_told() {
    let (n, size) = (9_000usize, 100usize);
    for (wrong, index) in [(4_321, 100i32), (17, -1), (0, i32::MIN)] {
        let mut at: Vec<i32> = (0..n).map(|i| (i % size) as i32).collect();
        at[wrong] = index;
        at[n - 1] = 777;
        for gathers in [true, false] {
            let mut s = Sketch::default();
            let (x, at) = (s.x(&[if gathers { size } else { n }], 1), s.input(&[n], &at));
            let y = match gathers {
                true => s.op(Op::Gather { axis: 0 }, &[x, at]),
                false => s.to(Op::Scatter { axis: 0, kind: Reduce::Sum }, &[at, x], &[size]),
            };
            let cpu = Cpu::new();
            let error = s.run(&cpu, &s.plan(&cpu, &[Root { val: y, into: None }], &[], true)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data);
            assert!(error.to_string().contains(&format!("index {index} is not in 0..{size}")), "{error}");
        }
    }
}

#[test]
fn long_programs_of_several_streams() {
    let mut s = Sketch::default();
    let n = 100_003;
    let (a, b, c) = (s.x(&[n], 1), s.x(&[n], 2), s.x(&[n], 3));
    let x = s.bin(Binary::Sub, a, b);
    let y = s.un(Unary::Sigmoid, x);
    let z = s.bin(Binary::Mul, y, c);
    let w = s.un(Unary::Tanh, z);
    let w = s.bin(Binary::Add, w, a);
    s.check(&[w, y], 1e-5);
    // The second lies where `a` did.
    s.check_as(&[w, y], &[None, Some(0)], &[LeafKind::Donated, LeafKind::Buffer, LeafKind::Buffer], 1e-5);
}
