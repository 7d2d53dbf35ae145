//! Normalisation layers.

use wgrad::{BatchNorm, LocalResponseNorm};

use super::{Golden, golden, one};

fn layers() -> Vec<Golden> {
    vec![
        golden("layer_norm", |_, x| x[0].layer_norm(x[1], x[2], 1e-5)),
        golden("layer_norm eps", |_, x| x[0].layer_norm(x[1], x[2], 0.75)),
        golden("layer_norm several axes", |_, x| x[0].layer_norm(x[1], x[2], 1e-5)),
        one("layer_norm plain", |x| x.layer_norm(None, None, 1e-5)),
        one("layer_norm constant", |x| x.layer_norm(None, None, 1e-5)),
        golden("layer_norm twice", |_, x| x[0].layer_norm(x[1], x[2], 1e-5)),
        golden("rms_norm", |_, x| x[0].rms_norm(x[1], 1e-5)),
        one("rms_norm plain", |x| x.rms_norm(None, 0.5)),
        one("rms_norm zeros", |x| x.rms_norm(None, 1e-5)),
        golden("rms_norm twice", |_, x| x[0].rms_norm(x[1], 1e-5)),
        golden("group_norm", |_, x| x[0].group_norm(2, x[1], x[2], 1e-5)),
        golden("group_norm 2d", |_, x| x[0].group_norm(3, x[1], x[2], 1e-3)),
        one("group_norm plain", |x| x.group_norm(1, None, None, 1e-5)),
        one("instance_norm", |x| x.instance_norm(None, None, 1e-5)),
        golden("instance_norm affine", |_, x| x[0].instance_norm(x[1], x[2], 1e-3)),
    ]
}

/// Of operands x, weight, bias, running mean, running variance.
fn train(x: &[wgrad::Tensor], options: BatchNorm) -> [wgrad::Tensor; 3] {
    x[0].batch_norm_train(x[3], x[4], x[1], x[2], options)
}

/// The output and the statistics, which stay.
fn eval(x: &[wgrad::Tensor]) -> [wgrad::Tensor; 3] {
    [x[0].batch_norm(x[3], x[4], x[1], x[2], 1e-5), x[3], x[4]]
}

fn batches() -> Vec<Golden> {
    vec![
        golden("batch_norm train", |_, x| train(x, BatchNorm::default())),
        golden("batch_norm train 1d", |_, x| train(x, BatchNorm::default())),
        golden("batch_norm train 2d", |_, x| train(x, BatchNorm { momentum: 0.3, eps: 1e-3 })),
        golden("batch_norm running", |_, x| train(x, BatchNorm::default())),
        golden("batch_norm eval", |_, x| eval(x)),
        golden("batch_norm eval 2d", |_, x| eval(x)),
        golden("batch_norm twice", |_, x| {
            // Statistics that nothing is taken of.
            let none = x[1].detach();
            x[0].batch_norm_train(none, none, x[1], x[2], BatchNorm::default())[0]
        }),
    ]
}

fn responses() -> Vec<Golden> {
    vec![
        one("local_response_norm", |x| {
            x.local_response_norm(LocalResponseNorm { size: 3, ..Default::default() })
        }),
        one("local_response_norm even", |x| {
            x.local_response_norm(LocalResponseNorm { size: 2, alpha: 0.5, beta: 0.6, k: 2.0 })
        }),
        one("local_response_norm wide", |x| {
            x.local_response_norm(LocalResponseNorm { size: 9, alpha: 0.5, ..Default::default() })
        }),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = layers();
    all.extend(batches());
    all.extend(responses());
    all
}
