//! Random numbers: the same bits on every device, and their distribution.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{floats, run};

crate::suite![
    plain: draws_of_one_stream_differ;
    device: random_numbers_have_their_distribution,
];

fn random_numbers_have_their_distribution(subject: &Subject) {
    let moments = |x: &[f64]| {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        (mean, (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
    };
    let ctx = subject.context();
    let (mean, std) = moments(&run(&ctx, |p| p.randn("n", [300, 301])).2);
    assert!(mean.abs() < 0.015 && (std - 1.0).abs() < 0.01, "randn on {mean} {std}");
    let uniform = run(&ctx, |p| p.rand("u", [300, 301])).2;
    let (mean, std) = moments(&uniform);
    assert!((mean - 0.5).abs() < 5e-3 && (std - 12f64.sqrt().recip()).abs() < 5e-3, "{mean} {std}");
    assert!(uniform.iter().all(|u| (0.0..1.0).contains(u) && (u * 16_777_216.0).fract() == 0.0));
    let (rate, _) = moments(&run(&ctx, |p| p.bernoulli("b", [300, 301], 0.3)).2);
    assert!((rate - 0.3).abs() < 8e-3, "bernoulli on {rate}");
    let uniform = run(&ctx, |p| p.uniform("v", [300, 301], -3.0..5.0)).2;
    assert!(uniform.iter().all(|x| (-3.0..5.0).contains(x)) && (moments(&uniform).0 - 1.0).abs() < 0.04);
    let (mean, std) = moments(&run(&ctx, |p| p.normal("m", [300, 301], 3.0, 0.5)).2);
    assert!((mean - 3.0).abs() < 8e-3 && (std - 0.5).abs() < 6e-3, "normal on {mean} {std}");
    let exponential = run(&ctx, |p| p.exponential("e", [300, 301], 2.0)).2;
    let (mean, std) = moments(&exponential);
    assert!((mean - 0.5).abs() < 8e-3 && (std - 0.5).abs() < 0.012, "exponential on {mean} {std}");
    assert!(exponential.iter().all(|x| *x > 0.0));
    let whole = run(&ctx, |p| p.randint("i", [3000], -5..6)).2;
    assert!((-5..6).all(|i| whole.contains(&f64::from(i))) && whole.iter().all(|x| (-5.0..6.0).contains(x)));
    let dropped = run(&ctx, |p| p.ones([100, 101]).dropout("d", 0.25)).2;
    assert!(dropped.iter().all(|x| *x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6));
    assert!((moments(&dropped).0 - 1.0).abs() < 0.03, "dropout");
    // Odds 1 : 3.
    let drawn = run(&ctx, |p| {
        let logits = floats(p, [2], &[0.0, 3f32.ln()]).expand([4000, 2]);
        logits.categorical("c", 1.0)
    });
    assert!((moments(&drawn.2).0 - 0.75).abs() < 0.035, "categorical");
    let greedy = run(&ctx, |p| floats(p, [1, 3], &[0.0, 2.0, 1.0]).categorical("c", 0.0));
    assert_eq!(greedy.2, [1.0]);
}

fn draws_of_one_stream_differ() {
    let (x, y) = oracle()
        .pass(|p| Ok((p.rand("s", [64]).to_vec::<f64>()?, p.rand("s", [64]).to_vec::<f64>()?)))
        .unwrap();
    assert_ne!(x, y);
}
