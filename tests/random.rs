//! Random numbers: the same bits on every device, and their distribution.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Pass, Result, Tensor};

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{floats, run};

crate::suite![
    plain: draws_of_one_stream_differ;
    device: random_numbers_have_their_distribution, tails_are_cut, multinomial_follows_the_weights,
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

/// The cuts of the tail by hand: what stays, with ties, on the edge and for each line by itself.
fn tails_are_cut(subject: &Subject) {
    let ctx = subject.context();
    let inf = f64::NEG_INFINITY;
    let lines = |p: &Pass| floats(p, [2, 4], &[1.0, 3.0, 2.0, 3.0, 0.5, -1.0, 4.0, 0.0]);
    let kept = run(&ctx, |p| lines(p).keep_top_k(1)).2;
    assert_eq!(kept, [inf, 3.0, inf, 3.0, inf, inf, 4.0, inf], "equal ones stay together");
    let kept = run(&ctx, |p| lines(p).keep_top_k(3)).2;
    assert_eq!(kept, [inf, 3.0, 2.0, 3.0, 0.5, inf, 4.0, 0.0]);
    assert_eq!(run(&ctx, |p| lines(p).keep_top_k(4)).2, run(&ctx, lines).2);
    // Probabilities 0.5, 0.25, 0.125, 0.125.
    let nucleus = |least: f64| {
        let logs = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let kept = run(&ctx, |p| floats(p, [1, 4], &logs).keep_top_p(least)).2;
        kept.iter().filter(|x| x.is_finite()).count()
    };
    assert_eq!([1e-6, 0.49, 0.51, 0.74, 0.76, 1.0].map(nucleus), [1, 1, 2, 2, 4, 4]);
    let refused = |f: fn(Tensor) -> Result<Tensor>, words: &str| {
        let error = ctx.pass(|p| f(lines(p))).unwrap_err();
        assert!(error.to_string().contains(words), "`{words}` is missing: {error}");
    };
    refused(|x| x.try_keep_top_k(5), "5 of 4 categories");
    refused(|x| x.try_keep_top_k(0), "0 of 4 categories");
    refused(|x| x.try_keep_top_p(0.0), "not in (0, 1]");
    refused(|x| x.try_keep_top_p(f64::NAN), "not in (0, 1]");
    refused(|x| x.try_multinomial("s", 5, false), "5 different ones of 4");
}

/// Draws by weights: shares with replacement, all different without, never a weight of 0.
fn multinomial_follows_the_weights(subject: &Subject) {
    let ctx = subject.context();
    let weights = [1.0f32, 0.0, 2.0, 5.0];
    let many = run(&ctx, |p| {
        floats(p, [2, 4], &[weights, [0.0, 1.0, 0.0, 0.0]].concat()).multinomial("m", 8000, true)
    });
    assert_eq!(many.0, [2, 8000].into());
    let share = |i: f64| many.2[..8000].iter().filter(|x| **x == i).count() as f64 / 8000.0;
    for (i, w) in weights.iter().enumerate() {
        assert!((share(i as f64) - f64::from(*w) / 8.0).abs() < 0.02, "category {i}: {}", share(i as f64));
    }
    assert!(many.2[8000..].iter().all(|x| *x == 1.0), "a sure one");
    let lines = 3000;
    let first = run(&ctx, |p| floats(p, [4], &weights).expand([lines, 4]).multinomial("m", 3, false)).2;
    for line in first.chunks(3) {
        let mut sorted = line.to_vec();
        sorted.sort_by(f64::total_cmp);
        assert_eq!(sorted, [0.0, 2.0, 3.0], "all that have a weight, each once");
    }
    // The first of a line is drawn as with replacement, the second among what is left: 5/8, then 2/3 or 5/6 ..
    let at = |place: usize| first.chunks(3).filter(|line| line[place] == 3.0).count() as f64 / lines as f64;
    let second = (1.0 / 8.0) * (5.0 / 7.0) + (2.0 / 8.0) * (5.0 / 6.0);
    assert!((at(0) - 5.0 / 8.0).abs() < 0.03 && (at(1) - second).abs() < 0.03, "{} {}", at(0), at(1));
}

fn draws_of_one_stream_differ() {
    let (x, y) = oracle()
        .pass(|p| Ok((p.rand("s", [64]).to_vec::<f64>()?, p.rand("s", [64]).to_vec::<f64>()?)))
        .unwrap();
    assert_ne!(x, y);
}
