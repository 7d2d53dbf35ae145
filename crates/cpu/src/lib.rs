//! Executors in pure Rust: [`Cpu`], fast in f32, and [`Oracle`], the f64 reference of all tests.

mod custom;
mod memory;
mod oracle;
mod philox;

pub use oracle::Oracle;
