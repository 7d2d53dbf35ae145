//! Handles, passes and values: each fault of an earlier system has a test that shows that it cannot
//! happen here. `docs/handles.md` lists which.

mod ahead;
mod capture;
mod failures;
mod jobs;
mod parts;
mod passes;
mod reading;
mod recompute;
pub(crate) mod tap;
mod transactions;
mod updates;
mod versions;

/// The tests of all parts.
pub(crate) fn tests() -> Vec<crate::Test> {
    let parts = [
        ahead::tests(),
        parts::tests(),
        passes::tests(),
        reading::tests(),
        versions::tests(),
        updates::tests(),
        transactions::tests(),
        failures::tests(),
        recompute::tests(),
        capture::tests(),
        jobs::tests(),
    ];
    parts.into_iter().flatten().collect()
}
