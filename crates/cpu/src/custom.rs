//! Runs a user's closure on f64 slices; what goes wrong in it becomes the step's error flag.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use wgrad_graph::{CustomSpec, Error, ErrorKind, Node};

/// The outputs of the custom operation of `node`, each with exactly its elements; zeros where the
/// closure fails.
pub(crate) fn run(
    spec: Option<&Arc<CustomSpec>>,
    node: &Node,
    ins: &[&[f64]],
    error: &mut Option<Error>,
) -> Vec<Vec<f64>> {
    let zeros = || -> Vec<Vec<f64>> { node.outs.iter().map(|out| vec![0.0; out.shape.elems()]).collect() };
    let name = spec.map_or("custom", |spec| spec.name.as_str());
    let mut outs = zeros();
    let failure = match spec {
        None => Some("the operation is not registered with its graph".to_owned()),
        // The outputs are thrown away when the closure panics, so no broken state is seen.
        Some(spec) => match catch_unwind(AssertUnwindSafe(|| (spec.cpu)(ins, &mut outs))) {
            Err(_) => Some("its CPU closure panicked".to_owned()),
            Ok(()) => {
                outs.iter().zip(&node.outs).find(|(y, out)| y.len() != out.shape.elems()).map(|(y, out)| {
                    format!("its CPU closure gave {} elements for an output of {}", y.len(), out.shape)
                })
            }
        },
    };
    if let Some(detail) = failure {
        let raised = Error::new(ErrorKind::User, name, detail);
        error.get_or_insert(match node.at {
            Some(at) => raised.at(at),
            None => raised,
        });
        outs = zeros();
    }
    outs
}
