//! crates/wgpu/src/lib.rs
