//! A context's profile: switching it on and off, and the stages of the host's work.
//!
//! While no context profiles, a stage costs one branch, and so does an operation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::span::EnteredSpan;
use wgrad_graph::{NodeId, Op, Phase, Plan, Stage, Watch};
use wgrad_profile::{InPhase, PhaseMix, Profile, Report};

use crate::context::Context;
use crate::pass;
use crate::table::{self, ContextId};

/// How many contexts profile: most of the time none, and then nothing need be looked for.
static ON: AtomicU32 = AtomicU32::new(0);

/// A profile that is on, also as the backend sees it.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) profile: Arc<Profile>,
    pub(crate) watch: Arc<dyn Watch>,
}

/// The profile of a context.
#[derive(Default)]
pub(crate) struct Profiling {
    pub(crate) on: Option<Watched>,
    /// What was profiled so far.
    kept: Option<Arc<Profile>>,
}

impl Profiling {
    fn switch(&mut self, on: bool, device: &str) -> bool {
        let was = self.on.is_some();
        if was == on {
            return was;
        }
        let profile = Arc::clone(self.kept.get_or_insert_with(|| Arc::new(Profile::new(device))));
        profile.switch(on);
        if on {
            ON.fetch_add(1, Ordering::Relaxed);
            self.on = Some(Watched { watch: Arc::clone(&profile) as Arc<dyn Watch>, profile });
        } else {
            ON.fetch_sub(1, Ordering::Relaxed);
            self.on = None;
        }
        was
    }

    /// Enters a stage.
    pub(crate) fn stage(&self, stage: Stage) -> Span {
        Span::enter(self.on.as_ref(), stage)
    }

    /// Who the backend tells.
    pub(crate) fn watch(&self) -> Option<&Arc<dyn Watch>> {
        self.on.as_ref().map(|on| &on.watch)
    }

    /// Tells the profile something, if it is on.
    pub(crate) fn tell(&self, what: impl FnOnce(&Profile)) {
        if let Some(on) = &self.on {
            what(&on.profile);
        }
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        if self.on.is_some() {
            ON.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A stage that lasts until this is dropped, as a span of `tracing` too.
#[must_use = "the stage ends when this is dropped"]
pub(crate) struct Span {
    watch: Option<Arc<Profile>>,
    _traced: EnteredSpan,
}

impl Span {
    fn enter(on: Option<&Watched>, stage: Stage) -> Span {
        let watch = on.map(|on| Arc::clone(&on.profile));
        if let Some(watch) = &watch {
            watch.enter(stage);
        }
        Span { watch, _traced: traced(stage) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.leave();
        }
    }
}

/// The span of a stage; nothing while nobody subscribes.
fn traced(stage: Stage) -> EnteredSpan {
    macro_rules! span {
        ($($name:ident $text:literal),*) => {
            match stage {
                $(Stage::$name => tracing::trace_span!(target: "wgrad::stage", $text),)*
            }
        };
    }
    span!(
        Record "record", Differentiate "differentiate", Fuse "fuse", Plan "plan", Compile "compile",
        Allocate "allocate", Upload "upload", Encode "encode", Submit "submit", Compute "compute", Wait "wait",
        Download "download", Commit "commit"
    )
    .entered()
}

/// Enters a stage of `context`, whose lock is not held.
pub(crate) fn stage(context: ContextId, stage: Stage) -> Span {
    let on = match ON.load(Ordering::Relaxed) {
        0 => None,
        _ => table::lock(context).ok().and_then(|state| state.profiling.on.clone()),
    };
    Span::enter(on.as_ref(), stage)
}

/// An operation that is being recorded; `None` while nobody profiles.
pub(crate) struct Recording(Arc<Profile>);

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Begins to record an operation in the innermost pass of this thread. No context's lock is held.
pub(crate) fn recording() -> Option<Recording> {
    if ON.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let context = pass::innermost()?;
    let on = table::lock(context).ok()?.profiling.on.clone()?;
    on.profile.enter(Stage::Record);
    Some(Recording(on.profile))
}

/// Gradients that are being recorded.
pub(crate) struct Differentiating {
    // Dropped before the phase, in which its time counts.
    _stage: Span,
    _phase: InPhase,
}

/// Begins to record gradients in `context`, whose lock is not held.
pub(crate) fn differentiating(context: ContextId) -> Differentiating {
    let phase = InPhase::enter(Phase::Backward);
    Differentiating { _stage: stage(context, Stage::Differentiate), _phase: phase }
}

/// An update of parameters that is being recorded; for optimizers.
#[must_use = "the update ends when this is dropped"]
pub struct Updating {
    // Dropped before the phase, in which its time counts.
    _recording: Option<Recording>,
    _phase: InPhase,
}

/// Begins to record an update of parameters on this thread: profiles count it, and the kernels that come of
/// it, as such.
pub fn updating() -> Updating {
    let phase = InPhase::enter(Phase::Update);
    Updating { _recording: recording(), _phase: phase }
}

/// The phases of each step of `plan`, of whose graph `phases` tells the nodes', by the work of their nodes.
pub(crate) fn step_phases(plan: &Plan, phases: &[Phase]) -> Arc<[PhaseMix]> {
    let work = |id: NodeId| {
        let node = plan.graph.node(id);
        let elems = |val: &wgrad_graph::Val| plan.graph.out(*val).shape.elems() as f64;
        let read = || node.inputs.iter().map(elems).sum::<f64>();
        match (node.op, node.inputs.first()) {
            (Op::MatMul, Some(a)) => {
                let shape = plan.graph.out(*a).shape;
                let depth = shape[shape.rank() - 1];
                2.0 * depth as f64 * node.outs[0].shape.elems() as f64
            }
            (op, _) if op.computes() => read().max(node.outs[0].shape.elems() as f64),
            _ => 0.0,
        }
    };
    let mix = |step: &wgrad_graph::Step| {
        let mut mix = [0.0; 3];
        for id in &step.group.nodes {
            mix[phases.get(*id as usize).copied().unwrap_or_default() as usize] += work(*id);
        }
        if mix == [0.0; 3]
            && let Some(id) = step.group.nodes.last()
        {
            mix[phases.get(*id as usize).copied().unwrap_or_default() as usize] = 1.0;
        }
        PhaseMix::of(mix)
    };
    plan.steps.iter().map(mix).collect()
}

impl Context {
    /// Switches the profile on or off; the state before. What was profiled stays until
    /// [`Context::profile_reset`]. Results do not change; see `docs/profile.md` for what is measured.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// assert!(!ctx.profile(true));
    /// for _ in 0..3 {
    ///     ctx.pass(|p| p.input(HostTensor::new([2], &[1.0f32, 2.0])?)?.exp().to_vec::<f32>())?;
    /// }
    /// assert!(ctx.profile(false));
    /// let report = ctx.profile_report();
    /// assert_eq!(report.steps, 3);
    /// println!("{report}");
    /// # Ok(()) }
    /// ```
    pub fn profile(&self, on: bool) -> bool {
        let Ok(mut state) = table::lock(self.id()) else { return false };
        let name = state.backend.caps().name.clone();
        state.profiling.switch(on, &name)
    }

    /// Forgets what was profiled.
    pub fn profile_reset(&self) {
        if let Ok(state) = table::lock(self.id())
            && let Some(kept) = &state.profiling.kept
        {
            kept.reset();
        }
    }

    /// What was profiled since the last reset; of nothing, a report that says what to switch on. Kernels
    /// that are still under way are not in it: [`Context::sync`] before asking.
    pub fn profile_report(&self) -> Report {
        let Ok(state) = table::lock(self.id()) else { return Report::of(&Profile::new(""), false) };
        let timed = state.backend.has_clock();
        match &state.profiling.kept {
            Some(kept) => Report::of(kept, timed),
            None => Report::of(&Profile::new(&state.backend.caps().name), timed),
        }
    }
}

impl fmt::Debug for Profiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.on.is_some() { "Profiling(on)" } else { "Profiling(off)" })
    }
}
