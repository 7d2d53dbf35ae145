//! Random programs on every device, fused and unfused, against the f64 oracle unfused; and their
//! gradients by differences, on the oracle.
//!
//! `WGRAD_TEST=full` runs 2,000 programs (slow devices and slow compilers 300, each part of several its share);
//! `WGRAD_FUZZ=seed,count` runs others. A failing program is cut down before it is shown; its genes belong into `found`.

mod coverage;
mod found;
mod program;

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use wgrad::{Context, ContextOptions};

use crate::part::Part;
use crate::table::full;
use crate::{Subject, Test};
use coverage::Coverage;
use program::{Genes, Shown, Told, loss_at, run};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::Plain("gradients_by_differences", gradients_by_differences),
        Test::Plain("found_programs_have_right_gradients", found_programs_have_right_gradients),
        Test::Device(Part::named("random_programs"), Box::new(random_programs)),
        Test::Device("found_programs".to_owned(), Box::new(found_programs)),
    ]
}

fn difference(got: &Shown, want: &Shown) -> Option<String> {
    if got.len() != want.len() {
        return Some("another number of values".to_owned());
    }
    for ((label, a), (_, b)) in got.iter().zip(want) {
        let scale = b.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
        let tolerance = 2e-4 * scale.min(1e6);
        if a.len() != b.len() {
            return Some(format!("{label}: {} elements, not {}", a.len(), b.len()));
        }
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            if !((x - y).abs() <= tolerance || x == y || x.is_nan() && y.is_nan()) {
                return Some(format!("{label}: element {i} of {} is {x}, not {y}", a.len()));
            }
        }
    }
    None
}

/// Programs of 5 to 40 operations.
fn genes() -> impl Strategy<Value = Genes> {
    // Another number is another operation, not a simpler one: only their count shrinks.
    let gene = || any::<u64>().no_shrink();
    (gene(), prop::collection::vec(gene(), 5..=40)).prop_map(|(frame, body)| Genes { frame, body })
}

/// Runs `test` on random programs, the same ones for the same seed; their number.
fn programs(seed: u8, count: u32, test: impl Fn(&Genes) -> Result<(), String>) -> u32 {
    let asked = std::env::var("WGRAD_FUZZ").ok().map(|v| {
        let parts = v.split_once(',').map(|(seed, count)| (seed.trim().parse(), count.trim().parse()));
        let Some((Ok(seed), Ok(count))) = parts else {
            panic!("WGRAD_FUZZ is `seed,count` with a seed up to 255, not `{v}`")
        };
        (seed, count)
    });
    let (seed, cases) = asked.unwrap_or((seed, count));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let result = runner.run(&genes(), |genes| test(&genes).map_err(TestCaseError::fail));
    match result {
        Ok(()) => cases,
        Err(TestError::Fail(why, genes)) => panic!("{genes:?}\n{why}"),
        Err(e) => panic!("{e}"),
    }
}

/// The ways in which a device runs a program.
struct Ways {
    oracle: Context,
    most: usize,
    all: Vec<(&'static str, Context)>,
}

impl Ways {
    fn of(on: &Subject) -> Ways {
        let plain = ContextOptions::default().fuse(false);
        let few = on.lowered(|caps| caps.max_buffers = 4);
        Ways {
            oracle: crate::devices::oracle_with(plain.clone()),
            most: if on.is_slow() { 200 } else { 20_000 },
            all: vec![
                ("fused", on.context()),
                ("unfused", on.context_with(plain)),
                ("in pieces", on.context_with(ContextOptions::default().node_budget(6))),
                ("four buffers", Context::new(few).expect("a context opens")),
            ],
        }
    }

    fn check(&self, genes: &Genes, coverage: &mut Coverage) -> Result<(), String> {
        let mut want = Told::default();
        run(&self.oracle, genes, self.most, &mut want).map_err(|e| format!("oracle: {e}"))?;
        let turn = (genes.frame % 4) as usize;
        for (i, (how, ctx)) in self.all.iter().enumerate() {
            if i > 1 && i != turn {
                continue;
            }
            let mut got = Told::default();
            let log = |got: &Told| got.log.join("\n");
            let ran = catch_unwind(AssertUnwindSafe(|| run(ctx, genes, self.most, &mut got)));
            match ran {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(format!("{how}: {e}\n{}", log(&got))),
                Err(e) => {
                    let text = e.downcast_ref::<String>().map_or("a panic", |s| s);
                    return Err(format!("{how}: {text}\n{}", log(&got)));
                }
            }
            if let Some(difference) = difference(&got.shown, &want.shown) {
                return Err(format!("{how}: {difference}\n{}", log(&want)));
            }
            if i == 0 {
                got.plans.iter().for_each(|plan| coverage.count(plan));
            }
        }
        Ok(())
    }
}

fn random_programs(on: &Subject) {
    let few = on.is_slow() || on.compiles_slowly();
    let count: u32 = match (full(), on.is_slow()) {
        (true, _) if few => 300,
        (true, _) => 2000,
        (false, false) => 200,
        (false, true) => 25,
    };
    let ways = Ways::of(on);
    let coverage = std::cell::RefCell::new(Coverage::default());
    // Parts have seeds of their own.
    let (seed, count) = Part::asked().map_or((0, count), |p| (p.number, count.div_ceil(p.of.into())));
    programs(seed, count, |genes| ways.check(genes, &mut coverage.borrow_mut()));
    let coverage = coverage.into_inner();
    eprintln!("random programs on {}: {coverage}", on.tag());
    if full() && !few && !on.is_oracle() && Part::asked().is_none() {
        coverage.complete(20);
    }
}

/// Programs that failed once.
fn found_programs(on: &Subject) {
    let ways = Ways::of(on);
    for genes in found::programs() {
        ways.check(&genes, &mut Coverage::default()).unwrap_or_else(|why| panic!("{genes:?}\n{why}"));
    }
}

/// Compares the loss's derivative along a direction through all inputs with differences. Where two
/// widths disagree the loss has a kink nearby, and nothing is learnt.
fn slope_is_right(ctx: &Context, genes: &Genes, kinks: &std::cell::Cell<u32>) -> Result<(), String> {
    let at = |shift| loss_at(ctx, genes, 3000, shift).map_err(|e| e.to_string());
    let across = |h: f64| Ok::<_, String>((at(h)?[0] - at(-h)?[0]) / (2.0 * h));
    let [_, slope] = at(0.0)?;
    let (wide, narrow) = (across(2e-5)?, across(1e-5)?);
    let scale = slope.abs().max(narrow.abs()).max(1e-2);
    if (wide - narrow).abs() > 1e-4 * scale || !slope.is_finite() {
        kinks.set(kinks.get() + 1);
        return Ok(());
    }
    if (slope - narrow).abs() > 1e-3 * scale {
        return Err(format!("the gradient gives {slope}, differences {narrow}"));
    }
    Ok(())
}

fn gradients_by_differences() {
    let ctx = crate::devices::oracle();
    let kinks = std::cell::Cell::new(0);
    let count = programs(0, if full() { 2000 } else { 200 }, |genes| slope_is_right(&ctx, genes, &kinks));
    eprintln!("gradients by differences: {} of {count} programs had a kink", kinks.get());
    assert!(kinks.get() <= count / 4, "{} of {count} programs had a kink", kinks.get());
}

fn found_programs_have_right_gradients() {
    let ctx = crate::devices::oracle();
    for genes in found::programs() {
        let kinks = std::cell::Cell::new(0);
        slope_is_right(&ctx, &genes, &kinks).unwrap_or_else(|why| panic!("{genes:?}\n{why}"));
    }
}
