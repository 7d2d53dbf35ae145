//! Known answers, formulas, faults, random schedules and partitions.

mod cuts;
mod docs;
mod faults;
mod formulas;
mod optimal;
mod properties;
mod ranking;
mod tables;
mod teams;
mod timelines;

use crate::{Costs, Link, Links, Schedule};

/// Costs of one tick for F, I and W of every stage.
fn ticks(schedule: &Schedule) -> Costs {
    Costs::ticks(schedule.stages())
}

/// The same with handovers that take `hop` ticks.
fn hops(schedule: &Schedule, hop: f64) -> Costs {
    Costs { links: Links::all(Link::new(hop, f64::INFINITY)), ..ticks(schedule) }
}
