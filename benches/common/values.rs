//! Numbers that look random and are the same in every language: see `values` in `peers/torch_peer.py`.

use crate::threads::fill;

/// 24 bits that follow from a place and a salt.
fn word(i: usize, salt: u64) -> u64 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (salt << 32);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
}

/// `n` numbers from `-bound` up to `bound`.
pub fn floats(n: usize, salt: u64, bound: f64) -> Vec<f32> {
    let step = 2.0 * bound / f64::from(1 << 24);
    let mut all = vec![0.0; n];
    fill(&mut all, 1, |from, part| {
        let all = part.iter_mut().zip(from..);
        all.for_each(|(x, i)| *x = (word(i, salt) as f64 * step - bound) as f32);
    });
    all
}

/// `n` whole numbers below `bound`.
pub fn ids(n: usize, salt: u64, bound: usize) -> Vec<i32> {
    let mut all = vec![0; n];
    fill(&mut all, 1, |from, part| {
        part.iter_mut().zip(from..).for_each(|(x, i)| *x = (word(i, salt) % bound as u64) as i32);
    });
    all
}

/// Places that stand for all of `n`: at most 257 of them, the first and the last among them.
pub fn indices(n: usize) -> Vec<usize> {
    const MOST: usize = 257;
    match n {
        0..=MOST => (0..n).collect(),
        _ => (0..MOST).map(|i| (i as u128 * (n - 1) as u128 / (MOST - 1) as u128) as usize).collect(),
    }
}
