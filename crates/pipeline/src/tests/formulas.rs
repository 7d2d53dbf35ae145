//! Makespan, bubble, stash, transfers and slots against their formulas.

use super::{hops, ticks};
use crate::schedule::{eager_one_f_one_b, forward_only, gpipe, interleaved, one_f_one_b, split_batch, zb_h1};
use crate::{Channels, Costs, Family, Links, Payload, Schedule, StageCost, Wiring};

fn makespan(schedule: &Schedule) -> f64 {
    schedule.simulate(&ticks(schedule)).unwrap().makespan
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn gpipe_and_1f1b() {
    for s in 1..=6 {
        for m in 1..=3 * s {
            let time = (3 * (m + s - 1)) as f64;
            for schedule in [gpipe(s, m).unwrap(), one_f_one_b(s, m).unwrap()] {
                let run = schedule.simulate(&ticks(&schedule)).unwrap();
                // With fewer micro-batches than stages 1F1B keeps this time too.
                assert_eq!(run.makespan, time, "{} S={s} M={m}", schedule.name());
                assert!(close(run.bubble(), (s - 1) as f64 / (m + s - 1) as f64));
                assert!(run.devices.iter().all(|d| d.busy == 3.0 * m as f64));
                let proof = schedule.check(&Wiring::edges(1)).unwrap();
                assert_eq!((proof.activations, proof.gradients), (m * (s - 1), m * (s - 1)));
                assert!(proof.ascending);
            }
            assert_eq!(gpipe(s, m).unwrap().check(&Wiring::edges(0)).unwrap().stash, vec![m; s]);
            let proof = one_f_one_b(s, m).unwrap().check(&Wiring::edges(1)).unwrap();
            assert_eq!(proof.stash, (0..s).map(|r| m.min(s - r)).collect::<Vec<_>>());
            let forward = forward_only(s, m).unwrap();
            assert_eq!(makespan(&forward), (m + s - 1) as f64);
            let proof = forward.check(&Wiring::edges(0)).unwrap();
            assert_eq!((proof.activations, proof.gradients), (m * (s - 1), 0));
        }
    }
}

#[test]
fn numbers_of_4_stages() {
    let spans = |schedule: &Schedule| {
        let run = schedule.simulate(&ticks(schedule)).unwrap();
        run.devices.iter().map(|d| d.end - d.start).collect::<Vec<_>>()
    };
    assert_eq!(spans(&one_f_one_b(4, 8).unwrap()), [33.0, 30.0, 27.0, 24.0]);
    assert_eq!(spans(&zb_h1(4, 8).unwrap()), [27.0, 26.0, 25.0, 24.0]);
    for (m, time, stash) in [(1, 12.0, [1, 1, 1, 1]), (2, 15.0, [2, 2, 2, 1]), (3, 18.0, [3, 3, 2, 1])] {
        let schedule = one_f_one_b(4, m).unwrap();
        assert_eq!(makespan(&schedule), time);
        assert_eq!(schedule.check(&Wiring::edges(1)).unwrap().stash, stash);
    }
    let even = Costs::equal(4, StageCost { backward: 1.0, ..StageCost::new(1.0, 0.5, 0.5) });
    for schedule in [gpipe(4, 8).unwrap(), one_f_one_b(4, 8).unwrap()] {
        let run = schedule.simulate(&even).unwrap();
        assert_eq!(run.makespan, 22.0);
        assert!(run.devices.iter().all(|d| d.busy == 16.0));
    }
}

#[test]
fn eager_1f1b() {
    for s in 1..=6 {
        for m in 1..=3 * s {
            let schedule = eager_one_f_one_b(s, m).unwrap();
            assert_eq!(makespan(&schedule), (3 * (m + s - 1)) as f64, "S={s} M={m}");
            let proof = schedule.check(&Wiring::edges(2)).unwrap();
            assert_eq!(proof.stash, (0..s).map(|r| m.min(2 * (s - r) - 1)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn interleaved_in_even_rounds() {
    for s in 1..=6 {
        for m in (s..=3 * s).step_by(s) {
            for v in 1..=3 {
                let schedule = interleaved(s, v, m).unwrap();
                let run = schedule.simulate(&ticks(&schedule)).unwrap();
                assert_eq!(run.makespan, (3 * (v * m + s - 1)) as f64, "S={s} M={m} V={v}");
                assert!(close(run.bubble(), (s - 1) as f64 / (v * m + s - 1) as f64));
                let proof = schedule.check(&Wiring::edges(2)).unwrap();
                let stash = |r| (v * m).min(2 * (s - r - 1) + (v - 1) * s + 1);
                assert_eq!(proof.stash, (0..s).map(stash).collect::<Vec<_>>());
                if s > 1 {
                    assert_eq!((proof.activations, proof.gradients), (m * (s * v - 1), m * (s * v - 1)));
                }
            }
        }
    }
    let schedule = interleaved(4, 2, 8).unwrap();
    let across = |payload, from: usize, to: usize| {
        let place = |stage: usize| schedule.devices()[stage];
        let all = schedule.messages();
        all.iter().filter(|m| m.payload == payload && (place(m.from), place(m.to)) == (from, to)).count()
    };
    let counts = [(0, 1, 16), (1, 2, 16), (2, 3, 16), (3, 0, 8)];
    for (from, to, count) in counts {
        assert_eq!(across(Payload::Activation, from, to), count);
        assert_eq!(across(Payload::Gradient, to, from), count);
    }
}

#[test]
fn interleaved_in_uneven_rounds() {
    for s in 1..=6 {
        for v in 1..=4 {
            for m in 1..=4 * s + 1 {
                let schedule = interleaved(s, v, m).unwrap();
                let slots = schedule.fewest_slots(Channels::Edges).unwrap();
                let round = m.div_ceil((m / s).max(1));
                assert!(slots <= round.saturating_sub(s) + 1, "S={s} V={v} M={m}: {slots} slots");
                let proof = schedule.check(&Wiring::edges(slots)).unwrap();
                let family = Family::Interleaved { chunks: v };
                let stash: Vec<usize> = (0..s).map(|r| family.stash(s, m, r)).collect();
                assert_eq!(proof.stash, stash, "S={s} V={v} M={m}");
            }
        }
    }
}

#[test]
fn zero_bubble() {
    for s in 1..=6 {
        for m in s..=3 * s {
            for (f, i, w) in
                [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (1.0, 2.0, 1.0), (2.0, 3.0, 2.0), (3.0, 3.0, 2.0)]
            {
                let schedule = zb_h1(s, m).unwrap();
                let run = schedule.simulate(&Costs::equal(s, StageCost::new(f, i, w))).unwrap();
                let time = m as f64 * (f + i + w) + (s - 1) as f64 * (f + i - w);
                assert_eq!(run.makespan, time, "S={s} M={m} F={f} I={i} W={w}");
                let proof = schedule.check(&Wiring::edges(1)).unwrap();
                assert_eq!(proof.stash, vec![m.min(s); s]);
                assert_eq!(proof.input_stash, (0..s).map(|r| m.min(s - r)).collect::<Vec<_>>());
                assert_eq!((proof.activations, proof.gradients), (m * (s - 1), m * (s - 1)));
                assert!(proof.ascending);
            }
        }
    }
    for (m, time) in [(1, 9.0), (2, 11.0), (3, 13.0)] {
        assert_eq!(makespan(&zb_h1(4, m).unwrap()), time);
    }
    for ((f, i, w), time) in
        [((2., 2., 1.), 49.), ((1., 2., 1.), 38.), ((2., 3., 2.), 65.), ((3., 3., 2.), 76.)]
    {
        let costs = Costs::equal(4, StageCost::new(f, i, w));
        assert_eq!(zb_h1(4, 8).unwrap().simulate(&costs).unwrap().makespan, time);
    }
}

#[test]
fn slow_handovers_change_the_ranking() {
    let makers = [
        (gpipe(4, 8).unwrap(), [33.0, 33.6, 34.2, 36.0, 39.0, 45.0]),
        (one_f_one_b(4, 8).unwrap(), [33.0, 34.6, 36.2, 41.0, 49.0, 65.0]),
        (eager_one_f_one_b(4, 8).unwrap(), [33.0, 33.6, 34.2, 36.0, 39.0, 48.0]),
        (zb_h1(4, 8).unwrap(), [27.0, 28.2, 29.4, 33.0, 41.0, 57.0]),
    ];
    for (schedule, times) in makers {
        for (hop, time) in [0.0, 0.1, 0.2, 0.5, 1.0, 2.0].into_iter().zip(times) {
            let run = schedule.simulate(&hops(&schedule, hop)).unwrap();
            assert!(close(run.makespan, time), "{} hop {hop}: {}", schedule.name(), run.makespan);
        }
    }
    // A chunk takes half as long as a stage.
    let schedule = interleaved(4, 2, 8).unwrap();
    for (hop, time) in [(0.0, 28.5), (0.1, 29.9), (0.2, 31.3), (0.5, 35.5), (1.0, 46.0)] {
        let run = schedule.simulate(&hops(&schedule, 2.0 * hop)).unwrap();
        assert!(close(run.makespan / 2.0, time), "hop {hop}: {}", run.makespan / 2.0);
    }
    for (hop, time) in [(1.0, 71.0), (2.0, 92.0)] {
        assert_eq!(schedule.simulate(&hops(&schedule, hop)).unwrap().makespan, time);
    }
}

#[test]
fn slots() {
    let four = [
        (gpipe(4, 8).unwrap(), 0, 0),
        (one_f_one_b(4, 8).unwrap(), 1, 1),
        (zb_h1(4, 8).unwrap(), 1, 1),
        (interleaved(4, 2, 8).unwrap(), 1, 2),
    ];
    for (schedule, fewest, waiting) in four {
        let name = schedule.name();
        for channels in [Channels::Edges, Channels::Pairs, Channels::Tagged] {
            assert_eq!(schedule.fewest_slots(channels), Some(fewest), "{name} {channels:?}");
        }
        let wiring = schedule.wiring(&ticks(&schedule)).unwrap();
        let most = schedule.messages().iter().map(|m| wiring.slots(m.from, m.to)).max();
        assert_eq!(most, Some(waiting + 1), "{name}");
    }
    assert_eq!(interleaved(2, 3, 4).unwrap().fewest_slots(Channels::Pairs), Some(2));
}

#[test]
fn few_slots_slow_the_senders_only() {
    let schedule = one_f_one_b(4, 8).unwrap();
    let mut costs = hops(&schedule, 0.5);
    let free = schedule.simulate(&costs).unwrap().makespan;
    costs.wiring = schedule.wiring(&costs).unwrap();
    assert_eq!(schedule.simulate(&costs).unwrap().makespan, free);
    costs.wiring = Wiring::edges(1);
    assert!(schedule.simulate(&costs).unwrap().makespan >= free);
    costs.wiring = Wiring::edges(0);
    let error = schedule.simulate(&costs).unwrap_err().to_string();
    assert!(error.contains("deadlock"), "{error}");
}

#[test]
fn a_link_carries_one_message_at_a_time() {
    // Two messages of 3 bytes over a link of one byte a tick: the second leaves when the first has.
    let schedule = forward_only(2, 2).unwrap();
    let mut costs = Costs::ticks(2);
    costs.links = Links::all(crate::Link::new(1.0, 1.0));
    costs.bytes.insert((0, 1), 3);
    let run = schedule.simulate(&costs).unwrap();
    let arrived: Vec<f64> = run.passages.iter().map(|p| p.arrived).collect();
    assert_eq!(arrived, [1.0 + 3.0 + 1.0, 4.0 + 3.0 + 1.0]);
    assert_eq!(run.makespan, 9.0);
}

#[test]
fn uneven_micro_batches() {
    assert_eq!(split_batch(10, 3).unwrap(), [4, 3, 3]);
    assert_eq!(split_batch(7, 2).unwrap(), [4, 3]);
    assert!(split_batch(2, 3).is_err());
    assert!(split_batch(3, 0).is_err());
    let mut costs = Costs::ticks(2);
    costs.sizes = vec![1.0, 0.5];
    let run = gpipe(2, 2).unwrap().simulate(&costs).unwrap();
    // F0 F1 on device 0 end at 1 and 1.5; device 1 runs F0 1..2, F1 2..2.5, B0 2.5..4.5, B1 4.5..5.5.
    assert_eq!(run.devices[1].end, 5.5);
    // Device 0 runs B0 4.5..6.5 and B1 after it.
    assert_eq!(run.makespan, 7.5);
    assert_eq!(run.memory, [2, 2]);
}

#[test]
fn several_stages_on_one_device() {
    let line = one_f_one_b(4, 8).unwrap();
    let two = line.placed(&[0, 0, 1, 1]).unwrap();
    let proof = two.check(&Wiring::edges(1)).unwrap();
    assert_eq!((proof.activations, proof.gradients), (8, 8));
    assert!(proof.ascending);
    // Each device has twice the work of a stage, and one boundary is left.
    assert!(makespan(&two) <= 2.0 * 3.0 * 9.0 + 6.0, "{}", makespan(&two));
    let one = line.placed(&[0; 4]).unwrap();
    assert_eq!(makespan(&one), 96.0);
    assert!(one.messages().is_empty());
    let turned = line.placed(&[3, 2, 1, 0]).unwrap();
    assert_eq!(makespan(&turned), 33.0);
    for devices in [&[0, 0, 1][..], &[0, 2, 2, 2]] {
        assert!(line.placed(devices).is_err(), "{devices:?}");
    }
}

#[test]
fn recomputation_in_the_simulation() {
    let plain = StageCost { stash: 10, kept: 10, ..StageCost::new(1.0, 1.0, 1.0) };
    let again = plain.recomputed(2);
    assert_eq!((again.backward, again.input, again.weight), (3.0, 2.0, 1.0));
    let run = one_f_one_b(2, 4).unwrap().simulate(&Costs::new(vec![again, plain])).unwrap();
    assert_eq!(run.memory, [2 * 2 + 10, 10]);
}

#[test]
fn a_sender_waits_for_a_free_slot() {
    let schedule = forward_only(2, 4).unwrap();
    let mut costs = Costs::new(vec![StageCost::new(1.0, 0.0, 0.0), StageCost::new(5.0, 0.0, 0.0)]);
    let starts = |costs: &Costs| {
        let run = schedule.simulate(costs).unwrap();
        run.spans.iter().filter(|s| s.device == 0).map(|s| s.start).collect::<Vec<_>>()
    };
    assert_eq!(starts(&costs), [0.0, 1.0, 2.0, 3.0]);
    // The slot of message 1 is free when device 1 takes it at 6; until then device 0 holds message 2.
    costs.wiring = Wiring::edges(1);
    assert_eq!(starts(&costs), [0.0, 1.0, 2.0, 6.0]);
    costs.wiring = Wiring::edges(2);
    assert_eq!(starts(&costs), [0.0, 1.0, 2.0, 3.0]);
    // Without slots device 0 holds each message until it is taken.
    costs.wiring = Wiring::edges(0);
    assert_eq!(starts(&costs), [0.0, 1.0, 6.0, 11.0]);
    costs.wiring = Wiring::unlimited().with(0, 1, 1);
    assert_eq!(starts(&costs), [0.0, 1.0, 2.0, 6.0]);
}

#[test]
fn small_micro_batches_cross_faster() {
    let schedule = forward_only(2, 2).unwrap();
    let mut costs = Costs::ticks(2);
    costs.links = Links::all(crate::Link::new(0.0, 1.0));
    costs.bytes.insert((0, 1), 8);
    costs.sizes = vec![1.0, 0.25];
    let run = schedule.simulate(&costs).unwrap();
    assert_eq!(run.passages.iter().map(|p| p.arrived).collect::<Vec<_>>(), [9.0, 11.0]);
}
