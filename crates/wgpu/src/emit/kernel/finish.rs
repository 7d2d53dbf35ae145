//! The end of a kernel: declarations, parameters in their places, the whole text.

use std::fmt::Write as _;

use wgrad_graph::{Fast, Result, bail};

use super::{Declared, ENABLE, ENABLE_HALVES, ENABLE_MATRICES, Kernel, NATIVE};
use crate::choose;
use crate::emit::template;
use crate::launch::{Binding, Bound, Launch, On, Params, Word};

impl Kernel<'_> {
    /// The finished launch: `file` with its regions, `extra` declarations, and all that was noted.
    ///
    /// # Errors
    /// `Limit` when the kernel needs more buffers or immediates than the device has.
    pub(in crate::emit) fn finish(
        mut self,
        file: &str,
        extra: &str,
        regions: &[(&str, &str)],
        grid: [u32; 3],
        cost_flops: u64,
    ) -> Result<Launch> {
        let caps = self.cx.caps;
        let name = self.group().nodes.last().map_or("kernel", |n| self.cx.graph.node(*n).op.name());
        // The error flag and scratch memory have buffers of their own, beside those that plans count.
        let values = self.used.iter().filter(|u| matches!(u.what, Bound::Loc(_))).count();
        if values > caps.max_buffers {
            bail!(
                Limit,
                name,
                "needs {values} storage buffers in one kernel, {} has {}",
                caps.name,
                caps.max_buffers
            );
        }
        let words = self.fixed.len() + self.dynamic.len();
        let params = match words * 4 {
            _ if self.parts > 0 => {
                let mut unit_bytes = [0; 16];
                for (b, unit) in unit_bytes.iter_mut().enumerate().take(self.used.len()) {
                    *unit = match self.declared(b) {
                        Declared::Quad(_) => 16,
                        Declared::Long(words) => 8 * words as u8,
                        Declared::Word(_) | Declared::Atomic => 4,
                    };
                }
                Params::Parts { unit_bytes, workgroup: choose::pointwise_workgroup(caps) }
            }
            0 => Params::None,
            bytes if bytes <= caps.immediate_bytes => Params::Immediate,
            _ => {
                if self.dynamic.len() * 4 > caps.immediate_bytes {
                    bail!(
                        Limit,
                        name,
                        "needs {} scalars in one kernel, {} takes {}",
                        self.dynamic.len(),
                        caps.name,
                        caps.immediate_bytes / 4
                    );
                }
                self.fixed.resize(self.fixed.len().next_multiple_of(4), Word::Fixed(0));
                Params::Spilled { fixed: self.fixed.len() as u32 }
            }
        };
        let mut declare = String::new();
        let immediates = match params {
            Params::None => 0,
            Params::Immediate => words,
            Params::Parts { .. } => {
                let vectors = self.parts * self.row();
                let _ = writeln!(
                    declare,
                    "@group(1) @binding(0) var<uniform> parts: array<vec4<u32>, {vectors}>;"
                );
                words
            }
            Params::Spilled { fixed } => {
                let vectors = fixed / 4;
                let _ = writeln!(
                    declare,
                    "@group(1) @binding(0) var<uniform> words: array<vec4<u32>, {vectors}>;"
                );
                self.dynamic.len()
            }
        };
        if immediates > 0 {
            let fields: Vec<_> = (0..immediates).map(|i| format!("w{i}: u32")).collect();
            let _ = writeln!(
                declare,
                "struct Params {{ {} }}\nvar<immediate> params: Params;",
                fields.join(", ")
            );
        }
        for b in 0..self.used.len() {
            let elem = match self.declared(b) {
                Declared::Word(t) => t.to_owned(),
                Declared::Quad(t) => format!("vec4<{t}>"),
                Declared::Long(1) => "u64".to_owned(),
                Declared::Long(words) => format!("vec{words}<u64>"),
                Declared::Atomic => "atomic<u32>".to_owned(),
            };
            let _ = writeln!(declare, "@group(0) @binding({b}) var<storage, ACCESS{b}> b{b}: array<{elem}>;");
        }
        declare.push_str(extra);
        let mut all = vec![("declare", declare.as_str())];
        all.extend_from_slice(regions);
        let mut body = template::fill(file, &all);
        if caps.allows(Fast::PackedHalves) {
            // lavapipe takes half as long again for its own narrowing as for that by bits.
            body = template::packed(&body, !choose::software(caps));
        }
        if choose::software(caps) {
            body = body.replace("wg_erf(", "wg_erf_ratio(");
        }
        let is_native = |b| matches!(self.declared(b), Declared::Word(NATIVE) | Declared::Quad(NATIVE));
        let floats = body.contains("bitcast<f16>(");
        let enable = if floats || (0..self.used.len()).any(is_native) { ENABLE } else { "" };
        let floats = if floats { ENABLE_HALVES } else { "" };
        let matrices = if matches!(self.on, On::Units(_)) { ENABLE_MATRICES } else { "" };
        let source = format!(
            "{matrices}{floats}{enable}{}{}",
            template::prelude(&body),
            self.name_words(&body, params)
        );
        let ordered = self.ordered;
        let bindings: Vec<Binding> = self
            .used
            .iter()
            .map(|u| Binding { what: u.what, written: u.written || ordered, bytes: u.bytes })
            .collect();
        let cost_bytes = bindings.iter().map(|b| b.bytes as u64).sum();
        let words = self.fixed.into_iter().chain(self.dynamic).collect();
        let (parts, of_halves, on) = (Vec::new(), None, self.on);
        Ok(Launch { source, bindings, words, params, parts, of_halves, grid, cost_bytes, cost_flops, on })
    }

    /// `text` with the words' tokens replaced by where they lie.
    fn name_words(&self, text: &str, params: Params) -> String {
        let mut out = String::with_capacity(text.len());
        for (i, part) in text.split('$').enumerate() {
            if i % 2 == 0 {
                out.push_str(part);
                continue;
            }
            let n: usize = part[1..].parse().expect("tokens are a letter and a number");
            let fixed = part.starts_with('f');
            let _ = match params {
                Params::Spilled { .. } if fixed => {
                    write!(out, "words[{}].{}", n / 4, ["x", "y", "z", "w"][n % 4])
                }
                Params::Immediate | Params::Parts { .. } if !fixed => {
                    write!(out, "params.w{}", n + self.fixed.len())
                }
                _ => write!(out, "params.w{n}"),
            };
        }
        out
    }
}
