//! The choice of a schedule.

use super::cuts::problem;
use super::hops;
use crate::{Costs, Family, Link, Links, Recompute, auto, rank};

fn four(hop: f64, memory: u64) -> Vec<String> {
    let candidates = Family::LINES.map(|f| {
        let schedule = f.make(4, 8).unwrap();
        let costs = hops(&schedule, hop);
        (schedule, costs)
    });
    let ranking = rank(candidates.to_vec(), &[memory; 4]);
    assert_eq!(ranking.fitting.len() + ranking.rejected.len(), 4);
    ranking.fitting.iter().map(|r| r.schedule.name().to_owned()).collect()
}

#[test]
fn links_and_memory_decide() {
    assert_eq!(four(0.0, 8), ["zb-h1", "1f1b", "eager-1f1b", "gpipe"]);
    // On slow links plain 1F1B is the slowest; of equally fast ones the smaller comes first.
    assert_eq!(four(1.0, 8), ["eager-1f1b", "gpipe", "zb-h1", "1f1b"]);
    assert_eq!(four(1.0, 6), ["zb-h1", "1f1b"]);
    assert!(four(0.0, 3).is_empty());
}

#[test]
fn the_ranking_prints() {
    let candidates = Family::LINES.map(|f| (f.make(4, 8).unwrap(), Costs::ticks(4)));
    let text = rank(candidates.to_vec(), &[7; 4]).to_string();
    let expected = "\
rank  schedule            time  bubble  bytes a device
   1  zb-h1          27.000000  11.1 %  4 4 4 4
   2  1f1b           33.000000  27.3 %  4 3 2 1
   3  eager-1f1b     33.000000  27.3 %  7 5 3 1
   -  gpipe       pipeline::rank: device 0 needs 8 bytes and has 7
";
    assert_eq!(text, expected);
    let none = rank(vec![], &[]);
    assert!(none.best().unwrap_err().is_out_of_memory());
}

#[test]
fn each_family_has_its_own_partition() {
    let families =
        || Family::LINES.into_iter().chain([Family::Interleaved { chunks: 2 }]).collect::<Vec<_>>();
    let mut p = problem(&[3.0; 8], &[1.0, 1.0]);
    (p.micro_batches, p.slots) = (8, 2);
    for layer in &mut p.layers {
        (layer.params, layer.stash, layer.output) = (2, 4, 1);
    }
    let all = auto(&p, &families()).unwrap();
    assert_eq!(all.rejected, []);
    assert_eq!(all.best().unwrap().schedule.name(), "zb-h1");
    let [zb, interleaved] =
        ["zb-h1", "interleaved:2"].map(|n| all.fitting.iter().find(|r| r.schedule.name() == n).unwrap());
    assert_eq!(zb.partition.as_ref().unwrap().cuts(), [4]);
    assert_eq!(interleaved.partition.as_ref().unwrap().cuts(), [2, 4, 6]);
    // F+I-W are 4 ticks of a stage of 4 layers; a chunk has half of that.
    assert_eq!(zb.run.makespan, 8.0 * 12.0 + 4.0);
    assert_eq!(interleaved.run.makespan, 8.0 * 12.0 + 6.0);
    // GPipe needs the most: with less memory it falls out, with less still only recomputation helps.
    let needs = |name: &str| {
        let found = all.fitting.iter().find(|r| r.schedule.name() == name).unwrap();
        *found.run.memory.iter().max().unwrap()
    };
    for device in &mut p.devices {
        device.memory = needs("gpipe") - 1;
    }
    let fewer = auto(&p, &families()).unwrap();
    assert!(fewer.rejected.iter().any(|r| r.0 == "gpipe"), "{fewer}");
    for device in &mut p.devices {
        device.memory = 31;
    }
    let none = auto(&p, &families()).unwrap();
    assert!(none.best().is_err(), "{none}");
    assert!(none.to_string().contains("What would help: recomputation"), "{none}");
    p.recompute = Recompute::Choose;
    let again = auto(&p, &families()).unwrap();
    assert!(again.best().unwrap().partition.as_ref().unwrap().recomputes().contains(&true));
}

#[test]
fn slow_links_change_the_choice() {
    let mut p = problem(&[3.0; 4], &[1.0; 4]);
    p.slots = 8;
    p.micro_batches = 8;
    for layer in &mut p.layers {
        layer.output = 1;
    }
    let families = Family::LINES;
    assert_eq!(auto(&p, &families).unwrap().best().unwrap().schedule.name(), "zb-h1");
    p.links = Links::all(Link::new(1.0, f64::INFINITY));
    assert_eq!(auto(&p, &families).unwrap().best().unwrap().run.makespan, 39.0);
}

#[test]
fn schedules_get_the_slots_that_they_cannot_do_without() {
    let mut p = problem(&[3.0; 8], &[1.0; 4]);
    (p.slots, p.micro_batches) = (0, 11);
    let families: Vec<Family> =
        Family::LINES.into_iter().chain([Family::Interleaved { chunks: 2 }]).collect();
    let ranking = auto(&p, &families).unwrap();
    assert_eq!(ranking.rejected, []);
    for ranked in &ranking.fitting {
        ranked.schedule.check(&ranked.costs.wiring).unwrap();
    }
}
