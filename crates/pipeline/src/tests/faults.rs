//! What a schedule may not be, and what the errors say.

use crate::schedule::{gpipe, one_f_one_b, zb_h1};
use crate::{Action, Channels, Costs, Edge, Family, Kind, Schedule, Wiring};

fn refused(text: &str, says: &[&str]) {
    let schedule: Schedule = text.parse().unwrap();
    let error = schedule.check(&Wiring::edges(2)).unwrap_err().to_string();
    for word in says {
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }
}

#[test]
fn broken_lists_are_named() {
    refused("D0: F0 B0\nD1: B0 F0", &["device 1", "action 0", "(B0)", "F0 has not run"]);
    refused("D0: F0 B0 B0\nD1: F0 B0", &["device 0", "action 2", "(B0)", "twice"]);
    refused("D0: F0 I0\nD1: F0 B0", &["device 0", "stage 0, micro-batch 0", "missing"]);
    refused("D0: F0 W0 I0\nD1: F0 B0", &["(W0)", "I0 has not run"]);
    refused("D0: F0 B0 I0 W0\nD1: F0 B0", &["(I0)", "already computed"]);
    refused("D0: F0 F1 B0 B1\nD1: F0 B0 B1", &["device 1", "action 2", "(B1)"]);
    refused("D0: F0 F1 B0 B1\nD1: F0 B0", &["device 1", "forward pass of stage 1, micro-batch 1 is missing"]);
    refused("D0: F0 R B0\nD1: F0 B0", &["(R)", "micro-batch 0 are not complete"]);
    // Both stages on one device: the order is wrong without any message.
    refused("stages 0 0\nD0: F0b F0a B0b B0a", &["action 0", "(F0b)", "stage 0 has not run"]);
    refused("stages 0 0\nD0: F0a F0b B0a B0b", &["action 2", "(B0a)", "stage 1 has not run"]);
}

#[test]
fn broken_messages_are_named() {
    let good = "D0: F0 F0>1 B0<1 B0\nD1: F0<0 F0 B0 B0>0";
    assert!(good.parse::<Schedule>().unwrap().check(&Wiring::edges(0)).is_ok());
    refused(
        "D0: F0 F0>1 B0<1 B0\nD1: F0 F0<0 B0 B0>0",
        &["device 1", "action 0", "F0<0 does not stand before"],
    );
    refused("D0: F0>1 F0 B0<1 B0\nD1: F0<0 F0 B0 B0>0", &["(F0>1)", "has not been computed"]);
    refused("D0: F0 B0<1 B0\nD1: F0<0 F0 B0 B0>0", &["device 0", "F0>1 is missing"]);
    refused("D0: F0 F0>1 F0>1 B0<1 B0\nD1: F0<0 F0 B0 B0>0", &["(F0>1)", "twice"]);
    refused("edges 0-1\nD0: F0 F0>1 B0<1 B0\nD1: F0<0 F0 B0 B0>0", &["no gradient comes back"]);
    refused("edges\nD0: F0 F0>1 B0\nD1: F0 B0", &["no edge 0>1"]);
}

#[test]
fn deadlocks_are_explained() {
    // Both devices stand in a send, the smallest deadlock there is.
    let schedule = one_f_one_b(2, 2).unwrap();
    let error = schedule.check(&Wiring::edges(0)).unwrap_err().to_string();
    let cycle = "deadlock: device 0 at action 3 (F1>1) waits for device 1, device 1 at action 3 (B0>0) waits for device 0";
    assert!(error.contains(cycle), "{error}");
    assert!(error.contains("with 1 slots for each it would run"), "{error}");
    // Each device waits for what the other does later: no slot helps.
    refused(
        "D0: F0 B0 F1 B1\nD1: F1 B1 F0 B0",
        &["deadlock", "device 0 at action", "device 1 at action", "no number of slots would help"],
    );
    let crossed: Schedule = "D0: F0 F1 B0 B1\nD1: F1 F0 B0 B1".parse().unwrap();
    let error = crossed.check(&Wiring::edges(4)).unwrap_err().to_string();
    assert!(error.contains("finds F0<0 in the ring first"), "{error}");
    assert!(crossed.check(&Wiring::new(Channels::Tagged, 1)).is_ok());
}

#[test]
fn skips_have_their_own_messages() {
    let edges = || vec![Edge::new(0, 1), Edge::new(1, 2), Edge::new(0, 2), Edge::data(0, 3), Edge::new(2, 3)];
    for family in Family::LINES {
        let schedule = family.make(4, 6).unwrap().with_edges(edges()).unwrap();
        let wiring = schedule.wiring(&Costs::ticks(4)).unwrap();
        let proof = schedule.check(&wiring).unwrap();
        assert_eq!((proof.activations, proof.gradients), (30, 24), "{family}");
        assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        // Skipping two stages, what is sent lies there while they work.
        assert!(wiring.slots(0, 3) > wiring.slots(0, 1), "{family}");
    }
    let gpipe = || gpipe(3, 2).unwrap();
    for edges in [vec![Edge::new(1, 1)], vec![Edge::new(2, 1)], vec![Edge::new(0, 3)]] {
        assert!(gpipe().with_edges(edges).is_err());
    }
    let twice = gpipe().with_edges(vec![Edge::new(0, 1), Edge::data(0, 1)]).unwrap_err();
    assert!(twice.to_string().contains("0>1 stands there twice"));
}

#[test]
fn malformed_text_is_named() {
    for (text, says) in [
        ("D0: F0 X0", "`X0` is no action"),
        ("D0: F", "`F` names no micro-batch"),
        ("D0: F0a F0b", "`F0b` names no stage"),
        ("stages 0 0\nD0: F0", "`F0` names no stage of this device, which has 2"),
        ("D1: F0", "D1 follows 0 devices"),
        ("schedule x\nmicro-batches two", "line 2: `two`"),
        ("edges 0+1\nD0: F0", "`0+1` is no edge"),
        ("what", "`what` starts no line"),
        ("D0: I0>1", "`I0>1` is no action"),
        ("D0: é", "`é` is no action"),
        ("D0: FF0", "`FF0` is no action"),
        ("", "0 stages"),
        ("stages 0 2\nD0: F0\nD1: ", "stage 1 is on device 2"),
        ("stages 0 0\nD0: F0a\nD1:", "device 1 has no stage"),
        ("micro-batches 1\nD0: F1", "micro-batch 1"),
    ] {
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
}

#[test]
fn impossible_numbers_are_refused() {
    for family in Family::LINES.into_iter().chain([Family::Forward, Family::Interleaved { chunks: 2 }]) {
        assert!(family.make(0, 1).is_err());
        assert!(family.make(1, 0).is_err());
    }
    assert!(Family::Interleaved { chunks: 0 }.make(1, 1).is_err());
    for text in ["", "interleaved:0", "interleaved", "2f1b"] {
        assert!(text.parse::<Family>().is_err(), "{text}");
    }
    assert!(Schedule::new("x", 1, vec![0], vec![vec![Action::new(Kind::Forward, 1, 0)]]).is_err());
    assert!(Schedule::new("x", 1, vec![0, 1], vec![vec![Action::new(Kind::Forward, 1, 0)], vec![]]).is_err());
    let schedule = zb_h1(2, 2).unwrap();
    assert!(schedule.simulate(&Costs::ticks(3)).is_err());
    let mut costs = Costs::ticks(2);
    costs.stages[1].weight = -1.0;
    assert!(schedule.simulate(&costs).unwrap_err().to_string().contains("stage 1"));
    costs = Costs::ticks(2);
    costs.sizes = vec![1.0];
    assert!(schedule.simulate(&costs).is_err());
}

#[test]
fn what_a_list_already_holds_stays() {
    let last = |text: &str| {
        let full = text.parse::<Schedule>().unwrap().lowered().to_string();
        full.lines().last().unwrap().to_owned()
    };
    assert_eq!(last("D0: F0 F1 B0 B1"), "D0: F0 F1 B0 B1 R U");
    assert_eq!(last("D0: F0 B0 R"), "D0: F0 B0 R U");
    assert_eq!(last("D0: F0 B0 U"), "D0: F0 B0 U");
    assert_eq!(last("D0: F0"), "D0: F0");
    assert_eq!(last("stages 0 0\nD0: F0a F0b B0b B0a Ra"), "D0: F0a F0b B0b Rb B0a Ra Ua Ub");
}
