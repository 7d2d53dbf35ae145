//! Expressions of a group as straight-line WGSL.

use std::collections::HashMap;

use wgrad_graph::{Binary, Body, DType, Expr, ExprId, Fast, IndexId, Result, Store, Unary, bail};

use super::index::Element;
use super::kernel::{Kernel, wgsl_type};
use super::template::{self, substitute};
use crate::choose;

/// Where a point of the space is found.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// Its position in row-major order, where that is at hand.
    pub(super) linear: Option<String>,
    /// Its coordinates, where they are at hand; else they come from `linear`.
    pub(super) coords: Option<Vec<String>>,
    /// The axes of the group's dims that the coordinates run over, `0..rank`.
    pub(super) rank: usize,
}

/// Prints expressions at one point. Names are a prefix and a number; each point prints into a block of
/// its own.
pub(super) struct Printer<'p, 'a> {
    pub(super) k: &'p mut Kernel<'a>,
    pub(super) body: &'p Body,
    pub(super) space: Space,
    /// Names of the accumulators' results.
    pub(super) accs: &'p [String],
    /// Loads that are at hand, by operand and index.
    pub(super) ready: &'p HashMap<(u16, IndexId), String>,
    pub(super) prefix: &'static str,
    pub(super) out: String,
    pub(super) fresh: usize,
    pub(super) elements: HashMap<IndexId, Element>,
    names: HashMap<ExprId, String>,
}

/// Which expressions `roots` need.
pub(super) fn reach(body: &Body, roots: impl IntoIterator<Item = ExprId>) -> Vec<bool> {
    let mut needed = vec![false; body.exprs.len()];
    for root in roots {
        needed[root as usize] = true;
    }
    for id in (0..body.exprs.len()).rev() {
        if needed[id] {
            operands(&body.exprs[id].0).into_iter().for_each(|x| needed[x as usize] = true);
        }
    }
    needed
}

/// The expressions that an expression refers to.
fn operands(expr: &Expr) -> Vec<ExprId> {
    match expr {
        Expr::Gather { at, .. } => vec![*at],
        Expr::Unary { x, .. } | Expr::Cast { x } => vec![*x],
        Expr::Binary { x, w, .. } => vec![*x, *w],
        Expr::Select { c, x, w } => vec![*c, *x, *w],
        Expr::Load { .. }
        | Expr::Scalar { .. }
        | Expr::Coord { .. }
        | Expr::Random { .. }
        | Expr::Valid { .. }
        | Expr::Acc { .. } => Vec::new(),
    }
}

impl<'p, 'a> Printer<'p, 'a> {
    pub(super) fn new(
        k: &'p mut Kernel<'a>,
        body: &'p Body,
        space: Space,
        accs: &'p [String],
        ready: &'p HashMap<(u16, IndexId), String>,
        prefix: &'static str,
    ) -> Self {
        Printer {
            k,
            body,
            space,
            accs,
            ready,
            prefix,
            out: String::new(),
            fresh: 0,
            elements: HashMap::new(),
            names: HashMap::new(),
        }
    }

    pub(super) fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// The coordinates of the point.
    pub(super) fn coords(&mut self) -> Vec<String> {
        if let Some(coords) = &self.space.coords {
            return coords.clone();
        }
        let sizes: Vec<String> = (0..self.space.rank).map(|axis| self.k.dim(axis)).collect();
        let linear = self.space.linear.clone().unwrap_or_else(|| "0u".to_owned());
        let coords = self.unravel(&linear, &sizes);
        self.space.coords = Some(coords.clone());
        coords
    }

    /// The name of expression `id` at this point.
    ///
    /// # Errors
    /// `DType` for what no device stores; see also [`Kernel::scalar_bits`].
    pub(super) fn expr(&mut self, id: ExprId) -> Result<String> {
        let needed = self.reach(id);
        for at in 0..=id {
            if needed[at as usize] && !self.names.contains_key(&at) {
                let name = self.evaluate(at)?;
                self.names.insert(at, name);
            }
        }
        Ok(self.names[&id].clone())
    }

    /// Which expressions `root` needs as they are printed.
    fn reach(&self, root: ExprId) -> Vec<bool> {
        let mut needed = vec![false; root as usize + 1];
        needed[root as usize] = true;
        for id in (0..=root).rev() {
            if needed[id as usize] {
                let of = match self.of_halves(id) {
                    Some((_, sides)) => sides.map(|side| self.half(side).unwrap_or(side)).to_vec(),
                    None => operands(&self.body.exprs[id as usize].0),
                };
                of.into_iter().for_each(|x| needed[x as usize] = true);
            }
        }
        needed
    }

    /// Writes every store at this point. All values come first: a store may lie in the place of an
    /// operand that a later one reads.
    ///
    /// # Errors
    /// See [`Printer::expr`].
    pub(super) fn stores(&mut self, stores: &[Store]) -> Result<()> {
        let mut lines = String::new();
        for (s, store) in stores.iter().enumerate() {
            let value = self.expr(store.x)?;
            let element = self.element(store.index)?;
            lines.push_str(&self.k.store(s, &element.at, &value));
        }
        self.out.push_str(&lines);
        Ok(())
    }

    /// The names of everything printed so far, for points within this one's scope.
    pub(super) fn take_names(&mut self) -> HashMap<ExprId, String> {
        std::mem::take(&mut self.names)
    }

    /// Makes expressions known that a scope around this point has printed.
    pub(super) fn give_names(&mut self, names: &HashMap<ExprId, String>) {
        self.names.extend(names.iter().map(|(id, name)| (*id, name.clone())));
    }

    /// The place that gather `id` looks up, the size that it has to be below, and the element there.
    fn gather_at(
        &mut self,
        id: ExprId,
        first: &str,
        at: ExprId,
        stride: i64,
        size: usize,
    ) -> (String, String, String) {
        let x = self.names[&at].clone();
        let place = match self.body.exprs[at as usize].1 {
            DType::I32 => format!("bitcast<u32>({x})"),
            DType::I64 => format!("wg_index_i64({x})"),
            _ => x,
        };
        let place = self.name(&place);
        let size_word = self.k.word(&format!("x{id}n"), size as i64);
        let offset = match stride {
            1 => place.clone(),
            stride => format!("{place} * {}", self.k.word(&format!("x{id}s"), stride)),
        };
        let at = self.name(&format!("{first} + {offset}"));
        (place, size_word, at)
    }

    /// The vector of four neighbours that gather `id` looks up at one place; `None` where the table is not
    /// read in quads.
    ///
    /// # Errors
    /// See [`Printer::expr`].
    pub(super) fn gathered_quad(&mut self, id: ExprId) -> Result<Option<String>> {
        let (Expr::Gather { operand, index, at, stride, size }, dtype) = &self.body.exprs[id as usize] else {
            return Ok(None);
        };
        if !self.k.reads_quads(*operand) {
            return Ok(None);
        }
        self.expr(*at)?;
        let element = self.element(*index)?;
        let (place, size_word, at) = self.gather_at(id, &element.at, *at, *stride, *size);
        let load = self.k.load_quad(*operand, &at);
        let raise = self.k.raise("gather", *size);
        let (name, ty) = (format!("g{id}"), wgsl_type(*dtype));
        self.line(&format!(
            "var {name} = vec4<{ty}>();\nif ({place} < {size_word}) {{ {name} = {load}; }} else {{ {} }}",
            raise.trim_end()
        ));
        Ok(Some(name))
    }

    fn evaluate(&mut self, id: ExprId) -> Result<String> {
        let body = self.body;
        let (expr, dtype) = &body.exprs[id as usize];
        let dtype = *dtype;
        if dtype == DType::F64 {
            bail!(DType, "kernel", "{} stores no f64", self.k.cx.caps.name);
        }
        let ty = wgsl_type(dtype);
        let x = |p: &Self, x: ExprId| p.names[&x].clone();
        let text = match expr {
            Expr::Load { operand, index } => {
                if let Some(name) = self.ready.get(&(*operand, *index)) {
                    return Ok(name.clone());
                }
                let element = self.element(*index)?;
                let load = self.k.load(*operand, &element.at);
                match element.ok {
                    None => load,
                    Some(ok) => {
                        let name = self.variable(ty);
                        self.line(&format!("if ({ok}) {{ {name} = {load}; }}"));
                        return Ok(name);
                    }
                }
            }
            Expr::Gather { operand, index, at, stride, size } => {
                let element = self.element(*index)?;
                let (place, size_word, at) = self.gather_at(id, &element.at, *at, *stride, *size);
                let load = self.k.load(*operand, &at);
                let raise = self.k.raise("gather", *size);
                let name = self.variable(ty);
                let guarded = format!(
                    "if ({place} < {size_word}) {{ {name} = {load}; }} else {{ {} }}",
                    raise.trim_end()
                );
                self.line(&match element.ok {
                    None => guarded,
                    Some(ok) => format!("if ({ok}) {{ {guarded} }}"),
                });
                return Ok(name);
            }
            Expr::Scalar { scalar } => {
                let bits = self.k.scalar_bits(*scalar)?;
                match dtype {
                    DType::F32 | DType::F64 => format!("bitcast<f32>({bits})"),
                    DType::I32 => format!("bitcast<i32>({bits})"),
                    DType::Bool => format!("({bits} != 0u)"),
                    DType::U8 => format!("({bits} & 255u)"),
                    DType::U32 | DType::I64 | DType::F16 | DType::BF16 => bits,
                }
            }
            Expr::Coord { index } => {
                let at = self.element(*index)?.at;
                match dtype {
                    DType::U32 => at,
                    DType::U8 => format!("({at} & 255u)"),
                    DType::I32 => format!("bitcast<i32>({at})"),
                    _ => cast(DType::I32, dtype, &format!("bitcast<i32>({at})")),
                }
            }
            Expr::Random { index, per_row, scalars } => {
                let at = self.element(*index)?.at;
                let [k0, k1, step, row] = {
                    let mut words = [const { String::new() }; 4];
                    for (word, scalar) in words.iter_mut().zip(scalars) {
                        *word = self.k.scalar_bits(*scalar)?;
                    }
                    words
                };
                let per_row = self.k.word(&format!("x{id}p"), i64::from(*per_row));
                format!("wg_philox({k0}, {k1}, {row} * {per_row} + {at}, {step})")
            }
            Expr::Valid { index } => self.element(*index)?.ok.unwrap_or_else(|| "true".to_owned()),
            Expr::Unary { op, x: operand } => {
                let from = body.exprs[*operand as usize].1;
                mask(dtype, self.unary(*op, from, &x(self, *operand))?)
            }
            // Drivers take what they see to be one number for equal to itself, also where it is none.
            Expr::Binary { op: Binary::Ne, x: a, w } if a == w && body.exprs[*a as usize].1 == DType::F32 => {
                format!("wg_is_nan({})", x(self, *a))
            }
            Expr::Binary { op: Binary::Eq | Binary::Le | Binary::Ge, x: a, w }
                if a == w && body.exprs[*a as usize].1 == DType::F32 =>
            {
                format!("!wg_is_nan({})", x(self, *a))
            }
            // And its difference for 0, also of infinities.
            Expr::Binary { op: Binary::Sub, x: a, w } if dtype == DType::F32 && a == w => {
                format!("wg_no_difference({})", x(self, *a))
            }
            Expr::Binary { op, x: a, w } => {
                let from = body.exprs[*a as usize].1;
                mask(dtype, self.binary(*op, from, &x(self, *a), &x(self, *w))?)
            }
            Expr::Select { c, x: a, w } if dtype == DType::F32 && compares(&body.exprs[*c as usize], *w) => {
                format!(
                    "wg_keep_nan(select({w}, {}, {}), {w}, {w})",
                    x(self, *a),
                    x(self, *c),
                    w = x(self, *w)
                )
            }
            Expr::Select { c, x: a, w } => {
                format!("select({}, {}, {})", x(self, *w), x(self, *a), x(self, *c))
            }
            Expr::Cast { x: operand } => {
                if let Some((sign, sides)) = self.of_halves(id) {
                    let [a, b] = sides.map(|side| self.as_half(side));
                    let name = format!("x{id}{}", self.prefix);
                    self.line(&format!("let {name} = u32(bitcast<u16>({a} {sign} {b}));"));
                    return Ok(name);
                }
                let (made, from) = &body.exprs[*operand as usize];
                let mut value = x(self, *operand);
                // Drivers take narrowing and widening one after the other together for nothing.
                let narrowed =
                    *from == DType::F16 && !matches!(made, Expr::Load { .. } | Expr::Gather { .. });
                if narrowed && self.k.cx.caps.allows(Fast::PackedHalves) {
                    value = format!("({value} | {})", self.k.word("zero", 0));
                }
                cast(*from, dtype, &value)
            }
            Expr::Acc { acc } => return Ok(self.accs[usize::from(*acc)].clone()),
        };
        let name = format!("x{id}{}", self.prefix);
        self.line(&format!("let {name} = {text};"));
        Ok(name)
    }

    /// A half that f32 expression `id` is for certain: what is widened, or a scalar taken for one.
    fn half(&self, id: ExprId) -> Option<ExprId> {
        match self.body.exprs[id as usize] {
            (Expr::Cast { x }, DType::F32) if self.body.exprs[x as usize].1 == DType::F16 => Some(x),
            (Expr::Scalar { .. }, DType::F32) if self.k.of_halves => Some(id),
            _ => None,
        }
    }

    /// The step and its f32 sides, where expression `id` rounds to a half what two halves make: the device's own
    /// step gives the same, since f32 has more than twice the digits of a half.
    fn of_halves(&self, id: ExprId) -> Option<(&'static str, [ExprId; 2])> {
        let exprs = &self.body.exprs;
        let (Expr::Cast { x }, DType::F16) = exprs[id as usize] else { return None };
        let (Expr::Binary { op, x: a, w: b }, DType::F32) = exprs[x as usize] else { return None };
        let sign = match op {
            Binary::Add => "+",
            // Of one number: drivers take it for 0, also of infinities.
            Binary::Sub if a != b => "-",
            Binary::Mul => "*",
            _ => return None,
        };
        let halves = choose::half_arithmetic(self.k.cx.caps)
            && [a, b].iter().all(|side| self.half(*side).is_some())
            && [a, b].iter().any(|side| matches!(exprs[*side as usize].0, Expr::Cast { .. }));
        halves.then_some((sign, [a, b]))
    }

    /// A side of such a step as the device's half.
    fn as_half(&mut self, side: ExprId) -> String {
        let half = self.half(side).unwrap_or(side);
        let name = self.names[&half].clone();
        match self.body.exprs[half as usize] {
            (Expr::Scalar { .. }, DType::F32) => format!("f16({name})"),
            (Expr::Load { .. } | Expr::Gather { .. }, _) => format!("bitcast<f16>(u16({name}))"),
            // Drivers take a sum and a difference of the same for nothing.
            _ => format!("bitcast<f16>(u16({name} | {}))", self.k.word("zero", 0)),
        }
    }

    fn unary(&self, op: Unary, from: DType, x: &str) -> Result<String> {
        match from {
            DType::I64 => self.int64(op.row().name, op.row().wgsl_int, &[x]),
            _ => Ok(unary(op, from, x)),
        }
    }

    fn binary(&self, op: Binary, from: DType, x: &str, w: &str) -> Result<String> {
        match from {
            DType::I64 => self.int64(op.row().name, op.row().wgsl_int, &[x, w]),
            _ => Ok(binary(op, from, x, w)),
        }
    }

    /// An integer row on two words: a function of the prelude, unless the row does nothing.
    fn int64(&self, name: &str, row: &str, x: &[&str]) -> Result<String> {
        let function = format!("wg_{name}_i64");
        match row {
            "x" => Ok(x[0].to_owned()),
            "true" | "false" => Ok(row.to_owned()),
            _ if template::has(&function) => Ok(format!("{function}({})", x.join(", "))),
            _ => bail!(DType, name, "has no kernel for i64 on {}; cast to i32", self.k.cx.caps.name),
        }
    }

    fn variable(&mut self, ty: &str) -> String {
        let name = format!("{}{}", self.prefix, self.fresh);
        self.fresh += 1;
        self.line(&format!("var {name} = {ty}();"));
        name
    }
}

/// Whether `c` orders floats of which one is `w`. Drivers turn a choice between those that are compared
/// into their min or max, which drops NaN; it is put back where `w` is chosen because it is NaN.
fn compares((c, _): &(Expr, DType), w: ExprId) -> bool {
    use Binary::{Ge, Gt, Le, Lt};
    matches!(c, Expr::Binary { op: Ge | Gt | Le | Lt, x: p, w: q } if *p == w || *q == w)
}

fn mask(dtype: DType, text: String) -> String {
    if dtype == DType::U8 { format!("({text}) & 255u") } else { text }
}

fn integer(row: &str, from: DType, x: &str, w: &str) -> String {
    let suffix = if from == DType::I32 { "i32" } else { "u32" };
    substitute(row, |word| match word {
        "x" => Some(x.to_owned()),
        "w" => Some(w.to_owned()),
        _ if word.starts_with("wg_") => Some(format!("{word}_{suffix}")),
        _ => None,
    })
}

fn unary(op: Unary, from: DType, x: &str) -> String {
    let row = op.row();
    match from {
        DType::Bool if op == Unary::Not => format!("!{x}"),
        _ if from.is_float() => substitute(row.wgsl, |word| (word == "x").then(|| x.to_owned())),
        _ => integer(row.wgsl_int, from, x, ""),
    }
}

fn binary(op: Binary, from: DType, x: &str, w: &str) -> String {
    let row = op.row();
    match from {
        DType::Bool => match op {
            Binary::Xor => format!("({x} != {w})"),
            Binary::Lt => format!("(!{x} && {w})"),
            Binary::Le => format!("(!{x} || {w})"),
            Binary::Gt => format!("({x} && !{w})"),
            Binary::Ge => format!("({x} || !{w})"),
            _ => integer(row.wgsl_int, from, x, w),
        },
        _ if from.is_float() => substitute(row.wgsl, |word| match word {
            "x" => Some(x.to_owned()),
            "w" => Some(w.to_owned()),
            _ => None,
        }),
        _ => integer(row.wgsl_int, from, x, w),
    }
}

/// `x` of dtype `from` as dtype `to`.
pub(super) fn cast(from: DType, to: DType, x: &str) -> String {
    use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8, U32};
    match (from, to) {
        _ if from == to => x.to_owned(),
        (F16, F32) => format!("wg_from_f16({x})"),
        (BF16, F32) => format!("wg_from_bf16({x})"),
        (F32, F16) => format!("wg_to_f16({x})"),
        (F32, BF16) => format!("wg_to_bf16({x})"),
        (F16 | BF16, _) => cast(F32, to, &cast(from, F32, x)),
        (_, F16 | BF16) => cast(F32, to, &cast(from, F32, x)),
        (I64, Bool) => format!("(({x}.x | {x}.y) != 0u)"),
        (I64, U8) => format!("({x}.x & 255u)"),
        (I64, U32) => format!("{x}.x"),
        (I64, I32) => format!("bitcast<i32>({x}.x)"),
        (I64, F32 | F64) => format!("wg_i64_to_f32({x})"),
        (F32 | F64, I64) => format!("wg_f32_to_i64({x})"),
        (I32, I64) => format!("wg_i32_to_i64({x})"),
        (U8 | U32, I64) => format!("vec2<u32>({x}, 0u)"),
        (Bool, I64) => format!("vec2<u32>(select(0u, 1u, {x}), 0u)"),
        (F32 | F64, Bool) => format!("!({x} == 0.0)"),
        (I32, Bool) => format!("({x} != 0)"),
        (U8 | U32, Bool) => format!("({x} != 0u)"),
        (F32 | F64, I32) => format!("wg_to_i32({x})"),
        (F32 | F64, U32) => format!("wg_to_u32({x})"),
        (F32 | F64, U8) => format!("wg_to_u8({x})"),
        (_, F32 | F64) => format!("f32({x})"),
        (I32, U32) => format!("bitcast<u32>({x})"),
        (I32, U8) => format!("(bitcast<u32>({x}) & 255u)"),
        (U32, U8) => format!("({x} & 255u)"),
        (U8 | U32, I32) => format!("bitcast<i32>({x})"),
        (Bool, I32) => format!("select(0, 1, {x})"),
        (Bool, U8 | U32) => format!("select(0u, 1u, {x})"),
        _ => x.to_owned(),
    }
}

/// Rounds of the loops that a point of `body` takes in functions, the end of each among them.
pub(super) fn loop_rounds(body: &Body) -> usize {
    let rounds = |(expr, dtype): &(Expr, DType)| match (expr, dtype) {
        (Expr::Random { .. }, _) => 11,
        (Expr::Binary { op: Binary::Pow, .. }, DType::I64) => 64,
        (Expr::Binary { op: Binary::Pow, .. }, DType::I32 | DType::U32) => 33,
        // Floor division takes a quotient and a remainder of its own.
        (Expr::Binary { op: Binary::FloorDiv, .. }, DType::I64) => 130,
        (Expr::Binary { op: Binary::Div | Binary::Rem | Binary::Fmod, .. }, DType::I64) => 65,
        _ => 0,
    };
    body.exprs.iter().map(rounds).sum()
}
