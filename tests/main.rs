//! The workspace's tests: one binary, because linking a graphics stack ten times is slow.
//!
//! A module lists its tests with [`suite!`]. A *plain* test is a `fn()`; a *device* test is a
//! `fn(&Subject)` and runs once on every device found: the CPU executor, the f64 oracle, and every
//! Vulkan adapter. The device list is printed first. `WGRAD_TEST_REQUIRE=llvmpipe,SwiftShader` makes a
//! missing adapter a failure instead of a skip.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests fail by panics and say where they run")]
#![allow(
    clippy::type_complexity,
    clippy::reversed_empty_ranges,
    clippy::erasing_op,
    reason = "tables of closures; ranges that run backwards and products with zero are what is tested"
)]

mod attention;
mod autocast;
mod conv;
mod devices;
mod dtypes;
mod edges;
mod elementwise;
mod engine;
mod folds;
mod fuzz;
mod golden;
mod grads;
mod halves;
mod handles;
mod house;
mod kernels;
mod layers;
mod linalg;
mod lines;
mod neural;
mod nn;
mod numerics;
mod ops;
mod ops_table;
mod part;
mod paths;
mod pipeline;
mod profile;
mod programs;
mod random;
mod regressions;
mod shapes;
mod solve;
mod spatial;
mod table;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

pub(crate) use devices::Subject;

/// A test of a module.
pub(crate) enum Test {
    /// Needs no device.
    Plain(&'static str, fn()),
    /// Runs on every device.
    Device(String, Box<dyn Fn(&Subject) + Send + Sync>),
}

/// Lists a module's tests: `suite![plain: walls, headers; device: add, sub]`.
#[macro_export]
macro_rules! suite {
    (plain: $($plain:ident),* $(,)?; device: $($device:ident),* $(,)?) => {
        pub(crate) fn tests() -> Vec<$crate::Test> {
            vec![
                $($crate::Test::Plain(stringify!($plain), $plain),)*
                $($crate::Test::Device(stringify!($device).to_owned(), Box::new($device)),)*
            ]
        }
    };
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let subjects = devices::all();
    for line in devices::report(subjects) {
        eprintln!("{line}");
    }
    let modules = [
        ("attention", attention::tests()),
        ("autocast", autocast::tests()),
        ("conv", conv::tests()),
        ("house", house::tests()),
        ("layers", layers::tests()),
        ("neural", neural::tests()),
        ("nn", nn::tests()),
        ("ops", ops::tests()),
        ("ops_table", ops_table::tests()),
        ("paths", paths::tests()),
        ("dtypes", dtypes::tests()),
        ("lines", lines::tests()),
        ("elementwise", elementwise::tests()),
        ("edges", edges::tests()),
        ("folds", folds::tests()),
        ("linalg", linalg::tests()),
        ("solve", solve::tests()),
        ("random", random::tests()),
        ("grads", grads::tests()),
        ("halves", halves::tests()),
        ("kernels", kernels::tests()),
        ("handles", handles::tests()),
        ("profile", profile::tests()),
        ("pipeline", pipeline::tests()),
        ("programs", programs::tests()),
        ("engine", engine::tests()),
        ("fuzz", fuzz::tests()),
        ("regressions", regressions::tests()),
        ("spatial", spatial::tests()),
        ("shapes", shapes::tests()),
        ("numerics", numerics::tests()),
    ];
    let mut trials = Vec::new();
    for (module, tests) in modules {
        for test in tests {
            match test {
                Test::Plain(name, f) => trials.push(trial(format!("{module}::{name}"), f)),
                Test::Device(name, f) => {
                    let f = Arc::new(f);
                    for subject in subjects {
                        let f = Arc::clone(&f);
                        trials
                            .push(trial(format!("{module}::{name}::{}", subject.tag()), move || f(subject)));
                    }
                }
            }
        }
    }
    trials.extend(table::trials(subjects));
    trials.extend(golden::trials());
    let mut names = BTreeSet::new();
    let twice: Vec<String> =
        trials.iter().map(|t| t.name().to_owned()).filter(|name| !names.insert(name.clone())).collect();
    trials.push(trial("house::names_are_distinct".to_owned(), move || {
        assert!(twice.is_empty(), "what runs by name would pass over one of two: {twice:?}");
    }));
    let same = names.clone();
    trials.push(trial("numerics::names_are_tests".to_owned(), move || numerics::names_are_tests(&names)));
    trials.push(trial("regressions::faults_are_tried".to_owned(), move || {
        regressions::faults_are_tried(&same);
    }));
    trials.push(trial("devices::required".to_owned(), move || devices::check_required(subjects)));
    libtest_mimic::run(&arguments, part::of(trials)).exit_code()
}

fn trial(name: String, f: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || -> Result<(), Failed> {
        f();
        Ok(())
    })
}
