//! `docs/ops.md` is made of the sources' list of methods, of what the cases of `tests/table/` record, of the
//! variants of `Op` and of the rows. `WGRAD_BLESS=1` writes it anew.

mod methods;
mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use wgrad_graph::{Binary, DType, Op, Row, Slope, Unary};

use crate::table::{self, Case, Grad, case, float};
use seen::{Facts, Sources};

crate::suite![
    plain: the_document_is_current;
    device:
];

const HEAD: &str = "# Operations

Made by a test (`WGRAD_BLESS=1 cargo test -p wgrad-tests --test all -- ops_table` writes it), which fails where
this file is old, and where a public method has no case in `tests/table/`.

*shapes*: as the method's documentation has them, else those of its first case. *gradient*: `twice`, first and
second derivatives are compared with differences; `once`, first ones; `yes`, one flows and is proven elsewhere;
`zero`; or none. *dtypes*: what its first operand of numbers may be; `floats` are f16, bf16 and f32, `integers`
u8, u32, i32 and i64. Every method also takes f64 on the CPU executor. *error*: of an f32 device against the f64
reference, relative to `max(1, |result|)`. *kernels*: files of `wgsl/` that its cases run, or that it is an
index function, which is work of the kernel that reads it. *made of*: the leaves that it records.
";

const ROWS: &str = "
## Elementwise rows

`crates/graph/src/rows.rs`. Operands of any shape, which broadcast by NumPy's rule; dtypes promote. *error* is the
largest of an f32 device against the f64 reference, relative to `max(1, |result|)`, for operands of *tested on*.
*gradient* says whether one flows: to the first operand, to the second.

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
        error(row.tolerance),
    )
}

fn error(tolerance: f64) -> String {
    if tolerance == 0.0 { "exact".to_owned() } else { format!("{tolerance:e}") }
}

/// Methods whose results no oracle foretells: `tests/random.rs` and `tests/neural.rs` prove them. And those
/// that take the number of a row.
fn apart() -> Vec<Case> {
    let none = |name: &str, f: fn(&wgrad::Pass) -> wgrad::Tensor| case(name, [], move |p, _| f(p)).no_grad();
    let one = |name: &str, f: fn(wgrad::Tensor) -> wgrad::Tensor| {
        case(name, [float([3, 4, 2], 0.1, 0.9)], move |_, x| f(x[0])).no_grad()
    };
    vec![
        none("rand_bits", |p| p.rand_bits("s", [3, 5])),
        none("rand", |p| p.rand("s", [3, 5])),
        none("uniform", |p| p.uniform("s", [3, 5], -1.0..2.0)),
        none("normal", |p| p.normal("s", [3, 5], 1.0, 2.0)),
        none("exponential", |p| p.exponential("s", [3, 5], 2.0)),
        none("randn", |p| p.randn("s", [3, 5])),
        none("randperm", |p| p.randperm("s", 7)),
        none("gumbel", |p| p.gumbel("s", [3, 5])),
        none("randint", |p| p.randint("s", [3, 5], -4..9)),
        one("bernoulli", |x| x.bernoulli("s")),
        one("rand_like", |x| x.rand_like("s")),
        one("randn_like", |x| x.randn_like("s")),
        one("gumbel_like", |x| x.gumbel_like("s")),
        one("dropout", |x| x.dropout("s", 0.25)),
        one("dropout_channels", |x| x.dropout_channels("s", 0.25)),
        one("alpha_dropout", |x| x.alpha_dropout("s", 0.25)),
        one("gumbel_softmax", |x| x.gumbel_softmax("s", 1, 0.7, false)),
        one("categorical", |x| x.categorical("s", 0.8)),
        one("multinomial", |x| x.multinomial("s", 2, false)),
        one("unary", |x| x.unary(Unary::Neg)),
        one("binary", |x| x.binary(Binary::Add, x)),
    ]
}

/// The cases by their methods' names.
fn by_stem(all: &[Case]) -> BTreeMap<&str, Vec<&Case>> {
    let mut stems: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in all {
        stems.entry(case.name.split(' ').next().unwrap_or_default()).or_default().push(case);
    }
    stems
}

/// The case that shows most: its operands have several elements.
fn plainest<'a>(cases: &[&'a Case]) -> &'a Case {
    let several = |case: &&&Case| case.operands.iter().all(|o| o.dims.iter().product::<usize>() > 1);
    cases.iter().find(several).unwrap_or(&cases[0])
}

fn gradient(cases: &[&Case]) -> &'static str {
    let grad = |grad: Grad| cases.iter().any(|c| c.grad == grad);
    let found: BTreeSet<Option<bool>> =
        cases.iter().filter(|c| !c.large).take(3).map(|c| seen::flows(c)).collect();
    match found.last() {
        Some(Some(true)) if grad(Grad::Twice) => "twice",
        Some(Some(true)) if grad(Grad::Once) => "once",
        Some(Some(true)) => "yes",
        Some(Some(false)) => "zero",
        _ => "",
    }
}

fn dtypes(case: &Case) -> String {
    if case.operands.is_empty() {
        let made = seen::run(case, None).expect("a case records and runs");
        return format!("gives {}", made.dtype);
    }
    let groups = [
        ("floats", &[DType::F16, DType::BF16, DType::F32][..]),
        ("integers", &[DType::U8, DType::U32, DType::I32, DType::I64]),
        ("bool", &[DType::Bool]),
    ];
    let mut words = Vec::new();
    for (name, of) in groups {
        let fine: Vec<DType> = of.iter().copied().filter(|d| seen::run(case, Some(*d)).is_some()).collect();
        if fine.len() == of.len() {
            words.push(name.to_owned());
        } else {
            words.extend(fine.iter().map(DType::to_string));
        }
    }
    words.join(", ")
}

fn example(case: &Case) -> (String, bool) {
    let seen = seen::run(case, None).unwrap_or_else(|| panic!("{} records and runs", case.name));
    let operands: Vec<String> = case.operands.iter().map(|o| format!("{:?}", o.dims)).collect();
    (format!("`{} -> {:?}`", operands.join(", "), seen.dims).replace("` ->", "`->"), seen.dtype.is_float())
}

fn method(out: &mut String, method: &methods::Method, cases: &[&Case], facts: &Facts) {
    let plain = plainest(cases);
    let (example, float) = example(plain);
    let join = |set: &BTreeSet<&'static str>| set.iter().copied().collect::<Vec<_>>().join(", ");
    // Broadcasting and promotion are not what makes a method.
    let mut ops = facts.ops.clone();
    ops.retain(|op| !["expand", "reshape", "cast"].contains(op));
    let ops = if ops.is_empty() { &facts.ops } else { &ops };
    let leaf = ops.len() == 1 && ops.contains(method.name.as_str());
    let shapes = match &method.shapes {
        Some(told) if ["->", "result", "give"].iter().any(|word| told.contains(word)) => told.clone(),
        Some(told) => format!("{example}; {told}"),
        None => example,
    };
    let kernels = if facts.moves { "index function".to_owned() } else { join(&facts.kernels) };
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} | {} | {kernels} | {} |",
        method.name,
        shapes.replace('|', "\\|"),
        gradient(cases),
        dtypes(plain),
        error(if float { plain.tolerance } else { 0.0 }),
        if leaf { "a leaf".to_owned() } else { join(ops) },
    );
}

/// Every variant of `Op`, with the kernels in which the cases have it.
fn leaves(out: &mut String, kernels: &BTreeMap<String, BTreeSet<&'static str>>, moves: &BTreeSet<String>) {
    out.push_str("\n## Leaves\n\nThe variants of `Op` (`crates/graph/src/op.rs`), and the kernels in which the cases have them.\n");
    out.push_str("\n| variant | what | kernels |\n|---|---|---|\n");
    for (name, what) in methods::variants() {
        let found = match name.as_str() {
            "Input" | "Scalar" => "read by any".to_owned(),
            "Custom" => "the user's".to_owned(),
            // No method records it: gradients do.
            "AttentionGrad" => "attention_tile".to_owned(),
            _ if moves.contains(&name) => "index function".to_owned(),
            _ => {
                let set = kernels.get(&name).unwrap_or_else(|| panic!("no case records Op::{name}"));
                set.iter().copied().collect::<Vec<_>>().join(", ")
            }
        };
        let _ = writeln!(out, "| `{name}` | {} | {found} |", what.replace('|', "\\|"));
    }
}

fn document() -> String {
    let mut all = table::cases();
    all.extend(apart());
    let stems = by_stem(&all);
    let (mut facts, mut strays) = (BTreeMap::new(), BTreeMap::new());
    let mut sources = Sources::default();
    let (mut kernels, mut moves) = (BTreeMap::<String, BTreeSet<&'static str>>::new(), BTreeSet::new());
    for (stem, cases) in &stems {
        let mut plans = Vec::new();
        for case in cases.iter().filter(|c| !c.large) {
            let seen = seen::run(case, None).unwrap_or_else(|| panic!("{} records and runs", case.name));
            plans.extend(seen.plan);
        }
        for plan in &plans {
            strays.extend(seen::strays(plan).map(|at| (at, *stem)));
            for step in &plan.steps {
                for node in &step.group.nodes {
                    let variant = variant(&plan.graph.node(*node).op);
                    kernels.entry(variant).or_default().insert(seen::kernels(&step.group));
                }
            }
            let moving = plan.graph.nodes().iter().filter(|n| n.op.is_movement());
            moves.extend(moving.map(|n| variant(&n.op)));
        }
        facts.insert(*stem, sources.facts(stem, &plans));
    }
    assert!(strays.is_empty(), "nodes name lines of the library, not the user's: {strays:#?}");
    let mut out = HEAD.to_owned();
    let mut missing = Vec::new();
    for area in methods::areas() {
        let _ = write!(
            out,
            "\n## {}\n\n| name | shapes | gradient | dtypes | error | kernels | made of |\n|---|---|---|---|---|---|---|\n",
            area.title
        );
        for m in &area.methods {
            // What takes options is proven with what does without.
            let stem = [m.name.as_str(), m.name.trim_end_matches("_with")]
                .into_iter()
                .find(|s| stems.contains_key(s));
            match stem {
                Some(stem) => method(&mut out, m, &stems[stem], &facts[stem]),
                None => missing.push(m.name.clone()),
            }
        }
    }
    assert!(missing.is_empty(), "methods without a case in tests/table/: {missing:?}");
    leaves(&mut out, &kernels, &moves);
    let used = kernels.values().flatten().flat_map(|k| k.split([' ', ',', '(']));
    every_file_is_named(&used.collect());
    out.push_str(ROWS);
    for op in Unary::ALL {
        out.push_str(&line(&op.row(), 1, op == Unary::IsNan));
    }
    for op in Binary::ALL {
        out.push_str(&line(&op.row(), 2, op.compares()));
    }
    out
}

fn variant(op: &Op) -> String {
    format!("{op:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

/// Kernels that no case of the table runs.
const OPENING_OR_GPU: [&str; 10] = [
    "native_half",
    "packed_half",
    "half_arithmetic",
    "matmul_range",
    "matmul_stream",
    "transpose",
    "radix_rank",
    "scan_quads",
    "row_sums",
    "scatter_rank",
];

/// Every kernel of `wgsl/` is run by some case, but for those that a device runs when it opens, the one beside
/// products on units that few adapters have, and those of GPUs that `tests/kernels.rs` and the tests of `crates/wgpu` run
/// elsewhere: for products of few rows, for pointwise groups that turn axes, for sorts and scans by subgroups, for rows
/// that sum columns, for orders by counting.
fn every_file_is_named(used: &BTreeSet<&str>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wgsl");
    for entry in std::fs::read_dir(folder).expect("the folder of kernels") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "wgsl") && !OPENING_OR_GPU.contains(&&*name) {
            let text = std::fs::read_to_string(&path).expect("a kernel");
            assert!(!text.contains("fn main") || used.contains(name.as_str()), "no case runs {name}.wgsl");
        }
    }
}

fn the_document_is_current() {
    let want = document();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ops.md");
    if std::env::var("WGRAD_BLESS").is_ok() {
        std::fs::write(&path, &want).expect("docs/ops.md is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let (old, new) = (found.lines(), want.lines());
    let differs = old.zip(new).find(|(a, b)| a != b);
    assert!(found == want, "docs/ops.md is not current at {differs:?}; WGRAD_BLESS=1 writes it");
}
