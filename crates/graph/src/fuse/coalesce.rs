//! Fewer axes: size 1 goes, neighbours that every index treats as one become one.

use smallvec::SmallVec;

use crate::{Group, Kind, View};

/// Coalesces the axes of a finished group.
pub(crate) fn coalesce(group: &mut Group) {
    let outer = group.outer().len();
    match group.kind {
        Kind::Whole(_) | Kind::Attention(..) | Kind::Custom(_) => {}
        Kind::MatMul { b, .. } => {
            let batch = group.dims.len() - 3;
            let left = section(group, 0, batch, 0);
            // A product whose right factor is the same for the whole batch has a longer `m` instead.
            let right = &group.body.indices[usize::from(b.1)].views[0].strides;
            if right[..left].iter().all(|s| *s == 0) {
                for axis in (0..left).rev() {
                    if !joinable(group, axis) {
                        break;
                    }
                    join(group, axis);
                }
            }
        }
        Kind::Scatter { .. } => {
            section(group, 0, outer, 0);
        }
        Kind::Reduce | Kind::Row => {
            section(group, outer, group.dims.len(), 1);
            group.reduced = group.dims.len() - outer;
            section(group, 0, outer, 0);
        }
        Kind::Pointwise => {
            section(group, 0, outer, 1);
            if group.dims.is_empty() {
                group.dims.push(1);
                for index in &mut group.body.indices {
                    let view = &mut index.views[0];
                    view.dims.push(1);
                    view.strides.push(0);
                    if let Some(valid) = &mut view.valid {
                        valid.push(0..1);
                    }
                }
            }
        }
    }
}

/// Coalesces axes `from..to`, of which at least `keep` stay; gives their new number.
fn section(group: &mut Group, from: usize, mut to: usize, keep: usize) -> usize {
    for axis in (from..to).rev() {
        let single = group.dims[axis] == 1
            && views(group, axis).all(|v| v.valid.as_ref().is_none_or(|r| r[axis].contains(&0)));
        if single && to - from > keep {
            group.dims.remove(axis);
            each(group, axis, |view| {
                view.dims.remove(axis);
                view.strides.remove(axis);
                if let Some(valid) = &mut view.valid {
                    valid.remove(axis);
                }
            });
            to -= 1;
        }
    }
    for axis in (from..to.saturating_sub(1)).rev() {
        if joinable(group, axis) {
            join(group, axis);
            to -= 1;
        }
    }
    to - from
}

/// First views whose coordinates include `axis`.
fn views(group: &Group, axis: usize) -> impl Iterator<Item = &View> {
    group.body.indices.iter().map(|i| &i.views[0]).filter(move |v| v.dims.len() > axis)
}

fn each(group: &mut Group, axis: usize, f: impl Fn(&mut View)) {
    let views = group.body.indices.iter_mut().map(|i| &mut i.views[0]);
    views.filter(|v| v.dims.len() > axis).for_each(f);
}

/// Whether every index treats `axis` and the next as one.
fn joinable(group: &Group, axis: usize) -> bool {
    let size = group.dims[axis + 1];
    views(group, axis + 1).all(|v| {
        let free = |a: usize| v.valid.as_ref().is_none_or(|r| r[a] == (0..v.dims[a]));
        (v.strides[axis] == v.strides[axis + 1] * size as i64 || v.dims[axis] == 1) && free(axis + 1)
    })
}

fn join(group: &mut Group, axis: usize) {
    let size = group.dims[axis + 1];
    group.dims[axis] *= size;
    group.dims.remove(axis + 1);
    each(group, axis + 1, |view| {
        view.dims[axis] *= size;
        view.dims.remove(axis + 1);
        view.strides.remove(axis);
        if let Some(valid) = &mut view.valid {
            valid[axis] = valid[axis].start * size..valid[axis].end * size;
            valid.remove(axis + 1);
            let all: SmallVec<[_; 8]> = view.dims.iter().map(|d| 0..*d).collect();
            if *valid == all {
                view.valid = None;
            }
        }
    });
}
