//! Pointwise groups: every point on its own, or four neighbours an invocation. The same text ends a
//! matrix product: there the points have an accumulator.

mod turn;

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{DType, Expr, ExprId, IndexId, Result};

use super::body::{Printer, Space, reach};
use super::index::{Along, along, along_parts, needs_coords};
use super::kernel::{Cx, Kernel, Touch, wgsl_type};
use super::{arithmetic, fold, points};
use crate::choose;
use crate::launch::{Launch, Lowered};

/// The components of a vector.
pub(super) const XYZW: [&str; 4] = ["x", "y", "z", "w"];

/// Partial sums of a matrix product that lie in scratch memory, `splits` planes of one a point.
#[derive(Copy, Clone)]
pub(super) struct Planes {
    pub(super) splits: u32,
}

/// The stores of a group over its outer space.
pub(super) struct Points<'a> {
    cx: Cx<'a>,
    needed: Vec<bool>,
    count: usize,
    /// Neighbours of an invocation that takes several: four, or eight.
    by: usize,
    /// Whether the last axis is a multiple of them.
    rows: bool,
    /// Whether the space is.
    whole: bool,
    /// Loads that are at hand at each of four neighbours, and their names.
    ready: [Vec<((u16, IndexId), String)>; 4],
}

/// Where four neighbours stand.
pub(super) struct Site<'s> {
    /// Position of the first in row-major order.
    pub(super) first: &'s str,
    /// Coordinates of the first, where they are at hand.
    pub(super) coords: Option<Vec<String>>,
    /// Names of the accumulators at each of the four.
    pub(super) accs: [Vec<String>; 4],
    /// Whether [`Points::ahead`] is at hand as `ahead`.
    pub(super) ahead: bool,
}

/// What four neighbours load before all else, as text that ends with an `Ahead`.
pub(super) struct Ahead {
    /// The declaration of the type.
    pub(super) declared: String,
    pub(super) text: String,
}

impl<'a> Points<'a> {
    pub(super) fn new(cx: Cx<'a>, count: usize) -> Points<'a> {
        Points::by(cx, count, 4)
    }

    /// As [`Points::new`], `by` neighbours an invocation.
    fn by(cx: Cx<'a>, count: usize, by: usize) -> Points<'a> {
        let group = &*cx.step.group;
        Points {
            by,
            cx,
            needed: reach(&group.body, group.stores.iter().map(|s| s.x)),
            count,
            rows: group.outer().last().is_some_and(|d| d % by == 0),
            whole: count.is_multiple_of(by),
            ready: Default::default(),
        }
    }

    /// What an index is to four neighbours. Who loads looks at where it is partial.
    fn along(&self, id: IndexId) -> Along {
        along_parts(&self.cx.step.group.body.indices[usize::from(id)], self.by, self.rows, self.whole)
    }

    /// Whether a store is of parts of words in row-major order: four points an invocation write whole words.
    fn parts(&self, store: usize) -> bool {
        let group = &self.cx.step.group;
        let index = &group.body.indices[usize::from(group.stores[store].index)];
        self.cx.shares_words(store) && index.is_linear()
    }

    fn stores(&self) -> std::ops::Range<usize> {
        0..self.cx.step.group.stores.len()
    }

    /// Whether every store takes four neighbours as one.
    pub(super) fn wide(&self) -> bool {
        let group = &self.cx.step.group;
        self.whole && self.stores().all(|s| self.parts(s) || self.along(group.stores[s].index) == Along::Quad)
    }

    /// Whether an invocation can take eight neighbours as one.
    fn eights(&self) -> bool {
        let group = &self.cx.step.group;
        let store = |s: usize| {
            let store = &group.stores[s];
            self.cx.graph.out(store.val).dtype.bytes() <= 4 && self.along(store.index) == Along::Quad
        };
        let mut exprs = group.body.exprs.iter().map(|(e, _)| e);
        self.by == 8
            && self.whole
            && self.stores().all(store)
            && !exprs.any(|e| matches!(e, Expr::Gather { .. }))
            && choose::eights(self.count, group.body.exprs.len(), self.cx.caps)
    }

    /// The gathers whose four neighbours are one quad of the table: the place is the same for all four.
    fn gathers(&self) -> Vec<ExprId> {
        let body = &self.cx.step.group.body;
        let same = |at: ExprId| {
            let reached = reach(body, [at]);
            body.exprs.iter().zip(&reached).filter_map(|(e, r)| r.then_some(&e.0)).all(|e| match e {
                Expr::Load { index, .. } => self.along(*index) == Along::Same,
                Expr::Gather { .. }
                | Expr::Coord { .. }
                | Expr::Random { .. }
                | Expr::Valid { .. }
                | Expr::Acc { .. } => false,
                _ => true,
            })
        };
        let joint = |id: &usize| match &body.exprs[*id].0 {
            Expr::Gather { operand, index, at, stride, .. } => {
                self.needed[*id]
                    && self.rows
                    && stride % 4 == 0
                    && self.cx.in_words(*operand)
                    && along(&body.indices[usize::from(*index)], self.rows, self.whole) == Along::Quad
                    && same(*at)
            }
            _ => false,
        };
        (0..body.exprs.len()).filter(joint).map(|id| id as ExprId).collect()
    }

    /// Notes every use; tells whether the error flag may be raised. `quads`: four neighbours an invocation.
    /// `fours`: loads of four neighbours of another axis.
    pub(super) fn note(&self, k: &mut Kernel<'_>, quads: bool, fours: &[(u16, IndexId)]) -> bool {
        let group = &self.cx.step.group;
        let joint = if quads { self.gathers() } else { Vec::new() };
        let whole = if self.by == 8 { Touch::Eight } else { Touch::Quad };
        let mut flagged = false;
        for (id, (expr, _)) in group.body.exprs.iter().enumerate().filter(|(id, _)| self.needed[*id]) {
            match expr {
                Expr::Load { operand, index } => {
                    let quad =
                        quads && self.along(*index) == Along::Quad || fours.contains(&(*operand, *index));
                    k.reads(*operand, if quad { whole } else { Touch::Each });
                }
                Expr::Gather { operand, .. } => {
                    let quad = joint.contains(&(id as ExprId));
                    k.reads(*operand, if quad { Touch::Quad } else { Touch::Each });
                    flagged = true;
                }
                _ => {}
            }
        }
        for s in self.stores() {
            let store = &group.stores[s];
            let touch = match self.cx.shares_words(s) {
                _ if quads && self.by == 8 => Touch::Eight,
                true if quads && self.parts(s) => Touch::Each,
                true => Touch::Shared,
                false if quads && self.along(store.index) == Along::Quad => Touch::Quad,
                false => Touch::Each,
            };
            k.writes(s, touch);
        }
        flagged
    }

    /// Stores at one point.
    pub(super) fn one(
        &self,
        k: &mut Kernel<'_>,
        linear: &str,
        coords: Option<Vec<String>>,
        accs: &[String],
    ) -> Result<String> {
        let group = &self.cx.step.group;
        let ready = self.ready[0].iter().cloned().collect();
        let space = Space { linear: Some(linear.to_owned()), coords, rank: group.outer().len() };
        let mut p = Printer::new(k, &group.body, space, accs, &ready, "p");
        p.stores(&group.stores)?;
        Ok(p.out)
    }

    /// The loads, each once.
    fn loads(&self) -> Vec<(u16, IndexId)> {
        let mut loads = Vec::new();
        let exprs = self.cx.step.group.body.exprs.iter().zip(&self.needed);
        for (expr, _) in exprs.filter_map(|(e, n)| n.then_some(e)) {
            if let Expr::Load { operand, index } = expr
                && !loads.contains(&(*operand, *index))
            {
                loads.push((*operand, *index));
            }
        }
        loads
    }

    /// Whether coordinates are used at all.
    fn spread(&self) -> bool {
        let group = &self.cx.step.group;
        let uses = |i: IndexId| needs_coords(&group.body.indices[usize::from(i)]);
        let exprs = group.body.exprs.iter().zip(&self.needed).filter_map(|(e, n)| n.then_some(&e.0));
        let in_exprs = exprs.into_iter().any(|e| match e {
            Expr::Load { index, .. }
            | Expr::Gather { index, .. }
            | Expr::Coord { index }
            | Expr::Random { index, .. }
            | Expr::Valid { index } => uses(*index),
            _ => false,
        });
        in_exprs || group.stores.iter().any(|s| uses(s.index))
    }

    /// Loads that are one for four neighbours.
    fn joint(&self, k: &Kernel<'_>) -> Vec<(u16, IndexId, Along)> {
        let kinds = self.loads().into_iter().map(|(operand, index)| (operand, index, self.along(index)));
        let joint = |(operand, _, kind): &(u16, IndexId, Along)| match kind {
            Along::Quad => k.reads_quads(*operand),
            Along::Same => true,
            Along::Each => false,
        };
        kinds.filter(joint).collect()
    }

    /// The loads of the four neighbours at these coordinates, apart from what is made of them: they may be under way
    /// while something else is computed. `None`: there are none.
    pub(super) fn ahead(
        &self,
        k: &mut Kernel<'_>,
        first: &str,
        coords: Vec<String>,
    ) -> Result<Option<Ahead>> {
        let group = &*self.cx.step.group;
        let joint = self.joint(k);
        if joint.is_empty() {
            return Ok(None);
        }
        let none = HashMap::new();
        let rank = group.outer().len();
        let space = Space { linear: Some(first.to_owned()), coords: Some(coords), rank };
        let mut head = Printer::new(k, &group.body, space, &[], &none, "q");
        let (mut fields, mut names) = (Vec::new(), Vec::new());
        for one in joint {
            let ty = wgsl_type(head.k.operand(one.0).dtype);
            let name = load(&mut head, one)?;
            fields.push(match one.2 {
                Along::Quad => format!("{name}: vec4<{ty}>"),
                _ => format!("{name}: {ty}"),
            });
            names.push(name);
        }
        let declared = format!("struct Ahead {{ {} }}\n", fields.join(", "));
        Ok(Some(Ahead { declared, text: format!("{}return Ahead({});\n", head.out, names.join(", ")) }))
    }

    /// Stores at four neighbours, or eight.
    pub(super) fn quad(&self, k: &mut Kernel<'_>, site: Site<'_>) -> Result<String> {
        let group = &*self.cx.step.group;
        let body = &group.body;
        let rank = group.outer().len();
        let none = HashMap::new();
        let space = Space { linear: Some(site.first.to_owned()), coords: site.coords, rank };
        let mut head = Printer::new(k, body, space, &[], &none, "q");
        let coords = (self.rows && self.spread()).then(|| head.coords());
        let mut vectors: HashMap<(u16, IndexId), [String; 2]> = HashMap::new();
        let mut shared: HashMap<(u16, IndexId), String> = HashMap::new();
        for (operand, index, kind) in self.joint(head.k) {
            if kind == Along::Quad && self.by == 8 {
                vectors.insert((operand, index), load_eight(&mut head, operand, index)?);
                continue;
            }
            let name = if site.ahead {
                format!("ahead.l{operand}_{index}")
            } else {
                load(&mut head, (operand, index, kind))?
            };
            match kind {
                Along::Quad => vectors.insert((operand, index), [name, String::new()]).map(drop),
                _ => shared.insert((operand, index), name).map(drop),
            };
        }
        let mut gathered: HashMap<ExprId, String> = HashMap::new();
        for id in self.gathers() {
            if let Some(name) = head.gathered_quad(id)? {
                gathered.insert(id, name);
            }
        }
        let mut places = Vec::new();
        for (s, store) in group.stores.iter().enumerate() {
            let joint = if self.parts(s) { true } else { head.k.writes_quads(s) };
            places.push(if joint { Some(head.element(store.index)?.at) } else { None });
            if joint {
                let ty = wgsl_type(head.k.cx.graph.out(store.val).dtype);
                (0..self.by).for_each(|lane| head.line(&format!("var s{s}_{lane} = {ty}();")));
            }
        }
        let mut out = head.out;
        let total = if self.whole { None } else { Some(k.word("points", self.count as i64)) };
        for lane in 0..self.by {
            let component = XYZW[lane % 4];
            let mut ready = shared.clone();
            ready.extend(vectors.iter().map(|(key, v)| (*key, format!("{}.{component}", v[lane / 4]))));
            ready.extend(self.ready[lane % 4].iter().cloned());
            let here = format!("at{lane}");
            let mut turn = String::new();
            let coords = coords.clone().map(|mut c| {
                if let Some(last) = c.last_mut() {
                    turn = format!("let c{lane} = {last} + {lane}u;\n");
                    *last = format!("c{lane}");
                }
                c
            });
            let space = Space { linear: Some(here.clone()), coords, rank };
            let mut p = Printer::new(k, body, space, &site.accs[lane % 4], &ready, "p");
            let own = gathered.iter().map(|(id, name)| (*id, format!("{name}.{component}")));
            p.give_names(&own.collect());
            // All values first: a store may lie in the place of an operand that a later one reads.
            let mut own = String::new();
            for (s, store) in group.stores.iter().enumerate() {
                let value = p.expr(store.x)?;
                if places[s].is_some() {
                    p.line(&format!("s{s}_{lane} = {value};"));
                } else {
                    let element = p.element(store.index)?;
                    own.push_str(&p.k.store(s, &element.at, &value));
                }
            }
            p.out.push_str(&own);
            let text = p.out;
            out.push_str(&format!("{{\nlet {here} = {} + {lane}u;\n{turn}", site.first));
            match &total {
                Some(total) => out.push_str(&format!("if ({here} < {total}) {{\n{text}}}\n}}\n")),
                None => out.push_str(&format!("{text}}}\n")),
            }
        }
        for (s, place) in places.iter().enumerate() {
            if let Some(at) = place {
                let names = [0, 1, 2, 3, 4, 5, 6, 7].map(|lane| format!("s{s}_{lane}"));
                let [a, b, c, d, ..] = names.each_ref().map(String::as_str);
                out.push_str(&match self.by {
                    8 => k.store_eight(s, at, names.each_ref().map(String::as_str)),
                    _ => k.store_quad(s, at, [a, b, c, d], total.as_deref()),
                });
            }
        }
        Ok(out)
    }
}

/// Prints a load that is one for four neighbours; its name.
fn load(head: &mut Printer<'_, '_>, (operand, index, kind): (u16, IndexId, Along)) -> Result<String> {
    let element = head.element(index)?;
    let mut ty = wgsl_type(head.k.operand(operand).dtype).to_owned();
    let text = match kind {
        Along::Quad => {
            ty = format!("vec4<{ty}>");
            head.k.load_quad(operand, &element.at)
        }
        _ => head.k.load(operand, &element.at),
    };
    let name = format!("l{operand}_{index}");
    head.line(&match element.ok {
        None => format!("let {name} = {text};"),
        Some(ok) => format!("var {name} = {ty}();\nif ({ok}) {{ {name} = {text}; }}"),
    });
    Ok(name)
}

/// Prints the load of eight neighbours; the names of their two quads.
fn load_eight(head: &mut Printer<'_, '_>, operand: u16, index: IndexId) -> Result<[String; 2]> {
    let element = head.element(index)?;
    let (text, ty) = head.k.load_eight(operand, &element.at);
    let name = format!("w{operand}_{index}");
    head.line(&match element.ok {
        None => format!("let {name} = {text};"),
        Some(ok) => format!("var {name} = {ty}();\nif ({ok}) {{ {name} = {text}; }}"),
    });
    let quads = head.k.quads_of_eight(operand, &name);
    let names = [format!("l{operand}_{index}"), format!("h{operand}_{index}")];
    for (name, quad) in names.iter().zip(quads) {
        head.line(&format!("let {name} = {quad};"));
    }
    Ok(names)
}

/// The launch of a pointwise group, or with `planes` the one that ends a product cut along K.
pub(super) fn lower(cx: Cx<'_>, planes: Option<Planes>) -> Result<Lowered> {
    let count = points("pointwise", cx.step.group.outer())?;
    if count == 0 {
        return Ok(Lowered::default());
    }
    let mut made = launch(Kernel::new(cx), planes, count, None)?;
    let exprs = &cx.step.group.body.exprs;
    let scalars = exprs.iter().any(|(e, dtype)| matches!(e, Expr::Scalar { .. }) && *dtype == DType::F32);
    if scalars && halves(cx) {
        let mut k = Kernel::new(cx);
        k.of_halves = true;
        let other = launch(k, planes, count, None)?;
        // Both take the same words.
        let alike = other.words == made.words && other.params == made.params;
        made.of_halves = (alike && other.source != made.source).then_some(other.source);
    }
    Ok(Lowered { launches: vec![made], scratch_bytes: 0 })
}

/// Whether steps of the group may be the device's own, on halves.
fn halves(cx: Cx<'_>) -> bool {
    choose::half_arithmetic(cx.caps) && cx.step.group.body.exprs.iter().any(|(_, dtype)| *dtype == DType::F16)
}

/// The launch over `count` points; with `total`, over that many invocations of all parts of the kernel.
pub(super) fn launch(
    mut k: Kernel<'_>,
    planes: Option<Planes>,
    count: usize,
    total: Option<usize>,
) -> Result<Launch> {
    let cx = k.cx;
    let group = &*cx.step.group;
    let site = Points::new(cx, count);
    if planes.is_none()
        && total.is_none()
        && let Some(turn) = turn::Turn::of(&site)
    {
        return turn.launch(k, site);
    }
    let eights = Some(Points::by(cx, count, 8)).filter(|site| planes.is_none() && site.eights());
    let site = eights.unwrap_or(site);
    let eights = site.by == 8;
    let parts = site.stores().any(|s| site.parts(s));
    let quads = eights || parts || (site.wide() && choose::quads(count, group.body.exprs.len(), cx.caps));
    let flagged = site.note(&mut k, quads, &[]);
    if halves(cx) {
        // Asked for first, so that the words of a text of halves are those of the other.
        k.word("zero", 0);
    }
    if let Some(planes) = planes {
        let touch = if quads && site.whole { Touch::Quad } else { Touch::Each };
        k.scratch(planes.splits as usize * count, false, touch);
    }
    if flagged {
        k.flagged();
    }
    let mut text = if total.is_some() { k.find_part() } else { String::new() };
    let mut accs = [const { Vec::new() }; 4];
    let first = if quads { "first" } else { "at" };
    let work = match quads {
        true => count.div_ceil(site.by),
        false => count,
    };
    let units = k.word("count", total.unwrap_or(work) as i64);
    // One after another by the same invocation, so that what a driver on the CPU does for each is done less often.
    let turns = if eights && total.is_none() { choose::TURNS_OF_EIGHT } else { 1 };
    if turns > 1 {
        let _ = writeln!(
            text,
            "let stop = min(at * {turns}u + {turns}u, {units});\n\
             for (var unit = at * {turns}u; unit < stop; unit += 1u) {{\nlet first = unit * 8u;"
        );
    } else if quads {
        let _ = writeln!(text, "let first = at * {}u;", site.by);
    }
    if let Some(planes) = planes {
        let splits = k.word("splits", i64::from(planes.splits));
        let plane = k.word("plane", count as i64);
        let vector = quads && site.whole;
        let (ty, names) = match (quads, vector) {
            (_, true) => ("vec4<f32>", vec![(first.to_owned(), "sum".to_owned())]),
            (true, false) => {
                ("f32", (0..4).map(|l| (format!("{first} + {l}u"), format!("sum{l}"))).collect())
            }
            (false, false) => ("f32", vec![(first.to_owned(), "sum".to_owned())]),
        };
        names.iter().for_each(|(_, name)| text.push_str(&format!("var {name} = {ty}();\n")));
        text.push_str(&format!("for (var s = 0u; s < {splits}; s += 1u) {{\n"));
        for (at, name) in &names {
            let at = format!("{at} + s * {plane}");
            let word = if vector { k.scratch_quad(&at) } else { k.scratch_word(&at) };
            text.push_str(&format!("{name} += bitcast<{ty}>({word});\n"));
        }
        text.push_str("}\n");
        for (lane, component) in XYZW.iter().enumerate() {
            accs[lane].push(match (quads, vector) {
                (_, true) => format!("sum.{component}"),
                (true, false) => format!("sum{lane}"),
                (false, false) => "sum".to_owned(),
            });
        }
    }
    text.push_str(&if quads {
        site.quad(&mut k, Site { first, coords: None, accs, ahead: false })?
    } else {
        site.one(&mut k, first, None, &accs[0])?
    });
    let mut count_text = format!("let count = {units};");
    if turns > 1 {
        text.push_str("}\n");
        count_text = format!("let count = ({units} + {}u) / {turns}u;", turns - 1);
    }
    let wg = choose::pointwise_workgroup(cx.caps);
    let regions = [("count", count_text.as_str()), ("body", text.as_str())];
    let invocations = total.unwrap_or(work.div_ceil(turns)) as u64;
    let grid = fold(invocations.div_ceil(u64::from(wg)), cx.caps)?;
    let flops = count as u64 * arithmetic(&group.body, &site.needed);
    k.finish(wgrad_wgsl::POINTWISE, &format!("const WG = {wg}u;\n"), &regions, grid, flops)
}
