//! What stages and phases are called.

use wgrad_graph::{Phase, Stage};

/// All stages, in the order of a step.
pub(crate) const STAGES: [Stage; 13] = [
    Stage::Record,
    Stage::Differentiate,
    Stage::Fuse,
    Stage::Plan,
    Stage::Compile,
    Stage::Allocate,
    Stage::Upload,
    Stage::Encode,
    Stage::Submit,
    Stage::Compute,
    Stage::Wait,
    Stage::Download,
    Stage::Commit,
];

/// All phases, in the order of a step.
pub(crate) const PHASES: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Update];

/// The name of a stage, and that of the stage of ggmlR's profiles that holds the same work.
pub fn stage_name(stage: Stage) -> (&'static str, &'static str) {
    match stage {
        Stage::Record => ("record", "create"),
        Stage::Differentiate => ("differentiate", "emit"),
        Stage::Fuse => ("fuse", "graph"),
        Stage::Plan => ("plan", "graph"),
        Stage::Compile => ("compile", "ctx"),
        Stage::Allocate => ("allocate", "flush"),
        Stage::Upload => ("upload", "upload"),
        Stage::Encode => ("encode", "graph"),
        Stage::Submit => ("submit", "compute"),
        Stage::Compute => ("compute", "compute"),
        Stage::Wait => ("wait", "compute"),
        Stage::Download => ("download", "download"),
        Stage::Commit => ("commit", "leaf_fetch"),
    }
}

/// The name of a phase.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}

/// The shares of the phases in something that serves several, in the order of a step; they sum to 1.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PhaseMix(pub(crate) [f64; 3]);

impl Default for PhaseMix {
    fn default() -> PhaseMix {
        PhaseMix([1.0, 0.0, 0.0])
    }
}

impl PhaseMix {
    /// Shares in proportion to `weights`, all forward if there are none.
    pub fn of(weights: [f64; 3]) -> PhaseMix {
        let all: f64 = weights.iter().sum();
        if all > 0.0 { PhaseMix(weights.map(|w| w / all)) } else { PhaseMix::default() }
    }

    /// The phases that have a share, as `forward+backward`.
    pub(crate) fn name(self) -> String {
        let there = PHASES.iter().zip(self.0).filter(|(_, share)| *share > 0.0);
        there.map(|(phase, _)| phase_name(*phase)).collect::<Vec<_>>().join("+")
    }
}
