//! benches/lib.rs
