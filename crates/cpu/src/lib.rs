//! Executors in pure Rust: [`Cpu`], fast in f32, and [`Oracle`], the f64 reference of all tests.

mod access;
mod argsort;
mod attention;
mod cpu;
mod custom;
mod digits;
mod fold;
mod gather;
mod gemm;
mod halves;
mod kernels;
mod known;
mod lookup;
mod machine;
mod margin;
mod math;
mod matmul;
mod matrix;
mod memory;
mod oracle;
mod philox;
mod pool;
mod program;
mod reduce;
mod row_program;
mod rows;
mod scan;
mod scatter;
mod share;
mod step;
mod tail;
mod tiles;
mod turn;
mod whole;

pub use cpu::Cpu;
pub use oracle::Oracle;

#[cfg(test)]
mod tests;
