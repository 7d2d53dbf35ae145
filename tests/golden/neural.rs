//! Softmax, attention, rotary positions, similarities, convolutions.

use super::{Golden, one};

fn softmaxes() -> Vec<Golden> {
    vec![
        one("softmax", |x| x.softmax(-1)),
        one("softmax axis", |x| x.softmax(1)),
        one("softmax large", |x| x.softmax(-1)),
        one("softmax inf", |x| x.softmax(-1)),
        one("softmax all minus inf", |x| x.softmax(-1)),
        one("softmax twice", |x| x.softmax(-1)),
        one("log_softmax", |x| x.log_softmax(-1)),
        one("log_softmax axis", |x| x.log_softmax(0)),
        one("log_softmax large", |x| x.log_softmax(-1)),
        one("log_softmax twice", |x| x.log_softmax(-1)),
    ]
}

pub(super) fn cases() -> Vec<Golden> {
    softmaxes()
}
