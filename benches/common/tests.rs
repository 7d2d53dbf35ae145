use crate::{Input, Kind, Model, Row, Stamp, Sweep, copies, floats, ids, indices};

/// As `peers/torch_peer.py` makes them.
#[test]
fn values_are_those_of_every_peer() {
    assert_eq!(floats(3, 0, 0.5), [0.2890715, -0.07735783, 0.41676843]);
    assert_eq!(floats(2, 1003, 0.25), [-0.12573966, -0.032507867]);
    assert_eq!(ids(4, 2, 1000), [403, 533, 596, 52]);
    let many = floats(10_000, 5, 2.0);
    assert!(many.iter().all(|x| (-2.0..2.0).contains(x)));
    let mean = many.iter().sum::<f32>() / 10_000.0;
    assert!(mean.abs() < 0.05, "{mean}");
}

#[test]
fn samples_hold_both_ends() {
    assert_eq!(indices(3), [0, 1, 2]);
    let many = indices(1_000_003);
    assert_eq!((many.len(), many[0], many[256]), (257, 0, 1_000_002));
}

#[test]
fn dates_know_leap_days() {
    for (seconds, text) in
        [(0, "1970-01-01 00:00"), (951_782_400, "2000-02-29 00:00"), (1_796_000_345, "2026-11-30 00:59")]
    {
        assert_eq!(crate::record::date(seconds), text);
    }
    assert!(Stamp::now("x", "y", "z", String::new()).date.starts_with("20"));
}

#[test]
fn slopes_are_found() {
    let sizes = [1.0, 2.0, 4.0, 8.0];
    let line = Sweep::of("line", &sizes, &sizes.map(|n| 3.0 * n + 5.0));
    assert!((line.per_unit_ms - 3.0).abs() < 1e-9 && (line.at_zero_ms - 5.0).abs() < 1e-9, "{line}");
    let square = Sweep::of("square", &sizes, &sizes.map(|n| 7.0 * n * n));
    assert!((square.exponent - 2.0).abs() < 1e-9 && (square.last - 2.0).abs() < 1e-9, "{square}");
}

#[test]
fn models_have_the_known_sizes() {
    let count =
        |model: &Model| model.params().iter().map(|p| p.dims.iter().product::<usize>()).sum::<usize>();
    let gpt = Model::Gpt {
        layers: 12,
        width: 768,
        heads: 12,
        tokens: 1024,
        vocabulary: 32000,
        batch: 8,
        mixed: false,
    };
    assert_eq!(count(&gpt), 134_994_432);
    assert_eq!(count(&Model::ResNet18 { batch: 1 }), 11_173_962);
    assert_eq!(count(&Model::Mlp { sizes: vec![784, 512, 512, 10], batch: 1 }), 669_706);
    // 0.56 GFLOP an image forward.
    let flops = Model::ResNet18 { batch: 1 }.flops() / 6.0;
    assert!((flops - 5.55e8).abs() < 0.05e8, "{flops}");
}

#[test]
fn small_operands_come_in_copies() {
    let row = |n: usize| Row {
        name: String::new(),
        op: String::new(),
        inputs: vec![Input { dims: vec![n], kind: Kind::F32, bound: 0 }],
        tolerance: 0.0,
        model: None,
    };
    assert_eq!([1, 1 << 20, 6 << 20, 1 << 28].map(|n| copies(&row(n))), [16, 16, 2, 1]);
}
