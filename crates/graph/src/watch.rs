//! The seam of profiles: stages of the host's work, phases of a step, and who is told of them.

use std::sync::Arc;

use crate::Plan;

/// A part of the host's work in a step.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Operations are recorded by the program's own code.
    Record,
    /// Gradients are recorded by rules.
    Differentiate,
    /// Nodes become groups.
    Fuse,
    /// The graph is cut out of the pass and its plan looked up, or groups are ordered and placed.
    Plan,
    /// Kernels are written and compiled.
    Compile,
    /// Buffers are made.
    Allocate,
    /// Host bytes are copied to where the device takes them from.
    Upload,
    /// Dispatches are bound and recorded.
    Encode,
    /// Commands are handed to the device.
    Submit,
    /// The CPU executor runs kernels on the calling thread.
    Compute,
    /// The host waits for the device.
    Wait,
    /// Bytes come back, and the host waits for them.
    Download,
    /// Versions are committed and the pass's values freed.
    Commit,
}

/// A part of a training step.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The model and its loss; everything that is of no other phase.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// New versions of the parameters.
    Update,
}

/// Something that ran on a device, in the host's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The plan's steps that it ran; none for the copy of what the host gave.
    pub steps: Arc<[u32]>,
    /// When it began, ns of [`Watch::now_ns`].
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Who is told where time goes. Implementations have the clock; nothing below them looks at one.
pub trait Watch: Send + Sync {
    /// Begins a stage on this thread. Stages nest; the time of one is without that of those inside.
    fn enter(&self, stage: Stage);
    /// Ends the stage that this thread entered last.
    fn leave(&self);
    /// The host's clock.
    fn now_ns(&self) -> u64;
    /// What a submission of `plan` ran, in order; may be called by any thread, and with locks held.
    fn ran(&self, plan: &Arc<Plan>, runs: &[Ran]);
}

/// A stage that lasts until this is dropped.
#[must_use = "the stage ends when this is dropped"]
pub struct InStage<'a>(Option<&'a dyn Watch>);

impl<'a> InStage<'a> {
    /// Enters `stage` if somebody watches.
    pub fn enter(watch: Option<&'a dyn Watch>, stage: Stage) -> InStage<'a> {
        if let Some(watch) = watch {
            watch.enter(stage);
        }
        InStage(watch)
    }
}

impl Drop for InStage<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.0 {
            watch.leave();
        }
    }
}
