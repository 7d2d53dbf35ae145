//! Vulkan adapters as [`wgrad_graph::Backend`]s. The only crate that names wgpu.
//!
//! [`adapters`] lists what there is, [`choose`] picks one, [`Gpu::open`] opens it. A plan is lowered to
//! WGSL text and dispatches (`emit`), compiled and placed once (`prepare`), and run as one submission
//! (`encode`). Values live in pages (`pages`), host bytes cross in staging buffers (`staging`), every
//! wait has a deadline (`wait`), and a failure of the device is an error value (`faults`).

mod adapter;
mod beside;
mod binds;
mod cache;
mod checks;
mod choose;
mod copy;
mod emit;
mod encode;
mod faults;
mod gpu;
mod heap;
mod kernels;
mod launch;
mod lists;
mod mapped;
mod matrices;
mod native;
mod packed;
mod pages;
mod prepare;
mod read;
mod staging;
mod timing;
mod together;
mod wait;
mod workspace;

pub use adapter::{AdapterInfo, adapters, choose};
pub use copy::Copying;
pub use gpu::{AllocatorReport, Gpu};
pub use prepare::workspace_bytes;

#[cfg(test)]
mod tests;
