//! Benchmarks of the workspace: `cargo bench --bench step -- --help`.
