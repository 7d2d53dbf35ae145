//! A kernel under construction: its storage bindings, its parameter words, and how its text names
//! them. Words are written `$f0$` (fixed) and `$d0$` (known at submission) until `finish` knows
//! whether they fit into the immediates.

mod finish;

use std::collections::HashMap;
use std::fmt::Write as _;

use wgrad_graph::{DType, Group, Op, Out, Result, bail};

pub(super) use super::cx::{Cx, is_word, packed};
use super::cx::{bits, part};
use super::long::{long_quad, to_long};
use crate::launch::{Bound, On, ScalarType, Word};

/// How one use of a value touches its buffer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// Element by element.
    Each,
    /// Four neighbouring elements at once, aligned.
    Quad,
    /// Eight of them.
    Eight,
    /// Written as bytes of words that other invocations write too.
    Shared,
    /// Halves as the f16 that they are, for units that multiply them.
    Half,
    /// Four neighbouring ones at once, aligned.
    HalfQuad,
}

/// The WGSL type of a half that is a word of its own: its bits, since drivers round floats of 16 bits as they
/// like, and naga has no bitcast between a word and two of them.
const NATIVE: &str = "u16";
/// What a text with such words begins with.
const ENABLE: &str = "enable wgpu_int16;\n";
/// What a text with floats of 16 bits begins with.
const ENABLE_HALVES: &str = "enable f16;\n";
/// What a text with cooperative matrices begins with.
const ENABLE_MATRICES: &str = "enable f16;\nenable wgpu_cooperative_matrix;\n";

/// The element type with which a binding is declared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    Word(&'static str),
    Quad(&'static str),
    /// Vectors of so many words of 64 bits, each a quad or eight elements.
    Long(usize),
    Atomic,
}

struct Used {
    what: Bound,
    bytes: usize,
    written: bool,
    dtypes: Vec<DType>,
    touches: Vec<Touch>,
    /// Whether it is declared in words of 16 bits.
    native: bool,
}

/// A kernel under construction.
pub(super) struct Kernel<'a> {
    pub(super) cx: Cx<'a>,
    used: Vec<Used>,
    fixed: Vec<Word>,
    dynamic: Vec<Word>,
    /// Steps that one launch runs; 0 for a launch of one step.
    parts: usize,
    /// What multiplies its matrices.
    pub(super) on: On,
    /// Whether loads stay where they stand between barriers: every binding is `read_write` then. What cannot
    /// change, drivers load as late as they can, and a tile that is to be on its way meanwhile is waited for.
    pub(super) ordered: bool,
    /// Whether every f32 scalar is taken to be a half.
    pub(super) of_halves: bool,
    tokens: HashMap<String, String>,
}

/// Bytes of a value that a binding covers. Of an empty value it covers memory too, the most that one
/// element of a binding takes: a kernel may reduce nothing to something.
pub(super) fn bound_bytes(value: Out) -> usize {
    let bytes = value.shape.elems() * value.dtype.bytes();
    if bytes == 0 { 16 } else { bytes.next_multiple_of(4) }
}

/// The WGSL type in which an element is computed.
pub(super) fn wgsl_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        // Halves are their bits: they are moved as they are, and computed as f32.
        DType::U8 | DType::U32 | DType::F16 | DType::BF16 => "u32",
        DType::I32 => "i32",
        DType::I64 => "vec2<u32>",
        DType::F32 | DType::F64 => "f32",
    }
}

/// The WGSL type in which an element is stored.
fn word_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 | DType::U32 | DType::F16 | DType::BF16 => "u32",
        DType::I32 => "i32",
        DType::I64 => "vec2<u32>",
        DType::F32 | DType::F64 => "f32",
    }
}

/// The factor `f` and the shift `s` by which `x / divisor` is `x * f >> s` for each `x` below 2^31. With `2^s = divisor * f - e`
/// that is exact where `x * e` is below `2^s`; `e` is below the divisor, and `s` is 31 more than the bits that hold what is below it.
///
/// Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994.
fn reciprocal(divisor: u32) -> (u32, u32) {
    let shift = 31 + (u32::BITS - (divisor - 1).leading_zeros());
    ((1u64 << shift).div_ceil(u64::from(divisor)) as u32, shift)
}

/// `text` of type `from` as the word type `to`, by its bits.
pub(super) fn recast(text: &str, from: &str, to: &str) -> String {
    if from == to { text.to_owned() } else { format!("bitcast<{to}>({text})") }
}

impl<'a> Kernel<'a> {
    pub(super) fn new(cx: Cx<'a>) -> Kernel<'a> {
        Kernel {
            cx,
            used: Vec::new(),
            fixed: Vec::new(),
            dynamic: Vec::new(),
            parts: 0,
            on: On::Lanes,
            ordered: false,
            of_halves: false,
            tokens: HashMap::new(),
        }
    }

    /// A kernel that runs `parts` steps of one text.
    pub(super) fn of_parts(cx: Cx<'a>, parts: usize) -> Kernel<'a> {
        Kernel { parts, ..Kernel::new(cx) }
    }

    /// Vectors in a row of the table of parts.
    fn row(&self) -> usize {
        (1 + self.used.len()).div_ceil(4)
    }

    /// Finds the part of invocation `at`, where its values start, and which of its invocations this is.
    pub(super) fn find_part(&self) -> String {
        let row = self.row();
        let mut text = format!(
            "var part = 0u;\nvar start = 0u;\n\
             while (at >= parts[part * {row}u].x) {{\nstart = parts[part * {row}u].x;\npart += 1u;\n}}\n"
        );
        for b in 0..self.used.len() {
            let component = ["x", "y", "z", "w"][(b + 1) % 4];
            let _ = writeln!(text, "let o{b} = parts[part * {row}u + {}u].{component};", (b + 1) / 4);
        }
        text.push_str("let at = at - start;\n");
        text
    }

    /// Index `index` of the array of binding `b`, from where the part's value starts.
    pub(super) fn place(&self, b: usize, index: &str) -> String {
        if self.parts > 0 { format!("o{b} + ({index})") } else { index.to_owned() }
    }

    pub(super) fn group(&self) -> &'a Group {
        &self.cx.step.group
    }

    /// Shape and dtype of an operand.
    pub(super) fn operand(&self, operand: u16) -> Out {
        self.cx.graph.out(self.group().operands[usize::from(operand)])
    }

    fn note(&mut self, what: Bound, value: Out, written: bool, touch: Touch) -> usize {
        let bytes = bound_bytes(value);
        let at = self.used.iter().position(|u| u.what == what).unwrap_or_else(|| {
            let native = matches!(what, Bound::Loc(loc) if self.cx.native(loc));
            let (dtypes, touches) = (Vec::new(), Vec::new());
            self.used.push(Used { what, bytes: 0, written: false, dtypes, touches, native });
            self.used.len() - 1
        });
        let used = &mut self.used[at];
        used.bytes = used.bytes.max(bytes);
        used.written |= written;
        used.dtypes.push(value.dtype);
        used.touches.push(touch);
        at
    }

    /// Notes that an operand is read. All notes come before the first text.
    pub(super) fn reads(&mut self, operand: u16, touch: Touch) {
        let loc = self.cx.step.reads[usize::from(operand)];
        self.note(Bound::Loc(loc), self.operand(operand), false, touch);
    }

    /// Notes that a store is written.
    pub(super) fn writes(&mut self, store: usize, touch: Touch) {
        let value = self.cx.graph.out(self.group().stores[store].val);
        self.note(Bound::Loc(self.cx.step.writes[store]), value, true, touch);
    }

    /// Notes that scratch memory of `words` u32 is used.
    pub(super) fn scratch(&mut self, words: usize, written: bool, touch: Touch) {
        self.scratch_at(0, words, written, touch);
    }

    /// Notes that `words` u32 of scratch memory from byte `offset` on are used.
    pub(super) fn scratch_at(&mut self, offset: usize, words: usize, written: bool, touch: Touch) {
        let value = Out { shape: [words].into(), dtype: DType::U32 };
        self.note(Bound::Scratch(offset), value, written, touch);
    }

    /// Notes that the error flag may be raised.
    pub(super) fn flagged(&mut self) {
        let value = Out { shape: [1].into(), dtype: DType::U32 };
        self.note(Bound::Flag, value, true, Touch::Shared);
    }

    pub(super) fn declared(&self, at: usize) -> Declared {
        let used = &self.used[at];
        let first = word_type(used.dtypes[0]);
        let same = used.dtypes.iter().all(|d| word_type(*d) == first);
        let word = match (used.native, same) {
            (true, _) => NATIVE,
            (false, true) => first,
            (false, false) => "u32",
        };
        let words = used.native || used.dtypes.iter().all(|d| is_word(*d));
        let bytes = used.dtypes[0].bytes();
        let long = self.cx.caps.long_words
            && matches!(used.what, Bound::Loc(_))
            && bytes <= 4
            && used.dtypes.iter().all(|d| d.bytes() == bytes);
        let all = |touch| used.touches.iter().all(|t| *t == touch);
        if long && all(Touch::Eight) {
            return Declared::Long(bytes);
        }
        if long && all(Touch::Quad) && words {
            return Declared::Long(bytes / 2);
        }
        if used.touches.iter().all(|t| matches!(t, Touch::Half | Touch::HalfQuad)) {
            let quads = used.touches.iter().all(|t| *t == Touch::HalfQuad);
            return if quads { Declared::Quad("f16") } else { Declared::Word("f16") };
        }
        if used.touches.contains(&Touch::Shared) {
            Declared::Atomic
        } else if used.touches.iter().all(|t| *t == Touch::Quad) && words {
            Declared::Quad(word)
        } else {
            Declared::Word(word)
        }
    }

    pub(super) fn at_loc(&self, what: Bound) -> usize {
        self.used.iter().position(|u| u.what == what).expect("every use is noted before text is printed")
    }

    /// Whether quads of this operand move as one.
    pub(super) fn reads_quads(&self, operand: u16) -> bool {
        let at = self.at_loc(Bound::Loc(self.cx.step.reads[usize::from(operand)]));
        matches!(self.declared(at), Declared::Quad(_) | Declared::Long(_))
    }

    /// Whether quads of this store move as one.
    pub(super) fn writes_quads(&self, store: usize) -> bool {
        let at = self.at_loc(Bound::Loc(self.cx.step.writes[store]));
        matches!(self.declared(at), Declared::Quad(_) | Declared::Long(_))
    }

    /// Element `at` of an operand, as its computed type.
    pub(super) fn load(&self, operand: u16, at: &str) -> String {
        let b = self.at_loc(Bound::Loc(self.cx.step.reads[usize::from(operand)]));
        let dtype = self.operand(operand).dtype;
        if let Declared::Long(words) = self.declared(b) {
            let bits = self.long_word(b, words, dtype, at);
            return match dtype {
                DType::Bool => format!("({bits} != 0u)"),
                _ => recast(&bits, "u32", wgsl_type(dtype)),
            };
        }
        let word = |index: String| match self.declared(b) {
            Declared::Word(_) => format!("b{b}[{}]", self.place(b, &index)),
            Declared::Quad(_) => {
                format!("b{b}[{}][({index}) & 3u]", self.place(b, &format!("({index}) >> 2u")))
            }
            Declared::Long(_) => unreachable!("returned above"),
            Declared::Atomic => format!("atomicLoad(&b{b}[{index}])"),
        };
        if self.used[b].native {
            return format!("u32({})", word(at.to_owned()));
        }
        if packed(dtype) {
            let (index, shift, mask) = part(dtype, at);
            let bits = format!("(({} >> ({shift})) & {mask})", word(index));
            return if dtype == DType::Bool { format!("({bits} != 0u)") } else { bits };
        }
        recast(&word(at.to_owned()), self.stored_type(b), wgsl_type(dtype))
    }

    /// The quad of an operand whose first element is `at`, as a vector of its computed type.
    pub(super) fn load_quad(&self, operand: u16, at: &str) -> String {
        let b = self.at_loc(Bound::Loc(self.cx.step.reads[usize::from(operand)]));
        let dtype = self.operand(operand).dtype;
        let to = wgsl_type(dtype);
        if let Declared::Long(words) = self.declared(b) {
            let word = format!("b{b}[{}]", self.place(b, &format!("({at}) >> 2u")));
            return long_quad(dtype, words, &word);
        }
        let quad = format!("b{b}[{}]", self.place(b, &format!("({at}) >> 2u")));
        match self.stored_type(b) {
            NATIVE => format!("vec4<{to}>({quad})"),
            from if from == to => quad,
            _ => format!("bitcast<vec4<{to}>>({quad})"),
        }
    }

    /// Element `at` of an operand that is declared as f16, or the four from there on.
    pub(super) fn load_half(&self, operand: u16, at: &str, quad: bool) -> String {
        let b = self.at_loc(Bound::Loc(self.cx.step.reads[usize::from(operand)]));
        if quad { format!("b{b}[({at}) >> 2u]") } else { format!("b{b}[{at}]") }
    }

    fn stored_type(&self, b: usize) -> &'static str {
        match self.declared(b) {
            Declared::Word(t) | Declared::Quad(t) => t,
            Declared::Atomic => "u32",
            Declared::Long(_) => "u64",
        }
    }

    fn stored_dtype(&self, store: usize) -> DType {
        self.cx.graph.out(self.group().stores[store].val).dtype
    }

    /// Writes `value` to element `at` of a store. Parts of words go by two atomic operations on their own
    /// bits.
    pub(super) fn store(&self, store: usize, at: &str, value: &str) -> String {
        let b = self.at_loc(Bound::Loc(self.cx.step.writes[store]));
        let dtype = self.stored_dtype(store);
        if packed(dtype) && !self.used[b].native {
            let bits = bits(dtype, value);
            let (index, shift, mask) = part(dtype, at);
            return format!(
                "atomicAnd(&b{b}[{index}], ~({mask} << ({shift})));\n\
                 atomicOr(&b{b}[{index}], {bits} << ({shift}));\n"
            );
        }
        let word = match self.stored_type(b) {
            NATIVE => format!("{NATIVE}({value})"),
            to => recast(value, wgsl_type(dtype), to),
        };
        match self.declared(b) {
            Declared::Word(_) => format!("b{b}[{}] = {word};\n", self.place(b, at)),
            Declared::Quad(_) => {
                format!("b{b}[{}][({at}) & 3u] = {word};\n", self.place(b, &format!("({at}) >> 2u")))
            }
            Declared::Long(_) => unreachable!("what is written by the element is not noted as quads alone"),
            Declared::Atomic => format!("atomicStore(&b{b}[{at}], {word});\n"),
        }
    }

    /// Element `at` of a store's value, as its computed type.
    pub(super) fn stored(&self, store: usize, at: &str) -> String {
        let b = self.at_loc(Bound::Loc(self.cx.step.writes[store]));
        recast(&format!("b{b}[{at}]"), self.stored_type(b), wgsl_type(self.stored_dtype(store)))
    }

    /// Writes four values as one word (bytes), two words (halves) or one vector, to the quad whose first
    /// element is `at`. With `total`, what lies beyond so many elements may be lost, and a word that holds
    /// nothing else is not written.
    pub(super) fn store_quad(
        &self,
        store: usize,
        at: &str,
        values: [&str; 4],
        total: Option<&str>,
    ) -> String {
        let b = self.at_loc(Bound::Loc(self.cx.step.writes[store]));
        let dtype = self.stored_dtype(store);
        if let Declared::Long(_) = self.declared(b) {
            let place = self.place(b, &format!("({at}) >> 2u"));
            return format!("b{b}[{place}] = {};\n", to_long(dtype, values));
        }
        if packed(dtype) && !self.used[b].native {
            let [x, y, z, w] = values.map(|v| bits(dtype, v));
            if dtype.bytes() == 2 {
                let second = format!("b{b}[(({at}) >> 1u) + 1u] = {z} | ({w} << 16u);\n");
                let second = match total {
                    Some(total) => format!("if ({at} + 2u < {total}) {{ {} }}\n", second.trim_end()),
                    None => second,
                };
                return format!("b{b}[({at}) >> 1u] = {x} | ({y} << 16u);\n{second}");
            }
            return format!("b{b}[({at}) >> 2u] = {x} | ({y} << 8u) | ({z} << 16u) | ({w} << 24u);\n");
        }
        let (from, to) = (wgsl_type(dtype), self.stored_type(b));
        let [x, y, z, w] = values;
        let quad = format!("vec4<{from}>({x}, {y}, {z}, {w})");
        let quad = match to {
            NATIVE => format!("vec4<{to}>({quad})"),
            _ if from == to => quad,
            _ => format!("bitcast<vec4<{to}>>({quad})"),
        };
        format!("b{b}[{}] = {quad};\n", self.place(b, &format!("({at}) >> 2u")))
    }

    /// Word `at` of the scratch memory.
    pub(super) fn scratch_word(&self, at: &str) -> String {
        self.scratch_word_at(0, at)
    }

    /// Word `at` of the scratch memory from byte `offset` on.
    pub(super) fn scratch_word_at(&self, offset: usize, at: &str) -> String {
        format!("b{}[{at}]", self.at_loc(Bound::Scratch(offset)))
    }

    /// The quad of the scratch memory whose first word is `at`, a vector of u32.
    pub(super) fn scratch_quad(&self, at: &str) -> String {
        format!("b{}[({at}) >> 2u]", self.at_loc(Bound::Scratch(0)))
    }

    /// Raises the error flag with a check of the operation `op`, whose index broke `limit`.
    pub(super) fn raise(&mut self, op: &'static str, limit: usize) -> String {
        let check = self.check(op, limit);
        format!("atomicMax(&b{}[0], {check});\n", self.at_loc(Bound::Flag))
    }

    /// The parameter that tells a check of the operation `op`.
    fn check(&mut self, op: &'static str, limit: usize) -> String {
        let at = self.group().nodes.iter().map(|n| self.cx.graph.node(*n)).find(|node| {
            let named = node.op.name() == op;
            let axis_size = match node.op {
                Op::Gather { axis } => Some(self.cx.graph.out(node.inputs[0]).shape[usize::from(axis)]),
                Op::Scatter { axis, .. } => Some(node.outs[0].shape[usize::from(axis)]),
                _ => None,
            };
            named && axis_size == Some(limit)
        });
        let word = Word::Check { op, limit: limit as u32, at: at.and_then(|node| node.at) };
        self.push_fixed(word)
    }

    fn push_fixed(&mut self, word: Word) -> String {
        self.fixed.push(word);
        format!("$f{}$", self.fixed.len() - 1)
    }

    /// The parameter named `key`, with this value: one word, however often it is asked for. The number
    /// wraps to 32 bits.
    pub(super) fn word(&mut self, key: &str, value: i64) -> String {
        if let Some(token) = self.tokens.get(key) {
            return token.clone();
        }
        let token = self.push_fixed(Word::Fixed(value as u32));
        self.tokens.insert(key.to_owned(), token.clone());
        token
    }

    /// Parameters as text that declares them under their names. Numbers wrap to 32 bits.
    pub(super) fn declare_words(&mut self, words: &[(&str, usize)]) -> String {
        let mut text = String::new();
        for (name, value) in words {
            let word = self.word(name, *value as i64);
            let _ = writeln!(text, "let {name} = {word};");
        }
        text
    }

    /// The text of `x / size`, where `size` is a parameter and `x` below 2^31. What divides by a number that it does not know
    /// takes an H200 some 25 instructions, and a product of 64 bits 3.
    pub(super) fn quotient(&mut self, x: &str, size: &str) -> String {
        let at = size.strip_prefix("$f").and_then(|rest| rest.strip_suffix('$')?.parse::<usize>().ok());
        match at.and_then(|at| self.fixed.get(at)) {
            Some(Word::Fixed(divisor)) if *divisor > 0 && self.cx.caps.long_products => {
                let (factor, shift) = reciprocal(*divisor);
                let factor = self.word(&format!("{size}factor"), i64::from(factor));
                let shift = self.word(&format!("{size}shift"), i64::from(shift));
                format!("u32((u64({x}) * u64({factor})) >> {shift})")
            }
            _ => format!("{x} / {size}"),
        }
    }

    /// The size of axis `axis` of the group's space.
    pub(super) fn dim(&mut self, axis: usize) -> String {
        self.word(&format!("d{axis}"), self.group().dims[axis].max(1) as i64)
    }

    /// A scalar of the group, as a u32 word; for i64 as a vector of two.
    ///
    /// # Errors
    /// `Argument` when the plan does not hold it.
    pub(super) fn scalar_bits(&mut self, scalar: u16) -> Result<String> {
        let key = format!("scalar{scalar}");
        if let Some(token) = self.tokens.get(&key) {
            return Ok(token.clone());
        }
        let node = self.group().scalars[usize::from(scalar)];
        let Some(at) = self.cx.scalars.iter().position(|n| *n == node) else {
            bail!(Argument, "scalar", "node %{node} is not among the plan's scalars");
        };
        let kind = match self.scalar_dtype(scalar) {
            DType::Bool => ScalarType::Bool,
            DType::U8 | DType::U32 => ScalarType::U32,
            DType::I32 | DType::I64 => ScalarType::I32,
            DType::F16 => ScalarType::F16,
            DType::BF16 => ScalarType::BF16,
            DType::F32 | DType::F64 => ScalarType::F32,
        };
        self.dynamic.push(Word::Scalar(at as u32, kind));
        let mut token = format!("$d{}$", self.dynamic.len() - 1);
        if self.scalar_dtype(scalar) == DType::I64 {
            self.dynamic.push(Word::Scalar(at as u32, ScalarType::High));
            token = format!("vec2<u32>({token}, $d{}$)", self.dynamic.len() - 1);
        }
        self.tokens.insert(key, token.clone());
        Ok(token)
    }

    /// The dtype of a scalar of the group.
    pub(super) fn scalar_dtype(&self, scalar: u16) -> DType {
        let node = self.group().scalars[usize::from(scalar)];
        self.cx.graph.node(node).outs[0].dtype
    }
}

#[cfg(test)]
mod tests {
    use super::reciprocal;

    #[test]
    fn reciprocals_are_exact() {
        const END: u32 = 1 << 31;
        let powers = (0..32).flat_map(|bits| [-1, 0, 1].map(|by| (1i64 << bits) + by));
        let odd = (0..10_000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (33 + i % 20)) as i64);
        for divisor in (1..2000).chain(powers).chain(odd).filter(|d| (1..=i64::from(END)).contains(d)) {
            let (factor, shift) = reciprocal(divisor as u32);
            let most = (END - 1) / divisor as u32;
            // Around multiples: where a quotient is one off, it is off there first.
            for times in [0, 1, 2, 3, most / 3, most / 2, most.saturating_sub(1), most] {
                for by in [-1, 0, 1] {
                    let x = i64::from(times) * divisor + by;
                    if (0..i64::from(END)).contains(&x) {
                        let made = ((x as u64 * u64::from(factor)) >> shift) as i64;
                        assert_eq!(made, x / divisor, "{x} / {divisor}");
                    }
                }
            }
            let x = END - 1;
            assert_eq!(
                (u64::from(x) * u64::from(factor)) >> shift,
                u64::from(x / divisor as u32),
                "{divisor}"
            );
        }
    }
}
