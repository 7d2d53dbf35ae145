//! One model over many devices in more than one direction: replicas that share the batch, shards that share the
//! layers, and the stages of a pipeline, on the axes of one [`Mesh`].
//!
//! A *line* is one pipeline (or one stage) with a replica's and a shard's number. All lines walk the same
//! schedule, each stage of each on a context and a thread of its own. Where lines meet they do so by a
//! [`Collective`] on the host: replicas to sum gradients ([`MeshTrainer`]), shards inside a layer ([`Shard`]).

mod add;
mod collective;
mod crossing;
mod layers;
mod mesh;
mod peers;
mod reduce;
mod shard;
mod team;
mod train;

pub use collective::Collective;
pub(crate) use crossing::{Backward, Crossing, crossed, trial};
pub use layers::{ColumnLinear, RowLinear, ShardedAttention, ShardedMlp};
pub use mesh::{Line, Mesh};
pub(crate) use peers::{Calls, Peers};
pub(crate) use reduce::Reducer;
pub use shard::{Shard, split};
pub use team::Team;
pub use train::{MakeCollective, MeshOptions, MeshReport, MeshTrainer};
