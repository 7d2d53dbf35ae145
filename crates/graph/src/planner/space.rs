//! Offsets in the workspace for ranges whose lifetimes are known.

use std::collections::{BTreeMap, BTreeSet};

/// A range that is wanted: bytes (a multiple of the alignment), first and last unit of its life.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Span {
    pub(crate) bytes: usize,
    pub(crate) born: u32,
    pub(crate) dies: u32,
}

/// Most spans for which the quadratic method is tried.
const FEW: usize = 3000;

/// An offset for each span from `start` on, and where the last one ends: the best of several methods.
pub(crate) fn assign(spans: &[Span], start: usize) -> (Vec<usize>, usize) {
    let mut best = in_time(spans, start, false);
    let apart = in_time(spans, start, true);
    if apart.1 < best.1 {
        best = apart;
    }
    if spans.len() <= FEW {
        let sized = by_size(spans, start);
        if sized.1 < best.1 {
            best = sized;
        }
    }
    best
}

/// Best fit in the order of time. `apart`: sizes that differ by more than a factor of 64 have regions of
/// their own, so that small ranges do not break large ones.
fn in_time(spans: &[Span], start: usize, apart: bool) -> (Vec<usize>, usize) {
    let largest = spans.iter().map(|s| s.bytes).max().unwrap_or(0);
    let class = |bytes: usize| match largest / bytes.max(1) {
        _ if !apart => 0,
        0..64 => 0,
        64..4096 => 1,
        _ => 2,
    };
    let mut events: Vec<(u32, bool, u32)> = Vec::with_capacity(spans.len() * 2);
    for (i, s) in spans.iter().enumerate() {
        events.push((s.born, false, i as u32));
        events.push((s.dies, true, i as u32));
    }
    events.sort_unstable();
    let mut spaces: [Space; 3] = Default::default();
    let mut offsets = vec![0; spans.len()];
    for (_, dies, i) in events {
        let (i, bytes) = (i as usize, spans[i as usize].bytes);
        let space = &mut spaces[class(bytes)];
        if dies {
            space.give(offsets[i], bytes);
        } else {
            offsets[i] = space.take(bytes);
        }
    }
    let bases = [start, start + spaces[0].end, start + spaces[0].end + spaces[1].end];
    for (offset, s) in offsets.iter_mut().zip(spans) {
        *offset += bases[class(s.bytes)];
    }
    (offsets, bases[2] + spaces[2].end)
}

/// Largest first, each at the lowest offset that is free during its life.
fn by_size(spans: &[Span], start: usize) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(spans[*i].bytes));
    let mut offsets = vec![start; spans.len()];
    // Placed spans by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(spans.len());
    let mut end = start;
    for i in order {
        let span = spans[i];
        let mut at = start;
        for p in &placed {
            let other = spans[*p];
            if other.born <= span.dies && span.born <= other.dies {
                if offsets[*p] >= at + span.bytes {
                    break;
                }
                at = at.max(offsets[*p] + other.bytes);
            }
        }
        offsets[i] = at;
        end = end.max(at + span.bytes);
        let place = placed.partition_point(|p| offsets[*p] <= at);
        placed.insert(place, i);
    }
    (offsets, end)
}

/// Free and used ranges of a region that grows.
#[derive(Debug, Default)]
struct Space {
    /// Free ranges: offset to bytes.
    by_offset: BTreeMap<usize, usize>,
    /// The same, by bytes and then offset.
    by_bytes: BTreeSet<(usize, usize)>,
    /// Bytes so far.
    end: usize,
}

impl Space {
    fn remove(&mut self, offset: usize, bytes: usize) {
        self.by_offset.remove(&offset);
        self.by_bytes.remove(&(bytes, offset));
    }

    fn insert(&mut self, offset: usize, bytes: usize) {
        self.by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    /// Takes `bytes` from the smallest free range that holds them, else from the end.
    fn take(&mut self, bytes: usize) -> usize {
        if let Some((size, offset)) = self.by_bytes.range((bytes, 0)..).next().copied() {
            self.remove(offset, size);
            if size > bytes {
                self.insert(offset + bytes, size - bytes);
            }
            return offset;
        }
        // A free range at the end grows.
        let last = self.by_offset.iter().next_back().map(|(o, b)| (*o, *b));
        if let Some((offset, size)) = last
            && offset + size == self.end
        {
            self.remove(offset, size);
            self.end = offset + bytes;
            return offset;
        }
        self.end += bytes;
        self.end - bytes
    }

    /// Gives a range back; neighbours are rejoined.
    fn give(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((before, size)) = self.by_offset.range(..offset).next_back().map(|(o, b)| (*o, *b))
            && before + size == offset
        {
            self.remove(before, size);
            (offset, bytes) = (before, bytes + size);
        }
        if let Some(size) = self.by_offset.get(&(offset + bytes)).copied() {
            self.remove(offset + bytes, size);
            bytes += size;
        }
        self.insert(offset, bytes);
    }
}
