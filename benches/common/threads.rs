//! Work shared by threads.

use std::ops::Range;
use std::thread;

/// Elements from which threads share.
const SHARED: usize = 1 << 16;

/// Number of threads for so many elements.
fn count(elems: usize) -> usize {
    let most = thread::available_parallelism().map_or(1, usize::from);
    most.min(elems.div_ceil(SHARED)).max(1)
}

/// `f` of ranges that cover `0..n`, in order; `each` is how many elements one of them stands for.
pub(crate) fn ranges<R: Send>(n: usize, each: usize, f: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    let parts = count(n * each).min(n.max(1));
    let part = |i: usize| n * i / parts..n * (i + 1) / parts;
    if parts == 1 {
        return vec![f(0..n)];
    }
    thread::scope(|scope| {
        let f = &f;
        let all: Vec<_> = (0..parts).map(|i| scope.spawn(move || f(part(i)))).collect();
        all.into_iter().map(|one| one.join().expect("a thread of the benchmark panicked")).collect()
    })
}

/// `f(start, part)` of parts of `out` whose lengths are multiples of `unit`.
pub(crate) fn fill<T: Send>(out: &mut [T], unit: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let units = out.len() / unit.max(1);
    let len = units.div_ceil(count(out.len())).max(1) * unit.max(1);
    if len >= out.len() {
        return f(0, out);
    }
    thread::scope(|scope| {
        for (i, part) in out.chunks_mut(len).enumerate() {
            let f = &f;
            scope.spawn(move || f(i * len, part));
        }
    });
}
