//! Pooling, interpolation, sampling of grids.

use super::Golden;

pub(super) fn cases() -> Vec<Golden> {
    Vec::new()
}
