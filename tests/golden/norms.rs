//! Normalisation layers.

use super::{Golden, golden};

fn layers() -> Vec<Golden> {
    vec![
        golden("layer_norm", |_, x| x[0].layer_norm(x[1], x[2], 1e-5)),
        golden("layer_norm eps", |_, x| x[0].layer_norm(x[1], x[2], 0.75)),
        golden("layer_norm plain", |_, x| x[0].standardize(-1, 1e-5)),
        golden("layer_norm constant", |_, x| x[0].standardize(-1, 1e-5)),
        golden("layer_norm twice", |_, x| x[0].layer_norm(x[1], x[2], 1e-5)),
        golden("rms_norm", |_, x| x[0].rms_norm(x[1], 1e-5)),
        golden("rms_norm twice", |_, x| x[0].rms_norm(x[1], 1e-5)),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    layers()
}
