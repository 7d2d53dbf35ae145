//! Normalisations.

use wgrad::{BatchNorm, LocalResponseNorm, Tensor};

use super::{Case, case, float};

pub(crate) fn cases() -> Vec<Case> {
    let x = || float([3, 5, 7], -2.0, 2.0);
    let (w, b) = (float([7], 0.5, 1.5), float([7], -1.0, 1.0));
    let (cw, cb) = (float([6], 0.5, 1.5), float([6], -1.0, 1.0));
    let image = || float([2, 6, 3, 2], -2.0, 2.0);
    let mut all = vec![
        case("layer_norm", [x(), w.clone(), b.clone()], |_, x| x[0].layer_norm(x[1], x[2], 1e-5)),
        case("layer_norm weight alone", [x(), w.clone()], |_, x| x[0].layer_norm(x[1], None, 1e-3)),
        case("layer_norm bias alone", [x(), b], |_, x| x[0].layer_norm(None, x[1], 1e-3)),
        case("layer_norm plain", [x()], |_, x| x[0].layer_norm(None, None, 1e-3)),
        case("layer_norm two axes", [x(), float([5, 7], 0.5, 1.5), float([5, 7], -1.0, 1.0)], |_, x| {
            x[0].layer_norm(x[1], x[2], 1e-3)
        }),
        case("layer_norm all axes", [float([3, 4], -2.0, 2.0), float([3, 4], 0.5, 1.5)], |_, x| {
            x[0].layer_norm(x[1], None, 1e-3)
        }),
        case("layer_norm large mean", [float([2, 9], 1000.0, 1001.0)], |_, x| {
            x[0].layer_norm(None, None, 1e-5)
        })
        .no_grad()
        .tolerance(2e-3),
        case("rms_norm", [x(), w], |_, x| x[0].rms_norm(x[1], 1e-5)),
        case("rms_norm plain", [x()], |_, x| x[0].rms_norm(None, 0.5)),
        case("rms_norm one weight", [x(), float([1], 0.5, 1.5)], |_, x| x[0].rms_norm(x[1], 0.5)),
        case("rms_norm two axes", [x(), float([5, 7], 0.5, 1.5)], |_, x| x[0].rms_norm(x[1], 1e-5)),
        case("standardize inner axis", [x()], |_, x| x[0].standardize(1, 1e-3)),
        case("standardize two axes", [x()], |_, x| x[0].standardize([0, 2], 1e-3)),
        case("group_norm", [image(), cw.clone(), cb.clone()], |_, x| x[0].group_norm(3, x[1], x[2], 1e-3)),
        case("group_norm one group", [image()], |_, x| x[0].group_norm(1, None, None, 1e-3)),
        case("group_norm vectors", [float([3, 6], -2.0, 2.0), cw.clone()], |_, x| {
            x[0].group_norm(2, x[1], None, 1e-3)
        }),
        case("instance_norm", [image(), cw.clone(), cb.clone()], |_, x| x[0].instance_norm(x[1], x[2], 1e-3)),
        case("instance_norm 1-D", [float([2, 3, 5], -2.0, 2.0)], |_, x| x[0].instance_norm(None, None, 1e-3)),
        case(
            "batch_norm",
            [image(), float([6], -1.0, 1.0), float([6], 0.3, 2.0), cw.clone(), cb.clone()],
            |_, x| x[0].batch_norm(x[1], x[2], x[3], x[4], 1e-5),
        ),
        case(
            "batch_norm plain",
            [float([4, 6], -2.0, 2.0), float([6], -1.0, 1.0), float([6], 0.3, 2.0)],
            |_, x| x[0].batch_norm(x[1], x[2], None, None, 1e-5),
        ),
        case("local_response_norm", [image()], |_, x| {
            x[0].local_response_norm(LocalResponseNorm { size: 3, alpha: 0.5, beta: 0.75, k: 1.0 })
        }),
        case("local_response_norm even", [float([2, 5, 3], -2.0, 2.0)], |_, x| {
            x[0].local_response_norm(LocalResponseNorm { size: 4, alpha: 0.7, beta: 0.6, k: 2.0 })
        }),
    ];
    for (name, dims) in [
        ("batch_norm_train", &[4, 6][..]),
        ("batch_norm_train 1-D", &[2, 6, 5]),
        ("batch_norm_train 2-D", &[2, 6, 3, 2]),
    ] {
        let train = |x: &[Tensor]| {
            x[0].batch_norm_train(x[1], x[2], x[3], x[4], BatchNorm { momentum: 0.3, eps: 1e-3 })
        };
        let operands =
            [float(dims, -2.0, 2.0), float([6], -1.0, 1.0), float([6], 0.3, 2.0), cw.clone(), cb.clone()];
        all.push(case(name, operands.clone(), move |_, x| train(x)[0]));
        all.push(case(format!("{name} mean"), operands.clone(), move |_, x| train(x)[1]).no_grad());
        all.push(case(format!("{name} variance"), operands, move |_, x| train(x)[2]).no_grad());
    }
    all
}
