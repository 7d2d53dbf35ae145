//! Layers, losses, optimizers, schedules and data on top of the autograd crate.

mod data;
mod init;
mod layers;
mod optim;
mod params;
mod rng;
mod schedule;
#[cfg(test)]
mod testing;
mod weights;

pub use data::{Batch, Digits, Epoch, Loader, Mnist, Source, read_idx};
pub use init::Init;
pub use layers::{Activation, Dropout, Linear, Mlp, Mode, Module, Sequential};
pub use optim::{
    Adam, AdamConfig, AdamTerms, AdamW, AdamWConfig, Optimizer, Sgd, SgdConfig, SgdTerms, StepInfo,
    adamw_update, sgd_update,
};
pub use params::ParamSet;
pub use rng::{Rng, philox};
pub use schedule::{Constant, Cosine, Schedule, Then, Warmup};
pub use weights::{load_tensors, save_tensors};
