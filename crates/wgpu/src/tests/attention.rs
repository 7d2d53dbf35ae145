//! Attention by tiles, by the measure that decides whether units for matrices are used.

use wgrad_graph::Backend;

use super::on_every_adapter;
use crate::matrices::attention::Heads;

#[test]
fn tiles_are_right_by_the_measure_of_units() {
    on_every_adapter(|adapter, gpu| {
        for (sizes, causal) in [([2, 1, 70, 133, 64, 64], true), ([2, 2, 66, 99, 100, 36], false)] {
            let off = Heads { sizes, causal, masked: !causal }.off(&gpu);
            assert_eq!(off.unwrap(), None, "{adapter}: {sizes:?}, limits {:?}", gpu.caps());
        }
    });
}
