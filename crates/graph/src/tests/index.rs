//! Composition of indices against coordinates followed one by one.

use super::{direct, rng};
use crate::{Index, MAX_RANK, Op, Shape, Steps, View};

/// A chain of movements, newest first, with the shapes that they give, and the composed index.
fn chain(seed: u64) {
    let mut below = rng(seed);
    let limits = [2i64];
    let mut shape = Shape::new(&(0..1 + below(3)).map(|_| 1 + below(4)).collect::<Vec<_>>());
    let space = shape;
    let mut index = Index::identity(shape.dims());
    // Each step: the view, and the shape that its coordinates have.
    let mut steps: Vec<(View, Shape)> = Vec::new();
    for _ in 0..1 + below(5) {
        let (dims, rank) = (shape.dims().to_vec(), shape.rank());
        // The operand of which `shape` is the result.
        let (op, from) = match below(9) {
            0 => {
                let mut perm = [0; MAX_RANK];
                let mut order: Vec<u8> = (0..rank as u8).collect();
                (1..rank).for_each(|i| order.swap(i, below(i + 1)));
                perm[..rank].copy_from_slice(&order);
                let mut from = dims.clone();
                (0..rank).for_each(|i| from[usize::from(order[i])] = dims[i]);
                (Op::Permute(perm), from)
            }
            1 => {
                let from: Vec<usize> = dims.iter().map(|d| if below(3) == 0 { 1 } else { *d }).collect();
                (Op::Expand, from)
            }
            2 => {
                let mut all = Steps::ALL;
                let mut from = dims.clone();
                for i in 0..rank {
                    let step: i64 = [1, 1, 2, -1, -3][below(5)];
                    let before = below(2);
                    let span = (dims[i] - 1) * step.unsigned_abs() as usize;
                    from[i] = before + span + 1 + below(2);
                    all.step[i] = step;
                    all.start[i] = (if step > 0 { before } else { before + span }) as i64;
                }
                (Op::Slice(all), from)
            }
            3 => {
                let mut lo = [0; MAX_RANK];
                let mut from = dims.clone();
                for i in 0..rank {
                    lo[i] = below(dims[i]) as u32;
                    from[i] = (dims[i] - lo[i] as usize).saturating_sub(below(2)).max(1);
                }
                (Op::Pad { lo }, from)
            }
            4 => {
                let axis = below(rank);
                let mut from = dims.clone();
                from[axis] += limits[0] as usize;
                (Op::SliceAt { axis: axis as u8 }, from)
            }
            5 if rank > 1 => {
                let axis = below(rank - 1);
                let (size, step, dilation) =
                    (dims[rank - 1] as u32, 1 + below(3) as u32, 1 + below(3) as u32);
                let mut from = dims[..rank - 1].to_vec();
                let span = (size - 1) * dilation + 1;
                let rest = below(step as usize);
                from[axis] = (dims[axis] - 1) * step as usize + span as usize + rest;
                (Op::Windows { axis: axis as u8, size, step, dilation }, from)
            }
            6 if rank > 0 && rank < MAX_RANK => {
                let mut from = dims[..rank - 1].to_vec();
                let mut at = [below(rank), below(rank + 1)];
                from.insert(at[0], dims[rank - 1]);
                from.insert(at[1], dims[rank - 1]);
                at[0] += usize::from(at[1] <= at[0]);
                (1..=below(2)).for_each(|_| at.swap(0, 1));
                (Op::Diagonal { a: at[0] as u8, b: at[1] as u8 }, from)
            }
            _ => {
                let n = shape.elems();
                let k = [1, 2, 3, 4][below(4)];
                let from = if n.is_multiple_of(k) { vec![k, n / k] } else { vec![n] };
                (Op::Reshape, from)
            }
        };
        let from = Shape::new(&from);
        if from.elems() > 5000 {
            continue;
        }
        let view = View::of_movement(&op, from, shape, 0);
        index = index.then(&view, &limits);
        steps.push((view, shape));
        shape = from;
    }
    assert!(index.is_inside(shape.elems(), &limits), "{seed}: {index:?}");
    for start in 0..=limits[0] {
        let scalars = [start as f64];
        for n in 0..space.elems() {
            let want = steps.iter().try_fold(n as i64, |n, (view, shape)| {
                let c = direct::coords(shape.dims(), n as usize);
                Index::of(view.clone()).element(&c, &scalars)
            });
            let got = index.element(&direct::coords(space.dims(), n), &scalars);
            assert_eq!(got, want, "{seed}: element {n} of {space}, start {start}: {index:?}\n{steps:?}");
        }
    }
    if let Some(digits) = index.digits() {
        let terms: Vec<Vec<i64>> =
            digits.axes.iter().zip(space.dims()).map(|(l, d)| crate::terms(l, *d)).collect();
        for n in 0..space.elems() {
            let c = direct::coords(space.dims(), n);
            let sum = digits.offset + c.iter().zip(&terms).map(|(c, t)| t[*c]).sum::<i64>();
            assert_eq!(Some(sum), index.element(&c, &[]), "{seed}: {index:?} {digits:?}");
        }
    }
    if let Some(inverse) = index.inverse(&[shape.elems()]) {
        for n in 0..space.elems() {
            let there = index.element(&direct::coords(space.dims(), n), &[]).unwrap();
            assert_eq!(inverse.element(&[there as usize], &[]), Some(n as i64), "{seed}: {index:?}");
        }
    }
}

#[test]
fn composed_indices_are_the_chain() {
    (0..20_000).for_each(chain);
}

#[test]
fn windows_under_merged_axes_are_sums_of_digits() {
    // [n, c, h, w] -> windows of h and w -> [n, c * kh * kw, oh * ow], as a product reads it.
    let (from, step, dilation) = ([2, 3, 9, 11], 2, 2);
    let windows = |axis| Op::Windows { axis, size: 3, step, dilation };
    let chain = [
        (Op::Reshape, vec![2, 3, 3, 3, 3, 4], vec![2, 27, 12]),
        (Op::Permute([0, 1, 4, 5, 2, 3, 0, 0]), vec![2, 3, 3, 4, 3, 3], vec![2, 3, 3, 3, 3, 4]),
        (windows(3), vec![2, 3, 3, 11, 3], vec![2, 3, 3, 4, 3, 3]),
        (windows(2), from.to_vec(), vec![2, 3, 3, 11, 3]),
    ];
    let mut index = Index::identity(&[2, 27, 12]);
    for (op, from, to) in &chain {
        index = index.then(&View::of_movement(op, Shape::new(from), Shape::new(to), 0), &[]);
    }
    let digits = index.digits().unwrap();
    assert_eq!(digits.axes[0][..], [(2, 297)]);
    assert_eq!(digits.axes[1][..], [(3, 99), (3, 22), (3, 2)]);
    assert_eq!(digits.axes[2][..], [(3, 22), (4, 2)]);
}

#[test]
fn movements_that_undo_each_other_vanish() {
    let dims = [2, 3, 4];
    let swap = |from: &[usize], to: &[usize]| {
        let mut perm = [0; MAX_RANK];
        perm[..3].copy_from_slice(&[0, 2, 1]);
        View::of_movement(&Op::Permute(perm), Shape::new(from), Shape::new(to), 0)
    };
    let index = Index::identity(&dims).then(&swap(&[2, 4, 3], &dims), &[]);
    assert_eq!(index.then(&swap(&dims, &[2, 4, 3]), &[]), Index::identity(&dims));
    // Merging axes that lie apart takes a second view; splitting them again takes it away.
    let merged = Index::identity(&[2, 12]).then(&swap(&[2, 4, 3], &dims), &[]);
    assert_eq!(merged.views.len(), 2);
    let again = merged.then(&swap(&dims, &[2, 4, 3]), &[]);
    assert!(again.is_linear(), "{again:?}");
    // Heads: [b, t, h * d] seen as [b, h, t, d] is one strided view.
    let mut perm = [0; MAX_RANK];
    perm[..4].copy_from_slice(&[0, 2, 1, 3]);
    let heads =
        View::of_movement(&Op::Permute(perm), Shape::new(&[2, 5, 3, 4]), Shape::new(&[2, 3, 5, 4]), 0);
    let index = Index::identity(&[2, 3, 5, 4]).then(&heads, &[]);
    assert_eq!(&index.views[0].strides[..], [60, 4, 12, 1]);
    assert!(index.is_strided());
}
