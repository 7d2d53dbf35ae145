//! Epochs of batches, prepared ahead on a thread.

use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use wgrad_graph::{Error, ErrorKind, Result};

use crate::Rng;

/// Items that can be gathered into batches.
pub trait Source: Send + Sync + 'static {
    /// What a batch is: host tensors, as a rule.
    type Batch: Send + 'static;

    /// Number of items.
    fn len(&self) -> usize;

    /// The items with these indices, in this order.
    ///
    /// # Errors
    /// Whatever keeps the batch from being made; the epoch ends with it.
    fn batch(&self, index: &[usize]) -> Result<Self::Batch>;

    /// Whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Batches of a source, in a new order each epoch.
///
/// ```
/// # use wgrad_nn::{Loader, Source};
/// # struct Numbers;
/// # impl Source for Numbers {
/// #     type Batch = Vec<usize>;
/// #     fn len(&self) -> usize { 10 }
/// #     fn batch(&self, index: &[usize]) -> wgrad_graph::Result<Vec<usize>> { Ok(index.to_vec()) }
/// # }
/// # fn main() -> wgrad_graph::Result<()> {
/// let loader = Loader::new(Numbers, 4).shuffle(1).drop_last(true);
/// for epoch in 0..2 {
///     for batch in loader.epoch(epoch) {
///         assert_eq!(batch?.len(), 4);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Loader<S> {
    source: Arc<S>,
    batch: usize,
    shuffle: Option<Rng>,
    drop_last: bool,
    prefetch: usize,
}

impl<S: Source> Loader<S> {
    /// Batches of `batch` items in order, the last one smaller when items do not divide; two batches are
    /// prepared ahead.
    ///
    /// # Panics
    /// When `batch` is 0.
    #[track_caller]
    pub fn new(source: S, batch: usize) -> Loader<S> {
        assert!(batch > 0, "loader: a batch of 0 items");
        Loader { source: Arc::new(source), batch, shuffle: None, drop_last: false, prefetch: 2 }
    }

    /// A new order every epoch, decided by `seed` and the epoch's number alone.
    #[must_use]
    pub fn shuffle(self, seed: u64) -> Loader<S> {
        Loader { shuffle: Some(Rng::seed(seed).at("shuffle")), ..self }
    }

    /// Whether a last batch that is not full is left out.
    #[must_use]
    pub fn drop_last(self, drop: bool) -> Loader<S> {
        Loader { drop_last: drop, ..self }
    }

    /// How many finished batches may wait; 0 makes each one while the one before is used.
    #[must_use]
    pub fn prefetch(self, batches: usize) -> Loader<S> {
        Loader { prefetch: batches, ..self }
    }

    /// Number of batches in an epoch.
    pub fn batches(&self) -> usize {
        let items = self.source.len();
        if self.drop_last { items / self.batch } else { items.div_ceil(self.batch) }
    }

    /// Number of items that an epoch yields.
    pub fn items(&self) -> usize {
        self.source.len().min(self.batches() * self.batch)
    }

    /// The batches of epoch number `epoch`.
    pub fn epoch(&self, epoch: u32) -> Epoch<S::Batch> {
        let (source, batch, shuffle, items) =
            (Arc::clone(&self.source), self.batch, self.shuffle, self.items());
        let (sender, receiver) = sync_channel(self.prefetch);
        let work = move || {
            let order = match shuffle {
                Some(rng) => rng.permutation(epoch, source.len()),
                None => (0..source.len()).collect(),
            };
            for index in order[..items].chunks(batch) {
                let batch = source.batch(index);
                let failed = batch.is_err();
                // Nobody listens any more when the epoch was dropped early.
                if sender.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("wgrad-loader".into()).spawn(work);
        Epoch { receiver: Some(receiver), thread: Some(spawned), left: self.batches() }
    }
}

/// The batches of one epoch. It ends after the first error. Dropped early, it stops the thread at the
/// batch in work and does not wait for it.
#[derive(Debug)]
pub struct Epoch<B> {
    receiver: Option<Receiver<Result<B>>>,
    thread: Option<std::io::Result<JoinHandle<()>>>,
    left: usize,
}

impl<B> Epoch<B> {
    /// Why the thread sent nothing more, when it did not end in good order.
    fn failure(&mut self) -> Option<Error> {
        let fault = |why: String| Error::new(ErrorKind::Data, "loader", why);
        match self.thread.take()? {
            Err(e) => Some(fault(format!("no thread could be started: {e}")).because(e)),
            Ok(thread) => thread.join().err().map(|panic| {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                fault(format!("the source panicked: {}", text.unwrap_or("with no message")))
            }),
        }
    }
}

impl<B> Iterator for Epoch<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let batch = match self.receiver.as_ref()?.recv() {
            Ok(batch) => Some(batch),
            Err(_) => self.failure().map(Err),
        };
        self.left = self.left.saturating_sub(1);
        if !matches!(batch, Some(Ok(_))) {
            (self.receiver, self.left) = (None, 0);
        }
        batch
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left.max(1)))
    }
}

impl<B> FusedIterator for Epoch<B> {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    struct Numbers(usize);

    impl Source for Numbers {
        type Batch = Vec<usize>;

        fn len(&self) -> usize {
            self.0
        }

        fn batch(&self, index: &[usize]) -> Result<Vec<usize>> {
            Ok(index.to_vec())
        }
    }

    fn all<S: Source<Batch = Vec<usize>>>(loader: &Loader<S>, epoch: u32) -> Vec<Vec<usize>> {
        loader.epoch(epoch).collect::<Result<_>>().unwrap()
    }

    #[test]
    fn in_order_with_and_without_the_last() {
        let loader = Loader::new(Numbers(10), 4);
        assert_eq!(all(&loader, 0), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        assert_eq!((loader.batches(), loader.items()), (3, 10));
        let loader = loader.drop_last(true).prefetch(0);
        assert_eq!(all(&loader, 3), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!((loader.batches(), loader.items()), (2, 8));
        assert!(all(&Loader::new(Numbers(0), 4), 0).is_empty());
    }

    #[test]
    fn an_epoch_is_a_shuffle_decided_by_seed_and_number() {
        let loader = |seed| Loader::new(Numbers(100), 7).shuffle(seed);
        let mut items = all(&loader(1), 0).concat();
        assert_eq!(items, all(&loader(1), 0).concat());
        assert_ne!(items, all(&loader(1), 1).concat());
        assert_ne!(items, all(&loader(2), 0).concat());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
        // What is left out changes with the epoch, so every item is seen in the long run.
        let loader = loader(1).drop_last(true);
        let sum = |epoch| all(&loader, epoch).concat().into_iter().sum::<usize>();
        assert_ne!(sum(0), sum(1));
    }

    struct Faulty {
        panics: bool,
    }

    impl Source for Faulty {
        type Batch = usize;

        fn len(&self) -> usize {
            5
        }

        fn batch(&self, index: &[usize]) -> Result<usize> {
            match index[0] {
                2 if self.panics => panic!("item {} is bad", index[0]),
                2 => wgrad_graph::bail!(Data, "test", "item {} is bad", index[0]),
                i => Ok(i),
            }
        }
    }

    #[test]
    fn errors_and_panics_of_the_thread_end_the_epoch_as_errors() {
        for panics in [false, true] {
            let mut epoch = Loader::new(Faulty { panics }, 1).epoch(0);
            assert_eq!((epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()), (0, 1));
            let error = epoch.next().unwrap().unwrap_err();
            assert!(
                error.kind() == ErrorKind::Data && error.to_string().contains("item 2 is bad"),
                "{error}"
            );
            assert!(epoch.next().is_none() && epoch.next().is_none());
        }
    }

    /// Counts the batches made; the batch of item 1 never ends while the source lives.
    struct Slow(Arc<AtomicUsize>);

    impl Source for Slow {
        type Batch = ();

        fn len(&self) -> usize {
            1 << 20
        }

        fn batch(&self, index: &[usize]) -> Result<()> {
            self.0.fetch_add(1, Ordering::SeqCst);
            if index[0] == 1 {
                std::thread::sleep(Duration::from_secs(2));
            }
            Ok(())
        }
    }

    #[test]
    fn dropped_early_it_neither_hangs_nor_works_on() {
        let (made, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
        let mut epoch = Loader::new(Slow(Arc::clone(&made)), 1).epoch(0);
        epoch.next().unwrap().unwrap();
        drop(epoch);
        assert!(start.elapsed() < Duration::from_secs(1));
        while Arc::strong_count(&made) > 1 {
            assert!(start.elapsed() < Duration::from_secs(30), "the thread works on");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(made.load(Ordering::SeqCst) <= 2);
    }

    #[test]
    fn no_more_than_the_prefetch_is_made_ahead() {
        let made = Arc::new(AtomicUsize::new(0));
        struct Counted(Arc<AtomicUsize>);
        impl Source for Counted {
            type Batch = ();
            fn len(&self) -> usize {
                100
            }
            fn batch(&self, _: &[usize]) -> Result<()> {
                self.0.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        }
        let mut epoch = Loader::new(Counted(Arc::clone(&made)), 1).prefetch(3).epoch(0);
        epoch.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        // One taken, three waiting, one in hand.
        assert!(made.load(Ordering::SeqCst) <= 5);
        assert_eq!(epoch.count(), 99);
    }
}
