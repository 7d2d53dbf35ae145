//! An order of kernels that stays topological while kernels are merged and edges are added
//! (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2006).

use std::collections::{BTreeSet, HashSet};

/// Most kernels visited before a merge is given up.
const PATIENCE: usize = 1024;

/// Kernels, what runs before what, and a position for each.
#[derive(Debug, Default)]
pub(crate) struct Order {
    position: Vec<u32>,
    before: Vec<BTreeSet<u32>>,
    after: Vec<BTreeSet<u32>>,
}

impl Order {
    /// `n` kernels without edges, in order.
    pub(crate) fn new(n: usize) -> Order {
        Order {
            position: (0..n as u32).collect(),
            before: vec![BTreeSet::new(); n],
            after: vec![BTreeSet::new(); n],
        }
    }

    pub(crate) fn position(&self, kernel: u32) -> u32 {
        self.position[kernel as usize]
    }

    /// Kernels that run directly before `kernel`.
    pub(crate) fn before(&self, kernel: u32) -> &BTreeSet<u32> {
        &self.before[kernel as usize]
    }

    /// Adds an edge that agrees with the positions.
    pub(crate) fn edge(&mut self, from: u32, to: u32) {
        debug_assert!(self.position(from) < self.position(to));
        self.before[to as usize].insert(from);
        self.after[from as usize].insert(to);
    }

    /// What can be reached from `start` with positions strictly between those of `a` and `b`, in order;
    /// `None` where the search is given up. `hit` tells whether `goal` was met on a path.
    fn reach(&self, start: u32, goal: u32, up: bool) -> Option<(Vec<u32>, bool)> {
        let (p, q) = (self.position(start), self.position(goal));
        let range = p.min(q)..p.max(q);
        let next = |k: u32| if up { &self.after[k as usize] } else { &self.before[k as usize] };
        let mut seen: HashSet<u32> = HashSet::new();
        let mut stack: Vec<u32> = vec![start];
        let mut hit = false;
        while let Some(k) = stack.pop() {
            let neighbours = next(k);
            if neighbours.len() > PATIENCE {
                return None;
            }
            for n in neighbours {
                if *n == goal {
                    hit |= k != start;
                } else if range.contains(&self.position(*n)) && seen.insert(*n) {
                    stack.push(*n);
                }
            }
            if seen.len() > PATIENCE {
                return None;
            }
        }
        let mut all: Vec<u32> = seen.into_iter().collect();
        all.sort_unstable_by_key(|k| self.position(*k));
        Some((all, hit))
    }

    /// Whether `kernel` runs after `other` in any case.
    pub(crate) fn follows(&self, kernel: u32, other: u32) -> bool {
        self.before[kernel as usize].contains(&other)
            || self.position(other) < self.position(kernel)
                && self.reach(kernel, other, false).is_some_and(|(_, hit)| hit)
    }

    /// Whether `a` and `b` can become one kernel; if so, they are: `b` is gone, its edges are `a`'s.
    pub(crate) fn merge(&mut self, a: u32, b: u32) -> bool {
        let (first, last) = if self.position(a) < self.position(b) { (a, b) } else { (b, a) };
        let Some((up, cycle)) = self.reach(first, last, true) else { return false };
        if cycle {
            return false;
        }
        let Some((down, _)) = self.reach(last, first, false) else { return false };
        let mut pool: Vec<u32> =
            up.iter().chain(&down).chain([&first, &last]).map(|k| self.position(*k)).collect();
        pool.sort_unstable();
        for (k, p) in down.iter().chain([&a]).chain(&up).zip(pool) {
            self.position[*k as usize] = p;
        }
        for k in std::mem::take(&mut self.before[b as usize]) {
            self.after[k as usize].remove(&b);
            if k != a {
                self.after[k as usize].insert(a);
                self.before[a as usize].insert(k);
            }
        }
        for k in std::mem::take(&mut self.after[b as usize]) {
            self.before[k as usize].remove(&b);
            if k != a {
                self.before[k as usize].insert(a);
                self.after[a as usize].insert(k);
            }
        }
        true
    }

    /// Adds an edge, moving kernels where needed; `false` where that would make a cycle.
    pub(crate) fn require(&mut self, from: u32, to: u32) -> bool {
        if from == to {
            return true;
        }
        if self.position(from) > self.position(to) {
            let Some((up, cycle)) = self.reach(to, from, true) else { return false };
            if cycle || self.after[to as usize].contains(&from) {
                return false;
            }
            let Some((down, _)) = self.reach(from, to, false) else { return false };
            let order: Vec<u32> = down.iter().chain([&from, &to]).chain(&up).copied().collect();
            let mut pool: Vec<u32> = order.iter().map(|k| self.position(*k)).collect();
            pool.sort_unstable();
            for (k, p) in order.into_iter().zip(pool) {
                self.position[k as usize] = p;
            }
        }
        self.edge(from, to);
        true
    }
}
