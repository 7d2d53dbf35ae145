//! The text of a row program: runs along the row, and what is computed once a row between them.

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{ExprId, IndexId, Result};

use super::super::body::{Printer, Space};
use super::super::index::{Along, Element};
use super::super::kernel::{Kernel, wgsl_type};
use super::super::pointwise::XYZW;
use super::super::states::{combined, neutral};
use super::Rows;
use crate::choose::{self, RowLanes};

/// What is known of one unit of a lane.
#[derive(Default)]
pub(super) struct Unit {
    pub(super) coords: Vec<String>,
    pub(super) elements: HashMap<IndexId, Element>,
    /// Loads at hand: vectors of quads, and numbers that are one for all of a unit.
    pub(super) vectors: HashMap<(u16, IndexId), String>,
    pub(super) numbers: HashMap<(u16, IndexId), String>,
}

/// Text at the level of the function, and the names in it.
#[derive(Default)]
pub(super) struct Function {
    pub(super) text: String,
    pub(super) fresh: usize,
    pub(super) elements: HashMap<IndexId, Element>,
    pub(super) coords: Vec<String>,
    pub(super) once: HashMap<ExprId, String>,
}

/// What is known where a unit is printed.
struct Names<'n> {
    once: &'n HashMap<ExprId, String>,
    accs: &'n [String],
    /// The unit's number, where it is held.
    held: Option<usize>,
    /// Into which accumulators it goes.
    into: &'static str,
}

impl Rows<'_> {
    /// Coordinates of the unit at position `at` of its row, in the text of the function.
    pub(super) fn unit(&self, k: &mut Kernel<'_>, f: &mut Function, at: &str) -> Unit {
        let group = &*self.cx.step.group;
        let none = HashMap::new();
        let mut p = Printer::new(k, &group.body, Space::default(), &[], &none, "h");
        p.fresh = f.fresh;
        let sizes: Vec<String> = (self.outer()..group.dims.len()).map(|axis| p.k.dim(axis)).collect();
        let inner = p.unravel(at, &sizes);
        f.fresh = p.fresh;
        f.text.push_str(&p.out);
        let coords = f.coords.iter().cloned().chain(inner).collect();
        Unit { coords, ..Unit::default() }
    }

    /// Prints what `needed` holds that is computed once a row.
    pub(super) fn once(
        &self,
        k: &mut Kernel<'_>,
        f: &mut Function,
        needed: &[bool],
        accs: &[String],
    ) -> Result<()> {
        let group = &*self.cx.step.group;
        let none = HashMap::new();
        let space =
            Space { linear: Some("o".to_owned()), coords: Some(f.coords.clone()), rank: self.outer() };
        let mut p = Printer::new(k, &group.body, space, accs, &none, "h");
        (p.fresh, p.elements) = (f.fresh, std::mem::take(&mut f.elements));
        p.give_names(&f.once);
        for id in (0..needed.len()).filter(|id| needed[*id] && !self.stages[*id].whole) {
            p.expr(id as ExprId)?;
        }
        f.once = p.take_names();
        (f.fresh, f.elements) = (p.fresh, std::mem::take(&mut p.elements));
        f.text.push_str(&p.out);
        Ok(())
    }

    /// The lanes of a row meet: `r` of each accumulator of the level is its result, in every lane.
    pub(super) fn tree(&self, level: usize, lanes: &RowLanes) -> String {
        let mut out = String::new();
        if self.by_subgroups(lanes) {
            return self.meet(level, lanes);
        }
        if lanes.y > 1 {
            let put: String = self.of_level(level).map(|a| format!("t{a}[lane] = a{a};\n")).collect();
            let apart = if lanes.inner { 1 } else { lanes.x };
            let merge: String = self
                .of_level(level)
                .map(|a| {
                    let (kind, ty) = self.accs[a];
                    format!("a{a} = {};\n", combined(kind, ty, &format!("a{a}"), &format!("t{a}[other]")))
                })
                .collect();
            let half = lanes.y / 2;
            let _ = write!(
                out,
                "{put}workgroupBarrier();\nfor (var half = {half}u; half > 0u; half = half >> 1u) {{\n\
                 if (y < half) {{\nlet other = lane + half * {apart}u;\n{merge}{put}}}\nworkgroupBarrier();\n}}\n"
            );
            let first = if apart == 1 { "lane - y".to_owned() } else { format!("lane - y * {apart}u") };
            for a in self.of_level(level) {
                let _ = writeln!(out, "let r{a} = t{a}[{first}];");
            }
            return out;
        }
        self.of_level(level).for_each(|a| _ = writeln!(out, "let r{a} = a{a};"));
        out
    }

    /// Lanes of a subgroup tell each other what they have, and subgroups meet in workgroup memory, behind one barrier.
    fn meet(&self, level: usize, lanes: &RowLanes) -> String {
        let mut out = String::new();
        let sg = self.cx.caps.subgroup;
        let apart = lanes.y / sg;
        for a in self.of_level(level) {
            let (kind, ty) = self.accs[a];
            for step in (0..sg.ilog2()).map(|s| 1 << s) {
                let other = format!("subgroupShuffleXor(a{a}, {step}u)");
                let _ = writeln!(out, "a{a} = {};", combined(kind, ty, &format!("a{a}"), &other));
            }
            if apart > 1 {
                let _ = writeln!(out, "if (sub == 0u) {{ t{a}[part] = a{a}; }}");
            }
        }
        if apart > 1 {
            out.push_str("workgroupBarrier();\n");
        }
        for a in self.of_level(level) {
            let (kind, ty) = self.accs[a];
            if apart == 1 {
                let _ = writeln!(out, "let r{a} = a{a};");
                continue;
            }
            let _ = writeln!(out, "var met{a} = t{a}[part / {apart}u * {apart}u];");
            for i in 1..apart {
                let other = format!("t{a}[part / {apart}u * {apart}u + {i}u]");
                let _ = writeln!(out, "met{a} = {};", combined(kind, ty, &format!("met{a}"), &other));
            }
            let _ = writeln!(out, "let r{a} = met{a};");
        }
        out
    }

    /// A run along the row: the accumulators of `level`, or at the last level the stores. Loads of held units go to
    /// the text of the function.
    pub(super) fn run(
        &self,
        k: &mut Kernel<'_>,
        f: &mut Function,
        units: &mut [Unit],
        level: usize,
        lanes: &RowLanes,
        accs: &[String],
    ) -> Result<String> {
        let mut out = String::new();
        let last = level == self.levels();
        if last && self.stores(true).is_empty() {
            return Ok(out);
        }
        if lanes.held > 0 {
            let upto = if level == 0 && self.early { self.levels() } else { level };
            for level in level..=upto {
                for (c, unit) in units.iter_mut().enumerate() {
                    self.load(k, f, unit, c, level)?;
                }
            }
            for (c, unit) in units.iter().enumerate() {
                let new = self.held.iter().filter(|x| self.passes[level][**x as usize]);
                for x in new.filter(|x| self.makes(**x as usize) && self.first(**x) == level) {
                    let ty = wgsl_type(self.exprs()[*x as usize].1);
                    for lane in 0..if self.quads { 4 } else { 1 } {
                        let _ = writeln!(f.text, "var k{x}_{c}_{lane} = {ty}();");
                    }
                }
                let names = Names { once: &f.once, accs, held: Some(c), into: "a" };
                let text = self.point(k, unit, level, &names, &format!("e{c}"))?;
                let _ = write!(out, "if (on{c}) {{\n{text}}}\n");
            }
            return Ok(out);
        }
        let point = {
            let mut inner = Function { coords: f.coords.clone(), fresh: f.fresh, ..Function::default() };
            let at = if self.quads { "r4" } else { "r" };
            let mut unit = self.unit(k, &mut inner, at);
            let names = Names { once: &f.once, accs, held: None, into: "g" };
            let own = self.vectors(k, &mut unit, level, &names)?;
            let text = self.point(k, &unit, level, &names, "e")?;
            let quad = if self.quads { "let r4 = r * 4u;\n" } else { "" };
            format!("{quad}let e = row + {at};\n{}{own}{text}", inner.text)
        };
        let step = lanes.y;
        let unrolled = if point.len() > choose::unrolled_bytes(k.cx.caps) {
            String::new()
        } else {
            let turn = |n: u32| format!("{{\nlet r = next + {}u + y;\n{point}}}\n", n * step);
            let turns: String = (0..4).map(turn).collect();
            format!("for (; next + {}u <= end; next += {}u) {{\n{turns}}}\n", 4 * step, 4 * step)
        };
        let one = if step == 1 {
            format!("let r = next;\n{point}")
        } else {
            format!("let r = next + y;\nif (r < end) {{\n{point}}}\n")
        };
        let (mut start, mut end) = (String::new(), String::new());
        for a in self.of_level(level).filter(|_| !last) {
            let (kind, ty) = self.accs[a];
            let _ = writeln!(start, "var g{a} = {};", neutral(kind, ty));
            let _ = writeln!(end, "a{a} = {};", combined(kind, ty, &format!("a{a}"), &format!("g{a}")));
        }
        let block = 128 * step;
        let _ = write!(
            out,
            "for (var base = 0u; base < units; base += {block}u) {{\nlet end = min(base + {block}u, units);\n{start}\
             var next = base;\n{unrolled}for (; next < end; next += {step}u) {{\n{one}}}\n{end}}}\n"
        );
        Ok(out)
    }

    /// Loads of unit `c` for the run at `level` in the text of the function, all units' before anything is
    /// computed, so that they are under way together.
    fn load(
        &self,
        k: &mut Kernel<'_>,
        f: &mut Function,
        unit: &mut Unit,
        c: usize,
        level: usize,
    ) -> Result<()> {
        let group = &*self.cx.step.group;
        let none = HashMap::new();
        let space = Space {
            linear: Some(format!("e{c}")),
            coords: Some(unit.coords.clone()),
            rank: group.dims.len(),
        };
        let mut p = Printer::new(k, &group.body, space, &[], &none, "h");
        (p.fresh, p.elements) = (f.fresh, std::mem::take(&mut unit.elements));
        for (operand, index) in self.moving_loads(&self.passes[level]) {
            let key = (operand, index);
            if unit.vectors.contains_key(&key) || unit.numbers.contains_key(&key) {
                continue;
            }
            let kind = if self.quads { self.along(index) } else { Along::Same };
            let quad = kind == Along::Quad && p.k.reads_quads(operand);
            if !quad && kind != Along::Same {
                continue;
            }
            let element = p.element(index)?;
            if element.ok.is_some() {
                continue;
            }
            let name = format!("l{operand}_{index}_{c}");
            let text =
                if quad { p.k.load_quad(operand, &element.at) } else { p.k.load(operand, &element.at) };
            p.line(&format!("let {name} = {text};"));
            if quad { &mut unit.vectors } else { &mut unit.numbers }.insert(key, name);
        }
        (f.fresh, unit.elements) = (p.fresh, std::mem::take(&mut p.elements));
        f.text.push_str(&p.out);
        Ok(())
    }

    /// Quads of the unit at hand in a loop.
    fn vectors(
        &self,
        k: &mut Kernel<'_>,
        unit: &mut Unit,
        level: usize,
        names: &Names<'_>,
    ) -> Result<String> {
        if !self.quads {
            return Ok(String::new());
        }
        let group = &*self.cx.step.group;
        let none = HashMap::new();
        let space =
            Space { linear: Some("e".to_owned()), coords: Some(unit.coords.clone()), rank: group.dims.len() };
        let mut p = Printer::new(k, &group.body, space, names.accs, &none, "q");
        for (operand, index) in self.moving_loads(&self.passes[level]) {
            if self.along(index) == Along::Quad && p.k.reads_quads(operand) {
                let at = p.element(index)?.at;
                let name = format!("l{operand}_{index}");
                let text = p.k.load_quad(operand, &at);
                p.line(&format!("let {name} = {text};"));
                unit.vectors.insert((operand, index), name);
            }
        }
        unit.elements = std::mem::take(&mut p.elements);
        Ok(p.out)
    }

    /// What the run at `level` does at one unit, whose first element is `e` of the row-major order.
    fn point(
        &self,
        k: &mut Kernel<'_>,
        unit: &Unit,
        level: usize,
        names: &Names<'_>,
        e: &str,
    ) -> Result<String> {
        let group = &*self.cx.step.group;
        let rank = group.dims.len();
        let last = level == self.levels();
        let stores = if last { self.stores(true) } else { Vec::new() };
        let none = HashMap::new();
        let mut out = String::new();
        let mut places: Vec<Option<String>> = Vec::new();
        if self.quads {
            let space = Space { linear: Some(e.to_owned()), coords: Some(unit.coords.clone()), rank };
            let mut p = Printer::new(k, &group.body, space, names.accs, &none, "w");
            p.elements = unit.elements.clone();
            for (s, store) in &stores {
                let joint = self.along(store.index) == Along::Quad && p.k.writes_quads(*s);
                places.push(if joint { Some(p.element(store.index)?.at) } else { None });
                if joint {
                    let ty = wgsl_type(self.cx.graph.out(store.val).dtype);
                    (0..4).for_each(|lane| p.line(&format!("var s{s}_{lane} = {ty}();")));
                }
            }
            out.push_str(&p.out);
        } else {
            places.resize(stores.len(), None);
        }
        for (lane, component) in XYZW.iter().enumerate().take(if self.quads { 4 } else { 1 }) {
            let mut ready: HashMap<_, _> =
                unit.vectors.iter().map(|(key, v)| (*key, format!("{v}.{component}"))).collect();
            ready.extend(unit.numbers.iter().map(|(key, v)| (*key, v.clone())));
            let mut here = unit.coords.clone();
            let mut linear = e.to_owned();
            let mut text = String::new();
            if self.quads {
                let axis = here.last_mut().expect("a quad lies along an axis");
                text = format!("let v{lane} = {e} + {lane}u;\nlet c{lane} = {axis} + {lane}u;\n");
                *axis = format!("c{lane}");
                linear = format!("v{lane}");
            }
            let space = Space { linear: Some(linear), coords: Some(here), rank };
            let mut p = Printer::new(k, &group.body, space, names.accs, &ready, "p");
            if !self.quads {
                p.elements = unit.elements.clone();
            }
            p.give_names(names.once);
            if let Some(c) = names.held {
                let dear = self.held.iter().filter(|x| self.makes(**x as usize));
                let (old, new): (Vec<&ExprId>, _) = dear.partition(|x| self.first(**x) < level);
                let held = |x: &ExprId| format!("k{x}_{c}_{lane}");
                p.give_names(&old.iter().map(|x| (**x, held(x))).collect());
                for x in new.into_iter().filter(|x| self.passes[level][**x as usize]) {
                    let value = p.expr(*x)?;
                    p.line(&format!("{} = {value};", held(x)));
                }
            }
            if !last {
                for a in self.of_level(level) {
                    let value = p.expr(group.accs[a].x)?;
                    let (kind, ty) = self.accs[a];
                    let into = format!("{}{a}", names.into);
                    p.line(&format!("{into} = {};", combined(kind, ty, &into, &value)));
                }
            }
            // All values first: a store may lie in the place of an operand that a later one reads.
            let mut own = String::new();
            for ((s, store), place) in stores.iter().zip(&places) {
                let value = p.expr(store.x)?;
                if place.is_some() {
                    p.line(&format!("s{s}_{lane} = {value};"));
                } else {
                    let element = p.element(store.index)?;
                    own.push_str(&p.k.store(*s, &element.at, &value));
                }
            }
            let _ = write!(out, "{{\n{text}{}{own}}}\n", p.out);
        }
        for ((s, _), place) in stores.iter().zip(&places) {
            if let Some(at) = place {
                let values = [0, 1, 2, 3].map(|lane| format!("s{s}_{lane}"));
                out.push_str(&k.store_quad(*s, at, values.each_ref().map(String::as_str), None));
            }
        }
        Ok(out)
    }
}
