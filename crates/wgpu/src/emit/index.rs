//! Index functions as text: u32 arithmetic that wraps, so negative strides need no sign.

use wgrad_graph::{Index, IndexId, Result, View};

use super::body::Printer;

/// An index at one point: the element, and where the index is partial, whether it has one.
#[derive(Clone, Debug)]
pub(super) struct Element {
    pub(super) at: String,
    pub(super) ok: Option<String>,
}

/// How four neighbours along the last axis see an index.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// One aligned quad of elements.
    Quad,
    /// One element.
    Same,
    /// Anything else.
    Each,
}

/// What `index` is to four neighbours of the row-major order of its space, the first at a multiple of
/// four. `rows`: the last axis is a multiple of four; `whole`: the space is.
pub(super) fn along(index: &Index, rows: bool, whole: bool) -> Along {
    along_by(index, 4, rows, whole)
}

/// As [`along`], `by` neighbours.
fn along_by(index: &Index, by: usize, rows: bool, whole: bool) -> Along {
    let by = by as i64;
    let view = &index.views[0];
    if index.views.len() > 1 || view.valid.is_some() {
        return Along::Each;
    }
    if view.strides.iter().all(|s| *s == 0) {
        return Along::Same;
    }
    if whole && index.is_linear() {
        return Along::Quad;
    }
    if !rows {
        return Along::Each;
    }
    let (last, others) = view.strides.split_last().map_or((0, &[][..]), |(l, o)| (*l, o));
    let fours = view.offset % by == 0
        && others.iter().all(|s| s % by == 0)
        && view.dynamic.iter().all(|d| d.stride % by == 0);
    match last {
        0 => Along::Same,
        1 if fours => Along::Quad,
        _ => Along::Each,
    }
}

/// As [`along`], `by` neighbours, for who looks at where the index is partial: they have an element all, or none of
/// them.
pub(super) fn along_parts(index: &Index, by: usize, rows: bool, whole: bool) -> Along {
    let plain = along_by(index, by, rows, whole);
    if plain != Along::Each || !rows {
        return plain;
    }
    let fours = |n: &i64| n % by as i64 == 0;
    // A number that begins at a multiple of them stays in its row of the next view for as many steps.
    let quads = |(number, view): (usize, &View)| {
        let (Some((last, others)), Some(size)) = (view.strides.split_last(), view.dims.last()) else {
            return false;
        };
        let valid = view.valid.as_ref().and_then(|all| all.last());
        let whole = |end: usize| end.is_multiple_of(by) || end >= *size;
        *last == 1
            && (number == 0 || size.is_multiple_of(by))
            && fours(&view.offset)
            && others.iter().all(fours)
            && view.dynamic.iter().all(|d| fours(&d.stride))
            && valid.is_none_or(|range| range.start % by == 0 && whole(range.end))
    };
    if index.views.iter().enumerate().all(quads) { Along::Quad } else { Along::Each }
}

/// What `index` is to four neighbours along `axis`, whose size is a multiple of four, the first at a
/// multiple of four.
pub(super) fn along_axis(index: &Index, axis: usize) -> Along {
    let view = &index.views[0];
    if index.views.len() > 1 || view.valid.is_some() {
        return Along::Each;
    }
    let others = view.strides.iter().enumerate().all(|(a, s)| a == axis || s % 4 == 0);
    let fours = view.offset % 4 == 0 && others && view.dynamic.iter().all(|d| d.stride % 4 == 0);
    match view.strides[axis] {
        0 => Along::Same,
        1 if fours => Along::Quad,
        _ => Along::Each,
    }
}

/// Whether the index needs coordinates, rather than the position alone.
pub(super) fn needs_coords(index: &Index) -> bool {
    !index.is_linear() && moves(&index.views[0])
}

/// Whether the view looks at its coordinates at all.
fn moves(view: &View) -> bool {
    view.valid.is_some() || view.strides.iter().any(|s| *s != 0)
}

impl Printer<'_, '_> {
    /// The index at this printer's point.
    ///
    /// # Errors
    /// See [`super::kernel::Kernel::scalar_bits`].
    pub(super) fn element(&mut self, id: IndexId) -> Result<Element> {
        if let Some(element) = self.elements.get(&id) {
            return Ok(element.clone());
        }
        let body = self.body;
        let index = &body.indices[usize::from(id)];
        let element = if index.is_linear() && self.space.linear.is_some() {
            Element { at: self.space.linear.clone().unwrap_or_default(), ok: None }
        } else {
            let mut coords = if moves(&index.views[0]) { self.coords() } else { Vec::new() };
            let mut ok: Option<String> = None;
            let mut at = String::new();
            for (number, view) in index.views.iter().enumerate() {
                let key = format!("i{id}v{number}");
                if number > 0 {
                    let sizes: Vec<String> = (0..view.dims.len())
                        .map(|a| self.k.word(&format!("{key}d{a}"), view.dims[a].max(1) as i64))
                        .collect();
                    coords = self.unravel(&at, &sizes);
                }
                for test in self.tests(&key, view, &coords) {
                    ok = Some(match ok {
                        Some(before) => format!("{before} && {test}"),
                        None => test,
                    });
                }
                let text = self.affine(&key, view, &coords)?;
                at = self.name(&text);
            }
            let ok = ok.map(|test| self.name(&test));
            Element { at, ok }
        };
        self.elements.insert(id, element.clone());
        Ok(element)
    }

    /// `let` a fresh name be `text`, unless it is a name already.
    pub(super) fn name(&mut self, text: &str) -> String {
        if text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return text.to_owned();
        }
        let name = format!("{}{}", self.prefix, self.fresh);
        self.fresh += 1;
        self.line(&format!("let {name} = {text};"));
        name
    }

    /// The coordinates of position `at` of the row-major order over `sizes`, as names.
    pub(super) fn unravel(&mut self, at: &str, sizes: &[String]) -> Vec<String> {
        let mut coords = vec!["0u".to_owned(); sizes.len()];
        let mut rest = self.name(at);
        for axis in (1..sizes.len()).rev() {
            let quotient = self.k.quotient(&rest, &sizes[axis]);
            let above = self.name(&quotient);
            coords[axis] = self.name(&format!("{rest} - {above} * {}", sizes[axis]));
            rest = above;
        }
        if let Some(first) = coords.first_mut() {
            *first = rest;
        }
        coords
    }

    fn tests(&mut self, key: &str, view: &View, coords: &[String]) -> Vec<String> {
        let mut tests = Vec::new();
        for (axis, range) in view.valid.iter().flatten().enumerate() {
            if range.start == 0 && range.end >= view.dims[axis] {
                continue;
            }
            let size = range.end.saturating_sub(range.start) as i64;
            let size = self.k.word(&format!("{key}n{axis}"), size);
            let coord = &coords[axis];
            tests.push(if range.start == 0 {
                format!("({coord} < {size})")
            } else {
                let start = self.k.word(&format!("{key}o{axis}"), range.start as i64);
                format!("({coord} - {start} < {size})")
            });
        }
        tests
    }

    fn affine(&mut self, key: &str, view: &View, coords: &[String]) -> Result<String> {
        let mut terms = Vec::new();
        if view.offset != 0 {
            terms.push(self.k.word(&format!("{key}b"), view.offset));
        }
        for (axis, stride) in view.strides.iter().enumerate() {
            match *stride {
                0 => {}
                1 => terms.push(coords[axis].clone()),
                stride => {
                    let stride = self.k.word(&format!("{key}s{axis}"), stride);
                    terms.push(format!("{} * {stride}", coords[axis]));
                }
            }
        }
        for (i, dynamic) in view.dynamic.iter().enumerate() {
            let scalar = self.k.scalar_bits(dynamic.scalar)?;
            if dynamic.stride == 1 {
                terms.push(scalar);
            } else {
                let stride = self.k.word(&format!("{key}y{i}"), dynamic.stride);
                terms.push(format!("{scalar} * {stride}"));
            }
        }
        Ok(if terms.is_empty() { "0u".to_owned() } else { terms.join(" + ") })
    }
}
