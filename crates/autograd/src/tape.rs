//! The tape of a pass: its structure in a few words a node, written while it is recorded. Passes with equal tapes
//! are equal but for numbers, data and lines, so what one of them led to holds for the others: the gradient graph
//! that was recorded, and the plan that a flush ran. Equality decides; the hash, kept up by the way, only finds.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;
use smallvec::SmallVec;
use wgrad_graph::{Op, Out};

use crate::state::{FastMap, PassNode, Source, ValueKey};

/// Most structures of nodes that are told apart before all is forgotten.
const MOST_KINDS: usize = 1 << 16;
/// What a word begins with that is no node.
const ALIAS: u32 = u32::MAX;
const MARK: u32 = u32::MAX - 1;

/// The words of a pass.
#[derive(Default)]
pub(crate) struct Tape {
    words: Vec<u32>,
    hash: u64,
    /// Whether the tape tells all that a flush at the end of the pass depends on.
    pub(crate) whole: bool,
    kinds: Kinds,
}

/// Numbers for operations with their results.
#[derive(Default)]
struct Kinds {
    by_hash: FastMap<u64, SmallVec<[u32; 1]>>,
    all: Vec<(Op, SmallVec<[Out; 1]>)>,
}

impl Kinds {
    fn number(&mut self, op: &Op, outs: &[Out]) -> u32 {
        let mut hasher = FxHasher::default();
        op.hash(&mut hasher);
        for out in outs {
            out.dtype.hash(&mut hasher);
            out.shape.dims().hash(&mut hasher);
        }
        let bucket = self.by_hash.entry(hasher.finish()).or_default();
        let same = |n: &&u32| {
            let (known, known_outs) = &self.all[**n as usize];
            known == op && known_outs.as_slice() == outs
        };
        if let Some(number) = bucket.iter().find(same) {
            return *number;
        }
        let number = self.all.len() as u32;
        bucket.push(number);
        self.all.push((*op, outs.into()));
        number
    }
}

/// A place on a tape: what was written up to there.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    hash: u64,
    len: usize,
}

impl Place {
    /// How many words there are before it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Tape {
    /// Begins anew; whether what was remembered by earlier tapes has become meaningless.
    pub(crate) fn restart(&mut self) -> bool {
        self.words.clear();
        (self.hash, self.whole) = (0, true);
        let full = self.kinds.all.len() > MOST_KINDS;
        if full {
            self.kinds = Kinds::default();
        }
        full
    }

    fn word(&mut self, word: u32) {
        self.hash = (self.hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.words.push(word);
    }

    /// Writes a node.
    pub(crate) fn node(&mut self, node: &PassNode, outs: &[Out]) {
        let kind = self.kinds.number(&node.op, outs);
        let source = match node.source {
            Source::Operation => 0,
            Source::Host(_) => 1,
            Source::Lease(_) => 2,
            Source::Placed(_) => 3,
            Source::Number(_) => 4,
            // What these become is not told here.
            Source::Table(..) | Source::Outer { .. } => {
                self.whole = false;
                5
            }
        };
        self.word(kind);
        let (inputs, after) = (node.inputs.len() as u32, node.after.len() as u32);
        self.word(source | u32::from(node.grad) << 3 | after.min(255) << 4 | inputs << 12);
        if node.custom.is_some() || node.rule.is_some() {
            let structural = node.rule.as_ref().is_some_and(|rule| rule.structural);
            self.word(MARK - u32::from(structural));
        }
        node.inputs.iter().for_each(|key| self.word(key.0));
        node.after.iter().for_each(|node| self.word(*node));
    }

    /// Writes that a value got another key.
    pub(crate) fn alias(&mut self, of: ValueKey) {
        self.word(ALIAS);
        self.word(of.0);
    }

    /// Writes a number that later recording depends on.
    pub(crate) fn mark(&mut self, what: u32) {
        self.word(MARK);
        self.word(what);
    }

    /// Where the tape is now.
    pub(crate) fn place(&self) -> Place {
        Place { hash: self.hash, len: self.words.len() }
    }

    /// The words up to now.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Writes what another tape had behind a place equal to this tape's, up to `end`.
    pub(crate) fn append(&mut self, words: &[u32], end: Place) {
        self.words.extend_from_slice(words);
        debug_assert_eq!(self.words.len(), end.len);
        self.hash = end.hash;
    }
}
