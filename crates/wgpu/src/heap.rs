//! Pages and leases as numbers: where each value lies. Knows no device, so that it is tested without.

use std::collections::{BTreeMap, BTreeSet};

use slotmap::{Key, KeyData, SlotMap, new_key_type};
use wgrad_graph::BufferId;

new_key_type! {
    /// A range that someone holds.
    pub(crate) struct LeaseKey;
}

/// A page: `backing` cut into leases and free ranges.
#[derive(Debug)]
struct Page<B> {
    backing: B,
    bytes: u64,
    /// Free ranges, start to length; no two touch.
    free: BTreeMap<u64, u64>,
}

/// A range of a page.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Lease {
    /// Number of the page.
    pub(crate) page: u64,
    /// Bytes from the page's start.
    pub(crate) offset: u64,
    /// Bytes taken.
    pub(crate) bytes: u64,
}

/// Leases after which the most bytes leased at once are counted anew.
const WINDOW: u32 = 10_000;

/// Pages by number, and their leases. Freed ranges join their neighbours; the tightest free range is
/// taken first. Empty pages are kept as far as was in use lately: a driver takes milliseconds to make a large
/// one, and a step needs what the step before gave back. Where that was too little, since what is free lies in
/// pieces, a page that is made soon after one was dropped is kept beside it.
#[derive(Debug)]
pub(crate) struct Heap<B> {
    align: u64,
    first: u64,
    cap: u64,
    pages: BTreeMap<u64, Page<B>>,
    leases: SlotMap<LeaseKey, Lease>,
    /// Free ranges as (length, page, start).
    by_size: BTreeSet<(u64, u64, u64)>,
    reserved: u64,
    live: u64,
    /// The most bytes leased at once in this window and in the one before, and leases in this one.
    high: [u64; 2],
    taken: u32,
    /// Whether a page was dropped since the last was made, and what is kept because of such.
    dropped: bool,
    regretted: u64,
}

impl<B: Clone> Heap<B> {
    /// A heap without pages; these begin at `first` bytes and double up to `cap`.
    pub(crate) fn new(align: u64, first: u64, cap: u64) -> Heap<B> {
        Heap {
            align,
            first: first.min(cap),
            cap,
            pages: BTreeMap::new(),
            leases: SlotMap::with_key(),
            by_size: BTreeSet::new(),
            reserved: 0,
            live: 0,
            high: [0; 2],
            taken: 0,
            dropped: false,
            regretted: 0,
        }
    }

    /// Bytes that a lease of `bytes` takes.
    pub(crate) fn rounded(&self, bytes: usize) -> u64 {
        (bytes as u64).max(1).next_multiple_of(self.align)
    }

    /// Leases `bytes` rounded bytes if a page has room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<BufferId> {
        let &(length, page, offset) = self.by_size.range((bytes, 0, 0)..).next()?;
        self.by_size.remove(&(length, page, offset));
        let free = &mut self.pages.get_mut(&page)?.free;
        free.remove(&offset);
        if length > bytes {
            free.insert(offset + bytes, length - bytes);
            self.by_size.insert((length - bytes, page, offset + bytes));
        }
        self.live += bytes;
        self.taken += 1;
        if self.taken == WINDOW {
            (self.high, self.taken) = ([0, self.high[0]], 0);
            (self.dropped, self.regretted) = (false, self.regretted / 2);
        }
        self.high[0] = self.high[0].max(self.live);
        Some(BufferId(self.leases.insert(Lease { page, offset, bytes }).data().as_ffi()))
    }

    /// Size of the page to make when `take(bytes)` finds no room: a value above half the largest page
    /// size has a page of its own, others share pages that grow with what is held.
    pub(crate) fn page_for(&self, bytes: u64) -> u64 {
        if bytes > self.cap / 2 { bytes } else { self.reserved.clamp(self.first, self.cap).max(bytes) }
    }

    /// Adds page `number`.
    pub(crate) fn add(&mut self, number: u64, bytes: u64, backing: B) {
        self.pages.insert(number, Page { backing, bytes, free: BTreeMap::from([(0, bytes)]) });
        self.by_size.insert((bytes, number, 0));
        self.reserved += bytes;
        if std::mem::take(&mut self.dropped) {
            self.regretted += bytes;
        }
    }

    /// The lease `id` and what backs it.
    pub(crate) fn find(&self, id: BufferId) -> Option<(Lease, &B)> {
        let lease = *self.leases.get(KeyData::from_ffi(id.0).into())?;
        Some((lease, &self.pages.get(&lease.page)?.backing))
    }

    /// Gives `id` back. `None` if there is no such lease; else the numbers of pages dropped.
    pub(crate) fn free(&mut self, id: BufferId) -> Option<Vec<u64>> {
        let Lease { page, mut offset, mut bytes } = self.leases.remove(KeyData::from_ffi(id.0).into())?;
        self.live -= bytes;
        let free = &mut self.pages.get_mut(&page)?.free;
        if let Some((&at, &length)) = free.range(..offset).next_back()
            && at + length == offset
        {
            free.remove(&at);
            self.by_size.remove(&(length, page, at));
            offset = at;
            bytes += length;
        }
        if let Some(length) = free.remove(&(offset + bytes)) {
            self.by_size.remove(&(length, page, offset + bytes));
            bytes += length;
        }
        free.insert(offset, bytes);
        self.by_size.insert((bytes, page, offset));
        let mut dropped = Vec::new();
        let high = self.high[0].max(self.high[1]);
        // Beside what was leased at once there is room for the gaps between leases.
        while self.reserved > high + high / 4 + self.first + self.regretted
            && let Some(number) = self.surplus(high)
        {
            self.drop_page(number);
            self.dropped = true;
            dropped.push(number);
        }
        Some(dropped)
    }

    /// The largest empty page without which `high` bytes are left.
    fn surplus(&self, high: u64) -> Option<u64> {
        let spared = |number: &u64| self.reserved - self.pages[number].bytes >= high;
        self.empty().filter(spared).max_by_key(|number| self.pages[number].bytes)
    }

    /// Drops every empty page; their numbers.
    pub(crate) fn trim(&mut self) -> Vec<u64> {
        let empty: Vec<u64> = self.empty().collect();
        empty.into_iter().inspect(|number| self.drop_page(*number)).collect()
    }

    fn empty(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().filter(|(_, p)| p.free.get(&0) == Some(&p.bytes)).map(|(number, _)| *number)
    }

    fn drop_page(&mut self, number: u64) {
        if let Some(page) = self.pages.remove(&number) {
            self.by_size.remove(&(page.bytes, number, 0));
            self.reserved -= page.bytes;
        }
    }

    /// Pages there are.
    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of those.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes leased.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap() -> Heap<()> {
        let mut heap = Heap::new(256, 1024, 4096);
        heap.add(1, 1024, ());
        heap
    }

    #[test]
    fn freed_neighbours_join() {
        let mut heap = heap();
        let ids: Vec<_> = (0..4).map(|_| heap.take(256).unwrap()).collect();
        assert!(heap.take(256).is_none());
        assert_eq!(heap.free(ids[1]), Some(vec![]));
        assert_eq!(heap.free(ids[3]), Some(vec![]));
        assert!(heap.take(512).is_none());
        assert_eq!(heap.free(ids[2]), Some(vec![]));
        let big = heap.take(768).unwrap();
        assert_eq!(heap.find(big).unwrap().0.offset, 256);
        assert_eq!(heap.live(), 1024);
    }

    #[test]
    fn a_stale_lease_is_unknown() {
        let mut heap = heap();
        let a = heap.take(256).unwrap();
        heap.free(a);
        let b = heap.take(256).unwrap();
        assert_ne!(a, b);
        assert!(heap.find(a).is_none());
        assert!(heap.free(a).is_none());
        assert!(heap.find(BufferId(u64::MAX)).is_none());
    }

    #[test]
    fn pages_that_were_in_use_lately_are_kept() {
        let mut heap = heap();
        heap.add(2, 9216, ());
        let both = [heap.take(1024), heap.take(9216)].map(Option::unwrap);
        // A step that takes both again and again finds both.
        for id in both {
            assert_eq!(heap.free(id), Some(vec![]));
        }
        for _ in 0..WINDOW {
            let id = heap.take(1024).unwrap();
            assert_eq!(heap.free(id), Some(vec![]), "the larger one may be wanted again");
        }
        for _ in 0..WINDOW {
            let id = heap.take(1024).unwrap();
            heap.free(id);
        }
        let id = heap.take(1024).unwrap();
        heap.free(id);
        assert_eq!((heap.pages(), heap.reserved(), heap.live()), (1, 1024, 0), "it was not");
        assert_eq!(heap.trim(), vec![1]);
        assert!(heap.take(256).is_none());
    }

    #[test]
    fn pages_grow_to_the_cap_and_large_values_have_their_own() {
        let mut heap = heap();
        assert_eq!(heap.page_for(256), 1024);
        heap.add(2, 2048, ());
        assert_eq!(heap.page_for(256), 3072);
        heap.add(3, 9999 * 256, ());
        assert_eq!(heap.page_for(256), 4096);
        assert_eq!(heap.page_for(2304), 2304);
    }

    /// A step whose largest value fits in no piece that its others leave of two pages, though together they are enough.
    #[test]
    fn no_step_makes_a_page_that_the_one_before_dropped() {
        let mut heap: Heap<()> = Heap::new(1, 64, 256);
        let mut made = 0;
        let mut lease = |heap: &mut Heap<()>, bytes: u64| {
            heap.take(bytes).unwrap_or_else(|| {
                made += 1;
                heap.add(made, heap.page_for(bytes), ());
                heap.take(bytes).unwrap()
            })
        };
        let kept: Vec<_> = (0..4).map(|_| lease(&mut heap, 13)).collect();
        for _ in 0..20 {
            for id in [13, 13, 45].map(|bytes| lease(&mut heap, bytes)).into_iter().rev() {
                heap.free(id).unwrap();
            }
        }
        assert_eq!(made, 4);
        // What is not used any more goes, once that is known.
        for id in kept {
            heap.free(id).unwrap();
        }
        for _ in 0..4 * WINDOW {
            let id = heap.take(1).unwrap();
            heap.free(id).unwrap();
        }
        assert_eq!(heap.reserved(), 64);
    }

    #[test]
    fn random_leases_never_overlap() {
        let mut heap: Heap<()> = Heap::new(256, 4096, 16384);
        let (mut live, mut seed, mut next): (Vec<BufferId>, u64, u64) = (Vec::new(), 7, 0);
        for _ in 0..4000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 63 == 0 && !live.is_empty() {
                let id = live.swap_remove((seed >> 33) as usize % live.len());
                assert!(heap.free(id).is_some());
            } else {
                let bytes = heap.rounded((seed >> 40) as usize % 9000);
                let id = heap.take(bytes).unwrap_or_else(|| {
                    next += 1;
                    heap.add(next, heap.page_for(bytes), ());
                    heap.take(bytes).unwrap()
                });
                let lease = heap.find(id).unwrap().0;
                for other in &live {
                    let o = heap.find(*other).unwrap().0;
                    let apart = lease.offset + lease.bytes <= o.offset || o.offset + o.bytes <= lease.offset;
                    assert!(o.page != lease.page || apart, "{lease:?} {o:?}");
                }
                live.push(id);
            }
        }
        let held: u64 = live.iter().map(|id| heap.find(*id).unwrap().0.bytes).sum();
        assert_eq!(heap.live(), held);
        for id in live {
            heap.free(id);
        }
        assert_eq!(heap.live(), 0);
        assert!(heap.reserved() <= 2 * heap.high[0].max(heap.high[1]), "{heap:?}");
    }
}
