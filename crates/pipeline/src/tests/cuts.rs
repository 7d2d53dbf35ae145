//! Partitions with known answers, found by an independent brute force.

use crate::partition::{at_names, by_parameters, by_weight, layout, matching, replicated, uniform};
use crate::{
    DeviceSpec, Family, Layer, Link, Links, Order, Partition, Problem, Profile, Recompute, Transfer,
};

/// Layers of these costs for devices of these speeds; parameters and boundaries weigh nothing.
pub(super) fn problem(costs: &[f64], speeds: &[f64]) -> Problem {
    let layers = costs.iter().enumerate().map(|(i, &c)| Layer::new(format!("l{i}"), c)).collect();
    let devices = speeds.iter().enumerate().map(|(i, &s)| DeviceSpec::new(format!("d{i}"), s)).collect();
    let mut problem = Problem::new(layers, devices);
    (problem.copies, problem.slots, problem.micro_batches) = (1, 0, 4);
    problem
}

pub(super) fn worst(problem: &Problem, partition: &Partition) -> f64 {
    problem.rows(partition).unwrap().iter().map(|r| r.cost).fold(0.0, f64::max)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Solves for equal devices and checks the worst cost and the cuts.
fn known(costs: &[f64], stages: usize, cost: f64, optima: &[&[usize]]) {
    let problem = problem(costs, &vec![1.0; stages]);
    let best = problem.solve().unwrap();
    assert!(close(worst(&problem, &best), cost), "{costs:?}: {best:?}");
    assert!(optima.is_empty() || optima.contains(&best.cuts()), "{costs:?}: {best:?}");
    assert_eq!(by_weight(costs, stages).unwrap().cuts(), best.cuts());
}

#[test]
fn equal_devices() {
    known(&[1., 2., 3., 4., 5., 6.], 2, 11., &[&[4]]);
    known(&[0., 1., 2., 3., 3., 3.], 4, 3., &[&[3, 4, 5]]);
    known(&[0., 1.1, 1.9, 3., 30.], 2, 30., &[&[4]]);
    known(&[0., 1.1, 30., 3.], 3, 30., &[&[2, 3]]);
    known(&[1.; 5], 4, 2., &[&[1, 2, 3], &[1, 2, 4], &[1, 3, 4], &[2, 3, 4]]);
    known(&[9., 1., 1., 1., 1., 1., 1., 9.], 3, 9., &[&[1, 7]]);
    known(&[3., 1., 4., 1., 5., 9., 2., 6., 5., 3.], 3, 14., &[&[5, 7]]);
    known(&[3., 1., 4., 1., 5., 9., 2., 6., 5., 3.], 4, 14., &[]);
    known(&[2., 7., 1., 8., 2., 8., 1., 8.], 4, 10., &[&[2, 4, 6], &[3, 4, 6], &[3, 5, 6], &[3, 5, 7]]);
    // Minimising the difference between the stages instead of the worst one lands on [2, 3].
    known(&[1., 4., 2., 2.], 3, 4., &[&[1, 2]]);
    known(&[1., 5., 2., 2.], 3, 5., &[&[1, 2]]);
}

#[test]
fn a_deep_model_by_parameters() {
    let mut params = vec![12_596_224; 27];
    (params[0], params[25], params[26]) = (52_559_872, 0, 52_559_872);
    for (stages, most) in [(8, 52_559_872), (4, 102_944_768)] {
        let best = by_parameters(&params, stages).unwrap();
        let sum = |range: std::ops::Range<usize>| params[range].iter().sum::<u64>();
        assert_eq!(best.stages().into_iter().map(sum).max(), Some(most));
    }
}

#[test]
fn devices_of_several_speeds() {
    let solve = |costs: &[f64], speeds: &[f64]| {
        let problem = problem(costs, speeds);
        let best = problem.solve().unwrap();
        (worst(&problem, &best), best.cuts().to_vec())
    };
    assert_eq!(solve(&[4.; 6], &[2., 1.]), (8., vec![4]));
    assert_eq!(solve(&[4.; 8], &[1., 2., 1.]), (8., vec![2, 6]));
    assert_eq!(solve(&[9., 1., 1., 1.], &[1., 3.]), (9., vec![1]));
    let mut free = problem(&[9., 1., 1., 1.], &[1., 3.]);
    free.order = Order::Free;
    let best = free.solve().unwrap();
    assert_eq!((worst(&free, &best), best.cuts(), best.devices()), (3., &[1][..], &[1, 0][..]));
    let mut free = problem(&[8., 2., 2., 2., 2.], &[1., 1., 2.]);
    assert_eq!(worst(&free, &free.solve().unwrap()), 8.);
    free.order = Order::Free;
    let best = free.solve().unwrap();
    assert_eq!((worst(&free, &best), best.cuts()), (4., &[1, 3][..]));
    assert_eq!(best.devices(), [2, 0, 1]);
    let mut capped = problem(&[6., 2., 2., 2., 4., 4., 8.], &[2., 1., 2.]);
    let best = capped.solve().unwrap();
    assert_eq!(worst(&capped, &best), 6.);
    assert!([[3, 5], [4, 5]].iter().any(|c| c == best.cuts()), "{best:?}");
    capped.most_layers = 3;
    assert_eq!(capped.solve().unwrap().cuts(), [3, 5]);
}

#[test]
fn measured_times_count_instead_of_speeds() {
    let mut p = problem(&[1.; 4], &[1., 1.]);
    // The second device is slow at the third layer only.
    p.devices[1].times = [1., 1., 9., 1.].map(|t| [t / 3.; 3]).to_vec();
    let best = p.solve().unwrap();
    assert_eq!(best.cuts(), [3]);
    assert_eq!(worst(&p, &best), 3.);
}

#[test]
fn memory_bounds() {
    let mut p = problem(&[1.; 6], &[1., 1.]);
    for layer in &mut p.layers {
        layer.params = 1;
    }
    (p.devices[0].memory, p.devices[1].memory) = (2, 4);
    let best = p.solve().unwrap();
    assert_eq!((worst(&p, &best), best.cuts()), (4., &[2][..]));
    p.devices[1].memory = 3;
    let error = p.solve().unwrap_err();
    assert!(error.is_out_of_memory());
    for says in
        ["stage 1 (layers 2..6 on d1) needs 4 B and has 3 B", "all stages need 6 B of 5 B", "more memory"]
    {
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn memory_depends_on_the_schedule() {
    let mut p = problem(&[1.; 4], &[1., 1.]);
    for layer in &mut p.layers {
        (layer.params, layer.stash) = (1, 1);
    }
    for device in &mut p.devices {
        device.memory = 8;
    }
    let best = p.solve().unwrap();
    assert_eq!((worst(&p, &best), best.cuts()), (2., &[2][..]));
    assert_eq!(p.rows(&best).unwrap().iter().map(|r| r.memory).collect::<Vec<_>>(), [6, 4]);
    p.family = Family::GPipe;
    let error = p.solve().unwrap_err();
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains("10 B and has 8 B"), "{error}");
    // It names what helps: recomputing stages stash their inputs only, which weigh nothing here.
    assert!(error.to_string().contains("recomputation"), "{error}");
}

#[test]
fn handovers_that_cost() {
    let mut p = problem(&[2., 2., 2., 3.], &[1., 1.]);
    for (layer, bytes) in p.layers.iter_mut().zip([1, 9, 1]) {
        layer.output = bytes;
    }
    p.links = Links::all(Link::new(0.0, 1.0));
    for (transfer, cost, cuts) in
        [(Transfer::Free, 5., [2]), (Transfer::Serial, 7., [3]), (Transfer::Overlapped, 6., [3])]
    {
        p.transfer = transfer;
        let best = p.solve().unwrap();
        assert_eq!((worst(&p, &best), best.cuts()), (cost, &cuts[..]), "{transfer:?}");
    }
}

#[test]
fn recomputation_where_it_is_needed() {
    let mut p = problem(&[3.; 4], &[1., 1.]);
    for layer in &mut p.layers {
        (layer.stash, layer.output) = (4, 1);
    }
    for device in &mut p.devices {
        device.memory = 12;
    }
    (p.input_bytes, p.micro_batches) = (1, 8);
    assert_eq!(worst(&p, &p.solve().unwrap()), 9.);
    assert_eq!(p.solve().unwrap().cuts(), [1]);
    p.recompute = Recompute::Choose;
    let best = p.solve().unwrap();
    assert_eq!((worst(&p, &best), best.cuts(), best.recomputes()), (8., &[2][..], &[true, false][..]));
    assert_eq!(p.rows(&best).unwrap().iter().map(|r| r.memory).collect::<Vec<_>>(), [10, 8]);
    p.recompute = Recompute::Always;
    assert_eq!(p.solve().unwrap().recomputes(), [true, true]);
}

#[test]
fn replicas_of_a_stage() {
    let (worst, stages) = replicated(&[4., 8.], &[0, 0], 3, 8, 1, Link::FREE).unwrap();
    assert_eq!(worst, 4.);
    assert_eq!(stages.iter().map(|s| s.replicas).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(stages[1].layers, 1..2);
    assert_eq!(replicated(&[4., 8.], &[0, 0], 2, 8, 1, Link::FREE).unwrap().0, 8.);
    let (worst, stages) = replicated(&[4., 8.], &[0, 0], 3, 8, 2, Link::FREE).unwrap();
    assert_eq!((worst, stages.iter().map(|s| s.replicas).sum::<usize>()), (4., 3));
    // Two replicas of 8 bytes send 8 bytes a step, one a micro-batch: 4 + 1.
    assert_eq!(replicated(&[8.], &[8], 2, 8, 1, Link::new(0., 1.)).unwrap().0, 5.);
    assert!(replicated(&[1.; 3], &[0; 3], 1, 8, 2, Link::FREE).is_err());
    assert!(replicated(&[], &[], 1, 8, 2, Link::FREE).is_err());
}

#[test]
fn partitions_by_hand() {
    assert_eq!(uniform(7, 3).unwrap().cuts(), [3, 5]);
    assert!(uniform(2, 3).is_err() && uniform(2, 0).is_err());
    assert!(by_weight(&[1.0, -1.0], 2).is_err());
    assert!(by_weight(&[], 1).is_err());
    let names = ["embed", "block", "block", "block", "block", "norm", "head"];
    let halves = matching(&names, |n| n == "block", 2).unwrap();
    assert_eq!(halves.cuts(), [3]);
    assert_eq!(at_names(&["a", "b", "c"], &["c", "b"]).unwrap().cuts(), [1, 2]);
    for (starts, says) in [
        (&["x"][..], "no layer has the name `x`; there are a, b, b"),
        (&["a"], "first layer"),
        (&["b"], "[1, 2]"),
    ] {
        let error = at_names(&["a", "b", "b"], starts).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let partition = layout(64, "Et*3|(tt|)*29,m|L").unwrap();
    assert_eq!(partition.stages().len(), 32);
    assert_eq!((partition.cuts()[0], partition.cuts()[28], partition.cuts()[30]), (4, 60, 63));
    assert_eq!(layout(4, "(a*2|)*1 b,b").unwrap().cuts(), [2]);
    for (layers, text, says) in [
        (3, "a|b", "has 2 layers; the model has 3"),
        (2, "a||b", "empty stage after 1 layers"),
        (2, "ab|", "ends with an empty stage"),
        (2, "(ab", "not closed"),
        (2, "ab)", "closes a group"),
        (2, "a*|b", "repeats nothing"),
        (2, "a*0b", "repeats nothing"),
        (2, "a1", "`1` is no layer"),
        (2, "((a*99999)*99999)*99999", "more layers or stages"),
    ] {
        let error = layout(layers, text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    for cuts in [&[0][..], &[3], &[2, 2], &[2, 1]] {
        assert!(Partition::new(3, cuts).is_err(), "{cuts:?}");
    }
    assert!(Partition::new(0, &[]).is_err());
    let partition = Partition::new(5, &[2, 4]).unwrap();
    assert_eq!((0..5).map(|l| partition.stage_of(l)).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
    assert!(partition.clone().on(vec![0, 1]).is_err() && partition.recomputing(vec![true]).is_err());
}

#[test]
fn impossible_problems_are_refused() {
    assert!(
        problem(&[1.; 2], &[1.; 3])
            .solve()
            .unwrap_err()
            .to_string()
            .contains("2 layers cannot fill 3 devices")
    );
    assert!(problem(&[], &[1.]).solve().is_err());
    assert!(problem(&[1.], &[0.]).solve().is_err());
    assert!(problem(&[f64::NAN], &[1.]).solve().is_err());
    let mut p = problem(&[1.; 2], &[1.]);
    p.devices[0].times = vec![[1.; 3]];
    assert!(p.solve().unwrap_err().to_string().contains("times of 1 of 2 layers"));
    let p = problem(&[1.; 3], &[1.; 2]);
    assert!(p.rows(&Partition::new(4, &[2]).unwrap()).is_err());
    assert!(p.rows(&Partition::new(3, &[1, 2]).unwrap()).is_err());
}

#[test]
fn slow_devices_may_be_left_out() {
    let mut p = problem(&[3., 3.], &[1., 0.01, 1.]);
    p.spare = true;
    let best = p.solve().unwrap();
    assert_eq!((worst(&p, &best), best.devices()), (3., &[0, 2][..]));
    // In the given order, but not more devices than layers.
    p.devices.push(DeviceSpec::new("fast", 10.));
    let best = p.solve().unwrap();
    assert!(close(worst(&p, &best), 0.6), "{best:?}");
    assert_eq!(best.devices(), [3]);
}

#[test]
fn tables_say_what_counts() {
    let mut p = problem(&[3.; 4], &[2., 1.]);
    for layer in &mut p.layers {
        (layer.stash, layer.output) = (1 << 20, 1000);
    }
    p.links = Links::all(Link::new(0.0, 1e3));
    p.devices[1].memory = 1 << 20;
    let table = p.table(&Partition::new(4, &[2]).unwrap()).unwrap();
    let expected = "\
stage  device  layers           time  handover      cost   memory         of
    0  d0      0..2 l0..l1  3.000000  1.000000  3.000000  4.0 MiB  unlimited
    1  d1      2..4 l2..l3  6.000000  0.000000  6.000000  2.0 MiB    1.0 MiB  does not fit
";
    assert_eq!(table, expected);
}

#[test]
fn profiles_read_back() {
    let mut p = problem(&[1.0 / 3.0, 2.0], &[1.0, 0.1]);
    p.layers[0].name = "a block".into();
    (p.layers[0].params, p.layers[1].output) = (7, u64::MAX);
    p.devices[1].times = vec![[0.1, 0.2, 0.7], [1e-300, 0.0, 1.0]];
    let links = Links::all(Link::FREE).with(0, 1, Link::new(1e-5, 1.5e9));
    let profile = Profile { layers: p.layers, devices: p.devices, links };
    assert_eq!(profile.to_string().parse::<Profile>().unwrap(), profile);
    for (text, says) in [
        ("layer\ta\t1\t2", "line 1: `` in column 5"),
        ("\nlayer\ta\t1\tx\t2\t3\t4\t5", "line 2: `x` in column 4"),
        ("time\t1\t1\t1", "before the first device"),
        ("what", "`what` starts no line"),
    ] {
        let error = text.parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_slower_direction_of_a_link_counts() {
    let mut p = problem(&[2., 2.], &[1., 1.]);
    p.layers[0].output = 6;
    p.links = Links::all(Link::new(0.0, 6.0)).with(1, 0, Link::new(0.0, 2.0));
    let partition = p.solve().unwrap();
    // The gradient comes back at a third of the speed; in inference there is none.
    assert_eq!(worst(&p, &partition), 3.);
    p.family = Family::Forward;
    let rows = p.rows(&partition).unwrap();
    assert_eq!((rows[0].transfer, rows[1].transfer), (1., 0.));
    assert!(close(rows[0].cost, 1.), "{rows:?}");
}

#[test]
fn memory_of_chunks() {
    let mut p = problem(&[3.; 8], &[1., 1.]);
    p.family = Family::Interleaved { chunks: 2 };
    for layer in &mut p.layers {
        (layer.params, layer.stash) = (1, 1);
    }
    let even = p.solve().unwrap();
    assert_eq!(even.cuts(), [2, 4, 6]);
    assert_eq!(even.devices(), [0, 1, 0, 1]);
    // 4 micro-batches: device 0 holds 5 chunks of two layers and its 4 layers, device 1 holds 3.
    assert_eq!(p.rows(&even).unwrap().iter().map(|r| r.memory).collect::<Vec<_>>(), [14, 10, 14, 10]);
    for device in &mut p.devices {
        device.memory = 13;
    }
    let other = p.solve().unwrap();
    assert!(p.rows(&other).unwrap().iter().all(|r| r.memory <= 13), "{other:?}");
    assert_ne!(other.cuts(), even.cuts());
    for device in &mut p.devices {
        device.memory = 8;
    }
    assert!(p.solve().unwrap_err().is_out_of_memory());
    p.recompute = Recompute::Choose;
    let again = p.solve().unwrap();
    assert!(again.recomputes().contains(&true), "{again:?}");
    assert!(p.rows(&again).unwrap().iter().all(|r| r.memory <= 8));
}
