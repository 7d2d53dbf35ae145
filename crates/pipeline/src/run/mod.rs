//! What runs a schedule: stages on their devices, one thread a device, handovers between them.
//!
//! A [`Stages`] is a model that is cut, with one context a stage. [`Stages::forward`] uses it,
//! a [`Trainer`] teaches it: each thread walks its list of a lowered [`Schedule`](crate::Schedule), keeps one
//! pass open for every micro-batch between F and B. What goes to another device crosses beside these threads, in
//! lanes of their own, over a [`Transport`].
//! Weights are replaced when every stage has computed its new ones, on all stages or on none.

mod batch;
mod block;
mod bundle;
mod checkpoint;
mod control;
mod error;
mod forward;
mod lane;
mod loss;
mod narrow;
mod report;
mod scale;
mod stages;
mod stash;
mod threads;
mod tie;
mod train;
mod transport;
mod update;
mod worker;

pub(crate) use batch::joined;
pub(crate) use control::Control;
pub(crate) use error::{guarded, panicked, placed};
pub(crate) use forward::{ForwardLine, forward_lines};
pub(crate) use stages::Stage;
pub(crate) use threads::run;
pub(crate) use train::losses;

pub use wgrad_nn::LossScale;

pub use batch::Batch;
pub use block::{Block, Function, Model, Several};
pub use checkpoint::Checkpoint;
pub use loss::Loss;
pub use report::{EdgeReport, Handover, Report};
pub use stages::{Contract, Source, StageSpec, Stages};
pub use train::{MakeTransport, StepReport, TrainOptions, Trainer};
pub use transport::{Loopback, Parcel, Ring, Transport};
