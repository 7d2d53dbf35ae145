//! Layers, losses, optimizers, schedules and data on top of the autograd crate.

mod attention;
mod conv;
mod data;
mod embedding;
mod init;
mod layers;
mod mixed;
mod norm;
mod optim;
mod params;
mod recurrent;
mod rng;
mod schedule;
mod state;
mod statistics;
#[cfg(test)]
mod testing;
mod weights;

pub use attention::MultiHeadAttention;
pub use conv::{AvgPool, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, MaxPool};
pub use data::{Batch, Digits, Epoch, Loader, Mnist, Source, read_idx};
pub use embedding::{Embedding, Rope};
pub use init::{Init, conv_fans};
pub use layers::{Activation, ChannelDropout, Dropout, Flatten, Linear, Mlp, Mode, Module, Sequential};
pub use mixed::Autocast;
pub use norm::{BatchNorm, GroupNorm, InstanceNorm, InstanceNormConfig, LayerNorm, RmsNorm};
pub use optim::{
    Adam, AdamConfig, AdamTerms, AdamW, AdamWConfig, LossScale, LossScaler, Optimizer, Scaling, Sgd,
    SgdConfig, SgdTerms, StepInfo, adamw_update, sgd_update,
};
pub use params::ParamSet;
pub use recurrent::{Gru, GruCell, Lstm, LstmCell, Recurrent};
pub use rng::{Rng, philox};
pub use schedule::{Constant, Cosine, Schedule, Then, Warmup};
pub use state::Owned;
pub use statistics::{Follow, Statistics, Summary, gather_statistics};
pub use weights::{load_tensors, save_tensors};
