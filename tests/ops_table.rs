//! `docs/ops.md` is made of the rows of the elementwise operations. `WGRAD_BLESS=1` writes it anew.

use std::fmt::Write as _;
use std::path::Path;

use wgrad_graph::{Binary, DType, Row, Slope, Unary};

crate::suite![
    plain: the_table_of_rows_is_current;
    device:
];

const HEAD: &str = "# Elementwise operations

Made of the rows in `crates/graph/src/rows.rs`; a test keeps it current (`WGRAD_BLESS=1` writes it). Operands
of any shape, which broadcast by NumPy's rule; dtypes promote. The kernel family is pointwise: operations
fuse with each other and with what is before and after them. *error* is the largest of an f32 device against
the f64 reference, relative to `max(1, |result|)`, for operands of *tested on*. *gradient* says whether one
flows: to the first operand, to the second.

| name | operands | gradient | floats | integers | truth | tested on | error |
|---|---|---|---|---|---|---|---|
";

fn line<F, I>(row: &Row<F, I>, operands: usize, truth: bool) -> String {
    let yes = |b: bool| if b { "yes" } else { "" };
    let slopes = (row.slopes)();
    let flows = |i: usize| slopes.get(i).is_some_and(|s| *s != Slope::Num(0.0));
    let gradient = match (operands, flows(0), flows(1)) {
        (_, false, false) => "",
        (1, true, _) => "yes",
        (_, true, true) => "both",
        (_, true, false) => "first",
        (_, false, true) => "second",
    };
    let name = if truth { format!("{} -> bool", row.name) } else { row.name.to_owned() };
    format!(
        "| {name} | {operands} | {gradient} | {} | {} | {} | {} .. {} | {} |\n",
        yes(row.takes(DType::F32)),
        yes(row.takes(DType::I32)),
        yes(row.takes(DType::Bool)),
        row.domain.lo,
        row.domain.hi,
        if row.tolerance == 0.0 { "exact".to_owned() } else { format!("{:e}", row.tolerance) },
    )
}

fn the_table_of_rows_is_current() {
    let mut want = HEAD.to_owned();
    for op in Unary::ALL {
        let _ = write!(want, "{}", line(&op.row(), 1, op == Unary::IsNan));
    }
    for op in Binary::ALL {
        let _ = write!(want, "{}", line(&op.row(), 2, op.compares()));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ops.md");
    if std::env::var("WGRAD_BLESS").is_ok() {
        std::fs::write(&path, &want).expect("docs/ops.md is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == want, "docs/ops.md is not current; WGRAD_BLESS=1 writes it");
}
