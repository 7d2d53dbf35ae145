//! Operations on the last axes of images, volumes and signals: pooling, resizing, sampling. Leading axes
//! (batch, channels) are any number, also none, and may be empty.

mod adaptive;
mod grid;
mod interpolate;
mod patches;
mod pool;
mod resample;
mod span;

pub use grid::{Beyond, GridSample, Sample};
pub use interpolate::{Interpolate, Resize, Scale};
pub use patches::Patches;
pub use pool::Pool;
pub use span::Sizes;
