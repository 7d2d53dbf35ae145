//! Shapes, parts, indices, creation.

use wgrad::{DType, Indexing, PadMode, Patches, ScatterReduce, Tensor};

use super::{Golden, golden, one};

fn shapes() -> Vec<Golden> {
    vec![
        one("reshape", |x| x.transpose(0, 2).reshape([3, -1])),
        one("permute", |x| x.permute([2, 0, 1])),
        one("transpose", |x| x.transpose(0, -1)),
        one("flatten", |x| x.flatten(1)),
        one("squeeze", |x| x.squeeze(1)),
        one("unsqueeze", |x| x.unsqueeze(-1)),
        one("expand", |x| x.expand([2, 3, 4])),
        one("repeat", |x| x.repeat(1, 3)),
        one("tile", |x| x.tile(&[2, 1, 3])),
        one("repeat_interleave", |x| x.repeat_interleave(1, 3)),
        one("roll", |x| x.roll(1, 2)),
        one("roll several", |x| x.roll(0, 1).roll(1, -2)),
        one("roll flat", |x| x.reshape([-1]).roll(0, 4).reshape([3, 5])),
        one("movedim", |x| x.movedim(0, 2)),
        one("unbind", |x| x.unbind(1)),
        one("flip", |x| x.flip([0, 2])),
        golden("cat", |_, x| Tensor::cat(x, 1)),
        golden("cat empty", |_, x| Tensor::cat(x, 0)),
        golden("stack", |_, x| Tensor::stack(x, 1)),
        golden("split", |_, x| x[0].split(1, 2)),
        golden("chunk", |_, x| x[0].chunk(1, 3)),
        golden("chunk uneven", |_, x| x[0].chunk(1, 3)),
        one("rot90", |x| x.transpose(0, 1).flip(0)),
        one("pad", |x| x.pad(&[(0, 0), (0, 0), (1, 2)], 0.0)),
        one("pad value", |x| x.pad(&[(0, 0), (0, 1), (1, 2)], 2.5)),
        one("pad negative", |x| x.pad(&[(0, 0), (1, -2), (-1, 2)], 0.0)),
        one("pad reflect", |x| x.pad(&[(0, 0), (0, 0), (2, 3)], PadMode::Reflect)),
        one("pad replicate", |x| x.pad(&[(0, 0), (0, 0), (2, 3)], PadMode::Replicate)),
        one("pad circular", |x| x.pad(&[(0, 0), (0, 0), (2, 3)], PadMode::Circular)),
        one("pad reflect 2d", |x| x.pad(&PLANE, PadMode::Reflect)),
        one("pad replicate 2d", |x| x.pad(&PLANE, PadMode::Replicate)),
        one("pad circular 2d", |x| x.pad(&PLANE, PadMode::Circular)),
        one("pad reflect 3d", |x| x.pad(&[(0, 0), (0, 0), (1, 0), (0, 1), (1, 1)], PadMode::Reflect)),
        one("pad twice", |x| x.square().pad(&[(0, 0), (0, 0), (2, 1)], PadMode::Reflect)),
    ]
}

/// Widths around the last two of four axes.
const PLANE: [(isize, isize); 4] = [(0, 0), (0, 0), (2, 1), (1, 2)];

fn creation() -> Vec<Golden> {
    vec![
        one("tril", |x| x.tril(0)),
        one("tril offset", |x| x.tril(-1)),
        one("triu", |x| x.triu(0)),
        one("triu offset", |x| x.triu(2)),
        golden("meshgrid", |_, x| Tensor::meshgrid(x, Indexing::Ij)),
        golden("meshgrid xy", |_, x| Tensor::meshgrid(x, Indexing::Xy)),
        golden("linspace", |p, x| x[0] * p.linspace(-1.0, 2.0, 7)),
        golden("arange", |p, x| x[0] * p.arange_step(1.0, 8.0, 1.5)),
        golden("eye", |p, x| x[0] + p.eye_of(3, 5)),
    ]
}

fn parts() -> Vec<Golden> {
    vec![
        one("slice", |x| x.slice(1, 1..4)),
        one("slice negative", |x| x.slice(-1, -3..-1)),
        one("slice step", |x| x.slice_step(1, 1.., 3)),
        one("diagonal", |x| x.diagonal(0, 0, 1)),
        one("diagonal offset", |x| x.diagonal(-1, 0, 2)),
        one("diagonal_embed", |x| x.diag_embed(1, -2, -1)),
        one("unfold axis", |x| x.unfold(1, 3, 2)),
        one("slice empty", |x| x.slice(0, 2..2)),
        one("select_index", |x| x.select_index(1, -2)),
        golden("slice_assign", |_, x| x[0].slice_assign(1, 2, x[1])),
        golden("slice_assign step", |_, x| x[0].slice_assign_step(1, 1.., 2, x[1])),
    ]
}

/// Windows as columns, and back, under the names that PyTorch gives them.
fn patches() -> Vec<Golden> {
    let apart = || Patches {
        stride: [2, 1].into(),
        padding: [1, 0].into(),
        dilation: [2, 1].into(),
        ..Patches::new([2, 2])
    };
    vec![
        one("unfold", |x| x.im2col(Patches::new([2, 3]))),
        one("fold", |x| x.col2im([4, 5], Patches::new([2, 3]))),
        golden("unfold options", move |_, x| x[0].im2col(apart())),
        golden("fold options", move |_, x| x[0].col2im([5, 4], apart())),
    ]
}

fn indices() -> Vec<Golden> {
    vec![
        golden("index_select", |_, x| x[0].index_select(1, x[1])),
        golden("gather", |_, x| x[0].gather(1, x[1])),
        golden("gather first", |_, x| x[0].gather(0, x[1])),
        golden("gather smaller", |_, x| x[0].gather(1, x[1])),
        golden("take_along", |_, x| x[0].take_along(1, x[1])),
        golden("take_along broadcast", |_, x| x[0].take_along(1, x[1])),
        golden("take", |_, x| x[0].take(x[1])),
        golden("gather twice", |_, x| x[0].square().gather(1, x[1])),
        golden("scatter_add", |_, x| x[0].scatter_add(1, x[1], x[2])),
        golden("masked_scatter none", |_, x| x[1].select(x[0], 0.0)),
        golden("embedding", |_, x| x[0].embedding(x[1])),
        golden("one_hot", |_, x| x[0].one_hot(5).cast(DType::I32)),
    ]
}

fn scatters() -> Vec<Golden> {
    let mut all = vec![
        golden("scatter", |_, x| x[0].scatter(1, x[1], x[2])),
        golden("scatter value", |_, x| x[0].scatter(1, x[1], x[1].cast(DType::F64) * 0.0 + 2.5)),
        golden("scatter smaller", |_, x| x[0].scatter(0, x[1], x[2])),
        golden("scatter_add smaller", |_, x| x[0].scatter_add(1, x[1], x[2])),
        golden("index_add", |_, x| x[0].index_add(1, x[1], x[2])),
        golden("index_copy", |_, x| x[0].index_copy(1, x[1], x[2])),
        golden("index_fill", |_, x| x[0].index_fill(1, x[1], 2.5)),
        golden("scatter_max ties", |_, x| x[0].scatter_reduce(0, x[1], x[2], ScatterReduce::Max, true)),
        golden("scatter_min ties", |_, x| x[0].scatter_reduce(0, x[1], x[2], ScatterReduce::Min, true)),
    ];
    let kinds = [
        ("prod", ScatterReduce::Prod),
        ("mean", ScatterReduce::Mean),
        ("max", ScatterReduce::Max),
        ("min", ScatterReduce::Min),
    ];
    for (name, kind) in kinds {
        for (whole, end) in [(true, ""), (false, " without self")] {
            all.push(golden(format!("scatter_{name}{end}"), move |_, x| {
                x[0].scatter_reduce(1, x[1], x[2], kind, whole)
            }));
        }
    }
    all
}

pub(super) fn cases() -> Vec<Golden> {
    let mut all = shapes();
    all.extend(parts());
    all.extend(patches());
    all.extend(indices());
    all.extend(scatters());
    all.extend(creation());
    all
}
