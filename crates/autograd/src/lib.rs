//! Contexts, passes, tensors, and gradients as graph.
//!
//! A [`Tensor`] is a small `Copy` handle to a value of a pass or to an owned value. Operations record
//! into the pass; [`vjp`] records the gradient there too; a pass that ends is cut into a graph, planned
//! once for its structure, and submitted. Read `pass.rs` first, then `record.rs`, `flush.rs`, `vjp.rs`.

mod attention_rules;
mod autocast;
mod capture;
mod checkpoint;
mod context;
mod custom;
mod custom_gradient;
mod cut;
mod dear;
mod deferred;
mod flight;
mod flush;
mod gradcheck;
mod grads;
mod line;
mod line_rules;
mod matrix_rules;
mod memo;
mod ops;
mod owned;
mod pass;
mod placed;
mod plans;
mod predict;
mod print;
mod profiling;
mod program;
mod reading;
mod record;
mod repeat;
mod rules;
mod state;
mod table;
mod tape;
mod tensor;
mod vjp;

pub use autocast::autocast;
pub use capture::{Step, StepInputs, StepOutputs};
pub use checkpoint::checkpoint;
pub use context::{Context, ContextOptions, IntoBackend, Stats};
pub use custom::{Custom, CustomGradient, CustomOp};
pub use custom_gradient::custom_gradient;
pub use deferred::Deferred;
pub use gradcheck::{GradCheck, Outputs, gradcheck, gradgradcheck};
pub use grads::{GradSum, Grads};
pub use ops::*;
pub use owned::{Counter, Kept, Param, ParamId, Scalar};
pub use pass::Pass;
pub use placed::{Given, Placed, Reserved};
pub use profiling::{Updating, updating};
pub use program::Program;
pub use reading::{Reading, Readings};
pub use tensor::Tensor;
pub use vjp::{grad, vjp, vjp_found};
pub use wgrad_graph::{DType, Element, Error, ErrorKind, HostTensor, Phase, PlanMemory, Result, Shape};
pub use wgrad_profile::{Kernel as ProfileKernel, Report as ProfileReport, trace as profile_trace};
