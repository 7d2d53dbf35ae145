//! wgsl/lib.rs
