//! Faults of matrix products.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, ContextOptions, DeviceKind, ErrorKind, HostTensor, Kept};

use super::{every_way, floats, ways};
use crate::Subject;
use crate::ops::near;

crate::suite![
    plain: ;
    device: b175_blocks_of_rows_stay_zero, b176_zeros_without_fusion, b178_row_by_transposed,
        b179_more_elements_than_a_buffer_holds, b181_the_same_bits_again, b182_edges_of_tiles,
        b182_neighbours_stay, b184_more_batches_than_workgroups,
];

fn sines(count: usize, turn: f64) -> Vec<f64> {
    (0..count).map(|i| f64::from((i as f64 * 0.37 + turn).sin() as f32)).collect()
}

/// Element `(i, j)` of the product of row-major `a` and `b`.
fn dot(a: &[f64], b: &[f64], k: usize, n: usize, at: (usize, usize)) -> f64 {
    (0..k).map(|t| a[at.0 * k + t] * b[t * n + at.1]).sum()
}

fn b175_blocks_of_rows_stay_zero(on: &Subject) {
    let ones = || floats([200, 200], &[1.0; 40_000]);
    every_way(on, &[ones(), ones()], |_, x| x[0].matmul(x[1]), &[200, 200], &[200.0; 40_000]);
}

fn b176_zeros_without_fusion(on: &Subject) {
    let m = if on.is_oracle() || on.is_slow() { 48 } else { 512 };
    let (a, b) = (sines(8 * m * m, 0.1), sines(8 * m * 32, 0.7));
    let operands = [floats([1, 8, m, m], &a), floats([1, 8, m, 32], &b)];
    ways(on, &operands, |_, x, say| {
        let y = x[0].matmul(x[1]).to_vec::<f64>().unwrap();
        assert_eq!(y.len(), 8 * m * 32);
        for e in (0..y.len()).step_by(97) {
            let (batch, i, j) = (e / (m * 32), e / 32 % m, e % 32);
            let want = dot(&a[batch * m * m..], &b[batch * m * 32..], m, 32, (i, j));
            near(say, &y[e..=e], &[want], 1e-3);
        }
    });
}

fn b178_row_by_transposed(on: &Subject) {
    let (a, b) = (sines(128, 0.2), sines(512 * 128, 0.9));
    let want: Vec<f64> = (0..512).map(|j| (0..128).map(|t| a[t] * b[j * 128 + t]).sum()).collect();
    let operands = [floats([1, 128], &a), floats([512, 128], &b)];
    every_way(on, &operands, |_, x| x[0].matmul(x[1].t()), &[1, 512], &want);
}

fn b179_more_elements_than_a_buffer_holds(on: &Subject) {
    let wide = 10_342_400;
    let right = |ctx: &Context, columns: usize| {
        ctx.pass(|p| {
            let b = (p.arange(0..columns as i32) % 64).cast(wgrad::DType::F32).expand([21, columns]);
            let y = p.ones([104, 21]).matmul(b);
            assert_eq!(y.shape().dims(), [104, columns]);
            y.slice(1, -1..).to_vec::<f64>()
        })
    };
    let last = |columns: usize| [21.0 * ((columns - 1) % 64) as f64; 104];
    // A device that cannot hold the product says so before it takes memory.
    let small = Context::new(on.lowered(|caps| caps.max_value_bytes = 1 << 20)).unwrap();
    let error = right(&small, wide).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(error.to_string().contains("10342400"), "{error}");
    // One that can gives the right last column.
    let full = on.context().caps().kind == DeviceKind::DiscreteGpu;
    let columns = if full { wide } else { 10_343 };
    match right(&on.context(), columns) {
        Ok(y) => near("last column", &y, &last(columns), 1e-5),
        Err(e) => assert!(full && e.kind() == ErrorKind::Limit, "{e}"),
    }
}

fn b181_the_same_bits_again(on: &Subject) {
    let times = if on.is_vulkan() && !on.is_slow() { 500 } else { 20 };
    let operands = [floats([128, 128], &sines(128 * 128, 0.3)), floats([128, 128], &sines(128 * 128, 0.8))];
    ways(on, &operands, |_, x, say| {
        let bits = || -> Vec<u32> {
            let y = (x[0] * 1.0).matmul(x[1]).to_vec::<f32>().unwrap();
            y.into_iter().map(f32::to_bits).collect()
        };
        let first = bits();
        for turn in 0..times / 6 {
            assert!(bits() == first, "{say}: other bits in turn {turn}");
        }
    });
}

fn b182_edges_of_tiles(on: &Subject) {
    for (m, k, n) in
        [(33, 33, 33), (31, 65, 17), (1, 33, 33), (33, 33, 1), (33, 1, 31), (1, 1, 1), (64, 63, 65)]
    {
        let (a, b) = (sines(m * k, 0.4), sines(k * n, 0.6));
        let want: Vec<f64> = (0..m * n).map(|e| dot(&a, &b, k, n, (e / n, e % n))).collect();
        every_way(on, &[floats([m, k], &a), floats([k, n], &b)], |_, x| x[0].matmul(x[1]), &[m, n], &want);
    }
}

/// What lies around a product that is written into an owned value stays what it was.
fn b182_neighbours_stay(on: &Subject) {
    for (m, k, n) in [(33, 33, 33), (31, 65, 17), (1, 1, 1)] {
        let (a, b) = (sines(m * k, 0.4), sines(k * n, 0.6));
        let want: Vec<f64> = (0..m * n).map(|e| dot(&a, &b, k, n, (e / n, e % n))).collect();
        for ctx in [on.context(), on.context_with(ContextOptions::default().fuse(false))] {
            let sevens = HostTensor::new([3, m, n], &vec![7f32; 3 * m * n]).unwrap();
            let whole = Kept::new(&ctx, sevens).unwrap();
            ctx.pass(|p| {
                let [x, w] = [floats([m, k], &a), floats([k, n], &b)].map(|o| o.on(p, super::Lie::Plain));
                whole.set(whole.t().slice_assign(0, 1, x.matmul(w).unsqueeze(0)));
                Ok(())
            })
            .unwrap();
            let y = whole.read().unwrap().to_vec::<f64>();
            let (before, rest) = y.split_at(m * n);
            let (product, after) = rest.split_at(m * n);
            assert!(before.iter().chain(after).all(|g| *g == 7.0), "a neighbour was written");
            near("product", product, &want, 1e-5);
        }
    }
}

fn b184_more_batches_than_workgroups(on: &Subject) {
    if on.is_slow() {
        return;
    }
    let count = 70_000;
    let a: Vec<f64> = (0..count * 4).map(|i| (i % 7) as f64).collect();
    let b: Vec<f64> = (0..count * 4).map(|i| (i % 5) as f64).collect();
    ways(on, &[floats([count, 2, 2], &a), floats([count, 2, 2], &b)], |_, x, say| {
        let y = x[0].bmm(x[1]).to_vec::<f64>().unwrap();
        for batch in [0, 65_534, 65_535, 65_536, count - 1] {
            for e in 0..4 {
                let want = dot(&a[batch * 4..], &b[batch * 4..], 2, 2, (e / 2, e % 2));
                assert_eq!(y[batch * 4 + e], want, "{say}: batch {batch}");
            }
        }
    });
}
