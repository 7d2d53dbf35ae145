//! Losses with every option.

use wgrad::{
    Bce, BceWithLogits, CosineEmbedding, CrossEntropy, Ctc, GaussianNll, Hinge, HingeEmbedding, Huber, KlDiv,
    MarginRanking, MultiMargin, Nll, PoissonNll, Reduction, SmoothL1, Tensor, TripletMargin,
};

use super::{Case, Operand, case, float, floats_of, ints, ints_of};

const REDUCTIONS: [(&str, Reduction); 4] = [
    ("mean", Reduction::Mean),
    ("sum", Reduction::Sum),
    ("batch mean", Reduction::BatchMean),
    ("none", Reduction::None),
];

/// An elementwise loss under each reduction.
fn reduced(
    all: &mut Vec<Case>,
    name: &str,
    operands: &[Operand],
    f: impl Fn(&[Tensor], Reduction) -> Tensor + Copy + Send + Sync + 'static,
) {
    for (word, reduction) in REDUCTIONS {
        all.push(case(format!("{name} {word}"), operands, move |_, x| f(x, reduction)));
    }
}

/// Targets 1 and -1.
fn signs(dims: &[usize]) -> Operand {
    let count: usize = dims.iter().product();
    ints_of(dims, &(0..count as i64).map(|i| if i * i % 3 == 1 { -1 } else { 1 }).collect::<Vec<_>>())
}

fn elementwise(all: &mut Vec<Case>) {
    let x = float([3, 5], -2.0, 2.0);
    let t = float([3, 5], -1.7, 2.3);
    let two = [x.clone(), t.clone()];
    reduced(all, "mse", &two, |x, r| x[0].mse_with(x[1], r));
    reduced(all, "l1", &two, |x, r| x[0].l1_with(x[1], r));
    reduced(all, "smooth_l1", &two, |x, reduction| {
        x[0].smooth_l1_with(x[1], SmoothL1 { reduction, ..Default::default() })
    });
    reduced(all, "huber", &two, |x, reduction| {
        x[0].huber_with(x[1], Huber { reduction, ..Default::default() })
    });
    all.push(case("smooth_l1 beta 0.3", two.clone(), |_, x| {
        x[0].smooth_l1_with(x[1], SmoothL1 { beta: 0.3, ..Default::default() })
    }));
    all.push(case("smooth_l1 beta 0", two.clone(), |_, x| {
        x[0].smooth_l1_with(x[1], SmoothL1 { beta: 0.0, ..Default::default() })
    }));
    all.push(case("huber delta 0.4", two.clone(), |_, x| {
        x[0].huber_with(x[1], Huber { delta: 0.4, ..Default::default() })
    }));
    all.push(case("mse scalar", [float([], 0.0, 1.0), float([], 1.0, 2.0)], |_, x| x[0].mse(x[1])));
    all.push(case("mse empty", [float([0, 3], 0.0, 1.0), float([0, 3], 1.0, 2.0)], |_, x| x[0].mse(x[1])));
    all.push(case("l1 one", [float([1, 1], 0.0, 1.0), float([1, 1], 1.0, 2.0)], |_, x| x[0].l1(x[1])));
    let logs = [float([3, 5], -3.0, -0.2), float([3, 5], 0.05, 0.9)];
    reduced(all, "kl_div", &logs, |x, reduction| {
        x[0].kl_div_with(x[1], KlDiv { reduction, ..Default::default() })
    });
    all.push(case("kl_div of logarithms", [float([3, 5], -3.0, -0.2), float([3, 5], -2.5, -0.1)], |_, x| {
        x[0].kl_div_with(x[1], KlDiv { log_target: true, ..Default::default() })
    }));
    let hard = ints_of([2, 3], &[0, 1, 0, 0, 0, 1]);
    all.push(case("kl_div of hard targets", [float([2, 3], -3.0, -0.2), hard], |_, x| x[0].kl_div(x[1])));
    let counts = [float([3, 5], -1.0, 1.0), float([3, 5], 0.2, 4.0)];
    reduced(all, "poisson_nll", &counts, |x, reduction| {
        x[0].poisson_nll_with(x[1], PoissonNll { reduction, ..Default::default() })
    });
    all.push(case("poisson_nll full", counts, |_, x| {
        x[0].poisson_nll_with(x[1], PoissonNll { full: true, ..Default::default() })
    }));
    all.push(case("poisson_nll of rates", [float([3, 5], 0.3, 3.0), float([3, 5], 0.2, 4.0)], |_, x| {
        x[0].poisson_nll_with(x[1], PoissonNll { log_input: false, full: true, ..Default::default() })
    }));
    let normal = [x.clone(), t.clone(), float([3, 5], 0.3, 2.0)];
    reduced(all, "gaussian_nll", &normal, |x, reduction| {
        x[0].gaussian_nll_with(x[1], x[2], GaussianNll { reduction, ..Default::default() })
    });
    all.push(case("gaussian_nll full", [x.clone(), t, float([3, 1], 0.3, 2.0)], |_, x| {
        x[0].gaussian_nll_with(x[1], x[2], GaussianNll { full: true, ..Default::default() })
    }));
    reduced(all, "soft_margin", &[x, signs(&[3, 5])], |x, r| x[0].soft_margin_with(x[1], r));
}

fn classes(all: &mut Vec<Case>) {
    let (x, t) = (float([4, 5], -2.0, 2.0), ints([4], 0, 5));
    let weight = float([5], 0.3, 1.5);
    let some = ints_of([4], &[2, -100, 0, 2]);
    for (word, reduction) in REDUCTIONS {
        let plain = CrossEntropy { reduction, ..Default::default() };
        all.push(case(format!("cross_entropy {word}"), [x.clone(), t.clone()], move |_, x| {
            x[0].cross_entropy_with(x[1], plain)
        }));
        all.push(case(
            format!("cross_entropy all options {word}"),
            [x.clone(), some.clone(), weight.clone()],
            move |_, x| {
                let options = CrossEntropy {
                    ignore_index: Some(-100),
                    label_smoothing: 0.1,
                    weight: Some(x[2]),
                    ..plain
                };
                x[0].cross_entropy_with(x[1], options)
            },
        ));
        all.push(case(
            format!("cross_entropy probabilities {word}"),
            [x.clone(), float([4, 5], 0.0, 0.5)],
            move |_, x| x[0].cross_entropy_with(x[1], plain),
        ));
        let nll = Nll { reduction, ..Default::default() };
        all.push(case(format!("nll {word}"), [x.clone(), t.clone()], move |_, x| x[0].nll_with(x[1], nll)));
        all.push(case(
            format!("nll all options {word}"),
            [x.clone(), some.clone(), weight.clone()],
            move |_, x| x[0].nll_with(x[1], Nll { ignore_index: Some(-100), weight: Some(x[2]), ..nll }),
        ));
    }
    all.push(case("cross_entropy weight", [x.clone(), t.clone(), weight.clone()], |_, x| {
        x[0].cross_entropy_with(x[1], CrossEntropy { weight: Some(x[2]), ..Default::default() })
    }));
    all.push(case("cross_entropy label smoothing", [x.clone(), t.clone()], |_, x| {
        x[0].cross_entropy_with(x[1], CrossEntropy { label_smoothing: 0.2, ..Default::default() })
    }));
    all.push(case("cross_entropy ignore index", [x.clone(), t], |_, x| {
        x[0].cross_entropy_with(x[1], CrossEntropy { ignore_index: Some(2), ..Default::default() })
    }));
    all.push(case(
        "cross_entropy class axis 1",
        [float([2, 4, 3, 2], -2.0, 2.0), ints([2, 3, 2], 0, 4)],
        |_, x| x[0].cross_entropy_with(x[1], CrossEntropy { axis: 1, ..Default::default() }),
    ));
    all.push(case(
        "cross_entropy class axis 1 all options",
        [float([2, 4, 3], -2.0, 2.0), ints([2, 3], 0, 4), float([4], 0.3, 1.5)],
        |_, x| {
            let options = CrossEntropy {
                axis: 1,
                ignore_index: Some(1),
                label_smoothing: 0.3,
                weight: Some(x[2]),
                ..Default::default()
            };
            x[0].cross_entropy_with(x[1], options)
        },
    ));
    all.push(case(
        "cross_entropy probabilities all options",
        [float([2, 4, 3], -2.0, 2.0), float([2, 4, 3], 0.0, 0.7), float([4], 0.3, 1.5)],
        |_, x| {
            let options =
                CrossEntropy { axis: 1, label_smoothing: 0.3, weight: Some(x[2]), ..Default::default() };
            x[0].cross_entropy_with(x[1], options)
        },
    ));
    all.push(case("cross_entropy one target", [float([7], -2.0, 2.0), ints([], 0, 7)], |_, x| {
        x[0].cross_entropy(x[1])
    }));
    all.push(case("cross_entropy empty", [float([0, 3], -2.0, 2.0), ints([0], 0, 3)], |_, x| {
        x[0].cross_entropy(x[1])
    }));
    all.push(case("nll class axis 1", [float([2, 4, 3], -2.0, 2.0), ints([2, 3], 0, 4)], |_, x| {
        x[0].nll_with(x[1], Nll { axis: 1, ..Default::default() })
    }));
}

fn binary(all: &mut Vec<Case>) {
    let (x, t) = (float([3, 5], 0.05, 0.95), float([3, 5], 0.0, 1.0));
    reduced(all, "bce", &[x.clone(), t.clone()], |x, reduction| {
        x[0].bce_with(x[1], Bce { reduction, ..Default::default() })
    });
    all.push(case("bce weight", [x, t.clone(), float([5], 0.3, 1.5)], |_, x| {
        x[0].bce_with(x[1], Bce { weight: Some(x[2]), ..Default::default() })
    }));
    let x = float([3, 5], -4.0, 4.0);
    reduced(all, "bce_with_logits", &[x.clone(), t.clone()], |x, reduction| {
        x[0].bce_with_logits_with(x[1], BceWithLogits { reduction, ..Default::default() })
    });
    all.push(case(
        "bce_with_logits weights",
        [x, t, float([3, 1], 0.3, 1.5), float([5], 0.4, 2.5)],
        |_, x| {
            let options = BceWithLogits { weight: Some(x[2]), pos_weight: Some(x[3]), ..Default::default() };
            x[0].bce_with_logits_with(x[1], options)
        },
    ));
}

fn margins(all: &mut Vec<Case>) {
    let (x, w) = (float([3, 5], -2.0, 2.0), float([3, 5], -1.7, 2.3));
    let t = signs(&[3, 5]);
    reduced(all, "hinge", &[x.clone(), t.clone()], |x, reduction| {
        x[0].hinge_with(x[1], Hinge { reduction, ..Default::default() })
    });
    reduced(all, "hinge_embedding", &[x.clone(), t.clone()], |x, reduction| {
        x[0].hinge_embedding_with(x[1], HingeEmbedding { reduction, margin: 0.7 })
    });
    reduced(all, "margin_ranking", &[x.clone(), w.clone(), t], |x, reduction| {
        x[0].margin_ranking_with(x[1], x[2], MarginRanking { reduction, margin: 0.4 })
    });
    reduced(all, "cosine_embedding", &[x.clone(), w.clone(), signs(&[3])], |x, reduction| {
        x[0].cosine_embedding_with(x[1], x[2], CosineEmbedding { reduction, margin: -0.2 })
    });
    let three = [x, w, float([3, 5], -2.4, 1.9)];
    reduced(all, "triplet_margin", &three, |x, reduction| {
        x[0].triplet_margin_with(x[1], x[2], TripletMargin { reduction, ..Default::default() })
    });
    all.push(case("triplet_margin swap", three.clone(), |_, x| {
        x[0].triplet_margin_with(x[1], x[2], TripletMargin { swap: true, margin: 2.0, ..Default::default() })
    }));
    all.push(case("triplet_margin p 3", three, |_, x| {
        x[0].triplet_margin_with(x[1], x[2], TripletMargin { p: 3.0, margin: 2.0, ..Default::default() })
    }));
    let (x, t) = (float([4, 5], -1.0, 1.0), ints([4], 0, 5));
    reduced(all, "multi_margin", &[x.clone(), t.clone()], |x, reduction| {
        x[0].multi_margin_with(x[1], MultiMargin { reduction, ..Default::default() })
    });
    all.push(case("multi_margin p 2 weight", [x, t, float([5], 0.3, 1.5)], |_, x| {
        let options = MultiMargin { p: 2, margin: 0.8, weight: Some(x[2]), ..Default::default() };
        x[0].multi_margin_with(x[1], options)
    }));
}

fn ctc(all: &mut Vec<Case>) {
    let x = float([6, 2, 4], -3.0, 1.0);
    // A repeated label, a padded target.
    let targets = ints_of([2, 3], &[1, 1, 3, 2, 3, -1]);
    let operands = [x, targets, ints_of([2], &[6, 5]), ints_of([2], &[3, 2])];
    for (word, reduction) in REDUCTIONS {
        let options = Ctc { reduction, ..Default::default() };
        all.push(case(format!("ctc {word}"), operands.clone(), move |_, x| {
            x[0].log_softmax(-1).ctc_with(x[1], x[2], x[3], options)
        }));
    }
    let short = ints_of([2], &[1, 5]);
    all.push(case(
        "ctc zero infinity",
        [float([6, 2, 4], -3.0, 1.0), ints_of([2, 3], &[1, 1, 3, 2, 3, 1]), short, ints_of([2], &[3, 2])],
        |_, x| {
            let options = Ctc { zero_infinity: true, ..Default::default() };
            x[0].log_softmax(-1).ctc_with(x[1], x[2], x[3], options)
        },
    ));
    all.push(case(
        "ctc empty target",
        [
            float([3, 2, 3], -3.0, 1.0),
            ints_of([2, 2], &[0, 1, 1, 0]),
            ints_of([2], &[3, 2]),
            ints_of([2], &[0, 2]),
        ],
        |_, x| {
            let options = Ctc { blank: 2, reduction: Reduction::None, ..Default::default() };
            x[0].log_softmax(-1).ctc_with(x[1], x[2], x[3], options)
        },
    ));
    all.push(case(
        "ctc one sequence",
        [float([4, 3], -3.0, 1.0), ints_of([2], &[1, 2]), ints_of([], &[4]), ints_of([], &[2])],
        |_, x| x[0].log_softmax(-1).ctc(x[1], x[2], x[3]),
    ));
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    elementwise(&mut all);
    classes(&mut all);
    binary(&mut all);
    margins(&mut all);
    ctc(&mut all);
    let cut = floats_of([4], &[0.5, 0.25, 0.125, 1.0]);
    all.push(case("kl_div sharp", [float([4], -3.0, -0.2), cut], |_, x| x[0].kl_div(x[1])));
    all
}
