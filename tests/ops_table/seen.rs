//! What a case shows of the methods that it calls: recorded, planned and run on the CPU executor.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};

use wgrad::{DType, Pass, Result, Tensor, grad};
use wgrad_graph::{AccKind, Graph, Group, Kind, Matrix, NodeId, Op, Plan};

use crate::devices::cpu;
use crate::table::{Case, host, weights};

/// The kernels of a group, by their files in `wgsl/`.
pub(super) fn kernels(group: &Group) -> &'static str {
    match &group.kind {
        Kind::Pointwise => "pointwise",
        Kind::Reduce if group.accs.iter().any(|a| matches!(a.kind, AccKind::Arg { .. })) => "reduce (arg)",
        Kind::Reduce => "reduce",
        Kind::Row => "row",
        Kind::MatMul { .. } => "matmul_tile, matmul_direct",
        Kind::Scatter { .. } => "scatter, scatter_bounds, scatter_rows, scatter_windows",
        Kind::Whole(Op::Scan { .. }) => "scan_tile, scan_line",
        Kind::Whole(Op::ArgSort { .. }) => {
            "argsort_rank, argsort_merge, radix_count, radix_scan, radix_move, radix_count_line, radix_scan_line, radix_move_line"
        }
        Kind::Whole(Op::Matrix(kind)) => match kind {
            Matrix::Cholesky => "matrix_cholesky",
            Matrix::Triangular { .. } => "matrix_triangular",
            Matrix::Solve | Matrix::Slogdet | Matrix::Det => "matrix_lu",
        },
        Kind::Whole(other) => panic!("{} has no kernel of its own", other.name()),
        Kind::Attention(..) => "attention_tile",
        Kind::Custom(_) => "the user's",
    }
}

/// What is known of a method.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The operations that it records.
    pub(super) ops: BTreeSet<&'static str>,
    /// Whether all of them only move elements.
    pub(super) moves: bool,
    pub(super) kernels: BTreeSet<&'static str>,
}

/// A case that has run.
pub(super) struct Seen {
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) dims: Vec<usize>,
    pub(super) dtype: DType,
}

/// The case's operands, the first kind that it has (floats, else integers, else truth values) as `dtype`.
fn operands(p: &Pass, case: &Case, dtype: Option<DType>) -> Result<Vec<Tensor>> {
    let kinds: Vec<DType> = case.operands.iter().map(|o| o.dtype(DType::F32)).collect();
    let main = kinds.iter().copied().max_by_key(|d| (d.is_float(), d.is_int()));
    let mut all = Vec::new();
    for (i, operand) in case.operands.iter().enumerate() {
        let own = if Some(kinds[i]) == main { dtype.unwrap_or(kinds[i]) } else { kinds[i] };
        all.push(p.input(host(&operand.dims, &operand.elems(i), own))?);
    }
    Ok(all)
}

thread_local! {
    /// Whether panics of this thread are expected.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The case with its main operands as `dtype`; `None` where that is a mistake.
pub(super) fn run(case: &Case, dtype: Option<DType>) -> Option<Seen> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                told(info);
            }
        }));
    });
    let ctx = cpu();
    let record = |p: &Pass| {
        let y = (case.f)(p, &operands(p, case, dtype)?);
        y.read()?;
        Ok((y.shape().dims().to_vec(), y.dtype()))
    };
    QUIET.set(true);
    let done = catch_unwind(AssertUnwindSafe(|| ctx.pass(record)));
    QUIET.set(false);
    let (dims, dtype) = done.ok()?.ok()?;
    Some(Seen { plan: ctx.last_plan(), dims, dtype })
}

/// Whether a gradient flows in a case whose gradient is not compared: `None` where there is none.
pub(super) fn flows(case: &Case) -> Option<bool> {
    let record = |p: &Pass| {
        let x = operands(p, case, None)?;
        let y = (case.f)(p, &x);
        let floats: Vec<Tensor> = x.into_iter().filter(|x| x.dtype().is_float()).collect();
        if floats.is_empty() || !y.dtype().is_float() {
            return Ok(None);
        }
        let mut any = false;
        for g in grad((y * weights(p, y)?).sum_all(), &floats)? {
            any |= g.to_vec::<f64>()?.iter().any(|g| *g != 0.0);
        }
        Ok(Some(any))
    };
    cpu().pass(record).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

/// The sources that nodes name, read once.
#[derive(Default)]
pub(super) struct Sources(HashMap<&'static str, String>);

impl Sources {
    /// The method whose call stands at this place; `None` for an operator.
    fn method(&mut self, at: &'static Location<'static>) -> Option<String> {
        let read = || {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(at.file());
            std::fs::read_to_string(path).expect("the source of a node")
        };
        let text = self.0.entry(at.file()).or_insert_with(read);
        let line = text.lines().nth(at.line() as usize - 1)?;
        let call = line.get(at.column() as usize - 1..)?;
        let call = call.strip_prefix("Tensor::").unwrap_or(call);
        let name: String = call.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        call[name.len()..].starts_with('(').then_some(name)
    }

    fn named(&mut self, graph: &Graph, id: NodeId) -> Option<String> {
        graph.node(id).at.and_then(|at| self.method(at))
    }

    /// What the plans of its cases tell of the method `stem`.
    pub(super) fn facts(&mut self, stem: &str, plans: &[Arc<Plan>]) -> Facts {
        let real = |plan: &Plan, id: NodeId| !matches!(plan.graph.node(id).op, Op::Input | Op::Scalar);
        let mut all = Vec::new();
        for plan in plans {
            let ids = (0..plan.graph.nodes().len() as NodeId).filter(|id| real(plan, *id));
            all.push(ids.collect::<Vec<_>>());
        }
        let mut own = all.clone();
        for (plan, ids) in plans.iter().zip(&mut own) {
            ids.retain(|id| self.named(&plan.graph, *id).as_deref() == Some(stem));
        }
        if own.iter().all(Vec::is_empty) {
            // An operator, or a row by its number.
            own = all;
        }
        let mut facts = Facts { moves: true, ..Facts::default() };
        for (plan, ids) in plans.iter().zip(&own) {
            for op in ids.iter().map(|id| plan.graph.node(*id).op) {
                facts.ops.insert(op.name());
                facts.moves &= op.is_movement();
            }
            let groups = plan.steps.iter().map(|s| &s.group);
            let touched = groups.filter(|g| g.nodes.iter().any(|n| ids.contains(n)));
            facts.kernels.extend(touched.map(|g| kernels(g)));
        }
        facts
    }
}

/// The places within the library that nodes name, instead of the user's.
pub(super) fn strays(plan: &Plan) -> impl Iterator<Item = String> {
    let at = |id: NodeId| plan.graph.node(id).at;
    // A method that is passed as a function has no caller: its place is that of its macro.
    let inside = |at: &&'static Location<'static>| at.file().contains("crates/") && at.column() > 1;
    (0..plan.graph.nodes().len() as NodeId).filter_map(at).filter(inside).map(ToString::to_string)
}
