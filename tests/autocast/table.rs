//! The table of `docs/dtypes.md`, row by row: every case of `tests/table/` in a scope, of f32 and of halves.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use wgrad::{Context, DType, Pass, Result, Tensor, grad};

use crate::devices::cpu;
use crate::table::{self, Case, Grad, host, spread};

/// The methods that a row of the table names.
fn row(text: &str, head: &str) -> BTreeSet<String> {
    let line = text.lines().find(|l| l.starts_with(&format!("| {head} |"))).expect("the table has the row");
    let cell = line.split('|').nth(2).expect("a row has two cells");
    cell.split([',', ' ']).filter(|w| !w.is_empty()).map(|w| w.trim_matches('`').to_owned()).collect()
}

/// Cases that are made of other methods beside their own, which a scope may change.
const COMPOSED: [&str; 9] = [
    "cholesky",
    "cholesky_solve",
    "logdet",
    "windows reduced",
    "pad infinity",
    "keep_top_k exp",
    "keep_top_k one",
    "keep_top_p exp",
    "keep_top_p little",
];

/// The value and the gradients of a case.
#[derive(Debug, PartialEq)]
struct Outcome {
    dtype: DType,
    value: Vec<f64>,
    grads: Vec<Vec<f64>>,
}

/// How a case is run: with operands of `own`, seen as `seen`, in a scope of `scope`.
#[derive(Copy, Clone)]
struct Way {
    own: DType,
    seen: DType,
    scope: Option<DType>,
}

fn run(ctx: &Context, case: &Case, way: Way) -> Option<Outcome> {
    let record = |p: &Pass| -> Result<Outcome> {
        let mut x = Vec::new();
        for (i, operand) in case.operands.iter().enumerate() {
            let leaf = p.input(host(&operand.dims, &operand.elems(i), operand.dtype(way.own)))?;
            x.push(if operand.is_float() { leaf.try_cast(way.seen)? } else { leaf });
        }
        let y = p.autocast(way.scope, || (case.f)(p, &x));
        let floats: Vec<Tensor> = x.into_iter().filter(|x| x.dtype().is_float()).collect();
        let mut grads = Vec::new();
        if case.grad != Grad::None && y.dtype().is_float() && !floats.is_empty() {
            // Weights that no dtype rounds, so that what arrives differs by what is tested alone.
            let dims = y.shape();
            let weights = spread(dims.elems(), -3.0, 4.0, 0.77).iter().map(|w| w.round()).collect::<Vec<_>>();
            let weights = p.input(host(dims.dims(), &weights, DType::F32))?;
            let loss = (y.cast(DType::F32) * weights).sum_all();
            for (g, x) in grad(loss, &floats)?.iter().zip(&floats) {
                assert_eq!(g.dtype(), x.dtype(), "{}", case.name);
                grads.push(g.to_vec::<f64>()?);
            }
        }
        Ok(Outcome { dtype: y.dtype(), value: y.to_vec()?, grads })
    };
    catch_unwind(AssertUnwindSafe(|| ctx.pass(record))).ok()?.ok()
}

fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

/// The values within what rounding to `half` may do to them, relative to the largest.
fn near(got: &[f64], want: &[f64], half: DType) -> bool {
    let step = if half == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
    let size = want.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 12.0 * step * size)
}

pub(super) fn every_row_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dtypes.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (half, full) = (row(&text, "16 bits"), row(&text, "f32"));
    let ctx = cpu();
    let (mut wrong, mut met) = (Vec::new(), BTreeSet::new());
    for (number, case) in table::cases().iter().filter(|c| !c.large).enumerate() {
        let stem = case.name.split(' ').next().unwrap_or_default();
        if COMPOSED.contains(&stem) || COMPOSED.contains(&case.name.as_str()) {
            continue;
        }
        // Running statistics keep the dtype that they have.
        if stem == "batch_norm_train" && (case.name.ends_with("mean") || case.name.ends_with("variance")) {
            continue;
        }
        let stem = [stem, stem.trim_end_matches("_with")]
            .into_iter()
            .find(|s| half.contains(*s) || full.contains(*s));
        let h = if number % 2 == 0 { DType::F16 } else { DType::BF16 };
        let way = |own, seen, scope| run(&ctx, case, Way { own, seen, scope });
        let plain = way(DType::F32, DType::F32, None).unwrap_or_else(|| panic!("{} runs", case.name));
        let Some(inside) = way(DType::F32, DType::F32, Some(h)) else {
            wrong.push(format!("{}: fails with f32 operands", case.name));
            continue;
        };
        // A case that takes no halves outside of scopes has nothing more to show.
        let halves = way(h, h, None).zip(way(h, h, Some(h)));
        let mut claim = |holds: bool, what: &str| {
            if !holds {
                wrong.push(format!("{} in {h}: {what}", case.name));
            }
        };
        match stem {
            Some(stem) if half.contains(stem) => {
                met.insert(stem.to_owned());
                let h = if plain.dtype.is_float() { h } else { plain.dtype };
                claim(inside.dtype == h, "the result is not of the scope's dtype");
                claim(near(&inside.value, &plain.value, h), "the result is far from that of f32");
                let far = inside.grads.iter().zip(&plain.grads).any(|(a, b)| !near(a, b, h));
                claim(!far, "a gradient is far from that of f32");
                claim(halves.is_none_or(|(_, inside)| inside.dtype == h), "the result of halves is no half");
            }
            Some(stem) => {
                met.insert(stem.to_owned());
                claim(inside == plain || same(&inside.value, &plain.value), "a scope changes f32");
                let Some((outside, inside)) = halves else { continue };
                let Some(wide) = way(h, DType::F32, None) else { continue };
                claim(
                    inside.dtype == if outside.dtype.is_half() { DType::F32 } else { outside.dtype },
                    "the result of halves is not f32",
                );
                claim(same(&inside.value, &wide.value), "the result of halves is not that of them as f32");
            }
            None => {
                claim(
                    same(&inside.value, &plain.value) && inside.dtype == plain.dtype,
                    "a scope changes f32",
                );
                let Some((outside, inside)) = halves else { continue };
                claim(
                    same(&inside.value, &outside.value) && inside.dtype == outside.dtype,
                    "a scope changes halves",
                );
            }
        }
    }
    // It draws anew each time, so that only its dtype can be compared.
    let drawn = |p: &Pass| {
        let x = p.input(host(&[3, 5], &[0.5; 15], DType::F16))?;
        Ok(p.autocast(Some(DType::F16), || x.gumbel_softmax("g", 1, 0.7, false).dtype()))
    };
    assert_eq!(ctx.pass(drawn).unwrap(), DType::F32);
    met.insert("gumbel_softmax".to_owned());
    let unmet: Vec<_> = half.union(&full).filter(|name| !met.contains(*name)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unmet.is_empty(), "the table names what no case shows: {unmet:?}");
}
