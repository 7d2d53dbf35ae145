//! Whole plans bound, used again: a training loop binds the same buffers every step, and then looks for none of its
//! bind groups.

use std::sync::Arc;

/// Most lists kept.
const MOST: usize = 32;

/// What a bound run runs: a run of the plan, or a batch of them, by number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Run(u32),
    Batch(u32),
}

/// A run with its bind group, ready to record.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) run: Which,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) uniform: Option<wgpu::BindGroup>,
    /// For parts of a batch, their invocations (the first immediate), and the grid.
    pub(crate) total: Option<(u32, [u32; 3])>,
}

/// A driver buffer's number, an offset there, and bytes.
pub(crate) type Place = (u64, u64, u64);

#[derive(Debug)]
struct List {
    /// The prepared plan.
    serial: u64,
    places: Vec<Place>,
    bound: Arc<[Bound]>,
    used: u64,
}

/// Lists by plan and by what is bound. They hold their buffers, and so are evicted when a page is dropped.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    all: Vec<List>,
    clock: u64,
}

impl Lists {
    /// The list of a plan bound to these places.
    pub(crate) fn find(&mut self, serial: u64, places: &[Place]) -> Option<Arc<[Bound]>> {
        self.clock += 1;
        let list = self.all.iter_mut().find(|l| l.serial == serial && l.places == places)?;
        list.used = self.clock;
        Some(Arc::clone(&list.bound))
    }

    /// Keeps a list in place of the one that was not used for longest.
    pub(crate) fn keep(&mut self, serial: u64, places: Vec<Place>, bound: &Arc<[Bound]>) {
        if self.all.len() >= MOST
            && let Some(oldest) = (0..self.all.len()).min_by_key(|i| self.all[*i].used)
        {
            self.all.swap_remove(oldest);
        }
        self.all.push(List { serial, places, bound: Arc::clone(bound), used: self.clock });
    }

    /// Drops the lists that bind one of these buffers.
    pub(crate) fn evict(&mut self, numbers: &[u64]) {
        self.all.retain(|list| !list.places.iter().any(|(number, ..)| numbers.contains(number)));
    }

    /// Drops the lists of a plan that is gone.
    pub(crate) fn forget(&mut self, serial: u64) {
        self.all.retain(|list| list.serial != serial);
    }
}
