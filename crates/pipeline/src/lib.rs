//! Pipeline parallelism: a model cut into stages, each on a device of its own.
//!
//! A [`Schedule`] is data: an ordered list of actions for every device. Pure functions make it
//! ([`Family::make`]), [`Schedule::check`] proves it, [`Schedule::simulate`] predicts its time and memory,
//! [`Timeline`] draws it. [`Problem::solve`] cuts a model so that the slowest stage is as fast as possible
//! within every device's memory, and [`auto()`] does both for every family and ranks the results.
//!
//! [`Stages`] are a model that is cut and built, [`Trainer`] walks a schedule over them; see the module `run`.

pub mod auto;
pub mod parallel;
pub mod partition;
mod run;
pub mod schedule;
#[cfg(test)]
mod tests;

pub use auto::{Ranked, Ranking, auto, rank};
pub use parallel::{Collective, Line, Mesh, MeshOptions, MeshReport, MeshTrainer, Shard, Team};
pub use partition::{DeviceSpec, Layer, Order, Partition, Problem, Profile, Recompute, Transfer};
pub use run::{
    Batch, Block, Checkpoint, Contract, EdgeReport, Function, Handover, Loopback, Loss, LossScale,
    MakeTransport, Model, Parcel, Report, Ring, Several, Source, StageSpec, Stages, StepReport, TrainOptions,
    Trainer, Transport,
};
pub use schedule::{
    Action, Channels, Checked, Costs, Edge, Family, Kind, Link, Links, Message, Passage, Payload, Schedule,
    Simulation, Span, StageCost, Timeline, Wiring,
};
