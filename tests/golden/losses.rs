//! Losses, each reduction.

use super::{Golden, golden};

fn plain() -> Vec<Golden> {
    vec![]
}

pub(super) fn cases() -> Vec<Golden> {
    plain()
}
