//! What random programs have met: operations, pairs fused into one kernel, layouts, kinds of groups.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wgrad_graph::{Binary, Graph, Index, Kind, Op, Plan, Unary, Val};

/// Counters by name.
#[derive(Default)]
pub(super) struct Coverage {
    ops: BTreeMap<&'static str, u32>,
    /// Producer and consumer in one kernel, by family.
    pairs: BTreeMap<(&'static str, &'static str), u32>,
    layouts: BTreeMap<&'static str, u32>,
    kinds: BTreeMap<&'static str, u32>,
}

/// The family of an operation: operations of one family fuse alike.
fn family(op: &Op) -> &'static str {
    match op {
        Op::Unary(_) => "unary",
        Op::Binary(_) => "binary",
        Op::Reduce { .. } => "reduce",
        Op::ArgReduce { .. } => "arg_reduce",
        other => other.name(),
    }
}

/// What a kernel reads an operand by.
fn layout(index: &Index) -> &'static str {
    let view = &index.views[0];
    if index.views.len() > 1 {
        "several views"
    } else if !view.dynamic.is_empty() {
        "dynamic offset"
    } else if view.valid.is_some() {
        "padded"
    } else if view.is_linear() {
        "linear"
    } else if view.strides.iter().any(|s| *s < 0) {
        "backwards"
    } else if view.dims.iter().zip(&view.strides).any(|(d, s)| *d > 1 && *s == 0) {
        "repeated"
    } else {
        "strided"
    }
}

/// The value itself, behind nodes that only give it another shape.
fn behind(graph: &Graph, mut val: Val) -> Val {
    while graph.node(val.node).op == Op::Reshape {
        val = graph.node(val.node).inputs[0];
    }
    val
}

const LAYOUTS: [&str; 7] =
    ["linear", "strided", "backwards", "repeated", "padded", "several views", "dynamic offset"];
const KINDS: [&str; 5] = ["pointwise", "reduce", "matmul", "scatter", "whole"];
/// Operations that are no rows and are seen in kernels.
const OTHERS: [&str; 38] = [
    "iota",
    "select",
    "cast",
    "sum",
    "prod",
    "max",
    "min",
    "argmax",
    "argmin",
    "matmul",
    "permute",
    "expand",
    "slice",
    "windows",
    "diagonal",
    "pad",
    "concat",
    "slice_at",
    "slice_assign",
    "slice_assign_at",
    "gather",
    "scatter_add",
    "scatter_prod",
    "scatter_max",
    "scatter_min",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "cummax",
    "cummin",
    "recur",
    "argsort",
    "cholesky",
    "solve_triangular",
    "solve",
    "slogdet",
    "det",
    "scalar",
];
/// What fuses with each other as producer and consumer.
const INTO: [&str; 8] = ["unary", "binary", "select", "cast", "permute", "expand", "slice", "reduce"];
const FROM: [&str; 9] = ["unary", "binary", "select", "cast", "permute", "expand", "slice", "pad", "gather"];

impl Coverage {
    pub(super) fn count(&mut self, plan: &Plan) {
        for step in &plan.steps {
            let group = &step.group;
            let kind = match group.kind {
                Kind::Pointwise => "pointwise",
                Kind::Reduce => "reduce",
                Kind::Row => "row",
                Kind::MatMul { .. } => "matmul",
                Kind::Scatter { .. } => "scatter",
                Kind::Whole(_) => "whole",
                Kind::Attention(..) => "attention",
                Kind::Custom(_) => "custom",
            };
            *self.kinds.entry(kind).or_default() += 1;
            for index in &group.body.indices {
                *self.layouts.entry(layout(index)).or_default() += 1;
            }
            let here: BTreeSet<_> = group.nodes.iter().copied().collect();
            for id in &here {
                let node = plan.graph.node(*id);
                *self.ops.entry(node.op.name()).or_default() += 1;
                for v in
                    node.inputs.iter().map(|v| behind(&plan.graph, *v)).filter(|v| here.contains(&v.node))
                {
                    let pair = (family(&plan.graph.node(v.node).op), family(&node.op));
                    *self.pairs.entry(pair).or_default() += 1;
                }
            }
        }
    }

    /// Fails where something was met less often than `least` times.
    pub(super) fn complete(&self, least: u32) {
        let mut rare = Vec::new();
        let mut need = |what: String, count: Option<&u32>| {
            let count = count.copied().unwrap_or(0);
            if count < least {
                rare.push(format!("{what}: {count}"));
            }
        };
        let rows = Unary::ALL.iter().map(|u| u.row().name).chain(Binary::ALL.iter().map(|b| b.row().name));
        let names = rows.chain(OTHERS);
        names.for_each(|n| need(n.to_owned(), self.ops.get(n)));
        LAYOUTS.iter().for_each(|l| need((*l).to_owned(), self.layouts.get(l)));
        KINDS.iter().for_each(|k| need((*k).to_owned(), self.kinds.get(k)));
        for from in FROM {
            INTO.iter().for_each(|into| need(format!("{from} into {into}"), self.pairs.get(&(from, *into))));
        }
        assert!(rare.is_empty(), "met less than {least} times: {rare:?}");
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n  kinds   {:?}", self.kinds)?;
        writeln!(f, "  layouts {:?}", self.layouts)?;
        writeln!(f, "  ops     {:?}", self.ops)?;
        write!(f, "  pairs  ")?;
        self.pairs.iter().try_for_each(|((from, into), n)| write!(f, " {from}>{into}:{n}"))
    }
}
