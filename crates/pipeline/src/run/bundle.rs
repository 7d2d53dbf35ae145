//! What a message carries: all outputs of a stage that another one takes, or their gradients.

use wgrad_graph::{DType, Out};

use super::batch::with_rows;
use super::stages::{Contract, Source, Stages};
use super::worker::{Job, Worker};
use crate::schedule::{Message, Payload};

impl Source {
    /// The stage and which of its outputs.
    pub(super) fn output(self) -> Option<(usize, usize)> {
        match self {
            Source::Stage(stage) => Some((stage, 0)),
            Source::Output(stage, output) => Some((stage, output)),
            Source::Batch(_) => None,
        }
    }
}

impl Stages {
    /// What goes from `from` to `to`: the inputs of `to` that are outputs of `from`, each with the output, in the order of
    /// the inputs.
    pub(super) fn bundle(&self, from: usize, to: usize) -> Vec<(usize, usize)> {
        let taken = |(i, (source, _)): (usize, &(Source, Contract))| match source.output() {
            Some((stage, output)) if stage == from => Some((i, output)),
            _ => None,
        };
        self.stages[to].takes.iter().enumerate().filter_map(taken).collect()
    }

    /// Those of [`Stages::bundle`] whose gradient comes back from `to` to `from`.
    pub(super) fn bundle_back(&self, from: usize, to: usize) -> Vec<(usize, usize)> {
        let (takes, gives) = (&self.stages[to].takes, &self.stages[from].gives);
        let mut bundle = self.bundle(from, to);
        bundle.retain(|(i, output)| takes[*i].1.gradient && gives[*output].gradient);
        bundle
    }

    /// The stages that take an output, ascending.
    pub(super) fn takers(&self, from: usize, output: usize) -> Vec<usize> {
        let takes = |to: &usize| {
            self.stages[*to].takes.iter().any(|(source, _)| source.output() == Some((from, output)))
        };
        (from + 1..self.len()).filter(takes).collect()
    }
}

impl Job<'_> {
    /// Shapes and dtypes of what a message between devices carries by the contracts, of which micro-batches may depart that
    /// differ in more than their rows.
    pub(super) fn outs_of(&self, message: Message) -> Vec<Out> {
        let Message { payload, from, to, micro_batch } = message;
        let rows = self.parts[micro_batch].rows();
        let out = |contract: Contract| {
            let narrow = self.stages.handover.filter(|_| contract.dtype == DType::F32);
            Out { shape: with_rows(rows, contract.shape), dtype: narrow.unwrap_or(contract.dtype) }
        };
        match payload {
            Payload::Activation => {
                let gives = &self.stages.stages[from].gives;
                self.stages.bundle(from, to).into_iter().map(|(_, output)| out(gives[output])).collect()
            }
            Payload::Gradient => {
                let gives = &self.stages.stages[to].gives;
                self.stages.bundle_back(to, from).into_iter().map(|(_, output)| out(gives[output])).collect()
            }
        }
    }
}

impl Worker<'_> {
    /// The stages that take what `s` gives, ascending; those that send a gradient back if `gradient`.
    pub(super) fn consumers(&self, s: usize, gradient: bool) -> Vec<usize> {
        let edges = self.job.stages.edges().iter();
        edges.filter(|e| e.from == s && (e.gradient || !gradient)).map(|e| e.to).collect()
    }

    /// The stages to which `s` sends gradients, each with the inputs and their outputs that these are of.
    pub(super) fn givers(&self, s: usize) -> Vec<(usize, Vec<(usize, usize)>)> {
        let stages = self.job.stages;
        let edges = stages.edges().iter().filter(|e| e.to == s && e.gradient);
        edges.map(|e| (e.from, stages.bundle_back(e.from, s))).collect()
    }
}
