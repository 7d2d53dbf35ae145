//! The threads of the executor: a pool of its own, whose threads run nothing else.
//!
//! A thread of a pool takes up other jobs of it while it waits for its part of the work. Those of a pool that is a
//! caller's too may want what the one that waits holds, a context or a device, and then none of them goes on.

use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool, with as many threads as rayon's own; none where the system gives no threads.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    #[cfg(test)]
    if let Some(pool) = testing::pool() {
        return Some(pool);
    }
    let build = || {
        let name = |i| format!("wgrad cpu {i}");
        ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).thread_name(name).build().ok()
    };
    POOL.get_or_init(build).as_ref()
}

/// Threads that a program may share its work among.
pub(crate) fn threads() -> usize {
    pool().map_or(1, ThreadPool::current_num_threads)
}

/// Threads that work here is shared among: one outside the pool.
pub(crate) fn here() -> usize {
    pool().filter(|pool| pool.current_thread_index().is_some()).map_or(1, ThreadPool::current_num_threads)
}

/// Runs `work` in the pool, so that a step that is shared wakes other threads and waits for none.
pub(crate) fn among<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let Some(pool) = pool() else { return work() };
    // A thread of a pool that is not ours would wait as such threads do.
    if rayon::current_thread_index().is_some() && pool.current_thread_index().is_none() {
        let waited = thread::scope(|scope| scope.spawn(|| pool.install(work)).join());
        return waited.unwrap_or_else(|panic| resume_unwind(panic));
    }
    pool.install(work)
}

/// Pools of other sizes.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::sync::{Mutex, PoisonError};

    use rayon::{ThreadPool, ThreadPoolBuilder};

    thread_local! {
        static OTHER: Cell<Option<&'static ThreadPool>> = const { Cell::new(None) };
    }

    pub(super) fn pool() -> Option<&'static ThreadPool> {
        OTHER.get()
    }

    fn of(threads: usize) -> &'static ThreadPool {
        static ALL: Mutex<Option<HashMap<usize, &'static ThreadPool>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().entry(threads).or_insert_with(|| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let pool: &'static ThreadPool = Box::leak(Box::new(pool));
            pool.broadcast(|_| OTHER.set(Some(pool)));
            pool
        })
    }

    /// Runs `f`, and what it submits by so many threads.
    pub(crate) fn with_threads<R>(threads: usize, f: impl FnOnce() -> R) -> R {
        let before = OTHER.replace(Some(of(threads)));
        let result = f();
        OTHER.set(before);
        result
    }

    #[test]
    fn programs_take_the_threads_they_are_given() {
        for threads in [1, 3] {
            let seen = with_threads(threads, || [super::threads(), super::here(), super::among(super::here)]);
            assert_eq!(seen, [threads, 1, threads]);
        }
        // From a thread of another pool, and from one of the pool itself.
        let other = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let nested = || super::among(|| super::among(super::here));
        assert_eq!(other.install(|| with_threads(3, nested)), 3);
    }

    #[test]
    #[should_panic(expected = "what went wrong")]
    fn a_panic_crosses_pools() {
        let other = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        other.install(|| super::among(|| panic!("what went wrong")));
    }
}
