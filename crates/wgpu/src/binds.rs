//! Bind groups that are used again: a training loop binds the same ranges every step.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::lists::Lists;

/// Most bind groups kept.
const MOST: usize = 8192;

/// What a bind group depends on: its layout's number, and each binding's buffer number, offset, bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BindKey {
    pub(crate) layout: u32,
    pub(crate) ranges: SmallVec<[(u64, u64, u64); 6]>,
}

/// Bind groups by what they bind. They hold their buffers, and so are evicted when a page is dropped.
#[derive(Debug, Default)]
pub(crate) struct Binds {
    groups: HashMap<BindKey, (wgpu::BindGroup, u64)>,
    clock: u64,
    /// Groups made.
    pub(crate) made: u64,
    /// Groups looked for.
    pub(crate) sought: u64,
    /// Whole plans bound.
    pub(crate) lists: Lists,
}

impl Binds {
    /// The group of `key`, made by `make` if there is none.
    pub(crate) fn group(&mut self, key: BindKey, make: impl FnOnce() -> wgpu::BindGroup) -> wgpu::BindGroup {
        self.clock += 1;
        self.sought += 1;
        if let Some((group, used)) = self.groups.get_mut(&key) {
            *used = self.clock;
            return group.clone();
        }
        if self.groups.len() >= MOST {
            let mut uses: Vec<u64> = self.groups.values().map(|(_, used)| *used).collect();
            let (_, middle, _) = uses.select_nth_unstable(MOST / 2);
            let middle = *middle;
            self.groups.retain(|_, (_, used)| *used > middle);
        }
        let group = make();
        self.made += 1;
        self.groups.insert(key, (group.clone(), self.clock));
        group
    }

    /// Drops the groups that bind one of these buffers.
    pub(crate) fn evict(&mut self, numbers: &[u64]) {
        if !numbers.is_empty() {
            self.lists.evict(numbers);
            self.groups.retain(|key, _| !key.ranges.iter().any(|(number, ..)| numbers.contains(number)));
        }
    }
}
