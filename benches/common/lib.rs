//! What the benchmarks share with their peers: workloads as data, the numbers that go in, and the way in which a
//! driver asks for them. It knows no framework, so that the programs under `peers/` can use it.

mod by_hand;
mod least;
mod models;
mod record;
mod row;
mod serve;
mod threads;
mod values;

pub use by_hand::{Want, by_hand, gathered};
pub use least::least;
pub use models::{ConvSpec, Model, Optim, ParamSpec, resnet_convs};
pub use record::{Line, Record, Stamp, Sweep};
pub use row::{Input, Kind, Row};
pub use serve::{Digest, Fault, Peer, copies, serve};
pub use values::{floats, ids, indices};

#[cfg(test)]
mod tests;
