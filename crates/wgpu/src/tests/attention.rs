//! Attention by tiles, by the measure that decides whether units for matrices are used.

use wgrad_graph::{Backend, Caps, DType, Fast};

use super::on_every_adapter;
use crate::Gpu;
use crate::emit::emulated;
use crate::launch::{On, Params};
use crate::matrices::attention::Heads;

#[test]
fn tiles_are_right_by_the_measure_of_units() {
    on_every_adapter(|adapter, gpu| {
        for (sizes, causal) in [([2, 1, 70, 133, 64, 64], true), ([2, 2, 66, 99, 100, 36], false)] {
            let off = Heads { sizes, causal, masked: !causal, dtype: DType::F16 }.off_as(
                &gpu,
                gpu.caps(),
                true,
                |_| (),
            );
            assert_eq!(off.unwrap(), None, "{adapter}: {sizes:?}, limits {:?}", gpu.caps());
        }
    });
}

/// Limits by which attention of f32 is on units.
fn with_units(gpu: &Gpu) -> Caps {
    Caps { cooperative: true, subgroup: 32, native_half: false, ..gpu.caps().clone() }
}

/// The kernel of the result on what has no units: scales, and where things lie. It takes llvmpipe a minute and a half to
/// compile, those of the gradients several.
#[test]
fn split_attention_on_emulated_units() {
    on_every_adapter(|adapter, gpu| {
        if adapter.name.contains("SwiftShader") {
            return;
        }
        let heads = Heads { sizes: [2, 1, 70, 75, 32, 32], causal: true, masked: false, dtype: DType::F32 };
        let off = heads.off_as(&gpu, &with_units(&gpu), false, |lowered| {
            // Nothing is left to the tiles.
            lowered.launches.retain(|l| l.on != On::Marked);
            assert!(
                lowered
                    .launches
                    .iter()
                    .any(|l| matches!(l.on, On::Units(t) if t.path == Fast::SplitAttention))
            );
            emulated(lowered);
        });
        assert_eq!(off.unwrap(), None, "{adapter}");
    });
}

/// Tiles compute the blocks that are marked, and no others.
#[test]
fn marked_blocks_are_left_to_tiles() {
    on_every_adapter(|adapter, gpu| {
        // Those with fewer have no attention by tiles (`Heads::suit`).
        if gpu.caps().max_buffers < 9 {
            return;
        }
        for (sizes, causal) in [([2, 1, 70, 133, 32, 32], true), ([2, 2, 66, 99, 32, 32], false)] {
            let heads = Heads { sizes, causal, masked: !causal, dtype: DType::F32 };
            let marked = |mark: u32| {
                heads.off_as(&gpu, &with_units(&gpu), true, |lowered| {
                    for launch in lowered.launches.iter_mut().filter(|l| l.on != On::Marked) {
                        let declared = launch.source.lines().filter(|l| l.starts_with("@group"));
                        let declared: Vec<&str> = declared.filter(|l| l.contains("storage")).collect();
                        let declared = declared.join("\n").replace("f16", "u32");
                        let (last, marks) = (launch.bindings.len() - 1, launch.bindings.last().unwrap().bytes / 4);
                        launch.source = format!(
                            "{declared}\n@compute @workgroup_size(1)\n\
                             fn main(@builtin(workgroup_id) group: vec3<u32>) {{ b{last}[group.x] = {mark}u; }}\n"
                        );
                        launch.grid = [marks as u32, 1, 1];
                        (launch.words, launch.params) = (Vec::new(), Params::None);
                    }
                })
            };
            assert_eq!(marked(1).unwrap(), None, "{adapter}: {sizes:?}");
            assert!(marked(0).unwrap().is_some(), "{adapter}: {sizes:?}");
        }
    });
}
