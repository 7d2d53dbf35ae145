//! crates/nn/src/lib.rs
