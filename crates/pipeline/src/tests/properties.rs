//! What holds for every schedule, tried on random ones.

use proptest::prelude::*;

use crate::{Channels, Costs, Edge, Family, Link, Links, Schedule, StageCost, Wiring};

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![
        Just(Family::Forward),
        Just(Family::GPipe),
        Just(Family::OneFOneB),
        Just(Family::EagerOneFOneB),
        Just(Family::ZbH1),
        (1_usize..4).prop_map(|chunks| Family::Interleaved { chunks }),
    ]
}

/// A schedule of a random family and size, sometimes with skips, sometimes with several stages a device.
fn schedule() -> impl Strategy<Value = (Family, Schedule)> {
    let skips = proptest::collection::vec((0_usize..20, 0_usize..20, any::<bool>()), 0..4);
    (family(), 1_usize..7, 1_usize..13, skips, any::<bool>()).prop_map(|(family, s, m, skips, fold)| {
        let mut schedule = family.make(s, m).unwrap();
        let stages = schedule.stages();
        let mut edges = schedule.edges().to_vec();
        for (a, b, gradient) in skips {
            let (from, to) = (a % stages, b % stages);
            if from < to && !edges.iter().any(|e| (e.from, e.to) == (from, to)) {
                edges.push(Edge { from, to, gradient });
            }
        }
        schedule = schedule.with_edges(edges).unwrap();
        if fold && family.chunks() == 1 {
            let half: Vec<usize> = (0..stages).map(|stage| stage / 2).collect();
            schedule = schedule.placed(&half).unwrap();
        }
        (family, schedule)
    })
}

fn costs(schedule: &Schedule, times: &[f64], hop: f64) -> Costs {
    let t = |i: usize| times[i % times.len()];
    let stages = (0..schedule.stages()).map(|s| StageCost::new(t(3 * s), t(3 * s + 1), t(3 * s + 2)));
    Costs { links: Links::all(Link::new(hop, f64::INFINITY)), ..Costs::new(stages.collect()) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn makers_pass_the_check((family, schedule) in schedule()) {
        let wiring = schedule.wiring(&Costs::ticks(schedule.stages())).unwrap();
        let proof = schedule.check(&wiring).unwrap();
        prop_assert!(proof.ascending);
        prop_assert_eq!(proof.activations + proof.gradients, schedule.messages().len());
        let devices = schedule.lists().len();
        if family != Family::Forward && devices * family.chunks() == schedule.stages() {
            for r in 0..devices {
                prop_assert_eq!(proof.stash[r], family.stash(devices, schedule.micro_batches(), r));
            }
        }
        // Written out, it is the same schedule.
        let full = schedule.lowered();
        prop_assert_eq!(full.check(&wiring).unwrap(), proof);
        prop_assert_eq!(&full.lowered(), &full);
    }

    #[test]
    fn the_text_reads_back((_, schedule) in schedule()) {
        prop_assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule.clone());
        let full = schedule.lowered();
        prop_assert_eq!(full.to_string().parse::<Schedule>().unwrap(), full);
    }

    #[test]
    fn simulations_keep_the_lower_bounds(
        (_, schedule) in schedule(),
        times in proptest::collection::vec(0.1_f64..5.0, 1..20),
        hop in 0.0_f64..3.0,
    ) {
        let costs = costs(&schedule, &times, hop);
        let run = schedule.simulate(&costs).unwrap();
        let training = schedule.is_training();
        // No device is faster than its own work.
        for (device, time) in run.devices.iter().enumerate() {
            let one = |s: usize| {
                let c = &costs.stages[s];
                c.forward + if training { c.input + c.weight } else { 0.0 }
            };
            let work: f64 = schedule.stages_of(device).into_iter().map(one).sum::<f64>()
                * schedule.micro_batches() as f64;
            prop_assert!((time.busy - work).abs() < 1e-9 * work.max(1.0));
            prop_assert!(run.makespan >= work - 1e-9);
        }
        // No micro-batch is faster than its way through all stages and back.
        let way: f64 = costs.stages.iter().map(|c| c.forward + if training { c.input } else { 0.0 }).sum();
        let crossings = schedule.devices().windows(2).filter(|d| d[0] != d[1]).count();
        let hops = crossings as f64 * hop * if training { 2.0 } else { 1.0 };
        prop_assert!(run.makespan >= way + hops - 1e-9);
        // Actions of a device do not overlap; each message crosses once, forward in time.
        for device in 0..schedule.lists().len() {
            let mine: Vec<_> = run.spans.iter().filter(|s| s.device == device).collect();
            prop_assert!(mine.windows(2).all(|p| p[0].end <= p[1].start));
        }
        let mut crossed: Vec<_> = run.passages.iter().map(|p| p.message).collect();
        crossed.sort();
        prop_assert_eq!(crossed, schedule.messages());
        prop_assert!(run.passages.iter().all(|p| p.sent + hop <= p.arrived + 1e-9 && p.arrived <= p.taken));
        // The slots that it asks for are as good as any number, and no number makes it faster.
        let mut slotted = costs.clone();
        slotted.wiring = schedule.wiring(&costs).unwrap();
        prop_assert_eq!(schedule.simulate(&slotted).unwrap().makespan, run.makespan);
        slotted.wiring = Wiring::edges(schedule.fewest_slots(Channels::Edges).unwrap());
        prop_assert!(schedule.simulate(&slotted).unwrap().makespan >= run.makespan - 1e-9);
    }

    #[test]
    fn a_broken_order_is_refused_or_harmless((_, schedule) in schedule(), device: usize, a: usize, b: usize) {
        let device = device % schedule.lists().len();
        let mut lists = schedule.lists().to_vec();
        let list = &mut lists[device];
        let (a, b) = (a % list.len(), b % list.len());
        list.swap(a, b);
        let changed = Schedule::new("changed", schedule.micro_batches(), schedule.devices().to_vec(), lists);
        let changed = changed.unwrap().with_edges(schedule.edges().to_vec()).unwrap();
        // What the check lets through must run to its end, with every action in it.
        if changed.check(&Wiring::edges(2)).is_ok() {
            let mut costs = Costs::ticks(schedule.stages());
            costs.wiring = Wiring::edges(2);
            let run = changed.simulate(&costs).unwrap();
            let computed = run.spans.iter().filter(|s| s.action.is_compute()).count();
            prop_assert_eq!(computed, schedule.lists().iter().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn a_missing_or_doubled_action_is_refused((_, schedule) in schedule(), pick: usize, double: bool) {
        let mut lists = schedule.lowered().lists().to_vec();
        let device = pick % lists.len();
        let list = &mut lists[device];
        let computes: Vec<usize> = (0..list.len()).filter(|&i| list[i].is_compute()).collect();
        let at = computes[(pick / 7) % computes.len()];
        if double {
            list.insert(at, list[at]);
        } else {
            list.remove(at);
        }
        let text = schedule.lowered().to_string();
        let changed = Schedule::new("changed", schedule.micro_batches(), schedule.devices().to_vec(), lists);
        prop_assert!(changed.unwrap().check(&Wiring::unlimited()).is_err(), "{}", text);
    }
}
