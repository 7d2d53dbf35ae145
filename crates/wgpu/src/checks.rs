//! The error flag: kernels raise a number, the host finds what it stands for.
//!
//! A submission that may raise it ends by copying the flag to the host and clearing it, so that each
//! raise belongs to one ticket.

use std::collections::{BTreeSet, VecDeque};
use std::panic::Location;
use std::sync::Mutex;

use wgrad_graph::{Error, ErrorKind};

use crate::faults::lock;

/// A check of an index in a kernel.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Check {
    op: &'static str,
    limit: u32,
    at: Option<&'static Location<'static>>,
}

/// Checks by number, raises that nobody heard of yet, and tickets whose flag is still on its way.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    known: Mutex<Vec<Check>>,
    raised: Mutex<Raised>,
    open: Mutex<BTreeSet<u64>>,
}

/// How many raises that somebody heard of are kept for others who wait for the same ticket.
const MOST_TOLD: usize = 64;

/// Tickets with the numbers that they raised.
#[derive(Debug, Default)]
struct Raised {
    new: Vec<(u64, u32)>,
    told: VecDeque<(u64, u32)>,
}

impl Checks {
    /// The number, from 1, by which kernels tell this check.
    pub(crate) fn number(&self, op: &'static str, limit: u32, at: Option<&'static Location<'static>>) -> u32 {
        let check = Check { op, limit, at };
        let mut known = lock(&self.known);
        let place = known.iter().position(|c| *c == check).unwrap_or_else(|| {
            known.push(check);
            known.len() - 1
        });
        place as u32 + 1
    }

    /// Notes that the flag of `ticket` is on its way.
    pub(crate) fn expect(&self, ticket: u64) {
        lock(&self.open).insert(ticket);
    }

    /// Notes the flag of `ticket`.
    pub(crate) fn land(&self, ticket: u64, number: u32) {
        if number != 0 {
            lock(&self.raised).new.push((ticket, number));
        }
        lock(&self.open).remove(&ticket);
    }

    /// Whether the flags of every ticket up to `ticket` have landed.
    pub(crate) fn settled(&self, ticket: u64) -> bool {
        lock(&self.open).first().is_none_or(|open| *open > ticket)
    }

    /// The error of the first raise by a ticket up to `ticket` of which nobody has heard; those raises count as told
    /// then. Without one, what `ticket` itself has raised: two threads that wait for one submission both hear of it.
    pub(crate) fn take(&self, ticket: u64) -> Option<Error> {
        let mut raised = lock(&self.raised);
        let Raised { new, told } = &mut *raised;
        let heard: Vec<(u64, u32)> = new.extract_if(.., |raise| raise.0 <= ticket).collect();
        told.extend(&heard);
        told.drain(..told.len().saturating_sub(MOST_TOLD));
        let first = heard.into_iter().min_by_key(|(ticket, _)| *ticket);
        let (_, number) = first.or_else(|| told.iter().find(|(t, _)| *t == ticket).copied())?;
        drop(raised);
        let check = lock(&self.known).get(number as usize - 1).copied();
        Some(match check {
            Some(Check { op, limit, at }) => {
                let detail = format!(
                    "an index was not below its limit {limit}; what it read was 0, what it wrote was dropped"
                );
                let error = Error::new(ErrorKind::Data, op, detail);
                match at {
                    Some(at) => error.at(at),
                    None => error,
                }
            }
            None => {
                Error::new(ErrorKind::Data, "kernel", format!("a kernel raised the error flag with {number}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raises_are_told_once_the_first_first() {
        let checks = Checks::default();
        let at = Some(Location::caller());
        let (a, b) = (checks.number("gather", 5, at), checks.number("scatter_add", 7, None));
        assert_eq!((a, b, checks.number("gather", 5, at)), (1, 2, 1));
        checks.expect(3);
        checks.expect(4);
        assert!(checks.settled(2) && !checks.settled(3));
        checks.land(4, b);
        checks.land(3, a);
        assert!(checks.settled(4));
        assert!(checks.take(2).is_none());
        let error = checks.take(4).unwrap();
        assert_eq!((error.op(), error.kind()), ("gather", ErrorKind::Data));
        assert!(error.to_string().contains("limit 5") && error.to_string().contains("checks.rs"));
        assert_eq!(checks.take(4).unwrap().op(), "scatter_add", "who waits for the same one hears of it");
        assert!(checks.take(5).is_none());
        checks.land(6, b);
        assert!(checks.take(5).is_none());
        assert_eq!(checks.take(6).unwrap().op(), "scatter_add");
        checks.land(7, 99);
        assert!(checks.take(7).unwrap().to_string().contains("99"));
    }
}
