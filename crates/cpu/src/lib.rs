//! crates/cpu/src/lib.rs
