//! Where a step spends its time: a recorder of the host's stages and of what ran on the device, and the
//! report that it gives as text, JSON, a page, and a trace.
//!
//! A [`Profile`] is told by the layers below through [`wgrad_graph::Watch`]. It holds totals, which do not
//! grow with the number of steps, and the newest events up to a limit.

mod clock;
mod names;
mod page;
mod profile;
mod report;
mod text;
mod trace;

pub use names::{PhaseMix, phase_name, stage_name};
pub use profile::{InPhase, Profile, phase};
pub use report::{Crossings, Kernel, PhaseLine, Report, StageLine, Timeline, TimelineEvent};
pub use trace::trace;
