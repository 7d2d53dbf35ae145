//! Stages with several equal devices each: data parallel inside a pipeline.

use std::ops::Range;

use wgrad_graph::{Result, bail};

use crate::schedule::Link;

/// A stage and the number of devices that share its micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicated {
    /// Its layers.
    pub layers: Range<usize>,
    /// Its devices.
    pub replicas: usize,
}

#[derive(Copy, Clone)]
struct Best {
    worst: f64,
    devices: usize,
    end: usize,
    replicas: usize,
}

/// Cuts layers of these `costs` into stages with one or more of `devices` equal devices each, so that the
/// slowest stage is as fast as possible. Returns that cost and the stages.
///
/// A stage with `k` replicas takes `cost / k` a micro-batch, and its share of one all-reduce a step of its
/// `params` bytes (a ring over `link`). No device has more than `most_layers` layers. Of several, the one
/// with the fewest devices is returned, then the one with the earliest cuts.
///
/// # Errors
/// `Argument` for no layers or devices, other numbers of costs and params, or layers that do not fit.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Link, partition::replicated};
/// # fn main() -> wgrad_graph::Result<()> {
/// let (worst, stages) = replicated(&[4.0, 8.0], &[0, 0], 3, 8, 1, Link::FREE)?;
/// assert_eq!((worst, stages[0].replicas, stages[1].replicas), (4.0, 1, 2));
/// # Ok(())
/// # }
/// ```
pub fn replicated(
    costs: &[f64],
    params: &[u64],
    devices: usize,
    micro_batches: usize,
    most_layers: usize,
    link: Link,
) -> Result<(f64, Vec<Replicated>)> {
    let op = "partition::replicated";
    let layers = costs.len();
    if layers == 0 || devices == 0 || micro_batches == 0 || params.len() != layers {
        bail!(
            Argument,
            op,
            "{layers} layers with {} params, {devices} devices, {micro_batches} micro-batches",
            params.len()
        );
    }
    let cost = |range: Range<usize>, k: usize| {
        let time: f64 = costs[range.clone()].iter().sum();
        let bytes: u64 = params[range].iter().sum();
        let ring = 2.0 * (k as f64 - 1.0) / k as f64 * bytes as f64 / link.bandwidth + link.latency;
        let reduce = if k == 1 { 0.0 } else { ring };
        time / k as f64 + reduce / micro_batches as f64
    };
    // best[start][left]: layers from `start` on, with at most `left` devices.
    let mut best: Vec<Vec<Option<Best>>> = vec![vec![None; devices + 1]; layers + 1];
    best[layers] = vec![Some(Best { worst: 0.0, devices: 0, end: layers, replicas: 0 }); devices + 1];
    for start in (0..layers).rev() {
        for left in 1..=devices {
            let mut found: Option<Best> = None;
            for end in start + 1..=layers.min(start.saturating_add(most_layers)) {
                for replicas in 1..=left {
                    let Some(Some(rest)) = best.get(end).map(|of| of[left - replicas]) else { continue };
                    let worst = cost(start..end, replicas).max(rest.worst);
                    let used = replicas + rest.devices;
                    let equal = |b: &Best| (worst - b.worst).abs() <= 1e-9 * worst;
                    let better = |b: &Best| if equal(b) { used < b.devices } else { worst < b.worst };
                    if found.as_ref().is_none_or(better) {
                        found = Some(Best { worst, devices: used, end, replicas });
                    }
                }
            }
            best[start][left] = found;
        }
    }
    let Some(first) = best[0][devices] else {
        bail!(
            Argument,
            op,
            "{layers} layers do not fit on {devices} devices with at most {most_layers} each"
        );
    };
    let (mut stages, mut start, mut left) = (Vec::new(), 0, devices);
    while let Some(Best { end, replicas, .. }) = best[start][left].filter(|_| start < layers) {
        stages.push(Replicated { layers: start..end, replicas });
        (start, left) = (end, left - replicas);
    }
    Ok((first.worst, stages))
}
