//! Work that several threads share, none of which takes up anything else while it waits.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// `f` of each item, in their order, by as many threads as the machine has cores.
///
/// The threads are new ones. One of a pool, such as rayon's, takes up other jobs of the pool while it waits for its
/// part; those may be the caller's, and want what the thread holds that waits.
pub(crate) fn beside<'a, T: Sync, R: Send>(items: &'a [T], f: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    if threads < 2 {
        return items.iter().map(f).collect();
    }
    let taken = AtomicUsize::new(0);
    let work = || {
        let next = || {
            let at = taken.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, f(item)))
        };
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let mut made = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut made = work();
        for other in others {
            made.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        made
    });
    made.sort_unstable_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, result)| result).collect()
}

/// What `a` and `b` return, run at the same time.
pub(crate) fn both<A: Send, B>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let a = scope.spawn(a);
        let b = b();
        (a.join().unwrap_or_else(|panic| resume_unwind(panic)), b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order() {
        for count in [0, 1, 2, 1000] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(beside(&items, |i| i * i), items.iter().map(|i| i * i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_two_run_side_by_side() {
        if thread::available_parallelism().map_or(1, NonZero::get) < 2 {
            return;
        }
        let there = std::sync::Barrier::new(2);
        beside(&[(), ()], |()| there.wait());
    }

    #[test]
    fn both_run_side_by_side() {
        let there = std::sync::Barrier::new(2);
        let wait = || there.wait().is_leader();
        let (a, b) = both(wait, wait);
        assert!(a != b);
    }

    #[test]
    #[should_panic(expected = "item 3")]
    fn a_panic_arrives() {
        beside(&[0, 1, 2, 3, 4], |i| assert!(*i != 3, "item {i}"));
    }
}
