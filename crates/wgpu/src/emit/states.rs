//! Accumulators as text: their states in a lane, in workgroup memory, and how they meet.

use std::fmt::Write as _;

use wgrad_graph::{Acc, AccKind, DType, Reduce, Result, bail};

use super::kernel::{Cx, is_word, wgsl_type};
use crate::choose::Lanes;

/// The neutral element of a reduction in the WGSL type `ty`.
pub(super) fn neutral(kind: Reduce, ty: &str) -> &'static str {
    match (kind, ty) {
        (Reduce::Sum, "vec2<u32>") => "vec2<u32>()",
        (Reduce::Prod, "vec2<u32>") => "vec2<u32>(1u, 0u)",
        (Reduce::Max, "vec2<u32>") => "vec2<u32>(0u, 0x80000000u)",
        (Reduce::Min, "vec2<u32>") => "vec2<u32>(0xffffffffu, 0x7fffffffu)",
        (Reduce::Sum, "i32") => "0",
        (Reduce::Sum | Reduce::Max, "u32") => "0u",
        (Reduce::Sum, _) => "0.0",
        (Reduce::Prod, "i32") => "1",
        (Reduce::Prod, "u32") => "1u",
        (Reduce::Prod, _) => "1.0",
        (Reduce::Max, "i32") => "bitcast<i32>(0x80000000u)",
        (Reduce::Max, _) => "bitcast<f32>(0xff800000u)",
        (Reduce::Min, "i32") => "2147483647",
        (Reduce::Min, "u32") => "4294967295u",
        (Reduce::Min, _) => "bitcast<f32>(0x7f800000u)",
    }
}

/// `x` and `w` of the WGSL type `ty` as one.
pub(super) fn combined(kind: Reduce, ty: &str, x: &str, w: &str) -> String {
    let f = match (kind, ty) {
        (Reduce::Sum, "vec2<u32>") => "wg_add_i64",
        (Reduce::Prod, "vec2<u32>") => "wg_mul_i64",
        (Reduce::Max, "vec2<u32>") => "wg_maximum_i64",
        (Reduce::Min, "vec2<u32>") => "wg_minimum_i64",
        (Reduce::Sum, _) => return format!("{x} + {w}"),
        (Reduce::Prod, _) => return format!("{x} * {w}"),
        (Reduce::Max, "f32") => "wg_max",
        (Reduce::Min, "f32") => "wg_min",
        (Reduce::Max, _) => "max",
        (Reduce::Min, _) => "min",
    };
    format!("{f}({x}, {w})")
}

#[derive(Clone)]
/// One accumulator: its text on states named by a stem.
pub(super) struct State {
    pub(super) kind: AccKind,
    pub(super) dtype: DType,
}

impl State {
    pub(super) fn new(acc: &Acc, cx: Cx<'_>) -> Result<State> {
        let dtype = cx.step.group.body.exprs[acc.x as usize].1;
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::I64) {
            bail!(DType, "reduce", "has no kernel for {dtype}");
        }
        Ok(State { kind: acc.kind, dtype })
    }

    pub(super) fn ty(&self) -> &'static str {
        wgsl_type(self.dtype)
    }

    /// The fields of a state: suffix, type, neutral element.
    pub(super) fn fields(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        match self.kind {
            AccKind::Reduce(kind) => vec![("", self.ty(), neutral(kind, self.ty()))],
            AccKind::Arg { .. } => {
                vec![("", self.ty(), neutral(Reduce::Sum, self.ty())), ("i", "u32", "0xffffffffu")]
            }
        }
    }

    /// State `into` takes the value `v` (for arg: at position `i`).
    pub(super) fn combine(&self, into: &str, v: &str, i: &str) -> String {
        match self.kind {
            AccKind::Reduce(kind) => format!("{into} = {};\n", combined(kind, self.ty(), into, v)),
            AccKind::Arg { max } => {
                let ty = if self.dtype == DType::I64 { "i64" } else { self.ty() };
                let f = format!("wg_arg_{}_{ty}", if max { "max" } else { "min" });
                format!("if ({f}({v}, {i}, {into}, {into}i)) {{ {into} = {v}; {into}i = {i}; }}\n")
            }
        }
    }
}

/// The text of all accumulators.
pub(super) struct States(pub(super) Vec<State>);

impl States {
    /// Every field: accumulator, suffix, type.
    pub(super) fn fields(&self) -> impl Iterator<Item = (usize, &'static str, &'static str)> + '_ {
        self.0.iter().enumerate().flat_map(|(a, s)| s.fields().into_iter().map(move |(f, t, _)| (a, f, t)))
    }

    /// Whether every field is a word.
    pub(super) fn words(&self) -> bool {
        self.0.iter().all(|state| is_word(state.dtype))
    }

    /// Bytes of the states of one lane.
    pub(super) fn bytes(&self) -> usize {
        self.fields().map(|(_, _, ty)| if ty == "vec2<u32>" { 8 } else { 4 }).sum()
    }

    pub(super) fn start(&self, stem: &str) -> String {
        let mut out = String::new();
        for (a, state) in self.0.iter().enumerate() {
            for (field, _, neutral) in state.fields() {
                let _ = writeln!(out, "var {stem}{a}{field} = {neutral};");
            }
        }
        out
    }

    /// States `into` take the states that `from` names by accumulator and field.
    pub(super) fn merge(&self, into: &str, from: impl Fn(usize, &str) -> String) -> String {
        let combine = |(a, s): (usize, &State)| s.combine(&format!("{into}{a}"), &from(a, ""), &from(a, "i"));
        self.0.iter().enumerate().map(combine).collect()
    }

    pub(super) fn shared(&self, wg: u32) -> String {
        self.fields().map(|(a, f, t)| format!("var<workgroup> t{a}{f}: array<{t}, {wg}>;\n")).collect()
    }

    /// Lanes of a workgroup meet; the state of the first lane of each result is whole then.
    pub(super) fn tree(&self, lanes: &Lanes) -> String {
        if lanes.y == 1 || !lanes.tree {
            return String::new();
        }
        let put: String = self.fields().map(|(a, f, _)| format!("t{a}{f}[lane] = a{a}{f};\n")).collect();
        let apart = if lanes.inner { 1 } else { lanes.x };
        let merge = self.merge("a", |a, f| format!("t{a}{f}[other]"));
        let half = lanes.y / 2;
        format!(
            "{put}workgroupBarrier();\nfor (var half = {half}u; half > 0u; half = half >> 1u) {{\n\
             if (y < half) {{\nlet other = lane + half * {apart}u;\n{merge}{put}}}\nworkgroupBarrier();\n}}\n"
        )
    }

    /// Results of the accumulators, named `r0`, `r1` ...
    pub(super) fn results(&self) -> (String, Vec<String>) {
        let mut text = String::new();
        for (a, state) in self.0.iter().enumerate() {
            let from = match state.kind {
                AccKind::Arg { .. } => format!("bitcast<i32>(a{a}i)"),
                AccKind::Reduce(_) => format!("a{a}"),
            };
            let _ = writeln!(text, "let r{a} = {from};");
        }
        (text, (0..self.0.len()).map(|a| format!("r{a}")).collect())
    }
}
