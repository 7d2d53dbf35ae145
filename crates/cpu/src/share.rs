//! Tasks that the threads of the pool take one after the other; outside it, the thread that calls takes them all.
//!
//! Who calls works too, and waits for nobody but those who are in the middle of a task, and for them awake; who has
//! helped stays awake for a while, for what is shared next. To yield, as rayon does at its joins, gives the core to
//! whatever else the machine has to do, for milliseconds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::pool;

/// Turns that are waited awake: some 100 us.
const TURNS: usize = 4096;
/// Turns that the pool needs to note that a thread is done.
const LAST_TURNS: usize = 16;

/// Counts what was shared.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// Stays awake for so many turns, as long as `more` says so.
fn awake(turns: usize, more: impl Fn() -> bool) {
    for _ in (0..turns).take_while(|_| more()) {
        std::hint::spin_loop();
    }
}

/// One more thread at work, for as long as this lives.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(threads: &'a AtomicUsize) -> Busy<'a> {
        threads.fetch_add(1, Ordering::Relaxed);
        Busy(threads)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Runs `work` on each task, on any thread.
pub(crate) fn share<T: Send>(tasks: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let threads = pool::here().min(tasks.len());
    if threads < 2 {
        return tasks.for_each(work);
    }
    let (tasks, helping) = (Mutex::new(tasks), AtomicUsize::new(0));
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(task) = next() {
            work(task);
        }
    };
    rayon::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| {
                let _busy = Busy::new(&helping);
                run();
                let (since, here) = (SHARED.load(Ordering::Relaxed), rayon::current_thread_index());
                // Another thread that finds this has something to do.
                rayon::spawn(move || {
                    if rayon::current_thread_index() == here {
                        awake(TURNS, || SHARED.load(Ordering::Relaxed) == since);
                    }
                });
            });
        }
        SHARED.fetch_add(1, Ordering::Relaxed);
        run();
        awake(TURNS, || helping.load(Ordering::Acquire) > 0);
        awake(LAST_TURNS, || true);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::among;
    use crate::pool::testing::with_threads;

    #[test]
    fn every_task_is_done_once() {
        for count in [0, 1, 2, 7, 1000] {
            let mut done = vec![0u32; count];
            let shared = || share(done.iter_mut().enumerate(), |(i, done)| *done += i as u32 + 1);
            with_threads(3, || among(shared));
            assert!(done.iter().enumerate().all(|(i, done)| *done == i as u32 + 1), "{count}");
        }
    }

    /// Two of them are no less than two threads' work.
    #[test]
    fn tasks_run_side_by_side() {
        let (there, begun) = (AtomicUsize::new(0), std::time::Instant::now());
        let shared = || {
            share(0..2, |_| {
                there.fetch_add(1, Ordering::Relaxed);
                while there.load(Ordering::Relaxed) < 2 {
                    assert!(begun.elapsed().as_secs() < 20, "the other task has not begun");
                    std::thread::yield_now();
                }
            });
        };
        with_threads(2, || among(shared));
    }

    #[test]
    fn tasks_share_their_own_work() {
        let mut all = [[0u32; 50]; 40];
        let shared = || share(all.iter_mut(), |row| share(row.iter_mut(), |x| *x += 1));
        with_threads(3, || among(shared));
        assert_eq!(all, [[1; 50]; 40]);
    }

    #[test]
    #[should_panic(expected = "task 3")]
    fn a_panic_arrives() {
        with_threads(2, || among(|| share(0..8, |i| assert!(i != 3, "task {i}"))));
    }
}
