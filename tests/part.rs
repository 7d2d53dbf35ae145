//! The tests of this process, where several share them: on a GPU one process keeps neither the device nor the host busy.
//!
//! `WGRAD_TEST_PART=3/20` runs every twentieth test from the third on, and a twentieth of the random programs.
//! `WGRAD_TEST_WITHOUT=file` leaves out the tests whose names it lists, a line each. `tests/parts.sh` uses both.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use libtest_mimic::Trial;

/// One of several processes, counted from 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) number: u8,
    pub(crate) of: u8,
}

impl Part {
    fn parsed(text: &str) -> Option<Part> {
        let (number, of) = text.split_once('/')?;
        let part = Part { number: number.trim().parse().ok()?, of: of.trim().parse().ok()? };
        (1..=part.of).contains(&part.number).then_some(part)
    }

    /// What `WGRAD_TEST_PART` says.
    pub(crate) fn asked() -> Option<Part> {
        static ASKED: OnceLock<Option<Part>> = OnceLock::new();
        *ASKED.get_or_init(|| {
            let text = std::env::var("WGRAD_TEST_PART").ok()?;
            let part = Part::parsed(&text);
            Some(part.unwrap_or_else(|| panic!("WGRAD_TEST_PART is `part/parts`, from 1 on, not `{text}`")))
        })
    }

    /// The name of a test of which every part runs a share.
    pub(crate) fn named(name: &str) -> String {
        Part::asked().map_or(name.to_owned(), |Part { number, of }| format!("{name}_{number}_of_{of}"))
    }
}

/// The tests that this process runs.
pub(crate) fn of(trials: Vec<Trial>) -> Vec<Trial> {
    let without: BTreeSet<String> = match std::env::var("WGRAD_TEST_WITHOUT") {
        Ok(file) => {
            let text = std::fs::read_to_string(&file);
            let text = text.unwrap_or_else(|e| panic!("WGRAD_TEST_WITHOUT names `{file}`: {e}"));
            text.lines().map(|line| line.trim().to_owned()).collect()
        }
        Err(_) => BTreeSet::new(),
    };
    let mut left: Vec<Trial> = trials.into_iter().filter(|t| !without.contains(t.name())).collect();
    if let Some(Part { number, of }) = Part::asked() {
        let shared = format!("_{number}_of_{of}::");
        let mut turn = 0_usize;
        left.retain(|trial| {
            turn += 1;
            turn % usize::from(of) == usize::from(number) % usize::from(of) || trial.name().contains(&shared)
        });
    }
    left
}
