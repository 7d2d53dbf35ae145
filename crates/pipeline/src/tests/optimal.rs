//! The optimum against trying everything, and against a second method; properties of partitions.

use proptest::prelude::*;

use super::cuts::{problem, worst};
use crate::partition::uniform;
use crate::{DeviceSpec, Family, Link, Links, Order, Partition, Problem, Recompute, Transfer};

/// All ways to cut `layers` into `stages`.
fn all_cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for last in stages - 1..layers {
        for mut cuts in all_cuts(last, stages - 1) {
            cuts.push(last);
            all.push(cuts);
        }
    }
    all
}

/// All orders of `count` devices.
fn all_orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for order in all_orders(count - 1) {
        for place in 0..=order.len() {
            let mut order = order.clone();
            order.insert(place, count - 1);
            all.push(order);
        }
    }
    all
}

/// The least (worst cost, recomputing stages, bytes that cross) of all partitions that fit.
fn brute_force(p: &Problem) -> Option<(f64, usize, u64)> {
    let count = p.devices.len();
    let orders = if p.order == Order::Free { all_orders(count) } else { vec![(0..count).collect()] };
    let mut best: Option<(f64, usize, u64)> = None;
    for cuts in all_cuts(p.layers.len(), count) {
        for order in &orders {
            for flags in 0..1_u32 << count {
                let recompute: Vec<bool> = (0..count).map(|s| flags & (1 << s) != 0).collect();
                let allowed = match p.recompute {
                    Recompute::Never => flags == 0,
                    Recompute::Always => flags + 1 == 1 << count,
                    Recompute::Choose => true,
                };
                if !allowed {
                    continue;
                }
                let partition = Partition::new(p.layers.len(), &cuts).unwrap().on(order.clone()).unwrap();
                let partition = partition.recomputing(recompute.clone()).unwrap();
                let rows = p.rows(&partition).unwrap();
                if rows.iter().any(|r| r.memory > r.available || r.layers.len() > p.most_layers) {
                    continue;
                }
                let cost = rows.iter().map(|r| r.cost).fold(0.0, f64::max);
                let again = recompute.iter().filter(|r| **r).count();
                let bytes = cuts.iter().map(|&c| p.layers[c - 1].output).sum();
                let better = match best {
                    None => true,
                    Some((c, ..)) if cost < c * (1.0 - 1e-9) => true,
                    Some((c, a, b)) => cost <= c * (1.0 + 1e-9) && (again, bytes) < (a, b),
                };
                if better {
                    best = Some((cost, again, bytes));
                }
            }
        }
    }
    best
}

fn problems() -> impl Strategy<Value = Problem> {
    let layer = (0_u32..6, 0_u64..4, 0_u64..4, 0_u64..4);
    let device = (1_u32..4, 10_u64..80, any::<bool>());
    let options = (0_usize..4, 1_usize..6, 0_usize..3, 0_usize..3, any::<bool>(), 0_u32..3, 1_u64..3);
    (proptest::collection::vec(layer, 3..9), proptest::collection::vec(device, 1..4), options, 0_u64..9)
        .prop_map(|(layers, devices, (family, m, transfer, recompute, free, skew, copies), seed)| {
            let costs: Vec<f64> = layers.iter().map(|l| f64::from(l.0)).collect();
            let speeds: Vec<f64> = devices.iter().map(|d| f64::from(d.0)).collect();
            let mut p = problem(&costs, &speeds);
            for (layer, &(_, params, stash, output)) in p.layers.iter_mut().zip(&layers) {
                (layer.params, layer.stash, layer.output) = (params, stash, output);
            }
            for (device, &(_, memory, bounded)) in p.devices.iter_mut().zip(&devices) {
                device.memory = if bounded { memory } else { u64::MAX };
            }
            p.family = Family::LINES[family];
            (p.micro_batches, p.copies, p.slots, p.input_bytes) = (m, copies, 1, 2);
            p.transfer = [Transfer::Free, Transfer::Overlapped, Transfer::Serial][transfer];
            p.recompute = [Recompute::Never, Recompute::Choose, Recompute::Always][recompute];
            p.order = if free { Order::Free } else { Order::Given };
            p.links = Links::all(Link::new(0.5, 2.0));
            if skew > 0 {
                p.links = p.links.with(0, 1, Link::new(f64::from(skew), 1.0));
            }
            p.most_layers = if seed == 0 { 4 } else { usize::MAX };
            p
        })
}

/// The least worst cost by another method: halving the interval of answers, filling stages greedily.
fn by_halving(costs: &[f64], stages: usize) -> f64 {
    let fits = |bound: f64| {
        let (mut used, mut sum) = (1, 0.0);
        for &c in costs {
            if sum + c > bound {
                (used, sum) = (used + 1, 0.0);
            }
            sum += c;
        }
        used <= stages
    };
    let (mut low, mut high) = (costs.iter().copied().fold(0.0, f64::max), costs.iter().sum());
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if fits(middle) { high = middle } else { low = middle }
    }
    high
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_better(p in problems()) {
        let Some((cost, recomputed, bytes)) = brute_force(&p) else {
            prop_assert!(p.solve().unwrap_err().is_out_of_memory());
            return Ok(());
        };
        let best = p.solve().unwrap();
        let found = worst(&p, &best);
        prop_assert!((found - cost).abs() <= 1e-9 * cost, "{found} is not {cost}: {best:?}");
        prop_assert_eq!(best.recomputes().iter().filter(|r| **r).count(), recomputed);
        let crossing: u64 = best.cuts().iter().map(|&c| p.layers[c - 1].output).sum();
        prop_assert_eq!(crossing, bytes);
        // The simulation of the schedule needs no more memory than the partition reserved.
        let schedule = p.family.make(p.devices.len(), p.micro_batches).unwrap();
        let mut costs = p.costs(&best).unwrap();
        costs.wiring = crate::Wiring::edges(p.slots);
        let rows = p.rows(&best).unwrap();
        for (row, needs) in rows.iter().zip(schedule.memory(&costs)) {
            prop_assert!(needs <= row.memory, "{needs} of {row:?}");
            let exact = p.family != Family::ZbH1 || !row.recompute;
            prop_assert!(!exact || needs == row.memory, "{needs} of {row:?}");
        }
    }

    #[test]
    fn a_second_method_agrees(
        costs in proptest::collection::vec(0_u32..50, 2..40),
        stages in 1_usize..9,
        scale in 0.01_f64..100.0,
    ) {
        let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
        let stages = stages.min(costs.len());
        let p = problem(&costs, &vec![1.0; stages]);
        let best = p.solve().unwrap();
        let found = worst(&p, &best);
        prop_assert!((found - by_halving(&costs, stages)).abs() < 1e-6);
        // It is never worse than even cuts, covers every layer once, and grows with the costs.
        prop_assert!(found <= worst(&p, &uniform(costs.len(), stages).unwrap()) + 1e-9);
        let layers: Vec<usize> = best.stages().into_iter().flatten().collect();
        prop_assert_eq!(layers, (0..costs.len()).collect::<Vec<_>>());
        let scaled: Vec<f64> = costs.iter().map(|c| c * scale).collect();
        let other = problem(&scaled, &vec![1.0; stages]);
        let grown = worst(&other, &other.solve().unwrap());
        prop_assert!((grown - found * scale).abs() <= 1e-9 * grown.max(1.0));
    }

    #[test]
    fn memory_and_devices_never_hurt(p in problems(), device: usize, more in 1_u64..50) {
        let Ok(best) = p.solve() else { return Ok(()) };
        let before = worst(&p, &best);
        let mut richer = p.clone();
        let device = device % p.devices.len();
        richer.devices[device].memory = p.devices[device].memory.saturating_add(more);
        prop_assert!(worst(&richer, &richer.solve().unwrap()) <= before * (1.0 + 1e-9));
        let mut spare = p.clone();
        spare.spare = true;
        prop_assert!(worst(&spare, &spare.solve().unwrap()) <= before * (1.0 + 1e-9));
    }

    #[test]
    fn chunks_of_interleaved_schedules(
        costs in proptest::collection::vec(0_u32..9, 4..10),
        speeds in proptest::collection::vec(1_u32..3, 1..3),
    ) {
        let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
        let speeds: Vec<f64> = speeds.into_iter().map(f64::from).collect();
        let mut p = problem(&costs, &speeds);
        p.family = Family::Interleaved { chunks: 2 };
        let best = p.solve().unwrap();
        let count = speeds.len();
        let device_cost = |cuts: &[usize]| {
            let devices = (0..2 * count).map(|s| s % count).collect();
            let partition = Partition::new(costs.len(), cuts).unwrap().on(devices).unwrap();
            let mut sums = vec![0.0; count];
            for row in p.rows(&partition).unwrap() {
                sums[row.stage % count] += row.cost;
            }
            sums.into_iter().fold(0.0, f64::max)
        };
        let least = all_cuts(costs.len(), 2 * count).iter().map(|c| device_cost(c)).fold(f64::INFINITY, f64::min);
        prop_assert!((device_cost(best.cuts()) - least).abs() < 1e-9);
    }
}

#[test]
fn steps_come_close_where_there_are_too_many_partitions() {
    let costs: Vec<f64> = (0..60).map(|i| f64::from(1 + (i * 37) % 11)).collect();
    let mut p = problem(&costs, &[1.0; 4]);
    p.family = Family::Interleaved { chunks: 2 };
    let best = p.solve().unwrap();
    let mut sums = [0.0; 4];
    for row in p.rows(&best).unwrap() {
        sums[row.stage % 4] += row.cost;
    }
    let even = costs.iter().sum::<f64>() / 4.0;
    assert!(sums.into_iter().fold(0.0, f64::max) <= even * 1.05, "{sums:?} of {even}");
}

#[test]
fn large_problems_are_solved_at_once() {
    let costs: Vec<f64> = (0..200).map(|i| f64::from(1 + (i * 7919) % 101)).collect();
    let start = std::time::Instant::now();
    problem(&costs, &[1.0; 64]).solve().unwrap();
    let mut free = problem(&costs[..48], &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    free.order = Order::Free;
    free.devices[3] = DeviceSpec { memory: 1 << 30, ..DeviceSpec::new("other", 4.0) };
    free.solve().unwrap();
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
