//! Makers of schedules: pure functions of the number of stages and of micro-batches.

use wgrad_graph::{Result, bail};

use super::{Action, Kind, Schedule};

fn forward(stage: usize, micro_batch: usize) -> Action {
    Action::new(Kind::Forward, stage, micro_batch)
}

fn backward(stage: usize, micro_batch: usize) -> Action {
    Action::new(Kind::Backward, stage, micro_batch)
}

/// One stage a device, `list(stage)` its list.
fn line(name: &str, stages: usize, m: usize, list: impl Fn(usize) -> Vec<Action>) -> Result<Schedule> {
    Schedule::new(name, m, (0..stages).collect(), (0..stages).map(list).collect())
}

/// Forward passes only: inference, or the loss of a validation batch.
///
/// # Errors
/// `Argument` for 0 stages or micro-batches.
pub fn forward_only(stages: usize, micro_batches: usize) -> Result<Schedule> {
    line("forward", stages, micro_batches, |s| (0..micro_batches).map(|m| forward(s, m)).collect())
}

/// GPipe: all forward passes, then all backward passes, both in ascending order.
///
/// The makespan is `(M+S-1)(F+B)`; every device stashes `M` micro-batches. (The paper runs the backward
/// passes in descending order: same time, same memory. Ascending, all schedules sum gradients in the same
/// order.)
///
/// # Errors
/// `Argument` for 0 stages or micro-batches.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Costs, schedule};
/// # fn main() -> wgrad_graph::Result<()> {
/// let run = schedule::gpipe(4, 8)?.simulate(&Costs::ticks(4))?;
/// assert_eq!(run.makespan, 33.0);
/// # Ok(())
/// # }
/// ```
pub fn gpipe(stages: usize, micro_batches: usize) -> Result<Schedule> {
    line("gpipe", stages, micro_batches, |s| {
        (0..micro_batches).map(|m| forward(s, m)).chain((0..micro_batches).map(|m| backward(s, m))).collect()
    })
}

/// `warm` forward passes, then pairs of one forward and one backward pass, then the backward passes left.
fn pairs(stage: usize, m: usize, warm: usize) -> Vec<Action> {
    let warm = warm.min(m);
    let mut list: Vec<Action> = (0..warm).map(|i| forward(stage, i)).collect();
    for i in warm..m {
        list.extend([forward(stage, i), backward(stage, i - warm)]);
    }
    list.extend((m - warm..m).map(|i| backward(stage, i)));
    list
}

/// 1F1B: device `r` warms up with `S-r-1` forward passes, then one forward, one backward.
///
/// The time of GPipe where handovers cost nothing, but device `r` stashes `min(M, S-r)` micro-batches only.
/// `M < S` is allowed. Slow links make it the slowest of all; see [`eager_one_f_one_b`].
///
/// # Errors
/// `Argument` for 0 stages or micro-batches.
pub fn one_f_one_b(stages: usize, micro_batches: usize) -> Result<Schedule> {
    line("1f1b", stages, micro_batches, |s| pairs(s, micro_batches, stages - s - 1))
}

/// Eager 1F1B: 1F1B with twice the warm-up, which hides one handover each way.
///
/// Device `r` stashes `min(M, 2(S-r)-1)` micro-batches.
///
/// # Errors
/// `Argument` for 0 stages or micro-batches.
pub fn eager_one_f_one_b(stages: usize, micro_batches: usize) -> Result<Schedule> {
    line("eager-1f1b", stages, micro_batches, |s| pairs(s, micro_batches, 2 * (stages - s - 1)))
}

/// Interleaved 1F1B: each of `devices` devices owns `chunks` stages, stage `c * devices + r` being chunk
/// `c` of device `r`, so that the bubble shrinks `chunks` times while handovers grow as much.
///
/// Micro-batches go in rounds: all of a round through one chunk, then through the next. There are `max(1, M
/// div S)` rounds, whose sizes differ by one at most, larger ones first; so `M` need not be a multiple of
/// `S`, and where it is, rounds have `S` micro-batches as in the paper; each micro-batch more in a round
/// takes one slot more an edge. With one chunk it is eager 1F1B.
///
/// # Errors
/// `Argument` for 0 devices, chunks or micro-batches.
pub fn interleaved(devices: usize, chunks: usize, micro_batches: usize) -> Result<Schedule> {
    if devices == 0 || chunks == 0 || micro_batches == 0 {
        bail!(
            Argument,
            "schedule::interleaved",
            "{devices} devices, {chunks} chunks and {micro_batches} micro-batches: each must be 1 or more"
        );
    }
    let rounds = (micro_batches / devices).max(1);
    let sizes = split_batch(micro_batches, rounds)?;
    let mut order = Vec::new();
    let mut first = 0;
    for size in &sizes {
        for chunk in 0..chunks {
            order.extend((first..first + size).map(|m| (chunk, m)));
        }
        first += size;
    }
    let list = |r: usize| {
        let f = |&(chunk, m): &(usize, usize)| forward(chunk * devices + r, m);
        let b = |&(chunk, m): &(usize, usize)| backward((chunks - 1 - chunk) * devices + r, m);
        let warm = (2 * (devices - r - 1) + (chunks - 1) * sizes[0]).min(order.len());
        let mut list: Vec<Action> = order[..warm].iter().map(f).collect();
        for (next, back) in order[warm..].iter().zip(&order) {
            list.extend([f(next), b(back)]);
        }
        list.extend(order[order.len() - warm..].iter().map(b));
        list
    };
    let places = (0..devices * chunks).map(|stage| stage % devices).collect();
    let lists = (0..devices).map(list).collect();
    Schedule::new(format!("interleaved:{chunks}"), micro_batches, places, lists)
}

/// ZB-H1: the backward pass split into input (I) and weight (W) gradients; W runs `r` micro-batches behind I
/// on device `r`, and so fills the bubble. The makespan is `M(F+I+W) + (S-1)(F+I-W)` for `M >= S`.
///
/// Every device stashes `min(M, S)` micro-batches (until W), of which I needs `min(M, S-r)`.
///
/// # Errors
/// `Argument` for 0 stages or micro-batches.
pub fn zb_h1(stages: usize, micro_batches: usize) -> Result<Schedule> {
    line("zb-h1", stages, micro_batches, |r| {
        let input = |m| Action::new(Kind::BackwardInput, r, m);
        let weight = |m| Action::new(Kind::BackwardWeight, r, m);
        let warm = (stages - r - 1).min(micro_batches);
        let mut list: Vec<Action> = (0..warm).map(|m| forward(r, m)).collect();
        let mut weights = 0;
        for m in 0..micro_batches {
            let more = warm + m < micro_batches;
            if more {
                list.push(forward(r, warm + m));
            }
            list.push(input(m));
            if !more || m + 1 - weights > r {
                list.push(weight(weights));
                weights += 1;
            }
        }
        list.extend((weights..micro_batches).map(weight));
        list
    })
}

/// The sizes of `parts` micro-batches of a batch of `rows`: equal, or one more in the first ones.
///
/// # Errors
/// `Argument` for 0 parts, or more parts than rows: an empty micro-batch has no loss.
///
/// # Example
/// ```
/// assert_eq!(wgrad_pipeline::schedule::split_batch(10, 3)?, [4, 3, 3]);
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn split_batch(rows: usize, parts: usize) -> Result<Vec<usize>> {
    if parts == 0 || parts > rows {
        bail!(
            Argument,
            "schedule::split_batch",
            "{rows} rows cannot be split into {parts} micro-batches of one row or more"
        );
    }
    Ok((0..parts).map(|i| rows / parts + usize::from(i < rows % parts)).collect())
}
