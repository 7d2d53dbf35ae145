//! Data from files, in batches.

mod idx;
mod loader;
mod mnist;

pub use idx::read_idx;
pub use loader::{Epoch, Loader, Source};
pub use mnist::{Batch, Digits, Mnist};
