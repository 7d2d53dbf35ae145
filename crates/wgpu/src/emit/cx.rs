//! What a lowering is given, and how the values of its step lie in memory.

use wgrad_graph::{Caps, DType, Graph, Loc, NodeId, Step, Val};

/// What a lowering knows besides the group.
#[derive(Copy, Clone)]
pub(super) struct Cx<'a> {
    pub(super) step: &'a Step,
    pub(super) graph: &'a Graph,
    pub(super) scalars: &'a [NodeId],
    pub(super) caps: &'a Caps,
}

impl Cx<'_> {
    /// Whether what lies at `loc` is halves alone, and each of them a word of its own.
    pub(super) fn native(&self, loc: Loc) -> bool {
        let group = &self.step.group;
        let half = |val: Val| self.graph.out(val).dtype.is_half();
        self.caps.native_half
            && self.step.reads.iter().zip(&group.operands).all(|(at, val)| *at != loc || half(*val))
            && self.step.writes.iter().zip(&group.stores).all(|(at, store)| *at != loc || half(store.val))
    }

    /// Whether elements of a store share words, and so are written by two atomic operations or four at once.
    pub(super) fn shares_words(&self, store: usize) -> bool {
        let value = self.graph.out(self.step.group.stores[store].val);
        packed(value.dtype) && !self.native(self.step.writes[store])
    }

    /// Whether an element of an operand is a word.
    pub(super) fn in_words(&self, operand: u16) -> bool {
        let dtype = self.graph.out(self.step.group.operands[usize::from(operand)]).dtype;
        is_word(dtype) || (dtype.is_half() && self.native(self.step.reads[usize::from(operand)]))
    }
}

/// Where the part of element `at` lies in its word: the word's index, the shift, the mask.
pub(super) fn part(dtype: DType, at: &str) -> (String, String, &'static str) {
    match dtype.bytes() {
        1 => (format!("({at}) >> 2u"), format!("(({at}) & 3u) * 8u"), "255u"),
        _ => (format!("({at}) >> 1u"), format!("(({at}) & 1u) * 16u"), "65535u"),
    }
}

/// A value as the lower bits of a u32.
pub(super) fn bits(dtype: DType, value: &str) -> String {
    if dtype == DType::Bool { format!("select(0u, 1u, {value})") } else { value.to_owned() }
}

/// Whether several elements share a word.
pub(super) fn packed(dtype: DType) -> bool {
    dtype.bytes() < 4
}

/// Whether an element is a word.
pub(super) fn is_word(dtype: DType) -> bool {
    dtype.bytes() == 4
}
