//! Sums of large tensors on the host: by several threads, into memory that is used again.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use wgrad_graph::{Bytes, DType, HostTensor, Result, bail};

/// Bytes that a thread adds up at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes that stay in a core's cache while several tensors are added to them.
const BLOCK_BYTES: usize = 16 << 10;
/// Most threads of one sum.
const MOST_THREADS: usize = 8;
/// Idle memory that is kept, by its number of buffers.
const MOST_SPARE: usize = 8;

type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

/// Adds up tensors of f32.
pub(super) struct Adder {
    threads: usize,
    spare: Spare,
}

/// Sums side by side; their memory is used again when the last of them is dropped.
struct Sums {
    bytes: Vec<u8>,
    spare: Spare,
}

impl Drop for Sums {
    fn drop(&mut self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// One of them.
struct Part {
    sums: Arc<Sums>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.sums.bytes[self.range.clone()]
    }
}

impl Adder {
    /// One for so many ranks that add at the same time.
    pub(super) fn among(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads: (cores / ranks.max(1) / 2).clamp(1, MOST_THREADS), spare: Spare::default() }
    }

    /// Memory for so many bytes, of which the content is left over.
    fn memory(&self, bytes: usize) -> Vec<u8> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (0..spare.len()).filter(|i| (bytes..=4 * bytes).contains(&spare[*i].len()));
        let least = fits.min_by_key(|i| spare[*i].len());
        least.map_or_else(|| vec![0; bytes], |i| spare.swap_remove(i))
    }

    /// The sum of the i-th tensors of all lists, for each i, added in the order of lists.
    pub(super) fn sums(&self, lists: &[Vec<HostTensor>]) -> Result<Vec<HostTensor>> {
        let Some(first) = lists.first() else { return Ok(Vec::new()) };
        let same = |list: &&Vec<HostTensor>| {
            let outs = |list: &[HostTensor]| list.iter().map(|x| (x.shape(), x.dtype())).collect::<Vec<_>>();
            outs(list) == outs(first)
        };
        if let Some(rank) = lists.iter().position(|list| !same(&list)) {
            bail!(Data, "collective", "rank {rank} gives tensors of other shapes than rank 0");
        }
        let mut bytes = self.memory(first.iter().map(|x| x.bytes().len()).sum());
        let mut pieces: Vec<(&mut [u8], usize, usize)> = Vec::new();
        let mut rest = &mut bytes[..];
        for (i, x) in first.iter().enumerate() {
            let (own, after) = rest.split_at_mut(x.bytes().len());
            rest = after;
            let own = own.chunks_mut(PIECE_BYTES).enumerate();
            pieces.extend(own.map(|(piece, to)| (to, i, piece * PIECE_BYTES)));
        }
        let threads = self.threads.min(pieces.len());
        let line = Mutex::new(pieces.into_iter());
        let work = || {
            while let Some((to, i, start)) = { line.lock().unwrap_or_else(PoisonError::into_inner).next() } {
                let from: Vec<&[u8]> = lists.iter().map(|l| &l[i].bytes()[start..start + to.len()]).collect();
                add(to, &from);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let sums = Arc::new(Sums { bytes, spare: Arc::clone(&self.spare) });
        let mut start = 0;
        let part = |x: &HostTensor| {
            let range = start..start + x.bytes().len();
            start = range.end;
            let bytes = Bytes::held(Part { sums: Arc::clone(&sums), range });
            HostTensor::from_bytes(x.shape(), DType::F32, bytes)
        };
        first.iter().map(part).collect()
    }
}

/// The sums of numbers of f32 that lie side by side.
fn add(to: &mut [u8], from: &[&[u8]]) {
    let sum = |a: [u8; 4], b: [u8; 4]| (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes();
    for (block, to) in to.chunks_mut(BLOCK_BYTES).enumerate() {
        let start = block * BLOCK_BYTES;
        let range = start..start + to.len();
        let to = to.as_chunks_mut::<4>().0;
        match from {
            [] => {}
            [one] => to.copy_from_slice(one[range].as_chunks().0),
            [a, b, more @ ..] => {
                let (a, b) = (a[range.clone()].as_chunks().0, b[range.clone()].as_chunks().0);
                to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = sum(*a, *b));
                for x in more {
                    to.iter_mut().zip(x[range.clone()].as_chunks().0).for_each(|(to, x)| *to = sum(*to, *x));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sum depends on the order.
    fn numbers(count: usize, rank: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + rank * 104_729) % 1009) as f32 * 10f32.powi(rank as i32 * 3 - 4))
            .collect()
    }

    #[test]
    fn sums_run_in_the_order_of_ranks_and_memory_is_used_again() {
        let adder = Adder { threads: 3, spare: Spare::default() };
        for ranks in [1, 2, 5] {
            let sizes = [3, 700_001, 0, 4099];
            let list = |rank| sizes.map(|n| HostTensor::new([n], &numbers(n, rank)).unwrap()).to_vec();
            let lists: Vec<Vec<HostTensor>> = (0..ranks).map(list).collect();
            let sums = adder.sums(&lists).unwrap();
            for (n, sum) in sizes.into_iter().zip(&sums) {
                let mut due = numbers(n, 0);
                for rank in 1..ranks {
                    due.iter_mut().zip(numbers(n, rank)).for_each(|(sum, x)| *sum += x);
                }
                assert_eq!(sum.to_vec::<f32>(), due, "{ranks} ranks, {n} numbers");
            }
            drop(sums);
            assert_eq!(adder.spare.lock().unwrap().len(), 1, "{ranks} ranks");
        }
    }

    #[test]
    fn tensors_of_other_shapes_are_told() {
        let of = |n: usize| vec![HostTensor::new([n], &numbers(n, 0)).unwrap()];
        let error = Adder::among(2).sums(&[of(3), of(4)]).unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
