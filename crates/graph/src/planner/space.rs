//! Offsets in the workspace: best fit over free ranges, neighbours rejoined.

use std::collections::{BTreeMap, BTreeSet};

/// Free and used ranges of the workspace. All sizes are multiples of the alignment.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Free ranges: offset to bytes.
    by_offset: BTreeMap<usize, usize>,
    /// The same, by bytes and then offset.
    by_bytes: BTreeSet<(usize, usize)>,
    /// Bytes of workspace so far.
    end: usize,
}

impl Space {
    /// A workspace whose first `start` bytes are taken.
    pub(crate) fn new(start: usize) -> Space {
        Space { end: start, ..Space::default() }
    }

    /// Bytes of workspace needed so far.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    fn remove(&mut self, offset: usize, bytes: usize) {
        self.by_offset.remove(&offset);
        self.by_bytes.remove(&(bytes, offset));
    }

    fn insert(&mut self, offset: usize, bytes: usize) {
        self.by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    /// Takes `bytes` from the smallest free range that holds them, else from the end.
    pub(crate) fn take(&mut self, bytes: usize) -> usize {
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

    /// Gives a range back.
    pub(crate) fn give(&mut self, mut offset: usize, mut bytes: usize) {
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
