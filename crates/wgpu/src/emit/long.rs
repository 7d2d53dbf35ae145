//! Neighbours that move as words of 64 bits, on drivers that take a turn for each word of each invocation: four
//! elements of 4 or 2 bytes, or eight of any size.

use wgrad_graph::DType;

use super::kernel::{Declared, Kernel, recast, wgsl_type};
use crate::launch::Bound;

/// The four elements of a quad, or of half of an eight: `word` is a vector of `words` words of 64 bits.
pub(super) fn long_quad(dtype: DType, words: usize, word: &str) -> String {
    let bits = match (dtype.bytes(), words) {
        (4, _) => format!("wg_words({word})"),
        (2, _) => format!("wg_halves({word})"),
        _ => format!("wg_bytes({word})"),
    };
    match wgsl_type(dtype) {
        "bool" => format!("({bits} != vec4<u32>(0u))"),
        "u32" => bits,
        to => format!("bitcast<vec4<{to}>>({bits})"),
    }
}

/// Four values as words of 64 bits.
pub(super) fn to_long(dtype: DType, values: [&str; 4]) -> String {
    let from = wgsl_type(dtype);
    let [x, y, z, w] =
        values.map(|v| if from == "bool" { format!("select(0u, 1u, {v})") } else { v.to_owned() });
    let ty = if from == "bool" { "u32" } else { from };
    let bits = recast(&format!("vec4<{ty}>({x}, {y}, {z}, {w})"), &format!("vec4<{ty}>"), "vec4<u32>");
    match dtype.bytes() {
        4 => format!("wg_long_words({bits})"),
        2 => format!("wg_long_halves({bits})"),
        _ => format!("wg_long_bytes({bits})"),
    }
}

impl Kernel<'_> {
    /// The bits of element `at` of binding `b`, which is vectors of `words` words of 64 bits.
    pub(super) fn long_word(&self, b: usize, words: usize, dtype: DType, at: &str) -> String {
        let each = 8 / dtype.bytes();
        let vector = self.place(b, &format!("({at}) >> {}u", (each * words).ilog2()));
        let component = match words {
            1 => String::new(),
            _ => format!("[(({at}) >> {}u) & {}u]", each.ilog2(), words - 1),
        };
        let shift = format!("(({at}) & {}u) * {}u", each - 1, 8 * dtype.bytes());
        let bits = format!("u32(b{b}[{vector}]{component} >> ({shift}))");
        match dtype.bytes() {
            4 => bits,
            2 => format!("({bits} & 65535u)"),
            _ => format!("({bits} & 255u)"),
        }
    }

    /// Whether eight neighbours of this store move as one.
    pub(super) fn writes_eights(&self, store: usize) -> bool {
        let at = self.at_loc(Bound::Loc(self.cx.step.writes[store]));
        matches!(self.declared(at), Declared::Long(_))
    }

    /// The words of the eight neighbours of an operand from `at` on, and their type.
    pub(super) fn load_eight(&self, operand: u16, at: &str) -> (String, String) {
        let b = self.at_loc(Bound::Loc(self.cx.step.reads[usize::from(operand)]));
        let ty = match self.operand(operand).dtype.bytes() {
            1 => "u64".to_owned(),
            words => format!("vec{words}<u64>"),
        };
        (format!("b{b}[{}]", self.place(b, &format!("({at}) >> 3u"))), ty)
    }

    /// The two quads of what [`Kernel::load_eight`] gave, by its name.
    pub(super) fn quads_of_eight(&self, operand: u16, name: &str) -> [String; 2] {
        let dtype = self.operand(operand).dtype;
        let parts = match dtype.bytes() {
            4 => [format!("{name}.xy"), format!("{name}.zw")],
            2 => [format!("{name}.x"), format!("{name}.y")],
            _ => [format!("u32({name})"), format!("u32({name} >> 32u)")],
        };
        parts.map(|part| long_quad(dtype, 1, &part))
    }

    /// Writes eight values to the eight whose first element is `at`, as one where the store is declared so.
    pub(super) fn store_eight(&self, store: usize, at: &str, values: [&str; 8]) -> String {
        let [a, b, c, d, e, f, g, h] = values;
        let (first, second) = ([a, b, c, d], [e, f, g, h]);
        if !self.writes_eights(store) {
            let next = format!("({at}) + 4u");
            return self.store_quad(store, at, first, None) + &self.store_quad(store, &next, second, None);
        }
        let binding = self.at_loc(Bound::Loc(self.cx.step.writes[store]));
        let dtype = self.cx.graph.out(self.cx.step.group.stores[store].val).dtype;
        let [first, second] = [first, second].map(|quad| to_long(dtype, quad));
        let long = match dtype.bytes() {
            1 => format!("u64({first}) | (u64({second}) << 32u)"),
            words => format!("vec{words}<u64>({first}, {second})"),
        };
        format!("b{binding}[{}] = {long};\n", self.place(binding, &format!("({at}) >> 3u")))
    }
}
