//! The time of something short on a device that may just have idled.

use std::time::{Duration, Instant};

/// Turns at least, after one that plans and compiles.
const TURNS: usize = 4;

/// And for so long at least: a GPU that has idled takes a while to reach its clock. The first layers measured in a
/// process took 3.5 times as long as the same ones later, three turns each.
const WHILE: Duration = Duration::from_millis(400);

/// The least that each part of a turn took, of turns enough to tell. `turn` gives the seconds of its parts.
pub fn least<const N: usize, E>(mut turn: impl FnMut() -> Result<[f64; N], E>) -> Result<[f64; N], E> {
    turn()?;
    let begun = Instant::now();
    let mut all = [f64::INFINITY; N];
    let mut turns = 0;
    while turns < TURNS || begun.elapsed() < WHILE {
        let times = turn()?;
        all.iter_mut().zip(times).for_each(|(least, time)| *least = least.min(time));
        turns += 1;
    }
    Ok(all)
}
