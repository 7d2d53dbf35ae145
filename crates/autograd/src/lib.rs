//! crates/autograd/src/lib.rs
