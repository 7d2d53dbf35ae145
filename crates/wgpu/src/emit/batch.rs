//! Steps of one batch as one dispatch: the update of all parameters in a launch or two, however many
//! parameters there are.

use wgrad_graph::{Caps, Expr, Graph, Index, Kind, NodeId, Result, Step};

use super::kernel::{Cx, Kernel, is_word};
use super::{fold, points, pointwise};
use crate::choose;
use crate::launch::{Launch, Params, Part, Word};

/// Rows in a table of parts at most: the smallest uniform buffer of Vulkan, 16 KiB, holds them.
const MOST_PARTS: usize = 128;

/// Bindings of which a launch notes the unit.
const MOST_BINDINGS: usize = 16;

/// One launch for `steps`, whose own launches are `singles`; `None` where they have to run one by one:
/// they differ in more than their length, or look at more than their own element.
///
/// # Errors
/// As [`super::lower`].
pub(crate) fn batch(
    steps: &[&Step],
    singles: &[&Launch],
    graph: &Graph,
    scalars: &[NodeId],
    caps: &Caps,
) -> Result<Option<Launch>> {
    let (step, single) = (steps[0], singles[0]);
    let fixed = |launch: &Launch| -> Vec<Word> {
        launch.words.iter().filter(|w| !matches!(w, Word::Scalar(..))).copied().collect()
    };
    let dynamic = |launch: &Launch| -> Vec<Word> {
        launch.words.iter().filter(|w| matches!(w, Word::Scalar(..))).copied().collect()
    };
    let alike = |(other, launch): (&&Step, &&Launch)| {
        local(other, graph)
            && launch.source == single.source
            && launch.params == Params::Immediate
            && matches!(fixed(launch)[..], [Word::Fixed(_)])
            && dynamic(launch) == dynamic(single)
            && launch.bindings.len() == single.bindings.len()
            && launch.bindings.len() <= MOST_BINDINGS
    };
    if steps.len() < 2 || steps.len() > MOST_PARTS || !steps.iter().zip(singles).all(alike) {
        return Ok(None);
    }
    let mut parts = Vec::with_capacity(steps.len());
    for launch in singles {
        let [Word::Fixed(work)] = fixed(launch)[..] else { return Ok(None) };
        parts.push(Part { work, bindings: launch.bindings.clone() });
    }
    let total: u64 = parts.iter().map(|p| u64::from(p.work)).sum();
    if total > u64::from(u32::MAX / 2) {
        return Ok(None);
    }
    let cx = Cx { step, graph, scalars, caps };
    let count = points("pointwise", step.group.outer())?;
    let mut launch = pointwise::launch(Kernel::of_parts(cx, parts.len()), None, count, Some(total as usize))?;
    launch.grid = fold(total.div_ceil(u64::from(choose::pointwise_workgroup(caps))), caps)?;
    launch.cost_bytes = singles.iter().map(|l| l.cost_bytes).sum();
    launch.cost_flops = singles.iter().map(|l| l.cost_flops).sum();
    launch.parts = parts;
    Ok(Some(launch))
}

/// Whether every invocation of a step looks at its own elements alone, or at one element for all.
fn local(step: &Step, graph: &Graph) -> bool {
    let group = &*step.group;
    let one = |index: &Index| {
        let [view] = &index.views[..] else { return false };
        let still = view.strides.iter().zip(&view.dims).all(|(s, d)| *s == 0 || *d == 1);
        still && view.offset == 0 && view.valid.is_none() && view.dynamic.is_empty()
    };
    let own = |index: u16| {
        let index = &group.body.indices[usize::from(index)];
        index.is_linear() || one(index)
    };
    let loads = group.body.exprs.iter().all(|(expr, _)| match expr {
        Expr::Load { index, .. } => own(*index),
        Expr::Gather { .. } | Expr::Coord { .. } | Expr::Random { .. } | Expr::Valid { .. } => false,
        _ => true,
    });
    // Bytes are read out of words, which the table counts; written, they would be those of several invocations.
    let dtype = |val: &wgrad_graph::Val| graph.out(*val).dtype;
    group.kind == Kind::Pointwise
        && loads
        && group.operands.iter().all(|v| is_word(dtype(v)) || dtype(v).bytes() == 1)
        && group
            .stores
            .iter()
            .all(|s| is_word(dtype(&s.val)) && group.body.indices[usize::from(s.index)].is_linear())
}
