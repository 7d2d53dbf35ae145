//! What passes of one structure led to before: recorded gradient graphs and flushes, found by the pass's tape.

use smallvec::SmallVec;
use wgrad_graph::{LeafKind, Op, Out, Result};

use crate::flush::GoalHome;
use crate::pass::OpenPass;
use crate::plans::Ready;
use crate::state::{At, FastMap, Number, OwnedKey, PassNode, Pool, Source, State, ValueKey};
use crate::tape::Place;
use crate::{pass, record};

/// Most flushes and most gradient graphs that are remembered; then all are forgotten.
const MOST: usize = 32;

/// What is remembered beside a tape.
#[derive(Default)]
pub(crate) struct Memos {
    flushes: FastMap<Place, Vec<Flushed>>,
    gradients: FastMap<Place, Vec<Gradients>>,
}

/// A leaf of a flush: the pool's node and output, what kind of leaf it was, the root that may take its buffer.
pub(crate) type FlushedLeaf = (u32, u32, LeafKind, Option<u32>);

/// A final flush.
pub(crate) struct Flushed {
    words: Box<[u32]>,
    goals: Box<[ValueKey]>,
    within_bytes: Option<usize>,
    pub(crate) leaves: Box<[FlushedLeaf]>,
    /// The pool's node of each number.
    pub(crate) numbers: Box<[u32]>,
    /// For each root, the goal that it is first.
    pub(crate) roots: Box<[u32]>,
    /// Where each goal ends.
    pub(crate) homes: Box<[GoalHome]>,
    pub(crate) ready: Ready,
}

/// What a final flush was asked for.
#[derive(Copy, Clone)]
pub(crate) struct Asked<'a> {
    pub(crate) goals: &'a [ValueKey],
    pub(crate) within_bytes: Option<usize>,
}

/// A node of a gradient graph, and the node that it is the gradient of.
struct Recorded {
    op: Op,
    inputs: SmallVec<[ValueKey; 4]>,
    outs: SmallVec<[Out; 1]>,
    after: SmallVec<[u32; 1]>,
    literal: Option<f64>,
    grad: bool,
    blamed: u32,
}

/// A gradient graph.
struct Gradients {
    before: Box<[u32]>,
    asked: Box<[u32]>,
    nodes: Vec<Recorded>,
    words: Box<[u32]>,
    end: Place,
    /// What is differentiated by, with its gradient.
    found: Vec<Repeated>,
}

/// By what a gradient graph is asked for, beside the tape.
pub(crate) struct Question {
    place: Place,
    asked: Vec<u32>,
    /// Nodes and values before.
    nodes: usize,
    values: usize,
}

impl Memos {
    pub(crate) fn clear(&mut self) {
        self.flushes.clear();
        self.gradients.clear();
    }
}

impl Pool {
    /// The flush of an equal pass that was asked for the same and for which `fits` holds.
    pub(crate) fn flushed(&self, asked: Asked<'_>, fits: impl Fn(&Flushed) -> bool) -> Option<&Flushed> {
        let same = |f: &&Flushed| {
            *f.goals == *asked.goals
                && f.within_bytes == asked.within_bytes
                && *f.words == *self.tape.words()
                && fits(f)
        };
        self.memos.flushes.get(&self.tape.place())?.iter().find(same)
    }

    /// Remembers a flush.
    pub(crate) fn remember(&mut self, asked: Asked<'_>, make: impl FnOnce(&Pool) -> Option<RememberedParts>) {
        if !self.tape.whole {
            return;
        }
        let Some(parts) = make(self) else { return };
        if self.memos.flushes.len() >= MOST {
            self.memos.flushes.clear();
        }
        let flushed = Flushed {
            words: self.tape.words().into(),
            goals: asked.goals.into(),
            within_bytes: asked.within_bytes,
            leaves: parts.leaves.into(),
            numbers: parts.numbers.into(),
            roots: parts.roots.into(),
            homes: parts.homes.into(),
            ready: parts.ready,
        };
        let all = self.memos.flushes.entry(self.tape.place()).or_default();
        // Variants differ in what could be updated in place; few are of use.
        if all.len() >= 4 {
            all.remove(0);
        }
        all.push(flushed);
    }

    /// What the gradient graph of `outputs` by `wanted` depends on.
    pub(crate) fn question(
        &self,
        outputs: &[ValueKey],
        cotangents: &[ValueKey],
        wanted: Option<&[ValueKey]>,
        grad: bool,
    ) -> Question {
        let mut asked =
            vec![u32::from(grad), outputs.len() as u32, wanted.map_or(u32::MAX, |w| w.len() as u32)];
        asked.extend(outputs.iter().chain(cotangents).chain(wanted.unwrap_or_default()).map(|k| k.0));
        Question { place: self.tape.place(), asked, nodes: self.nodes.len(), values: self.values.len() }
    }

    /// Remembers the gradient graph that was recorded since `question`, unless something in it is the user's own or
    /// comes from outside.
    pub(crate) fn remember_gradients(&mut self, question: Question, found: &[(ValueKey, Option<ValueKey>)]) {
        let new = &self.nodes[question.nodes..];
        let outs: usize = new.iter().map(|n| n.outs.len()).sum();
        if self.values.len() != question.values + outs {
            return;
        }
        let mut nodes = Vec::with_capacity(new.len());
        for node in new {
            let literal = match &node.source {
                Source::Operation => None,
                Source::Number(Number::Literal(x)) => Some(*x),
                _ => return,
            };
            if node.custom.is_some() || node.rule.is_some() || node.checkpoint != 0 {
                return;
            }
            nodes.push(Recorded {
                op: node.op,
                inputs: node.inputs.clone(),
                outs: node.outs.iter().map(|o| o.out).collect(),
                after: node.after.clone(),
                literal,
                grad: node.grad,
                blamed: node.blamed,
            });
        }
        let words = self.tape.words();
        let gradients = Gradients {
            before: words[..question.place.len()].into(),
            asked: question.asked.into(),
            nodes,
            words: words[question.place.len()..].into(),
            end: self.tape.place(),
            found: found.to_vec(),
        };
        if self.memos.gradients.len() >= MOST {
            self.memos.gradients.clear();
        }
        self.memos.gradients.entry(question.place).or_default().push(gradients);
    }

    /// Records the gradient graph of an equal pass again, if there is one: what is differentiated by, with its
    /// gradient.
    fn repeat(
        &mut self,
        question: &Question,
        most: usize,
        alive: impl Fn(OwnedKey) -> bool,
        caller: At,
    ) -> Option<Vec<Repeated>> {
        let memos = std::mem::take(&mut self.memos);
        let same = |g: &&Gradients| {
            *g.asked == *question.asked && *g.before == *self.tape.words() && g.nodes.len() < most
        };
        let known = memos.gradients.get(&question.place).and_then(|all| all.iter().find(same));
        let distinct = |found: &[(ValueKey, Option<ValueKey>)]| {
            let mut owned: Vec<OwnedKey> =
                found.iter().filter_map(|(key, _)| Some(self.values[*key].version?.0)).collect();
            let count = owned.len();
            owned.sort_unstable();
            owned.dedup();
            owned.len() == count && owned.iter().all(|key| alive(*key))
        };
        // That no parameter is met in two versions is no matter of structure.
        let known = known.filter(|g| question.asked[2] != u32::MAX || distinct(&g.found));
        let found = known.map(|g| {
            let phase = wgrad_profile::phase();
            self.nodes.reserve(g.nodes.len());
            for node in &g.nodes {
                let at = self.nodes.get(node.blamed as usize).map_or(caller, |n| n.at);
                let source = node.literal.map_or(Source::Operation, |x| Source::Number(Number::Literal(x)));
                let recorded = PassNode {
                    after: node.after.clone(),
                    phase,
                    blamed: node.blamed,
                    ..record::node(node.op, node.inputs.clone(), source, node.grad, at)
                };
                self.push_silently(recorded, &node.outs);
            }
            self.tape.append(&g.words, g.end);
            g.found.clone()
        });
        self.memos = memos;
        found
    }
}

/// A value and its gradient, if it has one.
pub(crate) type Repeated = (ValueKey, Option<ValueKey>);

impl State {
    /// Records the gradient graph that an equal pass recorded, if one did.
    pub(crate) fn repeat_gradients(
        &mut self,
        pass: OpenPass,
        question: &Question,
        at: At,
    ) -> Result<Option<Vec<Repeated>>> {
        record::current(self, pass)?;
        let mut pool = self.pools[pass.pool as usize].pool.take().expect("it was just found");
        let most = self.config.node_budget.saturating_sub(pool.nodes.len() - pool.flushed);
        let found = pool.repeat(question, most, |owned| self.owned.contains_key(owned), at);
        self.pools[pass.pool as usize].pool = Some(pool);
        self.gradients_repeated += u64::from(found.is_some());
        Ok(found)
    }
}

/// Whether gradients flow through what is recorded now, as a question has it.
pub(crate) fn flows(pass: OpenPass) -> bool {
    !pass::is_no_grad(pass)
}

/// What there is to remember of a flush.
pub(crate) struct RememberedParts {
    pub(crate) leaves: Vec<FlushedLeaf>,
    pub(crate) numbers: Vec<u32>,
    pub(crate) roots: Vec<u32>,
    pub(crate) homes: Vec<GoalHome>,
    pub(crate) ready: Ready,
}
