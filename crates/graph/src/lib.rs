//! What a computation *is*: shapes, dtypes, operations, the graph, its groups, its plan, and the
//! trait that a device implements to run it.
//!
//! Read [`Op`] first, then [`Graph`], [`Group`] and [`Plan`]. Nothing here knows a device, a file or
//! a clock; every value prints.

mod attend;
mod backend;
mod bytes;
mod compose;
mod digits;
mod dtype;
mod error;
mod fast;
mod fuse;
mod graph;
mod group;
mod host;
mod index;
mod infer;
mod op;
mod plan;
mod planner;
mod program;
mod recompute;
mod row;
mod rows;
mod shape;
#[cfg(test)]
mod tests;
mod watch;

pub use attend::{Attend, Heads};
pub use backend::{Args, Backend, BufferId, Caps, DeviceKind, LeafArg, Memory, Pending, Prepared, Ticket};
pub use bytes::Bytes;
pub use digits::{Digits, Line, stride, terms};
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use fast::{Fast, Off};
pub use graph::{CustomId, CustomSpec, Graph, Node, NodeId, Out, Val};
pub use group::{Acc, AccKind, Body, Expr, ExprId, Group, IndexId, Kind, Store};
pub use half::{bf16, f16};
pub use host::{Element, HostTensor};
pub use index::{Dynamic, Index, View};
pub use infer::{infer, infer_all};
pub use op::{Binary, Matrix, Op, Perm, Reduce, Scan, Steps, Unary};
pub use plan::{Home, Leaf, LeafKind, Loc, Options, Output, Plan, PlanMemory, Slot, Step};
pub use planner::{Root, plan, plan_watched};
pub use program::{Segment, Source, segments};
pub use recompute::{Fitted, Within, plan_within};
pub use row::RowStage;
pub use rows::{BinaryRow, Domain, Row, Slope, UnaryRow};
pub use shape::{Axes, Lines, MAX_RANK, Shape};
pub use watch::{InStage, Phase, Ran, Stage, Watch};
