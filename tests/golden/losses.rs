//! Losses, each reduction.

use wgrad::{
    Bce, BceWithLogits, CosineEmbedding, CrossEntropy, Ctc, GaussianNll, HingeEmbedding, Huber, KlDiv,
    MarginRanking, MultiMargin, Nll, PoissonNll, Reduction, SmoothL1, Tensor, TripletMargin,
};

use super::{Golden, golden, two};

/// A loss under every reduction.
fn each(name: &str, f: fn(&[Tensor], Reduction) -> Tensor) -> [Golden; 3] {
    let kinds = [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)];
    kinds.map(|(kind, r)| golden(format!("{name} {kind}"), move |_, x| f(x, r)))
}

fn regressions() -> Vec<Golden> {
    let mut all = Vec::new();
    all.extend(each("mse", |x, r| x[0].mse_with(x[1], r)));
    all.extend(each("l1", |x, r| x[0].l1_with(x[1], r)));
    all.extend(each("smooth_l1", |x, r| x[0].smooth_l1_with(x[1], SmoothL1 { beta: 0.7, reduction: r })));
    all.extend(each("huber", |x, r| x[0].huber_with(x[1], Huber { delta: 0.7, reduction: r })));
    all.extend(each("poisson_nll", |x, r| {
        x[0].poisson_nll_with(x[1], PoissonNll { reduction: r, ..Default::default() })
    }));
    all.extend(each("gaussian_nll", |x, r| {
        x[0].gaussian_nll_with(x[1], x[2], GaussianNll { reduction: r, ..Default::default() })
    }));
    all.extend([
        two("smooth_l1 beta 0", |x, t| x.smooth_l1_with(t, SmoothL1 { beta: 0.0, ..Default::default() })),
        two("l1 equal", Tensor::l1),
        two("huber limits", |x, t| x.huber_with(t, Huber { delta: 1.0, ..Default::default() })),
        two("mse of nothing", Tensor::mse),
        two("poisson_nll plain", |x, t| {
            x.poisson_nll_with(t, PoissonNll { log_input: false, ..Default::default() })
        }),
        two("poisson_nll full", |x, t| {
            x.poisson_nll_with(t, PoissonNll { full: true, ..Default::default() })
        }),
        golden("gaussian_nll full", |_, x| {
            x[0].gaussian_nll_with(x[1], x[2], GaussianNll { full: true, ..Default::default() })
        }),
        golden("gaussian_nll eps", |_, x| {
            x[0].gaussian_nll_with(x[1], x[2], GaussianNll { eps: 0.5, ..Default::default() })
        }),
    ]);
    all
}

/// PyTorch's defaults: classes on axis 1 (or 0 of one sample), index -100 ignored.
fn classes() -> CrossEntropy {
    CrossEntropy { axis: 1, ignore_index: Some(-100), ..Default::default() }
}

/// Options for targets that are probabilities: nothing is ignored.
fn parts() -> CrossEntropy {
    CrossEntropy { axis: 1, ..Default::default() }
}

/// As [`classes`], with label smoothing.
fn smooth(label_smoothing: f64) -> CrossEntropy {
    CrossEntropy { label_smoothing, ..classes() }
}

fn cross_entropies() -> Vec<Golden> {
    let mut all = Vec::new();
    all.extend(each("cross_entropy", |x, r| {
        x[0].cross_entropy_with(x[1], CrossEntropy { reduction: r, ..classes() })
    }));
    all.extend(each("cross_entropy weight", |x, r| {
        x[0].cross_entropy_with(x[1], CrossEntropy { weight: Some(x[2]), reduction: r, ..classes() })
    }));
    all.extend(each("cross_entropy smoothing", |x, r| {
        x[0].cross_entropy_with(x[1], CrossEntropy { label_smoothing: 0.2, reduction: r, ..classes() })
    }));
    all.extend(each("cross_entropy ignore", |x, r| {
        x[0].cross_entropy_with(x[1], CrossEntropy { reduction: r, ..classes() })
    }));
    all.extend(each("cross_entropy everything", |x, r| {
        let options = CrossEntropy {
            axis: 1,
            ignore_index: Some(2),
            label_smoothing: 0.1,
            weight: Some(x[2]),
            reduction: r,
        };
        x[0].cross_entropy_with(x[1], options)
    }));
    all.extend(each("cross_entropy probabilities", |x, r| {
        x[0].cross_entropy_with(x[1], CrossEntropy { reduction: r, ..parts() })
    }));
    all.extend([
        two("cross_entropy ignore smoothing", |x, t| {
            x.cross_entropy_with(t, CrossEntropy { ignore_index: Some(0), ..smooth(0.1) })
        }),
        golden("cross_entropy two classes", |_, x| {
            x[0].cross_entropy_with(x[1], CrossEntropy { weight: Some(x[2]), ..smooth(0.1) })
        }),
        two("cross_entropy trailing", |x, t| x.cross_entropy_with(t, classes())),
        golden("cross_entropy trailing 2d weight", |_, x| {
            x[0].cross_entropy_with(x[1], CrossEntropy { weight: Some(x[2]), ..classes() })
        }),
        two("cross_entropy one sample", Tensor::cross_entropy),
        golden("cross_entropy probabilities weight", |_, x| {
            x[0].cross_entropy_with(
                x[1],
                CrossEntropy { weight: Some(x[2]), label_smoothing: 0.2, ..parts() },
            )
        }),
        two("cross_entropy probabilities trailing", |x, t| x.cross_entropy_with(t, parts())),
        two("cross_entropy all ignored sum", |x, t| {
            x.cross_entropy_with(t, CrossEntropy { reduction: Reduction::Sum, ..classes() })
        }),
        two("cross_entropy all ignored mean", |x, t| x.cross_entropy_with(t, classes())),
        two("cross_entropy large", Tensor::cross_entropy),
        golden("cross_entropy twice", |_, x| {
            x[0].cross_entropy_with(x[1], CrossEntropy { weight: Some(x[2]), ..smooth(0.2) })
        }),
    ]);
    all
}

fn likelihoods() -> Vec<Golden> {
    let mut all = Vec::new();
    all.extend(each("nll", |x, r| {
        x[0].log_softmax(1).nll_with(x[1], Nll { axis: 1, reduction: r, ..Default::default() })
    }));
    all.extend(each("nll weight", |x, r| {
        let options = Nll { axis: 1, ignore_index: Some(1), weight: Some(x[2]), reduction: r };
        x[0].log_softmax(1).nll_with(x[1], options)
    }));
    all.push(two("nll trailing", |x, t| x.log_softmax(1).nll_with(t, Nll { axis: 1, ..Default::default() })));
    all.extend(each("bce", |x, r| x[0].bce_with(x[1], Bce { reduction: r, ..Default::default() })));
    all.extend(each("bce_with_logits", |x, r| {
        x[0].bce_with_logits_with(x[1], BceWithLogits { reduction: r, ..Default::default() })
    }));
    all.extend(each("kl_div", |x, r| x[0].kl_div_with(x[1], KlDiv { reduction: r, ..Default::default() })));
    all.extend([
        golden("bce weight", |_, x| x[0].bce_with(x[1], Bce { weight: Some(x[2]), ..Default::default() })),
        two("bce limits", |x, t| x.bce_with(t, Bce { reduction: Reduction::None, ..Default::default() })),
        golden("bce_with_logits pos_weight", |_, x| {
            x[0].bce_with_logits_with(x[1], BceWithLogits { pos_weight: Some(x[2]), ..Default::default() })
        }),
        golden("bce_with_logits weight", |_, x| {
            x[0].bce_with_logits_with(x[1], BceWithLogits { weight: Some(x[2]), ..Default::default() })
        }),
        two("bce_with_logits large", Tensor::bce_with_logits),
        two("bce_with_logits twice", Tensor::bce_with_logits),
        two("kl_div batchmean", |x, t| {
            x.kl_div_with(t, KlDiv { reduction: Reduction::BatchMean, ..Default::default() })
        }),
        two("kl_div log_target", |x, t| x.kl_div_with(t, KlDiv { log_target: true, ..Default::default() })),
        two("kl_div target 0", |x, t| {
            x.kl_div_with(t, KlDiv { reduction: Reduction::Sum, ..Default::default() })
        }),
    ]);
    all
}

fn margins() -> Vec<Golden> {
    let mut all = Vec::new();
    all.extend(each("hinge_embedding", |x, r| {
        x[0].hinge_embedding_with(x[1], HingeEmbedding { margin: 1.2, reduction: r })
    }));
    all.extend(each("margin_ranking", |x, r| {
        x[0].margin_ranking_with(x[1], x[2], MarginRanking { margin: 0.3, reduction: r })
    }));
    all.extend(each("triplet_margin", |x, r| {
        x[0].triplet_margin_with(
            x[1],
            x[2],
            TripletMargin { margin: 1.5, reduction: r, ..Default::default() },
        )
    }));
    all.extend(each("cosine_embedding", |x, r| {
        x[0].cosine_embedding_with(x[1], x[2], CosineEmbedding { margin: 0.1, reduction: r })
    }));
    all.extend(each("soft_margin", |x, r| x[0].soft_margin_with(x[1], r)));
    all.extend(each("multi_margin", |x, r| {
        x[0].multi_margin_with(x[1], MultiMargin { margin: 0.8, reduction: r, ..Default::default() })
    }));
    all.extend([
        golden("triplet_margin swap", |_, x| {
            x[0].triplet_margin_with(
                x[1],
                x[2],
                TripletMargin { margin: 2.0, swap: true, ..Default::default() },
            )
        }),
        golden("triplet_margin p 1", |_, x| {
            x[0].triplet_margin_with(x[1], x[2], TripletMargin { p: 1.0, ..Default::default() })
        }),
    ]);
    all
}

/// Of logits, with the gradient of the whole.
fn ctc(x: &[Tensor], options: Ctc) -> Tensor {
    x[0].log_softmax(-1).ctc_with(x[1], x[2], x[3], options)
}

fn ctcs() -> Vec<Golden> {
    let mut all = Vec::new();
    all.extend(each("ctc", |x, r| ctc(x, Ctc { reduction: r, ..Default::default() })));
    let none = || Ctc { reduction: Reduction::None, ..Default::default() };
    all.extend([
        golden("ctc blank", |_, x| ctc(x, Ctc { blank: 3, ..Default::default() })),
        golden("ctc impossible", move |_, x| ctc(x, none())),
        golden("ctc zero_infinity", move |_, x| ctc(x, Ctc { zero_infinity: true, ..none() })),
        golden("ctc empty target", |_, x| ctc(x, Ctc { reduction: Reduction::Sum, ..Default::default() })),
    ]);
    all
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = regressions();
    all.extend(cross_entropies());
    all.extend(likelihoods());
    all.extend(margins());
    all.extend(ctcs());
    all
}
