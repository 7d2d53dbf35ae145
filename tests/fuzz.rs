//! Random programs on every device, fused and unfused, against the f64 oracle unfused.
//!
//! `WGRAD_TEST=full` runs 1,000 programs a device; `WGRAD_FUZZ=first..last` runs those seeds.

mod program;

use wgrad::{Context, ContextOptions};

use crate::Subject;
use program::{Shown, run};

crate::suite![plain: ; device: random_programs];

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

/// Prints what ran when a panic passes.
struct Told<'a>(u64, &'a str, Vec<String>);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz seed {}, {}: {}", self.0, self.1, self.2.join("; "));
        }
    }
}

fn random_programs(on: &Subject) {
    let full = std::env::var("WGRAD_TEST").is_ok_and(|v| v == "full");
    let count = if full {
        1000
    } else if on.is_slow() {
        20
    } else {
        40
    };
    let range = std::env::var("WGRAD_FUZZ").ok().and_then(|v| {
        let (first, last) = v.split_once("..")?;
        Some(first.parse().ok()?..last.parse().ok()?)
    });
    let most = if on.is_slow() { 200 } else { 20_000 };
    let few = on.lowered(|caps| caps.max_buffers = 4);
    for seed in range.unwrap_or(0..count) {
        let once = |ctx: &Context, how: &str| {
            let mut told = Told(seed, how, Vec::new());
            run(ctx, seed, most, &mut told.2).unwrap_or_else(|e| panic!("{how}: {e}"))
        };
        let plain = ContextOptions::default().fuse(false);
        let oracle = crate::devices::oracle_with(plain.clone());
        let want = once(&oracle, "oracle");
        let mut ways = vec![("fused", on.context()), ("unfused", on.context_with(plain))];
        match seed % 4 {
            0 => ways.push(("in pieces", on.context_with(ContextOptions::default().node_budget(6)))),
            1 => ways.push(("four buffers", Context::new(few.clone()).expect("a context opens"))),
            _ => {}
        }
        for (how, ctx) in ways {
            let got = once(&ctx, how);
            if let Some(difference) = difference(&got, &want) {
                let mut log = Vec::new();
                let _ = run(&oracle, seed, most, &mut log);
                panic!("fuzz seed {seed}, {how}: {difference}\n{}", log.join("\n"));
            }
        }
    }
}
