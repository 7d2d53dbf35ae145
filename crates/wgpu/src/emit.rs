//! Step -> launches: WGSL text, bindings, parameters, grid. Pure data: nothing here knows wgpu.
//!
//! A group's expressions are printed as straight-line code into the regions of a file of `wgsl/`. The
//! text depends on structure alone (kinds, dtypes, ranks, access classes, chosen variant); sizes,
//! strides and offsets are parameter words. So equal layers share kernels.

mod argsort;
mod attention;
mod batch;
mod body;
mod cx;
mod index;
mod kernel;
mod long;
mod matmul;
mod matrix;
mod pointwise;
mod radix;
mod reduce;
mod row;
mod scan;
mod scatter;
mod states;
mod template;
#[cfg(test)]
mod tests;
mod whole;

use wgrad_graph::{Body, Caps, CustomId, Expr, Graph, Kind, NodeId, Result, Step, bail};

use crate::choose::Product;
use crate::launch::{Binding, Bound, Launch, Lowered, On, Params};
pub(crate) use batch::batch;
use kernel::Cx;
#[cfg(test)]
pub(crate) use {
    matmul::DOUBTFUL,
    tests::{emulated, with_units},
};

/// The dispatches that run `step`. `scalars` are the plan's. A step without points gives none; a
/// reduction over nothing writes its neutral element.
///
/// # Errors
/// `Limit` when a kernel needs more than the device has, `DType` for f64, `Argument` for a scalar or a
/// custom operation that plan and graph do not hold.
pub(crate) fn lower(step: &Step, graph: &Graph, scalars: &[NodeId], caps: &Caps) -> Result<Lowered> {
    let cx = Cx { step, graph, scalars, caps };
    let lowered = match &step.group.kind {
        Kind::Pointwise => pointwise::lower(cx, None),
        Kind::Reduce => reduce::lower(cx),
        Kind::Row => row::lower(cx),
        Kind::MatMul { .. } => matmul::lower(cx),
        Kind::Scatter { .. } => scatter::lower(cx),
        Kind::Whole(op) => whole::lower(cx, *op),
        Kind::Attention(op, ins) => attention::lower(cx, *op, ins),
        Kind::Custom(id) => custom(cx, *id),
    };
    // The line of the user that made the last node tells most about a kernel that does not fit.
    lowered.map_err(|e| {
        let at = step.group.nodes.last().and_then(|n| graph.node(*n).at);
        at.into_iter().fold(e, wgrad_graph::Error::at)
    })
}

/// The dispatches of two neighbouring steps that share what they read; `None`: each has its own.
///
/// # Errors
/// As [`lower`].
pub(crate) fn pair(
    steps: [&Step; 2],
    graph: &Graph,
    scalars: &[NodeId],
    caps: &Caps,
) -> Result<Option<[Lowered; 2]>> {
    row::pair(steps, graph, scalars, caps)
}

/// The dispatches that run a product by this kernel.
///
/// # Errors
/// As [`lower`]; `Argument` for another kind of step.
pub(crate) fn multiply(step: &Step, graph: &Graph, caps: &Caps, product: Product) -> Result<Lowered> {
    matmul::lower_by(Cx { step, graph, scalars: &[], caps }, Some(product))
}

/// The text of the test of words of 16 bits.
pub(crate) fn native_test() -> String {
    template::fill(wgrad_wgsl::NATIVE_HALF, &[("functions", wgrad_wgsl::HALF)])
}

/// The text of the test of the driver's conversions of halves.
pub(crate) fn packed_test() -> String {
    template::fill(wgrad_wgsl::PACKED_HALF, &[("functions", wgrad_wgsl::HALF)])
}

/// The text of the test of the driver's arithmetic of halves.
pub(crate) fn arithmetic_test() -> String {
    template::fill(wgrad_wgsl::HALF_ARITHMETIC, &[("functions", wgrad_wgsl::HALF)])
}

/// A user's kernel: the text as it is, operands then outputs. Its access modes are its own: operands
/// `read`, outputs `read_write`.
fn custom(cx: Cx<'_>, id: CustomId) -> Result<Lowered> {
    let group = &cx.step.group;
    let Some(spec) = cx.graph.custom(id) else {
        bail!(Argument, "custom", "operation {:x} is not registered with its graph", id.0);
    };
    if spec.wgsl.contains(crate::launch::OURS) {
        bail!(Kernel, spec.name.as_str(), "`{}` is no access mode of WGSL", crate::launch::OURS);
    }
    let operands = group.operands.iter().zip(&cx.step.reads).map(|(v, l)| (*v, *l, false));
    let outputs = group.stores.iter().zip(&cx.step.writes).map(|(s, l)| (s.val, *l, true));
    let bindings: Vec<Binding> = operands
        .chain(outputs)
        .map(|(val, loc, written)| {
            let bytes = kernel::bound_bytes(cx.graph.out(val));
            Binding { what: Bound::Loc(loc), written, bytes }
        })
        .collect();
    if bindings.len() > cx.caps.max_buffers {
        bail!(
            Limit,
            spec.name.as_str(),
            "needs {} storage buffers, {} has {}",
            bindings.len(),
            cx.caps.name,
            cx.caps.max_buffers
        );
    }
    let outs: Vec<_> = group.stores.iter().map(|s| cx.graph.out(s.val)).collect();
    let grid = (spec.dispatch)(&outs, cx.caps);
    if let Some(over) = grid.iter().find(|g| **g > cx.caps.max_workgroups) {
        bail!(
            Limit,
            spec.name.as_str(),
            "asks for {over} workgroups on one axis, {} has {}",
            cx.caps.name,
            cx.caps.max_workgroups
        );
    }
    let cost_bytes: u64 = bindings.iter().map(|b| b.bytes as u64).sum();
    let launch = Launch {
        source: spec.wgsl.clone(),
        bindings,
        words: Vec::new(),
        params: Params::None,
        parts: Vec::new(),
        of_halves: None,
        grid,
        cost_bytes,
        cost_flops: cost_bytes,
        on: On::Lanes,
    };
    Ok(Lowered { launches: vec![launch], scratch_bytes: 0 })
}

/// The number of points of a space, as far as u32 indices reach.
///
/// # Errors
/// `Limit` beyond.
fn points(op: &str, dims: &[usize]) -> Result<usize> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let points = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64));
    match points {
        // One bit is left for the arithmetic of grids.
        Some(n) if n <= u64::from(u32::MAX / 2) => Ok(n as usize),
        _ => bail!(Limit, op, "{dims:?} has more points than a kernel can count (2^31)"),
    }
}

/// A 1-D grid folded into two axes.
///
/// # Errors
/// `Limit` when it is larger than the square of the device's limit.
pub(crate) fn fold(groups: u64, caps: &Caps) -> Result<[u32; 3]> {
    let most = u64::from(caps.max_workgroups);
    if groups <= most {
        return Ok([groups as u32, 1, 1]);
    }
    let y = groups.div_ceil(most);
    if y > most {
        bail!(Limit, "dispatch", "{groups} workgroups are more than {} takes", caps.name);
    }
    // Rows of equal width leave the fewest workgroups without work.
    Ok([groups.div_ceil(y) as u32, y as u32, 1])
}

/// Floating operations of one point, roughly: expressions that compute.
fn arithmetic(body: &Body, needed: &[bool]) -> u64 {
    let computes = |e: &Expr| {
        matches!(
            e,
            Expr::Unary { .. }
                | Expr::Binary { .. }
                | Expr::Select { .. }
                | Expr::Cast { .. }
                | Expr::Random { .. }
        )
    };
    body.exprs.iter().zip(needed).filter(|((e, _), n)| **n && computes(e)).count() as u64
}
