//! Pointwise groups of which operands run across the last axis of the space: tiles of those operands are turned
//! in workgroup memory. Only they are staged; the others are read where they lie.

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{DType, IndexId, Result};

use super::{Points, Site, XYZW};
use crate::choose;
use crate::emit::body::{Printer, Space};
use crate::emit::index::{Along, along_axis};
use crate::emit::kernel::{Kernel, wgsl_type};
use crate::emit::{arithmetic, fold};
use crate::launch::Launch;

/// How a group is cut into tiles.
pub(super) struct Turn {
    /// The axis along which the staged operands have neighbours.
    axis: usize,
    staged: Vec<(u16, IndexId)>,
    /// Whether an invocation writes four neighbours.
    quads: bool,
    /// Whether it reads four neighbours of every staged operand.
    fours: bool,
    edge: u32,
}

impl Turn {
    /// The tiles of a group that gains by them.
    pub(super) fn of(site: &Points<'_>) -> Option<Turn> {
        let group = &*site.cx.step.group;
        let dims = &group.dims;
        let last = dims.len().checked_sub(1)?;
        let quads = site.rows && site.wide();
        let along = |store: &wgrad_graph::Store| {
            let [view] = &group.body.indices[usize::from(store.index)].views[..] else { return false };
            view.strides.last() == Some(&1)
        };
        let ones = (0..group.stores.len()).all(|s| !site.cx.shares_words(s));
        if !(quads || ones) || !group.stores.iter().all(along) {
            return None;
        }
        let mut turned: Vec<(usize, (u16, IndexId))> = Vec::new();
        for (operand, index) in site.loads() {
            let [view] = &group.body.indices[usize::from(index)].views[..] else { continue };
            let unit = |a: &usize| view.strides[*a].abs() == 1 && dims[*a] > 1;
            let across = view.strides[last].unsigned_abs();
            if let Some(axis) = (0..last).find(unit)
                && choose::turns(dims[axis], dims[last], across, site.count, site.cx.caps)
            {
                turned.push((axis, (operand, index)));
            }
        }
        let axis = turned.first()?.0;
        let staged: Vec<_> = turned.into_iter().filter(|(a, _)| *a == axis).map(|(_, load)| load).collect();
        let words = staged.iter().map(|(operand, _)| words(site, *operand)).sum();
        let edge = choose::turned_edge(words, quads, dims[axis].min(dims[last]), site.cx.caps)?;
        let four = |(operand, index): &(u16, IndexId)| {
            let index = &group.body.indices[usize::from(*index)];
            site.cx.in_words(*operand) && along_axis(index, axis) == Along::Quad
        };
        let fours = edge == 64 && dims[axis].is_multiple_of(4) && staged.iter().all(four);
        Some(Turn { axis, staged, quads, fours, edge })
    }

    /// The launch over the tiles of `site`.
    pub(super) fn launch(&self, mut k: Kernel<'_>, mut site: Points<'_>) -> Result<Launch> {
        let group = &*site.cx.step.group;
        let body = &group.body;
        let (rank, last) = (group.dims.len(), group.dims.len() - 1);
        let fours = if self.fours { &self.staged[..] } else { &[] };
        if site.note(&mut k, self.quads, fours) {
            k.flagged();
        }
        // What is read element by element as well is declared so.
        let fours = self.fours && self.staged.iter().all(|(operand, _)| k.reads_quads(*operand));
        let edge = self.edge as usize;
        let (turned, length) = (group.dims[self.axis], group.dims[last]);
        let (wide, high) = (length.div_ceil(edge), turned.div_ceil(edge));
        let tiles = wide * high * (site.count / (turned * length));
        let sizes = [("count", tiles), ("wide", wide), ("high", high), ("turned", turned), ("last", length)];
        let sizes = k.declare_words(&sizes);

        let none = HashMap::new();
        let space = |coords: Option<Vec<String>>| Space { linear: None, coords, rank };
        let mut head = Printer::new(&mut k, body, space(None), &[], &none, "h");
        let others: Vec<usize> = (0..last).filter(|a| *a != self.axis).collect();
        let dims: Vec<String> = others.iter().map(|a| head.k.dim(*a)).collect();
        let mut found = head.unravel("others", &dims).into_iter();
        let coords: Vec<String> = (0..rank)
            .map(|axis| match axis {
                _ if axis == last => "l".to_owned(),
                _ if axis == self.axis => "a".to_owned(),
                _ => found.next().unwrap_or_default(),
            })
            .collect();
        let others = head.out;

        let mut p = Printer::new(&mut k, body, space(Some(coords.clone())), &[], &none, "s");
        for (n, (operand, index)) in self.staged.iter().enumerate() {
            let element = p.element(*index)?;
            let dtype = p.k.operand(*operand).dtype;
            if fours {
                let load = p.k.load_quad(*operand, &element.at);
                p.line(&format!("let v{n} = {load};"));
                for (lane, component) in XYZW.iter().enumerate() {
                    p.line(&format!("t{n}[spot + {lane}u] = v{n}.{component};"));
                }
                continue;
            }
            let value = match element.ok {
                None => p.k.load(*operand, &element.at),
                // A load in a branch waits for the one before.
                Some(ok) => {
                    p.line(&format!("let e{n} = select(0u, {}, {ok});", element.at));
                    let load = p.k.load(*operand, &format!("e{n}"));
                    format!("select({}(), {load}, {ok})", wgsl_type(dtype))
                }
            };
            let value = if dtype == DType::Bool { format!("select(0u, 1u, {value})") } else { value };
            p.line(&format!("t{n}[spot] = {value};"));
        }
        let stage = p.out;

        // Where the point lies in row-major order.
        let mut terms = vec!["l".to_owned()];
        let mut step = length;
        for axis in (0..last).rev() {
            let stride = k.word(&format!("r{axis}"), step as i64);
            terms.push(format!("{} * {stride}", coords[axis]));
            step *= group.dims[axis];
        }
        let first = if self.quads { "first" } else { "at" };
        let mut point = format!("let {first} = {};\n", terms.join(" + "));
        let lanes = if self.quads { 4 } else { 1 };
        for (lane, ready) in site.ready.iter_mut().enumerate().take(lanes) {
            for (n, load) in self.staged.iter().enumerate() {
                let far = if lane == 0 { String::new() } else { format!(" + {}u", lane * (edge + 1)) };
                let bool = if k.operand(load.0).dtype == DType::Bool { " != 0u" } else { "" };
                let _ = writeln!(point, "let u{n}{} = t{n}[spot{far}]{bool};", XYZW[lane]);
                ready.push((*load, format!("u{n}{}", XYZW[lane])));
            }
        }
        point.push_str(&if self.quads {
            site.quad(&mut k, Site { first, coords: Some(coords), accs: Default::default(), ahead: false })?
        } else {
            site.one(&mut k, first, Some(coords), &[])?
        });

        let wg = choose::turning_workgroup(site.cx.caps);
        let quad = if self.quads { 4 } else { 1 };
        let read = if fours { 4 } else { 1 };
        let mut extra = format!(
            "const WG = {wg}u;\nconst EDGE = {edge}u;\nconst QUAD = {quad}u;\nconst READ = {read}u;\n"
        );
        for (n, (operand, _)) in self.staged.iter().enumerate() {
            let ty = match k.operand(*operand).dtype {
                DType::Bool => "u32",
                dtype => wgsl_type(dtype),
            };
            let _ = writeln!(extra, "var<workgroup> t{n}: array<{ty}, {}>;", edge * (edge + 1));
        }
        let regions = [("sizes", sizes.as_str()), ("others", &others), ("stage", &stage), ("point", &point)];
        let grid = fold(tiles as u64, site.cx.caps)?;
        let flops = site.count as u64 * arithmetic(body, &site.needed);
        k.finish(wgrad_wgsl::TRANSPOSE, &extra, &regions, grid, flops)
    }
}

/// Words of workgroup memory that an element of an operand takes.
fn words(site: &Points<'_>, operand: u16) -> usize {
    let value = site.cx.graph.out(site.cx.step.group.operands[usize::from(operand)]);
    if value.dtype == DType::I64 { 2 } else { 1 }
}
