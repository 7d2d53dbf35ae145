//! src/lib.rs
