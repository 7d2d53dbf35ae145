//! Scatter: one invocation a column, or values in order of their positions and one invocation a result.

mod sorted;

use std::collections::HashMap;

use wgrad_graph::{DType, Kind, Result, bail};

use super::body::{Printer, Space};
use super::kernel::{Cx, Kernel, Touch, wgsl_type};
use super::states::{combined, neutral};
use super::{fold, points};
use crate::choose;
use crate::launch::{Launch, Lowered};

pub(super) fn lower(cx: Cx<'_>) -> Result<Lowered> {
    let group = &*cx.step.group;
    let Kind::Scatter { size, kind, .. } = &group.kind else {
        bail!(Argument, "scatter", "was given another kind of group");
    };
    let name = kind.scatter_name();
    let columns = points(name, group.outer())?;
    if columns == 0 || *size == 0 {
        return Ok(Lowered::default());
    }
    let length = points(name, &group.dims[group.outer().len()..])?;
    if length > 0 {
        points(name, &group.dims)?;
    }
    if length > 0
        && let Some(lowered) = sorted::lower(cx)?
    {
        return Ok(lowered);
    }
    // Everything is filled before anything is combined.
    let most = choose::rounds(cx.caps) / 2;
    let whole = [[0, *size], [0, length]];
    let pieces = if size.saturating_add(length) <= most {
        vec![whole]
    } else {
        let cuts = |n: usize| (0..n).step_by(most).map(move |i| [i, n.min(i + most)]);
        cuts(*size).map(|fill| [fill, [0, 0]]).chain(cuts(length).map(|c| [[0, 0], c])).collect()
    };
    let launches = pieces.into_iter().map(|p| launch(cx, p)).collect::<Result<_>>()?;
    Ok(Lowered { launches, scratch_bytes: 0 })
}

/// The launch that fills positions `fill` of every column, then combines values `values`.
fn launch(cx: Cx<'_>, [fill, values]: [[usize; 2]; 2]) -> Result<Launch> {
    let group = &*cx.step.group;
    let Kind::Scatter { at, src, stride, size, kind } = &group.kind else {
        bail!(Argument, "scatter", "was given another kind of group");
    };
    let (name, outer, rank) = (kind.scatter_name(), group.outer().len(), group.dims.len());
    let (columns, length) = (points(name, group.outer())?, points(name, &group.dims[outer..])?);
    let mut k = Kernel::new(cx);
    k.reads(at.0, Touch::Each);
    k.reads(src.0, Touch::Each);
    k.writes(0, Touch::Each);
    k.flagged();

    let words = [
        ("count", columns),
        ("length", length),
        ("size", *size),
        ("stride", *stride as usize),
        ("fill_first", fill[0]),
        ("fill_stop", fill[1]),
        ("first", values[0]),
        ("stop", values[1]),
    ];
    let count = k.declare_words(&words);
    let raise = k.raise(name, *size);

    let none = HashMap::new();
    let space = Space { linear: Some("o".to_owned()), coords: None, rank: outer };
    let mut head = Printer::new(&mut k, &group.body, space, &[], &none, "h");
    let column = head.element(group.stores[0].index)?.at;
    head.line(&format!("let column = {column};"));
    let mut coords = head.coords();
    let once = head.out;

    let space = Space { linear: Some("e".to_owned()), coords: None, rank };
    let mut p = Printer::new(&mut k, &group.body, space, &[], &none, "p");
    let whole = p.k.word("length", length as i64);
    p.line(&format!("let e = o * {whole} + r;"));
    let sizes: Vec<String> = (outer..rank).map(|axis| p.k.dim(axis)).collect();
    let inner = p.unravel("r", &sizes);
    coords.extend(inner);
    p.space.coords = Some(coords);
    for (name, (operand, index)) in [("at", at), ("value", src)] {
        let element = p.element(*index)?;
        let dtype = p.k.operand(*operand).dtype;
        let load = p.k.load(*operand, &element.at);
        let ty = wgsl_type(dtype);
        p.line(&match element.ok {
            None => format!("let {name} = {load};"),
            Some(ok) => format!("var {name} = {ty}();\nif ({ok}) {{ {name} = {load}; }}"),
        });
    }
    let place = match p.k.operand(at.0).dtype {
        DType::I32 => "bitcast<u32>(at)",
        DType::I64 => "wg_index_i64(at)",
        _ => "at",
    };
    p.line(&format!("let place = {place};"));
    let point = p.out;

    let dtype = cx.graph.out(group.stores[0].val).dtype;
    let ty = wgsl_type(dtype);
    let none = k.store(0, "column + j * stride", neutral(*kind, ty));
    let to = "column + place * stride";
    let old = k.stored(0, to);
    let new = combined(*kind, ty, &old, "value");
    let combine = k.store(0, to, &new);
    let wg = choose::pointwise_workgroup(cx.caps);
    let regions = [
        ("count", count.as_str()),
        ("outer", &once),
        ("fill", &none),
        ("point", &point),
        ("combine", &combine),
        ("raise", &raise),
    ];
    let grid = fold((columns as u64).div_ceil(u64::from(wg)), cx.caps)?;
    let flops = (columns * (values[1] - values[0])) as u64;
    k.finish(wgrad_wgsl::SCATTER, &format!("const WG = {wg}u;\n"), &regions, grid, flops)
}
